// zero.h: ZeRO-sharded data parallelism for a training loop in C. The one header such a loop includes, beside that of a
// transport (comm_mpi.h: zero_comm_create_mpi; comm_nccl.h: zero_comm_create_nccl).
//
// The loop describes its tensors (zero_tensor: numel, unit, place in the model file), and then brackets each unit with
// the same four calls in every stage; it never asks which stage it is in:
//
//     for each micro-batch:
//         forward:  p = zero_acquire_params(z, u); ... zero_release_params(z, u);          for each unit u
//         backward: p = zero_acquire_params(z, u); g = zero_acquire_grads(z, u);           in any order that is the same
//                   ... add this micro-batch's gradient into g ...                          on all ranks
//                   zero_release_grads(z, u); zero_release_params(z, u);
//         zero_finish_backward(z);
//     zero_grad_norm(z, &norm);
//     zero_step(z, &adamw);                       or zero_discard(z), which forgets the gradients and changes nothing
//
// p and g point to the unit's flat buffer in device memory, of the dtype in the configuration; tensor t lies at element
// zero_tensor_offset(z, t) of it. g is zero when acquired, and its padding must stay zero.
//
// Stage: 0 nothing is sharded; 1 optimizer state; 2 and gradients; 3 and parameters. Whatever the stage, gradients are
// summed in fp32 in the order of a balanced binary tree over the global micro-batch index j = g * N + r (g =
// micro-step, r = rank), so that the update has the same bits in every stage, and for N * G fixed and N a power of two
// also for every N. The mean over the M = N * G micro-batches is taken once, in fp32, inside the optimizer: a
// micro-batch's gradient is that of its own mean loss.
//
// Calls return ZERO_OK or a ZERO_ERR_* code (pointers: NULL), and zero_error() says what went wrong in words. The
// module has no globals, prints nothing and never exits. One zero belongs to one host thread. "Collective": all ranks
// must call.
#ifndef ZERO_H
#define ZERO_H
#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>
#include "zero/comm/comm.h"
#include "zero/layout.h"
#include "zero/accounting.h"
#include "zero/comm/mesh.h"
#include "zero/cost.h"
#include "zero/settings.h"
#include "zero/types.h"
#ifdef __cplusplus
extern "C" {
#endif

typedef struct zero zero;

typedef struct zero_config {
    zero_settings settings;
    const zero_tensor *tensors;  // copied
    size_t num_tensors;
    const size_t *order;        // stage 3: the units in the order in which a micro-batch acquires their parameters, for
    size_t order_length;        // prefetching; copied. Another order works too, only without prefetching.
    zero_comm *shard_comm;      // the ranks that shard the model among them; must outlive the zero
    zero_comm *replicate_comm;  // stages 1 to 3, hierarchical sharding (MiCS, HSDP): the ranks that hold the same shard
                                // in other shard groups, so that rank = group * size of shard_comm + rank in
                                // shard_comm; must outlive the zero. NULL: one shard group
    zero_accounting *accounting;  // of device memory; must outlive the zero
    cudaStream_t stream;          // all work is ordered on it
    // NULL, or told before (begin 1) and after (0) work is queued, and on which
    void (*timing)(void *ctx, const char *work, int begin, cudaStream_t on);
    void *timing_ctx;  // stream: "zero gradients", "exchange", "reduce", "norm", "gather sums", "AdamW",
                       // "gather", "fetch", and "gather: wait", "fetch: wait" for the rest of these that
                       // was not hidden. Not nested.
} zero_config;

// Collective. On failure too *out is set (unless memory is exhausted) so that zero_error() can be asked; destroy it.
int zero_create(zero **out, const zero_config *config);
void zero_destroy(zero *z);  // collective; NULL is fine
const char *zero_error(const zero *z);
const zero_layout *zero_get_layout(const zero *z);
size_t zero_tensor_offset(const zero *z, size_t tensor);  // elements from the start of its unit; the same for every N

// The four brackets. Before stage 3, acquire_params returns what is there and release_params does nothing. In stage 3 a
// unit's parameters are fetched when acquired, and their buffer may be used for another unit once they are released; as
// long as it is not, acquiring them again costs nothing. A unit's parameters may be acquired several times before they
// are released; but at most 1 + prefetch units of one size may be held at a time (more: ZERO_ERR_ARG). A unit's
// gradients are acquired once in a micro-batch: where a tensor is used twice (an embedding tied to the head), hold them
// from the first use in the backward to the last. From stage 2 on at most two units of one size may hold gradients at a
// time. Collective in the sense that all ranks make the same calls in the same order.
void *zero_acquire_params(zero *z, size_t unit);
int zero_release_params(zero *z, size_t unit);
void *zero_acquire_grads(zero *z, size_t unit);  // a zeroed buffer
int zero_release_grads(zero *z, size_t unit);    // starts the reduction
int zero_begin_step(zero *z);       // optional, before a step's first micro-batch: the count of its wire bytes starts
                                    // here (else at the end of the last step), and with no parameters at hand that
                                    // something else has fetched; collective
int zero_finish_backward(zero *z);  // ends a micro-batch; collective

// Global l2 norm of the mean gradient of the micro-batches since the last step: sqrt(sum g^2) / M, the same bits on all
// ranks and, like the sum, for every stage and N. Squares are summed in double over blocks of 64 elements and the block
// sums added exactly (as one wide integer), so no order matters. NaN or Inf if any element is. Collective.
int zero_grad_norm(zero *z, double *norm);

// AdamW (Loshchilov & Hutter 2019, decoupled decay), with g = (sum of gradients / M) * grad_scale, t = step from 1:
// m = beta1 m + (1 - beta1) g      v = beta2 v + (1 - beta2) g^2
// w -= lr * (m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps) + weight_decay w)      decay only where the tensor has it
typedef struct zero_adamw {
    float lr, beta1, beta2, eps, weight_decay, grad_scale;
    uint64_t t;
} zero_adamw;
int zero_step(zero *z, const zero_adamw *a);  // collective
int zero_discard(zero *z);                    // forget the gradients since the last step; collective

// Reading and writing state, element by element, by the ranks that own it.
enum zero_state {
    ZERO_STATE_PARAMS /* as stored: rounded to dtype */,
    ZERO_STATE_MASTER /* fp32 (without master weights: the parameters) */,
    ZERO_STATE_M,
    ZERO_STATE_V
};

// Fill the master weights and from them the parameters: fn writes elements [begin, begin + count) of a tensor to out
// (fp32, host). It is called for ascending (tensor, begin), for what this rank has optimizer state of (its shard; in
// stage 0 everything); non-zero aborts. m and v become zero. Collective.
typedef int (*zero_fill_fn)(void *ctx, size_t tensor, size_t begin, size_t count, float *out);
int zero_fill(zero *z, zero_fill_fn fn, void *ctx);

// Visit what this rank owns of a state: fn gets fp32 values in host memory, in ascending (tensor, begin). Ranks own
// disjoint ranges, in every stage (in stage 0 too, where all hold everything), and together all; with several groups
// the first one owns all. Not collective.
typedef int (*zero_visit_fn)(void *ctx, size_t tensor, size_t begin, size_t count, const float *values);
int zero_visit(zero *z, enum zero_state state, zero_visit_fn fn, void *ctx);

// 64-bit hashes of parameters and of optimizer state (master, m, v) in logical order: the same for every N and stage.
// Also verifies that the replicas of the parameters agree on all ranks (ZERO_ERR_COMM if not). Collective.
int zero_hash(zero *z, uint64_t *params, uint64_t *optimizer);

// What the books say (memory: peak of this rank; wire: received by this rank in the last step) beside what the plan
// says.
size_t zero_report_memory(const zero *z, zero_row *rows, size_t max);  // returns the number of rows, at most max
size_t zero_report_wire(const zero *z, zero_row *rows, size_t max);

#ifdef __cplusplus
}
#endif
#endif
