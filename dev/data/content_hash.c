#include "data/content_hash.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "data/llmc_file.h"

enum { BLOCK = 4096, BLOCKS = 64 };

// Adds a block, or what there is of it before the end of the file, to the hash.
static int add_block(XXH3_state_t *state, int fd, size_t size, size_t offset) {
    char block[BLOCK];
    const size_t bytes = size - offset < BLOCK ? size - offset : BLOCK;
    if (llmc_read_at(fd, block, bytes, offset) != 0) return -1;
    XXH3_64bits_update(state, &offset, sizeof offset);
    XXH3_64bits_update(state, block, bytes);
    return 0;
}

// Adds one file, whose first byte is byte `before` of all `total`.
static int add_file(XXH3_state_t *state, int fd, size_t size, size_t before, size_t total) {
    XXH3_64bits_update(state, &size, sizeof size);
    if (size == 0) return 0;
    if (add_block(state, fd, size, 0) != 0 || add_block(state, fd, size, size > BLOCK ? size - BLOCK : 0) != 0)
        return -1;
    for (size_t i = 0; i < BLOCKS; i++) {
        // One block in each of 64 equal parts of all bytes. Divided first: the product could overflow.
        const size_t begin = total / BLOCKS * i + total % BLOCKS * i / BLOCKS, length = total / BLOCKS + 1;
        const uint64_t random = XXH3_64bits_withSeed(&total, sizeof total, i);
        const size_t at = begin + (length > BLOCK ? random % (length - BLOCK) : 0);
        if (at >= before && at - before < size && add_block(state, fd, size, at - before) != 0) return -1;
    }
    return 0;
}

static int hash_files(XXH3_state_t *state, char *const *paths, const size_t *sizes, size_t n, const char **failed) {
    size_t total = 0, before = 0;
    for (size_t i = 0; i < n; i++) total += sizes[i];
    for (size_t i = 0; i < n; i++) {
        *failed = paths[i];
        const int fd = open(paths[i], O_RDONLY | O_CLOEXEC);
        if (fd < 0) return -1;
        const int status = add_file(state, fd, sizes[i], before, total);
        const int code = errno;
        close(fd);
        errno = code;
        if (status != 0) return -1;
        before += sizes[i];
    }
    return 0;
}

int content_hash(char *const *paths, size_t n, uint64_t *hash, char *err, size_t err_bytes) {
    size_t *sizes = calloc(n + 1, sizeof *sizes);
    XXH3_state_t *state = XXH3_createState();
    const char *failed = n > 0 ? paths[0] : "";
    int status = sizes != NULL && state != NULL && XXH3_64bits_reset(state) == XXH_OK ? 0 : -1;
    if (status != 0) errno = ENOMEM;
    for (size_t i = 0; i < n && status == 0; i++) {
        struct stat st;
        failed = paths[i];
        status = stat(paths[i], &st);
        sizes[i] = status == 0 ? (size_t)st.st_size : 0;
    }
    if (status == 0) status = hash_files(state, paths, sizes, n, &failed);
    if (status == 0)
        *hash = XXH3_64bits_digest(state);
    else
        snprintf(err, err_bytes, "%.200s: cannot read it (%s)", failed, strerror(errno));
    XXH3_freeState(state);
    free(sizes);
    return status;
}
