// One table holds everything about a flag: its names, its type and range, where its value goes, its default (as a user
// would write it, so that the same code parses it and --help shows it), and the help. A flag of llm.c that does not
// apply here is in the table too, and a note says so: no flag is ever ignored silently.
//
// llm.c's flags are one dash and one or two letters: -n and -nk are two flags, not -n with the value "k".
// getopt_long_only parses these, but it also accepts any unambiguous prefix of a name, so that "-max" would mean
// --max-steps until the day a --max-something is added. Prefixes are refused: the word that was parsed is compared with
// the name that getopt found.
//
// A configuration file (--config) sets flags, too: config_keys.c says which, options_config.c sets them, after the
// command line was read and unless it has them. Each flag's source is kept for --print-config.
//
// Numbers are parsed strictly: the whole word, in range, finite. If a flag is given several times the last one counts,
// as in llm.c. After all flags are read, the rules that involve several flags, or the build, are checked
// (options_rules.c).
#include <assert.h>
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <xxhash.h>

#include "trainer/options.h"

// What decides the bits of a run besides the build and the kind of device: the flags that DECIDE. Each flag has to say
// which it is: there is no default. -v, -m, -s and -g only look.
enum bits { UNKNOWN, DECIDES, KEEPS };
// SIZE: an integer of bytes, perhaps with a unit. CHOICE: one of the words in `choices`; the value is its number.
enum type { TEXT, INTEGER, SIZE, REAL, CHOICE };

typedef struct {
    const char *flag, *name;
    enum bits bits;
    enum type type;
    size_t offset, size;   // of its field in Options
    const char *choices;   // of a CHOICE: "cosine|linear"; else what to call the value in the help
    const char *standard;  // default; NULL: none
    double min, max;
    const char *help;
    const char *bare;  // what the flag means without a value; NULL: it must have one
    int of_plan;       // 1: means nothing without --plan
} Flag;

#define MANY      1e15  // exact in a double, and far from overflow
#define AT(field) offsetof(Options, field), sizeof(((Options *)0)->field)

static char transports[128];  // "auto|mpi|nccl": filled in by options_parse

static const Flag FLAGS[] = {
    { "i", "train-files", DECIDES, TEXT, AT(train_files), "GLOB", NULL, 0, 0,
      .help = "training data: token shards or plain text" },
    { "j", "val-files", DECIDES, TEXT, AT(val_files), "GLOB", NULL, 0, 0,
      .help = "validation data; if it is -i or left out: the last tenth of -i" },
    { "e", "model", DECIDES, TEXT, AT(model), "MODEL", NULL, 0, 0,
      .help = "file, or d12, gpt2:d12, gpt3:c768, custom:l4,h4,c128,v256,t128" },
    { "o", "output-dir", KEEPS, TEXT, AT(output_dir), "DIR", NULL, 0, 0,
      .help = "where main.log and checkpoints are written" },
    { "n", "checkpoint-every", KEEPS, INTEGER, AT(checkpoint_every), "STEPS", "0", 0, MANY,
      .help = "write a checkpoint (model_STEP.bin, optimizer state) every STEPS steps and at the end; 0: never" },
    { "nk", "checkpoints-keep", KEEPS, INTEGER, AT(checkpoints_keep), "K", "0", 0, MANY,
      .help = "keep the last K checkpoints only; 0: all" },
    { "nm", "major-checkpoint-every", KEEPS, INTEGER, AT(major_checkpoint_every), "STEPS", "0", 0, MANY,
      .help = "never delete checkpoints of multiples of STEPS" },
    { "y", "resume", KEEPS, INTEGER, AT(resume), "0|1", "0", 0, 1,
      .help = "1: continue from the newest complete checkpoint in DIR, on any number of ranks; if it has none, begin" },
    { "overwrite", "overwrite", KEEPS, INTEGER, AT(overwrite), "0|1", "0", 0, 1,
      .help = "1: move the log and the models of another run in DIR to DIR/replaced.N" },
    { "b", "batch-size", DECIDES, INTEGER, AT(batch_size), "B", "4", 1, 1 << 24, .help = "rows of a micro-batch" },
    { "t", "seq-len", DECIDES, INTEGER, AT(seq_len), "T", "1024", 1, 1 << 24, .help = "tokens of a row" },
    { "d", "total-batch-tokens", DECIDES, INTEGER, AT(total_batch_tokens), "TOKENS", "-1", -1, MANY,
      .help = "tokens of a step, over all ranks; -1: B x T x ranks" },
    { "micro-batches", "micro-batches", DECIDES, INTEGER, AT(micro_batches), "M", "-1", -1, 4294967295.0,
      .help =
          "the same as micro-batches of B x T, over all ranks; the bits depend on M, not on how many ranks share it" },
    { "x", "max-steps", DECIDES, INTEGER, AT(max_steps), "STEPS", "-1", -1, MANY,
      .help = "steps of the run; 0: only validate and sample; -1: one epoch, tokens / (tokens of a step)" },
    { "k", "lr-schedule", DECIDES, CHOICE, AT(schedule.kind),
      "cosine|linear|constant|wsd|WarmupLR|WarmupDecayLR|WarmupCosineLR", "cosine", 0, 0,
      .help = "learning rate over time; the last three are DeepSpeed's (dev/docs/config.md)" },
    { "l", "lr", DECIDES, REAL, AT(schedule.lr), "LR", "3e-4", 0, 1e6, .help = "peak learning rate" },
    { "u", "warmup", DECIDES, INTEGER, AT(schedule.warmup), "STEPS", "0", 0, MANY, .help = "steps of warm-up" },
    { "q", "final-lr-fraction", DECIDES, REAL, AT(schedule.final_fraction), "F", "1.0", 0, 1,
      .help = "the learning rate decays to F of its peak" },
    { "c", "weight-decay", DECIDES, REAL, AT(weight_decay), "WD", "0.0", 0, 1e6, .help = "of matrices and embeddings" },
    { "sl", "skip-loss-z", DECIDES, REAL, AT(skip_loss_z), "Z", "0", 0, 1e6,
      .help = "skip updates whose loss has a z-score above Z; 0: off" },
    { "sg", "skip-norm-z", DECIDES, REAL, AT(skip_norm_z), "Z", "0", 0, 1e6,
      .help = "the same for the gradient's norm" },
    { "nonfinite-limit", "nonfinite-limit", KEEPS, INTEGER, AT(nonfinite_limit), "STEPS", "100", 0, MANY,
      .help = "end the run after so many steps in a row whose loss or norm is not finite; 0: never" },
    { "v", "val-every", KEEPS, INTEGER, AT(val_every), "STEPS", "20", 0, MANY,
      .help = "validate every STEPS steps and at the end; 0: never" },
    { "m", "val-batches", KEEPS, INTEGER, AT(val_batches), "M", "20", -1, MANY,
      .help = "micro-batches to validate on, over all ranks; -1: all" },
    { "s", "sample-every", KEEPS, INTEGER, AT(sample_every), "STEPS", "20", -1, MANY,
      .help = "write a sample every STEPS steps and at the end; 0 or -1: never" },
    { "g", "sample-tokens", KEEPS, INTEGER, AT(sample_tokens), "TOKENS", "64", 0, 1 << 24, .help = "its length" },
    { "prompt", "prompt", KEEPS, TEXT, AT(prompt), "TEXT", NULL, 0, 0, .help = "what a sample continues" },
    { "temperature", "temperature", KEEPS, REAL, AT(temperature), "F", "1.0", 0, 1e6,
      .help = "of samples: logits are divided by F; 0: always the most likely token" },
    { "top-k", "top-k", KEEPS, INTEGER, AT(top_k), "K", "0", 0, MANY,
      .help = "samples take one of the K most likely tokens; 0: any" },
    { "generate", "generate", KEEPS, INTEGER, AT(generate), "0|1", "0", 0, 1,
      .help = "1: only write a sample with the model -e; no data is needed" },
    { "tokenizer", "tokenizer", KEEPS, TEXT, AT(tokenizer), "FILE|bytes", NULL, 0, 0,
      .help = "of samples and prompts; default: gpt2_tokenizer.bin if it exists; bytes: a token is a byte" },
    { "h", "hellaswag", KEEPS, INTEGER, AT(hellaswag), "0|1", "0", 0, 1,
      .help = "1: evaluate HellaSwag where llm.c does, if dev/data/hellaswag/hellaswag_val.bin exists" },
    { "a", "overfit", DECIDES, INTEGER, AT(overfit), "0|1", "0", 0, 1,
      .help = "1: train on the first batch of the validation data again and again" },
    { "f", "tf32", DECIDES, INTEGER, AT(tf32), "0|1", NULL, 0, 1,
      .help = "TF32 in matrix products of FP32 builds; default 1 on a GPU" },
    { "w", "master-weights", DECIDES, CHOICE, AT(settings.master), "1|2|0", "1", 0, 0,
      .help = "BF16 builds: fp32 master weights; 2: the same in 2 bytes less; 0: none, stochastic rounding" },
    { "ge", "gelu-fusion", DECIDES, INTEGER, AT(gelu_fusion), "0|1|2", "0", 0, 2,
      .help = "GELU inside the matrix product: 1 forward, 2 and backward; on a GPU -r then changes last bits" },
    { "z", "stage", KEEPS, INTEGER, AT(settings.stage), "0|1|2|3", "2", 0, 3,
      .help = "ZeRO stage: 1 shards optimizer state, 2 and gradients, 3 and parameters" },
    { "prefetch", "prefetch", KEEPS, INTEGER, AT(settings.prefetch), "0|1|2", "1", 0, 2,
      .help = "stage 3: units of parameters to all-gather ahead of use" },
    { "offload", "offload", KEEPS, TEXT, AT(offload), "none|cpu|nvme:DIR", "none", 0, 0,
      .help = "where optimizer state is: on the device; in the host's memory; in a file in DIR, for less memory" },
    { "offload-fraction", "offload-fraction", KEEPS, REAL, AT(settings.offload_fraction), "F", "1", 0, 1,
      .help = "of --offload: the part of the optimizer state that is there" },
    { "offload-params", "offload-params", KEEPS, TEXT, AT(offload_params), "none|cpu|nvme:DIR", "none", 0, 0,
      .help = "-z 3: where parameters are; the device then has those of the units in use" },
    { "shard-group", "shard-group", KEEPS, INTEGER, AT(settings.shard_group), "RANKS", "0", 0, 1 << 20,
      .help = "ranks that shard among them; other groups hold the same; 0: all ranks are one group" },
    { "micro-batch-order", "micro-batch-order", KEEPS, CHOICE, AT(settings.order), "step|rank|layer", "step", 0, 0,
      .help = "rank (-z 0, 1): send the fp32 sum of a rank's micro-batches once a step; layer: and gather -z 3 twice" },
    { "r", "recompute", KEEPS, INTEGER, AT(recompute), "0|1|2", "1", 0, 2,
      .help = "recompute in backward: 1 GELU, 2 and layernorm" },
    { "offload-activations", "offload-activations", KEEPS, CHOICE, AT(offload_activations), "none|cpu", "none", 0, 0,
      .help = "-r 1, 2: cpu: the residual stream between layers waits in the host's memory for the backward" },
    { "head-rows", "head-rows", DECIDES, INTEGER, AT(head_rows), "ROWS", "0", 0, 1 << 30,
      .help = "tokens whose logits are computed at a time, at least T: less memory; 0: 8192 or T" },
    { "memory-limit", "memory-limit", KEEPS, SIZE, AT(memory_limit), "BYTES", "0", 0, MANY,
      .help = "what the memory table of a rank may add up to, as 800M or 6G (2^20, 2^30 bytes); 0: no limit" },
    { "lg", "gpu-info-every", KEEPS, INTEGER, AT(gpu_info_every), "STEPS", "-1", -1, MANY,
      .help = "print the GPU's free memory every STEPS steps; -1 or 0: never" },
    { "optimizer", "optimizer", DECIDES, CHOICE, AT(settings.optimizer), "adamw|sgd|lion", "adamw", 0, 0,
      .help = "sgd: with momentum --beta1; lion wants a smaller -l and a larger -c" },
    { "beta1", "beta1", DECIDES, REAL, AT(beta1), "B1", "0.9", 0, 0.999999, .help = "of the optimizer" },
    { "beta2", "beta2", DECIDES, REAL, AT(beta2), "B2", "0.95", 0, 0.999999, .help = "of AdamW and Lion" },
    { "eps", "eps", DECIDES, REAL, AT(eps), "EPS", "1e-8", 1e-30, 1, .help = "of AdamW" },
    { "ema-decay", "ema-decay", DECIDES, REAL, AT(settings.ema_decay), "D", "0", 0, 0.9999999,
      .help = "not 0: average the weights, as 0.999 does over 1000 steps, and validate and sample with the average" },
    { "grad-clip", "grad-clip", DECIDES, REAL, AT(grad_clip), "NORM", "1.0", 0, 1e30,
      .help = "scale gradients down to this global norm; 0: off" },
    { "shuffle", "shuffle", DECIDES, INTEGER, AT(shuffle), "0|1", "1", 0, 1,
      .help = "training data in random order, the same for any number of ranks" },
    { "seed", "seed", DECIDES, INTEGER, AT(settings.seed), "SEED", "42", 0, 4294967295.0,
      .help = "of the initial weights and of the order of the data" },
    { "hash", "hash", KEEPS, INTEGER, AT(hash), "0|1", "0", 0, 1,
      .help = "print a hash of parameters and optimizer state at the end" },
    { "inject-delays", "inject-delays", KEEPS, INTEGER, AT(settings.delay_seed), "SEED", "0", 0, 4294967295.0,
      .help = "not 0: find races: random delays and transports, released buffers poisoned; same bits, slower" },
    { "profile", "profile", KEEPS, INTEGER, AT(profile), "STEPS", "0", 0, 1000,
      .help = "time every kind of work in STEPS steps after the first, and print it beside what the device could do" },
    { "transport", "transport", KEEPS, CHOICE, AT(transport), transports, "auto", 0, 0,
      .help = "how ranks talk to each other; auto: nccl if each has a GPU, or with -pi tcp or fs; else mpi" },
    { "nccl-register", "nccl-register", KEEPS, INTEGER, AT(nccl_register), "0|1", "0", 0, 1,
      .help = "1: symmetric buffers are allocated by NCCL and registered with it" },
    { "one-level", "one-level", KEEPS, INTEGER, AT(one_level), "0|1", "0", 0, 1,
      .help = "1: between hosts bytes do not travel in two levels, to compare" },
    { "reduce", "reduce", DECIDES, CHOICE, AT(settings.reduction), "exact|library", "exact", 0, 0,
      .help = "sum of gradients: in a fixed order, or as the library likes" },
    { "warmup-shape", "warmup-shape", DECIDES, CHOICE, AT(schedule.warmup_shape), "llmc|linear|log", "llmc", 0, 0,
      .help = "llmc: step s has l (s + 1) / u, counted from 0; linear: l s / u; log: l log(s + 1) / log(u)" },
    { "warmup-from", "warmup-from", DECIDES, REAL, AT(schedule.warmup_from), "LR", "0", 0, 1e6,
      .help = "where a linear or log warm-up begins" },
    { "decay-from", "decay-from", DECIDES, INTEGER, AT(schedule.decay_from), "STEP", "-1", -1, MANY,
      .help = "where the decay of -l begins; -1: after warm-up, wsd: after 80 % of the steps" },
    { "decay-to", "decay-to", DECIDES, INTEGER, AT(schedule.decay_to), "STEP", "-1", -1, MANY,
      .help = "where it ends; -1: with the last step" },
    { "force", "force", KEEPS, INTEGER, AT(force), "0|1", "0", 0, 1,
      .help = "1: train even if the memory that is available, or --memory-limit, is less than the plan's" },
    { "tp", "tp", KEEPS, INTEGER, AT(tp), "N", "1", 1, 1 << 16, .help = "ranks of a tensor-parallel group" },
    { "pp", "pp", KEEPS, INTEGER, AT(pp), "N", "1", 1, 1 << 16, .help = "pipeline stages" },
    { "timeout", "timeout", KEEPS, REAL, AT(timeout), "SECONDS", "300", 0.1, 1e6,
      .help = "how long a rank may keep the others waiting" },
    { "pi", "init-method", KEEPS, CHOICE, AT(init_method), "mpi|tcp|fs", "mpi", 0, 0,
      .help = "how ranks find each other: mpirun, rank 0's address (-ps), a shared directory (-pf)" },
    { "pn", "processes", KEEPS, INTEGER, AT(processes), "N", "-1", -1, 1 << 20,
      .help = "-pi tcp, fs: how many processes there are; -pi mpi: must be what mpirun started" },
    { "pr", "process-rank", KEEPS, INTEGER, AT(rank), "R", "-1", -1, 1 << 20,
      .help = "-pi tcp, fs: which of them this is, from 0; -pi mpi: must be MPI's rank" },
    { "pg", "gpus-per-node", KEEPS, INTEGER, AT(gpus_per_node), "N", "-1", -1, 1 << 20,
      .help = "processes of a machine, ranks in a row; -1: find out" },
    { "ps", "server-ip", KEEPS, TEXT, AT(server_ip), "IP[:PORT]", NULL, 0, 0,
      .help = "-pi tcp: where rank 0 listens; port 20240 if not given" },
    { "pf", "shared-dir", KEEPS, TEXT, AT(shared_dir), "DIR", NULL, 0, 0,
      .help = "-pi fs: a directory that all processes see" },
    { "plan", "plan", KEEPS, CHOICE, AT(plan), "off|text|json|scaling", "off", 0, 0, .bare = "text",
      .help = "print what the run would need, and end: all stages, any ranks; scaling: on up to --ranks; alone: text" },
    { "fit", "fit", KEEPS, INTEGER, AT(fit), "0|1", "0", 0, 1, .bare = "1", .of_plan = 1,
      .help = "of the plan: only the fastest -z, -r, -b, ... that fits (dev/docs/planner.md); what is given is kept" },
    { "ranks", "ranks", KEEPS, INTEGER, AT(plan_ranks), "N", "-1", -1, 1 << 20, .of_plan = 1,
      .help = "of the plan; -1: those of mpirun" },
    { "ranks-per-host", "ranks-per-host", KEEPS, INTEGER, AT(plan_ranks_per_host), "N", "0", 0, 1 << 20, .of_plan = 1,
      .help = "of the plan; 0: all on one host" },
    { "precision", "precision", KEEPS, CHOICE, AT(settings.dtype), "fp32|bf16", "fp32", 0, 0, .of_plan = 1,
      .help = "of the plan; default: that of this build" },
    { "device-memory", "device-memory", KEEPS, REAL, AT(device_memory), "GB", "80", 1e-6, 1e9, .of_plan = 1,
      .help = "of the plan: memory of a rank, 10^9 bytes" },
    { "link-gbs", "link-gbs", KEEPS, REAL, AT(link_gbs), "GB/S", "450", 1e-6, 1e9, .of_plan = 1,
      .help = "of the plan: what a rank receives in a second from ranks of its host" },
    { "net-gbs", "net-gbs", KEEPS, REAL, AT(net_gbs), "GB/S", "400", 1e-6, 1e9, .of_plan = 1,
      .help = "of the plan: what a host receives in a second from other hosts; default: 8 x 400 Gbit/s" },
    { "link-latency", "link-latency", KEEPS, REAL, AT(link_latency), "US", "1", 0, 1e9, .of_plan = 1,
      .help = "of the plan: microseconds that a message inside a host takes beside its bytes" },
    { "net-latency", "net-latency", KEEPS, REAL, AT(net_latency), "US", "5", 0, 1e9, .of_plan = 1,
      .help = "of the plan: the same between hosts" },
    { "host-memory", "host-memory", KEEPS, REAL, AT(host_memory), "GB", "0", 0, 1e9, .of_plan = 1,
      .help = "of the plan: memory of a host that --fit may use for what is offloaded; 0: none" },
    { "disk-space", "disk-space", KEEPS, REAL, AT(disk_space), "GB", "0", 0, 1e9, .of_plan = 1,
      .help = "of the plan: what --fit may use of a host's disk for what is offloaded; 0: none" },
    { "host-gbs", "host-gbs", KEEPS, REAL, AT(host_gbs), "GB/S", "50", 1e-6, 1e9, .of_plan = 1,
      .help =
          "of the plan: what a rank copies to its host's memory, or its host reads and writes for it, in a second" },
    { "disk-gbs", "disk-gbs", KEEPS, REAL, AT(disk_gbs), "GB/S", "6", 1e-6, 1e9, .of_plan = 1,
      .help = "of the plan: what a host's disk reads and writes in a second" },
    { "memory-gbs", "memory-gbs", KEEPS, REAL, AT(memory_gbs), "GB/S", "3350", 1e-6, 1e9, .of_plan = 1,
      .help = "of the plan: bandwidth of a device's memory; default: an H100's" },
    { "peak-tflops", "peak-tflops", KEEPS, REAL, AT(peak_tflops), "TFLOPS", "989", 1e-6, 1e9, .of_plan = 1,
      .help = "of the plan: of a rank's device; default: an H100's, 989 in bf16, 67 in fp32, 494 in fp32 with -f 1" },
    { "mfu", "mfu", KEEPS, REAL, AT(efficiency), "F", "0.4", 1e-6, 1, .of_plan = 1,
      .help = "of the plan: the part of the peak that is reached" },
    { "print-config", "print-config", KEEPS, INTEGER, AT(print_config), "0|1", "0", 0, 1, .bare = "1",
      .help = "print each flag's value and where it comes from, and end; --ranks N: of a run on N ranks" },
    // The last one: ranks whose files differ are told which setting differs, if one does.
    { "config", "config", KEEPS, TEXT, AT(config), "FILE", NULL, 0, 0,
      .help = "settings from DeepSpeed's JSON or nanotron's YAML; flags win" },
};

// What getopt returns: FIRST + 2 * (place in the table), one more for the long name. ':' and '?' have a meaning of
// their own.
enum { NUM_FLAGS = sizeof FLAGS / sizeof FLAGS[0], FIRST = 256, HELP = FIRST + 2 * NUM_FLAGS };
_Static_assert(NUM_FLAGS < OPTIONS_MAX, "OPTIONS_MAX is too small");

#define FAIL(...) (snprintf(err, err_bytes, __VA_ARGS__), -1)

#define BUDDY_REMEDY ": copies of a rank's state on another one are not implemented: use a small -n"

// The number of word in choices, in large or small letters, or -1.
static int choice_number(const char *choices, const char *word) {
    size_t length = strlen(word);
    for (int i = 0; *choices != '\0'; i++) {
        size_t n = strcspn(choices, "|");
        if (n == length && strncasecmp(choices, word, n) == 0) {
            return i;
        }
        choices += n + (choices[n] == '|');
    }
    return -1;
}

// Stores a whole number in a field of 4 bytes (an int or an enum) or 8 (int64_t, uint64_t, size_t).
static void store(void *at, size_t size, long long n) {
    if (size == sizeof(int)) {
        *(int *)at = (int)n;
    } else {
        assert(size == sizeof(int64_t));
        *(int64_t *)at = n;
    }
}

// Parses one value into o. used: the flag as the user wrote it.
static int set_value(Options *o, const Flag *f, const char *used, const char *value, char *err, size_t err_bytes) {
    void *at = (char *)o + f->offset;
    char *end;
    errno = 0;
    double number = 0;
    switch (f->type) {
    case TEXT:
        if (*value == '\0') {
            return FAIL("%s: the value is empty: give it a %s, or leave the flag out", used, f->choices);
        }
        *(const char **)at = value;
        break;
    case CHOICE:
        number = choice_number(f->choices, value);
        if (number < 0) {
            return FAIL("%s %.200s: unknown: use one of %s", used, value, f->choices);
        }
        store(at, f->size, (long long)number);
        break;
    case SIZE:
    case INTEGER: {
        static const char UNITS[] = "KMGT";  // 2^10, 2^20, ...
        long long n = strtoll(value, &end, 10);
        const char *unit = f->type == SIZE && end > value && *end != '\0' ? strchr(UNITS, *end) : NULL;
        if (unit != NULL) end++;
        if (end == value || *end != '\0' || *value == ' ' || *value == '+') {
            return FAIL("%s %.200s: not a whole number%s: use one from %.0f to %.0f", used, value,
                        f->type == SIZE ? ", or one with K, M, G or T" : "", f->min, f->max);
        }
        const int shift = unit != NULL ? 10 * (int)(unit - UNITS + 1) : 0;
        number = ldexp((double)n, shift);
        if (number >= f->min && number <= f->max) n *= 1LL << shift;
        if (errno == ERANGE || number < f->min || number > f->max) {
            return FAIL("%s %.200s: out of range: use a number from %.0f to %.0f", used, value, f->min, f->max);
        }
        if (f->type == SIZE && unit == NULL && n > 0 && n < 1 << 20)
            return FAIL("%s %.200s: is less than a megabyte: add K, M, G or T", used, value);
        store(at, f->size, n);
        break;
    }
    case REAL:
        number = strtod(value, &end);
        if (end == value || *end != '\0' || *value == ' ' || !isfinite(number)) {
            return FAIL("%s %.200s: not a number: use one from %.7g to %.7g", used, value, f->min, f->max);
        }
        if (number < f->min || number > f->max) {
            return FAIL("%s %.200s: out of range: use a number from %.7g to %.7g", used, value, f->min, f->max);
        }
        *(double *)at = number;
        break;
    }
    return 0;
}

const zero_transport *options_transport(const Options *o) {
    return o->transport > 0 ? zero_transport_at((size_t)o->transport - 1) : NULL;
}

static void list_transports(void) {
    size_t length = (size_t)snprintf(transports, sizeof transports, "auto");
    for (size_t i = 0; zero_transport_at(i) != NULL && length < sizeof transports; i++)
        length += (size_t)snprintf(transports + length, sizeof transports - length, "|%s",
                                   zero_transport_name(zero_transport_at(i)));
}

int options_parse(Options *o, const OptionsBuild *build, int argc, char **argv, char *err, size_t err_bytes) {
    memset(o, 0, sizeof *o);
    list_transports();
    struct option longs[2 * NUM_FLAGS + 2];
    memset(longs, 0, sizeof longs);
    for (int i = 0; i < NUM_FLAGS; i++) {
        int argument = FLAGS[i].bare != NULL ? optional_argument : required_argument;
        longs[2 * i] = (struct option){ FLAGS[i].flag, argument, NULL, FIRST + 2 * i };
        longs[2 * i + 1] = (struct option){ FLAGS[i].name, argument, NULL, FIRST + 2 * i + 1 };
        if (FLAGS[i].standard != NULL) {
            options_set_default(o, FLAGS[i].flag, FLAGS[i].standard);
            o->source[i].from = OPTION_DEFAULT;
        }
    }
    longs[2 * NUM_FLAGS] = (struct option){ "help", no_argument, NULL, HELP };

    optind = 0;  // glibc: start again, also after a call that ended half-way
    opterr = 0;
    int next = 1;
    while (next < argc) {
        // "+": stop at the first word that is not a flag; ":": tell a missing value from an unknown flag. No one-letter
        // options.
        const char *used = argv[next];
        int length = (int)strcspn(used, "=");
        int which;
        int code = getopt_long_only(argc, argv, "+:", longs, &which);
        next = optind;
        if (code == -1) {
            return FAIL("%.200s: not a flag, and not the value of one: every flag takes one value, a pattern of files "
                        "in quotes (--help lists all flags)",
                        used);
        }
        if (code == ':') {
            return FAIL("%.200s: its value is missing (--help lists all flags)", used);
        }
        if (code == '?') {
            return FAIL("%.200s: unknown flag%s (--help lists all)", used,
                        strncmp(used, "--buddy", 7) == 0 ? BUDDY_REMEDY : "");
        }
        const char *name = used + strspn(used, "-");
        size_t name_length = (size_t)(used + length - name);
        if (strlen(longs[which].name) != name_length || strncmp(name, longs[which].name, name_length) != 0) {
            return FAIL("%.200s: flags cannot be abbreviated: did you mean --%s?", used, longs[which].name);
        }
        if (code == HELP) {
            o->help = 1;
            return 1;
        }
        char flag[64];
        snprintf(flag, sizeof flag, "%.*s", length, used);
        int i = (code - FIRST) / 2;
        const char *value = optarg;
        if (value == NULL) {  // an optional value: getopt knows --plan=json only, not --plan json
            value = next < argc && argv[next][0] != '-' ? argv[next++] : FLAGS[i].bare;
            optind = next;
        }
        if (set_value(o, &FLAGS[i], flag, value, err, err_bytes) != 0) {
            return -1;
        }
        o->source[i] = (OptionSource){ .from = OPTION_FLAG };
    }
    for (int i = 0; i < NUM_FLAGS; i++) {
        const int for_ranks = o->print_config && strcmp(FLAGS[i].flag, "ranks") == 0;
        if (FLAGS[i].of_plan && o->source[i].from == OPTION_FLAG && o->plan == OPTION_PLAN_OFF && !for_ranks) {
            return FAIL("--%s: is about a plan, not about a run: add --plan, or leave it out", FLAGS[i].name);
        }
    }
    if (o->config != NULL && options_read_config(o, build, err, err_bytes) != 0) return -1;
    return options_check(o, build, err, err_bytes);
}

static int flag_index(const char *flag) {
    for (int i = 0; i < NUM_FLAGS; i++) {
        if (strcmp(FLAGS[i].flag, flag) == 0) {
            return i;
        }
    }
    assert(!"a flag that is not in the table");
    return 0;
}

int options_given(const Options *o, const char *flag) { return o->source[flag_index(flag)].from >= OPTION_FILE; }

int options_on_command_line(const Options *o, const char *flag) {
    return o->source[flag_index(flag)].from == OPTION_FLAG;
}

void options_set_default(Options *o, const char *flag, const char *value) {
    int i = flag_index(flag);
    char err[512];
    if (o->source[i].from >= OPTION_FILE) return;
    if (set_value(o, &FLAGS[i], flag, value, err, sizeof err) != 0) assert(!"a default that is not a valid value");
    o->source[i].from = OPTION_CHOSEN;
}

int options_set_from_file(Options *o, const char *flag, const char *used, const char *value, OptionSource source,
                          char *err, size_t err_bytes) {
    int i = flag_index(flag);
    o->source[i] = source;
    return set_value(o, &FLAGS[i], used, value, err, err_bytes);
}

void options_value(const Options *o, const char *flag, char *text, size_t bytes) {
    const Flag *f = &FLAGS[flag_index(flag)];
    const void *at = (const char *)o + f->offset;
    const long long n = f->type == TEXT || f->type == REAL ? 0
                        : f->size == sizeof(int)           ? *(const int *)at
                                                           : *(const int64_t *)at;
    const char *word = f->choices;
    switch (f->type) {
    case TEXT:
        word = *(const char *const *)at;
        snprintf(text, bytes, "%s", word != NULL ? word : "");
        break;
    case SIZE:
    case INTEGER: snprintf(text, bytes, "%lld", n); break;
    case REAL: config_number_text(*(const double *)at, text, bytes); break;
    case CHOICE:
        for (long long i = 0; i < n; i++) word += strcspn(word, "|") + 1;
        snprintf(text, bytes, "%.*s", (int)strcspn(word, "|"), word);
        break;
    }
}

void options_value_text(const Options *o, size_t which, char *text, size_t bytes) {
    if (which == 0) {
        snprintf(text, bytes, "%s--help", o->help ? "" : "no ");
        return;
    }
    const char *flag = FLAGS[which - 1].flag, *dashes = strlen(flag) > 2 ? "--" : "-";
    char value[4200];
    options_value(o, flag, value, sizeof value);
    if (strcmp(flag, "config") == 0 && o->config != NULL)  // wherever it lies
        snprintf(value, sizeof value, "(a file with the content %016llx)", (unsigned long long)o->config_hash);
    if (value[0] == '\0')
        snprintf(text, bytes, "no %s%s", dashes, flag);
    else
        snprintf(text, bytes, "%s%s %s", dashes, flag, value);
}

void options_hash_values(const Options *o, uint64_t hashes[OPTIONS_MAX]) {
    memset(hashes, 0, OPTIONS_MAX * sizeof *hashes);
    for (size_t i = 0; i <= NUM_FLAGS; i++) {
        const char *flag = i > 0 ? FLAGS[i - 1].flag : "";
        if (!strcmp(flag, "pr") || !strcmp(flag, "ps") || !strcmp(flag, "pf")) continue;
        char text[4200];  // a path and its flag
        options_value_text(o, i, text, sizeof text);
        hashes[i] = XXH3_64bits(text, strlen(text));
    }
}

void options_help(FILE *out, const char *program) {
    fprintf(
        out,
        "usage: %s [FLAG VALUE]...\n"
        "       mpirun -n RANKS %s [FLAG VALUE]...\n"
        "Trains GPT-2 with sharded optimizer state and gradients. Without flags: a small model, on a text that the\n"
        "build makes, with settings that suit it (the first line of its output has them).\n\n",
        program, program);
    for (int i = 0; i < NUM_FLAGS; i++) {
        const Flag *f = &FLAGS[i];
        char names[96];
        if (strcmp(f->flag, f->name) == 0) {
            snprintf(names, sizeof names, "     --%s %s", f->name, f->choices);
        } else {
            snprintf(names, sizeof names, "-%-3s --%s %s", f->flag, f->name, f->choices);
        }
        fprintf(out, "  %-38s %s", names, f->help);
        fprintf(out, f->standard != NULL ? " [%s]\n" : "\n", f->standard);
    }
    fprintf(out, "  %-38s this text\n", "     --help");
}

void options_print(FILE *out, const Options *o) {
    static const char *const FROM[] = { "default", "chosen, since not given", "", "flag" };
    for (int i = 0; i < NUM_FLAGS; i++) {
        const OptionSource *s = &o->source[i];
        char value[4200], line[32] = "";
        options_value(o, FLAGS[i].flag, value, sizeof value);
        if (s->line > 0) snprintf(line, sizeof line, ":%zu", s->line);
        fprintf(out, "%-23s %-30s %s", FLAGS[i].name, value[0] != '\0' ? value : "-", FROM[s->from]);
        if (s->from == OPTION_FILE) fprintf(out, "%s%s: %s%s", o->config, line, s->implied ? "no " : "", s->key);
        fputc('\n', out);
    }
}

int options_decides(int i, const char **flag) {
    if (i >= NUM_FLAGS) return -1;
    assert(FLAGS[i].bits != UNKNOWN);
    *flag = FLAGS[i].flag;
    return FLAGS[i].bits == DECIDES;
}

size_t options_total_tokens(const Options *o) {
    if (o->micro_batches > 0) return (size_t)o->micro_batches * (size_t)o->batch_size * (size_t)o->seq_len;
    return o->total_batch_tokens > 0 ? (size_t)o->total_batch_tokens : 0;
}
