// Is sharded training the same as training in one process, bit for bit?
//
//     mpirun -n 4 ./test_gpt2_zero            (any number of ranks; without mpirun: one)
//     ./test_gpt2_zero --case NaN             only the cases whose names contain "NaN" (--list prints them)
//     ./test_gpt2_zero --seed 7               repeats the randomised cases of a run that printed this seed
//     ./test_gpt2_zero --break order          must fail: the check of the check (order, bit, replica: see below)
//
// A *setup* is a model, a batch and a schedule of steps; its expected outcome is computed once, by one process, on
// plain buffers (test/harness/gpt2_baseline.cuh). A *case* is a setup trained by all ranks through the engine: a stage,
// a transport, a recompute level, and perhaps a disturbance that must leave no trace: a NaN in one gradient of one
// rank, validation and inference between the micro-batches, injected delays and poisoned buffers, a second engine that
// trains alternately with the first.
//
// Everything is compared bit by bit: the loss of each micro-batch, the norm of each step as each rank saw it, and every
// parameter, master weight, m and v, gathered from the ranks that own them. Padding must still be zero, and the hashes
// the same in all stages. The models are tiny and of odd shapes: what matters here is who owns what, and in which order
// gradients are added. Whether the model itself is right is tested by test_model.cu.
//
// --break perturbs the sharded side, and the test must fail. "bit" flips one bit of one gradient element on the last
// rank in one micro-step; "replica" one of a parameter on the last rank after the last step: every comparison has to
// notice. "order" hands the micro-batches of a step to the ranks rotated by one: the same gradients added in another
// order, which changes bits wherever a sum of three or more was rounded.
#define TESTING
#include "train_gpt2_zero.cu"

#include <time.h>

#include "test/harness/gpt2_baseline.cuh"  // setups, and the expected outcome of each
#include "zero/comm/bootstrap/mpi.h"       // how ranks meet
#include "zero/comm/transport_registry.h"  // transports over the same ranks

#ifdef CUDA_ON_CPU_EMULATED
enum { EMULATED = 1 };
#else
enum { EMULATED = 0 };
#endif
enum {
    SHARED_MEMORY,
    NCCL,
    STAGED,
    NCCL_TWO_GROUPS,
    HOSTS_OF_2,
    MESSAGES,
    TWO_GROUPS,
    FOUR_GROUPS,
    TRANSPORTS,
    STAGES = 4
};
static const char *const TRANSPORT_NAMES[TRANSPORTS] = { "shared memory", "NCCL",
                                                         "staged",        "NCCL, two groups",
                                                         "hosts of two",  "messages",
                                                         "two groups",    "four groups, messages" };

// What happens besides training, and must not change a bit. LIBRARY is the exception: it promises a similar loss only.
enum Disturbance { NOTHING, NAN_GRADIENT, LOOK_BETWEEN, DELAYS, TWIN, LIBRARY };
static const char *const DISTURBANCE_NAMES[] = {
    "", ", NaN in a gradient", ", validation between", ", injected delays", ", two engines", ", library reduction"
};

enum Breakage { BREAK_NOTHING, BREAK_ORDER, BREAK_BIT, BREAK_REPLICA };

typedef struct Case {
    int stage, transport, recompute;
    enum Disturbance disturbance;
    int split_master = 0;  // BF16 builds: the outcome must be the same
} Case;

// One model on one engine.
typedef struct Trainer {
    Setup *s;
    zero *z;
    zero_accounting memory;
    GPT2 model;
    GPT2Units units;
    double *losses, *norms;                       // of this rank: one per micro-step, one per step
    enum { CLEAN, ADD_NAN, FLIP_BIT } tampering;  // with unit 1's gradients at their next release, on the last rank
    floatX *tampered;                             // where
    float *visited;                               // a state's elements that this rank owns, 0 elsewhere
    unsigned long long num_visited;
} Trainer;

static enum Breakage breakage;
static zero_mesh_comms comms[TRANSPORTS];

// ---------------------------------------------------------------------------------------------------------------------
// The sharded side: the model on an engine

static void engine_must(const Trainer *t, int ok, const char *call) { must(ok, call, zero_error(t->z)); }
#define ENGINE(t, call) engine_must(t, (call) == ZERO_OK, #call)

static void *sharded_params(void *ctx, size_t unit) {
    Trainer *t = (Trainer *)ctx;
    void *p = const_cast<void *>(zero_acquire_params(t->z, unit));
    engine_must(t, p != NULL, "zero_acquire_params");
    return p;
}

static void sharded_release_params(void *ctx, size_t unit) {
    Trainer *t = (Trainer *)ctx;
    ENGINE(t, zero_release_params(t->z, unit));
}

static void *sharded_grads(void *ctx, size_t unit) {
    Trainer *t = (Trainer *)ctx;
    void *g = zero_acquire_grads(t->z, unit, zero_get_micro_batches(t->z));
    engine_must(t, g != NULL, "zero_acquire_grads");
    if (unit == 1) t->tampered = (floatX *)g;
    return g;
}

// Makes an element in device memory a NaN, or flips a bit of it, high enough in the mantissa that no sum rounds it
// away.
static void tamper(floatX *device, int with_nan) {
    const int f32 = sizeof(floatX) == 4;
    uint32_t u = 0;
    cudaCheck(cudaStreamSynchronize(stream));
    cudaCheck(cudaMemcpy(&u, device, sizeof(floatX), cudaMemcpyDeviceToHost));
    u = with_nan ? (f32 ? 0x7fc00000u : 0x7fc0u) : u ^ (f32 ? 1u << 18 : 1u << 3);
    cudaCheck(cudaMemcpy(device, &u, sizeof(floatX), cudaMemcpyHostToDevice));
}

static void sharded_release_grads(void *ctx, size_t unit) {
    Trainer *t = (Trainer *)ctx;
    if (unit == 1) {
        if (t->tampering && rank == ranks - 1) tamper(t->tampered, t->tampering == Trainer::ADD_NAN);
        t->tampering = Trainer::CLEAN;
    }
    ENGINE(t, zero_release_grads(t->z, unit));
}

static void trainer_create(Trainer *t, Setup *s, int stage, const Case *c) {
    memset(t, 0, sizeof *t);
    t->s = s;
    zero_config config = {};
    config.settings.stage = stage;
    config.settings.dtype = FLOATX;
    config.settings.master = s->no_master ? ZERO_MASTER_NONE : c->split_master ? ZERO_MASTER_SPLIT : ZERO_MASTER_FP32;
    config.settings.seed = SEED;
    config.settings.reduction = c->disturbance == LIBRARY ? ZERO_REDUCE_LIBRARY : ZERO_REDUCE_EXACT;
    config.tensors = s->tensors;
    config.num_tensors = s->b.num_tensors;
    const int groups = stage > 0 && config.settings.reduction == ZERO_REDUCE_EXACT;
    config.shard_comm = groups ? comms[c->transport].shard : comms[c->transport].data;
    config.replicate_comm = groups ? comms[c->transport].replicate : NULL;
    config.accounting = &t->memory;
    config.settings.delay_seed = c->disturbance == DELAYS ? 1 + (uint64_t)c->stage : 0;
    config.stream = stream;
    size_t order[64];
    must(gpt2_unit_order(&s->config, NULL) <= 64, "order of units", "too many layers for this test");
    config.order = order;
    config.order_length = gpt2_unit_order(&s->config, order);
    config.settings.prefetch = (c->transport + c->recompute) % 3;
    ENGINE(t, zero_create(&t->z, &config));
    ENGINE(t, zero_fill(t->z, fill, s));
    const zero_mesh mesh = { ranks, 1, 1, rank, 0, 0, ranks, 1, rank, 0 };
    t->units = { t, sharded_params, sharded_release_params, sharded_grads, sharded_release_grads };
    make_model(&t->model, s, c->recompute, &t->units, &mesh, &t->memory);
    t->losses = new_zeroed<double>(micro_steps(s, s->steps));
    t->norms = new_zeroed<double>(s->steps);
}

static void trainer_destroy(Trainer *t) {
    gpt2_destroy(&t->model);
    zero_destroy(t->z);
    CHECK(t->memory.total_live == 0, "%zu bytes of device memory are still accounted after the end",
          t->memory.total_live);
    free(t->losses);
    free(t->norms);
}

// Which of the step's M micro-batches rank r takes in micro-step g.
static size_t global_index(size_t g, int r, size_t M) {
    const size_t j = g * (size_t)ranks + (size_t)r;
    return breakage == BREAK_ORDER ? (j + 1) % M : j;
}

static void trainer_micro_step(Trainer *t, size_t step, size_t g) {
    const size_t j = global_index(g, rank, t->s->G[step % 4] * (size_t)ranks);
    t->losses[micro_steps(t->s, step) + g] = micro_batch(&t->model, t->s, step, j);
    ENGINE(t, zero_finish_backward(t->z));
}

static void trainer_step(Trainer *t, size_t step) {
    ENGINE(t, zero_grad_norm(t->z, &t->norms[step]));
    const zero_hyperparameters a = hyperparameters(t->s, step);
    ENGINE(t, zero_step(t->z, &a));
}

// A step whose gradient holds one NaN, on one rank, in one micro-step: all ranks see it in the norm, and nothing comes
// of it.
static void discarded_step(Trainer *t, size_t step) {
    const size_t G = t->s->G[step % 4];
    uint64_t before[2], after[2];
    double norm = 0;
    ENGINE(t, zero_hash(t->z, &before[0], &before[1]));
    for (size_t g = 0; g < G; g++) {
        if (g == G / 2) t->tampering = Trainer::ADD_NAN;
        trainer_micro_step(t, step, g);
    }
    ENGINE(t, zero_grad_norm(t->z, &norm));
    CHECK(!isfinite(norm), "the norm of a gradient with a NaN is %g", norm);
    ENGINE(t, zero_discard(t->z));
    ENGINE(t, zero_hash(t->z, &after[0], &after[1]));
    CHECK(!memcmp(before, after, sizeof before), "a discarded step changed the state");
}

// Validation, and inference on a smaller batch.
static void look(Trainer *t, size_t step) {
    int *tokens = new_tokens(t->s, 1000 + step, (size_t)rank);
    gpt2_forward(&t->model, tokens, tokens + 1, t->s->B, t->s->T, 0);
    const double loss = gpt2_loss(&t->model);
    CHECK(loss > 0 && loss < 20, "step %zu: validation loss %g", step, loss);
    gpt2_forward(&t->model, tokens, NULL, 1, t->s->T / 2, 0);
    free(tokens);
}

// ---------------------------------------------------------------------------------------------------------------------
// The comparison

static int collect(void *ctx, size_t tensor, size_t begin, size_t count, const float *values) {
    Trainer *t = (Trainer *)ctx;
    memcpy(t->visited + t->s->b.offset[tensor] + begin, values, count * sizeof(float));
    t->num_visited += count;
    return 0;
}

static void compare_state(Trainer *t, enum zero_state state, const char *name, const float *expected) {
    const baseline *b = &t->s->b;
    const int owner = t->s->owner;
    float *all = new_zeroed<float>(b->numel);
    unsigned long long num_all = 0, numel = 0;
    t->visited = new_zeroed<float>(b->numel);
    t->num_visited = 0;
    ENGINE(t, zero_visit(t->z, state, collect, t));
    MPI_Reduce(&t->num_visited, &num_all, 1, MPI_UNSIGNED_LONG_LONG, MPI_SUM, owner, MPI_COMM_WORLD);
    // disjoint: "or" keeps the bits
    MPI_Reduce(t->visited, all, (int)b->numel, MPI_UINT32_T, MPI_BOR, owner, MPI_COMM_WORLD);
    for (size_t i = 0; i < b->num_tensors && rank == owner; i++) {
        const zero_tensor *tensor = &b->tensors[i];
        numel += tensor->numel;
        for (size_t k = 0; k < tensor->numel; k++) {
            const float have = all[b->offset[i] + k];
            float want = expected[b->offset[i] + k];
            if (state == ZERO_STATE_PARAMS) want = baseline_rounded(want, FLOATX);
            CHECK(memcmp(&want, &have, sizeof want) == 0, "%s of %s[%zu] in unit %zu: expected %.9g, got %.9g", name,
                  tensor->name, k, tensor->unit, want, have);
        }
    }
    CHECK(rank != owner || num_all == numel, "%s: the ranks own %llu elements of %llu", name, num_all, numel);
    free(t->visited);
    free(all);
}

// What lies between the tensors and after the last one, and the rows of wte beyond the vocabulary, must be zero.
static void check_padding(Trainer *t) {
    const zero_layout *l = zero_get_layout(t->z);
    for (size_t u = 0; u < l->num_units; u++) {
        const size_t bytes = zero_layout_unit_numel(l, u) * sizeof(floatX);
        char *host = new_zeroed<char>(bytes);
        cudaCheck(cudaMemcpyAsync(host, sharded_params(t, u), bytes, cudaMemcpyDeviceToHost, stream));
        cudaCheck(cudaStreamSynchronize(stream));
        sharded_release_params(t, u);
        for (size_t i = l->unit_first[u]; i < l->unit_first[u + 1]; i++) {
            const size_t real = i == 0 ? t->s->config.vocab_size * t->s->config.channels : l->tensors[i].numel;
            memset(host + l->tensor_offset[i] * sizeof(floatX), 0, real * sizeof(floatX));
        }
        for (size_t i = 0; i < bytes; i++) {
            CHECK(host[i] == 0, "padding of unit %zu is not zero at element %zu", u, i / sizeof(floatX));
        }
        free(host);
    }
}

static void compare_number(const char *what, size_t step, size_t which, double want, double have, double tolerance) {
    const int equal = tolerance > 0 ? fabs(want - have) <= tolerance * want : memcmp(&want, &have, sizeof want) == 0;
    CHECK(equal, "step %zu: %s %zu: expected %.17g, got %.17g", step, what, which, want, have);
}

// The losses of all micro-batches, and the norms as each rank saw them. Leaves the mean loss of the first and last step
// in ends.
static void compare_losses(const Trainer *t, double tolerance, double ends[2]) {
    const Setup *s = t->s;
    const size_t N = (size_t)ranks, total = micro_steps(s, s->steps);
    double *losses = new_zeroed<double>(total * N), *norms = new_zeroed<double>(s->steps * N);
    MPI_Allgather(t->losses, (int)total, MPI_DOUBLE, losses, (int)total, MPI_DOUBLE, MPI_COMM_WORLD);
    MPI_Allgather(t->norms, (int)s->steps, MPI_DOUBLE, norms, (int)s->steps, MPI_DOUBLE, MPI_COMM_WORLD);
    for (size_t step = 0; step < s->steps; step++) {
        const size_t G = s->G[step % 4], before = micro_steps(s, step);
        double sum = 0;
        for (size_t r = 0; r < N; r++) {
            for (size_t g = 0; g < G; g++) {
                const size_t j = global_index(g, (int)r, G * N);
                const double loss = losses[r * total + before + g];
                if (rank == s->owner)
                    compare_number("loss of micro-batch", step, j, s->losses[before * N + j], loss, tolerance);
                sum += loss;
            }
            if (rank == s->owner)
                compare_number("norm on rank", step, r, s->norms[step], norms[r * s->steps + step], tolerance);
        }
        ends[step > 0] = sum / (double)(G * N);
    }
    free(losses);
    free(norms);
}

// Compares everything once training is over. Returns the hash of the optimizer state.
static uint64_t compare(Trainer *t, int by_bits, double ends[2]) {
    Setup *s = t->s;
    uint64_t hashes[2] = { 0, 0 };
    compare_losses(t, by_bits ? 0 : 0.02, ends);
    check_padding(t);
    CHECK(zero_hash(t->z, &hashes[0], &hashes[1]) == ZERO_OK, "zero_hash: %s", zero_error(t->z));
    if (!by_bits) return hashes[1];
    compare_state(t, ZERO_STATE_MASTER, "master", s->b.w);
    compare_state(t, ZERO_STATE_M, "m", s->b.m);
    compare_state(t, ZERO_STATE_V, "v", s->b.v);
    compare_state(t, ZERO_STATE_PARAMS, "parameter", s->b.w);
    CHECK(!s->has_hashes || !memcmp(s->hashes, hashes, sizeof hashes),
          "the hash is not that of this setup's first case");
    memcpy(s->hashes, hashes, sizeof hashes);
    s->has_hashes = 1;
    return hashes[1];
}

// ---------------------------------------------------------------------------------------------------------------------
// The cases

static void train_and_compare(Setup *s, Case c) {
    static Trainer trainers[2];
    const int twins = c.disturbance == TWIN ? 2 : 1;
    for (int i = 0; i < twins; i++) trainer_create(&trainers[i], s, (c.stage + i) % STAGES, &c);
    for (size_t step = 0; step < s->steps; step++) {
        const size_t G = s->G[step % 4];
        if (c.disturbance == NAN_GRADIENT && step % 2) discarded_step(&trainers[0], step);
        for (size_t g = 0; g < G; g++) {
            if (c.disturbance == LOOK_BETWEEN) look(&trainers[0], step);
            for (int i = 0; i < twins; i++) {
                if (breakage == BREAK_BIT && step == 1 && g == G - 1) trainers[i].tampering = Trainer::FLIP_BIT;
                trainer_micro_step(&trainers[i], step, g);
            }
        }
        if (c.disturbance == LOOK_BETWEEN) look(&trainers[0], step);
        for (int i = 0; i < twins; i++) trainer_step(&trainers[i], step);
    }
    double ends[2] = {};
    uint64_t hash = 0;
    for (int i = 0; i < twins; i++) {
        if (breakage ==
            BREAK_REPLICA) {  // collective: in stage 3 acquiring is an all-gather, and its buffer is no replica
            void *params = sharded_params(&trainers[i], 0);
            if (rank == ranks - 1) tamper((floatX *)params, 0);
            sharded_release_params(&trainers[i], 0);
        }
        hash = compare(&trainers[i], c.disturbance != LIBRARY, ends);
    }
    for (int i = 0; i < twins; i++) trainer_destroy(&trainers[i]);
    if (rank == 0)
        printf("      %zu steps, loss %.4f -> %.4f, hash %016llx\n", s->steps, ends[0], ends[1],
               (unsigned long long)hash);
}

static void run_case(Setup *s, Case c) {
    if (comms[c.transport].data == NULL)
        c.transport = SHARED_MEMORY;  // NCCL, with fewer GPUs than ranks; main printed so
    CASE("stage %d N %d G %zu recompute %d, %s%s: %s%s", c.stage, ranks, s->G[0], c.recompute,
         TRANSPORT_NAMES[c.transport], c.split_master ? ", split master" : "", s->name,
         DISTURBANCE_NAMES[c.disturbance])
        train_and_compare(s, c);
}

static size_t draw(uint64_t *seed, size_t n) {
    *seed = baseline_mix(*seed);
    return *seed % n;
}

static Setup random_setup(uint64_t *seed) {
    const size_t heads = 1 + draw(seed, 3), C = heads * 8 * (1 + draw(seed, 3)), L = 1 + draw(seed, 4),
                 max_t = 12 + draw(seed, 20);
    const size_t V = 40 + draw(seed, 500), padded = (V + 7) / 8 * 8 + 8 * draw(seed, 3), B = 1 + draw(seed, 2),
                 T = max_t - draw(seed, 8);
    const float clip = draw(seed, 2) ? 0.5f : 0.0f, decay = draw(seed, 2) ? 0.1f : 0.0f;
    Setup s = { "", { max_t, V, padded, L, heads, C }, B, T, 4, {}, clip, decay };
    for (int k = 0; k < 4; k++) s.G[k] = 1 + draw(seed, 4);
    snprintf(s.name, sizeof s.name, "random C %zu L %zu V %zu/%zu B %zu T %zu/%zu", C, L, V, padded, B, T, max_t);
    return s;
}

// The emulated GPU takes a hundred times as long, so it gets one small setup.
static void run_emulated(void) {
    Setup small = { "small", { 8, 40, 48, 1, 2, 16 }, 1, 8, 2, { 1, 2, 1, 1 }, 0.1f, 0.1f };
    expect(&small, 0);
    for (int stage = 0; stage < STAGES; stage++) {
        for (int d = NOTHING; d <= NAN_GRADIENT; d++)
            run_case(&small, { stage, (stage + d) % TRANSPORTS, stage % 3, (enum Disturbance)d });
    }
    destroy_setup(&small);
}

static void run_all(uint64_t seed) {
    enum { PLAIN, FIRST_OTHER, SHARED_M = 10, RANDOM = 13, NO_MASTER = 17, SETUPS };
    const int bf16 = FLOATX == ZERO_BF16, num_setups = bf16 ? SETUPS : NO_MASTER;
    static const size_t SHARED[] = { 24, 35, 9 };  // for 1, 2, 3, 4, 6, 8 and 12 ranks; 1, 5, 7; 1, 3, 9
    const GPT2Config tiny = { 16, 100, 128, 2, 4, 32 };
    Setup setups[SETUPS] = { { "plain", tiny, 2, 16, 6, {}, 0, 0.1f },
                             { "clipped, V unpadded", { 16, 128, 128, 2, 2, 32 }, 1, 16, 6, {}, 0.1f, 0.1f },
                             { "T 16 < maxT 24", { 24, 203, 208, 2, 2, 48 }, 2, 16, 6, {}, 1.0f, 0 },
                             { "C 96, 3 heads, L 5, V 1003", { 32, 1003, 1024, 5, 3, 96 }, 1, 24, 4, {}, 1.0f, 0.1f },
                             { "M = N", tiny, 1, 16, 4, { 1, 1, 1, 1 }, 0.5f, 0.1f },
                             { "M = 2 N", tiny, 1, 16, 4, { 2, 2, 2, 2 }, 0.5f, 0.1f },
                             { "M = 3 N", tiny, 1, 16, 4, { 3, 3, 3, 3 }, 0.5f, 0.1f },
                             { "M = 8 N", tiny, 1, 16, 4, { 8, 8, 8, 8 }, 0.5f, 0.1f },
                             { "G changing", tiny, 1, 16, 6, { 1, 3, 2, 5 }, 0, 0.1f },
                             { "long", { 16, 100, 128, 1, 2, 16 }, 1, 16, 100, { 1, 1, 1, 1 }, 1.0f, 0.1f },
                             { "", tiny, 1, 16, 2, {}, 1.0f, 0.1f },
                             { "", tiny, 1, 16, 2, {}, 1.0f, 0.1f },
                             { "", tiny, 1, 16, 2, {}, 1.0f, 0.1f },
                             random_setup(&seed),
                             random_setup(&seed),
                             random_setup(&seed),
                             random_setup(&seed),
                             { "no master weights", tiny, 1, 16, 6, { 1, 3, 2, 5 }, 0.5f, 0.1f, 1 } };
    const size_t G_of_8 = ranks <= 8 && 8 % ranks == 0 ? 8 / (size_t)ranks : 3;
    for (int i = SHARED_M; i < RANDOM; i++) {
        const size_t M = SHARED[i - SHARED_M], N = (size_t)ranks;
        snprintf(setups[i].name, sizeof setups[i].name, "M = %zu", M);
        for (int k = 0; k < 4; k++) setups[i].G[k] = M % N == 0 ? M / N : 1;  // else no case uses it
    }
    for (int i = 0; i < num_setups; i++) {
        for (int k = 0; k < 4; k++) setups[i].G[k] = setups[i].G[k] ? setups[i].G[k] : G_of_8;
        expect(&setups[i], i % ranks);
    }
    for (int stage = 0; stage < STAGES; stage++) {
        for (int transport = 0; transport < TRANSPORTS; transport++) {
            run_case(&setups[PLAIN],
                     { stage, transport, (stage + transport) % 3, NOTHING, bf16 && (stage + transport) % 2 });
        }
        for (int d = NAN_GRADIENT; d <= LIBRARY; d++) {
            run_case(&setups[PLAIN],
                     { stage, (stage + d) % TRANSPORTS, d % 3, (enum Disturbance)d, bf16 && (stage + d) % 2 });
        }
        for (int i = FIRST_OTHER; i < RANDOM; i++)
            if (i < SHARED_M || SHARED[i - SHARED_M] % (size_t)ranks == 0)
                run_case(&setups[i], { stage, i % TRANSPORTS, (stage + i) % 3, NOTHING, bf16 && (stage + i) % 2 });
        for (int d = NOTHING; d < LIBRARY && bf16; d++)
            run_case(&setups[NO_MASTER], { stage, (stage + d) % TRANSPORTS, d % 3, (enum Disturbance)d });
    }
    for (int i = RANDOM; i < NO_MASTER; i++) {
        const int stage = (int)draw(&seed, STAGES), transport = (int)draw(&seed, TRANSPORTS),
                  recompute = (int)draw(&seed, 3);
        run_case(&setups[i], { stage, transport, recompute, (enum Disturbance)draw(&seed, LIBRARY) });
    }
    for (int i = 0; i < num_setups; i++) destroy_setup(&setups[i]);
}

// Creates one of each kind. Without a GPU for each rank NCCL's are NULL.
static void create_transports(zero_accounting *memory) {
    zero_bootstrap *boot;
    must(zero_bootstrap_create_mpi(&boot, MPI_COMM_WORLD, 60) == ZERO_OK, "zero_bootstrap_create_mpi", "");
    for (int i = 0; i < TRANSPORTS; i++) {
        const int nccl = i == NCCL || i == NCCL_TWO_GROUPS;
        if (nccl && !nccl_runs_here()) continue;
        zero_comm_config config = {};
        config.timeout_s = 60;
        config.no_shared_memory = i == MESSAGES || i == STAGED || i == FOUR_GROUPS;
        config.staged = i == STAGED;
        config.ranks_per_host = i == HOSTS_OF_2 ? 2 : 0;
        const int wanted = i == TWO_GROUPS || i == NCCL_TWO_GROUPS ? 2 : i == FOUR_GROUPS ? 4 : 1;
        const int groups = ranks % wanted == 0 ? wanted : ranks % 3 == 0 ? 3 : 1;
        zero_mesh mesh;
        char err[512];
        int rc = zero_mesh_create(&mesh, rank, ranks, 1, 1, ranks / groups, err, sizeof err);
        if (rc == ZERO_OK)
            rc = zero_mesh_comms_create(&comms[i], &mesh, zero_transport_find(nccl ? "nccl" : "mpi"), boot, &config,
                                        memory, err, sizeof err);
        must(rc == ZERO_OK, TRANSPORT_NAMES[i], err);
    }
    zero_bootstrap_destroy(boot);
}

int main(int argc, char **argv) {
    static const char *const breakages[] = { "nothing", "order", "bit", "replica" };
    test_start_ranks(&argc, argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    unsigned long long seed = (unsigned long long)time(NULL);
    for (int i = 1; i < argc; i += 2) {
        int b = BREAK_REPLICA;
        while (b > 0 && (i + 1 == argc || strcmp(argv[i + 1], breakages[b]))) b--;
        const int is_seed = i + 1 < argc && strcmp(argv[i], "--seed") == 0,
                  is_break = b > 0 && strcmp(argv[i], "--break") == 0;
        must(is_seed || is_break, argv[i],
             "usage: test_gpt2_zero [--case WORD] [--seed N] [--break order|bit|replica]");
        if (is_seed)
            seed = strtoull(argv[i + 1], NULL, 10);
        else
            breakage = (enum Breakage)b;
    }
    MPI_Bcast(&seed, 1, MPI_UNSIGNED_LONG_LONG, 0, MPI_COMM_WORLD);
    if (rank == 0)
        printf("%d ranks, %s, seed of the random cases %llu\n", ranks, FLOATX == ZERO_F32 ? "FP32" : "BF16", seed);
    cudaCheck(cudaStreamCreate(&stream));
    zero_accounting memory = {};
    create_transports(&memory);
    if (EMULATED)
        run_emulated();
    else
        run_all(seed);
    for (int i = 0; i < TRANSPORTS; i++) zero_mesh_comms_destroy(&comms[i]);
    cudaCheck(cudaStreamDestroy(stream));
    return test_finish();
}
