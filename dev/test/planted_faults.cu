/*
 * Kernels with faults planted on purpose: the proof that the emulated GPU finds what it is there to find.
 *
 *     planted_faults FAULT clean|faulty
 *
 * runs one kernel, as it should be or with its fault, and prints a hash of its output. test_planted_faults.sh runs every one in both versions and
 * several schedules, built with sanitizers. A fault counts as found when the program stops with the expected words, when the hash
 * is not the clean version's, or when it depends on the schedule, as that script says for each.
 */
#include "zero/device.cuh"

#include <stdio.h>
#include <stdlib.h>

enum { THREADS = 256, BLOCKS = 3, N = THREADS * PACK };

// ---------------------------------------------------------------------------------------------------------------------
// Out of bounds, misaligned, not initialised

__global__ void __launch_bounds__(THREADS) global_overrun(float *out, const float *in, int faulty) {
    const size_t end = N + (faulty ? PACK : 0);
    for (size_t i = threadIdx.x * PACK; i < end; i += blockDim.x * PACK) st(out + i, ld(in + i) + 1.0f);
}

__global__ void __launch_bounds__(THREADS) shared_overrun(float *out, const float *in, int faulty) {
    __shared__ float s[THREADS];
    const int t = threadIdx.x;
    s[t] = in[t];
    float *seven = s + (faulty ? THREADS : 7);      // through a pointer: UBSan checks indices of arrays by itself
    if (t == 7) *seven = 1;
    __syncthreads();
    out[t] = s[THREADS - 1 - t];
}

__global__ void __launch_bounds__(THREADS) dynamic_overrun(float *out, const float *in, int faulty) {
    DYNAMIC_SHARED(float, s);       // THREADS floats
    const int t = threadIdx.x;
    s[t + (faulty ? 1 : 0)] = in[t];
    __syncthreads();
    out[t] = s[THREADS - 1 - t];
}

__global__ void __launch_bounds__(THREADS) misaligned(float *out, const float *in, int faulty) {
    const int i = threadIdx.x * PACK;
    if (i + PACK < N) st(out + i, ld(in + i + (faulty ? 1 : 0)));
}

__global__ void __launch_bounds__(THREADS) unset_shared(float *out, const float *in, int faulty) {
    __shared__ float sum[THREADS];
    const int t = threadIdx.x;
    if (!faulty) sum[t] = 0;
    sum[t] += in[t];
    out[t] = sum[t];
}

__global__ void __launch_bounds__(THREADS) unset_global(float *out, const float *in, int faulty) {
    const int t = threadIdx.x;
    if (!faulty) out[t] = 0;
    out[t] += in[t];
}

// ---------------------------------------------------------------------------------------------------------------------
// Barriers and warp operations

__global__ void __launch_bounds__(THREADS) missing_barrier(float *out, const float *in, int faulty) {
    __shared__ float s[THREADS];
    const int t = threadIdx.x;
    s[t] = in[t];
    if (!faulty) __syncthreads();
    out[t] = s[THREADS - 1 - t];
}

// Every thread reads all partial sums, and the next round writes them again: the barrier between the two is missing.
__global__ void __launch_bounds__(THREADS) missing_second_barrier(float *out, const float *in, int faulty) {
    __shared__ float part[THREADS / WARP];
    const int t = threadIdx.x;
    float v = in[t];
    for (int round = 0; round < 2; round++) {
        const float sum = warp_sum(v);
        if (t % WARP == 0) part[t / WARP] = sum;
        __syncthreads();
        v = 0;
        for (int w = 0; w < THREADS / WARP; w++) v += part[w];
        if (!faulty) __syncthreads();
    }
    out[t] = v;
}

// A shuffle exchanges values between lanes, but it does not order memory: only __syncwarp does.
__global__ void __launch_bounds__(THREADS) missing_syncwarp(float *out, const float *in, int faulty) {
    __shared__ float s[THREADS];
    const int t = threadIdx.x;
    s[t] = in[t];
    if (!faulty) __syncwarp();
    out[t] = s[t ^ 31];
}

__global__ void __launch_bounds__(THREADS) neighbour_race(float *out, const float *in, int faulty) {
    __shared__ float s[THREADS];
    const int t = threadIdx.x, next = (t + 1) % THREADS;
    s[t] = in[t];
    __syncthreads();
    const float v = s[next];
    if (!faulty) __syncthreads();
    s[t] += v;
    __syncthreads();
    out[t] = s[t];
}

__global__ void __launch_bounds__(THREADS) divergent_barrier(float *out, const float *in, int faulty) {
    const int t = threadIdx.x;
    if (!faulty || t < 100) __syncthreads();
    out[t] = in[t];
}

__global__ void __launch_bounds__(THREADS) two_barriers(float *out, const float *in, int faulty) {
    const int t = threadIdx.x;
    if (faulty && t < 128) {
        __syncthreads();
    } else {
        __syncthreads();
    }
    out[t] = in[t];
}

__global__ void __launch_bounds__(THREADS) early_return(float *out, const float *in, int faulty) {
    const int t = threadIdx.x;
    if (faulty && t >= 200) return;
    __syncthreads();
    out[t] = in[t];
}

__global__ void __launch_bounds__(THREADS) half_a_shuffle(float *out, const float *in, int faulty) {
    const int t = threadIdx.x;
    float v = in[t];
    if (!faulty || t < 40) v = warp_sum(v);
    __syncthreads();
    out[t] = v;
}

// ---------------------------------------------------------------------------------------------------------------------
// Order

__global__ void __launch_bounds__(THREADS) block_race(float *out, const float *in, int faulty) {
    const int t = threadIdx.x, block = blockIdx.x;
    out[t + (faulty ? 0 : block * THREADS)] = in[t] + static_cast<float>(block);
}

// A float atomic, made by hand since dev/cpu has none: the sum is in the order of arrival.
__global__ void __launch_bounds__(THREADS) float_atomic(float *out, const float *in, int faulty) {
    const int t = threadIdx.x;
    if (blockIdx.x > 0) return;
    if (t == 0) out[0] = 0;
    __syncthreads();
    if (faulty) {
        int *p = reinterpret_cast<int *>(out);
        int seen = 0, old;
        do {
            old = seen;
            seen = atomicCAS(p, old, __float_as_int(__int_as_float(old) + in[t]));
        } while (seen != old);
    } else {
        const float sum = block_sum(in[t]);
        if (t == 0) out[0] = sum;
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Launches over a limit, streams, and memory of the other side (which CUDA_ON_CPU_PROTECT guards)

__global__ void __launch_bounds__(1024) copy(float *out, const float *in, int) {
    DYNAMIC_SHARED(float, s);
    s[threadIdx.x] = in[threadIdx.x % N];
    out[threadIdx.x % N] = s[threadIdx.x];
}

typedef void (*kernel_fn)(float *, const float *, int);
enum how_taken {
    RIGHT,
    NO_EVENT, NO_WAIT,                                  // the other stream does not wait for the kernel, the host not for the copy
    HOST_READS, HOST_WRITES,                            // the host dereferences what cudaMalloc gave
    HOST_POINTER, HOST_FILL, WRONG_KIND                 // a kernel, a fill gets memory of the host; a copy says that the device's were the host's
};

static const struct {
    const char *name;
    kernel_fn kernel;
    unsigned threads, faulty_threads;
    size_t shared, faulty_shared;
    how_taken result;
} FAULTS[] = {
    {"global_overrun", global_overrun, THREADS, THREADS, 0, 0, RIGHT},
    {"shared_overrun", shared_overrun, THREADS, THREADS, 0, 0, RIGHT},
    {"dynamic_overrun", dynamic_overrun, THREADS, THREADS, THREADS * sizeof(float), THREADS * sizeof(float), RIGHT},
    {"misaligned", misaligned, THREADS, THREADS, 0, 0, RIGHT},
    {"unset_shared", unset_shared, THREADS, THREADS, 0, 0, RIGHT},
    {"unset_global", unset_global, THREADS, THREADS, 0, 0, RIGHT},
    {"missing_barrier", missing_barrier, THREADS, THREADS, 0, 0, RIGHT},
    {"missing_second_barrier", missing_second_barrier, THREADS, THREADS, 0, 0, RIGHT},
    {"missing_syncwarp", missing_syncwarp, THREADS, THREADS, 0, 0, RIGHT},
    {"neighbour_race", neighbour_race, THREADS, THREADS, 0, 0, RIGHT},
    {"divergent_barrier", divergent_barrier, THREADS, THREADS, 0, 0, RIGHT},
    {"two_barriers", two_barriers, THREADS, THREADS, 0, 0, RIGHT},
    {"early_return", early_return, THREADS, THREADS, 0, 0, RIGHT},
    {"half_a_shuffle", half_a_shuffle, THREADS, THREADS, 0, 0, RIGHT},
    {"block_race", block_race, THREADS, THREADS, 0, 0, RIGHT},
    {"float_atomic", float_atomic, THREADS, THREADS, 0, 0, RIGHT},
    {"too_many_threads", copy, 1024, 1056, 4096, 4224, RIGHT},
    {"too_much_shared", copy, 1024, 1024, 4096, 49 << 10, RIGHT},
    {"missing_event", copy, 256, 256, 1024, 1024, NO_EVENT},
    {"missing_wait", copy, 256, 256, 1024, 1024, NO_WAIT},
    {"host_reads", copy, 256, 256, 1024, 1024, HOST_READS},
    {"host_writes", copy, 256, 256, 1024, 1024, HOST_WRITES},
    {"host_pointer", copy, 256, 256, 1024, 1024, HOST_POINTER},
    {"host_fill", copy, 256, 256, 1024, 1024, HOST_FILL},
    {"wrong_kind", copy, 256, 256, 1024, 1024, WRONG_KIND},
};

static void check(cudaError_t e) {
    if (e == cudaSuccess) return;
    fprintf(stderr, "planted_faults: %s\n", cudaGetErrorString(e));
    exit(1);
}

// Copies the kernel's output to the host, with the faults that streams invite.
static void take_result(float *host, const float *out, size_t bytes, cudaStream_t stream, how_taken how, bool faulty) {
    cudaStream_t other;
    cudaEvent_t event;
    float *pinned;
    check(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    check(cudaMallocHost(reinterpret_cast<void **>(&pinned), bytes));
    memset(pinned, 0, bytes);
    check(cudaEventRecord(event, stream));
    if (how != NO_EVENT || !faulty) check(cudaStreamWaitEvent(other, event, 0));
    check(cudaMemcpyAsync(pinned, out, bytes, cudaMemcpyDeviceToHost, other));
    if (how != NO_WAIT || !faulty) check(cudaStreamSynchronize(other));
    memcpy(host, faulty && how == HOST_READS ? out : pinned, bytes);
    check(cudaFreeHost(pinned));
    check(cudaEventDestroy(event));
    check(cudaStreamDestroy(other));
}

int main(int argc, char **argv) {
    const bool faulty = argc == 3 && strcmp(argv[2], "faulty") == 0;
    if (argc != 3 || (!faulty && strcmp(argv[2], "clean") != 0)) {
        fprintf(stderr, "usage: planted_faults FAULT clean|faulty\n");
        return 2;
    }
    for (const auto &f : FAULTS) {
        if (strcmp(f.name, argv[1]) != 0) continue;
        static float host[N];
        float *in, *out;
        for (int i = 0; i < N; i++) host[i] = 1.0f / static_cast<float>(i + 1);
        check(cudaMalloc(reinterpret_cast<void **>(&in), sizeof host));
        check(cudaMalloc(reinterpret_cast<void **>(&out), sizeof host));
        check(cudaMemcpy(in, host, sizeof host, faulty && f.result == WRONG_KIND ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice));
        if (faulty && f.result == HOST_WRITES) out[0] = 0;
        if (faulty && f.result == HOST_FILL) check(cudaMemset(host, 0, sizeof host));

        cudaLaunchConfig_t config = {};
        config.gridDim = dim3(f.kernel == block_race || f.kernel == unset_shared ? BLOCKS : 1);
        config.blockDim = dim3(faulty ? f.faulty_threads : f.threads);
        config.dynamicSmemBytes = faulty ? f.faulty_shared : f.shared;
        check(cudaStreamCreateWithFlags(&config.stream, cudaStreamNonBlocking));
        check(cudaLaunchKernelEx(&config, f.kernel, out, static_cast<const float *>(faulty && f.result == HOST_POINTER ? host : in), static_cast<int>(faulty)));
        take_result(host, out, sizeof host, config.stream, f.result, faulty);
        check(cudaStreamDestroy(config.stream));
        check(cudaFree(in));
        check(cudaFree(out));

        static unsigned char bytes[sizeof host];
        memcpy(bytes, host, sizeof host);
        uint64_t hash = 0xcbf29ce484222325ull;     // FNV-1a
        for (unsigned char byte : bytes) hash = (hash ^ byte) * 0x100000001b3ull;
        printf("%016llx\n", static_cast<unsigned long long>(hash));
        return 0;
    }
    fprintf(stderr, "planted_faults: there is no fault named '%s'\n", argv[1]);
    return 2;
}
