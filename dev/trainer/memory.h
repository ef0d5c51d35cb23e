// Does the run fit into memory? Asked before anything of the model is allocated, and when an allocation has failed.
#ifndef TRAINER_MEMORY_H
#define TRAINER_MEMORY_H

#include "trainer/run.h"

#ifdef __cplusplus
extern "C" {
#endif

// Dies if the plan of this run exceeds --memory-limit on any rank, or the memory that is available now on any host or
// GPU (--force 1: goes on). Nothing of the model is allocated yet. Collective.
void check_memory(const Run *r);

// Dies with this message about an allocation that failed, and what would fit.
__attribute__((noreturn)) void die_of_memory(const Run *r, const char *message);

// --plan --fit.
int print_fit(const Run *r);

#ifdef __cplusplus
}
#endif
#endif
