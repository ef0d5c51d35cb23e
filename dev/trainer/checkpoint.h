// The beginning of a run: from a checkpoint, from a model file or from a seed. See checkpoint.c; the files are those of
// checkpoint_format.h, and checkpoint_write.h writes them.
#ifndef TRAINER_CHECKPOINT_H
#define TRAINER_CHECKPOINT_H

#include "trainer/run.h"
#include "zero/optimizers/optimizers.h"

#ifdef __cplusplus
extern "C" {
#endif

// -y 1 without -d and --micro-batches: takes the number of micro-batches of a step from the newest checkpoint in -o, so
// that the run can be resumed on another number of ranks. Before the transport is created. Collective.
void resume_micro_batches(Run *r);

// Sets parameters, optimizer state, number of updates, r->first_step and the outlier windows: with -y 1 from the newest
// complete checkpoint in -o; if there is none, or without -y, from r->file or from the seed. Then drops the lines of
// main.log and metrics.jsonl from that step on. Collective.
void set_state(Run *r);

// Die if a checkpoint is not of the run's model, of its optimizer, or of one of its steps. path: for the message.
void check_same_model(const Run *r, const GPT2Config *of_checkpoint, const char *path);
void check_same_optimizer(const Run *r, const zero_optimizer *of_checkpoint, const char *path);
void check_step(const Run *r, size_t step, const char *path);

#ifdef __cplusplus
}
#endif
#endif
