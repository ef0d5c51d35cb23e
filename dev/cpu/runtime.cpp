/*
 * The CUDA runtime on the host: memory, streams, events, errors, and the launch of the fast build.
 *
 * Work is done at the moment it is enqueued, so a stream is an empty token and an event is a time. That is one of the orders in which a GPU may
 * do it. What the caller may rely on is what CUDA promises: results do not depend on the number of OpenMP threads, because blocks are
 * independent of each other and each is run by one thread, from its beginning to its end.
 */
#include "cuda_runtime.h"

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <omp.h>
#include <sys/mman.h>
#include <unistd.h>

struct CUstream_st {
    unsigned flags;
};

struct CUevent_st {
    bool recorded;
    timespec when;
};

static const size_t HUGE_PAGE = (size_t)2 << 20;

__thread uint3 blockIdx;
__thread uint3 gridDim;
static __thread cudaError_t last_error;

cudaError_t cuda_on_cpu_error(cudaError_t error) {
    if (error != cudaSuccess) last_error = error;
    return error;
}

extern "C" {

// ---------------------------------------------------------------------------------------------------------------------
// Device

cudaError_t cudaGetDeviceCount(int *count) {
    *count = 1;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) { return cuda_on_cpu_error(device == 0 ? cudaSuccess : cudaErrorInvalidDevice); }

cudaError_t cudaGetDevice(int *device) {
    *device = 0;
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
    size_t total_kb = 0, available_kb = 0;
    char line[128];
    FILE *f = fopen("/proc/meminfo", "r");
    if (!f) return cuda_on_cpu_error(cudaErrorUnknown);
    while (fgets(line, sizeof line, f)) {
        sscanf(line, "MemTotal: %zu", &total_kb);
        sscanf(line, "MemAvailable: %zu", &available_kb);
    }
    fclose(f);
    *free_bytes = available_kb * 1024;
    *total_bytes = total_kb * 1024;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *prop, int device) {
    size_t free_bytes = 0;
    if (device != 0) return cuda_on_cpu_error(cudaErrorInvalidDevice);
    memset(prop, 0, sizeof *prop);
    prop->warpSize = CUDA_ON_CPU_WARP;
    prop->maxThreadsPerBlock = CUDA_ON_CPU_WARP == 1 ? 1 : 1024;
    prop->sharedMemPerBlock = CUDA_ON_CPU_SHARED_DEFAULT;
    prop->sharedMemPerBlockOptin = CUDA_ON_CPU_SHARED_OPTIN;
    prop->multiProcessorCount = omp_get_max_threads();
    snprintf(prop->name, sizeof prop->name, CUDA_ON_CPU_WARP == 1 ? "CPU" : "CPU, emulating a GPU");
    return cudaMemGetInfo(&free_bytes, &prop->totalGlobalMem);
}

cudaError_t cudaDeviceSynchronize(void) { return cudaSuccess; }

// ---------------------------------------------------------------------------------------------------------------------
// Memory

cudaError_t cudaMalloc(void **ptr, size_t bytes) {
    *ptr = nullptr;
    if (bytes == 0) return cudaSuccess;
    // Linux promises memory that it does not have, and kills whoever comes to use it.
    static const size_t installed = static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGESIZE));
    if (bytes > installed) return cuda_on_cpu_error(cudaErrorMemoryAllocation);
    if (posix_memalign(ptr, bytes >= HUGE_PAGE ? HUGE_PAGE : 256, bytes)) return cuda_on_cpu_error(cudaErrorMemoryAllocation);
    // Only advice: without huge pages everything works, slower. A refusal is not an error.
    if (bytes >= HUGE_PAGE) madvise(*ptr, bytes, MADV_HUGEPAGE);
#ifdef CUDA_ON_CPU_EMULATED
    memset(*ptr, 0xff, bytes);
#endif
    return cudaSuccess;
}

cudaError_t cudaFree(void *ptr) {
    free(ptr);
    return cudaSuccess;
}

cudaError_t cudaMallocHost(void **ptr, size_t bytes) { return cudaMalloc(ptr, bytes); }
cudaError_t cudaFreeHost(void *ptr) { return cudaFree(ptr); }
cudaError_t cudaHostRegister(void *ptr, size_t bytes, unsigned) { return cuda_on_cpu_error(ptr && bytes ? cudaSuccess : cudaErrorInvalidValue); }
cudaError_t cudaHostUnregister(void *) { return cudaSuccess; }

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, cudaMemcpyKind, cudaStream_t) {
    if (bytes) memcpy(dst, src, bytes);
    return cudaSuccess;
}

cudaError_t cudaMemcpy(void *dst, const void *src, size_t bytes, cudaMemcpyKind kind) {
    return cudaMemcpyAsync(dst, src, bytes, kind, nullptr);
}

cudaError_t cudaMemcpy2DAsync(void *dst, size_t dst_pitch, const void *src, size_t src_pitch, size_t width, size_t height,
                              cudaMemcpyKind, cudaStream_t) {
    if (width > dst_pitch || width > src_pitch) return cuda_on_cpu_error(cudaErrorInvalidValue);
    for (size_t row = 0; width && row < height; row++) {
        memcpy(static_cast<char *>(dst) + row * dst_pitch, static_cast<const char *>(src) + row * src_pitch, width);
    }
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *dst, int value, size_t bytes, cudaStream_t) {
    if (bytes) memset(dst, value, bytes);
    return cudaSuccess;
}

cudaError_t cudaMemset(void *dst, int value, size_t bytes) { return cudaMemsetAsync(dst, value, bytes, nullptr); }

// ---------------------------------------------------------------------------------------------------------------------
// Streams and events

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
    *stream = static_cast<cudaStream_t>(calloc(1, sizeof **stream));
    if (!*stream) return cuda_on_cpu_error(cudaErrorMemoryAllocation);
    (*stream)->flags = flags;
    return cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t *stream) { return cudaStreamCreateWithFlags(stream, cudaStreamDefault); }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int) { return cudaStreamCreateWithFlags(stream, flags); }

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    *least = *greatest = 0;
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    free(stream);
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamQuery(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t event, unsigned) {
    return cuda_on_cpu_error(event ? cudaSuccess : cudaErrorInvalidResourceHandle);
}

cudaError_t cudaLaunchHostFunc(cudaStream_t, cudaHostFn_t fn, void *user_data) {
    fn(user_data);
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned) {
    *event = static_cast<cudaEvent_t>(calloc(1, sizeof **event));
    return cuda_on_cpu_error(*event ? cudaSuccess : cudaErrorMemoryAllocation);
}

cudaError_t cudaEventCreate(cudaEvent_t *event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    free(event);
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) {
    if (!event) return cuda_on_cpu_error(cudaErrorInvalidResourceHandle);
    event->recorded = true;
    clock_gettime(CLOCK_MONOTONIC, &event->when);
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) { return cuda_on_cpu_error(event ? cudaSuccess : cudaErrorInvalidResourceHandle); }
cudaError_t cudaEventSynchronize(cudaEvent_t event) { return cudaEventQuery(event); }

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end) {
    if (!start || !end || !start->recorded || !end->recorded) return cuda_on_cpu_error(cudaErrorInvalidResourceHandle);
    const double seconds = static_cast<double>(end->when.tv_sec - start->when.tv_sec);
    const double nanoseconds = static_cast<double>(end->when.tv_nsec - start->when.tv_nsec);
    *ms = static_cast<float>(seconds * 1e3 + nanoseconds * 1e-6);
    return cudaSuccess;
}

// ---------------------------------------------------------------------------------------------------------------------
// Errors

cudaError_t cudaGetLastError(void) {
    const cudaError_t e = last_error;
    last_error = cudaSuccess;
    return e;
}

cudaError_t cudaPeekAtLastError(void) { return last_error; }

static const struct {
    cudaError_t code;
    const char *name, *text;
} ERRORS[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
};

const char *cudaGetErrorName(cudaError_t error) {
    for (const auto &e : ERRORS) {
        if (e.code == error) return e.name;
    }
    return "cudaErrorUnknown";
}

const char *cudaGetErrorString(cudaError_t error) {
    for (const auto &e : ERRORS) {
        if (e.code == error) return e.text;
    }
    return "unknown error";
}

} // extern "C"

// ---------------------------------------------------------------------------------------------------------------------
// Launch of the fast build. Each OpenMP thread keeps one buffer of dynamic shared memory for as long as it lives.

#ifndef CUDA_ON_CPU_EMULATED

struct shared_buffer {
    void *ptr = nullptr;
    size_t capacity = 0;
    ~shared_buffer() { free(ptr); }
};
static thread_local shared_buffer dynamic_shared;

void *cuda_on_cpu_dynamic_shared() { return dynamic_shared.ptr; }
cudaError_t cuda_on_cpu_max_dynamic_shared(cuda_on_cpu_fn, int) { return cudaSuccess; }

static bool reserve_shared(size_t bytes) {
    shared_buffer &s = dynamic_shared;
    if (bytes <= s.capacity) return true;
    free(s.ptr);
    s.capacity = 0;
    if (posix_memalign(&s.ptr, 256, bytes)) {
        s.ptr = nullptr;
        return false;
    }
    s.capacity = bytes;
    return true;
}

static void run_blocks(const cudaLaunchConfig_t *config, const cuda_on_cpu_call *call, size_t begin, size_t end) {
    const dim3 &g = config->gridDim;
    gridDim = uint3{g.x, g.y, g.z};
    for (size_t i = begin; i < end; i++) {
        blockIdx = uint3{static_cast<unsigned>(i % g.x), static_cast<unsigned>(i / g.x % g.y), static_cast<unsigned>(i / g.x / g.y)};
        call->body(call->args);
    }
}

cudaError_t cuda_on_cpu_launch(const cudaLaunchConfig_t *config, const cuda_on_cpu_call *call) {
    const dim3 &g = config->gridDim, &b = config->blockDim;
    const size_t blocks = static_cast<size_t>(g.x) * g.y * g.z;
    if (blocks == 0 || b.x != 1 || b.y != 1 || b.z != 1) return cuda_on_cpu_error(cudaErrorInvalidConfiguration);
    if (blocks == 1) {
        if (!reserve_shared(config->dynamicSmemBytes)) return cuda_on_cpu_error(cudaErrorMemoryAllocation);
        run_blocks(config, call, 0, 1);
        return cudaSuccess;
    }
    // About 16 pieces for each thread: a busy core or an uneven kernel (causal attention) then costs a 16th at most.
    const size_t piece = blocks / (static_cast<size_t>(omp_get_max_threads()) * 16) + 1;
    bool ok = true;
#pragma omp parallel
    {
        const bool mine = reserve_shared(config->dynamicSmemBytes);
#pragma omp for schedule(dynamic)
        for (size_t begin = 0; begin < blocks; begin += piece) {
            if (mine) run_blocks(config, call, begin, min(begin + piece, blocks));
        }
        if (!mine) {
#pragma omp atomic write
            ok = false;
        }
    }
    return cuda_on_cpu_error(ok ? cudaSuccess : cudaErrorMemoryAllocation);
}

#endif
