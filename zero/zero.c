// zero.c: the engine. zero.h says what it does for its caller; this is how.
//
// Buffers. Parameters are one symmetric flat buffer. Gradients of the micro-batch at hand are another one (stages 0,
// 1), or a few unit-sized buffers that are taken from a pool and given back (stages 2, 3). Parameters of stage 3:
// params.c. Optimizer state and gradient sums are this rank's shard (optimizer state in stage 0: everything).
//
// Reduction. Releasing a unit's gradients begins an exchange. It is finished later, in the order of release: when a
// buffer is needed, or at the end of the micro-batch. Finishing adds the N pieces as a balanced tree, and the result to
// the partial sums that wait for it. These are kept as a binary counter keeps its ones: micro-step g merges with as
// many partial sums as g has trailing ones, so partial sums always cover 2^k micro-steps and popcount(g) slots are
// live. What is left at the end of the step is added from the newest to the oldest. With N a power of two the whole is
// the balanced tree over the global micro-batch index g * N + r, whatever N.
//
// Groups. With several groups that shard the same (hierarchical sharding), a unit's sum in a group is summed over the
// groups, again as a tree and before it meets other micro-steps: groups are contiguous ranks, so that is the same
// balanced tree.
//
// Step. Norm: exact integer sums of shards, so no order matters. AdamW: one launch a unit, on the shard, then the
// unit's parameters are gathered (stages 1, 2; in stage 3 they are just exposed again); or the unit's gradient sums are
// gathered and every rank updates everything (stage 0).
//
// Overlap. A transport with a stream of its own (NCCL) makes no call here wait: a reduction is queued whole when its
// unit is released, sums included, on that stream (sum_stream), and goes on under the backward of the next units; the
// caller's stream waits for all of them where sums are read (zero_follow), and for one where its buffer is acquired
// again. Gathered parameters are waited for unit by unit, in the next forward. So the host waits once in a step, in
// zero_grad_norm: whether all ranks take the step is decided by that number. A transport without one (MPI) waits on the
// host, as late as it may. test_overlap shows what runs beside what.
#include "zero/internal.h"
#include "zero/nvtx.h"
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- small things
// ----------------------------------------------------------------------------------------------------

int zero_fail(zero *z, int code, const char *format, ...) {
    va_list args;
    const int n = snprintf(z->error, sizeof z->error, "rank %d of %d: ", z->rank, z->ranks);
    va_start(args, format);
    vsnprintf(z->error + n, sizeof z->error - (size_t)n, format, args);
    va_end(args);
    return code;
}

int zero_comm_check(zero *z, int e) {
    const char *words = zero_comm_error(z->config.shard_comm);  // empty if it was not this transport
    if (e)
        snprintf(z->error, sizeof z->error, "%s",
                 *words || z->groups == 1 ? words : zero_comm_error(z->config.replicate_comm));
    return e;
}

int zero_device_check(zero *z, cudaError_t e, const char *what) {
    if (e == cudaSuccess) return ZERO_OK;
    // The echo of a transport that has given up on another rank? That says more.
    if (zero_comm_synchronize(z->config.shard_comm, z->config.stream) == ZERO_ERR_COMM)
        return zero_comm_check(z, ZERO_ERR_COMM);
    return zero_fail(z, ZERO_ERR_DEVICE, "%s: %s", what, cudaGetErrorString(e));
}

int zero_follow(zero *z, cudaStream_t follower, cudaStream_t leader) {
    if (follower == leader) return ZERO_OK;
    int e = zero_device_check(z, cudaEventRecord(z->event, leader), "recording an event");
    return e ? e : zero_device_check(z, cudaStreamWaitEvent(follower, z->event, 0), "waiting for an event");
}

cudaStream_t zero_transport_stream(const zero *z) {
    const cudaStream_t own = zero_comm_stream(z->config.shard_comm);
    return own ? own : z->config.stream;
}

void zero_time_begin(zero *z, const char *work, cudaStream_t on) {
    if (!z->config.timing) return;
    if (on != z->config.stream) (void)zero_follow(z, on, z->config.stream);  // an error would be the next call's too
    z->config.timing(z->config.timing_ctx, work, 1, on);
}

void zero_time_end(zero *z, const char *work, cudaStream_t on) {
    if (z->config.timing) z->config.timing(z->config.timing_ctx, work, 0, on);
}

const char *zero_error(const zero *z) { return z->error; }
const zero_layout *zero_get_layout(const zero *z) { return &z->layout; }
size_t zero_tensor_offset(const zero *z, size_t tensor) { return z->layout.tensor_offset[tensor]; }

int zero_alloc(zero *z, enum zero_memory_category c, size_t bytes, void *out) {
    void *p = zero_accounting_alloc(z->config.accounting, c, bytes);
    memcpy(out, &p, sizeof p);
    return p ? ZERO_OK
             : zero_fail(z, ZERO_ERR_MEMORY,
                         "no memory for %zu bytes of %s: use a higher ZeRO stage, more ranks or a smaller model", bytes,
                         zero_memory_category_name(c));
}

// Debugging: whoever reads on what was given back sees NaN.
int zero_poison(zero *z, void *p, size_t bytes) {
    return z->config.settings.delay_seed && p
               ? zero_device_check(z, cudaMemsetAsync(p, 0xff, bytes, z->config.stream), "poisoning a buffer")
               : ZERO_OK;
}

// ---- life
// ------------------------------------------------------------------------------------------------------------

int zero_create_buffer(zero *z, enum zero_memory_category category, size_t numel, size_t elem, void *out) {
    void *p = NULL;
    const int e = zero_comm_check(
        z, zero_comm_alloc(z->config.shard_comm, z->config.accounting, category, &p, numel * elem));
    memcpy(out, &p, sizeof p);
    return e;
}

static int create_grads(zero *z) {
    const zero_layout *l = &z->layout;
    int e = ZERO_OK;
    z->buffers = calloc(l->num_units, sizeof *z->buffers);
    if (!z->buffers) return zero_fail(z, ZERO_ERR_MEMORY, "out of host memory");
    if (z->config.settings.stage >= 2) {
        for (size_t u = 0; u < l->num_units && !e; u++) {
            if (!zero_pool_has(l, u, ZERO_POOL_DEPTH)) continue;
            struct grad_buffer *b = &z->buffers[z->num_buffers++];
            b->numel = unit_numel(z, u);
            e = zero_create_buffer(z, ZERO_MEM_UNIT_BUFFERS, b->numel, z->elem, &b->ptr);
        }
        return e;
    }
    e = zero_create_buffer(z, ZERO_MEM_GRADS, l->numel_padded, z->elem, &z->grads);
    for (size_t u = 0; u < l->num_units && !e; u++) {
        z->buffers[u] = (struct grad_buffer){ .ptr = z->grads + l->unit_offset[u] * z->elem,
                                              .numel = unit_numel(z, u) };
        z->units[u].buffer = &z->buffers[u];
    }
    z->num_buffers = l->num_units;
    return e;
}

// The tiles of AdamW: pieces of at most ZERO_OPTIMIZER_CHUNK elements of one tensor, its padding included. zero_cost_optimizer_chunks counts
// the same.
static int create_optimizer_chunks(zero *z) {
    const zero_layout *l = &z->layout;
    size_t n = 0;
    zero_optimizer_chunk *tiles = malloc(
        (1 + zero_cost_optimizer_chunks(l, z->config.settings.stage, (size_t)z->rank)) * sizeof *tiles);
    z->unit_chunks = malloc((l->num_units + 1) * sizeof *z->unit_chunks);
    if (!tiles || !z->unit_chunks) {
        free(tiles);
        return zero_fail(z, ZERO_ERR_MEMORY, "out of host memory");
    }
    for (size_t u = 0; u < l->num_units; u++) {
        const size_t begin = state_begin(z, u), end = begin + state_numel(z, u);
        z->unit_chunks[u] = n;
        for (size_t t = l->unit_first[u]; t < l->unit_first[u + 1]; t++) {
            const size_t next = t + 1 < l->unit_first[u + 1] ? l->tensor_offset[t + 1] : unit_numel(z, u);
            size_t from = l->tensor_offset[t] > begin ? l->tensor_offset[t] : begin;
            const size_t to = next < end ? next : end;
            for (; from < to; from += ZERO_OPTIMIZER_CHUNK)
                tiles[n++] = (zero_optimizer_chunk){
                    .param = sharded_params(z) ? shard_offset(z, u) + from - begin : l->unit_offset[u] + from,
                    .state = state_offset(z, u) + from - begin,
                    .grad = whole_state(z) && z->ranks > 1 ? from : shard_offset(z, u) + from - begin,
                    .logical = l->tensors[t].logical + from - l->tensor_offset[t],
                    .count = (uint32_t)(to - from < ZERO_OPTIMIZER_CHUNK ? to - from : ZERO_OPTIMIZER_CHUNK),
                    .decay = l->tensors[t].decay,
                };
        }
    }
    z->unit_chunks[l->num_units] = n;
    int e = zero_alloc(z, ZERO_MEM_TRANSPORT, n * sizeof *tiles, &z->tiles);
    if (!e && n)
        e = zero_device_check(z, cudaMemcpy(z->tiles, tiles, n * sizeof *tiles, cudaMemcpyHostToDevice),
                              "copying the optimizer's tiles");
    free(tiles);
    return e;
}

static int create_group_sums(zero *z) {
    const size_t numel = zero_layout_group_buffer(&z->layout, (size_t)z->groups);
    void *p[2] = { NULL, NULL };
    int e = ZERO_OK;
    for (int i = 0; i < 2 && !e; i++)
        e = zero_comm_check(z, zero_comm_alloc(z->config.replicate_comm, z->config.accounting, ZERO_MEM_UNIT_BUFFERS,
                                               &p[i], numel * sizeof(float)));
    z->group_sum = p[0];
    z->all_sum = p[1];
    if (!e) e = zero_alloc(z, ZERO_MEM_TRANSPORT, sizeof *z->all_sum_piece, &z->all_sum_piece);
    return e ? e
             : zero_device_check(z,
                                 cudaMemcpy(z->all_sum_piece, &z->all_sum, sizeof z->all_sum, cudaMemcpyHostToDevice),
                                 "copying a pointer");
}

static int create(zero *z) {
    const zero_config *c = &z->config;
    const char *why = NULL;
    if (c->settings.stage < 0 || c->settings.stage > 3)
        return zero_fail(z, ZERO_ERR_ARG, "there is no ZeRO stage %d: use 0, 1, 2 or 3", c->settings.stage);
    if (c->settings.shard_group && c->settings.shard_group != (size_t)z->ranks)
        return zero_fail(z, ZERO_ERR_ARG, "settings.shard_group is %zu, but shard_comm has %d ranks: make them equal",
                         c->settings.shard_group, z->ranks);
    if (z->groups > 1 && c->settings.stage == 0)
        return zero_fail(z, ZERO_ERR_ARG, "stage 0 shards nothing: groups of ranks that shard need stage 1, 2 or 3");
    if (z->groups > 1 && c->settings.reduction == ZERO_REDUCE_LIBRARY)
        return zero_fail(z, ZERO_ERR_ARG, "the library's reduction works on one group of ranks only");
    if (c->settings.prefetch < 0 || c->settings.prefetch > 2)
        return zero_fail(z, ZERO_ERR_ARG, "%d units cannot be fetched ahead: use 0, 1 or 2", c->settings.prefetch);
    if (c->settings.master < ZERO_MASTER_FP32 || c->settings.master > ZERO_MASTER_NONE)
        return zero_fail(z, ZERO_ERR_ARG, "there is no kind %d of master weights", (int)c->settings.master);
    if (c->settings.dtype == ZERO_F32 && c->settings.master != ZERO_MASTER_FP32)
        return zero_fail(z, ZERO_ERR_ARG, "fp32 parameters are their own master weights: use ZERO_MASTER_FP32");
    if (zero_layout_create(&z->layout, c->tensors, c->num_tensors, (size_t)z->ranks, &why))
        return zero_fail(z, ZERO_ERR_ARG, "layout: %s", why);
    z->config.tensors = z->layout.tensors;
    const zero_layout *l = &z->layout;
    z->units = calloc(l->num_units, sizeof *z->units);
    z->pending = calloc(l->num_units, sizeof *z->pending);
    z->host = malloc(CHUNK * sizeof *z->host);
    z->host_params = malloc(CHUNK * sizeof *z->host_params);
    z->host_low = malloc(CHUNK * sizeof *z->host_low);
    if (!z->units || !z->pending || !z->host || !z->host_params || !z->host_low)
        return zero_fail(z, ZERO_ERR_MEMORY, "out of host memory");
    z->sum_stream = zero_comm_stream(c->shard_comm) ? zero_comm_stream(c->shard_comm) : c->stream;
    int e = zero_device_check(z, cudaEventCreateWithFlags(&z->event, cudaEventDisableTiming), "creating an event");
    if (!e) e = zero_params_create(z);
    if (!e) e = create_grads(z);
    if (!e && z->groups > 1) e = create_group_sums(z);
    if (!e && whole_state(z) && z->ranks > 1)
        e = zero_create_buffer(z, ZERO_MEM_UNIT_BUFFERS, zero_layout_largest_unit(l), sizeof(float), &z->unit_sum);
    if (!e && master_bytes(z)) e = zero_alloc(z, ZERO_MEM_MASTER, state_total(z) * master_bytes(z), &z->master);
    if (!e) e = zero_alloc(z, ZERO_MEM_M, state_total(z) * sizeof(float), &z->m);
    if (!e) e = zero_alloc(z, ZERO_MEM_V, state_total(z) * sizeof(float), &z->v);
    if (!e) e = zero_alloc(z, ZERO_MEM_TRANSPORT, ZERO_SQUARE_PARTS * ZERO_WIDE_WORDS * sizeof(uint64_t), &z->squares);
    return e ? e : create_optimizer_chunks(z);
}

int zero_create(zero **out, const zero_config *config) {
    zero *z = calloc(1, sizeof *z);
    *out = z;
    if (!z) return ZERO_ERR_MEMORY;
    z->config = *config;
    z->rank = zero_comm_rank(config->shard_comm);
    z->ranks = zero_comm_size(config->shard_comm);
    z->groups = config->replicate_comm ? zero_comm_size(config->replicate_comm) : 1;
    z->elem = zero_dtype_bytes(config->settings.dtype);
    zero_comm_phase(config->shard_comm, "creating the engine", 0);
    zero_comm_set_delay_seed(config->shard_comm, config->settings.delay_seed);
    if (config->replicate_comm) zero_comm_set_delay_seed(config->replicate_comm, config->settings.delay_seed);
    return create(z);
}

void zero_destroy(zero *z) {
    if (!z) return;
    zero_accounting *mem = z->config.accounting;
    if (z->layout.num_units) {
        const size_t state_bytes = state_total(z) * sizeof(float);
        zero_params_destroy(z);
        zero_comm_free(z->config.shard_comm, z->grads);
        for (size_t i = 0; i < z->num_buffers && z->config.settings.stage >= 2; i++)
            zero_comm_free(z->config.shard_comm, z->buffers[i].ptr);
        zero_comm_free(z->config.shard_comm, z->unit_sum);
        if (z->groups > 1) {
            zero_comm_free(z->config.replicate_comm, z->group_sum);
            zero_comm_free(z->config.replicate_comm, z->all_sum);
            zero_accounting_free(mem, ZERO_MEM_TRANSPORT, z->all_sum_piece, sizeof *z->all_sum_piece);
        }
        zero_accounting_free(mem, ZERO_MEM_MASTER, z->master, state_total(z) * master_bytes(z));
        zero_accounting_free(mem, ZERO_MEM_M, z->m, state_bytes);
        zero_accounting_free(mem, ZERO_MEM_V, z->v, state_bytes);
        zero_accounting_free(mem, ZERO_MEM_TRANSPORT, z->squares,
                             ZERO_SQUARE_PARTS * ZERO_WIDE_WORDS * sizeof(uint64_t));
        if (z->unit_chunks)
            zero_accounting_free(mem, ZERO_MEM_TRANSPORT, z->tiles,
                                 z->unit_chunks[z->layout.num_units] * sizeof *z->tiles);
        for (int s = 0; s < ZERO_MAX_PARTIAL_SUMS; s++)
            zero_accounting_free(mem, ZERO_MEM_GRAD_SHARDS, z->slots[s], shard_total(z) * sizeof(float));
    }
    if (z->event) (void)cudaEventDestroy(z->event);
    zero_layout_destroy(&z->layout);
    free(z->unit_chunks);
    free(z->buffers);
    free(z->units);
    free(z->pending);
    free(z->host);
    free(z->host_params);
    free(z->host_low);
    free(z);
}

// ---- brackets
// ---------------------------------------------------------------------------------------------------------

static int ensure_slot(zero *z, int s) {
    if (s >= ZERO_MAX_PARTIAL_SUMS) return zero_fail(z, ZERO_ERR_ARG, "too many micro-batches in one step");
    return z->slots[s] ? ZERO_OK : zero_alloc(z, ZERO_MEM_GRAD_SHARDS, shard_total(z) * sizeof(float), &z->slots[s]);
}

// The partial sums of a unit in slots [first, first + count).
static zero_partial_sums slots_of(const zero *z, int first, int count, size_t offset) {
    zero_partial_sums s = { .count = count };
    for (int i = 0; i < count; i++) s.slot[i] = z->slots[first + i] + offset;
    return s;
}

// The sum of a unit over the ranks of all groups, from the exchanged pieces of this one, to all_sum.
static int sum_over_groups(zero *z, size_t u, const void *const *pieces) {
    const size_t n = zero_layout_group_piece(&z->layout, u, (size_t)z->groups), bytes = n * sizeof(float);
    const cudaStream_t stream = z->sum_stream;
    const zero_partial_sums none = { .count = 0 };
    zero_comm *replicas = z->config.replicate_comm;
    const void *const *sums = NULL;
    zero_comm_phase(replicas, "sum over groups", u);
    int e = zero_comm_reusable(replicas, z->group_sum_ticket, stream);
    if (!e)
        e = zero_device_check(
            z,
            zero_kernel_sum(z->group_sum, pieces, z->ranks, z->config.settings.dtype, none, shard_numel(z, u), stream),
            "ordered sum");
    if (!e) e = zero_comm_all_to_all_begin(replicas, z->group_sum, bytes, stream, &z->group_sum_ticket);
    if (!e) e = zero_comm_reusable(replicas, z->all_sum_ticket, stream);
    if (!e) e = zero_comm_all_to_all_finish(replicas, z->group_sum_ticket, stream, &sums);
    if (!e)
        e = zero_device_check(z,
                              zero_kernel_sum(z->all_sum + (size_t)zero_comm_rank(replicas) * n, sums, z->groups,
                                              ZERO_F32, none, n, stream),
                              "ordered sum");
    if (!e) e = zero_comm_all_to_all_done(replicas, z->group_sum_ticket, stream);
    if (!e) e = zero_comm_allgather_begin(replicas, z->all_sum, bytes, ZERO_WIRE_GRADS, stream, &z->all_sum_ticket);
    if (!e) e = zero_comm_allgather_finish(replicas, z->all_sum_ticket, stream);
    return e == ZERO_ERR_DEVICE ? e : zero_comm_check(z, e);
}

// Add the exchanged gradients of a unit to its sums: micro-step g merges with the partial sums of g's trailing ones.
static int reduce_unit(zero *z, size_t u) {
    const size_t g = z->units[u].micro, offset = shard_offset(z, u), n = shard_numel(z, u);
    const int live = __builtin_popcountll(g), merge = __builtin_ctzll(~g);
    const cudaStream_t stream = z->sum_stream;
    struct grad_buffer *b = z->units[u].buffer;
    zero_comm *comm = z->config.shard_comm;
    const void *const *pieces = NULL;
    zero_comm_phase(comm, "reduction of gradients", u);
    int e = ensure_slot(z, live - merge);
    if (z->config.settings.reduction == ZERO_REDUCE_LIBRARY) {
        if (!e) e = ensure_slot(z, live);
        if (!e) e = zero_follow(z, stream, z->config.stream);
        if (!e)
            e = zero_comm_check(z, zero_comm_reduce_scatter(comm, b->ptr, z->config.settings.dtype, n,
                                                            z->slots[live] + offset, stream, &b->ticket));
        if (!e && merge)
            e = zero_device_check(z,
                                  zero_kernel_sum(z->slots[live - merge] + offset, NULL, 0, ZERO_F32,
                                                  slots_of(z, live - merge, merge + 1, offset), n, stream),
                                  "ordered sum");
    } else {
        if (!e) e = zero_comm_check(z, zero_comm_all_to_all_finish(comm, b->ticket, stream, &pieces));
        int count = z->ranks;
        enum zero_dtype dtype = z->config.settings.dtype;
        if (z->groups > 1 && !e) {
            e = sum_over_groups(z, u, pieces);
            pieces = z->all_sum_piece;
            count = 1;
            dtype = ZERO_F32;
        }
        if (!e)
            e = zero_device_check(z,
                                  zero_kernel_sum(z->slots[live - merge] + offset, pieces, count, dtype,
                                                  slots_of(z, live - merge, merge, offset), n, stream),
                                  "ordered sum");
        if (!e) e = zero_comm_check(z, zero_comm_all_to_all_done(comm, b->ticket, stream));
    }
    if (e) return e;
    z->units[u].micro++;
    z->units[u].state = UNIT_FREE;
    b->busy = 0;
    if (z->config.settings.stage >= 2) z->units[u].buffer = NULL;
    return ZERO_OK;
}

// The same, named.
static int reduce(zero *z, size_t u) {
    zero_nvtx_push("reduce", u);
    zero_time_begin(z, "reduce", z->sum_stream);
    const int e = reduce_unit(z, u);
    zero_time_end(z, "reduce", z->sum_stream);
    zero_nvtx_pop();
    return e;
}

static int reduce_oldest(zero *z) {
    const size_t u = z->pending[z->pending_first];
    z->pending_first = (z->pending_first + 1) % z->layout.num_units;
    z->pending_count--;
    return reduce(z, u);
}

// A free buffer of the pool for this unit: of its size, the one whose last exchange is the oldest.
static struct grad_buffer *free_buffer(zero *z, size_t numel) {
    struct grad_buffer *best = NULL;
    for (size_t i = 0; i < z->num_buffers; i++) {
        struct grad_buffer *b = &z->buffers[i];
        if (b->numel == numel && !b->busy && (!best || b->ticket < best->ticket)) best = b;
    }
    return best;
}

static int acquire_grads(zero *z, size_t u) {
    if (u >= z->layout.num_units) return zero_fail(z, ZERO_ERR_ARG, "there is no unit %zu", u);
    struct unit *unit = &z->units[u];
    int e = ZERO_OK;
    if (unit->state != UNIT_FREE || unit->micro != z->micro)
        return zero_fail(
            z, ZERO_ERR_ARG,
            "the gradients of unit %zu are acquired twice in one micro-batch: call zero_finish_backward after each", u);
    if (z->merged)
        return zero_fail(z, ZERO_ERR_ARG, "a micro-batch after zero_grad_norm: call zero_step or zero_discard first");
    if (z->config.settings.stage >= 2) {
        while (!e && !(unit->buffer = free_buffer(z, unit_numel(z, u)))) {
            if (!z->pending_count)
                return zero_fail(z, ZERO_ERR_ARG,
                                 "more than %d units of one size hold gradients at a time: release them sooner",
                                 ZERO_POOL_DEPTH);
            e = reduce_oldest(z);
        }
        if (e) return e;
    }
    struct grad_buffer *b = unit->buffer;
    zero_comm_phase(z->config.shard_comm, "acquiring a gradient buffer", u);
    e = zero_comm_check(z, zero_comm_reusable(z->config.shard_comm, b->ticket, z->config.stream));
    zero_time_begin(z, "zero gradients", z->config.stream);
    if (!e)
        e = zero_device_check(z, cudaMemsetAsync(b->ptr, 0, b->numel * z->elem, z->config.stream), "zeroing gradients");
    zero_time_end(z, "zero gradients", z->config.stream);
    if (e) return e;
    b->busy = 1;
    unit->state = UNIT_ACQUIRED;
    return ZERO_OK;
}

void *zero_acquire_grads(zero *z, size_t unit) {
    return acquire_grads(z, unit) == ZERO_OK ? z->units[unit].buffer->ptr : NULL;
}

static int begin_reduction(zero *z, size_t u) {
    if (z->config.settings.reduction == ZERO_REDUCE_LIBRARY) return reduce(z, u);
    zero_comm_phase(z->config.shard_comm, "reduction of gradients", u);
    zero_time_begin(z, "exchange", z->sum_stream);
    const int e = zero_comm_check(z, zero_comm_all_to_all_begin(z->config.shard_comm, z->units[u].buffer->ptr,
                                                                shard_numel(z, u) * z->elem, z->config.stream,
                                                                &z->units[u].buffer->ticket));
    zero_time_end(z, "exchange", z->sum_stream);
    if (e) return e;
    if (zero_comm_stream(z->config.shard_comm)) return reduce(z, u);  // the host waits for nothing there
    z->pending[(z->pending_first + z->pending_count++) % z->layout.num_units] = u;
    return z->pending_count >= ZERO_COMM_MAX_PENDING / 2 ? reduce_oldest(z) : ZERO_OK;
}

int zero_release_grads(zero *z, size_t u) {
    if (u >= z->layout.num_units || z->units[u].state != UNIT_ACQUIRED)
        return zero_fail(z, ZERO_ERR_ARG, "the gradients of unit %zu are released without being acquired", u);
    z->units[u].state = UNIT_REDUCING;
    zero_nvtx_push("reduce", u);
    const int e = begin_reduction(z, u);
    zero_nvtx_pop();
    return e;
}

// Between groups, gradients are all that the other transport carries.
static uint64_t received(const zero *z, enum zero_wire kind) {
    if (kind != ZERO_WIRE_REPLICAS) return zero_comm_received(z->config.shard_comm, kind);
    return z->groups > 1 ? zero_comm_received(z->config.replicate_comm, ZERO_WIRE_GRADS) : 0;
}

int zero_begin_step(zero *z) {
    // first: it receives what was fetched ahead of something else
    const int e = sharded_params(z) ? zero_params_forget(z) : ZERO_OK;
    for (int k = 0; k < ZERO_WIRE_KINDS; k++) z->wire_start[k] = received(z, (enum zero_wire)k);
    return e;
}

int zero_finish_backward(zero *z) {
    int e = ZERO_OK;
    while (z->pending_count && !e) e = reduce_oldest(z);
    for (size_t u = 0; u < z->layout.num_units && !e; u++)
        if (z->units[u].micro != z->micro + 1)
            e = zero_fail(z, ZERO_ERR_ARG, "the gradients of unit %zu were not released in this micro-batch", u);
    // Not each time: this waits for the last reader, and who never runs ahead meets no race.
    for (size_t i = 0; i < z->num_buffers && z->config.settings.delay_seed && z->micro % 2 && !e; i++) {
        e = zero_comm_check(z, zero_comm_reusable(z->config.shard_comm, z->buffers[i].ticket, z->config.stream));
        if (!e) e = zero_poison(z, z->buffers[i].ptr, z->buffers[i].numel * z->elem);
    }
    if (e) return e;
    z->micro++;
    if (z->micro > z->max_micro) z->max_micro = z->micro;
    return ZERO_OK;
}

// ---- norm and step
// ----------------------------------------------------------------------------------------------------

// Add what is left of the binary counter into slot 0.
static int merge_slots(zero *z) {
    if (z->pending_count || !z->micro)
        return zero_fail(z, ZERO_ERR_ARG, "no finished micro-batch to step on: call zero_finish_backward first");
    if (z->merged) return ZERO_OK;
    const int live = __builtin_popcountll(z->micro), e = zero_follow(z, z->config.stream, z->sum_stream);
    z->merged = 1;
    if (live == 1 || e) return e;
    return zero_device_check(
        z, zero_kernel_sum(z->slots[0], NULL, 0, ZERO_F32, slots_of(z, 0, live, 0), shard_total(z), z->config.stream),
        "sum of micro-batches");
}

// Let carries run, so that every digit is below 2^32 and many wide integers can be added.
static void wide_normalize(uint64_t *wide) {
    for (int d = 0; d + 1 < ZERO_WIDE_DIGITS; d++) {
        wide[d + 1] += wide[d] >> 32;
        wide[d] &= 0xffffffff;
    }
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

int zero_grad_norm(zero *z, double *norm) {
    uint64_t *parts = malloc(ZERO_SQUARE_PARTS * ZERO_WIDE_WORDS * sizeof *parts);
    uint64_t mine[ZERO_WIDE_WORDS] = { 0 }, *all = malloc((size_t)z->ranks * sizeof mine);
    int e = parts && all ? merge_slots(z) : zero_fail(z, ZERO_ERR_MEMORY, "out of host memory");
    zero_comm_phase(z->config.shard_comm, "gradient norm", 0);
    zero_time_begin(z, "norm", z->config.stream);
    if (!e)
        e = zero_device_check(z, zero_kernel_square_sum(z->squares, z->slots[0], shard_total(z), z->config.stream),
                              "sum of squares");
    zero_time_end(z, "norm", z->config.stream);
    if (!e)
        e = zero_device_check(z,
                              cudaMemcpyAsync(parts, z->squares, ZERO_SQUARE_PARTS * sizeof mine,
                                              cudaMemcpyDeviceToHost, z->config.stream),
                              "reading the norm");
    if (!e) e = zero_comm_check(z, zero_comm_synchronize(z->config.shard_comm, z->config.stream));
    if (!e) {
        for (int p = 0; p < ZERO_SQUARE_PARTS; p++)
            for (int d = 0; d < ZERO_WIDE_WORDS; d++) mine[d] += parts[p * ZERO_WIDE_WORDS + d];
        wide_normalize(mine);
        e = zero_comm_check(z, zero_comm_allgather_host(z->config.shard_comm, mine, sizeof mine, all));
    }
    if (!e) {
        memset(mine, 0, sizeof mine);
        for (int r = 0; r < z->ranks; r++)
            for (int d = 0; d < ZERO_WIDE_WORDS; d++) mine[d] += all[r * ZERO_WIDE_WORDS + d];
        const double squares = mine[ZERO_WIDE_NAN] ? NAN : mine[ZERO_WIDE_INF] ? INFINITY : wide_to_double(mine);
        *norm = sqrt(squares) / ((double)z->micro * (double)z->ranks * (double)z->groups);
    }
    free(parts);
    free(all);
    return e;
}

// Stage 0: every rank needs the whole unit's gradient sums, in fp32 (rounding them would be another update).
static int gather_unit_sum(zero *z, size_t u) {
    const size_t bytes = shard_numel(z, u) * sizeof(float);
    zero_ticket *t = &z->unit_sum_ticket;
    zero_comm_phase(z->config.shard_comm, "gathering gradient sums", u);
    int e = zero_comm_check(z, zero_comm_reusable(z->config.shard_comm, *t, z->config.stream));
    if (!e)
        e = zero_device_check(z,
                              cudaMemcpyAsync((char *)z->unit_sum + (size_t)z->rank * bytes,
                                              z->slots[0] + shard_offset(z, u), bytes, cudaMemcpyDeviceToDevice,
                                              z->config.stream),
                              "copying gradient sums");
    if (!e)
        e = zero_comm_check(z, zero_comm_allgather_begin(z->config.shard_comm, z->unit_sum, bytes, ZERO_WIRE_GRADS,
                                                         z->config.stream, t));
    return e ? e : zero_comm_check(z, zero_comm_allgather_finish(z->config.shard_comm, *t, z->config.stream));
}

static int forget_gradients(zero *z) {
    int e = ZERO_OK;
    for (int s = 0; s < ZERO_MAX_PARTIAL_SUMS && !e; s++)
        e = zero_poison(z, z->slots[s], shard_total(z) * sizeof(float));
    for (size_t u = 0; u < z->layout.num_units; u++) z->units[u].micro = 0;
    z->last_micro = z->micro;
    z->micro = 0;
    z->merged = 0;
    for (int k = 0; k < ZERO_WIRE_KINDS; k++) {
        const uint64_t now = received(z, (enum zero_wire)k);
        z->wire_step[k] = now - z->wire_start[k];
        z->wire_start[k] = now;
    }
    return e;
}

int zero_step(zero *z, const zero_adamw *a) {
    int e = merge_slots(z);
    const zero_adamw_args args = {
        .lr = a->lr,
        .beta1 = a->beta1,
        .beta2 = a->beta2,
        .eps = a->eps,
        .weight_decay = a->weight_decay,
        .correction1 = (float)(1.0 - pow((double)a->beta1, (double)a->t)),
        .correction2 = (float)(1.0 - pow((double)a->beta2, (double)a->t)),
        .scale = a->grad_scale * (1.0f / (float)(z->micro * (size_t)z->ranks * (size_t)z->groups)),
        .seed = z->config.settings.seed,
        .t = a->t,
    };
    char *params = sharded_params(z) ? zero_window_shard(z->window) : z->params;
    if (!e) e = zero_params_begin(z);
    for (size_t u = 0; u < z->layout.num_units && !e; u++) {
        const float *grads = z->slots[0];
        if (whole_state(z) && z->ranks > 1) {
            zero_time_begin(z, "gather sums", z->config.stream);
            e = gather_unit_sum(z, u);
            zero_time_end(z, "gather sums", z->config.stream);
            grads = z->unit_sum;
        }
        zero_comm_inject_delay(z->config.shard_comm);
        zero_nvtx_push("AdamW", u);
        zero_time_begin(z, "AdamW", z->config.stream);
        if (!e)
            e = zero_device_check(z,
                                  zero_kernel_adamw(params, z->config.settings.dtype, z->config.settings.master,
                                                    z->master, z->m, z->v, grads, z->tiles + z->unit_chunks[u],
                                                    z->unit_chunks[u + 1] - z->unit_chunks[u], args, z->config.stream),
                                  "AdamW");
        zero_time_end(z, "AdamW", z->config.stream);
        zero_nvtx_pop();
        if (!e) e = zero_params_written(z, u);
    }
    if (!e) e = zero_params_end(z);
    return e ? e : forget_gradients(z);
}

int zero_discard(zero *z) {
    if (z->pending_count)
        return zero_fail(z, ZERO_ERR_ARG,
                         "zero_discard in the middle of a micro-batch: call zero_finish_backward first");
    const int e = zero_follow(z, z->config.stream, z->sum_stream);  // they are still being summed, if nobody asked
                                                                    // for the norm
    return e ? e : forget_gradients(z);
}
