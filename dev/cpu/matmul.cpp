/*
The trainer's matrix products on the CPU: OpenBLAS for the arithmetic, our own tiles for the reproducibility.

OpenBLAS by itself gives other bits on two threads than on one, because it cuts the matrices by the number of threads. Here the
result is cut into tiles by its shape alone; each tile is one single-threaded product, and OpenMP threads take tiles as they
become free. Which thread computes a tile then changes nothing, and a well-kept library still does the inner loops. It
costs nothing measurable: tiles of 256 x 384 reuse what is packed about as well as the whole matrix does, and dealing
them out on demand balances busy cores better than OpenBLAS's equal shares.

The tile size is a compromise. Few large tiles waste less on packing; many small ones keep more cores busy. So a result that
gives fewer than MIN_TILES tiles is cut finer, down to about 64 x 96. All tiles of a product are about equally large.

In bf16, which OpenBLAS cannot read on most CPUs, a tile is summed in fp32 scratch: blocks of a and b are widened into
it (exactly) and multiplied there, and the sum is rounded once, when the tile is done. fp32 tiles are summed in place.

Bias and old c go into the tile first, and the products are added to them. That is no extra pass: OpenBLAS
would have to clear the tile anyway.
*/
#include "dev/matmul.h"

#include <cblas.h>
#include <limits.h>
#include <omp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { TILE_M = 256, TILE_N = 384, MIN_TILES = 8, FINEST_M = 64, FINEST_N = 96 };
enum { BLOCK_K = 512 };      // bf16 is widened in blocks of at most this many terms of the sum
enum { ROUND = 16 };         // tile edges are multiples of this: full vectors for OpenBLAS, whole cache lines for the threads
enum { SCRATCH = TILE_M * TILE_N + (TILE_M + TILE_N) * BLOCK_K }; // floats per thread: a tile of c, a block of a, one of b

static float *scratch;       // SCRATCH floats for each of scratch_threads threads, for bf16 only
static int scratch_threads;

typedef struct {
    void *c;
    const void *a, *b, *bias;
    int dtype, trans_a, trans_b, accumulate;
    size_t m, n, k;
} Product;

static size_t smaller(size_t x, size_t y)
{
    return x < y ? x : y;
}

/* The length of each of `parts` about equal parts of `total`, the last of which may be shorter (or, when rounding up, missing). */
static size_t part_length(size_t total, size_t parts)
{
    return ((total + parts - 1) / parts + ROUND - 1) / ROUND * ROUND;
}

static float widen(uint16_t h)
{
    uint32_t bits = (uint32_t)h << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static uint16_t narrow(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    uint32_t nan = (bits >> 16) | 0x40; // rounding up could carry a NaN into infinity: keep its top half, made quiet
    uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? nan : rounded);
}

/* The rows x cols block of x at (row, col) as floats: in place for fp32, widened into room for bf16. *ld is the length of a row of
   x, and becomes that of a row of the block. */
static const float *block(const void *x, int dtype, size_t row, size_t col, size_t rows, size_t cols, size_t *ld, float *room)
{
    if (dtype == MATMUL_F32) {
        return (const float *)x + row * *ld + col;
    }
    for (size_t i = 0; i < rows; i++) {
        const uint16_t *from = (const uint16_t *)x + (row + i) * *ld + col;
        float *to = room + i * cols;
        for (size_t j = 0; j < cols; j++) {
            to[j] = widen(from[j]);
        }
    }
    *ld = cols;
    return room;
}

static float load(const void *x, int dtype, size_t i)
{
    return dtype == MATMUL_F32 ? ((const float *)x)[i] : widen(((const uint16_t *)x)[i]);
}

/* What the products are added to: bias and old c, or zero. */
static void tile_begin(const Product *p, float *out, size_t ldo, size_t row, size_t col, size_t rows, size_t cols)
{
    for (size_t i = 0; i < rows; i++) {
        float *to = out + i * ldo;
        size_t at = (row + i) * p->n + col;
        if (!p->accumulate) {
            memset(to, 0, cols * sizeof *to);
        } else if (p->dtype == MATMUL_BF16) {
            for (size_t j = 0; j < cols; j++) {
                to[j] = load(p->c, p->dtype, at + j);
            }
        }
        if (p->bias) {
            for (size_t j = 0; j < cols; j++) {
                to[j] += load(p->bias, p->dtype, col + j);
            }
        }
    }
}

static void tile(const Product *p, size_t row, size_t col, size_t rows, size_t cols, float *room)
{
    int f32 = p->dtype == MATMUL_F32;
    float *out = f32 ? (float *)p->c + row * p->n + col : room;
    size_t ldo = f32 ? p->n : cols;
    float *room_a = room + TILE_M * TILE_N;
    float *room_b = room_a + TILE_M * BLOCK_K;
    size_t step = f32 || p->k <= BLOCK_K ? p->k : part_length(p->k, (p->k + BLOCK_K - 1) / BLOCK_K);
    tile_begin(p, out, ldo, row, col, rows, cols);
    for (size_t q = 0; q < p->k; q += step) {
        size_t depth = smaller(step, p->k - q);
        size_t lda = p->trans_a ? p->m : p->k;
        size_t ldb = p->trans_b ? p->k : p->n;
        const float *a = p->trans_a ? block(p->a, p->dtype, q, row, depth, rows, &lda, room_a)
                                    : block(p->a, p->dtype, row, q, rows, depth, &lda, room_a);
        const float *b = p->trans_b ? block(p->b, p->dtype, col, q, cols, depth, &ldb, room_b)
                                    : block(p->b, p->dtype, q, col, depth, cols, &ldb, room_b);
        cblas_sgemm(CblasRowMajor, p->trans_a ? CblasTrans : CblasNoTrans, p->trans_b ? CblasTrans : CblasNoTrans, (int)rows,
                    (int)cols, (int)depth, 1.0f, a, (int)lda, b, (int)ldb, 1.0f, out, (int)ldo);
    }
    if (!f32) {
        for (size_t i = 0; i < rows; i++) {
            uint16_t *to = (uint16_t *)p->c + (row + i) * p->n + col;
            for (size_t j = 0; j < cols; j++) {
                to[j] = narrow(out[i * ldo + j]);
            }
        }
    }
}

/* Makes OpenBLAS single-threaded. Built on OpenMP, it passes the number on to omp_set_num_threads, where it would stay. */
static void library_single_threaded(void)
{
    if (openblas_get_num_threads() != 1) {
        int threads = omp_get_max_threads();
        openblas_set_num_threads(1);
        omp_set_num_threads(threads);
    }
}

static int scratch_reserve(int threads)
{
    if (threads <= scratch_threads) {
        return cudaSuccess;
    }
    matmul_destroy();
    scratch = (float *)aligned_alloc(64, (size_t)threads * SCRATCH * sizeof *scratch);
    if (!scratch) {
        return cudaErrorMemoryAllocation;
    }
    scratch_threads = threads;
    return cudaSuccess;
}

int matmul(void *c, const void *a, const void *b, const void *bias, int dtype, size_t m, size_t n, size_t k, int trans_a,
           int trans_b, int accumulate, cudaStream_t stream)
{
    (void)stream;
    if ((dtype != MATMUL_F32 && dtype != MATMUL_BF16) || m > INT_MAX || n > INT_MAX || k > INT_MAX) {
        return cudaErrorInvalidValue;
    }
    if (m == 0 || n == 0) {
        return cudaSuccess;
    }
    if (dtype == MATMUL_BF16) {
        int err = scratch_reserve(omp_get_max_threads());
        if (err) {
            return err;
        }
    }
    library_single_threaded();

    size_t parts_m = (m + TILE_M - 1) / TILE_M;
    size_t parts_n = (n + TILE_N - 1) / TILE_N;
    while (parts_m * parts_n < MIN_TILES) {
        size_t tile_m = m / parts_m;
        size_t tile_n = n / parts_n;
        if (tile_m >= 2 * FINEST_M && (tile_m >= tile_n || tile_n < 2 * FINEST_N)) {
            parts_m *= 2;
        } else if (tile_n >= 2 * FINEST_N) {
            parts_n *= 2;
        } else {
            break;
        }
    }
    size_t tile_m = part_length(m, parts_m);
    size_t tile_n = part_length(n, parts_n);
    parts_m = (m + tile_m - 1) / tile_m;
    parts_n = (n + tile_n - 1) / tile_n;

    Product p = { c, a, b, bias, dtype, trans_a, trans_b, accumulate, m, n, k };
#pragma omp parallel for schedule(dynamic) if (parts_m * parts_n > 1)
    for (size_t t = 0; t < parts_m * parts_n; t++) {
        size_t row = t % parts_m * tile_m;
        size_t col = t / parts_m * tile_n;
        float *room = scratch ? scratch + (size_t)omp_get_thread_num() * SCRATCH : NULL;
        tile(&p, row, col, smaller(tile_m, m - row), smaller(tile_n, n - col), room);
    }
    return cudaSuccess;
}

void matmul_set_tf32(int allow)
{
    (void)allow;
}

void matmul_destroy(void)
{
    free(scratch);
    scratch = NULL;
    scratch_threads = 0;
}
