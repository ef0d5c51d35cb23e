// A text is cut into pieces by this pattern, the first alternative that matches (GPT-2's encoder.py):
//
//     's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
//
// The last two mean: of the white space before a word, all but its last character is one piece. A piece that is a token
// is done. Otherwise it begins as single bytes, and again and again all pairs of neighbours whose concatenation is the
// token with the lowest number are merged. (GPT-2 numbers its tokens in the order in which they were merged, so a
// token's number is its rank, as in tiktoken, and a list of merges is not needed.) A byte that is not UTF-8 counts as a
// character that is neither letter, number nor white space.
#include <ctype.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "data/bpe.h"
#include "data/unicode_classes.h"

#define NONE INT32_MAX  // no such token

struct Bpe {
    const Tokenizer *tokenizer;
    int *slots;  // open addressing: tokens by the hash of their bytes; -1: free
    size_t mask;
};

static int find(const Bpe *b, const unsigned char *bytes, size_t n) {
    for (size_t i = XXH3_64bits(bytes, n) & b->mask; b->slots[i] >= 0; i = (i + 1) & b->mask) {
        size_t length;
        const unsigned char *token = tokenizer_bytes(b->tokenizer, b->slots[i], &length);
        if (length == n && memcmp(token, bytes, n) == 0) return b->slots[i];
    }
    return NONE;
}

int bpe_open(Bpe **bpe, const Tokenizer *t, char err[512]) {
    const size_t vocab = (size_t)tokenizer_vocab(t);
    size_t slots = 1024;
    while (slots < 2 * vocab) slots *= 2;
    Bpe *b = *bpe = calloc(1, sizeof *b);
    if (b == NULL || (b->slots = malloc(slots * sizeof *b->slots)) == NULL) {
        bpe_close(b);
        *bpe = NULL;
        snprintf(err, 512, "out of memory for %zu tokens", vocab);
        return -1;
    }
    b->tokenizer = t;
    b->mask = slots - 1;
    memset(b->slots, 0xff, slots * sizeof *b->slots);
    for (int id = 0; id < (int)vocab; id++) {
        size_t n;
        const unsigned char *bytes = tokenizer_bytes(t, id, &n);
        // A text that contains "<|endoftext|>" must not end there.
        if ((id == tokenizer_eot(t) && n > 1) || find(b, bytes, n) != NONE) continue;
        size_t i = XXH3_64bits(bytes, n) & b->mask;
        while (b->slots[i] >= 0) i = (i + 1) & b->mask;
        b->slots[i] = id;
    }
    for (int byte = 0; byte < 256; byte++) {
        const unsigned char c = (unsigned char)byte;
        if (find(b, &c, 1) != NONE) continue;
        bpe_close(b);
        *bpe = NULL;
        snprintf(err, 512, "the tokenizer has no token for the byte %d, so it cannot encode text", byte);
        return -1;
    }
    return 0;
}

// ---- pieces ---------------------------------------------------------------------------------------------------------

enum kind { SPACE, LETTER, NUMBER, OTHER, END };

static int in_table(const uint32_t table[][2], size_t n, uint32_t code) {
    size_t low = 0;
    while (n > 0) {  // the first range that does not end below the code is in [low, low + n]
        const size_t half = n / 2;
        if (table[low + half][1] < code)
            low += half + 1, n -= half + 1;
        else
            n = half;
    }
    return table[low][0] <= code && code <= table[low][1];
}

// The kind of the character at text[at], and its length.
static enum kind kind_at(const unsigned char *text, size_t bytes, size_t at, size_t *length) {
    *length = 1;
    if (at >= bytes) return END;
    const unsigned char c = text[at];
    if (c < 0x80) return isalpha(c) ? LETTER : isdigit(c) ? NUMBER : c == ' ' || (c >= 9 && c <= 13) ? SPACE : OTHER;
    const size_t n = c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : 2;
    uint32_t code = c & (0x7fu >> n);
    if (c < 0xc2 || c > 0xf4 || n > bytes - at) return OTHER;
    for (size_t i = 1; i < n; i++) {
        if ((text[at + i] & 0xc0) != 0x80) return OTHER;
        code = code << 6 | (text[at + i] & 0x3fu);
    }
    *length = n;
    if (code == 0x85 || code == 0xa0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200a) || code == 0x2028 ||
        code == 0x2029 || code == 0x202f || code == 0x205f || code == 0x3000)
        return SPACE;
    if (in_table(LETTERS, sizeof LETTERS / sizeof *LETTERS - 1, code)) return LETTER;
    return in_table(NUMBERS, sizeof NUMBERS / sizeof *NUMBERS - 1, code) ? NUMBER : OTHER;
}

// Where the piece ends that begins at `at`.
static size_t piece_end(const unsigned char *text, size_t bytes, size_t at) {
    static const char *const CONTRACTIONS[] = { "'s", "'t", "'re", "'ve", "'m", "'ll", "'d" };
    for (size_t i = 0; text[at] == '\'' && i < sizeof CONTRACTIONS / sizeof *CONTRACTIONS; i++) {
        const size_t n = strlen(CONTRACTIONS[i]);
        if (n <= bytes - at && memcmp(text + at, CONTRACTIONS[i], n) == 0) return at + n;
    }
    size_t length, last = at, end = at + (text[at] == ' ');
    enum kind first = kind_at(text, bytes, end, &length);
    if (first == END || first == SPACE) {
        end = at;
        first = SPACE;
    }
    while (kind_at(text, bytes, end, &length) == first) {
        last = end;
        end += length;
    }
    return first == SPACE && end < bytes && last > at ? last : end;
}

size_t bpe_cut(const char *text, size_t bytes, size_t from) {
    const unsigned char *t = (const unsigned char *)text;
    for (size_t at = from > 0 ? from : 1; at < bytes; at++)
        if ((t[at] == '\n' || t[at] == '\r') && t[at - 1] < 0x80 && !isspace(t[at - 1])) return at;
    return bytes;
}

// ---- merges ---------------------------------------------------------------------------------------------------------

// Encodes a piece with the tokens below a number; NONE: with all of them. ranks and starts have room for n + 1.
static size_t merge(const Bpe *b, const unsigned char *piece, size_t n, int below, int *ranks, size_t *starts,
                    int *tokens) {
    size_t parts = n;  // part i is piece[starts[i]] to piece[starts[i + 1]]; ranks[i]: of parts i and i + 1 together
    for (size_t i = 0; i <= n; i++) starts[i] = i;
    for (size_t i = 0; i < n; i++) ranks[i] = i + 1 < n ? find(b, piece + i, 2) : NONE;
    for (;;) {
        int lowest = NONE;
        for (size_t i = 0; i < parts; i++) lowest = ranks[i] < lowest ? ranks[i] : lowest;
        if (lowest >= below) break;
        size_t to = 0;
        for (size_t i = 0; i < parts; i++, to++) {
            const int merged = ranks[i] == lowest;
            starts[to] = starts[i];
            ranks[to] = merged ? -1 : ranks[i];  // -1: this part is new, its ranks are not known
            i += merged;
        }
        starts[to] = n;
        parts = to;
        for (size_t i = 0; i < parts; i++) {
            const int other = i + 1 < parts && ranks[i + 1] == -1;
            if (ranks[i] == -1 || other)
                ranks[i] = i + 1 < parts ? find(b, piece + starts[i], starts[i + 2] - starts[i]) : NONE;
        }
    }
    for (size_t i = 0; i < parts; i++) tokens[i] = find(b, piece + starts[i], starts[i + 1] - starts[i]);
    return parts;
}

size_t bpe_encode(const Bpe *b, const char *text, size_t bytes, int *tokens) {
    const unsigned char *t = (const unsigned char *)text;
    int *ranks = NULL;
    size_t *starts = NULL, room = 0, count = 0;
    for (size_t at = 0, end; at < bytes; at = end) {
        end = piece_end(t, bytes, at);
        const int whole = find(b, t + at, end - at);
        if (whole != NONE) {
            tokens[count++] = whole;
            continue;
        }
        if (end - at + 1 > room) {
            room = 2 * (end - at + 1);
            free(ranks);
            free(starts);
            ranks = malloc(room * sizeof *ranks);
            starts = malloc(room * sizeof *starts);
            if (ranks == NULL || starts == NULL) {
                count = SIZE_MAX;
                break;
            }
        }
        count += merge(b, t + at, end - at, NONE, ranks, starts, tokens + count);
    }
    free(ranks);
    free(starts);
    return count;
}

int bpe_pair(const Bpe *b, int token, int pair[2]) {
    enum { LONGEST = 255 };  // a token's length is one byte in its file
    int ranks[LONGEST + 1], tokens[LONGEST];
    size_t starts[LONGEST + 1], n;
    const unsigned char *bytes = tokenizer_bytes(b->tokenizer, token, &n);
    if (n > LONGEST || find(b, bytes, n) != token) return -1;
    if (n == 1) return 0;
    if (merge(b, bytes, n, token, ranks, starts, tokens) != 2) return -1;
    memcpy(pair, tokens, 2 * sizeof *pair);
    return 1;
}

void bpe_close(Bpe *b) {
    if (b == NULL) return;
    free(b->slots);
    free(b);
}
