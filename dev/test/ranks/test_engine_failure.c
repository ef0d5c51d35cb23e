// test_engine_failure.c: what is left after a rank stalls or an engine is destroyed halfway, in every stage and over
// every transport: the others return an error in time and keep it, nothing is freed that is still in use (run it under
// AddressSanitizer: make test-long), and a transport that did not fail serves the next engine. Also: creating
// engines that differ. Misuse and ranks that make other calls are test_engine_contract.c's. Run under mpirun.
#include <malloc.h>
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>
#include "test/ranks/toy_model.h"
#include "zero/clock.h"

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

static void other_configurations_are_told(zero_comm *c, int stage) {
    const int last = rank == ranks - 1;
    zero_tensor list[TENSORS];
    static const size_t order[] = { 0, 1 };
    memcpy(list, tensors, sizeof list);
    zero_config config;
#define DIFFERS(field, value) \
    (config = config_of(c, stage), config.field = last ? (value) : config.field, differs(&config, #field))
    DIFFERS(settings.stage, (stage + 1) % STAGES);
    DIFFERS(settings.prefetch, 2);
    DIFFERS(settings.seed, 43);
    DIFFERS(settings.delay_seed, 1);
    DIFFERS(settings.reduction, ZERO_REDUCE_LIBRARY);
    DIFFERS(settings.shard_group, (size_t)ranks);
    DIFFERS(num_tensors, TENSORS - 1);
#undef DIFFERS
    config = config_of(c, stage), config.tensors = list;
    if (last) list[3].decay = 1;
    differs(&config, "the hash of tensors");
    config = config_of(c, stage);
    if (last) config.order = order, config.order_length = 2;
    differs(&config, "the hash of order");
    list[3] = tensors[3];
    list[5].logical = last ? 71 : list[5].logical;  // on one rank only: refused there, and reported to the others
    config = config_of(c, stage), config.tensors = list;
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
    memset(&memory, 0, sizeof memory);
    const zero_comm_config transport = { .timeout_s = 60 };
    CHECK(zero_comm_create_mpi(&c, MPI_COMM_WORLD, "pigeon", &transport, &memory, err, sizeof err) == ZERO_ERR_ARG &&
              !c && strstr(err, "no transport \"pigeon\""),
          "%s", err);
    REQUIRE(zero_comm_create_mpi(&c, MPI_COMM_WORLD, "mpi", &transport, &memory, err, sizeof err) == ZERO_OK, "%s",
            err);
    const size_t before = memory.total_live;
    zero_config config = config_of(c, 2);
    config.settings.prefetch = 3;
    CHECK(!zero_new(&config, err, sizeof err) && strstr(err, "settings.prefetch is 3"), "%s", err);
    CHECK_EQ(memory.total_live, before);
    zero *z = zero_new((config.settings.prefetch = 1, &config), err, sizeof err);
    CHECK(z && zero_fill(z, fill, NULL) == ZERO_OK, "%s", err);
    zero_destroy(z);
    zero_comm_destroy(c);
    CHECK_EQ(memory.total_live, 0);
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
    const double timeout_s = short_timeout(way);
    double norm;
    zero_comm *c = join(way, timeout_s);
    zero *z = make(c, stage);
    CHECK(one_step(z, 0, 2, &norm) == ZERO_OK, "step: %s", zero_error(z));
    MPI_Barrier(MPI_COMM_WORLD);
    const double begin = zero_clock();
    step_and_hash(z, stall, last);
    if (!last) {
        const double took = zero_clock() - begin;
        CHECK(took < 3 * timeout_s + PATIENT, "it took %.1f s", took);
        the_failure_stays(z);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    zero_destroy(z);
    leave(c);
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
    leave(c);
}

// ---- engines on one transport ---------------------------------------------------------------------------------------

// Two engines take turns, unit by unit: each trains to the bits that it reaches alone.
static void engines_take_turns(const struct way *way, int stage) {
    uint64_t want[2], hash[2];
    double mean, loss = 1;
    zero_comm *c = join(way, PATIENT);
    zero *z = make(c, stage), *both[2];
    trains(z, want);
    zero_destroy(z);
    for (int i = 0; i < 2; i++) both[i] = make(c, i ? (stage + 1) % STAGES : stage);
    for (size_t s = 0; s < 2; s++) {
        for (size_t g = 0; g < 2; g++) {
            const size_t j = g * (size_t)ranks + (size_t)rank;
            for (size_t u = 0; u < 2 * UNITS; u++)
                CHECK(zero_acquire_params(both[u % 2], u / 2) && !zero_release_params(both[u % 2], u / 2), "%s%s",
                      zero_error(both[0]), zero_error(both[1]));
            for (size_t u = 2 * UNITS; u-- > 0;)
                CHECK(backward_unit(both[u % 2], u / 2, j, s, 0) == ZERO_OK, "%s%s", zero_error(both[0]),
                      zero_error(both[1]));
            CHECK(zero_finish_backward(both[0]) == ZERO_OK && zero_mean(both[0], &loss, 1, &mean) == ZERO_OK &&
                      mean == 1 && zero_finish_backward(both[1]) == ZERO_OK,
                  "%s%s", zero_error(both[0]), zero_error(both[1]));
        }
        for (int i = 0; i < 2; i++) CHECK(zero_step(both[i], &adamw) == ZERO_OK, "%s", zero_error(both[i]));
    }
    for (int i = 0; i < 2; i++) {
        CHECK(zero_hash(both[i], &hash[0], &hash[1]) == ZERO_OK, "%s", zero_error(both[i]));
        CHECK_BYTES(hash, want, sizeof hash);
        zero_destroy(both[i]);
    }
    leave(c);
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
    zero_destroy(z);
    leave(c);
}

// ---- shard groups ---------------------------------------------------------------------------------------------------

// Rank 1 does not come; before that its shard group's transport refused something.
static void the_transport_that_failed_is_reported(const struct way *way) {
    zero_mesh_comms comms = join_groups(way, 1, short_timeout(way));
    zero_config config = config_of(comms.shard, 1);
    config.replicate_comm = comms.replicate;
    zero *z;
    double norm;
    CHECK(zero_create(&z, &config) == ZERO_OK && zero_fill(z, fill, NULL) == ZERO_OK, "%s", zero_error(z));
    CHECK(zero_comm_free(comms.shard, &norm) == ZERO_ERR_ARG && zero_discard(z) == ZERO_OK, "%s", zero_error(z));
    if (rank == 1) MPI_Barrier(MPI_COMM_WORLD);  // when the others have given up
    int e = micro_batch(z, (size_t)rank, 0, 0);
    if (!e) e = zero_grad_norm(z, &norm);
    if (rank != 1) MPI_Barrier(MPI_COMM_WORLD);
    CHECK(rank == 1 || (e == ZERO_ERR_COMM && strstr(zero_error(z), "timeout_s")), "returns %d: %s", e, zero_error(z));
    MPI_Barrier(MPI_COMM_WORLD);
    zero_destroy(z);
    zero_mesh_comms_destroy(&comms);
}

// The ranks of one group differ: all groups return it, and none waits for the other.
static void a_group_that_differs_is_reported(const struct way *way) {
    zero_mesh_comms comms = join_groups(way, 2, PATIENT);
    zero_config config = config_of(comms.shard, 2);
    config.replicate_comm = comms.replicate;
    if (rank == 0) config.settings.prefetch = 2;
    zero *z;
    const int e = zero_create(&z, &config);
    CHECK(e == ZERO_ERR_ARG && strstr(zero_error(z), "settings.prefetch"), "create returns %d: %s", e, zero_error(z));
    zero_destroy(z);
    zero_mesh_comms_destroy(&comms);
}

// Other group settings on one rank: all ranks are told the field, before any of them waits in a group.
static void other_meshes_are_told(const struct way *way) {
    zero_mesh mesh;
    zero_mesh_comms comms;
    char err[640] = "";
    const int shard = rank == 0 ? ranks : 1;
    const zero_comm_config config = config_of_way(way, PATIENT);
    REQUIRE(zero_mesh_create(&mesh, rank, ranks, 1, 1, shard, err, sizeof err) == ZERO_OK, "%s", err);
    const int e = zero_mesh_comms_create(&comms, &mesh, zero_transport_find(way->transport), boot, &config, &memory,
                                         err, sizeof err);
    CHECK(e == ZERO_ERR_ARG && !comms.data && strstr(err, "zero_mesh.shard is"), "create returns %d: %s", e, err);
    all_is_given_back();
}

// Rank 0 has no replicate group, where the others have one: its shard group is told at once, and tells the other one.
// Only rank 2, which waits for rank 0 in the replicate group, has to time out.
static void a_rank_without_a_replicate_group_is_told(const struct way *way) {
    zero_mesh_comms comms = join_groups(way, 2, short_timeout(way));
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

static void cases_of_groups(const struct way *way) {
    CASE("ranks with other groups wait for each other: %s", way->name) other_meshes_are_told(way);
    CASE("a failure of the replicate group has a message of the shard group: %s", way->name)
        the_transport_that_failed_is_reported(way);
    if (ranks == 4) {
        CASE("groups wait for a shard group whose ranks differ: %s", way->name) a_group_that_differs_is_reported(way);
        CASE("a rank without a replicate group is waited for: %s", way->name)
            a_rank_without_a_replicate_group_is_told(way);
    }
}

// The last rank may have `bytes` more than it has now; the engine takes more in every stage.
static void memory_runs_out_on_one_rank(zero_comm *c, int stage, size_t bytes) {
    const zero_tensor large = { "large", 16 << 20, 0, 0, 1 };
    zero_config config = config_of(c, stage);
    config.tensors = &large;
    config.num_tensors = 1;
    config.order_length = 0;
    struct rlimit limit, all;
    long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    REQUIRE(f && fscanf(f, "%ld", &pages) == 1 && !getrlimit(RLIMIT_AS, &all));
    fclose(f);
    limit = all;
    limit.rlim_cur = (rlim_t)pages * 4096 + bytes;
    if (rank == ranks - 1) setrlimit(RLIMIT_AS, &limit);
    zero *z;
    const int e = zero_create(&z, &config);
    setrlimit(RLIMIT_AS, &all);
    CHECK(e == ZERO_ERR_MEMORY && strstr(zero_error(z), "memory"), "stage %d, %zu bytes: create returns %d: %s", stage,
          bytes, e, zero_error(z));
    zero_destroy(z);
}

static void all_learn_of_memory_that_ran_out(const struct way *way) {
    memset(&memory, 0, sizeof memory);
    mallopt(M_MMAP_THRESHOLD, 1 << 20);  // what is freed is given back, so that the limit counts
    zero_comm *c = join(way, PATIENT);
    const size_t before = memory.total_live;
    for (int stage = 0; stage < STAGES; stage++)
        for (size_t mb = 8; mb < 100; mb += 24) memory_runs_out_on_one_rank(c, stage, mb << 20);
    CHECK_EQ(memory.total_live, before);
    zero *z = make_of(config_of(c, 2));  // the transport is as good as before
    double norm;
    CHECK(one_step(z, 0, 1, &norm) == ZERO_OK, "step: %s", zero_error(z));
    zero_destroy(z);
    zero_comm_destroy(c);
}

int main(int argc, char **argv) {
    start_engines(&argc, argv);
    for (int w = 0; w < MAIN_WAYS; w++)
        for (int stage = 0; stage < STAGES && way_runs_here(&ways[main_ways[w]]); stage++) {
            const struct way *way = &ways[main_ways[w]];
            CASE("a transport fails after an engine that was destroyed halfway: stage %d, %s", stage, way->name)
                the_transport_serves_the_next_engine(way, stage);
            CASE("engines on one transport disturb each other: stage %d, %s", stage, way->name)
                engines_take_turns(way, stage);
            CASE("a dropped micro-batch is missing in the memory formula: stage %d, %s", stage, way->name)
                dropped_micro_batches_count_as_memory(way, stage);
            for (int stall = 0; stall < STALLS && ranks > 1; stall++)
                CASE("a rank that stalls %s is waited for: stage %d, %s", stall_names[stall], stage, way->name)
                    a_stalled_rank_is_noticed(way, stage, (enum stall)stall);
        }
    CASE("tensors and their names are copied") {
        zero_comm *c = join(&ways[SHARED_MEMORY], PATIENT);
        tensors_are_copied(c);
        zero_comm_destroy(c);
    }
    CASE("constructors report failures as text") constructors_report_failures_as_text();
    for (int w = 0; w < MAIN_WAYS && MEMORY_CAN_BE_LIMITED; w++)
        if (way_runs_here(&ways[main_ways[w]]))
            CASE("memory that runs out on one rank is every rank's failure: %s", ways[main_ways[w]].name)
                all_learn_of_memory_that_ran_out(&ways[main_ways[w]]);
    for (int w = 0; w < MAIN_WAYS && ranks > 1; w++)
        for (int stage = 0; stage < STAGES && way_runs_here(&ways[main_ways[w]]); stage++)
            CASE("ranks with other configurations are told: stage %d, %s", stage, ways[main_ways[w]].name) {
                zero_comm *every = join(&ways[main_ways[w]], PATIENT);
                other_configurations_are_told(every, stage);
                leave(every);
            }
    for (int w = 0; w < MAIN_WAYS && ranks > 1; w++)
        if (way_runs_here(&ways[main_ways[w]])) cases_of_groups(&ways[main_ways[w]]);
    return finish_world();
}
