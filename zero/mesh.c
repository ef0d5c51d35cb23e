/* mesh.c: coordinates in the grid of ranks, and the tensor- and pipeline-parallel hooks. The hooks are the only stubs of
   the project, on purpose: of size 1 they are exact (the identity), and zero_mesh_create admits no other size, so a hook
   asked for more is the caller's mistake and says ZERO_ERR_ARG. */
#include "zero/mesh.h"
#include <stdio.h>

int zero_mesh_create(zero_mesh *m, int rank, int ranks, int tensor, int pipe, char *err, size_t err_bytes)
{
    if (tensor < 1 || pipe < 1 || ranks < 1 || rank < 0 || rank >= ranks) {
        snprintf(err, err_bytes, "a mesh of tensor %d x pipeline %d over %d ranks (this is rank %d) makes no sense: --tp and --pp are at least 1",
                 tensor, pipe, ranks, rank);
        return ZERO_ERR_ARG;
    }
    if (ranks % ((size_t)tensor * (size_t)pipe)) {
        snprintf(err, err_bytes, "--tp %d x --pp %d does not divide the %d ranks: choose sizes whose product does", tensor, pipe, ranks);
        return ZERO_ERR_ARG;
    }
    if (tensor != 1 || pipe != 1) {
        snprintf(err, err_bytes, "--tp %d --pp %d: tensor and pipeline parallelism are hooks (zero/mesh.h) for a model that brings them; "
                 "this one shards over data-parallel ranks only: use --tp 1 --pp 1", tensor, pipe);
        return ZERO_ERR_ARG;
    }
    m->tensor = tensor;
    m->pipe = pipe;
    m->data = ranks / (tensor * pipe);
    m->tensor_rank = rank % tensor;
    m->data_rank = rank / tensor % m->data;
    m->pipe_rank = rank / tensor / m->data;
    return ZERO_OK;
}

static int identity_if(int size) { return size == 1 ? ZERO_OK : ZERO_ERR_ARG; }

int zero_tp_copy(const zero_mesh *m, void *x, enum zero_dtype dtype, size_t n, cudaStream_t stream)
{
    (void)x; (void)dtype; (void)n; (void)stream;
    return identity_if(m->tensor);
}

int zero_tp_reduce(const zero_mesh *m, void *x, enum zero_dtype dtype, size_t n, cudaStream_t stream)
{
    (void)x; (void)dtype; (void)n; (void)stream;
    return identity_if(m->tensor);
}

void zero_pp_units(const zero_mesh *m, size_t num_units, size_t *first, size_t *last)
{
    *first = num_units * (size_t)m->pipe_rank / (size_t)m->pipe;
    *last = num_units * ((size_t)m->pipe_rank + 1) / (size_t)m->pipe;
}

int zero_pp_recv(const zero_mesh *m, void *x, enum zero_dtype dtype, size_t n, cudaStream_t stream)
{
    (void)x; (void)dtype; (void)n; (void)stream;
    return identity_if(m->pipe);
}

int zero_pp_send(const zero_mesh *m, const void *x, enum zero_dtype dtype, size_t n, cudaStream_t stream)
{
    (void)x; (void)dtype; (void)n; (void)stream;
    return identity_if(m->pipe);
}
