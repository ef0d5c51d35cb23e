// The CUDA runtime on the host: device, memory, errors, and the launch of the fast build. Streams and events are in
// streams.cpp.
//
// Results do not depend on the number of OpenMP threads: blocks are independent of each other, as CUDA requires, and
// each is run by one thread from beginning to end.
#include "cuda_runtime.h"

#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <omp.h>
#include <sys/mman.h>
#include <unistd.h>

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
    while (f && fgets(line, sizeof line, f)) {
        sscanf(line, "MemTotal: %zu", &total_kb);
        sscanf(line, "MemAvailable: %zu", &available_kb);
    }
    if (f) fclose(f);
    if (!total_kb) {  // there is no /proc
        const size_t page_kb = static_cast<size_t>(sysconf(_SC_PAGESIZE)) / 1024;
        total_kb = static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * page_kb;
        available_kb = static_cast<size_t>(sysconf(_SC_AVPHYS_PAGES)) * page_kb;
    }
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

// ---------------------------------------------------------------------------------------------------------------------
// Memory

// Memory of the device, or pinned: copies between such memory are done in their stream's turn, others before the call
// returns.
static std::map<const char *, size_t> remembered;
static std::mutex remembered_lock;

static void remember(void *ptr, size_t bytes) {
    const std::lock_guard<std::mutex> guard(remembered_lock);
    if (bytes)
        remembered[static_cast<char *>(ptr)] = bytes;
    else
        remembered.erase(static_cast<char *>(ptr));
}

extern "C++" bool cuda_on_cpu_remembers(const void *ptr) {
    const std::lock_guard<std::mutex> guard(remembered_lock);
    const char *p = static_cast<const char *>(ptr);
    const auto next = remembered.upper_bound(p);
    if (next == remembered.begin()) return false;
    const auto range = std::prev(next);
    return p < range->first + range->second;
}

static cudaError_t allocate(void **ptr, size_t bytes, bool on_device) {
    *ptr = nullptr;
    if (bytes == 0) return cudaSuccess;
    // Linux promises memory that it does not have, and kills the process that uses it.
    static const size_t installed = static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) *
                                    static_cast<size_t>(sysconf(_SC_PAGESIZE));
    if (bytes > installed) return cuda_on_cpu_error(cudaErrorMemoryAllocation);
    if (on_device && cuda_on_cpu_protected())
        *ptr = cuda_on_cpu_arena_alloc(bytes);
    else if (posix_memalign(ptr, bytes >= HUGE_PAGE ? HUGE_PAGE : 256, bytes))
        *ptr = nullptr;
    if (!*ptr) return cuda_on_cpu_error(cudaErrorMemoryAllocation);
    // A hint: without huge pages everything works, but slower. A refusal is not an error.
    if (bytes >= HUGE_PAGE) madvise(*ptr, bytes, MADV_HUGEPAGE);
#ifdef CUDA_ON_CPU_EMULATED
    {
        const cuda_on_cpu_operation operation;
        memset(*ptr, 0xff, bytes);
    }
#endif
    remember(*ptr, bytes);
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **ptr, size_t bytes) { return allocate(ptr, bytes, true); }

// A GPU waits for everything before it frees.
cudaError_t cudaFree(void *ptr) {
    (void)cudaDeviceSynchronize();
    remember(ptr, 0);
    if (cuda_on_cpu_in_arena(ptr))
        cuda_on_cpu_arena_free(ptr);
    else
        free(ptr);
    return cudaSuccess;
}

cudaError_t cudaMallocHost(void **ptr, size_t bytes) { return allocate(ptr, bytes, false); }
cudaError_t cudaFreeHost(void *ptr) { return cudaFree(ptr); }

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *attributes, const void *ptr) {
    const bool known = cuda_on_cpu_remembers(ptr), apart = cuda_on_cpu_in_arena(ptr);
    void *p = const_cast<void *>(ptr);
    *attributes = cudaPointerAttributes{ apart   ? cudaMemoryTypeDevice
                                         : known ? cudaMemoryTypeHost
                                                 : cudaMemoryTypeUnregistered,
                                         0, known ? p : nullptr, apart ? nullptr : p };
    return cudaSuccess;
}

// CUDA_ON_CPU_NO_PINNING=1: refuses, as in some containers.
cudaError_t cudaHostRegister(void *ptr, size_t bytes, unsigned) {
    if (!ptr || !bytes) return cuda_on_cpu_error(cudaErrorInvalidValue);
    if (getenv("CUDA_ON_CPU_NO_PINNING")) return cuda_on_cpu_error(cudaErrorNotSupported);
    remember(ptr, bytes);
    return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *ptr) {
    (void)cudaDeviceSynchronize();
    remember(ptr, 0);
    return cudaSuccess;
}

struct copy_args {
    char *dst;
    const char *src;
    size_t dst_pitch, src_pitch, width, height;
};

static void copy_rows(void *p) {
    const copy_args *a = static_cast<copy_args *>(p);
    for (size_t row = 0; a->width && row < a->height; row++) {
        memcpy(a->dst + row * a->dst_pitch, a->src + row * a->src_pitch, a->width);
    }
}

cudaError_t cudaMemcpy2DAsync(void *dst, size_t dst_pitch, const void *src, size_t src_pitch, size_t width,
                              size_t height, cudaMemcpyKind kind, cudaStream_t stream) {
    if (width > dst_pitch || width > src_pitch) return cuda_on_cpu_error(cudaErrorInvalidValue);
    if (width && height && cuda_on_cpu_protected() && cuda_on_cpu_check_copy(dst, src, kind) != cudaSuccess)
        return cuda_on_cpu_error(cudaErrorInvalidValue);
    const copy_args args = {
        static_cast<char *>(dst), static_cast<const char *>(src), dst_pitch, src_pitch, width, height
    };
    const cudaError_t e = cuda_on_cpu_enqueue(stream, copy_rows, &args, sizeof args);
    const bool in_turn = cuda_on_cpu_remembers(dst) && cuda_on_cpu_remembers(src);
    cuda_on_cpu_count_copy(!in_turn);
    return e != cudaSuccess || in_turn || !cuda_on_cpu_deferred() ? e : cuda_on_cpu_wait(stream);
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
    return cudaMemcpy2DAsync(dst, bytes, src, bytes, bytes, 1, kind, stream);
}

cudaError_t cudaMemcpy(void *dst, const void *src, size_t bytes, cudaMemcpyKind kind) {
    const cudaError_t e = cudaMemcpyAsync(dst, src, bytes, kind, nullptr);
    return e == cudaSuccess ? cudaStreamSynchronize(nullptr) : e;
}

struct fill_args {
    void *dst;
    int value;
    size_t bytes;
};

static void fill(void *p) {
    const fill_args *a = static_cast<fill_args *>(p);
    if (a->bytes) memset(a->dst, a->value, a->bytes);
}

cudaError_t cudaMemsetAsync(void *dst, int value, size_t bytes, cudaStream_t stream) {
    if (bytes && cuda_on_cpu_protected() && !cuda_on_cpu_remembers(dst))
        return cuda_on_cpu_error(cudaErrorInvalidValue);
    cuda_on_cpu_count_copy(false);
    const fill_args args = { dst, value, bytes };
    return cuda_on_cpu_enqueue(stream, fill, &args, sizeof args);
}

cudaError_t cudaMemset(void *dst, int value, size_t bytes) { return cudaMemsetAsync(dst, value, bytes, nullptr); }

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
    { cudaSuccess, "cudaSuccess", "no error" },
    { cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument" },
    { cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory" },
    { cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration", "invalid configuration argument" },
    { cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected" },
    { cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal" },
    { cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle" },
    { cudaErrorNotReady, "cudaErrorNotReady", "device not ready" },
    { cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure" },
    { cudaErrorNotPermitted, "cudaErrorNotPermitted", "operation not permitted" },
    { cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported" },
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

}  // extern "C"

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
    gridDim = uint3{ g.x, g.y, g.z };
    for (size_t i = begin; i < end; i++) {
        blockIdx = uint3{ static_cast<unsigned>(i % g.x), static_cast<unsigned>(i / g.x % g.y),
                          static_cast<unsigned>(i / g.x / g.y) };
        call->body(call->args);
    }
}

cudaError_t cuda_on_cpu_check_launch(const cudaLaunchConfig_t *config, const cuda_on_cpu_call *) {
    const dim3 &g = config->gridDim, &b = config->blockDim;
    const bool one_thread = b.x == 1 && b.y == 1 && b.z == 1;
    const bool fits = g.x && g.y && g.z && g.x <= 0x7fffffffu && g.y <= 65535 && g.z <= 65535;
    return fits && one_thread ? cudaSuccess : cudaErrorInvalidConfiguration;
}

cudaError_t cuda_on_cpu_run(const cudaLaunchConfig_t *config, const cuda_on_cpu_call *call) {
    const dim3 &g = config->gridDim;
    const size_t blocks = static_cast<size_t>(g.x) * g.y * g.z, threads = static_cast<size_t>(omp_get_max_threads());
    if (blocks == 1 || threads == 1) {  // no parallel region: waking threads takes microseconds
        if (!reserve_shared(config->dynamicSmemBytes)) return cudaErrorMemoryAllocation;
        run_blocks(config, call, 0, blocks);
        return cudaSuccess;
    }
    // A short grid takes less time than waking threads. Finding out costs at most one block, an 8th of a thread's
    // share.
    size_t first = 0;
    if (blocks >= 8 * threads) {
        if (!reserve_shared(config->dynamicSmemBytes)) return cudaErrorMemoryAllocation;
        const double give_up = omp_get_wtime() + 5e-6;
        do {
            run_blocks(config, call, first, first + 1);
            if (++first == blocks) return cudaSuccess;
        } while (omp_get_wtime() < give_up);
    }
    // About 16 pieces for each thread: a busy core or an uneven kernel (causal attention) then costs a 16th at most.
    const size_t piece = blocks / (threads * 16) + 1;
    bool ok = true;
#pragma omp parallel
    {
        const bool mine = reserve_shared(config->dynamicSmemBytes);
        if (!mine) {
#pragma omp atomic write
            ok = false;
        }
#pragma omp for schedule(dynamic)
        for (size_t begin = first; begin < blocks; begin += piece) {
            if (mine) run_blocks(config, call, begin, min(begin + piece, blocks));
        }
    }
    return ok ? cudaSuccess : cudaErrorMemoryAllocation;
}

#endif
