// Byte-pair encoding with a small vocabulary whose tokens would join what must stay apart: text that is cut in another
// way than GPT-2's pattern cuts it, or merged in another order, has other tokens. (The whole of GPT-2's vocabulary was
// compared with tiktoken, on prose, code and random Unicode: dev/docs/text.md.)
#include "data/bpe.h"
#include "test/unit/data_files.h"

static const char *const MERGED[] = { "he",
                                      "ll",
                                      "hell",
                                      "hello",
                                      " w",
                                      "or",
                                      "  ",
                                      " b",
                                      "\n\n",
                                      "1a",
                                      "a1",
                                      "\xc3\xa9",
                                      "\xc3\xa9"
                                      "a",
                                      "!b",
                                      "\xc2\xa0",
                                      "\xc2\xa0"
                                      "b",
                                      "\xd9\xa1",
                                      "1\xd9\xa1",
                                      "'l",
                                      "<|" };
enum {
    HE = 256,
    LL,
    HELL,
    HELLO,
    _W,
    OR,
    SPACES,
    _B,
    LINES,
    ONE_A,
    A_ONE,
    E_ACUTE,
    E_ACUTE_A,
    BANG_B,
    NBSP,
    NBSP_B,
    ARABIC_1,
    NUMBERS,
    QUOTE_L,
    EOT_BEGIN,
    EOT
};

// A tokenizer file of llm.c's, or, base64, of tiktoken's.
static const char *write_tokenizer(int tiktoken) {
    static const char DIGITS[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    static unsigned char file[16384];
    const uint32_t header[256] = { 20240328, 2, EOT + 1, EOT };
    memcpy(file, header, sizeof header);
    size_t n = tiktoken ? 0 : sizeof header;
    for (int id = 0; id <= EOT - tiktoken; id++) {
        const unsigned char byte[4] = { (unsigned char)id };
        const char *token = id < 256 ? (const char *)byte : id == EOT ? "<|endoftext|>" : MERGED[id - 256];
        const size_t length = id < 256 ? 1 : strlen(token);
        if (!tiktoken) {
            file[n++] = (unsigned char)length;
            memcpy(file + n, token, length);
            n += length;
            continue;
        }
        for (size_t i = 0; i < length; i += 3) {
            unsigned bits = 0;
            for (size_t k = 0; k < 3; k++) bits = bits << 8 | (i + k < length ? (unsigned char)token[i + k] : 0);
            for (size_t k = 0; k < 4; k++)
                file[n++] = (unsigned char)(i + k > length ? '=' : DIGITS[bits >> (18 - 6 * k) & 63]);
        }
        n += (size_t)sprintf((char *)file + n, " %d\n", id);
    }
    return write_file(tiktoken ? "ranks.tiktoken" : "tokenizer.bin", file, n);
}

static const struct {
    const char *text;
    int count, tokens[10];
} EXPECTED[] = {
    { "hello", 1, { HELLO } },
    { "hellhello", 2, { HELL, HELLO } },
    { "lllhe", 3, { LL, 'l', HE } },  // of equal pairs the first is merged
    { " worn", 3, { _W, OR, 'n' } },
    { "a  b", 3, { 'a', ' ', _B } },  // the last blank belongs to the word
    { "   b", 2, { SPACES, _B } },
    { "a  ", 2, { 'a', SPACES } },  // no word follows
    { "\n\n", 1, { LINES } },
    { "\n\nb", 3, { '\n', '\n', 'b' } },  // the last line break stays alone, and is not of the word
    { "1a1", 3, { '1', 'a', '1' } },      // letters and numbers apart
    { "!b", 2, { '!', 'b' } },
    { "\xc3\xa9"
      "a",
      1,
      { E_ACUTE_A } },  // a letter above ASCII
    { "\xc2\xa0"
      "b",
      2,
      { NBSP, 'b' } },                // white space above ASCII
    { "1\xd9\xa1", 1, { NUMBERS } },  // a number above ASCII
    { "he'll", 3, { HE, '\'', LL } },
    { "'lb", 3, { '\'', 'l', 'b' } },  // no contraction
    { "'l", 2, { '\'', 'l' } },
    { " 'll", 3, { ' ', '\'', LL } },
    { "\xff\xc3", 2, { 0xff, 0xc3 } },  // not UTF-8
    { "<|e", 2, { EOT_BEGIN, 'e' } },
    { "", 0, { 0 } },
};

static void test_text_has_other_tokens(void) {
    for (int kind = 0; kind < 2; kind++) {
        Tokenizer *t;
        Bpe *b;
        char err[512];
        REQUIRE(tokenizer_open(&t, write_tokenizer(kind), err) == 0);
        CHECK(tokenizer_vocab(t) == EOT + 1 && tokenizer_eot(t) == EOT);
        REQUIRE(bpe_open(&b, t, err) == 0);
        for (size_t i = 0; i < LEN(EXPECTED); i++) {
            int tokens[32];
            const char *text = EXPECTED[i].text;
            const size_t n = bpe_encode(b, text, strlen(text), tokens);
            CHECK(n == (size_t)EXPECTED[i].count && !memcmp(tokens, EXPECTED[i].tokens, n * sizeof *tokens),
                  "\"%s\": %zu tokens, the first ones are %d %d", text, n, tokens[0], tokens[1]);
        }
        int tokens[32];
        CHECK_EQ(bpe_encode(b, "<|endoftext|>", 13, tokens), 12);  // a text does not end a document
        bpe_close(b);
        tokenizer_close(t);
    }
}

// Pieces of a million bytes, and texts that are encoded in parts.
static void test_long_text_takes_for_ever(void) {
    enum { N = 1000000 };
    Tokenizer *t;
    Bpe *b;
    char err[512], *text = malloc(N);
    int *tokens = malloc(N * sizeof *tokens), *parts = malloc(N * sizeof *parts);
    REQUIRE(tokenizer_open(&t, write_tokenizer(0), err) == 0 && bpe_open(&b, t, err) == 0);
    memset(text, 'l', N);
    CHECK_EQ(bpe_encode(b, text, N, tokens), N / 2);
    static const char LINE[] = "hello\n\n  he worn, 1a 'll\n \nb";
    for (size_t i = 0; i < N; i++) text[i] = LINE[i % (sizeof LINE - 1)];
    const size_t n = bpe_encode(b, text, N, tokens);
    size_t count = 0;
    for (size_t at = 0, cut; at < N; at = cut) {
        cut = bpe_cut(text, N, at + 1000);
        count += bpe_encode(b, text + at, cut - at, parts + count);
    }
    CHECK(count == n && memcmp(tokens, parts, n * sizeof *tokens) == 0);
    CHECK_EQ(bpe_cut("a\n\nb", 4, 0), 1);
    CHECK_EQ(bpe_cut("a\n\nb", 4, 2), 4);
    bpe_close(b);
    tokenizer_close(t);
    free(text);
    free(tokens);
    free(parts);
}

static void test_saved_tokenizer_differs(void) {
    static unsigned char wanted[16384], got[16384];
    char err[512] = "", saved[512];
    snprintf(saved, sizeof saved, "%s", path("saved.bin"));
    for (int ranks = 0; ranks < 2; ranks++) {
        Tokenizer *t;
        REQUIRE(tokenizer_open(&t, write_tokenizer(ranks), err) == 0);
        CHECK(tokenizer_save(t, saved, err) == 0, "%s", err);
        FILE *a = fopen(write_tokenizer(0), "rb"), *b = fopen(saved, "rb");
        REQUIRE(a != NULL && b != NULL);
        const size_t n = fread(wanted, 1, sizeof wanted, a);
        CHECK_EQ(fread(got, 1, sizeof got, b), n);
        CHECK_BYTES(got, wanted, n);
        fclose(a);
        fclose(b);
        CHECK_EQ(tokenizer_save(t, "/nonexistent/x", err), -1);
        CHECK(strstr(err, "/nonexistent/x") != NULL, "%s", err);
        tokenizer_close(t);
    }
}

static void test_damaged_ranks_are_used(void) {
    static const char *const FILES[] = { "IQ== 0\nIg== 1\n", "IQ== 0\nIg== 2\n", "!!!! 0\n", "IQ==\n", "IQ== x\n", "" };
    Tokenizer *t;
    char err[512];
    for (size_t i = 0; i < LEN(FILES); i++) {
        CHECK_EQ(tokenizer_open(&t, write_file("bad.tiktoken", FILES[i], strlen(FILES[i])), err), -1);
        CHECK(strstr(err, "gpt2_tokenizer.bin") != NULL, "%s", err);
    }
}

static void test_vocabulary_without_all_bytes_encodes(void) {
    const uint32_t header[256] = { 20240328, 2, 2, 1 };
    unsigned char file[sizeof header + 4] = { 0 };
    Tokenizer *t;
    Bpe *b;
    char err[512];
    memcpy(file, header, sizeof header);
    memcpy(file + sizeof header, "\1a\1b", 4);
    REQUIRE(tokenizer_open(&t, write_file("two.bin", file, sizeof file), err) == 0);
    CHECK_EQ(bpe_open(&b, t, err), -1);
    CHECK(strstr(err, "no token for the byte 0") != NULL, "%s", err);
    tokenizer_close(t);
}

int main(int argc, char **argv) {
    test_start(&argc, argv);
    make_dir();
    RUN(test_text_has_other_tokens);
    RUN(test_long_text_takes_for_ever);
    RUN(test_saved_tokenizer_differs);
    RUN(test_damaged_ranks_are_used);
    RUN(test_vocabulary_without_all_bytes_encodes);
    remove_dir();
    return test_finish();
}
