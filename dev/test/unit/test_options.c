// The command line, which a user meets first when something is wrong. Most of this is a table of command lines that
// must be refused, each with a word that the message must contain: the flag, the value or the remedy. A refusal without
// a remedy is a bug, and so is a flag that is mistaken for another.
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "test/harness/harness.h"
#include "trainer/options.h"

static const OptionsBuild CPU_FP32 = { .cpu = 1 };
static const OptionsBuild CPU_BF16 = { .cpu = 1, .bf16 = 1 };
static const OptionsBuild GPU_BF16 = { .bf16 = 1 };
static char err[8192];

// Parses a command line as a shell would split it. Returns what options_parse returns; the words are kept for the
// test's duration.
static int parse(Options *o, const OptionsBuild *build, const char *line) {
    static char words[4096];
    static char *argv[128];
    int argc = 0;
    argv[argc++] = "train_gpt2_zero";
    snprintf(words, sizeof words, "%s", line);
    for (char *w = strtok(words, " "); w != NULL; w = strtok(NULL, " ")) {
        argv[argc++] = strcmp(w, "''") == 0 ? "" : w;
    }
    argv[argc] = NULL;
    err[0] = '\0';
    return options_parse(o, build, argc, argv, err, sizeof err);
}

// ---------------------------------------------------------------------------------------------------------------------
// Command lines

static const struct {
    const char *line, *word;
} REFUSED[] = {
    // not a flag, or not this one
    { "foo", "foo: not a flag" },
    { "-b 4 foo", "foo: not a flag" },
    { "-- -b 4", "--: not a flag" },
    { "-", "not a flag" },
    { "-b 4 8", "8: not a flag" },
    { "-zz 1", "-zz: unknown flag" },
    { "--buddy 10", "--buddy: unknown flag: copies of a rank's state on another one are not implemented" },
    { "-? 1", "unknown" },
    { "-: 1", "unknown" },
    { "-+ 1", "unknown" },
    { "--batch 4", "abbreviated" },
    { "--max 3", "abbreviated" },
    { "-gr 3", "unknown" },
    { "--va 3", "unknown" },
    { "--batch=4", "--batch-size" },
    { "-b4", "unknown flag" },
    { "-bs 4", "unknown flag" },
    { "-slx 1", "unknown" },
    { "-nn 3", "unknown" },
    { "--hel", "unknown" },
    // no value, no number
    { "-b", "value is missing" },
    { "-z 1 -h", "-h: its value is missing" },
    { "--lr", "value is missing" },
    { "-b four", "-b four: not a whole number" },
    { "-b 4x", "-b 4x" },
    { "-b 4.5", "whole number" },
    { "-b ''", "whole number" },
    { "--batch-size=", "whole number" },
    { "-b 0x10", "whole number" },
    { "-l fast", "-l fast: not a number" },
    { "-l nan", "not a number" },
    { "-l inf", "not a number" },
    { "-l 1e999", "not a number" },
    { "-l 3e-4,", "not a number" },
    { "-i ''", "empty" },
    { "-k -z 1", "-k -z: unknown: use one of cosine" },
    // out of range
    { "-b 0", "-b 0: out of range" },
    { "-b -4", "out of range" },
    { "-b 99999999999999999999", "out of range" },
    { "-t 0", "-t 0" },
    { "-x -2", "-x -2" },
    { "-d -2", "-d -2" },
    { "-d 0", "-d 0" },
    { "-l -1", "-l -1: out of range" },
    { "-q 1.5", "-q 1.5" },
    { "-u -1", "-u -1" },
    { "-c -0.1", "-c -0.1" },
    { "-r 3", "-r 3" },
    { "-ge 3", "-ge 3" },
    { "-z 4", "-z 4" },
    { "-z -1", "-z -1" },
    { "-a 2", "-a 2" },
    { "-w 3", "-w 3" },
    { "-v -1", "-v -1" },
    { "-m -2", "-m -2" },
    { "-g -1", "-g -1" },
    { "-s -2", "-s -2" },
    { "--beta1 1", "--beta1 1" },
    { "--beta2 1.0", "--beta2" },
    { "--eps 0", "--eps 0" },
    { "--grad-clip -1", "--grad-clip" },
    { "--optimizer adam", "adamw|sgd|lion" },
    { "--optimizer AdamWs", "adamw|sgd|lion" },
    { "--ema-decay 1", "--ema-decay 1" },
    { "--ema-decay -0.1", "--ema-decay" },
    { "--shuffle 2", "--shuffle 2" },
    { "--seed -1", "--seed" },
    { "--seed 4294967296", "--seed" },
    { "--hash yes", "--hash yes" },
    { "--timeout 0", "--timeout 0" },
    { "--tp 0", "--tp 0" },
    // unknown words
    { "-k cos", "cosine|linear|constant|wsd" },
    { "-k WarmupLR", "add -u" },
    { "-k warmuplr", "add -u" },  // words in large or small letters
    { "--warmup-shape exp", "llmc|linear|log" },
    { "--warmup-from -1", "--warmup-from -1" },
    { "--decay-from -2", "--decay-from -2" },
    { "--decay-from 9 --decay-to 9", "is not after --decay-from 9" },
    { "--print-config 2", "--print-config 2" },
    { "--config", "value is missing" },
    { "--config ''", "--config: the value is empty" },
    { "-k cosine|linear", "unknown" },
    { "--transport tcp", "auto|mpi|nccl" },
    { "--reduce fast", "exact|library" },
    { "-pi file", "mpi|tcp|fs" },
    // without what it needs, or out of range
    { "-y 1", "add -o DIR" },
    { "--resume 1", "add -o DIR" },
    { "-y 2 -o out", "-y 2" },
    { "-h 2", "-h 2" },
    { "-z 4", "-z 4" },
    { "--stage=5", "--stage 5" },
    { "--prefetch 3", "--prefetch 3" },
    { "--micro-batch-order any", "step|rank|layer" },
    { "--micro-batch-order rank", "which stage 2 shards: use -z 1" },
    { "--micro-batch-order rank -z 3", "which stage 3 shards: use -z 1" },
    { "--micro-batch-order rank -z 1 --reduce library", "leave one of them out" },
    { "--micro-batch-order layer --reduce library", "leave one of them out" },
    // how processes are started
    { "-pn x", "-pn x" },
    { "-pr -2", "-pr -2" },
    { "-pg 0", "-pg 0" },
    { "-ps ''", "-ps: the value is empty" },
    { "-pf ''", "-pf: the value is empty" },
    { "-pi mpi -pg 0", "-pg 0" },
    { "-pi tcp", "-pn PROCESSES -pr RANK" },
    { "-pi fs -pn 4 -pf /tmp", "-pn PROCESSES -pr RANK" },
    { "-pi fs -pn 0 -pr 0 -pf /tmp", "-pn PROCESSES" },
    { "-pi fs -pn 4 -pr 4 -pf /tmp", "-pr 4: there is no such rank" },
    { "-pi tcp -pn 4 -pr 0", "add -ps" },
    { "-pi fs -pn 4 -pr 0", "add -pf" },
    { "-pi tcp -pn 4 -pr 0 -ps ::1 -pf /tmp", "-pf: is not for -pi tcp" },
    { "-pi fs -pn 4 -pr 0 -ps ::1 -pf /tmp", "-ps: is not for -pi fs" },
    { "-pi tcp -pn 4 -pr 0 -ps ::1 -pg 0", "-pg 0" },
    { "-pi tcp -pn 4 -pr 0 -ps ::1 --transport mpi", "--transport mpi: MPI carries nothing" },
    // not there
    { "-f 1", "-f 0" },
    { "-lg -2", "-lg -2" },
    { "--nccl-register 1", "--transport nccl" },
    { "--transport mpi --nccl-register 1", "--transport nccl" },
    // together
    { "-n -1", "-n -1" },
    { "-nk -1 -o out", "-nk -1" },
    { "-nm -1 -o out", "-nm -1" },
    { "-j val.bin", "add -i" },
    { "-m 0", "-v 0" },
    { "--print-config --mfu 0.5", "--mfu: is about a plan" },
    // samples
    { "--generate 1", "add -e" },
    { "--generate 1 -e d12 -i text", "leave out -i" },
    { "--generate 1 -e d12 -v 1 -i text -s 1 -n 1 -o out -j text", "leave out -i -j -o -n -v" },
    { "--generate 1 -e d12 -x 1", "leave out -x" },
    { "--generate 1 -e d12 -o out", "leave out -o" },
    { "--prompt ''", "--prompt: the value is empty" },
    { "--temperature -1", "--temperature -1" },
    { "--top-k -1", "--top-k -1" },
    // plans
    { "--plan xml", "off|text|json" },
    { "--plan=", "off|text|json" },
    { "--plan json 8", "8: not a flag" },
    { "--ranks 8", "--ranks: is about a plan" },
    { "--plan off --mfu 0.5", "--mfu: is about a plan" },
    { "--precision bf16", "add --plan" },
    { "--plan --ranks 0", "at least one rank" },
    { "--plan --precision fp16", "fp32|bf16" },
    { "--plan --device-memory 0", "out of range" },
    { "--plan --device-memory 8 --memory-limit 8G", "use one of the two" },
    { "--memory-limit -1", "--memory-limit -1: out of range" },
    { "--memory-limit 8", "--memory-limit 8: is less than a megabyte: add K, M, G or T" },
    { "--memory-limit 1.5G", "K, M, G or T" },
    { "--memory-limit G", "--memory-limit G: not a whole number" },
    { "--memory-limit 4GB", "--memory-limit 4GB" },
    { "--memory-limit 9000000T", "out of range" },
    { "-b 4K", "not a whole number: use" },
    { "--offload-activations cpu -r 0", "--offload-activations cpu: -r 0 keeps all" },
    { "--offload-activations nvme:DIR", "none|cpu" },
    { "--fit", "--fit: is about a plan" },
    { "--plan --fit 2", "--fit 2" },
    { "--plan scaling --fit", "--fit: is not for --plan scaling" },
    { "--plan --mfu 1.5", "--mfu 1.5" },
    { "--plan --net-gbs 0", "--net-gbs 0: out of range" },
    { "--plan --net-gbs fast", "--net-gbs fast" },
    { "--plan --net-latency -1", "--net-latency -1: out of range" },
    { "--plan --link-latency inf", "--link-latency inf" },
    { "--plan --memory-gbs 0", "--memory-gbs 0: out of range" },
    { "--net-gbs 50", "--net-gbs: is about a plan" },
    { "--plan scaling --shard-group 8", "--shard-group 8: --plan scaling chooses it" },
    { "--plan --inject-delays 7", "without delays" },
};

static void test_every_wrong_command_line_is_refused_with_a_remedy(void) {
    for (size_t i = 0; i < sizeof REFUSED / sizeof REFUSED[0]; i++) {
        Options o;
        int code = parse(&o, &CPU_FP32, REFUSED[i].line);
        CHECK(code == -1 && strstr(err, REFUSED[i].word) && !strchr(err, '\n'),
              "%s: returned %d, message \"%s\", which should contain \"%s\"", REFUSED[i].line, code, err,
              REFUSED[i].word);
    }
}

// What llm.c accepts and does not use, with one line for each flag.
static void test_flags_that_do_not_apply_are_noted(void) {
    static const struct {
        const char *line, *note;
    } NOTED[] = {
        { "-n 10", "-n 10: no checkpoints are written, for there is no -o\n" },
        { "-nk 3 -o out", "-nk: no checkpoints are written, for there is no -n\n" },
        { "-nm 3 -o out", "-nm: no checkpoints are written, for there is no -n\n" },
        { "-lg 5", "-lg 5: there is no GPU to report on\n" },
        { "-pi mpi -pn 2 -pr 0 -pg 2", "" },
        { "-ps 10.0.0.1 -pf /tmp", "-ps: not used with -pi mpi\n-pf: not used with -pi mpi\n" },
        { "-pi fs -pn 1 -pr 0 -pf /tmp", "" },
        { "--plan --net-gbs 50", "--net-gbs: not used, for all ranks are on one host: add --ranks-per-host\n" },
        { "--plan --net-gbs 50 --ranks-per-host 8", "" },
        { "-g 0 -s -1 -lg -1 -n 2 -o out -nk 1 -nm 1 -h 1", "" },
    };
    for (size_t i = 0; i < sizeof NOTED / sizeof NOTED[0]; i++) {
        Options o;
        CHECK(parse(&o, &CPU_FP32, NOTED[i].line) == 0, "%s: %s", NOTED[i].line, err);
        CHECK_STR(o.notes, NOTED[i].note);
    }
}

static void test_what_a_build_has_not_is_refused_there_only(void) {
    Options o;
    static const char *const masters[] = { "-w 0", "-w 1", "-w 2" };
    static const enum zero_master kinds[] = { ZERO_MASTER_NONE, ZERO_MASTER_FP32, ZERO_MASTER_SPLIT };
    for (int w = 0; w <= 2; w++) {
        CHECK_EQ(parse(&o, &CPU_BF16, masters[w]), 0);
        CHECK_EQ(o.settings.master, kinds[w]);
        CHECK_EQ(parse(&o, &CPU_FP32, masters[w]), w == 1 ? 0 : -1);
        if (w != 1) CHECK(strstr(err, "use -w 1") != NULL);
        if (w == 2) CHECK_EQ(parse(&o, &CPU_FP32, "--plan --precision bf16 -w 2"), 0);
    }
    CHECK_EQ(parse(&o, &GPU_BF16, "-f 1 -lg 10 --transport nccl --nccl-register 1"), 0);
    CHECK_EQ(parse(&o, &GPU_BF16, "-pi tcp -pn 16 -pr 15 -pg 8 -ps 10.0.0.1:4000"), 0);
    CHECK(o.init_method == OPTION_INIT_TCP && o.processes == 16 && o.rank == 15 && o.gpus_per_node == 8);
    CHECK_STR(o.server_ip, "10.0.0.1:4000");
    CHECK_EQ(parse(&o, &GPU_BF16, "-pi fs -pn 1 -pr 0 -pf /tmp --transport nccl"), 0);
    CHECK(o.init_method == OPTION_INIT_FS && o.gpus_per_node == -1);
    CHECK_STR(o.shared_dir, "/tmp");
    CHECK_EQ(parse(&o, &CPU_FP32, "--plan -pi fs -pn 8 -pr 3 -pf /tmp"), 0);
    CHECK_EQ(parse(&o, &GPU_BF16, ""), 0);
    CHECK_EQ(o.tf32, 1);
    CHECK_EQ(parse(&o, &CPU_FP32, "-f 0 -lg 0 --transport mpi"), 0);
    CHECK_EQ(parse(&o, &CPU_FP32, ""), 0);
    CHECK_EQ(o.tf32, 0);
}

static void test_a_plan_needs_no_word(void) {
    Options o;
    CHECK_EQ(parse(&o, &CPU_FP32, ""), 0);
    CHECK_EQ(o.plan, OPTION_PLAN_OFF);
    CHECK_EQ(parse(&o, &CPU_FP32, "--plan"), 0);
    CHECK_EQ(o.plan, OPTION_PLAN_TEXT);
    CHECK_EQ(parse(&o, &CPU_FP32, "--plan scaling"), 0);
    CHECK_EQ(o.plan, OPTION_PLAN_SCALING);
    CHECK_EQ(o.settings.dtype, ZERO_F32);
    CHECK_EQ(parse(&o, &CPU_BF16, "--plan -b 2"), 0);
    CHECK_EQ(o.plan, OPTION_PLAN_TEXT);
    CHECK_EQ(o.settings.dtype, ZERO_BF16);
    CHECK_EQ(o.batch_size, 2);
    for (int i = 0; i < 2; i++) {
        CHECK_EQ(parse(&o, &CPU_FP32,
                       i == 0 ? "-z 3 --plan json --ranks 64 --precision bf16"
                              : "--plan=json -z 3 --precision bf16 --ranks 64"),
                 0);
        CHECK_EQ(o.plan, OPTION_PLAN_JSON);
        CHECK_EQ(o.plan_ranks, 64);
        CHECK_EQ(o.settings.dtype, ZERO_BF16);
        CHECK_EQ(o.settings.stage, 3);
    }
}

static void test_sizes_have_units(void) {
    static const struct {
        const char *line;
        long long bytes;
    } sizes[] = { { "--memory-limit 0", 0 },           { "--memory-limit 1500000", 1500000 },
                  { "--memory-limit 3K", 3072 },       { "--memory-limit=5M", 5242880 },
                  { "--memory-limit 6G", 6442450944 }, { "--memory-limit 2T", 2199023255552 } };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        Options o;
        char text[64];
        CHECK(parse(&o, &CPU_FP32, sizes[i].line) == 0, "%s: %s", sizes[i].line, err);
        CHECK_EQ(o.memory_limit, sizes[i].bytes);
        options_value(&o, "memory-limit", text, sizeof text);  // ranks that write it in other units agree
        CHECK_EQ(atoll(text), sizes[i].bytes);
    }
}

static void test_defaults_are_those_of_llmc(void) {
    Options o;
    CHECK_EQ(parse(&o, &CPU_FP32, ""), 0);
    CHECK(o.train_files == NULL);
    CHECK(o.output_dir == NULL);
    CHECK_EQ(o.batch_size, 4);
    CHECK_EQ(o.seq_len, 1024);
    CHECK_EQ(o.total_batch_tokens, -1);
    CHECK_EQ(o.max_steps, -1);
    CHECK_EQ(o.schedule.kind, SCHEDULE_COSINE);
    CHECK(o.schedule.lr == 3e-4 && o.schedule.final_fraction == 1 && o.weight_decay == 0);
    CHECK(o.beta1 == 0.9 && o.beta2 == 0.95 && o.eps == 1e-8 && o.grad_clip == 1);
    CHECK_EQ(o.val_every, 20);
    CHECK_EQ(o.val_batches, 20);
    CHECK_EQ(o.sample_every, 20);
    CHECK_EQ(o.sample_tokens, 64);
    CHECK_EQ(o.settings.stage, 2);
    CHECK_EQ(o.recompute, 1);
    CHECK_EQ(o.settings.seed, 42);
    CHECK_EQ(o.shuffle, 1);
    CHECK(o.timeout == 300);
}

// The flags of llm.c's script for GPT-2 124M.
static void test_a_script_of_llmc_runs_as_it_is(void) {
    Options o;
    CHECK_EQ(parse(&o, &CPU_FP32,
                   "-i dev/data/train_*.bin -j dev/data/val_*.bin -o log124M -v 250 -s 20000 -g 144 -h 1 -b 64 -t 1024"
                   " -d 524288 -r 0 -z 1 -c 0.1 -l 0.0006 -q 0.0 -u 700 -n 5000 -nk 5 -nm 50000 -ge 0 -y 0 -e d12 -x -1"
                   " -pi mpi -sl 7.0 -sg 7.0 -a 0 -f 0 -w 1 -k cosine -m 20"),
             0);
    CHECK_STR(o.train_files, "dev/data/train_*.bin");
    CHECK_STR(o.val_files, "dev/data/val_*.bin");
    CHECK_STR(o.output_dir, "log124M");
    CHECK_STR(o.model, "d12");
    CHECK_EQ(o.val_every, 250);
    CHECK_EQ(o.sample_every, 20000);
    CHECK_EQ(o.total_batch_tokens, 524288);
    CHECK_EQ(o.schedule.warmup, 700);
    CHECK_EQ(o.checkpoint_every, 5000);
    CHECK_EQ(o.checkpoints_keep, 5);
    CHECK_EQ(o.major_checkpoint_every, 50000);
    CHECK(o.schedule.final_fraction == 0 && o.schedule.lr == 0.0006 && o.weight_decay == 0.1);
    CHECK(o.skip_loss_z == 7 && o.skip_norm_z == 7 && o.hellaswag == 1);
}

static void test_short_flags_are_not_taken_for_one_another(void) {
    Options o;
    CHECK_EQ(parse(&o, &CPU_FP32, "-s 1 -sl 2 -sg 3 -n 4 -nk 5 -nm 6 -o out"), 0);
    CHECK(o.sample_every == 1 && o.skip_loss_z == 2 && o.skip_norm_z == 3);
    CHECK(o.checkpoint_every == 4 && o.checkpoints_keep == 5 && o.major_checkpoint_every == 6);
    CHECK_EQ(parse(&o, &CPU_FP32, "-l 1 -lg 0 -g 7 -ge 0 -e d12 -pi mpi -pn -1 --pp 1 --tp 1"), 0);
    CHECK(o.schedule.lr == 1 && o.gpu_info_every == 0 && o.sample_tokens == 7 && o.tp == 1);
    CHECK_STR(o.model, "d12");
}

static void test_long_names_and_equals_signs(void) {
    Options o;
    CHECK_EQ(parse(&o, &CPU_FP32, "-v 0"), 0);
    CHECK_EQ(o.val_every, 0);
    CHECK_EQ(
        parse(&o, &CPU_FP32,
              "--val-every=0 --sample-every 0 -n=0 --lr=1e-3 --train-files a=b --lr-schedule wsd --reduce library"),
        0);
    CHECK(o.val_every == 0 && o.sample_every == 0 && o.checkpoint_every == 0 && o.schedule.lr == 1e-3);
    CHECK_STR(o.train_files, "a=b");
    CHECK_EQ(o.schedule.kind, SCHEDULE_WSD);
    CHECK_EQ(o.settings.reduction, ZERO_REDUCE_LIBRARY);
    CHECK_EQ(parse(&o, &CPU_FP32, "-b 2 --batch-size 3"), 0);  // the last counts
    CHECK_EQ(o.batch_size, 3);
}

static void test_defaults_can_be_replaced_but_not_what_was_given(void) {
    Options o;
    CHECK_EQ(parse(&o, &CPU_FP32, "--batch-size 3"), 0);
    options_set_default(&o, "b", "8");
    options_set_default(&o, "t", "128");
    CHECK(o.batch_size == 3 && o.seq_len == 128);
    CHECK(options_given(&o, "b") && !options_given(&o, "t"));
}

static void test_help_tells_every_flag(void) {
    Options o;
    CHECK_EQ(parse(&o, &CPU_FP32, "-b 4 --help"), 1);
    CHECK_EQ(parse(&o, &CPU_FP32, "-help"), 1);
    char *text;
    size_t bytes;
    FILE *f = open_memstream(&text, &bytes);
    options_help(f, "train_gpt2_zero");
    fclose(f);
    static const char *const WORDS[] = { "-i ",         "--train-files", "-nk",
                                         "--stage",     "[3e-4]",        "cosine|linear|constant|wsd",
                                         "--grad-clip", "--timeout",     "-pn" };
    for (size_t i = 0; i < sizeof WORDS / sizeof WORDS[0]; i++) {
        CHECK(strstr(text, WORDS[i]) != NULL);
    }
    free(text);
}

static void test_batches_that_do_not_divide_are_refused_with_values_that_do(void) {
    Options o;
    size_t micro_steps;
    CHECK_EQ(parse(&o, &CPU_FP32, "-b 4 -t 64"), 0);
    CHECK_EQ(options_check_batch(&o, 8, 64, &micro_steps, err, sizeof err), 0);
    CHECK_EQ(micro_steps, 1);
    CHECK_EQ(parse(&o, &CPU_FP32, "-b 4 -t 64 -d 6144"), 0);
    CHECK_EQ(options_check_batch(&o, 8, 64, &micro_steps, err, sizeof err), 0);
    CHECK_EQ(micro_steps, 3);
    CHECK_EQ(options_check_batch(&o, 5, 64, &micro_steps, err, sizeof err), -1);
    CHECK(strstr(err, "5120 and 6400") != NULL);
    CHECK_EQ(parse(&o, &CPU_FP32, "-b 4 -t 64 -d 1000"), 0);
    CHECK_EQ(options_check_batch(&o, 8, 64, &micro_steps, err, sizeof err), -1);
    CHECK(strstr(err, "the smallest value that works is 2048") != NULL);
    CHECK_EQ(parse(&o, &CPU_FP32, "-b 4 -t 64 --micro-batches 24"), 0);
    CHECK_EQ(options_check_batch(&o, 6, 64, &micro_steps, err, sizeof err), 0);
    CHECK_EQ(micro_steps, 4);
    CHECK_EQ(options_total_tokens(&o), 24 * 4 * 64);
    CHECK_EQ(options_check_batch(&o, 5, 64, &micro_steps, err, sizeof err), -1);
    CHECK(strstr(err, "20 and 25") != NULL);
    CHECK_EQ(parse(&o, &CPU_FP32, "-b 4 -t 64 -d 1024 --micro-batches 4"), -1);
    CHECK(strstr(err, "use one of the two") != NULL);
    CHECK_EQ(parse(&o, &CPU_FP32, "-b 4 -t 64 -d 1000"), 0);
    CHECK_EQ(options_check_batch(&o, 8, 64, &micro_steps, err, sizeof err), -1);
    CHECK_EQ(options_check_batch(&o, 8, 63, &micro_steps, err, sizeof err), -1);
    CHECK(strstr(err, "use -t 63 or less") != NULL);
    CHECK_EQ(parse(&o, &CPU_FP32, "-b 16777216 -t 16777216"), 0);
    CHECK_EQ(options_check_batch(&o, 8, 1 << 24, &micro_steps, err, sizeof err), -1);
    CHECK(strstr(err, "smaller -b") != NULL);
}

int main(int argc, char **argv) {
    test_start(&argc, argv);
    RUN(test_every_wrong_command_line_is_refused_with_a_remedy);
    RUN(test_flags_that_do_not_apply_are_noted);
    RUN(test_what_a_build_has_not_is_refused_there_only);
    RUN(test_a_plan_needs_no_word);
    RUN(test_sizes_have_units);
    RUN(test_defaults_are_those_of_llmc);
    RUN(test_a_script_of_llmc_runs_as_it_is);
    RUN(test_short_flags_are_not_taken_for_one_another);
    RUN(test_long_names_and_equals_signs);
    RUN(test_defaults_can_be_replaced_but_not_what_was_given);
    RUN(test_help_tells_every_flag);
    RUN(test_batches_that_do_not_divide_are_refused_with_values_that_do);
    return test_finish();
}
