// waits.h: the waits of one stream for another in the NCCL transport. Tests leave one out (zero_comm_config.omit_wait)
// to see that it is missed.
#ifndef ZERO_NCCL_WAITS_H
#define ZERO_NCCL_WAITS_H

enum zero_nccl_wait {
    ZERO_NCCL_WAIT_NONE,
    ZERO_NCCL_WAIT_ALL_TO_ALL,       // an all-to-all, for the caller's buffer
    ZERO_NCCL_WAIT_CHUNKS,           // an all-to-all, until the chunks of the last one were read
    ZERO_NCCL_WAIT_ALL_TO_ALL_DONE,  // the caller, for the chunks
    ZERO_NCCL_WAIT_REUSABLE,         // the caller, until its buffer was sent and read
    ZERO_NCCL_WAIT_GATHER,           // an all-gather, for the caller's chunk
    ZERO_NCCL_WAIT_GATHER_DONE,      // the caller, for all chunks
    ZERO_NCCL_WAIT_OPEN,             // gathers from a window, for the caller's shard
    ZERO_NCCL_WAIT_UNSHARD,          // a gather from a window, until the buffer that it fills is free
    ZERO_NCCL_WAIT_UNSHARD_DONE,     // the caller, for what was gathered
    ZERO_NCCL_WAIT_CLOSE,            // the caller, until its shard was gathered
    ZERO_NCCL_WAITS
};

#endif
