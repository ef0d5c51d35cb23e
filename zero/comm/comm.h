// comm.h: what the engine asks of a transport, and nothing more. transport_registry.h creates one.
//
// A communicator joins `size` ranks. All of them call the same collectives in the same order; a rank that calls another
// one gets ZERO_ERR_COMM with a message that names both calls. Collectives that move model state work on symmetric
// buffers (zero_comm_alloc): all ranks allocate the same sizes in the same order.
//
// Gradients are summed by the engine, in an order of its own, so the transport only moves them: an all-to-all makes
// rank r's q-th chunk readable by rank q. Where ranks share memory that is a pointer into the peer's buffer, elsewhere
// a copy in a scratch; the engine's kernel adds the N chunks and cannot tell the difference.
//
//     an operation         what the caller promises or gets                  who waits, and for what
//
//     caller writes buf
//         | begin          buf is complete on `stream`; hands off            nobody
//         v
//     pending
//         | finish         chunks[r] is what rank r sent to this rank        MPI: the host, for the peers' begin
//         v                                                                  NCCL: `stream`, for the transfer
//     chunks readable
//         | done           reads of the chunks are queued on `stream`        MPI: the host, for `stream`
//         v                                                                  NCCL: nobody
//     chunks gone
//         | reusable       buf may be written again, on `stream`             MPI: the host, for the peers' done
//         v                                                                  NCCL: `stream`, for the transfer
//     caller writes buf
//
// An all-gather has no `done`: its chunks arrive in place. A transport without a stream of its own (MPI) waits on the
// host; one that has a stream (NCCL) moves bytes there, and its waits are events. A caller that finishes an all-to-all
// on that very stream, zero_comm_stream(), right after begin, and adds the chunks there, overlaps all of it with its
// own stream. Operations may be finished in another order than they were begun, the same on all ranks, and scalars be
// gathered in between: so several engines can use one communicator in turn.
//
// Every wait of the host has a time-out; its message names the rank that did not come, and the phase. Functions return
// ZERO_OK or a ZERO_ERR_* code; zero_comm_error() has the message. "Collective": every rank of the communicator calls
// it.
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
    ZERO_WIRE_REPLICAS,  // the replica all-reduce
    ZERO_WIRE_SCALARS,
    ZERO_WIRE_KINDS
};

int zero_comm_rank(const zero_comm *c);
int zero_comm_size(const zero_comm *c);
const char *zero_comm_name(const zero_comm *c);   // "none: one rank", "MPI, shared memory", ... for a table
const char *zero_comm_error(const zero_comm *c);  // message of the last error; "" if none
void zero_comm_reset_error(zero_comm *c);         // its caller has recovered from it; ZERO_ERR_COMM stays
uint64_t zero_comm_received(const zero_comm *c, enum zero_wire kind);  // by its two levels (see hosts) too

// Seconds in which this rank's host has waited for other ranks since the start. 0 for a transport that has a stream of
// its own: there it is the stream that waits.
double zero_comm_waited(const zero_comm *c);

// What the caller is doing, for messages: a phase (a literal; it is kept) and a unit. Not collective.
void zero_comm_phase(zero_comm *c, const char *phase, size_t unit);

// The stream on which the transport moves bytes; NULL: it has none, and waits on the host. All communicators of one
// creation (zero_mesh_comms_create) share it.
cudaStream_t zero_comm_stream(const zero_comm *c);

// Waits on the host for a stream whose work may wait for other ranks: cudaStreamSynchronize, with the transport's
// time-out and errors. Not collective.
int zero_comm_synchronize(zero_comm *c, cudaStream_t stream);

// ---- hosts ----------------------------------------------------------------------------------------------------------

// Between hosts bytes travel in two levels, where that is possible: an all-gather brings each host one copy of what
// others have (NCCL sees to that by itself), and the engine adds gradients on each host before it sends them to others.
// It is possible if there are several hosts, each with the same number of ranks, at least two of them, contiguous.
// Returns why not (a literal); "" if it is so, or if there is one host only. Not collective.
const char *zero_comm_why_one_level(const zero_comm *c);
int zero_comm_ranks_per_host(const zero_comm *c);  // 0: hosts have different numbers, or mixed ones. Not collective

// The levels: the ranks of this host; those of all hosts with this rank's number on its host. They belong to c, and are
// created when first asked for. Only if the shape says per_host. Collective.
int zero_comm_levels(zero_comm *c, zero_comm **host, zero_comm **across);

// Whether c has failed since its ranks have made different calls.
int zero_comm_disagrees(const zero_comm *c);
// This rank's next collective differs from those of the others, which so learn that the ranks disagree elsewhere.
void zero_comm_disagree(zero_comm *c);

// ---- memory ---------------------------------------------------------------------------------------------------------

// What decides how much memory a transport takes. zero_transport_shape (transport_registry.h) gives it without a
// communicator.
typedef struct zero_comm_shape {
    const struct zero_comm_ops *ops;  // which transport
    size_t ranks;
    int staged;          // device memory is out of the host's reach
    int remote;          // there are ranks on other hosts, or the host's memory is not shared
    size_t per_host;     // ranks of each host, if bytes travel between hosts in two levels (see hosts); 0: they do not
    size_t granularity;  // symmetric memory is allocated in multiples of so many bytes; 0: to the byte
} zero_comm_shape;
zero_comm_shape zero_comm_get_shape(const zero_comm *c);
zero_comm_shape zero_comm_host_shape(const zero_comm_shape *s);  // of its levels, if it has them (see hosts)
zero_comm_shape zero_comm_across_shape(const zero_comm_shape *s);

// Symmetric device memory, zeroed, 256-byte aligned, accounted in mem. Collective, all ranks with the same bytes.
int zero_comm_alloc(zero_comm *c, zero_accounting *mem, enum zero_memory_category category, void **ptr, size_t bytes);
int zero_comm_free(zero_comm *c, void *ptr);  // collective; NULL is fine

// Bytes that zero_comm_alloc, or zero_window_create for its shard, accounts for when asked for `bytes`.
size_t zero_comm_alloc_bytes(const zero_comm_shape *s, size_t bytes);

// Bytes that the transport allocates for itself (ZERO_MEM_TRANSPORT), by formula, once it has done all-to-alls of up to
// all_to_all_bytes and all-gathers of up to gather_bytes (whole buffers, the chunks of all ranks), and a library
// reduce-scatter of reduced_numel elements (0: never). Not collective.
size_t zero_comm_scratch_bytes(const zero_comm_shape *s, size_t all_to_all_bytes, size_t gather_bytes,
                               size_t reduced_numel);

// Chunks that come from other hosts to one with `here` of the ranks in an all-gather of symmetric memory.
size_t zero_comm_gather_chunks(const zero_comm_shape *s, size_t here);

// Bytes of an element on the wire in the library's own reduce-scatter (below).
size_t zero_comm_summed_bytes(const zero_comm_shape *s, enum zero_dtype dtype);

// ---- collectives ----------------------------------------------------------------------------------------------------

// All-to-all: rank r's chunk, of chunk_bytes, is at buf + r * stride, inside one zero_comm_alloc. (A part of each chunk
// at a time needs less scratch.) finish: *chunks is a device array of size pointers, valid until done, before which
// nothing else is finished. Collective. With a stream of its own a transport has room for the chunks of one
// all-to-all: the next one begins after done.
int zero_comm_all_to_all_begin(zero_comm *c, void *buf, size_t stride, size_t chunk_bytes, cudaStream_t stream,
                               zero_ticket *ticket);
int zero_comm_all_to_all_finish(zero_comm *c, zero_ticket ticket, cudaStream_t stream, const void *const **chunks);
int zero_comm_all_to_all_done(zero_comm *c, zero_ticket ticket, cudaStream_t stream);

// All-gather in place: rank r's chunk is at buf + r * chunk_bytes before, all chunks after finish. Collective.
int zero_comm_allgather_begin(zero_comm *c, void *buf, size_t chunk_bytes, enum zero_wire kind, cudaStream_t stream,
                              zero_ticket *ticket);
int zero_comm_allgather_finish(zero_comm *c, zero_ticket ticket, cudaStream_t stream);

int zero_comm_reusable(zero_comm *c, zero_ticket ticket, cudaStream_t stream);

// The library's own reduce-scatter, for comparison: out[chunk_numel] (fp32) = sum over ranks of chunk `rank` of buf, in
// whatever order the library likes: not reproducible. buf is complete, and out will be, on `stream`, which is
// zero_comm_stream() where there is one; the ticket says when buf, whose contents are lost, is reusable. Collective.
int zero_comm_reduce_scatter(zero_comm *c, const void *buf, enum zero_dtype dtype, size_t chunk_numel, float *out,
                             cudaStream_t stream, zero_ticket *ticket);

// Host memory, for a few scalars: all[r * bytes ...] = rank r's mine. Collective, synchronous.
int zero_comm_allgather_host(zero_comm *c, const void *mine, size_t bytes, void *all);
int zero_comm_barrier(zero_comm *c);

// ---- windows --------------------------------------------------------------------------------------------------------

// A window is every rank's shard, which the others may gather from while it is open, in any order and as often as they
// like. Where ranks share memory that needs no rendezvous; elsewhere a gather is a collective (all ranks make the same
// gathers in the same order, always).
//
//     closed: the owner writes its shard
//         | open       shard is complete on `stream`. Collective. Nobody waits
//         v
//     open
//         | gather     begin: out is free on `stream`. finish: out = everybody's [offset, offset + chunk_bytes), rank
//         |            after rank; waits until all ranks have opened (NCCL: `stream` waits for the transfer)
//         | close      waits until no rank gathers from this shard any more; then it may be written, on `stream`.
//         v            Collective; no gather may be pending
//     closed
typedef struct zero_window zero_window;
enum { ZERO_WINDOW_MAX_GATHERS = 8 };  // begun and not finished, of one window
// collective
int zero_window_create(zero_comm *c, zero_accounting *mem, enum zero_memory_category category, size_t bytes,
                       zero_window **out);
void zero_window_destroy(zero_comm *c, zero_window *w);  // collective, no gather may be pending; NULL is fine
void *zero_window_shard(const zero_window *w);           // device memory of this rank, zeroed at first
int zero_window_open(zero_comm *c, zero_window *w, cudaStream_t stream);
int zero_window_close(zero_comm *c, zero_window *w, cudaStream_t stream);
int zero_window_gather_begin(zero_comm *c, zero_window *w, size_t offset, size_t chunk_bytes, void *out,
                             cudaStream_t stream, zero_ticket *ticket);
int zero_window_gather_finish(zero_comm *c, zero_window *w, zero_ticket ticket, cudaStream_t stream);

// Bytes that a window of shard_bytes adds to ZERO_MEM_TRANSPORT, by formula, once units of unit_bytes (the chunks of
// all ranks) were gathered.
size_t zero_window_scratch_bytes(const zero_comm_shape *s, size_t shard_bytes, size_t unit_bytes);

// ---- after a failure ------------------------------------------------------------------------------------------------

// Writes the flight recorder to a file: the last 64 collectives of this rank, oldest first, with unit, bytes, phase,
// how long ago each began and how long it took, or that it is not finished. Finished means for the host: a transport
// with a stream may still be moving the bytes. Not collective; for the caller that has got an error. Returns
// ZERO_ERR_ARG if the file cannot be written.
int zero_comm_write_records(const zero_comm *c, const char *path);

// Returns 1 if messages of a collective that failed may still be read from, or written to, memory that was passed to
// it. The caller keeps that memory for ever, as this transport keeps its own. Not collective.
int zero_comm_in_flight(const zero_comm *c);

// ---- testing, destroying --------------------------------------------------------------------------------------------

// Injects random delays before collectives: with a seed other than 0, each rank now and then begins or ends an
// operation up to half a millisecond late. This exposes missing synchronization. Not collective.
void zero_comm_set_delay_seed(zero_comm *c, uint64_t seed);
void zero_comm_inject_delay(zero_comm *c);  // an occasion for such a delay; every collective is one

void zero_comm_destroy(zero_comm *c);  // collective; NULL is fine

#ifdef __cplusplus
}
#endif
#endif
