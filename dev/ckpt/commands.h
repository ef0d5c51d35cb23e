// The commands of ckpt that have files of their own. Each returns the program's exit status.
#ifndef CKPT_COMMANDS_H
#define CKPT_COMMANDS_H

#include <stddef.h>

// compare.c: prints what differs between two checkpoints or model files, tensor by tensor.
int compare(const char *a, const char *b);

// convert.c: writes a checkpoint or a model file in another form. precision: "fp32", "bf16" or NULL (as it is); master:
// -w, -1: as it is.
int convert(const char *from, const char *to, const char *precision, int master, int average);

// export.c, import.c: a folder of Hugging Face's. tokenizer: a file as tokenizer_open takes it, "bytes", or NULL.
int export_model(const char *from, const char *folder, const char *precision, int average, const char *tokenizer);
int import_model(const char *folder, const char *to, const char *precision);

// tokenizer_files.c: writes the files of a tokenizer into a folder of Hugging Face's, whose model has a vocabulary of
// this size. Returns 0 and the token that ends a text, or -1 and a message.
int export_tokenizer(const char *name, const char *folder, size_t vocab, int *eot, char *err);

#endif
