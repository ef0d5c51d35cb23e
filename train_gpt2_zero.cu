// GPT-2, trained from scratch in one readable file, with its parameters, gradients and optimizer state sharded over the
// ranks (zero/).
//
// The first part is the model: kernels, configuration, tensors, forward, backward. It knows nothing about ranks or
// stages. Where its parameters are, and where its gradients go, it asks a GPT2Units (the engine, or plain buffers in a
// test), one unit at a time:
//     unit 0         the embeddings wte (which is also the head) and wpe, and the final layernorm
//     unit 1 + l     the twelve tensors of layer l
// A unit is acquired just before it is used and released just after, so that a sharded run never has to hold more than
// a few.
//
// The same source runs on a GPU and on a CPU (zero/device.cuh says how). Kernels work on packs of 8 elements, compute
// in fp32 and store floatX: float, or bf16 with -DPRECISION_BF16. Moments, log-sum-exps, losses and partial sums are
// always fp32.
//
// Everything is deterministic. There are no floating-point atomics; a sum over rows is cut into chunks by the shape of
// the problem, never by the number of threads, and chunks are added in ascending order. So the same input gives the
// same bits in every run, and recomputing an activation in the backward, to save memory, changes nothing.
//
// Names: B sequences of T tokens, R = B * T rows; C channels, NH heads of size HS; L layers; V words, Vp with padding.
// All arrays are row-major. A "d" before a name means the gradient of the loss with respect to it.
#define OMPI_SKIP_MPICXX 1  // only the C interface of Open MPI: the C++ one does not compile without warnings
#include <mpi.h>

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpt2/attention.cuh"
#include "gpt2/classifier.cuh"
#include "gpt2/encoder.cuh"
#include "gpt2/layernorm.cuh"
#include "gpt2/linear.cuh"
#include "gpt2/tensors.h"
#include "zero/accounting.h"  // accounted device memory
#include "zero/comm/mesh.h"   // hooks of tensor and pipeline parallelism
#include "zero/layout.h"      // zero_tensor; where a tensor lies in its unit
#include "zero/nvtx.h"        // names in a profiler's timeline

#define FAIL(...) (snprintf(err, err_bytes, __VA_ARGS__), -1)

// ---------------------------------------------------------------------------------------------------------------------
// The model.

// Where the model gets its units from. All pointers are device memory, laid out as zero_layout says: tensor t at
// element tensor_offset[t] of its unit. A gradient buffer is zero when acquired. The functions never fail: the provider
// ends the job itself.
typedef struct GPT2Units {
    void *ctx;
    void *(*acquire_params)(void *ctx, size_t unit);
    void (*release_params)(void *ctx, size_t unit);
    void *(*acquire_grads)(void *ctx, size_t unit);
    void (*release_grads)(void *ctx, size_t unit);
} GPT2Units;

// All in one allocation. X: floatX, or, to ask about another build, its type. What exists per layer begins with layer
// 0's; strides are those of the largest R.
template <class X> struct ActivationsOf {
    X *residual;              // [L + 1, R, C]: the input of each layer, and the output of the last
    X *normed;                // [2 L + 1, R, C]: outputs of ln1 and ln2 of each layer, of lnf; one slot for all
                              // if recomputed
    X *qkv, *atty;            // [L, R, 3C], [L, R, C]
    X *attended;              // [L, R, C]: residual stream after the attention
    X *fch, *fch_gelu;        // [L, R, 4C], before and after GELU; one slot of the second if recomputed
    X *logits;                // [R, Vp], then their gradients
    float *mean, *rstd;       // [2 L + 1, R], as normed
    float *lse;               // [L, B, NH, T]
    float *losses;            // [R]
    X *dresidual;             // [R, C]
    X *dnarrow;               // [R, C]: the gradient of a layernorm's output, or of atty
    X *dwide;                 // [R, 4C]: the gradient of fch_gelu and fch, or of qkv
    char *attention_scratch;  // attention's own, see there
    float *partial;           // [max_chunks(R), 4C]: sums over rows
    int *inputs, *targets;    // [R]
    TokenRows rows;           // of inputs, for the encoder's backward
};
typedef ActivationsOf<floatX> Activations;

typedef struct GPT2 {
    GPT2Config config;
    size_t B, T;          // of the last forward
    size_t max_B, max_T;  // of gpt2_create
    int recompute;
    int gelu_fusion;  // GELU is done by the matrix product: 0 never (gpt2_create's choice), 1 forward, 2
                      // and backward
    GPT2Units units;
    zero_mesh mesh;
    zero_accounting *memory;
    cudaStream_t stream;
    size_t first_layer, last_layer;                   // [first, last) of this stage of the pipeline
    size_t embedding_offset[GPT2_EMBEDDING_TENSORS];  // of the tensors in unit 0, in elements
    size_t layer_offset[GPT2_LAYER_TENSORS];          // of the tensors in a layer's unit
    Activations acts;
    void *arena;  // where acts point to
    size_t arena_bytes;
    floatX *logits;        // [B * T, Vp], device; after a forward with train they are gradients
    float *host_losses;    // [R], pinned
    int *host_tokens;      // [5 R + 1], pinned: inputs, targets, TokenRows, on their way to the device
    cudaEvent_t uploaded;  // they have arrived
    int *host_counts;      // [V + 1]
    size_t distinct;       // tokens in the last inputs
} GPT2;

// Takes count elements from the arena, or, with arena NULL, only counts their bytes. 256: CUDA's own alignment.
template <class T> static void take(T **ptr, size_t count, void *arena, size_t *used) {
    *ptr = arena ? (T *)((char *)arena + *used) : NULL;
    *used += ceil_div(count * sizeof(T), 256) * 256;
}

// Lays the activations out in the arena and returns its bytes.
template <class X>
static size_t place_activations(ActivationsOf<X> *a, const GPT2Config *c, size_t B, size_t T, int recompute,
                                void *arena) {
    const size_t R = B * T, L = c->num_layers, C = c->channels, norms = 2 * L + 1;
    size_t used = 0;
    take(&a->residual, (L + 1) * R * C, arena, &used);
    take(&a->normed, (recompute < 2 ? norms : 1) * R * C, arena, &used);
    take(&a->qkv, L * R * 3 * C, arena, &used);
    take(&a->atty, L * R * C, arena, &used);
    take(&a->attended, L * R * C, arena, &used);
    take(&a->fch, L * R * 4 * C, arena, &used);
    take(&a->fch_gelu, (recompute < 1 ? L : 1) * R * 4 * C, arena, &used);
    take(&a->logits, R * c->padded_vocab_size, arena, &used);
    take(&a->mean, norms * R, arena, &used);
    take(&a->rstd, norms * R, arena, &used);
    take(&a->lse, L * R * c->num_heads, arena, &used);
    take(&a->losses, R, arena, &used);
    take(&a->dresidual, R * C, arena, &used);
    take(&a->dnarrow, R * C, arena, &used);
    take(&a->dwide, R * 4 * C, arena, &used);
    take(&a->attention_scratch, attention_scratch<X>(B, T, c->num_heads), arena, &used);
    take(&a->partial, max_chunks(R) * 4 * C, arena, &used);
    take(&a->inputs, R, arena, &used);
    take(&a->targets, R, arena, &used);
    take(&a->rows.token, R, arena, &used);
    take(&a->rows.start, R + 1, arena, &used);
    take(&a->rows.position, R, arena, &used);
    return used;
}

// What gpt2_create books under ZERO_MEM_ACTIVATIONS, in a build of that precision.
size_t gpt2_activation_bytes(const GPT2Config *c, size_t B, size_t T, int recompute,
                             enum zero_dtype precision = FLOATX) {
    ActivationsOf<bf16> half;
    ActivationsOf<float> single;
    if (precision == ZERO_BF16) return place_activations(&half, c, B, T, recompute, NULL);
    return place_activations(&single, c, B, T, recompute, NULL);
}

// Frees what gpt2_create took; a GPT2 that is all zeros, or from a gpt2_create that failed, is fine.
void gpt2_destroy(GPT2 *m) {
    if (m->arena) zero_accounting_free(m->memory, ZERO_MEM_ACTIVATIONS, m->arena, m->arena_bytes);
    if (m->uploaded) cudaCheck(cudaEventDestroy(m->uploaded));
    if (m->host_losses) cudaCheck(cudaFreeHost(m->host_losses));
    if (m->host_tokens) cudaCheck(cudaFreeHost(m->host_tokens));
    free(m->host_counts);
    memset(m, 0, sizeof *m);
}

// Offsets of the tensors in their units do not depend on the number of ranks, so a layout for one rank knows them.
static int find_offsets(GPT2 *m, char *err, size_t err_bytes) {
    const size_t n = gpt2_num_tensors(&m->config);
    const char *why = "out of host memory";
    zero_layout layout;
    zero_tensor *tensors = (zero_tensor *)malloc(n * sizeof *tensors);
    if (tensors) gpt2_tensors(&m->config, tensors);
    const int status = tensors ? zero_layout_create(&layout, tensors, n, 1, &why) : -1;
    free(tensors);
    if (status) return FAIL("no layout for this model: %s", why);
    memcpy(m->embedding_offset, layout.tensor_offset, sizeof m->embedding_offset);
    memcpy(m->layer_offset, layout.tensor_offset + GPT2_EMBEDDING_TENSORS, sizeof m->layer_offset);
    zero_layout_destroy(&layout);
    return 0;
}

// Host memory that copies to and from the device need not wait for; NULL if there is none.
static void *pinned(size_t bytes) {
    void *p = NULL;
    if (cudaMallocHost(&p, bytes) == cudaSuccess) return p;
    (void)cudaGetLastError();
    return NULL;
}

// For up to B sequences of up to T tokens. recompute: 0 keeps all activations, 1 recomputes GELU in the backward, 2
// layernorms too; the results are the same bits. (On a GPU with gelu_fusion they are not: its forward takes the GELU of
// a sum that is not yet rounded.) units and mesh are copied; memory must outlive the model. All work is queued on
// stream. Returns 0, or -1 with a message in err (m is then all zeros). Not collective.
int gpt2_create(GPT2 *m, const GPT2Config *c, size_t B, size_t T, int recompute, const GPT2Units *units,
                const zero_mesh *mesh, zero_accounting *memory, cudaStream_t stream, char *err, size_t err_bytes) {
    const size_t R = B * T;
    memset(m, 0, sizeof *m);
    if (gpt2_config_check(c, err, err_bytes)) return -1;
    if (!B || !T || B > (1u << 30) / T)
        return FAIL("-b %zu -t %zu: both must be at least 1, their product at most 2^30", B, T);
    if (T > c->max_seq_len)
        return FAIL("-t %zu: the model has only %zu positions; use a smaller -t", T, c->max_seq_len);
    if (recompute < 0 || recompute > 2) return FAIL("-r %d: must be 0, 1 (GELU) or 2 (GELU and layernorms)", recompute);
    if constexpr (ATTENTION_CUDNN) {
        if (attention_cudnn_prepare(B, T, c->num_heads, c->channels / c->num_heads, 1))
            return FAIL("%s", attention_cudnn_error());
    }
    m->config = *c;
    m->max_B = B;
    m->max_T = T;
    m->recompute = recompute;
    m->units = *units;
    m->mesh = *mesh;
    m->memory = memory;
    m->stream = stream;
    zero_pp_units(mesh, c->num_layers, &m->first_layer, &m->last_layer);
    if (find_offsets(m, err, err_bytes)) {
        gpt2_destroy(m);
        return -1;
    }
    m->arena_bytes = gpt2_activation_bytes(c, B, T, recompute);
    m->arena = zero_accounting_alloc(memory, ZERO_MEM_ACTIVATIONS, m->arena_bytes);
    m->host_losses = (float *)pinned(R * sizeof(float));
    m->host_tokens = (int *)pinned((5 * R + 1) * sizeof(int));
    m->host_counts = (int *)malloc((c->vocab_size + 1) * sizeof(int));
    cudaCheck(cudaEventCreateWithFlags(&m->uploaded, cudaEventDisableTiming));
    if (!m->arena || !m->host_losses || !m->host_tokens || !m->host_counts) {
        const double mib = (double)m->arena_bytes / (1 << 20);
        gpt2_destroy(m);
        return FAIL("no memory for %.0f MiB of activations: use a smaller -b or -t, or -r 2", mib);
    }
    place_activations(&m->acts, c, B, T, recompute, m->arena);
    m->logits = m->acts.logits;
    return 0;
}

// ---------------------------------------------------------------------------------------------------------------------
// Forward.

// Where layer l's activations are.
typedef struct LayerActivations {
    floatX *residual, *ln1, *qkv, *atty, *attended, *ln2, *fch, *fch_gelu, *out;
    float *ln1_mean, *ln1_rstd, *lse, *ln2_mean, *ln2_rstd;
} LayerActivations;

static LayerActivations layer_activations(const GPT2 *m, size_t l) {
    const size_t R = m->max_B * m->max_T, RC = R * m->config.channels;
    const Activations *a = &m->acts;
    LayerActivations x;
    x.residual = a->residual + l * RC;
    x.ln1 = a->normed + (m->recompute < 2 ? 2 * l * RC : 0);
    x.ln1_mean = a->mean + 2 * l * R;
    x.ln1_rstd = a->rstd + 2 * l * R;
    x.qkv = a->qkv + l * 3 * RC;
    x.lse = a->lse + l * R * m->config.num_heads;
    x.atty = a->atty + l * RC;
    x.attended = a->attended + l * RC;
    x.ln2 = a->normed + (m->recompute < 2 ? (2 * l + 1) * RC : 0);
    x.ln2_mean = x.ln1_mean + R;
    x.ln2_rstd = x.ln1_rstd + R;
    x.fch = a->fch + l * 4 * RC;
    x.fch_gelu = a->fch_gelu + (m->recompute < 1 ? l * 4 * RC : 0);
    x.out = x.residual + RC;
    return x;
}

// The final layernorm.
typedef struct FinalActivations {
    floatX *inp, *out;
    float *mean, *rstd;
} FinalActivations;

static FinalActivations final_activations(const GPT2 *m) {
    const size_t R = m->max_B * m->max_T, RC = R * m->config.channels, L = m->config.num_layers;
    const Activations *a = &m->acts;
    floatX *out = a->normed + (m->recompute < 2 ? 2 * L * RC : 0);
    return FinalActivations{ a->residual + L * RC, out, a->mean + 2 * L * R, a->rstd + 2 * L * R };
}

static floatX *acquire_params(GPT2 *m, size_t unit) { return (floatX *)m->units.acquire_params(m->units.ctx, unit); }
static floatX *acquire_grads(GPT2 *m, size_t unit) { return (floatX *)m->units.acquire_grads(m->units.ctx, unit); }
static void release_params(GPT2 *m, size_t unit) { m->units.release_params(m->units.ctx, unit); }
static void release_grads(GPT2 *m, size_t unit) { m->units.release_grads(m->units.ctx, unit); }

static void check_tokens(const GPT2 *m, const int *tokens, size_t n, const char *what) {
    for (size_t i = 0; i < n; i++) {
        if (tokens[i] < 0 || (size_t)tokens[i] >= m->config.vocab_size)
            fatal(__FILE__, __LINE__,
                  "%s: token %d is not in the vocabulary of %zu: are the data files for another model?", what,
                  tokens[i], m->config.vocab_size);
    }
}

static void upload(const GPT2 *m, int *to, const int *from, size_t n) {
    cudaCheck(cudaMemcpyAsync(to, from, n * sizeof(int), cudaMemcpyHostToDevice, m->stream));
}

// By way of pinned memory, so that the host need not wait for the device.
static void upload_tokens(const GPT2 *m, int *to, const int *tokens, int *staging) {
    memcpy(staging, tokens, m->B * m->T * sizeof(int));
    upload(m, to, staging, m->B * m->T);
}

// Sorts the rows by their token, by counting, so that the encoder's backward has one writer for each row of dwte.
static void upload_token_rows(GPT2 *m, const int *inputs) {
    const size_t V = m->config.vocab_size;
    const int R = (int)(m->B * m->T);
    int *token = m->host_tokens + 2 * R, *position = token + R, *start = position + R, *place = m->host_counts;
    memset(place, 0, (V + 1) * sizeof(int));
    for (int r = 0; r < R; r++) place[inputs[r] + 1]++;
    m->distinct = 0;
    for (size_t v = 0; v < V; v++) {
        if (place[v + 1]) {
            token[m->distinct] = (int)v;
            start[m->distinct++] = place[v];
        }
        place[v + 1] += place[v];
    }
    start[m->distinct] = R;
    for (int r = 0; r < R; r++) position[place[inputs[r]]++] = r;
    upload(m, m->acts.rows.token, token, m->distinct);
    upload(m, m->acts.rows.start, start, m->distinct + 1);
    upload(m, m->acts.rows.position, position, R);
}

// A bias of a row-parallel product is added by one of the tensor-parallel ranks, before the sum.
static const floatX *bias_once(const GPT2 *m, const floatX *bias) { return m->mesh.tensor_rank == 0 ? bias : NULL; }

static void layer_forward(GPT2 *m, size_t l) {
    const size_t B = m->B, T = m->T, C = m->config.channels, NH = m->config.num_heads, R = B * T;
    const size_t *offset = m->layer_offset;
    const LayerActivations x = layer_activations(m, l);
    cudaStream_t s = m->stream;
    floatX *branch = m->acts.dnarrow;  // free until the backward
    const floatX *p = acquire_params(m, 1 + l);

    layernorm_forward(x.ln1, x.ln1_mean, x.ln1_rstd, x.residual, p + offset[LN1W], p + offset[LN1B], R, C, s);
    zeroCheck(zero_tp_copy(&m->mesh, x.ln1, FLOATX, R * C, s));
    linear_forward(x.qkv, x.ln1, p + offset[QKVW], p + offset[QKVB], R, C, 3 * C, s);
    attention_forward(x.atty, x.lse, m->acts.attention_scratch, x.qkv, B, T, C, NH, s);
    linear_forward(branch, x.atty, p + offset[ATTPROJW], bias_once(m, p + offset[ATTPROJB]), R, C, C, s);
    zeroCheck(zero_tp_reduce(&m->mesh, branch, FLOATX, R * C, s));
    residual(x.attended, x.residual, branch, R * C, s);

    layernorm_forward(x.ln2, x.ln2_mean, x.ln2_rstd, x.attended, p + offset[LN2W], p + offset[LN2B], R, C, s);
    zeroCheck(zero_tp_copy(&m->mesh, x.ln2, FLOATX, R * C, s));
    linear_gelu_forward(x.fch_gelu, x.fch, x.ln2, p + offset[FCW], p + offset[FCB], R, C, 4 * C, m->gelu_fusion >= 1,
                        s);
    linear_forward(branch, x.fch_gelu, p + offset[FCPROJW], bias_once(m, p + offset[FCPROJB]), R, 4 * C, C, s);
    zeroCheck(zero_tp_reduce(&m->mesh, branch, FLOATX, R * C, s));
    residual(x.out, x.attended, branch, R * C, s);
    release_params(m, 1 + l);
}

// inputs, targets: host int[B * T], tokens below vocab_size; B and T at most those of gpt2_create. All ranks that share
// the units must call. targets NULL: inference; the logits of all positions are left in m->logits. Else the losses are
// computed, for gpt2_loss; and if train, the logits become their gradients, scaled by 1 / (B * T), and gpt2_backward
// may follow.
void gpt2_forward(GPT2 *m, const int *inputs, const int *targets, size_t B, size_t T, int train) {
    const size_t V = m->config.vocab_size, Vp = m->config.padded_vocab_size, C = m->config.channels, R = B * T;
    const Activations *a = &m->acts;
    const FinalActivations f = final_activations(m);
    cudaStream_t s = m->stream;
    if (!B || !T || B > m->max_B || T > m->max_T || (train && !targets))
        fatal(__FILE__, __LINE__, "gpt2_forward: B %zu T %zu train %d, but the model was made for B %zu T %zu", B, T,
              train, m->max_B, m->max_T);
    check_tokens(m, inputs, R, "inputs");
    if (targets) check_tokens(m, targets, R, "targets");
    m->B = B;
    m->T = T;
    cudaCheck(cudaEventSynchronize(m->uploaded));  // the last micro-batch's have left: it has begun
    upload_tokens(m, a->inputs, inputs, m->host_tokens);
    if (targets) upload_tokens(m, a->targets, targets, m->host_tokens + R);
    if (train) upload_token_rows(m, inputs);
    cudaCheck(cudaEventRecord(m->uploaded, s));

    zero_nvtx_push("forward", 0);
    const floatX *p = acquire_params(m, 0);
    encoder_forward(a->residual, a->inputs, p + m->embedding_offset[WTE], p + m->embedding_offset[WPE], B, T, C, s);
    release_params(m, 0);
    zero_nvtx_pop();

    zeroCheck(zero_pp_recv(&m->mesh, layer_activations(m, m->first_layer).residual, FLOATX, R * C, s));
    for (size_t l = m->first_layer; l < m->last_layer; l++) {
        zero_nvtx_push("forward", 1 + l);
        layer_forward(m, l);
        zero_nvtx_pop();
    }
    zeroCheck(zero_pp_send(&m->mesh, layer_activations(m, m->last_layer).residual, FLOATX, R * C, s));

    zero_nvtx_push("head", 0);
    p = acquire_params(m, 0);
    layernorm_forward(f.out, f.mean, f.rstd, f.inp, p + m->embedding_offset[LNFW], p + m->embedding_offset[LNFB], R, C,
                      s);
    linear_forward(m->logits, f.out, p + m->embedding_offset[WTE], NULL, R, C, Vp, s);
    release_params(m, 0);
    if (targets) classifier(m->logits, a->losses, a->targets, 1.0f / (float)R, R, V, Vp, train, s);
    zero_nvtx_pop();
}

// Queues a copy of the losses of the last forward, which had targets: to[B * T], pinned. Not collective.
void gpt2_copy_losses(const GPT2 *m, float *to) {
    cudaCheck(cudaMemcpyAsync(to, m->acts.losses, m->B * m->T * sizeof(float), cudaMemcpyDeviceToHost, m->stream));
}

// Of n fp32 losses, added in double, in order.
double gpt2_mean_loss(const float *losses, size_t n) {
    double sum = 0;
    for (size_t r = 0; r < n; r++) sum += losses[r];
    return sum / (double)n;
}

// The mean loss of the last forward, which had targets. Waits for the stream. Not collective.
double gpt2_loss(GPT2 *m) {
    gpt2_copy_losses(m, m->host_losses);
    cudaCheck(cudaStreamSynchronize(m->stream));
    return gpt2_mean_loss(m->host_losses, m->B * m->T);
}

// ---------------------------------------------------------------------------------------------------------------------
// Backward. dresidual is the gradient of the residual stream, on its way from the head to the embeddings.

static void layer_backward(GPT2 *m, size_t l) {
    const size_t B = m->B, T = m->T, C = m->config.channels, NH = m->config.num_heads, R = B * T;
    const size_t *offset = m->layer_offset;
    const LayerActivations x = layer_activations(m, l);
    const Activations *a = &m->acts;
    floatX *dresidual = a->dresidual, *dnarrow = a->dnarrow, *dwide = a->dwide;
    cudaStream_t s = m->stream;
    const floatX *p = acquire_params(m, 1 + l);
    floatX *g = acquire_grads(m, 1 + l);

    if (m->recompute >= 1) gelu_forward(x.fch_gelu, x.fch, R * 4 * C, s);
    gelu_linear_backward(dwide, g + offset[FCPROJW], g + offset[FCPROJB], a->partial, dresidual, x.fch_gelu, x.fch,
                         p + offset[FCPROJW], R, 4 * C, C, m->gelu_fusion >= 2, s);
    if (m->recompute >= 2)
        layernorm_forward(x.ln2, x.ln2_mean, x.ln2_rstd, x.attended, p + offset[LN2W], p + offset[LN2B], R, C, s);
    linear_backward(dnarrow, g + offset[FCW], g + offset[FCB], a->partial, dwide, x.ln2, p + offset[FCW], R, C, 4 * C,
                    s);
    zeroCheck(zero_tp_reduce(&m->mesh, dnarrow, FLOATX, R * C, s));
    layernorm_backward(dresidual, g + offset[LN2W], g + offset[LN2B], a->partial, dnarrow, x.attended, p + offset[LN2W],
                       x.ln2_mean, x.ln2_rstd, R, C, s);

    linear_backward(dnarrow, g + offset[ATTPROJW], g + offset[ATTPROJB], a->partial, dresidual, x.atty,
                    p + offset[ATTPROJW], R, C, C, s);
    attention_backward(dwide, a->attention_scratch, dnarrow, x.atty, x.qkv, x.lse, B, T, C, NH, s);
    if (m->recompute >= 2)
        layernorm_forward(x.ln1, x.ln1_mean, x.ln1_rstd, x.residual, p + offset[LN1W], p + offset[LN1B], R, C, s);
    linear_backward(dnarrow, g + offset[QKVW], g + offset[QKVB], a->partial, dwide, x.ln1, p + offset[QKVW], R, C,
                    3 * C, s);
    zeroCheck(zero_tp_reduce(&m->mesh, dnarrow, FLOATX, R * C, s));
    layernorm_backward(dresidual, g + offset[LN1W], g + offset[LN1B], a->partial, dnarrow, x.residual, p + offset[LN1W],
                       x.ln1_mean, x.ln1_rstd, R, C, s);
    release_grads(m, 1 + l);
    release_params(m, 1 + l);
}

// The gradients of the last forward, which had train set, to the units' gradient buffers. wte is used at both ends, so
// the gradients of unit 0 are held from the head to the encoder. All ranks that share the units must call.
void gpt2_backward(GPT2 *m) {
    const size_t B = m->B, T = m->T, C = m->config.channels, R = B * T;
    const size_t *offset = m->embedding_offset;
    const Activations *a = &m->acts;
    const FinalActivations f = final_activations(m);
    cudaStream_t s = m->stream;
    zero_nvtx_push("head backward", 0);
    const floatX *p = acquire_params(m, 0);
    floatX *g = acquire_grads(m, 0);

    linear_backward(a->dnarrow, g + offset[WTE], NULL, a->partial, m->logits, f.out, p + offset[WTE], R, C,
                    m->config.padded_vocab_size, s);
    cudaCheck(cudaMemsetAsync(a->dresidual, 0, R * C * sizeof(floatX), s));
    layernorm_backward(a->dresidual, g + offset[LNFW], g + offset[LNFB], a->partial, a->dnarrow, f.inp,
                       p + offset[LNFW], f.mean, f.rstd, R, C, s);
    release_params(m, 0);
    zero_nvtx_pop();

    zeroCheck(zero_pp_recv(&m->mesh, a->dresidual, FLOATX, R * C, s));
    for (size_t l = m->last_layer; l-- > m->first_layer;) {
        zero_nvtx_push("backward", 1 + l);
        layer_backward(m, l);
        zero_nvtx_pop();
    }
    zeroCheck(zero_pp_send(&m->mesh, a->dresidual, FLOATX, R * C, s));

    zero_nvtx_push("backward", 0);
    encoder_backward(g + offset[WTE], g + offset[WPE], a->dresidual, a->rows, m->distinct, B, T, C, s);
    release_grads(m, 0);
    zero_nvtx_pop();
}

// =====================================================================================================================
// The model ends here; what follows trains it.
// ---------------------------------------------------------------------------------------------------------------------
// The training run. From here on everything is about ranks, files and the command line. All ranks execute the same
// calls in the same order, with the same numbers to decide on: what is measured on one rank (a loss, an error) is
// gathered before anybody acts on it. Only rank 0 prints.

#ifndef TESTING
#include <errno.h>
#include <math.h>
#include <omp.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "data/dataloader.h"           // micro-batches by their number
#include "data/random.h"               // initial weights, sampling
#include "data/tokenizer.h"            // tokens to text
#include "gpt2/model_file.h"           // llm.c's model files
#include "trainer/options.h"           // the command line
#include "trainer/planner.h"           // what a run would need
#include "device/process.h"            // the memory of the process
#include "trainer/log.h"               // learning rate, z-scores, the step line, main.log
#include "zero/comm/mpi/comm_mpi.h"    // the transport
#include "zero/comm/nccl/comm_nccl.h"  // another one, for GPUs
#include "zero/zero.h"                 // the engine

#define BUILTIN_MODEL "custom:l4,h4,c128,v256,t128"
#define BUILTIN_TEXT  "dev/data/text/default.txt"
#define LLMC_MODEL    (FLOATX == ZERO_BF16 ? "gpt2_124M_bf16.bin" : "gpt2_124M.bin")
#define LLMC_TRAIN    "dev/data/tinyshakespeare/tiny_shakespeare_train.bin"
#define LLMC_VAL      "dev/data/tinyshakespeare/tiny_shakespeare_val.bin"
#define SAMPLING_SEED 1337
#define ERR_BYTES     5120  // a message with a path in it
#define MAX_ROWS      24    // of a report

typedef struct Run {
    Options options;
    int rank, ranks, local_rank, local_ranks;  // "local": on this host
    int gpus;                                  // different ones, of all ranks
    int sharers;                               // ranks that use this rank's GPU, this one included
    size_t process_start;                      // bytes that the process took before the model
    cudaDeviceProp device;
    cudaStream_t stream;
    Profile *profile;  // --profile, rank 0
    GPT2Config config;
    zero_tensor *tensors;
    ModelFile file;    // that the model comes from; fd -1: random weights
    char choice[512];  // which defaults were chosen, and why

    zero_mesh mesh;
    zero_accounting memory;
    char transport_note[64];               // why it is not NCCL
    zero_comm *comm;                       // all ranks
    zero_comm *shard_comm, *replica_comm;  // those that shard among them; those of other groups with the same
                                           // shard
    zero *z;
    GPT2 model;
    Loader *train, *val;   // val NULL: no validation
    Tokenizer *tokenizer;  // NULL: numbers are printed

    size_t B, T, G, M, steps;     // M = G * ranks micro-batches in a step
    int *inputs, *targets;        // B * T each
    float *host_losses;           // G * B * T, pinned: of this rank's micro-batches in a step
    double *losses, *all_losses;  // their means: of this rank, of all
    Outliers loss_outliers, norm_outliers;
    TrainLog log;
    zero_row wire[MAX_ROWS];  // of the last step that was taken
    size_t wire_rows;
} Run;

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

// Ends all ranks. Whether all have the fault turns out when they meet here: for a second each waits for the others. If
// all come, rank 0 tells it, once, and the job ends in good order. Otherwise not all have it, or somebody is dead or
// stopped: whoever is here says so and aborts the rest, the lowest rank first, so that the others are gone before they
// repeat it.
__attribute__((format(printf, 1, 2), noreturn)) static void die(const char *format, ...) {
    const int rank = launch()->rank;
    char message[ERR_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    fflush(stdout);

    char missing[1200];  // NCCL does not know who keeps it waiting
    const int together = launch_together(1 + 0.5 * (rank < 8 ? rank : 8), missing, sizeof missing);
    const char *asked = missing[0] != '\0' ? "; asked who is left: " : "";
    if (rank == 0)
        fprintf(stderr, "error: %s%s%s\n", message, asked, missing);
    else if (!together && strncmp(message, "rank ", 5) == 0)
        fprintf(stderr, "error: %s%s%s\n", message, asked, missing);
    else if (!together)
        fprintf(stderr, "error: rank %d: %s%s%s\n", rank, message, asked, missing);
    fflush(stderr);
    if (!together) launch_abort();
    launch_end();
    fflush(NULL);
    _exit(EXIT_FAILURE);  // not exit: a transport's watchdog may still use what a library's destructor takes away
}

static void must(const Run *r, int status, const char *doing) {
    if (status != ZERO_OK) die("%s (%s)", zero_error(r->z), doing);
}

// Every rank gives the same number of bytes; all get those of all.
static void gather(const Run *r, const void *mine, size_t bytes, void *all) {
    zero_comm_phase(r->comm, "gathering numbers", 0);
    if (zero_comm_allgather_host(r->comm, mine, bytes, all) != ZERO_OK) die("%s", zero_comm_error(r->comm));
}

static void *allocate(size_t bytes) {
    void *p = calloc(1, bytes);
    if (p == NULL)
        die("the host's memory is exhausted: %zu bytes were wanted: use fewer ranks on this host, or smaller -b or -t",
            bytes);
    return p;
}

// If any rank has a message, all end with it. *err is "" where all is well.
static void agree(const Run *r, const char *err, const char *remove) {
    char *all = (char *)allocate((size_t)r->ranks * ERR_BYTES);
    gather(r, err, ERR_BYTES, all);
    for (int i = 0; i < r->ranks; i++) {
        if (all[(size_t)i * ERR_BYTES] == '\0') continue;
        if (remove != NULL && r->rank == 0) modelfile_discard(remove);
        die("%s", all + (size_t)i * ERR_BYTES);
    }
    free(all);
}

__attribute__((format(printf, 2, 3))) static void say(const Run *r, const char *format, ...) {
    if (r->rank != 0) return;
    va_list args;
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
}

// ---------------------------------------------------------------------------------------------------------------------
// The engine gives the model its units.

static void time_engine(void *ctx, const char *work, int begin, cudaStream_t on) {
    (void)ctx;
    if (begin)
        profile_begin(profile, work, on);
    else
        profile_end(profile);
}

static void *unit_params(void *ctx, size_t unit) {
    const Run *r = (const Run *)ctx;
    void *p = zero_acquire_params(r->z, unit);
    if (p == NULL) die("%s (parameters of unit %zu)", zero_error(r->z), unit);
    return p;
}

static void unit_params_done(void *ctx, size_t unit) {
    const Run *r = (const Run *)ctx;
    must(r, zero_release_params(r->z, unit), "parameters of a unit");
}

static void *unit_grads(void *ctx, size_t unit) {
    const Run *r = (const Run *)ctx;
    void *p = zero_acquire_grads(r->z, unit);
    if (p == NULL) die("%s (gradients of unit %zu)", zero_error(r->z), unit);
    return p;
}

static void unit_grads_done(void *ctx, size_t unit) {
    const Run *r = (const Run *)ctx;
    must(r, zero_release_grads(r->z, unit), "gradients of a unit");
}

// ---------------------------------------------------------------------------------------------------------------------
// Parameters: random, from a file, to a file. Each rank handles the elements that it owns.

// The weights of the seed are one sequence of random numbers, in the order in which the tensors are registered.
// zero_fill asks in that order too, and leaves out what other ranks own: those numbers are skipped.
typedef struct Init {
    const Run *run;
    Mt19937 generator;
    size_t next;  // the first tensor whose numbers are not behind the generator
} Init;

// Numbers that are drawn for a tensor, and their deviation. The names of tensors, in order, are in gpt2_tensors.
static size_t init_draws(const Run *r, size_t tensor, float *std) {
    static const char *const NORMAL[] = { "wte", "wpe", "qkvw", "attprojw", "fcw", "fcprojw" };
    const char *name = r->tensors[tensor].name;
    const int residual = !strcmp(name, "attprojw") || !strcmp(name, "fcprojw");
    *std = residual ? 0.02f * (1.0f / sqrtf(2.0f * (float)r->config.num_layers)) : 0.02f;
    for (size_t i = 0; i < sizeof NORMAL / sizeof NORMAL[0]; i++) {
        // the rows that pad the vocabulary are zero
        if (!strcmp(name, NORMAL[i]))
            return i == 0 ? r->config.vocab_size * r->config.channels : r->tensors[tensor].numel;
    }
    return 0;
}

static int init_fill(void *ctx, size_t tensor, size_t begin, size_t count, float *out) {
    Init *s = (Init *)ctx;
    const Run *r = s->run;
    float std;
    for (; s->next < tensor; s->next++) {
        const size_t draws = init_draws(r, s->next, &std);
        if (draws > 0) mt_normal(&s->generator, NULL, 0, 0, draws, 0, std);
    }
    const size_t draws = init_draws(r, tensor, &std);
    const char *name = r->tensors[tensor].name;
    const int is_scale = !strcmp(name, "ln1w") || !strcmp(name, "ln2w") || !strcmp(name, "lnfw");
    const size_t drawn = begin < draws ? (count < draws - begin ? count : draws - begin) : 0;
    if (drawn > 0) {
        Mt19937 copy = s->generator;  // another range of this tensor may be asked for
        mt_normal(&copy, out, begin, drawn, draws, 0, std);
    }
    for (size_t i = drawn; i < count; i++) out[i] = is_scale ? 1.0f : 0.0f;
    return 0;
}

typedef struct FileAccess {
    const Run *run;
    const ModelFile *file;
    char err[ERR_BYTES];
} FileAccess;

static int file_fill(void *ctx, size_t tensor, size_t begin, size_t count, float *out) {
    FileAccess *a = (FileAccess *)ctx;
    return modelfile_read(a->file, a->run->tensors[tensor].logical + begin, count, out, a->err, sizeof a->err);
}

static int file_visit(void *ctx, size_t tensor, size_t begin, size_t count, const float *values) {
    FileAccess *a = (FileAccess *)ctx;
    return modelfile_write(a->file, a->run->tensors[tensor].logical + begin, count, values, a->err, sizeof a->err);
}

static void set_parameters(Run *r) {
    if (r->file.fd == -1) {
        say(r, "drawing %zu initial weights, seed %lld\n", gpt2_num_parameters(&r->config), (long long)r->options.seed);
        Init init = {};
        init.run = r;
        mt_seed(&init.generator, (uint32_t)r->options.seed);
        must(r, zero_fill(r->z, init_fill, &init), "initial weights");
        return;
    }
    say(r, "reading %zu parameters from %s\n", r->file.numel, r->file.path);
    FileAccess access = {};
    access.run = r;
    access.file = &r->file;
    const int status = zero_fill(r->z, file_fill, &access);
    if (access.err[0] != '\0') die("%s", access.err);
    must(r, status, "reading the model");
    modelfile_close(&r->file);
}

// Writes OUTPUT_DIR/model_STEP.bin, and deletes one that is no longer to be kept.
static void write_model(const Run *r, size_t step) {
    const Options *o = &r->options;
    char path[4096];
    char temporary[4096 + 8];
    snprintf(path, sizeof path, "%s/model_%08zu.bin", o->output_dir, step);
    snprintf(temporary, sizeof temporary, "%s.tmp", path);
    ModelFile file;
    FileAccess access = {};
    access.run = r;
    access.file = &file;

    if (r->rank == 0) {
        modelfile_create(temporary, &r->config, FLOATX == ZERO_BF16, access.err, sizeof access.err);
    }
    agree(r, access.err, NULL);
    if (modelfile_begin(&file, temporary, access.err, sizeof access.err) == 0) {
        const int status = zero_visit(r->z, ZERO_STATE_PARAMS, file_visit, &access);
        if (status != ZERO_OK && access.err[0] == '\0')
            snprintf(access.err, sizeof access.err, "%s: %s", path, zero_error(r->z));
        if (access.err[0] == '\0') modelfile_finish(&file, access.err, sizeof access.err);
        modelfile_close(&file);
    }
    agree(r, access.err, temporary);
    if (r->rank == 0) modelfile_publish(temporary, path, access.err, sizeof access.err);
    agree(r, access.err, NULL);
    say(r, "wrote %s\n", path);

    const size_t every = (size_t)o->checkpoint_every;
    const size_t keep = (size_t)o->checkpoints_keep;
    const size_t major = (size_t)o->major_checkpoint_every;
    const size_t last = step > 0 ? (step - 1) / every * every : 0;  // the model before this one
    if (keep == 0 || last <= (keep - 1) * every) return;
    const size_t old = last - (keep - 1) * every;
    if (r->rank != 0 || (major > 0 && old % major == 0)) return;
    snprintf(path, sizeof path, "%s/model_%08zu.bin", o->output_dir, old);
    if (unlink(path) != 0 && errno != ENOENT)
        fprintf(stderr, "warning: %s: cannot be deleted: %s\n", path, strerror(errno));
}

// ---------------------------------------------------------------------------------------------------------------------
// Setting up.

static int exists(const char *path) { return access(path, R_OK) == 0; }

static void set_number(Options *o, const char *flag, size_t n) {
    char text[32];
    snprintf(text, sizeof text, "%zu", n);
    options_set_default(o, flag, text);
}

// The model that is to be trained, and whatever the command line leaves open.
static void choose_model_and_data(Run *r) {
    Options *o = &r->options;
    char err[ERR_BYTES];
    const int no_model = o->model == NULL;
    const int no_data = o->train_files == NULL;
    const int llmc_data = exists(LLMC_TRAIN) && exists(LLMC_VAL);
    if (no_model) o->model = exists(LLMC_MODEL) && (!no_data || llmc_data) ? LLMC_MODEL : BUILTIN_MODEL;

    r->file.fd = -1;
    const size_t length = strlen(o->model);
    if (strchr(o->model, '/') != NULL || (length > 4 && !strcmp(o->model + length - 4, ".bin"))) {
        if (modelfile_open(&r->file, o->model, err, sizeof err) != 0) die("%s", err);
        r->config = r->file.config;
    } else if (gpt2_config_from_descriptor(&r->config, o->model, err, sizeof err) != 0) {
        die("-e: %s%s", err, exists(o->model) ? "; if you mean the file of this name, write it with a /" : "");
    }
    if (gpt2_config_check(&r->config, err, sizeof err) != 0) die("-e %s: %s", o->model, err);

    if (no_data) {
        const int llmc = llmc_data && r->config.vocab_size >= 50257;
        o->train_files = llmc ? LLMC_TRAIN : BUILTIN_TEXT;
        o->val_files = llmc ? LLMC_VAL : NULL;
        if (!llmc && !exists(BUILTIN_TEXT) && !o->plan)
            die("-i: no training data: there is no %s below this directory: name a file with -i, or make data in the "
                "directory of the Makefile",
                BUILTIN_TEXT);
    }
    if (o->val_files == NULL) o->val_files = o->train_files;
    if (no_model || (no_data && !o->plan)) {
        const int llmc = !strcmp(o->model, LLMC_MODEL) || !strcmp(o->train_files, LLMC_TRAIN);
        snprintf(r->choice, sizeof r->choice, "chosen, since not given: %s%s%s%s%s (llm.c's default files %s)",
                 no_model ? "-e " : "", no_model ? o->model : "", no_model && no_data ? " and " : "",
                 no_data ? "-i " : "", no_data ? o->train_files : "",
                 llmc ? "are here" : "are not here, or do not fit");
    }

    // What suits the built-in model: a minute or two on two cores. The total batch is that of 8 ranks, so that 1, 2, 4
    // and 8 ranks compute the same bits.
    if (no_model && !strcmp(o->model, BUILTIN_MODEL)) {
        const size_t total = 8 * r->config.max_seq_len;
        set_number(o, "b", 1);
        set_number(o, "t", r->config.max_seq_len);
        if (total % ((size_t)o->batch_size * (size_t)o->seq_len * (size_t)r->ranks) == 0) set_number(o, "d", total);
        options_set_default(o, "l", "3e-3");
        options_set_default(o, "q", "0.05");
        set_number(o, "u", 50);
        set_number(o, "x", 1000);
        set_number(o, "v", 250);
        set_number(o, "s", 1000000);
        set_number(o, "g", 256);
        const size_t length = strlen(r->choice);
        snprintf(r->choice + length, sizeof r->choice - length,
                 "; with settings that suit it: -b %lld -t %lld -d %lld -l %g -q %g -u %lld -x %lld -v %lld -g %lld",
                 (long long)o->batch_size, (long long)o->seq_len, (long long)o->total_batch_tokens, o->lr,
                 o->final_lr_fraction, (long long)o->warmup, (long long)o->max_steps, (long long)o->val_every,
                 (long long)o->sample_tokens);
    }
    if (r->config.max_seq_len < (size_t)o->seq_len) set_number(o, "t", r->config.max_seq_len);
}

static Loader *open_loader(const Run *r, const char *files, int validation) {
    const Options *o = &r->options;
    const int same = !strcmp(o->train_files, o->val_files);
    LoaderConfig c = {};
    c.pattern = files;
    c.B = r->B;
    c.T = r->T;
    c.vocab = r->config.vocab_size;
    c.begin_percent = same && validation ? 90 : 0;
    c.end_percent = same && !validation ? 90 : 100;
    c.shuffle = o->shuffle && !validation;
    c.seed = (uint32_t)o->seed;
    Loader *loader;
    char err[512];
    if (loader_open(&loader, &c, err) != 0) die("%s", err);
    if (loader_info(loader).is_text && c.vocab < 256) {
        die("%s: is text, a byte a token, but the model's vocabulary is %zu: choose a model with at least 256 (-e)",
            files, c.vocab);
    }
    return loader;
}

static void open_data(Run *r) {
    const Options *o = &r->options;
    r->train = open_loader(r, o->train_files, 0);
    if (o->val_every > 0 || options_given(o, "j")) r->val = open_loader(r, o->val_files, 1);
    if (o->val_every == 0) {  // a wrong -j is a mistake also where it is not used
        loader_close(r->val);
        r->val = NULL;
    }
    const size_t epoch = loader_num_samples(r->train) / r->M;
    r->steps = o->max_steps >= 0 ? (size_t)o->max_steps : epoch;
    if (o->profile > 0 && (size_t)o->profile >= r->steps) {
        die("--profile %lld: not in a run of %zu steps, whose first is not counted: use -x %lld or more",
            (long long)o->profile, r->steps, (long long)o->profile + 1);
    }
    if (r->steps == 0 && o->max_steps < 0) {
        die("-i %s: has %zu micro-batches, less than the %zu of a step: use a smaller -d or -b, or give the number of "
            "steps with -x",
            o->train_files, loader_num_samples(r->train), r->M);
    }

    const int text = loader_info(r->train).is_text;
    char err[512];
    if ((text || exists("gpt2_tokenizer.bin")) &&
        tokenizer_open(&r->tokenizer, text ? NULL : "gpt2_tokenizer.bin", err) != 0)
        die("%s", err);
}

// GPUs are told apart by their ids, not by their numbers: a scheduler may show each rank one GPU only, number 0.
static void count_gpus(Run *r) {
    char err[ERR_BYTES];
    zero_bootstrap *boot = launch_bootstrap(r->options.timeout, err, sizeof err);
    if (boot == NULL) die("%s", err);
    cudaUUID_t *all = (cudaUUID_t *)allocate((size_t)r->ranks * sizeof *all);
    if (zero_bootstrap_allgather(boot, &r->device.uuid, sizeof *all, all) != ZERO_OK)
        die("%s", zero_bootstrap_error(boot));
    for (int i = 0; i < r->ranks; i++) {
        int first = 0;
        while (memcmp(&all[first], &all[i], sizeof *all) != 0) first++;
        r->gpus += first == i;
        r->sharers += memcmp(&all[i], &r->device.uuid, sizeof *all) == 0;
    }
    free(all);
}

// Meets the other ranks; finds this one's place among those of its host, and its GPU; shares the host's cores among
// them.
static void choose_device(Run *r) {
    char err[ERR_BYTES];
    int devices = 0;
    const cudaError_t error = cudaGetDeviceCount(&devices);
    if (error != cudaSuccess || devices < 1) {
        die("no CUDA device (%s): this program was built for NVIDIA GPUs; for the CPU, build with make DEVICE=cpu",
            cudaGetErrorString(error));
    }
    if (launch_connect(&r->options, err, sizeof err) != 0) die("%s", err);
    r->local_rank = launch()->local_rank;
    r->local_ranks = launch()->local_ranks;
    int device = r->local_rank % devices;
    cudaCheck(cudaSetDevice(device));
    cudaCheck(cudaGetDeviceProperties(&r->device, device));
    cudaCheck(cudaStreamCreate(&r->stream));
    count_gpus(r);

    if (getenv("OMP_NUM_THREADS") == NULL) {
        const int share = omp_get_num_procs() / r->local_ranks;
        omp_set_num_threads(share > 1 ? share : 1);
    }
}

// By the value of -w, in BF16 builds.
static const struct {
    enum zero_master kind;
    const char *name;
} MASTER_WEIGHTS[] = { { ZERO_MASTER_NONE, "BF16, no master weights, rounding by chance" },
                       { ZERO_MASTER_FP32, "BF16, fp32 master weights" },
                       { ZERO_MASTER_SPLIT, "BF16, fp32 master weights in two halves" } };

// Ranks on different hosts may have found different files there, or been given other flags. They would wait for each
// other for ever, or train a mixture.
static void check_same_run(const Run *r) {
    const Options *o = &r->options;
    const GPT2Config *c = &r->config;
    const double mine[] = { (double)r->B,
                            (double)r->T,
                            (double)r->G,
                            (double)r->steps,
                            (double)loader_num_samples(r->train),
                            r->val != NULL ? (double)loader_num_samples(r->val) : 0,
                            (double)c->max_seq_len,
                            (double)c->vocab_size,
                            (double)c->num_layers,
                            (double)c->num_heads,
                            (double)c->channels,
                            (double)o->stage,
                            (double)o->seed,
                            o->lr,
                            (double)o->lr_schedule,
                            (double)o->warmup,
                            o->final_lr_fraction,
                            o->weight_decay,
                            o->beta1,
                            o->beta2,
                            o->eps,
                            o->grad_clip,
                            o->skip_loss_z,
                            o->skip_norm_z,
                            (double)o->shuffle,
                            (double)o->overfit,
                            (double)o->val_every,
                            (double)o->val_batches,
                            (double)o->sample_every,
                            (double)o->sample_tokens,
                            (double)o->checkpoint_every,
                            (double)o->master_weights,
                            (double)o->prefetch,
                            (double)o->reduce,
                            (double)o->debug,
                            (double)o->hash,
                            (double)(r->file.fd != -1) };
    char *all = (char *)allocate((size_t)r->ranks * sizeof mine);
    gather(r, mine, sizeof mine, all);
    for (int i = 1; i < r->ranks; i++) {
        if (memcmp(all, all + (size_t)i * sizeof mine, sizeof mine) != 0) {
            die("rank %d has other data or settings than rank 0: are the flags, and the files of -i, -j and -e, the "
                "same on all hosts?",
                i);
        }
    }
    free(all);
}

// NCCL wants a GPU for each rank. All ranks must come to the same answer, and the table at the start says it.
static int use_nccl(Run *r, zero_bootstrap *boot) {
    if (r->options.transport != OPTION_TRANSPORT_AUTO) return r->options.transport == OPTION_TRANSPORT_NCCL;
    if (!launch()->mpi) return 1;  // nobody else could carry anything
#ifdef CUDA_ON_CPU
    (void)boot;
    return 0;
#else
    char words[ERR_BYTES];
    const int mine[2] = { r->sharers,
                          r->sharers == 1 && r->ranks > 1 && !zero_comm_nccl_available(NULL, words, sizeof words) };
    int *all = (int *)allocate((size_t)r->ranks * sizeof mine);
    if (zero_bootstrap_allgather(boot, mine, sizeof mine, all) != ZERO_OK) die("%s", zero_bootstrap_error(boot));
    int without = 0;
    for (int i = 0; i < r->ranks && r->transport_note[0] == '\0'; i++) {
        const int *his = all + 2 * i;
        without = his[0] > 1 || his[1];
        if (his[0] > 1)
            snprintf(r->transport_note, sizeof r->transport_note, "not NCCL: %d ranks share a GPU", his[0]);
        else if (without)
            snprintf(r->transport_note, sizeof r->transport_note,
                     "not NCCL: rank %d has none (--transport nccl says why)", i);
    }
    free(all);
    return !without;
#endif
}

static void create_transport(Run *r) {
    const Options *o = &r->options;
    char err[ERR_BYTES] = "";
    zero_bootstrap *boot = launch_bootstrap(o->timeout, err, sizeof err);
    if (boot == NULL) die("%s", err);
    int e;
    if (use_nccl(r, boot)) {
        zero_comm_nccl_config nccl = {};
        nccl.timeout_s = o->timeout;
        nccl.register_buffers = (int)o->nccl_register;
        e = zero_mesh_comms_nccl(&r->mesh, boot, &nccl, &r->memory, &r->comm, &r->shard_comm, &r->replica_comm, err,
                                 sizeof err);
    } else {
        zero_comm_mpi_config mpi = {};
        mpi.timeout_s = o->timeout;
        mpi.no_shared_memory = o->debug % 4 == 1;  // --debug: another way for the bytes with each seed
        mpi.staged = o->debug % 4 == 2;
        mpi.ranks_per_host = o->debug % 4 == 3 ? 2 : 0;
        e = zero_mesh_comms_mpi(&r->mesh, MPI_COMM_WORLD, &mpi, &r->memory, &r->comm, &r->shard_comm, &r->replica_comm,
                                err, sizeof err);
    }
    if (e != ZERO_OK) die("transport: %s", err);
}

static void create_model(Run *r) {
    const Options *o = &r->options;
    char err[ERR_BYTES] = "";
    if (zero_mesh_create(&r->mesh, r->rank, r->ranks, (int)o->tp, (int)o->pp, (int)o->shard_group, err, sizeof err) !=
            ZERO_OK ||
        zero_mesh_require_data_only(&r->mesh, err, sizeof err) != ZERO_OK) {
        die("%s", err);
    }

    create_transport(r);
    check_same_run(r);

    zero_config c = {};
    c.settings.stage = (int)o->stage;
    c.settings.dtype = FLOATX;
    c.settings.master = MASTER_WEIGHTS[o->master_weights].kind;
    c.settings.seed = (uint64_t)o->seed;
    c.settings.reduction = o->reduce == OPTION_REDUCE_EXACT ? ZERO_REDUCE_EXACT : ZERO_REDUCE_LIBRARY;
    c.settings.prefetch = (int)o->prefetch;
    c.settings.delay_seed = (uint64_t)o->debug;
    c.settings.shard_group = (size_t)o->shard_group;
    size_t *order = (size_t *)allocate(gpt2_unit_order(&r->config, NULL) * sizeof *order);
    c.order = order;
    c.order_length = gpt2_unit_order(&r->config, order);
    c.num_tensors = gpt2_num_tensors(&r->config);
    r->tensors = (zero_tensor *)allocate(c.num_tensors * sizeof *r->tensors);
    gpt2_tensors(&r->config, r->tensors);
    c.tensors = r->tensors;
    c.shard_comm = r->shard_comm;
    c.replicate_comm = r->replica_comm;
    c.accounting = &r->memory;
    c.stream = r->stream;
    if (o->profile > 0 && r->rank == 0) {
        c.timing = time_engine;
        r->profile = profile_create();
        if (r->profile == NULL) die("the host's memory is exhausted");
    }
    if (zero_create(&r->z, &c) != ZERO_OK)
        die("-z %d: %s", c.settings.stage, r->z != NULL ? zero_error(r->z) : "the host's memory is exhausted");

    free(order);

    GPT2Units units = {};
    units.ctx = r;
    units.acquire_params = unit_params;
    units.release_params = unit_params_done;
    units.acquire_grads = unit_grads;
    units.release_grads = unit_grads_done;
    if (gpt2_create(&r->model, &r->config, r->B, r->T, (int)o->recompute, &units, &r->mesh, &r->memory, r->stream, err,
                    sizeof err) != 0) {
        die("-b %zu -t %zu: %s", r->B, r->T, err);
    }
    r->model.gelu_fusion = (int)o->gelu_fusion;
    matmul_set_tf32((int)o->tf32);
}

static void open_log(Run *r) {
    const char *dir = r->options.output_dir;
    char err[ERR_BYTES] = "";
    if (r->rank == 0 && dir != NULL && mkdir(dir, 0777) != 0 && errno != EEXIST) {
        snprintf(err, sizeof err, "-o %s: cannot be made: %s: %s", dir, strerror(errno),
                 errno == ENOENT ? "make the directory above it first" : "choose another output directory");
    } else if (r->rank == 0) {
        trainlog_open(&r->log, dir, err, sizeof err);
    }
    agree(r, err, NULL);
}

#define RULE "+-----------------------+----------------------------------------------------+\n"

__attribute__((format(printf, 3, 4))) static void print_row(const Run *r, const char *name, const char *format, ...) {
    char value[ERR_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(value, sizeof value, format, args);
    va_end(args);
    say(r, "| %-21s | %-50s |\n", name, value);
}

static void print_header(const Run *r) {
    static const char *const SCHEDULES[] = { "cosine", "linear", "constant", "wsd" };
    static const char *const STAGES[] = { "0 (nothing sharded)", "1 (optimizer state)",
                                          "2 (optimizer state, gradients)",
                                          "3 (optimizer state, gradients, parameters)" };
    const Options *o = &r->options;
    const zero_layout *l = zero_get_layout(r->z);
    const LoaderInfo train = loader_info(r->train);
    say(r, RULE "| %-21s | %-50s |\n" RULE, "Parameter", "Value");
    print_row(r, "device", "%s", r->device.name);
    print_row(r, "precision", "%s",
              FLOATX == ZERO_BF16 ? MASTER_WEIGHTS[o->master_weights].name : (o->tf32 ? "TF32" : "FP32"));
    if constexpr (ATTENTION_CUDNN) {
        print_row(r, "attention", "%s, scratch %zu bytes", attention_cudnn_name(),
                  attention_scratch<floatX>(r->B, r->T, r->config.num_heads));
    } else {
        print_row(r, "attention", "own kernels");
    }
    print_row(r, "ranks", "%d (%d on this host)", r->ranks, r->local_ranks);
    print_row(r, "ZeRO stage", "%s", STAGES[o->stage]);
    if (r->mesh.groups > 1) print_row(r, "", "%d groups of %d ranks shard the same", r->mesh.groups, r->mesh.shard);
    print_row(r, "threads of a rank", "%d", omp_get_max_threads());
    print_row(r, "transport", "%s", zero_comm_name(r->comm));
    if (r->transport_note[0] != '\0') print_row(r, "", "%s", r->transport_note);
    print_row(r, "sum of gradients", "%s",
              o->reduce != OPTION_REDUCE_EXACT   ? "library"
              : (r->ranks & (r->ranks - 1)) == 0 ? "exact: same bits in all stages, on 1 2 4 ... ranks"
                                                 : "exact: same bits in all stages, on as many ranks");
    if (o->reduce == OPTION_REDUCE_LIBRARY) print_row(r, "", "gives up: same bits in all stages, on any ranks");
    say(r, RULE);
    print_row(r, "train data pattern", "%s", o->train_files);
    print_row(r, "", "%zu %s, %zu micro-batches%s", train.tokens, train.is_text ? "bytes" : "tokens", train.samples,
              o->shuffle ? ", shuffled" : "");
    print_row(r, "val data pattern", "%s%s", o->val_files,
              strcmp(o->val_files, o->train_files) ? "" : " (the last tenth)");
    print_row(r, "output directory", "%s", o->output_dir != NULL ? o->output_dir : "none");
    say(r, RULE);
    print_row(r, "model", "%s", o->model);
    print_row(r, "max_sequence_length T", "%zu", r->config.max_seq_len);
    print_row(r, "vocab_size V", "%zu (padded to %zu)", r->config.vocab_size, r->config.padded_vocab_size);
    print_row(r, "num_layers L", "%zu", r->config.num_layers);
    print_row(r, "num_heads NH", "%zu", r->config.num_heads);
    print_row(r, "channels C", "%zu", r->config.channels);
    print_row(r, "num_parameters Psi", "%zu (%zu with padding of shards)", l->numel, l->numel_padded);
    say(r, RULE);
    print_row(r, "micro-batch B x T", "%zu x %zu", r->B, r->T);
    print_row(r, "micro-steps G", "%zu", r->G);
    print_row(r, "tokens of a step", "%zu", r->B * r->T * r->M);
    print_row(r, "steps", "%zu", r->steps);
    print_row(r, "learning rate", "%.2e, %s, warmup %lld%s, final %.2e", o->lr, SCHEDULES[o->lr_schedule],
              (long long)o->warmup, (size_t)o->warmup > r->steps ? " > steps" : "", o->lr * o->final_lr_fraction);
    print_row(r, "AdamW", "beta %g %g, eps %g, weight decay %g", o->beta1, o->beta2, o->eps, o->weight_decay);
    print_row(r, "gradient clip", "%g%s", o->grad_clip, o->grad_clip > 0 ? "" : " (off)");
    print_row(r, "recompute", "%lld", (long long)o->recompute);
    if (o->gelu_fusion) print_row(r, "GELU in products", o->gelu_fusion == 1 ? "forward" : "forward and backward");
    print_row(r, "seed", "%lld", (long long)o->seed);
    say(r, RULE);
}

// ---------------------------------------------------------------------------------------------------------------------
// Steps.

static void read_batch(const Run *r, Loader *loader, size_t j) {
    char err[512];
    if (loader_batch(loader, j, r->inputs, r->targets, err) != 0) die("%s", err);
}

// The mean of losses that the ranks computed in `rounds` rounds: the loss with number j = g * N + r is all[r * rounds +
// g]. Added in the order of j, so that it does not matter how many ranks there are.
static double mean_loss(const double *all, size_t ranks, size_t rounds, size_t count) {
    double sum = 0;
    for (size_t j = 0; j < count; j++) sum += all[j % ranks * rounds + j / ranks];
    return sum / (double)count;
}

// Validation is on the first -m micro-batches, shared out among the ranks. In the last round some ranks may have none
// left: they compute one that is not counted, for all ranks must ask for the same units.
static double validate(Run *r) {
    const size_t samples = loader_num_samples(r->val);
    const int64_t limit = r->options.val_batches;
    const size_t count = limit < 0 || (size_t)limit > samples ? samples : (size_t)limit;
    const size_t ranks = (size_t)r->ranks;
    const size_t rounds = ceil_div(count, ranks);
    double *mine = (double *)allocate(rounds * sizeof *mine);
    double *all = (double *)allocate(rounds * ranks * sizeof *all);
    for (size_t g = 0; g < rounds; g++) {
        const size_t j = g * ranks + (size_t)r->rank;
        read_batch(r, r->val, j < count ? j : 0);
        gpt2_forward(&r->model, r->inputs, r->targets, r->B, r->T, 0);
        mine[g] = gpt2_loss(&r->model);
    }
    gather(r, mine, rounds * sizeof *mine, all);
    const double loss = mean_loss(all, ranks, rounds, count);
    free(mine);
    free(all);
    return loss;
}

// A bf16 is the upper half of a float.
static float to_float(floatX x) {
    uint32_t bits = 0;
    memcpy((char *)&bits + sizeof bits - sizeof x, &x, sizeof x);
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

// The token that the random number coin, of [0, 1), chooses with the probabilities softmax(logits).
static int choose_token(const float *logits, size_t V, double coin) {
    double highest = logits[0];
    for (size_t i = 1; i < V; i++) highest = logits[i] > highest ? logits[i] : highest;
    double sum = 0;
    for (size_t i = 0; i < V; i++) sum += exp(logits[i] - highest);
    double below = 0;
    for (size_t i = 0; i < V; i++) {
        below += exp(logits[i] - highest);
        if (coin * sum < below) return (int)i;
    }
    return (int)V - 1;
}

// Writes a text, token by token. All ranks take part and choose the same tokens; rank 0 prints.
static void sample(Run *r) {
    const size_t V = r->config.vocab_size;
    const size_t tokens = (size_t)r->options.sample_tokens;
    const int eot = r->tokenizer != NULL ? tokenizer_eot(r->tokenizer) : (int)(V > 50256 ? 50256 : V - 1);
    int *text = (int *)allocate((tokens + 1) * sizeof *text);
    floatX *row = (floatX *)allocate(V * sizeof *row);
    float *logits = (float *)allocate(V * sizeof *logits);
    uint64_t random = SAMPLING_SEED;
    text[0] = eot;
    say(r, "generating:\n---\n");
    for (size_t n = 1; n <= tokens; n++) {
        // The last T tokens are the context. What follows them in the model's input does not matter; few different
        // lengths do, for which libraries make plans.
        const size_t context = n < r->T ? n : r->T;
        size_t length = 32;
        while (length < context) length *= 2;
        if (length > r->T) length = r->T;
        for (size_t i = 0; i < length; i++) r->inputs[i] = i < context ? text[n - context + i] : eot;
        gpt2_forward(&r->model, r->inputs, NULL, 1, length, 0);
        const floatX *from = r->model.logits + (context - 1) * r->config.padded_vocab_size;
        cudaCheck(cudaMemcpyAsync(row, from, V * sizeof *row, cudaMemcpyDeviceToHost, r->stream));
        cudaCheck(cudaStreamSynchronize(r->stream));
        for (size_t i = 0; i < V; i++) logits[i] = to_float(row[i]);
        text[n] = choose_token(logits, V, xorshift_f32(&random));
        if (r->tokenizer != NULL)
            say(r, "%s", tokenizer_decode(r->tokenizer, text[n]));
        else
            say(r, "%d ", text[n]);
        if (r->rank == 0) fflush(stdout);
    }
    say(r, "\n---\n");
    free(text);
    free(row);
    free(logits);
}

// The part of the update that all ranks must agree on: they have the same loss and norm, so they do.
static int skip_update(const Run *r, size_t step, double loss, double loss_z, double norm, double norm_z) {
    const Options *o = &r->options;
    if (!isfinite(loss) || !isfinite(norm)) {
        say(r, "step %zu: loss %f, gradient norm %f: not finite: all ranks skip the update, nothing is changed\n",
            step + 1, loss, norm);
        return 1;
    }
    if (o->skip_loss_z > 0 && loss_z > o->skip_loss_z) {
        say(r, "step %zu: the loss has a z-score of %.2f, above -sl %g: the update is skipped\n", step + 1, loss_z,
            o->skip_loss_z);
        return 1;
    }
    if (o->skip_norm_z > 0 && norm_z > o->skip_norm_z) {
        say(r, "step %zu: the norm has a z-score of %.2f, above -sg %g: the update is skipped\n", step + 1, norm_z,
            o->skip_norm_z);
        return 1;
    }
    return 0;
}

// Keeps the report on the wire of the step that was just taken. The engine counts all numbers that its transport
// gathered between the first gradient and the update, but its formula knows only its own: the losses are ours (with
// groups, they take another transport).
static void note_wire(Run *r) {
    r->wire_rows = zero_report_wire(r->z, r->wire, MAX_ROWS);
    if (r->shard_comm == r->comm) plan_add_losses(r->wire, r->wire_rows, r->G, (size_t)r->ranks);
}

// One step: M micro-batches, one update. *updates counts those that were not skipped; AdamW's bias correction is about
// these.
static StepLine train_step(Run *r, size_t step, const Schedule *schedule, uint64_t *updates) {
    const Options *o = &r->options;
    must(r, zero_begin_step(r->z), "beginning of a step");
    for (size_t g = 0; g < r->G; g++) {
        const size_t first = o->overfit ? 0 : step * r->M;
        read_batch(r, r->train, first + g * (size_t)r->ranks + (size_t)r->rank);
        gpt2_forward(&r->model, r->inputs, r->targets, r->B, r->T, 1);
        gpt2_backward(&r->model);
        must(r, zero_finish_backward(r->z), "end of the backward pass");
        gpt2_copy_losses(&r->model, r->host_losses + g * r->B * r->T);
    }

    StepLine s = {};
    must(r, zero_grad_norm(r->z, &s.norm), "gradient norm");  // the first time in a step that the host waits: to
                                                              // decide what follows
    for (size_t g = 0; g < r->G; g++) r->losses[g] = gpt2_mean_loss(r->host_losses + g * r->B * r->T, r->B * r->T);
    gather(r, r->losses, r->G * sizeof *r->losses, r->all_losses);
    s.step = step;
    s.steps = r->steps;
    s.loss = mean_loss(r->all_losses, (size_t)r->ranks, r->G, r->M);
    s.lr = schedule_lr(schedule, step);
    s.loss_z = isfinite(s.loss) ? outlier_z(&r->loss_outliers, s.loss) : NAN;
    s.norm_z = isfinite(s.norm) ? outlier_z(&r->norm_outliers, s.norm) : NAN;

    if (skip_update(r, step, s.loss, s.loss_z, s.norm, s.norm_z)) {
        must(r, zero_discard(r->z), "skipping an update");
    } else {
        zero_adamw a = {};
        a.lr = (float)s.lr;
        a.beta1 = (float)o->beta1;
        a.beta2 = (float)o->beta2;
        a.eps = (float)o->eps;
        a.weight_decay = (float)o->weight_decay;
        a.grad_scale = o->grad_clip > 0 && s.norm > o->grad_clip ? (float)(o->grad_clip / s.norm) : 1.0f;
        a.t = ++*updates;
        must(r, zero_step(r->z, &a), "update");
        note_wire(r);
    }
    if (zero_comm_synchronize(r->shard_comm, r->stream) != ZERO_OK)
        die("%s (end of a step)", zero_comm_error(r->shard_comm));
    return s;
}

static void train(Run *r) {
    const Options *o = &r->options;
    Schedule schedule = {};
    schedule.kind = (int)o->lr_schedule;
    schedule.lr = o->lr;
    schedule.warmup = (size_t)o->warmup;
    schedule.steps = r->steps;
    schedule.final_fraction = o->final_lr_fraction;
    const size_t tokens = r->B * r->T * r->M;
    const double flops = gpt2_training_flops(&r->config, r->T, tokens);
    const double peak = gpu_peak_flops(r->device.name) * r->gpus;
    uint64_t updates = 0;
    double total_ms = 0;  // of all steps but the first
    double speed = 0;     // moving average of tokens per second; the first step is slow, and forgotten
    char err[ERR_BYTES];

    for (size_t step = 0; step <= r->steps; step++) {
        const int last = step == r->steps;
        if (r->val != NULL && (step % (size_t)o->val_every == 0 || last)) {
            zero_comm_phase(r->comm, "validation", 0);
            const double loss = validate(r);
            say(r, "val loss %f\n", loss);
            if (trainlog_val(&r->log, step, loss, err, sizeof err) != 0) die("%s", err);
        }
        if (o->sample_every > 0 && ((step > 0 && step % (size_t)o->sample_every == 0) || last)) {
            zero_comm_phase(r->comm, "sampling", 0);
            sample(r);
        }
        if (o->checkpoint_every > 0 && ((step > 0 && step % (size_t)o->checkpoint_every == 0) || last)) {
            zero_comm_phase(r->comm, "writing the model", 0);
            write_model(r, step);
        }
        if (last) break;

        zero_comm_phase(r->comm, "training", 0);
        const double begin = seconds();
        if (step >= 1 && step <= (size_t)o->profile) profile = r->profile;  // the first step is slow
        StepLine s = train_step(r, step, &schedule, &updates);
        s.ms = 1000 * (seconds() - begin);
        if (profile != NULL) cudaCheck(profile_end_step(profile, s.ms));
        profile = NULL;
        if (step > 0) total_ms += s.ms;
        const double tokens_per_second = (double)tokens / s.ms * 1000;
        speed = step <= 1 ? tokens_per_second : 0.95 * speed + 0.05 * tokens_per_second;
        s.tokens_per_second = speed;
        s.mfu = peak > 0 ? flops / (s.ms / 1000) / peak : -1;
        char line[512];
        step_line(line, sizeof line, &s);
        say(r, "%s\n", line);
        if (trainlog_train(&r->log, step, s.loss, s.lr, s.norm, err, sizeof err) != 0) die("%s", err);
        if (o->gpu_info_every > 0 && (step + 1) % (size_t)o->gpu_info_every == 0) {
            size_t free_bytes, all_bytes;
            cudaCheck(cudaMemGetInfo(&free_bytes, &all_bytes));
            say(r, "GPU of rank 0: %zu MiB free of %zu MiB\n", free_bytes >> 20, all_bytes >> 20);
        }
    }
    if (r->steps > 0)
        say(r, "total average iteration time: %f ms\n", total_ms / (double)(r->steps > 1 ? r->steps - 1 : 1));
}

// ---------------------------------------------------------------------------------------------------------------------
// Reports: what the formula says beside what was measured, on the rank with the least and on the one with the most.

static void report(const Run *r, const char *title, const zero_row *rows, size_t n) {
    typedef struct Pair {
        uint64_t expected, measured;
    } Pair;
    Pair mine[MAX_ROWS] = {};
    for (size_t i = 0; i < n; i++) {
        mine[i].expected = rows[i].expected;
        mine[i].measured = rows[i].measured;
    }
    Pair *all = (Pair *)allocate((size_t)r->ranks * sizeof mine);
    gather(r, mine, sizeof mine, all);
    say(r, "\n%-26s %-40s %15s %15s %15s\n", title, "formula", "by formula", "measured, min", "max over ranks");
    for (size_t i = 0; i < n; i++) {
        uint64_t least = UINT64_MAX;
        uint64_t most = 0;
        int differs = -1;
        for (int rank = 0; rank < r->ranks; rank++) {
            const Pair p = all[(size_t)rank * MAX_ROWS + i];
            least = p.measured < least ? p.measured : least;
            most = p.measured > most ? p.measured : most;
            if (p.measured != p.expected && differs == -1) differs = rank;
        }
        say(r, "%-26s %-40s %15llu %15llu %15llu", rows[i].what, rows[i].formula, (unsigned long long)rows[i].expected,
            (unsigned long long)least, (unsigned long long)most);
        if (differs == -1)
            say(r, "\n");
        else
            say(r, "  rank %d differs from the formula\n", differs);
    }
    free(all);
}

// Is that all? What the process takes, beside the sum of the rows and what it took before there was a model
// (libraries). More than that are buffers of MPI and of matrix products, and the last pages of everything.
static void report_process(const Run *r, const zero_row *rows, size_t n) {
    size_t mine[2] = { r->process_start, process_memory((size_t)r->sharers) };  // start, peak
    for (size_t i = 0; i < n; i++) mine[0] += rows[i].expected;
    size_t *all = (size_t *)allocate((size_t)r->ranks * sizeof mine);
    gather(r, mine, sizeof mine, all);
    double expected = 0;
    double measured = 0;
    size_t least = SIZE_MAX;
    size_t most = 0;
    for (size_t i = 0; i < (size_t)r->ranks; i++) {
        expected += (double)all[2 * i] / r->ranks;
        measured += (double)all[2 * i + 1] / r->ranks;
        least = all[2 * i + 1] < least ? all[2 * i + 1] : least;
        most = all[2 * i + 1] > most ? all[2 * i + 1] : most;
    }
    free(all);
    char formula[64];
    snprintf(formula, sizeof formula, "the memory above, %zu before it", r->process_start);
    if (least > 0) {
        say(r, "\n%-26s %-40s %15.0f %15zu %15zu  mean %.0f, measured to formula %+.1f%%\n", "process, bytes", formula,
            expected, least, most, measured, 100 * (measured - expected) / expected);
    }
}

static void print_reports(const Run *r) {
    zero_row rows[MAX_ROWS];
    size_t n = zero_report_memory(r->z, rows, MAX_ROWS - 2);
    if (r->shard_comm != r->comm) plan_add_transport(rows, n, zero_comm_get_shape(r->comm));
    rows[n].what = "activations";
    snprintf(rows[n].formula, sizeof rows[n].formula, "gpt2_activation_bytes(B, T, recompute)");
    rows[n].expected = gpt2_activation_bytes(&r->config, r->B, r->T, (int)r->options.recompute);
    rows[n].measured = r->memory.peak[ZERO_MEM_ACTIVATIONS];
    n++;
    report(r, "memory per rank, bytes", rows, n);
    if (r->wire_rows > 0) report(r, "wire per rank, step, bytes", r->wire, r->wire_rows);
    report_process(r, rows, n);
}

// --profile: rank 0 tells what it measured.
static void print_profile(const Run *r) {
    const Options *o = &r->options;
    const GPT2Config *c = &r->config;
    ProfileRun run = {};
    run.B = r->B;
    run.T = r->T;
    run.C = c->channels;
    run.NH = c->num_heads;
    run.L = c->num_layers;
    run.Vp = c->padded_vocab_size;
    run.G = r->G;
    run.elem = sizeof(floatX);
    run.one_backward = ATTENTION_CUDNN;
    run.recompute = (int)o->recompute;
    run.gelu_fusion = (int)o->gelu_fusion;
    run.tf32 = (int)o->tf32;
    run.chunks = ceil_div(r->B * r->T, chunk_rows(r->B * r->T));
    run.stage = (int)o->stage;
    run.ranks = (size_t)r->mesh.shard;
    run.numel = zero_get_layout(r->z)->numel_padded;
    run.state_bytes = profile_adamw_bytes(sizeof(floatX), (int)o->master_weights);
    run.library = o->reduce == OPTION_REDUCE_LIBRARY;
    for (size_t i = 0; i < r->wire_rows; i++) {
        if (r->wire[i].kind == ZERO_WIRE_GRADS) run.grad_bytes = (double)r->wire[i].expected;
        if (r->wire[i].kind == ZERO_WIRE_PARAMS) run.param_bytes = (double)r->wire[i].expected;
    }
    profile_print(stdout, r->profile, &run, r->device.name);
}

// --plan: what would this run need? Rank 0 answers, for as many ranks as it is asked about; no memory of a model is
// allocated.
static void print_plan(const Run *r) {
    const Options *o = &r->options;
    PlanInput in = {};
    char err[ERR_BYTES];
    in.model = o->model;
    in.num_tensors = gpt2_num_tensors(&r->config);
    zero_tensor *tensors = (zero_tensor *)allocate(in.num_tensors * sizeof *tensors);
    gpt2_tensors(&r->config, tensors);
    in.tensors = tensors;
    in.order_length = gpt2_unit_order(&r->config, NULL);
    size_t *order = (size_t *)allocate(in.order_length * sizeof *order);
    gpt2_unit_order(&r->config, order);
    in.order = order;
    in.settings.prefetch = (int)o->prefetch;
    in.settings.dtype = o->plan_precision == OPTION_PRECISION_BF16 ? ZERO_BF16 : ZERO_F32;
    in.settings.master = MASTER_WEIGHTS[o->master_weights].kind;
    in.settings.reduction = o->reduce == OPTION_REDUCE_EXACT ? ZERO_REDUCE_EXACT : ZERO_REDUCE_LIBRARY;
    in.recompute = (int)o->recompute;
    in.activation_bytes = gpt2_activation_bytes(&r->config, r->B, r->T, in.recompute, in.settings.dtype);
    in.flops_per_token = gpt2_training_flops(&r->config, r->T, 1);
    in.B = r->B;
    in.T = r->T;
    in.total_tokens = o->total_batch_tokens > 0 ? (size_t)o->total_batch_tokens : 0;
    in.ranks = (size_t)r->ranks;
    in.settings.shard_group = (size_t)o->shard_group;
    in.ranks_per_host = (size_t)o->plan_ranks_per_host;
#ifndef CUDA_ON_CPU
    in.staged = 1;
    in.nccl = o->transport != OPTION_TRANSPORT_MPI;
#else
    in.nccl = o->transport == OPTION_TRANSPORT_NCCL;
#endif
    in.device_bytes = o->device_memory * 1e9;
    in.link_bytes_per_second = o->link_gbs * 1e9;
    const double peak = in.settings.dtype == ZERO_BF16 ? 989 : o->tf32 ? 494 : 67;  // an H100's
    in.peak_flops = (options_given(o, "peak-tflops") ? o->peak_tflops : peak) * 1e12;
    in.efficiency = o->efficiency;
    Plan plan;
    if (plan_make(&plan, &in, err, sizeof err) != 0) die("--plan: %s", err);
    if (r->choice[0] != '\0' && o->plan == OPTION_PLAN_TEXT) printf("%s\n", r->choice);
    (o->plan == OPTION_PLAN_JSON ? plan_print_json : plan_print)(stdout, &plan, &in);
#ifdef CUDA_ON_CPU
    if (o->plan == OPTION_PLAN_TEXT && (in.settings.dtype == ZERO_F32 || !in.nccl)) {
        printf("this is a plan for %s and %s, as this program is built for a CPU; for GPUs add --precision bf16 "
               "--transport nccl\n",
               in.settings.dtype == ZERO_F32 ? "FP32" : "BF16", in.nccl ? "NCCL" : "MPI");
    }
#endif
    if (ATTENTION_CUDNN && in.settings.dtype == ZERO_BF16 && o->plan == OPTION_PLAN_TEXT) {
        printf("of the activations, scratch of cuDNN's attention: %zu bytes\n",
               attention_scratch<bf16>(in.B, in.T, r->config.num_heads));
    }
    free(tensors);
    free(order);
}

static Run run;

// A transport that has given up on another rank may leave the device in disorder. It knows which rank, and in which
// phase.
static void ask_transport(void) {
    device_has_failed = NULL;
    if (run.comm != NULL && zero_comm_synchronize(run.comm, run.stream) == ZERO_ERR_COMM)
        die("%s", zero_comm_error(run.comm));
}

int main(int argc, char **argv) {
    Run *r = &run;
    device_has_failed = ask_transport;
    setvbuf(stdout, NULL, _IOLBF, 0);

    OptionsBuild build = {};
#ifdef CUDA_ON_CPU
    build.cpu = 1;
#endif
    build.bf16 = FLOATX == ZERO_BF16;
    char err[ERR_BYTES];
    const int parsed = options_parse(&r->options, &build, argc, argv, err, sizeof err);
    const int first = launch_begin(&r->options, parsed, &argc, &argv);  // the first rank whose command line is wrong
    r->rank = launch()->rank;
    r->ranks = launch()->ranks;
    if (parsed != 0 || first < r->ranks) {
        if (r->rank == 0 && parsed > 0) options_help(stdout, argv[0]);
        if (r->rank == first) fprintf(stderr, "error: %s\n", err);
        launch_end();
        return first == r->ranks ? EXIT_SUCCESS : EXIT_FAILURE;
    }

    if (r->options.plan && r->options.plan_ranks > 0) r->ranks = (int)r->options.plan_ranks;
    if (!r->options.plan) choose_device(r);
    choose_model_and_data(r);
    r->B = (size_t)r->options.batch_size;
    r->T = (size_t)r->options.seq_len;
    if (options_check_batch(&r->options, (size_t)r->ranks, r->config.max_seq_len, &r->G, err, sizeof err) != 0)
        die("%s", err);
    r->M = r->G * (size_t)r->ranks;
    if (r->options.plan) {
        if (r->rank == 0) print_plan(r);
        launch_end();
        return EXIT_SUCCESS;
    }
    open_data(r);
    r->inputs = (int *)allocate(r->B * r->T * sizeof(int));
    r->targets = (int *)allocate(r->B * r->T * sizeof(int));
    r->host_losses = (float *)pinned(r->G * r->B * r->T * sizeof(float));
    if (r->host_losses == NULL) die("no pinned host memory for the losses of a step: use a smaller -d");
    r->losses = (double *)allocate(r->G * sizeof(double));
    r->all_losses = (double *)allocate(r->M * sizeof(double));

    r->process_start = process_memory((size_t)r->sharers);
    create_model(r);
    open_log(r);
    if (r->choice[0] != '\0') say(r, "%s\n", r->choice);
    print_header(r);
    set_parameters(r);
    train(r);
    print_reports(r);
    if (r->profile != NULL) print_profile(r);
    if (r->options.hash) {
        uint64_t params, optimizer;
        must(r, zero_hash(r->z, &params, &optimizer), "hash");
        say(r, "state hash: params %016llx optimizer %016llx\n", (unsigned long long)params,
            (unsigned long long)optimizer);
    }

    if (r->rank == 0 && (fflush(stdout) != 0 || ferror(stdout)))
        die("standard output could not be written: %s", strerror(errno));
    trainlog_close(&r->log);
    gpt2_destroy(&r->model);
    zero_destroy(r->z);
    profile_destroy(r->profile);
    zero_comm_destroy(r->replica_comm);
    if (r->shard_comm != r->comm) zero_comm_destroy(r->shard_comm);
    zero_comm_destroy(r->comm);
    matmul_destroy();
    if constexpr (ATTENTION_CUDNN) attention_cudnn_destroy();
    cudaCheck(cudaStreamDestroy(r->stream));
    tokenizer_close(r->tokenizer);
    loader_close(r->train);
    loader_close(r->val);
    free(r->tensors);
    cudaCheck(cudaFreeHost(r->host_losses));
    free(r->inputs);
    free(r->targets);
    free(r->losses);
    free(r->all_losses);
    launch_end();
    return EXIT_SUCCESS;
}
#endif
