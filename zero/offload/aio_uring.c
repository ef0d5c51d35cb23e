// aio_uring.c: blocks of aio.h by io_uring, which takes and returns them through rings in memory that is shared with
// the kernel. Containers often refuse it (EPERM), as do kernels before 5.6 (ENOSYS; EINVAL).
#include "zero/offload/aio.h"

#if __has_include(<liburing.h>)
#include <errno.h>
#include <liburing.h>
#include <stdlib.h>
#include <time.h>

struct uring {
    struct io_uring ring;
    zero_aio_block *in_flight;  // a list
};

static int create(void **state, size_t depth) {
    struct uring *u = calloc(1, sizeof *u);
    if (!u) return ENOMEM;
    const int code = io_uring_queue_init((unsigned)depth, &u->ring, 0);
    if (code < 0) {
        free(u);
        return -code;
    }
    *state = u;
    return 0;
}

static void destroy(void *state) {
    struct uring *u = state;
    io_uring_queue_exit(&u->ring);
    free(u);
}

static void submit(void *state, zero_aio_block *b) {
    struct uring *u = state;
    struct io_uring_sqe *sqe = io_uring_get_sqe(&u->ring);  // there is one: at most depth blocks are in flight
    b->next = u->in_flight;
    u->in_flight = b;
    if (b->write)
        io_uring_prep_write(sqe, b->fd, b->buffer, (unsigned)b->bytes, b->offset);
    else
        io_uring_prep_read(sqe, b->fd, b->buffer, (unsigned)b->bytes, b->offset);
    io_uring_sqe_set_data(sqe, b);
    (void)io_uring_submit(&u->ring);  // if it fails the block stays in the ring: reap submits it again
}

static zero_aio_block *remove_block(struct uring *u, zero_aio_block *b) {
    zero_aio_block **at = &u->in_flight;
    while (*at != b) at = &(*at)->next;
    *at = b->next;
    return b;
}

// What the ring refuses for ever is the result of some block.
static zero_aio_block *reap(void *state) {
    struct uring *u = state;
    struct io_uring_cqe *cqe = NULL;
    while (io_uring_peek_cqe(&u->ring, &cqe) != 0) {
        const int code = io_uring_submit_and_wait(&u->ring, 1);
        if (code == -EAGAIN || code == -EBUSY || code == -ENOMEM) {  // for want of memory
            nanosleep(&(struct timespec){ 0, 1000000 }, NULL);
        } else if (code < 0 && code != -EINTR) {
            u->in_flight->result = code;
            return remove_block(u, u->in_flight);
        }
    }
    zero_aio_block *b = remove_block(u, io_uring_cqe_get_data(cqe));
    b->result = cqe->res;
    io_uring_cqe_seen(&u->ring, cqe);
    return b;
}

const zero_aio_backend *zero_aio_uring(void) {
    static const zero_aio_backend backend = { "io_uring", create, destroy, submit, reap };
    return &backend;
}
#else
const zero_aio_backend *zero_aio_uring(void) { return NULL; }
#endif
