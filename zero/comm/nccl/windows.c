// windows.c: windows of the NCCL transport: a gather is an all-gather of a part of the shards, on the transport's
// stream.
//
//     open     the transport's stream waits for the caller's, which has written the shard
//     gather   the transport's stream waits until `out` is free, all-gathers; the caller's waits for that
//     close    the caller's stream waits for the last gather
#include "zero/comm/nccl/nccl_internal.h"
#ifdef ZERO_HAS_NCCL
#include <stdlib.h>

struct window {
    struct zero_window base;
    void *handle;
    zero_ticket begun;                             // gathers so far; a gather's ticket is its number
    zero_ticket gathers[ZERO_WINDOW_MAX_GATHERS];  // operations on the stream
    int pending[ZERO_WINDOW_MAX_GATHERS];
};

int zero_nccl_window_create(zero_comm *c, zero_accounting *mem, enum zero_memory_category category, size_t bytes,
                            zero_window **out) {
    comm_nccl *m = zero_nccl_self(c);
    struct window *w = calloc(1, sizeof *w);
    *out = (zero_window *)w;
    if (!w) return zero_comm_fail(c, ZERO_ERR_MEMORY, "out of host memory");
    w->base = (struct zero_window){ NULL, bytes, mem, category };
    w->base.shard = zero_nccl_alloc_device(m, mem, category, bytes, &w->handle);
    if (w->base.shard) return ZERO_OK;
    const int e = zero_nccl_healthy(m);
    char refusal[ZERO_REFUSAL_BYTES];
    return e ? e
             : zero_comm_fail(c, ZERO_ERR_MEMORY, "no memory for %zu bytes of %s%s: use more ranks or a smaller model",
                              bytes, zero_memory_category_name(category), zero_accounting_refusal(mem, bytes, refusal));
}

void zero_nccl_window_destroy(zero_comm *c, zero_window *base) {
    struct window *w = (struct window *)base;
    if (base->shard)
        (void)zero_nccl_free_device(zero_nccl_self(c), base->memory, base->category, base->shard, base->bytes,
                                    w->handle);
    free(w);
}

int zero_nccl_window_open(zero_comm *c, zero_window *base, cudaStream_t stream) {
    (void)base;
    comm_nccl *m = zero_nccl_self(c);
    const int e = zero_nccl_follow(m, ZERO_NCCL_WAIT_OPEN, stream);
    return e ? e : zero_nccl_healthy(m);
}

int zero_nccl_window_close(zero_comm *c, zero_window *base, cudaStream_t stream) {
    comm_nccl *m = zero_nccl_self(c);
    const struct window *w = (const struct window *)base;
    for (int i = 0; i < ZERO_WINDOW_MAX_GATHERS; i++)
        if (w->pending[i])
            return zero_comm_fail(c, ZERO_ERR_ARG, "a window is closed while a gather from it is pending");
    const zero_ticket last = w->gathers[w->begun % ZERO_WINDOW_MAX_GATHERS];
    const int e = w->begun ? zero_nccl_wait_ended(m, ZERO_NCCL_WAIT_CLOSE, stream, last) : ZERO_OK;
    return e ? e : zero_nccl_healthy(m);
}

int zero_nccl_window_gather_begin(zero_comm *c, zero_window *base, const struct zero_comm_call *call, void *out,
                                  cudaStream_t stream, zero_ticket *ticket) {
    comm_nccl *m = zero_nccl_self(c);
    struct window *w = (struct window *)base;
    const size_t place = (w->begun + 1) % ZERO_WINDOW_MAX_GATHERS;
    const char *from = base->shard + call->offset;
    struct nccl_op *op = NULL;
    if (w->pending[place])
        return zero_comm_fail(c, ZERO_ERR_ARG, "more than %d gathers pending", ZERO_WINDOW_MAX_GATHERS);
    int e = zero_nccl_follow(m, ZERO_NCCL_WAIT_UNSHARD, stream);
    if (!e) e = zero_nccl_op_begin(m, "all-gather from a window", &op);
    if (!e && !m->comm)
        e = zero_nccl_device_check(
            m, cudaMemcpyAsync(out, from, call->bytes, cudaMemcpyDeviceToDevice, m->context->stream));
    if (!e) e = zero_nccl_gather(m, from, out, call->bytes, "all-gather from a window");
    if (!e) e = zero_nccl_op_end(m, op);
    if (e) return e;
    c->received[ZERO_WIRE_PARAMS] += (size_t)(c->size - 1) * call->bytes;
    *ticket = ++w->begun;
    w->gathers[place] = op->ticket;
    w->pending[place] = 1;
    return ZERO_OK;
}

int zero_nccl_window_gather_finish(zero_comm *c, zero_window *base, zero_ticket ticket, cudaStream_t stream) {
    comm_nccl *m = zero_nccl_self(c);
    struct window *w = (struct window *)base;
    const size_t place = ticket % ZERO_WINDOW_MAX_GATHERS;
    if (!w->pending[place]) return zero_comm_fail(c, ZERO_ERR_ARG, "a gather is finished that was not begun");
    w->pending[place] = 0;
    const int e = zero_nccl_wait_ended(m, ZERO_NCCL_WAIT_UNSHARD_DONE, stream, w->gathers[place]);
    return e ? e : zero_nccl_healthy(m);
}
#endif
