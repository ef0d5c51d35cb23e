// test_engine_step.c: what a loop may leave to the engine in a step: the norm, clipping, skipping, the order of
// micro-batches, their weights; in every stage and over every transport. Run under mpirun.
#include <stdio.h>
#include "test/ranks/toy_model.h"

static zero *make_with(zero_comm *c, int stage, enum zero_optimizer_kind optimizer) {
    zero_config config = config_of(c, stage);
    config.settings.optimizer = optimizer;
    return make_of(config);
}

// The gradient of micro-batch j, times a weight, of one unit.
static void weighted_unit(zero *z, size_t u, size_t g, size_t step, float weight) {
    const size_t n = zero_layout_unit_numel(zero_get_layout(z), u), j = g * (size_t)ranks + (size_t)rank;
    void *device = zero_acquire_grads(z, u, g);
    REQUIRE(device, "%s", zero_error(z));
    float *x = copy_of(device, n, sizeof *x);
    for (size_t t = 0; t < TENSORS; t++)
        if (tensors[t].unit == u)
            for (size_t i = 0; i < tensors[t].numel; i++)
                x[zero_tensor_offset(z, t) + i] = weight * gradient(tensors[t].logical + i, j, step);
    device_write(device, x, n * sizeof *x);
    free(x);
    CHECK(zero_release_grads(z, u) == ZERO_OK, "%s", zero_error(z));
}

enum { G = 3, STEPS = 3 };

// G micro-batches, with weights w[g] or all 1.
static void backward(zero *z, size_t step, const float *w) {
    for (size_t g = 0; g < G; g++) {
        for (size_t u = UNITS; u-- > 0;) weighted_unit(z, u, g, step, w ? w[g] : 1);
        CHECK(zero_finish_backward(z) == ZERO_OK, "%s", zero_error(z));
    }
}

static void equal_state(zero *a, zero *b) {
    uint64_t hash[2][2] = { { 0 } };
    CHECK(zero_hash(a, &hash[0][0], &hash[0][1]) == ZERO_OK && zero_hash(b, &hash[1][0], &hash[1][1]) == ZERO_OK,
          "hash: %s%s", zero_error(a), zero_error(b));
    CHECK_BYTES(hash[0], hash[1], sizeof hash[0]);
}

// All micro-batches of a unit in a row, as a loop does that goes layer by layer.
static void units_may_come_one_by_one(zero_comm *c, int stage) {
    zero *a = make(c, stage), *b = make(c, stage);
    for (size_t s = 0; s < STEPS; s++) {
        backward(a, s, NULL);
        for (size_t u = UNITS; u-- > 0;)
            for (size_t g = 0; g < G; g++) weighted_unit(b, u, g, s, 1);
        CHECK(zero_finish_backward(b) == ZERO_OK && zero_get_micro_batches(b) == G, "%s", zero_error(b));
        CHECK(zero_step(a, &adamw) == ZERO_OK && zero_step(b, &adamw) == ZERO_OK, "%s%s", zero_error(a), zero_error(b));
    }
    equal_state(a, b);
    zero_destroy(a);
    zero_destroy(b);
}

// Weights that are all 4 change nothing but the sum, by a power of two: the bits are those of weights of 1.
static void weights_divide_the_sum(zero_comm *c, int stage) {
    static const float four[G] = { 4, 4, 4 }, unequal[G] = { 1, 2, 5 };
    zero *a = make(c, stage), *b = make(c, stage);
    double norm[2];
    backward(a, 0, NULL);
    backward(b, 0, four);
    CHECK(zero_set_total_weight(b, 4.0 * G * ranks) == ZERO_OK && zero_grad_norm(a, &norm[0]) == ZERO_OK &&
              zero_grad_norm(b, &norm[1]) == ZERO_OK && norm[0] == norm[1],
          "norms %.17g and %.17g %s%s", norm[0], norm[1], zero_error(a), zero_error(b));
    CHECK(zero_step(a, &adamw) == ZERO_OK && zero_step(b, &adamw) == ZERO_OK, "%s%s", zero_error(a), zero_error(b));
    equal_state(a, b);

    backward(b, 1, unequal);  // the next step divides by its own weights
    CHECK(zero_set_total_weight(b, 8.0 * ranks) == ZERO_OK && zero_grad_norm(b, &norm[1]) == ZERO_OK, "%s",
          zero_error(b));
    double squares = 0;
    for (size_t t = 0; t < TENSORS; t++)
        for (size_t i = 0; i < tensors[t].numel; i++) {
            double x = 0;
            for (size_t j = 0; j < G * (size_t)ranks; j++)
                x += unequal[j / (size_t)ranks] * gradient(tensors[t].logical + i, j, 1);
            squares += x * x;
        }
    const double want = sqrt(squares) / (8.0 * ranks);
    CHECK(fabs(norm[1] - want) <= 1e-6 * want, "the norm is %.9g, not %.9g", norm[1], want);
    zero_destroy(a);
    zero_destroy(b);
}

// The norm need not be read before the step. That the clipped update is right is test_gpt2_zero's to show.
static void a_step_clips_by_itself(zero_comm *c, int stage) {
    zero *a = make(c, stage), *b = make(c, stage);
    zero_hyperparameters h = adamw;
    double norm;
    backward(a, 0, NULL);
    CHECK(zero_grad_norm(a, &norm) == ZERO_OK, "%s", zero_error(a));
    backward(b, 0, NULL);
    h.max_norm = (float)(norm / 2);
    const float scale = (float)(h.max_norm / norm);
    CHECK(zero_step(b, &h) == ZERO_OK && zero_last_step(b).norm == norm && zero_last_step(b).scale == scale &&
              !zero_last_step(b).skipped && zero_get_updates(b) == 1,
          "norm %g, scale %g %s", zero_last_step(b).norm, (double)zero_last_step(b).scale, zero_error(b));
    h.max_norm = (float)(norm * 100);  // above the norm: nothing is clipped
    backward(b, 1, NULL);
    CHECK(zero_step(b, &h) == ZERO_OK && zero_last_step(b).scale == 1, "%s", zero_error(b));
    zero_destroy(a);
    zero_destroy(b);
}

// A gradient with a NaN on one rank: all skip the step, nothing is changed, and it is no update.
static void a_step_skips_what_is_not_finite(zero_comm *c, int stage) {
    zero *a = make(c, stage), *b = make(c, stage);
    uint64_t before[2], after[2];
    CHECK(zero_hash(a, &before[0], &before[1]) == ZERO_OK);
    CHECK(micro_batch(a, (size_t)rank, 0, NAN) == ZERO_OK && zero_step(a, &adamw) == ZERO_OK, "%s", zero_error(a));
    CHECK(zero_last_step(a).skipped && isnan(zero_last_step(a).norm) && zero_get_updates(a) == 0);
    CHECK(zero_hash(a, &after[0], &after[1]) == ZERO_OK, "%s", zero_error(a));
    CHECK_BYTES(before, after, sizeof before);
    backward(a, 1, NULL);
    backward(b, 1, NULL);
    CHECK(zero_step(a, &adamw) == ZERO_OK && zero_step(b, &adamw) == ZERO_OK && !zero_last_step(a).skipped, "%s%s",
          zero_error(a), zero_error(b));
    equal_state(a, b);
    zero_destroy(a);
    zero_destroy(b);
}

// ---- optimizers and options of tensors, beside double precision -----------------------------------------------------

enum { ALL_STEPS = 5, THAW = 2 };  // before this step a tensor is unfrozen
static double weight[NUMEL], state[2][NUMEL];
static size_t unsure;  // elements whose Lion step may have either sign

static void reference_element(enum zero_optimizer_kind kind, size_t k, double g, double lr, double decay, double t) {
    const zero_hyperparameters *h = &adamw;
    double *w = &weight[k], *m = &state[0][k], *v = &state[1][k], c;
    switch (kind) {
    case ZERO_SGD:
        *m = h->beta1 * *m + g + decay * *w;
        *w -= lr * *m;
        break;
    case ZERO_LION:
        c = h->beta1 * *m + (1 - (double)h->beta1) * g;
        *m = h->beta2 * *m + (1 - (double)h->beta2) * g;
        *w -= lr * ((c > 0) - (c < 0) + decay * *w);
        if (c != 0 && fabs(c) < 1e-7) *w = NAN, unsure++;
        break;
    default:
        *m = h->beta1 * *m + (1 - (double)h->beta1) * g;
        *v = h->beta2 * *v + (1 - (double)h->beta2) * g * g;
        *w -= lr * (*m / (1 - pow(h->beta1, t)) / (sqrt(*v / (1 - pow(h->beta2, t))) + h->eps) + decay * *w);
    }
}

// The norm of the step's gradients, and the update. options: of each tensor.
static double reference_step(enum zero_optimizer_kind kind, size_t s, const zero_tensor_options *options) {
    double squares = 0;
    for (size_t t = 0; t < TENSORS; t++)
        for (size_t i = 0; i < tensors[t].numel && !options[t].frozen; i++) {
            double g = 0;
            for (size_t j = 0; j < (size_t)ranks; j++) g += gradient(tensors[t].logical + i, j, s) / ranks;
            squares += g * g;
            reference_element(kind, tensors[t].logical + i, g, adamw.lr * (double)options[t].lr_factor,
                              adamw.weight_decay * (double)options[t].decay_factor,
                              (double)(s + 1 - options[t].first_update));
        }
    return sqrt(squares);
}

static double worst;
static int compare(void *ctx, size_t tensor, size_t begin, size_t count, const float *values) {
    (void)ctx;
    for (size_t i = 0; i < count; i++) {
        const double want = weight[tensors[tensor].logical + begin + i], off = fabs(values[i] - want);
        if (off > worst) worst = off;  // not for a NaN
    }
    return 0;
}

// In every stage the same bits, near those of double precision; with options: one tensor is frozen at first, another
// has factors of its own.
static void optimizers_are_right(zero_comm *c, enum zero_optimizer_kind kind, int with_options) {
    uint64_t hash[2], first[2] = { 0 };
    for (int stage = 0; stage <= 3; stage++) {
        zero *z = make_with(c, stage, kind);
        zero_tensor_options options[TENSORS];
        for (size_t t = 0; t < TENSORS; t++) {
            options[t] = zero_get_tensor_options(z, t);
            CHECK(options[t].lr_factor == 1 && options[t].decay_factor == (float)tensors[t].decay &&
                  !options[t].frozen);
            for (size_t i = 0; i < tensors[t].numel; i++)
                weight[tensors[t].logical + i] = initial(tensors[t].logical + i);
        }
        memset(state, 0, sizeof state);
        unsure = 0;
        worst = 0;
        if (with_options) {
            options[0].frozen = 1;  // the embedding, whose shard some ranks have, and others not
            options[2].lr_factor = 0.25f, options[2].decay_factor = 3;
            CHECK(zero_set_tensor_options(z, 0, &options[0]) == ZERO_OK &&
                      zero_set_tensor_options(z, 2, &options[2]) == ZERO_OK,
                  "%s", zero_error(z));
        }
        for (size_t s = 0; s < ALL_STEPS; s++) {
            if (with_options && s == THAW) {
                options[0].frozen = 0;
                CHECK(zero_set_tensor_options(z, 0, &options[0]) == ZERO_OK, "%s", zero_error(z));
                options[0] = zero_get_tensor_options(z, 0);
                CHECK(options[0].first_update == THAW);
            }
            for (size_t u = UNITS; u-- > 0;) weighted_unit(z, u, 0, s, 1);
            CHECK(zero_finish_backward(z) == ZERO_OK && zero_step(z, &adamw) == ZERO_OK, "%s", zero_error(z));
            const double norm = reference_step(kind, s, options);
            CHECK(fabs(zero_last_step(z).norm - norm) <= 1e-6 * norm, "norm %.9g, not %.9g", zero_last_step(z).norm,
                  norm);
            CHECK(zero_visit(z, ZERO_STATE_MASTER, compare, NULL) == ZERO_OK, "%s", zero_error(z));
        }
        CHECK(worst < 1e-5 && unsure < NUMEL / 50, "stage %d: off by %g, %zu elements unsure", stage, worst, unsure);
        CHECK(zero_hash(z, &hash[0], &hash[1]) == ZERO_OK, "%s", zero_error(z));
        if (stage == 0) memcpy(first, hash, sizeof hash);
        CHECK_BYTES(hash, first, sizeof hash);
        zero_destroy(z);
    }
}

static void options_are_checked(zero_comm *c) {
    zero *z = make(c, 1);
    zero_tensor_options o = zero_get_tensor_options(z, 1);
    CHECK(zero_set_tensor_options(z, TENSORS, &o) == ZERO_ERR_ARG && strstr(zero_error(z), "no tensor 11"));
    CHECK(zero_discard(z) == ZERO_OK);
    o.lr_factor = -1;
    CHECK(zero_set_tensor_options(z, 1, &o) == ZERO_ERR_ARG && strstr(zero_error(z), "factors of bias are -1 and 0"));
    CHECK(zero_discard(z) == ZERO_OK);
    o.lr_factor = 1, o.first_update = 1;
    CHECK(zero_set_tensor_options(z, 1, &o) == ZERO_ERR_ARG && strstr(zero_error(z), "after 0 updates"));
    CHECK(zero_discard(z) == ZERO_OK);
    o.first_update = 0;
    backward(z, 0, NULL);
    CHECK(zero_set_tensor_options(z, 1, &o) == ZERO_ERR_ARG && strstr(zero_error(z), "between steps"));
    CHECK(zero_discard(z) == ZERO_OK && zero_set_updates(z, 7) == ZERO_OK, "%s", zero_error(z));
    o.frozen = 1;
    CHECK(zero_set_tensor_options(z, 1, &o) == ZERO_OK);
    o.frozen = 0;
    CHECK(zero_set_tensor_options(z, 1, &o) == ZERO_OK && zero_get_tensor_options(z, 1).first_update == 7);
    CHECK(zero_set_updates(z, 6) == ZERO_ERR_ARG && strstr(zero_error(z), "first_update of bias is 7"), "%s",
          zero_error(z));
    CHECK(zero_discard(z) == ZERO_OK && zero_fill(z, fill, NULL) == ZERO_OK, "%s", zero_error(z));
    CHECK(zero_get_tensor_options(z, 1).first_update == 0 && zero_get_updates(z) == 0);
    zero_destroy(z);
}

static void cases_of_optimizers(zero_comm *c, const char *way) {
    static const char *const names[ZERO_NUM_OPTIMIZERS] = { "AdamW", "SGD", "Lion" };
    for (int kind = 0; kind < ZERO_NUM_OPTIMIZERS; kind++) {
        CASE("%s: bits of all stages, and double precision, %s", names[kind], way)
            optimizers_are_right(c, (enum zero_optimizer_kind)kind, 0);
        CASE("%s with options of tensors: bits of all stages, and double precision, %s", names[kind], way)
            optimizers_are_right(c, (enum zero_optimizer_kind)kind, 1);
    }
    CASE("options of tensors are checked, %s", way) options_are_checked(c);
}

static void cases_of_a_stage(zero_comm *c, int stage, const char *way) {
    CASE("units may come one by one: stage %d, %s", stage, way) units_may_come_one_by_one(c, stage);
    CASE("weights divide the sum: stage %d, %s", stage, way) weights_divide_the_sum(c, stage);
    CASE("a step clips by itself: stage %d, %s", stage, way) a_step_clips_by_itself(c, stage);
    CASE("a step skips what is not finite: stage %d, %s", stage, way) a_step_skips_what_is_not_finite(c, stage);
}

static void leak(void) { (void)make(join(&ways[SHARED_MEMORY], PATIENT), 2); }

int main(int argc, char **argv) {
    start_engines(&argc, argv);
    if (argc > 1 && !strcmp(argv[1], "--leak")) {  // LeakSanitizer has to tell
        CASE("an engine is not destroyed") leak();
        return finish_world();
    }
    for (int w = 0; w < MAIN_WAYS; w++) {
        const struct way *way = &ways[main_ways[w]];
        if (!way_runs_here(way)) continue;
        zero_comm *c = join(way, PATIENT);
        for (int stage = 0; stage < STAGES; stage++) cases_of_a_stage(c, stage, way->name);
        cases_of_optimizers(c, way->name);
        leave(c);
    }
    return finish_world();
}
