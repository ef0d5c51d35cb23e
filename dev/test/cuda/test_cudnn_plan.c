// What can be known about cuDNN's attention without a GPU: that cuDNN has engines for the two graphs of
// dev/device/cuda/attention_cudnn.c and makes plans of them, kernels compiled, for the devices and shapes that we
// train; and that the scratch that is accounted suffices. The devices are described to cuDNN in JSON, and the driver
// pretends (pretend_driver.c). Whether the results are right, and the same in every run, only a GPU can show:
// test_model compares them with double precision, test_gpt2_zero bit by bit.
//
// Built with cuDNN only; .ci/run runs it where nvcc and cuDNN are installed.
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "test/harness/harness.h"
#include "device/attention.h"

// What the devices have in common, and what not: from NVIDIA's data sheets and the tables of compute capabilities.
typedef struct Device {
    const char *name;
    int capability;  // 900: 9.0
    int multiprocessors;
    int shared_memory;  // bytes that a block may ask for
    long long l2_bytes, memory_bytes;
    int clock_khz, memory_clock_khz;
} Device;

static const Device A100 = { "NVIDIA A100-SXM4-80GB", 800, 108, 166912, 41943040, 85899345920, 1410000, 1593000 };
static const Device H100 = { "NVIDIA H100 80GB HBM3", 900, 132, 232448, 52428800, 85899345920, 1980000, 2619000 };
static const Device H200 = { "NVIDIA H200", 900, 132, 232448, 62914560, 151397597184, 1980000, 3201000 };

static const char *describe(const Device *d) {
    static char json[2048];
    snprintf(
        json, sizeof json,
        "{\"deviceName\":\"%s\",\"deviceVer\":%d,\"multiProcessorCount\":%d,\"maxSharedMemoryPerBlockOptin\":%d,"
        "\"l2CacheSize\":%lld,"
        "\"totalGlobalMem\":%lld,\"smClockRateKHz\":%d,\"memClockRateKHz\":%d,\"maxGridSize\":[2147483647,65535,65535],"
        "\"maxBlockSize\":[1024,1024,64],\"maxThreadsPerBlock\":1024,\"maxThreadsPerSM\":2048,\"maxCtasPerSM\":32,"
        "\"warpSize\":32,\"memoryBusWidth\":5120,\"smCountOrigin\":0,\"oversizedSharedMemoryPerBlock\":0,"
        "\"regsPerBlock\":65536,\"maxRegistersPerSM\":65536,\"maxSharedMemoryPerBlock\":49152,"
        "\"reservedSharedMemoryPerBlock\":1024,"
        "\"supportCoopLaunch\":1,\"isTccDriver\":0,\"pciDeviceId\":0,\"cudaDeviceId\":0,\"driverVer\":13000}",
        d->name, d->capability, d->multiprocessors, d->shared_memory, d->l2_bytes, d->memory_bytes, d->clock_khz,
        d->memory_clock_khz);
    return json;
}

static AttentionCudnnPlan plan(const Device *d, size_t B, size_t T, size_t NH, size_t HS, int backward) {
    AttentionCudnnPlan p;
    REQUIRE(attention_cudnn_plan_for(describe(d), B, T, NH, HS, backward, &p) == 0,
            "%s, B %zu, T %zu, %zu heads of %zu: %s", d->name, B, T, NH, HS, attention_cudnn_error());
    return p;
}

static void plans_fit(const Device *d, size_t B, size_t T, size_t NH, size_t HS) {
    const size_t scratch = attention_cudnn_scratch(B, T, NH);
    const AttentionCudnnPlan f = plan(d, B, T, NH, HS, 0), b = plan(d, B, T, NH, HS, 1);
    const size_t kept = 2 * b.sequences * NH * T * T;
    printf("    %-22s B %2zu, T %4zu, %2zu heads of %3zu: forward 1 of %zu, %zu bytes; backward 1 of %zu, %zu "
           "sequences, %zu bytes; scratch %zu\n",
           d->name, B, T, NH, HS, f.candidates, f.workspace, b.candidates, b.sequences, b.workspace, scratch);
    CHECK(f.candidates >= 1 && f.candidates <= 1000);
    CHECK_EQ(f.sequences, B);
    CHECK(f.workspace <= 1 << 20);  // no scores in memory
    CHECK(b.candidates >= 1 && b.candidates <= 1000);
    CHECK(b.sequences >= 1 && b.sequences <= B);
    CHECK(b.workspace >= kept && b.workspace <= scratch);  // dS is kept: nothing is added by atomics
    CHECK(b.workspace + 4 * B * NH * T <= scratch);
}

static void a_size_that_we_train_has_no_engine(void) {
    static const size_t head_sizes[] = { 64, 80, 96, 128 };
    for (size_t h = 0; h < 4; h++) {
        plans_fit(&A100, 64, 1024, 12, head_sizes[h]);
        plans_fit(&A100, 1, 8192, 12, head_sizes[h]);
        plans_fit(&H100, 64, 1024, 12, head_sizes[h]);
        plans_fit(&H100, 1, 8192, 12, head_sizes[h]);
    }
    plans_fit(&H200, 64, 1024, 12, 64);
    plans_fit(&H200, 64, 8192, 12, 128);
    plans_fit(&H200, 1, 1024, 12, 64);
}

// Lengths and heads that fill no tile, and batches that no call takes whole.
static void an_odd_size_has_no_engine_or_too_little_scratch(void) {
    static const struct {
        size_t B, T, NH, HS;
    } sizes[] = { { 1, 1, 1, 8 },    { 2, 7, 3, 64 },      { 3, 65, 3, 32 },   { 1, 300, 1, 16 },
                  { 2, 200, 1, 72 }, { 17, 1024, 16, 64 }, { 5, 1000, 25, 64 } };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        plans_fit(i % 2 ? &A100 : &H100, sizes[i].B, sizes[i].T, sizes[i].NH, sizes[i].HS);
    }
}

// A model of largest B and T also runs on smaller ones.
static void scratch_shrinks_as_the_batch_grows(void) {
    for (size_t NH = 1; NH <= 25; NH += 8) {
        for (size_t T = 1; T <= 8192; T = T * 3 / 2 + 1) {
            for (size_t B = 1; B <= 64; B++) {
                CHECK(attention_cudnn_scratch(B, T, NH) >= attention_cudnn_scratch(B - (B > 1), T, NH));
                CHECK(attention_cudnn_scratch(B, T, NH) >= attention_cudnn_scratch(B, T - (T > 1), NH));
            }
        }
    }
}

static void two_plans_of_a_shape_differ(void) {
    const AttentionCudnnPlan one = plan(&H100, 4, 1024, 12, 64, 1), two = plan(&H100, 4, 1024, 12, 64, 1);
    CHECK_BYTES(&one, &two, sizeof one);
}

static void refused(const Device *d, size_t B, size_t T, size_t NH, size_t HS, int backward) {
    AttentionCudnnPlan p;
    CHECK_EQ(attention_cudnn_plan_for(describe(d), B, T, NH, HS, backward, &p), -1);
    printf("    %s\n", attention_cudnn_error());
    CHECK(strstr(attention_cudnn_error(), "make USE_CUDNN=0") != NULL);
}

static void a_size_without_engine_is_not_refused_in_words(void) {
    for (int backward = 0; backward < 2; backward++) {
        refused(&H100, 2, 256, 4, 68, backward);  // heads must be multiples of 8
        refused(&H100, 2, 0, 4, 64, backward);
        refused(&H100, (size_t)1 << 40, 256, 4, 64, backward);
    }
    refused(&A100, 2, 256, 4, 160, 1);  // the forward has engines, the backward not
}

static void a_description_that_is_none_is_taken(void) {
    AttentionCudnnPlan p;
    CHECK_EQ(attention_cudnn_plan_for("{}", 2, 256, 4, 64, 0, &p), -1);
    printf("    %s\n", attention_cudnn_error());
    CHECK(strlen(attention_cudnn_error()) >= 10 && strlen(attention_cudnn_error()) <= 2000);
}

int main(int argc, char **argv) {
    test_start(&argc, argv);
    RUN(a_size_that_we_train_has_no_engine);
    RUN(an_odd_size_has_no_engine_or_too_little_scratch);
    RUN(scratch_shrinks_as_the_batch_grows);
    RUN(two_plans_of_a_shape_differ);
    RUN(a_size_without_engine_is_not_refused_in_words);
    RUN(a_description_that_is_none_is_taken);
    return test_finish();
}
