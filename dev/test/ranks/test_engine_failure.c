// test_engine_failure.c: what is left after a rank stalls or an engine is destroyed halfway, in every stage and over
// every transport: the others return an error in time and keep it, nothing is freed that is still in use (run it under
// AddressSanitizer: make test-long), and a transport that did not fail serves the next engine. Also: creating
// engines that differ. Misuse and ranks that make other calls are test_engine_contract.c's. Run under mpirun.
#include <stdio.h>
#include <time.h>
#include <unistd.h>
#include "test/ranks/toy_model.h"
#include "zero/clock.h"
#include "zero/comm/bootstrap/mpi.h"
#include "zero/comm/transport_registry.h"

enum { STAGES = 4 };
static const double PATIENT = 60, SHORT = 0.5;  // time-outs, in seconds

static zero_accounting accounting;
static zero_bootstrap *boot;

struct way {
    const char *name, *transport;
    zero_comm_config config;
};
static const struct way ways[] = {
    { "shared memory", "mpi", { .no_shared_memory = 0 } },
    { "messages", "mpi", { .no_shared_memory = 1 } },
    { "staged", "mpi", { .staged = 1 } },
    { "two ranks a host", "mpi", { .ranks_per_host = 2 } },
    { "NCCL", "nccl", { .no_shared_memory = 0 } },
};

static zero_comm *join(const struct way *way, double timeout_s) {
    zero_comm *c;
    char err[512] = "";
    zero_comm_config config = way->config;
    config.timeout_s = timeout_s;
    memset(&accounting, 0, sizeof accounting);
    const int e = zero_comm_create(&c, zero_transport_find(way->transport), boot, &config, &accounting, err,
                                   sizeof err);
    REQUIRE(e == ZERO_OK, "create: %s", err);
    return c;
}

static zero_config config_of(zero_comm *c, int stage) {
    static const size_t order[] = { 0, 1, 2, 3, 4, 0, 4, 3, 2, 1, 0 };
    return (zero_config){ .settings = { .stage = stage, .prefetch = 1, .dtype = ZERO_F32, .seed = 42 },
                          .order = order,
                          .order_length = sizeof order / sizeof *order,
                          .tensors = tensors,
                          .num_tensors = TENSORS,
                          .shard_comm = c,
                          .accounting = &accounting };
}

static zero *make(zero_comm *c, int stage) {
    const zero_config config = config_of(c, stage);
    zero *z;
    CHECK(zero_create(&z, &config) == ZERO_OK, "create: %s", zero_error(z));
    CHECK(zero_fill(z, fill, NULL) == ZERO_OK, "fill: %s", zero_error(z));
    return z;
}

static void leave(zero *z, zero_comm *c) {
    zero_destroy(z);
    zero_comm_destroy(c);
    CHECK(accounting.total_live == 0, "%zu bytes are still accounted", accounting.total_live);
}

// ---- creating -------------------------------------------------------------------------------------------------------

static int no_fill(void *ctx, size_t tensor, size_t begin, size_t count, float *out) {
    (void)ctx, (void)tensor, (void)begin, (void)count, (void)out;
    return 1;
}

static void differs(const zero_config *config, const char *field) {
    zero *z;
    const int e = zero_create(&z, config);
    CHECK(e == ZERO_ERR_ARG && strstr(zero_error(z), field), "%s: create returns %d: %s", field, e, zero_error(z));
    zero_destroy(z);
}

static void other_configurations_are_told(zero_comm *c) {
    const int last = rank == ranks - 1;
    zero_tensor list[TENSORS];
    static const size_t order[] = { 0, 1 };
    memcpy(list, tensors, sizeof list);
    zero_config config;
#define DIFFERS(field, value) \
    (config = config_of(c, 2), config.field = last ? (value) : config.field, differs(&config, #field))
    DIFFERS(settings.stage, 1);
    DIFFERS(settings.prefetch, 2);
    DIFFERS(settings.seed, 43);
    DIFFERS(settings.delay_seed, 1);
    DIFFERS(settings.reduction, ZERO_REDUCE_LIBRARY);
    DIFFERS(settings.shard_group, (size_t)ranks);
    DIFFERS(num_tensors, TENSORS - 1);
#undef DIFFERS
    config = config_of(c, 2), config.tensors = list;
    if (last) list[3].decay = 1;
    differs(&config, "the hash of tensors");
    config = config_of(c, 3);
    if (last) config.order = order, config.order_length = 2;
    differs(&config, "the hash of order");
    list[3] = tensors[3];
    list[5].logical = last ? 71 : list[5].logical;  // on one rank only: refused there, and reported to the others
    config = config_of(c, 1), config.tensors = list;
    differs(&config, "b.weight overlap");
}

static void tensors_are_copied(zero_comm *c) {
    char name[16] = "embedding";
    zero_tensor list[TENSORS];
    memcpy(list, tensors, sizeof list);
    list[0].name = name;
    list[4].name = NULL;
    zero_config config = config_of(c, 2);
    config.tensors = list;
    zero *z;
    CHECK(zero_create(&z, &config) == ZERO_OK, "create: %s", zero_error(z));
    memset(name, 'x', sizeof name);
    memset(list, 0xff, sizeof list);
    CHECK(zero_fill(z, no_fill, NULL) == ZERO_ERR_CALLBACK && strstr(zero_error(z), "tensor embedding"), "%s",
          zero_error(z));
    CHECK_STR(zero_get_layout(z)->tensors[4].name, "");
    zero_destroy(z);
}

// One call to join, one to create; what fails leaves a message and nothing to free.
static void constructors_report_failures_as_text(void) {
    char err[640] = "";
    zero_comm *c = NULL;
    memset(&accounting, 0, sizeof accounting);
    const zero_comm_config transport = { .timeout_s = 60 };
    CHECK(zero_comm_create_mpi(&c, MPI_COMM_WORLD, "pigeon", &transport, &accounting, err, sizeof err) ==
                  ZERO_ERR_ARG &&
              !c && strstr(err, "no transport \"pigeon\""),
          "%s", err);
    REQUIRE(zero_comm_create_mpi(&c, MPI_COMM_WORLD, "mpi", &transport, &accounting, err, sizeof err) == ZERO_OK, "%s",
            err);
    const size_t before = accounting.total_live;
    zero_config config = config_of(c, 2);
    config.settings.prefetch = 3;
    CHECK(!zero_new(&config, err, sizeof err) && strstr(err, "settings.prefetch is 3"), "%s", err);
    CHECK_EQ(accounting.total_live, before);
    zero *z = zero_new((config.settings.prefetch = 1, &config), err, sizeof err);
    CHECK(z && zero_fill(z, fill, NULL) == ZERO_OK, "%s", err);
    zero_destroy(z);
    zero_comm_destroy(c);
    CHECK_EQ(accounting.total_live, 0);
}

// ---- a rank that stalls ---------------------------------------------------------------------------------------------

enum stall { IN_FORWARD, IN_BACKWARD, BEFORE_NORM, BEFORE_STEP, STALLS };
static const char *const stall_names[STALLS] = { "in the forward", "in the backward", "before the norm",
                                                 "before the step" };

// The calls of a step and a hash, which needs all ranks in every stage. The last rank stops before those of `stall`.
static void step_and_hash(zero *z, enum stall stall, int stops) {
    const zero_hyperparameters h = { .lr = 0.01f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f };
    uint64_t hash[2];
    double norm;
    if (stops && stall == IN_FORWARD) return;
    (void)forward(z);
    if (stops && stall == IN_BACKWARD) return;
    for (size_t u = UNITS; u-- > 0;)
        if (zero_acquire_grads(z, u, zero_get_micro_batches(z))) (void)zero_release_grads(z, u);
    (void)zero_finish_backward(z);
    if (stops && stall == BEFORE_NORM) return;
    (void)zero_grad_norm(z, &norm);
    if (stops && stall == BEFORE_STEP) return;
    (void)zero_step(z, &h);
    (void)zero_hash(z, &hash[0], &hash[1]);
}

static void the_failure_stays(zero *z) {
    char first[768];
    uint64_t hash[2];
    double norm;
    snprintf(first, sizeof first, "%s", zero_error(z));
    CHECK(strstr(first, "timeout_s") != NULL, "the message is: %s", first);
    CHECK(zero_begin_step(z) == ZERO_ERR_COMM && !zero_acquire_params(z, 1) &&
              !zero_acquire_grads(z, 1, zero_get_micro_batches(z)) && zero_finish_backward(z) == ZERO_ERR_COMM &&
              zero_grad_norm(z, &norm) == ZERO_ERR_COMM && zero_hash(z, &hash[0], &hash[1]) == ZERO_ERR_COMM &&
              zero_discard(z) == ZERO_ERR_COMM,
          "a call succeeds after: %s", first);
    CHECK_STR(zero_error(z), first);
}

static void a_stalled_rank_is_noticed(const struct way *way, int stage, enum stall stall) {
    const int last = rank == ranks - 1;
    double norm;
    zero_comm *c = join(way, SHORT);
    zero *z = make(c, stage);
    CHECK(one_step(z, 0, 2, &norm) == ZERO_OK, "step: %s", zero_error(z));
    MPI_Barrier(MPI_COMM_WORLD);
    const double begin = zero_clock();
    step_and_hash(z, stall, last);
    if (!last) {
        const double took = zero_clock() - begin;
        CHECK(took < SHORT + 20, "it took %.1f s", took);
        the_failure_stays(z);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    leave(z, c);
}

// ---- an engine that is destroyed halfway ----------------------------------------------------------------------------

static void trains(zero *z, uint64_t hash[2]) {
    double norm;
    for (size_t s = 0; s < 2; s++) CHECK(one_step(z, s, 2, &norm) == ZERO_OK, "step: %s", zero_error(z));
    CHECK(zero_hash(z, &hash[0], &hash[1]) == ZERO_OK, "hash: %s", zero_error(z));
}

// Parameters are acquired and prefetched, one unit's gradients are on their way, another's are acquired.
static void the_transport_serves_the_next_engine(const struct way *way, int stage) {
    uint64_t want[2], hash[2];
    double norm;
    zero_comm *c = join(way, PATIENT);
    zero *z = make(c, stage);
    trains(z, want);
    zero_destroy(z);
    for (int halfway = 0; halfway < 3; halfway++) {
        z = make(c, stage);
        CHECK(halfway == 0 || one_step(z, 0, 1, &norm) == ZERO_OK, "step: %s", zero_error(z));
        CHECK(zero_acquire_params(z, 1) != NULL, "%s", zero_error(z));
        if (halfway > 0)
            CHECK(zero_acquire_grads(z, 4, zero_get_micro_batches(z)) && zero_release_grads(z, 4) == ZERO_OK, "%s",
                  zero_error(z));
        if (halfway > 1) CHECK(zero_acquire_grads(z, 3, zero_get_micro_batches(z)) != NULL, "%s", zero_error(z));
        zero_destroy(z);
        z = make(c, stage);
        trains(z, hash);
        CHECK_BYTES(hash, want, sizeof hash);
        zero_destroy(z);
    }
    leave(NULL, c);
}

// ---- a micro-batch that is dropped ----------------------------------------------------------------------------------

// A dropped micro-batch may be the one that needs most partial sums.
static void dropped_micro_batches_count_as_memory(const struct way *way, int stage) {
    zero_comm *c = join(way, PATIENT);
    zero *z = make(c, stage);
    zero_row rows[32];
    for (size_t g = ranks == 3 ? 4 : 2; g > 0; g--) CHECK(micro_batch(z, (size_t)rank, 0, 0) == ZERO_OK);
    CHECK(zero_acquire_grads(z, 4, zero_get_micro_batches(z)) && zero_release_grads(z, 4) == ZERO_OK &&
              zero_discard(z) == ZERO_OK,
          "%s", zero_error(z));
    for (size_t i = zero_report_memory(z, rows, 32); i-- > 0;)
        CHECK(rows[i].kind != ZERO_MEM_GRAD_SHARDS || rows[i].measured == rows[i].expected,
              "%s: %llu bytes, by the formula %llu", rows[i].what, (unsigned long long)rows[i].measured,
              (unsigned long long)rows[i].expected);
    leave(z, c);
}

// ---- shard groups ---------------------------------------------------------------------------------------------------

// Groups of `shard` ranks.
static zero_mesh_comms join_groups(int shard, double timeout_s) {
    zero_mesh mesh;
    zero_mesh_comms comms;
    char err[512] = "";
    const zero_comm_config config = { .timeout_s = timeout_s };
    REQUIRE(!zero_mesh_create(&mesh, rank, ranks, 1, 1, shard, err, sizeof err) &&
                !zero_mesh_comms_create(&comms, &mesh, zero_transport_find("mpi"), boot, &config, &accounting, err,
                                        sizeof err),
            "%s", err);
    return comms;
}

// Rank 1 does not come; before that its shard group's transport refused something.
static void the_transport_that_failed_is_reported(void) {
    zero_mesh_comms comms = join_groups(1, SHORT);
    zero_config config = config_of(comms.shard, 1);
    config.replicate_comm = comms.replicate;
    zero *z;
    double norm;
    CHECK(zero_create(&z, &config) == ZERO_OK && zero_fill(z, fill, NULL) == ZERO_OK, "%s", zero_error(z));
    CHECK(zero_comm_free(comms.shard, &norm) == ZERO_ERR_ARG && zero_discard(z) == ZERO_OK, "%s", zero_error(z));
    if (rank == 1) nanosleep(&(struct timespec){ 1, 200000000 }, NULL);
    int e = micro_batch(z, (size_t)rank, 0, 0);
    if (!e) e = zero_grad_norm(z, &norm);
    CHECK(rank == 1 || (e == ZERO_ERR_COMM && strstr(zero_error(z), "timeout_s")), "returns %d: %s", e, zero_error(z));
    MPI_Barrier(MPI_COMM_WORLD);
    zero_destroy(z);
    zero_mesh_comms_destroy(&comms);
}

// The ranks of one group differ: all groups return it, and none waits for the other.
static void a_group_that_differs_is_reported(void) {
    zero_mesh_comms comms = join_groups(2, PATIENT);
    zero_config config = config_of(comms.shard, 2);
    config.replicate_comm = comms.replicate;
    if (rank == 0) config.settings.prefetch = 2;
    zero *z;
    const int e = zero_create(&z, &config);
    CHECK(e == ZERO_ERR_ARG && strstr(zero_error(z), "settings.prefetch"), "create returns %d: %s", e, zero_error(z));
    zero_destroy(z);
    zero_mesh_comms_destroy(&comms);
}

// Rank 0 has no replicate group, where the others have one: its shard group is told at once, and tells the other one.
// Only rank 2, which waits for rank 0 in the replicate group, has to time out.
static void a_rank_without_a_replicate_group_is_told(void) {
    zero_mesh_comms comms = join_groups(2, SHORT);
    zero_config config = config_of(comms.shard, 2);
    config.replicate_comm = rank == 0 ? NULL : comms.replicate;
    zero *z;
    const int e = zero_create(&z, &config);
    if (rank == 2)
        CHECK(e == ZERO_ERR_COMM, "create returns %d: %s", e, zero_error(z));
    else
        CHECK(e == ZERO_ERR_ARG && strstr(zero_error(z), "the size of replicate_comm"), "create returns %d: %s", e,
              zero_error(z));
    MPI_Barrier(MPI_COMM_WORLD);
    zero_destroy(z);
    zero_mesh_comms_destroy(&comms);
}

// ---------------------------------------------------------------------------------------------------------------------

int main(int argc, char **argv) {
    test_start_ranks(&argc, argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    data_rank = rank, data_ranks = ranks;
    REQUIRE(zero_bootstrap_create_mpi(&boot, MPI_COMM_WORLD, PATIENT) == ZERO_OK, "bootstrap");
    const size_t num_ways = sizeof ways / sizeof *ways - !nccl_runs_here();
    for (size_t w = 0; w < num_ways; w++)
        for (int stage = 0; stage < STAGES; stage++) {
            CASE("a transport fails after an engine that was destroyed halfway: stage %d, %s", stage, ways[w].name)
                the_transport_serves_the_next_engine(&ways[w], stage);
            CASE("a dropped micro-batch is missing in the memory formula: stage %d, %s", stage, ways[w].name)
                dropped_micro_batches_count_as_memory(&ways[w], stage);
            for (int stall = 0; stall < STALLS && ranks > 1; stall++)
                CASE("a rank that stalls %s is waited for: stage %d, %s", stall_names[stall], stage, ways[w].name)
                    a_stalled_rank_is_noticed(&ways[w], stage, (enum stall)stall);
        }
    zero_comm *c = join(&ways[0], PATIENT);
    CASE("tensors and their names are copied") tensors_are_copied(c);
    if (ranks > 1)
        CASE("ranks with other configurations are told") other_configurations_are_told(c);
    zero_comm_destroy(c);
    CASE("constructors report failures as text") constructors_report_failures_as_text();
    if (ranks > 1)
        CASE("a failure of the replicate group has a message of the shard group")
            the_transport_that_failed_is_reported();
    if (ranks == 4)
        CASE("groups wait for a shard group whose ranks differ") a_group_that_differs_is_reported();
    if (ranks == 4)
        CASE("a rank without a replicate group is waited for") a_rank_without_a_replicate_group_is_told();
    zero_bootstrap_destroy(boot);
    return test_finish();
}
