// Will it fit, and how long will it take? See planner.c.
//
// A plan is a pure function of its input: it needs no ranks, no device and no memory for a model. Bytes are those of
// rank 0; other ranks differ only in the number of optimizer chunks (a few bytes of "transport").
#ifndef DEV_PLAN_H
#define DEV_PLAN_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "trainer/step_simulator.h"
#include "zero/comm/transport_registry.h"
#include "zero/cost.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { PLAN_STAGES = 4, PLAN_ROWS = 16, PLAN_MAX_RANKS = 1 << 20 };

typedef struct {
    const char *model;  // what the user calls it
    const zero_tensor *tensors;
    size_t num_tensors;
    const size_t *order;  // of units, as zero_config wants it
    size_t order_length;
    zero_settings settings;  // stage is not used: a plan has all
    int recompute;
    size_t activation_bytes;
    size_t layer_bytes, stream_bytes;  // in its place, layer by layer: of one layer, and of each micro-batch of a step
    size_t offloaded_bytes;            // of activations, in host memory: of each micro-batch that is kept at a time
    double flops_per_token;            // forward and backward
    const double *order_flops;         // the same by unit of the order; NULL: in equal parts
    size_t B, T;
    size_t total_tokens;           // of a step, over all ranks; 0: B * T * ranks. Otherwise a multiple of that.
    size_t ranks, ranks_per_host;  // ranks_per_host 0: all on one host
    size_t rank;                   // whose memory, of a shard group
    const zero_transport *transport;
    zero_comm_config comm_config;
    size_t snapshot_per_parameter;  // bytes that a snapshot for checkpoints holds of a parameter; 0: there is none
    double device_bytes;            // memory of a rank
    StepCluster cluster;            // links and memory; the rest is filled in from here
    int host_is_device;             // the device is a CPU: host memory is its memory
    double host_bytes, disk_bytes;  // of a host, for offloading; 0: none
    double host_bytes_per_second, disk_bytes_per_second;  // of a rank's share of its host's memory; of a host's disk
    double peak_flops, efficiency;                        // of a rank; the fraction of it that is reached (MFU)
} PlanInput;

typedef struct {
    zero_row memory[PLAN_ROWS], wire[PLAN_ROWS], bus[2];
    size_t memory_rows, wire_rows, bus_rows;
    uint64_t memory_total, wire_total;
    uint64_t host_total, disk_total;  // what is offloaded; not in memory_total
    zero_row snapshot;                // for checkpoints, in host memory, not in memory_total
    int fits;                         // 0 also where there is no such run: stage 0 shards nothing, so it has no groups
    size_t shard_group;               // ranks of one
    int one_level;                    // see plan_one_level
    enum zero_order order;
    // Model states are the rows from parameters to the optimizer's states: paper + sums + padding - smaller_master -
    // offloaded.
    uint64_t states, paper, sums, padding, smaller_master, offloaded;
    StepTimes times;
    size_t smallest_power, smallest;  // N from which it fits: power of two, any; 0: none up to PLAN_MAX_RANKS
} PlanStage;

// A way to run: a stage, in groups of so many ranks.
typedef struct {
    size_t shard_group;
    enum zero_order order;
    uint64_t memory;
    int fits;
    StepTimes times;
} PlanChoice;

typedef struct {
    PlanStage stage[PLAN_STAGES];
    PlanChoice fastest[PLAN_STAGES];    // of those that fit, if one does
    PlanChoice one_group[PLAN_STAGES];  // of all ranks
    int recommended;                    // stage; -1: none fits
    size_t numel, numel_padded, micro_steps;
    int lowest_stage;  // that fits on the ranks of the input; -1: none
    int best_stage;    // the lowest of those that fit on the fewest ranks; -1: none
} Plan;

// The plan of one stage, in->settings.stage, without the smallest number of ranks that it fits on. Returns 0, or -1 and
// a message.
int plan_stage(PlanStage *s, const PlanInput *in, char *err, size_t err_bytes);

// The most memory of any rank, where s->memory_total is that of in->rank.
uint64_t plan_most_memory(const PlanInput *in, const PlanStage *s);

// Whether all ranks of this plan are one shard group in this stage, because the groups of settings.shard_group would
// cost more wire (zero_cost_one_level).
int plan_one_level(const PlanInput *in, int stage);

// Bytes of model states per rank as in the ZeRO paper (Rajbhandari et al. 2020, figure 1) for bf16: 16, 4 + 12/N, 2 +
// 14/N or 16/N for each parameter; by the same reasoning for fp32: 16, 8 + 8/N, 4 + 12/N, 16/N. states:
// of the optimizer, 2 in the paper. trained: parameters that are not in frozen units, which have neither gradients nor
// states of the optimizer.
double plan_paper_bytes(int stage, enum zero_dtype dtype, size_t states, double parameters, double trained,
                        double ranks);

// The row of activations in host memory, of so many micro-batches that are kept at a time.
zero_row plan_offloaded(size_t offloaded_bytes, size_t kept);

// What a step takes longer with so many micro-batches whose activations are offloaded (planner_cluster.c).
double plan_offloaded_seconds(const PlanInput *in, size_t micro_batches);

// What the trainer adds to the engine's rows. What a rank tells the others in each step (the losses of its
// micro-batches, whether it was asked to stop, how long it computed) goes by the engine's transport, and counts in its
// "scalars"; with groups of ranks, there is another transport for it, of all ranks, whose tables count in "transport".
// A transport with a stream of its own gathers it in a buffer (losses.h), which counts there, too.
void plan_add_losses(zero_row *rows, size_t n, size_t micro_steps, size_t ranks);
void plan_add_transport(zero_row *rows, size_t n, const zero_comm_shape *all, int groups, int streams,
                        size_t micro_steps);

// The snapshot for checkpoints (trainer/checkpoint_write.h).
zero_row plan_snapshot(const zero_layout *l, size_t bytes_per_parameter);

// Returns 0, or -1 and a message in err.
int plan_make(Plan *p, const PlanInput *in, char *err, size_t err_bytes);

// Only p->fastest, p->one_group, p->recommended and p->micro_steps. As plan_make, but much faster.
int plan_fastest(Plan *p, const PlanInput *in, char *err, size_t err_bytes);

// The recommended plan on in->ranks and on fewer ranks. Returns 0, or -1 and a message.
int plan_print_scaling(FILE *out, const PlanInput *in, char *err, size_t err_bytes);

void plan_print(FILE *out, const Plan *p, const PlanInput *in);
void plan_print_json(FILE *out, const Plan *p, const PlanInput *in);

#ifdef __cplusplus
}
#endif
#endif
