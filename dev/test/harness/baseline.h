// baseline.h: the arithmetic of a training step in one process, in plain loops. Sharded training has to equal it, bit
// for bit.
//
// Nothing of zero/ runs here. The parameters are one array in which tensor t begins at offset[t], a multiple of 64
// elements, with zeros between the tensors: the rules of zero/layout.h for one rank, implemented a second time.
#ifndef BASELINE_H
#define BASELINE_H
#include <stddef.h>
#include <stdint.h>
#include "zero/zero.h"
#ifdef __cplusplus
extern "C" {
#endif

typedef struct baseline {
    size_t num_tensors, numel;   // numel: with the gaps
    const zero_tensor *tensors;  // the caller's, must outlive this
    size_t *offset;              // [num_tensors]
    float *w, *m, *v, *g;        // [numel] master weights, moments, sum of the gradients
    int no_master;               // w is what a bf16 parameter holds; updates are rounded stochastically, with seed
    uint64_t seed;
} baseline;

// Host memory only. 0, or -1 when it is exhausted. Everything is zero; the caller fills w (if no_master: with values of
// bf16).
int baseline_create(baseline *b, const zero_tensor *tensors, size_t num_tensors);
void baseline_destroy(baseline *b);

// g = the sum of the gradients of micro-batches 0, 1, 2 ...; micro[j] has numel elements of dtype.
void baseline_sum(baseline *b, const void *const *micro, enum zero_dtype dtype, size_t micro_batches);

// sqrt of the sum of the squares of g, over the number of micro-batches.
double baseline_norm(const baseline *b, size_t micro_batches);

// The optimizer's step, the step-th from 1, with clipping; then the parameters as a model of that dtype stores them,
// into params[numel].
void baseline_adamw(baseline *b, const zero_hyperparameters *a, size_t micro_batches, uint64_t step);
void baseline_store(const baseline *b, void *params, enum zero_dtype dtype);

// What both sides of a comparison are given. A hash of 64 bits (the splitmix64 generator's step); and tokens[n] below
// vocab that belong to micro-batch j of a step, with something in them to learn.
uint64_t baseline_mix(uint64_t x);
void baseline_tokens(int *tokens, size_t n, size_t vocab, size_t step, size_t j);

// w as it reads back from parameters of that dtype.
float baseline_rounded(float w, enum zero_dtype dtype);

#ifdef __cplusplus
}
#endif
#endif
