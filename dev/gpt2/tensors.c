#include "gpt2/tensors.h"

#include <string.h>

typedef struct TensorKind {
    const char *name;
    size_t numel;
    int decay;
} TensorKind;

static void embedding_kinds(const GPT2Config *c, TensorKind kinds[GPT2_EMBEDDING_TENSORS]) {
    const size_t C = c->channels;
    const TensorKind k[GPT2_EMBEDDING_TENSORS] = {
        { "wte", c->padded_vocab_size * C, 1 }, { "wpe", c->max_seq_len * C, 1 }, { "lnfw", C, 0 }, { "lnfb", C, 0 }
    };
    memcpy(kinds, k, sizeof k);
}

static void layer_kinds(const GPT2Config *c, TensorKind kinds[GPT2_LAYER_TENSORS]) {
    const size_t C = c->channels;
    const TensorKind k[GPT2_LAYER_TENSORS] = { { "ln1w", C, 0 },
                                               { "ln1b", C, 0 },
                                               { "qkvw", 3 * C * C, 1 },
                                               { "qkvb", 3 * C, 0 },
                                               { "attprojw", C * C, 1 },
                                               { "attprojb", C, 0 },
                                               { "ln2w", C, 0 },
                                               { "ln2b", C, 0 },
                                               { "fcw", 4 * C * C, 1 },
                                               { "fcb", 4 * C, 0 },
                                               { "fcprojw", 4 * C * C, 1 },
                                               { "fcprojb", C, 0 } };
    memcpy(kinds, k, sizeof k);
}

static size_t layer_numel(const GPT2Config *c) {
    TensorKind layer[GPT2_LAYER_TENSORS];
    size_t numel = 0;
    layer_kinds(c, layer);
    for (size_t k = 0; k < GPT2_LAYER_TENSORS; k++) numel += layer[k].numel;
    return numel;
}

size_t gpt2_num_tensors(const GPT2Config *c) { return GPT2_EMBEDDING_TENSORS + GPT2_LAYER_TENSORS * c->num_layers; }

size_t gpt2_num_parameters(const GPT2Config *c) {
    TensorKind embedding[GPT2_EMBEDDING_TENSORS];
    embedding_kinds(c, embedding);
    size_t numel = c->num_layers * layer_numel(c);
    for (size_t k = 0; k < GPT2_EMBEDDING_TENSORS; k++) numel += embedding[k].numel;
    return numel;
}

void gpt2_tensors(const GPT2Config *c, zero_tensor *out) {
    TensorKind embedding[GPT2_EMBEDDING_TENSORS], layer[GPT2_LAYER_TENSORS];
    embedding_kinds(c, embedding);
    layer_kinds(c, layer);
    size_t logical = 0;
    for (size_t k = 0; k < GPT2_EMBEDDING_TENSORS; k++) {
        if (k == LNFW) logical = gpt2_num_parameters(c) - 2 * c->channels;
        out[k] = (zero_tensor){ embedding[k].name, embedding[k].numel, 0, logical, embedding[k].decay, k == WTE };
        logical += embedding[k].numel;
    }
    logical = embedding[WTE].numel + embedding[WPE].numel;
    for (size_t k = 0; k < GPT2_LAYER_TENSORS; k++) {
        for (size_t l = 0; l < c->num_layers; l++) {
            zero_tensor *t = &out[GPT2_EMBEDDING_TENSORS + l * GPT2_LAYER_TENSORS + k];
            *t = (zero_tensor){ layer[k].name, layer[k].numel, 1 + l, logical, layer[k].decay };
            logical += layer[k].numel;
        }
    }
}

size_t gpt2_embedding_unit_numel(const GPT2Config *c) {
    const size_t numel[] = { c->padded_vocab_size * c->channels, c->max_seq_len * c->channels, c->channels,
                             c->channels };
    size_t sum = 0;
    for (size_t t = 0; t < GPT2_EMBEDDING_TENSORS; t++) sum += (numel[t] + ZERO_ALIGN - 1) / ZERO_ALIGN * ZERO_ALIGN;
    return sum;
}

size_t gpt2_unit_order(const GPT2Config *c, size_t *order) {
    const size_t L = c->num_layers;
    for (size_t i = 0; order != NULL && i < L; i++) {
        order[1 + i] = 1 + i;      // forward: encoder, the layers,
        order[3 + L + i] = L - i;  // backward: head, the layers
    }
    if (order != NULL) order[0] = order[1 + L] = order[2 + L] = 0;  // unit 0: encoder, head; head
    return 3 + 2 * L;
}

void gpt2_order_flops(const GPT2Config *c, size_t T, double *flops) {
    const size_t L = c->num_layers, embedding = gpt2_num_parameters(c) - L * layer_numel(c);
    const double of_layer = 2.0 *
                            (double)(layer_numel(c) + c->channels * T);  // forward; the backward has twice as many
    for (size_t i = 0; i < L; i++) {
        flops[1 + i] = of_layer;
        flops[3 + L + i] = 2 * of_layer;
    }
    flops[0] = 0;
    flops[1 + L] = 2.0 * (double)embedding;
    flops[2 + L] = 4.0 * (double)embedding;
}

double gpt2_training_flops(const GPT2Config *c, size_t T, size_t tokens) {
    const double attention = 6.0 * (double)c->num_layers * (double)c->channels * (double)T;
    return (6.0 * (double)gpt2_num_parameters(c) + attention) * (double)tokens;
}
