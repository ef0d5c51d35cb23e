// Rules that involve several flags, or the build: what contradicts itself is refused with a remedy; what does not apply
// here, but does no harm, is accepted as in llm.c, and a note says so.
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "trainer/options.h"

#define MOST_MICRO_BATCHES ((size_t)4294967295)  // of a step, as --micro-batches has it

#define FAIL(...) (snprintf(err, err_bytes, __VA_ARGS__), -1)

void options_note(Options *o, const char *format, ...) {
    const size_t length = strlen(o->notes), room = sizeof o->notes - length;
    va_list args;
    va_start(args, format);
    const int n = vsnprintf(o->notes + length, room, format, args);
    va_end(args);
    if (n >= (int)room) snprintf(o->notes + sizeof o->notes - 5, 5, "...\n");
}

// llm.c ignores these, too.
static void note_what_does_not_apply(Options *o, const OptionsBuild *build) {
    const int mpi = o->init_method == OPTION_INIT_MPI;
    if (mpi && o->server_ip != NULL) options_note(o, "-ps: not used with -pi mpi\n");
    if (mpi && o->shared_dir != NULL) options_note(o, "-pf: not used with -pi mpi\n");
    if (build->cpu && o->gpu_info_every > 0) {
        options_note(o, "-lg %lld: there is no GPU to report on\n", (long long)o->gpu_info_every);
        o->gpu_info_every = 0;
    }
    const int not_adamw = o->settings.optimizer != ZERO_ADAMW;
    if (not_adamw && options_given(o, "eps")) options_note(o, "--eps: only --optimizer adamw uses it\n");
    if (o->settings.optimizer == ZERO_SGD && options_given(o, "beta2")) options_note(o, "--beta2: not used by sgd\n");
    if (o->prompt != NULL && o->sample_every <= 0 && !o->generate)
        options_note(o, "--prompt: not used, for there is no -s\n");
    if (o->checkpoint_every > 0 && o->output_dir == NULL)
        options_note(o, "-n %lld: no checkpoints are written, for there is no -o\n", (long long)o->checkpoint_every);
    if (o->plan != OPTION_PLAN_OFF && o->plan_ranks_per_host == 0 && options_given(o, "net-gbs"))
        options_note(o, "--net-gbs: not used, for all ranks are on one host: add --ranks-per-host\n");
    if (o->checkpoint_every == 0 && (o->checkpoints_keep > 0 || o->major_checkpoint_every > 0))
        options_note(o, "-%s: no checkpoints are written, for there is no -n\n", o->checkpoints_keep > 0 ? "nk" : "nm");
}

// How the processes are started. With MPI, launch.c compares -pn, -pr and -pg with what MPI says.
static int check_init(const Options *o, char *err, size_t err_bytes) {
    const int mpi = o->init_method == OPTION_INIT_MPI;
    const int tcp = o->init_method == OPTION_INIT_TCP;
    const char *method = tcp ? "tcp" : "fs";
    if (o->gpus_per_node == 0) {
        return FAIL("-pg 0: a machine has at least one process: use 1 or more, or leave the flag out");
    }
    if (mpi) {
        return 0;
    }
    if (o->processes < 1 || o->rank < 0) {
        return FAIL(
            "-pi %s: each process has to be told how many there are, and which one it is: add -pn PROCESSES -pr RANK",
            method);
    }
    if (o->rank >= o->processes) {
        return FAIL("-pr %lld: there is no such rank among -pn %lld processes: use 0 to %lld", (long long)o->rank,
                    (long long)o->processes, (long long)o->processes - 1);
    }
    if (tcp && o->server_ip == NULL) {
        return FAIL("-pi tcp: where does rank 0 listen? add -ps with the address of its machine");
    }
    if (!tcp && o->shared_dir == NULL) {
        return FAIL("-pi fs: where do the ranks meet? add -pf with a directory that all of them see");
    }
    if (tcp ? o->shared_dir != NULL : o->server_ip != NULL) {
        return FAIL("-%s: is not for -pi %s: leave it out", tcp ? "pf" : "ps", method);
    }
    const zero_transport *t = options_transport(o);
    if (t != NULL && zero_transport_needs_mpi(t)) {
        return FAIL("--transport mpi: MPI carries nothing between processes that it has not started: use --transport "
                    "nccl, or -pi mpi with mpirun -n PROCESSES");
    }
    return 0;
}

// --generate 1 is a run without steps, data and files.
static int check_generate(Options *o, char *err, size_t err_bytes) {
    static const char *const OTHERS[] = { "i", "j", "o", "n", "y", "x", "v", "h", "a" };
    char given[64] = "";
    for (size_t i = 0, n; i < sizeof OTHERS / sizeof *OTHERS; i++) {
        n = strlen(given);
        if (options_on_command_line(o, OTHERS[i])) snprintf(given + n, sizeof given - n, " -%s", OTHERS[i]);
    }
    if (given[0] != '\0') return FAIL("--generate 1: trains, validates and writes nothing: leave out%s", given);
    if (o->model == NULL) return FAIL("--generate 1: needs a model: add -e, as -e DIR/model_00001000.bin");
    o->output_dir = NULL;  // a configuration file may have one
    o->max_steps = o->val_every = o->offload_activations = 0;
    o->sample_every = 1;
    return 0;
}

// A plan has all stages, and shows the others step by step.
static int check_order(const Options *o, char *err, size_t err_bytes) {
    if (o->settings.order == ZERO_ORDER_STEP) return 0;
    if (o->settings.reduction != ZERO_REDUCE_EXACT)
        return FAIL("--micro-batch-order: rank and layer do not work with --reduce library: leave one of them out");
    if (o->settings.order == ZERO_ORDER_RANK && o->settings.stage >= 2 && o->plan == OPTION_PLAN_OFF &&
        !o->print_config)
        return FAIL("--micro-batch-order rank: each rank keeps sums of all gradients, which stage %d shards: use -z 1, "
                    "or --micro-batch-order layer or step",
                    o->settings.stage);
    return 0;
}

// Reads none|cpu|nvme:DIR.
static int read_place(const char *flag, const char *text, enum zero_offload *place, const char **dir, char *err,
                      size_t err_bytes) {
    static const char NVME[] = "nvme:";
    const size_t length = strlen(NVME);
    *dir = strncmp(text, NVME, length) == 0 && text[length] != '\0' ? text + length : NULL;
    *place = *dir != NULL ? ZERO_OFFLOAD_NVME : ZERO_OFFLOAD_CPU;
    if (strcmp(text, "none") == 0)
        *place = ZERO_OFFLOAD_NONE;
    else if (*place == ZERO_OFFLOAD_CPU && strcmp(text, "cpu") != 0)
        return FAIL("--%s %.200s: unknown: use none, cpu, or nvme:DIR with a directory on a fast disk", flag, text);
    return 0;
}

// The emulated GPU has a memory of its own.
static int one_memory(const Options *o, const OptionsBuild *build) {
#ifdef CUDA_ON_CPU_EMULATED
    return 0 && build->cpu && o->plan == OPTION_PLAN_OFF;
#else
    return build->cpu && o->plan == OPTION_PLAN_OFF;
#endif
}

static void offload_nothing(Options *o, const char *flag, enum zero_offload *place) {
    if (*place != ZERO_OFFLOAD_CPU) return;
    options_note(o, "--%s cpu: the host's memory is this device's: nothing is offloaded\n", flag);
    *place = ZERO_OFFLOAD_NONE;
}

// A plan has all stages.
static int check_offload(Options *o, const OptionsBuild *build, char *err, size_t err_bytes) {
    zero_settings *s = &o->settings;
    if (read_place("offload", o->offload, &s->offload, &o->offload_dir, err, err_bytes) != 0 ||
        read_place("offload-params", o->offload_params, &s->offload_params, &o->offload_params_dir, err, err_bytes) !=
            0)
        return -1;
    if (s->offload == ZERO_OFFLOAD_NONE && options_given(o, "offload-fraction"))
        options_note(o, "--offload-fraction: not used, for there is no --offload\n");
    if (s->offload_params != zero_params_offload(s) && o->plan == OPTION_PLAN_OFF && !o->print_config)
        return FAIL("--offload-params %.200s: stage %d does not shard parameters: use -z 3, or leave it out",
                    o->offload_params, s->stage);
    if (one_memory(o, build)) {
        offload_nothing(o, "offload", &s->offload);
        offload_nothing(o, "offload-params", &s->offload_params);
    }
    return 0;
}

// A run that recomputes nothing keeps all activations, of which the inputs of layers are a small part.
static int check_offload_activations(Options *o, const OptionsBuild *build, char *err, size_t err_bytes) {
    if (!o->offload_activations) return 0;
    if (o->recompute == 0)
        return FAIL("--offload-activations cpu: -r 0 keeps all activations on the device: use -r 1 or 2, or leave it "
                    "out");
    if (one_memory(o, build)) {
        options_note(o, "--offload-activations cpu: the host's memory is this device's: nothing is offloaded\n");
        o->offload_activations = 0;
    }
    return 0;
}

static int check_build(Options *o, const OptionsBuild *build, char *err, size_t err_bytes) {
    if (build->cpu && options_given(o, "f") && o->tf32) {
        return FAIL("-f 1: a CPU has no TF32: use -f 0, or leave the flag out");
    }
    if (!options_given(o, "f")) {
        o->tf32 = !build->cpu;
    }
    if (!options_given(o, "precision")) {
        o->settings.dtype = build->bf16 ? ZERO_BF16 : ZERO_F32;
    }
    if (o->settings.dtype == ZERO_F32 && o->settings.master != ZERO_MASTER_FP32) {
        return FAIL("-w %d: fp32 parameters are their own master weights: use -w 1, or %s",
                    o->settings.master == ZERO_MASTER_SPLIT ? 2 : 0,
                    o->plan != OPTION_PLAN_OFF ? "--precision bf16" : "build with PRECISION=BF16");
    }
    return 0;
}

static int check_plan(Options *o, char *err, size_t err_bytes) {
    if (o->plan != OPTION_PLAN_OFF && o->settings.delay_seed != 0) {
        return FAIL("--inject-delays %llu: a plan is that of a run without delays: leave it out",
                    (unsigned long long)o->settings.delay_seed);
    }
    if (o->memory_limit > 0 && options_given(o, "device-memory")) {
        return FAIL("--device-memory: --memory-limit gives the memory of a rank too: use one of the two");
    }
    if (o->fit && o->plan == OPTION_PLAN_SCALING)
        return FAIL("--fit: is not for --plan scaling: use --plan, or --plan json");
    if (o->fit && o->total_batch_tokens > 0) options_set_default(o, "b", "1");  // it is searched
    if (o->plan == OPTION_PLAN_SCALING && o->settings.shard_group > 0) {
        return FAIL("--shard-group %zu: --plan scaling chooses it for each number of ranks: leave it out",
                    o->settings.shard_group);
    }
    if (o->plan_ranks == 0) {
        return FAIL("--ranks 0: a run has at least one rank: use 1 or more, or leave the flag out");
    }
    return 0;
}

// How a run's ranks share it.
static int check_parallel(const Options *o, char *err, size_t err_bytes) {
    if (o->nccl_register && options_transport(o) != zero_transport_find("nccl")) {
        return FAIL("--nccl-register 1: is about NCCL: add --transport nccl, or leave it out");
    }
    if (o->tp > 1 || o->pp > 1) {
        return FAIL("--%s %lld: this trainer splits neither tensors nor layers over ranks: leave the flag out",
                    o->tp > 1 ? "tp" : "pp", (long long)(o->tp > 1 ? o->tp : o->pp));
    }
    return check_order(o, err, err_bytes);
}

static int check_data(const Options *o, char *err, size_t err_bytes) {
    if (o->resume && o->output_dir == NULL) {
        return FAIL("-y 1: there is no directory to resume from: add -o DIR, or use -y 0");
    }
    if (o->val_files != NULL && o->train_files == NULL) {
        return FAIL("-j %.200s: validation data without training data: add -i", o->val_files);
    }
    if (o->micro_batches == 0) {
        return FAIL("--micro-batches 0: nothing to train on: use a positive number, or leave the flag out");
    }
    if (o->micro_batches > 0 && o->total_batch_tokens > 0) {
        return FAIL("--micro-batches %lld: -d %lld gives the size of a step too: use one of the two",
                    (long long)o->micro_batches, (long long)o->total_batch_tokens);
    }
    if (o->total_batch_tokens == 0) {
        return FAIL("-d 0: nothing to train on: use a positive number, or -1 for one micro-batch per rank");
    }
    if (o->val_batches == 0 && o->val_every > 0) {
        return FAIL("-m 0: nothing to validate on: use -v 0 for no validation, or a positive -m");
    }
    return 0;
}

static int check_schedule(const Options *o, char *err, size_t err_bytes) {
    if (o->schedule.kind >= SCHEDULE_WARMUP_LR && o->schedule.warmup == 0) {
        return FAIL("-k Warmup...: DeepSpeed's schedules begin with a warm-up: add -u with 1 or more steps");
    }
    if (o->schedule.decay_from >= 0 && o->schedule.decay_to >= 0 && o->schedule.decay_to <= o->schedule.decay_from) {
        return FAIL("--decay-to %lld: is not after --decay-from %lld: use a larger one, or -1 for the last step",
                    (long long)o->schedule.decay_to, (long long)o->schedule.decay_from);
    }
    return 0;
}

int options_check(Options *o, const OptionsBuild *build, char *err, size_t err_bytes) {
    if (check_build(o, build, err, err_bytes) != 0 || check_plan(o, err, err_bytes) != 0 ||
        check_init(o, err, err_bytes) != 0 || check_offload(o, build, err, err_bytes) != 0 ||
        check_offload_activations(o, build, err, err_bytes) != 0 || check_parallel(o, err, err_bytes) != 0 ||
        check_data(o, err, err_bytes) != 0 || check_schedule(o, err, err_bytes) != 0)
        return -1;
    note_what_does_not_apply(o, build);
    return o->generate ? check_generate(o, err, err_bytes) : 0;
}

int options_check_batch(const Options *o, size_t ranks, size_t max_seq_len, size_t *micro_steps, char *err,
                        size_t err_bytes) {
    size_t B = (size_t)o->batch_size;
    size_t T = (size_t)o->seq_len;
    if (T > max_seq_len) {
        return FAIL("-t %zu: the model's longest sequence is %zu tokens: use -t %zu or less", T, max_seq_len,
                    max_seq_len);
    }
    if (o->head_rows > 0 && (size_t)o->head_rows < T) {
        return FAIL("--head-rows %lld: less than the %zu tokens of -t: use %zu or more, or 0", (long long)o->head_rows,
                    T, T);
    }
    if (B * T > 1 << 30) {
        return FAIL("-b %zu -t %zu: a micro-batch of %zu tokens is too large: use a smaller -b, and -d for the tokens "
                    "of a step",
                    B, T, B * T);
    }
    const size_t unit = o->micro_batches > 0 ? 1 : B * T, once = unit * ranks;  // micro-batches, or tokens
    const size_t total = o->micro_batches > 0        ? (size_t)o->micro_batches
                         : o->total_batch_tokens > 0 ? (size_t)o->total_batch_tokens
                                                     : once;
    if (total / unit > MOST_MICRO_BATCHES) {
        return FAIL(
            "-d %zu: %zu micro-batches of -b %zu x -t %zu tokens: there may be %zu: use a smaller -d, or larger "
            "-b and -t",
            total, total / unit, B, T, MOST_MICRO_BATCHES);
    }
    if (total % once != 0) {
        size_t below = total / once * once;
        char both[96], of[96], of_B[32];
        snprintf(of_B, sizeof of_B, "-b %zu x ", B);
        if (below == 0) {
            snprintf(both, sizeof both, "the smallest value that works is %zu", once);
        } else {
            snprintf(both, sizeof both, "the nearest values that work are %zu and %zu", below, below + once);
        }
        if (o->micro_batches > 0)
            return FAIL("--micro-batches %zu: not a multiple of %zu ranks: %s", total, ranks, both);
        const int any = o->fit && !options_given(o, "b");  // B is 1
        snprintf(of, sizeof of, "%s-t %zu x %zu ranks = %zu tokens", any ? "" : of_B, T, ranks, once);
        return FAIL("-d %zu: not a multiple of %s: %s", total, of, both);
    }
    *micro_steps = total / once;
    return 0;
}
