// grad_norm.c: the norm of the gradient, of all or by tensor, and what it decides about a step.
//
// Squares are summed in double in blocks of 64 elements, and the block sums as exact integers (wide.h), over the rank's
// gradient sums and then over all ranks. Exact sums have no order, so the norm has the same bits for any number of
// ranks and shard groups.
//
// The device decides, so that the host need not wait in a step. Each line is queued:
//
//     zero_grad_norm   squares of this rank      -> its row, with the hash of its calls
//                      all-gather of rows over the replicate group, if there is one; their sum is the new row
//                      all-gather of rows over the shard group
//     zero_step        sum of rows               -> zero_decision: norm, clipping, whether to skip
//                      copy of the decision to the host, an event
//                      the optimizers' kernels, which read the decision
//     zero_last_step   the host waits for the event (zero_norm_learn); the next zero_step does if nobody asked
//
// Rows of ranks that have made other calls, and old rows, which an aborted all-gather leaves, have another hash: then
// the decision is to change nothing, and the host learns why.
#include "zero/internal.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

// ---- create and destroy ---------------------------------------------------------------------------------------------

int zero_norm_create(zero *z, int e) {
    const size_t row = ZERO_NORM_WORDS * sizeof(uint64_t);
    zero_comm *shard = z->config.shard_comm, *replicate = z->config.replicate_comm;
    if (!e) e = zero_alloc(z, ZERO_MEM_TRANSPORT, ZERO_SQUARES_BYTES, &z->squares);
    if (!e) e = zero_alloc(z, ZERO_MEM_TRANSPORT, ZERO_DECISIONS * sizeof *z->decisions, &z->decisions);
    if (!e)
        e = zero_device_check(z, cudaEventCreateWithFlags(&z->decided, cudaEventDisableTiming), "creating an event");
    if (!e && cudaMallocHost((void **)&z->learned, ZERO_DECISIONS * sizeof *z->learned) != cudaSuccess) {
        (void)cudaGetLastError();
        e = zero_fail(z, ZERO_ERR_MEMORY, "no pinned host memory for the norm");
    }
    e = zero_alloc_symmetric(z, e, shard, ZERO_MEM_TRANSPORT, (size_t)z->ranks * row, &z->rows);
    if (z->replicas > 1)
        e = zero_alloc_symmetric(z, e, replicate, ZERO_MEM_TRANSPORT, (size_t)z->replicas * row, &z->replica_rows);
    return e;
}

void zero_norm_destroy(zero *z) {
    zero_accounting *accounting = z->config.accounting;
    if (z->decided) (void)cudaEventDestroy(z->decided);
    if (z->learned) (void)cudaFreeHost(z->learned);  // it waits, as cudaFree does: a failed step may still copy to it
    zero_comm_free(z->config.shard_comm, z->rows);
    if (z->replicas > 1) zero_comm_free(z->config.replicate_comm, z->replica_rows);
    zero_accounting_free(accounting, ZERO_MEM_TRANSPORT, z->decisions, ZERO_DECISIONS * sizeof *z->decisions);
    zero_accounting_free(accounting, ZERO_MEM_TRANSPORT, z->squares, ZERO_SQUARES_BYTES);
}

// ---- the norm, on the device ----------------------------------------------------------------------------------------

static int norm_kernel(zero *z, zero_norm_args args) {
    args.calls = z->norm_calls;
    args.weight = zero_total_weight(z);
    return zero_device_check(z, zero_kernel_norm(args, z->config.stream), "norm");
}

// All-gathers the rows of a communicator's ranks.
static int gather_rows(zero *z, zero_comm *comm, uint64_t *rows, zero_ticket *ticket) {
    const size_t bytes = ZERO_NORM_WORDS * sizeof *rows;
    zero_comm_phase(comm, "gradient norm", 0);
    const int e = zero_comm_check(
        z, zero_comm_allgather_begin(comm, rows, bytes, ZERO_WIRE_SCALARS, z->config.stream, ticket));
    return e ? e : zero_comm_check(z, zero_comm_allgather_finish(comm, *ticket, z->config.stream));
}

// Queues all up to the rows of the shard group. The replicas' sum goes through a row of the replicate group.
static int queue_rows(zero *z) {
    const cudaStream_t stream = z->config.stream;
    zero_comm *shard = z->config.shard_comm, *replicate = z->config.replicate_comm;
    uint64_t *row = z->rows + (size_t)z->rank * ZERO_NORM_WORDS,
             *first = z->replicas > 1 ? z->replica_rows + group_index(z) * ZERO_NORM_WORDS : row;
    z->norm_calls = z->calls;
    zero_comm_phase(shard, "gradient norm", 0);
    int e = zero_comm_check(z, zero_comm_reusable(shard, z->rows_ticket, stream));
    if (!e && z->replicas > 1) e = zero_comm_check(z, zero_comm_reusable(replicate, z->replica_rows_ticket, stream));
    zero_time_begin(z, "norm", stream);
    if (!e)
        e = zero_device_check(z, zero_kernel_square_sum(z->squares, z->partial_sums[0], sum_total(z), stream),
                              "sum of squares");
    if (!e)
        e = norm_kernel(
            z, (zero_norm_args){ .wide = z->squares, .n = ZERO_SQUARE_PARTS, .stride = ZERO_WIDE_WORDS, .row = first });
    zero_time_end(z, "norm", stream);
    if (!e && z->replicas > 1) e = gather_rows(z, replicate, z->replica_rows, &z->replica_rows_ticket);
    if (!e && z->replicas > 1)
        e = norm_kernel(z, (zero_norm_args){ .wide = z->replica_rows,
                                             .n = (size_t)z->replicas,
                                             .stride = ZERO_NORM_WORDS,
                                             .row = row,
                                             .decision = &z->decisions[ZERO_OF_REPLICAS] });
    return e ? e : gather_rows(z, shard, z->rows, &z->rows_ticket);
}

int zero_norm_decide(zero *z, float max_norm) {
    int e = norm_kernel(z, (zero_norm_args){ .wide = z->rows,
                                             .n = (size_t)z->ranks,
                                             .stride = ZERO_NORM_WORDS,
                                             .decision = &z->decisions[ZERO_OF_ALL],
                                             .max_norm = max_norm });
    if (!e)
        e = zero_device_check(z,
                              cudaMemcpyAsync(z->learned, z->decisions, ZERO_DECISIONS * sizeof *z->learned,
                                              cudaMemcpyDeviceToHost, z->config.stream),
                              "reading the norm");
    return e ? e : zero_device_check(z, cudaEventRecord(z->decided, z->config.stream), "recording an event");
}

// Waits until the host has what was decided last.
static int wait_for_decision(zero *z) {
    const zero_decision *all = &z->learned[ZERO_OF_ALL], *replicas = &z->learned[ZERO_OF_REPLICAS];
    if (cudaEventQuery(z->decided) != cudaSuccess) {
        const int e = zero_device_check(z, cudaEventSynchronize(z->decided), "waiting for the norm");
        if (e) return e;
    }
    if (all->other < 0 && (z->replicas == 1 || replicas->other < 0)) return ZERO_OK;
    // Old rows, or those of another path.
    const int e = zero_comm_check(z, zero_comm_synchronize(z->config.shard_comm, z->config.stream));
    if (!e && z->replicas > 1 && replicas->other >= 0) return zero_fail_calls(z, replicas->other, "replicate_comm");
    return e ? e : zero_fail_calls(z, all->other, "shard_comm");
}

int zero_norm_learn(zero *z) {
    if (z->failed || !z->undecided) return z->failed;
    z->undecided = 0;
    const int e = wait_for_decision(z);
    if (e) return e;
    const zero_decision *d = &z->learned[ZERO_OF_ALL];
    z->step = (zero_step_info){ .norm = d->norm, .scale = d->scale, .skipped = d->skip };
    z->updates += !d->skip;
    return ZERO_OK;
}

int zero_grad_norm(zero *z, double *norm) {
    if (zero_enter(z)) return z->failed;
    int e = zero_grads_merge(z);
    if (!e) e = zero_norm_learn(z);  // of the last step: the place for the decision is free
    if (!e) e = queue_rows(z);
    z->has_norm = !e;
    if (e || !norm) return e;
    e = zero_norm_decide(z, 0);
    if (!e) e = wait_for_decision(z);
    if (!e) *norm = z->step.norm = z->learned[ZERO_OF_ALL].norm;
    return e;
}

// ---- by tensor, on the host -----------------------------------------------------------------------------------------

static void wide_add(uint64_t *sum, const uint64_t *wide) {
    for (int d = 0; d < ZERO_WIDE_WORDS; d++) sum[d] += wide[d];
}

// Adds the exact sum of squares of n gradient sums to wide. parts: ZERO_SQUARES_BYTES of host memory.
static int sum_squares(zero *z, const float *x, size_t n, uint64_t *parts, uint64_t *wide) {
    const cudaStream_t stream = z->config.stream;
    int e = zero_device_check(z, zero_kernel_square_sum(z->squares, x, n, stream), "sum of squares");
    if (!e)
        e = zero_device_check(z, cudaMemcpyAsync(parts, z->squares, ZERO_SQUARES_BYTES, cudaMemcpyDeviceToHost, stream),
                              "reading the norm");
    if (!e) e = zero_comm_check(z, zero_comm_synchronize(z->config.shard_comm, stream));
    for (int p = 0; p < ZERO_SQUARE_PARTS && !e; p++) wide_add(wide, parts + p * ZERO_WIDE_WORDS);
    return e;
}

// Adds n wide integers over the ranks of a communicator, and compares the hash of their calls: *other is the first rank
// that has another one, -1: there is none. wide has one more word.
static int add_over_ranks(zero *z, zero_comm *comm, uint64_t *wide, size_t n, uint64_t calls, int *other) {
    const size_t words = n * ZERO_WIDE_WORDS, ranks = (size_t)zero_comm_size(comm), row = words + 1;
    uint64_t *all = malloc(ranks * row * sizeof *all);
    *other = -1;
    if (!all) return zero_fail(z, ZERO_ERR_MEMORY, "out of host memory");
    for (size_t i = 0; i < n; i++) zero_wide_normalize(wide + i * ZERO_WIDE_WORDS);
    wide[words] = calls;
    const int e = zero_comm_check(z, zero_comm_allgather_host(comm, wide, row * sizeof *wide, all));
    memset(wide, 0, words * sizeof *wide);
    for (size_t r = 0; r < ranks && !e; r++) {
        for (size_t i = 0; i < n; i++) wide_add(wide + i * ZERO_WIDE_WORDS, all + r * row + i * ZERO_WIDE_WORDS);
        if (*other < 0 && all[r * row + words] != calls) *other = (int)r;
    }
    free(all);
    return e;
}

// Adds n wide integers over all ranks, and checks that they have made the same calls. A rank whose replicate group
// differs passes on a false hash to its shard group before it fails, so that all ranks fail. wide has one more word.
static int add_over_all(zero *z, uint64_t *wide, size_t n, const char *phase) {
    int replica = -1, shard = -1, e = ZERO_OK;
    if (z->replicas > 1) {
        zero_comm_phase(z->config.replicate_comm, phase, 0);
        e = add_over_ranks(z, z->config.replicate_comm, wide, n, z->calls, &replica);
    }
    zero_comm_phase(z->config.shard_comm, phase, 0);
    const uint64_t calls = replica < 0 ? z->calls : ~z->calls;
    if (!e) e = add_over_ranks(z, z->config.shard_comm, wide, n, calls, &shard);
    if (!e && replica >= 0) e = zero_fail_calls(z, replica, "replicate_comm");
    return e || shard < 0 ? e : zero_fail_calls(z, shard, "shard_comm");
}

int zero_check_all_calls(zero *z, const char *phase) {
    uint64_t calls;
    return add_over_all(z, &calls, 0, phase);
}

// Squares of each tensor's gradient sums on this rank: wide[num_tensors][ZERO_WIDE_WORDS].
static int sum_squares_of_tensors(zero *z, uint64_t *parts, uint64_t *wide) {
    const zero_layout *l = &z->layout;
    int e = zero_grads_merge(z);
    for (size_t u = 0; u < l->num_units && !e; u++) {
        if (unit_frozen(z, u)) continue;
        const size_t begin = sum_begin(z, u), end = sum_end(z, u);
        size_t cursor = 0;
        zero_segment s;
        while (!e && zero_layout_next_segment(l, u, begin, end, &cursor, &s)) {
            const size_t n = (s.count + ZERO_ALIGN - 1) / ZERO_ALIGN * ZERO_ALIGN;  // with padding, which is zero
            const float *x = z->partial_sums[0] + sum_offset(z, u) + s.unit_begin - begin;
            e = sum_squares(z, x, n, parts, wide + s.tensor * ZERO_WIDE_WORDS);
            zero_wide_normalize(wide + s.tensor * ZERO_WIDE_WORDS);
        }
    }
    return e;
}

int zero_tensor_norms(zero *z, double *norms) {
    if (zero_enter(z)) return z->failed;
    const size_t T = z->layout.num_tensors;
    uint64_t *parts = malloc(ZERO_SQUARES_BYTES), *sums = calloc(T * ZERO_WIDE_WORDS + 1, sizeof *sums);
    int e = parts && sums ? sum_squares_of_tensors(z, parts, sums)
                          : zero_fail(z, ZERO_ERR_MEMORY, "out of host memory");
    if (!e) e = add_over_all(z, sums, T, "norms of tensors");
    for (size_t t = 0; t < T && !e; t++)
        norms[t] = zero_wide_decide(sums + t * ZERO_WIDE_WORDS, zero_total_weight(z), 0).norm;
    free(parts);
    free(sums);
    return e;
}
