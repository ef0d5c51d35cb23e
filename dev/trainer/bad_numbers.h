// What a run does about losses, norms and parameters that are not finite.
#ifndef TRAINER_BAD_NUMBERS_H
#define TRAINER_BAD_NUMBERS_H

#include "trainer/run.h"

#ifdef __cplusplus
extern "C" {
#endif

// Counts steps in a row whose loss or norm is not finite. All ranks pass the same numbers; at --nonfinite-limit of them
// all die with a message that names the first.
void count_nonfinite(Run *r, const StepLine *s);

// Dies if a parameter is not finite: such a model is not published. Collective.
void check_parameters(Run *r, size_t step);

#ifdef __cplusplus
}
#endif
#endif
