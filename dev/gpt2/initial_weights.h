// Random initial weights: the same numbers as llm.c and PyTorch draw, on any number of ranks.
//
// The weights of a seed are one sequence of random numbers (mt19937, drawn tensor by tensor in the order of
// gpt2_tensors: wte without its padding, wpe, then per layer qkvw, attprojw, fcw, fcprojw). A rank that owns only part
// of a tensor skips the numbers of the others.
#ifndef GPT2_INITIAL_WEIGHTS_H
#define GPT2_INITIAL_WEIGHTS_H

#include <stddef.h>
#include <stdint.h>

#include "data/random.h"
#include "gpt2/tensors.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    const GPT2Config *config;
    const zero_tensor *tensors;
    Mt19937 generator;
    size_t next;  // the first tensor whose numbers the generator has not passed yet
} InitialWeights;

void gpt2_initial_weights_begin(InitialWeights *w, const GPT2Config *config, const zero_tensor *tensors, uint32_t seed);

// A zero_fill_fn with ctx an InitialWeights: writes elements [begin, begin + count) of a tensor. Tensors must come in
// ascending order. Returns 0.
int gpt2_initial_weights_fill(void *ctx, size_t tensor, size_t begin, size_t count, float *out);

#ifdef __cplusplus
}
#endif
#endif
