// kernels.h: the sums of the engine, as plain C functions (the optimizers' updates: optimizers/optimizers.h). All are
// asynchronous on the stream and return CUDA's error. Pointers are device memory aligned to 64 elements; n is a
// multiple of 64. Not collective.
//
// The order of every sum is part of the contract: it does not depend on the launch, the device or the number of
// threads, so the bits depend on the values alone.
#ifndef ZERO_KERNELS_H
#define ZERO_KERNELS_H
#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>
#include "zero/types.h"
#include "zero/wide.h"
#ifdef __cplusplus
extern "C" {
#endif

enum {
    ZERO_MAX_PARTIAL_SUMS = 32,  // of 2^32 leaves - 1 (gradients.c)
    ZERO_MAX_CHUNKS = 131064     // that are added at a time
};

// Partial sums, oldest first.
typedef struct zero_partial_sums {
    float *sum[ZERO_MAX_PARTIAL_SUMS];
    int count;
} zero_partial_sums;

// Adds chunks over ranks, and the result to partial sums:
//     out[i] = older.sum[0][i] + (older.sum[1][i] + ( ... + tree))
// where tree is the balanced sum of chunks[0 .. num_chunks)[i]:
//     tree(lo, n) = tree(lo, p) + tree(lo + p, n - p), p the largest power of two below n
// Accumulates in fp32; chunks are of type dtype, and chunks itself is a device array of at most ZERO_MAX_CHUNKS
// pointers. out may be any of older's sums. num_chunks = 0: no tree, out = the sum of `older` from the newest to the
// oldest (at least one).
cudaError_t zero_kernel_sum(float *out, const void *const *chunks, int num_chunks, enum zero_dtype dtype,
                            zero_partial_sums older, size_t n, cudaStream_t stream);

// Pushes chunks, one after the other, onto a binary counter of leaves. After L leaves its partial sums are the ones of
// the binary number L, each the balanced tree of 2^k leaves; a leaf merges with as many as L has trailing ones:
//     sum = leaf; for each trailing one: sum = last partial sum + sum
// One pass over memory: reads the chunks and the partial sums that change, writes those that are new. `leaves` is L
// before; sums.sum[0 .. zero_partial_sums_live(L)) are read, sums.sum[0 .. zero_partial_sums_live(L + num_chunks)) are
// the result (sums.count is not used). Chunks as in zero_kernel_sum, at least one.
cudaError_t zero_kernel_push(zero_partial_sums sums, uint64_t leaves, const void *const *chunks, int num_chunks,
                             enum zero_dtype dtype, size_t n, cudaStream_t stream);
static inline int zero_partial_sums_live(uint64_t leaves) { return __builtin_popcountll(leaves); }

// How many of them, the oldest, stay as they are when the counter goes from `leaves` to `after`, which is more: those
// above the highest binary digit that changes.
static inline int zero_partial_sums_kept(uint64_t leaves, uint64_t after) {
    return zero_partial_sums_live(leaves >> (63 - __builtin_clzll(leaves ^ after)));
}

// What a shard group passes on to the others (cost.h: zero_group_sums): the sums of `leaves` chunks each, a power of
// two that divides num_chunks, as balanced trees; fp32, or the chunks as they are if leaves = 1. K = num_chunks /
// leaves of them, each of n elements, cut into parts: element i of the k-th is
//     out[(i / part * K + k) * part + i % part]
cudaError_t zero_kernel_group_sums(void *out, const void *const *chunks, int num_chunks, int leaves,
                                   enum zero_dtype dtype, size_t n, size_t part, cudaStream_t stream);

// out[i] = chunks[i / K] + (i % K) * bytes, for i < n: device arrays of pointers.
cudaError_t zero_kernel_pointers(const void **out, const void *const *chunks, int K, size_t bytes, int n,
                                 cudaStream_t stream);

// Sum of squares, exact but for the rounding inside blocks of 64 elements. In a block, lane k of 8 adds the squares (in
// double) of elements k, k + 8, ..., k + 56 in that order; the lanes are added as a tree: (k, k + 4), (k, k + 2), (k, k
// + 1). The block sums are added exactly, as wide integers (wide.h). out: ZERO_SQUARE_PARTS * ZERO_WIDE_WORDS words;
// the caller adds the parts, in any order.
enum { ZERO_SQUARE_PARTS = 256 };
cudaError_t zero_kernel_square_sum(uint64_t *out, const float *x, size_t n, cudaStream_t stream);

// Adds n wide integers, each at stride words, and
//     row, if not NULL       their sum, every digit below 2^32; and the hash: calls, or ~calls if a rank has another
//     one
//     decision, if not NULL  what the sum decides; weight, max_norm: as for zero_wide_decide
// With stride ZERO_NORM_WORDS they are rows of n ranks, and their hashes are compared with calls.
typedef struct zero_norm_args {
    const uint64_t *wide;
    size_t n, stride;
    uint64_t calls;
    uint64_t *row;
    zero_decision *decision;
    double weight;
    float max_norm;
} zero_norm_args;
cudaError_t zero_kernel_norm(zero_norm_args args, cudaStream_t stream);

// Exchanges n weights and their moving averages. fp32: params and ema change places. bf16: params become the rounded
// averages, and each word of ema holds the parameter in its upper half and the average's low half, from which back = 1
// restores both (master_weights.h). n: a multiple of 8.
cudaError_t zero_kernel_exchange_ema(void *params, float *ema, enum zero_dtype dtype, int back, size_t n,
                                     cudaStream_t stream);

// Checks that this build rounds the product in a * b + c, as the promised bits require; whether compilers contract it
// into a fused multiply-add depends on their flags. *contracts = 1: kernels.cu was compiled without -ffp-contract=off
// (nvcc: -fmad=false). Waits for the stream.
cudaError_t zero_kernel_check_rounding(int *contracts, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
