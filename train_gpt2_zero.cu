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

#include <float.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/attention.h"  // attention by cuDNN, in builds that ask for it
#include "device/gelu.cuh"     // GELU and its derivative
#include "trainer/launch.h"    // who this rank is, how the ranks were started
#include "device/matmul.h"     // every matrix product: cuBLASLt, or our own on the CPU
#include "trainer/profiler.h"  // --profile: the time of each kind of work, beside its floor
#include "zero/device.cuh"     // packs, warp and block sums: one kernel source for GPU and CPU
#include "zero/layout.h"       // zero_tensor; where a tensor lies in its unit
#include "zero/accounting.h"   // accounted device memory
#include "zero/comm/mesh.h"    // hooks of tensor and pipeline parallelism
#include "zero/nvtx.h"         // names in a profiler's timeline
#include "zero/types.h"

#ifdef PRECISION_BF16
typedef bf16 floatX;
static const enum zero_dtype FLOATX = ZERO_BF16;
DEV float ld_one(const floatX *p) { return __bfloat162float(*p); }
#else
typedef float floatX;
static const enum zero_dtype FLOATX = ZERO_F32;
DEV float ld_one(const floatX *p) { return *p; }
#endif

// ---------------------------------------------------------------------------------------------------------------------
// Errors that nobody can handle, and launches.

// Says what happened and ends all ranks.
__attribute__((format(printf, 3, 4), noreturn)) static void fatal(const char *file, int line, const char *format, ...) {
    va_list args;
    va_start(args, format);
    fprintf(stderr, "%s:%d: ", file, line);
    vfprintf(stderr, format, args);
    fprintf(stderr, "\n");
    va_end(args);
    fflush(NULL);
    launch_abort();
}

// Who may know more about a device that has failed, and then ends the job; NULL: nobody.
static void (*device_has_failed)(void);

static void check_cuda(cudaError_t e, const char *what, const char *file, int line) {
    if (e == cudaSuccess) return;
    if (device_has_failed) device_has_failed();
    fatal(file, line, "%s: %s (%s)", what, cudaGetErrorString(e), cudaGetErrorName(e));
}
#define cudaCheck(call) check_cuda((call), #call, __FILE__, __LINE__)

static void check_zero(int status, const char *what, const char *file, int line) {
    if (status != ZERO_OK) fatal(file, line, "%s: error %d", what, status);
}
#define zeroCheck(call) check_zero((call), #call, __FILE__, __LINE__)

static size_t ceil_div(size_t a, size_t b) { return (a + b - 1) / b; }

static cudaLaunchConfig_t launch_config(size_t blocks, int threads, size_t shared_bytes, cudaStream_t stream) {
    cudaLaunchConfig_t c = {};
    c.gridDim = dim3((unsigned)blocks);
    c.blockDim = dim3((unsigned)block_threads(threads));
    c.dynamicSmemBytes = shared_bytes;
    c.stream = stream;
    return c;
}

static Profile *profile;  // not NULL in the steps that --profile is about

// A macro, so that a failure shows the launch as it is written, and its line. Above 48 KB a GPU wants to be asked
// first.
#define LAUNCH(blocks, threads, shared_bytes, stream, kernel, ...)                               \
    do {                                                                                         \
        const cudaLaunchConfig_t launch_ = launch_config(blocks, threads, shared_bytes, stream); \
        if (launch_.dynamicSmemBytes > 48 << 10)                                                 \
            cudaCheck(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,  \
                                           (int)launch_.dynamicSmemBytes));                      \
        profile_begin(profile, #kernel, stream);                                                 \
        cudaCheck(cudaLaunchKernelEx(&launch_, kernel, __VA_ARGS__));                            \
        profile_end(profile);                                                                    \
    } while (0)

// ---------------------------------------------------------------------------------------------------------------------
// Elementwise: residual, GELU. A block owns a contiguous range.

#define ELEMENTWISE_THREADS 256

static size_t elementwise_blocks(size_t n) {
    const size_t blocks = ceil_div(n, (size_t)ELEMENTWISE_THREADS * PACK * 2);
    return blocks < 8192 ? blocks : 8192;
}

__global__ void __launch_bounds__(ELEMENTWISE_THREADS)
    residual_kernel(floatX *__restrict__ out, const floatX *__restrict__ a, const floatX *__restrict__ b, size_t n) {
    size_t begin, end;
    block_range(n, begin, end);
    for (size_t i = begin + threadIdx.x * PACK; i < end; i += (size_t)blockDim.x * PACK)
        st(out + i, ld(a + i) + ld(b + i));
}

static void residual(floatX *out, const floatX *a, const floatX *b, size_t n, cudaStream_t stream) {
    LAUNCH(elementwise_blocks(n), ELEMENTWISE_THREADS, 0, stream, residual_kernel, out, a, b, n);
}

__global__ void __launch_bounds__(ELEMENTWISE_THREADS)
    gelu_forward_kernel(floatX *__restrict__ out, const floatX *__restrict__ inp, size_t n) {
    size_t begin, end;
    block_range(n, begin, end);
    for (size_t i = begin + threadIdx.x * PACK; i < end; i += (size_t)blockDim.x * PACK) st(out + i, gelu(ld(inp + i)));
}

static void gelu_forward(floatX *out, const floatX *inp, size_t n, cudaStream_t stream) {
    LAUNCH(elementwise_blocks(n), ELEMENTWISE_THREADS, 0, stream, gelu_forward_kernel, out, inp, n);
}

__global__ void __launch_bounds__(ELEMENTWISE_THREADS)
    gelu_backward_kernel(floatX *__restrict__ dinout, const floatX *__restrict__ inp, size_t n) {
    size_t begin, end;
    block_range(n, begin, end);
    for (size_t i = begin + threadIdx.x * PACK; i < end; i += (size_t)blockDim.x * PACK)
        st(dinout + i, ld(dinout + i) * gelu_derivative(ld(inp + i)));
}

// In place: dinout is the gradient of GELU's output before, of its input inp after.
static void gelu_backward(floatX *dinout, const floatX *inp, size_t n, cudaStream_t stream) {
    LAUNCH(elementwise_blocks(n), ELEMENTWISE_THREADS, 0, stream, gelu_backward_kernel, dinout, inp, n);
}

// ---------------------------------------------------------------------------------------------------------------------
// Sums over rows, in two steps: a block adds the rows of a chunk to an fp32 partial sum, then the partial sums are
// added. The chunks depend on the number of rows alone.

#define MIN_CHUNK_ROWS 16
#define MAX_CHUNKS     256
#define SUM_THREADS    256

static size_t chunk_rows(size_t rows) {
    const size_t n = ceil_div(rows, MAX_CHUNKS);
    return n > MIN_CHUNK_ROWS ? n : MIN_CHUNK_ROWS;
}

// An upper bound of the number of chunks of up to `rows` rows.
static size_t max_chunks(size_t rows) {
    const size_t n = ceil_div(rows, MIN_CHUNK_ROWS);
    return n < MAX_CHUNKS ? n : MAX_CHUNKS;
}

__global__ void __launch_bounds__(32) add_partials_kernel(floatX *__restrict__ out, const float *__restrict__ partial,
                                                          int chunks, size_t stride, size_t n) {
    size_t begin, end;
    block_range(n, begin, end);
    for (size_t c = begin + threadIdx.x * PACK; c < end; c += blockDim.x * PACK) {
        fvec sum = splat(0);
        for (int i = 0; i < chunks; i++) sum += ld(partial + i * stride + c);
        st(out + c, sum);
    }
}

// out[n] = the sum of partial[chunk * stride + ...] over the chunks.
static void add_partials(floatX *out, const float *partial, size_t chunks, size_t stride, size_t n,
                         cudaStream_t stream) {
    LAUNCH(ceil_div(n, 32 * PACK), 32, 0, stream, add_partials_kernel, out, partial, (int)chunks, stride, n);
}

__global__ void __launch_bounds__(SUM_THREADS)
    bias_partial_kernel(float *__restrict__ partial, const floatX *__restrict__ dout, size_t rows, size_t per_chunk,
                        size_t n) {
    const size_t begin = blockIdx.x * per_chunk, end = min(begin + per_chunk, rows);
    float *sum = partial + blockIdx.x * n;
    for (size_t r = begin; r < end; r++) {  // a thread always has the same columns: nothing to wait for
        for (size_t c = threadIdx.x * PACK; c < n; c += blockDim.x * PACK) {
            const fvec before = r == begin ? splat(0) : ld(sum + c);
            st(sum + c, before + ld(dout + r * n + c));
        }
    }
}

// dbias[n] = the column sums of dout[rows, n]. partial: max_chunks(rows) * n.
static void bias_backward(floatX *dbias, float *partial, const floatX *dout, size_t rows, size_t n,
                          cudaStream_t stream) {
    const size_t per_chunk = chunk_rows(rows), chunks = ceil_div(rows, per_chunk);
    LAUNCH(chunks, SUM_THREADS, 0, stream, bias_partial_kernel, partial, dout, rows, per_chunk, n);
    add_partials(dbias, partial, chunks, n, n, stream);
}

// ---------------------------------------------------------------------------------------------------------------------
// Layernorm: a warp per row.

constexpr float LAYERNORM_EPSILON = 1e-5f;

__global__ void __launch_bounds__(SUM_THREADS)
    layernorm_forward_kernel(floatX *__restrict__ out, float *__restrict__ mean, float *__restrict__ rstd,
                             const floatX *__restrict__ inp, const floatX *__restrict__ weight,
                             const floatX *__restrict__ bias, size_t rows, int C) {
    const int lane = threadIdx.x % WARP;
    const size_t row = (size_t)blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
    if (row >= rows) return;  // the whole warp
    const floatX *x = inp + row * C;
    fvec sum = splat(0), squares = splat(0);
    for (int c = lane * PACK; c < C; c += WARP * PACK) sum += ld(x + c);
    const float m = warp_sum(pack_sum(sum)) / C;
    for (int c = lane * PACK; c < C; c += WARP * PACK) {
        const fvec d = ld(x + c) - m;
        squares += d * d;
    }
    const float s = 1.0f / sqrtf(warp_sum(pack_sum(squares)) / C + LAYERNORM_EPSILON);
    for (int c = lane * PACK; c < C; c += WARP * PACK)
        st(out + row * C + c, (ld(x + c) - m) * s * ld(weight + c) + ld(bias + c));
    if (lane == 0) {
        mean[row] = m;
        rstd[row] = s;
    }
}

static void layernorm_forward(floatX *out, float *mean, float *rstd, const floatX *inp, const floatX *weight,
                              const floatX *bias, size_t rows, size_t C, cudaStream_t stream) {
    const size_t rows_per_block = block_threads(SUM_THREADS) / WARP;
    LAUNCH(ceil_div(rows, rows_per_block), SUM_THREADS, 0, stream, layernorm_forward_kernel, out, mean, rstd, inp,
           weight, bias, rows, (int)C);
}

// A block per chunk of rows. As many rows at a time as the block has warps: each warp finds the two means of its row,
// then the threads share out the columns, each adding the rows to its own part of the partial sums of dweight and
// dbias.
__global__ void __launch_bounds__(SUM_THREADS)
    layernorm_backward_kernel(floatX *__restrict__ dinp, float *__restrict__ partial, const floatX *__restrict__ dout,
                              const floatX *__restrict__ inp, const floatX *__restrict__ weight,
                              const float *__restrict__ mean, const float *__restrict__ rstd, size_t rows,
                              size_t per_chunk, int C) {
    __shared__ float mean_d[SUM_THREADS / WARP], mean_dn[SUM_THREADS / WARP];
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, warps = blockDim.x / WARP;
    const size_t begin = blockIdx.x * per_chunk, end = min(begin + per_chunk, rows);
    float *dweight = partial + (size_t)blockIdx.x * 2 * C, *dbias = dweight + C;
    for (size_t first = begin; first < end; first += warps) {
        const size_t last = min(first + warps, end);
        if (first + warp < last) {
            const size_t row = first + warp;
            const float m = mean[row], s = rstd[row];
            fvec sum_d = splat(0), sum_dn = splat(0);
            for (int c = lane * PACK; c < C; c += WARP * PACK) {
                const fvec d = ld(dout + row * C + c) * ld(weight + c);
                sum_d += d;
                sum_dn += d * ((ld(inp + row * C + c) - m) * s);
            }
            const float a = warp_sum(pack_sum(sum_d)) / C, b = warp_sum(pack_sum(sum_dn)) / C;
            if (lane == 0) {
                mean_d[warp] = a;
                mean_dn[warp] = b;
            }
        }
        __syncthreads();
        for (size_t row = first; row < last; row++) {
            const float m = mean[row], s = rstd[row], a = mean_d[row - first], b = mean_dn[row - first];
            for (int c = threadIdx.x * PACK; c < C; c += blockDim.x * PACK) {
                const fvec d = ld(dout + row * C + c), n = (ld(inp + row * C + c) - m) * s;
                const fvec w = row == begin ? splat(0) : ld(dweight + c), v = row == begin ? splat(0) : ld(dbias + c);
                st(dweight + c, w + d * n);
                st(dbias + c, v + d);
                st(dinp + row * C + c, ld(dinp + row * C + c) + (d * ld(weight + c) - a - n * b) * s);
            }
        }
        __syncthreads();  // mean_d and mean_dn are written again
    }
}

// Adds to dinp, which is the gradient of the residual stream that goes around the layernorm. partial: max_chunks(rows)
// * 2 C.
static void layernorm_backward(floatX *dinp, floatX *dweight, floatX *dbias, float *partial, const floatX *dout,
                               const floatX *inp, const floatX *weight, const float *mean, const float *rstd,
                               size_t rows, size_t C, cudaStream_t stream) {
    const size_t per_chunk = chunk_rows(rows), chunks = ceil_div(rows, per_chunk);
    LAUNCH(chunks, SUM_THREADS, 0, stream, layernorm_backward_kernel, dinp, partial, dout, inp, weight, mean, rstd,
           rows, per_chunk, (int)C);
    add_partials(dweight, partial, chunks, 2 * C, C, stream);
    add_partials(dbias, partial + C, chunks, 2 * C, C, stream);
}

// ---------------------------------------------------------------------------------------------------------------------
// Encoder: token and position embeddings.

#define ENCODER_THREADS 128

__global__ void __launch_bounds__(ENCODER_THREADS)
    encoder_forward_kernel(floatX *__restrict__ out, const int *__restrict__ inputs, const floatX *__restrict__ wte,
                           const floatX *__restrict__ wpe, int T, int C) {
    const size_t row = blockIdx.x;
    const floatX *token = wte + (size_t)inputs[row] * C, *position = wpe + row % T * C;
    for (int c = threadIdx.x * PACK; c < C; c += blockDim.x * PACK)
        st(out + row * C + c, ld(token + c) + ld(position + c));
}

static void encoder_forward(floatX *out, const int *inputs, const floatX *wte, const floatX *wpe, size_t B, size_t T,
                            size_t C, cudaStream_t stream) {
    LAUNCH(B * T, ENCODER_THREADS, 0, stream, encoder_forward_kernel, out, inputs, wte, wpe, (int)T, (int)C);
}

// The rows of each distinct token, in ascending order: token[i] occurs in rows position[start[i]] ...
// position[start[i+1] - 1].
typedef struct TokenRows {
    int *token, *start, *position;  // [R], [R + 1], [R]
} TokenRows;

// A block per distinct token: no two blocks write the same row of dwte. (8 blocks at a time on a multiprocessor are
// enough: to fit more, the compiler would spill.)
__global__ void __launch_bounds__(ENCODER_THREADS, 8)
    wte_backward_kernel(floatX *__restrict__ dwte, const floatX *__restrict__ dout, TokenRows rows, int C) {
    floatX *out = dwte + (size_t)rows.token[blockIdx.x] * C;
    const int begin = rows.start[blockIdx.x], end = rows.start[blockIdx.x + 1];
    for (int c = threadIdx.x * PACK; c < C; c += blockDim.x * PACK) {
        fvec sum = ld(out + c);
        for (int i = begin; i < end; i++) sum += ld(dout + (size_t)rows.position[i] * C + c);
        st(out + c, sum);
    }
}

// A block per position.
__global__ void __launch_bounds__(ENCODER_THREADS, 8)
    wpe_backward_kernel(floatX *__restrict__ dwpe, const floatX *__restrict__ dout, int B, int T, int C) {
    const size_t t = blockIdx.x;
    for (int c = threadIdx.x * PACK; c < C; c += blockDim.x * PACK) {
        fvec sum = splat(0);
        for (int b = 0; b < B; b++) sum += ld(dout + ((size_t)b * T + t) * C + c);
        st(dwpe + t * C + c, sum);
    }
}

// Adds to dwte, which already holds the gradient of the head. Rows of dwpe from T on keep their zeros.
static void encoder_backward(floatX *dwte, floatX *dwpe, const floatX *dout, TokenRows rows, size_t distinct, size_t B,
                             size_t T, size_t C, cudaStream_t stream) {
    LAUNCH(distinct, ENCODER_THREADS, 0, stream, wte_backward_kernel, dwte, dout, rows, (int)C);
    LAUNCH(T, ENCODER_THREADS, 0, stream, wpe_backward_kernel, dwpe, dout, (int)B, (int)T, (int)C);
}

// ---------------------------------------------------------------------------------------------------------------------
// Classifier: softmax, cross-entropy and its gradient; a block per row.

#define CLASSIFIER_THREADS 1024

// The columns from V on are padding and count as -infinity.
DEV fvec ld_logits(const floatX *row, int c, int V) {
    fvec x = ld(row + c);
    if (c + PACK > V) {
        UNROLL for (int k = 0; k < PACK; k++) x[k] = c + k < V ? x[k] : -INFINITY;
    }
    return x;
}

// One sweep over the row finds the largest logit and the sum of exp at once ("online softmax"); if train, a second one
// writes the gradient over the logits. In the first each lane of a thread's packs has its own top and sum of exp(x -
// top), which a new top shrinks by exp(old top - new top): once for every few packs, which a GPU loads together. NaN
// and +infinity make the loss NaN.
__global__ void __launch_bounds__(CLASSIFIER_THREADS)
    classifier_kernel(floatX *__restrict__ logits, float *__restrict__ losses, const int *__restrict__ targets,
                      float dloss, int V, int Vp, int train) {
    constexpr int TOGETHER = 4;  // packs
    const size_t row = blockIdx.x;
    floatX *x = logits + row * Vp;
    const int target = targets[row];
    const float target_logit = ld_one(x + target);
    fvec tops = splat(-FLT_MAX), sums = splat(0);  // not -infinity: its difference to a padding column would be
                                                   // NaN
    for (int first = threadIdx.x * PACK; first < V; first += TOGETHER * blockDim.x * PACK) {
        fvec v[TOGETHER], higher = tops;
        UNROLL for (int i = 0; i < TOGETHER; i++) {
            const int c = first + i * blockDim.x * PACK;
            v[i] = c < V ? ld_logits(x, c, V) : splat(-INFINITY);
            higher = vmax(higher, v[i]);
        }
        sums *= vexp(tops - higher);
        UNROLL for (int i = 0; i < TOGETHER; i++) sums += vexp(v[i] - higher);
        tops = higher;
    }
    const float thread_top = pack_max(tops), top = block_max(thread_top);
    const float sum = block_sum(pack_sum(sums * vexp(tops - thread_top)) * expf(thread_top - top)), scale = dloss / sum;
    if (threadIdx.x == 0) losses[row] = logf(sum) - (target_logit - top);
    if (!train) return;
    for (int c = threadIdx.x * PACK; c < Vp; c += blockDim.x * PACK) {
        fvec d = splat(0);
        if (c < V) d = vexp(ld_logits(x, c, V) - top) * scale;
        if (c / PACK == target / PACK) {
            UNROLL for (int k = 0; k < PACK; k++) d[k] = c + k == target ? d[k] - dloss : d[k];
        }
        st(x + c, d);
    }
}

// losses[R] = -log softmax(logits)[target]; if train, the logits[R, Vp] become dloss times the gradient of their loss.
static void classifier(floatX *logits, float *losses, const int *targets, float dloss, size_t R, size_t V, size_t Vp,
                       int train, cudaStream_t stream) {
    LAUNCH(R, CLASSIFIER_THREADS, 0, stream, classifier_kernel, logits, losses, targets, dloss, (int)V, (int)Vp, train);
}

// ---------------------------------------------------------------------------------------------------------------------
// Causal attention, after FlashAttention (Dao et al. 2022): scores exist one tile at a time, in shared memory.
//
// A block has `rows` rows of one head to itself (queries; in the backward of keys and values, keys) and walks along the
// other side, `cols` of them at a time. Both sides of a tile are copied to shared memory as fp32. All products then
// have one form, product(): a row-major matrix times a row-major matrix, an item of MICRO x PACK of the result per
// thread. The tiles that causality empties are skipped, and of those it cuts, the empty items. Backward: dq by query
// rows, dk and dv by key rows; each has one writer and a fixed order of sums. What the block sums up (out, dq, dk, dv)
// has at most as many items as a GPU's block has threads, and stays in their registers.

// As many blocks at a time on a multiprocessor as launch bounds say fit into its shared memory.
#define ATTENTION_THREADS 128
constexpr int MICRO = WARP == 1 ? 8 : 4;       // a CPU wants 8 sums in flight, a GPU more threads
constexpr int GAP = WARP == 1 ? 0 : 4;         // floats between the rows of a tile, so that threads on several rows use
                                               // several banks
constexpr int TEAMS = WARP == 1 ? 1 : 2;       // where there are two products to do, half of a GPU's block does one,
                                               // half the other
constexpr size_t ATTENTION_SHARED = 99 << 10;  // bytes that every GPU from sm_80 on gives to a block

typedef struct Attention {
    int B, T, NH, HS, rows, cols;
    size_t shared_bytes;
} Attention;

// What a kernel has in shared memory.
typedef struct AttentionTiles {
    size_t rows, cols, turned;  // tiles of rows x HS, of cols x HS, of HS x cols
    size_t scores;              // of rows x cols
    size_t vectors;             // of rows or of cols, whichever are more
    size_t sums;                // of rows x HS, which only a CPU has there
} AttentionTiles;

static size_t attention_shared(const Attention *a, const AttentionTiles *t) {
    const size_t rows = (size_t)a->rows, cols = (size_t)a->cols, HS = (size_t)a->HS;
    return sizeof(float) *
           ((t->rows * rows + t->cols * cols) * (HS + GAP) + (t->turned * HS + t->scores * rows) * (cols + GAP) +
            t->vectors * max(rows, cols) + (WARP == 1 ? t->sums * rows * HS : 0));
}

static Attention attention_shape(size_t B, size_t T, size_t C, size_t NH, const AttentionTiles *t) {
    Attention a = { (int)B, (int)T, (int)NH, (int)(C / NH), 0, 0, 0 };
    const int round = 2 * PACK, T_round = (int)ceil_div(T, round) * round;
    a.rows = a.HS <= 64 ? 64 : a.HS <= 128 ? 32 : 16;  // rows / MICRO * HS / PACK <= ATTENTION_THREADS
    if (WARP == 1) a.rows *= 2;                        // a CPU's cache holds more
    a.rows = min(a.rows, T_round);
    // items of scores for all threads, if there is room
    a.cols = WARP == 1 ? a.rows / 2 : min(64 / (int)t->scores, T_round);
    while (WARP != 1 && attention_shared(&a, t) > ATTENTION_SHARED) a.cols -= PACK;
    a.shared_bytes = attention_shared(&a, t);
    return a;
}

static size_t attention_blocks(const Attention *a) { return (size_t)a->B * a->NH * ceil_div(a->T, a->rows); }

// acc[i] += a[i, 0..n) b[0..n, 0..PACK), where rows are lda and ldb apart; n is a multiple of PACK.
DEV void product(fvec acc[MICRO], const float *a, int lda, const float *b, int ldb, int n) {
    fvec sum[MICRO];
    UNROLL for (int i = 0; i < MICRO; i++) sum[i] = acc[i];
    if constexpr (WARP == 1) {
        for (int k = 0; k < n; k++) {
            const fvec x = ld(b + k * ldb);
            for (int i = 0; i < MICRO; i++) sum[i] += a[i * lda + k] * x;
        }
    } else {  // the same order of sums; a is loaded in packs
        for (int k = 0; k < n; k += PACK) {
            fvec row[MICRO];
            UNROLL for (int i = 0; i < MICRO; i++) row[i] = ld(a + i * lda + k);
            UNROLL for (int j = 0; j < PACK; j++) {
                const fvec x = ld(b + (k + j) * ldb);
                UNROLL for (int i = 0; i < MICRO; i++) sum[i] += row[i][j] * x;
            }
        }
    }
    UNROLL for (int i = 0; i < MICRO; i++) acc[i] = sum[i];
}

// Where the sums of an item are: on a CPU, whose thread has all items, in memory.
DEV fvec *sums_of(int item, float *memory, fvec registers[MICRO]) {
    if constexpr (WARP == 1)
        return reinterpret_cast<fvec *>(memory) + item * MICRO;
    else
        return registers;
}

// The step of a loop over the items of sums. A compiler sees that a GPU's thread has one at most.
DEV int one_each(int items) { return WARP == 1 ? 1 : items; }

DEV void clear_sums(float *memory, fvec registers[MICRO], int items) {
    for (int item = threadIdx.x; item < items; item += one_each(items)) {
        fvec *sums = sums_of(item, memory, registers);
        UNROLL for (int j = 0; j < MICRO; j++) sums[j] = splat(0);
    }
}

// Copies a tile of n x HS, times scale: to `tile` as it is, to `turned` as HS x n; either may be NULL. Rows from
// `valid` on are zeros. Neighbouring threads have neighbouring rows, so they write to different banks either way; a CPU
// reads row by row.
DEV void load_tile(float *tile, float *turned, const floatX *from, size_t stride, int n, int valid, int HS,
                   float scale) {
    const int inner = WARP == 1 ? HS / PACK : n, outer = WARP == 1 ? n : HS / PACK;
    const int inner_step = blockDim.x % inner, outer_step = blockDim.x / inner;
    for (int i = threadIdx.x % inner, o = threadIdx.x / inner; o < outer;) {
        const int r = WARP == 1 ? o : i, p = WARP == 1 ? i : o;
        const fvec x = r < valid ? ld(from + r * stride + p * PACK) * scale : splat(0);
        if (tile) st(tile + r * (HS + GAP) + p * PACK, x);
        if (turned) {
            UNROLL for (int k = 0; k < PACK; k++) turned[(p * PACK + k) * (n + GAP) + r] = x[k];
        }
        i += inner_step;
        o += outer_step;
        if (i >= inner) {
            i -= inner;
            o++;
        }
    }
}

// Of the keys k0 ... k0 + cols - 1, how many the MICRO queries from q on have to look at, in whole packs.
DEV int visible_keys(int q, int k0, int cols) {
    const int n = (q + MICRO - k0 + PACK - 1) / PACK * PACK;
    return n < 0 ? 0 : min(n, cols);
}

static const AttentionTiles FORWARD_TILES = { 1, 1, 1, 1, 3, 1 };

__global__ void __launch_bounds__(ATTENTION_THREADS, 3)
    attention_forward_kernel(floatX *__restrict__ out, float *__restrict__ lse, const floatX *__restrict__ qkv,
                             Attention a, float scale) {
    const int T = a.T, HS = a.HS, rows = a.rows, cols = a.cols, packs = HS / PACK, wide = HS + GAP, tall = cols + GAP;
    const int items = rows / MICRO * packs, score_packs = cols / PACK;
    DYNAMIC_SHARED(float, q);
    float *v = q + rows * wide, *k = v + cols * wide, *p = k + HS * tall;
    float *top = p + rows * tall, *sum = top + rows;  // of each row so far: the largest score, the sum of
                                                      // exp(score - top)
    float *shrink = sum + rows;                       // what the sums so far are worth under the new top
    float *o = shrink + rows;
    fvec o_item[MICRO];
    const int head = blockIdx.x % (a.B * a.NH), h = head % a.NH;
    const int q0 = ((T + rows - 1) / rows - 1 - blockIdx.x / (a.B * a.NH)) * rows;  // the longest first
    const size_t C = (size_t)a.NH * HS, first = (size_t)(head / a.NH) * T;
    const floatX *in = qkv + first * 3 * C + h * HS;

    load_tile(q, NULL, in + q0 * 3 * C, 3 * C, rows, T - q0, HS, scale);
    clear_sums(o, o_item, items);
    for (int r = threadIdx.x; r < rows; r += blockDim.x) {
        top[r] = -INFINITY;
        sum[r] = 0;
    }
    for (int k0 = 0; k0 < min(q0 + rows, T); k0 += cols) {
        __syncthreads();
        load_tile(NULL, k, in + k0 * 3 * C + C, 3 * C, cols, T - k0, HS, 1.0f);
        load_tile(v, NULL, in + k0 * 3 * C + 2 * C, 3 * C, cols, T - k0, HS, 1.0f);
        __syncthreads();
        for (int i = threadIdx.x; i < rows / MICRO * score_packs; i += blockDim.x) {
            const int r = i / score_packs * MICRO, c = i % score_packs * PACK;
            if (c >= visible_keys(q0 + r, k0, cols)) continue;
            fvec acc[MICRO];
            UNROLL for (int j = 0; j < MICRO; j++) acc[j] = splat(0);
            product(acc, q + r * wide, wide, k + c, tall, HS);
            UNROLL for (int j = 0; j < MICRO; j++) st(p + (r + j) * tall + c, acc[j]);
        }
        __syncthreads();
        for (int r = threadIdx.x; r < rows; r += blockDim.x) {  // scores to probabilities, up to a factor
            const int n = visible_keys(q0 + r / MICRO * MICRO, k0, cols);
            float *score = p + r * tall;
            fvec largest = splat(top[r]), sums = splat(0);
            for (int c = 0; c < n; c += PACK) {
                fvec x = ld(score + c);
                if (k0 + c + PACK - 1 > q0 + r) {
                    UNROLL for (int j = 0; j < PACK; j++) x[j] = k0 + c + j > q0 + r ? -INFINITY : x[j];
                    st(score + c, x);
                }
                largest = vmax(largest, x);
            }
            const float m = pack_max(largest);  // finite: every query sees key 0, which is in the first tile
            for (int c = 0; c < n; c += PACK) {
                const fvec e = vexp(ld(score + c) - m);
                st(score + c, e);
                sums += e;
            }
            shrink[r] = expf(top[r] - m);
            sum[r] = sum[r] * shrink[r] + pack_sum(sums);
            top[r] = m;
        }
        __syncthreads();
        for (int i = threadIdx.x; i < items; i += one_each(items)) {
            const int r = i / packs * MICRO, c = i % packs * PACK;
            fvec *acc = sums_of(i, o, o_item);
            UNROLL for (int j = 0; j < MICRO; j++) acc[j] *= shrink[r + j];
            product(acc, p + r * tall, tall, v + c, wide, visible_keys(q0 + r, k0, cols));
        }
    }
    for (int i = threadIdx.x; i < items; i += one_each(items)) {
        const int r = i / packs * MICRO, c = i % packs * PACK;
        const fvec *acc = sums_of(i, o, o_item);
        UNROLL for (int j = 0; j < MICRO; j++) {
            if (q0 + r + j >= T) break;
            st(out + (first + q0 + r + j) * C + h * HS + c, acc[j] / sum[r + j]);
        }
    }
    for (int r = threadIdx.x; r < min(rows, T - q0); r += blockDim.x)
        lse[(size_t)head * T + q0 + r] = top[r] + logf(sum[r]);
}

static void check_attention(int status, const char *file, int line) {
    if (status && device_has_failed) device_has_failed();
    if (status) fatal(file, line, "%s", attention_cudnn_error());
}
#define attentionCheck(call) check_attention((call), __FILE__, __LINE__)

// Bytes of scratch of the two functions below, in a build whose floatX is X: delta[B, NH, T], or what cuDNN wants.
template <class X> static size_t attention_scratch(size_t B, size_t T, size_t NH) {
    if constexpr (ATTENTION_CUDNN && sizeof(X) == sizeof(bf16))
        return attention_cudnn_scratch(B, T, NH);
    else
        return B * NH * T * sizeof(float);
}

// out[B, T, C] from qkv[B, T, 3C]; lse[B, NH, T] is the log of the sum of exp(scores), for the backward.
static void attention_forward(floatX *out, float *lse, void *scratch, const floatX *qkv, size_t B, size_t T, size_t C,
                              size_t NH, cudaStream_t stream) {
    if constexpr (ATTENTION_CUDNN) {
        profile_begin(profile, "attention_forward", stream);
        attentionCheck(attention_cudnn_forward(out, lse, scratch, qkv, B, T, NH, C / NH, stream));
        profile_end(profile);
        return;
    }
    const Attention a = attention_shape(B, T, C, NH, &FORWARD_TILES);
    LAUNCH(attention_blocks(&a), ATTENTION_THREADS, a.shared_bytes, stream, attention_forward_kernel, out, lse, qkv, a,
           1.0f / sqrtf((float)a.HS));
}

static const AttentionTiles DQ_TILES = { 2, 1, 2, 2, 2, 1 };

// dq, by rows of queries; also delta[B, NH, T] = dout . out, which the other kernel needs. Two products have scores'
// shape: s = q k^T and dp = dout v^T. Then ds = exp(s - lse) (dp - delta) scale, and dq = ds k.
__global__ void __launch_bounds__(ATTENTION_THREADS, 2)
    attention_dq_kernel(floatX *__restrict__ dqkv, float *__restrict__ delta, const floatX *__restrict__ dout,
                        const floatX *__restrict__ out, const floatX *__restrict__ qkv, const float *__restrict__ lse,
                        Attention a, float scale) {
    const int T = a.T, HS = a.HS, rows = a.rows, cols = a.cols, packs = HS / PACK, wide = HS + GAP, tall = cols + GAP;
    const int items = rows / MICRO * packs, score_packs = cols / PACK, score_items = rows / MICRO * score_packs;
    const int team = blockDim.x / TEAMS;  // threads that do one of two products
    DYNAMIC_SHARED(float, q);
    float *d = q + rows * wide, *k = d + rows * wide, *kt = k + cols * wide, *vt = kt + HS * tall;
    float *p = vt + HS * tall, *ds = p + rows * tall, *row_lse = ds + rows * tall, *row_delta = row_lse + rows;
    float *dq = row_delta + rows;
    fvec dq_item[MICRO];
    const int head = blockIdx.x % (a.B * a.NH), h = head % a.NH;
    const int q0 = ((T + rows - 1) / rows - 1 - blockIdx.x / (a.B * a.NH)) * rows;
    const size_t C = (size_t)a.NH * HS, first = (size_t)(head / a.NH) * T;
    const floatX *in = qkv + first * 3 * C + h * HS, *o = out + (first + q0) * C + h * HS;
    floatX *to = dqkv + (first + q0) * 3 * C + h * HS;

    load_tile(q, NULL, in + q0 * 3 * C, 3 * C, rows, T - q0, HS, scale);
    load_tile(d, NULL, dout + (first + q0) * C + h * HS, C, rows, T - q0, HS, 1.0f);
    clear_sums(dq, dq_item, items);
    __syncthreads();
    for (int r = threadIdx.x; r < rows; r += blockDim.x) {
        row_lse[r] = INFINITY;  // beyond T: probability 0
        row_delta[r] = 0;
        if (q0 + r >= T) continue;
        fvec sums = splat(0);
        for (int c = 0; c < HS; c += PACK) sums += ld(d + r * wide + c) * ld(o + r * C + c);
        row_lse[r] = lse[(size_t)head * T + q0 + r];
        row_delta[r] = pack_sum(sums);
        delta[(size_t)head * T + q0 + r] = row_delta[r];
    }
    for (int k0 = 0; k0 < min(q0 + rows, T); k0 += cols) {
        __syncthreads();
        load_tile(k, kt, in + k0 * 3 * C + C, 3 * C, cols, T - k0, HS, 1.0f);
        load_tile(NULL, vt, in + k0 * 3 * C + 2 * C, 3 * C, cols, T - k0, HS, 1.0f);
        __syncthreads();
        for (int which = threadIdx.x / team; which < 2; which += TEAMS)
            for (int i = threadIdx.x % team; i < score_items; i += team) {
                const bool is_s = which == 0;
                const int r = i / score_packs * MICRO, c = i % score_packs * PACK;
                if (c >= visible_keys(q0 + r, k0, cols)) continue;
                fvec acc[MICRO];
                UNROLL for (int j = 0; j < MICRO; j++) acc[j] = splat(0);
                product(acc, (is_s ? q : d) + r * wide, wide, (is_s ? kt : vt) + c, tall, HS);
                UNROLL for (int j = 0; j < MICRO; j++) {
                    if (is_s)
                        st(p + (r + j) * tall + c, vexp(acc[j] - row_lse[r + j]));
                    else
                        st(ds + (r + j) * tall + c, acc[j] - row_delta[r + j]);
                }
            }
        __syncthreads();
        for (int i = threadIdx.x; i < score_items; i += blockDim.x) {
            const int r = i / score_packs * MICRO, c = i % score_packs * PACK;
            if (c >= visible_keys(q0 + r, k0, cols)) continue;
            UNROLL for (int j = 0; j < MICRO; j++) {
                const int at = (r + j) * tall + c;
                fvec x = ld(p + at) * ld(ds + at) * scale;
                if (k0 + c + PACK - 1 > q0 + r + j) {
                    UNROLL for (int e = 0; e < PACK; e++) x[e] = k0 + c + e > q0 + r + j ? 0.0f : x[e];
                }
                st(ds + at, x);
            }
        }
        __syncthreads();
        for (int i = threadIdx.x; i < items; i += one_each(items)) {
            const int r = i / packs * MICRO, c = i % packs * PACK;
            product(sums_of(i, dq, dq_item), ds + r * tall, tall, k + c, wide, visible_keys(q0 + r, k0, cols));
        }
    }
    for (int i = threadIdx.x; i < items; i += one_each(items)) {
        const int r = i / packs * MICRO, c = i % packs * PACK;
        const fvec *acc = sums_of(i, dq, dq_item);
        UNROLL for (int j = 0; j < MICRO; j++) {
            if (q0 + r + j < T) st(to + (r + j) * 3 * C + c, acc[j]);
        }
    }
}

// Of the queries q0 ... q0 + cols - 1, the first that sees one of the MICRO keys from k on, rounded down to whole
// packs.
DEV int first_query(int k, int q0) { return k < q0 ? 0 : (k - q0) / PACK * PACK; }

static const AttentionTiles DKV_TILES = { 2, 2, 2, 2, 2, 2 };

// dk and dv, by rows of keys, in the same way; everything is transposed: p and ds are rows (keys) x cols (queries).
__global__ void __launch_bounds__(ATTENTION_THREADS, 2)
    attention_dkv_kernel(floatX *__restrict__ dqkv, const float *__restrict__ delta, const floatX *__restrict__ dout,
                         const floatX *__restrict__ qkv, const float *__restrict__ lse, Attention a, float scale) {
    const int T = a.T, HS = a.HS, rows = a.rows, cols = a.cols, packs = HS / PACK, wide = HS + GAP, tall = cols + GAP;
    const int items = rows / MICRO * packs, score_packs = cols / PACK, score_items = rows / MICRO * score_packs;
    const int team = blockDim.x / TEAMS;  // threads that do one of two products
    DYNAMIC_SHARED(float, k);
    float *v = k + rows * wide, *q = v + rows * wide, *d = q + cols * wide, *qt = d + cols * wide, *dt = qt + HS * tall;
    float *p = dt + HS * tall, *ds = p + rows * tall, *col_lse = ds + rows * tall, *col_delta = col_lse + cols;
    float *dk = col_delta + cols, *dv = dk + rows * HS;
    fvec dk_item[MICRO], dv_item[MICRO];
    const int head = blockIdx.x % (a.B * a.NH), h = head % a.NH;
    const int k0 = blockIdx.x / (a.B * a.NH) * rows;  // the longest first
    const size_t C = (size_t)a.NH * HS, first = (size_t)(head / a.NH) * T;
    const floatX *in = qkv + first * 3 * C + h * HS;

    load_tile(k, NULL, in + k0 * 3 * C + C, 3 * C, rows, T - k0, HS, 1.0f);
    load_tile(v, NULL, in + k0 * 3 * C + 2 * C, 3 * C, rows, T - k0, HS, 1.0f);
    clear_sums(dk, dk_item, items);
    clear_sums(dv, dv_item, items);
    for (int q0 = k0; q0 < T; q0 += cols) {
        __syncthreads();
        load_tile(q, qt, in + q0 * 3 * C, 3 * C, cols, T - q0, HS, scale);
        load_tile(d, dt, dout + (first + q0) * C + h * HS, C, cols, T - q0, HS, 1.0f);
        for (int c = threadIdx.x; c < cols; c += blockDim.x) {
            col_lse[c] = q0 + c < T ? lse[(size_t)head * T + q0 + c] : INFINITY;  // beyond T: probability 0
            col_delta[c] = q0 + c < T ? delta[(size_t)head * T + q0 + c] : 0.0f;
        }
        __syncthreads();
        for (int which = threadIdx.x / team; which < 2; which += TEAMS)
            for (int i = threadIdx.x % team; i < score_items; i += team) {
                const bool is_s = which == 0;
                const int r = i / score_packs * MICRO, c = i % score_packs * PACK;
                if (c < first_query(k0 + r, q0)) continue;
                fvec acc[MICRO];
                UNROLL for (int j = 0; j < MICRO; j++) acc[j] = splat(0);
                product(acc, (is_s ? k : v) + r * wide, wide, (is_s ? qt : dt) + c, tall, HS);
                const fvec less = ld((is_s ? col_lse : col_delta) + c);
                UNROLL for (int j = 0; j < MICRO; j++) {
                    fvec x = acc[j] - less;
                    if (is_s) x = vexp(x);
                    if (is_s && q0 + c < k0 + r + j) {
                        UNROLL for (int e = 0; e < PACK; e++) x[e] = q0 + c + e < k0 + r + j ? 0.0f : x[e];
                    }
                    st((is_s ? p : ds) + (r + j) * tall + c, x);
                }
            }
        __syncthreads();
        for (int i = threadIdx.x; i < score_items; i += blockDim.x) {
            const int r = i / score_packs * MICRO, c = i % score_packs * PACK;
            if (c < first_query(k0 + r, q0)) continue;
            UNROLL for (int j = 0; j < MICRO; j++) {
                const int at = (r + j) * tall + c;
                st(ds + at, ld(p + at) * ld(ds + at));
            }
        }
        __syncthreads();
        for (int i = threadIdx.x; i < items; i += one_each(items)) {
            const int r = i / packs * MICRO, c = i % packs * PACK, n0 = min(first_query(k0 + r, q0), cols);
            product(sums_of(i, dv, dv_item), p + r * tall + n0, tall, d + n0 * wide + c, wide, cols - n0);
            product(sums_of(i, dk, dk_item), ds + r * tall + n0, tall, q + n0 * wide + c, wide, cols - n0);
        }
    }
    for (int i = threadIdx.x; i < items; i += one_each(items)) {
        const int r = i / packs * MICRO, c = i % packs * PACK;
        const fvec *dk_sums = sums_of(i, dk, dk_item), *dv_sums = sums_of(i, dv, dv_item);
        UNROLL for (int j = 0; j < MICRO; j++) {
            if (k0 + r + j >= T) break;
            floatX *row = dqkv + (first + k0 + r + j) * 3 * C + h * HS + c;
            st(row + C, dk_sums[j]);
            st(row + 2 * C, dv_sums[j]);
        }
    }
}

// Writes dqkv[B, T, 3C].
static void attention_backward(floatX *dqkv, void *scratch, const floatX *dout, const floatX *out, const floatX *qkv,
                               const float *lse, size_t B, size_t T, size_t C, size_t NH, cudaStream_t stream) {
    if constexpr (ATTENTION_CUDNN) {
        profile_begin(profile, "attention_backward", stream);
        attentionCheck(attention_cudnn_backward(dqkv, scratch, dout, out, qkv, lse, B, T, NH, C / NH, stream));
        profile_end(profile);
        return;
    }
    float *delta = (float *)scratch;
    const Attention a = attention_shape(B, T, C, NH, &DQ_TILES), b = attention_shape(B, T, C, NH, &DKV_TILES);
    const float scale = 1.0f / sqrtf((float)a.HS);
    LAUNCH(attention_blocks(&a), ATTENTION_THREADS, a.shared_bytes, stream, attention_dq_kernel, dqkv, delta, dout, out,
           qkv, lse, a, scale);
    LAUNCH(attention_blocks(&b), ATTENTION_THREADS, b.shared_bytes, stream, attention_dkv_kernel, dqkv, delta, dout,
           qkv, lse, b, scale);
}

// ---------------------------------------------------------------------------------------------------------------------
// A linear layer: out[R, OC] = inp[R, C] weight[OC, C]^T + bias. dev/device/matmul.h explains the three products. Two
// of them may end in a GELU, which saves a pass over memory (-ge); without, a kernel of its own does it.

static void check_matmul(int err, int fused, int line) {
    if (fused && err == cudaErrorNotSupported)
        fatal(__FILE__, line,
              "cuBLASLt has no matrix product that ends in a GELU for this model on this GPU: use -ge 0");
    check_cuda((cudaError_t)err, "matmul", __FILE__, line);
}

// One of the products of a layer from C to OC channels, which `call` queues. use: its name in a profile.
#define PRODUCT(use, C, OC, fused, stream, call)            \
    do {                                                    \
        profile_begin_product(profile, use, C, OC, stream); \
        check_matmul((call), fused, __LINE__);              \
        profile_end(profile);                               \
    } while (0)

static void linear_forward(floatX *out, const floatX *inp, const floatX *weight, const floatX *bias, size_t R, size_t C,
                           size_t OC, cudaStream_t stream) {
    PRODUCT("forward", C, OC, 0, stream, matmul(out, inp, weight, bias, FLOATX, R, OC, C, 0, 1, 0, stream));
}

// Followed by a GELU: out = gelu(pre_gelu), and pre_gelu[R, OC] is kept for the backward.
static void linear_gelu_forward(floatX *out, floatX *pre_gelu, const floatX *inp, const floatX *weight,
                                const floatX *bias, size_t R, size_t C, size_t OC, int fused, cudaStream_t stream) {
    if (fused) {
        PRODUCT("forward, gelu", C, OC, 1, stream,
                matmul_gelu(out, pre_gelu, inp, weight, bias, FLOATX, R, OC, C, 0, 1, stream));
    } else {
        linear_forward(pre_gelu, inp, weight, bias, R, C, OC, stream);
        gelu_forward(out, pre_gelu, R * OC, stream);
    }
}

// Gradients are written, not added: a unit's buffer is zero when it is acquired, and each tensor is written once. dbias
// may be NULL. cuBLASLt could sum dbias in the product that makes dweight (BGRADB), but does not say in what order, nor
// in what precision.
static void linear_backward_params(floatX *dweight, floatX *dbias, float *partial, const floatX *dout,
                                   const floatX *inp, size_t R, size_t C, size_t OC, cudaStream_t stream) {
    if (dbias) bias_backward(dbias, partial, dout, R, OC, stream);
    PRODUCT("dweight", C, OC, 0, stream, matmul(dweight, dout, inp, NULL, FLOATX, OC, C, R, 1, 0, 0, stream));
}

static void linear_backward(floatX *dinp, floatX *dweight, floatX *dbias, float *partial, const floatX *dout,
                            const floatX *inp, const floatX *weight, size_t R, size_t C, size_t OC,
                            cudaStream_t stream) {
    linear_backward_params(dweight, dbias, partial, dout, inp, R, C, OC, stream);
    PRODUCT("dinput", C, OC, 0, stream, matmul(dinp, dout, weight, NULL, FLOATX, R, C, OC, 0, 0, 0, stream));
}

// Of a layer whose input is a GELU's output, inp = gelu(pre_gelu): dpre_gelu is the gradient of the GELU's input.
static void gelu_linear_backward(floatX *dpre_gelu, floatX *dweight, floatX *dbias, float *partial, const floatX *dout,
                                 const floatX *inp, const floatX *pre_gelu, const floatX *weight, size_t R, size_t C,
                                 size_t OC, int fused, cudaStream_t stream) {
    if (fused) {
        linear_backward_params(dweight, dbias, partial, dout, inp, R, C, OC, stream);
        PRODUCT("dinput, gelu", C, OC, 1, stream,
                matmul_gelu_backward(dpre_gelu, pre_gelu, dout, weight, FLOATX, R, C, OC, 0, 0, stream));
    } else {
        linear_backward(dpre_gelu, dweight, dbias, partial, dout, inp, weight, R, C, OC, stream);
        gelu_backward(dpre_gelu, pre_gelu, R * C, stream);
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Configuration.

typedef struct GPT2Config {
    size_t max_seq_len;        // maxT
    size_t vocab_size;         // V
    size_t padded_vocab_size;  // Vp: rows of wte; the rows from V on are zero and stay so
    size_t num_layers, num_heads, channels;
} GPT2Config;

#define VOCAB_MULTIPLE 128  // a vocabulary is padded to a multiple of this
#define MAX_HEAD_SIZE  256

__attribute__((format(printf, 3, 4))) static int config_error(char *err, size_t err_bytes, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(err, err_bytes, format, args);
    va_end(args);
    return -1;
}

// 0 if the kernels can run this model; else -1, and err says what is wrong. Not collective.
int gpt2_config_check(const GPT2Config *c, char *err, size_t err_bytes) {
    const size_t limit = (size_t)1 << 24;  // of each size; keeps every index of a row in an int
    if (!c->max_seq_len || !c->vocab_size || !c->num_layers || !c->num_heads || !c->channels)
        return config_error(err, err_bytes, "a model needs at least 1 layer, head, channel, word and position");
    if (c->max_seq_len > limit || c->padded_vocab_size > limit || c->num_layers > limit || c->channels > limit)
        return config_error(err, err_bytes, "no size of a model may be above %zu", limit);
    if (c->channels % c->num_heads)
        return config_error(err, err_bytes,
                            "%zu channels cannot be divided among %zu heads: choose a multiple of the heads",
                            c->channels, c->num_heads);
    const size_t head_size = c->channels / c->num_heads;
    if (head_size % PACK || head_size > MAX_HEAD_SIZE)
        return config_error(err, err_bytes,
                            "%zu channels in %zu heads make heads of %zu: it must be a multiple of %d, at most %d",
                            c->channels, c->num_heads, head_size, PACK, MAX_HEAD_SIZE);
    if (c->padded_vocab_size % PACK || c->padded_vocab_size < c->vocab_size)
        return config_error(err, err_bytes,
                            "the padded vocabulary, %zu, must be a multiple of %d and at least the vocabulary, %zu",
                            c->padded_vocab_size, PACK, c->vocab_size);
    return 0;
}

// The number after `prefix`, if s is the prefix and a number and nothing else up to a comma or the end; *rest is what
// follows it.
static int parse_number(const char *s, const char *prefix, size_t *number, const char **rest) {
    const size_t n = strlen(prefix);
    if (strncmp(s, prefix, n) || s[n] < '0' || s[n] > '9') return 0;
    size_t value = 0;
    for (s += n; *s >= '0' && *s <= '9'; s++) {
        if (value > ((size_t)1 << 32)) return 0;
        value = value * 10 + (size_t)(*s - '0');
    }
    *number = value;
    *rest = s;
    return *s == '\0' || *s == ',';
}

// custom:l4,h4,c128,v256,t128, in any order.
static int parse_custom(GPT2Config *c, const char *s) {
    const struct {
        const char *prefix;
        size_t *number;
    } fields[] = { { "l", &c->num_layers },
                   { "h", &c->num_heads },
                   { "c", &c->channels },
                   { "v", &c->vocab_size },
                   { "t", &c->max_seq_len } };
    const size_t num_fields = sizeof fields / sizeof fields[0];
    unsigned seen = 0;
    for (;;) {
        const char *rest = NULL;
        size_t i = 0;
        while (i < num_fields && !parse_number(s, fields[i].prefix, fields[i].number, &rest)) i++;
        if (i == num_fields || seen >> i & 1) return 0;
        seen |= 1u << i;
        if (*rest == '\0') return seen == (1u << num_fields) - 1;
        s = rest + 1;
    }
}

// "d12", "gpt2:d12", "gpt3:c768", "custom:l4,h4,c128,v256,t128" (layers, heads, channels, vocabulary, longest
// sequence). Returns 0, or -1 with a message in err. Not collective.
int gpt2_config_from_descriptor(GPT2Config *c, const char *descriptor, char *err, size_t err_bytes) {
    static const struct {
        size_t depth, channels, heads;
    } gpt2[] = { { 6, 384, 6 },    { 12, 768, 12 },  { 24, 1024, 16 }, { 36, 1280, 20 },
                 { 48, 1600, 25 }, { 60, 1920, 30 }, { 72, 2880, 30 }, { 84, 3456, 36 } };
    static const struct {
        size_t channels, layers, head_size;
    } gpt3[] = { { 384, 6, 64 },   { 768, 12, 64 },   { 1024, 24, 64 },  { 1536, 24, 96 },  { 2048, 24, 128 },
                 { 2560, 32, 80 }, { 4096, 32, 128 }, { 5140, 40, 128 }, { 12288, 96, 128 } };
    const char *rest = "";
    size_t size = 0;
    memset(c, 0, sizeof *c);
    if ((parse_number(descriptor, "d", &size, &rest) || parse_number(descriptor, "gpt2:d", &size, &rest)) && !*rest) {
        for (const auto &m : gpt2) {
            if (m.depth == size) *c = GPT2Config{ 1024, 50257, 0, m.depth, m.heads, m.channels };
        }
        if (!c->channels)
            return config_error(err, err_bytes, "\"%s\": depths are 6 12 24 36 48 60 72 84; for others use custom:...",
                                descriptor);
    } else if (parse_number(descriptor, "gpt3:c", &size, &rest) && !*rest) {
        for (const auto &m : gpt3) {
            if (m.channels == size) *c = GPT2Config{ 2048, 50257, 0, m.layers, m.channels / m.head_size, m.channels };
        }
        if (!c->channels)
            return config_error(
                err, err_bytes,
                "\"%s\": channels are 384 768 1024 1536 2048 2560 4096 12288; for others use custom:...", descriptor);
    } else if (strncmp(descriptor, "custom:", 7) || !parse_custom(c, descriptor + 7)) {
        return config_error(err, err_bytes,
                            "\"%s\" describes no model: write d12, gpt2:d12, gpt3:c768 or "
                            "custom:l4,h4,c128,v256,t128 (layers, heads, channels, vocabulary, longest sequence)",
                            descriptor);
    }
    c->padded_vocab_size = ceil_div(c->vocab_size, VOCAB_MULTIPLE) * VOCAB_MULTIPLE;
    char why[256];
    if (gpt2_config_check(c, why, sizeof why)) return config_error(err, err_bytes, "\"%s\": %s", descriptor, why);
    return 0;
}

// ---------------------------------------------------------------------------------------------------------------------
// Tensors.

// Of unit 0, and of unit 1 + layer.
enum { WTE, WPE, LNFW, LNFB, EMBEDDING_TENSORS };
enum { LN1W, LN1B, QKVW, QKVB, ATTPROJW, ATTPROJB, LN2W, LN2B, FCW, FCB, FCPROJW, FCPROJB, LAYER_TENSORS };

typedef struct TensorKind {
    const char *name;
    size_t numel;
    int decay;
} TensorKind;

static void embedding_kinds(const GPT2Config *c, TensorKind kinds[EMBEDDING_TENSORS]) {
    const size_t C = c->channels;
    const TensorKind k[EMBEDDING_TENSORS] = {
        { "wte", c->padded_vocab_size * C, 1 }, { "wpe", c->max_seq_len * C, 1 }, { "lnfw", C, 0 }, { "lnfb", C, 0 }
    };
    memcpy(kinds, k, sizeof k);
}

static void layer_kinds(const GPT2Config *c, TensorKind kinds[LAYER_TENSORS]) {
    const size_t C = c->channels;
    const TensorKind k[LAYER_TENSORS] = { { "ln1w", C, 0 },
                                          { "ln1b", C, 0 },
                                          { "qkvw", 3 * C * C, 1 },
                                          { "qkvb", 3 * C, 0 },
                                          { "attprojw", C * C, 1 },
                                          { "attprojb", C, 0 },
                                          { "ln2w", C, 0 },
                                          { "ln2b", C, 0 },
                                          { "fcw", 4 * C * C, 1 },
                                          { "fcb", 4 * C, 0 },
                                          { "fcprojw", 4 * C * C, 1 },
                                          { "fcprojb", C, 0 } };
    memcpy(kinds, k, sizeof k);
}

size_t gpt2_num_tensors(const GPT2Config *c) { return EMBEDDING_TENSORS + LAYER_TENSORS * c->num_layers; }

// With the padding of wte.
size_t gpt2_num_parameters(const GPT2Config *c) {
    const size_t C = c->channels;
    return c->padded_vocab_size * C + c->max_seq_len * C + c->num_layers * (12 * C * C + 13 * C) + 2 * C;
}

// The units in the order in which a micro-batch acquires their parameters, to order (NULL: only count them). Returns
// their number.
size_t gpt2_unit_order(const GPT2Config *c, size_t *order) {
    const size_t L = c->num_layers;
    for (size_t i = 0; order != NULL && i < L; i++) {
        order[1 + i] = 1 + i;      // forward: encoder, the layers,
        order[3 + L + i] = L - i;  // backward: head, the layers
    }
    if (order != NULL) order[0] = order[1 + L] = order[2 + L] = 0;  // unit 0: encoder, head; head
    return 3 + 2 * L;
}

// Describes the tensors, unit by unit, to out[gpt2_num_tensors(c)]. `logical` is the place in llm.c's model file, where
// each kind of layer tensor lies for all layers together, between the embeddings and the final layernorm.
void gpt2_tensors(const GPT2Config *c, zero_tensor *out) {
    TensorKind embedding[EMBEDDING_TENSORS], layer[LAYER_TENSORS];
    embedding_kinds(c, embedding);
    layer_kinds(c, layer);
    size_t logical = 0;
    for (size_t k = 0; k < EMBEDDING_TENSORS; k++) {
        if (k == LNFW) logical = gpt2_num_parameters(c) - 2 * c->channels;
        out[k] = zero_tensor{ embedding[k].name, embedding[k].numel, 0, logical, embedding[k].decay };
        logical += embedding[k].numel;
    }
    logical = embedding[WTE].numel + embedding[WPE].numel;
    for (size_t k = 0; k < LAYER_TENSORS; k++) {
        for (size_t l = 0; l < c->num_layers; l++) {
            zero_tensor *t = &out[EMBEDDING_TENSORS + l * LAYER_TENSORS + k];
            *t = zero_tensor{ layer[k].name, layer[k].numel, 1 + l, logical, layer[k].decay };
            logical += layer[k].numel;
        }
    }
}

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
    size_t first_layer, last_layer;              // [first, last) of this stage of the pipeline
    size_t embedding_offset[EMBEDDING_TENSORS];  // of the tensors in unit 0, in elements
    size_t layer_offset[LAYER_TENSORS];          // of the tensors in a layer's unit
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
    if (status) return config_error(err, err_bytes, "no layout for this model: %s", why);
    memcpy(m->embedding_offset, layout.tensor_offset, sizeof m->embedding_offset);
    memcpy(m->layer_offset, layout.tensor_offset + EMBEDDING_TENSORS, sizeof m->layer_offset);
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
        return config_error(err, err_bytes, "-b %zu -t %zu: both must be at least 1, their product at most 2^30", B, T);
    if (T > c->max_seq_len)
        return config_error(err, err_bytes, "-t %zu: the model has only %zu positions; use a smaller -t", T,
                            c->max_seq_len);
    if (recompute < 0 || recompute > 2)
        return config_error(err, err_bytes, "-r %d: must be 0, 1 (GELU) or 2 (GELU and layernorms)", recompute);
    if constexpr (ATTENTION_CUDNN) {
        if (attention_cudnn_prepare(B, T, c->num_heads, c->channels / c->num_heads, 1))
            return config_error(err, err_bytes, "%s", attention_cudnn_error());
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
        return config_error(err, err_bytes, "no memory for %.0f MiB of activations: use a smaller -b or -t, or -r 2",
                            mib);
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
        const ModelShape shape = { r->config.max_seq_len, r->config.vocab_size, r->config.num_layers,
                                   r->config.num_heads,   r->config.channels,   r->config.padded_vocab_size };
        modelfile_create(temporary, &shape, FLOATX == ZERO_BF16, access.err, sizeof access.err);
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
        const ModelShape *s = &r->file.shape;
        r->config.max_seq_len = s->max_seq_len;
        r->config.vocab_size = s->vocab_size;
        r->config.padded_vocab_size = s->padded_vocab_size;
        r->config.num_layers = s->num_layers;
        r->config.num_heads = s->num_heads;
        r->config.channels = s->channels;
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
    c.stage = (int)o->stage;
    c.dtype = FLOATX;
    c.master = MASTER_WEIGHTS[o->master_weights].kind;
    c.seed = (uint64_t)o->seed;
    c.reduction = o->reduce == OPTION_REDUCE_EXACT ? ZERO_REDUCE_EXACT : ZERO_REDUCE_LIBRARY;
    c.prefetch = (int)o->prefetch;
    c.debug = (uint64_t)o->debug;
    size_t *order = (size_t *)allocate(gpt2_unit_order(&r->config, NULL) * sizeof *order);
    c.order = order;
    c.order_length = gpt2_unit_order(&r->config, order);
    c.num_tensors = gpt2_num_tensors(&r->config);
    r->tensors = (zero_tensor *)allocate(c.num_tensors * sizeof *r->tensors);
    gpt2_tensors(&r->config, r->tensors);
    c.tensors = r->tensors;
    c.comm = r->shard_comm;
    c.replicas = r->replica_comm;
    c.memory = &r->memory;
    c.stream = r->stream;
    if (o->profile > 0 && r->rank == 0) {
        c.timing = time_engine;
        r->profile = profile_create();
        if (r->profile == NULL) die("the host's memory is exhausted");
    }
    if (zero_create(&r->z, &c) != ZERO_OK)
        die("-z %d: %s", c.stage, r->z != NULL ? zero_error(r->z) : "the host's memory is exhausted");

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
    const double flops = training_flops(gpt2_num_parameters(&r->config), r->config.num_layers, r->config.channels, r->T,
                                        tokens);
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
    in.prefetch = (size_t)o->prefetch;
    in.dtype = o->plan_precision == OPTION_PRECISION_BF16 ? ZERO_BF16 : ZERO_F32;
    in.master = MASTER_WEIGHTS[o->master_weights].kind;
    in.reduction = o->reduce == OPTION_REDUCE_EXACT ? ZERO_REDUCE_EXACT : ZERO_REDUCE_LIBRARY;
    in.recompute = (int)o->recompute;
    in.activation_bytes = gpt2_activation_bytes(&r->config, r->B, r->T, in.recompute, in.dtype);
    in.flops_per_token = training_flops(gpt2_num_parameters(&r->config), r->config.num_layers, r->config.channels, r->T,
                                        1);
    in.B = r->B;
    in.T = r->T;
    in.total_tokens = o->total_batch_tokens > 0 ? (size_t)o->total_batch_tokens : 0;
    in.ranks = (size_t)r->ranks;
    in.shard_group = (size_t)o->shard_group;
    in.ranks_per_host = (size_t)o->plan_ranks_per_host;
#ifndef CUDA_ON_CPU
    in.staged = 1;
    in.nccl = o->transport != OPTION_TRANSPORT_MPI;
#else
    in.nccl = o->transport == OPTION_TRANSPORT_NCCL;
#endif
    in.device_bytes = o->device_memory * 1e9;
    in.link_bytes_per_second = o->link_gbs * 1e9;
    const double peak = in.dtype == ZERO_BF16 ? 989 : o->tf32 ? 494 : 67;  // an H100's
    in.peak_flops = (options_given(o, "peak-tflops") ? o->peak_tflops : peak) * 1e12;
    in.efficiency = o->efficiency;
    Plan plan;
    if (plan_make(&plan, &in, err, sizeof err) != 0) die("--plan: %s", err);
    if (r->choice[0] != '\0' && o->plan == OPTION_PLAN_TEXT) printf("%s\n", r->choice);
    (o->plan == OPTION_PLAN_JSON ? plan_print_json : plan_print)(stdout, &plan, &in);
#ifdef CUDA_ON_CPU
    if (o->plan == OPTION_PLAN_TEXT && (in.dtype == ZERO_F32 || !in.nccl)) {
        printf("this is a plan for %s and %s, as this program is built for a CPU; for GPUs add --precision bf16 "
               "--transport nccl\n",
               in.dtype == ZERO_F32 ? "FP32" : "BF16", in.nccl ? "NCCL" : "MPI");
    }
#endif
    if (ATTENTION_CUDNN && in.dtype == ZERO_BF16 && o->plan == OPTION_PLAN_TEXT) {
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
