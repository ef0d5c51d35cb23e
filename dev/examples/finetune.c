// Fine-tuning with zero/, on the host alone: a unit that is frozen, two groups of parameters, and a checkpoint from
// which any number of ranks continues in any stage, with the same bits.
//
//     make examples && mpirun -n 4 build/cpu-fp32/finetune 2 state.bin      # the stage, 0 to 3; where the state is
//     mpirun -n 3 build/cpu-fp32/finetune 3 state.bin                       # continues where state.bin ends
//
// With a third argument it kills itself in that step. regression.c is the simpler example; what is new here is marked
// [1] to [4].
#include <fcntl.h>
#include <math.h>
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "zero/comm/bootstrap/mpi.h"
#include "zero/zero.h"

enum { IN = 4, WIDTH = 32, OUT = 2, BATCH = 16, MICRO_BATCHES = 12, STEPS = 60, SAVE_EVERY = 10 };

// [1] y = W2 tanh(W1 tanh(W0 x) + b1) + b2. The features W0 are pretrained and frozen, so unit 0 has no gradients, no
// optimizer state and no traffic for them. The body is trained with a tenth of the head's learning rate.
enum { W0, W1, B1, W2, B2, TENSORS, UNITS = 3 };
static const zero_tensor tensors[TENSORS] = {
    { .name = "W0", .numel = WIDTH * IN, .unit = 0, .logical = 0, .frozen = 1 },
    { .name = "W1", .numel = WIDTH * WIDTH, .unit = 1, .logical = 1000, .decay = 1 },
    { .name = "b1", .numel = WIDTH, .unit = 1, .logical = 2100 },
    { .name = "W2", .numel = OUT * WIDTH, .unit = 2, .logical = 2200, .decay = 1 },
    { .name = "b2", .numel = OUT, .unit = 2, .logical = 2300 },
};
enum { FILE_NUMEL = 2302 };  // there may be gaps between tensors

static double uniform(unsigned long long n)  // counter-based: a number in [-1, 1) that belongs to n
{
    n = (n + 1) * 0x9e3779b97f4a7c15u;
    n = (n ^ (n >> 30)) * 0xbf58476d1ce4e5b9u;
    n = (n ^ (n >> 27)) * 0x94d049bb133111ebu;
    return (double)(n >> 11) * 0x1p-52 - 1.0;
}

static int pretrained(void *ctx, size_t tensor, size_t begin, size_t count, float *out) {
    (void)ctx;
    const double scale = tensor == B1 || tensor == B2 ? 0 : tensor == W0 ? 0.8 : 0.25;
    for (size_t i = 0; i < count; i++)
        out[i] = (float)(scale * uniform((1ull << 40) + tensors[tensor].logical + begin + i));
    return 0;
}

static void affine(float *y, const float *w, const float *b, const float *x, int rows, int columns) {
    for (int r = 0; r < rows; r++) {
        y[r] = b ? b[r] : 0;
        for (int c = 0; c < columns; c++) y[r] += w[r * columns + c] * x[c];
    }
}

static void squash(float *x) {
    for (int i = 0; i < WIDTH; i++) x[i] = tanhf(x[i]);
}

// The mean loss of one micro-batch, and its gradient, added into dw.
static double forward_backward(float *const w[TENSORS], float *const dw[TENSORS], unsigned long long first) {
    double loss = 0;
    for (unsigned long long n = first; n < first + BATCH; n++) {
        float x[IN], f[WIDTH], h[WIDTH], y[OUT];
        for (int i = 0; i < IN; i++) x[i] = (float)uniform(n * IN + (unsigned long long)i);
        const float want[OUT] = { x[0] * x[1] + 0.5f * x[2], sinf(2.0f * x[3]) - x[0] };
        affine(f, w[W0], NULL, x, WIDTH, IN), squash(f);
        affine(h, w[W1], w[B1], f, WIDTH, WIDTH), squash(h);
        affine(y, w[W2], w[B2], h, OUT, WIDTH);
        float dh[WIDTH] = { 0 };
        for (int o = 0; o < OUT; o++) {
            const float off = y[o] - want[o], d = 2.0f * off / (OUT * BATCH);
            loss += (double)off * (double)off / (OUT * BATCH);
            dw[B2][o] += d;
            for (int k = 0; k < WIDTH; k++) {
                dw[W2][o * WIDTH + k] += d * h[k];
                dh[k] += d * w[W2][o * WIDTH + k];
            }
        }
        for (int k = 0; k < WIDTH; k++) {
            const float d = dh[k] * (1.0f - h[k] * h[k]);
            dw[B1][k] += d;
            for (int i = 0; i < WIDTH; i++) dw[W1][k * WIDTH + i] += d * f[i];
        }
    }
    return loss;
}

static void check(int ok, const char *what, const char *message) {
    if (ok) return;
    fprintf(stderr, "finetune: %s: %s\n", what, message);
    MPI_Abort(MPI_COMM_WORLD, EXIT_FAILURE);
}
#define CHECK(call) check((call) == ZERO_OK, #call, zero_error(z))

// [2] One micro-batch. Parameters of all units are read; gradients of frozen ones are not written.
static double micro_batch(zero *z, unsigned long long first_sample) {
    static float units[2][UNITS][2048];  // parameters and gradients on the host, with padding for 12 ranks
    float *w[TENSORS], *dw[TENSORS];
    memset(units[1], 0, sizeof units[1]);
    for (size_t t = 0; t < TENSORS; t++) {
        w[t] = zero_tensor_at(z, units[0][tensors[t].unit], t);
        dw[t] = zero_tensor_at(z, units[1][tensors[t].unit], t);
    }
    for (size_t u = 0; u < UNITS; u++) CHECK(zero_read_params(z, u, units[0][u]));
    const double loss = forward_backward(w, dw, first_sample);
    for (size_t u = UNITS; u-- > 0;)
        if (!zero_is_frozen(z, u)) CHECK(zero_write_grads(z, u, units[1][u]));
    CHECK(zero_finish_backward(z));
    return loss;
}

// [3] The state: how many steps, and three arrays in logical order. The previous file is replaced once the new one is
// complete, so whenever the job is killed there is a good one.
static const enum zero_state states[] = { ZERO_STATE_MASTER, ZERO_STATE_M, ZERO_STATE_V };
enum { NUM_STATES = sizeof states / sizeof *states, HEADER = 64 };

static size_t place(size_t state) { return HEADER + state * FILE_NUMEL * sizeof(float); }

static void save(zero *z, const char *path, uint64_t step, int rank) {
    char temporary[4096];
    snprintf(temporary, sizeof temporary, "%s.tmp", path);
    const int fd = open(temporary, O_WRONLY | O_CREAT, 0666);
    check(fd >= 0, temporary, "cannot be created");
    for (size_t s = 0; s < NUM_STATES; s++) CHECK(zero_save_fd(z, states[s], fd, place(s)));
    const uint64_t header[] = { step, zero_get_updates(z) };
    check(rank != 0 || pwrite(fd, header, sizeof header, 0) == sizeof header, temporary, "cannot be written");
    check(fsync(fd) == 0 && close(fd) == 0, temporary, "cannot be written");
    MPI_Barrier(MPI_COMM_WORLD);  // all have written
    check(rank != 0 || rename(temporary, path) == 0, path, "cannot be replaced");
    MPI_Barrier(MPI_COMM_WORLD);
}

static uint64_t load(zero *z, const char *path) {
    const int fd = open(path, O_RDONLY);
    if (fd < 0) return 0;
    uint64_t header[2] = { 0 };
    check(pread(fd, header, sizeof header, 0) == sizeof header, path, "is no state");
    for (size_t s = 0; s < NUM_STATES; s++) CHECK(zero_load_fd(z, states[s], fd, place(s)));
    CHECK(zero_set_updates(z, header[1]));
    close(fd);
    return header[0];
}

static void train(zero *z, const char *path, uint64_t die_in, int rank, int N) {
    const zero_hyperparameters adamw = {
        .lr = 0.01f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.01f, .max_norm = 1
    };
    const uint64_t first = load(z, path), G = MICRO_BATCHES / (uint64_t)N;
    double losses[MICRO_BATCHES], loss;
    if (rank == 0 && first) printf("continues in step %d\n", (int)first);
    for (uint64_t step = first; step < STEPS; step++) {
        for (uint64_t g = 0; g < G; g++)
            losses[g] = micro_batch(z, (step * MICRO_BATCHES + g * (uint64_t)N + (uint64_t)rank) * BATCH);
        if (die_in && step == die_in) raise(SIGKILL);
        CHECK(zero_step(z, &adamw));
        CHECK(zero_mean(z, losses, (size_t)G, &loss));
        if ((step + 1) % SAVE_EVERY) continue;
        save(z, path, step + 1, rank);
        if (rank == 0) printf("step %2d  loss %.9f  norm %.6f\n", (int)step + 1, loss, zero_last_step(z).norm);
    }
}

// A mistake that all ranks have is told once, and none is aborted.
static int refuse(int rank, const char *message) {
    if (rank == 0) fprintf(stderr, "%s\n", message);
    MPI_Finalize();
    return EXIT_FAILURE;
}

int main(int argc, char **argv) {
    int N, rank;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &N);
    if (argc < 3 || strlen(argv[1]) != 1 || !strchr("0123", *argv[1]))
        return refuse(rank,
                      "usage: mpirun -n RANKS finetune STAGE FILE [STEP in which it kills itself]; stages: 0 to 3");
    if (MICRO_BATCHES % N) return refuse(rank, "finetune: use 1, 2, 3, 4, 6 or 12 ranks: they share 12 micro-batches");
    zero_comm *comm = NULL;
    zero_accounting accounting = { 0 };
    const zero_comm_config transport = { .timeout_s = 60 };
    char err[640] = "";
    check(!zero_comm_create_mpi(&comm, MPI_COMM_WORLD, "mpi", &transport, &accounting, err, sizeof err),
          "zero_comm_create_mpi", err);
    const zero_config config = { .settings = { .stage = atoi(argv[1]), .dtype = ZERO_F32, .prefetch = 2 },
                                 .tensors = tensors,
                                 .num_tensors = TENSORS,
                                 .shard_comm = comm,
                                 .accounting = &accounting };
    zero *z = zero_new(&config, err, sizeof err);
    check(z != NULL, "zero_new", err);
    CHECK(zero_fill(z, pretrained, NULL));

    // [4] The groups: what differs from the hyperparameters that zero_step gets.
    for (size_t t = W1; t <= B1; t++) {
        zero_tensor_options body = zero_get_tensor_options(z, t);
        body.lr_factor = 0.1f;
        CHECK(zero_set_tensor_options(z, t, &body));
    }
    train(z, argv[2], argc > 3 ? strtoull(argv[3], NULL, 10) : 0, rank, N);

    uint64_t params, optimizer;
    CHECK(zero_hash(z, &params, &optimizer));
    if (rank == 0)
        printf("stage %s, %d ranks: parameters %016llx, optimizer %016llx\n", argv[1], N, (unsigned long long)params,
               (unsigned long long)optimizer);
    zero_destroy(z);
    zero_comm_destroy(comm);
    MPI_Finalize();
    return 0;
}
