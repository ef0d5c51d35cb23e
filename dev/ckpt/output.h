// What ckpt writes: new files under temporary names, and tensors that are copied without being in memory as a whole.
#ifndef CKPT_OUTPUT_H
#define CKPT_OUTPUT_H

#include <stddef.h>

#include "gpt2/config.h"

// The temporary name of a new file, in out[bytes]. Returns 0, or -1 and a message: the file exists.
int output_name(char *out, size_t bytes, const char *path, char *err);

// Rounds to bf16, to nearest, as the trainer does it. Returns the number of values that this changes.
size_t output_round(float *values, size_t n);

// Prints how many weights of a model were rounded.
void print_lost(size_t lost, const GPT2Config *c);

// Calls work for each tensor, in parallel, until a call returns non-zero. Returns 0, or -1 and that call's message.
typedef int (*tensor_fn)(void *ctx, size_t tensor, char *err);
int for_tensors(size_t count, tensor_fn work, void *ctx, char *err);

// Reads, or writes, elements [begin, begin + count) of a tensor.
typedef int (*elements_fn)(void *ctx, size_t tensor, size_t begin, size_t count, float *values, char *err);

// Copies a tensor of rows x columns, some rows at a time; transpose: to one of columns x rows. Takes 32 MB, or two rows
// if they are larger. Returns 0, or -1 and a message.
int copy_tensor(void *ctx, size_t tensor, size_t rows, size_t columns, int transpose, elements_fn read,
                elements_fn write, char *err);

#endif
