// test_nccl.c: the NCCL transport, at any number of ranks: on the CPU with NCCL's calls of dev/device/cpu, where
// CUDA_ON_CPU_STREAMS=n lets streams run in any order that the events allow; on GPUs with NCCL, one rank each. Every
// case is named after the fault that it prevents. Run under mpirun.
//
// Data is moved by streams only, as in a real run: from pinned memory that is different in each round, to memory that
// is checked at the end. In the last part each wait of one stream for another is skipped in turn, and values must be
// wrong: otherwise the wait would be superfluous, or this test blind.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "test/harness/mpi_check.h"
#include "zero/comm/bootstrap/bootstrap_mpi.h"
#include "zero/comm/nccl/comm_nccl.h"
#include "zero/kernels.h"
#ifdef CUDA_ON_CPU
#include <nccl.h>
#endif

enum { ROUNDS = 24, PIECE = 64 * 40, SHARD = 4096 };
#ifdef CUDA_ON_CPU
static const double SHORT = 0.5;  // a time-out that is meant to pass
#else
static const double SHORT = 10;  // it goes for the meeting of the ranks too, for which NCCL may want seconds
#endif

static int rank, ranks;
static zero_accounting memory;
static zero_bootstrap *boot;

// Small whole numbers, so that sums are exact.
static float value(int from, int to, size_t i, int round) {
    return (float)((from * 7 + to * 3 + (int)(i % 61) + round * 11) % 97);
}

static zero_comm *create(zero_comm_nccl_config config) {
    zero_comm *c;
    const int e = zero_comm_create_nccl(&c, boot, &config, &memory);
    EXPECT(e == ZERO_OK, "create: %s", zero_comm_error(c));
    return c;
}

// The caller's two streams, and one buffer of each kind.
struct traffic {
    zero_comm *c;
    cudaStream_t a, b;
    cudaEvent_t event;
    float *grads[2], *params, *fetched;  // symmetric; symmetric; device
    zero_window *window;
    float *sources, *sums, *gathered, *windows;  // of all rounds
    zero_ticket exchange[2], gather;
};
enum { EXCHANGE = 1, GATHER = 2, FETCH = 4, GATHER_READ_AT_ONCE = 8 };  // kinds of traffic

static float *pinned(size_t n) {
    void *p = NULL;
    EXPECT(cudaMallocHost(&p, n * sizeof(float)) == cudaSuccess, "pinned memory");
    memset(p, 0, n * sizeof(float));
    return p;
}

static void copy(void *to, const void *from, size_t n, cudaStream_t s) {
    EXPECT(cudaMemcpyAsync(to, from, n * sizeof(float), cudaMemcpyDefault, s) == cudaSuccess, "copy");
}

static void follow(struct traffic *t, cudaStream_t follower, cudaStream_t leader) {
    EXPECT(cudaEventRecord(t->event, leader) == cudaSuccess &&
               cudaStreamWaitEvent(follower, t->event, 0) == cudaSuccess,
           "event");
}

#define OK(call) EXPECT((call) == ZERO_OK, "%s: %s", #call, zero_comm_error(t->c))

// Exchanges of two buffers in turn, whose pieces are added on the transport's stream or on another one.
static void exchange(struct traffic *t, int round) {
    const void *const *pieces = NULL;
    const zero_partial_sums none = { .count = 0 };
    const cudaStream_t reader = round % 3 ? t->b : zero_comm_stream(t->c);
    const size_t n = PIECE * (size_t)zero_comm_size(t->c);
    zero_ticket *ticket = &t->exchange[round % 2];
    OK(zero_comm_reusable(t->c, *ticket, t->a));
    copy(t->grads[round % 2], t->sources + (size_t)round * n, n, t->a);
    OK(zero_comm_all_to_all_begin(t->c, t->grads[round % 2], PIECE * sizeof(float), t->a, ticket));
    OK(zero_comm_all_to_all_finish(t->c, *ticket, reader, &pieces));
    EXPECT(zero_kernel_sum(t->sums + (size_t)round * PIECE, pieces, zero_comm_size(t->c), ZERO_F32, none, PIECE,
                           reader) == cudaSuccess,
           "sum");
    OK(zero_comm_all_to_all_done(t->c, *ticket, reader));
}

// At once: the transport's stream reads the others' pieces itself, and this rank's is not looked at: it may be written
// again as soon as it was sent.
static void gather(struct traffic *t, int round, int at_once) {
    const size_t n = PIECE * (size_t)zero_comm_size(t->c), own = PIECE * (size_t)zero_comm_rank(t->c);
    const cudaStream_t reader = at_once ? zero_comm_stream(t->c) : t->b;
    if (!at_once) follow(t, t->a, t->b);  // the copy to `gathered`
    OK(zero_comm_reusable(t->c, t->gather, t->a));
    copy(t->params + own, t->sources + (size_t)round * n + own, PIECE, t->a);
    OK(zero_comm_allgather_begin(t->c, t->params, PIECE * sizeof(float), ZERO_WIRE_PARAMS, t->a, &t->gather));
    OK(zero_comm_allgather_finish(t->c, t->gather, reader));
    copy(t->gathered + (size_t)round * n, t->params, own, reader);
    if (!at_once) copy(t->gathered + (size_t)round * n + own, t->params + own, PIECE, reader);
    copy(t->gathered + (size_t)round * n + own + PIECE, t->params + own + PIECE, n - own - PIECE, reader);
}

// The shard is written on one stream and fetched on the other.
static void fetch(struct traffic *t, int round) {
    const size_t n = PIECE * (size_t)zero_comm_size(t->c), own = PIECE * (size_t)zero_comm_rank(t->c), offset = 128;
    zero_ticket ticket;
    OK(zero_window_close(t->c, t->window, t->a));
    copy((float *)zero_window_shard(t->window) + offset, t->sources + (size_t)round * n + own, PIECE, t->a);
    OK(zero_window_open(t->c, t->window, t->a));
    OK(zero_window_gather_begin(t->c, t->window, offset * sizeof(float), PIECE * sizeof(float), t->fetched, t->b,
                                &ticket));
    OK(zero_window_gather_finish(t->c, t->window, ticket, t->b));
    copy(t->windows + (size_t)round * n, t->fetched, n, t->b);
}

// Returns how many values are wrong. first: the stream that the host waits for first, 0 to 2; the others run ahead of
// it no further than they must, or may.
static size_t wrong_values(zero_comm *c, int kinds, int first) {
    struct traffic traffic = { .c = c }, *t = &traffic;
    const int N = zero_comm_size(c), me = zero_comm_rank(c);
    const size_t n = PIECE * (size_t)N;
    void *p[4] = { NULL };
    size_t wrong = 0;
    EXPECT(cudaStreamCreateWithFlags(&t->a, cudaStreamNonBlocking) == cudaSuccess &&
               cudaStreamCreateWithFlags(&t->b, cudaStreamNonBlocking) == cudaSuccess,
           "streams");
    EXPECT(cudaEventCreateWithFlags(&t->event, cudaEventDisableTiming) == cudaSuccess, "event");
    for (int i = 0; i < 3; i++) OK(zero_comm_alloc(c, &memory, ZERO_MEM_UNIT_BUFFERS, &p[i], n * sizeof(float)));
    OK(zero_window_create(c, &memory, ZERO_MEM_PARAMS, SHARD * sizeof(float), &t->window));
    p[3] = zero_accounting_alloc(&memory, ZERO_MEM_UNIT_BUFFERS, n * sizeof(float));
    t->grads[0] = p[0];
    t->grads[1] = p[1];
    t->params = p[2];
    t->fetched = p[3];
    t->sources = pinned(ROUNDS * n);
    t->sums = pinned(ROUNDS * PIECE);
    t->gathered = pinned(ROUNDS * n);
    t->windows = pinned(ROUNDS * n);
    for (int r = 0; r < ROUNDS; r++)
        for (size_t i = 0; i < n; i++) t->sources[(size_t)r * n + i] = value(me, (int)(i / PIECE), i, r);
    OK(zero_window_open(c, t->window, t->a));
    const uint64_t received[2] = { zero_comm_received(c, ZERO_WIRE_GRADS), zero_comm_received(c, ZERO_WIRE_PARAMS) };
    for (int r = 0; r < ROUNDS; r++) {
        if (kinds & EXCHANGE) exchange(t, r);
        if (kinds & (GATHER | GATHER_READ_AT_ONCE)) gather(t, r, kinds & GATHER_READ_AT_ONCE);
        if (kinds & FETCH) fetch(t, r);
    }
    const cudaStream_t streams[] = { t->a, t->b, zero_comm_stream(c) };
    for (int i = 0; i < 3; i++) OK(zero_comm_synchronize(c, streams[(first + i) % 3]));
    for (int r = 0; r < ROUNDS; r++) {
        for (size_t i = 0; i < PIECE && (kinds & EXCHANGE); i++) {
            float want = 0;
            for (int from = 0; from < N; from++) want += value(from, me, (size_t)me * PIECE + i, r);
            wrong += t->sums[(size_t)r * PIECE + i] != want;
        }
        for (size_t i = 0; i < n; i++) {
            const float want = value((int)(i / PIECE), (int)(i / PIECE), i, r);
            const int mine = i / PIECE == (size_t)me;
            wrong += ((kinds & GATHER) || ((kinds & GATHER_READ_AT_ONCE) && !mine)) &&
                     t->gathered[(size_t)r * n + i] != want;
            wrong += (kinds & FETCH) && t->windows[(size_t)r * n + i] != want;
        }
    }
    const uint64_t others = (uint64_t)(N - 1) * PIECE * sizeof(float) * ROUNDS;
    EXPECT(zero_comm_received(c, ZERO_WIRE_GRADS) - received[0] == (kinds & EXCHANGE) * others,
           "the exchanges' wire bytes are miscounted");
    EXPECT(zero_comm_received(c, ZERO_WIRE_PARAMS) - received[1] ==
               (uint64_t)((kinds & (GATHER | GATHER_READ_AT_ONCE)) / 2 % 3 + (kinds & FETCH) / 4) * others,
           "the gathers' wire bytes are miscounted");
    for (int i = 0; i < 3; i++) OK(zero_comm_free(c, p[i]));
    zero_window_destroy(c, t->window);
    zero_accounting_free(&memory, ZERO_MEM_UNIT_BUFFERS, t->fetched, n * sizeof(float));
    float *const host[] = { t->sources, t->sums, t->gathered, t->windows };
    for (int i = 0; i < 4; i++) EXPECT(cudaFreeHost(host[i]) == cudaSuccess, "free");
    EXPECT(cudaEventDestroy(t->event) == cudaSuccess && cudaStreamDestroy(t->a) == cudaSuccess &&
               cudaStreamDestroy(t->b) == cudaSuccess,
           "streams");
    return wrong;
}

static size_t everywhere(size_t n) {
    unsigned long long mine = n, all = 0;
    MPI_Allreduce(&mine, &all, 1, MPI_UNSIGNED_LONG_LONG, MPI_SUM, MPI_COMM_WORLD);
    return all;
}

// More than one message's worth of numbers, between other operations.
static void numbers(zero_comm *c) {
    const int N = zero_comm_size(c);
    uint32_t mine[600], *all = calloc((size_t)N * 600, sizeof *all);
    for (int round = 0; round < 4; round++) {
        for (uint32_t i = 0; i < 600; i++)
            mine[i] = (uint32_t)(zero_comm_rank(c) * 1000003) + i * 2654435761u + (uint32_t)round;
        EXPECT(zero_comm_allgather_host(c, mine, sizeof mine, all) == ZERO_OK, "numbers: %s", zero_comm_error(c));
        for (int r = 0; r < N; r++)
            for (uint32_t i = 0; i < 600; i++)
                EXPECT(all[(size_t)r * 600 + i] == (uint32_t)(r * 1000003) + i * 2654435761u + (uint32_t)round,
                       "a wrong number of rank %d", r);
    }
    free(all);
}

static void library_sum(zero_comm *c) {
    const size_t n = PIECE * (size_t)zero_comm_size(c), me = (size_t)zero_comm_rank(c);
    const cudaStream_t s = zero_comm_stream(c);
    float *source = pinned(n), *result = pinned(PIECE);
    void *p = NULL;
    zero_ticket ticket = 0;
    EXPECT(zero_comm_alloc(c, &memory, ZERO_MEM_UNIT_BUFFERS, &p, n * sizeof(float)) == ZERO_OK, "alloc: %s",
           zero_comm_error(c));
    float *out = zero_accounting_alloc(&memory, ZERO_MEM_GRAD_SHARDS, PIECE * sizeof(float));
    for (int bf16 = 0; bf16 <= 1; bf16++) {
        const uint64_t received = zero_comm_received(c, ZERO_WIRE_GRADS);
        for (size_t i = 0; i < n; i++) {
            const float x = (float)(i % 7) + (float)me;  // exact in bf16, as are the sums
            uint32_t word;
            memcpy(&word, &x, sizeof word);
            if (bf16)
                ((uint16_t *)source)[i] = (uint16_t)(word >> 16);
            else
                source[i] = x;
        }
        EXPECT(cudaMemcpyAsync(p, source, n * (bf16 ? 2 : 4), cudaMemcpyDefault, s) == cudaSuccess, "copy");
        EXPECT(zero_comm_reduce_scatter(c, p, bf16 ? ZERO_BF16 : ZERO_F32, PIECE, out, s, &ticket) == ZERO_OK,
               "reduce_scatter: %s", zero_comm_error(c));
        copy(result, out, PIECE, s);
        EXPECT(zero_comm_synchronize(c, s) == ZERO_OK, "synchronize: %s", zero_comm_error(c));
        for (size_t i = 0; i < PIECE; i++) {
            const float want = (float)ranks * (float)((me * PIECE + i) % 7) + (float)(ranks * (ranks - 1) / 2);
            EXPECT(result[i] == want, "element %zu is %f, not %f", i, result[i], want);
        }
        EXPECT(zero_comm_received(c, ZERO_WIRE_GRADS) - received == (size_t)(ranks - 1) * PIECE * (bf16 ? 2 : 4),
               "wire bytes are miscounted");
    }
    EXPECT(zero_comm_free(c, p) == ZERO_OK, "free: %s", zero_comm_error(c));
    zero_accounting_free(&memory, ZERO_MEM_GRAD_SHARDS, out, PIECE * sizeof(float));
    EXPECT(cudaFreeHost(source) == cudaSuccess && cudaFreeHost(result) == cudaSuccess, "free");
}

static void misuse_is_refused(zero_comm *c) {
    char outside[64];
    zero_ticket a = 0, b = 0;
    void *p = NULL;
    zero_window *w = NULL;
    const void *const *pieces;
    EXPECT(zero_comm_all_to_all_begin(c, outside, 1, NULL, &a) == ZERO_ERR_ARG, "memory from elsewhere was taken");
    EXPECT(zero_comm_free(c, outside) == ZERO_ERR_ARG, "memory from elsewhere was freed");
    EXPECT(zero_comm_alloc(c, &memory, ZERO_MEM_UNIT_BUFFERS, &p, 256 * (size_t)ranks) == ZERO_OK, "alloc: %s",
           zero_comm_error(c));
    EXPECT(zero_comm_all_to_all_begin(c, p, 257, NULL, &a) == ZERO_ERR_ARG, "a piece that leaves the buffer was taken");
    EXPECT(zero_comm_all_to_all_begin(c, p, 64, NULL, &a) == ZERO_OK, "begin: %s", zero_comm_error(c));
    EXPECT(zero_comm_all_to_all_begin(c, p, 64, NULL, &b) == ZERO_ERR_ARG && strstr(zero_comm_error(c), "must be done"),
           "a second exchange: %s", zero_comm_error(c));
    EXPECT(zero_comm_all_to_all_finish(c, a + 1, NULL, &pieces) == ZERO_ERR_ARG, "another exchange was finished");
    EXPECT(zero_comm_all_to_all_finish(c, a, NULL, &pieces) == ZERO_OK &&
               zero_comm_all_to_all_done(c, a, NULL) == ZERO_OK,
           "finish: %s", zero_comm_error(c));
    EXPECT(zero_comm_all_to_all_done(c, a, NULL) == ZERO_ERR_ARG, "done twice");
    EXPECT(zero_comm_free(c, p) == ZERO_OK, "free: %s", zero_comm_error(c));
    EXPECT(zero_window_create(c, &memory, ZERO_MEM_PARAMS, 256, &w) == ZERO_OK, "window: %s", zero_comm_error(c));
    EXPECT(zero_window_gather_begin(c, w, 200, 64, outside, NULL, &a) == ZERO_ERR_ARG,
           "a fetch that leaves the window was taken");
    EXPECT(zero_window_gather_finish(c, w, 1, NULL) == ZERO_ERR_ARG, "a fetch was finished that was not begun");
    zero_window_destroy(c, w);
}

// The gathers after the last step are still on their way when an engine goes.
static void free_while_gathering(zero_comm *c) {
    void *p = NULL;
    zero_ticket ticket;
    EXPECT(zero_comm_alloc(c, &memory, ZERO_MEM_UNIT_BUFFERS, &p, 4096 * (size_t)ranks) == ZERO_OK, "alloc: %s",
           zero_comm_error(c));
    EXPECT(zero_comm_allgather_begin(c, p, 4096, ZERO_WIRE_PARAMS, NULL, &ticket) == ZERO_OK, "gather: %s",
           zero_comm_error(c));
    EXPECT(zero_comm_free(c, p) == ZERO_OK, "free: %s", zero_comm_error(c));
}

// As in a book: what the transport has allocated is what the formula says, and all of it is given back.
static void books(zero_comm *c) {
    const zero_comm_shape shape = zero_comm_get_shape(c), planned = zero_comm_nccl_shape((size_t)ranks);
    const size_t want = zero_comm_scratch_bytes(&shape, PIECE * (size_t)ranks * sizeof(float),
                                                PIECE * (size_t)ranks * sizeof(float), PIECE * (size_t)ranks);
    EXPECT(memory.live[ZERO_MEM_TRANSPORT] == want, "the transport has %zu bytes, by formula %zu",
           memory.live[ZERO_MEM_TRANSPORT], want);
    EXPECT(want == zero_comm_scratch_bytes(&planned, PIECE * (size_t)ranks * sizeof(float), 0, 0),
           "the planner's shape is another");
}

static void groups_are_apart(void) {
    const int shard = ranks % 2 ? 1 : ranks / 2;
    zero_mesh mesh;
    zero_comm *comms[3];  // data, shard, replicas
    char err[512] = "";
    for (int tensor = 1; tensor <= (ranks % 2 ? 1 : 2); tensor++) {
        const int in_group = tensor == 2 ? 0 : shard;
        EXPECT(zero_mesh_create(&mesh, rank, ranks, tensor, 1, in_group, err, sizeof err) == ZERO_OK, "mesh: %s", err);
        const zero_comm_nccl_config config = { .timeout_s = 60 };
        EXPECT(zero_mesh_comms_nccl(&mesh, boot, &config, &memory, &comms[0], &comms[1], &comms[2], err, sizeof err) ==
                   ZERO_OK,
               "comms: %s", err);
        EXPECT(zero_comm_size(comms[0]) == mesh.data && zero_comm_rank(comms[0]) == mesh.data_rank,
               "data ranks out of place");
        EXPECT(zero_comm_size(comms[1]) == mesh.shard && zero_comm_rank(comms[1]) == mesh.shard_rank,
               "ranks of a group out of place");
        EXPECT((mesh.groups > 1) == (comms[2] != NULL) && (mesh.groups == 1) == (comms[1] == comms[0]),
               "transports are shared as comm_mpi.h says");
        for (int i = 0; i < 3; i++) {
            if (!comms[i] || (i == 1 && comms[1] == comms[0])) continue;
            EXPECT(zero_comm_stream(comms[i]) == zero_comm_stream(comms[0]), "transports have different streams");
            numbers(comms[i]);
            EXPECT(wrong_values(comms[i], EXCHANGE | GATHER | FETCH, i) == 0, "wrong values on transport %d", i);
        }
        zero_comm_destroy(comms[2]);
        if (comms[1] != comms[0]) zero_comm_destroy(comms[1]);
        zero_comm_destroy(comms[0]);
        EXPECT(memory.total_live == 0, "%zu bytes are still in the books", memory.total_live);
    }
}

// The last rank is late: the others give up in time, with the phase; and go on to say so at every call.
static void a_stalled_rank_is_noticed(int in_stream) {
    zero_comm *c = create((zero_comm_nccl_config){ .timeout_s = SHORT });
    void *p = NULL;
    zero_ticket ticket;
    EXPECT(zero_comm_alloc(c, &memory, ZERO_MEM_UNIT_BUFFERS, &p, 4096 * (size_t)ranks) == ZERO_OK, "alloc: %s",
           zero_comm_error(c));
    MPI_Barrier(MPI_COMM_WORLD);
    zero_comm_phase(c, "a test", 3);
    if (rank < ranks - 1) {
        int e = ZERO_OK;
        if (in_stream) {
            e = zero_comm_allgather_begin(c, p, 4096, ZERO_WIRE_PARAMS, NULL, &ticket);
            if (!e) e = zero_comm_synchronize(c, zero_comm_stream(c));
        } else {
            e = zero_comm_barrier(c);
        }
        EXPECT(e == ZERO_ERR_COMM, "a stalled rank was waited for without end, or not at all");
        EXPECT(strstr(zero_comm_error(c), "in a test (unit 3)") && strstr(zero_comm_error(c), "--timeout"),
               "the message is: %s", zero_comm_error(c));
        EXPECT(zero_comm_barrier(c) == ZERO_ERR_COMM && strstr(zero_comm_error(c), "in a test (unit 3)"),
               "the next call: %s", zero_comm_error(c));
    }
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Barrier(MPI_COMM_WORLD);
    zero_comm_destroy(c);
    EXPECT(memory.total_live == 0, "%zu bytes are still in the books", memory.total_live);
}

// The last rank is late, and an operation of another communicator is queued behind the one that waits for it. NCCL's
// abort waits for that operation, so the communicators must be aborted together.
static void a_stall_before_another_communicator_is_noticed(void) {
    zero_mesh mesh;
    zero_comm *comms[3];  // data, shard, replicas
    void *p[3] = { NULL, NULL, NULL };
    char err[512] = "";
    zero_ticket ticket;
    const zero_comm_nccl_config config = { .timeout_s = SHORT };
    EXPECT(zero_mesh_create(&mesh, rank, ranks, 1, 1, ranks / 2, err, sizeof err) == ZERO_OK, "mesh: %s", err);
    EXPECT(zero_mesh_comms_nccl(&mesh, boot, &config, &memory, &comms[0], &comms[1], &comms[2], err, sizeof err) ==
               ZERO_OK,
           "comms: %s", err);
    for (int i = 1; i < 3; i++)
        EXPECT(zero_comm_alloc(comms[i], &memory, ZERO_MEM_UNIT_BUFFERS, &p[i], 4096 * (size_t)ranks) == ZERO_OK,
               "alloc: %s", zero_comm_error(comms[i]));
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank < ranks - 1) {
        int e = ZERO_OK;
        for (int i = 2; i > 0 && !e; i--) {
            zero_comm_phase(comms[i], "a test", (size_t)i);
            e = zero_comm_allgather_begin(comms[i], p[i], 4096, ZERO_WIRE_PARAMS, NULL, &ticket);
        }
        if (!e) e = zero_comm_synchronize(comms[1], zero_comm_stream(comms[1]));
        EXPECT(e == ZERO_ERR_COMM, "a stalled rank was waited for without end, or not at all");
    }
    MPI_Barrier(MPI_COMM_WORLD);
    for (int i = 2; i >= 0; i--) zero_comm_destroy(comms[i]);
    EXPECT(memory.total_live == 0, "%zu bytes are still in the books", memory.total_live);
}

// Other sizes: NCCL may hang, or move garbage; here it is told. Other buffers of the same size: only the transport can
// know.
static void different_calls_are_reported(int other_size) {
    zero_comm *c = create((zero_comm_nccl_config){ .timeout_s = 4 * SHORT });
    void *p = NULL;
    zero_ticket ticket;
    EXPECT(zero_comm_alloc(c, &memory, ZERO_MEM_UNIT_BUFFERS, &p, 4096 * (size_t)ranks) == ZERO_OK, "alloc: %s",
           zero_comm_error(c));
    MPI_Barrier(MPI_COMM_WORLD);  // all have begun
    zero_comm_phase(c, "a test", 3);
    const int odd = rank == ranks - 1;
    int e = zero_comm_allgather_begin(c, (char *)p + (odd && !other_size ? 1024 : 0), odd && other_size ? 512 : 1024,
                                      ZERO_WIRE_PARAMS, NULL, &ticket);
    if (!e) e = zero_comm_barrier(c);
    EXPECT(e == ZERO_ERR_COMM, "a different call went unnoticed");
    EXPECT(strstr(zero_comm_error(c), "in a test (unit 3)") && (other_size || strstr(zero_comm_error(c), "disagree")),
           "the message is: %s", zero_comm_error(c));
    MPI_Barrier(MPI_COMM_WORLD);
    zero_comm_destroy(c);
}

static void a_missing_library_is_explained(void) {
    static const char *const libraries[] = { "libnone.so.7", "libm.so.6" }, *const words[] = { "libnone.so.7",
                                                                                               "has no nccl" };
    char why[512];
    for (int i = 0; i < 2; i++) {
        zero_comm *c;
        EXPECT(!zero_comm_nccl_available(libraries[i], why, sizeof why) && strstr(why, words[i]), "the message is: %s",
               why);
        const zero_comm_nccl_config config = { .timeout_s = 60, .library = libraries[i] };
        EXPECT(zero_comm_create_nccl(&c, boot, &config, &memory) == ZERO_ERR_COMM, "a transport without a library");
        EXPECT(strstr(zero_comm_error(c), words[i]) && strstr(zero_comm_error(c), "--transport mpi"),
               "the message is: %s", zero_comm_error(c));
        zero_comm_destroy(c);
    }
    zero_comm *c;
    const zero_comm_nccl_config config = { .timeout_s = 60, .library = rank == ranks - 1 ? "libnone.so.7" : NULL };
    EXPECT(zero_comm_create_nccl(&c, boot, &config, &memory) == ZERO_ERR_COMM,
           "a transport without a library on one rank");
    EXPECT(strstr(zero_comm_error(c), rank == ranks - 1 ? "libnone.so.7" : "cannot use NCCL") != NULL,
           "the message is: %s", zero_comm_error(c));
    zero_comm_destroy(c);
}

#ifdef CUDA_ON_CPU
// What stands for NCCL here, by itself and with blocking communicators: what zero/ does not happen to do.
static void the_stand_in_does_what_nccl_does(void) {
    ncclUniqueId id, *ids = calloc((size_t)ranks, sizeof *ids);
    ncclComm_t comm, child;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    cudaStream_t s;
    int *mine = NULL, *theirs = NULL;
    const size_t n = 20000;  // more than one chunk
    const int next = (rank + 1) % ranks, last = (rank + ranks - 1) % ranks, group = ranks - 1 - rank / 2 * 2;
    config.blocking = 1;
    EXPECT(cudaStreamCreate(&s) == cudaSuccess && cudaMallocHost((void **)&mine, 2 * n * sizeof(int)) == cudaSuccess,
           "memory");
    EXPECT(cudaMallocHost((void **)&theirs, 2 * n * sizeof(int)) == cudaSuccess, "memory");
    EXPECT(ncclGetUniqueId(&id) == ncclSuccess, "id");
    MPI_Allgather(&id, sizeof id, MPI_BYTE, ids, sizeof id, MPI_BYTE, MPI_COMM_WORLD);
    EXPECT(ncclCommInitRankConfig(&comm, ranks, ids[0], rank, &config) == ncclSuccess, "init: %s",
           ncclGetLastError(NULL));
    for (size_t i = 0; i < 2 * n; i++) mine[i] = rank * 1000000 + (int)i;
    // Around a ring (one rank: to itself), two messages to the same rank, which arrive in the order of the calls.
    ncclResult_t r = ncclGroupStart();
    for (size_t k = 0; k < 2 && r == ncclSuccess; k++) {
        r = ncclRecv(theirs + k * n, n * sizeof(int), ncclUint8, last, comm, s);
        if (r == ncclSuccess) r = ncclSend(mine + k * n, n * sizeof(int), ncclUint8, next, comm, s);
    }
    EXPECT(r == ncclSuccess && ncclGroupEnd() == ncclSuccess && cudaStreamSynchronize(s) == cudaSuccess, "ring: %s",
           ncclGetLastError(comm));
    for (size_t i = 0; i < 2 * n; i++)
        EXPECT(theirs[i] == last * 1000000 + (int)i, "ring: element %zu is %d", i, theirs[i]);
    // Pairs of ranks, the higher one first; colors need not be small.
    EXPECT(ncclCommSplit(comm, group, -rank, &child, &config) == ncclSuccess, "split: %s", ncclGetLastError(comm));
    const int pair = rank / 2 * 2 + 1 < ranks ? 2 : 1, place = pair == 2 && rank % 2 == 0;
    EXPECT(ncclAllGather(mine, theirs, n * sizeof(int) / 2, ncclUint8, child, s) == ncclSuccess &&
               cudaStreamSynchronize(s) == cudaSuccess,
           "gather: %s", ncclGetLastError(child));
    for (int k = 0; k < pair; k++) {
        const int from = k == place ? rank : rank % 2 ? rank - 1 : rank + 1;
        EXPECT(theirs[(size_t)k * n / 2 + 7] == from * 1000000 + 7, "split: rank %d of %d has %d", k, pair,
               theirs[(size_t)k * n / 2 + 7]);
    }
    EXPECT(ncclAllGather(mine, theirs, 1, ncclUint8, NULL, s) == ncclInvalidArgument &&
               ncclGroupEnd() == ncclInvalidUsage,
           "misuse was accepted");
    EXPECT(ncclCommDestroy(child) == ncclSuccess && ncclCommDestroy(comm) == ncclSuccess, "destroy");
    EXPECT(cudaFreeHost(mine) == cudaSuccess && cudaFreeHost(theirs) == cudaSuccess &&
               cudaStreamDestroy(s) == cudaSuccess,
           "free");
    free(ids);
}
#endif

// Left out one at a time, the host waiting for each of the three streams first.
static void every_wait_is_needed(void) {
    static const struct {
        enum zero_nccl_wait wait;
        int kinds;
        const char *name;
    } waits[] = {
        { ZERO_NCCL_WAIT_ALL_TO_ALL, EXCHANGE, "an exchange, for the gradients" },
        { ZERO_NCCL_WAIT_PIECES, EXCHANGE, "an exchange, until the last one's pieces were read" },
        { ZERO_NCCL_WAIT_ALL_TO_ALL_DONE, EXCHANGE, "a sum, for the pieces" },
        { ZERO_NCCL_WAIT_REUSABLE, EXCHANGE, "new gradients, until the last ones were sent and read" },
        { ZERO_NCCL_WAIT_GATHER, GATHER, "an all-gather, for this rank's piece" },
        { ZERO_NCCL_WAIT_GATHER_DONE, GATHER, "a reader, for the all-gather" },
        { ZERO_NCCL_WAIT_REUSABLE, GATHER_READ_AT_ONCE, "a new piece, until the last one was gathered" },
        { ZERO_NCCL_WAIT_OPEN, FETCH, "a fetch, for the shard" },
        { ZERO_NCCL_WAIT_UNSHARD, FETCH, "a fetch, until its buffer was read" },
        { ZERO_NCCL_WAIT_UNSHARD_DONE, FETCH, "a reader, for the fetch" },
        { ZERO_NCCL_WAIT_CLOSE, FETCH, "a new shard, until the last one was fetched" },
    };
    char name[160];
    for (size_t i = 0; i < sizeof waits / sizeof *waits; i++) {
        size_t wrong = 0;
        for (int first = 0; first < 3; first++) {
            // a new one: no table of it leads to buffers that are gone
            zero_comm *c = create((zero_comm_nccl_config){ .timeout_s = 60, .omit = waits[i].wait });
            wrong += everywhere(wrong_values(c, waits[i].kinds, first));
            zero_comm_destroy(c);
        }
        EXPECT(wrong > 0, "nothing shows that this wait is missing");
        snprintf(name, sizeof name, "missed if left out: the wait of %s (%zu values were wrong)", waits[i].name, wrong);
        case_done(name);
    }
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (!nccl_runs_here()) return cases_done();
    use_own_device();
    EXPECT(zero_bootstrap_create_mpi(&boot, MPI_COMM_WORLD, 60) == ZERO_OK, "bootstrap");
    const int deferred = getenv("CUDA_ON_CPU_STREAMS") != NULL;
#ifdef CUDA_ON_CPU
    the_stand_in_does_what_nccl_does();
    case_done("what stands for NCCL does what it does: blocking, rings, two messages, pairs");
#endif
    for (int registered = 0; registered <= 1; registered++) {
        zero_comm *c = create((zero_comm_nccl_config){ .timeout_s = 60, .register_buffers = registered });
        EXPECT(strstr(zero_comm_name(c), ranks > 1 ? "NCCL" : "one rank") != NULL, "the transport calls itself \"%s\"",
               zero_comm_name(c));
        numbers(c);
        EXPECT(zero_comm_received(c, ZERO_WIRE_SCALARS) == 4 * 2400 * (uint64_t)(ranks - 1),
               "wire bytes of numbers are miscounted");
        for (int kinds = 1; kinds <= 8; kinds++) {
            const size_t wrong = wrong_values(c, kinds, kinds % 3);
            EXPECT(wrong == 0, "%zu values are wrong (kinds of traffic: %d)", wrong, kinds);
        }
        case_done(registered ? "the right bytes, registered buffers" : "the right bytes");
        library_sum(c);
        case_done("the library's own sum");
        misuse_is_refused(c);
        case_done("misuse is refused with words");
        free_while_gathering(c);
        case_done("memory is not freed while it is gathered into");
        books(c);
        zero_comm_destroy(c);
        EXPECT(memory.total_live == 0, "%zu bytes are still in the books", memory.total_live);
        case_done("books equal the formula, all memory is given back");
    }
    groups_are_apart();
    case_done("groups of a mesh talk among themselves");
    if (ranks > 1) {
        a_stalled_rank_is_noticed(0);
        case_done("a stalled rank is noticed in time: numbers");
        a_stalled_rank_is_noticed(1);
        case_done("a stalled rank is noticed in time: on the stream");
        if (ranks > 2 && ranks % 2 == 0) {
            a_stall_before_another_communicator_is_noticed();
            case_done("a stalled rank is noticed in time: before another communicator's operation");
        }
        different_calls_are_reported(0);
        case_done("different calls are reported: another buffer");
        different_calls_are_reported(1);
        case_done("different calls are reported: another size");
        a_missing_library_is_explained();
        case_done("a missing library is explained");
        if (deferred) every_wait_is_needed();
    }
    zero_bootstrap_destroy(boot);
    return cases_done();
}
