// The hash by which ranks compare their files (data/content_hash.h).
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include "data/content_hash.h"
#include "test/unit/data_files.h"

static uint64_t content_of(const char *one, const char *two) {
    char *paths[2] = { (char *)one, (char *)two };
    uint64_t hash = 0;
    char err[512] = "";
    CHECK(content_hash(paths, two != NULL ? 2 : 1, &hash, err, sizeof err) == 0, "%s", err);
    return hash;
}

// Flips a bit of the byte at `at` and returns the hash.
static uint64_t content_flipped(const char *file, size_t at) {
    FILE *f = fopen(file, "r+");
    fseek(f, (long)at, SEEK_SET);
    const int byte = fgetc(f);
    fseek(f, (long)at, SEEK_SET);
    fputc(byte ^ 1, f);
    fclose(f);
    const uint64_t hash = content_of(file, NULL);
    f = fopen(file, "r+");
    fseek(f, (long)at, SEEK_SET);
    fputc(byte, f);
    fclose(f);
    return hash;
}

static void test_other_content_is_not_noticed(void) {
    enum { SMALL = 200000 };  // read completely
    char *bytes = malloc(SMALL);
    for (int i = 0; i < SMALL; i++) bytes[i] = (char)(i * 31 % 251);
    const char *small = write_file("small.bin", bytes, SMALL), *copy = write_file("copy.bin", bytes, SMALL);
    const uint64_t before = content_of(small, NULL);
    CHECK_EQ(content_of(copy, NULL), before);
    for (size_t at = 0; at < SMALL; at += 997) CHECK(content_flipped(small, at) != before, "byte %zu", at);
    CHECK(content_flipped(small, SMALL - 1) != before);
    CHECK(content_of(write_file("short.bin", bytes, SMALL - 1), NULL) != before);
    CHECK(content_of(small, copy) != content_of(write_file("other.bin", bytes + 1, SMALL - 1), copy));
    free(bytes);

    const char *huge = write_file("huge.bin", "x", 1);  // 1 TB, without blocks on the disk
    if (truncate(huge, (off_t)1 << 40) != 0) return;    // a file system that cannot
    const uint64_t zeros = content_of(huge, NULL);
    CHECK(content_flipped(huge, 1000) != zeros);
    CHECK(content_flipped(huge, ((size_t)1 << 40) - 5) != zeros);
    CHECK_EQ(truncate(huge, ((off_t)1 << 40) - 4096), 0);
    CHECK(content_of(huge, NULL) != zeros);

    char *missing = (char *)path("missing.bin"), err[512] = "";
    uint64_t hash;
    CHECK_EQ(content_hash(&missing, 1, &hash, err, sizeof err), -1);
    CHECK(strstr(err, "missing.bin") != NULL);
}

int main(int argc, char **argv) {
    test_start(&argc, argv);
    make_dir();
    RUN(test_other_content_is_not_noticed);
    remove_dir();
    return test_finish();
}
