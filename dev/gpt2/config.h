// The sizes of a GPT-2 model, and the names by which users choose one.
#ifndef GPT2_CONFIG_H
#define GPT2_CONFIG_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct GPT2Config {
    size_t max_seq_len;        // maxT
    size_t vocab_size;         // V
    size_t padded_vocab_size;  // Vp: rows of wte; rows V to Vp-1 are zero and stay zero
    size_t num_layers, num_heads, channels;
} GPT2Config;

#define GPT2_VOCAB_MULTIPLE 128  // the vocabulary is padded to a multiple of this
#define GPT2_PACK           8    // head size and Vp are multiples of this: the PACK of zero/device.cuh
#define GPT2_MAX_HEAD_SIZE  256

// Returns 0 if the kernels can run this model, else -1 and a message.
int gpt2_config_check(const GPT2Config *c, char *err, size_t err_bytes);

// Reads a descriptor: "d12", "gpt2:d12", "gpt3:c768" or "custom:l4,h4,c128,v256,t128" (layers, heads, channels,
// vocabulary, longest sequence, in any order). Returns 0, or -1 and a message.
int gpt2_config_from_descriptor(GPT2Config *c, const char *descriptor, char *err, size_t err_bytes);

#ifdef __cplusplus
}
#endif
#endif
