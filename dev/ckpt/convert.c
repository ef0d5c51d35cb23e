// convert: chunk by chunk, in parallel; files are published as the trainer does it, the manifest last.
//
//     weights of the result           from a checkpoint with master weights    without
//     fp32                            the master weights                       the parameters, widened
//     bf16, parameters                the parameters                           fp32: rounded to nearest, as the trainer
//     bf16, master weights (-w 1, 2)  the master weights                       does it; bf16: as they are
//
// So only one way loses something: what is more precise than bf16, to bf16 without master weights.
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/commands.h"
#include "ckpt/output.h"
#include "ckpt/source.h"
#include "data/durable_file.h"
#include "gpt2/tensors.h"
#include "zero/state_hash.h"

#define FAIL(...) (snprintf(err, ERR_BYTES, __VA_ARGS__), -1)

typedef struct Conversion {
    Source from;
    Checkpoint to;  // a model file alone has one array
    ModelFile model;
    int optimizer_fd;
    int params, master;                            // arrays of `from`; -1: there is none
    size_t lost;                                   // weights that were rounded
    char path[CHECKPOINT_FILES][CHECKPOINT_PATH];  // final names; "": there is no such file
    char temporary[CHECKPOINT_FILES][CHECKPOINT_PATH + 32];
} Conversion;

// The array of `from` that an array of the result is made of.
static size_t source_of(const Conversion *v, enum zero_state state) {
    const int exact = v->master >= 0 ? v->master : v->params;
    if (state >= ZERO_STATE_OPTIMIZER) return (size_t)checkpoint_array_of(v->from.c, state);
    if (state == ZERO_STATE_MASTER || v->to.dtype == ZERO_F32) return (size_t)exact;
    return (size_t)v->params;
}

// The weights that have more bits than the parameters of the result, which has nothing else.
static int count_lost(Conversion *v, size_t tensor, size_t begin, size_t n, float *values, char *err) {
    if (v->master < 0) return 0;
    if (source_read(&v->from, (size_t)v->master, tensor, begin, n, values, err) != 0) return -1;
    const size_t lost = output_round(values, n);
#pragma omp atomic
    v->lost += lost;
    return 0;
}

static int convert_chunk(void *ctx, size_t array, size_t tensor, size_t chunk, size_t begin, size_t n, float *values,
                         char *err) {
    Conversion *v = ctx;
    Checkpoint *to = &v->to;
    const enum zero_state state = to->arrays[array].state;
    const size_t logical = to->tensors[tensor].logical + begin;
    const int alone = to->dtype == ZERO_BF16 && !to->has_master;
    (void)chunk;
    if (source_read(&v->from, source_of(v, state), tensor, begin, n, values, err) != 0) return -1;
    const size_t rounded = state == ZERO_STATE_PARAMS && to->dtype == ZERO_BF16 ? output_round(values, n) : 0;
    checkpoint_add_hash(to, array, tensor, begin, n, values);
    if (state != ZERO_STATE_PARAMS)
        return durable_write(v->optimizer_fd, v->temporary[CHECKPOINT_OPTIMIZER], values, n * sizeof *values,
                             to->arrays[array].offset + logical * sizeof *values, err, ERR_BYTES);
    if (!to->has_master) {  // the parameters are the master weights
        const uint64_t hash = zero_state_hash(ZERO_STATE_MASTER, logical, n, values);
#pragma omp atomic
        to->optimizer_hash += hash;
    }
#pragma omp atomic
    v->lost += alone ? rounded : 0;
    if (modelfile_write(&v->model, logical, n, values, err, ERR_BYTES) != 0) return -1;
    return alone ? count_lost(v, tensor, begin, n, values, err) : 0;
}

// ---------------------------------------------------------------------------------------------------------------------
// Files.

static int name_files(Conversion *v, const char *to, int model_alone, char *err) {
    if (!model_alone && mkdir(to, 0777) != 0 && errno != EEXIST) return FAIL("%s: %s", to, strerror(errno));
    for (int f = 0; f < CHECKPOINT_FILES; f++) {
        if (!model_alone)
            checkpoint_path(v->path[f], to, (enum checkpoint_file)f, v->to.step);
        else if (f == CHECKPOINT_MODEL)
            snprintf(v->path[f], sizeof v->path[f], "%.4000s", to);
        if (output_name(v->temporary[f], sizeof v->temporary[f], v->path[f], err) != 0) return -1;
    }
    return 0;
}

static int create_files(Conversion *v, char *err) {
    const char *optimizer = v->temporary[CHECKPOINT_OPTIMIZER];
    if (modelfile_create(v->temporary[CHECKPOINT_MODEL], &v->to.config, v->to.dtype == ZERO_BF16, err, ERR_BYTES) !=
            0 ||
        modelfile_begin(&v->model, v->temporary[CHECKPOINT_MODEL], err, ERR_BYTES) != 0)
        return -1;
    if (v->path[CHECKPOINT_OPTIMIZER][0] == '\0') return 0;
    return durable_create(optimizer, checkpoint_optimizer_bytes(&v->to), &v->optimizer_fd, err, ERR_BYTES);
}

static int write_text(const Conversion *v, enum checkpoint_file f, const char *text, char *err) {
    return durable_write_text(v->temporary[f], v->path[f], text, err, ERR_BYTES);
}

static int publish(Conversion *v, char *err) {
    if (modelfile_finish(&v->model, err, ERR_BYTES) != 0) return -1;
    const int fd = v->optimizer_fd;
    v->optimizer_fd = -1;
    if (fd != -1 && durable_close(fd, v->temporary[CHECKPOINT_OPTIMIZER], err, ERR_BYTES) != 0) return -1;
    if (durable_publish(v->temporary[CHECKPOINT_MODEL], v->path[CHECKPOINT_MODEL], err, ERR_BYTES) != 0) return -1;
    if (fd == -1) return 0;
    if (durable_publish(v->temporary[CHECKPOINT_OPTIMIZER], v->path[CHECKPOINT_OPTIMIZER], err, ERR_BYTES) != 0)
        return -1;
    Checkpoint *c = &v->to;
    for (size_t a = 0; a < c->num_arrays; a++)
        for (size_t k = 0; k < c->num_chunks; k++)
            *(a == 0 ? &c->params_hash : &c->optimizer_hash) += c->arrays[a].hashes[k];
    char *text = checkpoint_manifest(c);
    const int status = text == NULL ? FAIL("out of memory") : write_text(v, CHECKPOINT_MANIFEST, text, err);
    free(text);
    return status != 0 ? -1 : write_text(v, CHECKPOINT_DONE, "", err);
}

// ---------------------------------------------------------------------------------------------------------------------
// What the result is.

// The options of a run, with -w as it is in the result. NULL: out of memory.
static char *options_with_master(const char *options, int master) {
    char *text = NULL;
    size_t bytes;
    FILE *f = open_memstream(&text, &bytes);
    for (const char *line = options, *next; f != NULL && *line != '\0'; line = next) {
        next = strchr(line, '\n') + 1;
        if (strncmp(line, "-w ", 3) == 0)
            fprintf(f, "-w %d\n", master);
        else
            fprintf(f, "%.*s", (int)(next - line), line);
    }
    if (f == NULL || fclose(f) != 0) return NULL;
    return text;
}

static int describe(Conversion *v, const char *precision, int master, int average, int model_alone, char *err) {
    const Checkpoint *from = v->from.c;
    Checkpoint *to = &v->to;
    const int bf16 = precision != NULL ? strcmp(precision, "bf16") == 0 : from->dtype == ZERO_BF16;
    if (!bf16 && master != -1 && master != 1)
        return FAIL("-w %d: fp32 parameters are their own master weights: leave -w out", master);
    if (bf16 && master == -1) master = from->has_master || from->dtype == ZERO_F32;
    *to = *from;  // step, data, windows
    to->options = to->train_files = to->val_files = NULL;
    to->num_arrays = 0;
    to->params_hash = to->optimizer_hash = 0;
    if (checkpoint_describe(to, &from->config, bf16 ? ZERO_BF16 : ZERO_F32, bf16 && master > 0 && !model_alone,
                            from->optimizer) != 0 ||
        (checkpoint_array_of(from, ZERO_STATE_EMA) >= 0 && !model_alone && checkpoint_add_average(to) != 0))
        return FAIL("out of memory");
    if (from->options != NULL) to->options = options_with_master(from->options, bf16 ? master : 1);
    if (from->train_files != NULL) to->train_files = strdup(from->train_files);
    if (from->val_files != NULL) to->val_files = strdup(from->val_files);
    if ((from->options != NULL && to->options == NULL) || (from->train_files != NULL && to->train_files == NULL) ||
        (from->val_files != NULL && to->val_files == NULL))
        return FAIL("out of memory");
    while (model_alone && to->num_arrays > 1) free(to->arrays[--to->num_arrays].hashes);
    v->params = checkpoint_array_of(from, ZERO_STATE_PARAMS);
    v->master = checkpoint_array_of(from, ZERO_STATE_MASTER);
    if (average) {
        v->params = checkpoint_array_of(from, ZERO_STATE_EMA);
        v->master = -1;
        if (!model_alone) return FAIL("--average: is a model without state: give a name that ends in .bin");
        if (v->params < 0) return FAIL("%s: has no moving average: its run had no --ema-decay", v->from.name);
    }
    return 0;
}

static int run(Conversion *v, const char *from, const char *to, const char *precision, int master, int average,
               char *err) {
    const size_t length = strlen(to);
    const int model_alone = length > 4 && strcmp(to + length - 4, ".bin") == 0;
    if (source_open(&v->from, from, err) != 0) return -1;
    if (v->from.kind == SOURCE_LLMC && !model_alone)
        return FAIL(
            "%s: llm.c does not write down which data and options its run had: -y 1 resumes its directory as it "
            "is; a name that ends in .bin gets its model",
            v->from.name);
    if (v->from.kind == SOURCE_MODEL && !model_alone)
        return FAIL("%s: is a model without state: give a name that ends in .bin", v->from.name);
    if (source_verify(&v->from, err) != 0 || describe(v, precision, master, average, model_alone, err) != 0 ||
        name_files(v, to, model_alone, err) != 0 || create_files(v, err) != 0 ||
        for_chunks(&v->to, convert_chunk, v, err) != 0 || publish(v, err) != 0)
        return -1;
    printf("wrote %s: %s%s\n", v->path[model_alone ? CHECKPOINT_MODEL : CHECKPOINT_MANIFEST],
           v->to.dtype == ZERO_BF16 ? "bf16" : "fp32", v->to.has_master ? " with master weights" : "");
    print_lost(v->lost, &v->to.config);
    return 0;
}

int convert(const char *from, const char *to, const char *precision, int master, int average) {
    static Conversion v;
    char err[ERR_BYTES] = "";
    v.from.fd[0] = v.from.fd[1] = v.from.model.fd = v.from.llmc.model.fd = v.model.fd = v.optimizer_fd = -1;
    const int status = run(&v, from, to, precision, master, average, err);
    if (status != 0) {
        fprintf(stderr, "ckpt: %s\n", err);
        for (int f = 0; f < CHECKPOINT_FILES; f++)
            if (v.temporary[f][0] != '\0') unlink(v.temporary[f]);
    }
    modelfile_close(&v.model);
    if (v.optimizer_fd != -1) close(v.optimizer_fd);
    source_close(&v.from);
    checkpoint_free(&v.to);
    return status != 0 ? EXIT_TROUBLE : EXIT_SUCCESS;
}
