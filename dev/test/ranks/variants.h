// variants.h: engines of toy_model.h in every stage, and what programs that train them check of their reports.
#ifndef VARIANTS_H
#define VARIANTS_H
#include "test/ranks/toy_model.h"

// The size of stage 3's pool depends on prefetch, too. With a delay_seed random delays are injected, and released
// buffers are filled with NaN.
static const struct {
    const char *name;
    int stage, prefetch;
    uint64_t debug;
} variants[] = {
    { "stage 0", 0, 0, 0 },
    { "stage 1", 1, 0, 0 },
    { "stage 2", 2, 0, 0 },
    { "stage 3, no prefetch", 3, 0, 0 },
    { "stage 3, prefetch 1", 3, 1, 0 },
    { "stage 3, prefetch 2", 3, 2, 0 },
    { "stage 1, debug", 1, 0, 1 },
    { "stage 2, debug", 2, 0, 2 },
    { "stage 3, no prefetch, debug", 3, 0, 3 },
    { "stage 3, prefetch 1, debug", 3, 1, 4 },
    { "stage 3, prefetch 2, debug", 3, 2, 5 },
};
enum { VARIANTS = sizeof variants / sizeof *variants };

static inline zero *make_variant(zero_comm *c, zero_comm *replicas, int variant, enum zero_reduction reduction) {
    zero_config config = config_of(c, variants[variant].stage);
    config.replicate_comm = replicas;
    config.settings.prefetch = variants[variant].prefetch;
    config.settings.delay_seed = variants[variant].debug;
    config.settings.reduction = reduction;
    return make_of(config);
}

#endif
