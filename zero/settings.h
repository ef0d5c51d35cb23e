// settings.h: the settings that the engine (zero_config), the cost formulas (zero_cost), a planner and a command line
// share. A command line can write into these structs directly; a new setting is one field here.
#ifndef ZERO_SETTINGS_H
#define ZERO_SETTINGS_H
#include <stddef.h>
#include <stdint.h>
#include "zero/types.h"

// Fixed for the life of an engine. All ranks must have the same values.
typedef struct zero_settings {
    int stage;                // ZeRO stage: 0 shards nothing; 1 optimizer state; 2 also gradients; 3 also parameters
    enum zero_dtype dtype;    // of parameters and gradients
    enum zero_master master;  // bf16 parameters: what is kept beside them
    enum zero_optimizer_kind optimizer;
    enum zero_reduction reduction;     // how gradients are summed over ranks
    enum zero_order order;             // which micro-batches a rank takes
    int prefetch;                      // stage 3: number of units to all-gather ahead of use: 0, 1 or 2
    size_t shard_group;                // ranks of a shard group (MiCS, HSDP); 0: all ranks form one
    double ema_decay;                  // not 0: an exponential moving average of the weights is kept (zero_use_ema):
                                       // average += (1 - ema_decay) (weight - average) with each update
    enum zero_offload offload;         // of optimizer state: master weights, the optimizer's states, the moving average
    double offload_fraction;           // of its elements, 0 to 1; the last ones of each rank's part of a unit
    enum zero_offload offload_params;  // stage 3: of parameters; the device has those of the units in use
    uint64_t seed;                     // of stochastic rounding (ZERO_MASTER_NONE)
    uint64_t delay_seed;  // not 0: debug races. Injects random delays before collectives and fills released
                          // buffers with NaN; same bits, slower
} zero_settings;

// What an engine would refuse counts as not offloaded: a plan has all stages.
static inline enum zero_offload zero_params_offload(const zero_settings *s) {
    return s->stage == 3 ? s->offload_params : ZERO_OFFLOAD_NONE;
}
static inline int zero_uses_disk(const zero_settings *s) {
    return s->offload == ZERO_OFFLOAD_NVME || zero_params_offload(s) == ZERO_OFFLOAD_NVME;
}

// May change from step to step. Which of them an optimizer uses, and how: zero/optimizers/NAME.cuh.
typedef struct zero_hyperparameters {
    float lr, beta1, beta2, eps, weight_decay;
    float max_norm;  // a mean gradient with a larger norm is scaled down to it; 0: no clipping
} zero_hyperparameters;

#endif
