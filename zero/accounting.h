// accounting.h: memory accounting: one allocator for everything that is large.
//
// Every allocation has a category; what is live and the peak are counted, to the byte as asked for. The program prints
// them beside the formulas that predict them (cost.h). A zero_accounting belongs to one rank and is not thread-safe.
#ifndef ZERO_ACCOUNTING_H
#define ZERO_ACCOUNTING_H
#include <stddef.h>
#include "zero/types.h"
#ifdef __cplusplus
extern "C" {
#endif

enum zero_memory_category {
    ZERO_MEM_PARAMS,        // parameters in settings.dtype
    ZERO_MEM_GRADS,         // gradients of one micro-batch, resident (stages 0, 1); ZERO_ORDER_RANK: own sums, fp32
    ZERO_MEM_GRAD_SHARDS,   // fp32 partial sums over micro-batches, this rank's shard
    ZERO_MEM_MASTER,        // fp32 master weights, or their low halves (bf16 parameters)
    ZERO_MEM_STATE,         // the optimizer's first state, fp32 (AdamW: m)
    ZERO_MEM_STATE_2,       // its second state (AdamW: v); the i-th is ZERO_MEM_STATE + i
    ZERO_MEM_EMA,           // moving average of the weights, fp32
    ZERO_MEM_UNIT_BUFFERS,  // pools of unit-sized buffers; stage 0's unit of gathered gradient sums
    ZERO_MEM_ACTIVATIONS,   // the caller's
    ZERO_MEM_TRANSPORT,     // scratch and tables of the transport and the engine
    ZERO_MEM_HOST,          // host memory: offloaded state and parameters, or buffers of a disk; slots (host_update.c)
    ZERO_MEM_DISK,          // files: optimizer state and parameters that are offloaded there
    ZERO_MEM_CALLER_HOST,   // the caller's, in host memory: activations
    ZERO_MEM_CATEGORIES
};

typedef struct zero_accounting {
    size_t live[ZERO_MEM_CATEGORIES], peak[ZERO_MEM_CATEGORIES];  // bytes
    size_t total_live, total_peak;                                // of the device
    size_t limit;  // of total_live: what would exceed it is refused, as if memory were exhausted. 0: no limit
} zero_accounting;

enum { ZERO_REFUSAL_BYTES = 96 };

const char *zero_memory_category_name(enum zero_memory_category c);

// Returns 1 if it takes memory of the device. If that is the CPU, host memory is its memory.
int zero_memory_on_device(enum zero_memory_category c);

// Allocates device memory, zeroed and 256-byte aligned. NULL: it is exhausted, or the limit refuses it. bytes = 0 gives
// a valid pointer.
void *zero_accounting_alloc(zero_accounting *m, enum zero_memory_category c, size_t bytes);
void zero_accounting_free(zero_accounting *m, enum zero_memory_category c, void *ptr, size_t bytes);

// The same for pinned host memory, which the device can read and write; of ZERO_MEM_HOST.
void *zero_accounting_alloc_host(zero_accounting *m, size_t bytes);
void zero_accounting_free_host(zero_accounting *m, void *ptr, size_t bytes);

// Accounts for memory that somebody else allocates (added bytes) or frees (removed bytes). The limit refuses nothing
// here: ask zero_accounting_refusal before allocating.
void zero_accounting_add(zero_accounting *m, enum zero_memory_category c, size_t added, size_t removed);

// Returns text: why the limit refuses so many more bytes; "" if it does not.
const char *zero_accounting_refusal(const zero_accounting *m, size_t bytes, char text[ZERO_REFUSAL_BYTES]);

#ifdef __cplusplus
}
#endif
#endif
