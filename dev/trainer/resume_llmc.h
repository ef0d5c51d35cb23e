// -y 1 in a directory of llm.c's: its checkpoints (checkpoint_llmc.h) are continued. See dev/docs/checkpoints.md.
#ifndef TRAINER_RESUME_LLMC_H
#define TRAINER_RESUME_LLMC_H

#include "trainer/run.h"

#ifdef __cplusplus
extern "C" {
#endif

// Verifies llm.c's checkpoint of a step in -o and loads it, on any number of ranks. Returns 1; 0 and a message in
// err[ERR_BYTES] if it is not complete. Dies if it is of another model or optimizer than the run. Collective.
int resume_llmc(Run *r, size_t step, char *err);

#ifdef __cplusplus
}
#endif
#endif
