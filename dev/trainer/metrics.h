// metrics.jsonl in the output directory: every number of every step, one JSON record a line. dev/docs/metrics.md has
// the fields and their units.
//
// A step is cut into phases, which follow each other on the run's stream:
//
//     data, forward, backward    of each micro-batch: reading it; the passes, with the collectives of their units
//     norm                       waiting until all ranks have reduced all gradients; the norm
//     update                     the optimizer; before stage 3 also the all-gather of the new parameters
//     losses                     gathering the losses, or waiting for that (losses.h); before the update if it depends
//                                on them (-sl, -sg)
//
// At each change of phase an event is recorded, which costs a microsecond and waits for nothing. The times are read
// where the host has waited for the stream anyway: before it gathers the losses, so that each rank can tell the others
// with its losses how long it computed in this step, and at the end of the step. No collective is added. Time is
// counted on all ranks with -o; rank 0 writes. Nothing here ends a run: what cannot be measured is null, and a line
// that cannot be written is left out (trainer/log.h).
#ifndef TRAINER_METRICS_H
#define TRAINER_METRICS_H

#include <stddef.h>
#include <stdio.h>

#include "trainer/run.h"

#ifdef __cplusplus
extern "C" {
#endif

// METRICS_END: the end of the step.
enum metrics_phase {
    METRICS_DATA,
    METRICS_FORWARD,
    METRICS_BACKWARD,
    METRICS_NORM,
    METRICS_LOSSES,
    METRICS_UPDATE,
    METRICS_END
};

typedef struct Metrics Metrics;

// With -o: begins the file, or with -y 1 opens it, and sets r->metrics. Then rewind drops the records of the steps that
// come again. 0, or -1 and a message in err. create: before the first step, but after the engine; on all ranks.
int metrics_create(Run *r, char *err, size_t err_bytes);
int metrics_rewind(Metrics *m, size_t step, char *err, size_t err_bytes);
void metrics_destroy(Metrics *m);

// All take NULL, and do nothing then.
void metrics_begin_step(Metrics *m);
void metrics_enter(Metrics *m, enum metrics_phase phase);  // after the one that is entered before
void metrics_sync(Metrics *m);                             // to the disk

// Returns the seconds in which this rank has read data and computed in this step, without waiting for others. After the
// host has waited for the norm.
double metrics_computing(Metrics *m);

// Records. What went wrong is in err, as trainlog_write leaves it; "": nothing. They do nothing but on rank 0.
void metrics_run(Run *r, char *err, size_t err_bytes);  // once, before the first step
void metrics_step(Run *r, const StepLine *s, char *err, size_t err_bytes);
void metrics_value(Run *r, const char *kind, const char *name, double value, char *err, size_t err_bytes);

// A record with other fields: begin writes its kind and the number of steps that were taken, and returns where to write
// the fields, each with a comma before it; NULL: there is no file. end appends it to the file.
FILE *metrics_begin(Metrics *m, const char *kind);
void metrics_end(Metrics *m, char *err, size_t err_bytes);

#ifdef __cplusplus
}
#endif
#endif
