// cost.h: what a run needs, in bytes, by formula: memory of a rank, and what it receives in a step.
//
// Pure functions of a description of the run (zero_cost) and a layout: nothing is allocated and no rank is needed, so
// that a hundred billion parameters on 65536 ranks take as long as a thousand on two. The engine's reports have these
// rows beside what was measured, and tests hold both equal to the byte: a plan before a run is what the run will
// report.
#ifndef ZERO_COST_H
#define ZERO_COST_H
#include <stddef.h>
#include <stdint.h>
#include "zero/comm/comm.h"
#include "zero/layout.h"
#include "zero/settings.h"
#ifdef __cplusplus
extern "C" {
#endif

typedef struct zero_cost {
    zero_settings settings;
    const size_t *order;  // as in zero_config
    size_t order_length;
    size_t rank;                          // whose memory; ranks differ only in how many optimizer chunks they have
    zero_comm_shape shard_transport;      // its ranks must be the layout's
    size_t replicas;                      // number of shard groups; 0 means 1
    zero_comm_shape replicate_transport;  // of as many ranks
    size_t max_micro_batches;             // for memory: the most of any step
    size_t micro_batches;                 // for the wire: of the step
} zero_cost;

// What ranks exchange to agree on whether one of them has failed; with something on a disk in each step.
enum { ZERO_AGREEMENT_BYTES = 512 };

typedef struct zero_row {
    int kind;                     // memory: enum zero_memory_category; wire: enum zero_wire
    const char *what;             // "parameters"
    char formula[96];             // "4 Psi"; Psi: padded parameters (Psi_t: without frozen units), N: ranks of a shard
                                  // group, R: shard groups, G: micro-batches
    uint64_t expected, measured;  // bytes; measured is 0 in a plan
} zero_row;

// Rows in ascending kind: one for each category that the run has, but ZERO_MEM_ACTIVATIONS (the caller's), and one for
// each kind of traffic. They return the number of rows, at most max. Not collective.
size_t zero_cost_memory(const zero_cost *p, const zero_layout *l, zero_row *rows, size_t max);
size_t zero_cost_wire(const zero_cost *p, const zero_layout *l, zero_row *rows, size_t max);

// Bytes that a step reads from the disk and writes to it (ZERO_OFFLOAD_NVME), if the step before it was the last to use
// the state. The buffers keep ZERO_OFFLOAD_PARTS parts, so where an update has no more, it only writes.
// Parameters on it (settings.offload_params) are read with each all-gather, and with the update.
size_t zero_cost_disk(const zero_cost *p, const zero_layout *l, zero_row *rows, size_t max);

// Bytes that a step moves from host memory (ZERO_OFFLOAD_CPU) or a disk (_NVME), and to it: each update reads and
// writes what is there once; parameters are read with each all-gather too.
uint64_t zero_cost_offload_traffic(const zero_cost *p, const zero_layout *l, enum zero_offload place);

// Bytes that a step copies to host memory and to the device for the update of optimizer state that is offloaded
// (host_update.c): rows of kind 0 and 1.
size_t zero_cost_bus(const zero_cost *p, const zero_layout *l, zero_row *rows, size_t max);

// What each of several shard groups of S ranks passes on to the others of its sum of a micro-step: S / leaves sums of
// `leaves` micro-batches, the largest power of two that divides S: aligned subtrees of the sum over all ranks. For S a
// power of two that is one. Sums are fp32; a single leaf stays as it is.
typedef struct zero_group_sums {
    size_t leaves, count;
    enum zero_dtype dtype;
} zero_group_sums;
zero_group_sums zero_cost_group_sums(size_t S, enum zero_dtype dtype);

// What a rank passes on of a unit at a time. ZERO_ORDER_STEP: the gradients of a micro-batch, G times in a step.
// ZERO_ORDER_RANK, LAYER: the sums of its G micro-batches, once, as a shard group of G ranks would; in fp32.
zero_group_sums zero_cost_own_sums(const zero_settings *s, size_t G);

// ZERO_ORDER_RANK, LAYER: the fp32 sums that a rank keeps, of all gradients or of the pool of them. Of `leaves`
// micro-batches each, all but one are complete, and the last one is a binary counter: count - 1 + log2(leaves), but at
// least count. G: at least 1.
size_t zero_cost_own_slots(size_t G);

// Bytes of their tables of pointers.
size_t zero_cost_own_pointers(const zero_group_sums *own, size_t ranks, size_t units);

// Whether a rank receives fewer bytes with ZERO_ORDER_RANK than with ZERO_ORDER_STEP: G is even, in bf16 a multiple of
// 4, and there are other ranks.
int zero_cost_rank_order_pays(enum zero_dtype dtype, size_t ranks, size_t G);

// Two levels of the reduce-scatter in a shard group over several hosts (comm.h: hosts): the ranks of a host add what is
// for the other hosts, and pass on sums as shard groups do. Returns the ranks of a host, h; 0: one level, since shard
// says so, or the library reduces, or two levels would send no fewer bytes between hosts. For an element, with `own`
// what a rank passes on (zero_cost_own_sums), a host sends each other host
//     zero_group_sums of h own.count: count bytes(dtype)     in two levels: 4 bytes for h a power of two
//     h own.count bytes(own.dtype)                           in one
size_t zero_cost_two_levels(const zero_settings *s, size_t G, const zero_comm_shape *shard);

// Bytes that each host sends to the others in a step, headers of messages not counted, and as many as it receives: rows
// of the same kinds as zero_cost_wire's. All hosts have per_host ranks, contiguous, so that a shard group has several
// whole hosts, or a host several whole groups. In an all-gather a shard enters another host once in two levels, else
// once for each of its ranks; in NCCL's ring all but one enter. Not collective.
size_t zero_cost_between_hosts(const zero_cost *p, const zero_layout *l, size_t per_host, zero_row *rows, size_t max);

// The order that a run takes in the place of s->order, if that would not pay: ZERO_ORDER_STEP where no bytes are saved
// (ZERO_ORDER_LAYER: where it costs more bytes of gradients), and what an engine would refuse.
enum zero_order zero_cost_order(const zero_settings *s, size_t ranks, size_t G);

// Whether shard groups cost more wire than one shard group of all ranks: no fewer bytes from other groups in a step,
// and more in all. `groups` and `one` are the same run with and without groups, on their layouts. With groups of S
// ranks, parameters of b bytes and F gathers of them, a rank receives from each other group, for an element of Psi/N,
//     G count bytes(dtype) + 4 bytes      with groups (zero_group_sums), and without
//     S b (G + F)
// (ZERO_ORDER_STEP).
// So groups do not pay if they have 1 or 2 ranks, in bf16, in stages 1 and 2.
int zero_cost_one_level(const zero_cost *groups, const zero_layout *groups_layout, const zero_cost *one,
                        const zero_layout *one_layout);

// The most partial sums at a time in a step of G micro-steps that push `leaves` leaves each: the maximum over g = 1 ..
// G of the ones in the binary number g * leaves.
size_t zero_cost_partial_sums(size_t leaves, size_t G);

#ifdef __cplusplus
}
#endif
#endif
