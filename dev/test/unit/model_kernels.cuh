// model_kernels.cuh: the part of test_model.cu that compares the model's kernels one by one with the reference.
//
// Sizes are chosen for their edge cases: a single row, one less and one more than a tile or a chunk, channels that are
// not a multiple of a warp's packs, enough rows for chunks of more than the smallest size. Outputs are NaN before a
// kernel writes them, or have a value if it is documented to add to them. Errors are relative to the largest expected
// element: 1e-5 in fp32, which leaves room for a sum of some hundred terms, and in bf16 half an ulp at the largest
// element, 2^-8 with a margin for values that are rounded twice.
#ifndef MODEL_KERNELS_CUH
#define MODEL_KERNELS_CUH

#include "test/unit/attention_kernels.cuh"

static Values as_values(const std::vector<int> &v) { return Values(v.begin(), v.end()); }

static void elementwise_kernel_is_wrong(void) {
    for (size_t n : { (size_t)8, (size_t)24, (size_t)8 * 515, (size_t)96 * 65 * 4, (size_t)8 * 30001 }) {
        if (n > MAX_WORK) continue;
        const std::string where = shape_name("n = %zu", n);
        const Values a = random_x(n, 6), b = random_x(n, 1);
        const DeviceX da(a), db(b), out(n);
        Values want(n);
        for (size_t i = 0; i < n; i++) want[i] = a[i] + b[i];
        residual(out.p, da.p, db.p, n, 0);
        CHECK_ERROR(max_error(out.read(), want), stored, "residual (max)", where.c_str());

        reference_gelu_forward(want.data(), a.data(), n);
        gelu_forward(out.p, da.p, n, 0);
        CHECK_ERROR(max_error(out.read(), want), stored, "gelu forward (max)", where.c_str());

        want.assign(n, 0);
        reference_gelu_backward(want.data(), b.data(), a.data(), n);
        gelu_backward(db.p, da.p, n, 0);
        CHECK_ERROR(max_error(db.read(), want), stored, "gelu backward (max)", where.c_str());
    }
}

static void layernorm_kernel_is_wrong(void) {
    static const struct {
        size_t R, C;
        double center, scale;
    } shape[] = {
        { 1, 8, 0, 2 },    { 7, 96, 0, 2 },      { 16, 128, 10, 2 }, { 17, 80, -1, 2 },
        { 195, 96, 3, 2 }, { 200, 264, 0, 2 },   { 65, 768, 0, 2 },  { 4097, 16, 1, 2 },
        { 6000, 8, 0, 2 }, { 33, 96, 0, 0.005 }, { 3, 12296, 0, 2 }
    };  // 0.005: a variance of about epsilon; 12296: the sums do not fit shared memory
    for (const auto &s : shape) {
        const size_t R = s.R, C = s.C, n = R * C;
        if (n > MAX_WORK) continue;
        const std::string where = shape_name("%zu rows of %zu", R, C);
        const Values x = random_x(n, s.scale, s.center), weight = random_x(C, 1, 1), bias = random_x(C, 1);
        const Values dout = random_x(n, 1), dx = random_x(n, 1);
        const DeviceX d_x(x), d_weight(weight), d_bias(bias), d_dout(dout), d_dx(dx), out(n), d_dweight(C), d_dbias(C);
        const DeviceF d_mean(R), d_rstd(R), partial(max_chunks(R) * 2 * C);
        Values want(n), mean(R), rstd(R), want_dx = dx, dweight(C, 0), dbias(C, 0);
        reference_layernorm_forward(want.data(), x.data(), weight.data(), bias.data(), R, C);
        for (size_t r = 0; r < R; r++) reference_layernorm_moments(&x[r * C], C, &mean[r], &rstd[r]);
        reference_layernorm_backward(want_dx.data(), dweight.data(), dbias.data(), dout.data(), x.data(), weight.data(),
                                     R, C);

        layernorm_forward(out.p, d_mean.p, d_rstd.p, d_x.p, d_weight.p, d_bias.p, R, C, 0);
        CHECK_ERROR(max_error(out.read(), want), stored, "layernorm forward (max)", where.c_str());
        CHECK_ERROR(max_error(d_mean.read(), mean), fp32_sum, "layernorm mean (max)", where.c_str());
        CHECK_ERROR(max_error(d_rstd.read(), rstd), fp32_sum, "layernorm rstd (max)", where.c_str());
        layernorm_backward(d_dx.p, d_dweight.p, d_dbias.p, partial.p, d_dout.p, d_x.p, d_weight.p, d_mean.p, d_rstd.p,
                           R, C, 0);
        CHECK_ERROR(max_error(d_dx.read(), want_dx), stored, "layernorm backward dx (max)", where.c_str());
        CHECK_ERROR(max_error(d_dweight.read(), dweight), stored, "layernorm backward dweight (max)", where.c_str());
        CHECK_ERROR(max_error(d_dbias.read(), dbias), stored, "layernorm backward dbias (max)", where.c_str());
    }
}

static void linear_layer_is_wrong(void) {
    static const struct {
        size_t R, C, OC;
    } shape[] = { { 1, 8, 24 }, { 7, 96, 96 }, { 65, 96, 288 }, { 195, 80, 320 }, { 600, 16, 8 }, { 5000, 8, 8 } };
    for (const auto &s : shape) {
        const size_t R = s.R, C = s.C, OC = s.OC;
        if (R * OC > MAX_WORK) continue;
        const std::string where = shape_name("%zu rows, %zu to %zu", R, C, OC);
        const Values x = random_x(R * C, 1), weight = random_x(OC * C, 1), bias = random_x(OC, 1),
                     dout = random_x(R * OC, 1);
        const DeviceX d_x(x), d_weight(weight), d_bias(bias), d_dout(dout), out(R * OC), d_dx(R * C), d_dweight(OC * C),
            d_dbias(OC);
        const DeviceF partial(max_chunks(R) * OC);
        Values want(R * OC), dx(R * C, 0), dweight(OC * C, 0), dbias(OC, 0);
        reference_linear_forward(want.data(), x.data(), weight.data(), bias.data(), R, C, OC);
        reference_linear_backward(dx.data(), dweight.data(), dbias.data(), dout.data(), x.data(), weight.data(), R, C,
                                  OC);

        linear_forward(out.p, d_x.p, d_weight.p, d_bias.p, R, C, OC, 0);
        linear_backward(d_dx.p, d_dweight.p, d_dbias.p, partial.p, d_dout.p, d_x.p, d_weight.p, R, C, OC, 0);
        CHECK_ERROR(max_error(out.read(), want), stored, "linear forward (max)", where.c_str());
        CHECK_ERROR(max_error(d_dx.read(), dx), stored, "linear backward dx (max)", where.c_str());
        CHECK_ERROR(max_error(d_dweight.read(), dweight), stored, "linear backward dweight (max)", where.c_str());
        CHECK_ERROR(max_error(d_dbias.read(), dbias), stored, "linear backward dbias (max)", where.c_str());
    }
}

// A GELU between two layers: forward and backward, by kernels of their own and inside the products. On the CPU to the
// bit.
static void gelu_inside_the_product_is_another(void) {
    static const struct { size_t R, C, OC; } shape[] = { { 1, 8, 8 }, { 33, 48, 200 }, { 195, 96, 384 } };
    for (const auto &s : shape) {
        const size_t R = s.R, C = s.C, OC = s.OC;
        const std::string where = shape_name("%zu rows, %zu to %zu", R, C, OC);
        const DeviceX x(random_x(R * C, 1)), w(random_x(OC * C, 1)), bias(random_x(OC, 1)), dout(random_x(R * C, 1)),
            w2(random_x(C * OC, 1));
        const DeviceF partial(max_chunks(R) * OC);
        Values out[2], pre[2], dpre[2], dweight[2];
        for (int fused = 0; fused < 2; fused++) {
            const DeviceX d_out(R * OC), d_pre(R * OC), d_dpre(R * OC), d_dweight(C * OC), d_dbias(C);
            linear_gelu_forward(d_out.p, d_pre.p, x.p, w.p, bias.p, R, C, OC, fused, 0);
            gelu_linear_backward(d_dpre.p, d_dweight.p, d_dbias.p, partial.p, dout.p, d_out.p, d_pre.p, w2.p, R, OC, C,
                                 fused, 0);
            out[fused] = d_out.read();
            pre[fused] = d_pre.read();
            dpre[fused] = d_dpre.read();
            dweight[fused] = d_dweight.read();
        }
#ifdef CUDA_ON_CPU
        if (!cuda_on_cpu_ptx) {  // else nvcc compiles the kernel, and g++ the product
            CHECK_BITS(out[1], out[0], "%s: GELU in the product", where.c_str());
            CHECK_BITS(dpre[1], dpre[0], "%s: GELU's derivative in the product", where.c_str());
        }
#endif
        CHECK_ERROR(max_error(pre[1], pre[0]), stored, "GELU in the product: its input (max)", where.c_str());
        CHECK_ERROR(max_error(out[1], out[0]), 2 * stored, "GELU in the product (max)", where.c_str());
        CHECK_ERROR(max_error(dpre[1], dpre[0]), 2 * stored, "GELU's derivative in the product (max)", where.c_str());
        CHECK_ERROR(max_error(dweight[1], dweight[0]), 2 * stored, "GELU in the product: dweight (max)", where.c_str());
    }
}

static void encoder_kernel_is_wrong(void) {
    static const struct {
        size_t B, T, C, V;
    } shape[] = { { 1, 1, 8, 1 },    { 2, 7, 96, 50 },    { 3, 65, 96, 9 },    { 2, 50, 96, 2 },
                  { 1, 70, 264, 2 }, { 1, 200, 80, 131 }, { 2, 64, 1032, 257 } };  // of 2 tokens: many rows for each
    for (const auto &s : shape) {
        const size_t B = s.B, T = s.T, C = s.C, V = s.V, R = B * T, maxT = T + 3;
        if (R * C > MAX_WORK) continue;
        const std::string where = shape_name("B %zu, T %zu, C %zu, V %zu", B, T, C, V);
        const std::vector<int> ids = random_ids(R, V);
        const Values wte = random_x(V * C, 1), wpe = random_x(maxT * C, 1), dout = random_x(R * C, 1),
                     dwte = random_x(V * C, 1);
        const DeviceX d_wte(wte), d_wpe(wpe), d_dout(dout), d_dwte(dwte), d_dwpe(Values(maxT * C, 0)), out(R * C);
        Values want(R * C), want_dwte = dwte, dwpe(maxT * C, 0), token, start, position;
        for (size_t v = 0; v < V; v++) {
            const size_t before = position.size();
            for (size_t r = 0; r < R; r++) {
                if (ids[r] == (int)v) position.push_back((double)r);
            }
            if (position.size() == before) continue;
            token.push_back((double)v);
            start.push_back((double)before);
        }
        start.push_back((double)R);
        const Device<int> d_ids(as_values(ids)), d_token(token), d_start(start), d_position(position);
        reference_encoder_forward(want.data(), ids.data(), wte.data(), wpe.data(), B, T, C);
        reference_encoder_backward(want_dwte.data(), dwpe.data(), dout.data(), ids.data(), B, T, C);

        encoder_forward(out.p, d_ids.p, d_wte.p, d_wpe.p, B, T, C, 0);
        CHECK_ERROR(max_error(out.read(), want), stored, "encoder forward (max)", where.c_str());
        encoder_backward(d_dwte.p, d_dwpe.p, d_dout.p, TokenRows{ d_token.p, d_start.p, d_position.p }, token.size(), B,
                         T, C, 0);
        CHECK_ERROR(max_error(d_dwte.read(), want_dwte), stored, "encoder backward dwte (max)", where.c_str());
        CHECK_ERROR(max_error(d_dwpe.read(), dwpe), stored, "encoder backward dwpe (max)", where.c_str());
    }
}

// The padding columns hold NaN: reading one becomes visible.
static void classifier_kernel_is_wrong(void) {
    static const struct {
        size_t R, V, Vp;
        double scale;
    } shape[] = { { 1, 1, 8, 1 },        { 7, 7, 128, 5 },     { 64, 50, 56, 1 },      { 65, 131, 256, 30 },
                  { 3, 1000, 1000, 80 }, { 5, 8193, 8320, 5 }, { 2, 50257, 50304, 10 } };
    for (const auto &s : shape) {
        const size_t R = s.R, V = s.V, Vp = s.Vp;
        if (R * Vp > MAX_WORK) continue;
        const std::string where = shape_name("%zu rows, V %zu, Vp %zu", R, V, Vp);
        const double dloss = 1 / (double)R;
        std::vector<int> targets = random_ids(R, V);
        targets[0] = (int)V - 1;
        if (R > 1) targets[1] = 0;
        Values logits = random_x(R * Vp, s.scale), losses(R), dlogits(R * Vp, 0), padding(R * (Vp - V), 0), got_padding;
        for (size_t r = 0; r < R; r++) {
            for (size_t c = V; c < Vp; c++) logits[r * Vp + c] = NAN;
        }
        reference_classifier(losses.data(), dlogits.data(), logits.data(), targets.data(), dloss, R, V, Vp);

        const DeviceX d_logits(logits);
        const DeviceF d_losses(R), d_losses_train(R);
        const Device<int> d_targets(as_values(targets));
        classifier(d_logits.p, d_losses.p, d_targets.p, (float)dloss, R, V, Vp, 0, 0);
        classifier(d_logits.p, d_losses_train.p, d_targets.p, (float)dloss, R, V, Vp, 1, 0);
        const Values got = d_logits.read();
        for (size_t r = 0; r < R; r++) got_padding.insert(got_padding.end(), &got[r * Vp] + V, &got[r * Vp] + Vp);
        if (V > 1)
            CHECK_ERROR(max_error(d_losses.read(), losses), fp32_sum, "losses (max)", where.c_str());
        else
            CHECK_BITS(d_losses.read(), Values(R, 0), "%s: the loss of a certain choice is not 0", where.c_str());
        CHECK_BITS(d_losses_train.read(), d_losses.read(), "%s: losses with train", where.c_str());
        CHECK_ERROR(max_error(got, dlogits), stored, "dlogits (max)", where.c_str());
        CHECK_BITS(got_padding, padding, "%s: gradients of padding columns", where.c_str());
    }
}

// Comparisons with NaN are false, so a maximum passes over it; the sum of exp must not.
static void nan_logit_is_swallowed(void) {
    const size_t V = 131, Vp = 256;
    const int target = 50;
    const Device<int> d_target(Values(1, target));
    for (size_t column : { (size_t)0, (size_t)1, (size_t)7, (size_t)8, (size_t)50, (size_t)128, V - 1 }) {
        for (double bad : { (double)NAN, (double)INFINITY }) {
            Values logits = random_x(Vp, 1);
            logits[column] = bad;
            const DeviceX d_logits(logits);
            const DeviceF d_loss(Values(1, 0));
            classifier(d_logits.p, d_loss.p, d_target.p, 1, 1, V, Vp, 1, 0);
            double sum = 0;
            for (double d : d_logits.read()) sum += d;
            CHECK(isnan(d_loss.read()[0]), "logit %zu of %zu is %f, the loss is %f", column, V, bad, d_loss.read()[0]);
            CHECK(isnan(sum), "logit %zu of %zu is %f, all gradients are finite", column, V, bad);
        }
    }
}

#endif
