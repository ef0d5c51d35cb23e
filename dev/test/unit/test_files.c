// Tests of files as they are: pipes and devices, patterns and links, binary files, and the tool that makes shards. Each
// is named after the fault that it prevents. Files are made in a fresh temporary directory.
#include "data/file_list.h"
#include "data/tokenizer.h"
#include "test/unit/data_files.h"

#define main tokenize_main
#include "data/tokenize_text.c"
#undef main

static void test_binary_file_is_trained_on(void) {
    static char text[20000];
    static const struct {
        const char *begin, *word;
    } kinds[] = { { "\x1f\x8b\b", "gunzip" },
                  { "\x28\xb5\x2f\xfd", "unzstd" },
                  { "\xfd"
                    "7zXZ",
                    "unxz" },
                  { "BZh9", "bunzip2" },
                  { "PK\3\4", "zip" },
                  { "\xff\xfeg", "iconv" },
                  { "\xfe\xff", "UTF-16" },
                  { "PAR1", "Parquet" },
                  { "\x93NUMPY", "NumPy" },
                  { "%PDF-1.7", "PDF" } };
    for (size_t i = 0; i < LEN(kinds); i++) {
        memset(text, 'x', sizeof text);
        memcpy(text, kinds[i].begin, strlen(kinds[i].begin));
        must_refuse(config(write_file("kind", text, sizeof text), 1, 4), "kind", kinds[i].word);
    }
    static const size_t places[] = { 1023, 1024, 4096, 12345, 19999 };
    for (size_t i = 0; i < LEN(places); i++) {  // beyond the first KB
        memset(text, 'x', sizeof text);
        text[places[i]] = 0;
        must_refuse(config(write_file("nul", text, sizeof text), 1, 4), "nul", "NUL");
    }
}

// Each of these made a program wait for ever, or read something that has no end.
static void test_what_is_no_file_is_opened(void) {
    char err[512], loop[512], fifo[512], sock[512];
    Tokenizer *t;
    snprintf(fifo, sizeof fifo, "%s", path("fifo"));
    snprintf(loop, sizeof loop, "%s", path("loop"));
    snprintf(sock, sizeof sock, "%s", path("not_there/x"));
    CHECK_EQ(mkfifo(fifo, 0600), 0);
    CHECK_EQ(symlink("loop", loop), 0);
    const struct {
        const char *name, *word;
    } cases[] = { { fifo, "a pipe" },
                  { "/dev/zero", "a device" },
                  { dir, "a directory" },
                  { loop, "symbolic links" },
                  { sock, "No such file" } };
    for (size_t i = 0; i < LEN(cases); i++) {
        CHECK_EQ(tokenizer_open(&t, cases[i].name, err), -1);
        CHECK(strstr(err, cases[i].word) && strstr(err, cases[i].name), "%s", err);
        if (i < 4) must_refuse(config(cases[i].name, 1, 4), cases[i].word, cases[i].name);
        char *argv[] = { "", "bytes", (char *)path("t"), (char *)path("v"), (char *)cases[i].name, NULL };
        CHECK_EQ(tokenize_main(5, argv), 1);
    }
}

static void test_name_is_taken_for_a_pattern(void) {
    good_shard("a[1].bin", 41, 0);
    good_shard("a1.bin", 21, 0);
    good_shard("back\\slash.bin", 61, 0);
    CHECK_EQ(setenv("HOME", dir, 1), 0);
    const struct {
        const char *pattern;
        size_t files, tokens;
    } cases[] = { { path("a[1].bin"), 1, 41 }, { path("a[12].bin"), 1, 21 }, { "~/a[1].bin", 1, 41 },
                  { "~/a1.bin", 1, 21 },       { "~/a*.bin", 2, 62 },        { path("back\\slash.bin"), 1, 61 } };
    for (size_t i = 0; i < LEN(cases); i++) {
        Loader *l = must_open(config(cases[i].pattern, 1, 4));
        CHECK_EQ(loader_info(l).shards, cases[i].files);
        CHECK_EQ(loader_info(l).tokens, cases[i].tokens);
        loader_close(l);
    }
}

// As root a directory is always readable, so this is tried as another user.
static void test_directory_is_left_out(void) {
    char locked[512], word[600];
    snprintf(locked, sizeof locked, "%s", path("part_2"));
    snprintf(word, sizeof word, "%s: Permission denied", locked);
    CHECK(mkdir(path("part_1"), 0755) == 0 && mkdir(locked, 0755) == 0);
    good_shard("part_1/x.bin", 41, 0);
    good_shard("part_2/x.bin", 41, 0);
    CHECK(chmod(dir, 0755) == 0 && chmod(locked, 0) == 0);
    const uid_t user = geteuid();
    CHECK(user != 0 || seteuid(65534) == 0);
    must_refuse(config(path("part_?/?.bin"), 1, 4), word, "readable");
    must_refuse(config(path("part_?/x.bin"), 1, 4), "part_2/x.bin: Permission denied", "readable");
    CHECK(seteuid(user) == 0 && chmod(locked, 0755) == 0);
    Loader *l = must_open(config(path("part_?/?.bin"), 1, 4));
    CHECK_EQ(loader_info(l).shards, 2);
    loader_close(l);
}

static void test_validation_file_is_trained_on(void) {
    good_shard("v1.bin", 41, 0);
    good_shard("v2.bin", 41, 0);
    good_shard("w.bin", 41, 0);
    CHECK(symlink("v1.bin", path("s1.bin")) == 0 && link(path("v2.bin"), path("s2.bin")) == 0);
    const struct {
        const char *a, *b;
        int same;
    } cases[] = { { path("v1.bin"), path("s1.bin"), 1 },
                  { path("v?.bin"), path("s?.bin"), 1 },
                  { path("v*.bin"), path("w.bin"), 0 },
                  { path("v?.bin"), path("s1.bin"), -1 },
                  { path("v1.bin"), path("[vw]*.bin"), -1 } };
    for (size_t i = 0; i < LEN(cases); i++) {
        char err[512] = "";
        CHECK_EQ(file_lists_same(cases[i].a, cases[i].b, err), cases[i].same);
        CHECK((strstr(err, "are the same file") != NULL) == (cases[i].same < 0), "%s", err);
    }
}

static void test_documents_are_counted_wrong(void) {
    enum { COUNT = 20000000, LENGTH = 1000 };  // beyond what is read completely
    uint16_t *tokens = calloc(COUNT, sizeof *tokens);
    char err[512];
    size_t documents;
    int estimated;
    for (size_t i = 0; i < COUNT; i += LENGTH) tokens[i] = 50256;
    for (int large = 0; large < 2; large++) {
        const int count = large ? COUNT : 2500;
        const char *p = write_shard_file("documents.bin", 20240520, 1, count, 0, 0);
        FILE *f = fopen(p, "r+b");
        CHECK(fseeko(f, 1024, SEEK_SET) == 0 && fwrite(tokens, 2, (size_t)count, f) == (size_t)count);
        fclose(f);
        Loader *l = must_open(config(p, 1, 4));
        CHECK_EQ(loader_documents(l, 50256, &documents, &estimated, err), 0);
        CHECK_EQ(estimated, large);
        if (large)
            CHECK(documents > COUNT / LENGTH * 98 / 100 && documents < COUNT / LENGTH * 102 / 100, "%zu", documents);
        else
            CHECK_EQ(documents, 3);
        loader_close(l);
        unlink(p);
    }
    free(tokens);
    write_file("doc_1.txt", "a text of one document", 22);
    write_file("doc_2.txt", "and a second one", 16);
    LoaderConfig c = config(path("doc_*.txt"), 1, 4);
    Loader *l = must_open(c);
    CHECK_EQ(loader_documents(l, 50256, &documents, &estimated, err), 0);
    CHECK_EQ(documents, 2);
    loader_close(l);
}

static void test_shards_differ_from_text(void) {
    enum { N = 2345 };
    char text[N], train[512], val[512], source[512], document[512];
    int a[8], b[8], ta[8], tb[8];
    for (int i = 0; i < N; i++) {
        text[i] = (char)(i * 31 % 255 + 1);
    }
    text[0] = '\n';  // the tool puts it before the document
    snprintf(source, sizeof source, "%s", write_file("source.txt", text, N));
    snprintf(document, sizeof document, "%s", write_file("document.txt", text + 1, N - 1));
    snprintf(train, sizeof train, "%s", path("bytes_train.bin"));
    snprintf(val, sizeof val, "%s", path("bytes_val.bin"));
    char *argv[] = { "", "bytes", train, val, document, NULL };
    CHECK_EQ(tokenize_main(5, argv), 0);
    for (int part = 0; part < 2; part++) {
        LoaderConfig c = config(source, 2, 4);
        c.vocab = 256;
        c.begin_percent = part ? 90 : 0;
        c.end_percent = part ? 100 : 90;
        Loader *from_text = must_open(c);
        Loader *from_shard = must_open(config(part ? val : train, 2, 4));
        CHECK_EQ(loader_info(from_text).tokens, loader_info(from_shard).tokens);
        for (size_t j = 0; j < loader_num_samples(from_text); j++) {
            must_read(from_text, j, a, ta);
            must_read(from_shard, j, b, tb);
            CHECK_BYTES(a, b, sizeof a);
            CHECK_BYTES(ta, tb, sizeof ta);
        }
        loader_close(from_text);
        loader_close(from_shard);
    }
    char *bad[] = { "", "bytes", "/nonexistent/train.bin", val, document, NULL };
    CHECK_EQ(tokenize_main(5, bad), 1);
}

static void test_tool_destroys_its_input(void) {
    char a[512], b[512], c[512], l[512], temporary[512], text[512];
    struct stat before, after;
    memset(text, 'x', sizeof text);
    snprintf(a, sizeof a, "%s", write_file("tool", text, sizeof text));
    snprintf(b, sizeof b, "%s", path("tool_b"));
    snprintf(c, sizeof c, "%s", path("tool_c"));
    snprintf(l, sizeof l, "%s", path("tool_link"));
    snprintf(temporary, sizeof temporary, "%s", write_file("tool_b.tmp", text, sizeof text));
    CHECK_EQ(symlink("tool", l), 0);
    CHECK_EQ(stat(a, &before), 0);
    char *const cases[][3] = { { a, a, b }, { a, b, a },           { a, l, b },           { l, b, a },
                               { a, b, b }, { a, "/dev/null", b }, { a, b, "/dev/null" }, { a, dir, b } };
    for (size_t i = 0; i < LEN(cases); i++) {
        char *argv[] = { "", "bytes", cases[i][1], cases[i][2], cases[i][0], NULL };
        CHECK_EQ(tokenize_main(5, argv), 1);
        CHECK(stat(a, &after) == 0 && after.st_ino == before.st_ino && after.st_size == before.st_size);
        CHECK(stat("/dev/null", &after) == 0 && S_ISCHR(after.st_mode));
        CHECK(stat(b, &after) != 0);
    }
    // a name that was once that of the temporary file
    char *argv[] = { "", "bytes", b, c, temporary, NULL };
    CHECK_EQ(tokenize_main(5, argv), 0);
    CHECK(stat(temporary, &after) == 0 && after.st_size == sizeof text);
}

int main(int argc, char **argv) {
    test_start(&argc, argv);
    make_dir();
    RUN(test_binary_file_is_trained_on);
    RUN(test_what_is_no_file_is_opened);
    RUN(test_name_is_taken_for_a_pattern);
    RUN(test_directory_is_left_out);
    RUN(test_validation_file_is_trained_on);
    RUN(test_documents_are_counted_wrong);
    RUN(test_tool_destroys_its_input);
    RUN(test_shards_differ_from_text);
    remove_dir();
    return test_finish();
}
