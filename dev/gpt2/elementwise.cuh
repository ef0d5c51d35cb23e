// Elementwise kernels: residual, GELU forward and backward, rounding of the head's gradient. A block owns a contiguous
// range.
#ifndef GPT2_ELEMENTWISE_CUH
#define GPT2_ELEMENTWISE_CUH

#include "device/gelu.cuh"  // GELU and its derivative
#include "gpt2/common.cuh"

#define ELEMENTWISE_THREADS 256

static size_t elementwise_blocks(size_t n) {
    const size_t blocks = ceil_div(n, (size_t)ELEMENTWISE_THREADS * PACK * 2);
    return blocks < 8192 ? blocks : 8192;
}

__global__ void __launch_bounds__(ELEMENTWISE_THREADS)
    residual_kernel(floatX *__restrict__ out, const floatX *__restrict__ a, const floatX *__restrict__ b, size_t n) {
    size_t begin, end;
    block_range(n, begin, end);
    for (size_t i = begin + threadIdx.x * PACK; i < end; i += (size_t)blockDim.x * PACK)
        st(out + i, ld(a + i) + ld(b + i));
}

static void residual(floatX *out, const floatX *a, const floatX *b, size_t n, cudaStream_t stream) {
    LAUNCH(elementwise_blocks(n), ELEMENTWISE_THREADS, 0, stream, residual_kernel, out, a, b, n);
}

__global__ void __launch_bounds__(ELEMENTWISE_THREADS)
    gelu_forward_kernel(floatX *__restrict__ out, const floatX *__restrict__ inp, size_t n) {
    size_t begin, end;
    block_range(n, begin, end);
    for (size_t i = begin + threadIdx.x * PACK; i < end; i += (size_t)blockDim.x * PACK) st(out + i, gelu(ld(inp + i)));
}

static void gelu_forward(floatX *out, const floatX *inp, size_t n, cudaStream_t stream) {
    LAUNCH(elementwise_blocks(n), ELEMENTWISE_THREADS, 0, stream, gelu_forward_kernel, out, inp, n);
}

__global__ void __launch_bounds__(ELEMENTWISE_THREADS)
    gelu_backward_kernel(floatX *__restrict__ dinout, const floatX *__restrict__ inp, size_t n) {
    size_t begin, end;
    block_range(n, begin, end);
    for (size_t i = begin + threadIdx.x * PACK; i < end; i += (size_t)blockDim.x * PACK)
        st(dinout + i, ld(dinout + i) * gelu_derivative(ld(inp + i)));
}

// In place: on entry dinout is the gradient of GELU's output, on return of its input inp.
static void gelu_backward(floatX *dinout, const floatX *inp, size_t n, cudaStream_t stream) {
    LAUNCH(elementwise_blocks(n), ELEMENTWISE_THREADS, 0, stream, gelu_backward_kernel, dinout, inp, n);
}

__global__ void __launch_bounds__(ELEMENTWISE_THREADS)
    round_head_kernel(floatX *__restrict__ out, const float *__restrict__ sums, size_t n) {
    size_t begin, end;
    block_range(n, begin, end);
    for (size_t i = begin + threadIdx.x * PACK; i < end; i += (size_t)blockDim.x * PACK) st(out + i, ld(sums + i));
}

// out[n] = sums, rounded. n: a multiple of PACK.
static void round_head(floatX *out, const float *sums, size_t n, cudaStream_t stream) {
    LAUNCH(elementwise_blocks(n), ELEMENTWISE_THREADS, 0, stream, round_head_kernel, out, sums, n);
}

#endif
