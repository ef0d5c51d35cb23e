// GPT-2 as Hugging Face's transformers saves it (GPT2LMHeadModel): a folder with config.json and model.safetensors, or
// model.safetensors.index.json and the files that it names. ckpt imports and exports it (dev/docs/huggingface.md).
//
//     here                     there, with or without "transformer." before it             shape there
//     wte, wpe                 wte.weight, wpe.weight                                      V x C, maxT x C
//     ln1w, ln1b of layer 0    h.0.ln_1.weight, h.0.ln_1.bias                              C
//     qkvw, attprojw           h.0.attn.c_attn.weight, h.0.attn.c_proj.weight              C x 3C, C x C
//     fcw, fcprojw             h.0.mlp.c_fc.weight, h.0.mlp.c_proj.weight                  C x 4C, 4C x C
//     lnfw, lnfb               ln_f.weight, ln_f.bias                                      C
//
// Matrices of layers are (in, out) there (Conv1D), and (out, in) here; biases are named after their matrix. The
// vocabulary is not padded there. The head is wte: lm_head.weight may be there if it is the same. The masks attn.bias
// and attn.masked_bias, which older versions saved, mean nothing.
#ifndef GPT2_HUGGINGFACE_H
#define GPT2_HUGGINGFACE_H

#include "data/safetensors.h"
#include "gpt2/config.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { HF_MAX_FILES = 512, HF_NAME = 80 };

typedef struct HfPlace {  // of a tensor; NULL: it was not found
    const SafeTensors *file;
    const SafeTensor *tensor;
} HfPlace;

typedef struct HfModel {
    GPT2Config config;
    int bf16;  // all weights are BF16
    SafeTensors *files;
    size_t num_files;
    HfPlace *places;  // [gpt2_num_tensors]: in the order of gpt2_tensors
    HfPlace head;     // lm_head.weight
} HfModel;

// Opens a folder and checks it: it has the tensors of a GPT-2 that is llm.c's, in their shapes, and no others. Returns
// 0, or -1 and a message that names the file. Close it in any case.
int hf_open(HfModel *m, const char *folder, char *err, size_t err_bytes);
void hf_close(HfModel *m);

// Whether a path is a folder with a config.json.
int hf_is_folder(const char *path);

// Name (with "transformer.") and shape there of a tensor of gpt2_tensors. Returns whether it is transposed there.
int hf_describe(const GPT2Config *c, size_t tensor, char name[HF_NAME], size_t shape[2], size_t *dims);

// The text of config.json. eot: the token that ends a text; -1: not known. malloc'ed; NULL: out of memory.
char *hf_config_text(const GPT2Config *c, int bf16, int eot);

#ifdef __cplusplus
}
#endif
#endif
