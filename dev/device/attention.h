// Causal attention by cuDNN, in BF16 builds for a GPU where cuDNN was found (USE_CUDNN=0 leaves it out):
// dev/device/cuda/attention_cudnn.c. In other builds ATTENTION_CUDNN is 0, nothing here is linked, and the trainer uses
// its own kernels. A run never falls back from one to the other: a shape that cuDNN does not support is an error.
//
// Heads have size HS; C = NH x HS. Layouts are the trainer's: qkv and dqkv [B, T, 3, NH, HS], out and dout [B, T, NH,
// HS], in bf16; lse [B, NH, T] in fp32, the log of the sum of exp(scores), where scores are q . k / sqrt(HS) for keys
// up to the query's own position.
//
// Calls return 0, or -1 with a message in attention_cudnn_error(). Call them from one host thread and with one device
// per process.
#ifndef DEV_ATTENTION_H
#define DEV_ATTENTION_H

#include <stddef.h>

#include "cuda_runtime_api.h"  // cudaStream_t; the CPU build finds the one of dev/device/cpu

#ifdef USE_CUDNN
#define ATTENTION_CUDNN 1
#else
#define ATTENTION_CUDNN 0
#endif

#ifdef __cplusplus
extern "C" {
#endif

// Bytes of scratch for both calls: a function of the shape alone, so that plans and books know it without a GPU. Never
// less for a larger B or T.
size_t attention_cudnn_scratch(size_t B, size_t T, size_t NH);

// Makes the plans for a shape, which takes a second (cuDNN compiles kernels); the calls below find them, or make them
// at their first use.
int attention_cudnn_prepare(size_t B, size_t T, size_t NH, size_t HS, int backward);

// Writes out and lse. Queued on stream, as the next.
int attention_cudnn_forward(void *out, float *lse, void *scratch, const void *qkv, size_t B, size_t T, size_t NH,
                            size_t HS, cudaStream_t stream);

// Writes dqkv: the same bits in every run. out and lse are the forward's.
int attention_cudnn_backward(void *dqkv, void *scratch, const void *dout, const void *out, const void *qkv,
                             const float *lse, size_t B, size_t T, size_t NH, size_t HS, cudaStream_t stream);

// Frees plans and handle, when nothing is queued or running. The next call makes new ones.
void attention_cudnn_destroy(void);

// What went wrong last, with what to do about it.
const char *attention_cudnn_error(void);

// "cuDNN 9.19.0", the library that is loaded.
const char *attention_cudnn_name(void);

// What cuDNN plans on a device that need not be here, described in JSON as cuDNN does (maxThreadsPerBlock, deviceVer,
// ...); nothing is kept. For tests.
typedef struct AttentionCudnnPlan {
    size_t candidates;  // engine configurations that cuDNN suggests
    size_t sequences;   // of one call: B in the forward, maybe fewer in the backward
    size_t workspace;   // bytes, of the one chosen; part of the scratch
} AttentionCudnnPlan;
int attention_cudnn_plan_for(const char *device_json, size_t B, size_t T, size_t NH, size_t HS, int backward,
                             AttentionCudnnPlan *out);

#ifdef __cplusplus
}
#endif
#endif
