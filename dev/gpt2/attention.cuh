// Causal attention, after FlashAttention (Dao et al. 2022): scores exist one tile at a time, in shared memory. These
// kernels are for FP32, for a CPU, and for sizes of heads that flash_attention.cuh, on tensor cores, does not have.
//
//              keys ->
//     queries  # / . .       a block owns a row of tiles (forward, dq) or a column of them (dk, dv);
//        |     # # / .       / cut by causality, . empty: skipped
//        v     # # # /
//
// A block owns `rows` rows of one head (queries; in the backward of keys and values, keys) and walks along the other
// side, `cols` of them at a time. Both sides of a tile are copied to shared memory as fp32. All products then have one
// form, product(): a row-major matrix times a row-major matrix, with an item of MICRO x PACK of the result per thread.
// Tiles that causality leaves empty are skipped, and in tiles that it cuts, the empty items. Backward: dq by query
// rows, dk and dv by key rows; each has one writer and a fixed order of sums. The sums of a block (out, dq, dk, dv)
// have at most as many items as a GPU's block has threads, and stay in registers.
#ifndef GPT2_ATTENTION_CUH
#define GPT2_ATTENTION_CUH

#include "device/attention.h"  // attention by cuDNN, in builds that ask for it
#include "gpt2/common.cuh"

#if defined(PRECISION_BF16) && !defined(USE_CUDNN) && (!defined(CUDA_ON_CPU) || defined(CUDA_ON_CPU_EMULATED))
#include "gpt2/flash_attention.cuh"  // on tensor cores, for some sizes of heads
#else
static bool is_flash(size_t) { return false; }
static void flash_forward(floatX *, float *, const floatX *, size_t, size_t, size_t, size_t, cudaStream_t) {}
static void flash_backward(floatX *, float *, const floatX *, const floatX *, const floatX *, const float *, size_t,
                           size_t, size_t, size_t, cudaStream_t) {}
#endif

// The launch bounds name as many resident blocks as fit into a multiprocessor's shared memory.
#define ATTENTION_THREADS 128
constexpr int MICRO = WARP == 1 ? 8 : 4;       // a CPU needs 8 sums in flight, a GPU more threads
constexpr int GAP = WARP == 1 ? 0 : 4;         // floats between the rows of a tile, to avoid bank conflicts
constexpr int TEAMS = WARP == 1 ? 1 : 2;       // of two products, half of a GPU's block computes one, half the other
constexpr size_t ATTENTION_SHARED = 99 << 10;  // bytes that a block may use on every GPU since sm_80

typedef struct Attention {
    int B, T, NH, HS, rows, cols;
    size_t shared_bytes;
} Attention;

// The arrays that a kernel keeps in shared memory, by shape.
typedef struct AttentionTiles {
    size_t rows, cols, turned;  // tiles of rows x HS, cols x HS, and (transposed) HS x cols
    size_t scores;              // of rows x cols
    size_t vectors;             // of max(rows, cols)
    size_t sums;                // of rows x HS; in registers on a GPU
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

// Where the sums of an item are: in registers; on a CPU, whose only thread has all items, in memory.
DEV fvec *sums_of(int item, float *memory, fvec registers[MICRO]) {
    if constexpr (WARP == 1)
        return reinterpret_cast<fvec *>(memory) + item * MICRO;
    else
        return registers;
}

// The step of a loop over the items of sums; shows the compiler that a GPU's thread has at most one.
DEV int one_each(int items) { return WARP == 1 ? 1 : items; }

DEV void clear_sums(float *memory, fvec registers[MICRO], int items) {
    for (int item = threadIdx.x; item < items; item += one_each(items)) {
        fvec *sums = sums_of(item, memory, registers);
        UNROLL for (int j = 0; j < MICRO; j++) sums[j] = splat(0);
    }
}

// Copies a tile of n x HS, times scale, to `tile`, and transposed to `turned`; either may be NULL. Rows `valid` and up
// are zeros. Neighbouring threads take neighbouring rows, so both writes are free of bank conflicts; a CPU reads row by
// row.
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

// How many of the keys k0, ..., k0 + cols - 1 are visible to the MICRO queries from q on, in whole packs.
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
    float *top = p + rows * tall, *sum = top + rows;  // of each row so far: largest score, sum of exp(score - top)
    float *shrink = sum + rows;                       // exp(old top - new top): scales the sums so far
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

// Scratch bytes of the two functions below, in a build whose floatX is X: delta[B, NH, T], or cuDNN's workspace.
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
    if (is_flash(C / NH)) return flash_forward(out, lse, qkv, B, T, NH, C / NH, stream);
    const Attention a = attention_shape(B, T, C, NH, &FORWARD_TILES);
    LAUNCH(attention_blocks(&a), ATTENTION_THREADS, a.shared_bytes, stream, attention_forward_kernel, out, lse, qkv, a,
           1.0f / sqrtf((float)a.HS));
}

static const AttentionTiles DQ_TILES = { 2, 1, 2, 2, 2, 1 };

// Computes dq, by rows of queries, and delta[B, NH, T] = dout . out, which the next kernel reads. Two products have the
// shape of scores: s = q k^T and dp = dout v^T. Then ds = exp(s - lse) (dp - delta) scale, and dq = ds k.
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

// The first of the queries q0, ..., q0 + cols - 1 that sees one of the MICRO keys from k on, rounded down to whole
// packs.
DEV int first_query(int k, int q0) { return k < q0 ? 0 : (k - q0) / PACK * PACK; }

static const AttentionTiles DKV_TILES = { 2, 2, 2, 2, 2, 2 };

// Computes dk and dv, by rows of keys, in the same way but transposed: p and ds are rows (keys) x cols (queries).
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
    if (is_flash(C / NH)) return flash_backward(dqkv, delta, dout, out, qkv, lse, B, T, NH, C / NH, stream);
    const Attention a = attention_shape(B, T, C, NH, &DQ_TILES), b = attention_shape(B, T, C, NH, &DKV_TILES);
    const float scale = 1.0f / sqrtf((float)a.HS);
    LAUNCH(attention_blocks(&a), ATTENTION_THREADS, a.shared_bytes, stream, attention_dq_kernel, dqkv, delta, dout, out,
           qkv, lse, a, scale);
    LAUNCH(attention_blocks(&b), ATTENTION_THREADS, b.shared_bytes, stream, attention_dkv_kernel, dqkv, delta, dout,
           qkv, lse, b, scale);
}

#endif
