// lion.cuh: Lion (Chen et al.: Symbolic Discovery of Optimization Algorithms, NeurIPS 2023, Program 1). In this order
// of operations:
//     c = beta1 * m + (1 - beta1) * g
//     w = w - lr * (sign(c) + decay * w)          sign(0) = 0
//     m = beta2 * m + (1 - beta2) * g
// eps is not used.
#ifndef ZERO_LION_CUH
#define ZERO_LION_CUH

struct lion {
    static constexpr int STATES = 1;  // m

    DEV fvec sign(const fvec &x) {
        const auto one_or_zero = [](auto w) { return (w << 1) != 0u ? (w & 0x80000000u) | 0x3f800000u : w & 0u; };
        return from_bits(each(one_or_zero, bits(x)));
    }

    DEV void update(fvec &w, fvec *state, const fvec &g, float decay, const zero_optimizer_args &a) {
        const fvec c = a.beta1 * state[0] + (1.0f - a.beta1) * g;
        w = w - a.lr * (sign(c) + decay * w);
        state[0] = a.beta2 * state[0] + (1.0f - a.beta2) * g;
    }
};

#endif
