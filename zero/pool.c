// pool.c: which units share buffers (pool.h has the rule).
#include "zero/pool.h"
#include <stdlib.h>
#include <string.h>

static int descending(const void *a, const void *b) {
    const size_t x = *(const size_t *)a, y = *(const size_t *)b;
    return (x < y) - (x > y);
}

// Elements of a unit, without the padding that depends on the number of ranks.
static size_t used_numel(const zero_layout *l, size_t u) {
    const size_t last = l->unit_first[u + 1] - 1;
    return (l->tensor_offset[last] + l->tensors[last].numel + ZERO_ALIGN - 1) / ZERO_ALIGN * ZERO_ALIGN;
}

static int is_tied(const zero_layout *l, size_t u) {
    int tied = 0;
    for (size_t t = l->unit_first[u]; t < l->unit_first[u + 1]; t++) tied |= l->tensors[t].tied;
    return tied;
}

// The largest unit that shares, of n units in order of size.
static size_t largest_shared(const size_t *sizes, size_t n) {
    size_t larger = 0, least = (size_t)-1, largest = 0;
    for (size_t i = 0; i < n; i++) {
        const size_t all = larger + sizes[i] * (i + 1 < n ? 2 : 1);
        if (all < least) {
            least = all;
            largest = sizes[i];
        }
        larger += sizes[i];
    }
    return largest;
}

static int is_in(const zero_layout *l, enum zero_pool_kind kind, size_t u) {
    return kind == ZERO_POOL_PARAMS || !l->unit_frozen[u];
}

int zero_pool_create(zero_pool *p, const zero_layout *l, enum zero_pool_kind kind, size_t depth) {
    size_t n = 0, numel = 0, sharing = 0;
    size_t *sizes = malloc(l->num_units * sizeof *sizes);
    *p = (zero_pool){ .num_units = l->num_units,
                      .buffers = calloc(l->num_units, sizeof *p->buffers),
                      .shares = calloc(l->num_units, 1) };
    if (!sizes || !p->buffers || !p->shares) {
        free(sizes);
        zero_pool_destroy(p);
        return -1;
    }
    for (size_t u = 0; u < l->num_units; u++)
        if (is_in(l, kind, u) && !is_tied(l, u)) sizes[n++] = used_numel(l, u);
    qsort(sizes, n, sizeof *sizes, descending);
    const size_t most = largest_shared(sizes, n);
    free(sizes);
    for (size_t u = 0; u < l->num_units; u++) {
        p->shares[u] = is_in(l, kind, u) && !is_tied(l, u) && used_numel(l, u) <= most;
        if (!p->shares[u]) continue;
        sharing++;
        if (zero_layout_unit_numel(l, u) > numel) numel = zero_layout_unit_numel(l, u);
    }
    p->num_shared = depth < sharing ? depth : sharing;
    for (; p->num_buffers < p->num_shared; p->num_buffers++)
        p->buffers[p->num_buffers] = (zero_pool_buffer){ numel, ZERO_NO_UNIT };
    for (size_t u = 0; u < l->num_units && depth; u++)
        if (is_in(l, kind, u) && !p->shares[u])
            p->buffers[p->num_buffers++] = (zero_pool_buffer){ zero_layout_unit_numel(l, u), u };
    return 0;
}

void zero_pool_destroy(zero_pool *p) {
    free(p->buffers);
    free(p->shares);
    memset(p, 0, sizeof *p);
}
