// Classifier: softmax, cross-entropy and its gradient, fused; a block per row.
#ifndef GPT2_CLASSIFIER_CUH
#define GPT2_CLASSIFIER_CUH

#include <float.h>

#include "gpt2/common.cuh"

#define CLASSIFIER_THREADS 512  // two blocks on a multiprocessor: while one waits for its sums, the other loads

// Columns V and up are padding and count as -infinity.
DEV fvec ld_logits(const floatX *row, int c, int V) {
    fvec x = ld(row + c);
    if (c + PACK > V) {
        UNROLL for (int k = 0; k < PACK; k++) x[k] = c + k < V ? x[k] : -INFINITY;
    }
    return x;
}

// One sweep over the row computes the largest logit and the sum of exp ("online softmax"); with train, a second sweep
// overwrites the logits with their gradient. In the first, each lane of a thread's packs keeps its own top and sum of
// exp(x - top); a new top scales the sum by exp(old top - new top), once for every few packs, which a GPU loads
// together. NaN and +infinity make the loss NaN. A loss that is not finite makes a gradient that is not, so that the
// step is skipped.
__global__ void __launch_bounds__(CLASSIFIER_THREADS, 2)
    classifier_kernel(floatX *__restrict__ logits, float *__restrict__ losses, const int *__restrict__ targets,
                      float dloss, int V, int Vp, int train) {
    constexpr int TOGETHER = 4;  // packs
    const size_t row = blockIdx.x;
    floatX *x = logits + row * Vp;
    const int target = targets[row];
    const float target_logit = ld_one(x + target);
    fvec tops = splat(-FLT_MAX), sums = splat(0);  // -infinity minus a padding column would be NaN
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
    if (!(target_logit >= -FLT_MAX)) dloss = NAN;
    for (int c = threadIdx.x * PACK; c < Vp; c += blockDim.x * PACK) {
        fvec d = splat(0);
        if (c < V) d = vexp(ld_logits(x, c, V) - top) * scale;
        if (c / PACK == target / PACK) {
            UNROLL for (int k = 0; k < PACK; k++) d[k] = c + k == target ? d[k] - dloss : d[k];
        }
        st(x + c, d);
    }
}

// losses[R] = -log softmax(logits)[target]; with train, logits[R, Vp] become dloss times the gradient of the loss.
static void classifier(floatX *logits, float *losses, const int *targets, float dloss, size_t R, size_t V, size_t Vp,
                       int train, cudaStream_t stream) {
    LAUNCH(R, CLASSIFIER_THREADS, 0, stream, classifier_kernel, logits, losses, targets, dloss, (int)V, (int)Vp, train);
}

#endif
