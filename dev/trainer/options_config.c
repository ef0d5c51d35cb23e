// --config: settings of flags from a configuration file, and the batch, which depends on the number of ranks. What the
// file's keys mean is in config_keys.c. A flag of the command line wins; a note says so if the file has another value.
#include <stdlib.h>
#include <string.h>

#include "trainer/options.h"

#define FAIL(...) (snprintf(err, err_bytes, __VA_ARGS__), -1)

// What messages and notes call a setting of the file: "ds.json: zero_optimization.stage".
static void place(const Options *o, const char *key, size_t line, char text[4400]) {
    config_place(&(ConfigFile){ .name = o->config }, &(ConfigValue){ .path = (char *)key, .line = line }, text, 4400);
}

// Keeps a text as long as o.
static const char *keep(Options *o, const char *text) {
    const size_t n = strlen(text) + 1;
    if (n > sizeof o->config_text - o->config_text_bytes) return NULL;
    char *kept = memcpy(o->config_text + o->config_text_bytes, text, n);
    o->config_text_bytes += n;
    return kept;
}

// Without a plan there is no choice of the precision.
static int check_precision(const Options *o, const OptionsBuild *build, const ConfigSetting *s, char *err,
                           size_t err_bytes) {
    const int bf16 = strcmp(s->value, "bf16") == 0;
    char used[4400];
    place(o, s->key, s->line, used);
    if (bf16 == build->bf16) return 0;
    return FAIL("%s: is %s, but this is a build for %s: build with PRECISION=%s, or change the file", used,
                bf16 ? "bf16" : "fp32", build->bf16 ? "bf16" : "fp32", bf16 ? "BF16" : "FP32");
}

static int apply(Options *o, const OptionsBuild *build, const ConfigSetting *s, int last, char *err, size_t err_bytes) {
    char used[4400], value[4400];
    const int is_precision = strcmp(s->flag, "precision") == 0;
    place(o, s->key, s->line, used);
    if (is_precision && o->plan == OPTION_PLAN_OFF && check_precision(o, build, s, err, err_bytes) != 0) return -1;
    if (options_on_command_line(o, s->flag)) {
        options_value(o, s->flag, value, sizeof value);
        if (last && !s->implied && strcmp(value, s->value) != 0)
            options_note(o, "%s%s %s: wins over %s %s\n", strlen(s->flag) > 2 ? "--" : "-", s->flag, value, used,
                         s->value);
        return 0;
    }
    if (s->refusal[0] != '\0') return FAIL("%s: %s", used, s->refusal);
    const char *kept = keep(o, s->value);
    if (kept == NULL) return FAIL("%s: its texts are too long", o->config);
    const OptionSource source = { OPTION_FILE, s->key, s->implied, s->line };
    return options_set_from_file(o, s->flag, used, kept, source, err, err_bytes);
}

int options_read_config(Options *o, const OptionsBuild *build, char *err, size_t err_bytes) {
    ConfigFile file;
    ConfigMeaning *m = malloc(sizeof *m);
    int status = config_open(&file, o->config, err, err_bytes);
    if (m == NULL && status == 0) status = FAIL("--config: the host's memory is exhausted");
    if (status == 0) status = config_understand(&file, m, err, err_bytes);
    if (status == 0) {
        o->config_hash = file.hash;
        o->batch = m->batch;
    }
    for (size_t i = 0; status == 0 && i < m->n; i++) {
        int last = 1;
        for (size_t k = i + 1; k < m->n; k++) last &= strcmp(m->settings[k].flag, m->settings[i].flag) != 0;
        status = apply(o, build, &m->settings[i], last, err, err_bytes);
    }
    if (status == 0 && build->bf16 && !file.yaml && o->plan == OPTION_PLAN_OFF && !config_find(&file, "bf16") &&
        !config_find(&file, "fp16") && !config_find(&file, "bf16.enabled"))
        options_note(o, "%s: no bf16: DeepSpeed would train in fp32, this build trains in bf16\n", o->config);
    if (status == 0 && m->unused[0] != '\0') options_note(o, "%s: not used: %s\n", o->config, m->unused);
    config_close(&file);
    free(m);
    return status;
}

size_t options_plan_ranks(const Options *o, size_t ranks) {
    const size_t replicas = (size_t)o->batch.replicas.value;
    if (o->plan_ranks > 0) return (size_t)o->plan_ranks;
    return replicas > 0 && replicas <= 1 << 20 ? replicas : ranks;
}

// "train_micro_batch_size_per_gpu 4 x "; of a size that is not given: "".
static const char *factor(const ConfigSize *s, char text[128]) {
    text[0] = '\0';
    if (s->value > 0) snprintf(text, 128, "%s %lld x ", s->key, s->value);
    return text;
}

static int set_size(Options *o, const char *flag, const ConfigSize *from, long long n, char *err, size_t err_bytes) {
    char used[4400], text[32];
    if (n == 0 || options_on_command_line(o, flag)) return 0;
    place(o, from->key, from->line, used);
    snprintf(text, sizeof text, "%lld", n);
    return options_set_from_file(o, flag, used, text, (OptionSource){ OPTION_FILE, from->key, 0, from->line }, err,
                                 err_bytes);
}

// Finds the sizes that are missing, as DeepSpeed does: one follows from the others; of all but sequences, accumulation
// is 1. Returns 0, or -1 and a message.
static int complete(const Options *o, const ConfigBatch *given, ConfigBatch *b, long long ranks, char *err,
                    size_t err_bytes) {
    const long long S = given->sequences.value;
    long long *B = &b->micro.value, *G = &b->accumulation.value;
    char B_text[128], G_text[128];
    if (S == 0) {
        if (*B == 0) *B = o->batch_size;
        return 0;
    }
    if (*B == 0 && *G == 0) *G = 1;
    if (*B == 0) *B = S / ranks / *G;
    if (*G == 0) *G = S / ranks / *B;
    if (*B > 0 && *G > 0 && S % *B == 0 && S / *B % *G == 0 && S / *B / *G == ranks) return 0;
    return FAIL("%s: %s %lld: is not %s%s%s%lld ranks: change one of them, or leave one out", o->config,
                given->sequences.key, S,
                given->micro.value > 0 && given->accumulation.value > 0 ? "" : "a multiple of ",
                factor(&given->micro, B_text), factor(&given->accumulation, G_text), ranks);
}

int options_choose_batch(Options *o, size_t ranks, char *err, size_t err_bytes) {
    const ConfigSize *R = &o->batch.replicas, *S = &o->batch.sequences;
    ConfigBatch given = o->batch, b;
    char used[4400];
    if (o->config == NULL) return 0;
    if (R->value > 0 && (size_t)R->value != ranks) {
        place(o, R->key, R->line, used);
        return FAIL("%s %lld: there are %zu ranks: start %lld, or change it", used, R->value, ranks, R->value);
    }
    if (options_on_command_line(o, "b")) {
        if (given.micro.value > 0 && given.micro.value != o->batch_size)
            options_note(o, "-b %lld: wins over %s: %s %lld\n", (long long)o->batch_size, o->config, given.micro.key,
                         given.micro.value);
        if (S->value > 0 || given.accumulation.value > 0) given.micro = (ConfigSize){ o->batch_size, "-b", 0 };
    }
    const ConfigSize *M = S->value > 0 ? S : &given.accumulation;
    const char *flag = options_on_command_line(o, "d") ? "-d" : "--micro-batches";
    const int flag_wins = options_on_command_line(o, "d") || options_on_command_line(o, "micro-batches");
    if (flag_wins && M->value > 0) options_note(o, "%s: wins over %s: %s %lld\n", flag, o->config, M->key, M->value);
    if (flag_wins || M->value == 0) return set_size(o, "b", &given.micro, given.micro.value, err, err_bytes);
    b = given;
    if (complete(o, &given, &b, (long long)ranks, err, err_bytes) != 0) return -1;
    const ConfigSize *B = given.micro.value > 0 ? &given.micro : S;
    if (B->value > 0 && set_size(o, "b", B, b.micro.value, err, err_bytes) != 0) return -1;
    return set_size(o, "micro-batches", M, b.accumulation.value * (long long)ranks, err, err_bytes);
}
