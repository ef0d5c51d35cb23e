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
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "data/content_hash.h"
#include "data/dataloader.h"
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
    Shard *shards;
    size_t B, T, vocab, token_bytes;
    LoaderInfo info;
    unsigned char *raw;  // B*T + 1 tokens as they are in the file

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

// What is in the file: counts its tokens, says which kind it is.
static int inspect_file(const char *name, int fd, int *is_text, size_t *tokens, char err[512]) {
    struct stat st;
    int32_t header[LLMC_HEADER_WORDS];
    if (fstat(fd, &st) != 0) {
        return FAIL("%.200s: %s", name, strerror(errno));
    }
    if (!S_ISREG(st.st_mode)) {
        return FAIL("%.200s is not a regular file. Make the pattern match data files only.", name);
    }
    size_t size = (size_t)st.st_size;
    const int head = llmc_read_header(fd, header);
    if (head < 0) {
        return FAIL("%.200s: cannot read it (%s). Check the disk.", name, strerror(errno));
    }

    if (head < 8 || header[0] != MAGIC) {
        if (memchr(header, 0, (size_t)head)) {
            return FAIL("%.200s is neither a token shard (its magic number is %d, not %d) nor text (it has NUL bytes). "
                        "Give shards made by llm.c's dev/data scripts or dev/data/tokenize_bytes, or a text file.",
                        name, (int)header[0], MAGIC);
        }
        *is_text = 1;
        *tokens = size;
        return 0;
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

static int add_shard(Loader *l, size_t s, const LoaderConfig *c, char err[512]) {
    const char *name = l->files.gl_pathv[s];
    int is_text;
    size_t count;
    int fd = open(name, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return FAIL("%.200s: cannot open it (%s). Check its permissions.", name, strerror(errno));
    }
    int rc = inspect_file(name, fd, &is_text, &count, err);
    close(fd);
    if (rc != 0) {
        return rc;
    }
    if (s > 0 && is_text != l->info.is_text) {
        return FAIL("%.200s is %s but %.100s is not. Make the pattern match files of one kind.", name,
                    is_text ? "text" : "a token shard", l->shards[0].name);
    }

    // Divided first: the product could overflow. The remainder keeps the percentage exact.
    size_t begin = count / 100 * c->begin_percent + count % 100 * c->begin_percent / 100;
    size_t end = count / 100 * c->end_percent + count % 100 * c->end_percent / 100;
    size_t tokens = end - begin;
    if (tokens < c->B * c->T + 1) {
        return FAIL("%.200s has %zu tokens in the part used (%u to %u%%), but a micro-batch of B = %zu rows of T = %zu "
                    "takes %zu. "
                    "Use a smaller -b or -t, or a larger file.",
                    name, tokens, c->begin_percent, c->end_percent, c->B, c->T, c->B * c->T + 1);
    }
    size_t samples = (tokens - 1) / (c->B * c->T);
    if (samples > UINT32_MAX) {
        return FAIL("%.200s has %zu micro-batches; at most %u are possible. Use a larger -b or -t, or split the file.",
                    name, samples, UINT32_MAX);
    }
    l->shards[s] = (Shard){ .name = name, .begin = begin, .tokens = tokens, .samples = samples };
    l->info.is_text = is_text;
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
    int rc = glob(c->pattern, 0, NULL, &l->files);
    if (rc == GLOB_NOMATCH) {
        return FAIL(
            "no file matches %.200s. Check the path (-i, -j), quote the pattern in the shell, or prepare the data "
            "(see dev/data).",
            c->pattern);
    }
    if (rc != 0) {
        return FAIL("%.200s: cannot list the files (%s)", c->pattern,
                    rc == GLOB_NOSPACE ? "out of memory" : "read error");
    }

    size_t shards = l->files.gl_pathc;
    l->info.shards = shards;
    l->shards = calloc(shards, sizeof *l->shards);
    if (!l->shards) {
        return FAIL("out of memory for %zu shards", shards);
    }
    for (size_t s = 0; s < shards; s++) {
        if (add_shard(l, s, c, err) != 0) {
            return -1;
        }
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
    l->fd = open(l->shards[shard].name, O_RDONLY | O_CLOEXEC);
    l->fd_shard = shard;
    if (l->fd < 0) {
        return FAIL("%.200s: cannot open it any more (%s). Put it back and start again.", l->shards[shard].name,
                    strerror(errno));
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
