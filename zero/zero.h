// zero.h: ZeRO-sharded data parallelism (Rajbhandari et al., SC 2020) for a training loop in C. The loop includes this
// header and that of the transports (zero/comm/transport_registry.h: zero_comm_create).
//
// A unit is a group of tensors that are all-gathered and reduced together: what FSDP calls a unit and Megatron a
// bucket; usually one transformer block. The loop describes its tensors (zero_tensor: numel, unit, place in the model
// file) and surrounds its use of each unit with the same four calls in every stage; it never asks which stage it is in:
//
//     for each micro-batch m = 0, 1, ... of a step:
//         forward:  p = zero_acquire_params(z, u); ... zero_release_params(z, u);        for each unit u
//         backward: p = zero_acquire_params(z, u); g = zero_acquire_grads(z, u, m);      in any order that is the same
//                   ... add this micro-batch's gradient to g ...                         on all ranks
//                   zero_release_grads(z, u); zero_release_params(z, u);
//         zero_finish_backward(z);                                       zero_is_frozen: units without gradients
//     zero_step(z, &hyperparameters);              or zero_discard(z), which drops the gradients and changes nothing
//
// p and g point to the unit's flat buffer in device memory, of settings.dtype; tensor t begins at element
// zero_tensor_offset(z, t) of it. g is zero when acquired, and its padding must stay zero.
//
//     stage  sharded over ranks  acquire_params  acquire_grads  release_grads   step
//     0      nothing             -               -              reduce-scatter  all-gather sums, update everything
//     1      optimizer state     -               -              reduce-scatter  update shard, all-gather parameters
//     2      and gradients       -               from a pool    reduce-scatter  update shard, all-gather parameters
//     3      and parameters      all-gather      from a pool    reduce-scatter  update shard
//
// Same bits. Gradients are accumulated in fp32 in the order of a balanced binary tree over the global micro-batch index
// j = g * N + r (g = micro-step, r = rank; gradients.c has an example). So the update has the same bits in every stage,
// and for M = N * G fixed on any number of ranks N, in shard groups of any size. With settings.order ZERO_ORDER_RANK
// the caller gives rank r the micro-batches j = r * G + g instead, and with ZERO_ORDER_LAYER also unit by unit, with
// the same bits. The mean over the M micro-batches is taken once, in fp32, in the optimizer: a micro-batch's gradient
// is that of its own mean loss.
//
// Errors. Calls return ZERO_OK or a ZERO_ERR_* code (pointers: NULL), and zero_error() has the message. Failure is a
// state: the first error stays, and every later call returns it and does nothing. After misuse (ZERO_ERR_ARG, the same
// in every stage and on one rank) or ZERO_ERR_CALLBACK, zero_discard on all ranks makes the engine usable again; after
// other errors only zero_destroy is left. Ranks that make different calls get ZERO_ERR_COMM, at the latest with the
// next norm or hash.
//
// The module has no globals, prints nothing and never exits. A zero belongs to one host thread. "Collective": all ranks
// must call. Several engines may share communicators, in turn, also within a micro-batch; an accounting that they share
// has the bytes of all, and so have reports of wire bytes. The callbacks of a fill, load or visit must not call the
// engine that calls them, except for what cannot fail.
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
    const zero_tensor *tensors;  // copied; their ranges of logical indices must not overlap
    size_t num_tensors;
    const size_t *order;    // stage 3: the units in the order in which a micro-batch acquires their parameters, for
    size_t order_length;    // prefetching; copied. Acquiring in another order works too, without the benefit.
    size_t micro_batches;   // settings.order ZERO_ORDER_RANK, LAYER: of this rank in each step; else not used
    zero_comm *shard_comm;  // the shard group: the ranks that shard the model among them; must outlive the zero
    // The replicate group (MiCS, HSDP; stages 1 to 3): the ranks that hold the same shard in other shard groups. Global
    // rank = group * size of shard_comm + rank in shard_comm. Must outlive the zero. NULL: one shard group.
    zero_comm *replicate_comm;
    const char *offload_dir;         // settings.offload ZERO_OFFLOAD_NVME: where the file is; copied
    const char *offload_params_dir;  // the same of settings.offload_params
    zero_accounting *accounting;     // must outlive the zero
    cudaStream_t stream;             // all work is ordered on it
    // Optional profiling hook: called before (begin = 1) and after (0) work is queued on the stream `on`. Work is one
    // of "zero gradients", "accumulate" (not with ZERO_ORDER_STEP), "all-to-all", "reduce", "norm", "all-gather sums",
    // the optimizer's name, "update, host", "all-gather" (stages 1, 2), "unshard" (stage 3); "all-gather: wait" and
    // "unshard: wait" are the part of these that was not hidden. Not nested.
    void (*timing)(void *ctx, const char *work, int begin, cudaStream_t on);
    void *timing_ctx;
} zero_config;

// Creates an engine; parameters are zero until zero_fill. Collective. After a failure *out is set too (unless host
// memory is exhausted), for zero_error(); destroy it.
int zero_create(zero **out, const zero_config *config);
// The same, without a handle to destroy: after a failure it returns NULL, and err has the message.
zero *zero_new(const zero_config *config, char *err, size_t err_bytes);
void zero_destroy(zero *z);  // collective; NULL is fine
const char *zero_error(const zero *z);
const zero_layout *zero_get_layout(const zero *z);
size_t zero_tensor_offset(const zero *z, size_t tensor);  // elements from the start of its unit; the same for every N

// Acquire and release. Collective in the sense that all ranks make the same calls in the same order.
//
// Parameters: before stage 3, acquire returns the resident buffer and release does nothing. In stage 3 acquire
// all-gathers the unit (unless it is still in a buffer), and release lets another unit take its buffer. A unit may be
// acquired several times, and is released as often. In every stage at most 1 + settings.prefetch units may be held at a
// time, not counting those with buffers of their own: units with tied tensors (zero_tensor.tied), and units much larger
// than the others (pool.h has the rule). None may be when zero_begin_step or zero_step is called.
//
// Gradients: acquired once per micro-batch, which this rank counts from 0 in each step, in ascending order for each
// unit. A loop may also go unit by unit, all micro-batches of a unit in a row. Where a tensor is used twice (an
// embedding tied to the head), hold its unit from the first use in the backward to the last. In every stage at most two
// units may be held at a time, not counting those with buffers of their own.
//
//              zero_acquire_grads             zero_release_grads            gradients.c: reduce
//       FREE ----------------------> ACQUIRED ------------------> REDUCING ---------------------> FREE, for the next
//            takes a buffer, zeroes           begins the                   waits for the chunks,   micro-batch
//            it                               all-to-all                   accumulates in fp32
const void *zero_acquire_params(zero *z, size_t unit);
int zero_release_params(zero *z, size_t unit);
void *zero_acquire_grads(zero *z, size_t unit, size_t micro_batch);
int zero_release_grads(zero *z, size_t unit);

// Optional, before the first micro-batch of a step: starts counting its wire bytes here (else where the last step
// ended) and drops all-gathered parameters, so that the count does not depend on what ran before. Collective.
int zero_begin_step(zero *z);

// Ends a micro-batch, or several: all units' gradients must have been released in the same number of them. Until then
// norms, zero_step, zero_begin_step, fill, load and hash are refused. Collective.
int zero_finish_backward(zero *z);
size_t zero_get_micro_batches(const zero *z);  // finished since the last step: the number of the next one

// Optional, after zero_finish_backward, for micro-batches of unequal weight (as numbers of tokens): the caller scales
// the loss of each by its weight w, and passes the sum of w over all micro-batches of the step and all ranks. It takes
// the place of M in the mean gradient. All ranks must pass the same.
int zero_set_total_weight(zero *z, double weight);

// Global l2 norm of the mean gradient of the micro-batches since the last step: sqrt(sum g^2) / M. The same bits on all
// ranks, and for every stage and N for which the sum has: squares are summed in double in blocks of 64 elements and the
// block sums added exactly, so their order does not matter. NaN or Inf if any element is. The host waits for it; norm
// NULL: it is queued for the next zero_step, and nobody waits. Collective.
int zero_grad_norm(zero *z, double *norm);

// The same for each tensor: norms[num_tensors], of the mean gradient; the sum of their squares is that of the global
// norm. Collective.
int zero_tensor_norms(zero *z, double *norms);

// Updates the parameters with the mean gradient g = sum of gradients / M, by settings.optimizer (optimizers/NAME.cuh).
// If its norm is larger than h->max_norm > 0, g is scaled by max_norm / norm. If the norm is not finite, nothing is
// changed and the step is skipped; that is no error. The device decides both: with a transport that has a stream of its
// own the step is only queued, and the host learns later what it has done. Ranks that have made other calls before the
// norm change nothing and are told then; a difference after zero_grad_norm is told with the next norm or hash.
// Collective; all ranks must pass the same hyperparameters.
int zero_step(zero *z, const zero_hyperparameters *h);

// How a tensor is updated, where that differs from the others. May change between steps.
typedef struct zero_tensor_options {
    float lr_factor, decay_factor;  // on h->lr and h->weight_decay. Initially 1, and 1 or 0 by zero_tensor.decay
    int frozen;                     // 1: it is not updated, and its gradient is not part of the norm. Initially
                                    // zero_tensor.frozen
    uint64_t first_update;          // zero_get_updates when it was last unfrozen, else 0: AdamW's bias correction
                                    // counts from there
} zero_tensor_options;

// Setting is collective, between steps. A tensor that becomes frozen, or no longer is, gets optimizer states of zero;
// in the latter case first_update is set to the present number of updates. Getting is not collective.
int zero_set_tensor_options(zero *z, size_t tensor, const zero_tensor_options *options);
zero_tensor_options zero_get_tensor_options(const zero *z, size_t tensor);

// Returns 1 if all tensors of a unit are frozen. Then it has no gradient buffers, sums and optimizer states (visits see
// zeros, loads leave them out), and its gradients must not be acquired. On the wire there are no gradients of it, and
// no updated parameters in stages 1 and 2. Parameters and master weights stay. Memory is released when its last tensor
// is frozen and allocated when the first one no longer is; if that fails on one rank, it does on all. Not collective.
int zero_is_frozen(const zero *z, size_t unit);

// What the last zero_step did. Waits until its norm is known; if that fails, norm is NaN and the next call returns the
// error. Not collective.
typedef struct zero_step_info {
    double norm;  // of the mean gradient, before clipping
    float scale;  // by which it was clipped; 1: it was not
    int skipped;  // the norm was not finite
} zero_step_info;
zero_step_info zero_last_step(zero *z);

// The number of updates since zero_fill, without skipped ones: the t of AdamW's bias correction and of stochastic
// rounding. Set it, on all ranks, after zero_load to continue another run; refused if a tensor's first_update is later.
// Getting is not collective; it waits as zero_last_step does.
uint64_t zero_get_updates(zero *z);
int zero_set_updates(zero *z, uint64_t updates);

// Drops the gradients since the last step and whatever is acquired, also in the middle of a micro-batch, and recovers
// from misuse: the engine is as it was after the last step. Collective; all ranks must have begun the same operations.
int zero_discard(zero *z);

// State, element by element, read and written by the ranks that own it.
enum zero_state {
    ZERO_STATE_PARAMS,                    // as stored: rounded to dtype
    ZERO_STATE_MASTER,                    // fp32 (without master weights: the parameters)
    ZERO_STATE_OPTIMIZER,                 // the optimizer's first state; the i-th is ZERO_STATE_OPTIMIZER + i
    ZERO_STATE_M = ZERO_STATE_OPTIMIZER,  // of AdamW
    ZERO_STATE_V,
    ZERO_STATE_EMA = 32,  // the moving average of the weights, if settings.ema_decay is not 0
    // The sum of gradients over all micro-batches, between zero_finish_backward and zero_step: to look at them, or
    // (zero_load) to replace them.
    ZERO_STATE_GRADS = 64
};

// Sets master weights, parameters and the moving average from fn; the optimizer's states, the number of updates and
// first_update to zero. fn writes elements [begin, begin + count) of a tensor to out (fp32, host memory) and returns 0;
// non-zero aborts with ZERO_ERR_CALLBACK. It is called in ascending (tensor, begin), for the elements whose optimizer
// state this rank has: its shard, in stage 0 everything. Collective.
typedef int (*zero_fill_fn)(void *ctx, size_t tensor, size_t begin, size_t count, float *out);
int zero_fill(zero *z, zero_fill_fn fn, void *ctx);

// Sets one state from fn, as zero_fill does, and leaves the others: the inverse of zero_visit, which may have run on
// another number of ranks and in another stage. ZERO_STATE_PARAMS and ZERO_STATE_MASTER both set master weights and
// parameters. Between steps only, except for ZERO_STATE_GRADS. Collective.
int zero_load(zero *z, enum zero_state state, zero_fill_fn fn, void *ctx);

// Passes what this rank owns of a state to fn, as fp32 in host memory, in ascending (tensor, begin); fn returns 0, or
// non-zero to abort with ZERO_ERR_CALLBACK. Ranks own disjoint ranges in every stage (in stage 0 too, where each holds
// everything), which together are the whole state. Several shard groups have the same state, and the first one owns it;
// gradient sums are divided among all of them. Not collective.
typedef int (*zero_visit_fn)(void *ctx, size_t tensor, size_t begin, size_t count, const float *values);
int zero_visit(zero *z, enum zero_state state, zero_visit_fn fn, void *ctx);

// 64-bit hashes of the parameters and of the optimizer state (master weights, each state, moving average) in logical
// order: the same for every N and stage. Also checks that ranks that hold the same parameters agree (else
// ZERO_ERR_COMM). Collective.
int zero_hash(zero *z, uint64_t *params, uint64_t *optimizer);

// Puts the exponential moving average of the weights (settings.ema_decay) in the place of the parameters, for
// validation, sampling or export: on = 1; and the parameters back, to the bit: on = 0. While it is on, parameters can
// be acquired and visited (ZERO_STATE_PARAMS), and all else that reads or changes the state is refused. Costs no
// memory, and in stages 1 and 2 an all-gather of the parameters. Collective, between steps.
//
// The average is of master weights, where there are any. It is kept in fp32 by the ranks that have the optimizer's
// state, without communication, and stays as it is where tensors are frozen or a step is skipped.
int zero_use_ema(zero *z, int on);

// ---- helpers --------------------------------------------------------------------------------------------------------

// Tensor t of an acquired unit, parameters or gradients.
void *zero_tensor_at(const zero *z, const void *unit, size_t tensor);

// For loops that run on the host: copy a unit's parameters, or this micro-batch's gradients, between the device and
// host memory of zero_layout_unit_numel elements of settings.dtype. They acquire, wait for the copy, and release; so
// they are collective in the same sense.
int zero_read_params(zero *z, size_t unit, void *host);
int zero_write_grads(zero *z, size_t unit, const void *host);  // padding must be zero

// A state in a file, as fp32 in logical order: element i at byte offset + 4 * i. Every rank writes what it owns (not
// collective) or reads what it needs (collective, as zero_fill and zero_load); with several hosts the file must be one
// that all see.
int zero_save_fd(zero *z, enum zero_state state, int fd, size_t offset);
int zero_fill_fd(zero *z, int fd, size_t offset);
int zero_load_fd(zero *z, enum zero_state state, int fd, size_t offset);

// The mean over all ranks of n numbers each, as of a step's losses: values[g] belongs to the rank's g-th micro-batch,
// and they are added in the order of micro-batches, so the mean has the same bits for every N. Collective.
int zero_mean(zero *z, const double *values, size_t n, double *mean);

// Optimizer state and parameters on a disk: bytes since the engine was created, and how long calls have waited for it.
typedef struct zero_offload_info {
    const char *how, *how_params;  // "io_uring, O_DIRECT"; "" without ZERO_OFFLOAD_NVME
    uint64_t read, written;
    double waited_s;
} zero_offload_info;
int zero_get_offload(const zero *z, zero_offload_info *out);  // returns 0 if nothing is offloaded. Not collective

// ---- reports --------------------------------------------------------------------------------------------------------

// Measured bytes beside those of the formula (cost.h): peak memory of this rank; bytes that this rank received in the
// last step. They return the number of rows, at most max. Not collective.
size_t zero_report_memory(const zero *z, zero_row *rows, size_t max);
size_t zero_report_wire(const zero *z, zero_row *rows, size_t max);
// What a step reads from a disk and writes to it, by formula alone (zero_cost_disk).
size_t zero_report_disk(const zero *z, zero_row *rows, size_t max);
// What the last step has copied to host memory and back for the update of what is offloaded (zero_cost_bus).
size_t zero_report_bus(const zero *z, zero_row *rows, size_t max);
// What each host has sent to the others in the last step, by formula alone (zero_cost_between_hosts).
size_t zero_report_between_hosts(const zero *z, size_t per_host, zero_row *rows, size_t max);

#ifdef __cplusplus
}
#endif
#endif
