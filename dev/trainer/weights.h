// The weights of a run: where they come from, and where they are saved. See weights.c.
#ifndef TRAINER_WEIGHTS_H
#define TRAINER_WEIGHTS_H

#include "trainer/run.h"

#ifdef __cplusplus
extern "C" {
#endif

// Sets the parameters from r->file, or from the seed where there is none. Collective.
void set_parameters(Run *r);

// Writes OUTPUT_DIR/model_STEP.bin, then deletes the model that -nk no longer keeps. Collective.
void write_model(const Run *r, size_t step);

#ifdef __cplusplus
}
#endif
#endif
