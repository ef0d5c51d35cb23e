// transport.h: for transports only: the two tables that a transport fills in, and what comm.c does for all of them. A
// transport's own struct begins with a zero_comm.
#ifndef ZERO_TRANSPORT_H
#define ZERO_TRANSPORT_H
#include <stdatomic.h>
#include "zero/comm/comm.h"
#include "zero/comm/transport_registry.h"

// The entry of a transport in transport_registry.c. All functions are required.
struct zero_transport {
    const char *name;   // lower case: what users choose it by
    const char *title;  // what tables call it
    int needs_mpi;      // create wants a bootstrap of zero_bootstrap_create_mpi
    int needs_device;   // no two ranks may share a GPU

    // transport_registry.h: zero_transport_available, zero_transport_shape. Neither communicates.
    // shape leaves per_host 0, for its caller.
    int (*available)(const zero_comm_config *config, char *message, size_t bytes);
    zero_comm_shape (*shape)(const zero_comm_config *config, size_t ranks, int remote);

    // Creates a communicator of all ranks of the bootstrap. Collective. On failure *out is a communicator that holds
    // the message and can only be destroyed, or NULL if memory is exhausted.
    int (*create)(zero_comm **out, zero_bootstrap *boot, const zero_comm_config *config, zero_accounting *accounting);
};
extern const zero_transport zero_transport_mpi, zero_transport_nccl;

// A symmetric buffer: comm.c keeps the list, a transport has the memory.
struct zero_comm_buffer {
    char *ptr;  // NULL: free for use
    size_t bytes;
    zero_accounting *mem;
    enum zero_memory_category category;
    void *handle;  // the transport's own
};
enum { ZERO_COMM_MAX_BUFFERS = 1024 };

// What the ranks must agree about in a collective.
enum zero_comm_call_kind {
    ZERO_CALL_ALL_TO_ALL = 1,
    ZERO_CALL_ALLGATHER,
    ZERO_CALL_SCALARS,
    ZERO_CALL_WINDOW_GATHER,
    ZERO_CALL_REDUCE_SCATTER
};
struct zero_comm_call {
    uint64_t number;                 // of the collective, from 1
    uint64_t kind, unit;             // unit: of zero_comm_phase
    uint64_t buffer, offset, bytes;  // where in which symmetric buffer; bytes: of a chunk
    uint64_t history;                // a hash of all records before this one
};

// The last collective of a rank, in memory that it shares with the ranks of its host. Looked at after a failure, when
// its owner writes no more, or has died.
struct zero_comm_shown {
    _Atomic uint64_t number;  // written last
    struct zero_comm_call call;
};

// The flight recorder: the last collectives of this rank.
enum { ZERO_COMM_RECORDS = 64 };
struct zero_comm_record {
    struct zero_comm_call call;
    const char *phase;
    zero_ticket ticket;      // 0: it was refused, or has no ticket
    double begun, finished;  // zero_clock; 0: not yet
};

// What a communicator does. comm.h has the contract of each function that has the same name there without ops; here is
// what comes in addition. All are required.
typedef struct zero_comm_ops {
    // The ranks of `from` with this color, in the order of rank: this rank is `rank` of `size` there. Collective over
    // from. On failure as zero_transport.create.
    int (*split)(zero_comm *from, int color, int rank, int size, zero_comm **out);
    // Sets b->ptr to zeroed memory, and accounts for it. If memory is exhausted it leaves b->ptr NULL and returns
    // ZERO_OK: comm.c has the message. Collective.
    int (*alloc)(zero_comm *c, struct zero_comm_buffer *b);
    int (*free)(zero_comm *c, struct zero_comm_buffer *b);
    int (*all_to_all_begin)(zero_comm *c, const struct zero_comm_call *call, void *buf, size_t stride,
                            cudaStream_t stream, zero_ticket *ticket);
    int (*all_to_all_finish)(zero_comm *c, zero_ticket ticket, cudaStream_t stream, const void *const **chunks);
    int (*all_to_all_done)(zero_comm *c, zero_ticket ticket, cudaStream_t stream);
    int (*allgather_begin)(zero_comm *c, const struct zero_comm_call *call, void *buf, enum zero_wire kind,
                           cudaStream_t stream, zero_ticket *ticket);
    int (*allgather_finish)(zero_comm *c, zero_ticket ticket, cudaStream_t stream);
    int (*reusable)(zero_comm *c, zero_ticket ticket, cudaStream_t stream);  // ticket is not 0
    int (*reduce_scatter)(zero_comm *c, const struct zero_comm_call *call, const void *buf, enum zero_dtype dtype,
                          size_t chunk_numel, float *out, cudaStream_t stream, zero_ticket *ticket);
    // comm.c counts what is received.
    int (*allgather_host)(zero_comm *c, const struct zero_comm_call *call, const void *mine, size_t bytes, void *all);
    int (*window_create)(zero_comm *c, zero_accounting *mem, enum zero_memory_category category, size_t bytes,
                         zero_window **out);
    void (*window_destroy)(zero_comm *c, zero_window *w);  // w is not NULL, but its creation may have failed
    int (*window_open)(zero_comm *c, zero_window *w, cudaStream_t stream);
    int (*window_close)(zero_comm *c, zero_window *w, cudaStream_t stream);
    int (*window_gather_begin)(zero_comm *c, zero_window *w, const struct zero_comm_call *call, void *out,
                               cudaStream_t stream, zero_ticket *ticket);
    int (*window_gather_finish)(zero_comm *c, zero_window *w, zero_ticket ticket, cudaStream_t stream);
    zero_comm_shape (*shape)(const zero_comm *c);
    // Formulas: pure, and equal to what is accounted, to the byte.
    size_t (*scratch_bytes)(const zero_comm_shape *s, size_t all_to_all_bytes, size_t gather_bytes,
                            size_t reduced_numel);
    size_t (*window_scratch_bytes)(const zero_comm_shape *s, size_t shard_bytes, size_t unit_bytes);
    int (*synchronize)(zero_comm *c, cudaStream_t stream);
    // Frees everything, symmetric buffers that are left included (zero_comm_free_all). Safe after any failure, that of
    // create included.
    void (*destroy)(zero_comm *c);
    int sums_narrow;      // 1: the library's reduce-scatter sends bf16 as it is; 0: widened to fp32
    int gathers_in_ring;  // 1: an all-gather passes N - 1 of N chunks on from host to host, the library's way
} zero_comm_ops;

// A transport's own window begins with this.
struct zero_window {
    char *shard;
    size_t bytes;
    zero_accounting *memory;
    enum zero_memory_category category;
};

struct zero_comm {
    const zero_comm_ops *ops;
    int rank, size;
    cudaStream_t stream;           // the transport's own, or NULL
    int ranks_per_host, per_host;  // zero_comm_ranks_per_host; of the shape
    const char *why_one_level;     // zero_comm_why_one_level; NULL: ""
    zero_comm *host, *across;      // zero_comm_levels; NULL: not asked for
    int *world_rank;    // [size] a rank's number among all ranks of the job, for messages; NULL: not known yet
    const char *phase;  // for messages: what the ranks are doing, and to which unit
    size_t phase_unit;
    uint64_t calls, history;                             // collectives so far, and a hash of their records
    struct zero_comm_record records[ZERO_COMM_RECORDS];  // of collective n at n % ZERO_COMM_RECORDS
    int failed;     // ZERO_ERR_COMM: a collective has failed. For good: later ones return it, with the first message
    int disagrees;  // zero_comm_disagrees
    int in_flight;  // zero_comm_in_flight
    struct zero_comm_shown *shown;  // where the last record is shown to other ranks of this host; NULL: nowhere
    uint64_t received[ZERO_WIRE_KINDS];
    double waited;         // zero_comm_waited
    uint64_t delay_state;  // of the random delays; 0: none
    char name[160], error[640];
    struct zero_comm_buffer buffers[ZERO_COMM_MAX_BUFFERS];
};

// Sets per_host and why_one_level: `per_host` as zero_shm_find_host found it.
void zero_comm_set_hosts(zero_comm *c, int per_host, const zero_comm_config *config);

// The place in c->buffers, the same on all ranks, of the buffer that contains these bytes; -1: none.
int zero_comm_find_buffer(const zero_comm *c, const void *at, size_t bytes);
void zero_comm_free_all(zero_comm *c);  // frees all buffers that are left

// The number of a rank of this communicator among all ranks of the job, for messages.
int zero_comm_world_rank(const zero_comm *c, int rank);

const char *zero_comm_call_name(uint64_t kind);  // "an all-to-all", for messages

// ZERO_OK if a peer has made the same call, and the same ones before it; else fails.
int zero_comm_compare(zero_comm *c, const struct zero_comm_call *mine, int peer, const struct zero_comm_call *theirs);

// Writes the message of a time-out: `peer` has not come to this rank's collective, and which its last one is that is
// known (number 0: none).
void zero_comm_say_behind(const zero_comm *c, char *message, size_t bytes, int peer, const struct zero_comm_call *mine,
                          const struct zero_comm_call *its_last, double timeout_s);

// Records a message (printf style, "rank R, in <phase> (unit U): " in front) and returns code. After ZERO_ERR_COMM the
// first message stays.
int zero_comm_fail(zero_comm *c, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));

#endif
