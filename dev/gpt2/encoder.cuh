// Encoder: token and position embeddings, forward and backward.
#ifndef GPT2_ENCODER_CUH
#define GPT2_ENCODER_CUH

#include "gpt2/common.cuh"

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

// The rows of each distinct token, in ascending order: token[i] occurs in rows position[start[i]], ...,
// position[start[i + 1] - 1]. For inputs 7 3 7: token 3 7, start 0 1 3, position 1 0 2.
typedef struct TokenRows {
    int *token, *start, *position;  // [R], [R + 1], [R]
} TokenRows;

// A block per distinct token, so no two blocks write the same row of dwte. (8 resident blocks on a multiprocessor are
// enough; for more, the compiler would spill registers.)
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

// Adds to dwte, which already holds the gradient of the head. Rows T and up of dwpe stay zero.
static void encoder_backward(floatX *dwte, floatX *dwpe, const floatX *dout, TokenRows rows, size_t distinct, size_t B,
                             size_t T, size_t C, cudaStream_t stream) {
    LAUNCH(distinct, ENCODER_THREADS, 0, stream, wte_backward_kernel, dwte, dout, rows, (int)C);
    LAUNCH(T, ENCODER_THREADS, 0, stream, wpe_backward_kernel, dwpe, dout, (int)B, (int)T, (int)C);
}

#endif
