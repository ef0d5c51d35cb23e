// wide.h: exact sums of squares, and what they decide about a step. For the host and for kernels: both give the same
// bits.
//
// A wide integer has ZERO_WIDE_DIGITS digits of 32 bits, each held in 64 so that carries may wait, in units of
// 2^-ZERO_WIDE_BIAS; then come the numbers of terms that were infinite, and not a number. A row is what a rank passes
// to the others for a norm: the wide integer of its squares, and the hash of its calls (internal.h).
#ifndef ZERO_WIDE_H
#define ZERO_WIDE_H
#include <math.h>
#include <stdint.h>
#include <string.h>
#ifdef __CUDACC__
#define ZERO_WIDE static __host__ __device__ __forceinline__
#else
#define ZERO_WIDE static inline
#endif

enum {
    ZERO_WIDE_DIGITS = 20,  // 2^-320 up to 2^320: any sum of squares of fp32
    ZERO_WIDE_BIAS = 320,
    ZERO_WIDE_INF = ZERO_WIDE_DIGITS,
    ZERO_WIDE_NAN,
    ZERO_WIDE_WORDS,
    ZERO_NORM_WORDS  // of a row
};

// What the squares of all ranks decide about a step.
typedef struct zero_decision {
    double norm;   // of the mean gradient, before clipping
    float scale;   // by which it is clipped; 1: it is not
    float factor;  // on the sum of gradients: scale / M
    int skip;      // 1: the norm is not finite, or a rank has made other calls: nothing is changed
    int other;     // the first rank whose row has another hash of calls than this rank's; -1: none
} zero_decision;

// Of the rows of the shard group, hence of all ranks; of those of the replicate group.
enum { ZERO_OF_ALL, ZERO_OF_REPLICAS, ZERO_DECISIONS };

// Lets carries run, so that every digit is below 2^32 and many wide integers can be added.
ZERO_WIDE void zero_wide_normalize(uint64_t *wide) {
    for (int d = 0; d + 1 < ZERO_WIDE_DIGITS; d++) {
        wide[d + 1] += wide[d] >> 32;
        wide[d] &= 0xffffffff;
    }
}

// The nearest double: the top 64 bits, with a sticky last bit for what is below, rounded once by the conversion.
ZERO_WIDE double zero_wide_value(uint64_t *wide) {
    zero_wide_normalize(wide);
    int top = ZERO_WIDE_DIGITS - 1, shift = 0;
    while (top > 1 && !wide[top]) top--;
    const uint64_t low = top >= 2 ? wide[top - 2] : 0;
    uint64_t high = wide[top] << 32 | wide[top - 1];
    if (wide[ZERO_WIDE_NAN]) return NAN;
    if (wide[ZERO_WIDE_INF]) return INFINITY;
    if (!high) return 0;
    while (!(high << shift >> 63)) shift++;
    if (shift) high = high << shift | (shift <= 32 ? low >> (32 - shift) : 0);  // shift > 32: there is nothing below
    uint64_t sticky = shift < 32 ? low & (((uint64_t)1 << (32 - shift)) - 1) : 0;
    for (int d = 0; d < top - 2; d++) sticky |= wide[d];
    if (sticky) high |= 1;
    const uint64_t bits = (uint64_t)(1023 + 32 * (top - 1) - shift - ZERO_WIDE_BIAS) << 52;
    double power;
    memcpy(&power, &bits, sizeof power);
    return (double)high * power;
}

// The norm of the mean gradient, weight: of the micro-batches; and how it is clipped to max_norm (0: it is not).
ZERO_WIDE zero_decision zero_wide_decide(uint64_t *wide, double weight, float max_norm) {
    zero_decision d;
    d.norm = sqrt(zero_wide_value(wide)) / weight;
    d.scale = max_norm > 0 && d.norm > max_norm ? (float)(max_norm / d.norm) : 1.0f;
    d.factor = d.scale * (1.0f / (float)weight);
    d.skip = !(d.norm - d.norm == 0);
    d.other = -1;
    return d;
}

#endif
