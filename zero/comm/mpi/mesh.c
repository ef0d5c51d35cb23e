// mesh_mpi.c: a mesh's communicators, by MPI (comm_mpi.h).
#include <stdio.h>
#include "zero/comm/mpi/comm_mpi.h"

// The ranks of world with this color.
static int split(MPI_Comm world, int color, int key, const zero_comm_mpi_config *config, zero_accounting *memory,
                 zero_comm **out, char *err, size_t err_bytes) {
    MPI_Comm part;
    *out = NULL;
    if (MPI_Comm_split(world, color, key, &part) != MPI_SUCCESS) {
        snprintf(err, err_bytes, "MPI_Comm_split failed");
        return ZERO_ERR_COMM;
    }
    const int e = zero_comm_create_mpi(out, part, config, memory);
    if (e) snprintf(err, err_bytes, "%s", *out ? zero_comm_error(*out) : "out of host memory");
    (void)MPI_Comm_free(&part);
    return e;
}

int zero_mesh_comms_mpi(const zero_mesh *m, MPI_Comm world, const zero_comm_mpi_config *config, zero_accounting *memory,
                        zero_comm **data, zero_comm **shard, zero_comm **replicas, char *err, size_t err_bytes) {
    const int stripe = m->pipe_rank * m->tensor + m->tensor_rank;  // of data-parallel ranks
    *replicas = NULL;
    int e = split(world, stripe, m->data_rank, config, memory, data, err, err_bytes);
    *shard = *data;
    if (e || m->groups == 1) return e;
    e = split(world, stripe * m->groups + m->group, m->shard_rank, config, memory, shard, err, err_bytes);
    return e ? e : split(world, stripe * m->shard + m->shard_rank, m->group, config, memory, replicas, err, err_bytes);
}
