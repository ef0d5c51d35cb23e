// comm_nccl_inside.h: what comm_nccl.c (exchange, all-gather, windows), watch_nccl.c (the library, calls, the watchdog)
// and mesh_nccl.c (communicators) share. ZERO_HAS_NCCL: nccl.h is there (make NCCL=0 pretends that it is not).
#ifndef ZERO_NCCL_INTERNAL_H
#define ZERO_NCCL_INTERNAL_H
#include "zero/comm/nccl/comm_nccl.h"
#include "zero/comm/transport.h"
#if __has_include(<nccl.h>) && !defined ZERO_WITHOUT_NCCL
#define ZERO_HAS_NCCL 1
#include <nccl.h>
#if NCCL_VERSION_CODE < 21900
#error \
    "nccl.h is older than NCCL 2.19: install a newer one (libnccl-dev of NVIDIA's packages), or build without it: make NCCL=0"
#endif
#include <pthread.h>
#include <stdatomic.h>

// The functions that are looked up in the library.
// clang-format off
#define ZERO_NCCL_FUNCTIONS(F) \
    F(GetVersion) F(GetErrorString) F(GetLastError) F(GetUniqueId) F(CommInitRankConfig) F(CommSplit) \
    F(CommGetAsyncError) F(CommFinalize) F(CommDestroy) F(CommAbort) F(GroupStart) F(GroupEnd) F(Send) F(Recv) \
    F(AllGather) F(ReduceScatter) F(MemAlloc) F(MemFree) F(CommRegister) F(CommDeregister)
// clang-format on

struct nccl_library {
#define ZERO_NCCL_POINTER(name) __typeof__(&nccl##name) name;
    ZERO_NCCL_FUNCTIONS(ZERO_NCCL_POINTER)
#undef ZERO_NCCL_POINTER
    int version;
};

enum { NCCL_RING = ZERO_COMM_MAX_PENDING, NCCL_MAX_COMMS = 4 };

// For messages: what a rank does, in which phase.
struct nccl_operation {
    const char *what, *phase;
    size_t unit;
    int rank;
    double since;
};

// An operation on the transport's stream.
struct nccl_op {
    zero_ticket ticket;
    struct nccl_operation doing;  // since: when the device was first seen in it; 0: not yet
    cudaEvent_t begun, ended;     // on the transport's stream
    cudaEvent_t read;             // exchange: the caller has read the pieces
    int was_read;
};

// All communicators of one creation. Their operations go to one stream, in one order, so a ticket is the number of an
// operation in it.
struct nccl_context {
    struct nccl_library lib;
    int users;  // transports
    int device, register_buffers;
    enum zero_nccl_wait omit;
    double timeout_s;
    cudaStream_t stream;
    cudaEvent_t order;      // recorded on the caller's stream, waited for at once
    pthread_mutex_t calls;  // NCCL is called by one thread at a time; abort in between
    ncclComm_t comms[NCCL_MAX_COMMS];
    int num_comms;

    pthread_mutex_t books;  // of what follows; never held in a call of NCCL, nor while waiting
    pthread_cond_t wake;
    pthread_t watchdog;
    int watched, stop;
    struct nccl_op ops[NCCL_RING];
    zero_ticket queued, ended;
    struct nccl_operation call;  // the call of NCCL that the host is in; since 0: none
    _Atomic int failed;          // for good; words says why
    char words[512];
};

enum { NCCL_SMALL = 512, NCCL_OWN = 512 };

typedef struct comm_nccl {
    zero_comm base;
    struct nccl_context *f;
    ncclComm_t comm;  // NULL: one rank
    zero_accounting *memory;
    char *scratch;         // the others' pieces, stride bytes apart
    void *scratch_handle;  // its registration
    size_t stride;
    const void **table;  // [size], on the device: where the pieces are
    const void **own;    // [NCCL_OWN], pinned: places of this rank's own piece so far
    int num_own;
    const void *own_now;         // in the table
    zero_ticket exchange;        // begun, and its pieces not yet read
    zero_ticket last_read;       // the last exchange whose pieces were read on another stream
    char *small, *small_device;  // [size * NCCL_SMALL] pinned, and on the device
    uint64_t calls, hash;        // of all calls so far, compared with the other ranks'
} comm_nccl;

static inline comm_nccl *nccl_self(zero_comm *c) { return (comm_nccl *)c; }

// The library: loaded into lib, or err says why not.
int zero_nccl_load(struct nccl_library *lib, const char *name, char *err, size_t err_bytes);

// A family whose watchdog runs; needs_library: there are several ranks.
int zero_nccl_context_create(struct nccl_context **out, int needs_library, const zero_comm_nccl_config *config,
                             char *err, size_t err_bytes);
void zero_nccl_context_release(struct nccl_context *f);  // the last user destroys it

int zero_nccl_device_check(comm_nccl *m, cudaError_t e);
int zero_nccl_healthy(comm_nccl *m);  // ZERO_OK, or ZERO_ERR_COMM with the words of what has failed

// Around calls of NCCL: enter; r = calls; leave, which waits until they are no longer in progress. what is for
// messages.
int zero_nccl_enter(comm_nccl *m, const char *what);
int zero_nccl_leave(comm_nccl *m, ncclComm_t comm, ncclResult_t r);

// Around an operation: what was queued on the transport's stream in between is it.
int zero_nccl_op_begin(comm_nccl *m, const char *what, struct nccl_op **op);
int zero_nccl_op_end(comm_nccl *m, struct nccl_op *op);

// Tables and buffers of a transport, once its rank, size and family are known; and back.
int zero_nccl_setup(comm_nccl *m);
extern const zero_comm_ops zero_nccl_ops;
#endif
#endif
