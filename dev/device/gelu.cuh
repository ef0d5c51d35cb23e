// GELU with tanh, as in GPT-2, and its derivative: x/2 (1 + tanh(s (x + c x^3))) = x sigmoid(2 s (x + c x^3)), with s =
// sqrt(2 / pi) and c = 0.044715. It has a header of its own because two files use it: the model's kernels, and on the
// CPU the matrix product that ends in it.
#ifndef GELU_CUH
#define GELU_CUH

#include "zero/device.cuh"

constexpr float GELU_CUBIC = 0.044715f, GELU_SLOPE = 1.5957691216057308f;  // c, 2 s

DEV fvec gelu_sigmoid(fvec x) { return 1.0f / (1.0f + vexp(-GELU_SLOPE * (x + GELU_CUBIC * x * x * x))); }

DEV fvec gelu(fvec x) { return x * gelu_sigmoid(x); }

DEV fvec gelu_derivative(fvec x) {
    const fvec s = gelu_sigmoid(x), slope = GELU_SLOPE * (1.0f + 3.0f * GELU_CUBIC * x * x);
    return s + x * s * (1.0f - s) * slope;
}

#endif
