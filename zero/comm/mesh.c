// mesh.c: coordinates in the grid of ranks, and the hooks for tensor and pipeline parallelism. With size 1 a hook is
// exact (it does nothing); larger sizes it refuses with ZERO_ERR_ARG.
#include "zero/comm/mesh.h"
#include <stdio.h>
#include <string.h>

int zero_mesh_create(zero_mesh *m, int rank, int ranks, int tensor, int pipe, int shard, char *err, size_t err_bytes) {
    memset(m, 0, sizeof *m);
    if (tensor < 1 || pipe < 1 || shard < 0 || ranks < 1 || rank < 0 || rank >= ranks) {
        snprintf(err, err_bytes,
                 "tensor %d, pipe %d, shard %d, rank %d of %d: tensor and pipe must be at least 1, shard at "
                 "least 0, and rank one of the ranks",
                 tensor, pipe, shard, rank, ranks);
        return ZERO_ERR_ARG;
    }
    if ((size_t)ranks % ((size_t)tensor * (size_t)pipe)) {
        snprintf(err, err_bytes, "tensor %d x pipe %d does not divide the %d ranks: choose sizes whose product does",
                 tensor, pipe, ranks);
        return ZERO_ERR_ARG;
    }
    m->tensor = tensor;
    m->pipe = pipe;
    m->data = ranks / (tensor * pipe);
    m->tensor_rank = rank % tensor;
    m->data_rank = rank / tensor % m->data;
    m->pipe_rank = rank / tensor / m->data;
    m->shard = shard ? shard : m->data;
    if (m->data % m->shard) {
        snprintf(err, err_bytes,
                 "a shard group (shard) of %d does not divide the %d data-parallel ranks: choose a size that does, or "
                 "0 for one group",
                 shard, m->data);
        return ZERO_ERR_ARG;
    }
    m->groups = m->data / m->shard;
    m->shard_rank = m->data_rank % m->shard;
    m->group = m->data_rank / m->shard;
    return ZERO_OK;
}

int zero_mesh_require_data_only(const zero_mesh *m, char *err, size_t err_bytes) {
    if (m->tensor == 1 && m->pipe == 1) return ZERO_OK;
    snprintf(err, err_bytes,
             "tensor %d, pipe %d: this model shards over data-parallel ranks only, both must be 1; the hooks in "
             "zero/comm/mesh.h are for models with tensor or pipeline parallelism of their own",
             m->tensor, m->pipe);
    return ZERO_ERR_ARG;
}

static int identity_if(int size) { return size == 1 ? ZERO_OK : ZERO_ERR_ARG; }

int zero_tp_copy(const zero_mesh *m, void *x, enum zero_dtype dtype, size_t n, cudaStream_t stream) {
    (void)x;
    (void)dtype;
    (void)n;
    (void)stream;
    return identity_if(m->tensor);
}

int zero_tp_reduce(const zero_mesh *m, void *x, enum zero_dtype dtype, size_t n, cudaStream_t stream) {
    (void)x;
    (void)dtype;
    (void)n;
    (void)stream;
    return identity_if(m->tensor);
}

void zero_pp_units(const zero_mesh *m, size_t num_units, size_t *first, size_t *last) {
    *first = num_units * (size_t)m->pipe_rank / (size_t)m->pipe;
    *last = num_units * ((size_t)m->pipe_rank + 1) / (size_t)m->pipe;
}

int zero_pp_recv(const zero_mesh *m, void *x, enum zero_dtype dtype, size_t n, cudaStream_t stream) {
    (void)x;
    (void)dtype;
    (void)n;
    (void)stream;
    return identity_if(m->pipe);
}

int zero_pp_send(const zero_mesh *m, const void *x, enum zero_dtype dtype, size_t n, cudaStream_t stream) {
    (void)x;
    (void)dtype;
    (void)n;
    (void)stream;
    return identity_if(m->pipe);
}
