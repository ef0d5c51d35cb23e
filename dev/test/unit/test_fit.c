// The search of what fits, against every combination: its answer is the best of those that fit, and needs what it says.
// That a run measures these bytes is the business of test_fit.sh.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpt2/activation_offload.h"
#include "gpt2/tensors.h"
#include "test/harness/harness.h"
#include "trainer/fit.h"

enum { T = 64 };

static zero_tensor tensors[128];
static size_t order[64];
static char err[512];

// Activations whose bytes depend on all of it, as those of GPT-2 do.
static size_t activation_bytes(const GPT2Config *c, size_t B, size_t t, int recompute, size_t head_rows,
                               enum zero_dtype precision, size_t streams, int offload) {
    size_t rows = head_rows > 0 ? head_rows : 8192;
    if (rows < t) rows = t;
    if (rows > B * t) rows = B * t;
    const size_t of_layers = c->num_layers * B * t * c->channels * (size_t)(16 - 4 * recompute - offload);
    const size_t of_all = (of_layers + rows * c->padded_vocab_size) * zero_dtype_bytes(precision);
    return streams > 0 ? of_all / c->num_layers + streams * 1000000 : of_all;
}

static FitInput input(const char *model, size_t ranks, size_t tokens, enum zero_dtype dtype) {
    FitInput in = { .activation_bytes = activation_bytes, .searched = FIT_ALL };
    REQUIRE(gpt2_config_from_descriptor(&in.config, model, err, sizeof err) == 0, "%s", err);
    REQUIRE(gpt2_num_tensors(&in.config) <= sizeof tensors / sizeof *tensors, "too many tensors");
    gpt2_tensors(&in.config, tensors);
    gpt2_unit_order(&in.config, order);
    in.plan = (PlanInput){
        .model = model,
        .tensors = tensors,
        .num_tensors = gpt2_num_tensors(&in.config),
        .order = order,
        .order_length = gpt2_unit_order(&in.config, NULL),
        .settings.prefetch = 1,
        .settings.offload_fraction = 1,
        .settings.dtype = dtype,
        .settings.stage = 2,
        .recompute = 1,
        .transport = zero_transport_find("mpi"),
        .B = 1,
        .T = T,
        .total_tokens = tokens,
        .ranks = ranks,
        .cluster = { .link_bytes_per_second = 1e9,
                     .net_bytes_per_second = 1e8,
                     .link_latency = 1e-6,
                     .net_latency = 1e-5,
                     .memory = 1e10 },
        .host_bytes_per_second = 1e9,
        .disk_bytes_per_second = 1e8,
        .peak_flops = 1e12,
        .efficiency = 0.5,
        .flops_per_token = gpt2_training_flops(&in.config, T, 1),
    };
    return in;
}

// The most memory of any rank, and the time, of one combination, by a plan that has everything; 0: there is no such
// run.
static uint64_t plan_of(const FitInput *in, Fit *f) {
    PlanInput plan = in->plan;
    PlanStage s;
    uint64_t most = 0;
    plan.settings.stage = f->stage;
    plan.settings.shard_group = f->shard_group;
    plan.settings.order = f->order;
    plan.settings.offload = f->offload;
    plan.settings.offload_params = f->offload_params;
    plan.B = f->B;
    plan.total_tokens = f->total_tokens;
    const int offload = f->offload_activations;
    const enum zero_dtype dtype = plan.settings.dtype;
    plan.activation_bytes = activation_bytes(&in->config, f->B, T, f->recompute, f->head_rows, dtype, 0, offload);
    plan.stream_bytes = 1000000;
    plan.layer_bytes = activation_bytes(&in->config, f->B, T, f->recompute, f->head_rows, dtype, 1, offload) - 1000000;
    plan.offloaded_bytes = offload ? activation_offload_bytes(&in->config, f->B, T, zero_dtype_bytes(dtype), 1) : 0;
    plan.device_bytes = 1e18;
    do {
        if (plan_stage(&s, &plan, err, sizeof err) != 0 || !s.fits || s.order != f->order) return 0;
        const int host = f->offload == ZERO_OFFLOAD_CPU || f->offload_params == ZERO_OFFLOAD_CPU;
        if ((double)(s.disk_total * plan.ranks) > plan.disk_bytes) return 0;
        if (host && (double)(s.host_total * plan.ranks) > plan.host_bytes) return 0;
        if ((double)(plan.offloaded_bytes * plan.ranks) > plan.host_bytes) return 0;
        if (s.memory_total > most) most = s.memory_total;
    } while (++plan.rank < s.shard_group);
    f->seconds = s.times.step;
    f->bytes = most;
    return most;
}

enum { MOST = 200000 };
static Fit all[MOST];
static size_t num_all;

static void try_all(const FitInput *in) {
    num_all = 0;
    for (int stage = 0; stage < PLAN_STAGES; stage++)
        for (size_t group = 0; group < in->plan.ranks; group++)
            for (size_t B = 1; B * T * in->plan.ranks <= in->plan.total_tokens; B++)
                for (int way = 0; way < (stage < 3 ? 36 : 108); way++)
                    for (size_t rows = 0; rows < B * T; rows += T) {
                        Fit f = { .stage = stage,
                                  .order = way / 3 % 2 ? ZERO_ORDER_RANK : ZERO_ORDER_STEP,
                                  .offload = (enum zero_offload)(way / 6 % 3),
                                  .offload_activations = way / 18 % 2,
                                  .offload_params = (enum zero_offload)(way / 36),
                                  .shard_group = group,
                                  .B = B,
                                  .recompute = way % 3,
                                  .head_rows = rows,
                                  .total_tokens = in->plan.total_tokens };
                        const int host = f.offload == ZERO_OFFLOAD_CPU || f.offload_params == ZERO_OFFLOAD_CPU ||
                                         f.offload_activations;
                        if ((host && in->plan.host_is_device) || (f.offload_activations && f.recompute == 0)) continue;
                        REQUIRE(num_all < MOST, "too many combinations");
                        if (plan_of(in, &f) > 0) all[num_all++] = f;
                    }
}

static int compare_bytes(const void *a, const void *b) {
    const Fit *x = a, *y = b;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static void are_equal(const Fit *a, const Fit *b) {
    char text[2][300];
    for (int i = 0; i < 2; i++) fit_flags(i ? b : a, text[i], sizeof text[i]);
    CHECK_STR(text[0], text[1]);
    CHECK_EQ(a->bytes, b->bytes);
    CHECK(a->seconds == b->seconds);
}

// f is what the search says for so many bytes.
static void is_the_best(const FitInput *in, const Fit *f, double bytes) {
    Fit same = *f;
    CHECK_EQ(plan_of(in, &same), f->bytes);
    CHECK(same.seconds == f->seconds && (double)f->bytes <= bytes);
    double least = f->seconds;
    for (size_t i = 0; i < num_all && (double)all[i].bytes <= bytes; i++)
        least = all[i].seconds < least ? all[i].seconds : least;
    CHECK(f->seconds <= FIT_ALIKE * least, "%g s, but %g s is the least", f->seconds, least);
    for (size_t i = 0; i < num_all && (double)all[i].bytes <= bytes; i++) {
        const Fit *o = &all[i];
        if (o->seconds > FIT_ALIKE * least) continue;
        const int one = f->shard_group == 0, other_one = o->shard_group == 0;
        const int better = o->head_rows != f->head_rows                       ? f->head_rows > 0 && o->head_rows == 0
                           : o->recompute != f->recompute                     ? o->recompute < f->recompute
                           : o->offload_activations != f->offload_activations ? f->offload_activations
                           : o->offload_params != f->offload_params           ? o->offload_params < f->offload_params
                           : o->offload != f->offload                         ? o->offload < f->offload
                           : o->stage != f->stage                             ? o->stage < f->stage
                           : one != other_one                                 ? other_one
                           : o->shard_group != f->shard_group                 ? o->shard_group > f->shard_group
                           : o->order != f->order                             ? o->order == ZERO_ORDER_STEP
                                                                              : o->B > f->B;
        char ours[200], other[200];
        fit_flags(f, ours, sizeof ours);
        fit_flags(o, other, sizeof other);
        if (!CHECK(!better, "for %.0f bytes: %s, but %s fits and is better", bytes, ours, other)) return;
    }
}

static void the_best_of_all(const char *model, size_t ranks, size_t tokens, enum zero_dtype dtype,
                            const char *transport) {
    FitInput in = input(model, ranks, tokens, dtype);
    Fit f, again;
    in.plan.transport = zero_transport_find(transport);
    in.plan.host_is_device = strcmp(transport, "mpi") == 0;
    in.plan.host_bytes = 2e6;
    in.plan.disk_bytes = ranks % 2 ? 0 : 3e6;
    try_all(&in);
    REQUIRE(num_all > 10, "%zu combinations", num_all);
    qsort(all, num_all, sizeof *all, compare_bytes);
    for (size_t i = 0; i <= 10; i++) {
        in.plan.device_bytes = (double)all[i * (num_all - 1) / 10].bytes;
        CHECK_EQ(fit_fastest(&f, &in, err, sizeof err), 1);
        CHECK_EQ(fit_fastest(&again, &in, err, sizeof err), 1);
        are_equal(&f, &again);
        is_the_best(&in, &f, in.plan.device_bytes);
    }
    in.plan.device_bytes = (double)(all[0].bytes - 1);
    CHECK_EQ(fit_fastest(&f, &in, err, sizeof err), 0);
    CHECK_EQ(f.bytes, all[0].bytes);
}

// What is not searched stays as it is.
static void test_what_is_given_is_kept(void) {
    FitInput in = input("custom:l3,h4,c64,v2000,t64", 4, 16 * T, ZERO_F32);
    Fit f;
    in.plan.device_bytes = 1e12;
    in.plan.B = 2;
    in.plan.settings.shard_group = 2;
    in.head_rows = 64;
    for (unsigned searched = 0; searched <= FIT_ALL; searched++) {
        in.searched = searched;
        CHECK_EQ(fit_fastest(&f, &in, err, sizeof err), 1);
        CHECK(searched & FIT_STAGE || f.stage == 2);
        CHECK(searched & FIT_GROUP || f.shard_group == 2);
        CHECK(searched & FIT_ORDER || f.order == ZERO_ORDER_STEP);
        CHECK_EQ(f.recompute, searched & FIT_RECOMPUTE ? 0 : 1);
        CHECK_EQ(f.head_rows, searched & FIT_HEAD_ROWS ? 0 : 64);
        CHECK_EQ(f.B, searched & FIT_BATCH ? 4 : 2);
        CHECK_EQ(f.total_tokens, 16 * T);
    }
    in.plan.settings.stage = 0;
    in.searched = FIT_BATCH;
    CHECK(fit_fastest(&f, &in, err, sizeof err) == -1 && strstr(err, "-z 0: cannot be had"), "%s", err);
    in.plan.settings.order = ZERO_ORDER_RANK;  // stages 2 and 3 do not have it
    in.plan.settings.shard_group = 0;
    in.searched = FIT_STAGE;
    CHECK(fit_fastest(&f, &in, err, sizeof err) == 1 && f.stage < 2 && f.order == ZERO_ORDER_RANK, "-z %d", f.stage);
    in.plan.settings.order = ZERO_ORDER_LAYER;  // activations grow with the micro-batches of a step
    CHECK(fit_fastest(&f, &in, err, sizeof err) == 1 && f.order == ZERO_ORDER_LAYER, "%s", err);
    Fit planned = f;
    CHECK_EQ(plan_of(&in, &planned), f.bytes);
    in.plan.settings.order = ZERO_ORDER_RANK;
    in.plan.device_bytes = 1;
    CHECK(fit_fastest(&f, &in, err, sizeof err) == 0 && f.stage == 1, "-z %d", f.stage);
}

static void test_the_largest_model_is_that(void) {
    static const char *const models[] = { "d6", "d12", "d24", "d36" };
    static zero_tensor of_model[1024];
    static size_t of_order[512];
    static double of_flops[512];
    FitInput in = input("custom:l1,h1,c8,v8,t64", 4, 8 * T, ZERO_BF16), one = in;
    size_t depth;
    Fit f, alone;
    double bytes[4];
    for (size_t i = 0; i < 4; i++) {
        REQUIRE(gpt2_config_from_descriptor(&one.config, models[i], err, sizeof err) == 0, "%s", err);
        gpt2_tensors(&one.config, of_model);
        gpt2_unit_order(&one.config, of_order);
        gpt2_order_flops(&one.config, T, of_flops);
        one.plan.order_flops = of_flops;
        one.plan.tensors = of_model;
        one.plan.num_tensors = gpt2_num_tensors(&one.config);
        one.plan.order = of_order;
        one.plan.order_length = gpt2_unit_order(&one.config, NULL);
        one.plan.flops_per_token = gpt2_training_flops(&one.config, T, 1);
        one.plan.device_bytes = 0;
        CHECK_EQ(fit_fastest(&alone, &one, err, sizeof err), 0);
        bytes[i] = (double)alone.bytes;
        in.plan.device_bytes = one.plan.device_bytes = bytes[i];
        CHECK_EQ(fit_fastest(&alone, &one, err, sizeof err), 1);
        CHECK_EQ(fit_largest(&depth, &f, &in, err, sizeof err), 1);
        CHECK_EQ(depth, atoi(models[i] + 1));
        are_equal(&f, &alone);
        in.plan.device_bytes -= 1;
        CHECK_EQ(fit_largest(&depth, &f, &in, err, sizeof err), i > 0);
        CHECK(i == 0 || depth == (size_t)atoi(models[i - 1] + 1), "the largest has depth %zu", depth);
    }
}

int main(int argc, char **argv) {
    test_start(&argc, argv);
    for (int half = 0; half < 2; half++) {
        const enum zero_dtype dtype = half ? ZERO_BF16 : ZERO_F32;
        for (size_t ranks = 1; ranks <= 6; ranks++)
            CASE("the best of all combinations, %zu ranks, %s", ranks, half ? "bf16" : "fp32")
                the_best_of_all("custom:l3,h4,c64,v2000,t64", ranks, 12 * T * (ranks == 5 ? 5 : 1), dtype,
                                half ? "nccl" : "mpi");
        CASE("the best of all combinations, steps of 96 sequences, %s", half ? "bf16" : "fp32")
            the_best_of_all("custom:l2,h2,c32,v500,t64", 8, 96 * T, dtype, half ? "mpi" : "nccl");
    }
    RUN(test_what_is_given_is_kept);
    RUN(test_the_largest_model_is_that);
    return test_finish();
}
