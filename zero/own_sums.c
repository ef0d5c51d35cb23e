// own_sums.c: settings.order ZERO_ORDER_RANK: rank r of N has the micro-batches r G .. r G + G - 1 of a step, adds them
// up itself, and sends their sums once, where ZERO_ORDER_STEP sends each micro-batch.
//
// The sums are subtrees of the one tree over all micro-batches (gradients.c), so the bits are the same. G = count *
// leaves, leaves the largest power of two that divides G. So each block of `leaves` micro-batches is an aligned
// subtree, whatever r is: a binary counter adds it up, as gradients.c does over all ranks. G = 6, r = 1:
//
//     after j =   6    7       8           9               10                11
//     slots       6    (6+7)   (6+7) 8     (6+7) (8+9)     (6+7) (8+9) 10    (6+7) (8+9) (10+11)    sent: 3 sums of 2
//
// For G a power of two one sum is left, and goes to the owners of shards from where it is. Several are copied so that
// the parts of each shard lie side by side. The gradients of a micro-batch are in one of a few unit-sized buffers, as
// in stages 2 and 3, and are added on the caller's stream when they are released. The all-to-all follows the last one.
#include "zero/internal.h"
#include <stdlib.h>

static size_t slots(const zero *z) { return zero_cost_own_slots(z->config.micro_batches); }

// Device: pointers to the gradient buffers; to the `count` sums of each of the own buffers; and room for ranks * count
// pointers to what the ranks have sent.
static const void **buffer_pointer(const zero *z, size_t i) { return z->own_pointers + i; }
static const void **sum_pointers(const zero *z, const struct own_buffer *b) {
    return z->own_pointers + z->layout.num_units + (size_t)(b - z->own_buffers) * z->own.count;
}
static const void **sent_pointers(const zero *z) { return z->own_pointers + z->layout.num_units * (1 + z->own.count); }

static int create_pointers(zero *z) {
    const size_t units = z->layout.num_units, count = z->own.count, n = units * (1 + count);
    const void **table = calloc(n, sizeof *table);
    if (!table) return zero_fail(z, ZERO_ERR_MEMORY, "out of host memory");
    for (size_t i = 0; i < z->num_buffers; i++) table[i] = z->buffers[i].ptr;
    for (size_t i = 0; i < z->num_own_buffers; i++)
        for (size_t k = 0; k < count; k++)
            table[units + i * count + k] = z->own_buffers[i].ptr + k * z->own_buffers[i].numel;
    int e = zero_alloc(z, ZERO_MEM_TRANSPORT, zero_cost_own_pointers(&z->own, (size_t)z->ranks, units),
                       &z->own_pointers);
    if (!e)
        e = zero_device_check(z, cudaMemcpy(z->own_pointers, table, n * sizeof *table, cudaMemcpyHostToDevice),
                              "copying a table of sums");
    free(table);
    return e;
}

// A buffer for each unit, or those of the pool of gradients.
static int describe_buffers(zero *z) {
    const zero_layout *l = &z->layout;
    z->num_own_buffers = layer_order(z) ? z->pool.num_buffers : l->num_units;
    z->own_buffers = calloc(z->num_own_buffers + 1, sizeof *z->own_buffers);
    if (!z->own_buffers) return zero_fail(z, ZERO_ERR_MEMORY, "out of host memory");
    for (size_t i = 0; i < z->num_own_buffers; i++) {
        z->own_buffers[i].numel = layer_order(z) ? z->pool.buffers[i].numel : unit_frozen(z, i) ? 0 : unit_numel(z, i);
        if (!layer_order(z)) z->units[i].own = &z->own_buffers[i];
    }
    return ZERO_OK;
}

static size_t numel_of_buffers(const zero *z) {
    size_t numel = 0;
    for (size_t i = 0; i < z->num_own_buffers; i++) numel += z->own_buffers[i].numel;
    return numel;
}

int zero_own_sums_create(zero *z, int e) {
    zero_comm *comm = z->grads_comm;
    if (!rank_order(z)) return e;
    if (!e) e = describe_buffers(z);
    e = zero_alloc_symmetric(z, e, comm, ZERO_MEM_GRADS, slots(z) * numel_of_buffers(z) * sizeof(float), &z->own_sums);
    float *next = z->own_sums;
    for (size_t i = 0; i < z->num_own_buffers && !e; i++) {
        z->own_buffers[i].ptr = next;
        next += slots(z) * z->own_buffers[i].numel;
    }
    if (z->own.count > 1)
        e = zero_alloc_symmetric(z, e, comm, ZERO_MEM_UNIT_BUFFERS,
                                 zero_layout_largest_trained_unit(&z->layout) * z->own.count * sizeof(float),
                                 &z->packed);
    return e ? e : create_pointers(z);
}

void zero_own_sums_destroy(zero *z) {
    if (!rank_order(z)) return;
    zero_comm_free(z->grads_comm, z->own_sums);
    zero_comm_free(z->grads_comm, z->packed);
    zero_accounting_free(z->config.accounting, ZERO_MEM_TRANSPORT, z->own_pointers,
                         zero_cost_own_pointers(&z->own, (size_t)z->ranks, z->layout.num_units));
    free(z->own_buffers);
    z->own_sums = z->packed = NULL;
    z->own_pointers = NULL;
    z->own_buffers = NULL;
    z->num_own_buffers = 0;
}

int zero_own_sums_reusable(zero *z) {
    int e = ZERO_OK;
    for (size_t i = 0; i < z->num_own_buffers && !e; i++)
        e = zero_comm_check(z, zero_comm_reusable(z->grads_comm, z->own_buffers[i].sent, z->config.stream));
    return e;
}

int zero_own_sums_poison(zero *z) {
    if (!z->config.settings.delay_seed || !z->own_sums) return ZERO_OK;
    const int e = zero_own_sums_reusable(z);
    return e ? e : zero_poison(z, z->own_sums, slots(z) * numel_of_buffers(z) * sizeof(float));
}

int zero_own_sums_take(zero *z, size_t u) {
    struct own_buffer *best = z->units[u].own;
    for (size_t i = 0; i < z->num_own_buffers && layer_order(z) && !z->units[u].own; i++) {
        struct own_buffer *b = &z->own_buffers[i];
        if (zero_pool_fits(&z->pool, i, u) && !b->busy && (!best || b->sent < best->sent)) best = b;
    }
    if (!best) return 0;
    best->busy = 1;
    z->units[u].own = best;
    return 1;
}

// Puts the sums of each shard side by side: [ranks][count][shard].
static int pack(zero *z, size_t u) {
    const cudaStream_t stream = z->config.stream;
    const int e = zero_comm_check(z, zero_comm_reusable(z->grads_comm, z->packed_ticket, stream));
    if (e) return e;
    return zero_device_check(z,
                             zero_kernel_group_sums(z->packed, sum_pointers(z, z->units[u].own), (int)z->own.count, 1,
                                                    ZERO_F32, unit_numel(z, u), shard_numel(z, u), stream),
                             "copying own sums");
}

int zero_own_sums_add(zero *z, size_t u) {
    const struct unit *unit = &z->units[u];
    const struct own_buffer *own = unit->own;
    const size_t g = unit->micro_batches, block = g / z->own.leaves;
    const cudaStream_t stream = z->config.stream;
    zero_partial_sums sums = { 0 };
    for (size_t s = block; s < slots(z) && s - block < ZERO_MAX_PARTIAL_SUMS; s++)
        sums.sum[s - block] = own->ptr + s * own->numel;
    int e = g ? ZERO_OK : zero_comm_check(z, zero_comm_reusable(z->grads_comm, own->sent, stream));
    zero_time_begin(z, "accumulate", stream);
    if (!e)
        e = zero_device_check(z,
                              zero_kernel_push(sums, g % z->own.leaves,
                                               buffer_pointer(z, (size_t)(unit->buffer - z->buffers)), 1,
                                               z->config.settings.dtype, unit_numel(z, u), stream),
                              "sum of own micro-batches");
    if (!e && z->packed && g + 1 == z->config.micro_batches) e = pack(z, u);
    zero_time_end(z, "accumulate", stream);
    return e;
}

int zero_own_sums_sent(zero *z, size_t u, int ranks, const void *const **chunks) {
    const void **table = sent_pointers(z);
    const int n = ranks * (int)z->own.count;
    if (z->own.count == 1) return ZERO_OK;
    const int e = zero_device_check(
        z,
        zero_kernel_pointers(table, *chunks, (int)z->own.count, shard_numel(z, u) * sizeof(float), n, z->reduce_stream),
        "table of sums");
    *chunks = table;
    return e;
}
