// mpi_check.h: cases that all ranks run together. A case passes if it does on every rank; rank 0 prints and counts. And
// copies to and from memory of the device, which a GPU's host cannot touch (CUDA_ON_CPU_PROTECT=1 sees to it that no
// test does).
#ifndef MPI_CHECK_H
#define MPI_CHECK_H
#include <cuda_runtime_api.h>
#include <mpi.h>
#include <stdarg.h>
#include <stdio.h>

static int case_failures, cases_passed, cases_failed;

__attribute__((format(printf, 3, 4))) static void expect(int ok, int line, const char *format, ...) {
    if (ok || case_failures++) return;  // the first failure of a case says enough
    int rank;
    va_list args;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    printf("    rank %d, line %d: ", rank, line);
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    printf("\n");
    fflush(stdout);
}
#define EXPECT(condition, ...) expect(condition, __LINE__, __VA_ARGS__)

static inline void device_write(void *to, const void *from, size_t bytes) {
    EXPECT(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice) == cudaSuccess, "a copy to the device failed");
}
static inline void device_read(void *to, const void *from, size_t bytes) {
    EXPECT(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost) == cudaSuccess, "a copy from the device failed");
}

// The ranks of a host share out its GPUs.
static inline void use_own_device(void) {
    int rank, devices = 0;
    MPI_Comm host;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host);
    MPI_Comm_rank(host, &rank);
    MPI_Comm_free(&host);
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0 || cudaSetDevice(rank % devices) != cudaSuccess) {
        fprintf(stderr, "no CUDA device\n");
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

// NCCL wants a GPU for each rank (the CPU's stand-in does not), and where there are too few tests leave it out and say
// so.
static inline int nccl_runs_here(void) {
#ifndef CUDA_ON_CPU
    static int said;
    int devices = 0, rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices < ranks) {
        if (rank == 0 && !said++) printf("NCCL is not tested: it wants %d GPUs, there are %d\n", ranks, devices);
        return 0;
    }
#endif
    return 1;
}

// Ends a case; all ranks must call.
static void case_done(const char *name) {
    int rank, worst = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Allreduce(&case_failures, &worst, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    *(worst ? &cases_failed : &cases_passed) += 1;
    if (rank == 0) printf("%s %s\n", worst ? "FAIL" : "ok  ", name);
    fflush(stdout);
    case_failures = 0;
}

// Ends the program; returns its exit status.
static int cases_done(void) {
    int rank;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (rank == 0) printf("%d passed, %d failed\n", cases_passed, cases_failed);
    fflush(stdout);
    MPI_Finalize();
    return cases_failed != 0;
}

#endif
