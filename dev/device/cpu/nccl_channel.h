// nccl_channel.h: how the ranks of one communicator of the CPU's NCCL (nccl.cpp) reach each other's memory.
//
// Every ordered pair of ranks has a box in memory that all ranks map: the sender fills it with a chunk, the receiver
// empties it. The memory is a memfd, which the other ranks open through /proc, so a crash leaves nothing behind. A card
// holds the process and the descriptor to open.
#ifndef NCCL_CHANNEL_H
#define NCCL_CHANNEL_H
#include "nccl.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

struct nccl_card {  // how others find a rank's memory; travels in ncclUniqueId
    uint64_t magic;
    long pid;
    int fd;
    uint64_t device, inode;
};

bool nccl_make_card(nccl_card *card);

using nccl_abort_flag = std::shared_ptr<std::atomic<bool>>;

// What a rank publishes when a communicator is split: a pair for each rank, since one rank may be a split ahead.
struct nccl_split {
    int color, key;
    nccl_card child;                        // from the child's rank 0: the child's memory
    std::atomic<uint32_t> published, made;  // numbers of the last split with color and key, with the child's card
};

struct nccl_channel {
    int rank, ranks;
    nccl_abort_flag aborted;
    std::atomic<int> queued{ 0 };  // operations
    char *memory = nullptr;
    size_t bytes = 0;

    // Maps the memory of the card and waits for all ranks. ncclInternalError: aborted meanwhile.
    ncclResult_t join(int rank, int ranks, const nccl_card &card, const nccl_abort_flag &aborted);
    nccl_split *split(int rank, uint32_t number);
    ~nccl_channel();
};

struct nccl_transfer {
    bool sends;
    int peer;
    char *at;
    size_t bytes, moved;
};

// A send, a receive or a collective: a copy of this rank's own chunk, then transfers. adds: what is received is added
// to what is there, one peer after the other.
struct nccl_task {
    const char *copy_from;
    char *copy_to;
    size_t copy_bytes;
    bool adds;
    ncclDataType_t type;
    std::vector<nccl_transfer> transfers;
};

size_t nccl_type_bytes(ncclDataType_t type);

// Queues the tasks as one operation of the stream: buffers are read and written when its turn has come, bit by bit,
// while other streams run. It ends when all tasks have, or when the channel is aborted.
ncclResult_t nccl_launch(const std::shared_ptr<nccl_channel> &channel, std::vector<nccl_task> tasks,
                         cudaStream_t stream);

#endif
