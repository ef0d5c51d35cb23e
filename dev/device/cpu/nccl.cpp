// NCCL's calls for ranks that are processes of one host (nccl.h), to test the NCCL transport without a GPU.
// nccl_channel.cpp moves the bytes; communicators, groups and asynchronous jobs are here.
//
// It does what NCCL's sources do, versions 2.19 to 2.30 (src/init.cc, src/group.cc, src/enqueue.cc), not what would be
// convenient:
//
//     A group collects jobs (init, split, finalize) and tasks (sends, receives, collectives). ncclGroupEnd runs them;
//     if the communicators are non-blocking, it runs them on a thread of its own and returns ncclInProgress. A call
//     outside of a group is a group by itself.
//
//     success --ncclGroupEnd--> in progress --thread ends--> success or error (permanent)
//
//     A call on a communicator that is in progress is refused (ncclInvalidArgument), and leaves it with that error.
//     ncclCommGetAsyncError joins the thread once it has reported success.
//     ncclCommSplit is a job of the *parent*: it returns ncclSuccess, and the new communicator is NULL until the thread
//     has written it, before the parent leaves ncclInProgress.
//     ncclCommAbort ends the thread and the operations, waits until all operations of the communicator have left the
//     device, also those that other operations in the stream hold up, and frees the communicator, as ncclCommDestroy
//     does. Here a later use of the communicator stops the program with a message.
//
// It is as unforgiving as the real library may be. It waits for a killed rank without end. The order of the floats in a
// sum depends on the rank. With NCCL_ON_CPU_ABORT_BREAKS=1 an aborted operation leaves the device broken, as may happen
// on a GPU if other operations were queued behind it.
//
// Operations are run by the host while it waits for a stream. A rank that waits elsewhere (MPI_Barrier) makes no
// progress with them. That blocks nobody if all ranks make the same waits in the same order: it has then already done
// what the others wait for.
#include "nccl.h"
#include "nccl_channel.h"
#include "nvtx3/nvToolsExt.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <unistd.h>

enum { ALIVE = 0x6e63636c, FREED = 0x64656164 };

// What a group does. One for all its communicators; the last one that lets go of it frees it.
struct group_job {
    std::vector<std::function<ncclResult_t()>> jobs;
    std::vector<ncclComm *> comms;  // whose state it sets
    std::string range;              // that the caller was in
    std::thread thread;
    std::atomic<bool> joined{ false };
};

struct ncclComm {
    uint32_t magic = ALIVE;
    const char *freed_by = "";
    int rank, ranks;
    bool blocking, finalized = false;
    std::shared_ptr<nccl_channel> channel = std::make_shared<nccl_channel>();
    nccl_abort_flag aborted = std::make_shared<std::atomic<bool>>(false), child_aborted;
    std::atomic<int> state{ ncclSuccess };  // what ncclCommGetAsyncError reports
    std::shared_ptr<group_job> job;         // to be joined
    std::vector<nccl_task> tasks;           // of the group that is being collected
    cudaStream_t stream;
    uint32_t splits = 0;
    std::map<char *, std::pair<size_t, int>> registered;  // bytes, references
};

static thread_local int group_depth;
static thread_local ncclResult_t group_error;
static thread_local std::shared_ptr<group_job> group;  // being collected
static thread_local char last_error[256];

static ncclResult_t fail(ncclResult_t result, const char *message) {
    snprintf(last_error, sizeof last_error, "%s", message);
    return result;
}

static bool failed(ncclResult_t r) { return r != ncclSuccess && r != ncclInProgress; }

// NULL or not a communicator: ncclInvalidArgument. Freed: the program is stopped.
static ncclResult_t check(const ncclComm *m, const char *call) {
    if (m && m->magic == FREED) {
        fprintf(stderr, "NCCL on the CPU: %s on a communicator that %s has freed\n", call, m->freed_by);
        abort();
    }
    return m && m->magic == ALIVE ? ncclSuccess : fail(ncclInvalidArgument, "a communicator that does not exist");
}

static void join(ncclComm *m) {
    if (m->job && !m->job->joined.exchange(true)) m->job->thread.join();
    m->job.reset();
}

static ncclResult_t ask(ncclComm *m) {
    const ncclResult_t state = static_cast<ncclResult_t>(m->state.load());
    if (state == ncclSuccess) join(m);
    return state;
}

static ncclResult_t ensure_ready(ncclComm *m) {
    if (*m->aborted) {
        join(m);
        return ncclSuccess;
    }
    const ncclResult_t state = ask(m);
    return state == ncclInProgress
               ? fail(ncclInvalidArgument, "a communicator is used before its last call has returned ncclSuccess")
               : state;
}

// A non-blocking communicator keeps an error for good.
static ncclResult_t set_error(ncclComm *m, ncclResult_t r) {
    if (!m->blocking) m->state = r;
    return r;
}

// Freed, and kept so that later uses are noticed.
static void free_comm(ncclComm *m, const char *call) {
    static std::mutex lock;
    static std::vector<ncclComm *> &freed = *new std::vector<ncclComm *>();
    m->channel.reset();  // operations that still have to see that they are aborted keep it
    m->freed_by = call;
    m->magic = FREED;
    const std::lock_guard<std::mutex> guard(lock);
    freed.push_back(m);
}

// ---------------------------------------------------------------------------------------------------------------------
// Groups

static ncclResult_t group_check(ncclResult_t r) {
    if (group_depth > 0 && failed(r)) group_error = r;
    return r;
}

static void join_group(ncclComm *m) {
    if (!group) group = std::make_shared<group_job>();
    for (const ncclComm *other : group->comms) {
        if (other == m) return;
    }
    group->comms.push_back(m);
}

// The thread writes the state of the communicators last: a reader of it finds everything done.
static ncclResult_t run_group(group_job *g, bool on_thread) {
    ncclResult_t r = ncclSuccess;
    if (on_thread) usleep(20 + static_cast<unsigned>(getpid()) * 37 % 100);
    if (on_thread) nvtxRangePushA(g->range.c_str());
    for (const auto &job : g->jobs) {
        if (r == ncclSuccess) r = job();
    }
    for (ncclComm *m : g->comms) {
        if (r == ncclSuccess && !m->tasks.empty()) r = nccl_launch(m->channel, std::move(m->tasks), m->stream);
        m->tasks.clear();
    }
    if (on_thread) nvtxRangePop();
    for (ncclComm *m : g->comms) (void)set_error(m, r);
    return r;
}

static ncclResult_t end_group() {
    if (group_depth == 0) return fail(ncclInvalidUsage, "a group ends that was not begun");
    if (--group_depth > 0) return ncclSuccess;
    const std::shared_ptr<group_job> g = std::move(group);
    group.reset();
    ncclResult_t r = group_error;
    group_error = ncclSuccess;
    if (!g) return r;
    for (const ncclComm *m : g->comms) {
        if (r == ncclSuccess && m->blocking != g->comms[0]->blocking)
            r = fail(ncclInvalidArgument, "blocking and non-blocking communicators in one group");
    }
    if (r != ncclSuccess) {
        for (ncclComm *m : g->comms) {
            m->tasks.clear();
            (void)set_error(m, r);
        }
        return r;
    }
    if (g->comms[0]->blocking) return run_group(g.get(), false);
    for (ncclComm *m : g->comms) {
        m->state = ncclInProgress;
        if (!m->job) m->job = g;
    }
    g->range = cuda_on_cpu_range();
    g->thread = std::thread(run_group, g.get(), true);
    return ncclInProgress;
}

static void add_job(ncclComm *m, std::function<ncclResult_t()> job) {
    join_group(m);
    group->jobs.push_back(std::move(job));
}

// A send, a receive or a collective. peer: that it is with, or a rank that exists.
static ncclResult_t enqueue(const char *call, ncclComm *m, int peer, cudaStream_t stream, const nccl_task &task) {
    ncclResult_t r = check(m, call);
    if (r != ncclSuccess) return group_check(r);
    group_depth++;
    r = ensure_ready(m);
    if (r == ncclSuccess && (peer < 0 || peer >= m->ranks)) r = fail(ncclInvalidArgument, "there is no such rank");
    if (r == ncclSuccess && !m->tasks.empty() && m->stream != stream)
        r = fail(ncclInvalidUsage, "here a group has one stream for each communicator");
    if (r == ncclSuccess) {
        join_group(m);
        m->stream = stream;
        m->tasks.push_back(task);
    } else {
        (void)set_error(m, r);
    }
    (void)group_check(r);
    const ncclResult_t end = end_group();
    if (failed(end)) return end;
    return m->blocking ? r : ask(m);
}

// ---------------------------------------------------------------------------------------------------------------------
// Communicators

static ncclComm *new_comm(int rank, int ranks, bool blocking) {
    ncclComm *m = new ncclComm();
    m->rank = rank;
    m->ranks = ranks;
    m->blocking = blocking;
    return m;
}

static bool is_blocking(const ncclConfig_t *config) { return !config || config->blocking != 0; }

// Finds the child's ranks among those that have published their color; makes its memory, or waits for the rank that
// does; joins it.
static ncclResult_t split_off(ncclComm *m, ncclComm *child, int color, int key) {
    const uint32_t number = ++m->splits;
    nccl_channel *c = m->channel.get();
    const auto of = [&](int r) { return c->split(r, number); };
    of(m->rank)->color = color;
    of(m->rank)->key = key;
    of(m->rank)->published = number;
    for (int r = 0; r < m->ranks; r++) {
        while (of(r)->published < number) {
            if (*m->aborted) return ncclInternalError;
            usleep(50);
        }
    }
    if (!child) return ncclSuccess;
    int first = m->rank, rank = 0, ranks = 0;
    for (int r = 0; r < m->ranks; r++) {
        if (of(r)->color != color) continue;
        ranks++;
        rank += of(r)->key < key || (of(r)->key == key && r < m->rank);
        if (of(r)->key < of(first)->key || (of(r)->key == of(first)->key && r < first)) first = r;
    }
    child->rank = rank;
    child->ranks = ranks;
    if (first == m->rank) {
        if (!nccl_make_card(&of(first)->child)) return ncclSystemError;
        of(first)->made = number;
    }
    while (of(first)->made < number) {
        if (*m->aborted) return ncclInternalError;
        usleep(50);
    }
    return child->channel->join(rank, ranks, of(first)->child, child->aborted);
}

static ncclResult_t begin_split(ncclComm *m, int color, int key, ncclComm **out, const ncclConfig_t *config) {
    ncclResult_t r = check(m, "ncclCommSplit");
    if (r == ncclSuccess) r = ensure_ready(m);
    if (r != ncclSuccess) return r;
    *out = nullptr;
    ncclComm *child = color < 0 ? nullptr : new_comm(0, 0, config ? is_blocking(config) : m->blocking);
    if (child) m->child_aborted = child->aborted;
    add_job(m, [=] {
        const ncclResult_t result = split_off(m, child, color, key);
        m->child_aborted.reset();
        if (child) __atomic_store_n(out, child, __ATOMIC_RELEASE);  // also if it has failed
        return result;
    });
    return ncclSuccess;
}

extern "C" {

ncclResult_t ncclGetVersion(int *version) {
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result) {
    switch (result) {
    case ncclSuccess: return "no error";
    case ncclUnhandledCudaError: return "unhandled cuda error";
    case ncclSystemError: return "unhandled system error";
    case ncclInternalError: return "internal error";
    case ncclInvalidArgument: return "invalid argument";
    case ncclInvalidUsage: return "invalid usage";
    case ncclRemoteError: return "remote process exited or there was a network error";
    case ncclInProgress: return "NCCL operation in progress";
    }
    return "unknown result code";
}

const char *ncclGetLastError(ncclComm_t) { return last_error; }

ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
    nccl_card card;
    memset(id, 0, sizeof *id);
    if (!nccl_make_card(&card)) return fail(ncclSystemError, "memfd_create failed");
    memcpy(id->internal, &card, sizeof card);
    return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *out, int ranks, ncclUniqueId id, int rank, ncclConfig_t *config) {
    *out = nullptr;
    if (ranks < 1 || rank < 0 || rank >= ranks) return group_check(fail(ncclInvalidArgument, "there is no such rank"));
    nccl_card card;
    memcpy(&card, id.internal, sizeof card);
    ncclComm *m = *out = new_comm(rank, ranks, is_blocking(config));
    group_depth++;
    add_job(m, [=] { return m->channel->join(rank, ranks, card, m->aborted); });
    const ncclResult_t r = end_group();
    return m->blocking || failed(r) ? r : ask(m);
}

ncclResult_t ncclCommSplit(ncclComm_t m, int color, int key, ncclComm_t *child, ncclConfig_t *config) {
    group_depth++;
    const ncclResult_t r = group_check(begin_split(m, color, key, child, config)), end = end_group();
    return failed(end) ? end : r;  // not ncclInProgress
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t m, ncclResult_t *error) {
    const ncclResult_t r = check(m, "ncclCommGetAsyncError");
    if (r == ncclSuccess) *error = ask(m);
    return r;
}

// The program has synchronized with its streams: there is nothing left to flush.
ncclResult_t ncclCommFinalize(ncclComm_t m) {
    if (!m) return ncclSuccess;
    ncclResult_t r = check(m, "ncclCommFinalize");
    if (r == ncclSuccess) r = ensure_ready(m);
    if (r == ncclSuccess && m->finalized) r = fail(ncclInvalidArgument, "a communicator is finalized twice");
    if (r == ncclSuccess && m->channel->queued > 0) r = fail(ncclInvalidUsage, "here operations must have ended");
    if (r != ncclSuccess) return group_check(set_error(m, r));
    m->finalized = true;
    group_depth++;
    add_job(m, [] { return ncclSuccess; });
    r = end_group();
    return m->blocking || failed(r) ? r : ask(m);
}

ncclResult_t ncclCommDestroy(ncclComm_t m) {
    if (!m) return ncclSuccess;
    ncclResult_t r = check(m, "ncclCommDestroy");
    if (r == ncclSuccess) r = ensure_ready(m);  // one that has failed can only be aborted
    if (r == ncclSuccess && m->channel->queued > 0) r = fail(ncclInvalidUsage, "here operations must have ended");
    if (r == ncclSuccess) free_comm(m, "ncclCommDestroy");
    return r;
}

// From any thread. Operations in streams end without having moved everything, when their turn comes.
ncclResult_t ncclCommAbort(ncclComm_t m) {
    if (!m) return ncclSuccess;
    const ncclResult_t r = check(m, "ncclCommAbort");
    if (r != ncclSuccess) return r;
    if (const nccl_abort_flag child = m->child_aborted) *child = true;
    *m->aborted = true;
    (void)ensure_ready(m);
    while (m->channel && m->channel->queued > 0) usleep(100);
    free_comm(m, "ncclCommAbort");
    return ncclSuccess;
}

ncclResult_t ncclGroupStart(void) {
    group_depth++;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void) { return end_group(); }

static nccl_task task_of(ncclDataType_t type) { return nccl_task{ nullptr, nullptr, 0, false, type, {} }; }

ncclResult_t ncclSend(const void *from, size_t count, ncclDataType_t type, int peer, ncclComm_t m,
                      cudaStream_t stream) {
    nccl_task t = task_of(type);
    char *at = static_cast<char *>(const_cast<void *>(from));
    t.transfers.push_back(nccl_transfer{ true, peer, at, count * nccl_type_bytes(type), 0 });
    return enqueue("ncclSend", m, peer, stream, t);
}

ncclResult_t ncclRecv(void *to, size_t count, ncclDataType_t type, int peer, ncclComm_t m, cudaStream_t stream) {
    nccl_task t = task_of(type);
    t.transfers.push_back(nccl_transfer{ false, peer, static_cast<char *>(to), count * nccl_type_bytes(type), 0 });
    return enqueue("ncclRecv", m, peer, stream, t);
}

ncclResult_t ncclAllGather(const void *from, void *to, size_t count, ncclDataType_t type, ncclComm_t m,
                           cudaStream_t stream) {
    nccl_task t = task_of(type);
    const size_t bytes = count * nccl_type_bytes(type);
    char *mine = static_cast<char *>(const_cast<void *>(from)), *all = static_cast<char *>(to);
    if (check(m, "ncclAllGather") == ncclSuccess) {
        t.copy_from = mine;
        t.copy_to = all + static_cast<size_t>(m->rank) * bytes;
        t.copy_bytes = bytes;
        for (int r = 0; r < m->ranks; r++) {
            if (r == m->rank) continue;
            t.transfers.push_back(nccl_transfer{ true, r, mine, bytes, 0 });
            t.transfers.push_back(nccl_transfer{ false, r, all + static_cast<size_t>(r) * bytes, bytes, 0 });
        }
    }
    return enqueue("ncclAllGather", m, 0, stream, t);
}

ncclResult_t ncclReduceScatter(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t m, cudaStream_t stream) {
    nccl_task t = task_of(type);
    const size_t bytes = count * nccl_type_bytes(type);
    char *all = static_cast<char *>(const_cast<void *>(from));
    if (op != ncclSum || (type != ncclFloat32 && type != ncclBfloat16))
        return group_check(fail(ncclInvalidArgument, "here a reduce-scatter adds fp32 or bf16"));
    if (check(m, "ncclReduceScatter") == ncclSuccess) {
        t.adds = true;
        t.copy_from = all + static_cast<size_t>(m->rank) * bytes;
        t.copy_to = static_cast<char *>(to);
        t.copy_bytes = bytes;
        for (int i = 1; i < m->ranks; i++) {
            const int r = (m->rank + i) % m->ranks;
            t.transfers.push_back(nccl_transfer{ true, r, all + static_cast<size_t>(r) * bytes, bytes, 0 });
            t.transfers.push_back(nccl_transfer{ false, r, static_cast<char *>(to), bytes, 0 });
        }
    }
    return enqueue("ncclReduceScatter", m, 0, stream, t);
}

// Rounded up to the granularity of the device's virtual memory, as in NCCL (src/allocator.cc).
ncclResult_t ncclMemAlloc(void **ptr, size_t bytes) {
    const size_t granularity = (size_t)2 << 20, rounded = (bytes + granularity - 1) / granularity * granularity;
    return cudaMalloc(ptr, rounded) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

ncclResult_t ncclMemFree(void *ptr) { return cudaFree(ptr) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError; }

ncclResult_t ncclCommRegister(const ncclComm_t m, void *ptr, size_t bytes, void **handle) {
    const ncclResult_t r = check(m, "ncclCommRegister");
    if (r != ncclSuccess) return r;
    if (!ptr || !bytes) return fail(ncclInvalidArgument, "memory that cannot be registered");
    const char *enabled = getenv("NCCL_LOCAL_REGISTER");
    *handle = nullptr;
    if (enabled && !strcmp(enabled, "0")) return ncclSuccess;
    char *at = static_cast<char *>(ptr);
    for (auto &region : m->registered) {
        if (at < region.first || at + bytes > region.first + region.second.first) continue;
        region.second.second++;
        *handle = region.first;
        return ncclSuccess;
    }
    m->registered[at] = { bytes, 1 };
    *handle = at;
    return ncclSuccess;
}

ncclResult_t ncclCommDeregister(const ncclComm_t m, void *handle) {
    const ncclResult_t r = check(m, "ncclCommDeregister");
    if (r != ncclSuccess || !handle) return r;
    const auto region = m->registered.find(static_cast<char *>(handle));
    if (region == m->registered.end()) return fail(ncclInvalidUsage, "memory that was not registered");
    if (m->channel->queued > 0) return fail(ncclInvalidUsage, "here operations must have ended");
    if (--region->second.second == 0) m->registered.erase(region);
    return ncclSuccess;
}

}  // extern "C"
