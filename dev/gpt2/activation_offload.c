// See activation_offload.h.
#include "gpt2/activation_offload.h"

#include <stdlib.h>
#include <string.h>

size_t activation_offload_bytes(const GPT2Config *c, size_t B, size_t T, size_t element_bytes, size_t streams) {
    return (streams ? streams : 1) * (c->num_layers - 1) * B * T * c->channels * element_bytes;
}

static cudaError_t create_streams(ActivationOffload *o) {
    cudaError_t e = cudaStreamCreateWithFlags(&o->copies, cudaStreamNonBlocking);
    if (e == cudaSuccess) e = cudaEventCreateWithFlags(&o->computed, cudaEventDisableTiming);
    for (size_t i = 0; i < o->streams * ACTIVATION_SLOTS && e == cudaSuccess; i++)
        e = cudaEventCreateWithFlags(&o->copied[i], cudaEventDisableTiming);
    return e;
}

ActivationOffload *activation_offload_create(const GPT2Config *c, size_t B, size_t T, size_t element_bytes,
                                             size_t streams, zero_accounting *memory, cudaStream_t compute) {
    char refusal[ZERO_REFUSAL_BYTES];
    ActivationOffload *o = calloc(1, sizeof *o);
    if (!o) return NULL;
    o->layers = c->num_layers;
    o->streams = streams ? streams : 1;
    o->row_bytes = c->channels * element_bytes;
    o->input_bytes = B * T * o->row_bytes;
    o->memory = memory;
    o->compute = compute;
    o->copied = calloc(o->streams * ACTIVATION_SLOTS, sizeof *o->copied);
    const size_t bytes = activation_offload_bytes(c, B, T, element_bytes, streams);
    const int refused = zero_memory_on_device(ZERO_MEM_CALLER_HOST) && *zero_accounting_refusal(memory, bytes, refusal);
    if (!o->copied || refused || cudaMallocHost((void **)&o->host, bytes ? bytes : 1) != cudaSuccess ||
        create_streams(o) != cudaSuccess) {
        (void)cudaGetLastError();
        activation_offload_destroy(o);
        return NULL;
    }
    o->host_bytes = bytes;
    zero_accounting_add(memory, ZERO_MEM_CALLER_HOST, bytes, 0);
    return o;
}

void activation_offload_destroy(ActivationOffload *o) {
    if (!o) return;
    if (o->copies) {
        (void)cudaStreamSynchronize(o->copies);
        (void)cudaStreamDestroy(o->copies);
    }
    if (o->computed) (void)cudaEventDestroy(o->computed);
    for (size_t i = 0; i < o->streams * ACTIVATION_SLOTS && o->copied; i++)
        if (o->copied[i]) (void)cudaEventDestroy(o->copied[i]);
    if (o->host) (void)cudaFreeHost(o->host);
    zero_accounting_add(o->memory, ZERO_MEM_CALLER_HOST, 0, o->host_bytes);
    free(o->copied);
    free(o);
}

static cudaEvent_t *copied(ActivationOffload *o, size_t g, size_t l) {
    return &o->copied[g * ACTIVATION_SLOTS + l % ACTIVATION_SLOTS];
}

static char *on_host(const ActivationOffload *o, size_t g, size_t l) {
    return o->host + (g * (o->layers - 1) + l) * o->input_bytes;
}

// Does what activation_offload.h says of both. The copy is that of a slot, `to` the host or from it.
static cudaError_t copy(ActivationOffload *o, size_t g, size_t l, void *to, const void *from, size_t bytes,
                        enum cudaMemcpyKind kind, const char *name, Profile *profile) {
    cudaError_t e = cudaEventRecord(o->computed, o->compute);
    if (e == cudaSuccess) e = cudaStreamWaitEvent(o->copies, o->computed, 0);
    if (e != cudaSuccess) return e;
    profile_begin(profile, name, o->copies);
    e = cudaMemcpyAsync(to, from, bytes, kind, o->copies);
    profile_end(profile);
    return e == cudaSuccess ? cudaEventRecord(*copied(o, g, l), o->copies) : e;
}

cudaError_t activation_offload_out(ActivationOffload *o, size_t g, size_t l, const void *slot, size_t tokens,
                                   Profile *profile) {
    if (!o || l + 1 >= o->layers) return cudaSuccess;
    o->out += tokens * o->row_bytes;
    return copy(o, g, l, on_host(o, g, l), slot, tokens * o->row_bytes, cudaMemcpyDeviceToHost,
                "activations to the host", profile);
}

cudaError_t activation_offload_in(ActivationOffload *o, size_t g, size_t l, void *slot, size_t tokens,
                                  Profile *profile) {
    if (!o || l + 1 >= o->layers) return cudaSuccess;
    o->in += tokens * o->row_bytes;
    return copy(o, g, l, slot, on_host(o, g, l), tokens * o->row_bytes, cudaMemcpyHostToDevice,
                "activations from the host", profile);
}

cudaError_t activation_offload_wait(ActivationOffload *o, size_t g, size_t l) {
    return o ? cudaStreamWaitEvent(o->compute, *copied(o, g, l), 0) : cudaSuccess;
}
