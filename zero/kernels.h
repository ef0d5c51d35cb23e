// kernels.h: the module's device work, behind plain C functions. All are asynchronous on the stream and return CUDA's
// error. Pointers are device memory aligned to 64 elements; n is a multiple of 64. Not collective.
//
// The order of every sum is fixed here and does not depend on the launch, the device's size or the number of threads,
// so the bits depend on the values alone.
#ifndef ZERO_KERNELS_H
#define ZERO_KERNELS_H
#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>
#include "zero/types.h"
#ifdef __cplusplus
extern "C" {
#endif

enum { ZERO_MAX_PARTIAL_SUMS = 32 };  // partial sums of 2^32 micro-steps

// The partial sums that wait for their partner, oldest first.
typedef struct zero_partial_sums {
    float *slot[ZERO_MAX_PARTIAL_SUMS];
    int count;
} zero_partial_sums;

// out[i] = older.slot[0][i] + (older.slot[1][i] + ( ... + tree)), where tree is the balanced sum of
// pieces[0..num_pieces)[i]: tree(lo, n) = tree(lo, p) + tree(lo + p, n - p), p the largest power of two below n. fp32
// sums; pieces are of type dtype and pieces itself is a device array. out may be any of older's slots. num_pieces = 0:
// no tree, out = the sum of the slots from the newest to the oldest (at least one). At most 131064 pieces.
cudaError_t zero_kernel_sum(float *out, const void *const *pieces, int num_pieces, enum zero_dtype dtype,
                            zero_partial_sums older, size_t n, cudaStream_t stream);

// Sum of squares, exactly: x is taken in blocks of 64 elements. In a block, lane k of 8 adds the squares (in double) of
// the elements k, k + 8, ..., k + 56 in that order, and the lanes are added as a tree: (k, k + 4), (k, k + 2), (k, k +
// 1). The block sums are added exactly, as integers of 32 * ZERO_WIDE_DIGITS bits in units of 2^-ZERO_WIDE_BIAS, in
// digits of 32 bits held in 64 (so that carries may wait). out: ZERO_SQUARE_PARTS * ZERO_WIDE_WORDS words; the caller
// adds the parts, in any order.
enum {
    ZERO_WIDE_DIGITS = 20,  // 2^-320 up to 2^320: any sum of squares of fp32
    ZERO_WIDE_BIAS = 320,
    ZERO_WIDE_INF = ZERO_WIDE_DIGITS,
    ZERO_WIDE_NAN,  // how many block sums were infinite, or not a number
    ZERO_WIDE_WORDS,
    ZERO_SQUARE_PARTS = 256
};
cudaError_t zero_kernel_square_sum(uint64_t *out, const float *x, size_t n, cudaStream_t stream);

// AdamW over tiles of the shard. A tile is at most ZERO_OPTIMIZER_CHUNK elements of one tensor (or of padding, whose gradient and
// state are zero and stay so). In this order of operations, in fp32, without fused multiply-add:
//     g = gradient * scale;  m = beta1 * m + (1 - beta1) * g;  v = beta2 * v + ((1 - beta2) * g) * g
//     w = w - lr * ((m / correction1) / (sqrt(v / correction2) + eps) + decay * w)
// w is: the parameter, if dtype is ZERO_F32 (mode is ZERO_MASTER_FP32 then, and master NULL). Else params are bf16, and
// w, of
//     ZERO_MASTER_FP32:  master, fp32;                                 then parameter = zero_master_round(w)
//     ZERO_MASTER_SPLIT: zero_master_join(parameter, master), master the low half of w (uint16_t);    "
//     ZERO_MASTER_NONE:  the parameter (master NULL);                  then parameter = zero_master_round_stochastic(w, random)
// Element k of an aligned 8 elements of the tile has random[k] of zero_master_random(seed, t, logical index of the
// first).
enum { ZERO_OPTIMIZER_CHUNK = 4096 };
typedef struct zero_optimizer_chunk {
    size_t param, state, grad;  // first element in params, in master/m/v, and in grads
    size_t logical;             // its logical index
    uint32_t count;             // a multiple of 8
    int32_t decay;              // 1: weight decay applies
} zero_optimizer_chunk;
typedef struct zero_adamw_args {
    float lr, beta1, beta2, eps, weight_decay, correction1, correction2, scale;
    uint64_t seed, t;  // of the random numbers; t: the step
} zero_adamw_args;
cudaError_t zero_kernel_adamw(void *params, enum zero_dtype dtype, enum zero_master mode, void *master, float *m,
                              float *v, const float *grads, const zero_optimizer_chunk *tiles, size_t num_tiles,
                              zero_adamw_args args, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
