// Where a step's time goes, beside the least time that it could take (--profile).
//
// There are two parts, independent of each other until the table is printed. The clock: pairs of CUDA events around
// each piece of work that the host queues, added up by name. The formulas: the bytes and operations that each kind of
// work of a GPT-2 step needs, from the sizes of the run alone; divided by what the device can do, they give the floor
// of its time.
//
// A time is what passes on the stream between the two events. It is that of the work if the stream is busy; if the
// stream waits in between, for the host or for another stream, the wait is included. Work on different streams
// overlaps, so the times may sum to more than the step. Without a profile (NULL) begin and end cost one comparison.
//
// The emulated GPU, whose times say nothing, adds what its warps asked of memory (dev/device/cpu/memory_requests.cpp).
#ifndef DEV_PROFILE_H
#define DEV_PROFILE_H

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdio.h>

#include "gpt2/config.h"
#include "zero/settings.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { PROFILE_NAME_BYTES = 48, PROFILE_MAX_KINDS = 96 };

// ---- formulas ----

// The run, as one rank sees it.
typedef struct ProfileRun {
    GPT2Config config;
    zero_settings settings;            // stage, dtype, master, reduction, order
    size_t B, T, G;                    // micro-batch, micro-steps of a step
    int recompute, gelu_fusion, tf32;  // -r, -ge, -f
    int one_backward;                  // attention's backward is one operation (cuDNN), not two kernels
    int flash;                         // attention's kernels are those of gpt2/flash_attention.cuh
    size_t chunks;                     // that the kernels cut B * T rows into, to sum over them
    size_t head_chunks;                // in which the head's rows are computed
    size_t ranks;                      // of a shard group
    size_t replicas;                   // number of shard groups; 0 means 1
    size_t per_host;                   // two levels between hosts (zero_cost_two_levels); 0: one
    double offloaded_bytes;            // activations that a micro-batch sends to the host, and gets back
    size_t numel;                      // parameters, with the padding of shards
    double grad_bytes, param_bytes;    // received in a step, as in zero_report_wire
} ProfileRun;

// Work of one kind in a step of one rank. calls 0: no formula says how many.
typedef struct ProfileWork {
    char name[PROFILE_NAME_BYTES];
    double calls, bytes, flops, wire;  // bytes: to and from device memory, each array once; wire: received from other
                                       // ranks
    double host;                       // bytes between the device and the host's memory
    int tensor_cores;                  // its products may run there
} ProfileWork;

// Returns the number of kinds, at most PROFILE_MAX_KINDS.
size_t profile_work(const ProfileRun *run, ProfileWork *work);

// Bytes that the optimizer reads and writes for each parameter: gradient, states and weights are read, states and
// weights written, in fp32; bf16 parameters are written too. With split master weights parameters and low halves are
// read and written, without master weights the parameters. A moving average of the weights is read and written.
size_t profile_update_bytes(const zero_settings *settings);

typedef struct ProfileDevice {
    const char *name;
    double memory, bf16, tf32, fp32;  // bytes/s; FLOP/s: tensor cores, dense; fp32: without them
    double link, host;                // bytes/s received from other GPUs; to or from the host
} ProfileDevice;

// By the name that CUDA gives it; an H200 if that is unknown (then *known is 0).
const ProfileDevice *profile_device(const char *name, int *known);

// Seconds that the work takes at least; *bound says what limits it: "memory", "math", "link" or "host".
double profile_floor(const ProfileWork *work, const ProfileRun *run, const ProfileDevice *device, const char **bound);

// ---- the clock ----

typedef struct Profile Profile;

Profile *profile_create(void);  // NULL: out of memory
void profile_destroy(Profile *p);

// Each begin needs an end; pairs may nest. name: "residual_kernel" counts as "residual", "f_kernel<64>" as "f".
// Errors of CUDA are kept for profile_end_step.
void profile_begin_work(Profile *p, const char *name, cudaStream_t stream);
void profile_end_work(Profile *p);

// One of the three products of a linear layer from C to OC channels. use: "forward", "dinput", "dweight", ...
void profile_begin_product(Profile *p, const char *use, size_t C, size_t OC, cudaStream_t stream);

static inline void profile_begin(Profile *p, const char *name, cudaStream_t stream) {
    if (p) profile_begin_work(p, name, stream);
}
static inline void profile_end(Profile *p) {
    if (p) profile_end_work(p);
}

// The host's calls in a step (device/calls.h), from begin_step on: until all is queued, and until profile_end_step.
// They take NULL.
void profile_begin_step(Profile *p);
void profile_step_is_queued(Profile *p);

// Waits for what was begun and adds it up. ms: how long the step took.
cudaError_t profile_end_step(Profile *p, double ms);

// The table: each kind that was measured, with its formula if there is one, and each formula whose work was not seen.
// Then what the host did in a step. Rows that do not agree end in "calls differ from the formula", "no formula" or "not
// measured". Returns the number of such rows.
int profile_print(FILE *out, const Profile *p, const ProfileRun *run, const char *device_name);

#ifdef __cplusplus
}
#endif
#endif
