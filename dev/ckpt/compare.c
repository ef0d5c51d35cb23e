// compare: both are read in parallel, chunk by chunk; values are compared bit by bit as fp32, so a bf16 and an fp32
// model are equal if one is the other, widened.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/commands.h"
#include "ckpt/source.h"

typedef struct Difference {
    size_t count, at;  // elements that differ; the one with the largest difference
    double largest;    // NaN counts as infinite
    float a, b;
} Difference;

typedef struct Comparison {
    Source a, b;
    int of_b[CHECKPOINT_MAX_ARRAYS];  // index in b of each array of a; -1: b has no such state
    Difference *all;                  // [num_arrays * num_tensors]
} Comparison;

static int compare_chunk(void *ctx, size_t array, size_t tensor, size_t chunk, size_t begin, size_t count, float *a,
                         char *err) {
    enum { PIECE = 1 << 14 };
    Comparison *c = ctx;
    Difference d = { 0 };
    float b[PIECE];
    (void)chunk;
    if (c->of_b[array] < 0) return 0;
    for (size_t at = 0; at < count; at += PIECE) {
        const size_t n = count - at < PIECE ? count - at : PIECE;
        if (source_read(&c->a, array, tensor, begin + at, n, a, err) != 0 ||
            source_read(&c->b, (size_t)c->of_b[array], tensor, begin + at, n, b, err) != 0)
            return -1;
        for (size_t i = 0; i < n; i++) {
            if (memcmp(a + i, b + i, sizeof *a) == 0) continue;
            const double difference = fabs((double)a[i] - (double)b[i]),
                         size = isnan(difference) ? INFINITY : difference;
            if (d.count++ == 0 || size > d.largest) d = (Difference){ d.count, begin + at + i, size, a[i], b[i] };
        }
    }
    if (d.count == 0) return 0;
#pragma omp critical(differences)
    {
        Difference *of_tensor = &c->all[array * c->a.c->num_tensors + tensor];
        const size_t sum = of_tensor->count + d.count;
        if (of_tensor->count == 0 || d.largest > of_tensor->largest) *of_tensor = d;
        of_tensor->count = sum;
    }
    return 0;
}

// Matches the arrays by their states. Returns the number of arrays that only one of the two has.
static size_t match_arrays(Comparison *c) {
    size_t alone = 0;
    int used[CHECKPOINT_MAX_ARRAYS] = { 0 };
    for (size_t i = 0; i < c->a.c->num_arrays; i++) {
        c->of_b[i] = -1;
        for (size_t j = 0; j < c->b.c->num_arrays; j++)
            if (strcmp(c->a.c->arrays[i].name, c->b.c->arrays[j].name) == 0) c->of_b[i] = (int)j;
        if (c->of_b[i] >= 0)
            used[c->of_b[i]] = 1;
        else
            alone += printf("%s: only in %s\n", c->a.c->arrays[i].name, c->a.name) > 0;
    }
    for (size_t j = 0; j < c->b.c->num_arrays; j++)
        if (!used[j]) alone += printf("%s: only in %s\n", c->b.c->arrays[j].name, c->b.name) > 0;
    return alone;
}

static int begins(const char *line, const char *with) { return strncmp(line, with, strlen(with)) == 0; }

// Prints lines of one manifest that the other does not have, up to the hash of the state, but not the numbers of the
// outlier filters' windows. Returns their number, without those that only say how a file is called.
static size_t print_lines(const char *text, const char *other, const char *name) {
    const char *after = other;  // the line that was found last: with thousands of files, the next one is mostly here
    size_t n = 0;
    for (const char *line = strchr(text, '\n') + 1, *next; !begins(line, "state_hash"); line = next) {
        next = strchr(line, '\n') + 1;
        const size_t length = (size_t)(next - line);
        int found = begins(line + (*line == '-'), "0x") || strncmp(after, line, length) == 0;
        if (found && strncmp(after, line, length) == 0) after += length;
        for (const char *o = other; !found && !begins(o, "state_hash"); o = strchr(o, '\n') + 1) {
            found = strncmp(o, line, length) == 0;
            if (found) after = o + length;
        }
        if (!found) printf("%s: %.*s\n", name, (int)length - 1, line);
        n += !found && !begins(line, "train_file ") && !begins(line, "val_file ");
    }
    return n;
}

static size_t compare_manifests(const Comparison *c) {
    if (c->a.kind != SOURCE_ZERO || c->b.kind != SOURCE_ZERO) return 0;
    char *a = checkpoint_manifest(c->a.c), *b = checkpoint_manifest(c->b.c);
    const size_t n = a != NULL && b != NULL ? print_lines(a, b, c->a.name) + print_lines(b, a, c->b.name) : 0;
    free(a);
    free(b);
    return n;
}

static size_t print_differences(const Comparison *c) {
    const Checkpoint *k = c->a.c;
    size_t different = 0;
    for (size_t a = 0; a < k->num_arrays; a++)
        for (size_t t = 0; t < k->num_tensors; t++) {
            const Difference *d = &c->all[a * k->num_tensors + t];
            char layer[32] = "";
            if (d->count == 0) continue;
            if (k->tensors[t].unit > 0) snprintf(layer, sizeof layer, "layer %zu ", k->tensors[t].unit - 1);
            printf("%s, %s%s: %zu of %zu differ, by %g at most: element %zu is %.9g and %.9g\n", k->arrays[a].name,
                   layer, k->tensors[t].name, d->count, k->tensors[t].numel, d->largest, d->at, d->a, d->b);
            different++;
        }
    return different;
}

static int same_model(const GPT2Config *a, const GPT2Config *b) {
    return a->max_seq_len == b->max_seq_len && a->vocab_size == b->vocab_size &&
           a->padded_vocab_size == b->padded_vocab_size && a->num_layers == b->num_layers &&
           a->num_heads == b->num_heads && a->channels == b->channels;
}

static int run(Comparison *c, const char *a, const char *b, char *err) {
    if (source_open(&c->a, a, err) != 0 || source_open(&c->b, b, err) != 0) return EXIT_TROUBLE;
    const GPT2Config *m = &c->a.c->config, *n = &c->b.c->config;
    if (!same_model(m, n)) {
        printf(
            "different models: %s has %zu layers, %zu heads, %zu channels, vocabulary %zu, %zu positions; %s has %zu, "
            "%zu, %zu, %zu, %zu\n",
            c->a.name, m->num_layers, m->num_heads, m->channels, m->vocab_size, m->max_seq_len, c->b.name,
            n->num_layers, n->num_heads, n->channels, n->vocab_size, n->max_seq_len);
        return EXIT_DIFFERENT;
    }
    const size_t tensors = c->a.c->num_arrays * c->a.c->num_tensors;
    c->all = calloc(tensors, sizeof *c->all);
    if (c->all == NULL) return snprintf(err, ERR_BYTES, "out of memory"), EXIT_TROUBLE;
    const size_t others = compare_manifests(c) + match_arrays(c);
    if (for_chunks(c->a.c, compare_chunk, c, err) != 0) return EXIT_TROUBLE;
    const size_t different = print_differences(c);
    printf("%zu of %zu tensors differ%s\n", different, tensors, others > 0 ? ", and what is named above" : "");
    return different + others > 0 ? EXIT_DIFFERENT : EXIT_SUCCESS;
}

int compare(const char *a, const char *b) {
    static Comparison c;
    char err[ERR_BYTES] = "";
    c.a.fd[0] = c.a.fd[1] = c.b.fd[0] = c.b.fd[1] = -1;
    c.a.model.fd = c.b.model.fd = c.a.llmc.model.fd = c.b.llmc.model.fd = -1;
    const int status = run(&c, a, b, err);
    if (status == EXIT_TROUBLE) fprintf(stderr, "ckpt: %s\n", err);
    source_close(&c.a);
    source_close(&c.b);
    free(c.all);
    return status;
}
