// params.c: the engine's parameters. Before stage 3 one symmetric flat buffer, of which the optimizer writes this
// rank's piece and the rest is gathered. In stage 3 a window of shards (comm.h), and buffers into which units are
// fetched: a cache (cache.h), so that the last blocks of the forward are still there for the backward, and the
// embedding for its second use.
#include <stdlib.h>
#include "zero/internal.h"
#include "zero/nvtx.h"

int zero_params_create(zero *z) {
    const zero_layout *l = &z->layout;
    if (!sharded_params(z)) return zero_create_buffer(z, ZERO_MEM_PARAMS, l->numel_padded, z->elem, &z->params);
    int e = zero_comm_check(z, zero_window_create(z->config.shard_comm, z->config.accounting, ZERO_MEM_PARAMS,
                                                  shard_total(z) * z->elem, &z->window));
    if (!e && zero_param_cache_create(&z->cache, l, z->config.order, z->config.order_length,
                                      (size_t)z->config.settings.prefetch))
        e = zero_fail(z, ZERO_ERR_ARG,
                      "the order of units has a unit that is not there (there are %zu), or memory is exhausted",
                      l->num_units);
    z->cache.drop = z->config.settings.delay_seed != 0;
    z->param_buffers = calloc(l->num_units, sizeof *z->param_buffers);
    if (!e && !z->param_buffers) e = zero_fail(z, ZERO_ERR_MEMORY, "out of host memory");
    for (size_t i = 0; i < z->cache.num_slots && z->ranks > 1 && !e; i++)
        e = zero_alloc(z, ZERO_MEM_UNIT_BUFFERS, z->cache.slots[i].numel * z->elem, &z->param_buffers[i].ptr);
    return e ? e : zero_comm_check(z, zero_window_open(z->config.shard_comm, z->window, z->config.stream));
}

static struct param_buffer *buffer_of(zero *z, const zero_param_cache_slot *s) {
    return &z->param_buffers[s - z->cache.slots];
}

static int fetch_finish(zero *z, zero_param_cache_slot *s) {
    if (!s->busy) return ZERO_OK;
    zero_comm_phase(z->config.shard_comm, "fetching parameters", s->unit);
    s->busy = 0;
    zero_time_begin(z, "fetch: wait", z->config.stream);
    const int e = zero_comm_check(
        z, zero_window_gather_finish(z->config.shard_comm, z->window, buffer_of(z, s)->fetch, z->config.stream));
    zero_time_end(z, "fetch: wait", z->config.stream);
    return e;
}

static int fetch_begin(zero *z, zero_param_cache_slot *s) {
    struct param_buffer *b = buffer_of(z, s);
    int e = ZERO_OK;
    // Fetched ahead for an order that was not kept: arrives now, a window has room for so many fetches only.
    for (size_t i = 0; i < z->cache.num_slots && !e; i++)
        if (z->cache.slots[i].busy && z->param_buffers[i].fetch + ZERO_WINDOW_MAX_GATHERS <= z->last_fetch + 1)
            e = fetch_finish(z, &z->cache.slots[i]);
    if (e) return e;
    zero_comm_phase(z->config.shard_comm, "fetching parameters", s->unit);
    s->busy = 1;
    zero_nvtx_push("fetch", s->unit);
    zero_time_begin(z, "fetch", zero_transport_stream(z));
    e = zero_comm_check(z, zero_window_gather_begin(z->config.shard_comm, z->window, shard_offset(z, s->unit) * z->elem,
                                                    shard_numel(z, s->unit) * z->elem, b->ptr, z->config.stream,
                                                    &b->fetch));
    zero_time_end(z, "fetch", zero_transport_stream(z));
    zero_nvtx_pop();
    z->last_fetch = b->fetch;
    return e;
}

void zero_params_destroy(zero *z) {
    // nothing may arrive in memory that is freed
    for (size_t i = 0; i < z->cache.num_slots && z->param_buffers; i++) fetch_finish(z, &z->cache.slots[i]);
    zero_comm_free(z->config.shard_comm, z->params);
    zero_window_destroy(z->config.shard_comm, z->window);
    for (size_t i = 0; i < z->cache.num_slots && z->param_buffers; i++)
        zero_accounting_free(z->config.accounting, ZERO_MEM_UNIT_BUFFERS, z->param_buffers[i].ptr,
                             z->cache.slots[i].numel * z->elem);
    zero_param_cache_destroy(&z->cache);
    free(z->param_buffers);
}

static int fetch_ahead(zero *z) {
    int e = ZERO_OK;
    for (size_t i = 0; i < z->cache.prefetch && !e; i++) {
        const size_t u = zero_param_cache_ahead(&z->cache, i);
        if (u == ZERO_NO_UNIT || zero_param_cache_find(&z->cache, u)) continue;
        zero_param_cache_slot *s = zero_param_cache_take(&z->cache, u, unit_numel(z, u));
        if (s) e = fetch_begin(z, s);
    }
    return e;
}

// All fetches are finished, and no buffer holds a unit.
int zero_params_forget(zero *z) {
    int e = ZERO_OK;
    for (size_t i = 0; i < z->cache.num_slots && !e; i++) {
        if (z->cache.slots[i].users)
            return zero_fail(z, ZERO_ERR_ARG, "the parameters of unit %zu are still acquired", z->cache.slots[i].unit);
        e = fetch_finish(z, &z->cache.slots[i]);
    }
    zero_param_cache_invalidate(&z->cache);
    return e;
}

// Finish the gathers of units below `end`.
static int finish_gathers(zero *z, size_t end) {
    int e = ZERO_OK;
    for (; z->gathered < end && z->gathered < z->gathering && !e; z->gathered++) {
        zero_comm_phase(z->config.shard_comm, "gathering parameters", z->gathered);
        zero_time_begin(z, "gather: wait", z->config.stream);
        e = zero_comm_check(
            z, zero_comm_allgather_finish(z->config.shard_comm, z->units[z->gathered].params_ticket, z->config.stream));
        zero_time_end(z, "gather: wait", z->config.stream);
    }
    return e;
}

void *zero_acquire_params(zero *z, size_t u) {
    int e = ZERO_OK;
    if (u >= z->layout.num_units) {
        zero_fail(z, ZERO_ERR_ARG, "there is no unit %zu", u);
        return NULL;
    }
    if (!sharded_params(z)) return finish_gathers(z, u + 1) ? NULL : z->params + z->layout.unit_offset[u] * z->elem;
    if (z->ranks == 1) return own_params(z, u);
    zero_param_cache_slot *s = zero_param_cache_find(&z->cache, u);
    if (!s) {
        s = zero_param_cache_take(&z->cache, u, unit_numel(z, u));
        // what was fetched ahead must not stand in the way of what is wanted
        for (size_t i = 0; i < z->cache.num_slots && !s && !e; i++) {
            e = fetch_finish(z, &z->cache.slots[i]);
            s = zero_param_cache_take(&z->cache, u, unit_numel(z, u));
        }
        if (s && !e) e = fetch_begin(z, s);
    }
    if (!s && !e)
        zero_fail(z, ZERO_ERR_ARG,
                  "the parameters of more units of one size are acquired at a time than there are buffers (%zu): "
                  "release them sooner",
                  1 + z->cache.prefetch);
    if (!s || e || fetch_finish(z, s)) return NULL;
    zero_param_cache_acquired(&z->cache, s);
    return fetch_ahead(z) ? NULL : buffer_of(z, s)->ptr;
}

int zero_release_params(zero *z, size_t u) {
    if (u >= z->layout.num_units) return zero_fail(z, ZERO_ERR_ARG, "there is no unit %zu", u);
    if (!sharded_params(z) || z->ranks == 1) return ZERO_OK;
    zero_param_cache_slot *s = zero_param_cache_find(&z->cache, u);
    if (!s || !s->users)
        return zero_fail(z, ZERO_ERR_ARG, "the parameters of unit %zu are released without being acquired", u);
    return zero_param_cache_released(&z->cache, s) ? zero_poison(z, buffer_of(z, s)->ptr, s->numel * z->elem) : ZERO_OK;
}

int zero_params_begin(zero *z) {
    int e = zero_params_arrived(z);
    z->gathering = z->gathered = 0;
    if (!sharded_params(z)) {
        for (size_t u = 0; u < z->layout.num_units && !e; u++)
            e = zero_comm_check(z,
                                zero_comm_reusable(z->config.shard_comm, z->units[u].params_ticket, z->config.stream));
        return e;
    }
    if (!e) e = zero_params_forget(z);
    zero_comm_phase(z->config.shard_comm, "waiting for readers of the parameters", 0);
    return e ? e : zero_comm_check(z, zero_window_close(z->config.shard_comm, z->window, z->config.stream));
}

int zero_params_written(zero *z, size_t u) {
    if (whole_state(z) || sharded_params(z)) return ZERO_OK;
    zero_comm_phase(z->config.shard_comm, "gathering parameters", u);
    zero_nvtx_push("gather", u);
    zero_time_begin(z, "gather", zero_transport_stream(z));
    int e = zero_comm_check(z, zero_comm_allgather_begin(z->config.shard_comm,
                                                         z->params + z->layout.unit_offset[u] * z->elem,
                                                         shard_numel(z, u) * z->elem, ZERO_WIRE_PARAMS,
                                                         z->config.stream, &z->units[u].params_ticket));
    zero_time_end(z, "gather", zero_transport_stream(z));
    zero_nvtx_pop();
    z->gathering = u + 1;
    return e || u - z->gathered < ZERO_COMM_MAX_PENDING / 2 ? e : finish_gathers(z, z->gathered + 1);
}

// A transport that moves bytes on its own stream goes on gathering under the next forward, which waits for each unit
// where it acquires it.
int zero_params_end(zero *z) {
    zero_comm_phase(z->config.shard_comm, "exposing parameters", 0);
    if (sharded_params(z))
        return zero_comm_check(z, zero_window_open(z->config.shard_comm, z->window, z->config.stream));
    return zero_comm_stream(z->config.shard_comm) ? ZERO_OK : zero_params_arrived(z);
}

int zero_params_arrived(zero *z) { return finish_gathers(z, z->layout.num_units); }
