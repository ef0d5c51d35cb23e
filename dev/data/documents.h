// Documents to tokens: texts, JSONL files, and folders of both, cut into parts that threads can encode independently.
// See documents.c.
//
// Nothing is printed. Errors are messages in err that name the file, for JSONL the line, and the remedy.
#ifndef DEV_DATA_DOCUMENTS_H
#define DEV_DATA_DOCUMENTS_H

#include <stddef.h>
#include <stdint.h>

#include "data/bpe.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct Documents Documents;

// An array that grows; free(tokens) is the caller's.
typedef struct {
    uint16_t *tokens;
    size_t count, room;
} Tokens;

// Returns 0; -1: memory is exhausted.
int tokens_append(Tokens *t, const int *tokens, size_t n);

// Finds the files. Each text is a document; so is the field `field` of each line of a file whose name ends in .jsonl or
// .ndjson. A folder stands for all files in and below it, in the order of their names; names that begin with a dot are
// left out. outputs[num_outputs], the files that will be written, must not be among them, nor lie in such a folder.
// field is kept. Returns 0, or -1 and a message.
int documents_open(Documents **d, char *const *inputs, size_t n, const char *field, char *const *outputs,
                   size_t num_outputs, char err[512]);

size_t documents_files(const Documents *d);
size_t documents_parts(const Documents *d);

// A hash of what the parts are made of (data/content_hash.h). Returns 0, or -1 and a message.
int documents_hash(const Documents *d, uint64_t *hash, char err[512]);

// Appends the tokens of a part, with eot before each document: those of all parts in order are those of all documents.
// May be called by several threads at once. Returns 0, or -1 and a message.
int documents_encode(const Documents *d, size_t part, const Bpe *bpe, int eot, Tokens *out, char err[512]);

// Frees; NULL is fine.
void documents_close(Documents *d);

#ifdef __cplusplus
}
#endif
#endif
