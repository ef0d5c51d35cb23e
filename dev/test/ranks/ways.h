// ways.h: every transport, in each of the ways in which it can move bytes. For test_comm.c and test_comm_failures.c.
#ifndef WAYS_H
#define WAYS_H
#include "test/ranks/traffic.h"

#ifdef CUDA_ON_CPU
static const double SHORT = 0.4;  // a time-out that is meant to pass
#else
static const double SHORT = 10;  // it holds for the meeting of the ranks too, for which NCCL may need seconds
#endif

static const struct way {
    const char *name, *transport, *title;  // title: a word of zero_comm_name
    zero_comm_config config;
} ways[] = {
    { "shared memory", "mpi", "shared memory", { .timeout_s = 60 } },
    { "messages", "mpi", "messages", { .timeout_s = 60, .no_shared_memory = 1 } },
    { "two ranks a host", "mpi", "shared memory", { .timeout_s = 60, .ranks_per_host = 2 } },
    { "staged, shared memory", "mpi", "staged", { .timeout_s = 60, .staged = 1 } },
    { "staged, messages", "mpi", "staged", { .timeout_s = 60, .staged = 1, .no_shared_memory = 1 } },
    { "staged, two ranks a host", "mpi", "staged", { .timeout_s = 60, .staged = 1, .ranks_per_host = 2 } },
    { "NCCL", "nccl", "NCCL", { .timeout_s = 60 } },
    { "NCCL, registered buffers", "nccl", "NCCL", { .timeout_s = 60, .register_buffers = 1 } },
};

static zero_comm *create(const struct way *w, double timeout_s) {
    zero_comm *c = NULL;
    char err[640] = "";
    zero_comm_config config = w->config;
    config.timeout_s = timeout_s;
    REQUIRE(zero_comm_create(&c, zero_transport_find(w->transport), boot, &config, &memory, err, sizeof err) == ZERO_OK,
            "create: %s", err);
    return c;
}

static void destroy(zero_comm *c) {
    zero_comm_destroy(c);
    CHECK(memory.total_live == 0, "%zu bytes are still accounted for", memory.total_live);
    memset(&memory, 0, sizeof memory);
}

#endif
