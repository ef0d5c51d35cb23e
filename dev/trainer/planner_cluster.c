// Time: how long a step takes in each stage, and which stage, shard group and order of micro-batches are the fastest on
// this cluster.
//
// A step is simulated (step_simulator.h), and then comes what is offloaded: the host updates the optimizer's state, or
// it passes over the disk, which nothing hides; activations pass over the link while layers compute. Candidates for the
// fastest are one shard group of all ranks, and, if there are several hosts, groups of h 2^k ranks, k from below 0, h
// those of a host; each in all stages, and with each order of micro-batches. Out of these come, for each stage, the
// fastest whose memory a device has. Recommended is the lowest stage, and in it the largest group, step by step, unless
// another takes ALIKE times less: a simulation is not more exact than that, and a lower stage has fewer moving parts.
#include <stdlib.h>

#include "trainer/planner_internal.h"
#include "trainer/profiler.h"

static const double ALIKE = 1.02;

// What a step takes longer because of what is offloaded.
static double offload_seconds(const PlanInput *in, const zero_cost *cost, const zero_layout *l) {
    const size_t ranks = in->ranks_per_host > 0 && in->ranks_per_host < in->ranks ? in->ranks_per_host : in->ranks;
    const double host = (double)zero_cost_offload_traffic(cost, l, ZERO_OFFLOAD_CPU),
                 disk = (double)(zero_cost_offload_traffic(cost, l, ZERO_OFFLOAD_NVME) * ranks);
    return (host > 0 ? host / in->host_bytes_per_second : 0) + (disk > 0 ? disk / in->disk_bytes_per_second : 0);
}

// The forward copies them out, which has a third of the computing, and the backward copies them in.
double plan_offloaded_seconds(const PlanInput *in, size_t micro_batches) {
    const double computing = (double)(in->B * in->T) * in->flops_per_token / (in->peak_flops * in->efficiency);
    const double copying = (double)in->offloaded_bytes / in->host_bytes_per_second, forward = computing / 3;
    double seconds = 0;
    if (in->offloaded_bytes == 0) return 0;
    if (copying > forward) seconds += copying - forward;
    if (copying > computing - forward) seconds += copying - (computing - forward);
    return (double)micro_batches * seconds;
}

int plan_simulate(const PlanInput *in, const zero_cost *cost, const zero_layout *l, StepTimes *times) {
    double *flops = malloc((in->order_length + 1) * sizeof *flops);
    StepInput step = { .cluster = in->cluster,
                       .cost = cost,
                       .layout = l,
                       .order_flops = flops,
                       .update_bytes = profile_update_bytes(&cost->settings) };
    if (flops == NULL) return -1;
    for (size_t i = 0; i < in->order_length; i++) {
        const double of_token = in->order_flops != NULL ? in->order_flops[i]
                                                        : in->flops_per_token / (double)in->order_length;
        flops[i] = (double)(in->B * in->T) * of_token;
    }
    step.cluster.ranks_per_host = in->ranks_per_host;
    step.cluster.flops = in->peak_flops * in->efficiency;
    step.cluster.streams = zero_transport_needs_device(in->transport);
    const int e = step_simulate(&step, times);
    free(flops);
    times->offload = offload_seconds(in, cost, l) + plan_offloaded_seconds(in, cost->micro_batches);
    times->step += times->offload;
    return e;
}

// Ranks of the next smaller group to try; 0: there are no more.
static size_t smaller_group(const PlanInput *in, size_t group) {
    const size_t N = in->ranks, h = in->ranks_per_host;
    if (h == 0 || h >= N) return 0;
    size_t next = h;
    while (next * 2 < group) next *= 2;
    while (next >= group || N % next != 0) {
        if (next % 2 != 0 || next < 4) return 0;
        next /= 2;
    }
    return next;
}

// Simulates this stage in groups of `group` ranks. Returns 1; 0 if such groups are not formed, or the order is another
// one; -1: out of memory.
static int try_way(const PlanInput *in, Layouts *l, int stage, size_t group, enum zero_order order, PlanChoice *out) {
    const char *why;
    PlanInput with = *in;
    with.settings.shard_group = group;
    with.settings.order = order;
    if (plan_group_size(l, &with, stage, in->ranks, &why) != group) return 0;
    const zero_cost cost = plan_cost(&with, stage, in->ranks, group);
    if (cost.settings.order != order) return 0;
    out->shard_group = group;
    out->order = order;
    out->memory = plan_bytes(&with, &cost, &l->shards);
    out->fits = plan_bytes_fit(&with, &cost, out->memory);
    return plan_simulate(&with, &cost, &l->shards, &out->times) == 0 ? 1 : -1;
}

// Whether a way to run is worth more than the best before it, which has fewer moving parts.
static int is_better(const PlanChoice *c, const PlanChoice *best) {
    return c->fits && (!best->fits || c->times.step * ALIKE < best->times.step);
}

int plan_choose(Plan *p, const PlanInput *in, Layouts *l) {
    double least = 0;
    p->recommended = -1;
    for (int stage = 0; stage < PLAN_STAGES; stage++) {
        PlanChoice *best = &p->fastest[stage], *one = &p->one_group[stage];
        for (size_t group = in->ranks; group > 0; group = stage > 0 ? smaller_group(in, group) : 0) {
            for (int order = ZERO_ORDER_STEP; order <= ZERO_ORDER_LAYER; order++) {
                PlanChoice c;
                const int tried = try_way(in, l, stage, group, (enum zero_order)order, &c);
                if (tried < 0) return -1;
                if (tried == 0) continue;
                if (group == in->ranks && (order == ZERO_ORDER_STEP || is_better(&c, one))) *one = c;
                if (is_better(&c, best)) *best = c;
            }
        }
        if (best->fits && (least == 0 || best->times.step < least)) least = best->times.step;
    }
    for (int stage = PLAN_STAGES - 1; stage >= 0; stage--)
        if (p->fastest[stage].fits && p->fastest[stage].times.step <= least * ALIKE) p->recommended = stage;
    return 0;
}
