// comm.c: what all transports share: dispatch, the record of calls that ranks must agree about, the list of symmetric
// buffers, messages of errors, injected delays.
//
// Agreement. Ranks that call different collectives, or the same ones for different units, would exchange garbage or
// hang. So each collective has a record (struct zero_comm_call), with a hash of all records before it. The mpi
// transport compares records wherever ranks meet; the nccl transport, which cannot look at what its stream moves, in
// every all-gather of scalars, hence before a norm, a loss or a hash is returned.
#include "zero/comm/comm.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include "zero/clock.h"
#include "zero/comm/transport.h"

int zero_comm_rank(const zero_comm *c) { return c->rank; }
int zero_comm_size(const zero_comm *c) { return c->size; }
const char *zero_comm_name(const zero_comm *c) { return c->name; }
const char *zero_comm_error(const zero_comm *c) {
    if (!*c->error && c->host && *c->host->error) return c->host->error;
    return !*c->error && c->across ? c->across->error : c->error;
}
void zero_comm_reset_error(zero_comm *c) {
    if (!c->failed) c->error[0] = '\0';
    if (c->host) zero_comm_reset_error(c->host);
    if (c->across) zero_comm_reset_error(c->across);
}
uint64_t zero_comm_received(const zero_comm *c, enum zero_wire kind) {
    return c->received[kind] + (c->host ? c->host->received[kind] : 0) + (c->across ? c->across->received[kind] : 0);
}
double zero_comm_waited(const zero_comm *c) {
    return c->waited + (c->host ? c->host->waited : 0) + (c->across ? c->across->waited : 0);
}
cudaStream_t zero_comm_stream(const zero_comm *c) { return c->stream; }
int zero_comm_in_flight(const zero_comm *c) { return c->in_flight; }

void zero_comm_phase(zero_comm *c, const char *phase, size_t unit) {
    c->phase = phase;
    c->phase_unit = unit;
    if (c->host) zero_comm_phase(c->host, phase, unit);
    if (c->across) zero_comm_phase(c->across, phase, unit);
}

int zero_comm_world_rank(const zero_comm *c, int rank) { return c->world_rank ? c->world_rank[rank] : rank; }

int zero_comm_fail(zero_comm *c, int code, const char *format, ...) {
    if (c->failed) return c->failed;
    char message[512];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    snprintf(c->error, sizeof c->error, "rank %d, in %s (unit %zu): %s", zero_comm_world_rank(c, c->rank),
             c->phase ? c->phase : "start-up", c->phase_unit, message);
    if (code == ZERO_ERR_COMM) c->failed = code;
    return code;
}

// ---- injected delays ------------------------------------------------------------------------------------------------

void zero_comm_set_delay_seed(zero_comm *c, uint64_t seed) {
    c->delay_state = seed && c->size > 1 ? (seed + (uint64_t)c->rank + 1) * 0x9e3779b97f4a7c15u : 0;
    if (c->host) zero_comm_set_delay_seed(c->host, seed);
    if (c->across) zero_comm_set_delay_seed(c->across, seed);
}

void zero_comm_inject_delay(zero_comm *c) {
    if (!c->delay_state) return;
    c->delay_state ^= c->delay_state << 13;
    c->delay_state ^= c->delay_state >> 7;
    c->delay_state ^= c->delay_state << 17;
    if (c->delay_state % 8 == 0) nanosleep(&(struct timespec){ 0, (long)(c->delay_state >> 32) % 500000 }, NULL);
}

// ---- agreement ------------------------------------------------------------------------------------------------------

const char *zero_comm_call_name(uint64_t kind) {
    static const char *const names[] = { "nothing",         "an all-to-all",
                                         "an all-gather",   "an all-gather of scalars",
                                         "a window gather", "a reduce-scatter" };
    return names[kind < sizeof names / sizeof *names ? kind : 0];
}

int zero_comm_compare(zero_comm *c, const struct zero_comm_call *mine, int peer, const struct zero_comm_call *theirs) {
    if (!memcmp(mine, theirs, sizeof *mine)) return ZERO_OK;
    c->disagrees = 1;
    if (theirs->kind < ZERO_CALL_ALL_TO_ALL || theirs->kind > ZERO_CALL_REDUCE_SCATTER)  // data, not a record
        return zero_comm_fail(
            c, ZERO_ERR_COMM,
            "the ranks disagree: this rank's collective %llu is %s of unit %llu, rank %d is in another "
            "collective: all ranks must make the same calls in the same order",
            (unsigned long long)mine->number, zero_comm_call_name(mine->kind), (unsigned long long)mine->unit,
            zero_comm_world_rank(c, peer));
    if (mine->number != theirs->number) {
        const int ahead = theirs->number > mine->number;
        return zero_comm_fail(
            c, ZERO_ERR_COMM,
            "the ranks disagree: rank %d has made %llu %s calls than this rank (its collective %llu, %s of unit %llu, "
            "met this rank's collective %llu, %s of unit %llu): all ranks must make the same calls in the same order",
            zero_comm_world_rank(c, peer),
            (unsigned long long)(ahead ? theirs->number - mine->number : mine->number - theirs->number),
            ahead ? "more" : "fewer", (unsigned long long)theirs->number, zero_comm_call_name(theirs->kind),
            (unsigned long long)theirs->unit, (unsigned long long)mine->number, zero_comm_call_name(mine->kind),
            (unsigned long long)mine->unit);
    }
    struct zero_comm_call but_history = *theirs;
    but_history.history = mine->history;
    if (!memcmp(mine, &but_history, sizeof *mine))
        return zero_comm_fail(c, ZERO_ERR_COMM,
                              "the ranks disagree about the calls before collective %llu: rank %d has made them in "
                              "another order, for other units, or with other sizes than this rank: all ranks must make "
                              "the same calls in the same order",
                              (unsigned long long)mine->number, zero_comm_world_rank(c, peer));
    return zero_comm_fail(
        c, ZERO_ERR_COMM,
        "the ranks disagree: collective %llu is %s of unit %llu (buffer %llu, offset %llu, %llu bytes) on this rank, "
        "and %s of unit %llu (buffer %llu, offset %llu, %llu bytes) on rank %d: all ranks must make the same calls in "
        "the same order",
        (unsigned long long)mine->number, zero_comm_call_name(mine->kind), (unsigned long long)mine->unit,
        (unsigned long long)mine->buffer, (unsigned long long)mine->offset, (unsigned long long)mine->bytes,
        zero_comm_call_name(theirs->kind), (unsigned long long)theirs->unit, (unsigned long long)theirs->buffer,
        (unsigned long long)theirs->offset, (unsigned long long)theirs->bytes, zero_comm_world_rank(c, peer));
}

void zero_comm_say_behind(const zero_comm *c, char *message, size_t bytes, int peer, const struct zero_comm_call *mine,
                          const struct zero_comm_call *its_last, double timeout_s) {
    char its[64] = "it has begun none";
    if (its_last->number)
        snprintf(its, sizeof its, "its last one is %s of unit %llu", zero_comm_call_name(its_last->kind),
                 (unsigned long long)its_last->unit);
    snprintf(message, bytes,
             "rank %d has not come within %.3g s to collective %llu, %s of unit %llu; %s: it died, stopped, or took "
             "another path; see its own output, or allow more time (zero_comm_config.timeout_s)",
             zero_comm_world_rank(c, peer), timeout_s, (unsigned long long)mine->number,
             zero_comm_call_name(mine->kind), (unsigned long long)mine->unit, its);
}

// All collectives pass here: numbers the call, and adds it to the history of later ones.
static struct zero_comm_call note_call(zero_comm *c, enum zero_comm_call_kind kind, uint64_t buffer, uint64_t offset,
                                       uint64_t bytes) {
    const struct zero_comm_call call = { ++c->calls, kind, c->phase_unit, buffer, offset, bytes, c->history };
    if (c->shown) {
        c->shown->call = call;
        atomic_store_explicit(&c->shown->number, call.number, memory_order_release);
    }
    c->records[call.number % ZERO_COMM_RECORDS] = (struct zero_comm_record){ call, c->phase, 0, zero_clock(), 0 };
    const uint64_t fields[] = { call.kind, call.unit, call.buffer, call.offset, call.bytes };
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        c->history = (c->history ^ fields[i]) * 0x9e3779b97f4a7c15u + (c->history >> 29);
    return call;
}

// The record of collective `number` gets its ticket, once it has begun.
static int recorded(zero_comm *c, const struct zero_comm_call *call, int e, const zero_ticket *ticket) {
    if (!e) c->records[call->number % ZERO_COMM_RECORDS].ticket = *ticket;
    return e;
}

// The collective of this kind with this ticket is finished, if its record is still there.
static int finished(zero_comm *c, enum zero_comm_call_kind kind, int e, zero_ticket ticket) {
    for (int i = 0; i < ZERO_COMM_RECORDS && !e; i++)
        if (c->records[i].call.kind == kind && c->records[i].ticket == ticket && ticket)
            c->records[i].finished = zero_clock();
    return e;
}

static void write_records(const zero_comm *c, FILE *f) {
    const double now = zero_clock();
    fprintf(f, "rank %d (%d of %d), %s\n%s\n", zero_comm_world_rank(c, c->rank), c->rank, c->size, c->name, c->error);
    for (uint64_t n = c->calls >= ZERO_COMM_RECORDS ? c->calls - ZERO_COMM_RECORDS + 1 : 1; n <= c->calls; n++) {
        const struct zero_comm_record *r = &c->records[n % ZERO_COMM_RECORDS];
        fprintf(f, "%llu %s, unit %llu, %llu bytes, in %s: begun %.6f s ago, ", (unsigned long long)n,
                zero_comm_call_name(r->call.kind), (unsigned long long)r->call.unit, (unsigned long long)r->call.bytes,
                r->phase ? r->phase : "start-up", now - r->begun);
        if (r->finished > 0)
            fprintf(f, "took %.6f s\n", r->finished - r->begun);
        else
            fprintf(f, "not finished\n");
    }
}

int zero_comm_write_records(const zero_comm *c, const char *path) {
    FILE *f = fopen(path, "w");
    if (!f) return ZERO_ERR_ARG;
    write_records(c, f);
    if (c->host) write_records(c->host, f);
    if (c->across) write_records(c->across, f);
    return fclose(f) ? ZERO_ERR_ARG : ZERO_OK;
}

// ---- hosts ----------------------------------------------------------------------------------------------------------

void zero_comm_set_hosts(zero_comm *c, int per_host, const zero_comm_config *config) {
    c->ranks_per_host = per_host;
    if (per_host == c->size) return;
    if (config->one_level)
        c->why_one_level = "zero_comm_config.one_level";
    else if (per_host > 1)
        c->per_host = per_host;
    else
        c->why_one_level = per_host ? "each host has one rank" : "hosts have different numbers of ranks, or mixed ones";
}

int zero_comm_ranks_per_host(const zero_comm *c) { return c->size == 1 ? 1 : c->ranks_per_host; }
const char *zero_comm_why_one_level(const zero_comm *c) { return c->why_one_level ? c->why_one_level : ""; }

int zero_comm_levels(zero_comm *c, zero_comm **host, zero_comm **across) {
    const int n = c->per_host, of_host = c->rank / n, in_host = c->rank % n;
    int e = c->failed;
    if (!e && !c->host) e = c->ops->split(c, of_host, in_host, n, &c->host);
    if (!e && !c->across) e = c->ops->split(c, in_host, of_host, c->size / n, &c->across);
    *host = c->host;
    *across = c->across;
    return e;
}

int zero_comm_disagrees(const zero_comm *c) { return c->disagrees; }
void zero_comm_disagree(zero_comm *c) { c->history = ~c->history; }

zero_comm_shape zero_comm_host_shape(const zero_comm_shape *s) {
    zero_comm_shape host = *s;
    host.ranks = s->per_host;
    host.remote = 0;
    host.per_host = 0;
    return host;
}

zero_comm_shape zero_comm_across_shape(const zero_comm_shape *s) {
    zero_comm_shape across = *s;
    across.ranks = s->ranks / s->per_host;
    across.per_host = 0;
    return across;
}

// ---- memory ---------------------------------------------------------------------------------------------------------

int zero_comm_alloc(zero_comm *c, zero_accounting *mem, enum zero_memory_category category, void **ptr, size_t bytes) {
    int i = 0;
    *ptr = NULL;
    if (c->failed) return c->failed;
    while (i < ZERO_COMM_MAX_BUFFERS && c->buffers[i].ptr) i++;
    if (i == ZERO_COMM_MAX_BUFFERS)
        return zero_comm_fail(c, ZERO_ERR_MEMORY, "more than %d symmetric buffers", ZERO_COMM_MAX_BUFFERS);
    struct zero_comm_buffer *b = &c->buffers[i];
    *b = (struct zero_comm_buffer){ .bytes = bytes, .mem = mem, .category = category };
    const int e = c->ops->alloc(c, b);
    *ptr = b->ptr;
    if (e || b->ptr) return e;
    char refusal[ZERO_REFUSAL_BYTES];
    return zero_comm_fail(c, ZERO_ERR_MEMORY,
                          "no memory for %zu bytes of %s%s: use a smaller model or batch, or more ranks", bytes,
                          zero_memory_category_name(category), zero_accounting_refusal(mem, bytes, refusal));
}

static int free_buffer(zero_comm *c, struct zero_comm_buffer *b) {
    const int e = c->ops->free(c, b);
    b->ptr = NULL;
    return e;
}

int zero_comm_free(zero_comm *c, void *ptr) {
    if (!ptr) return ZERO_OK;
    for (int i = 0; i < ZERO_COMM_MAX_BUFFERS; i++)
        if (c->buffers[i].ptr == ptr) return free_buffer(c, &c->buffers[i]);
    return zero_comm_fail(c, ZERO_ERR_ARG, "zero_comm_free of a pointer that zero_comm_alloc did not return");
}

void zero_comm_free_all(zero_comm *c) {
    for (int i = 0; i < ZERO_COMM_MAX_BUFFERS; i++)
        if (c->buffers[i].ptr) (void)free_buffer(c, &c->buffers[i]);
}

int zero_comm_find_buffer(const zero_comm *c, const void *pointer, size_t bytes) {
    const char *at = pointer;
    for (int i = 0; i < ZERO_COMM_MAX_BUFFERS; i++) {
        const struct zero_comm_buffer *b = &c->buffers[i];
        if (b->ptr && at >= b->ptr && bytes <= b->bytes && at <= b->ptr + b->bytes - bytes) return i;
    }
    return -1;
}

zero_comm_shape zero_comm_get_shape(const zero_comm *c) { return c->ops->shape(c); }

size_t zero_comm_alloc_bytes(const zero_comm_shape *s, size_t bytes) {
    const size_t g = s->granularity, least = bytes ? bytes : 1;
    return g ? (least + g - 1) / g * g : bytes;
}

size_t zero_comm_scratch_bytes(const zero_comm_shape *s, size_t all_to_all_bytes, size_t gather_bytes,
                               size_t reduced_numel) {
    return s->ops->scratch_bytes(s, all_to_all_bytes, gather_bytes, reduced_numel);
}

size_t zero_comm_gather_chunks(const zero_comm_shape *s, size_t here) {
    const size_t others = s->ranks - here;
    if (!others) return 0;
    return s->ops->gathers_in_ring ? s->ranks - 1 : s->per_host ? others : here * others;
}

size_t zero_comm_summed_bytes(const zero_comm_shape *s, enum zero_dtype dtype) {
    return s->ops->sums_narrow ? zero_dtype_bytes(dtype) : sizeof(float);
}

// ---- collectives ----------------------------------------------------------------------------------------------------

// The record of a collective on a symmetric buffer: the same buffer and offset on all ranks.
static int begin_on_buffer(zero_comm *c, enum zero_comm_call_kind kind, const void *buf, size_t stride,
                           size_t chunk_bytes, struct zero_comm_call *call) {
    zero_comm_inject_delay(c);
    if (c->failed) return c->failed;
    const int b = zero_comm_find_buffer(c, buf, stride * (size_t)(c->size - 1) + chunk_bytes);
    if (b < 0)
        return zero_comm_fail(c, ZERO_ERR_ARG, "%s on memory that is not from zero_comm_alloc",
                              zero_comm_call_name(kind));
    *call = note_call(c, kind, (uint64_t)b, (uint64_t)((const char *)buf - c->buffers[b].ptr), chunk_bytes);
    return ZERO_OK;
}

static const zero_comm_ops *ops(zero_comm *c) {
    zero_comm_inject_delay(c);
    return c->ops;
}

int zero_comm_all_to_all_begin(zero_comm *c, void *buf, size_t stride, size_t chunk_bytes, cudaStream_t stream,
                               zero_ticket *ticket) {
    struct zero_comm_call call;
    const int e = begin_on_buffer(c, ZERO_CALL_ALL_TO_ALL, buf, stride, chunk_bytes, &call);
    return e ? e : recorded(c, &call, c->ops->all_to_all_begin(c, &call, buf, stride, stream, ticket), ticket);
}

int zero_comm_all_to_all_finish(zero_comm *c, zero_ticket ticket, cudaStream_t stream, const void *const **chunks) {
    return c->failed ? c->failed : ops(c)->all_to_all_finish(c, ticket, stream, chunks);
}

int zero_comm_all_to_all_done(zero_comm *c, zero_ticket ticket, cudaStream_t stream) {
    if (c->failed) return c->failed;
    return finished(c, ZERO_CALL_ALL_TO_ALL, ops(c)->all_to_all_done(c, ticket, stream), ticket);
}

int zero_comm_allgather_begin(zero_comm *c, void *buf, size_t chunk_bytes, enum zero_wire kind, cudaStream_t stream,
                              zero_ticket *ticket) {
    struct zero_comm_call call;
    const int e = begin_on_buffer(c, ZERO_CALL_ALLGATHER, buf, chunk_bytes, chunk_bytes, &call);
    return e ? e : recorded(c, &call, c->ops->allgather_begin(c, &call, buf, kind, stream, ticket), ticket);
}

int zero_comm_allgather_finish(zero_comm *c, zero_ticket ticket, cudaStream_t stream) {
    if (c->failed) return c->failed;
    return finished(c, ZERO_CALL_ALLGATHER, ops(c)->allgather_finish(c, ticket, stream), ticket);
}

int zero_comm_reusable(zero_comm *c, zero_ticket ticket, cudaStream_t stream) {
    if (!ticket) return ZERO_OK;
    return c->failed ? c->failed : ops(c)->reusable(c, ticket, stream);
}

int zero_comm_reduce_scatter(zero_comm *c, const void *buf, enum zero_dtype dtype, size_t chunk_numel, float *out,
                             cudaStream_t stream, zero_ticket *ticket) {
    struct zero_comm_call call;
    const size_t bytes = chunk_numel * zero_dtype_bytes(dtype);
    const int e = begin_on_buffer(c, ZERO_CALL_REDUCE_SCATTER, buf, bytes, bytes, &call);
    if (e) return e;
    const int done = c->ops->reduce_scatter(c, &call, buf, dtype, chunk_numel, out, stream, ticket);
    if (!done) c->records[call.number % ZERO_COMM_RECORDS].finished = zero_clock();
    return done;
}

int zero_comm_allgather_host(zero_comm *c, const void *mine, size_t bytes, void *all) {
    zero_comm_inject_delay(c);
    if (c->failed) return c->failed;
    const struct zero_comm_call call = note_call(c, ZERO_CALL_SCALARS, 0, 0, bytes);
    const int e = c->ops->allgather_host(c, &call, mine, bytes, all);
    if (e) return e;
    c->received[ZERO_WIRE_SCALARS] += (size_t)(c->size - 1) * bytes;
    c->records[call.number % ZERO_COMM_RECORDS].finished = zero_clock();
    return e;
}

int zero_comm_barrier(zero_comm *c) {
    char mine = 0, all[c->size];
    return zero_comm_allgather_host(c, &mine, 1, all);
}

int zero_comm_synchronize(zero_comm *c, cudaStream_t stream) { return c->ops->synchronize(c, stream); }

// ---- windows --------------------------------------------------------------------------------------------------------

int zero_window_create(zero_comm *c, zero_accounting *mem, enum zero_memory_category category, size_t bytes,
                       zero_window **out) {
    *out = NULL;
    return c->failed ? c->failed : c->ops->window_create(c, mem, category, bytes, out);
}

void zero_window_destroy(zero_comm *c, zero_window *w) {
    if (w) c->ops->window_destroy(c, w);
}

void *zero_window_shard(const zero_window *w) { return w->shard; }

int zero_window_open(zero_comm *c, zero_window *w, cudaStream_t stream) {
    return c->failed ? c->failed : ops(c)->window_open(c, w, stream);
}

int zero_window_close(zero_comm *c, zero_window *w, cudaStream_t stream) {
    return c->failed ? c->failed : ops(c)->window_close(c, w, stream);
}

int zero_window_gather_begin(zero_comm *c, zero_window *w, size_t offset, size_t chunk_bytes, void *out,
                             cudaStream_t stream, zero_ticket *ticket) {
    zero_comm_inject_delay(c);
    if (c->failed) return c->failed;
    if (chunk_bytes > w->bytes || offset > w->bytes - chunk_bytes)
        return zero_comm_fail(c, ZERO_ERR_ARG, "a gather leaves the window");
    const struct zero_comm_call call = note_call(c, ZERO_CALL_WINDOW_GATHER, 0, offset, chunk_bytes);
    return recorded(c, &call, c->ops->window_gather_begin(c, w, &call, out, stream, ticket), ticket);
}

int zero_window_gather_finish(zero_comm *c, zero_window *w, zero_ticket ticket, cudaStream_t stream) {
    if (c->failed) return c->failed;
    return finished(c, ZERO_CALL_WINDOW_GATHER, ops(c)->window_gather_finish(c, w, ticket, stream), ticket);
}

size_t zero_window_scratch_bytes(const zero_comm_shape *s, size_t shard_bytes, size_t unit_bytes) {
    return s->ops->window_scratch_bytes(s, shard_bytes, unit_bytes);
}

void zero_comm_destroy(zero_comm *c) {
    if (!c) return;
    zero_comm_destroy(c->across);
    zero_comm_destroy(c->host);
    c->ops->destroy(c);
}
