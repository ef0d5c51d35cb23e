// sgd.cuh: stochastic gradient descent with momentum, as in PyTorch's torch.optim.SGD (dampening 0, no Nesterov; weight
// decay is part of the gradient). In this order of operations:
//     m = beta1 * m + (g + decay * w)
//     w = w - lr * m
// beta2 and eps are not used.
#ifndef ZERO_SGD_CUH
#define ZERO_SGD_CUH

struct sgd {
    static constexpr int STATES = 1;  // m

    DEV void update(fvec &w, fvec *state, const fvec &g, float decay, const zero_optimizer_args &a) {
        const fvec m = a.beta1 * state[0] + (g + decay * w);
        w = w - a.lr * m;
        state[0] = m;
    }
};

#endif
