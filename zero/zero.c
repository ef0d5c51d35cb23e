// zero.c: the engine's creation and destruction, its errors, allocation and timing. What it does is in gradients.c,
// parameters.c, optimizer.c and state.c; internal.h has the struct that they share.
//
// What a rank allocates (cost.c has the bytes; one rank needs no buffer to gather into):
//
//                        stage 0         1        2                     3
//     parameters         all             all      all                   shard, in a window; pool of unit buffers
//     gradients          all             all      pool of unit buffers  pool of unit buffers
//      ZERO_ORDER_RANK:  pool of unit buffers, and fp32 sums of all
//     partial sums       shard           shard    shard                 shard
//     optimizer state    all             shard    shard                 shard
//     average of weights all             shard    shard                 shard
//     of these, offloaded                to host memory or a disk: settings.offload (optimizer_state.c) and, of the
//                                        parameters' shard, offload_params (parameter_offload.c)
//     other              a unit of sums  -        -                     -
//
// Overlap. A transport with a stream of its own (NCCL) never makes the host wait: releasing a unit's gradients queues
// the whole reduction, accumulation included, on that stream (reduce_stream), where it runs under the backward of the
// next units. The caller's stream waits for all of them where sums are read (zero_follow), and for one where its buffer
// is acquired again; all-gathered parameters are waited for unit by unit in the next forward. What the norm decides,
// the optimizer reads on the device (grad_norm.c). So the host waits nowhere in a step. A transport without a stream
// (MPI) waits on the host, as late as possible. test_overlap checks what overlaps, and that the host does not wait.
#include "zero/internal.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- errors ---------------------------------------------------------------------------------------------------------

int zero_fail(zero *z, int code, const char *format, ...) {
    if (z->failed) return z->failed;
    z->failed = code;
    va_list args;
    const int n = snprintf(z->error, sizeof z->error, "rank %d of %d: ", z->rank, z->ranks);
    va_start(args, format);
    vsnprintf(z->error + n, sizeof z->error - (size_t)n, format, args);
    va_end(args);
    return code;
}

int zero_enter(zero *z) {
    if (z->in_callback)
        zero_fail(z, ZERO_ERR_ARG, "a call in the callback of a fill, load or visit: make it afterwards");
    return z->failed;
}

int zero_comm_check(zero *z, int e) {
    if (!e || z->failed) return e ? z->failed : ZERO_OK;
    const char *message = zero_comm_error(z->config.shard_comm);  // empty if the other transport failed
    z->failed = e;
    snprintf(z->error, sizeof z->error, "%s",
             *message || z->replicas == 1 ? message : zero_comm_error(z->config.replicate_comm));
    return e;
}

int zero_device_check(zero *z, cudaError_t e, const char *what) {
    if (e == cudaSuccess) return ZERO_OK;
    // A transport that has given up on another rank makes CUDA calls fail too; its own message says more.
    if (zero_comm_synchronize(z->config.shard_comm, z->config.stream) == ZERO_ERR_COMM)
        return zero_comm_check(z, ZERO_ERR_COMM);
    return zero_fail(z, ZERO_ERR_DEVICE, "%s: %s", what, cudaGetErrorString(e));
}

const char *zero_error(const zero *z) { return z->error; }
const zero_layout *zero_get_layout(const zero *z) { return &z->layout; }
size_t zero_tensor_offset(const zero *z, size_t tensor) { return z->layout.tensor_offset[tensor]; }

// ---- streams and timing ---------------------------------------------------------------------------------------------

int zero_follow(zero *z, cudaStream_t follower, cudaStream_t leader) {
    if (follower == leader) return ZERO_OK;
    int e = zero_device_check(z, cudaEventRecord(z->event, leader), "recording an event");
    return e ? e : zero_device_check(z, cudaStreamWaitEvent(follower, z->event, 0), "waiting for an event");
}

cudaStream_t zero_transport_stream(const zero *z) {
    const cudaStream_t own = zero_comm_stream(z->config.shard_comm);
    return own ? own : z->config.stream;
}

void zero_time_begin(zero *z, const char *work, cudaStream_t on) {
    if (!z->config.timing) return;
    if (on != z->config.stream) (void)zero_follow(z, on, z->config.stream);  // the next call would fail with it too
    z->config.timing(z->config.timing_ctx, work, 1, on);
}

void zero_time_end(zero *z, const char *work, cudaStream_t on) {
    if (z->config.timing) z->config.timing(z->config.timing_ctx, work, 0, on);
}

// ---- memory ---------------------------------------------------------------------------------------------------------

int zero_alloc(zero *z, enum zero_memory_category c, size_t bytes, void *out) {
    void *p = zero_accounting_alloc(z->config.accounting, c, bytes);
    char refusal[ZERO_REFUSAL_BYTES];
    memcpy(out, &p, sizeof p);
    return p ? ZERO_OK
             : zero_fail(z, ZERO_ERR_MEMORY,
                         "no memory for %zu bytes of %s%s: use a higher settings.stage, more ranks or a smaller model",
                         bytes, zero_memory_category_name(c),
                         zero_accounting_refusal(z->config.accounting, bytes, refusal));
}

int zero_alloc_symmetric(zero *z, int e, zero_comm *comm, enum zero_memory_category c, size_t bytes, void *out) {
    void *p = NULL;
    e = zero_agree(z, e);
    if (!e) e = zero_comm_check(z, zero_comm_alloc(comm, z->config.accounting, c, &p, bytes));
    memcpy(out, &p, sizeof p);
    return e;
}

int zero_poison(zero *z, void *p, size_t bytes) {
    return z->config.settings.delay_seed && p
               ? zero_device_check(z, cudaMemsetAsync(p, 0xff, bytes, z->config.stream), "poisoning a buffer")
               : ZERO_OK;
}

// ---- create and destroy ---------------------------------------------------------------------------------------------

static int check_order(zero *z) {
    const zero_settings *s = &z->config.settings;
    if (!rank_order(z))
        return zero_fail(z, ZERO_ERR_ARG, "settings.order is %d: use ZERO_ORDER_STEP, RANK or LAYER", (int)s->order);
    if (s->stage >= 2 && !layer_order(z))
        return zero_fail(
            z, ZERO_ERR_ARG,
            "settings.order ZERO_ORDER_RANK: each rank keeps sums of all gradients, which stage %d shards: "
            "use settings.stage 0 or 1, or ZERO_ORDER_STEP or LAYER",
            s->stage);
    if (s->reduction != ZERO_REDUCE_EXACT)
        return zero_fail(
            z, ZERO_ERR_ARG,
            "settings.order ZERO_ORDER_RANK or LAYER works with settings.reduction ZERO_REDUCE_EXACT only");
    if (!z->config.micro_batches)
        return zero_fail(z, ZERO_ERR_ARG,
                         "settings.order ZERO_ORDER_RANK or LAYER needs micro_batches, those of each rank in a step");
    if (z->own.count > ZERO_MAX_CHUNKS / ((size_t)z->ranks * (size_t)z->replicas))
        return zero_fail(z, ZERO_ERR_ARG,
                         "micro_batches is %zu: with settings.order ZERO_ORDER_RANK each rank would pass on %zu sums, "
                         "which is too many: use a power of two",
                         z->config.micro_batches, z->own.count);
    return ZERO_OK;
}

static int check_config(zero *z) {
    const zero_settings *s = &z->config.settings;
    if (s->stage < 0 || s->stage > 3)
        return zero_fail(z, ZERO_ERR_ARG, "settings.stage is %d: there is no such ZeRO stage; use 0, 1, 2 or 3",
                         s->stage);
    if (s->shard_group && s->shard_group != (size_t)z->ranks)
        return zero_fail(z, ZERO_ERR_ARG, "settings.shard_group is %zu, but shard_comm has %d ranks: make them equal",
                         s->shard_group, z->ranks);
    if (z->replicas > 1 && s->stage == 0)
        return zero_fail(z, ZERO_ERR_ARG, "settings.stage 0 shards nothing: with a replicate_comm use stage 1, 2 or 3");
    if (z->replicas > 1 && s->reduction == ZERO_REDUCE_LIBRARY)
        return zero_fail(z, ZERO_ERR_ARG,
                         "settings.reduction ZERO_REDUCE_LIBRARY works on one shard group only: use "
                         "ZERO_REDUCE_EXACT, or no replicate_comm");
    if (s->prefetch < 0 || s->prefetch > 2)
        return zero_fail(z, ZERO_ERR_ARG, "settings.prefetch is %d: use 0, 1 or 2", s->prefetch);
    if (s->dtype != ZERO_F32 && s->dtype != ZERO_BF16)
        return zero_fail(z, ZERO_ERR_ARG, "settings.dtype is %d: use ZERO_F32 or ZERO_BF16", (int)s->dtype);
    if (s->reduction != ZERO_REDUCE_EXACT && s->reduction != ZERO_REDUCE_LIBRARY)
        return zero_fail(z, ZERO_ERR_ARG, "settings.reduction is %d: use ZERO_REDUCE_EXACT or ZERO_REDUCE_LIBRARY",
                         (int)s->reduction);
    if (s->order != ZERO_ORDER_STEP && check_order(z)) return z->failed;
    if (!(s->ema_decay >= 0 && s->ema_decay < 1))
        return zero_fail(z, ZERO_ERR_ARG, "settings.ema_decay is %g: use a number from 0, and below 1", s->ema_decay);
    if (s->master < ZERO_MASTER_FP32 || s->master > ZERO_MASTER_NONE)
        return zero_fail(z, ZERO_ERR_ARG, "settings.master is %d: there is no such kind of master weights",
                         (int)s->master);
    if (s->dtype == ZERO_F32 && s->master != ZERO_MASTER_FP32)
        return zero_fail(z, ZERO_ERR_ARG,
                         "settings.master: fp32 parameters are their own master weights: use ZERO_MASTER_FP32");
    if (s->offload < ZERO_OFFLOAD_NONE || s->offload > ZERO_OFFLOAD_NVME)
        return zero_fail(z, ZERO_ERR_ARG, "settings.offload is %d: use ZERO_OFFLOAD_NONE, _CPU or _NVME",
                         (int)s->offload);
    if (!(s->offload_fraction >= 0 && s->offload_fraction <= 1))
        return zero_fail(z, ZERO_ERR_ARG, "settings.offload_fraction is %g: use a number from 0 to 1",
                         s->offload_fraction);
    if (s->offload_params < ZERO_OFFLOAD_NONE || s->offload_params > ZERO_OFFLOAD_NVME)
        return zero_fail(z, ZERO_ERR_ARG, "settings.offload_params is %d: use ZERO_OFFLOAD_NONE, _CPU or _NVME",
                         (int)s->offload_params);
    if (s->offload_params != zero_params_offload(s))
        return zero_fail(z, ZERO_ERR_ARG,
                         "settings.offload_params: stage %d does not shard parameters: use settings.stage 3, or "
                         "ZERO_OFFLOAD_NONE",
                         s->stage);
    z->optimizer = zero_optimizer_get(s->optimizer);
    if (!z->optimizer)
        return zero_fail(z, ZERO_ERR_ARG, "settings.optimizer is %d: there is no such optimizer", (int)s->optimizer);
    return ZERO_OK;
}

// The promise of equal bits rests on how kernels.cu was compiled.
static int check_build(zero *z) {
    int contracts = 0;
    const int e = zero_device_check(z, zero_kernel_check_rounding(&contracts, z->config.stream), "rounding check");
    if (e || !contracts) return e;
    return zero_fail(
        z, ZERO_ERR_DEVICE,
        "this build contracts a * b + c into a fused multiply-add, so it would not give the promised bits: "
        "compile zero/kernels.cu with -ffp-contract=off (nvcc: -fmad=false)");
}

static int by_logical(const void *a, const void *b) {
    const zero_tensor *x = *(zero_tensor *const *)a, *y = *(zero_tensor *const *)b;
    return x->logical != y->logical ? (x->logical > y->logical) - (x->logical < y->logical)
                                    : (x->numel > y->numel) - (x->numel < y->numel);
}

// Two elements with one logical index would have one hash, one random number and one place in a file.
static int check_logical_indices(zero *z) {
    const zero_layout *l = &z->layout;
    int e = ZERO_OK;
    const zero_tensor **t = malloc(l->num_tensors * sizeof *t);
    if (!t) return zero_fail(z, ZERO_ERR_MEMORY, "out of host memory");
    for (size_t i = 0; i < l->num_tensors; i++) t[i] = &l->tensors[i];
    qsort(t, l->num_tensors, sizeof *t, by_logical);
    for (size_t i = 0; i < l->num_tensors && !e; i++) {
        if (t[i]->numel > SIZE_MAX - t[i]->logical)
            e = zero_fail(z, ZERO_ERR_ARG, "tensors: the logical indices of %s overflow size_t", t[i]->name);
        else if (i && t[i - 1]->logical + t[i - 1]->numel > t[i]->logical)
            e = zero_fail(z, ZERO_ERR_ARG,
                          "tensors: the logical indices of %s and %s overlap: each element needs its own",
                          t[i - 1]->name, t[i]->name);
    }
    free(t);
    return e;
}

static int create_layout(zero *z) {
    const char *why = NULL;
    if (zero_layout_create(&z->layout, z->config.tensors, z->config.num_tensors, (size_t)z->ranks, &why))
        return zero_fail(z, ZERO_ERR_ARG, "tensors: %s", why);
    z->config.tensors = z->layout.tensors;
    for (size_t i = 0; i < z->config.order_length; i++)
        if (z->config.order[i] >= z->layout.num_units)
            return zero_fail(z, ZERO_ERR_ARG, "order names unit %zu, which does not exist: there are %zu",
                             z->config.order[i], z->layout.num_units);
    return check_logical_indices(z);
}

static int create_host_buffers(zero *z) {
    z->units = calloc(z->layout.num_units, sizeof *z->units);
    z->host = malloc(HOST_CHUNK * sizeof *z->host);
    z->host_params = malloc(HOST_CHUNK * sizeof *z->host_params);
    z->host_low = malloc(HOST_CHUNK * sizeof *z->host_low);
    if (!z->units || !z->host || !z->host_params || !z->host_low)
        return zero_fail(z, ZERO_ERR_MEMORY, "out of host memory");
    return zero_device_check(z, cudaEventCreateWithFlags(&z->event, cudaEventDisableTiming), "creating an event");
}

// Between two agreements a rank may fail alone: it skips its local work and joins the others in the next one.
static int create(zero *z) {
    int e = check_config(z);
    if (!e) e = create_layout(z);
    if ((e = zero_agree_on_config(z, e))) return e;
    e = create_host_buffers(z);
    if (!e) e = check_build(z);
    if ((e = zero_agree(z, e))) return e;
    e = zero_params_create(z);
    e = zero_grads_create(z, e);
    e = zero_norm_create(z, e);
    e = zero_agree(z, zero_optimizer_create(z, e));
    zero_wire_start(z);
    return e;
}

int zero_create(zero **out, const zero_config *config) {
    zero *z = calloc(1, sizeof *z);
    *out = z;
    if (!z) return ZERO_ERR_MEMORY;
    z->config = *config;
    z->rank = zero_comm_rank(config->shard_comm);
    z->ranks = zero_comm_size(config->shard_comm);
    z->replicas = config->replicate_comm ? zero_comm_size(config->replicate_comm) : 1;
    z->elem = zero_dtype_bytes(config->settings.dtype);
    z->own = zero_cost_own_sums(&config->settings, config->micro_batches);
    zero_comm_phase(config->shard_comm, "creation of the engine", 0);
    zero_comm_set_delay_seed(config->shard_comm, config->settings.delay_seed);
    if (config->replicate_comm) zero_comm_set_delay_seed(config->replicate_comm, config->settings.delay_seed);
    const int e = create(z);
    z->created = !e;
    return e;
}

zero *zero_new(const zero_config *config, char *err, size_t err_bytes) {
    zero *z;
    if (zero_create(&z, config) == ZERO_OK) return z;
    snprintf(err, err_bytes, "%s", z ? zero_error(z) : "out of host memory");
    zero_destroy(z);
    return NULL;
}

void zero_destroy(zero *z) {
    if (!z) return;
    if (z->created) (void)zero_discard(z);  // ends what is in flight: the transport may serve other engines
    if (z->layout.num_units) {
        zero_params_destroy(z);
        zero_grads_destroy(z);
        zero_norm_destroy(z);
        zero_optimizer_destroy(z);
    }
    if (z->event) (void)cudaEventDestroy(z->event);
    zero_layout_destroy(&z->layout);
    free(z->units);
    free(z->host);
    free(z->host_params);
    free(z->host_low);
    free(z);
}
