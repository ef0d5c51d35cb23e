// bootstrap.h: how ranks meet before there is a transport. NCCL, for example, needs an id in every rank that one of
// them has created.
//
// There is one collective, an all-gather of a few bytes, of which ranks may want a part only, and three ways to carry
// it:
//
//     mpi     mpirun, or srun --mpi=pmix, has started the ranks: messages on a communicator of our own
//     tcp     rank 0 listens at an address that all ranks know; the others connect, and keep the connection
//     fs      a directory that all ranks see: each leaves files there, and looks for those of the others
//
// tcp and fs need no MPI: a rank only needs its number and the number of ranks. Ranks may start in any order within the
// time-out. A process of an earlier run that was killed, files that it left, or a stranger that connects to the port
// must not be mistaken for a rank of this run; tcp.c and shared_directory.c explain how. There is no password and no
// encryption: as with MPI and NCCL, the network is trusted.
//
// Every wait has a time-out; its message names the ranks that did not come, and the remedy. Rank 0 tells the others
// what it knows, so that all end with the same message. After a failure an all-gather fails again, with the same
// message. Functions return ZERO_OK or a ZERO_ERR_* code; zero_bootstrap_error() has the message. All ranks must run on
// machines of one byte order.
#ifndef ZERO_BOOTSTRAP_H
#define ZERO_BOOTSTRAP_H
#include <stddef.h>
#include "zero/types.h"
#ifdef __cplusplus
extern "C" {
#endif

typedef struct zero_bootstrap zero_bootstrap;

typedef struct zero_bootstrap_config {
    int rank, ranks;
    double timeout_s;  // how long a rank may keep the others waiting; 0: 300 s
    const char *job;   // distinguishes two runs at one port or in one directory, such as the
                       // scheduler's number; NULL: nothing
} zero_bootstrap_config;

enum { ZERO_BOOTSTRAP_PORT = 20240 };

// All ranks call. On failure too *out is set (unless memory is exhausted), so that zero_bootstrap_error() can be asked;
// destroy it. server: "address[:port]" of rank 0's machine, a name, IPv4, IPv6 or [IPv6]:port. directory: must exist.
int zero_bootstrap_create_tcp(zero_bootstrap **out, const char *server, const zero_bootstrap_config *config);
int zero_bootstrap_create_fs(zero_bootstrap **out, const char *directory, const zero_bootstrap_config *config);
// (zero_bootstrap_create_mpi is in mpi.h, so that this header needs no mpi.h.)

int zero_bootstrap_rank(const zero_bootstrap *b);
int zero_bootstrap_ranks(const zero_bootstrap *b);
const char *zero_bootstrap_error(const zero_bootstrap *b);             // the last error's message; "" if none
void zero_bootstrap_set_timeout(zero_bootstrap *b, double timeout_s);  // of what comes next; not collective

// all[r * bytes ...] = rank r's mine, in host memory. Collective: all ranks, with the same bytes (that is checked). For
// small things: with tcp and fs all goes through rank 0.
int zero_bootstrap_allgather(zero_bootstrap *b, const void *mine, size_t bytes, void *all);

// The same, but chosen[0 .. bytes) becomes what one rank has given, the one that choose returns for all[ranks * bytes]:
// so with tcp and fs a rank reads a few bytes, not some of each rank, and rank 0 writes N times a few bytes, not N^2.
// choose is a pure function, the same on all ranks; some ways call it on rank 0 only. Collective.
typedef int zero_bootstrap_choice(const void *all, int ranks);
int zero_bootstrap_choose(zero_bootstrap *b, const void *mine, size_t bytes, zero_bootstrap_choice *choose,
                          void *chosen);

// Closes connections, removes files. All ranks should call; in a directory rank 0 waits for the others, no longer than
// the time-out. NULL is fine.
void zero_bootstrap_destroy(zero_bootstrap *b);

#ifdef __cplusplus
}
#endif
#endif
