// watch_nccl.c: what stands between comm_nccl.c and NCCL: the library, its calls, and the watchdog.
//
// The library is loaded at run time, so that a program that was built with NCCL starts where there is none, and can say
// so.
//
// Communicators are non-blocking: a call returns at once, and is polled until it is over, so that the host is never
// shut in in NCCL. But it may be shut in in a wait for a stream on which a collective waits for a dead rank. The
// watchdog is a thread that looks for three things: errors that NCCL reports by itself, a call that takes too long, and
// an operation that has begun on the device (events say so) and does not end. It then writes down what happened, and
// aborts all communicators of the family: their kernels leave the device, whoever waited for them goes on, and finds
// the words at the next call. Nothing here exits or prints.
//
// Two locks. `calls` is held in calls of NCCL, so that no communicator is aborted while it is being called; `books`
// guards what the two threads tell each other, and is never held for long.
#include "zero/comm/nccl/nccl_internal.h"
#ifdef ZERO_HAS_NCCL
#include <dlfcn.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#ifndef NCCL_LIBRARY
#define NCCL_LIBRARY "libnccl.so.2"
#endif
#define REMEDY                                                                                                   \
    "see the output of the other ranks, run with NCCL_DEBUG=INFO for NCCL's own words, or allow more time with " \
    "--timeout"

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

// ---- the library ----------------------------------------------------------------------------------------------------

int zero_nccl_load(struct nccl_library *lib, const char *name, char *err, size_t err_bytes) {
    const char *file = name ? name : NCCL_LIBRARY, *missing = NULL;
    void *handle = dlopen(file, RTLD_NOW | RTLD_LOCAL);  // never closed: NCCL has threads of its own
    memset(lib, 0, sizeof *lib);
    if (!handle) {
        snprintf(err, err_bytes,
                 "NCCL cannot be loaded: %s: install it (libnccl2 of NVIDIA's packages), add its directory to "
                 "LD_LIBRARY_PATH, or use --transport mpi",
                 dlerror());
        return ZERO_ERR_COMM;
    }
#define LOOK_UP(function)                                       \
    *(void **)&lib->function = dlsym(handle, "nccl" #function); \
    if (!lib->function) missing = "nccl" #function;
    ZERO_NCCL_FUNCTIONS(LOOK_UP)
#undef LOOK_UP
    if (missing) {
        snprintf(err, err_bytes,
                 "%s has no %s: it is older than NCCL 2.19, or not NCCL: install a newer one, or use --transport mpi",
                 file ? file : "this program", missing);
        return ZERO_ERR_COMM;
    }
    if (lib->GetVersion(&lib->version) != ncclSuccess || lib->version / 10000 != NCCL_MAJOR) {
        snprintf(err, err_bytes,
                 "%s is NCCL version %d, but this program was built for NCCL %d: install that, build anew, or use "
                 "--transport mpi",
                 file ? file : "this program", lib->version, NCCL_MAJOR);
        return ZERO_ERR_COMM;
    }
    return ZERO_OK;
}

// ---- failing
// ----------------------------------------------------------------------------------------------------------

int zero_nccl_device_check(comm_nccl *m, cudaError_t e) {
    const int aborted = e == cudaSuccess ? ZERO_OK : zero_nccl_healthy(m);  // which may leave such errors behind
    return e == cudaSuccess ? ZERO_OK
           : aborted        ? aborted
                            : zero_comm_fail(&m->base, ZERO_ERR_DEVICE, "%s", cudaGetErrorString(e));
}

// The first failure is the family's. Holds `books`.
__attribute__((format(printf, 3, 4))) static void fail(struct nccl_context *f, const struct nccl_operation *d,
                                                       const char *format, ...) {
    if (f->failed) return;
    va_list args;
    const int n = snprintf(f->words, sizeof f->words, "rank %d, in %s (unit %zu): ", d->rank, d->phase, d->unit);
    va_start(args, format);
    vsnprintf(f->words + n, sizeof f->words - (size_t)n, format, args);
    va_end(args);
    f->failed = 1;
    pthread_cond_signal(&f->wake);
}

int zero_nccl_healthy(comm_nccl *m) {
    struct nccl_context *f = m->f;
    if (!f->failed) return ZERO_OK;
    pthread_mutex_lock(&f->books);
    snprintf(m->base.error, sizeof m->base.error, "%s", f->words);
    pthread_mutex_unlock(&f->books);
    return ZERO_ERR_COMM;
}

static void fail_result(struct nccl_context *f, const struct nccl_operation *d, ncclComm_t comm, ncclResult_t r) {
    if (f->failed) return;  // and comm may be gone
    const char *more = f->lib.GetLastError(comm);
    fail(f, d,
         "the %s failed: NCCL says \"%s\"%s%s: another rank died or took another path, two ranks share a GPU (for that "
         "there is --transport mpi), or the network is down; " REMEDY,
         d->what, f->lib.GetErrorString(r), more && *more ? ", " : "", more ? more : "");
}

// ---- calls
// ------------------------------------------------------------------------------------------------------------

static struct nccl_operation doing(const comm_nccl *m, const char *what) {
    const zero_comm *c = &m->base;
    return (struct nccl_operation){ what, c->phase ? c->phase : "start-up", c->phase_unit,
                                    c->names ? c->names[c->rank] : c->rank, 0 };
}

int zero_nccl_enter(comm_nccl *m, const char *what) {
    struct nccl_context *f = m->f;
    pthread_mutex_lock(&f->books);
    f->call = doing(m, what);
    f->call.since = now();
    pthread_mutex_unlock(&f->books);
    pthread_mutex_lock(&f->calls);
    if (!f->failed) return ZERO_OK;
    pthread_mutex_unlock(&f->calls);
    return zero_nccl_healthy(m);
}

int zero_nccl_leave(comm_nccl *m, ncclComm_t comm, ncclResult_t r) {
    struct nccl_context *f = m->f;
    pthread_mutex_unlock(&f->calls);
    for (int i = 0; r == ncclInProgress && comm && !f->failed; i++) {  // how long, is the watchdog's business
        if (i < 100)
            sched_yield();
        else
            nanosleep(&(struct timespec){ 0, 50 * 1000 }, NULL);
        pthread_mutex_lock(&f->calls);
        if (!f->failed) {
            ncclResult_t state = ncclSuccess;
            const ncclResult_t asked = f->lib.CommGetAsyncError(comm, &state);
            r = asked == ncclSuccess ? state : asked;
        }
        pthread_mutex_unlock(&f->calls);
    }
    pthread_mutex_lock(&f->books);
    if (r != ncclSuccess && r != ncclInProgress) fail_result(f, &f->call, comm, r);
    f->call.since = 0;
    pthread_mutex_unlock(&f->books);
    return zero_nccl_healthy(m);
}

// ---- operations
// -------------------------------------------------------------------------------------------------------

int zero_nccl_op_begin(comm_nccl *m, const char *what, struct nccl_op **out) {
    struct nccl_context *f = m->f;
    struct nccl_op *op = *out = &f->ops[(f->queued + 1) % NCCL_RING];
    int e = zero_nccl_healthy(m);
    // The ring is full only if the host is so many operations ahead of the device that it may as well wait.
    if (!e && op->ticket) e = zero_nccl_device_check(m, cudaEventSynchronize(op->ended));
    if (!e && op->was_read) e = zero_nccl_device_check(m, cudaStreamWaitEvent(f->stream, op->read, 0));
    if (!e) e = zero_nccl_healthy(m);
    if (e) return e;
    pthread_mutex_lock(&f->books);
    if (op->ticket > f->ended) f->ended = op->ticket;
    *op = (struct nccl_op){ .doing = doing(m, what), .begun = op->begun, .ended = op->ended, .read = op->read };
    pthread_mutex_unlock(&f->books);
    return zero_nccl_device_check(m, cudaEventRecord(op->begun, f->stream));
}

int zero_nccl_op_end(comm_nccl *m, struct nccl_op *op) {
    struct nccl_context *f = m->f;
    const int e = zero_nccl_device_check(m, cudaEventRecord(op->ended, f->stream));
    if (e) return e;
    pthread_mutex_lock(&f->books);
    op->ticket = ++f->queued;
    pthread_mutex_unlock(&f->books);
    return ZERO_OK;
}

// ---- the watchdog
// -----------------------------------------------------------------------------------------------------

static void look_at_call(struct nccl_context *f) {
    const struct nccl_operation *d = &f->call;
    if (d->since > 0 && now() - d->since > f->timeout_s)
        fail(f, d,
             "the %s has not got through within %.0f s: another rank died, stopped, or took another path; " REMEDY,
             d->what, f->timeout_s);
}

static void look_at_operations(struct nccl_context *f) {
    while (f->ended < f->queued) {
        struct nccl_op *op = &f->ops[(f->ended + 1) % NCCL_RING];
        cudaError_t e = cudaEventQuery(op->ended);
        if (e == cudaSuccess) {
            f->ended++;
            continue;
        }
        if (e == cudaErrorNotReady) e = cudaEventQuery(op->begun);
        if (e != cudaSuccess && e != cudaErrorNotReady)
            fail(f, &op->doing, "the device failed: %s", cudaGetErrorString(e));
        if (e != cudaSuccess) return;
        if (op->doing.since == 0)
            op->doing.since = now();
        else if (now() - op->doing.since > f->timeout_s)
            fail(f, &op->doing,
                 "the %s was begun, and has not ended within %.0f s: another rank died, stopped, or took another "
                 "path; " REMEDY,
                 op->doing.what, f->timeout_s);
        return;
    }
}

static void look_at_errors(struct nccl_context *f) {
    if (pthread_mutex_trylock(&f->calls)) return;  // who is in a call hears of errors there
    ncclComm_t bad = NULL;
    ncclResult_t r = ncclSuccess;
    for (int i = 0; i < f->num_comms && !bad && !f->failed; i++)
        if (f->lib.CommGetAsyncError(f->comms[i], &r) == ncclSuccess && r != ncclSuccess && r != ncclInProgress)
            bad = f->comms[i];
    if (bad) {
        pthread_mutex_lock(&f->books);
        const struct nccl_operation *d = f->ended < f->queued ? &f->ops[(f->ended + 1) % NCCL_RING].doing
                                                              : &f->ops[f->queued % NCCL_RING].doing;
        if (d->what)
            fail_result(f, d, bad, r);
        else
            fail_result(f, &f->call, bad, r);
        pthread_mutex_unlock(&f->books);
    }
    pthread_mutex_unlock(&f->calls);
}

struct abort_call {
    const struct nccl_library *lib;
    ncclComm_t comm;
    pthread_t thread;
    int started;
};

static void *abort_one(void *arg) {
    const struct abort_call *a = arg;
    (void)a->lib->CommAbort(a->comm);
    return NULL;
}

// Aborts all communicators at once, each in a thread: ncclCommAbort waits for the last operation of its communicator,
// which may be queued behind an operation of another communicator, and that one is ended only by its own abort.
static void abort_all(struct nccl_context *f) {
    struct abort_call calls[NCCL_MAX_COMMS];
    struct timespec soon;
    clock_gettime(CLOCK_REALTIME, &soon);
    soon.tv_sec += 1;
    // if not, the host is shut in in NCCL after all: abort lets it out
    const int locked = pthread_mutex_timedlock(&f->calls, &soon) == 0;
    for (int i = 0; i < f->num_comms; i++) {
        calls[i] = (struct abort_call){ .lib = &f->lib, .comm = f->comms[i] };
        calls[i].started = pthread_create(&calls[i].thread, NULL, abort_one, &calls[i]) == 0;
    }
    for (int i = 0; i < f->num_comms; i++) {
        if (calls[i].started)
            (void)pthread_join(calls[i].thread, NULL);
        else
            (void)abort_one(&calls[i]);
    }
    f->num_comms = 0;
    if (locked) pthread_mutex_unlock(&f->calls);
}

static void *watch(void *arg) {
    struct nccl_context *f = arg;
    (void)cudaSetDevice(f->device);
    const double period = f->timeout_s < 5 ? f->timeout_s / 10 : 0.5;
    pthread_mutex_lock(&f->books);
    while (!f->stop && !f->failed) {
        look_at_call(f);
        look_at_operations(f);
        pthread_mutex_unlock(&f->books);
        look_at_errors(f);
        pthread_mutex_lock(&f->books);
        struct timespec next;
        clock_gettime(CLOCK_MONOTONIC, &next);
        const double at = (double)next.tv_nsec * 1e-9 + period;
        next.tv_sec += (time_t)at;
        next.tv_nsec = (long)((at - (double)(time_t)at) * 1e9);
        if (!f->stop && !f->failed) pthread_cond_timedwait(&f->wake, &f->books, &next);
    }
    const int failed = f->failed;
    pthread_mutex_unlock(&f->books);
    if (failed) abort_all(f);
    return NULL;
}

// ---- life
// -------------------------------------------------------------------------------------------------------------

static int create_stream(struct nccl_context *f) {
    int least = 0, greatest = 0;
    cudaError_t e = cudaGetDevice(&f->device);
    if (e == cudaSuccess) e = cudaDeviceGetStreamPriorityRange(&least, &greatest);
    if (e == cudaSuccess) e = cudaStreamCreateWithPriority(&f->stream, cudaStreamNonBlocking, greatest);
    if (e == cudaSuccess) e = cudaEventCreateWithFlags(&f->order, cudaEventDisableTiming);
    for (int i = 0; i < NCCL_RING && e == cudaSuccess; i++) {
        e = cudaEventCreateWithFlags(&f->ops[i].begun, cudaEventDisableTiming);
        if (e == cudaSuccess) e = cudaEventCreateWithFlags(&f->ops[i].ended, cudaEventDisableTiming);
        if (e == cudaSuccess) e = cudaEventCreateWithFlags(&f->ops[i].read, cudaEventDisableTiming);
    }
    return (int)e;
}

int zero_nccl_context_create(struct nccl_context **out, int needs_library, const zero_comm_nccl_config *config,
                             char *err, size_t err_bytes) {
    struct nccl_context *f = *out = calloc(1, sizeof *f);
    pthread_condattr_t clock;
    if (!f) {
        snprintf(err, err_bytes, "out of host memory");
        return ZERO_ERR_MEMORY;
    }
    f->users = 1;
    f->timeout_s = config->timeout_s > 0 ? config->timeout_s : 300;
    f->register_buffers = config->register_buffers;
    f->omit = config->omit;
    pthread_mutex_init(&f->calls, NULL);
    pthread_mutex_init(&f->books, NULL);
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&f->wake, &clock);
    pthread_condattr_destroy(&clock);
    const int e = needs_library ? zero_nccl_load(&f->lib, config->library, err, err_bytes) : ZERO_OK;
    if (e) return e;
    const cudaError_t device = (cudaError_t)create_stream(f);
    if (device != cudaSuccess) {
        snprintf(err, err_bytes, "the transport's stream: %s", cudaGetErrorString(device));
        return ZERO_ERR_DEVICE;
    }
    if (!needs_library) return ZERO_OK;
    f->watched = pthread_create(&f->watchdog, NULL, watch, f) == 0;
    if (f->watched) return ZERO_OK;
    snprintf(err, err_bytes, "the watchdog of NCCL: no thread can be started");
    return ZERO_ERR_COMM;
}

void zero_nccl_context_release(struct nccl_context *f) {
    if (!f || --f->users) return;
    if (f->watched) {
        pthread_mutex_lock(&f->books);
        f->stop = 1;
        pthread_cond_signal(&f->wake);
        pthread_mutex_unlock(&f->books);
        pthread_join(f->watchdog, NULL);
    }
    // those that no transport has: all ranks, in a mesh
    for (int i = 0; i < f->num_comms; i++) (void)f->lib.CommDestroy(f->comms[i]);
    for (int i = 0; i < NCCL_RING; i++) {
        if (f->ops[i].begun) (void)cudaEventDestroy(f->ops[i].begun);
        if (f->ops[i].ended) (void)cudaEventDestroy(f->ops[i].ended);
        if (f->ops[i].read) (void)cudaEventDestroy(f->ops[i].read);
    }
    if (f->order) (void)cudaEventDestroy(f->order);
    if (f->stream) (void)cudaStreamDestroy(f->stream);
    pthread_cond_destroy(&f->wake);
    pthread_mutex_destroy(&f->books);
    pthread_mutex_destroy(&f->calls);
    free(f);
}
#endif
