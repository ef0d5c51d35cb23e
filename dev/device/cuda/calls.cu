// device/calls.h on a GPU: the linker passes these calls of the program's objects here (ld --wrap; COUNTED in cuda.mk).
// A copy from or to memory that is not pinned may wait, too, and is not counted as a wait: engine and model make none
// in a step.
#include "device/calls.h"

#include <cuda_runtime_api.h>
#include <atomic>

static std::atomic<unsigned long long> kernels{ 0 }, copies{ 0 }, waits{ 0 };

DeviceCalls device_calls(void) { return DeviceCalls{ kernels, copies, waits }; }

#define WRAP(call, counter, parameters, arguments)   \
    extern "C" cudaError_t __real_##call parameters; \
    extern "C" cudaError_t __wrap_##call parameters; \
    cudaError_t __wrap_##call parameters {           \
        counter++;                                   \
        return __real_##call arguments;              \
    }
WRAP(cudaLaunchKernelExC, kernels, (const cudaLaunchConfig_t *config, const void *function, void **args),
     (config, function, args))
WRAP(cudaMemcpyAsync, copies, (void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream),
     (to, from, bytes, kind, stream))
WRAP(cudaMemsetAsync, copies, (void *to, int value, size_t bytes, cudaStream_t stream), (to, value, bytes, stream))
WRAP(cudaStreamSynchronize, waits, (cudaStream_t stream), (stream))
WRAP(cudaEventSynchronize, waits, (cudaEvent_t event), (event))
WRAP(cudaDeviceSynchronize, waits, (void), ())
