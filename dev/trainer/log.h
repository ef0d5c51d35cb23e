// What a training run computes and prints about itself: the learning rate of a step, how unusual its loss and norm are,
// how well the GPU is used, the step line and the lines of main.log. See log.c.
//
// Nothing here communicates, prints or exits. Only rank 0 opens a log; on the other ranks, and without -o, the
// functions of a log do nothing.
#ifndef DEV_TRAINLOG_H
#define DEV_TRAINLOG_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

// Learning rate. Steps count from 0. The last three kinds are DeepSpeed's schedulers of these names, which begin their
// warm-up with two steps at warmup_from, and whose decay ends at warmup_from (WARMUP_DECAY_LR) or lr * final_fraction
// (WARMUP_COSINE_LR).
enum {
    SCHEDULE_COSINE,
    SCHEDULE_LINEAR,
    SCHEDULE_CONSTANT,
    SCHEDULE_WSD,
    SCHEDULE_WARMUP_LR,
    SCHEDULE_WARMUP_DECAY_LR,
    SCHEDULE_WARMUP_COSINE_LR
};

// The rate in step s of W of warm-up. LLMC: lr (s + 1) / W. LINEAR: from warmup_from to lr, which step W has. LOG: the
// same, by log(s + 1) / log(W).
enum { WARMUP_LLMC, WARMUP_LINEAR, WARMUP_LOG };

typedef struct {
    int kind;                      // SCHEDULE_*
    int warmup_shape;              // WARMUP_*; DeepSpeed's kinds have LOG for LLMC
    double lr;                     // the peak
    double warmup_from;            // a rate
    size_t warmup;                 // steps
    size_t steps;                  // of the whole run
    int64_t decay_from, decay_to;  // steps; -1: after warm-up (WSD: after 80 % of the run), the last one
    double final_fraction;         // the decay ends at lr * final_fraction
} Schedule;

double schedule_lr(const Schedule *s, size_t step);

// A window of the last values, to find outliers.
#define OUTLIER_WINDOW 128

typedef struct {
    double values[OUTLIER_WINDOW];
    size_t seen;
} Outliers;  // starts as zeros

// The z-score of x in the window that ends with x: (x - mean) / standard deviation. NaN until OUTLIER_WINDOW values
// came before, 0 if all are equal. Give finite values only: a NaN would stay for 128 steps.
double outlier_z(Outliers *o, double x);

// Dense bf16 FLOP/s of an NVIDIA GPU by its name (cudaDeviceProp.name), 0 if unknown.
double gpu_peak_flops(const char *device_name);

typedef struct {
    size_t step, steps;  // step is printed from 1
    double loss, loss_z, norm, norm_z, lr, ms;
    int skipped;  // the update was
    double mfu;   // fraction of the peak; negative: not known
    double tokens_per_second;
} StepLine;

// "step    1/10 | loss 5.270009 (+nanz)| norm ..." without a newline. Returns what snprintf returns.
int step_line(char *out, size_t bytes, const StepLine *s);

// A file of lines in the output directory: main.log or metrics.jsonl.
typedef struct {
    FILE *file;   // NULL: no log
    int failing;  // the last line could not be written
    char path[4096];
} TrainLog;

// Begins dir/name, an empty file unless append is 1. dir NULL: no log. 0, or -1 and a message in err.
int trainlog_open(TrainLog *l, const char *dir, const char *name, int append, char *err, size_t err_bytes);
// Removes the lines from the first one that is_replaced, and a last line that is not complete: the run continues with
// that step.
int trainlog_rewind(TrainLog *l, int (*is_replaced)(const char *line, size_t step), size_t step, char *err,
                    size_t err_bytes);
int trainlog_is_replaced(const char *line, size_t step);  // of main.log
// Appends a line. 0, or -1 and a message in err: a line that cannot be written, on a full disk for example, is left
// out, and the next one is tried again. err is empty if the line before was left out, too.
int trainlog_write(TrainLog *l, const char *line, size_t bytes, char *err, size_t err_bytes);
// The lines of main.log.
int trainlog_val(TrainLog *l, size_t step, double loss, char *err, size_t err_bytes);
int trainlog_eval(TrainLog *l, size_t step, double accuracy, char *err, size_t err_bytes);
int trainlog_train(TrainLog *l, size_t step, double loss, double lr, double norm, char *err, size_t err_bytes);
void trainlog_close(TrainLog *l);

#ifdef __cplusplus
}
#endif
#endif
