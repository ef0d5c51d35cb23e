// test_comm.c: the MPI transport, in each of the ways in which it can move bytes, at any number of ranks. Every case is
// named after the fault that it prevents. Run under mpirun.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "test/harness/mpi_check.h"
#include "zero/comm/mpi/comm_mpi.h"

static int rank, ranks;
static zero_accounting memory;

static uint32_t value(int from, int to, size_t i, unsigned round) {
    return (uint32_t)(from * 1000003 + to * 10007) + (uint32_t)i * 2654435761u + round * 97u;
}

static void pause_randomly(unsigned *seed) { nanosleep(&(struct timespec){ 0, rand_r(seed) % 2000000 }, NULL); }

// Several exchanges in flight on different buffers, buffers reused as soon as that is allowed, gathers and numbers in
// between, all with random delays: a buffer that is read too late or written too early shows as a wrong value.
static void moves_the_right_bytes(zero_comm *c) {
    enum { BUFFERS = 3, ROUNDS = 12 };
    const size_t piece = 1000, n = piece * (size_t)ranks;
    unsigned seed = (unsigned)rank + 1;
    uint32_t *buf[BUFFERS], *host = malloc(n * sizeof *host), *numbers = malloc((size_t)ranks * 1500 * sizeof *numbers),
                            mine[1500];
    const void **from_ranks = malloc((size_t)ranks * sizeof *from_ranks);
    zero_ticket ticket[BUFFERS] = { 0 };
    for (int b = 0; b < BUFFERS; b++) {
        void *p = NULL;
        EXPECT(zero_comm_alloc(c, &memory, ZERO_MEM_UNIT_BUFFERS, &p, n * sizeof **buf) == ZERO_OK, "alloc: %s",
               zero_comm_error(c));
        buf[b] = p;
        device_read(host, buf[b], n * sizeof *host);
        for (size_t i = 0; i < n; i++) EXPECT(host[i] == 0, "symmetric memory is not zeroed");
    }
    const uint64_t received = zero_comm_received(c, ZERO_WIRE_GRADS),
                   gathered = zero_comm_received(c, ZERO_WIRE_PARAMS);
    for (unsigned round = 0; round < ROUNDS; round++) {
        for (int b = 0; b < BUFFERS; b++) {
            pause_randomly(&seed);
            EXPECT(zero_comm_reusable(c, ticket[b], NULL) == ZERO_OK, "reusable: %s", zero_comm_error(c));
            for (int to = 0; to < ranks; to++)
                for (size_t i = 0; i < piece; i++)
                    host[(size_t)to * piece + i] = value(rank, to, i, round * BUFFERS + (unsigned)b);
            device_write(buf[b], host, n * sizeof *host);
            EXPECT(zero_comm_all_to_all_begin(c, buf[b], piece * sizeof **buf, NULL, &ticket[b]) == ZERO_OK,
                   "begin: %s", zero_comm_error(c));
        }
        for (int b = 0; b < BUFFERS; b++) {
            const void *const *pieces = NULL;
            const int e = zero_comm_all_to_all_finish(c, ticket[b], NULL, &pieces);
            EXPECT(e == ZERO_OK, "finish: %s", zero_comm_error(c));
            pause_randomly(&seed);
            device_read(from_ranks, pieces, (size_t)ranks * sizeof *from_ranks * !e);
            for (int from = 0; from < ranks && !e; from++) {
                device_read(host, from_ranks[from], piece * sizeof *host);
                for (size_t i = 0; i < piece; i++)
                    EXPECT(host[i] == value(from, rank, i, round * BUFFERS + (unsigned)b),
                           "exchange: wrong value from rank %d, round %u", from, round);
            }
            EXPECT(zero_comm_all_to_all_done(c, ticket[b], NULL) == ZERO_OK, "done: %s", zero_comm_error(c));
        }
        const int g = (int)(round % BUFFERS);
        EXPECT(zero_comm_reusable(c, ticket[g], NULL) == ZERO_OK, "reusable: %s", zero_comm_error(c));
        for (size_t i = 0; i < n; i++) host[i] = i / piece == (size_t)rank ? value(rank, 99, i, round) : 0xdeadbeef;
        device_write(buf[g], host, n * sizeof *host);
        EXPECT(zero_comm_allgather_begin(c, buf[g], piece * sizeof **buf, ZERO_WIRE_PARAMS, NULL, &ticket[g]) ==
                   ZERO_OK,
               "gather: %s", zero_comm_error(c));
        pause_randomly(&seed);
        EXPECT(zero_comm_allgather_finish(c, ticket[g], NULL) == ZERO_OK, "gather: %s", zero_comm_error(c));
        device_read(host, buf[g], n * sizeof *host);
        for (size_t i = 0; i < n; i++)
            EXPECT(host[i] == value((int)(i / piece), 99, i, round), "gather: wrong value of rank %zu", i / piece);
        // more than one slot of the control block
        for (size_t i = 0; i < 1500; i++) mine[i] = value(rank, 7, i, round);
        EXPECT(zero_comm_allgather_host(c, mine, sizeof mine, numbers) == ZERO_OK, "numbers: %s", zero_comm_error(c));
        for (int r = 0; r < ranks; r++)
            for (size_t i = 0; i < 1500; i++)
                EXPECT(numbers[(size_t)r * 1500 + i] == value(r, 7, i, round), "numbers: wrong value of rank %d", r);
    }
    const uint64_t others = (uint64_t)(ranks - 1) * piece * sizeof **buf;
    EXPECT(zero_comm_received(c, ZERO_WIRE_GRADS) - received == ROUNDS * BUFFERS * others,
           "the exchanges' wire bytes are miscounted");
    EXPECT(zero_comm_received(c, ZERO_WIRE_PARAMS) - gathered == ROUNDS * others,
           "the gathers' wire bytes are miscounted");
    for (int b = 0; b < BUFFERS; b++) EXPECT(zero_comm_free(c, buf[b]) == ZERO_OK, "free: %s", zero_comm_error(c));
    EXPECT(memory.live[ZERO_MEM_UNIT_BUFFERS] == 0, "freed memory is still in the books");
    free(numbers);
    free(host);
    free(from_ranks);
}

static void library_sum(zero_comm *c) {
    const size_t piece = 640, n = piece * (size_t)ranks;
    zero_ticket ticket = 0;
    void *p = NULL, *out = zero_accounting_alloc(&memory, ZERO_MEM_GRAD_SHARDS, piece * sizeof(float));
    float *host = malloc(n * sizeof *host);
    EXPECT(zero_comm_alloc(c, &memory, ZERO_MEM_UNIT_BUFFERS, &p, n * sizeof(float)) == ZERO_OK, "alloc: %s",
           zero_comm_error(c));
    for (int bf16 = 0; bf16 <= 1; bf16++) {
        for (size_t i = 0; i < n; i++) {
            const float x = (float)(i % 7) + (float)rank;  // exact in bf16, and so are the sums in fp32
            uint32_t u;
            memcpy(&u, &x, sizeof u);
            if (bf16)
                ((uint16_t *)host)[i] = (uint16_t)(u >> 16);
            else
                host[i] = x;
        }
        device_write(p, host, n * (bf16 ? 2 : 4));
        EXPECT(zero_comm_reduce_scatter(c, p, bf16 ? ZERO_BF16 : ZERO_F32, piece, out, NULL, &ticket) == ZERO_OK,
               "reduce_scatter: %s", zero_comm_error(c));
        device_read(host, out, piece * sizeof *host);
        for (size_t i = 0; i < piece; i++) {
            const float want = (float)ranks * (float)(((size_t)rank * piece + i) % 7) +
                               (float)(ranks * (ranks - 1) / 2);
            EXPECT(host[i] == want, "element %zu is %f, not %f", i, host[i], want);
        }
    }
    EXPECT(zero_comm_reusable(c, ticket, NULL) == ZERO_OK, "reusable: %s", zero_comm_error(c));
    zero_comm_free(c, p);
    zero_accounting_free(&memory, ZERO_MEM_GRAD_SHARDS, out, piece * sizeof(float));
    free(host);
}

// The last rank calls another collective than the others: they must say so, not exchange garbage or hang.
static void different_calls_are_reported(const zero_comm_mpi_config *config) {
    zero_comm *c;
    void *p = NULL;
    zero_ticket t;
    const void *const *pieces;
    EXPECT(zero_comm_create_mpi(&c, MPI_COMM_WORLD, config, &memory) == ZERO_OK, "create: %s", zero_comm_error(c));
    EXPECT(zero_comm_alloc(c, &memory, ZERO_MEM_UNIT_BUFFERS, &p, 4096 * (size_t)ranks) == ZERO_OK, "alloc: %s",
           zero_comm_error(c));
    zero_comm_phase(c, "a test", 3);
    int e = zero_comm_all_to_all_begin(c, p, rank == ranks - 1 ? 512 : 1024, NULL, &t);
    if (!e) e = zero_comm_all_to_all_finish(c, t, NULL, &pieces);
    if (ranks > 1) {
        EXPECT(e == ZERO_ERR_COMM, "a different call went unnoticed");
        EXPECT(strstr(zero_comm_error(c), "disagree") && strstr(zero_comm_error(c), "in a test (unit 3)"),
               "the message is: %s", zero_comm_error(c));
    }
    MPI_Barrier(MPI_COMM_WORLD);
    zero_comm_destroy(c);
}

// The last rank comes late: the others give up in time and name it.
static void a_stalled_rank_is_named(zero_comm_mpi_config config) {
    zero_comm *c;
    char name[32];
    config.timeout_s = 1;
    EXPECT(zero_comm_create_mpi(&c, MPI_COMM_WORLD, &config, &memory) == ZERO_OK, "create: %s", zero_comm_error(c));
    if (rank < ranks - 1) {
        const int e = zero_comm_barrier(c);
        snprintf(name, sizeof name, "rank %d", ranks - 1);
        EXPECT(e == ZERO_ERR_COMM, "a stalled rank was waited for without end, or not at all");
        EXPECT(strstr(zero_comm_error(c), name) && strstr(zero_comm_error(c), "--timeout"), "the message is: %s",
               zero_comm_error(c));
    }
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Barrier(MPI_COMM_WORLD);
    zero_comm_destroy(c);
}

static void misuse_is_refused(zero_comm *c) {
    char outside[64];
    zero_ticket a, b;
    void *p = NULL;
    const void *const *pieces;
    EXPECT(zero_comm_all_to_all_begin(c, outside, 1, NULL, &a) == ZERO_ERR_ARG, "memory from elsewhere was taken");
    EXPECT(zero_comm_free(c, outside) == ZERO_ERR_ARG, "memory from elsewhere was freed");
    EXPECT(zero_comm_alloc(c, &memory, ZERO_MEM_UNIT_BUFFERS, &p, 256 * (size_t)ranks) == ZERO_OK, "alloc: %s",
           zero_comm_error(c));
    EXPECT(zero_comm_all_to_all_begin(c, p, 257, NULL, &a) == ZERO_ERR_ARG, "a piece that leaves the buffer was taken");
    EXPECT(zero_comm_all_to_all_begin(c, p, 64, NULL, &a) == ZERO_OK &&
               zero_comm_all_to_all_begin(c, p, 64, NULL, &b) == ZERO_OK,
           "begin: %s", zero_comm_error(c));
    EXPECT(zero_comm_all_to_all_finish(c, b, NULL, &pieces) == ZERO_ERR_ARG, "operations were finished out of order");
    EXPECT(zero_comm_allgather_host(c, &a, 1, outside) == ZERO_ERR_ARG,
           "numbers were gathered between begin and finish");
    EXPECT(zero_comm_all_to_all_finish(c, a, NULL, &pieces) == ZERO_OK &&
               zero_comm_all_to_all_done(c, a, NULL) == ZERO_OK,
           "finish: %s", zero_comm_error(c));
    EXPECT(zero_comm_all_to_all_finish(c, b, NULL, &pieces) == ZERO_OK &&
               zero_comm_all_to_all_done(c, b, NULL) == ZERO_OK,
           "finish: %s", zero_comm_error(c));
    zero_comm_free(c, p);
}

int main(int argc, char **argv) {
    static const struct {
        const char *name, *word;
        zero_comm_mpi_config config;
    } ways[] = {
        { "shared memory", "shared memory", { .timeout_s = 60 } },
        { "messages", "messages", { .timeout_s = 60, .no_shared_memory = 1 } },
        { "two ranks a host", "shared memory", { .timeout_s = 60, .ranks_per_host = 2 } },
        { "staged, shared memory", "staged", { .timeout_s = 60, .staged = 1 } },
        { "staged, messages", "staged", { .timeout_s = 60, .staged = 1, .no_shared_memory = 1 } },
        { "staged, two ranks a host", "staged", { .timeout_s = 60, .staged = 1, .ranks_per_host = 2 } },
    };
    char name[128];
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    use_own_device();
    for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
        zero_comm *c;
        EXPECT(zero_comm_create_mpi(&c, MPI_COMM_WORLD, &ways[w].config, &memory) == ZERO_OK, "create: %s",
               zero_comm_error(c));
        EXPECT(strstr(zero_comm_name(c), ranks > 1 ? ways[w].word : "one rank") != NULL,
               "the transport calls itself \"%s\"", zero_comm_name(c));
        moves_the_right_bytes(c);
        snprintf(name, sizeof name, "moves the right bytes with delays and reuse: %s", ways[w].name);
        case_done(name);
        library_sum(c);
        snprintf(name, sizeof name, "the library's own sum: %s", ways[w].name);
        case_done(name);
        misuse_is_refused(c);
        snprintf(name, sizeof name, "misuse is refused with words: %s", ways[w].name);
        case_done(name);
        zero_comm_destroy(c);
        EXPECT(memory.total_live == 0, "%zu bytes are still in the books", memory.total_live);
        snprintf(name, sizeof name, "all memory is given back: %s", ways[w].name);
        case_done(name);
        a_stalled_rank_is_named(ways[w].config);
        snprintf(name, sizeof name, "a stalled rank is named in time: %s", ways[w].name);
        case_done(name);
    }
    different_calls_are_reported(&ways[0].config);
    case_done("different calls on different ranks are reported: shared memory");
    return cases_done();
}
