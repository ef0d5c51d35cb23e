// Compares the formulas of --profile with numbers from other sources, and tests its clock. That a run does what the
// formulas predict is tested by test_profile.sh.
#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "test/harness/harness.h"
#include "gpt2/tensors.h"
#include "trainer/profiler.h"
#include "trainer/log.h"

static ProfileWork work[PROFILE_MAX_KINDS];

// GPT-2 124M in bf16 on one rank.
static ProfileRun gpt2(void) {
    return (ProfileRun){ .config = { 1024, 50257, 50304, 12, 12, 768 },
                         .settings = { .stage = 1, .dtype = ZERO_BF16, .master = ZERO_MASTER_FP32 },
                         .B = 4,
                         .T = 1024,
                         .G = 2,
                         .recompute = 0,
                         .chunks = 256,
                         .head_chunks = 1,
                         .ranks = 1,
                         .numel = 124475904 };
}

static const ProfileWork *find(const ProfileRun *run, const char *name) {
    const size_t n = profile_work(run, work);
    for (size_t i = 0; i < n; i++) {
        if (!strcmp(work[i].name, name)) return &work[i];
    }
    REQUIRE(0, "no formula for %s", name);
    return NULL;
}

// The matrices of GPT-2 124M, wte once: 12 L C^2 + Vp C = 123568128 numbers, each of which costs 6 FLOPs a token.
// In however many chunks of rows the head is computed.
static void check_flops(size_t head_chunks) {
    ProfileRun run = gpt2();
    run.head_chunks = head_chunks;
    const size_t n = profile_work(&run, work);
    double flops = 0;
    size_t kinds = 0;
    for (size_t i = 0; i < n; i++) {
        if (strncmp(work[i].name, "product ", 8) != 0) continue;
        flops += work[i].flops;
        kinds++;
    }
    CHECK_EQ(kinds, 15);
    CHECK(flops == 6.0 * 123568128 * 4096 * 2);
}

static void test_products_are_6_flops_per_weight_and_token(void) {
    check_flops(1);
    check_flops(4);
}

// The sum of four chunks is written once, and read and written three times, in fp32; it is read and rounded once.
static void test_chunks_of_the_head_move_their_sum(void) {
    ProfileRun run = gpt2();
    const double wte = 768.0 * 50304, G = 2, whole = find(&run, "product dweight 768 to 50304")->bytes;
    run.head_chunks = 4;
    const double chunks = find(&run, "product dweight 768 to 50304")->bytes;
    CHECK(chunks - whole == G * wte * (7 * 4 - 2));
    CHECK(find(&run, "round_head")->bytes == G * wte * (4 + 2));
}

// FlashAttention's paper counts 4 T^2 C FLOPs a sequence forward (halved: causal), and 2.5 times that backward; two
// kernels that each recompute the scores and dp have 7 products, not 5.
static void test_attention_is_half_of_a_square(void) {
    const ProfileRun run = gpt2();
    const double half = 4.0 * 1024 * 1024 * 768 / 2 * 4 * 12 * 2;  // B L G
    CHECK(find(&run, "attention_forward")->flops / half > 1 && find(&run, "attention_forward")->flops / half < 1.001);
    const double backward = find(&run, "attention_dq")->flops + find(&run, "attention_dkv")->flops;
    CHECK(backward / half > 3.5 && backward / half < 3.5 * 1.001);
    ProfileRun one = run;
    one.one_backward = 1;
    CHECK(find(&one, "attention_backward")->flops / half > 2.5 &&
          find(&one, "attention_backward")->flops / half < 2.5 * 1.001);
}

// The whole step, beside the formula of the log's MFU (which counts wpe, biases and layernorms as if they were
// multiplied, and a backward of 5 products of attention): within 3 percent.
static void test_the_step_is_about_what_mfu_counts(void) {
    const ProfileRun run = gpt2();
    const size_t n = profile_work(&run, work);
    double flops = 0;
    for (size_t i = 0; i < n; i++) flops += work[i].flops;
    const GPT2Config d12 = { 1024, 50257, 50304, 12, 12, 768 };
    const double mfu = gpt2_training_flops(&d12, 1024, 8192);
    printf("profile %.4e FLOPs, MFU %.4e\n", flops, mfu);
    CHECK(flops > 0.97 * mfu && flops < 1.03 * mfu);
}

// As dev/bench/bench_adamw.cu counts them: fp32; bf16 with fp32 master weights, split ones, none.
static size_t update_bytes(enum zero_dtype dtype, enum zero_master master, enum zero_optimizer_kind optimizer,
                           double ema_decay) {
    const zero_settings s = { .dtype = dtype, .master = master, .optimizer = optimizer, .ema_decay = ema_decay };
    return profile_update_bytes(&s);
}

static void test_adamw_moves_28_30_28_24_bytes(void) {
    CHECK_EQ(update_bytes(ZERO_F32, ZERO_MASTER_FP32, ZERO_ADAMW, 0), 28);
    CHECK_EQ(update_bytes(ZERO_BF16, ZERO_MASTER_FP32, ZERO_ADAMW, 0), 30);
    CHECK_EQ(update_bytes(ZERO_BF16, ZERO_MASTER_SPLIT, ZERO_ADAMW, 0), 28);
    CHECK_EQ(update_bytes(ZERO_BF16, ZERO_MASTER_NONE, ZERO_ADAMW, 0), 24);
    CHECK_EQ(update_bytes(ZERO_F32, ZERO_MASTER_FP32, ZERO_LION, 0), 20);
    CHECK_EQ(update_bytes(ZERO_BF16, ZERO_MASTER_FP32, ZERO_SGD, 0.9), 30);
    ProfileRun run = gpt2();
    CHECK(find(&run, "AdamW")->bytes == 30.0 * 124475904);
    run.ranks = 8;
    run.numel = 124476416;  // padded
    CHECK(find(&run, "AdamW")->bytes == 30.0 * 124476416 / 8);
    run.settings.stage = 0;
    CHECK(find(&run, "AdamW")->bytes == 30.0 * 124476416);
}

// The ordered sum, counted by hand from the partial sums that a micro-step reads and writes (gradients.c has them).
static void test_the_sum_moves_what_its_partial_sums_say(void) {
    ProfileRun run = gpt2();
    const double numel = run.numel = 64 * 24 * 1000, b = 2;
    const struct {
        size_t N, R, G;
        double chunks, sums;  // of an element of the shard: bytes of chunks, partial sums read and written
    } by_hand[] = {
        { 1, 1, 4, 4 * b, 3 + 4 },                // 1: 1; 2: 1 + leaf; 3: 2, 1; 4: both + leaf
        { 2, 1, 4, 4 * 2 * b, 3 + 4 },            // the same of pairs
        { 8, 1, 1, 8 * b, 1 },                    //
        { 3, 1, 2, 2 * 3 * b, 2 + 4 },            // 3 = 11b: 2 written; 6 = 110b: 2 read, 2 written
        { 6, 1, 2, 2 * 6 * b, 2 + 4 },            // the same of pairs
        { 5, 1, 3, 3 * 5 * b, 2 + 4 + 4 },        // 101b, 1010b, 1111b: 2; 2 read, 2 written; 1 kept, 1 read, 3 written
        { 2, 3, 1, 2 * b + 4 + 4, 2. / 3 },       // 3 sums of fp32: 11b, of a third of the shard
        { 3, 2, 2, 2 * (3 + 3 + 3) * b, 6. / 2 }  // 3 leaves from each of 2 groups: as 6
    };
    for (size_t i = 0; i < sizeof by_hand / sizeof *by_hand; i++) {
        run.ranks = by_hand[i].N;
        run.replicas = by_hand[i].R;
        run.G = by_hand[i].G;
        const double want = numel / (double)run.ranks * (by_hand[i].chunks + 4 * by_hand[i].sums),
                     have = find(&run, "reduce")->bytes;
        CHECK(fabs(have - want) < 1e-9 * want, "N = %zu, R = %zu, G = %zu: %.0f bytes, by hand %.0f", run.ranks,
              run.replicas, run.G, have, want);
    }
}

// The same where a rank adds its own micro-batches first: the reduction is that of one micro-step, of fp32 sums.
static void test_own_sums_move_what_they_read_and_write(void) {
    ProfileRun run = gpt2();
    const double numel = run.numel = 64 * 24 * 1000, b = 2;
    const struct {
        size_t N, G;
        double own, chunks, sums;  // bytes of an element; as above
    } by_hand[] = {
        { 2, 4, 4 * b + 4 * (3 + 4), 2 * 4, 1 },          // one sum of 4: as above 3 + 4
        { 2, 12, 12 * b + 4 * (3 * 7 + 6), 2 * 12, 2 },   // three of 4, copied; 6 = 110b
        { 3, 8, 8 * b + 4 * (3 + 4 + 3 + 5), 3 * 4, 2 },  // one of 8: 5: 1; 6: 1 + 1; 7: 1; 8: 3 + 1; 3 = 11b
    };
    run.settings.order = ZERO_ORDER_RANK;
    for (size_t i = 0; i < sizeof by_hand / sizeof *by_hand; i++) {
        run.ranks = by_hand[i].N;
        run.G = by_hand[i].G;
        const double shard = numel / (double)run.ranks, own = find(&run, "accumulate")->bytes,
                     reduce = find(&run, "reduce")->bytes;
        CHECK(fabs(own - numel * by_hand[i].own) < 1e-9 * own, "G = %zu: own sums move %.0f", run.G, own);
        CHECK(fabs(reduce - shard * (by_hand[i].chunks + 4 * by_hand[i].sums)) < 1e-9 * reduce,
              "G = %zu: the reduction moves %.0f", run.G, reduce);
        CHECK(find(&run, "all-to-all")->calls == 13 && find(&run, "accumulate")->calls == 13.0 * (double)run.G);
    }
}

static void test_flags_move_work_from_kernel_to_kernel(void) {
    ProfileRun run = gpt2();
    CHECK(find(&run, "gelu_forward")->calls == 24 && find(&run, "layernorm_forward")->calls == 50);
    run.recompute = 2;
    CHECK(find(&run, "gelu_forward")->calls == 48 && find(&run, "layernorm_forward")->calls == 98);
    run.gelu_fusion = 2;
    CHECK(find(&run, "gelu_forward")->calls == 24);
    const double plain = 2.0 * (4096.0 * 768 + 768.0 * 3072 + 4096.0 * 3072) * 24;
    CHECK(find(&run, "product forward, gelu 768 to 3072")->bytes == plain + 2.0 * 4096 * 3072 * 24);
    CHECK(find(&run, "product dinput, gelu 3072 to 768")->bytes == plain + 2.0 * 4096 * 3072 * 24);
    run.settings.order = ZERO_ORDER_LAYER;  // the forward of layers once more
    CHECK(find(&run, "layernorm_forward")->calls == 2 * 48 + 48 + 2);
}

// A kind may be limited by memory, arithmetic, links or the bus to the host; an H200 moves 4.8 TB a second, and so on.
static void test_the_floor_is_the_slowest_of_four(void) {
    int known;
    const char *bound;
    ProfileRun run = gpt2();
    const ProfileDevice *d = profile_device("NVIDIA H200", &known);
    CHECK(known);
    ProfileWork w = { .bytes = 4.8e9 };
    CHECK(profile_floor(&w, &run, d, &bound) == 1e-3 && !strcmp(bound, "memory"));
    w.wire = 900e6;
    CHECK(profile_floor(&w, &run, d, &bound) == 2e-3 && !strcmp(bound, "link"));
    w.flops = 989e9 * 3;
    w.tensor_cores = 1;
    CHECK(profile_floor(&w, &run, d, &bound) == 3e-3 && !strcmp(bound, "math"));
    run.settings.dtype = ZERO_F32;  // fp32: TF32 only where it is allowed
    CHECK(profile_floor(&w, &run, d, &bound) == 989e9 * 3 / 67e12);
    run.tf32 = 1;
    CHECK(profile_floor(&w, &run, d, &bound) == 989e9 * 3 / 494e12);
    w = (ProfileWork){ .bytes = 4.8e9, .host = 128e6 };
    CHECK(profile_floor(&w, &run, d, &bound) == 2e-3 && !strcmp(bound, "host"));
    CHECK_STR(profile_device("CPU", &known)->name, "H200");
    CHECK(!known);
    static const char *const others[] = { "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA GH200 480GB", "NVIDIA H200 NVL",
                                          "NVIDIA H100 PCIe" };
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        (void)profile_device(others[i], &known);
        CHECK(!known);
    }
    CHECK_STR(profile_device("NVIDIA A100-SXM4-80GB", &known)->name, "A100-SXM4-80GB");
    CHECK(known);
}

// Prints the profile; the line that begins with name, or NULL.
static char *line_of(const Profile *p, const ProfileRun *run, const char *name, int *wrong) {
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    *wrong = profile_print(out, p, run, "CPU");
    fclose(out);
    char *found = NULL;
    for (char *line = strtok(text, "\n"); line && !found; line = strtok(NULL, "\n")) {
        if (!strncmp(line, name, strlen(name)) && line[strlen(name)] == ' ') found = strdup(line);
    }
    free(text);
    return found;
}

static void test_the_clock_adds_up_by_name_and_step(void) {
    const ProfileRun run = gpt2();
    Profile *p = profile_create();
    profile_begin(NULL, "nothing", 0);
    profile_end(NULL);
    for (int step = 0; step < 2; step++) {
        for (int i = 0; i < 700; i++) {  // more than fit before it grows
            profile_begin(p, "outer", 0);
            profile_begin(p, "inner_kernel<float, 4>", 0);
            if (i == 0) nanosleep(&(struct timespec){ 0, 5000000 }, NULL);
            profile_end(p);
            profile_end(p);
        }
        profile_begin_product(p, "dweight", 768, 2304, 0);
        profile_end(p);
        CHECK_EQ(profile_end_step(p, 10), cudaSuccess);
    }
    int wrong;
    const char *const names[] = { "outer", "inner" };
    for (int i = 0; i < 2; i++) {
        char *line = line_of(p, &run, names[i], &wrong);
        double calls, ms;
        REQUIRE(line != NULL);
        CHECK_EQ(sscanf(line + strlen(names[i]), "%lf %lf", &calls, &ms), 2);
        CHECK(calls == 700 && ms >= 4.9);
        CHECK(strstr(line, "no formula") != NULL);
        free(line);
    }
    char *line = line_of(p, &run, "product dweight 768 to 2304", &wrong);
    CHECK(strstr(line, "calls differ from the formula, 24.0") != NULL);
    free(line);
    line = line_of(p, &run, "residual", &wrong);
    CHECK(strstr(line, "not measured") != NULL);
    free(line);
    ProfileWork all[PROFILE_MAX_KINDS];
    CHECK_EQ(wrong, profile_work(&run, all) + 2);  // outer and inner have no formula
    profile_destroy(p);
}

int main(int argc, char **argv) {
    test_start(&argc, argv);
    RUN(test_products_are_6_flops_per_weight_and_token);
    RUN(test_chunks_of_the_head_move_their_sum);
    RUN(test_attention_is_half_of_a_square);
    RUN(test_the_step_is_about_what_mfu_counts);
    RUN(test_adamw_moves_28_30_28_24_bytes);
    RUN(test_the_sum_moves_what_its_partial_sums_say);
    RUN(test_own_sums_move_what_they_read_and_write);
    RUN(test_flags_move_work_from_kernel_to_kernel);
    RUN(test_the_floor_is_the_slowest_of_four);
    RUN(test_the_clock_adds_up_by_name_and_step);
    return test_finish();
}
