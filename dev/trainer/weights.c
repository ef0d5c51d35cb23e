// Each rank reads and writes only the elements that it owns; no rank ever holds the whole model. How a file is written
// so that a crash leaves no half of it under its final name is explained in gpt2/model_file.c; here is who does which
// part: rank 0 creates and publishes it, all ranks write, and after each part they agree that all have succeeded.
#include "trainer/weights.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "gpt2/initial_weights.h"
#include "trainer/directory.h"

typedef struct FileAccess {
    const Run *run;
    const ModelFile *file;
    char err[ERR_BYTES];
} FileAccess;

static int file_fill(void *ctx, size_t tensor, size_t begin, size_t count, float *out) {
    FileAccess *a = (FileAccess *)ctx;
    return modelfile_read(a->file, a->run->tensors[tensor].logical + begin, count, out, a->err, sizeof a->err);
}

static int file_visit(void *ctx, size_t tensor, size_t begin, size_t count, const float *values) {
    FileAccess *a = (FileAccess *)ctx;
    return modelfile_write(a->file, a->run->tensors[tensor].logical + begin, count, values, a->err, sizeof a->err);
}

void set_parameters(Run *r) {
    if (r->file.fd == -1) {
        print0(r, "drawing %zu initial weights, seed %lld\n", gpt2_num_parameters(&r->config),
               (long long)r->options.settings.seed);
        InitialWeights w;
        gpt2_initial_weights_begin(&w, &r->config, r->tensors, (uint32_t)r->options.settings.seed);
        must(r, zero_fill(r->z, gpt2_initial_weights_fill, &w), "initial weights");
        return;
    }
    print0(r, "reading %zu parameters from %s\n", r->file.numel, r->file.path);
    FileAccess access = { .run = r, .file = &r->file };
    const int status = zero_fill(r->z, file_fill, &access);
    if (access.err[0] != '\0') die("%s", access.err);
    must(r, status, "reading the model");
    modelfile_close(&r->file);
}

// After the model of `step` was written: deletes the one that falls out of the last -nk, unless -nm protects it. Models
// are written every -n steps and at the end, so the one before this is at a multiple of -n.
static void delete_old_model(const Run *r, size_t step) {
    const Options *o = &r->options;
    const size_t every = (size_t)o->checkpoint_every;
    const size_t keep = (size_t)o->checkpoints_keep;
    const size_t major = (size_t)o->major_checkpoint_every;
    const size_t last = step > 0 ? (step - 1) / every * every : 0;  // the model before this one
    if (keep == 0 || last <= (keep - 1) * every) return;
    const size_t old = last - (keep - 1) * every;
    if (r->rank != 0 || (major > 0 && old % major == 0)) return;
    char path[4096];
    snprintf(path, sizeof path, "%s/model_%08zu.bin", o->output_dir, old);
    if (unlink(path) != 0 && errno != ENOENT)
        fprintf(stderr, "warning: %s: cannot be deleted: %s\n", path, strerror(errno));
}

void write_model(const Run *r, size_t step) {
    const Options *o = &r->options;
    char path[4096];
    char temporary[4096 + 32];
    snprintf(path, sizeof path, "%s/model_%08zu.bin", o->output_dir, step);
    snprintf(temporary, sizeof temporary, "%s.%016llx.tmp", path, (unsigned long long)r->nonce);
    ModelFile file;
    FileAccess access = { .run = r, .file = &file };
    if (r->rank == 0) {
        modelfile_create(temporary, &r->config, r->kernels.dtype == ZERO_BF16, access.err, sizeof access.err);
    }
    agree(r, access.err);
    if (modelfile_begin(&file, temporary, access.err, sizeof access.err) == 0) {
        const int status = zero_visit(r->z, ZERO_STATE_PARAMS, file_visit, &access);
        if (status != ZERO_OK && access.err[0] == '\0')
            snprintf(access.err, sizeof access.err, "%s: %s", path, zero_error(r->z));
        if (access.err[0] == '\0') modelfile_finish(&file, access.err, sizeof access.err);
        modelfile_close(&file);
    }
    agree(r, access.err);
    if (r->rank == 0 && directory_check(access.err, sizeof access.err) == 0)
        modelfile_publish(temporary, path, access.err, sizeof access.err);
    agree(r, access.err);
    print0(r, "wrote %s\n", path);
    delete_old_model(r, step);
}
