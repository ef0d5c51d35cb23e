// See step_simulator.h.
//
// Micro-steps are alike from the second one on, so at most MICRO_STEPS of them are simulated, and the rest is as many
// times the last one. Two steps are simulated, and the second one counts.
#include "trainer/step_simulator.h"

#include <stdlib.h>

#include "zero/kernels.h"
#include "zero/param_cache.h"

enum { MICRO_STEPS = 3 };
enum { COMPUTING, TRANSPORT, QUEUES };

// Ranks of a communicator: all, those on one host, how many communicators like it a host is part of, and the transport.
typedef struct {
    size_t ranks, local, beside;
    zero_comm_shape shape;
} Group;

typedef struct {
    const StepInput *in;
    size_t chunk_elem;    // bytes of an element in the reduce-scatter
    zero_group_sums own;  // what a rank passes on
    int sends;            // in this micro-step
    Group shard, replicas, all;
    Group host, across;      // the levels of a reduce-scatter in two levels; 0 ranks: there is one level
    double queue[QUEUES];    // when it has finished what is queued
    zero_param_cache cache;  // stage 3
    zero_pool pool;          // of gradients
    double *here;            // [units] when parameters have come: stages 1, 2 of a unit, 3 into a slot of the cache
    double *reduced;         // [units] when gradients were reduced
    size_t *last_use;        // [units] the last place in the order
    double shared_free[ZERO_GRAD_POOL_DEPTH];  // when units that shared a gradient buffer were reduced, in turn
    size_t shared_next;
    StepTimes times;
} Schedule;

static double later(double a, double b) { return a > b ? a : b; }

static size_t common_divisor(size_t a, size_t b) { return b ? common_divisor(b, a % b) : a; }

// Of groups that are no multiple of a host's ranks, nor the other way round, the ranks that have the fewest at home.
static void find_groups(Schedule *s) {
    const zero_cost *cost = s->in->cost;
    const size_t S = s->in->layout->ranks, R = cost->replicas > 1 ? cost->replicas : 1, N = S * R;
    const size_t h = s->in->cluster.ranks_per_host, host = h && h < N ? h : N;
    const size_t shard = S == N ? host : common_divisor(S, host), replicas = host / shard;
    const size_t levels = zero_cost_two_levels(&cost->settings, cost->micro_batches, &cost->shard_transport);
    s->all = s->shard = (Group){ S, shard, host / shard, cost->shard_transport };
    s->replicas = (Group){ R, replicas, host / replicas, cost->replicate_transport };
    s->all.ranks = s->all.shape.ranks = N;
    s->all.local = host;
    s->all.beside = 1;
    s->all.shape.per_host = 0;  // hosts gather the losses, in one level
    if (levels) s->host = (Group){ levels, levels, 1, cost->shard_transport };
    if (levels) s->across = (Group){ S / levels, 1, levels, cost->shard_transport };
}

static double run(Schedule *s, int queue, double ready, double seconds) {
    double *q = &s->queue[s->in->cluster.streams ? queue : COMPUTING];
    *q = later(*q, ready) + seconds;
    return *q;
}

// What a rank and its host receive in a transfer, in chunks, and the messages to a rank from other hosts.
typedef struct {
    double all, inside, host, messages;
} Chunks;

static Chunks all_to_all_chunks(Group g) {
    const double others = (double)(g.ranks - g.local);
    return (Chunks){ (double)g.ranks - 1, (double)g.local - 1, others * (double)(g.local * g.beside), others };
}

static Chunks all_gather_chunks(Group g) {
    const size_t host = zero_comm_gather_chunks(&g.shape, g.local);
    Chunks c = all_to_all_chunks(g);
    if (host == g.local * (g.ranks - g.local)) return c;  // one copy for each rank
    if (g.local > 1) c.inside = c.all;
    c.host = (double)(host * g.beside);
    c.messages = g.shape.per_host ? c.messages / (double)g.local : (double)host;
    return c;
}

static double transfer(Schedule *s, double ready, Chunks n, double bytes, int counts) {
    const StepCluster *c = &s->in->cluster;
    const double link = n.inside * (c->link_latency + bytes / c->link_bytes_per_second);
    const double net = n.messages * c->net_latency + n.host * bytes / c->net_bytes_per_second;
    s->times.link += link;
    s->times.net += net;
    s->times.received += counts ? n.all * bytes : 0;
    s->times.between_hosts += counts ? n.host * bytes : 0;
    return run(s, TRANSPORT, ready, later(link, net));
}

static double all_to_all(Schedule *s, double ready, Group g, size_t bytes) {
    return transfer(s, ready, all_to_all_chunks(g), (double)bytes, 1);
}

static double all_gather(Schedule *s, double ready, Group g, size_t bytes) {
    return transfer(s, ready, all_gather_chunks(g), (double)bytes, 1);
}

// A sum on the transport's stream, which reads and writes so many bytes.
static double add(Schedule *s, size_t bytes) { return run(s, TRANSPORT, 0, (double)bytes / s->in->cluster.memory); }

static double compute(Schedule *s, double ready, double seconds) {
    s->times.compute += seconds;
    return run(s, COMPUTING, ready, seconds);
}

// ---- parameters -----------------------------------------------------------------------------------------------------

static void unshard(Schedule *s, const zero_param_cache_slot *slot) {
    const size_t bytes = zero_layout_shard_numel(s->in->layout, slot->unit) *
                         zero_dtype_bytes(s->in->cost->settings.dtype);
    s->here[slot - s->cache.slots] = all_gather(s, s->queue[COMPUTING], s->shard, bytes);
}

// Follows zero/parameters.c. Returns when the unit's parameters are there.
static double acquire(Schedule *s, size_t u) {
    if (s->in->cost->settings.stage < 3 || s->in->layout->ranks == 1) return s->here[u];
    zero_param_cache_slot *slot = zero_param_cache_find(&s->cache, u);
    if (!slot) unshard(s, slot = zero_param_cache_take(&s->cache, u));
    const double ready = s->here[slot - s->cache.slots];
    zero_param_cache_acquired(&s->cache, slot);
    for (size_t k = 0; k < s->cache.prefetch; k++) {
        const size_t next = zero_param_cache_ahead(&s->cache, k);
        if (next == ZERO_NO_UNIT || zero_param_cache_find(&s->cache, next)) continue;
        zero_param_cache_slot *ahead = zero_param_cache_take(&s->cache, next);
        if (ahead) unshard(s, ahead);
    }
    zero_param_cache_released(&s->cache, slot);
    return ready;
}

// ---- gradients ------------------------------------------------------------------------------------------------------

static int rank_order(const Schedule *s) { return s->in->cost->settings.order != ZERO_ORDER_STEP; }

// Micro-batches that pass through a unit at a time.
static size_t at_a_time(const zero_cost *cost) {
    return cost->settings.order == ZERO_ORDER_LAYER ? cost->micro_batches : 1;
}

static int pooled(const Schedule *s, size_t u) {
    return (s->in->cost->settings.stage >= 2 || rank_order(s)) && s->pool.shares[u];
}

// When a gradient buffer for the unit is free.
static double buffer_free(const Schedule *s, size_t u) {
    return pooled(s, u) ? s->shared_free[s->shared_next % ZERO_GRAD_POOL_DEPTH] : s->reduced[u];
}

static void end_of_gradients(Schedule *s, size_t u, double end) {
    s->reduced[u] = end;
    if (pooled(s, u)) s->shared_free[s->shared_next++ % ZERO_GRAD_POOL_DEPTH] = end;
}

// The reduce-scatter inside the shard group.
static double reduce_scatter(Schedule *s, double ready, size_t u) {
    const size_t shard = zero_layout_shard_numel(s->in->layout, u), chunk = shard * s->chunk_elem;
    if (s->host.ranks) {
        const zero_group_sums sums = zero_cost_group_sums(s->host.ranks * s->own.count, s->own.dtype);
        const size_t passed_on = shard * sums.count * zero_dtype_bytes(sums.dtype), hosts = s->across.ranks;
        all_to_all(s, ready, s->host, hosts * chunk);
        add(s, s->shard.ranks * chunk + hosts * passed_on);
        all_to_all(s, 0, s->across, passed_on);
        return add(s, hosts * passed_on);
    }
    if (s->in->cost->settings.reduction == ZERO_REDUCE_LIBRARY && s->in->cluster.streams)
        all_gather(s, ready, s->shard, chunk);  // a ring, too
    else
        all_to_all(s, ready, s->shard, chunk);
    return add(s, s->shard.ranks * chunk);
}

static void reduce(Schedule *s, size_t u) {
    const zero_layout *l = s->in->layout;
    const size_t numel = zero_layout_unit_numel(l, u), b = zero_dtype_bytes(s->in->cost->settings.dtype);
    double end = s->queue[COMPUTING];
    if (rank_order(s)) {  // added to a sum, which is read and written
        end = compute(s, 0, (double)(at_a_time(s->in->cost) * numel * (b + 2 * sizeof(float))) / s->in->cluster.memory);
        end_of_gradients(s, u, end);
        if (!s->sends) return;
    }
    if (s->all.ranks > 1) end = reduce_scatter(s, end, u);
    if (s->replicas.ranks > 1) {
        const zero_group_sums sums = zero_cost_group_sums(l->ranks * s->own.count, s->own.dtype);
        const size_t part = zero_layout_replica_chunk(l, u, s->replicas.ranks);
        end = all_to_all(s, end, s->replicas, part * sums.count * zero_dtype_bytes(sums.dtype));
    }
    if (!rank_order(s)) end_of_gradients(s, u, end);
}

// ---- the step -------------------------------------------------------------------------------------------------------

static int has_tied(const zero_layout *l, size_t u) {
    int tied = 0;
    for (size_t t = l->unit_first[u]; t < l->unit_first[u + 1]; t++) tied |= l->tensors[t].tied;
    return tied;
}

static void micro_step(Schedule *s) {
    const zero_cost *cost = s->in->cost;
    const zero_layout *l = s->in->layout;
    for (size_t i = 0; i < cost->order_length; i++) {
        const size_t u = cost->order[i];
        const int last = s->last_use[u] == i && !l->unit_frozen[u];
        const double here = acquire(s, u);
        double flops = s->in->order_flops[i] * (double)at_a_time(cost);
        if (cost->settings.order == ZERO_ORDER_LAYER && last) flops *= 1.5;  // the forward again, half the backward
        compute(s, last ? later(here, buffer_free(s, u)) : here, flops / s->in->cluster.flops);
        if (last && !has_tied(l, u)) reduce(s, u);
    }
    for (size_t u = 0; u < l->num_units; u++)
        if (!l->unit_frozen[u] && has_tied(l, u)) reduce(s, u);
}

// Computing waits for each of them, and they for what the transport has queued.
static void scalars(Schedule *s, Group g) {
    const double begin = later(s->queue[COMPUTING], s->queue[TRANSPORT]);
    s->queue[COMPUTING] = s->queue[TRANSPORT] = begin;
    s->queue[COMPUTING] = transfer(s, begin, all_gather_chunks(g), ZERO_NORM_WORDS * sizeof(uint64_t), 0);
}

// Computing does not wait.
static void losses(Schedule *s) {
    (void)transfer(s, s->queue[COMPUTING], all_gather_chunks(s->all), ZERO_NORM_WORDS * sizeof(uint64_t), 0);
}

static void update(Schedule *s) {
    const zero_cost *cost = s->in->cost;
    const zero_layout *l = s->in->layout;
    const int stage = cost->settings.stage;
    const size_t b = zero_dtype_bytes(cost->settings.dtype);
    if (s->shard.ranks > 1) scalars(s, s->shard);  // the norm
    if (s->replicas.ranks > 1) scalars(s, s->replicas);
    if (s->all.ranks > 1) losses(s);
    for (size_t u = 0; u < l->num_units; u++) {
        if (l->unit_frozen[u]) continue;
        const size_t shard = zero_layout_shard_numel(l, u);
        double ready = 0;
        if (stage == 0 && l->ranks > 1) ready = all_gather(s, s->queue[COMPUTING], s->shard, shard * sizeof(float));
        if (s->replicas.ranks > 1)
            ready = all_gather(s, s->queue[COMPUTING], s->replicas,
                               zero_layout_replica_chunk(l, u, s->replicas.ranks) * sizeof(float));
        const size_t numel = stage == 0 ? zero_layout_unit_numel(l, u) : shard;
        const double end = compute(s, ready, (double)(numel * s->in->update_bytes) / s->in->cluster.memory);
        if ((stage == 1 || stage == 2) && l->ranks > 1) s->here[u] = all_gather(s, end, s->shard, shard * b);
    }
    if (stage == 3) zero_param_cache_invalidate(&s->cache);
}

// The second of two steps.
static int simulate(const StepInput *in, size_t micro_steps, StepTimes *out) {
    const zero_layout *l = in->layout;
    const zero_cost *cost = in->cost;
    Schedule s = { .in = in, .own = zero_cost_own_sums(&cost->settings, cost->micro_batches) };
    s.here = calloc(l->num_units, sizeof *s.here);
    s.reduced = calloc(l->num_units, sizeof *s.reduced);
    s.last_use = calloc(l->num_units, sizeof *s.last_use);
    int e = !s.here || !s.reduced || !s.last_use ||
            zero_param_cache_create(&s.cache, l, cost->order, cost->order_length, (size_t)cost->settings.prefetch) ||
            zero_pool_create(&s.pool, l, ZERO_POOL_GRADS, ZERO_GRAD_POOL_DEPTH);
    s.chunk_elem = cost->settings.reduction == ZERO_REDUCE_LIBRARY
                       ? zero_comm_summed_bytes(&cost->shard_transport, cost->settings.dtype)
                       : s.own.count * zero_dtype_bytes(s.own.dtype);
    find_groups(&s);
    for (size_t i = 0; i < cost->order_length && !e; i++) s.last_use[cost->order[i]] = i;
    for (int k = 0; k < 2 && !e; k++) {
        s.times = (StepTimes){ .step = -s.queue[COMPUTING] };
        for (size_t g = 0; g < micro_steps; g++) {
            s.sends = g + 1 == micro_steps;
            micro_step(&s);
        }
        update(&s);
        s.times.step += s.queue[COMPUTING];
    }
    *out = s.times;
    zero_param_cache_destroy(&s.cache);
    zero_pool_destroy(&s.pool);
    free(s.here);
    free(s.reduced);
    free(s.last_use);
    return e ? -1 : 0;
}

int step_simulate(const StepInput *in, StepTimes *out) {
    const size_t G = in->cost->micro_batches;
    StepTimes fewer;
    if (G <= MICRO_STEPS || at_a_time(in->cost) > 1) return simulate(in, at_a_time(in->cost) > 1 ? 1 : G, out);
    if (simulate(in, MICRO_STEPS - 1, &fewer) || simulate(in, MICRO_STEPS, out)) return -1;
    double *to[] = { &out->step, &out->compute, &out->link, &out->net, &out->received, &out->between_hosts };
    const double from[] = { fewer.step, fewer.compute, fewer.link, fewer.net, fewer.received, fewer.between_hosts };
    for (size_t i = 0; i < sizeof from / sizeof *from; i++) *to[i] += (*to[i] - from[i]) * (double)(G - MICRO_STEPS);
    return 0;
}
