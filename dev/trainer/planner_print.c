// A plan as text and as JSON.
#include <math.h>
#include <string.h>

#include "trainer/json.h"
#include "trainer/planner_internal.h"
#include "zero/accounting.h"
#include "zero/comm/transport_registry.h"
#include "zero/optimizers/optimizers.h"

// ---------------------------------------------------------------------------------------------------------------------
// As text

const char *plan_order_name(enum zero_order order) {
    static const char *const NAMES[] = { "step", "rank", "layer" };
    return NAMES[order];
}

static void print_head(FILE *out, const char *title) {
    fprintf(out, "\n%-30s", title);
    for (int stage = 0; stage < PLAN_STAGES; stage++) {
        fprintf(out, "%14s %d", "stage", stage);
    }
    fprintf(out, "\n");
}

// One row of bytes, at the same offset in each PlanStage.
static void print_bytes(FILE *out, const Plan *p, const char *what, size_t offset) {
    fprintf(out, "%-30s", what);
    for (int stage = 0; stage < PLAN_STAGES; stage++) {
        fprintf(out, "%16lld", (long long)*(const uint64_t *)((const char *)&p->stage[stage] + offset));
    }
    fprintf(out, "\n");
}

static void print_reals(FILE *out, const char *what, const double value[PLAN_STAGES], int digits) {
    fprintf(out, "%-30s", what);
    for (int stage = 0; stage < PLAN_STAGES; stage++) {
        if (isnan(value[stage])) {
            fprintf(out, "%16s", "-");
        } else {
            fprintf(out, "%16.*f", digits, value[stage]);
        }
    }
    fprintf(out, "\n");
}

// "stage 0, 1: 2 Psi; stage 2, 3: ..."; rows: those at this offset of each stage.
static void print_formula(FILE *out, const Plan *p, const char *what, size_t offset) {
    const char *last = NULL;
    fprintf(out, "    %-20s", what);
    for (int stage = 0; stage < PLAN_STAGES; stage++) {
        const char *formula = ((const zero_row *)((const char *)&p->stage[stage] + offset))->formula;
        const int same = last != NULL && strcmp(last, formula) == 0;
        if (!same && last != NULL) {
            fprintf(out, ": %s", last);
        }
        fprintf(out, same ? ", %d" : last != NULL ? "; stage %d" : "stage %d", stage);
        last = formula;
    }
    fprintf(out, ": %s\n", last);
}

#define OF_ROW(rows, i, field) (offsetof(PlanStage, rows) + (i) * sizeof(zero_row) + offsetof(zero_row, field))

// A number of ranks for each stage, the first at this offset in the plan, the others each `stride` further; 0: none.
static void print_ranks(FILE *out, const Plan *p, const char *what, size_t offset, size_t stride) {
    fprintf(out, "%-30s", what);
    for (int stage = 0; stage < PLAN_STAGES; stage++) {
        const size_t ranks = *(const size_t *)((const char *)p + offset + (size_t)stage * stride);
        if (ranks > 0) {
            fprintf(out, "%16zu", ranks);
        } else {
            fprintf(out, "%16s", "none");
        }
    }
    fprintf(out, "\n");
}

static int offloads(const PlanInput *in, enum zero_offload place) {
    return in->settings.offload == place || in->settings.offload_params == place;
}

static void print_memory(FILE *out, const Plan *p, const PlanInput *in) {
    double gb[PLAN_STAGES], paper_gb[PLAN_STAGES];
    for (int stage = 0; stage < PLAN_STAGES; stage++) {
        gb[stage] = (double)p->stage[stage].memory_total / 1e9;
        paper_gb[stage] = (double)p->stage[stage].paper / 1e9;
    }
    print_head(out, "memory per rank, bytes");
    for (size_t i = 0; i < p->stage[0].memory_rows; i++) {
        print_bytes(out, p, p->stage[0].memory[i].what, OF_ROW(memory, i, expected));
    }
    print_bytes(out, p, "total", offsetof(PlanStage, memory_total));
    print_reals(out, "total, GB (10^9 bytes)", gb, 2);
    fprintf(out, "%-21s%6.6g GB", "fits a device of", in->device_bytes / 1e9);
    for (int stage = 0; stage < PLAN_STAGES; stage++) {
        fprintf(out, "%16s", p->stage[stage].fits ? "yes" : "no");
    }
    fprintf(out, "\n");
    if (in->snapshot_per_parameter > 0) {
        print_bytes(out, p, p->stage[0].snapshot.what, offsetof(PlanStage, snapshot.expected));
    }
    if (in->settings.shard_group > 0 && in->settings.shard_group < in->ranks) {
        fprintf(out, "  stage 0 shards nothing, and cannot be had with --shard-group\n");
    }
    fprintf(out, "  formulas (Psi: padded parameters, N: ranks that shard, G: micro-steps)\n");
    for (size_t i = 0; i < p->stage[0].memory_rows; i++) {
        print_formula(out, p, p->stage[0].memory[i].what, offsetof(PlanStage, memory) + i * sizeof(zero_row));
    }
    if (in->snapshot_per_parameter > 0) {
        print_formula(out, p, "snapshot", offsetof(PlanStage, snapshot));
    }

    print_head(out, "model states per rank, bytes");
    print_bytes(out, p, "as in the ZeRO paper", offsetof(PlanStage, paper));
    print_bytes(out, p, "fp32 sums, for exactness", offsetof(PlanStage, sums));
    print_bytes(out, p, "padding of shards", offsetof(PlanStage, padding));
    print_bytes(out, p, "less: smaller master weights", offsetof(PlanStage, smaller_master));
    if (offloads(in, ZERO_OFFLOAD_CPU) || offloads(in, ZERO_OFFLOAD_NVME))
        print_bytes(out, p, "less: offloaded", offsetof(PlanStage, offloaded));
    print_bytes(out, p, "parameters to optimizer state", offsetof(PlanStage, states));
    print_reals(out, "ZeRO paper, GB", paper_gb, 2);
    const size_t states = zero_optimizer_get(in->settings.optimizer)->num_states;
    const int b = (int)zero_dtype_bytes(in->settings.dtype), k = plan_optimizer_bytes(in->settings.dtype, states);
    fprintf(out, "  the paper, bytes for each parameter: %s%d, %d + %d/N, %d + %d/N, %d/N\n",
            in->settings.dtype == ZERO_BF16 ? "" : "(with fp32 throughout) ", 2 * b + k, 2 * b, k, b, b + k, 2 * b + k);
}

// Where optimizer state is offloaded.
static void print_bus(FILE *out, const Plan *p) {
    const size_t n = p->stage[0].bus_rows;
    if (n == 0) return;
    print_head(out, "copied per rank, step, bytes");
    for (size_t i = 0; i < n; i++) print_bytes(out, p, p->stage[0].bus[i].what, OF_ROW(bus, i, expected));
    fprintf(out, "  formulas\n");
    for (size_t i = 0; i < n; i++)
        print_formula(out, p, p->stage[0].bus[i].what, offsetof(PlanStage, bus) + i * sizeof(zero_row));
}

static void print_wire(FILE *out, const Plan *p) {
    double host[PLAN_STAGES];
    for (int stage = 0; stage < PLAN_STAGES; stage++) {
        host[stage] = p->stage[stage].times.between_hosts;
    }
    print_head(out, "wire per rank, step, bytes");
    for (size_t i = 0; i < p->stage[0].wire_rows; i++) {
        print_bytes(out, p, p->stage[0].wire[i].what, OF_ROW(wire, i, expected));
    }
    print_bytes(out, p, "received in all", offsetof(PlanStage, wire_total));
    print_reals(out, "a host, from other hosts", host, 0);
    fprintf(out, "  formulas\n");
    for (size_t i = 0; i < p->stage[0].wire_rows; i++) {
        print_formula(out, p, p->stage[0].wire[i].what, offsetof(PlanStage, wire) + i * sizeof(zero_row));
    }
}

static void print_time(FILE *out, const Plan *p, const PlanInput *in) {
    const StepCluster *c = &in->cluster;
    double compute[PLAN_STAGES], link[PLAN_STAGES], net[PLAN_STAGES], step[PLAN_STAGES], offload[PLAN_STAGES];
    for (int stage = 0; stage < PLAN_STAGES; stage++) {
        const StepTimes *t = &p->stage[stage].times;
        compute[stage] = 1e3 * t->compute;
        link[stage] = 1e3 * t->link;
        net[stage] = 1e3 * t->net;
        step[stage] = 1e3 * t->step;
        offload[stage] = 1e3 * t->offload;
    }
    print_head(out, "time per step, ms, simulated");
    print_reals(out, "computing", compute, 3);
    print_reals(out, "receiving inside the host", link, 3);
    print_reals(out, "receiving from other hosts", net, 3);
    if (offloads(in, ZERO_OFFLOAD_CPU) || offloads(in, ZERO_OFFLOAD_NVME) || in->offloaded_bytes > 0)
        print_reals(out, "moving offloaded state", offload, 3);
    print_reals(out, "step, with what overlaps", step, 3);
    fprintf(out,
            "  computing: G B T x %.4g FLOPs a token / (%g TFLOP/s x %g), and the update, at %g GB/s of memory;\n"
            "  inside: %g GB/s to a rank, %g us a message; between: %g GB/s to a host, %g us a message\n",
            in->flops_per_token, in->peak_flops / 1e12, in->efficiency, c->memory / 1e9, c->link_bytes_per_second / 1e9,
            c->link_latency * 1e6, c->net_bytes_per_second / 1e9, c->net_latency * 1e6);
    if (offloads(in, ZERO_OFFLOAD_CPU))
        fprintf(out, "  offloaded state: there and back, at %g GB/s of a rank\n", in->host_bytes_per_second / 1e9);
    if (in->offloaded_bytes > 0)
        fprintf(out, "  offloaded activations: at %g GB/s, less the forward there, the backward back\n",
                in->host_bytes_per_second / 1e9);
    if (offloads(in, ZERO_OFFLOAD_NVME))
        fprintf(out, "  offloaded state: there and back, at %g GB/s of a host's disk\n",
                in->disk_bytes_per_second / 1e9);
}

// What a step waits for most, beside computing.
static const char *bound_by(const StepTimes *t) {
    if (t->compute > 0.95 * t->step) return "computing";
    if (t->offload > t->net && t->offload > t->link) return "moving offloaded state";
    return t->net > t->link ? "the network" : "links inside hosts";
}

static const char *order_name(const PlanChoice *c) { return c->fits ? plan_order_name(c->order) : "-"; }

static void print_fastest(FILE *out, const Plan *p, const PlanInput *in) {
    double step[PLAN_STAGES], gb[PLAN_STAGES], host[PLAN_STAGES];
    for (int stage = 0; stage < PLAN_STAGES; stage++) {
        const PlanChoice *c = &p->fastest[stage];
        step[stage] = c->fits ? 1e3 * c->times.step : NAN;
        gb[stage] = c->fits ? (double)c->memory / 1e9 : NAN;
        host[stage] = c->fits ? c->times.between_hosts / 1e9 : NAN;
    }
    print_head(out, "fastest that fits");
    print_ranks(out, p, "shard group", offsetof(Plan, fastest), sizeof *p->fastest);
    fprintf(out, "%-30s", "order of micro-batches");
    for (int stage = 0; stage < PLAN_STAGES; stage++) {
        fprintf(out, "%16s", order_name(&p->fastest[stage]));
    }
    fprintf(out, "\n");
    print_reals(out, "memory, GB", gb, 2);
    print_reals(out, "a host, from other hosts, GB", host, 3);
    print_reals(out, "step, ms", step, 3);
    if (p->recommended < 0) {
        fprintf(out, "\nrecommended: more ranks, for no stage fits\n");
        return;
    }
    const PlanChoice *best = &p->fastest[p->recommended], *one = &p->one_group[p->recommended];
    fprintf(out, "\nrecommended: -z %d", p->recommended);
    if (best->shard_group < in->ranks) {
        fprintf(out, " --shard-group %zu", best->shard_group);
    }
    if (best->order != ZERO_ORDER_STEP) {
        fprintf(out, " --micro-batch-order %s", plan_order_name(best->order));
    }
    fprintf(out, ": %.3f ms a step, limited by %s\n", 1e3 * best->times.step, bound_by(&best->times));
    if (best->shard_group < in->ranks && one->fits) {
        fprintf(out, "  one shard group would take %.3f ms: a host would receive %.3f GB from others, now %.3f GB\n",
                1e3 * one->times.step, one->times.between_hosts / 1e9, best->times.between_hosts / 1e9);
    }
    for (int stage = 0; stage < p->recommended; stage++) {
        if (p->fastest[stage].fits) {
            fprintf(out, "  stage %d would take %.3f ms\n", stage, 1e3 * p->fastest[stage].times.step);
        } else {
            fprintf(out, "  stage %d needs %.2f GB\n", stage, (double)p->one_group[stage].memory / 1e9);
        }
    }
}

void plan_print(FILE *out, const Plan *p, const PlanInput *in) {
    const size_t waste = p->numel_padded - p->numel;
    fprintf(out, "plan: %s, %s, ranks N = %zu", in->model, in->settings.dtype == ZERO_BF16 ? "BF16" : "FP32",
            in->ranks);
    if (in->settings.shard_group > 0) {
        fprintf(out, " in groups of %zu", in->settings.shard_group);
    }
    for (int stage = 0; stage < PLAN_STAGES; stage++) {
        if (p->stage[stage].one_level) fprintf(out, " (stage %d: one group, groups cost more wire)", stage);
    }
    for (int stage = 0; stage < PLAN_STAGES; stage++) {
        if (p->stage[stage].order != ZERO_ORDER_STEP)
            fprintf(out, " (stage %d: micro-batch order %s)", stage, plan_order_name(p->stage[stage].order));
    }
    if (in->ranks_per_host > 0) {
        fprintf(out, ", at most %zu a host", in->ranks_per_host);
    }
    fprintf(out,
            "\nB x T = %zu x %zu, micro-steps G = %zu, %zu tokens a step; prefetch %zu, recompute %d, transport %s\n",
            in->B, in->T, p->micro_steps, in->B * in->T * p->micro_steps * in->ranks, (size_t)in->settings.prefetch,
            in->recompute, zero_transport_title(in->transport));
    fprintf(out, "parameters: %zu; Psi = %zu with padding, which wastes %zu = %.4f%%\n", p->numel, p->numel_padded,
            waste, 100.0 * (double)waste / (double)p->numel);
    print_memory(out, p, in);
    print_wire(out, p);
    print_bus(out, p);
    print_time(out, p, in);
    print_fastest(out, p, in);

    print_head(out, "ranks from which it fits");
    const size_t stage_bytes = sizeof *p->stage;
    print_ranks(out, p, "smallest power of two", offsetof(Plan, stage[0].smallest_power), stage_bytes);
    print_ranks(out, p, in->total_tokens > 0 ? "smallest that divides -d" : "smallest",
                offsetof(Plan, stage[0].smallest), stage_bytes);
    fprintf(out, "\n");
    if (p->lowest_stage >= 0) {
        fprintf(out, "with N = %zu the lowest stage that fits is %d\n", in->ranks, p->lowest_stage);
    } else {
        fprintf(out, "with N = %zu no stage fits\n", in->ranks);
    }
    if (p->best_stage >= 0) {
        fprintf(out, "the smallest N that fits is %zu, in stage %d\n", p->stage[p->best_stage].smallest, p->best_stage);
    } else {
        fprintf(out, "no N up to %d fits: use a smaller -b or -t, or -r 2\n", PLAN_MAX_RANKS);
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// As JSON

// 0 in a plan means "none".
static void json_ranks(FILE *out, const char *name, size_t ranks) {
    fprintf(out, ranks > 0 ? ", \"%s\": %zu" : ", \"%s\": null", name, ranks);
}

static void json_stage(FILE *out, const char *name, int stage) {
    fprintf(out, stage >= 0 ? ", \"%s\": %d" : ", \"%s\": null", name, stage);
}

static void json_rows(FILE *out, const char *name, const zero_row *rows, size_t n, uint64_t total) {
    fprintf(out, ",\n     \"%s\": {", name);
    for (size_t i = 0; i < n; i++) {
        json_string(out, rows[i].what);
        fprintf(out, ": {\"bytes\": %llu, \"formula\": ", (unsigned long long)rows[i].expected);
        json_string(out, rows[i].formula);
        fprintf(out, "}, ");
    }
    fprintf(out, "\"total\": {\"bytes\": %llu}}", (unsigned long long)total);
}

static void json_times(FILE *out, const StepTimes *t) {
    fprintf(out,
            ",\n     \"seconds\": {\"computing\": %.9g, \"inside_hosts\": %.9g, \"between_hosts\": %.9g, \"offload\": "
            "%.9g, \"step\": %.9g}, \"bytes_to_a_host\": %.0f",
            t->compute, t->link, t->net, t->offload, t->step, t->between_hosts);
}

static void json_choice(FILE *out, const char *name, int stage, const PlanChoice *c) {
    fprintf(out, ",\n     \"%s\": ", name);
    if (c == NULL || !c->fits) {
        fprintf(out, "null");
        return;
    }
    fprintf(out, "{\"stage\": %d, \"shard_group\": %zu, \"micro_batch_order\": \"%s\", \"memory\": %llu", stage,
            c->shard_group, order_name(c), (unsigned long long)c->memory);
    json_times(out, &c->times);
    fprintf(out, "}");
}

void plan_print_json(FILE *out, const Plan *p, const PlanInput *in) {
    fprintf(out, "{\"model\": ");
    json_string(out, in->model);
    fprintf(out,
            ",\n \"precision\": \"%s\", \"ranks\": %zu, \"ranks_per_host\": %zu, \"shard_group\": %zu, \"transport\": "
            "\"%s\",\n",
            in->settings.dtype == ZERO_BF16 ? "bf16" : "fp32", in->ranks, in->ranks_per_host, in->settings.shard_group,
            zero_transport_name(in->transport));
    fprintf(out, " \"B\": %zu, \"T\": %zu, \"micro_steps\": %zu, \"recompute\": %d, \"prefetch\": %zu,\n", in->B, in->T,
            p->micro_steps, in->recompute, (size_t)in->settings.prefetch);
    fprintf(out, " \"parameters\": %zu, \"parameters_padded\": %zu, \"flops_per_token\": %.9g,\n", p->numel,
            p->numel_padded, in->flops_per_token);
    fprintf(out,
            " \"device_bytes\": %.9g, \"link_bytes_per_second\": %.9g, \"net_bytes_per_second\": %.9g, "
            "\"peak_flops\": %.9g, \"efficiency\": %.9g,\n",
            in->device_bytes, in->cluster.link_bytes_per_second, in->cluster.net_bytes_per_second, in->peak_flops,
            in->efficiency);
    fprintf(out, " \"stages\": [");
    for (int stage = 0; stage < PLAN_STAGES; stage++) {
        const PlanStage *s = &p->stage[stage];
        fprintf(out, "%s\n    {\"stage\": %d, \"fits\": %s", stage > 0 ? "," : "", stage, s->fits ? "true" : "false");
        fprintf(out, ", \"micro_batch_order\": \"%s\"", plan_order_name(s->order));
        json_ranks(out, "shard_group", s->shard_group);
        json_ranks(out, "smallest_ranks", s->smallest);
        json_ranks(out, "smallest_power_of_two", s->smallest_power);
        json_times(out, &s->times);
        json_choice(out, "fastest", stage, &p->fastest[stage]);
        fprintf(out, ",\n     \"model_states\": {\"zero_paper\": %llu, \"fp32_sums\": %lld, \"padding\": %llu,",
                (unsigned long long)s->paper, (long long)s->sums, (unsigned long long)s->padding);
        fprintf(out, " \"smaller_master\": %llu, \"offloaded\": %llu, \"total\": %llu}",
                (unsigned long long)s->smaller_master, (unsigned long long)s->offloaded, (unsigned long long)s->states);
        json_rows(out, "memory", s->memory, s->memory_rows, s->memory_total);
        if (in->snapshot_per_parameter > 0) {
            json_rows(out, "host memory", &s->snapshot, 1, s->snapshot.expected);
        }
        json_rows(out, "wire", s->wire, s->wire_rows, s->wire_total);
        if (s->bus_rows > 0) {
            json_rows(out, "copied", s->bus, s->bus_rows, s->bus[0].expected + s->bus[1].expected);
        }
        fprintf(out, "}");
    }
    fprintf(out, "]");
    json_choice(out, "recommended", p->recommended, p->recommended < 0 ? NULL : &p->fastest[p->recommended]);
    json_stage(out, "lowest_stage_that_fits", p->lowest_stage);
    json_stage(out, "stage_with_fewest_ranks", p->best_stage);
    fprintf(out, "}\n");
}
