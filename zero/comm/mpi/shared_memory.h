// shm.h: memory that the ranks of one host share, and counters in it to wait on.
//
// The memory is a memfd that the other ranks map through /proc/<pid>/fd/<n>: nothing to clean up after a crash, and no
// limit of /dev/shm's. Ranks wait with a futex, so that those that wait leave the core to those that compute.
#ifndef ZERO_SHARED_MEMORY_H
#define ZERO_SHARED_MEMORY_H
#include <mpi.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include "zero/types.h"

struct zero_shm {
    char **peer;  // [ranks] rank r's memory as it is mapped here; NULL for ranks of other hosts
    int ranks;
    size_t bytes;  // of each rank
};

// Each rank makes `bytes` of zeroed memory, and maps that of the ranks with on_host[r]. Collective over comm; all ranks
// get the same verdict: ZERO_OK, or ZERO_ERR_MEMORY and nothing is mapped.
int zero_shm_map(struct zero_shm *s, MPI_Comm comm, const int *on_host, size_t bytes);
void zero_shm_unmap(struct zero_shm *s);  // not collective; peers keep their mappings

// A counter that only its owner writes, ascending (it may wrap). Publish: everything written before is visible to who
// has waited.
void zero_shm_publish(_Atomic uint32_t *counter, uint64_t value);
// Until the counter has reached value: 0; after timeout_s seconds: -1, and *seen is where it stands. Spins first if
// asked to.
int zero_shm_wait(_Atomic uint32_t *counter, uint32_t value, int spin, double timeout_s, uint32_t *seen);

double zero_shm_now(void);  // seconds, of a clock that only goes forward

#endif
