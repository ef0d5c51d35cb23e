// update.cuh: the update of a chunk, by any optimizer and with weights in every form they are kept. The device's kernel
// (optimizers.cuh) and the host's loop (host.cpp) are this source, and have the same bits.
//
// It reads a pack of 8 weights in whatever form they are kept, the states and the gradient; lets the optimizer update
// them in registers; and writes them back. Every byte is read and written once.
#ifndef ZERO_UPDATE_CUH
#define ZERO_UPDATE_CUH
#include "zero/master_weights.h"
#include "zero/optimizers/optimizers.h"
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

// What a chunk is updated with. False: it stays as it is.
DEV bool chunk_args(const zero_optimizer_chunk &c, zero_optimizer_args &a) {
    if (a.decision) {
        if (a.decision->skip) return false;
        a.scale = a.decision->factor;
    }
    if (!c.decay) a.weight_decay = 0.0f;
    if (!a.tensors) return true;
    const zero_tensor_args t = a.tensors[c.tensor];
    a.lr = t.lr, a.correction1 = t.correction1, a.correction2 = t.correction2;
    a.weight_decay = t.decay;
    return !t.frozen;
}

// Updates the packs that begin at elements first, first + step, ... of a chunk.
template <class O, class P, enum zero_master MODE>
DEV void update_chunk(const zero_optimizer_arrays &arrays, const zero_optimizer_chunk &c, const zero_optimizer_args &a,
                      size_t first, size_t step) {
    P *p = static_cast<P *>(arrays.params) + c.param;
    const float *gradients = arrays.grads + c.grad;
    for (size_t i = first; i < c.count; i += step) {
        fvec state[O::STATES];
        fvec w = ld_weights<MODE>(p + i, arrays.master, c.state + i);
        const fvec g = ld(gradients + i) * a.scale;
        UNROLL for (int s = 0; s < O::STATES; s++) state[s] = ld(arrays.state[s] + c.state + i);
        O::update(w, state, g, a.weight_decay, a);
        UNROLL for (int s = 0; s < O::STATES; s++) st(arrays.state[s] + c.state + i, state[s]);
        st_weights<MODE>(p + i, arrays.master, c.state + i, w, a, c.logical + i);
        if (!arrays.ema) continue;
        const fvec average = ld(arrays.ema + c.state + i);
        st(arrays.ema + c.state + i, average + a.ema_weight * (w - average));
    }
}

#endif
