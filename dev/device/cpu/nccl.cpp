// NCCL's calls for ranks that are processes of one host (nccl.h), so that what stands on NCCL can be tested without a
// GPU.
//
// Every ordered pair of ranks has a box in memory that all ranks map: the sender fills it with a chunk, the receiver
// empties it. A collective is a list of transfers through boxes, the sum of a reduce-scatter is taken while it is
// received. The memory is a memfd, which the others open through /proc, so nothing is left behind after a crash; the
// unique id says whose and which.
//
// It is as unkind as the real one may be. A call only queues an operation on its stream: buffers are read and written
// when its turn has come, bit by bit, while other streams run (streams.cpp). With config.blocking = 0 calls return
// ncclInProgress, and what they were to do is done only after some calls of ncclCommGetAsyncError. A rank that was
// killed is waited for without end. The order of the floats in a sum depends on the rank. With
// NCCL_ON_CPU_ABORT_BREAKS=1 an operation that is aborted leaves the device broken, as may happen where others were
// queued behind it. In one thing it is kinder: where two ranks disagree about what they do with each other, both are
// told.
//
// It is the host that runs operations, while it waits for a stream. A rank that waits elsewhere (MPI_Barrier) makes no
// progress with them; nobody is kept waiting by that if all ranks make the same waits in the same order, for then it
// has already done what the others wait for.
#include "nvtx3/nvToolsExt.h"
#include "nccl.h"

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <map>
#include <mutex>
#include <sys/mman.h>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>
#include <vector>

static const size_t CHUNK = 32768;
enum { CARDS = 64, POLLS = 3 };
static const uint64_t MAGIC = 0x6e63636c2d637075;  // "nccl-cpu"

struct card {  // how others find a rank's memory
    uint64_t magic;
    long pid;
    int fd;
    uint64_t device, inode;
};

struct box {  // from one rank to another
    std::atomic<uint32_t> full;
    uint32_t call;   // what the chunk belongs to: kind and type of the call,
    uint64_t total;  // and the bytes of the whole transfer
    uint32_t bytes;
    char data[CHUNK];
};

struct split {  // what a rank says when the communicator is split; a pair for each rank,
                // since one may be a split ahead
    int color, key;
    card child;                        // by the child's rank 0: its memory
    std::atomic<uint32_t> said, made;  // numbers of the last split with that in it
};

struct shared {
    std::atomic<int> ranks;  // whoever comes first says how many
    std::atomic<uint32_t> joined;
    std::atomic<int> failed;  // some rank has found a mistake
};

struct call;

struct ncclComm {
    int rank, ranks;
    bool blocking;
    char *memory;
    size_t bytes;
    card from;  // the memory to map; fd: ours to close when all have it
    int owned_fd = -1;
    std::atomic<int> error{ ncclSuccess };  // what ncclCommGetAsyncError says
    std::atomic<bool> aborted{ false };
    std::atomic<int> queued{ 0 };  // calls
    bool ready = false;            // all ranks have joined
    bool joined = false;
    int polls = 0;                                     // of ncclCommGetAsyncError, until what was called is done
    call *pending = nullptr;                           // not queued yet
    std::thread::id owner;                             // the thread that has called; others only look
    ncclComm *child = nullptr, **child_out = nullptr;  // being split off
    uint32_t splits = 0;
    std::map<void *, size_t> registered;

    shared *head() { return reinterpret_cast<shared *>(memory); }
    split *said(int r) { return reinterpret_cast<split *>(memory + CARDS) + 2 * r + splits % 2; }
    box *to(int sender, int receiver) {
        char *boxes = memory + CARDS + (2 * static_cast<size_t>(ranks) * sizeof(split) + 63) / 64 * 64;
        return reinterpret_cast<box *>(boxes) +
               (static_cast<size_t>(sender) * static_cast<size_t>(ranks) + static_cast<size_t>(receiver));
    }
};
static_assert(sizeof(shared) <= CARDS, "the head is too long");

struct transfer {
    bool sends, adds;  // adds: to what is there, one peer after the other
    int peer;
    char *at;
    size_t bytes, moved;
};

struct call {
    ncclComm *comm;
    cudaStream_t stream;
    uint32_t kind;
    ncclDataType_t type;
    bool begun;
    const char *copy_from;  // this rank's own piece
    char *copy_to;
    size_t copy_bytes;
    std::vector<transfer> transfers;
};

enum { SEND_RECV = 1, ALL_GATHER, REDUCE_SCATTER };

static thread_local int group_depth;
static thread_local call *group_call;
static thread_local ncclResult_t group_error;
static thread_local char last_error[256];

static ncclResult_t fail(ncclResult_t result, const char *words) {
    snprintf(last_error, sizeof last_error, "%s", words);
    return result;
}

// ---------------------------------------------------------------------------------------------------------------------
// Operations

static size_t size_of(ncclDataType_t type) { return type == ncclFloat32 ? 4 : type == ncclBfloat16 ? 2 : 1; }

static float widen(uint16_t x) {
    const uint32_t word = static_cast<uint32_t>(x) << 16;
    float f;
    memcpy(&f, &word, sizeof f);
    return f;
}

static uint16_t narrow(float x) {  // to nearest, ties to even; a NaN stays one
    uint32_t word;
    memcpy(&word, &x, sizeof word);
    if (x != x) return static_cast<uint16_t>(word >> 16 | 0x40);
    return static_cast<uint16_t>((word + 0x7fff + (word >> 16 & 1)) >> 16);
}

static void add(char *to, const char *from, size_t bytes, ncclDataType_t type) {
    for (size_t i = 0; i < bytes; i += size_of(type)) {
        if (type == ncclFloat32) {
            float a, b;
            memcpy(&a, to + i, sizeof a);
            memcpy(&b, from + i, sizeof b);
            a += b;
            memcpy(to + i, &a, sizeof a);
        } else {
            uint16_t a, b;
            memcpy(&a, to + i, sizeof a);
            memcpy(&b, from + i, sizeof b);
            a = narrow(widen(a) + widen(b));
            memcpy(to + i, &a, sizeof a);
        }
    }
}

// Moves one chunk if it can be moved.
static bool move(const call *c, transfer *t) {
    ncclComm *m = c->comm;
    box *b = t->sends ? m->to(m->rank, t->peer) : m->to(t->peer, m->rank);
    if (b->full.load(std::memory_order_acquire) != (t->sends ? 0 : 1)) return false;
    const uint32_t what = c->kind * 256 + static_cast<uint32_t>(c->type);
    if (t->sends) {
        b->call = what;
        b->total = t->bytes;
        b->bytes = static_cast<uint32_t>(t->bytes - t->moved < CHUNK ? t->bytes - t->moved : CHUNK);
        memcpy(b->data, t->at + t->moved, b->bytes);
    } else if (b->call != what || b->total != t->bytes) {
        m->error = ncclInvalidUsage;
        m->head()->failed = 1;
        return false;
    } else if (t->adds) {
        add(t->at + t->moved, b->data, b->bytes, c->type);
    } else {
        memcpy(t->at + t->moved, b->data, b->bytes);
    }
    t->moved += b->bytes;
    b->full.store(t->sends, std::memory_order_release);
    return true;
}

// As many chunks as can be moved: 1 if the operation has ended. Transfers of one pair keep their order.
static int step(void *p) {
    call *c = *static_cast<call **>(p);
    ncclComm *m = c->comm;
    if (!c->begun && c->copy_from != c->copy_to && c->copy_bytes) memmove(c->copy_to, c->copy_from, c->copy_bytes);
    c->begun = true;
    bool moved = true, all = false;
    while (moved && !all) {
        std::vector<char> busy(2 * static_cast<size_t>(m->ranks));
        bool adding = false;
        moved = false;
        all = true;
        for (transfer &t : c->transfers) {
            char &taken = busy[2 * static_cast<size_t>(t.peer) + t.sends];
            if (t.moved == t.bytes) continue;
            all = false;
            if (!taken && !(t.adds && adding) && move(c, &t)) moved = true;
            taken = 1;
            adding |= t.adds;
        }
        if (m->head()->failed && m->error == ncclSuccess) m->error = ncclRemoteError;
        if (m->aborted || m->error != ncclSuccess) all = true;
        if (m->aborted && getenv("NCCL_ON_CPU_ABORT_BREAKS")) cuda_on_cpu_break();
    }
    if (!all) return 0;
    delete c;
    m->queued--;
    return 1;
}

static ncclResult_t launch(call *c) {
    c->comm->queued++;
    nvtxRangePushA("nccl");  // as NCCL names its calls
    const cudaError_t e = cuda_on_cpu_enqueue_until(c->stream, step, &c, sizeof c);
    nvtxRangePop();
    return e == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

static bool is_busy(ncclComm *m) { return !m->ready || m->polls > 0 || m->child; }

// The call that a send, receive or collective becomes a part of.
static ncclResult_t join_group(ncclComm *m, cudaStream_t stream, uint32_t kind, ncclDataType_t type, call **out) {
    if (!m || m->aborted) return fail(ncclInvalidArgument, "a communicator that is not there");
    if (is_busy(m)) return fail(ncclInvalidUsage, "a call while another one is in progress");
    if (m->error != ncclSuccess)
        return fail(static_cast<ncclResult_t>(m->error.load()), "the communicator has failed before");
    if (!group_call) group_call = new call{ m, stream, kind, type, false, nullptr, nullptr, 0, {} };
    *out = group_call;
    if (group_call->comm != m || group_call->stream != stream || group_call->kind != kind || group_call->type != type ||
        (kind != SEND_RECV && !group_call->transfers.empty()))
        return fail(group_error = ncclInvalidUsage,
                    "here a group is of one communicator, one stream, and sends and receives only");
    return ncclSuccess;
}

static ncclResult_t add_transfer(bool sends, char *at, size_t count, ncclDataType_t type, int peer, ncclComm *m,
                                 cudaStream_t stream) {
    call *c = nullptr;
    (void)ncclGroupStart();
    ncclResult_t e = join_group(m, stream, SEND_RECV, type, &c);
    if (e == ncclSuccess && (peer < 0 || peer >= m->ranks))
        e = group_error = fail(ncclInvalidArgument, "there is no such rank");
    if (e == ncclSuccess) c->transfers.push_back(transfer{ sends, false, peer, at, count * size_of(type), 0 });
    const ncclResult_t end = ncclGroupEnd();
    return e == ncclSuccess ? end : e;
}

// ---------------------------------------------------------------------------------------------------------------------
// Beginning and end of communicators. What takes several ranks is done in small steps: progress() makes them.

static size_t memory_bytes(int ranks) {
    const size_t n = static_cast<size_t>(ranks);
    return CARDS + (2 * n * sizeof(split) + 63) / 64 * 64 + n * n * sizeof(box);
}

static bool make_card(card *c) {
    struct stat st;
    const int fd = memfd_create("nccl", MFD_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) != 0) return false;
    *c = card{ MAGIC, getpid(), fd, st.st_dev, st.st_ino };
    return true;
}

static char *map_card(const card &c, size_t bytes) {
    char path[64];
    struct stat st;
    snprintf(path, sizeof path, "/proc/%ld/fd/%d", c.pid, c.fd);
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return nullptr;
    void *p = MAP_FAILED;
    // The same bytes from all ranks: who comes first makes it so long.
    if (fstat(fd, &st) == 0 && static_cast<uint64_t>(st.st_dev) == c.device && st.st_ino == c.inode &&
        (st.st_size >= static_cast<off_t>(bytes) || ftruncate(fd, static_cast<off_t>(bytes)) == 0)) {
        p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    }
    close(fd);
    return p == MAP_FAILED ? nullptr : static_cast<char *>(p);
}

static ncclComm *new_comm(int rank, int ranks, const card &from, const ncclConfig_t *config) {
    ncclComm *m = new ncclComm();
    m->rank = rank;
    m->ranks = ranks;
    m->blocking = !config || config->blocking != 0;
    m->from = from;
    m->owner = std::this_thread::get_id();
    m->polls = m->blocking ? 0 : POLLS;
    return m;
}

// Joins the others in m's memory. True once all are there.
static bool join(ncclComm *m) {
    if (!m->joined) {
        m->bytes = memory_bytes(m->ranks);
        m->memory = m->from.magic == MAGIC ? map_card(m->from, m->bytes) : nullptr;
        int nobody = 0;
        if (!m->memory) {
            m->error = ncclSystemError;
            return true;
        }
        if (!m->head()->ranks.compare_exchange_strong(nobody, m->ranks) && nobody != m->ranks)
            m->error = ncclInvalidUsage;
        m->head()->joined++;
        m->joined = true;
    }
    if (m->head()->joined < static_cast<uint32_t>(m->ranks)) return false;
    if (m->owned_fd >= 0) close(m->owned_fd);
    m->owned_fd = -1;
    return m->ready = true;
}

// Finds the child's ranks among those that have said their color; makes its memory, or waits for who makes it.
static bool split_off(ncclComm *m) {
    ncclComm *child = m->child;
    if (!child->joined) {
        for (int r = 0; r < m->ranks; r++) {
            if (m->said(r)->said < m->splits) return false;
        }
        const split *mine = m->said(m->rank);
        int first = m->rank;
        child->rank = child->ranks = 0;
        for (int r = 0; r < m->ranks; r++) {
            const split *s = m->said(r), *f = m->said(first);
            if (s->color != mine->color) continue;
            child->ranks++;
            child->rank += s->key < mine->key || (s->key == mine->key && r < m->rank);
            if (s->key < f->key || (s->key == f->key && r < first)) first = r;
        }
        split *made = m->said(first);
        if (first == m->rank && made->made < m->splits) {
            if (!make_card(&made->child)) child->error = ncclSystemError;
            child->owned_fd = made->child.fd;
            made->made = m->splits;
        }
        if (made->made < m->splits) return false;
        child->from = made->child;
    }
    if (!join(child)) return false;
    m->error = child->error.load();
    *m->child_out = child;
    m->child = nullptr;
    return true;
}

// One step of whatever m is doing. Only by the thread that has called for it.
static void progress(ncclComm *m) {
    if (m->aborted || m->error != ncclSuccess) return;
    if (!m->ready && !join(m)) return;
    if (m->child && !split_off(m)) return;
    if (m->polls > 0 && --m->polls > 0) return;
    call *c = m->pending;
    m->pending = nullptr;
    if (c && m->error == ncclSuccess) {
        const ncclResult_t e = launch(c);
        if (e != ncclSuccess) m->error = e;
    }
}

static ncclResult_t state(ncclComm *m) {
    if (m->error != ncclSuccess) return static_cast<ncclResult_t>(m->error.load());
    return m->aborted ? ncclInternalError : is_busy(m) || m->pending ? ncclInProgress : ncclSuccess;
}

// Blocking communicators end here what the others end in ncclCommGetAsyncError.
static ncclResult_t finish(ncclComm *m) {
    while (m->blocking && state(m) == ncclInProgress) {
        progress(m);
        usleep(50);
    }
    return state(m);
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

const char *ncclGetLastError(ncclComm_t comm) {
    if (comm && comm->error == ncclInvalidUsage)
        return "two ranks have called different operations, or with different sizes";
    return last_error;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
    card c;
    memset(id, 0, sizeof *id);
    if (!make_card(&c)) return fail(ncclSystemError, "memfd_create failed");
    memcpy(id->internal, &c, sizeof c);
    return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t *config) {
    *comm = nullptr;
    if (ranks < 1 || rank < 0 || rank >= ranks) return fail(ncclInvalidArgument, "there is no such rank");
    card from;
    memcpy(&from, id.internal, sizeof from);
    ncclComm *m = *comm = new_comm(rank, ranks, from, config);
    if (from.pid == getpid()) m->owned_fd = from.fd;
    return finish(m);
}

ncclResult_t ncclCommSplit(ncclComm_t m, int color, int key, ncclComm_t *child, ncclConfig_t *config) {
    *child = nullptr;
    if (!m || is_busy(m)) return fail(ncclInvalidUsage, "a call while another one is in progress");
    if (color < 0) return fail(ncclInvalidArgument, "here every rank has a color");
    m->splits++;
    split *mine = m->said(m->rank);
    mine->color = color;
    mine->key = key;
    m->child = new_comm(0, 0, card(), config);
    m->child->polls = 0;
    m->child_out = child;
    m->owner = std::this_thread::get_id();
    m->polls = m->blocking ? 0 : POLLS;
    mine->said = m->splits;
    return finish(m);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t m, ncclResult_t *error) {
    if (!m) return fail(ncclInvalidArgument, "a communicator that is not there");
    if (std::this_thread::get_id() == m->owner) progress(m);
    *error = state(m);
    return ncclSuccess;
}

// The program has synchronised with its streams: there is nothing left to flush.
ncclResult_t ncclCommFinalize(ncclComm_t m) {
    if (!m || m->aborted) return fail(ncclInvalidArgument, "a communicator that is not there");
    if (m->queued > 0 || m->pending) return fail(ncclInvalidUsage, "here operations must have ended before");
    return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t m) {
    if (!m) return ncclSuccess;
    if (m->queued > 0 || m->pending) return fail(ncclInvalidUsage, "here operations must have ended before");
    if (m->memory) munmap(m->memory, m->bytes);
    if (m->owned_fd >= 0) close(m->owned_fd);
    delete m;
    return ncclSuccess;
}

// From any thread. Operations end without having moved everything; they may still look at m, which is not freed.
ncclResult_t ncclCommAbort(ncclComm_t m) {
    if (m) m->aborted = true;
    return ncclSuccess;
}

ncclResult_t ncclGroupStart(void) {
    if (group_depth++ == 0) group_error = ncclSuccess;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void) {
    if (group_depth == 0) return fail(ncclInvalidUsage, "a group ends that was not begun");
    if (--group_depth > 0) return ncclSuccess;
    call *c = group_call;
    group_call = nullptr;
    if (!c) return group_error;
    if (group_error != ncclSuccess) {
        delete c;
        return group_error;
    }
    ncclComm *m = c->comm;
    if (m->blocking) return launch(c);
    m->pending = c;
    m->owner = std::this_thread::get_id();
    m->polls = POLLS;
    return ncclInProgress;
}

ncclResult_t ncclSend(const void *from, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
    return add_transfer(true, static_cast<char *>(const_cast<void *>(from)), count, type, peer, comm, stream);
}

ncclResult_t ncclRecv(void *to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
    return add_transfer(false, static_cast<char *>(to), count, type, peer, comm, stream);
}

ncclResult_t ncclAllGather(const void *from, void *to, size_t count, ncclDataType_t type, ncclComm_t m,
                           cudaStream_t stream) {
    call *c = nullptr;
    (void)ncclGroupStart();
    const ncclResult_t e = join_group(m, stream, ALL_GATHER, type, &c);
    if (e == ncclSuccess) {
        const size_t bytes = count * size_of(type);
        char *mine = static_cast<char *>(const_cast<void *>(from)), *all = static_cast<char *>(to);
        c->copy_from = mine;
        c->copy_to = all + static_cast<size_t>(m->rank) * bytes;
        c->copy_bytes = bytes;
        for (int r = 0; r < m->ranks; r++) {
            if (r == m->rank) continue;
            c->transfers.push_back(transfer{ true, false, r, mine, bytes, 0 });
            c->transfers.push_back(transfer{ false, false, r, all + static_cast<size_t>(r) * bytes, bytes, 0 });
        }
    }
    const ncclResult_t end = ncclGroupEnd();
    return e == ncclSuccess ? end : e;
}

ncclResult_t ncclReduceScatter(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t m, cudaStream_t stream) {
    call *c = nullptr;
    (void)ncclGroupStart();
    ncclResult_t e = join_group(m, stream, REDUCE_SCATTER, type, &c);
    if (e == ncclSuccess && (op != ncclSum || (type != ncclFloat32 && type != ncclBfloat16)))
        e = group_error = fail(ncclInvalidArgument, "here a reduce-scatter adds fp32 or bf16");
    if (e == ncclSuccess) {
        const size_t bytes = count * size_of(type);
        char *all = static_cast<char *>(const_cast<void *>(from));
        c->copy_from = all + static_cast<size_t>(m->rank) * bytes;
        c->copy_to = static_cast<char *>(to);
        c->copy_bytes = bytes;
        for (int i = 1; i < m->ranks; i++) {
            const int r = (m->rank + i) % m->ranks;
            c->transfers.push_back(transfer{ true, false, r, all + static_cast<size_t>(r) * bytes, bytes, 0 });
            c->transfers.push_back(transfer{ false, true, r, static_cast<char *>(to), bytes, 0 });
        }
    }
    const ncclResult_t end = ncclGroupEnd();
    return e == ncclSuccess ? end : e;
}

ncclResult_t ncclMemAlloc(void **ptr, size_t bytes) {
    return cudaMalloc(ptr, bytes) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}
ncclResult_t ncclMemFree(void *ptr) { return cudaFree(ptr) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError; }

ncclResult_t ncclCommRegister(const ncclComm_t m, void *ptr, size_t bytes, void **handle) {
    if (!m || !ptr || !bytes || m->registered.count(ptr))
        return fail(ncclInvalidArgument, "memory that cannot be registered, or was");
    m->registered[ptr] = bytes;
    *handle = ptr;
    return ncclSuccess;
}

ncclResult_t ncclCommDeregister(const ncclComm_t m, void *handle) {
    if (m && (m->queued > 0 || m->pending)) return fail(ncclInvalidUsage, "here operations must have ended before");
    return m && m->registered.erase(handle) ? ncclSuccess : fail(ncclInvalidArgument, "memory that was not registered");
}

}  // extern "C"
