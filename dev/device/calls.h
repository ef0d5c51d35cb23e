// What this process has asked of its device since the start, to count it in a step (--profile).
//
// dev/device/cpu/streams.cpp counts in the CUDA runtime itself. On a GPU the linker puts dev/device/cuda/calls.cu
// between the program's objects and the runtime (COUNTED in cuda.mk). What libraries launch is not seen.
#ifndef DEV_CALLS_H
#define DEV_CALLS_H

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DeviceCalls {
    unsigned long long kernels;  // launched
    unsigned long long copies;   // and fills
    unsigned long long waits;    // calls in which the host waits for the device, whether or not there is still work
} DeviceCalls;

DeviceCalls device_calls(void);

#ifdef __cplusplus
}
#endif
#endif
