// A GPT-2 token is a string of bytes, not of characters. A character outside ASCII may be split over several tokens,
// and an untrained model emits any bytes at all, including those that clear a terminal, move its cursor, or make a log
// file unreadable for tools that expect UTF-8. So the decoder is a small state machine between the bytes and the
// printer: it passes ASCII except control characters, collects the bytes of a longer character until it is complete,
// and writes '?' for every sequence that cannot become one. Control characters (C0 other than newline and tab, DEL, and
// C1) are dropped.
//
// The file: 256 uint32 (20240328, version, number of tokens, in version 2 the end-of-text token; in version 1 that is
// 50256), then for each token its length in one byte, and its bytes. It is kept in memory unchanged, with the offset of
// each token. A file of ranks is brought into the same form.
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "data/durable_file.h"
#include "data/llmc_file.h"
#include "data/tokenizer.h"

#define MAGIC     20240328
#define MAX_VOCAB (1 << 24)

#define FAIL(...) (snprintf(err, 512, __VA_ARGS__), -1)

struct Tokenizer {
    int vocab, eot;
    unsigned char *file;  // the tokens, as in the file; NULL: a token is a byte
    size_t *offset;       // of each token's length byte
    unsigned char byte[256];

    int missing;            // bytes that the current character still needs
    uint32_t code;          // its bits so far
    unsigned char part[4];  // its bytes so far
    int part_bytes;
    char text[262];  // a token has at most 255 bytes, and three of an earlier character may precede them
};

// Reads what is left in the file. The caller frees *bytes, also after a failure.
static int read_rest(FILE *f, unsigned char **bytes, size_t *n) {
    size_t room = 0;
    *n = 0;
    do {
        room = room ? 2 * room : 1 << 20;
        unsigned char *bigger = realloc(*bytes, room);
        if (!bigger) {
            return -1;
        }
        *bytes = bigger;
        *n += fread(*bytes + *n, 1, room - *n, f);
    } while (*n == room);
    return ferror(f) ? -1 : 0;
}

// The six bits of a base64 digit; -1: it is none.
static int base64_digit(unsigned char c) {
    static const char DIGITS[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *at = c != '\0' ? strchr(DIGITS, c) : NULL;
    return at != NULL ? (int)(at - DIGITS) : -1;
}

// Decodes base64 up to another character. Returns the number of bytes.
static size_t decode_base64(const unsigned char **text, unsigned char *out) {
    uint32_t bits = 0;
    size_t n = 0;
    int have = 0;
    for (int digit; (digit = base64_digit(**text)) >= 0 && n < 255; (*text)++) {
        bits = bits << 6 | (uint32_t)digit;
        have += 6;
        if (have < 8) continue;
        have -= 8;
        out[n++] = (unsigned char)(bits >> have);
    }
    while (**text == '=') (*text)++;
    return n;
}

// Reads lines of a token and its number, which must be 0, 1, 2, ... Returns 0, or -1 and a message.
static int load_ranks(Tokenizer *t, FILE *f, const char *path, char err[512]) {
    static const char EOT[] = "<|endoftext|>";
    unsigned char *text = NULL;
    size_t bytes, at = 0, lines = 1;
    rewind(f);
    if (read_rest(f, &text, &bytes) != 0) {
        free(text);
        return FAIL("%.200s: cannot read it (%s)", path, strerror(errno));
    }
    text[bytes] = '\0';  // read_rest leaves room
    for (size_t i = 0; i < bytes; i++) lines += text[i] == '\n';
    t->file = malloc(bytes + 256 * 2 + sizeof EOT);
    t->offset = malloc((lines + 1) * sizeof *t->offset);
    t->vocab = 0;
    const unsigned char *line = text;
    while (t->file && t->offset && *line != '\0') {
        char *end = NULL;
        const size_t n = decode_base64(&line, t->file + at + 1);
        const unsigned long rank = *line == ' ' ? strtoul((const char *)line, &end, 10) : 1;
        if (n == 0 || !end || rank != (unsigned long)t->vocab || *end != '\n') break;
        t->file[at] = (unsigned char)n;
        t->offset[t->vocab++] = at;
        at += 1 + n;
        line = (const unsigned char *)end + 1;
    }
    const int whole = t->file && t->offset && *line == '\0' && t->vocab >= 256;
    if (whole) {
        t->eot = t->vocab;
        t->file[at] = sizeof EOT - 1;
        memcpy(t->file + at + 1, EOT, sizeof EOT - 1);
        t->offset[t->vocab++] = at;
    }
    free(text);
    return whole ? 0
                 : FAIL("%.200s is not a tokenizer file. Use the gpt2_tokenizer.bin that llm.c distributes, or "
                        "tiktoken's r50k_base.tiktoken.",
                        path);
}

static int load(Tokenizer *t, FILE *f, const char *path, char err[512]) {
    int32_t words[LLMC_HEADER_WORDS];
    const uint32_t *header = (const uint32_t *)words;
    size_t bytes;
    if (llmc_read_header(fileno(f), words) != LLMC_HEADER_BYTES || header[0] != MAGIC ||
        fseek(f, LLMC_HEADER_BYTES, SEEK_SET) != 0) {
        return load_ranks(t, f, path, err);
    }
    if (header[1] != 1 && header[1] != 2) {
        return FAIL(
            "%.200s: version %u of the tokenizer format; only 1 and 2 are known. Get a current gpt2_tokenizer.bin.",
            path, header[1]);
    }
    uint32_t eot = header[1] == 1 ? 50256 : header[3];
    if (header[2] > MAX_VOCAB || eot >= header[2]) {
        return FAIL("%.200s: %u tokens, end of text is %u: the header is damaged. Get the file again.", path, header[2],
                    eot);
    }
    t->vocab = (int)header[2];
    t->eot = (int)eot;
    t->offset = malloc((size_t)t->vocab * sizeof *t->offset);
    if (!t->offset || read_rest(f, &t->file, &bytes) != 0) {
        return FAIL("%.200s: cannot read it (%s)", path, strerror(errno));
    }

    size_t at = 0;
    for (int i = 0; i < t->vocab; i++) {
        if (at >= bytes || t->file[at] == 0 || t->file[at] >= bytes - at) {
            return FAIL("%.200s: token %d of %d is %s. The file is truncated or damaged: get it again.", path, i,
                        t->vocab, at < bytes && t->file[at] == 0 ? "empty" : "missing");
        }
        t->offset[i] = at;
        at += 1 + (size_t)t->file[at];
    }
    return 0;
}

int tokenizer_open(Tokenizer **tokenizer, const char *path, char err[512]) {
    *tokenizer = NULL;
    Tokenizer *t = calloc(1, sizeof *t);
    if (!t) {
        return FAIL("out of memory");
    }
    t->vocab = 256;
    t->eot = '\n';
    for (int i = 0; i < 256; i++) t->byte[i] = (unsigned char)i;
    if (path) {
        const int fd = llmc_open(path, err, 512);
        FILE *f = fd != -1 ? fdopen(fd, "rb") : NULL;
        int rc = f ? load(t, f, path, err) : -1;
        if (access(path, F_OK) != 0) {
            rc = FAIL(
                "%.200s: cannot be opened: %s: llm.c's dev/download_starter_pack.sh downloads gpt2_tokenizer.bin; "
                "the tokenizer called bytes needs no file",
                path, strerror(errno));
        }
        if (f) {
            fclose(f);
        }
        if (rc != 0) {
            tokenizer_close(t);
            return rc;
        }
    }
    *tokenizer = t;
    return 0;
}

void tokenizer_close(Tokenizer *t) {
    if (t) {
        free(t->offset);
        free(t->file);
        free(t);
    }
}

const unsigned char *tokenizer_bytes(const Tokenizer *t, int token, size_t *n) {
    if (t->file) {
        *n = t->file[t->offset[token]];
        return t->file + t->offset[token] + 1;
    }
    *n = 1;
    return t->byte + token;
}

int tokenizer_vocab(const Tokenizer *t) { return t->vocab; }

int tokenizer_eot(const Tokenizer *t) { return t->eot; }

int tokenizer_save(const Tokenizer *t, const char *path, char err[512]) {
    const int32_t header[LLMC_HEADER_WORDS] = { MAGIC, 2, t->vocab, t->eot };
    char temporary[4200];
    size_t n, at = LLMC_HEADER_BYTES;
    for (int i = 0; i < t->vocab; i++) {
        tokenizer_bytes(t, i, &n);
        at += 1 + n;
    }
    unsigned char *file = malloc(at);
    if (file == NULL) return FAIL("out of memory");
    memcpy(file, header, sizeof header);
    at = LLMC_HEADER_BYTES;
    for (int i = 0; i < t->vocab; i++) {
        const unsigned char *bytes = tokenizer_bytes(t, i, &n);
        file[at] = (unsigned char)n;
        memcpy(file + at + 1, bytes, n);
        at += 1 + n;
    }
    snprintf(temporary, sizeof temporary, "%.4000s.%ld.tmp", path, (long)getpid());
    const int status = durable_write_bytes(temporary, path, file, at, err, 512);
    free(file);
    return status;
}

// The bits of a complete character: is it one, in its shortest form, and not a control character?
static int is_printable(uint32_t code, int bytes) {
    static const uint32_t smallest[5] = { 0, 0, 0xA0, 0x800, 0x10000 };
    return code >= smallest[bytes] && code <= 0x10FFFF && (code < 0xD800 || code > 0xDFFF);
}

// Takes one byte of the stream; appends what can be printed now to `out` and returns the new end.
static char *put_byte(Tokenizer *t, unsigned char byte, char *out) {
    if (t->missing > 0 && (byte & 0xC0) == 0x80) {
        t->part[t->part_bytes++] = byte;
        t->code = t->code << 6 | (byte & 0x3F);
        if (--t->missing > 0) {
            return out;
        }
        if (is_printable(t->code, t->part_bytes)) {
            memcpy(out, t->part, (size_t)t->part_bytes);
            return out + t->part_bytes;
        }
        if (t->part_bytes > 2 || t->code < 0x80) {
            *out++ = '?';
        }
        return out;
    }
    if (t->missing > 0) {
        t->missing = 0;
        *out++ = '?';
    }
    if (byte >= 0xC0 && byte < 0xF8) {
        t->missing = byte < 0xE0 ? 1 : byte < 0xF0 ? 2 : 3;
        t->code = byte & (0x3F >> t->missing);
        t->part[0] = byte;
        t->part_bytes = 1;
    } else if (byte >= 0x80) {
        *out++ = '?';
    } else if ((byte >= ' ' && byte < 0x7F) || byte == '\n' || byte == '\t') {
        *out++ = (char)byte;
    }
    return out;
}

const char *tokenizer_decode(Tokenizer *t, int token) {
    char *out = t->text;
    if (token == t->eot) {
        t->missing = 0;  // an unfinished character does not reach into the next text
    }
    if (token < 0 || token >= t->vocab) {
        *out++ = '?';
    } else if (!t->file) {
        out = put_byte(t, (unsigned char)token, out);
    } else {
        const unsigned char *bytes = t->file + t->offset[token];
        for (int i = 1; i <= bytes[0]; i++) {
            out = put_byte(t, bytes[i], out);
        }
    }
    *out = '\0';
    return t->text;
}
