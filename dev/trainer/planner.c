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
// Time, and which stage and shard group are fastest: planner_cluster.c.
#include <string.h>

#include "trainer/planner_internal.h"
#include "zero/accounting.h"
#include "zero/comm/transport_registry.h"
#include "zero/optimizers/optimizers.h"

int plan_optimizer_bytes(enum zero_dtype dtype, size_t states) {
    return 4 * (int)states + (dtype == ZERO_BF16 ? 4 : 0);
}

double plan_paper_bytes(int stage, enum zero_dtype dtype, size_t states, double parameters, double trained,
                        double ranks) {
    const double b = (double)zero_dtype_bytes(dtype);
    const double params = b * parameters / (stage >= 3 ? ranks : 1);
    const double grads = b * trained / (stage >= 2 ? ranks : 1);
    const double optimizer = plan_optimizer_bytes(dtype, 0) * parameters + 4 * (double)states * trained;
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

// What a rank tells the others in a step.
static size_t told_bytes(size_t micro_steps) { return (micro_steps + 2) * sizeof(double); }

void plan_add_losses(zero_row *rows, size_t n, size_t micro_steps, size_t ranks) {
    for (size_t i = 0; i < n; i++) {
        if (rows[i].kind == ZERO_WIRE_SCALARS) {
            size_t length = strlen(rows[i].formula);
            rows[i].expected += told_bytes(micro_steps) * (ranks - 1);
            snprintf(rows[i].formula + length, sizeof rows[i].formula - length, ", %zu (G+2) (N-1) losses",
                     sizeof(double));
        }
    }
}

void plan_add_transport(zero_row *rows, size_t n, const zero_comm_shape *all, int groups, int streams,
                        size_t micro_steps) {
    for (size_t i = 0; i < n; i++) {
        if (rows[i].kind != ZERO_MEM_TRANSPORT) continue;
        if (groups) rows[i].expected += zero_comm_scratch_bytes(all, 0, 0, 0);
        if (streams && all->ranks > 1) {
            rows[i].expected += zero_comm_alloc_bytes(all, all->ranks * told_bytes(micro_steps));
        }
    }
}

zero_row plan_snapshot(const zero_layout *l, size_t bytes_per_parameter) {
    zero_row row = { .kind = ZERO_MEM_CATEGORIES, .what = "checkpoint snapshot (host)" };
    row.expected = l->numel_padded / l->ranks * bytes_per_parameter;
    snprintf(row.formula, sizeof row.formula, "%zu Psi/N", bytes_per_parameter);
    return row;
}

zero_row plan_offloaded(size_t offloaded_bytes, size_t kept) {
    zero_row row = { .kind = ZERO_MEM_CALLER_HOST, .expected = kept * offloaded_bytes };
    row.what = zero_memory_category_name(ZERO_MEM_CALLER_HOST);
    snprintf(row.formula, sizeof row.formula, "%zu x (layers - 1) inputs, B x T x C", kept);
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

// How many ranks of a group of neighbours are on a host; *groups_here: of how many groups a host has ranks. 0: that is
// not the same everywhere.
static size_t ranks_on_host(const PlanInput *in, size_t ranks, size_t group, size_t *groups_here) {
    const size_t host = in->ranks_per_host > 0 && in->ranks_per_host < ranks ? in->ranks_per_host : ranks;
    const int even = ranks % host == 0 && (group % host == 0 || host % group == 0);
    *groups_here = !even ? 0 : host > group ? host / group : 1;
    return !even ? 0 : host > group ? group : host;
}

static zero_comm_shape transport_of(const PlanInput *in, size_t ranks, size_t per_host) {
    return zero_transport_shape(in->transport, &in->comm_config, ranks, per_host);
}

zero_cost plan_cost(const PlanInput *in, int stage, size_t ranks, size_t group) {
    size_t micro_steps = micro_steps_of(in, ranks);
    size_t groups_here, here = ranks_on_host(in, ranks, group, &groups_here);
    zero_settings settings = in->settings;
    settings.stage = stage;
    settings.order = zero_cost_order(&settings, ranks, micro_steps > 0 ? micro_steps : 1);
    return (zero_cost){
        .settings = settings,
        .order = in->order,
        .order_length = in->order_length,
        .rank = in->rank,
        .shard_transport = transport_of(in, group, here),
        .replicas = ranks / group,
        .replicate_transport = transport_of(in, ranks / group, groups_here),
        .max_micro_batches = micro_steps,
        .micro_batches = micro_steps,
    };
}

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

size_t plan_group_size(Layouts *l, const PlanInput *in, int stage, size_t ranks, const char **why) {
    const size_t group = in->settings.shard_group > 0 ? in->settings.shard_group : ranks;
    if (zero_layout_set_ranks(&l->shards, group, why) != 0) return 0;
    if (stage == 0 || group >= ranks || ranks % group != 0 || micro_steps_of(in, ranks) == 0 ||
        zero_layout_set_ranks(&l->one, ranks, why) != 0) {
        return group;
    }
    const zero_cost groups = plan_cost(in, stage, ranks, group), one = plan_cost(in, stage, ranks, ranks);
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
    const int one = is_one_level(in, plan_group_size(&l, in, stage, in->ranks, &why));
    layouts_destroy(&l);
    return one;
}

static int is_on_device(const PlanInput *in, const zero_row *row) {
    const int host = row->kind == ZERO_MEM_HOST || row->kind == ZERO_MEM_CALLER_HOST;
    return row->kind != ZERO_MEM_DISK && (!host || in->host_is_device);
}

// All rows of memory; returns their number, and the sum of those of the device in *total.
static size_t memory_rows(const PlanInput *in, const zero_cost *plan, const zero_layout *l, zero_row *rows,
                          uint64_t *total) {
    size_t n = zero_cost_memory(plan, l, rows, PLAN_ROWS - 2);
    const size_t ranks = plan->replicas * l->ranks, per_host = in->ranks_per_host;
    const zero_comm_shape all = transport_of(in, ranks, per_host > 0 && per_host < ranks ? per_host : ranks);
    plan_add_transport(rows, n, &all, plan->replicas > 1, zero_transport_needs_device(in->transport),
                       plan->max_micro_batches);
    const int by_layer = plan->settings.order == ZERO_ORDER_LAYER;
    rows[n] = (zero_row){ .kind = ZERO_MEM_ACTIVATIONS };
    rows[n].expected = by_layer ? in->layer_bytes + plan->max_micro_batches * in->stream_bytes : in->activation_bytes;
    rows[n].what = zero_memory_category_name(ZERO_MEM_ACTIVATIONS);
    snprintf(rows[n].formula, sizeof rows[n].formula, "of B x T = %zu x %zu, recompute %d", in->B, in->T,
             in->recompute);
    n++;
    if (in->offloaded_bytes > 0)
        rows[n++] = plan_offloaded(in->offloaded_bytes, by_layer ? plan->max_micro_batches : 1);
    *total = 0;
    for (size_t i = 0; i < n; i++) {
        if (is_on_device(in, &rows[i])) *total += rows[i].expected;
    }
    return n;
}

uint64_t plan_bytes(const PlanInput *in, const zero_cost *cost, const zero_layout *l) {
    zero_row rows[PLAN_ROWS];
    uint64_t total;
    memory_rows(in, cost, l, rows, &total);
    return total;
}

// Stage 0 shards nothing, so there are no groups.
int plan_bytes_fit(const PlanInput *in, const zero_cost *cost, uint64_t bytes) {
    return (double)bytes <= in->device_bytes && (cost->settings.stage > 0 || cost->replicas == 1);
}

// l->shards is that of groups of `group` ranks.
static int group_fits(const Layouts *l, const PlanInput *in, int stage, size_t ranks, size_t group) {
    const zero_cost cost = plan_cost(in, stage, ranks, group);
    return plan_bytes_fit(in, &cost, plan_bytes(in, &cost, &l->shards));
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
    const size_t group = plan_group_size(l, in, stage, ranks, &why);
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

// The rows from parameters to the optimizer's states.
static uint64_t model_states(const zero_cost *cost, const zero_layout *l) {
    zero_row rows[PLAN_ROWS];
    const size_t n = zero_cost_memory(cost, l, rows, PLAN_ROWS);
    uint64_t bytes = 0;
    for (size_t i = 0; i < n; i++)
        if (rows[i].kind <= ZERO_MEM_STATE_2) bytes += rows[i].expected;
    return bytes;
}

// layouts->shards is that of groups of `group` ranks.
static int make_stage(const PlanInput *in, const Layouts *layouts, int stage, size_t group, PlanStage *s) {
    const zero_layout *l = &layouts->shards;
    const zero_cost plan = plan_cost(in, stage, in->ranks, group);
    const size_t elem = zero_dtype_bytes(in->settings.dtype);
    s->shard_group = group;
    s->order = plan.settings.order;
    s->one_level = is_one_level(in, group);
    s->memory_rows = memory_rows(in, &plan, l, s->memory, &s->memory_total);
    s->snapshot = plan_snapshot(l, in->snapshot_per_parameter);
    s->fits = plan_bytes_fit(in, &plan, s->memory_total);
    s->wire_rows = zero_cost_wire(&plan, l, s->wire, PLAN_ROWS);
    s->bus_rows = zero_cost_bus(&plan, l, s->bus, 2);
    if (plan.replicas == 1) {
        plan_add_losses(s->wire, s->wire_rows, plan.micro_batches, in->ranks);
    }
    for (size_t i = 0; i < s->wire_rows; i++) {
        s->wire_total += s->wire[i].expected;
    }
    for (size_t i = 0; i < s->memory_rows; i++) {
        if (s->memory[i].kind == ZERO_MEM_DISK) {
            s->disk_total = s->memory[i].expected;
        } else if (!is_on_device(in, &s->memory[i])) {
            s->host_total += s->memory[i].expected;
        }
        if (s->memory[i].kind == ZERO_MEM_GRAD_SHARDS) {
            s->sums += s->memory[i].expected;
        }
        if (s->memory[i].kind == ZERO_MEM_GRADS && s->order != ZERO_ORDER_STEP) {
            s->sums += s->memory[i].expected;
            if (stage < 2) s->sums -= l->trained_offset[l->num_units] * elem;  // the paper has gradients
        }
    }
    if (stage >= 2) {  // of the sums, the paper has a gradient shard, in the parameters' precision
        s->sums -= l->trained_offset[l->num_units] / l->ranks * elem;
    }
    const size_t full_master = zero_master_bytes(in->settings.dtype, ZERO_MASTER_FP32);
    s->smaller_master = l->numel_padded / (stage >= 1 ? l->ranks : 1) *
                        (full_master - zero_master_bytes(in->settings.dtype, in->settings.master));
    s->paper = (uint64_t)plan_paper_bytes(stage, in->settings.dtype, states_of(in), (double)l->numel,
                                          (double)trained_numel(l), (double)l->ranks);
    zero_cost all_on_device = plan;
    all_on_device.settings.offload = all_on_device.settings.offload_params = ZERO_OFFLOAD_NONE;
    s->states = model_states(&plan, l);
    s->offloaded = model_states(&all_on_device, l) - s->states;
    s->padding = s->states + s->offloaded + s->smaller_master - s->sums - s->paper;
    return plan_simulate(in, &plan, l, &s->times);
}

// What no stage can do. Returns 0, or -1 and a message.
static int check_input(const PlanInput *in, char *err, size_t err_bytes) {
    if (micro_steps_of(in, in->ranks) == 0) {
        snprintf(err, err_bytes, "-d %zu: cannot be divided among %zu ranks with -b %zu x -t %zu tokens",
                 in->total_tokens, in->ranks, in->B, in->T);
        return -1;
    }
    if (in->settings.shard_group > 0 && in->ranks % in->settings.shard_group != 0) {
        snprintf(err, err_bytes, "--shard-group %zu: does not divide the %zu ranks", in->settings.shard_group,
                 in->ranks);
        return -1;
    }
    return 0;
}

int plan_stage(PlanStage *s, const PlanInput *in, char *err, size_t err_bytes) {
    Layouts l;
    const char *why = "out of host memory";
    const int stage = in->settings.stage;
    memset(s, 0, sizeof *s);
    if (check_input(in, err, err_bytes) != 0) return -1;
    int status = layouts_create(&l, in, &why);
    const size_t group = status == 0 ? plan_group_size(&l, in, stage, in->ranks, &why) : 0;
    status = group == 0 ? -1 : make_stage(in, &l, stage, group, s);
    if (status != 0) snprintf(err, err_bytes, "%s on %zu ranks: %s", in->model, in->ranks, why);
    layouts_destroy(&l);
    return status;
}

// Ranks of a shard group differ in the number of their optimizer chunks: by at most one for each tensor, which is added
// where asking for each rank would take long.
uint64_t plan_most_memory(const PlanInput *in, const PlanStage *s) {
    enum { ASKED = 256 };
    zero_layout l;
    const char *why;
    uint64_t most = s->memory_total;
    PlanInput of = *in;
    of.settings.shard_group = s->shard_group;
    if (s->shard_group > ASKED) return most + in->num_tensors * sizeof(zero_optimizer_chunk);
    if (zero_layout_create(&l, in->tensors, in->num_tensors, s->shard_group, &why) != 0) return most;
    for (of.rank = 0; of.rank < s->shard_group; of.rank++) {
        const zero_cost cost = plan_cost(&of, in->settings.stage, in->ranks, s->shard_group);
        const uint64_t bytes = plan_bytes(&of, &cost, &l);
        if (bytes > most) most = bytes;
    }
    zero_layout_destroy(&l);
    return most;
}

static int make_stages(Plan *p, const PlanInput *in, Layouts *l, const char **why) {
    for (int stage = 0; stage < PLAN_STAGES; stage++) {
        PlanStage *s = &p->stage[stage];
        const size_t group = plan_group_size(l, in, stage, in->ranks, why);
        if (group == 0) return -1;
        p->numel = l->shards.numel;
        p->numel_padded = stage == 0 ? l->shards.numel_padded : p->numel_padded;
        if (make_stage(in, l, stage, group, s) != 0) return -1;
        find_smallest(l, in, stage, s);  // the last: it divides again
        if (p->lowest_stage < 0 && s->fits) {
            p->lowest_stage = stage;
        }
        if (s->smallest > 0 && (p->best_stage < 0 || s->smallest < p->stage[p->best_stage].smallest)) {
            p->best_stage = stage;
        }
    }
    return 0;
}

static int make(Plan *p, const PlanInput *in, int with_stages, char *err, size_t err_bytes) {
    Layouts l;
    const char *why = "out of host memory";
    memset(p, 0, sizeof *p);
    p->lowest_stage = p->best_stage = -1;
    if (check_input(in, err, err_bytes) != 0) return -1;
    p->micro_steps = micro_steps_of(in, in->ranks);
    int status = layouts_create(&l, in, &why);
    if (status == 0 && with_stages) status = make_stages(p, in, &l, &why);
    if (status == 0) status = plan_choose(p, in, &l);
    if (status != 0) snprintf(err, err_bytes, "%s on %zu ranks: %s", in->model, in->ranks, why);
    layouts_destroy(&l);
    return status;
}

int plan_make(Plan *p, const PlanInput *in, char *err, size_t err_bytes) { return make(p, in, 1, err, err_bytes); }
int plan_fastest(Plan *p, const PlanInput *in, char *err, size_t err_bytes) { return make(p, in, 0, err, err_bytes); }
