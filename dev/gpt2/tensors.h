// The tensors of GPT-2, and which unit each belongs to:
//
//     unit 0        wte (embedding and head), wpe, lnfw, lnfb
//     unit 1 + l    the tensors of layer l: ln1w ln1b qkvw qkvb attprojw attprojb ln2w ln2b fcw fcb fcprojw fcprojb
//
// This is the one place that knows how large a tensor is. A model file has the same elements in llm.c's order, all
// layers of one kind together: wte wpe, then ln1w of layer 0, ln1w of layer 1, ..., ln1b of layer 0, ..., at last lnfw
// lnfb.
#ifndef GPT2_TENSORS_H
#define GPT2_TENSORS_H

#include <stddef.h>

#include "gpt2/config.h"
#include "zero/layout.h"

#ifdef __cplusplus
extern "C" {
#endif

// Places in the list of tensors: of unit 0 from the beginning, of layer l from
// GPT2_EMBEDDING_TENSORS + l * GPT2_LAYER_TENSORS.
enum { WTE, WPE, LNFW, LNFB, GPT2_EMBEDDING_TENSORS };
enum { LN1W, LN1B, QKVW, QKVB, ATTPROJW, ATTPROJB, LN2W, LN2B, FCW, FCB, FCPROJW, FCPROJB, GPT2_LAYER_TENSORS };

size_t gpt2_num_tensors(const GPT2Config *c);

// Describes the tensors, unit by unit, to out[gpt2_num_tensors(c)]. `logical` is the place in the model file.
void gpt2_tensors(const GPT2Config *c, zero_tensor *out);

// Elements of unit 0 with the gaps between its tensors (zero/layout.h).
size_t gpt2_embedding_unit_numel(const GPT2Config *c);

// Including the padding of wte. 124 475 904 for d12.
size_t gpt2_num_parameters(const GPT2Config *c);

// Writes to order (NULL: only counts) the units in the order in which a micro-batch acquires their parameters: 0
// (encoder), 1 ... L, 0 (head), 0 (head, backward), L ... 1. Returns their number.
size_t gpt2_unit_order(const GPT2Config *c, size_t *order);

// FLOPs of forward and backward over `tokens` tokens in sequences of T: 6 per parameter and token, and attention, as
// llm.c counts them for its MFU.
double gpt2_training_flops(const GPT2Config *c, size_t T, size_t tokens);

// The same for one token and each unit of the order: twice as many in the backward as in the forward, and none in the
// encoder.
void gpt2_order_flops(const GPT2Config *c, size_t T, double *flops);

#ifdef __cplusplus
}
#endif
#endif
