#include "trainer/checkpoint_llmc.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "data/llmc_file.h"
#include "gpt2/tensors.h"

#define MAGIC       20240527
#define RNG_BYTES   2520  // of the loader's generator
#define MAX_SAMPLES ((uint64_t)1 << 40)

#define FAIL(...) (snprintf(err, err_bytes, __VA_ARGS__), -1)

static void state_path(char path[CHECKPOINT_PATH], const char *dir, size_t step, size_t rank) {
    snprintf(path, CHECKPOINT_PATH, "%.4000s/state_%08zu_%05zu.bin", dir, step, rank);
}

int llmc_set_exists(const char *dir, size_t step) {
    char state[CHECKPOINT_PATH], manifest[CHECKPOINT_PATH];
    state_path(state, dir, step, 0);
    checkpoint_path(manifest, dir, CHECKPOINT_MANIFEST, step);
    return access(state, F_OK) == 0 && access(manifest, F_OK) != 0;
}

// ---------------------------------------------------------------------------------------------------------------------
// Opening.

// What the loader's state from `at` on ends with: numbers of shards and of samples say how long it is. Returns whether
// that is the end of the file.
static int ends_there(int fd, size_t at, size_t bytes, int shuffled) {
    if (!shuffled || at > bytes) return at == bytes;
    for (int i = 0; i < 2; i++) {
        uint64_t n;
        if (bytes - at < sizeof n || llmc_read_at(fd, &n, sizeof n, at) != 0 || n > MAX_SAMPLES) return 0;
        if (bytes - at - sizeof n < n * sizeof(int32_t)) return 0;
        at += sizeof n + n * sizeof(int32_t);
    }
    return bytes - at == RNG_BYTES;
}

// Reads the header of a rank's file. The first one says what all must have.
static int open_state(LlmcSet *s, size_t rank, char *err, size_t err_bytes) {
    char path[CHECKPOINT_PATH];
    int32_t h[LLMC_HEADER_WORDS];
    struct stat st;
    state_path(path, s->dir, s->c.step, rank);
    const int fd = s->fd[rank] = llmc_open(path, err, err_bytes);
    if (fd == -1) return -1;
    if (llmc_read_header(fd, h) != LLMC_HEADER_BYTES || h[0] != MAGIC || h[1] != 1)
        return FAIL("%s: is not a state file of llm.c, version 1: it is damaged: get it again", path);
    if (h[3] != (int32_t)rank || h[10] < 0 || (size_t)h[10] != s->c.step)
        return FAIL("%s: is that of rank %d, step %d: it was renamed: get the right one", path, h[3], h[10]);
    if (h[2] < 1 || h[2] > LLMC_SET_MAX_RANKS || (h[4] & ~1) != 0 || (h[5] & ~1) != 0)
        return FAIL("%s: its header has %d ranks and flags %d, %d: it is damaged: get it again", path, h[2], h[4],
                    h[5]);
    if (rank == 0) {
        s->ranks = (size_t)h[2];
        s->master = h[4];
    }
    if ((size_t)h[2] != s->ranks || h[4] != s->master)
        return FAIL("%s: is of %d ranks, with%s master weights, and that of rank 0 is not: get the right one", path,
                    h[2], h[4] ? "" : "out");
    if (fstat(fd, &st) != 0) return FAIL("%s: cannot be examined: %s", path, strerror(errno));
    const size_t P = s->model.numel, arrays = s->master ? 3 : 2, bytes = (size_t)st.st_size;
    int stage = -1;
    for (int z = 0; z <= 1 && stage < 0; z++) {
        const size_t S = z == 0 ? P : P / s->ranks;
        if (ends_there(fd, LLMC_HEADER_BYTES + arrays * S * sizeof(float), bytes, h[5])) stage = z;
    }
    if (rank == 0) s->stage = stage;
    if (stage < 0 || stage != s->stage)
        return FAIL("%s: has %zu bytes: no file of %zu parameters on %zu ranks has that: it is truncated or damaged",
                    path, bytes, P, s->ranks);
    return 0;
}

// Opens the files of the other ranks, if theirs is not the same as that of rank 0.
static int open_others(LlmcSet *s, char *err, size_t err_bytes) {
    s->shard_numel = s->stage == 0 ? s->model.numel : s->model.numel / s->ranks;
    if (s->stage == 0) return 0;
    for (size_t t = 0; t < s->c.num_tensors; t++)
        if (s->c.tensors[t].numel % s->ranks != 0)
            return FAIL("%s: state files of %zu ranks, but tensor %s has %zu elements: llm.c cannot have written that",
                        s->dir, s->ranks, s->c.tensors[t].name, s->c.tensors[t].numel);
    int *more = realloc(s->fd, s->ranks * sizeof *more);
    if (more == NULL) return FAIL("%s: out of host memory", s->dir);
    s->fd = more;
    for (size_t r = 1; r < s->ranks; r++) {
        s->num_fds = r + 1;
        if (open_state(s, r, err, err_bytes) != 0) return -1;
    }
    return 0;
}

int llmc_set_open(LlmcSet *s, const char *dir, size_t step, char *err, size_t err_bytes) {
    char path[CHECKPOINT_PATH], why[256];
    memset(s, 0, sizeof *s);
    s->model.fd = -1;
    snprintf(s->dir, sizeof s->dir, "%.4000s", dir);
    checkpoint_path(path, dir, CHECKPOINT_DONE, step);
    if (access(path, F_OK) != 0) return FAIL("%s: is missing: llm.c had not finished this checkpoint", path);
    checkpoint_path(path, dir, CHECKPOINT_MODEL, step);
    if (modelfile_open(&s->model, path, err, err_bytes) != 0) return -1;
    if (gpt2_config_check(&s->model.config, why, sizeof why) != 0) return FAIL("%s: %s", path, why);
    s->fd = malloc(sizeof *s->fd);
    s->num_fds = s->fd != NULL;
    s->c.step = step;
    if (s->fd != NULL && open_state(s, 0, err, err_bytes) != 0) return -1;
    if (s->fd == NULL || checkpoint_describe(&s->c, &s->model.config, s->model.bf16 ? ZERO_BF16 : ZERO_F32,
                                             s->master && s->model.bf16, zero_optimizer_get(ZERO_ADAMW)) != 0)
        return FAIL("%s: out of host memory", path);
    s->c.updates = step;  // llm.c counts skipped ones, too
    return open_others(s, err, err_bytes);
}

void llmc_set_close(LlmcSet *s) {
    for (size_t r = 0; r < s->num_fds; r++)
        if (s->fd[r] != -1) close(s->fd[r]);
    free(s->fd);
    s->fd = NULL;
    s->num_fds = 0;
    modelfile_close(&s->model);
    checkpoint_free(&s->c);
}

// ---------------------------------------------------------------------------------------------------------------------
// Reading and verifying.

int llmc_set_read(const LlmcSet *s, size_t array, size_t tensor, size_t begin, size_t count, float *out, char *err,
                  size_t err_bytes) {
    const enum zero_state state = s->c.arrays[array].state;
    const zero_tensor *t = &s->c.tensors[tensor];
    if (state == ZERO_STATE_PARAMS) return modelfile_read(&s->model, t->logical + begin, count, out, err, err_bytes);
    const size_t in_file = state == ZERO_STATE_MASTER ? 2 : (size_t)state - ZERO_STATE_OPTIMIZER,
                 parts = s->stage == 0 ? 1 : s->ranks, part = t->numel / parts;
    for (size_t done = 0; done < count;) {
        const size_t at = begin + done, rank = at / part, left = part - at % part,
                     n = count - done < left ? count - done : left,
                     place = in_file * s->shard_numel + t->logical / parts + at % part;
        if (llmc_read_at(s->fd[rank], out + done, n * sizeof *out, LLMC_HEADER_BYTES + place * sizeof *out) != 0) {
            char path[CHECKPOINT_PATH];
            state_path(path, s->dir, s->c.step, rank);
            return FAIL("%s: cannot be read: %s", path, strerror(errno));
        }
        done += n;
    }
    return 0;
}

// llm.c rounds a master weight down or up at random. On other ranks than 0 it may have gathered what was there before
// the update.
static int rounds_to(float master, float param, int bf16) {
    uint32_t m, p;
    memcpy(&m, &master, sizeof m);
    memcpy(&p, &param, sizeof p);
    return bf16 ? (p >> 16) - (m >> 16) <= 1 : p == m;
}

static int verify_range(const LlmcSet *s, size_t tensor, size_t begin, size_t n, float *values, float *params,
                        char *err, size_t err_bytes) {
    const Checkpoint *c = &s->c;
    const zero_tensor *t = &c->tensors[tensor];
    for (size_t a = 1; a < c->num_arrays; a++) {
        const enum zero_state state = c->arrays[a].state;
        if (llmc_set_read(s, a, tensor, begin, n, values, err, err_bytes) != 0) return -1;
        for (size_t i = 0; i < n; i++)
            if (!isfinite(values[i]) || (state == ZERO_STATE_V && values[i] < 0))
                return FAIL("%s: step %zu of llm.c is damaged, or its run had diverged: %s of tensor %s has %g at "
                            "element %zu",
                            s->dir, c->step, c->arrays[a].name, t->name, values[i], begin + i);
        if (state != ZERO_STATE_MASTER) continue;
        if (llmc_set_read(s, 0, tensor, begin, n, params, err, err_bytes) != 0) return -1;
        const size_t own = s->stage == 0 ? t->numel : t->numel / s->ranks;
        for (size_t i = 0; i < n && begin + i < own; i++)
            if (!rounds_to(values[i], params[i], s->model.bf16))
                return FAIL("%s: is damaged, or of another step than the state files beside it: element %zu of tensor "
                            "%s is %g, and its master weight %g",
                            s->model.path, begin + i, t->name, params[i], values[i]);
    }
    return 0;
}

int llmc_set_verify(const LlmcSet *s, size_t part, size_t parts, char *err, size_t err_bytes) {
    enum { PIECE = 1 << 16 };
    const Checkpoint *c = &s->c;
    float *values = malloc(2 * PIECE * sizeof *values);
    int status = values != NULL ? 0 : FAIL("%s: out of host memory", s->dir);
    for (size_t t = 0; t < c->num_tensors && status == 0; t++)
        for (size_t k = c->first_chunk[t]; k < c->first_chunk[t + 1] && status == 0; k++) {
            if (k % parts != part) continue;
            const size_t begin = (k - c->first_chunk[t]) * CHECKPOINT_CHUNK, left = c->tensors[t].numel - begin,
                         end = begin + (left < CHECKPOINT_CHUNK ? left : CHECKPOINT_CHUNK);
            for (size_t at = begin; at < end && status == 0; at += PIECE)
                status = verify_range(s, t, at, end - at < PIECE ? end - at : PIECE, values, values + PIECE, err,
                                      err_bytes);
        }
    free(values);
    return status;
}
