// The graphs of causal attention for cuDNN, and the descriptors that they are made of. Internal to attention_cudnn.c.
//
// cuDNN takes attention as a graph of small operations, and has kernels (engines) that compute certain graphs in one
// go, so that scores never leave the chip. These graphs are among them; other ways to write the same formulas find no
// engine. Tensors inside a graph are virtual, and have no memory. With S the scores, P the probabilities, *
// elementwise:
//
//     forward    S = scale q k^T, masked    lse = max S + log(sum exp(S - max S))
//                P = exp(S - max S) / sum    out = P v
//     backward   D = row sums of dout * out    P = exp(S - lse)    dv = P^T dout
//                dS = scale P * (dout v^T - D)    dk = dS^T q    dq = dS k
//
// lse is the natural logarithm over scaled scores, as in the trainer's own kernels.
#ifndef DEV_CUDNN_GRAPH_H
#define DEV_CUDNN_GRAPH_H

#include <cudnn.h>
#include <stddef.h>
#include <stdint.h>

#include "device/attention.h"

enum { MOST_DESCRIPTORS = 128, MOST_OPERATIONS = 32 };

typedef cudnnBackendDescriptor_t Descriptor;

// The tensors that have memory, or are numbers that the host gives; ids from INSIDE on are of virtual tensors.
enum { Q = 1, K, V, OUT, LSE, DOUT, DQ, DK, DV, ROW_SUMS, SCALE, MASKED, ONE, INSIDE };

// A graph while it is built, and the plan made from it. After the first failure the functions below do nothing.
typedef struct Graph {
    size_t B, T, NH, HS;
    int backward;
    int failed;
    Descriptor made[MOST_DESCRIPTORS];  // all, for destruction
    size_t num_made;
    Descriptor operations[MOST_OPERATIONS];
    int64_t num_operations;
    int64_t next_id;
    Descriptor plan;
    AttentionCudnnPlan found;
} Graph;

extern char attention_cudnn_message[1024];  // of the last failure

// Adds the operations to an empty graph, with its sizes set and next_id INSIDE.
void attention_graph_forward(Graph *g);
void attention_graph_backward(Graph *g);
void attention_graph_destroy(Graph *g);  // NULL is fine

// Returns 0 if status is success, else -1 with a message. The graph version also marks the graph as failed.
int cudnn_failed(cudnnStatus_t status, const char *what);
void graph_check(Graph *g, cudnnStatus_t status, const char *what);

// Descriptors, which live as long as the graph: cuDNN does not document which of them it still reads.
Descriptor graph_make(Graph *g, cudnnBackendDescriptorType_t type);
void graph_finish(Graph *g, Descriptor d, const char *what);
void graph_set(Graph *g, Descriptor d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
               const void *value);
void graph_set_many(Graph *g, Descriptor d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                    int64_t count, const void *values);
void graph_set_descriptor(Graph *g, Descriptor d, cudnnBackendAttributeName_t name, Descriptor value);

#endif
