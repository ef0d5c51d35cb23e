// comm_nccl.c: the NCCL transport.
//
// Streams. NCCL's calls only queue work, and so does this transport: on a stream of its own, which waits for the
// caller's stream where a collective needs the caller's data, and which the caller's waits for where it needs the
// collective's. Both are events; every wait is a line with the name of what it prevents (enum zero_nccl_wait), and
// tests leave out each in turn.
//
// Exchange. All-to-all by grouped sends and receives, into a scratch for the other ranks' pieces; this rank's own stays
// where it is. There is room for the pieces of one exchange: the next one waits, on the device, until they were read.
// The kernel finds the pieces through a table on the device, in which only this rank's own place changes. The few such
// places that there are (one for each buffer) are kept in pinned memory that is not written again, so that the host
// need not wait to change the table.
//
// The ranks must make the same calls in the same order. NCCL does not check that: ranks that differ exchange garbage,
// or hang. So each keeps a running hash of its calls, and sends it along with the numbers of zero_comm_allgather_host.
//
// The library, its calls and the watchdog are in watch_nccl.c, communicators in mesh_nccl.c.
#include "zero/comm/nccl/nccl_internal.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- the planner's formulas, which need no NCCL
// ------------------------------------------------------------------------

enum { SMALL = 512, OWN = 512 };

// Two tables; for several ranks numbers, on the host and on the device, and the other ranks' pieces. The library's sum
// is taken in place.
static size_t nccl_scratch_bytes(const zero_comm_shape *s, size_t all_to_all_bytes, size_t gather_bytes,
                                 size_t reduced_numel) {
    (void)gather_bytes;
    (void)reduced_numel;
    const size_t tables = (s->ranks + OWN) * sizeof(void *);
    return s->ranks == 1 ? tables : tables + 2 * s->ranks * SMALL + all_to_all_bytes / s->ranks * (s->ranks - 1);
}

static size_t nccl_window_scratch_bytes(const zero_comm_shape *s, size_t shard_bytes, size_t unit_bytes) {
    (void)s;
    (void)shard_bytes;
    (void)unit_bytes;
    return 0;
}

#ifndef ZERO_HAS_NCCL

#define MISSING                                                                                                  \
    "this program was built without NCCL (there was no nccl.h, or NCCL=0): install it (libnccl-dev of NVIDIA's " \
    "packages) and build anew, or use mpirun and --transport mpi"

static void missing_destroy(zero_comm *c) { free(c); }
static const zero_comm_ops ops = { .scratch_bytes = nccl_scratch_bytes,
                                   .window_scratch_bytes = nccl_window_scratch_bytes,
                                   .destroy = missing_destroy,
                                   .sums_narrow = 1 };

zero_comm_shape zero_comm_nccl_shape(size_t ranks) { return (zero_comm_shape){ &ops, ranks, 0, 0 }; }

int zero_comm_nccl_available(const char *library, char *words, size_t bytes) {
    (void)library;
    snprintf(words, bytes, "%s", MISSING);
    return 0;
}

int zero_comm_create_nccl(zero_comm **out, zero_bootstrap *boot, const zero_comm_nccl_config *config,
                          zero_accounting *memory) {
    (void)boot;
    (void)config;
    (void)memory;
    *out = calloc(1, sizeof **out);
    if (!*out) return ZERO_ERR_MEMORY;
    (*out)->ops = &ops;
    (*out)->size = 1;
    return zero_comm_fail(*out, ZERO_ERR_COMM, "%s", MISSING);
}

int zero_mesh_comms_nccl(const zero_mesh *m, zero_bootstrap *boot, const zero_comm_nccl_config *config,
                         zero_accounting *memory, zero_comm **data, zero_comm **shard, zero_comm **replicas, char *err,
                         size_t err_bytes) {
    (void)m;
    (void)boot;
    (void)config;
    (void)memory;
    *data = *shard = *replicas = NULL;
    snprintf(err, err_bytes, "%s", MISSING);
    return ZERO_ERR_COMM;
}

#else
#include "zero/kernels.h"

zero_comm_shape zero_comm_nccl_shape(size_t ranks) { return (zero_comm_shape){ &zero_nccl_ops, ranks, 0, 0 }; }
static zero_comm_shape nccl_shape(const zero_comm *c) { return zero_comm_nccl_shape((size_t)c->size); }

// ---- small things
// --------------------------------------------------------------------------------------------------------

static int wait_for(comm_nccl *m, enum zero_nccl_wait which, cudaStream_t stream, cudaEvent_t event) {
    return m->f->omit == which ? ZERO_OK : zero_nccl_device_check(m, cudaStreamWaitEvent(stream, event, 0));
}

// The transport's stream waits for what is on the caller's.
static int follow(comm_nccl *m, enum zero_nccl_wait which, cudaStream_t stream) {
    if (stream == m->f->stream) return ZERO_OK;
    const int e = zero_nccl_device_check(m, cudaEventRecord(m->f->order, stream));
    return e ? e : wait_for(m, which, m->f->stream, m->f->order);
}

// `stream` waits for an operation. Its place in the ring may have a later one by now, which is over no sooner.
static int wait_ended(comm_nccl *m, enum zero_nccl_wait which, cudaStream_t stream, zero_ticket ticket) {
    return stream == m->f->stream ? ZERO_OK : wait_for(m, which, stream, m->f->ops[ticket % NCCL_RING].ended);
}

static void note_call(comm_nccl *m, uint64_t kind, uint64_t where, uint64_t offset, uint64_t bytes) {
    const uint64_t words[4] = { kind, where, offset, bytes };
    m->calls++;
    for (int i = 0; i < 4; i++) m->hash = (m->hash ^ words[i]) * 0x9e3779b97f4a7c15u + (m->hash >> 29);
}

static void count_received(comm_nccl *m, enum zero_wire kind, size_t bytes) {
    m->base.received[kind] += (size_t)(m->base.size - 1) * bytes;
}

// ---- memory
// ----------------------------------------------------------------------------------------------------------------

// Is symmetric memory NCCL's own?
static int owns_memory(const comm_nccl *m) { return m->f->register_buffers && m->comm; }

// Zeroed device memory; *handle: its registration, where NCCL is to know it (NULL also where NCCL does not register:
// NCCL_LOCAL_REGISTER=0).
static char *alloc_device(comm_nccl *m, zero_accounting *mem, enum zero_memory_category category, size_t bytes,
                          void **handle) {
    *handle = NULL;
    if (!owns_memory(m)) return zero_accounting_alloc(mem, category, bytes);
    const size_t size = bytes ? bytes : 1;
    void *p = NULL;
    int e = zero_nccl_enter(m, "allocation of memory");
    if (!e) e = zero_nccl_leave(m, NULL, m->f->lib.MemAlloc(&p, size));
    if (!e) e = zero_nccl_device_check(m, cudaMemset(p, 0, size));
    if (!e) e = zero_nccl_device_check(m, cudaStreamSynchronize(NULL));
    if (!e) e = zero_nccl_enter(m, "registration of memory");
    if (!e) e = zero_nccl_leave(m, m->comm, m->f->lib.CommRegister(m->comm, p, size, handle));
    if (e) return NULL;
    zero_accounting_add(mem, category, bytes, 0);
    return p;
}

// ncclMemFree does not wait for what still uses the memory, as cudaFree does.
static int free_device(comm_nccl *m, zero_accounting *mem, enum zero_memory_category category, char *ptr, size_t bytes,
                       void *handle) {
    if (!owns_memory(m)) {
        zero_accounting_free(mem, category, ptr, bytes);
        return ZERO_OK;
    }
    zero_accounting_add(mem, category, 0, bytes);
    int e = zero_nccl_device_check(m, cudaDeviceSynchronize());
    if (!e && handle) {
        e = zero_nccl_enter(m, "end of a registration of memory");
        if (!e) e = zero_nccl_leave(m, m->comm, m->f->lib.CommDeregister(m->comm, handle));
    }
    if (!e) e = zero_nccl_enter(m, "release of memory");
    // e, aborted: NCCL may not be asked any more, and the process ends
    return e ? e : zero_nccl_leave(m, NULL, m->f->lib.MemFree(ptr));
}

static int nccl_alloc(zero_comm *c, struct zero_comm_buffer *b) {
    comm_nccl *m = nccl_self(c);
    b->ptr = alloc_device(m, b->mem, b->category, b->bytes, &b->handle);
    return b->ptr ? ZERO_OK : zero_nccl_healthy(m);
}

static int nccl_free(zero_comm *c, struct zero_comm_buffer *b) {
    return free_device(nccl_self(c), b->mem, b->category, b->ptr, b->bytes, b->handle);
}

// Pinned host memory, in the books.
static int alloc_pinned(comm_nccl *m, size_t bytes, void *out) {
    void *p = NULL;
    if (cudaMallocHost(&p, bytes) != cudaSuccess) {
        (void)cudaGetLastError();
        return zero_comm_fail(&m->base, ZERO_ERR_MEMORY, "no pinned host memory for %zu bytes of tables", bytes);
    }
    memset(p, 0, bytes);
    memcpy(out, &p, sizeof p);
    zero_accounting_add(m->memory, ZERO_MEM_TRANSPORT, bytes, 0);
    return ZERO_OK;
}

int zero_nccl_setup(comm_nccl *m) {
    _Static_assert((int)SMALL == (int)NCCL_SMALL && (int)OWN == (int)NCCL_OWN, "the planner has other sizes");
    const size_t size = (size_t)m->base.size;
    m->base.stream = m->f->stream;
    int e = alloc_pinned(m, NCCL_OWN * sizeof *m->own, &m->own);
    if (e) return e;
    m->table = zero_accounting_alloc(m->memory, ZERO_MEM_TRANSPORT, size * sizeof *m->table);
    if (size > 1 && m->table) {
        e = alloc_pinned(m, size * NCCL_SMALL, &m->small);
        m->small_device = zero_accounting_alloc(m->memory, ZERO_MEM_TRANSPORT, size * NCCL_SMALL);
    }
    if (e) return e;
    return m->table && (size == 1 || m->small_device)
               ? ZERO_OK
               : zero_comm_fail(&m->base, ZERO_ERR_MEMORY, "no memory for the tables of %zu ranks", size);
}

static int free_scratch(comm_nccl *m) {
    const int e = m->scratch ? free_device(m, m->memory, ZERO_MEM_TRANSPORT, m->scratch,
                                           (size_t)(m->base.size - 1) * m->stride, m->scratch_handle)
                             : ZERO_OK;
    m->scratch = NULL;
    m->stride = 0;
    return e;
}

static void nccl_destroy(zero_comm *c) {
    comm_nccl *m = nccl_self(c);
    struct nccl_context *f = m->f;
    const size_t size = (size_t)c->size;
    if (f && f->stream) (void)cudaStreamSynchronize(f->stream);  // ends: if need be the watchdog sees to it
    zero_comm_free_all(c);
    (void)free_scratch(m);
    zero_accounting_free(m->memory, ZERO_MEM_TRANSPORT, m->table, size * sizeof *m->table);
    zero_accounting_free(m->memory, ZERO_MEM_TRANSPORT, m->small_device, size * NCCL_SMALL);
    if (m->own) zero_accounting_add(m->memory, ZERO_MEM_TRANSPORT, 0, NCCL_OWN * sizeof *m->own);
    if (m->small) zero_accounting_add(m->memory, ZERO_MEM_TRANSPORT, 0, size * NCCL_SMALL);
    (void)cudaFreeHost(m->own);
    (void)cudaFreeHost(m->small);
    if (m->comm && !zero_nccl_enter(m, "end of the communicator") &&
        !zero_nccl_leave(m, m->comm, f->lib.CommFinalize(m->comm)) && !zero_nccl_enter(m, "end of the communicator")) {
        for (int i = 0; i < f->num_comms; i++)
            if (f->comms[i] == m->comm) f->comms[i--] = f->comms[--f->num_comms];
        (void)zero_nccl_leave(m, NULL, f->lib.CommDestroy(m->comm));
    }
    zero_nccl_context_release(f);
    free(c->names);
    free(m);
}

// ---- exchange and all-gather
// ------------------------------------------------------------------------------------------------

// Room for the others' pieces. It grows in the first micro-batch, and then no more.
static int grow_scratch(comm_nccl *m, size_t chunk_bytes) {
    const size_t size = (size_t)m->base.size, rank = (size_t)m->base.rank;
    if (size == 1 || chunk_bytes <= m->stride) return ZERO_OK;
    int e = zero_nccl_device_check(m, cudaDeviceSynchronize());
    if (!e) e = zero_nccl_healthy(m);
    if (!e) e = free_scratch(m);
    if (e) return e;
    m->own_now = NULL;
    m->scratch = alloc_device(m, m->memory, ZERO_MEM_TRANSPORT, (size - 1) * chunk_bytes, &m->scratch_handle);
    const char **places = calloc(size, sizeof *places);
    if (!m->scratch || !places) {
        free(places);
        return zero_comm_fail(
            &m->base, ZERO_ERR_MEMORY,
            "no memory for %zu bytes of the other ranks' gradients: use more ranks or a smaller model",
            (size - 1) * chunk_bytes);
    }
    m->stride = chunk_bytes;
    // set_own does its own
    for (size_t r = 0; r < size; r++) places[r] = m->scratch + (r < rank || r == 0 ? r : r - 1) * chunk_bytes;
    e = zero_nccl_device_check(
        m, cudaMemcpyAsync(m->table, places, size * sizeof *places, cudaMemcpyHostToDevice, m->f->stream));
    if (!e) e = zero_nccl_device_check(m, cudaStreamSynchronize(m->f->stream));
    free(places);
    return e;
}

// This rank's own place in the table; on the transport's stream.
static int set_own(comm_nccl *m, const void *own) {
    if (m->own_now == own) return ZERO_OK;
    int i = 0;
    while (i < m->num_own && m->own[i] != own) i++;
    if (i == NCCL_OWN) {  // somebody uses ever new buffers
        const int e = zero_nccl_device_check(m, cudaStreamSynchronize(m->f->stream));
        if (e) return e;
        m->num_own = i = 0;
    }
    if (i == m->num_own) m->own[m->num_own++] = own;
    m->own_now = own;
    return zero_nccl_device_check(
        m, cudaMemcpyAsync(m->table + m->base.rank, &m->own[i], sizeof *m->own, cudaMemcpyHostToDevice, m->f->stream));
}

static int ok(ncclResult_t r) { return r == ncclSuccess || r == ncclInProgress; }

static int all_to_all(comm_nccl *m, char *buf, size_t bytes) {
    const struct nccl_library *lib = &m->f->lib;
    const cudaStream_t stream = m->f->stream;
    const int rank = m->base.rank;
    if (!m->comm || !bytes) return ZERO_OK;
    const int e = zero_nccl_enter(m, "exchange");
    if (e) return e;
    ncclResult_t r = lib->GroupStart();
    for (int peer = 0; peer < m->base.size && ok(r); peer++) {
        if (peer == rank) continue;
        r = lib->Send(buf + (size_t)peer * bytes, bytes, ncclUint8, peer, m->comm, stream);
        if (ok(r))
            r = lib->Recv(m->scratch + (size_t)(peer < rank ? peer : peer - 1) * m->stride, bytes, ncclUint8, peer,
                          m->comm, stream);
    }
    const ncclResult_t end = lib->GroupEnd();
    return zero_nccl_leave(m, m->comm, ok(r) ? end : r);
}

// out = everybody's `mine`.
static int gather(comm_nccl *m, const void *mine, void *out, size_t bytes, const char *what) {
    if (!m->comm || !bytes) return ZERO_OK;
    const int e = zero_nccl_enter(m, what);
    return e ? e : zero_nccl_leave(m, m->comm, m->f->lib.AllGather(mine, out, bytes, ncclUint8, m->comm, m->f->stream));
}

static int find_buffer_or_fail(comm_nccl *m, const char *what, const char *buf, size_t chunk_bytes) {
    const int b = zero_comm_find_buffer(&m->base, buf, chunk_bytes * (size_t)m->base.size);
    if (b < 0) zero_comm_fail(&m->base, ZERO_ERR_ARG, "%s on memory that is not from zero_comm_alloc", what);
    return b;
}

static int nccl_all_to_all_begin(zero_comm *c, void *buf, size_t chunk_bytes, cudaStream_t stream,
                                 zero_ticket *ticket) {
    comm_nccl *m = nccl_self(c);
    struct nccl_op *op = NULL;
    const int b = find_buffer_or_fail(m, "exchange", buf, chunk_bytes);
    if (b < 0) return ZERO_ERR_ARG;
    if (m->exchange)
        return zero_comm_fail(c, ZERO_ERR_ARG,
                              "there is room for the pieces of one exchange: the last one must be done "
                              "(zero_comm_all_to_all_done) before the next begins");
    note_call(m, 1, (uint64_t)b, (uint64_t)((char *)buf - m->base.buffers[b].ptr), chunk_bytes);
    int e = grow_scratch(m, chunk_bytes);
    if (!e) e = follow(m, ZERO_NCCL_WAIT_ALL_TO_ALL, stream);
    if (!e && m->last_read && m->f->ops[m->last_read % NCCL_RING].ticket == m->last_read)
        e = wait_for(m, ZERO_NCCL_WAIT_PIECES, m->f->stream, m->f->ops[m->last_read % NCCL_RING].read);
    if (!e) e = zero_nccl_op_begin(m, "exchange", &op);
    if (!e) e = set_own(m, (char *)buf + (size_t)c->rank * chunk_bytes);
    if (!e) e = all_to_all(m, buf, chunk_bytes);
    if (!e) e = zero_nccl_op_end(m, op);
    if (e) return e;
    count_received(m, ZERO_WIRE_GRADS, chunk_bytes);
    *ticket = m->exchange = op->ticket;
    return ZERO_OK;
}

static int nccl_all_to_all_finish(zero_comm *c, zero_ticket ticket, cudaStream_t stream, const void *const **pieces) {
    comm_nccl *m = nccl_self(c);
    if (!ticket || ticket != m->exchange)
        return zero_comm_fail(c, ZERO_ERR_ARG, "an exchange is finished that is not the last one that was begun");
    *pieces = m->table;
    const int e = wait_ended(m, ZERO_NCCL_WAIT_ALL_TO_ALL_DONE, stream, ticket);
    return e ? e : zero_nccl_healthy(m);
}

static int nccl_all_to_all_done(zero_comm *c, zero_ticket ticket, cudaStream_t stream) {
    comm_nccl *m = nccl_self(c);
    struct nccl_op *op = &m->f->ops[ticket % NCCL_RING];
    if (!ticket || ticket != m->exchange)
        return zero_comm_fail(c, ZERO_ERR_ARG, "an exchange is done that is not the last one that was begun");
    const int e = zero_nccl_device_check(m, cudaEventRecord(op->read, stream));
    if (e) return e;
    op->was_read = 1;
    m->last_read = stream == m->f->stream ? 0 : ticket;
    m->exchange = 0;
    return zero_nccl_healthy(m);
}

static int nccl_reusable(zero_comm *c, zero_ticket ticket, cudaStream_t stream) {
    comm_nccl *m = nccl_self(c);
    const struct nccl_op *op = &m->f->ops[ticket % NCCL_RING];
    const cudaEvent_t event = op->ticket == ticket && op->was_read ? op->read : op->ended;
    const int e = wait_for(m, ZERO_NCCL_WAIT_REUSABLE, stream, event);
    return e ? e : zero_nccl_healthy(m);
}

static int nccl_allgather_begin(zero_comm *c, void *buf, size_t chunk_bytes, enum zero_wire kind, cudaStream_t stream,
                                zero_ticket *ticket) {
    comm_nccl *m = nccl_self(c);
    struct nccl_op *op = NULL;
    const int b = find_buffer_or_fail(m, "all-gather", buf, chunk_bytes);
    if (b < 0) return ZERO_ERR_ARG;
    note_call(m, 2, (uint64_t)b, (uint64_t)((char *)buf - m->base.buffers[b].ptr), chunk_bytes);
    int e = follow(m, ZERO_NCCL_WAIT_GATHER, stream);
    if (!e) e = zero_nccl_op_begin(m, "all-gather", &op);
    if (!e) e = gather(m, (char *)buf + (size_t)c->rank * chunk_bytes, buf, chunk_bytes, "all-gather");
    if (!e) e = zero_nccl_op_end(m, op);
    if (e) return e;
    count_received(m, kind, chunk_bytes);
    *ticket = op->ticket;
    return ZERO_OK;
}

static int nccl_allgather_finish(zero_comm *c, zero_ticket ticket, cudaStream_t stream) {
    comm_nccl *m = nccl_self(c);
    if (!ticket || ticket > m->f->queued)
        return zero_comm_fail(c, ZERO_ERR_ARG, "an all-gather is finished that was not begun");
    const int e = wait_ended(m, ZERO_NCCL_WAIT_GATHER_DONE, stream, ticket);
    return e ? e : zero_nccl_healthy(m);
}

// In place, so that bf16, which NCCL sums in bf16, needs no room to be widened from; buf is lost.
static int nccl_reduce_scatter(zero_comm *c, const void *buf, enum zero_dtype dtype, size_t chunk_numel, float *out,
                               cudaStream_t stream, zero_ticket *ticket) {
    comm_nccl *m = nccl_self(c);
    const zero_partial_sums none = { .count = 0 };
    const size_t bytes = chunk_numel * zero_dtype_bytes(dtype);
    char *own = (char *)(uintptr_t)buf + (size_t)c->rank * bytes;
    struct nccl_op *op = NULL;
    if (stream != m->f->stream)
        return zero_comm_fail(c, ZERO_ERR_ARG, "the library's reduce-scatter works on zero_comm_stream()");
    if (m->exchange) return zero_comm_fail(c, ZERO_ERR_ARG, "a reduce-scatter while an exchange is not done");
    note_call(m, 3, dtype, 0, bytes);
    int e = zero_nccl_op_begin(m, "reduce-scatter", &op);
    if (!e && m->comm && bytes && !(e = zero_nccl_enter(m, "reduce-scatter")))
        e = zero_nccl_leave(m, m->comm,
                            m->f->lib.ReduceScatter(buf, own, chunk_numel,
                                                    dtype == ZERO_BF16 ? ncclBfloat16 : ncclFloat32, ncclSum, m->comm,
                                                    stream));
    if (!e) e = set_own(m, own);
    if (!e)
        e = zero_nccl_device_check(
            m, zero_kernel_sum(out, (const void *const *)(m->table + c->rank), 1, dtype, none, chunk_numel, stream));
    if (!e) e = zero_nccl_op_end(m, op);
    if (e) return e;
    count_received(m, ZERO_WIRE_GRADS, bytes);
    *ticket = op->ticket;
    return ZERO_OK;
}

// ---- the host's
// -----------------------------------------------------------------------------------------------------------------

static int nccl_synchronize(zero_comm *c, cudaStream_t stream) {
    comm_nccl *m = nccl_self(c);
    const cudaError_t device = cudaStreamSynchronize(stream);
    const int e = zero_nccl_healthy(m);  // says more than an error of the device that an abort has left
    return e ? e : zero_nccl_device_check(m, device);
}

// What goes along with numbers: which calls a rank has made. 16 bytes that are not in the books of the wire, as a
// message's header is not.
struct calls {
    uint64_t calls, hash;
};

static int same_calls(comm_nccl *m) {
    struct calls mine, theirs;
    memcpy(&mine, m->small + (size_t)m->base.rank * NCCL_SMALL, sizeof mine);
    for (int r = 0; r < m->base.size; r++) {
        memcpy(&theirs, m->small + (size_t)r * NCCL_SMALL, sizeof theirs);
        if (memcmp(&mine, &theirs, sizeof mine))
            return zero_comm_fail(&m->base, ZERO_ERR_COMM,
                                  "the ranks disagree about what they have called: this rank %llu collectives, rank %d "
                                  "%llu, or others, or on other buffers, "
                                  "or with other sizes: all must be trained in the same way",
                                  (unsigned long long)mine.calls, m->base.names[r], (unsigned long long)theirs.calls);
    }
    return ZERO_OK;
}

static int nccl_allgather_host(zero_comm *c, const void *mine, size_t bytes, void *all) {
    comm_nccl *m = nccl_self(c);
    const cudaStream_t stream = m->f->stream;
    const size_t size = (size_t)c->size, rank = (size_t)c->rank, most = NCCL_SMALL - sizeof(struct calls);
    int e = zero_nccl_healthy(m);
    if (e) return e;
    memcpy((char *)all + rank * bytes, mine, bytes);
    note_call(m, 4, 0, 0, bytes);
    for (size_t at = 0; at < bytes && size > 1 && !e; at += most) {
        const size_t n = bytes - at < most ? bytes - at : most;
        const struct calls calls = { m->calls, m->hash };
        char *slot = m->small + rank * NCCL_SMALL, *on_device = m->small_device + rank * NCCL_SMALL;
        struct nccl_op *op = NULL;
        memcpy(slot, &calls, sizeof calls);
        memcpy(slot + sizeof calls, (const char *)mine + at, n);
        e = zero_nccl_op_begin(m, "all-gather of numbers", &op);
        if (!e)
            e = zero_nccl_device_check(m, cudaMemcpyAsync(on_device, slot, NCCL_SMALL, cudaMemcpyHostToDevice, stream));
        if (!e) e = gather(m, on_device, m->small_device, NCCL_SMALL, "all-gather of numbers");
        if (!e)
            e = zero_nccl_device_check(
                m, cudaMemcpyAsync(m->small, m->small_device, size * NCCL_SMALL, cudaMemcpyDeviceToHost, stream));
        if (!e) e = zero_nccl_op_end(m, op);
        if (!e) e = nccl_synchronize(c, stream);
        if (!e) e = same_calls(m);
        for (size_t r = 0; r < size && !e; r++)
            if (r != rank) memcpy((char *)all + r * bytes + at, m->small + r * NCCL_SMALL + sizeof calls, n);
        if (!e) count_received(m, ZERO_WIRE_SCALARS, n);
    }
    return e;
}

// ---- windows: a fetch is an all-gather of a piece of the shards
// --------------------------------------------------------------------

struct window {
    struct zero_window base;
    void *handle;
    zero_ticket begun;                             // fetches so far; a fetch's ticket is its number
    zero_ticket fetches[ZERO_WINDOW_MAX_GATHERS];  // operations
    int pending[ZERO_WINDOW_MAX_GATHERS];
};

static int nccl_window_create(zero_comm *c, zero_accounting *mem, enum zero_memory_category category, size_t bytes,
                              zero_window **out) {
    comm_nccl *m = nccl_self(c);
    struct window *w = calloc(1, sizeof *w);
    *out = (zero_window *)w;
    if (!w) return zero_comm_fail(c, ZERO_ERR_MEMORY, "out of host memory");
    w->base = (struct zero_window){ NULL, bytes, mem, category };
    w->base.shard = alloc_device(m, mem, category, bytes, &w->handle);
    if (w->base.shard) return ZERO_OK;
    const int e = zero_nccl_healthy(m);
    return e ? e
             : zero_comm_fail(c, ZERO_ERR_MEMORY, "no memory for %zu bytes of %s: use more ranks or a smaller model",
                              bytes, zero_memory_category_name(category));
}

static void nccl_window_destroy(zero_comm *c, zero_window *base) {
    struct window *w = (struct window *)base;
    if (base->shard) (void)free_device(nccl_self(c), base->memory, base->category, base->shard, base->bytes, w->handle);
    free(w);
}

static int nccl_window_open(zero_comm *c, zero_window *base, cudaStream_t stream) {
    (void)base;
    comm_nccl *m = nccl_self(c);
    const int e = follow(m, ZERO_NCCL_WAIT_OPEN, stream);
    return e ? e : zero_nccl_healthy(m);
}

static int nccl_window_close(zero_comm *c, zero_window *base, cudaStream_t stream) {
    comm_nccl *m = nccl_self(c);
    const struct window *w = (const struct window *)base;
    for (int i = 0; i < ZERO_WINDOW_MAX_GATHERS; i++)
        if (w->pending[i])
            return zero_comm_fail(c, ZERO_ERR_ARG, "a window is concealed while a fetch from it is pending");
    const int e = w->begun ? wait_ended(m, ZERO_NCCL_WAIT_CLOSE, stream, w->fetches[w->begun % ZERO_WINDOW_MAX_GATHERS])
                           : ZERO_OK;
    return e ? e : zero_nccl_healthy(m);
}

static int nccl_window_gather_begin(zero_comm *c, zero_window *base, size_t offset, size_t chunk_bytes, void *out,
                                    cudaStream_t stream, zero_ticket *ticket) {
    comm_nccl *m = nccl_self(c);
    struct window *w = (struct window *)base;
    const size_t place = (w->begun + 1) % ZERO_WINDOW_MAX_GATHERS;
    struct nccl_op *op = NULL;
    if (chunk_bytes > base->bytes || offset > base->bytes - chunk_bytes)
        return zero_comm_fail(c, ZERO_ERR_ARG, "a fetch leaves the window");
    if (w->pending[place])
        return zero_comm_fail(c, ZERO_ERR_ARG, "more than %d fetches pending", ZERO_WINDOW_MAX_GATHERS);
    note_call(m, 5, 0, offset, chunk_bytes);
    int e = follow(m, ZERO_NCCL_WAIT_UNSHARD, stream);
    if (!e) e = zero_nccl_op_begin(m, "fetch", &op);
    if (!e && !m->comm)
        e = zero_nccl_device_check(
            m, cudaMemcpyAsync(out, base->shard + offset, chunk_bytes, cudaMemcpyDeviceToDevice, m->f->stream));
    if (!e) e = gather(m, base->shard + offset, out, chunk_bytes, "fetch");
    if (!e) e = zero_nccl_op_end(m, op);
    if (e) return e;
    count_received(m, ZERO_WIRE_PARAMS, chunk_bytes);
    *ticket = ++w->begun;
    w->fetches[place] = op->ticket;
    w->pending[place] = 1;
    return ZERO_OK;
}

static int nccl_window_gather_finish(zero_comm *c, zero_window *base, zero_ticket ticket, cudaStream_t stream) {
    comm_nccl *m = nccl_self(c);
    struct window *w = (struct window *)base;
    const size_t place = ticket % ZERO_WINDOW_MAX_GATHERS;
    if (!w->pending[place]) return zero_comm_fail(c, ZERO_ERR_ARG, "a fetch is finished that was not begun");
    w->pending[place] = 0;
    const int e = wait_ended(m, ZERO_NCCL_WAIT_UNSHARD_DONE, stream, w->fetches[place]);
    return e ? e : zero_nccl_healthy(m);
}

const zero_comm_ops zero_nccl_ops = {
    .alloc = nccl_alloc,
    .free = nccl_free,
    .all_to_all_begin = nccl_all_to_all_begin,
    .all_to_all_finish = nccl_all_to_all_finish,
    .all_to_all_done = nccl_all_to_all_done,
    .allgather_begin = nccl_allgather_begin,
    .allgather_finish = nccl_allgather_finish,
    .reusable = nccl_reusable,
    .reduce_scatter = nccl_reduce_scatter,
    .allgather_host = nccl_allgather_host,
    .window_create = nccl_window_create,
    .window_destroy = nccl_window_destroy,
    .expose = nccl_window_open,
    .conceal = nccl_window_close,
    .fetch_begin = nccl_window_gather_begin,
    .fetch_finish = nccl_window_gather_finish,
    .window_scratch_bytes = nccl_window_scratch_bytes,
    .shape = nccl_shape,
    .scratch_bytes = nccl_scratch_bytes,
    .synchronize = nccl_synchronize,
    .destroy = nccl_destroy,
    .sums_narrow = 1,
};
#endif
