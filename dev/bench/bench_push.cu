// bench_push.cu: the bandwidth of the ordered sum (zero_kernel_push) for 2 to 16 ranks, beside that of STREAM's copy,
// and what the step costs for numbers of ranks that are no power of two: the time of a byte, against the mean of the
// nearest powers of two. A step is 8 micro-steps of N chunks. Bytes as the algorithm needs them: each chunk is read
// once; a partial sum that changes is read, one that is new is written.
//
//     bench_push [ELEMENTS [ROUNDS]]          of all chunks of a micro-step; default: 2^23, 15
//
// An element is 4 bytes (fp32), then 2 (bf16). Candidates take turns; numbers are medians of ratios in a round.
#include <stdio.h>
#include <vector>
#include "bench/bench.h"
#include "zero/cost.h"
#include "zero/kernels.h"

enum { MOST = 16, MICRO_STEPS = 8 };

static void must(cudaError_t e) {
    if (e == cudaSuccess) return;
    fprintf(stderr, "%s\n", cudaGetErrorString(e));
    exit(1);
}

static char *array(size_t bytes) {
    void *p = NULL;
    must(cudaMalloc(&p, bytes));
    must(cudaMemset(p, 0, bytes));
    return (char *)p;
}

// One step; returns its bytes.
static double step(const void *const *chunks, zero_partial_sums sums, int N, enum zero_dtype dtype, size_t n) {
    double bytes = 0;
    for (uint64_t leaves = 0; leaves < (uint64_t)N * MICRO_STEPS; leaves += (uint64_t)N) {
        const uint64_t after = leaves + (uint64_t)N;
        const int changed = zero_partial_sums_live(leaves) + zero_partial_sums_live(after) -
                            2 * zero_partial_sums_kept(leaves, after);
        must(zero_kernel_push(sums, leaves, chunks, N, dtype, n, 0));
        bytes += (double)n * ((double)N * (double)zero_dtype_bytes(dtype) + 4.0 * changed);
    }
    return bytes;
}

static void compare(enum zero_dtype dtype, size_t elements, size_t rounds) {
    const size_t elem = zero_dtype_bytes(dtype);
    std::vector<std::vector<double>> rate(MOST + 1, std::vector<double>(rounds)), ratio = rate;
    char *buffer = array(elements * elem), *copy = array(elements * elem);
    zero_partial_sums sums = {};
    for (int s = 0; s < 8; s++) sums.sum[s] = (float *)array(elements / 2 * sizeof(float));
    const void **table = (const void **)array(MOST * sizeof *table);
    for (size_t round = 0; round <= rounds; round++)  // the first warms up
        for (int N = 1; N <= MOST; N++) {             // 1: the copy
            const size_t n = elements / (size_t)N / 64 * 64;
            const void *chunks[MOST];
            for (int i = 0; i < N; i++) chunks[i] = buffer + (size_t)i * n * elem;
            must(cudaMemcpy(table, chunks, sizeof chunks, cudaMemcpyHostToDevice));
            must(cudaDeviceSynchronize());
            const double begin = zero_clock();
            double bytes = 0;
            if (N > 1) bytes = step(table, sums, N, dtype, n);
            for (int g = 0; g < MICRO_STEPS && N == 1; g++) {
                must(cudaMemcpyAsync(copy, buffer, n * elem, cudaMemcpyDeviceToDevice, 0));
                bytes += 2.0 * (double)(n * elem);
            }
            must(cudaDeviceSynchronize());
            if (round > 0) rate[(size_t)N][round - 1] = bytes / (zero_clock() - begin);
        }
    printf("\n%s, %zu elements, median of %zu rounds\n%8s %10s %10s %30s\n", elem == 4 ? "fp32" : "bf16", elements,
           rounds, "N", "GB/s", "x copy", "x time of the nearest powers");
    for (size_t N = 1; N <= MOST; N++) {
        size_t below = 1, above = MOST;
        while (2 * below <= N) below *= 2;
        while (above / 2 >= N) above /= 2;
        std::vector<double> of_copy(rounds), of_powers(rounds), all = rate[N];
        for (size_t r = 0; r < rounds; r++) {
            of_copy[r] = rate[N][r] / rate[1][r];
            of_powers[r] = (1 / rate[N][r]) / (0.5 / rate[below][r] + 0.5 / rate[above][r]);
        }
        printf("%8zu %10.2f %10.2f", N, bench_median(all.data(), rounds) / 1e9, bench_median(of_copy.data(), rounds));
        if (below == above)
            printf("\n");
        else
            printf(" %30.2f\n", bench_median(of_powers.data(), rounds));
    }
    for (int s = 0; s < 8; s++) must(cudaFree(sums.sum[s]));
    must(cudaFree(buffer));
    must(cudaFree(copy));
    must(cudaFree(table));
}

int main(int argc, char **argv) {
    const size_t elements = argc > 1 ? strtoull(argv[1], NULL, 10) : (size_t)1 << 23,
                 rounds = argc > 2 ? strtoull(argv[2], NULL, 10) : 15;
    if (elements < 64 * MOST || rounds < 1) {
        fprintf(stderr, "usage: bench_push [ELEMENTS [ROUNDS]]\n");
        return 1;
    }
    compare(ZERO_F32, elements, rounds);
    compare(ZERO_BF16, elements, rounds);
    return 0;
}
