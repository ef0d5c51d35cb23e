// numerics.h: for tests of kernels: comparisons that print what they compared, and arrays on the host and the device.
//
// After each case, numeric_start makes the harness print a line for each group of comparisons in it: how many there
// were, the worst error, and the allowed error.
//
// "Norm" errors are |got - want| / |want| over a tensor; "max" errors are the largest difference over the largest
// expected element. Host tensors are in double, in which float and bf16 are exact.
#ifndef NUMERICS_H
#define NUMERICS_H
#include "test/harness/harness.h"
#include "zero/device.cuh"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <string>
#include <vector>

typedef std::vector<double> Values;

// ---------------------------------------------------------------------------------------------------------------------
// Checks.

typedef struct Comparison {
    std::string what;
    double worst, allowed;
    int count;
} Comparison;

static std::vector<Comparison> comparisons;  // of the current case

// A CUDA call without which the test cannot go on.
#define must(call) must_succeed(call, #call, __FILE__, __LINE__)
static inline void must_succeed(cudaError_t error, const char *call, const char *file, int line) {
    if (error == cudaSuccess) return;
    test_fail(file, line, call, " %s: %s", call, cudaGetErrorString(error));
    test_stop();
}

static inline int same_bits(const Values &a, const Values &b) {
    return a.size() == b.size() && (a.empty() || !memcmp(a.data(), b.data(), a.size() * sizeof(double)));
}
#define CHECK_BITS(got, want, ...) CHECK(same_bits(got, want), __VA_ARGS__)

#define CHECK_ERROR(error, allowed, what, where) check_error(error, allowed, __FILE__, __LINE__, what, where)

// error <= allowed; NaN is not. `what` groups the comparisons in the summary, `where` names this one.
static inline void check_error(double error, double allowed, const char *file, int line, const char *what,
                               const char *where) {
    size_t i = 0;
    while (i < comparisons.size() && comparisons[i].what != what) i++;
    if (i == comparisons.size()) comparisons.push_back(Comparison{ what, 0, allowed, 0 });
    comparisons[i].count++;
    if (isnan(error) || error > comparisons[i].worst) comparisons[i].worst = error;
    CHECK_AT(file, line, error <= allowed, "%s, %s: error %.2e, allowed %.1e", what, where, error, allowed);
}

static inline double norm_error(const double *got, const double *want, size_t n) {
    double difference = 0, norm = 0;
    for (size_t i = 0; i < n; i++) {
        difference += (got[i] - want[i]) * (got[i] - want[i]);
        norm += want[i] * want[i];
    }
    return difference == 0 ? 0 : sqrt(difference / norm);
}

static inline double max_error(const Values &got, const Values &want) {
    double difference = 0, largest = 0;
    for (size_t i = 0; i < want.size(); i++) {
        const double d = fabs(got[i] - want[i]);
        if (isnan(d) || d > difference) difference = d;
        largest = fmax(largest, fabs(want[i]));
    }
    return difference == 0 ? 0 : difference / largest;
}

// ---------------------------------------------------------------------------------------------------------------------
// Numbers, here and on the device.

static const uint64_t RNG_START = 88172645463325252ull;
static uint64_t rng_state = RNG_START;

static inline double uniform(void) {  // [-1, 1)
    rng_state ^= rng_state << 13;
    rng_state ^= rng_state >> 7;
    rng_state ^= rng_state << 17;
    return (double)(rng_state >> 11) * 0x1p-52 - 1;
}

static inline int random_below(size_t n) { return (int)((uniform() + 1) / 2 * (double)n); }

static inline double widen(float x) { return x; }
static inline double widen(bf16 x) { return __bfloat162float(x); }
static inline double widen(int x) { return x; }
static inline void narrow(int *out, double x) { *out = (int)x; }
static inline void narrow(float *out, double x) { *out = (float)x; }
static inline void narrow(bf16 *out, double x) { *out = __float2bfloat16_rn((float)x); }

template <class T> static inline double rounded(double x) {
    T t;
    narrow(&t, x);
    return widen(t);
}

// n values of type T around `center`.
template <class T> static inline Values random_values(size_t n, double scale, double center = 0) {
    Values x(n);
    for (double &v : x) v = rounded<T>(center + scale * uniform());
    return x;
}

static inline std::vector<int> random_ids(size_t n, size_t below) {
    std::vector<int> ids(n);
    for (int &i : ids) i = random_below(below);
    return ids;
}

template <class T> static inline void write_device(T *to, const Values &from) {
    std::vector<T> host(from.size());
    for (size_t i = 0; i < from.size(); i++) narrow(&host[i], from[i]);
    must(cudaMemcpy(to, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice));
}

template <class T> static inline Values read_device(const T *from, size_t n) {
    std::vector<T> host(n);
    must(cudaDeviceSynchronize());
    must(cudaMemcpy(host.data(), from, n * sizeof(T), cudaMemcpyDeviceToHost));
    Values to(n);
    for (size_t i = 0; i < n; i++) to[i] = widen(host[i]);
    return to;
}

// An array on the device, freed at the end of its scope. Without values it is all ones: NaN.
template <class T> struct Device {
    T *p;
    size_t n;
    explicit Device(size_t count) : p(NULL), n(count) {
        must(cudaMalloc((void **)&p, n * sizeof(T)));
        must(cudaMemset(p, 0xff, n * sizeof(T)));
    }
    explicit Device(const Values &v) : Device(v.size()) { write_device(p, v); }
    ~Device() { (void)cudaFree(p); }
    Device(const Device &) = delete;
    Device &operator=(const Device &) = delete;
    Values read() const { return read_device<T>(p, n); }
};

// ---------------------------------------------------------------------------------------------------------------------
// Running.

static inline void numeric_begin(void) {
    comparisons.clear();
    rng_state = RNG_START;  // so that the numbers of a case do not depend on the cases before it
}

static inline void numeric_end(void) {
    for (const Comparison &c : comparisons)
        printf("      %s: %d compared, worst error %.2e, allowed %.1e\n", c.what.c_str(), c.count, c.worst, c.allowed);
}

static inline void numeric_start(int *argc, char **argv) {
    test_start(argc, argv);
    test_on_begin = numeric_begin;
    test_on_end = numeric_end;
}

#endif
