// The expected outcome of a training run, for test_gpt2_zero.cu: one process trains on plain buffers, without any of
// zero/.
//
// A *setup* is a model, a batch and a schedule of steps. Its *owner* rank runs the model on the micro-batches of a step
// one after the other, and test/harness/baseline.c sums, takes the norm and updates in plain loops. Everything that is
// a function of (step, j) or of (tensor, element) alone, tokens and initial weights, is the same for both sides and is
// here too.
#ifndef GPT2_BASELINE_CUH
#define GPT2_BASELINE_CUH

#include "test/harness/baseline.h"  // the arithmetic of a step without sharding
#include "test/harness/ranks.h"

static const uint64_t SEED = 0x243f6a8885a308d3;  // of stochastic rounding
static int rank, ranks;
static cudaStream_t stream;

typedef struct Setup {
    char name[64];
    GPT2Config config;
    size_t B, T, steps;
    size_t G[4];        // micro-batches per rank in step s: G[s % 4]; 0: so that M is 8, if N divides it
    float clip, decay;  // clip 0: never
    int no_master = 0;  // BF16 builds: stochastic rounding, which has an outcome of its own

    // The expected outcome. Numbers are on the owner only, the tables of tensors on all ranks.
    int owner = 0;
    zero_tensor *tensors = NULL;
    baseline b = {};
    double *losses = NULL;                 // one per micro-batch, in the order of (step, j)
    double *norms = NULL;                  // one per step
    floatX *params = NULL, *grads = NULL;  // the plain buffers that it was computed on, in device memory
    int has_hashes = 0;
    uint64_t hashes[2] = {};  // of the first case by bits, for the others to equal
} Setup;

// ---------------------------------------------------------------------------------------------------------------------
// Failures that end the test

static void must(int ok, const char *what, const char *why) { REQUIRE(ok, "%s: %s", what, why); }

template <class T> static T *new_zeroed(size_t count) {
    T *p = (T *)calloc(count + 1, sizeof(T));
    must(p != NULL, "calloc", "out of host memory");
    return p;
}

// ---------------------------------------------------------------------------------------------------------------------
// The inputs of both sides: tokens, initial weights, hyperparameters

static int *new_tokens(const Setup *s, size_t step, size_t j) {
    int *tokens = new_zeroed<int>(s->B * s->T + 1);
    baseline_tokens(tokens, s->B * s->T + 1, s->config.vocab_size, step, j);
    return tokens;
}

// Elements of a tensor, in the signature of zero_fill_fn.
static int fill(void *setup, size_t t, size_t begin, size_t count, float *out) {
    const Setup *s = (const Setup *)setup;
    const char *name = s->tensors[t].name;
    const float mean = strncmp(name, "ln", 2) == 0 && name[strlen(name) - 1] == 'w';
    // rows of wte that no token has
    const size_t end = t == 0 ? s->config.vocab_size * s->config.channels : s->tensors[t].numel;
    for (size_t i = 0; i < count; i++) {
        const float noise = (float)(baseline_mix(baseline_mix(t) + begin + i) >> 40) / 16777216.0f - 0.5f;
        out[i] = begin + i < end ? mean + 0.1f * noise : 0.0f;
    }
    return 0;
}

static zero_hyperparameters hyperparameters(const Setup *s, size_t step) {
    return { 3e-3f / (float)(1 + step % 5), 0.9f, 0.95f, 1e-8f, s->decay, (float)s->clip };
}

static size_t micro_steps(const Setup *s, size_t steps) {
    size_t n = 0;
    for (size_t k = 0; k < steps; k++) n += s->G[k % 4];
    return n;
}

static double micro_batch(GPT2 *model, const Setup *s, size_t step, size_t j) {
    int *tokens = new_tokens(s, step, j);
    gpt2_forward(model, tokens, tokens + 1, s->B, s->T, 1);
    const double loss = gpt2_loss(model);
    gpt2_backward(model);
    free(tokens);
    return loss;
}

static void make_model(GPT2 *model, const Setup *s, int recompute, const GPT2Units *units, const zero_mesh *mesh,
                       zero_accounting *memory) {
    char err[256] = "";
    must(gpt2_create(model, &s->config, s->B, s->T, recompute, 0, units, mesh, memory, stream, err, sizeof err) == 0,
         "gpt2_create", err);
}

// ---------------------------------------------------------------------------------------------------------------------
// The expected outcome: one process, plain buffers

static size_t first_element(const Setup *s, size_t unit) {
    size_t t = 0;
    while (s->tensors[t].unit != unit) t++;
    return s->b.offset[t];
}

static void *plain_params(void *ctx, size_t unit) { return ((Setup *)ctx)->params + first_element((Setup *)ctx, unit); }
static void *plain_grads(void *ctx, size_t unit) { return ((Setup *)ctx)->grads + first_element((Setup *)ctx, unit); }
static void plain_release(void *, size_t) {}

static void train_plainly(Setup *s) {
    const size_t bytes = s->b.numel * sizeof(floatX);
    const zero_mesh alone = { 1, 1, 1, 0, 0, 0, 1, 1, 0, 0 };
    const GPT2Units units = { s, plain_params, plain_release, plain_grads, plain_release };
    zero_accounting memory = {};
    GPT2 model = {};
    cudaCheck(cudaMalloc((void **)&s->params, bytes));
    cudaCheck(cudaMalloc((void **)&s->grads, bytes));
    make_model(&model, s, 0, &units, &alone, &memory);
    char *params = new_zeroed<char>(bytes);  // on the host
    for (size_t t = 0; t < s->b.num_tensors; t++) fill(s, t, 0, s->tensors[t].numel, s->b.w + s->b.offset[t]);
    for (size_t i = 0; i < s->b.numel && s->no_master; i++) s->b.w[i] = baseline_rounded(s->b.w[i], FLOATX);
    s->b.no_master = s->no_master;
    s->b.seed = SEED;
    double *loss = s->losses;
    for (size_t step = 0; step < s->steps; step++) {
        const size_t G = s->G[step % 4], M = G * (size_t)ranks;
        void **micro = new_zeroed<void *>(M);
        baseline_store(&s->b, params, FLOATX);
        cudaCheck(cudaMemcpy(s->params, params, bytes, cudaMemcpyHostToDevice));
        for (size_t j = 0; j < M; j++) {
            micro[j] = new_zeroed<char>(bytes);
            cudaCheck(cudaMemsetAsync(s->grads, 0, bytes, stream));
            *loss++ = micro_batch(&model, s, step, j);
            cudaCheck(cudaStreamSynchronize(stream));
            cudaCheck(cudaMemcpy(micro[j], s->grads, bytes, cudaMemcpyDeviceToHost));
        }
        baseline_sum(&s->b, micro, FLOATX, M);
        s->norms[step] = baseline_norm(&s->b, M);
        const zero_hyperparameters a = hyperparameters(s, step);
        baseline_adamw(&s->b, &a, M, step + 1);
        for (size_t j = 0; j < M; j++) free(micro[j]);
        free(micro);
    }
    free(params);
    gpt2_destroy(&model);
    cudaCheck(cudaFree(s->params));
    cudaCheck(cudaFree(s->grads));
}

static void expect(Setup *s, int owner) {
    const size_t num_tensors = gpt2_num_tensors(&s->config);
    s->owner = owner;
    s->tensors = new_zeroed<zero_tensor>(num_tensors);
    gpt2_tensors(&s->config, s->tensors);
    must(baseline_create(&s->b, s->tensors, num_tensors) == 0, "baseline_create", "out of host memory");
    s->losses = new_zeroed<double>(micro_steps(s, s->steps) * (size_t)ranks);
    s->norms = new_zeroed<double>(s->steps);
    if (rank == owner) train_plainly(s);
}

static void destroy_setup(Setup *s) {
    baseline_destroy(&s->b);
    free(s->tensors);
    free(s->losses);
    free(s->norms);
}

#endif
