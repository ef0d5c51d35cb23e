// The trainer's matrix products on the CPU: packed panels as in GotoBLAS and BLIS, arranged so that the bits of an
// element of c depend on its row of a and its column of b, and on nothing else.
//
// Why not a library? OpenBLAS gives different bits on two threads than on one, and different bits for some of the rows
// than for all of them. Called single-threaded on our own tiles it keeps its bits, and its speed in fp32, but it does
// not read bf16, and widening the tiles for it costs a fifth of the time. Here bf16 is widened while packing, at no
// cost.
//
// How it works. c is divided into tiles, which OpenMP threads take as they become free. A tile is summed in fp32 in the
// thread's own scratch, DEPTH terms at a time:
//
// - Its rows of a are packed into panels of MR rows, its columns of b into panels of NR columns, term by term, so that
//   the innermost loop reads memory in order. The panels of a (264 KiB) stay in the L2 cache, the current one of b (16
//   KiB) in L1.
// - kernel() multiplies a panel of a by one of b: MR x NR sums, all in registers.
//
// When all terms of some columns have been added, finish() adds bias and old c and rounds the sums into c while they
// are still in the cache. Where the processor cannot predict accesses, memory is prefetched: the lines that pack()
// reads next, and the sums that kernel() adds to.
//
// Panels at the edges are padded with arbitrary values and computed like all others. So every element is summed by the
// same instructions in the same order, DEPTH terms one after the other, then the next DEPTH, and tiles can be chosen
// for speed alone.
#include "device/matmul.h"

#include <limits.h>
#include <omp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "device/gelu.cuh"

// LANES floats fill a vector register, and MR x 2 registers of sums leave a few free.
#if defined(__AVX512F__)
enum { LANES = 16, MR = 12 };
#elif defined(__AVX__)
enum { LANES = 8, MR = 6 };
#else
enum { LANES = 4, MR = 6 };
#endif
enum { NR = 2 * LANES };
enum { DEPTH = 256 };                 // terms that are packed at a time
enum { TILE_M = 264, TILE_N = 384 };  // largest tile; multiples of every MR and NR
enum { SMALL_M = 48, SMALL_N = 96 };  // about the smallest: smaller ones spend too much of their time on packing
enum { TILES_PER_THREAD = 4 };        // are enough to keep all threads busy nearly to the end; fewer must divide evenly
enum {
    GROUP_N = 96
};                    // columns of b that are packed at a time: enough to read whole cache lines in a
                      // row
enum { STRIP = 8 };   // terms that pack() copies at a time: few enough for their lines to stay in L1
enum { SPILL = 16 };  // pack() may write this far past the last panel
enum {
    SCRATCH = TILE_M * TILE_N + (TILE_M + GROUP_N) * DEPTH + SPILL
};  // floats: a tile of sums, panels of a and of b

typedef float Lanes __attribute__((vector_size(4 * LANES), may_alias));
typedef float Float8 __attribute__((vector_size(32)));
typedef uint32_t Bits8 __attribute__((vector_size(32)));
typedef int32_t Index8 __attribute__((vector_size(32)));
typedef uint16_t Half8 __attribute__((vector_size(16)));

static float *scratch;  // SCRATCH floats for each of scratch_threads threads
static int scratch_threads;

enum Ending { PLAIN, GELU, GELU_BACKWARD };

typedef struct {
    void *c, *pre;  // pre: what the GELU is given
    const void *a, *b, *bias;
    size_t m, n, k;
    int dtype, trans_a, trans_b, accumulate;
    enum Ending ending;
} Product;

static inline size_t smaller(size_t x, size_t y) { return x < y ? x : y; }

// bf16 is the upper half of a float; uint16_t stands for it in this file.
static inline float load(const float *p) { return *p; }

static inline float load(const uint16_t *p) {
    uint32_t bits = (uint32_t)*p << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline void load8(Float8 *x, const float *p) { memcpy(x, p, sizeof *x); }

static inline void load8(Float8 *x, const uint16_t *p) {
    Half8 h;
    memcpy(&h, p, sizeof h);
    *x = (Float8)(__builtin_convertvector(h, Bits8) << 16);
}

static inline void store(float *p, float x) { *p = x; }

static inline void store(uint16_t *p, float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    uint32_t nearest = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;  // halves to even
    uint32_t nan = bits >> 16 | 0x40;                             // rounding could carry a NaN over into infinity or
                                                                  // zero
    *p = (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? nan : nearest);
}

// Row i becomes column i, in three rounds that exchange blocks of 1, 2 and 4.
static inline void transpose8(Float8 r[8]) {
    Float8 t[8], u[8];
    for (int i = 0; i < 8; i += 2) {
        t[i] = __builtin_shuffle(r[i], r[i + 1], (Index8){ 0, 8, 2, 10, 4, 12, 6, 14 });
        t[i + 1] = __builtin_shuffle(r[i], r[i + 1], (Index8){ 1, 9, 3, 11, 5, 13, 7, 15 });
    }
    for (int i = 0; i < 8; i += 4) {
        for (int j = i; j < i + 2; j++) {
            u[j] = __builtin_shuffle(t[j], t[j + 2], (Index8){ 0, 1, 8, 9, 4, 5, 12, 13 });
            u[j + 2] = __builtin_shuffle(t[j], t[j + 2], (Index8){ 2, 3, 10, 11, 6, 7, 14, 15 });
        }
    }
    for (int j = 0; j < 4; j++) {
        r[j] = __builtin_shuffle(u[j], u[j + 4], (Index8){ 0, 1, 2, 3, 8, 9, 10, 11 });
        r[j + 4] = __builtin_shuffle(u[j], u[j + 4], (Index8){ 4, 5, 6, 7, 12, 13, 14, 15 });
    }
}

// Packs `depth` terms of `lines` lines (rows of a, columns of b) into panels of W lines: term q of line i goes to to[i
// / W * W * depth + q * W + i % W]. Lines that the last panel lacks are copies of its last one: what comes of them is
// not used. One of the strides is 1.
template <int W, typename T>
static void pack(float *__restrict to, const T *__restrict from, size_t line_stride, size_t term_stride, size_t lines,
                 size_t depth) {
    size_t done = 0;
    if (line_stride == 1) {  // full panels: a strip of some rows at a time, read along the rows, written along the
                             // panels
        done = lines / W * W;
        for (size_t strip = 0; strip < depth; strip += STRIP) {
            for (size_t i = 0; i < done; i += W) {
                for (size_t q = strip; q < smaller(strip + STRIP, depth); q++) {
                    __builtin_prefetch(from + smaller(q + STRIP, depth - 1) * term_stride + i);
                    for (size_t j = 0; j < W; j++) {
                        to[i * depth + q * W + j] = load(from + q * term_stride + i + j);
                    }
                }
            }
        }
    }
    // The others are transposed 8 x 8 at a time. Where 8 does not divide W, a block is wider than what is left of the
    // panel, and spills over into the first lines of the next term. These are written later: blocks go from the last
    // lines to the first.
    size_t blocks = line_stride == 1 ? 0 : depth / 8 * 8;
    for (; done < lines; done += W) {
        float *panel = to + done * depth;
        const T *source = from + done * line_stride;
        size_t width = smaller(W, lines - done);
        size_t ahead = done + 2 * W <= lines ? W * line_stride : 0;  // to the next panel
        for (size_t i = (W - 1) / 8 * 8 + 8; i >= 8; i -= 8) {
            const T *line[8];
            for (size_t j = 0; j < 8; j++) {
                line[j] = source + smaller(i - 8 + j, width - 1) * line_stride;
            }
            for (size_t q = 0; q < blocks; q += 8) {
                Float8 r[8];
#pragma GCC unroll 8
                for (size_t j = 0; j < 8; j++) {
                    load8(&r[j], line[j] + q);
                    __builtin_prefetch(line[j] + q + ahead);
                }
                transpose8(r);
#pragma GCC unroll 8
                for (size_t j = 0; j < 8; j++) {
                    memcpy(panel + (q + j) * W + i - 8, &r[j], sizeof r[j]);
                }
            }
        }
        for (size_t q = blocks; q < depth; q++) {
            for (size_t i = 0; i < W; i++) {
                panel[q * W + i] = load(source + smaller(i, width - 1) * line_stride + q * term_stride);
            }
        }
    }
}

// The MR x NR block of sums at c (rows of ldc floats, aligned) takes on, or from its first terms begins with, the
// products of a panel of a and a panel of b.
static inline void kernel(float *c, size_t ldc, const float *a, const float *b, size_t depth, bool first) {
    for (int i = 0; i < MR; i++) {
        __builtin_prefetch(c + i * ldc, 1);
    }
    Lanes sum[MR][2] = {};
#pragma GCC unroll 4
    for (size_t q = 0; q < depth; q++) {
        const Lanes b0 = *(const Lanes *)(b + q * NR);
        const Lanes b1 = *(const Lanes *)(b + q * NR + LANES);
#pragma GCC unroll 12
        for (int i = 0; i < MR; i++) {
            const float x = a[q * MR + i];
            sum[i][0] += x * b0;
            sum[i][1] += x * b1;
        }
    }
#pragma GCC unroll 12
    for (int i = 0; i < MR; i++) {
        Lanes *to = (Lanes *)(c + i * ldc);
        to[0] = first ? sum[i][0] : to[0] + sum[i][0];
        to[1] = first ? sum[i][1] : to[1] + sum[i][1];
    }
}

// A row of c that ends in a GELU or its derivative: of numbers that are stored, so that a kernel after the product
// gives the same bits.
template <typename X> static void finish_gelu(X *c, X *pre, size_t cols, enum Ending ending) {
    for (size_t j = 0; j < cols; j += PACK) {
        st(c + j, ending == GELU ? gelu(ld(pre + j)) : ld(c + j) * gelu_derivative(ld(pre + j)));
    }
}

// Adds bias and old c to the sums (rows of TILE_N floats), and stores them: rows x cols of c from (row, col) on are
// ready.
template <typename T, typename X, typename O>
static void finish(const Product *p, float *sums, size_t row, size_t col, size_t rows, size_t cols) {
    const T *bias = (const T *)p->bias;
    for (size_t i = 0; i < rows; i++) {
        size_t at = (row + i) * p->n + col;
        O *to = (O *)(p->ending == GELU ? p->pre : p->c) + at;
        float *sum = sums + i * TILE_N;
        if (bias) {
            for (size_t j = 0; j < cols; j++) {
                sum[j] += load(bias + col + j);
            }
        }
        if (p->accumulate) {
            for (size_t j = 0; j < cols; j++) {
                sum[j] += load(to + j);
            }
        }
        for (size_t j = 0; j < cols; j++) {
            store(to + j, sum[j]);
        }
        if (p->ending != PLAIN) {
            finish_gelu((X *)p->c + at, (X *)p->pre + at, cols, p->ending);
        }
    }
}

// T: the type of the numbers as this file loads and stores them, O: of those of c; X: as zero/device.cuh does.
template <typename T, typename X, typename O = T>
static void tile(const Product *p, size_t row, size_t col, size_t rows, size_t cols, float *room) {
    const T *a = (const T *)p->a;
    const T *b = (const T *)p->b;
    size_t a_line = p->trans_a ? 1 : p->k, a_term = p->trans_a ? p->m : 1;
    size_t b_line = p->trans_b ? p->k : 1, b_term = p->trans_b ? 1 : p->n;
    float *sums = room;
    float *panels_b = sums + TILE_M * TILE_N;
    float *panels_a = panels_b + GROUP_N * DEPTH;
    if (p->k == 0) {
        memset(sums, 0, TILE_M * TILE_N * sizeof *sums);
        finish<T, X, O>(p, sums, row, col, rows, cols);
    }
    for (size_t q = 0; q < p->k; q += DEPTH) {
        size_t depth = smaller(DEPTH, p->k - q);
        pack<MR>(panels_a, a + row * a_line + q * a_term, a_line, a_term, rows, depth);
        for (size_t group = 0; group < cols; group += GROUP_N) {
            size_t width = smaller(GROUP_N, cols - group);
            float *out = p->k > DEPTH ? sums + group
                                      : sums;  // sums that need not wait for more terms share a place, in
                                               // the cache
            pack<NR>(panels_b, b + (col + group) * b_line + q * b_term, b_line, b_term, width, depth);
            for (size_t j = 0; j < width; j += NR) {
                for (size_t i = 0; i < rows; i += MR) {
                    kernel(out + i * TILE_N + j, TILE_N, panels_a + i * depth, panels_b + j * depth, depth, q == 0);
                }
            }
            if (q + depth == p->k) {
                finish<T, X, O>(p, out, row, col + group, rows, width);
            }
        }
    }
}

static int scratch_reserve(int threads) {
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

static size_t pieces(size_t length, size_t piece) { return (length + piece - 1) / piece; }

// Computes the product at args, when its turn on the stream has come.
static void run(void *args) {
    const Product *p = (const Product *)args;
    size_t m = p->m, n = p->n;

    // As few tiles as fit the scratch, since each packs for itself; then twice as many, until the threads share them
    // fairly.
    size_t tile_m = pieces(pieces(m, pieces(m, TILE_M)), MR) * MR;
    size_t tile_n = pieces(pieces(n, pieces(n, TILE_N)), NR) * NR;
    size_t threads = smaller((size_t)scratch_threads, (size_t)omp_get_max_threads());
    size_t tiles = pieces(m, tile_m) * pieces(n, tile_n);
    while (tiles % threads != 0 && tiles < threads * TILES_PER_THREAD) {
        if (tile_m >= 2 * SMALL_M && (tile_m >= tile_n || tile_n < 2 * SMALL_N)) {
            tile_m = pieces(tile_m / 2, MR) * MR;
        } else if (tile_n >= 2 * SMALL_N) {
            tile_n = pieces(tile_n / 2, NR) * NR;
        } else {
            break;
        }
        tiles = pieces(m, tile_m) * pieces(n, tile_n);
    }
    size_t tiles_m = pieces(m, tile_m);
#pragma omp parallel for schedule(dynamic) num_threads((int)threads) if (tiles > 1)
    for (size_t t = 0; t < tiles; t++) {
        size_t row = t % tiles_m * tile_m, col = t / tiles_m * tile_n;
        size_t rows = smaller(tile_m, m - row), cols = smaller(tile_n, n - col);
        float *room = scratch + (size_t)omp_get_thread_num() * SCRATCH;
        if (p->dtype == MATMUL_F32) {
            tile<float, float>(p, row, col, rows, cols, room);
        } else if (p->dtype == MATMUL_BF16_F32) {
            tile<uint16_t, bf16, float>(p, row, col, rows, cols, room);
        } else {
            tile<uint16_t, bf16>(p, row, col, rows, cols, room);
        }
    }
}

static int enqueue(const Product *p, cudaStream_t stream) {
    uintptr_t bits = (uintptr_t)p->c | (uintptr_t)p->pre | (uintptr_t)p->a | (uintptr_t)p->b | (uintptr_t)p->bias;
    if (p->dtype < MATMUL_F32 || p->dtype > MATMUL_BF16_F32 ||
        (p->dtype == MATMUL_BF16_F32 && (p->bias != NULL || p->ending != PLAIN)) || p->m > INT_MAX || p->n > INT_MAX ||
        p->k > INT_MAX || (p->ending != PLAIN && (p->n % PACK != 0 || bits % 16 != 0))) {
        return cudaErrorInvalidValue;
    }
    if (p->m == 0 || p->n == 0) {
        return cudaSuccess;
    }
    int err = scratch_reserve(omp_get_max_threads());
    return err ? err : cuda_on_cpu_enqueue(stream, run, p, sizeof *p);
}

int matmul(void *c, const void *a, const void *b, const void *bias, int dtype, size_t m, size_t n, size_t k,
           int trans_a, int trans_b, int accumulate, cudaStream_t stream) {
    Product p = { c, NULL, a, b, bias, m, n, k, dtype, trans_a, trans_b, accumulate, PLAIN };
    return enqueue(&p, stream);
}

int matmul_gelu(void *c, void *pre, const void *a, const void *b, const void *bias, int dtype, size_t m, size_t n,
                size_t k, int trans_a, int trans_b, cudaStream_t stream) {
    Product p = { c, pre, a, b, bias, m, n, k, dtype, trans_a, trans_b, 0, GELU };
    return enqueue(&p, stream);
}

int matmul_gelu_backward(void *c, const void *pre, const void *a, const void *b, int dtype, size_t m, size_t n,
                         size_t k, int trans_a, int trans_b, cudaStream_t stream) {
    Product p = { c, (void *)pre, a, b, NULL, m, n, k, dtype, trans_a, trans_b, 0, GELU_BACKWARD };
    return enqueue(&p, stream);
}

void matmul_set_tf32(int allow) { (void)allow; }

void matmul_destroy(void) {
    free(scratch);
    scratch = NULL;
    scratch_threads = 0;
}
