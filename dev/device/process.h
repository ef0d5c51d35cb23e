// The memory that a process really takes, to compare with the memory accounting (zero/accounting.h):
// dev/device/cpu/process.cpp where the device is the host, dev/device/cuda/process.cu on a GPU.
#ifndef DEV_PROCESS_H
#define DEV_PROCESS_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

// Bytes of device memory that this process takes, at its peak where that can be known; the libraries are in it.
// ranks_per_device: processes that use the same device. 0: cannot be measured. Memory that ranks share is divided among
// them, so only the mean over the ranks of a host is what a rank takes; measure while all of them have theirs.
size_t process_memory(size_t ranks_per_device);

#ifdef __cplusplus
}
#endif
#endif
