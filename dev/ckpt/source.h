// What ckpt reads: a checkpoint of zero.c or of llm.c, or a model file alone. Nothing is read into memory but what is
// asked for, by several threads at once.
#ifndef CKPT_SOURCE_H
#define CKPT_SOURCE_H

#include "gpt2/model_file.h"
#include "trainer/checkpoint_format.h"
#include "trainer/checkpoint_llmc.h"

enum { ERR_BYTES = 5120, EXIT_DIFFERENT = 1, EXIT_TROUBLE = 2 };

enum source_kind { SOURCE_ZERO, SOURCE_LLMC, SOURCE_MODEL };

typedef struct Source {
    enum source_kind kind;
    const Checkpoint *c;  // of a model file: its parameters are the only array
    char dir[4096];
    char name[CHECKPOINT_PATH];  // for messages
    Checkpoint own;              // what c is, but of llm.c
    LlmcSet llmc;
    ModelFile model;
    int fd[2];  // model and optimizer file, of zero.c
} Source;

// Opens the checkpoint of a step, and checks headers and lengths. Returns 0, or -1 and a message that names the file.
// Close it in any case.
int source_open_step(Source *s, const char *dir, size_t step, char *err);

// name: a directory, whose newest checkpoint that was finished is meant; DIR/checkpoint_STEP.txt or, of llm.c,
// DIR/DONE_STEP; or a model file.
int source_open(Source *s, const char *name, char *err);
void source_close(Source *s);

// Reads elements [begin, begin + count) of a tensor. Returns 0, or -1 and a message.
int source_read(const Source *s, size_t array, size_t tensor, size_t begin, size_t count, float *out, char *err);

// Verifies everything, in parallel. Returns 0, or -1 and a message.
int source_verify(const Source *s, char *err);

// Bytes of its files.
size_t source_bytes(const Source *s);

// Calls work for each chunk of each array, in parallel, until a call returns non-zero. buffer has room for a chunk.
// Returns what that call returned, with its message, or 0.
typedef int (*chunk_fn)(void *ctx, size_t array, size_t tensor, size_t chunk, size_t begin, size_t count, float *buffer,
                        char *err);
int for_chunks(const Checkpoint *c, chunk_fn work, void *ctx, char *err);

#endif
