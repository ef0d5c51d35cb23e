// Converts text to token shards in llm.c's format: every byte is a token, the vocabulary is 256. The last tenth of the
// text becomes the validation shard. The trainer reads text directly; this is for other programs that read the format,
// and for our tests of it.
//
//     tokenize_bytes text.txt train.bin val.bin
//
// Each shard is written under a temporary name and renamed when it is complete.
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    if ((size_t)snprintf(temporary, sizeof temporary, "%s.tmp", name) >= sizeof temporary) {
        errno = ENAMETOOLONG;
        return -1;
    }
    FILE *out = fopen(temporary, "wb");
    if (!out) {
        return -1;
    }
    int rc = write_shard(in, out, tokens);
    if (fclose(out) != 0 || rc != 0 || rename(temporary, name) != 0) {
        remove(temporary);
        return -1;
    }
    return 0;
}

int main(int argc, char **argv) {
    if (argc != 4) {
        fprintf(stderr, "usage: %s text.txt train.bin val.bin\n", argv[0]);
        return 2;
    }
    FILE *in = fopen(argv[1], "rb");
    if (!in || fseeko(in, 0, SEEK_END) != 0) {
        fprintf(stderr, "%s: %s\n", argv[1], strerror(errno));
        return 1;
    }
    size_t size = (size_t)ftello(in);
    rewind(in);
    if (size < 20 || size > MAX_TOKENS) {
        fprintf(stderr, "%s has %zu bytes; between 20 and %d fit. Join or split the text.\n", argv[1], size,
                MAX_TOKENS);
        return 1;
    }
    size_t train = size / 100 * 90 + size % 100 * 90 / 100;  // the same cut as the loader's for text
    if (make_file(in, argv[2], train) != 0 || make_file(in, argv[3], size - train) != 0) {
        fprintf(stderr, "%s: cannot make %s and %s: %s\n", argv[1], argv[2], argv[3], strerror(errno));
        return 1;
    }
    fclose(in);
    printf("%s: %zu bytes, %zu tokens in %s, %zu in %s, vocabulary 256\n", argv[1], size, train, argv[2], size - train,
           argv[3]);
    return 0;
}
