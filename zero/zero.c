/* zero.c: the engine. zero.h says what it does for its caller; this is how.

   Buffers. Parameters are one symmetric flat buffer. Gradients of the micro-batch at hand are another one (stages 0, 1), or a
   few unit-sized buffers that are taken from a pool and given back (stage 2). Optimizer state and gradient sums are this
   rank's shard (optimizer state in stage 0: everything).

   Reduction. Releasing a unit's gradients begins an exchange. It is finished later, in the order of release: when a
   buffer is needed, or at the end of the micro-batch. Finishing adds the N pieces as a balanced tree, and the result to the
   partial sums that wait for it. These are kept as a binary counter keeps its ones: micro-step g merges with as many partial
   sums as g has trailing ones, so partial sums always cover 2^k micro-steps and popcount(g) slots are live. What is left at the
   end of the step is added from the newest to the oldest. With N a power of two the whole is the balanced tree over the global
   micro-batch index g * N + r, whatever N.

   Step. Norm: exact integer sums of shards, so no order matters. AdamW: one launch a unit, on the shard, then the unit's
   parameters are gathered (stages 1, 2); or the unit's gradient sums are gathered and every rank updates everything (stage 0). */
#include "zero/zero.h"
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>
#include "zero/kernels.h"

enum { POOL_DEPTH = 2, CHUNK = 1 << 18 };      /* unit buffers per size of unit; elements that pass through the host at a time */

enum unit_state { UNIT_FREE, UNIT_ACQUIRED, UNIT_REDUCING };

/* A buffer for a unit's gradients: the unit's own in stages 0 and 1, one of the pool's in stage 2. */
struct grad_buffer {
    char *ptr;
    size_t numel;
    zero_ticket ticket;     /* the last exchange that read it */
    int busy;
};

struct unit {
    enum unit_state state;
    struct grad_buffer *buffer;
    size_t micro;               /* micro-batches released since the last step */
    zero_ticket params_ticket;  /* the last gather that read this rank's piece of the parameters */
};

struct zero {
    zero_config config;
    zero_layout layout;
    int rank, ranks;
    size_t elem;                    /* bytes of a parameter or gradient */
    char *params, *grads;
    struct grad_buffer *buffers;
    size_t num_buffers;
    struct unit *units;
    size_t *pending;                /* units whose exchange is begun, oldest first, a ring of num_units */
    size_t pending_first, pending_count;
    float *master, *m, *v;
    float *slots[ZERO_MAX_SLOTS];
    float *unit_sum;                /* stage 0: a unit's gathered gradient sums */
    zero_ticket unit_sum_ticket;
    zero_tile *tiles;               /* device */
    size_t *unit_tiles;             /* [num_units + 1] */
    uint64_t *squares;              /* device: ZERO_SQUARE_PARTS wide integers */
    float *host;                    /* CHUNK elements */
    size_t micro, max_micro, last_micro;    /* micro-batches: in this step, the most in any step, in the last step */
    int merged;                     /* slot 0 holds the whole sum */
    uint64_t wire_start[ZERO_WIRE_KINDS], wire_step[ZERO_WIRE_KINDS];
    char error[768];
};

/* ---- small things ---------------------------------------------------------------------------------------------------- */

static int fail(zero *z, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));
static int fail(zero *z, int code, const char *format, ...)
{
    va_list args;
    const int n = snprintf(z->error, sizeof z->error, "rank %d of %d: ", z->rank, z->ranks);
    va_start(args, format);
    vsnprintf(z->error + n, sizeof z->error - (size_t)n, format, args);
    va_end(args);
    return code;
}

static int comm_check(zero *z, int e)
{
    if (e) snprintf(z->error, sizeof z->error, "%s", zero_comm_error(z->config.comm));
    return e;
}

static int device_check(zero *z, cudaError_t e, const char *what)
{
    return e == cudaSuccess ? ZERO_OK : fail(z, ZERO_ERR_DEVICE, "%s: %s", what, cudaGetErrorString(e));
}

const char *zero_error(const zero *z) { return z->error; }
const zero_layout *zero_get_layout(const zero *z) { return &z->layout; }
size_t zero_tensor_offset(const zero *z, size_t tensor) { return z->layout.tensor_offset[tensor]; }

static size_t unit_numel(const zero *z, size_t u) { return zero_layout_unit_numel(&z->layout, u); }
static size_t shard_numel(const zero *z, size_t u) { return zero_layout_shard_numel(&z->layout, u); }
static size_t shard_offset(const zero *z, size_t u) { return zero_layout_shard_offset(&z->layout, u); }
static char *unit_params(const zero *z, size_t u) { return z->params + z->layout.unit_offset[u] * z->elem; }

/* Optimizer state: which part of a unit this rank has, and where its state lies. */
static int whole_state(const zero *z) { return z->config.stage == 0; }
static size_t state_begin(const zero *z, size_t u) { return whole_state(z) ? 0 : (size_t)z->rank * shard_numel(z, u); }
static size_t state_numel(const zero *z, size_t u) { return whole_state(z) ? unit_numel(z, u) : shard_numel(z, u); }
static size_t state_offset(const zero *z, size_t u) { return whole_state(z) ? z->layout.unit_offset[u] : shard_offset(z, u); }
static size_t state_total(const zero *z) { return z->layout.numel_padded / (whole_state(z) ? 1 : (size_t)z->ranks); }
static size_t shard_total(const zero *z) { return z->layout.numel_padded / (size_t)z->ranks; }

static size_t largest_unit(const zero *z)
{
    size_t n = 0;
    for (size_t u = 0; u < z->layout.num_units; u++)
        if (unit_numel(z, u) > n) n = unit_numel(z, u);
    return n;
}

static int alloc(zero *z, enum zero_category c, size_t bytes, void *out)
{
    void *p = zero_memory_alloc(z->config.memory, c, bytes);
    memcpy(out, &p, sizeof p);
    return p ? ZERO_OK : fail(z, ZERO_ERR_MEMORY, "no memory for %zu bytes of %s: use a higher ZeRO stage, more ranks or a smaller model", bytes, zero_category_name(c));
}

/* ---- life ------------------------------------------------------------------------------------------------------------ */

/* Stage 2's pool: for each distinct size of unit, POOL_DEPTH buffers, or as many as there are units of that size. */
static size_t pool_bytes_and_buffers(zero *z, int create, int *e)
{
    size_t bytes = 0;
    for (size_t u = 0; u < z->layout.num_units; u++) {
        size_t same_before = 0;
        for (size_t w = 0; w < u; w++) same_before += unit_numel(z, w) == unit_numel(z, u);
        if (same_before >= POOL_DEPTH) continue;
        bytes += unit_numel(z, u) * z->elem;
        if (!create || *e) continue;
        struct grad_buffer *b = &z->buffers[z->num_buffers++];
        void *p = NULL;
        *e = comm_check(z, zero_comm_alloc(z->config.comm, z->config.memory, ZERO_MEM_UNIT_BUFFERS, &p, unit_numel(z, u) * z->elem));
        *b = (struct grad_buffer){ .ptr = p, .numel = unit_numel(z, u) };
    }
    return bytes;
}

static int create_grads(zero *z)
{
    const zero_layout *l = &z->layout;
    int e = ZERO_OK;
    z->buffers = calloc(l->num_units, sizeof *z->buffers);
    if (!z->buffers) return fail(z, ZERO_ERR_MEMORY, "out of host memory");
    if (z->config.stage >= 2) {
        pool_bytes_and_buffers(z, 1, &e);
        return e;
    }
    void *p = NULL;
    e = comm_check(z, zero_comm_alloc(z->config.comm, z->config.memory, ZERO_MEM_GRADS, &p, l->numel_padded * z->elem));
    z->grads = p;
    for (size_t u = 0; u < l->num_units && !e; u++) {
        z->buffers[u] = (struct grad_buffer){ .ptr = z->grads + l->unit_offset[u] * z->elem, .numel = unit_numel(z, u) };
        z->units[u].buffer = &z->buffers[u];
    }
    z->num_buffers = l->num_units;
    return e;
}

/* The tiles of AdamW: pieces of at most ZERO_TILE elements of one tensor, its padding included. */
static int create_tiles(zero *z)
{
    const zero_layout *l = &z->layout;
    size_t n = 0, capacity = state_total(z) / ZERO_TILE + l->num_tensors + l->num_units + 1;
    zero_tile *tiles = malloc(capacity * sizeof *tiles);
    z->unit_tiles = malloc((l->num_units + 1) * sizeof *z->unit_tiles);
    if (!tiles || !z->unit_tiles) {
        free(tiles);
        return fail(z, ZERO_ERR_MEMORY, "out of host memory");
    }
    for (size_t u = 0; u < l->num_units; u++) {
        const size_t begin = state_begin(z, u), end = begin + state_numel(z, u);
        z->unit_tiles[u] = n;
        for (size_t t = l->unit_first[u]; t < l->unit_first[u + 1]; t++) {
            const size_t next = t + 1 < l->unit_first[u + 1] ? l->tensor_offset[t + 1] : unit_numel(z, u);
            size_t from = l->tensor_offset[t] > begin ? l->tensor_offset[t] : begin;
            const size_t to = next < end ? next : end;
            for (; from < to; from += ZERO_TILE)
                tiles[n++] = (zero_tile){
                    .param = l->unit_offset[u] + from, .state = state_offset(z, u) + from - begin,
                    .grad = whole_state(z) && z->ranks > 1 ? from : shard_offset(z, u) + from - begin,
                    .count = (uint32_t)(to - from < ZERO_TILE ? to - from : ZERO_TILE), .decay = l->tensors[t].decay,
                };
        }
    }
    z->unit_tiles[l->num_units] = n;
    int e = alloc(z, ZERO_MEM_TRANSPORT, n * sizeof *tiles, &z->tiles);
    if (!e && n) e = device_check(z, cudaMemcpy(z->tiles, tiles, n * sizeof *tiles, cudaMemcpyHostToDevice), "copying the optimizer's tiles");
    free(tiles);
    return e;
}

static int create(zero *z)
{
    const zero_config *c = &z->config;
    const char *why = NULL;
    if (c->stage == 3) return fail(z, ZERO_ERR_ARG, "ZeRO stage 3 is not there yet: use stage 0, 1 or 2");
    if (c->stage < 0 || c->stage > 3) return fail(z, ZERO_ERR_ARG, "there is no ZeRO stage %d: use 0, 1 or 2", c->stage);
    if (zero_layout_create(&z->layout, c->tensors, c->num_tensors, (size_t)z->ranks, &why)) return fail(z, ZERO_ERR_ARG, "layout: %s", why);
    z->config.tensors = z->layout.tensors;
    const zero_layout *l = &z->layout;
    z->units = calloc(l->num_units, sizeof *z->units);
    z->pending = calloc(l->num_units, sizeof *z->pending);
    z->host = malloc(CHUNK * sizeof *z->host);
    if (!z->units || !z->pending || !z->host) return fail(z, ZERO_ERR_MEMORY, "out of host memory");
    void *p = NULL;
    int e = comm_check(z, zero_comm_alloc(c->comm, c->memory, ZERO_MEM_PARAMS, &p, l->numel_padded * z->elem));
    z->params = p;
    if (!e) e = create_grads(z);
    if (!e && whole_state(z) && z->ranks > 1) {
        e = comm_check(z, zero_comm_alloc(c->comm, c->memory, ZERO_MEM_UNIT_BUFFERS, &p, largest_unit(z) * sizeof(float)));
        z->unit_sum = p;
    }
    if (!e && c->dtype == ZERO_BF16) e = alloc(z, ZERO_MEM_MASTER, state_total(z) * sizeof(float), &z->master);
    if (!e) e = alloc(z, ZERO_MEM_M, state_total(z) * sizeof(float), &z->m);
    if (!e) e = alloc(z, ZERO_MEM_V, state_total(z) * sizeof(float), &z->v);
    if (!e) e = alloc(z, ZERO_MEM_TRANSPORT, ZERO_SQUARE_PARTS * ZERO_WIDE_WORDS * sizeof(uint64_t), &z->squares);
    return e ? e : create_tiles(z);
}

int zero_create(zero **out, const zero_config *config)
{
    zero *z = calloc(1, sizeof *z);
    *out = z;
    if (!z) return ZERO_ERR_MEMORY;
    z->config = *config;
    z->rank = zero_comm_rank(config->comm);
    z->ranks = zero_comm_size(config->comm);
    z->elem = zero_dtype_bytes(config->dtype);
    for (int k = 0; k < ZERO_WIRE_KINDS; k++) z->wire_start[k] = UINT64_MAX;    /* no step has begun */
    zero_comm_phase(config->comm, "creating the engine", 0);
    return create(z);
}

void zero_destroy(zero *z)
{
    if (!z) return;
    zero_memory *mem = z->config.memory;
    if (z->layout.num_units) {
        const size_t state_bytes = state_total(z) * sizeof(float);
        zero_comm_free(z->config.comm, z->params);
        zero_comm_free(z->config.comm, z->grads);
        for (size_t i = 0; i < z->num_buffers && z->config.stage >= 2; i++) zero_comm_free(z->config.comm, z->buffers[i].ptr);
        zero_comm_free(z->config.comm, z->unit_sum);
        zero_memory_free(mem, ZERO_MEM_MASTER, z->master, state_bytes);
        zero_memory_free(mem, ZERO_MEM_M, z->m, state_bytes);
        zero_memory_free(mem, ZERO_MEM_V, z->v, state_bytes);
        zero_memory_free(mem, ZERO_MEM_TRANSPORT, z->squares, ZERO_SQUARE_PARTS * ZERO_WIDE_WORDS * sizeof(uint64_t));
        if (z->unit_tiles) zero_memory_free(mem, ZERO_MEM_TRANSPORT, z->tiles, z->unit_tiles[z->layout.num_units] * sizeof *z->tiles);
        for (int s = 0; s < ZERO_MAX_SLOTS; s++) zero_memory_free(mem, ZERO_MEM_GRAD_SHARDS, z->slots[s], shard_total(z) * sizeof(float));
    }
    zero_layout_destroy(&z->layout);
    free(z->unit_tiles);
    free(z->buffers);
    free(z->units);
    free(z->pending);
    free(z->host);
    free(z);
}

/* ---- brackets --------------------------------------------------------------------------------------------------------- */

void *zero_acquire_params(zero *z, size_t unit)
{
    if (unit < z->layout.num_units) return unit_params(z, unit);
    fail(z, ZERO_ERR_ARG, "there is no unit %zu", unit);
    return NULL;
}

int zero_release_params(zero *z, size_t unit)
{
    return unit < z->layout.num_units ? ZERO_OK : fail(z, ZERO_ERR_ARG, "there is no unit %zu", unit);
}

static int ensure_slot(zero *z, int s)
{
    if (s >= ZERO_MAX_SLOTS) return fail(z, ZERO_ERR_ARG, "too many micro-batches in one step");
    return z->slots[s] ? ZERO_OK : alloc(z, ZERO_MEM_GRAD_SHARDS, shard_total(z) * sizeof(float), &z->slots[s]);
}

/* The partial sums of a unit in slots [first, first + count). */
static zero_slots slots_of(const zero *z, int first, int count, size_t offset)
{
    zero_slots s = { .count = count };
    for (int i = 0; i < count; i++) s.slot[i] = z->slots[first + i] + offset;
    return s;
}

/* Add the exchanged gradients of a unit to its sums: micro-step g merges with the partial sums of g's trailing ones. */
static int reduce_unit(zero *z, size_t u)
{
    const size_t g = z->units[u].micro, offset = shard_offset(z, u), n = shard_numel(z, u);
    const int live = __builtin_popcountll(g), merge = __builtin_ctzll(~g);
    const cudaStream_t stream = z->config.stream;
    struct grad_buffer *b = z->units[u].buffer;
    zero_comm *comm = z->config.comm;
    const void *const *pieces = NULL;
    zero_comm_phase(comm, "reduction of gradients", u);
    int e = ensure_slot(z, live - merge);
    if (z->config.reduction == ZERO_REDUCE_LIBRARY) {
        if (!e) e = ensure_slot(z, live);
        if (!e) e = comm_check(z, zero_comm_reduce_scatter(comm, b->ptr, z->config.dtype, n, z->slots[live] + offset, stream));
        if (!e && merge) e = device_check(z, zero_kernel_sum(z->slots[live - merge] + offset, NULL, 0, ZERO_F32, slots_of(z, live - merge, merge + 1, offset), n, stream), "ordered sum");
    } else {
        if (!e) e = comm_check(z, zero_comm_exchange_finish(comm, b->ticket, stream, &pieces));
        if (!e) e = device_check(z, zero_kernel_sum(z->slots[live - merge] + offset, pieces, z->ranks, z->config.dtype, slots_of(z, live - merge, merge, offset), n, stream), "ordered sum");
        if (!e) e = comm_check(z, zero_comm_exchange_done(comm, b->ticket, stream));
    }
    if (e) return e;
    z->units[u].micro++;
    z->units[u].state = UNIT_FREE;
    b->busy = 0;
    if (z->config.stage >= 2) z->units[u].buffer = NULL;
    return ZERO_OK;
}

static int reduce_oldest(zero *z)
{
    const size_t u = z->pending[z->pending_first];
    z->pending_first = (z->pending_first + 1) % z->layout.num_units;
    z->pending_count--;
    return reduce_unit(z, u);
}

/* A free buffer of the pool for this unit: of its size, the one whose last exchange is the oldest. */
static struct grad_buffer *free_buffer(zero *z, size_t numel)
{
    struct grad_buffer *best = NULL;
    for (size_t i = 0; i < z->num_buffers; i++) {
        struct grad_buffer *b = &z->buffers[i];
        if (b->numel == numel && !b->busy && (!best || b->ticket < best->ticket)) best = b;
    }
    return best;
}

static int acquire_grads(zero *z, size_t u)
{
    if (u >= z->layout.num_units) return fail(z, ZERO_ERR_ARG, "there is no unit %zu", u);
    struct unit *unit = &z->units[u];
    int e = ZERO_OK;
    if (unit->state != UNIT_FREE || unit->micro != z->micro)
        return fail(z, ZERO_ERR_ARG, "the gradients of unit %zu are acquired twice in one micro-batch: call zero_finish_backward after each", u);
    if (z->merged) return fail(z, ZERO_ERR_ARG, "a micro-batch after zero_grad_norm: call zero_step or zero_discard first");
    if (z->micro == 0 && z->pending_count == 0)
        for (int k = 0; k < ZERO_WIRE_KINDS; k++)       /* the first unit of a step starts the count of its wire bytes */
            if (z->wire_start[k] == UINT64_MAX) z->wire_start[k] = zero_comm_received(z->config.comm, (enum zero_wire)k);
    if (z->config.stage >= 2) {
        while (!e && !(unit->buffer = free_buffer(z, unit_numel(z, u)))) {
            if (!z->pending_count) return fail(z, ZERO_ERR_ARG, "more than %d units of one size hold gradients at a time: release them sooner", POOL_DEPTH);
            e = reduce_oldest(z);
        }
        if (e) return e;
    }
    struct grad_buffer *b = unit->buffer;
    zero_comm_phase(z->config.comm, "acquiring a gradient buffer", u);
    e = comm_check(z, zero_comm_reusable(z->config.comm, b->ticket));
    if (!e) e = device_check(z, cudaMemsetAsync(b->ptr, 0, b->numel * z->elem, z->config.stream), "zeroing gradients");
    if (e) return e;
    b->busy = 1;
    unit->state = UNIT_ACQUIRED;
    return ZERO_OK;
}

void *zero_acquire_grads(zero *z, size_t unit)
{
    return acquire_grads(z, unit) == ZERO_OK ? z->units[unit].buffer->ptr : NULL;
}

int zero_release_grads(zero *z, size_t u)
{
    if (u >= z->layout.num_units || z->units[u].state != UNIT_ACQUIRED) return fail(z, ZERO_ERR_ARG, "the gradients of unit %zu are released without being acquired", u);
    struct unit *unit = &z->units[u];
    unit->state = UNIT_REDUCING;
    if (z->config.reduction == ZERO_REDUCE_LIBRARY) return reduce_unit(z, u);
    zero_comm_phase(z->config.comm, "reduction of gradients", u);
    const int e = comm_check(z, zero_comm_exchange_begin(z->config.comm, unit->buffer->ptr, shard_numel(z, u) * z->elem, z->config.stream, &unit->buffer->ticket));
    if (e) return e;
    z->pending[(z->pending_first + z->pending_count++) % z->layout.num_units] = u;
    return z->pending_count >= ZERO_COMM_MAX_PENDING / 2 ? reduce_oldest(z) : ZERO_OK;
}

int zero_finish_backward(zero *z)
{
    int e = ZERO_OK;
    while (z->pending_count && !e) e = reduce_oldest(z);
    for (size_t u = 0; u < z->layout.num_units && !e; u++)
        if (z->units[u].micro != z->micro + 1) e = fail(z, ZERO_ERR_ARG, "the gradients of unit %zu were not released in this micro-batch", u);
    if (e) return e;
    z->micro++;
    if (z->micro > z->max_micro) z->max_micro = z->micro;
    return ZERO_OK;
}

/* ---- norm and step ---------------------------------------------------------------------------------------------------- */

/* Add what is left of the binary counter into slot 0. */
static int merge_slots(zero *z)
{
    if (z->pending_count || !z->micro) return fail(z, ZERO_ERR_ARG, "no finished micro-batch to step on: call zero_finish_backward first");
    if (z->merged) return ZERO_OK;
    const int live = __builtin_popcountll(z->micro);
    z->merged = 1;
    if (live == 1) return ZERO_OK;
    return device_check(z, zero_kernel_sum(z->slots[0], NULL, 0, ZERO_F32, slots_of(z, 0, live, 0), shard_total(z), z->config.stream), "sum of micro-batches");
}

/* Let carries run, so that every digit is below 2^32 and many wide integers can be added. */
static void wide_normalize(uint64_t *wide)
{
    for (int d = 0; d + 1 < ZERO_WIDE_DIGITS; d++) {
        wide[d + 1] += wide[d] >> 32;
        wide[d] &= 0xffffffff;
    }
}

/* The nearest double: the top 64 bits, with a sticky last bit for what is below, rounded once by the conversion. */
static double wide_to_double(uint64_t *wide)
{
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

int zero_grad_norm(zero *z, double *norm)
{
    uint64_t *parts = malloc(ZERO_SQUARE_PARTS * ZERO_WIDE_WORDS * sizeof *parts);
    uint64_t mine[ZERO_WIDE_WORDS] = { 0 }, *all = malloc((size_t)z->ranks * sizeof mine);
    int e = parts && all ? merge_slots(z) : fail(z, ZERO_ERR_MEMORY, "out of host memory");
    zero_comm_phase(z->config.comm, "gradient norm", 0);
    if (!e) e = device_check(z, zero_kernel_square_sum(z->squares, z->slots[0], shard_total(z), z->config.stream), "sum of squares");
    if (!e) e = device_check(z, cudaMemcpyAsync(parts, z->squares, ZERO_SQUARE_PARTS * sizeof mine, cudaMemcpyDeviceToHost, z->config.stream), "reading the norm");
    if (!e) e = device_check(z, cudaStreamSynchronize(z->config.stream), "sum of squares");
    if (!e) {
        for (int p = 0; p < ZERO_SQUARE_PARTS; p++)
            for (int d = 0; d < ZERO_WIDE_WORDS; d++) mine[d] += parts[p * ZERO_WIDE_WORDS + d];
        wide_normalize(mine);
        e = comm_check(z, zero_comm_allgather_host(z->config.comm, mine, sizeof mine, all));
    }
    if (!e) {
        memset(mine, 0, sizeof mine);
        for (int r = 0; r < z->ranks; r++)
            for (int d = 0; d < ZERO_WIDE_WORDS; d++) mine[d] += all[r * ZERO_WIDE_WORDS + d];
        const double squares = mine[ZERO_WIDE_NAN] ? NAN : mine[ZERO_WIDE_INF] ? INFINITY : wide_to_double(mine);
        *norm = sqrt(squares) / ((double)z->micro * (double)z->ranks);
    }
    free(parts);
    free(all);
    return e;
}

static int gather_unit_params(zero *z, size_t u)
{
    zero_comm_phase(z->config.comm, "gathering parameters", u);
    return comm_check(z, zero_comm_allgather_begin(z->config.comm, unit_params(z, u), shard_numel(z, u) * z->elem, ZERO_WIRE_PARAMS, z->config.stream, &z->units[u].params_ticket));
}

static int finish_gathers(zero *z, size_t *next, size_t end)
{
    int e = ZERO_OK;
    for (; *next < end && !e; ++*next) {
        zero_comm_phase(z->config.comm, "gathering parameters", *next);
        e = comm_check(z, zero_comm_allgather_finish(z->config.comm, z->units[*next].params_ticket, z->config.stream));
    }
    return e;
}

/* Stage 0: every rank needs the whole unit's gradient sums, in fp32 (rounding them would be another update). */
static int gather_unit_sum(zero *z, size_t u)
{
    const size_t bytes = shard_numel(z, u) * sizeof(float);
    zero_ticket *t = &z->unit_sum_ticket;
    zero_comm_phase(z->config.comm, "gathering gradient sums", u);
    int e = comm_check(z, zero_comm_reusable(z->config.comm, *t));
    if (!e) e = device_check(z, cudaMemcpyAsync((char *)z->unit_sum + (size_t)z->rank * bytes, z->slots[0] + shard_offset(z, u), bytes, cudaMemcpyDeviceToDevice, z->config.stream), "copying gradient sums");
    if (!e) e = comm_check(z, zero_comm_allgather_begin(z->config.comm, z->unit_sum, bytes, ZERO_WIRE_GRADS, z->config.stream, t));
    return e ? e : comm_check(z, zero_comm_allgather_finish(z->config.comm, *t, z->config.stream));
}

static void forget_gradients(zero *z)
{
    for (size_t u = 0; u < z->layout.num_units; u++) z->units[u].micro = 0;
    z->last_micro = z->micro;
    z->micro = 0;
    z->merged = 0;
    for (int k = 0; k < ZERO_WIRE_KINDS; k++) {
        z->wire_step[k] = zero_comm_received(z->config.comm, (enum zero_wire)k) - z->wire_start[k];
        z->wire_start[k] = UINT64_MAX;
    }
}

int zero_step(zero *z, const zero_adamw *a)
{
    int e = merge_slots(z);
    const zero_adamw_args args = {
        .lr = a->lr, .beta1 = a->beta1, .beta2 = a->beta2, .eps = a->eps, .weight_decay = a->weight_decay,
        .correction1 = (float)(1.0 - pow((double)a->beta1, (double)a->t)), .correction2 = (float)(1.0 - pow((double)a->beta2, (double)a->t)),
        .scale = a->grad_scale * (1.0f / (float)(z->micro * (size_t)z->ranks)),
    };
    size_t gathered = 0;
    for (size_t u = 0; u < z->layout.num_units && !e; u++) {
        const float *grads = z->slots[0];
        if (whole_state(z) && z->ranks > 1) {
            e = gather_unit_sum(z, u);
            grads = z->unit_sum;
        }
        if (!e) e = comm_check(z, zero_comm_reusable(z->config.comm, z->units[u].params_ticket));
        if (!e) e = device_check(z, zero_kernel_adamw(z->params, z->config.dtype, z->master, z->m, z->v, grads, z->tiles + z->unit_tiles[u],
                                                      z->unit_tiles[u + 1] - z->unit_tiles[u], args, z->config.stream), "AdamW");
        if (!whole_state(z)) {
            if (!e) e = gather_unit_params(z, u);
            if (!e && u - gathered >= ZERO_COMM_MAX_PENDING / 2) e = finish_gathers(z, &gathered, gathered + 1);
        }
    }
    if (!e && !whole_state(z)) e = finish_gathers(z, &gathered, z->layout.num_units);
    if (!e) forget_gradients(z);
    return e;
}

int zero_discard(zero *z)
{
    if (z->pending_count) return fail(z, ZERO_ERR_ARG, "zero_discard in the middle of a micro-batch: call zero_finish_backward first");
    forget_gradients(z);
    return ZERO_OK;
}

/* ---- reading and writing state ---------------------------------------------------------------------------------------- */

static uint16_t bf16_round(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    if ((u & 0x7fffffff) > 0x7f800000) return 0x7fff;
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static void bf16_widen(float *x, size_t n)      /* in place, from the end: n bf16 become n floats */
{
    for (size_t i = n; i-- > 0;) {
        uint16_t half;
        memcpy(&half, (char *)x + 2 * i, sizeof half);
        const uint32_t word = (uint32_t)half << 16;
        memcpy(x + i, &word, sizeof word);
    }
}

static int copy_in(zero *z, void *device, const void *host, size_t bytes)
{
    int e = device_check(z, cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, z->config.stream), "writing state");
    return e ? e : device_check(z, cudaStreamSynchronize(z->config.stream), "writing state");
}

static int copy_out(zero *z, void *host, const void *device, size_t bytes)
{
    int e = device_check(z, cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, z->config.stream), "reading state");
    return e ? e : device_check(z, cudaStreamSynchronize(z->config.stream), "reading state");
}

/* One chunk of a tensor for zero_fill: its values to the master weights, rounded to the parameters. */
static int fill_chunk(zero *z, zero_fill_fn fn, void *ctx, size_t u, size_t tensor, size_t tensor_begin, size_t unit_begin, size_t n)
{
    if (fn(ctx, tensor, tensor_begin, n, z->host)) return fail(z, ZERO_ERR_CALLBACK, "tensor %s could not be filled", z->layout.tensors[tensor].name);
    int e = ZERO_OK;
    if (z->master) {
        e = copy_in(z, z->master + state_offset(z, u) + unit_begin - state_begin(z, u), z->host, n * sizeof(float));
        uint16_t *half = (uint16_t *)z->host;
        for (size_t i = 0; i < n; i++) {        /* in place: element i is read before its half is written, and below it all are read */
            const uint16_t h = bf16_round(z->host[i]);
            memcpy(half + i, &h, sizeof h);
        }
    }
    return e ? e : copy_in(z, unit_params(z, u) + unit_begin * z->elem, z->host, n * z->elem);
}

int zero_fill(zero *z, zero_fill_fn fn, void *ctx)
{
    int e = device_check(z, cudaMemsetAsync(z->m, 0, state_total(z) * sizeof(float), z->config.stream), "clearing m");
    if (!e) e = device_check(z, cudaMemsetAsync(z->v, 0, state_total(z) * sizeof(float), z->config.stream), "clearing v");
    size_t gathered = 0;
    for (size_t u = 0; u < z->layout.num_units && !e; u++) {
        size_t cursor = 0;
        zero_segment s;
        e = comm_check(z, zero_comm_reusable(z->config.comm, z->units[u].params_ticket));
        while (!e && zero_layout_next_segment(&z->layout, u, state_begin(z, u), state_begin(z, u) + state_numel(z, u), &cursor, &s))
            for (size_t at = 0; at < s.count && !e; at += CHUNK)
                e = fill_chunk(z, fn, ctx, u, s.tensor, s.tensor_begin + at, s.unit_begin + at, s.count - at < CHUNK ? s.count - at : CHUNK);
        if (!e && !whole_state(z)) {
            e = gather_unit_params(z, u);
            if (!e) e = finish_gathers(z, &gathered, u + 1);
        }
    }
    return e;
}

int zero_visit(zero *z, enum zero_state state, zero_visit_fn fn, void *ctx)
{
    const int from_params = state == ZERO_STATE_PARAMS || (state == ZERO_STATE_MASTER && !z->master);
    const float *array = state == ZERO_STATE_MASTER ? z->master : state == ZERO_STATE_M ? z->m : z->v;
    int e = ZERO_OK;
    for (size_t u = 0; u < z->layout.num_units && !e; u++) {
        const size_t begin = (size_t)z->rank * shard_numel(z, u), end = begin + shard_numel(z, u);
        size_t cursor = 0;
        zero_segment s;
        while (!e && zero_layout_next_segment(&z->layout, u, begin, end, &cursor, &s))
            for (size_t at = 0; at < s.count && !e; at += CHUNK) {
                const size_t n = s.count - at < CHUNK ? s.count - at : CHUNK, in_unit = s.unit_begin + at;
                if (from_params) e = copy_out(z, z->host, unit_params(z, u) + in_unit * z->elem, n * z->elem);
                else e = copy_out(z, z->host, array + state_offset(z, u) + in_unit - state_begin(z, u), n * sizeof(float));
                if (!e && from_params && z->config.dtype == ZERO_BF16) bf16_widen(z->host, n);
                if (!e && fn(ctx, s.tensor, s.tensor_begin + at, n, z->host)) e = fail(z, ZERO_ERR_CALLBACK, "the visit of tensor %s was broken off", z->layout.tensors[s.tensor].name);
            }
    }
    return e;
}

/* A state's hash is the sum of the hashes of its 64-element blocks, each seeded with its logical index: no rank's share cuts
   a block, and sums have no order. */
struct hash_visit { const zero_layout *layout; uint64_t sum, salt; };

static int hash_blocks(void *ctx, size_t tensor, size_t begin, size_t count, const float *values)
{
    struct hash_visit *h = ctx;
    for (size_t at = 0; at < count; at += ZERO_ALIGN) {
        const size_t n = count - at < ZERO_ALIGN ? count - at : ZERO_ALIGN;
        h->sum += XXH3_64bits_withSeed(values + at, n * sizeof(float), (h->layout->tensors[tensor].logical + begin + at) * 4 + h->salt);
    }
    return 0;
}

/* Every rank holds all parameters: do they hold the same? */
static int check_replicas(zero *z)
{
    const size_t bytes = z->layout.numel_padded * z->elem, chunk = CHUNK * sizeof(float);
    uint64_t mine = 0, *all = malloc((size_t)z->ranks * sizeof *all);
    int e = all ? ZERO_OK : fail(z, ZERO_ERR_MEMORY, "out of host memory");
    for (size_t at = 0; at < bytes && !e; at += chunk) {
        const size_t n = bytes - at < chunk ? bytes - at : chunk;
        e = copy_out(z, z->host, z->params + at, n);
        if (!e) mine = XXH3_64bits_withSeed(z->host, n, mine);
    }
    if (!e) e = comm_check(z, zero_comm_allgather_host(z->config.comm, &mine, sizeof mine, all));
    for (int r = 0; r < z->ranks && !e; r++)
        if (all[r] != mine) e = fail(z, ZERO_ERR_COMM, "its parameters differ from those of rank %d: the replicas have drifted apart", r);
    free(all);
    return e;
}

int zero_hash(zero *z, uint64_t *params, uint64_t *optimizer)
{
    const enum zero_state states[] = { ZERO_STATE_PARAMS, ZERO_STATE_MASTER, ZERO_STATE_M, ZERO_STATE_V };
    uint64_t mine[2] = { 0, 0 }, *all = malloc((size_t)z->ranks * sizeof mine);
    int e = all ? ZERO_OK : fail(z, ZERO_ERR_MEMORY, "out of host memory");
    zero_comm_phase(z->config.comm, "hashing the state", 0);
    for (size_t s = 0; s < sizeof states / sizeof *states && !e; s++) {
        struct hash_visit h = { &z->layout, 0, s };
        e = zero_visit(z, states[s], hash_blocks, &h);
        mine[s > 0] += h.sum;
    }
    if (!e) e = comm_check(z, zero_comm_allgather_host(z->config.comm, mine, sizeof mine, all));
    *params = *optimizer = 0;
    for (int r = 0; r < z->ranks && !e; r++) {
        *params += all[2 * r];
        *optimizer += all[2 * r + 1];
    }
    free(all);
    return e ? e : check_replicas(z);
}

/* ---- reports ---------------------------------------------------------------------------------------------------------- */

static void add_row(zero_row *rows, size_t max, size_t *n, const char *what, uint64_t expected, uint64_t measured, const char *format, ...) __attribute__((format(printf, 7, 8)));
static void add_row(zero_row *rows, size_t max, size_t *n, const char *what, uint64_t expected, uint64_t measured, const char *format, ...)
{
    if (*n == max) return;
    zero_row *r = &rows[(*n)++];
    va_list args;
    va_start(args, format);
    vsnprintf(r->formula, sizeof r->formula, format, args);
    va_end(args);
    r->what = what;
    r->expected = expected;
    r->measured = measured;
}

size_t zero_report_memory(const zero *z, zero_row *rows, size_t max)
{
    const size_t psi = z->layout.numel_padded, state = state_total(z), b = z->elem, *peak = z->config.memory->peak;
    const char *over = whole_state(z) ? "" : "/N";
    const int library = z->config.reduction == ZERO_REDUCE_LIBRARY, stage = z->config.stage;
    size_t n = 0, slots = 0, unit_buffers = 0;
    /* the most partial sums ever live: floor(log2(G + 1)), one more for the library's unmerged result */
    while (((size_t)2 << slots) <= z->max_micro + 1) slots++;
    if (library && z->max_micro) slots = 64 - (size_t)__builtin_clzll(z->max_micro);
    add_row(rows, max, &n, zero_category_name(ZERO_MEM_PARAMS), psi * b, peak[ZERO_MEM_PARAMS], "%zu Psi", b);
    add_row(rows, max, &n, zero_category_name(ZERO_MEM_GRADS), stage >= 2 ? 0 : psi * b, peak[ZERO_MEM_GRADS], stage >= 2 ? "0: pooled, see unit buffers" : "%zu Psi", b);
    add_row(rows, max, &n, zero_category_name(ZERO_MEM_GRAD_SHARDS), slots * shard_total(z) * sizeof(float), peak[ZERO_MEM_GRAD_SHARDS],
            library ? "4 Psi/N x %zu = floor(log2 G) + 1" : "4 Psi/N x %zu = floor(log2(G + 1))", slots);
    add_row(rows, max, &n, zero_category_name(ZERO_MEM_MASTER), z->master ? state * 4 : 0, peak[ZERO_MEM_MASTER], z->master ? "4 Psi%s" : "0: fp32 parameters%s", z->master ? over : "");
    add_row(rows, max, &n, zero_category_name(ZERO_MEM_M), state * 4, peak[ZERO_MEM_M], "4 Psi%s", over);
    add_row(rows, max, &n, zero_category_name(ZERO_MEM_V), state * 4, peak[ZERO_MEM_V], "4 Psi%s", over);
    if (stage >= 2) unit_buffers = pool_bytes_and_buffers((zero *)z, 0, NULL);
    else if (z->unit_sum) unit_buffers = largest_unit(z) * sizeof(float);
    add_row(rows, max, &n, zero_category_name(ZERO_MEM_UNIT_BUFFERS), unit_buffers, peak[ZERO_MEM_UNIT_BUFFERS],
            stage >= 2 ? "%zu x (up to %d units of each size)" : z->unit_sum ? "%zu x largest unit" : "0", stage >= 2 ? b : sizeof(float), POOL_DEPTH);
    const size_t tables = z->unit_tiles[z->layout.num_units] * sizeof(zero_tile) + ZERO_SQUARE_PARTS * ZERO_WIDE_WORDS * sizeof(uint64_t);
    const size_t scratch = zero_comm_scratch_bytes(z->config.comm, library ? 0 : largest_unit(z) * b, largest_unit(z) * (z->unit_sum ? sizeof(float) : b),
                                                   library ? largest_unit(z) : 0);
    add_row(rows, max, &n, zero_category_name(ZERO_MEM_TRANSPORT), tables + scratch, peak[ZERO_MEM_TRANSPORT], "optimizer tiles, norm, transport's own");
    return n;
}

size_t zero_report_wire(const zero *z, zero_row *rows, size_t max)
{
    const size_t others = z->layout.numel_padded / (size_t)z->ranks * (size_t)(z->ranks - 1), b = z->config.reduction == ZERO_REDUCE_LIBRARY ? sizeof(float) : z->elem, g = z->last_micro;
    size_t n = 0;
    if (whole_state(z)) add_row(rows, max, &n, "gradients", others * (g * b + 4), z->wire_step[ZERO_WIRE_GRADS], "(%zu G + 4) Psi (N-1)/N, G = %zu", b, g);
    else add_row(rows, max, &n, "gradients", others * g * b, z->wire_step[ZERO_WIRE_GRADS], "%zu G Psi (N-1)/N, G = %zu", b, g);
    add_row(rows, max, &n, "parameters", whole_state(z) ? 0 : others * z->elem, z->wire_step[ZERO_WIRE_PARAMS], whole_state(z) ? "0" : "%zu Psi (N-1)/N", z->elem);
    add_row(rows, max, &n, "numbers", (uint64_t)(z->ranks - 1) * ZERO_WIDE_WORDS * sizeof(uint64_t), z->wire_step[ZERO_WIRE_SCALARS],
            "%zu (N-1) for the norm", ZERO_WIDE_WORDS * sizeof(uint64_t));
    return n;
}
