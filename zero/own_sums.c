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

float *zero_own_sum(const zero *z, size_t u, size_t slot) {
    return z->own_sums + slots(z) * z->layout.trained_offset[u] + slot * unit_numel(z, u);
}

// Device: pointers to the gradient buffers; to the `count` sums of each unit; and room for ranks * count pointers to
// what the ranks have sent.
static const void **buffer_pointer(const zero *z, size_t i) { return z->own_pointers + i; }
static const void **sum_pointers(const zero *z, size_t u) {
    return z->own_pointers + z->layout.num_units + u * z->own.count;
}
static const void **sent_pointers(const zero *z) { return sum_pointers(z, z->layout.num_units); }

static int create_pointers(zero *z) {
    const size_t units = z->layout.num_units, count = z->own.count, n = units * (1 + count);
    const void **table = calloc(n, sizeof *table);
    if (!table) return zero_fail(z, ZERO_ERR_MEMORY, "out of host memory");
    for (size_t i = 0; i < z->num_buffers; i++) table[i] = z->buffers[i].ptr;
    for (size_t u = 0; u < units; u++)
        for (size_t k = 0; k < count; k++) table[units + u * count + k] = zero_own_sum(z, u, k);
    int e = zero_alloc(z, ZERO_MEM_TRANSPORT, zero_cost_own_pointers(&z->own, (size_t)z->ranks, units),
                       &z->own_pointers);
    if (!e)
        e = zero_device_check(z, cudaMemcpy(z->own_pointers, table, n * sizeof *table, cudaMemcpyHostToDevice),
                              "copying a table of sums");
    free(table);
    return e;
}

int zero_own_sums_create(zero *z, int e) {
    const zero_layout *l = &z->layout;
    zero_comm *comm = z->grads_comm;
    if (!rank_order(z)) return e;
    e = zero_alloc_symmetric(z, e, comm, ZERO_MEM_GRADS, slots(z) * l->trained_offset[l->num_units] * sizeof(float),
                             &z->own_sums);
    if (z->own.count > 1)
        e = zero_alloc_symmetric(z, e, comm, ZERO_MEM_UNIT_BUFFERS,
                                 zero_layout_largest_trained_unit(l) * z->own.count * sizeof(float), &z->packed);
    return e ? e : create_pointers(z);
}

void zero_own_sums_destroy(zero *z) {
    if (!rank_order(z)) return;
    zero_comm_free(z->grads_comm, z->own_sums);
    zero_comm_free(z->grads_comm, z->packed);
    zero_accounting_free(z->config.accounting, ZERO_MEM_TRANSPORT, z->own_pointers,
                         zero_cost_own_pointers(&z->own, (size_t)z->ranks, z->layout.num_units));
    z->own_sums = z->packed = NULL;
    z->own_pointers = NULL;
}

int zero_own_sums_reusable(zero *z) {
    int e = ZERO_OK;
    for (size_t u = 0; u < z->layout.num_units && !e; u++)
        e = zero_comm_check(z, zero_comm_reusable(z->grads_comm, z->units[u].sent, z->config.stream));
    return e;
}

int zero_own_sums_poison(zero *z) {
    if (!z->config.settings.delay_seed || !z->own_sums) return ZERO_OK;
    const size_t numel = slots(z) * z->layout.trained_offset[z->layout.num_units];
    const int e = zero_own_sums_reusable(z);
    return e ? e : zero_poison(z, z->own_sums, numel * sizeof(float));
}

// Puts the sums of each shard side by side: [ranks][count][shard].
static int pack(zero *z, size_t u) {
    const cudaStream_t stream = z->config.stream;
    const int e = zero_comm_check(z, zero_comm_reusable(z->grads_comm, z->packed_ticket, stream));
    if (e) return e;
    return zero_device_check(z,
                             zero_kernel_group_sums(z->packed, sum_pointers(z, u), (int)z->own.count, 1, ZERO_F32,
                                                    unit_numel(z, u), shard_numel(z, u), stream),
                             "copying own sums");
}

int zero_own_sums_add(zero *z, size_t u) {
    const struct unit *unit = &z->units[u];
    const size_t g = unit->micro_batches, block = g / z->own.leaves, numel = unit_numel(z, u);
    const cudaStream_t stream = z->config.stream;
    zero_partial_sums sums = { 0 };
    for (size_t s = block; s < slots(z) && s - block < ZERO_MAX_PARTIAL_SUMS; s++)
        sums.sum[s - block] = zero_own_sum(z, u, s);
    int e = g ? ZERO_OK : zero_comm_check(z, zero_comm_reusable(z->grads_comm, unit->sent, stream));
    zero_time_begin(z, "accumulate", stream);
    if (!e)
        e = zero_device_check(z,
                              zero_kernel_push(sums, g % z->own.leaves,
                                               buffer_pointer(z, (size_t)(unit->buffer - z->buffers)), 1,
                                               z->config.settings.dtype, numel, stream),
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
