// bench_reduce.c: the cost of the ordered reduction and of the all-gather. Run under mpirun:
//
//     bench_reduce [ELEMENTS [mpi|nccl [REPEATS]]]        default: GPT-2 124M's parameters, mpi, 1
//
// copy            every rank copies its buffer once, on its device: the cost of moving the bytes
// ordered         all-to-all + our sum in the order of a balanced tree: the same bits every time
// library's       the transport's own reduce-scatter (MPI_Reduce_scatter_block, ncclReduceScatter): order unspecified
// all-gather      ours, of the parameters
//
// A round is REPEATS of a candidate, between two barriers; candidates take turns. Bandwidths are in nccl-tests'
// convention: with N ranks and a buffer of S bytes on each, algbw = S / time and busbw = algbw (N - 1)/N, which for a
// perfect ring is a link's bandwidth.
#include <mpi.h>
#include <stdio.h>
#include <string.h>
#include "bench/bench.h"
#include "zero/comm/bootstrap/mpi.h"
#include "zero/comm/transport_registry.h"
#include "zero/kernels.h"

enum { COPY, ORDERED, LIBRARY, GATHER, CANDIDATES, ROUNDS = 3 };

static zero_accounting memory;

static void must(int ok, const zero_comm *c) {
    if (ok) return;
    fprintf(stderr, "%s\n", c ? zero_comm_error(c) : "no GPU, or out of memory");
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static void ordered(zero_comm *c, float *grads, float *shard, size_t piece, cudaStream_t s) {
    zero_ticket t;
    const void *const *pieces;
    const zero_partial_sums none = { .count = 0 };
    must(!zero_comm_all_to_all_begin(c, grads, piece * sizeof *grads, piece * sizeof *grads, s, &t) &&
             !zero_comm_all_to_all_finish(c, t, s, &pieces),
         c);
    must(!zero_kernel_sum(shard, pieces, zero_comm_size(c), ZERO_F32, none, piece, s), c);
    must(!zero_comm_all_to_all_done(c, t, s) && !zero_comm_reusable(c, t, s), c);
}

static void library(zero_comm *c, float *grads, float *shard, size_t piece, cudaStream_t s) {
    zero_ticket t;
    must(!zero_comm_reduce_scatter(c, grads, ZERO_F32, piece, shard, s, &t) && !zero_comm_reusable(c, t, s), c);
}

static void gather(zero_comm *c, float *params, size_t piece, cudaStream_t s) {
    zero_ticket t;
    must(!zero_comm_allgather_begin(c, params, piece * sizeof *params, ZERO_WIRE_PARAMS, s, &t) &&
             !zero_comm_allgather_finish(c, t, s),
         c);
}

static zero_comm *connect(const zero_transport *transport) {
    zero_comm *c = NULL;
    zero_bootstrap *boot = NULL;
    char err[512] = "";
    must(!zero_bootstrap_create_mpi(&boot, MPI_COMM_WORLD, 0), NULL);
    if (zero_comm_create(&c, transport, boot, &(zero_comm_config){ .timeout_s = 0 }, &memory, err, sizeof err)) {
        fprintf(stderr, "%s\n", err);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    zero_bootstrap_destroy(boot);
    return c;
}

int main(int argc, char **argv) {
    static const char *const names[CANDIDATES] = { "copy of the buffer", "ordered reduction",
                                                   "library's reduce-scatter", "all-gather" };
    double seconds[CANDIDATES][ROUNDS], ratio[CANDIDATES][ROUNDS];
    int rank, devices = 0;
    void *p = NULL;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    const size_t wanted = argc > 1 ? strtoull(argv[1], NULL, 10) : 124475904,
                 repeats = argc > 3 ? strtoull(argv[3], NULL, 10) : 1;
    const zero_transport *transport = zero_transport_find(argc > 2 ? argv[2] : "mpi");
    if (argc > 4 || !wanted || !repeats || !transport) {
        if (rank == 0) fprintf(stderr, "usage: bench_reduce [ELEMENTS [mpi|nccl [REPEATS]]]\n");
        MPI_Finalize();
        return 1;
    }
    // all ranks are on one host
    must(!cudaGetDeviceCount(&devices) && devices > 0 && !cudaSetDevice(rank % devices), NULL);
    zero_comm *c = connect(transport);
    const cudaStream_t s = zero_comm_stream(c);
    const size_t ranks = (size_t)zero_comm_size(c), piece = (wanted + 64 * ranks - 1) / (64 * ranks) * 64,
                 n = piece * ranks;
    must(!zero_comm_alloc(c, &memory, ZERO_MEM_GRADS, &p, n * sizeof(float)), c);
    float *grads = p, *copy = zero_accounting_alloc(&memory, ZERO_MEM_PARAMS, n * sizeof(float)),
          *shard = zero_accounting_alloc(&memory, ZERO_MEM_GRAD_SHARDS, piece * sizeof(float));
    float *host = malloc(n * sizeof *host);
    must(copy && shard && host, NULL);
    for (size_t i = 0; i < n; i++) host[i] = (float)((i * 2654435761u + (size_t)rank * 40503u) % 2001) / 1000 - 1;
    for (int round = -1; round < ROUNDS; round++)  // round -1 warms up
        for (int k = 0; k < CANDIDATES; k++) {
            must(!cudaMemcpy(grads, host, n * sizeof *host, cudaMemcpyHostToDevice), NULL);
            must(!zero_comm_barrier(c), c);
            const double begin = zero_clock();
            for (size_t i = 0; i < repeats; i++) {
                if (k == COPY)
                    must(!cudaMemcpyAsync(copy, grads, n * sizeof(float), cudaMemcpyDefault, s), NULL);
                else if (k == ORDERED)
                    ordered(c, grads, shard, piece, s);
                else if (k == LIBRARY)
                    library(c, grads, shard, piece, s);
                else
                    gather(c, grads, piece, s);
            }
            must(!zero_comm_synchronize(c, s) && !zero_comm_barrier(c), c);
            if (round >= 0) seconds[k][round] = (zero_clock() - begin) / (double)repeats;
        }
    for (int k = 0; k < CANDIDATES; k++)
        for (int r = 0; r < ROUNDS; r++) ratio[k][r] = seconds[k][r] / seconds[COPY][r];
    if (rank == 0) {
        printf("%zu floats on each of %zu ranks, %s\n%-28s %10s %14s %12s %12s\n", n, ranks, zero_comm_name(c), "",
               "ms", "x copy", "algbw GB/s", "busbw GB/s");
        for (int k = 0; k < CANDIDATES; k++) {
            const double times_copy = bench_median(ratio[k], ROUNDS), t = bench_median(seconds[k], ROUNDS),
                         gbs = (double)(n * sizeof(float)) / t / 1e9;
            printf("%-28s %10.3f %14.2f", names[k], 1e3 * t, times_copy);
            if (k == COPY)
                printf("\n");
            else
                printf(" %12.2f %12.2f\n", gbs, gbs * (double)(ranks - 1) / (double)ranks);
        }
    }
    zero_accounting_free(&memory, ZERO_MEM_GRAD_SHARDS, shard, piece * sizeof(float));
    zero_accounting_free(&memory, ZERO_MEM_PARAMS, copy, n * sizeof(float));
    zero_comm_destroy(c);
    free(host);
    MPI_Finalize();
    return 0;
}
