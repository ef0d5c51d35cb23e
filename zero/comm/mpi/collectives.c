// collectives.c: all-to-all, all-gather and reduce-scatter of the MPI transport.
//
// Shared memory. Each rank has a control block with two rings of counters on which the others wait. A ticket's place in
// *ready* has the ticket once peers may read this rank's buffer, in *done* once this rank has read theirs. (Rings,
// since collectives may be finished in another order than they were begun, as those of two engines.) All ranks begin
// the same collectives in the same order, so "the peer's ready >= ticket" is all there is to know; the record of the
// call is beside it in a third ring, and a peer that began something else is reported. Peers read in place, so reducing
// N buffers costs one pass over them, about as much as copying them.
//
// Messages. To ranks of other hosts chunks go by MPI_Isend/Irecv (messages.c), posted in finish, into a scratch that
// holds those of one collective. All-gathers in two levels (comm.h: hosts) bring each host one copy of a chunk. 2 hosts
// of 2 ranks, the chunk of rank 1, whose number on its host is 1:
//
//     rank 1 --message--> rank 3, in its buffer --*relayed*--> rank 2 reads it there
//
// Staging. Where the host cannot read device memory (a real GPU; tests ask for it on the CPU as well), finish copies
// the chunks to a staging buffer that peers read, and their chunks from theirs to the device.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "zero/clock.h"
#include "zero/comm/mpi/mpi_internal.h"

int zero_mpi_device_check(comm_mpi *m, cudaError_t e) {
    return e == cudaSuccess ? ZERO_OK : zero_comm_fail(&m->base, ZERO_ERR_DEVICE, "%s", cudaGetErrorString(e));
}

// ---- waiting for the ranks of this host -----------------------------------------------------------------------------

// zero_shm_wait, and counts the time.
static int wait_counter(comm_mpi *m, _Atomic uint64_t *counter, uint64_t value, uint64_t *seen) {
    const double begin = zero_clock();
    const int late = zero_shm_wait(counter, value, m->spin, m->config.timeout_s, seen);
    m->base.waited += zero_clock() - begin;
    return late;
}

int zero_mpi_wait(comm_mpi *m, int peer, _Atomic uint64_t *counter, uint64_t value, const char *verb) {
    uint64_t seen;
    if (!wait_counter(m, counter, value, &seen)) return ZERO_OK;
    return zero_comm_fail(
        &m->base, ZERO_ERR_COMM,
        "rank %d has not come within %.3g s (it %s %llu, this rank waits for %llu): it died, stopped, or "
        "took another path; see its own output, or allow more time (zero_comm_config.timeout_s)",
        zero_comm_world_rank(&m->base, peer), m->config.timeout_s, verb, (unsigned long long)seen,
        (unsigned long long)value);
}

void zero_mpi_publish_relay(comm_mpi *m, int e, _Atomic uint64_t *counter, uint64_t value) {
    if (!e || zero_mpi_control(m, m->base.rank)->other.kind) zero_shm_publish(counter, value);
}

int zero_mpi_wait_relay(comm_mpi *m, const struct zero_comm_call *call, int r, _Atomic uint64_t *counter,
                        uint64_t value) {
    uint64_t seen;
    const int relay = zero_mpi_relay(m, r);
    const struct control *its = zero_mpi_control(m, relay);
    if (!wait_counter(m, counter, value, &seen))
        return its->other.kind ? zero_comm_compare(&m->base, call, its->other_rank, &its->other) : ZERO_OK;
    return zero_comm_fail(&m->base, ZERO_ERR_COMM,
                          "rank %d has not come within %.3g s, or rank %d has not passed its chunk on: it died, "
                          "stopped, or took another path; see its own output, or allow more time "
                          "(zero_comm_config.timeout_s)",
                          zero_comm_world_rank(&m->base, r), m->config.timeout_s,
                          zero_comm_world_rank(&m->base, relay));
}

int zero_mpi_wait_readers(comm_mpi *m, zero_ticket ticket) {
    const zero_comm *c = &m->base;
    int e = ZERO_OK;
    for (int r = 0; r < c->size && !e; r++)
        if (r != c->rank && m->on_host[r])
            e = zero_mpi_wait(m, r, &zero_mpi_control(m, r)->done[ticket % RING], ticket, "has read collective");
    return e;
}

// Waits until the peer has begun this ticket, and checks that it is the same call.
static int wait_ready(comm_mpi *m, int peer, zero_ticket ticket) {
    uint64_t seen;
    struct control *its = zero_mpi_control(m, peer);
    const struct zero_comm_call *mine = &zero_mpi_control(m, m->base.rank)->ring[ticket % RING];
    if (!wait_counter(m, &its->ready[ticket % RING], ticket, &seen))
        return zero_comm_compare(&m->base, mine, peer, &its->ring[ticket % RING]);
    char message[512];
    zero_comm_say_behind(&m->base, message, sizeof message, peer, mine, &its->ring[its->begun % RING],
                         m->config.timeout_s);
    return zero_comm_fail(&m->base, ZERO_ERR_COMM, "%s", message);
}

// ---- begin ----------------------------------------------------------------------------------------------------------

// Gives the call the next ticket. What peers read in place is published at once; staged, finish publishes it.
static int begin(comm_mpi *m, const struct zero_comm_call *call, char *buf, enum zero_wire wire, cudaStream_t stream,
                 zero_ticket *ticket) {
    const int reads_buffer = call->kind == ZERO_CALL_ALL_TO_ALL || call->kind == ZERO_CALL_ALLGATHER;
    if (m->begun - m->finished >= ZERO_COMM_MAX_PENDING)
        return zero_comm_fail(&m->base, ZERO_ERR_ARG, "more than %d collectives pending", ZERO_COMM_MAX_PENDING);
    *ticket = ++m->begun;
    m->pending[*ticket % RING] = (struct pending){ *call, buf, 0, wire, 0 };
    if (m->base.size == 1) return ZERO_OK;
    struct control *mine = zero_mpi_control(m, m->base.rank);
    mine->ring[*ticket % RING] = *call;
    atomic_store_explicit(&mine->begun, *ticket, memory_order_release);
    if (m->staged && reads_buffer) return ZERO_OK;
    const int e = reads_buffer ? zero_mpi_device_check(m, cudaStreamSynchronize(stream)) : ZERO_OK;
    if (!e) zero_shm_publish(&mine->ready[*ticket % RING], *ticket);
    return e;
}

int zero_mpi_all_to_all_begin(zero_comm *c, const struct zero_comm_call *call, void *buf, size_t stride,
                              cudaStream_t stream, zero_ticket *ticket) {
    comm_mpi *m = zero_mpi_self(c);
    const int e = begin(m, call, buf, ZERO_WIRE_GRADS, stream, ticket);
    if (!e) m->pending[*ticket % RING].stride = stride;
    return e;
}

int zero_mpi_allgather_begin(zero_comm *c, const struct zero_comm_call *call, void *buf, enum zero_wire kind,
                             cudaStream_t stream, zero_ticket *ticket) {
    return begin(zero_mpi_self(c), call, buf, kind, stream, ticket);
}

int zero_mpi_reusable(zero_comm *c, zero_ticket ticket, cudaStream_t stream) {
    (void)stream;
    return zero_mpi_wait_readers(zero_mpi_self(c), ticket);
}

int zero_mpi_synchronize(zero_comm *c, cudaStream_t stream) {
    return zero_mpi_device_check(zero_mpi_self(c), cudaStreamSynchronize(stream));
}

// ---- finish ---------------------------------------------------------------------------------------------------------

// Copies rows of `bytes`, stride bytes apart, to memory without gaps. cudaMemcpy2D has no strides of 2 GiB.
static int copy_rows(comm_mpi *m, char *to, const char *from, size_t stride, size_t rows, size_t bytes,
                     cudaStream_t stream) {
    const size_t each = stride == bytes ? rows * bytes : bytes;
    int e = ZERO_OK;
    for (size_t at = 0; at < rows * bytes && !e; at += each, from += stride)
        e = zero_mpi_device_check(m, cudaMemcpyAsync(to + at, from, each, cudaMemcpyDeviceToHost, stream));
    return e;
}

// Staged: copies rows as copy_rows does, from the device to the staging buffer, at offset, and publishes. whole: bytes
// that the staging buffer needs.
static int stage_out(comm_mpi *m, const char *from, size_t stride, size_t rows, size_t offset, size_t bytes,
                     size_t whole, zero_ticket ticket, cudaStream_t stream) {
    int e = zero_mpi_wait_readers(m, m->staging_ticket);
    const size_t need = whole ? whole : 1;  // a unit may be empty, a map may not
    if (!e && m->staging.bytes < need) {
        zero_mpi_unmap_staging(m, &m->staging);
        e = zero_mpi_map_staging(m, &m->staging, need);
    }
    if (!e) e = copy_rows(m, m->staging.peer[m->base.rank] + offset, from, stride, rows, bytes, stream);
    if (!e) e = zero_mpi_device_check(m, cudaStreamSynchronize(stream));
    if (e) return e;
    m->staging_ticket = ticket;
    zero_shm_publish(&zero_mpi_control(m, m->base.rank)->ready[ticket % RING], ticket);
    return ZERO_OK;
}

static int exchange_messages(comm_mpi *m, const struct zero_comm_call *call, char *send, size_t send_stride,
                             char *receive, size_t receive_stride, size_t bytes) {
    const int e = zero_mpi_post(m, &m->messages, call, send, send_stride, receive, receive_stride, 1, bytes);
    return e ? e : zero_mpi_wait_messages(m, &m->messages);
}

static int check_pending(comm_mpi *m, zero_ticket ticket, enum zero_comm_call_kind kind) {
    const struct pending *p = &m->pending[ticket % RING];
    if (ticket <= m->finished || ticket > m->begun || p->finished || p->call.kind != kind)
        return zero_comm_fail(&m->base, ZERO_ERR_ARG, "%s is not pending: it was never begun, or is already finished",
                              zero_comm_call_name(kind));
    if (m->chunks_of && m->chunks_of != ticket)
        return zero_comm_fail(&m->base, ZERO_ERR_ARG, "%s is finished before the last all-to-all is done",
                              zero_comm_call_name(kind));
    return ZERO_OK;
}

static void finished(comm_mpi *m, zero_ticket ticket) {
    m->pending[ticket % RING].finished = 1;
    while (m->finished < m->begun && m->pending[(m->finished + 1) % RING].finished) m->finished++;
    if (m->base.size > 1) zero_shm_publish(&zero_mpi_control(m, m->base.rank)->done[ticket % RING], ticket);
}

// What this rank reads of a peer on this host: its buffer, or the staging of it.
static const char *peer_buffer(const comm_mpi *m, const struct pending *p, int peer) {
    return m->staged ? m->staging.peer[peer] : m->maps[p->call.buffer].peer[peer] + p->call.offset;
}

int zero_mpi_all_to_all_finish(zero_comm *c, zero_ticket ticket, cudaStream_t stream, const void *const **chunks) {
    comm_mpi *m = zero_mpi_self(c);
    int e = check_pending(m, ticket, ZERO_CALL_ALL_TO_ALL);
    if (e) return e;
    const struct pending *p = &m->pending[ticket % RING];
    const size_t bytes = p->call.bytes, whole = bytes * (size_t)c->size;
    const size_t stride = m->staged ? bytes : p->stride;  // of what the others read
    const int remote = m->num_remote > 0, size = c->size;
    if (m->staged && size > 1) {
        e = stage_out(m, p->buf, p->stride, (size_t)size, 0, bytes, whole, ticket, stream);
        if (!e) e = zero_mpi_grow(m, &m->device_scratch, &m->device_scratch_bytes, whole, 1);
    }
    if (remote && !e) {
        e = zero_mpi_grow(m, &m->received, &m->received_bytes, whole, 0);
        if (!e)
            e = exchange_messages(m, &p->call, m->staged ? m->staging.peer[c->rank] : p->buf, stride, m->received,
                                  bytes, bytes);
    }
    for (int r = 0; r < size && !e; r++) {
        const char *from = NULL;
        if (r == c->rank) {
            m->chunks[r] = p->buf + (size_t)r * p->stride;
            continue;
        }
        if (!m->on_host[r]) {
            from = m->received + (size_t)r * bytes;
        } else if ((e = wait_ready(m, r, ticket)) == ZERO_OK) {
            from = peer_buffer(m, p, r) + (size_t)c->rank * stride;
        }
        if (m->staged && !e) {
            char *to = m->device_scratch + (size_t)r * bytes;
            e = zero_mpi_device_check(m, cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream));
            from = to;
        }
        m->chunks[r] = from;
        c->received[ZERO_WIRE_GRADS] += bytes;
    }
    if (!e)
        e = zero_mpi_device_check(m, cudaMemcpyAsync(m->chunks_device, m->chunks, (size_t)size * sizeof *m->chunks,
                                                     cudaMemcpyHostToDevice, stream));
    *chunks = m->chunks_device;
    m->chunks_of = e ? 0 : ticket;
    return e;
}

int zero_mpi_all_to_all_done(zero_comm *c, zero_ticket ticket, cudaStream_t stream) {
    comm_mpi *m = zero_mpi_self(c);
    if (!ticket || ticket != m->chunks_of)
        return zero_comm_fail(c, ZERO_ERR_ARG, "all_to_all_done is not for the all-to-all that was finished last");
    const int e = zero_mpi_device_check(m, cudaStreamSynchronize(stream));
    m->chunks_of = 0;
    if (!e) finished(m, ticket);
    return e;
}

int zero_mpi_allgather_finish(zero_comm *c, zero_ticket ticket, cudaStream_t stream) {
    comm_mpi *m = zero_mpi_self(c);
    int e = check_pending(m, ticket, ZERO_CALL_ALLGATHER);
    if (e) return e;
    const struct pending *p = &m->pending[ticket % RING];
    const size_t bytes = p->call.bytes, own = (size_t)c->rank * bytes;
    const int remote = m->num_remote > 0, size = c->size, relays = zero_mpi_relays(m, &p->call);
    char *arrived = p->buf;  // where messages arrive: in place unless staged; what peers read if relayed
    if (m->staged && size > 1)
        e = stage_out(m, p->buf + own, bytes, 1, own, bytes, bytes * (size_t)size, ticket, stream);
    if (remote && !e && m->staged && !relays)
        e = zero_mpi_grow(m, &m->received, &m->received_bytes, bytes * (size_t)size, 0);
    if (remote && !e && m->staged) arrived = relays ? m->staging.peer[c->rank] : m->received;
    if (remote && !e)
        e = exchange_messages(m, &p->call, m->staged ? m->staging.peer[c->rank] + own : p->buf + own, 0, arrived, bytes,
                              bytes);
    if (relays) zero_mpi_publish_relay(m, e, &zero_mpi_control(m, c->rank)->relayed[ticket % RING], ticket);
    for (int r = 0; r < size && !e; r++) {
        if (r == c->rank) continue;
        const char *from = arrived + (size_t)r * bytes;
        if (m->on_host[r]) {
            e = wait_ready(m, r, ticket);
            from = peer_buffer(m, p, r) + (size_t)r * bytes;
        } else if (relays && zero_mpi_relay(m, r) != c->rank) {
            const int relay = zero_mpi_relay(m, r);
            e = wait_ready(m, relay, ticket);
            if (!e)
                e = zero_mpi_wait_relay(m, &p->call, r, &zero_mpi_control(m, relay)->relayed[ticket % RING], ticket);
            from = peer_buffer(m, p, relay) + (size_t)r * bytes;
        }
        char *to = p->buf + (size_t)r * bytes;
        if (from != to && !e) e = zero_mpi_device_check(m, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream));
        c->received[p->wire] += bytes;
    }
    if (!e) e = zero_mpi_device_check(m, cudaStreamSynchronize(stream));
    if (!e) finished(m, ticket);
    return e;
}

// Up to SCALAR_BYTES of each rank's scalars, to all + r * stride. Messages arrive in memory of our own: the caller may
// free all after a failure, when some are still under way.
static int gather_scalars(comm_mpi *m, const struct zero_comm_call *call, const char *mine, char *all, size_t stride) {
    zero_comm *c = &m->base;
    const size_t slot = m->scalar_count++ & 1;  // two slots: a peer may still read the last one
    zero_ticket ticket = 0;
    int e = zero_mpi_wait_readers(m, m->scalar_ticket[slot]);
    if (e) return e;
    char *out = zero_mpi_control(m, c->rank)->scalars[slot];
    char *arrived = m->num_remote ? malloc((size_t)c->size * call->bytes + 1) : NULL;
    if (m->num_remote && !arrived) return zero_comm_fail(c, ZERO_ERR_MEMORY, "out of host memory");
    memcpy(out, mine, call->bytes);
    e = begin(m, call, NULL, ZERO_WIRE_SCALARS, NULL, &ticket);
    if (!e && m->num_remote) e = exchange_messages(m, call, out, 0, arrived, call->bytes, call->bytes);
    for (int r = 0; r < c->size && !e; r++) {
        if (r == c->rank) continue;
        const char *from = m->on_host[r] ? zero_mpi_control(m, r)->scalars[slot] : arrived + (size_t)r * call->bytes;
        if (m->on_host[r]) e = wait_ready(m, r, ticket);
        if (!e) memcpy(all + (size_t)r * stride, from, call->bytes);
    }
    if (c->in_flight)
        zero_keep(arrived);
    else
        free(arrived);
    if (!e) finished(m, ticket);
    m->scalar_ticket[slot] = ticket;
    return e;
}

int zero_mpi_allgather_host(zero_comm *c, const struct zero_comm_call *call, const void *mine, size_t bytes,
                            void *all) {
    comm_mpi *m = zero_mpi_self(c);
    int e = ZERO_OK;
    memcpy((char *)all + (size_t)c->rank * bytes, mine, bytes);
    for (size_t at = 0; at < bytes && c->size > 1 && !e; at += SCALAR_BYTES) {
        struct zero_comm_call part = *call;
        part.offset = at;
        part.bytes = bytes - at < SCALAR_BYTES ? bytes - at : SCALAR_BYTES;
        e = gather_scalars(m, &part, (const char *)mine + at, (char *)all + at, bytes);
    }
    return e;
}

// Meets all ranks in a call whose bytes MPI moves by a collective of its own, which would not notice another one.
static int meet(comm_mpi *m, const struct zero_comm_call *call) {
    zero_ticket ticket = 0;
    char nothing = 0;
    int e = begin(m, call, NULL, ZERO_WIRE_GRADS, NULL, &ticket);
    if (!e && m->num_remote) e = exchange_messages(m, call, &nothing, 0, &nothing, 0, 0);
    for (int r = 0; r < m->base.size && !e; r++)
        if (r != m->base.rank && m->on_host[r]) e = wait_ready(m, r, ticket);
    if (!e) finished(m, ticket);
    return e;
}

int zero_mpi_reduce_scatter(zero_comm *c, const struct zero_comm_call *call, const void *buf, enum zero_dtype dtype,
                            size_t chunk_numel, float *out, cudaStream_t stream, zero_ticket *ticket) {
    *ticket = 0;  // all is over when this returns
    comm_mpi *m = zero_mpi_self(c);
    const size_t n = chunk_numel * (size_t)c->size, bytes = n * zero_dtype_bytes(dtype);
    if (n > 0x7fffffff)
        return zero_comm_fail(c, ZERO_ERR_ARG,
                              "MPI_Reduce_scatter_block takes at most 2^31 - 1 elements in all: use ZERO_REDUCE_EXACT");
    if (m->context)
        return zero_comm_fail(
            c, ZERO_ERR_ARG,
            "MPI's reduce-scatter is for the communicator of all ranks, this one is a part of them: use "
            "ZERO_REDUCE_EXACT");
    int e = meet(m, call);
    // all in fp32, then the sum
    if (!e) e = zero_mpi_grow(m, &m->received, &m->received_bytes, (n + chunk_numel) * sizeof(float), 0);
    if (e) return e;
    float *all = (float *)m->received, *sum = all + n;
    e = zero_mpi_device_check(m, cudaMemcpyAsync(all, buf, bytes, cudaMemcpyDeviceToHost, stream));
    if (!e) e = zero_mpi_device_check(m, cudaStreamSynchronize(stream));
    if (e) return e;
    if (dtype == ZERO_BF16)  // widen in place, from the end
        for (size_t i = n; i-- > 0;) {
            const uint32_t word = (uint32_t)((const uint16_t *)m->received)[i] << 16;
            memcpy(all + i, &word, sizeof word);
        }
    MPI_Request *q = NULL;
    e = zero_mpi_add_request(m, &m->messages, (c->rank + 1) % c->size, 1, &q);
    if (e) return e;
    if (MPI_Ireduce_scatter_block(all, sum, (int)chunk_numel, MPI_FLOAT, MPI_SUM, m->root->comm, q) != MPI_SUCCESS)
        return zero_comm_fail(c, ZERO_ERR_COMM, "MPI_Ireduce_scatter_block failed");
    e = zero_mpi_wait_messages(m, &m->messages);
    c->received[ZERO_WIRE_GRADS] += (size_t)(c->size - 1) * chunk_numel * sizeof(float);
    if (!e)
        e = zero_mpi_device_check(
            m, cudaMemcpyAsync(out, sum, chunk_numel * sizeof(float), cudaMemcpyHostToDevice, stream));
    return e ? e : zero_mpi_device_check(m, cudaStreamSynchronize(stream));
}
