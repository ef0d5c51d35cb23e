// grad_norm.c: the norm of the gradient, and of each tensor's part of it.
//
// Squares are summed in double in blocks of 64 elements, and the block sums as exact integers (kernels.h), over the
// rank's gradient sums and then over all ranks. Exact sums have no order, so the norm has the same bits for any number
// of ranks and shard groups.
// zero_step derives the clip factor from the norm.
#include "zero/internal.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

// Lets carries run, so that every digit is below 2^32 and many wide integers can be added.
static void wide_normalize(uint64_t *wide) {
    for (int d = 0; d + 1 < ZERO_WIDE_DIGITS; d++) {
        wide[d + 1] += wide[d] >> 32;
        wide[d] &= 0xffffffff;
    }
}

static void wide_add(uint64_t *sum, const uint64_t *wide) {
    for (int d = 0; d < ZERO_WIDE_WORDS; d++) sum[d] += wide[d];
}

// The nearest double: the top 64 bits, with a sticky last bit for what is below, rounded once by the conversion.
static double wide_to_double(uint64_t *wide) {
    wide_normalize(wide);
    int top = ZERO_WIDE_DIGITS - 1;
    while (top > 1 && !wide[top]) top--;
    uint64_t low = top >= 2 ? wide[top - 2] : 0, sticky = 0;
    uint64_t high = wide[top] << 32 | wide[top - 1];
    if (!high) return 0;
    const int shift = __builtin_clzll(high);
    if (shift) high = high << shift | (shift <= 32 ? low >> (32 - shift) : low << (shift - 32));
    sticky = shift < 32 ? low & (((uint64_t)1 << (32 - shift)) - 1) : 0;
    for (int d = 0; d < top - 2; d++) sticky |= wide[d];
    if (sticky) high |= 1;
    return ldexp((double)high, 32 * (top - 1) - shift - ZERO_WIDE_BIAS);
}

// Adds the exact sum of squares of n gradient sums to wide. parts: ZERO_SQUARES_BYTES of host memory.
static int sum_squares(zero *z, const float *x, size_t n, uint64_t *parts, uint64_t *wide) {
    const cudaStream_t stream = z->config.stream;
    zero_time_begin(z, "norm", stream);
    int e = zero_device_check(z, zero_kernel_square_sum(z->squares, x, n, stream), "sum of squares");
    zero_time_end(z, "norm", stream);
    if (!e)
        e = zero_device_check(z, cudaMemcpyAsync(parts, z->squares, ZERO_SQUARES_BYTES, cudaMemcpyDeviceToHost, stream),
                              "reading the norm");
    if (!e) e = zero_comm_check(z, zero_comm_synchronize(z->config.shard_comm, stream));
    for (int p = 0; p < ZERO_SQUARE_PARTS && !e; p++) wide_add(wide, parts + p * ZERO_WIDE_WORDS);
    return e;
}

static double wide_to_norm(const zero *z, uint64_t *wide) {
    const double squares = wide[ZERO_WIDE_NAN] ? NAN : wide[ZERO_WIDE_INF] ? INFINITY : wide_to_double(wide);
    return sqrt(squares) / zero_total_weight(z);
}

// A rank of a communicator that made other calls, and its hash of them; rank -1: there is none.
struct other_calls {
    int rank;
    uint64_t calls;
};

// Adds n wide integers over the ranks of a communicator, and compares the hash of their calls. wide has one more word.
static int add_over_ranks(zero *z, zero_comm *comm, uint64_t *wide, size_t n, uint64_t calls,
                          struct other_calls *other) {
    const size_t words = n * ZERO_WIDE_WORDS, ranks = (size_t)zero_comm_size(comm), row = words + 1;
    uint64_t *all = malloc(ranks * row * sizeof *all);
    *other = (struct other_calls){ .rank = -1 };
    if (!all) return zero_fail(z, ZERO_ERR_MEMORY, "out of host memory");
    for (size_t i = 0; i < n; i++) wide_normalize(wide + i * ZERO_WIDE_WORDS);
    wide[words] = calls;
    const int e = zero_comm_check(z, zero_comm_allgather_host(comm, wide, row * sizeof *wide, all));
    memset(wide, 0, words * sizeof *wide);
    for (size_t r = 0; r < ranks && !e; r++) {
        for (size_t i = 0; i < n; i++) wide_add(wide + i * ZERO_WIDE_WORDS, all + r * row + i * ZERO_WIDE_WORDS);
        if (other->rank < 0 && all[r * row + words] != calls)
            *other = (struct other_calls){ (int)r, all[r * row + words] };
    }
    free(all);
    return e;
}

// Adds n wide integers over all ranks, and checks that they have made the same calls. A rank whose replicate group
// differs passes on a false hash to its shard group before it fails, so that all ranks fail. wide has one more word.
static int add_over_all(zero *z, uint64_t *wide, size_t n, const char *phase) {
    struct other_calls replica = { .rank = -1 }, shard = { .rank = -1 };
    int e = ZERO_OK;
    if (z->replicas > 1) {
        zero_comm_phase(z->config.replicate_comm, phase, 0);
        e = add_over_ranks(z, z->config.replicate_comm, wide, n, z->calls, &replica);
    }
    zero_comm_phase(z->config.shard_comm, phase, 0);
    const uint64_t calls = replica.rank < 0 ? z->calls : ~z->calls;
    if (!e) e = add_over_ranks(z, z->config.shard_comm, wide, n, calls, &shard);
    if (!e && replica.rank >= 0) e = zero_check_calls(z, replica.calls, replica.rank, "replicate_comm");
    return e || shard.rank < 0 ? e : zero_check_calls(z, shard.calls, shard.rank, "shard_comm");
}

int zero_check_all_calls(zero *z, const char *phase) {
    uint64_t calls;
    return add_over_all(z, &calls, 0, phase);
}

int zero_grad_norm(zero *z, double *norm) {
    if (zero_enter(z)) return z->failed;
    uint64_t *parts = malloc(ZERO_SQUARES_BYTES), sum[ZERO_NORM_WORDS] = { 0 };
    int e = parts ? zero_grads_merge(z) : zero_fail(z, ZERO_ERR_MEMORY, "out of host memory");
    zero_comm_phase(z->config.shard_comm, "gradient norm", 0);
    if (!e) e = sum_squares(z, z->partial_sums[0], sum_total(z), parts, sum);
    if (!e) e = add_over_all(z, sum, 1, "gradient norm");
    if (!e) *norm = z->step.norm = wide_to_norm(z, sum);
    z->has_norm = !e;
    free(parts);
    return e;
}

// Squares of each tensor's gradient sums on this rank: wide[num_tensors][ZERO_WIDE_WORDS].
static int sum_squares_of_tensors(zero *z, uint64_t *parts, uint64_t *wide) {
    const zero_layout *l = &z->layout;
    int e = zero_grads_merge(z);
    for (size_t u = 0; u < l->num_units && !e; u++) {
        if (unit_frozen(z, u)) continue;
        const size_t begin = sum_begin(z, u), end = sum_end(z, u);
        size_t cursor = 0;
        zero_segment s;
        while (!e && zero_layout_next_segment(l, u, begin, end, &cursor, &s)) {
            const size_t n = (s.count + ZERO_ALIGN - 1) / ZERO_ALIGN * ZERO_ALIGN;  // with padding, which is zero
            const float *x = z->partial_sums[0] + sum_offset(z, u) + s.unit_begin - begin;
            e = sum_squares(z, x, n, parts, wide + s.tensor * ZERO_WIDE_WORDS);
            wide_normalize(wide + s.tensor * ZERO_WIDE_WORDS);
        }
    }
    return e;
}

int zero_tensor_norms(zero *z, double *norms) {
    if (zero_enter(z)) return z->failed;
    const size_t T = z->layout.num_tensors;
    uint64_t *parts = malloc(ZERO_SQUARES_BYTES), *sums = calloc(T * ZERO_WIDE_WORDS + 1, sizeof *sums);
    int e = parts && sums ? sum_squares_of_tensors(z, parts, sums)
                          : zero_fail(z, ZERO_ERR_MEMORY, "out of host memory");
    if (!e) e = add_over_all(z, sums, T, "norms of tensors");
    for (size_t t = 0; t < T && !e; t++) norms[t] = wide_to_norm(z, sums + t * ZERO_WIDE_WORDS);
    free(parts);
    free(sums);
    return e;
}
