// memory.h: one accounted allocator for everything that is large.
//
// Each allocation has a category; the books hold what is live and the peak, to the byte as asked for. The program
// prints them beside the formula that predicts them. A zero_accounting belongs to one rank and is not thread-safe.
#ifndef ZERO_ACCOUNTING_H
#define ZERO_ACCOUNTING_H
#include <stddef.h>
#include "zero/types.h"
#ifdef __cplusplus
extern "C" {
#endif

enum zero_memory_category {
    ZERO_MEM_PARAMS,        // parameters in the compute precision
    ZERO_MEM_GRADS,         // gradients of one micro-batch in the compute precision, resident (stages 0, 1)
    ZERO_MEM_GRAD_SHARDS,   // fp32 sums over micro-batches, this rank's shard
    ZERO_MEM_MASTER,        // fp32 master weights, or their low halves (BF16 builds)
    ZERO_MEM_M,             // AdamW first moment, fp32
    ZERO_MEM_V,             // AdamW second moment, fp32
    ZERO_MEM_UNIT_BUFFERS,  // pools of unit-sized buffers, and stage 0's unit of gathered fp32 gradients
    ZERO_MEM_ACTIVATIONS,   // the caller's
    ZERO_MEM_TRANSPORT,     // scratch and tables of the transport and the engine
    ZERO_MEM_CATEGORIES
};

typedef struct zero_accounting {
    size_t live[ZERO_MEM_CATEGORIES], peak[ZERO_MEM_CATEGORIES];  // bytes
    size_t total_live, total_peak;
} zero_accounting;

const char *zero_memory_category_name(enum zero_memory_category c);

// Device memory, zeroed, 256-byte aligned. NULL when it is exhausted (bytes == 0 gives a valid pointer).
void *zero_accounting_alloc(zero_accounting *m, enum zero_memory_category c, size_t bytes);
void zero_accounting_free(zero_accounting *m, enum zero_memory_category c, void *ptr, size_t bytes);
// Book memory that somebody else allocates (bytes > 0 in *added*, or in *removed*).
void zero_accounting_add(zero_accounting *m, enum zero_memory_category c, size_t added, size_t removed);

#ifdef __cplusplus
}
#endif
#endif
