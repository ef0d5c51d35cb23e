// Converts text to token shards in llm.c's format: every byte is a token, the vocabulary is 256. The last tenth of the
// text becomes the validation shard. The trainer reads text directly; this is for other programs that read the format,
// and for our tests of it.
//
//     tokenize_bytes text.txt train.bin val.bin
//
// Each shard is written under a temporary name and renamed when it is complete. Three names of which two are one file
// are refused, and so is an output that is something else than a file.
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "data/llmc_file.h"

#define MAX_TOKENS INT32_MAX  // the count in the header is an int32

// Writes the next `tokens` bytes of `in` as a shard. 0, or -1 with errno.
static int write_shard(FILE *in, FILE *out, size_t tokens) {
    int32_t header[256] = { 20240520, 1, (int32_t)tokens };
    fwrite(header, sizeof header, 1, out);
    for (size_t i = 0; i < tokens; i++) {
        int byte = getc(in);
        if (byte == EOF) {
            errno = ferror(in) ? errno : ENODATA;
            return -1;
        }
        putc(byte, out);
        putc(0, out);
    }
    return ferror(out) ? -1 : 0;
}

static int make_file(FILE *in, const char *name, size_t tokens) {
    char temporary[4096];
    if ((size_t)snprintf(temporary, sizeof temporary, "%s.tmp.%ld", name, (long)getpid()) >= sizeof temporary) {
        errno = ENAMETOOLONG;
        return -1;
    }
    const int fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    FILE *out = fd != -1 ? fdopen(fd, "wb") : NULL;
    if (!out) {
        return -1;
    }
    int rc = write_shard(in, out, tokens);
    if (fclose(out) != 0 || rc != 0 || rename(temporary, name) != 0) {
        const int code = errno;
        remove(temporary);
        errno = code;
        return -1;
    }
    return 0;
}

// Whether `name` may be replaced: 0, or -1 and a message. earlier: the names before it.
static int check_output(const char *name, char *const *earlier, int n) {
    struct stat mine, other;
    const int exists = lstat(name, &mine) == 0;
    if (exists && !S_ISREG(mine.st_mode) && !S_ISLNK(mine.st_mode)) {
        fprintf(stderr, "%s: is %s: choose another name\n", name, llmc_kind_of_file(mine.st_mode));
        return -1;
    }
    for (int i = 0; i < n; i++) {
        const int same = exists && stat(name, &mine) == 0 && stat(earlier[i], &other) == 0 &&
                         mine.st_dev == other.st_dev && mine.st_ino == other.st_ino;
        if (!same && strcmp(name, earlier[i]) != 0) continue;
        fprintf(stderr, "%s and %s are the same file: choose another name\n", earlier[i], name);
        return -1;
    }
    return 0;
}

int main(int argc, char **argv) {
    if (argc != 4) {
        fprintf(stderr, "usage: %s text.txt train.bin val.bin\n", argv[0]);
        return 2;
    }
    char err[512];
    struct stat st;
    const int fd = llmc_open(argv[1], err, sizeof err);
    FILE *in = fd != -1 ? fdopen(fd, "rb") : NULL;
    if (!in || fstat(fd, &st) != 0) {
        fprintf(stderr, "%s\n", fd == -1 ? err : strerror(errno));
        return 1;
    }
    if (check_output(argv[2], argv + 1, 1) != 0 || check_output(argv[3], argv + 1, 2) != 0) {
        return 1;
    }
    const size_t size = (size_t)st.st_size;
    if (size < 20 || size > MAX_TOKENS) {
        fprintf(stderr, "%s has %zu bytes; between 20 and %d fit. Join or split the text.\n", argv[1], size,
                MAX_TOKENS);
        return 1;
    }
    size_t train = size / 100 * 90 + size % 100 * 90 / 100;  // the same cut as the loader's for text
    if (make_file(in, argv[2], train) != 0) {
        fprintf(stderr, "%s: cannot make %s: %s\n", argv[1], argv[2], strerror(errno));
        return 1;
    }
    if (check_output(argv[3], argv + 1, 2) != 0) {  // the same file by two names, which was not there before
        return 1;
    }
    if (make_file(in, argv[3], size - train) != 0) {
        fprintf(stderr, "%s: cannot make %s: %s\n", argv[1], argv[3], strerror(errno));
        return 1;
    }
    fclose(in);
    printf("%s: %zu bytes, %zu tokens in %s, %zu in %s, vocabulary 256\n", argv[1], size, train, argv[2], size - train,
           argv[3]);
    return 0;
}
