// memory_requests.cuh: what the hot kernels ask of memory, as the emulated GPU counts it: sectors of global memory,
// passes over the banks of shared memory, and bytes stored, which shows partial sums that are written again and again.
// test_attention.cu runs these cases; not under ThreadSanitizer, which takes the threads of a block for threads and the
// counter's memory for theirs.
#ifndef MEMORY_REQUESTS_CUH
#define MEMORY_REQUESTS_CUH
#if defined(CUDA_ON_CPU_EMULATED) && !defined(CUDA_ON_CPU_TSAN)

#include "test/unit/attention_kernels.cuh"
#include "gpt2/classifier.cuh"
#include "gpt2/encoder.cuh"
#include "gpt2/layernorm.cuh"
#include "gpt2/elementwise.cuh"
#include "test/harness/numerics.h"
#include "zero/kernels.h"
#include "zero/optimizers/optimizers.h"

template <class F> static cuda_on_cpu_memory requests_of(F launch) {
    cuda_on_cpu_memory m = {};
    cudaEvent_t before, after;
    must(cudaEventCreate(&before));
    must(cudaEventCreate(&after));
    cuda_on_cpu_count_memory(1);
    must(cudaEventRecord(before, 0));
    launch();
    must(cudaEventRecord(after, 0));
    must(cudaEventSynchronize(after));
    cuda_on_cpu_count_memory(0);
    cuda_on_cpu_add_memory_between(&m, before, after);
    must(cudaEventDestroy(before));
    must(cudaEventDestroy(after));
    return m;
}

static cudaLaunchConfig_t one_warp() { return launch_config(1, WARP, 0, 0); }

// ---------------------------------------------------------------------------------------------------------------------
// The counter, beside numbers by hand

// Lane i loads pack STEP * i; lanes `lanes` and up nothing.
template <int STEP> __global__ void __launch_bounds__(32) load_kernel(bf16 *out, const bf16 *in, int lanes) {
    if ((int)threadIdx.x < lanes) st(out + threadIdx.x * PACK, ld(in + STEP * threadIdx.x * PACK));
}

// Each lane has a row of a tile in shared memory, as ldmatrix reads them, `stride` elements from the next.
__global__ void __launch_bounds__(32) rows_kernel(float *out, const float *in, int stride) {
    __shared__ __align__(16) bf16 tile[32 * 72];
    st(tile + threadIdx.x * stride, ld(in));
    __syncthreads();
    if (threadIdx.x == 0) st(out, ld(tile + stride));
}

static void requests_are_miscounted(void) {
    const Device<bf16> in(2 * WARP * PACK), out(WARP * PACK);
    const Device<float> x(PACK), y(PACK);
    const cudaLaunchConfig_t c = one_warp();
    const struct {
        void (*kernel)(bf16 *, const bf16 *, int);
        int lanes;
        uint64_t sectors, fewest;  // of the load; the store has half as many as lanes
    } load[] = { { load_kernel<0>, 32, 1, 1 },
                 { load_kernel<1>, 32, 16, 16 },
                 { load_kernel<1>, 20, 10, 10 },
                 { load_kernel<2>, 32, 32, 16 } };
    for (const auto &l : load) {
        const cuda_on_cpu_memory m = requests_of(
            [&] { must(cudaLaunchKernelEx(&c, l.kernel, out.p, static_cast<const bf16 *>(in.p), l.lanes)); });
        const uint64_t lanes = static_cast<uint64_t>(l.lanes);
        CHECK_EQ(m.requests, 2);
        CHECK_EQ(m.sectors, l.sectors + lanes / 2);
        CHECK_EQ(m.fewest_sectors, l.fewest + lanes / 2);
        CHECK_EQ(m.stored, lanes * 16);
        CHECK_EQ(m.shared_requests, 0);
    }
    // 32 lanes of 16 bytes: four wavefronts, or eight times as many if the rows begin in the same bank; one for the
    // lane that reads. The pack of floats that all lanes load is two requests, and one lane stores it by two.
    for (const auto &rows : { std::pair(64, 32), std::pair(72, 4) }) {
        const auto launch = [&] {
            must(cudaLaunchKernelEx(&c, rows_kernel, y.p, static_cast<const float *>(x.p), rows.first));
        };
        const cuda_on_cpu_memory m = requests_of(launch);
        CHECK_EQ(m.shared_requests, 2);
        CHECK_EQ(m.wavefronts, rows.second + 1);
        CHECK_EQ(m.fewest_wavefronts, 4 + 1);
        CHECK_EQ(m.requests, 4);
        CHECK_EQ(m.stored, 32);
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// The kernels. A pack of floats is two requests that touch all of its sectors (memory_requests.cpp), so where there are
// floats the fewest sectors are exceeded.

struct Allowed {
    double sectors, wavefronts;  // times the fewest
    size_t stored;               // bytes, exactly
};

// What is wrong with them, or "".
static std::string too_many(const cuda_on_cpu_memory &m, const Allowed &a) {
    const double sectors = (double)m.sectors / (double)m.fewest_sectors;
    const double wavefronts = m.shared_requests ? (double)m.wavefronts / (double)m.fewest_wavefronts : 1;
    char text[160] = "";
    if (m.requests == 0 || sectors > a.sectors)
        snprintf(text, sizeof text, "%.3f times the fewest sectors", sectors);
    else if (wavefronts > a.wavefronts)
        snprintf(text, sizeof text, "%.3f times the fewest wavefronts", wavefronts);
    else if (m.stored != a.stored)
        snprintf(text, sizeof text, "%zu bytes stored, not %zu", (size_t)m.stored, a.stored);
    return text;
}

template <class F> static void check_requests(const char *what, const Allowed &allowed, F launch) {
    const cuda_on_cpu_memory m = requests_of(launch);
    printf("  %-28s %7.2f sectors a request, %5.3f times the fewest; wavefronts %5.3f times; %zu bytes stored\n", what,
           (double)m.sectors / (double)m.requests, (double)m.sectors / (double)m.fewest_sectors,
           m.shared_requests ? (double)m.wavefronts / (double)m.fewest_wavefronts : 0, (size_t)m.stored);
    const std::string wrong = too_many(m, allowed);
    CHECK(wrong.empty(), "%s: %s", what, wrong.c_str());
}

static void rows_are_read_in_pieces_or_written_twice(void) {
    const size_t B = 2, T = 20, R = B * T, C = 768, V = 1000, Vp = 1024, X = sizeof(floatX), F = sizeof(float);
    const size_t chunks = ceil_div(R, chunk_rows(R));
    const double packs = FLOATX == ZERO_F32 ? 2 : 1;
    const DeviceX x(random_x(R * C, 1)), y(random_x(R * C, 1)), out(R * C), weight(random_x(C, 1)), bias(C), w(V * C),
        wpe(T * C), logits(random_x(R * Vp, 1));
    const DeviceF sum(R * C), mean(R), rstd(R), losses(R), partial(max_chunks(R) * 2 * C);
    std::vector<int> ids(R, 7), tokens = { 3, 7 }, start = { 0, 1, (int)R }, position(R);
    ids[5] = 3;
    position[0] = 5;
    for (int i = 1; i < (int)R; i++) position[i] = i <= 5 ? i - 1 : i;
    const Device<int> d_ids(Values(ids.begin(), ids.end())), d_tokens(Values(tokens.begin(), tokens.end())),
        d_start(Values(start.begin(), start.end())), d_position(Values(position.begin(), position.end()));

    check_requests("encoder forward", { packs, 1, R * C * X },
                   [&] { encoder_forward(out.p, d_ids.p, w.p, wpe.p, B, T, C, 0); });
    check_requests("residual", { packs, 1, R * C * X }, [&] { residual(out.p, x.p, y.p, R * C, 0); });
    check_requests("round_head", { FLOATX == ZERO_F32 ? 2 : 1.7, 1, R * C * X },
                   [&] { round_head(out.p, sum.p, R * C, 0); });
    check_requests("gelu forward", { packs, 1, R * C * X }, [&] { gelu_forward(out.p, x.p, R * C, 0); });
    check_requests("gelu backward", { packs, 1, R * C * X }, [&] { gelu_backward(out.p, x.p, R * C, 0); });
    check_requests("layernorm forward", { packs, 1, R * C * X },
                   [&] { layernorm_forward(out.p, mean.p, rstd.p, x.p, weight.p, bias.p, R, C, 0); });
    check_requests("layernorm backward", { 2, 2, R * C * X + chunks * 2 * C * F + 2 * C * X }, [&] {
        layernorm_backward(out.p, weight.p, bias.p, partial.p, y.p, x.p, weight.p, mean.p, rstd.p, R, C, 0);
    });
    check_requests("bias backward", { 2, 2, chunks * C * F + C * X },
                   [&] { bias_backward(bias.p, partial.p, x.p, R, C, 0); });
    check_requests("classifier", { packs, 1, R * Vp * X },
                   [&] { classifier(logits.p, losses.p, d_ids.p, 1, R, V, Vp, 1, 0); });
    check_requests("encoder backward", { packs, 2, 2 * C * X + T * C * X }, [&] {
        encoder_backward(w.p, wpe.p, x.p, TokenRows{ d_tokens.p, d_start.p, d_position.p }, 2, B, T, C, 0);
    });
}

static void tiles_have_bank_conflicts(void) {
    for (size_t HS : { 64, 80, 96, 128 }) {
        const size_t B = 1, T = 130, NH = 2, C = NH * HS, R = B * T, X = sizeof(floatX);
        const DeviceX qkv(random_x(R * 3 * C, 1)), out(R * C), dout(random_x(R * C, 1)), dqkv(R * 3 * C);
        const DeviceF lse(B * NH * T);
        const Device<char> scratch(attention_scratch<floatX>(B, T, NH));
        // Rows of 10 and 12 packs: groups of eight lanes that copy the end of one row and the beginning of the next.
        const double banks = FLOATX == ZERO_F32 ? 2 : HS == 64 || HS == 128 ? 1 : 1.23;
        char name[64];
        snprintf(name, sizeof name, "attention forward, %zu", HS);
        check_requests(name, { FLOATX == ZERO_F32 ? 2 : 1.01, banks, R * C * X },
                       [&] { attention_forward(out.p, lse.p, scratch.p, qkv.p, B, T, C, NH, 0); });
        snprintf(name, sizeof name, "attention backward, %zu", HS);
        check_requests(name, { FLOATX == ZERO_F32 ? 2 : 1.01, banks, 3 * R * C * X },
                       [&] { attention_backward(dqkv.p, scratch.p, dout.p, out.p, qkv.p, lse.p, B, T, C, NH, 0); });
    }
}

static void engine_reads_in_pieces(void) {
    const size_t n = 1 << 14;
    const Device<bf16> params(n), a(n), b(n);
    const DeviceF sum(n), master(n), m(n), v(n);
    const void *const pointers[] = { a.p, b.p };
    const zero_optimizer_chunk chunk = { 0, 0, 0, 0, (uint32_t)n, 1, 0 };
    const void **chunks;
    zero_optimizer_chunk *device_chunk;
    must(cudaMalloc((void **)&chunks, sizeof pointers));
    must(cudaMemcpy(chunks, pointers, sizeof pointers, cudaMemcpyHostToDevice));
    must(cudaMalloc((void **)&device_chunk, sizeof chunk));
    must(cudaMemcpy(device_chunk, &chunk, sizeof chunk, cudaMemcpyHostToDevice));
    check_requests("sum of 2 chunks, bf16", { 1.5, 1, 4 * n },
                   [&] { must(zero_kernel_sum(sum.p, chunks, 2, ZERO_BF16, zero_partial_sums{}, n, 0)); });
    zero_optimizer_arrays arrays = { params.p, master.p, { m.p, v.p }, sum.p, NULL };
    zero_optimizer_args args = {};
    args.t = 1;
    args.lr = args.correction1 = args.correction2 = args.eps = args.scale = 1;
    check_requests("AdamW, bf16, fp32 master", { 2, 1, n * (2 + 3 * 4) }, [&] {
        must(zero_optimizer_launch(ZERO_ADAMW, arrays, ZERO_BF16, ZERO_MASTER_FP32, device_chunk, 1, args, 0));
    });
    must(cudaFree(chunks));
    must(cudaFree(device_chunk));
}

// ---------------------------------------------------------------------------------------------------------------------
// Planted faults: each is what one of the checks above is for.

// A column sum that is kept in memory, as bias_partial's once was.
__global__ void __launch_bounds__(32) sum_in_memory_kernel(float *sum, const bf16 *in, int rows, int n) {
    for (int r = 0; r < rows; r++) {
        for (int c = threadIdx.x * PACK; c < n; c += blockDim.x * PACK)
            st(sum + c, (r == 0 ? splat(0) : ld(sum + c)) + ld(in + r * n + c));
    }
}

static void planted_faults_are_not_noticed(void) {
    const size_t rows = 4, n = 2 * WARP * PACK;
    const Device<bf16> in(Values(rows * n, 1)), out(WARP * PACK);
    const DeviceF sum(n), x(PACK), y(PACK);
    const cudaLaunchConfig_t c = one_warp();
    const bf16 *from = in.p;
    const auto strided = [&](auto kernel) {
        return too_many(requests_of([&] { must(cudaLaunchKernelEx(&c, kernel, out.p, from, WARP)); }),
                        { 1, 1, WARP * 16 });
    };
    const auto conflicts = [&](int stride) {
        return too_many(
            requests_of([&] { must(cudaLaunchKernelEx(&c, rows_kernel, y.p, (const float *)x.p, stride)); }),
            { 2, 1, 32 });
    };
    CHECK_STR(strided(load_kernel<1>).c_str(), "");
    CHECK_STR(strided(load_kernel<2>).c_str(), "1.500 times the fewest sectors");
    CHECK_STR(conflicts(72).c_str(), "");
    CHECK_STR(conflicts(64).c_str(), "6.600 times the fewest wavefronts");
    const std::string again = too_many(
        requests_of([&] { must(cudaLaunchKernelEx(&c, sum_in_memory_kernel, sum.p, from, (int)rows, (int)n)); }),
        { 2, 1, n * sizeof(float) });
    CHECK_STR(again.c_str(), "8192 bytes stored, not 2048");
}

#define RUN_MEMORY_REQUESTS()                      \
    RUN(requests_are_miscounted);                  \
    RUN(rows_are_read_in_pieces_or_written_twice); \
    RUN(tiles_have_bank_conflicts);                \
    RUN(engine_reads_in_pieces);                   \
    RUN(planted_faults_are_not_noticed)

#else
#define RUN_MEMORY_REQUESTS()
#endif
#endif
