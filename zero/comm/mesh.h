// mesh.h: ranks as a grid of data x tensor x pipeline parallelism, data ranks in shard groups, and hooks for tensor and
// pipeline parallelism.
//
// Tensor-parallel ranks are neighbours on one host, so the tensor coordinate varies fastest, then data, then pipeline.
// Data ranks d = group * shard + s: neighbours shard among themselves, groups replicate (HSDP). With 16 ranks, tensor
// 2, pipe 2, shard 2:
//
//     rank = (pipe * data + d) * tensor + t                 data rank d     0 1 2 3
//     pipe 0:  d 0: ranks 0 1   d 1: 2 3   2: 4 5   3: 6 7  group           0 0 1 1
//     pipe 1:  d 0: ranks 8 9   d 1: 10 11 ...              rank in group   0 1 0 1
//
// zero/ itself is data parallelism. Tensor and pipeline parallelism belong to the model, and the hooks are where a
// model calls them: with size 1 they do nothing, larger sizes they refuse. zero_mesh_comms_create
// (transport_registry.h) makes the communicators of a grid of any size.
//
// Pure functions of their arguments; no communication, except where a hook says so.
#ifndef ZERO_MESH_H
#define ZERO_MESH_H
#include <stddef.h>
#include <cuda_runtime_api.h>
#include "zero/types.h"
#ifdef __cplusplus
extern "C" {
#endif

typedef struct zero_mesh {
    int data, tensor, pipe;                 // sizes; data * tensor * pipe = number of ranks
    int data_rank, tensor_rank, pipe_rank;  // this rank's coordinates
    int shard, groups;                      // data = groups * shard
    int shard_rank, group;
} zero_mesh;

// The coordinates of a rank. shard: data ranks of a shard group; 0: all. Returns ZERO_ERR_ARG, with a message in err,
// if the sizes do not divide. Not collective.
int zero_mesh_create(zero_mesh *m, int rank, int ranks, int tensor, int pipe, int shard, char *err, size_t err_bytes);

// For a model that has no tensor or pipeline parallelism of its own: returns ZERO_ERR_ARG, with a message in err,
// unless both sizes are 1.
int zero_mesh_require_data_only(const zero_mesh *m, char *err, size_t err_bytes);

// Tensor parallelism (Shoeybi et al. 2019, "f" and "g"). A column-parallel matmul calls zero_tp_copy on its input
// (identity forward; its gradient is summed over the tensor ranks by zero_tp_reduce), a row-parallel one calls
// zero_tp_reduce on its output. x: n elements in device memory, in place, ordered on stream. All tensor ranks of one
// (data, pipe) must call.
int zero_tp_copy(const zero_mesh *m, void *x, enum zero_dtype dtype, size_t n, cudaStream_t stream);
int zero_tp_reduce(const zero_mesh *m, void *x, enum zero_dtype dtype, size_t n, cudaStream_t stream);

// Pipeline parallelism: which units this stage of the pipe runs, and the hand-over of activations (forward) and of
// their gradients (backward) at its borders. With one stage: all units, and nothing to hand over. All ranks of the two
// neighbouring stages must call.
void zero_pp_units(const zero_mesh *m, size_t num_units, size_t *first, size_t *last);  // [first, last)
int zero_pp_recv(const zero_mesh *m, void *x, enum zero_dtype dtype, size_t n, cudaStream_t stream);
int zero_pp_send(const zero_mesh *m, const void *x, enum zero_dtype dtype, size_t n, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
