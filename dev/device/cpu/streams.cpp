// Streams and events, and the order in which their work is done.
//
// By default work is done at the moment it is enqueued: one of the orders in which a GPU may do it, and the fastest
// here. But it hides every missing event and every missing synchronisation. So CUDA_ON_CPU_STREAMS=0..n in the
// environment makes work wait in the queue of its stream until the host synchronises with it, and only what the host
// waits for has to be done by then. 0 does nothing else; with 1 all other streams first run ahead as far as they may;
// any other number is the seed of a random order in between. A program whose streams are ordered by the events they
// need gives the same bits in all of them; one that reads a buffer too early does not.
//
// An operation has at most one dependency: that another stream has done its first `position` operations. An event is
// such a pair, and so is the rule that the default stream and the streams that block with it follow each other. Nothing
// can depend on work that is not enqueued yet, so some operation can always run. Work is run by the thread that waits,
// under one lock. An operation may depend on another process (a collective): it is called again and again until it has
// ended. Meanwhile other streams may run, and the lock is free while nothing can be done.
//
// A watchdog thread queries events. A thread that queues nothing only looks: cudaEventQuery takes no lock for it, and
// makes no progress.
//
// Copies to and from memory that is not pinned are done when the call returns, as on a GPU (which copies the source
// first).
#include "cuda_runtime.h"
#include "nvtx3/nvToolsExt.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <deque>
#include <mutex>
#include <set>
#include <string>
#include <unistd.h>
#include <vector>

// Is this the wait that CUDA_ON_CPU_FORGET skips (emulated.cpp)? That build keeps stack frames.
#ifdef CUDA_ON_CPU_EMULATED
#define FORGOTTEN cuda_on_cpu_forgotten(__func__, __builtin_frame_address(0))
#else
#define FORGOTTEN false
#endif

static std::atomic<uint64_t> kernels{ 0 }, copies{ 0 }, host_waits{ 0 };

void cuda_on_cpu_count_copy(bool waits) {
    copies++;
    if (waits) host_waits++;
}

struct operation {
    void (*fn)(void *args);   // null: only waits
    int (*step)(void *args);  // instead of fn: called until it returns non-zero
    void *args;               // a copy, freed when it is done
    CUstream_st *after;
    size_t position;   // of `after`
    const char *name;  // of the range in which it was queued
    bool begun;
    bool of_host;  // a host function
};

struct CUstream_st {
    bool blocking;  // follows the default stream, and is followed by it
    std::deque<operation> queue;
    size_t enqueued;           // operations
    std::atomic<size_t> done;  // of these; a watchdog reads it without the lock
};

struct CUevent_st {
    bool recorded;
    CUstream_st *stream;
    size_t position;
    timespec when;
#ifdef CUDA_ON_CPU_EMULATED
    cuda_on_cpu_memory memory;
#endif
};

struct record_args {
    cudaEvent_t event;
};

static std::recursive_mutex lock;  // of all that follows; recursive: calls of this file make others
// Never freed: an event may outlive its stream, and a library's destructor may be the last to use one.
static std::vector<cudaStream_t> &streams = *new std::vector<cudaStream_t>();
static uint64_t seed;
static bool others_first;
static thread_local bool queues_work;  // this thread does

static std::atomic<bool> broken{ false };

void cuda_on_cpu_break() { broken = true; }

static cudaError_t unless_broken() { return broken ? cuda_on_cpu_error(cudaErrorLaunchFailure) : cudaSuccess; }

static void (*trace_fn)(void *ctx, const char *name);
static void *trace_ctx;
static thread_local std::vector<const char *> ranges;  // that the host is in

// CUDA_ON_CPU_TRACE=FILE: also prints the names to FILE.PID.
static void print_name(void *file, const char *name) { fprintf(static_cast<FILE *>(file), "%s\n", name); }

[[maybe_unused]] static const bool prints_names = [] {
    const char *path = getenv("CUDA_ON_CPU_TRACE");
    trace_ctx = path ? fopen((path + ('.' + std::to_string(getpid()))).c_str(), "w") : nullptr;
    if (trace_ctx) trace_fn = print_name;
    return trace_ctx != nullptr;
}();

static const char *range_name() { return ranges.empty() ? "" : ranges.back(); }

static thread_local bool in_host_function;

// False: it has not ended, since it waits for another process. A host function may touch no memory of the device.
static bool run(operation *o) {
    if (!o->fn && !o->step) return true;
    if (trace_fn && !o->begun) trace_fn(trace_ctx, o->name);
    o->begun = true;
    if (o->of_host) {
        in_host_function = true;
        o->fn(o->args);
        in_host_function = false;
        return true;
    }
    const cuda_on_cpu_operation running;
    if (o->step) return o->step(o->args) != 0;
    o->fn(o->args);
    return true;
}

static void pause_for_others() {
    const timespec t = { 0, 30 * 1000 };
    nanosleep(&t, nullptr);
}

static CUstream_st *new_stream(bool blocking) {
    CUstream_st *s = new CUstream_st();
    s->blocking = blocking;
    streams.push_back(s);
    return s;
}

static CUstream_st *stream_of(cudaStream_t s) {
    static CUstream_st *const default_stream = new_stream(true);
    return s ? s : default_stream;
}

bool cuda_on_cpu_deferred() {
    static const bool deferred = [] {
        const char *s = getenv("CUDA_ON_CPU_STREAMS");
        seed = s ? strtoull(s, nullptr, 10) * 0x9e3779b97f4a7c15ull : 0;
        others_first = s && strcmp(s, "1") == 0;
        return s != nullptr;
    }();
    return deferred;
}

static unsigned random_below(unsigned n) {
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return static_cast<unsigned>((seed >> 32) % n);
}

// ---------------------------------------------------------------------------------------------------------------------
// The queues

static bool waits(const CUstream_st *s) {
    const operation &o = s->queue.front();
    return o.after && o.after->done < o.position;
}

static bool run_first(CUstream_st *s) {
    operation *o = &s->queue.front();  // stays there while it queues others
    if (!run(o)) return false;
    free(o->args);
    s->queue.pop_front();
    s->done++;
    return true;
}

// One operation of s, or of the stream that s waits for.
static bool advance(CUstream_st *s) {
    while (waits(s)) s = s->queue.front().after;
    return run_first(s);
}

// The others go as far as they may, and wait a little for other ranks where they need them.
static void run_others(const CUstream_st *s) {
    int patience = 20;
    for (size_t i = 0; i < streams.size(); i++) {
        CUstream_st *other = streams[i];
        if (other == s || other->queue.empty() || waits(other)) continue;
        if (!run_first(other)) {
            if (--patience == 0) return;
            lock.unlock();
            pause_for_others();
            lock.lock();
        }
        i = static_cast<size_t>(-1);  // it may be what another waited for
    }
}

static void run_until(CUstream_st *s, size_t position) {
    const unsigned eager = seed ? random_below(4) : 0;  // quarters of the time that others get
    while (s->done < position) {
        bool ran = true;
        if (others_first) run_others(s);
        if (s->done >= position) return;
        if (!others_first && eager && random_below(4) < eager) {
            CUstream_st *other = streams[random_below(static_cast<unsigned>(streams.size()))];
            if (!other->queue.empty() && !waits(other)) ran = run_first(other);
        } else {
            ran = advance(s);
        }
        if (!ran) {
            lock.unlock();
            pause_for_others();
            lock.lock();
        }
    }
}

static void run_all() {
    for (size_t i = 0; i < streams.size(); i++) run_until(streams[i], streams[i]->enqueued);
}

static bool push(CUstream_st *s, operation o, const void *args, size_t bytes) {
    void *copy = nullptr;
    if (bytes) {
        copy = malloc(bytes);
        if (!copy) return false;
        memcpy(copy, args, bytes);
    }
    o.args = copy;
    s->queue.push_back(o);
    s->enqueued++;
    queues_work = true;
    return true;
}

static void push_wait(CUstream_st *s, CUstream_st *after, size_t position) {
    push(s, operation{ nullptr, nullptr, nullptr, after, position, "", false, false }, nullptr, 0);
}

static cudaError_t enqueue(cudaStream_t stream, void (*fn)(void *), int (*step)(void *), const void *args, size_t bytes,
                           bool of_host = false) {
    operation o = { fn, step, const_cast<void *>(args), nullptr, 0, range_name(), false, of_host };
    if (in_host_function) return cuda_on_cpu_error(cudaErrorNotPermitted);
    if (broken) return unless_broken();
    if (!cuda_on_cpu_deferred()) {
        while (!run(&o)) pause_for_others();
        return unless_broken();
    }
    const std::lock_guard<std::recursive_mutex> guard(lock);
    CUstream_st *s = stream_of(stream), *first = stream_of(nullptr);
    for (CUstream_st *other : streams) {
        const bool follows = other != s && s->blocking && other->blocking && (s == first || other == first);
        if (follows && other->done < other->enqueued) push_wait(s, other, other->enqueued);
    }
    return push(s, o, args, bytes) ? cudaSuccess : cuda_on_cpu_error(cudaErrorMemoryAllocation);
}

cudaError_t cuda_on_cpu_enqueue(cudaStream_t stream, void (*fn)(void *args), const void *args, size_t bytes) {
    return enqueue(stream, fn, nullptr, args, bytes);
}

cudaError_t cuda_on_cpu_enqueue_until(cudaStream_t stream, int (*step)(void *args), const void *args, size_t bytes) {
    return enqueue(stream, nullptr, step, args, bytes);
}

cudaError_t cuda_on_cpu_wait(cudaStream_t stream) {
    if (in_host_function) return cuda_on_cpu_error(cudaErrorNotPermitted);
    const std::lock_guard<std::recursive_mutex> guard(lock);
    CUstream_st *s = stream_of(stream);
    run_until(s, s->enqueued);
    return unless_broken();
}

extern "C" {

cuda_on_cpu_calls cuda_on_cpu_calls_so_far(void) { return cuda_on_cpu_calls{ kernels, copies, host_waits }; }

// ---------------------------------------------------------------------------------------------------------------------
// Ranges, and the trace

const char *cuda_on_cpu_range(void) { return range_name(); }

int nvtxRangePushA(const char *name) {
    const std::lock_guard<std::recursive_mutex> guard(lock);
    static std::set<std::string> &names = *new std::set<std::string>();  // an operation may run long after its range
    const std::string path = ranges.empty() ? name : std::string(ranges.back()) + '/' + name;
    ranges.push_back(names.insert(path).first->c_str());
    return static_cast<int>(ranges.size()) - 1;
}

int nvtxRangePop(void) {
    if (ranges.empty()) return -1;
    ranges.pop_back();
    return static_cast<int>(ranges.size());
}

void cuda_on_cpu_trace(void (*fn)(void *ctx, const char *name), void *ctx) {
    const std::lock_guard<std::recursive_mutex> guard(lock);
    trace_fn = fn;
    trace_ctx = ctx;
}

// ---------------------------------------------------------------------------------------------------------------------
// Streams

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
    const std::lock_guard<std::recursive_mutex> guard(lock);
    *stream = new_stream(!(flags & cudaStreamNonBlocking));
    return cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t *stream) { return cudaStreamCreateWithFlags(stream, cudaStreamDefault); }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int) {
    return cudaStreamCreateWithFlags(stream, flags);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    *least = *greatest = 0;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    host_waits++;
    return cuda_on_cpu_wait(stream);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    return stream ? cuda_on_cpu_wait(stream) : cuda_on_cpu_error(cudaErrorInvalidResourceHandle);
}

// Asking makes one operation's progress, so that a loop that asks until it is done ends.
static cudaError_t ask(CUstream_st *s, size_t position) {
    if (s->done < position) advance(s);
    return s->done < position ? cudaErrorNotReady : cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
    const std::lock_guard<std::recursive_mutex> guard(lock);
    CUstream_st *s = stream_of(stream);
    return ask(s, s->enqueued);
}

cudaError_t cudaDeviceSynchronize(void) {
    host_waits++;
    const std::lock_guard<std::recursive_mutex> guard(lock);
    run_all();
    return unless_broken();
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn, void *user_data) {
    struct host_call {
        cudaHostFn_t fn;
        void *user_data;
    } const call = { fn, user_data };
    const auto run = [](void *p) { static_cast<host_call *>(p)->fn(static_cast<host_call *>(p)->user_data); };
    return enqueue(stream, run, nullptr, &call, sizeof call, true);
}

// ---------------------------------------------------------------------------------------------------------------------
// Events

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned) {
    *event = new CUevent_st();
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }

// What has been recorded may still be in a queue, and writes the time into the event.
cudaError_t cudaEventDestroy(cudaEvent_t event) {
    if (!event) return cuda_on_cpu_error(cudaErrorInvalidResourceHandle);
    const cudaError_t e = cudaEventSynchronize(event);
    delete event;
    return e;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    if (!event) return cuda_on_cpu_error(cudaErrorInvalidResourceHandle);
    const std::lock_guard<std::recursive_mutex> guard(lock);
    const record_args args = { event };
    const auto pass = [](void *p) {
        const cudaEvent_t passed = static_cast<record_args *>(p)->event;
        clock_gettime(CLOCK_MONOTONIC, &passed->when);
#ifdef CUDA_ON_CPU_EMULATED
        passed->memory = cuda_on_cpu_memory_so_far();
#endif
    };
    const cudaError_t e = cuda_on_cpu_enqueue(stream, pass, &args, sizeof args);
    event->recorded = true;
    event->stream = stream_of(stream);
    event->position = event->stream->enqueued;
    return e;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
    if (!event) return cuda_on_cpu_error(cudaErrorInvalidResourceHandle);
    if (FORGOTTEN) return cudaSuccess;
    const std::lock_guard<std::recursive_mutex> guard(lock);
    if (!event->recorded || event->stream->done >= event->position) return cudaSuccess;
    push_wait(stream_of(stream), event->stream, event->position);
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
    if (!event) return cuda_on_cpu_error(cudaErrorInvalidResourceHandle);
    if (!event->recorded || event->stream->done >= event->position) return cudaSuccess;
    if (!queues_work) return cudaErrorNotReady;
    const std::lock_guard<std::recursive_mutex> guard(lock);
    return ask(event->stream, event->position);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    if (!event) return cuda_on_cpu_error(cudaErrorInvalidResourceHandle);
    if (FORGOTTEN) return cudaSuccess;
    host_waits++;
    const std::lock_guard<std::recursive_mutex> guard(lock);
    if (event->recorded) run_until(event->stream, event->position);
    return unless_broken();
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end) {
    if (!start || !end || !start->recorded || !end->recorded) return cuda_on_cpu_error(cudaErrorInvalidResourceHandle);
    const std::lock_guard<std::recursive_mutex> guard(lock);
    for (cudaEvent_t e : { start, end }) {
        if (e->stream->done < e->position) return cudaErrorNotReady;
    }
    const double seconds = static_cast<double>(end->when.tv_sec - start->when.tv_sec);
    const double nanoseconds = static_cast<double>(end->when.tv_nsec - start->when.tv_nsec);
    *ms = static_cast<float>(seconds * 1e3 + nanoseconds * 1e-6);
    return cudaSuccess;
}

#ifdef CUDA_ON_CPU_EMULATED
void cuda_on_cpu_add_memory_between(cuda_on_cpu_memory *sum, cudaEvent_t start, cudaEvent_t end) {
    const cuda_on_cpu_memory &a = start->memory, &b = end->memory;
    sum->requests += b.requests - a.requests;
    sum->sectors += b.sectors - a.sectors;
    sum->fewest_sectors += b.fewest_sectors - a.fewest_sectors;
    sum->stored += b.stored - a.stored;
    sum->shared_requests += b.shared_requests - a.shared_requests;
    sum->wavefronts += b.wavefronts - a.wavefronts;
    sum->fewest_wavefronts += b.fewest_wavefronts - a.fewest_wavefronts;
}
#endif

}  // extern "C"

// ---------------------------------------------------------------------------------------------------------------------
// Launch: refused at once or run in its turn

struct alignas(16) queued_launch {
    cudaLaunchConfig_t config;
    cuda_on_cpu_call call;
};

static void run_queued_launch(void *p) {
    queued_launch *q = static_cast<queued_launch *>(p);
    q->call.args = q + 1;
    if (cuda_on_cpu_run(&q->config, &q->call) == cudaSuccess) return;  // out of memory: nobody to report it to
    fprintf(stderr, "cuda_on_cpu: no memory for a queued kernel\n");
    abort();
}

cudaError_t cuda_on_cpu_launch(const cudaLaunchConfig_t *config, const cuda_on_cpu_call *call) {
    const cudaError_t refused = cuda_on_cpu_check_launch(config, call);
    if (refused != cudaSuccess) return cuda_on_cpu_error(refused);
    kernels++;
    if (!cuda_on_cpu_deferred()) {
        if (trace_fn) trace_fn(trace_ctx, range_name());
        const cuda_on_cpu_operation operation;
        return cuda_on_cpu_error(cuda_on_cpu_run(config, call));
    }
    std::vector<char> bytes(sizeof(queued_launch) + call->args_bytes);
    const queued_launch q = { *config, *call };
    memcpy(bytes.data(), &q, sizeof q);
    memcpy(bytes.data() + sizeof q, call->args, call->args_bytes);
    return cuda_on_cpu_enqueue(config->stream, run_queued_launch, bytes.data(), bytes.size());
}
