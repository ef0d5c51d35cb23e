// The commands of ckpt that have files of their own. Each returns the program's exit status.
#ifndef CKPT_COMMANDS_H
#define CKPT_COMMANDS_H

#include <stddef.h>

// compare.c: prints what differs between two checkpoints or model files, tensor by tensor.
int compare(const char *a, const char *b);

// convert.c: writes a checkpoint or a model file in another form. precision: "fp32", "bf16" or NULL (as it is); master:
// -w, -1: as it is.
int convert(const char *from, const char *to, const char *precision, int master, int average);

#endif
