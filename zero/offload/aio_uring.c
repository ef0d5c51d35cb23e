// aio_uring.c: blocks of aio.h by io_uring, which takes and returns them through rings in memory that is shared with
// the kernel. Containers often refuse it (EPERM), as do kernels before 5.6 (ENOSYS; EINVAL).
#include "zero/offload/aio.h"

#if __has_include(<liburing.h>)
#include <errno.h>
#include <liburing.h>
#include <stdlib.h>

static int create(void **state, size_t depth) {
    struct io_uring *ring = malloc(sizeof *ring);
    if (!ring) return ENOMEM;
    const int code = io_uring_queue_init((unsigned)depth, ring, 0);
    if (code < 0) {
        free(ring);
        return -code;
    }
    *state = ring;
    return 0;
}

static void destroy(void *state) {
    io_uring_queue_exit(state);
    free(state);
}

static void submit(void *state, zero_aio_block *b) {
    struct io_uring_sqe *sqe = io_uring_get_sqe(state);  // there is one: at most depth blocks are in flight
    if (b->write)
        io_uring_prep_write(sqe, b->fd, b->buffer, (unsigned)b->bytes, b->offset);
    else
        io_uring_prep_read(sqe, b->fd, b->buffer, (unsigned)b->bytes, b->offset);
    io_uring_sqe_set_data(sqe, b);
    (void)io_uring_submit(state);  // if it fails the block stays in the ring: reap submits it again
}

static zero_aio_block *reap(void *state) {
    struct io_uring_cqe *cqe = NULL;
    while (io_uring_peek_cqe(state, &cqe) != 0) (void)io_uring_submit_and_wait(state, 1);
    zero_aio_block *b = io_uring_cqe_get_data(cqe);
    b->result = cqe->res;
    io_uring_cqe_seen(state, cqe);
    return b;
}

const zero_aio_backend *zero_aio_uring(void) {
    static const zero_aio_backend backend = { "io_uring", create, destroy, submit, reap };
    return &backend;
}
#else
const zero_aio_backend *zero_aio_uring(void) { return NULL; }
#endif
