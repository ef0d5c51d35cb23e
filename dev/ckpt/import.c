// import: a folder of Hugging Face's becomes a model file. Each tensor is read, checked, transposed and rounded in
// parts; the file is published when all of them are on the disk.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/commands.h"
#include "ckpt/output.h"
#include "ckpt/source.h"
#include "data/durable_file.h"
#include "gpt2/huggingface.h"
#include "gpt2/tensors.h"

#define FAIL(...) (snprintf(err, ERR_BYTES, __VA_ARGS__), -1)

typedef struct Import {
    HfModel from;
    ModelFile to;
    zero_tensor *tensors;
    size_t lost;  // weights that were rounded
    char temporary[CHECKPOINT_PATH + 32];
} Import;

static int read_elements(void *ctx, size_t tensor, size_t begin, size_t n, float *values, char *err) {
    const HfPlace *p = &((Import *)ctx)->from.places[tensor];
    if (safetensors_read(p->file, p->tensor, begin, n, values, err, ERR_BYTES) != 0) return -1;
    for (size_t i = 0; i < n; i++)
        if (!isfinite(values[i]))
            return FAIL("%s: tensor %s: element %zu is %g: no model is trained from that: get it again", p->file->path,
                        p->tensor->name, begin + i, (double)values[i]);
    return 0;
}

static int write_elements(void *ctx, size_t tensor, size_t begin, size_t n, float *values, char *err) {
    Import *m = ctx;
    const size_t lost = m->to.bf16 ? output_round(values, n) : 0;
#pragma omp atomic
    m->lost += lost;
    return modelfile_write(&m->to, m->tensors[tensor].logical + begin, n, values, err, ERR_BYTES);
}

static int import_tensor(void *ctx, size_t tensor, char *err) {
    char name[HF_NAME];
    size_t shape[2], dims;
    const int transposed = hf_describe(&((Import *)ctx)->from.config, tensor, name, shape, &dims);
    return copy_tensor(ctx, tensor, shape[0], shape[1], transposed, read_elements, write_elements, err);
}

// wte and lm_head.weight are read side by side.
static int check_head(const Import *m, char *err) {
    enum { PIECE = 1 << 14 };
    const HfPlace *head = &m->from.head, *wte = &m->from.places[WTE];
    float a[PIECE], b[PIECE];
    if (head->tensor == NULL) return 0;
    for (size_t at = 0, n; at < wte->tensor->numel; at += n) {
        n = wte->tensor->numel - at < PIECE ? wte->tensor->numel - at : PIECE;
        if (safetensors_read(wte->file, wte->tensor, at, n, a, err, ERR_BYTES) != 0 ||
            safetensors_read(head->file, head->tensor, at, n, b, err, ERR_BYTES) != 0)
            return -1;
        if (memcmp(a, b, n * sizeof *a) != 0)
            return FAIL("%s: lm_head.weight is not wte.weight: here, as in llm.c, they are one tensor",
                        head->file->path);
    }
    return 0;
}

static int run(Import *m, const char *folder, const char *to, const char *precision, char *err) {
    const size_t length = strlen(to);
    if (length < 5 || strcmp(to + length - 4, ".bin") != 0)
        return FAIL("%s: becomes a model file: give a name that ends in .bin", to);
    if (hf_open(&m->from, folder, err, ERR_BYTES) != 0 || check_head(m, err) != 0 ||
        output_name(m->temporary, sizeof m->temporary, to, err) != 0)
        return -1;
    const GPT2Config *c = &m->from.config;
    const int bf16 = precision != NULL ? strcmp(precision, "bf16") == 0 : m->from.bf16;
    m->tensors = malloc(gpt2_num_tensors(c) * sizeof *m->tensors);
    if (m->tensors == NULL) return FAIL("out of memory");
    gpt2_tensors(c, m->tensors);
    if (modelfile_create(m->temporary, c, bf16, err, ERR_BYTES) != 0 ||
        modelfile_begin(&m->to, m->temporary, err, ERR_BYTES) != 0 ||
        for_tensors(gpt2_num_tensors(c), import_tensor, m, err) != 0 || modelfile_finish(&m->to, err, ERR_BYTES) != 0 ||
        durable_publish(m->temporary, to, err, ERR_BYTES) != 0)
        return -1;
    m->temporary[0] = '\0';
    printf("wrote %s: %s; %zu layers, %zu heads, %zu channels, vocabulary %zu, %zu positions\n", to,
           bf16 ? "bf16" : "fp32", c->num_layers, c->num_heads, c->channels, c->vocab_size, c->max_seq_len);
    print_lost(m->lost, c);
    return 0;
}

int import_model(const char *folder, const char *to, const char *precision) {
    static Import m;
    char err[ERR_BYTES] = "";
    m.to.fd = -1;
    const int status = run(&m, folder, to, precision, err);
    if (status != 0) fprintf(stderr, "ckpt: %s\n", err);
    if (status != 0 && m.temporary[0] != '\0') unlink(m.temporary);
    modelfile_close(&m.to);
    hf_close(&m.from);
    free(m.tensors);
    return status != 0 ? EXIT_TROUBLE : EXIT_SUCCESS;
}
