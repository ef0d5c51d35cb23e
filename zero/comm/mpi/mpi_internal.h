// mpi_internal.h: what the files of the MPI transport share.
//
//     create.c       communicators: which ranks share a host, control blocks, split, destroy
//     memory.c       symmetric memory, staging, scratch, and their formulas
//     messages.c     messages between hosts
//     collectives.c  all-to-all, all-gather, reduce-scatter
//     windows.c      windows
#ifndef ZERO_MPI_INTERNAL_H
#define ZERO_MPI_INTERNAL_H
#include <mpi.h>
#include <stdatomic.h>
#include "zero/comm/shared_memory.h"
#include "zero/comm/transport.h"
#include "zero/keep.h"

enum { RING = 2 * ZERO_COMM_MAX_PENDING, SCALAR_BYTES = 4096 };

struct control {                               // one per rank, written by its owner, read by the ranks of its host
    _Atomic uint64_t begun;                    // the last ticket, for messages
    _Atomic uint64_t ready[RING], done[RING];  // by ticket: the last one that peers may read; that its owner has read
    _Atomic uint64_t relayed[RING];    // by ticket: the last one of which they may read other hosts' chunks, too
    struct zero_comm_call ring[RING];  // what was begun, by ticket
    struct zero_comm_call other;       // another call that a message has told of (kind 0: none), and whose it is
    int other_rank;
    char scalars[2][SCALAR_BYTES];
};

struct pending {  // begun by this rank
    struct zero_comm_call call;
    char *buf;
    size_t stride;  // all-to-all: from a chunk to the next
    enum zero_wire wire;
    int finished;
};

// Messages of one collective with every rank of another host, and their tags.
enum { ZERO_MPI_CHUNKS, ZERO_MPI_RECORD, ZERO_MPI_MEET, ZERO_MPI_TAGS };
struct messages {
    MPI_Request *requests;
    int *peer, *is_send, count, max;
    int lost;                             // after a failure: some are still under way
    struct zero_comm_call mine, *theirs;  // theirs: [size]
};

// One MPI communicator for all that were split from one: MPI 3.1 cannot split under a time-out. Their messages are
// distinguished by tags: context * ZERO_MPI_TAGS + what.
struct mpi_root {
    MPI_Comm comm;
    int users, contexts;
    int failed;  // one of them: the others may never come to free it
};

typedef struct comm_mpi {
    zero_comm base;
    struct mpi_root *root;
    int context, *mpi_rank;  // [size] rank r's number in root->comm
    zero_comm_config config;
    int staged, pinned, spin;  // pinned: staging is
    int *on_host;              // [size] 1: rank r shares this host's memory (this rank included)
    int num_remote;            // ranks of other hosts
    int sharing;               // some ranks share memory, so symmetric buffers are mapped (the same on all ranks)
    struct zero_shm control;
    zero_accounting *memory;
    struct zero_shm maps[ZERO_COMM_MAX_BUFFERS];  // of the symmetric buffers
    zero_ticket begun, finished;                  // finished: it, and all before it
    zero_ticket chunks_of;                        // the all-to-all whose chunks are being read
    struct pending pending[RING];
    zero_ticket scalar_ticket[2], staging_ticket;
    size_t scalar_count;
    struct zero_shm staging;  // staged: host memory that the peers read
    char *received;           // chunks from remote ranks (host)
    size_t received_bytes;
    char *device_scratch;  // staged: the peers' chunks on the device
    size_t device_scratch_bytes;
    const void **chunks, **chunks_device;  // [size]
    struct messages messages;              // of the collective at hand
    struct zero_comm_call *last;  // [size] of each rank of another host, the last that it is known to have begun
} comm_mpi;

static inline comm_mpi *zero_mpi_self(zero_comm *c) { return (comm_mpi *)c; }
static inline struct control *zero_mpi_control(comm_mpi *m, int rank) {
    return (struct control *)m->control.peer[rank];
}

// Two levels: a chunk that is gathered goes to the rank of each other host that has its owner's number there; the
// others read it from there.
static inline int zero_mpi_relays(const comm_mpi *m, const struct zero_comm_call *call) {
    return m->base.per_host && (call->kind == ZERO_CALL_ALLGATHER || call->kind == ZERO_CALL_WINDOW_GATHER);
}
// The rank of this host to which rank r sends.
static inline int zero_mpi_relay(const comm_mpi *m, int r) {
    const int n = m->base.per_host;
    return m->base.rank / n * n + r % n;
}

extern const zero_comm_ops zero_mpi_ops;

// ZERO_OK, or ZERO_ERR_DEVICE with CUDA's message.
int zero_mpi_device_check(comm_mpi *m, cudaError_t e);

// collectives.c: waits until a counter of a peer has reached value. verb ("has begun collective") is for the message.
int zero_mpi_wait(comm_mpi *m, int peer, _Atomic uint64_t *counter, uint64_t value, const char *verb);
// Relays: this rank publishes, after e, that what it relays has come, or that ranks have made other calls; rank r's
// chunk is waited for, until the counter of its relay has reached value.
void zero_mpi_publish_relay(comm_mpi *m, int e, _Atomic uint64_t *counter, uint64_t value);
int zero_mpi_wait_relay(comm_mpi *m, const struct zero_comm_call *call, int r, _Atomic uint64_t *counter,
                        uint64_t value);
int zero_mpi_wait_readers(comm_mpi *m, zero_ticket ticket);  // until the ranks of this host have read ticket's buffer
int zero_mpi_all_to_all_begin(zero_comm *c, const struct zero_comm_call *call, void *buf, size_t stride,
                              cudaStream_t stream, zero_ticket *ticket);
int zero_mpi_all_to_all_finish(zero_comm *c, zero_ticket ticket, cudaStream_t stream, const void *const **chunks);
int zero_mpi_all_to_all_done(zero_comm *c, zero_ticket ticket, cudaStream_t stream);
int zero_mpi_allgather_begin(zero_comm *c, const struct zero_comm_call *call, void *buf, enum zero_wire kind,
                             cudaStream_t stream, zero_ticket *ticket);
int zero_mpi_allgather_finish(zero_comm *c, zero_ticket ticket, cudaStream_t stream);
int zero_mpi_reusable(zero_comm *c, zero_ticket ticket, cudaStream_t stream);
int zero_mpi_reduce_scatter(zero_comm *c, const struct zero_comm_call *call, const void *buf, enum zero_dtype dtype,
                            size_t chunk_numel, float *out, cudaStream_t stream, zero_ticket *ticket);
int zero_mpi_allgather_host(zero_comm *c, const struct zero_comm_call *call, const void *mine, size_t bytes, void *all);
int zero_mpi_synchronize(zero_comm *c, cudaStream_t stream);

// messages.c: with every rank r of another host, or, relayed, with those whose relay is this rank: bytes from send + r
// * send_stride, and to receive + r / per_stride * receive_stride. post does not wait; wait fails if a peer has made
// another call.
int zero_mpi_post(comm_mpi *m, struct messages *msgs, const struct zero_comm_call *call, char *send, size_t send_stride,
                  char *receive, size_t receive_stride, int per_stride, size_t bytes);
int zero_mpi_wait_messages(comm_mpi *m, struct messages *msgs);
// An all-gather of a few bytes of all ranks, those of this host included, for setting up: all[r * bytes] = rank r's
// mine. On a time-out the message names the ranks that are missing.
int zero_mpi_meet(void *comm, const void *mine, size_t bytes, void *all);  // a zero_shm_meet; comm: a comm_mpi
int zero_mpi_add_request(comm_mpi *m, struct messages *msgs, int peer, int is_send, MPI_Request **out);
// Frees the messages' own memory; those that are still under way are cancelled, or else noted in in_flight.
void zero_mpi_free_messages(comm_mpi *m, struct messages *msgs);

// memory.c. zero_mpi_map: zero_shm_map over this communicator's ranks, within the limit of mem.
int zero_mpi_map(comm_mpi *m, struct zero_shm *s, const zero_accounting *mem, size_t bytes);
int zero_mpi_alloc(zero_comm *c, struct zero_comm_buffer *b);
int zero_mpi_free(zero_comm *c, struct zero_comm_buffer *b);
// A scratch that only grows and loses its contents: pinned host memory, or device memory.
int zero_mpi_grow(comm_mpi *m, char **scratch, size_t *have, size_t need, int on_device);
int zero_mpi_can_pin(void *memory, size_t bytes);
// Memory that the ranks of a host share, pinned if possible and accounted for, for copies to and from the device. map
// is collective, unmap is not.
int zero_mpi_map_staging(comm_mpi *m, struct zero_shm *s, size_t bytes);
void zero_mpi_unmap_staging(comm_mpi *m, struct zero_shm *s);
size_t zero_mpi_scratch_bytes(const zero_comm_shape *s, size_t all_to_all_bytes, size_t gather_bytes,
                              size_t reduced_numel);

// windows.c
int zero_mpi_window_create(zero_comm *c, zero_accounting *mem, enum zero_memory_category category, size_t bytes,
                           zero_window **out);
void zero_mpi_window_destroy(zero_comm *c, zero_window *w);
int zero_mpi_window_open(zero_comm *c, zero_window *w, cudaStream_t stream);
int zero_mpi_window_close(zero_comm *c, zero_window *w, cudaStream_t stream);
int zero_mpi_window_gather_begin(zero_comm *c, zero_window *w, const struct zero_comm_call *call, void *out,
                                 cudaStream_t stream, zero_ticket *ticket);
int zero_mpi_window_gather_finish(zero_comm *c, zero_window *w, zero_ticket ticket, cudaStream_t stream);
size_t zero_mpi_window_scratch_bytes(const zero_comm_shape *s, size_t shard_bytes, size_t unit_bytes);

#endif
