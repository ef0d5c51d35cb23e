// agreement.c: the ranks agree on how they are configured, and on whether a collective call has failed.
//
// A rank that fails alone (no memory, a callback) would leave the others waiting in their next collective until the
// time-out. So collective calls that can fail on one rank end with zero_agree: the ranks exchange their codes and
// messages, and all return the failure of the lowest rank that has one, with its message:
//
//     rank 0   ok                               -> ZERO_ERR_MEMORY "rank 1 of 3: no memory for ..."
//     rank 1   ZERO_ERR_MEMORY "rank 1 of 3..." -> the same
//     rank 2   ok                               -> the same
#include "zero/internal.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

// ---- failures -------------------------------------------------------------------------------------------------------

// mine[bytes] of every rank; NULL after an error. The caller frees it.
static void *gather(zero *z, zero_comm *comm, const void *mine, size_t bytes) {
    void *all = malloc((size_t)zero_comm_size(comm) * bytes);
    if (!all) {
        zero_fail(z, ZERO_ERR_MEMORY, "out of host memory");
        return NULL;
    }
    if (zero_comm_check(z, zero_comm_allgather_host(comm, mine, bytes, all)) == ZERO_OK) return all;
    free(all);
    return NULL;
}

struct verdict {
    int code;
    char message[ZERO_AGREEMENT_BYTES - sizeof(int)];
};

static int agree(zero *z, zero_comm *comm, int e) {
    struct verdict mine = { .code = e }, *all;
    snprintf(mine.message, sizeof mine.message, "%.*s", (int)sizeof mine.message - 1, z->error);
    zero_comm_phase(comm, "agreement of the ranks", 0);
    if (!(all = gather(z, comm, &mine, sizeof mine))) return z->failed;
    for (int r = 0; r < zero_comm_size(comm) && !z->failed; r++) {
        if (!all[r].code) continue;
        z->failed = all[r].code;
        snprintf(z->error, sizeof z->error, "%s", all[r].message);
    }
    free(all);
    z->agreed = z->failed != ZERO_OK;
    return z->failed;
}

int zero_agree(zero *z, int e) {
    if (z->agreed) return z->failed;
    if (e == ZERO_ERR_COMM) return e;  // the other ranks have it, or will: their transport fails too
    e = agree(z, z->config.shard_comm, e);
    return z->replicas == 1 || e == ZERO_ERR_COMM ? e : agree(z, z->config.replicate_comm, e);
}

int zero_mean(zero *z, const double *values, size_t n, double *mean) {
    if (zero_enter(z)) return z->failed;
    const size_t ranks = (size_t)z->ranks, replicas = (size_t)z->replicas;
    zero_comm_phase(z->config.shard_comm, "mean over the ranks", 0);
    if (replicas > 1) zero_comm_phase(z->config.replicate_comm, "mean over the ranks", 0);
    double *group = gather(z, z->config.shard_comm, values, n * sizeof *values);
    double *all = group;
    if (group && replicas > 1) all = gather(z, z->config.replicate_comm, group, ranks * n * sizeof *group);
    *mean = 0;
    for (size_t j = 0; all && j < n * ranks * replicas; j++) {
        const size_t at = rank_order(z) ? j : j % (ranks * replicas) * n + j / (ranks * replicas);
        *mean += all[at] / (double)(n * ranks * replicas);
    }
    if (all != group) free(all);
    free(group);
    return z->failed;
}

// ---- calls ----------------------------------------------------------------------------------------------------------

void zero_record_call(zero *z, enum zero_call call, const void *argument, size_t bytes) {
    z->calls = XXH3_64bits_withSeed(argument, bytes, z->calls + call);
}

int zero_fail_calls(zero *z, int rank, const char *group) {
    return zero_fail(
        z, ZERO_ERR_COMM,
        "its calls differ from those of rank %d of %s: all ranks must acquire and release the same units in "
        "the same order, and step with the same hyperparameters",
        rank, group);
}

// ---- configuration --------------------------------------------------------------------------------------------------

// What must be equal on all ranks.
struct card {
    zero_settings settings;
    int replicas;
    uint64_t micro_batches;
    uint64_t num_tensors, tensors, order;  // hashes of the lists
};

static const struct {
    const char *name;
    size_t offset, bytes;
} fields[] = {
#define FIELD(name, field) \
    { name, offsetof(struct card, field), sizeof((struct card *)0)->field }
    FIELD("settings.stage", settings.stage),
    FIELD("settings.dtype", settings.dtype),
    FIELD("settings.master", settings.master),
    FIELD("settings.optimizer", settings.optimizer),
    FIELD("settings.reduction", settings.reduction),
    FIELD("settings.order", settings.order),
    FIELD("settings.prefetch", settings.prefetch),
    FIELD("settings.shard_group", settings.shard_group),
    FIELD("settings.ema_decay", settings.ema_decay),
    FIELD("settings.offload", settings.offload),
    FIELD("settings.offload_fraction", settings.offload_fraction),
    FIELD("settings.offload_params", settings.offload_params),
    FIELD("settings.seed", settings.seed),
    FIELD("settings.delay_seed", settings.delay_seed),
    FIELD("the size of replicate_comm", replicas),
    FIELD("micro_batches", micro_batches),
    FIELD("num_tensors", num_tensors),
    FIELD("the hash of tensors", tensors),
    FIELD("the hash of order", order),
#undef FIELD
};

static long long value_of(const struct card *c, size_t field) {
    const char *at = (const char *)c + fields[field].offset;
    int narrow;
    long long wide;
    memcpy(&narrow, at, sizeof narrow);
    if (fields[field].bytes == sizeof narrow) return narrow;
    memcpy(&wide, at, sizeof wide);
    return wide;
}

static void write_value(char *text, size_t bytes, const struct card *c, size_t field) {
    const size_t offset = fields[field].offset;
    if (offset == offsetof(struct card, settings.ema_decay))
        snprintf(text, bytes, "%.17g", c->settings.ema_decay);
    else if (offset == offsetof(struct card, settings.offload_fraction))
        snprintf(text, bytes, "%.17g", c->settings.offload_fraction);
    else
        snprintf(text, bytes, "%lld", value_of(c, field));
}

static int compare(zero *z, zero_comm *comm, const struct card *mine) {
    struct card *all = gather(z, comm, mine, sizeof *mine);
    if (!all) return z->failed;
    for (int r = 0; r < zero_comm_size(comm) && !z->failed; r++)
        for (size_t f = 0; f < sizeof fields / sizeof *fields; f++)
            if (value_of(mine, f) != value_of(&all[r], f)) {
                char values[2][32];
                write_value(values[0], sizeof values[0], mine, f);
                write_value(values[1], sizeof values[1], &all[r], f);
                zero_fail(z, ZERO_ERR_ARG, "%s is %s, but %s on rank %d of %s: all ranks need the same", fields[f].name,
                          values[0], values[1], r, comm == z->config.shard_comm ? "shard_comm" : "replicate_comm");
            }
    free(all);
    return z->failed;
}

// Group by group, and in each first the failures: of a rank that has no replicate_comm, where others have one, its
// shard group learns before it waits in the replicate group.
int zero_agree_on_config(zero *z, int e) {
    const zero_config *c = &z->config;
    struct card mine = { .settings = c->settings,
                         .replicas = z->replicas,
                         .micro_batches = c->micro_batches,
                         .num_tensors = c->num_tensors };
    for (size_t t = 0; t < c->num_tensors; t++) {
        const uint64_t tensor[] = { c->tensors[t].numel,          c->tensors[t].unit,
                                    c->tensors[t].logical,        (uint64_t)c->tensors[t].decay,
                                    (uint64_t)c->tensors[t].tied, c->tensors[t].frozen != 0 };
        mine.tensors = XXH3_64bits_withSeed(tensor, sizeof tensor, mine.tensors);
    }
    if (c->order_length) mine.order = XXH3_64bits(c->order, c->order_length * sizeof *c->order);
    if (e != ZERO_ERR_COMM) e = agree(z, c->shard_comm, e);
    if (!e) e = compare(z, c->shard_comm, &mine);
    if (z->replicas > 1 && e != ZERO_ERR_COMM) e = agree(z, c->replicate_comm, e);  // of a group that differs in itself
    if (z->replicas > 1 && !e) e = compare(z, c->replicate_comm, &mine);
    z->agreed = e != ZERO_OK;
    return e;
}
