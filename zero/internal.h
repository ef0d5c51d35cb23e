// engine.h: the inside of the engine, for zero.c (gradients, reduction, step), params.c (parameters) and state.c
// (reading and writing state, reports).
#ifndef ZERO_INTERNAL_H
#define ZERO_INTERNAL_H
#include "zero/param_cache.h"
#include "zero/zero.h"
#include "zero/kernels.h"

enum { CHUNK = 1 << 18 };  // elements that pass through the host at a time

enum unit_state { UNIT_FREE, UNIT_ACQUIRED, UNIT_REDUCING };

// A buffer for a unit's gradients: the unit's own in stages 0 and 1, one of the pool's in stage 2.
struct grad_buffer {
    char *ptr;
    size_t numel;
    zero_ticket ticket;  // the last exchange that read it
    int busy;
};

// Stage 3: the memory of a slot of the cache.
struct param_buffer {
    char *ptr;
    zero_ticket fetch;
};

struct unit {
    enum unit_state state;
    struct grad_buffer *buffer;
    size_t micro;               // micro-batches released since the last step
    zero_ticket params_ticket;  // the last gather that read this rank's piece of the parameters
};

struct zero {
    zero_config config;
    zero_layout layout;
    int rank, ranks;                     // among those that shard
    int groups;                          // that shard the same; ranks * groups in all
    size_t elem;                         // bytes of a parameter or gradient
    char *params, *grads;                // params: NULL in stage 3
    zero_window *window;                 // stage 3: the shards of the parameters
    zero_param_cache cache;              // stage 3: which units were fetched, and where
    zero_ticket last_fetch;              // of the window
    struct param_buffer *param_buffers;  // one for each slot of the cache
    size_t gathering, gathered;  // stages 1, 2: units whose gather is begun since the last change of parameters, and
                                 // finished
    cudaStream_t sum_stream;     // where gradients are summed: the transport's own stream, or the caller's if it has
                                 // none
    cudaEvent_t event;           // of zero_follow
    struct grad_buffer *buffers;
    size_t num_buffers;
    struct unit *units;
    size_t *pending;  // units whose exchange is begun, oldest first, a ring of num_units
    size_t pending_first, pending_count;
    float *m, *v;
    void *master;  // fp32, or 16-bit low halves, or NULL: master_bytes an element
    float *slots[ZERO_MAX_PARTIAL_SUMS];
    float *unit_sum;  // stage 0: a unit's gathered gradient sums
    zero_ticket unit_sum_ticket;
    float *group_sum, *all_sum;  // several groups: a unit's sum in this group, and in all, cut into `groups` pieces
    zero_ticket group_sum_ticket, all_sum_ticket;
    const void **all_sum_piece;           // device: one pointer, to all_sum
    zero_optimizer_chunk *tiles;          // device
    size_t *unit_chunks;                  // [num_units + 1]
    uint64_t *squares;                    // device: ZERO_SQUARE_PARTS wide integers
    float *host;                          // CHUNK elements
    uint16_t *host_params, *host_low;     // CHUNK elements each: bf16 parameters, and low halves of master weights
    size_t micro, max_micro, last_micro;  // micro-batches: in this step, the most in any step, in the last step
    int merged;                           // slot 0 holds the whole sum
    uint64_t wire_start[ZERO_WIRE_KINDS], wire_step[ZERO_WIRE_KINDS];
    char error[768];
};

// Record an error in words (printf style) and return its code; the checks pass ZERO_OK through.
int zero_fail(zero *z, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));
int zero_comm_check(zero *z, int e);
int zero_device_check(zero *z, cudaError_t e, const char *what);

// What is queued on `follower` from here on waits for what is on `leader` now.
int zero_follow(zero *z, cudaStream_t follower, cudaStream_t leader);

// For the configuration's timing. What is queued on the transport's stream waits for the other one first, so that this
// is not counted.
void zero_time_begin(zero *z, const char *work, cudaStream_t on);
void zero_time_end(zero *z, const char *work, cudaStream_t on);
cudaStream_t zero_transport_stream(const zero *z);

// Accounted device memory, of this rank, or symmetric (collective); *(void **)out. Fill memory with NaN (in debug mode;
// else nothing).
int zero_alloc(zero *z, enum zero_memory_category c, size_t bytes, void *out);
int zero_create_buffer(zero *z, enum zero_memory_category category, size_t numel, size_t elem, void *out);
int zero_poison(zero *z, void *p, size_t bytes);

// params.c. forget: all fetches are finished, and no buffer holds a unit. A change of parameters: begin waits until no
// rank reads this rank's piece; written says that unit u's is complete (units ascending); after end all ranks can
// acquire them. arrived: all parameters are here (before stage 3), for who reads them without acquiring.
int zero_params_create(zero *z);
void zero_params_destroy(zero *z);
int zero_params_forget(zero *z);
int zero_params_begin(zero *z);
int zero_params_written(zero *z, size_t u);
int zero_params_end(zero *z);
int zero_params_arrived(zero *z);

static inline size_t unit_numel(const zero *z, size_t u) { return zero_layout_unit_numel(&z->layout, u); }
static inline size_t shard_numel(const zero *z, size_t u) { return zero_layout_shard_numel(&z->layout, u); }
static inline size_t shard_offset(const zero *z, size_t u) { return zero_layout_shard_offset(&z->layout, u); }
static inline int sharded_params(const zero *z) { return z->config.settings.stage == 3; }

// This rank's own piece of a unit's parameters, for the optimizer and for visits.
static inline char *own_params(const zero *z, size_t u) {
    if (sharded_params(z)) return (char *)zero_window_shard(z->window) + shard_offset(z, u) * z->elem;
    return z->params + (z->layout.unit_offset[u] + (size_t)z->rank * shard_numel(z, u)) * z->elem;
}

// Optimizer state: which part of a unit this rank has, and where its state lies.
static inline int whole_state(const zero *z) { return z->config.settings.stage == 0; }
static inline size_t state_begin(const zero *z, size_t u) {
    return whole_state(z) ? 0 : (size_t)z->rank * shard_numel(z, u);
}
static inline size_t state_numel(const zero *z, size_t u) {
    return whole_state(z) ? unit_numel(z, u) : shard_numel(z, u);
}
static inline size_t state_offset(const zero *z, size_t u) {
    return whole_state(z) ? z->layout.unit_offset[u] : shard_offset(z, u);
}
static inline size_t state_total(const zero *z) {
    return z->layout.numel_padded / (whole_state(z) ? 1 : (size_t)z->ranks);
}
static inline size_t master_bytes(const zero *z) {
    return zero_master_bytes(z->config.settings.dtype, z->config.settings.master);
}
static inline size_t shard_total(const zero *z) { return z->layout.numel_padded / (size_t)z->ranks; }

#endif
