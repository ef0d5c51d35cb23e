// state.c: reading and writing the engine's state element by element; its hash; the reports of memory and wire bytes.
//
// Values pass through host buffers of HOST_CHUNK elements, so a rank never needs memory for more than its own state.
#include "zero/internal.h"
#include "zero/master_weights.h"
#include "zero/state_hash.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

// ---- between host and device ----------------------------------------------------------------------------------------

// Convert between n fp32 values and bf16 parameters with the low halves of their master weights.
static void split(const float *x, uint16_t *params, uint16_t *low, size_t n) {
    for (size_t i = 0; i < n; i++) {
        uint32_t word;
        memcpy(&word, x + i, sizeof word);
        params[i] = (uint16_t)zero_master_round(word);
        low[i] = (uint16_t)word;
    }
}

// low may be NULL: the parameters alone.
static void join(float *x, const uint16_t *params, const uint16_t *low, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const uint32_t word = zero_master_join(params[i], low ? low[i] : 0);
        memcpy(x + i, &word, sizeof word);
    }
}

static int copy_in(zero *z, void *to, const void *host, size_t bytes) {
    int e = zero_device_check(z, cudaMemcpyAsync(to, host, bytes, cudaMemcpyDefault, z->config.stream),
                              "writing state");
    return e ? e : zero_comm_check(z, zero_comm_synchronize(z->config.shard_comm, z->config.stream));
}

static int copy_out(zero *z, void *host, const void *from, size_t bytes) {
    int e = zero_device_check(z, cudaMemcpyAsync(host, from, bytes, cudaMemcpyDefault, z->config.stream),
                              "reading state");
    return e ? e : zero_comm_check(z, zero_comm_synchronize(z->config.shard_comm, z->config.stream));
}

// ---- fill and load --------------------------------------------------------------------------------------------------

// Which elements of a unit this rank has of a state.
static size_t held_begin(const zero *z, enum zero_state state, size_t u) {
    return state == ZERO_STATE_GRADS ? sum_begin(z, u) : state_begin(z, u);
}
static size_t held_numel(const zero *z, enum zero_state state, size_t u) {
    return state == ZERO_STATE_GRADS ? sum_numel(z, u) : state_numel(z, u);
}

// Of a frozen unit there are only the weights and their average.
static int is_absent(const zero *z, enum zero_state state, size_t u) {
    return state >= ZERO_STATE_OPTIMIZER && state != ZERO_STATE_EMA && unit_frozen(z, u);
}

// Copies n elements of an array of optimizer state, from element `at` of what this rank has of unit u on, from host
// memory (to = 1) or to it.
static int copy_array(zero *z, size_t u, size_t array, size_t at, size_t n, char *host, int to) {
    int e = ZERO_OK;
    for (size_t done = 0, count; done < n && !e; done += count) {
        char *there = NULL;
        if ((e = zero_state_open(z, u, array, at + done, to, &there, &count))) break;
        if (count > n - done) count = n - done;
        const size_t size = array_bytes(z, array), bytes = count * size;
        e = to ? copy_in(z, there, host + done * size, bytes) : copy_out(z, host + done * size, there, bytes);
    }
    return e;
}

static size_t array_of(enum zero_state state) {
    return state == ZERO_STATE_EMA ? ARRAY_EMA : ARRAY_STATES + (size_t)(state - ZERO_STATE_OPTIMIZER);
}

// Writes n fp32 values in z->host to a state of unit u, from element `at` of this rank's part on.
static int write_chunk(zero *z, enum zero_state state, int fill, size_t u, size_t at, size_t n) {
    if (state == ZERO_STATE_GRADS)
        return copy_in(z, z->partial_sums[0] + sum_offset(z, u) + at, z->host, n * sizeof(float));
    if (state >= ZERO_STATE_OPTIMIZER) return copy_array(z, u, array_of(state), at, n, (char *)z->host, 1);
    const int bf16 = z->config.settings.dtype == ZERO_BF16;
    if (bf16) split(z->host, z->host_params, z->host_low, n);
    char *params = bf16 ? (char *)z->host_params : (char *)z->host;
    char *master = z->config.settings.master == ZERO_MASTER_SPLIT ? (char *)z->host_low : (char *)z->host;
    int e = copy_array(z, u, ARRAY_PARAMS, at, n, params, 1);
    if (!e && fill && has_ema(z)) e = copy_array(z, u, ARRAY_EMA, at, n, (char *)z->host, 1);
    if (!e && master_bytes(z)) e = copy_array(z, u, ARRAY_MASTER, at, n, master, 1);
    return e;
}

static int load_unit(zero *z, enum zero_state state, int fill, size_t u, zero_fill_fn fn, void *ctx) {
    const size_t begin = held_begin(z, state, u), end = begin + held_numel(z, state, u);
    int e = ZERO_OK;
    size_t cursor = 0;
    zero_segment s;
    while (!e && zero_layout_next_segment(&z->layout, u, begin, end, &cursor, &s))
        for (size_t at = 0; at < s.count && !e; at += HOST_CHUNK) {
            const size_t n = s.count - at < HOST_CHUNK ? s.count - at : HOST_CHUNK;
            if (fn(ctx, s.tensor, s.tensor_begin + at, n, z->host))
                e = zero_fail(z, ZERO_ERR_CALLBACK, "the callback that fills tensor %s failed",
                              z->layout.tensors[s.tensor].name);
            if (!e) e = z->failed;  // it has made a call
            if (!e) e = write_chunk(z, state, fill, u, s.unit_begin + at - begin, n);
        }
    return e;
}

static int check_state(zero *z, enum zero_state state) {
    if (state == ZERO_STATE_GRADS) return zero_grads_merge(z);
    if ((size_t)state < ZERO_STATE_OPTIMIZER + z->optimizer->num_states) return ZERO_OK;
    if (state == ZERO_STATE_EMA && has_ema(z)) return ZERO_OK;
    if (state == ZERO_STATE_EMA)
        return zero_fail(z, ZERO_ERR_ARG, "settings.ema_decay is 0: there is no moving average of the weights");
    return zero_fail(z, ZERO_ERR_ARG, "%s has no state %d", z->optimizer->name, (int)state - ZERO_STATE_OPTIMIZER);
}

// One callback at a time: they share the host buffers.
static int enter_callback(zero *z) {
    if (zero_enter(z)) return z->failed;
    z->in_callback = 1;
    return ZERO_OK;
}

static int leave_callback(zero *z, int e) {
    z->in_callback = 0;
    return e;
}

static int clear_optimizer_state(zero *z) {
    int e = ZERO_OK;
    for (size_t u = 0; u < z->layout.num_units && !e; u++)
        if (!unit_frozen(z, u)) e = zero_state_clear_unit(z, u);
    return e;
}

// Everything is checked before anything is written. A rank whose callback has failed continues with the collective
// part. fill: the optimizer's states become zero, and the average of the weights equal to them.
static int load(zero *z, enum zero_state state, int fill, zero_fill_fn fn, void *ctx) {
    const int is_weights = state < ZERO_STATE_OPTIMIZER;
    int e = zero_between_micro_batches(z), mine = ZERO_OK;
    if (!e) e = check_state(z, state);
    if (!e && z->micro_batches && state != ZERO_STATE_GRADS)
        e = zero_fail(z, ZERO_ERR_ARG, "state is loaded between steps: call zero_step or zero_discard first");
    if (state == ZERO_STATE_GRADS) z->has_norm = 0;
    if (!e && is_weights) e = zero_params_update_begin(z);
    if (!e) e = zero_norm_learn(z);
    if (!e && fill) {
        z->updates = 0;
        for (size_t t = 0; t < z->layout.num_tensors; t++) z->options[t].first_update = 0;
        mine = clear_optimizer_state(z);
    }
    for (size_t u = 0; u < z->layout.num_units && !e; u++) {
        if (!mine && !is_absent(z, state, u)) mine = load_unit(z, state, fill, u, fn, ctx);
        if (is_weights) e = zero_params_update_written(z, u);
    }
    if (!e && is_weights) e = zero_params_update_end(z);
    mine = zero_state_close(z, mine);
    e = zero_agree(z, e ? e : mine);
    zero_wire_start(z);
    return e;
}

int zero_load(zero *z, enum zero_state state, zero_fill_fn fn, void *ctx) {
    const int e = enter_callback(z);
    return e ? e : leave_callback(z, load(z, state, 0, fn, ctx));
}

int zero_fill(zero *z, zero_fill_fn fn, void *ctx) {
    const int e = enter_callback(z);
    return e ? e : leave_callback(z, load(z, ZERO_STATE_MASTER, 1, fn, ctx));
}

// ---- visit ----------------------------------------------------------------------------------------------------------

// Reads n elements of a state that this rank owns, from element `in_unit` of unit u on, as fp32 into z->host.
static int read_chunk(zero *z, enum zero_state state, size_t u, size_t in_unit, size_t n) {
    const size_t at = in_unit - held_begin(z, state, u);
    if (is_absent(z, state, u)) {
        memset(z->host, 0, n * sizeof(float));
        return ZERO_OK;
    }
    if (state == ZERO_STATE_GRADS)
        return copy_out(z, z->host, z->partial_sums[0] + sum_offset(z, u) + at, n * sizeof(float));
    if (state >= ZERO_STATE_OPTIMIZER) return copy_array(z, u, array_of(state), at, n, (char *)z->host, 0);
    const int low = state == ZERO_STATE_MASTER && z->config.settings.master == ZERO_MASTER_SPLIT,
              bf16 = z->config.settings.dtype == ZERO_BF16;
    if (state == ZERO_STATE_MASTER && master_bytes(z) && !low)
        return copy_array(z, u, ARRAY_MASTER, at, n, (char *)z->host, 0);
    int e = copy_array(z, u, ARRAY_PARAMS, at, n, bf16 ? (char *)z->host_params : (char *)z->host, 0);
    if (!e && low) e = copy_array(z, u, ARRAY_MASTER, at, n, (char *)z->host_low, 0);
    if (!e && bf16) join(z->host, z->host_params, low ? z->host_low : NULL, n);
    return e;
}

// Visits this rank's shard of a state, or its gradient sums.
static int visit_shard(zero *z, enum zero_state state, zero_visit_fn fn, void *ctx) {
    const int grads = state == ZERO_STATE_GRADS;
    int e = ZERO_OK;
    for (size_t u = 0; u < z->layout.num_units && !e; u++) {
        if (grads && unit_frozen(z, u)) continue;
        const size_t shard = (size_t)z->rank * shard_numel(z, u), begin = grads ? sum_begin(z, u) : shard,
                     end = grads ? sum_end(z, u) : shard + shard_numel(z, u);
        size_t cursor = 0;
        zero_segment s;
        while (!e && zero_layout_next_segment(&z->layout, u, begin, end, &cursor, &s))
            for (size_t at = 0; at < s.count && !e; at += HOST_CHUNK) {
                const size_t n = s.count - at < HOST_CHUNK ? s.count - at : HOST_CHUNK;
                e = read_chunk(z, state, u, s.unit_begin + at, n);
                if (!e && fn(ctx, s.tensor, s.tensor_begin + at, n, z->host))
                    e = zero_fail(z, ZERO_ERR_CALLBACK, "the callback of zero_visit failed at tensor %s",
                                  z->layout.tensors[s.tensor].name);
                if (!e) e = z->failed;
            }
    }
    return zero_state_close(z, e);
}

int zero_visit(zero *z, enum zero_state state, zero_visit_fn fn, void *ctx) {
    int e = enter_callback(z);
    if (e) return e;
    e = check_state(z, state);
    if (!e && state != ZERO_STATE_PARAMS) e = zero_uses_weights(z);
    const int owns = state == ZERO_STATE_GRADS || group_index(z) == 0;
    return leave_callback(z, e || !owns ? e : visit_shard(z, state, fn, ctx));
}

// ---- hash -----------------------------------------------------------------------------------------------------------

struct hash_visit {
    const zero_layout *layout;
    uint64_t sum, salt;
};

static int hash_blocks(void *ctx, size_t tensor, size_t begin, size_t count, const float *values) {
    struct hash_visit *h = ctx;
    h->sum += zero_state_hash(h->salt, h->layout->tensors[tensor].logical + begin, count, values);
    return 0;
}

// Before stage 3 every rank holds all parameters: checks that they are equal.
static int check_replicas(zero *z) {
    if (sharded_params(z)) return ZERO_OK;
    const size_t bytes = z->layout.numel_padded * z->elem, chunk = HOST_CHUNK * sizeof(float);
    uint64_t mine = 0, *all = malloc((size_t)z->ranks * sizeof *all);
    int e = all ? zero_params_complete(z) : zero_fail(z, ZERO_ERR_MEMORY, "out of host memory");
    for (size_t at = 0; at < bytes && !e; at += chunk) {
        const size_t n = bytes - at < chunk ? bytes - at : chunk;
        e = copy_out(z, z->host, z->params + at, n);
        if (!e) mine = XXH3_64bits_withSeed(z->host, n, mine);
    }
    if (!e) e = zero_comm_check(z, zero_comm_allgather_host(z->config.shard_comm, &mine, sizeof mine, all));
    for (int r = 0; r < z->ranks && !e; r++)
        if (all[r] != mine) e = zero_fail(z, ZERO_ERR_COMM, "its parameters differ from those of rank %d", r);
    free(all);
    return e;
}

// Every shard group has the same state: checks that they are equal.
static int check_groups(zero *z, uint64_t params, uint64_t optimizer) {
    if (z->replicas == 1) return ZERO_OK;
    uint64_t mine[2] = { params, optimizer }, *all = malloc((size_t)z->replicas * sizeof mine);
    int e = all ? ZERO_OK : zero_fail(z, ZERO_ERR_MEMORY, "out of host memory");
    if (!e) e = zero_comm_check(z, zero_comm_allgather_host(z->config.replicate_comm, mine, sizeof mine, all));
    for (int g = 0; g < z->replicas && !e; g++)
        if (memcmp(all + 2 * g, mine, sizeof mine))
            e = zero_fail(z, ZERO_ERR_COMM, "the state of its shard group differs from that of group %d", g);
    free(all);
    return e;
}

static int hash(zero *z, uint64_t *params, uint64_t *optimizer) {
    const size_t num_states = ZERO_STATE_OPTIMIZER + z->optimizer->num_states;
    uint64_t mine[2] = { 0, 0 }, *all = malloc((size_t)z->ranks * sizeof mine);
    int e = all ? zero_between_micro_batches(z) : zero_fail(z, ZERO_ERR_MEMORY, "out of host memory");
    if (!e) e = zero_check_all_calls(z, "hash of the state");
    for (size_t i = 0; i < num_states + (size_t)has_ema(z) && !e; i++) {
        const size_t s = i < num_states ? i : ZERO_STATE_EMA;
        struct hash_visit h = { &z->layout, 0, s };
        e = visit_shard(z, (enum zero_state)s, hash_blocks, &h);
        mine[s != ZERO_STATE_PARAMS] += h.sum;
    }
    if (uses_disk(z)) e = zero_agree(z, e);
    if (!e) e = zero_comm_check(z, zero_comm_allgather_host(z->config.shard_comm, mine, sizeof mine, all));
    *params = *optimizer = 0;
    for (int r = 0; r < z->ranks && !e; r++) {
        *params += all[2 * r];
        *optimizer += all[2 * r + 1];
    }
    free(all);
    if (!e) e = check_groups(z, *params, *optimizer);
    return e ? e : check_replicas(z);
}

int zero_hash(zero *z, uint64_t *params, uint64_t *optimizer) {
    const int e = enter_callback(z);
    return e ? e : leave_callback(z, hash(z, params, optimizer));
}

// ---- reports --------------------------------------------------------------------------------------------------------

static zero_cost cost_of(const zero *z) {
    const zero_config *c = &z->config;
    return (zero_cost){
        .settings = c->settings,
        .order = z->cache.order,
        .order_length = z->cache.order_length,
        .rank = (size_t)z->rank,
        .shard_transport = zero_comm_get_shape(c->shard_comm),
        .replicas = (size_t)z->replicas,
        .replicate_transport = z->replicas > 1 ? zero_comm_get_shape(c->replicate_comm) : (zero_comm_shape){ 0 },
        .max_micro_batches = rank_order(z) ? c->micro_batches : z->max_micro_batches,
        .micro_batches = z->last_micro_batches,
    };
}

size_t zero_report_memory(const zero *z, zero_row *rows, size_t max) {
    const zero_cost p = cost_of(z);
    const size_t n = zero_cost_memory(&p, &z->layout, rows, max);
    for (size_t i = 0; i < n; i++) {
        zero_row *r = &rows[i];
        const uint64_t earlier = z->earlier_bytes[r->kind];
        r->measured = z->config.accounting->peak[r->kind];
        if (earlier <= r->expected) continue;
        r->expected = earlier;
        snprintf(r->formula, sizeof r->formula, "as before units were frozen");
    }
    return n;
}

void zero_keep_earlier_bytes(zero *z) {
    zero_row rows[ZERO_MEM_CATEGORIES];
    const size_t n = zero_report_memory(z, rows, ZERO_MEM_CATEGORIES);
    for (size_t i = 0; i < n; i++)
        if (rows[i].kind != ZERO_MEM_TRANSPORT || z->max_micro_batches)  // else it has no scratch yet
            z->earlier_bytes[rows[i].kind] = rows[i].expected;
}

size_t zero_report_wire(const zero *z, zero_row *rows, size_t max) {
    const zero_cost p = cost_of(z);
    const size_t n = zero_cost_wire(&p, &z->layout, rows, max);
    for (size_t i = 0; i < n; i++) rows[i].measured = z->wire_step[rows[i].kind];
    return n;
}

size_t zero_report_disk(const zero *z, zero_row *rows, size_t max) {
    const zero_cost p = cost_of(z);
    return zero_cost_disk(&p, &z->layout, rows, max);
}

size_t zero_report_bus(const zero *z, zero_row *rows, size_t max) {
    const zero_cost p = cost_of(z);
    const size_t n = zero_cost_bus(&p, &z->layout, rows, max);
    for (size_t i = 0; i < n; i++) rows[i].measured = z->bus[rows[i].kind] - z->bus_start[rows[i].kind];
    return n;
}

size_t zero_report_between_hosts(const zero *z, size_t per_host, zero_row *rows, size_t max) {
    const zero_cost p = cost_of(z);
    return zero_cost_between_hosts(&p, &z->layout, per_host, rows, max);
}
