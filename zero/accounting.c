// accounting.c: counts what was asked for, not what the runtime rounds it up to, so that it can be compared with a
// formula to the byte.
#include "zero/accounting.h"
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <string.h>

const char *zero_memory_category_name(enum zero_memory_category c) {
    static const char *const names[ZERO_MEM_CATEGORIES] = {
        "parameters",        "gradients",          "gradient shards",  "master weights", "optimizer state 1",
        "optimizer state 2", "average of weights", "unit buffers",     "activations",    "transport",
        "offload, host",     "offload, disk",      "activations, host"
    };
    return names[c];
}

int zero_memory_on_device(enum zero_memory_category c) {
#ifdef CUDA_ON_CPU
    return c != ZERO_MEM_DISK;
#else
    return c != ZERO_MEM_DISK && c != ZERO_MEM_HOST && c != ZERO_MEM_CALLER_HOST;
#endif
}

void zero_accounting_add(zero_accounting *m, enum zero_memory_category c, size_t added, size_t removed) {
    m->live[c] += added - removed;
    if (zero_memory_on_device(c)) m->total_live += added - removed;
    if (m->live[c] > m->peak[c]) m->peak[c] = m->live[c];
    if (m->total_live > m->total_peak) m->total_peak = m->total_live;
}

const char *zero_accounting_refusal(const zero_accounting *m, size_t bytes, char text[ZERO_REFUSAL_BYTES]) {
    const size_t left = m->total_live < m->limit ? m->limit - m->total_live : 0;
    text[0] = '\0';
    if (m->limit && bytes > left)
        snprintf(text, ZERO_REFUSAL_BYTES, ": %zu of the limit of %zu bytes are taken", m->total_live, m->limit);
    return text;
}

void *zero_accounting_alloc(zero_accounting *m, enum zero_memory_category c, size_t bytes) {
    char refusal[ZERO_REFUSAL_BYTES];
    void *p = NULL;
    const size_t size = bytes ? bytes : 1;
    if (*zero_accounting_refusal(m, bytes, refusal)) return NULL;
    if (cudaMalloc(&p, size) != cudaSuccess) {
        (void)cudaGetLastError();  // the NULL reports it; later calls must not see it again
        return NULL;
    }
    // visible on all streams, not only on those that wait for the default one
    if (cudaMemset(p, 0, size) != cudaSuccess || cudaStreamSynchronize(NULL) != cudaSuccess) {
        (void)cudaFree(p);
        return NULL;
    }
    zero_accounting_add(m, c, bytes, 0);
    return p;
}

void zero_accounting_free(zero_accounting *m, enum zero_memory_category c, void *ptr, size_t bytes) {
    if (!ptr) return;
    (void)cudaFree(ptr);
    zero_accounting_add(m, c, 0, bytes);
}

void *zero_accounting_alloc_host(zero_accounting *m, size_t bytes) {
    char refusal[ZERO_REFUSAL_BYTES];
    void *p = NULL;
    if (zero_memory_on_device(ZERO_MEM_HOST) && *zero_accounting_refusal(m, bytes, refusal)) return NULL;
    if (cudaMallocHost(&p, bytes ? bytes : 1) != cudaSuccess) {
        (void)cudaGetLastError();
        return NULL;
    }
    memset(p, 0, bytes);
    zero_accounting_add(m, ZERO_MEM_HOST, bytes, 0);
    return p;
}

void zero_accounting_free_host(zero_accounting *m, void *ptr, size_t bytes) {
    if (!ptr) return;
    (void)cudaFreeHost(ptr);
    zero_accounting_add(m, ZERO_MEM_HOST, 0, bytes);
}
