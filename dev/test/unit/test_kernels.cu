// test_kernels.cu: the module's kernels (zero/kernels.h), fp32 and bf16 in one program.
//
// They promise bits, so they are compared twice: with the definition in double, to rounding, and with a few plain loops
// here that add in the order which the header specifies, to the bit. The model's kernels are tested in test_model.cu.
#include "test/harness/numerics.h"
#include "zero/cost.h"
#include "zero/kernels.h"
#include "zero/optimizers/optimizers.h"
#include "zero/master_weights.h"

#include "test/unit/optimizer_kernels.cuh"

// ---------------------------------------------------------------------------------------------------------------------
// Ordered sum.

// The balanced tree of zero/kernels.h, from its definition.
static float tree_sum(const float *x, int n) {
    if (n == 1) return x[0];
    int p = 1;
    while (2 * p < n) p *= 2;
    return tree_sum(x, p) + tree_sum(x + p, n - p);
}

template <class T> static void check_sum(int num_chunks, int num_older, size_t n) {
    const enum zero_dtype dtype = sizeof(T) == 4 ? ZERO_F32 : ZERO_BF16;
    std::vector<Values> chunk, older;
    std::vector<Device<T> *> device_chunk;
    std::vector<Device<float> *> device_older;
    std::vector<const void *> pointers(num_chunks + 1);
    zero_partial_sums partial = {};
    partial.count = num_older;
    for (int p = 0; p < num_chunks; p++) {
        chunk.push_back(random_values<T>(n, 1));
        device_chunk.push_back(new Device<T>(chunk[p]));
        pointers[p] = device_chunk[p]->p;
    }
    for (int s = 0; s < num_older; s++) {
        older.push_back(random_values<float>(n, 4));
        device_older.push_back(new Device<float>(older[s]));
        partial.sum[s] = device_older[s]->p;
    }
    const void **device_pointers;
    must(cudaMalloc((void **)&device_pointers, pointers.size() * sizeof *device_pointers));
    must(cudaMemcpy(device_pointers, pointers.data(), pointers.size() * sizeof *device_pointers,
                    cudaMemcpyHostToDevice));
    Device<float> separate(n);
    float *out = num_older ? partial.sum[num_older / 2] : separate.p;  // in place where that is possible
    must(zero_kernel_sum(out, device_pointers, num_chunks, dtype, partial, n, 0));
    const Values got = read_device(out, n);

    Values want(n);
    double worst = 0;  // difference to the exact sum, in units of half an ulp of the sum of the absolute values
    for (size_t i = 0; i < n; i++) {
        std::vector<float> leaf, term;
        double exact = 0, absolute = 0;
        for (const Values &p : chunk) leaf.push_back((float)p[i]);
        for (const Values &s : older) term.push_back((float)s[i]);
        for (const auto *list : { &leaf, &term }) {
            for (float x : *list) {
                exact += x;
                absolute += fabs(x);
            }
        }
        if (num_chunks) term.push_back(tree_sum(leaf.data(), num_chunks));
        float sum = term.back();
        for (size_t s = term.size() - 1; s > 0; s--) sum = term[s - 1] + sum;
        want[i] = sum;
        worst = fmax(worst, fabs(got[i] - exact) / (absolute * 0x1p-24));
    }
    int depth = num_older;  // additions that a chunk goes through
    for (int width = 1; width < num_chunks; width *= 2) depth++;
    char where[80];
    snprintf(where, sizeof where, "%d chunks of %s, %d partial sums, n = %zu", num_chunks,
             dtype == ZERO_F32 ? "fp32" : "bf16", num_older, n);
    CHECK_BITS(got, want, "%s: not the sum in the order of the tree", where);
    CHECK_ERROR(worst / fmax(depth, 1), 1, "sum, in half ulps for each addition that a chunk goes through", where);

    for (auto *d : device_chunk) delete d;
    for (auto *d : device_older) delete d;
    must(cudaFree(device_pointers));
}

static void sum_is_in_another_order(void) {
    for (int n = 1; n <= 65; n++) {
        check_sum<float>(n, 0, 64);
        check_sum<bf16>(n, 0, 64 * 37);
        check_sum<float>(n, 1 + n % 3, 64 * 5);
        check_sum<bf16>(n, 1 + n % 3, 64);
    }
    for (int n : { 119, 120, 121, 128, 129, 1000, 1025 }) {  // around the border of two kernels, and far beyond
        check_sum<float>(n, 0, 64);
        check_sum<bf16>(n, 1, 64);
    }
    for (int older = 1; older <= 4; older++) check_sum<float>(0, older, 64 * 3);
}

// ---------------------------------------------------------------------------------------------------------------------
// Binary counter.

// A step of M micro-batches on N ranks, in micro-steps of N leaves. After each of them every partial sum is the tree of
// its own leaves, to the bit; at the end their sum is the tree of all, and as many were live as the formula predicts.
template <class T> static void check_counter(size_t N, size_t M, size_t n) {
    const enum zero_dtype dtype = sizeof(T) == 4 ? ZERO_F32 : ZERO_BF16;
    std::vector<Values> leaf;
    std::vector<Device<T> *> device_leaf;
    std::vector<const void *> pointers(M);
    std::vector<Device<float> *> device_sums;
    zero_partial_sums sums = {};
    for (size_t j = 0; j < M; j++) {
        leaf.push_back(random_values<T>(n, j % 3 ? 1 : 1e-3));
        device_leaf.push_back(new Device<T>(leaf[j]));
        pointers[j] = device_leaf[j]->p;
    }
    for (size_t s = 0; s < zero_cost_partial_sums(N, M / N); s++) {
        device_sums.push_back(new Device<float>(n));
        sums.sum[s] = device_sums[s]->p;
    }
    const void **device_pointers;
    must(cudaMalloc((void **)&device_pointers, M * sizeof *device_pointers));
    must(cudaMemcpy(device_pointers, pointers.data(), M * sizeof *device_pointers, cudaMemcpyHostToDevice));
    const auto want = [&](size_t first, size_t count) {
        std::vector<float> x(count);
        Values all(n);
        for (size_t i = 0; i < n; i++) {
            for (size_t j = 0; j < count; j++) x[j] = (float)leaf[first + j][i];
            all[i] = tree_sum(x.data(), (int)count);
        }
        return all;
    };
    int most = 0;
    for (size_t leaves = 0; leaves < M; leaves += N) {
        must(zero_kernel_push(sums, leaves, device_pointers + leaves, (int)N, dtype, n, 0));
        const size_t after = leaves + N;
        int s = 0;
        size_t first = 0;
        for (size_t size = (size_t)1 << 40; size > 0; size /= 2) {
            if (!(after & size)) continue;
            CHECK_BITS(read_device(sums.sum[s], n), want(first, size),
                       "N = %zu, M = %zu: partial sum %d after %zu leaves is not the tree of its leaves", N, M, s,
                       after);
            first += size;
            s++;
        }
        most = s > most ? s : most;
    }
    sums.count = zero_partial_sums_live(M);
    if (sums.count > 1) must(zero_kernel_sum(sums.sum[0], NULL, 0, ZERO_F32, sums, n, 0));
    const Values got = read_device(sums.sum[0], n);
    CHECK_BITS(got, want(0, M), "N = %zu, M = %zu: the sum is not the tree", N, M);
    CHECK_EQ(most, (int)device_sums.size());
    if (!(N & (N - 1))) CHECK((size_t)1 << most <= M / N + 1, "N = %zu, M = %zu: %d partial sums", N, M, most);
    int depth = 0;  // additions that a leaf goes through
    for (size_t width = 1; width < M; width *= 2) depth++;
    double worst = 0;
    for (size_t i = 0; i < n; i++) {
        double exact = 0, absolute = 0;
        for (const Values &x : leaf) {
            exact += x[i];
            absolute += fabs(x[i]);
        }
        worst = fmax(worst, fabs(got[i] - exact) / (absolute * 0x1p-24));
    }
    char where[80];
    snprintf(where, sizeof where, "N = %zu, M = %zu", N, M);
    CHECK_ERROR(worst / fmax(depth, 1), 1, "step, in half ulps for each addition that a leaf goes through", where);
    for (auto *d : device_leaf) delete d;
    for (auto *d : device_sums) delete d;
    must(cudaFree(device_pointers));
}

static void shape_of_the_sum_depends_on_the_number_of_ranks(void) {
    for (size_t M = 4; M <= 40; M++)
        for (size_t N = 1; N <= M; N++)
            if (M % N == 0) {
                check_counter<float>(N, M, 64);
                if (M % 4 == 0 || N == M) check_counter<bf16>(N, M, 64 * 3);
            }
    for (size_t N : { 5, 7, 13, 24, 33, 56, 100, 131 }) check_counter<bf16>(N, 5 * N, 64);  // subtrees above 8
    for (size_t N : { 2, 3, 4, 5, 7, 8, 12, 16 }) check_counter<float>(N, 35 * N, 64);
    check_counter<float>(3, 33, 64 * 37);  // several blocks
    check_counter<bf16>(48, 96, 64 * 37);
}

// What a group passes on: each sum at its place, to the bit, and the pointers to it.
template <class T, class O> static void check_group_sums(int S, int leaves, size_t n, size_t parts) {
    const size_t part = (n / 64 + parts - 1) / parts * 64, count = (size_t)(S / leaves);
    std::vector<Values> chunk;
    std::vector<Device<T> *> device_chunk;
    std::vector<const void *> pointers(S), parted(parts), found(parts * count);
    for (int s = 0; s < S; s++) {
        chunk.push_back(random_values<T>(n, 1));
        device_chunk.push_back(new Device<T>(chunk[s]));
        pointers[s] = device_chunk[s]->p;
    }
    const Device<const void *> table(S), ranges(parts), all(parts * count);
    const Device<O> out(parts * count * part);
    for (size_t q = 0; q < parts; q++) parted[q] = out.p + q * count * part;
    must(cudaMemcpy(table.p, pointers.data(), pointers.size() * sizeof(void *), cudaMemcpyHostToDevice));
    must(cudaMemcpy(ranges.p, parted.data(), parted.size() * sizeof(void *), cudaMemcpyHostToDevice));
    must(zero_kernel_group_sums(out.p, table.p, S, leaves, sizeof(T) == 4 ? ZERO_F32 : ZERO_BF16, n, part, 0));
    must(zero_kernel_pointers(all.p, ranges.p, (int)count, part * sizeof(O), (int)found.size(), 0));
    must(cudaDeviceSynchronize());
    must(cudaMemcpy(found.data(), all.p, found.size() * sizeof(void *), cudaMemcpyDeviceToHost));
    for (size_t k = 0; k < count; k++) {
        std::vector<float> x((size_t)leaves);
        Values want(n), got(n);
        for (size_t q = 0; q * part < n; q++) {
            const size_t here = n - q * part < part ? n - q * part : part;
            CHECK(found[q * count + k] == out.p + (q * count + k) * part, "the pointer to sum %zu of part %zu", k, q);
            const Values values = read_device(out.p + (q * count + k) * part, here);
            for (size_t i = 0; i < here; i++) got[q * part + i] = values[i];
        }
        for (size_t i = 0; i < n; i++) {
            for (size_t l = 0; l < (size_t)leaves; l++) x[l] = (float)chunk[k * (size_t)leaves + l][i];
            want[i] = tree_sum(x.data(), leaves);
        }
        CHECK_BITS(got, want, "sum %zu of %d chunks in %d", k, leaves, S);
    }
    for (auto *d : device_chunk) delete d;
}

static void a_group_passes_on_something_else(void) {
    for (size_t parts : { 1, 2, 3, 5 }) {
        check_group_sums<float, float>(3, 1, 64 * 7, parts);
        check_group_sums<bf16, bf16>(5, 1, 64 * 7, parts);
        check_group_sums<bf16, float>(6, 2, 64 * 37, parts);
        check_group_sums<float, float>(8, 8, 64 * 5, parts);
        check_group_sums<bf16, float>(48, 16, 64, parts);
        check_group_sums<float, float>(32, 16, 64, parts);
    }
}

// The number of partial sums, from its definition, also where the shortcut for powers of two is taken.
static void partial_sums_are_miscounted(void) {
    for (size_t N = 1; N <= 70; N++) {
        size_t most = 0;
        for (size_t G = 1; G <= 70; G++) {
            size_t ones = 0;
            for (size_t L = G * N; L > 0; L /= 2) ones += L % 2;
            most = ones > most ? ones : most;
            CHECK_EQ(zero_cost_partial_sums(N, G), most);
        }
    }
    CHECK_EQ(zero_cost_partial_sums(4, 0), 0);
    CHECK_EQ(zero_cost_partial_sums(8, (size_t)1 << 40), 40);
}

// ---------------------------------------------------------------------------------------------------------------------
// Sum of squares.

// The parts added and the carries done: ZERO_WIDE_DIGITS digits below 2^32, and the two counters.
static std::vector<uint64_t> wide_square_sum(const Values &x) {
    const Device<float> device(x);
    const Device<uint64_t> out(ZERO_SQUARE_PARTS * ZERO_WIDE_WORDS);
    must(zero_kernel_square_sum(out.p, device.p, x.size(), 0));
    std::vector<uint64_t> parts(out.n), sum(ZERO_WIDE_WORDS, 0);
    must(cudaDeviceSynchronize());
    must(cudaMemcpy(parts.data(), out.p, parts.size() * sizeof(uint64_t), cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < parts.size(); i++) sum[i % ZERO_WIDE_WORDS] += parts[i];
    for (int d = 0; d + 1 < ZERO_WIDE_DIGITS; d++) {
        sum[d + 1] += sum[d] >> 32;
        sum[d] &= 0xffffffff;
    }
    return sum;
}

static long double wide_value(const std::vector<uint64_t> &wide) {
    long double value = 0;
    for (int d = ZERO_WIDE_DIGITS - 1; d >= 0; d--) value += ldexpl((long double)wide[d], 32 * d - ZERO_WIDE_BIAS);
    return value;
}

static void square_sum_is_inexact_or_overflows(void) {
    for (double scale : { 1.0, 1e-30, 1e-45, 3e38 }) {
        for (size_t n : { (size_t)64, (size_t)64 * 7, (size_t)64 * 1000 }) {
            Values x = random_values<float>(n, scale);
            long double want = 0;
            for (size_t i = 0; i < n; i++) {
                // wide range
                if (scale == 1 && i % 5 == 0) x[i] = rounded<float>(x[i] * pow(10, random_below(40) - 25));
                want += (long double)x[i] * x[i];
            }
            char where[80];
            snprintf(where, sizeof where, "n = %zu, scale %g", n, scale);
            CHECK_ERROR((double)(fabsl(wide_value(wide_square_sum(x)) - want) / want), 1e-15,
                        "sum of squares, relative", where);
        }
    }
}

// Blocks of 64 dealt to other positions, as another number of ranks would: not one digit may change.
static void square_sum_depends_on_where_blocks_are(void) {
    Values x = random_values<float>(64 * 777, 1), moved;
    for (double &v : x) v = rounded<float>(v * exp(8 * uniform()));
    for (size_t b = 0; b < 777; b++)
        moved.insert(moved.end(), x.begin() + 64 * (b * 100 % 777), x.begin() + 64 * (b * 100 % 777) + 64);
    const std::vector<uint64_t> wide = wide_square_sum(x);
    CHECK(wide == wide_square_sum(moved), "blocks in another order give other digits");
    moved.insert(moved.begin() + 64 * 300, 64 * 99, 0.0);
    CHECK(wide == wide_square_sum(moved), "blocks of zeros between them give other digits");
}

static void square_sum_hides_nan_or_infinity(void) {
    for (size_t at : { (size_t)0, (size_t)63, (size_t)64 * 500 + 17, (size_t)64 * 1000 - 1 }) {
        Values x = random_values<float>(64 * 1000, 1);
        std::vector<uint64_t> wide = wide_square_sum(x);
        CHECK(wide[ZERO_WIDE_NAN] == 0 && wide[ZERO_WIDE_INF] == 0, "finite values are counted as infinite");
        x[at] = NAN;
        wide = wide_square_sum(x);
        CHECK(wide[ZERO_WIDE_NAN] == 1, "NaN at %zu is counted %llu times", at,
              (unsigned long long)wide[ZERO_WIDE_NAN]);
        x[at] = -INFINITY;
        wide = wide_square_sum(x);
        CHECK(wide[ZERO_WIDE_INF] == 1, "infinity at %zu is counted %llu times", at,
              (unsigned long long)wide[ZERO_WIDE_INF]);
    }
}

// Ranks' rows, and what they decide, beside long double. clip: max_norm / norm; the row of `other` has another
// hash.
static void check_norm(size_t ranks, double scale, float clip, size_t other) {
    const uint64_t calls = 0x123456789abcdef0;
    const Device<uint64_t> rows(ranks * ZERO_NORM_WORDS), parts(ZERO_SQUARE_PARTS * ZERO_WIDE_WORDS);
    std::vector<zero_decision> decisions(1);
    std::vector<uint64_t> host(ranks * ZERO_NORM_WORDS);
    const OnDevice<zero_decision> decided(decisions);
    zero_norm_args args = {};
    long double squares = 0;
    for (size_t r = 0; r < ranks; r++) {
        const Values x = random_values<float>(64 * (1 + r % 5), scale);
        for (double v : x) squares += (long double)v * v;
        const Device<float> device(x);
        must(zero_kernel_square_sum(parts.p, device.p, x.size(), 0));
        args.wide = parts.p, args.n = ZERO_SQUARE_PARTS, args.stride = ZERO_WIDE_WORDS;
        args.calls = r == other ? 17 : calls;
        args.row = rows.p + r * ZERO_NORM_WORDS;
        must(zero_kernel_norm(args, 0));
    }
    const double weight = 3, want = (double)(sqrtl(squares) / weight);
    const float max_norm = clip * (float)want;
    args = zero_norm_args{ rows.p, ranks, ZERO_NORM_WORDS, calls, NULL, decided.p, weight, max_norm };
    must(zero_kernel_norm(args, 0));
    must(cudaDeviceSynchronize());
    must(cudaMemcpy(decisions.data(), decided.p, sizeof(zero_decision), cudaMemcpyDeviceToHost));
    must(cudaMemcpy(host.data(), rows.p, host.size() * sizeof(uint64_t), cudaMemcpyDeviceToHost));
    const zero_decision d = decisions[0];
    char where[80];
    snprintf(where, sizeof where, "%zu ranks, scale %g", ranks, scale);
    CHECK_ERROR(fabs(d.norm - want) / want, 1e-15, "norm, relative", where);
    const float factor = clip > 0 && clip < 1 ? (float)(max_norm / d.norm) : 1;
    CHECK(d.scale == factor && d.factor == factor * (1 / 3.0f), "%s: scale %g, factor %g", where, (double)d.scale,
          (double)d.factor);
    const int told = other < ranks;
    CHECK(d.skip == told && d.other == (told ? (int)other : -1), "%s: skip %d, other %d", where, d.skip, d.other);
    for (size_t i = 0; i < host.size(); i++)
        CHECK(i % ZERO_NORM_WORDS >= ZERO_WIDE_DIGITS || host[i] >> 32 == 0, "%s: a carry waits", where);
    uint64_t sum[ZERO_WIDE_WORDS] = {};
    for (size_t i = 0; i < host.size(); i++)
        if (i % ZERO_NORM_WORDS < ZERO_WIDE_WORDS) sum[i % ZERO_NORM_WORDS] += host[i];
    CHECK(zero_wide_decide(sum, weight, max_norm).norm == d.norm, "%s: another norm on the host", where);
}

static void device_decides_otherwise(void) {
    for (size_t ranks : { (size_t)1, (size_t)2, (size_t)33, (size_t)70 }) {
        for (double scale : { 1.0, 1e-30, 1e-44, 3e18 }) check_norm(ranks, scale, ranks % 2 ? 0.5f : 2, SIZE_MAX);
        check_norm(ranks, 1, 0, ranks - 1);
    }
}

// One that is not finite skips, and the sum of replicas passes on that a rank's calls differ.
static void device_updates_what_is_not_finite(void) {
    for (int word : { (int)ZERO_WIDE_INF, (int)ZERO_WIDE_NAN }) {
        std::vector<uint64_t> host(3 * ZERO_NORM_WORDS, 1);
        std::vector<zero_decision> decision(1);
        for (size_t i = 0; i < host.size(); i++) host[i] = i % ZERO_NORM_WORDS == (size_t)ZERO_WIDE_WORDS;
        host[2 * ZERO_NORM_WORDS + (size_t)word] = 1;
        const OnDevice<uint64_t> rows(host);
        const OnDevice<zero_decision> decided(decision);
        zero_norm_args args = { rows.p, 3, ZERO_NORM_WORDS, 1, rows.p, decided.p, 1, 0 };
        must(zero_kernel_norm(args, 0));
        must(cudaDeviceSynchronize());
        must(cudaMemcpy(decision.data(), decided.p, sizeof(zero_decision), cudaMemcpyDeviceToHost));
        must(cudaMemcpy(host.data(), rows.p, host.size() * sizeof(uint64_t), cudaMemcpyDeviceToHost));
        CHECK(decision[0].skip && decision[0].other == -1 && host[ZERO_WIDE_WORDS] == 1, "norm %g: it is not skipped",
              decision[0].norm);
        args.calls = 2;
        must(zero_kernel_norm(args, 0));
        must(cudaDeviceSynchronize());
        must(cudaMemcpy(host.data(), rows.p, host.size() * sizeof(uint64_t), cudaMemcpyDeviceToHost));
        CHECK(host[ZERO_WIDE_WORDS] == ~(uint64_t)2, "a rank with other calls is not passed on");
    }
}

// Built with contraction, the kernels would still pass most comparisons, and other compilers would give other bits.
static void products_are_not_rounded(void) {
    int contracts = 1;
    must(zero_kernel_check_rounding(&contracts, 0));
    CHECK(!contracts, "kernels.cu contracts a * b + c: compile it with -ffp-contract=off (nvcc: -fmad=false)");
}

int main(int argc, char **argv) {
    numeric_start(&argc, argv);
    RUN(sum_is_in_another_order);
    RUN(shape_of_the_sum_depends_on_the_number_of_ranks);
    RUN(a_group_passes_on_something_else);
    RUN(partial_sums_are_miscounted);
    RUN(products_are_not_rounded);
    RUN(square_sum_is_inexact_or_overflows);
    RUN(square_sum_depends_on_where_blocks_are);
    RUN(square_sum_hides_nan_or_infinity);
    RUN(device_decides_otherwise);
    RUN(device_updates_what_is_not_finite);
    RUN(adamw_is_another_formula);
    RUN(sgd_or_lion_is_another_formula);
    RUN(adamw_moves_padding);
    RUN(split_master_has_other_bits);
    RUN(no_master_rounds_otherwise);
    RUN(host_has_other_bits);
    RUN(stochastic_rounding_has_a_bias);
    RUN(exchanged_average_has_other_bits);
    return test_finish();
}
