// bootstrap_jobs.h: ranks that meet, as processes of their own, for test_bootstrap.c.
#ifndef BOOTSTRAP_JOBS_H
#define BOOTSTRAP_JOBS_H
#include <arpa/inet.h>
#include <dirent.h>
#include <math.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "test/harness/ranks.h"
#include "trainer/launch.h"
#include "zero/clock.h"
#include "zero/comm/bootstrap/bootstrap.h"
#include "zero/comm/bootstrap/mpi.h"

enum { MAX_RANKS = 8, LARGE = 100000 };
static const size_t SIZES[] = { 1, 128, LARGE, 0, 8, 8 };
enum { ROUNDS = sizeof SIZES / sizeof SIZES[0] };

// Time-outs in seconds: one that is not meant to pass, and one that is, but not before those who are there have met.
static const double PATIENT = 60;
static double brief = 0.6;

static char directory[64];
static uint64_t dice;

static unsigned below(unsigned n) {
    dice ^= dice << 13;
    dice ^= dice >> 7;
    dice ^= dice << 17;
    return (unsigned)(dice >> 33) % n;
}

static void sleep_ms(double ms) {
    nanosleep(&(struct timespec){ (time_t)(ms / 1000), (long)(1e6 * (ms - 1000.0 * (double)(long)(ms / 1000))) }, NULL);
}

// ---- a rank ---------------------------------------------------------------------------------------------------------

typedef struct Rank {
    const char *way, *server, *job;  // fs: server is the directory
    int rank, ranks, run;
    double timeout_s;
    int leave_at, wrong_at;  // a round from which it does not come back; in which it has another size; -1:
                             // none
    int empty_rounds;        // all-gathers of nothing, after the others
} Rank;

static unsigned char byte_of(int run, int rank, size_t round, size_t i) {
    return (unsigned char)((size_t)run * 131 + (size_t)rank * 17 + round * 5 + i);
}

// Of the ranks, the last one whose bytes begin with an even one, or rank 0.
static int last_even(const void *all, int ranks) {
    const unsigned char *bytes = all;
    int r = ranks - 1;
    while (r > 0 && bytes[r * 3] % 2) r--;
    return r;
}

// Each rank gets three bytes of one rank; NULL or what is wrong.
static const char *choose(zero_bootstrap *b, const Rank *r) {
    unsigned char mine[3], got[4] = { 0, 0, 0, 77 };
    int chosen = r->ranks - 1;
    for (size_t round = 0; round < 3; round++) {
        for (size_t i = 0; i < 3; i++) mine[i] = byte_of(r->run, r->rank, round, i);
        if (zero_bootstrap_choose(b, mine, 3, last_even, got)) return zero_bootstrap_error(b);
        for (chosen = r->ranks - 1; chosen > 0 && byte_of(r->run, chosen, round, 0) % 2;) chosen--;
        for (size_t i = 0; i < 3; i++)
            if (got[i] != byte_of(r->run, chosen, round, i)) return "another rank's bytes were chosen";
        if (got[3] != 77) return "more bytes were written than those of one rank";
    }
    return NULL;
}

// All rounds; NULL or what is wrong.
static const char *gather(zero_bootstrap *b, const Rank *r) {
    static unsigned char mine[LARGE + 1], all[MAX_RANKS * (LARGE + 1)];
    for (size_t round = 0; round < ROUNDS; round++) {
        const size_t bytes = SIZES[round] + ((int)round == r->wrong_at);
        if ((int)round == r->leave_at) _exit(0);
        for (size_t i = 0; i < bytes; i++) mine[i] = byte_of(r->run, r->rank, round, i);
        memset(all, 0xee, sizeof all);
        if (zero_bootstrap_allgather(b, mine, bytes, all)) {
            const int again = zero_bootstrap_allgather(b, mine, bytes, all);
            return again ? zero_bootstrap_error(b) : "an all-gather works after one that has failed";
        }
        for (int other = 0; other < r->ranks; other++)
            for (size_t i = 0; i < bytes; i++)
                if (all[(size_t)other * bytes + i] != byte_of(r->run, other, round, i))
                    return "wrong bytes were gathered";
    }
    for (int i = 0; i < r->empty_rounds; i++)
        if (zero_bootstrap_allgather(b, mine, 0, all)) return zero_bootstrap_error(b);
    return choose(b, r);
}

static const char *be_rank(const Rank *r) {
    const zero_bootstrap_config config = { r->rank, r->ranks, r->timeout_s, r->job };
    static char words[2000];
    zero_bootstrap *b = NULL;
    const int e = !strcmp(r->way, "fs") ? zero_bootstrap_create_fs(&b, r->server, &config)
                                        : zero_bootstrap_create_tcp(&b, r->server, &config);
    const char *wrong = e ? zero_bootstrap_error(b) : gather(b, r);
    snprintf(words, sizeof words, "%s", wrong ? wrong : "ok");
    if (e && !words[0]) return "a failure without words";
    zero_bootstrap_destroy(b);
    return words;
}

// ---- jobs: several of them ------------------------------------------------------------------------------------------

typedef struct Job {
    int count;
    pid_t pid[MAX_RANKS];
    int from[MAX_RANKS];
    char said[MAX_RANKS][2000];
} Job;

static const char *be_launched(const Rank *r, int per_host, int late);

static void start_as(Job *j, Rank r, int launched, int per_host, int late) {
    int ends[2];
    fflush(stdout);
    if (pipe(ends)) abort();
    const pid_t pid = fork();
    if (pid < 0) abort();
    if (pid == 0) {
        alarm(300);
        close(ends[0]);
        const char *words = launched ? be_launched(&r, per_host, late) : be_rank(&r);
        _exit(write(ends[1], words, strlen(words)) < 0);
    }
    close(ends[1]);
    j->pid[j->count] = pid;
    j->from[j->count++] = ends[0];
}

static void start(Job *j, Rank r) { start_as(j, r, 0, 0, 0); }

static void start_ranks(Job *j, Rank r) {
    *j = (Job){ .count = 0 };
    for (int i = 0; i < r.ranks; i++) {
        r.rank = (i + r.run) % r.ranks;  // in another order each run
        start(j, r);
    }
}

// Until all have ended. Returns how many said ok.
static int finish(Job *j) {
    int ok = 0;
    for (int i = 0; i < j->count; i++) {
        size_t got = 0;
        for (ssize_t n; (n = read(j->from[i], j->said[i] + got, sizeof j->said[i] - 1 - got)) > 0;) got += (size_t)n;
        j->said[i][got] = '\0';
        close(j->from[i]);
        waitpid(j->pid[i], NULL, 0);
        ok += !strcmp(j->said[i], "ok");
    }
    return ok;
}

static void check_all_ok(Job *j, int line) {
    finish(j);
    for (int i = 0; i < j->count; i++)
        CHECK_AT(__FILE__, line, !strcmp(j->said[i], "ok"), "process %d: %s", i, j->said[i]);
}
#define CHECK_ALL_OK(job) check_all_ok(job, __LINE__)

#define CHECK_SAYS(job, i, word) \
    CHECK(strstr((job)->said[i], word), "process %d should say \"%s\", but: %s", i, word, (job)->said[i])

// A directory's files; removes them if asked to.
static int files(int remove) {
    int count = 0;
    char path[400];
    DIR *d = opendir(directory);
    for (struct dirent *f; d && (f = readdir(d));) {
        if (f->d_name[0] == '.') continue;
        count++;
        snprintf(path, sizeof path, "%s/%s", directory, f->d_name);
        if (remove) unlink(path);
    }
    if (d) closedir(d);
    return count;
}

// A connection to a server of new_server, or one that listens there.
static int stranger(const char *server, int listens) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
    struct sockaddr_in a = { .sin_family = AF_INET,
                             .sin_port = htons((uint16_t)atoi(strchr(server, ':') + 1)),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    const int wrong = listens ? bind(fd, (struct sockaddr *)&a, sizeof a) || listen(fd, 64)
                              : connect(fd, (struct sockaddr *)&a, sizeof a);
    if (!wrong) return fd;
    close(fd);
    return -1;
}

// A port for each case, at which nobody listens; below those that the system gives to connections.
static const char *new_server(const char *way) {
    static char names[64][32];
    static unsigned count;
    char *name = names[count % 64];
    int fd;
    if (!strcmp(way, "fs")) return directory;
    do {
        const unsigned port = 20300 + ((unsigned)getpid() * 64 + count++) % 12000;
        snprintf(name, 32, "127.0.0.1:%u", port);
        fd = stranger(name, 1);
        if (!strcmp(way, "tcp6")) snprintf(name, 32, "[::1]:%u", port);
    } while (fd < 0);
    close(fd);
    return name;
}

// On a busy machine ranks take longer to meet: `brief` is ten times that.
static void be_patient(const char *way) {
    Job j;
    const double begin = zero_clock();
    start_ranks(&j, (Rank){ way, new_server(way), NULL, 0, 3, 0, PATIENT, -1, -1, 0 });
    finish(&j);
    brief = fmax(0.6, fmin(10 * (zero_clock() - begin), PATIENT));
}

// Waits until one of two processes of a job says something.
static void wait_for_words(const Job *j, int a, int b) {
    struct pollfd ends[2] = { { .fd = j->from[a], .events = POLLIN }, { .fd = j->from[b], .events = POLLIN } };
    poll(ends, 2, 1000 * (int)PATIENT);
}

#endif
