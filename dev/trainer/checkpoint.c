// Each rank reads only the elements that it owns; no rank ever holds the whole model. Elements are addressed by logical
// index, so nothing in the files depends on the number of ranks or the stage.
//
// Resuming: all ranks read the manifests, newest first; together they verify all chunks; the first checkpoint without
// fault is loaded. Then the hash of the engine's state must be that of the manifest.
#include "trainer/checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "gpt2/initial_weights.h"
#include "trainer/checkpoint_format.h"
#include "trainer/checkpoint_llmc.h"
#include "trainer/checkpoint_write.h"
#include "trainer/metrics.h"
#include "trainer/resume_llmc.h"

// ---------------------------------------------------------------------------------------------------------------------
// Resuming.

static int rank_0(const void *all, int ranks) {
    (void)all;
    (void)ranks;
    return 0;
}

void resume_micro_batches(Run *r) {
    Options *o = &r->options;
    char err[ERR_BYTES], text[32];
    if (!o->resume) return;
    size_t M = 0, *steps = NULL;
    const int n = r->rank == 0 ? checkpoint_steps(o->output_dir, &steps, err, sizeof err) : 0;
    for (int i = 0; i < n && M == 0; i++) {
        Checkpoint c;
        if (checkpoint_read(&c, o->output_dir, steps[i], err, sizeof err) == 0) M = c.M;
        checkpoint_free(&c);
    }
    free(steps);
    zero_bootstrap *boot = launch_bootstrap();
    if (zero_bootstrap_choose(boot, &M, sizeof M, rank_0, &M) != ZERO_OK) die("%s", zero_bootstrap_error(boot));
    if (M == 0) return;
    if (M % (size_t)r->ranks != 0) {
        char ranks[256] = "";
        for (size_t n = 1, at = 0; n <= M && at < sizeof ranks - 24; n++)
            if (M % n == 0) at += (size_t)snprintf(ranks + at, sizeof ranks - at, "%s%zu", n > 1 ? ", " : "", n);
        die("-y 1: a step of the checkpoints in %s has %zu micro-batches, which cannot be shared evenly by %d ranks: "
            "continue on one of %s ranks",
            o->output_dir, M, r->ranks, ranks);
    }
    if (options_given(o, "d") || options_given(o, "micro-batches")) return;
    snprintf(text, sizeof text, "%zu", M);
    options_set_default(o, "d", "-1");
    options_set_default(o, "micro-batches", text);
}

void check_same_model(const Run *r, const GPT2Config *a, const char *path) {
    const GPT2Config *b = &r->config;
    if (a->max_seq_len != b->max_seq_len || a->vocab_size != b->vocab_size || a->num_layers != b->num_layers ||
        a->padded_vocab_size != b->padded_vocab_size || a->num_heads != b->num_heads || a->channels != b->channels)
        die("%s: is of a model with %zu layers, %zu heads, %zu channels, %zu words and %zu positions: use its -e", path,
            a->num_layers, a->num_heads, a->channels, a->vocab_size, a->max_seq_len);
}

void check_same_optimizer(const Run *r, const zero_optimizer *of_checkpoint, const char *path) {
    const zero_optimizer *optimizer = zero_optimizer_get(r->options.settings.optimizer);
    if (of_checkpoint != optimizer)
        die("%s: holds the state of %s, and this run uses %s: use the --optimizer of its run, or begin a run from its "
            "weights with -e and another -o",
            path, of_checkpoint->name, optimizer->name);
}

void check_step(const Run *r, size_t step, const char *path) {
    if (step > r->steps) die("-x %zu: %s is of step %zu already: use -x %zu or more", r->steps, path, step, step);
}

// A line of loader_files, for a message.
static void describe_file(char out[320], const char *line) {
    char name[256];
    size_t bytes;
    const int exists = sscanf(line, "%zu %255[^\n]", &bytes, name) == 2;
    if (exists) make_printable(name);
    snprintf(out, 320, exists ? "%s (%zu bytes)" : "missing", name, bytes);
}

// Writes how this run's data are not those of the checkpoint, whose files these are; "" if it does not say which.
static void describe_difference(char out[1024], const char *files, const Loader *loader, int same_content) {
    char *all = loader_files(loader), was[320], is[320];
    size_t file = 1, length;
    if (all == NULL) die("the host's memory is exhausted");
    out[0] = '\0';
    for (const char *theirs = files, *mine = all; *files != '\0'; theirs += length, mine += length, file++) {
        length = strcspn(theirs, "\n") + 1;
        if (*theirs != '\0' && strncmp(theirs, mine, length) == 0) continue;
        describe_file(was, theirs);
        describe_file(is, mine);
        if (same_content)
            snprintf(out, 1024, ": another part of the same files");
        else if (*theirs == '\0' && *mine == '\0')
            snprintf(out, 1024, ": the files have the same names and lengths, and other contents");
        else
            snprintf(out, 1024, ": file %zu was %s, and is %s", file, was, is);
        break;
    }
    free(all);
}

// Everything that would make the run another one ends it here.
static void check_same_run(const Run *r, const Checkpoint *c, const char *path) {
    check_same_model(r, &c->config, path);
    if (c->B != r->B || c->T != r->T || c->M != r->M)
        die("%s: its run had %zu micro-batches of -b %zu -t %zu in a step, this one has %zu of -b %zu -t %zu: use "
            "--micro-batches %zu -b %zu -t %zu",
            path, c->M, c->B, c->T, r->M, r->B, r->T, c->M, c->B, c->T);
    check_same_optimizer(r, c->optimizer, path);
    if (checkpoint_array_of(c, ZERO_STATE_EMA) >= 0 && !options_given(&r->options, "ema-decay"))
        die("%s: has a moving average of the weights: use the --ema-decay of its run, or --ema-decay 0 to drop it",
            path);
    if (c->seed != r->options.settings.seed)
        die("%s: its run had --seed %llu, which gives another order of the data: use that", path,
            (unsigned long long)c->seed);
    const int same_content = c->train.content == r->content[INPUT_TRAIN];
    if (!same_content || c->train.samples != loader_num_samples(r->train)) {
        char difference[1024];
        describe_difference(difference, c->train_files, r->train, same_content);
        die("%s: its run had other training data (%zu file%s, %zu micro-batches)%s: use its -i and -j, or begin a run "
            "from its weights with -e and another -o",
            path, c->train.files, c->train.files == 1 ? "" : "s", c->train.samples, difference);
    }
    check_step(r, c->step, path);
}

// The line of a flag, "-flag " of n bytes, in lines "-flag value\n"; NULL: none.
static const char *option_line(const char *lines, const char *flag, size_t n) {
    for (; *lines != '\0'; lines = strchr(lines, '\n') + 1) {
        if (strncmp(lines, flag, n) == 0) return lines;
    }
    return NULL;
}

// Does a flag that the checkpoint's program did not have change what it did?
static int is_new_and_used(const Run *r, const char *line, int flag) {
    char name[64];
    snprintf(name, sizeof name, "%.*s", flag - 1, line);
    const char *bare = name + strspn(name, "-");
    return options_given(&r->options, bare) || (!strcmp(bare, "head-rows") && r->kernels.head_chunks > 1);
}

// Says which settings are not those of the checkpoint: the run goes on, with other bits.
static void report_changes(const Run *r, const Checkpoint *c) {
    char *mine = describe_options(&r->options);
    if (mine == NULL) die("the host's memory is exhausted");
    for (const char *line = mine, *next; *line != '\0'; line = next) {
        next = strchr(line, '\n') + 1;
        const int length = (int)(next - line - 1), flag = (int)(strchr(line, ' ') - line) + 1;
        const char *theirs = option_line(c->options, line, (size_t)flag);
        if (theirs == NULL) {
            if (is_new_and_used(r, line, flag))
                print0(r, "changed since the checkpoint: %.*s, which it does not know\n", length, line);
            continue;
        }
        const int their_length = (int)(strchr(theirs, '\n') - theirs);
        if (their_length != length || memcmp(theirs, line, (size_t)length) != 0)
            print0(r, "changed since the checkpoint: %.*s instead of %.*s\n", length, line, their_length, theirs);
    }
    free(mine);
    if (c->steps != r->steps)
        print0(r, "changed since the checkpoint: -x %zu instead of -x %zu; the learning rate may differ\n", r->steps,
               c->steps);
    if (c->dtype != r->options.settings.dtype)
        print0(r, "changed since the checkpoint: %s instead of %s\n", c->dtype == ZERO_BF16 ? "fp32" : "bf16",
               c->dtype == ZERO_BF16 ? "bf16" : "fp32");
    if (c->val_content != 0 && r->content[INPUT_VAL] != 0 && c->val_content != r->content[INPUT_VAL]) {
        char difference[1024];
        describe_difference(difference, c->val_files, r->val, 0);
        print0(r, "changed since the checkpoint: other validation data (-j)%s\n", difference);
    }
    if (r->options.settings.ema_decay > 0 && checkpoint_array_of(c, ZERO_STATE_EMA) < 0)
        print0(r, "--ema-decay: the checkpoint has no moving average: it begins with the weights\n");
    const int exact = c->has_master || c->dtype == ZERO_F32,
              keeps = has_master_weights(&r->options.settings) || r->options.settings.dtype == ZERO_F32;
    if (exact && !keeps)
        print0(r, "-w 0: the weights of the checkpoint are rounded to bf16: their lower 16 bits are lost\n");
}

typedef struct Reader {
    const Checkpoint *c;
    size_t array;
    int fd;
    char path[CHECKPOINT_PATH], err[ERR_BYTES];
} Reader;

static int read_values(void *ctx, size_t tensor, size_t begin, size_t count, float *out) {
    Reader *r = ctx;
    const int status = checkpoint_read_values(r->c, r->array, r->fd, r->c->tensors[tensor].logical + begin, count, out);
    if (status != 0) snprintf(r->err, sizeof r->err, "%s: cannot be read: %s", r->path, strerror(errno));
    return status;
}

// Loads a checkpoint that was verified.
static void load(Run *r, const Checkpoint *c) {
    Reader reader = { .c = c, .fd = -1 };
    const int averages = r->options.settings.ema_decay > 0, has_average = checkpoint_array_of(c, ZERO_STATE_EMA) >= 0;
    for (size_t a = 0; a < c->num_arrays; a++) {
        if (a < 2) {
            if (reader.fd != -1) close(reader.fd);
            checkpoint_path(reader.path, r->options.output_dir, a == 0 ? CHECKPOINT_MODEL : CHECKPOINT_OPTIMIZER,
                            c->step);
            reader.fd = open(reader.path, O_RDONLY | O_CLOEXEC);
        }
        reader.array = a;
        if (a == 0 && c->has_master) continue;  // master weights set the parameters too
        const enum zero_state state = c->arrays[a].state;
        if (state == ZERO_STATE_EMA && !averages) continue;
        int status = zero_load(r->z, state, read_values, &reader);
        if (status == ZERO_OK && state < ZERO_STATE_OPTIMIZER && averages && !has_average)
            status = zero_load(r->z, ZERO_STATE_EMA, read_values, &reader);
        if (any_file_failed(r, reader.err)) die("%s", reader.err);
        must(r, status, reader.path);
    }
    close(reader.fd);
    const int same_kind = c->dtype == r->options.settings.dtype &&
                          c->has_master == has_master_weights(&r->options.settings) && averages == has_average;
    uint64_t params, optimizer;
    must(r, zero_hash(r->z, &params, &optimizer), "hash of the checkpoint");
    if (same_kind && (params != c->params_hash || optimizer != c->optimizer_hash))
        die("%s: what was read is not what was written, although all chunks were right: the files were changed "
            "meanwhile, or memory or disk is faulty",
            reader.path);
    r->first_step = c->step;
    must(r, zero_set_updates(r->z, c->updates), "updates so far");
    r->loss_outliers = c->loss_outliers;
    r->norm_outliers = c->norm_outliers;
    r->nonfinite_steps = c->nonfinite.steps;
    r->first_nonfinite = (StepLine){ .step = c->nonfinite.first, .loss = c->nonfinite.loss, .norm = c->nonfinite.norm };
}

// Reads and verifies the checkpoint of a step. Returns 1 if it is complete, on all ranks; else err says why not.
static int verified(const Run *r, size_t step, Checkpoint *c, char *err) {
    const char *dir = r->options.output_dir;
    err[0] = '\0';
    const int status = checkpoint_read(c, dir, step, err, ERR_BYTES);
    if (any_file_failed(r, err)) return 0;
    char *text = status == 0 ? checkpoint_manifest(c) : NULL;
    uint64_t hash = text != NULL ? XXH3_64bits(text, strlen(text)) : 0, *all = allocate((size_t)r->ranks * sizeof *all);
    free(text);
    gather(r, &hash, sizeof hash, all);
    for (int i = 1; i < r->ranks; i++)
        if (all[i] != all[0])
            die("-o %s: rank %d reads another checkpoint of step %zu than rank 0: is the directory the same on all "
                "hosts?",
                dir, i, step);
    free(all);
    checkpoint_verify(c, dir, (size_t)r->rank, (size_t)r->ranks, err, ERR_BYTES);
    return !any_file_failed(r, err);
}

// Loads the newest complete checkpoint. Returns 0 if the directory has none at all.
static int resume(Run *r) {
    char err[ERR_BYTES] = "", path[CHECKPOINT_PATH];
    const char *dir = r->options.output_dir;
    struct {
        size_t step, from_llmc;
    } mine, *all = allocate((size_t)r->ranks * sizeof *all);
    size_t *steps = NULL;
    Checkpoint *c = allocate(sizeof *c);
    int found = 0;
    // Rank 0's list counts: the others may see a file a little later.
    const int n = r->rank == 0 ? checkpoint_steps(dir, &steps, err, sizeof err) : 0;
    agree(r, err);
    for (int i = 0;; i++) {
        mine.step = i < n ? steps[i] : SIZE_MAX;
        mine.from_llmc = i < n && llmc_set_exists(dir, steps[i]);
        gather(r, &mine, sizeof mine, all);
        const size_t step = all[0].step;
        if (step == SIZE_MAX && i == 0) break;
        if (step == SIZE_MAX)
            die("-o %s: none of its checkpoints is complete (reasons above). To begin again, give another -o, or "
                "--overwrite 1 instead of -y 1: it moves log and models to %s/replaced.N and deletes nothing. To begin "
                "with the weights of one of its models, give another -o and -e MODEL",
                dir, dir);
        found = all[0].from_llmc ? resume_llmc(r, step, err) : verified(r, step, c, err);
        if (found) break;
        print0(r, "skipped the checkpoint of step %zu: %s\n", step, err);
        checkpoint_free(c);
    }
    if (found && !all[0].from_llmc) {
        checkpoint_path(path, dir, CHECKPOINT_MANIFEST, c->step);
        check_same_run(r, c, path);
        report_changes(r, c);
        load(r, c);
        print0(r, "resumed from step %zu of %s%s\n", c->step, dir,
               c->step == r->steps ? ", the last one: a larger -x continues" : "");
        checkpoint_free(c);
    }
    free(c);
    free(all);
    free(steps);
    return found;
}

// ---------------------------------------------------------------------------------------------------------------------
// The beginning of a run.

typedef struct FileAccess {
    const Run *run;
    const ModelFile *file;
    char err[ERR_BYTES];
} FileAccess;

static int file_fill(void *ctx, size_t tensor, size_t begin, size_t count, float *out) {
    FileAccess *a = (FileAccess *)ctx;
    return modelfile_read(a->file, a->run->tensors[tensor].logical + begin, count, out, a->err, sizeof a->err);
}

static void set_parameters(Run *r) {
    if (r->file.fd == -1) {
        print0(r, "drawing %zu initial weights, seed %lld\n", gpt2_num_parameters(&r->config),
               (long long)r->options.settings.seed);
        InitialWeights w;
        gpt2_initial_weights_begin(&w, &r->config, r->tensors, (uint32_t)r->options.settings.seed);
        must(r, zero_fill(r->z, gpt2_initial_weights_fill, &w), "initial weights");
        return;
    }
    print0(r, "reading %zu parameters from %s\n", r->file.numel, r->file.path);
    FileAccess access = { .run = r, .file = &r->file };
    const int status = zero_fill(r->z, file_fill, &access);
    agree(r, access.err);
    must(r, status, "reading the model");
}

void set_state(Run *r) {
    char err[ERR_BYTES] = "";
    const int resumed = r->options.resume && resume(r);
    if (r->options.resume && !resumed)
        print0(r, "-y 1: %s has no checkpoint: this is the beginning of the run\n", r->options.output_dir);
    if (!resumed) set_parameters(r);
    modelfile_close(&r->file);
    if (r->options.resume && r->rank == 0 &&
        trainlog_rewind(&r->log, trainlog_is_replaced, r->first_step, err, sizeof err) == 0)
        metrics_rewind(r->metrics, r->first_step, err, sizeof err);
    agree(r, err);
}
