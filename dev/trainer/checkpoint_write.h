// Writing checkpoints in the background. See checkpoint_write.c; the files are those of checkpoint_format.h.
//
//     begin_checkpoint      between two steps: takes a snapshot, and lets a thread of each rank write it
//     continue_checkpoint   between all steps: when every rank has written its part, the checkpoint is published
//     finish_checkpoint     at the end: waits until it is
//
// A failure of any rank's thread ends the run in the next of these calls. They are collective.
#ifndef TRAINER_CHECKPOINT_WRITE_H
#define TRAINER_CHECKPOINT_WRITE_H

#include "trainer/run.h"

#ifdef __cplusplus
extern "C" {
#endif

// Decides how much of the state a snapshot holds, all or one array, by the memory that the hosts have left, and
// allocates it. Without -n: one array. Call it once, after the engine was created.
void prepare_checkpoints(Run *r);

// Begins to write the checkpoint of the state before step `step`. Waits for the one before, if that is not on the disk.
// Once it is published, the ones that -nk no longer keeps are deleted.
void begin_checkpoint(Run *r, size_t step);
void continue_checkpoint(Run *r);
void finish_checkpoint(Run *r);

// Returns 1 when no files are being published, or 0 if this takes longer than a few seconds: then the lock of the
// directory must be left to the next run. Not collective; for a run that ends with an error.
int checkpoint_is_settled(void);

// Bytes of all arrays, for each parameter.
size_t checkpoint_bytes_per_parameter(const zero_settings *s);

// What the manifest says of this run: whether it has master weights in fp32 or in two halves; the flags that decide its
// bits, malloc'ed, or NULL.
int has_master_weights(const zero_settings *s);
char *describe_options(const Options *o);

// first_failure, with the rank and the host whose file it is: a disk, or its connection, may be one host's.
int any_file_failed(const Run *r, char *err);

#ifdef __cplusplus
}
#endif
#endif
