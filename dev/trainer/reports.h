// Everything that a run prints besides its steps. See reports.c. Rank 0 prints.
#ifndef TRAINER_REPORTS_H
#define TRAINER_REPORTS_H

#include "trainer/planner.h"
#include "trainer/run.h"

#ifdef __cplusplus
extern "C" {
#endif

// Micro-batches of a validation, over all ranks: -m, or all that there are.
size_t val_micro_batches(const Run *r);

// Before training: the table of all settings.
void print_header(const Run *r);

// After training: memory and wire bytes, predicted and measured. Collective.
void print_reports(const Run *r);

// --profile: the time of each kind of work on rank 0, beside its floor.
void print_profile(const Run *r);

// Describes this run to the planner.
void describe_run(const Run *r, PlanInput *in);
void free_description(PlanInput *in);

// --plan: what this run would need. Allocates nothing of a model; r->ranks may be any number.
void print_plan(const Run *r);

// Notes what the engine has read from a disk and written to it, when a step begins and after its update. A checkpoint
// changes what the buffers hold, so the step after it is not kept for print_reports.
void note_disk(Run *r, int begin);

// Keeps the wire bytes of the step that was just taken, for print_reports. after_update: of scalars, received since its
// update.
void note_wire(Run *r, uint64_t after_update);

#ifdef __cplusplus
}
#endif
#endif
