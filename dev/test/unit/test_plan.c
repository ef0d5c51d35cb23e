// The planner against numbers that others have published, and against itself. That a plan says what a run measures is
// the business of test_engine (the same formulas, in every way to run) and of test_plan.sh (the printed tables).
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "test/harness/harness.h"
#include "trainer/planner.h"

enum { MAX_UNITS = 128 };

static zero_tensor tensors[MAX_UNITS];
static size_t order[2 * MAX_UNITS];
static char err[512];

// A model of equal units, trained in bf16 without accumulation; nothing but model states counts.
static PlanInput model(size_t units, size_t numel, size_t ranks) {
    for (size_t u = 0; u < units; u++) {
        tensors[u] = (zero_tensor){ "unit", numel, u, u * numel, 1 };
        order[u] = u;
        order[2 * units - 1 - u] = u;
    }
    return (PlanInput){
        .model = "test",
        .tensors = tensors,
        .num_tensors = units,
        .order = order,
        .order_length = 2 * units,
        .settings.prefetch = 1,
        .settings.dtype = ZERO_BF16,
        .transport = zero_transport_find("mpi"),
        .B = 1,
        .T = 1,
        .ranks = ranks,
        .device_bytes = 80e9,
        .cluster = { .link_bytes_per_second = 450e9, .net_bytes_per_second = 400e9, .memory = 1e30 },
        .peak_flops = 989e12,
        .efficiency = 0.4,
        .flops_per_token = 6.0 * (double)(units * numel),
    };
}

static uint64_t bytes_of(const PlanStage *s, enum zero_memory_category category) {
    for (size_t i = 0; i < s->memory_rows; i++) {
        if (s->memory[i].kind == (int)category) {
            return s->memory[i].expected;
        }
    }
    REQUIRE(0, "no row for category %d", (int)category);
    return 0;
}

static void check_printed(double x, const char *format, const char *want) {
    char text[64];
    snprintf(text, sizeof text, format, x);
    CHECK_STR(text, want);
}

// Figure 1 of the paper: 7.5 billion parameters on 64 ranks, in GB of 10^9 bytes. What we have more is in rows of its
// own.
static void test_the_table_of_the_zero_paper(void) {
    static const char *const want[PLAN_STAGES] = { "120.0", "31.4", "16.6", "1.9" };
    PlanInput in = model(50, 150000000, 64);
    Plan p;
    CHECK_EQ(plan_make(&p, &in, err, sizeof err), 0);
    CHECK_EQ(p.numel, 7500000000);
    const uint64_t shard = p.numel_padded / 64;
    for (int stage = 0; stage < PLAN_STAGES; stage++) {
        const PlanStage *s = &p.stage[stage];
        check_printed(plan_paper_bytes(stage, ZERO_BF16, 2, 7.5e9, 7.5e9, 64) / 1e9, "%.1f", want[stage]);
        check_printed((double)s->paper / 1e9, "%.1f", want[stage]);
        check_printed((double)(s->states - s->sums) / 1e9, "%.1f", want[stage]);
        CHECK_EQ(s->sums, stage < 2 ? 4 * shard : 2 * shard);  // fp32 beside, or instead of, bf16
        CHECK_EQ(s->states, s->paper + s->sums + s->padding);
        CHECK((double)s->padding < 1e-4 * (double)s->paper);
        CHECK_EQ(s->states, bytes_of(s, ZERO_MEM_PARAMS) + bytes_of(s, ZERO_MEM_GRADS) +
                                bytes_of(s, ZERO_MEM_GRAD_SHARDS) + bytes_of(s, ZERO_MEM_MASTER) +
                                bytes_of(s, ZERO_MEM_STATE) + bytes_of(s, ZERO_MEM_STATE_2));
    }
    for (int master = ZERO_MASTER_SPLIT; master <= ZERO_MASTER_NONE; master++) {
        Plan q;
        in.settings.master = (enum zero_master)master;
        CHECK_EQ(plan_make(&q, &in, err, sizeof err), 0);
        for (int stage = 0; stage < PLAN_STAGES; stage++) {
            const uint64_t less = (master == ZERO_MASTER_SPLIT ? 2 : 4) * (stage == 0 ? p.numel_padded : shard);
            CHECK_EQ(q.stage[stage].states, p.stage[stage].states - less);
            CHECK_EQ(q.stage[stage].smaller_master, less);
            CHECK_EQ(q.stage[stage].padding, p.stage[stage].padding);
        }
    }
    in.settings.master = ZERO_MASTER_FP32;
    in.settings.offload_fraction = 1;
    for (int offload = ZERO_OFFLOAD_CPU; offload <= ZERO_OFFLOAD_NVME; offload++) {
        Plan q;
        in.settings.offload = (enum zero_offload)offload;
        CHECK_EQ(plan_make(&q, &in, err, sizeof err), 0);
        for (int stage = 0; stage < PLAN_STAGES; stage++) {
            CHECK_EQ(q.stage[stage].offloaded, 12 * (stage == 0 ? p.numel_padded : shard));
            CHECK_EQ(q.stage[stage].states, p.stage[stage].states - q.stage[stage].offloaded);
            CHECK_EQ(q.stage[stage].padding, p.stage[stage].padding);
        }
    }
    check_printed(plan_paper_bytes(0, ZERO_BF16, 2, 1, 1, 8), "%g", "16");
    check_printed(plan_paper_bytes(1, ZERO_BF16, 2, 1, 1, 8), "%g", "5.5");
    check_printed(plan_paper_bytes(2, ZERO_BF16, 2, 1, 1, 8), "%g", "3.75");
    check_printed(plan_paper_bytes(3, ZERO_BF16, 2, 1, 1, 8), "%g", "2");
}

// Frozen units have parameters and master weights, but no gradients and no optimizer state. The row "padding" was the
// whole model's paper less what is trained: below zero. A frozen tensor in a live unit costs what the others do.
static void test_frozen_units_cost_parameters_alone(void) {
    enum { UNITS = 24, FROZEN = 7, NUMEL = 50001, PADDED = 50048, LIVE = UNITS - FROZEN };
    PlanInput in = model(UNITS, NUMEL, 2);
    Plan p;
    for (size_t u = 0; u < FROZEN; u++) tensors[3 * u].frozen = 1;
    CHECK_EQ(plan_make(&p, &in, err, sizeof err), 0);
    CHECK_EQ(p.numel_padded, UNITS * PADDED);
    for (int stage = 0; stage < PLAN_STAGES; stage++) {
        const PlanStage *s = &p.stage[stage];
        const uint64_t N = 2, of_params = stage < 3 ? 1 : N, of_grads = stage < 2 ? 1 : N, of_states = stage ? N : 1;
        const uint64_t each = 2 * UNITS / of_params + 2 * LIVE / of_grads + (4 * UNITS + 8 * LIVE) / of_states;
        CHECK_EQ(s->paper, NUMEL * each);
        CHECK_EQ(s->padding, (PADDED - NUMEL) * each);
        CHECK_EQ(s->sums, (stage < 2 ? 4 : 2) * LIVE * PADDED / N);
        CHECK_EQ(s->states, s->paper + s->sums + s->padding);
    }
}

// ZeRO-1 as nanotron has it: 7 billion parameters, 8 data-parallel ranks; the optimizer's 84 GB become 10.5 GB a rank.
static void test_7b_on_8_data_parallel_ranks(void) {
    static const char *const want[PLAN_STAGES] = { "112.00", "38.50", "26.25", "14.00" };
    PlanInput in = model(50, 140000000, 8);
    Plan p;
    CHECK_EQ(plan_make(&p, &in, err, sizeof err), 0);
    for (int stage = 0; stage < PLAN_STAGES; stage++) {
        const PlanStage *s = &p.stage[stage];
        const uint64_t optimizer = bytes_of(s, ZERO_MEM_MASTER) + bytes_of(s, ZERO_MEM_STATE) +
                                   bytes_of(s, ZERO_MEM_STATE_2);
        check_printed((double)s->paper / 1e9, "%.2f", want[stage]);
        check_printed((double)optimizer / 1e9, "%.1f", stage == 0 ? "84.0" : "10.5");
    }
    CHECK_EQ(p.lowest_stage, 1);
}

static void test_the_smallest_number_of_ranks_is_that(void) {
    static const double device[] = { 0.5e9, 3e9, 17e9, 80e9, 1000e9 };
    for (size_t d = 0; d < sizeof device / sizeof device[0]; d++) {
        for (int accumulate = 0; accumulate < 2; accumulate++) {
            PlanInput in = model(24, 50000000, 1);
            in.device_bytes = device[d];
            in.total_tokens = accumulate ? 5040 : 0;
            Plan p, at;
            CHECK_EQ(plan_make(&p, &in, err, sizeof err), 0);
            for (int stage = 0; stage < PLAN_STAGES; stage++) {
                const PlanStage *s = &p.stage[stage];
                if (s->smallest > 0) {
                    in.ranks = s->smallest;
                    CHECK_EQ(plan_make(&at, &in, err, sizeof err), 0);
                    CHECK((double)at.stage[stage].memory_total <= in.device_bytes);
                }
                if (s->smallest > 1) {
                    for (in.ranks = s->smallest - 1; plan_make(&at, &in, err, sizeof err) != 0; in.ranks--) {
                        CHECK(accumulate);
                    }
                    CHECK((double)at.stage[stage].memory_total > in.device_bytes);
                }
                if (s->smallest_power > 0) {
                    CHECK(s->smallest <= s->smallest_power && (accumulate || s->smallest_power < 2 * s->smallest));
                }
            }
        }
    }
    PlanInput in = model(24, 50000000, 8);
    Plan p;
    in.activation_bytes = 81000000000;  // does not depend on N
    CHECK_EQ(plan_make(&p, &in, err, sizeof err), 0);
    CHECK_EQ(p.best_stage, -1);
    CHECK_EQ(p.lowest_stage, -1);
}

// With groups of 4, a group's shards are those of 4 ranks, however many groups there are.
static void test_groups_shard_as_if_they_were_alone(void) {
    PlanInput in = model(24, 50000000, 4);
    Plan alone, groups;
    CHECK_EQ(plan_make(&alone, &in, err, sizeof err), 0);
    in.ranks = 12;
    in.settings.shard_group = 4;
    CHECK_EQ(plan_make(&groups, &in, err, sizeof err), 0);
    for (int stage = 0; stage < PLAN_STAGES; stage++) {
        const PlanStage *g = &groups.stage[stage], *a = &alone.stage[stage];
        CHECK_EQ(g->states - g->sums, a->states - a->sums);
        CHECK((int64_t)g->sums < (int64_t)a->sums);  // those are divided among the groups, too
        CHECK(groups.stage[stage].wire_total > alone.stage[stage].wire_total);
        CHECK_EQ(groups.stage[stage].smallest % 4, 0);
    }
    in.device_bytes = 1e15;
    CHECK_EQ(plan_make(&groups, &in, err, sizeof err), 0);
    CHECK_EQ(groups.lowest_stage, 1);  // there are no groups in stage 0
    in.ranks = 10;
    CHECK_EQ(plan_make(&groups, &in, err, sizeof err), -1);
    CHECK(strstr(err, "--shard-group 4") != NULL);
}

// 12 bytes a micro-batch; it computes 3 s, of which the forward is 1. Layer by layer all four are kept at a time.
static void test_activations_in_host_memory_cost_what_computing_does_not_hide(void) {
    PlanInput in = model(4, 1000, 2);
    PlanStage plain, s;
    in.settings.stage = 1;
    in.total_tokens = 4 * in.ranks * in.B * in.T;
    in.flops_per_token = 3 / (double)(in.B * in.T);
    in.peak_flops = in.efficiency = 1;
    CHECK_EQ(plan_stage(&plain, &in, err, sizeof err), 0);
    in.offloaded_bytes = 12;
    for (int order = ZERO_ORDER_STEP; order <= ZERO_ORDER_LAYER; order += ZERO_ORDER_LAYER) {
        in.settings.order = (enum zero_order)order;
        in.host_bytes_per_second = 12;
        CHECK_EQ(plan_stage(&s, &in, err, sizeof err), 0);
        CHECK_EQ(s.order, order);
        CHECK_EQ(s.host_total, order == ZERO_ORDER_LAYER ? 48 : 12);
        CHECK_EQ(bytes_of(&s, ZERO_MEM_CALLER_HOST), s.host_total);
        if (order == ZERO_ORDER_STEP) CHECK_EQ(s.memory_total, plain.memory_total);
        const double hidden = s.times.step;
        in.host_bytes_per_second = 4;  // 3 s: 2 more than the forward, 1 more than the backward
        CHECK_EQ(plan_stage(&s, &in, err, sizeof err), 0);
        CHECK(s.times.step > hidden + 11.999 && s.times.step < hidden + 12.001, "%g, not %g", s.times.step, hidden);
        in.host_is_device = 1;
        CHECK_EQ(plan_stage(&s, &in, err, sizeof err), 0);
        CHECK_EQ(s.host_total, 0);
        if (order == ZERO_ORDER_STEP) CHECK_EQ(s.memory_total, plain.memory_total + 12);
        in.host_is_device = 0;
    }
}

// Groups that receive as much from each other as one group of all ranks would, and more in all. By hand, in bytes of an
// element of Psi/N for each rank of the other groups: G count bytes + 4, of S b (G + 1) in stages 1 and 2.
static void test_groups_that_cost_more_wire_are_not_formed(void) {
    static const struct {
        enum zero_dtype dtype;
        size_t ranks, group, micro_steps;
        int stage, one_level;
    } cases[] = {
        { ZERO_BF16, 8, 1, 1, 1, 1 },   // 2 + 4 of 4
        { ZERO_BF16, 8, 1, 9, 2, 1 },   // 18 + 4 of 20
        { ZERO_BF16, 8, 2, 1, 2, 1 },   // 4 + 4 of 8
        { ZERO_BF16, 6, 2, 5, 1, 1 },   // 20 + 4 of 24
        { ZERO_BF16, 6, 3, 5, 1, 0 },   // 30 + 4 of 36
        { ZERO_BF16, 9, 3, 1, 2, 0 },   // 6 + 4 of 12
        { ZERO_BF16, 8, 4, 1, 1, 0 },   // 4 + 4 of 16
        { ZERO_BF16, 12, 6, 4, 2, 0 },  // 48 + 4 of 60
        { ZERO_BF16, 8, 2, 4, 3, 0 },   // 16 + 4 of 4 (4 + F), F > 1
        { ZERO_F32, 8, 1, 3, 1, 0 },    // 12 + 4 of 16, and no more in all
        { ZERO_F32, 8, 2, 1, 2, 0 },    // 4 + 4 of 16
        { ZERO_BF16, 8, 2, 1, 0, 0 },   // stage 0 has no groups
        { ZERO_BF16, 8, 8, 1, 2, 0 },   // one group was asked for
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        PlanInput in = model(24, 50001, cases[i].ranks), all;
        Plan p, q;
        in.settings.dtype = cases[i].dtype;
        in.total_tokens = cases[i].ranks * cases[i].micro_steps;
        all = in;
        in.settings.shard_group = cases[i].group;
        CHECK(plan_one_level(&in, cases[i].stage) == cases[i].one_level, "case %zu", i);
        CHECK(plan_make(&p, &in, err, sizeof err) == 0 && plan_make(&q, &all, err, sizeof err) == 0, "%s", err);
        const PlanStage *have = &p.stage[cases[i].stage], *one = &q.stage[cases[i].stage];
        if (cases[i].one_level) CHECK_EQ(have->wire_total, one->wire_total);
        if (cases[i].one_level) CHECK_EQ(have->memory_total, one->memory_total);
    }
}

// Bytes of an element of Psi on 4 ranks, by hand: sums of own micro-batches, and what is received of gradients. Stages
// 2 and 3 cannot, and a G for which it saves nothing does not.
static void test_rank_by_rank_sends_sums_once(void) {
    static const struct {
        enum zero_dtype dtype;
        size_t G, memory, wire;  // 0: step by step
    } cases[] = {
        { ZERO_F32, 2, 4, 4 },          // one sum of 2, by a counter of one: 4, where step by step sends 8
        { ZERO_F32, 8, 3 * 4, 4 },      // one of 8: 4 of 32
        { ZERO_F32, 6, 3 * 4, 3 * 4 },  // three of 2: 12 of 24
        { ZERO_F32, 7, 0, 0 },          // seven of 1
        { ZERO_BF16, 2, 0, 0 },         // 4 of 4
        { ZERO_BF16, 6, 0, 0 },         // 12 of 12
        { ZERO_BF16, 12, 4 * 4, 12 },   // three of 4: two are complete, and a counter of two; 12 of 24
        { ZERO_BF16, 1, 0, 0 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        PlanInput in = model(8, 64000, 4), by_step;  // no padding
        const size_t psi = 8 * 64000, b = zero_dtype_bytes(cases[i].dtype);
        Plan p, q;
        in.settings.dtype = cases[i].dtype;
        in.total_tokens = 4 * cases[i].G;
        by_step = in;
        in.settings.order = ZERO_ORDER_RANK;
        CHECK(plan_make(&p, &in, err, sizeof err) == 0 && plan_make(&q, &by_step, err, sizeof err) == 0, "%s", err);
        for (int stage = 0; stage < PLAN_STAGES; stage++) {
            const PlanStage *s = &p.stage[stage], *step = &q.stage[stage];
            const int by_rank = stage < 2 && cases[i].wire > 0;
            CHECK(s->order == (by_rank ? ZERO_ORDER_RANK : ZERO_ORDER_STEP), "case %zu, stage %d", i, stage);
            if (!by_rank) {
                CHECK_EQ(s->wire_total, step->wire_total);
                CHECK_EQ(s->memory_total, step->memory_total);
                continue;
            }
            CHECK_EQ(bytes_of(s, ZERO_MEM_GRADS), psi * cases[i].memory);
            CHECK_EQ(step->wire_total - s->wire_total, psi / 4 * 3 * (cases[i].G * b - cases[i].wire));
            CHECK_EQ(s->states, s->paper + s->sums + s->padding);
            CHECK_EQ(s->padding, step->padding);
        }
    }
}

static void test_tokens_that_cannot_be_divided_are_refused(void) {
    PlanInput in = model(2, 1000, 3);
    Plan p;
    in.total_tokens = 8;
    CHECK_EQ(plan_make(&p, &in, err, sizeof err), -1);
    CHECK(strstr(err, "-d 8") != NULL);
}

static void test_time_is_work_by_rate(void) {
    PlanInput in = model(4, 64000, 4);  // no padding
    in.B = 2;
    in.T = 100;
    in.total_tokens = 2400;  // three micro-steps
    Plan p;
    CHECK_EQ(plan_make(&p, &in, err, sizeof err), 0);
    CHECK_EQ(p.micro_steps, 3);
    for (int stage = 0; stage < PLAN_STAGES; stage++) {
        check_printed(p.stage[stage].times.compute, "%.9g", "2.32962588e-06");  // 600 x 6 x 256000 / (989e12 x 0.4)
    }
    // a rank receives 3/4 of everything: gradients thrice, in stage 1 then parameters; from each rank 184 bytes for the
    // norm, 3 losses, whether it was asked to stop, and how long it computed
    CHECK_EQ(p.stage[1].wire_total, 192000 * 2 * 3 + 192000 * 2 + 3 * (184 + 40));
    CHECK_EQ(p.stage[0].wire_total, 192000 * 2 * 3 + 192000 * 4 + 3 * (184 + 40));
}

// Of the fastest ways to run, the one that is recommended: groups of a host where the network is slow, one group where
// it costs nothing, and what fits.
static void test_the_recommended_plan_suits_the_cluster(void) {
    PlanInput in = model(50, 140000000, 64);
    Plan p, q;
    in.transport = zero_transport_find("nccl");
    in.ranks_per_host = 8;
    in.B = 1024;
    in.cluster.net_bytes_per_second = 5e9;
    in.comm_config.one_level = 1;
    CHECK_EQ(plan_make(&p, &in, err, sizeof err), 0);
    REQUIRE(p.recommended > 0, "none");
    const PlanChoice *slow = &p.fastest[p.recommended], *one = &p.one_group[p.recommended];
    CHECK_EQ(slow->shard_group, 8);
    CHECK(slow->times.step < 0.5 * one->times.step && slow->times.between_hosts < one->times.between_hosts);
    CHECK_EQ(one->memory, p.stage[p.recommended].memory_total);
    for (int stage = 0; stage < PLAN_STAGES; stage++) {
        CHECK(!p.fastest[stage].fits || (double)p.fastest[stage].memory <= in.device_bytes);
        CHECK(!p.fastest[stage].fits || p.fastest[stage].times.step * 1.03 > slow->times.step);
    }
    CHECK(!p.fastest[0].fits);  // 112 GB
    in.device_bytes = 20e9;     // less than stage 2 needs in groups of 8
    CHECK_EQ(plan_make(&q, &in, err, sizeof err), 0);
    CHECK_EQ(q.recommended, 3);
    CHECK((double)q.fastest[3].memory <= 20e9);
    in.device_bytes = 1e9;
    CHECK_EQ(plan_make(&q, &in, err, sizeof err), 0);
    CHECK_EQ(q.recommended, -1);
    in.device_bytes = 80e9;
    in.comm_config.one_level = 0;  // two levels send fewer bytes between hosts, and take less time
    CHECK_EQ(plan_fastest(&q, &in, err, sizeof err), 0);
    CHECK(q.one_group[1].times.step < 0.5 * p.one_group[1].times.step);
    in.cluster.net_bytes_per_second = in.cluster.link_bytes_per_second = 1e18;
    CHECK_EQ(plan_fastest(&q, &in, err, sizeof err), 0);
    CHECK_EQ(q.recommended, 1);
    CHECK_EQ(q.fastest[1].shard_group, 64);
    CHECK_EQ(q.fastest[1].order, ZERO_ORDER_STEP);
    in.cluster.net_bytes_per_second = 1e9;  // many micro-batches are reduced once
    in.device_bytes = 1e12;
    in.total_tokens = 64 * 64 * in.B;
    in.flops_per_token = 1;
    CHECK_EQ(plan_fastest(&q, &in, err, sizeof err), 0);
    CHECK_EQ(q.recommended, 1);
    CHECK_EQ(q.fastest[1].order, ZERO_ORDER_RANK);
    in.device_bytes = 20e9;  // only stage 3 fits, which gathers parameters twice a step, layer by layer
    CHECK_EQ(plan_fastest(&q, &in, err, sizeof err), 0);
    CHECK_EQ(q.recommended, 3);
    CHECK_EQ(q.fastest[3].order, ZERO_ORDER_LAYER);
    in.flops_per_token = 1e14;  // computing a third more would take longer
    CHECK_EQ(plan_fastest(&q, &in, err, sizeof err), 0);
    CHECK_EQ(q.fastest[3].order, ZERO_ORDER_STEP);
    in.flops_per_token = 1;
    in.device_bytes = 1e12;
    in.ranks_per_host = 0;  // one host has no groups
    in.cluster.link_bytes_per_second = 1;
    CHECK_EQ(plan_fastest(&q, &in, err, sizeof err), 0);
    CHECK_EQ(q.fastest[q.recommended].shard_group, 64);
}

// 96 layers of GPT-3 on 65536 ranks, with the search for the smallest number: the time is printed, machines differ.
static void test_175b_on_65536_ranks(void) {
    PlanInput in = model(97, 1800000000, 65536);
    Plan p;
    const clock_t begin = clock();
    CHECK_EQ(plan_make(&p, &in, err, sizeof err), 0);
    printf("planned in %.3f s\n", (double)(clock() - begin) / CLOCKS_PER_SEC);
    CHECK_EQ(p.lowest_stage, 3);
    CHECK(p.stage[0].memory_total > 16 * (uint64_t)174600000000);
}

// 65536 layers with 10^10 tokens a step took more than a minute: the formulas walked all layers in all micro-steps, for
// each number of ranks. The time is printed.
static void test_many_layers_and_micro_steps_cost_no_time(void) {
    enum { UNITS = 1 + 65536, TOKENS = 1 << 13 };
    static zero_tensor many[UNITS];
    static size_t both_ways[2 * UNITS];
    PlanInput in = model(2, 1000, 8);
    Plan p, q;
    for (size_t u = 0; u < UNITS; u++) {
        many[u] = (zero_tensor){ "unit", u ? 1200 : 5000, u, 0, 1, u == 0 };
        both_ways[u] = both_ways[2 * UNITS - 1 - u] = u;
    }
    in.tensors = many;
    in.num_tensors = UNITS;
    in.order = both_ways;
    in.order_length = 2 * UNITS;
    in.total_tokens = (size_t)5 * 5 * 5 * 5 * 5 * 5 * 5 * 5 * 5 * TOKENS;  // 1.6 * 10^10
    const clock_t begin = clock();
    CHECK_EQ(plan_make(&p, &in, err, sizeof err), 0);
    in.settings.shard_group = 8;
    in.ranks = 64;
    CHECK_EQ(plan_make(&q, &in, err, sizeof err), 0);
    printf("planned twice in %.3f s\n", (double)(clock() - begin) / CLOCKS_PER_SEC);
    CHECK_EQ(p.numel, 5000 + 65536 * 1200);
    // Stage 3, in a micro-step: all layers there and back but the last two, which are still in the two buffers; the
    // embedding, whose buffer is its own, in the first one only.
    const uint64_t layer = 192, embedding = 640;  // of a rank, with padding
    const uint64_t gathers = p.micro_steps * (2 * 65536 - 2) - 2 * (p.micro_steps - 1);
    CHECK_EQ(p.stage[3].wire[1].kind, ZERO_WIRE_PARAMS);
    CHECK_EQ(p.stage[3].wire[1].expected, (gathers * layer + embedding) * 7 * 2);
}

int main(int argc, char **argv) {
    test_start(&argc, argv);
    RUN(test_the_table_of_the_zero_paper);
    RUN(test_frozen_units_cost_parameters_alone);
    RUN(test_7b_on_8_data_parallel_ranks);
    RUN(test_the_smallest_number_of_ranks_is_that);
    RUN(test_groups_shard_as_if_they_were_alone);
    RUN(test_groups_that_cost_more_wire_are_not_formed);
    RUN(test_rank_by_rank_sends_sums_once);
    RUN(test_tokens_that_cannot_be_divided_are_refused);
    RUN(test_time_is_work_by_rate);
    RUN(test_activations_in_host_memory_cost_what_computing_does_not_hide);
    RUN(test_the_recommended_plan_suits_the_cluster);
    RUN(test_175b_on_65536_ranks);
    RUN(test_many_layers_and_micro_steps_cost_no_time);
    return test_finish();
}
