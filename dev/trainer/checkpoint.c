// Each rank reads and writes only the elements that it owns; no rank ever holds the whole model. Elements are addressed
// by logical index, so nothing in the files depends on the number of ranks or the stage.
//
// Writing:
//
//     rank 0      creates model and optimizer file under temporary names, in full length
//     all ranks   write what they own, and flush it to the disk; they add up the hashes of the chunks
//     rank 0      renames both, then writes the manifest the same way, then the empty DONE_STEP of llm.c
//
// Temporary names end with a random number of the run: what another run left, or writes, is never touched, and a rank
// that does not see the directory of rank 0 does not find the file. A crash at any instant leaves the checkpoint
// complete, or without a manifest; then it does not exist.
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

#include "data/durable_file.h"
#include "gpt2/initial_weights.h"
#include "trainer/checkpoint_format.h"
#include "trainer/checkpoint_llmc.h"
#include "trainer/directory.h"
#include "trainer/resume_llmc.h"
#include "zero/state_hash.h"

// first_failure, with the rank and the host whose file it is: a disk, or its connection, may be one host's.
static int any_failed(const Run *r, char *err) {
    char host[256] = "?";
    const size_t length = strlen(err);
    gethostname(host, sizeof host - 1);
    if (length > 0) snprintf(err + length, ERR_BYTES - length, " (rank %d on %s)", r->rank, host);
    return first_failure(r, err);
}

// ---------------------------------------------------------------------------------------------------------------------
// Writing.

typedef struct Writer {
    const Run *r;
    Checkpoint c;
    size_t array;  // that is being written
    ModelFile model;
    int fd;                                        // of the optimizer file
    char path[CHECKPOINT_FILES][CHECKPOINT_PATH];  // final names
    char temporary[CHECKPOINT_FILES][CHECKPOINT_PATH + 32];
    char err[ERR_BYTES];
} Writer;

// The flags that decide the bits of a run, but those that the manifest has under names of their own.
static char *describe_options(const Options *o) {
    static const char *const OTHERS[] = { "i", "j", "e", "b", "t", "d", "micro-batches", "x", "seed" };
    char *text = NULL, value[4200];
    size_t bytes = 0;
    const char *flag;
    FILE *f = open_memstream(&text, &bytes);
    if (f == NULL) return NULL;
    for (int i = 0, decides; (decides = options_decides(i, &flag)) >= 0; i++) {
        for (size_t k = 0; k < sizeof OTHERS / sizeof *OTHERS; k++) decides &= strcmp(flag, OTHERS[k]) != 0;
        if (!decides) continue;
        options_value_text(o, (size_t)i + 1, value, sizeof value);
        if (value[0] == '-') fprintf(f, "%s\n", value);
    }
    if (fclose(f) == 0) return text;
    free(text);
    return NULL;
}

static int has_master(const Run *r) {
    return r->options.settings.dtype == ZERO_BF16 && r->options.settings.master != ZERO_MASTER_NONE;
}

// Describes this run at a step.
static void describe(const Run *r, size_t step, Checkpoint *c) {
    memset(c, 0, sizeof *c);
    c->step = step;
    c->steps = r->steps;
    c->updates = zero_get_updates(r->z);
    c->seed = r->options.settings.seed;
    c->M = r->M;
    c->B = r->B;
    c->T = r->T;
    c->train = (CheckpointData){ r->content[INPUT_TRAIN], loader_info(r->train).shards, loader_num_samples(r->train) };
    c->loss_outliers = r->loss_outliers;
    c->norm_outliers = r->norm_outliers;
    c->options = describe_options(&r->options);
    const zero_optimizer *optimizer = zero_optimizer_get(r->options.settings.optimizer);
    if (c->options == NULL ||
        checkpoint_describe(c, &r->config, r->options.settings.dtype, has_master(r), optimizer) != 0)
        die("the host's memory is exhausted: no checkpoint can be described");
}

static void name_files(const Run *r, Writer *w, size_t step) {
    for (int f = 0; f < CHECKPOINT_FILES; f++) {
        checkpoint_path(w->path[f], r->options.output_dir, (enum checkpoint_file)f, step);
        snprintf(w->temporary[f], sizeof w->temporary[f], "%s.%016llx.tmp", w->path[f], (unsigned long long)r->nonce);
    }
}

static void create_files(Writer *w) {
    int fd;
    if (modelfile_create(w->temporary[CHECKPOINT_MODEL], &w->c.config, w->c.dtype == ZERO_BF16, w->err,
                         sizeof w->err) != 0)
        return;
    const char *name = w->temporary[CHECKPOINT_OPTIMIZER];
    if (durable_create(name, checkpoint_optimizer_bytes(&w->c), &fd, w->err, sizeof w->err) == 0)
        durable_close(fd, name, w->err, sizeof w->err);
}

static int write_values(void *ctx, size_t tensor, size_t begin, size_t count, const float *values) {
    Writer *w = ctx;
    const size_t logical = w->c.tensors[tensor].logical + begin;
    checkpoint_add_hash(&w->c, w->array, tensor, begin, count, values);
    if (w->array > 0)
        return durable_write(w->fd, w->temporary[CHECKPOINT_OPTIMIZER], values, count * sizeof *values,
                             w->c.arrays[w->array].offset + logical * sizeof *values, w->err, sizeof w->err);
    w->c.params_hash += zero_state_hash(ZERO_STATE_PARAMS, logical, count, values);
    if (!w->c.has_master) w->c.optimizer_hash += zero_state_hash(ZERO_STATE_MASTER, logical, count, values);
    return modelfile_write(&w->model, logical, count, values, w->err, sizeof w->err);
}

// Writes what this rank owns.
static void write_shard(Writer *w) {
    const char *name = w->temporary[CHECKPOINT_OPTIMIZER];
    if (modelfile_begin(&w->model, w->temporary[CHECKPOINT_MODEL], w->err, sizeof w->err) != 0) return;
    if (durable_open(name, &w->fd, w->err, sizeof w->err) != 0) {
        modelfile_close(&w->model);
        return;
    }
    for (w->array = 0; w->array < w->c.num_arrays && w->err[0] == '\0'; w->array++) {
        const int status = zero_visit(w->r->z, w->c.arrays[w->array].state, write_values, w);
        if (status != ZERO_OK && w->err[0] == '\0')
            snprintf(w->err, sizeof w->err, "%s: %s", name, zero_error(w->r->z));
    }
    char err[ERR_BYTES] = "";
    modelfile_finish(&w->model, err, sizeof err);
    durable_close(w->fd, name, err, sizeof err);
    if (w->err[0] == '\0') memcpy(w->err, err, sizeof err);
}

// Adds up n numbers of each rank, modulo 2^64, in place.
static void add_over_ranks(const Run *r, uint64_t *values, size_t n) {
    enum { PIECE = 512 };
    uint64_t *all = allocate((size_t)r->ranks * PIECE * sizeof *all);
    for (size_t at = 0; at < n; at += PIECE) {
        const size_t count = n - at < PIECE ? n - at : PIECE;
        gather(r, values + at, count * sizeof *all, all);
        memset(values + at, 0, count * sizeof *all);
        for (size_t i = 0; i < (size_t)r->ranks * count; i++) values[at + i % count] += all[i];
    }
    free(all);
}

static void add_hashes(Writer *w) {
    Checkpoint *c = &w->c;
    for (size_t a = 0; a < c->num_arrays; a++) {
        add_over_ranks(w->r, c->arrays[a].hashes, c->num_chunks);
    }
    uint64_t sums[2] = { c->params_hash, c->optimizer_hash };
    add_over_ranks(w->r, sums, 2);
    for (size_t a = 1; a < c->num_arrays; a++)
        for (size_t k = 0; k < c->num_chunks; k++) sums[1] += c->arrays[a].hashes[k];
    c->params_hash = sums[0];
    c->optimizer_hash = sums[1];
}

// Creates a whole file.
static int write_text(const char *temporary, const char *path, const char *text, char *err, size_t err_bytes) {
    int fd;
    if (durable_create(temporary, 0, &fd, err, err_bytes) != 0) return -1;
    if (durable_write(fd, temporary, text, strlen(text), 0, err, err_bytes) != 0) {
        close(fd);
        unlink(temporary);
        return -1;
    }
    if (durable_close(fd, temporary, err, err_bytes) != 0) return -1;
    return durable_publish(temporary, path, err, err_bytes);
}

// Makes the files visible, the manifest last. They replace those of a checkpoint of the same step, which was damaged or
// could not be read when the run was resumed. If that had the same bits it is complete at any instant; if not, a
// mixture does not have the hashes of a manifest, and the checkpoint that was resumed from is there, or a newer one.
static void publish(Writer *w) {
    char *text = checkpoint_manifest(&w->c);
    if (text == NULL) {
        snprintf(w->err, sizeof w->err, "%s: out of host memory", w->path[CHECKPOINT_MANIFEST]);
        return;
    }
    if (directory_check(w->err, sizeof w->err) != 0) {
        free(text);
        return;
    }
    unlink(w->path[CHECKPOINT_DONE]);
    for (int f = CHECKPOINT_MODEL; f <= CHECKPOINT_OPTIMIZER && w->err[0] == '\0'; f++)
        durable_publish(w->temporary[f], w->path[f], w->err, sizeof w->err);
    for (int f = CHECKPOINT_MANIFEST; f <= CHECKPOINT_DONE && w->err[0] == '\0'; f++)
        write_text(w->temporary[f], w->path[f], f == CHECKPOINT_MANIFEST ? text : "", w->err, sizeof w->err);
    free(text);
}

// Keeps the newest -nk checkpoints up to this one, which is good, and those that -nm protects. Models without optimizer
// state are not ours. Later steps were damaged when the run was resumed, and will be replaced.
static void delete_old_checkpoints(const Run *r, size_t step) {
    const size_t keep = (size_t)r->options.checkpoints_keep, major = (size_t)r->options.major_checkpoint_every;
    if (r->rank != 0 || keep == 0) return;
    char err[ERR_BYTES], manifest[CHECKPOINT_PATH];
    size_t *steps, kept = 0;
    const int n = checkpoint_steps(r->options.output_dir, &steps, err, sizeof err);
    if (n < 0) fprintf(stderr, "warning: %s\n", err);
    for (int i = 0; i < n; i++) {
        if (steps[i] > step || !checkpoint_is_ours(r->options.output_dir, steps[i])) continue;
        checkpoint_path(manifest, r->options.output_dir, CHECKPOINT_MANIFEST, steps[i]);
        const int complete = access(manifest, F_OK) == 0;
        if (complete && (kept++ < keep || (major > 0 && steps[i] % major == 0))) continue;
        if (checkpoint_delete(r->options.output_dir, steps[i], err, sizeof err) != 0)
            fprintf(stderr, "warning: %s\n", err);
        print0(r, "Deleting checkpoint at step %zu\n", steps[i]);
    }
    free(steps);
}

void write_checkpoint(Run *r, size_t step) {
    Writer *w = allocate(sizeof *w);
    w->r = r;
    w->fd = w->model.fd = -1;
    describe(r, step, &w->c);
    name_files(r, w, step);
    print0(r, "Writing checkpoint at step %zu\nWriting model to %s\nWriting state to %s\n", step,
           w->path[CHECKPOINT_MODEL], w->path[CHECKPOINT_OPTIMIZER]);
    if (r->rank == 0) create_files(w);
    if (any_failed(r, w->err)) die("%s", w->err);
    write_shard(w);
    if (any_failed(r, w->err)) die("%s", w->err);
    add_hashes(w);
    if (r->rank == 0) publish(w);
    if (any_failed(r, w->err)) die("%s", w->err);
    print0(r, "wrote %s, with optimizer state\n", w->path[CHECKPOINT_MODEL]);
    checkpoint_free(&w->c);
    free(w);
    delete_old_checkpoints(r, step);
}

// ---------------------------------------------------------------------------------------------------------------------
// Resuming.

void resume_micro_batches(Run *r) {
    Options *o = &r->options;
    char err[ERR_BYTES], text[32];
    if (!o->resume || options_given(o, "d") || options_given(o, "micro-batches")) return;
    size_t M = 0, *steps = NULL, *all = allocate((size_t)r->ranks * sizeof *all);
    const int n = r->rank == 0 ? checkpoint_steps(o->output_dir, &steps, err, sizeof err) : 0;
    for (int i = 0; i < n && M == 0; i++) {
        Checkpoint c;
        if (checkpoint_read(&c, o->output_dir, steps[i], err, sizeof err) == 0) M = c.M;
        checkpoint_free(&c);
    }
    free(steps);
    zero_bootstrap *boot = launch_bootstrap();
    if (zero_bootstrap_allgather(boot, &M, sizeof M, all) != ZERO_OK) die("%s", zero_bootstrap_error(boot));
    M = all[0];
    free(all);
    if (M == 0) return;
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
        die("%s: holds the state of %s, and this run uses %s: begin a run from its weights with -e and another -o",
            path, of_checkpoint->name, optimizer->name);
}

// Everything that would make the run another one ends it here.
static void check_same_run(const Run *r, const Checkpoint *c, const char *path) {
    check_same_model(r, &c->config, path);
    if (c->B != r->B || c->T != r->T || c->M != r->M)
        die("%s: its run had %zu micro-batches of -b %zu -t %zu in a step, this one has %zu of -b %zu -t %zu: use "
            "--micro-batches %zu -b %zu -t %zu",
            path, c->M, c->B, c->T, r->M, r->B, r->T, c->M, c->B, c->T);
    check_same_optimizer(r, c->optimizer, path);
    if (c->seed != r->options.settings.seed)
        die("%s: its run had --seed %llu, which gives another order of the data: use that", path,
            (unsigned long long)c->seed);
    if (c->train.content != r->content[INPUT_TRAIN] || c->train.samples != loader_num_samples(r->train))
        die("%s: its run had other training data (%zu files, %zu micro-batches): use its -i and -j, or begin a run "
            "from its weights with -e and another -o",
            path, c->train.files, c->train.samples);
    if (c->step > r->steps)
        die("%s: is of step %zu, behind the last one of this run: use -x %zu or more", path, c->step, c->step);
}

// Says which settings are not those of the checkpoint: the run goes on, with other bits.
static void report_changes(const Run *r, const Checkpoint *c) {
    char *mine = describe_options(&r->options);
    if (mine == NULL) die("the host's memory is exhausted");
    for (char *a = c->options, *b = mine, *next_a, *next_b; *a != '\0' && *b != '\0'; a = next_a, b = next_b) {
        next_a = strchr(a, '\n') + 1;
        next_b = strchr(b, '\n');
        next_b = next_b != NULL ? next_b + 1 : b + strlen(b);
        const int length_a = (int)(next_a - a - 1), length_b = (int)(next_b - b - 1);
        if (length_a != length_b || memcmp(a, b, (size_t)length_a) != 0)
            print0(r, "changed since the checkpoint: %.*s instead of %.*s\n", length_b, b, length_a, a);
    }
    free(mine);
    if (c->steps != r->steps)
        print0(r, "changed since the checkpoint: -x %zu instead of -x %zu; the learning rate may differ\n", r->steps,
               c->steps);
    if (c->dtype != r->options.settings.dtype)
        print0(r, "changed since the checkpoint: %s instead of %s\n", c->dtype == ZERO_BF16 ? "fp32" : "bf16",
               c->dtype == ZERO_BF16 ? "bf16" : "fp32");
    const int exact = c->has_master || c->dtype == ZERO_F32,
              keeps = has_master(r) || r->options.settings.dtype == ZERO_F32;
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
    for (size_t a = 0; a < c->num_arrays; a++) {
        if (a < 2) {
            if (reader.fd != -1) close(reader.fd);
            checkpoint_path(reader.path, r->options.output_dir, a == 0 ? CHECKPOINT_MODEL : CHECKPOINT_OPTIMIZER,
                            c->step);
            reader.fd = open(reader.path, O_RDONLY | O_CLOEXEC);
        }
        reader.array = a;
        if (a == 0 && c->has_master) continue;  // master weights set the parameters too
        const int status = zero_load(r->z, c->arrays[a].state, read_values, &reader);
        if (any_failed(r, reader.err)) die("%s", reader.err);
        must(r, status, reader.path);
    }
    close(reader.fd);
    const int same_kind = c->dtype == r->options.settings.dtype && c->has_master == has_master(r);
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
}

// Reads and verifies the checkpoint of a step. Returns 1 if it is complete, on all ranks; else err says why not.
static int verified(const Run *r, size_t step, Checkpoint *c, char *err) {
    const char *dir = r->options.output_dir;
    err[0] = '\0';
    const int status = checkpoint_read(c, dir, step, err, ERR_BYTES);
    if (any_failed(r, err)) return 0;
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
    return !any_failed(r, err);
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
            die("-o %s: none of its checkpoints is complete (reasons above): begin again without -y, "
                "in another directory, or with -e from one of its models",
                dir);
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
        print0(r, "resumed from step %zu of %s\n", c->step, dir);
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
    if (r->options.resume && r->rank == 0) trainlog_rewind(&r->log, r->first_step, err, sizeof err);
    agree(r, err);
}
