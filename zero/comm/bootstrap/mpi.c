// mpi.c: ranks that MPI has started (bootstrap.h).
//
// Each rank sends its bytes to every other one. MPI_Allgather would need fewer messages, but if it does not end, nobody
// can tell which rank is missing; here every message that has not come belongs to a known rank. The messages are in
// buffers of this bootstrap's own, which are never freed once a message was given up: it may still arrive.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "zero/clock.h"
#include "zero/comm/bootstrap/bootstrap_internal.h"
#include "zero/comm/bootstrap/mpi.h"
#include "zero/keep.h"

typedef struct bootstrap_mpi {
    zero_bootstrap base;
    MPI_Comm comm;
} bootstrap_mpi;

enum { TAGS = 16384 };  // MPI promises that many

static int allgather(zero_bootstrap *b, const void *mine, size_t bytes, void *all, zero_bootstrap_choice *choose) {
    const MPI_Comm comm = ((bootstrap_mpi *)b)->comm;
    const size_t ranks = (size_t)b->ranks;
    const int tag = (int)(b->round % TAGS), count = (int)bytes;
    if (bytes > 1 << 20)
        return zero_bootstrap_fail(b, ZERO_ERR_ARG, "%zu bytes are too many for a bootstrap: it is for small things",
                                   bytes);
    char *copy = malloc(bytes + 1), *received = malloc(ranks * bytes + 1);
    unsigned char *here = calloc(ranks, 1);
    MPI_Request *requests = malloc(2 * ranks * sizeof *requests);  // of rank r: receive, then send
    int e = ZERO_OK, missing = 0;
    if (!copy || !received || !here || !requests) {
        e = zero_bootstrap_fail(b, ZERO_ERR_MEMORY, "out of host memory");
        goto free_all;
    }
    memcpy(copy, mine, bytes);
    for (size_t r = 0; r < 2 * ranks; r++) requests[r] = MPI_REQUEST_NULL;
    int ok = 1;
    for (int r = 0; r < b->ranks && ok; r++)
        ok = MPI_Irecv(received + (size_t)r * bytes, count, MPI_BYTE, r, tag, comm, &requests[2 * r]) == MPI_SUCCESS &&
             MPI_Isend(copy, count, MPI_BYTE, r, tag, comm, &requests[2 * r + 1]) == MPI_SUCCESS;
    zero_stopwatch waited = { 0 };
    for (double pause = 1e-5; ok; zero_bootstrap_pause(&pause, 2e-3)) {
        missing = 0;
        for (int r = 0; r < b->ranks && ok; r++) {
            if (here[r]) continue;
            int both = 0, size = count;
            MPI_Status status[2];
            ok = MPI_Testall(2, &requests[2 * r], &both, status) == MPI_SUCCESS;
            if (ok && both) ok = MPI_Get_count(&status[0], MPI_BYTE, &size) == MPI_SUCCESS;
            here[r] = (unsigned char)both;
            missing += !both;
            ok = ok && size == count;
        }
        if (!missing || zero_stopwatch_read(&waited) > b->timeout_s) break;
    }
    if (!ok) {
        e = zero_bootstrap_fail(b, ZERO_ERR_COMM,
                                "an MPI message of %zu bytes failed: another rank sent another number, since it took "
                                "another path, or the network is down",
                                bytes);
    } else if (missing) {
        char who[256];
        zero_bootstrap_missing(b, here, who, sizeof who);
        e = zero_bootstrap_fail(b, ZERO_ERR_COMM,
                                "%s not come within %.3g s: died, stopped, or took another path; see their own output, "
                                "or allow more time (zero_bootstrap_config.timeout_s)",
                                who, b->timeout_s);
    } else if (choose) {
        memcpy(all, received + (size_t)choose(received, b->ranks) * bytes, bytes);
    } else {
        memcpy(all, received, ranks * bytes);
    }
    if (e) {  // messages may still come, and be written
        zero_keep(copy);
        zero_keep(received);
        zero_keep(requests);
        free(here);
        return e;
    }
free_all:
    free(copy);
    free(received);
    free(here);
    free(requests);
    return e;
}

static void destroy(zero_bootstrap *b) {
    if (!b->failed) zero_bootstrap_free(&((bootstrap_mpi *)b)->comm, b->timeout_s);
}

static const zero_bootstrap_ops ops = { allgather, destroy };

// Waits until the request is complete, MPI fails or time is up. Returns 1 if it is complete.
static int is_complete(MPI_Request *request, double timeout_s) {
    zero_stopwatch waited = { 0 };
    int done = 0;
    for (double pause = 1e-5;; zero_bootstrap_pause(&pause, 2e-3)) {
        if (MPI_Test(request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) return 0;
        if (done || zero_stopwatch_read(&waited) > timeout_s) return done;
    }
}

// MPI_Comm_free may wait for the other ranks, without end.
void zero_bootstrap_free(MPI_Comm *comm, double timeout_s) {
    MPI_Request request;
    int finalized = 0;
    if (MPI_Finalized(&finalized) != MPI_SUCCESS || finalized || MPI_Ibarrier(*comm, &request) != MPI_SUCCESS) return;
    if (is_complete(&request, timeout_s)) (void)MPI_Comm_free(comm);
}

// MPI_Comm_dup with a time-out. When it has passed, MPI may still be at it, and will write the communicator if the
// other ranks come after all: the place is kept, and comm no good for collectives.
static int duplicate(zero_bootstrap *b, MPI_Comm comm, MPI_Comm *out, double timeout_s) {
    MPI_Comm *copy = malloc(sizeof *copy);
    MPI_Request request;
    if (!copy) return zero_bootstrap_fail(b, ZERO_ERR_MEMORY, "out of host memory");
    if (MPI_Comm_idup(comm, copy, &request) != MPI_SUCCESS || !is_complete(&request, timeout_s) ||
        MPI_Comm_set_errhandler(*copy, MPI_ERRORS_RETURN) != MPI_SUCCESS) {
        zero_keep(copy);
        return zero_bootstrap_fail(b, ZERO_ERR_COMM,
                                   "MPI_Comm_idup failed, or another rank has not come within %.3g s: it died, "
                                   "stopped, or took another path; see its own output, or allow more time (timeout_s)",
                                   timeout_s);
    }
    *out = *copy;
    free(copy);
    return ZERO_OK;
}

int zero_bootstrap_dup_mpi(zero_bootstrap *b, MPI_Comm *out, double timeout_s) {
    if (b->ops != &ops) return ZERO_ERR_ARG;
    char nothing = 0;
    const int e = zero_bootstrap_allgather(b, &nothing, 0, &nothing);  // a meeting, to know which rank is missing
    return e ? e : duplicate(b, ((bootstrap_mpi *)b)->comm, out, timeout_s);
}

int zero_bootstrap_create_mpi(zero_bootstrap **out, MPI_Comm comm, double timeout_s) {
    zero_bootstrap_config config = { .timeout_s = timeout_s };
    if (MPI_Comm_rank(comm, &config.rank) || MPI_Comm_size(comm, &config.ranks)) config.ranks = 0;  // refused below
    const int e = zero_bootstrap_new(out, sizeof(bootstrap_mpi), &ops, &config);
    return e ? e : duplicate(*out, comm, &((bootstrap_mpi *)*out)->comm, (*out)->timeout_s);
}

int zero_comm_create_mpi(zero_comm **out, MPI_Comm comm, const char *transport, const zero_comm_config *config,
                         zero_accounting *accounting, char *err, size_t err_bytes) {
    zero_bootstrap *boot = NULL;
    const zero_transport *t = zero_transport_find(transport);
    *out = NULL;
    if (!t) {
        snprintf(err, err_bytes, "there is no transport \"%.40s\"", transport);
        return ZERO_ERR_ARG;
    }
    int e = zero_bootstrap_create_mpi(&boot, comm, config->timeout_s);
    if (e)
        snprintf(err, err_bytes, "%s", boot ? zero_bootstrap_error(boot) : "out of host memory");
    else
        e = zero_comm_create(out, t, boot, config, accounting, err, err_bytes);
    zero_bootstrap_destroy(boot);
    return e;
}
