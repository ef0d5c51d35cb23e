// bfloat16 for the CPU: the upper half of a float. Only conversions, no arithmetic: kernels compute in fp32 and round
// once, when they store. Conversion rounds to nearest, ties to even, and turns every NaN into 0x7fff, as a GPU does.
#ifndef CUDA_ON_CPU_BF16_H
#define CUDA_ON_CPU_BF16_H

#include <cstdint>
#include <cstring>

struct __nv_bfloat16 {
    uint16_t bits;
};

static inline float __bfloat162float(__nv_bfloat16 h) {
    const uint32_t u = static_cast<uint32_t>(h.bits) << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static inline __nv_bfloat16 __float2bfloat16_rn(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    const bool nan = (u & 0x7fffffffu) > 0x7f800000u;
    const uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    return __nv_bfloat16{ static_cast<uint16_t>(nan ? 0x7fffu : rounded) };
}

static inline __nv_bfloat16 __float2bfloat16(float f) { return __float2bfloat16_rn(f); }

#endif
