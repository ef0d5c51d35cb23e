// The part of the CUDA runtime's C interface that zero.c uses, for a machine without a GPU.
//
// With -Idev/device/cpu before any CUDA directory, `#include <cuda_runtime_api.h>` finds this file, and gcc and g++
// build the same sources that nvcc builds for a GPU. The "device" is the host: device memory is host memory, and a
// stream's work is done before the call that enqueued it returns, unless CUDA_ON_CPU_STREAMS says otherwise
// (streams.cpp). Names, argument order, error numbers and meaning are CUDA's own. Only the differences are listed here:
//
// - There is one device, number 0.
// - cudaMalloc allocates the exact size, so that AddressSanitizer sees the first byte past the end. It aligns to 256
//   bytes; from 2 MB on, to 2 MB, with huge pages. The emulated build fills new memory with NaN: a GPU's new memory is
//   not zero either.
// - A pinned allocation is an ordinary one, and registering memory does nothing.
// - The host can read and write device memory, unless CUDA_ON_CPU_PROTECT=n prevents it (protect.cpp).
// - A host function (cudaLaunchHostFunc) that calls CUDA gets cudaErrorNotPermitted; with CUDA_ON_CPU_PROTECT it may
//   not touch device memory.
// - A copy between overlapping ranges is an error, as on a GPU; AddressSanitizer reports it.
//
// Functions that the project does not need are left out. Plain C11 and C++17.
#ifndef CUDA_ON_CPU_RUNTIME_API_H
#define CUDA_ON_CPU_RUNTIME_API_H

#include <stddef.h>
#include <stdint.h>

#define CUDA_ON_CPU    1
#define CUDART_VERSION 13000

#ifdef __cplusplus
extern "C" {
#endif

// Ignoring a result is a warning, where the compiler has the attribute: clang has it in C++ and C23 only.
#if defined __cplusplus || __STDC_VERSION__ >= 202000L || (__GNUC__ >= 10 && !defined __clang__)
#define CUDA_ON_CPU_NODISCARD [[nodiscard]]
#else
#define CUDA_ON_CPU_NODISCARD
#endif

typedef enum CUDA_ON_CPU_NODISCARD cudaError {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInvalidConfiguration = 9,
    cudaErrorNoDevice = 100,
    cudaErrorInvalidDevice = 101,
    cudaErrorInvalidResourceHandle = 400,
    cudaErrorNotReady = 600,
    cudaErrorLaunchFailure = 719,
    cudaErrorNotPermitted = 800,
    cudaErrorNotSupported = 801,
    cudaErrorUnknown = 999
} cudaError_t;

enum cudaMemcpyKind {
    cudaMemcpyHostToHost,
    cudaMemcpyHostToDevice,
    cudaMemcpyDeviceToHost,
    cudaMemcpyDeviceToDevice,
    cudaMemcpyDefault
};

enum cudaMemoryType { cudaMemoryTypeUnregistered, cudaMemoryTypeHost, cudaMemoryTypeDevice };

struct cudaPointerAttributes {
    enum cudaMemoryType type;
    int device;
    void *devicePointer, *hostPointer;  // NULL: not for that side
};

enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };

typedef struct CUstream_st *cudaStream_t;
typedef struct CUevent_st *cudaEvent_t;
typedef void (*cudaHostFn_t)(void *user_data);

typedef struct cudaUUID {
    char bytes[16];
} cudaUUID_t;

struct cudaDeviceProp {
    char name[256];
    cudaUUID_t uuid;        // zeros
    size_t totalGlobalMem;  // bytes of the host's memory
    size_t sharedMemPerBlock;
    size_t sharedMemPerBlockOptin;
    int warpSize;             // 1 in the fast build, 32 in the emulated one
    int maxThreadsPerBlock;   // 1 or 1024
    int multiProcessorCount;  // OpenMP threads
    int major, minor;
};

#define cudaStreamDefault       0u
#define cudaStreamNonBlocking   1u
#define cudaEventDefault        0u
#define cudaEventBlockingSync   1u
#define cudaEventDisableTiming  2u
#define cudaHostRegisterDefault 0u

cudaError_t cudaGetDeviceCount(int *count);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDevice(int *device);
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int device);
cudaError_t cudaDeviceSynchronize(void);
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes);  // of the host: what can be allocated without
                                                                      // swapping

cudaError_t cudaMalloc(void **ptr, size_t bytes);
cudaError_t cudaFree(void *ptr);
cudaError_t cudaMallocHost(void **ptr, size_t bytes);
cudaError_t cudaFreeHost(void *ptr);
cudaError_t cudaHostRegister(void *ptr, size_t bytes, unsigned flags);
cudaError_t cudaHostUnregister(void *ptr);
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *ptr);

cudaError_t cudaMemcpy(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind);
cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaMemcpy2DAsync(void *dst, size_t dst_pitch, const void *src, size_t src_pitch, size_t width,
                              size_t height, enum cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaMemset(void *dst, int value, size_t bytes);
cudaError_t cudaMemsetAsync(void *dst, int value, size_t bytes, cudaStream_t stream);

cudaError_t cudaStreamCreate(cudaStream_t *stream);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority);
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn, void *user_data);

cudaError_t cudaEventCreate(cudaEvent_t *event);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end);

cudaError_t cudaGetLastError(void);  // of the calling thread, and forgets it
cudaError_t cudaPeekAtLastError(void);
const char *cudaGetErrorName(cudaError_t error);
const char *cudaGetErrorString(cudaError_t error);

// Not CUDA's: runs fn(a copy of the `bytes` at args) in its turn on the stream, for host code that stands for a library
// of the device.
cudaError_t cuda_on_cpu_enqueue(cudaStream_t stream, void (*fn)(void *args), const void *args, size_t bytes);
// The same for what waits for other processes: step is called until it returns non-zero.
cudaError_t cuda_on_cpu_enqueue_until(cudaStream_t stream, int (*step)(void *args), const void *args, size_t bytes);

// From here on all work and all waits fail, as after a kernel that has failed on a GPU.
void cuda_on_cpu_break(void);

// Not CUDA's: from now on fn(ctx, name) is called before each operation of a stream runs, with the NVTX ranges in which
// it was queued (nvtx3/), as in "outer/inner". NULL: no more.
void cuda_on_cpu_trace(void (*fn)(void *ctx, const char *name), void *ctx);
const char *cuda_on_cpu_range(void);  // the ranges that the calling thread is in

// Not CUDA's: launches of kernels, copies and fills, and calls in which the host waits, since the start. A wait counts
// also if there is nothing left to wait for; copies from or to memory that is not pinned are waits.
typedef struct cuda_on_cpu_calls {
    uint64_t kernels, copies, waits;
} cuda_on_cpu_calls;
cuda_on_cpu_calls cuda_on_cpu_calls_so_far(void);

#ifdef CUDA_ON_CPU_EMULATED
// Not CUDA's: what the warps of the emulated GPU ask of its memory (memory_requests.cpp). A request is one instruction
// of a warp, of at most 16 bytes a lane.
typedef struct cuda_on_cpu_memory {
    uint64_t requests, sectors, fewest_sectors;  // global memory: 32-byte sectors that the requests touch, and
                                                 // would touch if each had its bytes side by side
    uint64_t stored;                             // bytes stored to global memory
    uint64_t shared_requests, wavefronts, fewest_wavefronts;  // shared memory: passes over its 32 banks, and without
                                                              // conflicts
} cuda_on_cpu_memory;
void cuda_on_cpu_count_memory(int on);  // off at first
cuda_on_cpu_memory cuda_on_cpu_memory_so_far(void);
// Adds what was counted between two recorded events that have passed, as cudaEventElapsedTime measures time.
void cuda_on_cpu_add_memory_between(cuda_on_cpu_memory *sum, cudaEvent_t start, cudaEvent_t end);
#endif

#ifdef __cplusplus
}
#endif
#endif
