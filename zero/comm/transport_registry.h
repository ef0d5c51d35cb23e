// transport_registry.h: which transports there are, and how communicators are created.
//
//     name   title  moves bytes through                                     ranks meet by        GPUs
//     mpi    MPI    memory that ranks of a host share; messages; staging    MPI                  may be shared
//     nccl   NCCL   NVLink, PCIe, InfiniBand, on a stream of its own        MPI, TCP, directory  one for each rank
//
//     zero_bootstrap *boot;                                  // how ranks meet: bootstrap/bootstrap.h, bootstrap/mpi.h
//     zero_bootstrap_create_mpi(&boot, MPI_COMM_WORLD, 60);
//     zero_comm *comm;
//     zero_comm_create(&comm, zero_transport_find("mpi"), boot, &config, &accounting, err, sizeof err);
//
// A new transport is a directory of its own, which fills in the two tables of transport.h (zero_transport,
// zero_comm_ops), and a line in transport_registry.c. Code that lists, plans or creates transports goes through here
// and needs no change.
#ifndef ZERO_TRANSPORT_REGISTRY_H
#define ZERO_TRANSPORT_REGISTRY_H
#include "zero/comm/bootstrap/bootstrap.h"
#include "zero/comm/comm.h"
#include "zero/comm/mesh.h"
#ifdef __cplusplus
extern "C" {
#endif

typedef struct zero_transport zero_transport;

// A transport ignores the fields that do not concern it. All ranks must have the same values.
typedef struct zero_comm_config {
    double timeout_s;      // how long a rank may keep the others waiting; 0: 300 s
    int no_shared_memory;  // mpi: 1: messages even between ranks of one host
    int ranks_per_host;    // > 0: pretend that hosts hold this many ranks each, as tests do; 0: find out
    int one_level;         // 1: not in two levels between hosts (comm.h), to compare
    int staged;            // mpi: 1: treat device memory as out of the host's reach (always so on a real GPU)
    int register_buffers;  // nccl: 1: symmetric memory is allocated by and registered with NCCL (ncclMemAlloc,
                           // ncclCommRegister)
    const char *library;   // nccl: what to load; NULL: libnccl.so.2
    int omit_wait;         // nccl: tests only: leave out one wait (enum zero_nccl_wait, nccl/waits.h)
} zero_comm_config;

// The i-th transport, NULL after the last one; the transport with this name, or NULL.
const zero_transport *zero_transport_at(size_t i);
const zero_transport *zero_transport_find(const char *name);

const char *zero_transport_name(const zero_transport *t);   // what it is chosen by: "nccl"
const char *zero_transport_title(const zero_transport *t);  // what it is called in tables: "NCCL"
int zero_transport_needs_mpi(const zero_transport *t);      // ranks must have met by zero_bootstrap_create_mpi
int zero_transport_needs_device(const zero_transport *t);   // no two ranks may share a GPU

// Whether the transport can be used in this process. Returns 1, and message is its version ("NCCL 2.28.9"); or 0, and
// message says why not and what to do. Not collective.
int zero_transport_available(const zero_transport *t, const zero_comm_config *config, char *message, size_t bytes);

// What decides its memory (comm.h), without creating it. per_host: of the ranks, how many each host has; 0: there are
// several hosts, and they have different numbers. Pure.
zero_comm_shape zero_transport_shape(const zero_transport *t, const zero_comm_config *config, size_t ranks,
                                     size_t per_host);

// A communicator of all ranks of the bootstrap, which must live until this returns. The current device is the rank's.
// Collective; fails on all ranks. On failure *out is NULL and err has the message.
int zero_comm_create(zero_comm **out, const zero_transport *t, zero_bootstrap *boot, const zero_comm_config *config,
                     zero_accounting *accounting, char *err, size_t err_bytes);

// The communicators of a mesh over the ranks of the bootstrap. With one shard group, shard is data and replicate NULL.
typedef struct zero_mesh_comms {
    zero_comm *data;       // this rank's data-parallel ranks
    zero_comm *shard;      // those of them that shard among themselves
    zero_comm *replicate;  // those that hold the same shard in other groups
} zero_mesh_comms;

// Collective, as zero_comm_create.
int zero_mesh_comms_create(zero_mesh_comms *out, const zero_mesh *mesh, const zero_transport *t, zero_bootstrap *boot,
                           const zero_comm_config *config, zero_accounting *accounting, char *err, size_t err_bytes);
void zero_mesh_comms_destroy(zero_mesh_comms *comms);  // collective; a zeroed struct is fine

#ifdef __cplusplus
}
#endif
#endif
