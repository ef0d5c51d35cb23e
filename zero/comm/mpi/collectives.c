// comm_mpi.c: the MPI transport. MPI introduces the ranks to each other and carries messages between hosts; ranks of
// one host read each other's memory.
//
// Shared memory. A symmetric buffer is memory that every other rank of the host maps (shm.h). Each rank also has a
// control block with two counters, *ready* (the last ticket that it has begun) and *done* (the last one that it has
// finished reading), on which the others wait. Since all ranks begin the same operations in the same order, "peer's
// ready >= ticket" is all there is to know; what was begun stands beside it in a ring, and a peer that began something
// else is reported. Because peers read in place, reducing N buffers costs one pass over them, about what copying them
// costs.
//
// Messages. To ranks of other hosts pieces go by MPI_Isend/Irecv, posted in finish, into a scratch of one unit.
//
// Staging. Where the host cannot read device memory (a real GPU; tests ask for it on the CPU as well), finish copies
// the buffer to a shared staging buffer of one unit, and the peers' pieces from theirs to the device.
//
// Time-outs. Every wait has a deadline, and says which rank did not come.
#include "zero/comm/mpi/comm_mpi.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "zero/comm/mpi/mpi_internal.h"

int zero_mpi_device_check(comm_mpi *m, cudaError_t e) {
    return e == cudaSuccess ? ZERO_OK : zero_comm_fail(&m->base, ZERO_ERR_DEVICE, "%s", cudaGetErrorString(e));
}

// ---- waiting for the ranks of this host -----------------------------------------------------------------------------

int zero_mpi_wait(comm_mpi *m, int peer, _Atomic uint32_t *counter, uint64_t value, const char *verb) {
    uint32_t seen;
    if (!zero_shm_wait(counter, (uint32_t)value, m->spin, m->timeout_s, &seen)) return ZERO_OK;
    return zero_comm_fail(
        &m->base, ZERO_ERR_COMM,
        "rank %d has not come within %.0f s (it %s number %u, this rank waits for %u): "
        "it died, stopped, or took another path; see its own output, or allow more time with --timeout",
        m->base.names[peer], m->timeout_s, verb, seen, (uint32_t)value);
}

static int wait_done(comm_mpi *m, int peer, zero_ticket ticket) {
    return zero_mpi_wait(m, peer, &control_of(m, peer)->done, ticket, "has read operation");
}

static const char *call_name(uint64_t kind) {
    return kind == CALL_EXCHANGE    ? "exchange"
           : kind == CALL_ALLGATHER ? "all-gather"
           : kind == CALL_SMALL     ? "all-gather of numbers"
                                    : "nothing";
}

// Wait until the peer has begun this ticket, and see that it is the same operation.
static int wait_ready(comm_mpi *m, int peer, zero_ticket ticket) {
    const int e = zero_mpi_wait(m, peer, &control_of(m, peer)->ready, ticket, "has begun operation");
    if (e) return e;
    const struct call *mine = &control_of(m, m->base.rank)->ring[ticket % RING],
                      *theirs = &control_of(m, peer)->ring[ticket % RING];
    if (memcmp(mine, theirs, sizeof *mine))
        return zero_comm_fail(
            &m->base, ZERO_ERR_COMM,
            "the ranks disagree about operation %llu: this rank calls %s (buffer %llu, offset %llu, %llu bytes), "
            "rank %d calls %s (buffer %llu, offset %llu, %llu bytes)",
            (unsigned long long)ticket, call_name(mine->kind), (unsigned long long)mine->buffer,
            (unsigned long long)mine->offset, (unsigned long long)mine->bytes, m->base.names[peer],
            call_name(theirs->kind), (unsigned long long)theirs->buffer, (unsigned long long)theirs->offset,
            (unsigned long long)theirs->bytes);
    return ZERO_OK;
}

// ---- messages -------------------------------------------------------------------------------------------------------

int zero_mpi_wait_messages(comm_mpi *m, struct messages *msgs) {
    const double deadline = zero_shm_now() + m->timeout_s;
    for (size_t i = 0;; i++) {
        int all = 0;
        if (MPI_Testall(msgs->count, msgs->requests, &all, MPI_STATUSES_IGNORE) != MPI_SUCCESS)
            return zero_comm_fail(
                &m->base, ZERO_ERR_COMM,
                "an MPI message failed: the ranks sent pieces of different sizes, or the network is down");
        if (all) {
            msgs->count = 0;
            return ZERO_OK;
        }
        if (zero_shm_now() > deadline)
            for (int r = 0; r < msgs->count; r++) {
                int flag = 1;
                if (msgs->requests[r] != MPI_REQUEST_NULL &&
                    MPI_Test(&msgs->requests[r], &flag, MPI_STATUS_IGNORE) != MPI_SUCCESS)
                    flag = 0;
                if (!flag)
                    return zero_comm_fail(
                        &m->base, ZERO_ERR_COMM,
                        "no message from or to rank %d within %.0f s: it died, stopped, or took another path; "
                        "see its own output, or allow more time with --timeout",
                        m->base.names[msgs->peer[r]], m->timeout_s);
            }
        if (i > 100) nanosleep(&(struct timespec){ 0, 20 * 1000 }, NULL);
    }
}

static int add_request(comm_mpi *m, struct messages *msgs, int peer, MPI_Request **out) {
    if (msgs->count == msgs->max) {
        const int more = 2 * msgs->max + 64;
        MPI_Request *requests = realloc(msgs->requests, (size_t)more * sizeof *requests);
        if (requests) msgs->requests = requests;
        int *peers = realloc(msgs->peer, (size_t)more * sizeof *peers);
        if (peers) msgs->peer = peers;
        if (!requests || !peers)
            return zero_comm_fail(&m->base, ZERO_ERR_MEMORY, "out of host memory for %d MPI requests", more);
        msgs->max = more;
    }
    msgs->peer[msgs->count] = peer;
    *out = &msgs->requests[msgs->count++];
    **out = MPI_REQUEST_NULL;
    return ZERO_OK;
}

static int post(comm_mpi *m, struct messages *msgs, int peer, int is_send, char *at, size_t bytes, int tag) {
    for (size_t sent = 0; sent < bytes; sent += MAX_MESSAGE) {
        const int n = (int)(bytes - sent < MAX_MESSAGE ? bytes - sent : MAX_MESSAGE);
        MPI_Request *q = NULL;
        int e = add_request(m, msgs, peer, &q);
        if (e) return e;
        e = is_send ? MPI_Isend(at + sent, n, MPI_BYTE, peer, tag, m->comm, q)
                    : MPI_Irecv(at + sent, n, MPI_BYTE, peer, tag, m->comm, q);
        if (e != MPI_SUCCESS)
            return zero_comm_fail(&m->base, ZERO_ERR_COMM, "MPI refused a message of %d bytes with rank %d", n,
                                  m->base.names[peer]);
    }
    return ZERO_OK;
}

int zero_mpi_post(comm_mpi *m, struct messages *msgs, int tag, char *send, size_t send_stride, char *receive,
                  size_t receive_stride, size_t bytes) {
    int e = ZERO_OK;
    for (int is_send = 0; is_send <= 1; is_send++)
        for (int r = 0; r < m->base.size && !e; r++)
            if (!m->on_host[r])
                e = post(m, msgs, r, is_send,
                         is_send ? send + (size_t)r * send_stride : receive + (size_t)r * receive_stride, bytes, tag);
    return e;
}

static int exchange_messages(comm_mpi *m, zero_ticket ticket, char *send, size_t send_stride, char *receive,
                             size_t receive_stride, size_t bytes) {
    const int e = zero_mpi_post(m, &m->messages, (int)(ticket % 16384), send, send_stride, receive, receive_stride,
                                bytes);
    return e ? e : zero_mpi_wait_messages(m, &m->messages);
}

// ---- symmetric memory -----------------------------------------------------------------------------------------------

static struct zero_shm *map_of(comm_mpi *m, const struct zero_comm_buffer *b) { return &m->maps[b - m->base.buffers]; }

static int mpi_alloc(zero_comm *c, struct zero_comm_buffer *b) {
    comm_mpi *m = self(c);
    if (m->staged || !m->sharing) {
        b->ptr = zero_accounting_alloc(b->mem, b->category, b->bytes);
    } else if (zero_shm_map(map_of(m, b), m->comm, m->on_host, b->bytes ? b->bytes : 1) == ZERO_OK) {
        b->ptr = map_of(m, b)->peer[c->rank];
        zero_accounting_add(b->mem, b->category, b->bytes, 0);
    }
    return ZERO_OK;
}

static int mpi_free(zero_comm *c, struct zero_comm_buffer *b) {
    struct zero_shm *map = map_of(self(c), b);
    if (map->peer) {
        zero_shm_unmap(map);
        zero_accounting_add(b->mem, b->category, 0, b->bytes);
    } else {
        zero_accounting_free(b->mem, b->category, b->ptr, b->bytes);
    }
    return ZERO_OK;
}

int zero_mpi_grow(comm_mpi *m, char **scratch, size_t *have, size_t need, int on_device) {
    if (*have >= need) return ZERO_OK;
    if (*scratch) {
        (void)(on_device ? cudaFree(*scratch) : cudaFreeHost(*scratch));
        zero_accounting_add(m->memory, ZERO_MEM_TRANSPORT, 0, *have);
    }
    *scratch = NULL;
    *have = 0;
    void *p = NULL;
    if ((on_device ? cudaMalloc(&p, need) : cudaMallocHost(&p, need)) != cudaSuccess)
        return zero_comm_fail(&m->base, ZERO_ERR_MEMORY, "no memory for %zu bytes of transport scratch", need);
    *scratch = p;
    *have = need;
    zero_accounting_add(m->memory, ZERO_MEM_TRANSPORT, need, 0);
    return ZERO_OK;
}

// ---- operations
// ------------------------------------------------------------------------------------------------------

// Give the next ticket to a call. Where peers read the buffer in place it is published at once; staged, in finish.
static int begin(comm_mpi *m, struct call call, char *buf, enum zero_wire wire, cudaStream_t stream,
                 zero_ticket *ticket) {
    if (m->begun - m->finished >= ZERO_COMM_MAX_PENDING)
        return zero_comm_fail(&m->base, ZERO_ERR_ARG, "more than %d operations pending", ZERO_COMM_MAX_PENDING);
    *ticket = ++m->begun;
    m->pending[*ticket % RING] = (struct pending){ call, buf, wire };
    if (m->base.size == 1) return ZERO_OK;
    struct control *mine = control_of(m, m->base.rank);
    mine->ring[*ticket % RING] = call;
    if (m->staged && call.kind != CALL_SMALL) return ZERO_OK;
    const int e = call.kind == CALL_SMALL ? ZERO_OK : zero_mpi_device_check(m, cudaStreamSynchronize(stream));
    if (!e) zero_shm_publish(&mine->ready, *ticket);
    return e;
}

static int begin_on_buffer(comm_mpi *m, enum call_kind kind, void *buf, size_t chunk_bytes, enum zero_wire wire,
                           cudaStream_t stream, zero_ticket *ticket) {
    const int b = zero_comm_find_buffer(&m->base, buf, chunk_bytes * (size_t)m->base.size);
    if (b < 0)
        return zero_comm_fail(&m->base, ZERO_ERR_ARG, "%s on memory that is not from zero_comm_alloc", call_name(kind));
    const struct call call = { kind, (uint64_t)b, (uint64_t)((char *)buf - m->base.buffers[b].ptr), chunk_bytes };
    return begin(m, call, buf, wire, stream, ticket);
}

static int mpi_all_to_all_begin(zero_comm *c, void *buf, size_t chunk_bytes, cudaStream_t stream, zero_ticket *ticket) {
    return begin_on_buffer(self(c), CALL_EXCHANGE, buf, chunk_bytes, ZERO_WIRE_GRADS, stream, ticket);
}

static int mpi_allgather_begin(zero_comm *c, void *buf, size_t chunk_bytes, enum zero_wire kind, cudaStream_t stream,
                               zero_ticket *ticket) {
    return begin_on_buffer(self(c), CALL_ALLGATHER, buf, chunk_bytes, kind, stream, ticket);
}

static int wait_readers(comm_mpi *m, zero_ticket ticket) {
    const zero_comm *c = &m->base;
    int e = ZERO_OK;
    for (int r = 0; r < c->size && !e; r++)
        if (r != c->rank && m->on_host[r]) e = wait_done(m, r, ticket);
    return e;
}

static int mpi_reusable(zero_comm *c, zero_ticket ticket, cudaStream_t stream) {
    (void)stream;
    return wait_readers(self(c), ticket);
}

static int mpi_synchronize(zero_comm *c, cudaStream_t stream) {
    return zero_mpi_device_check(self(c), cudaStreamSynchronize(stream));
}

// A container may refuse to pin memory that ranks share. Copies then go through the buffers of the driver, which is
// slower; the name of the transport says so.
static int can_pin(void *memory, size_t bytes) {
    if (cudaHostRegister(memory, bytes, cudaHostRegisterDefault) == cudaSuccess)
        return cudaHostUnregister(memory) == cudaSuccess;
    (void)cudaGetLastError();
    return 0;
}

// Maps shared memory that the device copies to and from, and pins it: otherwise each copy would be two.
int zero_mpi_map_staging(comm_mpi *m, struct zero_shm *s, size_t bytes) {
    if (zero_shm_map(s, m->comm, m->on_host, bytes) != ZERO_OK)
        return zero_comm_fail(&m->base, ZERO_ERR_MEMORY, "no memory for %zu bytes of staging", bytes);
    zero_accounting_add(m->memory, ZERO_MEM_TRANSPORT, bytes, 0);
    for (int r = 0; r < s->ranks && m->pinned; r++) {
        const cudaError_t e = s->peer[r] ? cudaHostRegister(s->peer[r], bytes, cudaHostRegisterDefault) : cudaSuccess;
        if (e == cudaSuccess) continue;
        (void)cudaGetLastError();
        while (r-- > 0)
            if (s->peer[r]) (void)cudaHostUnregister(s->peer[r]);
        zero_accounting_add(m->memory, ZERO_MEM_TRANSPORT, 0, bytes);
        zero_shm_unmap(s);
        return zero_comm_fail(
            &m->base, ZERO_ERR_MEMORY,
            "%zu bytes of staging cannot be pinned: %s: use fewer ranks on this host, or a smaller model", bytes,
            cudaGetErrorString(e));
    }
    return ZERO_OK;
}

void zero_mpi_unmap_staging(comm_mpi *m, struct zero_shm *s) {
    for (int r = 0; r < s->ranks && s->peer && m->pinned; r++)
        if (s->peer[r]) (void)cudaHostUnregister(s->peer[r]);
    zero_accounting_add(m->memory, ZERO_MEM_TRANSPORT, 0, s->bytes);
    zero_shm_unmap(s);
}

// Staged: copy `bytes` from the device to the staging buffer, at the same offset in it, and publish.
static int stage_out(comm_mpi *m, const char *from, size_t offset, size_t bytes, size_t whole, zero_ticket ticket,
                     cudaStream_t stream) {
    int e = wait_readers(m, m->staging_ticket);
    const size_t need = whole ? whole : 1;  // a unit may be empty, a map may not
    if (!e && m->staging.bytes < need) {
        zero_mpi_unmap_staging(m, &m->staging);
        e = zero_mpi_map_staging(m, &m->staging, need);
    }
    if (!e)
        e = zero_mpi_device_check(
            m, cudaMemcpyAsync(m->staging.peer[m->base.rank] + offset, from, bytes, cudaMemcpyDeviceToHost, stream));
    if (!e) e = zero_mpi_device_check(m, cudaStreamSynchronize(stream));
    if (e) return e;
    m->staging_ticket = ticket;
    zero_shm_publish(&control_of(m, m->base.rank)->ready, ticket);
    return ZERO_OK;
}

static int next_to_finish(comm_mpi *m, zero_ticket ticket, enum call_kind kind) {
    if (ticket == m->finished + 1 && ticket <= m->begun && m->pending[ticket % RING].call.kind == kind) return ZERO_OK;
    return zero_comm_fail(&m->base, ZERO_ERR_ARG, "operations must be finished in the order in which they were begun");
}

static void finished(comm_mpi *m, zero_ticket ticket) {
    m->finished = ticket;
    if (m->base.size > 1) zero_shm_publish(&control_of(m, m->base.rank)->done, ticket);
}

static int mpi_all_to_all_finish(zero_comm *c, zero_ticket ticket, cudaStream_t stream, const void *const **pieces) {
    comm_mpi *m = self(c);
    int e = next_to_finish(m, ticket, CALL_EXCHANGE);
    if (e) return e;
    const struct pending *p = &m->pending[ticket % RING];
    const size_t bytes = p->call.bytes, whole = bytes * (size_t)c->size;
    const int remote = m->num_remote > 0, size = c->size;
    if (m->staged && size > 1) {
        e = stage_out(m, p->buf, 0, whole, whole, ticket, stream);
        if (!e) e = zero_mpi_grow(m, &m->device_scratch, &m->device_scratch_bytes, whole, 1);
    }
    if (remote && !e) {
        e = zero_mpi_grow(m, &m->received, &m->received_bytes, whole, 0);
        if (!e)
            e = exchange_messages(m, ticket, m->staged ? m->staging.peer[c->rank] : p->buf, bytes, m->received, bytes,
                                  bytes);
    }
    for (int r = 0; r < size && !e; r++) {
        const char *from = NULL;
        if (r == c->rank) {
            m->pieces[r] = p->buf + (size_t)r * bytes;
            continue;
        }
        if (!m->on_host[r]) {
            from = m->received + (size_t)r * bytes;
        } else if ((e = wait_ready(m, r, ticket)) == ZERO_OK) {
            from = (m->staged ? m->staging.peer[r] : m->maps[p->call.buffer].peer[r] + p->call.offset) +
                   (size_t)c->rank * bytes;
        }
        if (m->staged && !e) {
            char *to = m->device_scratch + (size_t)r * bytes;
            e = zero_mpi_device_check(m, cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream));
            from = to;
        }
        m->pieces[r] = from;
        c->received[ZERO_WIRE_GRADS] += bytes;
    }
    if (!e)
        e = zero_mpi_device_check(m, cudaMemcpyAsync(m->pieces_device, m->pieces, (size_t)size * sizeof *m->pieces,
                                                     cudaMemcpyHostToDevice, stream));
    *pieces = m->pieces_device;
    return e;
}

static int mpi_all_to_all_done(zero_comm *c, zero_ticket ticket, cudaStream_t stream) {
    const int e = zero_mpi_device_check(self(c), cudaStreamSynchronize(stream));
    if (!e) finished(self(c), ticket);
    return e;
}

static int mpi_allgather_finish(zero_comm *c, zero_ticket ticket, cudaStream_t stream) {
    comm_mpi *m = self(c);
    int e = next_to_finish(m, ticket, CALL_ALLGATHER);
    if (e) return e;
    const struct pending *p = &m->pending[ticket % RING];
    const size_t bytes = p->call.bytes, own = (size_t)c->rank * bytes;
    const int remote = m->num_remote > 0, size = c->size;
    char *arrived = p->buf;  // where messages arrive: in place unless staged
    if (m->staged && size > 1) e = stage_out(m, p->buf + own, own, bytes, bytes * (size_t)size, ticket, stream);
    if (remote && !e && m->staged) {
        e = zero_mpi_grow(m, &m->received, &m->received_bytes, bytes * (size_t)size, 0);
        arrived = m->received;
    }
    if (remote && !e)
        e = exchange_messages(m, ticket, m->staged ? m->staging.peer[c->rank] + own : p->buf + own, 0, arrived, bytes,
                              bytes);
    for (int r = 0; r < size && !e; r++) {
        if (r == c->rank) continue;
        const char *from = arrived + (size_t)r * bytes;
        if (m->on_host[r]) {
            e = wait_ready(m, r, ticket);
            from = (m->staged ? m->staging.peer[r] : m->maps[p->call.buffer].peer[r] + p->call.offset) +
                   (size_t)r * bytes;
        }
        char *to = p->buf + (size_t)r * bytes;
        if (from != to && !e) e = zero_mpi_device_check(m, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream));
        c->received[p->wire] += bytes;
    }
    if (!e) e = zero_mpi_device_check(m, cudaStreamSynchronize(stream));
    if (!e) finished(m, ticket);
    return e;
}

static int mpi_allgather_host(zero_comm *c, const void *mine, size_t bytes, void *all) {
    comm_mpi *m = self(c);
    const size_t stride = bytes;
    int e = ZERO_OK;
    memcpy((char *)all + (size_t)c->rank * stride, mine, bytes);
    if (m->begun != m->finished)
        return zero_comm_fail(c, ZERO_ERR_ARG, "numbers can be gathered only when no other operation is pending");
    for (size_t at = 0; at < bytes && c->size > 1 && !e; at += SMALL_BYTES) {
        const size_t n = bytes - at < SMALL_BYTES ? bytes - at : SMALL_BYTES;
        const size_t slot = m->small_count++ & 1;  // two slots: a peer may still read the last one
        zero_ticket ticket = 0;
        e = wait_readers(m, m->small_ticket[slot]);
        if (!e) {
            memcpy(control_of(m, c->rank)->small[slot], (const char *)mine + at, n);
            e = begin(m, (struct call){ CALL_SMALL, slot, 0, n }, NULL, ZERO_WIRE_SCALARS, NULL, &ticket);
        }
        if (!e && m->num_remote)
            e = exchange_messages(m, ticket, control_of(m, c->rank)->small[slot], 0, (char *)all + at, stride, n);
        for (int r = 0; r < c->size && !e; r++) {
            if (r == c->rank) continue;
            c->received[ZERO_WIRE_SCALARS] += n;
            if (!m->on_host[r]) continue;
            e = wait_ready(m, r, ticket);
            if (!e) memcpy((char *)all + (size_t)r * stride + at, control_of(m, r)->small[slot], n);
        }
        if (!e) finished(m, ticket);
        m->small_ticket[slot] = m->begun;
    }
    return e;
}

static int mpi_reduce_scatter(zero_comm *c, const void *buf, enum zero_dtype dtype, size_t chunk_numel, float *out,
                              cudaStream_t stream, zero_ticket *ticket) {
    *ticket = 0;  // all is over when this returns
    comm_mpi *m = self(c);
    const size_t n = chunk_numel * (size_t)c->size, bytes = n * zero_dtype_bytes(dtype);
    if (n > 0x7fffffff)
        return zero_comm_fail(c, ZERO_ERR_ARG,
                              "MPI_Reduce_scatter_block takes at most 2^31 - 1 elements in all: use --reduce exact");
    // all in fp32, then the sum
    int e = zero_mpi_grow(m, &m->received, &m->received_bytes, (n + chunk_numel) * sizeof(float), 0);
    if (e) return e;
    float *all = (float *)m->received, *sum = all + n;
    if (!e) e = zero_mpi_device_check(m, cudaMemcpyAsync(all, buf, bytes, cudaMemcpyDeviceToHost, stream));
    if (!e) e = zero_mpi_device_check(m, cudaStreamSynchronize(stream));
    if (e) return e;
    if (dtype == ZERO_BF16)  // widen in place, from the end
        for (size_t i = n; i-- > 0;) {
            const uint32_t word = (uint32_t)((const uint16_t *)m->received)[i] << 16;
            memcpy(all + i, &word, sizeof word);
        }
    MPI_Request *q = NULL;
    e = add_request(m, &m->messages, (c->rank + 1) % c->size, &q);
    if (e) return e;
    if (MPI_Ireduce_scatter_block(all, sum, (int)chunk_numel, MPI_FLOAT, MPI_SUM, m->comm, q) != MPI_SUCCESS)
        return zero_comm_fail(c, ZERO_ERR_COMM, "MPI_Ireduce_scatter_block failed");
    e = zero_mpi_wait_messages(m, &m->messages);
    c->received[ZERO_WIRE_GRADS] += (size_t)(c->size - 1) * chunk_numel * sizeof(float);
    if (!e)
        e = zero_mpi_device_check(
            m, cudaMemcpyAsync(out, sum, chunk_numel * sizeof(float), cudaMemcpyHostToDevice, stream));
    return e ? e : zero_mpi_device_check(m, cudaStreamSynchronize(stream));
}

static zero_comm_shape mpi_shape(const zero_comm *c) {
    const comm_mpi *m = (const comm_mpi *)c;
    return zero_comm_mpi_shape((size_t)c->size, m->staged, m->num_remote > 0);
}

static size_t mpi_scratch_bytes(const zero_comm_shape *s, size_t all_to_all_bytes, size_t gather_bytes,
                                size_t reduced_numel) {
    const size_t larger = all_to_all_bytes > gather_bytes ? all_to_all_bytes : gather_bytes;
    size_t bytes = s->ranks * sizeof(void *) + (s->ranks > 1 ? sizeof(struct control) : 0);
    if (s->staged && s->ranks > 1) bytes += larger + all_to_all_bytes;  // staging; the pieces on the device
    size_t received = s->remote ? s->staged ? larger : all_to_all_bytes : 0;
    // in fp32, and this rank's sum
    const size_t reduced = (reduced_numel + reduced_numel / s->ranks) * sizeof(float);
    if (reduced > received) received = reduced;
    return bytes + received;
}

static void mpi_destroy(zero_comm *c) {
    comm_mpi *m = self(c);
    zero_comm_free_all(c);
    zero_accounting_add(m->memory, ZERO_MEM_TRANSPORT, 0,
                        m->control.bytes + m->received_bytes + m->device_scratch_bytes);
    zero_mpi_unmap_staging(m, &m->staging);
    zero_shm_unmap(&m->control);
    (void)cudaFreeHost(m->received);
    (void)cudaFree(m->device_scratch);
    zero_accounting_free(m->memory, ZERO_MEM_TRANSPORT, m->pieces_device, (size_t)c->size * sizeof *m->pieces);
    free(m->pieces);
    free(m->messages.requests);
    free(m->messages.peer);
    free(m->on_host);
    free(c->names);
    int finalized = 0;
    (void)MPI_Finalized(&finalized);
    if (!finalized && m->comm != MPI_COMM_NULL) (void)MPI_Comm_free(&m->comm);
    free(m);
}

static const zero_comm_ops ops = {
    .alloc = mpi_alloc,
    .free = mpi_free,
    .all_to_all_begin = mpi_all_to_all_begin,
    .all_to_all_finish = mpi_all_to_all_finish,
    .all_to_all_done = mpi_all_to_all_done,
    .allgather_begin = mpi_allgather_begin,
    .allgather_finish = mpi_allgather_finish,
    .reusable = mpi_reusable,
    .reduce_scatter = mpi_reduce_scatter,
    .allgather_host = mpi_allgather_host,
    .window_create = zero_mpi_window_create,
    .window_destroy = zero_mpi_window_destroy,
    .expose = zero_mpi_window_open,
    .conceal = zero_mpi_window_close,
    .fetch_begin = zero_mpi_window_gather_begin,
    .fetch_finish = zero_mpi_window_gather_finish,
    .window_scratch_bytes = zero_mpi_window_scratch_bytes,
    .shape = mpi_shape,
    .scratch_bytes = mpi_scratch_bytes,
    .synchronize = mpi_synchronize,
    .destroy = mpi_destroy,
};

zero_comm_shape zero_comm_mpi_shape(size_t ranks, int staged, int remote) {
    return (zero_comm_shape){ &ops, ranks, staged, remote };
}

// Which ranks live on this rank's host: those that MPI could give shared memory with.
static int find_host(comm_mpi *m, const zero_comm_mpi_config *config) {
    MPI_Comm host = MPI_COMM_NULL;
    int e = MPI_SUCCESS, leader = m->base.rank, size = m->base.size, *leaders = malloc((size_t)size * sizeof *leaders);
    if (!leaders) return ZERO_ERR_MEMORY;
    if (config->ranks_per_host > 0) {
        leader = m->base.rank / config->ranks_per_host;
    } else {
        e = MPI_Comm_split_type(m->comm, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host);
        if (!e) e = MPI_Bcast(&leader, 1, MPI_INT, 0, host);
        if (!e) e = MPI_Comm_free(&host);
    }
    if (!e) e = MPI_Allgather(&leader, 1, MPI_INT, leaders, 1, MPI_INT, m->comm);
    for (int r = 0; r < size && !e; r++) m->on_host[r] = r == m->base.rank || leaders[r] == leader;
    free(leaders);
    return e ? ZERO_ERR_COMM : ZERO_OK;
}

// The ranks of the job that this communicator's ranks are.
static int find_names(comm_mpi *m) {
    MPI_Group world, group;
    const int size = m->base.size;
    int *own = malloc((size_t)size * sizeof *own);
    m->base.names = calloc((size_t)size, sizeof *m->base.names);
    if (!own || !m->base.names) {
        free(own);
        return ZERO_ERR_MEMORY;
    }
    for (int r = 0; r < size; r++) own[r] = r;
    int e = MPI_Comm_group(MPI_COMM_WORLD, &world);
    if (!e) e = MPI_Comm_group(m->comm, &group);
    if (!e) e = MPI_Group_translate_ranks(group, size, own, world, m->base.names);
    if (!e) e = MPI_Group_free(&world);
    if (!e) e = MPI_Group_free(&group);
    free(own);
    return e ? ZERO_ERR_COMM : ZERO_OK;
}

static void only_messages(comm_mpi *m) {
    for (int r = 0; r < m->base.size; r++) m->on_host[r] = r == m->base.rank;
}

int zero_comm_create_mpi(zero_comm **out, MPI_Comm comm, const zero_comm_mpi_config *config, zero_accounting *memory) {
    comm_mpi *m = calloc(1, sizeof *m);
    *out = (zero_comm *)m;
    if (!m) return ZERO_ERR_MEMORY;
    m->base.ops = &ops;
    m->memory = memory;
    m->comm = MPI_COMM_NULL;
    if (MPI_Comm_dup(comm, &m->comm) || MPI_Comm_set_errhandler(m->comm, MPI_ERRORS_RETURN) ||
        MPI_Comm_rank(m->comm, &m->base.rank) || MPI_Comm_size(m->comm, &m->base.size))
        return zero_comm_fail(&m->base, ZERO_ERR_COMM, "MPI_Comm_dup failed");
    const int size = m->base.size;
    m->timeout_s = config->timeout_s > 0 ? config->timeout_s : 300;
    m->on_host = calloc((size_t)size, sizeof *m->on_host);
    m->pieces = calloc((size_t)size, sizeof *m->pieces);
    m->pieces_device = zero_accounting_alloc(memory, ZERO_MEM_TRANSPORT, (size_t)size * sizeof *m->pieces);
    int e = m->on_host && m->pieces && m->pieces_device ? find_names(m) : ZERO_ERR_MEMORY;
    if (!e && size > 1) e = find_host(m, config);
    if (e == ZERO_ERR_MEMORY) return zero_comm_fail(&m->base, e, "no memory for the tables of %d ranks", size);
    if (e) return zero_comm_fail(&m->base, e, "MPI failed while %d ranks found out who is on which host", size);
    struct cudaPointerAttributes where;
    e = zero_mpi_device_check(m, cudaPointerGetAttributes(&where, m->pieces_device));
    if (e) return e;
    m->staged = config->staged || !where.hostPointer;  // on a GPU
    if (size == 1) {
        m->on_host[0] = 1;
        snprintf(m->base.name, sizeof m->base.name, "none: one rank");
        return ZERO_OK;
    }
    const char *note = "";
    if (config->no_shared_memory) only_messages(m);
    // never silent: the name says so
    if (zero_shm_map(&m->control, m->comm, m->on_host, sizeof(struct control)) != ZERO_OK) {
        note = " (ranks of this host cannot map each other's memory)";
        only_messages(m);
        if (zero_shm_map(&m->control, m->comm, m->on_host, sizeof(struct control)) != ZERO_OK)
            return zero_comm_fail(&m->base, ZERO_ERR_MEMORY, "memfd_create failed: %s", strerror(errno));
    }
    zero_accounting_add(memory, ZERO_MEM_TRANSPORT, sizeof(struct control), 0);
    int on_host = 0;
    for (int r = 0; r < size; r++) on_host += m->on_host[r];
    m->num_remote = size - on_host;
    const int sharing = on_host > 1;
    if (MPI_Allreduce(&sharing, &m->sharing, 1, MPI_INT, MPI_MAX, m->comm))
        return zero_comm_fail(&m->base, ZERO_ERR_COMM, "MPI_Allreduce failed");
    m->spin = on_host <= sysconf(_SC_NPROCESSORS_ONLN) ? 2000 : 0;
    m->pinned = m->staged && can_pin(m->control.peer[m->base.rank], sizeof(struct control));
    snprintf(m->base.name, sizeof m->base.name, "MPI, %s%s%s%s",
             m->num_remote == 0 ? "shared memory"
             : !m->sharing      ? "messages"
                                : "shared memory and messages",
             m->staged ? ", staged through the host" : "",
             m->staged && !m->pinned ? " (slower: its memory cannot be pinned here)" : "", note);
    return ZERO_OK;
}
