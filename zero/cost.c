// cost.c: the formulas of cost.h. A change of what the engine allocates or sends has to be made here too: test_engine
// compares the two, to the byte, in every stage, precision and transport.
//
// Memory. With Psi padded parameters of b bytes and N ranks, a shard is Psi/N. What is sharded depends on the stage:
// optimizer state from 1, gradients from 2, parameters in 3 (Rajbhandari et al., ZeRO, SC 2020). What is not resident
// passes through pools of unit buffers (pool.h): one of gradients and one of parameters (none for a single rank, whose
// shard is the unit). The fp32 partial sums are the ones of a binary counter of leaves (gradients.c): after micro-step
// g as many as g N has ones. For N a power of two that is at most floor(log2(G + 1)) at a time. The library's reduction
// counts micro-steps, and needs one more for its result.
//
// Wire. A rank receives the N - 1 chunks of the others: of its gradient shard in each micro-batch; once a step of the
// updated parameters (stages 1, 2), or whenever the parameter cache has to all-gather a unit (3), or of the fp32 sums
// of gradients instead (0). With R shard groups the sums of a shard are divided among the R ranks that hold it: each
// receives the others' group sums of its part in each micro-batch, and the others' parts once a step. In two levels, on
// H hosts of h ranks, a rank receives H chunks from each of the h - 1 others of its host, which the host adds, and the
// sums of its shard from one rank of each of the H - 1 others.
//
// With ZERO_ORDER_RANK a rank keeps fp32 sums of all gradients (own_sums.c; ZERO_ORDER_LAYER: in a pool, and parameters
// are gathered as for one micro-batch), and takes buffers for those of a micro-batch from a pool; what is said of each
// micro-batch happens once a step, with `count` fp32 sums.
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "zero/cost_internal.h"
#include "zero/kernels.h"
#include "zero/optimizers/optimizers.h"
#include "zero/pool.h"

static int own_sums(const zero_cost *p) { return p->settings.order != ZERO_ORDER_STEP; }

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

// The row of the pools of unit buffers, and of `more` bytes. Those of gradients are symmetric, and those of parameters
// that are offloaded.
static void add_pools(struct table *t, const zero_cost *p, const zero_layout *l, size_t param_depth, size_t more,
                      const char *formula_of_more) {
    const size_t depths[] = { ZERO_GRAD_POOL_DEPTH, param_depth }, elem = zero_dtype_bytes(p->settings.dtype);
    const int symmetric[] = { 1, params_offload(p) != ZERO_OFFLOAD_NONE };
    size_t bytes = more, shared[2] = { 0 }, numel[2] = { 0 }, own = 0;
    for (int i = 0; i < 2; i++) {
        zero_pool pool;
        if (zero_pool_create(&pool, l, i ? ZERO_POOL_PARAMS : ZERO_POOL_GRADS, depths[i])) continue;  // of host memory
        for (size_t k = 0; k < pool.num_buffers; k++) {
            const zero_pool_buffer *b = &pool.buffers[k];
            bytes += symmetric[i] ? zero_comm_alloc_bytes(&p->shard_transport, b->numel * elem) : b->numel * elem;
            if (b->owner == ZERO_NO_UNIT)
                numel[i] = b->numel;
            else
                own += b->numel;
        }
        shared[i] = pool.num_shared;
        zero_pool_destroy(&pool);
    }
    char second[48] = "", larger[32] = "";
    if (shared[1] && numel[0] == numel[1])
        shared[0] += shared[1];
    else if (shared[1])  // without frozen units
        snprintf(second, sizeof second, " + %zu x %zu", shared[1], numel[1]);
    if (own) snprintf(larger, sizeof larger, " + %zu", own);
    add(t, MEMORY(ZERO_MEM_UNIT_BUFFERS), bytes, "%zu x (%zu x %zu%s%s)%s", elem, shared[0], numel[0], second, larger,
        formula_of_more);
}

size_t zero_cost_partial_sums(size_t leaves, size_t G) {
    enum { COUNTED = 1 << 20 };  // micro-steps; for more of them: the number of digits, which is never too few
    size_t most = 0, digits = 0;
    if (!leaves || !G) return 0;
    while (leaves % 2 == 0) leaves /= 2;
    while ((leaves * G) >> digits) digits++;
    if (leaves == 1) return (G + 1) >> digits ? digits : digits - 1;
    if (G > COUNTED) return digits;
    for (size_t g = 1; g <= G; g++) {
        const size_t live = (size_t)zero_partial_sums_live(g * leaves);
        if (live > most) most = live;
    }
    return most;
}

zero_group_sums zero_cost_group_sums(size_t S, enum zero_dtype dtype) {
    const size_t leaves = S & -S;
    return (zero_group_sums){ .leaves = leaves, .count = S / leaves, .dtype = leaves > 1 ? ZERO_F32 : dtype };
}

zero_group_sums zero_cost_own_sums(const zero_settings *s, size_t G) {
    if (s->order == ZERO_ORDER_STEP || !G) return (zero_group_sums){ .leaves = 1, .count = 1, .dtype = s->dtype };
    return zero_cost_group_sums(G, ZERO_F32);
}

size_t zero_cost_own_slots(size_t G) {
    const zero_group_sums own = zero_cost_group_sums(G, ZERO_F32);
    return own.count + (own.leaves > 1 ? (size_t)__builtin_ctzll(own.leaves) - 1 : 0);
}

size_t zero_cost_own_pointers(const zero_group_sums *own, size_t ranks, size_t units) {
    return (units * (1 + own->count) + ranks * own->count) * sizeof(void *);
}

int zero_cost_rank_order_pays(enum zero_dtype dtype, size_t ranks, size_t G) {
    return ranks > 1 && zero_cost_group_sums(G, ZERO_F32).count * sizeof(float) < G * zero_dtype_bytes(dtype);
}

size_t zero_cost_two_levels(const zero_settings *s, size_t G, const zero_comm_shape *shard) {
    const size_t h = shard->per_host;
    if (!h || s->reduction == ZERO_REDUCE_LIBRARY) return 0;
    const zero_group_sums own = zero_cost_own_sums(s, G), sums = zero_cost_group_sums(h * own.count, own.dtype);
    return sums.count * zero_dtype_bytes(sums.dtype) < h * own.count * zero_dtype_bytes(own.dtype) ? h : 0;
}

enum zero_order zero_cost_order(const zero_settings *s, size_t ranks, size_t G) {
    const size_t sums = s->order != ZERO_ORDER_STEP ? zero_cost_own_sums(s, G).count * sizeof(float) : 0;
    if (s->order == ZERO_ORDER_STEP || s->reduction != ZERO_REDUCE_EXACT || ranks == 1 || G == 1)
        return ZERO_ORDER_STEP;
    if (s->order == ZERO_ORDER_LAYER) return sums <= G * zero_dtype_bytes(s->dtype) ? s->order : ZERO_ORDER_STEP;
    return s->stage < 2 && zero_cost_rank_order_pays(s->dtype, ranks, G) ? s->order : ZERO_ORDER_STEP;
}

// What all ranks pass on at a time, and how often in a step.
static size_t reductions(const zero_cost *p, size_t G) { return own_sums(p) && G ? 1 : G; }

// The row of partial sums, and what a power of two would need.
static void add_partial_sums(struct table *t, const zero_cost *p, const zero_layout *l) {
    const int library = p->settings.reduction == ZERO_REDUCE_LIBRARY;
    const size_t G = p->max_micro_batches, unit = zero_cost_partial_sums(1, G),
                 replicas = p->replicas > 1 ? p->replicas : 1;
    const size_t leaves = library ? 1 : l->ranks * replicas * zero_cost_own_sums(&p->settings, G).count;
    const size_t sums = !library ? zero_cost_partial_sums(leaves, reductions(p, G))
                        : G      ? zero_cost_partial_sums(1, G - 1) + 1
                                 : 0;
    const size_t one = zero_layout_replica_offset(l, l->num_units, replicas) * sizeof(float);
    const char *all = replicas > 1 ? "N R" : "N";
    char psi[24];
    snprintf(psi, sizeof psi, replicas > 1 ? "4 %s/(N R)" : "4 %s/N", psi_trained(l));
    if (own_sums(p))
        add(t, MEMORY(ZERO_MEM_GRAD_SHARDS), sums * one, "%s x %zu: ones of %zu", psi, sums, leaves);
    else if (library)
        add(t, MEMORY(ZERO_MEM_GRAD_SHARDS), sums * one, "%s x %zu = floor(log2 G) + 1", psi, sums);
    else if (leaves & (leaves - 1))
        add(t, MEMORY(ZERO_MEM_GRAD_SHARDS), sums * one, "%s x %zu: ones of g %s (of 2^k: %zu)", psi, sums, all, unit);
    else
        add(t, MEMORY(ZERO_MEM_GRAD_SHARDS), sums * one, "%s x %zu = floor(log2(G + 1))", psi, sums);
}

// Elements of the pool of gradient buffers.
static size_t pool_numel(const zero_layout *l) {
    zero_pool pool;
    size_t numel = 0;
    if (zero_pool_create(&pool, l, ZERO_POOL_GRADS, ZERO_GRAD_POOL_DEPTH)) return 0;  // out of host memory
    for (size_t i = 0; i < pool.num_buffers; i++) numel += pool.buffers[i].numel;
    zero_pool_destroy(&pool);
    return numel;
}

// The gradients of a micro-batch, or the sums of a rank's own.
static void add_gradients(struct table *t, const zero_cost *p, const zero_layout *l) {
    const zero_comm_shape *comm = &p->shard_transport;
    const size_t G = p->max_micro_batches, psi_t = trained(l), b = zero_dtype_bytes(p->settings.dtype);
    if (p->settings.order == ZERO_ORDER_LAYER)
        add(t, MEMORY(ZERO_MEM_GRADS),
            zero_comm_alloc_bytes(comm, zero_cost_own_slots(G) * pool_numel(l) * sizeof(float)),
            "4 x %zu x %zu: sums of own micro-batches", pool_numel(l), zero_cost_own_slots(G));
    else if (own_sums(p))
        add(t, MEMORY(ZERO_MEM_GRADS), zero_comm_alloc_bytes(comm, zero_cost_own_slots(G) * psi_t * sizeof(float)),
            "4 %s x %zu: sums of own micro-batches", psi_trained(l), zero_cost_own_slots(G));
    else if (p->settings.stage >= 2)
        add(t, MEMORY(ZERO_MEM_GRADS), 0, "0: pooled, see unit buffers");
    else
        add(t, MEMORY(ZERO_MEM_GRADS), zero_comm_alloc_bytes(comm, psi_t * b), "%zu %s", b, psi_trained(l));
}

// Bytes of an element that each rank passes on at a time, and each group.
static size_t sent_by_rank(const zero_cost *p) {
    const zero_group_sums own = zero_cost_own_sums(&p->settings, p->max_micro_batches);
    return own.count * zero_dtype_bytes(own.dtype);
}

static zero_group_sums sent_by_group(const zero_cost *p, const zero_layout *l) {
    const zero_group_sums own = zero_cost_own_sums(&p->settings, p->max_micro_batches);
    return zero_cost_group_sums(l->ranks * own.count, own.dtype);
}

// Two levels, on hosts of h ranks.
static zero_group_sums sent_by_host(const zero_cost *p, size_t h) {
    const zero_group_sums own = zero_cost_own_sums(&p->settings, p->max_micro_batches);
    return zero_cost_group_sums(h * own.count, own.dtype);
}

// Elements of a unit that one all-to-all moves, at most (exchange.c).
static size_t most_at_a_time(const zero_cost *p, const zero_layout *l) {
    zero_pool pool;
    if (p->replicas > 1 || zero_cost_own_sums(&p->settings, p->max_micro_batches).count > 1 ||
        zero_pool_create(&pool, l, ZERO_POOL_GRADS, ZERO_GRAD_POOL_DEPTH))
        return zero_layout_largest_trained_unit(l);
    const size_t part = zero_pool_largest_part(&pool, l);
    zero_pool_destroy(&pool);
    return part * l->ranks;
}

static void add_unit_buffers(struct table *t, const zero_cost *p, const zero_layout *l) {
    const int stage = p->settings.stage, rank_order = own_sums(p);
    const size_t largest = zero_layout_largest_trained_unit(l);
    const int unshards = stage == 3 && (l->ranks > 1 || params_offload(p));
    const size_t param_depth = unshards ? 1 + (size_t)p->settings.prefetch : 0;
    const size_t gathered = stage == 0 && l->ranks > 1 ? sizeof(float) : 0;  // bytes of an element of the largest unit
    const size_t packed = rank_order && zero_cost_own_sums(&p->settings, p->max_micro_batches).count > 1
                              ? sent_by_rank(p)
                              : 0;
    const size_t h = zero_cost_two_levels(&p->settings, p->max_micro_batches, &p->shard_transport);
    size_t bytes = 0;
    char more[120] = "";
    if (gathered) bytes += zero_comm_alloc_bytes(&p->shard_transport, largest * gathered);
    if (packed) bytes += zero_comm_alloc_bytes(&p->shard_transport, largest * packed);
    if (gathered + packed) snprintf(more, sizeof more, " + %zu x largest unit", gathered + packed);
    if (h) {
        const zero_group_sums host = sent_by_host(p, h);
        const zero_comm_shape across = zero_comm_across_shape(&p->shard_transport);
        const size_t sums = host.count * zero_dtype_bytes(host.dtype);
        bytes += zero_comm_alloc_bytes(&across, most_at_a_time(p, l) / h * sums);
        snprintf(more + strlen(more), sizeof more - strlen(more), " + %zu x largest part/%zu", sums, h);
    }
    if (p->replicas > 1) {
        const zero_group_sums group = sent_by_group(p, l);
        const size_t numel = zero_layout_replica_buffer(l, p->replicas),
                     sums = group.count * zero_dtype_bytes(group.dtype);
        bytes += zero_comm_alloc_bytes(&p->replicate_transport, numel * sizeof(float)) +
                 zero_comm_alloc_bytes(&p->replicate_transport, numel * sums);
        snprintf(more + strlen(more), sizeof more - strlen(more), " + %zu x largest shard", sizeof(float) + sums);
    }
    if (stage >= 2 || rank_order)
        add_pools(t, p, l, param_depth, bytes, more);
    else if (gathered)
        add(t, MEMORY(ZERO_MEM_UNIT_BUFFERS), bytes, "%s", more + strlen(" + "));
    else
        add(t, MEMORY(ZERO_MEM_UNIT_BUFFERS), bytes, "0%s", more);
}

static size_t max_of(size_t a, size_t b) { return a > b ? a : b; }

// The engine's tables, and scratch of the transports.
static void add_transport(struct table *t, const zero_cost *p, const zero_layout *l, const struct state *state) {
    const int library = p->settings.reduction == ZERO_REDUCE_LIBRARY, stage = p->settings.stage;
    const size_t b = zero_dtype_bytes(p->settings.dtype), largest = zero_layout_largest_unit(l),
                 largest_trained = zero_layout_largest_trained_unit(l);
    const size_t row = ZERO_NORM_WORDS * sizeof(uint64_t);  // of a rank, for the norm
    size_t bytes = ZERO_SQUARE_PARTS * ZERO_WIDE_WORDS * sizeof(uint64_t) + ZERO_DECISIONS * sizeof(zero_decision) +
                   zero_comm_alloc_bytes(&p->shard_transport, l->ranks * row) +
                   l->num_tensors * sizeof(zero_tensor_args) + state->parts * sizeof(zero_optimizer_arrays) +
                   state->chunks * sizeof(zero_optimizer_chunk);
    if (own_sums(p)) {
        const zero_group_sums own = zero_cost_own_sums(&p->settings, p->max_micro_batches);
        bytes += zero_cost_own_pointers(&own, l->ranks, l->num_units);
    }
    const size_t gathered = stage == 3   ? (params_offload(p) ? largest * b : 0)
                            : stage == 0 ? (l->ranks > 1 ? largest_trained * sizeof(float) : 0)
                                         : largest * b;
    const size_t h = zero_cost_two_levels(&p->settings, p->max_micro_batches, &p->shard_transport);
    const size_t sent = most_at_a_time(p, l);
    bytes += zero_comm_scratch_bytes(&p->shard_transport, library || h ? 0 : sent * sent_by_rank(p),
                                     max_of(gathered, l->ranks * row), library ? largest_trained : 0);
    if (h) {
        const zero_group_sums sums = sent_by_host(p, h);
        const zero_comm_shape host = zero_comm_host_shape(&p->shard_transport),
                              across = zero_comm_across_shape(&p->shard_transport);
        const size_t passed_on = sent / h * sums.count * zero_dtype_bytes(sums.dtype);
        bytes += zero_comm_scratch_bytes(&host, sent / across.ranks * sent_by_rank(p), 0, 0) +
                 zero_comm_scratch_bytes(&across, passed_on, 0, 0) + across.ranks * sums.count * sizeof(void *);
    }
    if (stage == 3 && !params_offload(p))
        bytes += zero_window_scratch_bytes(&p->shard_transport, l->numel_padded / l->ranks * b, largest * b);
    if (p->replicas > 1) {
        const zero_group_sums group = sent_by_group(p, l);
        const size_t numel = zero_layout_replica_buffer(l, p->replicas);
        bytes += zero_comm_scratch_bytes(&p->replicate_transport, numel * group.count * zero_dtype_bytes(group.dtype),
                                         max_of(numel * sizeof(float), p->replicas * row), 0) +
                 zero_comm_alloc_bytes(&p->replicate_transport, p->replicas * row) +
                 p->replicas * group.count * sizeof(void *);
    }
    add(t, MEMORY(ZERO_MEM_TRANSPORT), bytes, "optimizer chunks, norm, transport's own");
}

// The rows of optimizer state on the device.
static void add_state(struct table *t, const zero_cost *p, const zero_layout *l, const struct state *state) {
    const zero_settings *s = &p->settings;
    const size_t master = zero_master_bytes(s->dtype, s->master);
    const zero_optimizer *optimizer = zero_optimizer_get(s->optimizer);
    char over[32];
    snprintf(over, sizeof over, "%s", s->stage == 0 ? "" : "/N");
    if (state->numel[1]) snprintf(over + strlen(over), 16, " x %.4g", 1 - s->offload_fraction);
    if (master)
        add(t, MEMORY(ZERO_MEM_MASTER), state->numel[0] * master, "%zu Psi%s", master, over);
    else
        add(t, MEMORY(ZERO_MEM_MASTER), 0, s->dtype == ZERO_F32 ? "0: fp32 parameters" : "0: none are kept");
    for (size_t i = 0; optimizer && i < optimizer->num_states; i++)
        add(t, ZERO_MEM_STATE + (int)i, optimizer->state_names[i], state->trained[0] * sizeof(float), "4 %s%s",
            psi_trained(l), over);
    if (s->ema_decay > 0) add(t, MEMORY(ZERO_MEM_EMA), state->numel[0] * sizeof(float), "4 Psi%s", over);
}

size_t zero_cost_memory(const zero_cost *p, const zero_layout *l, zero_row *rows, size_t max) {
    struct table t = { rows, max, 0 };
    const int stage = p->settings.stage;
    const size_t b = zero_dtype_bytes(p->settings.dtype), psi = l->numel_padded, shard = psi / l->ranks;
    const struct state state = zero_cost_count_state(p, l);
    if (params_offload(p))
        add(&t, MEMORY(ZERO_MEM_PARAMS), 0, "0: offloaded, see unit buffers");
    else
        add(&t, MEMORY(ZERO_MEM_PARAMS), zero_comm_alloc_bytes(&p->shard_transport, (stage == 3 ? shard : psi) * b),
            "%zu Psi%s", b, stage == 3 ? "/N" : "");
    add_gradients(&t, p, l);
    add_partial_sums(&t, p, l);
    add_state(&t, p, l, &state);
    add_unit_buffers(&t, p, l);
    add_transport(&t, p, l, &state);
    zero_row host = { .kind = 0 }, disk = { .kind = 0 };
    zero_cost_offloaded(p, l, &state, &host, &disk);
    if (*host.formula) add(&t, MEMORY(ZERO_MEM_HOST), host.expected, "%s", host.formula);
    if (*disk.formula) add(&t, MEMORY(ZERO_MEM_DISK), disk.expected, "%s", disk.formula);
    return t.n;
}

// Bytes of the parameters that a rank receives in a step.
static void add_params(struct table *t, const zero_cost *p, const zero_layout *l) {
    const zero_settings *s = &p->settings;
    const size_t others = l->ranks - 1, b = zero_dtype_bytes(s->dtype);
    if (s->stage == 0) {
        add(t, ZERO_WIRE_PARAMS, "parameters", 0, "0");
    } else if (s->stage < 3) {
        add(t, ZERO_WIRE_PARAMS, "parameters", trained(l) / l->ranks * others * b, "%zu %s (N-1)/N", b, psi_trained(l));
    } else {
        const size_t numel = others ? zero_cost_gathered(p, l, NULL) : 0;
        add(t, ZERO_WIRE_PARAMS, "parameters", numel / l->ranks * others * b, "%zu Psi (N-1)/N x %.3f all-gathers", b,
            (double)numel / (double)l->numel_padded);
    }
}

// What a rank receives from each other one for the norm, and to agree on whether a disk has failed.
static size_t norm_bytes(const zero_settings *s) {
    return ZERO_NORM_WORDS * sizeof(uint64_t) + (zero_uses_disk(s) ? ZERO_AGREEMENT_BYTES : 0);
}

size_t zero_cost_wire(const zero_cost *p, const zero_layout *l, zero_row *rows, size_t max) {
    struct table t = { rows, max, 0 };
    const zero_settings *s = &p->settings;
    const size_t others = l->ranks - 1, of_others = trained(l) / l->ranks * others, G = p->micro_batches;
    const char *psi = psi_trained(l);
    const zero_group_sums own = zero_cost_own_sums(s, G);
    const size_t b = s->reduction == ZERO_REDUCE_LIBRARY ? zero_comm_summed_bytes(&p->shard_transport, s->dtype)
                                                         : own.count * zero_dtype_bytes(own.dtype);
    const size_t times = reductions(p, G);  // that a gradient is reduced
    const char *g = own_sums(p) ? "" : " G";
    const size_t h = zero_cost_two_levels(s, G, &p->shard_transport), gathered = s->stage == 0 ? of_others * 4 : 0;
    if (h) {
        const zero_group_sums sums = zero_cost_group_sums(h * own.count, own.dtype);
        const size_t hosts = l->ranks / h, each = sums.count * zero_dtype_bytes(sums.dtype);
        const uint64_t once = trained(l) / l->ranks * (hosts * (h - 1) * b + (hosts - 1) * each);
        add(&t, ZERO_WIRE_GRADS, "gradients", times * once + gathered,
            "(%zu (h-1)/h + %zu (H-1)/N)%s %s%s, H %zu, h %zu, G %zu", b, each, g, psi,
            gathered ? " + 4 (N-1)/N of it" : "", hosts, h, G);
    } else if (s->stage == 0)
        add(&t, ZERO_WIRE_GRADS, "gradients", of_others * (times * b + sizeof(float)),
            "(%zu%s + 4) %s (N-1)/N, G = %zu", b, g, psi, G);
    else
        add(&t, ZERO_WIRE_GRADS, "gradients", of_others * times * b, "%zu%s %s (N-1)/N, G = %zu", b, g, psi, G);
    add_params(&t, p, l);
    const size_t norm = norm_bytes(s);
    const char *agreement = zero_uses_disk(s) ? ", the disk" : "";
    if (p->replicas > 1) {
        const zero_group_sums group = zero_cost_group_sums(l->ranks * own.count, own.dtype);
        const size_t each = group.count * zero_dtype_bytes(group.dtype), others_R = p->replicas - 1;
        const size_t chunks = zero_layout_replica_offset(l, l->num_units, p->replicas);
        add(&t, ZERO_WIRE_REPLICAS, "replica all-reduce", others_R * (chunks * (times * each + sizeof(float)) + norm),
            "(%zu%s + 4) %s/N (R-1)/R, R = %zu; norm%s", each, g, psi, p->replicas, agreement);
    } else {
        add(&t, ZERO_WIRE_REPLICAS, "replica all-reduce", 0, "0: one shard group");
    }
    add(&t, ZERO_WIRE_SCALARS, "scalars", others * norm, "%zu (N-1) for the norm%s", norm, agreement);
    return t.n;
}

// Bytes of gradients and parameters in a step: from the ranks of the own shard group, and from others (*replicas).
static uint64_t received(const zero_cost *p, const zero_layout *l, uint64_t *replicas) {
    zero_row rows[ZERO_WIRE_KINDS];
    uint64_t own = 0;
    *replicas = 0;
    for (size_t i = 0, n = zero_cost_wire(p, l, rows, ZERO_WIRE_KINDS); i < n; i++) {
        if (rows[i].kind == ZERO_WIRE_REPLICAS && p->replicas > 1)
            *replicas = rows[i].expected - (p->replicas - 1) * norm_bytes(&p->settings);
        else if (rows[i].kind != ZERO_WIRE_SCALARS)
            own += rows[i].expected;
    }
    return own;
}

int zero_cost_one_level(const zero_cost *groups, const zero_layout *groups_layout, const zero_cost *one,
                        const zero_layout *one_layout) {
    uint64_t between, none;
    const uint64_t inside = received(groups, groups_layout, &between), all = received(one, one_layout, &none);
    const size_t N = one_layout->ranks, S = groups_layout->ranks;
    return N > S && all / (N - 1) * (N - S) <= between && all < inside + between;
}

size_t zero_cost_between_hosts(const zero_cost *p, const zero_layout *l, size_t per_host, zero_row *rows, size_t max) {
    struct table t = { rows, max, 0 };
    zero_row wire[ZERO_WIRE_KINDS];
    const zero_settings *s = &p->settings;
    const zero_comm_shape *shard = &p->shard_transport;
    const size_t N = l->ranks, G = p->micro_batches, times = reductions(p, G), others = N > 1 ? N - 1 : 1,
                 here = N < per_host ? N : per_host, groups_here = per_host / here, shard_numel = trained(l) / N;
    const size_t h = zero_cost_two_levels(s, G, shard), norm = ZERO_NORM_WORDS * sizeof(uint64_t);
    zero_comm_shape told[] = { *shard, p->replicate_transport };  // which disk has failed, always in one level
    const size_t disk = zero_uses_disk(s) ? ZERO_AGREEMENT_BYTES : 0;
    told[0].per_host = told[1].per_host = 0;
    const zero_group_sums own = zero_cost_own_sums(s, G), sums = zero_cost_group_sums(here * own.count, own.dtype);
    const size_t summed = s->reduction == ZERO_REDUCE_LIBRARY ? zero_comm_summed_bytes(shard, s->dtype)
                                                              : own.count * zero_dtype_bytes(own.dtype);
    const uint64_t each = h ? sums.count * zero_dtype_bytes(sums.dtype) : here * summed,
                   gathers = groups_here * zero_comm_gather_chunks(shard, here);
    add(&t, ZERO_WIRE_GRADS, "gradients",
        groups_here * (N - here) * shard_numel * times * each + (s->stage == 0 ? gathers * shard_numel * 4 : 0),
        "%llu%s Psi_t/N for each rank of others%s", (unsigned long long)each, own_sums(p) ? "" : " G",
        s->stage == 0 ? "; sums" : "");
    // of an all-gather a rank receives N - 1 shards
    for (size_t i = 0, n = zero_cost_wire(p, l, wire, ZERO_WIRE_KINDS); i < n; i++)
        if (wire[i].kind == ZERO_WIRE_PARAMS)
            add(&t, ZERO_WIRE_PARAMS, "parameters", wire[i].expected / others * gathers,
                "%llu shards of others in an all-gather", (unsigned long long)gathers);
    if (p->replicas > 1) {
        const zero_group_sums group = zero_cost_group_sums(N * own.count, own.dtype);
        const size_t chunks = zero_layout_replica_offset(l, l->num_units, p->replicas), out = p->replicas - groups_here;
        add(&t, ZERO_WIRE_REPLICAS, "replica all-reduce",
            per_host * out * chunks * times * group.count * zero_dtype_bytes(group.dtype) +
                here * zero_comm_gather_chunks(&p->replicate_transport, groups_here) * (chunks * sizeof(float) + norm) +
                here * zero_comm_gather_chunks(&told[1], groups_here) * disk,
            "of %zu groups on other hosts", out);
    } else {
        add(&t, ZERO_WIRE_REPLICAS, "replica all-reduce", 0, "0: one shard group");
    }
    add(&t, ZERO_WIRE_SCALARS, "scalars",
        groups_here * (zero_comm_gather_chunks(shard, here) * norm + zero_comm_gather_chunks(&told[0], here) * disk),
        "%zu for the norm%s", norm, disk ? ", the disk" : "");
    return t.n;
}
