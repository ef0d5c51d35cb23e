// A model file is a header of 256 int32 (20240326, version, shape) and the parameters, all fp32 (version 3) or all bf16
// (version 5), little-endian like every machine this runs on. Nothing in it depends on how many ranks wrote it, and no
// rank ever holds the whole: each reads and writes, with pread and pwrite, the elements that it owns.
//
// A reader must never see an incomplete file under its final name, even after a crash. So the file is written under a
// temporary name in the same directory; every rank flushes to disk what it wrote; when all have succeeded, one rename
// makes it visible, and the directory is flushed so that the rename survives a power failure. The full length is
// allocated before the first parameter is written, so a full disk is reported at once and not after minutes.
//
// A header is not trusted: sizes are bounded before they are multiplied, and the length of the file must agree with
// them to the byte.
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "data/durable_file.h"
#include "data/llmc_file.h"
#include "gpt2/model_file.h"
#include "gpt2/tensors.h"

#define MAGIC           20240326
#define OPTIMIZER_MAGIC 20240527  // of llm.c's state files
#define VERSION_F32     3
#define VERSION_BF16    5
#define CHUNK           32768  // elements that are converted at a time

#define FAIL(...) (snprintf(err, err_bytes, __VA_ARGS__), -1)

static size_t element_bytes(const ModelFile *f) { return f->bf16 ? 2 : 4; }

static off_t position(const ModelFile *f, size_t element) {
    return (off_t)(LLMC_HEADER_BYTES + element * element_bytes(f));
}

// Fills in all of f but the path from an open file.
static int read_header(ModelFile *f, char *err, size_t err_bytes) {
    int32_t header[LLMC_HEADER_WORDS];
    const int bytes = llmc_read_header(f->fd, header);
    if (bytes < 0) {
        return FAIL("%s: cannot be read: %s: choose another model with -e", f->path, strerror(errno));
    }
    if (bytes < LLMC_HEADER_BYTES) {
        return FAIL("%s: not a model file: it is shorter than a header: choose another with -e", f->path);
    }
    const char *slash = strrchr(f->path, '/');
    if (header[0] == OPTIMIZER_MAGIC ||
        (header[0] != MAGIC && strncmp(slash != NULL ? slash + 1 : f->path, "optimizer_", 10) == 0)) {
        return FAIL("%s: is an optimizer file, not a model file: choose the model of the same step with -e", f->path);
    }
    if (header[0] != MAGIC) {
        return FAIL("%s: not a model file (it begins with %d, not %d): choose another with -e", f->path, header[0],
                    MAGIC);
    }
    if (header[1] != VERSION_F32 && header[1] != VERSION_BF16) {
        return FAIL("%s: version %d of model files is not known: write it again in version 3 (fp32) or 5 (bf16)",
                    f->path, header[1]);
    }
    f->bf16 = header[1] == VERSION_BF16;

    // With these bounds the number of parameters is below 2^61.
    static const struct {
        const char *name;
        int32_t max;
    } WORDS[6] = { { "max_seq_len", 1 << 24 }, { "vocab_size", 1 << 24 }, { "num_layers", 1 << 16 },
                   { "num_heads", 1 << 20 },   { "channels", 1 << 20 },   { "padded_vocab_size", 1 << 24 } };
    for (int i = 0; i < 6; i++) {
        if (header[2 + i] < 1 || header[2 + i] > WORDS[i].max) {
            return FAIL("%s: its header has %s %d: the file is damaged: get it again", f->path, WORDS[i].name,
                        header[2 + i]);
        }
    }
    f->config = (GPT2Config){ .max_seq_len = (size_t)header[2],
                              .vocab_size = (size_t)header[3],
                              .num_layers = (size_t)header[4],
                              .num_heads = (size_t)header[5],
                              .channels = (size_t)header[6],
                              .padded_vocab_size = (size_t)header[7] };
    f->numel = gpt2_num_parameters(&f->config);
    return 0;
}

// Does the file have the length that its header implies?
static int check_length(const ModelFile *f, char *err, size_t err_bytes) {
    struct stat st;
    if (fstat(f->fd, &st) != 0) {
        return FAIL("%s: cannot be examined: %s", f->path, strerror(errno));
    }
    size_t expected = LLMC_HEADER_BYTES + f->numel * element_bytes(f);
    if ((size_t)st.st_size != expected) {
        return FAIL(
            "%s: has %lld bytes, but by its header should have %zu: it was truncated or is damaged: get it again",
            f->path, (long long)st.st_size, expected);
    }
    return 0;
}

static int open_path(ModelFile *f, const char *path, int flags, char *err, size_t err_bytes) {
    memset(f, 0, sizeof *f);
    f->fd = -1;
    if (strlen(path) >= sizeof f->path) {
        return FAIL("%.200s...: the name of the model is too long: choose a shorter one", path);
    }
    strcpy(f->path, path);
    f->fd = flags == O_RDONLY ? llmc_open(path, err, err_bytes) : open(path, flags | O_CLOEXEC | O_NOFOLLOW);
    if (f->fd == -1 && flags == O_RDONLY) {
        return -1;
    }
    if (f->fd == -1) {
        return FAIL("%s: cannot be opened: %s: is the output directory (-o) the same on all hosts?", path,
                    strerror(errno));
    }
    if (read_header(f, err, err_bytes) != 0 || check_length(f, err, err_bytes) != 0) {
        modelfile_close(f);
        return -1;
    }
    return 0;
}

int modelfile_open(ModelFile *f, const char *path, char *err, size_t err_bytes) {
    return open_path(f, path, O_RDONLY, err, err_bytes);
}

int modelfile_begin(ModelFile *f, const char *temporary, char *err, size_t err_bytes) {
    return open_path(f, temporary, O_RDWR, err, err_bytes);
}

void modelfile_close(ModelFile *f) {
    if (f->fd != -1) {
        close(f->fd);
        f->fd = -1;
    }
}

static int in_range(const ModelFile *f, size_t begin, size_t count, char *err, size_t err_bytes) {
    if (begin > f->numel || count > f->numel - begin) {
        return FAIL("%s: elements [%zu, +%zu) are outside of its %zu: this is a bug", f->path, begin, count, f->numel);
    }
    return 0;
}

int modelfile_read(const ModelFile *f, size_t begin, size_t count, float *out, char *err, size_t err_bytes) {
    if (in_range(f, begin, count, err, err_bytes) != 0) {
        return -1;
    }
    uint16_t halves[CHUNK];
    for (size_t done = 0; done < count;) {
        size_t n = count - done < CHUNK ? count - done : CHUNK;
        void *into = f->bf16 ? (void *)halves : (void *)(out + done);
        if (llmc_read_at(f->fd, into, n * element_bytes(f), (size_t)position(f, begin + done)) != 0) {
            return FAIL("%s: cannot be read: %s: was it changed meanwhile?", f->path, strerror(errno));
        }
        for (size_t i = 0; f->bf16 && i < n; i++) {
            uint32_t bits = (uint32_t)halves[i] << 16;
            memcpy(&out[done + i], &bits, sizeof bits);
        }
        done += n;
    }
    return 0;
}

int modelfile_write(const ModelFile *f, size_t begin, size_t count, const float *values, char *err, size_t err_bytes) {
    if (in_range(f, begin, count, err, err_bytes) != 0) {
        return -1;
    }
    uint16_t halves[CHUNK];
    for (size_t done = 0; done < count;) {
        size_t n = f->bf16 && count - done > CHUNK ? CHUNK : count - done;
        for (size_t i = 0; f->bf16 && i < n; i++) {
            uint32_t bits;
            memcpy(&bits, &values[done + i], sizeof bits);
            halves[i] = (uint16_t)(bits >> 16);
        }
        const void *from = f->bf16 ? (const void *)halves : (const void *)(values + done);
        if (durable_write(f->fd, f->path, from, n * element_bytes(f), (size_t)position(f, begin + done), err,
                          err_bytes) != 0) {
            return -1;
        }
        done += n;
    }
    return 0;
}

int modelfile_finish(ModelFile *f, char *err, size_t err_bytes) {
    const int fd = f->fd;
    f->fd = -1;
    return durable_close(fd, f->path, err, err_bytes);
}

void modelfile_header(const GPT2Config *c, int bf16, int32_t header[LLMC_HEADER_WORDS]) {
    const int32_t words[8] = { MAGIC,
                               bf16 ? VERSION_BF16 : VERSION_F32,
                               (int32_t)c->max_seq_len,
                               (int32_t)c->vocab_size,
                               (int32_t)c->num_layers,
                               (int32_t)c->num_heads,
                               (int32_t)c->channels,
                               (int32_t)c->padded_vocab_size };
    memset(header, 0, LLMC_HEADER_BYTES);
    memcpy(header, words, sizeof words);
}

int modelfile_create(const char *temporary, const GPT2Config *c, int bf16, char *err, size_t err_bytes) {
    int32_t header[LLMC_HEADER_WORDS];
    modelfile_header(c, bf16, header);
    int fd;
    const size_t bytes = LLMC_HEADER_BYTES + gpt2_num_parameters(c) * (bf16 ? 2 : 4);
    if (durable_create(temporary, bytes, &fd, err, err_bytes) != 0) {
        return -1;
    }
    if (durable_write(fd, temporary, header, sizeof header, 0, err, err_bytes) != 0) {
        close(fd);
        unlink(temporary);
        return -1;
    }
    return durable_close(fd, temporary, err, err_bytes);
}
