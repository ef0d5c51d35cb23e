// process_memory on a GPU (dev/device/process.h): the memory that is not free, divided among the ranks that use the
// GPU. Other programs on the same GPU count too. It includes the CUDA context and the libraries' code and workspaces,
// which are not accounted: the caller measures before it allocates anything, and subtracts.
#include <cuda_runtime.h>

#include "device/process.h"

size_t process_memory(size_t ranks_per_device) {
    size_t free_bytes = 0;
    size_t all_bytes = 0;
    if (cudaMemGetInfo(&free_bytes, &all_bytes) != cudaSuccess) return 0;
    return (all_bytes - free_bytes) / ranks_per_device;
}
