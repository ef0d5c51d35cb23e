#include "gpt2/config.h"

#include <stdio.h>
#include <string.h>

#define FAIL(...) (snprintf(err, err_bytes, __VA_ARGS__), -1)

int gpt2_config_check(const GPT2Config *c, char *err, size_t err_bytes) {
    const size_t limit = (size_t)1 << 24;  // of each size; keeps every index of a row in an int
    if (!c->max_seq_len || !c->vocab_size || !c->num_layers || !c->num_heads || !c->channels)
        return FAIL("a model needs at least 1 layer, head, channel, word and position");
    if (c->max_seq_len > limit || c->padded_vocab_size > limit || c->num_layers > limit || c->channels > limit)
        return FAIL("no size of a model may be above %zu", limit);
    if (c->channels % c->num_heads)
        return FAIL("%zu channels cannot be divided among %zu heads: choose a multiple of the heads", c->channels,
                    c->num_heads);
    const size_t head_size = c->channels / c->num_heads;
    if (head_size % GPT2_PACK || head_size > GPT2_MAX_HEAD_SIZE)
        return FAIL("%zu channels in %zu heads make heads of %zu: it must be a multiple of %d, at most %d", c->channels,
                    c->num_heads, head_size, GPT2_PACK, GPT2_MAX_HEAD_SIZE);
    if (c->padded_vocab_size % GPT2_PACK || c->padded_vocab_size < c->vocab_size)
        return FAIL("the padded vocabulary, %zu, must be a multiple of %d and at least the vocabulary, %zu",
                    c->padded_vocab_size, GPT2_PACK, c->vocab_size);
    return 0;
}

// The number after `prefix`, if s is the prefix and a number and nothing else up to a comma or the end; *rest is what
// follows it.
static int parse_number(const char *s, const char *prefix, size_t *number, const char **rest) {
    const size_t n = strlen(prefix);
    if (strncmp(s, prefix, n) || s[n] < '0' || s[n] > '9') return 0;
    size_t value = 0;
    for (s += n; *s >= '0' && *s <= '9'; s++) {
        if (value > ((size_t)1 << 32)) return 0;
        value = value * 10 + (size_t)(*s - '0');
    }
    *number = value;
    *rest = s;
    return *s == '\0' || *s == ',';
}

// custom:l4,h4,c128,v256,t128, in any order.
static int parse_custom(GPT2Config *c, const char *s) {
    const struct {
        const char *prefix;
        size_t *number;
    } fields[] = { { "l", &c->num_layers },
                   { "h", &c->num_heads },
                   { "c", &c->channels },
                   { "v", &c->vocab_size },
                   { "t", &c->max_seq_len } };
    const size_t num_fields = sizeof fields / sizeof fields[0];
    unsigned seen = 0;
    for (;;) {
        const char *rest = NULL;
        size_t i = 0;
        while (i < num_fields && !parse_number(s, fields[i].prefix, fields[i].number, &rest)) i++;
        if (i == num_fields || seen >> i & 1) return 0;
        seen |= 1u << i;
        if (*rest == '\0') return seen == (1u << num_fields) - 1;
        s = rest + 1;
    }
}

int gpt2_config_from_descriptor(GPT2Config *c, const char *descriptor, char *err, size_t err_bytes) {
    static const struct {
        size_t depth, channels, heads;
    } gpt2[] = { { 6, 384, 6 },    { 12, 768, 12 },  { 24, 1024, 16 }, { 36, 1280, 20 },
                 { 48, 1600, 25 }, { 60, 1920, 30 }, { 72, 2880, 30 }, { 84, 3456, 36 } };
    static const struct {
        size_t channels, layers, head_size;
    } gpt3[] = { { 384, 6, 64 },   { 768, 12, 64 },   { 1024, 24, 64 },  { 1536, 24, 96 },  { 2048, 24, 128 },
                 { 2560, 32, 80 }, { 4096, 32, 128 }, { 5140, 40, 128 }, { 12288, 96, 128 } };
    const char *rest = "";
    size_t size = 0;
    memset(c, 0, sizeof *c);
    if ((parse_number(descriptor, "d", &size, &rest) || parse_number(descriptor, "gpt2:d", &size, &rest)) && !*rest) {
        for (size_t i = 0; i < sizeof gpt2 / sizeof gpt2[0]; i++) {
            if (gpt2[i].depth == size)
                *c = (GPT2Config){ 1024, 50257, 0, gpt2[i].depth, gpt2[i].heads, gpt2[i].channels };
        }
        if (!c->channels)
            return FAIL("\"%s\": depths are 6 12 24 36 48 60 72 84; for others use custom:...", descriptor);
    } else if (parse_number(descriptor, "gpt3:c", &size, &rest) && !*rest) {
        for (size_t i = 0; i < sizeof gpt3 / sizeof gpt3[0]; i++) {
            const size_t C = gpt3[i].channels;
            if (C == size) *c = (GPT2Config){ 2048, 50257, 0, gpt3[i].layers, C / gpt3[i].head_size, C };
        }
        if (!c->channels)
            return FAIL("\"%s\": channels are 384 768 1024 1536 2048 2560 4096 12288; for others use custom:...",
                        descriptor);
    } else if (strncmp(descriptor, "custom:", 7) || !parse_custom(c, descriptor + 7)) {
        return FAIL("\"%s\" describes no model: write d12, gpt2:d12, gpt3:c768 or "
                    "custom:l4,h4,c128,v256,t128 (layers, heads, channels, vocabulary, longest sequence)",
                    descriptor);
    }
    c->padded_vocab_size = (c->vocab_size + GPT2_VOCAB_MULTIPLE - 1) / GPT2_VOCAB_MULTIPLE * GPT2_VOCAB_MULTIPLE;
    char why[256];
    if (gpt2_config_check(c, why, sizeof why)) return FAIL("\"%s\": %s", descriptor, why);
    return 0;
}
