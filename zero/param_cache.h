// cache.h: which unit's parameters are in which buffer (stage 3). A pure policy, without memory or communication: the
// engine follows it, and zero_param_cache_traffic runs the same policy over the order of units to say what a step will fetch.
//
// There are buffers for each distinct size of unit. A buffer keeps its unit until it is wanted for another one or the
// parameters change. Wanted is the buffer that has no user and whose last use is the longest ago. After each acquire
// the next units of the order are fetched ahead, as far as buffers are free.
#ifndef ZERO_PARAM_CACHE_H
#define ZERO_PARAM_CACHE_H
#include <stddef.h>
#include <stdint.h>
#include "zero/layout.h"
#ifdef __cplusplus
extern "C" {
#endif

#define ZERO_NO_UNIT ((size_t)-1)

typedef struct zero_param_cache_slot {
    size_t numel, unit;  // the size of its units; ZERO_NO_UNIT: it holds none
    int users, busy;     // busy: a fetch into it is not finished
    uint64_t used;
} zero_param_cache_slot;

typedef struct zero_param_cache {
    zero_param_cache_slot *slots;
    size_t num_slots, prefetch;
    int drop;                               // debugging: a unit is forgotten as soon as it has no user
    size_t *order, order_length, order_at;  // order_at: the next acquire, if the caller keeps to the order
    uint64_t clock;
} zero_param_cache;

enum { ZERO_POOL_DEPTH = 2 };  // gradient buffers for each size of unit, stages 2 and 3

// Is unit u among the first `depth` of its size? A pool has a buffer for each such unit.
int zero_pool_has(const zero_layout *l, size_t u, size_t depth);

// 0, or -1: out of memory, or the order has a unit that is not there. order is copied.
int zero_param_cache_create(zero_param_cache *c, const zero_layout *l, const size_t *order, size_t order_length,
                            size_t prefetch);
void zero_param_cache_destroy(zero_param_cache *c);

zero_param_cache_slot *zero_param_cache_find(zero_param_cache *c, size_t unit);  // the slot that holds it, or NULL
// a slot for it, to be fetched into; NULL: all are in use
zero_param_cache_slot *zero_param_cache_take(zero_param_cache *c, size_t unit, size_t numel);
void zero_param_cache_acquired(zero_param_cache *c, zero_param_cache_slot *s);  // counts the user, follows the order
// one user less; 1: and with it the unit
int zero_param_cache_released(zero_param_cache *c, zero_param_cache_slot *s);
// the i-th next unit of the order, i < prefetch; or ZERO_NO_UNIT
size_t zero_param_cache_ahead(const zero_param_cache *c, size_t i);
// no slot holds a unit; the order starts again
void zero_param_cache_invalidate(zero_param_cache *c);

// Padded elements of the units that a step of micro_batches fetches, from an empty cache. 0 if memory is exhausted.
size_t zero_param_cache_traffic(const zero_layout *l, const size_t *order, size_t order_length, size_t prefetch,
                                int drop, size_t micro_batches);

#ifdef __cplusplus
}
#endif
#endif
