// reference.c: GPT-2's forward and backward in double precision.
//
// The kernels must agree with it, so it is written to be checked by eye: each function is its definition, as loops,
// with nothing fused, nothing blocked and nothing saved from the forward for the backward. It is slow, and made for
// models of a few thousand parameters. The backward is derived by hand; test_model.cu checks it against finite
// differences of the forward, which need no derivation, so an error would have to be made twice to pass.
//
// The model (Radford et al. 2019): x = wte[token] + wpe[position]; in each layer x += attproj(attention(qkv(ln1(x))))
// and then x += fcproj(gelu(fc(ln2(x)))); logits = lnf(x) wte^T, the head being the token embedding itself.
#include "test/harness/reference.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LAYERNORM_EPSILON 1e-5
#define GELU_SCALE        0.79788456080286535588  // sqrt(2 / pi)
#define GELU_CUBIC        0.044715

static double *zeros(size_t n) {
    double *x = calloc(n ? n : 1, sizeof *x);
    assert(x);
    return x;
}

static double dot(const double *a, const double *b, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

// y += factor * x.
static void add(double *y, double factor, const double *x, size_t n) {
    for (size_t i = 0; i < n; i++) y[i] += factor * x[i];
}

void reference_encoder_forward(double *out, const int *ids, const double *wte, const double *wpe, size_t B, size_t T,
                               size_t C) {
    for (size_t r = 0; r < B * T; r++) {
        for (size_t c = 0; c < C; c++) out[r * C + c] = wte[(size_t)ids[r] * C + c] + wpe[r % T * C + c];
    }
}

void reference_encoder_backward(double *dwte, double *dwpe, const double *dout, const int *ids, size_t B, size_t T,
                                size_t C) {
    for (size_t r = 0; r < B * T; r++) {
        if (dwte) add(dwte + (size_t)ids[r] * C, 1, dout + r * C, C);
        if (dwpe) add(dwpe + r % T * C, 1, dout + r * C, C);
    }
}

void reference_layernorm_moments(const double *x, size_t C, double *mean, double *rstd) {
    double sum = 0, squares = 0;
    for (size_t c = 0; c < C; c++) sum += x[c];
    *mean = sum / (double)C;
    for (size_t c = 0; c < C; c++) squares += (x[c] - *mean) * (x[c] - *mean);
    *rstd = 1 / sqrt(squares / (double)C + LAYERNORM_EPSILON);
}

void reference_layernorm_forward(double *out, const double *x, const double *weight, const double *bias, size_t R,
                                 size_t C) {
    for (size_t r = 0; r < R; r++) {
        double mean, rstd;
        reference_layernorm_moments(x + r * C, C, &mean, &rstd);
        for (size_t c = 0; c < C; c++) out[r * C + c] = (x[r * C + c] - mean) * rstd * weight[c] + bias[c];
    }
}

// With n = (x - mean) rstd and dn = dout * weight: dx = rstd (dn - mean(dn) - n mean(dn n)).
void reference_layernorm_backward(double *dx, double *dweight, double *dbias, const double *dout, const double *x,
                                  const double *weight, size_t R, size_t C) {
    for (size_t r = 0; r < R; r++) {
        double mean, rstd, mean_dn = 0, mean_dn_n = 0;
        reference_layernorm_moments(x + r * C, C, &mean, &rstd);
        for (size_t c = 0; c < C; c++) {
            const double n = (x[r * C + c] - mean) * rstd, d = dout[r * C + c];
            mean_dn += d * weight[c] / (double)C;
            mean_dn_n += d * weight[c] * n / (double)C;
            if (dweight) dweight[c] += d * n;
            if (dbias) dbias[c] += d;
        }
        for (size_t c = 0; c < C; c++) {
            const double n = (x[r * C + c] - mean) * rstd, dn = dout[r * C + c] * weight[c];
            if (dx) dx[r * C + c] += rstd * (dn - mean_dn - n * mean_dn_n);
        }
    }
}

void reference_linear_forward(double *out, const double *x, const double *weight, const double *bias, size_t R,
                              size_t C, size_t OC) {
    for (size_t r = 0; r < R; r++) {
        for (size_t o = 0; o < OC; o++) out[r * OC + o] = dot(x + r * C, weight + o * C, C) + (bias ? bias[o] : 0);
    }
}

void reference_linear_backward(double *dx, double *dweight, double *dbias, const double *dout, const double *x,
                               const double *weight, size_t R, size_t C, size_t OC) {
    for (size_t r = 0; r < R; r++) {
        for (size_t o = 0; o < OC; o++) {
            const double d = dout[r * OC + o];
            if (dx) add(dx + r * C, d, weight + o * C, C);
            if (dweight) add(dweight + o * C, d, x + r * C, C);
            if (dbias) dbias[o] += d;
        }
    }
}

// Row t of one head's softmax(q k^T / sqrt(hs)): p[0..t]. Returns the logarithm of the sum of exp(score).
static double attention_row(double *p, const double *q, const double *k, size_t t, size_t C, size_t hs) {
    double largest = -INFINITY, sum = 0;
    for (size_t s = 0; s <= t; s++) {
        p[s] = dot(q + t * 3 * C, k + s * 3 * C, hs) / sqrt((double)hs);
        largest = fmax(largest, p[s]);
    }
    for (size_t s = 0; s <= t; s++) {
        p[s] = exp(p[s] - largest);
        sum += p[s];
    }
    for (size_t s = 0; s <= t; s++) p[s] /= sum;
    return largest + log(sum);
}

void reference_attention_forward(double *out, double *lse, const double *qkv, size_t B, size_t T, size_t C, size_t NH) {
    const size_t hs = C / NH;
    double *p = zeros(T);
    memset(out, 0, B * T * C * sizeof *out);
    for (size_t i = 0; i < B * NH * T; i++) {
        const size_t b = i / (NH * T), h = i / T % NH, t = i % T;
        const double *q = qkv + b * T * 3 * C + h * hs, *k = q + C, *v = k + C;
        const double row_lse = attention_row(p, q, k, t, C, hs);
        if (lse) lse[i] = row_lse;
        for (size_t s = 0; s <= t; s++) add(out + (b * T + t) * C + h * hs, p[s], v + s * 3 * C, hs);
    }
    free(p);
}

// With dp[s] = dout . v[s]: the scores' gradient is p[s] (dp[s] - sum of p dp), the softmax's own.
void reference_attention_backward(double *dqkv, const double *dout, const double *qkv, size_t B, size_t T, size_t C,
                                  size_t NH) {
    const size_t hs = C / NH;
    double *p = zeros(T), *dp = zeros(T);
    for (size_t i = 0; i < B * NH * T; i++) {
        const size_t b = i / (NH * T), h = i / T % NH, t = i % T, first = b * T * 3 * C + h * hs;
        const double *q = qkv + first, *k = q + C, *v = k + C, *d = dout + (b * T + t) * C + h * hs;
        double *dq = dqkv + first, *dk = dq + C, *dv = dk + C;
        attention_row(p, q, k, t, C, hs);
        for (size_t s = 0; s <= t; s++) dp[s] = dot(d, v + s * 3 * C, hs);
        const double mean_dp = dot(p, dp, t + 1);
        for (size_t s = 0; s <= t; s++) {
            const double dscore = p[s] * (dp[s] - mean_dp) / sqrt((double)hs);
            add(dv + s * 3 * C, p[s], d, hs);
            add(dq + t * 3 * C, dscore, k + s * 3 * C, hs);
            add(dk + s * 3 * C, dscore, q + t * 3 * C, hs);
        }
    }
    free(p);
    free(dp);
}

void reference_gelu_forward(double *out, const double *x, size_t n) {
    for (size_t i = 0; i < n; i++)
        out[i] = 0.5 * x[i] * (1 + tanh(GELU_SCALE * (x[i] + GELU_CUBIC * x[i] * x[i] * x[i])));
}

void reference_gelu_backward(double *dx, const double *dout, const double *x, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const double th = tanh(GELU_SCALE * (x[i] + GELU_CUBIC * x[i] * x[i] * x[i]));
        const double dinner = GELU_SCALE * (1 + 3 * GELU_CUBIC * x[i] * x[i]);
        dx[i] += dout[i] * (0.5 * (1 + th) + 0.5 * x[i] * (1 - th * th) * dinner);
    }
}

void reference_classifier(double *losses, double *dlogits, const double *logits, const int *targets, double dloss,
                          size_t R, size_t V, size_t Vp) {
    for (size_t r = 0; r < R; r++) {
        const double *x = logits + r * Vp;
        const size_t target = (size_t)targets[r];
        double largest = -INFINITY, sum = 0;
        for (size_t c = 0; c < V; c++) largest = fmax(largest, x[c]);
        for (size_t c = 0; c < V; c++) sum += exp(x[c] - largest);
        if (losses) losses[r] = log(sum) + largest - x[target];
        for (size_t c = 0; dlogits && c < V; c++)
            dlogits[r * Vp + c] += dloss * (exp(x[c] - largest) / sum - (c == target));
    }
}

const char *const reference_tensor_names[REFERENCE_TENSORS] = { "wte",      "wpe",      "ln1w", "ln1b", "qkvw", "qkvb",
                                                                "attprojw", "attprojb", "ln2w", "ln2b", "fcw",  "fcb",
                                                                "fcprojw",  "fcprojb",  "lnfw", "lnfb" };

void reference_tensor_begin(const reference_config *c, size_t begin[REFERENCE_TENSORS + 1]) {
    const size_t L = c->num_layers, C = c->channels;
    const size_t numel[REFERENCE_TENSORS] = { c->padded_vocab_size * C,
                                              c->max_seq_len * C,
                                              L * C,
                                              L * C,
                                              L * 3 * C * C,
                                              L * 3 * C,
                                              L * C * C,
                                              L * C,
                                              L * C,
                                              L * C,
                                              L * 4 * C * C,
                                              L * 4 * C,
                                              L * C * 4 * C,
                                              L * C,
                                              C,
                                              C };
    begin[0] = 0;
    for (size_t t = 0; t < REFERENCE_TENSORS; t++) begin[t + 1] = begin[t] + numel[t];
}

// One layer's part of the 16 tensors, in the parameters or in the gradients.
typedef struct {
    double *at[REFERENCE_TENSORS];
} Weights;

static Weights layer_weights(const reference_config *c, double *base, size_t layer) {
    size_t begin[REFERENCE_TENSORS + 1];
    Weights w;
    reference_tensor_begin(c, begin);
    for (int t = 0; t < REFERENCE_TENSORS; t++) {
        const int per_layer = t >= REFERENCE_LN1W && t <= REFERENCE_FCPROJB;
        w.at[t] = base + begin[t] + (per_layer ? (begin[t + 1] - begin[t]) / c->num_layers * layer : 0);
    }
    return w;
}

// What a layer computes. x is its input, mid is x after the attention.
typedef struct {
    double *x, *ln1, *qkv, *att, *mid, *ln2, *fc, *gelu;
} Layer;

// RC: rows times channels.
static Layer layer_create(size_t RC) {
    return (
        Layer){ zeros(RC), zeros(RC), zeros(3 * RC), zeros(RC), zeros(RC), zeros(RC), zeros(4 * RC), zeros(4 * RC) };
}

static void layer_destroy(Layer *a) {
    double *all[] = { a->x, a->ln1, a->qkv, a->att, a->mid, a->ln2, a->fc, a->gelu };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

static void layer_forward(double *out, const Layer *a, const Weights *w, size_t B, size_t T, size_t C, size_t NH) {
    const size_t R = B * T;
    reference_layernorm_forward(a->ln1, a->x, w->at[REFERENCE_LN1W], w->at[REFERENCE_LN1B], R, C);
    reference_linear_forward(a->qkv, a->ln1, w->at[REFERENCE_QKVW], w->at[REFERENCE_QKVB], R, C, 3 * C);
    reference_attention_forward(a->att, NULL, a->qkv, B, T, C, NH);
    reference_linear_forward(a->mid, a->att, w->at[REFERENCE_ATTPROJW], w->at[REFERENCE_ATTPROJB], R, C, C);
    add(a->mid, 1, a->x, R * C);
    reference_layernorm_forward(a->ln2, a->mid, w->at[REFERENCE_LN2W], w->at[REFERENCE_LN2B], R, C);
    reference_linear_forward(a->fc, a->ln2, w->at[REFERENCE_FCW], w->at[REFERENCE_FCB], R, C, 4 * C);
    reference_gelu_forward(a->gelu, a->fc, R * 4 * C);
    reference_linear_forward(out, a->gelu, w->at[REFERENCE_FCPROJW], w->at[REFERENCE_FCPROJB], R, 4 * C, C);
    add(out, 1, a->mid, R * C);
}

// dx: the gradient of the layer's output on entry, of its input on return. The residual connections make it a running
// sum.
static void layer_backward(double *dx, const Layer *a, const Weights *w, const Weights *dw, size_t B, size_t T,
                           size_t C, size_t NH) {
    const size_t R = B * T;
    Layer d = layer_create(R * C);
    reference_linear_backward(d.gelu, dw->at[REFERENCE_FCPROJW], dw->at[REFERENCE_FCPROJB], dx, a->gelu,
                              w->at[REFERENCE_FCPROJW], R, 4 * C, C);
    reference_gelu_backward(d.fc, d.gelu, a->fc, R * 4 * C);
    reference_linear_backward(d.ln2, dw->at[REFERENCE_FCW], dw->at[REFERENCE_FCB], d.fc, a->ln2, w->at[REFERENCE_FCW],
                              R, C, 4 * C);
    reference_layernorm_backward(dx, dw->at[REFERENCE_LN2W], dw->at[REFERENCE_LN2B], d.ln2, a->mid,
                                 w->at[REFERENCE_LN2W], R, C);
    reference_linear_backward(d.att, dw->at[REFERENCE_ATTPROJW], dw->at[REFERENCE_ATTPROJB], dx, a->att,
                              w->at[REFERENCE_ATTPROJW], R, C, C);
    reference_attention_backward(d.qkv, d.att, a->qkv, B, T, C, NH);
    reference_linear_backward(d.ln1, dw->at[REFERENCE_QKVW], dw->at[REFERENCE_QKVB], d.qkv, a->ln1,
                              w->at[REFERENCE_QKVW], R, C, 3 * C);
    reference_layernorm_backward(dx, dw->at[REFERENCE_LN1W], dw->at[REFERENCE_LN1B], d.ln1, a->x, w->at[REFERENCE_LN1W],
                                 R, C);
    layer_destroy(&d);
}

double reference_gpt2(const reference_config *c, const double *params, const int *inputs, const int *targets, size_t B,
                      size_t T, double *logits, double *grads) {
    const size_t R = B * T, C = c->channels, L = c->num_layers, NH = c->num_heads, V = c->vocab_size,
                 Vp = c->padded_vocab_size;
    const Weights w0 = layer_weights(c, (double *)params, 0);  // read only: one struct serves parameters and
                                                               // gradients
    Layer *layer = malloc((L + 1) * sizeof *layer);            // layer[L]: x is the last layer's output, ln1 its
                                                               // layernorm
    double *own_logits = logits ? NULL : zeros(R * Vp), loss = 0;
    assert(layer && (targets || !grads));
    if (!logits) logits = own_logits;

    for (size_t l = 0; l <= L; l++) layer[l] = layer_create(R * C);
    reference_encoder_forward(layer[0].x, inputs, w0.at[REFERENCE_WTE], w0.at[REFERENCE_WPE], B, T, C);
    for (size_t l = 0; l < L; l++) {
        const Weights w = layer_weights(c, (double *)params, l);
        layer_forward(layer[l + 1].x, &layer[l], &w, B, T, C, NH);
    }
    reference_layernorm_forward(layer[L].ln1, layer[L].x, w0.at[REFERENCE_LNFW], w0.at[REFERENCE_LNFB], R, C);
    reference_linear_forward(logits, layer[L].ln1, w0.at[REFERENCE_WTE], NULL, R, C, Vp);

    if (targets) {
        double *losses = zeros(R);
        reference_classifier(losses, NULL, logits, targets, 0, R, V, Vp);
        for (size_t r = 0; r < R; r++) loss += losses[r] / (double)R;
        free(losses);
    }
    if (grads) {
        const Weights dw0 = layer_weights(c, grads, 0);
        double *dlogits = zeros(R * Vp), *dlnf = zeros(R * C), *dx = zeros(R * C);
        reference_classifier(NULL, dlogits, logits, targets, 1 / (double)R, R, V, Vp);
        reference_linear_backward(dlnf, dw0.at[REFERENCE_WTE], NULL, dlogits, layer[L].ln1, w0.at[REFERENCE_WTE], R, C,
                                  Vp);
        reference_layernorm_backward(dx, dw0.at[REFERENCE_LNFW], dw0.at[REFERENCE_LNFB], dlnf, layer[L].x,
                                     w0.at[REFERENCE_LNFW], R, C);
        for (size_t l = L; l-- > 0;) {
            const Weights w = layer_weights(c, (double *)params, l), dw = layer_weights(c, grads, l);
            layer_backward(dx, &layer[l], &w, &dw, B, T, C, NH);
        }
        reference_encoder_backward(dw0.at[REFERENCE_WTE], dw0.at[REFERENCE_WPE], dx, inputs, B, T, C);
        free(dlogits);
        free(dlnf);
        free(dx);
    }
    for (size_t l = 0; l <= L; l++) layer_destroy(&layer[l]);
    free(layer);
    free(own_logits);
    return loss;
}
