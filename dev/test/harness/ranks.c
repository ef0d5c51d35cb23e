// ranks.c: cases that all ranks run together (ranks.h).
#include "test/harness/ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static MPI_Comm comm;
static int rank, size;
static double limit_s = 120;

static void stop(void) { MPI_Abort(MPI_COMM_WORLD, 1); }

static void finish(void) {
    MPI_Comm_free(&comm);
    MPI_Finalize();
}

// Waits for a request until the deadline; returns whether it is complete.
static int complete(MPI_Request *request, double deadline) {
    int done = 0;
    while (MPI_Test(request, &done, MPI_STATUS_IGNORE), !done && MPI_Wtime() < deadline) usleep(100);
    return done;
}

// Rank 0 collects the counts and sends the sums back. It does so by single messages, to know who has not come; by PMPI,
// since a test may count MPI's own.
static void sum(long long counts[2], const char *name) {
    const double deadline = MPI_Wtime() + limit_s;
    MPI_Request request;
    if (rank == 0) {
        int missing = 0;
        long long *all = calloc((size_t)size, 2 * sizeof *all);
        MPI_Request *requests = malloc((size_t)size * sizeof(MPI_Request));
        for (int r = 1; r < size; r++) PMPI_Irecv(all + 2 * r, 2, MPI_LONG_LONG, r, 0, comm, &requests[r]);
        for (int r = 1; r < size; r++)
            if (!complete(&requests[r], deadline))
                missing += printf("      rank %d is not at the end of: %s\n", r, name);
        if (missing) test_stop();
        for (int r = 1; r < size; r++)
            for (int i = 0; i < 2; i++) counts[i] += all[2 * r + i];
        free(requests);
        free(all);
    } else {
        PMPI_Send(counts, 2, MPI_LONG_LONG, 0, 0, comm);
    }
    MPI_Ibcast(counts, 2, MPI_LONG_LONG, 0, comm, &request);
    if (complete(&request, deadline + 10)) return;
    printf("      rank %d: rank 0 is not at the end of: %s\n", rank, name);
    test_stop();
}

void test_start_ranks(int *argc, char **argv) {
    int local, devices = 0;
    MPI_Comm host;
    test_start(argc, argv);
    MPI_Init(argc, &argv);
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    if (getenv("TEST_TIMEOUT")) limit_s = atof(getenv("TEST_TIMEOUT"));
    test_set_ranks(&(test_ranks){ rank, sum, stop, finish });
    MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host);
    MPI_Comm_rank(host, &local);
    MPI_Comm_free(&host);
    REQUIRE(cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0 && cudaSetDevice(local % devices) == cudaSuccess,
            "no CUDA device");
}

void device_write(void *to, const void *from, size_t bytes) {
    CHECK(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice) == cudaSuccess, "a copy to the device failed");
}

void device_read(void *to, const void *from, size_t bytes) {
    CHECK(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost) == cudaSuccess, "a copy from the device failed");
}

int nccl_runs_here(void) {
#ifndef CUDA_ON_CPU
    static int printed;
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices < size) {
        if (rank == 0 && !printed++) printf("NCCL is not tested: it needs %d GPUs, there are %d\n", size, devices);
        return 0;
    }
#endif
    return 1;
}
