// pool.c: which units share buffers (pool.h has the rule).
#include "zero/pool.h"
#include <stdlib.h>
#include <string.h>

// Units of one size.
struct size_class {
    size_t numel, units;
};

static int descending(const void *a, const void *b) {
    const struct size_class *x = a, *y = b;
    return (x->numel < y->numel) - (x->numel > y->numel);
}

static int is_tied(const zero_layout *l, size_t u) {
    int tied = 0;
    for (size_t t = l->unit_first[u]; t < l->unit_first[u + 1]; t++) tied |= l->tensors[t].tied;
    return tied;
}

// The largest size that shares, of n classes in order of size. Units of equal size share if the first of them does.
static size_t largest_shared(const struct size_class *classes, size_t n) {
    size_t larger = 0, least = (size_t)-1, largest = 0;
    for (size_t i = 0; i < n; i++) {
        const size_t all = larger + classes[i].numel * (i + 1 < n || classes[i].units > 1 ? 2 : 1);
        if (all < least) {
            least = all;
            largest = classes[i].numel;
        }
        larger += classes[i].numel * classes[i].units;
    }
    return largest;
}

static int is_in(const zero_layout *l, enum zero_pool_kind kind, size_t u) {
    return kind == ZERO_POOL_PARAMS || !l->unit_frozen[u];
}

int zero_pool_create(zero_pool *p, const zero_layout *l, enum zero_pool_kind kind, size_t depth) {
    size_t n = 0, numel = 0, sharing = 0;
    struct size_class *classes = malloc(l->num_runs * sizeof *classes);
    *p = (zero_pool){ .num_units = l->num_units,
                      .buffers = calloc(l->num_units, sizeof *p->buffers),
                      .shares = calloc(l->num_units, 1) };
    if (!classes || !p->buffers || !p->shares) {
        free(classes);
        zero_pool_destroy(p);
        return -1;
    }
    for (size_t r = 0; r < l->num_runs; r++) {
        const size_t u = l->run_first[r];
        if (is_in(l, kind, u) && !is_tied(l, u))
            classes[n++] = (struct size_class){ zero_layout_unit_content(l, u), l->run_first[r + 1] - u };
    }
    qsort(classes, n, sizeof *classes, descending);
    const size_t most = largest_shared(classes, n);
    free(classes);
    for (size_t r = 0; r < l->num_runs; r++) {
        const size_t u = l->run_first[r], units = l->run_first[r + 1] - u;
        if (!is_in(l, kind, u) || is_tied(l, u) || zero_layout_unit_content(l, u) > most) continue;
        memset(p->shares + u, 1, units);
        sharing += units;
        if (zero_layout_unit_numel(l, u) > numel) numel = zero_layout_unit_numel(l, u);
    }
    p->num_shared = depth < sharing ? depth : sharing;
    for (; p->num_buffers < p->num_shared; p->num_buffers++)
        p->buffers[p->num_buffers] = (zero_pool_buffer){ numel, ZERO_NO_UNIT };
    for (size_t r = 0; r < l->num_runs && depth; r++)
        for (size_t u = l->run_first[r]; u < l->run_first[r + 1] && is_in(l, kind, u) && !p->shares[u]; u++)
            p->buffers[p->num_buffers++] = (zero_pool_buffer){ zero_layout_unit_numel(l, u), u };
    return 0;
}

void zero_pool_destroy(zero_pool *p) {
    free(p->buffers);
    free(p->shares);
    memset(p, 0, sizeof *p);
}

size_t zero_pool_part(const zero_pool *p, const zero_layout *l, size_t unit) {
    enum { MOST_PARTS = 16 };
    const size_t shard = zero_layout_shard_numel(l, unit), shared = p->num_shared ? p->buffers[0].numel / l->ranks : 0;
    const size_t least = (shard / MOST_PARTS + ZERO_ALIGN) / ZERO_ALIGN * ZERO_ALIGN;
    const size_t part = shared > least ? shared : least;
    return p->shares[unit] || !shared || part > shard ? shard : part;
}

size_t zero_pool_largest_part(const zero_pool *p, const zero_layout *l) {
    size_t largest = 0;
    for (size_t r = 0; r < l->num_runs; r++) {
        const size_t u = l->run_first[r], part = l->unit_frozen[u] ? 0 : zero_pool_part(p, l, u);
        if (part > largest) largest = part;
    }
    return largest;
}
