// param_cache.c: the policy of the parameter buffers (param_cache.h).
#include "zero/param_cache.h"
#include <stdlib.h>
#include <string.h>

int zero_param_cache_create(zero_param_cache *c, const zero_layout *l, const size_t *order, size_t order_length,
                            size_t prefetch) {
    *c = (zero_param_cache){ .prefetch = prefetch, .order_length = order_length };
    c->slots = calloc(l->num_units, sizeof *c->slots);
    c->order = malloc((order_length + 1) * sizeof *c->order);
    if (!c->slots || !c->order || zero_pool_create(&c->pool, l, ZERO_POOL_PARAMS, 1 + prefetch)) return -1;
    for (size_t i = 0; i < order_length; i++) {
        if (order[i] >= l->num_units) return -1;
        c->order[i] = order[i];
    }
    c->num_slots = c->pool.num_buffers;
    for (size_t i = 0; i < c->num_slots; i++) c->slots[i].unit = ZERO_NO_UNIT;
    return 0;
}

void zero_param_cache_destroy(zero_param_cache *c) {
    zero_pool_destroy(&c->pool);
    free(c->slots);
    free(c->order);
    memset(c, 0, sizeof *c);
}

zero_param_cache_slot *zero_param_cache_find(zero_param_cache *c, size_t unit) {
    for (size_t i = 0; i < c->num_slots; i++)
        if (c->slots[i].unit == unit) return &c->slots[i];
    return NULL;
}

zero_param_cache_slot *zero_param_cache_take(zero_param_cache *c, size_t unit) {
    zero_param_cache_slot *best = NULL;
    for (size_t i = 0; i < c->num_slots; i++) {
        zero_param_cache_slot *s = &c->slots[i];
        if (zero_pool_fits(&c->pool, i, unit) && !s->users && !s->busy && (!best || s->used < best->used)) best = s;
    }
    if (best) {
        best->unit = unit;
        best->used = ++c->clock;
    }
    return best;
}

void zero_param_cache_acquired(zero_param_cache *c, zero_param_cache_slot *s) {
    s->users++;
    s->used = ++c->clock;
    for (size_t i = 0; i < c->order_length; i++) {
        const size_t at = (c->order_at + i) % c->order_length;
        if (c->order[at] != s->unit) continue;
        c->order_at = at + 1;
        return;
    }
}

int zero_param_cache_released(zero_param_cache *c, zero_param_cache_slot *s) {
    const int dropped = --s->users == 0 && c->drop;
    if (dropped) s->unit = ZERO_NO_UNIT;
    return dropped;
}

size_t zero_param_cache_ahead(const zero_param_cache *c, size_t i) {
    return i < c->order_length ? c->order[(c->order_at + i) % c->order_length] : ZERO_NO_UNIT;
}

void zero_param_cache_invalidate(zero_param_cache *c) {
    for (size_t i = 0; i < c->num_slots; i++) c->slots[i].unit = ZERO_NO_UNIT;
    c->order_at = 0;
}

static uint64_t weight_of(const zero_layout *l, const uint64_t *weight, size_t u) {
    return weight ? weight[u] : zero_layout_unit_numel(l, u);
}

// A micro-step: acquires and releases each unit of the order. Returns the weight of what is all-gathered.
static uint64_t simulate(zero_param_cache *c, const zero_layout *l, const uint64_t *weight) {
    uint64_t gathered = 0;
    for (size_t i = 0; i < c->order_length; i++) {
        const size_t u = c->order[i];
        zero_param_cache_slot *s = zero_param_cache_find(c, u);
        if (!s) {
            s = zero_param_cache_take(c, u);
            gathered += weight_of(l, weight, u);
        }
        zero_param_cache_acquired(c, s);
        for (size_t k = 0; k < c->prefetch; k++) {
            const size_t next = zero_param_cache_ahead(c, k);
            if (next == ZERO_NO_UNIT || zero_param_cache_find(c, next)) continue;
            if (zero_param_cache_take(c, next)) gathered += weight_of(l, weight, next);
        }
        zero_param_cache_released(c, s);
    }
    return gathered;
}

// Whether all that comes is what came after the slots were `then`, when the clock was then_clock: the same units, used
// as long ago.
static int same_state(const zero_param_cache *c, const zero_param_cache_slot *then, uint64_t then_clock) {
    for (size_t i = 0; i < c->num_slots; i++) {
        const zero_param_cache_slot *s = &c->slots[i];
        if (s->unit != then[i].unit || !s->used != !then[i].used) return 0;
        if (s->used && c->clock - s->used != then_clock - then[i].used) return 0;
    }
    return 1;
}

uint64_t zero_param_cache_traffic(const zero_layout *l, const size_t *order, size_t order_length, size_t prefetch,
                                  int drop, size_t micro_batches, const uint64_t *weight) {
    zero_param_cache c;
    size_t then_done = 0;
    uint64_t gathered = 0, then_gathered = 0, then_clock = 0;
    zero_param_cache_slot *then = malloc(l->num_units * sizeof *then);
    if (zero_param_cache_create(&c, l, order, order_length, prefetch) || !then) micro_batches = 0;
    c.drop = drop;
    // Micro-steps soon repeat. When the state is that of an earlier micro-step, whole periods are skipped (Brent's
    // algorithm: it is compared with the last power of two).
    for (size_t done = 0; done < micro_batches; done++) {
        if (done && same_state(&c, then, then_clock)) {
            const size_t period = done - then_done, periods = (micro_batches - done) / period;
            gathered += periods * (gathered - then_gathered);
            done += periods * period;
            if (done == micro_batches) break;
        }
        if (!(done & (done - 1))) {
            memcpy(then, c.slots, c.num_slots * sizeof *then);
            then_clock = c.clock;
            then_gathered = gathered;
            then_done = done;
        }
        gathered += simulate(&c, l, weight);
    }
    free(then);
    zero_param_cache_destroy(&c);
    return gathered;
}
