// Checkpoints that llm.c has written, as a source of states: model_%08d.bin, state_%08d_%05d.bin of each of its ranks,
// DONE_%08d. Read only, without communication; dev/docs/checkpoints.md says what is continued and what is not.
//
// A state file is a header and fp32 arrays of S elements (AdamW's m, v, master weights), then the state of a shuffled
// data loader. In stage 0 each rank has everything: S is the number of parameters P. In stage 1 S is P / N, and each
// tensor of each layer is cut evenly:
//
//     rank r of N, element k of its part of a tensor  =  element r * (numel / N) + k of the tensor
//                                                        at place logical / N + k of its arrays
//
// The stage is not recorded: it follows from the length of the file. There are no checksums either: what can be
// compared with something else is compared by llmc_set_verify.
#ifndef TRAINER_CHECKPOINT_LLMC_H
#define TRAINER_CHECKPOINT_LLMC_H

#include "gpt2/model_file.h"
#include "trainer/checkpoint_format.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { LLMC_SET_MAX_RANKS = 65536 };

typedef struct LlmcSet {
    Checkpoint c;  // step, updates, model and arrays, as if it were ours; no hashes, no M, B, T, data or options
    size_t ranks;  // that wrote it
    int stage;     // 0 or 1
    int master;    // it has master weights; those of an fp32 model equal its parameters
    ModelFile model;
    int *fd;  // of the state files: [ranks], in stage 0 of rank 0 alone
    size_t num_fds, shard_numel;
    char dir[4096];
} LlmcSet;

// Whether dir has a state file of rank 0 for this step, and no manifest of ours.
int llmc_set_exists(const char *dir, size_t step);

// Opens all files and checks that they belong together. Returns 0, or -1 and a message that names the file at fault.
// Close it in any case.
int llmc_set_open(LlmcSet *s, const char *dir, size_t step, char *err, size_t err_bytes);
void llmc_set_close(LlmcSet *s);

// Reads elements [begin, begin + count) of a tensor of c.arrays[array]. Returns 0, or -1 and a message.
int llmc_set_read(const LlmcSet *s, size_t array, size_t tensor, size_t begin, size_t count, float *out, char *err,
                  size_t err_bytes);

// Checks every `parts`-th chunk from `part` on: m and v are finite, v is not negative, and the model file has what
// rank 0's master weights are rounded to. Returns 0, or -1 and a message.
int llmc_set_verify(const LlmcSet *s, size_t part, size_t parts, char *err, size_t err_bytes);

#ifdef __cplusplus
}
#endif
#endif
