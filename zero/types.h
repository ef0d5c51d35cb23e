// types.h: the few words that all parts of zero/ share.
#ifndef ZERO_TYPES_H
#define ZERO_TYPES_H
#include <stddef.h>

// Return codes. 0 is success; the words that go with a failure are in zero_error() or zero_comm_error().
enum zero_status {
    ZERO_OK = 0,
    ZERO_ERR_ARG,      // the caller asked for something impossible
    ZERO_ERR_MEMORY,   // host or device memory is exhausted
    ZERO_ERR_DEVICE,   // a CUDA call failed
    ZERO_ERR_COMM,     // the transport failed, timed out, or the ranks disagree
    ZERO_ERR_CALLBACK  // the caller's own callback returned non-zero
};

enum zero_reduction {
    ZERO_REDUCE_EXACT = 0,  // our ordered sum: the same bits in every stage, and for every number of ranks that is
                            // a power of two
    ZERO_REDUCE_LIBRARY     // the transport's own reduce-scatter: for speed comparisons, gives up that promise
};

// What bf16 parameters keep beside them (zero/split_master.h); fp32 parameters are their own master weights:
// ZERO_MASTER_FP32.
enum zero_master {
    ZERO_MASTER_FP32 = 0,  // fp32 master weights: 4 bytes
    ZERO_MASTER_SPLIT,     // their low halves, which with the parameter are the same fp32 master weights: 2 bytes
    ZERO_MASTER_NONE       // nothing: updates are rounded by chance
};

enum zero_dtype { ZERO_F32 = 0, ZERO_BF16 = 1 };
static inline size_t zero_dtype_bytes(enum zero_dtype t) { return t == ZERO_F32 ? 4 : 2; }
static inline size_t zero_master_bytes(enum zero_dtype t, enum zero_master m) {
    return t == ZERO_F32 || m == ZERO_MASTER_NONE ? 0 : m == ZERO_MASTER_SPLIT ? 2 : 4;
}

#endif
