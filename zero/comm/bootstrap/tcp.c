// tcp.c: ranks that meet at a port of rank 0 (bootstrap.h).
//
// Start. A rank tries to connect until rank 0 listens, and sends a hello: its rank, the number of ranks, the job. When
// all have done so, rank 0 sends "go" to each and stops listening; the connections stay. Until then a process that
// connects is one of these:
//
//     a rank that is missing          accepted
//     one that is connected already   refused, unless the first one's connection is closed: then that process died, and
//                                     this is the next try
//     a rank 0 of this job            refused, since this one has the address: it ends at once
//     one of another number of ranks  refused
//     one of another job              told to try later: this job will soon have left the port
//     anything else                   not answered; a stranger that sends nothing is disconnected after a while, and
//                                     delays nobody
//
// A refused process ends with rank 0's message; rank 0 continues, and mentions it if it has to give up.
//
// All-gather. Each rank sends its bytes to rank 0, with the number of the round and the size; rank 0 sends all of them
// to each, or those of one rank (zero_bootstrap_choose), or the reason why it cannot.
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>
#include "zero/clock.h"
#include "zero/comm/bootstrap/bootstrap_internal.h"

enum { MAX_STRANGERS = 64 };  // connections without a hello so far
#define PATIENCE 10.0         // seconds that a connection has to send its hello
#define MAGIC    "zero.c1"    // and the version of the protocol

struct hello {
    char magic[8];
    int32_t rank, ranks;
    uint64_t job;
};
enum verdict { GO = 1, LATER, REFUSED };
struct answer {
    char magic[8];
    uint64_t verdict, round, bytes;
    char message[ZERO_BOOTSTRAP_MESSAGE_BYTES];
};
struct letter {
    char magic[8];
    uint64_t round, bytes;
};

// The other end of a connection. fd < 0: none.
struct peer {
    int fd;
    size_t got;
    double since;
    char from[64];
    struct hello hello;
    struct letter letter;
};

typedef struct bootstrap_tcp {
    zero_bootstrap base;
    uint64_t job;
    int listening;
    struct peer *peers;  // rank 0: [ranks], its own is not used; else: [1], rank 0
    int connected;       // rank 0: of peers
    struct peer *strangers;
    char refused[192];  // rank 0: the last one that was
} bootstrap_tcp;

static void hang_up(struct peer *p) {
    if (p->fd >= 0) close(p->fd);
    p->fd = -1;
    p->got = 0;
}

// What is left of a time: only time in which this process runs counts (zero/clock.h).
struct patience {
    double seconds;
    zero_stopwatch waited;
};

static double left(struct patience *p) { return p->seconds - zero_stopwatch_read(&p->waited); }

// How long to poll, at most the half second in which a stopwatch wants to be read.
static int milliseconds(struct patience *p) {
    const double s = left(p);
    return s <= 0 ? 0 : (int)(1000 * (s < 0.5 ? s : 0.5)) + 1;
}

// Waits until fd is ready for `events`, at most so many seconds. Returns 0 if it is not in time.
static int ready_within(double seconds, int fd, short events, struct patience *patience) {
    struct pollfd p = { fd, events, 0 };
    const double end = left(patience) - seconds;
    while (poll(&p, 1, milliseconds(patience)) <= 0)
        if (left(patience) <= (end > 0 ? end : 0)) return 0;
    return 1;
}

static int ready(int fd, short events, struct patience *patience) {
    return ready_within(patience->seconds, fd, events, patience);
}

// Both return NULL, or what went wrong.
static const char *send_all(int fd, const void *data, size_t bytes, struct patience *patience) {
    const char *at = data;
    while (bytes > 0) {
        const ssize_t n = send(fd, at, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && errno != EAGAIN && errno != EINTR) return strerror(errno);
        if (n < 0 && !ready(fd, POLLOUT, patience)) return "it does not read";
        if (n > 0) at += n, bytes -= (size_t)n;
    }
    return NULL;
}

static const char *receive_all(int fd, void *data, size_t bytes, struct patience *patience) {
    char *at = data;
    while (bytes > 0) {
        const ssize_t n = recv(fd, at, bytes, MSG_DONTWAIT);
        if (n == 0) return "it closed the connection";
        if (n < 0 && errno != EAGAIN && errno != EINTR) return strerror(errno);
        if (n < 0 && !ready(fd, POLLIN, patience)) return "it does not answer";
        if (n > 0) at += n, bytes -= (size_t)n;
    }
    return NULL;
}

static const char *send_answer(int fd, enum verdict verdict, uint64_t round, uint64_t bytes, const char *message,
                               struct patience *patience) {
    struct answer a = { MAGIC, verdict, round, bytes, "" };
    snprintf(a.message, sizeof a.message, "%s", message);
    return send_all(fd, &a, sizeof a, patience);
}

// Rank 0 cannot go on: it tells the others why.
static int give_up(bootstrap_tcp *t, int code, const char *message) {
    zero_bootstrap *b = &t->base;
    for (int r = 1; r < b->ranks; r++)
        if (t->peers[r].fd >= 0) {
            send_answer(t->peers[r].fd, REFUSED, b->round, 0, message, &(struct patience){ .seconds = 0 });
            hang_up(&t->peers[r]);
        }
    return zero_bootstrap_fail(b, code, "%s", message);
}

// ---- the address ----------------------------------------------------------------------------------------------------

static struct addrinfo *look_up(const char *host, const char *port, int flags, int *error) {
    struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = flags }, *list = NULL;
    *error = getaddrinfo(host, port, &hints, &list);
    return *error ? NULL : list;
}

static int is_loopback(const struct sockaddr *a) {
    if (a->sa_family == AF_INET) return ntohl(((const struct sockaddr_in *)a)->sin_addr.s_addr) >> 24 == 127;
    return a->sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)a)->sin6_addr);
}

static void describe(char *out, size_t bytes, const struct sockaddr *a, socklen_t length) {
    char host[48], port[8];
    if (getnameinfo(a, length, host, sizeof host, port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV))
        snprintf(out, bytes, "an unknown address");
    else
        snprintf(out, bytes, a->sa_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host, port);
}

// Returns a connection; -1: none, for the reason in *why; -2: there will never be one, since there is no such name.
static int connect_to(const char *host, const char *port, struct patience *patience, char *why, size_t why_bytes) {
    int error, fd = -1;
    const double begin = zero_clock();
    struct addrinfo *list = look_up(host, port, 0, &error);
    patience->waited.read_at = zero_clock();  // a name server may keep this process waiting for long, and that counts
    patience->waited.seconds += patience->waited.read_at - begin;
    if (!list) snprintf(why, why_bytes, "%s", gai_strerror(error));
    if (!list && error == EAI_NONAME) return -2;
    for (struct addrinfo *a = list; a; a = a->ai_next) {
        const int one = 1;
        int problem = 0;
        socklen_t length = sizeof problem;
        fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0)
            problem = errno;
        else if (connect(fd, a->ai_addr, a->ai_addrlen) && errno != EINPROGRESS)
            problem = errno;
        else if (!ready_within(5, fd, POLLOUT, patience))
            problem = ETIMEDOUT;
        else
            getsockopt(fd, SOL_SOCKET, SO_ERROR, &problem, &length);
        if (!problem) {
            setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
            break;
        }
        snprintf(why, why_bytes, "%s", strerror(problem));
        if (fd >= 0) close(fd);
        fd = -1;
    }
    if (list) freeaddrinfo(list);
    return fd;
}

// ---- rank 0 ---------------------------------------------------------------------------------------------------------

// Returns a socket that listens; or -errno, and *why. Many machines resolve their own name to a loopback address, which
// others cannot reach: then rank 0 listens at all addresses.
static int listen_at(const char *host, const char *port, char *why, size_t why_bytes) {
    int error, number, fd = -EINVAL;
    struct addrinfo *list = look_up(host, port, 0, &error), *numeric = look_up(host, port, AI_NUMERICHOST, &number);
    if (list && !numeric && strcmp(host, "localhost") && is_loopback(list->ai_addr)) {
        freeaddrinfo(list);
        list = look_up(NULL, port, AI_PASSIVE, &error);
    }
    if (numeric) freeaddrinfo(numeric);
    if (!list) snprintf(why, why_bytes, "%s", gai_strerror(error));
    for (struct addrinfo *a = list; a && fd < 0; a = a->ai_next) {
        const int one = 1, zero = 0;
        fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd >= 0) {
            // an earlier run's port may linger for a minute
            setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
            if (a->ai_family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof zero);
            if (!bind(fd, a->ai_addr, a->ai_addrlen) && !listen(fd, SOMAXCONN)) break;
        }
        const int problem = errno;
        snprintf(why, why_bytes, "%s%s", strerror(problem),
                 problem == EADDRNOTAVAIL ? ": rank 0 has to run on the machine with that address"
                 : problem == EADDRINUSE  ? ": another rank 0 or program listens there: give each run a port of its own"
                                          : "");
        if (fd >= 0) close(fd);
        fd = -problem;
    }
    if (list) freeaddrinfo(list);
    return fd;
}

static void answer_call(bootstrap_tcp *t) {
    struct sockaddr_storage from;
    socklen_t length = sizeof from;
    const int fd = accept4(t->listening, (struct sockaddr *)&from, &length, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0 && (errno == EMFILE || errno == ENFILE)) {
        snprintf(t->refused, sizeof t->refused,
                 "; rank 0 has no file descriptors left for more connections: raise ulimit -n");
        zero_bootstrap_pause(&(double){ 0.1 }, 0.1);
    }
    if (fd < 0) return;
    struct peer *oldest = &t->strangers[0], *s = NULL;
    for (int i = 0; i < MAX_STRANGERS && !s; i++) {
        if (t->strangers[i].fd < 0) s = &t->strangers[i];
        if (t->strangers[i].since < oldest->since) oldest = &t->strangers[i];
    }
    if (!s) hang_up(s = oldest);
    *s = (struct peer){ .fd = fd, .since = zero_clock() };
    describe(s->from, sizeof s->from, (struct sockaddr *)&from, length);
}

static void refuse(bootstrap_tcp *t, struct peer *s, enum verdict verdict, const char *message) {
    snprintf(t->refused, sizeof t->refused, "; refused was rank %d of %d, from %s%s", s->hello.rank, s->hello.ranks,
             s->from, verdict == LATER ? ", of another job" : "");
    send_answer(s->fd, verdict, 0, 0, message, &(struct patience){ .seconds = 0 });
    hang_up(s);
}

static int is_closed(int fd) {
    char c;
    const ssize_t n = recv(fd, &c, 1, MSG_PEEK | MSG_DONTWAIT);
    return n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR);
}

// Reads what a connection sends; a complete hello is accepted or refused.
static void listen_to(bootstrap_tcp *t, struct peer *s) {
    zero_bootstrap *b = &t->base;
    const ssize_t n = recv(s->fd, (char *)&s->hello + s->got, sizeof s->hello - s->got, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n > 0) s->got += (size_t)n;
    if (n <= 0 || memcmp(s->hello.magic, MAGIC, s->got < 8 ? s->got : 8)) {
        hang_up(s);
        return;
    }
    if (s->got < sizeof s->hello) return;

    const struct hello *h = &s->hello;
    char message[256];
    if (h->job != t->job) {
        refuse(t, s, LATER, "another job is using this address: choose another port, or wait");
    } else if (h->ranks != b->ranks) {
        snprintf(message, sizeof message,
                 "this process was started as one of %d, rank 0 as one of %d: all must be given the same number "
                 "(zero_bootstrap_config.ranks)",
                 h->ranks, b->ranks);
        refuse(t, s, REFUSED, message);
    } else if (h->rank < 1 || h->rank >= b->ranks) {
        snprintf(message, sizeof message,
                 "rank %d is not one that rank 0 waits for: each process must be given its own, from 0 to %d "
                 "(zero_bootstrap_config.rank)",
                 h->rank, b->ranks - 1);
        refuse(t, s, REFUSED, message);
    } else if (t->peers[h->rank].fd >= 0 && !is_closed(t->peers[h->rank].fd)) {
        snprintf(message, sizeof message,
                 "there is a rank %d already, at %s: each process must be given a rank of its own "
                 "(zero_bootstrap_config.rank)",
                 h->rank, t->peers[h->rank].from);
        refuse(t, s, REFUSED, message);
    } else {
        const int one = 1;
        t->connected += t->peers[h->rank].fd < 0;
        hang_up(&t->peers[h->rank]);
        setsockopt(s->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        t->peers[h->rank] = *s;
        s->fd = -1;
    }
}

// Sets here[r] for the ranks that have come and are still connected.
static int count_missing(bootstrap_tcp *t, unsigned char *here) {
    int missing = 0;
    here[0] = 1;
    for (int r = 1; r < t->base.ranks; r++) {
        if (t->peers[r].fd >= 0 && is_closed(t->peers[r].fd)) hang_up(&t->peers[r]);
        here[r] = t->peers[r].fd >= 0;
        missing += !here[r];
    }
    t->connected = t->base.ranks - 1 - missing;
    return missing;
}

static int wait_for_all(bootstrap_tcp *t, const char *server, struct patience *patience) {
    zero_bootstrap *b = &t->base;
    int e = ZERO_OK, missing = 1;
    unsigned char *here = calloc((size_t)b->ranks, 1);
    struct pollfd *polls = calloc(1 + MAX_STRANGERS, sizeof *polls);
    if (!here || !polls) e = give_up(t, ZERO_ERR_MEMORY, "out of host memory");
    while (!e) {
        // Each connection is asked whether it is closed only when all ranks have come, not whenever one comes.
        const int late = left(patience) <= 0;
        if (t->connected == b->ranks - 1 || late) missing = count_missing(t, here);
        if (!missing || late) break;
        polls[0] = (struct pollfd){ t->listening, POLLIN, 0 };
        // poll leaves out negative ones
        for (int i = 0; i < MAX_STRANGERS; i++) polls[1 + i] = (struct pollfd){ t->strangers[i].fd, POLLIN, 0 };
        const int some = poll(polls, 1 + MAX_STRANGERS, milliseconds(patience));
        for (int i = 0; i < MAX_STRANGERS; i++) {
            struct peer *s = &t->strangers[i];
            if (s->fd >= 0 && some > 0 && polls[1 + i].revents)
                listen_to(t, s);
            else if (s->fd >= 0 && zero_clock() > s->since + PATIENCE)
                hang_up(s);
        }
        if (some > 0 && polls[0].revents) answer_call(t);
    }
    for (int i = 0; i < MAX_STRANGERS; i++) hang_up(&t->strangers[i]);
    if (!e && missing) {
        char who[256], message[ZERO_BOOTSTRAP_MESSAGE_BYTES];
        zero_bootstrap_missing(b, here, who, sizeof who);
        snprintf(message, sizeof message,
                 "%s not come to %s within %.3g s: start all %d processes, each with its own rank "
                 "(zero_bootstrap_config.rank), on machines that can reach this address (server), or allow more time "
                 "(zero_bootstrap_config.timeout_s)%s",
                 who, server, b->timeout_s, b->ranks, t->refused);
        e = give_up(t, ZERO_ERR_COMM, message);
    }
    // one that has died shows in the first all-gather
    for (int r = 1; r < b->ranks && !e; r++)
        send_answer(t->peers[r].fd, GO, 0, 0, "", &(struct patience){ .seconds = 1 });
    free(here);
    free(polls);
    return e;
}

// Whether what listens at rank 0's address will stay: another rank 0 of this job, or another program. A rank 0 of
// another job leaves soon, and says so.
static int is_taken(bootstrap_tcp *t, const char *host, const char *port) {
    const struct hello hello = { MAGIC, 0, t->base.ranks, t->job };
    struct patience patience = { .seconds = 5 };
    struct answer a;
    char why[64];
    const int fd = connect_to(host, port, &patience, why, sizeof why);
    if (fd < 0) return 0;
    const char *problem = send_all(fd, &hello, sizeof hello, &patience);
    if (!problem) problem = receive_all(fd, &a, sizeof a, &patience);
    close(fd);
    if (problem) return left(&patience) <= 0;  // it does not answer; else it has just left
    return memcmp(a.magic, MAGIC, sizeof a.magic) || a.verdict == REFUSED;
}

static int start_server(bootstrap_tcp *t, const char *server, const char *host, const char *port) {
    zero_bootstrap *b = &t->base;
    struct patience patience = { .seconds = b->timeout_s };
    char why[256] = "";
    t->strangers = calloc(MAX_STRANGERS, sizeof *t->strangers);
    if (!t->strangers) return zero_bootstrap_fail(b, ZERO_ERR_MEMORY, "out of host memory");
    for (int i = 0; i < MAX_STRANGERS; i++) t->strangers[i].fd = -1;
    // Another job may be about to leave the port.
    for (double pause = 0.02; (t->listening = listen_at(host, port, why, sizeof why)) < 0;
         zero_bootstrap_pause(&pause, 0.5))
        if (t->listening != -EADDRINUSE || is_taken(t, host, port) || left(&patience) <= 0)
            return zero_bootstrap_fail(b, ZERO_ERR_COMM, "rank 0 cannot listen at %.200s, port %s: %s (server)", host,
                                       port, why);
    const int e = wait_for_all(t, server, &patience);
    close(t->listening);
    t->listening = -1;
    return e;
}

// ---- the others -----------------------------------------------------------------------------------------------------

static int start_client(bootstrap_tcp *t, const char *host, const char *port) {
    zero_bootstrap *b = &t->base;
    struct patience patience = { .seconds = b->timeout_s };
    const struct hello hello = { MAGIC, b->rank, b->ranks, t->job };
    struct answer a = { .verdict = 0 };
    char why[ZERO_BOOTSTRAP_MESSAGE_BYTES] = "";
    for (double pause = 0.02; left(&patience) > 0; zero_bootstrap_pause(&pause, 0.3)) {
        const int fd = connect_to(host, port, &patience, why, sizeof why);
        if (fd == -2)
            return zero_bootstrap_fail(
                b, ZERO_ERR_COMM, "%.200s: %s: give the name or the address of rank 0's machine (server)", host, why);
        if (fd < 0) continue;
        const char *problem = send_all(fd, &hello, sizeof hello, &patience);
        patience.seconds += zero_bootstrap_grace(b);
        if (!problem) problem = receive_all(fd, &a, sizeof a, &patience);
        patience.seconds -= zero_bootstrap_grace(b);
        if (!problem && memcmp(a.magic, MAGIC, sizeof a.magic)) problem = "what listens there is another program";
        if (!problem && a.verdict == GO) {
            t->peers[0].fd = fd;
            return ZERO_OK;
        }
        close(fd);
        a.message[sizeof a.message - 1] = '\0';
        if (!problem && a.verdict == REFUSED)
            return zero_bootstrap_fail(b, ZERO_ERR_COMM, "rank 0 at %s, port %s: %.900s", host, port, a.message);
        snprintf(why, sizeof why, "%s", problem ? problem : a.message);
    }
    return zero_bootstrap_fail(b, ZERO_ERR_COMM,
                               "rank 0 was not found at %.200s, port %s, within %.3g s (%.250s): is it running, on the "
                               "machine with this address (server), "
                               "and does no firewall close the port? More time: zero_bootstrap_config.timeout_s",
                               host, port, b->timeout_s, why);
}

// ---- all-gather -----------------------------------------------------------------------------------------------------

// Receives what has arrived of rank r's header and bytes. Returns 1: all, 0: not yet, -1: failed, for the reason in
// err.
static int receive_letter(bootstrap_tcp *t, int r, size_t bytes, char *out, char *err, size_t err_bytes) {
    struct peer *p = &t->peers[r];
    for (;;) {
        const size_t head = sizeof p->letter;
        char *at = p->got < head ? (char *)&p->letter + p->got : out + (p->got - head);
        const size_t want = p->got < head ? head - p->got : head + bytes - p->got;
        const ssize_t n = want ? recv(p->fd, at, want, MSG_DONTWAIT) : 0;
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
        if (want && n <= 0) {
            snprintf(err, err_bytes, "rank %d is gone (%s): it died, or ended; see its own output", r,
                     n ? strerror(errno) : "it closed the connection");
            return -1;
        }
        p->got += (size_t)n;
        if (p->got == head && (memcmp(p->letter.magic, MAGIC, sizeof p->letter.magic) ||
                               p->letter.round != t->base.round || p->letter.bytes != bytes)) {
            snprintf(err, err_bytes,
                     "the ranks disagree: rank %d comes with %llu bytes to round %llu, rank 0 with %zu to round %llu: "
                     "they took different paths, see their own output",
                     r, (unsigned long long)p->letter.bytes, (unsigned long long)p->letter.round, bytes,
                     (unsigned long long)t->base.round);
            return -1;
        }
        if (p->got == head + bytes) return 1;
    }
}

static int gather_as_server(bootstrap_tcp *t, const void *mine, size_t bytes, char *all,
                            zero_bootstrap_choice *choose) {
    zero_bootstrap *b = &t->base;
    struct patience patience = { .seconds = b->timeout_s };
    const size_t ranks = (size_t)b->ranks;
    unsigned char *here = calloc(ranks, 1);
    struct epoll_event events[64];
    const int waiting = epoll_create1(EPOLL_CLOEXEC);  // for those that have not come: a wait takes no look at the rest
    char message[ZERO_BOOTSTRAP_MESSAGE_BYTES] = "";
    int e = ZERO_OK, missing = b->ranks - 1;
    if (!here)
        e = give_up(t, ZERO_ERR_MEMORY, "out of host memory");
    else if (waiting < 0)
        e = give_up(t, ZERO_ERR_COMM, "rank 0 has no file descriptor left (epoll): raise ulimit -n");
    for (int r = 1; r < b->ranks && !e; r++) {
        t->peers[r].got = 0;
        events[0] = (struct epoll_event){ .events = EPOLLIN, .data.fd = r };
        if (epoll_ctl(waiting, EPOLL_CTL_ADD, t->peers[r].fd, events))
            e = give_up(t, ZERO_ERR_COMM,
                        "rank 0 cannot wait for so many connections: raise fs.epoll.max_user_watches");
    }
    if (!e) memmove(all, mine, bytes), here[0] = 1;
    while (!e && missing) {
        const int n = epoll_wait(waiting, events, sizeof events / sizeof *events, milliseconds(&patience));
        if (n <= 0 && left(&patience) <= 0) break;
        for (int i = 0; i < n && !e; i++) {
            const int r = events[i].data.fd;
            const int done = receive_letter(t, r, bytes, all + (size_t)r * bytes, message, sizeof message);
            if (done < 0) {
                e = give_up(t, ZERO_ERR_COMM, message);
            } else if (done) {
                here[r] = 1, missing--;
                (void)epoll_ctl(waiting, EPOLL_CTL_DEL, t->peers[r].fd, NULL);
            }
        }
    }
    if (waiting >= 0) close(waiting);
    if (!e && missing) {
        char who[256];
        zero_bootstrap_missing(b, here, who, sizeof who);
        snprintf(message, sizeof message,
                 "%s not come within %.3g s: died, stopped, or took another path; see their own output, or allow more "
                 "time (zero_bootstrap_config.timeout_s)",
                 who, b->timeout_s);
        e = give_up(t, ZERO_ERR_COMM, message);
    }
    if (!e && choose) memmove(all, all + (size_t)choose(all, b->ranks) * bytes, bytes);
    const size_t answer = choose ? bytes : ranks * bytes;
    for (int r = 1; r < b->ranks && !e; r++) {
        struct patience to_send = { .seconds = 1 + (left(&patience) > 0 ? left(&patience) : 0) };
        const char *problem = send_answer(t->peers[r].fd, GO, b->round, answer, "", &to_send);
        if (!problem) problem = send_all(t->peers[r].fd, all, answer, &to_send);
        if (!problem) continue;
        snprintf(message, sizeof message, "rank %d is gone (%s): it died, stopped, or ended; see its own output", r,
                 problem);
        e = give_up(t, ZERO_ERR_COMM, message);
    }
    free(here);
    return e;
}

// answer: the bytes that rank 0 will send.
static int gather_as_client(bootstrap_tcp *t, const void *mine, size_t bytes, char *all, size_t answer) {
    zero_bootstrap *b = &t->base;
    struct patience patience = { .seconds = b->timeout_s + zero_bootstrap_grace(b) };
    const int fd = t->peers[0].fd;
    const struct letter letter = { MAGIC, b->round, bytes };
    struct answer a = { .verdict = 0 };
    const char *problem = send_all(fd, &letter, sizeof letter, &patience);
    if (!problem) problem = send_all(fd, mine, bytes, &patience);
    // Rank 0 may have given up before it read that, and sent a message why.
    const char *no_answer = receive_all(fd, &a, sizeof a, &patience);
    if (no_answer || memcmp(a.magic, MAGIC, sizeof a.magic))
        return zero_bootstrap_fail(b, ZERO_ERR_COMM,
                                   "rank 0 is gone (%s), or has kept this rank waiting for more than %.3g s: see its "
                                   "own output, or allow more time (zero_bootstrap_config.timeout_s)",
                                   problem     ? problem
                                   : no_answer ? no_answer
                                               : "it says nonsense",
                                   b->timeout_s);
    a.message[sizeof a.message - 1] = '\0';
    if (a.verdict != GO) return zero_bootstrap_fail(b, ZERO_ERR_COMM, "rank 0: %.900s", a.message);
    if (a.round != b->round || a.bytes != answer)
        return zero_bootstrap_fail(
            b, ZERO_ERR_COMM, "rank 0 is at round %llu, with %llu bytes, this rank at round %llu, with %zu",
            (unsigned long long)a.round, (unsigned long long)a.bytes, (unsigned long long)b->round, answer);
    problem = receive_all(fd, all, answer, &patience);
    return problem ? zero_bootstrap_fail(b, ZERO_ERR_COMM, "rank 0 is gone (%s): see its own output", problem)
                   : ZERO_OK;
}

static int allgather(zero_bootstrap *b, const void *mine, size_t bytes, void *all, zero_bootstrap_choice *choose) {
    bootstrap_tcp *t = (bootstrap_tcp *)b;
    if (b->rank == 0) return gather_as_server(t, mine, bytes, all, choose);
    return gather_as_client(t, mine, bytes, all, choose ? bytes : (size_t)b->ranks * bytes);
}

// ---- create and destroy ---------------------------------------------------------------------------------------------

static void destroy(zero_bootstrap *b) {
    bootstrap_tcp *t = (bootstrap_tcp *)b;
    for (int r = 0; t->peers && r < (b->rank == 0 ? b->ranks : 1); r++) hang_up(&t->peers[r]);
    free(t->peers);
    free(t->strangers);
}

static const zero_bootstrap_ops ops = { allgather, destroy };

int zero_bootstrap_create_tcp(zero_bootstrap **out, const char *server, const zero_bootstrap_config *config) {
    char host[256], port[8];
    int e = zero_bootstrap_new(out, sizeof(bootstrap_tcp), &ops, config);
    if (e) return e;
    zero_bootstrap *b = *out;
    bootstrap_tcp *t = (bootstrap_tcp *)b;
    t->job = zero_bootstrap_job(config);
    if ((e = zero_bootstrap_split_address(b, server, host, sizeof host, port, sizeof port))) return e;
    const size_t peers = b->rank == 0 ? (size_t)b->ranks : 1;
    t->peers = calloc(peers, sizeof *t->peers);
    if (!t->peers) return zero_bootstrap_fail(b, ZERO_ERR_MEMORY, "out of host memory");
    for (size_t r = 0; r < peers; r++) t->peers[r].fd = -1;
    return b->rank == 0 ? start_server(t, server, host, port) : start_client(t, host, port);
}
