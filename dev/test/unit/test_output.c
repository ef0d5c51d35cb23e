// What a run computes about itself and writes: learning rates, z-scores, the step line, main.log, model files.
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "test/harness/harness.h"
#include "data/durable_file.h"
#include "gpt2/model_file.h"
#include "gpt2/tensors.h"
#include "trainer/json.h"
#include "trainer/log.h"
#include "trainer/progress.h"

static char err[8192];

// ---------------------------------------------------------------------------------------------------------------------
// Learning rate, z-scores, lines

static void near(double a, double b) { CHECK(fabs(a - b) <= 1e-12 * (fabs(a) + fabs(b)), "%.17g is not %.17g", a, b); }

static void test_schedules_have_their_closed_forms(void) {
    Schedule s = { .kind = SCHEDULE_COSINE,
                   .lr = 1,
                   .warmup = 10,
                   .steps = 110,
                   .final_fraction = 0.1,
                   .decay_from = -1,
                   .decay_to = -1 };
    for (int kind = SCHEDULE_COSINE; kind <= SCHEDULE_WSD; kind++) {
        s.kind = kind;
        near(schedule_lr(&s, 0), 0.1);
        near(schedule_lr(&s, 4), 0.5);
        near(schedule_lr(&s, 9), 1);
        near(schedule_lr(&s, 10), 1);
        near(schedule_lr(&s, 110), kind == SCHEDULE_CONSTANT ? 1 : 0.1);
        near(schedule_lr(&s, 1000), kind == SCHEDULE_CONSTANT ? 1 : 0.1);
    }
    s.kind = SCHEDULE_COSINE;
    near(schedule_lr(&s, 60), 0.55);
    near(schedule_lr(&s, 35), 0.1 + 0.9 * 0.5 * (1 + sqrt(0.5)));
    s.kind = SCHEDULE_LINEAR;
    near(schedule_lr(&s, 60), 0.55);
    near(schedule_lr(&s, 35), 0.775);
    s.kind = SCHEDULE_WSD;
    near(schedule_lr(&s, 87), 1);
    near(schedule_lr(&s, 99), 0.1 + 0.9 * (1 - sqrt(0.5)));
    s.kind = SCHEDULE_COSINE;
    s.warmup = s.steps = 5;  // nothing left to decay in
    near(schedule_lr(&s, 4), 1);
    near(schedule_lr(&s, 5), 1);
}

// What DeepSpeed's own schedulers and nanotron's lr_scheduler_builder say: the rate of the first ten steps.
static void test_schedules_of_deepspeed_and_nanotron_are_theirs(void) {
    static const struct {
        Schedule s;
        double rates[10];
    } CURVES[] = {
        { { SCHEDULE_WARMUP_LR, WARMUP_LOG, 1, 0.1, 4, 10, -1, -1, 1 },
          { 0.1, 0.1, 0.55, 0.81323312532452, 1, 1, 1, 1, 1, 1 } },
        { { SCHEDULE_WARMUP_LR, WARMUP_LINEAR, 1, 0, 4, 10, -1, -1, 1 }, { 0, 0, 0.25, 0.5, 0.75, 1, 1, 1, 1, 1 } },
        { { SCHEDULE_WARMUP_LR, WARMUP_LLMC, 1, 0, 1, 10, -1, -1, 1 }, { 0, 0, 1, 1, 1, 1, 1, 1, 1, 1 } },
        { { SCHEDULE_WARMUP_DECAY_LR, WARMUP_LOG, 1, 0.1, 3, 8, -1, -1, 1 },
          { 0.1, 0.1, 0.667836778214312, 1, 1, 0.82, 0.64, 0.46, 0.28, 0.1 } },
        { { SCHEDULE_WARMUP_DECAY_LR, WARMUP_LOG, 1, 0, 4, 10, -1, 3, 1 },
          { 0, 0, 0.5, 0.792481250360578, 1, 0, 0, 0, 0, 0 } },
        { { SCHEDULE_WARMUP_COSINE_LR, WARMUP_LOG, 1, 0.2, 3, 10, -1, 8, 0.1 },
          { 0, 0.2, 0.704743802857166, 1, 0.914057647468726, 0.689057647468726, 0.410942352531274, 0.185942352531274,
            0.1, 0.1 } },
        { { SCHEDULE_WARMUP_COSINE_LR, WARMUP_LINEAR, 1, 0, 3, 10, -1, 8, 0.0001 },
          { 0, 0, 0.333333333333333, 0.666666666666667, 0.904518046337755, 0.654543046337755, 0.345556953662245,
            0.0955819536622451, 0.0001, 0.0001 } },
        { { SCHEDULE_COSINE, WARMUP_LINEAR, 1, 0, 3, 10, 3, 10, 0.1 },
          { 0, 0.333333333333333, 0.666666666666667, 1, 0.955435990556089, 0.83057041083643, 0.650134420280341,
            0.449865579719659, 0.26942958916357, 0.144564009443911 } },
        { { SCHEDULE_LINEAR, WARMUP_LINEAR, 1, 0, 3, 10, 3, 7, 0.1 },
          { 0, 0.333333333333333, 0.666666666666667, 1, 0.775, 0.55, 0.325, 0.1, 0.1, 0.1 } },
        { { SCHEDULE_WSD, WARMUP_LINEAR, 1, 0, 2, 10, 5, 9, 0.1 },
          { 0, 0.5, 1, 1, 1, 1, 0.55, 0.363603896932107, 0.220577136594005, 0.1 } },
        { { SCHEDULE_LINEAR, WARMUP_LINEAR, 1, 0, 1, 10, 0, 10, 0.1 },
          { 0, 0.91, 0.82, 0.73, 0.64, 0.55, 0.46, 0.37, 0.28, 0.19 } },
        { { SCHEDULE_COSINE, WARMUP_LLMC, 1, 0, 0, 10, 3, 10, 0.1 },
          { 1, 1, 1, 1, 0.955435990556089, 0.83057041083643, 0.650134420280341, 0.449865579719659, 0.26942958916357,
            0.144564009443911 } },
    };
    for (size_t i = 0; i < sizeof CURVES / sizeof *CURVES; i++)
        for (size_t step = 0; step < 10; step++) {
            const double got = schedule_lr(&CURVES[i].s, step), want = CURVES[i].rates[step];
            CHECK(fabs(got - want) <= 1e-14, "curve %zu, step %zu: %.17g, not %.17g", i, step, got, want);
        }
}

static void test_z_scores_are_of_the_last_128_values(void) {
    Outliers o = { 0 };
    for (int i = 0; i < OUTLIER_WINDOW; i++) {
        CHECK(isnan(outlier_z(&o, i)));
    }
    // The window is now 1 .. 128: mean 64.5, variance (n^2 - 1) / 12.
    near(outlier_z(&o, 128), (128 - 64.5) / sqrt((128.0 * 128 - 1) / 12));
    for (int i = 0; i < OUTLIER_WINDOW; i++) {
        outlier_z(&o, 3);
    }
    near(outlier_z(&o, 3), 0);
    // Rounding gave a constant a variance, and a z-score of 1 or -1.
    const double constants[] = { 0.1, 5.507409, 1e-300, 1e300, -7.3, 0 };
    for (size_t c = 0; c < sizeof constants / sizeof *constants; c++) {
        Outliers q = { 0 };
        for (int i = 0; i < OUTLIER_WINDOW; i++) {
            outlier_z(&q, constants[c]);
        }
        CHECK(outlier_z(&q, constants[c]) == 0, "%g: %g", constants[c], outlier_z(&q, constants[c]));
    }
    // One x among 127 zeros in all: the z-score does not depend on x.
    Outliers p = { 0 };
    for (int i = 0; i < OUTLIER_WINDOW; i++) {
        outlier_z(&p, 0);
    }
    near(outlier_z(&p, 1e-3), sqrt(127));
}

static void test_peaks_are_not_guessed(void) {
    near(gpu_peak_flops("NVIDIA A100-SXM4-80GB"), 312e12);
    near(gpu_peak_flops("NVIDIA H100 80GB HBM3"), 989e12);
    near(gpu_peak_flops("NVIDIA H100 PCIe"), 756e12);
    near(gpu_peak_flops("NVIDIA H200"), 989e12);
    near(gpu_peak_flops("NVIDIA GH200 480GB"), 989e12);
    near(gpu_peak_flops("NVIDIA L40S"), 362e12);
    near(gpu_peak_flops("NVIDIA L4"), 121e12);
    near(gpu_peak_flops("NVIDIA GeForce RTX 4090"), 165.2e12);
    CHECK(gpu_peak_flops("NVIDIA GeForce RTX 4090 Laptop GPU") == 0);
    CHECK(gpu_peak_flops("NVIDIA H100 80GB HBM3 MIG 1g.10gb") == 0);
    CHECK(gpu_peak_flops("NVIDIA RTX A4000") == 0);
    CHECK(gpu_peak_flops("CPU") == 0);
}

static void test_the_step_line_is_llmcs(void) {
    char line[512];
    StepLine s = { .step = 0,
                   .steps = 10,
                   .loss = 5.2700091,
                   .loss_z = NAN,
                   .norm = 2.5,
                   .norm_z = 1,
                   .lr = 3e-4,
                   .ms = 12.345,
                   .mfu = 0.4567,
                   .tokens_per_second = 12345.6 };
    step_line(line, sizeof line, &s);
    CHECK_STR(line, "step    1/10 | loss 5.270009 (+nanz)| norm 2.5000 (+1.00z)| lr 3.00e-04 | 12.35 ms | "
                    "45.7% bf16 MFU | 12346 tok/s");
    CHECK_BYTES(line + 20, "5.270009", 8);  // where llm.c's scripts cut it out
    s.mfu = -1;
    step_line(line, sizeof line, &s);
    CHECK(strstr(line, "| n/a MFU |") != NULL);
    const GPT2Config d12 = { 1024, 50257, 50304, 12, 12, 768 };
    near(gpt2_training_flops(&d12, 512, 7), (6.0 * 124475904 + 6.0 * 12 * 768 * 512) * 7);
    double order[3 + 2 * 12], sum = 0;
    gpt2_order_flops(&d12, 512, order);
    for (size_t i = 0; i < gpt2_unit_order(&d12, NULL); i++) sum += order[i];
    near(sum, 6.0 * 124475904 + 6.0 * 12 * 768 * 512);
}

static void test_the_progress_line_counts_from_the_start_of_this_run(void) {
    char line[160];
    setenv("TZ", "UTC", 1);
    // 101 of 400 steps before this run, then 100 steps in 99 s without the first: 199 are left.
    CHECK(progress_text(line, sizeof line, 101, 100, 400, 99, 3600) > 0);
    CHECK_STR(line, "[##############..............] 50%  0:03:19 left, ends 01:03");
    CHECK(progress_text(line, sizeof line, 0, 2, 10000, 3600, 0) > 0);
    CHECK(strstr(line, "9998:00:00 left, ends 1971-02-21 14:00") != NULL, "%s", line);
    CHECK(strlen(line) < 80);
    CHECK_EQ(progress_text(line, sizeof line, 0, 1, 10, 0, 0), 0);
    CHECK_EQ(progress_text(line, sizeof line, 5, 5, 10, 4, 0), 0);
}

static void test_json_has_no_number_that_is_not_finite(void) {
    char text[128] = "";
    FILE *f = fmemopen(text, sizeof text, "w");
    json_number(f, NAN);
    json_number(f, -INFINITY);
    json_number(f, 0.1);
    json_string(f, "a\"b\\c\n");
    fclose(f);
    CHECK_STR(text, "nullnull0.1\"a\\\"b\\\\c\\u000a\"");
}

// ---------------------------------------------------------------------------------------------------------------------
// Files

static char dir[64];

static const char *in_dir(const char *name) {
    static char path[2][256];
    static int turn;
    turn = !turn;
    snprintf(path[turn], sizeof path[turn], "%s/%s", dir, name);
    return path[turn];
}

static void make_dir(void) {
    strcpy(dir, "/tmp/test_options.XXXXXX");
    REQUIRE(mkdtemp(dir) != NULL);
}

static void remove_dir(void) {
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", dir);
    REQUIRE(system(command) == 0);
}

static void test_main_log(void) {
    TrainLog l;
    for (int run = 0; run < 2; run++) {  // the second starts from nothing
        CHECK_EQ(trainlog_open(&l, dir, "main.log", 0, err, sizeof err), 0);
        CHECK_EQ(trainlog_val(&l, 0, 5.30214, err, sizeof err), 0);
        CHECK_EQ(trainlog_train(&l, 0, 5.27001, 3e-4, 2.345, err, sizeof err), 0);
        trainlog_close(&l);
    }
    char text[256] = "";
    FILE *f = fopen(in_dir("main.log"), "r");
    text[fread(text, 1, sizeof text - 1, f)] = '\0';
    fclose(f);
    CHECK_STR(text, "s:0 tel:5.3021\ns:0 trl:5.2700 lr:0.000300 norm:2.35\n");

    CHECK_EQ(trainlog_open(&l, NULL, "main.log", 0, err, sizeof err), 0);
    CHECK_EQ(trainlog_val(&l, 0, 1, err, sizeof err), 0);
    trainlog_close(&l);
    CHECK_EQ(trainlog_open(&l, in_dir("nowhere"), "main.log", 0, err, sizeof err), -1);
    CHECK(strstr(err, "nowhere/main.log") != NULL);
    CHECK(strstr(err, "-o") != NULL);
}

static const GPT2Config SHAPE = {
    .max_seq_len = 16, .vocab_size = 100, .num_layers = 2, .num_heads = 2, .channels = 64, .padded_vocab_size = 128
};

// A value that bf16 can hold, another one for every element of a row of 1000.
static float value(size_t i) {
    return (float)((int)(i % 1000) - 500) * 0x1p-8f * (i % 1000 < 256 ? 1.0f : 0x1p-4f) * (i % 1000 % 2 ? 1.0f : 0.0f);
}

// Two ranks write alternating pieces.
static int write_model(const char *path, int bf16) {
    char temporary[300];
    snprintf(temporary, sizeof temporary, "%s.tmp", path);
    if (modelfile_create(temporary, &SHAPE, bf16, err, sizeof err) != 0) {
        return -1;
    }
    size_t n = gpt2_num_parameters(&SHAPE);
    float *values = malloc(n * sizeof *values);
    for (size_t i = 0; i < n; i++) {
        values[i] = value(i);
        if (bf16) {
            uint32_t bits;
            memcpy(&bits, &values[i], 4);
            bits &= 0xffff0000u;
            memcpy(&values[i], &bits, 4);
        }
    }
    int failed = 0;
    for (size_t rank = 0; rank < 2 && !failed; rank++) {
        ModelFile f;
        failed = modelfile_begin(&f, temporary, err, sizeof err);
        for (size_t begin = rank * 50000; begin < n && !failed; begin += 100000) {
            failed = modelfile_write(&f, begin, n - begin < 50000 ? n - begin : 50000, values + begin, err, sizeof err);
        }
        failed = failed || modelfile_finish(&f, err, sizeof err);
        modelfile_close(&f);
    }
    free(values);
    if (failed) {
        unlink(temporary);
        return -1;
    }
    return durable_publish(temporary, path, err, sizeof err);
}

static void test_a_model_comes_back_as_it_was_written(void) {
    for (int bf16 = 0; bf16 < 2; bf16++) {
        const char *path = in_dir("model_00000010.bin");
        CHECK_EQ(write_model(path, bf16), 0);
        CHECK_EQ(access(in_dir("model_00000010.bin.tmp"), F_OK), -1);
        ModelFile f;
        CHECK_EQ(modelfile_open(&f, path, err, sizeof err), 0);
        CHECK_EQ(f.bf16, bf16);
        CHECK_BYTES(&f.config, &SHAPE, sizeof SHAPE);
        size_t n = f.numel;
        CHECK_EQ(n, 128 * 64 + 16 * 64 + 2 * (12 * 64 * 64 + 13 * 64) + 2 * 64);
        float *values = malloc(n * sizeof *values);
        CHECK_EQ(modelfile_read(&f, 0, 7, values, err, sizeof err), 0);
        CHECK_EQ(modelfile_read(&f, 7, n - 7, values + 7, err, sizeof err), 0);
        for (size_t i = 0; i < n; i++) {
            CHECK(fabsf(values[i] - value(i)) <= (bf16 ? 0x1p-7f * fabsf(value(i)) : 0), "element %zu: %g, not %g", i,
                  values[i], value(i));
        }
        CHECK_EQ(modelfile_read(&f, n - 1, 2, values, err, sizeof err), -1);
        free(values);
        modelfile_close(&f);
    }
}

// A file is written in ranges that begin and end anywhere, in blocks and out of them, on the disk and in memory.
static void test_ranges_of_any_size_reach_the_file(void) {
    static const size_t cuts[] = { 0, 3, 4096, 4097, 70000, 135536, 262144, 1500001, 1572864, 2900000, 2900004 };
    const size_t last = sizeof cuts / sizeof *cuts - 1, bytes = cuts[last];
    char in_memory[64];
    snprintf(in_memory, sizeof in_memory, "/dev/shm/zero-test-ranges-%d", (int)getpid());
    const char *const paths[] = { in_dir("ranges"), in_memory };
    unsigned char *want = malloc(bytes), *got = malloc(bytes);
    REQUIRE(want != NULL && got != NULL);
    for (size_t i = 0; i < bytes; i++) want[i] = (unsigned char)(i * 2654435761u >> 13);
    for (size_t p = 0; p < 2; p++) {
        int fd;
        unlink(paths[p]);
        CHECK(durable_create(paths[p], bytes, &fd, err, sizeof err) == 0, "%s", err);
        int failed = 0;  // all threads write by one descriptor
#pragma omp parallel for num_threads(4) reduction(+ : failed)
        for (size_t i = 0; i < last; i++) {
            char why[512] = "";
            failed += durable_write(fd, paths[p], want + cuts[i], cuts[i + 1] - cuts[i], cuts[i], why, sizeof why) != 0;
            if (why[0] != '\0') fprintf(stderr, "%s\n", why);
        }
        CHECK_EQ(failed, 0);
        CHECK_EQ(pread(fd, got, bytes, 0), (ssize_t)bytes);
        CHECK_BYTES(got, want, bytes);
        CHECK(durable_close(fd, paths[p], err, sizeof err) == 0, "%s", err);
        unlink(paths[p]);
    }
    free(want);
    free(got);
}

static void test_the_124m_file_has_the_size_of_llmcs(void) {
    const GPT2Config d12 = { 1024, 50257, 50304, 12, 12, 768 };
    CHECK_EQ(gpt2_num_parameters(&d12), 124475904);
}

// Writes a word of the header, and tries to open the file.
static void refused_with(const char *path, size_t word, int32_t number, const char *message) {
    int32_t before;
    FILE *f = fopen(path, "r+");
    fseek(f, (long)(4 * word), SEEK_SET);
    CHECK_EQ(fread(&before, 4, 1, f), 1);
    fseek(f, (long)(4 * word), SEEK_SET);
    fwrite(&number, 4, 1, f);
    fclose(f);
    ModelFile m;
    CHECK_EQ(modelfile_open(&m, path, err, sizeof err), -1);
    CHECK_EQ(m.fd, -1);
    CHECK(strstr(err, message) && strstr(err, path), "word %zu = %d: message \"%s\" should contain \"%s\" and the path",
          word, number, err, message);
    f = fopen(path, "r+");
    fseek(f, (long)(4 * word), SEEK_SET);
    fwrite(&before, 4, 1, f);
    fclose(f);
}

static void test_damaged_model_files_are_refused(void) {
    char path[128];
    snprintf(path, sizeof path, "%s/damaged.bin", dir);
    CHECK_EQ(write_model(path, 0), 0);
    refused_with(path, 0, 20240520, "not a model file");
    refused_with(path, 1, 1, "version 1");
    refused_with(path, 1, 4, "version 4");
    refused_with(path, 1, 5, "truncated");  // a bf16 file of this shape is half as long
    refused_with(path, 4, 3, "truncated");
    refused_with(path, 6, 0, "channels 0");
    refused_with(path, 4, -1, "num_layers -1");
    refused_with(path, 7, INT32_MAX, "padded_vocab_size");

    ModelFile m;
    struct stat st;
    CHECK_EQ(stat(path, &st), 0);
    CHECK_EQ(truncate(path, st.st_size - 1), 0);
    CHECK_EQ(modelfile_open(&m, path, err, sizeof err), -1);
    CHECK(strstr(err, "truncated") != NULL);
    CHECK_EQ(truncate(path, st.st_size + 1), 0);
    CHECK_EQ(modelfile_open(&m, path, err, sizeof err), -1);
    CHECK_EQ(truncate(path, 100), 0);
    CHECK_EQ(modelfile_open(&m, path, err, sizeof err), -1);
    CHECK(strstr(err, "shorter than a header") != NULL);
    CHECK_EQ(modelfile_open(&m, in_dir("absent.bin"), err, sizeof err), -1);
    CHECK(strstr(err, "absent.bin: cannot be opened") != NULL);
    CHECK_EQ(modelfile_open(&m, dir, err, sizeof err), -1);
}

static void test_a_failed_write_leaves_the_old_model_and_no_litter(void) {
    char path[128];
    snprintf(path, sizeof path, "%s/kept.bin", dir);
    CHECK_EQ(write_model(path, 0), 0);
    CHECK_EQ(write_model(in_dir("nowhere/model.bin"), 0), -1);
    CHECK(strstr(err, "nowhere/model.bin.tmp") != NULL);
    CHECK(strstr(err, "another directory") != NULL);

    struct rlimit before, full;  // the disk is "full" at 100000 bytes
    getrlimit(RLIMIT_FSIZE, &before);
    full = before;
    full.rlim_cur = 100000;
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &full);
    int code = write_model(path, 0);
    setrlimit(RLIMIT_FSIZE, &before);
    signal(SIGXFSZ, SIG_DFL);
    CHECK_EQ(code, -1);
    CHECK(strstr(err, "kept.bin.tmp") != NULL);
    CHECK(strstr(err, "make room") != NULL);
    CHECK_EQ(access(in_dir("kept.bin.tmp"), F_OK), -1);
    ModelFile m;
    CHECK_EQ(modelfile_open(&m, path, err, sizeof err), 0);
    modelfile_close(&m);
}

int main(int argc, char **argv) {
    test_start(&argc, argv);
    make_dir();
    RUN(test_schedules_have_their_closed_forms);
    RUN(test_schedules_of_deepspeed_and_nanotron_are_theirs);
    RUN(test_z_scores_are_of_the_last_128_values);
    RUN(test_peaks_are_not_guessed);
    RUN(test_the_step_line_is_llmcs);
    RUN(test_the_progress_line_counts_from_the_start_of_this_run);
    RUN(test_json_has_no_number_that_is_not_finite);
    RUN(test_main_log);
    RUN(test_a_model_comes_back_as_it_was_written);
    RUN(test_ranges_of_any_size_reach_the_file);
    RUN(test_the_124m_file_has_the_size_of_llmcs);
    RUN(test_damaged_model_files_are_refused);
    RUN(test_a_failed_write_leaves_the_old_model_and_no_litter);
    remove_dir();
    return test_finish();
}
