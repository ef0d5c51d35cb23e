// The initial weights of a model are a sequence of normals drawn from one generator, tensor after tensor, so that a
// model started from a seed here is the model that PyTorch and llm.c start from that seed. When the weights are
// sharded, no rank needs the whole sequence, yet all must agree on it, and none should pay for the others' shards.
// Hence the range form of mt_normal: the uniform numbers before and after the requested elements are skipped. Skipping
// a Mersenne Twister is cheap (only its state is regenerated, 624 words at a time, in loops that vectorise), and
// logarithm, sine and cosine are computed for requested elements only: 124 million elements take about two seconds in
// full, a quarter of a second for one rank of eight, 20 ms to skip (one Zen 3 core).
//
// PyTorch draws tensors of 16 elements or more in blocks of 16 uniforms: slot k < 8 gives the radius and slot k + 8 the
// angle of a Box-Muller pair, cosine to slot k, sine to slot k + 8. If n is not a multiple of 16, the last 16 elements
// are drawn again at the end: so a tensor costs n draws, or n + 16. Smaller tensors take another path: pairs of doubles
// from 53 bits each, with the sine kept in the generator for the next element, even if that belongs to another tensor.
//
// The arithmetic is in float where PyTorch's is, with libm's functions. PyTorch itself has two variants (with AVX2 it
// uses polynomials), which differ by a few 1e-7; this is the scalar one, which equals llm.c's initial weights bit for
// bit.
#include <assert.h>
#include <math.h>
#include <string.h>

#include "data/random.h"

#define MT_N 624
#define MT_M 397

void mt_seed(Mt19937 *g, uint32_t seed) {
    memset(g, 0, sizeof *g);
    g->state[0] = seed;
    for (uint32_t i = 1; i < MT_N; i++) {
        uint32_t before = g->state[i - 1];
        g->state[i] = 1812433253u * (before ^ (before >> 30)) + i;
    }
    g->next = MT_N;
}

// The recurrence: the top bit of one word and the rest of the next, shifted and xored into a third. As a mask instead
// of a table lookup, so that the loops below vectorise.
static inline uint32_t twist(uint32_t upper, uint32_t lower, uint32_t far) {
    uint32_t y = (upper & 0x80000000u) | (lower & 0x7fffffffu);
    return far ^ (y >> 1) ^ (-(y & 1u) & 0x9908b0dfu);
}

static void regenerate(Mt19937 *g) {
    uint32_t *s = g->state;
    for (int i = 0; i < MT_N - MT_M; i++) {
        s[i] = twist(s[i], s[i + 1], s[i + MT_M]);
    }
    for (int i = MT_N - MT_M; i < MT_N - 1; i++) {
        s[i] = twist(s[i], s[i + 1], s[i + MT_M - MT_N]);
    }
    s[MT_N - 1] = twist(s[MT_N - 1], s[0], s[MT_M - 1]);
    g->next = 0;
}

uint32_t mt_u32(Mt19937 *g) {
    if (g->next == MT_N) {
        regenerate(g);
    }
    uint32_t y = g->state[g->next++];
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c5680u;
    y ^= (y << 15) & 0xefc60000u;
    return y ^ (y >> 18);
}

void mt_skip(Mt19937 *g, size_t n) {
    while (n > MT_N - g->next) {
        n -= MT_N - g->next;
        regenerate(g);
    }
    g->next += (uint32_t)n;
}

// Draws one block of 16 normals.
static void normal_block(Mt19937 *g, float out[16], float mean, float std) {
    float u[16];
    for (int k = 0; k < 16; k++) {
        u[k] = (float)(mt_u32(g) & 0xffffffu) * 0x1p-24f;
    }
    for (int k = 0; k < 8; k++) {
        float radius = sqrtf(-2.0f * logf(1.0f - u[k] + 1e-12f));
        float angle = (float)(2.0 * M_PI * u[k + 8]);
        out[k] = radius * cosf(angle) * std + mean;
        out[k + 8] = radius * sinf(angle) * std + mean;
    }
}

static double uniform_53(Mt19937 *g) {
    uint64_t high = mt_u32(g);
    uint64_t low = mt_u32(g);
    return (double)((high << 32 | low) & ((UINT64_C(1) << 53) - 1)) * 0x1p-53;
}

// One normal of mean 0 and deviation 1, as torch draws it for small tensors.
static double normal_single(Mt19937 *g) {
    if (g->has_spare) {
        g->has_spare = 0;
        return g->spare;
    }
    double u1 = uniform_53(g);
    double u2 = uniform_53(g);
    double radius = sqrt(-2.0 * log1p(-u2));
    double angle = 2.0 * M_PI * u1;
    g->spare = radius * sin(angle);
    g->has_spare = 1;
    return radius * cos(angle);
}

void mt_normal(Mt19937 *g, float *out, size_t begin, size_t count, size_t n, float mean, float std) {
    assert(begin <= n && count <= n - begin);
    size_t end = begin + count;
    if (n < 16) {
        for (size_t i = 0; i < n; i++) {
            double x = normal_single(g) * std + mean;
            if (i >= begin && i < end) {
                out[i - begin] = (float)x;
            }
        }
        return;
    }

    // Elements [0, body) are from blocks at multiples of 16, the others from the block that is drawn after all of
    // these.
    size_t body = n % 16 ? n - 16 : n;
    size_t body_end = end < body ? end : body;
    size_t drawn = begin < body_end ? begin / 16 * 16 : 0;
    float block[16];
    mt_skip(g, drawn);
    for (size_t i = begin; i < body_end; i = drawn) {
        normal_block(g, block, mean, std);
        drawn += 16;
        size_t stop = drawn < body_end ? drawn : body_end;
        memcpy(out + (i - begin), block + i % 16, (stop - i) * sizeof(float));
    }
    mt_skip(g, n - drawn);

    if (n % 16 == 0) {
        return;
    }
    if (count == 0 || end <= body) {
        mt_skip(g, 16);
        return;
    }
    normal_block(g, block, mean, std);
    size_t first = begin > body ? begin : body;
    memcpy(out + (first - begin), block + (first - body), (end - first) * sizeof(float));
}

void mt_permute(Mt19937 *g, uint32_t *a, size_t n) {
    for (size_t i = n; i > 1; i--) {
        size_t k = mt_u32(g) % i;
        uint32_t swap = a[i - 1];
        a[i - 1] = a[k];
        a[k] = swap;
    }
}

uint32_t xorshift_u32(uint64_t *state) {
    uint64_t x = *state;
    x ^= x >> 12;
    x ^= x << 25;
    x ^= x >> 27;
    *state = x;
    return (uint32_t)(x * UINT64_C(0x2545F4914F6CDD1D) >> 32);
}

float xorshift_f32(uint64_t *state) { return (float)(xorshift_u32(state) >> 8) * 0x1p-24f; }
