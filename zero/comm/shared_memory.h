// shared_memory.h: memory that the ranks of one host share, and counters in it to wait on.
//
// The memory is a memfd that the other ranks map through /proc/<pid>/fd/<n>: nothing is left behind after a crash, and
// /dev/shm's limit does not apply. Ranks wait with a futex, so that waiting ranks leave the core to those that compute.
#ifndef ZERO_SHARED_MEMORY_H
#define ZERO_SHARED_MEMORY_H
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include "zero/types.h"

struct zero_shm {
    char **peer;  // [ranks] rank r's memory as it is mapped here; NULL for ranks of other hosts
    int ranks;
    size_t bytes;   // of each rank
    char why[200];  // after ZERO_ERR_MEMORY: why this rank has no memory, or that another has none
};

// An all-gather of `bytes` of each rank, with a time-out. Returns ZERO_OK or an error code.
typedef int zero_shm_meet(void *ctx, const void *mine, size_t bytes, void *all);

// on_host[r] = 1 if this rank can hope to map rank r's memory: they have the kernel, the namespace of process ids and
// `pretended` in common. *per_host: ranks of each host; 0 if hosts have different numbers of ranks, or a host's ranks
// are not contiguous. Collective over the ranks of meet.
int zero_shm_find_host(int rank, int ranks, int pretended, int *on_host, int *per_host, zero_shm_meet *meet, void *ctx);

// Allocates `bytes` of zeroed memory, and maps that of the ranks with on_host[r]. refusal: why this rank may not have
// it, which fails as if the host had none; "" if it may. Collective over the ranks of meet. Returns ZERO_OK; or, if
// that is impossible on any rank, ZERO_ERR_MEMORY on all ranks; or the error of meet. After an error nothing is mapped.
// Memory that the host does not have is refused here: touching it later would end the process.
int zero_shm_map(struct zero_shm *s, int rank, int ranks, const int *on_host, size_t bytes, const char *refusal,
                 zero_shm_meet *meet, void *ctx);
// Whether this host has s->bytes for each of its ranks; if not, s->why is the reason. root: of zero/host_memory.h.
int zero_shm_has_memory(struct zero_shm *s, int ranks_here, const char *root);
void zero_shm_unmap(struct zero_shm *s);  // not collective; peers keep their mappings

// A counter that only its owner writes, ascending. Publishing makes everything written before visible to ranks that
// have waited for the value.
void zero_shm_publish(_Atomic uint64_t *counter, uint64_t value);
// Waits until the counter has reached value; polls `spin` times before it sleeps. Returns 0; or -1 after timeout_s
// seconds, and *seen is the counter.
int zero_shm_wait(_Atomic uint64_t *counter, uint64_t value, int spin, double timeout_s, uint64_t *seen);

#endif
