// collectives.c: all-to-all, all-gather and reduce-scatter of the NCCL transport.
//
// Streams. NCCL's calls only queue work, and so does this transport: on a stream of its own, which waits for the
// caller's stream where a collective needs the caller's data, and which the caller's waits for where it needs the
// collective's. Both are events; every wait is a line with the name of what it prevents (waits.h), and tests leave out
// each in turn.
//
// All-to-all. Grouped sends and receives into a scratch for the other ranks' chunks; this rank's own stays where it is.
// There is room for the chunks of one all-to-all: the next one waits, on the device, until they were read. The kernel
// finds the chunks through a table on the device, in which only this rank's own place changes. The few such places (one
// for each buffer) are kept in pinned memory that is not written again, so the host need not wait to change the table.
#include "zero/comm/nccl/nccl_internal.h"
#ifdef ZERO_HAS_NCCL
#include <string.h>
#include "zero/kernels.h"

static void count_received(comm_nccl *m, enum zero_wire kind, size_t bytes) {
    m->base.received[kind] += (size_t)(m->base.size - 1) * bytes;
}

// This rank's own place in the table; on the transport's stream.
static int set_own(comm_nccl *m, const void *own) {
    if (m->own_now == own) return ZERO_OK;
    int i = 0;
    while (i < m->num_own && m->own[i] != own) i++;
    if (i == NCCL_OWN) {  // the caller keeps using new buffers
        const int e = zero_nccl_device_check(m, cudaStreamSynchronize(m->context->stream));
        if (e) return e;
        m->num_own = i = 0;
    }
    if (i == m->num_own) m->own[m->num_own++] = own;
    m->own_now = own;
    return zero_nccl_device_check(m, cudaMemcpyAsync(m->table + m->base.rank, &m->own[i], sizeof *m->own,
                                                     cudaMemcpyHostToDevice, m->context->stream));
}

static int ok(ncclResult_t r) { return r == ncclSuccess || r == ncclInProgress; }

static int all_to_all(comm_nccl *m, char *buf, size_t stride, size_t bytes) {
    const struct nccl_library *lib = &m->context->lib;
    const cudaStream_t stream = m->context->stream;
    const int rank = m->base.rank;
    if (!m->comm || !bytes) return ZERO_OK;
    const int e = zero_nccl_enter(m, "all-to-all");
    if (e) return e;
    ncclResult_t r = lib->GroupStart();
    for (int peer = 0; peer < m->base.size && ok(r); peer++) {
        if (peer == rank) continue;
        r = lib->Send(buf + (size_t)peer * stride, bytes, ncclUint8, peer, m->comm, stream);
        if (ok(r))
            r = lib->Recv(m->scratch + (size_t)(peer < rank ? peer : peer - 1) * m->stride, bytes, ncclUint8, peer,
                          m->comm, stream);
    }
    const ncclResult_t end = lib->GroupEnd();
    return zero_nccl_leave(m, m->comm, ok(r) ? end : r);
}

// out = everybody's `mine`.
int zero_nccl_gather(comm_nccl *m, const void *mine, void *out, size_t bytes, const char *what) {
    if (!m->comm || !bytes) return ZERO_OK;
    const int e = zero_nccl_enter(m, what);
    return e ? e
             : zero_nccl_leave(m, m->comm,
                               m->context->lib.AllGather(mine, out, bytes, ncclUint8, m->comm, m->context->stream));
}

int zero_nccl_all_to_all_begin(zero_comm *c, const struct zero_comm_call *call, void *buf, size_t stride,
                               cudaStream_t stream, zero_ticket *ticket) {
    comm_nccl *m = zero_nccl_self(c);
    struct nccl_op *op = NULL;
    const size_t chunk_bytes = call->bytes;
    if (m->all_to_all)
        return zero_comm_fail(c, ZERO_ERR_ARG,
                              "there is room for the chunks of one all-to-all: the last one must be done "
                              "(zero_comm_all_to_all_done) before the next begins");
    int e = zero_nccl_grow_scratch(m, chunk_bytes);
    if (!e) e = zero_nccl_follow(m, ZERO_NCCL_WAIT_ALL_TO_ALL, stream);
    if (!e && m->last_read && m->context->ops[m->last_read % NCCL_RING].ticket == m->last_read)
        e = zero_nccl_wait_for(m, ZERO_NCCL_WAIT_CHUNKS, m->context->stream,
                               m->context->ops[m->last_read % NCCL_RING].read);
    if (!e) e = zero_nccl_op_begin(m, "all-to-all", &op);
    if (!e) e = set_own(m, (char *)buf + (size_t)c->rank * stride);
    if (!e) e = all_to_all(m, buf, stride, chunk_bytes);
    if (!e) e = zero_nccl_op_end(m, op);
    if (e) return e;
    count_received(m, ZERO_WIRE_GRADS, chunk_bytes);
    *ticket = m->all_to_all = op->ticket;
    return ZERO_OK;
}

int zero_nccl_all_to_all_finish(zero_comm *c, zero_ticket ticket, cudaStream_t stream, const void *const **chunks) {
    comm_nccl *m = zero_nccl_self(c);
    if (!ticket || ticket != m->all_to_all)
        return zero_comm_fail(c, ZERO_ERR_ARG, "all_to_all_finish is not for the all-to-all that was begun last");
    *chunks = m->table;
    const int e = zero_nccl_wait_ended(m, ZERO_NCCL_WAIT_ALL_TO_ALL_DONE, stream, ticket);
    return e ? e : zero_nccl_healthy(m);
}

int zero_nccl_all_to_all_done(zero_comm *c, zero_ticket ticket, cudaStream_t stream) {
    comm_nccl *m = zero_nccl_self(c);
    struct nccl_op *op = &m->context->ops[ticket % NCCL_RING];
    if (!ticket || ticket != m->all_to_all)
        return zero_comm_fail(c, ZERO_ERR_ARG, "all_to_all_done is not for the all-to-all that was begun last");
    const int e = zero_nccl_device_check(m, cudaEventRecord(op->read, stream));
    if (e) return e;
    op->was_read = 1;
    m->last_read = stream == m->context->stream ? 0 : ticket;
    m->all_to_all = 0;
    return zero_nccl_healthy(m);
}

int zero_nccl_reusable(zero_comm *c, zero_ticket ticket, cudaStream_t stream) {
    comm_nccl *m = zero_nccl_self(c);
    const struct nccl_op *op = &m->context->ops[ticket % NCCL_RING];
    const cudaEvent_t event = op->ticket == ticket && op->was_read ? op->read : op->ended;
    const int e = zero_nccl_wait_for(m, ZERO_NCCL_WAIT_REUSABLE, stream, event);
    return e ? e : zero_nccl_healthy(m);
}

int zero_nccl_allgather_begin(zero_comm *c, const struct zero_comm_call *call, void *buf, enum zero_wire kind,
                              cudaStream_t stream, zero_ticket *ticket) {
    comm_nccl *m = zero_nccl_self(c);
    struct nccl_op *op = NULL;
    const size_t chunk_bytes = call->bytes;
    int e = zero_nccl_follow(m, ZERO_NCCL_WAIT_GATHER, stream);
    if (!e) e = zero_nccl_op_begin(m, "all-gather", &op);
    if (!e) e = zero_nccl_gather(m, (char *)buf + (size_t)c->rank * chunk_bytes, buf, chunk_bytes, "all-gather");
    if (!e) e = zero_nccl_op_end(m, op);
    if (e) return e;
    count_received(m, kind, chunk_bytes);
    *ticket = op->ticket;
    return ZERO_OK;
}

int zero_nccl_allgather_finish(zero_comm *c, zero_ticket ticket, cudaStream_t stream) {
    comm_nccl *m = zero_nccl_self(c);
    if (!ticket || ticket > m->context->queued)
        return zero_comm_fail(c, ZERO_ERR_ARG, "an all-gather is finished that was not begun");
    const int e = zero_nccl_wait_ended(m, ZERO_NCCL_WAIT_GATHER_DONE, stream, ticket);
    return e ? e : zero_nccl_healthy(m);
}

// In place, so that bf16, which NCCL sums in bf16, needs no room to be widened from; buf is lost.
int zero_nccl_reduce_scatter(zero_comm *c, const struct zero_comm_call *call, const void *buf, enum zero_dtype dtype,
                             size_t chunk_numel, float *out, cudaStream_t stream, zero_ticket *ticket) {
    (void)call;
    comm_nccl *m = zero_nccl_self(c);
    const zero_partial_sums none = { .count = 0 };
    const size_t bytes = chunk_numel * zero_dtype_bytes(dtype);
    char *own = (char *)(uintptr_t)buf + (size_t)c->rank * bytes;
    struct nccl_op *op = NULL;
    if (stream != m->context->stream)
        return zero_comm_fail(c, ZERO_ERR_ARG, "the library's reduce-scatter works on zero_comm_stream()");
    if (m->all_to_all) return zero_comm_fail(c, ZERO_ERR_ARG, "a reduce-scatter while an all-to-all is not done");
    int e = zero_nccl_op_begin(m, "reduce-scatter", &op);
    if (!e && m->comm && bytes && !(e = zero_nccl_enter(m, "reduce-scatter")))
        e = zero_nccl_leave(m, m->comm,
                            m->context->lib.ReduceScatter(buf, own, chunk_numel,
                                                          dtype == ZERO_BF16 ? ncclBfloat16 : ncclFloat32, ncclSum,
                                                          m->comm, stream));
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

// ---- the host's -----------------------------------------------------------------------------------------------------

int zero_nccl_synchronize(zero_comm *c, cudaStream_t stream) {
    comm_nccl *m = zero_nccl_self(c);
    const cudaError_t device = cudaStreamSynchronize(stream);
    const int e = zero_nccl_healthy(m);  // tells more than an error of the device that an abort has left
    return e ? e : zero_nccl_device_check(m, device);
}

// What fits into a slot beside the record of the call.
enum { MOST_SCALARS = NCCL_SCALAR_BYTES - sizeof(struct zero_comm_call) };

// Up to MOST_SCALARS bytes of each rank's scalars, to all + r * stride.
static int gather_scalars(comm_nccl *m, const struct zero_comm_call *call, const char *mine, size_t bytes, char *all,
                          size_t stride) {
    const cudaStream_t stream = m->context->stream;
    const size_t size = (size_t)m->base.size, rank = (size_t)m->base.rank, slot = NCCL_SCALAR_BYTES;
    char *on_host = m->scalars + rank * slot, *on_device = m->scalars_device + rank * slot;
    struct nccl_op *op = NULL;
    memcpy(on_host, call, sizeof *call);
    memcpy(on_host + sizeof *call, mine, bytes);
    int e = zero_nccl_op_begin(m, "all-gather of scalars", &op);
    if (!e) e = zero_nccl_device_check(m, cudaMemcpyAsync(on_device, on_host, slot, cudaMemcpyHostToDevice, stream));
    if (!e) e = zero_nccl_gather(m, on_device, m->scalars_device, slot, "all-gather of scalars");
    if (!e)
        e = zero_nccl_device_check(
            m, cudaMemcpyAsync(m->scalars, m->scalars_device, size * slot, cudaMemcpyDeviceToHost, stream));
    if (!e) e = zero_nccl_op_end(m, op);
    if (!e) e = zero_nccl_synchronize(&m->base, stream);
    for (size_t r = 0; r < size && !e; r++) {
        struct zero_comm_call theirs;
        memcpy(&theirs, m->scalars + r * slot, sizeof theirs);
        e = zero_comm_compare(&m->base, call, (int)r, &theirs);
        if (!e) memcpy(all + r * stride, m->scalars + r * slot + sizeof theirs, bytes);
    }
    return e;
}

int zero_nccl_allgather_host(zero_comm *c, const struct zero_comm_call *call, const void *mine, size_t bytes,
                             void *all) {
    comm_nccl *m = zero_nccl_self(c);
    int e = zero_nccl_healthy(m);
    if (!e) memcpy((char *)all + (size_t)c->rank * bytes, mine, bytes);
    for (size_t at = 0; at < bytes && c->size > 1 && !e; at += MOST_SCALARS) {
        const size_t n = bytes - at < MOST_SCALARS ? bytes - at : MOST_SCALARS;
        e = gather_scalars(m, call, (const char *)mine + at, n, (char *)all + at, bytes);
    }
    return e;
}
#endif
