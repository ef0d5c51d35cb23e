// llm.c's model files: gpt2_124M.bin, gpt2_124M_bf16.bin, model_00000100.bin. See model_file.c.
//
// Elements are addressed by *logical index*: their place in the file, the 16 tensors in llm.c's order without gaps.
// Values are fp32 in memory, whatever the file has. Functions return 0, or -1 and a message in err that names the file
// and the remedy. They do not communicate: where a comment says "all ranks" or "rank 0", the caller ensures it, and a
// barrier between the calls.
#ifndef DEV_MODELFILE_H
#define DEV_MODELFILE_H

#include <stddef.h>
#include <stdint.h>

#include "data/llmc_file.h"
#include "gpt2/config.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    int fd;        // -1: not open
    int bf16;      // 1: values are stored in bf16 (version 5), 0: in fp32 (version 3)
    size_t numel;  // parameters, with the padding of the vocabulary
    GPT2Config config;
    char path[4096];
} ModelFile;

// Opens a file for reading. Checks magic, version, sizes, and that the file is exactly as long as its header says.
int modelfile_open(ModelFile *f, const char *path, char *err, size_t err_bytes);
// Reads elements [begin, begin + count) into out.
int modelfile_read(const ModelFile *f, size_t begin, size_t count, float *out, char *err, size_t err_bytes);
void modelfile_close(ModelFile *f);  // of a file that was read, or to give up writing one; not open is fine

// Writing, by all ranks together, each its own elements:
//     rank 0:     modelfile_create(temporary)             makes the file, in full length: a full disk is noticed here
//     all ranks:  modelfile_begin(temporary), modelfile_write(...)..., modelfile_finish
//     rank 0:     durable_publish(temporary, path)        if all were successful, else it removes the file
// Values must be exact in the file's type: with bf16, the low 16 bits are dropped.
int modelfile_create(const char *temporary, const GPT2Config *c, int bf16, char *err, size_t err_bytes);
int modelfile_begin(ModelFile *f, const char *temporary, char *err, size_t err_bytes);
int modelfile_write(const ModelFile *f, size_t begin, size_t count, const float *values, char *err, size_t err_bytes);
int modelfile_finish(ModelFile *f, char *err, size_t err_bytes);  // to the disk, and closes

// The header of such a file.
void modelfile_header(const GPT2Config *c, int bf16, int32_t header[LLMC_HEADER_WORDS]);

#ifdef __cplusplus
}
#endif
#endif
