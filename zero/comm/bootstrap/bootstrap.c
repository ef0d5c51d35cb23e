// bootstrap.c: what all bootstraps share: dispatch, time, error messages.
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <xxhash.h>
#include "zero/comm/bootstrap/bootstrap_internal.h"

int zero_bootstrap_rank(const zero_bootstrap *b) { return b->rank; }
int zero_bootstrap_ranks(const zero_bootstrap *b) { return b->ranks; }
const char *zero_bootstrap_error(const zero_bootstrap *b) { return b->error; }
void zero_bootstrap_set_timeout(zero_bootstrap *b, double timeout_s) { b->timeout_s = timeout_s > 0 ? timeout_s : 300; }

int zero_bootstrap_new(zero_bootstrap **out, size_t struct_bytes, const zero_bootstrap_ops *ops,
                       const zero_bootstrap_config *config) {
    zero_bootstrap *b = *out = calloc(1, struct_bytes);
    if (!b) return ZERO_ERR_MEMORY;
    b->rank = config->rank;
    b->ranks = config->ranks;
    zero_bootstrap_set_timeout(b, config->timeout_s);
    if (config->ranks < 1 || config->rank < 0 || config->rank >= config->ranks)
        return zero_bootstrap_fail(b, ZERO_ERR_ARG,
                                   "there is no such rank: ranks go from 0 to the number of processes less one "
                                   "(zero_bootstrap_config.rank, ranks)");
    b->ops = ops;  // from here on there is something to destroy
    return ZERO_OK;
}

int zero_bootstrap_fail(zero_bootstrap *b, int code, const char *format, ...) {
    char message[ZERO_BOOTSTRAP_MESSAGE_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    snprintf(b->error, sizeof b->error, "rank %d of %d: %s", b->rank, b->ranks, message);
    return b->failed = code;
}

int zero_bootstrap_missing(const zero_bootstrap *b, const unsigned char *here, char *message, size_t bytes) {
    enum { NAMED = 8 };
    int count = 0;
    char names[NAMED * 16] = "";
    for (int r = 0; r < b->ranks; r++) {
        if (here[r]) continue;
        const size_t end = strlen(names);
        if (count < NAMED) snprintf(names + end, sizeof names - end, "%s%d", count ? ", " : "", r);
        count++;
    }
    if (count > NAMED)
        snprintf(message, bytes, "ranks %s and %d more have", names, count - NAMED);
    else
        snprintf(message, bytes, "rank%s %s %s", count == 1 ? "" : "s", names, count == 1 ? "has" : "have");
    return count;
}

uint64_t zero_bootstrap_job(const zero_bootstrap_config *config) {
    return config->job ? XXH3_64bits(config->job, strlen(config->job)) : 0;
}

void zero_bootstrap_pause(double *seconds, double longest) {
    nanosleep(&(struct timespec){ (time_t)*seconds, (long)((*seconds - (double)(time_t)*seconds) * 1e9) }, NULL);
    *seconds = *seconds * 1.5 < longest ? *seconds * 1.5 : longest;
}

int zero_bootstrap_allgather(zero_bootstrap *b, const void *mine, size_t bytes, void *all) {
    if (b->failed) return b->failed;
    const int e = b->ops->allgather(b, mine, bytes, all, NULL);
    b->round++;
    return e;
}

int zero_bootstrap_choose(zero_bootstrap *b, const void *mine, size_t bytes, zero_bootstrap_choice *choose,
                          void *chosen) {
    if (b->failed) return b->failed;
    char *all = malloc((b->rank == 0 ? (size_t)b->ranks : 1) * bytes + 1);
    if (!all) return zero_bootstrap_fail(b, ZERO_ERR_MEMORY, "out of host memory");
    const int e = b->ops->allgather(b, mine, bytes, all, choose);
    b->round++;
    if (!e) memcpy(chosen, all, bytes);
    free(all);
    return e;
}

void zero_bootstrap_destroy(zero_bootstrap *b) {
    if (!b) return;
    if (b->ops) b->ops->destroy(b);
    free(b);
}
