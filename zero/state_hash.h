// state_hash.h: the hash of a state, which does not depend on how the state is sharded: the sum of the hashes of its
// blocks of 64 elements, each seeded with its logical index. No shard's end cuts a block (layout.h), and the order of a
// sum of integers does not matter.
#ifndef ZERO_STATE_HASH_H
#define ZERO_STATE_HASH_H
#include <stddef.h>
#include <stdint.h>
#include <xxhash.h>
#include "zero/layout.h"

// The part of elements [begin, begin + count) of a tensor, as fp32. begin is a multiple of ZERO_ALIGN; logical is the
// logical index of element begin; state is an enum zero_state.
static inline uint64_t zero_state_hash(size_t state, size_t logical, size_t count, const float *values) {
    uint64_t sum = 0;
    for (size_t at = 0; at < count; at += ZERO_ALIGN) {
        const size_t n = count - at < ZERO_ALIGN ? count - at : ZERO_ALIGN;
        sum += XXH3_64bits_withSeed(values + at, n * sizeof(float), (logical + at) * 4 + state);
    }
    return sum;
}

#endif
