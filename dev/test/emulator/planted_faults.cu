// Kernels with faults planted on purpose, to prove that the emulated GPU finds such faults.
//
//     planted_faults FAULT clean|faulty
//
// runs one kernel, correct or with its fault, and prints a hash of its output. test_planted_faults.sh runs each of them
// in both versions and several schedules, built with sanitizers. A fault counts as found if the program stops with the
// expected message, if the hash differs from the clean version's, or if it depends on the schedule, as that script
// states for each fault.
#include "device/mma.cuh"
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
    float *seven = s + (faulty ? THREADS : 7);  // through a pointer: UBSan checks indices of arrays by itself
    if (t == 7) *seven = 1;
    __syncthreads();
    out[t] = s[THREADS - 1 - t];
}

__global__ void __launch_bounds__(THREADS) dynamic_overrun(float *out, const float *in, int faulty) {
    DYNAMIC_SHARED(float, s);  // THREADS floats
    const int t = threadIdx.x;
    s[t + (faulty ? 1 : 0)] = in[t];
    __syncthreads();
    out[t] = s[THREADS - 1 - t];
}

__global__ void __launch_bounds__(THREADS) misaligned(float *out, const float *in, int faulty) {
    const int i = threadIdx.x * PACK;
    if (i + PACK < N) st(out + i, ld(in + i + (faulty ? 1 : 0)));
}

__global__ void __launch_bounds__(THREADS) misaligned_store(float *out, const float *in, int faulty) {
    const int i = threadIdx.x * PACK;
    if (i + PACK < N) st(out + i + (faulty ? 1 : 0), ld(in + i));
}

// Eight bf16 are 16 bytes: an address of 8 more is right for half of them.
__global__ void __launch_bounds__(THREADS) misaligned_bf16(float *out, const float *in, int faulty) {
    const int i = threadIdx.x * PACK;
    if (i + PACK < N) st(out + i, ld(reinterpret_cast<const bf16 *>(in) + i + (faulty ? PACK / 2 : 0)));
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

// The loop's end is not the same for all: some leave it a barrier earlier.
__global__ void __launch_bounds__(THREADS) uneven_loop(float *out, const float *in, int faulty) {
    const int t = threadIdx.x;
    float v = 0;
    for (int i = 0; i < 2 + (faulty && t % WARP == 5); i++) {
        v += in[t];
        __syncthreads();
    }
    out[t] = v;
}

// The mask says who takes part: lane 31 is read, but not named.
__global__ void __launch_bounds__(THREADS) short_mask(float *out, const float *in, int faulty) {
    const int t = threadIdx.x;
    float v = in[t];
    const unsigned mask = faulty ? 0x7fffffffu : 0xffffffffu;
    if (mask >> t % WARP & 1) v = __shfl_sync(mask, v, WARP - 1);
    out[t] = v;
}

__global__ void __launch_bounds__(THREADS) half_a_shuffle(float *out, const float *in, int faulty) {
    const int t = threadIdx.x;
    float v = in[t];
    if (!faulty || t < 40) v = warp_sum(v);
    __syncthreads();
    out[t] = v;
}

// ---------------------------------------------------------------------------------------------------------------------
// Asynchronous copies: each thread copies a number, and reads what its mirror image copied

__global__ void __launch_bounds__(THREADS) late_copy_wait(float *out, const float *in, int faulty) {
    __shared__ float s[THREADS];
    const int t = threadIdx.x;
    copy_async(s + t, in + t, true);
    copy_commit();
    if (!faulty) copy_wait<0>();
    __syncthreads();
    out[t] = s[THREADS - 1 - t];
    copy_wait<0>();
}

__global__ void __launch_bounds__(THREADS) missing_copy_wait(float *out, const float *in, int faulty) {
    __shared__ float s[THREADS];
    const int t = threadIdx.x;
    copy_async(s + t, in + t, true);
    copy_commit();
    if (!faulty) copy_wait<0>();
    out[t] = in[t];
}

__global__ void __launch_bounds__(THREADS) short_copy_wait(float *out, const float *in, int faulty) {
    __shared__ float s[2][THREADS];
    const int t = threadIdx.x;
    for (int i = 0; i < 2; i++) {
        copy_async(s[i] + t, in + i * THREADS + t, true);
        copy_commit();
    }
    copy_wait<1>();
    if (!faulty) copy_wait<0>();
    __syncthreads();
    out[t] = s[0][THREADS - 1 - t] + s[1][THREADS - 1 - t];
    copy_wait<0>();
}

__global__ void __launch_bounds__(THREADS) missing_copy_commit(float *out, const float *in, int faulty) {
    __shared__ float s[THREADS];
    const int t = threadIdx.x;
    copy_async(s + t, in + t, true);
    if (!faulty) copy_commit();
    copy_wait<0>();
    out[t] = s[t];
}

// A wait is for the thread's own copies.
__global__ void __launch_bounds__(THREADS) missing_copy_barrier(float *out, const float *in, int faulty) {
    __shared__ float s[THREADS];
    const int t = threadIdx.x;
    copy_async(s + t, in + t, true);
    copy_commit();
    copy_wait<0>();
    if (!faulty) __syncthreads();
    out[t] = s[THREADS - 1 - t];
}

__global__ void __launch_bounds__(THREADS) copy_over_a_tile_in_use(float *out, const float *in, int faulty) {
    __shared__ float s[THREADS];
    const int t = threadIdx.x;
    float sum = 0;
    for (int i = 0; i < 2; i++) {
        copy_async(s + t, in + i * THREADS + t, true);
        copy_commit();
        copy_wait<0>();
        __syncthreads();
        sum += s[THREADS - 1 - t];
        if (!faulty) __syncthreads();
    }
    out[t] = sum;
}

__global__ void __launch_bounds__(THREADS) copy_overrun(float *out, const float *in, int faulty) {
    __shared__ float s[THREADS];
    const int t = threadIdx.x;
    copy_async(s + t, in + (t == 7 ? N : t), faulty || t != 7);
    copy_commit();
    copy_wait<0>();
    out[t] = s[t];
}

__global__ void __launch_bounds__(THREADS) copy_to_the_wrong_memory(float *out, const float *in, int faulty) {
    __shared__ float s[THREADS];
    const int t = threadIdx.x;
    copy_async(faulty ? out + t : s + t, in + t, true);
    copy_commit();
    copy_wait<0>();
    if (!faulty) out[t] = s[t];
}

// ---------------------------------------------------------------------------------------------------------------------
// Matrix instructions: a warp multiplies a 16 x 16 matrix by its first 8 columns

enum { PRODUCT_BYTES = THREADS / WARP * 16 * 16 * sizeof(bf16) };
enum product_fault {
    NO_SYNCWARP,
    HALF_A_WARP,
    TWO_PLACES,
    MISALIGNED,
    GLOBAL_MEMORY,
    QUARTERS,
    HALVES,
    NOT_TRANSPOSED
};

template <product_fault FAULT>
__global__ void __launch_bounds__(THREADS) product(float *out, const float *in, int faulty) {
    DYNAMIC_SHARED(bf16, s);  // PRODUCT_BYTES
    const int lane = threadIdx.x % WARP, at = lane % 16 * 16 + lane / 16 * PACK;
    const auto wrong = [&](product_fault f) { return faulty && FAULT == f; };
    bf16 *const x = s + threadIdx.x / WARP * 16 * 16;
    uint32_t a[4], b[4];
    float d[4] = { 0, 0, 0, 0 };
    st(x + PACK * lane, ld(in + PACK * lane));
    if (!wrong(NO_SYNCWARP)) __syncwarp();
    ldmatrix(a, (wrong(GLOBAL_MEMORY) ? reinterpret_cast<const bf16 *>(in) : x) + at + (wrong(MISALIGNED) ? 4 : 0));
    if (wrong(NOT_TRANSPOSED))
        ldmatrix(b, x + at);
    else
        ldmatrix_transposed(b, x + at);
    if (wrong(QUARTERS)) std::swap(a[1], a[2]);
    if (wrong(HALVES)) std::swap(b[0], b[1]);
    if (wrong(HALF_A_WARP) && lane >= 16)
        __syncwarp(0xffff0000u);
    else if (wrong(TWO_PLACES) && lane >= 16)
        mma(d, a, b[0], b[1]);
    else
        mma(d, a, b[0], b[1]);
    for (int i = 0; i < 4; i++) out[4 * threadIdx.x + i] = d[i];
}

// ---------------------------------------------------------------------------------------------------------------------
// Order

__global__ void __launch_bounds__(THREADS) block_race(float *out, const float *in, int faulty) {
    const int t = threadIdx.x, block = blockIdx.x;
    out[t + (faulty ? 0 : block * THREADS)] = in[t] + static_cast<float>(block);
}

// All threads add to one sum at once. (The emulator lets no addition be lost, as a GPU would; but it shows the order.)
__global__ void __launch_bounds__(THREADS) shared_sum(float *out, const float *in, int faulty) {
    __shared__ float sum;
    const int t = threadIdx.x;
    if (t == 0) sum = 0;
    __syncthreads();
    if (faulty) {
        sum += in[t];
    } else {
        const float all = block_sum(in[t]);
        if (t == 0) sum = all;
    }
    __syncthreads();
    out[t] = sum;
}

// A float atomic, made by hand since dev/device/cpu has none: the sum is in the order of arrival.
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
enum host_side {
    RIGHT,
    NO_EVENT,
    EARLY_EVENT,
    NO_WAIT,  // the other stream does not wait for the kernel, or for what
              // was before it; the host not for the copy
    REUSED_SOURCE,
    REUSED_INPUT,
    FREED,  // what a copy reads, what the kernel reads, is written too
            // early, or freed before the launch
    TALL_GRID,
    OPT_IN,  // more blocks in y, more shared memory than there can be
    HOST_READS,
    HOST_WRITES,  // the host dereferences what cudaMalloc gave
    HOST_POINTER,
    HOST_FILL,
    WRONG_KIND  // a kernel, a fill gets memory of the host; a copy says that
                // the device's were the host's
};

static const struct fault {
    const char *name;
    kernel_fn kernel;
    unsigned threads, faulty_threads;
    size_t shared, faulty_shared;
    host_side host;
} FAULTS[] = {
    { "global_overrun", global_overrun, THREADS, THREADS, 0, 0, RIGHT },
    { "shared_overrun", shared_overrun, THREADS, THREADS, 0, 0, RIGHT },
    { "dynamic_overrun", dynamic_overrun, THREADS, THREADS, THREADS * sizeof(float), THREADS * sizeof(float), RIGHT },
    { "misaligned", misaligned, THREADS, THREADS, 0, 0, RIGHT },
    { "misaligned_store", misaligned_store, THREADS, THREADS, 0, 0, RIGHT },
    { "misaligned_bf16", misaligned_bf16, THREADS, THREADS, 0, 0, RIGHT },
    { "unset_shared", unset_shared, THREADS, THREADS, 0, 0, RIGHT },
    { "unset_global", unset_global, THREADS, THREADS, 0, 0, RIGHT },
    { "missing_barrier", missing_barrier, THREADS, THREADS, 0, 0, RIGHT },
    { "missing_second_barrier", missing_second_barrier, THREADS, THREADS, 0, 0, RIGHT },
    { "missing_syncwarp", missing_syncwarp, THREADS, THREADS, 0, 0, RIGHT },
    { "neighbour_race", neighbour_race, THREADS, THREADS, 0, 0, RIGHT },
    { "divergent_barrier", divergent_barrier, THREADS, THREADS, 0, 0, RIGHT },
    { "two_barriers", two_barriers, THREADS, THREADS, 0, 0, RIGHT },
    { "early_return", early_return, THREADS, THREADS, 0, 0, RIGHT },
    { "uneven_loop", uneven_loop, THREADS, THREADS, 0, 0, RIGHT },
    { "short_mask", short_mask, THREADS, THREADS, 0, 0, RIGHT },
    { "half_a_shuffle", half_a_shuffle, THREADS, THREADS, 0, 0, RIGHT },
    { "late_copy_wait", late_copy_wait, THREADS, THREADS, 0, 0, RIGHT },
    { "missing_copy_wait", missing_copy_wait, THREADS, THREADS, 0, 0, RIGHT },
    { "short_copy_wait", short_copy_wait, THREADS, THREADS, 0, 0, RIGHT },
    { "missing_copy_commit", missing_copy_commit, THREADS, THREADS, 0, 0, RIGHT },
    { "missing_copy_barrier", missing_copy_barrier, THREADS, THREADS, 0, 0, RIGHT },
    { "copy_over_a_tile_in_use", copy_over_a_tile_in_use, THREADS, THREADS, 0, 0, RIGHT },
    { "copy_overrun", copy_overrun, THREADS, THREADS, 0, 0, RIGHT },
    { "copy_to_the_wrong_memory", copy_to_the_wrong_memory, THREADS, THREADS, 0, 0, RIGHT },
    { "matrix_without_syncwarp", product<NO_SYNCWARP>, THREADS, THREADS, PRODUCT_BYTES, PRODUCT_BYTES, RIGHT },
    { "half_a_product", product<HALF_A_WARP>, THREADS, THREADS, PRODUCT_BYTES, PRODUCT_BYTES, RIGHT },
    { "two_products", product<TWO_PLACES>, THREADS, THREADS, PRODUCT_BYTES, PRODUCT_BYTES, RIGHT },
    { "misaligned_matrix", product<MISALIGNED>, THREADS, THREADS, PRODUCT_BYTES, PRODUCT_BYTES, RIGHT },
    { "matrix_in_global_memory", product<GLOBAL_MEMORY>, THREADS, THREADS, PRODUCT_BYTES, PRODUCT_BYTES, RIGHT },
    { "swapped_quarters", product<QUARTERS>, THREADS, THREADS, PRODUCT_BYTES, PRODUCT_BYTES, RIGHT },
    { "swapped_halves", product<HALVES>, THREADS, THREADS, PRODUCT_BYTES, PRODUCT_BYTES, RIGHT },
    { "matrix_not_transposed", product<NOT_TRANSPOSED>, THREADS, THREADS, PRODUCT_BYTES, PRODUCT_BYTES, RIGHT },
    { "block_race", block_race, THREADS, THREADS, 0, 0, RIGHT },
    { "shared_sum", shared_sum, THREADS, THREADS, 0, 0, RIGHT },
    { "float_atomic", float_atomic, THREADS, THREADS, 0, 0, RIGHT },
    { "too_many_threads", copy, 1024, 1056, 4096, 4224, RIGHT },
    { "too_much_shared", copy, 1024, 1024, 4096, 49 << 10, RIGHT },
    { "too_much_opted_in", copy, 1024, 1024, 100 << 10, 228 << 10, OPT_IN },
    { "too_tall_a_grid", copy, 256, 256, 1024, 1024, TALL_GRID },
    { "half_a_warp", copy, 256, 240, 1024, 1024, RIGHT },
    { "missing_event", copy, 256, 256, 1024, 1024, NO_EVENT },
    { "early_event", copy, 256, 256, 1024, 1024, EARLY_EVENT },
    { "reused_source", copy, 256, 256, 1024, 1024, REUSED_SOURCE },
    { "reused_input", copy, 256, 256, 1024, 1024, REUSED_INPUT },
    { "freed", copy, 256, 256, 1024, 1024, FREED },
    { "missing_wait", copy, 256, 256, 1024, 1024, NO_WAIT },
    { "host_reads", copy, 256, 256, 1024, 1024, HOST_READS },
    { "host_writes", copy, 256, 256, 1024, 1024, HOST_WRITES },
    { "host_pointer", copy, 256, 256, 1024, 1024, HOST_POINTER },
    { "host_fill", copy, 256, 256, 1024, 1024, HOST_FILL },
    { "wrong_kind", copy, 256, 256, 1024, 1024, WRONG_KIND },
};

static void check(cudaError_t e) {
    if (e == cudaSuccess) return;
    fprintf(stderr, "planted_faults: %s\n", cudaGetErrorString(e));
    exit(1);
}

// One launch with what is around it, and the faults that streams and memory invite. The kernel runs in one stream, the
// copy of what it wrote in another.
static void run(const fault &f, float *host, size_t bytes, bool faulty) {
    const host_side wrong = faulty ? f.host : RIGHT;
    cudaStream_t stream, other;
    cudaEvent_t event;
    float *in, *out, *pinned;
    check(cudaMalloc(reinterpret_cast<void **>(&in), bytes));
    check(cudaMalloc(reinterpret_cast<void **>(&out), bytes));
    check(cudaMallocHost(reinterpret_cast<void **>(&pinned), bytes));
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    check(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));

    memcpy(pinned, host, bytes);
    check(cudaMemcpyAsync(in, pinned, bytes, wrong == WRONG_KIND ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice,
                          stream));
    if (wrong != REUSED_SOURCE) check(cudaStreamSynchronize(stream));
    memset(pinned, 0, bytes);
    if (wrong == HOST_WRITES) out[0] = 0;
    if (wrong == HOST_FILL) check(cudaMemset(host, 0, bytes));
    if (wrong == FREED) check(cudaFree(in));

    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(f.kernel == block_race || f.kernel == unset_shared ? BLOCKS : 1,
                          wrong == TALL_GRID ? 65536 : 1);
    config.blockDim = dim3(faulty ? f.faulty_threads : f.threads);
    config.dynamicSmemBytes = faulty ? f.faulty_shared : f.shared;
    config.stream = stream;
    if (f.host == OPT_IN)
        check(cudaFuncSetAttribute(f.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   static_cast<int>(config.dynamicSmemBytes)));
    if (wrong == EARLY_EVENT) check(cudaEventRecord(event, stream));
    check(cudaLaunchKernelEx(&config, f.kernel, out, static_cast<const float *>(wrong == HOST_POINTER ? host : in),
                             static_cast<int>(faulty)));
    if (wrong != EARLY_EVENT) check(cudaEventRecord(event, stream));

    if (wrong != NO_EVENT && wrong != REUSED_INPUT) check(cudaStreamWaitEvent(other, event, 0));
    if (f.host == REUSED_INPUT) check(cudaMemsetAsync(in, 0, bytes, other));
    if (wrong == REUSED_INPUT) check(cudaStreamWaitEvent(other, event, 0));
    check(cudaMemcpyAsync(pinned, out, bytes, cudaMemcpyDeviceToHost, other));
    if (wrong != NO_WAIT) check(cudaStreamSynchronize(other));
    memcpy(host, wrong == HOST_READS ? out : pinned, bytes);

    check(cudaStreamDestroy(stream));
    check(cudaStreamDestroy(other));
    check(cudaEventDestroy(event));
    check(cudaFreeHost(pinned));
    check(cudaFree(out));
    if (wrong != FREED) check(cudaFree(in));
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
        for (int i = 0; i < N; i++) host[i] = 1.0f / static_cast<float>(i + 1);
        run(f, host, sizeof host, faulty);
        static unsigned char bytes[sizeof host];
        memcpy(bytes, host, sizeof host);
        uint64_t hash = 0xcbf29ce484222325ull;  // FNV-1a
        for (unsigned char byte : bytes) hash = (hash ^ byte) * 0x100000001b3ull;
        printf("%016llx\n", static_cast<unsigned long long>(hash));
        return 0;
    }
    fprintf(stderr, "planted_faults: there is no fault named '%s'\n", argv[1]);
    return 2;
}
