// The command line: llm.c's flags, the same with long names, and our own; and a configuration file. See options.c.
//
// Parsing is a pure function of its arguments and of the file that --config names (and getopt's variables: not for two
// threads at once). It prints nothing and does not exit: messages are one line, and name the flag, the value and the
// remedy.
#ifndef DEV_OPTIONS_H
#define DEV_OPTIONS_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "trainer/config_keys.h"
#include "trainer/log.h"
#include "zero/comm/transport_registry.h"
#include "zero/settings.h"

#ifdef __cplusplus
extern "C" {
#endif

#define OPTIONS_MAX 100  // flags in the table

// What this program was built for: some values make no sense, or are not there, in some builds.
typedef struct {
    int cpu;   // 1: runs on the CPU
    int bf16;  // 1: parameters in bf16
} OptionsBuild;

// Where a value comes from. OPTION_CHOSEN: the trainer has set it, to suit the model or a checkpoint.
enum { OPTION_DEFAULT, OPTION_CHOSEN, OPTION_FILE, OPTION_FLAG };

typedef struct {
    int from;         // OPTION_*
    const char *key;  // of the file, which is a literal
    int implied;      // 1: the file does not have the key; this is its default there
    size_t line;      // 0: not known
} OptionSource;

// The table in options.c writes each flag into its field here, and the engine, the planner and the learning-rate
// schedule take `settings` and `schedule` as they are. Texts are NULL where the flag was not given and has no default.
// -1 means "not limited" or "choose" where the help says so.
typedef struct {
    zero_settings settings;  // of the engine. dtype: this build's, or with --plan what --precision says
    Schedule schedule;       // steps is set later
    const char *train_files, *val_files, *model, *output_dir;
    const char *offload, *offload_dir;  // of nvme:DIR
    const char *offload_params, *offload_params_dir;
    int64_t checkpoint_every, checkpoints_keep, major_checkpoint_every, resume, overwrite;
    int64_t batch_size, seq_len, total_batch_tokens, micro_batches, max_steps;
    double weight_decay, beta1, beta2, eps, grad_clip, skip_loss_z, skip_norm_z;
    int64_t nonfinite_limit, val_every, val_batches, sample_every, sample_tokens, hellaswag, overfit, generate, top_k;
    double temperature;
    const char *prompt, *tokenizer;
    int64_t force, tf32, gelu_fusion, recompute, offload_activations, head_rows, shuffle, hash, profile, transport,
        nccl_register, one_level, tp, pp, gpu_info_every;
    double timeout;
    int64_t init_method, processes, rank, gpus_per_node;
    const char *server_ip, *shared_dir;
    int64_t plan, plan_ranks, plan_ranks_per_host;
    int64_t memory_limit;                                              // bytes of a rank; 0: no limit
    int64_t fit;                                                       // --plan: search what fits
    double device_memory, link_gbs, net_gbs, memory_gbs, peak_tflops;  // GB, GB/s, TFLOP/s: decimal
    double host_memory, disk_space, host_gbs, disk_gbs;                // GB of a host; GB/s
    double link_latency, net_latency, efficiency;                      // microseconds; a fraction
    int help;                                                          // --help was given
    const char *config;                                                // --config
    int64_t print_config;
    uint64_t config_hash;      // of the file's bytes
    ConfigBatch batch;         // what the file says about it
    char config_text[2048];    // texts of the file that fields point to
    size_t config_text_bytes;  // of it in use
    char notes[8192];          // a line for each flag that does not apply here, and what is not used of the file
    OptionSource source[OPTIONS_MAX];  // of each flag, by its place in the table
} Options;

enum { OPTION_INIT_MPI, OPTION_INIT_TCP, OPTION_INIT_FS };
enum { OPTION_PLAN_OFF, OPTION_PLAN_TEXT, OPTION_PLAN_JSON, OPTION_PLAN_SCALING };

// Returns 0; 1 if --help was asked for (print options_help); -1 and a message in err. The texts in o are those of argv:
// keep it.
int options_parse(Options *o, const OptionsBuild *build, int argc, char **argv, char *err, size_t err_bytes);

// The rules that involve several flags, and the notes (options_rules.c). options_parse calls it.
int options_check(Options *o, const OptionsBuild *build, char *err, size_t err_bytes);

// Adds a line to the notes, which end with "...\n" if there is no more room.
__attribute__((format(printf, 2, 3))) void options_note(Options *o, const char *format, ...);

// Reads --config (options_config.c). options_parse calls it. Flags of the command line win, which a note says.
int options_read_config(Options *o, const OptionsBuild *build, char *err, size_t err_bytes);

// Micro-batch and micro-batches of a step, from what the configuration file says and the number of ranks. To be called
// once that is known, before anything that asks for either. Returns 0, or -1 and a message.
int options_choose_batch(Options *o, size_t ranks, char *err, size_t err_bytes);

// The ranks that a plan is for: --ranks, or those of the configuration file, or `ranks`.
size_t options_plan_ranks(const Options *o, size_t ranks);

// Prints each flag's value and where it comes from.
void options_print(FILE *out, const Options *o);

// Prints all flags, one a line.
void options_help(FILE *out, const char *program);

// The transport that --transport names, any of zero_transport_at; NULL: auto.
const zero_transport *options_transport(const Options *o);

// Was this flag (its short name, as "b") on the command line, or in the configuration file?
int options_given(const Options *o, const char *flag);

// Was it on the command line?
int options_on_command_line(const Options *o, const char *flag);

// Sets a flag that was not given to another default, as if it were on the command line. value is kept. A wrong flag or
// value asserts.
void options_set_default(Options *o, const char *flag, const char *value);

// Sets a flag to what a configuration file says. used: what messages call it; value is kept. Returns 0, or -1 and a
// message.
int options_set_from_file(Options *o, const char *flag, const char *used, const char *value, OptionSource source,
                          char *err, size_t err_bytes);

// Does the i-th flag decide the bits of a run? 1: yes; 0: no; -1: there are no more flags.
int options_decides(int i, const char **flag);

// Does the host look at loss and norm before it decides about an update (-sl, -sg)? Else the device decides.
static inline int options_host_decides(const Options *o) { return o->skip_loss_z > 0 || o->skip_norm_z > 0; }

// Tokens of a step over all ranks, from -d or --micro-batches; 0: neither is given.
size_t options_total_tokens(const Options *o);

// Micro-steps of a rank in each step: total_batch_tokens / (batch_size * seq_len * ranks). Checks that it is whole, and
// that seq_len is not more than the model's max_seq_len. Returns 0, or -1 and a message that has values that work.
int options_check_batch(const Options *o, size_t ranks, size_t max_seq_len, size_t *micro_steps, char *err,
                        size_t err_bytes);

// For comparing the command lines of ranks. Writes a hash of each flag's value to hashes[OPTIONS_MAX]; 0 for the flags
// by which ranks differ on purpose (-pr, -ps, -pf). hashes[0] is that of --help.
void options_hash_values(const Options *o, uint64_t hashes[OPTIONS_MAX]);

// Writes the flag that hashes[which] is of, and its value: "--stage 3", "no --output-dir". That of --config has a hash
// of the file.
void options_value_text(const Options *o, size_t which, char *text, size_t bytes);

// Writes the value of a flag alone, by its short name; "" for a text that was not given.
void options_value(const Options *o, const char *flag, char *text, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
