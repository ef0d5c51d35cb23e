// Compares matmul() with a plain triple loop in double, for every use, type, option and awkward size; and tests that
// its bits do not depend on the number of threads, on where the buffers lie, or on how many rows are computed at once
// (the last on the CPU only). The buffers come from cudaMalloc, so the same file tests the GPU's implementation.
//
// An element is a sum of k products, each at most 1. fp32 summation may err by about k * 2^-24 at most; storing bf16
// adds half an ulp.
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "test/harness/harness.h"
#include "device/matmul.h"

#ifdef CUDA_ON_CPU
#include <omp.h>
#endif

enum { GUARD = 64 };  // bytes before and after c that must not change

typedef struct {
    size_t m, n, k;
    int dtype, trans_a, trans_b, accumulate, bias;
} Case;

// Of a, b and bias; and the type of c.
static size_t size_of(int dtype) { return dtype == MATMUL_F32 ? 4 : 2; }
static int result_type(int dtype) { return dtype == MATMUL_BF16_F32 ? MATMUL_F32 : dtype; }

static float bf16_value(uint16_t h) {
    uint32_t bits = (uint32_t)h << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static double value(const void *p, int dtype, size_t i) {
    return dtype == MATMUL_F32 ? ((const float *)p)[i] : bf16_value(((const uint16_t *)p)[i]);
}

static void *host(size_t bytes) {
    void *p = malloc(bytes ? bytes : 1);
    REQUIRE(p != NULL);
    return p;
}

// n numbers in [-1, 1], exact in bf16's 8 bits.
static void *numbers(size_t n, int dtype, uint32_t seed) {
    unsigned char *p = host(n * size_of(dtype));
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        float x = (float)((int)(seed >> 23) - 256) / 256.0f;
        uint32_t bits;
        memcpy(&bits, &x, sizeof bits);
        bits &= 0xffff0000u;
        if (dtype == MATMUL_F32) {
            memcpy(p + 4 * i, &bits, 4);
        } else {
            uint16_t h = (uint16_t)(bits >> 16);
            memcpy(p + 2 * i, &h, 2);
        }
    }
    return p;
}

// A device copy of `bytes` bytes, `shift` bytes into an allocation of its own.
static char *to_device(const void *from, size_t bytes, size_t shift) {
    void *p = NULL;
    CHECK_EQ(cudaMalloc(&p, bytes + shift + 16), cudaSuccess);
    CHECK_EQ(cudaMemcpy((char *)p + shift, from, bytes, cudaMemcpyHostToDevice), cudaSuccess);
    return (char *)p + shift;
}

static void device_free(char *p, size_t shift) { CHECK_EQ(cudaFree(p - shift), cudaSuccess); }

typedef struct {
    void *a, *b, *c, *bias;
} Operands;

static Operands operands(const Case *t) {
    Operands o = { numbers(t->m * t->k, t->dtype, 1), numbers(t->k * t->n, t->dtype, 2),
                   numbers(t->m * t->n, result_type(t->dtype), 3), t->bias ? numbers(t->n, t->dtype, 4) : NULL };
    return o;
}

static void operands_free(Operands *o) {
    free(o->a);
    free(o->b);
    free(o->c);
    free(o->bias);
}

// The product on the device, with buffers shifted by `shift` bytes; the result in new host memory.
static void *product(const Case *t, const Operands *o, size_t shift) {
    size_t element = size_of(t->dtype), bytes = t->m * t->n * size_of(result_type(t->dtype));
    unsigned char *guarded = host(bytes + 2 * GUARD);
    memset(guarded, 0xa5, bytes + 2 * GUARD);
    memcpy(guarded + GUARD, o->c, bytes);
    char *a = to_device(o->a, t->m * t->k * element, shift);
    char *b = to_device(o->b, t->k * t->n * element, shift);
    char *c = to_device(guarded, bytes + 2 * GUARD, shift);
    char *bias = t->bias ? to_device(o->bias, t->n * element, shift) : NULL;
    int err = matmul(c + GUARD, a, b, bias, t->dtype, t->m, t->n, t->k, t->trans_a, t->trans_b, t->accumulate, 0);
    CHECK_EQ(err, 0);
    CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess);
    CHECK_EQ(cudaMemcpy(guarded, c, bytes + 2 * GUARD, cudaMemcpyDeviceToHost), cudaSuccess);
    for (size_t i = 0; i < GUARD; i++) {
        CHECK_EQ(guarded[i], 0xa5);
        CHECK_EQ(guarded[GUARD + bytes + i], 0xa5);
    }
    device_free(a, shift);
    device_free(b, shift);
    device_free(c, shift);
    if (bias) {
        device_free(bias, shift);
    }
    memmove(guarded, guarded + GUARD, bytes);
    return guarded;
}

static double expected(const Case *t, const Operands *o, size_t i, size_t j) {
    double sum = t->bias ? value(o->bias, t->dtype, j) : 0.0;
    if (t->accumulate) {
        sum += value(o->c, result_type(t->dtype), i * t->n + j);
    }
    for (size_t q = 0; q < t->k; q++) {
        double x = value(o->a, t->dtype, t->trans_a ? q * t->m + i : i * t->k + q);
        double y = value(o->b, t->dtype, t->trans_b ? j * t->k + q : q * t->n + j);
        sum += x * y;
    }
    return sum;
}

static void check(const Case *t) {
    Operands o = operands(t);
    void *c = product(t, &o, 0);
    for (size_t i = 0; i < t->m; i++) {
        for (size_t j = 0; j < t->n; j++) {
            double want = expected(t, &o, i, j);
            double got = value(c, result_type(t->dtype), i * t->n + j);
            double bound = (double)(t->k + 2) * 6e-8 + (t->dtype == MATMUL_BF16 ? fabs(want) / 256.0 : 0.0);
            CHECK(fabs(got - want) <= bound,
                  "c[%zu,%zu] is %.9g, not %.9g: m %zu n %zu k %zu, dtype %d, trans %d %d, accumulate %d, bias %d", i,
                  j, got, want, t->m, t->n, t->k, t->dtype, t->trans_a, t->trans_b, t->accumulate, t->bias);
        }
    }
    free(c);
    operands_free(&o);
}

// Sizes: one element; primes; around the CPU's panels (6, 16), blocks (8, 256) and tiles (264, 384).
static const size_t sizes[][3] = {
    { 1, 1, 1 },     { 1, 2, 3 },      { 5, 7, 1 },     { 2, 1, 9 },    { 6, 16, 8 },     { 7, 17, 9 },
    { 13, 31, 23 },  { 12, 32, 16 },   { 64, 1, 65 },   { 1, 97, 257 }, { 31, 64, 256 },  { 48, 96, 24 },
    { 264, 16, 33 }, { 265, 3, 40 },   { 3, 384, 40 },  { 4, 385, 5 },  { 101, 203, 61 }, { 40, 50, 521 },
    { 97, 96, 255 }, { 529, 130, 17 }, { 96, 800, 19 },
};

static void test_every_use_and_size(void) {
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        for (int bits = 0; bits < 32; bits++) {
            const size_t *size = sizes[s];
            Case t = {
                size[0], size[1], size[2], bits & 1, bits >> 1 & 1, bits >> 2 & 1, bits >> 3 & 1, bits >> 4 & 1
            };
            check(&t);
        }
        for (int bits = 0; bits < 8; bits++) {
            Case t = {
                sizes[s][0], sizes[s][1], sizes[s][2], MATMUL_BF16_F32, bits & 1, bits >> 1 & 1, bits >> 2 & 1, 0
            };
            check(&t);
        }
    }
}

// Of two halves of the terms, one after the other: nothing is rounded to bf16 in between.
static void test_bf16_adds_up_in_fp32(void) {
    Case t = { 23, 40, 64, MATMUL_BF16_F32, 1, 0, 0, 0 };
    Operands o = operands(&t);
    Case half = t;
    half.k = 32;
    Operands first = o, second = o;
    void *sum = product(&half, &first, 0);
    second.a = (uint16_t *)o.a + 32 * t.m;
    second.b = (uint16_t *)o.b + 32 * t.n;
    second.c = sum;
    half.accumulate = 1;
    float *both = product(&half, &second, 0);
    for (size_t i = 0; i < t.m * t.n; i++) {
        double want = expected(&t, &o, i / t.n, i % t.n);
        CHECK(fabs(both[i] - want) <= (double)t.k * 6e-8, "c[%zu] is %.9g, not %.9g", i, both[i], want);
    }
    free(sum);
    free(both);
    operands_free(&o);
}

static void test_empty_sum_is_bias_or_zero(void) {
    for (int bits = 0; bits < 8; bits++) {
        Case t = { 9, 40, 0, bits & 1, 0, 1, bits >> 1 & 1, bits >> 2 & 1 };
        check(&t);
    }
}

// GELU and its derivative, as in the paper: x/2 (1 + tanh(u)), u = sqrt(2/pi) (x + 0.044715 x^3).
static double gelu(double x, double *derivative) {
    double t = tanh(0.7978845608028654 * (x + 0.044715 * x * x * x));
    *derivative = 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * 0.7978845608028654 * (1 + 3 * 0.044715 * x * x);
    return 0.5 * x * (1 + t);
}

// Forward, then the derivative at what the forward has stored. Derivatives of GELU are below 1.13, and its own
// derivative's below 1.2: so much more may an error of the sum be; exp of some u adds a few ulps of u. A bf16 may be
// rounded twice.
static void check_gelu(const Case *t) {
    Operands o = operands(t);
    size_t numel = t->m * t->n, bytes = numel * size_of(t->dtype);
    char *a = to_device(o.a, t->m * t->k * size_of(t->dtype), 0),
         *b = to_device(o.b, t->k * t->n * size_of(t->dtype), 0);
    char *bias = t->bias ? to_device(o.bias, t->n * size_of(t->dtype), 0) : NULL;
    char *c = to_device(o.c, bytes, 0), *pre = to_device(o.c, bytes, 0);
    void *got_c = host(bytes), *got_pre = host(bytes);
    double slack = 1.3 * (double)(t->k + 2) * 6e-8 + 1e-6, half_ulps = t->dtype == MATMUL_BF16 ? 1 / 128.0 : 0.0;
    for (int backward = 0; backward < 2; backward++) {
        CHECK_EQ(backward ? matmul_gelu_backward(c, pre, a, b, t->dtype, t->m, t->n, t->k, t->trans_a, t->trans_b, 0)
                          : matmul_gelu(c, pre, a, b, bias, t->dtype, t->m, t->n, t->k, t->trans_a, t->trans_b, 0),
                 0);
        CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess);
        CHECK_EQ(cudaMemcpy(got_c, c, bytes, cudaMemcpyDeviceToHost), cudaSuccess);
        CHECK_EQ(cudaMemcpy(got_pre, pre, bytes, cudaMemcpyDeviceToHost), cudaSuccess);
        Case plain = *t;
        plain.bias = t->bias && !backward;
        for (size_t i = 0; i < numel; i++) {
            double sum = expected(&plain, &o, i / t->n, i % t->n), derivative, x = value(got_pre, t->dtype, i);
            double want = gelu(backward ? x : sum, &derivative);
            if (backward) {
                want = sum * derivative;
            } else {
                CHECK(fabs(x - sum) <= slack + fabs(sum) * half_ulps,
                      "pre[%zu] is %.9g, not %.9g: m %zu n %zu k %zu, dtype %d", i, x, sum, t->m, t->n, t->k, t->dtype);
            }
            double got = value(got_c, t->dtype, i),
                   bound = slack + 3e-6 * fabs(sum) + (fabs(want) + (backward ? 0 : fabs(sum))) * half_ulps;
            CHECK(fabs(got - want) <= bound,
                  "c[%zu] is %.9g, not %.9g: backward %d, m %zu n %zu k %zu, dtype %d, trans %d %d, bias %d", i, got,
                  want, backward, t->m, t->n, t->k, t->dtype, t->trans_a, t->trans_b, t->bias);
        }
    }
    free(got_c);
    free(got_pre);
    device_free(a, 0);
    device_free(b, 0);
    device_free(c, 0);
    device_free(pre, 0);
    if (bias) {
        device_free(bias, 0);
    }
    operands_free(&o);
}

static void test_gelu_inside_is_gelu(void) {
    static const size_t shapes[][3] = { { 1, 8, 1 },   { 7, 24, 9 },    { 31, 64, 256 }, { 265, 8, 40 },
                                        { 4, 392, 5 }, { 40, 56, 521 }, { 3, 32, 0 } };
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        for (int bits = 0; bits < 16; bits++) {
            Case t = { shapes[s][0], shapes[s][1], shapes[s][2], bits & 1, bits >> 1 & 1, bits >> 2 & 1, 0,
                       bits >> 3 & 1 };
            check_gelu(&t);
        }
    }
}

static void test_gelu_inside_refuses_odd_rows(void) {
    _Alignas(16) float x[64] = { 0 };
    CHECK_EQ(matmul_gelu(x, x, x, x, NULL, MATMUL_F32, 1, 12, 1, 0, 0, 0), cudaErrorInvalidValue);
    CHECK_EQ(matmul_gelu(x, x + 1, x, x, NULL, MATMUL_F32, 1, 8, 1, 0, 0, 0), cudaErrorInvalidValue);
    CHECK_EQ(matmul_gelu_backward(x, x, x, x + 2, MATMUL_F32, 1, 8, 1, 0, 0, 0), cudaErrorInvalidValue);
}

static void test_empty_result_is_left_alone(void) {
    CHECK_EQ(matmul(NULL, NULL, NULL, NULL, MATMUL_F32, 0, 5, 5, 0, 0, 0, 0), 0);
    CHECK_EQ(matmul(NULL, NULL, NULL, NULL, MATMUL_BF16, 5, 0, 5, 0, 0, 0, 0), 0);
}

static void test_bad_arguments_are_refused(void) {
    float x = 0;
    CHECK_EQ(matmul(&x, &x, &x, NULL, 3, 1, 1, 1, 0, 0, 0, 0), cudaErrorInvalidValue);
    CHECK_EQ(matmul(&x, &x, &x, &x, MATMUL_BF16_F32, 1, 1, 1, 0, 0, 0, 0), cudaErrorInvalidValue);
    CHECK_EQ(matmul_gelu(&x, &x, &x, &x, NULL, MATMUL_BF16_F32, 1, 8, 1, 0, 0, 0), cudaErrorInvalidValue);
    CHECK_EQ(matmul(&x, &x, &x, NULL, MATMUL_F32, (size_t)1 << 31, 1, 1, 0, 0, 0, 0), cudaErrorInvalidValue);
    CHECK_EQ(matmul(&x, &x, &x, NULL, MATMUL_F32, 1, (size_t)1 << 31, 1, 0, 0, 0, 0), cudaErrorInvalidValue);
    CHECK_EQ(matmul(&x, &x, &x, NULL, MATMUL_F32, 1, 1, (size_t)1 << 31, 0, 0, 0, 0), cudaErrorInvalidValue);
}

// A new buffer is full of anything: without accumulate, NaN in c must not reach the result.
static void test_old_c_is_not_read_without_accumulate(void) {
    for (int dtype = 0; dtype < 3; dtype++) {
        Case t = { 20, 50, 30, dtype, 0, 1, 0, 0 };
        Operands o = operands(&t);
        memset(o.c, 0xff, t.m * t.n * size_of(result_type(dtype)));
        void *c = product(&t, &o, 0);
        for (size_t i = 0; i < t.m * t.n; i++) {
            CHECK(isfinite(value(c, result_type(dtype), i)));
        }
        free(c);
        operands_free(&o);
    }
}

// NaN and infinity go where they should, whole: a NaN whose rounding would carry stays a NaN; other elements stay
// clean.
static void test_nan_and_infinity_stay_in_their_row(void) {
    static const uint32_t planted[] = { 0x7fffffffu, 0xffffffffu, 0x7f800001u, 0x7f800000u, 0xff800000u };
    for (int dtype = 0; dtype < 2; dtype++) {
        for (size_t v = 0; v < sizeof planted / sizeof *planted; v++) {
            Case t = { 23, 40, 19, dtype, 0, 1, 0, 0 };
            Operands o = operands(&t);
            uint32_t bits = dtype == MATMUL_F32 ? planted[v] : planted[v] >> 16 | (planted[v] & 0xffff ? 0x40 : 0);
            memcpy((char *)o.a + (7 * t.k + 3) * size_of(dtype), &bits, size_of(dtype));
            void *c = product(&t, &o, 0);
            for (size_t i = 0; i < t.m; i++) {
                for (size_t j = 0; j < t.n; j++) {
                    int finite = isfinite(value(c, dtype, i * t.n + j)) != 0;
                    CHECK_EQ(finite, i != 7);
                }
            }
            free(c);
            operands_free(&o);
        }
    }
}

// One product of 1.0 with x leaves x itself to be rounded, by adding a small term: halves go to even.
static void test_bf16_rounds_to_nearest_even(void) {
    static const struct {
        float big, small;
        uint16_t want;
    } cases[] = {
        { 1.0f, 0.00390625f, 0x3f80 },        // 1 + 2^-8, half an ulp above an even 1: down
        { 1.0078125f, 0.00390625f, 0x3f82 },  // half an ulp above an odd neighbour: up
        { 1.0f, 0.00393677f, 0x3f81 },        // a little more than half: up
        { -1.0f, -0.00390625f, 0xbf80 },
        { 3.3895314e38f, 1.3292280e36f, 0x7f80 },  // above the largest bf16 by more than half an ulp: infinity
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint16_t a[2] = { 0x3f80, 0x3f80 }, b[2], c = 0;
        float parts[2] = { cases[i].big, cases[i].small };
        for (int q = 0; q < 2; q++) {
            uint32_t bits;
            memcpy(&bits, &parts[q], sizeof bits);
            b[q] = (uint16_t)((bits + 0x8000u) >> 16);
        }
        Case t = { 1, 1, 2, MATMUL_BF16, 0, 0, 0, 0 };
        Operands o = { a, b, &c, NULL };
        uint16_t *got = product(&t, &o, 0);
        CHECK_EQ(*got, cases[i].want);
        free(got);
    }
}

static void test_same_bits_at_another_address(void) {
    for (int bits = 0; bits < 8; bits++) {
        Case t = { 96, 160, 272, bits & 1, bits >> 1 & 1, bits >> 2 & 1, 1, 1 };
        Operands o = operands(&t);
        void *one = product(&t, &o, 0), *two = product(&t, &o, 16);
        CHECK_BYTES(one, two, t.m * t.n * size_of(t.dtype));
        free(one);
        free(two);
        operands_free(&o);
    }
}

#ifdef CUDA_ON_CPU
static void test_same_bits_for_any_number_of_threads(void) {
    static const size_t shapes[][3] = { { 256, 768, 300 }, { 64, 1000, 520 }, { 301, 97, 513 }, { 7, 11, 2000 } };
    int before = omp_get_max_threads();
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        for (int bits = 0; bits < 8; bits++) {
            Case t = { shapes[s][0], shapes[s][1], shapes[s][2], bits & 1, bits >> 1 & 1, bits >> 2 & 1, 1, 1 };
            Operands o = operands(&t);
            void *first = NULL;
            for (int threads = 1; threads <= 4; threads++) {
                omp_set_num_threads(threads);
                void *c = product(&t, &o, 0);
                CHECK_EQ(omp_get_max_threads(), threads);
                if (first) {
                    CHECK_BYTES(c, first, t.m * t.n * size_of(t.dtype));
                    free(c);
                } else {
                    first = c;
                }
            }
            free(first);
            operands_free(&o);
        }
    }
    omp_set_num_threads(before);
}

static void test_same_bits_for_part_of_the_rows(void) {
    for (int dtype = 0; dtype < 2; dtype++) {
        Case whole = { 256, 200, 700, dtype, 0, 1, 0, 1 };
        Operands o = operands(&whole);
        void *all = product(&whole, &o, 0);
        for (size_t from = 0; from < whole.m; from += 101) {
            Case part = whole;
            part.m = whole.m - from < 101 ? whole.m - from : 101;
            Operands rows = o;
            rows.a = (char *)o.a + from * whole.k * size_of(dtype);
            void *some = product(&part, &rows, 0);
            CHECK_BYTES(some, (char *)all + from * whole.n * size_of(dtype), part.m * part.n * size_of(dtype));
            free(some);
        }
        free(all);
        operands_free(&o);
    }
}
#endif

static void test_works_again_after_destroy(void) {
    Case t = { 30, 40, 50, MATMUL_BF16, 0, 1, 0, 1 };
    check(&t);
    matmul_destroy();
    matmul_destroy();
    check(&t);
}

int main(int argc, char **argv) {
    test_start(&argc, argv);
    RUN(test_every_use_and_size);
    RUN(test_bf16_adds_up_in_fp32);
    RUN(test_empty_sum_is_bias_or_zero);
    RUN(test_gelu_inside_is_gelu);
    RUN(test_gelu_inside_refuses_odd_rows);
    RUN(test_empty_result_is_left_alone);
    RUN(test_bad_arguments_are_refused);
    RUN(test_old_c_is_not_read_without_accumulate);
    RUN(test_nan_and_infinity_stay_in_their_row);
    RUN(test_bf16_rounds_to_nearest_even);
    RUN(test_same_bits_at_another_address);
#ifdef CUDA_ON_CPU
    RUN(test_same_bits_for_any_number_of_threads);
    RUN(test_same_bits_for_part_of_the_rows);
#endif
    RUN(test_works_again_after_destroy);
    matmul_destroy();
    return test_finish();
}
