// optimizer_kernels.cuh: the part of test_kernels.cu that tests the optimizers' kernels and the moving average.
#ifndef OPTIMIZER_KERNELS_CUH
#define OPTIMIZER_KERNELS_CUH

#include "test/harness/numerics.h"
#include "zero/kernels.h"
#include "zero/master_weights.h"
#include "zero/optimizers/optimizers.h"

static uint32_t word_of(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static float float_of(uint32_t u) {
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

// The parameter of a master weight.
static float nearest(float master) { return float_of(zero_master_round(word_of(master)) << 16); }

static void update(zero_optimizer_arrays arrays, enum zero_dtype dtype, enum zero_master master,
                   const zero_optimizer_chunk *chunks, size_t num_chunks, zero_optimizer_args a,
                   enum zero_optimizer_kind kind = ZERO_ADAMW) {
    must(zero_optimizer_launch(kind, arrays, dtype, master, chunks, num_chunks, a, 0));
}

// A shard with tensors that decay, others that do not, and gaps that belong to no chunk and must not be touched.
template <class T> static void check_adamw(int t, float scale) {
    constexpr enum zero_dtype dtype = sizeof(T) == 4 ? ZERO_F32 : ZERO_BF16;
    const size_t counts[] = { ZERO_OPTIMIZER_CHUNK, 8, 64, 3000, 0, 72, ZERO_OPTIMIZER_CHUNK }, gap = 128;
    std::vector<zero_optimizer_chunk> chunks;
    size_t n = gap;
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        chunks.push_back(zero_optimizer_chunk{ n, n + 64, n + 128, 0, (uint32_t)counts[i], (int32_t)(i % 2), 0 });
        n += (counts[i] + 63) / 64 * 64 + gap;
    }
    n += 128;
    const int own_master = dtype == ZERO_BF16;
    Values w = random_values<float>(n, 1), m = random_values<float>(n, 0.1), v = random_values<float>(n, 0.01, 0.02);
    const Values g = random_values<float>(n, 3);
    Values params(n);
    for (size_t i = 0; i < n; i++) params[i] = own_master ? rounded<T>(w[i]) : w[i];
    const Device<T> dp(params);
    const Device<float> dw(w), dm(m), dv(v), dg(g);
    zero_optimizer_chunk *device_chunks;
    must(cudaMalloc((void **)&device_chunks, chunks.size() * sizeof *device_chunks));
    must(cudaMemcpy(device_chunks, chunks.data(), chunks.size() * sizeof *device_chunks, cudaMemcpyHostToDevice));
    const zero_optimizer_args a = {
        6e-4f, 0.9f, 0.95f, 1e-8f, 0.1f, 1 - powf(0.9f, (float)t), 1 - powf(0.95f, (float)t), scale, 0, 0, NULL
    };
    update({ dp.p, own_master ? dw.p : NULL, { dm.p, dv.p }, dg.p }, dtype, ZERO_MASTER_FP32, device_chunks,
           chunks.size(), a);
    must(cudaFree(device_chunks));

    Values &master = own_master ? w : params;
    for (const zero_optimizer_chunk &chunk : chunks) {
        for (size_t i = 0; i < chunk.count; i++) {
            const size_t s = chunk.state + i, p = chunk.param + i, at = own_master ? s : p;
            const double gradient = g[chunk.grad + i] * a.scale;
            m[s] = a.beta1 * m[s] + (1 - (double)a.beta1) * gradient;
            v[s] = a.beta2 * v[s] + (1 - (double)a.beta2) * gradient * gradient;
            const double decay = chunk.decay ? a.weight_decay * master[at] : 0;
            master[at] -= a.lr * (m[s] / a.correction1 / (sqrt(v[s] / a.correction2) + a.eps) + decay);
        }
    }
    char where[80];
    snprintf(where, sizeof where, "step %d, %s, scale %g", t, own_master ? "bf16" : "fp32", scale);
    const Values got_params = dp.read(), got_master = own_master ? dw.read() : got_params;
    CHECK_ERROR(max_error(dm.read(), m), 5e-7, "AdamW: m (max)", where);
    CHECK_ERROR(max_error(dv.read(), v), 5e-7, "AdamW: v (max)", where);
    CHECK_ERROR(max_error(got_master, master), 2e-7, "AdamW: master weights (max)", where);
    if constexpr (dtype == ZERO_BF16) {
        for (const zero_optimizer_chunk &chunk : chunks) {
            for (size_t i = 0; i < chunk.count; i++)
                params[chunk.param + i] = nearest((float)got_master[chunk.state + i]);
        }
        CHECK_BITS(got_params, params,
                   "%s: parameters are not the rounded master weights, or were written outside of the chunks", where);
    }
}

static void adamw_is_another_formula(void) {
    for (int t : { 1, 2, 1000 }) {
        check_adamw<float>(t, 1);
        check_adamw<bf16>(t, 0.125f);
    }
}

static void adamw_moves_padding(void) {
    const zero_optimizer_chunk chunk = { 0, 0, 0, 0, 64, 1, 0 };
    const zero_optimizer_args a = { 1, 0.9f, 0.95f, 1e-8f, 0.1f, 0.1f, 0.05f, 1, 0, 0, NULL };
    const Values zero(64, 0);
    const Device<float> w(zero), m(zero), v(zero), g(zero);
    zero_optimizer_chunk *device_chunk;
    must(cudaMalloc((void **)&device_chunk, sizeof chunk));
    must(cudaMemcpy(device_chunk, &chunk, sizeof chunk, cudaMemcpyHostToDevice));
    for (int step = 0; step < 3; step++)
        update({ w.p, NULL, { m.p, v.p }, g.p }, ZERO_F32, ZERO_MASTER_FP32, device_chunk, 1, a);
    must(cudaFree(device_chunk));
    CHECK_BITS(w.read(), zero, "weights of padding");
    CHECK_BITS(m.read(), zero, "m of padding");
    CHECK_BITS(v.read(), zero, "v of padding");
}

// bf16 weights with their optimizer state, as bits; what is between the chunks is all ones and must stay so.
typedef struct Weights {
    std::vector<zero_optimizer_chunk> chunks;
    std::vector<uint16_t> params, low;
    std::vector<uint32_t> master, m, v, g;
} Weights;

template <class T> struct OnDevice {  // a host array on the device, and read back at the end of the scope
    std::vector<T> &host;
    T *p;
    explicit OnDevice(std::vector<T> &h) : host(h), p(NULL) {
        must(cudaMalloc((void **)&p, host.size() * sizeof(T)));
        must(cudaMemcpy(p, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice));
    }
    ~OnDevice() {
        must(cudaDeviceSynchronize());
        must(cudaMemcpy(host.data(), p, host.size() * sizeof(T), cudaMemcpyDeviceToHost));
        must(cudaFree(p));
    }
    OnDevice(const OnDevice &) = delete;
    float *floats() const { return reinterpret_cast<float *>(p); }
};

static const zero_optimizer_args ARGS = { 3e-3f, 0.9f, 0.95f, 1e-8f, 0.1f, 0.1f, 0.05f, 0.125f, 0x123456789abcdefull,
                                          0,     NULL };

static void train(Weights &w, enum zero_master mode, uint64_t first_step, int steps, zero_optimizer_args a = ARGS,
                  enum zero_optimizer_kind kind = ZERO_ADAMW) {
    OnDevice<zero_optimizer_chunk> chunks(w.chunks);
    OnDevice<uint16_t> params(w.params), low(w.low);
    OnDevice<uint32_t> master(w.master), m(w.m), v(w.v), g(w.g);
    void *const kept = mode == ZERO_MASTER_FP32 ? (void *)master.p : mode == ZERO_MASTER_SPLIT ? (void *)low.p : NULL;
    for (int s = 0; s < steps; s++) {
        a.t = first_step + (uint64_t)s;
        update({ params.p, kept, { m.floats(), v.floats() }, g.floats() }, ZERO_BF16, mode, chunks.p, w.chunks.size(),
               a, kind);
    }
}

static Weights some_weights(void) {
    const size_t counts[] = { ZERO_OPTIMIZER_CHUNK, 8, 64, 3000, 72 }, n = 4 * ZERO_OPTIMIZER_CHUNK;
    Weights w;
    size_t at = 64;
    w.params.assign(n, 0xffff);
    w.low.assign(n, 0xffff);
    for (auto *words : { &w.master, &w.m, &w.v, &w.g }) words->assign(n, 0xffffffff);
    for (size_t count : counts) {
        w.chunks.push_back(zero_optimizer_chunk{ at + 64, at, at, ((uint64_t)5 << 32) + 3 * at + 1, (uint32_t)count,
                                                 (int32_t)(at / 64 % 2), 0 });
        for (size_t i = at; i < at + count; i++) {
            uint32_t master = word_of((float)uniform());
            if (i % 7 == 0) master = (master & 0xffff0000) | (0x7fff + i % 3);  // a tie, and its neighbours
            if (i == at + 5) master = 0x7f7fffff;  // the largest float: its parameter is infinity
            w.master[i] = master;
            w.low[i] = (uint16_t)master;
            w.params[i + 64] = (uint16_t)zero_master_round(master);
            w.m[i] = word_of((float)uniform());
            w.v[i] = word_of((float)(1 + uniform()));
            w.g[i] = word_of((float)uniform());
        }
        at += (count + 63) / 64 * 64 + 128;
    }
    return w;
}

static void check_split_master(enum zero_optimizer_kind kind) {
    Weights plain = some_weights(), split = plain;
    const std::vector<uint16_t> gaps = split.low;
    train(plain, ZERO_MASTER_FP32, 1, 5, ARGS, kind);
    train(split, ZERO_MASTER_SPLIT, 1, 5, ARGS, kind);
    CHECK(plain.params == split.params && plain.m == split.m && plain.v == split.v, "the parameters, m or v differ");
    std::vector<uint32_t> joined(plain.master.size(), 0xffffffff);
    for (const zero_optimizer_chunk &t : split.chunks) {
        for (size_t i = 0; i < t.count; i++)
            joined[t.state + i] = zero_master_join((uint32_t)split.params[t.param + i],
                                                   (uint32_t)split.low[t.state + i]);
    }
    CHECK(joined == plain.master, "the joined master weights differ");
    for (const zero_optimizer_chunk &t : split.chunks)
        memcpy(&split.low[t.state], &gaps[t.state], t.count * sizeof(uint16_t));
    CHECK(split.low == gaps, "low halves outside of the chunks were written");
}

static void split_master_has_other_bits(void) {
    for (auto kind : { ZERO_ADAMW, ZERO_SGD, ZERO_LION }) check_split_master(kind);
}

// The fp32 value before rounding is what the plain mode makes of a master weight that is the parameter.
static void check_no_master(enum zero_optimizer_kind kind) {
    Weights none = some_weights();
    size_t up = 0, all = 0;
    for (uint64_t step = 7; step < 10; step++) {
        Weights plain = none;
        for (const zero_optimizer_chunk &t : plain.chunks) {
            for (size_t i = 0; i < t.count; i++) plain.master[t.state + i] = (uint32_t)plain.params[t.param + i] << 16;
        }
        train(plain, ZERO_MASTER_FP32, step, 1, ARGS, kind);
        train(none, ZERO_MASTER_NONE, step, 1, ARGS, kind);
        for (const zero_optimizer_chunk &t : plain.chunks) {
            for (size_t i = 0; i < t.count; i++) {
                uint16_t random[8];
                zero_master_random(random, ARGS.seed, step, t.logical + i / 8 * 8);
                const uint32_t word = plain.master[t.state + i];
                const int nan = (word & 0x7fffffff) > 0x7f800000;
                const uint32_t rounded = nan ? (word | 0x400000) >> 16
                                             : (word >> 16) + ((word & 0xffff) + random[i % 8] > 0xffff);
                up += rounded != word >> 16;
                all++;
                plain.params[t.param + i] = (uint16_t)rounded;
            }
        }
        CHECK(plain.params == none.params && plain.m == none.m && plain.v == none.v,
              "step %d: other bits than a plain loop's", (int)step);
    }
    CHECK(up > all / 3 && up < all * 2 / 3, "%zu of %zu were rounded up", up, all);
}

static void no_master_rounds_otherwise(void) {
    for (auto kind : { ZERO_ADAMW, ZERO_SGD, ZERO_LION }) check_no_master(kind);
}

// The update on the host, beside the kernel's.
static void check_host(enum zero_optimizer_kind kind, enum zero_master mode, bool is_bf16, bool skips) {
    Weights device = some_weights(), host = device;
    std::vector<uint32_t> ema(device.master.size(), word_of(0.5f)), host_ema = ema;
    std::vector<zero_decision> decision(1);
    std::vector<zero_tensor_args> tensors(1);
    decision[0].factor = 0.25f, decision[0].skip = skips;
    tensors[0] = zero_tensor_args{ 2e-3f, 0.2f, 0.3f, 0.1f, 0 };
    const enum zero_dtype dtype = is_bf16 ? ZERO_BF16 : ZERO_F32;
    for (Weights *w : { &device, &host })
        for (zero_optimizer_chunk &c : w->chunks)
            if (!is_bf16) c.param = c.state;
    for (uint64_t step = 1; step < 4; step++) {
        const OnDevice<zero_optimizer_chunk> chunks(device.chunks);
        const OnDevice<uint16_t> params(device.params), low(device.low);
        const OnDevice<uint32_t> master(device.master), m(device.m), v(device.v), g(device.g), average(ema);
        const OnDevice<zero_decision> decided(decision);
        const OnDevice<zero_tensor_args> of_tensors(tensors);
        zero_optimizer_args a = ARGS;
        a.t = step, a.ema_weight = 0.125f;
        for (bool on_host : { false, true }) {
            Weights &w = host;
            a.decision = step == 1 ? NULL : on_host ? decision.data() : decided.p;
            a.tensors = step != 2 ? NULL : on_host ? tensors.data() : of_tensors.p;
            void *whole = on_host ? w.master.data() : master.p, *half = on_host ? w.low.data() : low.p;
            zero_optimizer_arrays arrays = {};
            arrays.params = !is_bf16 ? whole : on_host ? w.params.data() : params.p;
            arrays.master = !is_bf16 || mode == ZERO_MASTER_NONE ? NULL : mode == ZERO_MASTER_SPLIT ? half : whole;
            arrays.state[0] = on_host ? reinterpret_cast<float *>(w.m.data()) : m.floats();
            arrays.state[1] = on_host ? reinterpret_cast<float *>(w.v.data()) : v.floats();
            arrays.grads = on_host ? reinterpret_cast<float *>(w.g.data()) : g.floats();
            arrays.ema = on_host ? reinterpret_cast<float *>(host_ema.data()) : average.floats();
            if (on_host)
                zero_optimizer_update(kind, &arrays, dtype, mode, w.chunks.data(), w.chunks.size(), &a);
            else
                update(arrays, dtype, mode, chunks.p, device.chunks.size(), a, kind);
        }
    }
    CHECK(device.params == host.params && device.low == host.low && device.master == host.master &&
              device.m == host.m && device.v == host.v && ema == host_ema,
          "%s, %s, master weights %d%s: other bits than on the device", zero_optimizer_get(kind)->name,
          is_bf16 ? "bf16" : "fp32", (int)mode, skips ? ", skipped" : "");
}

static void host_has_other_bits(void) {
    for (auto kind : { ZERO_ADAMW, ZERO_SGD, ZERO_LION }) {
        for (bool skips : { false, true }) {
            check_host(kind, ZERO_MASTER_FP32, false, skips);
            for (auto mode : { ZERO_MASTER_FP32, ZERO_MASTER_SPLIT, ZERO_MASTER_NONE })
                check_host(kind, mode, true, skips);
        }
    }
}

// One value, rounded in many places and steps: the mean is the value, within 4 standard deviations.
static void stochastic_rounding_has_a_bias(void) {
    const size_t n = ZERO_OPTIMIZER_CHUNK, steps = 16;
    for (double value : { 0.99999, 0.99, 1.0 / 3, 1e-3, -1.0 / 3 }) {
        double sum = 0;
        zero_optimizer_args a = { 1, 0, 0, 1e-30f, 0, 1, 1, 1, 42, 0, NULL };  // w = 2 value - value m / sqrt(v)
        a.lr = (float)value;
        const uint32_t start = zero_master_round(word_of(2 * a.lr));
        const float before = float_of(start << 16), exact = before - a.lr * 1.0f;
        for (size_t step = 1; step <= steps; step++) {
            Weights w;
            w.chunks.push_back(zero_optimizer_chunk{ 0, 0, 0, 1000, (uint32_t)n, 0, 0 });
            w.params.assign(n, (uint16_t)start);
            w.low.assign(n, 0);
            for (auto *words : { &w.master, &w.m, &w.v }) words->assign(n, 0);
            w.g.assign(n, word_of(1));
            train(w, ZERO_MASTER_NONE, step, 1, a);
            for (uint16_t p : w.params) sum += float_of((uint32_t)p << 16);
        }
        const double p = (word_of(exact) & 0xffff) / 65536.0,
                     gap = fabs((double)float_of((word_of(exact) & 0xffff0000) + 0x10000) -
                                float_of(word_of(exact) & 0xffff0000));
        const double sigma = gap * sqrt(p * (1 - p) / (double)(n * steps));
        char where[64];
        snprintf(where, sizeof where, "value %.6f, up with probability %.4f", exact, p);
        CHECK_ERROR(fabs(sum / (double)(n * steps) - exact) / sigma, 4, "mean of roundings, in standard deviations",
                    where);
    }
}

static void sgd_or_lion_is_another_formula(void) {
    for (auto kind : { ZERO_SGD, ZERO_LION }) {
        const size_t n = 3000;
        Values w = random_values<float>(n, 1), m = random_values<float>(n, 0.1);
        const Values g = random_values<float>(n, 3);
        const Device<float> dw(w), dm(m), dg(g);
        std::vector<zero_optimizer_chunk> chunks(1, zero_optimizer_chunk{ 0, 0, 0, 0, (uint32_t)n, 1, 0 });
        {
            const OnDevice<zero_optimizer_chunk> chunk(chunks);
            update({ dw.p, NULL, { dm.p }, dg.p }, ZERO_F32, ZERO_MASTER_FP32, chunk.p, 1, ARGS, kind);
        }
        const double lr = ARGS.lr, beta1 = ARGS.beta1, beta2 = ARGS.beta2;
        for (size_t i = 0; i < n; i++) {
            const double gradient = g[i] * ARGS.scale, decay = ARGS.weight_decay * w[i];
            const double c = beta1 * m[i] + (1 - beta1) * gradient;
            m[i] = kind == ZERO_SGD ? beta1 * m[i] + gradient + decay : beta2 * m[i] + (1 - beta2) * gradient;
            w[i] -= lr * (kind == ZERO_SGD ? m[i] : (c > 0) - (c < 0) + decay);
        }
        const char *name = zero_optimizer_get(kind)->name;
        CHECK_ERROR(max_error(dm.read(), m), 5e-7, "SGD, Lion: m (max)", name);
        CHECK_ERROR(max_error(dw.read(), w), 2e-7, "SGD, Lion: weights (max)", name);
    }
}

// To the rounded average, and back.
template <class T> static void check_exchange(void) {
    constexpr enum zero_dtype dtype = sizeof(T) == 4 ? ZERO_F32 : ZERO_BF16;
    const size_t n = 5000;
    const Values params = random_values<T>(n, 1), ema = random_values<float>(n, 1);
    Values rounded = ema;
    if (dtype == ZERO_BF16) {
        for (double &x : rounded) x = nearest((float)x);
    }
    const Device<T> d_params(params);
    const Device<float> d_ema(ema);
    must(zero_kernel_exchange_ema(d_params.p, d_ema.p, dtype, 0, n, 0));
    CHECK_BITS(d_params.read(), rounded, "parameters are not the average");
    must(zero_kernel_exchange_ema(d_params.p, d_ema.p, dtype, 1, n, 0));
    CHECK_BITS(d_params.read(), params, "parameters do not come back");
    CHECK_BITS(d_ema.read(), ema, "the average does not come back");
}

static void exchanged_average_has_other_bits(void) {
    check_exchange<float>();
    check_exchange<bf16>();
}

#endif
