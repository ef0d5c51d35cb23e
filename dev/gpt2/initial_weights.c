#include "gpt2/initial_weights.h"

#include <math.h>
#include <string.h>

void gpt2_initial_weights_begin(InitialWeights *w, const GPT2Config *config, const zero_tensor *tensors,
                                uint32_t seed) {
    memset(w, 0, sizeof *w);
    w->config = config;
    w->tensors = tensors;
    mt_seed(&w->generator, seed);
}

// Returns how many numbers are drawn for a tensor, and sets their standard deviation.
static size_t draws_of(const InitialWeights *w, size_t tensor, float *std) {
    static const char *const NORMAL[] = { "wte", "wpe", "qkvw", "attprojw", "fcw", "fcprojw" };
    const char *name = w->tensors[tensor].name;
    const int residual = !strcmp(name, "attprojw") || !strcmp(name, "fcprojw");
    *std = residual ? 0.02f * (1.0f / sqrtf(2.0f * (float)w->config->num_layers)) : 0.02f;
    for (size_t i = 0; i < sizeof NORMAL / sizeof NORMAL[0]; i++) {
        // wte: the rows that pad the vocabulary are zero
        if (!strcmp(name, NORMAL[i]))
            return i == 0 ? w->config->vocab_size * w->config->channels : w->tensors[tensor].numel;
    }
    return 0;
}

int gpt2_initial_weights_fill(void *ctx, size_t tensor, size_t begin, size_t count, float *out) {
    InitialWeights *w = (InitialWeights *)ctx;
    float std;
    for (; w->next < tensor; w->next++) {
        const size_t draws = draws_of(w, w->next, &std);
        if (draws > 0) mt_normal(&w->generator, NULL, 0, 0, draws, 0, std);
    }
    const size_t draws = draws_of(w, tensor, &std);
    const char *name = w->tensors[tensor].name;
    const int is_scale = !strcmp(name, "ln1w") || !strcmp(name, "ln2w") || !strcmp(name, "lnfw");
    const size_t drawn = begin < draws ? (count < draws - begin ? count : draws - begin) : 0;
    if (drawn > 0) {
        Mt19937 copy = w->generator;  // another range of this tensor may follow
        mt_normal(&copy, out, begin, drawn, draws, 0, std);
    }
    for (size_t i = drawn; i < count; i++) out[i] = is_scale ? 1.0f : 0.0f;
    return 0;
}
