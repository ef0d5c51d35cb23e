// comm_nccl.h: the NCCL transport (comm.h says what a transport does). It has a stream of its own, on which all
// communicators of one creation move their bytes; the host never waits, except in zero_comm_synchronize and
// zero_comm_allgather_host.
#ifndef ZERO_COMM_NCCL_H
#define ZERO_COMM_NCCL_H
#include "zero/comm/bootstrap/bootstrap.h"
#include "zero/comm/comm.h"
#include "zero/comm/mesh.h"
#ifdef __cplusplus
extern "C" {
#endif

// The waits of one stream for another, for tests that leave one out to see that it is missed.
enum zero_nccl_wait {
    ZERO_NCCL_WAIT_NONE,
    ZERO_NCCL_WAIT_ALL_TO_ALL,       // an exchange, for the caller's gradients
    ZERO_NCCL_WAIT_PIECES,           // an exchange, until the pieces of the last one were read
    ZERO_NCCL_WAIT_ALL_TO_ALL_DONE,  // the caller, for the pieces
    ZERO_NCCL_WAIT_REUSABLE,         // the caller, until its buffer was sent and read
    ZERO_NCCL_WAIT_GATHER,           // an all-gather, for the caller's piece
    ZERO_NCCL_WAIT_GATHER_DONE,      // the caller, for everybody's
    ZERO_NCCL_WAIT_OPEN,             // fetches, for the caller's shard
    ZERO_NCCL_WAIT_UNSHARD,          // a fetch, until the buffer that it fills is free
    ZERO_NCCL_WAIT_UNSHARD_DONE,     // the caller, for what was fetched
    ZERO_NCCL_WAIT_CLOSE,            // the caller, until its shard was fetched
    ZERO_NCCL_WAITS
};

typedef struct zero_comm_nccl_config {
    double timeout_s;          // how long a rank may keep the others waiting; 0: 300 s
    int register_buffers;      // 1: symmetric buffers are NCCL's own and registered with it (ncclMemAlloc,
                               // ncclCommRegister)
    const char *library;       // what to load; NULL: libnccl.so.2
    enum zero_nccl_wait omit;  // tests only
} zero_comm_nccl_config;

// Can NCCL be used here? 1, and words has its version ("NCCL 2.28.9"); or 0, and why not. Not collective.
int zero_comm_nccl_available(const char *library, char *words, size_t bytes);

// All ranks of the bootstrap, which must live until this returns. Collective. One rank needs no NCCL. The current
// device is the rank's, and no other rank's. On failure too *out is set (unless memory is exhausted), so that
// zero_comm_error() can be asked.
int zero_comm_create_nccl(zero_comm **out, zero_bootstrap *boot, const zero_comm_nccl_config *config,
                          zero_accounting *memory);

// The shape of such a transport, without making one: pure.
zero_comm_shape zero_comm_nccl_shape(size_t ranks);

// As zero_mesh_comms_mpi (comm_mpi.h), over the ranks of the bootstrap.
int zero_mesh_comms_nccl(const zero_mesh *m, zero_bootstrap *boot, const zero_comm_nccl_config *config,
                         zero_accounting *memory, zero_comm **data, zero_comm **shard, zero_comm **replicas, char *err,
                         size_t err_bytes);

#ifdef __cplusplus
}
#endif
#endif
