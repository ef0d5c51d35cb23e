// The instructions of device/mma.cuh against the tables of the PTX ISA, written here element by element: on the
// emulated GPU, whose fragments they check, and on a GPU, which then checks these tables.
#include "device/mma.cuh"
#include "test/harness/numerics.h"

static cudaLaunchConfig_t one_warp() {
    cudaLaunchConfig_t c = {};
    c.gridDim = dim3(1);
    c.blockDim = dim3(WARP);
    return c;
}

static uint32_t bits_of(double x) {
    bf16 h;
    uint16_t bits;
    narrow(&h, x);
    memcpy(&bits, &h, sizeof bits);
    return bits;
}

// ---------------------------------------------------------------------------------------------------------------------
// Products. Element i of what a lane holds has this row and column ("Matrix Fragments for mma.m16n8k16 with floating
// point type").

static int a_row(int lane, int i) { return i < 2 || (4 <= i && i < 6) ? lane >> 2 : (lane >> 2) + 8; }
static int a_col(int lane, int i) { return lane % 4 * 2 + (i & 1) + (i < 4 ? 0 : 8); }
static int b_row(int lane, int i) { return lane % 4 * 2 + (i & 1) + (i < 2 ? 0 : 8); }
static int b_col(int lane, int) { return lane >> 2; }
static int c_row(int lane, int i) { return i < 2 ? lane >> 2 : (lane >> 2) + 8; }
static int c_col(int lane, int i) { return lane % 4 * 2 + (i & 1); }

__global__ void __launch_bounds__(WARP) multiply(float *d, const uint32_t *a, const uint32_t *b) {
    const int lane = threadIdx.x;
    float sums[4];
    uint32_t rows[4];
    for (int i = 0; i < 4; i++) {
        sums[i] = d[4 * lane + i];
        rows[i] = a[4 * lane + i];
    }
    mma(sums, rows, b[2 * lane], b[2 * lane + 1]);
    for (int i = 0; i < 4; i++) d[4 * lane + i] = sums[i];
}

// Small integers: exact in any order of sums.
static void product_has_another_layout() {
    double a[16][16], b[16][8], c[16][8];
    std::vector<uint32_t> a_bits(WARP * 4), b_bits(WARP * 2);
    Values in(WARP * 4);
    for (auto &row : a)
        for (double &x : row) x = random_below(201) - 100;
    for (auto &row : b)
        for (double &x : row) x = random_below(201) - 100;
    for (auto &row : c)
        for (double &x : row) x = random_below(2001) - 1000;
    for (int l = 0; l < WARP; l++) {
        for (int i = 0; i < 8; i++) a_bits[4 * l + i / 2] |= bits_of(a[a_row(l, i)][a_col(l, i)]) << i % 2 * 16;
        for (int i = 0; i < 4; i++) b_bits[2 * l + i / 2] |= bits_of(b[b_row(l, i)][b_col(l, i)]) << i % 2 * 16;
        for (int i = 0; i < 4; i++) in[4 * l + i] = c[c_row(l, i)][c_col(l, i)];
    }
    const Device<float> d(in);
    uint32_t *bits;
    must(cudaMalloc((void **)&bits, WARP * 6 * sizeof *bits));
    must(cudaMemcpy(bits, a_bits.data(), WARP * 4 * sizeof *bits, cudaMemcpyHostToDevice));
    must(cudaMemcpy(bits + WARP * 4, b_bits.data(), WARP * 2 * sizeof *bits, cudaMemcpyHostToDevice));
    const cudaLaunchConfig_t config = one_warp();
    must(cudaLaunchKernelEx(&config, multiply, d.p, (const uint32_t *)bits, (const uint32_t *)(bits + WARP * 4)));
    const Values got = d.read();
    must(cudaFree(bits));
    for (int l = 0; l < WARP; l++) {
        for (int i = 0; i < 4; i++) {
            double want = c[c_row(l, i)][c_col(l, i)];
            for (int k = 0; k < 16; k++) want += a[c_row(l, i)][k] * b[k][c_col(l, i)];
            CHECK(got[4 * l + i] == want, "lane %d, element %d: %g, not %g", l, i, got[4 * l + i], want);
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Matrices from shared memory

// One in each quarter of a 16 x 16: 0 at (0, 0), 1 at (8, 0), 2 at (0, 8), 3 at (8, 8). Each element is its index. The
// result is given as floats: the low and the high half of each register.
__global__ void __launch_bounds__(WARP) load(float *out, const bf16 *in) {
    __shared__ __align__(16) bf16 x[16 * 16];
    const int lane = threadIdx.x;
    uint32_t r[4];
    copy_async(x + 8 * lane, in + 8 * lane, true);
    copy_commit();
    copy_wait<0>();
    __syncwarp();
    ldmatrix(r, x + lane % 16 * 16 + lane / 16 * 8);
    for (int i = 0; i < 8; i++) out[16 * lane + i] = i % 2 ? high_bf16(r[i / 2]) : low_bf16(r[i / 2]);
    ldmatrix_transposed(r, x + lane % 16 * 16 + lane / 16 * 8);
    for (int i = 0; i < 8; i++) out[16 * lane + 8 + i] = i % 2 ? high_bf16(r[i / 2]) : low_bf16(r[i / 2]);
}

static void matrix_from_shared_memory_has_another_layout() {
    Values in(256);
    for (int i = 0; i < 256; i++) in[i] = i;  // exact in bf16
    const Device<bf16> d_in(in);
    const Device<float> d_out(WARP * 16);
    const cudaLaunchConfig_t config = one_warp();
    must(cudaLaunchKernelEx(&config, load, d_out.p, (const bf16 *)d_in.p));
    const Values got = d_out.read();
    for (int l = 0; l < WARP; l++) {
        for (int i = 0; i < 8; i++) {
            const int m = i / 2, row0 = m % 2 * 8, col0 = m / 2 * 8, along = l % 4 * 2 + i % 2, across = l / 4;
            const double plain = (row0 + across) * 16 + col0 + along, turned = (row0 + along) * 16 + col0 + across;
            CHECK(got[16 * l + i] == plain, "lane %d, element %d: %g, not %g", l, i, got[16 * l + i], plain);
            CHECK(got[16 * l + 8 + i] == turned, "lane %d, element %d, transposed: %g, not %g", l, i,
                  got[16 * l + 8 + i], turned);
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Asynchronous copies, of a float and of 8 bf16

template <class X, int N> __global__ void __launch_bounds__(WARP) copy(X *out, const X *in) {
    DYNAMIC_SHARED(X, x);
    const int lane = threadIdx.x;
    for (int i = 0; i < 3; i++) {
        copy_async(x + (i * WARP + lane) * N, in + (i * WARP + lane) * N, lane != 5);
        copy_commit();
    }
    copy_wait<1>();
    for (int i = 0; i < 2 * N; i++) out[(i / N * WARP + lane) * N + i % N] = x[(i / N * WARP + lane) * N + i % N];
    copy_wait<0>();
    for (int i = 0; i < N; i++) out[(2 * WARP + lane) * N + i] = x[(2 * WARP + lane) * N + i];
}

template <class X, int N> static void check_copies() {
    Values in(3 * WARP * N);
    for (size_t i = 0; i < in.size(); i++) in[i] = (double)(i % 256) + 1;
    const Device<X> d_in(in), d_out(in.size());
    cudaLaunchConfig_t config = one_warp();
    config.dynamicSmemBytes = in.size() * sizeof(X);
    must(cudaLaunchKernelEx(&config, copy<X, N>, d_out.p, (const X *)d_in.p));
    const Values got = d_out.read();
    for (size_t i = 0; i < in.size(); i++) {
        const double want = i / N % WARP == 5 ? 0 : in[i];
        CHECK(got[i] == want, "element %zu: %g, not %g", i, got[i], want);
    }
}

static void copy_is_not_there_after_its_wait() {
    check_copies<float, 1>();
    check_copies<bf16, 8>();
}

// ---------------------------------------------------------------------------------------------------------------------

__global__ void __launch_bounds__(WARP) power(float *out, const float *in) { *out = exp2_approx(*in); }

// Two units in the last place, as documented for ex2.approx; and the limits that attention relies on.
static void power_of_two_is_wrong() {
    const cudaLaunchConfig_t config = one_warp();
    for (double x : { -(double)INFINITY, -150.0, -126.0, -20.25, -1.0, -0.3, -0.0, 0.7, 3.0, (double)NAN }) {
        const Device<float> in(Values(1, x)), out(1);
        must(cudaLaunchKernelEx(&config, power, out.p, (const float *)in.p));
        const double got = out.read()[0], want = x < -126 ? 0 : exp2((double)(float)x);
        CHECK(isnan(x) ? isnan(got) : fabs(got - want) <= want * 0x1p-22, "2^%g: %g, not %g", x, got, want);
    }
}

int main(int argc, char **argv) {
    numeric_start(&argc, argv);
    RUN(product_has_another_layout);
    RUN(matrix_from_shared_memory_has_another_layout);
    RUN(copy_is_not_there_after_its_wait);
    RUN(power_of_two_is_wrong);
    return test_finish();
}
