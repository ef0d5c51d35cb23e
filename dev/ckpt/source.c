#include "ckpt/source.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "gpt2/tensors.h"

#define FAIL(...) (snprintf(err, ERR_BYTES, __VA_ARGS__), -1)

// ---------------------------------------------------------------------------------------------------------------------
// Opening.

static void begin(Source *s, const char *dir) {
    memset(s, 0, sizeof *s);
    s->fd[0] = s->fd[1] = s->model.fd = s->llmc.model.fd = -1;
    s->c = &s->own;
    snprintf(s->dir, sizeof s->dir, "%.4000s", dir);
}

int source_open_step(Source *s, const char *dir, size_t step, char *err) {
    char path[CHECKPOINT_PATH];
    begin(s, dir);
    if (llmc_set_exists(dir, step)) {
        s->kind = SOURCE_LLMC;
        s->c = &s->llmc.c;
        checkpoint_path(s->name, dir, CHECKPOINT_DONE, step);
        return llmc_set_open(&s->llmc, dir, step, err, ERR_BYTES);
    }
    checkpoint_path(s->name, dir, CHECKPOINT_MANIFEST, step);
    if (checkpoint_read(&s->own, dir, step, err, ERR_BYTES) != 0) return -1;
    // No chunk is the last but one of so many: only headers and lengths are checked.
    if (checkpoint_verify(&s->own, dir, SIZE_MAX - 1, SIZE_MAX, err, ERR_BYTES) != 0) return -1;
    for (int f = CHECKPOINT_MODEL; f <= CHECKPOINT_OPTIMIZER; f++) {
        checkpoint_path(path, dir, (enum checkpoint_file)f, step);
        s->fd[f] = open(path, O_RDONLY | O_CLOEXEC);
        if (s->fd[f] == -1) return FAIL("%s: cannot be opened: %s", path, strerror(errno));
    }
    return 0;
}

static int open_model(Source *s, const char *name, char *err) {
    char why[256];
    begin(s, ".");
    s->kind = SOURCE_MODEL;
    snprintf(s->name, sizeof s->name, "%.4000s", name);
    if (modelfile_open(&s->model, name, err, ERR_BYTES) != 0) return -1;
    if (gpt2_config_check(&s->model.config, why, sizeof why) != 0) return FAIL("%s: %s", name, why);
    if (checkpoint_describe(&s->own, &s->model.config, s->model.bf16 ? ZERO_BF16 : ZERO_F32, 0,
                            zero_optimizer_get(ZERO_ADAMW)) != 0)
        return FAIL("%s: out of memory", name);
    while (s->own.num_arrays > 1) free(s->own.arrays[--s->own.num_arrays].hashes);
    return 0;
}

// The newest checkpoint of a directory that was finished.
static int open_newest(Source *s, const char *dir, char *err) {
    size_t *steps, found = SIZE_MAX;
    char path[CHECKPOINT_PATH];
    begin(s, dir);
    const int n = checkpoint_steps(dir, &steps, err, ERR_BYTES);
    for (int i = 0; i < n && found == SIZE_MAX; i++) {
        checkpoint_path(path, dir, CHECKPOINT_MANIFEST, steps[i]);
        const int ours = access(path, F_OK) == 0;
        checkpoint_path(path, dir, CHECKPOINT_DONE, steps[i]);
        if (ours || (llmc_set_exists(dir, steps[i]) && access(path, F_OK) == 0)) found = steps[i];
    }
    free(steps);
    if (n < 0) return -1;
    if (found == SIZE_MAX) return FAIL("%s: has no checkpoint that was finished: give another directory", dir);
    return source_open_step(s, dir, found, err);
}

int source_open(Source *s, const char *name, char *err) {
    struct stat st;
    begin(s, ".");
    if (stat(name, &st) != 0)
        return FAIL("%s: %s: give a directory, a manifest or a model file", name, strerror(errno));
    if (S_ISDIR(st.st_mode)) return open_newest(s, name, err);
    const char *slash = strrchr(name, '/'), *file = slash != NULL ? slash + 1 : name;
    for (int f = CHECKPOINT_MANIFEST; f <= CHECKPOINT_DONE; f++) {
        static const char *const PREFIX[] = { "checkpoint_", "DONE_" };
        const char *digits = file + strlen(PREFIX[f - CHECKPOINT_MANIFEST]);
        char dir[4096], path[CHECKPOINT_PATH];
        if (strncmp(file, PREFIX[f - CHECKPOINT_MANIFEST], (size_t)(digits - file)) != 0) continue;
        const size_t step = (size_t)strtoull(digits, NULL, 10);
        snprintf(dir, sizeof dir, "%.*s", slash != NULL ? (int)(slash - name) : 1, slash != NULL ? name : ".");
        checkpoint_path(path, slash != NULL ? dir : ".", (enum checkpoint_file)f, step);
        if (strcmp(path + (slash != NULL ? 0 : 2), name) == 0) return source_open_step(s, dir, step, err);
    }
    return open_model(s, name, err);
}

void source_close(Source *s) {
    for (int f = 0; f < 2; f++)
        if (s->fd[f] != -1) close(s->fd[f]);
    llmc_set_close(&s->llmc);
    modelfile_close(&s->model);
    checkpoint_free(&s->own);
}

// ---------------------------------------------------------------------------------------------------------------------
// Reading.

int source_read(const Source *s, size_t array, size_t tensor, size_t from, size_t count, float *out, char *err) {
    const size_t logical = s->c->tensors[tensor].logical + from;
    if (s->kind == SOURCE_LLMC) return llmc_set_read(&s->llmc, array, tensor, from, count, out, err, ERR_BYTES);
    if (s->kind == SOURCE_MODEL) return modelfile_read(&s->model, logical, count, out, err, ERR_BYTES);
    if (checkpoint_read_values(s->c, array, s->fd[array > 0], logical, count, out) == 0) return 0;
    return FAIL("%s: %s of its step cannot be read: %s", s->name, s->c->arrays[array].name, strerror(errno));
}

int for_chunks(const Checkpoint *c, chunk_fn work, void *ctx, char *err) {
    int status = 0;
#pragma omp parallel
    {
        float *buffer = malloc(CHECKPOINT_CHUNK * sizeof *buffer);
        char mine[ERR_BYTES] = "out of memory";
#pragma omp for collapse(2) schedule(dynamic)
        for (size_t a = 0; a < c->num_arrays; a++)
            for (size_t k = 0; k < c->num_chunks; k++) {
                int before;
#pragma omp atomic read
                before = status;
                if (before != 0) continue;
                size_t t = 0;
                while (c->first_chunk[t + 1] <= k) t++;
                const size_t from = (k - c->first_chunk[t]) * CHECKPOINT_CHUNK, left = c->tensors[t].numel - from,
                             n = left < CHECKPOINT_CHUNK ? left : CHECKPOINT_CHUNK;
                const int result = buffer == NULL ? -1 : work(ctx, a, t, k, from, n, buffer, mine);
                if (result == 0) continue;
#pragma omp critical
                {
                    if (status == 0) memcpy(err, mine, sizeof mine);
#pragma omp atomic write
                    status = result;
                }
            }
        free(buffer);
    }
    return status;
}

// ---------------------------------------------------------------------------------------------------------------------
// Verifying.

int source_verify(const Source *s, char *err) {
    enum { PARTS = 64 };
    int status = 0;
    if (s->kind == SOURCE_MODEL) return 0;
#pragma omp parallel for schedule(dynamic)
    for (size_t part = 0; part < PARTS; part++) {
        char mine[ERR_BYTES] = "";
        const int result = s->kind == SOURCE_ZERO ? checkpoint_verify(s->c, s->dir, part, PARTS, mine, sizeof mine)
                                                  : llmc_set_verify(&s->llmc, part, PARTS, mine, sizeof mine);
#pragma omp critical
        if (result != 0 && status == 0) {
            status = result;
            memcpy(err, mine, sizeof mine);
        }
    }
    return status;
}

static size_t file_bytes(int fd) {
    struct stat st;
    return fd != -1 && fstat(fd, &st) == 0 ? (size_t)st.st_size : 0;
}

size_t source_bytes(const Source *s) {
    size_t bytes = file_bytes(s->fd[0]) + file_bytes(s->fd[1]) + file_bytes(s->model.fd) + file_bytes(s->llmc.model.fd);
    if (s->kind != SOURCE_LLMC) return bytes;
    for (size_t r = 0; r < s->llmc.num_fds; r++) bytes += file_bytes(s->llmc.fd[r]);
    return bytes;
}
