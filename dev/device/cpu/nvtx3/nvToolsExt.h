// NVTX for the CPU's CUDA runtime: the two calls of zero/nvtx.h. An operation that is queued inside a range carries its
// name, which cuda_on_cpu_trace shows when the operation runs (streams.cpp).
#ifndef CUDA_ON_CPU_NVTX_H
#define CUDA_ON_CPU_NVTX_H
#ifdef __cplusplus
extern "C" {
#endif

int nvtxRangePushA(const char *name);  // copied
int nvtxRangePop(void);

#ifdef __cplusplus
}
#endif
#endif
