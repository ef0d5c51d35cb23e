// optimizer.c: the gradient norm, the step, and discarding gradients.
//
// Norm: exact integer sums over shards, so their order does not matter (kernels.h). Step: one launch per unit updates
// this rank's elements (optimizers/optimizers.h has the table of optimizers). In stages 1 and 2 the unit's parameters
// are then all-gathered; in stage 3 the window of shards is opened again; in stage 0 each unit's gradient sums are
// all-gathered first and every rank updates everything.
#include "zero/internal.h"
#include "zero/nvtx.h"
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

// ---- create and destroy ---------------------------------------------------------------------------------------------

// The table of this rank's chunks, by unit, on the device.
static int create_chunks(zero *z) {
    const zero_layout *l = &z->layout;
    const int stage = z->config.settings.stage;
    size_t n = 0;
    z->first_chunk = malloc((l->num_units + 1) * sizeof *z->first_chunk);
    if (!z->first_chunk) return zero_fail(z, ZERO_ERR_MEMORY, "out of host memory");
    for (size_t u = 0; u <= l->num_units; u++) {
        z->first_chunk[u] = n;
        if (u < l->num_units) n += zero_optimizer_chunks(l, stage, (size_t)z->rank, u, NULL);
    }
    zero_optimizer_chunk *chunks = malloc((n + 1) * sizeof *chunks);
    if (!chunks) return zero_fail(z, ZERO_ERR_MEMORY, "out of host memory");
    for (size_t u = 0; u < l->num_units; u++)
        zero_optimizer_chunks(l, stage, (size_t)z->rank, u, chunks + z->first_chunk[u]);
    int e = zero_alloc(z, ZERO_MEM_TRANSPORT, n * sizeof *chunks, &z->chunks);
    if (!e && n)
        e = zero_device_check(z, cudaMemcpy(z->chunks, chunks, n * sizeof *chunks, cudaMemcpyHostToDevice),
                              "copying the optimizer's chunks");
    free(chunks);
    return e;
}

static const size_t SQUARES_BYTES = ZERO_SQUARE_PARTS * ZERO_WIDE_WORDS * sizeof(uint64_t);

int zero_optimizer_create(zero *z, int e) {
    if (whole_state(z) && z->ranks > 1)
        e = zero_alloc_symmetric(z, e, z->config.shard_comm, ZERO_MEM_UNIT_BUFFERS,
                                 zero_layout_largest_unit(&z->layout) * sizeof(float), &z->gathered_sums);
    if (!e && master_bytes(z)) e = zero_alloc(z, ZERO_MEM_MASTER, state_total(z) * master_bytes(z), &z->master);
    for (size_t s = 0; s < z->optimizer->num_states && !e; s++)
        e = zero_alloc(z, ZERO_MEM_STATE + s, state_total(z) * sizeof(float), &z->state[s]);
    if (!e) e = zero_alloc(z, ZERO_MEM_TRANSPORT, SQUARES_BYTES, &z->squares);
    return e ? e : create_chunks(z);
}

void zero_optimizer_destroy(zero *z) {
    zero_accounting *accounting = z->config.accounting;
    zero_comm_free(z->config.shard_comm, z->gathered_sums);
    zero_accounting_free(accounting, ZERO_MEM_MASTER, z->master, state_total(z) * master_bytes(z));
    for (size_t s = 0; s < ZERO_MAX_OPTIMIZER_STATES; s++)
        zero_accounting_free(accounting, ZERO_MEM_STATE + s, z->state[s], state_total(z) * sizeof(float));
    zero_accounting_free(accounting, ZERO_MEM_TRANSPORT, z->squares, SQUARES_BYTES);
    if (z->first_chunk)
        zero_accounting_free(accounting, ZERO_MEM_TRANSPORT, z->chunks,
                             z->first_chunk[z->layout.num_units] * sizeof *z->chunks);
    free(z->first_chunk);
}

// ---- norm -----------------------------------------------------------------------------------------------------------

// Lets carries run, so that every digit is below 2^32 and many wide integers can be added.
static void wide_normalize(uint64_t *wide) {
    for (int d = 0; d + 1 < ZERO_WIDE_DIGITS; d++) {
        wide[d + 1] += wide[d] >> 32;
        wide[d] &= 0xffffffff;
    }
}

static void wide_add(uint64_t *sum, const uint64_t *wide) {
    for (int d = 0; d < ZERO_WIDE_WORDS; d++) sum[d] += wide[d];
}

// The nearest double: the top 64 bits, with a sticky last bit for what is below, rounded once by the conversion.
static double wide_to_double(uint64_t *wide) {
    wide_normalize(wide);
    int top = ZERO_WIDE_DIGITS - 1;
    while (top > 1 && !wide[top]) top--;
    uint64_t low = top >= 2 ? wide[top - 2] : 0, sticky = 0;
    uint64_t high = wide[top] << 32 | wide[top - 1];
    if (!high) return 0;
    const int shift = __builtin_clzll(high);
    if (shift) high = high << shift | (shift <= 32 ? low >> (32 - shift) : low << (shift - 32));
    sticky = shift < 32 ? low & (((uint64_t)1 << (32 - shift)) - 1) : 0;
    for (int d = 0; d < top - 2; d++) sticky |= wide[d];
    if (sticky) high |= 1;
    return ldexp((double)high, 32 * (top - 1) - shift - ZERO_WIDE_BIAS);
}

// Adds the exact sum of squares of n gradient sums to wide. parts: SQUARES_BYTES of host memory.
static int sum_squares(zero *z, const float *x, size_t n, uint64_t *parts, uint64_t *wide) {
    const cudaStream_t stream = z->config.stream;
    zero_time_begin(z, "norm", stream);
    int e = zero_device_check(z, zero_kernel_square_sum(z->squares, x, n, stream), "sum of squares");
    zero_time_end(z, "norm", stream);
    if (!e)
        e = zero_device_check(z, cudaMemcpyAsync(parts, z->squares, SQUARES_BYTES, cudaMemcpyDeviceToHost, stream),
                              "reading the norm");
    if (!e) e = zero_comm_check(z, zero_comm_synchronize(z->config.shard_comm, stream));
    for (int p = 0; p < ZERO_SQUARE_PARTS && !e; p++) wide_add(wide, parts + p * ZERO_WIDE_WORDS);
    return e;
}

// Micro-batches since the last step, over all ranks.
static size_t total_micro_batches(const zero *z) { return z->micro_batches * (size_t)z->ranks * (size_t)z->replicas; }

static double wide_to_norm(const zero *z, uint64_t *wide) {
    const double squares = wide[ZERO_WIDE_NAN] ? NAN : wide[ZERO_WIDE_INF] ? INFINITY : wide_to_double(wide);
    return sqrt(squares) / (double)total_micro_batches(z);
}

int zero_grad_norm(zero *z, double *norm) {
    if (z->failed) return z->failed;
    uint64_t *parts = malloc(SQUARES_BYTES);
    uint64_t mine[ZERO_NORM_WORDS] = { 0 }, sum[ZERO_WIDE_WORDS] = { 0 }, *all = malloc((size_t)z->ranks * sizeof mine);
    int e = parts && all ? zero_grads_merge(z) : zero_fail(z, ZERO_ERR_MEMORY, "out of host memory");
    zero_comm_phase(z->config.shard_comm, "gradient norm", 0);
    if (!e) e = sum_squares(z, z->partial_sums[0], shard_total(z), parts, mine);
    wide_normalize(mine);
    mine[ZERO_WIDE_WORDS] = z->calls;
    if (!e) e = zero_comm_check(z, zero_comm_allgather_host(z->config.shard_comm, mine, sizeof mine, all));
    for (int r = 0; r < z->ranks && !e; r++) {
        wide_add(sum, all + r * ZERO_NORM_WORDS);
        e = zero_check_calls(z, all[r * ZERO_NORM_WORDS + ZERO_WIDE_WORDS], r, "shard_comm");
    }
    if (!e) {
        *norm = wide_to_norm(z, sum);
    }
    free(parts);
    free(all);
    return e;
}

// Squares of each tensor's gradient sums in this rank's shard: wide[num_tensors][ZERO_WIDE_WORDS].
static int sum_squares_of_tensors(zero *z, uint64_t *parts, uint64_t *wide) {
    const zero_layout *l = &z->layout;
    int e = zero_grads_merge(z);
    for (size_t u = 0; u < l->num_units && !e; u++) {
        const size_t begin = (size_t)z->rank * shard_numel(z, u), end = begin + shard_numel(z, u);
        size_t cursor = 0;
        zero_segment s;
        while (!e && zero_layout_next_segment(l, u, begin, end, &cursor, &s)) {
            const size_t n = (s.count + ZERO_ALIGN - 1) / ZERO_ALIGN * ZERO_ALIGN;  // with padding, which is zero
            const float *x = z->partial_sums[0] + shard_offset(z, u) + s.unit_begin - begin;
            e = sum_squares(z, x, n, parts, wide + s.tensor * ZERO_WIDE_WORDS);
            wide_normalize(wide + s.tensor * ZERO_WIDE_WORDS);
        }
    }
    return e;
}

int zero_tensor_norms(zero *z, double *norms) {
    if (z->failed) return z->failed;
    const size_t T = z->layout.num_tensors, words = T * ZERO_WIDE_WORDS;
    uint64_t *parts = malloc(SQUARES_BYTES), *mine = calloc(words, sizeof *mine),
             *all = malloc((size_t)z->ranks * words * sizeof *all);
    int e = parts && mine && all ? sum_squares_of_tensors(z, parts, mine)
                                 : zero_fail(z, ZERO_ERR_MEMORY, "out of host memory");
    zero_comm_phase(z->config.shard_comm, "norms of tensors", 0);
    if (!e) e = zero_comm_check(z, zero_comm_allgather_host(z->config.shard_comm, mine, words * sizeof *mine, all));
    for (size_t t = 0; t < T && !e; t++) {
        uint64_t sum[ZERO_WIDE_WORDS] = { 0 };
        for (size_t r = 0; r < (size_t)z->ranks; r++) wide_add(sum, all + r * words + t * ZERO_WIDE_WORDS);
        norms[t] = wide_to_norm(z, sum);
    }
    free(parts);
    free(mine);
    free(all);
    return e;
}

// ---- step -----------------------------------------------------------------------------------------------------------

// Stage 0: all-gathers a unit's gradient sums in fp32 (rounding them would make it another update than in other
// stages).
static int gather_sums(zero *z, size_t u) {
    const size_t bytes = shard_numel(z, u) * sizeof(float);
    const cudaStream_t stream = z->config.stream;
    zero_comm *comm = z->config.shard_comm;
    char *own_chunk = (char *)z->gathered_sums + (size_t)z->rank * bytes;
    zero_ticket *t = &z->gathered_sums_ticket;
    zero_comm_phase(comm, "all-gather of gradient sums", u);
    zero_time_begin(z, "all-gather sums", stream);
    int e = zero_comm_check(z, zero_comm_reusable(comm, *t, stream));
    if (!e)
        e = zero_device_check(z,
                              cudaMemcpyAsync(own_chunk, z->partial_sums[0] + shard_offset(z, u), bytes,
                                              cudaMemcpyDeviceToDevice, stream),
                              "copying gradient sums");
    if (!e)
        e = zero_comm_check(z, zero_comm_allgather_begin(comm, z->gathered_sums, bytes, ZERO_WIRE_GRADS, stream, t));
    if (!e) e = zero_comm_check(z, zero_comm_allgather_finish(comm, *t, stream));
    zero_time_end(z, "all-gather sums", stream);
    return e;
}

static int update_unit(zero *z, size_t u, const float *grads, zero_optimizer_args args) {
    const zero_settings *s = &z->config.settings;
    zero_optimizer_arrays arrays = {
        .params = sharded_params(z) ? zero_window_shard(z->window) : z->params,
        .master = z->master,
        .grads = grads,
    };
    memcpy(arrays.state, z->state, sizeof arrays.state);
    zero_comm_inject_delay(z->config.shard_comm);
    zero_nvtx_push(z->optimizer->name, u);
    zero_time_begin(z, z->optimizer->name, z->config.stream);
    const int e = zero_device_check(z,
                                    z->optimizer->launch(arrays, s->dtype, s->master, z->chunks + z->first_chunk[u],
                                                         z->first_chunk[u + 1] - z->first_chunk[u], args,
                                                         z->config.stream),
                                    z->optimizer->name);
    zero_time_end(z, z->optimizer->name, z->config.stream);
    zero_nvtx_pop();
    return e;
}

static int check_hyperparameters(zero *z, const zero_hyperparameters *h) {
    const struct {
        const char *name;
        float value, min, max;
    } limits[] = {
        { "lr", h->lr, 0, FLT_MAX },
        { "beta1", h->beta1, 0, 0x1.fffffep-1f },
        { "beta2", h->beta2, 0, 0x1.fffffep-1f },
        { "eps", h->eps, 0, FLT_MAX },
        { "weight_decay", h->weight_decay, 0, FLT_MAX },
        { "grad_scale", h->grad_scale, FLT_MIN, FLT_MAX },  // 0 would be a step without gradients
    };
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
        if (!(limits[i].value >= limits[i].min && limits[i].value <= limits[i].max))
            return zero_fail(z, ZERO_ERR_ARG, "zero_step: %s is %g: use %g to %g", limits[i].name,
                             (double)limits[i].value, (double)limits[i].min, (double)limits[i].max);
    return h->t ? ZERO_OK : zero_fail(z, ZERO_ERR_ARG, "zero_step: t is 0: steps are counted from 1");
}

int zero_step(zero *z, const zero_hyperparameters *h) {
    if (z->failed) return z->failed;
    if (check_hyperparameters(z, h)) return z->failed;
    zero_record_call(z, CALL_STEP, h, sizeof *h);
    const zero_optimizer_args args = zero_optimizer_prepare(h, total_micro_batches(z), z->config.settings.seed);
    const int gathers = whole_state(z) && z->ranks > 1;
    int e = zero_grads_merge(z);
    if (!e) e = zero_params_update_begin(z);
    for (size_t u = 0; u < z->layout.num_units && !e; u++) {
        if (gathers) e = gather_sums(z, u);
        if (!e) e = update_unit(z, u, gathers ? z->gathered_sums : z->partial_sums[0], args);
        if (!e) e = zero_params_update_written(z, u);
    }
    if (!e) e = zero_params_update_end(z);
    return e ? e : zero_grads_reset(z);
}

int zero_discard(zero *z) {
    if (z->failed && z->failed != ZERO_ERR_ARG && z->failed != ZERO_ERR_CALLBACK) return z->failed;
    z->failed = ZERO_OK;
    z->agreed = 0;
    z->calls = 0;
    z->error[0] = '\0';
    int e = zero_grads_abandon(z);
    if (!e) e = zero_params_abandon(z);
    return e ? e : zero_grads_reset(z);
}
