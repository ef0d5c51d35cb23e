// settings.h: the settings that the engine (zero_config), its formulas (zero_cost), a planner and a command line share.
// A command line writes into this struct directly; whoever adds a setting adds one field here.
#ifndef ZERO_SETTINGS_H
#define ZERO_SETTINGS_H
#include <stddef.h>
#include <stdint.h>
#include "zero/types.h"

typedef struct zero_settings {
    int stage;                // ZeRO stage: 0 shards nothing; 1 optimizer state; 2 also gradients; 3 also parameters
    enum zero_dtype dtype;    // of parameters and gradients
    enum zero_master master;  // bf16 parameters: what is kept beside them
    enum zero_reduction reduction;  // how gradients are summed over ranks
    int prefetch;                   // stage 3: number of units to all-gather ahead of use: 0, 1 or 2
    size_t shard_group;             // ranks of a shard group (MiCS, HSDP); 0: all ranks form one
    uint64_t seed;                  // of stochastic rounding (ZERO_MASTER_NONE)
    uint64_t delay_seed;            // not 0: debug races. Injects random delays before collectives and fills released
                                    // buffers with NaN; same bits, slower
} zero_settings;

#endif
