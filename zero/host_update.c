// host_update.c: the host updates the parts of the optimizer's state that are offloaded (ZeRO-Offload, Ren et al.
// 2021).
//
// What crosses the bus are sums of gradients, to the host, and parameters, to the device, and first to the host if the
// update reads them (zero_update_reads_params). They pass through a few slots of pinned memory, a part at a time, in
// the order of three streams, so that the host's thread that calls zero_step waits for nothing:
//
//     to_host     ... copy p+1 | copy p+2         | (waits for a free slot)
//     on_host     update p     | update p+1       | update p+2 ...           zero_optimizer_update, by all threads
//     to_device   copy p-1     | copy p           | copy p+1 ...
//
// After the last part of unit u the caller's stream waits for it (unit_updated), and its all-gather begins, while the
// host updates unit u + 1. So whatever the caller queues later comes after the update. What the norm decides, the host
// reads where grad_norm.c copies it to. Parameters that are offloaded too (parameter_offload.c) are not copied; the
// file of those on a disk belongs to the caller's thread, which then waits for the gradients, and updates itself.
//
// A job and what it reads stay as they are until the decision of the next step is known to the host, which is after
// this step's work: there are two sets, in turn.
#include <stdlib.h>
#include <string.h>
#include "zero/internal.h"
#include "zero/nvtx.h"

// ---- create and destroy ---------------------------------------------------------------------------------------------

static int create_stream(zero *z, cudaStream_t *s) {
    return zero_device_check(z, cudaStreamCreateWithFlags(s, cudaStreamNonBlocking), "creating a stream");
}

static int create_event(zero *z, cudaEvent_t *event) {
    return zero_device_check(z, cudaEventCreateWithFlags(event, cudaEventDisableTiming), "creating an event");
}

static int create_slots(zero *z) {
    const size_t n = z->largest_offloaded, bytes = ZERO_HOST_SLOTS * n * zero_slot_bytes(z->config.settings.dtype);
    char *memory = zero_accounting_alloc_host(z->config.accounting, bytes);
    if (!memory)
        return zero_fail(z, ZERO_ERR_MEMORY,
                         "no pinned host memory for %zu bytes of gradients and parameters of offloaded state: use more "
                         "ranks, or ZERO_OFFLOAD_NONE",
                         bytes);
    for (size_t i = 0; i < ZERO_HOST_SLOTS; i++) {
        z->slots[i].grads = (float *)(void *)memory + i * n;
        z->slots[i].params = memory + ZERO_HOST_SLOTS * n * sizeof(float) + i * n * z->elem;
    }
    return ZERO_OK;
}

int zero_host_update_create(zero *z) {
    if (!updates_on_host(z)) return ZERO_OK;
    int e = create_slots(z);
    cudaStream_t *streams[] = { &z->to_host, &z->on_host, &z->to_device };
    for (int i = 0; i < 3 && !e; i++) e = create_stream(z, streams[i]);
    for (int i = 0; i < ZERO_HOST_SLOTS && !e; i++) e = create_event(z, &z->slots[i].free);
    for (int i = 0; i < 2 && !e; i++) {
        e = create_event(z, &z->unit_updated[i]);
        z->jobs[i] = malloc(z->num_offloaded * sizeof *z->jobs[i]);
        if (!e && !z->jobs[i]) e = zero_fail(z, ZERO_ERR_MEMORY, "out of host memory");
    }
    return e;
}

void zero_host_update_destroy(zero *z) {
    cudaStream_t streams[] = { z->to_host, z->on_host, z->to_device };
    for (int i = 0; i < 3; i++)
        if (streams[i]) (void)cudaStreamSynchronize(streams[i]);  // a step that has failed may be under way
    for (int i = 0; i < 3; i++)
        if (streams[i]) (void)cudaStreamDestroy(streams[i]);
    for (int i = 0; i < ZERO_HOST_SLOTS; i++)
        if (z->slots[i].free) (void)cudaEventDestroy(z->slots[i].free);
    for (int i = 0; i < 2; i++) {
        if (z->unit_updated[i]) (void)cudaEventDestroy(z->unit_updated[i]);
        free(z->jobs[i]);
    }
    zero_accounting_free_host(z->config.accounting, z->slots[0].grads,
                              ZERO_HOST_SLOTS * z->largest_offloaded * zero_slot_bytes(z->config.settings.dtype));
}

// ---- a step ---------------------------------------------------------------------------------------------------------

// In the turn of its stream, by a thread of CUDA's: calls nothing of CUDA.
static void update_part(void *arg) {
    const struct host_job *job = arg;
    zero *z = job->z;
    const zero_settings *s = &z->config.settings;
    zero_optimizer_arrays arrays = job->arrays;
    char *in[NUM_ARRAYS];
    if (zero_part_acquire(z, job->part, in)) return;
    if (params_offload(z)) arrays.params = in[ARRAY_PARAMS];
    arrays.master = in[ARRAY_MASTER];
    arrays.ema = (float *)(void *)in[ARRAY_EMA];
    for (int i = 0; i < ZERO_MAX_OPTIMIZER_STATES; i++) arrays.state[i] = (float *)(void *)in[ARRAY_STATES + i];
    zero_optimizer_update(s->optimizer, &arrays, s->dtype, s->master, z->all_chunks + job->part->first_chunk,
                          job->part->num_chunks, job->args);
    (void)zero_part_release(z, job->part);
}

int zero_host_update_begin(zero *z, const zero_optimizer_args *args) {
    zero_optimizer_args *own = &z->host_args[z->odd_step];
    *own = *args;
    own->decision = &z->learned[ZERO_OF_ALL];
    if (args->tensors) own->tensors = z->tensor_args[z->odd_step];
    z->num_jobs = 0;
    memcpy(z->bus_start, z->bus, sizeof z->bus);
    return zero_follow(z, z->to_host, z->config.stream);
}

static int copy(zero *z, void *to, const void *from, size_t bytes, int to_device) {
    z->bus[to_device] += bytes;
    return zero_device_check(z,
                             cudaMemcpyAsync(to, from, bytes,
                                             to_device ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost,
                                             to_device ? z->to_device : z->to_host),
                             "copying a part of the optimizer's work");
}

// The timing hook makes no stream wait here, as zero_time_begin would.
static void time_host(zero *z, int begin) {
    if (z->config.timing) z->config.timing(z->config.timing_ctx, "update, host", begin, z->on_host);
}

static int queue_part(zero *z, const struct part *p, const float *grads) {
    const zero_settings *s = &z->config.settings;
    struct host_slot *slot = &z->slots[z->slots_used++ % ZERO_HOST_SLOTS];
    struct host_job *job = &z->jobs[z->odd_step][z->num_jobs++];
    char *params = p->arrays[ARRAY_PARAMS];
    const int here = params_offload(z) != ZERO_OFFLOAD_NONE;  // the parameters are
    *job = (struct host_job){ z, p, { .params = slot->params, .grads = slot->grads }, &z->host_args[z->odd_step] };
    int e = zero_device_check(z, cudaStreamWaitEvent(z->to_host, slot->free, 0), "waiting for an event");
    if (!e) e = copy(z, slot->grads, grads + p->begin, p->numel * sizeof *grads, 0);
    if (!e && !here && zero_update_reads_params(s->dtype, s->master))
        e = copy(z, slot->params, params, p->numel * z->elem, 0);
    if (!e) e = zero_follow(z, z->on_host, z->to_host);
    time_host(z, 1);
    if (!e && z->params_swap) {
        e = zero_comm_check(z, zero_comm_synchronize(z->config.shard_comm, z->to_host));
        if (!e) update_part(job);
    } else if (!e) {
        e = zero_device_check(z, cudaLaunchHostFunc(z->on_host, update_part, job), "queueing the host's update");
    }
    time_host(z, 0);
    if (!e) e = zero_follow(z, z->to_device, z->on_host);
    if (!e && !here) e = copy(z, params, slot->params, p->numel * z->elem, 1);
    return e ? e : zero_device_check(z, cudaEventRecord(slot->free, z->to_device), "recording an event");
}

int zero_host_update_unit(zero *z, size_t u, const float *grads) {
    int e = sums_comm(z) ? zero_follow(z, z->to_host, z->config.stream) : ZERO_OK;
    zero_nvtx_push("host update", u);
    for (const struct part *p = z->parts + z->first_part[u]; p < z->parts + z->first_part[u + 1] && !e; p++)
        if (p->offloaded) e = queue_part(z, p, grads);
    zero_nvtx_pop();
    if (!e && sums_comm(z)) e = zero_follow(z, z->config.stream, z->to_host);  // the next unit's sums take their place
    return e ? e
             : zero_device_check(z, cudaEventRecord(z->unit_updated[z->units_begun++ % 2], z->to_device),
                                 "recording an event");
}

int zero_host_update_unit_ended(zero *z) {
    return zero_device_check(z, cudaStreamWaitEvent(z->config.stream, z->unit_updated[z->units_ended++ % 2], 0),
                             "waiting for an event");
}
