// GPT-2, trained with its parameters, gradients and optimizer state sharded over the ranks (ZeRO): the model's forward
// and backward, the training loop, and main.
//
// The model knows nothing about ranks or stages. It asks a GPT2Units for its parameters and for buffers for its
// gradients, one *unit* at a time; in the trainer that is the engine (zero/zero.h), in tests plain buffers. Unit 0 is
// the embeddings wte (also the head) and wpe with the final layernorm; unit 1 + l is layer l. A unit is acquired just
// before it is used and released just after, so stage 3 never holds more than a few of them. For two layers (P:
// parameters held, G: gradients held):
//
//                          forward                             backward
//              encoder  layer 0  layer 1  head     head  layer 1  layer 0  encoder
//     unit 0      P                        P        PG      G        G        G    > reduce-scatter
//     unit 1               P                                         PG  > reduce-scatter
//     unit 2                        P                       PG  > reduce-scatter
//
// Kernels, the list of tensors and model files are in dev/gpt2/, the rest of the trainer in dev/trainer/.
// The same source runs on a GPU and on a CPU (zero/device.cuh explains how). Kernels work on packs of 8 elements,
// compute in fp32 and store floatX: float, or bf16 with -DPRECISION_BF16. Moments, log-sum-exps, losses and partial
// sums are always fp32.
//
// Everything is deterministic: no floating-point atomics; a sum over rows is cut into chunks by the shape of the
// problem, never by the number of threads, and chunks are added in ascending order. The same input gives the same bits
// in every run, and recomputing an activation in the backward changes nothing.
//
// Names: B sequences of T tokens, R = B * T rows; C channels, NH heads of size HS; L layers; V words, Vp with padding.
// Arrays are row-major. A "d" before a name means the gradient of the loss with respect to it.
#define OMPI_SKIP_MPICXX 1  // only the C interface of Open MPI: the C++ one does not compile without warnings
#include <mpi.h>

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "gpt2/activation_offload.h"
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

// Where the model gets its units from. Pointers are device memory in the layout of zero_layout: tensor t at element
// tensor_offset[t] of its unit. A gradient buffer is zero when acquired. The functions do not return errors: the
// provider ends the job itself.
typedef struct GPT2Units {
    void *ctx;
    void *(*acquire_params)(void *ctx, size_t unit);
    void (*release_params)(void *ctx, size_t unit);
    void *(*acquire_grads)(void *ctx, size_t unit);
    void (*release_grads)(void *ctx, size_t unit);
} GPT2Units;

// The activations, in one allocation. X: floatX, or the type of another build whose size is wanted. Arrays with a layer
// index are strided for the largest R.
template <class X> struct ActivationsOf {
    X *residual;              // [L + 1, R, C]: the input of each layer, and the output of the last; two if offloaded
    X *normed;                // [2 L + 1, R, C]: outputs of ln1 and ln2 of each layer, and of lnf; one if recomputed
    X *qkv, *atty;            // [L, R, 3C], [L, R, C]
    X *attended;              // [L, R, C]: residual stream after the attention
    X *fch, *fch_gelu;        // [L, R, 4C], before and after GELU; one of the second if recomputed
    X *logits;                // [head_rows, Vp], then their gradients: of one chunk of rows
    float *dhead;             // [Vp, C], the sum of the chunks' gradients of wte; none if there is one chunk
    float *mean, *rstd;       // [2 L + 1, R], as normed
    float *lse;               // [L, B, NH, T]
    float *losses;            // [R]
    X *dresidual;             // [R, C]
    X *dnarrow;               // [R, C]: the gradient of a layernorm's output, or of atty
    X *dwide;                 // [R, 4C]: the gradient of fch_gelu and fch, or of qkv
    char *attention_scratch;  // see gpt2/attention.cuh
    float *partial;           // [max_chunks(R), 4C]: sums over rows
    int *inputs, *targets;    // [R]
    TokenRows rows;           // of inputs, for the encoder's backward
    X *dembedding;            // layer by layer: the head's gradients in unit 0, until the encoder's backward
};
typedef ActivationsOf<floatX> Activations;

enum { STAGED_BATCHES = 4 };

typedef struct GPT2 {
    GPT2Config config;
    size_t B, T;          // of the last forward
    size_t max_B, max_T;  // of gpt2_create
    int recompute;
    size_t head_rows;  // rows of the head that are computed at a time, at most max_B * max_T
    size_t streams;    // layer by layer: micro-batches of a step; else 0
    size_t current;    // ... which of them acts is of
    int gelu_fusion;   // GELU in the matrix product: 0 never (set by gpt2_create), 1 forward, 2 also backward
    GPT2Units units;
    zero_mesh mesh;
    zero_accounting *memory;
    cudaStream_t stream;
    size_t first_layer, last_layer;                   // [first, last) of this stage of the pipeline
    size_t embedding_offset[GPT2_EMBEDDING_TENSORS];  // of the tensors in unit 0, in elements
    size_t layer_offset[GPT2_LAYER_TENSORS];          // of the tensors in a layer's unit
    Activations acts;
    ActivationOffload *offload;  // of acts.residual; NULL: it stays on the device
    void *arena;                 // the memory of acts
    size_t arena_bytes;
    floatX *logits;      // [head_rows, Vp], device; after a forward with train, gradients
    float *host_losses;  // [R], pinned
    // [STAGED_BATCHES][5 R + 1], pinned: inputs, targets, TokenRows, staged for the device, so that the host can be
    // several micro-batches ahead of it
    int *host_tokens;
    cudaEvent_t uploaded[STAGED_BATCHES];  // the staged tokens have arrived
    size_t uploads;                        // so far
    int *host_counts;                      // [V + 1]
    size_t *distinct;                      // [max(1, streams)]: tokens in the inputs
} GPT2;

// Takes count elements from the arena, or, with arena NULL, only counts their bytes. 256: CUDA's own alignment.
template <class T> static void take(T **ptr, size_t count, void *arena, size_t *used) {
    *ptr = arena ? (T *)((char *)arena + *used) : NULL;
    *used += ceil_div(count * sizeof(T), 256) * 256;
}

// Rows of the head that are computed at a time: as many as were asked for, or, 0, 8192 (as large as products that keep
// a GPU busy need be: 0.8 GB of logits in bf16), but whole sequences fit.
size_t gpt2_head_rows(size_t asked, size_t B, size_t T) {
    const size_t rows = asked ? asked : 8192;
    return std::min(std::max(rows, T), B * T);
}

// Lays out what a micro-batch keeps from its forward to its backward if there are several at a time: the input of each
// layer. Returns the bytes.
template <class X>
static size_t place_stream(ActivationsOf<X> *a, const GPT2Config *c, size_t R, int by_layer, int offload, void *arena) {
    size_t used = 0;
    take(&a->residual, (offload ? size_t{ ACTIVATION_SLOTS } : c->num_layers + 1) * R * c->channels, arena, &used);
    take(&a->losses, R, arena, &used);
    take(&a->dresidual, R * c->channels, arena, &used);
    take(&a->inputs, R, arena, &used);
    take(&a->targets, R, arena, &used);
    take(&a->rows.token, R, arena, &used);
    take(&a->rows.start, R + 1, arena, &used);
    take(&a->rows.position, R, arena, &used);
    take(&a->dembedding, by_layer ? gpt2_embedding_unit_numel(c) : 0, arena, &used);
    return used;
}

// Lays out the rest, of one micro-batch: of all layers, or, if they are recomputed in the backward, of one.
template <class X>
static size_t place_activations(ActivationsOf<X> *a, const GPT2Config *c, size_t B, size_t T, int recompute,
                                size_t head_rows, size_t L, void *arena) {
    const size_t R = B * T, C = c->channels, norms = 2 * L + 1;
    size_t used = 0;
    take(&a->normed, (recompute < 2 ? norms : 1) * R * C, arena, &used);
    take(&a->qkv, L * R * 3 * C, arena, &used);
    take(&a->atty, L * R * C, arena, &used);
    take(&a->attended, L * R * C, arena, &used);
    take(&a->fch, L * R * 4 * C, arena, &used);
    take(&a->fch_gelu, (recompute < 1 ? L : 1) * R * 4 * C, arena, &used);
    take(&a->logits, head_rows * c->padded_vocab_size, arena, &used);
    take(&a->dhead, head_rows < R ? c->padded_vocab_size * C : 0, arena, &used);
    take(&a->mean, norms * R, arena, &used);
    take(&a->rstd, norms * R, arena, &used);
    take(&a->lse, L * R * c->num_heads, arena, &used);
    take(&a->dnarrow, R * C, arena, &used);
    take(&a->dwide, R * 4 * C, arena, &used);
    take(&a->attention_scratch, attention_scratch<X>(B, T, c->num_heads), arena, &used);
    take(&a->partial, max_chunks(R) * 4 * C, arena, &used);
    return used;
}

// Bytes that gpt2_create accounts under ZERO_MEM_ACTIVATIONS, in a build of this precision: streams is 0, or the
// micro-batches of a step that pass through each layer in turn. offload: the inputs of layers are in host memory.
template <class X>
static size_t activation_bytes(const GPT2Config *c, size_t B, size_t T, int recompute, size_t head_rows, size_t streams,
                               int offload) {
    ActivationsOf<X> a;
    const size_t rows = gpt2_head_rows(head_rows, B, T), layers = streams ? 1 : c->num_layers;
    return place_activations(&a, c, B, T, recompute, rows, layers, NULL) +
           (streams ? streams : 1) * place_stream(&a, c, B * T, streams > 0, offload, NULL);
}

size_t gpt2_activation_bytes(const GPT2Config *c, size_t B, size_t T, int recompute, size_t head_rows,
                             enum zero_dtype precision = FLOATX, size_t streams = 0, int offload = 0) {
    return precision == ZERO_BF16 ? activation_bytes<bf16>(c, B, T, recompute, head_rows, streams, offload)
                                  : activation_bytes<float>(c, B, T, recompute, head_rows, streams, offload);
}

// Frees what gpt2_create allocated. A GPT2 that is all zeros, or whose gpt2_create failed, is fine.
void gpt2_destroy(GPT2 *m) {
    activation_offload_destroy(m->offload);
    if (m->arena) zero_accounting_free(m->memory, ZERO_MEM_ACTIVATIONS, m->arena, m->arena_bytes);
    for (cudaEvent_t e : m->uploaded) {
        if (e) cudaCheck(cudaEventDestroy(e));
    }
    if (m->host_losses) cudaCheck(cudaFreeHost(m->host_losses));
    if (m->host_tokens) cudaCheck(cudaFreeHost(m->host_tokens));
    free(m->host_counts);
    free(m->distinct);
    memset(m, 0, sizeof *m);
}

// The offset of a tensor in its unit does not depend on the number of ranks, so a layout for one rank is enough.
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

// Layers whose activations are kept.
static size_t kept_layers(const GPT2 *m) { return m->streams ? 1 : m->config.num_layers; }

// Returns pinned host memory, to and from which copies are asynchronous; NULL if there is none.
static void *pinned(size_t bytes) {
    void *p = NULL;
    if (cudaMallocHost(&p, bytes) == cudaSuccess) return p;
    (void)cudaGetLastError();
    return NULL;
}

// Makes micro-batch g the one that is computed.
void gpt2_use_stream(GPT2 *m, size_t g) {
    const size_t R = m->max_B * m->max_T;
    const int by_layer = m->streams > 0, offload = m->offload != NULL;
    const size_t of_one = place_stream(&m->acts, &m->config, R, by_layer, offload, NULL);
    const size_t used = place_activations(&m->acts, &m->config, m->max_B, m->max_T, m->recompute, m->head_rows,
                                          kept_layers(m), m->arena);
    place_stream(&m->acts, &m->config, R, by_layer, offload, (char *)m->arena + used + g * of_one);
    m->current = g;
}

// Creates a model for up to B sequences of up to T tokens. recompute: 0 keeps all activations, 1 recomputes GELU in the
// backward, 2 layernorms too, with the same bits. (On a GPU with gelu_fusion the bits differ: its forward takes the
// GELU of a sum that is not yet rounded.) head_rows: see gpt2_head_rows. units and mesh are copied; memory must outlive
// the model. All work is queued on stream. streams, offload: see gpt2_activation_bytes. Returns 0; or ZERO_ERR_MEMORY
// or -1, with a message in err (m is then all zeros). Not collective.
int gpt2_create(GPT2 *m, const GPT2Config *c, size_t B, size_t T, int recompute, size_t head_rows,
                const GPT2Units *units, const zero_mesh *mesh, zero_accounting *memory, cudaStream_t stream, char *err,
                size_t err_bytes, size_t streams = 0, int offload = 0) {
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
    m->head_rows = gpt2_head_rows(head_rows, B, T);
    m->streams = streams;
    m->units = *units;
    m->mesh = *mesh;
    m->memory = memory;
    m->stream = stream;
    zero_pp_units(mesh, c->num_layers, &m->first_layer, &m->last_layer);
    if (find_offsets(m, err, err_bytes)) {
        gpt2_destroy(m);
        return -1;
    }
    m->arena_bytes = gpt2_activation_bytes(c, B, T, recompute, head_rows, FLOATX, streams, offload);
    m->arena = zero_accounting_alloc(memory, ZERO_MEM_ACTIVATIONS, m->arena_bytes);
    m->host_losses = (float *)pinned(R * sizeof(float));
    m->host_tokens = (int *)pinned(STAGED_BATCHES * (5 * R + 1) * sizeof(int));
    m->host_counts = (int *)malloc((c->vocab_size + 1) * sizeof(int));
    m->distinct = (size_t *)calloc(streams + 1, sizeof *m->distinct);
    for (cudaEvent_t &e : m->uploaded) cudaCheck(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
    if (offload) m->offload = activation_offload_create(c, B, T, sizeof(floatX), streams, memory, stream);
    const int all = m->arena && m->host_losses && m->host_tokens && m->host_counts && m->distinct;
    if (!all || (offload && !m->offload)) {
        char refusal[ZERO_REFUSAL_BYTES];
        const size_t bytes = all ? activation_offload_bytes(c, B, T, sizeof(floatX), streams) : m->arena_bytes;
        (void)FAIL("no %smemory for %zu bytes of activations%s: use a smaller %s", all ? "pinned host " : "", bytes,
                   zero_accounting_refusal(memory, bytes, refusal), all ? "-b or -t" : "-b, -t, --head-rows, or -r 2");
        gpt2_destroy(m);
        return ZERO_ERR_MEMORY;
    }
    gpt2_use_stream(m, 0);
    m->logits = m->acts.logits;
    return 0;
}

// ---------------------------------------------------------------------------------------------------------------------
// Forward.

// The activations of layer l.
typedef struct LayerActivations {
    floatX *residual, *ln1, *qkv, *atty, *attended, *ln2, *fch, *fch_gelu, *out;
    float *ln1_mean, *ln1_rstd, *lse, *ln2_mean, *ln2_rstd;
} LayerActivations;

// The residual stream at the input of layer l; l = L: at the output of the last.
static floatX *residual_stream(const GPT2 *m, size_t l) {
    return m->acts.residual + (m->offload ? l % ACTIVATION_SLOTS : l) * m->max_B * m->max_T * m->config.channels;
}

static LayerActivations layer_activations(const GPT2 *m, size_t l) {
    const size_t R = m->max_B * m->max_T, RC = R * m->config.channels;
    const Activations *a = &m->acts;
    LayerActivations x;
    x.residual = residual_stream(m, l);
    x.out = residual_stream(m, l + 1);
    if (m->streams) l = 0;
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
    return x;
}

// The final layernorm.
typedef struct FinalActivations {
    floatX *inp, *out;
    float *mean, *rstd;
} FinalActivations;

static FinalActivations final_activations(const GPT2 *m) {
    const size_t R = m->max_B * m->max_T, RC = R * m->config.channels, L = kept_layers(m);
    const Activations *a = &m->acts;
    floatX *out = a->normed + (m->recompute < 2 ? 2 * L * RC : 0);
    return FinalActivations{ residual_stream(m, m->config.num_layers), out, a->mean + 2 * L * R, a->rstd + 2 * L * R };
}

// --offload-activations (gpt2/activation_offload.h). Queues the copy of layer l's complete input to the host.
static void offload_input(GPT2 *m, size_t l) {
    cudaCheck(activation_offload_out(m->offload, m->current, l, residual_stream(m, l), m->B * m->T, profile));
}

// Queues the copy back of the input of the layer below l, which the backward uses next, once its slot is not in use.
static void read_ahead(GPT2 *m, size_t l) {
    if (l == 0) return;
    cudaCheck(activation_offload_in(m->offload, m->current, l - 1, residual_stream(m, l - 1), m->B * m->T, profile));
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

// Copies by way of pinned memory, so that the host does not wait for the device.
static void upload_tokens(const GPT2 *m, int *to, const int *tokens, int *staging) {
    memcpy(staging, tokens, m->B * m->T * sizeof(int));
    upload(m, to, staging, m->B * m->T);
}

static void upload_token_rows(GPT2 *m, const int *inputs, int *staging) {
    const size_t R = m->B * m->T;
    const TokenRows rows = { staging + 2 * R, staging + 4 * R, staging + 3 * R };
    const size_t distinct = sort_token_rows(&rows, inputs, R, m->config.vocab_size, m->host_counts);
    m->distinct[m->current] = distinct;
    upload(m, m->acts.rows.token, rows.token, distinct);
    upload(m, m->acts.rows.start, rows.start, distinct + 1);
    upload(m, m->acts.rows.position, rows.position, R);
}

// With tensor parallelism, the bias of a row-parallel product is added by one rank only, before the sum over ranks.
static const floatX *bias_once(const GPT2 *m, const floatX *bias) { return m->mesh.tensor_rank == 0 ? bias : NULL; }

static void layer_forward(GPT2 *m, size_t l, const floatX *p) {
    const size_t B = m->B, T = m->T, C = m->config.channels, NH = m->config.num_heads, R = B * T;
    const size_t *offset = m->layer_offset;
    const LayerActivations x = layer_activations(m, l);
    cudaStream_t s = m->stream;
    floatX *branch = m->acts.dnarrow;  // free until the backward

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
    cudaCheck(activation_offload_wait(m->offload, m->current, l + 1));  // what was in its slot has been copied
    residual(x.out, x.attended, branch, R * C, s);
}

// Does the last forward's head take several chunks of rows?
static int head_in_chunks(const GPT2 *m) { return m->B * m->T > m->head_rows; }

// The head, a chunk of rows at a time: logits, losses, and with train the logits' gradients. With several chunks these
// do not stay until the backward: each chunk adds to the gradient of wte, in ascending order, and leaves that of its
// rows in dnarrow, which is free until the backward's head.
static void head_forward(GPT2 *m, const floatX *wte, int with_targets, int train) {
    const size_t V = m->config.vocab_size, Vp = m->config.padded_vocab_size, C = m->config.channels, R = m->B * m->T;
    const Activations *a = &m->acts;
    const floatX *inp = final_activations(m).out;
    for (size_t r = 0; r < R; r += m->head_rows) {
        const size_t rows = std::min(m->head_rows, R - r);
        linear_forward(m->logits, inp + r * C, wte, NULL, rows, C, Vp, m->stream);
        if (!with_targets) return;
        classifier(m->logits, a->losses + r, a->targets + r, 1.0f / (float)R, rows, V, Vp, train, m->stream);
        if (train && head_in_chunks(m))
            linear_backward_rows(a->dnarrow + r * C, a->dhead, m->logits, inp + r * C, wte, rows, C, Vp, r == 0,
                                 m->stream);
    }
}

static void load_tokens(GPT2 *m, const int *inputs, const int *targets, size_t B, size_t T, int train) {
    const size_t R = B * T;
    check_tokens(m, inputs, R, "inputs");
    if (targets) check_tokens(m, targets, R, "targets");
    m->B = B;
    m->T = T;
    const cudaEvent_t uploaded = m->uploaded[m->uploads % STAGED_BATCHES];
    int *staging = m->host_tokens + m->uploads++ % STAGED_BATCHES * (5 * m->max_B * m->max_T + 1);
    if (cudaEventQuery(uploaded) != cudaSuccess)
        cudaCheck(cudaEventSynchronize(uploaded));  // the STAGED_BATCHES-th micro-batch before this one has begun
    upload_tokens(m, m->acts.inputs, inputs, staging);
    if (targets) upload_tokens(m, m->acts.targets, targets, staging + R);
    if (train) upload_token_rows(m, inputs, staging);
    cudaCheck(cudaEventRecord(uploaded, m->stream));
}

static void final_layernorm(GPT2 *m, const floatX *p) {
    const FinalActivations f = final_activations(m);
    layernorm_forward(f.out, f.mean, f.rstd, f.inp, p + m->embedding_offset[LNFW], p + m->embedding_offset[LNFB],
                      m->B * m->T, m->config.channels, m->stream);
}

// Queues a forward pass. inputs, targets: host int[B * T], tokens below vocab_size; B and T at most those of
// gpt2_create. targets NULL: inference; leaves the logits of the first head_rows positions in m->logits. Else computes
// the losses, for gpt2_loss; with train also the gradients of the head, of losses scaled by 1 / (B * T), and
// gpt2_backward may follow. All ranks that share the units must call it.
void gpt2_forward(GPT2 *m, const int *inputs, const int *targets, size_t B, size_t T, int train) {
    const size_t C = m->config.channels, R = B * T;
    const Activations *a = &m->acts;
    cudaStream_t s = m->stream;
    if (!B || !T || B > m->max_B || T > m->max_T || (train && (!targets || m->streams)))
        fatal(__FILE__, __LINE__, "gpt2_forward: B %zu T %zu train %d, but the model was made for B %zu T %zu", B, T,
              train, m->max_B, m->max_T);
    load_tokens(m, inputs, targets, B, T, train);

    zero_nvtx_push("forward", 0);
    const floatX *p = acquire_params(m, 0);
    encoder_forward(a->residual, a->inputs, p + m->embedding_offset[WTE], p + m->embedding_offset[WPE], B, T, C, s);
    release_params(m, 0);
    zero_nvtx_pop();

    zeroCheck(zero_pp_recv(&m->mesh, layer_activations(m, m->first_layer).residual, FLOATX, R * C, s));
    for (size_t l = m->first_layer; l < m->last_layer; l++) {
        zero_nvtx_push("forward", 1 + l);
        if (train) offload_input(m, l);
        layer_forward(m, l, acquire_params(m, 1 + l));
        release_params(m, 1 + l);
        zero_nvtx_pop();
    }
    zeroCheck(zero_pp_send(&m->mesh, layer_activations(m, m->last_layer).residual, FLOATX, R * C, s));

    zero_nvtx_push("head", 0);
    p = acquire_params(m, 0);
    final_layernorm(m, p);
    head_forward(m, p + m->embedding_offset[WTE], targets != NULL, train);
    release_params(m, 0);
    zero_nvtx_pop();
}

// Queues a copy of the losses of the last forward, which had targets: to[B * T], pinned. Not collective.
void gpt2_copy_losses(const GPT2 *m, float *to) {
    cudaCheck(cudaMemcpyAsync(to, m->acts.losses, m->B * m->T * sizeof(float), cudaMemcpyDeviceToHost, m->stream));
}

// The mean of n fp32 losses, added in double, in order.
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
// Backward. dresidual is the gradient of the residual stream, from the head back to the embeddings.

static void layer_backward(GPT2 *m, size_t l, const floatX *p, floatX *g) {
    const size_t B = m->B, T = m->T, C = m->config.channels, NH = m->config.num_heads, R = B * T;
    const size_t *offset = m->layer_offset;
    const LayerActivations x = layer_activations(m, l);
    const Activations *a = &m->acts;
    floatX *dresidual = a->dresidual, *dnarrow = a->dnarrow, *dwide = a->dwide;
    cudaStream_t s = m->stream;

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
    cudaCheck(activation_offload_wait(m->offload, m->current, l));
    if (m->recompute >= 2)
        layernorm_forward(x.ln1, x.ln1_mean, x.ln1_rstd, x.residual, p + offset[LN1W], p + offset[LN1B], R, C, s);
    linear_backward(dnarrow, g + offset[QKVW], g + offset[QKVB], a->partial, dwide, x.ln1, p + offset[QKVW], R, C,
                    3 * C, s);
    zeroCheck(zero_tp_reduce(&m->mesh, dnarrow, FLOATX, R * C, s));
    layernorm_backward(dresidual, g + offset[LN1W], g + offset[LN1B], a->partial, dnarrow, x.residual, p + offset[LN1W],
                       x.ln1_mean, x.ln1_rstd, R, C, s);
}

// From the logits' gradients to that of the residual stream, with g the gradients of unit 0.
static void head_backward(GPT2 *m, const floatX *p, floatX *g) {
    const size_t C = m->config.channels, Vp = m->config.padded_vocab_size, R = m->B * m->T;
    const size_t *offset = m->embedding_offset;
    const Activations *a = &m->acts;
    const FinalActivations f = final_activations(m);
    cudaStream_t s = m->stream;
    if (head_in_chunks(m))
        round_head(g + offset[WTE], a->dhead, Vp * C, s);
    else
        linear_backward(a->dnarrow, g + offset[WTE], NULL, a->partial, m->logits, f.out, p + offset[WTE], R, C, Vp, s);
    cudaCheck(cudaMemsetAsync(a->dresidual, 0, R * C * sizeof(floatX), s));
    layernorm_backward(a->dresidual, g + offset[LNFW], g + offset[LNFB], a->partial, a->dnarrow, f.inp,
                       p + offset[LNFW], f.mean, f.rstd, R, C, s);
}

static void encode_backward(GPT2 *m, floatX *g) {
    encoder_backward(g + m->embedding_offset[WTE], g + m->embedding_offset[WPE], m->acts.dresidual, m->acts.rows,
                     m->distinct[m->current], m->B, m->T, m->config.channels, m->stream);
}

// Queues the backward of the last forward, which had train set: writes the gradients of all units. wte is used at both
// ends, so the gradients of unit 0 are held from the head to the encoder. All ranks that share the units must call it.
void gpt2_backward(GPT2 *m) {
    const size_t R = m->B * m->T, C = m->config.channels;
    const Activations *a = &m->acts;
    cudaStream_t s = m->stream;
    zero_nvtx_push("head backward", 0);
    const floatX *params = acquire_params(m, 0);
    floatX *g = acquire_grads(m, 0);
    head_backward(m, params, g);
    release_params(m, 0);
    zero_nvtx_pop();

    zeroCheck(zero_pp_recv(&m->mesh, a->dresidual, FLOATX, R * C, s));
    for (size_t l = m->last_layer; l-- > m->first_layer;) {
        zero_nvtx_push("backward", 1 + l);
        read_ahead(m, l);
        const floatX *p = acquire_params(m, 1 + l);
        layer_backward(m, l, p, acquire_grads(m, 1 + l));
        release_grads(m, 1 + l);
        release_params(m, 1 + l);
        zero_nvtx_pop();
    }
    zeroCheck(zero_pp_send(&m->mesh, a->dresidual, FLOATX, R * C, s));

    zero_nvtx_push("backward", 0);
    encode_backward(m, g);
    release_grads(m, 0);
    zero_nvtx_pop();
}

// ---------------------------------------------------------------------------------------------------------------------
// Layer by layer: all micro-batches of a step pass through a unit before the next one is acquired. Each keeps the input
// of every layer; the backward computes a layer's activations from it once more. The head's gradients in unit 0 wait
// until the encoder's are there. Bits are those of one micro-batch after the other.

// Micro-batch g of m->streams. inputs, targets: host int[B * T].
void gpt2_load(GPT2 *m, size_t g, const int *inputs, const int *targets, size_t B, size_t T) {
    gpt2_use_stream(m, g);
    load_tokens(m, inputs, targets, B, T, 1);
}

void gpt2_forward_by_layer(GPT2 *m) {
    const size_t *offset = m->embedding_offset;
    const floatX *p = acquire_params(m, 0);
    for (size_t g = 0; g < m->streams; g++) {
        gpt2_use_stream(m, g);
        encoder_forward(m->acts.residual, m->acts.inputs, p + offset[WTE], p + offset[WPE], m->B, m->T,
                        m->config.channels, m->stream);
    }
    release_params(m, 0);
    for (size_t l = 0; l < m->config.num_layers; l++) {
        p = acquire_params(m, 1 + l);
        for (size_t g = 0; g < m->streams; g++) {
            gpt2_use_stream(m, g);
            offload_input(m, l);
            layer_forward(m, l, p);
        }
        release_params(m, 1 + l);
    }
}

// The head, forward and backward, and the backward of the rest.
void gpt2_backward_by_layer(GPT2 *m) {
    const size_t bytes = gpt2_embedding_unit_numel(&m->config) * sizeof(floatX);
    acquire_params(m, 0);  // the order of units has it twice, as two passes need it
    release_params(m, 0);
    const floatX *p = acquire_params(m, 0);
    for (size_t g = 0; g < m->streams; g++) {
        gpt2_use_stream(m, g);
        cudaCheck(cudaMemsetAsync(m->acts.dembedding, 0, bytes, m->stream));
        final_layernorm(m, p);
        head_forward(m, p + m->embedding_offset[WTE], 1, 1);
        head_backward(m, p, m->acts.dembedding);
    }
    release_params(m, 0);
    for (size_t l = m->config.num_layers; l-- > 0;) {
        p = acquire_params(m, 1 + l);
        for (size_t g = 0; g < m->streams; g++) {
            gpt2_use_stream(m, g);
            cudaCheck(activation_offload_wait(m->offload, m->current, l));
            layer_forward(m, l, p);
            read_ahead(m, l);
            layer_backward(m, l, p, acquire_grads(m, 1 + l));
            release_grads(m, 1 + l);
        }
        release_params(m, 1 + l);
    }
    for (size_t g = 0; g < m->streams; g++) {
        gpt2_use_stream(m, g);
        floatX *grads = acquire_grads(m, 0);
        cudaCheck(cudaMemcpyAsync(grads, m->acts.dembedding, bytes, cudaMemcpyDeviceToDevice, m->stream));
        encode_backward(m, grads);
        release_grads(m, 0);
    }
}

// =====================================================================================================================
// The model ends here; what follows trains it.
// ---------------------------------------------------------------------------------------------------------------------
// The training run (trainer/run.h). All ranks execute the same calls in the same order, and decide on the same numbers.
// A step, with G micro-batches per rank and L layers:
//
//     zero_begin_step
//     G times: gpt2_forward     per unit: acquire parameters, compute, release
//              gpt2_backward    per unit, in reverse: acquire parameters and gradients, compute, release both;
//                               releasing gradients starts their reduce-scatter while the next unit computes
//              zero_finish_backward
//     (--micro-batch-order layer: gpt2_forward_by_layer and gpt2_backward_by_layer do all G, unit by unit)
//     zero_grad_norm            one number, the same on all ranks; it stays on the device
//     zero_step                 the optimizer on this rank's shard, unless the norm is not finite
//
// All of it is queued (with NCCL losses.h, too, before zero_step); the host waits at the end of the step. With -sl or
// -sg it waits for the norm and the losses first, and may call zero_discard instead of zero_step.

#ifndef TESTING
#include <errno.h>
#include <math.h>

#include "data/random.h"               // sampling
#include "device/process.h"            // the memory of the process
#include "trainer/bad_numbers.h"       // losses, norms and parameters that are not finite
#include "trainer/directory.h"         // the lock of the output directory
#include "trainer/environment.h"       // what a launcher left there
#include "trainer/losses.h"            // gathering the losses of a step
#include "trainer/memory.h"            // what fits
#include "trainer/metrics.h"           // the numbers of each step, as JSON
#include "trainer/progress.h"          // the time that is left, on a terminal
#include "trainer/reports.h"           // header, tables, plan, profile
#include "trainer/run.h"               // Run; errors and agreement between ranks
#include "trainer/setup.h"             // device, model, data, transport
#include "trainer/checkpoint.h"        // initial weights, resuming
#include "trainer/checkpoint_write.h"  // checkpoints, in the background
#include "trainer/signals.h"           // whether the run was asked to stop
#include "zero/clock.h"
#include "zero/zero.h"  // the engine

#define SAMPLING_SEED 1337

// ---------------------------------------------------------------------------------------------------------------------
// The engine gives the model its units.

static void *unit_params(void *ctx, size_t unit) {
    const Run *r = (const Run *)ctx;
    void *p = const_cast<void *>(zero_acquire_params(r->z, unit));
    if (p == NULL) must(r, zero_release_params(r->z, unit), "parameters of a unit");  // it returns the failure again
    return p;
}

static void unit_params_done(void *ctx, size_t unit) {
    const Run *r = (const Run *)ctx;
    must(r, zero_release_params(r->z, unit), "parameters of a unit");
}

static void *unit_grads(void *ctx, size_t unit) {
    const Run *r = (const Run *)ctx;
    void *p = zero_acquire_grads(r->z, unit, zero_get_micro_batches(r->z) + r->model->current);
    if (p == NULL) must(r, zero_release_grads(r->z, unit), "gradients of a unit");  // it returns the failure again
    return p;
}

static void unit_grads_done(void *ctx, size_t unit) {
    const Run *r = (const Run *)ctx;
    must(r, zero_release_grads(r->z, unit), "gradients of a unit");
}

// --profile: the engine's own work is timed by the same clock as the kernels.
static void time_engine(void *ctx, const char *work, int begin, cudaStream_t on) {
    (void)ctx;
    if (begin)
        profile_begin(profile, work, on);
    else
        profile_end(profile);
}

static void create_engine(Run *r) {
    zero_config c = {};
    c.settings = r->options.settings;
    c.num_tensors = gpt2_num_tensors(&r->config);
    r->tensors = (zero_tensor *)allocate(c.num_tensors * sizeof *r->tensors);
    gpt2_tensors(&r->config, r->tensors);
    c.tensors = r->tensors;
    c.order_length = gpt2_unit_order(&r->config, NULL);
    size_t *order = (size_t *)allocate(c.order_length * sizeof *order);
    gpt2_unit_order(&r->config, order);
    c.order = order;
    c.shard_comm = r->shard_comm;
    c.replicate_comm = r->replica_comm;
    c.offload_dir = r->options.offload_dir;
    c.offload_params_dir = r->options.offload_params_dir;
    c.accounting = &r->memory;
    c.micro_batches = r->G;
    c.stream = r->stream;
    if (r->options.profile > 0 && r->rank == 0) {
        c.timing = time_engine;
        r->profile = profile_create();
        if (r->profile == NULL) die("the host's memory is exhausted");
    }
    const int status = zero_create(&r->z, &c);
    if (r->z == NULL) die("the host's memory is exhausted");
    must(r, status, "creation of the engine");
    free(order);
}

static void create_model(Run *r, GPT2 *model) {
    const Options *o = &r->options;
    char err[ERR_BYTES] = "";
    GPT2Units units = {};
    units.ctx = r;
    units.acquire_params = unit_params;
    units.release_params = unit_params_done;
    units.acquire_grads = unit_grads;
    units.release_grads = unit_grads_done;
    const int status = gpt2_create(model, &r->config, r->B, r->T, (int)o->recompute, (size_t)o->head_rows, &units,
                                   &r->mesh, &r->memory, r->stream, err, sizeof err,
                                   o->settings.order == ZERO_ORDER_LAYER ? r->G : 0, (int)o->offload_activations);
    if (status == ZERO_ERR_MEMORY) die_of_memory(r, err);
    if (status != 0) die("-b %zu -t %zu: %s", r->B, r->T, err);
    model->gelu_fusion = (int)o->gelu_fusion;
    matmul_set_tf32((int)o->tf32);
    r->model = model;
    r->activations = model->offload;
}

// ---------------------------------------------------------------------------------------------------------------------
// Validation and sampling.

static void read_batch(const Run *r, Loader *loader, size_t j) {
    char err[512];
    if (loader_batch(loader, j, r->inputs, r->targets, err) != 0) die("%s", err);
}

// The mean of losses that the ranks computed in `rounds` rounds, each of them in_a_row micro-batches j in a row: with 1
// the loss of j = g * N + r is all[r * rounds + g]. rounds may be larger. Adds in the order of j, so that the number of
// ranks does not matter.
static double mean_loss(const double *all, size_t ranks, size_t rounds, size_t in_a_row, size_t count) {
    double sum = 0;
    for (size_t j = 0; j < count; j++) {
        const size_t block = j / in_a_row;
        sum += all[block % ranks * rounds + block / ranks * in_a_row + j % in_a_row];
    }
    return sum / (double)count;
}

// Returns the mean loss of the first -m validation micro-batches, which the ranks share out. In the last round some
// ranks may have none left: they compute one that is not counted, because all ranks must acquire the same units.
// Collective.
static double validate(Run *r) {
    const size_t count = val_micro_batches(r), ranks = (size_t)r->ranks;
    const size_t rounds = ceil_div(count, ranks);
    double *mine = (double *)allocate(rounds * sizeof *mine);
    double *all = (double *)allocate(rounds * ranks * sizeof *all);
    for (size_t g = 0; g < rounds; g++) {
        const size_t j = g * ranks + (size_t)r->rank;
        read_batch(r, r->val, j < count ? j : 0);
        gpt2_forward(r->model, r->inputs, r->targets, r->B, r->T, 0);
        mine[g] = gpt2_loss(r->model);
    }
    gather(r, mine, rounds * sizeof *mine, all);
    const double loss = mean_loss(all, ranks, rounds, 1, count);
    free(mine);
    free(all);
    return loss;
}

// Returns how many HellaSwag examples are answered right. Their completions are rows; B rows make a micro-batch, and
// the ranks share out the micro-batches as in validate, so the answers do not depend on their number. Collective.
static size_t evaluate_hellaswag(Run *r) {
    const HellaSwag *h = r->hellaswag;
    const size_t rows = hellaswag_rows(h), ranks = (size_t)r->ranks, B = r->B;
    const size_t rounds = ceil_div(ceil_div(rows, B), ranks);
    size_t T = 32, begin, end;  // as in sample
    while (T < hellaswag_longest(h)) T *= 2;
    if (T > r->T) T = r->T;
    double *mine = (double *)allocate(rounds * B * sizeof *mine);
    double *all = (double *)allocate(rounds * B * ranks * sizeof *all);
    double *losses = (double *)allocate(rounds * B * ranks * sizeof *losses);
    for (size_t g = 0; g < rounds; g++) {
        const size_t first = (g * ranks + (size_t)r->rank) * B;
        for (size_t b = 0; b < B; b++)
            hellaswag_row(h, (first + b) % rows, T, r->inputs + b * T, r->targets + b * T, &begin, &end);
        gpt2_forward(r->model, r->inputs, r->targets, B, T, 0);
        gpt2_copy_losses(r->model, r->host_losses);
        cudaCheck(cudaStreamSynchronize(r->stream));
        for (size_t b = 0; b < B; b++) {
            hellaswag_row(h, (first + b) % rows, T, NULL, NULL, &begin, &end);
            mine[g * B + b] = gpt2_mean_loss(r->host_losses + b * T + begin, end - begin);
        }
    }
    gather(r, mine, rounds * B * sizeof *mine, all);
    for (size_t row = 0; row < rows; row++) {
        const size_t j = row / B;
        losses[row] = all[(j % ranks * rounds + j / ranks) * B + row % B];
    }
    const size_t correct = hellaswag_correct(h, losses);
    free(mine);
    free(all);
    free(losses);
    return correct;
}

// A bf16 is the upper half of a float.
static float to_float(floatX x) {
    uint32_t bits = 0;
    memcpy((char *)&bits + sizeof bits - sizeof x, &x, sizeof x);
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

// Draws a token with the probabilities softmax(logits / temperature); coin is a random number in [0, 1). top_k > 0: one
// of those with the top_k largest logits. Changes logits.
static int choose_token(float *logits, size_t V, double coin, double temperature, size_t top_k) {
    size_t best = 0;
    for (size_t i = 1; i < V; i++) best = logits[i] > logits[best] ? i : best;
    if (temperature == 0) return (int)best;
    const double highest = logits[best];
    if (top_k > 0 && top_k < V) {
        std::vector<float> sorted(logits, logits + V);
        std::nth_element(sorted.begin(), sorted.begin() + (ptrdiff_t)(top_k - 1), sorted.end(), std::greater<float>());
        for (size_t i = 0; i < V; i++) logits[i] = logits[i] < sorted[top_k - 1] ? -INFINITY : logits[i];
    }
    double sum = 0;
    for (size_t i = 0; i < V; i++) sum += exp((logits[i] - highest) / temperature);
    double below = 0;
    for (size_t i = 0; i < V; i++) {
        below += exp((logits[i] - highest) / temperature);
        if (coin * sum < below) return (int)i;
    }
    return (int)V - 1;
}

static void print_token(Run *r, int token) {
    if (r->tokenizer != NULL)
        print0(r, "%s", tokenizer_decode(r->tokenizer, token));
    else
        print0(r, "%d ", token);
    if (r->rank == 0) fflush(stdout);
}

// Generates a text that begins with the prompt, token by token. All ranks take part and go on with rank 0's tokens;
// rank 0 prints. Collective.
static void sample(Run *r) {
    const size_t V = r->config.vocab_size;
    const Options *o = &r->options;
    const size_t given = 1 + r->prompt_tokens, tokens = given + (size_t)o->sample_tokens;
    const int eot = r->tokenizer != NULL ? tokenizer_eot(r->tokenizer) : (int)(V > 50256 ? 50256 : V - 1);
    int *text = (int *)allocate(tokens * sizeof *text);
    floatX *row = (floatX *)allocate(V * sizeof *row);
    float *logits = (float *)allocate(V * sizeof *logits);
    int *all = (int *)allocate((size_t)r->ranks * sizeof *all);
    uint64_t random = SAMPLING_SEED;
    text[0] = eot;
    print0(r, "generating:\n---\n");
    for (size_t n = 1; n < given; n++) print_token(r, text[n] = r->prompt[n - 1]);
    for (size_t n = given; n < tokens; n++) {
        // The context is the last T tokens. The input is padded to one of a few lengths, for which libraries make
        // plans; what follows the context does not matter.
        const size_t context = n < r->T ? n : r->T;
        size_t length = 32;
        while (length < context) length *= 2;
        if (length > r->T) length = r->T;
        for (size_t i = 0; i < length; i++) r->inputs[i] = i < context ? text[n - context + i] : eot;
        gpt2_forward(r->model, r->inputs, NULL, 1, length, 0);
        const floatX *from = r->model->logits + (context - 1) * r->config.padded_vocab_size;
        cudaCheck(cudaMemcpyAsync(row, from, V * sizeof *row, cudaMemcpyDeviceToHost, r->stream));
        cudaCheck(cudaStreamSynchronize(r->stream));
        for (size_t i = 0; i < V; i++) logits[i] = to_float(row[i]);
        const int mine = choose_token(logits, V, xorshift_f32(&random), o->temperature, (size_t)o->top_k);
        gather(r, &mine, sizeof mine, all);  // a rank that has stopped is noticed here, whatever the stage
        print_token(r, text[n] = all[0]);
    }
    print0(r, "\n---\n");
    free(text);
    free(row);
    free(logits);
    free(all);
}

// ---------------------------------------------------------------------------------------------------------------------
// Steps.

// Whether to skip the update of this step. All ranks have the same loss and norm, so all decide the same.
static int skip_update(const Run *r, const StepLine *s) {
    const Options *o = &r->options;
    const size_t step = s->step + 1;  // as printed
    if (!isfinite(s->loss) || !isfinite(s->norm)) {
        print0(r, "step %zu: loss %f, gradient norm %f: not finite: all ranks skip the update, nothing is changed\n",
               step, s->loss, s->norm);
        return 1;
    }
    if (o->skip_loss_z > 0 && s->loss_z > o->skip_loss_z) {
        print0(r, "skipping update due to loss z-score of %f\n", s->loss_z);
        return 1;
    }
    if (o->skip_norm_z > 0 && s->norm_z > o->skip_norm_z) {
        print0(r, "skipping update due to grad z-score of %f\n", s->norm_z);
        return 1;
    }
    return 0;
}

// How many micro-batches in a row a rank takes.
static size_t in_a_row(const Run *r) { return r->options.settings.order == ZERO_ORDER_STEP ? 1 : r->G; }

static void read_own_batch(const Run *r, size_t step, size_t g) {
    const size_t first = r->options.overfit ? 0 : step * r->M, rank = (size_t)r->rank;
    read_batch(r, r->train, first + (in_a_row(r) > 1 ? rank * r->G + g : g * (size_t)r->ranks + rank));
}

static void copy_losses(Run *r, size_t g) {
    gpt2_copy_losses(r->model, r->host_losses + g * r->B * r->T);
    losses_copied(r);
}

static void forward_backward_by_layer(Run *r, size_t step) {
    metrics_enter(r->metrics, METRICS_DATA);
    for (size_t g = 0; g < r->G; g++) {
        read_own_batch(r, step, g);
        gpt2_load(r->model, g, r->inputs, r->targets, r->B, r->T);
    }
    metrics_enter(r->metrics, METRICS_FORWARD);
    gpt2_forward_by_layer(r->model);
    metrics_enter(r->metrics, METRICS_BACKWARD);
    gpt2_backward_by_layer(r->model);
    must(r, zero_finish_backward(r->z), "end of the backward pass");
    for (size_t g = r->G; g-- > 0;) {  // ends with the first, which validation uses
        gpt2_use_stream(r->model, g);
        copy_losses(r, g);
    }
}

// Computes the gradients of G micro-batches, and queues the copies of their losses to the host.
static void forward_backward(Run *r, size_t step) {
    must(r, zero_begin_step(r->z), "beginning of a step");
    if (r->activations) r->activations->out = r->activations->in = 0;
    if (r->model->streams) {
        forward_backward_by_layer(r, step);
        return;
    }
    for (size_t g = 0; g < r->G; g++) {
        metrics_enter(r->metrics, METRICS_DATA);
        read_own_batch(r, step, g);
        metrics_enter(r->metrics, METRICS_FORWARD);
        gpt2_forward(r->model, r->inputs, r->targets, r->B, r->T, 1);
        copy_losses(r, g);
        metrics_enter(r->metrics, METRICS_BACKWARD);
        gpt2_backward(r->model);
        must(r, zero_finish_backward(r->z), "end of the backward pass");
    }
}

// Of the losses that were copied.
static void take_means(void *run) {
    const Run *r = (const Run *)run;
    for (size_t g = 0; g < r->G; g++) r->losses[g] = gpt2_mean_loss(r->host_losses + g * r->B * r->T, r->B * r->T);
}

// Gathers the losses of the step and what ranks tell each other with them, or waits for what was queued.
static void gather_losses(Run *r, StepLine *s) {
    const size_t told = r->G + TOLD_MORE;
    metrics_enter(r->metrics, METRICS_LOSSES);
    if (losses_are_queued(r)) losses_wait(r);
    r->losses[r->G + TOLD_COMPUTING] = metrics_computing(r->metrics);
    if (!losses_are_queued(r)) {
        take_means(r);
        r->losses[r->G + TOLD_STOP] = signals_stop() != NULL;
        gather(r, r->losses, told * sizeof *r->losses, r->all_losses);
    }
    s->loss = mean_loss(r->all_losses, (size_t)r->ranks, told, in_a_row(r), r->M);
    s->loss_z = isfinite(s->loss) ? outlier_z(&r->loss_outliers, s->loss) : NAN;
    s->norm_z = isfinite(s->norm) ? outlier_z(&r->norm_outliers, s->norm) : NAN;
    count_nonfinite(r, s);
    s->skipped = skip_update(r, s);
}

static void update(Run *r, double lr) {
    const Options *o = &r->options;
    zero_hyperparameters a = {};
    a.lr = (float)lr;
    a.beta1 = (float)o->beta1;
    a.beta2 = (float)o->beta2;
    a.eps = (float)o->eps;
    a.weight_decay = (float)o->weight_decay;
    a.max_norm = (float)o->grad_clip;
    must(r, zero_step(r->z, &a), "update");
}

// Here the host waits for all that it has queued.
static void wait_for_step(Run *r) {
    profile_step_is_queued(profile);
    if (zero_comm_synchronize(r->shard_comm, r->stream) != ZERO_OK)
        die("%s (end of a step)", zero_comm_error(r->shard_comm));
}

// One step: M micro-batches, one update.
static StepLine train_step(Run *r, size_t step, const Schedule *schedule) {
    const int host_decides = options_host_decides(&r->options);
    StepLine s = {};
    s.step = step;
    s.steps = r->steps;
    s.lr = schedule_lr(schedule, step);
    profile_begin_step(profile);
    metrics_begin_step(r->metrics);
    note_disk(r, 1);
    forward_backward(r, step);
    metrics_enter(r->metrics, METRICS_NORM);
    must(r, zero_grad_norm(r->z, host_decides ? &s.norm : NULL), "gradient norm");
    if (losses_are_queued(r)) losses_queue(r, take_means);
    if (host_decides) gather_losses(r, &s);
    metrics_enter(r->metrics, METRICS_UPDATE);
    if (s.skipped)
        must(r, zero_discard(r->z), "skipping an update");
    else
        update(r, s.lr);
    wait_for_step(r);
    uint64_t received = zero_comm_received(r->comm, ZERO_WIRE_SCALARS);
    if (!host_decides) {
        s.norm = zero_last_step(r->z).norm;
        if (zero_error(r->z)[0] != '\0') die("%s (update)", zero_error(r->z));
        gather_losses(r, &s);
    }
    received = zero_comm_received(r->comm, ZERO_WIRE_SCALARS) - received;
    if (!s.skipped) note_wire(r, received);
    if (!s.skipped) note_disk(r, 0);
    metrics_enter(r->metrics, METRICS_END);
    return s;
}

// A log is not worth a training: what is wrong with it is said, and the training goes on.
static void warn(const Run *r, char *message) {
    make_printable(message);
    if (message[0] == '\0') return;
    progress_clear();
    fflush(stdout);
    fprintf(stderr, "warning: rank %d on %s: %s\n", r->rank, launch_host_name(r->rank), message);
}

// Returns the first rank that had been asked to stop when it gathered the losses of the last step; -1: none.
static int asked_to_stop(const Run *r) {
    for (int i = 0; i < r->ranks; i++)
        if (r->all_losses[(size_t)i * (r->G + TOLD_MORE) + r->G + TOLD_STOP] != 0) return i;
    return -1;
}

// --ema-decay: parameters are the moving average of the weights, or the weights again.
static void use_average(Run *r, int on) {
    if (r->options.settings.ema_decay > 0) must(r, zero_use_ema(r->z, on), "moving average of the weights");
}

// What is due before a step: validation, HellaSwag, a sample, a checkpoint. stop: the run ends here, before its last
// step.
static void before_step(Run *r, size_t step, int stop) {
    const Options *o = &r->options;
    const int last = step == r->steps;
    char err[ERR_BYTES];
    const int validates = r->val != NULL && !stop && (step % (size_t)o->val_every == 0 || last);
    const int evaluates = r->hellaswag != NULL && !stop &&
                          (last || (o->val_every > 0 && step > 0 && step % (size_t)o->val_every == 0));
    const int samples = o->sample_every > 0 && !stop && ((step > 0 && step % (size_t)o->sample_every == 0) || last);
    if (validates || evaluates || samples) use_average(r, 1);
    if (validates) {
        run_phase(r, "validation", step);
        const double loss = validate(r);
        print0(r, "val loss %f\n", loss);
        if (trainlog_val(&r->log, step, loss, err, sizeof err) != 0) warn(r, err);
        metrics_value(r, "val", "loss", loss, err, sizeof err);
        warn(r, err);
    }
    if (evaluates) {
        run_phase(r, "HellaSwag", step);
        const size_t correct = evaluate_hellaswag(r), examples = hellaswag_examples(r->hellaswag);
        const double accuracy = (double)correct / (double)examples;
        print0(r, "HellaSwag: %zu/%zu = %f\n", correct, examples, accuracy);
        if (trainlog_eval(&r->log, step, accuracy, err, sizeof err) != 0) warn(r, err);
        metrics_value(r, "eval", "accuracy", accuracy, err, sizeof err);
        warn(r, err);
    }
    if (samples) {
        run_phase(r, "sampling", step);
        sample(r);
    }
    use_average(r, 0);
    const int due = o->output_dir != NULL && o->checkpoint_every > 0 &&
                    ((step > 0 && step % (size_t)o->checkpoint_every == 0) || last);
    const int exists = step > 0 && step == r->first_step;  // it was resumed from
    if ((due || (stop && o->output_dir != NULL)) && !exists) {
        run_phase(r, "writing a checkpoint", step);
        check_parameters(r, step);
        begin_checkpoint(r, step);
    }
}

static void train(Run *r) {
    const Options *o = &r->options;
    Schedule schedule = o->schedule;
    schedule.steps = r->steps;
    const size_t tokens = r->B * r->T * r->M;
    const double flops = gpt2_training_flops(&r->config, r->T, tokens);
    const double peak = gpu_peak_flops(r->device.name) * r->gpus;
    const size_t first = r->first_step;
    size_t taken = 0;
    double total_ms = 0;  // of all steps but the first
    double speed = 0;     // moving average of tokens per second, without the first step, which is slow
    double second = 0;    // when the second step began
    char err[ERR_BYTES];

    metrics_run(r, err, sizeof err);
    warn(r, err);
    for (size_t step = first; step <= r->steps; step++) {
        const int stop = asked_to_stop(r);
        continue_checkpoint(r);
        before_step(r, step, stop >= 0);
        if (stop >= 0) {
            print0(r, "rank %d was asked to stop by a signal: the run ends after step %zu%s\n", stop, step,
                   o->output_dir == NULL ? "; nothing is saved, for there is no -o" : "");
        }
        if (step == r->steps || stop >= 0) break;

        run_phase(r, "training", step + 1);
        const double begin = zero_clock();
        if (step <= first + 1) second = begin;
        if (step > first && step - first <= (size_t)o->profile) profile = r->profile;  // the first step is slow
        StepLine s = train_step(r, step, &schedule);
        s.ms = 1000 * (zero_clock() - begin);
        taken++;
        if (profile != NULL) cudaCheck(profile_end_step(profile, s.ms));
        profile = NULL;
        if (step > first) total_ms += s.ms;
        const double tokens_per_second = (double)tokens / s.ms * 1000;
        speed = step <= first + 1 ? tokens_per_second : 0.95 * speed + 0.05 * tokens_per_second;
        s.tokens_per_second = speed;
        s.mfu = peak > 0 ? flops / (s.ms / 1000) / peak : -1;
        char line[512];
        step_line(line, sizeof line, &s);
        print0(r, "%s\n", line);
        if (trainlog_train(&r->log, step, s.loss, s.lr, s.norm, err, sizeof err) != 0) warn(r, err);
        metrics_step(r, &s, err, sizeof err);
        warn(r, err);
        if (o->gpu_info_every > 0 && (step + 1) % (size_t)o->gpu_info_every == 0) {
            size_t free_bytes, all_bytes;
            cudaCheck(cudaMemGetInfo(&free_bytes, &all_bytes));
            print0(r, "GPU of rank 0: %zu MiB free of %zu MiB\n", free_bytes >> 20, all_bytes >> 20);
        }
        if (r->rank == 0) progress_show(first, taken, r->steps, zero_clock() - second);
    }
    finish_checkpoint(r);
    // Of one step it is not a number, as in llm.c.
    if (taken > 0) print0(r, "total average iteration time: %f ms\n", total_ms / (double)(taken - 1));
}

// ---------------------------------------------------------------------------------------------------------------------
// main.

static Run run;

// When a CUDA call fails, ask the transport first: one that was aborted because another rank is gone may leave the
// device in disorder, and it knows which rank, and in which phase.
static void ask_transport(void) {
    device_has_failed = NULL;
    if (run.comm != NULL && zero_comm_synchronize(run.comm, run.stream) == ZERO_ERR_COMM)
        die("%s", zero_comm_error(run.comm));
}

// The part of the reports that depends on the kernels of this build. --plan may ask for another precision.
static Kernels describe_kernels(const Run *r) {
    const enum zero_dtype dtype = r->options.settings.dtype;
    const size_t rows = r->B * r->T, NH = r->config.num_heads;
    Kernels k = {};
    if constexpr (ATTENTION_CUDNN) k.attention = dtype == ZERO_BF16 ? attention_cudnn_name() : NULL;
    k.flash = dtype == FLOATX && is_flash(r->config.channels / NH);
    k.attention_scratch = dtype == ZERO_BF16 ? attention_scratch<bf16>(r->B, r->T, NH)
                                             : attention_scratch<float>(r->B, r->T, NH);
    const size_t head_rows = (size_t)r->options.head_rows;
    const int recompute = (int)r->options.recompute, offload = (int)r->options.offload_activations;
    k.activation_bytes_of = gpt2_activation_bytes;
    size_t bytes[3];  // with so many streams
    for (size_t i = 0; i < 3; i++)
        bytes[i] = gpt2_activation_bytes(&r->config, r->B, r->T, recompute, head_rows, dtype, i, offload);
    k.activation_bytes = bytes[0];
    k.stream_bytes = bytes[2] - bytes[1];
    k.layer_bytes = bytes[1] - k.stream_bytes;
    if (offload) k.offloaded_bytes = activation_offload_bytes(&r->config, r->B, r->T, zero_dtype_bytes(dtype), 1);
    k.head_chunks = ceil_div(rows, gpt2_head_rows(head_rows, r->B, r->T));
    k.sum_chunks = ceil_div(rows, chunk_rows(rows));
    return k;
}

static void allocate_batch(Run *r) {
    r->inputs = (int *)allocate(r->B * r->T * sizeof(int));
    r->targets = (int *)allocate(r->B * r->T * sizeof(int));
    r->host_losses = (float *)pinned(r->G * r->B * r->T * sizeof(float));
    if (r->host_losses == NULL) die("no pinned host memory for the losses of a step: use a smaller -d");
}

static void destroy(Run *r) {
    trainlog_close(&r->log);
    metrics_destroy(r->metrics);
    directory_close();
    gpt2_destroy(r->model);
    zero_destroy(r->z);
    profile_destroy(r->profile);
    losses_destroy(r);
    zero_comm_destroy(r->replica_comm);
    if (r->shard_comm != r->comm) zero_comm_destroy(r->shard_comm);
    zero_comm_destroy(r->comm);
    matmul_destroy();
    if constexpr (ATTENTION_CUDNN) attention_cudnn_destroy();
    cudaCheck(cudaStreamDestroy(r->stream));
    tokenizer_close(r->tokenizer);
    hellaswag_close(r->hellaswag);
    loader_close(r->train);
    loader_close(r->val);
    free(r->tensors);
    free(r->prompt);
    cudaCheck(cudaFreeHost(r->host_losses));
    free(r->inputs);
    free(r->targets);
    free(r->snapshot);
}

// Reads the command line and finds this rank's place. Returns 0 to go on; 1 to end here with *status.
static int begin(Run *r, int argc, char **argv, int *status) {
    OptionsBuild build = {};
#ifdef CUDA_ON_CPU
    build.cpu = 1;
#endif
    build.bf16 = FLOATX == ZERO_BF16;
    char err[ERR_BYTES] = "";
    const int parsed = options_parse(&r->options, &build, argc, argv, err, sizeof err);
    const int first = launch_begin(&r->options, parsed, &argc, &argv, err, sizeof err);  // the first rank with an error
    r->rank = launch()->rank;
    r->ranks = launch()->ranks;
    if (parsed == 0 && first == r->ranks) return 0;
    if (r->rank == 0 && parsed > 0 && first == r->ranks) options_help(stdout, argv[0]);
    if (r->rank == first) {
        make_printable(err);  // it may have another rank's flags
        fprintf(stderr, "error: %s\n", err);
    }
    *status = first == r->ranks ? EXIT_SUCCESS : EXIT_FAILURE;
    return 1;
}

int main(int argc, char **argv) {
    Run *r = &run;
    const Options *o = &r->options;
    GPT2 model = {};
    char err[ERR_BYTES];
    int status = EXIT_SUCCESS;
    host_choose_waiting(argv, environment_local_ranks());
    run_begin(r);
    device_has_failed = ask_transport;
    setvbuf(stdout, NULL, _IOLBF, 0);
    signal(SIGXFSZ, SIG_IGN);  // a file that becomes too large is an error with a message
    if (begin(r, argc, argv, &status)) {
        run_is_ending();
        launch_end();
        return status;
    }

    const int dry = o->plan || o->print_config;
    if (dry) r->ranks = (int)options_plan_ranks(o, (size_t)r->ranks);
    if (!dry) choose_device(r);
    if (options_choose_batch(&r->options, (size_t)r->ranks, err, sizeof err) != 0) die("%s", err);
    choose_model_and_data(r);
    r->B = (size_t)o->batch_size;
    r->T = (size_t)o->seq_len;
    if (!dry) resume_micro_batches(r);
    if (options_check_batch(o, (size_t)r->ranks, r->config.max_seq_len, &r->G, err, sizeof err) != 0) die("%s", err);
    r->M = r->G * (size_t)r->ranks;
    if (!dry) choose_order(r);
    r->kernels = describe_kernels(r);
    if (dry) {
        if (r->rank == 0 && (o->print_config || o->plan != OPTION_PLAN_JSON)) printf("%s", o->notes);
        if (r->rank == 0 && o->print_config)
            options_print(stdout, o);
        else if (r->rank == 0 && o->fit)
            status = print_fit(r) ? EXIT_SUCCESS : EXIT_FAILURE;
        else if (r->rank == 0)
            print_plan(r);
        launch_end();
        return status;
    }
    open_data(r);
    allocate_batch(r);
    r->process_start = process_memory((size_t)r->sharers);
    r->memory.limit = (size_t)o->memory_limit;
    create_transport(r);
    check_same_inputs(r);
    check_memory(r);
    create_engine(r);
    losses_create(r);
    create_model(r, &model);
    open_output(r);
    prepare_checkpoints(r);
    if (r->choice[0] != '\0') print0(r, "%s\n", r->choice);
    print0(r, "%s", o->notes);
    print_header(r);
    run_phase(r, "reading the weights", 0);
    set_state(r);
    train(r);
    run_phase(r, "the end of the run", r->steps);
    if (!o->generate) print_reports(r);
    if (r->profile != NULL) print_profile(r);
    if (o->hash) {
        uint64_t params, optimizer;
        must(r, zero_hash(r->z, &params, &optimizer), "hash");
        print0(r, "state hash: params %016llx optimizer %016llx\n", (unsigned long long)params,
               (unsigned long long)optimizer);
    }
    if (r->rank == 0 && (fflush(stdout) != 0 || ferror(stdout)))
        die("standard output could not be written: %s", strerror(errno));
    // The last look at who is there: what comes now may wait for others without a time-out.
    if (!launch_together(o->timeout, err, sizeof err)) die("%s", err);
    destroy(r);
    launch_end();
    return EXIT_SUCCESS;
}
#endif
