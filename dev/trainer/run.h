// A training run: everything that one rank knows about it, and the few things that ranks do together outside of the
// engine.
//
//     options.c    command line -> Options            setup.c      device, model, data, transport -> Run
//     launch.c     who this rank is                   checkpoint.c weights and state: from a seed or a file
//     run.c        errors, agreement between ranks    checkpoint_write.c ... and to files, in the background
//     signals.c    SIGUSR1, SIGTERM, SIGINT           directory.c  the output directory: its lock, what may be there
//     reports.c    header, tables, plan, profile      resume_llmc.c  from a directory of llm.c's
//     metrics.c    the numbers of each step           progress.c   the time that is left, on a terminal
//     losses.c     what ranks tell each other in a step
//
// The engine, the model and the steps are in train_gpt2_zero.cu. What is measured on one rank (a loss, an error) is
// gathered by all before any of them acts on it, so all ranks always make the same calls in the same order. Only rank 0
// prints.
#ifndef TRAINER_RUN_H
#define TRAINER_RUN_H

#include <cuda_runtime_api.h>
#include <stddef.h>

#include "data/dataloader.h"
#include "data/hellaswag.h"
#include "data/tokenizer.h"
#include "gpt2/activation_offload.h"
#include "gpt2/config.h"
#include "gpt2/model_file.h"
#include "trainer/host.h"
#include "trainer/launch.h"
#include "trainer/log.h"
#include "trainer/options.h"
#include "trainer/profiler.h"
#include "zero/accounting.h"
#include "zero/comm/comm.h"
#include "zero/comm/mesh.h"
#include "zero/cost.h"
#include "zero/zero.h"

#ifdef __cplusplus
extern "C" {
#endif

#define ERR_BYTES 5120  // a message with a path in it
#define MAX_ROWS  24    // of a report

// What a rank tells the others after its G losses: 1 if it was asked to stop; seconds that it computed in this step,
// or, if that is gathered before the end of the step (losses.h), in the step before.
enum { TOLD_STOP, TOLD_COMPUTING, TOLD_MORE };

// What the reports need to know of the kernels that this program was built with.
typedef struct {
    const char *attention;             // name of the library, NULL: our own kernels
    int flash;                         // those on tensor cores, gpt2/flash_attention.cuh
    size_t attention_scratch;          // bytes
    size_t activation_bytes;           // predicted, of this run, one micro-batch after the other; and of others
    size_t layer_bytes, stream_bytes;  // layer by layer: of one layer, and of each micro-batch
    size_t offloaded_bytes;            // --offload-activations: in host memory, of each micro-batch that is kept
    size_t (*activation_bytes_of)(const GPT2Config *c, size_t B, size_t T, int recompute, size_t head_rows,
                                  enum zero_dtype precision, size_t streams, int offload);
    size_t head_chunks;  // of rows, in which the head is computed
    size_t sum_chunks;   // that the kernels cut the rows of a micro-batch into, to sum over them
} Kernels;

enum { INPUT_MODEL, INPUT_TRAIN, INPUT_VAL, INPUT_TOKENIZER, INPUT_HELLASWAG, NUM_INPUTS };

typedef struct Run {
    Options options;
    Kernels kernels;
    int rank, ranks, local_rank, local_ranks;  // "local": on this host
    int gpus;                                  // distinct ones, over all ranks
    int sharers;                               // ranks that use this rank's GPU, this one included
    CoreShare cores;                           // of this rank
    size_t process_start;                      // bytes that the process took before the model
    struct cudaDeviceProp device;
    cudaStream_t stream;
    Profile *profile;  // --profile, on rank 0
    GPT2Config config;
    zero_tensor *tensors;
    ModelFile file;    // with the initial weights; fd -1: they are random
    char choice[512];  // which defaults were chosen, and why

    const char *phase;  // for messages: what the ranks are doing, and in which step (from 1; 0: before the first)
    size_t phase_step;
    int transport_failed;  // it could not be created, perhaps because of another rank
    uint64_t nonce;        // of this run, in the names of its temporary files; 0: no -o

    zero_mesh mesh;
    zero_accounting memory;
    size_t groups_asked_for;  // --shard-group that costs more wire than one group of all ranks, which is taken; else 0
    int order_declined;       // --micro-batch-order rank would receive no fewer bytes: it is step by step
    char transport_note[64];  // why it is not NCCL
    zero_comm *comm;          // all ranks
    zero_comm *shard_comm;    // the ranks of this shard group; without groups the same as comm
    zero_comm *replica_comm;  // the ranks of the other groups that hold the same shard; NULL without groups
    zero *z;
    struct GPT2 *model;
    ActivationOffload *activations;  // of the model; NULL: they stay on the device
    Loader *train, *val;             // val NULL: no validation; train NULL: --generate
    uint64_t content[NUM_INPUTS];    // hashes of the model file and the data; 0: no such input
    Tokenizer *tokenizer;            // NULL: samples are printed as numbers
    int *prompt;                     // --prompt
    size_t prompt_tokens;
    HellaSwag *hellaswag;  // NULL: it is not evaluated

    size_t B, T, G, M, steps;  // M = G * ranks micro-batches in a step
    size_t first_step;         // 0, or that of the checkpoint that the run was resumed from
    int *inputs, *targets;     // B * T each
    float *host_losses;        // G * B * T, pinned: of this rank's micro-batches in a step
    // What the ranks tell each other in a step, G + TOLD_MORE numbers each: the means of their losses, then as below.
    double *losses, *all_losses;  // of this rank, of all; pinned
    // Where it is gathered on the device (losses.h).
    char *device_losses;
    cudaStream_t losses_stream;
    cudaEvent_t losses_are_here;  // in host_losses
    Outliers loss_outliers, norm_outliers;
    size_t nonfinite_steps;    // in a row, until now
    StepLine first_nonfinite;  // of them
    TrainLog log;
    struct Metrics *metrics;                        // NULL: no -o
    struct CheckpointWriter *writer;                // of the checkpoint that is being written; NULL: none
    void *snapshot;                                 // its copy of the state, in host memory
    size_t snapshot_bytes, snapshot_per_parameter;  // the latter for each parameter of this rank
    zero_row wire[MAX_ROWS];                        // of the last step that was taken
    size_t wire_rows;
    uint64_t disk[2];        // bytes that a step has read and written: the last one that followed another at once
    uint64_t disk_after[2];  // in all, when a step ended
    double disk_waited, disk_waited_after;  // the same, of seconds for which the update waited
    int disk_untouched;                     // when this step began, nothing had been read or written since
} Run;

// Makes this the process's run, whose phase and transport die() asks.
void run_begin(Run *r);

// Notes what the ranks are doing from now on: a literal, such as "validation". Not collective.
void run_phase(Run *r, const char *phase, size_t step);

// Ends the job on all ranks with this message, which is extended by what is known about the failure: phase and step,
// the hosts of ranks that are missing, the files of the flight recorder.
__attribute__((format(printf, 1, 2), noreturn)) void die(const char *format, ...);

// Replaces control characters by '?': names of files, locks and other processes' messages may contain them. For one
// line of text.
void make_printable(char *text);

// From here on all ranks end by themselves: SIGTERM, which mpirun sends to those that take longer than the first, ends
// this one without a message.
void run_is_ending(void);

// Dies with the engine's message if status is not ZERO_OK.
void must(const Run *r, int status, const char *doing);

// Every rank passes the same number of bytes; all ranks get those of all. Collective.
void gather(const Run *r, const void *mine, size_t bytes, void *all);

// If any rank passes a message in err[ERR_BYTES], returns 1, and err is the message of the first of them on all ranks;
// if others have none, it also says which rank that was, and on which host. "" means success. Collective.
int first_failure(const Run *r, char *err);

// Dies with that message. Collective.
void agree(const Run *r, char *err);

// calloc that dies when host memory is exhausted.
void *allocate(size_t bytes);

// printf on rank 0; nothing on the others.
__attribute__((format(printf, 2, 3))) void print0(const Run *r, const char *format, ...);

#ifdef __cplusplus
}
#endif
#endif
