// kernels.cu: ordered sum, exact sum of squares, fused AdamW (kernels.h says what they compute, to the bit).
//
// Compiled without contraction into fused multiply-add (-ffp-contract=off, -fmad=false), so that a plain C loop gives
// the same bits: that is what the unsharded baseline of the tests is. All three are bound by memory bandwidth, and read
// and write each byte once.
#include "zero/kernels.h"
#include "zero/device.cuh"
#include "zero/split_master.h"

static cudaLaunchConfig_t launch(size_t blocks, int threads, cudaStream_t stream) {
    cudaLaunchConfig_t c = {};
    c.gridDim = dim3((unsigned)blocks);
    c.blockDim = dim3((unsigned)threads);
    c.stream = stream;
    return c;
}

// ---- ordered sum ----------------------------------------------------------------------------------------------------

static constexpr __host__ __device__ int below(int n)  // the largest power of two below n
{
    int p = 1;
    while (2 * p < n) p *= 2;
    return p;
}

template <class T, int LO, int N> DEV fvec tree(const void *const *pieces, size_t i) {
    if constexpr (N == 1) {
        return ld(static_cast<const T *>(pieces[LO]) + i);
    } else {
        const fvec older = tree<T, LO, below(N)>(pieces, i);
        const fvec newer = tree<T, LO + below(N), N - below(N)>(pieces, i);
        return older + newer;
    }
}

// The same sum for up to 8 * (2^SUM_LEVELS - 1) pieces: groups of 8 are pushed on a stack that is merged as a binary
// counter carries. Each thread has its stack in shared memory: as a local array, a GPU would have to set aside device
// memory for it, for every thread that it can run.
enum { SUM_LEVELS = 14 };
constexpr int SUM_ANY_THREADS = block_threads(64);

template <class T> DEV fvec tree_any(const void *const *pieces, int n, size_t i) {
    __shared__ __align__(16) float stack[SUM_LEVELS][SUM_ANY_THREADS][PACK];
    int depth = 0;
    for (int group = 0; 8 * group < n; group++) {
        const void *const *p = pieces + 8 * group;
        fvec x;
        switch (n - 8 * group) {
        case 1: x = tree<T, 0, 1>(p, i); break;
        case 2: x = tree<T, 0, 2>(p, i); break;
        case 3: x = tree<T, 0, 3>(p, i); break;
        case 4: x = tree<T, 0, 4>(p, i); break;
        case 5: x = tree<T, 0, 5>(p, i); break;
        case 6: x = tree<T, 0, 6>(p, i); break;
        case 7: x = tree<T, 0, 7>(p, i); break;
        default: x = tree<T, 0, 8>(p, i); break;
        }
        for (int carry = group; carry & 1; carry >>= 1) x = ld(stack[--depth][threadIdx.x]) + x;
        st(stack[depth++][threadIdx.x], x);
    }
    fvec sum = ld(stack[--depth][threadIdx.x]);
    while (depth > 0) sum = ld(stack[--depth][threadIdx.x]) + sum;
    return sum;
}

template <class T, int N>  // N: the number of pieces; -1: num_pieces; 0: none
__global__ void __launch_bounds__(N < 0 ? SUM_ANY_THREADS : 256)
    sum_kernel(float *out, const void *const *pieces, int num_pieces, zero_partial_sums older, size_t n) {
    size_t begin, end;
    block_range(n, begin, end);
    for (size_t i = begin + threadIdx.x * PACK; i < end; i += (size_t)blockDim.x * PACK) {
        fvec x;
        int slots = older.count;
        if constexpr (N == 0)
            x = ld(older.slot[--slots] + i);
        else if constexpr (N < 0)
            x = tree_any<T>(pieces, num_pieces, i);
        else
            x = tree<T, 0, N>(pieces, i);
        while (slots > 0) x = ld(older.slot[--slots] + i) + x;
        st(out + i, x);
    }
}

template <class T>
static cudaError_t sum(float *out, const void *const *pieces, int num_pieces, zero_partial_sums older, size_t n,
                       cudaStream_t stream) {
    const size_t packs = n / PACK;
    const size_t per_block = 4 * (size_t)block_threads(256);
    size_t blocks = (packs + per_block - 1) / per_block;
    blocks = blocks < 1 ? 1 : blocks > 4096 ? 4096 : blocks;
    const cudaLaunchConfig_t c = launch(blocks, block_threads(256), stream),
                             any = launch(blocks, SUM_ANY_THREADS, stream);
    if (num_pieces > 8 * ((1 << SUM_LEVELS) - 1)) return cudaErrorInvalidValue;
    switch (num_pieces) {
    case 0: return cudaLaunchKernelEx(&c, sum_kernel<T, 0>, out, pieces, num_pieces, older, n);
    case 1: return cudaLaunchKernelEx(&c, sum_kernel<T, 1>, out, pieces, num_pieces, older, n);
    case 2: return cudaLaunchKernelEx(&c, sum_kernel<T, 2>, out, pieces, num_pieces, older, n);
    case 3: return cudaLaunchKernelEx(&c, sum_kernel<T, 3>, out, pieces, num_pieces, older, n);
    case 4: return cudaLaunchKernelEx(&c, sum_kernel<T, 4>, out, pieces, num_pieces, older, n);
    case 8: return cudaLaunchKernelEx(&c, sum_kernel<T, 8>, out, pieces, num_pieces, older, n);
    case 16: return cudaLaunchKernelEx(&c, sum_kernel<T, 16>, out, pieces, num_pieces, older, n);
    default: return cudaLaunchKernelEx(&any, sum_kernel<T, -1>, out, pieces, num_pieces, older, n);
    }
}

cudaError_t zero_kernel_sum(float *out, const void *const *pieces, int num_pieces, enum zero_dtype dtype,
                            zero_partial_sums older, size_t n, cudaStream_t stream) {
    return dtype == ZERO_F32 ? sum<float>(out, pieces, num_pieces, older, n, stream)
                             : sum<bf16>(out, pieces, num_pieces, older, n, stream);
}

// ---- exact sum of squares -------------------------------------------------------------------------------------------

// On the CPU a block is one thread, and needs no locked instruction.
DEV void digit_add(unsigned long long *digit, unsigned long long x) {
    if (blockDim.x == 1)
        *digit += x;
    else
        atomicAdd(digit, x);
}

// Add a non-negative double to a wide integer: its 53-bit mantissa, shifted, touches at most three digits.
DEV void wide_add(unsigned long long *wide, double s) {
    unsigned long long bits;
    memcpy(&bits, &s, sizeof bits);
    const int exponent = (int)(bits >> 52 & 0x7ff);
    unsigned long long mantissa = bits & 0xfffffffffffffull;
    if (exponent == 0x7ff) {
        digit_add(&wide[mantissa ? ZERO_WIDE_NAN : ZERO_WIDE_INF], 1ull);
        return;
    }
    if (exponent == 0) return;  // zero: squares of fp32 are at least 2^-298, far above double's subnormals
    mantissa |= 1ull << 52;
    int at = exponent - 1075 + ZERO_WIDE_BIAS;  // s = mantissa * 2^(exponent - 1075)
    if (at < 0) {                               // exact: all terms are multiples of 2^-298, so the low bits are zero
        mantissa >>= -at;
        at = 0;
    }
    const int digit = at / 32, shift = at % 32;
    const unsigned long long low = (mantissa & 0xffffffffull) << shift, high = (mantissa >> 32) << shift;
    digit_add(&wide[digit], low & 0xffffffffull);
    digit_add(&wide[digit + 1], (low >> 32) + (high & 0xffffffffull));
    digit_add(&wide[digit + 2], high >> 32);
}

__global__ void __launch_bounds__(256) square_sum_kernel(unsigned long long *out, const float *x, size_t n) {
    __shared__ unsigned long long wide[ZERO_WIDE_WORDS];
    for (int d = (int)threadIdx.x; d < ZERO_WIDE_WORDS; d += (int)blockDim.x) wide[d] = 0;
    __syncthreads();
    const size_t blocks = n / 64, per_part = (blocks + gridDim.x - 1) / gridDim.x, begin = per_part * blockIdx.x;
    const size_t end = begin + per_part < blocks ? begin + per_part : blocks;
    for (size_t b = begin + threadIdx.x; b < end; b += blockDim.x) {
        double lane[PACK] = {};
        UNROLL
        for (int i = 0; i < 64; i += PACK) {
            const fvec v = ld(x + 64 * b + i);
            UNROLL
            for (int k = 0; k < PACK; k++) lane[k] += (double)v[k] * (double)v[k];
        }
        UNROLL
        for (int w = PACK / 2; w > 0; w /= 2) {
            UNROLL
            for (int k = 0; k < w; k++) lane[k] += lane[k + w];
        }
        wide_add(wide, lane[0]);
    }
    __syncthreads();
    for (int d = (int)threadIdx.x; d < ZERO_WIDE_WORDS; d += (int)blockDim.x)
        out[blockIdx.x * ZERO_WIDE_WORDS + d] = wide[d];
}

cudaError_t zero_kernel_square_sum(uint64_t *out, const float *x, size_t n, cudaStream_t stream) {
    static_assert(sizeof(uint64_t) == sizeof(unsigned long long), "CUDA's atomics are on unsigned long long");
    const cudaLaunchConfig_t c = launch(ZERO_SQUARE_PARTS, block_threads(256), stream);
    return cudaLaunchKernelEx(&c, square_sum_kernel, reinterpret_cast<unsigned long long *>(out), x, n);
}

// ---- AdamW ----------------------------------------------------------------------------------------------------------

// The weights that AdamW reads and writes: a pack of fp32 from whatever they are kept as, and back.
template <enum zero_master MODE> DEV fvec ld_weights(const float *p, const void *, size_t) { return ld(p); }
template <enum zero_master MODE>
DEV void st_weights(float *p, void *, size_t, const fvec &w, const zero_adamw_args &, size_t) {
    st(p, w);
}

template <enum zero_master MODE> DEV fvec ld_weights(const bf16 *p, const void *master, size_t at) {
    if constexpr (MODE == ZERO_MASTER_FP32) {
        return ld(static_cast<const float *>(master) + at);
    } else if constexpr (MODE == ZERO_MASTER_NONE) {
        return ld(p);
    } else {
        const uvec low = ld16(static_cast<const uint16_t *>(master) + at);
        return from_bits(each([](auto param, auto low) { return zero_master_join(param, low); }, ld16(p), low));
    }
}

template <enum zero_master MODE>
DEV void st_weights(bf16 *p, void *master, size_t at, const fvec &w, const zero_adamw_args &a, size_t logical) {
    if constexpr (MODE == ZERO_MASTER_NONE) {
        alignas(16) uint16_t random[PACK];
        zero_master_random(random, a.seed, a.t, logical);
        st16(p, each([](auto word, auto random) { return zero_master_round_stochastic(word, random); }, bits(w),
                     ld16(random)));
    } else {
        st16(p, each([](auto word) { return zero_master_round(word); }, bits(w)));
        if constexpr (MODE == ZERO_MASTER_FP32)
            st(static_cast<float *>(master) + at, w);
        else
            st16(static_cast<uint16_t *>(master) + at, bits(w));
    }
}

template <class P, enum zero_master MODE>
__global__ void __launch_bounds__(256) adamw_kernel(P *params, void *master, float *m, float *v, const float *grads,
                                                    const zero_optimizer_chunk *tiles, zero_adamw_args a) {
    const zero_optimizer_chunk t = tiles[blockIdx.x];
    const float decay = t.decay ? a.weight_decay : 0.0f;
    P *p = params + t.param;
    float *ms = m + t.state, *vs = v + t.state;
    const float *gs = grads + t.grad;
    for (size_t i = threadIdx.x * PACK; i < t.count; i += (size_t)blockDim.x * PACK) {
        const fvec g = ld(gs + i) * a.scale;
        const fvec mi = a.beta1 * ld(ms + i) + (1.0f - a.beta1) * g;
        const fvec vi = a.beta2 * ld(vs + i) + ((1.0f - a.beta2) * g) * g;
        fvec w = ld_weights<MODE>(p + i, master, t.state + i);
        w = w - a.lr * ((mi / a.correction1) / (vsqrt(vi / a.correction2) + a.eps) + decay * w);
        st(ms + i, mi);
        st(vs + i, vi);
        st_weights<MODE>(p + i, master, t.state + i, w, a, t.logical + i);
    }
}

template <class P, enum zero_master MODE>
static cudaError_t adamw(void *params, void *master, float *m, float *v, const float *grads,
                         const zero_optimizer_chunk *tiles, size_t num_tiles, zero_adamw_args a, cudaStream_t stream) {
    const cudaLaunchConfig_t c = launch(num_tiles, block_threads(256), stream);
    return cudaLaunchKernelEx(&c, adamw_kernel<P, MODE>, static_cast<P *>(params), master, m, v, grads, tiles, a);
}

cudaError_t zero_kernel_adamw(void *params, enum zero_dtype dtype, enum zero_master mode, void *master, float *m,
                              float *v, const float *grads, const zero_optimizer_chunk *tiles, size_t n,
                              zero_adamw_args a, cudaStream_t stream) {
    if (!n) return cudaSuccess;
    if (dtype == ZERO_F32) return adamw<float, ZERO_MASTER_FP32>(params, master, m, v, grads, tiles, n, a, stream);
    if (mode == ZERO_MASTER_FP32)
        return adamw<bf16, ZERO_MASTER_FP32>(params, master, m, v, grads, tiles, n, a, stream);
    if (mode == ZERO_MASTER_SPLIT)
        return adamw<bf16, ZERO_MASTER_SPLIT>(params, master, m, v, grads, tiles, n, a, stream);
    return adamw<bf16, ZERO_MASTER_NONE>(params, master, m, v, grads, tiles, n, a, stream);
}
