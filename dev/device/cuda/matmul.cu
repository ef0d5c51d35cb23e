// The trainer's matrix products on a GPU: cuBLASLt, restricted to choices that cannot change the bits.
//
// cuBLASLt asks a heuristic which of its many algorithms to use. Here the heuristic is given the shape, the type and
// the device alone, so its answer is the same in every run, on every rank and for every buffer:
//
// - It is asked once per kind of product, and the answer is kept.
// - It is told that buffers are aligned to 16 bytes, not how far they really are aligned: a tensor at another place in
//   a shard or a pool must not get another algorithm. (Buffers that are not aligned to 16 bytes are a kind of their
//   own.) It looks at the pointers of bias and GELU input themselves, so it is shown other pointers, aligned to exactly
//   16 bytes.
// - Of the ways to split a long sum it may use only the one that adds fp32 parts in a fixed order from workspace. The
//   others round the parts to the type of the output.
//
// Two products that run at the same time must not share workspace, so each (device, stream) pair gets its own at its
// first product.
//
// cuBLASLt is column-major. A row-major matrix is its transpose in column-major order, and c^T = op(b)^T op(a)^T: so b
// is its first factor, a its second, m and n change places, and bias, one number per row of c^T, is what cuBLASLt calls
// a bias.
#include "device/matmul.h"

#include <cublasLt.h>
#include <limits.h>
#include <stdint.h>
#include <string.h>

static const size_t WORKSPACE = (size_t)32 << 20;  // bytes; what NVIDIA recommends for Hopper
enum { MOST_LANES = 64, MOST_PLANS = 256 };
enum { EPILOGUE_AUX = CUBLASLT_EPILOGUE_GELU_AUX & ~CUBLASLT_EPILOGUE_GELU };  // the bit of those with a second matrix

// One per stream that has seen a product.
typedef struct {
    int device;
    cudaStream_t stream;
    cublasLtHandle_t handle;
    void *workspace;
} Lane;

// All that the choice of an algorithm may depend on. Compared by memcmp: no padding.
typedef struct {
    size_t m, n, k;
    int dtype, trans_a, trans_b, accumulate, epilogue, aligned, tf32, device;
} Kind;

typedef struct {
    Kind kind;
    cublasLtMatmulAlgo_t algo;
} Plan;

static Lane lanes[MOST_LANES];
static int num_lanes;
static Plan plans[MOST_PLANS];  // the oldest is overwritten when there are more kinds than this
static size_t num_plans;        // ever made
static int tf32_allowed;

static int error_of(cublasStatus_t status) {
    switch (status) {
    case CUBLAS_STATUS_SUCCESS: return cudaSuccess;
    case CUBLAS_STATUS_ALLOC_FAILED: return cudaErrorMemoryAllocation;
    case CUBLAS_STATUS_INVALID_VALUE: return cudaErrorInvalidValue;
    case CUBLAS_STATUS_NOT_SUPPORTED: return cudaErrorNotSupported;
    case CUBLAS_STATUS_NOT_INITIALIZED: return cudaErrorInitializationError;
    case CUBLAS_STATUS_EXECUTION_FAILED: return cudaErrorLaunchFailure;
    default: return cudaErrorUnknown;
    }
}

#define TRY_CUDA(call)             \
    do {                           \
        cudaError_t err_ = (call); \
        if (err_ != cudaSuccess) { \
            return err_;           \
        }                          \
    } while (0)

#define TRY(call)                               \
    do {                                        \
        cublasStatus_t status_ = (call);        \
        if (status_ != CUBLAS_STATUS_SUCCESS) { \
            return error_of(status_);           \
        }                                       \
    } while (0)

static int lane_find(Lane **out, cudaStream_t stream) {
    int device;
    TRY_CUDA(cudaGetDevice(&device));
    for (int i = 0; i < num_lanes; i++) {
        if (lanes[i].device == device && lanes[i].stream == stream) {
            *out = &lanes[i];
            return cudaSuccess;
        }
    }
    if (num_lanes == MOST_LANES) {
        return cudaErrorMemoryAllocation;
    }
    Lane lane = { device, stream, NULL, NULL };
    TRY(cublasLtCreate(&lane.handle));
    cudaError_t err = cudaMalloc(&lane.workspace, WORKSPACE);
    if (err != cudaSuccess) {
        (void)cublasLtDestroy(lane.handle);
        return err;
    }
    lanes[num_lanes] = lane;
    *out = &lanes[num_lanes++];
    return cudaSuccess;
}

// The vectors and matrices of an epilogue, which cuBLASLt takes from the descriptor of the product.
static int desc_set_pointers(cublasLtMatmulDesc_t desc, int epilogue, const void *bias, const void *pre) {
    if (epilogue & CUBLASLT_EPILOGUE_BIAS) {
        TRY(cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias));
    }
    if (epilogue & EPILOGUE_AUX) {
        TRY(cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &pre, sizeof pre));
    }
    return cudaSuccess;
}

static int plan_make(Plan *plan, Lane *lane, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
                     cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c) {
    cublasLtMatmulPreferenceOpaque_t preference;
    size_t workspace = plan->kind.k ? WORKSPACE : 0;  // an empty sum has its zeros there
    uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    uint32_t alignment = plan->kind.aligned ? 16 : plan->kind.dtype == MATMUL_F32 ? 4 : 2;
    TRY(cublasLtMatmulPreferenceInit(&preference));
    TRY(cublasLtMatmulPreferenceSetAttribute(&preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                                             sizeof workspace));
    TRY(cublasLtMatmulPreferenceSetAttribute(&preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes,
                                             sizeof schemes));
    static const cublasLtMatmulPreferenceAttributes_t pointers[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
    };
    for (size_t i = 0; i < sizeof pointers / sizeof *pointers; i++) {
        TRY(cublasLtMatmulPreferenceSetAttribute(&preference, pointers[i], &alignment, sizeof alignment));
    }
    const void *example = (const void *)(uintptr_t)(plan->kind.aligned ? 0x10010 : 0x10000 + alignment);
    int err = desc_set_pointers(desc, plan->kind.epilogue, example, example);
    if (err) {
        return err;
    }
    cublasLtMatmulHeuristicResult_t result;
    int found = 0;
    TRY(cublasLtMatmulAlgoGetHeuristic(lane->handle, desc, b, a, c, c, &preference, 1, &result, &found));
    if (found == 0) {
        return cudaErrorNotSupported;
    }
    TRY(result.state);
    plan->algo = result.algo;
    return cudaSuccess;
}

static int plan_find(Plan **out, const Kind *kind, Lane *lane, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
                     cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c) {
    for (size_t i = 0; i < num_plans && i < MOST_PLANS; i++) {
        if (memcmp(&plans[i].kind, kind, sizeof *kind) == 0) {
            *out = &plans[i];
            return cudaSuccess;
        }
    }
    Plan plan;
    plan.kind = *kind;
    int err = plan_make(&plan, lane, desc, a, b, c);
    if (err) {
        return err;
    }
    *out = &plans[num_plans++ % MOST_PLANS];
    **out = plan;
    return cudaSuccess;
}

// pre: the input of the GELU, written or read as the epilogue says.
static int product(void *c, const void *pre, const void *a, const void *b, const void *bias, int epilogue, int dtype,
                   size_t m, size_t n, size_t k, int trans_a, int trans_b, int accumulate, cudaStream_t stream) {
    uintptr_t bits = (uintptr_t)c | (uintptr_t)pre | (uintptr_t)a | (uintptr_t)b | (uintptr_t)bias;
    if (dtype < MATMUL_F32 || dtype > MATMUL_BF16_F32 ||
        (dtype == MATMUL_BF16_F32 && epilogue != CUBLASLT_EPILOGUE_DEFAULT) || m > INT_MAX || n > INT_MAX ||
        k > INT_MAX || (epilogue & EPILOGUE_AUX && (n % 8 != 0 || bits % 16 != 0))) {
        return cudaErrorInvalidValue;
    }
    if (m == 0 || n == 0) {
        return cudaSuccess;
    }
    Lane *lane = NULL;
    int err = lane_find(&lane, stream);
    if (err) {
        return err;
    }
    size_t workspace = WORKSPACE;
    Kind kind = { m,
                  n,
                  k,
                  dtype,
                  trans_a != 0,
                  trans_b != 0,
                  accumulate != 0,
                  epilogue,
                  bits % 16 == 0,
                  tf32_allowed && dtype == MATMUL_F32,
                  lane->device };
    if (k == 0) {  // which cuBLASLt does not take: one term, zero times zero
        size_t zeros = (m > n ? m : n) * (dtype == MATMUL_F32 ? 4 : 2);
        if (zeros > WORKSPACE) {
            return cudaErrorInvalidValue;
        }
        TRY_CUDA(cudaMemsetAsync(lane->workspace, 0, zeros, stream));
        a = b = lane->workspace;
        k = 1;
        workspace = 0;
    }

    cublasLtMatmulDescOpaque_t desc;
    cublasLtMatrixLayoutOpaque_t layout_a, layout_b, layout_c;
    cudaDataType_t type = dtype == MATMUL_F32 ? CUDA_R_32F : CUDA_R_16BF;
    cublasComputeType_t compute = kind.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    cublasOperation_t op_a = trans_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasOperation_t op_b = trans_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    uint64_t rows_a = trans_a ? m : k, cols_a = trans_a ? k : m;  // in column-major eyes
    uint64_t rows_b = trans_b ? k : n, cols_b = trans_b ? n : k;
    TRY(cublasLtMatmulDescInit(&desc, compute, CUDA_R_32F));
    TRY(cublasLtMatmulDescSetAttribute(&desc, CUBLASLT_MATMUL_DESC_TRANSA, &op_b, sizeof op_b));
    TRY(cublasLtMatmulDescSetAttribute(&desc, CUBLASLT_MATMUL_DESC_TRANSB, &op_a, sizeof op_a));
    uint32_t ending = (uint32_t)epilogue;
    int64_t pre_ld = (int64_t)n;
    TRY(cublasLtMatmulDescSetAttribute(&desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &ending, sizeof ending));
    if (epilogue & EPILOGUE_AUX) {
        TRY(cublasLtMatmulDescSetAttribute(&desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &pre_ld, sizeof pre_ld));
    }
    TRY(cublasLtMatrixLayoutInit(&layout_a, type, rows_a, cols_a, (int64_t)rows_a));
    TRY(cublasLtMatrixLayoutInit(&layout_b, type, rows_b, cols_b, (int64_t)rows_b));
    TRY(cublasLtMatrixLayoutInit(&layout_c, dtype == MATMUL_BF16 ? CUDA_R_16BF : CUDA_R_32F, n, m, (int64_t)n));

    Plan *plan = NULL;
    err = plan_find(&plan, &kind, lane, &desc, &layout_a, &layout_b, &layout_c);
    if (err) {
        return err;
    }
    err = desc_set_pointers(&desc, epilogue, bias, pre);
    if (err) {
        return err;
    }
    const float alpha = 1.0f;
    const float beta = accumulate ? 1.0f : 0.0f;
    TRY(cublasLtMatmul(lane->handle, &desc, &alpha, b, &layout_b, a, &layout_a, &beta, c, &layout_c, c, &layout_c,
                       &plan->algo, lane->workspace, workspace, stream));
    return cudaSuccess;
}

int matmul(void *c, const void *a, const void *b, const void *bias, int dtype, size_t m, size_t n, size_t k,
           int trans_a, int trans_b, int accumulate, cudaStream_t stream) {
    int epilogue = bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    return product(c, NULL, a, b, bias, epilogue, dtype, m, n, k, trans_a, trans_b, accumulate, stream);
}

int matmul_gelu(void *c, void *pre, const void *a, const void *b, const void *bias, int dtype, size_t m, size_t n,
                size_t k, int trans_a, int trans_b, cudaStream_t stream) {
    int epilogue = bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    return product(c, pre, a, b, bias, epilogue, dtype, m, n, k, trans_a, trans_b, 0, stream);
}

int matmul_gelu_backward(void *c, const void *pre, const void *a, const void *b, int dtype, size_t m, size_t n,
                         size_t k, int trans_a, int trans_b, cudaStream_t stream) {
    return product(c, pre, a, b, NULL, CUBLASLT_EPILOGUE_DGELU, dtype, m, n, k, trans_a, trans_b, 0, stream);
}

void matmul_set_tf32(int allow) { tf32_allowed = allow; }

void matmul_destroy(void) {
    int device = 0;
    (void)cudaGetDevice(&device);
    for (int i = 0; i < num_lanes; i++) {
        (void)cudaSetDevice(lanes[i].device);
        (void)cudaFree(lanes[i].workspace);
        (void)cublasLtDestroy(lanes[i].handle);
    }
    (void)cudaSetDevice(device);
    num_lanes = 0;
    num_plans = 0;
}
