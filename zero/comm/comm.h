// comm.h: what the engine asks of a transport, and nothing more.
//
// A transport joins `size` ranks. All of them call the same collectives in the same order (that is checked: a rank that
// calls another one gets ZERO_ERR_COMM with both calls in words). Collectives that move model state work on buffers
// from zero_comm_alloc, which are *symmetric*: all ranks allocate the same sizes in the same order.
//
// The reduction of gradients is split so that the sum stays ours and its order fixed: an *exchange* only makes rank r's
// q-th piece visible to rank q. Where ranks share memory that is a pointer into the peer's buffer, elsewhere a copy in
// a scratch of one unit; the engine's kernel adds the N pieces and cannot tell the difference.
//
//     begin    my buffer is complete on `stream`; it may not be written from here on
//     finish   wait for the peers' buffers; pieces[r] = what rank r has for me, r = 0 .. N-1
//     done     my reads of the pieces, on `stream`, are over
//     reusable wait until no peer reads my buffer any more; it may be written again, on `stream`
//
// Who waits? A transport without a stream of its own (MPI) waits on the host, in finish and reusable. One that has a
// stream (NCCL) moves the bytes there, and "wait" means that `stream` waits for an event; the host never does. A caller
// that finishes an exchange on that very stream, zero_comm_stream(), right after begin, and adds up the pieces there,
// overlaps all of it with its own stream.
//
// Operations are finished in the order in which they were begun. Every wait of the host has a time-out; when it passes,
// the message names the rank that did not come, and the phase. Functions return ZERO_OK or a ZERO_ERR_* code; the words
// are in zero_comm_error(). "Collective" means: every rank of the communicator must call it.
#ifndef ZERO_COMM_H
#define ZERO_COMM_H
#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>
#include "zero/accounting.h"
#include "zero/types.h"
#ifdef __cplusplus
extern "C" {
#endif

typedef struct zero_comm zero_comm;
typedef uint64_t zero_ticket;          // one begun operation; 0 = none, always finished and reusable
enum { ZERO_COMM_MAX_PENDING = 256 };  // operations begun and not yet finished

// Bytes that this rank has received from other ranks since the start, by purpose.
enum zero_wire {
    ZERO_WIRE_GRADS,
    ZERO_WIRE_PARAMS,
    ZERO_WIRE_REPLICAS /* sums between groups */,
    ZERO_WIRE_SCALARS,
    ZERO_WIRE_KINDS
};

int zero_comm_rank(const zero_comm *c);
int zero_comm_size(const zero_comm *c);
const char *zero_comm_name(const zero_comm *c);   // "one rank", "MPI, shared memory", ... for people
const char *zero_comm_error(const zero_comm *c);  // the last error in words; "" if none
uint64_t zero_comm_received(const zero_comm *c, enum zero_wire kind);
void zero_comm_phase(zero_comm *c, const char *phase, size_t unit);  // what a time-out should say; not collective;
                                                                     // phase: a literal

// The stream on which the transport moves bytes; NULL: it has none, and waits on the host. One for all communicators of
// a process.
cudaStream_t zero_comm_stream(const zero_comm *c);

// The host waits for a stream whose work may wait for other ranks: cudaStreamSynchronize, with the transport's time-out
// and errors. Not collective.
int zero_comm_synchronize(zero_comm *c, cudaStream_t stream);

// What decides how much memory a transport takes for itself. It can be asked for without a transport
// (zero_comm_mpi_shape), to plan.
typedef struct zero_comm_shape {
    const struct zero_comm_ops *ops;  // which transport
    size_t ranks;
    int staged;  // device memory is out of the host's reach
    int remote;  // there are ranks on other hosts, or the host's memory is not shared
} zero_comm_shape;
zero_comm_shape zero_comm_get_shape(const zero_comm *c);

// Debugging: with a seed other than 0 the ranks dawdle, each in its own way: now and then an operation begins or ends
// up to half a millisecond later than it could. Whatever waits for too little then shows. Not collective.
void zero_comm_set_delay_seed(zero_comm *c, uint64_t seed);
void zero_comm_inject_delay(zero_comm *c);  // an occasion for it; every collective is one

// Bytes of an element in the library's own reduce-scatter (below).
size_t zero_comm_summed_bytes(const zero_comm_shape *s, enum zero_dtype dtype);

// What the transport itself allocates (ZERO_MEM_TRANSPORT), by formula, once it has exchanged buffers of up to
// all_to_all_bytes and gathered buffers of up to gather_bytes (whole buffers, of all ranks' pieces), and reduced
// reduced_numel elements by the library (0: never). Not collective.
size_t zero_comm_scratch_bytes(const zero_comm_shape *s, size_t all_to_all_bytes, size_t gather_bytes,
                               size_t reduced_numel);

// Symmetric device memory, zeroed, 256-byte aligned. Collective, all ranks with the same bytes. Accounted in mem.
int zero_comm_alloc(zero_comm *c, zero_accounting *mem, enum zero_memory_category category, void **ptr, size_t bytes);
int zero_comm_free(zero_comm *c, void *ptr);  // collective; NULL is fine

// Exchange: buf holds size pieces of chunk_bytes each, inside one zero_comm_alloc. finish: *pieces is a device array of
// size pointers, valid until done. Collective. With a stream of its own (zero_comm_stream) a transport has room for the
// pieces of one exchange: the next one begins after done.
int zero_comm_all_to_all_begin(zero_comm *c, void *buf, size_t chunk_bytes, cudaStream_t stream, zero_ticket *ticket);
int zero_comm_all_to_all_finish(zero_comm *c, zero_ticket ticket, cudaStream_t stream, const void *const **pieces);
int zero_comm_all_to_all_done(zero_comm *c, zero_ticket ticket, cudaStream_t stream);

// All-gather in place: rank r's piece is at buf + r * chunk_bytes before, everybody's after finish. Collective.
int zero_comm_allgather_begin(zero_comm *c, void *buf, size_t chunk_bytes, enum zero_wire kind, cudaStream_t stream,
                              zero_ticket *ticket);
int zero_comm_allgather_finish(zero_comm *c, zero_ticket ticket, cudaStream_t stream);

int zero_comm_reusable(zero_comm *c, zero_ticket ticket, cudaStream_t stream);

// Windows: every rank's shard, for the others to fetch from whenever they like while it is exposed, in any order. Where
// ranks share memory that takes no rendezvous; elsewhere a fetch is a collective (all ranks must make the same fetches
// in the same order, always).
//
//     expose      my shard is complete on `stream`, and will not be written until it is concealed. Collective.
//     fetch       out = everybody's [offset, offset + chunk_bytes), rank after rank; out is device memory, complete after finish
//     conceal     wait until no rank fetches from my shard any more; it may be written again, on `stream`. Collective; no fetch may be pending.
typedef struct zero_window zero_window;
enum { ZERO_WINDOW_MAX_GATHERS = 8 };  // begun and not finished, of one window
// collective
int zero_window_create(zero_comm *c, zero_accounting *mem, enum zero_memory_category category, size_t bytes,
                       zero_window **out);
// collective, no fetch may be pending; NULL is fine
void zero_window_destroy(zero_comm *c, zero_window *w);
void *zero_window_shard(const zero_window *w);  // device memory of this rank, zeroed at first
int zero_window_open(zero_comm *c, zero_window *w, cudaStream_t stream);
int zero_window_close(zero_comm *c, zero_window *w, cudaStream_t stream);
int zero_window_gather_begin(zero_comm *c, zero_window *w, size_t offset, size_t chunk_bytes, void *out,
                             cudaStream_t stream, zero_ticket *ticket);
int zero_window_gather_finish(zero_comm *c, zero_window *w, zero_ticket ticket, cudaStream_t stream);
// What a window of shard_bytes adds to ZERO_MEM_TRANSPORT, by formula, once units of unit_bytes (all pieces) were
// fetched.
size_t zero_window_scratch_bytes(const zero_comm_shape *s, size_t shard_bytes, size_t unit_bytes);

// The library's own reduce-scatter, for comparison: out[chunk_numel] (fp32) = sum over ranks of piece `rank` of buf, in
// whatever order the library likes: not reproducible. buf is complete, and out will be, on `stream`, which is
// zero_comm_stream() where there is one; the ticket says when buf, whose contents are lost, is reusable. Collective.
int zero_comm_reduce_scatter(zero_comm *c, const void *buf, enum zero_dtype dtype, size_t chunk_numel, float *out,
                             cudaStream_t stream, zero_ticket *ticket);

// Host memory, for a few numbers: all[r * bytes ...] = rank r's mine. Collective, synchronous.
int zero_comm_allgather_host(zero_comm *c, const void *mine, size_t bytes, void *all);
int zero_comm_barrier(zero_comm *c);

void zero_comm_destroy(zero_comm *c);  // collective; NULL is fine

#ifdef __cplusplus
}
#endif
#endif
