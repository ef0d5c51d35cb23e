// test_engine_offload.c: optimizer state and parameters that are offloaded, to host memory or to a disk, have the bits
// of what is not, in every stage, precision and optimizer; they can be visited, loaded, frozen and averaged; their
// memory is what the formula says; and a disk that fails on one rank fails all of them. Run under mpirun.
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>
#include "test/ranks/toy_model.h"
#include "zero/optimizers/optimizers.h"

static char directory[] = "build/test_offload.XXXXXX";
static zero_mesh_comms comms;

static const struct place {
    const char *name;
    enum zero_offload offload;
    double fraction;
    enum zero_offload params;  // in stage 3
} places[] = {
    { "on the device", ZERO_OFFLOAD_NONE, 1, ZERO_OFFLOAD_NONE },
    { "host, 0.3", ZERO_OFFLOAD_CPU, 0.3, ZERO_OFFLOAD_NONE },
    { "host", ZERO_OFFLOAD_CPU, 1, ZERO_OFFLOAD_NONE },
    { "disk, 0", ZERO_OFFLOAD_NVME, 0, ZERO_OFFLOAD_NONE },
    { "disk, 0.3", ZERO_OFFLOAD_NVME, 0.3, ZERO_OFFLOAD_NONE },
    { "disk", ZERO_OFFLOAD_NVME, 1, ZERO_OFFLOAD_NONE },
    { "parameters: host", ZERO_OFFLOAD_NONE, 1, ZERO_OFFLOAD_CPU },
    { "parameters: disk", ZERO_OFFLOAD_NONE, 1, ZERO_OFFLOAD_NVME },
    { "host, 0.3, parameters: disk", ZERO_OFFLOAD_CPU, 0.3, ZERO_OFFLOAD_NVME },
    { "disk, parameters: host", ZERO_OFFLOAD_NVME, 1, ZERO_OFFLOAD_CPU },
    { "host, parameters: host", ZERO_OFFLOAD_CPU, 1, ZERO_OFFLOAD_CPU },
    { "disk, parameters: disk", ZERO_OFFLOAD_NVME, 1, ZERO_OFFLOAD_NVME },
};
enum { PLACES = sizeof places / sizeof *places, DEVICE = 0, HOST = 2, DISK = 5 };
enum { PARAMS_ON_DISK = 7, ALL_ON_DISK = PLACES - 1 };

// Before stage 3 there is nothing to be done with parameters.
static int is_possible(int place, int stage) { return stage == 3 || places[place].params == ZERO_OFFLOAD_NONE; }

static zero_config config_at(int place, int stage, enum zero_optimizer_kind optimizer, double ema_decay) {
    zero_config config = config_of(comms.shard, stage);
    config.replicate_comm = comms.replicate;
    config.settings.offload = places[place].offload;
    config.settings.offload_fraction = places[place].fraction;
    config.settings.optimizer = optimizer;
    config.settings.ema_decay = ema_decay;
    config.settings.offload_params = places[place].params;
    config.offload_dir = config.offload_params_dir = directory;
    return config;
}

static void train(zero *z, size_t step) {
    double norm;
    CHECK(one_step(z, step, 2, &norm) == ZERO_OK, "%s", zero_error(z));
}

static void bytes_agree(const zero *z, int place) {
    zero_row rows[24];
    uint64_t moved = 0;
    note_other_transport(&comms);
    reports_agree(z, places[place].name);
    for (size_t i = zero_report_bus(z, rows, 24); i-- > 0;)
        CHECK(rows[i].expected == rows[i].measured, "%s, %s: %llu bytes by formula (%s), %llu measured",
              places[place].name, rows[i].what, (unsigned long long)rows[i].expected, rows[i].formula,
              (unsigned long long)rows[i].measured);
    for (size_t i = zero_report_memory(z, rows, 24); i-- > 0;)
        if (rows[i].kind == ZERO_MEM_DISK) moved = rows[i].measured;
    zero_offload_info info;
    const int state = places[place].offload == ZERO_OFFLOAD_NVME && places[place].fraction > 0,
              params = places[place].params == ZERO_OFFLOAD_NVME;
    CHECK_EQ(zero_get_offload(z, &info), places[place].offload || places[place].params);
    CHECK_EQ(moved > 0, state || params);
    CHECK_EQ(*info.how_params != '\0', params);
    CHECK(info.written >= moved, "%llu bytes were written", (unsigned long long)info.written);
}

// A step that follows another one at once; before: the first one.
static void disk_agrees(const zero *z, const zero_offload_info *before) {
    zero_row rows[2];
    zero_offload_info info;
    (void)zero_get_offload(z, &info);
    const uint64_t moved[2] = { info.read - before->read, info.written - before->written };
    const size_t n = zero_report_disk(z, rows, 2);
    CHECK(n == 2 || (moved[0] == 0 && moved[1] == 0));
    for (size_t i = 0; i < n; i++)
        CHECK(rows[i].expected == moved[i], "%s: %llu bytes by formula (%s), %llu measured", rows[i].what,
              (unsigned long long)rows[i].expected, rows[i].formula, (unsigned long long)moved[i]);
}

// ---- cases ----------------------------------------------------------------------------------------------------------

static void every_place_has_the_same_bits(int stage, enum zero_optimizer_kind optimizer, double ema_decay) {
    uint64_t first[2] = { 0 }, hash[2];
    for (int place = 0; place < PLACES; place++) {
        if (!is_possible(place, stage)) continue;
        const zero_config config = config_at(place, stage, optimizer, ema_decay);
        zero *z = make_of(config);
        train(z, 0);
        if (ema_decay > 0) {
            CHECK(zero_use_ema(z, 1) == ZERO_OK, "%s", zero_error(z));
            seen = 0;
            CHECK(forward(z) == ZERO_OK && zero_use_ema(z, 0) == ZERO_OK, "%s", zero_error(z));
        }
        train(z, 1);
        hash_of(z, hash);
        if (place == DEVICE) memcpy(first, hash, sizeof hash);
        CHECK(!memcmp(first, hash, sizeof hash), "stage %d, %s: other bits than on the device", stage,
              places[place].name);
        CHECK(zero_fill(z, fill, NULL) == ZERO_OK, "%s", zero_error(z));  // begins again
        train(z, 0);
        train(z, 1);
        hash_of(z, hash);
        CHECK(!memcmp(first, hash, sizeof hash), "stage %d, %s: other bits after zero_fill", stage, places[place].name);
        zero_destroy(z);
    }
}

// Units that are dropped when they are released, and all-gathered again, with ranks that come late.
static void dropped_units_have_the_same_bits(void) {
    uint64_t first[2] = { 0 }, hash[2];
    for (int place = 0; place < PLACES; place++)
        for (int prefetch = 0; prefetch < 3; prefetch++) {
            zero_config config = config_at(place, 3, ZERO_ADAMW, 0);
            config.settings.prefetch = prefetch;
            config.settings.delay_seed = 1 + (uint64_t)place;
            zero *z = make_of(config);
            for (size_t step = 0; step < 2; step++) train(z, step);
            hash_of(z, hash);
            if (place == DEVICE && prefetch == 0) memcpy(first, hash, sizeof hash);
            CHECK(!memcmp(first, hash, sizeof hash), "%s, prefetch %d: other bits", places[place].name, prefetch);
            zero_destroy(z);
        }
}

// A unit is prefetched for an order that is not kept, and many others are all-gathered before it is used.
static void any_order_works(void) {
    for (int place = DEVICE; place < PLACES; place++) {
        if (place != DEVICE && places[place].params == ZERO_OFFLOAD_NONE) continue;
        zero *z = make_of(config_at(place, 3, ZERO_ADAMW, 0));
        for (int i = 0; i < 2 * ZERO_COMM_MAX_PENDING && !*zero_error(z); i++) {
            const size_t u = i % 2 ? 3 : 1;  // 2 comes between
            CHECK(zero_acquire_params(z, u) && zero_release_params(z, u) == ZERO_OK, "%s: %d: %s", places[place].name,
                  i, zero_error(z));
        }
        train(z, 0);
        zero_destroy(z);
    }
}

// Bytes on the device, in host memory, on the disk and on the wire.
static void bytes_are_what_the_formula_says(const struct way *way, int group, int stage, double ema_decay) {
    for (int place = 0; place < PLACES; place++) {
        if (!is_possible(place, stage)) continue;
        comms = join_groups(way, group, PATIENT);
        zero *z = make_of(config_at(place, stage, ZERO_ADAMW, ema_decay));
        zero_offload_info before = { 0 };
        for (size_t step = 0; step < 2; step++) {
            train(z, step);
            bytes_agree(z, place);
            if (step > 0) disk_agrees(z, &before);
            (void)zero_get_offload(z, &before);
        }
        zero_destroy(z);
        zero_mesh_comms_destroy(&comms);
        all_is_given_back();
    }
}

// What a step decides, the host is told: it clips, changes nothing, has factors of tensors, and leaves some out.
static void decisions_have_the_same_bits(int stage) {
    zero *z[2] = { make_of(config_at(DEVICE, stage, ZERO_ADAMW, 0.5)),
                   make_of(config_at(HOST, stage, ZERO_ADAMW, 0.5)) };
    zero_hyperparameters clips = adamw;
    clips.max_norm = 0.01f;
    for (size_t step = 0; step < 4; step++) {
        for (int i = 0; i < 2; i++) {
            zero_tensor_options o = zero_get_tensor_options(z[i], 2), frozen = zero_get_tensor_options(z[i], 3);
            o.lr_factor = 0.5f, o.decay_factor = 2, frozen.frozen = 1;
            if (step == 2)
                CHECK(zero_set_tensor_options(z[i], 2, &o) == ZERO_OK && zero_set_tensor_options(z[i], 3, &frozen) == 0,
                      "%s", zero_error(z[i]));
            CHECK(micro_batch(z[i], (size_t)data_rank, step, step == 1 ? INFINITY : 0) == ZERO_OK &&
                      zero_step(z[i], &clips) == ZERO_OK,
                  "%s", zero_error(z[i]));
            CHECK_EQ(zero_last_step(z[i]).skipped, step == 1);
        }
        equal_bits(z[0], z[1], step == 1 ? "after a step that was skipped" : "after a step");
    }
    zero_destroy(z[0]);
    zero_destroy(z[1]);
}

// Tensors are frozen and unfrozen: states are cleared wherever they are.
static void freezing_has_the_same_bits(int stage, int place) {
    zero *z[2] = { make_of(config_at(DEVICE, stage, ZERO_ADAMW, 0)), make_of(config_at(place, stage, ZERO_ADAMW, 0)) };
    for (size_t step = 0; step < 6; step++) {
        for (int i = 0; i < 2; i++) {
            zero_tensor_options o = zero_get_tensor_options(z[i], 5);
            o.frozen = step == 2 || step == 3;
            CHECK(zero_set_tensor_options(z[i], 5, &o) == ZERO_OK, "%s", zero_error(z[i]));
            o = zero_get_tensor_options(z[i], 6);  // the unit's other tensor
            o.frozen = step == 4;
            CHECK(zero_set_tensor_options(z[i], 6, &o) == ZERO_OK, "%s", zero_error(z[i]));
            train(z[i], step);
        }
        equal_bits(z[0], z[1], "after a step");
    }
    zero_destroy(z[0]);
    zero_destroy(z[1]);
}

// A unit that becomes frozen, for the only tensor of it that trains.
static void a_unit_can_be_frozen(int stage, int place) {
    zero *z[2];
    for (int i = 0; i < 2; i++) {
        z[i] = make_of(config_at(i ? place : DEVICE, stage, ZERO_ADAMW, 0));
        train(z[i], 0);
        for (int frozen = 1; frozen >= 0; frozen--)
            for (size_t t = 7; t < 9; t++) {
                zero_tensor_options o = zero_get_tensor_options(z[i], t);
                o.frozen = frozen;
                CHECK(zero_set_tensor_options(z[i], t, &o) == ZERO_OK, "%s", zero_error(z[i]));
            }
        train(z[i], 1);
    }
    equal_bits(z[0], z[1], "after a unit was frozen");
    zero_destroy(z[0]);
    zero_destroy(z[1]);
}

static float values[NUMEL];

static int keep(void *ctx, size_t tensor, size_t begin, size_t count, const float *v) {
    (void)ctx;
    memcpy(values + tensors[tensor].logical + begin, v, count * sizeof *v);
    return 0;
}

static int give(void *ctx, size_t tensor, size_t begin, size_t count, float *out) {
    (void)ctx;
    memcpy(out, values + tensors[tensor].logical + begin, count * sizeof *out);
    return 0;
}

// State goes from every place to every other one, element by element, and training goes on.
static void state_is_carried_over(int stage) {
    static const enum zero_state states[] = { ZERO_STATE_MASTER, ZERO_STATE_M, ZERO_STATE_V };
    for (int place = 0; place < PLACES; place++) {
        const int to = (place + 3) % PLACES, to_stage = comms.replicate ? stage : 1 + stage % 3;
        if (!is_possible(place, stage)) continue;
        zero *a = make_of(config_at(place, stage, ZERO_ADAMW, 0)),
             *b = make_of(config_at(is_possible(to, to_stage) ? to : DISK, to_stage, ZERO_ADAMW, 0));
        train(a, 0);
        for (size_t s = 0; s < sizeof states / sizeof *states; s++) {
            float sum[NUMEL];
            memset(values, 0, sizeof values);
            CHECK(zero_visit(a, states[s], keep, NULL) == ZERO_OK, "%s", zero_error(a));
            MPI_Allreduce(values, sum, NUMEL, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
            memcpy(values, sum, sizeof sum);
            CHECK(zero_load(b, states[s], give, NULL) == ZERO_OK, "%s", zero_error(b));
        }
        CHECK(zero_set_updates(b, zero_get_updates(a)) == ZERO_OK, "%s", zero_error(b));
        equal_bits(a, b, "after loading");
        train(a, 1);
        train(b, 1);
        equal_bits(a, b, "a step later");
        zero_destroy(a);
        zero_destroy(b);
    }
}

// ---- units of several parts -----------------------------------------------------------------------------------------

enum { LARGE = 5 * ZERO_OFFLOAD_PART / 2 + 1001 };

static int fill_large(void *ctx, size_t tensor, size_t begin, size_t count, float *out) {
    (void)ctx, (void)tensor;
    for (size_t i = 0; i < count; i++) out[i] = initial(begin + i);
    return 0;
}

static void train_large(zero *z, float g) {
    float *values_of = malloc(((size_t)LARGE + 64 * (size_t)ranks) * sizeof *values_of);
    CHECK(zero_begin_step(z) == ZERO_OK, "%s", zero_error(z));
    for (size_t u = 2; u-- > 0;) {
        const size_t n = zero_layout_unit_numel(zero_get_layout(z), u);
        memset(values_of, 0, n * sizeof *values_of);
        for (size_t i = 0; i < LARGE / (1 + u); i++) values_of[i] = initial(i * 3) * g;
        void *device = zero_acquire_grads(z, u, 0);
        REQUIRE(device != NULL, "%s", zero_error(z));
        device_write(device, values_of, n * sizeof *values_of);
        CHECK(zero_release_grads(z, u) == ZERO_OK, "%s", zero_error(z));
    }
    CHECK(zero_finish_backward(z) == ZERO_OK && zero_step(z, &adamw) == ZERO_OK, "%s", zero_error(z));
    free(values_of);
}

static void large_units_are_cut_into_parts(int stage) {
    static const zero_tensor list[] = { { "large", LARGE, 0, 0, 1 }, { "half", LARGE / 2, 1, LARGE, 1 } };
    uint64_t first[2] = { 0 }, hash[2];
    kind = F32;
    for (int place = 0; place < PLACES; place++) {
        if (!is_possible(place, stage)) continue;
        zero_config config = config_at(place, stage, ZERO_ADAMW, 0);
        config.tensors = list;
        config.num_tensors = 2;
        config.order_length = 0;
        zero *z = NULL;
        CHECK(zero_create(&z, &config) == ZERO_OK && zero_fill(z, fill_large, NULL) == ZERO_OK, "%s", zero_error(z));
        for (int step = 0; step < 2; step++) train_large(z, 1 + (float)step);
        hash_of(z, hash);
        if (place == DEVICE) memcpy(first, hash, sizeof hash);
        CHECK(!memcmp(first, hash, sizeof hash), "stage %d, %s: other bits", stage, places[place].name);
        zero_destroy(z);
    }
}

static void a_model_may_be_empty(int stage) {
    static const zero_tensor nothing = { "nothing", 0, 0, 0, 1 };
    for (int place = 0; place < PLACES; place++) {
        if (!is_possible(place, stage)) continue;
        zero_config config = config_at(place, stage, ZERO_ADAMW, 0);
        config.tensors = &nothing;
        config.num_tensors = 1;
        config.order_length = 0;
        zero *z = NULL;
        CHECK(zero_create(&z, &config) == ZERO_OK && zero_acquire_params(z, 0) && !zero_release_params(z, 0) &&
                  zero_acquire_grads(z, 0, 0) && !zero_release_grads(z, 0) && !zero_finish_backward(z) &&
                  !zero_step(z, &adamw),
              "stage %d, %s: %s", stage, places[place].name, zero_error(z));
        zero_destroy(z);
    }
}

// ---- failures -------------------------------------------------------------------------------------------------------

static void truncate_files(void) {
    char link[300], target[300];
    DIR *d = opendir("/proc/self/fd");
    for (struct dirent *e; d && (e = readdir(d)) != NULL;) {
        snprintf(link, sizeof link, "/proc/self/fd/%s", e->d_name);
        const ssize_t length = readlink(link, target, sizeof target - 1);
        target[length > 0 ? length : 0] = '\0';
        if (strstr(target, strrchr(directory, '/'))) CHECK(truncate(link, 0) == 0, "truncate: %s", strerror(errno));
    }
    if (d) closedir(d);
}

// On the last rank alone, after a step: all ranks learn of it, and of where it was.
static void a_failing_disk_fails_all_ranks(int stage) {
    zero *z = make_of(config_at(DISK, stage, ZERO_ADAMW, 0));
    double norm;
    char where[32];
    int e = ZERO_OK;
    snprintf(where, sizeof where, "rank %d of %d: ", zero_comm_size(comms.shard) - 1, zero_comm_size(comms.shard));
    train(z, 0);
    if (rank == ranks - 1) truncate_files();
    for (size_t step = 1; step < 3 && !e; step++) e = one_step(z, step, 2, &norm);
    CHECK(e == ZERO_ERR_DISK && strstr(zero_error(z), directory) && strstr(zero_error(z), "something has truncated it"),
          "%d: %s", e, zero_error(z));
    CHECK(strstr(zero_error(z), where) == zero_error(z), "not \"%s\": %s", where, zero_error(z));
    CHECK_EQ(zero_discard(z), ZERO_ERR_DISK);
    CHECK_EQ(zero_step(z, &adamw), ZERO_ERR_DISK);
    zero_destroy(z);
}

// Parameters are read between collectives, where nobody is asked whether he has failed: on all ranks.
static void parameters_that_cannot_be_read_fail(void) {
    zero *z = make_of(config_at(PARAMS_ON_DISK, 3, ZERO_ADAMW, 0));
    double norm;
    train(z, 0);
    truncate_files();
    MPI_Barrier(MPI_COMM_WORLD);
    const int e = one_step(z, 1, 2, &norm);
    CHECK(e == ZERO_ERR_DISK && strstr(zero_error(z), directory) && strstr(zero_error(z), "something has truncated it"),
          "%d: %s", e, zero_error(z));
    CHECK_EQ(zero_discard(z), ZERO_ERR_DISK);
    zero_destroy(z);
}

static void what_cannot_be_created_is_told_to_all(void) {
    zero_config config = config_at(DISK, 2, ZERO_ADAMW, 0);
    char err[512];
    if (rank == ranks - 1) config.offload_dir = "/nonexistent/directory";
    CHECK(!zero_new(&config, err, sizeof err) && strstr(err, "/nonexistent/directory: no file for"), "%s", err);
    config.offload_dir = NULL;
    CHECK(!zero_new(&config, err, sizeof err) && strstr(err, "set offload_dir"), "%s", err);
    config.settings.offload_fraction = 1.01;
    CHECK(!zero_new(&config, err, sizeof err) && strstr(err, "settings.offload_fraction is 1.01"), "%s", err);
    config.settings.offload_fraction = rank == 0 ? 0.25 : 0.5;
    config.offload_dir = directory;
    zero *z = zero_new(&config, err, sizeof err);
    CHECK(ranks == 1 ? z != NULL : !z && strstr(err, "settings.offload_fraction is 0."), "%s", err);
    zero_destroy(z);
    config = config_at(PARAMS_ON_DISK, 3, ZERO_ADAMW, 0);
    config.offload_params_dir = rank == ranks - 1 ? "/nonexistent/directory" : directory;
    CHECK(!zero_new(&config, err, sizeof err) && strstr(err, "/nonexistent/directory: no file for"), "%s", err);
    config.offload_params_dir = NULL;
    CHECK(!zero_new(&config, err, sizeof err) && strstr(err, "set offload_params_dir"), "%s", err);
    config.settings.stage = 2;
    CHECK(!zero_new(&config, err, sizeof err) && strstr(err, "settings.offload_params: stage 2 does not shard"), "%s",
          err);
}

// ---- main -----------------------------------------------------------------------------------------------------------

static void cases_of_a_way(const struct way *way, int grouped) {
    static const struct {
        const char *name;
        enum zero_optimizer_kind kind;
        double ema_decay;
    } optimizers[] = { { "AdamW", ZERO_ADAMW, 0 }, { "AdamW, average", ZERO_ADAMW, 0.8 }, { "Lion", ZERO_LION, 0 } };
    char name[64];
    snprintf(name, sizeof name, "%s%s", way->name, grouped ? ", shard groups" : "");
    const int group = !grouped ? 0 : ranks % 2 ? 1 : ranks / 2;
    for (kind = F32; kind < KINDS; kind++)
        CASE("bytes are what the formula says: %s: %s", kind_names[kind], name)
            for (int stage = grouped; stage < STAGES; stage++)
                bytes_are_what_the_formula_says(way, group, stage, kind == BF16 ? 0.5 : 0);
    comms = join_groups(way, group, PATIENT);
    for (kind = F32; kind < KINDS; kind++) {
        for (size_t i = 0; i < sizeof optimizers / sizeof *optimizers; i++)
            CASE("every place has the same bits: %s, %s: %s", kind_names[kind], optimizers[i].name, name)
                for (int stage = grouped; stage < STAGES; stage++)
                    every_place_has_the_same_bits(stage, optimizers[i].kind, optimizers[i].ema_decay);
        CASE("decisions have the same bits: %s: %s", kind_names[kind], name)
            for (int stage = grouped; stage < STAGES; stage++) decisions_have_the_same_bits(stage);
        if (kind == BF16_NO_MASTER) continue;  // what is loaded is rounded
        CASE("freezing has the same bits: %s: %s", kind_names[kind], name)
            for (int stage = 1; stage < STAGES; stage++) {
                freezing_has_the_same_bits(stage, stage < 3 ? DISK : ALL_ON_DISK);
                a_unit_can_be_frozen(stage, stage < 3 ? DISK : PARAMS_ON_DISK);
            }
        CASE("state is carried over: %s: %s", kind_names[kind], name)
            for (int stage = 1; stage < STAGES; stage++) state_is_carried_over(stage);
    }
    kind = BF16;
    CASE("dropped units have the same bits: %s", name) dropped_units_have_the_same_bits();
    CASE("units are acquired in another order: %s", name) any_order_works();
    CASE("a failing disk fails all ranks: %s", name)
        for (int stage = 1; stage < STAGES; stage++) a_failing_disk_fails_all_ranks(stage);
    CASE("a failing disk of parameters: %s", name) parameters_that_cannot_be_read_fail();
    CASE("what cannot be created is told to all: %s", name) what_cannot_be_created_is_told_to_all();
    CASE("large units are cut into parts: %s", name)
        for (int stage = 1; stage < STAGES; stage += 2) large_units_are_cut_into_parts(stage);
    CASE("a model may be empty: %s", name)
        for (int stage = grouped; stage < STAGES; stage++) a_model_may_be_empty(stage);
    zero_mesh_comms_destroy(&comms);
    all_is_given_back();
}

int main(int argc, char **argv) {
    start_engines(&argc, argv);
    if (rank == 0) REQUIRE(mkdtemp(directory) != NULL, "%s: %s", directory, strerror(errno));
    MPI_Bcast(directory, sizeof directory, MPI_BYTE, 0, MPI_COMM_WORLD);
    static const int used[] = { SHARED_MEMORY, NCCL };
    for (size_t w = 0; w < sizeof used / sizeof *used; w++)
        if (way_runs_here(&ways[used[w]])) cases_of_a_way(&ways[used[w]], 0);
    if (ranks > 1) cases_of_a_way(&ways[SHARED_MEMORY], 1);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) rmdir(directory);
    return finish_world();
}
