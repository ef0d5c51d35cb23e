// What all kernels share: the type of parameters and activations (floatX), checks that end the job, and LAUNCH.
#ifndef GPT2_COMMON_CUH
#define GPT2_COMMON_CUH

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "gpt2/config.h"
#include "trainer/launch.h"    // launch_abort
#include "trainer/profiler.h"  // --profile: the time of each kind of work, beside its floor
#include "zero/device.cuh"     // packs, warp and block sums: one kernel source for GPU and CPU
#include "zero/types.h"

#ifdef PRECISION_BF16
typedef bf16 floatX;
static const enum zero_dtype FLOATX = ZERO_BF16;
DEV float ld_one(const floatX *p) { return __bfloat162float(*p); }
#else
typedef float floatX;
static const enum zero_dtype FLOATX = ZERO_F32;
DEV float ld_one(const floatX *p) { return *p; }
#endif

// Prints a message and ends all ranks.
__attribute__((format(printf, 3, 4), noreturn)) static void fatal(const char *file, int line, const char *format, ...) {
    va_list args;
    va_start(args, format);
    fprintf(stderr, "error: rank %d: %s:%d: ", launch()->rank, file, line);
    vfprintf(stderr, format, args);
    fprintf(stderr, "\n");
    va_end(args);
    fflush(NULL);
    launch_abort();
}

// Called before the job ends for a failed CUDA call; may end it with a better diagnosis. NULL: none.
static void (*device_has_failed)(void);

static void check_cuda(cudaError_t e, const char *what, const char *file, int line) {
    if (e == cudaSuccess) return;
    if (device_has_failed) device_has_failed();
    fatal(file, line, "%s: %s (%s)", what, cudaGetErrorString(e), cudaGetErrorName(e));
}
#define cudaCheck(call) check_cuda((call), #call, __FILE__, __LINE__)

[[maybe_unused]] static void check_zero(int status, const char *what, const char *file, int line) {
    if (status != ZERO_OK) fatal(file, line, "%s: error %d", what, status);
}
#define zeroCheck(call) check_zero((call), #call, __FILE__, __LINE__)

static_assert(GPT2_PACK == PACK, "gpt2/config.h and zero/device.cuh disagree");

static size_t ceil_div(size_t a, size_t b) { return (a + b - 1) / b; }

static cudaLaunchConfig_t launch_config(size_t blocks, int threads, size_t shared_bytes, cudaStream_t stream) {
    cudaLaunchConfig_t c = {};
    c.gridDim = dim3((unsigned)blocks);
    c.blockDim = dim3((unsigned)block_threads(threads));
    c.dynamicSmemBytes = shared_bytes;
    c.stream = stream;
    return c;
}

static Profile *profile;  // not NULL in the steps that --profile measures

// Launches a kernel, and times it under its name. A macro, so that a failure shows the line of the launch. A GPU must
// be asked before it gives a block more than 48 KB of shared memory.
#define LAUNCH(blocks, threads, shared_bytes, stream, kernel, ...)                               \
    do {                                                                                         \
        const cudaLaunchConfig_t launch_ = launch_config(blocks, threads, shared_bytes, stream); \
        if (launch_.dynamicSmemBytes > 48 << 10)                                                 \
            cudaCheck(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,  \
                                           (int)launch_.dynamicSmemBytes));                      \
        profile_begin(profile, #kernel, stream);                                                 \
        cudaCheck(cudaLaunchKernelEx(&launch_, kernel, __VA_ARGS__));                            \
        profile_end(profile);                                                                    \
    } while (0)

#endif
