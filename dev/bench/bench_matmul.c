// The speed of the CPU's matmul. Prints, for the trainer's shapes, GF/s in fp32 and bf16 beside multi-threaded OpenBLAS
// (fp32, free to divide the matrices in any way), and the ratio of the times: at 1.00, the same bits for any number of
// threads cost nothing.
//
//     OMP_NUM_THREADS=2 build/cpu-fp32/bench_matmul [repeats]
//
// The three are measured in turn and medians are compared, so that other load on the machine affects all of them
// equally. GF/s of a single run say little on a shared machine; ratios are steadier.
#include <cblas.h>
#include <omp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "device/matmul.h"
#include "zero/clock.h"

enum { MOST_REPEATS = 99 };

static int ascending(const void *x, const void *y) {
    double a = *(const double *)x;
    double b = *(const double *)y;
    return (a > b) - (a < b);
}

static double median(double *t, int n) {
    qsort(t, (size_t)n, sizeof *t, ascending);
    return t[n / 2];
}

// Memory as the trainer has it: cudaMalloc asks for huge pages, which OpenBLAS profits from too.
static void *allocate(size_t bytes) {
    void *p;
    if (cudaMalloc(&p, bytes)) {
        fprintf(stderr, "bench_matmul: no memory for %zu bytes\n", bytes);
        exit(1);
    }
    return p;
}

// n numbers in [-1, 1) that bf16 holds exactly, as floats and as bf16.
static void numbers(float **f32, uint16_t **bf16, size_t n) {
    *f32 = allocate(n * sizeof **f32);
    *bf16 = allocate(n * sizeof **bf16);
    for (size_t i = 0; i < n; i++) {
        float x = (float)(int)(i * 2654435761u % 256) / 128.0f - 1.0f;
        union {
            float f;
            uint32_t u;
        } bits = { x };
        (*f32)[i] = x;
        (*bf16)[i] = (uint16_t)(bits.u >> 16);
    }
}

static void check(int err) {
    if (err) {
        fprintf(stderr, "bench_matmul: matmul returned error %d\n", err);
        exit(1);
    }
}

static void measure(const char *use, size_t m, size_t n, size_t k, int trans_a, int trans_b, int threads, int repeats) {
    float *a, *b;
    uint16_t *ha, *hb;
    numbers(&a, &ha, m * k);
    numbers(&b, &hb, k * n);
    float *c = allocate(m * n * sizeof *c);
    uint16_t *hc = allocate(m * n * sizeof *hc);
    double blas[MOST_REPEATS], f32[MOST_REPEATS], bf16[MOST_REPEATS];
    for (int r = -1; r < repeats; r++) {  // round -1 warms up
        openblas_set_num_threads(threads);
        double t0 = zero_clock();
        cblas_sgemm(CblasRowMajor, trans_a ? CblasTrans : CblasNoTrans, trans_b ? CblasTrans : CblasNoTrans, (int)m,
                    (int)n, (int)k, 1.0f, a, (int)(trans_a ? m : k), b, (int)(trans_b ? k : n), 0.0f, c, (int)n);
        double t1 = zero_clock();
        check(matmul(c, a, b, NULL, MATMUL_F32, m, n, k, trans_a, trans_b, 0, 0));
        double t2 = zero_clock();
        check(matmul(hc, ha, hb, NULL, MATMUL_BF16, m, n, k, trans_a, trans_b, 0, 0));
        double t3 = zero_clock();
        if (r >= 0) {
            blas[r] = t1 - t0;
            f32[r] = t2 - t1;
            bf16[r] = t3 - t2;
        }
    }
    double flops = 2.0 * (double)m * (double)n * (double)k;
    double t_blas = median(blas, repeats);
    double t_f32 = median(f32, repeats);
    double t_bf16 = median(bf16, repeats);
    printf("%-8s %6zu %6zu %6zu | %8.1f | %8.1f %5.2f | %8.1f %5.2f\n", use, m, n, k, flops / t_blas * 1e-9,
           flops / t_f32 * 1e-9, t_blas / t_f32, flops / t_bf16 * 1e-9, t_blas / t_bf16);
    (void)cudaFree(a);
    (void)cudaFree(b);
    (void)cudaFree(c);
    (void)cudaFree(ha);
    (void)cudaFree(hb);
    (void)cudaFree(hc);
}

int main(int argc, char **argv) {
    static const struct {
        size_t rows, C, OC;
    } layers[] = {
        { 256, 768, 768 }, { 256, 768, 2304 }, { 256, 768, 3072 }, { 256, 3072, 768 }, { 256, 768, 50304 },
        { 512, 128, 128 }, { 512, 128, 512 },  { 512, 128, 256 },  { 64, 48, 48 },
    };
#ifndef CUDA_ON_CPU
    printf("bench_matmul measures the CPU's product; this is a build for a GPU\n");
    return 0;
#endif
    int repeats = argc > 1 ? atoi(argv[1]) : 9;
    if (repeats < 1 || repeats > MOST_REPEATS) {
        fprintf(stderr, "bench_matmul: repeats must be 1..%d\n", MOST_REPEATS);
        return 1;
    }
    int threads = omp_get_max_threads();
    printf("%d threads, medians of %d; ratios to OpenBLAS (above 1 is faster)\n", threads, repeats);
    printf("%-8s %6s %6s %6s | %8s | %8s %5s | %8s %5s\n", "use", "m", "n", "k", "OpenBLAS", "fp32", "ratio", "bf16",
           "ratio");
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++) {
        size_t rows = layers[i].rows, C = layers[i].C, OC = layers[i].OC;
        measure("forward", rows, OC, C, 0, 1, threads, repeats);
        measure("dinp", rows, C, OC, 0, 0, threads, repeats);
        measure("dw", OC, C, rows, 1, 0, threads, repeats);
    }
    matmul_destroy();
    return 0;
}
