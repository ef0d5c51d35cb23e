// test_engine_ema.c: the moving average of the weights, in every stage, precision and over every transport. Run under
// mpirun.
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>
#include "test/harness/baseline.h"
#include "test/ranks/toy_model.h"

static const double DECAY = 0.8;
static zero_mesh_comms comms;

static zero *make_averaging(int stage, double decay, int freeze) {
    zero_config config = config_of(comms.shard, stage);
    zero_tensor list[TENSORS];
    memcpy(list, tensors, sizeof list);
    for (size_t t = 0; t < TENSORS; t++) list[t].frozen = freeze && tensors[t].unit == 3;
    config.tensors = list;
    config.replicate_comm = comms.replicate;
    config.settings.ema_decay = decay;
    return make_of(config);
}

static void train(zero *z, size_t step) {
    double norm;
    if (!zero_is_frozen(z, 3)) {
        CHECK(one_step(z, step, 2, &norm) == ZERO_OK, "%s", zero_error(z));
        return;
    }
    CHECK(zero_begin_step(z) == ZERO_OK, "%s", zero_error(z));
    for (size_t u = UNITS; u-- > 0;) {
        float g[64] = { 1 + (float)step };
        void *device = zero_is_frozen(z, u) ? NULL : zero_acquire_grads(z, u, 0);
        if (device) device_write(device, g, 64 * element());
        CHECK(!device || zero_release_grads(z, u) == ZERO_OK, "%s", zero_error(z));
    }
    CHECK(zero_finish_backward(z) == ZERO_OK && zero_step(z, &adamw) == ZERO_OK, "%s", zero_error(z));
}

// ---- its values -----------------------------------------------------------------------------------------------------

static float weights[NUMEL], average[NUMEL];  // of the elements that this rank owns
static double worst;

static int note_weights(void *ctx, size_t tensor, size_t begin, size_t count, const float *values) {
    (void)ctx;
    memcpy(weights + tensors[tensor].logical + begin, values, count * sizeof *values);
    return 0;
}

static int is_average(void *ctx, size_t tensor, size_t begin, size_t count, const float *values) {
    const int rounded = *(int *)ctx;
    for (size_t i = 0; i < count; i++) {
        const float a = average[tensors[tensor].logical + begin + i];
        const double off = fabs((double)values[i] - (rounded && kind != F32 ? baseline_rounded(a, ZERO_BF16) : a));
        if (!(off <= worst)) worst = off;
    }
    return 0;
}

// The same bits as a plain loop: products are rounded before they are added.
static void average_weights(int first) {
    const float weight = (float)(1 - DECAY);
    for (size_t i = 0; i < NUMEL; i++) {
        volatile float product = weight * (weights[i] - average[i]);
        average[i] = first ? initial(i) : average[i] + product;
    }
}

static void check_average(zero *z, enum zero_state state) {
    int rounded = state == ZERO_STATE_PARAMS;
    worst = 0;
    CHECK(zero_visit(z, state, is_average, &rounded) == ZERO_OK, "%s", zero_error(z));
    CHECK(worst == 0, "state %d is off by %g", (int)state, worst);
}

// ---- cases ----------------------------------------------------------------------------------------------------------

// Every unit as the ranks acquire it: the hash of all bytes of its tensors.
static uint64_t acquired(zero *z) {
    seen = 0;
    CHECK(forward(z) == ZERO_OK, "%s", zero_error(z));
    return seen;
}

// The average of a run that uses it in the middle; the same run without, and without an average, has the same weights.
static void it_is_the_average(int stage, uint64_t first[3]) {
    zero *a = make_averaging(stage, DECAY, 0), *b = make_averaging(stage, DECAY, 0),
         *plain = make_averaging(stage, 0, 0);
    uint64_t before[2], after[2], plain_hash[2];
    average_weights(1);
    for (size_t step = 0; step < 4; step++) {
        train(a, step);
        train(b, step);
        train(plain, step);
        CHECK(zero_visit(a, ZERO_STATE_MASTER, note_weights, NULL) == ZERO_OK, "%s", zero_error(a));
        average_weights(0);
        if (kind != BF16_NO_MASTER) check_average(a, ZERO_STATE_EMA);  // else of weights before they are rounded
        if (step != 2) continue;
        hash_of(a, before);
        const uint64_t weights_seen = acquired(a);
        CHECK(zero_use_ema(a, 1) == ZERO_OK, "%s", zero_error(a));
        if (kind != BF16_NO_MASTER) check_average(a, ZERO_STATE_PARAMS);
        const uint64_t average_seen = acquired(a);
        CHECK(average_seen != weights_seen);
        if (!first[2]) first[2] = average_seen;
        CHECK(first[2] == average_seen, "the average is another one than in the first stage");
        CHECK(zero_use_ema(a, 0) == ZERO_OK, "%s", zero_error(a));
        CHECK(acquired(a) == weights_seen);
        hash_of(a, after);
        CHECK_BYTES(after, before, sizeof after);
    }
    equal_bits(a, b, "after the average was used");
    hash_of(a, before);
    hash_of(plain, plain_hash);
    CHECK(before[0] == plain_hash[0] && before[1] != plain_hash[1]);
    if (!first[0]) memcpy(first, before, sizeof before);
    CHECK(!memcmp(first, before, sizeof before), "stage %d has other bits", stage);
    zero_destroy(a);
    zero_destroy(b);
    zero_destroy(plain);
}

static void it_costs_what_the_formula_says(int stage) {
    zero *z = make_averaging(stage, DECAY, 0);
    for (size_t step = 0; step < 2; step++) {
        train(z, step);
        CHECK(zero_use_ema(z, 1) == ZERO_OK && zero_use_ema(z, 0) == ZERO_OK, "%s", zero_error(z));
        note_other_transport(&comms);
        reports_agree(z, "the average was used");
    }
    CHECK_EQ(memory.live[ZERO_MEM_EMA], zero_get_layout(z)->numel_padded / (stage ? zero_get_layout(z)->ranks : 1) * 4);
    zero_destroy(z);
}

// While it is on, whatever else reads or changes the state is refused, and zero_discard ends the refusal.
static void all_else_is_refused(int stage) {
    uint64_t before[2], after[2];
    zero *z = make_averaging(stage, DECAY, 0);
    train(z, 0);
    hash_of(z, before);
    CHECK(zero_use_ema(z, 1) == ZERO_OK && zero_use_ema(z, 1) == ZERO_OK, "%s", zero_error(z));
    const zero_tensor_options options = zero_get_tensor_options(z, 0);
    for (int call = 0; call < 8; call++) {
        const int e = call == 0   ? zero_acquire_grads(z, 1, 0) != NULL
                      : call == 1 ? zero_step(z, &adamw)
                      : call == 2 ? zero_fill(z, fill, NULL)
                      : call == 3 ? zero_load(z, ZERO_STATE_EMA, fill, NULL)
                      : call == 4 ? zero_visit(z, ZERO_STATE_MASTER, note_weights, NULL)
                      : call == 5 ? zero_visit(z, ZERO_STATE_EMA, note_weights, NULL)
                      : call == 6 ? zero_hash(z, &after[0], &after[1])
                                  : zero_set_tensor_options(z, 0, &options);
        CHECK(e == (call ? ZERO_ERR_ARG : 0) && strstr(zero_error(z), "call zero_use_ema(z, 0) first"),
              "call %d: %d %s", call, e, zero_error(z));
        CHECK(zero_discard(z) == ZERO_OK, "%s", zero_error(z));
    }
    CHECK(zero_use_ema(z, 0) == ZERO_OK, "%s", zero_error(z));
    hash_of(z, after);
    CHECK_BYTES(after, before, sizeof after);
    zero_destroy(z);

    z = make_averaging(stage, 0, 0);
    CHECK(zero_use_ema(z, 1) == ZERO_ERR_ARG && strstr(zero_error(z), "settings.ema_decay is 0"), "%s", zero_error(z));
    CHECK(zero_discard(z) == ZERO_OK, "%s", zero_error(z));
    CHECK(zero_visit(z, ZERO_STATE_EMA, note_weights, NULL) == ZERO_ERR_ARG, "%s", zero_error(z));
    zero_destroy(z);
}

static void frozen_weights_are_their_average(int stage) {
    zero *z = make_averaging(stage, DECAY, 1);
    average_weights(1);
    for (size_t step = 0; step < 3; step++) {
        train(z, step);
        CHECK(zero_visit(z, ZERO_STATE_MASTER, note_weights, NULL) == ZERO_OK, "%s", zero_error(z));
        average_weights(0);
        check_average(z, ZERO_STATE_EMA);
    }
    CHECK(zero_use_ema(z, 1) == ZERO_OK, "%s", zero_error(z));
    check_average(z, ZERO_STATE_PARAMS);
    zero_destroy(z);  // also while it is on
}

// All states by way of a file, into an engine of another stage, which goes on with the same bits.
static void it_is_saved_and_loaded(int stage) {
    static const enum zero_state states[] = { ZERO_STATE_MASTER, ZERO_STATE_M, ZERO_STATE_V, ZERO_STATE_EMA };
    char path[] = "/tmp/test_ema_XXXXXX";
    int fd = rank == 0 ? mkstemp(path) : -1;
    MPI_Bcast(path, sizeof path, MPI_BYTE, 0, MPI_COMM_WORLD);
    if (rank != 0) fd = open(path, O_RDWR);
    REQUIRE(fd >= 0, "%s", path);
    zero *a = make_averaging(stage, DECAY, 0),
         *b = make_averaging(comms.replicate ? 1 + stage % 3 : (stage + 1) % STAGES, DECAY, 0);
    train(a, 0);
    for (size_t s = 0; s < sizeof states / sizeof *states; s++)
        CHECK(zero_save_fd(a, states[s], fd, s * NUMEL * sizeof(float)) == ZERO_OK, "%s", zero_error(a));
    MPI_Barrier(MPI_COMM_WORLD);
    for (size_t s = 0; s < sizeof states / sizeof *states; s++)
        CHECK(zero_load_fd(b, states[s], fd, s * NUMEL * sizeof(float)) == ZERO_OK, "%s", zero_error(b));
    CHECK(zero_set_updates(b, zero_get_updates(a)) == ZERO_OK, "%s", zero_error(b));
    equal_bits(a, b, "after loading");
    train(a, 1);
    train(b, 1);
    equal_bits(a, b, "a step later");
    MPI_Barrier(MPI_COMM_WORLD);
    close(fd);
    if (rank == 0) unlink(path);
    zero_destroy(a);
    zero_destroy(b);
}

static void another_decay_on_one_rank_is_told(zero_comm *c) {
    zero_config config = config_of(c, 2);
    zero *z;
    config.settings.ema_decay = rank == ranks - 1 ? 0.5 : 0.75;
    CHECK(zero_create(&z, &config) == (ranks > 1 ? ZERO_ERR_ARG : ZERO_OK), "%s", zero_error(z));
    CHECK(ranks == 1 || (strstr(zero_error(z), "settings.ema_decay is 0.") && strstr(zero_error(z), "0.75")), "%s",
          zero_error(z));
    zero_destroy(z);
    config.settings.ema_decay = 1;
    CHECK(zero_create(&z, &config) == ZERO_ERR_ARG && strstr(zero_error(z), "below 1"), "%s", zero_error(z));
    zero_destroy(z);
}

static void cases_of_a_way(const struct way *way, int grouped) {
    char name[64];
    snprintf(name, sizeof name, "%s%s", way->name, grouped ? ", shard groups" : "");
    for (kind = F32; kind < KINDS; kind++) {
        comms = join_groups(way, !grouped ? 0 : ranks % 2 ? 1 : ranks / 2, PATIENT);
        CASE("%s: the average of the weights, used and put back: %s", kind_names[kind], name) {
            uint64_t first[3] = { 0 };
            for (int stage = grouped; stage < STAGES; stage++) it_is_the_average(stage, first);
        }
        if (kind != BF16_NO_MASTER)
            CASE("%s: frozen weights are their average: %s", kind_names[kind], name)
                for (int stage = grouped; stage < STAGES; stage++) frozen_weights_are_their_average(stage);
        zero_mesh_comms_destroy(&comms);
        all_is_given_back();
    }
    kind = F32;
    for (int stage = grouped; stage < STAGES; stage++) {
        comms = join_groups(way, !grouped ? 0 : ranks % 2 ? 1 : ranks / 2, PATIENT);
        CASE("the average costs what the formula says: stage %d, %s", stage, name)
            it_costs_what_the_formula_says(stage);
        CASE("the average in use: all else is refused: stage %d, %s", stage, name) all_else_is_refused(stage);
        CASE("the average is saved and loaded: stage %d, %s", stage, name) it_is_saved_and_loaded(stage);
        zero_mesh_comms_destroy(&comms);
        all_is_given_back();
    }
}

int main(int argc, char **argv) {
    start_engines(&argc, argv);
    for (int w = 0; w < MAIN_WAYS; w++)
        if (way_runs_here(&ways[main_ways[w]]))
            for (int grouped = 0; grouped <= (main_ways[w] == SHARED_MEMORY || main_ways[w] == NCCL); grouped++)
                cases_of_a_way(&ways[main_ways[w]], grouped);
    CASE("another decay on one rank is told") {
        zero_comm *c = join(&ways[SHARED_MEMORY], PATIENT);
        another_decay_on_one_rank_is_told(c);
        leave(c);
    }
    return finish_world();
}
