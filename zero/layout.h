// layout.h: which rank owns which element, and where. A pure function of (tensor sizes, N): no communication, and no
// allocation but its tables, so that it can answer for 65536 ranks in microseconds.
//
// A unit is a group of tensors that are all-gathered and reduced together (zero.h). An element has a
//     logical index: its place in the model file, without padding, the same for every N
//     physical index: its place in the flat buffer of all units
//
// Rules. Units lie one after the other. In a unit, tensors start at multiples of ZERO_ALIGN = 64 elements, so their
// offsets do not depend on N. A unit's end is padded to a multiple of 64 * N; rank r owns the r-th of N equal ranges of
// each unit. So any N works, every shard is a multiple of 64 long, and no 64-element block of a tensor is ever split:
// norms and hashes, taken block by block, keep their bits when N changes. Padding is zero and stays zero.
//
// N = 2 ranks; unit 0 has tensors a (65 elements) and b (100), unit 1 has c (10):
//
//     physical   0          65          128          228         256        266       320           384
//                | a        | padding   | b          | padding   | c        | padding | padding     |
//                |------ unit 0, rank 0 | unit 0, rank 1 --------|-- unit 1, rank 0   | unit 1, r 1 |
//
//     shard of rank 0:  a, padding | c, padding       128 + 64 = numel_padded / N elements; element 3 of c is its 131st
//     shard of rank 1:  b, padding | padding          a rank may own nothing but padding of a unit
#ifndef ZERO_LAYOUT_H
#define ZERO_LAYOUT_H
#include <stddef.h>
#ifdef __cplusplus
extern "C" {
#endif

#define ZERO_ALIGN 64

// A tensor as the caller describes it. Tensors of one unit must be listed together, units in ascending order from 0.
typedef struct zero_tensor {
    const char *name;  // for messages; may be NULL
    size_t numel;      // elements; 0 is allowed
    size_t unit;
    size_t logical;  // logical index of its first element
    int decay;       // 1: weight decay applies
    int tied;        // 1: used at several places of the model, so that its gradients are held while those of other
                     // units come and go (an embedding that is also the head): its unit has buffers of its own (pool.h)
    int frozen;      // 1: it is not updated, until zero_set_tensor_options (zero.h) says otherwise
} zero_tensor;

typedef struct zero_layout {
    size_t ranks, num_tensors, num_units;
    size_t numel;           // without padding
    size_t numel_padded;    // elements of the flat buffer; a multiple of 64 * ranks
    zero_tensor *tensors;   // [num_tensors], a copy; names too
    char *names;            // their memory
    size_t *tensor_offset;  // [num_tensors], within its unit; does not depend on ranks
    size_t *unit_first;     // [num_units + 1], first tensor of a unit
    size_t *unit_offset;    // [num_units + 1], physical; unit u has unit_offset[u + 1] - unit_offset[u] padded elements
    // Frozen units, all of whose tensors are frozen, have no gradients and no optimizer state; the others are trained.
    unsigned char *unit_frozen;  // [num_units]
    size_t *trained_offset;      // [num_units + 1], in a buffer of the trained units alone
    // Runs of units in a row whose tensors are alike (sizes and attributes), such as layers. What sums over all units
    // goes by runs, so that many layers cost no time.
    size_t num_runs;
    size_t *run_first;  // [num_runs + 1], first unit of a run
} zero_layout;

// Returns 0, or -1 with a reason in *why: the description is inconsistent (units out of order, sizes that overflow), or
// host memory is exhausted. Not collective.
int zero_layout_create(zero_layout *l, const zero_tensor *tensors, size_t num_tensors, size_t ranks, const char **why);
void zero_layout_destroy(zero_layout *l);

// Freezes a tensor or unfreezes it; unit_frozen, trained_offset and runs follow. Not collective.
void zero_layout_set_frozen(zero_layout *l, size_t tensor, int frozen);

// Divides the same tensors among another number of ranks, much faster than zero_layout_create would. Returns 0, or -1
// with a reason in *why; the layout is then what it was. Not collective.
int zero_layout_set_ranks(zero_layout *l, size_t ranks, const char **why);

size_t zero_layout_unit_numel(const zero_layout *l, size_t unit);    // padded
size_t zero_layout_unit_content(const zero_layout *l, size_t unit);  // without the padding that depends on ranks
size_t zero_layout_largest_unit(const zero_layout *l);               // padded elements of the largest unit
size_t zero_layout_largest_trained_unit(const zero_layout *l);       // the same, without frozen units
size_t zero_layout_shard_numel(const zero_layout *l, size_t unit);   // of one rank: unit_numel / ranks
size_t zero_layout_shard_offset(const zero_layout *l, size_t unit);  // of the unit in a rank's shard of all units

// Who owns an element of a tensor, and where it lies in that rank's shard of all units.
typedef struct zero_owner {
    size_t rank, offset;
} zero_owner;
zero_owner zero_layout_owner(const zero_layout *l, size_t tensor, size_t element);

// With `replicas` shard groups the gradient sums of a shard are divided among the groups. Returns the elements of a
// group's chunk of a unit's shard; where it begins in a group's chunks of all trained units (unit = num_units: their
// total);
// where group's chunk begins in the shard (at most at its end: the last chunks may reach beyond it, or be beyond it);
// and the elements of a buffer that has room for all chunks of any trained unit. With 1 replica the chunk is the shard.
size_t zero_layout_replica_chunk(const zero_layout *l, size_t unit, size_t replicas);
size_t zero_layout_replica_offset(const zero_layout *l, size_t unit, size_t replicas);
size_t zero_layout_replica_begin(const zero_layout *l, size_t unit, size_t replicas, size_t group);
size_t zero_layout_replica_buffer(const zero_layout *l, size_t replicas);

// A part of one tensor in a range of a unit.
typedef struct zero_segment {
    size_t tensor;
    size_t tensor_begin, count;  // elements [tensor_begin, tensor_begin + count) of the tensor
    size_t unit_begin;           // place of the first of them in the unit
} zero_segment;

// Walks the segments of elements [begin, end) of a unit in ascending order, without padding: call with *cursor = 0
// until it returns 0.
int zero_layout_next_segment(const zero_layout *l, size_t unit, size_t begin, size_t end, size_t *cursor,
                             zero_segment *out);

#ifdef __cplusplus
}
#endif
#endif
