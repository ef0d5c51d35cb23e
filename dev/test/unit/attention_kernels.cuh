// attention_kernels.cuh: the part of model_kernels.cuh that compares the kernels of attention with the reference.
// test_attention.cu has it alone, for builds in which the rest would take too long.
#ifndef ATTENTION_KERNELS_CUH
#define ATTENTION_KERNELS_CUH

#include "gpt2/attention.cuh"

#ifdef CUDA_ON_CPU_EMULATED
static const size_t MAX_WORK = 100000;  // an emulated thread is a hundred times slower: shapes of more elements are
                                        // left out
#else
static const size_t MAX_WORK = SIZE_MAX;
#endif

static const double stored = FLOATX == ZERO_F32 ? 1e-5 : 0x1p-8 * 1.1;  // of floatX
static const double fp32_sum = 1e-5;                                    // of float, whatever floatX is

typedef Device<floatX> DeviceX;
typedef Device<float> DeviceF;

static Values random_x(size_t n, double scale, double center = 0) { return random_values<floatX>(n, scale, center); }

static std::string shape_name(const char *format, size_t a, size_t b = 0, size_t c = 0, size_t d = 0) {
    char text[128];
    snprintf(text, sizeof text, format, a, b, c, d);
    return text;
}

// What attention_shape promises its kernels: an item of sums for each thread at most, and no more shared memory than
// any GPU has. A CPU's block has one thread, and as much memory as it likes.
static void attention_does_not_fit_a_block(void) {
    for (const AttentionTiles *t : { &FORWARD_TILES, &DQ_TILES, &DKV_TILES }) {
        for (size_t HS = PACK; HS <= GPT2_MAX_HEAD_SIZE; HS += PACK) {
            for (size_t T : { 1, 15, 16, 17, 64, 1000, 8192 }) {
                const Attention a = attention_shape(1, T, HS, 1, t);
                const std::string where = shape_name("T %zu, head of %zu: %zu rows, %zu cols", T, HS, (size_t)a.rows,
                                                     (size_t)a.cols);
                CHECK(a.rows >= MICRO && a.rows % MICRO == 0 && a.cols >= PACK && a.cols % PACK == 0,
                      "%s: not whole items", where.c_str());
                if (WARP == 1) continue;
                CHECK(a.rows / MICRO * (int)HS / PACK <= ATTENTION_THREADS, "%s: a thread has two items of sums",
                      where.c_str());
                CHECK(a.shared_bytes <= ATTENTION_SHARED, "%s: %zu bytes of shared memory", where.c_str(),
                      a.shared_bytes);
            }
        }
    }
}

static uint64_t attention_bits = 14695981039346656037u;  // of what attention_kernel_is_wrong computes: FNV-1a

static void add_bits(const Values &x) {
    const unsigned char *bytes = (const unsigned char *)x.data();
    for (size_t i = 0; i < x.size() * sizeof(double); i++)
        attention_bits = (attention_bits ^ bytes[i]) * 1099511628211u;
}

static void attention_kernel_is_wrong(void) {
    static const struct {
        size_t B, T, NH, HS;
    } shape[] = { { 1, 1, 1, 8 },     { 3, 1, 2, 64 },   { 2, 7, 3, 32 },   { 1, 63, 1, 128 },  { 2, 64, 2, 64 },
                  { 3, 65, 3, 32 },   { 1, 65, 2, 80 },  { 2, 200, 1, 8 },  { 1, 200, 2, 64 },  { 1, 200, 1, 80 },
                  { 2, 200, 1, 128 }, { 1, 33, 1, 256 }, { 1, 65, 1, 136 }, { 1, 129, 1, 96 },  { 1, 300, 1, 16 },
                  { 1, 130, 1, 64 },  { 1, 16, 3, 96 },  { 1, 17, 2, 80 },  { 1, 129, 1, 128 }, { 1, 128, 1, 64 } };
    for (const auto &s : shape) {
        const size_t B = s.B, T = s.T, NH = s.NH, C = NH * s.HS, R = B * T;
        if (R * C > MAX_WORK / 6) continue;
        const std::string where = shape_name("B %zu, T %zu, %zu heads of %zu", B, T, NH, s.HS);
        if constexpr (ATTENTION_CUDNN) {  // which may refuse large heads, with a message
            if (s.HS > 128 && attention_cudnn_prepare(B, T, NH, s.HS, 1)) {
                CHECK(strstr(attention_cudnn_error(), "USE_CUDNN") != NULL, "%s: %s", where.c_str(),
                      attention_cudnn_error());
                continue;
            }
        }
        const Values qkv = random_x(R * 3 * C, 2), dout = random_x(R * C, 1);
        const DeviceX d_qkv(qkv), d_dout(dout), out(R * C), d_dqkv(R * 3 * C);
        const DeviceF d_lse(B * NH * T);
        const Device<char> scratch(attention_scratch<floatX>(B, T, NH));
        Values want(R * C), lse(B * NH * T), dqkv(R * 3 * C, 0);
        reference_attention_forward(want.data(), lse.data(), qkv.data(), B, T, C, NH);
        reference_attention_backward(dqkv.data(), dout.data(), qkv.data(), B, T, C, NH);

        attention_forward(out.p, d_lse.p, scratch.p, d_qkv.p, B, T, C, NH, 0);
        attention_backward(d_dqkv.p, scratch.p, d_dout.p, out.p, d_qkv.p, d_lse.p, B, T, C, NH, 0);
        const Values got = out.read(), got_lse = d_lse.read(), got_dqkv = d_dqkv.read();
        CHECK_ERROR(max_error(got, want), stored, "attention forward (max)", where.c_str());
        CHECK_ERROR(max_error(got_lse, lse), fp32_sum, "attention log-sum-exp (max)", where.c_str());
        CHECK_ERROR(max_error(got_dqkv, dqkv), stored, "attention backward dqkv (max)", where.c_str());
        add_bits(got);
        add_bits(got_lse);
        add_bits(got_dqkv);
    }
}

// A sequence that is too long for the reference. But a row of the output is made of one query, so a few rows can be
// computed alone; and where only those have a gradient, they are all that dk and dv are made of, and dq is zero
// elsewhere. The kernels cannot know and go through all of it.
static void long_attention_is_wrong(void) {
#ifdef CUDA_ON_CPU_EMULATED
    static const struct {
        size_t T, HS;
    } shape[] = { { 520, 16 }, { 300, 64 }, { 210, 80 }, { 260, 96 }, { 210, 128 } };
#else
    static const struct { size_t T, HS; } shape[] = { { 8192, 64 }, { 4100, 80 }, { 4095, 96 }, { 8191, 128 } };
#endif
    for (const auto &s : shape) {
        const size_t T = s.T, HS = s.HS, rows[] = { 0, 40, 63, 64, T / 2 + 1, T - 65, T - 2, T - 1 };
        const double scale = 1 / sqrt((double)HS);
        const Values qkv = random_x(T * 3 * HS, 2), some = random_x(8 * HS, 1);
        Values dout(T * HS, 0), dqkv(T * 3 * HS, 0), out(8 * HS, 0), lse, got, got_lse;
        for (size_t i = 0; i < 8; i++) {
            const size_t last = rows[i];
            const double *q = &qkv[last * 3 * HS], *d = &some[i * HS];
            Values p(last + 1), dp(last + 1, 0);
            double top = -INFINITY, sum = 0, delta = 0;
            for (size_t t = 0; t <= last; t++) {
                const double *k = &qkv[t * 3 * HS] + HS, *v = k + HS;
                double score = 0;
                for (size_t c = 0; c < HS; c++) {
                    score += q[c] * k[c] * scale;
                    dp[t] += d[c] * v[c];
                }
                top = fmax(top, p[t] = score);
            }
            for (double &x : p) sum += x = exp(x - top);
            for (size_t t = 0; t <= last; t++) delta += (p[t] /= sum) * dp[t];
            for (size_t t = 0; t <= last; t++) {
                const double *k = &qkv[t * 3 * HS] + HS, *v = k + HS, ds = p[t] * (dp[t] - delta) * scale;
                double *dq = &dqkv[last * 3 * HS], *dk = &dqkv[t * 3 * HS] + HS, *dv = dk + HS;
                for (size_t c = 0; c < HS; c++) {
                    out[i * HS + c] += p[t] * v[c];
                    dq[c] += ds * k[c];
                    dk[c] += ds * q[c];
                    dv[c] += p[t] * d[c];
                }
            }
            lse.push_back(top + log(sum));
            std::copy(d, d + HS, &dout[last * HS]);
        }

        const DeviceX d_qkv(qkv), d_dout(dout), d_out(T * HS), d_dqkv(T * 3 * HS);
        const DeviceF d_lse(T);
        const Device<char> d_scratch(attention_scratch<floatX>(1, T, 1));
        attention_forward(d_out.p, d_lse.p, d_scratch.p, d_qkv.p, 1, T, HS, 1, 0);
        attention_backward(d_dqkv.p, d_scratch.p, d_dout.p, d_out.p, d_qkv.p, d_lse.p, 1, T, HS, 1, 0);
        const Values all_out = d_out.read(), all_lse = d_lse.read(), all_dqkv = d_dqkv.read();
        size_t not_zero = 0;
        for (size_t i = 0; i < T; i++) {
            for (size_t c = 0; c < HS; c++)
                not_zero += all_dqkv[i * 3 * HS + c] != 0 && std::find(rows, rows + 8, i) == rows + 8;
        }
        CHECK(not_zero == 0, "T %zu, head of %zu: %zu elements of dq of rows without a gradient are not zero", T, HS,
              not_zero);
        for (size_t i = 0; i < 8; i++) {  // row by row: the last ones are the smallest, means over everything
            const std::string where = shape_name("T %zu, head of %zu, row %zu", T, HS, rows[i]);
            const size_t at = rows[i] * HS;
            CHECK_ERROR(max_error(Values(&all_out[at], &all_out[at] + HS), Values(&out[i * HS], &out[i * HS] + HS)),
                        stored, "long attention forward (max)", where.c_str());
            CHECK_ERROR(fabs(all_lse[rows[i]] - lse[i]) / fmax(1, fabs(lse[i])), fp32_sum, "long attention log-sum-exp",
                        where.c_str());
            if (rows[i] == 0) continue;  // one key: nothing to choose, dq is zero but for rounding
            // Twice, because the difference dp - delta is made with an output that was stored.
            CHECK_ERROR(
                max_error(Values(&all_dqkv[at * 3], &all_dqkv[at * 3] + HS), Values(&dqkv[at * 3], &dqkv[at * 3] + HS)),
                2 * stored, "long attention backward dq (max)", where.c_str());
        }
        CHECK_ERROR(max_error(all_dqkv, dqkv), stored, "long attention backward dqkv (max)",
                    shape_name("T %zu, head of %zu", T, HS).c_str());
    }
}

#endif
