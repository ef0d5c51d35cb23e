// What kernels may rely on: zero/device.cuh, and the part of CUDA that dev/device/cpu imitates, compared with plain
// loops on the host.
//
// The same file runs on all three devices. On a GPU it tests device.cuh; on the CPU, in both builds, it tests that
// dev/device/cpu behaves like a GPU.
#include "test/harness/harness.h"
#include "zero/device.cuh"

#include <stdio.h>
#include <stdlib.h>
#if defined(CUDA_ON_CPU) && !defined(CUDA_ON_CPU_EMULATED)
#include <omp.h>
#endif

#define CUDA(call) CHECK((call) == cudaSuccess)

static uint32_t random_bits() {
    static uint64_t state = 0x9e3779b97f4a7c15ull;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return static_cast<uint32_t>(state >> 32);
}

static float as_float(uint32_t u) {
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static uint32_t as_bits(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

template <class T> static T *device_array(size_t n, const T *host) {
    void *p = nullptr;
    CUDA(cudaMalloc(&p, n * sizeof(T)));
    if (host)
        CUDA(cudaMemcpy(p, host, n * sizeof(T), cudaMemcpyHostToDevice));
    else
        CUDA(cudaMemset(p, 0, n * sizeof(T)));
    CUDA(cudaStreamSynchronize(nullptr));  // cudaMemset does not wait, and other streams may not either
    return static_cast<T *>(p);
}

template <class T> static void take_back(T *host, T *device, size_t n) {
    CUDA(cudaMemcpy(host, device, n * sizeof(T), cudaMemcpyDeviceToHost));
    CUDA(cudaFree(device));
}

static cudaLaunchConfig_t config_of(dim3 grid, dim3 block, size_t shared) {
    cudaLaunchConfig_t c = {};
    c.gridDim = grid;
    c.blockDim = block;
    c.dynamicSmemBytes = shared;
    return c;
}

// ---------------------------------------------------------------------------------------------------------------------
// Packs

template <class To, class From> __global__ void __launch_bounds__(256) convert(To *out, const From *in, size_t n) {
    size_t begin, end;
    block_range(n, begin, end);
    for (size_t i = begin + threadIdx.x * PACK; i < end; i += blockDim.x * PACK) st(out + i, ld(in + i));
}

// The bf16 nearest to f, ties to even, found by comparing distances rather than by arithmetic on the bits.
static uint16_t nearest_bf16(float f) {
    if (f != f) return 0x7fff;
    const uint32_t below = as_bits(f) & 0xffff0000u;  // toward zero
    const uint64_t above = static_cast<uint64_t>(below) + 0x10000;
    const double x = fabs(static_cast<double>(f)), lo = fabs(static_cast<double>(as_float(below)));
    const double last = 3.3895313892515355e38, step = ldexp(1.0, 120);  // the largest bf16, and one more step
    const double hi = lo == last ? last + step : fabs(static_cast<double>(as_float(static_cast<uint32_t>(above))));
    if (isinf(f) || x - lo < hi - x) return static_cast<uint16_t>(below >> 16);
    if (x - lo > hi - x) return static_cast<uint16_t>(above >> 16);
    return static_cast<uint16_t>((below >> 16 & 1 ? above : below) >> 16);
}

static void bf16_is_rounded_to_nearest_even() {
    const size_t n = 1 << 16;
    float *host = new float[n];
    bf16 *rounded = new bf16[n];
    // and ties
    for (size_t i = 0; i < n; i++) host[i] = as_float(i % 4 ? random_bits() : random_bits() << 16 | 0x8000);
    host[0] = INFINITY;
    host[1] = as_float(0x7f7fffffu);
    host[2] = as_float(0x7f800001u);  // a NaN that truncation would make infinite
    host[3] = as_float(0xff7f8000u);
    host[4] = as_float(1);
    const cudaLaunchConfig_t c = config_of(7, block_threads(256), 0);
    float *in = device_array(n, host);
    bf16 *out = device_array<bf16>(n, nullptr);
    CUDA(cudaLaunchKernelEx(&c, convert<bf16, float>, out, static_cast<const float *>(in), n));
    take_back(rounded, out, n);
    take_back(host, in, n);
    size_t wrong = 0;
    for (size_t i = 0; i < n; i++) {
        uint16_t bits, on_host;
        const bf16 h = __float2bfloat16_rn(host[i]);
        memcpy(&bits, &rounded[i], sizeof bits);
        memcpy(&on_host, &h, sizeof on_host);
        wrong += bits != nearest_bf16(host[i]) || on_host != bits;
    }
    CHECK(wrong == 0);
    delete[] host;
    delete[] rounded;
}

static void bf16_to_float_is_exact() {
    const size_t n = 1 << 16;
    bf16 *host = new bf16[n];
    float *wide = new float[n];
    for (size_t i = 0; i < n; i++) {
        const uint16_t bits = static_cast<uint16_t>(i);
        memcpy(static_cast<void *>(&host[i]), &bits, sizeof bits);
    }
    const cudaLaunchConfig_t c = config_of(3, block_threads(64), 0);
    bf16 *in = device_array(n, host);
    float *out = device_array<float>(n, nullptr);
    CUDA(cudaLaunchKernelEx(&c, convert<float, bf16>, out, static_cast<const bf16 *>(in), n));
    take_back(wide, out, n);
    take_back(host, in, n);
    size_t wrong = 0;
    for (size_t i = 0; i < n; i++) wrong += as_bits(wide[i]) != static_cast<uint32_t>(i) << 16;
    CHECK(wrong == 0);
    delete[] host;
    delete[] wide;
}

__global__ void __launch_bounds__(256) exp_kernel(float *out, const float *in, size_t n) {
    size_t begin, end;
    block_range(n, begin, end);
    for (size_t i = begin + threadIdx.x * PACK; i < end; i += blockDim.x * PACK) st(out + i, vexp(ld(in + i)));
}

static void exp_is_within_two_ulp() {
    const size_t n = 1 << 16;
    float *x = new float[n], *y = new float[n];
    for (size_t i = 0; i < n; i++) x[i] = -87.0f + 175.0f * static_cast<float>(i) / static_cast<float>(n - 1);
    const float special[] = { 0.0f, -0.0f, -INFINITY, INFINITY, -1000.0f, 1000.0f, NAN, -120.0f };
    memcpy(x, special, sizeof special);
    const cudaLaunchConfig_t c = config_of(5, block_threads(128), 0);
    float *in = device_array(n, x), *out = device_array<float>(n, nullptr);
    CUDA(cudaLaunchKernelEx(&c, exp_kernel, out, static_cast<const float *>(in), n));
    take_back(y, out, n);
    take_back(x, in, n);
    CHECK(y[0] == 1 && y[1] == 1 && y[2] == 0 && isinf(y[3]) && y[4] == 0 && isinf(y[5]) && y[6] != y[6] && y[7] == 0);
    double worst = 0;
    for (size_t i = sizeof special / sizeof *special; i < n; i++) {
        const double exact = exp(static_cast<double>(x[i])), ulp = ldexp(1.0, ilogb(exact) - 23);
        worst = fmax(worst, fabs(static_cast<double>(y[i]) - exact) / ulp);
    }
    CHECK(worst <= 2);
    delete[] x;
    delete[] y;
}

// out: 12 packs of results, then pack_sum and pack_max.
__global__ void __launch_bounds__(32) pack_kernel(float *out, const float *a, const float *b) {
    if (threadIdx.x > 0) return;
    const fvec x = ld(a), y = ld(b);
    fvec u = x, v = x, w = x;
    u += y;
    v -= 2.0f;
    w *= y;
    w /= 2.0f;
    const fvec results[12] = { x + y, x - y, x * y, x / y, x + 2.0f, 2.0f - x, -x, vsqrt(y), vmax(x, y), u, v, w };
    for (int i = 0; i < 12; i++) st(out + i * PACK, results[i]);
    out[12 * PACK] = pack_sum(x);
    out[12 * PACK + 1] = pack_max(x);
}

static void packs_compute_as_floats_do() {
    float a[PACK], b[PACK], r[12 * PACK + 2];
    for (int k = 0; k < PACK; k++) {
        a[k] = static_cast<float>(static_cast<int32_t>(random_bits())) * 1e-6f;
        b[k] = static_cast<float>(random_bits()) * 1e-6f + 1;
    }
    const cudaLaunchConfig_t c = config_of(1, block_threads(32), 0);
    float *pa = device_array(PACK, a), *pb = device_array(PACK, b), *out = device_array<float>(12 * PACK + 2, nullptr);
    CUDA(cudaLaunchKernelEx(&c, pack_kernel, out, static_cast<const float *>(pa), static_cast<const float *>(pb)));
    take_back(r, out, 12 * PACK + 2);
    CUDA(cudaFree(pa));
    CUDA(cudaFree(pb));
    float largest = a[0];
    for (int k = 0; k < PACK; k++) {
        const float x = a[k], y = b[k];
        const float expected[12] = { x + y, x - y,    x * y,       x / y, x + 2, 2 - x,
                                     -x,    sqrtf(y), fmaxf(x, y), x + y, x - 2, x * y / 2 };
        for (int i = 0; i < 12; i++) CHECK(r[i * PACK + k] == expected[i]);
        largest = fmaxf(largest, x);
    }
    CHECK(r[12 * PACK] == ((a[0] + a[4]) + (a[2] + a[6])) + ((a[1] + a[5]) + (a[3] + a[7])));
    CHECK(r[12 * PACK + 1] == largest);
}

// ---------------------------------------------------------------------------------------------------------------------
// Warps and blocks

__global__ void __launch_bounds__(1024) sums_kernel(float *out, int rounds) {
    const size_t thread = blockIdx.x * blockDim.x + threadIdx.x;
    float ok = 1;
    for (int round = 0; round < rounds; round++) {
        const float t = static_cast<float>(threadIdx.x + round), n = static_cast<float>(blockDim.x);
        const float sum = n * (n - 1) / 2 + n * static_cast<float>(round);
        if (block_sum(t) != sum) ok = 0;
        if (block_max(-t) != -static_cast<float>(round)) ok = 0;
        if (block_max(t) != n - 1 + static_cast<float>(round)) ok = 0;
    }
    const float lane = static_cast<float>(threadIdx.x % WARP);
    if (warp_sum(lane) != static_cast<float>(WARP * (WARP - 1) / 2) || warp_max(lane) != static_cast<float>(WARP - 1))
        ok = 0;
    out[thread] = ok;
}

static void every_thread_gets_the_sum() {
    static const int sizes[] = { 32, 64, 256, 1024 };
    for (int size : sizes) {
        const size_t n = 3 * static_cast<size_t>(block_threads(size));
        float ok[3 * 1024];
        float *out = device_array<float>(n, nullptr);
        const cudaLaunchConfig_t c = config_of(3, block_threads(size), 0);
        CUDA(cudaLaunchKernelEx(&c, sums_kernel, out, 5));
        take_back(ok, out, n);
        for (size_t i = 0; i < n; i++) CHECK(ok[i] == 1);
    }
}

__global__ void __launch_bounds__(256) shuffle_kernel(int *out, int width, int arg) {
    const int t = threadIdx.x, v = 100 + t;
    int *mine = out + t * 4;
    mine[0] = __shfl_sync(0xffffffffu, v, arg, width);
    mine[1] = __shfl_xor_sync(0xffffffffu, v, arg, width);
    mine[2] = __shfl_down_sync(0xffffffffu, v, arg, width);
    mine[3] = __shfl_up_sync(0xffffffffu, v, arg, width);
}

static void shuffles_read_the_named_lane() {
    const int N = block_threads(64);
    for (int width = 1; width <= WARP; width *= 2) {
        for (int arg = 0; arg < width; arg += width / 4 + 1) {
            int got[64 * 4];
            int *out = device_array<int>(N * 4, nullptr);
            const cudaLaunchConfig_t c = config_of(1, N, 0);
            CUDA(cudaLaunchKernelEx(&c, shuffle_kernel, out, width, arg));
            take_back(got, out, N * 4);
            for (int t = 0; t < N; t++) {
                const int first = t / width * width, end = first + width;
                CHECK(got[t * 4] == 100 + first + arg);
                CHECK(got[t * 4 + 1] == 100 + (t ^ arg));
                CHECK(got[t * 4 + 2] == 100 + (t + arg < end ? t + arg : t));
                CHECK(got[t * 4 + 3] == 100 + (t - arg >= first ? t - arg : t));
            }
        }
    }
}

__global__ void __launch_bounds__(256) range_kernel(unsigned *count, size_t n) {
    size_t begin, end;
    block_range(n, begin, end);
    for (size_t i = begin + threadIdx.x * PACK; i < end; i += blockDim.x * PACK) {
        for (int k = 0; k < PACK; k++) atomicAdd(count + i + k, 1u);
    }
}

static void block_range_owns_every_element_once() {
    static const size_t sizes[] = { 0, 8, 16, 64, 1000, 4096, 4104 };
    for (size_t n : sizes) {
        for (unsigned blocks = 1; blocks < 200; blocks = blocks * 3 + 1) {
            unsigned count[4104 + PACK] = {};
            unsigned *device = device_array<unsigned>(n + PACK, nullptr);
            const cudaLaunchConfig_t c = config_of(blocks, block_threads(64), 0);
            CUDA(cudaLaunchKernelEx(&c, range_kernel, device, n));
            take_back(count, device, n + PACK);
            for (size_t i = 0; i < n + PACK; i++) CHECK(count[i] == (i < n));
        }
    }
}

struct three {
    int a, b, c;
};

// Also: arguments are converted to the kernel's types, and structs are passed by value.
__global__ void __launch_bounds__(256) visit_kernel(unsigned *count, size_t one, three s) {
    const size_t block = (static_cast<size_t>(blockIdx.z) * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    const size_t thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    const size_t threads = blockDim.x * blockDim.y * blockDim.z;
    atomicAdd(count + block * threads + thread,
              static_cast<unsigned>(one) + static_cast<unsigned>(s.a + s.b + s.c - 6));
}

static void every_thread_of_a_grid_runs_once() {
    const dim3 grid(5, 3, 2), block = WARP == 1 ? dim3(1) : dim3(8, 4, 2);
    const size_t n = static_cast<size_t>(30) * block.x * block.y * block.z;
    unsigned count[30 * 64];
    unsigned *device = device_array<unsigned>(n, nullptr);
    const cudaLaunchConfig_t c = config_of(grid, block, 0);
    const three s = { 1, 2, 3 };
    CUDA(cudaLaunchKernelEx(&c, visit_kernel, device, 1, s));
    take_back(count, device, n);
    for (size_t i = 0; i < n; i++) CHECK(count[i] == 1);
}

// Each block fills its own shared memory with its number, and finds it again after a barrier.
__global__ void __launch_bounds__(256) shared_kernel(int *ok, int n) {
    DYNAMIC_SHARED(int, s);
    for (int i = threadIdx.x; i < n; i += blockDim.x) s[i] = static_cast<int>(blockIdx.x) * n + i;
    __syncthreads();
    int good = 1;
    for (int i = 0; i < n; i++) good &= s[i] == static_cast<int>(blockIdx.x) * n + i;
    if (threadIdx.x == 0) ok[blockIdx.x] = good;
}

static void dynamic_shared_memory_belongs_to_the_block() {
    for (int n = 1; n <= 20000; n *= 20) {
        int ok[40];
        int *device = device_array<int>(40, nullptr);
        const size_t bytes = static_cast<size_t>(n) * sizeof(int);
        const cudaLaunchConfig_t c = config_of(40, block_threads(32), bytes);
        CUDA(cudaFuncSetAttribute(shared_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
        CUDA(cudaLaunchKernelEx(&c, shared_kernel, device, n));
        take_back(ok, device, 40);
        for (int i = 0; i < 40; i++) CHECK(ok[i] == 1);
    }
}

static void a_launch_that_cannot_be_is_an_error() {
    int *device = device_array<int>(1, nullptr);
    cudaLaunchConfig_t c = config_of(1, 2048, 0);
    CHECK(cudaLaunchKernelEx(&c, shared_kernel, device, 1) != cudaSuccess);
    CHECK(cudaGetLastError() != cudaSuccess);
    CHECK(cudaGetLastError() == cudaSuccess);
    c = config_of(0, block_threads(32), 0);
    CHECK(cudaLaunchKernelEx(&c, shared_kernel, device, 1) != cudaSuccess);
    CHECK(cudaGetLastError() != cudaSuccess);
    CUDA(cudaFree(device));
}

// ---------------------------------------------------------------------------------------------------------------------
// Memory, streams, events

static void memory_is_aligned_and_copied() {
    static const size_t sizes[] = { 1, 100, 4096, (size_t)3 << 20 };
    void *p = nullptr;
    size_t free_bytes = 0, total_bytes = 0;
    for (size_t bytes : sizes) {
        CUDA(cudaMalloc(&p, bytes));
        CHECK(reinterpret_cast<uintptr_t>(p) % 256 == 0);
        CUDA(cudaMemset(p, 1, bytes));
        CUDA(cudaFree(p));
    }
    CUDA(cudaFree(nullptr));
    CUDA(cudaMemGetInfo(&free_bytes, &total_bytes));
    CHECK(free_bytes > 0 && free_bytes <= total_bytes);

    char rows[3][10], packed[3][4];
    for (int i = 0; i < 30; i++) rows[i / 10][i % 10] = static_cast<char>(i);
    char *device = device_array(sizeof rows, &rows[0][0]);
    CUDA(cudaMemcpy2DAsync(packed, 4, device + 2, 10, 4, 3, cudaMemcpyDeviceToHost, nullptr));
    CUDA(cudaStreamSynchronize(nullptr));
    for (int i = 0; i < 12; i++) CHECK(packed[i / 4][i % 4] == i / 4 * 10 + 2 + i % 4);
    CUDA(cudaFree(device));
}

static void too_large_an_allocation_is_an_error() {
    void *p = &p;
    CHECK(cudaMalloc(&p, (size_t)1 << 60) == cudaErrorMemoryAllocation);
    CHECK(cudaGetLastError() == cudaErrorMemoryAllocation);
    CHECK(cudaPeekAtLastError() == cudaSuccess);
    CHECK(strcmp(cudaGetErrorName(cudaErrorMemoryAllocation), "cudaErrorMemoryAllocation") == 0);
    CHECK(strlen(cudaGetErrorString(cudaErrorInvalidConfiguration)) > 0);
}

#ifdef CUDA_ON_CPU
static void call_cuda(void *p) { *static_cast<cudaError_t *>(p) = cudaStreamSynchronize(NULL); }
#endif
static void set_to_seven(void *p) { *static_cast<int *>(p) = 7; }

static void events_order_streams() {
    cudaStream_t a = nullptr, b = nullptr;
    cudaEvent_t start = nullptr, end = nullptr;
    float ms = -1;
    int seven = 0, host = 0;
    int *device = device_array<int>(1, nullptr);
    CUDA(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking));
    CUDA(cudaStreamCreate(&b));
    CUDA(cudaEventCreate(&start));
    CUDA(cudaEventCreate(&end));
    CHECK(cudaEventElapsedTime(&ms, start, end) != cudaSuccess);
    (void)cudaGetLastError();
    CUDA(cudaEventQuery(start));  // never recorded: nothing to wait for
    CUDA(cudaEventRecord(start, a));
    CUDA(cudaMemsetAsync(device, 1, sizeof *device, a));
    CUDA(cudaEventRecord(end, a));
    CUDA(cudaStreamWaitEvent(b, end, 0));
    CUDA(cudaMemcpyAsync(&host, device, sizeof host, cudaMemcpyDeviceToHost, b));
    CUDA(cudaLaunchHostFunc(b, set_to_seven, &seven));
    CUDA(cudaStreamSynchronize(b));
    CHECK(host == 0x01010101 && seven == 7);
#ifdef CUDA_ON_CPU
    cudaError_t refused = cudaSuccess;
    CUDA(cudaLaunchHostFunc(b, call_cuda, &refused));
    CUDA(cudaStreamSynchronize(b));
    CHECK(refused == cudaErrorNotPermitted);
    (void)cudaGetLastError();
#endif
    CUDA(cudaEventSynchronize(end));
    CUDA(cudaEventElapsedTime(&ms, start, end));
    CHECK(ms >= 0 && ms < 10000);
    CUDA(cudaStreamDestroy(a));
    CUDA(cudaStreamDestroy(b));
    CUDA(cudaEventDestroy(start));
    CUDA(cudaEventDestroy(end));
    CUDA(cudaFree(device));
}

// Partial sums, one for each of 64 blocks: the result must be a matter of the problem, not of the machine.
__global__ void __launch_bounds__(256) partial_kernel(float *partial, const float *in, size_t n) {
    size_t begin, end;
    block_range(n, begin, end);
    fvec sum = splat(0);
    for (size_t i = begin + threadIdx.x * PACK; i < end; i += blockDim.x * PACK) sum += vexp(ld(in + i));
    const float s = block_sum(pack_sum(sum));
    if (threadIdx.x == 0) partial[blockIdx.x] = s;
}

static void same_bits_every_time() {
    const size_t n = 1 << 17;
    float *x = new float[n], first[64] = {}, again[64];
    for (size_t i = 0; i < n; i++)
        x[i] = as_float(random_bits() >> 2) > 1 ? 0.5f : static_cast<float>(random_bits() % 1000) * 1e-3f;
    float *in = device_array(n, x);
    for (int run = 1; run <= 4; run++) {
#if defined(CUDA_ON_CPU) && !defined(CUDA_ON_CPU_EMULATED)
        omp_set_num_threads(run);
#endif
        float *partial = device_array<float>(64, nullptr);
        const cudaLaunchConfig_t c = config_of(64, block_threads(256), 0);
        CUDA(cudaLaunchKernelEx(&c, partial_kernel, partial, static_cast<const float *>(in), n));
        take_back(again, partial, 64);
        if (run == 1) memcpy(first, again, sizeof first);
        CHECK(memcmp(first, again, sizeof first) == 0);
    }
    CUDA(cudaFree(in));
    delete[] x;
}

int main(int argc, char **argv) {
    test_start(&argc, argv);
    RUN(bf16_is_rounded_to_nearest_even);
    RUN(bf16_to_float_is_exact);
    RUN(exp_is_within_two_ulp);
    RUN(packs_compute_as_floats_do);
    RUN(every_thread_gets_the_sum);
    RUN(shuffles_read_the_named_lane);
    RUN(block_range_owns_every_element_once);
    RUN(every_thread_of_a_grid_runs_once);
    RUN(dynamic_shared_memory_belongs_to_the_block);
    RUN(a_launch_that_cannot_be_is_an_error);
    RUN(memory_is_aligned_and_copied);
    RUN(too_large_an_allocation_is_an_error);
    RUN(events_order_streams);
    RUN(same_bits_every_time);
    return test_finish();
}
