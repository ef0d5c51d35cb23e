// Moves bytes between the ranks of a communicator (nccl_channel.h).
//
// Like NCCL's own kernels it checks nothing: if two ranks disagree about what they send each other, the receiver takes
// its own number of steps, of its own sizes, from whatever arrives. So it reads garbage, or waits for ever.
#include "nccl_channel.h"
#include "nvtx3/nvToolsExt.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static const size_t CHUNK = 32768;
enum { HEAD_BYTES = 64 };
static const uint64_t MAGIC = 0x6e63636c2d637075;  // "nccl-cpu"

struct head {
    std::atomic<int> ranks;  // the first rank sets it
    std::atomic<uint32_t> joined;
};
static_assert(sizeof(head) <= HEAD_BYTES, "the head is too long");

struct box {  // from one rank to another
    std::atomic<uint32_t> full;
    char data[CHUNK];
};

// ---------------------------------------------------------------------------------------------------------------------
// The memory

bool nccl_make_card(nccl_card *card) {
    struct stat st;
    const int fd = memfd_create("nccl", MFD_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) != 0) return false;
    *card = nccl_card{ MAGIC, getpid(), fd, st.st_dev, st.st_ino };
    return true;
}

static char *map_card(const nccl_card &card, size_t bytes) {
    char path[64];
    struct stat st;
    snprintf(path, sizeof path, "/proc/%ld/fd/%d", card.pid, card.fd);
    const int fd = card.magic == MAGIC ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0) return nullptr;
    void *p = MAP_FAILED;
    // All ranks map the same number of bytes: the first one extends the file.
    if (fstat(fd, &st) == 0 && static_cast<uint64_t>(st.st_dev) == card.device && st.st_ino == card.inode &&
        (st.st_size >= static_cast<off_t>(bytes) || ftruncate(fd, static_cast<off_t>(bytes)) == 0)) {
        p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    }
    close(fd);
    return p == MAP_FAILED ? nullptr : static_cast<char *>(p);
}

static size_t split_bytes(int ranks) { return (2 * static_cast<size_t>(ranks) * sizeof(nccl_split) + 63) / 64 * 64; }

nccl_split *nccl_channel::split(int of, uint32_t number) {
    return reinterpret_cast<nccl_split *>(memory + HEAD_BYTES) + 2 * of + number % 2;
}

static box *box_of(const nccl_channel *c, int sender, int receiver) {
    return reinterpret_cast<box *>(c->memory + HEAD_BYTES + split_bytes(c->ranks)) +
           (static_cast<size_t>(sender) * static_cast<size_t>(c->ranks) + static_cast<size_t>(receiver));
}

ncclResult_t nccl_channel::join(int my_rank, int num_ranks, const nccl_card &card, const nccl_abort_flag &flag) {
    rank = my_rank;
    ranks = num_ranks;
    aborted = flag;
    const size_t n = static_cast<size_t>(ranks);
    bytes = HEAD_BYTES + split_bytes(ranks) + n * n * sizeof(box);
    memory = map_card(card, bytes);
    if (!memory) return ncclSystemError;
    head *h = reinterpret_cast<head *>(memory);
    int nobody = 0;
    if (!h->ranks.compare_exchange_strong(nobody, ranks) && nobody != ranks) return ncclInvalidUsage;
    h->joined++;
    while (h->joined < static_cast<uint32_t>(ranks)) {
        if (*aborted) return ncclInternalError;
        usleep(50);
    }
    if (card.pid == getpid() && card.fd >= 0) close(card.fd);
    return ncclSuccess;
}

nccl_channel::~nccl_channel() {
    if (memory) munmap(memory, bytes);
}

// ---------------------------------------------------------------------------------------------------------------------
// Operations

size_t nccl_type_bytes(ncclDataType_t type) { return type == ncclFloat32 ? 4 : type == ncclBfloat16 ? 2 : 1; }

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
    for (size_t i = 0; i < bytes; i += nccl_type_bytes(type)) {
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

struct operation {
    std::shared_ptr<nccl_channel> channel;
    std::vector<nccl_task> tasks;
    bool begun;
};

// Moves one chunk if it can be moved.
static bool move(const nccl_channel *c, const nccl_task &task, nccl_transfer *t) {
    box *b = t->sends ? box_of(c, c->rank, t->peer) : box_of(c, t->peer, c->rank);
    if (b->full.load(std::memory_order_acquire) != (t->sends ? 0 : 1)) return false;
    const size_t n = t->bytes - t->moved < CHUNK ? t->bytes - t->moved : CHUNK;
    if (t->sends) {
        memcpy(b->data, t->at + t->moved, n);
    } else if (task.adds) {
        add(t->at + t->moved, b->data, n, task.type);
    } else {
        memcpy(t->at + t->moved, b->data, n);
    }
    t->moved += n;
    b->full.store(t->sends, std::memory_order_release);
    return true;
}

// One chunk for each pair of ranks and direction, if it can be moved; transfers of one pair keep their order. Returns
// whether something moved; *all: nothing is left.
static bool move_some(operation *o, bool *all) {
    std::vector<char> busy(2 * static_cast<size_t>(o->channel->ranks));
    bool moved = false;
    *all = true;
    for (nccl_task &task : o->tasks) {
        bool adding = false;
        for (nccl_transfer &t : task.transfers) {
            char &taken = busy[2 * static_cast<size_t>(t.peer) + t.sends];
            if (t.moved == t.bytes) continue;
            *all = false;
            const bool waits = taken || (task.adds && !t.sends && adding);
            if (!waits && move(o->channel.get(), task, &t)) moved = true;
            taken = 1;
            adding |= !t.sends;
        }
    }
    return moved;
}

// As many chunks as can be moved: 1 if the operation has ended.
static int step(void *p) {
    operation *o = *static_cast<operation **>(p);
    for (const nccl_task &t : o->tasks) {
        if (!o->begun && t.copy_from != t.copy_to && t.copy_bytes) memmove(t.copy_to, t.copy_from, t.copy_bytes);
    }
    o->begun = true;
    bool all = false;
    while (!all && !*o->channel->aborted && move_some(o, &all)) {}
    if (*o->channel->aborted) {
        all = true;
        if (getenv("NCCL_ON_CPU_ABORT_BREAKS")) cuda_on_cpu_break();
    }
    if (!all) return 0;
    o->channel->queued--;
    delete o;
    return 1;
}

ncclResult_t nccl_launch(const std::shared_ptr<nccl_channel> &channel, std::vector<nccl_task> tasks,
                         cudaStream_t stream) {
    operation *o = new operation{ channel, std::move(tasks), false };
    channel->queued++;
    nvtxRangePushA("nccl");  // as NCCL names its calls
    const cudaError_t e = cuda_on_cpu_enqueue_until(stream, step, &o, sizeof o);
    nvtxRangePop();
    return e == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}
