// parameters.c: acquire and release of parameters, all-gather, prefetch.
//
// Before stage 3 parameters are one resident flat buffer. The optimizer writes this rank's shard of each unit, and the
// rest is all-gathered in place (stages 1, 2; in stage 0 every rank updates everything). With a transport that has its
// own stream these all-gathers run under the next forward, which waits for each unit where it acquires it.
//
//     zero_params_update_begin   wait until no rank reads this rank's shards
//     ..._written(u)             begin the all-gather of unit u
//     ..._end
//     zero_acquire_params(u)     finish the all-gathers up to unit u (finish_gathers)
//
// In stage 3 a rank keeps its shards in a window (comm.h), from which all ranks all-gather units into a few buffers.
// The buffers are a cache (param_cache.h), so that the last blocks of the forward are still there for the backward, and
// the embedding for its second use. An update closes the window and empties the cache. A buffer:
//
//              take; unshard_begin             unshard_finish                 zero_acquire_params
//       EMPTY --------------------> GATHERING ----------------> HELD, no user <------------------> HELD, users
//         ^   zero_acquire_params,                                 |           zero_release_params
//         |   prefetch                                             |
//         +--------------------------------------------------------+
//           zero_params_invalidate; or another unit takes the buffer
//
// Parameters that are offloaded have no window (parameter_offload.c).
#include <stdlib.h>
#include "zero/internal.h"
#include "zero/keep.h"
#include "zero/nvtx.h"

// ---- create and destroy ---------------------------------------------------------------------------------------------

int zero_params_create(zero *z) {
    const zero_layout *l = &z->layout;
    char *lost;
    int e = ZERO_OK;
    if (sharded_params(z) && !params_offload(z))
        e = zero_comm_check(z, zero_window_create(z->config.shard_comm, z->config.accounting, ZERO_MEM_PARAMS,
                                                  shard_total(z) * z->elem, &z->window));
    if (!e && zero_param_cache_create(&z->cache, l, z->config.order, z->config.order_length,
                                      (size_t)z->config.settings.prefetch))
        e = zero_fail(z, ZERO_ERR_MEMORY, "out of host memory");
    if (!sharded_params(z))
        return zero_alloc_symmetric(z, e, z->config.shard_comm, ZERO_MEM_PARAMS, l->numel_padded * z->elem, &z->params);
    z->cache.drop = z->config.settings.delay_seed != 0;
    z->param_buffers = calloc(l->num_units, sizeof *z->param_buffers);
    if (!e && !z->param_buffers) e = zero_fail(z, ZERO_ERR_MEMORY, "out of host memory");
    if (!e && params_offload(z)) e = zero_params_copies_create(z);
    for (size_t i = 0; i < z->cache.num_slots && unshards(z); i++) {
        const size_t bytes = z->cache.pool.buffers[i].numel * z->elem;
        char **ptr = z->param_buffers ? &z->param_buffers[i].ptr : &lost;
        if (params_offload(z))
            e = zero_alloc_symmetric(z, e, z->config.shard_comm, ZERO_MEM_UNIT_BUFFERS, bytes, ptr);
        else if (!e)
            e = zero_alloc(z, ZERO_MEM_UNIT_BUFFERS, bytes, ptr);
    }
    e = zero_agree(z, e);
    if (params_offload(z)) return e;
    return e ? e : zero_comm_check(z, zero_window_open(z->config.shard_comm, z->window, z->config.stream));
}

// ---- stage 3: all-gather into buffers -------------------------------------------------------------------------------

static struct param_buffer *buffer_of(zero *z, const zero_param_cache_slot *s) {
    return &z->param_buffers[s - z->cache.slots];
}

// Offloaded: copies this rank's shard to its place in the buffer, which nobody uses any more, and all-gathers it there.
static int gather_in_place(zero *z, size_t u, struct param_buffer *b) {
    zero_comm *comm = z->config.shard_comm;
    const size_t bytes = shard_numel(z, u) * z->elem;
    b->waits = 0;
    int e = zero_comm_check(z, zero_comm_reusable(comm, b->unshard, z->copy_stream));
    if (!e)
        e = zero_device_check(z, cudaStreamWaitEvent(z->copy_stream, b->released, 0), "waiting for a buffer's release");
    if (!e) e = zero_params_copy(z, u, b->ptr + (size_t)z->rank * bytes);
    return e || z->ranks == 1 ? e
                              : zero_comm_check(z, zero_comm_allgather_begin(comm, b->ptr, bytes, ZERO_WIRE_PARAMS,
                                                                             z->copy_stream, &b->unshard));
}

// Begins the all-gather of the unit in a slot.
static int gather_begin(zero *z, zero_param_cache_slot *s) {
    struct param_buffer *b = buffer_of(z, s);
    zero_comm_phase(z->config.shard_comm, "all-gather of parameters", s->unit);
    zero_nvtx_push("unshard", s->unit);
    zero_time_begin(z, "unshard", zero_transport_stream(z));
    const int e = params_offload(z)
                      ? gather_in_place(z, s->unit, b)
                      : zero_comm_check(z, zero_window_gather_begin(z->config.shard_comm, z->window,
                                                                    shard_offset(z, s->unit) * z->elem,
                                                                    shard_numel(z, s->unit) * z->elem, b->ptr,
                                                                    z->config.stream, &b->unshard));
    zero_time_end(z, "unshard", zero_transport_stream(z));
    zero_nvtx_pop();
    z->last_unshard = b->unshard;
    return e;
}

static int gather_finish(zero *z, const struct param_buffer *b) {
    zero_comm *comm = z->config.shard_comm;
    if (!params_offload(z))
        return zero_comm_check(z, zero_window_gather_finish(comm, z->window, b->unshard, z->config.stream));
    // A transport with a stream of its own has waited for the copy.
    const int e = zero_comm_stream(comm) && z->ranks > 1 ? ZERO_OK : zero_follow(z, z->config.stream, z->copy_stream);
    return e || z->ranks == 1 ? e : zero_comm_check(z, zero_comm_allgather_finish(comm, b->unshard, z->config.stream));
}

static int unshard_finish(zero *z, zero_param_cache_slot *s) {
    if (!s->busy) return ZERO_OK;
    int e = buffer_of(z, s)->waits ? gather_begin(z, s) : ZERO_OK;
    zero_comm_phase(z->config.shard_comm, "all-gather of parameters", s->unit);
    s->busy = 0;
    zero_time_begin(z, "unshard: wait", z->config.stream);
    if (!e) e = gather_finish(z, buffer_of(z, s));
    zero_time_end(z, "unshard: wait", z->config.stream);
    return e;
}

// A window has room for so many all-gathers that are not finished, and a transport for so many calls: finishes what was
// prefetched for an order that was not kept.
static int finish_oldest(zero *z) {
    const zero_ticket room = z->window ? ZERO_WINDOW_MAX_GATHERS : ZERO_COMM_MAX_PENDING / 4;
    int e = ZERO_OK;
    for (size_t i = 0; i < z->cache.num_slots && !e; i++) {
        const struct param_buffer *b = &z->param_buffers[i];
        if (z->cache.slots[i].busy && !b->waits && b->unshard + room <= z->last_unshard + 1)
            e = unshard_finish(z, &z->cache.slots[i]);
    }
    return e;
}

static int unshard_begin(zero *z, zero_param_cache_slot *s) {
    const int e = finish_oldest(z);
    if (e) return e;
    s->busy = 1;
    if (params_offload(z) != ZERO_OFFLOAD_NVME) return gather_begin(z, s);
    buffer_of(z, s)->waits = 1;
    return zero_params_read(z, s->unit);
}

void zero_params_destroy(zero *z) {
    // nothing may still arrive in memory that is freed
    for (size_t i = 0; i < z->cache.num_slots && z->param_buffers; i++)
        if (!z->param_buffers[i].waits) unshard_finish(z, &z->cache.slots[i]);
    if (z->copy_stream) (void)zero_comm_synchronize(z->config.shard_comm, z->copy_stream);
    zero_comm_free(z->config.shard_comm, z->params);
    zero_window_destroy(z->config.shard_comm, z->window);
    for (size_t i = 0; i < z->cache.num_slots && z->param_buffers; i++) {
        const size_t bytes = z->cache.pool.buffers[i].numel * z->elem;
        if (params_offload(z)) {
            zero_comm_free(z->config.shard_comm, z->param_buffers[i].ptr);
        } else if (zero_comm_in_flight(z->config.shard_comm) && z->param_buffers[i].ptr) {
            zero_accounting_add(z->config.accounting, ZERO_MEM_UNIT_BUFFERS, 0, bytes);
            zero_keep(z->param_buffers[i].ptr);
        } else {
            zero_accounting_free(z->config.accounting, ZERO_MEM_UNIT_BUFFERS, z->param_buffers[i].ptr, bytes);
        }
    }
    if (z->param_buffers) zero_params_copies_destroy(z);
    zero_param_cache_destroy(&z->cache);
    free(z->param_buffers);
}

static int prefetch(zero *z) {
    int e = ZERO_OK;
    for (size_t i = 0; i < z->cache.prefetch && !e; i++) {
        const size_t u = zero_param_cache_ahead(&z->cache, i);
        if (u == ZERO_NO_UNIT || zero_param_cache_find(&z->cache, u)) continue;
        zero_param_cache_slot *s = zero_param_cache_take(&z->cache, u);
        if (s) e = unshard_begin(z, s);
    }
    return e;
}

int zero_params_released(zero *z) {
    for (size_t u = 0; u < z->layout.num_units && !z->failed; u++)
        if (z->units[u].users)
            zero_fail(z, ZERO_ERR_ARG, "the parameters of unit %zu are still acquired: release them first", u);
    return z->failed;
}

int zero_params_invalidate(zero *z) {
    int e = zero_params_released(z);
    for (size_t i = 0; i < z->cache.num_slots && !e; i++) e = unshard_finish(z, &z->cache.slots[i]);
    if (sharded_params(z)) zero_param_cache_invalidate(&z->cache);
    return e || !params_offload(z) ? e : zero_follow(z, z->copy_stream, z->config.stream);
}

int zero_params_abandon(zero *z) {
    for (size_t u = 0; u < z->layout.num_units; u++) z->units[u].users = 0;
    for (size_t i = 0; i < z->cache.num_slots; i++) z->cache.slots[i].users = 0;
    const int e = zero_params_invalidate(z);
    return e ? e : zero_params_complete(z);
}

// ---- stages 1, 2: all-gather in place -------------------------------------------------------------------------------

// Finishes the all-gathers of units below `end`.
static int finish_gathers(zero *z, size_t end) {
    for (; z->gathers_done < end && z->gathers_done < z->gathers_begun; z->gathers_done++) {
        zero_comm_phase(z->config.shard_comm, "all-gather of parameters", z->gathers_done);
        if (!z->units[z->gathers_done].gathering) continue;
        z->units[z->gathers_done].gathering = 0;
        zero_time_begin(z, "all-gather: wait", z->config.stream);
        const int e = zero_comm_check(z, zero_comm_allgather_finish(z->config.shard_comm,
                                                                    z->units[z->gathers_done].params_ticket,
                                                                    z->config.stream));
        zero_time_end(z, "all-gather: wait", z->config.stream);
        if (e) return e;
    }
    return ZERO_OK;
}

// ---- acquire and release --------------------------------------------------------------------------------------------

// Returns 1 if a unit shares buffers, and others hold them all. The same in every stage.
static int exceeds_pool(const zero *z, size_t u) {
    size_t others = 0;
    for (size_t w = 0; w < z->layout.num_units; w++) others += w != u && z->units[w].users && z->cache.pool.shares[w];
    return z->cache.pool.shares[u] && others > (size_t)z->config.settings.prefetch;
}

// Stage 3: the unit's parameters in a buffer of the cache.
static int unshard(zero *z, size_t u, const void **p) {
    int e = ZERO_OK;
    zero_param_cache_slot *s = zero_param_cache_find(&z->cache, u);
    if (!s) {
        s = zero_param_cache_take(&z->cache, u);
        // all free buffers are busy with prefetched units: evict these
        for (size_t i = 0; i < z->cache.num_slots && !s && !e; i++) {
            e = unshard_finish(z, &z->cache.slots[i]);
            s = zero_param_cache_take(&z->cache, u);
        }
        if (!e) e = unshard_begin(z, s);
    }
    if (!e) e = unshard_finish(z, s);
    for (size_t i = 0; i < z->cache.num_slots && !e; i++)
        if (z->param_buffers[i].waits) e = gather_begin(z, &z->cache.slots[i]);
    if (e) return e;
    *p = buffer_of(z, s)->ptr;
    zero_param_cache_acquired(&z->cache, s);
    return prefetch(z);
}

static int acquire_params(zero *z, size_t u, const void **p) {
    if (zero_enter(z)) return z->failed;
    if (u >= z->layout.num_units) return zero_fail(z, ZERO_ERR_ARG, "there is no unit %zu", u);
    if (exceeds_pool(z, u))
        return zero_fail(z, ZERO_ERR_ARG,
                         "the parameters of more than 1 + settings.prefetch = %d units are acquired at a time: release "
                         "them sooner",
                         1 + z->config.settings.prefetch);
    int e = ZERO_OK;
    if (!sharded_params(z)) {
        e = finish_gathers(z, u + 1);
        *p = z->params + z->layout.unit_offset[u] * z->elem;
    } else if (!unshards(z)) {
        *p = own_params(z, u);
    } else {
        e = unshard(z, u, p);
    }
    if (e) return e;
    z->units[u].users++;
    zero_record_call(z, CALL_ACQUIRE_PARAMS, &u, sizeof u);
    return ZERO_OK;
}

const void *zero_acquire_params(zero *z, size_t unit) {
    const void *p = NULL;
    return acquire_params(z, unit, &p) == ZERO_OK ? p : NULL;
}

int zero_release_params(zero *z, size_t u) {
    if (zero_enter(z)) return z->failed;
    if (u >= z->layout.num_units || !z->units[u].users)
        return zero_fail(z, ZERO_ERR_ARG, "the parameters of unit %zu are released without being acquired", u);
    z->units[u].users--;
    zero_record_call(z, CALL_RELEASE_PARAMS, &u, sizeof u);
    if (!unshards(z)) return ZERO_OK;
    zero_param_cache_slot *s = zero_param_cache_find(&z->cache, u);
    struct param_buffer *b = buffer_of(z, s);
    const int dropped = zero_param_cache_released(&z->cache, s);
    int e = dropped && params_offload(z)
                ? zero_comm_check(z, zero_comm_reusable(z->config.shard_comm, b->unshard, z->config.stream))
                : ZERO_OK;
    if (!e && dropped) e = zero_poison(z, b->ptr, unit_numel(z, u) * z->elem);
    return e || !params_offload(z)
               ? e
               : zero_device_check(z, cudaEventRecord(b->released, z->config.stream), "recording a buffer's release");
}

// ---- update ---------------------------------------------------------------------------------------------------------

int zero_params_update_begin(zero *z) {
    int e = zero_params_invalidate(z);
    if (!e) e = zero_params_complete(z);
    z->gathers_begun = z->gathers_done = 0;
    if (!sharded_params(z)) {
        for (size_t u = 0; u < z->layout.num_units && !e; u++)
            e = zero_comm_check(z,
                                zero_comm_reusable(z->config.shard_comm, z->units[u].params_ticket, z->config.stream));
        return e;
    }
    if (params_offload(z)) return e || !uses_disk(z) ? e : zero_params_copied(z);
    zero_comm_phase(z->config.shard_comm, "closing the parameters' window", 0);
    return e ? e : zero_comm_check(z, zero_window_close(z->config.shard_comm, z->window, z->config.stream));
}

int zero_params_update_written(zero *z, size_t u) {
    if (whole_state(z) || sharded_params(z) || z->ranks == 1) return ZERO_OK;
    zero_comm_phase(z->config.shard_comm, "all-gather of parameters", u);
    zero_nvtx_push("all-gather", u);
    zero_time_begin(z, "all-gather", zero_transport_stream(z));
    int e = zero_comm_check(z, zero_comm_allgather_begin(z->config.shard_comm,
                                                         z->params + z->layout.unit_offset[u] * z->elem,
                                                         shard_numel(z, u) * z->elem, ZERO_WIRE_PARAMS,
                                                         z->config.stream, &z->units[u].params_ticket));
    zero_time_end(z, "all-gather", zero_transport_stream(z));
    zero_nvtx_pop();
    z->units[u].gathering = 1;
    z->gathers_begun = u + 1;
    return e || u - z->gathers_done < ZERO_COMM_MAX_PENDING / 2 ? e : finish_gathers(z, z->gathers_done + 1);
}

int zero_params_update_end(zero *z) {
    if (params_offload(z)) return zero_follow(z, z->copy_stream, z->config.stream);
    zero_comm_phase(z->config.shard_comm, "opening the parameters' window", 0);
    if (sharded_params(z))
        return zero_comm_check(z, zero_window_open(z->config.shard_comm, z->window, z->config.stream));
    return zero_comm_stream(z->config.shard_comm) ? ZERO_OK : zero_params_complete(z);
}

int zero_params_complete(zero *z) { return finish_gathers(z, z->layout.num_units); }
