// Causal attention on tensor cores, after FlashAttention-2 (Dao 2023): bf16, heads of 64, 80, 96 and 128.
//
// As in attention.cuh, a block owns ROWS rows of one head (queries; in the backward of keys and values, keys) and walks
// along the other side, COLS at a time. Here each warp has 16 of the rows, and what belongs to them (scores,
// probabilities, sums) never leaves its registers. The tiles of the other side are copied to shared memory
// asynchronously, the next one while the warps compute with the present one, with one barrier for each.
//
//     keys ->  0  16  32  48        a tile of 64 keys on the diagonal, and the 16 queries of a warp each: # is
//     warp 0   /   .   .   .        computed, / is masked, . and what is beyond T is skipped. Groups of 16 columns are
//     warp 1   #   /   .   .        the unit. Tiles of which a warp needs every group (most) have code of their own,
//     warp 2   #   #   /   .        without branches and masks: WHOLE.
//     warp 3   #   #   #   /
//
// Products are s = q k^T and o += p v; dp = dout v^T and dq += ds k; and, with keys as rows, s and dp transposed, dv +=
// p dout and dk += ds q. Each sum has one writer and a fixed order: the same bits in every run. exp(scale s) is
// computed as 2^(to_log2 s), where to_log2 = scale log2(e).
//
// Rows of a tile in shared memory are HS + PACK apart, an odd number of packs, so that the eight rows that ldmatrix
// reads at a time are in different banks.
#ifndef GPT2_FLASH_ATTENTION_CUH
#define GPT2_FLASH_ATTENTION_CUH

#include "device/mma.cuh"
#include "gpt2/common.cuh"

constexpr float LOG2E = 1.44269504088896341f, LN2 = 0.693147180559945309f;
template <int HS> constexpr int STRIDE = HS + PACK;

// Warps of a block, and how many blocks a multiprocessor should hold (of sm_80: 65536 registers, 163 KB); columns.
template <int HS> constexpr int FORWARD_WARPS = HS == 64 ? 8 : 4;
template <int HS> constexpr int FORWARD_BLOCKS = HS == 64 || HS == 128 ? 2 : 3;
constexpr int FORWARD_COLS = 64;
constexpr int BACKWARD_WARPS = 4;
template <int HS> constexpr int BACKWARD_COLS = HS <= 80 ? 64 : 32;

// What a warp computes of a tile: groups [begin, end) of 16 columns; of group `cut`, what is on one side of the
// diagonal.
struct Groups {
    int begin, end, cut;
};

template <bool WHOLE> DEV bool skipped(Groups g, int n) { return !WHOLE && (n < g.begin || n >= g.end); }

// ---------------------------------------------------------------------------------------------------------------------
// Tiles of [rows, HS] in shared memory. Sums are 16 x 8N, the layout of d in mma; operands 16 x 16N, that of a.

// Begins to copy ROWS rows to a tile. Rows `valid` and up become zeros.
template <int THREADS, int HS, int ROWS> DEV void copy_tile(bf16 *tile, const bf16 *from, int stride, int valid) {
    constexpr int PACKS = HS / PACK, STEP = THREADS / PACKS;  // rows at a time
    const int first = threadIdx.x / PACKS, col = threadIdx.x % PACKS * PACK;
    if (THREADS % PACKS && first >= STEP) return;
    from += first * stride + col;
    UNROLL for (int i = 0; i < ROWS; i += STEP) {
        const int row = first + i;
        if (ROWS % STEP == 0 || row < ROWS) copy_async(tile + row * STRIDE<HS> + col, from, row < valid);
        from += STEP * stride;
    }
}

template <int N> DEV void clear(float (&sums)[N][4]) {
    UNROLL for (int n = 0; n < N; n++) { UNROLL for (int i = 0; i < 4; i++) sums[n][i] = 0; }
}

// One operand: 16 rows x 16 columns from column 16 k on.
template <int HS> DEV void load_operand(uint32_t (&a)[4], const bf16 *rows, int k) {
    const int lane = threadIdx.x % WARP;
    ldmatrix(a, rows + lane % 16 * STRIDE<HS> + 16 * k + lane / 16 * PACK);
}

template <int N> DEV void load_operands(uint32_t (&a)[N][4], const bf16 *rows) {
    UNROLL for (int k = 0; k < N; k++) load_operand<16 * N>(a[k], rows, k);
}

// Operands in registers, or in shared memory, from where they are loaded as they are used.
template <int N> DEV void get_operand(uint32_t (&a)[4], const uint32_t (&from)[N][4], int k) {
    UNROLL for (int i = 0; i < 4; i++) a[i] = from[k][i];
}
template <int HS> struct InShared { const bf16 *rows; };
template <int HS> DEV void get_operand(uint32_t (&a)[4], InShared<HS> from, int k) {
    load_operand<HS>(a, from.rows, k);
}

template <int N> DEV void round_to_operands(uint32_t (&a)[N / 2][4], const float (&sums)[N][4]) {
    UNROLL for (int k = 0; k < N / 2; k++) {
        a[k][0] = pack_bf16(sums[2 * k][0], sums[2 * k][1]);
        a[k][1] = pack_bf16(sums[2 * k][2], sums[2 * k][3]);
        a[k][2] = pack_bf16(sums[2 * k + 1][0], sums[2 * k + 1][1]);
        a[k][3] = pack_bf16(sums[2 * k + 1][2], sums[2 * k + 1][3]);
    }
}

// s += a tile^T: a row of the tile is a column of s.
template <bool WHOLE, int HS, int N, class A>
DEV void add_scores(float (&s)[N][4], const A &a, const bf16 *tile, Groups g) {
    const int lane = threadIdx.x % WARP;
    tile += (lane / 16 * 8 + lane % 8) * STRIDE<HS> + lane / 8 % 2 * PACK;
    UNROLL for (int k = 0; k < HS / 16; k++) {
        uint32_t row[4], col[4];
        get_operand(row, a, k);
        UNROLL for (int n = 0; n < N / 2; n++) {
            if (skipped<WHOLE>(g, n)) continue;
            ldmatrix(col, tile + 16 * n * STRIDE<HS> + 16 * k);
            mma(s[2 * n], row, col[0], col[1]);
            mma(s[2 * n + 1], row, col[2], col[3]);
        }
    }
}

// sums += p tile.
template <bool WHOLE, int N, int K>
DEV void add_weighted(float (&sums)[N][4], const uint32_t (&p)[K][4], const bf16 *tile, Groups g) {
    const int lane = threadIdx.x % WARP;
    tile += lane % 16 * STRIDE<8 * N> + lane / 16 * PACK;
    UNROLL for (int k = 0; k < K; k++) {
        if (skipped<WHOLE>(g, k)) continue;
        UNROLL for (int n = 0; n < N / 2; n++) {
            uint32_t col[4];
            ldmatrix_transposed(col, tile + 16 * k * STRIDE<8 * N> + 16 * n);
            mma(sums[2 * n], p[k], col[0], col[1]);
            mma(sums[2 * n + 1], p[k], col[2], col[3]);
        }
    }
}

// Scores that causality forbids become -infinity: of group `cut`, whose rows and columns begin at the same position.
template <bool ROWS_ARE_QUERIES, int N> DEV void mask(float (&s)[N][4], int cut) {
    const int lane = threadIdx.x % WARP;
    UNROLL for (int n = 0; n < N; n++) {
        if (n / 2 != cut) continue;
        UNROLL for (int i = 0; i < 4; i++) {
            const int row = lane / 4 + i / 2 * 8, col = n % 2 * 8 + lane % 4 * 2 + i % 2;
            if (ROWS_ARE_QUERIES ? col > row : col < row) s[n][i] = -INFINITY;
        }
    }
}

// Over the four lanes that share rows g and g + 8.
DEV float quad_sum(float v) {
    v += __shfl_xor_sync(0xffffffffu, v, 1);
    return v + __shfl_xor_sync(0xffffffffu, v, 2);
}
DEV float quad_max(float v) {
    v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, 1));
    return fmaxf(v, __shfl_xor_sync(0xffffffffu, v, 2));
}

// Stores 16 rows of sums, rows g and g + 8 times factor[0] and [1], of which `valid` exist at `to`; by way of 16 rows
// in shared memory that only this warp uses.
template <int N>
DEV void store_rows(bf16 *to, int stride, int valid, const float (&sums)[N][4], const float (&factor)[2], bf16 *rows) {
    constexpr int PACKS = N;
    const int lane = threadIdx.x % WARP;
    bf16 *at = rows + lane / 4 * STRIDE<8 * N> + lane % 4 * 2;
    __syncwarp();  // other lanes may have read these rows by ldmatrix
    UNROLL for (int n = 0; n < N; n++) {
        UNROLL for (int r = 0; r < 2; r++)
            st_pair(at + 8 * r * STRIDE<8 * N> + 8 * n, sums[n][2 * r] * factor[r], sums[n][2 * r + 1] * factor[r]);
    }
    __syncwarp();
    UNROLL for (int i = 0; i < 16 * PACKS / WARP; i++) {
        const int row = (i * WARP + lane) / PACKS, col = (i * WARP + lane) % PACKS * PACK;
        if (row < valid) copy_pack(to + row * stride + col, rows + row * STRIDE<8 * N> + col);
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Kernels

// What a block has: its first row, and where its head begins in qkv [B, T, 3, NH, HS] (the queries; keys are out_stride
// further, values twice that), out [B, T, NH, HS] and lse [B, NH, T]. The blocks with the longest loops come first.
struct Place {
    size_t in, out, stats;
    int in_stride, out_stride, row;
};

enum Owner { QUERIES, KEYS };

template <int HS, int ROWS, Owner OWNER> DEV Place place_of_block(int T, int NH) {
    const int tiles = (T + ROWS - 1) / ROWS, block = block_index(), tile = block % tiles, head = block / tiles;
    const int C = NH * HS, h = head % NH * HS;
    const size_t first = (size_t)(head / NH) * T;
    return { first * 3 * C + h,
             first * C + h,
             (size_t)head * T,
             3 * C,
             C,
             (OWNER == QUERIES ? tiles - 1 - tile : tile) * ROWS };
}

// Which groups of 16 keys, from k0 on, the 16 queries from 16 * mine on see; none if mine is -1.
template <int COLS> DEV Groups keys_of(int mine, int k0) {
    const int cut = mine - k0 / 16;
    return { 0, min(cut + 1, COLS / 16), cut };
}

// Which groups of 16 queries, from q0 on, see the 16 keys from 16 * mine on; none if mine is beyond T.
template <int COLS> DEV Groups queries_of(int mine, int q0, int T) {
    const int cut = mine - q0 / 16;
    return { max(cut, 0), min((T - q0 + 15) / 16, COLS / 16), cut };
}

template <int HS> constexpr size_t FORWARD_SHARED = sizeof(bf16) * 4 * FORWARD_COLS *STRIDE<HS>;

template <bool WHOLE, int HS>
DEV void forward_tile(float (&o)[HS / 8][4], float (&top)[2], float (&sum)[2], const uint32_t (&q)[HS / 16][4],
                      const bf16 *k, const bf16 *v, Groups g, float to_log2) {
    constexpr int N = FORWARD_COLS / 8;
    float s[N][4];
    uint32_t p[N / 2][4];
    clear(s);
    add_scores<WHOLE, HS>(s, q, k, g);
    if (!WHOLE) mask<true>(s, g.cut);
    UNROLL for (int r = 0; r < 2; r++) {
        float largest = -INFINITY;
        UNROLL for (int n = 0; n < N; n++) {
            if (!skipped<WHOLE>(g, n / 2)) largest = fmaxf(largest, fmaxf(s[n][2 * r], s[n][2 * r + 1]));
        }
        const float old = top[r];
        top[r] = fmaxf(old, quad_max(largest) * to_log2);  // finite: every query sees key 0, which is in the first tile
        const float shrink = exp2_approx(old - top[r]);
        sum[r] *= shrink;
        UNROLL for (int n = 0; n < N; n++) {
            if (skipped<WHOLE>(g, n / 2)) continue;
            UNROLL for (int i = 2 * r; i < 2 * r + 2; i++) {
                s[n][i] = exp2_approx(fmaf(s[n][i], to_log2, -top[r]));
                sum[r] += s[n][i];
            }
        }
        UNROLL for (int n = 0; n < HS / 8; n++) {
            o[n][2 * r] *= shrink;
            o[n][2 * r + 1] *= shrink;
        }
    }
    round_to_operands(p, s);
    add_weighted<WHOLE>(o, p, v, g);
}

template <int HS>
__global__ void __launch_bounds__(WARP *FORWARD_WARPS<HS>, FORWARD_BLOCKS<HS>)
    flash_forward_kernel(bf16 *__restrict__ out, float *__restrict__ lse, const bf16 *__restrict__ qkv, int T, int NH,
                         float to_log2) {
    constexpr int ROWS = 16 * FORWARD_WARPS<HS>, COLS = FORWARD_COLS, THREADS = 2 * ROWS, TILE = COLS * STRIDE<HS>;
    DYNAMIC_SHARED(bf16, shared);  // keys, values, and the next keys and values; first the queries are there
    const Place at = place_of_block<HS, ROWS, QUERIES>(T, NH);
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, end = min(at.row + ROWS, T);
    const int mine = at.row + 16 * warp < T ? at.row / 16 + warp : -1;  // the group of the warp's queries
    const bf16 *in = qkv + at.in;
    float top[2] = { -INFINITY, -INFINITY };  // of rows g and g + 8 so far: largest score, times scale log2(e)
    float sum[2] = { 0, 0 };                  // of exp(scale score - top), this lane's part
    uint32_t query[HS / 16][4];
    float o[HS / 8][4];

    const auto copy = [&](int k0, bf16 *to) {
        const bf16 *from = in + (size_t)k0 * at.in_stride + at.out_stride;
        copy_tile<THREADS, HS, COLS>(to, from, at.in_stride, T - k0);
        copy_tile<THREADS, HS, COLS>(to + TILE, from + at.out_stride, at.in_stride, T - k0);
        copy_commit();
    };
    static_assert(ROWS <= 2 * COLS, "the queries of a block have the place of a tile of keys and one of values");
    copy_tile<THREADS, HS, ROWS>(shared + 2 * TILE, in + (size_t)at.row * at.in_stride, at.in_stride, T - at.row);
    copy(0, shared);
    copy_wait<0>();
    __syncthreads();
    load_operands(query, shared + 2 * TILE + 16 * warp * STRIDE<HS>);
    clear(o);
    int now = 0;  // where this tile is; the next one comes to the other of two places
    for (int k0 = 0; k0 < end; k0 += COLS) {
        copy_wait<0>();
        __syncthreads();  // this tile has arrived for all, and nobody uses the one before it any more
        if (k0 + COLS < end) copy(k0 + COLS, shared + 2 * TILE - now);
        const bf16 *k = shared + now, *v = k + TILE;
        const Groups g = keys_of<COLS>(mine, k0);
        if (g.cut >= COLS / 16)
            forward_tile<true, HS>(o, top, sum, query, k, v, g, to_log2);
        else if (g.end > 0)
            forward_tile<false, HS>(o, top, sum, query, k, v, g, to_log2);
        now = 2 * TILE - now;
    }

    const Place to = place_of_block<HS, ROWS, QUERIES>(T, NH);
    float factor[2];
    UNROLL for (int r = 0; r < 2; r++) {
        const int row = to.row + 16 * warp + lane / 4 + 8 * r;
        sum[r] = quad_sum(sum[r]);
        factor[r] = 1 / sum[r];
        if (lane % 4 == 0 && row < T) lse[to.stats + row] = (top[r] + log2f(sum[r])) * LN2;
    }
    // `now` is where the tile before the last one was, which nobody uses since the last barrier
    const int row = to.row + 16 * warp;
    store_rows(out + to.out + (size_t)row * to.out_stride, to.out_stride, T - row, o, factor,
               shared + now + 16 * warp * STRIDE<HS>);
}

template <int HS>
constexpr size_t DQ_SHARED = sizeof(bf16) * (2 * 16 * BACKWARD_WARPS + 4 * BACKWARD_COLS<HS>)*STRIDE<HS>;

template <bool WHOLE, int HS>
DEV void dq_tile(float (&dq)[HS / 8][4], const uint32_t (&q)[HS / 16][4], const uint32_t (&d)[HS / 16][4],
                 const bf16 *k, const bf16 *v, const float (&log2_sum)[2], const float (&delta)[2], Groups g,
                 float to_log2) {
    constexpr int N = BACKWARD_COLS<HS> / 8;
    float s[N][4], dp[N][4];  // dp - delta
    uint32_t ds[N / 2][4];
    clear(s);
    add_scores<WHOLE, HS>(s, q, k, g);
    if (!WHOLE) mask<true>(s, g.cut);
    UNROLL for (int n = 0; n < N; n++) { UNROLL for (int i = 0; i < 4; i++) dp[n][i] = -delta[i / 2]; }
    add_scores<WHOLE, HS>(dp, d, v, g);
    UNROLL for (int n = 0; n < N; n++) {
        if (skipped<WHOLE>(g, n / 2)) continue;
        UNROLL for (int i = 0; i < 4; i++) s[n][i] = exp2_approx(fmaf(s[n][i], to_log2, -log2_sum[i / 2])) * dp[n][i];
    }
    round_to_operands(ds, s);
    add_weighted<WHOLE>(dq, ds, k, g);
}

// Computes dq, by rows of queries, and delta[B, NH, T] = dout . out, which the next kernel reads.
template <int HS>
__global__ void __launch_bounds__(WARP *BACKWARD_WARPS, 2)
    flash_dq_kernel(bf16 *__restrict__ dqkv, float *__restrict__ delta, const bf16 *__restrict__ dout,
                    const bf16 *__restrict__ out, const bf16 *__restrict__ qkv, const float *__restrict__ lse, int T,
                    int NH, float to_log2) {
    constexpr int ROWS = 16 * BACKWARD_WARPS, COLS = BACKWARD_COLS<HS>, THREADS = 2 * ROWS, TILE = COLS * STRIDE<HS>;
    DYNAMIC_SHARED(bf16, shared);  // queries, dout, keys, values, next keys and values; first out is there
    const Place at = place_of_block<HS, ROWS, QUERIES>(T, NH);
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, q0 = at.row, end = min(q0 + ROWS, T);
    const int mine = q0 + 16 * warp < T ? q0 / 16 + warp : -1;
    const bf16 *in = qkv + at.in;
    const size_t out_at = at.out + (size_t)q0 * at.out_stride;
    bf16 *const queries = shared, *const douts = shared + ROWS * STRIDE<HS>;
    bf16 *const tiles = douts + ROWS * STRIDE<HS>;
    bf16 *const own = queries + 16 * warp * STRIDE<HS>;
    float log2_sum[2], row_delta[2] = { 0, 0 };  // of rows g and g + 8
    uint32_t query[HS / 16][4], d[HS / 16][4];
    float dq[HS / 8][4];

    const auto copy = [&](int k0, bf16 *to) {
        const bf16 *from = in + (size_t)k0 * at.in_stride + at.out_stride;
        copy_tile<THREADS, HS, COLS>(to, from, at.in_stride, T - k0);
        copy_tile<THREADS, HS, COLS>(to + TILE, from + at.out_stride, at.in_stride, T - k0);
        copy_commit();
    };
    static_assert(ROWS <= 2 * COLS, "the rows of out have the place of a tile of keys and one of values");
    copy_tile<THREADS, HS, ROWS>(queries, in + (size_t)q0 * at.in_stride, at.in_stride, T - q0);
    copy_tile<THREADS, HS, ROWS>(douts, dout + out_at, at.out_stride, T - q0);
    copy_tile<THREADS, HS, ROWS>(tiles + 2 * TILE, out + out_at, at.out_stride, T - q0);
    copy(0, tiles);
    copy_wait<0>();
    __syncthreads();
    load_operands(query, own);
    load_operands(d, own + ROWS * STRIDE<HS>);
    UNROLL for (int k = 0; k < HS / 16; k++) {
        uint32_t o[4];
        load_operand<HS>(o, tiles + 2 * TILE + 16 * warp * STRIDE<HS>, k);
        UNROLL for (int i = 0; i < 4; i++) {
            row_delta[i % 2] += low_bf16(o[i]) * low_bf16(d[k][i]);
            row_delta[i % 2] += high_bf16(o[i]) * high_bf16(d[k][i]);
        }
    }
    UNROLL for (int r = 0; r < 2; r++) {
        const int row = q0 + 16 * warp + lane / 4 + 8 * r;
        row_delta[r] = quad_sum(row_delta[r]);
        log2_sum[r] = row < T ? lse[at.stats + row] * LOG2E : 0;
        if (lane % 4 == 0 && row < T) delta[at.stats + row] = row_delta[r];
    }
    clear(dq);
    int now = 0;
    for (int k0 = 0; k0 < end; k0 += COLS) {
        copy_wait<0>();
        __syncthreads();  // this tile has arrived for all, and nobody uses the one before it (or out) any more
        if (k0 + COLS < end) copy(k0 + COLS, tiles + 2 * TILE - now);
        const bf16 *k = tiles + now, *v = k + TILE;
        const Groups g = keys_of<COLS>(mine, k0);
        if (g.cut >= COLS / 16)
            dq_tile<true, HS>(dq, query, d, k, v, log2_sum, row_delta, g, to_log2);
        else if (g.end > 0)
            dq_tile<false, HS>(dq, query, d, k, v, log2_sum, row_delta, g, to_log2);
        now = 2 * TILE - now;
    }
    const float factor[2] = { to_log2 * LN2, to_log2 * LN2 };
    const Place to = place_of_block<HS, ROWS, QUERIES>(T, NH);
    const int row = to.row + 16 * warp;
    store_rows(dqkv + to.in + (size_t)row * to.in_stride, to.in_stride, T - row, dq, factor, own);
}

template <int HS> constexpr size_t DKV_SHARED = DQ_SHARED<HS> + sizeof(float) * 4 * BACKWARD_COLS<HS>;

// stats: log of the sum and delta of each column (query).
template <bool WHOLE, int HS>
DEV void dkv_tile(float (&dk)[HS / 8][4], float (&dv)[HS / 8][4], const uint32_t (&k)[HS / 16][4], InShared<HS> v,
                  const bf16 *q, const bf16 *d, const float *stats, Groups g, float to_log2) {
    constexpr int COLS = BACKWARD_COLS<HS>, N = COLS / 8;
    const int col = threadIdx.x % 4 * 2;
    float s[N][4], dp[N][4];
    uint32_t p[N / 2][4];
    clear(s);
    add_scores<WHOLE, HS>(s, k, q, g);
    if (!WHOLE) mask<false>(s, g.cut);
    UNROLL for (int n = 0; n < N; n++) {
        if (skipped<WHOLE>(g, n / 2)) continue;
        UNROLL for (int i = 0; i < 4; i++)
            s[n][i] = exp2_approx(fmaf(s[n][i], to_log2, -LOG2E * stats[8 * n + col + i % 2]));
    }
    round_to_operands(p, s);
    add_weighted<WHOLE>(dv, p, d, g);
    UNROLL for (int n = 0; n < N; n++) {
        UNROLL for (int i = 0; i < 4; i++) dp[n][i] = -stats[COLS + 8 * n + col + i % 2];
    }
    add_scores<WHOLE, HS>(dp, v, d, g);
    UNROLL for (int n = 0; n < N; n++) {
        if (skipped<WHOLE>(g, n / 2)) continue;
        UNROLL for (int i = 0; i < 4; i++) s[n][i] *= dp[n][i];
    }
    round_to_operands(p, s);
    add_weighted<WHOLE>(dk, p, q, g);
}

// Computes dk and dv, by rows of keys: scores are transposed.
template <int HS>
__global__ void __launch_bounds__(WARP *BACKWARD_WARPS, 2)
    flash_dkv_kernel(bf16 *__restrict__ dqkv, const float *__restrict__ delta, const bf16 *__restrict__ dout,
                     const bf16 *__restrict__ qkv, const float *__restrict__ lse, int T, int NH, float to_log2) {
    constexpr int ROWS = 16 * BACKWARD_WARPS, COLS = BACKWARD_COLS<HS>, THREADS = 2 * ROWS, TILE = COLS * STRIDE<HS>;
    constexpr int PLACE = 2 * TILE + 2 * COLS * sizeof(float) / sizeof(bf16);
    DYNAMIC_SHARED(bf16, shared);  // keys, values; queries, dout, statistics, and the next ones
    const Place at = place_of_block<HS, ROWS, KEYS>(T, NH);
    const int warp = threadIdx.x / WARP, k0 = at.row, group = k0 / 16 + warp;  // of the warp's keys
    const bf16 *in = qkv + at.in;
    bf16 *const keys = shared, *const own = keys + 16 * warp * STRIDE<HS>, *const values = keys + ROWS * STRIDE<HS>;
    bf16 *const tiles = values + ROWS * STRIDE<HS>;
    uint32_t key[HS / 16][4];
    float dk[HS / 8][4], dv[HS / 8][4];

    const auto copy = [&](int q0, bf16 *to) {
        float *const stats = reinterpret_cast<float *>(to + 2 * TILE);
        const bf16 *d = dout + at.out + (size_t)q0 * at.out_stride;
        const int col = threadIdx.x % COLS;
        copy_tile<THREADS, HS, COLS>(to, in + (size_t)q0 * at.in_stride, at.in_stride, T - q0);
        copy_tile<THREADS, HS, COLS>(to + TILE, d, at.out_stride, T - q0);
        static_assert(THREADS >= 2 * COLS, "each thread copies one number");
        if (threadIdx.x < 2 * COLS)
            copy_async(stats + threadIdx.x, (threadIdx.x < COLS ? lse : delta) + at.stats + q0 + col, q0 + col < T);
        copy_commit();
    };
    const bf16 *from = in + (size_t)k0 * at.in_stride + at.out_stride;
    copy_tile<THREADS, HS, ROWS>(keys, from, at.in_stride, T - k0);
    copy_tile<THREADS, HS, ROWS>(values, from + at.out_stride, at.in_stride, T - k0);
    copy(k0, tiles);
    copy_wait<0>();
    __syncthreads();
    load_operands(key, own);
    const InShared<HS> value = { own + ROWS * STRIDE<HS> };
    clear(dk);
    clear(dv);
    int now = 0;
    for (int q0 = k0; q0 < T; q0 += COLS) {
        copy_wait<0>();
        __syncthreads();  // this tile has arrived for all, and nobody uses the one before it any more
        if (q0 + COLS < T) copy(q0 + COLS, tiles + PLACE - now);
        const bf16 *q = tiles + now, *d = q + TILE;
        const float *stats = reinterpret_cast<const float *>(d + TILE);
        const Groups g = queries_of<COLS>(group, q0, T);
        if (g.cut < 0 && g.end == COLS / 16)
            dkv_tile<true, HS>(dk, dv, key, value, q, d, stats, g, to_log2);
        else if (g.begin < g.end)
            dkv_tile<false, HS>(dk, dv, key, value, q, d, stats, g, to_log2);
        now = PLACE - now;
    }
    const float factor_k[2] = { to_log2 * LN2, to_log2 * LN2 }, factor_v[2] = { 1, 1 };
    const Place to = place_of_block<HS, ROWS, KEYS>(T, NH);
    const int row = to.row + 16 * warp;
    bf16 *out = dqkv + to.in + (size_t)row * to.in_stride + to.out_stride;
    store_rows(out, to.in_stride, T - row, dk, factor_k, own);
    store_rows(out + to.out_stride, to.in_stride, T - row, dv, factor_v, own + ROWS * STRIDE<HS>);
}

// ---------------------------------------------------------------------------------------------------------------------
// Launches

static size_t flash_blocks(size_t B, size_t T, size_t NH, int warps) { return B * NH * ceil_div(T, 16 * warps); }

template <int HS>
static void flash_forward(bf16 *out, float *lse, const bf16 *qkv, size_t B, size_t T, size_t NH, cudaStream_t stream) {
    LAUNCH(flash_blocks(B, T, NH, FORWARD_WARPS<HS>), WARP * FORWARD_WARPS<HS>, FORWARD_SHARED<HS>, stream,
           flash_forward_kernel<HS>, out, lse, qkv, (int)T, (int)NH, LOG2E / sqrtf((float)HS));
}

template <int HS>
static void flash_backward(bf16 *dqkv, float *delta, const bf16 *dout, const bf16 *out, const bf16 *qkv,
                           const float *lse, size_t B, size_t T, size_t NH, cudaStream_t stream) {
    const size_t blocks = flash_blocks(B, T, NH, BACKWARD_WARPS);
    const float to_log2 = LOG2E / sqrtf((float)HS);
    LAUNCH(blocks, WARP * BACKWARD_WARPS, DQ_SHARED<HS>, stream, flash_dq_kernel<HS>, dqkv, delta, dout, out, qkv, lse,
           (int)T, (int)NH, to_log2);
    LAUNCH(blocks, WARP * BACKWARD_WARPS, DKV_SHARED<HS>, stream, flash_dkv_kernel<HS>, dqkv, delta, dout, qkv, lse,
           (int)T, (int)NH, to_log2);
}

// Whether these kernels are for heads of this size. Others are those of attention.cuh.
static bool is_flash(size_t HS) { return HS == 64 || HS == 80 || HS == 96 || HS == 128; }

// Layouts as in attention_forward and attention_backward; delta is scratch of [B, NH, T].
static void flash_forward(bf16 *out, float *lse, const bf16 *qkv, size_t B, size_t T, size_t NH, size_t HS,
                          cudaStream_t stream) {
    if (HS == 64) flash_forward<64>(out, lse, qkv, B, T, NH, stream);
    if (HS == 80) flash_forward<80>(out, lse, qkv, B, T, NH, stream);
    if (HS == 96) flash_forward<96>(out, lse, qkv, B, T, NH, stream);
    if (HS == 128) flash_forward<128>(out, lse, qkv, B, T, NH, stream);
}

static void flash_backward(bf16 *dqkv, float *delta, const bf16 *dout, const bf16 *out, const bf16 *qkv,
                           const float *lse, size_t B, size_t T, size_t NH, size_t HS, cudaStream_t stream) {
    if (HS == 64) flash_backward<64>(dqkv, delta, dout, out, qkv, lse, B, T, NH, stream);
    if (HS == 80) flash_backward<80>(dqkv, delta, dout, out, qkv, lse, B, T, NH, stream);
    if (HS == 96) flash_backward<96>(dqkv, delta, dout, out, qkv, lse, B, T, NH, stream);
    if (HS == 128) flash_backward<128>(dqkv, delta, dout, out, qkv, lse, B, T, NH, stream);
}

#endif
