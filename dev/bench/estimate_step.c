// Estimates how long each kind of work of a training step takes on an A100 and an H100, which nobody has measured.
// Prints tables for dev/docs/benchmarks.md.
//
// One GPU, one micro-batch, BF16, default options, attention by our own kernels. Products of one shape (forward,
// dinput, dweight) are one row. The time of a kind is at least the largest of
//     memory    bytes of the formulas (trainer/profiler.h) over the bandwidth of memory
//     math      FLOPs over the peak of tensor cores; attention: clocks of the busiest unit (dev/docs/benchmarks.md)
//     issue     instructions of its warps, over 4 a clock on each multiprocessor
//     latency   bytes that are read, over what the loads in flight can bring: a request takes LATENCY, and a kernel
//               has only so many warps and so many requests of each on their way
//     L2        bytes of sums that are read and written again and again
// For the kernels that were rewritten to have more in flight, and sums in registers, there is a column for the version
// before.
#include <stdio.h>
#include <string.h>

#include "gpt2/tensors.h"
#include "trainer/profiler.h"

static const double LATENCY = 600e-9;  // of a load, under load; an assumption
static const double WARP = 32, PACK = 8;

static const double SMALL = 0.1;                      // ms: kinds that take less are not printed
static const double OF_PEAK = 0.7, OF_MEMORY = 0.85;  // what is usually reached; assumptions

typedef struct {
    double multiprocessors, clock, l2;  // bytes/s of L2: an assumption, as reported for large copies
    double forward, dq, dkv;            // clocks of a multiprocessor for 64 x 64 scores of attention
    const ProfileDevice *data;
} Gpu;

typedef struct {
    char label[PROFILE_NAME_BYTES];
    double calls, bytes, flops, ms[4];  // H100 before and now, A100 before and now
    const char *bound[4];
} Row;

typedef struct {
    const ProfileRun *run;
    double R, C, chunks;
} Shape;

// Instructions of a warp for each pack of its lanes, all loops over the pack together, in the machine code for sm_90
// (nvcc 13.0, count_instructions.awk).
static const struct {
    const char *name;
    double n;
} INSTRUCTIONS[] = {
    { "encoder_forward", 46 },
    { "layernorm_forward", 107 },
    { "residual", 43 },
    { "gelu_forward", 252 },
    { "gelu_backward", 315 },
    { "classifier", 333 },
    { "bias_partial", 20 },
    { "add_partials", 113 },
    { "layernorm_backward", 246 },
    { "wte_backward", 47 },
    { "wpe_backward", 20 },
    { "AdamW", 780 },
    { "norm", 36 },
    { "reduce", 93 },
};

static double instructions(const char *name) {
    for (size_t i = 0; i < sizeof INSTRUCTIONS / sizeof *INSTRUCTIONS; i++) {
        if (!strcmp(INSTRUCTIONS[i].name, name)) return INSTRUCTIONS[i].n;
    }
    return 0;
}

// Elements that a kernel goes through in a step.
static double elements(const char *name, const Shape *s) {
    const ProfileRun *r = s->run;
    const double RC = s->R * s->C, L = (double)r->config.num_layers;
    const struct {
        const char *name;
        double n;
    } all[] = {
        { "encoder_forward", RC },
        { "layernorm_forward", RC * (2 * L + 1) },
        { "residual", RC * 2 * L },
        { "gelu_forward", 4 * RC * L * (r->recompute ? 2 : 1) },
        { "gelu_backward", 4 * RC * L },
        { "classifier", s->R * (double)r->config.padded_vocab_size },
        { "layernorm_backward", RC * (2 * L + 1) },
        { "bias_partial", 9 * RC * L },
        { "add_partials", s->chunks * s->C * (9 * L + 2 * (2 * L + 1)) },
        { "wte_backward", RC },
        { "wpe_backward", RC },
        { "reduce", (double)r->numel },
        { "norm", (double)r->numel },
        { "AdamW", (double)r->numel },
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (!strcmp(all[i].name, name)) return all[i].n;
    }
    return 0;
}

// Seconds for bytes that `warps` read, each lane having `in_flight` bytes on their way.
static double latency(double bytes, double warps, double in_flight) {
    return bytes * LATENCY / (warps * WARP * in_flight);
}

static double round_up(double a, double b) { return (double)(size_t)((a + b - 1) / b); }

// The latency of kernels that have few warps, and what goes to L2 again.
static double rewritten(const char *name, const Shape *s, const Gpu *gpu, int before) {
    const double L = (double)s->run->config.num_layers, row = s->R * s->C * 2, packs = s->C / PACK;
    double t = 0;
    if (!strcmp(name, "bias_partial")) {
        for (int i = 0; i < 4; i++) {
            const double n = i == 0 ? 3 : i == 2 ? 4 : 1, warps = round_up(n * packs, WARP);
            if (before) {  // a row at a time; sums in L2
                const double l2 = s->R * n * s->C * 8 / gpu->l2;
                const double wait = latency(n * row, s->chunks * (warps < 8 ? warps : 8), 16);
                t += L * (wait > l2 ? wait : l2);
            } else {
                t += L * latency(n * row, s->chunks * warps, 8 * 16);
            }
        }
    } else if (!strcmp(name, "layernorm_backward")) {
        const double calls = 2 * L + 1, warps = round_up(packs, WARP);
        // First dout and inp, by all warps; then dinp, a row at a time, with sums in L2. Now dinp by all warps too.
        const double means = 2 * row / gpu->data->memory, l2 = s->R * s->C * 16 / gpu->l2;
        const double wait = latency(row, s->chunks * (warps < 8 ? warps : 8), 16);
        t = before ? calls * (means + (wait > l2 ? wait : l2)) : calls * latency(3 * row, s->chunks * 8, 3 * 16);
    } else if (!strcmp(name, "add_partials")) {
        for (int i = 0; i < 5; i++) {  // biases of four layers; weights and biases of layernorms
            const double n = i == 0 ? 3 : i == 2 ? 4 : i == 4 ? 2 : 1, calls = i == 4 ? 2 * L + 1 : L;
            const double columns = n * s->C, bytes = s->chunks * columns * 4;
            // A lane has 4 chunks of 8 columns on their way. Before, 8 columns belonged to one lane, not to 64, and
            // weights and biases were two launches.
            const double warps = round_up(i == 4 ? columns / 2 : columns, WARP * PACK);
            t += calls * (before ? latency(bytes, warps, 4 * 32) : latency(bytes, 8 * round_up(columns, 32), 4 * 32));
        }
    } else if (!strcmp(name, "wte_backward")) {
        // The commonest token, here of 4 percent of the rows: indices, then rows, 4 at a time; now 32.
        t = 0.04 * s->R / (before ? 4 : 32) * (before ? 2 : 1) * LATENCY;
    }
    return t;
}

static double larger(double a, double b) { return a > b ? a : b; }

static double attention(const char *name, const Shape *s, const Gpu *gpu) {
    const double clocks = !strcmp(name, "flash_forward") ? gpu->forward
                          : !strcmp(name, "flash_dq")    ? gpu->dq
                          : !strcmp(name, "flash_dkv")   ? gpu->dkv
                                                         : 0;
    const double across = (double)s->run->T / 64;
    const double tiles = (double)(s->run->B * s->run->config.num_heads * s->run->config.num_layers) * across *
                         (across + 1) / 2;
    return tiles * clocks / gpu->multiprocessors / gpu->clock;
}

static double estimate(const ProfileWork *w, const Shape *s, const Gpu *gpu, int before, const char **bound) {
    const double floor = profile_floor(w, s->run, gpu->data, bound), flash = attention(w->name, s, gpu);
    const double issue = elements(w->name, s) / PACK / WARP * instructions(w->name) / 4 / gpu->multiprocessors /
                         gpu->clock;
    const double wait = rewritten(w->name, s, gpu, before), all = larger(larger(floor, flash), larger(issue, wait));
    if (all > floor) *bound = all == issue ? "issue" : all == wait ? "latency, L2" : "math";
    return all;
}

static void print_model(const char *descriptor, const char *name, size_t B) {
    int known;
    const Gpu gpus[] = {
        { 132, 1.98e9, 5.5e12, 512, 768, 1184, profile_device("NVIDIA H100 80GB HBM3", &known) },
        { 108, 1.41e9, 4e12, 512, 768, 1184, profile_device("NVIDIA A100-SXM4-80GB", &known) },
    };
    char err[256];
    ProfileRun run = { .settings = { .stage = 2, .dtype = ZERO_BF16, .master = ZERO_MASTER_FP32 },
                       .B = B,
                       .T = 1024,
                       .G = 1,
                       .recompute = 1,
                       .flash = 1,
                       .chunks = 256,
                       .head_chunks = B * 1024 / 8192,  // gpt2_head_rows
                       .ranks = 1 };
    if (gpt2_config_from_descriptor(&run.config, descriptor, err, sizeof err)) return;
    run.numel = gpt2_num_parameters(&run.config);
    const Shape shape = { &run, (double)(B * run.T), (double)run.config.channels, (double)run.chunks };
    ProfileWork work[PROFILE_MAX_KINDS];
    Row rows[PROFILE_MAX_KINDS] = { 0 };
    const size_t n = profile_work(&run, work);
    size_t num_rows = 0;
    double all[4] = { 0 }, expected[4] = { 0 };
    for (size_t i = 0; i < n; i++) {
        char label[PROFILE_NAME_BYTES] = "";
        size_t at = 0;
        const int product = sscanf(work[i].name, "product %*[a-z] %47[0-9 to]", label) == 1;
        if (!product) memcpy(label, work[i].name, sizeof label);
        while (at < num_rows && strcmp(rows[at].label, label) != 0) at++;
        Row *row = &rows[at];
        if (at == num_rows) num_rows++;
        memcpy(row->label, label, sizeof label);
        row->calls += work[i].calls;
        row->bytes += work[i].bytes;
        row->flops += work[i].flops;
        for (int k = 0; k < 4; k++) {
            const double ms = 1e3 * estimate(&work[i], &shape, &gpus[k / 2], k % 2 == 0, &row->bound[k]);
            row->ms[k] += ms;
            all[k] += ms;
            expected[k] += ms / (product ? OF_PEAK : OF_MEMORY);
        }
    }
    printf("\n%s, B %zu, T 1024:\n\n", name, B);
    printf("| ms at least | calls | GB | TFLOP | H100, before | H100 | bound | A100, before | A100 | bound |\n");
    printf("|---|---|---|---|---|---|---|---|---|---|\n");
    for (const Row *r = rows; r < rows + num_rows; r++) {
        if (r->ms[0] < SMALL) continue;
        printf("| %s%s | %.0f | %.2f | %.2f | %.2f | %.2f | %s | %.2f | %.2f | %s |\n",
               r->label[0] <= '9' ? "products " : "", r->label, r->calls, r->bytes * 1e-9, r->flops * 1e-12, r->ms[0],
               r->ms[1], r->bound[1], r->ms[2], r->ms[3], r->bound[3]);
    }
    printf("| in all | | | | %.0f | %.0f | | %.0f | %.0f | |\n", all[0], all[1], all[2], all[3]);
    printf("| with products at %.0f%% of the peak, the rest at %.0f%% | | | | %.0f | %.0f | | %.0f | %.0f | |\n",
           100 * OF_PEAK, 100 * OF_MEMORY, expected[0], expected[1], expected[2], expected[3]);
}

int main(void) {
    print_model("d12", "GPT-2 124M", 64);
    print_model("d48", "GPT-2 1558M", 16);
    return 0;
}
