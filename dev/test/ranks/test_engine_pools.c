// test_engine_pools.c: units of other sizes share buffers (pool.h), in the engine, over every transport: they are held
// up to the limit in every stage alike, train to the same bits, and cost what the plan says. Run under mpirun.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "test/ranks/ways.h"
#include "zero/zero.h"

// Unit 0 is tied: smaller than the others, and held through the backward. The others differ by 0.2 %.
enum { ALIKE = 13, SMALL = 1000, LARGE = 32000 };
static zero_tensor alike[ALIKE];

static float initial(size_t logical) { return (float)(logical % 251) / 125.0f - 1; }
static float gradient(size_t logical, size_t j, size_t step) {
    return ((float)((logical * 7 + j * 31 + step * 13) % 127) - 63) / (j % 3 ? 64.0f : 4096.0f);
}

static int fill_alike(void *ctx, size_t tensor, size_t begin, size_t count, float *out) {
    (void)ctx;
    for (size_t i = 0; i < count; i++) out[i] = initial(alike[tensor].logical + begin + i);
    return 0;
}

static zero *make(zero_comm *c, int stage, int prefetch) {
    size_t order[2 * ALIKE + 1] = { 0 };
    zero *z;
    for (size_t u = 0, logical = 0; u < ALIKE; logical += alike[u++].numel) {
        alike[u] = (zero_tensor){ "alike", u ? LARGE + LARGE / 500 * u : SMALL, u, logical, 0, u == 0 };
        order[u] = u;
        order[2 * ALIKE - u] = u;
    }
    order[ALIKE] = 0;
    const zero_config config = { .settings = { .stage = stage, .prefetch = prefetch },
                                 .order = order,
                                 .order_length = 2 * ALIKE,
                                 .tensors = alike,
                                 .num_tensors = ALIKE,
                                 .shard_comm = c,
                                 .accounting = &memory };
    CHECK(zero_create(&z, &config) == ZERO_OK && zero_fill(z, fill_alike, NULL) == ZERO_OK, "%s", zero_error(z));
    return z;
}

static int use_params(zero *z, size_t u) {
    return zero_acquire_params(z, u) ? zero_release_params(z, u) : ZERO_ERR_ARG;
}

static int add_gradient(zero *z, size_t u, size_t j, size_t step) {
    float *device = zero_acquire_grads(z, u, zero_get_micro_batches(z)), *g = calloc(alike[u].numel, sizeof *g);
    for (size_t k = 0; k < alike[u].numel && device; k++) g[k] = gradient(alike[u].logical + k, j, step);
    if (device) device_write(device, g, alike[u].numel * sizeof *g);
    free(g);
    return device ? ZERO_OK : ZERO_ERR_ARG;
}

// Units in a random order, the same on all ranks: each is released after the next one is acquired; the tied one last.
static int backward(zero *z, size_t j, size_t step) {
    size_t order[ALIKE] = { 0 };
    unsigned seed = (unsigned)step;
    for (size_t u = 1; u < ALIKE; u++) {
        const size_t at = 1 + (size_t)rand_r(&seed) % u;
        order[u] = order[at];
        order[at] = u;
    }
    int e = add_gradient(z, 0, j, step);
    for (size_t i = 1; i <= ALIKE && !e; i++) {
        if (i < ALIKE) e = add_gradient(z, order[i], j, step);
        if (i > 1 && !e) e = zero_release_grads(z, order[i - 1]);
    }
    if (!e) e = zero_release_grads(z, 0);
    return e ? e : zero_finish_backward(z);
}

static int one_step_of(zero *z, size_t step, double *norm) {
    const zero_hyperparameters h = { .lr = 0.01f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f };
    int e = zero_begin_step(z);
    for (size_t g = 0; g < 2 && !e; g++) {
        for (size_t u = 0; u <= ALIKE && !e; u++) e = use_params(z, u % ALIKE);
        for (size_t u = ALIKE; u-- > 1 && !e;) e = use_params(z, u);
        if (!e) e = backward(z, g * (size_t)ranks + (size_t)rank, step);
    }
    if (!e) e = zero_grad_norm(z, norm);
    return e ? e : zero_step(z, &h);
}

static void reports_agree(const zero *z) {
    zero_row rows[16];
    for (int wire = 0; wire < 2; wire++) {
        const size_t n = wire ? zero_report_wire(z, rows, 16) : zero_report_memory(z, rows, 16);
        for (size_t i = 0; i < n; i++)
            CHECK(rows[i].expected == rows[i].measured, "%s: %llu bytes by formula (%s), %llu measured", rows[i].what,
                  (unsigned long long)rows[i].expected, rows[i].formula, (unsigned long long)rows[i].measured);
    }
}

// Bytes of unit buffers for each parameter: `buffers` of the 12 large units, 4 bytes an element, as if all were equal;
// between hosts a rank's part of the largest unit, too.
static void cost_what_units_of_equal_size_cost(const zero *z, const zero_comm *c, int stage, int prefetch) {
    const zero_layout *l = zero_get_layout(z);
    const size_t per_host = zero_comm_get_shape(c).per_host;
    const size_t pools = stage < 2 ? 0 : stage == 2 || ranks == 1 ? 1 : 2;
    const size_t buffers = pools == 0 ? 0 : pools == 1 ? 2 : 3 + (size_t)prefetch;
    const size_t tied = zero_layout_unit_numel(l, 0), large = l->numel_padded - tied;
    const size_t largest = tied > large / 12 ? tied : large / 12;
    const double passed_on = per_host ? (double)largest / (double)per_host : 0;
    const double equal = 4.0 * ((double)(buffers * large) / 12 + (double)(pools * tied) + passed_on);
    const double bytes = (double)memory.peak[ZERO_MEM_UNIT_BUFFERS];
    CHECK(stage < 2 || (bytes >= equal && bytes < 1.02 * equal), "%.0f bytes of unit buffers, equal units: %.0f", bytes,
          equal);
}

static void trains_to_the_same_bits(const struct way *way, int stage, int prefetch, uint64_t first[2]) {
    uint64_t hash[2] = { 0 };
    double norm = 0;
    zero_comm *c = join(way, PATIENT);
    zero *z = make(c, stage, prefetch);
    for (size_t step = 0; step < 3; step++) {
        CHECK(one_step_of(z, step, &norm) == ZERO_OK && norm > 0, "norm %f %s", norm, zero_error(z));
        reports_agree(z);
    }
    if (stage) cost_what_units_of_equal_size_cost(z, c, stage, prefetch);
    CHECK(zero_hash(z, &hash[0], &hash[1]) == ZERO_OK, "hash: %s", zero_error(z));
    if (!first[0]) memcpy(first, hash, sizeof hash);
    CHECK(!memcmp(first, hash, sizeof hash), "stage %d, prefetch %d has other bits than the first engine", stage,
          prefetch);
    zero_destroy(z);
    leave(c);
}

// After a refusal zero_discard ends it.
static void refused(zero *z, const void *p, const char *message) {
    CHECK(!p && strstr(zero_error(z), message), "wanted \"%s\": %s", message, zero_error(z));
    CHECK(zero_discard(z) == ZERO_OK, "%s", zero_error(z));
}

static void more_units_than_buffers_are_refused(const struct way *way, int stage, int prefetch) {
    const size_t held = 1 + (size_t)prefetch;
    char message[64];
    zero_comm *c = join(way, PATIENT);
    zero *z = make(c, stage, prefetch);
    for (int round = 0; round < 2; round++) {  // the tied unit is not counted, nor is a second acquire
        for (size_t u = 0; u <= held; u++)
            CHECK(zero_acquire_params(z, u) && zero_acquire_params(z, u), "unit %zu: %s", u, zero_error(z));
        snprintf(message, sizeof message, "more than 1 + settings.prefetch = %zu units", held);
        refused(z, zero_acquire_params(z, 1 + held), message);
        for (size_t u = 0; u <= 2; u++) CHECK(zero_acquire_grads(z, u, 0), "unit %zu: %s", u, zero_error(z));
        refused(z, zero_acquire_grads(z, 3, 0), "more than 2 units");
    }
    zero_destroy(z);
    leave(c);
}

int main(int argc, char **argv) {
    static const int some_ways[] = { SHARED_MEMORY, MESSAGES, STAGED_TWO_A_HOST, NCCL };
    start_world(&argc, argv);
    for (size_t w = 0; w < sizeof some_ways / sizeof *some_ways; w++) {
        const struct way *way = &ways[some_ways[w]];
        if (!way_runs_here(way)) continue;
        CASE("units of nearly equal size: same bits, cost of equal units: %s", way->name) {
            static uint64_t first[2];
            for (int stage = 0; stage <= 3; stage++)
                for (int prefetch = 0; prefetch <= 2 * (stage == 3); prefetch++)
                    trains_to_the_same_bits(way, stage, prefetch, first);
        }
        CASE("more units than buffers are refused in every stage: %s", way->name) {
            for (int stage = 0; stage <= 3; stage++)
                for (int prefetch = 0; prefetch <= 2; prefetch++)
                    more_units_than_buffers_are_refused(way, stage, prefetch);
        }
    }
    return finish_world();
}
