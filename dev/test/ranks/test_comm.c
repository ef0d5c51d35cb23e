// test_comm.c: every transport, in each of the ways in which it can move bytes, at any number of ranks. Each case is
// named after the fault that it prevents. Run under mpirun; `--case NCCL` runs one way.
//
// On the CPU NCCL is the stand-in of dev/device/cpu, and with CUDA_ON_CPU_STREAMS=n streams run in any order that the
// events allow. On GPUs NCCL needs one for each rank, and is left out where there are too few. Failures are in
// test_comm_failures.c, what concerns one transport alone in test_nccl.c.
#include <stdio.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>
#include "test/ranks/traffic.h"
#include "zero/comm/mpi/mpi_internal.h"  // to set the counters of a run that is long over
#include "zero/comm/nccl/nccl_internal.h"

// ---- the right bytes ------------------------------------------------------------------------------------------------

enum { BUFFERS = 3, PIECE = 1000, SCALARS = 1500 };

static uint32_t word(int from, int to, size_t i, unsigned round) {
    return (uint32_t)(from * 1000003 + to * 10007) + (uint32_t)i * 2654435761u + round * 97u;
}

static void pause_randomly(unsigned *seed) { nanosleep(&(struct timespec){ 0, rand_r(seed) % 2000000 }, NULL); }

struct state {
    zero_comm *c;
    uint32_t *buf[BUFFERS], *host, *scalars;
    zero_ticket ticket[BUFFERS];
    unsigned seed, round;
};

// In every other round only a part of each chunk is moved.
static size_t begin_of(const struct state *s) { return s->round % 2 ? PIECE / 4 : 0; }
static size_t numel_of(const struct state *s) { return s->round % 2 ? PIECE / 2 : PIECE; }

static void begin_all_to_all(struct state *s, int b) {
    pause_randomly(&s->seed);
    CHECK(zero_comm_reusable(s->c, s->ticket[b], NULL) == ZERO_OK, "reusable: %s", zero_comm_error(s->c));
    for (int to = 0; to < ranks; to++)
        for (size_t i = 0; i < PIECE; i++)
            s->host[(size_t)to * PIECE + i] = word(rank, to, i, s->round * BUFFERS + (unsigned)b);
    device_write(s->buf[b], s->host, (size_t)ranks * PIECE * sizeof *s->host);
    CHECK(zero_comm_all_to_all_begin(s->c, s->buf[b] + begin_of(s), PIECE * sizeof *s->host,
                                     numel_of(s) * sizeof *s->host, NULL, &s->ticket[b]) == ZERO_OK,
          "begin: %s", zero_comm_error(s->c));
}

static void finish_all_to_all(struct state *s, int b) {
    const void *const *chunks = NULL, *from_ranks[64];
    const int e = zero_comm_all_to_all_finish(s->c, s->ticket[b], NULL, &chunks);
    CHECK(e == ZERO_OK, "finish: %s", zero_comm_error(s->c));
    pause_randomly(&s->seed);
    if (!e) device_read(from_ranks, chunks, (size_t)ranks * sizeof *from_ranks);
    for (int from = 0; from < ranks && !e; from++) {
        device_read(s->host, from_ranks[from], numel_of(s) * sizeof *s->host);
        for (size_t i = 0; i < numel_of(s); i++)
            CHECK(s->host[i] == word(from, rank, begin_of(s) + i, s->round * BUFFERS + (unsigned)b),
                  "all-to-all: wrong value from rank %d, round %u", from, s->round);
    }
    CHECK(zero_comm_all_to_all_done(s->c, s->ticket[b], NULL) == ZERO_OK, "done: %s", zero_comm_error(s->c));
}

static void allgather(struct state *s) {
    const int b = (int)(s->round % BUFFERS);
    const size_t n = PIECE * (size_t)ranks;
    CHECK(zero_comm_reusable(s->c, s->ticket[b], NULL) == ZERO_OK, "reusable: %s", zero_comm_error(s->c));
    for (size_t i = 0; i < n; i++) s->host[i] = i / PIECE == (size_t)rank ? word(rank, 99, i, s->round) : 0xdeadbeef;
    device_write(s->buf[b], s->host, n * sizeof *s->host);
    CHECK(zero_comm_allgather_begin(s->c, s->buf[b], PIECE * sizeof *s->host, ZERO_WIRE_PARAMS, NULL, &s->ticket[b]) ==
              ZERO_OK,
          "gather: %s", zero_comm_error(s->c));
    pause_randomly(&s->seed);
    CHECK(zero_comm_allgather_finish(s->c, s->ticket[b], NULL) == ZERO_OK, "gather: %s", zero_comm_error(s->c));
    device_read(s->host, s->buf[b], n * sizeof *s->host);
    for (size_t i = 0; i < n; i++)
        CHECK(s->host[i] == word((int)(i / PIECE), 99, i, s->round), "gather: wrong value of rank %zu", i / PIECE);
}

// More than one message's worth.
static void allgather_scalars(zero_comm *c, uint32_t *all, unsigned round) {
    uint32_t mine[SCALARS];
    const int N = zero_comm_size(c), me = zero_comm_rank(c);
    for (size_t i = 0; i < SCALARS; i++) mine[i] = word(me, 7, i, round);
    CHECK(zero_comm_allgather_host(c, mine, sizeof mine, all) == ZERO_OK, "scalars: %s", zero_comm_error(c));
    for (int r = 0; r < N; r++)
        for (size_t i = 0; i < SCALARS; i++)
            CHECK(all[(size_t)r * SCALARS + i] == word(r, 7, i, round), "scalars: wrong value of rank %d", r);
}

// Several all-to-alls in flight on different buffers (where the transport has no stream of its own), buffers reused as
// soon as that is allowed, all-gathers and scalars in between, all with random delays: a buffer that is read too late
// or written too early shows as a wrong value.
static void moves_the_right_bytes(zero_comm *c) {
    enum { ROUNDS_HERE = 12 };
    const size_t n = PIECE * (size_t)ranks;
    struct state s = { .c = c, .seed = (unsigned)rank + 1 };
    s.host = malloc(n * sizeof *s.host);
    s.scalars = malloc((size_t)ranks * SCALARS * sizeof *s.scalars);
    for (int b = 0; b < BUFFERS; b++) {
        void *p = NULL;
        REQUIRE(zero_comm_alloc(c, &memory, ZERO_MEM_UNIT_BUFFERS, &p, n * sizeof *s.host) == ZERO_OK, "alloc: %s",
                zero_comm_error(c));
        s.buf[b] = p;
        device_read(s.host, s.buf[b], n * sizeof *s.host);
        for (size_t i = 0; i < n; i++) CHECK(s.host[i] == 0, "symmetric memory is not zeroed");
    }
    uint64_t received[ZERO_WIRE_KINDS];
    for (int k = 0; k < ZERO_WIRE_KINDS; k++) received[k] = zero_comm_received(c, (enum zero_wire)k);
    const int in_flight = zero_comm_stream(c) ? 1 : BUFFERS;
    for (s.round = 0; s.round < ROUNDS_HERE; s.round++) {
        for (int b = 0; b < BUFFERS; b += in_flight) {
            for (int i = b; i < b + in_flight; i++) begin_all_to_all(&s, i);
            for (int i = b; i < b + in_flight; i++) finish_all_to_all(&s, i);
        }
        allgather(&s);
        allgather_scalars(c, s.scalars, s.round);
    }
    for (int k = 0; k < ZERO_WIRE_KINDS; k++) received[k] = zero_comm_received(c, (enum zero_wire)k) - received[k];
    const uint64_t others = (uint64_t)(ranks - 1) * PIECE * sizeof *s.host;
    CHECK(received[ZERO_WIRE_GRADS] == ROUNDS_HERE * BUFFERS * others * 3 / 4,
          "wire bytes of gradients are miscounted");
    CHECK(received[ZERO_WIRE_PARAMS] == ROUNDS_HERE * others, "wire bytes of parameters are miscounted");
    CHECK(received[ZERO_WIRE_SCALARS] == (uint64_t)(ranks - 1) * ROUNDS_HERE * SCALARS * sizeof(uint32_t),
          "wire bytes of scalars are miscounted");
    for (int b = 0; b < BUFFERS; b++) CHECK(zero_comm_free(c, s.buf[b]) == ZERO_OK, "free: %s", zero_comm_error(c));
    CHECK(memory.live[ZERO_MEM_UNIT_BUFFERS] == 0, "freed memory is still accounted for");
    free(s.scalars);
    free(s.host);
}

static void streams_move_the_right_bytes(zero_comm *c) {
    for (int kinds = 1; kinds <= 8; kinds++) {
        const size_t wrong = wrong_values(c, kinds, kinds % 3);
        CHECK(wrong == 0, "%zu values are wrong (kinds of traffic: %d)", wrong, kinds);
    }
}

static void the_librarys_own_sum(zero_comm *c) {
    const size_t n = CHUNK * (size_t)ranks, me = (size_t)rank;
    const cudaStream_t s = zero_comm_stream(c);
    float *source = pinned(n), *result = pinned(CHUNK);
    void *p = NULL;
    zero_ticket ticket = 0;
    const zero_comm_shape shape = zero_comm_get_shape(c);
    REQUIRE(zero_comm_alloc(c, &memory, ZERO_MEM_UNIT_BUFFERS, &p, n * sizeof(float)) == ZERO_OK, "alloc: %s",
            zero_comm_error(c));
    float *out = zero_accounting_alloc(&memory, ZERO_MEM_GRAD_SHARDS, CHUNK * sizeof(float));
    for (int bf16 = 0; bf16 <= 1; bf16++) {
        const enum zero_dtype dtype = bf16 ? ZERO_BF16 : ZERO_F32;
        const uint64_t received = zero_comm_received(c, ZERO_WIRE_GRADS);
        for (size_t i = 0; i < n; i++) {
            const float x = (float)(i % 7) + (float)me;  // exact in bf16, as are the sums
            uint32_t bits;
            memcpy(&bits, &x, sizeof bits);
            if (bf16)
                ((uint16_t *)source)[i] = (uint16_t)(bits >> 16);
            else
                source[i] = x;
        }
        CHECK(zero_comm_reusable(c, ticket, s) == ZERO_OK, "reusable: %s", zero_comm_error(c));
        CHECK(cudaMemcpyAsync(p, source, n * (bf16 ? 2 : 4), cudaMemcpyDefault, s) == cudaSuccess, "copy");
        CHECK(zero_comm_reduce_scatter(c, p, dtype, CHUNK, out, s, &ticket) == ZERO_OK, "reduce_scatter: %s",
              zero_comm_error(c));
        copy(result, out, CHUNK, s);
        CHECK(zero_comm_synchronize(c, s) == ZERO_OK, "synchronize: %s", zero_comm_error(c));
        for (size_t i = 0; i < CHUNK; i++) {
            const float want = (float)ranks * (float)((me * CHUNK + i) % 7) + (float)(ranks * (ranks - 1) / 2);
            CHECK(result[i] == want, "element %zu is %f, not %f", i, result[i], want);
        }
        CHECK(zero_comm_received(c, ZERO_WIRE_GRADS) - received ==
                  (size_t)(ranks - 1) * CHUNK * zero_comm_summed_bytes(&shape, dtype),
              "wire bytes are miscounted");
    }
    CHECK(zero_comm_free(c, p) == ZERO_OK, "free: %s", zero_comm_error(c));
    zero_accounting_free(&memory, ZERO_MEM_GRAD_SHARDS, out, CHUNK * sizeof(float));
    CHECK(cudaFreeHost(source) == cudaSuccess && cudaFreeHost(result) == cudaSuccess, "free");
}

// ---- memory ---------------------------------------------------------------------------------------------------------

// The all-gathers after the last step are still under way when an engine is destroyed.
static void free_while_gathering(zero_comm *c) {
    void *p = NULL;
    zero_ticket ticket;
    CHECK(zero_comm_alloc(c, &memory, ZERO_MEM_UNIT_BUFFERS, &p, 4096 * (size_t)ranks) == ZERO_OK, "alloc: %s",
          zero_comm_error(c));
    CHECK(zero_comm_allgather_begin(c, p, 4096, ZERO_WIRE_PARAMS, NULL, &ticket) == ZERO_OK, "gather: %s",
          zero_comm_error(c));
    if (!zero_comm_stream(c)) CHECK(zero_comm_allgather_finish(c, ticket, NULL) == ZERO_OK, "finish");
    CHECK(zero_comm_free(c, p) == ZERO_OK, "free: %s", zero_comm_error(c));
}

// Memory is freed when the device has done what is queued, as by cudaFree.
static void free_while_writing(zero_comm *c) {
    void *p = NULL;
    CHECK(zero_comm_alloc(c, &memory, ZERO_MEM_UNIT_BUFFERS, &p, 1 << 20) == ZERO_OK, "alloc: %s", zero_comm_error(c));
    CHECK(cudaMemsetAsync(p, 0xff, 1 << 20, NULL) == cudaSuccess, "memset");
    CHECK(zero_comm_free(c, p) == ZERO_OK, "free: %s", zero_comm_error(c));
    CHECK(cudaDeviceSynchronize() == cudaSuccess, "the device");
}

// What the transport has allocated is what the formula gives, with and without a window; so is symmetric memory.
static void memory_equals_the_formula(const struct way *w, zero_comm *c) {
    const zero_transport *t = zero_transport_find(w->transport);
    const zero_comm_shape shape = zero_comm_get_shape(c);
    zero_comm_config config = w->config;
    config.staged = shape.staged;
    const zero_comm_shape planned = zero_transport_shape(
        t, &config, (size_t)ranks, (size_t)(config.ranks_per_host ? config.ranks_per_host : ranks));
    const size_t whole = CHUNK * (size_t)ranks * sizeof(float), shard = 123456, unit = 1024 * (size_t)ranks;
    void *p = NULL;
    zero_window *window = NULL;
    zero_ticket ticket = 0;
    CHECK(wrong_values(c, ALL_TO_ALL | GATHER, 0) == 0, "values are wrong");
    CHECK_EQ(memory.live[ZERO_MEM_TRANSPORT], zero_comm_scratch_bytes(&shape, whole, whole, 0));
    CHECK_EQ(zero_comm_scratch_bytes(&planned, whole, whole, 0), zero_comm_scratch_bytes(&shape, whole, whole, 0));
    CHECK(zero_comm_alloc(c, &memory, ZERO_MEM_UNIT_BUFFERS, &p, shard) == ZERO_OK, "alloc: %s", zero_comm_error(c));
    CHECK_EQ(memory.live[ZERO_MEM_UNIT_BUFFERS], zero_comm_alloc_bytes(&planned, shard));
    CHECK(zero_window_create(c, &memory, ZERO_MEM_PARAMS, shard, &window) == ZERO_OK, "%s", zero_comm_error(c));
    CHECK_EQ(memory.live[ZERO_MEM_PARAMS], zero_comm_alloc_bytes(&planned, shard));
    const size_t before = zero_comm_scratch_bytes(&shape, whole, whole, 0);
    CHECK(zero_window_open(c, window, NULL) == ZERO_OK &&
              zero_window_gather_begin(c, window, 0, unit / (size_t)ranks, p, NULL, &ticket) == ZERO_OK &&
              zero_window_gather_finish(c, window, ticket, NULL) == ZERO_OK &&
              zero_window_close(c, window, NULL) == ZERO_OK && zero_comm_synchronize(c, NULL) == ZERO_OK,
          "window: %s", zero_comm_error(c));
    CHECK_EQ(memory.live[ZERO_MEM_TRANSPORT], before + zero_window_scratch_bytes(&planned, shard, unit));
    zero_window_destroy(c, window);
    CHECK(zero_comm_free(c, p) == ZERO_OK, "free: %s", zero_comm_error(c));
}

// A run that has done `before` collectives: counters of 32 bits would wrap.
static void counters_do_not_wrap(const struct way *w, uint64_t before) {
    zero_comm *c = join(w, PATIENT);
    c->calls = before;
    if (is_nccl(w)) {
        struct nccl_context *x = zero_nccl_self(c)->context;
        x->queued = x->ended = before;
    } else {
        comm_mpi *m = zero_mpi_self(c);
        m->begun = m->finished = before;
    }
    CHECK(wrong_values(c, ALL_TO_ALL | GATHER | WINDOW, 0) == 0, "values are wrong");
    CHECK(zero_comm_barrier(c) == ZERO_OK, "%s", zero_comm_error(c));
    leave(c);
}

// Memory that the host does not have is refused with a figure, on all ranks; the communicator goes on.
static void impossible_memory_is_refused(zero_comm *c) {
    void *p = NULL;
    zero_window *w = NULL;
    struct rlimit limit, small;
    const int mapped = strstr(zero_comm_name(c), "MPI, shared memory") && !strstr(zero_comm_name(c), "staged");
    CHECK(zero_comm_alloc(c, &memory, ZERO_MEM_UNIT_BUFFERS, &p, (size_t)1 << 45) == ZERO_ERR_MEMORY && !p, "%s",
          zero_comm_error(c));
    CHECK(strstr(zero_comm_error(c), "35184372088832 bytes") && (!mapped || strstr(zero_comm_error(c), "available")),
          "the message is: %s", zero_comm_error(c));
    if (mapped) {
        REQUIRE(getrlimit(RLIMIT_FSIZE, &limit) == 0);
        small = limit;
        small.rlim_cur = 4096;
        REQUIRE(setrlimit(RLIMIT_FSIZE, &small) == 0);
        CHECK(zero_comm_alloc(c, &memory, ZERO_MEM_UNIT_BUFFERS, &p, 8192) == ZERO_ERR_MEMORY &&
                  strstr(zero_comm_error(c), "ulimit -f"),
              "the message is: %s", zero_comm_error(c));
        CHECK(zero_window_create(c, &memory, ZERO_MEM_PARAMS, 8192, &w) == ZERO_ERR_MEMORY &&
                  strstr(zero_comm_error(c), "ulimit -f"),
              "the message is: %s", zero_comm_error(c));
        zero_window_destroy(c, w);
        REQUIRE(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    }
    CHECK(zero_comm_barrier(c) == ZERO_OK, "%s", zero_comm_error(c));
}

// ---- groups ---------------------------------------------------------------------------------------------------------

static void groups_of_a_mesh_are_apart(const struct way *w) {
    const int half = ranks % 2 ? 1 : ranks / 2;
    uint32_t *scalars = malloc((size_t)ranks * SCALARS * sizeof *scalars);
    for (int tensor = 1; tensor <= (ranks % 2 ? 1 : 2); tensor++) {
        zero_mesh mesh;
        zero_mesh_comms comms;
        char err[640] = "";
        REQUIRE(zero_mesh_create(&mesh, rank, ranks, tensor, 1, tensor == 2 ? 0 : half, err, sizeof err) == ZERO_OK,
                "mesh: %s", err);
        REQUIRE(zero_mesh_comms_create(&comms, &mesh, zero_transport_find(w->transport), boot, &w->config, &memory, err,
                                       sizeof err) == ZERO_OK,
                "comms: %s", err);
        CHECK(zero_comm_size(comms.data) == mesh.data && zero_comm_rank(comms.data) == mesh.data_rank,
              "data ranks out of place");
        CHECK(zero_comm_size(comms.shard) == mesh.shard && zero_comm_rank(comms.shard) == mesh.shard_rank,
              "ranks of a group out of place");
        CHECK((mesh.groups > 1) == (comms.replicate != NULL) && (mesh.groups == 1) == (comms.shard == comms.data),
              "communicators are not shared as transport_registry.h says");
        zero_comm *const all[] = { comms.data, comms.shard, comms.replicate };
        for (int i = 0; i < 3; i++) {
            if (!all[i] || (i == 1 && all[1] == all[0])) continue;
            CHECK(zero_comm_stream(all[i]) == zero_comm_stream(all[0]), "communicators have different streams");
            allgather_scalars(all[i], scalars, (unsigned)i);
            CHECK(wrong_values(all[i], ALL_TO_ALL | GATHER | WINDOW, i) == 0, "wrong values on communicator %d", i);
        }
        zero_mesh_comms_destroy(&comms);
        CHECK(memory.total_live == 0, "%zu bytes are still accounted for", memory.total_live);
    }
    free(scalars);
    memset(&memory, 0, sizeof memory);
}

// ---- misuse ---------------------------------------------------------------------------------------------------------

static void refused(zero_comm *c, int e, const char *message, int line) {
    CHECK_AT(__FILE__, line, e == ZERO_ERR_ARG && strstr(zero_comm_error(c), message), "%d, the message is: %s", e,
             zero_comm_error(c));
}
#define REFUSED(call, message) refused(c, call, message, __LINE__)

static void misuse_is_refused(zero_comm *c) {
    char outside[64];
    zero_ticket a = 0, b = 0;
    void *p = NULL;
    zero_window *w = NULL;
    const void *const *chunks;
    REFUSED(zero_comm_all_to_all_begin(c, outside, 1, 1, NULL, &a), "not from zero_comm_alloc");
    REFUSED(zero_comm_free(c, outside), "zero_comm_alloc did not return");
    CHECK(zero_comm_alloc(c, &memory, ZERO_MEM_UNIT_BUFFERS, &p, 256 * (size_t)ranks) == ZERO_OK, "alloc: %s",
          zero_comm_error(c));
    REFUSED(zero_comm_all_to_all_begin(c, p, 257, 257, NULL, &a), "not from zero_comm_alloc");  // it leaves the buffer
    CHECK(zero_comm_all_to_all_begin(c, p, 64, 64, NULL, &a) == ZERO_OK, "begin: %s", zero_comm_error(c));
    if (zero_comm_stream(c)) {
        REFUSED(zero_comm_all_to_all_begin(c, p, 64, 64, NULL, &b), "must be done");
        REFUSED(zero_comm_all_to_all_finish(c, a + 1, NULL, &chunks), "is not for the all-to-all that was");
    } else {
        CHECK(zero_comm_all_to_all_begin(c, p, 64, 64, NULL, &b) == ZERO_OK, "begin: %s", zero_comm_error(c));
        REFUSED(zero_comm_all_to_all_finish(c, b + 1, NULL, &chunks), "not pending");
        REFUSED(zero_comm_allgather_finish(c, b, NULL), "not pending");
        REFUSED(zero_comm_all_to_all_done(c, b, NULL), "is not for the all-to-all that was");
        CHECK(zero_comm_all_to_all_finish(c, b, NULL, &chunks) == ZERO_OK, "finish: %s", zero_comm_error(c));
        REFUSED(zero_comm_all_to_all_finish(c, a, NULL, &chunks), "before the last all-to-all is done");
        CHECK(zero_comm_all_to_all_done(c, b, NULL) == ZERO_OK, "done: %s", zero_comm_error(c));
        REFUSED(zero_comm_all_to_all_finish(c, b, NULL, &chunks), "not pending");
    }
    CHECK(zero_comm_all_to_all_finish(c, a, NULL, &chunks) == ZERO_OK &&
              zero_comm_all_to_all_done(c, a, NULL) == ZERO_OK,
          "finish: %s", zero_comm_error(c));
    REFUSED(zero_comm_all_to_all_done(c, a, NULL), "is not for the all-to-all that was");
    CHECK(zero_comm_free(c, p) == ZERO_OK, "free: %s", zero_comm_error(c));
    CHECK(zero_window_create(c, &memory, ZERO_MEM_PARAMS, 256, &w) == ZERO_OK, "window: %s", zero_comm_error(c));
    REFUSED(zero_window_gather_begin(c, w, 200, 64, outside, NULL, &a), "leaves the window");
    REFUSED(zero_window_gather_finish(c, w, 1, NULL), "not begun");
    zero_window_destroy(c, w);
}

static void cases_of(const struct way *w) {
    const char *name = w->name;
    zero_comm *c = join(w, PATIENT);
    CHECK(strstr(zero_comm_name(c), ranks > 1 ? w->title : "one rank"), "it is called \"%s\"", zero_comm_name(c));
    CASE("wrong bytes, with delays and reuse: %s", name) moves_the_right_bytes(c);
    CASE("wrong bytes, moved by streams: %s", name) streams_move_the_right_bytes(c);
    CASE("the library's own sum: %s", name) the_librarys_own_sum(c);
    CASE("misuse is refused with a message: %s", name) misuse_is_refused(c);
    CASE("memory is freed while it is gathered into: %s", name) free_while_gathering(c);
    CASE("memory is freed while it is written: %s", name) free_while_writing(c);
    CASE("memory that the host does not have is promised: %s", name) impossible_memory_is_refused(c);
    leave(c);
    CASE("memory differs from the formula, or is not given back: %s", name) {
        c = join(w, PATIENT);
        memory_equals_the_formula(w, c);
        leave(c);
    }
    for (int bits = 31; bits <= 32; bits++)
        CASE("after 2^%d collectives counters wrap: %s", bits, name)
            counters_do_not_wrap(w, ((uint64_t)1 << bits) - ROUNDS);
    CASE("groups of a mesh hear each other: %s", name) groups_of_a_mesh_are_apart(w);
}

// Every transport that the list has is tested here.
static void transports_are_all_tested(void) {
    for (size_t i = 0; zero_transport_at(i); i++) {
        int found = 0;
        for (int w = 0; w < WAYS; w++) found |= !strcmp(ways[w].transport, zero_transport_name(zero_transport_at(i)));
        CHECK(found, "no way of %s", zero_transport_name(zero_transport_at(i)));
    }
    CHECK(zero_transport_find("no such transport") == NULL);
}

int main(int argc, char **argv) {
    start_world(&argc, argv);
    RUN(transports_are_all_tested);
    for (int w = 0; w < WAYS; w++)
        if (way_runs_here(&ways[w])) cases_of(&ways[w]);
    return finish_world();
}
