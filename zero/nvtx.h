// nvtx.h: labels for what the host queues, as NVTX ranges that Nsight Systems and Nsight Compute show beside the
// kernels. test_overlap reads the same labels. Ranges nest; every push has its pop. Without a profiler a range costs
// well under a microsecond.
#ifndef ZERO_NVTX_H
#define ZERO_NVTX_H
#include <nvtx3/nvToolsExt.h>
#include <stddef.h>
#include <stdio.h>

// Labels a range "what unit", as in "reduce 3".
static inline void zero_nvtx_push(const char *what, size_t unit) {
    char name[64];
    snprintf(name, sizeof name, "%s %zu", what, unit);
    nvtxRangePushA(name);
}

static inline void zero_nvtx_pop(void) { nvtxRangePop(); }

#endif
