// traffic.h: rounds of collectives whose data is moved by streams only, as in a real run: from pinned memory that is
// different in each round, to memory that is looked at in the end. For test_comm.c (every transport) and test_nccl.c.
#ifndef TRAFFIC_H
#define TRAFFIC_H
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "test/ranks/ways.h"
#include "zero/kernels.h"

enum { ROUNDS = 24, CHUNK = 64 * 40, SHARD = 4096 };

// Small whole numbers, so that sums are exact.
static float value(int from, int to, size_t i, int round) {
    return (float)((from * 7 + to * 3 + (int)(i % 61) + round * 11) % 97);
}

// The caller's two streams, and one buffer of each kind.
struct traffic {
    zero_comm *c;
    cudaStream_t a, b;
    cudaEvent_t event;
    float *grads[2], *params, *unsharded;  // symmetric; symmetric; device
    zero_window *window;
    float *sources, *sums, *gathered, *windows;  // of all rounds
    zero_ticket all_to_all[2], gather;
};
enum { ALL_TO_ALL = 1, GATHER = 2, WINDOW = 4, GATHER_READ_AT_ONCE = 8 };  // kinds of traffic

static float *pinned(size_t n) {
    void *p = NULL;
    CHECK(cudaMallocHost(&p, n * sizeof(float)) == cudaSuccess, "pinned memory");
    memset(p, 0, n * sizeof(float));
    return p;
}

static void copy(void *to, const void *from, size_t n, cudaStream_t s) {
    CHECK(cudaMemcpyAsync(to, from, n * sizeof(float), cudaMemcpyDefault, s) == cudaSuccess, "copy");
}

static void follow(struct traffic *t, cudaStream_t follower, cudaStream_t leader) {
    CHECK(cudaEventRecord(t->event, leader) == cudaSuccess && cudaStreamWaitEvent(follower, t->event, 0) == cudaSuccess,
          "event");
}

#define OK(call) CHECK((call) == ZERO_OK, "%s: %s", #call, zero_comm_error(t->c))

// All-to-alls of two buffers in turn, whose chunks are added on the transport's stream or on another one.
static void all_to_all(struct traffic *t, int round) {
    const void *const *chunks = NULL;
    const zero_partial_sums none = { .count = 0 };
    const cudaStream_t reader = round % 3 ? t->b : zero_comm_stream(t->c);
    const size_t n = CHUNK * (size_t)zero_comm_size(t->c);
    zero_ticket *ticket = &t->all_to_all[round % 2];
    OK(zero_comm_reusable(t->c, *ticket, t->a));
    copy(t->grads[round % 2], t->sources + (size_t)round * n, n, t->a);
    OK(zero_comm_all_to_all_begin(t->c, t->grads[round % 2], CHUNK * sizeof(float), CHUNK * sizeof(float), t->a,
                                  ticket));
    OK(zero_comm_all_to_all_finish(t->c, *ticket, reader, &chunks));
    CHECK(zero_kernel_sum(t->sums + (size_t)round * CHUNK, chunks, zero_comm_size(t->c), ZERO_F32, none, CHUNK,
                          reader) == cudaSuccess,
          "sum");
    OK(zero_comm_all_to_all_done(t->c, *ticket, reader));
}

// At once: the transport's stream reads the others' chunks itself, and this rank's is not looked at: it may be written
// again as soon as it was sent.
static void gather(struct traffic *t, int round, int at_once) {
    const size_t n = CHUNK * (size_t)zero_comm_size(t->c), own = CHUNK * (size_t)zero_comm_rank(t->c);
    const cudaStream_t reader = at_once ? zero_comm_stream(t->c) : t->b;
    if (!at_once) follow(t, t->a, t->b);  // the copy to `gathered`
    OK(zero_comm_reusable(t->c, t->gather, t->a));
    copy(t->params + own, t->sources + (size_t)round * n + own, CHUNK, t->a);
    OK(zero_comm_allgather_begin(t->c, t->params, CHUNK * sizeof(float), ZERO_WIRE_PARAMS, t->a, &t->gather));
    OK(zero_comm_allgather_finish(t->c, t->gather, reader));
    copy(t->gathered + (size_t)round * n, t->params, own, reader);
    if (!at_once) copy(t->gathered + (size_t)round * n + own, t->params + own, CHUNK, reader);
    copy(t->gathered + (size_t)round * n + own + CHUNK, t->params + own + CHUNK, n - own - CHUNK, reader);
}

// The shard is written on one stream and gathered on the other.
static void gather_window(struct traffic *t, int round) {
    const size_t n = CHUNK * (size_t)zero_comm_size(t->c), own = CHUNK * (size_t)zero_comm_rank(t->c), offset = 128;
    zero_ticket ticket;
    OK(zero_window_close(t->c, t->window, t->a));
    copy((float *)zero_window_shard(t->window) + offset, t->sources + (size_t)round * n + own, CHUNK, t->a);
    OK(zero_window_open(t->c, t->window, t->a));
    OK(zero_window_gather_begin(t->c, t->window, offset * sizeof(float), CHUNK * sizeof(float), t->unsharded, t->b,
                                &ticket));
    OK(zero_window_gather_finish(t->c, t->window, ticket, t->b));
    copy(t->windows + (size_t)round * n, t->unsharded, n, t->b);
}

static void set_up_traffic(struct traffic *t, zero_comm *c) {
    const size_t n = CHUNK * (size_t)zero_comm_size(c);
    void *p[3] = { NULL };
    *t = (struct traffic){ .c = c };
    CHECK(cudaStreamCreateWithFlags(&t->a, cudaStreamNonBlocking) == cudaSuccess &&
              cudaStreamCreateWithFlags(&t->b, cudaStreamNonBlocking) == cudaSuccess,
          "streams");
    CHECK(cudaEventCreateWithFlags(&t->event, cudaEventDisableTiming) == cudaSuccess, "event");
    for (int i = 0; i < 3; i++) OK(zero_comm_alloc(c, &memory, ZERO_MEM_UNIT_BUFFERS, &p[i], n * sizeof(float)));
    OK(zero_window_create(c, &memory, ZERO_MEM_PARAMS, SHARD * sizeof(float), &t->window));
    t->grads[0] = p[0];
    t->grads[1] = p[1];
    t->params = p[2];
    t->unsharded = zero_accounting_alloc(&memory, ZERO_MEM_UNIT_BUFFERS, n * sizeof(float));
    t->sources = pinned(ROUNDS * n);
    t->sums = pinned(ROUNDS * CHUNK);
    t->gathered = pinned(ROUNDS * n);
    t->windows = pinned(ROUNDS * n);
    for (int r = 0; r < ROUNDS; r++)
        for (size_t i = 0; i < n; i++) t->sources[(size_t)r * n + i] = value(zero_comm_rank(c), (int)(i / CHUNK), i, r);
    OK(zero_window_open(c, t->window, t->a));
}

static void free_traffic(struct traffic *t) {
    float *const host[] = { t->sources, t->sums, t->gathered, t->windows };
    OK(zero_comm_free(t->c, t->grads[0]));
    OK(zero_comm_free(t->c, t->grads[1]));
    OK(zero_comm_free(t->c, t->params));
    zero_window_destroy(t->c, t->window);
    zero_accounting_free(&memory, ZERO_MEM_UNIT_BUFFERS, t->unsharded,
                         CHUNK * (size_t)zero_comm_size(t->c) * sizeof(float));
    for (int i = 0; i < 4; i++) CHECK(cudaFreeHost(host[i]) == cudaSuccess, "free");
    CHECK(cudaEventDestroy(t->event) == cudaSuccess && cudaStreamDestroy(t->a) == cudaSuccess &&
              cudaStreamDestroy(t->b) == cudaSuccess,
          "streams");
}

static size_t count_wrong(const struct traffic *t, int kinds) {
    const int N = zero_comm_size(t->c), me = zero_comm_rank(t->c);
    const size_t n = CHUNK * (size_t)N;
    size_t wrong = 0;
    for (int r = 0; r < ROUNDS; r++) {
        for (size_t i = 0; i < CHUNK && (kinds & ALL_TO_ALL); i++) {
            float want = 0;
            for (int from = 0; from < N; from++) want += value(from, me, (size_t)me * CHUNK + i, r);
            wrong += t->sums[(size_t)r * CHUNK + i] != want;
        }
        for (size_t i = 0; i < n; i++) {
            const float want = value((int)(i / CHUNK), (int)(i / CHUNK), i, r);
            const int mine = i / CHUNK == (size_t)me;
            wrong += ((kinds & GATHER) || ((kinds & GATHER_READ_AT_ONCE) && !mine)) &&
                     t->gathered[(size_t)r * n + i] != want;
            wrong += (kinds & WINDOW) && t->windows[(size_t)r * n + i] != want;
        }
    }
    return wrong;
}

// Runs rounds of these kinds of traffic and returns how many values are wrong. first: the stream that the host waits
// for first, 0 to 2; the others run ahead of it no further than they must, or may.
__attribute__((unused)) static size_t wrong_values(zero_comm *c, int kinds, int first) {
    struct traffic traffic, *t = &traffic;
    set_up_traffic(t, c);
    const uint64_t received[2] = { zero_comm_received(c, ZERO_WIRE_GRADS), zero_comm_received(c, ZERO_WIRE_PARAMS) };
    for (int r = 0; r < ROUNDS; r++) {
        if (kinds & ALL_TO_ALL) all_to_all(t, r);
        if (kinds & (GATHER | GATHER_READ_AT_ONCE)) gather(t, r, kinds & GATHER_READ_AT_ONCE);
        if (kinds & WINDOW) gather_window(t, r);
    }
    const cudaStream_t streams[] = { t->a, t->b, zero_comm_stream(c) };
    for (int i = 0; i < 3; i++) OK(zero_comm_synchronize(c, streams[(first + i) % 3]));
    const size_t wrong = count_wrong(t, kinds);
    const uint64_t others = (uint64_t)(zero_comm_size(c) - 1) * CHUNK * sizeof(float) * ROUNDS;
    CHECK(zero_comm_received(c, ZERO_WIRE_GRADS) - received[0] == (kinds & ALL_TO_ALL) * others,
          "wire bytes of the all-to-alls are miscounted");
    CHECK(zero_comm_received(c, ZERO_WIRE_PARAMS) - received[1] ==
              (uint64_t)((kinds & (GATHER | GATHER_READ_AT_ONCE)) / 2 % 3 + (kinds & WINDOW) / 4) * others,
          "wire bytes of the gathers are miscounted");
    free_traffic(t);
    return wrong;
}

#endif
