// bench_adamw.cu: the bandwidth of the fused AdamW, beside that of STREAM's triad a = b + s * c (McCalpin 1995) on
// arrays of the same size. Bytes as the algorithms need them: AdamW fp32 reads p, g, m, v and writes p, m, v (28 a
// parameter), bf16 reads master, g, m, v and writes master, m, v, p (30), with a split master 28, with none 24; triad
// reads b, c and writes a (12). The sum of squares too. An argument is the number of parameters.
#include <stdio.h>
#include "bench/bench.h"
#include "zero/device.cuh"
#include "zero/kernels.h"
#include "zero/optimizers/optimizers.h"
#include "zero/master_weights.h"

enum { TRIAD, ADAMW_F32, ADAMW_BF16, ADAMW_SPLIT, ADAMW_NONE, SQUARES, CANDIDATES, ROUNDS = 7 };
static size_t N = (size_t)48 << 20;

__global__ void __launch_bounds__(256) triad_kernel(float *a, const float *b, const float *c, float s, size_t n) {
    size_t begin, end;
    block_range(n, begin, end);
    for (size_t i = begin + threadIdx.x * PACK; i < end; i += (size_t)blockDim.x * PACK)
        st(a + i, ld(b + i) + s * ld(c + i));
}

static float *array(size_t bytes) {
    void *p = NULL;
    cudaError_t e = cudaMalloc(&p, bytes);
    if (e == cudaSuccess) e = cudaMemset(p, 0, bytes);
    if (e != cudaSuccess) {
        fprintf(stderr, "no memory for %zu bytes: %s\n", bytes, cudaGetErrorString(e));
        exit(1);
    }
    return (float *)p;
}

int main(int argc, char **argv) {
    if (argc > 1)
        N = (strtoull(argv[1], NULL, 10) + ZERO_OPTIMIZER_CHUNK - 1) / ZERO_OPTIMIZER_CHUNK * ZERO_OPTIMIZER_CHUNK;
    static const char *const names[CANDIDATES] = {
        "STREAM triad",           "AdamW, fp32",   "AdamW, bf16, fp32 master", "AdamW, bf16, split master",
        "AdamW, bf16, no master", "sum of squares"
    };
    static const double bytes[CANDIDATES] = { 12, 28, 30, 28, 24, 4 };
    double seconds[CANDIDATES][ROUNDS], ratio[CANDIDATES][ROUNDS];
    const size_t num_chunks = N / ZERO_OPTIMIZER_CHUNK;
    float *p = array(N * 4), *g = array(N * 4), *m = array(N * 4), *v = array(N * 4), *half = array(N * 2),
          *squares = array(ZERO_SQUARE_PARTS * ZERO_WIDE_WORDS * 8);
    zero_optimizer_chunk *host = (zero_optimizer_chunk *)malloc(num_chunks * sizeof *host),
                         *chunks = (zero_optimizer_chunk *)array(num_chunks * sizeof *host);
    for (size_t t = 0; t < num_chunks; t++)
        host[t] = zero_optimizer_chunk{ t * ZERO_OPTIMIZER_CHUNK,
                                        t * ZERO_OPTIMIZER_CHUNK,
                                        t * ZERO_OPTIMIZER_CHUNK,
                                        t * ZERO_OPTIMIZER_CHUNK,
                                        ZERO_OPTIMIZER_CHUNK,
                                        1,
                                        0 };
    if (cudaMemcpy(chunks, host, num_chunks * sizeof *host, cudaMemcpyHostToDevice) != cudaSuccess) return EXIT_FAILURE;
    const zero_optimizer_args a = { 1e-3f, 0.9f, 0.95f, 1e-8f, 0.1f, 0.5f, 0.5f, 1.0f, 42, 1, NULL };
    for (int round = -1; round < ROUNDS; round++)
        for (int k = 0; k < CANDIDATES; k++) {
            const double begin = zero_clock();
            cudaError_t e = cudaSuccess;
            if (k == TRIAD) {
                cudaLaunchConfig_t c = {};
                c.gridDim = dim3(1024);
                c.blockDim = dim3((unsigned)block_threads(256));
                e = cudaLaunchKernelEx(&c, triad_kernel, m, (const float *)p, (const float *)g, 3.0f, N);
            } else if (k == SQUARES) {
                e = zero_kernel_square_sum((uint64_t *)squares, g, N, 0);
            } else {
                const enum zero_master mode = k == ADAMW_SPLIT  ? ZERO_MASTER_SPLIT
                                              : k == ADAMW_NONE ? ZERO_MASTER_NONE
                                                                : ZERO_MASTER_FP32;
                const zero_optimizer_arrays arrays = { k == ADAMW_F32 ? p : half, p, { m, v }, g };
                e = zero_optimizer_launch(ZERO_ADAMW, arrays, k == ADAMW_F32 ? ZERO_F32 : ZERO_BF16, mode, chunks,
                                          num_chunks, a, 0);
            }
            if (e == cudaSuccess) e = cudaDeviceSynchronize();
            if (e != cudaSuccess) {
                fprintf(stderr, "%s\n", cudaGetErrorString(e));
                return 1;
            }
            if (round >= 0) seconds[k][round] = zero_clock() - begin;
        }
    printf("%zu parameters\n%-28s %10s %10s %14s\n", N, "", "ms", "GB/s", "x triad's GB/s");
    for (int k = 0; k < CANDIDATES; k++)
        for (int r = 0; r < ROUNDS; r++) ratio[k][r] = bytes[k] / seconds[k][r] / (bytes[TRIAD] / seconds[TRIAD][r]);
    for (int k = 0; k < CANDIDATES; k++) {
        const double times_triad = bench_median(ratio[k], ROUNDS), s = bench_median(seconds[k], ROUNDS);
        printf("%-28s %10.1f %10.1f %14.2f\n", names[k], 1e3 * s, bytes[k] * (double)N / s / 1e9, times_triad);
    }
    return 0;
}
