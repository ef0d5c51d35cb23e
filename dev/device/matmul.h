// Every matrix product of the trainer, behind one function with two implementations: dev/device/cuda/matmul.cu
// (cuBLASLt) and dev/device/cpu/matmul.cpp (our own, no library). A build links exactly one of them.
//
// Both keep the promise that the rest of the program is built on: the same inputs give the same bits, whatever the
// number of threads, the address of the buffers or the number of ranks. On a GPU the bits may depend on the shape, the
// type and the device. On the CPU they depend only on the instruction set that the build was made for, and an element
// of c does not even depend on m and n: any part of the rows or columns, computed by itself, comes out the same.
//
// The three uses, for a linear layer with weights w[OC, C] over R rows:
//     forward  out[R, OC] = inp[R, C] w^T + bias    matmul(out,  inp,  w,   bias, dtype, R,  OC, C,  0, 1, 0, stream)
//     input    dinp[R, C] = dout[R, OC] w           matmul(dinp, dout, w,   NULL, dtype, R,  C,  OC, 0, 0, 0, stream)
//     weights  dw[OC, C] += dout^T inp              matmul(dw,   dout, inp, NULL, dtype, OC, C,  R,  1, 0, 1, stream)
// The first two may end in a GELU, or in its derivative, which saves a pass over memory: matmul_gelu,
// matmul_gelu_backward.
#ifndef MATMUL_H
#define MATMUL_H

#include <stddef.h>

#include "cuda_runtime_api.h"  // cudaStream_t; the CPU build finds the one of dev/device/cpu

#ifdef __cplusplus
extern "C" {
#endif

// What dtype stands for. MATMUL_BF16_F32: a and b are bf16, c is fp32, for a sum that several products add to; only
// matmul() takes it, without bias.
enum { MATMUL_F32 = 0, MATMUL_BF16 = 1, MATMUL_BF16_F32 = 2 };

// c[m, n] = op(a) op(b) (+ bias[n] on every row) (+ the old c if accumulate). Row-major, no gaps. a is m x k, or k x m
// if trans_a; b is k x n, or n x k if trans_b; bias is NULL or n long; all of them, and c, have type dtype. c overlaps
// none of the others. Sums are fp32 and are rounded once, to nearest even, when c is stored. k == 0 is an empty sum (c
// = bias, or zeros); m == 0 or n == 0 does nothing. The product is queued on stream (on the CPU this usually means that
// it is done when the call returns). Call it from one host thread per process. Returns 0 or a cudaError_t:
// cudaErrorInvalidValue (unknown dtype, a size above INT_MAX), cudaErrorMemoryAllocation (no room for workspace),
// cudaErrorNotSupported (cuBLASLt knows no deterministic algorithm for the shape). On an error c is unspecified.
int matmul(void *c, const void *a, const void *b, const void *bias, int dtype, size_t m, size_t n, size_t k,
           int trans_a, int trans_b, int accumulate, cudaStream_t stream);

// pre = op(a) op(b) (+ bias), c = gelu(pre), as dev/device/gelu.cuh defines it; both are m x n and are written. n must
// be a multiple of 8, and all pointers of 16 bytes, else cudaErrorInvalidValue. The rest is as for matmul. The CPU
// takes the GELU of what it has stored in pre: the bits are those of a kernel after a product. cuBLASLt has the sum in
// fp32 at hand and takes the GELU of that: in bf16 it agrees with such a kernel only to rounding.
int matmul_gelu(void *c, void *pre, const void *a, const void *b, const void *bias, int dtype, size_t m, size_t n,
                size_t k, int trans_a, int trans_b, cudaStream_t stream);

// c = (op(a) op(b)) * gelu'(pre), element by element; pre[m, n] is read. Conditions and rounding as for matmul_gelu.
int matmul_gelu_backward(void *c, const void *pre, const void *a, const void *b, int dtype, size_t m, size_t n,
                         size_t k, int trans_a, int trans_b, cudaStream_t stream);

// Allows (1) or forbids (0, the default) TF32 tensor cores for fp32 products. A CPU has none and always computes in
// full fp32.
void matmul_set_tf32(int allow);

// Gives the workspace back (32 MiB per stream on a GPU, 0.8 MB per thread on the CPU), when no product is queued or
// running. The next matmul takes a new one.
void matmul_destroy(void);

#ifdef __cplusplus
}
#endif
#endif
