// test_model.cu: the model of train_gpt2_zero.cu against GPT-2's definition in double precision (reference.h).
//
// There are three layers. The reference's gradients are compared with finite differences of its loss. Each kernel is
// compared with the reference's function of the same name, at sizes that are not multiples of anything. Then the whole
// model is compared, loss and every gradient, and checked for what no reference can show: the same bits for any number
// of threads and any recomputation, no trace of an earlier forward, nothing in rows that took no part.
//
// The model gets its units from `Harness`, which is stricter than the engine: a unit's parameters exist only while they
// are acquired, in a new buffer every time, with NaN between the tensors; a gradient must be acquired once and its
// padding must stay zero. AddressSanitizer also finds a use after release.
#define TESTING
#include "train_gpt2_zero.cu"

#include <algorithm>

#include "test/harness/numerics.h"
#include "test/harness/reference.h"
#include "test/unit/model_kernels.cuh"

#ifdef _OPENMP
#include <omp.h>
#endif

// ---------------------------------------------------------------------------------------------------------------------
// The model, with units from a strict provider.

typedef struct Harness {
    GPT2Config config;
    size_t B, T;  // what the model was created for
    std::vector<zero_tensor> tensors;
    zero_layout layout;
    zero_accounting memory;
    zero_mesh mesh;
    GPT2Units units;
    GPT2 model;
    Values params, grads;                             // in logical order
    std::vector<floatX *> param_buffer, grad_buffer;  // per unit; NULL: not acquired
    std::vector<int> grad_uses;                       // per unit: acquired in this backward
} Harness;

// The unit's flat buffer, with NaN between the tensors.
static Values pack_unit(const Harness *h, size_t unit) {
    Values flat(zero_layout_unit_numel(&h->layout, unit), NAN);
    for (size_t t = h->layout.unit_first[unit]; t < h->layout.unit_first[unit + 1]; t++) {
        const zero_tensor *tensor = &h->layout.tensors[t];
        for (size_t i = 0; i < tensor->numel; i++)
            flat[h->layout.tensor_offset[t] + i] = h->params[tensor->logical + i];
    }
    return flat;
}

static void unpack_grads(Harness *h, size_t unit, const Values &flat) {
    double outside = 0;
    for (double x : flat) outside += x != 0;
    for (size_t t = h->layout.unit_first[unit]; t < h->layout.unit_first[unit + 1]; t++) {
        const zero_tensor *tensor = &h->layout.tensors[t];
        for (size_t i = 0; i < tensor->numel; i++) {
            const double x = flat[h->layout.tensor_offset[t] + i];
            h->grads[tensor->logical + i] = x;
            outside -= x != 0;
        }
    }
    CHECK(outside == 0, "unit %zu: the padding of the gradients is not zero in %.0f places", unit, outside);
}

static void *harness_acquire_params(void *ctx, size_t unit) {
    Harness *h = (Harness *)ctx;
    CHECK(!h->param_buffer[unit], "the parameters of unit %zu are acquired twice", unit);
    const Values flat = pack_unit(h, unit);
    must(cudaMalloc((void **)&h->param_buffer[unit], flat.size() * sizeof(floatX)));
    write_device(h->param_buffer[unit], flat);
    return h->param_buffer[unit];
}

static void harness_release_params(void *ctx, size_t unit) {
    Harness *h = (Harness *)ctx;
    CHECK(h->param_buffer[unit] != NULL, "the parameters of unit %zu are released, but were not acquired", unit);
    must(cudaDeviceSynchronize());
    // NaN
    must(cudaMemset(h->param_buffer[unit], 0xff, zero_layout_unit_numel(&h->layout, unit) * sizeof(floatX)));
    must(cudaFree(h->param_buffer[unit]));
    h->param_buffer[unit] = NULL;
}

static void *harness_acquire_grads(void *ctx, size_t unit) {
    Harness *h = (Harness *)ctx;
    const size_t bytes = zero_layout_unit_numel(&h->layout, unit) * sizeof(floatX);
    CHECK(h->grad_uses[unit]++ == 0, "the gradients of unit %zu are acquired twice in one backward", unit);
    must(cudaMalloc((void **)&h->grad_buffer[unit], bytes));
    must(cudaMemset(h->grad_buffer[unit], 0, bytes));
    must(cudaDeviceSynchronize());
    return h->grad_buffer[unit];
}

static void harness_release_grads(void *ctx, size_t unit) {
    Harness *h = (Harness *)ctx;
    CHECK(h->grad_buffer[unit] != NULL, "the gradients of unit %zu are released, but were not acquired", unit);
    unpack_grads(h, unit, read_device(h->grad_buffer[unit], zero_layout_unit_numel(&h->layout, unit)));
    must(cudaFree(h->grad_buffer[unit]));
    h->grad_buffer[unit] = NULL;
}

// Weights are larger than a real initialisation's, so that every part of the network has its share in the gradient.
static void random_params(Harness *h) {
    const size_t C = h->config.channels, V = h->config.vocab_size, Vp = h->config.padded_vocab_size;
    h->params.assign(gpt2_num_parameters(&h->config), 0);
    for (const zero_tensor &t : h->tensors) {
        const int norm_weight = t.name[0] == 'l' && t.name[strlen(t.name) - 1] == 'w';
        const double scale = t.decay ? 2 / sqrt((double)C) : 0.2;
        for (size_t i = 0; i < t.numel; i++)
            h->params[t.logical + i] = rounded<floatX>((norm_weight ? 1 : 0) + scale * uniform());
    }
    for (size_t i = V * C; i < Vp * C; i++) h->params[i] = 0;  // wte comes first; its padding rows are zero
}

static Harness *harness_create(const GPT2Config *c, size_t B, size_t T, int recompute, size_t head_rows = 0,
                               const Values *params = NULL, int offload = 0) {
    Harness *h = new Harness();
    char err[256] = "";
    const char *why = "";
    h->config = *c;
    h->B = B;
    h->T = T;
    h->tensors.resize(gpt2_num_tensors(c));
    gpt2_tensors(c, h->tensors.data());
    CHECK(zero_layout_create(&h->layout, h->tensors.data(), h->tensors.size(), 1, &why) == 0, "layout: %s", why);
    CHECK(zero_mesh_create(&h->mesh, 0, 1, 1, 1, 0, err, sizeof err) == 0, "mesh: %s", err);
    h->units = GPT2Units{ h, harness_acquire_params, harness_release_params, harness_acquire_grads,
                          harness_release_grads };
    h->param_buffer.assign(h->layout.num_units, NULL);
    h->grad_buffer.assign(h->layout.num_units, NULL);
    h->grad_uses.assign(h->layout.num_units, 0);
    if (params != NULL)
        h->params = *params;
    else
        random_params(h);
    const int status = gpt2_create(&h->model, c, B, T, recompute, head_rows, &h->units, &h->mesh, &h->memory, 0, err,
                                   sizeof err, 0, offload);
    CHECK(status == 0, "gpt2_create: %s", err);
    return h;
}

static void harness_destroy(Harness *h) {
    gpt2_destroy(&h->model);
    for (int i = 0; i < ZERO_MEM_CATEGORIES; i++) {
        CHECK(h->memory.live[i] == 0, "%zu bytes of %s are still accounted", h->memory.live[i],
              zero_memory_category_name((zero_memory_category)i));
    }
    zero_layout_destroy(&h->layout);
    delete h;
}

// One batch.
typedef struct Batch {
    size_t B, T;
    std::vector<int> inputs, targets;
} Batch;

static Batch random_batch(const GPT2Config *c, size_t B, size_t T) {
    return Batch{ B, T, random_ids(B * T, c->vocab_size), random_ids(B * T, c->vocab_size) };
}

static double forward(Harness *h, const Batch &b) {
    gpt2_forward(&h->model, b.inputs.data(), b.targets.data(), b.B, b.T, 1);
    return gpt2_loss(&h->model);
}

static Values infer(Harness *h, const Batch &b) {
    gpt2_forward(&h->model, b.inputs.data(), NULL, b.B, b.T, 0);
    return read_device<floatX>(h->model.logits, std::min(b.B * b.T, h->model.head_rows) * h->config.padded_vocab_size);
}

static void backward(Harness *h) {
    h->grads.assign(h->params.size(), NAN);
    h->grad_uses.assign(h->layout.num_units, 0);
    gpt2_backward(&h->model);
    for (size_t u = 0; u < h->layout.num_units; u++) {
        CHECK(h->grad_uses[u] == 1, "the gradients of unit %zu are acquired %d times in a backward", u,
              h->grad_uses[u]);
        CHECK(!h->param_buffer[u] && !h->grad_buffer[u], "unit %zu is not released after a backward", u);
    }
}

// Loss, and gradients in h->grads.
static double train(Harness *h, const Batch &b) {
    const double loss = forward(h, b);
    backward(h);
    return loss;
}

// What a step gives: loss, and gradients in logical order.
typedef struct Step {
    double loss;
    Values grads;
} Step;

// Trains on b, and has the bits of `want`; or the tensor that has not is named.
static void check_step(Harness *h, const Batch &b, const Step &want, int line, const char *where) {
    const double loss = train(h, b);
    CHECK_AT(__FILE__, line, loss == want.loss, "%s: loss %.9g, not %.9g", where, loss, want.loss);
    for (const zero_tensor &t : h->tensors) {
        size_t differ = 0;
        for (size_t i = t.logical; i < t.logical + t.numel; i++)
            differ += memcmp(&h->grads[i], &want.grads[i], sizeof(double)) != 0;
        CHECK_AT(__FILE__, line, differ == 0, "%s: %zu of %zu gradients of %s, unit %zu, have other bits", where,
                 differ, t.numel, t.name, t.unit);
    }
}

static reference_config reference_of(const GPT2Config *c) {
    return reference_config{ c->max_seq_len, c->vocab_size, c->padded_vocab_size,
                             c->num_layers,  c->num_heads,  c->channels };
}

// {maxT, V, Vp, L, NH, C}, B, T. Heads of 8, 32, 64, 80, 96, 128. The emulated GPU gets short sequences only.
typedef struct Shape {
    const char *name;
    GPT2Config config;
    size_t B, T;
} Shape;

static const Shape shapes[] = {
    { "tiny", { 16, 50, 56, 2, 2, 16 }, 2, 8 },
#ifdef CUDA_ON_CPU_EMULATED
    { "3 heads of 8", { 12, 37, 40, 2, 3, 24 }, 2, 9 }, { "2 heads of 64", { 9, 33, 40, 1, 2, 128 }, 1, 9 },
    { "head of 80", { 19, 33, 40, 1, 1, 80 }, 1, 19 },  { "head of 96", { 17, 33, 40, 1, 1, 96 }, 1, 17 },
    { "head of 128", { 9, 33, 40, 1, 1, 128 }, 1, 9 },
#else
    { "3 heads of 32", { 80, 131, 256, 2, 3, 96 }, 3, 65 },
    { "head of 64, T 7", { 8, 33, 128, 3, 2, 128 }, 2, 7 },
    { "head of 80, T 200", { 200, 97, 104, 1, 1, 80 }, 1, 200 },
    { "head of 96, T 130", { 130, 61, 64, 1, 1, 96 }, 1, 130 },
    { "head of 128, T 64", { 64, 257, 264, 1, 1, 128 }, 2, 64 },
#endif
    { "one position", { 4, 19, 24, 2, 1, 8 }, 3, 1 },
};
static const Shape &tiny = shapes[0], &odd = shapes[1];

// ---------------------------------------------------------------------------------------------------------------------
// The reference itself.

// Fourth-order central differences of the loss, in double; errors are relative to the largest gradient of the tensor.
static void reference_gradient_is_not_the_derivative(void) {
    const reference_config c = { 6, 11, 16, 2, 2, 8 };
    const size_t B = 2, T = 5;
    const double h = 1e-3;
    size_t begin[REFERENCE_TENSORS + 1];
    reference_tensor_begin(&c, begin);
    const size_t P = begin[REFERENCE_TENSORS];
    const std::vector<int> inputs = random_ids(B * T, c.vocab_size), targets = random_ids(B * T, c.vocab_size);
    Values params = random_values<float>(P, 0.7), grads(P, 0);
    reference_gpt2(&c, params.data(), inputs.data(), targets.data(), B, T, NULL, grads.data());

    for (int t = 0; t < REFERENCE_TENSORS; t++) {
        double largest = 0;
        for (size_t i = begin[t]; i < begin[t + 1]; i++) largest = fmax(largest, fabs(grads[i]));
        for (int sample = 0; sample < 12; sample++) {
            const size_t i = begin[t] + (size_t)random_below(begin[t + 1] - begin[t]);
            const double x = params[i], step[4] = { -2 * h, -h, h, 2 * h };
            double loss[4];
            for (int k = 0; k < 4; k++) {
                params[i] = x + step[k];
                loss[k] = reference_gpt2(&c, params.data(), inputs.data(), targets.data(), B, T, NULL, NULL);
            }
            params[i] = x;
            const double difference = (loss[0] - 8 * loss[1] + 8 * loss[2] - loss[3]) / (12 * h);
            CHECK_ERROR(fabs(difference - grads[i]) / largest, 1e-6, "reference gradient", reference_tensor_names[t]);
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// The whole model.

static void descriptor_is_misread(void) {
    static const struct {
        const char *descriptor;
        GPT2Config want;
        size_t parameters;
    } good[] = {
        { "d12", { 1024, 50257, 50304, 12, 12, 768 }, 124475904 },
        { "gpt2:d6", { 1024, 50257, 50304, 6, 6, 384 }, 0 },
        { "d48", { 1024, 50257, 50304, 48, 25, 1600 }, 0 },
        { "gpt3:c768", { 2048, 50257, 50304, 12, 12, 768 }, 0 },
        { "gpt3:c2560", { 2048, 50257, 50304, 32, 32, 2560 }, 0 },
        { "custom:l4,h4,c128,v256,t128", { 128, 256, 256, 4, 4, 128 }, 0 },
        { "custom:l2,h3,c96,v131,t80", { 80, 131, 256, 2, 3, 96 }, 0 },
    };
    for (const auto &g : good) {
        GPT2Config c = {};
        char err[256] = "";
        CHECK(gpt2_config_from_descriptor(&c, g.descriptor, err, sizeof err) == 0, "%s: %s", g.descriptor, err);
        CHECK(!memcmp(&c, &g.want, sizeof c), "%s: maxT %zu V %zu Vp %zu L %zu NH %zu C %zu", g.descriptor,
              c.max_seq_len, c.vocab_size, c.padded_vocab_size, c.num_layers, c.num_heads, c.channels);
        CHECK(!g.parameters || gpt2_num_parameters(&c) == g.parameters, "%s: %zu parameters", g.descriptor,
              gpt2_num_parameters(&c));
    }
    static const char *const bad[] = { "",
                                       "d",
                                       "d13",
                                       "d12x",
                                       "gpt3:c5140",
                                       "gpt3:c769",
                                       "gpt4:d12",
                                       "custom:",
                                       "custom:l4,h4,c128,v256",
                                       "custom:l4,h3,c128,v256,t128",
                                       "custom:l0,h4,c128,v256,t128",
                                       "custom:l4,h4,c48,v256,t128",
                                       "custom:l-1,h4,c128,v256,t128",
                                       "custom:l4,h4,c128,v99999999999999999999,t128" };
    for (const char *descriptor : bad) {
        GPT2Config c = {};
        char err[256] = "";
        const int status = gpt2_config_from_descriptor(&c, descriptor, err, sizeof err);
        CHECK(status == -1 && err[0], "\"%s\" is accepted, or refused without a word", descriptor);
    }
}

static void tensor_table_leaves_a_hole(void) {
    for (const Shape &s : shapes) {
        const reference_config rc = reference_of(&s.config);
        size_t begin[REFERENCE_TENSORS + 1];
        reference_tensor_begin(&rc, begin);
        std::vector<zero_tensor> tensors(gpt2_num_tensors(&s.config));
        std::vector<int> owners(begin[REFERENCE_TENSORS], 0);
        gpt2_tensors(&s.config, tensors.data());
        CHECK(gpt2_num_parameters(&s.config) == begin[REFERENCE_TENSORS], "%s: %zu parameters", s.name,
              gpt2_num_parameters(&s.config));
        for (const zero_tensor &t : tensors) {
            int r = 0;
            while (r < REFERENCE_TENSORS && strcmp(reference_tensor_names[r], t.name)) r++;
            CHECK(r < REFERENCE_TENSORS && t.logical >= begin[r] && t.logical + t.numel <= begin[r + 1],
                  "%s: %s lies elsewhere", s.name, t.name);
            CHECK(t.decay == (r < 2 || r == REFERENCE_QKVW || r == REFERENCE_ATTPROJW || r == REFERENCE_FCW ||
                              r == REFERENCE_FCPROJW),
                  "%s: decay of %s is %d", s.name, t.name, t.decay);
            for (size_t i = 0; i < t.numel; i++) owners[t.logical + i]++;
        }
        size_t wrong = 0;
        for (int n : owners) wrong += n != 1;
        CHECK(wrong == 0, "%s: %zu elements do not belong to exactly one tensor", s.name, wrong);
    }
}

// What rounding allows. In bf16 every activation is stored with 8 bits, and so is every gradient on its way down.
static const double loss_allowed = FLOATX == ZERO_F32 ? 1e-6 : 5e-3;
static const double logits_allowed = FLOATX == ZERO_F32 ? 5e-6 : 2.5e-2;
static const double grads_allowed = FLOATX == ZERO_F32 ? 1e-5 : 5e-2;

// Of logits, loss and gradients from those of GPT-2's definition.
static void check_definition(Harness *h, const Shape &s, const Batch &b) {
    const reference_config rc = reference_of(&s.config);
    Values logits(s.B * s.T * rc.padded_vocab_size), grads(h->params.size(), 0);
    size_t begin[REFERENCE_TENSORS + 1];
    reference_tensor_begin(&rc, begin);
    const double want = reference_gpt2(&rc, h->params.data(), b.inputs.data(), b.targets.data(), s.B, s.T,
                                       logits.data(), grads.data());

    const Values got = infer(h, b);
    CHECK_ERROR(norm_error(got.data(), logits.data(), got.size()), logits_allowed, "logits (norm)", s.name);
    CHECK_ERROR(fabs(train(h, b) - want) / want, loss_allowed, "loss", s.name);
    for (int t = 0; t < REFERENCE_TENSORS; t++) {
        const double error = norm_error(&h->grads[begin[t]], &grads[begin[t]], begin[t + 1] - begin[t]);
        const std::string where = std::string(s.name) + ", " + reference_tensor_names[t];
        CHECK_ERROR(error, grads_allowed, "gradients (norm)", where.c_str());
    }
}

static void loss_or_gradient_differs_from_the_definition(void) {
    for (const Shape &s : shapes) {
        Harness *h = harness_create(&s.config, s.B + 1, s.config.max_seq_len, 0);  // room for more than it is given
        const Batch b = random_batch(&s.config, s.B, s.T);
        const Values params = h->params;
        check_definition(h, s, b);
        harness_destroy(h);
        if (s.B == 1) continue;
        h = harness_create(&s.config, s.B, s.T, 0, s.T + 1, &params);  // the head takes several chunks
        check_definition(h, s, b);
        harness_destroy(h);
    }
}

// One chunk of rows, or several: the loss is the same, and the gradients, except for the sum over the rows, that of
// wte. (On a GPU the bits of a product may depend on its shape.) The logits of a chunk take less memory.
static void chunks_of_the_head_differ(void) {
    for (const Shape *s : { &tiny, &odd }) {
        for (int recompute = 0; recompute <= 2; recompute += 2) {
            const Batch b = random_batch(&s->config, s->B, s->T);
            const size_t wte = s->config.padded_vocab_size * s->config.channels;
            Harness *h = harness_create(&s->config, s->B, s->T, recompute);
            const Values params = h->params;
            Step want = { train(h, b), h->grads };
            harness_destroy(h);

            h = harness_create(&s->config, s->B, s->T, recompute, s->T + 1, &params);
            const size_t bytes = gpt2_activation_bytes(&s->config, s->B, s->T, recompute, s->T + 1);
            CHECK_EQ(h->memory.live[ZERO_MEM_ACTIVATIONS], bytes);
            CHECK(h->model.head_rows < s->B * s->T, "%s: the head takes one chunk", s->name);
            train(h, b);
            CHECK_ERROR(norm_error(h->grads.data(), want.grads.data(), wte), FLOATX == ZERO_F32 ? 1e-6 : 4e-3,
                        "gradient of wte (norm)", s->name);
#ifdef CUDA_ON_CPU
            std::copy(h->grads.begin(), h->grads.begin() + (ptrdiff_t)wte, want.grads.begin());
            check_step(h, b, want, __LINE__, s->name);
#endif
            harness_destroy(h);
        }
    }
}

// On a GPU there is nothing to set: then this compares three runs.
static void bits_depend_on_the_number_of_threads(void) {
    for (const Shape *s : { &tiny, &odd }) {
        Harness *h = harness_create(&s->config, s->B, s->T, 0);
        const Batch b = random_batch(&s->config, s->B, s->T);
        Step want;
        Values logits;
        for (int threads = 1; threads <= 3; threads++) {
            const std::string where = std::string(s->name) + ", threads: " + std::to_string(threads);
#ifdef _OPENMP
            omp_set_num_threads(threads);
#endif
            if (threads == 1) {
                want.loss = train(h, b);
                want.grads = h->grads;
                logits = infer(h, b);
            }
            check_step(h, b, want, __LINE__, where.c_str());
            CHECK_BITS(infer(h, b), logits, "%s: logits", where.c_str());
        }
#ifdef _OPENMP
        omp_set_num_threads(omp_get_num_procs());
#endif
        harness_destroy(h);
    }
}

static void recomputation_changes_bits(void) {
    for (const Shape *s : { &tiny, &odd }) {
        const Batch b = random_batch(&s->config, s->B, s->T);
        Values params;
        Step want;
        size_t bytes = SIZE_MAX;
        for (int recompute = 0; recompute <= 2; recompute++) {
            const std::string where = std::string(s->name) + ", recompute " + std::to_string(recompute);
            const size_t announced = gpt2_activation_bytes(&s->config, s->B, s->T, recompute, 0);
            Harness *h = harness_create(&s->config, s->B, s->T, recompute);
            if (recompute == 0) {
                params = h->params;
                want.loss = train(h, b);
                want.grads = h->grads;
            }
            h->params = params;
            check_step(h, b, want, __LINE__, where.c_str());
            CHECK(h->memory.live[ZERO_MEM_ACTIVATIONS] < bytes, "%s saves no memory", where.c_str());
            bytes = h->memory.live[ZERO_MEM_ACTIVATIONS];
            CHECK(bytes == announced, "%s takes %zu bytes, announced %zu", where.c_str(), bytes, announced);
            harness_destroy(h);
        }
    }
}

// A validation, a sample and a smaller batch come between the steps.
static void offloading_activations_changes_bits(void) {
    const Shape five = { "5 layers", { 16, 50, 56, 5, 2, 16 }, 2, 8 };
    for (const Shape *s : { &five, &odd }) {
        for (int recompute = 0; recompute <= 2; recompute++) {
            const Batch b = random_batch(&s->config, s->B, s->T), small = random_batch(&s->config, 1, s->T - 1);
            Harness *h = harness_create(&s->config, s->B, s->T, recompute);
            const Step want = { train(h, b), h->grads }, want_small = { train(h, small), h->grads };
            const Values logits = infer(h, b), params = h->params;
            const size_t bytes = h->memory.live[ZERO_MEM_ACTIVATIONS];
            harness_destroy(h);

            h = harness_create(&s->config, s->B, s->T, recompute, 0, &params, 1);
            check_step(h, b, want, __LINE__, s->name);
            CHECK_BITS(infer(h, b), logits, "%s: logits", s->name);
            check_step(h, small, want_small, __LINE__, s->name);
            check_step(h, b, want, __LINE__, s->name);
            const size_t host = activation_offload_bytes(&s->config, s->B, s->T, sizeof(floatX), 1);
            CHECK_EQ(h->memory.live[ZERO_MEM_CALLER_HOST], host);
            CHECK_EQ(h->memory.live[ZERO_MEM_ACTIVATIONS],
                     gpt2_activation_bytes(&s->config, s->B, s->T, recompute, 0, FLOATX, 0, 1));
            CHECK(host > 0 && h->memory.live[ZERO_MEM_ACTIVATIONS] + host < bytes + 256, "%s saves no memory", s->name);
            harness_destroy(h);
        }
    }
}

static void earlier_forward_leaves_a_trace(void) {
    for (int recompute = 0; recompute <= 2; recompute++) {
        Harness *h = harness_create(&odd.config, odd.B, odd.T, recompute);
        const Batch b = random_batch(&odd.config, odd.B - 1, odd.T / 2),
                    large = random_batch(&odd.config, odd.B, odd.T);
        const Batch small = random_batch(&odd.config, 1, 1);
        const Step want = { train(h, b), h->grads };
        const Values logits = infer(h, b);

        check_step(h, b, want, __LINE__, "after inference");
        forward(h, large);
        check_step(h, b, want, __LINE__, "after a larger forward without a backward");
        forward(h, small);
        infer(h, large);
        check_step(h, b, want, __LINE__, "after a smaller forward and a larger inference");
        train(h, large);
        gpt2_forward(&h->model, b.inputs.data(), b.targets.data(), b.B, b.T, 0);
        CHECK(gpt2_loss(&h->model) == want.loss, "the validation loss is not the training loss");
        CHECK_BITS(infer(h, b), logits, "logits after everything");

        const Values params = h->params;
        h->params.assign(params.size(), NAN);
        CHECK(isnan(train(h, large)), "all weights are NaN, the loss is not");
        h->params = params;
        check_step(h, b, want, __LINE__, "after a step of NaN");
        harness_destroy(h);
    }
}

// Causality: what follows a token, and the other sequences, have no part in its logits.
static void later_token_changes_an_earlier_logit(void) {
    const size_t Vp = odd.config.padded_vocab_size, T = odd.T, cut = T / 2 + 1;
    Harness *h = harness_create(&odd.config, odd.B, T, 0);
    Batch b = random_batch(&odd.config, odd.B, T);
    const Values before = infer(h, b);
    for (size_t i = cut; i < odd.B * T; i++) b.inputs[i] = (b.inputs[i] + 1) % (int)odd.config.vocab_size;
    const Values after = infer(h, b);
    CHECK(!memcmp(before.data(), after.data(), cut * Vp * sizeof(double)), "the logits of the first %zu tokens change",
          cut);
    CHECK(memcmp(&before[cut * Vp], &after[cut * Vp], Vp * sizeof(double)),
          "the logits of token %zu, which changed, do not", cut);
    harness_destroy(h);
}

static void unused_row_gets_a_gradient(void) {
    Harness *h = harness_create(&odd.config, odd.B, odd.T, 0);
    const size_t C = odd.config.channels, V = odd.config.vocab_size, Vp = odd.config.padded_vocab_size, T = 7;
    size_t wrong = 0, zero_rows = 0;
    train(h, random_batch(&odd.config, odd.B, T));
    const double *dwte = h->grads.data(), *dwpe = dwte + Vp * C;
    for (size_t i = V * C; i < Vp * C; i++) wrong += dwte[i] != 0;
    CHECK(wrong == 0, "wte: %zu elements of the gradient of rows %zu..%zu, the padding, are not zero", wrong, V,
          Vp - 1);
    wrong = 0;
    for (size_t i = T * C; i < odd.config.max_seq_len * C; i++) wrong += dwpe[i] != 0;
    CHECK(wrong == 0, "wpe: %zu elements of the gradient of positions from T = %zu on are not zero", wrong, T);
    for (size_t t = 0; t < T; t++) zero_rows += dwpe[t * C] == 0;
    CHECK(zero_rows == 0, "wpe: %zu positions that were used have no gradient", zero_rows);
    harness_destroy(h);
}

static void nan_is_swallowed(void) {
    const reference_config rc = reference_of(&tiny.config);
    size_t begin[REFERENCE_TENSORS + 1];
    reference_tensor_begin(&rc, begin);
    Harness *h = harness_create(&tiny.config, tiny.B, tiny.T, 0);
    const Batch b = random_batch(&tiny.config, tiny.B, tiny.T);
    for (int t = 0; t < REFERENCE_TENSORS; t++) {
        for (const double bad : { (double)NAN, (double)INFINITY }) {
            const double good = h->params[begin[t]];
            h->params[begin[t]] = bad;
            const double loss = train(h, b);
            double sum = 0;
            for (double g : h->grads) sum += g;
            CHECK(!isfinite(loss), "%s has a %f, and the loss is %f", reference_tensor_names[t], bad, loss);
            CHECK(!isfinite(sum), "%s has a %f, and all gradients are finite", reference_tensor_names[t], bad);
            h->params[begin[t]] = good;
        }
    }
    CHECK(isfinite(train(h, b)), "a NaN stays after its cause is gone");
    harness_destroy(h);
}

int main(int argc, char **argv) {
    numeric_start(&argc, argv);
    RUN(reference_gradient_is_not_the_derivative);
    RUN(elementwise_kernel_is_wrong);
    RUN(layernorm_kernel_is_wrong);
    RUN(linear_layer_is_wrong);
    RUN(gelu_inside_the_product_is_another);
    RUN(encoder_kernel_is_wrong);
    RUN(classifier_kernel_is_wrong);
    RUN(nan_logit_is_swallowed);
    RUN(attention_does_not_fit_a_block);
    RUN(attention_kernel_is_wrong);
    RUN(long_attention_is_wrong);
    RUN(descriptor_is_misread);
    RUN(tensor_table_leaves_a_hole);
    RUN(loss_or_gradient_differs_from_the_definition);
    RUN(chunks_of_the_head_differ);
    RUN(bits_depend_on_the_number_of_threads);
    RUN(recomputation_changes_bits);
    RUN(offloading_activations_changes_bits);
    RUN(earlier_forward_leaves_a_trace);
    RUN(later_token_changes_an_earlier_logit);
    RUN(unused_row_gets_a_gradient);
    RUN(nan_is_swallowed);
    return test_finish();
}
