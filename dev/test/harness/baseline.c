// baseline.c: one training step without sharding, written as plainly as possible (baseline.h).
//
// Gradients are added in a balanced binary tree over the micro-batches, by recursion: the sum of n terms is the sum of
// the first k plus the sum of the others, k the largest power of two below n. The number of ranks has no part in it.
// The engine never has all terms at once; it pushes those of one micro-step onto a binary counter. The test is that
// both are the same tree.
//
// The norm adds the squares of 64 elements at a time, in eight lanes, and the sums of these blocks exactly. The engine
// has a wide integer for that; here it is an expansion (Shewchuk 1997): a list of doubles that do not overlap and whose
// sum is the exact sum. Exact sums have no order, so the two must agree to the last bit, after one rounding.
//
// Built without contraction of a * b + c into one rounding (-ffp-contract=off); baseline_create checks it.
#include "test/harness/baseline.h"
#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

uint64_t baseline_mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

// Three tokens in four follow from the one before.
void baseline_tokens(int *tokens, size_t n, size_t vocab, size_t step, size_t j) {
    uint64_t h = baseline_mix(baseline_mix(step) + j);
    size_t token = h % vocab;
    for (size_t i = 0; i < n; i++) {
        tokens[i] = (int)token;
        h = baseline_mix(h);
        token = h % 4 ? (7 * token + 3) % vocab : (h >> 8) % vocab;
    }
}

static size_t block_up(size_t n) { return (n + 63) / 64 * 64; }

// (1 + 2^-12)^2 = 1 + 2^-11 + 2^-24, which rounds to 1 + 2^-11.
static int contracts(void) {
    volatile float a = 1 + 0x1p-12f, c = -(1 + 0x1p-11f);  // volatile: the compiler must not compute the answer itself
    return a * a + c != 0;
}

int baseline_create(baseline *b, const zero_tensor *tensors, size_t num_tensors) {
    assert(!contracts() && "compile baseline.c with -ffp-contract=off");
    memset(b, 0, sizeof *b);
    b->num_tensors = num_tensors;
    b->tensors = tensors;
    b->offset = calloc(num_tensors, sizeof *b->offset);
    if (!b->offset) return -1;
    for (size_t t = 0; t < num_tensors; t++) {
        b->offset[t] = b->numel;
        b->numel += block_up(tensors[t].numel);
    }
    b->w = calloc(b->numel, sizeof(float));
    b->m = calloc(b->numel, sizeof(float));
    b->v = calloc(b->numel, sizeof(float));
    b->g = calloc(b->numel, sizeof(float));
    return b->w && b->m && b->v && b->g ? 0 : -1;
}

void baseline_destroy(baseline *b) {
    free(b->offset);
    free(b->w);
    free(b->m);
    free(b->v);
    free(b->g);
}

// --------------------------------------------------------------------------------------------------------------------
// bf16 is the upper half of a float, rounded to nearest even.

static float from_bf16(uint16_t h) {
    const uint32_t bits = (uint32_t)h << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static uint16_t to_bf16(float f) {
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    if (isnan(f)) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits >> 16) + ((bits & 0xffff) >= 0x8000));  // to nearest, ties away from zero
}

float baseline_rounded(float w, enum zero_dtype dtype) { return dtype == ZERO_F32 ? w : from_bf16(to_bf16(w)); }

void baseline_store(const baseline *b, void *params, enum zero_dtype dtype) {
    if (dtype == ZERO_F32) {
        memcpy(params, b->w, b->numel * sizeof(float));
        return;
    }
    uint16_t *p = params;
    for (size_t i = 0; i < b->numel; i++) p[i] = to_bf16(b->w[i]);
}

// --------------------------------------------------------------------------------------------------------------------
// The sum of the gradients.

static float tree(const float *x, size_t n) {
    if (n == 1) return x[0];
    size_t k = 1;
    while (2 * k < n) k *= 2;
    return tree(x, k) + tree(x + k, n - k);
}

void baseline_sum(baseline *b, const void *const *micro, enum zero_dtype dtype, size_t micro_batches) {
    float *leaf = malloc(micro_batches * sizeof *leaf);
    if (!leaf) abort();
    for (size_t i = 0; i < b->numel; i++) {
        for (size_t j = 0; j < micro_batches; j++)
            leaf[j] = dtype == ZERO_F32 ? ((const float *)micro[j])[i] : from_bf16(((const uint16_t *)micro[j])[i]);
        b->g[i] = tree(leaf, micro_batches);
    }
    free(leaf);
}

// --------------------------------------------------------------------------------------------------------------------
// The norm.

// Adds x to the expansion part[0 .. *n), exactly.
static void expansion_add(double *part, size_t *n, double x) {
    size_t kept = 0;
    for (size_t i = 0; i < *n; i++) {
        double y = part[i];
        if (fabs(x) < fabs(y)) {
            const double t = x;
            x = y;
            y = t;
        }
        const double high = x + y, low = y - (high - x);
        if (low != 0) part[kept++] = low;
        x = high;
    }
    part[kept++] = x;
    *n = kept;
}

// The sum of an expansion of numbers that were not negative, rounded once. The parts ascend, so only a tie between the
// rounding of the largest and what is below it needs care.
static double expansion_round(const double *part, size_t n) {
    double high = part[--n], low = 0;
    while (n > 0 && low == 0) {
        const double x = high, y = part[--n];
        high = x + y;
        low = y - (high - x);
    }
    if (n > 0 && ((low < 0 && part[n - 1] < 0) || (low > 0 && part[n - 1] > 0))) {
        const double twice = 2 * low, moved = high + twice;
        if (moved - high == twice) high = moved;
    }
    return high;
}

double baseline_norm(const baseline *b, size_t micro_batches) {
    double part[64] = { 0 };  // 2046 / 53 parts are enough for any doubles
    size_t n = 1;
    for (size_t i = 0; i < b->numel; i += 64) {
        double lane[8] = { 0 };  // elements k, k + 8, k + 16 ... in this order
        for (size_t k = 0; k < 64; k++) lane[k % 8] += (double)b->g[i + k] * (double)b->g[i + k];
        const double even = (lane[0] + lane[4]) + (lane[2] + lane[6]), odd = (lane[1] + lane[5]) + (lane[3] + lane[7]);
        expansion_add(part, &n, even + odd);
    }
    return sqrt(expansion_round(part, n)) / (double)micro_batches;
}

// --------------------------------------------------------------------------------------------------------------------
// AdamW.

// Philox4x32-10, as the paper writes it (Salmon et al. 2011, figure of the S-box and permutation).
static void philox(uint32_t x[4], uint64_t key) {
    uint32_t left = (uint32_t)key, right = (uint32_t)(key >> 32);
    for (int round = 0; round < 10; round++, left += 0x9e3779b9, right += 0xbb67ae85) {
        const uint64_t p = 0xd2511f53ull * x[0], q = 0xcd9e8d57ull * x[2];
        const uint32_t y[4] = { (uint32_t)(q >> 32) ^ x[1] ^ left, (uint32_t)q, (uint32_t)(p >> 32) ^ x[3] ^ right,
                                (uint32_t)p };
        memcpy(x, y, sizeof y);
    }
}

// Up with the probability that keeps the mean: a number below 65536 is drawn for each element, eight from one counter.
static float rounded_by_chance(float w, uint64_t seed, uint64_t t, const zero_tensor *tensor, size_t element) {
    const uint64_t first = tensor->logical + element / 8 * 8;
    uint32_t x[4] = { (uint32_t)first, (uint32_t)(first >> 32), (uint32_t)t, (uint32_t)(t >> 32) }, bits;
    philox(x, seed);
    const uint32_t drawn = element % 2 ? x[element % 8 / 2] >> 16 : x[element % 8 / 2] & 0xffff;
    memcpy(&bits, &w, sizeof bits);
    return from_bf16((uint16_t)((bits >> 16) + ((bits & 0xffff) + drawn >= 65536)));
}

void baseline_adamw(baseline *b, const zero_hyperparameters *a, size_t micro_batches, uint64_t step) {
    const double norm = baseline_norm(b, micro_batches);
    const float clip = a->max_norm > 0 && norm > a->max_norm ? (float)(a->max_norm / norm) : 1.0f;
    const float scale = clip * (1.0f / (float)micro_batches);
    const float correct_m = (float)(1.0 - pow(a->beta1, (double)step)),
                correct_v = (float)(1.0 - pow(a->beta2, (double)step));
    for (size_t t = 0; t < b->num_tensors; t++) {
        const float decay = b->tensors[t].decay ? a->weight_decay : 0.0f;
        for (size_t i = b->offset[t]; i < b->offset[t] + b->tensors[t].numel; i++) {
            const float g = b->g[i] * scale;
            b->m[i] = a->beta1 * b->m[i] + (1.0f - a->beta1) * g;
            b->v[i] = a->beta2 * b->v[i] + ((1.0f - a->beta2) * g) * g;
            const float mhat = b->m[i] / correct_m, vhat = b->v[i] / correct_v;
            b->w[i] -= a->lr * (mhat / (sqrtf(vhat) + a->eps) + decay * b->w[i]);
            if (b->no_master) b->w[i] = rounded_by_chance(b->w[i], b->seed, step, &b->tensors[t], i - b->offset[t]);
        }
    }
}
