// gradients.c: where gradients are summed, over ranks and over micro-batches.
//
// Buffers. A micro-batch's gradients are in one flat buffer (stages 0, 1), or in a few unit-sized buffers that units
// take from a pool and give back (stages 2, 3). The sums are fp32, of this rank's shard only.
//
// Reduce-scatter with fp32 accumulation in a fixed order. (Megatron-Core has reduce-scatter with fp32 accumulation; the
// fixed order is ours.) An all-to-all gives this rank the N chunks of its shard, in the gradients' own dtype, so bf16
// loses nothing on the wire; one kernel pushes them onto the partial sums. The all-to-all begins when a unit is
// released (begin_reduction) and is finished in the order of release (reduce): when a buffer is needed, or at the end
// of the micro-batch. A unit much larger than the others is reduced in parts (zero_pool_part).
//
// Accumulation, as a binary counter of leaves. The leaves are the M micro-batches of the step, j = g * N + r (g =
// micro-step, r = rank). After L of them the partial sums are the ones of the binary number L, each the balanced tree
// of 2^k leaves. A leaf is pushed: it merges with as many partial sums as L has trailing ones. What is left at the end
// of the step is merged from the newest to the oldest (zero_grads_merge). So the shape of the sum depends on M alone;
// micro-step g pushes the N leaves g * N .. g * N + N - 1 in one pass over memory (zero_kernel_push). M = 6:
//
//     N = 1, after g =   in binary  partial sums           N = 2, after g =          N = 3, after g =
//     0                  1          0
//     1                  10         (0+1)                  0   (0+1)
//     2                  11         (0+1) 2                                          0   (0+1) 2
//     3                  100        ((0+1)+(2+3))          1   ((0+1)+(2+3))
//     4                  101        ((0+1)+(2+3)) 4
//     5                  110        ((0+1)+(2+3)) (4+5)    2   ((0+1)+(2+3)) (4+5)   1   ((0+1)+(2+3)) (4+5)
//     end of step                   ((0+1)+(2+3)) + (4+5), on any number of ranks
//
// Between hosts, and between shard groups, sums of several leaves travel, parts of the same tree (exchange.c).
//
// All this is ZERO_ORDER_STEP. With ZERO_ORDER_RANK and LAYER a rank's leaves are neighbours. It adds them first
// (own_sums.c), so what is sent and pushed, once a step, are z->own.count sums of z->own.leaves leaves from each rank,
// in place of one leaf.
#include "zero/internal.h"
#include "zero/nvtx.h"
#include <float.h>
#include <stdlib.h>
#include <string.h>

// ---- create and destroy ---------------------------------------------------------------------------------------------

static int create_tables(zero *z) {
    const zero_layout *l = &z->layout;
    z->buffers = calloc(l->num_units, sizeof *z->buffers);
    z->pending = calloc(l->num_units, sizeof *z->pending);
    if (!z->buffers || !z->pending || zero_pool_create(&z->pool, l, ZERO_POOL_GRADS, ZERO_GRAD_POOL_DEPTH))
        return zero_fail(z, ZERO_ERR_MEMORY, "out of host memory");
    return ZERO_OK;
}

static int create_buffers(zero *z, int e) {
    const zero_layout *l = &z->layout;
    zero_comm *comm = z->grads_comm;
    if (pooled_grads(z)) {
        for (size_t i = 0; i < z->pool.num_buffers && !e; i++) {
            struct grad_buffer *b = &z->buffers[z->num_buffers++];
            b->numel = z->pool.buffers[i].numel;
            e = zero_alloc_symmetric(z, e, comm, ZERO_MEM_UNIT_BUFFERS, b->numel * z->elem, &b->ptr);
        }
        return e;
    }
    e = zero_alloc_symmetric(z, e, comm, ZERO_MEM_GRADS, l->trained_offset[l->num_units] * z->elem, &z->grads);
    for (size_t u = 0; u < l->num_units && !e; u++) {
        if (unit_frozen(z, u)) continue;
        z->buffers[u] = (struct grad_buffer){ .ptr = z->grads + l->trained_offset[u] * z->elem,
                                              .numel = unit_numel(z, u) };
        z->units[u].buffer = &z->buffers[u];
    }
    z->num_buffers = l->num_units;
    return e;
}

static int ensure_partial_sum(zero *z, int s);
static size_t leaves_per_reduction(const zero *z);

int zero_grads_create(zero *z, int e) {
    const cudaStream_t transport = zero_comm_stream(z->config.shard_comm);
    z->reduce_stream = transport ? transport : z->config.stream;
    if (!e) e = create_tables(z);
    e = zero_exchanges_create(z, e);
    e = zero_own_sums_create(z, create_buffers(z, e));
    for (int s = 0; rank_order(z) && s < zero_partial_sums_live(leaves_per_reduction(z)) && !e; s++)
        e = ensure_partial_sum(z, s);
    if (!sums_comm(z)) return e;
    const size_t numel = whole_state(z) ? zero_layout_largest_trained_unit(&z->layout)
                                        : zero_layout_replica_buffer(&z->layout, (size_t)z->replicas);
    return zero_alloc_symmetric(z, e, sums_comm(z), ZERO_MEM_UNIT_BUFFERS, numel * sizeof(float), &z->gathered_sums);
}

void zero_grads_destroy(zero *z) {
    zero_accounting *accounting = z->config.accounting;
    if (sums_comm(z)) zero_comm_free(sums_comm(z), z->gathered_sums);
    zero_comm_free(z->grads_comm, z->grads);
    for (size_t i = 0; i < z->num_buffers && pooled_grads(z); i++) zero_comm_free(z->grads_comm, z->buffers[i].ptr);
    zero_own_sums_destroy(z);
    zero_exchanges_destroy(z);
    for (int s = 0; s < ZERO_MAX_PARTIAL_SUMS; s++)
        zero_accounting_free(accounting, ZERO_MEM_GRAD_SHARDS, z->partial_sums[s], sum_total(z) * sizeof(float));
    zero_pool_destroy(&z->pool);
    free(z->buffers);
    free(z->pending);
}

// Waits until no rank reads a buffer of this one.
static int buffers_reusable(zero *z) {
    const cudaStream_t stream = z->config.stream;
    zero_comm *comm = z->config.shard_comm;
    int e = zero_follow(z, stream, z->reduce_stream);
    for (size_t i = 0; i < z->num_buffers && !e; i++)
        e = zero_comm_check(z, zero_comm_reusable(z->grads_comm, z->buffers[i].ticket, stream));
    if (!e) e = zero_own_sums_reusable(z);
    if (!e) e = zero_exchanges_reusable(z);
    if (!e && sums_comm(z)) e = zero_comm_check(z, zero_comm_reusable(sums_comm(z), z->gathered_sums_ticket, stream));
    return e ? e : zero_comm_check(z, zero_comm_synchronize(comm, stream));
}

int zero_grads_release(zero *z) {
    const int e = zero_agree(z, buffers_reusable(z));
    if (e) return e;
    zero_grads_destroy(z);
    z->grads = NULL;
    z->gathered_sums = NULL;
    z->gathered_sums_ticket = z->packed_ticket = 0;
    z->num_buffers = z->pending_first = z->max_micro_batches = 0;
    memset(z->partial_sums, 0, sizeof z->partial_sums);
    for (size_t u = 0; u < z->layout.num_units; u++) {
        z->units[u].buffer = NULL;
        z->units[u].own = NULL;
    }
    return ZERO_OK;
}

// ---- partial sums ---------------------------------------------------------------------------------------------------

static int ensure_partial_sum(zero *z, int s) {
    if (s >= ZERO_MAX_PARTIAL_SUMS) return zero_fail(z, ZERO_ERR_ARG, "too many micro-batches in one step");
    if (z->partial_sums[s]) return ZERO_OK;
    return zero_alloc(z, ZERO_MEM_GRAD_SHARDS, sum_total(z) * sizeof(float), &z->partial_sums[s]);
}

// Partial sums [first, first + count), from their element `offset` on.
static zero_partial_sums partial_sums(const zero *z, int first, int count, size_t offset) {
    zero_partial_sums s = { .count = count };
    for (int i = 0; i < count; i++) s.sum[i] = z->partial_sums[first + i] + offset;
    return s;
}

// All that are allocated.
static zero_partial_sums all_partial_sums(const zero *z, size_t offset) {
    int count = 0;
    while (count < ZERO_MAX_PARTIAL_SUMS && z->partial_sums[count]) count++;
    return partial_sums(z, 0, count, offset);
}

// What a reduction adds to the counter: that, or some subtrees of equal size from each of several groups. The library's
// reduction has only the sum over ranks to push.
static size_t leaves_per_reduction(const zero *z) {
    if (z->config.settings.reduction == ZERO_REDUCE_LIBRARY) return 1;
    return z->groups.comm ? (size_t)z->replicas * z->groups.sums.count : zero_sums_of_group(z);
}

// Reductions in so many micro-batches.
static size_t reductions(const zero *z, size_t micro_batches) {
    return rank_order(z) ? micro_batches / z->config.micro_batches : micro_batches;
}

// Where a group's chunk reaches beyond the end of a shard: zero, for the norm.
static int clear_padding(zero *z) {
    int e = ZERO_OK;
    for (size_t u = 0; u < z->layout.num_units && !e && z->replicas > 1; u++) {
        if (unit_frozen(z, u)) continue;
        const size_t n = sum_numel(z, u), chunk = sum_offset(z, u + 1) - sum_offset(z, u);
        if (n < chunk)
            e = zero_device_check(z,
                                  cudaMemsetAsync(z->partial_sums[0] + sum_offset(z, u) + n, 0,
                                                  (chunk - n) * sizeof(float), z->config.stream),
                                  "zeroing padding");
    }
    return e;
}

int zero_units_finished(zero *z) {
    for (size_t u = 0; u < z->layout.num_units && !z->failed; u++)
        if (!unit_frozen(z, u) && (z->units[u].state != UNIT_FREE || z->units[u].micro_batches != z->micro_batches))
            zero_fail(z, ZERO_ERR_ARG,
                      "a micro-batch is unfinished (unit %zu): call zero_finish_backward or zero_discard first", u);
    return z->failed;
}

int zero_between_micro_batches(zero *z) {
    const int e = zero_units_finished(z);
    return e ? e : zero_uses_weights(z);
}

int zero_grads_merge(zero *z) {
    if (zero_between_micro_batches(z)) return z->failed;
    if (!z->micro_batches)
        return zero_fail(z, ZERO_ERR_ARG, "no finished micro-batch to step on: call zero_finish_backward first");
    if (z->merged) return ZERO_OK;
    if (rank_order(z) && z->micro_batches != z->config.micro_batches)
        return zero_fail(z, ZERO_ERR_ARG,
                         "a step after %zu micro-batches, but micro_batches is %zu: with settings.order "
                         "ZERO_ORDER_RANK or LAYER all steps have as many",
                         z->micro_batches, z->config.micro_batches);
    const int waiting = zero_partial_sums_live(reductions(z, z->micro_batches) * leaves_per_reduction(z));
    int e = zero_follow(z, z->config.stream, z->reduce_stream);
    z->merged = 1;
    if (waiting > 1 && !e)
        e = zero_device_check(z,
                              zero_kernel_sum(z->partial_sums[0], NULL, 0, ZERO_F32, partial_sums(z, 0, waiting, 0),
                                              sum_total(z), z->config.stream),
                              "sum of micro-batches");
    if (!e) e = clear_padding(z);
    return e ? e : zero_clear_frozen(z);
}

// ---- reduce-scatter -------------------------------------------------------------------------------------------------

// The transport's own reduce-scatter needs a place for its result, which is then pushed as one leaf.
static int accumulate_by_library(zero *z, size_t u) {
    const size_t offset = sum_offset(z, u), n = shard_numel(z, u), leaves = z->units[u].micro_batches;
    const int live = zero_partial_sums_live(leaves), merge = __builtin_ctzll(~leaves);
    const cudaStream_t stream = z->reduce_stream;
    struct grad_buffer *b = z->units[u].buffer;
    int e = ensure_partial_sum(z, live - merge);
    if (!e) e = ensure_partial_sum(z, live);
    if (!e) e = zero_follow(z, stream, z->config.stream);
    if (!e)
        e = zero_comm_check(z, zero_comm_reduce_scatter(z->config.shard_comm, b->ptr, z->config.settings.dtype, n,
                                                        z->partial_sums[live] + offset, stream, &b->ticket));
    if (e || !merge) return e;
    return zero_device_check(z,
                             zero_kernel_sum(z->partial_sums[live - merge] + offset, NULL, 0, ZERO_F32,
                                             partial_sums(z, live - merge, merge + 1, offset), n, stream),
                             "ordered sum");
}

// Finishes the all-to-all of a unit's elements from `at` of each shard on, and pushes its chunks onto the partial sums.
static int accumulate_part(zero *z, size_t u, size_t at) {
    const cudaStream_t stream = z->reduce_stream;
    const zero_ticket ticket = *zero_sent_ticket(z, u);
    const size_t count = leaves_per_reduction(z), leaves = reductions(z, z->units[u].micro_batches) * count;
    const size_t numel = z->groups.comm ? sum_numel(z, u) : zero_sent_numel(z, u, at);
    const enum zero_dtype dtype = z->groups.comm ? z->groups.sums.dtype : zero_dtype_of_group(z);
    const void *const *chunks = NULL;
    int e = z->hosts.comm ? zero_add_by_hosts(z, u, at, &chunks)
                          : zero_comm_check(z, zero_comm_all_to_all_finish(z->grads_comm, ticket, stream, &chunks));
    if (!e && !z->hosts.comm) e = zero_own_sums_sent(z, u, z->ranks, &chunks);
    if (!e && z->groups.comm) e = zero_add_by_groups(z, u, &chunks);
    if (!e)
        e = zero_device_check(z,
                              zero_kernel_push(all_partial_sums(z, sum_offset(z, u) + at), leaves, chunks, (int)count,
                                               dtype, numel, stream),
                              "ordered sum");
    if (!e && z->groups.comm)
        e = zero_comm_check(z, zero_comm_all_to_all_done(z->groups.comm, z->groups.ticket, stream));
    if (e) return e;
    return zero_comm_check(z, z->hosts.comm ? zero_comm_all_to_all_done(z->hosts.comm, z->hosts.ticket, stream)
                                            : zero_comm_all_to_all_done(z->grads_comm, ticket, stream));
}

// The all-to-all of the first part has begun.
static int accumulate_in_order(zero *z, size_t u) {
    const int live = zero_partial_sums_live((reductions(z, z->units[u].micro_batches) + 1) * leaves_per_reduction(z));
    int e = ZERO_OK;
    for (int s = 0; s < live && !e; s++) e = ensure_partial_sum(z, s);
    if (!e) e = accumulate_part(z, u, 0);
    for (size_t at = zero_sent_numel(z, u, 0); at < shard_numel(z, u) && !e; at += zero_sent_numel(z, u, at)) {
        e = zero_send(z, u, at, 0, z->reduce_stream);
        if (!e) e = accumulate_part(z, u, at);
    }
    return e;
}

static void give_back_buffer(zero *z, struct unit *unit) {
    if (unit->buffer) unit->buffer->busy = 0;
    if (pooled_grads(z)) unit->buffer = NULL;
}

static void give_back_own_sums(zero *z, struct unit *unit) {
    if (!layer_order(z) || !unit->own) return;
    unit->own->busy = 0;
    unit->own = NULL;
}

// -> FREE
static void end_micro_batch(zero *z, struct unit *unit) {
    unit->micro_batches++;
    if (unit->micro_batches > z->max_micro_batches) z->max_micro_batches = unit->micro_batches;
    unit->state = UNIT_FREE;
    give_back_buffer(z, unit);
}

// REDUCING -> FREE: accumulates the unit's gradients and gives its buffer back.
static int reduce(zero *z, size_t u) {
    const int library = z->config.settings.reduction == ZERO_REDUCE_LIBRARY;
    zero_nvtx_push("reduce", u);
    zero_comm_phase(z->config.shard_comm, "reduce-scatter of gradients", u);
    zero_time_begin(z, "reduce", z->reduce_stream);
    const int e = (library ? accumulate_by_library : accumulate_in_order)(z, u);
    zero_time_end(z, "reduce", z->reduce_stream);
    zero_nvtx_pop();
    if (e) return e;
    end_micro_batch(z, &z->units[u]);
    give_back_own_sums(z, &z->units[u]);
    return ZERO_OK;
}

static int reduce_oldest(zero *z) {
    const size_t u = z->pending[z->pending_first];
    z->pending_first = (z->pending_first + 1) % z->layout.num_units;
    z->pending_count--;
    return reduce(z, u);
}

// ---- acquire and release --------------------------------------------------------------------------------------------

// A free buffer of the pool that a unit may use, the one whose last all-to-all is the oldest; NULL: none.
static struct grad_buffer *free_buffer(zero *z, size_t u) {
    struct grad_buffer *best = NULL;
    for (size_t i = 0; i < z->num_buffers; i++) {
        struct grad_buffer *b = &z->buffers[i];
        if (zero_pool_fits(&z->pool, i, u) && !b->busy && (!best || b->ticket < best->ticket)) best = b;
    }
    return best;
}

// Gives the unit a buffer of the pool. If units that are being reduced hold them all, waits for the
// oldest.
static int take_buffer(zero *z, size_t u) {
    int e = ZERO_OK;
    while (!e && !(z->units[u].buffer = free_buffer(z, u))) e = reduce_oldest(z);
    return e;
}

// Returns 1 if a unit shares buffers, and others hold them all. The same in every stage.
static int exceeds_pool(const zero *z, size_t u) {
    size_t others = 0;
    for (size_t w = 0; w < z->layout.num_units; w++) others += z->units[w].state == UNIT_ACQUIRED && z->pool.shares[w];
    return z->pool.shares[u] && others >= ZERO_GRAD_POOL_DEPTH;
}

// The micro-batch must be the unit's next one: the order of micro-batches is that of the sum.
static int check_micro_batch(zero *z, size_t u, size_t micro_batch) {
    if (u >= z->layout.num_units) return zero_fail(z, ZERO_ERR_ARG, "there is no unit %zu", u);
    if (unit_frozen(z, u))
        return zero_fail(z, ZERO_ERR_ARG,
                         "the gradients of unit %zu are acquired, but all its tensors are frozen: leave them out", u);
    const struct unit *unit = &z->units[u];
    const size_t next = unit->micro_batches + (unit->state != UNIT_FREE);
    if (unit->state == UNIT_ACQUIRED || micro_batch < next)
        return zero_fail(z, ZERO_ERR_ARG, "the gradients of unit %zu are acquired twice in micro-batch %zu", u,
                         micro_batch);
    if (micro_batch > next)
        return zero_fail(z, ZERO_ERR_ARG, "the gradients of unit %zu are acquired for micro-batch %zu before %zu", u,
                         micro_batch, next);
    if (rank_order(z) && micro_batch >= z->config.micro_batches)
        return zero_fail(
            z, ZERO_ERR_ARG,
            "the gradients of unit %zu are acquired for micro-batch %zu, but a step has %zu (micro_batches)", u,
            micro_batch, z->config.micro_batches);
    return ZERO_OK;
}

static int acquire_grads(zero *z, size_t u, size_t micro_batch) {
    if (zero_enter(z)) return z->failed;
    if (zero_uses_weights(z) || check_micro_batch(z, u, micro_batch)) return z->failed;
    struct unit *unit = &z->units[u];
    if (z->merged)
        return zero_fail(z, ZERO_ERR_ARG, "a micro-batch after zero_grad_norm: call zero_step or zero_discard first");
    if (exceeds_pool(z, u))
        return zero_fail(z, ZERO_ERR_ARG,
                         "the gradients of more than %d units are acquired at a time: release them sooner, or set "
                         "zero_tensor.tied where a unit is held while others come and go",
                         ZERO_GRAD_POOL_DEPTH);
    int e = ZERO_OK;
    while (!e && unit->state == UNIT_REDUCING) e = reduce_oldest(z);  // of its last micro-batch
    if (!e && pooled_grads(z)) e = take_buffer(z, u);
    if (e) return e;
    struct grad_buffer *b = unit->buffer;
    zero_comm_phase(z->config.shard_comm, "acquire of a gradient buffer", u);
    e = zero_comm_check(z, zero_comm_reusable(z->grads_comm, b->ticket, z->config.stream));
    zero_time_begin(z, "zero gradients", z->config.stream);
    if (!e)
        e = zero_device_check(z, cudaMemsetAsync(b->ptr, 0, unit_numel(z, u) * z->elem, z->config.stream),
                              "zeroing gradients");
    zero_time_end(z, "zero gradients", z->config.stream);
    if (e) return e;
    b->busy = 1;
    unit->state = UNIT_ACQUIRED;
    zero_record_call(z, CALL_ACQUIRE_GRADS, &u, sizeof u);
    return ZERO_OK;
}

void *zero_acquire_grads(zero *z, size_t unit, size_t micro_batch) {
    return acquire_grads(z, unit, micro_batch) == ZERO_OK ? z->units[unit].buffer->ptr : NULL;
}

// Rank order: adds the unit's micro-batch to this rank's sums and gives its buffer back. *last: those are complete, and
// no others are on their way if they share a buffer.
static int add_to_own_sums(zero *z, size_t u, int *last) {
    struct unit *unit = &z->units[u];
    int e = ZERO_OK;
    *last = unit->micro_batches + 1 == z->config.micro_batches;
    while (!e && z->pending_count && ((*last && z->packed) || !zero_own_sums_take(z, u))) e = reduce_oldest(z);
    if (!e && !zero_own_sums_take(z, u))
        e = zero_fail(z, ZERO_ERR_ARG,
                      "the gradients of unit %zu are released before all micro-batches of other units were: with "
                      "settings.order ZERO_ORDER_LAYER those of a unit come in a row",
                      u);
    if (!e) e = zero_own_sums_add(z, u);
    if (e) return e;
    if (*last)
        give_back_buffer(z, unit);
    else
        end_micro_batch(z, unit);
    return ZERO_OK;
}

// How many units may be pending once unit u is. In two levels the reduction of each begins more all-to-alls, one for
// each other host, while the later ones are pending (exchange.c). So does one in parts, which is reduced at once.
static size_t max_pending(const zero *z, size_t u) {
    if (zero_sent_numel(z, u, 0) < shard_numel(z, u)) return 0;
    const size_t hosts = z->hosts.comm ? (size_t)zero_comm_size(z->hosts.comm) : 1,
                 n = ZERO_COMM_MAX_PENDING / 2 / hosts;
    return n > 1 ? n - 1 : 0;
}

static int begin_reduction(zero *z, size_t u) {
    if (z->config.settings.reduction == ZERO_REDUCE_LIBRARY) return reduce(z, u);
    int last = 1;
    int e = rank_order(z) ? add_to_own_sums(z, u, &last) : ZERO_OK;
    if (e || !last) return e;
    zero_comm_phase(z->config.shard_comm, "reduce-scatter of gradients", u);
    zero_time_begin(z, "all-to-all", z->reduce_stream);
    e = zero_send(z, u, 0, 0, z->config.stream);
    zero_time_end(z, "all-to-all", z->reduce_stream);
    if (e) return e;
    if (z->packed) z->packed_ticket = z->units[u].own->sent;
    if (zero_comm_stream(z->config.shard_comm)) return reduce(z, u);  // only queued: the host does not wait
    z->pending[(z->pending_first + z->pending_count++) % z->layout.num_units] = u;
    while (z->pending_count > max_pending(z, u) && !e) e = reduce_oldest(z);
    return e;
}

int zero_release_grads(zero *z, size_t u) {
    if (zero_enter(z)) return z->failed;
    if (u >= z->layout.num_units || z->units[u].state != UNIT_ACQUIRED)
        return zero_fail(z, ZERO_ERR_ARG, "the gradients of unit %zu are released without being acquired", u);
    z->units[u].state = UNIT_REDUCING;
    zero_record_call(z, CALL_RELEASE_GRADS, &u, sizeof u);
    zero_nvtx_push("reduce", u);
    const int e = begin_reduction(z, u);
    zero_nvtx_pop();
    return e;
}

// ---- micro-batches and steps ----------------------------------------------------------------------------------------

int zero_finish_backward(zero *z) {
    if (zero_enter(z)) return z->failed;
    int e = ZERO_OK;
    size_t most = z->micro_batches + 1;
    while (z->pending_count && !e) e = reduce_oldest(z);
    for (size_t u = 0; u < z->layout.num_units; u++)
        if (z->units[u].micro_batches > most) most = z->units[u].micro_batches;
    for (size_t u = 0; u < z->layout.num_units && !e; u++)
        if (!unit_frozen(z, u) && z->units[u].micro_batches != most)
            e = zero_fail(z, ZERO_ERR_ARG, "the gradients of unit %zu were not released in micro-batch %zu", u,
                          z->units[u].micro_batches);
    // In every other micro-batch only: this waits for all readers, and a rank that always waits never exposes a race.
    const int poison = z->config.settings.delay_seed && z->micro_batches % 2;
    for (size_t i = 0; i < z->num_buffers && poison && !e; i++) {
        e = zero_comm_check(z, zero_comm_reusable(z->grads_comm, z->buffers[i].ticket, z->config.stream));
        if (!e) e = zero_poison(z, z->buffers[i].ptr, z->buffers[i].numel * z->elem);
    }
    if (e) return e;
    zero_record_call(z, CALL_FINISH, &most, sizeof most);
    z->micro_batches = most;
    return ZERO_OK;
}

size_t zero_get_micro_batches(const zero *z) { return z->micro_batches; }

int zero_set_total_weight(zero *z, double weight) {
    if (zero_enter(z) || zero_between_micro_batches(z)) return z->failed;
    if (!(weight > 0 && weight <= FLT_MAX))
        return zero_fail(z, ZERO_ERR_ARG, "zero_set_total_weight: %g: use the sum of positive weights", weight);
    zero_record_call(z, CALL_SET_WEIGHT, &weight, sizeof weight);
    z->total_weight = weight;
    z->has_norm = 0;
    return ZERO_OK;
}

// The replicate group's transport carries gradients, their sums and the norm.
static uint64_t received(const zero *z, enum zero_wire kind) {
    if (kind != ZERO_WIRE_REPLICAS) return zero_comm_received(z->config.shard_comm, kind);
    return z->replicas == 1 ? 0
                            : zero_comm_received(z->config.replicate_comm, ZERO_WIRE_GRADS) +
                                  zero_comm_received(z->config.replicate_comm, ZERO_WIRE_SCALARS);
}

void zero_wire_start(zero *z) {
    for (int k = 0; k < ZERO_WIRE_KINDS; k++) z->wire_start[k] = received(z, (enum zero_wire)k);
}

int zero_begin_step(zero *z) {
    if (zero_enter(z) || zero_between_micro_batches(z)) return z->failed;
    const int e = zero_params_invalidate(z);  // before counting: this receives what was prefetched earlier
    zero_wire_start(z);
    return e;
}

int zero_grads_abandon(zero *z) {
    int e = ZERO_OK;
    while (z->pending_count && !e) e = reduce_oldest(z);
    for (size_t u = 0; u < z->layout.num_units && !e; u++) {
        if (z->units[u].state == UNIT_FREE) continue;
        z->units[u].state = UNIT_FREE;
        give_back_buffer(z, &z->units[u]);
    }
    for (size_t u = 0; u < z->layout.num_units && !e; u++) give_back_own_sums(z, &z->units[u]);
    return e ? e : zero_follow(z, z->config.stream, z->reduce_stream);
}

int zero_grads_reset(zero *z) {
    int e = ZERO_OK;
    for (int s = 0; s < ZERO_MAX_PARTIAL_SUMS && !e; s++)
        e = zero_poison(z, z->partial_sums[s], sum_total(z) * sizeof(float));
    if (!e) e = zero_own_sums_poison(z);
    for (size_t u = 0; u < z->layout.num_units; u++) z->units[u].micro_batches = 0;
    z->last_micro_batches = z->micro_batches;
    z->micro_batches = 0;
    z->total_weight = 0;
    z->merged = z->has_norm = 0;
    for (int k = 0; k < ZERO_WIRE_KINDS; k++) z->wire_step[k] = received(z, (enum zero_wire)k) - z->wire_start[k];
    zero_wire_start(z);
    return e;
}
