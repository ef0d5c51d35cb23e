// layout.h: where every element lives. A pure function of (tensor sizes, N): no communication, no allocation beyond the
// tables, so it can be asked about 65536 ranks in microseconds.
//
// Words: a *unit* is what is gathered and reduced together (a transformer block; the embeddings with the final
// layernorm). *Logical index*: an element's place in the model file, no padding, the same for every N. *Physical
// index*: its place in the flat buffer of all units.
//
// Rules. Units lie one after the other. In a unit, tensors start at multiples of ZERO_ALIGN = 64 elements, so their
// offsets do not depend on N. A unit's end is padded to a multiple of 64 * N; rank r owns the r-th of N equal ranges of
// each unit. So any N works, every shard is a multiple of 64 long, and no 64-element block of a tensor is ever cut in
// two: that is what lets norms and hashes, taken block by block, keep their bits when N changes. Padding is zero and
// stays zero.
//
//     physical: | unit 0: rank 0 | rank 1 | ... | rank N-1 || unit 1: rank 0 | ...      numel_padded in all
//     shard of rank r: | unit 0, range r || unit 1, range r || ...                      numel_padded / N in all
#ifndef ZERO_LAYOUT_H
#define ZERO_LAYOUT_H
#include <stddef.h>
#ifdef __cplusplus
extern "C" {
#endif

#define ZERO_ALIGN 64

// A tensor as the caller describes it. Tensors of one unit must be listed together, units in ascending order from 0.
typedef struct zero_tensor {
    const char *name;  // for messages
    size_t numel;      // elements; 0 is allowed
    size_t unit;
    size_t logical;  // logical index of its first element
    int decay;       // 1: weight decay applies
} zero_tensor;

typedef struct zero_layout {
    size_t ranks, num_tensors, num_units;
    size_t numel;           // real elements
    size_t numel_padded;    // elements of the flat buffer; a multiple of 64 * ranks
    zero_tensor *tensors;   // [num_tensors], a copy
    size_t *tensor_offset;  // [num_tensors], within its unit; does not depend on ranks
    size_t *unit_first;     // [num_units + 1], first tensor of a unit
    size_t *unit_offset;    // [num_units + 1], physical; unit u has unit_offset[u+1] - unit_offset[u] padded
                            // elements
} zero_layout;

// A piece of one tensor inside a range of a unit.
typedef struct zero_segment {
    size_t tensor;
    size_t tensor_begin, count;  // elements [tensor_begin, tensor_begin + count) of the tensor
    size_t unit_begin;           // where the first of them lies, within the unit
} zero_segment;

// Returns 0, or -1 if the description is inconsistent (units out of order, sizes that overflow) or memory is exhausted;
// *why then says so. Not collective.
int zero_layout_create(zero_layout *l, const zero_tensor *tensors, size_t num_tensors, size_t ranks, const char **why);
void zero_layout_destroy(zero_layout *l);

size_t zero_layout_unit_numel(const zero_layout *l, size_t unit);    // padded
size_t zero_layout_largest_unit(const zero_layout *l);               // the numel of the largest
size_t zero_layout_shard_numel(const zero_layout *l, size_t unit);   // of one rank: unit_numel / ranks
size_t zero_layout_shard_offset(const zero_layout *l, size_t unit);  // of the unit within a rank's shard: unit_offset
                                                                     // / ranks

// With several groups of ranks that shard the same: the piece of a unit's shard that each group sums for all; and the
// largest buffer that holds all groups' pieces of a unit.
size_t zero_layout_group_piece(const zero_layout *l, size_t unit, size_t groups);
size_t zero_layout_group_buffer(const zero_layout *l, size_t groups);

// The segments of elements [begin, end) of a unit, in ascending order: call with *cursor = 0, until it returns 0.
int zero_layout_next_segment(const zero_layout *l, size_t unit, size_t begin, size_t end, size_t *cursor,
                             zero_segment *out);

#ifdef __cplusplus
}
#endif
#endif
