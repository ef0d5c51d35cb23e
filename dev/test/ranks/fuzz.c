// fuzz.c: do options break each other? Compares random configurations of the trainer with plain ones, bit for bit, for
// a given time.
//
//     make fuzz SECONDS=600               another seed each time; it is printed
//     make fuzz SECONDS=600 SEED=7        the same configurations again
//     fuzz FP32_TRAINER BF16_TRAINER [--seconds S] [--seed N] [--text FILE] [--break 1] [--case "configuration 17,"]
//
// A configuration is a choice from each row of the table below. It is run as a user would run it, under mpirun, and so
// is its *baseline*: the same training in stage 0 on one rank, without --inject-delays and other complications. The
// bits must not depend on the number of ranks, from 1 to 9. Everything that both print about the training must be
// equal: losses and norms of each step, validation losses, the sampled text, and the hash of parameters and optimizer
// state. No measured byte may differ from its formula. One baseline serves several configurations that train the same
// in other ways.
//
// A failing configuration is made smaller: each choice is replaced by an earlier one of its row, the simplest first, as
// long as it still fails. The two commands that are left are printed. --break trains with another seed than the
// baseline, which must fail: it tests the fuzzer.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include "test/harness/harness.h"

// Many ranks with several threads each are slow on a small machine, and test nothing new.
enum { WAYS_PER_TRAINING = 4, SHRINK_SECONDS = 90, MAX_VALUES = 10, MAX_RANKS_WITH_THREADS = 2 };

// Rows that say what is trained concern both sides, rows that say how (from STAGE on) only the one that is not the
// baseline.
enum {
    PRECISION,
    LAYERS,
    HEADS,
    HEAD_SIZE,
    VOCAB,
    MAX_T,
    T,
    B,
    STEPS,
    VAL,
    VAL_BATCHES,
    SAMPLE,
    SAMPLE_TOKENS,
    CLIP,
    DECAY,
    OPTIMIZER,
    AVERAGE,
    WARMUP,
    SCHEDULE,
    FINAL,
    LR,
    SHUFFLE,
    SEED,
    OVERFIT,
    MASTER,
    N,
    G,
    STAGE,
    SPLIT,
    SHARD_GROUP,
    PREFETCH,
    RECOMPUTE,
    DEBUG,
    THREADS,
    STREAMS,
    TRANSPORT,
    ORDER,
    ACTIVATIONS,
    PARAMS,
    ROWS
};
static const struct {
    const char *flag, *values[MAX_VALUES];
} table[ROWS] = {
    [PRECISION] = { "", { "fp32", "bf16" } },
    [LAYERS] = { "", { "1", "2", "3", "4" } },
    [HEADS] = { "", { "1", "2", "3", "5" } },
    [HEAD_SIZE] = { "", { "8", "16", "24" } },
    [VOCAB] = { "", { "256", "257", "300", "509", "1003" } },
    [MAX_T] = { "", { "16", "24", "40", "64" } },
    [T] = { "-t", { "16", "8", "15", "9" } },
    [B] = { "-b", { "1", "2", "3", "5" } },
    [STEPS] = { "-x", { "1", "2", "3", "5" } },
    [VAL] = { "-v", { "0", "1", "2" } },
    [VAL_BATCHES] = { "-m", { "1", "3", "9" } },
    [SAMPLE] = { "-s", { "0", "1", "2" } },
    [SAMPLE_TOKENS] = { "-g", { "1", "3", "12" } },
    [CLIP] = { "--grad-clip", { "1", "0", "0.05" } },
    [DECAY] = { "-c", { "0", "0.1" } },
    [OPTIMIZER] = { "--optimizer", { "adamw", "sgd", "lion" } },
    [AVERAGE] = { "--ema-decay", { "0", "0.9" } },
    [WARMUP] = { "-u", { "0", "1" } },
    [SCHEDULE] = { "-k", { "cosine", "linear", "constant", "wsd" } },
    [FINAL] = { "-q", { "1", "0", "0.1" } },
    [LR] = { "-l", { "3e-4", "1e-2" } },
    [SHUFFLE] = { "--shuffle", { "1", "0" } },
    [SEED] = { "--seed", { "42", "1", "123456" } },
    [OVERFIT] = { "-a", { "0", "1" } },
    [MASTER] = { "", { "1", "0" } },
    [N] = { "", { "1", "2", "3", "4", "5", "6", "7", "8", "9" } },
    [G] = { "", { "1", "2", "3", "4", "5", "6", "8" } },
    [STAGE] = { "-z", { "0", "1", "2", "3", "3", "3" } },
    [SPLIT] = { "", { "1", "2" } },
    [SHARD_GROUP] = { "", { "0", "1", "2", "3", "4" } },
    [PREFETCH] = { "--prefetch", { "1", "0", "2" } },
    [RECOMPUTE] = { "-r", { "1", "0", "2" } },
    [DEBUG] = { "--inject-delays", { "0", "4", "1", "2", "3", "5", "6", "7", "8", "9" } },
    [THREADS] = { "OMP_NUM_THREADS", { "1", "2", "3" } },
    [STREAMS] = { "CUDA_ON_CPU_STREAMS", { "", "0", "1", "2" } },
    [TRANSPORT] = { "--transport", { "mpi", "nccl" } },
    [ORDER] = { "", { "step", "rank", "layer" } },
    [ACTIVATIONS] = { "", { "none", "cpu" } },
    [PARAMS] = { "", { "none", "cpu", "nvme:build" } },
};

typedef struct config {
    int choice[ROWS];
} config;

static const char *trainers[2], *text = "dev/data/text/default.txt";  // FP32, BF16
static int broken;
static uint64_t dice;

static const char *value(const config *c, int row) { return table[row].values[c->choice[row]]; }
static int number(const config *c, int row) { return atoi(value(c, row)); }

static int values(int row) {
    int n = 0;
    while (n < MAX_VALUES && table[row].values[n]) n++;
    return n;
}

static void draw(config *c, int row) {
    dice ^= dice << 13;
    dice ^= dice >> 7;
    dice ^= dice << 17;
    c->choice[row] = (int)((dice >> 32) % (uint64_t)values(row));
}

static config baseline_of(config c) {
    for (int row = STAGE; row < ROWS; row++) c.choice[row] = 0;
    return c;
}

// The shell's command. A baseline of one rank takes all micro-batches of the step, which the flag -d says.
static void command(char *out, size_t bytes, const config *c, int ranks, int is_baseline) {
    const int micro_batches = number(c, N) * number(c, G), channels = number(c, HEADS) * number(c, HEAD_SIZE);
    size_t n = (size_t)snprintf(out, bytes, "NP=%d; . scripts/env.sh; OMP_WAIT_POLICY=passive OMP_NUM_THREADS=%s ",
                                ranks, ranks <= MAX_RANKS_WITH_THREADS ? value(c, THREADS) : "1");
    if (*value(c, STREAMS)) n += (size_t)snprintf(out + n, bytes - n, "CUDA_ON_CPU_STREAMS=%s ", value(c, STREAMS));
    n += (size_t)snprintf(out + n, bytes - n,
                          "timeout 300 mpirun -np %d %s -e custom:l%s,h%s,c%d,v%s,t%s -i %s -d %d --hash 1", ranks,
                          trainers[c->choice[PRECISION]], value(c, LAYERS), value(c, HEADS), channels, value(c, VOCAB),
                          value(c, MAX_T), text, number(c, B) * number(c, T) * micro_batches);
    for (int row = 0; row < ROWS; row++)
        if (table[row].flag[0] == '-')
            n += (size_t)snprintf(out + n, bytes - n, " %s %s", table[row].flag, value(c, row));
    if (!strcmp(value(c, PRECISION), "bf16"))
        n += (size_t)snprintf(out + n, bytes - n, " -w %s", value(c, number(c, MASTER) ? SPLIT : MASTER));
    if (number(c, STAGE) && number(c, SHARD_GROUP) && ranks % number(c, SHARD_GROUP) == 0)
        n += (size_t)snprintf(out + n, bytes - n, " --shard-group %s", value(c, SHARD_GROUP));
    if (number(c, STAGE) < 2 || strcmp(value(c, ORDER), "rank"))
        n += (size_t)snprintf(out + n, bytes - n, " --micro-batch-order %s", value(c, ORDER));
    if (number(c, RECOMPUTE))
        n += (size_t)snprintf(out + n, bytes - n, " --offload-activations %s", value(c, ACTIVATIONS));
    if (number(c, STAGE) == 3) n += (size_t)snprintf(out + n, bytes - n, " --offload-params %s", value(c, PARAMS));
    if (broken && !is_baseline) snprintf(out + n, bytes - n, " --seed 4242");
}

static int begins(const char *line, const char *word) { return !strncmp(line, word, strlen(word)); }

// Runs it. Returns what it has printed about the training, without times; NULL, and all of it in *problem, if it
// failed. Both are malloc'ed.
static char *run(const char *shell, char **problem) {
    char *line = NULL, *all = NULL, *kept = NULL;
    size_t line_bytes = 0, all_bytes = 0, kept_bytes = 0;
    int training = 0, hashed = 0, wrong = 0;
    FILE *a = open_memstream(&all, &all_bytes), *k = open_memstream(&kept, &kept_bytes), *f = popen(shell, "r");
    while (f && getline(&line, &line_bytes, f) >= 0) {
        fputs(line, a);
        if (begins(line, "drawing")) training = 1;
        if (begins(line, "total average")) training = 0;
        if (begins(line, "state hash")) hashed = 1;
        if (strstr(line, "differs from the formula")) wrong = 1;
        char *times = begins(line, "step ") ? strstr(line, " ms |") : NULL;
        while (times && *times != '|') times--;
        if (times) strcpy(times, "\n");
        if (training || begins(line, "state hash")) fputs(line, k);
    }
    const int status = f ? pclose(f) : -1;
    if (status || !hashed) wrong = 1;
    if (status) fprintf(a, "(exit status %d)\n", WIFEXITED(status) ? WEXITSTATUS(status) : status);
    fclose(a);
    fclose(k);
    free(line);
    *problem = all;
    if (!wrong) return kept;
    free(kept);
    return NULL;
}

// Does this configuration fail? Says so aloud if asked to. The baseline of the last call is remembered.
static int fails(const config *c, int aloud) {
    static char last[2048], *expected, *trouble;
    char shell[2048], baseline[2048], *problem = NULL;
    const config plain = baseline_of(*c);
    command(baseline, sizeof baseline, &plain, 1, 1);
    command(shell, sizeof shell, c, number(c, N), 0);
    if (strcmp(last, baseline)) {
        free(expected);
        free(trouble);
        expected = run(baseline, &trouble);
        snprintf(last, sizeof last, "%s", baseline);
    }
    char *have = expected ? run(shell, &problem) : NULL;
    const int failed = !have || strcmp(have, expected);
    if (failed && aloud) {
        printf("\n%s\n    %s\n",
               have ? "The first prints other numbers than the second, its baseline:"
                    : "A run failed, or a number of bytes differs from its formula:",
               expected ? shell : baseline);
        if (have)
            printf("    %s\n\nexpected:\n%s\ngot:\n%s", baseline, expected, have);
        else
            printf("\n%s", expected ? problem : trouble);
    }
    free(have);
    free(problem);
    return failed;
}

static config shrink(config c) {
    const time_t end = time(NULL) + SHRINK_SECONDS;
    for (int row = 0; row < ROWS; row++)
        for (int choice = 0; choice < c.choice[row] && time(NULL) < end; choice++) {
            config smaller = c;
            smaller.choice[row] = choice;
            if (fails(&smaller, 0)) c = smaller;  // and the loop ends: no earlier choice is left
        }
    return c;
}

// Another number of ranks for the same training.
static void draw_ranks(config *c) {
    const int micro_batches = number(c, N) * number(c, G);
    config other = *c;
    draw(&other, N);
    draw(&other, G);
    if (number(&other, N) * number(&other, G) == micro_batches) *c = other;
}

// A case: this configuration prints what its baseline prints. Otherwise prints the smallest that does not.
static int agrees(config c, unsigned long long seed) {
    if (CHECK(!fails(&c, 0), "the configuration fails; looking for the smallest that does")) return 1;
    c = shrink(c);
    if (!fails(&c, 1))
        printf("the smallest failing configuration does not fail each time: a race; repeat with --seed %llu\n", seed);
    return 0;
}

// Draws trainings, and ways to run each, until the time is over or a configuration fails.
static void fuzz(unsigned long long seed, long seconds) {
    const time_t end = time(NULL) + seconds;
    long count = 0, most = 10 * seconds;  // --list and --case run few or none: they need another end
    int good = 1;
    while (good && time(NULL) < end && count < most) {
        config c;
        for (int row = 0; row < ROWS; row++) draw(&c, row);
        for (int way = 0; good && way < WAYS_PER_TRAINING && time(NULL) < end; way++) {
            if (way) draw_ranks(&c);
            for (int row = STAGE; row < ROWS; row++) draw(&c, row);
            CASE("configuration %ld, %s, %s ranks, -z %s", ++count, value(&c, PRECISION), value(&c, N),
                 value(&c, STAGE))
                good = agrees(c, seed);
        }
    }
}

static int usage(void) {
    fprintf(stderr, "usage: fuzz FP32_TRAINER BF16_TRAINER [--seconds S] [--seed N] [--text FILE] [--break 1]\n");
    return 2;
}

int main(int argc, char **argv) {
    unsigned long long seed = (unsigned long long)time(NULL) % 1000000;
    long seconds = 60;
    test_start(&argc, argv);
    if (argc < 3) return usage();
    for (int i = 0; i < 2; i++) trainers[i] = argv[1 + i];
    for (int i = 3; i < argc; i += 2) {
        if (i + 1 == argc) return usage();
        if (!strcmp(argv[i], "--seconds"))
            seconds = atol(argv[i + 1]);
        else if (!strcmp(argv[i], "--seed"))
            seed = strtoull(argv[i + 1], NULL, 10);
        else if (!strcmp(argv[i], "--text"))
            text = argv[i + 1];
        else if (!strcmp(argv[i], "--break"))
            broken = atoi(argv[i + 1]);
        else
            return usage();
    }
    printf("fuzz: seed %llu, %ld s\n", seed, seconds);
    dice = (seed + 1) * 0x9e3779b97f4a7c15u;
    fuzz(seed, seconds);
    return test_finish();
}
