// A process and its device: whether this program can use it, and the memory that the process really takes, to compare
// with the memory accounting (zero/accounting.h). dev/device/cpu/process.cpp where the device is the host,
// dev/device/cuda/process.cu on a GPU.
#ifndef DEV_PROCESS_H
#define DEV_PROCESS_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

// Returns the number of devices, or -1 with the reason and the remedy in err if there is none.
int process_count_devices(char *err, size_t err_bytes);

// Checks that this program has code for the current device. Returns 0, or -1 with the reason and the remedy in err.
int process_check_device(char *err, size_t err_bytes);

// Bytes of device memory that this process takes, at its peak where that can be known; the libraries are in it.
// ranks_per_device: processes that use the same device. 0: cannot be measured. Memory that ranks share is divided among
// them, so only the mean over the ranks of a host is what a rank takes; measure while all of them have theirs.
size_t process_memory(size_t ranks_per_device);

#ifdef __cplusplus
}
#endif
#endif
