// device.cuh: the one header that kernels include; the same kernel source runs on a GPU, on a CPU and on an emulated
// GPU.
//
// A thread works on packs of PACK = 8 consecutive elements: `fvec x = ld(p + i); ... st(q + i, x)`. A pack is 8 floats
// in registers, whatever the type in memory (float or bf16), so a kernel is a template over that type and computes in
// fp32. On a GPU ld and st are 16-byte accesses, and p + i must be aligned to 16 bytes. On the CPU a pack is one vector
// register of 8 floats, and a kernel of one-thread blocks is a vectorised loop. (With `float x[8]` compilers vectorise
// fp32, but not bf16.)
//
// A kernel may use: + - * / and unary minus between packs and floats, x[k] for element k, the functions below, and
// threadIdx, blockIdx, blockDim, gridDim, __syncthreads(), __shared__ and shuffles. It must be correct for blockDim.x =
// 1, WARP = 1 (the CPU) and for blockDim.x a multiple of 32, WARP = 32 (a GPU): launch it with block_threads(n)
// threads, and step by blockDim.x * PACK. Sums are in an order fixed by the code, never by the scheduler: the same
// input gives the same bits, for any number of CPU threads.
#ifndef ZERO_DEVICE_CUH
#define ZERO_DEVICE_CUH

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef __nv_bfloat16 bf16;

#define DEV static __device__ __forceinline__

#if defined(CUDA_ON_CPU) && !defined(CUDA_ON_CPU_EMULATED)
#define VECTOR_PACKS
#endif
#include "zero/pack.cuh"

#ifdef __CUDACC__
#define UNROLL _Pragma("unroll")
#else
#define UNROLL
#endif

#ifdef CUDA_ON_CPU
constexpr int WARP = CUDA_ON_CPU_WARP;
#define DYNAMIC_SHARED(T, name) T *name = static_cast<T *>(cuda_on_cpu_dynamic_shared())
#else
constexpr int WARP = 32;
#define DYNAMIC_SHARED(T, name)                                          \
    extern __shared__ __align__(16) unsigned char zero_dynamic_shared[]; \
    T *name = reinterpret_cast<T *>(zero_dynamic_shared)
#endif

#ifdef VECTOR_PACKS
// ---------------------------------------------------------------------------------------------------------------------
// The CPU: a pack is a vector register.

// Threads of a block, where a GPU should have n.
constexpr int block_threads(int) { return 1; }

#else
// ---------------------------------------------------------------------------------------------------------------------
// A GPU, real or emulated: a pack is a small array in registers.

constexpr int block_threads(int n) { return n; }

struct fvec {
    float v[PACK];
    __device__ __forceinline__ float &operator[](int k) { return v[k]; }
    __device__ __forceinline__ const float &operator[](int k) const { return v[k]; }
};

#define EACH(expression)                                             \
    {                                                                \
        fvec r;                                                      \
        UNROLL for (int k = 0; k < PACK; k++) r.v[k] = (expression); \
        return r;                                                    \
    }
#define OPERATOR(op)                                                                                \
    DEV fvec operator op(const fvec &a, const fvec &b) EACH(a.v[k] op b.v[k]) DEV fvec operator op( \
        const fvec &a, float b) EACH(a.v[k] op b) DEV fvec                                          \
    operator op(float a, const fvec &b) EACH(a op b.v[k]) DEV fvec &                                \
    operator op##=(fvec &a, const fvec &b) {                                                        \
        return a = a op b;                                                                          \
    }                                                                                               \
    DEV fvec &operator op##=(fvec &a, float b) { return a = a op b; }
OPERATOR(+)
OPERATOR(-)
OPERATOR(*)
OPERATOR(/)
DEV fvec operator-(const fvec &a) EACH(-a.v[k]) DEV fvec vsqrt(const fvec &a) EACH(sqrtf(a.v[k])) DEV fvec
    vexp(const fvec &a) EACH(expf(a.v[k])) DEV fvec vmax(const fvec &a, const fvec &b)
        EACH(b.v[k] > a.v[k] ? b.v[k] : a.v[k])

#ifdef CUDA_ON_CPU
#define LOADS(p, bytes)  cuda_on_cpu_load(p, bytes)  // checked and counted
#define STORES(p, bytes) cuda_on_cpu_store(p, bytes)
    // Element by element, so that AddressSanitizer names the one that is out of bounds.

    DEV fvec ld(const float *p) {
    LOADS(p, sizeof(float) * PACK);
    EACH(p[k])
}

DEV fvec ld(const bf16 *p) {
    LOADS(p, sizeof(bf16) * PACK);
    EACH(__bfloat162float(p[k]))
}

DEV void st(float *p, const fvec &x) {
    STORES(p, sizeof(float) * PACK);
    for (int k = 0; k < PACK; k++) p[k] = x.v[k];
}

DEV void st(bf16 *p, const fvec &x) {
    STORES(p, sizeof(bf16) * PACK);
    for (int k = 0; k < PACK; k++) p[k] = __float2bfloat16_rn(x.v[k]);
}

#else
#define LOADS(p, bytes)
#define STORES(p, bytes)

            DEV fvec ld(const float *p) {
    const float4 a = reinterpret_cast<const float4 *>(p)[0];
    const float4 b = reinterpret_cast<const float4 *>(p)[1];
    return fvec{ { a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w } };
}

DEV fvec ld(const bf16 *p) {
    const uint4 u = *reinterpret_cast<const uint4 *>(p);
    const unsigned w[PACK / 2] = { u.x, u.y, u.z, u.w };
    EACH(__uint_as_float(k % 2 ? w[k / 2] & 0xffff0000u : w[k / 2] << 16))
}

DEV void st(float *p, const fvec &x) {
    reinterpret_cast<float4 *>(p)[0] = make_float4(x[0], x[1], x[2], x[3]);
    reinterpret_cast<float4 *>(p)[1] = make_float4(x[4], x[5], x[6], x[7]);
}

DEV void st(bf16 *p, const fvec &x) {
    unsigned w[PACK / 2];
    UNROLL for (int k = 0; k < PACK / 2; k++) {
        const __nv_bfloat162 h = __floats2bfloat162_rn(x[2 * k], x[2 * k + 1]);
        memcpy(&w[k], &h, sizeof h);
    }
    *reinterpret_cast<uint4 *>(p) = make_uint4(w[0], w[1], w[2], w[3]);
}

#endif
#undef OPERATOR
#undef EACH

struct uvec {
    uint32_t v[PACK];
};

DEV uvec bits(const fvec &x) {
    uvec u;
    memcpy(&u, &x, sizeof u);
    return u;
}

DEV fvec from_bits(const uvec &u) {
    fvec x;
    memcpy(&x, &u, sizeof x);
    return x;
}

DEV uvec ld16(const void *p) {
    uint16_t h[PACK];
    uvec u;
    LOADS(p, sizeof h);
    memcpy(h, __builtin_assume_aligned(p, 16), sizeof h);
    UNROLL for (int k = 0; k < PACK; k++) u.v[k] = h[k];
    return u;
}

DEV void st16(void *p, const uvec &u) {
    uint16_t h[PACK];
    STORES(p, sizeof h);
    UNROLL for (int k = 0; k < PACK; k++) h[k] = static_cast<uint16_t>(u.v[k]);
    memcpy(__builtin_assume_aligned(p, 16), h, sizeof h);
}

template <class F, class... Packs> DEV uvec each(F f, const Packs &...x) {
    uvec r;
    UNROLL for (int k = 0; k < PACK; k++) r.v[k] = f(x.v[k]...);
    return r;
}
#undef LOADS
#undef STORES
#endif

// ---------------------------------------------------------------------------------------------------------------------
// Common to all three.

DEV fvec splat(float a) {
    fvec x;
    UNROLL for (int k = 0; k < PACK; k++) x[k] = a;
    return x;
}

// Sum of a pack, as a balanced tree.
DEV float pack_sum(fvec x) {
    UNROLL for (int width = PACK / 2; width > 0; width /= 2) {
        UNROLL for (int k = 0; k < width; k++) x[k] += x[k + width];
    }
    return x[0];
}

DEV float pack_max(const fvec &x) {
    float m = x[0];
    UNROLL for (int k = 1; k < PACK; k++) m = x[k] > m ? x[k] : m;
    return m;
}

// Over the 32 lanes of a warp, all of which must call; every lane gets the result.
DEV float warp_sum(float v) {
    UNROLL for (int lanes = WARP / 2; lanes > 0; lanes /= 2) v += __shfl_xor_sync(0xffffffffu, v, lanes);
    return v;
}

DEV float warp_max(float v) {
    UNROLL for (int lanes = WARP / 2; lanes > 0; lanes /= 2) {
        const float other = __shfl_xor_sync(0xffffffffu, v, lanes);
        v = other > v ? other : v;
    }
    return v;
}

// Over the threads of a block, all of which must call; every thread gets the result. They may be called again at once.
// blockDim.x must be a multiple of WARP, and the block one-dimensional.
DEV float block_sum(float v) {
    __shared__ float part[32];
    const int warps = blockDim.x / WARP;
    v = warp_sum(v);
    if (threadIdx.x % WARP == 0) part[threadIdx.x / WARP] = v;
    __syncthreads();
    float sum = 0;
    for (int w = 0; w < warps; w++) sum += part[w];
    __syncthreads();  // the next call writes part[] again
    return sum;
}

DEV float block_max(float v) {
    __shared__ float part[32];
    const int warps = blockDim.x / WARP;
    v = warp_max(v);
    if (threadIdx.x % WARP == 0) part[threadIdx.x / WARP] = v;
    __syncthreads();
    float m = part[0];
    for (int w = 1; w < warps; w++) m = part[w] > m ? part[w] : m;
    __syncthreads();
    return m;
}

// The contiguous range [begin, end) of n elements that this block owns, in whole packs: n must be a multiple of PACK.
DEV void block_range(size_t n, size_t &begin, size_t &end) {
    const size_t packs = n / PACK;
    const size_t per_block = (packs + gridDim.x - 1) / gridDim.x;
    const size_t first = per_block * blockIdx.x;
    const size_t last = first + per_block;
    begin = (first < packs ? first : packs) * PACK;
    end = (last < packs ? last : packs) * PACK;
}

#endif
