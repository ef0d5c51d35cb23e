// pack.cuh: how many elements a pack has (device.cuh says what a pack is); and, for sources that define VECTOR_PACKS,
// the packs of a CPU: vector registers, by GCC's vector extension, which has the operators. Before it is included, DEV
// is what functions begin with, and bf16 a type of 2 bytes.
#ifndef ZERO_PACK_CUH
#define ZERO_PACK_CUH

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

constexpr int PACK = 8;

#ifdef VECTOR_PACKS
typedef float fvec __attribute__((vector_size(4 * PACK)));
typedef int32_t ivec __attribute__((vector_size(4 * PACK)));
typedef uint32_t uvec __attribute__((vector_size(4 * PACK)));
typedef uint16_t hvec __attribute__((vector_size(2 * PACK)));

DEV fvec ld(const float *p) {
    fvec x;
    memcpy(&x, p, sizeof x);
    return x;
}

DEV void st(float *p, fvec x) { memcpy(p, &x, sizeof x); }

DEV fvec ld(const bf16 *p) {
    hvec h;
    memcpy(&h, p, sizeof h);
    return (fvec)(__builtin_convertvector(h, uvec) << 16);
}

DEV void st(bf16 *p, fvec x) {
    const uvec u = (uvec)x;
    const uvec nan = (uvec)((u & 0x7fffffff) > 0x7f800000);
    const uvec rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
    const hvec h = __builtin_convertvector((rounded & ~nan) | (nan & 0x7fff), hvec);
    memcpy(p, &h, sizeof h);
}

// Packs of words: the bits of an fvec, or eight 16-bit words in memory (to store, only the low halves of the pack
// count). each(f, x, ...) is f of each word; f is called with whole vectors here, and word by word on a GPU.
DEV uvec bits(fvec x) { return (uvec)x; }
DEV fvec from_bits(uvec u) { return (fvec)u; }

DEV uvec ld16(const void *p) {
    hvec h;
    memcpy(&h, p, sizeof h);
    return __builtin_convertvector(h, uvec);
}

DEV void st16(void *p, uvec u) {
    const hvec h = __builtin_convertvector(u, hvec);
    memcpy(p, &h, sizeof h);
}

template <class F, class... Packs> DEV uvec each(F f, Packs... x) { return f(x...); }

DEV fvec vsqrt(fvec x) {
    for (int k = 0; k < PACK; k++) x[k] = sqrtf(x[k]);
    return x;
}

DEV fvec vmax(fvec a, fvec b) { return b > a ? b : a; }

// exp to about 1 ulp (the polynomial of Cephes): x = n ln 2 + r, and 2^n goes into the exponent's bits. 0 below -87 and
// infinity above 88, slightly before the limits of float; NaN stays NaN.
DEV fvec vexp(fvec x) {
    const fvec zero = {}, infinity = zero + INFINITY;
    const fvec magic = zero + 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
    const fvec n = (x * 1.44269504088896341f + magic) - magic;
    fvec r = x - n * 0.693145751953125f;  // ln 2 in two parts: the first is exact in few bits
    r = r - n * 1.42860682030941723212e-6f;
    fvec p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    const fvec power = (fvec)((__builtin_convertvector(n, ivec) + 127) << 23);
    const fvec y = p * power;
    return x < -87.0f ? zero : (x > 88.0f ? infinity : y);
}
#endif

#endif
