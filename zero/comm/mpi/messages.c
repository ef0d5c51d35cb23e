// messages.c: messages of the MPI transport between ranks that share no memory.
//
// Messages arrive in the order of the collectives. With those of each collective goes one with its record, so that a
// rank that has made another call is reported, whatever it sent.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "zero/clock.h"
#include "zero/comm/mpi/mpi_internal.h"

#define MAX_MESSAGE ((size_t)1 << 30)  // MPI counts are ints

int zero_mpi_add_request(comm_mpi *m, struct messages *msgs, int peer, int is_send, MPI_Request **out) {
    if (msgs->count == msgs->max) {
        const int more = 2 * msgs->max + 64;
        MPI_Request *requests = realloc(msgs->requests, (size_t)more * sizeof *requests);
        if (requests) msgs->requests = requests;
        int *peers = realloc(msgs->peer, (size_t)more * sizeof *peers);
        if (peers) msgs->peer = peers;
        int *sends = realloc(msgs->is_send, (size_t)more * sizeof *sends);
        if (sends) msgs->is_send = sends;
        if (!requests || !peers || !sends)
            return zero_comm_fail(&m->base, ZERO_ERR_MEMORY, "out of host memory for %d MPI requests", more);
        msgs->max = more;
    }
    msgs->peer[msgs->count] = peer;
    msgs->is_send[msgs->count] = is_send;
    *out = &msgs->requests[msgs->count++];
    **out = MPI_REQUEST_NULL;
    return ZERO_OK;
}

static int post(comm_mpi *m, struct messages *msgs, int peer, int is_send, int tag, void *at, size_t bytes) {
    for (size_t sent = 0; sent < bytes; sent += MAX_MESSAGE) {
        const int n = (int)(bytes - sent < MAX_MESSAGE ? bytes - sent : MAX_MESSAGE);
        MPI_Request *q = NULL;
        int e = zero_mpi_add_request(m, msgs, peer, is_send, &q);
        if (e) return e;
        const int to = m->mpi_rank[peer], full = m->context * ZERO_MPI_TAGS + tag;
        e = is_send ? MPI_Isend((char *)at + sent, n, MPI_BYTE, to, full, m->root->comm, q)
                    : MPI_Irecv((char *)at + sent, n, MPI_BYTE, to, full, m->root->comm, q);
        if (e != MPI_SUCCESS)
            return zero_comm_fail(&m->base, ZERO_ERR_COMM, "MPI refused a message of %d bytes with rank %d", n,
                                  zero_comm_world_rank(&m->base, peer));
    }
    return ZERO_OK;
}

// After a failure: nothing may be received any more into memory that its owner is about to free.
static void give_up(comm_mpi *m, struct messages *msgs) {
    int left = 0;
    for (int i = 0; i < msgs->count; i++)
        if (msgs->requests[i] != MPI_REQUEST_NULL && !msgs->is_send[i]) (void)MPI_Cancel(&msgs->requests[i]);
    for (int tries = 0; tries < 200; tries++) {
        left = 0;
        for (int i = 0; i < msgs->count; i++) {
            int done = 1;
            if (msgs->requests[i] != MPI_REQUEST_NULL &&
                MPI_Test(&msgs->requests[i], &done, MPI_STATUS_IGNORE) != MPI_SUCCESS)
                done = 0;
            left += !done;
        }
        if (!left) break;
        nanosleep(&(struct timespec){ 0, 200 * 1000 }, NULL);
    }
    if (left) m->base.in_flight = msgs->lost = 1;
    msgs->count = 0;
}

// Whether this rank and rank r send each other messages in this call.
static int exchanges(const comm_mpi *m, const struct zero_comm_call *call, int r) {
    return !m->on_host[r] && (!zero_mpi_relays(m, call) || zero_mpi_relay(m, r) == m->base.rank);
}

int zero_mpi_post(comm_mpi *m, struct messages *msgs, const struct zero_comm_call *call, char *send, size_t send_stride,
                  char *receive, size_t receive_stride, int per_stride, size_t bytes) {
    if (!msgs->theirs) msgs->theirs = calloc((size_t)m->base.size, sizeof *msgs->theirs);
    if (!msgs->theirs) return zero_comm_fail(&m->base, ZERO_ERR_MEMORY, "out of host memory");
    msgs->mine = *call;
    int e = ZERO_OK;
    for (int r = 0; r < m->base.size; r++) msgs->theirs[r] = *call;
    for (int is_send = 0; is_send <= 1; is_send++)
        for (int r = 0; r < m->base.size && !e; r++) {
            if (!exchanges(m, call, r)) continue;
            char *at = is_send ? send + (size_t)r * send_stride : receive + (size_t)(r / per_stride) * receive_stride;
            e = post(m, msgs, r, is_send, ZERO_MPI_RECORD, is_send ? &msgs->mine : &msgs->theirs[r], sizeof *call);
            if (!e) e = post(m, msgs, r, is_send, ZERO_MPI_CHUNKS, at, bytes);
        }
    if (e) give_up(m, msgs);
    return e;
}

// Whether all records that have arrived are this rank's own.
static int same_call(comm_mpi *m, const struct messages *msgs) {
    int e = ZERO_OK;
    for (int r = 0; r < m->base.size && msgs->theirs && !e; r++) {
        e = zero_comm_compare(&m->base, &msgs->mine, r, &msgs->theirs[r]);
        if (!e) continue;
        zero_mpi_control(m, m->base.rank)->other = msgs->theirs[r];
        zero_mpi_control(m, m->base.rank)->other_rank = r;
    }
    return e;
}

// Appends the ranks, other than that of request i, from which something is still to come, as when a host is lost.
static void say_others(comm_mpi *m, const struct messages *msgs, int i, char *message, size_t bytes) {
    int last = msgs->peer[i], count = 0;
    while (++i < msgs->count) {
        int arrived = 0;
        if (msgs->is_send[i] || msgs->peer[i] == last || msgs->requests[i] == MPI_REQUEST_NULL) continue;
        if (MPI_Test(&msgs->requests[i], &arrived, MPI_STATUS_IGNORE) == MPI_SUCCESS && arrived) continue;
        last = msgs->peer[i];
        const size_t end = strlen(message);
        const int rank = zero_comm_world_rank(&m->base, last);
        snprintf(message + end, bytes - end, "%s %d", count++ ? ", rank" : "; nor has anything come from rank", rank);
    }
}

static int time_out(comm_mpi *m, struct messages *msgs) {
    const int e = same_call(m, msgs);
    for (int i = 0; i < msgs->count && !e; i++) {
        int arrived = 0;
        if (msgs->requests[i] == MPI_REQUEST_NULL) continue;
        if (MPI_Test(&msgs->requests[i], &arrived, MPI_STATUS_IGNORE) == MPI_SUCCESS && arrived) continue;
        char message[512];
        zero_comm_say_behind(&m->base, message, sizeof message, msgs->peer[i], &msgs->mine, &m->last[msgs->peer[i]],
                             m->config.timeout_s);
        say_others(m, msgs, i, message, sizeof message);
        return zero_comm_fail(&m->base, ZERO_ERR_COMM, "%s", message);
    }
    return e;
}

static int wait_messages(comm_mpi *m, struct messages *msgs) {
    zero_stopwatch waited = { 0 };
    for (size_t i = 0;; i++) {
        int all = 0;
        if (MPI_Testall(msgs->count, msgs->requests, &all, MPI_STATUSES_IGNORE) != MPI_SUCCESS) {
            const int e = same_call(m, msgs);
            return e ? e
                     : zero_comm_fail(&m->base, ZERO_ERR_COMM,
                                      "an MPI message failed: the ranks sent chunks of different sizes, or the network "
                                      "is down");
        }
        if (all) {
            msgs->count = 0;
            for (int r = 0; r < m->base.size && msgs->theirs; r++)
                if (exchanges(m, &msgs->mine, r)) m->last[r] = msgs->theirs[r];
            return same_call(m, msgs);
        }
        if (zero_stopwatch_read(&waited) > m->config.timeout_s) {
            const int e = time_out(m, msgs);
            if (e) return e;
        }
        if (i > 100) nanosleep(&(struct timespec){ 0, 20 * 1000 }, NULL);
    }
}

int zero_mpi_wait_messages(comm_mpi *m, struct messages *msgs) {
    const double begin = zero_clock();
    const int e = wait_messages(m, msgs);
    m->base.waited += zero_clock() - begin;
    if (e) give_up(m, msgs);
    return e;
}

// ---- meeting --------------------------------------------------------------------------------------------------------

// "rank 3" or "ranks 1, 2": world ranks whose receive or send is not complete.
static void name_missing(comm_mpi *m, MPI_Request *requests, char *names, size_t bytes) {
    int count = 0;
    snprintf(names, bytes, "rank");
    for (int r = 0; r < m->base.size; r++) {
        int done = 0;
        if (MPI_Testall(2, &requests[2 * r], &done, MPI_STATUSES_IGNORE) == MPI_SUCCESS && done) continue;
        const size_t end = strlen(names);
        snprintf(names + end, bytes - end, "%s %d", count++ ? "," : "", zero_comm_world_rank(&m->base, r));
    }
}

// The buffers are kept if a message was given up: it may still come.
int zero_mpi_meet(void *comm, const void *mine, size_t bytes, void *all) {
    comm_mpi *m = comm;
    const int size = m->base.size, n = (int)bytes, tag = m->context * ZERO_MPI_TAGS + ZERO_MPI_MEET;
    char *own = malloc(bytes), *received = malloc((size_t)size * bytes), names[256];
    MPI_Request *requests = malloc(2 * (size_t)size * sizeof *requests);  // of rank r: receive, then send
    int ok = 1, done = 0;
    if (!own || !received || !requests) {
        free(own);
        free(received);
        free(requests);
        return zero_comm_fail(&m->base, ZERO_ERR_MEMORY, "out of host memory");
    }
    memcpy(own, mine, bytes);
    for (int r = 0; r < 2 * size; r++) requests[r] = MPI_REQUEST_NULL;
    for (int r = 0; r < size && ok; r++)
        ok = MPI_Irecv(received + (size_t)r * bytes, n, MPI_BYTE, m->mpi_rank[r], tag, m->root->comm,
                       &requests[2 * r]) == MPI_SUCCESS &&
             MPI_Isend(own, n, MPI_BYTE, m->mpi_rank[r], tag, m->root->comm, &requests[2 * r + 1]) == MPI_SUCCESS;
    zero_stopwatch waited = { 0 };
    for (int i = 0; ok && !done; i++) {
        ok = MPI_Testall(2 * size, requests, &done, MPI_STATUSES_IGNORE) == MPI_SUCCESS;
        if (!done && zero_stopwatch_read(&waited) > m->config.timeout_s) break;
        if (!done && i > 100) nanosleep(&(struct timespec){ 0, 20 * 1000 }, NULL);
    }
    if (!ok || !done) {
        name_missing(m, requests, names, sizeof names);
        zero_keep(own);
        zero_keep(received);
        zero_keep(requests);
    }
    if (!ok) return zero_comm_fail(&m->base, ZERO_ERR_COMM, "an MPI message of %zu bytes failed", bytes);
    if (!done)
        return zero_comm_fail(&m->base, ZERO_ERR_COMM,
                              "%s has not come within %.3g s: it died, stopped, or took another path; see its own "
                              "output, or allow more time (zero_comm_config.timeout_s)",
                              names, m->config.timeout_s);
    memcpy(all, received, (size_t)size * bytes);
    free(own);
    free(received);
    free(requests);
    return ZERO_OK;
}

void zero_mpi_free_messages(comm_mpi *m, struct messages *msgs) {
    if (msgs->count) give_up(m, msgs);
    void *const parts[] = { msgs->requests, msgs->peer, msgs->is_send, msgs->theirs };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (msgs->lost)
            zero_keep(parts[i]);
        else
            free(parts[i]);
    }
    *msgs = (struct messages){ .count = 0 };
}
