// The files of a checkpoint, without any communication: dev/docs/checkpoints.md describes them.
//
//     model_%08d.bin        the parameters, llm.c's format
//     optimizer_%08d.bin    fp32 arrays one after the other, each in logical order: master weights (bf16 with -w 1
//                           or 2), the optimizer's states, the moving average (--ema-decay)
//     checkpoint_%08d.txt   the manifest: what is needed to continue, and a hash of each chunk. Written last: a
//                           checkpoint without it does not exist
//
// A chunk is CHECKPOINT_CHUNK elements of one tensor (the last one less). Its hash is zero_state_hash of its elements:
// ranks that have parts of a chunk add their parts of its hash, and the hashes of all chunks add up to the hashes that
// --hash prints.
#ifndef TRAINER_CHECKPOINT_FORMAT_H
#define TRAINER_CHECKPOINT_FORMAT_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "gpt2/config.h"
#include "trainer/log.h"
#include "zero/layout.h"
#include "zero/optimizers/optimizers.h"
#include "zero/zero.h"

#ifdef __cplusplus
extern "C" {
#endif

#define CHECKPOINT_CHUNK ((size_t)1 << 20)
enum { CHECKPOINT_MAX_ARRAYS = 3 + ZERO_MAX_OPTIMIZER_STATES, CHECKPOINT_PATH = 4096 + 64 };

typedef struct CheckpointArray {
    const char *name;
    enum zero_state state;
    size_t offset;     // bytes, in its file; the parameters are in the model file, the others in the optimizer file
    uint64_t *hashes;  // [num_chunks]
} CheckpointArray;

typedef struct CheckpointData {
    uint64_t content;  // hash (data/content_hash.h)
    size_t files, samples;
} CheckpointData;

// The steps in a row, until now, whose loss or norm was not finite, and the first of them.
typedef struct CheckpointNonfinite {
    size_t steps, first;
    double loss, norm;
} CheckpointNonfinite;

typedef struct Checkpoint {
    size_t step, steps;  // updates begin with this step; steps of the run
    uint64_t updates, seed;
    size_t M, B, T;
    CheckpointData train;
    uint64_t val_content;           // hash; 0: no validation. It does not decide the bits
    char *train_files, *val_files;  // of loader_files, for messages; NULL or "": not known (version 1), or none
    char *options;                  // "-l 0.0003\n": the flags that decide the bits of the run
    Outliers loss_outliers, norm_outliers;
    CheckpointNonfinite nonfinite;
    uint64_t params_hash, optimizer_hash;  // of zero_hash

    // set by checkpoint_describe
    GPT2Config config;
    enum zero_dtype dtype;
    int has_master;
    const zero_optimizer *optimizer;
    zero_tensor *tensors;
    size_t num_tensors, num_chunks;
    size_t *first_chunk;  // [num_tensors + 1], in the arrays' hashes
    CheckpointArray arrays[CHECKPOINT_MAX_ARRAYS];
    size_t num_arrays;
} Checkpoint;

// Lays out the arrays for a model; hashes are zero. 0, or -1: out of memory. Free it in any case.
int checkpoint_describe(Checkpoint *c, const GPT2Config *config, enum zero_dtype dtype, int has_master,
                        const zero_optimizer *optimizer);
void checkpoint_free(Checkpoint *c);

// Adds the moving average of the weights as the last array, after checkpoint_describe. 0, or -1: out of memory.
int checkpoint_add_average(Checkpoint *c);
// The array with this state, or -1.
int checkpoint_array_of(const Checkpoint *c, enum zero_state state);

size_t checkpoint_optimizer_bytes(const Checkpoint *c);  // of the optimizer file

// Adds elements [begin, begin + count) of a tensor to the hashes of an array. begin is a multiple of ZERO_ALIGN.
void checkpoint_add_hash(Checkpoint *c, size_t array, size_t tensor, size_t begin, size_t count, const float *values);

// DIR/model_STEP.bin and so on, in out[CHECKPOINT_PATH].
enum checkpoint_file { CHECKPOINT_MODEL, CHECKPOINT_OPTIMIZER, CHECKPOINT_MANIFEST, CHECKPOINT_DONE, CHECKPOINT_FILES };
void checkpoint_path(char *out, const char *dir, enum checkpoint_file file, size_t step);

// The steps of which dir has any of these files, newest first. Returns their number, or -1 and a message. *steps is
// malloc'ed. A directory that does not exist has none.
int checkpoint_steps(const char *dir, size_t **steps, char *err, size_t err_bytes);

// Whether dir has the manifest or the optimizer state of a step. A model alone is not ours to delete.
int checkpoint_is_ours(const char *dir, size_t step);

// Deletes the files of a step, the manifest before what it describes. Returns 0, or -1 and a message.
int checkpoint_delete(const char *dir, size_t step, char *err, size_t err_bytes);

// The text of the manifest, malloc'ed; NULL: out of memory.
char *checkpoint_manifest(const Checkpoint *c);

// Parses the manifest of a step. Nothing in it is trusted. 0, or -1 and a message that begins with path. Free it in any
// case.
int checkpoint_parse(Checkpoint *c, const char *path, const char *text, size_t bytes, char *err, size_t err_bytes);
int checkpoint_read(Checkpoint *c, const char *dir, size_t step, char *err, size_t err_bytes);

// Reads elements [begin, begin + count) in logical order of an array. fd: of its file.
int checkpoint_read_values(const Checkpoint *c, size_t array, int fd, size_t begin, size_t count, float *out);

// Checks sizes and headers of the files, and the hash of every `parts`-th chunk from `part` on. 0, or -1 and a message
// that names file, array and tensor.
int checkpoint_verify(const Checkpoint *c, const char *dir, size_t part, size_t parts, char *err, size_t err_bytes);

#ifdef __cplusplus
}
#endif
#endif
