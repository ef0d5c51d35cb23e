// The order of the data is a function of (seed, epoch, global micro-batch index j) and of nothing else. Which tokens
// are in batch j does not depend on the rank, the stage, the number of ranks, or a restart. The same bits on 1 and on 8
// ranks require this, and it makes the position in the data a number instead of a state that must be saved.
//
// A *sample* is one micro-batch: B*T tokens and one more, for the last target. Sample q of a shard starts at its token
// q*B*T. Batch j is sample number j % S of epoch j / S, where S is the number of samples in all shards. Unshuffled, the
// shards follow one another. Shuffled, each epoch permutes the shards, then the samples inside each. One generator
// draws all permutations, one epoch after the other: first that of the shards (applied to the order of the previous
// epoch), then those of the samples, in the new order of the shards. This is what llm.c does with one process, so its
// runs can be compared with ours; with several processes llm.c gives each another seed, and the order depends on their
// number.
//
// The permutations of the current epoch are kept (4 bytes per sample). Another epoch is reached by drawing: forward by
// skipping whole epochs, which is fast because each epoch draws the same number of words (see mt_skip); backward by
// starting from the seed.
//
// A sample is read with one pread when it is requested: the operating system's page cache suffices, and text or a shard
// of any size needs a few kilobytes. One file is kept open, that of the last batch.
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "data/content_hash.h"
#include "data/dataloader.h"
#include "data/file_list.h"
#include "data/llmc_file.h"
#include "data/random.h"

#define MAGIC    20240520
#define NO_EPOCH SIZE_MAX

// All messages end here. A file name is cut to its first 200 characters, so that the remedy after it is never lost.
#define FAIL(...) (snprintf(err, 512, __VA_ARGS__), -1)

typedef struct {
    const char *name;
    size_t begin, tokens;  // the part of the file that is used, in tokens
    size_t samples;
} Shard;

struct Loader {
    glob_t files;
    size_t *file_bytes;
    Shard *shards;
    size_t B, T, vocab, token_bytes;
    LoaderInfo info;
    size_t longest_skipped;  // tokens
    unsigned char *raw;      // B*T + 1 tokens as they are in the file

    int fd;  // of shards[fd_shard], or -1
    size_t fd_shard;

    int shuffle;
    uint32_t seed;
    Mt19937 rng;
    size_t epochs_drawn;
    size_t epoch;  // whose permutations these are, or NO_EPOCH:
    uint32_t *shard_order;
    uint32_t *sample_order;  // for every position in the epoch, a sample of the shard that is due there
};

// Kinds of files that may have no NUL byte at first, by how they begin.
static const struct {
    const char *begin, *name, *remedy;
} KINDS[] = {
    { "\x1f\x8b", "compressed with gzip", "decompress it with gunzip" },
    { "\x28\xb5\x2f\xfd", "compressed with zstd", "decompress it with unzstd" },
    { "\xfd"
      "7zXZ",
      "compressed with xz", "decompress it with unxz" },
    { "BZh", "compressed with bzip2", "decompress it with bunzip2" },
    { "PK\3\4", "a zip archive", "unpack it" },
    { "\xff\xfe", "text in UTF-16", "convert it with iconv -f UTF-16 -t UTF-8" },
    { "\xfe\xff", "text in UTF-16", "convert it with iconv -f UTF-16 -t UTF-8" },
    { "PAR1", "a Parquet file", "write its text, or its tokens, to files" },
    { "\x93NUMPY", "a NumPy array", "write its tokens as shards" },
    { "%PDF-", "a PDF", "write its text to a file" },
};

// Is a file that is no shard text? header: its first `head` bytes.
static int check_text(const char *name, int fd, const int32_t *header, size_t head, size_t size, char err[512]) {
    enum { BLOCK = 4096, BLOCKS = 64 };
    for (size_t i = 0; i < sizeof KINDS / sizeof *KINDS; i++) {
        const size_t n = strlen(KINDS[i].begin);
        if (n <= head && memcmp(header, KINDS[i].begin, n) == 0)
            return FAIL("%.200s is %s, not plain text: %s first.", name, KINDS[i].name, KINDS[i].remedy);
    }
    for (size_t i = 0; i < BLOCKS && size > 0; i++) {
        char block[BLOCK];
        const size_t last = size > BLOCK ? size - BLOCK : 0,
                     at = last / (BLOCKS - 1) * i + last % (BLOCKS - 1) * i / 63;
        const size_t bytes = size - at < BLOCK ? size - at : BLOCK;
        if (llmc_read_at(fd, block, bytes, at) != 0)
            return FAIL("%.200s: cannot read it (%s). Check the disk.", name, strerror(errno));
        if (memchr(block, 0, bytes))
            return FAIL("%.200s is neither a token shard (its magic number is %d, not %d) nor text (it has NUL bytes; "
                        "text in UTF-16 has, too). Give shards made by llm.c's dev/data scripts or "
                        "by tokenize_text, or a text file.",
                        name, (int)header[0], MAGIC);
    }
    return 0;
}

// What is in the file: counts its tokens, says which kind it is.
static int inspect_file(const char *name, int fd, int *is_text, size_t *tokens, char err[512]) {
    struct stat st;
    int32_t header[LLMC_HEADER_WORDS];
    if (fstat(fd, &st) != 0) {
        return FAIL("%.200s: %s", name, strerror(errno));
    }
    size_t size = (size_t)st.st_size;
    const int head = llmc_read_header(fd, header);
    if (head < 0) {
        return FAIL("%.200s: cannot read it (%s). Check the disk.", name, strerror(errno));
    }

    if (head < 8 || header[0] != MAGIC) {
        *is_text = 1;
        *tokens = size;
        return check_text(name, fd, header, (size_t)head, size, err);
    }
    if (header[1] != 1) {
        return FAIL("%.200s is a token shard of version %d; only version 1 is known. Tokenize the data again.", name,
                    (int)header[1]);
    }
    size_t count = header[2] > 0 ? (size_t)header[2] : 0;
    if (count == 0 || size != LLMC_HEADER_BYTES + 2 * count) {
        return FAIL(
            "%.200s has %zu bytes; its header promises %d tokens, hence %zu bytes. The file is truncated or damaged: "
            "copy or tokenize it again.",
            name, size, (int)header[2], LLMC_HEADER_BYTES + 2 * count);
    }
    *is_text = 0;
    *tokens = count;
    return 0;
}

// Adds file f as a shard; or, if it is too short, only counts it.
static int add_shard(Loader *l, size_t f, const LoaderConfig *c, char err[512]) {
    const char *name = l->files.gl_pathv[f];
    int is_text;
    size_t count;
    int fd = llmc_open(name, err, 512);
    if (fd < 0) {
        return -1;
    }
    int rc = inspect_file(name, fd, &is_text, &count, err);
    close(fd);
    if (rc != 0) {
        return rc;
    }
    if (f > 0 && is_text != l->info.is_text) {
        return FAIL("%.200s is %s but %.100s is not. Make the pattern match files of one kind.", name,
                    is_text ? "text" : "a token shard", l->files.gl_pathv[0]);
    }
    l->info.is_text = is_text;
    l->file_bytes[f] = is_text ? count : LLMC_HEADER_BYTES + 2 * count;

    // Divided first: the product could overflow. The remainder keeps the percentage exact.
    size_t begin = count / 100 * c->begin_percent + count % 100 * c->begin_percent / 100;
    size_t end = count / 100 * c->end_percent + count % 100 * c->end_percent / 100;
    size_t tokens = end - begin;
    if (tokens < c->B * c->T + 1) {
        if (l->info.skipped++ == 0 || tokens > l->longest_skipped) {
            l->longest_skipped = tokens;
            if (count == 0)
                (void)FAIL("%.200s is empty: give a file with text or tokens", name);
            else
                (void)FAIL(
                    "%.200s has %zu tokens in the part used (%u to %u%%), but a micro-batch of B = %zu rows of T = %zu "
                    "takes %zu. Use a smaller -b or -t, or a larger file.",
                    name, tokens, c->begin_percent, c->end_percent, c->B, c->T, c->B * c->T + 1);
        }
        return 0;
    }
    size_t samples = (tokens - 1) / (c->B * c->T);
    if (samples > UINT32_MAX) {
        return FAIL("%.200s has %zu micro-batches; at most %u are possible. Use a larger -b or -t, or split the file.",
                    name, samples, UINT32_MAX);
    }
    l->shards[l->info.shards++] = (Shard){ .name = name, .begin = begin, .tokens = tokens, .samples = samples };
    l->info.tokens += tokens;
    l->info.samples += samples;
    return 0;
}

static int open_loader(Loader *l, const LoaderConfig *c, char err[512]) {
    if (c->B == 0 || c->T == 0 || c->vocab == 0 || c->B > INT32_MAX / c->T) {
        return FAIL("B = %zu, T = %zu, vocabulary %zu: all must be positive, and B * T below 2^31. Check -b and -t.",
                    c->B, c->T, c->vocab);
    }
    if (c->begin_percent >= c->end_percent || c->end_percent > 100) {
        return FAIL("the part from %u%% to %u%% of a file is empty or impossible", c->begin_percent, c->end_percent);
    }
    if (file_list(c->pattern, &l->files, err) != 0) {
        return -1;
    }
    const size_t files = l->files.gl_pathc;
    l->shards = calloc(files, sizeof *l->shards);
    l->file_bytes = calloc(files, sizeof *l->file_bytes);
    if (!l->shards || !l->file_bytes) {
        return FAIL("out of memory for %zu shards", files);
    }
    for (size_t f = 0; f < files; f++) {
        if (add_shard(l, f, c, err) != 0) {
            return -1;
        }
    }
    const size_t shards = l->info.shards;
    if (shards == 0) {
        return -1;  // err is about the longest of those that are too short
    }

    l->token_bytes = l->info.is_text ? 1 : 2;
    l->raw = malloc((c->B * c->T + 1) * l->token_bytes);
    l->shard_order = malloc(shards * sizeof *l->shard_order);
    l->sample_order = c->shuffle ? malloc(l->info.samples * sizeof *l->sample_order) : NULL;
    if (!l->raw || !l->shard_order || (c->shuffle && !l->sample_order)) {
        return FAIL("out of memory for the order of %zu micro-batches. Use a larger -b, or no shuffling.",
                    l->info.samples);
    }
    return 0;
}

int loader_open(Loader **loader, const LoaderConfig *c, char err[512]) {
    *loader = NULL;
    Loader *l = calloc(1, sizeof *l);
    if (!l) {
        return FAIL("out of memory");
    }
    l->B = c->B;
    l->T = c->T;
    l->vocab = c->vocab;
    l->shuffle = c->shuffle;
    l->seed = c->seed;
    l->fd = -1;
    l->epoch = NO_EPOCH;
    l->info.max_token = -1;
    if (open_loader(l, c, err) != 0) {
        loader_close(l);
        return -1;
    }
    *loader = l;
    return 0;
}

int loader_content_hash(const Loader *l, uint64_t *hash, char err[512]) {
    return content_hash(l->files.gl_pathv, l->files.gl_pathc, hash, err, 512);
}

char *loader_files(const Loader *l) {
    char *text = NULL;
    size_t bytes;
    FILE *f = open_memstream(&text, &bytes);
    for (size_t i = 0; f != NULL && i < l->files.gl_pathc; i++) {
        const char *path = l->files.gl_pathv[i], *slash = strrchr(path, '/');
        fprintf(f, "%zu ", l->file_bytes[i]);
        for (const char *c = slash != NULL ? slash + 1 : path; *c != '\0'; c++)
            fputc(iscntrl((unsigned char)*c) ? '?' : *c, f);
        fputc('\n', f);
    }
    if (f != NULL && fclose(f) == 0) return text;
    free(text);
    return NULL;
}

// Counts the tokens eot among tokens [begin, end) of a shard.
static int count_tokens(const Shard *s, size_t begin, size_t end, int eot, size_t *count, char err[512]) {
    unsigned char raw[8192];
    const int fd = llmc_open(s->name, err, 512);
    if (fd < 0) return -1;
    while (begin < end) {
        const size_t n = end - begin < sizeof raw / 2 ? end - begin : sizeof raw / 2;
        if (llmc_read_at(fd, raw, 2 * n, LLMC_HEADER_BYTES + 2 * (s->begin + begin)) != 0) {
            close(fd);
            return FAIL("%.200s: cannot read it (%s). Check the disk.", s->name, strerror(errno));
        }
        for (size_t i = 0; i < n; i++) *count += (raw[2 * i] | raw[2 * i + 1] << 8) == eot;
        begin += n;
    }
    close(fd);
    return 0;
}

int loader_documents(const Loader *l, int eot, size_t *documents, int *estimated, char err[512]) {
    enum { WHOLE = 1 << 24, PARTS = 64, PART = 1 << 16 };  // tokens
    size_t read = 0, found = 0, before = 0;
    *estimated = !l->info.is_text && l->info.tokens > WHOLE;
    *documents = l->info.shards;
    for (size_t i = 0; i < l->info.shards && !l->info.is_text; i++) {
        const Shard *s = &l->shards[i];
        if (!*estimated && count_tokens(s, 0, s->tokens, eot, &found, err) != 0) return -1;
        for (size_t part = 0; part < PARTS && *estimated; part++) {  // those that begin in this shard
            const size_t at = l->info.tokens / PARTS * part;
            if (at < before || at - before >= s->tokens) continue;
            const size_t begin = at - before, end = s->tokens - begin < PART ? s->tokens : begin + PART;
            if (count_tokens(s, begin, end, eot, &found, err) != 0) return -1;
            read += end - begin;
        }
        before += s->tokens;
    }
    if (!l->info.is_text)
        *documents = *estimated ? (size_t)((double)found * (double)l->info.tokens / (double)read) : found;
    return 0;
}

void loader_close(Loader *l) {
    if (!l) {
        return;
    }
    if (l->fd >= 0) {
        close(l->fd);
    }
    free(l->sample_order);
    free(l->shard_order);
    free(l->raw);
    free(l->shards);
    free(l->file_bytes);
    globfree(&l->files);
    free(l);
}

size_t loader_num_samples(const Loader *l) { return l->info.samples; }

LoaderInfo loader_info(const Loader *l) { return l->info; }

static void identity(uint32_t *a, size_t n) {
    for (size_t i = 0; i < n; i++) {
        a[i] = (uint32_t)i;
    }
}

// Makes shard_order and sample_order those of `epoch`.
static void draw_epoch(Loader *l, size_t epoch) {
    if (l->epoch == epoch) {
        return;
    }
    if (l->epoch == NO_EPOCH || l->epochs_drawn > epoch) {
        mt_seed(&l->rng, l->seed);
        identity(l->shard_order, l->info.shards);
        l->epochs_drawn = 0;
    }
    // A permutation of n takes n - 1 draws. The order of the shards must be drawn, as the next epoch's builds on it.
    for (; l->epochs_drawn < epoch; l->epochs_drawn++) {
        mt_permute(&l->rng, l->shard_order, l->info.shards);
        mt_skip(&l->rng, l->info.samples - l->info.shards);
    }
    mt_permute(&l->rng, l->shard_order, l->info.shards);
    uint32_t *order = l->sample_order;
    for (size_t k = 0; k < l->info.shards; k++) {
        size_t samples = l->shards[l->shard_order[k]].samples;
        identity(order, samples);
        mt_permute(&l->rng, order, samples);
        order += samples;
    }
    l->epochs_drawn = epoch + 1;
    l->epoch = epoch;
}

// Which sample of which shard is batch j?
static void locate(Loader *l, size_t j, size_t *shard, size_t *sample) {
    size_t position = j % l->info.samples;
    if (l->shuffle) {
        draw_epoch(l, j / l->info.samples);
    }
    size_t before = 0;
    for (size_t k = 0;; k++) {
        size_t s = l->shuffle ? l->shard_order[k] : k;
        if (position - before < l->shards[s].samples) {
            *shard = s;
            *sample = l->shuffle ? l->sample_order[position] : position - before;
            return;
        }
        before += l->shards[s].samples;
    }
}

static int switch_to(Loader *l, size_t shard, char err[512]) {
    if (l->fd >= 0 && l->fd_shard == shard) {
        return 0;
    }
    if (l->fd >= 0) {
        close(l->fd);
    }
    char why[512];
    l->fd = llmc_open(l->shards[shard].name, why, sizeof why);
    l->fd_shard = shard;
    if (l->fd < 0) {
        return FAIL("%.400s. It was there at the start: put it back and start again.", why);
    }
    return 0;
}

int loader_batch(Loader *l, size_t j, int *inputs, int *targets, char err[512]) {
    size_t s, sample;
    locate(l, j, &s, &sample);
    if (switch_to(l, s, err) != 0) {
        return -1;
    }
    size_t n = l->B * l->T;
    size_t first = l->shards[s].begin + sample * n;
    size_t offset = (l->info.is_text ? 0 : LLMC_HEADER_BYTES) + first * l->token_bytes;
    if (llmc_read_at(l->fd, l->raw, (n + 1) * l->token_bytes, offset) != 0) {
        return FAIL("%.200s: cannot read %zu tokens from token %zu on (%s). The file may have changed since the start: "
                    "restore it and start again.",
                    l->shards[s].name, n + 1, first, strerror(errno));
    }

    int largest = -1;
    for (size_t i = 0; i <= n; i++) {
        int token = l->info.is_text ? l->raw[i] : l->raw[2 * i] | l->raw[2 * i + 1] << 8;
        if ((size_t)token >= l->vocab) {
            return FAIL(
                "%.200s: token %zu is %d, but the model's vocabulary is %zu. Use data made with the model's tokenizer, "
                "or a model with a larger vocabulary.",
                l->shards[s].name, first + i, token, l->vocab);
        }
        largest = token > largest ? token : largest;
        if (i < n) {
            inputs[i] = token;
        }
        if (i > 0) {
            targets[i - 1] = token;
        }
    }
    l->info.max_token = largest > l->info.max_token ? largest : l->info.max_token;
    return 0;
}
