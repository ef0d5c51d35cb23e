// A checkpoint is written by one thread of each rank while the training goes on. The main thread copies what this rank
// owns into a snapshot, and is the only one that communicates; between steps it asks whether all threads have finished
// what they do:
//
//     CREATE     rank 0      creates model and optimizer file under temporary names, in full length
//     WRITE      all ranks   write what is in the snapshot, while a second thread adds up the hashes of the chunks;
//                            after the last array they flush the files to the disk
//     PUBLISH    rank 0      renames both, writes the manifest the same way, then the empty DONE_STEP of llm.c; deletes
//                            the checkpoints that -nk no longer keeps
//
// If there is no memory for a snapshot of all arrays it holds one at a time, and training waits until the last one is
// in it. All that wait go on communicating, so a slow file system never runs into the transport's time-out. Optimizer
// state that is offloaded to a disk never is in memory as a whole: there is no snapshot, the main thread writes what it
// reads, array by array, and training waits.
//
// Temporary names end with a random number of the run: what another run left, or writes, is never touched, and a rank
// that does not see the directory of rank 0 does not find the file. A crash at any instant leaves the checkpoint
// complete, or without a manifest; then it does not exist.
#include "trainer/checkpoint_write.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "data/durable_file.h"
#include "gpt2/tensors.h"
#include "trainer/checkpoint_format.h"
#include "trainer/directory.h"
#include "trainer/metrics.h"
#include "zero/clock.h"
#include "zero/host_memory.h"
#include "zero/state_hash.h"

enum phase { CREATE, WRITE, PUBLISH };

enum { PIECE = 1 << 17 };  // elements that are converted at a time

typedef struct Segment {
    size_t array, tensor, begin, count;
} Segment;

// Asked by the thread that waits for signals, which must not touch the writer: rank 0 replaces files.
static atomic_int publishing;

struct CheckpointWriter {
    const Run *r;
    Checkpoint c;
    enum phase phase;
    char path[CHECKPOINT_FILES][CHECKPOINT_PATH];  // final names
    char temporary[CHECKPOINT_FILES][CHECKPOINT_PATH + 32];

    // The snapshot (r->snapshot, or room for a piece) has these segments, one after the other, as bytes of the files.
    // Arrays before `next` are in it or on the disk.
    char *snapshot;
    size_t next, used;
    Segment *segments;
    size_t num_segments, room;

    pthread_t thread;
    int has_thread;
    size_t *deleted, num_deleted;  // steps, when it was published
    atomic_int busy;               // the thread's; what follows is only touched while the other side does not
    ModelFile model;
    int fd;               // of the optimizer file
    char err[ERR_BYTES];  // "" or why the thread failed
    double written_s;     // how long it wrote

    double since, waited;  // training has waited for `waited` seconds, and from `since` on
    double snapshot_s;     // of them for copying
};

// ---------------------------------------------------------------------------------------------------------------------
// What is written.

int has_master_weights(const zero_settings *s) { return s->dtype == ZERO_BF16 && s->master != ZERO_MASTER_NONE; }

size_t checkpoint_bytes_per_parameter(const zero_settings *s) {
    const size_t arrays = (size_t)has_master_weights(s) + zero_optimizer_get(s->optimizer)->num_states;
    return zero_dtype_bytes(s->dtype) + sizeof(float) * (arrays + (s->ema_decay > 0));
}

char *describe_options(const Options *o) {
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
    c->val_content = r->content[INPUT_VAL];
    c->loss_outliers = r->loss_outliers;
    c->norm_outliers = r->norm_outliers;
    c->nonfinite = (CheckpointNonfinite){ r->nonfinite_steps, r->first_nonfinite.step, r->first_nonfinite.loss,
                                          r->first_nonfinite.norm };
    c->options = describe_options(&r->options);
    c->train_files = loader_files(r->train);
    c->val_files = r->val != NULL ? loader_files(r->val) : NULL;
    const zero_settings *s = &r->options.settings;
    if (c->options == NULL || c->train_files == NULL || (r->val != NULL && c->val_files == NULL) ||
        checkpoint_describe(c, &r->config, s->dtype, has_master_weights(s), zero_optimizer_get(s->optimizer)) != 0 ||
        (s->ema_decay > 0 && checkpoint_add_average(c) != 0))
        die("the host's memory is exhausted: no checkpoint can be described");
}

static size_t array_bytes(const Checkpoint *c, size_t array) {
    return array == 0 ? zero_dtype_bytes(c->dtype) : sizeof(float);
}

// ---------------------------------------------------------------------------------------------------------------------
// The snapshot.

void prepare_checkpoints(Run *r) {
    const zero_settings *s = &r->options.settings;
    const zero_layout *l = zero_get_layout(r->z);
    const size_t own = l->numel_padded / l->ranks;  // of this rank
    if (r->options.output_dir == NULL) return;
    if (zero_uses_disk(s)) return;
    r->snapshot_per_parameter = checkpoint_bytes_per_parameter(s);
    const double left = (double)zero_host_memory_available("") / r->local_ranks;
    double mine = left - (double)(own * r->snapshot_per_parameter), *all = allocate((size_t)r->ranks * sizeof mine);
    gather(r, &mine, sizeof mine, all);
    for (int i = 0; i < r->ranks; i++) mine = all[i] < mine ? all[i] : mine;
    free(all);
    if (r->options.checkpoint_every == 0 || (mine < 0 && !r->options.force)) {
        r->snapshot_per_parameter = sizeof(float);
        if (mine < 0)
            print0(r,
                   "no memory for a snapshot of all arrays: training waits while checkpoints are written (a host "
                   "lacks %.2f GB for each of its ranks)\n",
                   -mine / 1e9);
    }
    r->snapshot_bytes = own * r->snapshot_per_parameter;
    r->snapshot = allocate(r->snapshot_bytes);
}

// Of a segment: the next one is a whole number of floats behind it.
static size_t snapshot_bytes(size_t count, size_t size) { return (count * size + 3) / 4 * 4; }

static void add_segment(struct CheckpointWriter *w, Segment segment) {
    if (w->num_segments == w->room) {
        w->room = 2 * w->room + 64;
        Segment *more = realloc(w->segments, w->room * sizeof *more);
        if (more == NULL) die("the host's memory is exhausted: no snapshot can be taken for a checkpoint");
        w->segments = more;
    }
    w->segments[w->num_segments++] = segment;
}

static int copy_values(void *ctx, size_t tensor, size_t begin, size_t count, const float *values) {
    struct CheckpointWriter *w = ctx;
    char *to = w->snapshot + w->used;
    const size_t size = array_bytes(&w->c, w->next);
    Segment *last = w->num_segments > 0 ? w->segments + w->num_segments - 1 : NULL;
    if (last != NULL && last->array == w->next && last->tensor == tensor && last->begin + last->count == begin)
        last->count += count;
    else
        add_segment(w, (Segment){ w->next, tensor, begin, count });
    for (size_t i = 0; i < count && size < sizeof *values; i++)  // bf16: the upper half
        memcpy(to + i * size, (const char *)(values + i) + size, size);
    if (size == sizeof *values) memcpy(to, values, count * size);
    w->used += snapshot_bytes(count, size);
    return 0;
}

// Without a snapshot: writes instead of copying. What fails is told to all ranks between the arrays.
static int open_files(struct CheckpointWriter *w);
static void write_segments(struct CheckpointWriter *w);
static int write_values(void *ctx, size_t tensor, size_t begin, size_t count, const float *values) {
    struct CheckpointWriter *w = ctx;
    for (size_t at = 0; at < count && w->err[0] == '\0' && open_files(w) == 0; at += PIECE) {
        copy_values(w, tensor, begin + at, count - at < PIECE ? count - at : PIECE, values + at);
        write_segments(w);
        w->used = w->num_segments = 0;
    }
    return 0;
}

// Copies as many arrays as fit, at least one.
static void take_snapshot(struct CheckpointWriter *w) {
    const int all = w->r->snapshot_per_parameter == checkpoint_bytes_per_parameter(&w->r->options.settings);
    const double begin = zero_clock();
    w->used = w->num_segments = 0;
    do {
        must(w->r,
             zero_visit(w->r->z, w->c.arrays[w->next].state, w->r->snapshot != NULL ? copy_values : write_values, w),
             "snapshot for a checkpoint");
        w->next++;
    } while (all && w->next < w->c.num_arrays);
    w->snapshot_s += zero_clock() - begin;
}

// ---------------------------------------------------------------------------------------------------------------------
// What the thread does.

static void create_files(struct CheckpointWriter *w) {
    int fd;
    if (modelfile_create(w->temporary[CHECKPOINT_MODEL], &w->c.config, w->c.dtype == ZERO_BF16, w->err,
                         sizeof w->err) != 0)
        return;
    const char *name = w->temporary[CHECKPOINT_OPTIMIZER];
    if (durable_create(name, checkpoint_optimizer_bytes(&w->c), &fd, w->err, sizeof w->err) == 0)
        durable_close(fd, name, w->err, sizeof w->err);
}

// bf16 in the snapshot is hashed a piece at a time, as fp32.
static void *hash_snapshot(void *ctx) {
    struct CheckpointWriter *w = ctx;
    Checkpoint *c = &w->c;
    const char *from = w->snapshot;
    float values[PIECE];
    for (const Segment *s = w->segments; s < w->segments + w->num_segments; s++) {
        const size_t size = array_bytes(c, s->array);
        for (size_t at = 0, n; at < s->count; at += n) {
            n = s->count - at < PIECE ? s->count - at : PIECE;
            const float *piece = size == sizeof *piece ? (const float *)(const void *)(from + at * size) : values;
            for (size_t i = 0; i < n && piece == values; i++) {
                values[i] = 0;
                memcpy((char *)(values + i) + size, from + (at + i) * size, size);
            }
            checkpoint_add_hash(c, s->array, s->tensor, s->begin + at, n, piece);
            if (s->array == 0 && !c->has_master)
                c->optimizer_hash += zero_state_hash(ZERO_STATE_MASTER, c->tensors[s->tensor].logical + s->begin + at,
                                                     n, piece);
        }
        from += snapshot_bytes(s->count, size);
    }
    return NULL;
}

static void write_bytes(struct CheckpointWriter *w) {
    const char *from = w->snapshot;
    for (const Segment *s = w->segments; s < w->segments + w->num_segments; s++) {
        const size_t size = array_bytes(&w->c, s->array), logical = w->c.tensors[s->tensor].logical + s->begin;
        const enum checkpoint_file file = s->array == 0 ? CHECKPOINT_MODEL : CHECKPOINT_OPTIMIZER;
        if (durable_write(s->array == 0 ? w->model.fd : w->fd, w->temporary[file], from, s->count * size,
                          w->c.arrays[s->array].offset + logical * size, w->err, sizeof w->err) != 0)
            return;
        from += snapshot_bytes(s->count, size);
    }
}

static int open_files(struct CheckpointWriter *w) {
    if (w->model.fd != -1) return 0;
    if (modelfile_begin(&w->model, w->temporary[CHECKPOINT_MODEL], w->err, sizeof w->err) != 0) return -1;
    return durable_open(w->temporary[CHECKPOINT_OPTIMIZER], &w->fd, w->err, sizeof w->err);
}

// While this thread writes, a second one hashes the same.
static void write_segments(struct CheckpointWriter *w) {
    pthread_t hashing;
    const int both = pthread_create(&hashing, NULL, hash_snapshot, w) == 0;
    if (!both) hash_snapshot(w);
    write_bytes(w);
    if (both) pthread_join(hashing, NULL);
}

static void write_snapshot(struct CheckpointWriter *w) {
    if (w->err[0] != '\0' || open_files(w) != 0) return;
    if (w->num_segments > 0) write_segments(w);
    if (w->err[0] != '\0' || w->next < w->c.num_arrays) return;
    if (modelfile_finish(&w->model, w->err, sizeof w->err) == 0)
        durable_close(w->fd, w->temporary[CHECKPOINT_OPTIMIZER], w->err, sizeof w->err);
}

// Keeps the newest -nk checkpoints up to this one, which is good, and those that -nm protects. Models without optimizer
// state are not ours. Later steps were damaged when the run was resumed, and will be replaced.
static void delete_old_checkpoints(struct CheckpointWriter *w) {
    const Run *r = w->r;
    const size_t step = w->c.step, keep = (size_t)r->options.checkpoints_keep,
                 major = (size_t)r->options.major_checkpoint_every;
    if (keep == 0) return;
    char err[ERR_BYTES], manifest[CHECKPOINT_PATH];
    size_t *steps = NULL, kept = 0;
    const int n = checkpoint_steps(r->options.output_dir, &steps, err, sizeof err);
    if (n < 0) fprintf(stderr, "warning: %s\n", err);
    for (int i = 0; i < n; i++) {
        if (steps[i] > step || !checkpoint_is_ours(r->options.output_dir, steps[i])) continue;
        checkpoint_path(manifest, r->options.output_dir, CHECKPOINT_MANIFEST, steps[i]);
        const int complete = access(manifest, F_OK) == 0;
        if (complete && (kept++ < keep || (major > 0 && steps[i] % major == 0))) continue;
        if (checkpoint_delete(r->options.output_dir, steps[i], err, sizeof err) != 0)
            fprintf(stderr, "warning: %s\n", err);
        else
            steps[w->num_deleted++] = steps[i];
    }
    w->deleted = steps;
}

// Makes the files visible, the manifest last. They replace those of a checkpoint of the same step, which was damaged or
// could not be read when the run was resumed. If that had the same bits it is complete at any instant; if not, a
// mixture does not have the hashes of a manifest, and the checkpoint that was resumed from is there, or a newer one.
static void publish(struct CheckpointWriter *w) {
    char *text = checkpoint_manifest(&w->c);
    if (text == NULL) {
        snprintf(w->err, sizeof w->err, "%s: out of host memory", w->path[CHECKPOINT_MANIFEST]);
        return;
    }
    // So that a run that resumes here finds main.log and metrics.jsonl complete up to this step.
    if (w->r->log.file != NULL) fsync(fileno(w->r->log.file));
    metrics_sync(w->r->metrics);
    if (directory_check(w->err, sizeof w->err) == 0) unlink(w->path[CHECKPOINT_DONE]);
    for (int f = CHECKPOINT_MODEL; f <= CHECKPOINT_OPTIMIZER && w->err[0] == '\0'; f++)
        durable_publish(w->temporary[f], w->path[f], w->err, sizeof w->err);
    for (int f = CHECKPOINT_MANIFEST; f <= CHECKPOINT_DONE && w->err[0] == '\0'; f++)
        durable_write_text(w->temporary[f], w->path[f], f == CHECKPOINT_MANIFEST ? text : "", w->err, sizeof w->err);
    free(text);
}

// A disk is full: tells how many checkpoints it has to hold.
static void explain_room(struct CheckpointWriter *w) {
    const size_t length = strlen(w->err), keep = (size_t)w->r->options.checkpoints_keep;
    if (strstr(w->err, DURABLE_MAKE_ROOM) == NULL) return;
    if (keep == 0)
        snprintf(w->err + length, sizeof w->err - length, "; without -nk all checkpoints are kept");
    else
        snprintf(w->err + length, sizeof w->err - length,
                 "; -nk %zu needs room for %zu checkpoints, as the newest is written before the oldest is deleted",
                 keep, keep + 1);
    snprintf(w->err + strlen(w->err), sizeof w->err - strlen(w->err),
             "; build/ckpt/ckpt prune DIR --keep K deletes old ones (make ckpt)");
}

static void *work(void *ctx) {
    struct CheckpointWriter *w = ctx;
    const double begin = zero_clock();
    if (w->phase == WRITE) write_snapshot(w);
    if (w->phase == CREATE && w->r->rank == 0) create_files(w);
    if (w->phase == PUBLISH && w->r->rank == 0) publish(w);
    explain_room(w);
    w->written_s += zero_clock() - begin;
    if (w->phase == PUBLISH && w->r->rank == 0 && w->err[0] == '\0') delete_old_checkpoints(w);
    atomic_store(&publishing, 0);
    atomic_store(&w->busy, 0);
    return NULL;
}

// ---------------------------------------------------------------------------------------------------------------------
// The main thread.

// Lets the thread work. If there can be no thread, works here.
static void start(struct CheckpointWriter *w, enum phase phase) {
    sigset_t all, before;  // signals are for the other threads
    w->phase = phase;
    atomic_store(&publishing, w->phase == PUBLISH && w->r->rank == 0);
    atomic_store(&w->busy, 1);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    w->has_thread = pthread_create(&w->thread, NULL, work, w) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!w->has_thread) work(w);
}

// Adds up n numbers of each rank, modulo 2^64, in place.
static void add_over_ranks(const Run *r, uint64_t *values, size_t n) {
    enum { AT_ONCE = 512 };
    uint64_t *all = allocate((size_t)r->ranks * AT_ONCE * sizeof *all);
    for (size_t at = 0; at < n; at += AT_ONCE) {
        const size_t count = n - at < AT_ONCE ? n - at : AT_ONCE;
        gather(r, values + at, count * sizeof *all, all);
        memset(values + at, 0, count * sizeof *all);
        for (size_t i = 0; i < (size_t)r->ranks * count; i++) values[at + i % count] += all[i];
    }
    free(all);
}

static void add_hashes(struct CheckpointWriter *w) {
    Checkpoint *c = &w->c;
    for (size_t a = 0; a < c->num_arrays; a++) add_over_ranks(w->r, c->arrays[a].hashes, c->num_chunks);
    add_over_ranks(w->r, &c->optimizer_hash, 1);
    for (size_t a = 0; a < c->num_arrays; a++)
        for (size_t k = 0; k < c->num_chunks; k++)
            *(a == 0 ? &c->params_hash : &c->optimizer_hash) += c->arrays[a].hashes[k];
}

// Returns the first rank whose thread is busy, or -1.
static int first_busy(const struct CheckpointWriter *w) {
    const Run *r = w->r;
    int mine = atomic_load(&w->busy), first = -1, *all = allocate((size_t)r->ranks * sizeof *all);
    gather(r, &mine, sizeof mine, all);
    for (int i = r->ranks - 1; i >= 0; i--)
        if (all[i]) first = i;
    free(all);
    return first;
}

static void end_writing(Run *r) {
    struct CheckpointWriter *w = r->writer;
    const double bytes = (double)(checkpoint_optimizer_bytes(&w->c) + LLMC_HEADER_BYTES) +
                         (double)gpt2_num_parameters(&w->c.config) * (double)array_bytes(&w->c, 0);
    double slowest = 0, *all = allocate((size_t)r->ranks * sizeof *all);
    gather(r, &w->written_s, sizeof *all, all);
    for (int i = 0; i < r->ranks; i++) slowest = all[i] > slowest ? all[i] : slowest;
    free(all);
    print0(r, "wrote %s, with optimizer state: %.3f GB, %.3f GB/s; training waited %.2f s, %.2f s for the snapshot\n",
           w->path[CHECKPOINT_MODEL], bytes / 1e9, bytes / 1e9 / slowest, w->waited + zero_clock() - w->since,
           w->snapshot_s);
    for (size_t i = 0; i < w->num_deleted; i++) print0(r, "Deleting checkpoint at step %zu\n", w->deleted[i]);
    checkpoint_free(&w->c);
    free(w->deleted);
    free(w->segments);
    if (w->snapshot != r->snapshot) free(w->snapshot);
    free(w);
    r->writer = NULL;
}

// Begins the next phase if all ranks have finished this one. Returns the first rank that has not, or -1.
static int advance(Run *r) {
    struct CheckpointWriter *w = r->writer;
    const int busy = first_busy(w);
    if (busy >= 0) return busy;
    if (w->has_thread) pthread_join(w->thread, NULL);
    if (any_file_failed(r, w->err)) die("%s", w->err);
    if (w->phase == PUBLISH) {
        end_writing(r);
    } else if (w->phase == CREATE) {
        start(w, WRITE);
    } else if (w->next < w->c.num_arrays) {
        take_snapshot(w);
        start(w, WRITE);
    } else {
        add_hashes(w);
        start(w, PUBLISH);
    }
    return -1;
}

// Advances until all is published, or, with to_snapshot, until the last array is in the snapshot.
static void wait_for_threads(Run *r, int to_snapshot) {
    const double begin = zero_clock();
    double told = begin;
    long ms = 1;
    while (r->writer != NULL && !(to_snapshot && r->writer->next == r->writer->c.num_arrays)) {
        const int busy = advance(r);
        if (busy < 0) continue;
        const struct timespec pause = { 0, ms * 1000000 };
        nanosleep(&pause, NULL);
        ms = ms < 30 ? 2 * ms : ms;
        if (zero_clock() - told < r->options.timeout) continue;
        told = zero_clock();
        print0(r, "rank %d is still writing the checkpoint of step %zu, since %.0f s: all wait for it\n", busy,
               r->writer->c.step, told - begin);
    }
}

// Around what makes training wait.
static void enter(Run *r) {
    if (r->writer == NULL) return;
    run_phase(r, "writing a checkpoint", r->writer->c.step);
    r->writer->since = zero_clock();
}

static void leave(Run *r) {
    if (r->writer != NULL) r->writer->waited += zero_clock() - r->writer->since;
}

void begin_checkpoint(Run *r, size_t step) {
    finish_checkpoint(r);
    struct CheckpointWriter *w = r->writer = allocate(sizeof *w);
    w->r = r;
    w->fd = w->model.fd = -1;
    w->snapshot = r->snapshot != NULL ? r->snapshot : allocate(PIECE * sizeof(float));
    describe(r, step, &w->c);
    enter(r);
    for (int f = 0; f < CHECKPOINT_FILES; f++) {
        checkpoint_path(w->path[f], r->options.output_dir, (enum checkpoint_file)f, step);
        snprintf(w->temporary[f], sizeof w->temporary[f], "%s.%016llx.tmp", w->path[f], (unsigned long long)r->nonce);
    }
    print0(r, "Writing checkpoint at step %zu\nWriting model to %s\nWriting state to %s\n", step,
           w->path[CHECKPOINT_MODEL], w->path[CHECKPOINT_OPTIMIZER]);
    start(w, CREATE);
    if (r->snapshot != NULL) take_snapshot(w);  // else the files must be there first
    wait_for_threads(r, 1);
    leave(r);
}

void continue_checkpoint(Run *r) {
    enter(r);
    if (r->writer != NULL) advance(r);
    leave(r);
}

void finish_checkpoint(Run *r) {
    const char *phase = r->phase;
    const size_t step = r->phase_step;
    if (r->writer == NULL) return;
    enter(r);
    wait_for_threads(r, 0);
    run_phase(r, phase, step);
}

int checkpoint_is_settled(void) {
    const struct timespec pause = { 0, 10000000 };
    for (int i = 0; i < 500; i++) {
        if (!atomic_load(&publishing)) return 1;
        nanosleep(&pause, NULL);
    }
    return 0;
}

int any_file_failed(const Run *r, char *err) {
    char host[256] = "?";
    const size_t length = strlen(err);
    gethostname(host, sizeof host - 1);
    if (length > 0) snprintf(err + length, ERR_BYTES - length, " (rank %d on %s)", r->rank, host);
    return first_failure(r, err);
}
