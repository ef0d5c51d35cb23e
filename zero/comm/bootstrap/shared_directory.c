// shared_directory.c: ranks that meet in a directory that all of them see (bootstrap.h).
//
// The danger is what a killed run has left there: a file of the right name, with the wrong contents. So no name is
// trusted, only random numbers that were drawn a moment ago. Each process draws one, its *nonce*.
//
//     rank r      writes hello-r: its nonce
//     rank 0      writes answer: the nonces of all hellos, its own (the *session*), and a version
//     rank r      accepts an answer only if its own nonce is in it, and writes hello-r again, now with session and
//                 version: "seen"
//     rank 0      keeps reading all hellos. If a nonce has changed (a rank has come, or the old one was stale), it
//                 writes a new version. If all ranks have seen this version, it writes "go"
//     rank r      accepts "go", again only with its own nonce in it
//
// A stale hello only makes rank 0 write an answer that nobody confirms; a stale answer has nonces of processes that
// have ended, or an old version. "Go" means that N processes are alive and have read each other's numbers. A rank that
// finds another nonce in its own hello ends: there is a second process of its rank. All-gathers follow in files that
// have the session in their names, so those of other runs are not even read.
//
// Files are written under another name and renamed, and contain their length and a hash. The last reader of a file
// removes it, so that nothing is left at the end. Files that a crash has left are overwritten, or removed by a later
// run when they are a day old.
//
// NFS: a client may remember for a minute that a file did not exist. Opening the directory makes it ask the server
// again, and a file is reopened each time it is read. (Written from the manual; so far run on local file systems only.)
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>
#include "zero/clock.h"
#include "zero/comm/bootstrap/bootstrap_internal.h"

#define MAGIC  "zero-f1"  // and the version of the formats here
#define PREFIX "zero-meet-"
enum { A_DAY = 24 * 60 * 60, MAX_PATH = 4096 };
#define FIRST_PAUSE 0.001  // seconds between two reads, at first, and after a while
#define LAST_PAUSE  0.05
#define LAST_WAIT   10.0  // seconds that rank 0 waits in the end for ranks that still have to read

struct head {
    char magic[8];
    uint64_t bytes, hash;
};  // at the start of each file
struct hello {
    uint64_t nonce, session, version;
    int32_t rank, ranks;
};
enum verdict { SEEN = 1, GO, FAILED };
// followed by nonces, or by the gathered bytes
struct answer {
    uint64_t session, version, round, bytes;
    int32_t verdict, ranks;
    char message[ZERO_BOOTSTRAP_MESSAGE_BYTES];
};
struct letter {
    uint64_t round, bytes;
};  // followed by the rank's bytes

typedef struct bootstrap_fs {
    zero_bootstrap base;
    char prefix[MAX_PATH - 128];  // DIRECTORY/zero-meet-JOB
    char directory[MAX_PATH - 256];
    uint64_t nonce, session;
    char last[MAX_PATH];  // rank 0: the last file that it has written, which others may still have to read
    char trouble[256];    // the last file that could not be read, and why, for the message
} bootstrap_fs;

// ---- files ----------------------------------------------------------------------------------------------------------

#define PATH(path, ...)                                               \
    do {                                                              \
        const int n_ = snprintf(path, sizeof path, "%s-", t->prefix); \
        snprintf(path + n_, sizeof path - (size_t)n_, __VA_ARGS__);   \
    } while (0)

static void hello_path(const bootstrap_fs *t, char path[MAX_PATH], int rank) {
    snprintf(path, MAX_PATH, "%s-hello-%d", t->prefix, rank);
}

static void round_path(const bootstrap_fs *t, char path[MAX_PATH], int rank)  // rank < 0: of all
{
    char who[16] = "all";
    if (rank >= 0) snprintf(who, sizeof who, "%d", rank);
    snprintf(path, MAX_PATH, "%s-%016llx-%llu-%s", t->prefix, (unsigned long long)t->session,
             (unsigned long long)t->base.round, who);
}

// Makes a network file system's client ask its server.
static void look_around(const bootstrap_fs *t) {
    DIR *d = opendir(t->directory);
    if (d) closedir(d);
}

static int write_all(int fd, const void *data, size_t bytes) {
    for (const char *at = data; bytes > 0;) {
        const ssize_t n = write(fd, at, bytes);
        if (n < 0 && errno != EINTR) return -1;
        if (n > 0) at += n, bytes -= (size_t)n;
    }
    return 0;
}

// Writes a file of two parts, completely or not at all.
static int write_file(bootstrap_fs *t, const char *path, const void *first, size_t first_bytes, const void *second,
                      size_t second_bytes) {
    char temporary[MAX_PATH + 32];
    struct head head = { MAGIC, first_bytes + second_bytes,
                         XXH3_64bits(first, first_bytes) ^ XXH3_64bits_withSeed(second, second_bytes, 1) };
    snprintf(temporary, sizeof temporary, "%s.%016llx", path, (unsigned long long)t->nonce);
    const int fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    int wrong = fd < 0 || write_all(fd, &head, sizeof head) || write_all(fd, first, first_bytes) ||
                write_all(fd, second, second_bytes);
    int problem = errno;
    if (fd >= 0 && close(fd) && !wrong) wrong = 1, problem = errno;
    if (!wrong && rename(temporary, path)) wrong = 1, problem = errno;
    if (!wrong) return ZERO_OK;
    if (fd >= 0) unlink(temporary);
    return zero_bootstrap_fail(
        &t->base, ZERO_ERR_COMM,
        "%.400s cannot be written: %s: all ranks need the right to write in a directory with space (directory)", path,
        strerror(problem));
}

// Reads a file of two parts. Returns 1; or 0: there is no such file, or it has other sizes.
static int read_file(bootstrap_fs *t, const char *path, void *first, size_t first_bytes, void *second,
                     size_t second_bytes) {
    struct head head;
    struct stat st;
    char *data = NULL;
    int ok = 0;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        if (errno != ENOENT && errno != ESTALE)
            snprintf(t->trouble, sizeof t->trouble, "; %.180s: %s", path, strerror(errno));
        return 0;
    }
    const size_t bytes = first_bytes + second_bytes;
    if (!fstat(fd, &st) && (size_t)st.st_size == sizeof head + bytes &&
        read(fd, &head, sizeof head) == (ssize_t)sizeof head && !memcmp(head.magic, MAGIC, sizeof head.magic) &&
        head.bytes == bytes && (data = malloc(bytes + 1))) {
        size_t got = 0;
        for (ssize_t n; got < bytes && (n = read(fd, data + got, bytes - got)) > 0;) got += (size_t)n;
        ok = got == bytes &&
             head.hash == (XXH3_64bits(data, first_bytes) ^ XXH3_64bits_withSeed(data + first_bytes, second_bytes, 1));
    }
    close(fd);
    if (ok) {
        memcpy(first, data, first_bytes);
        if (second_bytes) memcpy(second, data + first_bytes, second_bytes);
    }
    free(data);
    return ok;
}

// ---- start ----------------------------------------------------------------------------------------------------------

static int write_hello(bootstrap_fs *t, uint64_t session, uint64_t version) {
    const struct hello h = { t->nonce, session, version, t->base.rank, t->base.ranks };
    char path[MAX_PATH];
    hello_path(t, path, t->base.rank);
    return write_file(t, path, &h, sizeof h, NULL, 0);
}

static int read_hello(bootstrap_fs *t, int rank, struct hello *h) {
    char path[MAX_PATH];
    hello_path(t, path, rank);
    return read_file(t, path, h, sizeof *h, NULL, 0);
}

static void remove_hello(bootstrap_fs *t) {
    struct hello h;
    char path[MAX_PATH];
    hello_path(t, path, t->base.rank);
    if (read_hello(t, t->base.rank, &h) && h.nonce == t->nonce) unlink(path);
}

// Checks that hello-r is this process's: another process of this rank may have replaced or removed it.
static int keep_hello(bootstrap_fs *t, uint64_t session, uint64_t version) {
    struct hello h;
    if (!read_hello(t, t->base.rank, &h)) return write_hello(t, session, version);
    if (h.nonce == t->nonce) return ZERO_OK;
    return zero_bootstrap_fail(&t->base, ZERO_ERR_COMM,
                               "there is a second rank %d in %.300s: each process must be given a rank of its own "
                               "(zero_bootstrap_config.rank), each job a directory (directory)",
                               t->base.rank, t->directory);
}

static int write_answer(bootstrap_fs *t, enum verdict verdict, uint64_t version, const uint64_t *nonces,
                        const char *message) {
    struct answer a = { .session = t->session, .version = version, .verdict = verdict, .ranks = t->base.ranks };
    snprintf(a.message, sizeof a.message, "%s", message);
    PATH(t->last, "answer");
    return write_file(t, t->last, &a, sizeof a, nonces, (size_t)t->base.ranks * sizeof *nonces);
}

// Whether a run of ours wrote this file: it begins as ours do.
static int is_ours(int directory, const char *name) {
    struct head head;
    const int fd = openat(directory, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
    const int ours = fd >= 0 && read(fd, &head, sizeof head) == (ssize_t)sizeof head &&
                     !memcmp(head.magic, MAGIC, sizeof head.magic);
    if (fd >= 0) close(fd);
    return ours;
}

// Removes files of runs that ended long ago, by the clock of the file server.
static void remove_old_files(const bootstrap_fs *t) {
    char path[MAX_PATH];
    struct stat mine, st;
    hello_path(t, path, 0);
    DIR *d = stat(path, &mine) ? NULL : opendir(t->directory);
    if (!d) return;
    for (struct dirent *f; (f = readdir(d));) {
        if (strncmp(f->d_name, PREFIX, strlen(PREFIX))) continue;
        if (!fstatat(dirfd(d), f->d_name, &st, AT_SYMLINK_NOFOLLOW) && S_ISREG(st.st_mode) &&
            st.st_mtime < mine.st_mtime - A_DAY && is_ours(dirfd(d), f->d_name))
            unlinkat(dirfd(d), f->d_name, 0);
    }
    closedir(d);
}

static int start_as_0(bootstrap_fs *t) {
    zero_bootstrap *b = &t->base;
    zero_stopwatch waited = { 0 };
    unsigned char *here = calloc((size_t)b->ranks, 1);
    uint64_t *nonces = calloc((size_t)b->ranks, sizeof *nonces), version = 0;
    char wrong[128] = "";
    int e = here && nonces ? write_hello(t, 0, 0) : zero_bootstrap_fail(b, ZERO_ERR_MEMORY, "out of host memory");
    t->session = t->nonce;
    if (!e) remove_old_files(t), nonces[0] = t->nonce, here[0] = 1;
    for (double pause = FIRST_PAUSE; !e; zero_bootstrap_pause(&pause, LAST_PAUSE)) {
        int changed = version == 0, seen = 1;  // seen: ranks that have seen this version
        look_around(t);
        if ((e = keep_hello(t, 0, 0))) break;
        for (int r = 1; r < b->ranks; r++) {
            struct hello h;
            const int found = read_hello(t, r, &h), fits = found && h.rank == r && h.ranks == b->ranks;
            if (found && !fits)
                snprintf(wrong, sizeof wrong,
                         "; rank %d there is one of %d processes, or of an earlier run (zero_bootstrap_config.ranks)",
                         h.rank, h.ranks);
            const uint64_t nonce = fits ? h.nonce : 0;
            changed |= nonce != nonces[r];
            nonces[r] = nonce;
            here[r] = fits && h.session == t->session;
            seen += here[r] && h.version == version;
        }
        if (!changed && seen == b->ranks) {
            e = write_answer(t, GO, version, nonces, "");
            break;
        }
        if (changed) {
            e = write_answer(t, SEEN, ++version, nonces, "");
            pause = FIRST_PAUSE;
        }
        if (!e && zero_stopwatch_read(&waited) > b->timeout_s) {
            char who[256], message[ZERO_BOOTSTRAP_MESSAGE_BYTES];
            zero_bootstrap_missing(b, here, who, sizeof who);
            snprintf(message, sizeof message,
                     "%.200s not come to %.200s within %.3g s: start all %d processes, each with its own rank "
                     "(zero_bootstrap_config.rank), on machines that see this directory (directory), or allow more "
                     "time (zero_bootstrap_config.timeout_s)%s%s",
                     who, t->directory, b->timeout_s, b->ranks, wrong, t->trouble);
            write_answer(t, FAILED, ++version, nonces, message);
            e = zero_bootstrap_fail(b, ZERO_ERR_COMM, "%s", message);
        }
    }
    free(here);
    free(nonces);
    return e;
}

static int start_as_other(bootstrap_fs *t) {
    zero_bootstrap *b = &t->base;
    const double seconds = b->timeout_s + zero_bootstrap_grace(b);
    zero_stopwatch waited = { 0 };
    uint64_t *nonces = calloc((size_t)b->ranks, sizeof *nonces), session = 0, version = 0;
    char path[MAX_PATH], wrong[128] = "";
    PATH(path, "answer");
    int e = nonces ? write_hello(t, 0, 0) : zero_bootstrap_fail(b, ZERO_ERR_MEMORY, "out of host memory");
    for (double pause = FIRST_PAUSE; !e; zero_bootstrap_pause(&pause, LAST_PAUSE)) {
        struct answer a;
        struct hello h;
        look_around(t);
        if ((e = keep_hello(t, session, version))) break;
        if (!version && read_hello(t, 0, &h) && h.ranks != b->ranks)
            snprintf(wrong, sizeof wrong,
                     "; a rank 0 there is one of %d processes, this rank one of %d (zero_bootstrap_config.ranks)",
                     h.ranks, b->ranks);
        if (read_file(t, path, &a, sizeof a, nonces, (size_t)b->ranks * sizeof *nonces) && a.ranks == b->ranks &&
            nonces[b->rank] == t->nonce) {
            if (a.verdict == GO) {
                t->session = a.session;
                break;
            }
            if (a.verdict == FAILED)
                e = zero_bootstrap_fail(b, ZERO_ERR_COMM, "rank 0: %.900s", a.message);
            else if (a.session != session || a.version != version)
                e = write_hello(t, session = a.session, version = a.version), pause = FIRST_PAUSE;
        }
        if (!e && zero_stopwatch_read(&waited) > seconds)
            e = zero_bootstrap_fail(b, ZERO_ERR_COMM,
                                    "rank 0 has not answered in %.250s within %.3g s: is it running, and does it see "
                                    "this directory (directory)? More time: zero_bootstrap_config.timeout_s%s%s",
                                    t->directory, b->timeout_s, wrong, t->trouble);
    }
    free(nonces);
    return e;
}

// ---- all-gather -----------------------------------------------------------------------------------------------------

// Reads the files of this round until all are here, for so many seconds. Returns how many are missing; -1: failed, for
// the reason in err.
static int read_round(bootstrap_fs *t, size_t bytes, char *all, unsigned char *here, double seconds, char *err,
                      size_t err_bytes) {
    zero_bootstrap *b = &t->base;
    int missing = b->ranks - 1;
    zero_stopwatch waited = { 0 };
    for (double pause = FIRST_PAUSE; missing > 0; zero_bootstrap_pause(&pause, LAST_PAUSE)) {
        look_around(t);
        for (int r = 1; r < b->ranks; r++) {
            char path[MAX_PATH];
            struct letter l;
            struct stat st;
            round_path(t, path, r);
            if (here[r]) continue;
            if (read_file(t, path, &l, sizeof l, all + (size_t)r * bytes, bytes)) {
                here[r] = 1;
                missing--;
                pause = FIRST_PAUSE;
                // files are renamed when they are whole
            } else if (!stat(path, &st) && (size_t)st.st_size != sizeof(struct head) + sizeof l + bytes) {
                snprintf(err, err_bytes,
                         "the ranks disagree: rank %d comes with %lld bytes to round %llu, rank 0 with %zu: they took "
                         "different paths, see their own output",
                         r, (long long)st.st_size - (long long)(sizeof(struct head) + sizeof l),
                         (unsigned long long)b->round, bytes);
                return -1;
            }
        }
        if (missing && zero_stopwatch_read(&waited) > seconds) break;
    }
    return missing;
}

static int gather_as_0(bootstrap_fs *t, const void *mine, size_t bytes, char *all, zero_bootstrap_choice *choose) {
    zero_bootstrap *b = &t->base;
    char path[MAX_PATH], message[ZERO_BOOTSTRAP_MESSAGE_BYTES] = "", who[256];
    struct answer a = { .session = t->session, .round = b->round, .bytes = bytes, .verdict = GO, .ranks = b->ranks };
    unsigned char *here = calloc((size_t)b->ranks, 1);
    if (!here) return zero_bootstrap_fail(b, ZERO_ERR_MEMORY, "out of host memory");
    here[0] = 1;
    memmove(all, mine, bytes);
    const int missing = read_round(t, bytes, all, here, b->timeout_s, message, sizeof message);
    if (missing > 0) {
        zero_bootstrap_missing(b, here, who, sizeof who);
        snprintf(message, sizeof message,
                 "%s not come within %.3g s: died, stopped, or took another path; see their own output, or allow more "
                 "time (zero_bootstrap_config.timeout_s)%s",
                 who, b->timeout_s, t->trouble);
    }
    free(here);
    if (missing) {
        a.verdict = FAILED;
        a.bytes = 0;
        snprintf(a.message, sizeof a.message, "%s", message);
    }
    for (int r = 1; r < b->ranks; r++) round_path(t, path, r), unlink(path);
    if (!missing) unlink(t->last);  // all ranks have got here, so they have read it
    round_path(t, t->last, -1);
    if (!missing && choose) memmove(all, all + (size_t)choose(all, b->ranks) * bytes, bytes);
    const int e = write_file(t, t->last, &a, sizeof a, all, missing ? 0 : choose ? bytes : (size_t)b->ranks * bytes);
    return missing ? zero_bootstrap_fail(b, ZERO_ERR_COMM, "%s", message) : e;
}

// answer: the bytes that rank 0 will write.
static int gather_as_other(bootstrap_fs *t, const void *mine, size_t bytes, char *all, size_t answer) {
    zero_bootstrap *b = &t->base;
    const double seconds = b->timeout_s + zero_bootstrap_grace(b);
    zero_stopwatch waited = { 0 };
    const struct letter l = { b->round, bytes };
    char path[MAX_PATH];
    round_path(t, path, b->rank);
    const int e = write_file(t, path, &l, sizeof l, mine, bytes);
    if (e) return e;
    round_path(t, path, -1);
    for (double pause = FIRST_PAUSE;; zero_bootstrap_pause(&pause, LAST_PAUSE)) {
        struct answer a;
        look_around(t);
        if (read_file(t, path, &a, sizeof a, all, answer) && a.verdict == GO) return ZERO_OK;
        // (it may have come after the line above, with 0 bytes in it)
        if (read_file(t, path, &a, sizeof a, NULL, 0) && a.verdict != GO)
            return zero_bootstrap_fail(b, ZERO_ERR_COMM, "rank 0: %.900s", a.message);
        if (zero_stopwatch_read(&waited) > seconds)
            return zero_bootstrap_fail(b, ZERO_ERR_COMM,
                                       "rank 0 has kept this rank waiting for more than %.3g s: it died, stopped, or "
                                       "took another path; see its own output, "
                                       "or allow more time (zero_bootstrap_config.timeout_s)%s",
                                       b->timeout_s, t->trouble);
    }
}

static int allgather(zero_bootstrap *b, const void *mine, size_t bytes, void *all, zero_bootstrap_choice *choose) {
    bootstrap_fs *t = (bootstrap_fs *)b;
    if (b->rank == 0) return gather_as_0(t, mine, bytes, all, choose);
    return gather_as_other(t, mine, bytes, all, choose ? bytes : (size_t)b->ranks * bytes);
}

// ---- create and destroy
// ----------------------------------------------------------------------------------------------

// A last round, of no bytes: when all files are there, nobody reads any more.
static void destroy(zero_bootstrap *b) {
    bootstrap_fs *t = (bootstrap_fs *)b;
    const struct letter l = { b->round, 0 };
    char path[MAX_PATH], err[ZERO_BOOTSTRAP_MESSAGE_BYTES];
    unsigned char *here = calloc((size_t)b->ranks, 1);
    if (!b->failed && here && b->rank > 0) {
        round_path(t, path, b->rank);
        write_file(t, path, &l, sizeof l, NULL, 0);
    } else if (!b->failed && here) {
        const double wait = b->timeout_s < LAST_WAIT ? b->timeout_s : LAST_WAIT;
        read_round(t, 0, NULL, here, wait, err, sizeof err);
        for (int r = 1; r < b->ranks; r++) round_path(t, path, r), unlink(path);
        unlink(t->last);
    }
    free(here);
}

static const zero_bootstrap_ops ops = { allgather, destroy };

int zero_bootstrap_create_fs(zero_bootstrap **out, const char *directory, const zero_bootstrap_config *config) {
    int e = zero_bootstrap_new(out, sizeof(bootstrap_fs), &ops, config);
    if (e) return e;
    zero_bootstrap *b = *out;
    bootstrap_fs *t = (bootstrap_fs *)b;
    if (strlen(directory) >= sizeof t->directory)
        return zero_bootstrap_fail(b, ZERO_ERR_ARG, "%.100s...: the name of the directory is too long (directory)",
                                   directory);
    strcpy(t->directory, directory);
    snprintf(t->prefix, sizeof t->prefix, "%s/" PREFIX "%016llx", directory,
             (unsigned long long)zero_bootstrap_job(config));
    DIR *d = opendir(directory);
    if (!d)
        return zero_bootstrap_fail(b, ZERO_ERR_ARG, "%.400s: %s: name a directory that all ranks see (directory)",
                                   directory, strerror(errno));
    closedir(d);
    while (t->nonce == 0)
        if (getrandom(&t->nonce, sizeof t->nonce, 0) != (ssize_t)sizeof t->nonce)
            return zero_bootstrap_fail(b, ZERO_ERR_ARG, "no random numbers: %s", strerror(errno));
    e = b->rank == 0 ? start_as_0(t) : start_as_other(t);
    remove_hello(t);
    return e;
}
