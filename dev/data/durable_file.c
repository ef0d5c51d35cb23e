#include "data/durable_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "data/llmc_file.h"

#define FAIL(...) (snprintf(err, err_bytes, __VA_ARGS__), -1)

static const char *remedy(int code) {
    return code == ENOSPC || code == EDQUOT || code == EFBIG ? DURABLE_MAKE_ROOM
                                                             : "check the disk, or choose another directory";
}

int durable_create(const char *temporary, size_t bytes, int *fd, char *err, size_t err_bytes) {
    *fd = open(temporary, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (*fd == -1) return FAIL("%s: cannot be written: %s: %s", temporary, strerror(errno), remedy(errno));
    const int code = bytes > 0 ? posix_fallocate(*fd, 0, (off_t)bytes) : 0;
    if (code == 0) return 0;
    close(*fd);
    unlink(temporary);
    *fd = -1;
    return FAIL("%s: %zu bytes cannot be written: %s: %s", temporary, bytes, strerror(code), remedy(code));
}

int durable_open(const char *temporary, int *fd, char *err, size_t err_bytes) {
    *fd = open(temporary, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    if (*fd != -1) return 0;
    return FAIL("%s: cannot be opened: %s: is the output directory (-o) the same on all hosts?", temporary,
                strerror(errno));
}

enum { BLOCK = 4096, PIECE = 1 << 19 };  // what O_DIRECT wants multiples of; bytes that are written at a time

// Whole blocks go past the page cache: what is written once and read later, by another process, has no use for it, and
// its pages may be dear (a virtual machine that has to ask its host for them may take several times the time of the
// disk). The ends, less than a block, go through it. Direct writes have a descriptor of their own, since O_DIRECT
// belongs to all threads that write by fd. Not every file system can.
int durable_write(int fd, const char *path, const void *from, size_t bytes, size_t offset, char *err,
                  size_t err_bytes) {
    int direct = bytes >= 16 * BLOCK ? open(path, O_WRONLY | O_DIRECT | O_NOFOLLOW | O_CLOEXEC) : -1, status = 0;
    char *piece = direct != -1 ? aligned_alloc(BLOCK, PIECE) : NULL;
    for (size_t done = 0; done < bytes && status == 0;) {
        const size_t at = offset + done, ahead = (BLOCK - at % BLOCK) % BLOCK, left = bytes - done;
        const int whole = piece != NULL && ahead == 0 && left >= BLOCK;
        size_t count = left < PIECE ? left : PIECE;
        if (whole) count -= count % BLOCK;
        if (piece != NULL && ahead > 0 && ahead < count) count = ahead;
        if (whole) memcpy(piece, (const char *)from + done, count);
        const ssize_t n = pwrite(whole ? direct : fd, whole ? piece : (const char *)from + done, count, (off_t)at);
        if (n > 0) {
            done += (size_t)n;
        } else if (n < 0 && errno == EINVAL && whole) {
            free(piece);
            piece = NULL;
        } else if (n == 0 || errno != EINTR) {
            const int code = n < 0 ? errno : 0;
            status = FAIL("%s: writing failed: %s: %s", path, code ? strerror(code) : "nothing was written",
                          remedy(code ? code : ENOSPC));
        }
    }
    free(piece);
    if (direct != -1) close(direct);
    return status;
}

int durable_close(int fd, const char *temporary, char *err, size_t err_bytes) {
    int code = fsync(fd) != 0 ? errno : 0;
    if (close(fd) != 0 && code == 0) code = errno;
    if (code == 0) return 0;
    unlink(temporary);
    return FAIL("%s: writing failed: %s: %s", temporary, strerror(code), remedy(code));
}

int durable_flush_directory(const char *path, char *err, size_t err_bytes) {
    char dir[4096];
    const char *slash = strrchr(path, '/');
    snprintf(dir, sizeof dir, "%.*s", slash ? (int)(slash - path + 1) : 1, slash ? path : ".");
    const int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const int failed = fd == -1 || fsync(fd) != 0, code = errno;
    if (fd != -1) close(fd);
    if (!failed || code == EINVAL) return 0;  // EINVAL: a file system whose directories cannot be flushed
    return FAIL("%s: its directory cannot be flushed to the disk: %s", path, strerror(code));
}

int durable_publish(const char *temporary, const char *path, char *err, size_t err_bytes) {
    struct stat st;
    if (lstat(path, &st) == 0 && !S_ISREG(st.st_mode) && !S_ISLNK(st.st_mode)) {  // rename would replace a device
        unlink(temporary);
        return FAIL("%s: is %s: remove it, or choose another name", path, llmc_kind_of_file(st.st_mode));
    }
    if (rename(temporary, path) == 0) return durable_flush_directory(path, err, err_bytes);
    const int code = errno;
    unlink(temporary);
    return FAIL("%s: cannot be renamed to %s: %s: %s", temporary, path, strerror(code), remedy(code));
}

int durable_write_bytes(const char *temporary, const char *path, const void *bytes, size_t n, char *err,
                        size_t err_bytes) {
    int fd;
    if (durable_create(temporary, 0, &fd, err, err_bytes) != 0) return -1;
    if (durable_write(fd, temporary, bytes, n, 0, err, err_bytes) != 0) {
        close(fd);
        unlink(temporary);
        return -1;
    }
    if (durable_close(fd, temporary, err, err_bytes) != 0) return -1;
    return durable_publish(temporary, path, err, err_bytes);
}

int durable_write_text(const char *temporary, const char *path, const char *text, char *err, size_t err_bytes) {
    return durable_write_bytes(temporary, path, text, strlen(text), err, err_bytes);
}
