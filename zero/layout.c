// layout.c: the layout's arithmetic (layout.h has the rules).
#include "zero/layout.h"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define LIMIT     (SIZE_MAX / 2)  // nothing overflows as long as no sum exceeds it
#define OVERFLOWS "the sizes of the tensors overflow size_t"

static size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

void zero_layout_destroy(zero_layout *l) {
    free(l->tensors);
    free(l->names);
    free(l->tensor_offset);
    free(l->unit_first);
    free(l->unit_offset);
    free(l->unit_frozen);
    free(l->trained_offset);
    free(l->run_first);
    memset(l, 0, sizeof *l);
}

static int fail(zero_layout *l, const char **why, const char *message) {
    zero_layout_destroy(l);
    *why = message;
    return -1;
}

static int copy_tensors(zero_layout *l, const zero_tensor *tensors, size_t num_tensors) {
    size_t bytes = 1;
    for (size_t t = 0; t < num_tensors; t++) bytes += tensors[t].name ? strlen(tensors[t].name) + 1 : 0;
    l->tensors = malloc(num_tensors * sizeof *l->tensors);
    l->names = calloc(bytes, 1);
    if (!l->tensors || !l->names) return -1;
    char *at = l->names + 1;  // before it is the name of tensors without one
    for (size_t t = 0; t < num_tensors; t++) {
        l->tensors[t] = tensors[t];
        l->tensors[t].frozen = tensors[t].frozen != 0;
        l->tensors[t].name = tensors[t].name ? strcpy(at, tensors[t].name) : l->names;
        if (tensors[t].name) at += strlen(at) + 1;
    }
    return 0;
}

static int is_frozen(const zero_layout *l, size_t unit) {
    for (size_t t = l->unit_first[unit]; t < l->unit_first[unit + 1]; t++)
        if (!l->tensors[t].frozen) return 0;
    return 1;
}

// Whether two units have as many tensors, of the same sizes and attributes.
static int are_alike(const zero_layout *l, size_t a, size_t b) {
    const size_t n = l->unit_first[a + 1] - l->unit_first[a];
    if (l->unit_first[b + 1] - l->unit_first[b] != n) return 0;
    const zero_tensor *s = l->tensors + l->unit_first[a], *t = l->tensors + l->unit_first[b];
    for (size_t i = 0; i < n; i++)
        if (s[i].numel != t[i].numel || s[i].decay != t[i].decay || s[i].tied != t[i].tied ||
            s[i].frozen != t[i].frozen)
            return 0;
    return 1;
}

static void find_runs(zero_layout *l) {
    l->num_runs = 0;
    for (size_t u = 0; u < l->num_units; u++) {
        l->unit_frozen[u] = (unsigned char)is_frozen(l, u);
        if (!u || !are_alike(l, u - 1, u)) l->run_first[l->num_runs++] = u;
    }
    l->run_first[l->num_runs] = l->num_units;
}

static size_t run_units(const zero_layout *l, size_t run) { return l->run_first[run + 1] - l->run_first[run]; }

int zero_layout_create(zero_layout *l, const zero_tensor *tensors, size_t num_tensors, size_t ranks, const char **why) {
    memset(l, 0, sizeof *l);
    if (!num_tensors || !ranks) return fail(l, why, "a layout needs at least one tensor and one rank");
    for (size_t t = 0; t < num_tensors; t++) {
        const size_t previous = t ? tensors[t - 1].unit : 0;
        if (t ? tensors[t].unit != previous && tensors[t].unit != previous + 1 : tensors[t].unit != 0)
            return fail(l, why, "tensors must be listed unit by unit, units ascending from 0 without gaps");
    }
    l->num_tensors = num_tensors;
    l->num_units = tensors[num_tensors - 1].unit + 1;
    l->tensor_offset = malloc(num_tensors * sizeof *l->tensor_offset);
    l->unit_first = malloc((l->num_units + 1) * sizeof *l->unit_first);
    l->unit_offset = malloc((l->num_units + 1) * sizeof *l->unit_offset);
    l->unit_frozen = malloc(l->num_units);
    l->trained_offset = malloc((l->num_units + 1) * sizeof *l->trained_offset);
    l->run_first = malloc((l->num_units + 1) * sizeof *l->run_first);
    if (!l->tensor_offset || !l->unit_first || !l->unit_offset || !l->unit_frozen || !l->trained_offset ||
        !l->run_first || copy_tensors(l, tensors, num_tensors))
        return fail(l, why, "out of host memory for the layout's tables");

    size_t t = 0;
    for (size_t u = 0; u < l->num_units; u++) {
        size_t in_unit = 0;
        l->unit_first[u] = t;
        for (; t < num_tensors && tensors[t].unit == u; t++) {
            if (in_unit > LIMIT - ZERO_ALIGN || tensors[t].numel > LIMIT - ZERO_ALIGN - in_unit)
                return fail(l, why, OVERFLOWS);
            l->tensor_offset[t] = in_unit;
            l->numel += tensors[t].numel;
            in_unit = round_up(in_unit + tensors[t].numel, ZERO_ALIGN);
        }
    }
    l->unit_first[l->num_units] = num_tensors;
    find_runs(l);
    return zero_layout_set_ranks(l, ranks, why) ? fail(l, why, *why) : 0;
}

int zero_layout_set_ranks(zero_layout *l, size_t ranks, const char **why) {
    size_t physical = 0;
    if (!ranks || ranks > SIZE_MAX / ZERO_ALIGN / 2) return *why = "too many ranks", -1;
    for (size_t r = 0; r < l->num_runs; r++) {
        const size_t content = zero_layout_unit_content(l, l->run_first[r]), to = ZERO_ALIGN * ranks;
        if (content + to > LIMIT) return *why = OVERFLOWS, -1;  // both are at most LIMIT: this cannot wrap
        const size_t units = run_units(l, r), unit = round_up(content, to);
        if (unit && units > (LIMIT - physical) / unit) return *why = OVERFLOWS, -1;
        physical += units * unit;
    }
    l->ranks = ranks;
    l->numel_padded = physical;
    physical = 0;
    size_t trained = 0;
    for (size_t r = 0; r < l->num_runs; r++) {
        const size_t unit = round_up(zero_layout_unit_content(l, l->run_first[r]), ZERO_ALIGN * ranks);
        for (size_t u = l->run_first[r]; u < l->run_first[r + 1]; u++) {
            l->unit_offset[u] = physical;
            l->trained_offset[u] = trained;
            physical += unit;
            trained += l->unit_frozen[u] ? 0 : unit;
        }
    }
    l->unit_offset[l->num_units] = physical;
    l->trained_offset[l->num_units] = trained;
    return 0;
}

void zero_layout_set_frozen(zero_layout *l, size_t tensor, int frozen) {
    const char *why;
    l->tensors[tensor].frozen = frozen;
    find_runs(l);
    (void)zero_layout_set_ranks(l, l->ranks, &why);  // which were possible before
}

size_t zero_layout_unit_content(const zero_layout *l, size_t unit) {
    const size_t last = l->unit_first[unit + 1] - 1;
    return round_up(l->tensor_offset[last] + l->tensors[last].numel, ZERO_ALIGN);
}
size_t zero_layout_unit_numel(const zero_layout *l, size_t unit) {
    return l->unit_offset[unit + 1] - l->unit_offset[unit];
}
size_t zero_layout_shard_numel(const zero_layout *l, size_t unit) { return zero_layout_unit_numel(l, unit) / l->ranks; }
size_t zero_layout_shard_offset(const zero_layout *l, size_t unit) { return l->unit_offset[unit] / l->ranks; }

static size_t largest(const zero_layout *l, int with_frozen) {
    size_t n = 0;
    for (size_t r = 0; r < l->num_runs; r++) {
        const size_t u = l->run_first[r], numel = zero_layout_unit_numel(l, u);
        if ((with_frozen || !l->unit_frozen[u]) && numel > n) n = numel;
    }
    return n;
}
size_t zero_layout_largest_unit(const zero_layout *l) { return largest(l, 1); }
size_t zero_layout_largest_trained_unit(const zero_layout *l) { return largest(l, 0); }

zero_owner zero_layout_owner(const zero_layout *l, size_t tensor, size_t element) {
    const size_t unit = l->tensors[tensor].unit, in_unit = l->tensor_offset[tensor] + element;
    const size_t shard = zero_layout_shard_numel(l, unit);
    return (zero_owner){ .rank = in_unit / shard, .offset = zero_layout_shard_offset(l, unit) + in_unit % shard };
}

size_t zero_layout_replica_chunk(const zero_layout *l, size_t unit, size_t replicas) {
    return round_up(zero_layout_shard_numel(l, unit), ZERO_ALIGN * replicas) / replicas;
}

size_t zero_layout_replica_offset(const zero_layout *l, size_t unit, size_t replicas) {
    size_t offset = 0;
    if (replicas == 1) return l->trained_offset[unit] / l->ranks;
    for (size_t r = 0; l->run_first[r] < unit; r++) {
        const size_t first = l->run_first[r], units = unit < l->run_first[r + 1] ? unit - first : run_units(l, r);
        if (!l->unit_frozen[first]) offset += units * zero_layout_replica_chunk(l, first, replicas);
    }
    return offset;
}

size_t zero_layout_replica_begin(const zero_layout *l, size_t unit, size_t replicas, size_t group) {
    const size_t shard = zero_layout_shard_numel(l, unit), at = group * zero_layout_replica_chunk(l, unit, replicas);
    return at < shard ? at : shard;
}

size_t zero_layout_replica_buffer(const zero_layout *l, size_t replicas) {
    size_t numel = 0;
    for (size_t r = 0; r < l->num_runs; r++) {
        const size_t u = l->run_first[r], of_unit = zero_layout_replica_chunk(l, u, replicas) * replicas;
        if (!l->unit_frozen[u] && of_unit > numel) numel = of_unit;
    }
    return numel;
}

int zero_layout_next_segment(const zero_layout *l, size_t unit, size_t begin, size_t end, size_t *cursor,
                             zero_segment *out) {
    for (size_t t = l->unit_first[unit] + *cursor; t < l->unit_first[unit + 1]; t++) {
        const size_t tensor_begin = l->tensor_offset[t], tensor_end = tensor_begin + l->tensors[t].numel;
        const size_t from = begin > tensor_begin ? begin : tensor_begin, to = end < tensor_end ? end : tensor_end;
        if (from >= to) continue;
        *out = (zero_segment){
            .tensor = t, .tensor_begin = from - tensor_begin, .count = to - from, .unit_begin = from
        };
        *cursor = t + 1 - l->unit_first[unit];
        return 1;
    }
    *cursor = l->unit_first[unit + 1] - l->unit_first[unit];
    return 0;
}
