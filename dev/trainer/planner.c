// The planner asks zero/cost.c, whose formulas a run also prints beside its measurements; so a plan and its run agree
// to the byte. It does so for all stages side by side, and for other numbers of ranks to find the smallest that fits.
//
// That search relies on memory per rank falling with the number of ranks N, which is true up to the padding (64 N
// elements per unit): first powers of two, then bisection between the last that did not fit and the first that did. The
// answer fits, and one rank less does not. When the tokens of a step are given (-d), G = tokens / (B T N) must be a
// whole number, so only N that divide it count, and all of them are tried.
//
// The search divides one layout again and again, and the formulas go by runs of equal units, so that neither many
// layers nor many micro-steps cost time: 65536 layers and 10^10 tokens a step are planned in under a second.
//
// Time is an estimate from three given numbers, without a model of latency: computing takes FLOPs / (N x peak x
// efficiency), receiving takes bytes / bandwidth. A step takes at least the larger of the two (if one hides the other
// entirely), at most their sum.
#include <string.h>

#include "trainer/json.h"
#include "trainer/planner.h"
#include "zero/comm/transport_registry.h"
#include "zero/accounting.h"
#include "zero/optimizers/optimizers.h"

// Of the optimizer, for each parameter: fp32 states; of bf16 parameters also fp32 master weights.
static int optimizer_bytes(enum zero_dtype dtype, size_t states) {
    return 4 * (int)states + (dtype == ZERO_BF16 ? 4 : 0);
}

double plan_paper_bytes(int stage, enum zero_dtype dtype, size_t states, double parameters, double trained,
                        double ranks) {
    const double b = (double)zero_dtype_bytes(dtype);
    const double params = b * parameters / (stage >= 3 ? ranks : 1);
    const double grads = b * trained / (stage >= 2 ? ranks : 1);
    const double optimizer = optimizer_bytes(dtype, 0) * parameters + 4 * (double)states * trained;
    return params + grads + optimizer / (stage >= 1 ? ranks : 1);
}

// Parameters that are not in frozen units, without padding.
static size_t trained_numel(const zero_layout *l) {
    size_t numel = 0;
    for (size_t r = 0; r < l->num_runs; r++) {
        const size_t u = l->run_first[r];
        for (size_t t = l->unit_first[u]; t < l->unit_first[u + 1] && !l->unit_frozen[u]; t++)
            numel += l->tensors[t].numel * (l->run_first[r + 1] - u);
    }
    return numel;
}

void plan_add_losses(zero_row *rows, size_t n, size_t micro_steps, size_t ranks) {
    for (size_t i = 0; i < n; i++) {
        if (rows[i].kind == ZERO_WIRE_SCALARS) {
            size_t length = strlen(rows[i].formula);
            rows[i].expected += (micro_steps + 2) * sizeof(double) * (ranks - 1);
            snprintf(rows[i].formula + length, sizeof rows[i].formula - length, ", %zu (G+2) (N-1) losses",
                     sizeof(double));
        }
    }
}

void plan_add_transport(zero_row *rows, size_t n, zero_comm_shape all) {
    for (size_t i = 0; i < n; i++) {
        if (rows[i].kind == ZERO_MEM_TRANSPORT) {
            rows[i].expected += zero_comm_scratch_bytes(&all, 0, 0, 0);
        }
    }
}

zero_row plan_snapshot(const zero_layout *l, size_t bytes_per_parameter) {
    zero_row row = { .kind = ZERO_MEM_CATEGORIES, .what = "checkpoint snapshot (host)" };
    row.expected = l->numel_padded / l->ranks * bytes_per_parameter;
    snprintf(row.formula, sizeof row.formula, "%zu Psi/N", bytes_per_parameter);
    return row;
}

// Micro-steps of each of `ranks` ranks; 0: the tokens of a step cannot be divided among them.
static size_t micro_steps_of(const PlanInput *in, size_t ranks) {
    size_t once = in->B * in->T * ranks;
    if (in->total_tokens == 0) {
        return 1;
    }
    return in->total_tokens % once == 0 ? in->total_tokens / once : 0;
}

static zero_comm_shape transport_of(const PlanInput *in, size_t ranks, int remote) {
    return zero_transport_shape(in->transport, &in->comm_config, ranks, remote);
}

static zero_cost plan_of(const PlanInput *in, int stage, size_t ranks, size_t group) {
    size_t micro_steps = micro_steps_of(in, ranks);
    size_t host = in->ranks_per_host > 0 ? in->ranks_per_host : ranks;
    zero_settings settings = in->settings;
    settings.stage = stage;
    return (zero_cost){
        .settings = settings,
        .order = in->order,
        .order_length = in->order_length,
        .shard_transport = transport_of(in, group, group > host),
        .replicas = ranks / group,
        .replicate_transport = transport_of(in, ranks / group, ranks > host),
        .max_micro_batches = micro_steps,
        .micro_batches = micro_steps,
    };
}

// The model's layout, divided again for each number of ranks that is tried.
typedef struct {
    zero_layout shards;  // of a shard group
    zero_layout one;     // of all ranks as one group
} Layouts;

static void layouts_destroy(Layouts *l) {
    zero_layout_destroy(&l->shards);
    zero_layout_destroy(&l->one);
}

static int layouts_create(Layouts *l, const PlanInput *in, const char **why) {
    memset(l, 0, sizeof *l);
    const int failed = zero_layout_create(&l->shards, in->tensors, in->num_tensors, 1, why) != 0 ||
                       zero_layout_create(&l->one, in->tensors, in->num_tensors, 1, why) != 0;
    if (failed) layouts_destroy(l);
    return failed ? -1 : 0;
}

// Groups of neighbours shard; rank r of one and rank r of the others hold the same. All ranks are one group where
// groups would cost more wire. Returns the ranks of a group, and divides l->shards among them; 0: that cannot be.
static size_t group_size(Layouts *l, const PlanInput *in, int stage, size_t ranks, const char **why) {
    const size_t group = in->settings.shard_group > 0 ? in->settings.shard_group : ranks;
    if (zero_layout_set_ranks(&l->shards, group, why) != 0) return 0;
    if (stage == 0 || group >= ranks || ranks % group != 0 || micro_steps_of(in, ranks) == 0 ||
        zero_layout_set_ranks(&l->one, ranks, why) != 0) {
        return group;
    }
    const zero_cost groups = plan_of(in, stage, ranks, group), one = plan_of(in, stage, ranks, ranks);
    if (!zero_cost_one_level(&groups, &l->shards, &one, &l->one)) return group;
    return zero_layout_set_ranks(&l->shards, ranks, why) == 0 ? ranks : 0;
}

static int is_one_level(const PlanInput *in, size_t group) {
    return in->settings.shard_group > 0 && in->settings.shard_group != in->ranks && group == in->ranks;
}

int plan_one_level(const PlanInput *in, int stage) {
    Layouts l;
    const char *why;
    if (layouts_create(&l, in, &why) != 0) return 0;
    const int one = is_one_level(in, group_size(&l, in, stage, in->ranks, &why));
    layouts_destroy(&l);
    return one;
}

// All rows of memory; returns their number, and their sum in *total.
static size_t memory_rows(const PlanInput *in, const zero_cost *plan, const zero_layout *l, zero_row *rows,
                          uint64_t *total) {
    size_t n = zero_cost_memory(plan, l, rows, PLAN_ROWS - 1);
    if (plan->replicas > 1) {
        plan_add_transport(rows, n, transport_of(in, plan->replicas * l->ranks, plan->replicate_transport.remote));
    }
    rows[n] = (zero_row){ .kind = ZERO_MEM_ACTIVATIONS, .expected = in->activation_bytes };
    rows[n].what = zero_memory_category_name(ZERO_MEM_ACTIVATIONS);
    snprintf(rows[n].formula, sizeof rows[n].formula, "of B x T = %zu x %zu, recompute %d", in->B, in->T,
             in->recompute);
    n++;
    *total = 0;
    for (size_t i = 0; i < n; i++) {
        *total += rows[i].expected;
    }
    return n;
}

// Stage 0 shards nothing, so there are no groups.
static int bytes_fit(const PlanInput *in, int stage, size_t ranks, size_t group, uint64_t bytes) {
    return (double)bytes <= in->device_bytes && (stage > 0 || ranks == group);
}

// l->shards is that of groups of `group` ranks.
static int group_fits(const Layouts *l, const PlanInput *in, int stage, size_t ranks, size_t group) {
    const zero_cost plan = plan_of(in, stage, ranks, group);
    zero_row rows[PLAN_ROWS];
    uint64_t total;
    memory_rows(in, &plan, &l->shards, rows, &total);
    return bytes_fit(in, stage, ranks, group, total);
}

static int fits(Layouts *l, const PlanInput *in, int stage, size_t ranks) {
    const char *why;
    const size_t wanted = in->settings.shard_group > 0 ? in->settings.shard_group : ranks;
    if (micro_steps_of(in, ranks) == 0 || ranks % wanted != 0 || zero_layout_set_ranks(&l->shards, wanted, &why) != 0) {
        return 0;
    }
    const int groups_fit = group_fits(l, in, stage, ranks, wanted);
    if (wanted == ranks || stage == 0) return groups_fit;
    // Which it is takes long to say (zero_cost_one_level), and is asked only if it matters.
    if (zero_layout_set_ranks(&l->shards, ranks, &why) == 0 && group_fits(l, in, stage, ranks, ranks) == groups_fit) {
        return groups_fit;
    }
    const size_t group = group_size(l, in, stage, ranks, &why);
    return group > 0 && group_fits(l, in, stage, ranks, group);
}

static void find_smallest(Layouts *l, const PlanInput *in, int stage, PlanStage *s) {
    for (size_t ranks = 1; ranks <= PLAN_MAX_RANKS && s->smallest_power == 0; ranks *= 2) {
        s->smallest_power = fits(l, in, stage, ranks) ? ranks : 0;
    }
    const size_t whole = in->settings.shard_group > 0 ? in->settings.shard_group : 1;  // N is a multiple of it
    if (in->total_tokens > 0) {
        for (size_t ranks = whole; ranks <= PLAN_MAX_RANKS && s->smallest == 0; ranks += whole) {
            s->smallest = fits(l, in, stage, ranks) ? ranks : 0;
        }
        return;
    }
    size_t too_few = 0;
    size_t enough = 1;
    while (whole * enough <= PLAN_MAX_RANKS && !fits(l, in, stage, whole * enough)) {
        too_few = enough;
        enough *= 2;
    }
    if (whole * enough > PLAN_MAX_RANKS) {
        return;
    }
    while (enough > too_few + 1) {
        size_t middle = too_few + (enough - too_few) / 2;
        if (fits(l, in, stage, whole * middle)) {
            enough = middle;
        } else {
            too_few = middle;
        }
    }
    s->smallest = whole * enough;
}

static size_t states_of(const PlanInput *in) { return zero_optimizer_get(in->settings.optimizer)->num_states; }

// layouts->shards is that of groups of `group` ranks.
static void make_stage(const PlanInput *in, Layouts *layouts, int stage, size_t group, PlanStage *s) {
    const zero_layout *l = &layouts->shards;
    const zero_cost plan = plan_of(in, stage, in->ranks, group);
    s->shard_group = group;
    s->one_level = is_one_level(in, group);
    s->memory_rows = memory_rows(in, &plan, l, s->memory, &s->memory_total);
    s->snapshot = plan_snapshot(l, in->snapshot_per_parameter);
    s->fits = bytes_fit(in, stage, in->ranks, group, s->memory_total);
    s->wire_rows = zero_cost_wire(&plan, l, s->wire, PLAN_ROWS);
    if (plan.replicas == 1) {
        plan_add_losses(s->wire, s->wire_rows, plan.micro_batches, in->ranks);
    }
    for (size_t i = 0; i < s->wire_rows; i++) {
        s->wire_total += s->wire[i].expected;
    }
    for (size_t i = 0; i < s->memory_rows; i++) {
        if (s->memory[i].kind <= ZERO_MEM_STATE_2) {
            s->states += s->memory[i].expected;
        }
        if (s->memory[i].kind == ZERO_MEM_GRAD_SHARDS) {
            s->sums = s->memory[i].expected;
        }
    }
    if (stage >= 2) {  // of the sums, the paper has a gradient shard, in the parameters' precision
        s->sums -= l->trained_offset[l->num_units] / l->ranks * zero_dtype_bytes(in->settings.dtype);
    }
    const size_t full_master = zero_master_bytes(in->settings.dtype, ZERO_MASTER_FP32);
    s->smaller_master = l->numel_padded / (stage >= 1 ? l->ranks : 1) *
                        (full_master - zero_master_bytes(in->settings.dtype, in->settings.master));
    s->paper = (uint64_t)plan_paper_bytes(stage, in->settings.dtype, states_of(in), (double)l->numel,
                                          (double)trained_numel(l), (double)l->ranks);
    s->padding = s->states + s->smaller_master - s->sums - s->paper;
    const double tokens = (double)(in->B * in->T) * (double)plan.micro_batches;  // of one rank
    s->compute_s = tokens * in->flops_per_token / (in->peak_flops * in->efficiency);
    s->wire_s = (double)s->wire_total / in->link_bytes_per_second;
    find_smallest(layouts, in, stage, s);  // the last: it divides again
}

int plan_memory(const PlanInput *in, uint64_t *bytes, char *err, size_t err_bytes) {
    Layouts l;
    zero_row rows[PLAN_ROWS];
    const char *why;
    const int stage = in->settings.stage;
    const size_t group = layouts_create(&l, in, &why) == 0 ? group_size(&l, in, stage, in->ranks, &why) : 0;
    if (group == 0) {
        snprintf(err, err_bytes, "%s on %zu ranks: %s", in->model, in->ranks, why);
    } else {
        const zero_cost plan = plan_of(in, stage, in->ranks, group);
        memory_rows(in, &plan, &l.shards, rows, bytes);
    }
    layouts_destroy(&l);
    return group == 0 ? -1 : 0;
}

int plan_make(Plan *p, const PlanInput *in, char *err, size_t err_bytes) {
    Layouts l;
    const char *why;
    memset(p, 0, sizeof *p);
    p->lowest_stage = p->best_stage = -1;
    p->micro_steps = micro_steps_of(in, in->ranks);
    if (p->micro_steps == 0) {
        snprintf(err, err_bytes, "-d %zu: cannot be divided among %zu ranks with -b %zu x -t %zu tokens",
                 in->total_tokens, in->ranks, in->B, in->T);
        return -1;
    }
    if (in->settings.shard_group > 0 && in->ranks % in->settings.shard_group != 0) {
        snprintf(err, err_bytes, "--shard-group %zu: does not divide the %zu ranks", in->settings.shard_group,
                 in->ranks);
        return -1;
    }
    int status = layouts_create(&l, in, &why);
    for (int stage = 0; stage < PLAN_STAGES && status == 0; stage++) {
        PlanStage *s = &p->stage[stage];
        const size_t group = group_size(&l, in, stage, in->ranks, &why);
        if (group == 0) {
            status = -1;
            break;
        }
        p->numel = l.shards.numel;
        p->numel_padded = stage == 0 ? l.shards.numel_padded : p->numel_padded;
        make_stage(in, &l, stage, group, s);
        if (p->lowest_stage < 0 && s->fits) {
            p->lowest_stage = stage;
        }
        if (s->smallest > 0 && (p->best_stage < 0 || s->smallest < p->stage[p->best_stage].smallest)) {
            p->best_stage = stage;
        }
    }
    if (status != 0) snprintf(err, err_bytes, "%s on %zu ranks: %s", in->model, in->ranks, why);
    layouts_destroy(&l);
    return status;
}

// ---------------------------------------------------------------------------------------------------------------------
// As text

#define ACROSS(stage) (int stage = 0; stage < PLAN_STAGES; stage++)

static void print_head(FILE *out, const char *title) {
    fprintf(out, "\n%-30s", title);
    for
        ACROSS(stage) { fprintf(out, "%14s %d", "stage", stage); }
    fprintf(out, "\n");
}

// One row of bytes, at the same offset in each PlanStage.
static void print_bytes(FILE *out, const Plan *p, const char *what, size_t offset) {
    fprintf(out, "%-30s", what);
    for
        ACROSS(stage) {
            fprintf(out, "%16lld", (long long)*(const uint64_t *)((const char *)&p->stage[stage] + offset));
        }
    fprintf(out, "\n");
}

static void print_reals(FILE *out, const char *what, const double value[PLAN_STAGES], int digits) {
    fprintf(out, "%-30s", what);
    for
        ACROSS(stage) { fprintf(out, "%16.*f", digits, value[stage]); }
    fprintf(out, "\n");
}

// "stage 0, 1: 2 Psi; stage 2, 3: ..."; rows: those at this offset of each stage.
static void print_formula(FILE *out, const Plan *p, const char *what, size_t offset) {
    const char *last = NULL;
    fprintf(out, "    %-20s", what);
    for
        ACROSS(stage) {
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

static void print_ranks(FILE *out, const Plan *p, const char *what, size_t offset) {
    fprintf(out, "%-30s", what);
    for
        ACROSS(stage) {
            const size_t ranks = *(const size_t *)((const char *)&p->stage[stage] + offset);
            if (ranks > 0) {
                fprintf(out, "%16zu", ranks);
            } else {
                fprintf(out, "%16s", "none");
            }
        }
    fprintf(out, "\n");
}

static void print_memory(FILE *out, const Plan *p, const PlanInput *in) {
    double gb[PLAN_STAGES], paper_gb[PLAN_STAGES];
    for
        ACROSS(stage) {
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
    for
        ACROSS(stage) { fprintf(out, "%16s", p->stage[stage].fits ? "yes" : "no"); }
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
    print_bytes(out, p, "parameters to optimizer state", offsetof(PlanStage, states));
    print_reals(out, "ZeRO paper, GB", paper_gb, 2);
    const int b = (int)zero_dtype_bytes(in->settings.dtype), k = optimizer_bytes(in->settings.dtype, states_of(in));
    fprintf(out, "  the paper, bytes for each parameter: %s%d, %d + %d/N, %d + %d/N, %d/N\n",
            in->settings.dtype == ZERO_BF16 ? "" : "(with fp32 throughout) ", 2 * b + k, 2 * b, k, b, b + k, 2 * b + k);
}

static void print_wire_and_time(FILE *out, const Plan *p, const PlanInput *in) {
    double compute[PLAN_STAGES], wire[PLAN_STAGES], least[PLAN_STAGES], most[PLAN_STAGES];
    for
        ACROSS(stage) {
            compute[stage] = 1e3 * p->stage[stage].compute_s;
            wire[stage] = 1e3 * p->stage[stage].wire_s;
            least[stage] = compute[stage] > wire[stage] ? compute[stage] : wire[stage];
            most[stage] = compute[stage] + wire[stage];
        }
    print_head(out, "wire per rank, step, bytes");
    for (size_t i = 0; i < p->stage[0].wire_rows; i++) {
        print_bytes(out, p, p->stage[0].wire[i].what, OF_ROW(wire, i, expected));
    }
    print_bytes(out, p, "received in all", offsetof(PlanStage, wire_total));
    fprintf(out, "  formulas\n");
    for (size_t i = 0; i < p->stage[0].wire_rows; i++) {
        print_formula(out, p, p->stage[0].wire[i].what, offsetof(PlanStage, wire) + i * sizeof(zero_row));
    }
    print_head(out, "time per step, ms, estimated");
    print_reals(out, "computing", compute, 3);
    print_reals(out, "receiving", wire, 3);
    print_reals(out, "one hides the other (max)", least, 3);
    print_reals(out, "one after the other (sum)", most, 3);
    fprintf(
        out,
        "  computing: G B T x %.4g FLOPs a token / (%g TFLOP/s x %g); receiving: bytes in all / %g GB/s, no latency\n",
        in->flops_per_token, in->peak_flops / 1e12, in->efficiency, in->link_bytes_per_second / 1e9);
}

void plan_print(FILE *out, const Plan *p, const PlanInput *in) {
    const size_t waste = p->numel_padded - p->numel;
    fprintf(out, "plan: %s, %s, ranks N = %zu", in->model, in->settings.dtype == ZERO_BF16 ? "BF16" : "FP32",
            in->ranks);
    if (in->settings.shard_group > 0) {
        fprintf(out, " in groups of %zu", in->settings.shard_group);
    }
    for
        ACROSS(stage) {
            if (p->stage[stage].one_level) fprintf(out, " (stage %d: one group, groups cost more wire)", stage);
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
    print_wire_and_time(out, p, in);

    print_head(out, "ranks from which it fits");
    print_ranks(out, p, "smallest power of two", offsetof(PlanStage, smallest_power));
    print_ranks(out, p, in->total_tokens > 0 ? "smallest that divides -d" : "smallest", offsetof(PlanStage, smallest));
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
            " \"device_bytes\": %.9g, \"link_bytes_per_second\": %.9g, \"peak_flops\": %.9g, \"efficiency\": %.9g,\n",
            in->device_bytes, in->link_bytes_per_second, in->peak_flops, in->efficiency);
    fprintf(out, " \"stages\": [");
    for
        ACROSS(stage) {
            const PlanStage *s = &p->stage[stage];
            fprintf(out, "%s\n    {\"stage\": %d, \"fits\": %s", stage > 0 ? "," : "", stage,
                    s->fits ? "true" : "false");
            json_ranks(out, "shard_group", s->shard_group);
            json_ranks(out, "smallest_ranks", s->smallest);
            json_ranks(out, "smallest_power_of_two", s->smallest_power);
            fprintf(out, ",\n     \"seconds\": {\"computing\": %.9g, \"receiving\": %.9g}", s->compute_s, s->wire_s);
            fprintf(out, ",\n     \"model_states\": {\"zero_paper\": %llu, \"fp32_sums\": %lld, \"padding\": %llu,",
                    (unsigned long long)s->paper, (long long)s->sums, (unsigned long long)s->padding);
            fprintf(out, " \"smaller_master\": %llu, \"total\": %llu}", (unsigned long long)s->smaller_master,
                    (unsigned long long)s->states);
            json_rows(out, "memory", s->memory, s->memory_rows, s->memory_total);
            if (in->snapshot_per_parameter > 0) {
                json_rows(out, "host memory", &s->snapshot, 1, s->snapshot.expected);
            }
            json_rows(out, "wire", s->wire, s->wire_rows, s->wire_total);
            fprintf(out, "}");
        }
    fprintf(out, "]");
    json_stage(out, "lowest_stage_that_fits", p->lowest_stage);
    json_stage(out, "stage_with_fewest_ranks", p->best_stage);
    fprintf(out, "}\n");
}
