// ways.h: what programs that mpirun starts have in common: their ranks, the accounting and the bootstrap, and every
// transport, in each of the ways in which it can move bytes.
//
//     int main(int argc, char **argv) {
//         start_world(&argc, argv);
//         for (int w = 0; w < WAYS; w++)
//             if (way_runs_here(&ways[w])) CASE("bytes are lost: %s", ways[w].name) {
//                 zero_comm *c = join(&ways[w], PATIENT);
//                 ...
//                 leave(c);
//             }
//         return finish_world();
//     }
#ifndef WAYS_H
#define WAYS_H
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "test/harness/ranks.h"
#include "zero/clock.h"
#include "zero/comm/bootstrap/mpi.h"
#include "zero/comm/transport_registry.h"

static const double PATIENT = 60;  // a time-out in seconds that is not meant to pass; short_timeout: one that is
#ifndef CUDA_ON_CPU
static const double SHORTEST = 10;  // it holds for the meeting of the ranks too, for which NCCL may need seconds
#else
static const double SHORTEST = 1;
#endif

// A limit of the address space takes what AddressSanitizer needs.
#ifdef __SANITIZE_ADDRESS__
enum { MEMORY_CAN_BE_LIMITED = 0 };
#else
enum { MEMORY_CAN_BE_LIMITED = 1 };
#endif

static int rank, ranks;
static zero_accounting memory;
static zero_bootstrap *boot;

struct way {
    const char *name, *transport, *title;  // title: a word of zero_comm_name
    zero_comm_config config;
};
enum { SHARED_MEMORY, MESSAGES, TWO_A_HOST, STAGED, STAGED_MESSAGES, STAGED_TWO_A_HOST, NCCL, NCCL_REGISTERED, WAYS };
static const struct way ways[WAYS] = {
    [SHARED_MEMORY] = { "shared memory", "mpi", "shared memory", { .no_shared_memory = 0 } },
    [MESSAGES] = { "messages", "mpi", "messages", { .no_shared_memory = 1 } },
    [TWO_A_HOST] = { "two ranks a host", "mpi", "shared memory", { .ranks_per_host = 2 } },
    [STAGED] = { "staged", "mpi", "staged", { .staged = 1 } },
    [STAGED_MESSAGES] = { "staged, messages", "mpi", "staged", { .staged = 1, .no_shared_memory = 1 } },
    [STAGED_TWO_A_HOST] = { "staged, two ranks a host", "mpi", "staged", { .staged = 1, .ranks_per_host = 2 } },
    [NCCL] = { "NCCL", "nccl", "NCCL", { .no_shared_memory = 0 } },
    [NCCL_REGISTERED] = { "NCCL, registered buffers", "nccl", "NCCL", { .register_buffers = 1 } },
};
// The ways that move bytes by different code; the others differ in where the bytes are.
static const int main_ways[] = { SHARED_MEMORY, MESSAGES, TWO_A_HOST, STAGED, NCCL };
enum { MAIN_WAYS = sizeof main_ways / sizeof *main_ways };

// TEST_MEET=IP:PORT or TEST_MEET=DIRECTORY/: the ranks meet there, as they do without MPI; so only NCCL's ways run.
static inline const char *meeting_place(void) { return getenv("TEST_MEET"); }

static inline int meet(zero_bootstrap **b, MPI_Comm comm, double timeout_s) {
    const char *place = meeting_place();
    const zero_bootstrap_config config = { .rank = rank, .ranks = ranks, .timeout_s = timeout_s };
    if (!place) return zero_bootstrap_create_mpi(b, comm, timeout_s);
    return strchr(place, '/') ? zero_bootstrap_create_fs(b, place, &config)
                              : zero_bootstrap_create_tcp(b, place, &config);
}

static inline int is_nccl(const struct way *w) { return !strcmp(w->transport, "nccl"); }
static inline int way_runs_here(const struct way *w) { return is_nccl(w) ? nccl_runs_here() : !meeting_place(); }

static inline void start_world(int *argc, char **argv) {
    test_start_ranks(argc, argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    REQUIRE(meet(&boot, MPI_COMM_WORLD, PATIENT) == ZERO_OK, "%s", zero_bootstrap_error(boot));
}

static inline int finish_world(void) {
    zero_bootstrap_destroy(boot);
    return test_finish();
}

static inline zero_comm_config config_of_way(const struct way *w, double timeout_s) {
    zero_comm_config config = w->config;
    config.timeout_s = timeout_s;
    return config;
}

static inline zero_comm *join_by(zero_bootstrap *b, const struct way *w, double timeout_s) {
    zero_comm *c = NULL;
    char err[640] = "";
    const zero_comm_config config = config_of_way(w, timeout_s);
    const int e = zero_comm_create(&c, zero_transport_find(w->transport), b, &config, &memory, err, sizeof err);
    REQUIRE(e == ZERO_OK, "create: %s", err);
    return c;
}

static inline zero_comm *join(const struct way *w, double timeout_s) { return join_by(boot, w, timeout_s); }

// Shard groups of `size` ranks.
static inline zero_mesh_comms join_groups(const struct way *w, int size, double timeout_s) {
    zero_mesh mesh;
    zero_mesh_comms comms;
    char err[640] = "";
    const zero_comm_config config = config_of_way(w, timeout_s);
    REQUIRE(zero_mesh_create(&mesh, rank, ranks, 1, 1, size, err, sizeof err) == ZERO_OK &&
                zero_mesh_comms_create(&comms, &mesh, zero_transport_find(w->transport), boot, &config, &memory, err,
                                       sizeof err) == ZERO_OK,
            "groups of %d: %s", size, err);
    return comms;
}

static inline void all_is_given_back(void) {
    CHECK(memory.total_live == 0, "%zu bytes are still accounted for", memory.total_live);
    memset(&memory, 0, sizeof memory);
}

static inline void leave(zero_comm *c) {
    zero_comm_destroy(c);
    all_is_given_back();
}

// A time-out that is meant to pass, but not before healthy ranks have come. On a busy machine that takes longer: as
// long as ten set-ups take now, of which each waits many times. Collective.
static inline double short_timeout(const struct way *w) {
    double took = zero_clock(), slowest = 0;
    zero_comm_destroy(join(w, PATIENT));
    took = zero_clock() - took;
    MPI_Allreduce(&took, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return fmax(SHORTEST, fmin(10 * slowest, PATIENT));
}

#endif
