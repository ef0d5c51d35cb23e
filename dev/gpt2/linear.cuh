// A linear layer: out[R, OC] = inp[R, C] weight[OC, C]^T + bias, forward and backward. dev/device/matmul.h explains the
// three matrix products. With -ge, GELU is fused into two of them, which saves a pass over memory; without, it is a
// kernel.
#ifndef GPT2_LINEAR_CUH
#define GPT2_LINEAR_CUH

#include "device/matmul.h"  // every matrix product: cuBLASLt, or our own on the CPU
#include "gpt2/elementwise.cuh"
#include "gpt2/row_sums.cuh"

static void check_matmul(int err, int fused, int line) {
    if (fused && err == cudaErrorNotSupported)
        fatal(__FILE__, line,
              "cuBLASLt has no matrix product that ends in a GELU for this model on this GPU: use -ge 0");
    check_cuda((cudaError_t)err, "matmul", __FILE__, line);
}

// Queues one of the products of a layer from C to OC channels by `call`. use: its name in a profile.
#define PRODUCT(use, C, OC, fused, stream, call)            \
    do {                                                    \
        profile_begin_product(profile, use, C, OC, stream); \
        check_matmul((call), fused, __LINE__);              \
        profile_end(profile);                               \
    } while (0)

static void linear_forward(floatX *out, const floatX *inp, const floatX *weight, const floatX *bias, size_t R, size_t C,
                           size_t OC, cudaStream_t stream) {
    PRODUCT("forward", C, OC, 0, stream, matmul(out, inp, weight, bias, FLOATX, R, OC, C, 0, 1, 0, stream));
}

// Followed by a GELU: out = gelu(pre_gelu), and pre_gelu[R, OC] is kept for the backward.
static void linear_gelu_forward(floatX *out, floatX *pre_gelu, const floatX *inp, const floatX *weight,
                                const floatX *bias, size_t R, size_t C, size_t OC, int fused, cudaStream_t stream) {
    if (fused) {
        PRODUCT("forward, gelu", C, OC, 1, stream,
                matmul_gelu(out, pre_gelu, inp, weight, bias, FLOATX, R, OC, C, 0, 1, stream));
    } else {
        linear_forward(pre_gelu, inp, weight, bias, R, C, OC, stream);
        gelu_forward(out, pre_gelu, R * OC, stream);
    }
}

// Gradients are written, not added: each tensor is written once. dbias may be NULL. cuBLASLt could sum dbias in the
// product for dweight (BGRADB), but documents neither the order nor the precision of that sum.
static void linear_backward_params(floatX *dweight, floatX *dbias, float *partial, const floatX *dout,
                                   const floatX *inp, size_t R, size_t C, size_t OC, cudaStream_t stream) {
    if (dbias) bias_backward(dbias, partial, dout, R, OC, stream);
    PRODUCT("dweight", C, OC, 0, stream, matmul(dweight, dout, inp, NULL, FLOATX, OC, C, R, 1, 0, 0, stream));
}

static void linear_backward(floatX *dinp, floatX *dweight, floatX *dbias, float *partial, const floatX *dout,
                            const floatX *inp, const floatX *weight, size_t R, size_t C, size_t OC,
                            cudaStream_t stream) {
    linear_backward_params(dweight, dbias, partial, dout, inp, R, C, OC, stream);
    PRODUCT("dinput", C, OC, 0, stream, matmul(dinp, dout, weight, NULL, FLOATX, R, C, OC, 0, 0, 0, stream));
}

// For the rows of a layer in several calls: dweight is a sum in fp32; the first call writes it, the others add to it.
static void linear_backward_rows(floatX *dinp, float *dweight, const floatX *dout, const floatX *inp,
                                 const floatX *weight, size_t R, size_t C, size_t OC, int first, cudaStream_t stream) {
    const int to_fp32 = FLOATX == ZERO_F32 ? MATMUL_F32 : MATMUL_BF16_F32;
    PRODUCT("dweight", C, OC, 0, stream, matmul(dweight, dout, inp, NULL, to_fp32, OC, C, R, 1, 0, !first, stream));
    PRODUCT("dinput", C, OC, 0, stream, matmul(dinp, dout, weight, NULL, FLOATX, R, C, OC, 0, 0, 0, stream));
}

// The backward of a layer whose input is inp = gelu(pre_gelu); dpre_gelu is the gradient of pre_gelu.
static void gelu_linear_backward(floatX *dpre_gelu, floatX *dweight, floatX *dbias, float *partial, const floatX *dout,
                                 const floatX *inp, const floatX *pre_gelu, const floatX *weight, size_t R, size_t C,
                                 size_t OC, int fused, cudaStream_t stream) {
    if (fused) {
        linear_backward_params(dweight, dbias, partial, dout, inp, R, C, OC, stream);
        PRODUCT("dinput, gelu", C, OC, 1, stream,
                matmul_gelu_backward(dpre_gelu, pre_gelu, dout, weight, FLOATX, R, C, OC, 0, 0, stream));
    } else {
        linear_backward(dpre_gelu, dweight, dbias, partial, dout, inp, weight, R, C, OC, stream);
        gelu_backward(dpre_gelu, pre_gelu, R * C, stream);
    }
}

#endif
