// test_engine_contract.c: what the engine promises beside its numbers, in every stage and over every transport: misuse
// is refused and can be discarded; the first failure stays; one rank's failure is returned on all; ranks that
// differ are reported; state can be loaded. Run under mpirun.
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>
#include "test/ranks/toy_model.h"
#include "zero/internal.h"  // to see optimizer state after a failure, when no call reads it any more

static enum zero_reduction reduction;  // of the engines that are made

static zero *make_in_groups(zero_comm *shard, zero_comm *replicate, int stage) {
    zero_config config = config_of(shard, stage);
    config.replicate_comm = replicate;
    config.settings.reduction = reduction;
    return make_of(config);
}

// ---- misuse ---------------------------------------------------------------------------------------------------------

// After a refusal: it has this message, later calls return it and keep its message, and zero_discard ends it.
static void refused(zero *z, int refusal, const char *message) {
    char first[768];
    snprintf(first, sizeof first, "%s", zero_error(z));
    CHECK(refusal && strstr(first, message), "wanted \"%s\": %s", message, first);
    CHECK(zero_begin_step(z) == ZERO_ERR_ARG && !zero_acquire_params(z, 0) &&
              !zero_acquire_grads(z, 0, zero_get_micro_batches(z)) && zero_finish_backward(z) == ZERO_ERR_ARG &&
              zero_step(z, &adamw) == ZERO_ERR_ARG,
          "after \"%s\" calls succeed", message);
    CHECK_STR(zero_error(z), first);
    CHECK(zero_discard(z) == ZERO_OK && !*zero_error(z), "discard after \"%s\": %s", message, zero_error(z));
}

static int no_fill(void *ctx, size_t tensor, size_t begin, size_t count, float *out) {
    (void)ctx, (void)tensor, (void)begin, (void)count, (void)out;
    return 1;
}

// Calls the engine in its callback, and says that all is well.
static zero *engine;
static int call_back(void) {
    double norms[TENSORS];
    uint64_t hash[2];
    const zero_tensor_options options = zero_get_tensor_options(engine, 0);
    const int results[] = { zero_visit(engine, ZERO_STATE_M, NULL, NULL),
                            zero_fill(engine, no_fill, NULL),
                            zero_hash(engine, &hash[0], &hash[1]),
                            zero_discard(engine),
                            zero_begin_step(engine),
                            zero_step(engine, &adamw),
                            zero_grad_norm(engine, norms),
                            zero_tensor_norms(engine, norms),
                            zero_mean(engine, norms, 1, norms),
                            zero_finish_backward(engine),
                            zero_set_updates(engine, 1),
                            zero_set_total_weight(engine, 1),
                            zero_set_tensor_options(engine, 0, &options),
                            zero_release_params(engine, 0),
                            zero_release_grads(engine, 0),
                            zero_acquire_params(engine, 0) ? ZERO_OK : ZERO_ERR_ARG,
                            zero_acquire_grads(engine, 0, 0) ? ZERO_OK : ZERO_ERR_ARG };
    for (size_t i = 0; i < sizeof results / sizeof *results; i++)
        CHECK(results[i] == ZERO_ERR_ARG, "call %zu in a callback returns %d", i, results[i]);
    return 0;
}

static int calls_in_visit(void *ctx, size_t tensor, size_t begin, size_t count, const float *values) {
    (void)ctx, (void)tensor, (void)begin, (void)count, (void)values;
    return call_back();
}

static int calls_in_fill(void *ctx, size_t tensor, size_t begin, size_t count, float *out) {
    fill(ctx, tensor, begin, count, out);
    return call_back();
}

static void acquires_and_releases_are_paired(zero *z) {
    refused(z, !zero_acquire_params(z, UNITS), "no unit 5");
    refused(z, !zero_acquire_grads(z, UNITS, zero_get_micro_batches(z)), "no unit 5");
    refused(z, zero_release_params(z, 1) == ZERO_ERR_ARG, "without being acquired");
    refused(z, zero_release_grads(z, 1) == ZERO_ERR_ARG, "without being acquired");
    CHECK(zero_acquire_params(z, 1) && zero_acquire_params(z, 1) && !zero_release_params(z, 1));
    refused(z, zero_begin_step(z) == ZERO_ERR_ARG, "unit 1 are still acquired");
    CHECK(zero_acquire_params(z, 1) && !zero_release_params(z, 1));
    refused(z, zero_release_params(z, 1) == ZERO_ERR_ARG, "unit 1 are released without");
    CHECK(zero_acquire_params(z, 1) && zero_acquire_params(z, 2));  // units 1 to 4 have one size
    refused(z, !zero_acquire_params(z, 3), "settings.prefetch = 2 units");
    CHECK(zero_acquire_grads(z, 1, zero_get_micro_batches(z)) != NULL);
    refused(z, !zero_acquire_grads(z, 1, zero_get_micro_batches(z)), "unit 1 are acquired twice");
    CHECK(zero_acquire_grads(z, 1, zero_get_micro_batches(z)) && !zero_release_grads(z, 1));
    refused(z, !zero_acquire_grads(z, 1, zero_get_micro_batches(z)), "unit 1 are acquired twice");
    CHECK(zero_acquire_grads(z, 1, zero_get_micro_batches(z)) && zero_acquire_grads(z, 2, zero_get_micro_batches(z)));
    refused(z, !zero_acquire_grads(z, 3, zero_get_micro_batches(z)), "more than 2 units");
    refused(z, !zero_acquire_grads(z, 4, 1), "micro-batch 1 before 0");
    refused(z, zero_set_total_weight(z, 0) == ZERO_ERR_ARG, "positive weights");
    CHECK(zero_acquire_grads(z, 4, zero_get_micro_batches(z)) && !zero_release_grads(z, 4));
    refused(z, zero_finish_backward(z) == ZERO_ERR_ARG, "unit 0 were not released");
}

static void calls_have_an_order(zero *z) {
    double norm;
    zero_hyperparameters h = adamw;
    refused(z, zero_step(z, &adamw) == ZERO_ERR_ARG, "no finished micro-batch");
    refused(z, zero_grad_norm(z, &norm) == ZERO_ERR_ARG, "no finished micro-batch");
    CHECK(micro_batch(z, (size_t)rank, 7, 0) == ZERO_OK && zero_grad_norm(z, &norm) == ZERO_OK);
    refused(z, !zero_acquire_grads(z, 4, zero_get_micro_batches(z)), "after zero_grad_norm");
    CHECK(micro_batch(z, (size_t)rank, 7, 0) == ZERO_OK);
    refused(z, zero_load(z, ZERO_STATE_M, fill, NULL) == ZERO_ERR_ARG, "between steps");
    CHECK(micro_batch(z, (size_t)rank, 7, 0) == ZERO_OK && zero_acquire_params(z, 0));
    refused(z, zero_step(z, &adamw) == ZERO_ERR_ARG, "unit 0 are still acquired");
    refused(z, zero_visit(z, ZERO_STATE_V + 1, calls_in_visit, z) == ZERO_ERR_ARG, "no state 2");
    engine = z;
    refused(z, zero_visit(z, ZERO_STATE_M, calls_in_visit, z) == ZERO_ERR_ARG, "in the callback");
    refused(z, zero_load(z, ZERO_STATE_M, calls_in_fill, z) == ZERO_ERR_ARG, "in the callback");
    refused(z, zero_load(z, ZERO_STATE_MASTER, calls_in_fill, z) == ZERO_ERR_ARG, "in the callback");
    h = adamw, h.max_norm = -1;
    refused(z, zero_step(z, &h) == ZERO_ERR_ARG, "max_norm is -1");
    h = adamw, h.lr = NAN;
    refused(z, zero_step(z, &h) == ZERO_ERR_ARG, "lr is nan");
    h = adamw, h.beta2 = 1;
    refused(z, zero_step(z, &h) == ZERO_ERR_ARG, "beta2 is 1");
}

// No trace of it is left: the next step is that of an engine that was never misused.
static void misuse_is_refused(zero_comm *c, int stage) {
    zero *z = make_in_groups(c, NULL, stage), *other = make_in_groups(c, NULL, stage);
    uint64_t hash[2][2];
    double norm;
    acquires_and_releases_are_paired(z);
    calls_have_an_order(z);
    for (int i = 0; i < 2; i++) {
        zero *engine = i ? other : z;
        CHECK(one_step(engine, 0, 3, &norm) == ZERO_OK, "step: %s", zero_error(engine));
        CHECK(fabs(norm - norm_in_double(0, 3)) <= 1e-6 * norm, "the norm is %f, in double %f", norm,
              norm_in_double(0, 3));
        CHECK(zero_hash(engine, &hash[i][0], &hash[i][1]) == ZERO_OK, "hash: %s", zero_error(engine));
    }
    CHECK_BYTES(hash[0], hash[1], sizeof hash[0]);
    CHECK(zero_fill(z, no_fill, NULL) == ZERO_ERR_CALLBACK && strstr(zero_error(z), "tensor"), "a failing callback: %s",
          zero_error(z));
    CHECK(!zero_acquire_params(z, 0) && zero_discard(z) == ZERO_OK && forward(z) == ZERO_OK, "after it: %s",
          zero_error(z));
    zero_destroy(other);
    zero_destroy(z);
}

enum { NORM, NORMS, STEP, GRADS, LOAD, LOAD_WEIGHTS, FILL, HASH, BEGIN, CALLS };

static int call_between_micro_batches(zero *z, int call) {
    double norms[TENSORS];
    uint64_t hash[2];
    switch (call) {
    case NORM: return zero_grad_norm(z, norms);
    case NORMS: return zero_tensor_norms(z, norms);
    case STEP: return zero_step(z, &adamw);
    case GRADS: return zero_load(z, ZERO_STATE_GRADS, fill, NULL);
    case LOAD: return zero_load(z, ZERO_STATE_M, fill, NULL);
    case LOAD_WEIGHTS: return zero_load(z, ZERO_STATE_MASTER, fill, NULL);
    case FILL: return zero_fill(z, fill, NULL);
    case HASH: return zero_hash(z, &hash[0], &hash[1]);
    default: return zero_begin_step(z);
    }
}

// In the first micro-batch of a step and in the second one, of which a unit is held, one is released, or all are.
static void an_unfinished_micro_batch_is_refused(zero_comm *c, int stage) {
    enum { HELD, ONE, ALL, UNFINISHED };
    zero *z = make_in_groups(c, NULL, stage);
    uint64_t want[2], hash[2];
    double norm;
    CHECK(one_step(z, 0, 2, &norm) == ZERO_OK && zero_hash(z, &want[0], &want[1]) == ZERO_OK, "%s", zero_error(z));
    for (int i = 0; i < CALLS * UNFINISHED * 2; i++) {
        const int call = i % CALLS, unfinished = i / CALLS % UNFINISHED, finished = i / CALLS / UNFINISHED;
        if (finished) CHECK(micro_batch(z, (size_t)rank, 7, 0) == ZERO_OK, "%s", zero_error(z));
        for (size_t u = UNITS; u-- > (unfinished == ALL ? 0 : UNITS - 1);)
            CHECK(zero_acquire_grads(z, u, zero_get_micro_batches(z)) &&
                      (unfinished == HELD || !zero_release_grads(z, u)),
                  "%s", zero_error(z));
        refused(z, call_between_micro_batches(z, call) == ZERO_ERR_ARG, "a micro-batch is unfinished");
        CHECK(zero_hash(z, &hash[0], &hash[1]) == ZERO_OK, "hash: %s", zero_error(z));
        CHECK_BYTES(hash, want, sizeof hash);
    }
    zero_destroy(z);
}

// ---- failure --------------------------------------------------------------------------------------------------------

static int fails_on_the_last_rank(void *ctx, size_t tensor, size_t begin, size_t count, float *out) {
    fill(ctx, tensor, begin, count, out);
    return rank == ranks - 1;
}

static void one_rank_s_callback_fails_all(zero_comm *c, int stage) {
    zero *z = make_in_groups(c, NULL, stage);
    char message[64];
    snprintf(message, sizeof message, "rank %d of %d: the callback", ranks - 1, ranks);
    CHECK(zero_fill(z, fails_on_the_last_rank, NULL) == ZERO_ERR_CALLBACK && strstr(zero_error(z), message),
          "the message is: %s", zero_error(z));
    double norm;
    CHECK(zero_discard(z) == ZERO_OK && zero_fill(z, fill, NULL) == ZERO_OK && one_step(z, 0, 1, &norm) == ZERO_OK,
          "after it: %s", zero_error(z));
    zero_destroy(z);
}

// Rank 1 does not come to the step. The others time out; trying again changes nothing and gives the same message.
static void a_step_that_failed_is_not_repeated(const struct way *way, int stage) {
    zero_comm *c = join(way, short_timeout(way));
    zero *z = make_in_groups(c, NULL, stage);
    double norm;
    char first[768];
    float before[64], after[64];
    CHECK(micro_batch(z, (size_t)rank, 0, 0) == ZERO_OK && zero_grad_norm(z, &norm) == ZERO_OK, "norm: %s",
          zero_error(z));
    if (rank == 1) MPI_Barrier(MPI_COMM_WORLD);  // when the others have given up
    int e = zero_step(z, &adamw);
    if (!e && forward(z)) e = z->failed;  // stage 3, between hosts: the first who needs rank 1 is the next forward
    if (rank != 1) MPI_Barrier(MPI_COMM_WORLD);
    CHECK(e == ZERO_ERR_COMM || rank == 1, "the step returns %d: %s", e, zero_error(z));
    if (e) {
        snprintf(first, sizeof first, "%s", zero_error(z));
        device_read(before, z->parts[0].arrays[ARRAY_STATES], sizeof before);
        CHECK(zero_step(z, &adamw) == e && zero_discard(z) == e && zero_grad_norm(z, &norm) == e &&
                  !zero_acquire_params(z, 0) && !zero_acquire_params(z, 0),
              "after \"%s\" calls succeed", first);
        CHECK_STR(zero_error(z), first);
        device_read(after, z->parts[0].arrays[ARRAY_STATES], sizeof after);
        CHECK_BYTES(after, before, sizeof after);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    zero_destroy(z);
    zero_comm_destroy(c);
}

// The last rank may take a part of what its engine needs: every allocation in turn is the one that is refused. It never
// holds more than the limit, and all of it is enough.
static void a_limit_is_kept(zero_comm *c, int stage) {
    enum { PARTS = 24 };
    zero *z = make_in_groups(c, NULL, stage);
    const size_t with_engine = memory.total_live;
    zero_destroy(z);
    const size_t before = memory.total_live, need = with_engine - before;  // the transport keeps its scratch
    for (size_t part = 0; part <= PARTS; part++) {
        const size_t limit = before + (part == PARTS ? need : part + 1 == PARTS ? need - 1 : need / PARTS * part);
        const zero_config config = config_of(c, stage);
        memory.total_peak = memory.total_live;
        if (rank == ranks - 1) memory.limit = limit;
        const int e = zero_create(&z, &config);
        CHECK(part == PARTS ? e == ZERO_OK : e == ZERO_ERR_MEMORY && strstr(zero_error(z), "memory for"),
              "stage %d, %zu of %zu bytes: create returns %d: %s", stage, limit - before, need, e, zero_error(z));
        if (rank == ranks - 1)
            CHECK((part == PARTS || ranks > 1 || strstr(zero_error(z), " bytes are taken")) &&
                      memory.total_peak <= limit,
                  "stage %d: %zu bytes, the limit is %zu: %s", stage, memory.total_peak, limit, zero_error(z));
        memory.limit = 0;
        zero_destroy(z);
    }
    CHECK_EQ(memory.total_live, before);
}

// ---- ranks that differ ----------------------------------------------------------------------------------------------

// The message of ranks > 1 that make different calls, at the latest with the norm.
static void is_told(zero *z) {
    double norm;
    const int e = zero_grad_norm(z, &norm);
    CHECK(e == ZERO_ERR_COMM, "the norm returns %d: %s", e, zero_error(z));
    zero_destroy(z);
}

static int backward_in_order(zero *z, const size_t *order) {
    int e = ZERO_OK;
    for (size_t i = 0; i < UNITS && !e; i++)
        e = zero_acquire_grads(z, order[i], zero_get_micro_batches(z)) ? zero_release_grads(z, order[i]) : ZERO_ERR_ARG;
    return e ? e : zero_finish_backward(z);
}

static void other_calls_are_told(const struct way *way, int stage) {
    static const size_t orders[2][UNITS] = { { 4, 3, 2, 1, 0 }, { 4, 2, 3, 1, 0 } };  // units 1 to 4 have one size
    const int last = rank == ranks - 1;
    zero_comm *c = join(way, PATIENT);
    zero *z = make_in_groups(c, NULL, stage);
    double norm;
    zero_hyperparameters h = adamw;
    (void)backward_in_order(z, orders[last]);
    is_told(z);
    zero_comm_destroy(c);

    c = join(way, PATIENT);
    z = make_in_groups(c, NULL, stage);
    h.lr = last ? 0.02f : 0.01f;
    CHECK(backward_in_order(z, orders[0]) == ZERO_OK && zero_grad_norm(z, &norm) == ZERO_OK &&
              zero_step(z, &h) == ZERO_OK && backward_in_order(z, orders[0]) == ZERO_OK,
          "a step: %s", zero_error(z));
    is_told(z);
    zero_comm_destroy(c);

    // The step itself finds it, on the device, and changes nothing.
    float start[64], after[64];
    c = join(way, PATIENT);
    z = make_in_groups(c, NULL, stage);
    device_read(start, z->parts[0].arrays[ARRAY_STATES], sizeof start);
    CHECK(backward_in_order(z, orders[0]) == ZERO_OK, "a backward: %s", zero_error(z));
    const int e = zero_step(z, &h);
    CHECK(isnan(zero_last_step(z).norm) && strstr(zero_error(z), "step with the same hyperparameters"),
          "the step returns %d, the message is: %s", e, zero_error(z));
    CHECK(zero_begin_step(z) == ZERO_ERR_COMM, "a call succeeds after: %s", zero_error(z));
    device_read(after, z->parts[0].arrays[ARRAY_STATES], sizeof after);
    CHECK_BYTES(after, start, sizeof after);
    zero_destroy(z);
    zero_comm_destroy(c);

    // One rank asks for the norm before the step, and so has made fewer calls when it meets the others.
    c = join(way, PATIENT);
    z = make_in_groups(c, NULL, stage);
    CHECK(backward_in_order(z, orders[0]) == ZERO_OK && (last || zero_grad_norm(z, NULL) == ZERO_OK), "a backward: %s",
          zero_error(z));
    (void)zero_step(z, &adamw);
    CHECK(isnan(zero_last_step(z).norm) && strstr(zero_error(z), "its calls differ"), "the message is: %s",
          zero_error(z));
    zero_destroy(z);
    zero_comm_destroy(c);

    // One rank samples alone. Where it waits for the others in stage 3, the time-out tells.
    const int waits = way != &ways[SHARED_MEMORY] && stage == 3;
    c = join(way, waits ? short_timeout(way) : PATIENT);
    z = make_in_groups(c, NULL, stage);
    if (last) CHECK((zero_acquire_params(z, 0) && zero_release_params(z, 0) == ZERO_OK) || waits, "%s", zero_error(z));
    (void)backward_in_order(z, orders[0]);
    is_told(z);
    zero_comm_destroy(c);
}

// One rank's calls differ; its replicate group sees that, and every other rank must be told.
static void other_calls_are_told_to_all_groups(const struct way *way, int stage, int size) {
    zero_mesh_comms comms = join_groups(way, size, PATIENT);
    zero *z = make_in_groups(comms.shard, comms.replicate, stage);
    double norm;
    zero_hyperparameters h = adamw;
    if (rank == ranks - 1) h.lr = 0.02f;
    CHECK(micro_batch(z, (size_t)rank, 0, 0) == ZERO_OK && zero_grad_norm(z, &norm) == ZERO_OK &&
              zero_step(z, &h) == ZERO_OK && micro_batch(z, (size_t)rank, 1, 0) == ZERO_OK,
          "a step: %s", zero_error(z));
    is_told(z);
    zero_mesh_comms_destroy(&comms);
}

// ---- visit and load -------------------------------------------------------------------------------------------------

enum { NUM_STATES = 3 };
static const enum zero_state states[NUM_STATES] = { ZERO_STATE_MASTER, ZERO_STATE_M, ZERO_STATE_V };

static size_t visited;  // elements
static int keep(void *file, size_t tensor, size_t begin, size_t count, const float *values) {
    visited += count;
    memcpy((float *)file + tensors[tensor].logical + begin, values, count * sizeof(float));
    return 0;
}

static int give(void *file, size_t tensor, size_t begin, size_t count, float *out) {
    memcpy(out, (float *)file + tensors[tensor].logical + begin, count * sizeof(float));
    return 0;
}

// What all ranks own of each state, on every rank.
static void save(zero *z, float file[NUM_STATES][NUMEL]) {
    memset(file, 0, sizeof(float[NUM_STATES][NUMEL]));
    for (int s = 0; s < NUM_STATES; s++)
        CHECK(zero_visit(z, states[s], keep, file[s]) == ZERO_OK, "visit: %s", zero_error(z));
    MPI_Allreduce(MPI_IN_PLACE, file, NUM_STATES * NUMEL, MPI_UINT32_T, MPI_BOR, MPI_COMM_WORLD);
}

static void continues(zero *z, float file[NUM_STATES][NUMEL], size_t micro_batches, const uint64_t want[2]) {
    uint64_t hash[2];
    double norm;
    for (int s = 0; s < NUM_STATES; s++)
        CHECK(zero_load(z, states[s], give, file[s]) == ZERO_OK, "load: %s", zero_error(z));
    CHECK(zero_set_updates(z, 2) == ZERO_OK, "%s", zero_error(z));
    for (size_t s = 2; s < 4; s++) CHECK(one_step(z, s, micro_batches, &norm) == ZERO_OK, "step: %s", zero_error(z));
    CHECK(zero_hash(z, &hash[0], &hash[1]) == ZERO_OK, "hash: %s", zero_error(z));
    CHECK_BYTES(hash, want, sizeof hash);
}

// Saved in one stage, loaded in every other; and with half the ranks, where each half trains on all micro-batches.
static void state_survives(const struct way *way, int stage) {
    static float file[NUM_STATES][NUMEL];
    zero_comm *c = join(way, PATIENT);
    uint64_t want[2];
    double norm;
    zero *z = make_in_groups(c, NULL, stage);
    for (size_t s = 0; s < 4; s++) {
        if (s == 2) save(z, file);
        CHECK(one_step(z, s, 2, &norm) == ZERO_OK, "step: %s", zero_error(z));
    }
    CHECK(zero_hash(z, &want[0], &want[1]) == ZERO_OK, "hash: %s", zero_error(z));
    zero_destroy(z);
    for (int other = 0; other < STAGES; other++) {
        z = make_in_groups(c, NULL, other);
        continues(z, file, 2, want);
        zero_destroy(z);
    }
    zero_comm_destroy(c);
    if (ranks != 2) return;
    zero_bootstrap *self;
    REQUIRE(zero_bootstrap_create_mpi(&self, MPI_COMM_SELF, 60) == ZERO_OK);
    c = join_by(self, way, PATIENT);
    data_rank = 0, data_ranks = 1;
    z = make_in_groups(c, NULL, stage);
    continues(z, file, 4, want);
    zero_destroy(z);
    zero_comm_destroy(c);
    zero_bootstrap_destroy(self);
    data_rank = rank, data_ranks = ranks;
}

// ---- gradients and helpers ------------------------------------------------------------------------------------------

static int doubles(void *file, size_t tensor, size_t begin, size_t count, float *out) {
    give(file, tensor, begin, count, out);
    for (size_t i = 0; i < count; i++) out[i] *= 2;
    return 0;
}

// Each element is visited on one rank; all of them, on every rank.
static void see_gradients(zero *z, float sum[NUMEL]) {
    memset(sum, 0, sizeof(float[NUMEL]));
    visited = 0;
    CHECK(zero_visit(z, ZERO_STATE_GRADS, keep, sum) == ZERO_OK, "visit: %s", zero_error(z));
    MPI_Allreduce(MPI_IN_PLACE, sum, NUMEL, MPI_UINT32_T, MPI_BOR, MPI_COMM_WORLD);
    MPI_Allreduce(MPI_IN_PLACE, &visited, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
    CHECK_EQ(visited, ELEMENTS);
}

// Norms of tensors are those of double; gradients are what was summed, and can be replaced.
static void gradients_can_be_seen(zero_comm *shard, zero_comm *replicate, int stage) {
    static float sum[NUMEL];
    double norms[TENSORS], norm, again, squares = 0;
    uint64_t hash[2][2];
    zero *z = make_in_groups(shard, replicate, stage), *other = make_in_groups(shard, replicate, stage);
    refused(z, zero_tensor_norms(z, norms) == ZERO_ERR_ARG, "no finished micro-batch");
    refused(z, zero_visit(z, ZERO_STATE_GRADS, keep, sum) == ZERO_ERR_ARG, "no finished micro-batch");
    for (size_t g = 0; g < 3; g++)
        CHECK(micro_batch(z, g * (size_t)ranks + (size_t)rank, 5, 0) == ZERO_OK &&
              micro_batch(other, g * (size_t)ranks + (size_t)rank, 5, 0) == ZERO_OK);
    see_gradients(z, sum);
    CHECK(zero_tensor_norms(z, norms) == ZERO_OK && zero_grad_norm(z, &norm) == ZERO_OK, "norms: %s", zero_error(z));
    for (size_t t = 0; t < TENSORS; t++) {
        double want = 0;
        for (size_t i = 0; i < tensors[t].numel; i++) {
            double x = 0;
            for (size_t j = 0; j < 3 * (size_t)ranks; j++) x += gradient(tensors[t].logical + i, j, 5);
            CHECK(fabs(sum[tensors[t].logical + i] - x) <= 1e-5 * fabs(x) + 1e-6, "element %zu of %s is %g, not %g", i,
                  tensors[t].name, (double)sum[tensors[t].logical + i], x);
            want += x * x;
        }
        want = sqrt(want) / (3 * (double)ranks);
        CHECK(fabs(norms[t] - want) <= 1e-6 * want, "the norm of %s is %.9g, not %.9g", tensors[t].name, norms[t],
              want);
        squares += norms[t] * norms[t];
    }
    CHECK(fabs(sqrt(squares) - norm) <= 1e-12 * norm, "all tensors: %.15g, global norm: %.15g", sqrt(squares), norm);
    CHECK(zero_load(z, ZERO_STATE_GRADS, doubles, sum) == ZERO_OK && zero_grad_norm(z, &again) == ZERO_OK &&
              again == 2 * norm && zero_step(z, &adamw) == ZERO_OK,
          "replaced by their doubles: norm %g, before %g %s", again, norm, zero_error(z));
    CHECK(zero_grad_norm(other, &again) == ZERO_OK && again == norm &&
              zero_set_total_weight(other, 1.5 * ranks) == ZERO_OK && zero_step(other, &adamw) == ZERO_OK &&
              zero_hash(z, &hash[0][0], &hash[0][1]) == ZERO_OK &&
              zero_hash(other, &hash[1][0], &hash[1][1]) == ZERO_OK,
          "a step with twice the gradients: %s%s", zero_error(z), zero_error(other));
    CHECK_BYTES(hash[0], hash[1], sizeof hash[0]);
    zero_destroy(other);
    zero_destroy(z);
}

// Save in one engine, load in another one; the host's copies; the mean.
static void helpers_do_what_they_say(zero_comm *c, int stage) {
    zero *z = make_in_groups(c, NULL, stage), *other = make_in_groups(c, NULL, (stage + 1) % STAGES);
    char path[] = "/tmp/test_contract_XXXXXX";
    int fd = rank == 0 ? mkstemp(path) : -1;
    MPI_Bcast(path, sizeof path, MPI_BYTE, 0, MPI_COMM_WORLD);
    if (rank != 0) fd = open(path, O_RDWR);
    double norm, mean, losses[2] = { 0.1 * rank, 0.1 * (ranks + rank) }, want = 0;
    uint64_t hash[2][2];
    CHECK(one_step(z, 0, 2, &norm) == ZERO_OK, "step: %s", zero_error(z));
    for (size_t s = 0; s < NUM_STATES; s++)
        CHECK(zero_save_fd(z, states[s], fd, 100 + s * sizeof(float[NUMEL])) == ZERO_OK, "save: %s", zero_error(z));
    MPI_Barrier(MPI_COMM_WORLD);
    for (size_t s = 0; s < NUM_STATES; s++)
        CHECK(zero_load_fd(other, states[s], fd, 100 + s * sizeof(float[NUMEL])) == ZERO_OK, "load: %s",
              zero_error(other));
    CHECK(zero_hash(z, &hash[0][0], &hash[0][1]) == ZERO_OK && zero_hash(other, &hash[1][0], &hash[1][1]) == ZERO_OK);
    CHECK_BYTES(hash[1], hash[0], sizeof hash[0]);
    CHECK(zero_load_fd(other, ZERO_STATE_M, fd, 3 * sizeof(float[NUMEL])) == ZERO_ERR_CALLBACK &&
              strstr(zero_error(other), "the file ends"),
          "a file that is too short: %s", zero_error(other));
    close(fd);
    if (rank == 0) unlink(path);
    const size_t n = zero_layout_unit_numel(zero_get_layout(z), 1);
    float *host = calloc(n, sizeof *host), *device = NULL;
    CHECK(zero_read_params(z, 1, host) == ZERO_OK, "read: %s", zero_error(z));
    const void *p = zero_acquire_params(z, 1);
    CHECK(p && (char *)zero_tensor_at(z, p, 3) - (const char *)p == 640 * sizeof(float));
    device = copy_of(p, n, sizeof *device);
    CHECK_BYTES(host, device, n * sizeof *host);
    CHECK(zero_release_params(z, 1) == ZERO_OK);
    memset(host, 0, n * sizeof *host);
    host[0] = 3;
    CHECK(zero_write_grads(z, 1, host) == ZERO_OK, "write: %s", zero_error(z));
    for (size_t u = 0; u < UNITS; u++)
        CHECK(u == 1 || (zero_acquire_grads(z, u, zero_get_micro_batches(z)) && zero_release_grads(z, u) == ZERO_OK),
              "%s", zero_error(z));
    CHECK(zero_finish_backward(z) == ZERO_OK && zero_grad_norm(z, &norm) == ZERO_OK && norm == 3, "norm %g: %s", norm,
          zero_error(z));
    for (int j = 0; j < 2 * ranks; j++) want += 0.1 * j / (2.0 * ranks);
    CHECK(zero_mean(z, losses, 2, &mean) == ZERO_OK && fabs(mean - want) < 1e-12, "mean %g, not %g", mean, want);
    free(host);
    free(device);
    zero_destroy(other);
    zero_destroy(z);
}

// ---------------------------------------------------------------------------------------------------------------------

static void cases_of_groups(const struct way *way, int stage, int size) {
    CASE("gradients can be seen and replaced: stage %d, groups of %d, %s", stage, size, way->name) {
        zero_mesh_comms comms = join_groups(way, size, PATIENT);
        gradients_can_be_seen(comms.shard, comms.replicate, stage);
        zero_mesh_comms_destroy(&comms);
    }
    CASE("ranks that make other calls are told: stage %d, groups of %d, %s", stage, size, way->name)
        other_calls_are_told_to_all_groups(way, stage, size);
}

static void cases_of_a_stage(const struct way *way, int stage) {
    zero_comm *c = join(way, PATIENT);
    CASE("misuse is refused and leaves no trace: stage %d, %s", stage, way->name) misuse_is_refused(c, stage);
    for (int r = ZERO_REDUCE_EXACT; r <= ZERO_REDUCE_LIBRARY; r++) {
        reduction = (enum zero_reduction)r;
        CASE("an unfinished micro-batch is refused: stage %d, %s, %s", stage, way->name, r ? "library" : "exact")
            an_unfinished_micro_batch_is_refused(c, stage);
    }
    reduction = ZERO_REDUCE_EXACT;
    CASE("a callback that fails on one rank fails on all: stage %d, %s", stage, way->name)
        one_rank_s_callback_fails_all(c, stage);
    CASE("gradients can be seen and replaced: stage %d, %s", stage, way->name) gradients_can_be_seen(c, NULL, stage);
    CASE("helpers: files, host copies, mean: stage %d, %s", stage, way->name) helpers_do_what_they_say(c, stage);
    CASE("the accounting's limit is kept: stage %d, %s", stage, way->name) a_limit_is_kept(c, stage);
    zero_comm_destroy(c);
    for (kind = 0; kind < KINDS; kind++)
        CASE("state is saved and loaded, in any stage: from stage %d, %s, %s", stage, kind_names[kind], way->name)
            state_survives(way, stage);
    kind = F32;
    for (int size = 1; size < ranks && stage > 0; size++)
        if (ranks % size == 0) cases_of_groups(way, stage, size);
    if (ranks == 1) return;
    CASE("ranks that make other calls are told: stage %d, %s", stage, way->name) other_calls_are_told(way, stage);
    CASE("a step that failed is not repeated: stage %d, %s", stage, way->name)
        a_step_that_failed_is_not_repeated(way, stage);
}

int main(int argc, char **argv) {
    start_engines(&argc, argv);
    for (int w = 0; w < MAIN_WAYS; w++)
        for (int stage = 0; stage < STAGES && way_runs_here(&ways[main_ways[w]]); stage++)
            cases_of_a_stage(&ways[main_ways[w]], stage);
    return finish_world();
}
