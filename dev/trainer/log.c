// The lines are llm.c's, character by character where tools read them: its scripts cut the loss out of the step line by
// columns and split main.log at spaces and colons. Where a number is unknown (the peak of a CPU, or of a GPU that is
// not in the table) the line has "n/a" instead.
//
// The z-score shows how unusual a step is compared with the 128 before it; training can skip the updates of outliers
// (-sl, -sg). It is computed from the window itself, in double, each time: 128 additions cost nothing beside a step,
// and running sums would lose the variance of a slowly changing loss to cancellation.
//
// Learning rates are a function of the step alone, so a resumed run has the rate that it would have had.
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "data/llmc_file.h"
#include "trainer/log.h"

#define WSD_DECAY_FROM 0.8  // of the run

// How much of a warm-up of W steps is behind us.
static double warmed_up(const Schedule *s, double step, double W) {
    return s->warmup_shape == WARMUP_LINEAR ? step / W : log(step + 1) / log(fmax(W, 2));
}

// deepspeed/runtime/lr_schedules.py. A scheduler is stepped after each step of the optimizer, from iteration -1, which
// has the rate of iteration 0 (WarmupCosineLR: 0).
static double deepspeed_lr(const Schedule *s, size_t step) {
    const double i = step > 0 ? (double)step - 1 : 0, W = fmax((double)s->warmup, 2), from = s->warmup_from;
    const double end = s->decay_to >= 0 ? (double)s->decay_to : (double)s->steps, length = fmax(end - W, 1);
    if (s->kind == SCHEDULE_WARMUP_COSINE_LR && step == 0) return 0;
    if (i < W) return from + (s->lr - from) * warmed_up(s, i, W);
    if (s->kind == SCHEDULE_WARMUP_DECAY_LR) return from + (s->lr - from) * fmax((end - i) / length, 0);
    if (s->kind == SCHEDULE_WARMUP_LR) return s->lr;
    const double left = 0.5 * (1 + cos(M_PI * fmin((i - W + 1) / length, 1)));
    return s->lr * (s->final_fraction + (1 - s->final_fraction) * left);
}

double schedule_lr(const Schedule *s, size_t step) {
    if (s->kind >= SCHEDULE_WARMUP_LR) return deepspeed_lr(s, step);
    if (step < s->warmup && s->warmup_shape != WARMUP_LLMC)
        return s->warmup_from + (s->lr - s->warmup_from) * warmed_up(s, (double)step, (double)s->warmup);
    if (step < s->warmup) {
        return s->lr * (double)(step + 1) / (double)s->warmup;
    }
    double start = s->kind == SCHEDULE_WSD ? WSD_DECAY_FROM * (double)s->steps : (double)s->warmup;
    if (s->decay_from >= 0) start = (double)s->decay_from;
    double length = (s->decay_to >= 0 ? (double)s->decay_to : (double)s->steps) - start;
    double r = length > 0 ? ((double)step - start) / length : 0;  // how much of the decay is behind us
    r = r < 0 ? 0 : r > 1 ? 1 : r;
    double left = 1;
    switch (s->kind) {
    case SCHEDULE_COSINE: left = 0.5 * (1 + cos(M_PI * r)); break;
    case SCHEDULE_LINEAR: left = 1 - r; break;
    case SCHEDULE_WSD: left = 1 - sqrt(r); break;
    }
    double lowest = s->lr * s->final_fraction;
    return lowest + left * (s->lr - lowest);
}

double outlier_z(Outliers *o, double x) {
    o->values[o->seen % OUTLIER_WINDOW] = x;
    o->seen++;
    if (o->seen <= OUTLIER_WINDOW) {
        return NAN;
    }
    double mean = 0;
    int constant = 1;  // then the variance is 0 only up to rounding
    for (size_t i = 0; i < OUTLIER_WINDOW; i++) {
        constant &= o->values[i] == x;
        mean += o->values[i] / OUTLIER_WINDOW;
    }
    double variance = 0;
    for (size_t i = 0; i < OUTLIER_WINDOW; i++) {
        variance += (o->values[i] - mean) * (o->values[i] - mean) / OUTLIER_WINDOW;
    }
    return variance > 0 && !constant ? (x - mean) / sqrt(variance) : 0;
}

// NVIDIA's data sheets, dense (half of the figure "with sparsity"), bf16 with fp32 accumulation. The first match
// counts, so a longer name stands before a shorter one that is part of it.
static const struct {
    const char *name;
    double tflops;
} PEAKS[] = {
    { "H100 PCIe", 756 },
    { "H100 NVL", 835 },
    { "H100", 989 },
    { "H200 NVL", 835 },
    { "H200", 989 },
    { "H800 PCIe", 756 },
    { "H800", 989 },
    { "GH200", 989 },
    { "H20", 148 },
    { "B200", 2250 },
    { "GB200", 2500 },
    { "A100", 312 },
    { "A800", 312 },
    { "A30", 165 },
    { "A40", 149.7 },
    { "A10G", 70 },
    { "A10", 125 },
    { "L40S", 362 },
    { "L40", 181 },
    { "L4", 121 },
    { "RTX A6000", 154.8 },
    { "RTX 6000 Ada", 364.2 },
    { "RTX 5090", 209.5 },
    { "RTX 4090", 165.2 },
    { "RTX 4080 SUPER", 104.4 },
    { "RTX 4080", 97.5 },
    { "RTX 3090 Ti", 80 },
    { "RTX 3090", 71 },
};

static int is_word(char c) { return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z'); }

// Is word in text as a whole word? "A40" is not in "RTX A4000".
static int has_word(const char *text, const char *word) {
    size_t length = strlen(word);
    for (const char *at = strstr(text, word); at != NULL; at = strstr(at + 1, word)) {
        if ((at == text || !is_word(at[-1])) && !is_word(at[length])) {
            return 1;
        }
    }
    return 0;
}

double gpu_peak_flops(const char *device_name) {
    // Same name as a desktop card, another chip; and a MIG slice is a part of its GPU.
    if (has_word(device_name, "Laptop") || has_word(device_name, "Max-Q") || has_word(device_name, "MIG")) {
        return 0;
    }
    for (size_t i = 0; i < sizeof PEAKS / sizeof PEAKS[0]; i++) {
        if (has_word(device_name, PEAKS[i].name)) {
            return PEAKS[i].tflops * 1e12;
        }
    }
    return 0;
}

int step_line(char *out, size_t bytes, const StepLine *s) {
    char mfu[32] = "n/a MFU";
    if (s->mfu >= 0) {
        snprintf(mfu, sizeof mfu, "%.1f%% bf16 MFU", 100 * s->mfu);
    }
    return snprintf(
        out, bytes, "step %4zu/%zu | loss %7.6f (%+.2fz)| norm %6.4f (%+.2fz)| lr %.2e | %.2f ms | %s | %.0f tok/s",
        s->step + 1, s->steps, s->loss, s->loss_z, s->norm, s->norm_z, s->lr, s->ms, mfu, s->tokens_per_second);
}

int trainlog_open(TrainLog *l, const char *dir, const char *name, int append, char *err, size_t err_bytes) {
    memset(l, 0, sizeof *l);
    if (dir == NULL) {
        return 0;
    }
    int n = snprintf(l->path, sizeof l->path, "%s/%s", dir, name);
    if (n < 0 || (size_t)n >= sizeof l->path) {
        snprintf(err, err_bytes, "-o %.200s...: the name is too long: choose a shorter output directory", dir);
        return -1;
    }
    struct stat st;
    if (stat(l->path, &st) == 0 && !S_ISREG(st.st_mode)) {  // a pipe without a reader would wait for ever
        snprintf(err, err_bytes, "%s: is %s: remove it, or choose another output directory with -o", l->path,
                 llmc_kind_of_file(st.st_mode));
        return -1;
    }
    l->file = fopen(l->path, append ? "a+" : "w");
    if (l->file == NULL) {
        snprintf(err, err_bytes, "%s: cannot be written: %s: choose another output directory with -o", l->path,
                 strerror(errno));
        return -1;
    }
    return 0;
}

int trainlog_is_replaced(const char *line, size_t step) {
    size_t s;
    return sscanf(line, "s:%zu ", &s) == 1 && s >= step;
}

int trainlog_rewind(TrainLog *l, int (*is_replaced)(const char *line, size_t step), size_t step, char *err,
                    size_t err_bytes) {
    char *line = NULL;
    size_t room = 0;
    long keep = 0;  // bytes
    if (l->file == NULL) {
        return 0;
    }
    rewind(l->file);
    for (ssize_t n; (n = getline(&line, &room, l->file)) > 0 && line[n - 1] == '\n' && !is_replaced(line, step);) {
        keep = ftell(l->file);
    }
    free(line);
    if (ftruncate(fileno(l->file), keep) == 0 && fseek(l->file, keep, SEEK_SET) == 0) {
        return 0;
    }
    snprintf(err, err_bytes, "%s: its lines from step %zu on cannot be removed: %s", l->path, step, strerror(errno));
    return -1;
}

int trainlog_write(TrainLog *l, const char *line, size_t bytes, char *err, size_t err_bytes) {
    if (l->file == NULL) {
        return 0;
    }
    const int fd = fileno(l->file);
    const off_t end = lseek(fd, 0, SEEK_END);
    size_t written = 0;
    for (ssize_t n; written < bytes && (n = write(fd, line + written, bytes - written)) > 0;) written += (size_t)n;
    const int code = errno;
    if (written == bytes) {
        l->failing = 0;
        return 0;
    }
    if (written > 0 && ftruncate(fd, end) != 0) l->failing = 0;  // half a line stays: say it again
    err[0] = '\0';
    if (!l->failing)
        snprintf(err, err_bytes,
                 "%s: cannot be written: %s: lines are left out until it can: make room; the training goes on", l->path,
                 strerror(code));
    l->failing = 1;
    return -1;
}

static int write_line(TrainLog *l, char *err, size_t err_bytes, const char *format, ...) {
    va_list args;
    char line[256];
    va_start(args, format);
    const int bytes = vsnprintf(line, sizeof line, format, args);
    va_end(args);
    return trainlog_write(l, line, (size_t)bytes, err, err_bytes);
}

int trainlog_val(TrainLog *l, size_t step, double loss, char *err, size_t err_bytes) {
    return write_line(l, err, err_bytes, "s:%zu tel:%.4f\n", step, loss);
}

int trainlog_eval(TrainLog *l, size_t step, double accuracy, char *err, size_t err_bytes) {
    return write_line(l, err, err_bytes, "s:%zu eval:%.4f\n", step, accuracy);
}

int trainlog_train(TrainLog *l, size_t step, double loss, double lr, double norm, char *err, size_t err_bytes) {
    return write_line(l, err, err_bytes, "s:%zu trl:%.4f lr:%.6f norm:%.2f\n", step, loss, lr, norm);
}

void trainlog_close(TrainLog *l) {
    if (l->file != NULL) {
        fclose(l->file);
        l->file = NULL;
    }
}
