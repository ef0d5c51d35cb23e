// The cores that this process may use, as limited by its affinity mask and by cgroups (v1 and v2). Memory:
// zero/host_memory.h.
#ifndef TRAINER_HOST_H
#define TRAINER_HOST_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { HOST_MAX_CORES = 2048 };

// One rank's cores; the ranks exchange these.
typedef struct {
    uint64_t host;    // equal on the ranks of one host
    uint64_t cgroup;  // equal on the ranks of one cgroup
    double quota;     // cores' worth of time that the cgroup may use; 0: no limit
    uint64_t mask[HOST_MAX_CORES / 64];
} HostCores;

// Fills in c. root: "", or for tests a directory with copies of proc/self/cgroup and sys/fs/cgroup.
void host_cores(HostCores *c, uint64_t host, const char *root);

typedef struct {
    int cores;     // in this rank's mask
    int sharers;   // ranks of this host whose masks have one of these cores, this rank included
    double quota;  // of its cgroup, as above
    int threads;   // that suit this rank: its part of the cores and of the quota, at least 1
} CoreShare;

// Divides cores among the ranks. A core that n ranks may use counts 1/n for each of them:
//
//     8 cores, 4 ranks, not bound     mask 8 cores each, 4 sharers     2 threads
//     8 cores, 4 ranks bound to 2     mask 2 cores each, 1 sharer      2 threads
//     8 cores, 4 ranks, quota 2       mask 8 cores each, 4 sharers     1 thread (half a core)
CoreShare host_share_cores(const HostCores *all, int ranks, int me);

// Reads OMP_NUM_THREADS. Returns its number ("4", or the first of "4,2"), 0 if text is NULL or empty, or -1 and a
// message.
int host_wanted_threads(const char *text, int cores, char *err, size_t err_bytes);

// Decides how long OpenMP's threads spin before they sleep while they wait, unless the environment says it: not at all
// if the ranks of this host have more threads (OMP_NUM_THREADS) than cores, else 10,000 turns instead of the 300,000 of
// gcc's library: as fast on an idle machine, and several times faster where other programs want the cores
// (dev/docs/benchmarks.md). The library decides when it is loaded, so this restarts the program, with the same
// arguments; call it first in main.
void host_choose_waiting(char **argv, int local_ranks);

#ifdef __cplusplus
}
#endif
#endif
