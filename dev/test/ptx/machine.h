// machine.h: what the C++ calls that translate.py makes of nvcc's PTX (machine.cpp).
//
// A kernel of PTX is a function here, and each of its threads is a fiber of the emulated GPU (dev/device/cpu/
// emulated.cpp), which has the barriers, the warp operations and the memory. A register is a local variable. Global
// memory has its addresses in this process. A shared variable has an address of its own, number << 24, so that any
// access outside of it is found; variable DYNAMIC is what the launch asks for.
//
// What stops the program, naming the line of PTX:
//   an access that is not aligned to its size, all elements of a vector together
//   an access to shared memory outside of the variable, to global memory outside of an allocation (AddressSanitizer)
//   ld.global.nc of what the same launch writes: a GPU's read-only path may return old values
//   what emulated.cpp and tensor_cores.cpp find: barriers, masks, lanes that meet in different operations, copies
#ifndef PTX_MACHINE_H
#define PTX_MACHINE_H
#include "cuda_runtime.h"

#define SITE_ARGS const char *file, int line

// ---------------------------------------------------------------------------------------------------------------------
// Kernels

enum { PTX_DYNAMIC = 15, PTX_VARIABLES = 16 };

struct ptx_variable {  // in shared memory
    size_t bytes, alignment;
};

struct ptx_kernel {
    const char *source, *name;  // name of the .cu file without directory, and the entry's, mangled
    const char *hash;           // of the translation: kernels with the same one are the same function
    size_t param_bytes;
    void (*run)(const char *params);
    const ptx_variable *variables;  // ends with bytes 0
    int fault;                      // 0: as nvcc made it; otherwise PTX_FAULT chooses it (check_ptx.sh)
};

struct ptx_kernels {  // adds them to those that launches find
    ptx_kernels(const ptx_kernel *first, size_t count);
};

// ---------------------------------------------------------------------------------------------------------------------
// Memory

struct ptx_placed {
    char *begin;
    size_t bytes;
};
extern ptx_placed ptx_shared_memory[PTX_VARIABLES];

[[noreturn]] void ptx_die(SITE_ARGS, const char *format, ...) __attribute__((format(printf, 3, 4)));
void ptx_load(void *to, unsigned bytes, uint64_t at, SITE_ARGS);
void ptx_load_nc(void *to, unsigned bytes, uint64_t at, SITE_ARGS);
void ptx_store(const void *from, unsigned bytes, uint64_t at, SITE_ARGS);
uint32_t ptx_to_shared(uint64_t generic, SITE_ARGS);

static inline char *ptx_shared(uint32_t at, unsigned bytes, SITE_ARGS) {
    const uint32_t number = at >> 24, offset = at & 0xffffff;
    if (number >= PTX_VARIABLES || offset + bytes > ptx_shared_memory[number].bytes)
        ptx_die(file, line, "%u bytes at 0x%x are outside of the shared variable", bytes, at);
    char *p = ptx_shared_memory[number].begin + offset;
    if (reinterpret_cast<uintptr_t>(p) % bytes)
        ptx_die(file, line, "misaligned access of %u bytes at 0x%x of shared memory", bytes, at);
    return p;
}

static inline uint64_t ptx_from_shared(uint32_t at) {
    return reinterpret_cast<uint64_t>(ptx_shared_memory[at >> 24 & 15].begin) + (at & 0xffffff);
}

template <class T> static inline T ptx_param(const char *params, size_t bytes, uint64_t at, SITE_ARGS) {
    if (at > bytes - sizeof(T)) ptx_die(file, line, "parameter at %llu of %zu", (unsigned long long)at, bytes);
    T x;
    memcpy(&x, params + at, sizeof x);
    return x;
}

// ---------------------------------------------------------------------------------------------------------------------
// Instructions for which C++ has no operator

template <class To, class From> static inline To ptx_bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "same size");
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}

// A division by zero gives all ones, and nothing traps.
template <class T> static inline T ptx_div(T a, T b) { return b ? static_cast<T>(a / b) : static_cast<T>(-1); }
template <class T> static inline T ptx_rem(T a, T b) { return b ? static_cast<T>(a % b) : static_cast<T>(-1); }

// Shifts by at least the width, where C++ has no answer.
template <class T> static inline T ptx_shl(T a, uint32_t n) { return n < 8 * sizeof a ? static_cast<T>(a << n) : 0; }
template <class T> static inline T ptx_shr(T a, uint32_t n) {
    const uint32_t last = 8 * sizeof a - 1;
    return n <= last ? static_cast<T>(a >> n) : static_cast<T>(a >> last >> last);  // signed: copies of the sign
}

template <class T> static inline T ptx_mul_hi(T a, T b) {
    return static_cast<T>((static_cast<__int128>(a) * static_cast<__int128>(b)) >> 8 * sizeof a);
}
template <> inline uint64_t ptx_mul_hi<uint64_t>(uint64_t a, uint64_t b) {
    return static_cast<uint64_t>((static_cast<unsigned __int128>(a) * b) >> 64);
}

// Puts the lowest `bits` bits of a into b, from bit `at` on.
static inline uint32_t ptx_bfi(uint32_t a, uint32_t b, uint32_t at, uint32_t bits) {
    at &= 255, bits &= 255;
    if (at > 31) return b;
    const uint32_t mask = bits > 31 ? ~0u << at : ((1u << bits) - 1) << at;
    return (b & ~mask) | (a << at & mask);
}

static inline uint32_t ptx_bfe(uint32_t a, uint32_t at, uint32_t bits) {
    at &= 255, bits &= 255;
    const uint32_t shifted = at > 31 ? 0 : a >> at;
    return bits > 31 ? shifted : shifted & ((1u << bits) - 1);
}

static inline uint32_t ptx_funnel_left(uint32_t low, uint32_t high, uint32_t n) {
    return static_cast<uint32_t>((static_cast<uint64_t>(high) << 32 | low) << (n & 31) >> 32);
}
static inline uint32_t ptx_funnel_right(uint32_t low, uint32_t high, uint32_t n) {
    return static_cast<uint32_t>((static_cast<uint64_t>(high) << 32 | low) >> (n & 31));
}

static inline uint32_t ptx_lop3(uint32_t a, uint32_t b, uint32_t c, uint32_t table) {
    uint32_t r = 0;
    for (uint32_t i = 0; i < 8; i++)
        if (table >> i & 1) r |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
    return r;
}

// Picks four of the eight bytes of b:a, or their signs.
static inline uint32_t ptx_prmt(uint32_t a, uint32_t b, uint32_t pick) {
    const uint64_t x = static_cast<uint64_t>(b) << 32 | a;
    uint32_t r = 0;
    for (int i = 0; i < 4; i++) {
        const uint32_t which = pick >> 4 * i & 15, byte = static_cast<uint32_t>(x >> 8 * (which & 7)) & 255;
        r |= (which & 8 ? (byte & 128 ? 255 : 0) : byte) << 8 * i;
    }
    return r;
}

static inline uint16_t ptx_to_bf16(float f) {
    const uint32_t u = ptx_bits<uint32_t>(f);
    if ((u & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
    return static_cast<uint16_t>((u + 0x7fffu + (u >> 16 & 1)) >> 16);
}
static inline float ptx_from_bf16(uint16_t h) { return ptx_bits<float>(static_cast<uint32_t>(h) << 16); }

// Out of range: the nearest that there is; NaN: 0.
template <class T, class F> static inline T ptx_to_integer(F x) {
    const F limit = static_cast<F>(1ull << (8 * sizeof(T) - 1)) * (static_cast<T>(-1) < 0 ? 1 : 2);
    const T most = static_cast<T>(-1) < 0 ? static_cast<T>(~(1ull << (8 * sizeof(T) - 1))) : static_cast<T>(~0ull);
    if (!(x == x)) return 0;
    if (x >= limit) return most;
    if (static_cast<T>(-1) < 0 ? x < -limit : x <= -1) return static_cast<T>(-1) < 0 ? static_cast<T>(~most) : 0;
    return static_cast<T>(x);
}

static inline float ptx_saturate(float x) { return x > 1 ? 1.0f : x > 0 ? x : 0.0f; }  // NaN: 0
static inline float ptx_flush(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0, x) : x; }
float ptx_fma_down(float a, float b, float c);  // rounded towards minus infinity

// ---------------------------------------------------------------------------------------------------------------------
// Warps, tensor cores

// c: 31 (0 for `up`), and from bit 8 on 32 - width. *valid: the lane that it reads is in its segment.
uint32_t ptx_shfl(cuda_on_cpu_warp_op op, uint32_t a, uint32_t b, uint32_t c, uint32_t mask, bool *valid, SITE_ARGS);
void ptx_copy_async(uint32_t to, uint64_t from, unsigned bytes, uint32_t valid_bytes, SITE_ARGS);

#endif
