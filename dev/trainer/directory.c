// The lock is a file DIR/run.lock, created with O_EXCL, which works on shared file systems too:
//
//     nonce 5c0f3b1a9e7d2468      also in the names of the run's temporary files
//     host node7 9f0c...          name and boot of rank 0's host
//     process 4711 88123          rank 0's number, and when it was started (/proc/PID/stat)
//     timeout 300
//
// A thread touches it every few seconds. The lock of a dead run is recognised:
//
//     same host and boot      there is no such process, or its number belongs to another one by now
//     another host            not touched for two of its time-outs, by the clock of the file system on which both files
//                             lie
//
// A dead run's lock is renamed before it is removed. Of two runs that find it, one may rename the lock that the other
// has made meanwhile: it sees that by the nonce, and puts it back.
#include "trainer/directory.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "data/durable_file.h"
#include "data/llmc_file.h"

#define FAIL(...) (snprintf(err, err_bytes, __VA_ARGS__), -1)
#define ANY_NONCE "[0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f]"

enum { PATH_BYTES = 4096 + 64, TRIES = 10 };

typedef struct {
    unsigned long long nonce, start;
    char host[256], boot[64];
    long process;
    double timeout_s;
} Lock;

static struct {
    char dir[4096];
    Lock lock;
    atomic_int fd;  // of the lock, never closed: the thread may be using it; -1: none is held
} held = { .fd = -1 };

static void lock_path(const char *dir, char path[PATH_BYTES]) { snprintf(path, PATH_BYTES, "%.4000s/run.lock", dir); }

// When a process was started, in ticks since the boot; 0: there is no such process, or it only waits for its parent.
static unsigned long long process_start(long process) {
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%ld/stat", process);
    FILE *f = fopen(path, "r");
    const size_t bytes = f != NULL ? fread(text, 1, sizeof text - 1, f) : 0;
    if (f != NULL) fclose(f);
    text[bytes] = '\0';
    const char *at = strrchr(text, ')');  // the name before it may contain blanks
    if (at == NULL || at[1] == '\0' || at[2] == 'Z' || at[2] == 'X') return 0;
    for (int field = 2; at != NULL && field < 22; field++) at = strchr(at + 1, ' ');
    return at != NULL ? strtoull(at, NULL, 10) : 0;
}

static void describe_this_run(Lock *l, double timeout_s) {
    memset(l, 0, sizeof *l);
    while (l->nonce == 0)
        if (getrandom(&l->nonce, sizeof l->nonce, 0) != sizeof l->nonce)
            l->nonce = ((unsigned long long)time(NULL) << 32) ^ (unsigned long long)getpid();
    if (gethostname(l->host, sizeof l->host - 1) != 0 || l->host[0] == '\0') strcpy(l->host, "?");
    strcpy(l->boot, "?");
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "r");
    if (f != NULL) {
        if (fscanf(f, "%63s", l->boot) != 1) strcpy(l->boot, "?");
        fclose(f);
    }
    l->process = (long)getpid();
    l->start = process_start(l->process);
    l->timeout_s = timeout_s;
}

// Returns 0; -1: there is no such file, or it is not a whole lock.
static int read_lock(const char *path, Lock *l) {
    memset(l, 0, sizeof *l);
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    FILE *f = fd >= 0 ? fdopen(fd, "r") : NULL;
    const int fields = f != NULL ? fscanf(f, "nonce %llx host %255s %63s process %ld %llu timeout %lf", &l->nonce,
                                          l->host, l->boot, &l->process, &l->start, &l->timeout_s)
                                 : 0;
    if (f != NULL) fclose(f);
    return fields == 6 ? 0 : -1;
}

// Seconds since the lock was touched, by the clock of the file system (a file is made to read it). -1: unknown.
static double lock_age(const char *path, unsigned long long mine) {
    char probe[PATH_BYTES + 32];
    struct stat then, now;
    snprintf(probe, sizeof probe, "%s.%016llx.tmp", path, mine);
    const int fd = open(probe, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) return -1;
    const int known = fstat(fd, &now) == 0 && stat(path, &then) == 0;
    close(fd);
    unlink(probe);
    return known ? difftime(now.st_mtime, then.st_mtime) : -1;
}

static int is_dead(const char *path, const Lock *l, const Lock *mine) {
    if (strcmp(l->host, mine->host) == 0 && strcmp(l->boot, mine->boot) == 0)
        return process_start(l->process) != l->start;
    return lock_age(path, mine->nonce) > 2 * l->timeout_s;
}

// Removes the lock of a dead run. If another run has replaced it meanwhile, that one's is put back.
static void remove_dead(const char *path, unsigned long long dead, unsigned long long mine) {
    char aside[PATH_BYTES + 32];
    Lock found;
    snprintf(aside, sizeof aside, "%s.%016llx.tmp", path, mine);
    if (rename(path, aside) != 0) return;
    if (read_lock(aside, &found) == 0 && found.nonce != dead && link(aside, path) != 0) return;
    unlink(aside);
}

// Creates the lock, in one step with its content: written under another name, then linked. -1: it is there, or
// errno is another error.
static int create_lock(const char *path, const Lock *l) {
    char whole[PATH_BYTES + 32];
    snprintf(whole, sizeof whole, "%s.%016llx.tmp", path, l->nonce);
    const int fd = open(whole, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (fd < 0) return -1;
    char text[512], why[PATH_BYTES + 512];
    const int bytes = snprintf(text, sizeof text, "nonce %016llx\nhost %s %s\nprocess %ld %llu\ntimeout %g\n", l->nonce,
                               l->host, l->boot, l->process, l->start, l->timeout_s);
    struct stat st;
    // On the disk before it has its name: a lock that a power failure has emptied would have no process to ask about.
    if (durable_write(fd, whole, text, (size_t)bytes, 0, why, sizeof why) != 0 || fsync(fd) != 0 ||
        (link(whole, path) != 0 && (fstat(fd, &st) != 0 || st.st_nlink != 2))) {  // NFS may do it and report EEXIST
        const int code = errno;
        close(fd);
        unlink(whole);
        errno = code;
        return -1;
    }
    unlink(whole);
    return fd;
}

static void *heartbeat(void *seconds) {
    const double every = *(const double *)seconds / 4 < 10 ? *(const double *)seconds / 4 : 10;
    const struct timespec tick = { (time_t)every, (long)((every - (double)(time_t)every) * 1e9) };
    for (;;) {
        nanosleep(&tick, NULL);
        (void)futimens(held.fd, NULL);  // -1 after the end of the run
    }
    return NULL;
}

static int take_lock(const char *dir, double timeout_s, char *err, size_t err_bytes) {
    char path[PATH_BYTES];
    Lock other;
    lock_path(dir, path);
    describe_this_run(&held.lock, timeout_s);
    for (int i = 0; i < TRIES; i++) {
        held.fd = create_lock(path, &held.lock);
        if (held.fd >= 0) {
            pthread_t thread;
            if (pthread_create(&thread, NULL, heartbeat, &held.lock.timeout_s) == 0) pthread_detach(thread);
            return 0;
        }
        if (errno != EEXIST)
            return FAIL("%s: cannot be written: %s: choose another output directory with -o", path, strerror(errno));
        if (read_lock(path, &other) != 0) {
            if (access(path, F_OK) != 0) continue;  // removed meanwhile
            return FAIL("%s: it is not a lock of a run: remove it if no run writes into this directory", path);
        }
        if (!is_dead(path, &other, &held.lock)) break;
        remove_dead(path, other.nonce, held.lock.nonce);
    }
    return FAIL("-o %.1000s: another run is writing into it (process %ld on %s, by run.lock there): wait until that "
                "has ended, or choose another output directory with -o",
                dir, other.process, other.host);
}

// ---- contents -------------------------------------------------------------------------------------------------------

// Calls visit for each name in dir that matches a pattern, those of the first pattern first, until it returns non-zero,
// which is returned.
static int for_names(const char *dir, const char *const *patterns,
                     int (*visit)(const char *dir, const char *name, void *ctx), void *ctx) {
    int status = 0;
    for (size_t i = 0; patterns[i] != NULL && status == 0; i++) {
        DIR *d = opendir(dir);
        for (struct dirent *e; d != NULL && status == 0 && (e = readdir(d)) != NULL;)
            if (fnmatch(patterns[i], e->d_name, 0) == 0) status = visit(dir, e->d_name, ctx);
        if (d != NULL) closedir(d);
    }
    return status;
}

static int remove_name(const char *dir, const char *name, void *ctx) {
    char path[PATH_BYTES + 256];
    (void)ctx;
    snprintf(path, sizeof path, "%.4000s/%.255s", dir, name);
    unlink(path);
    return 0;
}

// What a run has written: its logs, models and checkpoints. An empty log is nothing.
static const char *const RESULTS[] = { "main.log", "metrics.jsonl", "report.html",  "model_*.bin", "optimizer_*.bin",
                                       "state_*",  "DONE_*",        "checkpoint_*", NULL };

static int note_result(const char *dir, const char *name, void *found) {
    char path[PATH_BYTES + 256];
    struct stat st;
    snprintf(path, sizeof path, "%.4000s/%.255s", dir, name);
    const int is_log = strcmp(name, "main.log") == 0 || strcmp(name, "metrics.jsonl") == 0;
    if (stat(path, &st) != 0 || !S_ISREG(st.st_mode) || (is_log && st.st_size == 0)) return 0;
    snprintf(found, 256, "%s", name);
    return 1;
}

typedef struct {
    char dir[PATH_BYTES];
    int error;
} Aside;

static int move_aside(const char *dir, const char *name, void *ctx) {
    Aside *a = ctx;
    char from[PATH_BYTES + 256], to[PATH_BYTES + 512];
    snprintf(from, sizeof from, "%.4000s/%.255s", dir, name);
    snprintf(to, sizeof to, "%s/%.255s", a->dir, name);
    a->error = rename(from, to) != 0 ? errno : 0;
    return a->error;
}

static int claim_contents(const char *dir, enum directory_use use, char *err, size_t err_bytes) {
    char found[256];
    if (use == DIRECTORY_CONTINUE || !for_names(dir, RESULTS, note_result, found)) return 0;
    if (use == DIRECTORY_NEW)
        return FAIL("-o %.1000s: it holds the %s of another run: continue that with -y 1, choose another output "
                    "directory, or move what is there to %.1000s/replaced.1 with --overwrite 1",
                    dir, found, dir);
    Aside a = { .error = EEXIST };
    for (int i = 1; a.error == EEXIST; i++) {
        snprintf(a.dir, sizeof a.dir, "%.4000s/replaced.%d", dir, i);
        a.error = mkdir(a.dir, 0777) != 0 ? errno : 0;
    }
    if (a.error == 0) for_names(dir, RESULTS, move_aside, &a);
    return a.error != 0 ? FAIL("--overwrite 1: %.1000s: files cannot be moved there: %s", a.dir, strerror(a.error)) : 0;
}

// ---- the run --------------------------------------------------------------------------------------------------------

uint64_t directory_open(const char *dir, enum directory_use use, double timeout_s, char *err, size_t err_bytes) {
    static const char *const LEFT[] = { "*." ANY_NONCE ANY_NONCE ".tmp", "flight_recorder_*.txt", NULL };
    if (strlen(dir) > 4000) {
        snprintf(err, err_bytes, "-o %.200s...: the name is too long: choose a shorter output directory", dir);
        return 0;
    }
    if (mkdir(dir, 0777) != 0 && errno != EEXIST) {
        snprintf(err, err_bytes, "-o %s: cannot be made: %s: %s", dir, strerror(errno),
                 errno == ENOENT ? "make the directory above it first" : "choose another output directory");
        return 0;
    }
    struct stat st;
    if (stat(dir, &st) == 0 && !S_ISDIR(st.st_mode)) {
        snprintf(err, err_bytes, "-o %s: is %s: choose another name for the output directory", dir,
                 S_ISREG(st.st_mode) ? "a file" : llmc_kind_of_file(st.st_mode));
        return 0;
    }
    if (take_lock(dir, timeout_s, err, err_bytes) != 0) return 0;
    strcpy(held.dir, dir);
    if (claim_contents(dir, use, err, err_bytes) != 0) {
        directory_close();
        return 0;
    }
    for_names(dir, LEFT, remove_name, NULL);
    return held.lock.nonce;
}

int directory_check(char *err, size_t err_bytes) {
    char path[PATH_BYTES];
    Lock found;
    lock_path(held.dir, path);
    if (read_lock(path, &found) == 0 && found.nonce == held.lock.nonce) return 0;
    return FAIL("-o %.1000s: run.lock there is no longer this run's: it was removed, or this run was stopped for so "
                "long that another one took it for dead; nothing was written",
                held.dir);
}

void directory_close(void) {
    char path[PATH_BYTES], pattern[64];
    Lock found;
    if (held.fd < 0) return;
    lock_path(held.dir, path);
    snprintf(pattern, sizeof pattern, "*.%016llx.tmp", held.lock.nonce);
    for_names(held.dir, (const char *const[]){ pattern, NULL }, remove_name, NULL);
    if (read_lock(path, &found) == 0 && found.nonce == held.lock.nonce) unlink(path);
    held.fd = -1;
}
