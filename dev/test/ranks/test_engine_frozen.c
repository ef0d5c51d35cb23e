// test_engine_frozen.c: frozen units cost nothing, and change nothing but themselves; in every stage, over every
// transport and with shard groups. Run under mpirun.
//
// The other side of the comparisons is an engine that has all tensors in one unit: there a frozen tensor is one in a
// trained unit, which test_engine_step compares with double precision.
#include <malloc.h>
#include <stdio.h>
#include <sys/resource.h>
#include "test/ranks/toy_model.h"

static zero_mesh_comms comms;
static int grouped;  // shard groups of half the ranks, or of one

static void connect(const struct way *way) {
    comms = join_groups(way, !grouped ? 0 : ranks % 2 ? 1 : ranks / 2, PATIENT);
    note_other_transport(&comms);
}

static void disconnect(void) {
    zero_mesh_comms_destroy(&comms);
    all_is_given_back();
}

static enum zero_optimizer_kind optimizer;
static enum zero_reduction reduction;

static zero *make_with(const zero_tensor *list, size_t n, int stage) {
    zero_config config = config_of(comms.shard, stage);
    config.replicate_comm = comms.replicate;
    config.tensors = list;
    config.num_tensors = n;
    config.settings.optimizer = optimizer;
    config.settings.reduction = reduction;
    if (list[n - 1].unit + 1 < UNITS) config.order_length = 1;
    return make_of(config);
}

// The toy model with the tensors of some units frozen: bit u of `units`.
static void model(zero_tensor *list, unsigned units, int one_unit) {
    for (size_t t = 0; t < TENSORS; t++) {
        list[t] = tensors[t];
        list[t].frozen = units >> tensors[t].unit & 1;
        if (one_unit) list[t].unit = 0;
    }
}

static zero *make_frozen(int stage, unsigned units, int one_unit) {
    zero_tensor list[TENSORS];
    model(list, units, one_unit);
    return make_with(list, TENSORS, stage);
}

static int set_frozen(zero *z, size_t unit, int frozen) {
    int e = ZERO_OK;
    for (size_t t = 0; t < TENSORS && !e; t++) {
        zero_tensor_options o = zero_get_tensor_options(z, t);
        if (tensors[t].unit != unit) continue;
        o.frozen = frozen;
        e = zero_set_tensor_options(z, t, &o);
    }
    return e;
}

// One micro-batch of a loop that acquires all parameters, and the gradients of all units that have some.
static void one_micro_batch(zero *z, size_t j, size_t step) {
    const zero_layout *l = zero_get_layout(z);
    const size_t order[] = { 0, 1, 2, 3, 4, 0, 4, 3, 2, 1, 0 }, micro_batch = zero_get_micro_batches(z);
    for (size_t i = 0; i < (l->num_units > 1 ? sizeof order / sizeof *order : 1); i++)
        CHECK(zero_acquire_params(z, order[i]) && zero_release_params(z, order[i]) == ZERO_OK, "%s", zero_error(z));
    for (size_t u = l->num_units; u-- > 0;) {
        if (zero_is_frozen(z, u)) continue;
        const size_t n = zero_layout_unit_numel(l, u);
        void *device = zero_acquire_grads(z, u, micro_batch);
        REQUIRE(device, "%s", zero_error(z));
        char *g = calloc(n, element());
        for (size_t t = l->unit_first[u]; t < l->unit_first[u + 1]; t++)
            for (size_t i = 0; i < l->tensors[t].numel; i++)
                put(g, l->tensor_offset[t] + i, gradient(l->tensors[t].logical + i, j, step));
        device_write(device, g, n * element());
        free(g);
        CHECK(zero_release_grads(z, u) == ZERO_OK, "%s", zero_error(z));
    }
    CHECK(zero_finish_backward(z) == ZERO_OK, "%s", zero_error(z));
}

static const zero_hyperparameters h = {
    .lr = 0.01f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f, .max_norm = 1
};

static void train(zero *z, size_t step) {
    enum { G = 3 };
    CHECK(zero_begin_step(z) == ZERO_OK, "%s", zero_error(z));
    for (size_t g = 0; g < G; g++) one_micro_batch(z, g * (size_t)ranks + (size_t)rank, step);
    CHECK(zero_step(z, &h) == ZERO_OK, "%s", zero_error(z));
}

static void equal(zero *a, zero *b, const char *when) {
    uint64_t hash[2][2] = { { 0 } };
    CHECK(zero_hash(a, &hash[0][0], &hash[0][1]) == ZERO_OK && zero_hash(b, &hash[1][0], &hash[1][1]) == ZERO_OK,
          "hash: %s%s", zero_error(a), zero_error(b));
    CHECK(!memcmp(hash[0], hash[1], sizeof hash[0]), "%s: frozen units and frozen tensors have other bits", when);
}

static uint64_t wire_of(const zero *z, enum zero_wire kind) {
    zero_row rows[16];
    const size_t n = zero_report_wire(z, rows, 16);
    for (size_t i = 0; i < n; i++)
        if (rows[i].kind == (int)kind) return rows[i].measured;
    return 0;
}

// What is there beside parameters, in elements of trained units, by the definition.
static void frozen_units_have_nothing(const zero *z, int stage) {
    const zero_layout *l = zero_get_layout(z);
    const size_t others = l->ranks - 1, elem = element();
    size_t trained = 0, largest = 0;
    for (size_t u = 0; u < l->num_units; u++) {
        const size_t n = zero_is_frozen(z, u) ? 0 : zero_layout_unit_numel(l, u);
        trained += n;
        if (n > largest) largest = n;
    }
    const zero_comm_shape shape = zero_comm_get_shape(comms.shard);
    CHECK_EQ(memory.live[ZERO_MEM_STATE], 4 * trained / (stage ? l->ranks : 1));
    CHECK_EQ(memory.live[ZERO_MEM_STATE_2], 4 * trained / (stage ? l->ranks : 1));
    CHECK_EQ(memory.live[ZERO_MEM_GRADS], stage > 1 ? 0 : zero_comm_alloc_bytes(&shape, trained * elem));
    if (!comms.replicate) CHECK(memory.live[ZERO_MEM_GRAD_SHARDS] % (4 * trained / l->ranks + !trained) == 0);
    if (stage == 2 && !comms.replicate) CHECK(memory.live[ZERO_MEM_UNIT_BUFFERS] <= 3 * (largest * elem + 4096));
    CHECK_EQ(wire_of(z, ZERO_WIRE_GRADS), trained / l->ranks * others * (3 * elem + (stage ? 0 : 4)));
    if (stage == 1 || stage == 2) CHECK_EQ(wire_of(z, ZERO_WIRE_PARAMS), trained / l->ranks * others * elem);
    if (stage == 3 && others) CHECK(wire_of(z, ZERO_WIRE_PARAMS) >= l->numel_padded / l->ranks * others * elem);
}

// One after the other: frozen from the beginning (the embedding; two of five; all), frozen later, and no longer.
static void changes(int stage, uint64_t first[2]) {
    static const unsigned sets[] = { 1, 1 | 8, 8 | 4, 31, 2, 0 };
    zero *b = make_frozen(stage, sets[0], 1);
    uint64_t hash[2] = { 0 };
    train(b, 0);
    zero *a = make_frozen(stage, sets[0], 0);
    train(a, 0);
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        for (size_t u = 0; u < UNITS && i; u++)
            CHECK(set_frozen(a, u, sets[i] >> u & 1) == ZERO_OK && set_frozen(b, u, sets[i] >> u & 1) == ZERO_OK,
                  "%s%s", zero_error(a), zero_error(b));
        for (size_t step = 3 * i + 1; step < 3 * i + 3; step++) {
            train(a, step);
            train(b, step);
            CHECK(zero_last_step(a).norm == zero_last_step(b).norm && (zero_last_step(a).norm > 0) == (sets[i] != 31),
                  "norms %g and %g", zero_last_step(a).norm, zero_last_step(b).norm);
            equal(a, b, "after a step");
        }
        for (size_t u = 0; u < UNITS; u++) CHECK(zero_is_frozen(a, u) == (int)(sets[i] >> u & 1));
    }
    CHECK(zero_hash(a, &hash[0], &hash[1]) == ZERO_OK, "%s", zero_error(a));
    if (!first[0]) memcpy(first, hash, sizeof hash);
    CHECK(!memcmp(hash, first, sizeof hash), "stage %d has other bits", stage);
    zero_destroy(a);
    zero_destroy(b);
}

static void costs_what_the_formulas_say(const struct way *way, int stage) {
    static const unsigned sets[] = { 1, 2 | 4 | 8, 31, 30, 0 };
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        disconnect();
        connect(way);  // the transport keeps the scratch of the engines before
        zero *z = make_frozen(stage, sets[i], 0);
        for (size_t step = 0; step < 2; step++) {
            train(z, step);
            reports_agree(z, "frozen from the beginning");
            frozen_units_have_nothing(z, stage);
        }
        CHECK(set_frozen(z, 1, 1) == ZERO_OK && set_frozen(z, 4, 0) == ZERO_OK, "%s", zero_error(z));
        for (size_t step = 2; step < 4; step++) {
            train(z, step);
            reports_agree(z, "after a change");
            frozen_units_have_nothing(z, stage);
        }
        zero_destroy(z);
    }
}

// States of frozen units: visits see zeros, loads leave them out; nothing of what an unfrozen unit had comes back.
static float most;
static int largest_of_unit_1(void *ctx, size_t tensor, size_t begin, size_t count, const float *values) {
    (void)ctx, (void)begin;
    for (size_t i = 0; i < count && tensors[tensor].unit == 1; i++)
        if (fabsf(values[i]) > most) most = fabsf(values[i]);
    return 0;
}
static int ones(void *ctx, size_t tensor, size_t begin, size_t count, float *out) {
    (void)ctx, (void)begin;
    CHECK(tensors[tensor].unit != 1, "tensor %zu of the frozen unit is asked for", tensor);
    for (size_t i = 0; i < count; i++) out[i] = 1;
    return 0;
}

static float largest_m(zero *z) {
    float mine, all = 0;
    most = 0;
    CHECK(zero_visit(z, ZERO_STATE_M, largest_of_unit_1, NULL) == ZERO_OK, "%s", zero_error(z));
    mine = most;
    MPI_Allreduce(&mine, &all, 1, MPI_FLOAT, MPI_MAX, MPI_COMM_WORLD);
    return all;
}

static void states_are_zero(int stage) {
    zero *z = make_frozen(stage, 0, 0);
    train(z, 0);
    CHECK(largest_m(z) > 0);
    CHECK(set_frozen(z, 1, 1) == ZERO_OK, "%s", zero_error(z));
    CHECK(zero_load(z, ZERO_STATE_M, ones, NULL) == ZERO_OK, "%s", zero_error(z));
    CHECK(largest_m(z) == 0);
    one_micro_batch(z, (size_t)rank, 1);
    CHECK(zero_visit(z, ZERO_STATE_GRADS, largest_of_unit_1, NULL) == ZERO_OK && most == 0, "%s", zero_error(z));
    double norms[TENSORS], norm = 0, squares = 0;
    CHECK(zero_tensor_norms(z, norms) == ZERO_OK && zero_grad_norm(z, &norm) == ZERO_OK, "%s", zero_error(z));
    for (size_t t = 0; t < TENSORS; t++) {
        CHECK((norms[t] == 0) == (tensors[t].unit == 1 || tensors[t].numel == 0), "tensor %zu has norm %g", t,
              norms[t]);
        squares += norms[t] * norms[t];
    }
    CHECK(fabs(sqrt(squares) - norm) < 1e-12 * norm, "%g, in all %g", sqrt(squares), norm);
    CHECK(zero_discard(z) == ZERO_OK && set_frozen(z, 1, 0) == ZERO_OK, "%s", zero_error(z));
    CHECK(largest_m(z) == 0);
    zero_destroy(z);
}

static void gradients_are_refused(int stage) {
    zero *z = make_frozen(stage, 2, 0);
    CHECK(!zero_acquire_grads(z, 1, 0) && strstr(zero_error(z), "all its tensors are frozen"), "%s", zero_error(z));
    CHECK(zero_discard(z) == ZERO_OK, "%s", zero_error(z));
    train(z, 0);
    zero_destroy(z);
}

// The library's own reduce-scatter: the same sums, up to rounding.
static void norms_of_the_library_agree(int stage) {
    zero *a = make_frozen(stage, 2 | 8, 0);
    reduction = ZERO_REDUCE_LIBRARY;
    zero *b = make_frozen(stage, 2 | 8, 0);
    reduction = ZERO_REDUCE_EXACT;
    for (size_t step = 0; step < 2; step++) {
        double norms[2][TENSORS];
        for (int i = 0; i < 2; i++) {
            for (size_t g = 0; g < 3; g++) one_micro_batch(i ? b : a, g * (size_t)ranks + (size_t)rank, step);
            CHECK(zero_tensor_norms(i ? b : a, norms[i]) == ZERO_OK && zero_step(i ? b : a, &h) == ZERO_OK, "%s%s",
                  zero_error(a), zero_error(b));
        }
        for (size_t t = 0; t < TENSORS; t++)
            CHECK(fabs(norms[0][t] - norms[1][t]) <= 1e-6 * norms[0][t], "tensor %zu: norms %g and %g", t, norms[0][t],
                  norms[1][t]);
    }
    zero_destroy(a);
    zero_destroy(b);
}

// The last rank has no memory for the states of what is unfrozen: all ranks learn it.
static void memory_runs_out_on_one_rank(int stage) {
    static const zero_tensor large[] = { { "small", 64, 0, 0, 1 },
                                         { .name = "large", .numel = 4 << 20, .unit = 1, .logical = 64, .frozen = 1 } };
    struct rlimit limit, all;
    long pages = 0;
    mallopt(M_MMAP_THRESHOLD, 1 << 20);  // what is freed is given back, so that the limit counts
    zero *z = make_with(large, 2, stage);
    zero_tensor_options o = zero_get_tensor_options(z, 1);
    o.frozen = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    REQUIRE(f && fscanf(f, "%ld", &pages) == 1 && !getrlimit(RLIMIT_AS, &all));
    fclose(f);
    limit = all;
    limit.rlim_cur = (rlim_t)pages * 4096 + (2 << 20);
    if (rank == ranks - 1) setrlimit(RLIMIT_AS, &limit);
    const int e = zero_set_tensor_options(z, 1, &o);
    setrlimit(RLIMIT_AS, &all);
    CHECK(e == ZERO_ERR_MEMORY && strstr(zero_error(z), "memory"), "returns %d: %s", e, zero_error(z));
    zero_destroy(z);
}

static void cases_of_a_way(const struct way *way) {
    char name[64];
    snprintf(name, sizeof name, "%s%s", way->name, grouped ? ", shard groups" : "");
    connect(way);
    for (kind = F32; kind <= BF16; kind++)
        for (int o = 0; o < (way == ways ? ZERO_NUM_OPTIMIZERS : 1); o++)
            CASE("%s, optimizer %d: units are frozen and no longer, same bits as tensors: %s", kind_names[kind], o,
                 name) {
                uint64_t first[2] = { 0 };
                optimizer = (enum zero_optimizer_kind)o;
                for (int stage = grouped; stage < STAGES; stage++) changes(stage, first);
                optimizer = ZERO_ADAMW;
            }
    for (kind = F32; kind <= BF16; kind++)
        CASE("%s: frozen units cost what the formulas say: %s", kind_names[kind], name)
            for (int stage = grouped; stage < STAGES; stage++) costs_what_the_formulas_say(way, stage);
    kind = F32;
    CASE("frozen units have states of zero: %s", name)
        for (int stage = grouped; stage < STAGES; stage++) states_are_zero(stage);
    CASE("gradients of frozen units are refused: %s", name)
        for (int stage = grouped; stage < STAGES; stage++) gradients_are_refused(stage);
    if (!grouped)
        CASE("frozen units with the library's reduction: %s", name)
            for (int stage = 0; stage < STAGES; stage++) norms_of_the_library_agree(stage);
    disconnect();
}

int main(int argc, char **argv) {
    start_engines(&argc, argv);
    for (int w = 0; w < MAIN_WAYS; w++)
        if (way_runs_here(&ways[main_ways[w]]))
            for (grouped = 0; grouped <= (main_ways[w] == SHARED_MEMORY || main_ways[w] == NCCL); grouped++)
                cases_of_a_way(&ways[main_ways[w]]);
    grouped = 0;
    connect(&ways[SHARED_MEMORY]);
    if (MEMORY_CAN_BE_LIMITED)
        CASE("memory that runs out when a unit is unfrozen is told to all ranks")
            for (int stage = 0; stage < STAGES; stage++) memory_runs_out_on_one_rank(stage);
    disconnect();
    return finish_world();
}
