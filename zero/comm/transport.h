// comm_transport.h: for transports only. A transport's own struct begins with a zero_comm and fills in the table.
// comm.c holds what all of them share.
#ifndef ZERO_TRANSPORT_H
#define ZERO_TRANSPORT_H
#include "zero/comm/comm.h"

// A symmetric buffer: comm.c keeps the list, a transport has the memory.
struct zero_comm_buffer {
    char *ptr;  // NULL: free for use
    size_t bytes;
    zero_accounting *mem;
    enum zero_memory_category category;
    void *handle;  // the transport's own
};
enum { ZERO_COMM_MAX_BUFFERS = 1024 };

typedef struct zero_comm_ops {
    int (*alloc)(zero_comm *c, struct zero_comm_buffer *b);  // sets b->ptr, zeroed and in the books; left NULL:
                                                             // there is no memory
    int (*free)(zero_comm *c, struct zero_comm_buffer *b);
    int (*all_to_all_begin)(zero_comm *c, void *buf, size_t chunk_bytes, cudaStream_t stream, zero_ticket *ticket);
    int (*all_to_all_finish)(zero_comm *c, zero_ticket ticket, cudaStream_t stream, const void *const **pieces);
    int (*all_to_all_done)(zero_comm *c, zero_ticket ticket, cudaStream_t stream);
    int (*allgather_begin)(zero_comm *c, void *buf, size_t chunk_bytes, enum zero_wire kind, cudaStream_t stream,
                           zero_ticket *ticket);
    int (*allgather_finish)(zero_comm *c, zero_ticket ticket, cudaStream_t stream);
    int (*reusable)(zero_comm *c, zero_ticket ticket, cudaStream_t stream);
    int (*reduce_scatter)(zero_comm *c, const void *buf, enum zero_dtype dtype, size_t chunk_numel, float *out,
                          cudaStream_t stream, zero_ticket *ticket);
    int (*allgather_host)(zero_comm *c, const void *mine, size_t bytes, void *all);
    int (*window_create)(zero_comm *c, zero_accounting *mem, enum zero_memory_category category, size_t bytes,
                         zero_window **out);
    void (*window_destroy)(zero_comm *c, zero_window *w);
    int (*expose)(zero_comm *c, zero_window *w, cudaStream_t stream);
    int (*conceal)(zero_comm *c, zero_window *w, cudaStream_t stream);
    int (*fetch_begin)(zero_comm *c, zero_window *w, size_t offset, size_t chunk_bytes, void *out, cudaStream_t stream,
                       zero_ticket *ticket);
    int (*fetch_finish)(zero_comm *c, zero_window *w, zero_ticket ticket, cudaStream_t stream);
    size_t (*window_scratch_bytes)(const zero_comm_shape *s, size_t shard_bytes, size_t unit_bytes);
    zero_comm_shape (*shape)(const zero_comm *c);
    size_t (*scratch_bytes)(const zero_comm_shape *s, size_t all_to_all_bytes, size_t gather_bytes,
                            size_t reduced_numel);
    int (*synchronize)(zero_comm *c, cudaStream_t stream);
    void (*destroy)(zero_comm *c);
    int sums_narrow;  // the library's reduce-scatter sends bf16 as it is; otherwise widened to fp32
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
    cudaStream_t stream;  // the transport's own, or NULL
    int *names;           // [size] what to call a rank in messages: its rank among all ranks of the job
    const char *phase;    // for messages: what the ranks are doing, and to which unit
    size_t phase_unit;
    uint64_t received[ZERO_WIRE_KINDS];
    uint64_t dice;  // debugging: the state of the dice that say when to dawdle; 0: never
    char name[160], error[640];
    struct zero_comm_buffer buffers[ZERO_COMM_MAX_BUFFERS];
};

// The buffer that has these bytes: its place in c->buffers, the same on all ranks; -1: none. For the end: frees all
// that are left.
int zero_comm_find_buffer(const zero_comm *c, const void *at, size_t bytes);
void zero_comm_free_all(zero_comm *c);

// Record an error (printf style, "rank R of N, <phase> of unit U: " in front) and return code.
int zero_comm_fail(zero_comm *c, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));

#endif
