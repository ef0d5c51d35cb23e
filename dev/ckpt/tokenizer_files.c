// The files of a tokenizer as Hugging Face's GPT2Tokenizer reads them: vocab.json, merges.txt, tokenizer_config.json.
//
// Text there is made of characters, so each byte has one that can be printed: itself if it can, else one of those from
// U+0100 on, in order. So " a" is "Ġa". The merges follow from the numbers of the tokens (bpe_pair).
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/commands.h"
#include "ckpt/output.h"
#include "ckpt/source.h"
#include "data/bpe.h"
#include "data/durable_file.h"

#define FAIL(...) (snprintf(err, ERR_BYTES, __VA_ARGS__), -1)

// The characters of the bytes of a token, with \ before what JSON wants it.
static void print_token(FILE *f, const Tokenizer *t, int token, int json) {
    size_t n;
    const unsigned char *bytes = tokenizer_bytes(t, token, &n);
    for (size_t i = 0; i < n; i++) {
        const unsigned b = bytes[i];
        const int printable = (b > ' ' && b < 0x7f) || (b > 0xa0 && b != 0xad);
        // Not printable are 0 to 0x20, 0x7f to 0xa0, 0xad: 33, 34 and 1 of them.
        const unsigned code = printable ? b : 256 + (b <= ' ' ? b : b == 0xad ? 67 : b - 0x7f + 33);
        if (json && (b == '"' || b == '\\')) fputc('\\', f);
        if (code >= 0x80) fputc((int)(0xc0 | code >> 6), f);
        fputc((int)(code < 0x80 ? code : 0x80 | (code & 0x3f)), f);
    }
}

static void print_vocabulary(FILE *f, const Tokenizer *t) {
    for (int token = 0; token < tokenizer_vocab(t); token++) {
        fputs(token == 0 ? "{\"" : ", \"", f);
        print_token(f, t, token, 1);
        fprintf(f, "\": %d", token);
    }
    fputs("}\n", f);
}

static int print_merges(FILE *f, const Tokenizer *t, const Bpe *bpe, const char *name, char *err) {
    fputs("#version: 0.2\n", f);
    for (int token = 0; token < tokenizer_vocab(t); token++) {
        int pair[2];
        size_t n;
        tokenizer_bytes(t, token, &n);
        if (token == tokenizer_eot(t) && n > 1) continue;
        const int status = bpe_pair(bpe, token, pair);
        if (status < 0)
            return FAIL("%s: token %d is not merged from two before it: it is not a byte-pair encoding", name, token);
        if (status == 0) continue;
        print_token(f, t, pair[0], 0);
        fputc(' ', f);
        print_token(f, t, pair[1], 0);
        fputc('\n', f);
    }
    return 0;
}

static void print_config(FILE *f, const Tokenizer *t) {
    static const char *const KEYS[] = { "bos_token", "eos_token", "unk_token" };
    fputs("{\n  \"add_prefix_space\": false,\n", f);
    for (int i = 0; i < 3; i++) {
        fprintf(f, "  \"%s\": \"", KEYS[i]);
        print_token(f, t, tokenizer_eot(t), 1);
        fputs("\",\n", f);
    }
    fputs("  \"tokenizer_class\": \"GPT2Tokenizer\"\n}\n", f);
}

int export_tokenizer(const char *name, const char *folder, size_t vocab, int *eot, char *err) {
    static const char *const FILES[] = { "vocab.json", "merges.txt", "tokenizer_config.json" };
    Tokenizer *t = NULL;
    Bpe *bpe = NULL;
    int status = tokenizer_open(&t, strcmp(name, "bytes") != 0 ? name : NULL, err);
    if (status == 0 && (size_t)tokenizer_vocab(t) != vocab)
        status = FAIL("--tokenizer %s: has %d tokens, but the model's vocabulary is %zu", name, tokenizer_vocab(t),
                      vocab);
    if (status == 0) status = bpe_open(&bpe, t, err);
    for (int i = 0; i < 3 && status == 0; i++) {
        char path[CHECKPOINT_PATH], temporary[CHECKPOINT_PATH + 32], *text = NULL;
        size_t bytes;
        FILE *f = open_memstream(&text, &bytes);
        snprintf(path, sizeof path, "%.4000s/%s", folder, FILES[i]);
        if (f == NULL) status = FAIL("out of memory");
        if (status == 0 && i == 0) print_vocabulary(f, t);
        if (status == 0 && i == 1) status = print_merges(f, t, bpe, name, err);
        if (status == 0 && i == 2) print_config(f, t);
        if (f != NULL && fclose(f) != 0 && status == 0) status = FAIL("out of memory");
        if (status == 0) status = output_name(temporary, sizeof temporary, path, err);
        if (status == 0) status = durable_write_text(temporary, path, text, err, ERR_BYTES);
        free(text);
    }
    if (status == 0) *eot = tokenizer_eot(t);
    bpe_close(bpe);
    tokenizer_close(t);
    return status;
}
