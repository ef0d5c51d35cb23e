// data_files.h: files in a fresh temporary directory, and loaders of them, for tests of dev/data.
#ifndef TEST_DATA_FILES_H
#define TEST_DATA_FILES_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "data/dataloader.h"
#include "test/harness/harness.h"

#pragma GCC diagnostic ignored "-Wunused-function"  // each test needs some of them

#define LEN(a) (sizeof(a) / sizeof *(a))

static char dir[256];

// dir/name, in one of a few static buffers.
static const char *path(const char *name) {
    static char buffers[16][512];
    static int next;
    char *p = buffers[next++ % 16];
    snprintf(p, sizeof buffers[0], "%s/%s", dir, name);
    return p;
}

static const char *write_file(const char *name, const void *bytes, size_t n) {
    const char *p = path(name);
    FILE *f = fopen(p, "wb");
    REQUIRE(f != NULL);
    CHECK_EQ(fwrite(bytes, 1, n, f), n);
    CHECK_EQ(fclose(f), 0);
    return p;
}

// A shard whose tokens are first, first + 1, ...; `bytes` cuts the file short (0: whole).
static const char *write_shard_file(const char *name, int magic, int version, int count, int first, size_t bytes) {
    size_t n = 1024 + 2 * (size_t)(count > 0 ? count : 0);
    unsigned char *all = calloc(1, n);
    int32_t header[3] = { magic, version, count };
    memcpy(all, header, sizeof header);
    for (int i = 0; i < count; i++) {
        uint16_t token = (uint16_t)(first + i);
        memcpy(all + 1024 + 2 * i, &token, 2);
    }
    const char *p = write_file(name, all, bytes ? bytes : n);
    free(all);
    return p;
}

static const char *good_shard(const char *name, int count, int first) {
    return write_shard_file(name, 20240520, 1, count, first, 0);
}

static LoaderConfig config(const char *pattern, size_t B, size_t T) {
    return (LoaderConfig){ .pattern = pattern, .B = B, .T = T, .vocab = 65536, .end_percent = 100, .seed = 42 };
}

static Loader *must_open(LoaderConfig c) {
    Loader *l;
    char err[512] = "";
    REQUIRE(loader_open(&l, &c, err) == 0, "%s", err);
    return l;
}

static void must_read(Loader *l, size_t j, int *inputs, int *targets) {
    char err[512] = "";
    CHECK(loader_batch(l, j, inputs, targets, err) == 0, "batch %zu: %s", j, err);
}

// The message must contain both words.
static void must_refuse(LoaderConfig c, const char *word, const char *other) {
    Loader *l;
    char err[512] = "";
    CHECK_EQ(loader_open(&l, &c, err), -1);
    CHECK(l == NULL);
    CHECK(strstr(err, word) && strstr(err, other), "no \"%s\" and \"%s\" in: %s", word, other, err);
}

static void make_dir(void) {
    const char *base = getenv("TMPDIR");
    snprintf(dir, sizeof dir, "%.200s/test_data.XXXXXX", base ? base : "/tmp");
    REQUIRE(mkdtemp(dir) && setenv("TEST_DATA_DIR", dir, 1) == 0);
}

static void remove_dir(void) { REQUIRE(system("rm -rf \"$TEST_DATA_DIR\"") == 0); }

#endif
