// nccl_internal.h: what the files of the NCCL transport share. The transport has a stream of its own, on which all
// communicators of one creation move their bytes; the host waits only in zero_comm_synchronize and
// zero_comm_allgather_host.
//
//     create.c       context and communicators: create, split, destroy; the table of functions
//     library.c      loads NCCL
//     watchdog.c     calls of NCCL, operations on the stream; what happens when a rank dies
//     memory.c       symmetric memory, scratch, and their formulas
//     collectives.c  all-to-all, all-gather, reduce-scatter
//     windows.c      windows
//
// ZERO_HAS_NCCL: nccl.h exists (make NCCL=0 pretends that it does not).
#ifndef ZERO_NCCL_INTERNAL_H
#define ZERO_NCCL_INTERNAL_H
#include "zero/clock.h"
#include "zero/comm/nccl/waits.h"
#include "zero/comm/shared_memory.h"
#include "zero/comm/transport.h"

// Sizes in the formulas, which need no NCCL. ncclMemAlloc allocates in multiples of the device's recommended
// granularity (NCCL's src/allocator.cc); GRANULARITY is that of every GPU so far, for plans.
enum { NCCL_SCALAR_BYTES = 512, NCCL_OWN = 512 };
#define NCCL_GRANULARITY ((size_t)2 << 20)
size_t zero_nccl_scratch_bytes(const zero_comm_shape *s, size_t all_to_all_bytes, size_t gather_bytes,
                               size_t reduced_numel);
size_t zero_nccl_window_scratch_bytes(const zero_comm_shape *s, size_t shard_bytes, size_t unit_bytes);

#if __has_include(<nccl.h>) && !defined ZERO_WITHOUT_NCCL
#define ZERO_HAS_NCCL 1
#include <nccl.h>
#if NCCL_VERSION_CODE < 21900
#error "nccl.h is older than NCCL 2.19: install a newer one (libnccl-dev of NVIDIA's packages), or build without it: " \
    "make NCCL=0"
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

enum { NCCL_RING = ZERO_COMM_MAX_PENDING, NCCL_MAX_COMMS = 12 };

// For messages: what a rank does, in which phase, for which collective of a communicator.
struct nccl_activity {
    const char *what, *phase;
    size_t unit;
    const struct comm_nccl *comm;
    struct zero_comm_call call;
    double since;
};

// An operation on the transport's stream.
struct nccl_op {
    zero_ticket ticket;
    struct nccl_activity activity;  // since: when the device was first seen in it; 0: not yet
    cudaEvent_t begun, ended;       // on the transport's stream
    cudaEvent_t read;               // all-to-all: the caller has read the chunks
    int was_read;
};

// All communicators of one creation. Their operations go to one stream, in one order, so a ticket is the number of an
// operation in it.
struct nccl_context {
    struct nccl_library lib;
    int users;  // zero_comms
    int device;
    zero_comm_config config;
    size_t granularity;  // 0: symmetric memory is not NCCL's
    cudaStream_t stream;
    cudaEvent_t order;      // recorded on the caller's stream, waited for at once
    pthread_mutex_t calls;  // NCCL is called by one thread at a time; abort_all in between
    ncclComm_t comms[NCCL_MAX_COMMS];
    int num_comms;

    pthread_mutex_t lock;  // of what follows; never held in a call of NCCL, nor while waiting
    pthread_cond_t wake;   // the watchdog: stop or failed
    pthread_t watchdog;
    int watched, stop;
    zero_stopwatch ran;  // the clock of since; starts at 1
    struct nccl_op ops[NCCL_RING];
    zero_ticket queued, ended;
    struct nccl_activity call;  // the call of NCCL that the host is in; since 0: none
    _Atomic int failed;         // for good; message says why
    char message[512];
    int aborted;  // the communicators are gone
    pthread_cond_t gone;
};

typedef struct comm_nccl {
    zero_comm base;
    struct nccl_context *context;
    ncclComm_t comm;  // NULL: one rank
    zero_accounting *memory;
    char *scratch;         // the others' chunks, stride bytes apart
    void *scratch_handle;  // its registration
    size_t stride;
    const void **table;  // [size], on the device: where the chunks are
    const void **own;    // [NCCL_OWN], pinned: places of this rank's own chunk so far
    int num_own;
    const void *own_now;             // in the table
    zero_ticket all_to_all;          // begun, and its chunks not yet read
    zero_ticket last_read;           // the last all-to-all whose chunks were read on another stream
    char *scalars, *scalars_device;  // [size * NCCL_SCALAR_BYTES] pinned, and on the device
    struct zero_shm shown;           // the last collective of each rank of this host, if that can be mapped
} comm_nccl;

static inline comm_nccl *zero_nccl_self(zero_comm *c) { return (comm_nccl *)c; }

extern const zero_comm_ops zero_nccl_ops;

// library.c: loads NCCL into lib, or writes to err why it cannot.
int zero_nccl_load(struct nccl_library *lib, const char *name, char *err, size_t err_bytes);

// watchdog.c
int zero_nccl_start_watchdog(struct nccl_context *x);  // ZERO_OK, or ZERO_ERR_COMM: no thread can be started
void zero_nccl_stop_watchdog(struct nccl_context *x);
// After a failure: until NCCL's threads and kernels use no memory any more, of the caller's or ours. They may, for a
// while after a call has returned the failure: the watchdog's abort ends that.
void zero_nccl_wait_until_aborted(struct nccl_context *x);
int zero_nccl_device_check(comm_nccl *m, cudaError_t e);
int zero_nccl_healthy(comm_nccl *m);  // ZERO_OK; or ZERO_ERR_COMM, with the message of the context's failure
// Around calls of NCCL: enter; r = calls; leave, which waits until comm is no longer in progress. what is for messages.
int zero_nccl_enter(comm_nccl *m, const char *what);
int zero_nccl_leave(comm_nccl *m, ncclComm_t comm, ncclResult_t r);
// Around an operation: what is queued on the transport's stream in between belongs to it.
int zero_nccl_op_begin(comm_nccl *m, const char *what, struct nccl_op **op);
int zero_nccl_op_end(comm_nccl *m, struct nccl_op *op);
// Queues a wait of `stream` for the event, unless a test leaves it out.
int zero_nccl_wait_for(comm_nccl *m, enum zero_nccl_wait which, cudaStream_t stream, cudaEvent_t event);
// The transport's stream waits for what is on the caller's; the caller's waits for an operation.
int zero_nccl_follow(comm_nccl *m, enum zero_nccl_wait which, cudaStream_t stream);
int zero_nccl_wait_ended(comm_nccl *m, enum zero_nccl_wait which, cudaStream_t stream, zero_ticket ticket);

// memory.c. alloc_device: zeroed, accounted, and registered with NCCL if the context says so (*handle); NULL: none.
char *zero_nccl_alloc_device(comm_nccl *m, zero_accounting *mem, enum zero_memory_category category, size_t bytes,
                             void **handle);
int zero_nccl_free_device(comm_nccl *m, zero_accounting *mem, enum zero_memory_category category, char *ptr,
                          size_t bytes, void *handle);
int zero_nccl_alloc(zero_comm *c, struct zero_comm_buffer *b);
int zero_nccl_free(zero_comm *c, struct zero_comm_buffer *b);
int zero_nccl_alloc_tables(comm_nccl *m);
int zero_nccl_grow_scratch(comm_nccl *m, size_t chunk_bytes);
void zero_nccl_free_tables(comm_nccl *m);  // and the scratch

// collectives.c
int zero_nccl_gather(comm_nccl *m, const void *mine, void *out, size_t bytes, const char *what);
int zero_nccl_all_to_all_begin(zero_comm *c, const struct zero_comm_call *call, void *buf, size_t stride,
                               cudaStream_t stream, zero_ticket *ticket);
int zero_nccl_all_to_all_finish(zero_comm *c, zero_ticket ticket, cudaStream_t stream, const void *const **chunks);
int zero_nccl_all_to_all_done(zero_comm *c, zero_ticket ticket, cudaStream_t stream);
int zero_nccl_allgather_begin(zero_comm *c, const struct zero_comm_call *call, void *buf, enum zero_wire kind,
                              cudaStream_t stream, zero_ticket *ticket);
int zero_nccl_allgather_finish(zero_comm *c, zero_ticket ticket, cudaStream_t stream);
int zero_nccl_reusable(zero_comm *c, zero_ticket ticket, cudaStream_t stream);
int zero_nccl_reduce_scatter(zero_comm *c, const struct zero_comm_call *call, const void *buf, enum zero_dtype dtype,
                             size_t chunk_numel, float *out, cudaStream_t stream, zero_ticket *ticket);
int zero_nccl_allgather_host(zero_comm *c, const struct zero_comm_call *call, const void *mine, size_t bytes,
                             void *all);
int zero_nccl_synchronize(zero_comm *c, cudaStream_t stream);

// windows.c
int zero_nccl_window_create(zero_comm *c, zero_accounting *mem, enum zero_memory_category category, size_t bytes,
                            zero_window **out);
void zero_nccl_window_destroy(zero_comm *c, zero_window *w);
int zero_nccl_window_open(zero_comm *c, zero_window *w, cudaStream_t stream);
int zero_nccl_window_close(zero_comm *c, zero_window *w, cudaStream_t stream);
int zero_nccl_window_gather_begin(zero_comm *c, zero_window *w, const struct zero_comm_call *call, void *out,
                                  cudaStream_t stream, zero_ticket *ticket);
int zero_nccl_window_gather_finish(zero_comm *c, zero_window *w, zero_ticket ticket, cudaStream_t stream);
#endif
#endif
