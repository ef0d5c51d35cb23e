// master_weights.h: the bits of a bf16 parameter and of its fp32 master weight, stochastic rounding included.
//
// A parameter is its master weight rounded to nearest, ties away from zero. Not ties to even: an even bf16 would have
// 65537 nearest floats (both ties are its own), one more than 16 bits can distinguish. With ties away every bf16 has
// 65536, and parameter and low half together are the master weight: master = (param << 16) + the low half as a signed
// number. So the split master (ZERO_MASTER_SPLIT) costs 2 bytes beside the parameter and loses nothing: all 2^32 words
// are recovered, except that signalling NaNs, which no arithmetic produces, become quiet. A tie is one value in 65536,
// and the parameter is the same in both modes.
//
//     master 0x3f80a123: param 0x3f81 (rounded up), low 0xa123 = -0x5edd;    0x3f810000 - 0x5edd = 0x3f80a123
//     master 0x3f802123: param 0x3f80,              low 0x2123;              0x3f800000 + 0x2123 = 0x3f802123
//
// Without a master weight (ZERO_MASTER_NONE) an update smaller than half a bf16 step would always be rounded away. So
// the new value is rounded stochastically: up with the probability (low half / 65536) that makes the mean exact. The
// random number is Philox4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel Random Numbers: As Easy as 1, 2, 3; SC 2011): a
// function of a counter and a key, so an element's random number does not depend on the rank that computes it.
#ifndef ZERO_MASTER_WEIGHTS_H
#define ZERO_MASTER_WEIGHTS_H
#include <stdint.h>
#ifdef __CUDACC__
#define ZERO_BITS static __host__ __device__ __forceinline__
#else
#define ZERO_BITS static inline
#endif

// W is a word of 32 bits; in C++ also a vector of them. Parameters and low halves are words below 65536.
#ifdef __cplusplus
#define ZERO_WORDWISE template <class W> ZERO_BITS
#else
#define ZERO_WORDWISE ZERO_BITS
#define W             uint32_t
#endif

// The parameter of a master weight. Beyond the largest bf16 it is infinity; NaN stays NaN.
ZERO_WORDWISE W zero_master_round(W word) {
    return ((word & 0x7fffffff) > 0x7f800000 ? word | 0x400000 : word + 0x8000) >> 16;
}

// The master weight of a parameter and a low half. (A signed low half borrows from the upper one.)
ZERO_WORDWISE W zero_master_join(W param, W low) {
    const W word = param << 16;
    return (word & 0x7fffffff) > 0x7f800000 ? word | low : word + low - ((low & 0x8000) << 1);
}

// The parameter of a new value, rounded stochastically: random is uniform in [0, 65536).
ZERO_WORDWISE W zero_master_round_stochastic(W word, W random) {
    return ((word & 0x7fffffff) > 0x7f800000 ? word | 0x400000 : word + random) >> 16;
}

#ifndef __cplusplus
#undef W
#endif
#undef ZERO_WORDWISE

// 16 random bits for each of the 8 elements from logical index `logical` on, in step t.
ZERO_BITS void zero_master_random(uint16_t random[8], uint64_t seed, uint64_t t, uint64_t logical) {
    uint32_t x0 = (uint32_t)logical, x1 = (uint32_t)(logical >> 32), x2 = (uint32_t)t, x3 = (uint32_t)(t >> 32);
    uint32_t key0 = (uint32_t)seed, key1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        const uint64_t a = (uint64_t)0xd2511f53u * x0, b = (uint64_t)0xcd9e8d57u * x2;
        x0 = (uint32_t)(b >> 32) ^ x1 ^ key0;
        x1 = (uint32_t)b;
        x2 = (uint32_t)(a >> 32) ^ x3 ^ key1;
        x3 = (uint32_t)a;
        key0 += 0x9e3779b9u;
        key1 += 0xbb67ae85u;
    }
    const uint32_t x[4] = { x0, x1, x2, x3 };
    for (int k = 0; k < 8; k++) random[k] = (uint16_t)(x[k / 2] >> 16 * (k % 2));
}

#endif
