// Layernorm forward (a warp per row) and backward (a block per chunk of rows).
#ifndef GPT2_LAYERNORM_CUH
#define GPT2_LAYERNORM_CUH

#include "gpt2/row_sums.cuh"

constexpr float LAYERNORM_EPSILON = 1e-5f;
constexpr size_t LAYERNORM_SHARED = 96 << 10;  // bytes that a block of the backward may use: for 12288 channels

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

// Rows of a chunk that a block takes at a time, so that they are in the L1 cache when they are read again.
constexpr int LAYERNORM_ROWS = SUM_THREADS / 32;

// First each warp takes rows: the two means of a row, then dinp. Then each thread adds these rows, in its columns, to
// the sums of dweight and dbias; between, these are in shared memory, or, if there is no room for them, where they are
// written in the end, to `partial`.
template <bool IN_SHARED>
__global__ void __launch_bounds__(SUM_THREADS, 3)
    layernorm_backward_kernel(floatX *__restrict__ dinp, float *__restrict__ partial, const floatX *__restrict__ dout,
                              const floatX *__restrict__ inp, const floatX *__restrict__ weight,
                              const float *__restrict__ mean, const float *__restrict__ rstd, size_t rows,
                              size_t per_chunk, int C) {
    DYNAMIC_SHARED(float, shared);
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, warps = blockDim.x / WARP;
    const size_t begin = blockIdx.x * per_chunk, end = min(begin + per_chunk, rows);
    float *dweight = partial + (size_t)blockIdx.x * 2 * C, *dbias = dweight + C;
    float *sums = IN_SHARED ? shared : dweight;
    for (size_t first = begin; first < end; first += LAYERNORM_ROWS) {
        const size_t last = min(first + LAYERNORM_ROWS, end);
        for (size_t row = first + warp; row < last; row += warps) {
            const float m = mean[row], s = rstd[row];
            fvec sum_d = splat(0), sum_dn = splat(0);
            for (int c = lane * PACK; c < C; c += WARP * PACK) {
                const fvec d = ld(dout + row * C + c) * ld(weight + c);
                sum_d += d;
                sum_dn += d * ((ld(inp + row * C + c) - m) * s);
            }
            const float a = warp_sum(pack_sum(sum_d)) / C, b = warp_sum(pack_sum(sum_dn)) / C;
            for (int c = lane * PACK; c < C; c += WARP * PACK) {
                const fvec d = ld(dout + row * C + c), n = (ld(inp + row * C + c) - m) * s;
                st(dinp + row * C + c, ld(dinp + row * C + c) + (d * ld(weight + c) - a - n * b) * s);
            }
        }
        __syncthreads();  // keeps the warps at the same rows
        for (int c = threadIdx.x * PACK; c < C; c += blockDim.x * PACK) {
            fvec w = first == begin ? splat(0) : ld(sums + c), v = first == begin ? splat(0) : ld(sums + C + c);
            UNROLL for (size_t row = first; row < last; row++) {
                const fvec d = ld(dout + row * C + c), n = (ld(inp + row * C + c) - mean[row]) * rstd[row];
                w += d * n;
                v += d;
            }
            if (last < end) {
                st(sums + c, w);
                st(sums + C + c, v);
            } else {
                st(dweight + c, w);
                st(dbias + c, v);
            }
        }
    }
}

// Adds to dinp, the gradient of the residual stream that bypasses the layernorm. partial: max_chunks(rows) * 2 C
// floats.
static void layernorm_backward(floatX *dinp, floatX *dweight, floatX *dbias, float *partial, const floatX *dout,
                               const floatX *inp, const floatX *weight, const float *mean, const float *rstd,
                               size_t rows, size_t C, cudaStream_t stream) {
    const size_t per_chunk = chunk_rows(rows), chunks = ceil_div(rows, per_chunk), shared = 2 * C * sizeof(float);
    if (WARP > 1 && shared <= LAYERNORM_SHARED)
        LAUNCH(chunks, SUM_THREADS, shared, stream, layernorm_backward_kernel<true>, dinp, partial, dout, inp, weight,
               mean, rstd, rows, per_chunk, (int)C);
    else
        LAUNCH(chunks, SUM_THREADS, 0, stream, layernorm_backward_kernel<false>, dinp, partial, dout, inp, weight, mean,
               rstd, rows, per_chunk, (int)C);
    add_partials(dweight, dbias, partial, chunks, C, C, stream);
}

#endif
