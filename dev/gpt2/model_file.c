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

#include "data/llmc_file.h"
#include "gpt2/model_file.h"
#include "gpt2/tensors.h"

#define MAGIC        20240326
#define VERSION_F32  3
#define VERSION_BF16 5
#define CHUNK        32768  // elements that are converted at a time

#define FAIL(...) (snprintf(err, err_bytes, __VA_ARGS__), -1)

static size_t element_bytes(const ModelFile *f) { return f->bf16 ? 2 : 4; }

static off_t position(const ModelFile *f, size_t element) {
    return (off_t)(LLMC_HEADER_BYTES + element * element_bytes(f));
}

static int write_all(int fd, const void *bytes_in, size_t bytes, off_t offset) {
    for (size_t done = 0; done < bytes;) {
        ssize_t n = pwrite(fd, (const char *)bytes_in + done, bytes - done, offset + (off_t)done);
        if (n < 0 && errno != EINTR) {
            return -1;
        }
        done += n > 0 ? (size_t)n : 0;
    }
    return 0;
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
    f->fd = flags == O_RDONLY ? llmc_open(path, err, err_bytes) : open(path, flags | O_CLOEXEC);
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
        size_t n = count - done < CHUNK ? count - done : CHUNK;
        for (size_t i = 0; f->bf16 && i < n; i++) {
            uint32_t bits;
            memcpy(&bits, &values[done + i], sizeof bits);
            halves[i] = (uint16_t)(bits >> 16);
        }
        const void *from = f->bf16 ? (const void *)halves : (const void *)(values + done);
        if (write_all(f->fd, from, n * element_bytes(f), position(f, begin + done)) != 0) {
            return FAIL("%s: writing failed: %s: make room, or choose another output directory with -o", f->path,
                        strerror(errno));
        }
        done += n;
    }
    return 0;
}

int modelfile_finish(ModelFile *f, char *err, size_t err_bytes) {
    int failed = fsync(f->fd);
    failed |= close(f->fd);
    f->fd = -1;
    if (failed) {
        return FAIL("%s: writing failed: %s: make room, or choose another output directory with -o", f->path,
                    strerror(errno));
    }
    return 0;
}

int modelfile_create(const char *temporary, const GPT2Config *c, int bf16, char *err, size_t err_bytes) {
    int32_t header[LLMC_HEADER_WORDS] = { MAGIC,
                                          bf16 ? VERSION_BF16 : VERSION_F32,
                                          (int32_t)c->max_seq_len,
                                          (int32_t)c->vocab_size,
                                          (int32_t)c->num_layers,
                                          (int32_t)c->num_heads,
                                          (int32_t)c->channels,
                                          (int32_t)c->padded_vocab_size };
    int fd = open(temporary, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd == -1) {
        return FAIL("%s: cannot be written: %s: choose another output directory with -o", temporary, strerror(errno));
    }
    off_t bytes = (off_t)(LLMC_HEADER_BYTES + gpt2_num_parameters(c) * (bf16 ? 2 : 4));
    int code = posix_fallocate(fd, 0, bytes);
    if (code == 0 && (write_all(fd, header, sizeof header, 0) != 0 || fsync(fd) != 0)) {
        code = errno;
    }
    if (close(fd) != 0 && code == 0) {
        code = errno;
    }
    if (code != 0) {
        unlink(temporary);
        return FAIL("%s: %lld bytes cannot be written: %s: make room, or choose another output directory with -o",
                    temporary, (long long)bytes, strerror(code));
    }
    return 0;
}

int modelfile_publish(const char *temporary, const char *path, char *err, size_t err_bytes) {
    struct stat st;
    if (lstat(path, &st) == 0 && !S_ISREG(st.st_mode) && !S_ISLNK(st.st_mode)) {  // rename would replace a device
        unlink(temporary);
        return FAIL("%s: is %s: remove it, or choose another output directory with -o", path,
                    llmc_kind_of_file(st.st_mode));
    }
    if (rename(temporary, path) != 0) {
        int code = errno;
        unlink(temporary);
        return FAIL("%s: cannot be renamed to %s: %s: choose another output directory with -o", temporary, path,
                    strerror(code));
    }
    char dir[4096];
    const char *slash = strrchr(path, '/');
    snprintf(dir, sizeof dir, "%.*s", slash ? (int)(slash - path + 1) : 1, slash ? path : ".");
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int failed = fd == -1 || fsync(fd) != 0;
    int code = errno;
    if (fd != -1) {
        close(fd);
    }
    if (failed && code != EINVAL) {  // EINVAL: a file system whose directories cannot be flushed
        return FAIL("%s: its directory cannot be flushed to the disk: %s", path, strerror(code));
    }
    return 0;
}

void modelfile_discard(const char *temporary) { unlink(temporary); }
