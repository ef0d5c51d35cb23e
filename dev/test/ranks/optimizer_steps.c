// optimizer_steps.c: trains two tensors on gradients from a file, for test_pytorch.py. Run under mpirun.
//
//     optimizer_steps OPTIMIZER STAGE LR BETA1 BETA2 EPS WEIGHT_DECAY MAX_NORM EMA_DECAY STEPS FILE
//
// OPTIMIZER is a number of enum zero_optimizer_kind. FILE has fp32 numbers: the weights, then the gradient of each
// step, which all ranks have (so it is the mean). Behind them the program writes, for each step, the weights, each
// state of the optimizer and, with EMA_DECAY, the average; and it prints the norms of the steps.
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "test/ranks/ways.h"
#include "zero/optimizers/optimizers.h"
#include "zero/zero.h"

enum { MATRIX = 5000, VECTOR = 77, NUMEL = MATRIX + VECTOR };
static const zero_tensor tensors[] = { { "matrix", MATRIX, 0, 0, 1 }, { "vector", VECTOR, 1, MATRIX, 0 } };

static void step(zero *z, int fd, size_t offset, const zero_hyperparameters *h) {
    for (size_t t = 0; t < 2; t++) {
        const size_t bytes = zero_layout_unit_numel(zero_get_layout(z), t) * sizeof(float),
                     wanted = tensors[t].numel * sizeof(float);
        float *g = calloc(bytes, 1);
        REQUIRE(g && pread(fd, g, wanted, (off_t)(offset + tensors[t].logical * sizeof(float))) == (ssize_t)wanted,
                "the file ends");
        REQUIRE(zero_write_grads(z, t, g) == ZERO_OK, "%s", zero_error(z));
        free(g);
    }
    REQUIRE(zero_finish_backward(z) == ZERO_OK && zero_step(z, h) == ZERO_OK, "%s", zero_error(z));
}

int main(int argc, char **argv) {
    start_world(&argc, argv);
    REQUIRE(argc == 12, "see the head of optimizer_steps.c");
    float number[12] = { 0 };
    for (int i = 1; i < 11; i++) number[i] = strtof(argv[i], NULL);
    const size_t steps = (size_t)number[10], all = NUMEL * sizeof(float);
    const zero_hyperparameters h = { number[3], number[4], number[5], number[6], number[7], number[8] };
    zero_comm *c = join(&ways[SHARED_MEMORY], PATIENT);
    const zero_config config = { .settings = { .stage = (int)number[2],
                                               .optimizer = (enum zero_optimizer_kind)number[1],
                                               .ema_decay = strtod(argv[9], NULL) },
                                 .tensors = tensors,
                                 .num_tensors = 2,
                                 .shard_comm = c,
                                 .accounting = &memory };
    const size_t num_states = zero_optimizer_get(config.settings.optimizer)->num_states;
    char err[640] = "";
    zero *z = zero_new(&config, err, sizeof err);
    REQUIRE(z, "%s", err);
    const int fd = open(argv[11], O_RDWR);
    REQUIRE(fd >= 0 && zero_fill_fd(z, fd, 0) == ZERO_OK, "%s: %s", argv[11], zero_error(z));
    size_t out = (1 + steps) * all;
    for (size_t s = 0; s < steps; s++) {
        step(z, fd, (1 + s) * all, &h);
        for (size_t i = 0; i < 1 + num_states + (config.settings.ema_decay > 0); i++, out += all) {
            const size_t state = i == 0            ? ZERO_STATE_MASTER
                                 : i <= num_states ? ZERO_STATE_OPTIMIZER + i - 1
                                                   : ZERO_STATE_EMA;
            REQUIRE(zero_save_fd(z, (enum zero_state)state, fd, out) == ZERO_OK, "%s", zero_error(z));
        }
        if (rank == 0) printf("norm %.17g\n", zero_last_step(z).norm);
    }
    zero_destroy(z);
    zero_comm_destroy(c);
    zero_bootstrap_destroy(boot);
    MPI_Finalize();
    return 0;
}
