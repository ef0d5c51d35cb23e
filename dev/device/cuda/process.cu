// process_memory on a GPU (dev/device/process.h): the memory that is not free, divided among the ranks that use the
// GPU. Other programs on the same GPU count too. It includes the CUDA context and the libraries' code and workspaces,
// which are not accounted: the caller measures before it allocates anything, and subtracts.
#include <cuda_runtime.h>
#include <stdio.h>

#include "device/process.h"

// Compiled for the same GPUs as the program's other kernels.
static __global__ void __launch_bounds__(32) probe() {}

// 13000 -> 13.0
#define VERSION(v) (v) / 1000, (v) / 10 % 100

int process_count_devices(char *err, size_t err_bytes) {
    int devices = 0, driver = 0, runtime = 0;
    const cudaError_t e = cudaGetDeviceCount(&devices);
    if (e == cudaSuccess && devices > 0) return devices;
    if (cudaDriverGetVersion(&driver) != cudaSuccess || cudaRuntimeGetVersion(&runtime) != cudaSuccess) driver = 0;
    if (e == cudaErrorInsufficientDriver && driver > 0)
        snprintf(
            err, err_bytes,
            "no CUDA device: this program was built with CUDA %d.%d, and the driver supports at most %d.%d: install "
            "a newer driver, or build with an older toolkit (make CUDA_HOME=DIR)",
            VERSION(runtime), VERSION(driver));
    else
        snprintf(
            err, err_bytes,
            "no CUDA device (%s): this program was built for NVIDIA GPUs. Is there a driver, can this container see "
            "the GPU, is CUDA_VISIBLE_DEVICES right? For the CPU, build with make DEVICE=cpu",
            e == cudaSuccess ? "0 devices"
            : driver == 0    ? "no driver is loaded"
                             : cudaGetErrorString(e));
    return -1;
}

int process_check_device(char *err, size_t err_bytes) {
    int device = 0;
    cudaDeviceProp p;
    cudaFuncAttributes attributes;
    cudaError_t e = cudaGetDevice(&device);
    if (e == cudaSuccess) e = cudaGetDeviceProperties(&p, device);
    if (e != cudaSuccess) {
        snprintf(err, err_bytes, "device %d: %s", device, cudaGetErrorString(e));
        return -1;
    }
    e = cudaFuncGetAttributes(&attributes, (const void *)probe);
    if (e == cudaSuccess) return 0;
    snprintf(err, err_bytes, "%s (compute capability %d.%d): %s: build for it with make CUDA_ARCH=%d%d", p.name,
             p.major, p.minor, cudaGetErrorString(e), p.major, p.minor);
    return -1;
}

size_t process_memory(size_t ranks_per_device) {
    size_t free_bytes = 0;
    size_t all_bytes = 0;
    if (cudaMemGetInfo(&free_bytes, &all_bytes) != cudaSuccess) return 0;
    return (all_bytes - free_bytes) / ranks_per_device;
}
