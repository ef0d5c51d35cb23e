// kernels.cu: ordered sum, binary counter, exact sum of squares, norm, and the optimizers' updates (kernels.h and
// optimizers/optimizers.h define what they compute, to the bit).
//
// Compiled without contraction into fused multiply-add (-ffp-contract=off; nvcc: -fmad=false), so that a plain C loop
// gives the same bits: the unsharded baseline of the tests is one. All are bound by memory bandwidth, and read and
// write each byte once.
#include "zero/kernels.h"
#include "zero/device.cuh"
#include "zero/master_weights.h"

static cudaLaunchConfig_t launch_config(size_t blocks, int threads, cudaStream_t stream) {
    cudaLaunchConfig_t c = {};
    c.gridDim = dim3((unsigned)blocks);
    c.blockDim = dim3((unsigned)threads);
    c.stream = stream;
    return c;
}

// ---- ordered sum ----------------------------------------------------------------------------------------------------

// The largest power of two below n.
static constexpr __host__ __device__ int below(int n) {
    int p = 1;
    while (2 * p < n) p *= 2;
    return p;
}

template <class T, int LO, int N> DEV fvec tree(const void *const *chunks, size_t i) {
    if constexpr (N == 1) {
        return ld(static_cast<const T *>(chunks[LO]) + i);
    } else {
        const fvec older = tree<T, LO, below(N)>(chunks, i);
        const fvec newer = tree<T, LO + below(N), N - below(N)>(chunks, i);
        return older + newer;
    }
}

// The same sum for up to 8 * (2^SUM_LEVELS - 1) chunks: groups of 8 are pushed onto a stack that is merged as a binary
// counter carries. The stack is in shared memory: for a local array a GPU would reserve device memory for every thread
// that it can run.
enum { SUM_LEVELS = 14, SUM_MAX_CHUNKS = 8 * ((1 << SUM_LEVELS) - 1) };
static_assert((int)SUM_MAX_CHUNKS == (int)ZERO_MAX_CHUNKS, "the stack has room for them");
constexpr int SUM_ANY_THREADS = block_threads(64);

template <class T> DEV fvec tree_any(const void *const *chunks, int n, size_t i) {
    __shared__ __align__(16) float stack[SUM_LEVELS][SUM_ANY_THREADS][PACK];
    int depth = 0;
    for (int group = 0; 8 * group < n; group++) {
        const void *const *p = chunks + 8 * group;
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

template <class T, int N>  // N: the number of chunks; -1: any number; 0: none
__global__ void __launch_bounds__(N < 0 ? SUM_ANY_THREADS : 256)
    sum_kernel(float *out, const void *const *chunks, int num_chunks, zero_partial_sums older, size_t n) {
    size_t begin, end;
    block_range(n, begin, end);
    for (size_t i = begin + threadIdx.x * PACK; i < end; i += (size_t)blockDim.x * PACK) {
        fvec x;
        int waiting = older.count;
        if constexpr (N == 0)
            x = ld(older.sum[--waiting] + i);
        else if constexpr (N < 0)
            x = tree_any<T>(chunks, num_chunks, i);
        else
            x = tree<T, 0, N>(chunks, i);
        while (waiting > 0) x = ld(older.sum[--waiting] + i) + x;
        st(out + i, x);
    }
}

static size_t sum_blocks(size_t n) {
    const size_t per_block = 4 * (size_t)block_threads(256), blocks = (n / PACK + per_block - 1) / per_block;
    return blocks < 1 ? 1 : blocks > 4096 ? 4096 : blocks;
}

template <class T>
static cudaError_t sum(float *out, const void *const *chunks, int num_chunks, zero_partial_sums older, size_t n,
                       cudaStream_t stream) {
    const size_t blocks = sum_blocks(n);
    const cudaLaunchConfig_t c = launch_config(blocks, block_threads(256), stream),
                             any = launch_config(blocks, SUM_ANY_THREADS, stream);
    if (num_chunks > SUM_MAX_CHUNKS) return cudaErrorInvalidValue;
    switch (num_chunks) {
    case 0: return cudaLaunchKernelEx(&c, sum_kernel<T, 0>, out, chunks, num_chunks, older, n);
    case 1: return cudaLaunchKernelEx(&c, sum_kernel<T, 1>, out, chunks, num_chunks, older, n);
    case 2: return cudaLaunchKernelEx(&c, sum_kernel<T, 2>, out, chunks, num_chunks, older, n);
    case 3: return cudaLaunchKernelEx(&c, sum_kernel<T, 3>, out, chunks, num_chunks, older, n);
    case 4: return cudaLaunchKernelEx(&c, sum_kernel<T, 4>, out, chunks, num_chunks, older, n);
    case 8: return cudaLaunchKernelEx(&c, sum_kernel<T, 8>, out, chunks, num_chunks, older, n);
    case 16: return cudaLaunchKernelEx(&c, sum_kernel<T, 16>, out, chunks, num_chunks, older, n);
    default: return cudaLaunchKernelEx(&any, sum_kernel<T, -1>, out, chunks, num_chunks, older, n);
    }
}

cudaError_t zero_kernel_sum(float *out, const void *const *chunks, int num_chunks, enum zero_dtype dtype,
                            zero_partial_sums older, size_t n, cudaStream_t stream) {
    return dtype == ZERO_F32 ? sum<float>(out, chunks, num_chunks, older, n, stream)
                             : sum<bf16>(out, chunks, num_chunks, older, n, stream);
}

// ---- binary counter -------------------------------------------------------------------------------------------------

template <class T, int ANY>  // the sum of `size` chunks, a power of two; ANY: it may exceed 8
DEV fvec subtree(const void *const *chunks, unsigned size, size_t i) {
    if (size == 1) return tree<T, 0, 1>(chunks, i);
    if (size == 2) return tree<T, 0, 2>(chunks, i);
    if (size == 4) return tree<T, 0, 4>(chunks, i);
    if constexpr (ANY)
        return tree_any<T>(chunks, (int)size, i);
    else
        return tree<T, 0, 8>(chunks, i);
}

// `low` leaves are in `older`, and the counter's digit `top`, a power of two, is the highest that changes. First it is
// filled: from the lowest digit of low on, a digit that is one is an older sum of as many leaves as x has, and one that
// is zero takes as many chunks. The rest, subtrees of descending size, are new partial sums.
template <class T, int ANY>
__global__ void __launch_bounds__(ANY ? SUM_ANY_THREADS : 256)
    push_kernel(zero_partial_sums out, zero_partial_sums older, unsigned low, unsigned top, const void *const *chunks,
                unsigned num_chunks, size_t n) {
    size_t begin, end;
    block_range(n, begin, end);
    for (size_t i = begin + threadIdx.x * PACK; i < end; i += (size_t)blockDim.x * PACK) {
        unsigned used = 0, has = 0, take = low ? low & -low : top, full = top;  // has: leaves in x
        int waiting = older.count, next = 0;
        fvec x = {};
        while (used < num_chunks) {
            const fvec newer = subtree<T, ANY>(chunks + used, take, i);
            x = has ? x + newer : newer;
            used += take;
            has += take;
            for (; has < full && (low & has); has *= 2) x = ld(older.sum[--waiting] + i) + x;
            take = has;
            if (has < full) continue;
            st(out.sum[next++] + i, x);  // only now: it may be one of older
            while (full > num_chunks - used) full /= 2;
            take = full;
            has = 0;
        }
    }
}

template <class T>
static cudaError_t push(zero_partial_sums out, zero_partial_sums older, unsigned low, unsigned top,
                        const void *const *chunks, unsigned num_chunks, size_t n, cudaStream_t stream) {
    const size_t blocks = sum_blocks(n);
    const cudaLaunchConfig_t c = launch_config(blocks, block_threads(256), stream),
                             any = launch_config(blocks, SUM_ANY_THREADS, stream);
    return num_chunks < 16 ? cudaLaunchKernelEx(&c, push_kernel<T, 0>, out, older, low, top, chunks, num_chunks, n)
                           : cudaLaunchKernelEx(&any, push_kernel<T, 1>, out, older, low, top, chunks, num_chunks, n);
}

cudaError_t zero_kernel_push(zero_partial_sums sums, uint64_t leaves, const void *const *chunks, int num_chunks,
                             enum zero_dtype dtype, size_t n, cudaStream_t stream) {
    const uint64_t count = (uint64_t)num_chunks, after = leaves + count;
    if (num_chunks < 1 || num_chunks > SUM_MAX_CHUNKS || after >> ZERO_MAX_PARTIAL_SUMS) return cudaErrorInvalidValue;
    const int digit = 63 - __builtin_clzll(leaves ^ after);  // the highest that changes, from 0 to 1
    const unsigned top = 1u << digit, low = (unsigned)leaves & (top - 1);
    const int kept = zero_partial_sums_kept(leaves, after);
    zero_partial_sums older = {}, out = {};
    older.count = zero_partial_sums_live(leaves) - kept;
    out.count = zero_partial_sums_live(after) - kept;
    for (int i = 0; i < older.count; i++) older.sum[i] = sums.sum[kept + i];
    for (int i = 0; i < out.count; i++) out.sum[i] = sums.sum[kept + i];
    const int one_subtree = !(count & (count - 1)) && leaves % count == 0;
    if (one_subtree) return zero_kernel_sum(out.sum[0], chunks, num_chunks, dtype, older, n, stream);
    return dtype == ZERO_F32 ? push<float>(out, older, low, top, chunks, (unsigned)num_chunks, n, stream)
                             : push<bf16>(out, older, low, top, chunks, (unsigned)num_chunks, n, stream);
}

// ---- shard groups ---------------------------------------------------------------------------------------------------

template <class T, class O, int ANY>
__global__ void __launch_bounds__(ANY ? SUM_ANY_THREADS : 256)
    group_sums_kernel(O *out, const void *const *chunks, unsigned count, unsigned leaves, size_t n, size_t part) {
    size_t begin, end;
    block_range(n, begin, end);
    for (size_t i = begin + threadIdx.x * PACK; i < end; i += (size_t)blockDim.x * PACK) {
        O *to = out + i / part * count * part + i % part;
        for (unsigned k = 0; k < count; k++) st(to + k * part, subtree<T, ANY>(chunks + k * leaves, leaves, i));
    }
}

template <class T, class O>
static cudaError_t group_sums(O *out, const void *const *chunks, unsigned count, unsigned leaves, size_t n, size_t part,
                              cudaStream_t stream) {
    const size_t blocks = sum_blocks(n);
    const cudaLaunchConfig_t c = launch_config(blocks, block_threads(256), stream),
                             any = launch_config(blocks, SUM_ANY_THREADS, stream);
    return leaves <= 8 ? cudaLaunchKernelEx(&c, group_sums_kernel<T, O, 0>, out, chunks, count, leaves, n, part)
                       : cudaLaunchKernelEx(&any, group_sums_kernel<T, O, 1>, out, chunks, count, leaves, n, part);
}

cudaError_t zero_kernel_group_sums(void *out, const void *const *chunks, int num_chunks, int leaves,
                                   enum zero_dtype dtype, size_t n, size_t part, cudaStream_t stream) {
    if (num_chunks > SUM_MAX_CHUNKS) return cudaErrorInvalidValue;
    const unsigned size = (unsigned)leaves, count = (unsigned)num_chunks / size;
    if (dtype == ZERO_F32)
        return group_sums<float, float>(static_cast<float *>(out), chunks, count, size, n, part, stream);
    if (leaves == 1) {
        const cudaLaunchConfig_t c = launch_config(sum_blocks(n), block_threads(256), stream);
        return cudaLaunchKernelEx(&c, group_sums_kernel<bf16, bf16, 0>, static_cast<bf16 *>(out), chunks, count, size,
                                  n, part);
    }
    return group_sums<bf16, float>(static_cast<float *>(out), chunks, count, size, n, part, stream);
}

__global__ void __launch_bounds__(256)
    pointers_kernel(const void **out, const void *const *chunks, int K, size_t bytes, int n) {
    for (int i = (int)threadIdx.x; i < n; i += (int)blockDim.x)
        out[i] = static_cast<const char *>(chunks[i / K]) + (size_t)(i % K) * bytes;
}

cudaError_t zero_kernel_pointers(const void **out, const void *const *chunks, int K, size_t bytes, int n,
                                 cudaStream_t stream) {
    const cudaLaunchConfig_t c = launch_config(1, block_threads(256), stream);
    return cudaLaunchKernelEx(&c, pointers_kernel, out, chunks, K, bytes, n);
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
    const cudaLaunchConfig_t c = launch_config(ZERO_SQUARE_PARTS, block_threads(256), stream);
    return cudaLaunchKernelEx(&c, square_sum_kernel, reinterpret_cast<unsigned long long *>(out), x, n);
}

// One block: warp by warp a word, lane by lane the integers. The last "word" is the first rank that made other calls.
__global__ void __launch_bounds__(256) norm_kernel(zero_norm_args a) {
    __shared__ uint64_t wide[ZERO_WIDE_WORDS + 1];
    const int lane = (int)threadIdx.x % WARP, warps = (int)blockDim.x / WARP;
    for (int d = (int)threadIdx.x / WARP; d <= ZERO_WIDE_WORDS; d += warps) {
        const bool compares = d == ZERO_WIDE_WORDS;
        unsigned long long x = compares ? a.n : 0;
        for (size_t i = (size_t)lane; i < a.n && (!compares || a.stride == ZERO_NORM_WORDS); i += WARP) {
            const unsigned long long word = a.wide[i * a.stride + (size_t)d];
            x = !compares ? x + word : word != a.calls && i < x ? i : x;
        }
        UNROLL for (int w = WARP / 2; w > 0; w /= 2) {
            const unsigned long long y = __shfl_xor_sync(0xffffffffu, x, w);
            x = !compares ? x + y : y < x ? y : x;
        }
        if (lane == 0) wide[d] = x;
    }
    __syncthreads();
    if (threadIdx.x != 0) return;
    const size_t other = wide[ZERO_WIDE_WORDS];
    zero_wide_normalize(wide);
    if (a.row) {
        for (int d = 0; d < ZERO_WIDE_WORDS; d++) a.row[d] = wide[d];
        a.row[ZERO_WIDE_WORDS] = other < a.n ? ~a.calls : a.calls;
    }
    if (!a.decision) return;
    zero_decision decision = zero_wide_decide(wide, a.weight, a.max_norm);
    if (other < a.n) {
        decision.skip = 1;
        decision.other = (int)other;
    }
    *a.decision = decision;
}

cudaError_t zero_kernel_norm(zero_norm_args args, cudaStream_t stream) {
    const cudaLaunchConfig_t c = launch_config(1, block_threads(256), stream);
    return cudaLaunchKernelEx(&c, norm_kernel, args);
}

// ---- moving average of the weights ----------------------------------------------------------------------------------

__global__ void __launch_bounds__(256) exchange_ema_kernel(float *params, float *ema, int, size_t n) {
    size_t begin, end;
    block_range(n, begin, end);
    for (size_t i = begin + threadIdx.x * PACK; i < end; i += (size_t)blockDim.x * PACK) {
        const fvec param = ld(params + i);
        st(params + i, ld(ema + i));
        st(ema + i, param);
    }
}

__global__ void __launch_bounds__(256) exchange_ema_kernel(bf16 *params, float *ema, int back, size_t n) {
    size_t begin, end;
    block_range(n, begin, end);
    for (size_t i = begin + threadIdx.x * PACK; i < end; i += (size_t)blockDim.x * PACK) {
        const uvec param = ld16(params + i), word = bits(ld(ema + i));
        if (back) {
            st16(params + i, each([](auto w) { return w >> 16; }, word));
            st(ema + i, from_bits(each([](auto p, auto w) { return zero_master_join(p, w & 0xffff); }, param, word)));
        } else {
            st16(params + i, each([](auto w) { return zero_master_round(w); }, word));
            st(ema + i, from_bits(each([](auto p, auto w) { return p << 16 | (w & 0xffff); }, param, word)));
        }
    }
}

cudaError_t zero_kernel_exchange_ema(void *params, float *ema, enum zero_dtype dtype, int back, size_t n,
                                     cudaStream_t stream) {
    const cudaLaunchConfig_t c = launch_config(sum_blocks(n), block_threads(256), stream);
    return dtype == ZERO_F32 ? cudaLaunchKernelEx(&c, (void (*)(float *, float *, int, size_t))exchange_ema_kernel,
                                                  static_cast<float *>(params), ema, back, n)
                             : cudaLaunchKernelEx(&c, (void (*)(bf16 *, float *, int, size_t))exchange_ema_kernel,
                                                  static_cast<bf16 *>(params), ema, back, n);
}

// ---- self-check -----------------------------------------------------------------------------------------------------

// out = a * b + c of one pack each, from x = a, b, c, out.
__global__ void __launch_bounds__(32) rounding_kernel(float *x) {
    if (threadIdx.x == 0) st(x + 3 * PACK, ld(x) * ld(x + PACK) + ld(x + 2 * PACK));
}

cudaError_t zero_kernel_check_rounding(int *contracts, cudaStream_t stream) {
    // (1 + 2^-12)^2 = 1 + 2^-11 + 2^-24, which rounds to 1 + 2^-11: if the product is rounded, nothing is left.
    float x[4 * PACK], *device = NULL;
    for (int i = 0; i < 4 * PACK; i++) x[i] = i < 2 * PACK ? 1 + 0x1p-12f : -(1 + 0x1p-11f);
    const cudaLaunchConfig_t c = launch_config(1, block_threads(32), stream);
    cudaError_t e = cudaMalloc(reinterpret_cast<void **>(&device), sizeof x);
    if (e == cudaSuccess) e = cudaMemcpyAsync(device, x, sizeof x, cudaMemcpyHostToDevice, stream);
    if (e == cudaSuccess) e = cudaLaunchKernelEx(&c, rounding_kernel, device);
    if (e == cudaSuccess) e = cudaMemcpyAsync(x, device, sizeof x, cudaMemcpyDeviceToHost, stream);
    if (e == cudaSuccess) e = cudaStreamSynchronize(stream);
    (void)cudaFree(device);
    *contracts = x[3 * PACK] != 0;
    return e;
}

// ---- optimizers -----------------------------------------------------------------------------------------------------

#include "zero/optimizers/optimizers.cuh"
