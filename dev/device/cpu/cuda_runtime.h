// The part of CUDA that kernels and their launches need, for g++: qualifiers, built-in variables, barriers, shuffles,
// launches.
//
// There are two builds, chosen by one macro for the whole program:
//
// - fast (the default): a GPU whose blocks have one thread and whose warps are one lane wide. threadIdx and blockDim
//   are constants, shuffles are the identity, barriers do nothing, and the blocks of a grid are distributed over OpenMP
//   threads. A kernel in which a block owns a contiguous range and steps by blockDim.x * PACK becomes a plain loop,
//   which the compiler vectorises.
// - emulated (-DCUDA_ON_CPU_EMULATED): 32-lane warps and whole blocks as fibers, with real barriers and shuffles
//   (emulated.cpp). Slow; it tests a kernel's indexing and synchronisation without a GPU.
//
// __global__ functions, and functions that own __shared__ variables, must be static: a static variable in a named
// section may not be in code that the linker merges. blockIdx and the other built-in variables are variables, not
// macros, because CUDA's structs have members of those names; they are `__thread` rather than `extern thread_local`,
// which would be accessed through an initialisation wrapper.
#ifndef CUDA_ON_CPU_RUNTIME_H
#define CUDA_ON_CPU_RUNTIME_H

#include "cuda_runtime_api.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <tuple>
#include <type_traits>
#include <utility>

struct uint3 {
    unsigned x, y, z;
};

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};

struct cudaLaunchAttribute {
    int id;
};

struct cudaLaunchConfig_t {
    dim3 gridDim, blockDim;
    size_t dynamicSmemBytes;
    cudaStream_t stream;
    cudaLaunchAttribute *attrs;
    unsigned numAttrs;
};

#define __global__ static
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))

// ---------------------------------------------------------------------------------------------------------------------
// The two devices. gridDim is a uint3, not a dim3: a thread-local variable with a constructor would need the wrapper.

extern __thread uint3 blockIdx;
extern __thread uint3 gridDim;

void *cuda_on_cpu_dynamic_shared();

#ifdef CUDA_ON_CPU_EMULATED

#define CUDA_ON_CPU_WARP 32
// All fibers run on one thread, so a shared variable is a plain static; the section lets the emulator poison all of
// them at once.
#define __shared__       static __attribute__((section("cuda_on_cpu_shared")))
#define CUDA_ON_CPU_SITE const char *file = __builtin_FILE(), int line = __builtin_LINE()

extern uint3 threadIdx;
extern uint3 blockDim;

enum cuda_on_cpu_warp_op {
    CUDA_ON_CPU_SYNCWARP,
    CUDA_ON_CPU_SHFL,
    CUDA_ON_CPU_SHFL_XOR,
    CUDA_ON_CPU_SHFL_DOWN,
    CUDA_ON_CPU_SHFL_UP,
    CUDA_ON_CPU_MATRIX
};

void cuda_on_cpu_syncthreads(const char *file, int line);
uint64_t cuda_on_cpu_warp(cuda_on_cpu_warp_op op, unsigned mask, uint64_t value, int arg, int width, const char *file,
                          int line);
bool cuda_on_cpu_forgotten(const char *function, void *frame);
void cuda_on_cpu_check_aligned(const void *p, size_t alignment);  // stops the program, as a GPU's wide access
                                                                  // would
void cuda_on_cpu_check_shared(const void *p, size_t bytes);       // stops the program if p is not in shared memory
size_t cuda_on_cpu_dynamic_shared_bytes();
[[noreturn]] void cuda_on_cpu_die(const char *what);  // says which launch, block and thread

// An access by this thread, of 4 or 8 bytes, or of 16 bytes at a time; p must be aligned to it. memory_requests.cpp
// counts them. call: distinguishes the places of a kernel; those of cuda_on_cpu_load and _store are their callers.
void cuda_on_cpu_load(const void *p, size_t bytes);
void cuda_on_cpu_store(void *p, size_t bytes);
void cuda_on_cpu_count(const void *p, size_t bytes, bool is_store, const void *call);
void cuda_on_cpu_count_block();  // all threads of a block have ended

enum cuda_on_cpu_space { CUDA_ON_CPU_GLOBAL, CUDA_ON_CPU_SHARED, CUDA_ON_CPU_STACK };
cuda_on_cpu_space cuda_on_cpu_space_of(const void *p, size_t bytes);

// Waits until all lanes of the warp have called it at this place; the last one calls work(operands of lanes 0 to 31).
void cuda_on_cpu_meet(void (*work)(void *const *operands), void *operands, const char *file, int line);

// Matrix instructions and asynchronous copies: tensor_cores.cpp, for dev/device/mma.cuh.
void cuda_on_cpu_mma(float *d, const uint32_t *a, uint32_t b0, uint32_t b1, const char *file, int line);
void cuda_on_cpu_ldmatrix(uint32_t *r, const void *p, bool transposed, const char *file, int line);
void cuda_on_cpu_copy_async(void *to, const void *from, size_t bytes, bool valid);
void cuda_on_cpu_copy_commit();
void cuda_on_cpu_copy_wait(unsigned groups);
size_t cuda_on_cpu_copies_pending();  // of this thread

static inline void __syncthreads(CUDA_ON_CPU_SITE) { cuda_on_cpu_syncthreads(file, line); }

static inline void __syncwarp(unsigned mask = 0xffffffffu, CUDA_ON_CPU_SITE) {
    cuda_on_cpu_warp(CUDA_ON_CPU_SYNCWARP, mask, 0, 0, 32, file, line);
}

template <class T>
static inline T cuda_on_cpu_shfl(cuda_on_cpu_warp_op op, unsigned mask, T v, int arg, int width, const char *file,
                                 int line) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "a shuffle moves 4 or 8 bytes");
    uint64_t bits = 0;
    memcpy(&bits, &v, sizeof v);
    bits = cuda_on_cpu_warp(op, mask, bits, arg, width, file, line);
    memcpy(&v, &bits, sizeof v);
    return v;
}

template <class T> static inline T __shfl_sync(unsigned mask, T v, int lane, int width = 32, CUDA_ON_CPU_SITE) {
    return cuda_on_cpu_shfl(CUDA_ON_CPU_SHFL, mask, v, lane, width, file, line);
}
template <class T> static inline T __shfl_xor_sync(unsigned mask, T v, int lanes, int width = 32, CUDA_ON_CPU_SITE) {
    return cuda_on_cpu_shfl(CUDA_ON_CPU_SHFL_XOR, mask, v, lanes, width, file, line);
}
template <class T>
static inline T __shfl_down_sync(unsigned mask, T v, unsigned delta, int width = 32, CUDA_ON_CPU_SITE) {
    return cuda_on_cpu_shfl(CUDA_ON_CPU_SHFL_DOWN, mask, v, static_cast<int>(delta), width, file, line);
}
template <class T>
static inline T __shfl_up_sync(unsigned mask, T v, unsigned delta, int width = 32, CUDA_ON_CPU_SITE) {
    return cuda_on_cpu_shfl(CUDA_ON_CPU_SHFL_UP, mask, v, static_cast<int>(delta), width, file, line);
}

#else

#define CUDA_ON_CPU_WARP 1
#define __shared__       static thread_local

struct cuda_on_cpu_zero {
    static constexpr unsigned x = 0, y = 0, z = 0;
};
struct cuda_on_cpu_one {
    static constexpr unsigned x = 1, y = 1, z = 1;
};
static constexpr cuda_on_cpu_zero threadIdx{};
static constexpr cuda_on_cpu_one blockDim{};

static inline void __syncthreads() {}
static inline void __syncwarp(unsigned = 1) {}
template <class T> static inline T __shfl_sync(unsigned, T v, int, int = 1) { return v; }
template <class T> static inline T __shfl_xor_sync(unsigned, T v, int, int = 1) { return v; }
template <class T> static inline T __shfl_down_sync(unsigned, T v, unsigned, int = 1) { return v; }
template <class T> static inline T __shfl_up_sync(unsigned, T v, unsigned, int = 1) { return v; }

#endif

// ---------------------------------------------------------------------------------------------------------------------
// Device functions.

static inline int atomicAdd(int *p, int v) { return __atomic_fetch_add(p, v, __ATOMIC_RELAXED); }
static inline unsigned atomicAdd(unsigned *p, unsigned v) { return __atomic_fetch_add(p, v, __ATOMIC_RELAXED); }
static inline unsigned long long atomicAdd(unsigned long long *p, unsigned long long v) {
    return __atomic_fetch_add(p, v, __ATOMIC_RELAXED);
}
float atomicAdd(float *, float) = delete;  // a sum in an order that nobody chose: not the same bits twice
double atomicAdd(double *, double) = delete;

static inline int atomicCAS(int *p, int expected, int desired) {
    __atomic_compare_exchange_n(p, &expected, desired, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return expected;
}

static inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

template <class To, class From> static inline To cuda_on_cpu_bits(From v) {
    static_assert(sizeof(To) == sizeof(From), "same size");
    To to;
    memcpy(&to, &v, sizeof to);
    return to;
}
static inline float __int_as_float(int v) { return cuda_on_cpu_bits<float>(v); }
static inline float __uint_as_float(unsigned v) { return cuda_on_cpu_bits<float>(v); }
static inline int __float_as_int(float v) { return cuda_on_cpu_bits<int>(v); }
static inline unsigned __float_as_uint(float v) { return cuda_on_cpu_bits<unsigned>(v); }
static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }

template <class T> static inline constexpr T min(T a, T b) { return b < a ? b : a; }
template <class T> static inline constexpr T max(T a, T b) { return b > a ? b : a; }

// ---------------------------------------------------------------------------------------------------------------------
// Launch. A macro, so that a diagnosis can show the launch as it is written in the source.

typedef void (*cuda_on_cpu_fn)();

struct cuda_on_cpu_call {
    void (*body)(void *args);  // runs one thread of the grid
    // copies the arguments to where a GPU's kernel finds them; returns their bytes
    size_t (*pass)(const void *args, char *params);
    void *args;
    size_t args_bytes;
    cuda_on_cpu_fn kernel;    // identifies the kernel
    const char *text, *file;  // the launch's source text and place
    int line;
};

#define CUDA_ON_CPU_SHARED_DEFAULT ((size_t)48 << 10)   // dynamic shared memory without, and at most with,
#define CUDA_ON_CPU_SHARED_OPTIN   ((size_t)163 << 10)  // cudaFuncSetAttribute: of an A100, an H100 has more

cudaError_t cuda_on_cpu_launch(const cudaLaunchConfig_t *config, const cuda_on_cpu_call *call);  // streams.cpp
// can it be run?
cudaError_t cuda_on_cpu_check_launch(const cudaLaunchConfig_t *config, const cuda_on_cpu_call *call);
// now, by this thread
cudaError_t cuda_on_cpu_run(const cudaLaunchConfig_t *config, const cuda_on_cpu_call *call);
cudaError_t cuda_on_cpu_max_dynamic_shared(cuda_on_cpu_fn kernel, int bytes);
// If dev/test/ptx/ is linked: makes the call run nvcc's PTX of the kernel instead of what g++ made of it.
void cuda_on_cpu_ptx(cuda_on_cpu_call *call) __attribute__((weak));
cudaError_t cuda_on_cpu_error(cudaError_t error);   // remembers it for cudaGetLastError, returns it
bool cuda_on_cpu_deferred();                        // does work wait in its stream's queue?
void cuda_on_cpu_count_copy(bool waits);            // for cuda_on_cpu_calls_so_far
cudaError_t cuda_on_cpu_wait(cudaStream_t stream);  // cudaStreamSynchronize that does not count

bool cuda_on_cpu_protected();                 // protect.cpp: is the host kept off the device's memory?
void *cuda_on_cpu_arena_alloc(size_t bytes);  // such memory
void cuda_on_cpu_arena_free(void *ptr);
bool cuda_on_cpu_in_arena(const void *ptr);
bool cuda_on_cpu_remembers(const void *ptr);  // runtime.cpp: the device's or pinned
void cuda_on_cpu_check_pointer(const void *argument, const cuda_on_cpu_call *call);
cudaError_t cuda_on_cpu_check_copy(const void *dst, const void *src, cudaMemcpyKind kind);

// evidence.cpp
struct cuda_on_cpu_symbol {
    const char *name, *file;  // as the linker knows them; "" if it does not
};
cuda_on_cpu_symbol cuda_on_cpu_find_symbol(const void *function);
void cuda_on_cpu_executed(const void *function);

struct cuda_on_cpu_operation {  // while one lives, the device's memory may be touched
    cuda_on_cpu_operation();
    ~cuda_on_cpu_operation();
};

template <class T> static inline void cuda_on_cpu_check_argument(const T &argument, const cuda_on_cpu_call *call) {
    if constexpr (std::is_pointer<T>::value) cuda_on_cpu_check_pointer(argument, call);
    (void)argument, (void)call;
}

// A GPU's kernel finds its arguments one after the other, each aligned as its type.
template <class T> static inline void cuda_on_cpu_pass(const T &argument, char *params, size_t &bytes) {
    bytes = (bytes + alignof(T) - 1) / alignof(T) * alignof(T);
    memcpy(params + bytes, &argument, sizeof argument);
    bytes += sizeof argument;
}

template <class... E, class... A>
static inline cudaError_t cuda_on_cpu_launch_kernel(const char *text, const char *file, int line,
                                                    const cudaLaunchConfig_t *config, void (*kernel)(E...),
                                                    A &&...args) {
    static_assert((std::is_trivially_copyable<E>::value && ...), "a kernel's arguments are copied byte for byte");
    static_assert((sizeof(E) + ... + 0) <= 4096, "a kernel's arguments are at most 4096 bytes");
    struct bound {
        void (*kernel)(E...);
        std::tuple<E...> args;
    } b{ kernel, std::tuple<E...>(std::forward<A>(args)...) };
    const cuda_on_cpu_call call = { [](void *p) {
                                       std::apply(static_cast<bound *>(p)->kernel, static_cast<bound *>(p)->args);
                                   },
                                    [](const void *p, char *params) {
                                        size_t bytes = 0;
                                        std::apply([&](const auto &...a) { (cuda_on_cpu_pass(a, params, bytes), ...); },
                                                   static_cast<const bound *>(p)->args);
                                        return bytes;
                                    },
                                    &b,
                                    sizeof b,
                                    reinterpret_cast<cuda_on_cpu_fn>(kernel),
                                    text,
                                    file,
                                    line };
    if (cuda_on_cpu_protected())
        std::apply([&call](const auto &...a) { (cuda_on_cpu_check_argument(a, &call), ...); }, b.args);
    return cuda_on_cpu_launch(config, &call);
}

#define cudaLaunchKernelEx(config, ...) cuda_on_cpu_launch_kernel(#__VA_ARGS__, __FILE__, __LINE__, config, __VA_ARGS__)

template <class... E>
static inline cudaError_t cudaFuncSetAttribute(void (*kernel)(E...), cudaFuncAttribute attribute, int value) {
    return attribute == cudaFuncAttributeMaxDynamicSharedMemorySize
               ? cuda_on_cpu_max_dynamic_shared(reinterpret_cast<cuda_on_cpu_fn>(kernel), value)
               : cudaErrorInvalidValue;
}

#endif
