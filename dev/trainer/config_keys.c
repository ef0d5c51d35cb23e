// One table for each format: a path, the kind of value it must have, and what it does.
//
//     SET    gives a flag this value. If the file does not have the key, but the object it belongs to, the flag gets
//            the key's default there
//     SIZE   a size of the batch, which depends on the number of ranks (options_choose_batch)
//     HOLDS  is true here with this value; with another one the key is not honoured, and named
//     MUST   the same, but another value is an error: the run would not be what the file describes
//     READ   a function; without one: a key that the function of another row reads
//
// Rows apply in order, so a later one for the same flag wins. A key with the value null is as good as absent, and
// DeepSpeed's "auto" means that the file leaves the setting to the flags. What is in no row is named; so is a whole
// object or list of which nothing is in a row, but nothing in an object that says "enabled": false. What is in no row
// but looks like a mistyped one is an error.
#include "trainer/config_keys.h"

#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FAIL(...) (snprintf(m->err, m->err_bytes, __VA_ARGS__), -1)
#define MANY      1e15

enum action { SET, SIZE, HOLDS, MUST, READ };

typedef struct Mapping Mapping;

typedef struct {
    const char *path;
    enum config_kind kind;
    enum action action;
    const char *flag;                               // SET
    const char *value;                              // SET: by default, NULL: none. HOLDS, MUST: the only one
    const char *remedy;                             // MUST
    size_t offset;                                  // SIZE: in ConfigBatch
    int (*read)(Mapping *m, const ConfigValue *v);  // READ. Called if the file has the key
    const char *of;                                 // only in an object of this "type"; NULL: any
} Key;

struct Mapping {
    const ConfigFile *c;
    ConfigMeaning *out;
    const Key *keys;
    size_t num_keys;
    char *err;
    size_t err_bytes;
};

#define BATCH(field) offsetof(ConfigBatch, field)

// ---------------------------------------------------------------------------------------------------------------------
// Values.

// Returns the value at a path; NULL if the file does not have it, or leaves it to the flags.
static const ConfigValue *get(const Mapping *m, const char *path) {
    const ConfigValue *v = config_find(m->c, path);
    if (v == NULL || v->kind == CONFIG_NULL) return NULL;
    return !m->c->yaml && v->kind == CONFIG_TEXT && strcmp(v->text, "auto") == 0 ? NULL : v;
}

// Whether the file leaves a path to the flags, or what it is in.
static int is_auto(const Mapping *m, const char *path) {
    char part[128];
    for (size_t n = 0; n == 0 || path[n - 1] != '\0'; n++) {
        n += strcspn(path + n, ".[");
        snprintf(part, sizeof part, "%.*s", (int)n, path);
        const ConfigValue *v = config_find(m->c, part);
        if (v != NULL && v->kind != CONFIG_NULL && get(m, part) == NULL) return 1;
    }
    return 0;
}

static int is_text(const Mapping *m, const char *path, const char *text) {
    const ConfigValue *v = get(m, path);
    return v != NULL && strcmp(v->text, text) == 0;
}

static int fail_at(Mapping *m, const ConfigValue *v, const char *format, ...) __attribute__((format(printf, 3, 4)));
static int fail_at(Mapping *m, const ConfigValue *v, const char *format, ...) {
    config_place(m->c, v, m->err, m->err_bytes);
    const size_t n = strlen(m->err);
    va_list args;
    va_start(args, format);
    if (n < m->err_bytes) vsnprintf(m->err + n, m->err_bytes - n, format, args);
    va_end(args);
    return -1;
}

// Returns the number at a path, or what it is by default; -1 and a message if it is not one from 0 to 1e15.
static int get_number(Mapping *m, const char *path, double standard, int whole, double *number) {
    const ConfigValue *v = get(m, path);
    *number = v != NULL ? strtod(v->text, NULL) : standard;
    if (v == NULL) return 0;
    if (v->kind != CONFIG_NUMBER) return fail_at(m, v, ": is not a number");
    if (*number < 0 || *number > MANY || (whole && *number != floor(*number)))
        return fail_at(m, v, " %.100s: use a %snumber from 0 on", v->text, whole ? "whole " : "");
    return 0;
}

// Adds a setting. v NULL: implied by key.
static int set(Mapping *m, const char *flag, const char *key, const ConfigValue *v, const char *value) {
    ConfigMeaning *out = m->out;
    if (out->n == CONFIG_SETTINGS) return FAIL("%s: too many settings", m->c->name);
    ConfigSetting *s = &out->settings[out->n];
    *s = (ConfigSetting){ .flag = flag, .key = key, .line = v != NULL ? v->line : 0, .implied = v == NULL };
    if (snprintf(s->value, sizeof s->value, "%s", value) >= (int)sizeof s->value)
        return FAIL("%s: %s: a string of more than %zu characters", m->c->name, key, sizeof s->value - 1);
    out->n++;
    return 0;
}

static int set_number(Mapping *m, const char *flag, const char *key, double number) {
    char text[32];
    if (number == floor(number) && fabs(number) < 1e15)
        snprintf(text, sizeof text, "%.0f", number);
    else
        config_number_text(number, text, sizeof text);
    const ConfigValue *v = get(m, key);
    return set(m, flag, key, v, text);
}

// ---------------------------------------------------------------------------------------------------------------------
// DeepSpeed: docs/_pages/config-json.md, runtime/lr_schedules.py, runtime/engine.py (_configure_basic_optimizer).

static int precision(Mapping *m, const ConfigValue *v) {
    static const char *const WORDS[][2] = { { "true", "bf16" },          { "false", "fp32" },   { "bfloat16", "bf16" },
                                            { "bf16", "bf16" },          { "float32", "fp32" }, { "fp32", "fp32" },
                                            { "torch.bfloat16", "bf16" } };
    for (size_t i = 0; i < sizeof WORDS / sizeof *WORDS; i++)
        if (strcmp(v->text, WORDS[i][0]) == 0)
            return set(m, "precision", m->c->yaml ? "model.dtype" : "bf16.enabled", v, WORDS[i][1]);
    return fail_at(m, v, " %.100s: there are float32 and bfloat16", v->text);
}

// "Adam" is AdamW too there, unless adam_w_mode is false.
static int deepspeed_optimizer(Mapping *m, const ConfigValue *v) {
    const int adam = strcmp(v->text, "Adam") == 0;
    if (!adam && strcmp(v->text, "AdamW") != 0)
        return fail_at(m, v, " %.100s: use AdamW or Adam, or leave \"optimizer\" out and use --optimizer", v->text);
    const int has_decay = get(m, "optimizer.params.weight_decay") != NULL &&
                          !is_text(m, "optimizer.params.weight_decay", "0");
    if (adam && has_decay && is_text(m, "optimizer.params.adam_w_mode", "false"))
        return fail_at(m, v,
                       " Adam: with adam_w_mode false its weight_decay is a part of the gradient: there is only "
                       "AdamW's here: use adam_w_mode true, or weight_decay 0");
    return set(m, "optimizer", "optimizer.type", v, "adamw");
}

// PyTorch's AdamW decays weights if it is not told otherwise; DeepSpeed's does not.
static int deepspeed_torch_adam(Mapping *m, const ConfigValue *v) {
    const char *key = "optimizer.params.weight_decay";
    const int adamw = strcmp(v->text, "true") == 0 && !is_text(m, "optimizer.params.adam_w_mode", "false");
    return adamw && get(m, key) == NULL && !is_auto(m, key) ? set(m, "c", key, NULL, "0.01") : 0;
}

static int deepspeed_scheduler(Mapping *m, const ConfigValue *v) {
    const char *total = "scheduler.params.total_num_steps";
    const int decays = strcmp(v->text, "WarmupDecayLR") == 0 || strcmp(v->text, "WarmupCosineLR") == 0;
    if (!decays && strcmp(v->text, "WarmupLR") != 0)
        return fail_at(m, v,
                       " %.100s: use WarmupLR, WarmupDecayLR or WarmupCosineLR, or leave \"scheduler\" out and use "
                       "--lr-schedule",
                       v->text);
    if (decays && get(m, total) == NULL && !is_auto(m, total))
        return fail_at(m, v, " %s: needs total_num_steps (\"auto\": the steps of the run)", v->text);
    if (is_text(m, "scheduler.params.warmup_num_steps", "0"))
        return fail_at(m, get(m, "scheduler.params.warmup_num_steps"), " 0: use 1 or more");
    return set(m, "k", "scheduler.type", v, v->text);
}

// A fraction of the peak.
static int deepspeed_warmup_ratio(Mapping *m, const ConfigValue *v) {
    double ratio, lr;
    if (get_number(m, v->path, 0, 0, &ratio) != 0 || get_number(m, "optimizer.params.lr", 0, 0, &lr) != 0) return -1;
    if (ratio > 0 && lr == 0) return fail_at(m, v, " %s: needs optimizer.params.lr: it is a fraction of it", v->text);
    return set_number(m, "warmup-from", "scheduler.params.warmup_min_ratio", ratio * lr);
}

// MiCS: -1 is off.
static int deepspeed_mics(Mapping *m, const ConfigValue *v) {
    return set(m, "shard-group", "zero_optimization.mics_shard_size", v, strcmp(v->text, "-1") == 0 ? "0" : v->text);
}

static int deepspeed_cpu_checkpointing(Mapping *m, const ConfigValue *v) {
    return set(m, "offload-activations", v->path, v, strcmp(v->text, "true") == 0 ? "cpu" : "none");
}

// offload_optimizer and offload_param: what `device` says, with nvme_path beside it; or the old keys, which are true.
static int deepspeed_offload(Mapping *m, const ConfigValue *v) {
    const char *flag = strstr(v->path, "param") != NULL ? "offload-params" : "offload";
    char path[128], value[4096];
    if (v->kind == CONFIG_BOOL) return strcmp(v->text, "true") == 0 ? set(m, flag, v->path, v, "cpu") : 0;
    if (strcmp(v->text, "none") == 0 || strcmp(v->text, "cpu") == 0) return set(m, flag, v->path, v, v->text);
    if (strcmp(v->text, "nvme") != 0) return fail_at(m, v, " %.100s: use none, cpu or nvme", v->text);
    snprintf(path, sizeof path, "%.*snvme_path", (int)(strrchr(v->path, '.') + 1 - v->path), v->path);
    const ConfigValue *directory = get(m, path);
    if (directory == NULL) return fail_at(m, v, " nvme: needs nvme_path, a directory on the disk");
    snprintf(value, sizeof value, "nvme:%s", directory->text);
    return set(m, flag, v->path, v, value);
}

#define PARAMS    "optimizer.params."
#define LR_PARAMS "scheduler.params."
#define ZERO_OPT  "zero_optimization."

static const Key DEEPSPEED[] = {
    { "train_batch_size", CONFIG_NUMBER, SIZE, .offset = BATCH(sequences) },
    { "train_micro_batch_size_per_gpu", CONFIG_NUMBER, SIZE, .offset = BATCH(micro) },
    { "gradient_accumulation_steps", CONFIG_NUMBER, SIZE, .offset = BATCH(accumulation) },
    { "fp16.enabled", CONFIG_BOOL, MUST, .value = "false",
      .remedy = "there is no fp16: use \"bf16\" in a build with "
                "PRECISION=BF16" },
    { "amp.enabled", CONFIG_BOOL, MUST, .value = "false",
      .remedy = "there is no automatic mixed precision: use "
                "\"bf16\"" },
    { "torch_autocast.enabled", CONFIG_BOOL, MUST, .value = "false", .remedy = "there is no autocast: use \"bf16\"" },
    { "bf16.enabled", CONFIG_BOOL, READ, .read = precision },
    { "bf16.bf16_master_weights_and_grads", CONFIG_BOOL, HOLDS, .value = "false" },
    { "bf16.bf16_optimizer_states", CONFIG_BOOL, HOLDS, .value = "false" },
    { "data_types.grad_accum_dtype", CONFIG_TEXT, HOLDS, .value = "fp32" },
    { "gradient_clipping", CONFIG_NUMBER, SET, "grad-clip", "0" },
    { "gradient_allreduce_op", CONFIG_TEXT, MUST, .value = "mean", .remedy = "gradients are averaged: use \"mean\"" },
    { "prescale_gradients", CONFIG_BOOL, HOLDS, .value = "false" },
    { "gradient_predivide_factor", CONFIG_NUMBER, HOLDS, .value = "1" },
    { "sparse_gradients", CONFIG_BOOL, HOLDS, .value = "false" },
    { "steps_per_print", CONFIG_NUMBER, HOLDS, .value = "1" },
    { "wall_clock_breakdown", CONFIG_BOOL, HOLDS, .value = "false" },
    { "memory_breakdown", CONFIG_BOOL, HOLDS, .value = "false" },
    { "dump_state", CONFIG_BOOL, HOLDS, .value = "false" },
    { ZERO_OPT "stage", CONFIG_NUMBER, SET, "z" },
    { ZERO_OPT "overlap_comm", CONFIG_BOOL, HOLDS, .value = "true" },
    { ZERO_OPT "contiguous_gradients", CONFIG_BOOL, HOLDS, .value = "true" },
    { ZERO_OPT "reduce_scatter", CONFIG_BOOL, HOLDS, .value = "true" },
    { ZERO_OPT "allgather_partitions", CONFIG_BOOL, HOLDS, .value = "true" },
    { ZERO_OPT "round_robin_gradients", CONFIG_BOOL, HOLDS, .value = "false" },
    { ZERO_OPT "elastic_checkpoint", CONFIG_BOOL, HOLDS, .value = "true" },
    { ZERO_OPT "load_from_fp32_weights", CONFIG_BOOL, HOLDS, .value = "true" },
    { ZERO_OPT "stage3_gather_16bit_weights_on_model_save", CONFIG_BOOL, HOLDS, .value = "true" },
    { ZERO_OPT "zero_hpz_partition_size", CONFIG_NUMBER, HOLDS, .value = "1" },
    { ZERO_OPT "zero_quantized_weights", CONFIG_BOOL, HOLDS, .value = "false" },
    { ZERO_OPT "zero_quantized_gradients", CONFIG_BOOL, HOLDS, .value = "false" },
    { ZERO_OPT "mics_shard_size", CONFIG_NUMBER, READ, .read = deepspeed_mics },
    { ZERO_OPT "offload_optimizer.device", CONFIG_TEXT, READ, .read = deepspeed_offload },
    { ZERO_OPT "offload_optimizer.nvme_path", CONFIG_TEXT, READ },
    { ZERO_OPT "offload_optimizer.ratio", CONFIG_NUMBER, SET, "offload-fraction" },
    { ZERO_OPT "offload_param.device", CONFIG_TEXT, READ, .read = deepspeed_offload },
    { ZERO_OPT "offload_param.nvme_path", CONFIG_TEXT, READ },
    { ZERO_OPT "cpu_offload", CONFIG_BOOL, READ, .read = deepspeed_offload },
    { ZERO_OPT "cpu_offload_param", CONFIG_BOOL, READ, .read = deepspeed_offload },
    { ZERO_OPT "cpu_offload_params", CONFIG_BOOL, READ, .read = deepspeed_offload },
    { "activation_checkpointing.cpu_checkpointing", CONFIG_BOOL, READ, .read = deepspeed_cpu_checkpointing },
    { "optimizer.type", CONFIG_TEXT, READ, .read = deepspeed_optimizer },
    { PARAMS "lr", CONFIG_NUMBER, SET, "l", "0.001" },
    { PARAMS "betas", CONFIG_LIST, READ },
    { PARAMS "betas[0]", CONFIG_NUMBER, SET, "beta1", "0.9" },
    { PARAMS "betas[1]", CONFIG_NUMBER, SET, "beta2", "0.999" },
    { PARAMS "eps", CONFIG_NUMBER, SET, "eps", "1e-08" },
    { PARAMS "weight_decay", CONFIG_NUMBER, SET, "c", "0" },
    { PARAMS "torch_adam", CONFIG_BOOL, READ, .read = deepspeed_torch_adam },
    { PARAMS "adam_w_mode", CONFIG_BOOL, READ },
    { PARAMS "bias_correction", CONFIG_BOOL, MUST, .value = "true", .remedy = "AdamW corrects its bias: use true" },
    { PARAMS "amsgrad", CONFIG_BOOL, MUST, .value = "false", .remedy = "there is no AMSGrad: use false" },
    { "scheduler.type", CONFIG_TEXT, READ, .read = deepspeed_scheduler },
    { LR_PARAMS "warmup_max_lr", CONFIG_NUMBER, SET, "l", .of = "WarmupLR" },
    { LR_PARAMS "warmup_max_lr", CONFIG_NUMBER, SET, "l", "0.001", .of = "WarmupDecayLR" },
    { LR_PARAMS "warmup_min_lr", CONFIG_NUMBER, SET, "warmup-from", "0", .of = "WarmupLR" },
    { LR_PARAMS "warmup_min_lr", CONFIG_NUMBER, SET, "warmup-from", "0", .of = "WarmupDecayLR" },
    { LR_PARAMS "warmup_min_ratio", CONFIG_NUMBER, READ, .read = deepspeed_warmup_ratio, .of = "WarmupCosineLR" },
    { LR_PARAMS "warmup_num_steps", CONFIG_NUMBER, SET, "u", "1000" },
    { LR_PARAMS "warmup_type", CONFIG_TEXT, SET, "warmup-shape", "log" },
    { LR_PARAMS "total_num_steps", CONFIG_NUMBER, SET, "decay-to", .of = "WarmupDecayLR" },
    { LR_PARAMS "total_num_steps", CONFIG_NUMBER, SET, "decay-to", .of = "WarmupCosineLR" },
    { LR_PARAMS "cos_min_ratio", CONFIG_NUMBER, SET, "q", "0.0001", .of = "WarmupCosineLR" },
};

// ---------------------------------------------------------------------------------------------------------------------
// nanotron: src/nanotron/config/config.py, lr_scheduler_builder in helpers.py.

#define SCHEDULER "optimizer.learning_rate_scheduler."

// Its warm-up begins with 0, in step s it is s / lr_warmup_steps; and without warm-up the first step is one all the
// same. The decay takes lr_decay_steps, else the rest of the run without the warm-up, also if it begins later.
static int nanotron_schedule(Mapping *m, const ConfigValue *v) {
    const char *warmup_key = SCHEDULER "lr_warmup_steps", *from_key = SCHEDULER "lr_decay_starting_step",
               *length_key = SCHEDULER "lr_decay_steps", *style_key = SCHEDULER "lr_decay_style";
    double lr, lowest, warmup, from, length, steps;
    if (get_number(m, SCHEDULER "learning_rate", 0, 0, &lr) != 0 ||
        get_number(m, SCHEDULER "min_decay_lr", lr, 0, &lowest) != 0 || get_number(m, warmup_key, 0, 1, &warmup) != 0 ||
        get_number(m, from_key, warmup, 1, &from) != 0 || get_number(m, "tokens.train_steps", 0, 1, &steps) != 0 ||
        get_number(m, length_key, steps > warmup ? steps - warmup : 0, 1, &length) != 0)
        return -1;
    const char *style = get(m, style_key) != NULL ? get(m, style_key)->text : "linear";
    const int constant_warmup = is_text(m, SCHEDULER "lr_warmup_style", "constant");
    const char *kind = !strcmp(style, "linear")   ? "linear"
                       : !strcmp(style, "cosine") ? "cosine"
                       : !strcmp(style, "1-sqrt") ? "wsd"
                                                  : NULL;
    if (lr <= 0 || lowest > lr) return fail_at(m, v, ": needs a learning_rate above 0, and not below min_decay_lr");
    if (kind == NULL) return fail_at(m, get(m, style_key), " %.100s: use linear, cosine or 1-sqrt", style);
    if (!constant_warmup && get(m, SCHEDULER "lr_warmup_style") != NULL &&
        !is_text(m, SCHEDULER "lr_warmup_style", "linear"))
        return fail_at(m, get(m, SCHEDULER "lr_warmup_style"), ": use linear or constant");
    if (from < warmup)
        return fail_at(m, get(m, from_key), " %.0f: is before the end of the warm-up: use %.0f or more", from, warmup);
    if (length == 0) return fail_at(m, v, ": needs lr_decay_steps of 1 or more, or tokens.train_steps");
    if (set_number(m, "l", SCHEDULER "learning_rate", lr) != 0 ||
        set(m, "k", style_key, get(m, style_key), kind) != 0 ||
        set_number(m, "q", SCHEDULER "min_decay_lr", lowest / lr) != 0 ||
        set_number(m, "decay-from", from_key, from) != 0 || set_number(m, "decay-to", length_key, from + length) != 0)
        return -1;
    if (constant_warmup) return set_number(m, "u", warmup_key, 0);
    return set_number(m, "u", warmup_key, warmup > 0 ? warmup : 1) != 0 ||
                   set(m, "warmup-shape", SCHEDULER "lr_warmup_style", get(m, SCHEDULER "lr_warmup_style"), "linear")
               ? -1
               : 0;
}

static int nanotron_optimizer(Mapping *m, const ConfigValue *v) {
    if (strcmp(v->text, "adamW") != 0)
        return fail_at(m, v, " %.100s: use adamW, or leave \"optimizer_factory\" out and use --optimizer", v->text);
    return set(m, "optimizer", "optimizer.optimizer_factory.name", v, "adamw");
}

#define MODEL "model.model_config."

// GPT-2's sizes, by the names of Hugging Face's newer configurations. A model of another kind is refused, unless -e
// says which one to train instead.
static int nanotron_model(Mapping *m, const ConfigValue *v) {
    const char *why = NULL;
    double layers, heads, channels, vocab, positions, inner, kv_heads;
    if (get_number(m, MODEL "num_hidden_layers", 0, 1, &layers) != 0 ||
        get_number(m, MODEL "num_attention_heads", 0, 1, &heads) != 0 ||
        get_number(m, MODEL "hidden_size", 0, 1, &channels) != 0 ||
        get_number(m, MODEL "vocab_size", 0, 1, &vocab) != 0 ||
        get_number(m, MODEL "max_position_embeddings", 0, 1, &positions) != 0 ||
        get_number(m, MODEL "intermediate_size", 4 * channels, 1, &inner) != 0 ||
        get_number(m, MODEL "num_key_value_heads", heads, 1, &kv_heads) != 0)
        return -1;
    if (is_text(m, MODEL "is_llama_config", "true"))
        why = "is_llama_config: true";
    else if (is_text(m, MODEL "is_qwen2_config", "true"))
        why = "is_qwen2_config: true";
    else if (!is_text(m, MODEL "hidden_act", "gelu_new") && !is_text(m, MODEL "hidden_act", "gelu_pytorch_tanh"))
        why = "hidden_act is not gelu_new";
    else if (inner != 4 * channels)
        why = "intermediate_size is not 4 x hidden_size";
    else if (kv_heads != heads)
        why = "num_key_value_heads is not num_attention_heads";
    else if (is_text(m, MODEL "tie_word_embeddings", "false"))
        why = "tie_word_embeddings: false";
    char model[160];
    snprintf(model, sizeof model, "custom:l%.0f,h%.0f,c%.0f,v%.0f,t%.0f", layers, heads, channels, vocab, positions);
    if (set(m, "e", "model.model_config", v, model) != 0) return -1;
    if (why != NULL)
        snprintf(m->out->settings[m->out->n - 1].refusal, sizeof m->out->settings[0].refusal,
                 "this is no GPT-2 (%s), the only model here: describe one, or choose it with -e", why);
    return 0;
}

// -1: never.
static int nanotron_validation(Mapping *m, const ConfigValue *v) {
    return set(m, "v", "tokens.val_check_interval", v, strcmp(v->text, "-1") == 0 ? "0" : v->text);
}

static const Key NANOTRON[] = {
    { "general.seed", CONFIG_NUMBER, SET, "seed" },
    { "checkpoints.checkpoints_path", CONFIG_TEXT, SET, "o" },
    { "checkpoints.checkpoint_interval", CONFIG_NUMBER, SET, "n" },
    { "checkpoints.save_initial_state", CONFIG_BOOL, HOLDS, .value = "false" },
    { "checkpoints.save_final_state", CONFIG_BOOL, HOLDS, .value = "true" },
    { "checkpoints.resume_checkpoint_path", CONFIG_TEXT, MUST, .value = "",
      .remedy = "a run continues in its own checkpoints_path: use null, and -y 1" },
    { "logging.iteration_step_info_interval", CONFIG_NUMBER, HOLDS, .value = "1" },
    { "model.dtype", CONFIG_TEXT, READ, .read = precision },
    { "model.model_config", CONFIG_OBJECT, READ, .read = nanotron_model },
    { MODEL "num_hidden_layers", CONFIG_NUMBER, READ },
    { MODEL "num_attention_heads", CONFIG_NUMBER, READ },
    { MODEL "num_key_value_heads", CONFIG_NUMBER, READ },
    { MODEL "hidden_size", CONFIG_NUMBER, READ },
    { MODEL "intermediate_size", CONFIG_NUMBER, READ },
    { MODEL "max_position_embeddings", CONFIG_NUMBER, READ },
    { MODEL "vocab_size", CONFIG_NUMBER, READ },
    { MODEL "hidden_act", CONFIG_TEXT, READ },
    { MODEL "tie_word_embeddings", CONFIG_BOOL, READ },
    { MODEL "is_llama_config", CONFIG_BOOL, READ },
    { MODEL "is_qwen2_config", CONFIG_BOOL, READ },
    { "optimizer.zero_stage", CONFIG_NUMBER, SET, "z" },
    { "optimizer.clip_grad", CONFIG_NUMBER, SET, "grad-clip", "0" },
    { "optimizer.weight_decay", CONFIG_NUMBER, SET, "c" },
    { "optimizer.accumulate_grad_in_fp32", CONFIG_BOOL, HOLDS, .value = "true" },
    { "optimizer.optimizer_factory.name", CONFIG_TEXT, READ, .read = nanotron_optimizer },
    { "optimizer.optimizer_factory.adam_beta1", CONFIG_NUMBER, SET, "beta1" },
    { "optimizer.optimizer_factory.adam_beta2", CONFIG_NUMBER, SET, "beta2" },
    { "optimizer.optimizer_factory.adam_eps", CONFIG_NUMBER, SET, "eps" },
    { "optimizer.learning_rate_scheduler", CONFIG_OBJECT, READ, .read = nanotron_schedule },
    { SCHEDULER "learning_rate", CONFIG_NUMBER, READ },
    { SCHEDULER "lr_warmup_steps", CONFIG_NUMBER, READ },
    { SCHEDULER "lr_warmup_style", CONFIG_TEXT, READ },
    { SCHEDULER "lr_decay_starting_step", CONFIG_NUMBER, READ },
    { SCHEDULER "lr_decay_steps", CONFIG_NUMBER, READ },
    { SCHEDULER "lr_decay_style", CONFIG_TEXT, READ },
    { SCHEDULER "min_decay_lr", CONFIG_NUMBER, READ },
    { "parallelism.dp", CONFIG_NUMBER, SIZE, .offset = BATCH(replicas) },
    { "parallelism.tp", CONFIG_NUMBER, MUST, .value = "1", .remedy = "this trainer splits no tensors: use 1" },
    { "parallelism.pp", CONFIG_NUMBER, MUST, .value = "1", .remedy = "this trainer splits no layers: use 1" },
    { "parallelism.expert_parallel_size", CONFIG_NUMBER, MUST, .value = "1", .remedy = "there are no experts: use 1" },
    { "parallelism.context_parallel_size", CONFIG_NUMBER, MUST, .value = "1",
      .remedy = "there is no context parallelism: use 1" },
    { "parallelism.recompute_layer", CONFIG_BOOL, HOLDS, .value = "false" },
    { "tokens.sequence_length", CONFIG_NUMBER, SET, "t" },
    { "tokens.train_steps", CONFIG_NUMBER, SET, "x" },
    { "tokens.micro_batch_size", CONFIG_NUMBER, SIZE, .offset = BATCH(micro) },
    { "tokens.batch_accumulation_per_replica", CONFIG_NUMBER, SIZE, .offset = BATCH(accumulation) },
    { "tokens.val_check_interval", CONFIG_NUMBER, READ, .read = nanotron_validation },
    { "tokens.limit_val_batches", CONFIG_NUMBER, HOLDS, .value = "0" },
    { "tokens.limit_test_batches", CONFIG_NUMBER, HOLDS, .value = "0" },
};

// ---------------------------------------------------------------------------------------------------------------------
// Both.

// Whether a row counts in this file: a parameter of a scheduler belongs to some types of it.
static int applies(const Mapping *m, const Key *k) { return k->of == NULL || is_text(m, "scheduler.type", k->of); }

// Whether the file has the object that a row belongs to.
static int has_object(const Mapping *m, const char *path) {
    char object[128];
    const size_t n = strcspn(path, ".");
    if (path[n] == '\0') return 1;
    snprintf(object, sizeof object, "%.*s", (int)n, path);
    return get(m, object) != NULL;
}

static int read_size(Mapping *m, const Key *k, const ConfigValue *v) {
    const double n = strtod(v->text, NULL);
    if (n < 1 || n > 1 << 30 || n != floor(n))
        return fail_at(m, v, " %.100s: use a whole number from 1 to %d", v->text, 1 << 30);
    *(ConfigSize *)((char *)&m->out->batch + k->offset) = (ConfigSize){ (long long)n, k->path, v->line };
    return 0;
}

static int apply(Mapping *m, const Key *k) {
    static const char *const KINDS[] = {
        [CONFIG_NULL] = "null",     [CONFIG_BOOL] = "true or false", [CONFIG_NUMBER] = "a number",
        [CONFIG_TEXT] = "a string", [CONFIG_LIST] = "a list",        [CONFIG_OBJECT] = "a list of keys and values"
    };
    const ConfigValue *v = get(m, k->path);
    if (!applies(m, k) || is_auto(m, k->path)) return 0;
    if (v == NULL)
        return k->action == SET && k->value != NULL && has_object(m, k->path) ? set(m, k->flag, k->path, NULL, k->value)
                                                                              : 0;
    if (v->kind != k->kind) return fail_at(m, v, ": is %s, not %s", KINDS[v->kind], KINDS[k->kind]);
    switch (k->action) {
    case SET: return set(m, k->flag, k->path, v, v->text);
    case SIZE: return read_size(m, k, v);
    case HOLDS: return 0;
    case MUST: return strcmp(v->text, k->value) == 0 ? 0 : fail_at(m, v, " %.100s: %s", v->text, k->remedy);
    case READ: return k->read != NULL ? k->read(m, v) : 0;
    }
    return 0;
}

static int is_honoured(const Mapping *m, const ConfigValue *v) {
    for (size_t i = 0; i < m->num_keys; i++) {
        const Key *k = &m->keys[i];
        if (strcmp(k->path, v->path) == 0 && applies(m, k) && (k->action != HOLDS || strcmp(k->value, v->text) == 0))
            return 1;
    }
    return 0;
}

// Whether a row is about something in this object or list.
static int has_rows(const Mapping *m, const ConfigValue *v) {
    for (size_t i = 0; i < m->num_keys; i++)
        if (config_is_inside(&(ConfigValue){ .path = (char *)m->keys[i].path }, v)) return 1;
    return 0;
}

static int is_disabled(const Mapping *m, const ConfigValue *object) {
    char path[600];
    snprintf(path, sizeof path, "%s.enabled", object->path);
    return object->kind == CONFIG_OBJECT && is_text(m, path, "false");
}

// How many characters have to be put in, left out or replaced to make one of the other; words of 64 or more: 64.
static size_t edits(const char *a, size_t a_length, const char *b, size_t b_length) {
    size_t row[64];  // of the first i of a and the first k of b
    if (a_length >= 64 || b_length >= 64) return 64;
    for (size_t k = 0; k <= b_length; k++) row[k] = k;
    for (size_t i = 1; i <= a_length; i++) {
        size_t diagonal = row[0]++;
        for (size_t k = 1; k <= b_length; k++) {
            const size_t replaced = diagonal + (a[i - 1] != b[k - 1]);
            diagonal = row[k];
            if (row[k - 1] < row[k]) row[k] = row[k - 1];
            row[k]++;
            if (replaced < row[k]) row[k] = replaced;
        }
    }
    return row[b_length];
}

// An error if a key that is in no row is almost one that is, in the same object. Not if half of a short name differs.
static int check_spelling(Mapping *m, const ConfigValue *v) {
    const char *dot = strrchr(v->path, '.'), *name = dot != NULL ? dot + 1 : v->path;
    const size_t parent = (size_t)(name - v->path), length = strlen(name);
    const char *nearest = NULL;
    size_t nearest_length = 0, fewest = 3;
    for (size_t i = 0; i < m->num_keys; i++) {
        if (strncmp(m->keys[i].path, v->path, parent) != 0) continue;
        const char *known = m->keys[i].path + parent;
        const size_t known_length = strcspn(known, ".[");
        const size_t n = edits(name, length, known, known_length);
        if (n == 0) return 0;
        if (n >= fewest || 2 * n >= known_length) continue;
        nearest = known;
        nearest_length = known_length;
        fewest = n;
    }
    return nearest == NULL ? 0 : fail_at(m, v, ": did you mean %.*s?", (int)nearest_length, nearest);
}

// Lists what is not honoured, in the file's order. Returns 0, or -1 and a message.
static int list_unused(Mapping *m) {
    char *list = m->out->unused;
    size_t length = 0, more = 0;
    const ConfigValue *skipped = NULL;  // the object that is left out with all that is in it
    for (size_t i = 0; i < m->c->n; i++) {
        const ConfigValue *v = &m->c->values[i];
        const int is_container = v->kind == CONFIG_OBJECT || v->kind == CONFIG_LIST;
        const int is_empty = is_container && (i + 1 == m->c->n || !config_is_inside(v + 1, v));
        if (skipped != NULL && config_is_inside(v, skipped)) continue;
        if (is_disabled(m, v)) skipped = v;
        if (is_honoured(m, v) || is_disabled(m, v) || is_empty || (is_container && has_rows(m, v))) continue;
        if (get(m, v->path) == NULL) continue;  // not given
        if (check_spelling(m, v) != 0) return -1;
        if (is_container) skipped = v;
        const size_t n = strlen(v->path);
        if (more > 0 || length + n + 40 > sizeof m->out->unused)
            more++;
        else
            length += (size_t)snprintf(list + length, sizeof m->out->unused - length, "%s%s", length > 0 ? ", " : "",
                                       v->path);
    }
    if (more > 0) snprintf(list + length, sizeof m->out->unused - length, " and %zu more", more);
    return 0;
}

int config_understand(const ConfigFile *c, ConfigMeaning *out, char *err, size_t err_bytes) {
    Mapping m = { c, out, DEEPSPEED, sizeof DEEPSPEED / sizeof *DEEPSPEED, err, err_bytes };
    if (c->yaml) {
        m.keys = NANOTRON;
        m.num_keys = sizeof NANOTRON / sizeof *NANOTRON;
    }
    memset(out, 0, sizeof *out);
    for (size_t i = 0; i < m.num_keys; i++)
        if (apply(&m, &m.keys[i]) != 0) return -1;
    return list_unused(&m);
}
