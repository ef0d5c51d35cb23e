// windows.c: windows of the MPI transport (comm.h says what a window is).
//
// Ranks of one host map each other's shard, or, staged, the host copy that open makes of it; a gather copies from
// there. Two counters in a map of the window's own say which *epoch* is open and which is closed:
//
//     open     epoch + 1, opened = epoch       gather waits until the owner's opened has reached this rank's epoch
//     close    closed = epoch                  and waits until closed of all ranks of the host has reached it
//
// Between hosts a gather is messages, posted in begin, so that they travel while the rank computes; staged, the copies
// to and from the device make it synchronous, in finish. In two levels (comm.h: hosts) finish passes the chunks that
// have come to this rank on to its host, in a *relay* that the others map. Its counters:
//
//     relayed = n      the relay has the chunks of the n-th gather that was finished
//     read = n         its owner has read the relays of all others; they may be written again
#include <stdlib.h>
#include <string.h>
#include "zero/comm/mpi/mpi_internal.h"

struct epochs {
    _Atomic uint64_t opened;
    char pad[56];
    _Atomic uint64_t closed;
    char pad2[56];
    _Atomic uint64_t relayed;
    char pad3[56];
    _Atomic uint64_t read;
    char pad4[56];
};

struct gather {
    struct zero_comm_call call;
    char *out;
    struct messages messages;
    int pending;
};

struct window {
    struct zero_window base;
    struct zero_shm map, staging, epochs;  // map: of the shards; staging: of their host copies
    uint64_t epoch;
    zero_ticket begun;
    struct gather gathers[ZERO_WINDOW_MAX_GATHERS];
    char *received;  // staged, one level: chunks from remote ranks, on the host
    size_t received_bytes;
    struct zero_shm relay;  // two levels: chunks from the ranks whose relay this rank is, one from each host
    uint64_t relays;        // gathers finished
};

static struct window *of(zero_window *w) { return (struct window *)w; }
static struct epochs *epochs_of(struct window *w, int rank) { return (struct epochs *)w->epochs.peer[rank]; }

// Where this rank reads rank r's shard, and sends its own from.
static char *shard_of(comm_mpi *m, struct window *w, int r) {
    if (m->staged) return w->staging.peer[r];
    return r == m->base.rank ? w->base.shard : w->map.peer[r];
}

int zero_mpi_window_create(zero_comm *c, zero_accounting *mem, enum zero_memory_category category, size_t bytes,
                           zero_window **out) {
    comm_mpi *m = zero_mpi_self(c);
    struct window *w = calloc(1, sizeof *w);
    *out = (zero_window *)w;
    if (!w) return zero_comm_fail(c, ZERO_ERR_MEMORY, "out of host memory");
    w->base = (struct zero_window){ NULL, bytes, mem, category };
    int e = ZERO_OK;
    if (c->size > 1) {
        e = zero_mpi_map(m, &w->epochs, m->memory, sizeof(struct epochs));
        if (e == ZERO_ERR_MEMORY)
            return zero_comm_fail(c, e, "no shared memory for %zu bytes of a window's counters: %s",
                                  sizeof(struct epochs), w->epochs.why);
        if (!e) zero_accounting_add(m->memory, ZERO_MEM_TRANSPORT, sizeof(struct epochs), 0);
    }
    if (!e && c->size > 1 && m->staged && (e = zero_mpi_map_staging(m, &w->staging, bytes))) return e;
    if (!e && m->sharing && !m->staged) {
        e = zero_mpi_map(m, &w->map, mem, bytes);
        if (!e) {
            w->base.shard = w->map.peer[c->rank];
            zero_accounting_add(mem, category, bytes, 0);
        }
    } else if (!e) {
        w->base.shard = zero_accounting_alloc(mem, category, bytes);
    }
    if (e == ZERO_ERR_COMM) return e;
    if (w->map.why[0])
        return zero_comm_fail(c, ZERO_ERR_MEMORY, "no shared memory for %zu bytes of %s: %s", bytes,
                              zero_memory_category_name(category), w->map.why);
    char refusal[ZERO_REFUSAL_BYTES];
    return w->base.shard
               ? ZERO_OK
               : zero_comm_fail(c, ZERO_ERR_MEMORY,
                                "no memory for %zu bytes of %s%s: use more ranks or a smaller model", bytes,
                                zero_memory_category_name(category), zero_accounting_refusal(mem, bytes, refusal));
}

void zero_mpi_window_destroy(zero_comm *c, zero_window *base) {
    comm_mpi *m = zero_mpi_self(c);
    struct window *w = of(base);
    for (int i = 0; i < ZERO_WINDOW_MAX_GATHERS; i++) zero_mpi_free_messages(m, &w->gathers[i].messages);
    if (w->map.peer || c->in_flight)
        zero_accounting_add(base->memory, base->category, 0, base->bytes);
    else
        zero_accounting_free(base->memory, base->category, base->shard, base->bytes);
    zero_accounting_add(m->memory, ZERO_MEM_TRANSPORT, 0, w->epochs.bytes + w->received_bytes);
    if (c->in_flight) {
        zero_keep(w);
        zero_accounting_add(m->memory, ZERO_MEM_TRANSPORT, 0, w->staging.bytes + w->relay.bytes);
        return;
    }
    zero_shm_unmap(&w->map);
    zero_mpi_unmap_staging(m, &w->staging);
    zero_mpi_unmap_staging(m, &w->relay);
    zero_shm_unmap(&w->epochs);
    (void)cudaFreeHost(w->received);
    free(w);
}

int zero_mpi_window_open(zero_comm *c, zero_window *base, cudaStream_t stream) {
    comm_mpi *m = zero_mpi_self(c);
    struct window *w = of(base);
    int e = ZERO_OK;
    w->epoch++;
    if (c->size == 1) return ZERO_OK;
    if (m->staged)
        e = zero_mpi_device_check(
            m, cudaMemcpyAsync(w->staging.peer[c->rank], base->shard, base->bytes, cudaMemcpyDeviceToHost, stream));
    if (!e) e = zero_mpi_device_check(m, cudaStreamSynchronize(stream));
    if (!e) zero_shm_publish(&epochs_of(w, c->rank)->opened, w->epoch);
    return e;
}

int zero_mpi_window_close(zero_comm *c, zero_window *base, cudaStream_t stream) {
    (void)stream;
    comm_mpi *m = zero_mpi_self(c);
    struct window *w = of(base);
    int e = ZERO_OK;
    for (int i = 0; i < ZERO_WINDOW_MAX_GATHERS; i++)
        if (w->gathers[i].pending)
            return zero_comm_fail(c, ZERO_ERR_ARG, "a window is closed while a gather from it is pending");
    if (c->size == 1) return ZERO_OK;
    zero_shm_publish(&epochs_of(w, c->rank)->closed, w->epoch);
    for (int r = 0; r < c->size && !e; r++)
        if (r != c->rank && m->on_host[r])
            e = zero_mpi_wait(m, r, &epochs_of(w, r)->closed, w->epoch, "has closed its window in epoch");
    return e;
}

// per_chunk: as in zero_mpi_post
static int post_gather(comm_mpi *m, struct window *w, struct gather *g, char *arrived, int per_chunk) {
    return zero_mpi_post(m, &g->messages, &g->call, shard_of(m, w, m->base.rank) + g->call.offset, 0, arrived,
                         g->call.bytes, per_chunk, g->call.bytes);
}

int zero_mpi_window_gather_begin(zero_comm *c, zero_window *base, const struct zero_comm_call *call, void *out,
                                 cudaStream_t stream, zero_ticket *ticket) {
    comm_mpi *m = zero_mpi_self(c);
    struct window *w = of(base);
    struct gather *g = &w->gathers[(w->begun + 1) % ZERO_WINDOW_MAX_GATHERS];
    if (g->pending) return zero_comm_fail(c, ZERO_ERR_ARG, "more than %d gathers pending", ZERO_WINDOW_MAX_GATHERS);
    *ticket = ++w->begun;
    g->call = *call;
    g->out = out;
    g->pending = 1;
    if (!m->num_remote || m->staged) return ZERO_OK;
    const int e = zero_mpi_device_check(m, cudaStreamSynchronize(stream));  // what used `out` before is over
    return e ? e : post_gather(m, w, g, g->out, 1);
}

// The relay has room for a chunk from each host, and nobody reads it any more.
static int take_relay(comm_mpi *m, struct window *w, size_t chunk_bytes) {
    const zero_comm *c = &m->base;
    const size_t bytes = (size_t)(c->size / c->per_host) * chunk_bytes;
    int e = ZERO_OK;
    for (int r = 0; r < c->size && !e; r++)
        if (r != c->rank && m->on_host[r])
            e = zero_mpi_wait(m, r, &epochs_of(w, r)->read, w->relays, "has read gather");
    if (e || (w->relay.peer && w->relay.bytes >= bytes)) return e;
    zero_mpi_unmap_staging(m, &w->relay);
    return zero_mpi_map_staging(m, &w->relay, bytes);
}

// Receives what this rank relays, and publishes it.
static int relay_gather(comm_mpi *m, struct window *w, struct gather *g) {
    const zero_comm *c = &m->base;
    const size_t bytes = g->call.bytes;
    int e = take_relay(m, w, bytes);
    if (!e && m->staged) e = post_gather(m, w, g, w->relay.peer[c->rank], c->per_host);
    if (!e) e = zero_mpi_wait_messages(m, &g->messages);
    for (int r = c->rank % c->per_host; r < c->size && !e && !m->staged; r += c->per_host)
        if (r != c->rank)
            memcpy(w->relay.peer[c->rank] + (size_t)(r / c->per_host) * bytes, g->out + (size_t)r * bytes, bytes);
    zero_mpi_publish_relay(m, e, &epochs_of(w, c->rank)->relayed, ++w->relays);
    return e;
}

// Where rank r's chunk is, once it has come: in its shard, where messages arrive, or in a relay.
static int find_chunk(comm_mpi *m, struct window *w, const struct gather *g, const char *arrived, int r,
                      const char **from) {
    const size_t bytes = g->call.bytes;
    int e = ZERO_OK;
    *from = arrived + (size_t)r * bytes;
    if (r == m->base.rank) {
        *from = w->base.shard + g->call.offset;
    } else if (m->on_host[r]) {
        e = zero_mpi_wait(m, r, &epochs_of(w, r)->opened, w->epoch, "has opened its window in epoch");
        *from = shard_of(m, w, r) + g->call.offset;
    } else if (zero_mpi_relays(m, &g->call) && (m->staged || zero_mpi_relay(m, r) != m->base.rank)) {
        const int relay = zero_mpi_relay(m, r);
        e = zero_mpi_wait_relay(m, &g->call, r, &epochs_of(w, relay)->relayed, w->relays);
        *from = w->relay.peer[relay] + (size_t)(r / m->base.per_host) * bytes;
    }
    return e;
}

int zero_mpi_window_gather_finish(zero_comm *c, zero_window *base, zero_ticket ticket, cudaStream_t stream) {
    comm_mpi *m = zero_mpi_self(c);
    struct window *w = of(base);
    struct gather *g = &w->gathers[ticket % ZERO_WINDOW_MAX_GATHERS];
    const size_t bytes = g->call.bytes;
    int e = g->pending ? ZERO_OK : zero_comm_fail(c, ZERO_ERR_ARG, "a gather is finished that was not begun");
    const int relays = zero_mpi_relays(m, &g->call);
    char *arrived = g->out;
    if (relays && !e) {
        e = relay_gather(m, w, g);
    } else if (m->num_remote && !e) {
        if (m->staged) {
            e = zero_mpi_grow(m, &w->received, &w->received_bytes, bytes * (size_t)c->size, 0);
            arrived = w->received;
            if (!e) e = post_gather(m, w, g, arrived, 1);
        }
        if (!e) e = zero_mpi_wait_messages(m, &g->messages);
    }
    for (int r = 0; r < c->size && !e; r++) {
        char *to = g->out + (size_t)r * bytes;
        const char *from = NULL;
        e = find_chunk(m, w, g, arrived, r, &from);
        if (from != to && !e) e = zero_mpi_device_check(m, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream));
        if (r != c->rank) c->received[ZERO_WIRE_PARAMS] += bytes;
    }
    // the host buffers may be used again
    if ((m->staged || relays) && !e) e = zero_mpi_device_check(m, cudaStreamSynchronize(stream));
    if (relays && !e) zero_shm_publish(&epochs_of(w, c->rank)->read, w->relays);
    g->pending = 0;
    return e;
}

size_t zero_mpi_window_scratch_bytes(const zero_comm_shape *s, size_t shard_bytes, size_t unit_bytes) {
    if (s->ranks == 1) return 0;
    const size_t arrive = s->per_host ? unit_bytes / s->per_host : s->staged && s->remote ? unit_bytes : 0;
    return sizeof(struct epochs) + (s->staged ? shard_bytes : 0) + arrive;
}
