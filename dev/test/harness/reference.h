// reference.h: GPT-2 in double precision, from the definitions, for tests to compare with.
//
// Each operation of the model is a function of its own, forward and backward, so that kernels can be compared one by
// one; at the end they are combined into the whole model. Arrays are row-major, without gaps. B: sequences, T:
// positions of a sequence, R = B * T rows, C: channels, NH: heads, V: vocabulary, Vp: V with padding.
//
// "d" before a name: the gradient of the loss with respect to it. Backward functions *add* to all gradients that they
// compute; NULL for one that is not needed. They recompute what they need from the inputs of the forward.
//
// Nothing here fails: the arguments are the test's own, and memory is asserted. Plain C11, no dependency.
#ifndef REFERENCE_H
#define REFERENCE_H
#include <stddef.h>
#ifdef __cplusplus
extern "C" {
#endif

// out[R, C] = wte[ids] + wpe[position]; wte is Vp x C, wpe is maxT x C; rows of dwpe from T on are not touched.
void reference_encoder_forward(double *out, const int *ids, const double *wte, const double *wpe, size_t B, size_t T,
                               size_t C);
void reference_encoder_backward(double *dwte, double *dwpe, const double *dout, const int *ids, size_t B, size_t T,
                                size_t C);

// out = (x - mean) * rstd * weight + bias, row by row; rstd = 1 / sqrt(variance + 1e-5), the variance being over C, not
// C - 1.
void reference_layernorm_moments(const double *x, size_t C, double *mean, double *rstd);
void reference_layernorm_forward(double *out, const double *x, const double *weight, const double *bias, size_t R,
                                 size_t C);
void reference_layernorm_backward(double *dx, double *dweight, double *dbias, const double *dout, const double *x,
                                  const double *weight, size_t R, size_t C);

// out[R, OC] = x[R, C] weight[OC, C]^T + bias[OC]; bias may be NULL.
void reference_linear_forward(double *out, const double *x, const double *weight, const double *bias, size_t R,
                              size_t C, size_t OC);
void reference_linear_backward(double *dx, double *dweight, double *dbias, const double *dout, const double *x,
                               const double *weight, size_t R, size_t C, size_t OC);

// Causal attention. qkv[R, 3C]: a row is q, k, v of C each, cut into NH heads of C / NH. out[R, C]. lse[B, NH, T], the
// logarithm of the sum of exp(score) of each row of scores, or NULL.
void reference_attention_forward(double *out, double *lse, const double *qkv, size_t B, size_t T, size_t C, size_t NH);
void reference_attention_backward(double *dqkv, const double *dout, const double *qkv, size_t B, size_t T, size_t C,
                                  size_t NH);

// The tanh approximation of GELU.
void reference_gelu_forward(double *out, const double *x, size_t n);
void reference_gelu_backward(double *dx, const double *dout, const double *x, size_t n);

// losses[R] = -log softmax(logits over the V real columns)[target], dlogits[R, Vp] += dloss * its gradient, 0 in
// padding columns. Either may be NULL.
void reference_classifier(double *losses, double *dlogits, const double *logits, const int *targets, double dloss,
                          size_t R, size_t V, size_t Vp);

typedef struct reference_config {
    size_t max_seq_len, vocab_size, padded_vocab_size, num_layers, num_heads, channels;
} reference_config;

// The 16 tensors in the order of the model file, each with all its layers one after the other.
enum reference_tensor {
    REFERENCE_WTE,
    REFERENCE_WPE,
    REFERENCE_LN1W,
    REFERENCE_LN1B,
    REFERENCE_QKVW,
    REFERENCE_QKVB,
    REFERENCE_ATTPROJW,
    REFERENCE_ATTPROJB,
    REFERENCE_LN2W,
    REFERENCE_LN2B,
    REFERENCE_FCW,
    REFERENCE_FCB,
    REFERENCE_FCPROJW,
    REFERENCE_FCPROJB,
    REFERENCE_LNFW,
    REFERENCE_LNFB,
    REFERENCE_TENSORS
};
extern const char *const reference_tensor_names[REFERENCE_TENSORS];

// begin[t] is where tensor t begins, in elements; begin[REFERENCE_TENSORS] is the number of parameters.
void reference_tensor_begin(const reference_config *c, size_t begin[REFERENCE_TENSORS + 1]);

// The mean loss over the B * T tokens (0 if targets is NULL). logits[R, Vp] and grads (as long as params; added to) may
// be NULL; grads need targets.
double reference_gpt2(const reference_config *c, const double *params, const int *inputs, const int *targets, size_t B,
                      size_t T, double *logits, double *grads);

#ifdef __cplusplus
}
#endif
#endif
