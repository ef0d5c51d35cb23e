// Causal attention by cuDNN (dev/device/attention.h), through its C interface: no C++ headers beside the library are
// needed.
//
// cuDNN takes attention as a graph of small operations, and knows kernels (engines) that compute certain graphs in one
// go, scores never leaving the chip. The graphs below are those: other ways to write the same formulas would find no
// engine. Tensors inside a graph are virtual, and have no memory. With S the scores, P the probabilities, *
// elementwise:
//
//     forward    S = scale q k^T, masked;  lse = max S + log(sum exp(S - max S));  P = exp(S - max S) / sum;  out = P v
//     backward   D = the row sums of dout * out;  P = exp(S - lse);  dv = P^T dout;  dS = scale P * (dout v^T - D);  dk = dS^T q;  dq = dS k
//
// So lse is what the trainer's own kernels call so: the natural logarithm, of scaled scores.
//
// Bits. A plan is a function of the shape, the device and the version of cuDNN alone: of the engines that cuDNN's
// heuristics suggest, best first, the first is taken that does with the scratch that there is. The usual backward adds
// up the parts of dq by atomics, in any order, and no note of cuDNN's says so. What makes the backward deterministic is
// the graph: dq = dS k is written straight to dq, without an fp32 sum that could be added to. Then the engines keep dS,
// in bf16, and multiply it by k at the end. That shows in what they ask for, 2 T^2 bytes a head: one that asks for less
// is another algorithm, and is not taken. So that it does not cost more than it must, the backward takes as many
// sequences at a time as SCRATCH_LIMIT allows, but at least one.
//
// All descriptors of a plan live as long as it does: it is not said which of them cuDNN still looks at.
#include "device/attention.h"

#include <cudnn.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef PRECISION_BF16
#error "USE_CUDNN=1 is for PRECISION=BF16: cuDNN has no flash attention in FP32"
#endif
#if CUDNN_VERSION < 91000
#error "USE_CUDNN=1 needs cuDNN 9.10 or later: install a newer one, or build without USE_CUDNN"
#endif

static const size_t SCRATCH_LIMIT = (size_t)512 << 20;
static const size_t SCRATCH_EXTRA = 4096;  // of an engine, beside dS: counters and the like
enum { MOST_DESCRIPTORS = 128, MOST_OPERATIONS = 32, MOST_CONFIGS = 16, MOST_NOTES = 32, MOST_PLANS = 64 };

typedef cudnnBackendDescriptor_t Descriptor;

// The tensors that have memory, or are numbers that the host gives; those from INSIDE on are virtual.
enum { Q = 1, K, V, OUT, LSE, DOUT, DQ, DK, DV, ROW_SUMS, SCALE, MASKED, ONE, INSIDE };

// Dimensions and strides, in elements.
typedef struct Shape {
    int64_t dim[4], stride[4];
} Shape;

// A graph while it is built, and the plan that comes out. After the first failure the functions below do nothing.
typedef struct Graph {
    size_t B, T, NH, HS;
    int backward;
    int failed;
    Descriptor made[MOST_DESCRIPTORS];  // all, for destruction
    size_t num_made;
    Descriptor operations[MOST_OPERATIONS];
    int64_t num_operations;
    int64_t next_id;
    Descriptor plan;
    AttentionCudnnPlan found;
} Graph;

// Where a plan is to run: on the device of a handle, or on one that is only described. One of them is NULL.
typedef struct Target {
    cudnnHandle_t handle;
    Descriptor device;
} Target;

static Graph *plans[MOST_PLANS];  // the oldest makes room when there are more shapes than this
static size_t num_plans;          // ever made
static cudnnHandle_t handle;
static char message[1024];

const char *attention_cudnn_error(void) { return message; }

const char *attention_cudnn_name(void) {
    static char name[32];
    const size_t v = cudnnGetVersion();  // 91900 is 9.19.0
    snprintf(name, sizeof name, "cuDNN %zu.%zu.%zu", v / 10000, v / 100 % 100, v % 100);
    return name;
}

// ----------------------------------------------------------------------------------------------------------------------
// Descriptors

static int failed(cudnnStatus_t status, const char *what) {
    if (status == CUDNN_STATUS_SUCCESS) {
        return 0;
    }
    char why[512] = "";
    cudnnGetLastErrorString(why, sizeof why);
    snprintf(message, sizeof message, "%s: %s: %s%s%s", attention_cudnn_name(), what, cudnnGetErrorString(status),
             why[0] != '\0' ? ": " : "", why);
    return -1;
}

// failed(), for a graph.
static void check(Graph *g, cudnnStatus_t status, const char *what) {
    if (failed(status, what)) {
        g->failed = 1;
    }
}

static Descriptor make(Graph *g, cudnnBackendDescriptorType_t type) {
    Descriptor d = NULL;
    if (!g->failed && g->num_made == MOST_DESCRIPTORS) {
        snprintf(message, sizeof message, "attention_cudnn.c: MOST_DESCRIPTORS is too small");
        g->failed = 1;
    }
    if (!g->failed) {
        check(g, cudnnBackendCreateDescriptor(type, &d), "a descriptor");
    }
    if (!g->failed) {
        g->made[g->num_made++] = d;
    }
    return d;
}

static void set_many(Graph *g, Descriptor d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                     int64_t count, const void *values) {
    if (!g->failed) {
        check(g, cudnnBackendSetAttribute(d, name, type, count, values), "an attribute");
    }
}

static void set(Graph *g, Descriptor d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                const void *value) {
    set_many(g, d, name, type, 1, value);
}

static void set_descriptor(Graph *g, Descriptor d, cudnnBackendAttributeName_t name, Descriptor value) {
    set(g, d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, &value);
}

static void finish(Graph *g, Descriptor d, const char *what) {
    if (!g->failed) {
        check(g, cudnnBackendFinalize(d), what);
    }
}

static void graph_destroy(Graph *g) {
    if (g == NULL) {
        return;
    }
    while (g->num_made > 0) {
        (void)cudnnBackendDestroyDescriptor(g->made[--g->num_made]);
    }
    free(g);
}

// ----------------------------------------------------------------------------------------------------------------------
// Tensors and operations. An operation returns its result, a virtual tensor, except where `to` says which tensor it is.

static Descriptor tensor(Graph *g, int64_t id, cudnnDataType_t type, Shape shape) {
    const int64_t alignment = 16;
    const bool is_virtual = id >= INSIDE;
    const bool by_value = id == SCALE || id == MASKED || id == ONE;
    Descriptor d = make(g, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    set(g, d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, &id);
    set(g, d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, &type);
    set_many(g, d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, shape.dim);
    set_many(g, d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, shape.stride);
    set(g, d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, &alignment);
    set(g, d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, &is_virtual);
    set(g, d, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, &by_value);
    finish(g, d, "a tensor");
    return d;
}

static Descriptor inside(Graph *g, cudnnDataType_t type, Shape shape) { return tensor(g, g->next_id++, type, shape); }

// [B, NH, T, HS] in an array [B, T, width]: rows of queries, keys, values or outputs.
static Shape rows_shape(const Graph *g, size_t width) {
    const int64_t B = (int64_t)g->B, T = (int64_t)g->T, NH = (int64_t)g->NH, HS = (int64_t)g->HS, W = (int64_t)width;
    return (Shape){ { B, NH, T, HS }, { T * W, HS, W, 1 } };
}

// The same memory as the transposed matrices: [B, NH, HS, T], or [B, NH, T, T] of scores.
static Shape transposed(Shape s) {
    return (Shape){ { s.dim[0], s.dim[1], s.dim[3], s.dim[2] },
                    { s.stride[0], s.stride[1], s.stride[3], s.stride[2] } };
}

// [B, NH, T, columns], without gaps: scores, or one number for each row of them.
static Shape dense_shape(const Graph *g, size_t columns) {
    const int64_t B = (int64_t)g->B, T = (int64_t)g->T, NH = (int64_t)g->NH, N = (int64_t)columns;
    return (Shape){ { B, NH, T, N }, { NH * T * N, T * N, N, 1 } };
}

static Shape scores_shape(const Graph *g) { return dense_shape(g, g->T); }

static Descriptor number(Graph *g, int64_t id) {
    return tensor(g, id, CUDNN_DATA_FLOAT, (Shape){ { 1, 1, 1, 1 }, { 1, 1, 1, 1 } });
}

static void add_operation(Graph *g, Descriptor operation, const char *what) {
    finish(g, operation, what);
    if (!g->failed && g->num_operations == MOST_OPERATIONS) {
        snprintf(message, sizeof message, "attention_cudnn.c: MOST_OPERATIONS is too small");
        g->failed = 1;
    }
    if (!g->failed) {
        g->operations[g->num_operations++] = operation;
    }
}

// to = mode(x, y, z); y and z may be NULL. axis: of GEN_INDEX.
static void pointwise(Graph *g, cudnnPointwiseMode_t mode, cudnnDataType_t precision, int64_t axis, Descriptor x,
                      Descriptor y, Descriptor z, Descriptor to) {
    Descriptor p = make(g, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    set(g, p, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, &mode);
    set(g, p, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, &precision);
    if (mode == CUDNN_POINTWISE_GEN_INDEX) {
        set(g, p, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, &axis);
    }
    finish(g, p, "a pointwise operation");
    Descriptor o = make(g, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    set_descriptor(g, o, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, p);
    set_descriptor(g, o, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
    if (y != NULL) {
        set_descriptor(g, o, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, y);
    }
    if (z != NULL) {
        set_descriptor(g, o, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, z);
    }
    set_descriptor(g, o, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, to);
    add_operation(g, o, "a pointwise operation");
}

static void compute_to(Graph *g, cudnnPointwiseMode_t mode, Descriptor x, Descriptor y, Descriptor to) {
    pointwise(g, mode, CUDNN_DATA_FLOAT, 0, x, y, NULL, to);
}

// In fp32, on scores.
static Descriptor compute(Graph *g, cudnnPointwiseMode_t mode, Descriptor x, Descriptor y) {
    Descriptor to = inside(g, CUDNN_DATA_FLOAT, scores_shape(g));
    compute_to(g, mode, x, y, to);
    return to;
}

// A number for each row of x.
static Descriptor reduce(Graph *g, cudnnReduceTensorOp_t mode, Descriptor x) {
    const cudnnDataType_t precision = CUDNN_DATA_FLOAT;
    Descriptor to = inside(g, CUDNN_DATA_FLOAT, dense_shape(g, 1));
    Descriptor r = make(g, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    set(g, r, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, &mode);
    set(g, r, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, &precision);
    finish(g, r, "a reduction");
    Descriptor o = make(g, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    set_descriptor(g, o, CUDNN_ATTR_OPERATION_REDUCTION_DESC, r);
    set_descriptor(g, o, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
    set_descriptor(g, o, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, to);
    add_operation(g, o, "a reduction");
    return to;
}

// to = a b, sums in fp32.
static void multiply(Graph *g, Descriptor a, Descriptor b, Descriptor to) {
    const cudnnDataType_t precision = CUDNN_DATA_FLOAT;
    Descriptor m = make(g, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    set(g, m, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, &precision);
    finish(g, m, "a matrix product");
    Descriptor o = make(g, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    set_descriptor(g, o, CUDNN_ATTR_OPERATION_MATMUL_DESC, m);
    set_descriptor(g, o, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a);
    set_descriptor(g, o, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
    set_descriptor(g, o, CUDNN_ATTR_OPERATION_MATMUL_CDESC, to);
    add_operation(g, o, "a matrix product");
}

// x in another shape, as bf16: here always a transpose.
static Descriptor reshape(Graph *g, Descriptor x, Shape shape) {
    Descriptor to = inside(g, CUDNN_DATA_BFLOAT16, shape);
    Descriptor o = make(g, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    set_descriptor(g, o, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x);
    set_descriptor(g, o, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, to);
    add_operation(g, o, "a transpose");
    return to;
}

// ----------------------------------------------------------------------------------------------------------------------
// The two graphs

// Scores where the key is not after the query, minus infinity elsewhere.
static Descriptor mask(Graph *g, Descriptor scores) {
    Descriptor query = inside(g, CUDNN_DATA_INT32, scores_shape(g));
    Descriptor key = inside(g, CUDNN_DATA_INT32, scores_shape(g));
    Descriptor seen = inside(g, CUDNN_DATA_BOOLEAN, scores_shape(g));
    Descriptor masked = inside(g, CUDNN_DATA_FLOAT, scores_shape(g));
    pointwise(g, CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_INT32, 2, scores, NULL, NULL, query);
    pointwise(g, CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_INT32, 3, scores, NULL, NULL, key);
    pointwise(g, CUDNN_POINTWISE_CMP_GE, CUDNN_DATA_BOOLEAN, 0, query, key, NULL, seen);
    pointwise(g, CUDNN_POINTWISE_BINARY_SELECT, CUDNN_DATA_FLOAT, 0, scores, number(g, MASKED), seen, masked);
    return masked;
}

// scale q k^T; k is transposed by its strides.
static Descriptor scaled_scores(Graph *g, Descriptor q, Descriptor k_transposed, Descriptor scale) {
    Descriptor products = inside(g, CUDNN_DATA_FLOAT, scores_shape(g));
    multiply(g, q, k_transposed, products);
    return compute(g, CUDNN_POINTWISE_MUL, products, scale);
}

static void build_forward(Graph *g) {
    const size_t C = g->NH * g->HS;
    const Shape in = rows_shape(g, 3 * C);
    Descriptor q = tensor(g, Q, CUDNN_DATA_BFLOAT16, in);
    Descriptor k = tensor(g, K, CUDNN_DATA_BFLOAT16, transposed(in));
    Descriptor v = tensor(g, V, CUDNN_DATA_BFLOAT16, in);
    Descriptor out = tensor(g, OUT, CUDNN_DATA_BFLOAT16, rows_shape(g, C));
    Descriptor lse = tensor(g, LSE, CUDNN_DATA_FLOAT, dense_shape(g, 1));

    Descriptor scores = mask(g, scaled_scores(g, q, k, number(g, SCALE)));
    Descriptor largest = reduce(g, CUDNN_REDUCE_TENSOR_MAX, scores);
    Descriptor exps = compute(g, CUDNN_POINTWISE_EXP, compute(g, CUDNN_POINTWISE_SUB, scores, largest), NULL);
    Descriptor sum = reduce(g, CUDNN_REDUCE_TENSOR_ADD, exps);
    Descriptor log_sum = inside(g, CUDNN_DATA_FLOAT, dense_shape(g, 1));
    compute_to(g, CUDNN_POINTWISE_LOG, sum, NULL, log_sum);
    compute_to(g, CUDNN_POINTWISE_ADD, largest, log_sum, lse);
    Descriptor probabilities = inside(g, CUDNN_DATA_BFLOAT16, scores_shape(g));
    compute_to(g, CUDNN_POINTWISE_DIV, exps, sum, probabilities);
    multiply(g, probabilities, v, out);
}

static void build_backward(Graph *g) {
    const size_t C = g->NH * g->HS;
    const Shape in = rows_shape(g, 3 * C), narrow = rows_shape(g, C);
    Descriptor q = tensor(g, Q, CUDNN_DATA_BFLOAT16, in);
    Descriptor k_transposed = tensor(g, K, CUDNN_DATA_BFLOAT16, transposed(in));
    Descriptor v_transposed = tensor(g, V, CUDNN_DATA_BFLOAT16, transposed(in));
    Descriptor out = tensor(g, OUT, CUDNN_DATA_BFLOAT16, narrow);
    Descriptor dout = tensor(g, DOUT, CUDNN_DATA_BFLOAT16, narrow);
    Descriptor lse = tensor(g, LSE, CUDNN_DATA_FLOAT, dense_shape(g, 1));
    Descriptor dq = tensor(g, DQ, CUDNN_DATA_BFLOAT16, in);
    Descriptor dk = tensor(g, DK, CUDNN_DATA_BFLOAT16, in);
    Descriptor dv = tensor(g, DV, CUDNN_DATA_BFLOAT16, in);
    Descriptor row_sums = tensor(g, ROW_SUMS, CUDNN_DATA_FLOAT, dense_shape(g, 1));
    Descriptor scale = number(g, SCALE);

    Descriptor products = inside(g, CUDNN_DATA_FLOAT, narrow);
    compute_to(g, CUDNN_POINTWISE_MUL, dout, out, products);
    // Times one: where dropout would have its scale. The engines want to see it.
    compute_to(g, CUDNN_POINTWISE_MUL, reduce(g, CUDNN_REDUCE_TENSOR_ADD, products), number(g, ONE), row_sums);

    Descriptor scores = scaled_scores(g, q, k_transposed, scale);
    Descriptor p = compute(g, CUDNN_POINTWISE_EXP, mask(g, compute(g, CUDNN_POINTWISE_SUB, scores, lse)), NULL);
    multiply(g, reshape(g, p, transposed(scores_shape(g))), dout, dv);

    Descriptor dp = inside(g, CUDNN_DATA_FLOAT, scores_shape(g));
    multiply(g, dout, v_transposed, dp);
    Descriptor ds = compute(g, CUDNN_POINTWISE_MUL, compute(g, CUDNN_POINTWISE_SUB, dp, row_sums), p);
    ds = compute(g, CUDNN_POINTWISE_MUL, ds, scale);
    multiply(g, reshape(g, ds, transposed(scores_shape(g))), q, dk);
    multiply(g, ds, reshape(g, k_transposed, in), dq);
}

// ----------------------------------------------------------------------------------------------------------------------
// Plans

static size_t round_up(size_t n, size_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// The scratch begins with the row sums of dout * out.
static size_t row_sums_bytes(size_t B, size_t T, size_t NH) { return round_up(B * NH * T * sizeof(float), 256); }

// dS of one sequence. The engines work on tiles of up to 128 x 128.
static size_t sequence_bytes(size_t T, size_t NH) { return 2 * NH * round_up(T, 128) * round_up(T, 128); }

static size_t workspace_bytes(size_t B, size_t T, size_t NH) {
    const size_t one = sequence_bytes(T, NH), most = one > SCRATCH_LIMIT ? one : SCRATCH_LIMIT;
    return (B * one < most ? B * one : most) + SCRATCH_EXTRA;
}

size_t attention_cudnn_scratch(size_t B, size_t T, size_t NH) {
    return row_sums_bytes(B, T, NH) + workspace_bytes(B, T, NH);
}

// Sequences that one call of the backward takes: as many as fit, in calls that are as equal as can be.
static size_t backward_batch(size_t B, size_t T, size_t NH) {
    const size_t fit = (workspace_bytes(B, T, NH) - SCRATCH_EXTRA) / sequence_bytes(T, NH);
    const size_t calls = (B + fit - 1) / fit;
    return (B + calls - 1) / calls;
}

// Does cuDNN itself say of the engine of a configuration that it adds in an order that changes from run to run? (What
// it does not say: see above.)
static int says_random(Graph *g, Descriptor config) {
    cudnnBackendNumericalNote_t notes[MOST_NOTES];
    int64_t count = 0;
    Descriptor engine = make(g, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    if (g->failed) {
        return 0;
    }
    check(g,
          cudnnBackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count,
                                   &engine),
          "an engine");
    if (!g->failed) {
        check(g,
              cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE, MOST_NOTES,
                                       &count, notes),
              "an engine's notes");
    }
    for (int64_t i = 0; !g->failed && i < count && i < MOST_NOTES; i++) {
        if (notes[i] == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC) {
            return 1;
        }
    }
    return 0;
}

// Bytes of dS in one call of the backward, without the gaps that tiles make.
static size_t kept_bytes(const Graph *g) { return g->backward ? 2 * g->B * g->NH * g->T * g->T : 0; }

// Makes a plan of a configuration, and keeps it if it is one that we can use. A failure that is of the moment (memory,
// driver) is an error: the next configuration would give other bits than another rank has.
static void try_config(Graph *g, const Target *target, Descriptor config, size_t workspace) {
    int64_t bytes = 0, count = 0;
    Descriptor plan = make(g, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    if (target->handle != NULL) {
        set(g, plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, &target->handle);
    } else {
        set_descriptor(g, plan, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, target->device);
    }
    set_descriptor(g, plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
    if (g->failed) {
        return;
    }
    cudnnStatus_t status = cudnnBackendFinalize(plan);
    if (status / 1000 * 1000 == CUDNN_STATUS_NOT_SUPPORTED) {
        return;
    }
    check(g, status, "making a plan");
    if (!g->failed) {
        check(g,
              cudnnBackendGetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &count,
                                       &bytes),
              "a plan's workspace");
    }
    if (!g->failed && (size_t)bytes <= workspace && (size_t)bytes >= kept_bytes(g)) {
        g->plan = plan;
        g->found.workspace = (size_t)bytes;
    }
}

static void choose_plan(Graph *g, const Target *target, size_t workspace) {
    const cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    Descriptor graph = make(g, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    if (target->handle != NULL) {
        set(g, graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, &target->handle);
    }
    set_many(g, graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, g->num_operations, g->operations);
    finish(g, graph, "the graph of attention");

    Descriptor heuristics = make(g, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    set_descriptor(g, heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
    set(g, heuristics, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, &mode);
    if (target->handle == NULL) {
        set_descriptor(g, heuristics, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, target->device);
    }
    finish(g, heuristics, "finding an engine");

    Descriptor configs[MOST_CONFIGS];
    int64_t count = 0;
    for (int i = 0; i < MOST_CONFIGS; i++) {
        configs[i] = make(g, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    }
    if (!g->failed) {
        check(g,
              cudnnBackendGetAttribute(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                       MOST_CONFIGS, &count, configs),
              "the engines found");
    }
    if (g->failed) {
        return;
    }
    g->found.candidates = (size_t)(count < MOST_CONFIGS ? count : MOST_CONFIGS);
    for (size_t i = 0; i < g->found.candidates && !g->failed && g->plan == NULL; i++) {
        if (!says_random(g, configs[i])) {
            try_config(g, target, configs[i], workspace);
        }
    }
    if (!g->failed && g->plan == NULL) {
        snprintf(message, sizeof message,
                 "%s has no %s for B %zu, T %zu, %zu heads of %zu on this device "
                 "(of %zu that it suggests): build without USE_CUDNN, or use heads of 64 or 128",
                 attention_cudnn_name(), g->backward ? "deterministic backward of attention" : "attention", g->B, g->T,
                 g->NH, g->HS, g->found.candidates);
        g->failed = 1;
    }
}

// Sizes beyond these are beyond any GPU's memory, and would overflow below.
static int sizes_are_sane(size_t B, size_t T, size_t NH, size_t HS) {
    const size_t most = (size_t)1 << 20;
    if (B > 0 && T > 0 && NH > 0 && HS > 0 && B <= most && T <= most && NH <= most && HS <= most / NH &&
        B * T <= most << 10) {
        return 1;
    }
    snprintf(message, sizeof message,
             "attention: B %zu, T %zu, %zu heads of %zu: a size is 0 or too large for cuDNN: build without USE_CUDNN",
             B, T, NH, HS);
    return 0;
}

// NULL on failure.
static Graph *plan_make(const Target *target, size_t B, size_t T, size_t NH, size_t HS, int backward) {
    Graph *g = calloc(1, sizeof *g);
    if (g == NULL) {
        snprintf(message, sizeof message, "attention: the host's memory is exhausted");
        return NULL;
    }
    g->B = B;
    g->T = T;
    g->NH = NH;
    g->HS = HS;
    g->backward = backward;
    g->next_id = INSIDE;
    if (backward) {
        build_backward(g);
    } else {
        build_forward(g);
    }
    choose_plan(g, target, workspace_bytes(B, T, NH));
    if (g->failed) {
        graph_destroy(g);
        return NULL;
    }
    return g;
}

int attention_cudnn_plan_for(const char *device_json, size_t B, size_t T, size_t NH, size_t HS, int backward,
                             AttentionCudnnPlan *out) {
    Target target = { NULL, NULL };
    memset(out, 0, sizeof *out);
    if (!sizes_are_sane(B, T, NH, HS) ||
        failed(cudnnBackendCreateDescriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &target.device), "a device")) {
        return -1;
    }
    int status = -1;
    if (!failed(cudnnBackendSetAttribute(target.device, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
                                         (int64_t)strlen(device_json) + 1, device_json),
                "the description of a device") &&
        !failed(cudnnBackendFinalize(target.device), "the description of a device")) {
        Graph *g = plan_make(&target, backward ? backward_batch(B, T, NH) : B, T, NH, HS, backward);
        status = g != NULL ? 0 : -1;
        if (g != NULL) {
            *out = g->found;
            out->sequences = g->B;
        }
        graph_destroy(g);
    }
    (void)cudnnBackendDestroyDescriptor(target.device);
    return status;
}

// The plan for a shape, made when it is asked for the first time. NULL on failure.
static Graph *plan_find(size_t B, size_t T, size_t NH, size_t HS, int backward) {
    for (size_t i = 0; i < num_plans && i < MOST_PLANS; i++) {
        const Graph *g = plans[i];
        if (g->B == B && g->T == T && g->NH == NH && g->HS == HS && g->backward == backward) {
            return plans[i];
        }
    }
    if (handle == NULL && failed(cudnnCreate(&handle), "no handle")) {
        handle = NULL;
        return NULL;
    }
    Graph *g = plan_make(&(Target){ handle, NULL }, B, T, NH, HS, backward);
    if (g != NULL) {
        Graph **place = &plans[num_plans++ % MOST_PLANS];
        graph_destroy(*place);
        *place = g;
    }
    return g;
}

int attention_cudnn_prepare(size_t B, size_t T, size_t NH, size_t HS, int backward) {
    if (!sizes_are_sane(B, T, NH, HS) || plan_find(B, T, NH, HS, 0) == NULL) {
        return -1;
    }
    const size_t n = backward_batch(B, T, NH);
    return backward && (plan_find(n, T, NH, HS, 1) == NULL || (B % n != 0 && plan_find(B % n, T, NH, HS, 1) == NULL))
               ? -1
               : 0;
}

// ----------------------------------------------------------------------------------------------------------------------
// Running

// pointers: of the tensors ids.
static int run(const Graph *g, int64_t count, const int64_t *ids, void **pointers, void *workspace,
               cudaStream_t stream) {
    Descriptor pack = NULL;
    if (failed(cudnnSetStream(handle, stream), "the stream") ||
        failed(cudnnBackendCreateDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack), "a descriptor")) {
        return -1;
    }
    const char *what = "the arguments of attention";
    int status =
        failed(cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, ids),
               what) ||
        failed(
            cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count, pointers),
            what) ||
        failed(cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace),
               what) ||
        failed(cudnnBackendFinalize(pack), what) ||
        failed(cudnnBackendExecute(handle, g->plan, pack), g->backward ? "the backward of attention" : "attention");
    (void)cudnnBackendDestroyDescriptor(pack);
    return status ? -1 : 0;
}

int attention_cudnn_forward(void *out, float *lse, void *scratch, const void *qkv, size_t B, size_t T, size_t NH,
                            size_t HS, cudaStream_t stream) {
    const Graph *g = sizes_are_sane(B, T, NH, HS) ? plan_find(B, T, NH, HS, 0) : NULL;
    if (g == NULL) {
        return -1;
    }
    float scale = 1.0f / sqrtf((float)HS), masked = -INFINITY;  // read when the call is queued
    uint16_t *in = (uint16_t *)qkv;                             // bf16; not written
    const int64_t ids[] = { Q, K, V, OUT, LSE, SCALE, MASKED };
    void *pointers[] = { in, in + NH * HS, in + 2 * NH * HS, out, lse, &scale, &masked };
    return run(g, sizeof ids / sizeof *ids, ids, pointers, scratch, stream);
}

int attention_cudnn_backward(void *dqkv, void *scratch, const void *dout, const void *out, const void *qkv,
                             const float *lse, size_t B, size_t T, size_t NH, size_t HS, cudaStream_t stream) {
    if (!sizes_are_sane(B, T, NH, HS)) {
        return -1;
    }
    float scale = 1.0f / sqrtf((float)HS), masked = -INFINITY, one = 1.0f;
    const size_t C = NH * HS, most = backward_batch(B, T, NH);
    const int64_t ids[] = { Q, K, V, OUT, LSE, DOUT, DQ, DK, DV, ROW_SUMS, SCALE, MASKED, ONE };
    for (size_t b = 0; b < B; b += most) {
        const size_t n = B - b < most ? B - b : most;
        const Graph *g = plan_find(n, T, NH, HS, 1);
        if (g == NULL) {
            return -1;
        }
        uint16_t *in = (uint16_t *)qkv + b * T * 3 * C, *din = (uint16_t *)dqkv + b * T * 3 * C;
        void *pointers[] = { in,
                             in + C,
                             in + 2 * C,
                             (uint16_t *)out + b * T * C,
                             (float *)lse + b * NH * T,
                             (uint16_t *)dout + b * T * C,
                             din,
                             din + C,
                             din + 2 * C,
                             scratch,
                             &scale,
                             &masked,
                             &one };
        if (run(g, sizeof ids / sizeof *ids, ids, pointers, (char *)scratch + row_sums_bytes(B, T, NH), stream)) {
            return -1;
        }
    }
    return 0;
}

void attention_cudnn_destroy(void) {
    for (size_t i = 0; i < num_plans && i < MOST_PLANS; i++) {
        graph_destroy(plans[i]);
        plans[i] = NULL;
    }
    num_plans = 0;
    if (handle != NULL) {
        (void)cudnnDestroy(handle);
    }
    handle = NULL;
}
