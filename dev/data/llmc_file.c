#include "data/llmc_file.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

// Returns the number of bytes read, fewer than `bytes` only at the end of the file; -1 and errno.
static ssize_t read_up_to(int fd, void *out, size_t bytes, size_t offset) {
    size_t done = 0;
    while (done < bytes) {
        const ssize_t n = pread(fd, (char *)out + done, bytes - done, (off_t)(offset + done));
        if (n == 0) break;
        if (n < 0 && errno != EINTR) return -1;
        done += n > 0 ? (size_t)n : 0;
    }
    return (ssize_t)done;
}

int llmc_read_header(int fd, int32_t header[LLMC_HEADER_WORDS]) {
    memset(header, 0, LLMC_HEADER_BYTES);
    return (int)read_up_to(fd, header, LLMC_HEADER_BYTES, 0);
}

int llmc_read_at(int fd, void *out, size_t bytes, size_t offset) {
    const ssize_t n = read_up_to(fd, out, bytes, offset);
    if (n < 0) return -1;
    if ((size_t)n == bytes) return 0;
    errno = ENODATA;
    return -1;
}
