// How a training loop adopts zero/: a small regression, trained data-parallel with sharded optimizer state and
// gradients.
//
//     make examples && mpirun -n 4 build/cpu-fp32/regression 2          (the argument: the stage, 0 to 3)
//
// The network is y = W2 tanh(W1 x + b1) + b2, and all its arithmetic is in forward_backward() below: plain loops that
// do not know about ranks. What the loop has to do to be sharded is marked [1] to [5], and is the same for a network of
// any size: describe the tensors, create the engine and fill it, surround each unit's use with acquire and release,
// step. finetune.c shows what else there is: frozen units, groups of parameters, saving and resuming.
//
// What to look for in the output: for N = 1, 2, 4, 8 ranks the same losses and the same hash, in every stage. That
// holds because a step has M = 8 micro-batches for any number of ranks, and because the data of a micro-batch depend on
// its number j alone, never on the rank that computes it.
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "zero/comm/bootstrap/mpi.h"
#include "zero/zero.h"

enum { IN = 4, HIDDEN = 24, OUT = 2, BATCH = 16, MICRO_BATCHES = 8, STEPS = 200 };

// [1] The tensors, unit by unit. A unit is all-gathered and reduced together: here a layer. `logical` is the tensor's
// place in a file; weight decay applies to the matrices.
enum { W1, B1, W2, B2, TENSORS, UNITS = 2 };
static const zero_tensor tensors[TENSORS] = {
    { "W1", HIDDEN *IN, 0, 0, 1 },
    { "b1", HIDDEN, 0, HIDDEN *IN, 0 },
    { "W2", OUT *HIDDEN, 1, HIDDEN *IN + HIDDEN, 1 },
    { "b2", OUT, 1, HIDDEN *IN + HIDDEN + OUT *HIDDEN, 0 },
};

static double uniform(unsigned long long n)  // counter-based: a number in [-1, 1) that belongs to n
{
    n = (n + 1) * 0x9e3779b97f4a7c15u;
    n = (n ^ (n >> 30)) * 0xbf58476d1ce4e5b9u;
    n = (n ^ (n >> 27)) * 0x94d049bb133111ebu;
    return (double)(n >> 11) * 0x1p-52 - 1.0;
}

static void sample(unsigned long long n, float x[IN], float y[OUT]) {
    for (int i = 0; i < IN; i++) x[i] = (float)uniform(n * IN + (unsigned long long)i);
    y[0] = x[0] * x[1] + 0.5f * x[2];
    y[1] = sinf(2.0f * x[3]) - x[0];
}

// The mean loss of one micro-batch, and its gradient, added into dw. w and dw point to the tensors, in host memory.
static double forward_backward(float *const w[TENSORS], float *const dw[TENSORS], unsigned long long first_sample) {
    double loss = 0;
    for (int b = 0; b < BATCH; b++) {
        float x[IN], y[OUT], h[HIDDEN], dh[HIDDEN] = { 0 };
        sample(first_sample + (unsigned long long)b, x, y);
        for (int k = 0; k < HIDDEN; k++) {
            float sum = w[B1][k];
            for (int i = 0; i < IN; i++) sum += w[W1][k * IN + i] * x[i];
            h[k] = tanhf(sum);
        }
        for (int o = 0; o < OUT; o++) {
            float sum = w[B2][o];
            for (int k = 0; k < HIDDEN; k++) sum += w[W2][o * HIDDEN + k] * h[k];
            loss += (double)(sum - y[o]) * (double)(sum - y[o]) / (OUT * BATCH);
            const float d = 2.0f * (sum - y[o]) / (OUT * BATCH);
            dw[B2][o] += d;
            for (int k = 0; k < HIDDEN; k++) {
                dw[W2][o * HIDDEN + k] += d * h[k];
                dh[k] += d * w[W2][o * HIDDEN + k];
            }
        }
        for (int k = 0; k < HIDDEN; k++) {
            const float d = dh[k] * (1.0f - h[k] * h[k]);
            dw[B1][k] += d;
            for (int i = 0; i < IN; i++) dw[W1][k * IN + i] += d * x[i];
        }
    }
    return loss;
}

// The initial weights. A rank is asked only for what it owns, so a value must depend on the element's place, not on how
// many came before it.
static int fill(void *ctx, size_t tensor, size_t begin, size_t count, float *out) {
    (void)ctx;
    const double scale = tensor == W1 ? 0.5 : tensor == W2 ? 0.2 : 0.0;
    for (size_t i = 0; i < count; i++)
        out[i] = (float)(scale * uniform((1ull << 40) + tensors[tensor].logical + begin + i));
    return 0;
}

static void check(int ok, const char *what, const char *message) {
    if (ok) return;
    fprintf(stderr, "regression: %s: %s\n", what, message);
    MPI_Abort(MPI_COMM_WORLD, EXIT_FAILURE);
}
#define CHECK(call) check((call) == ZERO_OK, #call, zero_error(z))

// The loops of this example run on the host, so a unit is copied there, and its gradient back. A network with kernels
// calls zero_acquire_params and zero_acquire_grads instead, and computes on the pointers that they return.
static float *host_w[UNITS], *host_dw[UNITS], *w[TENSORS], *dw[TENSORS];
static size_t bytes[UNITS];

static void create_host_copies(zero *z) {
    for (size_t u = 0; u < UNITS; u++) {
        bytes[u] = zero_layout_unit_numel(zero_get_layout(z), u) * sizeof(float);
        host_w[u] = malloc(bytes[u]);
        host_dw[u] = malloc(bytes[u]);
        check(host_w[u] && host_dw[u], "malloc", "out of host memory");
    }
    for (size_t t = 0; t < TENSORS; t++) {
        w[t] = zero_tensor_at(z, host_w[tensors[t].unit], t);
        dw[t] = zero_tensor_at(z, host_dw[tensors[t].unit], t);
    }
}

// [3] One micro-batch; returns its loss. These helpers acquire a unit, copy it, and release it, which starts the
// reduction of a gradient. The padding between tensors has to stay zero.
static double micro_batch(zero *z, unsigned long long first_sample) {
    for (size_t u = 0; u < UNITS; u++) {
        CHECK(zero_read_params(z, u, host_w[u]));
        memset(host_dw[u], 0, bytes[u]);
    }
    const double loss = forward_backward(w, dw, first_sample);
    for (size_t u = UNITS; u-- > 0;) CHECK(zero_write_grads(z, u, host_dw[u]));
    CHECK(zero_finish_backward(z));
    return loss;
}

// [4] The update; returns the norm. All ranks have the same norm, so all decide alike; a gradient that is not finite
// changes nothing.
static double update(zero *z) {
    const zero_hyperparameters adamw = {
        .lr = 0.01f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.001f, .max_norm = 1
    };
    CHECK(zero_step(z, &adamw));  // skips itself if the gradient is not finite
    return zero_last_step(z).norm;
}

static void train(zero *z, zero_comm *comm) {
    const int N = zero_comm_size(comm), rank = zero_comm_rank(comm);
    const int G = (MICRO_BATCHES + N - 1) / N;  // micro-batches per rank and step
    double losses[MICRO_BATCHES], loss;
    for (int step = 0; step < STEPS; step++) {
        for (int g = 0; g < G; g++) {
            const int j = step * G * N + g * N + rank;  // the micro-batch's number decides its data
            losses[g] = micro_batch(z, (unsigned long long)j * BATCH);
        }
        const double norm = update(z);
        CHECK(zero_mean(z, losses, (size_t)G, &loss));  // has the same bits for any N, too
        if (rank == 0 && (step % 20 == 0 || step == STEPS - 1))
            printf("step %3d  loss %.9f  norm %.6f\n", step, loss, norm);
    }
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    const int stage = argc > 1 ? atoi(argv[1]) : 2;
    if (argc > 1 && (strlen(argv[1]) != 1 || !strchr("0123", *argv[1]))) {  // told once, not by each rank
        int rank;
        MPI_Comm_rank(MPI_COMM_WORLD, &rank);
        if (rank == 0) fprintf(stderr, "usage: mpirun -n RANKS regression [STAGE], from 0 to 3\n");
        MPI_Finalize();
        return EXIT_FAILURE;
    }

    // [2] The ranks, the memory accounting, the engine; and the initial weights.
    zero_comm *comm = NULL;
    zero_accounting accounting = { 0 };
    const zero_comm_config transport = { .timeout_s = 60 };
    char err[640] = "";
    check(!zero_comm_create_mpi(&comm, MPI_COMM_WORLD, "mpi", &transport, &accounting, err, sizeof err),
          "zero_comm_create_mpi", err);
    const zero_config config = { .settings = { .stage = stage, .dtype = ZERO_F32 },
                                 .tensors = tensors,
                                 .num_tensors = TENSORS,
                                 .shard_comm = comm,
                                 .accounting = &accounting };
    zero *z = zero_new(&config, err, sizeof err);
    check(z != NULL, "zero_new", err);
    CHECK(zero_fill(z, fill, NULL));
    create_host_copies(z);

    train(z, comm);

    // [5] The result: hashes that do not depend on N or the stage. zero_visit() reads the elements themselves.
    uint64_t params, optimizer;
    CHECK(zero_hash(z, &params, &optimizer));
    if (zero_comm_rank(comm) == 0)
        printf("stage %d, %d ranks (%s): parameters %016llx, optimizer %016llx\n", stage, zero_comm_size(comm),
               zero_comm_name(comm), (unsigned long long)params, (unsigned long long)optimizer);

    for (size_t u = 0; u < UNITS; u++) {
        free(host_w[u]);
        free(host_dw[u]);
    }
    zero_destroy(z);
    zero_comm_destroy(comm);
    MPI_Finalize();
    return 0;
}
