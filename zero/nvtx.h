// range.h: names for what the host queues, as ranges that a profiler shows beside the kernels (NVTX: Nsight Systems,
// Nsight Compute). The tests of overlap read the same names. They nest; each begin has its end. Without a profiler a
// range costs well under a microsecond.
#ifndef ZERO_NVTX_H
#define ZERO_NVTX_H
#include <nvtx3/nvToolsExt.h>
#include <stddef.h>
#include <stdio.h>

// "what unit", as in "reduce 3".
static inline void zero_nvtx_push(const char *what, size_t unit) {
    char name[64];
    snprintf(name, sizeof name, "%s %zu", what, unit);
    nvtxRangePushA(name);
}

static inline void zero_nvtx_pop(void) { nvtxRangePop(); }

#endif
