// types.h: the enums that all parts of zero/ share.
#ifndef ZERO_TYPES_H
#define ZERO_TYPES_H
#include <stddef.h>
// `make install` writes this file: a compile error where the CUDA runtime's headers are another device's.
#if __has_include("zero/installed_for.h")
#include "zero/installed_for.h"
#endif

// Return codes. 0 is success; the message of a failure is in zero_error() or zero_comm_error().
enum zero_status {
    ZERO_OK = 0,
    ZERO_ERR_ARG,       // invalid argument, or a call in the wrong order
    ZERO_ERR_MEMORY,    // host or device memory is exhausted
    ZERO_ERR_DEVICE,    // a CUDA call failed
    ZERO_ERR_COMM,      // the transport failed or timed out, or the ranks disagree
    ZERO_ERR_CALLBACK,  // the caller's callback returned non-zero
    ZERO_ERR_DISK       // offloaded state could not be read or written
};

enum zero_reduction {
    ZERO_REDUCE_EXACT = 0,  // fp32 accumulation in a fixed order: the same bits in every stage and for every number of
                            // ranks that divides the micro-batches of a step (gradients.c)
    ZERO_REDUCE_LIBRARY     // the transport library's own reduce-scatter, for speed comparisons: not reproducible
};

// Which of the M = N G micro-batches of a step rank r of N takes in micro-step g. The bits are the same.
enum zero_order {
    ZERO_ORDER_STEP = 0,  // g N + r: each micro-batch is reduced when it is done
    ZERO_ORDER_RANK,      // r G + g: a rank adds its own first, and there is one reduction a step. Stages 0 and 1
                          // (own_sums.c)
    ZERO_ORDER_LAYER      // the same in all stages: all micro-batches pass a unit before the next one is used
};

// What is kept beside bf16 parameters (master_weights.h). fp32 parameters are their own master weights, with
// ZERO_MASTER_FP32.
enum zero_master {
    ZERO_MASTER_FP32 = 0,  // fp32 master weights: 4 bytes per parameter
    ZERO_MASTER_SPLIT,     // the low half of the master weight; the parameter is the high half: 2 bytes
    ZERO_MASTER_NONE       // nothing: updates are rounded stochastically
};

// Where optimizer state is (settings.offload_fraction of it), and in stage 3 parameters: ZeRO-Offload, ZeRO-Infinity.
enum zero_offload {
    ZERO_OFFLOAD_NONE = 0,  // in device memory
    ZERO_OFFLOAD_CPU,       // in pinned host memory; the host updates it
    ZERO_OFFLOAD_NVME       // in a file; passes through a few buffers in host memory (offload/swap.h); the host too
};

enum zero_optimizer_kind { ZERO_ADAMW = 0, ZERO_SGD, ZERO_LION, ZERO_NUM_OPTIMIZERS };

enum zero_dtype { ZERO_F32 = 0, ZERO_BF16 = 1 };
static inline size_t zero_dtype_bytes(enum zero_dtype t) { return t == ZERO_F32 ? 4 : 2; }
static inline size_t zero_master_bytes(enum zero_dtype t, enum zero_master m) {
    return t == ZERO_F32 || m == ZERO_MASTER_NONE ? 0 : m == ZERO_MASTER_SPLIT ? 2 : 4;
}

#endif
