// Faults of the file system under the trainer, planted where the linker sends its calls here (-Wl,--wrap; Makefile).
// Calls on files below FILE_DIR are counted, from 1. In the environment:
//
//     FILE_DIR=DIR                 as -o has it
//     FILE_FAULT="RANK KIND K"     what happens to call K of this rank (-1: of every rank):
//                 eio              it fails with EIO
//                 full             it and all later ones that need room fail with ENOSPC
//                 short            it reads or writes half of what it should
//                 slow             it takes FILE_SLOW seconds
//                 kill             the process is killed before it, or in the middle, if it writes
//     FAULT_SELF=RANK              of this process, where Open MPI does not say it
//     FILE_TRACE=PATH              PATH.RANK gets a line for each call: "open /run/model_00000004.bin"
//     FILE_SYNCED=DIR              keeps what is on the disk for sure:
//                 data.INODE       what this process wrote into a file until it called fsync, the rest as it was
//                 names            "INODE NAME" of each file, as of the last fsync of the directory
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_FDS = 1024, MAX_WRITES = 4096 };

int __real_open(const char *path, int flags, ...);
int __real_close(int fd);
ssize_t __real_pread(int fd, void *out, size_t bytes, off_t at);
ssize_t __real_pwrite(int fd, const void *from, size_t bytes, off_t at);
int __real_fsync(int fd);
int __real_rename(const char *from, const char *to);
int __real_unlink(const char *path);
int __real_link(const char *from, const char *to);
int __real_posix_fallocate(int fd, off_t at, off_t bytes);
int __wrap_open(const char *path, int flags, ...);
int __wrap_close(int fd);
ssize_t __wrap_pread(int fd, void *out, size_t bytes, off_t at);
ssize_t __wrap_pwrite(int fd, const void *from, size_t bytes, off_t at);
int __wrap_fsync(int fd);
int __wrap_rename(const char *from, const char *to);
int __wrap_unlink(const char *path);
int __wrap_link(const char *from, const char *to);
int __wrap_posix_fallocate(int fd, off_t at, off_t bytes);

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct {
    char *path;  // NULL: not one of ours
    size_t writes;
    struct {
        off_t at;
        size_t bytes;
    } write[MAX_WRITES];
} * files[MAX_FDS];

// ---- which call ----------------------------------------------------------------------------------------------------

static int self(void) {
    const char *rank = getenv("FAULT_SELF") != NULL ? getenv("FAULT_SELF") : getenv("OMPI_COMM_WORLD_RANK");
    return rank != NULL ? atoi(rank) : 0;
}

static int is_ours(const char *path) {
    const char *dir = getenv("FILE_DIR");
    return dir != NULL && path != NULL && strncmp(path, dir, strlen(dir)) == 0 && path[strlen(dir)] == '/';
}

// The path of an open file, or NULL.
static const char *path_of(int fd) { return fd >= 0 && fd < MAX_FDS && files[fd] != NULL ? files[fd]->path : NULL; }

// Counts a call. Returns what shall happen to it: "" for nothing.
static const char *next_fault(const char *call, const char *path, int needs_room) {
    static int calls;
    static char kind[16];
    int victim, wanted;
    if (!is_ours(path)) return "";
    pthread_mutex_lock(&mutex);
    const int now = ++calls;
    char trace[4096];
    if (getenv("FILE_TRACE") != NULL) {
        snprintf(trace, sizeof trace, "%s.%d", getenv("FILE_TRACE"), self());
        FILE *f = fopen(trace, "a");
        if (f != NULL) fprintf(f, "%s %s\n", call, path);
        if (f != NULL) fclose(f);
    }
    pthread_mutex_unlock(&mutex);
    const char *fault = getenv("FILE_FAULT");
    if (fault == NULL || sscanf(fault, "%d %15s %d", &victim, kind, &wanted) != 3) return "";
    if (victim != -1 && victim != self()) return "";
    if (strcmp(kind, "full") == 0) return now >= wanted && needs_room ? kind : "";
    if (now == wanted && strcmp(kind, "slow") == 0) sleep((unsigned)atoi(getenv("FILE_SLOW")));
    if (now == wanted && strcmp(kind, "kill") == 0 && strcmp(call, "pwrite") != 0) raise(SIGKILL);
    return now == wanted ? kind : "";
}

// Whether the call fails; then errno is set.
static int fails(const char *call, const char *path, int needs_room) {
    const char *fault = next_fault(call, path, needs_room);
    errno = strcmp(fault, "full") == 0 ? ENOSPC : EIO;
    return strcmp(fault, "eio") == 0 || strcmp(fault, "full") == 0;
}

// ---- what is on the disk -------------------------------------------------------------------------------------------

// FILE_SYNCED; NULL: it is not wanted.
static const char *synced(void) {
    const char *dir = getenv("FILE_SYNCED");
    return dir != NULL && *dir != '\0' ? dir : NULL;
}

static int synced_path(int fd, char path[4096]) {
    struct stat st;
    const char *dir = synced();
    if (dir == NULL || fstat(fd, &st) != 0) return 0;
    snprintf(path, 4096, "%s/data.%lu", dir, (unsigned long)st.st_ino);
    return 1;
}

static void sync_data(int fd) {
    char path[4096], same[64];
    struct stat st;
    if (!synced_path(fd, path) || fstat(fd, &st) != 0) return;
    snprintf(same, sizeof same, "/proc/self/fd/%d", fd);  // which may be open for writing only
    const int to = __real_open(path, O_WRONLY | O_CREAT, 0666), from = __real_open(same, O_RDONLY);
    if (to == -1 || from == -1 || ftruncate(to, st.st_size) != 0) abort();
    for (size_t i = 0; i < files[fd]->writes; i++) {
        const size_t bytes = files[fd]->write[i].bytes;
        char *data = malloc(bytes);
        if (data == NULL || __real_pread(from, data, bytes, files[fd]->write[i].at) != (ssize_t)bytes ||
            __real_pwrite(to, data, bytes, files[fd]->write[i].at) != (ssize_t)bytes)
            abort();
        free(data);
    }
    files[fd]->writes = 0;
    __real_close(from);
    __real_close(to);
}

static void sync_names(const char *path) {
    char name[4096], whole[4096 + 8];
    struct stat st;
    if (synced() == NULL) return;
    snprintf(whole, sizeof whole, "%s/names", synced());
    snprintf(name, sizeof name, "%s/names.new", synced());
    FILE *f = fopen(name, "w");
    DIR *d = opendir(path);
    if (f == NULL || d == NULL) abort();
    for (struct dirent *e; (e = readdir(d)) != NULL;)
        if (fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode))
            fprintf(f, "%lu %s\n", (unsigned long)st.st_ino, e->d_name);
    closedir(d);
    if (fclose(f) != 0 || __real_rename(name, whole) != 0) abort();
}

// ---- the calls -----------------------------------------------------------------------------------------------------

int __wrap_open(const char *path, int flags, ...) {
    va_list args;
    va_start(args, flags);
    const int mode = (flags & O_CREAT) != 0 ? va_arg(args, int) : 0;
    va_end(args);
    if (fails("open", path, flags & O_CREAT)) return -1;
    const int fd = __real_open(path, flags, mode);
    char data[4096];
    if (fd < 0 || fd >= MAX_FDS || !is_ours(path)) return fd;
    pthread_mutex_lock(&mutex);
    if (files[fd] == NULL) files[fd] = calloc(1, sizeof *files[fd]);
    if (files[fd] == NULL) abort();
    free(files[fd]->path);
    files[fd]->path = strdup(path);
    files[fd]->writes = 0;
    if ((flags & O_CREAT) != 0 && synced_path(fd, data)) __real_unlink(data);  // the inode may have been another's
    pthread_mutex_unlock(&mutex);
    return fd;
}

int __wrap_close(int fd) {
    const int failed = fails("close", path_of(fd), 1), code = errno;
    pthread_mutex_lock(&mutex);
    if (path_of(fd) != NULL) {
        free(files[fd]->path);
        files[fd]->path = NULL;
    }
    pthread_mutex_unlock(&mutex);
    const int status = __real_close(fd);
    if (failed) errno = code;
    return failed ? -1 : status;
}

ssize_t __wrap_pread(int fd, void *out, size_t bytes, off_t at) {
    const char *fault = next_fault("pread", path_of(fd), 0);
    if (strcmp(fault, "short") == 0) bytes = (bytes + 1) / 2;
    errno = EIO;
    return strcmp(fault, "eio") == 0 ? -1 : __real_pread(fd, out, bytes, at);
}

ssize_t __wrap_pwrite(int fd, const void *from, size_t bytes, off_t at) {
    const char *fault = next_fault("pwrite", path_of(fd), 1);
    const int full = strcmp(fault, "full") == 0, killed = strcmp(fault, "kill") == 0;
    errno = full ? ENOSPC : EIO;
    if (full || strcmp(fault, "eio") == 0) return -1;
    if (killed || strcmp(fault, "short") == 0) bytes = (bytes + 1) / 2;
    const ssize_t n = __real_pwrite(fd, from, bytes, at);
    if (killed) raise(SIGKILL);
    if (n <= 0 || path_of(fd) == NULL) return n;
    if (files[fd]->writes == MAX_WRITES) abort();
    files[fd]->write[files[fd]->writes].at = at;
    files[fd]->write[files[fd]->writes++].bytes = (size_t)n;
    return n;
}

int __wrap_fsync(int fd) {
    const char *path = path_of(fd);
    if (fails("fsync", path, 1)) return -1;
    if (path != NULL && path[strlen(path) - 1] == '/')
        sync_names(path);
    else if (path != NULL)
        sync_data(fd);
    return 0;  // nobody cuts the power of this machine
}

int __wrap_rename(const char *from, const char *to) { return fails("rename", to, 1) ? -1 : __real_rename(from, to); }

int __wrap_unlink(const char *path) { return fails("unlink", path, 0) ? -1 : __real_unlink(path); }

int __wrap_link(const char *from, const char *to) { return fails("link", to, 1) ? -1 : __real_link(from, to); }

int __wrap_posix_fallocate(int fd, off_t at, off_t bytes) {
    return fails("fallocate", path_of(fd), 1) ? errno : __real_posix_fallocate(fd, at, bytes);
}
