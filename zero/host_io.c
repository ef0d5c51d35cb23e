// host_io.c: helpers for callers whose data is in host memory or in a file: a unit's parameters and gradients, a state
// in a file. Each is a few calls of zero.h; a loop with kernels of its own needs only zero_tensor_at.
#include "zero/internal.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

void *zero_tensor_at(const zero *z, const void *unit, size_t tensor) {
    return (char *)unit + zero_tensor_offset(z, tensor) * z->elem;
}

static int copy(zero *z, void *to, const void *from, size_t bytes, const char *what) {
    const int e = zero_device_check(z, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, z->config.stream), what);
    return e ? e : zero_comm_check(z, zero_comm_synchronize(z->config.shard_comm, z->config.stream));
}

int zero_read_params(zero *z, size_t unit, void *host) {
    const void *p = zero_acquire_params(z, unit);
    if (!p) return z->failed;
    const int e = copy(z, host, p, unit_numel(z, unit) * z->elem, "reading parameters");
    return e ? e : zero_release_params(z, unit);
}

int zero_write_grads(zero *z, size_t unit, const void *host) {
    void *g = zero_acquire_grads(z, unit, zero_get_micro_batches(z));
    if (!g) return z->failed;
    const int e = copy(z, g, host, unit_numel(z, unit) * z->elem, "writing gradients");
    return e ? e : zero_release_grads(z, unit);
}

// ---- files ----------------------------------------------------------------------------------------------------------

struct file {
    const zero_layout *layout;
    int fd, error;  // error: errno of the first failure; 0 with a short read
    size_t offset;
};

static off_t place(const struct file *f, size_t tensor, size_t begin) {
    return (off_t)(f->offset + (f->layout->tensors[tensor].logical + begin) * sizeof(float));
}

static int save(void *ctx, size_t tensor, size_t begin, size_t count, const float *values) {
    struct file *f = ctx;
    const char *from = (const char *)values;
    for (size_t at = 0, bytes = count * sizeof(float); at < bytes;) {
        const ssize_t n = pwrite(f->fd, from + at, bytes - at, place(f, tensor, begin) + (off_t)at);
        if (n <= 0 && errno != EINTR) return f->error = errno, -1;
        if (n > 0) at += (size_t)n;
    }
    return 0;
}

static int restore(void *ctx, size_t tensor, size_t begin, size_t count, float *out) {
    struct file *f = ctx;
    for (size_t at = 0, bytes = count * sizeof(float); at < bytes;) {
        const ssize_t n = pread(f->fd, (char *)out + at, bytes - at, place(f, tensor, begin) + (off_t)at);
        if (n == 0 || (n < 0 && errno != EINTR)) return f->error = n ? errno : 0, -1;
        if (n > 0) at += (size_t)n;
    }
    return 0;
}

// Why the callback failed, behind the engine's message.
static int explain(zero *z, const struct file *f, int e) {
    const size_t length = strlen(z->error);
    if (e == ZERO_ERR_CALLBACK && f->error >= 0)
        snprintf(z->error + length, sizeof z->error - length, ": %s", f->error ? strerror(f->error) : "the file ends");
    return e;
}

int zero_save_fd(zero *z, enum zero_state state, int fd, size_t offset) {
    struct file f = { &z->layout, fd, -1, offset };
    return explain(z, &f, zero_visit(z, state, save, &f));
}

int zero_fill_fd(zero *z, int fd, size_t offset) {
    struct file f = { &z->layout, fd, -1, offset };
    return explain(z, &f, zero_fill(z, restore, &f));
}

int zero_load_fd(zero *z, enum zero_state state, int fd, size_t offset) {
    struct file f = { &z->layout, fd, -1, offset };
    return explain(z, &f, zero_load(z, state, restore, &f));
}
