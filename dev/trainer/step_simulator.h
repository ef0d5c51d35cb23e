// step_simulator.h: how long a training step takes on a cluster: the schedule of its operations, computed, not run.
//
// Hosts and ranks are alike, so one rank is simulated, however many there are. The operations are those that the engine
// queues for it, in the order in which it queues them (zero.h). Each runs on one of two queues, as soon as the queue
// has finished what came before and what the operation waits for is there:
//
//     operation                  queue      waits for                              takes
//     compute with a unit        computing  its all-gather; a gradient buffer      FLOPs / rate
//     all-gather, stage 3        transport  all computing that is queued           transfer
//     reduce-scatter of a unit   transport  its backward                           transfer, and the ordered sum
//     norm                       both       all reductions                         transfers of a few bytes
//     losses                     transport  the norm                               transfer of a few bytes
//     update of a unit           computing  the norm; stage 0, groups: the sums    bytes of memory / rate
//     all-gather, stages 1, 2    transport  the unit's update                      transfer
//
// Stage 3, prefetch 1, when computing takes longer: unit 2 is gathered under unit 1, and unit 3 when 1 has ended
//
//     transport   gather 1  gather 2             gather 3
//     computing             unit 1.............. unit 2.............. unit 3
//
// With NCCL the queues run beside each other. The MPI transport has no stream: the host moves the bytes, and both are
// one queue.
//
// A transfer among n ranks, `local` of them on a host of h, which takes part in h / local such transfers at a time:
//
//                                     a rank receives     inside its host   a host receives from others
//     all-to-all                      n - 1 chunks        local - 1         h (n - local)
//     all-gather, one level           n - 1               local - 1         h (n - local)
//     all-gather, two levels (MPI)    n - 1               n - 1             h / local (n - local)
//     all-gather, NCCL: a ring        n - 1               n - 1             h / local (n - 1)
//
// A reduce-scatter in two levels is an all-to-all inside the host, the host's sum, and an all-to-all of sums between
// the ranks of one number on all hosts (zero/gradients.c). A transfer takes the longer of the two links' times, each
// latency x messages of a rank, one after the other, + bytes / rate. Bytes are those of zero/cost.c
// (test_step_simulator compares them).
#ifndef TRAINER_STEP_SIMULATOR_H
#define TRAINER_STEP_SIMULATOR_H

#include <stddef.h>
#include <stdint.h>

#include "zero/cost.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct StepCluster {
    size_t ranks_per_host;             // 0: all ranks are on one host
    double link_bytes_per_second;      // that a rank receives from its host
    double net_bytes_per_second;       // that a host receives from other hosts
    double link_latency, net_latency;  // seconds of a message beside its bytes
    double flops, memory;              // of a rank, per second: operations; bytes of its device's memory
    int streams;                       // 1: NCCL; 0: MPI
} StepCluster;

typedef struct StepInput {
    StepCluster cluster;
    const zero_cost *cost;
    const zero_layout *layout;  // of a shard group
    const double *order_flops;  // of a micro-batch of one rank, for each unit of cost->order
    size_t update_bytes;        // of memory that the optimizer reads and writes for each parameter
} StepInput;

typedef struct StepTimes {
    double step;                // seconds
    double compute, link, net;  // for how many of them a rank computes, its link inside the host is in use, and the
                                // network of its host
    double offload;        // for how many offloaded state is moved, with activations, under nothing else; the planner's
    double received;       // bytes of a rank, without scalars
    double between_hosts;  // bytes that a host receives from other hosts, without scalars
} StepTimes;

// Times of a step, when steps like it go before and after. Returns 0, or -1: out of memory.
int step_simulate(const StepInput *in, StepTimes *out);

#ifdef __cplusplus
}
#endif
#endif
