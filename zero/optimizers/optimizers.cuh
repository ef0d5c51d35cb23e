// optimizers.cuh: the kernel that all optimizers share. Part of kernels.cu, which includes it.
//
// The kernel reads a pack of 8 weights in whatever form they are kept, the states and the gradient; lets the optimizer
// update them in registers; and writes them back. Every byte is read and written once: it is bound by memory bandwidth.
#ifndef ZERO_OPTIMIZERS_CUH
#define ZERO_OPTIMIZERS_CUH
#include "zero/device.cuh"
#include "zero/optimizers/optimizers.h"
#include "zero/master_weights.h"
#include "zero/optimizers/adamw.cuh"
#include "zero/optimizers/lion.cuh"
#include "zero/optimizers/sgd.cuh"

// ---- weights, in every form they are kept ---------------------------------------------------------------------------

template <enum zero_master MODE> DEV fvec ld_weights(const float *p, const void *, size_t) { return ld(p); }

template <enum zero_master MODE>
DEV void st_weights(float *p, void *, size_t, const fvec &w, const zero_optimizer_args &, size_t) {
    st(p, w);
}

template <enum zero_master MODE> DEV fvec ld_weights(const bf16 *p, const void *master, size_t at) {
    if constexpr (MODE == ZERO_MASTER_FP32) {
        return ld(static_cast<const float *>(master) + at);
    } else if constexpr (MODE == ZERO_MASTER_NONE) {
        return ld(p);
    } else {
        const uvec low = ld16(static_cast<const uint16_t *>(master) + at);
        return from_bits(each([](auto param, auto low) { return zero_master_join(param, low); }, ld16(p), low));
    }
}

template <enum zero_master MODE>
DEV void st_weights(bf16 *p, void *master, size_t at, const fvec &w, const zero_optimizer_args &a, size_t logical) {
    if constexpr (MODE == ZERO_MASTER_NONE) {
        alignas(16) uint16_t random[PACK];
        zero_master_random(random, a.seed, a.t, logical);
        st16(p, each([](auto word, auto random) { return zero_master_round_stochastic(word, random); }, bits(w),
                     ld16(random)));
    } else {
        st16(p, each([](auto word) { return zero_master_round(word); }, bits(w)));
        if constexpr (MODE == ZERO_MASTER_FP32)
            st(static_cast<float *>(master) + at, w);
        else
            st16(static_cast<uint16_t *>(master) + at, bits(w));
    }
}

// ---- the update -----------------------------------------------------------------------------------------------------

template <class O, class P, enum zero_master MODE>
__global__ void __launch_bounds__(256)
    optimizer_kernel(zero_optimizer_arrays arrays, const zero_optimizer_chunk *chunks, zero_optimizer_args a) {
    const zero_optimizer_chunk c = chunks[blockIdx.x];
    if (a.decision) {
        if (a.decision->skip) return;
        a.scale = a.decision->factor;
    }
    float decay = c.decay ? a.weight_decay : 0.0f;
    if (a.tensors) {
        const zero_tensor_args t = a.tensors[c.tensor];
        if (t.frozen) return;
        a.lr = t.lr, a.correction1 = t.correction1, a.correction2 = t.correction2;
        decay = t.decay;
    }
    if (a.parts) arrays = a.parts[c.part];
    P *p = static_cast<P *>(arrays.params) + c.param;
    const float *gradients = arrays.grads + c.grad;
    for (size_t i = threadIdx.x * PACK; i < c.count; i += (size_t)blockDim.x * PACK) {
        fvec state[O::STATES];
        fvec w = ld_weights<MODE>(p + i, arrays.master, c.state + i);
        const fvec g = ld(gradients + i) * a.scale;
        UNROLL for (int s = 0; s < O::STATES; s++) state[s] = ld(arrays.state[s] + c.state + i);
        O::update(w, state, g, decay, a);
        UNROLL for (int s = 0; s < O::STATES; s++) st(arrays.state[s] + c.state + i, state[s]);
        st_weights<MODE>(p + i, arrays.master, c.state + i, w, a, c.logical + i);
        if (!arrays.ema) continue;
        const fvec average = ld(arrays.ema + c.state + i);
        st(arrays.ema + c.state + i, average + a.ema_weight * (w - average));
    }
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
