// window_mpi.c: windows of the MPI transport (comm.h says what a window is).
//
// Ranks of one host map each other's shard, or, staged, the host copy that expose makes of it; a fetch copies from
// there. Two counters in a map of the window's own say which *epoch* (exposure) is open and which is over. Between
// hosts a fetch is messages, posted in begin so that they travel while the rank computes; staged, the copies to and
// from the device make it synchronous, in finish.
#include <stdlib.h>
#include <string.h>
#include "zero/comm/mpi/mpi_internal.h"

struct epochs {
    _Atomic uint32_t exposed;
    char pad[60];
    _Atomic uint32_t concealed;
    char pad2[60];
};

struct fetch {
    size_t offset, chunk_bytes;
    char *out;
    struct messages messages;
    int pending;
};

struct window {
    struct zero_window base;
    struct zero_shm map, staging, epochs;  // map: of the shards; staging: of their host copies
    uint64_t epoch;
    zero_ticket begun;
    struct fetch fetches[ZERO_WINDOW_MAX_GATHERS];
    char *received;  // staged: pieces from remote ranks, on the host
    size_t received_bytes;
};

static struct window *of(zero_window *w) { return (struct window *)w; }
static struct epochs *epochs_of(struct window *w, int rank) { return (struct epochs *)w->epochs.peer[rank]; }

// Where this rank finds rank r's shard; its own for sending.
static char *shard_of(comm_mpi *m, struct window *w, int r) {
    if (m->staged) return w->staging.peer[r];
    return r == m->base.rank ? w->base.shard : w->map.peer[r];
}

int zero_mpi_window_create(zero_comm *c, zero_accounting *mem, enum zero_memory_category category, size_t bytes,
                           zero_window **out) {
    comm_mpi *m = self(c);
    struct window *w = calloc(1, sizeof *w);
    *out = (zero_window *)w;
    if (!w) return zero_comm_fail(c, ZERO_ERR_MEMORY, "out of host memory");
    w->base = (struct zero_window){ NULL, bytes, mem, category };
    int e = ZERO_OK;
    if (c->size > 1 && (e = zero_shm_map(&w->epochs, m->comm, m->on_host, sizeof(struct epochs))) == ZERO_OK)
        zero_accounting_add(m->memory, ZERO_MEM_TRANSPORT, sizeof(struct epochs), 0);
    if (!e && c->size > 1 && m->staged && (e = zero_mpi_map_staging(m, &w->staging, bytes))) return e;
    if (!e && m->sharing && !m->staged) {
        e = zero_shm_map(&w->map, m->comm, m->on_host, bytes);
        if (!e) {
            w->base.shard = w->map.peer[c->rank];
            zero_accounting_add(mem, category, bytes, 0);
        }
    } else if (!e) {
        w->base.shard = zero_accounting_alloc(mem, category, bytes);
    }
    return w->base.shard
               ? ZERO_OK
               : zero_comm_fail(c, ZERO_ERR_MEMORY, "no memory for %zu bytes of %s: use more ranks or a smaller model",
                                bytes, zero_memory_category_name(category));
}

void zero_mpi_window_destroy(zero_comm *c, zero_window *base) {
    comm_mpi *m = self(c);
    struct window *w = of(base);
    if (w->map.peer)
        zero_accounting_add(base->memory, base->category, 0, base->bytes);
    else
        zero_accounting_free(base->memory, base->category, base->shard, base->bytes);
    zero_accounting_add(m->memory, ZERO_MEM_TRANSPORT, 0, w->epochs.bytes + w->received_bytes);
    zero_shm_unmap(&w->map);
    zero_mpi_unmap_staging(m, &w->staging);
    zero_shm_unmap(&w->epochs);
    for (int i = 0; i < ZERO_WINDOW_MAX_GATHERS; i++) {
        free(w->fetches[i].messages.requests);
        free(w->fetches[i].messages.peer);
    }
    (void)cudaFreeHost(w->received);
    free(w);
}

int zero_mpi_window_open(zero_comm *c, zero_window *base, cudaStream_t stream) {
    comm_mpi *m = self(c);
    struct window *w = of(base);
    int e = ZERO_OK;
    w->epoch++;
    if (c->size == 1) return ZERO_OK;
    if (m->staged)
        e = zero_mpi_device_check(
            m, cudaMemcpyAsync(w->staging.peer[c->rank], base->shard, base->bytes, cudaMemcpyDeviceToHost, stream));
    if (!e) e = zero_mpi_device_check(m, cudaStreamSynchronize(stream));
    if (!e) zero_shm_publish(&epochs_of(w, c->rank)->exposed, w->epoch);
    return e;
}

int zero_mpi_window_close(zero_comm *c, zero_window *base, cudaStream_t stream) {
    (void)stream;
    comm_mpi *m = self(c);
    struct window *w = of(base);
    int e = ZERO_OK;
    for (int i = 0; i < ZERO_WINDOW_MAX_GATHERS; i++)
        if (w->fetches[i].pending)
            return zero_comm_fail(c, ZERO_ERR_ARG, "a window is concealed while a fetch from it is pending");
    if (c->size == 1) return ZERO_OK;
    zero_shm_publish(&epochs_of(w, c->rank)->concealed, w->epoch);
    for (int r = 0; r < c->size && !e; r++)
        if (r != c->rank && m->on_host[r])
            e = zero_mpi_wait(m, r, &epochs_of(w, r)->concealed, w->epoch, "has done with the parameters of update");
    return e;
}

// To and from the ranks of other hosts; on the host.
static int post_fetch(comm_mpi *m, struct window *w, struct fetch *f, zero_ticket ticket, char *arrived) {
    const int tag = 16384 + (int)(ticket % 16384);
    return zero_mpi_post(m, &f->messages, tag, shard_of(m, w, m->base.rank) + f->offset, 0, arrived, f->chunk_bytes,
                         f->chunk_bytes);
}

int zero_mpi_window_gather_begin(zero_comm *c, zero_window *base, size_t offset, size_t chunk_bytes, void *out,
                                 cudaStream_t stream, zero_ticket *ticket) {
    comm_mpi *m = self(c);
    struct window *w = of(base);
    struct fetch *f = &w->fetches[(w->begun + 1) % ZERO_WINDOW_MAX_GATHERS];
    if (chunk_bytes > base->bytes || offset > base->bytes - chunk_bytes)
        return zero_comm_fail(c, ZERO_ERR_ARG, "a fetch leaves the window");
    if (f->pending) return zero_comm_fail(c, ZERO_ERR_ARG, "more than %d fetches pending", ZERO_WINDOW_MAX_GATHERS);
    *ticket = ++w->begun;
    f->offset = offset;
    f->chunk_bytes = chunk_bytes;
    f->out = out;
    f->pending = 1;
    if (!m->num_remote || m->staged) return ZERO_OK;
    const int e = zero_mpi_device_check(m, cudaStreamSynchronize(stream));  // what used `out` before is over
    return e ? e : post_fetch(m, w, f, *ticket, f->out);
}

int zero_mpi_window_gather_finish(zero_comm *c, zero_window *base, zero_ticket ticket, cudaStream_t stream) {
    comm_mpi *m = self(c);
    struct window *w = of(base);
    struct fetch *f = &w->fetches[ticket % ZERO_WINDOW_MAX_GATHERS];
    const size_t bytes = f->chunk_bytes;
    int e = f->pending ? ZERO_OK : zero_comm_fail(c, ZERO_ERR_ARG, "a fetch is finished that was not begun");
    char *arrived = f->out;
    if (m->num_remote && m->staged && !e) {
        e = zero_mpi_grow(m, &w->received, &w->received_bytes, bytes * (size_t)c->size, 0);
        arrived = w->received;
        if (!e) e = post_fetch(m, w, f, ticket, arrived);
    }
    if (m->num_remote && !e) e = zero_mpi_wait_messages(m, &f->messages);
    for (int r = 0; r < c->size && !e; r++) {
        char *to = f->out + (size_t)r * bytes;
        const char *from = arrived + (size_t)r * bytes;
        if (r == c->rank) {
            from = base->shard + f->offset;
        } else if (m->on_host[r]) {
            e = zero_mpi_wait(m, r, &epochs_of(w, r)->exposed, w->epoch, "has exposed the parameters of update");
            from = shard_of(m, w, r) + f->offset;
        }
        if (from != to && !e) e = zero_mpi_device_check(m, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream));
        if (r != c->rank) c->received[ZERO_WIRE_PARAMS] += bytes;
    }
    // the host buffers may be used again
    if (m->staged && !e) e = zero_mpi_device_check(m, cudaStreamSynchronize(stream));
    f->pending = 0;
    return e;
}

size_t zero_mpi_window_scratch_bytes(const zero_comm_shape *s, size_t shard_bytes, size_t unit_bytes) {
    if (s->ranks == 1) return 0;
    return sizeof(struct epochs) + (s->staged ? shard_bytes + (s->remote ? unit_bytes : 0) : 0);
}
