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

// Sorts the rows of inputs by token (counting sort), on the host, so that each row of dwte has one writer. place: V + 1
// elements for its own use. Returns how many distinct tokens there are.
static inline size_t sort_token_rows(const TokenRows *rows, const int *inputs, size_t R, size_t V, int *place) {
    memset(place, 0, (V + 1) * sizeof(int));
    for (size_t r = 0; r < R; r++) place[inputs[r] + 1]++;
    size_t distinct = 0;
    for (size_t v = 0; v < V; v++) {
        if (place[v + 1]) {
            rows->token[distinct] = (int)v;
            rows->start[distinct++] = place[v];
        }
        place[v + 1] += place[v];
    }
    rows->start[distinct] = (int)R;
    for (size_t r = 0; r < R; r++) rows->position[place[inputs[r]]++] = (int)r;
    return distinct;
}

#define TOKEN_THREADS 256
constexpr int TOKEN_COLUMNS = WARP * PACK;  // of a warp
constexpr int TOKEN_ROWS = 4;               // that a warp has on their way at a time
constexpr int FEW_ROWS = 32;                // of a token for which one warp is enough

// A block has as many tokens as warps, and TOKEN_COLUMNS columns (on a CPU all). A token with few rows belongs to one
// warp. With the commonest tokens, which have thousands, all warps help: their rows are on their way at the same time,
// and the warps add them in turn, in order. Each element of dwte has one writer.
__global__ void __launch_bounds__(TOKEN_THREADS, 4)
    wte_backward_kernel(floatX *__restrict__ dwte, const floatX *__restrict__ dout, TokenRows rows, int distinct, int C,
                        int groups) {
    __shared__ __align__(16) float sums[TOKEN_COLUMNS];  // from one turn to the next
    __shared__ int tokens[TOKEN_THREADS / 32], begins[TOKEN_THREADS / 32], ends[TOKEN_THREADS / 32];
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, warps = blockDim.x / WARP;
    if ((int)threadIdx.x < warps) {  // the commonest are neighbours: not in one block
        const int k = threadIdx.x, i = blockIdx.x / groups + k * (gridDim.x / groups);
        tokens[k] = i < distinct ? rows.token[i] : 0;
        begins[k] = i < distinct ? rows.start[i] : 0;
        ends[k] = i < distinct ? rows.start[i + 1] : 0;
    }
    __syncthreads();
    for (int first = blockIdx.x % groups * TOKEN_COLUMNS; first < C; first += groups * TOKEN_COLUMNS) {
        const int c = first + lane * PACK;
        for (int k = 0; k < warps; k++) {
            const int begin = begins[k], end = ends[k], few = end - begin <= FEW_ROWS;
            const int team = few ? 1 : warps, me = few ? 0 : warp;
            if (few && k != warp) continue;
            floatX *out = dwte + (size_t)tokens[k] * C + c;
            fvec row[TOKEN_ROWS], sum = splat(0);
            const auto load = [&](int from) {
                UNROLL for (int j = 0; j < TOKEN_ROWS; j++)
                    row[j] = c < C && from + j < end ? ld(dout + (size_t)rows.position[from + j] * C + c) : splat(0);
            };
            load(begin + me * TOKEN_ROWS);
            for (int now = begin, turn = 0; now < end; now += TOKEN_ROWS, turn = turn + 1 < team ? turn + 1 : 0) {
                if (turn == me && c < C) {
                    if (now == begin)
                        sum = ld(out);
                    else if (!few)
                        sum = ld(sums + lane * PACK);
                    UNROLL for (int j = 0; j < TOKEN_ROWS; j++) {
                        if (now + j < end) sum += row[j];
                    }
                    if (now + TOKEN_ROWS >= end)
                        st(out, sum);
                    else if (!few)
                        st(sums + lane * PACK, sum);
                    load(now + team * TOKEN_ROWS);
                }
                if (!few) __syncthreads();
            }
        }
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
    const size_t groups = WARP == 1 ? 1 : ceil_div(C, TOKEN_COLUMNS);  // of columns
    LAUNCH(ceil_div(distinct, block_threads(TOKEN_THREADS) / WARP) * groups, TOKEN_THREADS, 0, stream,
           wte_backward_kernel, dwte, dout, rows, (int)distinct, (int)C, (int)groups);
    LAUNCH(T, ENCODER_THREADS, 0, stream, wpe_backward_kernel, dwpe, dout, (int)B, (int)T, (int)C);
}

#endif
