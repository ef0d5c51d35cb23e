// param_cache.h: which unit's parameters are in which buffer (stage 3). A pure policy, without memory or communication:
// the engine follows it (parameters.c), and zero_param_cache_traffic simulates it over the order of units to predict
// what a step will all-gather.
//
// Units that share buffers (pool.h) have 1 + prefetch of them. A buffer keeps its unit until another one takes it or
// the parameters change. Evicted is the least recently used buffer without users. After each acquire the next
// `prefetch` units of the order are all-gathered ahead, as far as buffers are free. Three units, prefetch 1 (so two
// buffers), order 0 1 2 2 1 0:
//
//     acquire    buffer A   buffer B   all-gathers
//     0          0          1 (ahead)  0, 1
//     1          2 (ahead)  1          2
//     2          2          1          none: the next of the order, 2 again, is here
//     2          2          1          none
//     1          0 (ahead)  1          0
//     0          0          1          none: 4 all-gathers instead of 6
#ifndef ZERO_PARAM_CACHE_H
#define ZERO_PARAM_CACHE_H
#include <stddef.h>
#include <stdint.h>
#include "zero/pool.h"
#ifdef __cplusplus
extern "C" {
#endif

typedef struct zero_param_cache_slot {
    size_t unit;      // ZERO_NO_UNIT: it holds none
    int users, busy;  // busy: an all-gather into it is not finished
    uint64_t used;    // when, by the cache's clock
} zero_param_cache_slot;

typedef struct zero_param_cache {
    zero_pool pool;                // of depth 1 + prefetch
    zero_param_cache_slot *slots;  // one for each of its buffers
    size_t num_slots, prefetch;
    int drop;                               // debugging: a unit is dropped as soon as it has no user
    size_t *order, order_length, order_at;  // order_at: the next acquire, if the caller keeps to the order
    uint64_t clock;
} zero_param_cache;

// Returns 0, or -1: out of memory, or the order names a unit that does not exist. order is copied.
int zero_param_cache_create(zero_param_cache *c, const zero_layout *l, const size_t *order, size_t order_length,
                            size_t prefetch);
void zero_param_cache_destroy(zero_param_cache *c);

// The slot that holds a unit, or NULL.
zero_param_cache_slot *zero_param_cache_find(zero_param_cache *c, size_t unit);

// Evicts the least recently used slot that a unit may use; the unit is then all-gathered into it. NULL: all are in use.
zero_param_cache_slot *zero_param_cache_take(zero_param_cache *c, size_t unit);

// Counts a user of a slot, and follows the order.
void zero_param_cache_acquired(zero_param_cache *c, zero_param_cache_slot *s);

// Counts a user less. Returns 1 if the unit was dropped with it.
int zero_param_cache_released(zero_param_cache *c, zero_param_cache_slot *s);

// The i-th next unit of the order, i < prefetch; or ZERO_NO_UNIT.
size_t zero_param_cache_ahead(const zero_param_cache *c, size_t i);

// Empties all slots and starts the order again.
void zero_param_cache_invalidate(zero_param_cache *c);

// Padded elements of the units that a step of micro_batches all-gathers, from an empty cache; or the sum of
// weight[unit], if it is not NULL, over these units. 0 if memory is exhausted.
uint64_t zero_param_cache_traffic(const zero_layout *l, const size_t *order, size_t order_length, size_t prefetch,
                                  int drop, size_t micro_batches, const uint64_t *weight);

#ifdef __cplusplus
}
#endif
#endif
