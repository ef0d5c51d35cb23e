// Converts texts to token shards in llm.c's format, with GPT-2's byte-pair encoding. The last tenth becomes the
// validation shard.
//
//     tokenize_text gpt2_tokenizer.bin|bytes train.bin val.bin TEXT...
//
// The tokenizer is llm.c's, or tiktoken's r50k_base.tiktoken; bytes: a token is a byte. Each text is a document:
// <|endoftext|> (bytes: a line break) stands before it, as in llm.c's shards. All threads of OpenMP encode
// (OMP_NUM_THREADS): a text is cut at lines, where it can be cut without changing its tokens.
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "data/bpe.h"
#include "data/durable_file.h"
#include "data/llmc_file.h"

enum { PART = 1 << 18, ERR_BYTES = 5120 };  // bytes of text that a thread encodes at once

typedef struct {
    uint16_t *tokens;
    size_t count, room;
} Tokens;

static char err[ERR_BYTES];

static int fail(const char *message) {
    fprintf(stderr, "error: %s\n", message);
    return 1;
}

static int append(Tokens *t, const int *tokens, size_t n) {
    if (t->count + n > t->room) {
        const size_t room = 2 * (t->count + n);
        uint16_t *more = realloc(t->tokens, room * sizeof *more);
        if (more == NULL) return -1;
        t->tokens = more;
        t->room = room;
    }
    for (size_t i = 0; i < n; i++) t->tokens[t->count++] = (uint16_t)tokens[i];
    return 0;
}

// Encodes a text and appends its tokens, in order. Returns 0; -1: memory is exhausted.
static int encode(const Bpe *bpe, const char *text, size_t bytes, Tokens *out) {
    int failed = 0;
    size_t parts = bytes / PART + 1;
    size_t *cuts = malloc((parts + 1) * sizeof *cuts);
    if (cuts == NULL) return -1;
    cuts[0] = 0;
    for (size_t i = 1; i <= parts; i++) {
        const size_t from = i * PART > cuts[i - 1] ? i * PART : cuts[i - 1];
        cuts[i] = i < parts && from < bytes ? bpe_cut(text, bytes, from) : bytes;
    }
#pragma omp parallel for ordered schedule(dynamic, 1)
    for (size_t i = 0; i < parts; i++) {
        const size_t n = cuts[i + 1] - cuts[i];
        int *tokens = malloc((n + 1) * sizeof *tokens);
        const size_t count = tokens != NULL ? bpe_encode(bpe, text + cuts[i], n, tokens) : SIZE_MAX;
#pragma omp ordered
        if (count == SIZE_MAX || append(out, tokens, count) != 0) failed = -1;
        free(tokens);
    }
    free(cuts);
    return failed;
}

static int add_file(const Bpe *bpe, const Tokenizer *t, const char *path, Tokens *out) {
    struct stat st;
    const int eot = tokenizer_eot(t), fd = llmc_open(path, err, sizeof err);
    if (fd < 0) return -1;
    snprintf(err, sizeof err, "%.300s: cannot be read, or memory is exhausted", path);
    if (fstat(fd, &st) != 0 || append(out, &eot, 1) != 0) return -1;
    const size_t bytes = (size_t)st.st_size;
    char *text = bytes > 0 ? mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, fd, 0) : NULL;
    close(fd);
    if (text == MAP_FAILED) return -1;
    const int status = encode(bpe, text, bytes, out);
    if (bytes > 0) munmap(text, bytes);
    return status;
}

static int write_shard(const char *path, const uint16_t *tokens, size_t n) {
    char temporary[4200];
    int fd;
    if (n > INT32_MAX) {
        snprintf(err, sizeof err, "%.300s: %zu tokens; at most %d fit into a shard: give fewer texts", path, n,
                 INT32_MAX);
        return -1;
    }
    const int32_t header[LLMC_HEADER_WORDS] = { 20240520, 1, (int32_t)n };
    snprintf(temporary, sizeof temporary, "%.4000s.%ld.tmp", path, (long)getpid());
    if (durable_create(temporary, LLMC_HEADER_BYTES + 2 * n, &fd, err, sizeof err) != 0) return -1;
    int status = durable_write(fd, temporary, header, sizeof header, 0, err, sizeof err);
    if (status == 0) status = durable_write(fd, temporary, tokens, 2 * n, LLMC_HEADER_BYTES, err, sizeof err);
    if (status != 0) {
        close(fd);
        unlink(temporary);
        return -1;
    }
    if (durable_close(fd, temporary, err, sizeof err) != 0) return -1;
    return durable_publish(temporary, path, err, sizeof err);
}

static int same_file(const char *a, const char *b) {
    struct stat s, t;
    return strcmp(a, b) == 0 || (stat(a, &s) == 0 && stat(b, &t) == 0 && s.st_dev == t.st_dev && s.st_ino == t.st_ino);
}

int main(int argc, char **argv) {
    Tokenizer *t;
    Bpe *bpe;
    Tokens all = { 0 };
    if (argc < 5) {
        fprintf(stderr, "usage: %s gpt2_tokenizer.bin|bytes train.bin val.bin TEXT...\n", argv[0]);
        return 2;
    }
    for (int i = 4; i < argc; i++)
        if (same_file(argv[i], argv[2]) || same_file(argv[i], argv[3]) || same_file(argv[2], argv[3]))
            return fail("an output is named twice, or is one of the texts: choose another name");
    if (tokenizer_open(&t, strcmp(argv[1], "bytes") != 0 ? argv[1] : NULL, err) != 0 || bpe_open(&bpe, t, err) != 0)
        return fail(err);
    if (tokenizer_vocab(t) > UINT16_MAX + 1) return fail("the vocabulary has more than 65536 tokens");
    for (int i = 4; i < argc; i++)
        if (add_file(bpe, t, argv[i], &all) != 0) return fail(err);
    const size_t train = all.count / 10 * 9 + all.count % 10 * 9 / 10;
    if (write_shard(argv[2], all.tokens, train) != 0 ||
        write_shard(argv[3], all.tokens + train, all.count - train) != 0)
        return fail(err);
    printf("%d text%s, %zu tokens: %zu in %s, %zu in %s\n", argc - 4, argc == 5 ? "" : "s", all.count, train, argv[2],
           all.count - train, argv[3]);
    free(all.tokens);
    bpe_close(bpe);
    tokenizer_close(t);
    return 0;
}
