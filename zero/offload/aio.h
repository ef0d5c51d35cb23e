// aio.h: asynchronous reads and writes of files, by io_uring or by threads.
//
// A request is cut into blocks of ZERO_AIO_BLOCK bytes, which are all in flight together: a disk wants many. What the
// system does only in part is continued, and what it interrupts is repeated. Addresses, offsets and lengths must be
// multiples of ZERO_AIO_ALIGN, which suits O_DIRECT. A zero_aio belongs to one thread.
#ifndef ZERO_OFFLOAD_AIO_H
#define ZERO_OFFLOAD_AIO_H
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif

enum {
    ZERO_AIO_ALIGN = 4096,
    ZERO_AIO_BLOCK = 1 << 19,
    ZERO_AIO_ENDED = -1  // an error: the file ends before the read does
};

typedef struct zero_aio_request {
    size_t in_flight;  // blocks; 0: it has ended
    int error;         // errno of the first failure, ZERO_AIO_ENDED, or 0
} zero_aio_request;

typedef struct zero_aio_block {
    zero_aio_request *request;
    int fd, write;
    char *buffer;
    size_t bytes;
    uint64_t offset;
    long result;  // bytes, or -errno
    struct zero_aio_block *next;
} zero_aio_block;

// How blocks are done. A test has one that fails.
typedef struct zero_aio_backend {
    const char *name;
    // For up to `depth` blocks in flight. Returns 0, or an errno: the system refuses.
    int (*create)(void **state, size_t depth);
    void (*destroy)(void *state);  // no block is in flight
    // Begins a block. It always succeeds: what fails is in its result.
    void (*submit)(void *state, zero_aio_block *block);
    // Waits for any block that was submitted, sets its result, and returns it.
    zero_aio_block *(*reap)(void *state);
} zero_aio_backend;

// io_uring by liburing; NULL: this was built without it.
const zero_aio_backend *zero_aio_uring(void);
// Threads that call pread and pwrite: everywhere.
const zero_aio_backend *zero_aio_threads(void);

typedef struct zero_aio zero_aio;

// Returns 0, or an errno.
int zero_aio_create(zero_aio **out, const zero_aio_backend *backend, size_t depth);
void zero_aio_destroy(zero_aio *a);  // waits for what is in flight; NULL is fine

// Begins a read or a write. request and buffer must stay where they are until zero_aio_wait has returned. Waits only if
// more than `depth` blocks would be in flight.
void zero_aio_submit(zero_aio *a, zero_aio_request *request, int fd, int write, void *buffer, size_t bytes,
                     uint64_t offset);
// Waits until the request has ended, and returns its error.
int zero_aio_wait(zero_aio *a, zero_aio_request *request);

#ifdef __cplusplus
}
#endif
#endif
