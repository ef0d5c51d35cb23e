// Causal attention by cuDNN (dev/device/attention.h): plans, and how they are run. The graphs are in cudnn_graph.c.
// Only cuDNN's C interface is used, so the library needs no C++ headers beside it.
//
// The same bits in every run. A plan is a function of the shape, the device and the version of cuDNN alone: of the
// engines that cuDNN's heuristics suggest, best first, the first one is taken that fits into the scratch. cuDNN's usual
// backward adds up the parts of dq by atomics, in any order, and no numerical note of cuDNN's tells. What makes our
// backward deterministic is the graph: dq = dS k is written straight to dq, with no fp32 sum that could be added to.
// Engines for it keep dS, in bf16, and multiply it by k at the end. The workspace that they ask for shows it, 2 T^2
// bytes a head: an engine that asks for less uses another algorithm, and is refused. To bound that cost, the backward
// takes as many sequences at a time as SCRATCH_LIMIT allows, but at least one.
#include "device/attention.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/cuda/cudnn_graph.h"

#ifndef PRECISION_BF16
#error "USE_CUDNN=1 is for PRECISION=BF16: cuDNN has no flash attention in FP32"
#endif
#if CUDNN_VERSION < 91000
#error "USE_CUDNN=1 needs cuDNN 9.10 or later: install a newer one, or make USE_CUDNN=0"
#endif

static const size_t SCRATCH_LIMIT = (size_t)512 << 20;
static const size_t SCRATCH_EXTRA = 4096;  // of an engine, beside dS: counters and the like
enum { MOST_CONFIGS = 16, MOST_NOTES = 32, MOST_PLANS = 64 };

// Where a plan is to run: on the device of a handle, or on one that is only described. One of them is NULL.
typedef struct Target {
    cudnnHandle_t handle;
    Descriptor device;
} Target;

static Graph *plans[MOST_PLANS];  // the oldest makes room when there are more shapes than this
static size_t num_plans;          // ever made
static cudnnHandle_t handle;

const char *attention_cudnn_error(void) { return attention_cudnn_message; }

const char *attention_cudnn_name(void) {
    static char name[32];
    const size_t v = cudnnGetVersion();  // 91900 is 9.19.0
    snprintf(name, sizeof name, "cuDNN %zu.%zu.%zu", v / 10000, v / 100 % 100, v % 100);
    return name;
}

// ---------------------------------------------------------------------------------------------------------------------
// Plans

static size_t round_up(size_t n, size_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// The scratch begins with the row sums of dout * out.
static size_t row_sums_bytes(size_t B, size_t T, size_t NH) { return round_up(B * NH * T * sizeof(float), 256); }

// dS of one sequence. The engines work on tiles of up to 128 x 128.
static size_t sequence_bytes(size_t T, size_t NH) { return 2 * NH * round_up(T, 128) * round_up(T, 128); }

static size_t workspace_bytes(size_t B, size_t T, size_t NH) {
    const size_t one = sequence_bytes(T, NH), most = one > SCRATCH_LIMIT ? one : SCRATCH_LIMIT;
    return (B * one < most ? B * one : most) + SCRATCH_EXTRA;
}

size_t attention_cudnn_scratch(size_t B, size_t T, size_t NH) {
    return row_sums_bytes(B, T, NH) + workspace_bytes(B, T, NH);
}

// Sequences that one call of the backward takes: as many as fit, in calls that are as equal as can be.
static size_t backward_batch(size_t B, size_t T, size_t NH) {
    const size_t fit = (workspace_bytes(B, T, NH) - SCRATCH_EXTRA) / sequence_bytes(T, NH);
    const size_t calls = (B + fit - 1) / fit;
    return (B + calls - 1) / calls;
}

// Does cuDNN itself say of the engine of a configuration that it adds in an order that changes from run to run? (What
// it does not say: see above.)
static int says_random(Graph *g, Descriptor config) {
    cudnnBackendNumericalNote_t notes[MOST_NOTES];
    int64_t count = 0;
    Descriptor engine = graph_make(g, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    if (g->failed) {
        return 0;
    }
    graph_check(g,
                cudnnBackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count,
                                         &engine),
                "an engine");
    if (!g->failed) {
        graph_check(g,
                    cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                                             MOST_NOTES, &count, notes),
                    "an engine's notes");
    }
    for (int64_t i = 0; !g->failed && i < count && i < MOST_NOTES; i++) {
        if (notes[i] == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC) {
            return 1;
        }
    }
    return 0;
}

// Bytes of dS in one call of the backward, without the gaps that tiles make.
static size_t kept_bytes(const Graph *g) { return g->backward ? 2 * g->B * g->NH * g->T * g->T : 0; }

// Makes a plan of a configuration, and keeps it if it is one that we can use. A failure that is of the moment (memory,
// driver) is an error: the next configuration would give other bits than another rank has.
static void try_config(Graph *g, const Target *target, Descriptor config, size_t workspace) {
    int64_t bytes = 0, count = 0;
    Descriptor plan = graph_make(g, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    if (target->handle != NULL) {
        graph_set(g, plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, &target->handle);
    } else {
        graph_set_descriptor(g, plan, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, target->device);
    }
    graph_set_descriptor(g, plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
    if (g->failed) {
        return;
    }
    cudnnStatus_t status = cudnnBackendFinalize(plan);
    if (status / 1000 * 1000 == CUDNN_STATUS_NOT_SUPPORTED) {
        return;
    }
    graph_check(g, status, "making a plan");
    if (!g->failed) {
        graph_check(g,
                    cudnnBackendGetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1,
                                             &count, &bytes),
                    "a plan's workspace");
    }
    if (!g->failed && (size_t)bytes <= workspace && (size_t)bytes >= kept_bytes(g)) {
        g->plan = plan;
        g->found.workspace = (size_t)bytes;
    }
}

static void choose_plan(Graph *g, const Target *target, size_t workspace) {
    const cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    Descriptor graph = graph_make(g, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    if (target->handle != NULL) {
        graph_set(g, graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, &target->handle);
    }
    graph_set_many(g, graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, g->num_operations,
                   g->operations);
    graph_finish(g, graph, "the graph of attention");

    Descriptor heuristics = graph_make(g, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    graph_set_descriptor(g, heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
    graph_set(g, heuristics, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, &mode);
    if (target->handle == NULL) {
        graph_set_descriptor(g, heuristics, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, target->device);
    }
    graph_finish(g, heuristics, "finding an engine");

    Descriptor configs[MOST_CONFIGS];
    int64_t count = 0;
    for (int i = 0; i < MOST_CONFIGS; i++) {
        configs[i] = graph_make(g, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    }
    if (!g->failed) {
        graph_check(g,
                    cudnnBackendGetAttribute(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                             MOST_CONFIGS, &count, configs),
                    "the engines found");
    }
    if (g->failed) {
        return;
    }
    g->found.candidates = (size_t)(count < MOST_CONFIGS ? count : MOST_CONFIGS);
    for (size_t i = 0; i < g->found.candidates && !g->failed && g->plan == NULL; i++) {
        if (!says_random(g, configs[i])) {
            try_config(g, target, configs[i], workspace);
        }
    }
    if (!g->failed && g->plan == NULL) {
        snprintf(attention_cudnn_message, sizeof attention_cudnn_message,
                 "%s has no %s for B %zu, T %zu, %zu heads of %zu on this device "
                 "(of %zu that it suggests): make USE_CUDNN=0, or use heads of 64 or 128",
                 attention_cudnn_name(), g->backward ? "deterministic backward of attention" : "attention", g->B, g->T,
                 g->NH, g->HS, g->found.candidates);
        g->failed = 1;
    }
}

// Sizes beyond these are beyond any GPU's memory, and would overflow below.
static int sizes_are_sane(size_t B, size_t T, size_t NH, size_t HS) {
    const size_t most = (size_t)1 << 20;
    if (B > 0 && T > 0 && NH > 0 && HS > 0 && B <= most && T <= most && NH <= most && HS <= most / NH &&
        B * T <= most << 10) {
        return 1;
    }
    snprintf(attention_cudnn_message, sizeof attention_cudnn_message,
             "attention: B %zu, T %zu, %zu heads of %zu: a size is 0 or too large for cuDNN: make USE_CUDNN=0", B, T,
             NH, HS);
    return 0;
}

// NULL on failure.
static Graph *plan_make(const Target *target, size_t B, size_t T, size_t NH, size_t HS, int backward) {
    Graph *g = calloc(1, sizeof *g);
    if (g == NULL) {
        snprintf(attention_cudnn_message, sizeof attention_cudnn_message, "attention: the host's memory is exhausted");
        return NULL;
    }
    g->B = B;
    g->T = T;
    g->NH = NH;
    g->HS = HS;
    g->backward = backward;
    g->next_id = INSIDE;
    if (backward) {
        attention_graph_backward(g);
    } else {
        attention_graph_forward(g);
    }
    choose_plan(g, target, workspace_bytes(B, T, NH));
    if (g->failed) {
        attention_graph_destroy(g);
        return NULL;
    }
    return g;
}

int attention_cudnn_plan_for(const char *device_json, size_t B, size_t T, size_t NH, size_t HS, int backward,
                             AttentionCudnnPlan *out) {
    Target target = { NULL, NULL };
    memset(out, 0, sizeof *out);
    if (!sizes_are_sane(B, T, NH, HS) ||
        cudnn_failed(cudnnBackendCreateDescriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &target.device), "a device")) {
        return -1;
    }
    int status = -1;
    if (!cudnn_failed(cudnnBackendSetAttribute(target.device, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION,
                                               CUDNN_TYPE_CHAR, (int64_t)strlen(device_json) + 1, device_json),
                      "the description of a device") &&
        !cudnn_failed(cudnnBackendFinalize(target.device), "the description of a device")) {
        Graph *g = plan_make(&target, backward ? backward_batch(B, T, NH) : B, T, NH, HS, backward);
        status = g != NULL ? 0 : -1;
        if (g != NULL) {
            *out = g->found;
            out->sequences = g->B;
        }
        attention_graph_destroy(g);
    }
    (void)cudnnBackendDestroyDescriptor(target.device);
    return status;
}

// The plan for a shape, made when it is asked for the first time. NULL on failure.
static Graph *plan_find(size_t B, size_t T, size_t NH, size_t HS, int backward) {
    for (size_t i = 0; i < num_plans && i < MOST_PLANS; i++) {
        const Graph *g = plans[i];
        if (g->B == B && g->T == T && g->NH == NH && g->HS == HS && g->backward == backward) {
            return plans[i];
        }
    }
    if (handle == NULL && cudnn_failed(cudnnCreate(&handle), "no handle")) {
        handle = NULL;
        return NULL;
    }
    Graph *g = plan_make(&(Target){ handle, NULL }, B, T, NH, HS, backward);
    if (g != NULL) {
        Graph **place = &plans[num_plans++ % MOST_PLANS];
        attention_graph_destroy(*place);
        *place = g;
    }
    return g;
}

int attention_cudnn_prepare(size_t B, size_t T, size_t NH, size_t HS, int backward) {
    if (!sizes_are_sane(B, T, NH, HS) || plan_find(B, T, NH, HS, 0) == NULL) {
        return -1;
    }
    const size_t n = backward_batch(B, T, NH);
    return backward && (plan_find(n, T, NH, HS, 1) == NULL || (B % n != 0 && plan_find(B % n, T, NH, HS, 1) == NULL))
               ? -1
               : 0;
}

// ---------------------------------------------------------------------------------------------------------------------
// Running

// pointers: of the tensors ids.
static int run(const Graph *g, int64_t count, const int64_t *ids, void **pointers, void *workspace,
               cudaStream_t stream) {
    Descriptor pack = NULL;
    if (cudnn_failed(cudnnSetStream(handle, stream), "the stream") ||
        cudnn_failed(cudnnBackendCreateDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack), "a descriptor")) {
        return -1;
    }
    const char *what = "the arguments of attention";
    int status = cudnn_failed(
                     cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, ids),
                     what) ||
                 cudnn_failed(cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR,
                                                       count, pointers),
                              what) ||
                 cudnn_failed(cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1,
                                                       &workspace),
                              what) ||
                 cudnn_failed(cudnnBackendFinalize(pack), what) ||
                 cudnn_failed(cudnnBackendExecute(handle, g->plan, pack),
                              g->backward ? "the backward of attention" : "attention");
    (void)cudnnBackendDestroyDescriptor(pack);
    return status ? -1 : 0;
}

int attention_cudnn_forward(void *out, float *lse, void *scratch, const void *qkv, size_t B, size_t T, size_t NH,
                            size_t HS, cudaStream_t stream) {
    const Graph *g = sizes_are_sane(B, T, NH, HS) ? plan_find(B, T, NH, HS, 0) : NULL;
    if (g == NULL) {
        return -1;
    }
    float scale = 1.0f / sqrtf((float)HS), masked = -INFINITY;  // read when the call is queued
    uint16_t *in = (uint16_t *)qkv;                             // bf16; not written
    const int64_t ids[] = { Q, K, V, OUT, LSE, SCALE, MASKED };
    void *pointers[] = { in, in + NH * HS, in + 2 * NH * HS, out, lse, &scale, &masked };
    return run(g, sizeof ids / sizeof *ids, ids, pointers, scratch, stream);
}

int attention_cudnn_backward(void *dqkv, void *scratch, const void *dout, const void *out, const void *qkv,
                             const float *lse, size_t B, size_t T, size_t NH, size_t HS, cudaStream_t stream) {
    if (!sizes_are_sane(B, T, NH, HS)) {
        return -1;
    }
    float scale = 1.0f / sqrtf((float)HS), masked = -INFINITY, one = 1.0f;
    const size_t C = NH * HS, most = backward_batch(B, T, NH);
    const int64_t ids[] = { Q, K, V, OUT, LSE, DOUT, DQ, DK, DV, ROW_SUMS, SCALE, MASKED, ONE };
    for (size_t b = 0; b < B; b += most) {
        const size_t n = B - b < most ? B - b : most;
        const Graph *g = plan_find(n, T, NH, HS, 1);
        if (g == NULL) {
            return -1;
        }
        uint16_t *in = (uint16_t *)qkv + b * T * 3 * C, *din = (uint16_t *)dqkv + b * T * 3 * C;
        void *pointers[] = { in,
                             in + C,
                             in + 2 * C,
                             (uint16_t *)out + b * T * C,
                             (float *)lse + b * NH * T,
                             (uint16_t *)dout + b * T * C,
                             din,
                             din + C,
                             din + 2 * C,
                             scratch,
                             &scale,
                             &masked,
                             &one };
        if (run(g, sizeof ids / sizeof *ids, ids, pointers, (char *)scratch + row_sums_bytes(B, T, NH), stream)) {
            return -1;
        }
    }
    return 0;
}

void attention_cudnn_destroy(void) {
    for (size_t i = 0; i < num_plans && i < MOST_PLANS; i++) {
        attention_graph_destroy(plans[i]);
        plans[i] = NULL;
    }
    num_plans = 0;
    if (handle != NULL) {
        (void)cudnnDestroy(handle);
    }
    handle = NULL;
}
