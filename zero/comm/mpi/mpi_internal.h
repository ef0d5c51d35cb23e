// comm_mpi_inside.h: what comm_mpi.c (exchange, all-gather) and window_mpi.c (windows) share.
#ifndef ZERO_MPI_INTERNAL_H
#define ZERO_MPI_INTERNAL_H
#include <mpi.h>
#include <stdatomic.h>
#include "zero/comm/transport.h"
#include "zero/comm/mpi/shared_memory.h"

enum { RING = 2 * ZERO_COMM_MAX_PENDING, SMALL_BYTES = 4096 };
#define MAX_MESSAGE ((size_t)1 << 30)  // MPI counts are ints

// What was begun under a ticket. The offset is into the symmetric buffer, so all ranks must have the same.
struct call {
    uint64_t kind, buffer, offset, bytes;
};
enum call_kind { CALL_EXCHANGE = 1, CALL_ALLGATHER, CALL_SMALL };

struct control {  // one per rank, written by its owner, read by the ranks of its host
    _Atomic uint32_t ready;
    char pad1[60];
    _Atomic uint32_t done;
    char pad2[60];
    struct call ring[RING];
    char small[2][SMALL_BYTES];
};

struct pending {
    struct call call;
    char *buf;
    enum zero_wire wire;
};

struct messages {
    MPI_Request *requests;
    int *peer;
    int count, max;
};

typedef struct comm_mpi {
    zero_comm base;
    MPI_Comm comm;
    double timeout_s;
    int staged, pinned, spin;  // pinned: staging is
    int *on_host;              // [size] 1: rank r shares this host's memory (this rank included)
    int num_remote;            // ranks of other hosts
    int sharing;               // some ranks share memory: symmetric buffers are mapped (the same verdict
                               // on all ranks)
    struct zero_shm control;
    zero_accounting *memory;
    struct zero_shm maps[ZERO_COMM_MAX_BUFFERS];  // of the symmetric buffers
    zero_ticket begun, finished;
    struct pending pending[RING];
    zero_ticket small_ticket[2], staging_ticket;
    size_t small_count;
    struct zero_shm staging;  // staged: one unit of host memory that the peers read
    char *received;           // pieces from remote ranks (host)
    size_t received_bytes;
    char *device_scratch;  // staged: the peers' pieces on the device
    size_t device_scratch_bytes;
    const void **pieces, **pieces_device;  // [size]
    struct messages messages;              // of the operation at hand
} comm_mpi;

static inline comm_mpi *self(zero_comm *c) { return (comm_mpi *)c; }
static inline struct control *control_of(comm_mpi *m, int rank) { return (struct control *)m->control.peer[rank]; }

int zero_mpi_device_check(comm_mpi *m, cudaError_t e);

// Wait until a counter of a peer has reached value; verb ("has begun") is for the message.
int zero_mpi_wait(comm_mpi *m, int peer, _Atomic uint32_t *counter, uint64_t value, const char *verb);

// Messages with every rank of another host: bytes from send + r * send_stride to rank r, and from it to receive + r *
// receive_stride. Posted, not waited for.
int zero_mpi_post(comm_mpi *m, struct messages *msgs, int tag, char *send, size_t send_stride, char *receive,
                  size_t receive_stride, size_t bytes);
int zero_mpi_wait_messages(comm_mpi *m, struct messages *msgs);

// A scratch that only grows; its old contents are of no use. Pinned host memory, or device memory.
int zero_mpi_grow(comm_mpi *m, char **scratch, size_t *have, size_t need, int on_device);

// Shared memory for copies to and from the device: pinned, and in the books. Collective; not collective.
int zero_mpi_map_staging(comm_mpi *m, struct zero_shm *s, size_t bytes);
void zero_mpi_unmap_staging(comm_mpi *m, struct zero_shm *s);

// Windows, of window_mpi.c.
int zero_mpi_window_create(zero_comm *c, zero_accounting *mem, enum zero_memory_category category, size_t bytes,
                           zero_window **out);
void zero_mpi_window_destroy(zero_comm *c, zero_window *w);
int zero_mpi_window_open(zero_comm *c, zero_window *w, cudaStream_t stream);
int zero_mpi_window_close(zero_comm *c, zero_window *w, cudaStream_t stream);
int zero_mpi_window_gather_begin(zero_comm *c, zero_window *w, size_t offset, size_t chunk_bytes, void *out,
                                 cudaStream_t stream, zero_ticket *ticket);
int zero_mpi_window_gather_finish(zero_comm *c, zero_window *w, zero_ticket ticket, cudaStream_t stream);
size_t zero_mpi_window_scratch_bytes(const zero_comm_shape *s, size_t shard_bytes, size_t unit_bytes);

#endif
