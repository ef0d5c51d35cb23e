// Text to tokens: GPT-2's byte-pair encoding, with the vocabulary of a Tokenizer. See bpe.c.
//
// Nothing is printed. An encoder is only read: several threads may use one.
#ifndef DEV_DATA_BPE_H
#define DEV_DATA_BPE_H

#include <stddef.h>

#include "data/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct Bpe Bpe;

// t must outlive it. Returns 0, or -1 and a message: the vocabulary lacks a byte, or memory is exhausted.
int bpe_open(Bpe **bpe, const Tokenizer *t, char err[512]);

// Encodes a text. tokens has room for `bytes`. Returns the number of tokens, or SIZE_MAX: memory is exhausted.
size_t bpe_encode(const Bpe *bpe, const char *text, size_t bytes, int *tokens);

// Where a text may be cut at or after `from` so that both parts have the tokens of the whole: at the end of a line that
// ends with an ASCII character that is no white space; `bytes` if there is none.
size_t bpe_cut(const char *text, size_t bytes, size_t from);

// The two tokens that a token was merged from, in pair. Returns 1; 0: it is a byte; -1: no two tokens before it make
// it, or an earlier one has its bytes.
int bpe_pair(const Bpe *bpe, int token, int pair[2]);

// Frees; NULL is fine.
void bpe_close(Bpe *bpe);

#ifdef __cplusplus
}
#endif
#endif
