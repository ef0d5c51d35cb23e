// comm.c: what all transports share: the dispatch, the books of wire bytes, the words of an error.
#include "zero/comm/comm.h"
#include <stdarg.h>
#include <stdio.h>
#include <time.h>
#include "zero/comm/transport.h"

int zero_comm_rank(const zero_comm *c) { return c->rank; }
int zero_comm_size(const zero_comm *c) { return c->size; }
const char *zero_comm_name(const zero_comm *c) { return c->name; }
const char *zero_comm_error(const zero_comm *c) { return c->error; }
uint64_t zero_comm_received(const zero_comm *c, enum zero_wire kind) { return c->received[kind]; }
cudaStream_t zero_comm_stream(const zero_comm *c) { return c->stream; }
int zero_comm_synchronize(zero_comm *c, cudaStream_t stream) { return c->ops->synchronize(c, stream); }

void zero_comm_phase(zero_comm *c, const char *phase, size_t unit) {
    c->phase = phase;
    c->phase_unit = unit;
}

int zero_comm_fail(zero_comm *c, int code, const char *format, ...) {
    char words[512];
    va_list args;
    va_start(args, format);
    vsnprintf(words, sizeof words, format, args);
    va_end(args);
    snprintf(c->error, sizeof c->error, "rank %d, in %s (unit %zu): %s", c->names ? c->names[c->rank] : c->rank,
             c->phase ? c->phase : "start-up", c->phase_unit, words);
    return code;
}

void zero_comm_set_delay_seed(zero_comm *c, uint64_t seed) {
    c->dice = seed && c->size > 1 ? (seed + (uint64_t)c->rank + 1) * 0x9e3779b97f4a7c15u : 0;
}

void zero_comm_inject_delay(zero_comm *c) {
    if (!c->dice) return;
    c->dice ^= c->dice << 13;
    c->dice ^= c->dice >> 7;
    c->dice ^= c->dice << 17;
    if (c->dice % 8 == 0) nanosleep(&(struct timespec){ 0, (long)(c->dice >> 32) % 500000 }, NULL);
}

// Where all collectives pass.
static const zero_comm_ops *ops(zero_comm *c) {
    zero_comm_inject_delay(c);
    return c->ops;
}

int zero_comm_alloc(zero_comm *c, zero_accounting *mem, enum zero_memory_category category, void **ptr, size_t bytes) {
    int i = 0;
    *ptr = NULL;
    while (i < ZERO_COMM_MAX_BUFFERS && c->buffers[i].ptr) i++;
    if (i == ZERO_COMM_MAX_BUFFERS)
        return zero_comm_fail(c, ZERO_ERR_MEMORY, "more than %d symmetric buffers", ZERO_COMM_MAX_BUFFERS);
    struct zero_comm_buffer *b = &c->buffers[i];
    *b = (struct zero_comm_buffer){ .bytes = bytes, .mem = mem, .category = category };
    const int e = c->ops->alloc(c, b);
    *ptr = b->ptr;
    if (e || b->ptr) return e;
    return zero_comm_fail(c, ZERO_ERR_MEMORY,
                          "no memory for %zu bytes of %s: use a smaller model or batch, or more ranks", bytes,
                          zero_memory_category_name(category));
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
    return zero_comm_fail(c, ZERO_ERR_ARG, "zero_comm_free of a pointer that zero_comm_alloc did not give");
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

int zero_comm_all_to_all_begin(zero_comm *c, void *buf, size_t chunk_bytes, cudaStream_t stream, zero_ticket *ticket) {
    return ops(c)->all_to_all_begin(c, buf, chunk_bytes, stream, ticket);
}
int zero_comm_all_to_all_finish(zero_comm *c, zero_ticket ticket, cudaStream_t stream, const void *const **pieces) {
    return ops(c)->all_to_all_finish(c, ticket, stream, pieces);
}
int zero_comm_all_to_all_done(zero_comm *c, zero_ticket ticket, cudaStream_t stream) {
    return ops(c)->all_to_all_done(c, ticket, stream);
}
int zero_comm_allgather_begin(zero_comm *c, void *buf, size_t chunk_bytes, enum zero_wire kind, cudaStream_t stream,
                              zero_ticket *ticket) {
    return ops(c)->allgather_begin(c, buf, chunk_bytes, kind, stream, ticket);
}
int zero_comm_allgather_finish(zero_comm *c, zero_ticket ticket, cudaStream_t stream) {
    return ops(c)->allgather_finish(c, ticket, stream);
}
int zero_comm_reusable(zero_comm *c, zero_ticket ticket, cudaStream_t stream) {
    return ticket ? ops(c)->reusable(c, ticket, stream) : ZERO_OK;
}
int zero_comm_reduce_scatter(zero_comm *c, const void *buf, enum zero_dtype dtype, size_t chunk_numel, float *out,
                             cudaStream_t stream, zero_ticket *ticket) {
    return ops(c)->reduce_scatter(c, buf, dtype, chunk_numel, out, stream, ticket);
}
int zero_comm_allgather_host(zero_comm *c, const void *mine, size_t bytes, void *all) {
    return ops(c)->allgather_host(c, mine, bytes, all);
}

int zero_window_create(zero_comm *c, zero_accounting *mem, enum zero_memory_category category, size_t bytes,
                       zero_window **out) {
    return c->ops->window_create(c, mem, category, bytes, out);
}
void *zero_window_shard(const zero_window *w) { return w->shard; }
int zero_window_open(zero_comm *c, zero_window *w, cudaStream_t stream) { return ops(c)->expose(c, w, stream); }
int zero_window_close(zero_comm *c, zero_window *w, cudaStream_t stream) { return ops(c)->conceal(c, w, stream); }
int zero_window_gather_begin(zero_comm *c, zero_window *w, size_t offset, size_t chunk_bytes, void *out,
                             cudaStream_t stream, zero_ticket *ticket) {
    return ops(c)->fetch_begin(c, w, offset, chunk_bytes, out, stream, ticket);
}
int zero_window_gather_finish(zero_comm *c, zero_window *w, zero_ticket ticket, cudaStream_t stream) {
    return ops(c)->fetch_finish(c, w, ticket, stream);
}
size_t zero_window_scratch_bytes(const zero_comm_shape *s, size_t shard_bytes, size_t unit_bytes) {
    return s->ops->window_scratch_bytes(s, shard_bytes, unit_bytes);
}

void zero_window_destroy(zero_comm *c, zero_window *w) {
    if (w) c->ops->window_destroy(c, w);
}

size_t zero_comm_scratch_bytes(const zero_comm_shape *s, size_t all_to_all_bytes, size_t gather_bytes,
                               size_t reduced_numel) {
    return s->ops->scratch_bytes(s, all_to_all_bytes, gather_bytes, reduced_numel);
}
size_t zero_comm_summed_bytes(const zero_comm_shape *s, enum zero_dtype dtype) {
    return s->ops->sums_narrow ? zero_dtype_bytes(dtype) : sizeof(float);
}
zero_comm_shape zero_comm_get_shape(const zero_comm *c) { return c->ops->shape(c); }

int zero_comm_barrier(zero_comm *c) {
    char mine = 0, all[c->size];
    return zero_comm_allgather_host(c, &mine, 1, all);
}

void zero_comm_destroy(zero_comm *c) {
    if (c) c->ops->destroy(c);
}
