#include "data/llmc_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
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

const char *llmc_kind_of_file(mode_t mode) {
    return S_ISDIR(mode)                    ? "a directory"
           : S_ISFIFO(mode)                 ? "a pipe"
           : S_ISSOCK(mode)                 ? "a socket"
           : S_ISCHR(mode) || S_ISBLK(mode) ? "a device"
                                            : "a regular file";
}

int llmc_open(const char *path, char *err, size_t err_bytes) {
    struct stat st;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd == -1) {
        snprintf(err, err_bytes, "%.300s: cannot be opened: %s: check the name and its permissions", path,
                 strerror(errno));
        return -1;
    }
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode)) return fd;
    snprintf(err, err_bytes, "%.300s: is %s, not a regular file: give the name of a file", path,
             llmc_kind_of_file(st.st_mode));
    close(fd);
    return -1;
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
