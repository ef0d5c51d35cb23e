// The simulator of a step: its bytes are those of the wire table, its times those of schedules worked out by hand.
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "test/harness/harness.h"
#include "trainer/step_simulator.h"
#include "zero/comm/transport_registry.h"
#include "zero/kernels.h"

enum { MAX_UNITS = 256 };

static zero_tensor tensors[MAX_UNITS];
static size_t order[2 * MAX_UNITS + 1];
static double flops[2 * MAX_UNITS + 1];
static zero_layout layout;
static zero_cost cost;
static StepInput input;
static int one_level;  // bytes between hosts travel in one level

// A model of GPT-2's shape: unit 0 is tied, and used first, in the middle twice. A use takes `use` seconds; a link and
// a network have a byte a second, without latency.
static void describe(size_t units, size_t numel, size_t ranks, size_t group, size_t host, int nccl, double use) {
    const char *why;
    size_t n = 0;
    for (size_t u = 0; u < units; u++) tensors[u] = (zero_tensor){ "unit", numel, u, u * numel, 1, u == 0 };
    for (size_t u = 0; u < units; u++) order[n++] = u;
    order[n++] = 0;
    order[n++] = 0;
    for (size_t u = units - 1; u > 0; u--) order[n++] = u;
    for (size_t i = 0; i < n; i++) flops[i] = use;
    const zero_transport *transport = zero_transport_find(nccl ? "nccl" : "mpi");
    const zero_comm_config config = { .one_level = one_level };
    const size_t per_host = host > 0 && host < ranks ? host : ranks, here = group < per_host ? group : per_host;
    zero_layout_destroy(&layout);
    REQUIRE(zero_layout_create(&layout, tensors, units, group, &why) == 0, "%s", why);
    cost = (zero_cost){ .settings = { .dtype = ZERO_F32, .prefetch = 1 },
                        .order = order,
                        .order_length = n,
                        .shard_transport = zero_transport_shape(transport, &config, group, here),
                        .replicas = ranks / group,
                        .replicate_transport = zero_transport_shape(transport, &config, ranks / group, per_host / here),
                        .max_micro_batches = 1,
                        .micro_batches = 1 };
    input = (StepInput){ .cluster = { .ranks_per_host = host,
                                      .link_bytes_per_second = 1,
                                      .net_bytes_per_second = 1,
                                      .flops = 1,
                                      .memory = 1e30,
                                      .streams = nccl },
                         .cost = &cost,
                         .layout = &layout,
                         .order_flops = flops,
                         .update_bytes = 28 };
}

static StepTimes simulate(int stage) {
    StepTimes t;
    cost.settings.stage = stage;
    REQUIRE(step_simulate(&input, &t) == 0, "out of memory");
    return t;
}

// The rows of a table of formulas, without scalars and the norm: of `norms` ranks.
static double sum(const zero_row *rows, size_t n, size_t norms) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < n; i++) {
        if (rows[i].kind != ZERO_WIRE_SCALARS) bytes += rows[i].expected;
        if (rows[i].kind == ZERO_WIRE_REPLICAS && cost.replicas > 1)
            bytes -= norms * ZERO_NORM_WORDS * sizeof(uint64_t);
    }
    return (double)bytes;
}

static void check_bytes(size_t ranks, size_t group, size_t host) {
    zero_row rows[ZERO_WIRE_KINDS];
    for (int way = 0; way < 12; way++) {
        const int stage = way % 4;
        cost.settings.order = (enum zero_order)(way / 4);
        if (way >= 4 && cost.settings.reduction == ZERO_REDUCE_LIBRARY) break;
        if (cost.settings.order == ZERO_ORDER_RANK && stage >= 2) continue;
        const StepTimes t = simulate(stage);
        const size_t G = cost.micro_batches, R = ranks / group, here = host < group ? host : group;
        const size_t norms = here * zero_comm_gather_chunks(&cost.replicate_transport, host / here);
        const double wire = sum(rows, zero_cost_wire(&cost, &layout, rows, ZERO_WIRE_KINDS), R - 1);
        CHECK(t.received == wire, "%zu ranks, groups of %zu, hosts of %zu, G %zu, way %d: %.0f, not %.0f", ranks, group,
              host, G, way, t.received, wire);
        const double between = sum(rows, zero_cost_between_hosts(&cost, &layout, host, rows, ZERO_WIRE_KINDS), norms);
        CHECK(t.between_hosts == between, "%zu ranks, groups of %zu, hosts of %zu, G %zu, way %d: %.0f, not %.0f",
              ranks, group, host, G, way, t.between_hosts, between);
    }
}

static void test_bytes_are_those_of_the_formulas(void) {
    static const struct {
        size_t ranks, group, host;
    } cases[] = { { 1, 1, 1 },  { 2, 2, 1 }, { 2, 2, 2 }, { 12, 12, 4 },    { 12, 4, 4 },        { 12, 2, 4 },
                  { 12, 6, 3 }, { 9, 3, 3 }, { 9, 9, 3 }, { 16, 8, 4 },     { 16, 4, 8 },        { 18, 18, 6 },
                  { 8, 8, 2 },  { 8, 4, 1 }, { 8, 2, 2 }, { 65536, 64, 8 }, { 65536, 65536, 8 }, { 65536, 8, 8 } };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const size_t ranks = cases[i].ranks, group = cases[i].group, host = cases[i].host;
        for (int variant = 0; variant < 12; variant++) {
            for (size_t G = 1; G <= 12; G = G < 4 ? G + 1 : G + 4) {
                one_level = variant / 6;
                describe(5, 10007, ranks, group, host, variant % 2, 1);
                if (variant % 6 >= 4) zero_layout_set_frozen(&layout, 2, 1);
                if (variant % 6 == 2) cost.settings.reduction = ZERO_REDUCE_LIBRARY;
                cost.settings.dtype = variant % 6 < 3 ? ZERO_F32 : ZERO_BF16;
                cost.settings.prefetch = variant % 3;
                cost.micro_batches = cost.max_micro_batches = G;
                check_bytes(ranks, group, host);
            }
        }
    }
    one_level = 0;
}

// Worked out by hand, in units of all parameters in fp32; no padding.
static void test_bytes_between_hosts(void) {
    static const struct {
        size_t ranks, group, host, G;
        int nccl, one_level, stage;
        double all;
    } cases[] = {
        { 16, 16, 8, 1, 0, 1, 1, 8 },     // 8 ranks receive 8 of 16 shards, of gradients and of parameters
        { 16, 16, 8, 1, 0, 0, 1, 1 },     // 8 of 16 shards, twice
        { 8, 8, 4, 8, 0, 1, 1, 16 + 2 },  // eight reduce-scatters
        { 8, 8, 4, 8, 0, 0, 1, 4 + 0.5 },
        { 9, 9, 3, 1, 0, 0, 2, 2 * 3 * 6 / 9.0 - 2 * 6 / 9.0 },  // three sums of a micro-batch: as many as in one level
        { 8, 8, 2, 1, 0, 1, 0, 2 * 2 * 6 / 8.0 },                // the sums, in place of parameters
        { 16, 16, 8, 1, 1, 1, 1, 4 + 15 / 16.0 },                // NCCL gathers in a ring
        { 16, 16, 8, 1, 1, 0, 1, 0.5 + 15 / 16.0 },
        { 16, 16, 16, 1, 0, 0, 1, 0 },  // one host
        { 16, 16, 0, 1, 0, 0, 1, 0 },
        { 16, 8, 8, 1, 0, 0, 1, 1 },                 // 8 ranks receive the other group's sum of 1/16, there and back
        { 16, 4, 8, 1, 0, 1, 2, 8 * 2 * 2 / 16.0 },  // 4 replicas of a shard of 1/4, 2 of them on this host
        { 16, 4, 8, 1, 0, 0, 2, 8 * 2 / 16.0 + 4 * 2 / 16.0 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        one_level = cases[i].one_level;
        describe(4, 64 * 1440, cases[i].ranks, cases[i].group, cases[i].host, cases[i].nccl, 1);
        cost.micro_batches = cases[i].G;
        const double bytes = simulate(cases[i].stage).between_hosts, psi = 4 * (double)layout.numel_padded;
        CHECK(bytes > psi * cases[i].all * 0.999999 - 1e-3 && bytes < psi * cases[i].all * 1.000001 + 1e-3,
              "case %zu: %f, not %f", i, bytes / psi, cases[i].all);
    }
}

static int near(double is, double want) { return is > want * 0.999999 - 1e-9 && is < want * 1.000001 + 1e-9; }
#define NEAR(is, want) CHECK(near(is, want), "%.9g, not %.9g", (double)(is), (double)(want))

// Two hosts of a rank, three units of 512 bytes: an all-gather or a reduce-scatter of one takes U = 256 s. A unit is
// used for C s. Scalars take 2 x 184 s.
static void test_schedules_worked_out_by_hand(void) {
    enum { C = 1000, U = 256, S = 2 * 184 };
    // MPI: one after the other
    describe(3, 128, 2, 2, 1, 0, C);
    NEAR(simulate(0).step, 7 * C + 3 * U + 3 * U + S);
    NEAR(simulate(1).step, 7 * C + 3 * U + 3 * U + S);
    NEAR(simulate(3).step, 7 * C + 3 * U + 3 * U + S);  // units 1 and 2 are in their buffers in the backward
    cost.micro_batches = 5;
    NEAR(simulate(2).step, 5 * (7 * C + 3 * U) + 3 * U + S);
    // NCCL: reductions hide under the backward, but for that of unit 0, which is tied, and begins when 1's is over
    describe(3, 128, 2, 2, 1, 1, C);
    NEAR(simulate(0).step, 7 * C + 2 * U + 3 * U + S);  // those of 1 and 0
    NEAR(simulate(1).step, 7 * C + 2 * U + U + S);      // the other all-gathers hide under the next forward
    NEAR(simulate(3).step, 7 * C + 2 * U + U + S);      // unit 0's all-gather
    cost.settings.prefetch = 0;
    // 0 1 2, and 1 again in the backward, which waits for the reduction of 2 before it
    NEAR(simulate(3).step, 7 * C + 2 * U + 4 * U + U + S);
    // NCCL, when the network is slower than computing: all-gathers of 0 1 2, a use each of 2 0 0 2, reductions of 2 1 0
    describe(3, 128, 2, 2, 1, 1, 1);
    NEAR(simulate(3).step, 3 * U + 4 + 3 * U + S);
    // A message takes longer: each rank of two hosts of 2 sends one inside, two between.
    one_level = 1;
    describe(3, 256, 4, 4, 2, 0, C);
    const double without = simulate(0).step;
    input.cluster.net_latency = 10;
    NEAR(simulate(0).step, without + 2 * 10 * (3 + 3 + 2));
    input.cluster.link_latency = 1e6;
    NEAR(simulate(0).link, 1e6 * (3 + 3 + 2) + 6 * U + S);
    // In two levels: two chunks inside the host, one of sums to the other. A chunk takes U on a link, 2 U on the
    // network. The norm is gathered like parameters, the losses are not.
    one_level = 0;
    describe(3, 256, 4, 4, 2, 0, C);
    NEAR(simulate(2).step, 7 * C + 3 * (2 * U + 2 * U) + 3 * 3 * U + 3 * 184 + 2 * S);
}

static void test_a_step_is_between_the_longest_and_the_sum(void) {
    for (int nccl = 0; nccl < 2; nccl++) {
        for (size_t host = 1; host <= 8; host *= 2) {
            for (double use = 1; use < 1e6; use *= 10) {
                describe(6, 6400, 8, 8, host, nccl, use);
                cost.micro_batches = 4;
                for (int stage = 0; stage <= 3; stage++) {
                    const StepTimes t = simulate(stage);
                    CHECK(t.step >= t.compute * 0.999999 && t.step >= t.net * 0.999999 && t.step >= t.link * 0.999999);
                    CHECK(t.step <= (t.compute + t.net + t.link) * 1.000001);
                }
            }
        }
    }
}

// 96 layers, 65536 ranks, 10^9 micro-steps: the time is printed, machines differ.
static void test_many_ranks_and_micro_steps_cost_no_time(void) {
    describe(97, 1800000000, 65536, 65536, 8, 1, 1);
    cost.micro_batches = 1000000000;
    const clock_t begin = clock();
    const StepTimes t = simulate(3);
    printf("simulated in %.6f s\n", (double)(clock() - begin) / CLOCKS_PER_SEC);
    cost.micro_batches = 10;
    const StepTimes ten = simulate(3);
    cost.micro_batches = 9;
    const StepTimes nine = simulate(3);
    NEAR(t.compute, 1e9 * (ten.compute - nine.compute));
    NEAR(t.step, ten.step + (1e9 - 10) * (ten.step - nine.step));
}

int main(int argc, char **argv) {
    test_start(&argc, argv);
    RUN(test_bytes_are_those_of_the_formulas);
    RUN(test_bytes_between_hosts);
    RUN(test_schedules_worked_out_by_hand);
    RUN(test_a_step_is_between_the_longest_and_the_sum);
    RUN(test_many_ranks_and_micro_steps_cost_no_time);
    zero_layout_destroy(&layout);
    return test_finish();
}
