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

// out[n] = the sum over chunks of partial[chunk * stride + ...].
static void add_partials(floatX *out, const float *partial, size_t chunks, size_t stride, size_t n,
                         cudaStream_t stream) {
    LAUNCH(ceil_div(n, 32 * PACK), 32, 0, stream, add_partials_kernel, out, partial, (int)chunks, stride, n);
}

__global__ void __launch_bounds__(SUM_THREADS)
    bias_partial_kernel(float *__restrict__ partial, const floatX *__restrict__ dout, size_t rows, size_t per_chunk,
                        size_t n) {
    const size_t begin = blockIdx.x * per_chunk, end = min(begin + per_chunk, rows);
    float *sum = partial + blockIdx.x * n;
    for (size_t r = begin; r < end; r++) {  // a thread keeps its columns: no barrier
        for (size_t c = threadIdx.x * PACK; c < n; c += blockDim.x * PACK) {
            const fvec before = r == begin ? splat(0) : ld(sum + c);
            st(sum + c, before + ld(dout + r * n + c));
        }
    }
}

// dbias[n] = column sums of dout[rows, n]. partial: max_chunks(rows) * n floats.
static void bias_backward(floatX *dbias, float *partial, const floatX *dout, size_t rows, size_t n,
                          cudaStream_t stream) {
    const size_t per_chunk = chunk_rows(rows), chunks = ceil_div(rows, per_chunk);
    LAUNCH(chunks, SUM_THREADS, 0, stream, bias_partial_kernel, partial, dout, rows, per_chunk, n);
    add_partials(dbias, partial, chunks, n, n, stream);
}

#endif
