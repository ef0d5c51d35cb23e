// optimizers.cuh: the kernel that all optimizers share. Part of kernels.cu, which includes it. Every byte is read and
// written once (update.cuh): it is bound by memory bandwidth.
#ifndef ZERO_OPTIMIZERS_CUH
#define ZERO_OPTIMIZERS_CUH
#include "zero/device.cuh"
#include "zero/optimizers/update.cuh"

template <class O, class P, enum zero_master MODE>
__global__ void __launch_bounds__(256)
    optimizer_kernel(zero_optimizer_arrays arrays, const zero_optimizer_chunk *chunks, zero_optimizer_args a) {
    const zero_optimizer_chunk c = chunks[blockIdx.x];
    if (!chunk_args(c, a)) return;
    if (a.parts) arrays = a.parts[c.part];
    update_chunk<O, P, MODE>(arrays, c, a, threadIdx.x * PACK, (size_t)blockDim.x * PACK);
}

template <class O, class P, enum zero_master MODE>
static cudaError_t launch_update(zero_optimizer_arrays arrays, const zero_optimizer_chunk *chunks, size_t num_chunks,
                                 zero_optimizer_args a, cudaStream_t stream) {
    const cudaLaunchConfig_t c = launch_config(num_chunks, block_threads(256), stream);
    return cudaLaunchKernelEx(&c, optimizer_kernel<O, P, MODE>, arrays, chunks, a);
}

template <class O, size_t STATES>
static cudaError_t launch_optimizer(zero_optimizer_arrays arrays, enum zero_dtype dtype, enum zero_master master,
                                    const zero_optimizer_chunk *chunks, size_t n, zero_optimizer_args a,
                                    cudaStream_t stream) {
    static_assert(O::STATES == STATES, "the table has another number of states");
    static_assert(STATES <= ZERO_MAX_OPTIMIZER_STATES, "raise ZERO_MAX_OPTIMIZER_STATES");
    if (!n) return cudaSuccess;
    if (dtype == ZERO_F32) return launch_update<O, float, ZERO_MASTER_FP32>(arrays, chunks, n, a, stream);
    if (master == ZERO_MASTER_FP32) return launch_update<O, bf16, ZERO_MASTER_FP32>(arrays, chunks, n, a, stream);
    if (master == ZERO_MASTER_SPLIT) return launch_update<O, bf16, ZERO_MASTER_SPLIT>(arrays, chunks, n, a, stream);
    return launch_update<O, bf16, ZERO_MASTER_NONE>(arrays, chunks, n, a, stream);
}

// ---- the table ------------------------------------------------------------------------------------------------------

cudaError_t zero_optimizer_launch(enum zero_optimizer_kind kind, zero_optimizer_arrays arrays, enum zero_dtype dtype,
                                  enum zero_master master, const zero_optimizer_chunk *chunks, size_t num_chunks,
                                  zero_optimizer_args args, cudaStream_t stream) {
#define LAUNCH(NAME, label, states, ...) launch_optimizer<NAME, states>,
    static constexpr decltype(&launch_optimizer<adamw, adamw::STATES>) table[] = { ZERO_OPTIMIZERS(LAUNCH) };
#undef LAUNCH
    static_assert(sizeof table / sizeof *table == ZERO_NUM_OPTIMIZERS, "an optimizer is missing in the table");
    return table[kind](arrays, dtype, master, chunks, num_chunks, args, stream);
}

#endif
