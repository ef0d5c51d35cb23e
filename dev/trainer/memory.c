// What a rank may have is the least of --memory-limit, its part of what the host or the GPU has left, and ulimit -v.
// The plan of the run is compared with it before anything of the model is allocated. An allocation may fail all the
// same (--force 1; another process; libraries), and then the message is the allocator's. Both messages end with the
// flags that a search (fit.c) finds for that many bytes.
#include "trainer/memory.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trainer/fit.h"
#include "trainer/reports.h"
#include "zero/host_memory.h"

// Free it with free_description.
static void describe_fit(const Run *r, FitInput *in) {
    *in = (FitInput){ .config = r->config,
                      .head_rows = (size_t)r->options.head_rows,
                      .offload_activations = (int)r->options.offload_activations,
                      .activation_bytes = r->kernels.activation_bytes_of };
    describe_run(r, &in->plan);
    if (in->plan.ranks_per_host == 0 && r->local_ranks > 0 && r->local_ranks < r->ranks)
        in->plan.ranks_per_host = (size_t)r->local_ranks;
}

// What a rank may have, the bytes that it has already included, and what says so.
static double budget(const Run *r, char *why, size_t why_bytes) {
    const double has = (double)r->memory.total_live;
#ifdef CUDA_ON_CPU
    const int ranks = r->local_ranks;
    const double left = (double)zero_host_memory_available(""), own = (double)zero_address_space_left("");
    const char *name = "MemAvailable and limits of cgroups";
#else
    const int ranks = r->sharers;
    size_t left_bytes = 0, total;
    (void)cudaMemGetInfo(&left_bytes, &total);
    const double left = (double)left_bytes, own = left;
    const char *name = "the GPU's free memory";
#endif
    double bytes = has + left / ranks;
    snprintf(why, why_bytes, "%s, for %d rank%s", name, ranks, ranks > 1 ? "s" : "");
    if (has + own < bytes) {
        bytes = has + own;
        snprintf(why, why_bytes, "ulimit -v");
    }
    const double limit = (double)r->options.memory_limit;
    if (limit > 0 && limit < bytes) {
        bytes = limit;
        snprintf(why, why_bytes, "--memory-limit");
    }
    return bytes;
}

// Appends which flags make this run fit into so many bytes a rank. Those that do not change its bits are tried first.
// Not collective; the same on all ranks.
static void advise(const Run *r, double bytes, char *text, size_t text_bytes) {
    const size_t length = strlen(text);
    FitInput in;
    Fit fit;
    char flags[256], err[ERR_BYTES];
    describe_fit(r, &in);
    in.plan.device_bytes = bytes;
    in.searched = FIT_SAME_BITS & ~(unsigned)(FIT_OFFLOAD | FIT_OFFLOAD_PARAMS | FIT_ACTIVATIONS);
    int found = fit_fastest(&fit, &in, err, sizeof err);
    if (found == 0) {  // whether there is a disk, the user knows
        in.searched = FIT_SAME_BITS;
        in.plan.disk_bytes = INFINITY;
        in.plan.host_bytes = (double)zero_host_memory_available("");
        found = fit_fastest(&fit, &in, err, sizeof err);
    }
    if (found == 0) {
        in.searched = FIT_ALL;
        found = fit_fastest(&fit, &in, err, sizeof err);
    }
    free_description(&in.plan);
    if (found < 0) return;
    fit_flags(&fit, flags, sizeof flags);
    text += length;
    text_bytes -= length;
    if (found > 0)
        snprintf(text, text_bytes, ": use %s (%llu bytes)", flags, (unsigned long long)fit.bytes);
    else
        snprintf(text, text_bytes, ": use a smaller model or -t, or more ranks: the least on %d, %s, is %llu bytes",
                 r->ranks, flags, (unsigned long long)fit.bytes);
}

// The first row with which the rows exceed so many bytes.
static const zero_row *row_that_exceeds(const PlanStage *s, double bytes) {
    double sum = 0;
    size_t i = 0;
    while (i + 1 < s->memory_rows && (sum += (double)s->memory[i].expected) <= bytes) i++;
    return &s->memory[i];
}

void check_memory(const Run *r) {
    char err[ERR_BYTES] = "", why[128];
    FitInput in;
    PlanStage s;
    describe_fit(r, &in);
    in.plan.rank = (size_t)r->rank % (size_t)r->mesh.shard;
    const double may = budget(r, why, sizeof why);
    if (plan_stage(&s, &in.plan, err, sizeof err) == 0 && (double)s.memory_total > may && !r->options.force) {
        const zero_row *row = row_that_exceeds(&s, may);
        snprintf(err, sizeof err,
                 "-z %d -b %zu -t %zu: rank %d needs %llu bytes of memory and may have %.0f (%s): none is left for %s",
                 r->options.settings.stage, r->B, r->T, r->rank, (unsigned long long)s.memory_total, may, why,
                 row->what);
        advise(r, may, err, sizeof err);
        snprintf(err + strlen(err), sizeof err - strlen(err), ", or try it with --force 1");
    }
    free_description(&in.plan);
    agree(r, err);
}

void die_of_memory(const Run *r, const char *message) {
    char text[2 * ERR_BYTES], why[128];
    snprintf(text, sizeof text, "%s", message);
    const double may = budget(r, why, sizeof why);
    snprintf(text + strlen(text), sizeof text - strlen(text), "; this rank may have %.0f bytes (%s)", may, why);
    advise(r, may, text, sizeof text);
    die("%s", text);
}

int print_fit(const Run *r) {
    const Options *o = &r->options;
    static const struct {
        unsigned searched;
        const char *flag;
    } FLAGS[] = { { FIT_STAGE, "z" },
                  { FIT_GROUP, "shard-group" },
                  { FIT_ORDER, "micro-batch-order" },
                  { FIT_OFFLOAD, "offload" },
                  { FIT_OFFLOAD_PARAMS, "offload-params" },
                  { FIT_ACTIVATIONS, "offload-activations" },
                  { FIT_RECOMPUTE, "r" },
                  { FIT_HEAD_ROWS, "head-rows" },
                  { FIT_BATCH, "b" } };
    FitInput in;
    char err[ERR_BYTES];
    describe_fit(r, &in);
    for (size_t i = 0; i < sizeof FLAGS / sizeof *FLAGS; i++)
        if (!options_given(o, FLAGS[i].flag)) in.searched |= FLAGS[i].searched;
    if (o->micro_batches > 0) in.searched &= ~(unsigned)FIT_BATCH;  // the tokens of a step are those of M micro-batches
    const int fits = fit_print(stdout, &in, o->plan == OPTION_PLAN_JSON, err, sizeof err);
    if (fits < 0) die("--fit: %s", err);
    free_description(&in.plan);
    return fits;
}
