// What fits: a search of the flags that decide how much memory a rank needs. See fit.c.
//
// A search is a pure function of its input, as a plan is (planner.h): the same on all ranks.
#ifndef TRAINER_FIT_H
#define TRAINER_FIT_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "gpt2/config.h"
#include "trainer/planner.h"

#ifdef __cplusplus
extern "C" {
#endif

// Which flags are searched. The bits of a run depend on the last two only.
enum {
    FIT_STAGE = 1,
    FIT_GROUP = 2,
    FIT_ORDER = 4,
    FIT_OFFLOAD = 8,
    FIT_ACTIVATIONS = 16,  // whether they are offloaded
    FIT_OFFLOAD_PARAMS = 32,
    FIT_RECOMPUTE = 64,
    FIT_HEAD_ROWS = 128,
    FIT_BATCH = 256,
    FIT_SAME_BITS = FIT_HEAD_ROWS - 1,
    FIT_ALL = 2 * FIT_BATCH - 1
};

#define FIT_ALIKE 1.02  // times of steps that differ by less are alike

typedef struct {
    PlanInput plan;     // the tokens of a step stay as they are here, also where B is searched; bytes of activations
                        // are not used
    GPT2Config config;  // of the model in plan
    size_t head_rows;
    int offload_activations;
    size_t (*activation_bytes)(const GPT2Config *c, size_t B, size_t T, int recompute, size_t head_rows,
                               enum zero_dtype precision, size_t streams, int offload);
    unsigned searched;  // FIT_*
} FitInput;

typedef struct {
    int stage, recompute, offload_activations;
    enum zero_order order;
    enum zero_offload offload, offload_params;
    size_t shard_group;  // as --shard-group; 0: all ranks are one
    size_t head_rows, B;
    size_t total_tokens;
    uint64_t bytes;  // the most of any rank
    double seconds;  // of a step, simulated
} Fit;

// The fastest that fits. Returns 1; 0 if nothing does, and *fit is what needs the fewest bytes; or -1 and a message.
int fit_fastest(Fit *fit, const FitInput *in, char *err, size_t err_bytes);

// The largest of GPT-2's family (d6 ... d84, with llm.c's widths) that fits, and its fastest way. Returns as
// fit_fastest does; *depth is the model. 0: not even the smallest.
int fit_largest(size_t *depth, Fit *fit, const FitInput *in, char *err, size_t err_bytes);

// Writes the flags: "-z 3 --shard-group 2 -r 2 -b 1 -d 4096".
void fit_flags(const Fit *fit, char *text, size_t bytes);

// Prints both. Returns as fit_fastest does.
int fit_print(FILE *out, const FitInput *in, int json, char *err, size_t err_bytes);

#ifdef __cplusplus
}
#endif
#endif
