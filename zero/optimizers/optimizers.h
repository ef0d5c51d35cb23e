// optimizers.h: the table of optimizers, and the chunks they work on.
//
// An optimizer is elementwise: it updates the weight and its states from the gradient of the same element. So it needs
// no communication, and works on a shard as it works on everything. To add one:
//
//     zero/optimizers/NAME.cuh        a struct with the update of 8 elements; included in optimizers.cuh
//     ZERO_OPTIMIZERS, below          one line
//     zero/types.h                    its name in enum zero_optimizer_kind
//
// Memory accounting, visits, hashes and the cost formulas take the number and the names of its states from the table.
#ifndef ZERO_OPTIMIZERS_H
#define ZERO_OPTIMIZERS_H
#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>
#include "zero/layout.h"
#include "zero/settings.h"
#include "zero/wide.h"
#ifdef __cplusplus
extern "C" {
#endif

enum {
    ZERO_OPTIMIZER_CHUNK = 4096,   // elements of a chunk, at most; one thread block updates one chunk
    ZERO_MAX_OPTIMIZER_STATES = 2  // fp32 arrays of an optimizer
};

// A range of one tensor. The padding behind the tensor counts as part of it: its gradient and state are zero and stay
// so.
typedef struct zero_optimizer_chunk {
    size_t param, state, grad;  // its first element's place in params, in master and states, and in grads
    size_t logical;             // its first element's logical index
    uint32_t count;             // a multiple of 8
    int32_t decay;              // 1: weight decay applies
    uint32_t tensor;
    uint32_t part;  // its arrays in zero_optimizer_args.parts
} zero_optimizer_chunk;

// What a rank has of a unit's optimizer state (its shard, in stage 0 everything) is one part, or several if some of it
// is offloaded: first what stays on the device, then what does not. A part that is offloaded, or whose parameters are
// on a disk, has at most ZERO_OFFLOAD_PART elements: enough bytes, and work on them, for the bus, the disk and the
// update to be busy at the same time, whatever the size of the unit. On a disk, each of its arrays is a record
// (offload/swap.h).
enum {
    ZERO_OFFLOAD_PART = 1 << 20,
    ZERO_OFFLOAD_PARTS = 4,        // that are in memory: read ahead, in use, and two behind
    ZERO_OFFLOAD_PARAM_PARTS = 8,  // of parameters (parameter_offload.c): those read ahead and those on their way to
    ZERO_OFFLOAD_PARAM_READS = 5,  // the device, and one more
    ZERO_OFFLOAD_PARAM_COPIES = 2,
    ZERO_HOST_SLOTS = 3  // whose gradients and parameters are in host memory: copied there, updated, copied back
};
// Bytes of an element in a slot: its gradient and its parameter. Whether the update reads the latter, so that it is
// copied to the host: it does not if there are fp32 master weights.
static inline size_t zero_slot_bytes(enum zero_dtype t) { return sizeof(float) + zero_dtype_bytes(t); }
static inline int zero_update_reads_params(enum zero_dtype t, enum zero_master m) {
    return t == ZERO_F32 || m != ZERO_MASTER_FP32;
}

typedef struct zero_state_part {
    size_t begin, numel;  // multiples of ZERO_ALIGN
    int offloaded;
} zero_state_part;

// Writes the i-th part of numel elements to *out. Returns 0 if there are fewer. Not collective.
int zero_state_part_at(const zero_settings *s, size_t numel, size_t i, zero_state_part *out);

// The chunks of elements [begin, end) of a unit in ascending order; places are counted from begin. Returns their
// number; writes them to out unless it is NULL. The only walk over chunks: the engine and the cost formulas call it.
// Not collective.
size_t zero_optimizer_chunks(const zero_layout *l, size_t unit, size_t begin, size_t end, zero_optimizer_chunk *out);

// What a tensor has instead of the hyperparameters of all.
typedef struct zero_tensor_args {
    float lr, decay, correction1, correction2;
    uint32_t frozen;  // it is not updated
} zero_tensor_args;

// The hyperparameters as a kernel takes them.
typedef struct zero_optimizer_args {
    float lr, beta1, beta2, eps, weight_decay;
    float correction1, correction2;             // 1 - beta1^t, 1 - beta2^t
    float scale;                                // factor on the sum of gradients, unless there is a decision
    uint64_t seed, t;                           // of stochastic rounding; t: the update, counted from 1
    const zero_tensor_args *tensors;            // where the arrays are; by tensor; NULL: all are alike
    float ema_weight;                           // 1 - settings.ema_decay
    const struct zero_optimizer_arrays *parts;  // device, by part, in place of the arrays of the launch; NULL: none
    const zero_decision *decision;              // where the arrays are; its factor, or to change nothing; NULL: none
} zero_optimizer_args;

// scale: the factor on the sum of gradients. t: the update, counted from 1.
zero_optimizer_args zero_optimizer_prepare(const zero_hyperparameters *h, float scale, uint64_t seed, uint64_t t);

// Memory of the device, or of the host (zero_optimizer_update). The weight w that an optimizer updates is: for fp32
// params the parameter (master is NULL). For bf16
//     ZERO_MASTER_FP32:  master, fp32;                    then parameter = zero_master_round(w)
//     ZERO_MASTER_SPLIT: zero_master_join(parameter, master), master the low half of w (uint16_t); then the same
//     ZERO_MASTER_NONE:  the parameter (master is NULL);  then parameter = zero_master_round_stochastic(w, random)
// ema, if not NULL, is the average of w before that rounding; after the update ema = ema + ema_weight * (w - ema).
// Element k of 8 aligned elements of a chunk takes random[k] of zero_master_random(seed, t, logical index of the
// first).
typedef struct zero_optimizer_arrays {
    void *params, *master;
    float *state[ZERO_MAX_OPTIMIZER_STATES];
    const float *grads;  // the sum of gradients over all micro-batches
    float *ema;          // its place is that of the states
} zero_optimizer_arrays;

// Updates num_chunks chunks (device memory); asynchronous on the stream. fp32 arithmetic without fused multiply-add, in
// the order that NAME.cuh documents. Not collective.
cudaError_t zero_optimizer_launch(enum zero_optimizer_kind kind, zero_optimizer_arrays arrays, enum zero_dtype dtype,
                                  enum zero_master master, const zero_optimizer_chunk *chunks, size_t num_chunks,
                                  zero_optimizer_args args, cudaStream_t stream);

// The same with pointers to host memory, on the host's threads, at once: the same bits. Calls nothing of CUDA. With
// ZERO_MASTER_FP32, bf16 parameters are written only, also those of chunks that are not updated. Not collective.
void zero_optimizer_update(enum zero_optimizer_kind kind, const zero_optimizer_arrays *arrays, enum zero_dtype dtype,
                           enum zero_master master, const zero_optimizer_chunk *chunks, size_t num_chunks,
                           const zero_optimizer_args *args);

// The table, in the order of enum zero_optimizer_kind: struct in NAME.cuh; name; number of states, names of states.
#define ZERO_OPTIMIZERS(X)                     \
    X(adamw, "AdamW", 2, "AdamW m", "AdamW v") \
    X(sgd, "SGD", 1, "SGD m")                  \
    X(lion, "Lion", 1, "Lion m")

typedef struct zero_optimizer {
    const char *name;                                    // "AdamW"; also the label of its work in a profile
    size_t num_states;                                   // each is fp32: 4 bytes per parameter
    const char *state_names[ZERO_MAX_OPTIMIZER_STATES];  // "AdamW m": rows of memory accounting
} zero_optimizer;

// The table's entry, or NULL if there is no such optimizer.
const zero_optimizer *zero_optimizer_get(enum zero_optimizer_kind kind);

#ifdef __cplusplus
}
#endif
#endif
