#include "device/cuda/cudnn_graph.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

// Dimensions and strides, in elements.
typedef struct Shape {
    int64_t dim[4], stride[4];
} Shape;

char attention_cudnn_message[1024];

// ---------------------------------------------------------------------------------------------------------------------
// Descriptors

int cudnn_failed(cudnnStatus_t status, const char *what) {
    if (status == CUDNN_STATUS_SUCCESS) {
        return 0;
    }
    char why[512] = "";
    cudnnGetLastErrorString(why, sizeof why);
    snprintf(attention_cudnn_message, sizeof attention_cudnn_message, "%s: %s: %s%s%s", attention_cudnn_name(), what,
             cudnnGetErrorString(status), why[0] != '\0' ? ": " : "", why);
    return -1;
}

void graph_check(Graph *g, cudnnStatus_t status, const char *what) {
    if (cudnn_failed(status, what)) {
        g->failed = 1;
    }
}

Descriptor graph_make(Graph *g, cudnnBackendDescriptorType_t type) {
    Descriptor d = NULL;
    if (!g->failed && g->num_made == MOST_DESCRIPTORS) {
        snprintf(attention_cudnn_message, sizeof attention_cudnn_message,
                 "attention_cudnn.c: MOST_DESCRIPTORS is too small");
        g->failed = 1;
    }
    if (!g->failed) {
        graph_check(g, cudnnBackendCreateDescriptor(type, &d), "a descriptor");
    }
    if (!g->failed) {
        g->made[g->num_made++] = d;
    }
    return d;
}

void graph_set_many(Graph *g, Descriptor d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                    int64_t count, const void *values) {
    if (!g->failed) {
        graph_check(g, cudnnBackendSetAttribute(d, name, type, count, values), "an attribute");
    }
}

void graph_set(Graph *g, Descriptor d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
               const void *value) {
    graph_set_many(g, d, name, type, 1, value);
}

void graph_set_descriptor(Graph *g, Descriptor d, cudnnBackendAttributeName_t name, Descriptor value) {
    graph_set(g, d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, &value);
}

void graph_finish(Graph *g, Descriptor d, const char *what) {
    if (!g->failed) {
        graph_check(g, cudnnBackendFinalize(d), what);
    }
}

void attention_graph_destroy(Graph *g) {
    if (g == NULL) {
        return;
    }
    while (g->num_made > 0) {
        (void)cudnnBackendDestroyDescriptor(g->made[--g->num_made]);
    }
    free(g);
}

// ---------------------------------------------------------------------------------------------------------------------
// Tensors and operations. An operation returns its result, a virtual tensor, except where `to` says which tensor it is.

static Descriptor tensor(Graph *g, int64_t id, cudnnDataType_t type, Shape shape) {
    const int64_t alignment = 16;
    const bool is_virtual = id >= INSIDE;
    const bool by_value = id == SCALE || id == MASKED || id == ONE;
    Descriptor d = graph_make(g, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    graph_set(g, d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, &id);
    graph_set(g, d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, &type);
    graph_set_many(g, d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, shape.dim);
    graph_set_many(g, d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, shape.stride);
    graph_set(g, d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, &alignment);
    graph_set(g, d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, &is_virtual);
    graph_set(g, d, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, &by_value);
    graph_finish(g, d, "a tensor");
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
    graph_finish(g, operation, what);
    if (!g->failed && g->num_operations == MOST_OPERATIONS) {
        snprintf(attention_cudnn_message, sizeof attention_cudnn_message,
                 "attention_cudnn.c: MOST_OPERATIONS is too small");
        g->failed = 1;
    }
    if (!g->failed) {
        g->operations[g->num_operations++] = operation;
    }
}

// to = mode(x, y, z); y and z may be NULL. axis: of GEN_INDEX.
static void pointwise(Graph *g, cudnnPointwiseMode_t mode, cudnnDataType_t precision, int64_t axis, Descriptor x,
                      Descriptor y, Descriptor z, Descriptor to) {
    Descriptor p = graph_make(g, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    graph_set(g, p, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, &mode);
    graph_set(g, p, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, &precision);
    if (mode == CUDNN_POINTWISE_GEN_INDEX) {
        graph_set(g, p, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, &axis);
    }
    graph_finish(g, p, "a pointwise operation");
    Descriptor o = graph_make(g, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    graph_set_descriptor(g, o, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, p);
    graph_set_descriptor(g, o, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
    if (y != NULL) {
        graph_set_descriptor(g, o, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, y);
    }
    if (z != NULL) {
        graph_set_descriptor(g, o, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, z);
    }
    graph_set_descriptor(g, o, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, to);
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
    Descriptor r = graph_make(g, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    graph_set(g, r, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, &mode);
    graph_set(g, r, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, &precision);
    graph_finish(g, r, "a reduction");
    Descriptor o = graph_make(g, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    graph_set_descriptor(g, o, CUDNN_ATTR_OPERATION_REDUCTION_DESC, r);
    graph_set_descriptor(g, o, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
    graph_set_descriptor(g, o, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, to);
    add_operation(g, o, "a reduction");
    return to;
}

// to = a b, sums in fp32.
static void multiply(Graph *g, Descriptor a, Descriptor b, Descriptor to) {
    const cudnnDataType_t precision = CUDNN_DATA_FLOAT;
    Descriptor m = graph_make(g, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    graph_set(g, m, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, &precision);
    graph_finish(g, m, "a matrix product");
    Descriptor o = graph_make(g, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    graph_set_descriptor(g, o, CUDNN_ATTR_OPERATION_MATMUL_DESC, m);
    graph_set_descriptor(g, o, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a);
    graph_set_descriptor(g, o, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
    graph_set_descriptor(g, o, CUDNN_ATTR_OPERATION_MATMUL_CDESC, to);
    add_operation(g, o, "a matrix product");
}

// x in another shape, as bf16: here always a transpose.
static Descriptor reshape(Graph *g, Descriptor x, Shape shape) {
    Descriptor to = inside(g, CUDNN_DATA_BFLOAT16, shape);
    Descriptor o = graph_make(g, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    graph_set_descriptor(g, o, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x);
    graph_set_descriptor(g, o, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, to);
    add_operation(g, o, "a transpose");
    return to;
}

// ---------------------------------------------------------------------------------------------------------------------
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

void attention_graph_forward(Graph *g) {
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

void attention_graph_backward(Graph *g) {
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
