// Faults for the static checks of the CUDA build (dev/test/cuda/check_cuda.sh), which must find each of them. Compiled
// by that script alone, never run.
//
// The name of a kernel states its fault. Code that must not even compile is left out unless its macro is defined.
#include "zero/device.cuh"

__global__ void __launch_bounds__(256) nothing_wrong(float *__restrict__ out, const bf16 *__restrict__ in, size_t n) {
    for (size_t i = threadIdx.x * PACK; i < n; i += blockDim.x * PACK) st(out + i, ld(in + i));
}

// Every element by itself, a quarter or an eighth of the bytes that a load can move.
__global__ void __launch_bounds__(256) narrow_loads(float *__restrict__ out, const bf16 *__restrict__ in, size_t n) {
    for (size_t i = threadIdx.x; i < n; i += blockDim.x) out[i] = __bfloat162float(in[i]);
}

// One loop is right, another is not.
__global__ void __launch_bounds__(256)
    narrow_loop(float *__restrict__ out, const float *__restrict__ in, float scale, size_t n) {
    for (size_t i = threadIdx.x * PACK; i < n; i += blockDim.x * PACK) st(out + i, ld(in + i) * scale);
    for (size_t i = threadIdx.x; i < n; i += blockDim.x) out[n + i] = in[n + i] * scale;
}

// The index is known only at run time, so the array cannot be in registers.
__global__ void __launch_bounds__(256)
    local_array(float *__restrict__ out, const float *__restrict__ in, const int *__restrict__ order) {
    fvec x = ld(in + threadIdx.x * PACK);
    fvec y = splat(0);
    UNROLL for (int k = 0; k < PACK; k++) y[order[k] % PACK] += x[k];
    st(out + threadIdx.x * PACK, y);
}

// The sums of columns are in global memory, row after row.
__global__ void __launch_bounds__(256)
    sum_in_memory(float *__restrict__ sum, const float *__restrict__ in, int rows, int n) {
    for (int r = 0; r < rows; r++) {
        for (int c = threadIdx.x * PACK; c < n; c += blockDim.x * PACK) st(sum + c, ld(sum + c) + ld(in + r * n + c));
    }
}

// The order of the additions is that of the blocks.
__global__ void __launch_bounds__(256) global_atomics(float *__restrict__ sum, const float *__restrict__ in) {
    atomicAdd(sum, pack_sum(ld(in + (blockIdx.x * 256 + threadIdx.x) * PACK)));
}

// 128 sums that live at once, in blocks so large that a thread has 64 registers.
template <int THREADS> DEV void many_sums(float *__restrict__ out, const float *__restrict__ in, int n) {
    fvec sum[16];
    UNROLL for (int j = 0; j < 16; j++) sum[j] = splat(0);
    for (int i = 0; i < n; i++) {
        const fvec x = ld(in + (i * THREADS + threadIdx.x) * PACK);
        UNROLL for (int j = 0; j < 16; j++) sum[j] += x * x[j % PACK] + sum[(j + 1) % 16];
    }
    UNROLL for (int j = 0; j < 16; j++) st(out + (j * THREADS + threadIdx.x) * PACK, sum[j]);
}
__global__ void __launch_bounds__(1024) spills(float *__restrict__ out, const float *__restrict__ in, int n) {
    many_sums<1024>(out, in, n);
}

// The same with as many registers as it wants, and no bound on its threads.
__global__ void no_launch_bounds(float *__restrict__ out, const float *__restrict__ in, int n) {
    many_sums<1024>(out, in, n);
}

// A product of 8 x 8 by multiplications and additions of single numbers.
__global__ void __launch_bounds__(256)
    flash_without_tensor_cores(float *__restrict__ out, const bf16 *__restrict__ a, const bf16 *__restrict__ b) {
    fvec sum = splat(0);
    UNROLL for (int k = 0; k < PACK; k++) sum += ld(a + threadIdx.x / PACK * PACK)[k] * ld(b + k * PACK);
    st(out + threadIdx.x * PACK, sum);
}

#ifdef PLANT_SHARED
__global__ void __launch_bounds__(256) too_much_shared(float *__restrict__ out, const float *__restrict__ in, int n) {
    __shared__ float all[48 * 256 + 1];
    for (int i = threadIdx.x; i < 48 * 256 + 1; i += blockDim.x) all[i] = in[i];
    __syncthreads();
    st(out + threadIdx.x * PACK, splat(all[n]));
}
#endif

#ifdef PLANT_UNUSED
__global__ void __launch_bounds__(256) unused_variable(float *__restrict__ out, int n) {
    int unused;
    st(out + threadIdx.x * PACK, splat((float)n));
}
#endif

#ifdef PLANT_UNCHECKED
float *unchecked(size_t n) {
    float *p = NULL;
    cudaMalloc(&p, n * sizeof(float));
    return p;
}
#endif
