// The search tries every combination of the flags that are searched: stages, shard groups that divide the ranks, orders
// of micro-batches, offloading the optimizer's state or parameters, sizes of a micro-batch by which the tokens of a
// step can be divided, offloading activations, rows of the head, recomputation. All but the last three take a plan
// (planner.c); these change the activations alone, whose bytes are a number.
//
// Of those that fit, all that take at most FIT_ALIKE times the least are alike: the step simulator is not more exact
// than that, and does not count what is recomputed. The first of these that differs says which of two that are alike is
// better: larger chunks of the head; less to recompute; activations on the device; nothing else that is offloaded, or
// to memory before a disk; a lower stage; larger shard groups; step by step; a larger micro-batch.
#include <stdlib.h>
#include <string.h>

#include "gpt2/activation_offload.h"
#include "gpt2/tensors.h"
#include "trainer/fit.h"
#include "trainer/json.h"

#define FAIL(...) (snprintf(err, err_bytes, __VA_ARGS__), -1)

enum { MOST_CHOICES = 1024 };

// The values of a flag, best first.
typedef struct {
    size_t n, value[MOST_CHOICES];
} Choices;

static void choose(Choices *c, size_t value) {
    if (c->n < MOST_CHOICES) c->value[c->n++] = value;
}

static int descending(const void *a, const void *b) {
    const size_t x = *(const size_t *)a, y = *(const size_t *)b;
    return (x < y) - (x > y);
}

static Choices divisors(size_t n) {
    Choices c = { 0 };
    for (size_t i = 1; i <= n / i; i++) {
        if (n % i != 0) continue;
        choose(&c, i);
        if (n / i != i) choose(&c, n / i);
    }
    qsort(c.value, c.n, sizeof *c.value, descending);
    return c;
}

static Choices batches(const FitInput *in, size_t tokens) {
    const size_t each = in->plan.T * in->plan.ranks;
    Choices one = { 1, { in->plan.B } };
    return in->searched & FIT_BATCH && tokens % each == 0 ? divisors(tokens / each) : one;
}

static Choices groups(const FitInput *in) {
    const size_t given = in->plan.settings.shard_group;
    Choices one = { 1, { given > 0 ? given : in->plan.ranks } };
    return in->searched & FIT_GROUP ? divisors(in->plan.ranks) : one;
}

// 0: the default, which is at most 8192 rows or one sequence (gpt2_head_rows).
static Choices head_rows(const FitInput *in, size_t B) {
    const size_t T = in->plan.T, rows = B * T < 8192 ? B * T : 8192;
    Choices c = { 1, { in->head_rows } };
    if (!(in->searched & FIT_HEAD_ROWS)) return c;
    c.value[0] = 0;
    for (size_t r = rows / 2; r > T; r /= 2) choose(&c, r);
    if (rows > T) choose(&c, T);
    return c;
}

// Of two that take about the same time.
static int is_better(const Fit *a, const Fit *b) {
    if (a->head_rows != b->head_rows) return a->head_rows == 0 || (b->head_rows > 0 && a->head_rows > b->head_rows);
    if (a->recompute != b->recompute) return a->recompute < b->recompute;
    if (a->offload_activations != b->offload_activations) return !a->offload_activations;
    if (a->offload_params != b->offload_params) return a->offload_params < b->offload_params;
    if (a->offload != b->offload) return a->offload < b->offload;
    if (a->stage != b->stage) return a->stage < b->stage;
    if (a->shard_group != b->shard_group)
        return a->shard_group == 0 || (b->shard_group > 0 && a->shard_group > b->shard_group);
    if (a->order != b->order) return a->order == ZERO_ORDER_STEP;
    return a->B > b->B;
}

typedef struct {
    const FitInput *in;
    size_t tokens;  // of a step
    Fit *fits;      // one for each stage, group and micro-batch that fits
    size_t n, room;
    int exhaustive;  // nothing fits: keeps what needs the fewest bytes, in fits[0]
} Search;

// Returns 0, or -1: out of memory.
static int keep(Search *s, const Fit *f) {
    if (s->exhaustive && s->n == 1) {
        if (f->bytes < s->fits[0].bytes) s->fits[0] = *f;
        return 0;
    }
    if (s->n == s->room) {
        Fit *more = realloc(s->fits, (2 * s->room + 16) * sizeof *more);
        if (more == NULL) return -1;
        s->fits = more;
        s->room = 2 * s->room + 16;
    }
    s->fits[s->n++] = *f;
    return 0;
}

// Ranks of a host.
static size_t sharers(const FitInput *in) {
    const size_t host = in->plan.ranks_per_host;
    return host > 0 && host < in->plan.ranks ? host : in->plan.ranks;
}

// Keeps the best recomputation and rows of the head that fit. f: with the other flags; bytes: the most of any rank, but
// for activations on the device. Returns 0, or -1: out of memory.
static int try_rows(Search *s, Fit f, uint64_t bytes, size_t streams) {
    const FitInput *in = s->in;
    const Choices rows = head_rows(in, f.B);
    const int all = (in->searched & FIT_RECOMPUTE) != 0, first = all ? f.offload_activations : in->plan.recompute;
    for (size_t i = 0; i < rows.n; i++) {
        for (f.recompute = first; f.recompute <= (all ? 2 : first); f.recompute++) {
            f.head_rows = rows.value[i];
            f.bytes = bytes + in->activation_bytes(&in->config, f.B, in->plan.T, f.recompute, f.head_rows,
                                                   in->plan.settings.dtype, streams, f.offload_activations);
            const int fits = (double)f.bytes <= in->plan.device_bytes;
            if ((fits || s->exhaustive) && keep(s, &f) != 0) return -1;
            if (fits) return 0;
        }
    }
    return 0;
}

// Whether activations are to be offloaded in a way to run that has recompute's value or may choose it, and where the
// hosts have so many bytes left.
static int may_offload(const FitInput *in, double bytes, double left) {
    const int searched = (in->searched & FIT_ACTIVATIONS) != 0, keeps_all = in->plan.recompute == 0;
    if (!(in->searched & FIT_RECOMPUTE) && keeps_all) return 0;
    return searched ? !in->plan.host_is_device && bytes * (double)sharers(in) <= left : in->offload_activations;
}

// Tries activations on the device, and offloaded. plan: that of f; left: of a host's memory.
static int try_activations(Search *s, Fit f, PlanInput *plan, uint64_t states, size_t streams, double left) {
    const FitInput *in = s->in;
    const double step = f.seconds;
    const size_t each = activation_offload_bytes(&in->config, f.B, plan->T, zero_dtype_bytes(plan->settings.dtype), 1),
                 host = (streams > 0 ? streams : 1) * each;
    const int searched = (in->searched & FIT_ACTIVATIONS) != 0;
    if ((searched || !in->offload_activations) && try_rows(s, f, states, streams) != 0) return -1;
    if (!may_offload(in, (double)host, left)) return 0;
    f.offload_activations = 1;
    plan->offloaded_bytes = each;
    f.seconds = step + plan_offloaded_seconds(plan, s->tokens / (f.B * plan->T * plan->ranks));
    return try_rows(s, f, states + (plan->host_is_device ? host : 0), streams);
}

// Buffers of a disk are small.
static int uses_host(const Fit *f) { return f->offload == ZERO_OFFLOAD_CPU || f->offload_params == ZERO_OFFLOAD_CPU; }

// Whether the hosts have what is offloaded.
static int is_there(const FitInput *in, const Fit *f, const PlanStage *p) {
    if (!(in->searched & (FIT_OFFLOAD | FIT_OFFLOAD_PARAMS))) return 1;
    if ((double)(p->disk_total * sharers(in)) > in->plan.disk_bytes) return 0;
    return !uses_host(f) || (double)(p->host_total * sharers(in)) <= in->plan.host_bytes;
}

// Tries one way to run: f, without recomputation and rows of the head. Returns 0, or -1 and a message.
static int try_plan(Search *s, Fit f, size_t group, char *err, size_t err_bytes) {
    const FitInput *in = s->in;
    PlanInput plan = in->plan;
    PlanStage p;
    f.shard_group = plan.settings.shard_group = group < plan.ranks ? group : 0;
    f.total_tokens = plan.total_tokens = s->tokens;
    plan.settings.stage = f.stage;
    plan.settings.order = f.order;
    plan.settings.offload = f.offload;
    plan.settings.offload_params = f.offload_params;
    plan.B = f.B;
    plan.activation_bytes = plan.layer_bytes = plan.stream_bytes = plan.offloaded_bytes = 0;
    if ((group < plan.ranks && f.stage == 0) || (f.offload_params != ZERO_OFFLOAD_NONE && f.stage < 3) ||
        (f.order == ZERO_ORDER_RANK && f.stage >= 2))
        return 0;  // impossible
    const size_t least = in->activation_bytes(&in->config, f.B, plan.T, 2, plan.T, plan.settings.dtype,
                                              f.order == ZERO_ORDER_LAYER, 1);
    if (!s->exhaustive && (double)least > plan.device_bytes) return 0;
    if (plan_stage(&p, &plan, err, err_bytes) != 0) return -1;
    if (in->searched & FIT_GROUP && p.one_level) return 0;  // one group, which is tried too
    if (in->searched & FIT_ORDER && p.order != f.order) return 0;
    if (!is_there(in, &f, &p) || (!s->exhaustive && (double)p.memory_total > plan.device_bytes)) return 0;
    f.seconds = p.times.step;
    const size_t streams = p.order == ZERO_ORDER_LAYER ? s->tokens / (f.B * plan.T * plan.ranks) : 0;
    const double left = in->plan.host_bytes - (uses_host(&f) ? (double)(p.host_total * sharers(in)) : 0);
    if (try_activations(s, f, &plan, plan_most_memory(&plan, &p), streams, left) == 0) return 0;
    return FAIL("the host's memory is exhausted");
}

// Is this value of a flag to be tried? The flag is searched, or has it.
static int wanted(const FitInput *in, unsigned flag, int value, int given) {
    return in->searched & flag || value == given;
}

// Is what is offloaded to be tried there? What is searched has to be there.
static int wanted_place(const FitInput *in, unsigned flag, enum zero_offload place, enum zero_offload given) {
    if (!(in->searched & flag)) return place == given;
    if (place == ZERO_OFFLOAD_CPU) return in->plan.host_bytes > 0 && !in->plan.host_is_device;
    return place == ZERO_OFFLOAD_NONE || in->plan.disk_bytes > 0;
}

// f: with its places.
static int try_places(Search *s, Fit f, char *err, size_t err_bytes) {
    const FitInput *in = s->in;
    const zero_settings *given = &in->plan.settings;
    const Choices sizes = batches(in, s->tokens), of_ranks = groups(in);
    for (f.stage = 0; f.stage < PLAN_STAGES; f.stage++) {
        if (!wanted(in, FIT_STAGE, f.stage, given->stage)) continue;
        for (int order = ZERO_ORDER_STEP; order <= ZERO_ORDER_LAYER; order++) {
            const unsigned searched = order == ZERO_ORDER_LAYER ? 0 : FIT_ORDER;  // it is only taken if given
            f.order = (enum zero_order)order;
            if (!wanted(in, searched, order, given->order)) continue;
            for (size_t i = 0; i < of_ranks.n * sizes.n; i++) {
                f.B = sizes.value[i % sizes.n];
                if (try_plan(s, f, of_ranks.value[i / sizes.n], err, err_bytes) != 0) return -1;
            }
        }
    }
    return 0;
}

static int try_all(Search *s, char *err, size_t err_bytes) {
    const FitInput *in = s->in;
    const zero_settings *given = &in->plan.settings;
    for (int place = 0; place < 9; place++) {
        const Fit f = { .offload = (enum zero_offload)(place / 3), .offload_params = (enum zero_offload)(place % 3) };
        if (wanted_place(in, FIT_OFFLOAD, f.offload, given->offload) &&
            wanted_place(in, FIT_OFFLOAD_PARAMS, f.offload_params, given->offload_params) &&
            try_places(s, f, err, err_bytes) != 0)
            return -1;
    }
    return 0;
}

static void choose_fastest(const Search *s, Fit *fit) {
    double least = s->fits[0].seconds;
    const Fit *best = NULL;
    for (size_t i = 1; i < s->n; i++) least = s->fits[i].seconds < least ? s->fits[i].seconds : least;
    for (size_t i = 0; i < s->n; i++) {
        const Fit *f = &s->fits[i];
        if (f->seconds <= FIT_ALIKE * least && (best == NULL || is_better(f, best))) best = f;
    }
    *fit = *best;
}

int fit_fastest(Fit *fit, const FitInput *in, char *err, size_t err_bytes) {
    const size_t once = in->plan.B * in->plan.T * in->plan.ranks;
    Search s = { .in = in, .tokens = in->plan.total_tokens > 0 ? in->plan.total_tokens : once };
    int status = try_all(&s, err, err_bytes);
    s.exhaustive = status == 0 && s.n == 0;
    if (s.exhaustive) status = try_all(&s, err, err_bytes);
    if (status == 0 && s.n == 0)
        status = FAIL("-z %d: cannot be had with this --shard-group, or --micro-batch-order", in->plan.settings.stage);
    if (status == 0) choose_fastest(&s, fit);
    free(s.fits);
    return status == 0 ? !s.exhaustive : -1;
}

int fit_largest(size_t *depth, Fit *fit, const FitInput *in, char *err, size_t err_bytes) {
    static const size_t depths[] = { 84, 72, 60, 48, 36, 24, 12, 6 };
    FitInput of = *in;
    int found = 0;
    for (size_t i = 0; i < sizeof depths / sizeof *depths && found == 0; i++) {
        char name[16];
        *depth = depths[i];
        snprintf(name, sizeof name, "d%zu", depths[i]);
        if (gpt2_config_from_descriptor(&of.config, name, err, err_bytes) != 0) return -1;
        if (in->plan.T > of.config.max_seq_len) return 0;
        of.plan.model = name;
        of.plan.num_tensors = gpt2_num_tensors(&of.config);
        of.plan.order_length = gpt2_unit_order(&of.config, NULL);
        of.plan.flops_per_token = gpt2_training_flops(&of.config, of.plan.T, 1);
        zero_tensor *tensors = malloc(of.plan.num_tensors * sizeof *tensors);
        size_t *order = malloc(of.plan.order_length * sizeof *order);
        double *flops = malloc(of.plan.order_length * sizeof *flops);
        if (tensors != NULL && order != NULL && flops != NULL) {
            gpt2_tensors(&of.config, tensors);
            gpt2_unit_order(&of.config, order);
            gpt2_order_flops(&of.config, of.plan.T, flops);
            of.plan.tensors = tensors;
            of.plan.order = order;
            of.plan.order_flops = flops;
            found = fit_fastest(fit, &of, err, err_bytes);
        } else {
            found = FAIL("the host's memory is exhausted");
        }
        free(tensors);
        free(order);
        free(flops);
    }
    return found;
}

void fit_flags(const Fit *f, char *text, size_t bytes) {
    char group[48] = "", rows[48] = "";
    const char *order = f->order == ZERO_ORDER_RANK    ? " --micro-batch-order rank"
                        : f->order == ZERO_ORDER_LAYER ? " --micro-batch-order layer"
                                                       : "";
    static const char *const OFFLOAD[] = { "", " --offload cpu", " --offload nvme:DIR" };
    static const char *const PARAMS[] = { "", " --offload-params cpu", " --offload-params nvme:DIR" };
    if (f->shard_group > 0) snprintf(group, sizeof group, " --shard-group %zu", f->shard_group);
    if (f->head_rows > 0) snprintf(rows, sizeof rows, " --head-rows %zu", f->head_rows);
    snprintf(text, bytes, "-z %d%s%s%s%s%s -r %d%s -b %zu -d %zu", f->stage, group, order, OFFLOAD[f->offload],
             PARAMS[f->offload_params], f->offload_activations ? " --offload-activations cpu" : "", f->recompute, rows,
             f->B, f->total_tokens);
}

// ---------------------------------------------------------------------------------------------------------------------
// Printing.

static void print_text(FILE *out, const char *what, const char *model, const Fit *f) {
    char flags[256];
    fit_flags(f, flags, sizeof flags);
    fprintf(out, "%s: -e %s %s\n    %llu bytes a rank, %.3f ms a step, simulated\n", what, model, flags,
            (unsigned long long)f->bytes, 1e3 * f->seconds);
}

static void print_json(FILE *out, const char *what, const char *model, const Fit *f) {
    static const char *const OFFLOAD[] = { "none", "cpu", "nvme" };
    fprintf(out, ",\n \"%s\": ", what);
    if (f == NULL) {
        fprintf(out, "null");
        return;
    }
    fprintf(out, "{\"model\": ");
    json_string(out, model);
    fprintf(out,
            ", \"stage\": %d, \"shard_group\": %zu, \"micro_batch_order\": \"%s\", \"offload\": \"%s\", "
            "\"offload_params\": \"%s\", \"offload_activations\": \"%s\", \"recompute\": %d, \"head_rows\": %zu, "
            "\"B\": %zu, "
            "\"total_tokens\": %zu, \"bytes\": %llu, \"seconds\": %.9g}",
            f->stage, f->shard_group,
            f->order == ZERO_ORDER_RANK    ? "rank"
            : f->order == ZERO_ORDER_LAYER ? "layer"
                                           : "step",
            OFFLOAD[f->offload], OFFLOAD[f->offload_params], OFFLOAD[f->offload_activations], f->recompute,
            f->head_rows, f->B, f->total_tokens, (unsigned long long)f->bytes, f->seconds);
}

int fit_print(FILE *out, const FitInput *in, int json, char *err, size_t err_bytes) {
    const PlanInput *p = &in->plan;
    Fit fastest, largest;
    size_t depth = 0;
    char model[16];
    const int found = fit_fastest(&fastest, in, err, err_bytes);
    const int family = found >= 0 ? fit_largest(&depth, &largest, in, err, err_bytes) : -1;
    if (family < 0) return -1;
    snprintf(model, sizeof model, "d%zu", depth);
    if (json) {
        fprintf(out, "{\"device_bytes\": %.0f, \"ranks\": %zu", p->device_bytes, p->ranks);
        print_json(out, "fastest", p->model, found ? &fastest : NULL);
        print_json(out, "fewest_bytes", p->model, found ? NULL : &fastest);
        print_json(out, "largest", model, family ? &largest : NULL);
        fprintf(out, "}\n");
        return found;
    }
    fprintf(out, "fit: %s, %s, %zu rank%s of %.0f bytes, T = %zu\n", p->model,
            p->settings.dtype == ZERO_BF16 ? "BF16" : "FP32", p->ranks, p->ranks > 1 ? "s" : "", p->device_bytes, p->T);
    print_text(out, found ? "fastest that fits" : "nothing fits; the fewest bytes", p->model, &fastest);
    if (family)
        print_text(out, "largest of GPT-2's family that fits", model, &largest);
    else
        fprintf(out, "none of GPT-2's family (d6 ... d84) fits%s\n", p->T > 1024 ? ": their longest T is 1024" : "");
    return found;
}
