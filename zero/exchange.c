// exchange.c: the part of the reduce-scatter in which hosts, and shard groups, pass on sums to each other.
//
// Two levels, where the shard group's ranks are on H hosts of h contiguous ranks (cost.h: zero_cost_two_levels). What
// is for the ranks of number l on all hosts is first added on each host, by its rank of number l, which then exchanges
// the sums with those of number l on the others. A rank passes on to each other what a shard group does, below, so the
// tree is the same. H = 2, h = 2, the shard of rank 3, micro-step g = 0:
//
//     leaf 0 of rank 0 --|  host 0                host 1  |-- leaf 2 of rank 2
//     leaf 1 of rank 1 --+--> rank 1: 0+1 ---> rank 3 <---+-- leaf 3, its own          ((0+1)+(2+3))
//
// Several shard groups (MiCS, Zhang et al. 2022; PyTorch's HSDP) of S contiguous ranks. The sums of a shard are divided
// among the R groups that hold it. A group adds its chunks as far as they are aligned subtrees of the sum over all
// ranks: one if S is a power of two, else S / 2^k of 2^k leaves, 2^k the largest that divides S. An all-to-all over the
// replicate group gives each rank all groups' sums of its part of the shard, which it pushes. The optimizer all-gathers
// the parts once a step. So groups of any size leave the tree as it is.
#include "zero/internal.h"

static size_t pointer_bytes(const struct exchange *x) {
    return (size_t)zero_comm_size(x->comm) * x->sums.count * sizeof *x->pointers;
}

// `added` ranks add what they have before they pass on the sums: of up to numel elements in all.
static int create_exchange(zero *z, int e, struct exchange *x, zero_comm *comm, size_t added, size_t numel) {
    x->comm = comm;
    x->sums = zero_cost_group_sums(added * z->own.count, z->own.dtype);
    x->bytes = numel * x->sums.count * zero_dtype_bytes(x->sums.dtype);
    e = zero_alloc_symmetric(z, e, comm, ZERO_MEM_UNIT_BUFFERS, x->bytes, &x->buffer);
    return e ? e : zero_alloc(z, ZERO_MEM_TRANSPORT, pointer_bytes(x), &x->pointers);
}

static void destroy_exchange(zero *z, struct exchange *x) {
    if (!x->comm) return;
    zero_comm_free(x->comm, x->buffer);
    zero_accounting_free(z->config.accounting, ZERO_MEM_TRANSPORT, x->pointers, pointer_bytes(x));
    *x = (struct exchange){ 0 };
}

// Elements of a unit's shard that are sent at a time. Several sums of each element, and those of several groups, are
// laid out for the whole shard.
static int sends_whole_units(const zero *z) { return z->replicas > 1 || z->own.count > 1; }
static size_t part_numel(const zero *z, size_t u) {
    return sends_whole_units(z) ? shard_numel(z, u) : zero_pool_part(&z->pool, &z->layout, u);
}
static size_t largest_part(const zero *z) {
    return sends_whole_units(z) ? zero_layout_largest_trained_unit(&z->layout) / (size_t)z->ranks
                                : zero_pool_largest_part(&z->pool, &z->layout);
}

// Chooses between one and two levels.
static int create_levels(zero *z, int e) {
    zero_comm *comm = z->config.shard_comm, *host = NULL, *across = NULL;
    const zero_comm_shape shape = zero_comm_get_shape(comm);
    const size_t h = zero_cost_two_levels(&z->config.settings, z->config.micro_batches, &shape);
    z->grads_comm = comm;
    if (!h) return e;
    e = zero_agree(z, e);
    if (!e) e = zero_comm_check(z, zero_comm_levels(comm, &host, &across));
    if (e) return e;
    zero_comm_set_delay_seed(comm, z->config.settings.delay_seed);  // of the levels, too
    z->grads_comm = host;
    return create_exchange(z, e, &z->hosts, across, h, largest_part(z) * (size_t)z->ranks / h);
}

int zero_exchanges_create(zero *z, int e) {
    e = create_levels(z, e);
    if (z->replicas == 1) return e;
    return create_exchange(z, e, &z->groups, z->config.replicate_comm, (size_t)z->ranks,
                           zero_layout_replica_buffer(&z->layout, (size_t)z->replicas));
}

void zero_exchanges_destroy(zero *z) {
    destroy_exchange(z, &z->hosts);
    destroy_exchange(z, &z->groups);
}

int zero_exchanges_reusable(zero *z) {
    int e = ZERO_OK;
    if (z->hosts.comm) e = zero_comm_check(z, zero_comm_reusable(z->hosts.comm, z->hosts.ticket, z->config.stream));
    if (!e && z->groups.comm)
        e = zero_comm_check(z, zero_comm_reusable(z->groups.comm, z->groups.ticket, z->config.stream));
    return e;
}

size_t zero_sums_of_group(const zero *z) {
    if (!z->hosts.comm) return (size_t)z->ranks * z->own.count;
    return (size_t)zero_comm_size(z->hosts.comm) * z->hosts.sums.count;
}
enum zero_dtype zero_dtype_of_group(const zero *z) { return z->hosts.comm ? z->hosts.sums.dtype : z->own.dtype; }

// Passes on the sums in x->buffer, of `part` elements for each rank, and gets all ranks' sums of this rank's part:
// *chunks becomes a pointer to each of them, in the order of leaves.
static int exchange_sums(zero *z, struct exchange *x, size_t part, const void *const **chunks) {
    const size_t bytes = part * zero_dtype_bytes(x->sums.dtype);
    const int count = (int)x->sums.count;
    const cudaStream_t stream = z->reduce_stream;
    const void *const *sums = NULL;
    const size_t chunk = (size_t)count * bytes;
    int e = zero_comm_check(z, zero_comm_all_to_all_begin(x->comm, x->buffer, chunk, chunk, stream, &x->ticket));
    if (!e) e = zero_comm_check(z, zero_comm_all_to_all_finish(x->comm, x->ticket, stream, &sums));
    *chunks = count == 1 ? sums : x->pointers;
    if (e || count == 1) return e;
    return zero_device_check(
        z, zero_kernel_pointers(x->pointers, sums, count, bytes, zero_comm_size(x->comm) * count, stream),
        "table of sums");
}

zero_ticket *zero_sent_ticket(zero *z, size_t u) {
    return rank_order(z) ? &z->units[u].own->sent : &z->units[u].buffer->ticket;
}

size_t zero_sent_numel(const zero *z, size_t u, size_t at) {
    const size_t left = shard_numel(z, u) - at, most = part_numel(z, u);
    return left < most ? left : most;
}

int zero_send(zero *z, size_t u, size_t at, int host, cudaStream_t stream) {
    const size_t b = z->own.count * zero_dtype_bytes(z->own.dtype), shard = shard_numel(z, u) * b;
    char *buffer = !rank_order(z) ? z->units[u].buffer->ptr : z->packed ? z->packed : (char *)z->units[u].own->ptr;
    buffer += (size_t)(host * zero_comm_size(z->grads_comm)) * shard + at * b;
    return zero_comm_check(z, zero_comm_all_to_all_begin(z->grads_comm, buffer, shard, zero_sent_numel(z, u, at) * b,
                                                         stream, zero_sent_ticket(z, u)));
}

// The ranks of this host disagree: those of other hosts, which wait for its sums, learn it now, not by their time-out.
static void tell_other_hosts(zero *z, size_t bytes) {
    struct exchange *x = &z->hosts;
    const void *const *sums;
    zero_comm_disagree(x->comm);
    if (!zero_comm_all_to_all_begin(x->comm, x->buffer, bytes, bytes, z->reduce_stream, &x->ticket))
        (void)zero_comm_all_to_all_finish(x->comm, x->ticket, z->reduce_stream, &sums);
}

int zero_add_by_hosts(zero *z, size_t u, size_t at, const void *const **chunks) {
    struct exchange *x = &z->hosts;
    zero_ticket *ticket = zero_sent_ticket(z, u);
    const size_t n = zero_sent_numel(z, u, at), bytes = n * x->sums.count * zero_dtype_bytes(x->sums.dtype);
    const int h = zero_comm_size(z->grads_comm), hosts = zero_comm_size(x->comm);
    const cudaStream_t stream = z->reduce_stream;
    int e = zero_comm_check(z, zero_comm_reusable(x->comm, x->ticket, stream));
    for (int i = 0; i < hosts && !e; i++) {
        if (i) e = zero_send(z, u, at, i, stream);
        if (!e) e = zero_comm_check(z, zero_comm_all_to_all_finish(z->grads_comm, *ticket, stream, chunks));
        if (!e) e = zero_own_sums_sent(z, u, h, chunks);
        if (!e)
            e = zero_device_check(z,
                                  zero_kernel_group_sums((char *)x->buffer + (size_t)i * bytes, *chunks,
                                                         h * (int)z->own.count, (int)x->sums.leaves, z->own.dtype, n, n,
                                                         stream),
                                  "ordered sum");
        if (!e) e = zero_comm_check(z, zero_comm_all_to_all_done(z->grads_comm, *ticket, stream));
    }
    if (z->packed) z->packed_ticket = *ticket;
    if (e && zero_comm_disagrees(z->grads_comm)) tell_other_hosts(z, bytes);
    return e ? e : exchange_sums(z, x, n, chunks);
}

int zero_add_by_groups(zero *z, size_t u, const void *const **chunks) {
    struct exchange *x = &z->groups;
    const size_t part = zero_layout_replica_chunk(&z->layout, u, (size_t)z->replicas), count = zero_sums_of_group(z);
    const cudaStream_t stream = z->reduce_stream;
    zero_comm_phase(x->comm, "reduce-scatter over replicas", u);
    int e = zero_comm_check(z, zero_comm_reusable(x->comm, x->ticket, stream));
    if (!e)
        e = zero_device_check(z,
                              zero_kernel_group_sums(x->buffer, *chunks, (int)count, (int)(count / x->sums.count),
                                                     zero_dtype_of_group(z), shard_numel(z, u), part, stream),
                              "ordered sum");
    return e ? e : exchange_sums(z, x, part, chunks);
}
