// ranks.h: test programs that mpirun starts. All ranks run the same cases together; a case passes if no check fails on
// any rank, and rank 0 prints. A rank that does not finish a case within TEST_TIMEOUT seconds (120) is named, and the
// job ends.
//
// Also: copies to and from device memory, which the host cannot touch on a GPU (CUDA_ON_CPU_PROTECT=1 enforces it on a
// CPU).
#ifndef RANKS_H
#define RANKS_H
#include "test/harness/harness.h"

#include <cuda_runtime_api.h>
#include <mpi.h>

#ifdef __cplusplus
extern "C" {
#endif

// MPI_Init, and a device for each rank: the ranks of a host take its GPUs in turn. test_finish calls MPI_Finalize.
void test_start_ranks(int *argc, char **argv);

void device_write(void *to, const void *from, size_t bytes);
void device_read(void *to, const void *from, size_t bytes);

// Returns 1 if NCCL can run: it needs a GPU for each rank (its stand-in on the CPU does not). Else prints so, once, and
// returns 0.
int nccl_runs_here(void);

#ifdef __cplusplus
}
#endif
#endif
