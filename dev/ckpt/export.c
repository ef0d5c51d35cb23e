// export: a checkpoint or a model file becomes a folder of Hugging Face's: model.safetensors, the tokenizer's files if
// one is given, and last config.json, without which there is no model. Nothing is published before it is on the disk.
//
// The values are those of convert: fp32 from the master weights where there are any, bf16 the parameters.
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
#include "gpt2/huggingface.h"
#include "gpt2/tensors.h"

#define FAIL(...) (snprintf(err, ERR_BYTES, __VA_ARGS__), -1)

typedef struct Export {
    Source from;
    size_t array;  // of `from`
    int bf16, fd, made_folder;
    SafeTensor *to;
    char (*names)[HF_NAME];
    size_t lost;
    char path[CHECKPOINT_PATH], temporary[CHECKPOINT_PATH + 32];  // of model.safetensors
} Export;

static int read_elements(void *ctx, size_t tensor, size_t begin, size_t n, float *values, char *err) {
    Export *x = ctx;
    return source_read(&x->from, x->array, tensor, begin, n, values, err);
}

static int write_elements(void *ctx, size_t tensor, size_t begin, size_t n, float *values, char *err) {
    Export *x = ctx;
    const SafeTensor *t = &x->to[tensor];
    const size_t lost = x->bf16 ? output_round(values, n) : 0;
    uint16_t *halves = (uint16_t *)values;  // in place: element i is written after it was read
    for (size_t i = 0; x->bf16 && i < n; i++) memcpy(halves + i, (char *)(values + i) + 2, sizeof *halves);
#pragma omp atomic
    x->lost += lost;
    return durable_write(x->fd, x->temporary, values, n * t->element_bytes, t->begin + begin * t->element_bytes, err,
                         ERR_BYTES);
}

static int export_tensor(void *ctx, size_t tensor, char *err) {
    Export *x = ctx;
    const SafeTensor *t = &x->to[tensor];
    char name[HF_NAME];
    size_t shape[2], dims;
    const int transposed = hf_describe(&x->from.c->config, tensor, name, shape, &dims);
    return transposed ? copy_tensor(x, tensor, shape[1], shape[0], 1, read_elements, write_elements, err)
                      : copy_tensor(x, tensor, t->numel, 1, 0, read_elements, write_elements, err);
}

// Creates model.safetensors under its temporary name, with its header.
static int create(Export *x, char *err) {
    const GPT2Config *c = &x->from.c->config;
    const size_t n = gpt2_num_tensors(c);
    size_t bytes;
    x->to = calloc(n, sizeof *x->to);
    x->names = calloc(n, sizeof *x->names);
    if (x->to == NULL || x->names == NULL) return FAIL("out of memory");
    for (size_t t = 0; t < n; t++) {
        x->to[t].name = x->names[t];
        x->to[t].dtype = x->bf16 ? "BF16" : "F32";
        hf_describe(c, t, x->names[t], x->to[t].shape, &x->to[t].dims);
    }
    char *header = safetensors_header(x->to, n, &bytes);
    if (header == NULL) return FAIL("out of memory");
    const SafeTensor *last = &x->to[n - 1];
    int status = durable_create(x->temporary, last->begin + last->numel * last->element_bytes, &x->fd, err, ERR_BYTES);
    if (status == 0) status = durable_write(x->fd, x->temporary, header, bytes, 0, err, ERR_BYTES);
    free(header);
    return status;
}

// Writes config.json, after everything else.
static int write_config(const Export *x, const char *folder, int eot, char *err) {
    char path[CHECKPOINT_PATH], temporary[CHECKPOINT_PATH + 32];
    snprintf(path, sizeof path, "%.4000s/config.json", folder);
    if (output_name(temporary, sizeof temporary, path, err) != 0) return -1;
    char *text = hf_config_text(&x->from.c->config, x->bf16, eot);
    const int status = text == NULL ? FAIL("out of memory") : durable_write_text(temporary, path, text, err, ERR_BYTES);
    free(text);
    return status;
}

// Chooses the weights, and checks that there is no model in the folder.
static int prepare(Export *x, const char *from, const char *folder, const char *precision, int average, char *err) {
    char path[CHECKPOINT_PATH];
    if (source_open(&x->from, from, err) != 0 || source_verify(&x->from, err) != 0) return -1;
    const Checkpoint *c = x->from.c;
    const int master = checkpoint_array_of(c, ZERO_STATE_MASTER), ema = checkpoint_array_of(c, ZERO_STATE_EMA);
    x->bf16 = precision != NULL ? strcmp(precision, "bf16") == 0 : c->dtype == ZERO_BF16;
    x->array = (size_t)(!x->bf16 && master >= 0 ? master : checkpoint_array_of(c, ZERO_STATE_PARAMS));
    if (average && ema < 0) return FAIL("%s: has no moving average: its run had no --ema-decay", x->from.name);
    if (average) x->array = (size_t)ema;
    if (strlen(folder) > 4000) return FAIL("%.200s...: the name is too long: choose a shorter one", folder);
    x->made_folder = mkdir(folder, 0777) == 0;
    if (!x->made_folder && errno != EEXIST) return FAIL("%s: cannot be made: %s", folder, strerror(errno));
    if (hf_is_folder(folder)) return FAIL("%s: has a config.json, and nothing is replaced: give another name", folder);
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    memcpy(x->path, path, sizeof path);
    return output_name(x->temporary, sizeof x->temporary, path, err);
}

static int run(Export *x, const char *from, const char *folder, const char *precision, int average,
               const char *tokenizer, char *err) {
    if (prepare(x, from, folder, precision, average, err) != 0) return -1;
    const GPT2Config *c = &x->from.c->config;
    int eot = c->vocab_size == 50257 ? 50256 : -1;  // GPT-2's own
    if (create(x, err) != 0 || for_tensors(gpt2_num_tensors(c), export_tensor, x, err) != 0) return -1;
    const int fd = x->fd;
    x->fd = -1;
    if (durable_close(fd, x->temporary, err, ERR_BYTES) != 0) return -1;
    if (tokenizer != NULL && export_tokenizer(tokenizer, folder, c->vocab_size, &eot, err) != 0) return -1;
    if (durable_publish(x->temporary, x->path, err, ERR_BYTES) != 0) return -1;
    x->temporary[0] = '\0';
    if (write_config(x, folder, eot, err) != 0) return -1;
    printf("wrote %s: %s%s\n", folder, x->bf16 ? "bf16" : "fp32", average ? ", the moving average of the weights" : "");
    if (x->bf16 && !average && checkpoint_array_of(x->from.c, ZERO_STATE_MASTER) >= 0)
        printf("its master weights have more bits: --precision fp32 exports them\n");
    else
        print_lost(x->lost, c);
    return 0;
}

int export_model(const char *from, const char *folder, const char *precision, int average, const char *tokenizer) {
    static Export x;
    char err[ERR_BYTES] = "";
    x.from.fd[0] = x.from.fd[1] = x.from.model.fd = x.from.llmc.model.fd = x.fd = -1;
    const int status = run(&x, from, folder, precision, average, tokenizer, err);
    if (status != 0) fprintf(stderr, "ckpt: %s\n", err);
    if (status != 0 && x.temporary[0] != '\0') unlink(x.temporary);
    if (status != 0 && x.made_folder) rmdir(folder);  // if it is empty
    if (x.fd != -1) close(x.fd);
    source_close(&x.from);
    free(x.to);
    free(x.names);
    return status != 0 ? EXIT_TROUBLE : EXIT_SUCCESS;
}
