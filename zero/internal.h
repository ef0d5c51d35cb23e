// internal.h: what the files of the engine share. Nothing outside of zero/ includes it, but a test that looks at
// padding.
//
//     zero.c        create and destroy; errors, allocation, timing
//     agreement.c   agreement of the ranks on their configuration and on failures
//     gradients.c   acquire and release of gradients, reduce-scatter, accumulation over micro-batches
//     exchange.c    ... between hosts and shard groups
//     parameters.c  acquire and release of parameters, all-gather, prefetch
//     parameter_offload.c  ... of those in host memory or on a disk
//     grad_norm.c   norm of the gradient, of all or by tensor; what it decides about a step
//     optimizer.c   step, discard
//     optimizer_state.c  where its state is: on the device, in host memory, on a disk
//     host_update.c the update of what is offloaded, on the host
//     ema.c         the moving average of the weights in place of the parameters
//     state.c       fill, load, visit, hash; reports
//     host_io.c     helpers for data in host memory and in files
#ifndef ZERO_INTERNAL_H
#define ZERO_INTERNAL_H
#include "zero/kernels.h"
#include "zero/offload/swap.h"
#include "zero/optimizers/optimizers.h"
#include "zero/param_cache.h"
#include "zero/zero.h"

enum { HOST_CHUNK = 1 << 18 };  // elements that pass through the host at a time

#define ZERO_SQUARES_BYTES (ZERO_SQUARE_PARTS * ZERO_WIDE_WORDS * sizeof(uint64_t))  // of zero.squares

enum unit_state { UNIT_FREE, UNIT_ACQUIRED, UNIT_REDUCING };  // zero.h has the diagram

// A buffer for a unit's gradients: in stages 0 and 1 the unit's own, from stage 2 on one of a pool.
struct grad_buffer {
    char *ptr;
    size_t numel;
    zero_ticket ticket;  // the last all-to-all that reads it
    int busy;            // a unit holds it
};

// Stage 3: the memory of a slot of the parameter cache. Symmetric if parameters are offloaded.
struct param_buffer {
    char *ptr;
    zero_ticket unshard;   // the last all-gather into it
    int waits;             // offloaded: its all-gather is not begun: the shard is on its way from the disk
    cudaEvent_t released;  // offloaded: what the caller's stream does with it
};

// An all-to-all of partial sums of gradients, of one unit: between hosts, or between shard groups.
struct exchange {
    zero_comm *comm;        // NULL: there is none
    zero_group_sums sums;   // what each rank passes on to each other
    size_t bytes;           // of buffer
    void *buffer;           // symmetric: what this rank passes on
    const void **pointers;  // device: to the sums of this rank's part, in the order of leaves
    zero_ticket ticket;     // the last all-to-all of buffer
};

// Where a unit's gradients of this rank's micro-batches are added up: with ZERO_ORDER_RANK the unit's own, with
// ZERO_ORDER_LAYER one of a pool.
struct own_buffer {
    float *ptr;  // [slots][numel]
    size_t numel;
    zero_ticket sent;  // the last all-to-all that reads it
    int busy;          // a unit holds it
};

struct unit {
    enum unit_state state;
    struct grad_buffer *buffer;
    size_t micro_batches;       // reduced since the last step
    size_t users;               // acquires of its parameters that were not released
    struct own_buffer *own;     // of this rank's sums, with ZERO_ORDER_RANK and LAYER
    zero_ticket params_ticket;  // the last all-gather that reads this rank's parameters
    int gathering;              // it is not finished
    size_t parts_read;          // parameter_offload.c: of its parts, the first so many are read, or begun to be
};

// The arrays that an update changes: parameters and optimizer state.
enum { ARRAY_PARAMS, ARRAY_MASTER, ARRAY_EMA, ARRAY_STATES, NUM_ARRAYS = ARRAY_STATES + ZERO_MAX_OPTIMIZER_STATES };

// A part of the state that this rank has of a unit (zero_state_part).
struct part {
    size_t unit, begin, numel;
    int offloaded;
    size_t first_chunk, num_chunks;  // in zero.all_chunks
    size_t record;                   // on a disk: of its first array of optimizer state
    size_t params_record;            // on a disk: of its parameters
    char *arrays[NUM_ARRAYS];        // in memory; NULL: on a disk, or there is none, as of a frozen unit's states
};

// Pinned memory in which a part's gradients and parameters are while the host updates it.
struct host_slot {
    float *grads;
    void *params;
    cudaEvent_t free;  // its last parameters are on the device
};

// The update of a part on the host, in a step.
struct host_job {
    struct zero *z;
    const struct part *part;
    zero_optimizer_arrays arrays;  // without the state
    const zero_optimizer_args *args;
};

// A record that state.c reads or writes.
struct open_record {
    const struct part *part;  // NULL: none
    char *ptr;
    int changed;
};

struct zero {
    zero_config config;
    zero_layout layout;
    const zero_optimizer *optimizer;
    int rank, ranks;  // in the shard group
    int replicas;     // number of shard groups; ranks * replicas ranks in all
    size_t elem;      // bytes of a parameter or gradient
    cudaEvent_t event;
    int failed;      // the code of the first error, which every later call returns; ZERO_OK: none
    int created;     // zero_create succeeded
    int agreed;      // all ranks know of a failure
    uint64_t calls;  // a hash of the calls so far, which all ranks must make in the same order
    char error[768];

    // gradients.c
    char *grads;                  // stages 0, 1: all units' gradients of a micro-batch
    struct unit *units;           // [num_units]
    zero_pool pool;               // which units share buffers; of gradients from stage 2 on
    struct grad_buffer *buffers;  // [num_buffers]: the pool's; stages 0, 1: one for each unit
    size_t num_buffers;
    size_t *pending;  // units whose all-to-all is begun, oldest first: a ring of num_units
    size_t pending_first, pending_count;
    cudaStream_t reduce_stream;  // where gradients are accumulated: the transport's own stream, or the caller's if it
                                 // has none
    float *partial_sums[ZERO_MAX_PARTIAL_SUMS];    // this rank's shard of the sums, allocated when first needed
    int merged;                                    // partial_sums[0] is the sum of all micro-batches
    size_t micro_batches;                          // finished since the last step
    double total_weight;                           // of them, over all ranks; 0: each weighs 1
    int has_norm;                                  // the rows of all ranks (grad_norm.c) are theirs
    size_t max_micro_batches, last_micro_batches;  // of any step; of the last step
    zero_group_sums own;                           // what this rank passes on at a time: a micro-batch, or its sums
    zero_comm *grads_comm;                         // the shard group; in two levels the ranks of it on this host
    struct exchange hosts, groups;                 // two levels; several shard groups
    float *own_sums;                               // own_sums.c: of this rank's micro-batches: memory of own_buffers
    struct own_buffer *own_buffers;                // [num_own_buffers]
    size_t num_own_buffers;
    void *packed;               // the sums of a unit, if there are several
    zero_ticket packed_ticket;  // the last all-to-all of packed
    const void **own_pointers;  // device: tables
    float *gathered_sums;       // stage 0: a unit's sums, of all ranks; several groups: a shard's
    zero_ticket gathered_sums_ticket;
    uint64_t wire_start[ZERO_WIRE_KINDS], wire_step[ZERO_WIRE_KINDS];  // received: when the step began; in the last
                                                                       // step

    // parameters.c
    char *params;                        // all units' parameters; NULL in stage 3
    size_t gathers_begun, gathers_done;  // stages 1, 2: units all-gathered since the last update: begun, finished
    zero_window *window;                 // stage 3: the shards of the parameters, unless they are offloaded
    zero_param_cache cache;              // which units share buffers; stage 3: which are in buffers
    struct param_buffer *param_buffers;  // one for each slot of the cache
    zero_ticket last_unshard;            // the last all-gather of a unit

    // parameter_offload.c
    cudaStream_t copy_stream;                  // from host memory into the buffers
    size_t copied[ZERO_OFFLOAD_PARAM_COPIES];  // records that it may still read
    size_t num_copied, read_ahead;             // of these; records that are read, or begun to be, and not yet copied

    // grad_norm.c
    uint64_t *squares;                             // device: ZERO_SQUARE_PARTS wide integers
    uint64_t *rows, *replica_rows;                 // symmetric: a row of each rank of the shard and the replicate group
    zero_ticket rows_ticket, replica_rows_ticket;  // the last all-gathers of them
    uint64_t norm_calls;                           // this rank's hash in the last ones
    zero_decision *decisions, *learned;            // [ZERO_DECISIONS] device; on the host, pinned
    cudaEvent_t decided;                           // learned is there
    int undecided;                                 // what the last step has done is not yet in updates and step
    uint64_t updates;                              // since the fill
    zero_step_info step;                           // the last one

    // optimizer.c
    zero_tensor_options *options;  // [num_tensors]
    // [num_tensors]: on the host, of this step and of the last one (odd_step); on the device
    zero_tensor_args *tensor_args[2], *device_args;
    int odd_step;                                   // the host may still update what the last step has changed
    int has_options;                                // some tensor's options are not those of all
    int uses_ema;                                   // the parameters are the average (zero_use_ema)
    zero_optimizer_arrays *arrays, *device_arrays;  // of each part: pinned, on the device
    int has_arrays;                                 // they are written: since units were frozen last
    zero_optimizer_chunk *chunks;                   // device; of the parts that it updates
    size_t num_chunks;
    zero_optimizer_chunk *all_chunks;             // on the host: the same, then those of the offloaded parts
    uint64_t earlier_bytes[ZERO_MEM_CATEGORIES];  // the most, by formula, with other frozen units

    // optimizer_state.c
    struct part *parts;  // of all units, ascending
    size_t *first_part;  // [num_units + 1]
    // ZERO_OFFLOAD_NVME: a record for each array of each offloaded part; for the parameters of each part
    zero_swap *swap, *params_swap;
    size_t swap_bytes, params_swap_bytes;  // of their files
    struct open_record open[NUM_ARRAYS];

    // host_update.c
    size_t num_offloaded, largest_offloaded;   // parts; elements of the largest
    cudaStream_t to_host, on_host, to_device;  // of copies, of the update
    struct host_slot slots[ZERO_HOST_SLOTS];   // of largest_offloaded elements
    size_t slots_used;                         // so far
    cudaEvent_t unit_updated[2];               // of units in turn
    size_t units_begun, units_ended;           // on the host, so far
    struct host_job *jobs[2];                  // [num_offloaded], of this step and of the last one
    size_t num_jobs;                           // of this step
    zero_optimizer_args host_args[2];
    uint64_t bus[2], bus_start[2];  // bytes copied to the host, to the device; when the step began

    // state.c
    int in_callback;  // of a fill, load or visit, or in a hash
    // HOST_CHUNK elements each
    float *host;
    uint16_t *host_params, *host_low;  // bf16 parameters, and low halves of master weights
};

// ---- zero.c ---------------------------------------------------------------------------------------------------------

// Record the first error's message (printf style) and return its code, also for later errors; the checks pass ZERO_OK
// through.
int zero_fail(zero *z, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));
int zero_comm_check(zero *z, int e);
int zero_device_check(zero *z, cudaError_t e, const char *what);

// What each call begins with: returns the first error, if there is one; refuses calls in a callback.
int zero_enter(zero *z);

// Makes what is queued on `follower` from here on wait for what is on `leader` now.
int zero_follow(zero *z, cudaStream_t follower, cudaStream_t leader);

// Call the configuration's timing hook. Work on the transport's stream waits for the caller's stream first, so that
// this wait is not counted.
void zero_time_begin(zero *z, const char *work, cudaStream_t on);
void zero_time_end(zero *z, const char *work, cudaStream_t on);
cudaStream_t zero_transport_stream(const zero *z);

// Accounted device memory into *(void **)out: of this rank alone; symmetric. The latter is collective and first agrees
// on e, so a rank that has failed must call it too.
int zero_alloc(zero *z, enum zero_memory_category c, size_t bytes, void *out);
int zero_alloc_symmetric(zero *z, int e, zero_comm *comm, enum zero_memory_category c, size_t bytes, void *out);

// Fills memory with NaN if settings.delay_seed is set: reading a released buffer becomes visible.
int zero_poison(zero *z, void *p, size_t bytes);

// ---- agreement.c ----------------------------------------------------------------------------------------------------

// Collective: returns e, or the failure of another rank, on all ranks the same. The configurations of all ranks are
// equal.
int zero_agree(zero *z, int e);
int zero_agree_on_config(zero *z, int e);  // and e

// Records a call that all ranks must make, with its unit or another argument. The record (z->calls) is compared with
// the other ranks' when a norm or a hash is returned.
enum zero_call {
    CALL_ACQUIRE_PARAMS = 1,
    CALL_RELEASE_PARAMS,
    CALL_ACQUIRE_GRADS,
    CALL_RELEASE_GRADS,
    CALL_FINISH,
    CALL_SET_WEIGHT,
    CALL_SET_UPDATES,
    CALL_SET_OPTIONS,
    CALL_USE_EMA,
    CALL_STEP
};
void zero_record_call(zero *z, enum zero_call call, const void *argument, size_t bytes);
int zero_fail_calls(zero *z, int rank, const char *group);  // says that a rank's differ
int zero_check_all_calls(zero *z, const char *phase);       // grad_norm.c: compares them. Collective

// ---- gradients.c ----------------------------------------------------------------------------------------------------

int zero_grads_create(zero *z, int e);  // e: what has failed on this rank so far
void zero_grads_destroy(zero *z);
int zero_grads_release(zero *z);          // frees buffers and sums, to be created again. Collective; between steps
int zero_units_finished(zero *z);         // fails if a micro-batch has begun and is not finished
int zero_between_micro_batches(zero *z);  // the same, or if zero_use_ema is on
int zero_grads_merge(zero *z);            // all partial sums into partial_sums[0], once a step
int zero_grads_reset(zero *z);            // no micro-batches; ends the step's count of wire bytes
int zero_grads_abandon(zero *z);          // finishes what is pending; no unit holds a buffer
void zero_wire_start(zero *z);            // counts the step's wire bytes from here on

// ---- exchange.c: sums that hosts and shard groups pass on to each other ---------------------------------------------

int zero_exchanges_create(zero *z, int e);  // chooses z->grads_comm; e: what has failed on this rank so far
void zero_exchanges_destroy(zero *z);
int zero_exchanges_reusable(zero *z);  // on the caller's stream

// What this rank passes on of a unit, its gradients or its own sums, goes in parts (zero_pool_part): of each rank's
// shard the elements from `at` on. Their number; begins their all-to-all, for the shards of the ranks of a host (one
// level: 0); its ticket.
size_t zero_sent_numel(const zero *z, size_t u, size_t at);
int zero_send(zero *z, size_t u, size_t at, int host, cudaStream_t stream);
zero_ticket *zero_sent_ticket(zero *z, size_t u);

// What a shard group has of the sum of a reduction: from each rank, or in two levels from each host, a leaf or some
// subtrees of equal size.
size_t zero_sums_of_group(const zero *z);
enum zero_dtype zero_dtype_of_group(const zero *z);

// Two levels: adds what this host's ranks have of a part, one all-to-all for the shards of each host (the first is
// begun already); *chunks: all hosts' sums of this rank's. Several shard groups: adds *chunks, which become all groups'
// sums of what this rank has of the shard. Pointers are in the order of leaves. The caller ends with all_to_all_done.
int zero_add_by_hosts(zero *z, size_t u, size_t at, const void *const **chunks);
int zero_add_by_groups(zero *z, size_t u, const void *const **chunks);

// ---- own_sums.c: of the micro-batches of this rank, with ZERO_ORDER_RANK and LAYER ----------------------------------

int zero_own_sums_create(zero *z, int e);  // e: what has failed on this rank so far
void zero_own_sums_destroy(zero *z);
int zero_own_sums_reusable(zero *z);  // waits until no rank reads them
int zero_own_sums_poison(zero *z);

// Gives a unit a buffer of the pool. Returns 0 if there is none: it may be after a reduction.
int zero_own_sums_take(zero *z, size_t u);

// Adds the micro-batch in a unit's buffer. After the last one the sums are in z->packed, or, if there is only one, in
// unit->own->ptr.
int zero_own_sums_add(zero *z, size_t u);

// *chunks, one from each of so many ranks, becomes a pointer to each sum in them, in the order of leaves.
int zero_own_sums_sent(zero *z, size_t u, int ranks, const void *const **chunks);

// ---- parameters.c ---------------------------------------------------------------------------------------------------

int zero_params_create(zero *z);
void zero_params_destroy(zero *z);
int zero_params_abandon(zero *z);     // no unit is acquired; stage 3: as invalidate
int zero_params_invalidate(zero *z);  // stage 3: finishes all all-gathers and empties the buffers
int zero_params_released(zero *z);    // fails if a unit's parameters are acquired
int zero_params_complete(zero *z);    // before stage 3: finishes all all-gathers; for readers that do not acquire

// An update of the parameters: begin waits until no rank reads this rank's shard; written announces that unit u of it
// is complete (units ascending); after end all ranks can acquire them.
int zero_params_update_begin(zero *z);
int zero_params_update_written(zero *z, size_t u);
int zero_params_update_end(zero *z);

// ---- parameter_offload.c --------------------------------------------------------------------------------------------

int zero_params_copies_create(zero *z);
void zero_params_copies_destroy(zero *z);
// From a disk: begins to read what the next call for the unit needs first.
int zero_params_read(zero *z, size_t u);
// Copies this rank's shard of a unit to the device, on z->copy_stream.
int zero_params_copy(zero *z, size_t u, char *to);
// Waits until no copy reads a record. Before a record is acquired for something else.
int zero_params_copied(zero *z);

// ---- grad_norm.c ----------------------------------------------------------------------------------------------------

int zero_norm_create(zero *z, int e);  // collective, as zero_grads_create
void zero_norm_destroy(zero *z);
int zero_norm_decide(zero *z, float max_norm);  // queues what the rows of all ranks decide
int zero_norm_learn(zero *z);                   // waits until the host knows what the last step has done

// ---- state.c --------------------------------------------------------------------------------------------------------

// Before the frozen units change: what was allocated so far counts in the report of peak memory.
void zero_keep_earlier_bytes(zero *z);

// ---- optimizer_state.c ----------------------------------------------------------------------------------------------

int zero_state_create(zero *z, int e);
void zero_state_destroy(zero *z);
// A unit becomes a frozen one, without optimizer states, or a trained one, whose states are zero.
int zero_state_create_unit(zero *z, size_t u);
void zero_state_destroy_unit(zero *z, size_t u);
int zero_state_clear_unit(zero *z, size_t u);  // its states become zero

// Of a part on a disk: which record of which file an array is.
size_t zero_part_record(const zero *z, const struct part *p, size_t array);
int zero_swap_check(zero *z, zero_swap *s, int failed);

// For an update, in the order of parts: the arrays of a part, NULL where there are none, and reads ahead what is needed
// next; then, that all of them have changed. Unless there is a params_swap they call nothing of CUDA. They return -1
// after an error of a disk, which stays: zero_part_error tells of it when the update has ended.
int zero_part_acquire(zero *z, const struct part *p, char *arrays[NUM_ARRAYS]);
int zero_part_release(zero *z, const struct part *p);
int zero_part_error(zero *z);

// One by one: sets *out to element `at` of an array of unit u (counted in what this rank has of it), for copies and
// fills on the stream, and *count to the number of elements that follow it there, itself included. It stays valid until
// another element of this array is asked for. Afterwards call zero_state_close, whatever happened; it returns e, or the
// first failure.
int zero_state_open(zero *z, size_t u, size_t array, size_t at, int change, char **out, size_t *count);
int zero_state_close(zero *z, int e);

// ---- host_update.c --------------------------------------------------------------------------------------------------

int zero_host_update_create(zero *z);
void zero_host_update_destroy(zero *z);

// Whether the host updates anything: then these are queued in each step, for units ascending; grads: the sums of the
// unit's gradients. After unit_ended the caller's stream has waited for the parameters of one more unit.
static inline int updates_on_host(const zero *z) { return z->num_offloaded > 0; }
int zero_host_update_begin(zero *z, const zero_optimizer_args *args);
int zero_host_update_unit(zero *z, size_t u, const float *grads);
int zero_host_update_unit_ended(zero *z);

// ---- optimizer.c ----------------------------------------------------------------------------------------------------

// Fails if the parameters are the moving average.
int zero_uses_weights(zero *z);

// Of the gradient sums that were merged, those of frozen tensors become zero: they are not part of a norm.
int zero_clear_frozen(zero *z);

int zero_optimizer_create(zero *z, int e);
void zero_optimizer_destroy(zero *z);

// ---- sizes and places -----------------------------------------------------------------------------------------------

static inline size_t unit_numel(const zero *z, size_t u) { return zero_layout_unit_numel(&z->layout, u); }
static inline size_t shard_numel(const zero *z, size_t u) { return zero_layout_shard_numel(&z->layout, u); }
static inline size_t shard_offset(const zero *z, size_t u) { return zero_layout_shard_offset(&z->layout, u); }
// Gradient sums of the trained units: of this rank's shard, or of its chunk of it if there are several shard groups.
static inline size_t sum_offset(const zero *z, size_t u) {
    return zero_layout_replica_offset(&z->layout, u, (size_t)z->replicas);
}
static inline size_t sum_total(const zero *z) { return sum_offset(z, z->layout.num_units); }
// Where this rank's sums begin and end in the unit.
static inline size_t begin_of_group(const zero *z, size_t u, size_t group) {
    return (size_t)z->rank * shard_numel(z, u) + zero_layout_replica_begin(&z->layout, u, (size_t)z->replicas, group);
}
static inline size_t group_index(const zero *z) {
    return z->replicas > 1 ? (size_t)zero_comm_rank(z->config.replicate_comm) : 0;
}
static inline size_t sum_begin(const zero *z, size_t u) { return begin_of_group(z, u, group_index(z)); }
static inline size_t sum_end(const zero *z, size_t u) { return begin_of_group(z, u, group_index(z) + 1); }
static inline size_t sum_numel(const zero *z, size_t u) { return sum_end(z, u) - sum_begin(z, u); }
// The ranks that have the rest of the sums that this rank's optimizer needs; NULL: it has all.
static inline zero_comm *sums_comm(const zero *z) {
    if (z->replicas > 1) return z->config.replicate_comm;
    return z->config.settings.stage == 0 && z->ranks > 1 ? z->config.shard_comm : NULL;
}
static inline size_t shard_total(const zero *z) { return z->layout.numel_padded / (size_t)z->ranks; }

// What the sum of gradients is divided by: the weights of the micro-batches since the last step, over all ranks.
static inline double zero_total_weight(const zero *z) {
    return z->total_weight > 0 ? z->total_weight : (double)(z->micro_batches * (size_t)z->ranks * (size_t)z->replicas);
}
static inline int layer_order(const zero *z) { return z->config.settings.order == ZERO_ORDER_LAYER; }
// Whether this rank adds its own micro-batches.
static inline int rank_order(const zero *z) { return z->config.settings.order == ZERO_ORDER_RANK || layer_order(z); }
// Whether units take their gradient buffers from a pool.
static inline int pooled_grads(const zero *z) { return z->config.settings.stage >= 2 || rank_order(z); }
static inline int unit_frozen(const zero *z, size_t u) { return z->layout.unit_frozen[u]; }
static inline int sharded_params(const zero *z) { return z->config.settings.stage == 3; }
static inline enum zero_offload params_offload(const zero *z) { return zero_params_offload(&z->config.settings); }
// Stage 3: whether units are all-gathered into buffers.
static inline int unshards(const zero *z) { return sharded_params(z) && (z->ranks > 1 || params_offload(z)); }

// This rank's shard of a unit's parameters, unless they are offloaded.
static inline char *own_params(const zero *z, size_t u) {
    if (sharded_params(z)) return (char *)zero_window_shard(z->window) + shard_offset(z, u) * z->elem;
    return z->params + (z->layout.unit_offset[u] + (size_t)z->rank * shard_numel(z, u)) * z->elem;
}

// Optimizer state: which elements of a unit this rank has, and where they begin.
static inline int whole_state(const zero *z) { return z->config.settings.stage == 0; }
static inline size_t state_begin(const zero *z, size_t u) {
    return whole_state(z) ? 0 : (size_t)z->rank * shard_numel(z, u);
}
static inline size_t state_numel(const zero *z, size_t u) {
    return whole_state(z) ? unit_numel(z, u) : shard_numel(z, u);
}
static inline size_t master_bytes(const zero *z) {
    return zero_master_bytes(z->config.settings.dtype, z->config.settings.master);
}

// A disk may fail on one rank alone, so what uses it ends with an agreement.
static inline int uses_disk(const zero *z) { return zero_uses_disk(&z->config.settings); }
static inline int has_ema(const zero *z) { return z->config.settings.ema_decay > 0; }

// Bytes of an element of an array; 0: there is no such array.
static inline size_t array_bytes(const zero *z, size_t array) {
    if (array == ARRAY_PARAMS) return z->elem;
    if (array == ARRAY_MASTER) return master_bytes(z);
    if (array == ARRAY_EMA) return has_ema(z) ? sizeof(float) : 0;
    return array - ARRAY_STATES < z->optimizer->num_states ? sizeof(float) : 0;
}

// The parameters of a unit whose optimizer state this rank has, unless they are offloaded.
static inline char *updated_params(const zero *z, size_t u) {
    return whole_state(z) ? z->params + z->layout.unit_offset[u] * z->elem : own_params(z, u);
}

#endif
