// activation_offload.h: the residual stream between layers in host memory (--offload-activations cpu).
//
// A training forward keeps the input of every layer for the backward: L buffers of R x C. Offloaded, a micro-batch has
// ACTIVATION_SLOTS = 2 of them on the device, and layer l's input is in slot l % 2. Copies have a stream of their own.
// For 4 layers, of which the first 3 have inputs that leave the device:
//
//                forward                                       backward
//     computing  layer 0  layer 1  layer 2  layer 3  head     layer 3  layer 2  layer 1  layer 0
//     reads         0        1        0        1      0          1        0        1        0        (slot)
//     writes        1        0        1        0
//     copies      out 0    out 1    out 2                      in 2     in 1     in 0
//
// Out l begins when layer l's input is complete; layer l + 1 waits for it at its end, where its output takes the slot.
// In l - 1 begins when layer l + 1 has no more use for the slot; layer l - 1 waits for it near its end, where it needs
// its input. So a copy has the time of nearly two layers, and the input of the last layer never leaves. Layer by layer,
// each micro-batch of a step has its own slots; a layer's forward is computed again in the backward and writes its
// output once more, into the slot that the input below will take: in l - 1 begins after it.
//
// Copies move bytes and compute nothing: bits are those of a run without.
#ifndef GPT2_ACTIVATION_OFFLOAD_H
#define GPT2_ACTIVATION_OFFLOAD_H

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

#include "gpt2/config.h"
#include "trainer/profiler.h"
#include "zero/accounting.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { ACTIVATION_SLOTS = 2 };

typedef struct ActivationOffload {
    size_t layers, streams;         // streams: micro-batches that are kept at a time
    size_t row_bytes, input_bytes;  // of a token, and of B x T: of a layer's input
    uint64_t out, in;               // bytes that were copied since the caller set them to 0
    char *host;                     // [streams][layers - 1] inputs, pinned
    size_t host_bytes;
    zero_accounting *memory;
    cudaStream_t compute, copies;
    cudaEvent_t computed;  // what a copy has to wait for
    cudaEvent_t *copied;   // [streams][ACTIVATION_SLOTS]: the slot's last copy has ended
} ActivationOffload;

// Bytes of host memory for so many micro-batches that are kept at a time; 0 counts as 1. As many are copied out for
// each, and in.
size_t activation_offload_bytes(const GPT2Config *c, size_t B, size_t T, size_t element_bytes, size_t streams);

// Allocates these bytes, pinned, and accounts them under ZERO_MEM_CALLER_HOST. memory must outlive it. Returns NULL
// if there is not that much. Not collective.
ActivationOffload *activation_offload_create(const GPT2Config *c, size_t B, size_t T, size_t element_bytes,
                                             size_t streams, zero_accounting *memory, cudaStream_t compute);
void activation_offload_destroy(ActivationOffload *o);  // waits for its copies; NULL is fine

// Queues the copy of layer l's input, of so many tokens, out of its slot or into it, after all that is queued on the
// stream that computes. Nothing for the last layer. g: which of the micro-batches; profile: as in profile_begin. This
// and the next do nothing without offload, o = NULL.
cudaError_t activation_offload_out(ActivationOffload *o, size_t g, size_t l, const void *slot, size_t tokens,
                                   Profile *profile);
cudaError_t activation_offload_in(ActivationOffload *o, size_t g, size_t l, void *slot, size_t tokens,
                                  Profile *profile);

// Makes the stream that computes wait for the last copy of the slot of layer l's input.
cudaError_t activation_offload_wait(ActivationOffload *o, size_t g, size_t l);

#ifdef __cplusplus
}
#endif
#endif
