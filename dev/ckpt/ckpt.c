// ckpt: checkpoints looked at, verified, compared, converted, pruned, and exchanged with Hugging Face, without MPI and
// without a GPU. Everything is read in pieces and by all cores. dev/docs/checkpoints.md and huggingface.md describe it.
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "ckpt/commands.h"
#include "ckpt/source.h"

static const char USAGE[] =
    "ckpt list DIR                           the checkpoints in a directory, newest first\n"
    "ckpt verify DIR [STEP]                  reads all, or one, and compares every chunk with its hash\n"
    "ckpt compare A B                        which tensors differ, and by how much\n"
    "ckpt convert FROM TO [--precision fp32|bf16] [-w 0|1|2] [--average]\n"
    "                                        TO: a new directory, or a model file (.bin), version 3 (fp32) or 5 "
    "(bf16)\n"
    "                                        --average: the model is the moving average of the weights\n"
    "ckpt prune DIR --keep K [--dry-run]     verifies, keeps the newest K that are good, and deletes what is older\n"
    "ckpt export FROM FOLDER [--precision fp32|bf16] [--average] [--tokenizer FILE|bytes]\n"
    "ckpt import FOLDER TO.bin [--precision fp32|bf16]\n"
    "                                        FOLDER: as transformers has GPT-2: config.json, model.safetensors\n"
    "\n"
    "A, B, FROM: a directory, whose newest checkpoint is meant; DIR/checkpoint_STEP.txt, or of llm.c DIR/DONE_STEP;\n"
    "or a model file. Exit status: 0 good or equal; 1 damaged or different; 2 it could not be done.\n";

static int trouble(const char *err) {
    fprintf(stderr, "ckpt: %s\n", err);
    return EXIT_TROUBLE;
}

// ---------------------------------------------------------------------------------------------------------------------
// list, verify

// The training data: the first file's name and length, and how many more there are.
static void print_data(const char *files) {
    size_t n = 0;
    for (const char *c = files; *c != '\0'; c++) n += *c == '\n';
    if (n == 0) return;
    const char *name = strchr(files, ' ') + 1;
    printf("; trained on %.*s (%.*s bytes)", (int)strcspn(name, "\n"), name, (int)(name - 1 - files), files);
    if (n > 1) printf(" and %zu more file%s", n - 1, n == 2 ? "" : "s");
}

static void print_checkpoint(const Source *s, const char *verdict) {
    const Checkpoint *c = s->c;
    const GPT2Config *m = &c->config;
    printf("step %zu: %s, %.3f GB: ", c->step, verdict, (double)source_bytes(s) / 1e9);
    if (s->kind == SOURCE_LLMC)
        printf("llm.c, %zu ranks, stage %d", s->llmc.ranks, s->llmc.stage);
    else
        printf("%zu micro-batches of %zu x %zu", c->M, c->B, c->T);
    printf("; %s%s, %s; %zu layers, %zu heads, %zu channels, vocabulary %zu, %zu positions",
           c->dtype == ZERO_BF16 ? "bf16" : "fp32", c->has_master ? " and master weights" : "", c->optimizer->name,
           m->num_layers, m->num_heads, m->channels, m->vocab_size, m->max_seq_len);
    if (c->train_files != NULL) print_data(c->train_files);
    putchar('\n');
}

// One step. Returns 1 if it is not good.
static int show(const char *dir, size_t step, int verify) {
    static Source s;
    char err[ERR_BYTES] = "";
    const int bad = source_open_step(&s, dir, step, err) != 0 || (verify && source_verify(&s, err) != 0);
    if (bad)
        printf("step %zu: not good: %s\n", step, err);
    else
        print_checkpoint(&s, verify ? "good" : "complete");
    source_close(&s);
    return bad;
}

// step SIZE_MAX: of all.
static int show_steps(const char *dir, size_t step, int verify) {
    char err[ERR_BYTES] = "";
    size_t *steps;
    int bad = 0, shown = 0;
    const int n = checkpoint_steps(dir, &steps, err, sizeof err);
    if (n < 0) return trouble(err);
    for (int i = 0; i < n; i++) {
        if (step != SIZE_MAX && step != steps[i]) continue;
        bad += show(dir, steps[i], verify);
        shown++;
    }
    size_t length = (size_t)snprintf(err, sizeof err, "%s: there is no step %zu; there are ", dir, step);
    for (int i = n - 1; i >= 0 && length < sizeof err; i--)
        length += (size_t)snprintf(err + length, sizeof err - length, "%zu%s", steps[i], i > 0 ? ", " : "");
    free(steps);
    if (shown > 0) return verify && bad > 0 ? EXIT_DIFFERENT : EXIT_SUCCESS;
    if (n == 0)
        snprintf(err, sizeof err, "%s: %s: give the -o of a run", dir,
                 access(dir, F_OK) == 0 ? "has no checkpoints" : "there is no such directory");
    return trouble(err);
}

// A number that is all of text; -1: it is not.
static long long number(const char *text) {
    char *end;
    const long long n = strtoll(text, &end, 10);
    return text[0] >= '0' && text[0] <= '9' && *end == '\0' ? n : -1;
}

// ---------------------------------------------------------------------------------------------------------------------
// prune

static int prune(const char *dir, size_t keep, int dry_run) {
    char err[ERR_BYTES] = "";
    size_t *steps, good = 0, bad = 0;
    int failed = 0;
    const int n = checkpoint_steps(dir, &steps, err, sizeof err);
    if (n < 0) return trouble(err);
    for (int i = 0; i < n && !failed; i++) {
        if (!checkpoint_is_ours(dir, steps[i])) continue;
        if (good < keep) {
            const int is_bad = show(dir, steps[i], 1);
            good += !is_bad;
            bad += is_bad;
            continue;
        }
        if (!dry_run) failed = checkpoint_delete(dir, steps[i], err, sizeof err) != 0;
        if (!failed) printf("step %zu: %s\n", steps[i], dry_run ? "would be deleted" : "deleted");
    }
    free(steps);
    if (good < keep) printf("%s: has %zu good checkpoints: nothing is deleted\n", dir, good);
    if (failed) return trouble(err);
    return bad > 0 ? EXIT_DIFFERENT : EXIT_SUCCESS;
}

// ---------------------------------------------------------------------------------------------------------------------
// Command line.

static int usage(const char *err) {
    if (err != NULL) fprintf(stderr, "ckpt: %s\n", err);
    fputs(USAGE, err != NULL ? stderr : stdout);
    return err != NULL ? EXIT_TROUBLE : EXIT_SUCCESS;
}

static int parse_prune(int argc, char **argv) {
    long long keep = -1;
    int dry_run = 0;
    for (int i = 3; i < argc; i++) {
        if (strcmp(argv[i], "--keep") == 0 && i + 1 < argc)
            keep = number(argv[++i]);
        else if (strcmp(argv[i], "--dry-run") == 0)
            dry_run = 1;
        else
            return usage("prune DIR --keep K [--dry-run]");
    }
    return keep < 1 ? usage("prune: --keep is 1 or more: the last good checkpoint is never deleted")
                    : prune(argv[2], (size_t)keep, dry_run);
}

// The word for a precision, as it is used here; NULL: it is none.
static const char *precision_named(const char *word) {
    return strcasecmp(word, "fp32") == 0 ? "fp32" : strcasecmp(word, "bf16") == 0 ? "bf16" : NULL;
}

static int parse_convert(int argc, char **argv) {
    const char *precision = NULL;
    long long master = -1;
    int average = 0;
    for (int i = 4; i < argc; i += 2) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--precision") == 0 && precision_named(value) != NULL)
            precision = precision_named(value);
        else if (strcmp(argv[i], "--average") == 0)
            average = 1, i--;
        else if (strcmp(argv[i], "-w") == 0 && number(value) >= 0 && number(value) <= 2)
            master = number(value);
        else if (strcmp(argv[i], "--micro-batches") == 0 || strcmp(argv[i], "-b") == 0 || strcmp(argv[i], "-t") == 0)
            return trouble("convert: the micro-batches of a step cannot be converted: each update that is in the state "
                           "is a sum over them; begin a run from the weights, with -e MODEL and another -o");
        else
            return usage("convert FROM TO [--precision fp32|bf16] [-w 0|1|2] [--average]");
    }
    return convert(argv[2], argv[3], precision, (int)master, average);
}

static int parse_exchange(int argc, char **argv) {
    const int exports = strcmp(argv[1], "export") == 0;
    const char *precision = NULL, *tokenizer = NULL;
    int average = 0;
    for (int i = 4; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--precision") == 0 && precision_named(value) != NULL)
            precision = precision_named(value), i++;
        else if (exports && strcmp(argv[i], "--average") == 0)
            average = 1;
        else if (exports && strcmp(argv[i], "--tokenizer") == 0 && value[0] != '\0')
            tokenizer = value, i++;
        else
            return usage(exports ? "export FROM FOLDER [--precision fp32|bf16] [--average] [--tokenizer FILE|bytes]"
                                 : "import FOLDER TO.bin [--precision fp32|bf16]");
    }
    return exports ? export_model(argv[2], argv[3], precision, average, tokenizer)
                   : import_model(argv[2], argv[3], precision);
}

int main(int argc, char **argv) {
    const char *command = argc > 1 ? argv[1] : "";
    signal(SIGXFSZ, SIG_IGN);  // a file that becomes too large is an error with a message
    if (strcmp(command, "--help") == 0 || strcmp(command, "-h") == 0) return usage(NULL);
    if (strcmp(command, "list") == 0 && argc == 3) return show_steps(argv[2], SIZE_MAX, 0);
    if (strcmp(command, "verify") == 0 && argc == 3) return show_steps(argv[2], SIZE_MAX, 1);
    if (strcmp(command, "verify") == 0 && argc == 4 && number(argv[3]) >= 0)
        return show_steps(argv[2], (size_t)number(argv[3]), 1);
    if (strcmp(command, "compare") == 0 && argc == 4) return compare(argv[2], argv[3]);
    if (strcmp(command, "convert") == 0 && argc >= 4) return parse_convert(argc, argv);
    if ((strcmp(command, "export") == 0 || strcmp(command, "import") == 0) && argc >= 4)
        return parse_exchange(argc, argv);
    if (strcmp(command, "prune") == 0 && argc >= 3) return parse_prune(argc, argv);
    char words[64], err[ERR_BYTES];
    snprintf(words, sizeof words, "ckpt %.50s ", command);
    snprintf(err, sizeof err, "%.100s: %s", command,
             strstr(USAGE, words) != NULL ? "not with these arguments" : "there is no such command");
    return usage(command[0] == '\0' ? "which command?" : err);
}
