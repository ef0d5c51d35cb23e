// bench_host_update.c: the bandwidth of AdamW on the host (zero/optimizers/host.cpp), for state that is offloaded,
// beside that of STREAM's triad a = b + s * c (McCalpin 1995) on the same arrays, by as many threads, in turns. Bytes
// as in bench_adamw.cu. An argument is the number of parameters.
//
//     OMP_NUM_THREADS=2 OMP_PROC_BIND=true bench_host_update [PARAMETERS]
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "bench/bench.h"
#include "zero/clock.h"
#include "zero/optimizers/optimizers.h"

enum { TRIAD, F32, MASTER, SPLIT, NONE, CANDIDATES, ROUNDS = 7 };

// With huge pages, so that what is measured is memory. First touched by the threads that run the triad.
static float *array(size_t bytes) {
    void *p = NULL;
    if (posix_memalign(&p, (size_t)2 << 20, bytes) != 0) {
        fprintf(stderr, "no memory for %zu bytes\n", bytes);
        exit(1);
    }
    (void)madvise(p, bytes, MADV_HUGEPAGE);
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < bytes; i += 4096) memset((char *)p + i, 0, bytes - i < 4096 ? bytes - i : 4096);
    return p;
}

static void triad(float *restrict a, const float *restrict b, const float *restrict c, float s, size_t n) {
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < n; i++) a[i] = b[i] + s * c[i];
}

int main(int argc, char **argv) {
    static const char *const names[CANDIDATES] = { "STREAM triad", "AdamW, fp32", "AdamW, bf16, fp32 master",
                                                   "AdamW, bf16, split master", "AdamW, bf16, no master" };
    static const double bytes[CANDIDATES] = { 12, 28, 30, 28, 24 };
    static const enum zero_master masters[CANDIDATES] = { [SPLIT] = ZERO_MASTER_SPLIT, [NONE] = ZERO_MASTER_NONE };
    const size_t asked_for = argc > 1 ? strtoull(argv[1], NULL, 10) : (size_t)48 << 20,
                 num_chunks = (asked_for + ZERO_OPTIMIZER_CHUNK - 1) / ZERO_OPTIMIZER_CHUNK,
                 N = num_chunks * ZERO_OPTIMIZER_CHUNK;
    double seconds[CANDIDATES][ROUNDS], ratio[CANDIDATES][ROUNDS];
    float *p = array(N * 4), *g = array(N * 4), *m = array(N * 4), *v = array(N * 4), *half = array(N * 2);
    zero_optimizer_chunk *chunks = malloc(num_chunks * sizeof *chunks);
    if (!chunks) return 1;
    for (size_t i = 0, at = 0; i < num_chunks; i++, at += ZERO_OPTIMIZER_CHUNK)
        chunks[i] = (zero_optimizer_chunk){ at, at, at, at, ZERO_OPTIMIZER_CHUNK, 1, 0, 0 };
    const zero_optimizer_args a = { .lr = 1e-3f,
                                    .beta1 = 0.9f,
                                    .beta2 = 0.95f,
                                    .eps = 1e-8f,
                                    .weight_decay = 0.1f,
                                    .correction1 = 0.5f,
                                    .correction2 = 0.5f,
                                    .scale = 1,
                                    .seed = 42,
                                    .t = 1 };
    for (int round = -1; round < ROUNDS; round++)
        for (int k = 0; k < CANDIDATES; k++) {
            const zero_optimizer_arrays arrays = { k == F32 ? (void *)p : half,
                                                   k == MASTER  ? (void *)p
                                                   : k == SPLIT ? p + N / 2
                                                                : NULL,
                                                   { m, v },
                                                   g,
                                                   NULL };
            const double begin = zero_clock();
            if (k == TRIAD)
                triad(m, p, g, 3, N);
            else
                zero_optimizer_update(ZERO_ADAMW, &arrays, k == F32 ? ZERO_F32 : ZERO_BF16, masters[k], chunks,
                                      num_chunks, &a);
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
