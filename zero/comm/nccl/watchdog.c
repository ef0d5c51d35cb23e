// watchdog.c: calls of NCCL, operations on the transport's stream, and what happens when a rank dies.
//
// Communicators are non-blocking: a call returns at once and is polled until it is over, so the host is never stuck in
// NCCL. But it may be stuck in a wait for a stream, on which a collective waits for a dead rank. So a thread watches:
//
//     host                                          watchdog
//     zero_nccl_enter                               look_at_call        in a call for longer than timeout_s
//       calls of NCCL                               look_at_operations  an operation has begun on the device (events
//     zero_nccl_leave: polls until done                                 report that) and not ended within timeout_s
//     zero_nccl_op_begin                            look_at_errors      NCCL reports an error by itself
//       what is queued on the stream                        |
//     zero_nccl_op_end                                      v  fail: writes down the first message
//     cudaStreamSynchronize                         abort_all: ncclCommAbort frees all communicators; their kernels
//       returns once the kernels have left          leave the device
//     zero_nccl_healthy: ZERO_ERR_COMM and the
//       message, at every call from now on
//
// After an abort NCCL is not called any more. Nothing here exits or prints.
//
// Two locks. `calls` is held in calls of NCCL, so that no communicator is aborted while it is being called; `lock`
// guards what the two threads tell each other, and is never held for long.
#include "zero/comm/nccl/nccl_internal.h"
#ifdef ZERO_HAS_NCCL
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <time.h>

#define REMEDY                                                                                            \
    "see the output of the other ranks, run with NCCL_DEBUG=INFO for NCCL's own messages, or allow more " \
    "time (zero_comm_config.timeout_s)"

// ---- failing --------------------------------------------------------------------------------------------------------

int zero_nccl_device_check(comm_nccl *m, cudaError_t e) {
    const int aborted = e == cudaSuccess ? ZERO_OK : zero_nccl_healthy(m);  // which may leave such errors behind
    return e == cudaSuccess ? ZERO_OK
           : aborted        ? aborted
                            : zero_comm_fail(&m->base, ZERO_ERR_DEVICE, "%s", cudaGetErrorString(e));
}

// The first failure is the context's. The caller holds `lock`.
__attribute__((format(printf, 3, 4))) static void fail(struct nccl_context *x, const struct nccl_activity *d,
                                                       const char *format, ...) {
    if (x->failed) return;
    va_list args;
    const zero_comm *c = &d->comm->base;
    const int n = snprintf(x->message, sizeof x->message,
                           "rank %d, in %s (unit %zu): ", zero_comm_world_rank(c, c->rank), d->phase, d->unit);
    va_start(args, format);
    vsnprintf(x->message + n, sizeof x->message - (size_t)n, format, args);
    va_end(args);
    x->failed = 1;
    pthread_cond_signal(&x->wake);
}

int zero_nccl_healthy(comm_nccl *m) {
    struct nccl_context *x = m->context;
    if (!x->failed) return ZERO_OK;
    pthread_mutex_lock(&x->lock);
    if (!m->base.failed) snprintf(m->base.error, sizeof m->base.error, "%s", x->message);
    pthread_mutex_unlock(&x->lock);
    return m->base.failed = ZERO_ERR_COMM;
}

static void fail_result(struct nccl_context *x, const struct nccl_activity *d, ncclComm_t comm, ncclResult_t r) {
    if (x->failed) return;  // and comm may be gone
    const char *more = x->lib.GetLastError(comm);
    fail(x, d,
         "the %s failed: NCCL reports \"%s\"%s%s: another rank died or took another path, two ranks share a GPU (only "
         "the "
         "mpi transport allows that), or the network is down; " REMEDY,
         d->what, x->lib.GetErrorString(r), more && *more ? ", " : "", more ? more : "");
}

// ---- calls ----------------------------------------------------------------------------------------------------------

static struct nccl_activity activity_of(const comm_nccl *m, const char *what) {
    const zero_comm *c = &m->base;
    return (struct nccl_activity){ .what = what,
                                   .phase = c->phase ? c->phase : "start-up",
                                   .unit = c->phase_unit,
                                   .comm = m,
                                   .call = c->records[c->calls % ZERO_COMM_RECORDS].call };
}

int zero_nccl_enter(comm_nccl *m, const char *what) {
    struct nccl_context *x = m->context;
    pthread_mutex_lock(&x->lock);
    x->call = activity_of(m, what);
    x->call.since = zero_stopwatch_read(&x->ran);
    pthread_mutex_unlock(&x->lock);
    pthread_mutex_lock(&x->calls);
    if (!x->failed) return ZERO_OK;
    pthread_mutex_unlock(&x->calls);
    return zero_nccl_healthy(m);
}

int zero_nccl_leave(comm_nccl *m, ncclComm_t comm, ncclResult_t r) {
    struct nccl_context *x = m->context;
    pthread_mutex_unlock(&x->calls);
    for (int i = 0; r == ncclInProgress && comm && !x->failed; i++) {  // for how long, is up to the watchdog
        if (i < 100)
            sched_yield();
        else
            nanosleep(&(struct timespec){ 0, 50 * 1000 }, NULL);
        pthread_mutex_lock(&x->calls);
        if (!x->failed) {
            ncclResult_t state = ncclSuccess;
            const ncclResult_t asked = x->lib.CommGetAsyncError(comm, &state);
            r = asked == ncclSuccess ? state : asked;
        }
        pthread_mutex_unlock(&x->calls);
    }
    pthread_mutex_lock(&x->lock);
    if (r != ncclSuccess && r != ncclInProgress) fail_result(x, &x->call, comm, r);
    x->call.since = 0;
    pthread_mutex_unlock(&x->lock);
    return zero_nccl_healthy(m);
}

// ---- operations -----------------------------------------------------------------------------------------------------

int zero_nccl_op_begin(comm_nccl *m, const char *what, struct nccl_op **out) {
    struct nccl_context *x = m->context;
    struct nccl_op *op = *out = &x->ops[(x->queued + 1) % NCCL_RING];
    int e = zero_nccl_healthy(m);
    // The ring is full only if the host is so many operations ahead of the device that it may as well wait.
    if (!e && op->ticket && cudaEventQuery(op->ended) != cudaSuccess)
        e = zero_nccl_device_check(m, cudaEventSynchronize(op->ended));
    if (!e && op->was_read) e = zero_nccl_device_check(m, cudaStreamWaitEvent(x->stream, op->read, 0));
    if (!e) e = zero_nccl_healthy(m);
    if (e) return e;
    pthread_mutex_lock(&x->lock);
    if (op->ticket > x->ended) x->ended = op->ticket;
    *op = (struct nccl_op){
        .activity = activity_of(m, what), .begun = op->begun, .ended = op->ended, .read = op->read
    };
    pthread_mutex_unlock(&x->lock);
    return zero_nccl_device_check(m, cudaEventRecord(op->begun, x->stream));
}

int zero_nccl_op_end(comm_nccl *m, struct nccl_op *op) {
    struct nccl_context *x = m->context;
    const int e = zero_nccl_device_check(m, cudaEventRecord(op->ended, x->stream));
    if (e) return e;
    pthread_mutex_lock(&x->lock);
    op->ticket = ++x->queued;
    pthread_mutex_unlock(&x->lock);
    return ZERO_OK;
}

// ---- the watchdog ---------------------------------------------------------------------------------------------------

// Of the ranks of this host, one that has not come to the collective and is the furthest behind.
static void fail_time_out(struct nccl_context *x, const struct nccl_activity *d, const char *what_happened) {
    const comm_nccl *m = d->comm;
    const struct zero_comm_shown *last = NULL;
    int behind = -1;
    for (int r = 0; r < m->base.size && m->base.shown; r++) {
        const struct zero_comm_shown *its = (const struct zero_comm_shown *)m->shown.peer[r];
        if (!its || its->number >= (last ? last->number : d->call.number)) continue;
        last = its;
        behind = r;
    }
    char message[512];
    if (!last) {
        fail(x, d, "the %s has %s within %.3g s: another rank died, stopped, or took another path; " REMEDY, d->what,
             what_happened, x->config.timeout_s);
        return;
    }
    zero_comm_say_behind(&m->base, message, sizeof message, behind, &d->call, &last->call, x->config.timeout_s);
    fail(x, d, "%s", message);
}

static void look_at_call(struct nccl_context *x) {
    const struct nccl_activity *d = &x->call;
    if (d->since > 0 && x->ran.seconds - d->since > x->config.timeout_s) fail_time_out(x, d, "not returned");
}

static void look_at_operations(struct nccl_context *x) {
    while (x->ended < x->queued) {
        struct nccl_op *op = &x->ops[(x->ended + 1) % NCCL_RING];
        cudaError_t e = cudaEventQuery(op->ended);
        if (e == cudaSuccess) {
            x->ended++;
            continue;
        }
        if (e == cudaErrorNotReady) e = cudaEventQuery(op->begun);
        if (e != cudaSuccess && e != cudaErrorNotReady)
            fail(x, &op->activity, "the device failed: %s", cudaGetErrorString(e));
        if (e != cudaSuccess) return;
        if (op->activity.since == 0)
            op->activity.since = x->ran.seconds;
        else if (x->ran.seconds - op->activity.since > x->config.timeout_s)
            fail_time_out(x, &op->activity, "begun on the device and not ended");
        return;
    }
}

static void look_at_errors(struct nccl_context *x) {
    if (pthread_mutex_trylock(&x->calls)) return;  // a call is being made, which reports errors itself
    ncclComm_t bad = NULL;
    ncclResult_t r = ncclSuccess;
    for (int i = 0; i < x->num_comms && !bad && !x->failed; i++)
        if (x->lib.CommGetAsyncError(x->comms[i], &r) == ncclSuccess && r != ncclSuccess && r != ncclInProgress)
            bad = x->comms[i];
    if (bad) {
        pthread_mutex_lock(&x->lock);
        const struct nccl_activity *d = x->ended < x->queued ? &x->ops[(x->ended + 1) % NCCL_RING].activity
                                                             : &x->ops[x->queued % NCCL_RING].activity;
        if (d->what)
            fail_result(x, d, bad, r);
        else
            fail_result(x, &x->call, bad, r);
        pthread_mutex_unlock(&x->lock);
    }
    pthread_mutex_unlock(&x->calls);
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
static void abort_all(struct nccl_context *x) {
    struct abort_call calls[NCCL_MAX_COMMS];
    struct timespec soon;
    clock_gettime(CLOCK_REALTIME, &soon);
    soon.tv_sec += 1;
    // if not, the host is stuck in NCCL after all: aborting frees it
    const int locked = pthread_mutex_timedlock(&x->calls, &soon) == 0;
    for (int i = 0; i < x->num_comms; i++) {
        calls[i] = (struct abort_call){ .lib = &x->lib, .comm = x->comms[i] };
        calls[i].started = pthread_create(&calls[i].thread, NULL, abort_one, &calls[i]) == 0;
    }
    for (int i = 0; i < x->num_comms; i++) {
        if (calls[i].started)
            (void)pthread_join(calls[i].thread, NULL);
        else
            (void)abort_one(&calls[i]);
    }
    x->num_comms = 0;
    if (locked) pthread_mutex_unlock(&x->calls);
    pthread_mutex_lock(&x->lock);
    x->aborted = 1;
    pthread_cond_broadcast(&x->gone);
    pthread_mutex_unlock(&x->lock);
}

// The stream ends since NCCL's kernels leave it; waiting for it also lets them (a CPU runs them in such a wait).
void zero_nccl_wait_until_aborted(struct nccl_context *x) {
    if (!x->watched || !x->failed) return;
    (void)cudaStreamSynchronize(x->stream);
    pthread_mutex_lock(&x->lock);
    while (!x->aborted) pthread_cond_wait(&x->gone, &x->lock);
    pthread_mutex_unlock(&x->lock);
}

static void *watch(void *arg) {
    struct nccl_context *x = arg;
    (void)cudaSetDevice(x->device);
    const double period = x->config.timeout_s < 5 ? x->config.timeout_s / 10 : 0.5;
    pthread_mutex_lock(&x->lock);
    while (!x->stop && !x->failed) {
        (void)zero_stopwatch_read(&x->ran);
        look_at_call(x);
        look_at_operations(x);
        pthread_mutex_unlock(&x->lock);
        look_at_errors(x);
        pthread_mutex_lock(&x->lock);
        struct timespec next;
        clock_gettime(CLOCK_MONOTONIC, &next);
        const double at = (double)next.tv_nsec * 1e-9 + period;
        next.tv_sec += (time_t)at;
        next.tv_nsec = (long)((at - (double)(time_t)at) * 1e9);
        if (!x->stop && !x->failed) pthread_cond_timedwait(&x->wake, &x->lock, &next);
    }
    const int failed = x->failed;
    pthread_mutex_unlock(&x->lock);
    if (failed) abort_all(x);
    return NULL;
}

int zero_nccl_start_watchdog(struct nccl_context *x) {
    x->watched = pthread_create(&x->watchdog, NULL, watch, x) == 0;
    return x->watched ? ZERO_OK : ZERO_ERR_COMM;
}

void zero_nccl_stop_watchdog(struct nccl_context *x) {
    if (!x->watched) return;
    pthread_mutex_lock(&x->lock);
    x->stop = 1;
    pthread_cond_signal(&x->wake);
    pthread_mutex_unlock(&x->lock);
    pthread_join(x->watchdog, NULL);
}

// ---- waits of one stream for another --------------------------------------------------------------------------------

int zero_nccl_wait_for(comm_nccl *m, enum zero_nccl_wait which, cudaStream_t stream, cudaEvent_t event) {
    if (m->context->config.omit_wait == (int)which) return ZERO_OK;
    return zero_nccl_device_check(m, cudaStreamWaitEvent(stream, event, 0));
}

int zero_nccl_follow(comm_nccl *m, enum zero_nccl_wait which, cudaStream_t stream) {
    const struct nccl_context *x = m->context;
    if (stream == x->stream) return ZERO_OK;
    const int e = zero_nccl_device_check(m, cudaEventRecord(x->order, stream));
    return e ? e : zero_nccl_wait_for(m, which, x->stream, x->order);
}

// An operation's place in the ring may have a later one by now, which ends no sooner.
int zero_nccl_wait_ended(comm_nccl *m, enum zero_nccl_wait which, cudaStream_t stream, zero_ticket ticket) {
    const struct nccl_context *x = m->context;
    return stream == x->stream ? ZERO_OK : zero_nccl_wait_for(m, which, stream, x->ops[ticket % NCCL_RING].ended);
}
#endif
