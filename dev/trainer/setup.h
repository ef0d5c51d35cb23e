// Fills in a Run from its options, in this order (main calls them). All are collective; errors end the job.
#ifndef TRAINER_SETUP_H
#define TRAINER_SETUP_H

#include "trainer/run.h"

#ifdef __cplusplus
extern "C" {
#endif

// Meets the other ranks, chooses this rank's GPU, and shares the host's cores among its ranks.
void choose_device(Run *r);

// Chooses the model, and the defaults of whatever the command line leaves open; r->choice says which.
void choose_model_and_data(Run *r);

// Opens the data, HellaSwag with -h 1, and the tokenizer, and encodes the prompt; the number of steps follows from the
// data.
void open_data(Run *r);

// Takes --micro-batch-order back where it would save no bytes. r->G is known.
void choose_order(Run *r);

// Creates the mesh and the communicators of r.
void create_transport(Run *r);

// Dies if the model, the data, HellaSwag or the tokenizer of a rank has another content than rank 0's.
void check_same_inputs(Run *r);

// Makes and locks the output directory, and begins main.log and metrics.jsonl.
void open_output(Run *r);

#ifdef __cplusplus
}
#endif
#endif
