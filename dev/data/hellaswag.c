// The file: 256 int32 (20240522, 1, number of examples, bytes of the longest), then uint16 for each example:
//
//     65535   bytes   index   label   4   n, context tokens   and four times:  n, completion tokens
//
// bytes counts the whole example; index wraps at 65536. The validation set has 10042 examples, 3.6 MB: it is kept in
// memory as it is in the file, with the place of each example.
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "data/hellaswag.h"
#include "data/llmc_file.h"

#define MAGIC 20240522

// Words of an example
enum { START, BYTES, INDEX, LABEL, COUNT, CONTEXT, COMPLETIONS = 4, FEWEST = CONTEXT + 2 * (1 + COMPLETIONS) };

#define FAIL(...) (snprintf(err, 512, __VA_ARGS__), -1)

struct HellaSwag {
    uint16_t *words;  // of the file, behind its header
    size_t *example;  // where each begins
    size_t examples, longest;
};

static int read_words(HellaSwag *h, const char *path, size_t *count, char err[512]) {
    int32_t header[LLMC_HEADER_WORDS];
    struct stat st;
    const int fd = llmc_open(path, err, 512);
    if (fd < 0) return -1;
    int status = 0;
    if (llmc_read_header(fd, header) != LLMC_HEADER_BYTES || header[0] != MAGIC || header[1] != 1 || header[2] < 1) {
        status = FAIL("%.200s: not a HellaSwag file of version 1: make it with llm.c's dev/data/hellaswag.py", path);
    } else {
        *count = fstat(fd, &st) == 0 ? ((size_t)st.st_size - LLMC_HEADER_BYTES) / 2 : 0;
        h->examples = (size_t)header[2];
        h->words = malloc(2 * *count + 1);
        h->example = h->examples <= *count / FEWEST ? calloc(h->examples, sizeof *h->example) : NULL;
        if (h->examples > *count / FEWEST)
            status = FAIL("%.200s: is too short for %zu examples: make the file again", path, h->examples);
        else if (h->words == NULL || h->example == NULL)
            status = FAIL("%.200s: out of memory for %zu examples", path, h->examples);
        else if (llmc_read_at(fd, h->words, 2 * *count, LLMC_HEADER_BYTES) != 0)
            status = FAIL("%.200s: cannot be read: %s", path, strerror(errno));
    }
    close(fd);
    return status;
}

// Checks example e, whose first word is h->words[at]. Returns 0, or -1 and a message.
static int check_example(HellaSwag *h, const char *path, size_t e, size_t at, size_t count, size_t vocab,
                         char err[512]) {
    const uint16_t *w = h->words + at;
    const size_t left = count - at, words = left > CONTEXT ? w[BYTES] / 2 : 0;
    int damaged = words > left || words <= CONTEXT || w[START] != 65535 || w[INDEX] != (uint16_t)e ||
                  w[LABEL] >= COMPLETIONS || w[COUNT] != COMPLETIONS;
    size_t next = CONTEXT;
    for (int part = 0; part <= COMPLETIONS && !damaged; part++) {
        const size_t n = next < words ? w[next] : 0;
        damaged = n == 0 || n >= words - next;
        for (size_t i = 1; i <= n && !damaged; i++)
            if (w[next + i] >= vocab)
                return FAIL("%.200s: token %u in example %zu, but the model's vocabulary is %zu: use a file made with "
                            "the model's tokenizer",
                            path, w[next + i], e, vocab);
        if (part > 0 && w[CONTEXT] + n > h->longest) h->longest = w[CONTEXT] + n;
        next += n + 1;
    }
    if (!damaged && next == words) return 0;
    return FAIL("%.200s: example %zu of %zu is damaged: make the file again", path, e, h->examples);
}

int hellaswag_open(HellaSwag **hellaswag, const char *path, size_t vocab, char err[512]) {
    size_t count = 0, at = 0;
    HellaSwag *h = *hellaswag = calloc(1, sizeof *h);
    if (h == NULL) return FAIL("out of memory");
    int status = read_words(h, path, &count, err);
    for (size_t e = 0; e < h->examples && status == 0; e++) {
        h->example[e] = at;
        status = check_example(h, path, e, at, count, vocab, err);
        if (status == 0) at += h->words[at + BYTES] / 2u;
    }
    if (status == 0) return 0;
    hellaswag_close(h);
    *hellaswag = NULL;
    return -1;
}

size_t hellaswag_examples(const HellaSwag *h) { return h->examples; }

size_t hellaswag_rows(const HellaSwag *h) { return COMPLETIONS * h->examples; }

size_t hellaswag_longest(const HellaSwag *h) { return h->longest; }

void hellaswag_row(const HellaSwag *h, size_t row, size_t T, int *inputs, int *targets, size_t *begin, size_t *end) {
    const uint16_t *context = h->words + h->example[row / COMPLETIONS] + CONTEXT, *completion = context;
    for (size_t c = 0; c <= row % COMPLETIONS; c++) completion += 1 + *completion;
    const size_t n = *context, all = n + *completion;
    *begin = n - 1;  // the last token of the context predicts the first one of the completion
    *end = all - 1;
    for (size_t t = 0; t < T && inputs != NULL; t++) {
        const int token = t < n ? context[1 + t] : t < all ? completion[1 + t - n] : 0;
        inputs[t] = token;
        if (t > 0) targets[t - 1] = token;
        targets[t] = 0;
    }
}

size_t hellaswag_correct(const HellaSwag *h, const double *losses) {
    size_t correct = 0;
    for (size_t e = 0; e < h->examples; e++) {
        const double *loss = losses + COMPLETIONS * e;
        size_t best = 0;
        for (size_t c = 1; c < COMPLETIONS; c++)
            if (loss[c] < loss[best]) best = c;
        correct += best == h->words[h->example[e] + LABEL];
    }
    return correct;
}

void hellaswag_close(HellaSwag *h) {
    if (h == NULL) return;
    free(h->words);
    free(h->example);
    free(h);
}
