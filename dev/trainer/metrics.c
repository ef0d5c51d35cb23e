#include "trainer/metrics.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "trainer/json.h"
#include "trainer/reports.h"

static const char *const PHASES[METRICS_END] = { "data", "forward", "backward", "norm", "losses", "update" };

typedef struct {
    cudaEvent_t event;
    double waited;  // until here
    enum metrics_phase phase;
} Mark;

struct Metrics {
    cudaStream_t stream;
    const zero_comm *comms[3];  // NULL: fewer
    Mark *marks;                // of this step
    size_t num_marks, room, read;
    int failed;                                         // a mark of this step
    size_t taken;                                       // steps of the run until now
    double seconds[METRICS_END], waiting[METRICS_END];  // of this step
    TrainLog file;                                      // rank 0
    const char *memory[ZERO_MEM_CATEGORIES];            // names
    FILE *record;                                       // that is being written
    char *text;
    size_t text_bytes;
};

// ---------------------------------------------------------------------------------------------------------------------
// Time.

int metrics_create(Run *r, char *err, size_t err_bytes) {
    const Options *o = &r->options;
    if (r->nonce == 0 || o->generate) return 0;
    Metrics *m = allocate(sizeof *m);
    m->stream = r->stream;
    m->comms[0] = r->comm;
    m->comms[1] = r->shard_comm != r->comm ? r->shard_comm : NULL;
    m->comms[2] = r->replica_comm;
    m->room = 3 * r->G + 4;
    m->marks = allocate(m->room * sizeof *m->marks);
    for (size_t i = 0; i < m->room; i++)
        if (cudaEventCreate(&m->marks[i].event) != cudaSuccess) m->room = i;
    for (int k = 0; k < ZERO_MEM_CATEGORIES; k++) m->memory[k] = zero_memory_category_name(k);
    zero_row rows[MAX_ROWS];
    const size_t n = zero_report_memory(r->z, rows, MAX_ROWS);
    for (size_t i = 0; i < n; i++) m->memory[rows[i].kind] = rows[i].what;
    r->metrics = m;
    return r->rank == 0 ? trainlog_open(&m->file, o->output_dir, "metrics.jsonl", o->resume != 0, err, err_bytes) : 0;
}

void metrics_destroy(Metrics *m) {
    if (m == NULL) return;
    for (size_t i = 0; i < m->room; i++) (void)cudaEventDestroy(m->marks[i].event);
    trainlog_close(&m->file);
    free(m->marks);
    free(m);
}

void metrics_begin_step(Metrics *m) {
    if (m == NULL) return;
    m->num_marks = m->read = 0;
    m->failed = 0;
    memset(m->seconds, 0, sizeof m->seconds);
    memset(m->waiting, 0, sizeof m->waiting);
}

void metrics_enter(Metrics *m, enum metrics_phase phase) {
    if (m == NULL || m->failed) return;
    m->failed = m->num_marks == m->room || cudaEventRecord(m->marks[m->num_marks].event, m->stream) != cudaSuccess;
    if (m->failed) return;
    Mark *mark = &m->marks[m->num_marks++];
    mark->phase = phase;
    mark->waited = 0;
    for (int i = 0; i < 3; i++) mark->waited += m->comms[i] != NULL ? zero_comm_waited(m->comms[i]) : 0;
}

// Adds up the phases that come before `until`, and those of this step that have ended before it.
static void read_marks(Metrics *m, enum metrics_phase until) {
    for (; !m->failed && m->read + 1 < m->num_marks && m->marks[m->read].phase < until; m->read++) {
        const Mark *from = &m->marks[m->read], *to = from + 1;
        float ms = 0;
        m->failed = cudaEventSynchronize(to->event) != cudaSuccess ||  // it has happened, or is about to
                    cudaEventElapsedTime(&ms, from->event, to->event) != cudaSuccess;
        m->seconds[from->phase] += ms / 1000;
        m->waiting[from->phase] += to->waited - from->waited;
    }
}

double metrics_computing(Metrics *m) {
    if (m == NULL) return 0;
    read_marks(m, METRICS_NORM);
    double seconds = 0;
    for (int p = METRICS_DATA; p <= METRICS_BACKWARD; p++) seconds += m->seconds[p] - m->waiting[p];
    return m->failed ? NAN : seconds;
}

// ---------------------------------------------------------------------------------------------------------------------
// Records.

FILE *metrics_begin(Metrics *m, const char *kind) {
    if (m == NULL || m->file.file == NULL) return NULL;
    m->record = open_memstream(&m->text, &m->text_bytes);
    if (m->record != NULL) fprintf(m->record, "{\"kind\":\"%s\",\"step\":%zu", kind, m->taken);
    return m->record;
}

void metrics_end(Metrics *m, char *err, size_t err_bytes) {
    err[0] = '\0';
    if (m == NULL || m->record == NULL) return;
    fprintf(m->record, "}\n");
    if (fclose(m->record) == 0) trainlog_write(&m->file, m->text, m->text_bytes, err, err_bytes);
    free(m->text);
    m->record = NULL;
    m->text = NULL;
}

// A step's own record stays if it was taken before; what is looked at between steps is looked at again.
static int is_replaced(const char *line, size_t step) {
    char kind[16];
    size_t s;
    return sscanf(line, "{\"kind\":\"%15[a-z]\",\"step\":%zu", kind, &s) == 2 &&
           (s > step || (s == step && strcmp(kind, "step") != 0));
}

int metrics_rewind(Metrics *m, size_t step, char *err, size_t err_bytes) {
    return m != NULL ? trainlog_rewind(&m->file, is_replaced, step, err, err_bytes) : 0;
}

void metrics_sync(Metrics *m) {
    if (m != NULL && m->file.file != NULL) fsync(fileno(m->file.file));
}

static void field(FILE *out, const char *name, double value) {
    fprintf(out, ",\"%s\":", name);
    json_number(out, value);
}

static void text_field(FILE *out, const char *name, const char *text) {
    fprintf(out, ",\"%s\":", name);
    json_string(out, text);
}

static void time_field(FILE *out) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    fprintf(out, ",\"time\":%lld.%03ld", (long long)t.tv_sec, t.tv_nsec / 1000000);
}

// {"name":value,...} of those that are there
static void numbers(FILE *out, const char *name, const char *const *names, const double *values, size_t n) {
    fprintf(out, ",\"%s\":{", name);
    for (size_t i = 0; i < n; i++) {
        fprintf(out, "%s\"%s\":", i > 0 ? "," : "", names[i]);
        json_number(out, values[i]);
    }
    fputc('}', out);
}

static void bytes_field(FILE *out, const Run *r, int updated) {
    const char *comma = "";
    fprintf(out, ",\"received\":");
    if (!updated) {  // the engine counts from one update to the next
        fprintf(out, "null");
    } else {
        for (size_t i = 0; i < r->wire_rows; i++)
            fprintf(out, "%s\"%s\":%llu", i > 0 ? "," : "{", r->wire[i].what, (unsigned long long)r->wire[i].measured);
        fprintf(out, r->wire_rows > 0 ? "}" : "{}");
    }
    fprintf(out, ",\"memory\":{");
    for (int k = 0; k < ZERO_MEM_CATEGORIES; k++) {
        if (r->memory.peak[k] == 0) continue;
        fprintf(out, "%s\"%s\":%zu", comma, r->metrics->memory[k], r->memory.peak[k]);
        comma = ",";
    }
    fputc('}', out);
}

// Which rank computed longest.
static void slowest_field(FILE *out, const Run *r) {
    const double *of_rank = r->all_losses + r->G + TOLD_COMPUTING;
    const size_t stride = r->G + TOLD_MORE;
    double sum = 0;
    int slowest = 0;
    for (int i = 0; i < r->ranks; i++) {
        sum += of_rank[(size_t)i * stride];
        if (of_rank[(size_t)i * stride] > of_rank[(size_t)slowest * stride]) slowest = i;
    }
    fprintf(out, ",\"slowest_rank\":%d", slowest);
    field(out, "slowest_computing", of_rank[(size_t)slowest * stride]);
    field(out, "mean_computing", sum / r->ranks);
}

void metrics_step(Run *r, const StepLine *s, char *err, size_t err_bytes) {
    Metrics *m = r->metrics;
    err[0] = '\0';
    if (m == NULL) return;
    m->taken = s->step + 1;
    FILE *out = metrics_begin(m, "step");
    if (out == NULL) return;
    read_marks(m, METRICS_END);
    for (int p = 0; p < METRICS_END && m->failed; p++) m->seconds[p] = m->waiting[p] = NAN;
    time_field(out);
    field(out, "loss", s->loss);
    field(out, "loss_z", s->loss_z);
    field(out, "norm", s->norm);
    field(out, "norm_z", s->norm_z);
    field(out, "lr", s->lr);
    fprintf(out, ",\"skipped\":%s", s->skipped ? "true" : "false");
    field(out, "step_seconds", s->ms / 1000);
    field(out, "tokens_per_second", (double)(r->B * r->T * r->M) / s->ms * 1000);
    field(out, "mfu", s->mfu >= 0 ? s->mfu : NAN);
    numbers(out, "seconds", PHASES, m->seconds, METRICS_END);
    numbers(out, "waiting", PHASES, m->waiting, METRICS_END);
    slowest_field(out, r);
    bytes_field(out, r, !s->skipped);
    metrics_end(m, err, err_bytes);
}

void metrics_value(Run *r, const char *kind, const char *name, double value, char *err, size_t err_bytes) {
    FILE *out = metrics_begin(r->metrics, kind);
    err[0] = '\0';
    if (out == NULL) return;
    time_field(out);
    field(out, name, value);
    metrics_end(r->metrics, err, err_bytes);
}

// What the run would need in each stage, as --plan json prints it; nothing if there is no plan.
static void plan_field(FILE *out, const Run *r) {
    PlanInput in;
    Plan plan;
    char err[ERR_BYTES], *text = NULL;
    size_t bytes = 0;
    describe_run(r, &in);
    FILE *f = plan_make(&plan, &in, err, sizeof err) == 0 ? open_memstream(&text, &bytes) : NULL;
    if (f != NULL) {
        plan_print_json(f, &plan, &in);
        fclose(f);
        for (size_t i = 0; i < bytes; i++)
            if (text[i] == '\n') text[i] = ' ';
        fprintf(out, ",\"plan\":%s", text);
        free(text);
    }
    free_description(&in);
}

void metrics_run(Run *r, char *err, size_t err_bytes) {
    const Options *o = &r->options;
    const zero_settings *s = &o->settings;
    const zero_layout *l = zero_get_layout(r->z);
    err[0] = '\0';
    if (r->metrics == NULL) return;
    r->metrics->taken = r->first_step;
    FILE *out = metrics_begin(r->metrics, "run");
    if (out == NULL) return;
    fprintf(out, ",\"version\":1");
    time_field(out);
    text_field(out, "model", o->model);
    text_field(out, "device", r->device.name);
    text_field(out, "precision", s->dtype == ZERO_BF16 ? "bf16" : o->tf32 ? "tf32" : "fp32");
    text_field(out, "transport", zero_comm_name(r->comm));
    fprintf(out, ",\"stage\":%d,\"ranks\":%d,\"ranks_here\":%d,\"shard_group\":%d", s->stage, r->ranks, r->local_ranks,
            r->mesh.shard);
    fprintf(out, ",\"parameters\":%zu,\"parameters_padded\":%zu", l->numel, l->numel_padded);
    fprintf(out, ",\"B\":%zu,\"T\":%zu,\"G\":%zu,\"micro_batches\":%zu,\"tokens_per_step\":%zu,\"steps\":%zu", r->B,
            r->T, r->G, r->M, r->B * r->T * r->M, r->steps);
    plan_field(out, r);
    metrics_end(r->metrics, err, err_bytes);
}
