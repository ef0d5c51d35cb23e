// toy_model.h: made-up tensors and gradients for tests of the engine, engines of them, and a training step. The
// gradients of a micro-batch depend on its number only, and are exact in bf16.
#ifndef TOY_MODEL_H
#define TOY_MODEL_H
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "test/ranks/ways.h"
#include "zero/zero.h"

static int data_rank, data_ranks;  // among the ranks that train one model together: all, or a mesh's data-parallel
                                   // ranks
static enum zero_order micro_batch_order;  // which a rank takes
static int stripe;                         // which of the mesh's models this is; they have other gradients

// What a model is kept as. The two with the same master weights must have the same bits.
enum kind { F32, BF16, BF16_SPLIT, BF16_NO_MASTER, KINDS };
static const char *const kind_names[KINDS] = { "fp32", "bf16", "bf16, split master", "bf16, no master" };
static enum kind kind;

// Units of equal and of different size, tensors around the alignment, an empty one. Logical order is not registration
// order.
static const zero_tensor tensors[] = {
    { "embedding", 5003, 0, 900, 1 }, { "bias", 65, 0, 0, 0 },         { "a.weight", 640, 1, 70, 1 },
    { "a.bias", 63, 1, 710, 0 },      { "a.empty", 0, 1, 773, 0 },     { "b.weight", 640, 2, 6000, 1 },
    { "b.bias", 63, 2, 6640, 0 },     { "c.weight", 640, 3, 7000, 1 }, { "c.bias", 63, 3, 7640, 0 },
    { "d.weight", 640, 4, 8000, 1 },  { "d.bias", 1, 4, 8640, 0 },
};
enum {
    TENSORS = sizeof tensors / sizeof *tensors,
    UNITS = 5,
    NUMEL = 8641,     // of its file, which has gaps
    ELEMENTS = 7818,  // of its tensors
    STAGES = 4
};

static float initial(size_t logical) { return (float)(int)(logical % 251) / 125.0f - 1.0f; }
static float scale = 1;                                       // of all gradients
static float gradient(size_t logical, size_t j, size_t step)  // of micro-batch j, exact in bf16
{
    return (float)((int)((logical * 7 + j * 31 + step * 13 + (size_t)stripe * 17) % 127) - 63) / 64.0f *
           (j % 3 ? 1.0f : 0x1p-9f) * scale;
}

static inline int fill(void *ctx, size_t tensor, size_t begin, size_t count, float *out) {
    (void)ctx;
    for (size_t i = 0; i < count; i++) out[i] = initial(tensors[tensor].logical + begin + i);
    return 0;
}

static void put(void *buffer, size_t element, float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    if (kind != F32)
        ((uint16_t *)buffer)[element] = (uint16_t)(u >> 16);
    else
        ((float *)buffer)[element] = x;
}

// A copy of n elements of the device; the caller frees it.
static void *copy_of(const void *device, size_t n, size_t elem) {
    void *host = malloc(n * elem + 1);
    device_read(host, device, n * elem);
    return host;
}

static size_t element(void) { return kind == F32 ? 4 : 2; }

// ---- engines --------------------------------------------------------------------------------------------------------

static inline void start_engines(int *argc, char **argv) {
    start_world(argc, argv);
    data_rank = rank, data_ranks = ranks;
}

static inline zero_config config_of(zero_comm *c, int stage) {
    static const size_t units[] = { 0, 1, 2, 3, 4, 0, 4, 3, 2, 1, 0 };
    static const enum zero_master masters[KINDS] = { ZERO_MASTER_FP32, ZERO_MASTER_FP32, ZERO_MASTER_SPLIT,
                                                     ZERO_MASTER_NONE };
    return (zero_config){ .settings = { .stage = stage,
                                        .prefetch = 1,
                                        .dtype = kind == F32 ? ZERO_F32 : ZERO_BF16,
                                        .master = masters[kind],
                                        .order = micro_batch_order,
                                        .seed = 42 },
                          .order = units,
                          .order_length = sizeof units / sizeof *units,
                          .tensors = tensors,
                          .num_tensors = TENSORS,
                          .shard_comm = c,
                          .accounting = &memory };
}

static inline zero *make_of(zero_config config) {
    zero *z;
    CHECK(zero_create(&z, &config) == ZERO_OK, "create: %s", zero_error(z));
    CHECK(zero_fill(z, fill, NULL) == ZERO_OK, "fill: %s", zero_error(z));
    return z;
}

static inline zero *make(zero_comm *c, int stage) { return make_of(config_of(c, stage)); }

static const zero_hyperparameters adamw = {
    .lr = 0.01f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f
};

// ---- training -------------------------------------------------------------------------------------------------------

// What the forward passes have seen of the parameters.
static uint64_t seen;

static inline int forward(zero *z) {
    const size_t b = element();
    for (size_t i = 0; i <= UNITS; i++) {
        const size_t u = i % UNITS;  // the first unit is used at both ends, as an embedding is
        const char *device = zero_acquire_params(z, u);
        if (!device) return zero_release_params(z, u);  // the error that it could not return
        unsigned char *p = copy_of(device, zero_layout_unit_numel(zero_get_layout(z), u), b);
        for (size_t t = 0; t < TENSORS; t++)
            if (tensors[t].unit == u)
                for (size_t k = 0; k < tensors[t].numel * b; k++)
                    seen = seen * 6364136223846793005u + p[zero_tensor_offset(z, t) * b + k] + 1;
        free(p);
        const int e = zero_release_params(z, u);
        if (e) return e;
    }
    return ZERO_OK;
}

// The gradients of micro-batch j, the g-th of this rank, in one unit; poison in one element of one rank if asked for.
static inline int unit_gradients(zero *z, size_t u, size_t g_of_step, size_t j, size_t step, float poison) {
    const size_t n = zero_layout_unit_numel(zero_get_layout(z), u);
    void *device = zero_acquire_grads(z, u, g_of_step);
    if (!device) return zero_release_grads(z, u);  // the error that it could not return
    char *g = copy_of(device, n, element());       // zero, the padding too, if all is well
    for (size_t t = 0; t < TENSORS; t++)
        if (tensors[t].unit == u)
            for (size_t i = 0; i < tensors[t].numel; i++)
                put(g, zero_tensor_offset(z, t) + i, gradient(tensors[t].logical + i, j, step));
    if (u == 2 && poison != 0 && rank == ranks - 1) put(g, 5, poison);
    device_write(device, g, n * element());
    free(g);
    return zero_release_grads(z, u);
}

static inline int backward_unit(zero *z, size_t u, size_t j, size_t step, float poison) {
    if (!zero_acquire_params(z, u)) return zero_release_params(z, u);
    const int e = unit_gradients(z, u, zero_get_micro_batches(z), j, step, poison);
    return e ? e : zero_release_params(z, u);
}

// One micro-batch, units from last to first.
static inline int micro_batch(zero *z, size_t j, size_t step, float poison) {
    int e = forward(z);
    for (size_t u = UNITS; u-- > 0 && !e;) e = backward_unit(z, u, j, step, poison);
    return e ? e : zero_finish_backward(z);
}

// All micro-batches of a step, unit by unit (ZERO_ORDER_LAYER).
static inline int unit_by_unit(zero *z, size_t step, size_t micro_batches) {
    const size_t first = (size_t)data_rank * micro_batches;
    int e = forward(z);
    for (size_t u = UNITS; u-- > 0 && !e;) {
        if (!zero_acquire_params(z, u)) return zero_release_params(z, u);
        for (size_t g = 0; g < micro_batches && !e; g++) e = unit_gradients(z, u, g, first + g, step, 0);
        if (!e) e = zero_release_params(z, u);
    }
    return e ? e : zero_finish_backward(z);
}

static inline int one_step(zero *z, size_t step, size_t micro_batches, double *norm) {
    int e = zero_begin_step(z);
    if (!e && micro_batch_order == ZERO_ORDER_LAYER) e = unit_by_unit(z, step, micro_batches);
    for (size_t g = 0; g < micro_batches && micro_batch_order != ZERO_ORDER_LAYER && !e; g++)
        e = micro_batch(z,
                        micro_batch_order == ZERO_ORDER_RANK ? (size_t)data_rank * micro_batches + g
                                                             : g * (size_t)data_ranks + (size_t)data_rank,
                        step, 0);
    if (!e) e = zero_grad_norm(z, norm);
    return e ? e : zero_step(z, &adamw);
}

static inline void hash_of(zero *z, uint64_t hash[2]) {
    CHECK(zero_hash(z, &hash[0], &hash[1]) == ZERO_OK, "hash: %s", zero_error(z));
}

static inline void equal_bits(zero *a, zero *b, const char *when) {
    uint64_t hash[2][2];
    hash_of(a, hash[0]);
    hash_of(b, hash[1]);
    CHECK(!memcmp(hash[0], hash[1], sizeof hash[0]), "%s: other bits", when);
}

static inline double norm_in_double(size_t step, size_t micro_batches) {
    double squares = 0;
    for (size_t t = 0; t < TENSORS; t++)
        for (size_t i = 0; i < tensors[t].numel; i++) {
            double sum = 0;
            for (size_t j = 0; j < micro_batches * (size_t)data_ranks; j++)
                sum += gradient(tensors[t].logical + i, j, step);
            squares += sum * sum;
        }
    return sqrt(squares) / (double)(micro_batches * (size_t)data_ranks);
}

// ---- reports --------------------------------------------------------------------------------------------------------

static size_t other_transport;  // accounted bytes of a transport that is not the engine's

// With shard groups: that of all ranks.
static inline void note_other_transport(const zero_mesh_comms *comms) {
    const zero_comm_shape shape = zero_comm_get_shape(comms->data);
    other_transport = comms->shard != comms->data ? zero_comm_scratch_bytes(&shape, 0, 0, 0) : 0;
}

static inline void reports_agree(const zero *z, const char *when) {
    zero_row rows[24];
    size_t n = zero_report_memory(z, rows, 24);
    for (size_t i = 0; i < n; i++)
        if (rows[i].kind == ZERO_MEM_TRANSPORT) rows[i].expected += other_transport;
    for (size_t i = 0; i < n; i++)
        CHECK(rows[i].expected == rows[i].measured, "%s, memory of %s: %llu bytes by formula (%s), %llu measured", when,
              rows[i].what, (unsigned long long)rows[i].expected, rows[i].formula,
              (unsigned long long)rows[i].measured);
    n = zero_report_wire(z, rows, 24);
    for (size_t i = 0; i < n; i++)
        CHECK(rows[i].expected == rows[i].measured, "%s, wire bytes of %s: %llu by formula (%s), %llu measured", when,
              rows[i].what, (unsigned long long)rows[i].expected, rows[i].formula,
              (unsigned long long)rows[i].measured);
}

#endif
