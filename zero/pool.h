// pool.h: buffers that units use in turn: for gradients in stages 2 and 3, for parameters in stage 3. Which there are,
// and which of them a unit may use; a pure function of the layout. Frozen units have no gradients, so they are not in
// the pool of these.
//
// Rule. Some units have a buffer of their own. All others share `depth` buffers, each as large as the largest of these
// units. A buffer of its own has
//     - a unit with a tied tensor (layout.h): its gradients are held while those of all other units come and go;
//     - the s largest of the other units, s such that these s buffers and two shared ones take the least memory. So a
//       unit much larger than the rest, like an embedding, does not set the size of the shared buffers.
// s depends on sizes without the padding for N ranks, so the same units share for every N.
//
// Proof that a unit always gets a buffer, if at most `depth` sharing units are held at a time (the engine refuses
// more): a unit with a buffer of its own is not held twice. A unit that shares fits into each of the shared buffers.
// The other sharing units that are held are fewer than depth, and fewer than there are sharing units, so one of the
// min(depth, sharing units) shared buffers is not held: it is free, or will be without the caller's help, after a
// reduction or an all-gather. (Buffers as large as the k largest units would not do: of two small units one
// takes the larger buffer, and when the other is released, the largest unit finds the small buffer.)
//
// Cost. Units of sizes that differ little cost what units of equal size do. Shared buffers and buffers of units that
// are larger than the others take at most as much as two buffers for the largest unit of all. Elements of a pool with
// depth 2:
//
//     sizes                        buffers                      elements
//     100 100 100 100              100 100                      200
//     100 99 98 97 ...             100 100                      200
//     1000 100 99 98 ...           1000 (own) 100 100           1200
//     100, tied, 90 80 70 ...      100 (own) 90 90              280
#ifndef ZERO_POOL_H
#define ZERO_POOL_H
#include <stddef.h>
#include "zero/layout.h"
#ifdef __cplusplus
extern "C" {
#endif

#define ZERO_NO_UNIT ((size_t)-1)

enum { ZERO_GRAD_POOL_DEPTH = 2 };  // of the pool of gradients; that of parameters has depth 1 + prefetch

typedef struct zero_pool_buffer {
    size_t numel;  // padded elements
    size_t owner;  // a unit; ZERO_NO_UNIT: shared
} zero_pool_buffer;

typedef struct zero_pool {
    zero_pool_buffer *buffers;  // [num_buffers], the shared ones first
    size_t num_buffers, num_shared, num_units;
    unsigned char *shares;  // [num_units]: 1 if the unit uses the shared buffers
} zero_pool;

enum zero_pool_kind { ZERO_POOL_PARAMS, ZERO_POOL_GRADS };

// Returns 0, or -1: host memory is exhausted.
int zero_pool_create(zero_pool *p, const zero_layout *l, enum zero_pool_kind kind, size_t depth);
void zero_pool_destroy(zero_pool *p);

// How many elements of a unit's shard one all-to-all moves: those of the largest unit that shares buffers. So a unit
// that is much larger does not set the size of a transport's scratch; it is reduced in at most 16 parts, and the sums,
// which are elementwise, keep their bits. Of a pool of gradients.
size_t zero_pool_part(const zero_pool *p, const zero_layout *l, size_t unit);
size_t zero_pool_largest_part(const zero_pool *p, const zero_layout *l);  // of all trained units

// Returns 1 if the unit may use buffer i.
static inline int zero_pool_fits(const zero_pool *p, size_t i, size_t unit) {
    return p->shares[unit] ? p->buffers[i].owner == ZERO_NO_UNIT : p->buffers[i].owner == unit;
}

#ifdef __cplusplus
}
#endif
#endif
