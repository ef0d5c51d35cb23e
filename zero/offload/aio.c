// aio.c: cuts requests into blocks, and continues those that were done in part (aio.h).
#include "zero/offload/aio.h"
#include <errno.h>
#include <stdlib.h>

struct zero_aio {
    const zero_aio_backend *backend;
    void *state;
    zero_aio_block *blocks, *free;  // [depth]; a list
    size_t in_flight;
};

int zero_aio_create(zero_aio **out, const zero_aio_backend *backend, size_t depth) {
    zero_aio *a = calloc(1, sizeof *a);
    *out = NULL;
    if (!a || !(a->blocks = calloc(depth, sizeof *a->blocks))) {
        free(a);
        return ENOMEM;
    }
    for (size_t i = 0; i < depth; i++) {
        a->blocks[i].next = a->free;
        a->free = &a->blocks[i];
    }
    a->backend = backend;
    const int code = backend->create(&a->state, depth);
    if (code) {
        free(a->blocks);
        free(a);
        return code;
    }
    *out = a;
    return 0;
}

// A block has come back: submits what is left of it, or ends it.
static void finish(zero_aio *a, zero_aio_block *b) {
    int error = 0;
    size_t done = 0;
    if (b->result < 0 && b->result != -EINTR && b->result != -EAGAIN) error = (int)-b->result;
    if (b->result >= 0) {
        done = (size_t)b->result < b->bytes ? (size_t)b->result / ZERO_AIO_ALIGN * ZERO_AIO_ALIGN : b->bytes;
        if (!done) error = b->write ? ENOSPC : ZERO_AIO_ENDED;
    }
    b->buffer += done;
    b->offset += done;
    b->bytes -= done;
    if (!error && b->bytes) {
        a->backend->submit(a->state, b);
        return;
    }
    if (error && !b->request->error) b->request->error = error;
    b->request->in_flight--;
    b->next = a->free;
    a->free = b;
    a->in_flight--;
}

void zero_aio_destroy(zero_aio *a) {
    if (!a) return;
    while (a->in_flight) finish(a, a->backend->reap(a->state));
    a->backend->destroy(a->state);
    free(a->blocks);
    free(a);
}

void zero_aio_submit(zero_aio *a, zero_aio_request *request, int fd, int write, void *buffer, size_t bytes,
                     uint64_t offset) {
    *request = (zero_aio_request){ 0 };
    for (size_t at = 0; at < bytes; at += ZERO_AIO_BLOCK) {
        while (!a->free) finish(a, a->backend->reap(a->state));
        zero_aio_block *b = a->free;
        a->free = b->next;
        *b = (zero_aio_block){ .request = request,
                               .fd = fd,
                               .write = write,
                               .buffer = (char *)buffer + at,
                               .bytes = bytes - at < ZERO_AIO_BLOCK ? bytes - at : ZERO_AIO_BLOCK,
                               .offset = offset + at };
        request->in_flight++;
        a->in_flight++;
        a->backend->submit(a->state, b);
    }
}

int zero_aio_wait(zero_aio *a, zero_aio_request *request) {
    while (request->in_flight) finish(a, a->backend->reap(a->state));
    return request->error;
}
