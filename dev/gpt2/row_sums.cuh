// Sums over rows (gradients of biases and of layernorm weights), deterministic in two steps:
//
//     rows [0, per_chunk) -> partial 0 |
//     rows [per_chunk, 2 per_chunk) -> partial 1 | added in ascending order -> out
//     ...                              |
//
// A block adds the rows of a chunk to an fp32 partial sum, then the partial sums are added. The cut into chunks depends
// on the number of rows alone, never on the device.
#ifndef GPT2_SUMS_CUH
#define GPT2_SUMS_CUH

#include "gpt2/common.cuh"

#define MIN_CHUNK_ROWS 16
#define MAX_CHUNKS     256
#define SUM_THREADS    256

static size_t chunk_rows(size_t rows) {
    const size_t n = ceil_div(rows, MAX_CHUNKS);
    return n > MIN_CHUNK_ROWS ? n : MIN_CHUNK_ROWS;
}

// An upper bound on the number of chunks for up to `rows` rows.
static size_t max_chunks(size_t rows) {
    const size_t n = ceil_div(rows, MIN_CHUNK_ROWS);
    return n < MAX_CHUNKS ? n : MAX_CHUNKS;
}

// Columns of a block of add_partials.
constexpr int PARTIAL_PACKS = 4, PARTIAL_COLUMNS = PARTIAL_PACKS * PACK;

// All threads load, so that all chunks are on their way at once; then one thread for each pack adds them in order.
__global__ void __launch_bounds__(SUM_THREADS)
    add_partials_kernel(floatX *__restrict__ out, floatX *__restrict__ more, const float *__restrict__ partial,
                        int chunks, size_t n, size_t n_more) {
    __shared__ __align__(16) float rows[MAX_CHUNKS * PARTIAL_COLUMNS];
    const size_t stride = n + n_more, first = (size_t)blockIdx.x * PARTIAL_COLUMNS;
    const int packs = min((size_t)PARTIAL_PACKS, (stride - first) / PACK);
    UNROLL for (int i = threadIdx.x; i < chunks * PARTIAL_PACKS; i += blockDim.x) {
        const int chunk = i / PARTIAL_PACKS, pack = i % PARTIAL_PACKS;
        if (pack < packs) st(rows + i * PACK, ld(partial + chunk * stride + first + pack * PACK));
    }
    __syncthreads();
    for (int pack = threadIdx.x; pack < packs; pack += blockDim.x) {
        const size_t c = first + pack * PACK;
        fvec sum = splat(0);
        for (int i = 0; i < chunks; i++) sum += ld(rows + i * PARTIAL_COLUMNS + pack * PACK);
        st(c < n ? out + c : more + (c - n), sum);
    }
}

// out[n] and more[n_more] are the sums over chunks of partial[chunks, n + n_more].
static void add_partials(floatX *out, floatX *more, const float *partial, size_t chunks, size_t n, size_t n_more,
                         cudaStream_t stream) {
    LAUNCH(ceil_div(n + n_more, PARTIAL_COLUMNS), SUM_THREADS, 0, stream, add_partials_kernel, out, more, partial,
           (int)chunks, n, n_more);
}

// A GPU has a warp for a chunk and 256 columns, whose sums stay in registers, and several rows on their way. A CPU
// takes a few rows of all columns at a time: sums are in its cache, and memory is read in order.
#define BIAS_THREADS 32
constexpr int BIAS_ROWS = WARP == 1 ? 4 : 8;

__global__ void __launch_bounds__(BIAS_THREADS)
    bias_partial_kernel(float *__restrict__ partial, const floatX *__restrict__ dout, size_t rows, size_t per_chunk,
                        size_t n, size_t chunks) {
    const size_t chunk = blockIdx.x % chunks, begin = chunk * per_chunk, end = min(begin + per_chunk, rows);
    const size_t column = (blockIdx.x / chunks * blockDim.x + threadIdx.x) * PACK;
    float *to = partial + chunk * n;
    if constexpr (WARP == 1) {
        for (size_t r = begin; r < end; r += BIAS_ROWS) {
            const size_t last = min(r + BIAS_ROWS, end);
            for (size_t c = 0; c < n; c += PACK) {
                fvec sum = r == begin ? splat(0) : ld(to + c);
                for (size_t i = r; i < last; i++) sum += ld(dout + i * n + c);
                st(to + c, sum);
            }
        }
    } else if (column < n) {
        const floatX *in = dout + begin * n + column;
        fvec sum = splat(0);
        size_t left = end - begin;
        for (; left >= BIAS_ROWS; left -= BIAS_ROWS) {
            fvec row[BIAS_ROWS];
            UNROLL for (int i = 0; i < BIAS_ROWS; i++) row[i] = ld(in + i * n);
            UNROLL for (int i = 0; i < BIAS_ROWS; i++) sum += row[i];
            in += BIAS_ROWS * n;
        }
        for (; left > 0; left--, in += n) sum += ld(in);
        st(to + column, sum);
    }
}

// dbias[n] = column sums of dout[rows, n]. partial: max_chunks(rows) * n floats.
static void bias_backward(floatX *dbias, float *partial, const floatX *dout, size_t rows, size_t n,
                          cudaStream_t stream) {
    const size_t per_chunk = chunk_rows(rows), chunks = ceil_div(rows, per_chunk);
    const size_t columns = WARP == 1 ? n : BIAS_THREADS * PACK;  // of a block
    LAUNCH(chunks * ceil_div(n, columns), BIAS_THREADS, 0, stream, bias_partial_kernel, partial, dout, rows, per_chunk,
           n, chunks);
    add_partials(dbias, NULL, partial, chunks, n, 0, stream);
}

#endif
