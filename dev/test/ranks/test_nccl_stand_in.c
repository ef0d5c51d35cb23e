// test_nccl_stand_in.c: does what stands for NCCL on the CPU (dev/device/cpu/nccl.cpp) do what NCCL's sources do? Where
// it is kinder than NCCL, the transport's tests prove nothing. Run under mpirun, with two ranks or more.
#include <nccl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "test/harness/ranks.h"

static int rank, ranks;

static ncclComm_t create(int blocking) {
    ncclUniqueId id;
    ncclComm_t comm = NULL;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = blocking;
    memset(&id, 0, sizeof id);
    if (rank == 0) CHECK(ncclGetUniqueId(&id) == ncclSuccess, "id");
    MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, MPI_COMM_WORLD);
    const ncclResult_t r = ncclCommInitRankConfig(&comm, ranks, id, rank, &config);
    REQUIRE(comm && (r == ncclSuccess || (!blocking && r == ncclInProgress)), "init: %d", (int)r);
    return comm;
}

static ncclResult_t state(ncclComm_t comm) {
    ncclResult_t r = ncclInternalError;
    CHECK(ncclCommGetAsyncError(comm, &r) == ncclSuccess);
    return r;
}

static ncclResult_t poll(ncclComm_t comm) {
    ncclResult_t r = state(comm);
    while (r == ncclInProgress) {
        usleep(100);
        r = state(comm);
    }
    return r;
}

static void blocking_rings_and_pairs(void) {
    ncclUniqueId id, *ids = calloc((size_t)ranks, sizeof *ids);
    ncclComm_t comm, child;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    cudaStream_t s;
    int *mine = NULL, *theirs = NULL;
    const size_t n = 20000;  // more than one chunk
    const int next = (rank + 1) % ranks, last = (rank + ranks - 1) % ranks, group = ranks - 1 - rank / 2 * 2;
    config.blocking = 1;
    CHECK(cudaStreamCreate(&s) == cudaSuccess && cudaMallocHost((void **)&mine, 2 * n * sizeof(int)) == cudaSuccess,
          "memory");
    CHECK(cudaMallocHost((void **)&theirs, 2 * n * sizeof(int)) == cudaSuccess, "memory");
    CHECK(ncclGetUniqueId(&id) == ncclSuccess, "id");
    MPI_Allgather(&id, sizeof id, MPI_BYTE, ids, sizeof id, MPI_BYTE, MPI_COMM_WORLD);
    CHECK(ncclCommInitRankConfig(&comm, ranks, ids[0], rank, &config) == ncclSuccess, "init: %s",
          ncclGetLastError(NULL));
    for (size_t i = 0; i < 2 * n; i++) mine[i] = rank * 1000000 + (int)i;
    // Around a ring (one rank: to itself), two messages to the same rank, which arrive in the order of the calls.
    ncclResult_t r = ncclGroupStart();
    for (size_t k = 0; k < 2 && r == ncclSuccess; k++) {
        r = ncclRecv(theirs + k * n, n * sizeof(int), ncclUint8, last, comm, s);
        if (r == ncclSuccess) r = ncclSend(mine + k * n, n * sizeof(int), ncclUint8, next, comm, s);
    }
    CHECK(r == ncclSuccess && ncclGroupEnd() == ncclSuccess && cudaStreamSynchronize(s) == cudaSuccess, "ring: %s",
          ncclGetLastError(comm));
    for (size_t i = 0; i < 2 * n; i++)
        CHECK(theirs[i] == last * 1000000 + (int)i, "ring: element %zu is %d", i, theirs[i]);
    // Pairs of ranks, the higher one first; colors need not be small.
    CHECK(ncclCommSplit(comm, group, -rank, &child, &config) == ncclSuccess, "split: %s", ncclGetLastError(comm));
    const int pair = rank / 2 * 2 + 1 < ranks ? 2 : 1, place = pair == 2 && rank % 2 == 0;
    CHECK(ncclAllGather(mine, theirs, n * sizeof(int) / 2, ncclUint8, child, s) == ncclSuccess &&
              cudaStreamSynchronize(s) == cudaSuccess,
          "gather: %s", ncclGetLastError(child));
    for (int k = 0; k < pair; k++) {
        const int from = k == place ? rank : rank % 2 ? rank - 1 : rank + 1;
        CHECK(theirs[(size_t)k * n / 2 + 7] == from * 1000000 + 7, "split: rank %d of %d has %d", k, pair,
              theirs[(size_t)k * n / 2 + 7]);
    }
    CHECK(ncclAllGather(mine, theirs, 1, ncclUint8, NULL, s) == ncclInvalidArgument &&
              ncclGroupEnd() == ncclInvalidUsage,
          "misuse was accepted");
    CHECK(ncclCommDestroy(child) == ncclSuccess && ncclCommDestroy(comm) == ncclSuccess, "destroy");
    CHECK(cudaFreeHost(mine) == cudaSuccess && cudaFreeHost(theirs) == cudaSuccess &&
              cudaStreamDestroy(s) == cudaSuccess,
          "free");
    free(ids);
}

// The first rank splits alone: its parent stays in progress, the new communicator NULL, and the call returned
// ncclSuccess.
static void a_split_is_over_when_its_parent_is_ready(void) {
    ncclComm_t parent = create(0), child = parent;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    CHECK_EQ(poll(parent), ncclSuccess);
    if (rank == 0) {
        CHECK_EQ(ncclCommSplit(parent, 7, 0, &child, &config), ncclSuccess);
        usleep(20000);
        CHECK(child == NULL && state(parent) == ncclInProgress, "a split without the other ranks");
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank > 0) CHECK_EQ(ncclCommSplit(parent, 7, rank, &child, &config), ncclSuccess);
    CHECK_EQ(poll(parent), ncclSuccess);
    REQUIRE(child != NULL && poll(child) == ncclSuccess, "split");
    CHECK_EQ(ncclCommDestroy(child), ncclSuccess);
    CHECK_EQ(ncclCommDestroy(parent), ncclSuccess);
}

// While a communicator is in progress every call on it is refused, and it keeps that error; it can only be aborted.
static void calls_in_progress_are_refused(void) {
    ncclComm_t comm = create(0), child = NULL;
    char buffer[8] = "";
    CHECK_EQ(poll(comm), ncclSuccess);
    if (rank == 0) {
        CHECK_EQ(ncclCommSplit(comm, 0, 0, &child, NULL), ncclSuccess);
        CHECK_EQ(ncclAllGather(buffer, buffer, 1, ncclUint8, comm, NULL), ncclInvalidArgument);
        CHECK_EQ(state(comm), ncclInvalidArgument);
        CHECK_EQ(ncclCommDestroy(comm), ncclInvalidArgument);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    CHECK_EQ(ncclCommAbort(comm), ncclSuccess);
}

// An error inside a group is the group's: nothing of it is launched. A blocking communicator goes on, another one does
// not.
static void errors_in_a_group_end_it(void) {
    for (int blocking = 0; blocking <= 1; blocking++) {
        ncclComm_t comm = create(blocking);
        char *buffer = NULL;
        CHECK(cudaMallocHost((void **)&buffer, 2) == cudaSuccess);
        buffer[0] = 1;
        buffer[1] = 2;
        CHECK_EQ(poll(comm), ncclSuccess);
        CHECK_EQ(ncclGroupStart(), ncclSuccess);
        CHECK_EQ(ncclSend(buffer, 1, ncclUint8, (rank + 1) % ranks, comm, NULL), ncclSuccess);
        CHECK_EQ(ncclRecv(buffer + 1, 1, ncclUint8, ranks, comm, NULL), ncclInvalidArgument);
        CHECK_EQ(ncclGroupEnd(), ncclInvalidArgument);
        CHECK_EQ(state(comm), blocking ? ncclSuccess : ncclInvalidArgument);
        const ncclResult_t after = ncclAllGather(buffer + rank % 2, buffer, 0, ncclUint8, comm, NULL);
        CHECK_EQ(after, blocking ? ncclSuccess : ncclInvalidArgument);
        CHECK(cudaDeviceSynchronize() == cudaSuccess && buffer[1] == 2, "something was launched");
        CHECK_EQ(ncclCommAbort(comm), ncclSuccess);
        CHECK(cudaFreeHost(buffer) == cudaSuccess);
    }
}

// Nothing is launched before the group ends; then the call is in progress, and the state tells when it is over.
static void groups_are_launched_when_they_end(void) {
    ncclComm_t comm = create(0);
    char *buffer = NULL;
    CHECK(cudaMallocHost((void **)&buffer, 2) == cudaSuccess);
    buffer[0] = (char)(rank + 1);
    buffer[1] = 0;
    CHECK_EQ(poll(comm), ncclSuccess);
    CHECK_EQ(ncclGroupStart(), ncclSuccess);
    CHECK_EQ(ncclRecv(buffer + 1, 1, ncclUint8, (rank + ranks - 1) % ranks, comm, NULL), ncclSuccess);
    CHECK_EQ(ncclSend(buffer, 1, ncclUint8, (rank + 1) % ranks, comm, NULL), ncclSuccess);
    MPI_Barrier(MPI_COMM_WORLD);
    CHECK(cudaDeviceSynchronize() == cudaSuccess && buffer[1] == 0, "it was launched before its end");
    CHECK_EQ(ncclGroupEnd(), ncclInProgress);
    CHECK_EQ(poll(comm), ncclSuccess);
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
    CHECK_EQ(buffer[1], (rank + ranks - 1) % ranks + 1);
    CHECK_EQ(ncclCommFinalize(comm) == ncclSuccess || state(comm) == ncclInProgress, 1);
    CHECK_EQ(poll(comm), ncclSuccess);
    CHECK_EQ(ncclCommFinalize(comm), ncclInvalidArgument);  // twice
    CHECK_EQ(ncclCommAbort(comm), ncclSuccess);
    CHECK(cudaFreeHost(buffer) == cudaSuccess);
}

// Ranks that disagree about sizes are told nothing: the receiver takes what it asked for.
static void sizes_are_not_checked(void) {
    ncclComm_t comm = create(1);
    unsigned char *buffer = NULL;
    CHECK(cudaMallocHost((void **)&buffer, 16) == cudaSuccess);
    memset(buffer, rank + 1, 16);
    const ncclResult_t r = rank == 0   ? ncclSend(buffer, 4, ncclUint8, 1, comm, NULL)
                           : rank == 1 ? ncclRecv(buffer, 8, ncclUint8, 0, comm, NULL)
                                       : ncclSuccess;
    CHECK(r == ncclSuccess && cudaDeviceSynchronize() == cudaSuccess && state(comm) == ncclSuccess);
    if (rank == 1) CHECK(buffer[3] == 1 && buffer[8] == 2, "it received %d %d", buffer[3], buffer[8]);
    CHECK_EQ(ncclCommDestroy(comm), ncclSuccess);
    CHECK(cudaFreeHost(buffer) == cudaSuccess);
}

// Aborting and destroying free the communicator: a later use of it stops the program.
static void freed_communicators_are_noticed(void) {
    for (int aborts = 0; aborts <= 1; aborts++) {
        ncclComm_t comm = create(1);
        CHECK_EQ(aborts ? ncclCommAbort(comm) : ncclCommDestroy(comm), ncclSuccess);
        const pid_t child = fork();
        if (child == 0) {
            ncclResult_t r;
            fclose(stderr);
            signal(SIGABRT, SIG_DFL);
            (void)ncclCommGetAsyncError(comm, &r);
            _exit(0);
        }
        int status = 0;
        CHECK(child > 0 && waitpid(child, &status, 0) == child);
        CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT, "status %d", status);
    }
}

int main(int argc, char **argv) {
    test_start_ranks(&argc, argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    REQUIRE(ranks > 1, "mpirun -np 2 or more");
    RUN(blocking_rings_and_pairs);
    RUN(a_split_is_over_when_its_parent_is_ready);
    RUN(calls_in_progress_are_refused);
    RUN(errors_in_a_group_end_it);
    RUN(groups_are_launched_when_they_end);
    RUN(sizes_are_not_checked);
    RUN(freed_communicators_are_noticed);
    return test_finish();
}
