// comm_mpi.h: the MPI transport (comm.h says what a transport does).
#ifndef ZERO_COMM_MPI_H
#define ZERO_COMM_MPI_H
#include <mpi.h>
#include "zero/comm/comm.h"
#include "zero/comm/mesh.h"
#ifdef __cplusplus
extern "C" {
#endif

typedef struct zero_comm_mpi_config {
    double timeout_s;      // how long a rank may keep the others waiting; 0: 300 s
    int no_shared_memory;  // 1: send messages even between ranks of one host
    int ranks_per_host;    // > 0: pretend that hosts hold this many ranks each, as tests do; 0: ask MPI
    int staged;            // 1: treat device memory as out of the host's reach (always so on a real GPU)
} zero_comm_mpi_config;

// Collective over comm (duplicated, so the caller may go on using it). On failure too *out is set (unless memory is
// exhausted), so that zero_comm_error() can be asked.
int zero_comm_create_mpi(zero_comm **out, MPI_Comm comm, const zero_comm_mpi_config *config, zero_accounting *memory);

// The shape of such a transport, without making one: pure, needs no MPI_Init.
zero_comm_shape zero_comm_mpi_shape(size_t ranks, int staged, int remote);

// The communicators of a mesh over world: *data joins this rank's data-parallel ranks, *shard those that shard among
// them, *replicas those that hold the same shard in other groups. With one group *shard is *data, and *replicas NULL;
// destroy each once. Collective over world. On failure err says why.
int zero_mesh_comms_mpi(const zero_mesh *m, MPI_Comm world, const zero_comm_mpi_config *config, zero_accounting *memory,
                        zero_comm **data, zero_comm **shard, zero_comm **replicas, char *err, size_t err_bytes);

#ifdef __cplusplus
}
#endif
#endif
