// What the planner's own files share: planner.c (memory, bytes, number of ranks), planner_cluster.c (time, the fastest
// way to run), planner_print.c (text, JSON).
#ifndef TRAINER_PLANNER_INTERNAL_H
#define TRAINER_PLANNER_INTERNAL_H

#include "trainer/planner.h"

#ifdef __cplusplus
extern "C" {
#endif

// Of the optimizer, for each parameter: fp32 states; of bf16 parameters also fp32 master weights.
int plan_optimizer_bytes(enum zero_dtype dtype, size_t states);

// The model's layout, divided again for each number of ranks that is tried.
typedef struct {
    zero_layout shards;  // of a shard group
    zero_layout one;     // of all ranks as one group
} Layouts;

// Groups of neighbours shard; rank r of one and rank r of the others hold the same. All ranks are one group where
// groups would cost more wire. Returns the ranks of a group, and divides l->shards among them; 0: that cannot be.
size_t plan_group_size(Layouts *l, const PlanInput *in, int stage, size_t ranks, const char **why);

// The run that the formulas ask about, in groups of `group` ranks.
zero_cost plan_cost(const PlanInput *in, int stage, size_t ranks, size_t group);

// Memory of a rank in groups that l is divided among, and whether a device has it.
uint64_t plan_bytes(const PlanInput *in, const zero_cost *cost, const zero_layout *l);
int plan_bytes_fit(const PlanInput *in, const zero_cost *cost, uint64_t bytes);

// Times of a step of this stage, in groups that l is divided among. Returns 0, or -1: out of memory.
int plan_simulate(const PlanInput *in, const zero_cost *cost, const zero_layout *l, StepTimes *times);

const char *plan_order_name(enum zero_order order);  // planner_print.c

// Fills in p->fastest, p->one_group and p->recommended. Divides l. Returns 0, or -1: out of memory.
int plan_choose(Plan *p, const PlanInput *in, Layouts *l);

#ifdef __cplusplus
}
#endif
#endif
