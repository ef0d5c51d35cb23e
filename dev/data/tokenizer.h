// Tokens to text, to print what a model generates; the vocabulary, for bpe.h, which encodes. See tokenizer.c.
//
// A text is decoded token by token, in order. The result is safe to print: complete UTF-8 characters, newline and tab.
// Errors are messages in err that name the file and the remedy. Nothing is printed or kept outside the Tokenizer.
#ifndef DEV_DATA_TOKENIZER_H
#define DEV_DATA_TOKENIZER_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct Tokenizer Tokenizer;

// path: llm.c's gpt2_tokenizer.bin (version 1 or 2), or a file of ranks as tiktoken has it (r50k_base.tiktoken: lines
// of a token in base64 and its number), to which <|endoftext|> is added; NULL: a token is a byte, as when plain text is
// the training data.
// Returns 0, or -1 and a message.
int tokenizer_open(Tokenizer **tokenizer, const char *path, char err[512]);

// The text of the next token, NUL-terminated, valid until the next call. A character may come with a later token than
// the one that begins it, hence "" is possible. '?' stands for what is not UTF-8, and for a token outside the
// vocabulary.
const char *tokenizer_decode(Tokenizer *t, int token);

// Number of tokens, and the token that stands before and between texts, with which sampling starts: <|endoftext|>, or
// newline when tokens are bytes.
int tokenizer_vocab(const Tokenizer *t);
int tokenizer_eot(const Tokenizer *t);

// The bytes of a token below tokenizer_vocab, and their number.
const unsigned char *tokenizer_bytes(const Tokenizer *t, int token, size_t *n);

// Writes llm.c's gpt2_tokenizer.bin, version 2. Returns 0, or -1 and a message.
int tokenizer_save(const Tokenizer *t, const char *path, char err[512]);

// Frees; NULL is fine.
void tokenizer_close(Tokenizer *t);

#ifdef __cplusplus
}
#endif
#endif
