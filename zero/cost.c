// plan.c: the formulas of plan.h. Whoever changes what the engine allocates or sends changes it here too: test_engine
// compares the two, to the byte, in every stage, precision and way of moving bytes.
//
// Memory. With Psi padded parameters of b bytes and N ranks, a shard is Psi/N. What is sharded depends on the stage:
// optimizer state from 1, gradients from 2, parameters in 3. What is not resident passes through pools of unit buffers:
// for each distinct size of unit, ZERO_POOL_DEPTH buffers of gradients and 1 + prefetch of parameters (none for a
// single rank, whose shard is the unit). The fp32 sums of G micro-batches are a binary counter's ones: floor(log2(G +
// 1)) at most at a time; the library's reduction needs one for its result too.
//
// Wire. A rank receives the N - 1 other pieces of what is exchanged: its own gradient shard of each micro-batch from
// each rank, the updated parameters of the others' shards once a step (stages 1, 2) or whenever the cache of units asks
// for them (3), or fp32 sums of gradients instead of parameters (0). With R groups of ranks that shard the same, the
// fp32 sums of a shard are exchanged and gathered among the R ranks that hold it.
#include "zero/cost.h"
#include <stdarg.h>
#include <stdio.h>
#include "zero/param_cache.h"
#include "zero/kernels.h"

struct table {
    zero_row *rows;
    size_t max, n;
};

#define MEMORY(category) (category), zero_memory_category_name(category)

__attribute__((format(printf, 5, 6))) static void add(struct table *t, int kind, const char *what, uint64_t bytes,
                                                      const char *format, ...) {
    if (t->n == t->max) return;
    zero_row *r = &t->rows[t->n++];
    *r = (zero_row){ .kind = kind, .what = what, .expected = bytes };
    va_list args;
    va_start(args, format);
    vsnprintf(r->formula, sizeof r->formula, format, args);
    va_end(args);
}

size_t zero_cost_optimizer_chunks(const zero_layout *l, int stage, size_t rank) {
    size_t n = 0;
    for (size_t u = 0; u < l->num_units; u++) {
        const size_t numel = zero_layout_unit_numel(l, u), shard = numel / l->ranks;
        const size_t begin = stage == 0 ? 0 : rank * shard, end = stage == 0 ? numel : begin + shard;
        for (size_t t = l->unit_first[u]; t < l->unit_first[u + 1]; t++) {
            const size_t next = t + 1 < l->unit_first[u + 1] ? l->tensor_offset[t + 1] : numel;
            const size_t from = l->tensor_offset[t] > begin ? l->tensor_offset[t] : begin, to = next < end ? next : end;
            if (from < to) n += (to - from + ZERO_OPTIMIZER_CHUNK - 1) / ZERO_OPTIMIZER_CHUNK;
        }
    }
    return n;
}

// Elements of the pools of unit buffers, stages 2 and 3.
static size_t pooled(const zero_layout *l, size_t param_depth) {
    size_t n = 0;
    for (size_t u = 0; u < l->num_units; u++)
        n += (size_t)(zero_pool_has(l, u, ZERO_POOL_DEPTH) + zero_pool_has(l, u, param_depth)) *
             zero_layout_unit_numel(l, u);
    return n;
}

// Fp32 shards that the sums of a step of G micro-batches take at most.
static size_t partial_sums(size_t G, int library) {
    size_t n = 0;
    while (((size_t)2 << n) <= (library ? G : G + 1)) n++;
    return library && G ? n + 1 : n;
}

size_t zero_cost_memory(const zero_cost *p, const zero_layout *l, zero_row *rows, size_t max) {
    struct table t = { rows, max, 0 };
    const int library = p->settings.reduction == ZERO_REDUCE_LIBRARY, stage = p->settings.stage;
    const size_t b = zero_dtype_bytes(p->settings.dtype), psi = l->numel_padded, shard = psi / l->ranks;
    const size_t largest = zero_layout_largest_unit(l),
                 master = zero_master_bytes(p->settings.dtype, p->settings.master);
    const size_t state = (stage == 0 ? psi : shard) * sizeof(float);
    const char *over = stage == 0 ? "" : "/N";
    add(&t, MEMORY(ZERO_MEM_PARAMS), (stage == 3 ? shard : psi) * b, "%zu Psi%s", b, stage == 3 ? "/N" : "");
    if (stage >= 2)
        add(&t, MEMORY(ZERO_MEM_GRADS), 0, "0: pooled, see unit buffers");
    else
        add(&t, MEMORY(ZERO_MEM_GRADS), psi * b, "%zu Psi", b);
    const size_t sums = partial_sums(p->max_micro_batches, library);
    add(&t, MEMORY(ZERO_MEM_GRAD_SHARDS), sums * shard * sizeof(float),
        library ? "4 Psi/N x %zu = floor(log2 G) + 1" : "4 Psi/N x %zu = floor(log2(G + 1))", sums);
    if (master)
        add(&t, MEMORY(ZERO_MEM_MASTER), state / sizeof(float) * master, "%zu Psi%s", master, over);
    else
        add(&t, MEMORY(ZERO_MEM_MASTER), 0, p->settings.dtype == ZERO_F32 ? "0: fp32 parameters" : "0: none are kept");
    add(&t, MEMORY(ZERO_MEM_M), state, "4 Psi%s", over);
    add(&t, MEMORY(ZERO_MEM_V), state, "4 Psi%s", over);

    const size_t param_depth = stage == 3 && l->ranks > 1 ? 1 + (size_t)p->settings.prefetch : 0;
    const int gathers_sums = stage == 0 && l->ranks > 1;
    const size_t between = p->replicas > 1 ? zero_layout_group_buffer(l, p->replicas) * sizeof(float) : 0;
    const char *for_groups = between ? " + 8 x largest shard" : "";
    if (stage >= 2)
        add(&t, MEMORY(ZERO_MEM_UNIT_BUFFERS), pooled(l, param_depth) * b + 2 * between,
            "%zu x (up to %zu units of each size)%s", b, ZERO_POOL_DEPTH + param_depth, for_groups);
    else
        add(&t, MEMORY(ZERO_MEM_UNIT_BUFFERS), (gathers_sums ? largest * sizeof(float) : 0) + 2 * between, "%s%s",
            gathers_sums ? "4 x largest unit" : "0", for_groups);

    const size_t norm = ZERO_SQUARE_PARTS * ZERO_WIDE_WORDS * sizeof(uint64_t);
    const size_t tables = zero_cost_optimizer_chunks(l, stage, p->rank) * sizeof(zero_optimizer_chunk) + norm;
    const size_t exchanged = library ? 0 : largest * b,
                 gathered = stage == 3 ? 0 : largest * (gathers_sums ? sizeof(float) : b);
    const size_t scratch = zero_comm_scratch_bytes(&p->shard_transport, exchanged, gathered, library ? largest : 0);
    const size_t window = stage == 3 ? zero_window_scratch_bytes(&p->shard_transport, shard * b, largest * b) : 0;
    const size_t groups = between
                              ? zero_comm_scratch_bytes(&p->replicate_transport, between, between, 0) + sizeof(void *)
                              : 0;
    add(&t, MEMORY(ZERO_MEM_TRANSPORT), tables + scratch + window + groups, "optimizer tiles, norm, transport's own");
    return t.n;
}

size_t zero_cost_wire(const zero_cost *p, const zero_layout *l, zero_row *rows, size_t max) {
    struct table t = { rows, max, 0 };
    const size_t others = l->ranks - 1, of_others = l->numel_padded / l->ranks * others,
                 b = zero_dtype_bytes(p->settings.dtype);
    const size_t reduced = p->settings.reduction == ZERO_REDUCE_LIBRARY
                               ? zero_comm_summed_bytes(&p->shard_transport, p->settings.dtype)
                               : b,
                 G = p->micro_batches;
    if (p->settings.stage == 0) {
        add(&t, ZERO_WIRE_GRADS, "gradients", of_others * (G * reduced + sizeof(float)),
            "(%zu G + 4) Psi (N-1)/N, G = %zu", reduced, G);
        add(&t, ZERO_WIRE_PARAMS, "parameters", 0, "0");
    } else {
        add(&t, ZERO_WIRE_GRADS, "gradients", of_others * G * reduced, "%zu G Psi (N-1)/N, G = %zu", reduced, G);
    }
    if (p->settings.stage == 1 || p->settings.stage == 2)
        add(&t, ZERO_WIRE_PARAMS, "parameters", of_others * b, "%zu Psi (N-1)/N", b);
    if (p->settings.stage == 3) {
        const size_t fetched = others ? zero_param_cache_traffic(l, p->order, p->order_length,
                                                                 (size_t)p->settings.prefetch,
                                                                 p->settings.delay_seed != 0, G)
                                      : 0;
        add(&t, ZERO_WIRE_PARAMS, "parameters", fetched / l->ranks * others * b, "%zu Psi (N-1)/N x %.3f fetches", b,
            (double)fetched / (double)l->numel_padded);
    }
    size_t pieces = 0;
    for (size_t u = 0; u < l->num_units && p->replicas > 1; u++) pieces += zero_layout_group_piece(l, u, p->replicas);
    add(&t, ZERO_WIRE_REPLICAS, "sums between groups",
        p->replicas > 1 ? 2 * (p->replicas - 1) * pieces * sizeof(float) * G : 0,
        p->replicas > 1 ? "8 G Psi/N (R-1)/R, R = %zu groups" : "0: one group", p->replicas);
    const size_t norm = ZERO_WIDE_WORDS * sizeof(uint64_t);
    add(&t, ZERO_WIRE_SCALARS, "numbers", others * norm, "%zu (N-1) for the norm", norm);
    return t.n;
}
