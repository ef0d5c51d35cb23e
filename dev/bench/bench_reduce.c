/* bench_reduce.c: what the ordered reduction costs, beside copying the buffer and beside MPI's own reduce-scatter. Run under
   mpirun -np 8, all ranks on one host; an argument is the number of elements (default: GPT-2 124M's parameters).

   copy            every rank copies its buffer once: what moving the bytes costs here
   ordered         exchange + our sum in the order of a balanced tree: the same bits every time
   MPI             MPI_Reduce_scatter_block of floats: another order on every call
   all-gather      ours, of the parameters */
#include <mpi.h>
#include <stdio.h>
#include <string.h>
#include "dev/bench/bench.h"
#include "zero/comm_mpi.h"
#include "zero/kernels.h"

enum { COPY, ORDERED, MPI_OWN, GATHER, CANDIDATES, ROUNDS = 3 };

static zero_memory memory;

static void must(int ok, const zero_comm *c)
{
    if (ok) return;
    fprintf(stderr, "%s\n", c ? zero_comm_error(c) : "out of memory");
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static void ordered(zero_comm *c, float *grads, float *shard, size_t piece)
{
    zero_ticket t;
    const void *const *pieces;
    const zero_slots none = { .count = 0 };
    must(!zero_comm_exchange_begin(c, grads, piece * sizeof *grads, NULL, &t) && !zero_comm_exchange_finish(c, t, NULL, &pieces), c);
    must(!zero_kernel_sum(shard, pieces, zero_comm_size(c), ZERO_F32, none, piece, NULL), c);
    must(!zero_comm_exchange_done(c, t, NULL) && !zero_comm_reusable(c, t, NULL), c);
}

static void gather(zero_comm *c, float *params, size_t piece)
{
    zero_ticket t;
    must(!zero_comm_allgather_begin(c, params, piece * sizeof *params, ZERO_WIRE_PARAMS, NULL, &t) && !zero_comm_allgather_finish(c, t, NULL), c);
}

int main(int argc, char **argv)
{
    static const char *const names[CANDIDATES] = { "copy of the buffer", "ordered reduction", "MPI_Reduce_scatter_block", "all-gather" };
    double seconds[CANDIDATES][ROUNDS], ratio[CANDIDATES][ROUNDS];
    zero_comm *c;
    void *p = NULL;
    MPI_Init(&argc, &argv);
    must(!zero_comm_create_mpi(&c, MPI_COMM_WORLD, &(zero_comm_mpi_config){ .timeout_s = 0 }, &memory), c);
    const size_t ranks = (size_t)zero_comm_size(c), wanted = argc > 1 ? strtoull(argv[1], NULL, 10) : 124475904;
    const size_t piece = (wanted + 64 * ranks - 1) / (64 * ranks) * 64, n = piece * ranks;
    must(!zero_comm_alloc(c, &memory, ZERO_MEM_GRADS, &p, n * sizeof(float)), c);
    float *grads = p, *copy = zero_memory_alloc(&memory, ZERO_MEM_PARAMS, n * sizeof(float)), *shard = zero_memory_alloc(&memory, ZERO_MEM_GRAD_SHARDS, piece * sizeof(float));
    must(copy && shard, NULL);
    for (size_t i = 0; i < n; i++) grads[i] = (float)((i * 2654435761u + (size_t)zero_comm_rank(c) * 40503u) % 2001) / 1000 - 1;
    for (int round = -1; round < ROUNDS; round++)       /* round -1 warms up */
        for (int k = 0; k < CANDIDATES; k++) {
            must(!zero_comm_barrier(c), c);
            const double begin = bench_now();
            if (k == COPY) memcpy(copy, grads, n * sizeof(float));
            else if (k == ORDERED) ordered(c, grads, shard, piece);
            else if (k == MPI_OWN) MPI_Reduce_scatter_block(grads, copy, (int)piece, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
            else gather(c, grads, piece);
            must(!zero_comm_barrier(c), c);
            if (round >= 0) seconds[k][round] = bench_now() - begin;
            if (k == GATHER)        /* all ranks hold the same now: give each its own again */
                for (size_t i = 0; i < n; i += 1024) grads[i] += (float)zero_comm_rank(c);
        }
    for (int k = 0; k < CANDIDATES; k++)
        for (int r = 0; r < ROUNDS; r++) ratio[k][r] = seconds[k][r] / seconds[COPY][r];
    if (zero_comm_rank(c) == 0) {
        printf("%zu floats on each of %zu ranks, %s\n%-28s %10s %14s\n", n, ranks, zero_comm_name(c), "", "ms", "x copy");
        for (int k = 0; k < CANDIDATES; k++) {
            const double times_copy = bench_median(ratio[k], ROUNDS);
            printf("%-28s %10.1f %14.2f\n", names[k], 1e3 * bench_median(seconds[k], ROUNDS), times_copy);
        }
    }
    zero_memory_free(&memory, ZERO_MEM_GRAD_SHARDS, shard, piece * sizeof(float));
    zero_memory_free(&memory, ZERO_MEM_PARAMS, copy, n * sizeof(float));
    zero_comm_destroy(c);
    MPI_Finalize();
    return 0;
}
