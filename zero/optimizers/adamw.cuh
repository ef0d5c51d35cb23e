// adamw.cuh: AdamW (Loshchilov and Hutter: Decoupled Weight Decay Regularization, ICLR 2019). In this order of
// operations:
//     m = beta1 * m + (1 - beta1) * g
//     v = beta2 * v + ((1 - beta2) * g) * g
//     w = w - lr * ((m / correction1) / (sqrt(v / correction2) + eps) + decay * w)
// with correction1 = 1 - beta1^t and correction2 = 1 - beta2^t, computed in double and rounded to fp32.
#ifndef ZERO_ADAMW_CUH
#define ZERO_ADAMW_CUH

struct adamw {
    static constexpr int STATES = 2;  // m, v

    DEV void update(fvec &w, fvec *state, const fvec &g, float decay, const zero_optimizer_args &a) {
        const fvec m = a.beta1 * state[0] + (1.0f - a.beta1) * g;
        const fvec v = a.beta2 * state[1] + ((1.0f - a.beta2) * g) * g;
        w = w - a.lr * ((m / a.correction1) / (vsqrt(v / a.correction2) + a.eps) + decay * w);
        state[0] = m;
        state[1] = v;
    }
};

#endif
