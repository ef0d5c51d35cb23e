// test_engine.c: the engine by itself, with made-up tensors and gradients: what its caller may rely on, in every stage,
// precision and way of moving bytes. (That its numbers are those of unsharded training is test_gpt2_zero's business.)
// Run under mpirun.
//
// The transport says how many bytes a rank has received, and so does the formula. A third count is independent of both:
// MPI_Isend and MPI_Irecv are those of this file, which add up the bytes and pass the call on (MPI's profiling
// interface). Where all goes by messages, what the other ranks have sent to a rank, and what it has asked for, must be
// what the transport says.
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "test/harness/mpi_check.h"
#include "zero/comm/bootstrap/bootstrap_mpi.h"
#include "zero/comm/mpi/comm_mpi.h"
#include "zero/comm/nccl/comm_nccl.h"
#include "zero/internal.h"  // to see the padding of optimizer state, which no call shows

static int rank, ranks;
static int data_rank, data_ranks;  // among the ranks that train one model together: all, or a mesh's data-parallel
                                   // ranks
static int stripe;                 // which of the mesh's models this is; they have other gradients
static zero_accounting memory;
static zero_bootstrap *boot;
static uint64_t *sent_to, asked_for;  // bytes in messages of MPI since the start: to each rank; from all

int MPI_Isend(const void *buf, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request *request) {
    int size;
    MPI_Type_size(type, &size);
    sent_to[to] += (uint64_t)count * (uint64_t)size;
    return PMPI_Isend(buf, count, type, to, tag, comm, request);
}

int MPI_Irecv(void *buf, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Request *request) {
    int size;
    MPI_Type_size(type, &size);
    asked_for += (uint64_t)count * (uint64_t)size;
    return PMPI_Irecv(buf, count, type, from, tag, comm, request);
}

// What a model is kept as. The two with the same master weights must have the same bits.
enum kind { F32, BF16, BF16_SPLIT, BF16_NO_MASTER, KINDS };
static const char *const kind_names[KINDS] = { "fp32", "bf16", "bf16, split master", "bf16, no master" };
static enum kind kind;

// Units of equal and of different size, tensors around the alignment, an empty one. Logical order is not registration
// order.
static const zero_tensor tensors[] = {
    { "embedding", 5003, 0, 900, 1 }, { "bias", 65, 0, 0, 0 },         { "a.weight", 640, 1, 70, 1 },
    { "a.bias", 63, 1, 710, 0 },      { "a.empty", 0, 1, 773, 0 },     { "b.weight", 640, 2, 6000, 1 },
    { "b.bias", 63, 2, 6640, 0 },     { "c.weight", 640, 3, 7000, 1 }, { "c.bias", 63, 3, 7640, 0 },
    { "d.weight", 640, 4, 8000, 1 },  { "d.bias", 1, 4, 8640, 0 },
};
enum { TENSORS = sizeof tensors / sizeof *tensors, UNITS = 5 };

static float initial(size_t logical) { return (float)(int)(logical % 251) / 125.0f - 1.0f; }
static float scale = 1;                                       // of all gradients
static float gradient(size_t logical, size_t j, size_t step)  // of micro-batch j, exact in bf16
{
    return (float)((int)((logical * 7 + j * 31 + step * 13 + (size_t)stripe * 17) % 127) - 63) / 64.0f *
           (j % 3 ? 1.0f : 0x1p-9f) * scale;
}

static int fill(void *ctx, size_t tensor, size_t begin, size_t count, float *out) {
    (void)ctx;
    for (size_t i = 0; i < count; i++) out[i] = initial(tensors[tensor].logical + begin + i);
    return 0;
}

static void put(void *buffer, size_t element, float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    if (kind != F32)
        ((uint16_t *)buffer)[element] = (uint16_t)(u >> 16);
    else
        ((float *)buffer)[element] = x;
}

static int fill_many(void *ctx, size_t tensor, size_t begin, size_t count, float *out) {
    for (size_t i = 0; i < count; i++) out[i] = initial(((const zero_tensor *)ctx)[tensor].logical + begin + i);
    return 0;
}

// A copy of n elements of the device; the caller frees it.
static void *copy_of(const void *device, size_t n, size_t elem) {
    void *host = malloc(n * elem + 1);
    device_read(host, device, n * elem);
    return host;
}

static size_t element(void) { return kind == F32 ? 4 : 2; }

// What the forward passes have seen of the parameters.
static uint64_t seen;

static int forward(zero *z) {
    const size_t b = element();
    for (size_t i = 0; i <= UNITS; i++) {
        const size_t u = i % UNITS;  // the first unit is used at both ends, as an embedding is
        const char *device = zero_acquire_params(z, u);
        if (!device) return ZERO_ERR_COMM;
        unsigned char *p = copy_of(device, zero_layout_unit_numel(zero_get_layout(z), u), b);
        for (size_t t = 0; t < TENSORS; t++)
            if (tensors[t].unit == u)
                for (size_t k = 0; k < tensors[t].numel * b; k++)
                    seen = seen * 6364136223846793005u + p[zero_tensor_offset(z, t) * b + k] + 1;
        free(p);
        if (zero_release_params(z, u)) return ZERO_ERR_ARG;
    }
    return ZERO_OK;
}

// One micro-batch, units from last to first, poison in one element of one rank if asked for.
static int micro_batch(zero *z, size_t j, size_t step, float poison) {
    int e = forward(z);
    for (size_t u = UNITS; u-- > 0 && !e;) {
        const size_t n = zero_layout_unit_numel(zero_get_layout(z), u);
        void *device = zero_acquire_grads(z, u);
        if (!device || !zero_acquire_params(z, u)) return ZERO_ERR_ARG;
        char *g = copy_of(device, n, element());  // zero, the padding too, if all is well
        for (size_t t = 0; t < TENSORS; t++)
            if (tensors[t].unit == u)
                for (size_t i = 0; i < tensors[t].numel; i++)
                    put(g, zero_tensor_offset(z, t) + i, gradient(tensors[t].logical + i, j, step));
        if (u == 2 && poison != 0 && rank == ranks - 1) put(g, 5, poison);
        device_write(device, g, n * element());
        free(g);
        e = zero_release_grads(z, u);
        if (!e) e = zero_release_params(z, u);
    }
    return e ? e : zero_finish_backward(z);
}

static int one_step(zero *z, size_t step, size_t micro_batches, double *norm) {
    const zero_adamw a = {
        .lr = 0.01f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f, .grad_scale = 1, .t = step + 1
    };
    int e = zero_begin_step(z);
    for (size_t g = 0; g < micro_batches && !e; g++)
        e = micro_batch(z, g * (size_t)data_ranks + (size_t)data_rank, step, 0);
    if (!e) e = zero_grad_norm(z, norm);
    return e ? e : zero_step(z, &a);
}

static double norm_in_double(size_t step, size_t micro_batches) {
    double squares = 0;
    for (size_t t = 0; t < TENSORS; t++)
        for (size_t i = 0; i < tensors[t].numel; i++) {
            double sum = 0;
            for (size_t j = 0; j < micro_batches * (size_t)data_ranks; j++)
                sum += gradient(tensors[t].logical + i, j, step);
            squares += sum * sum;
        }
    return sqrt(squares) / (double)(micro_batches * (size_t)data_ranks);
}

static size_t other_transport;  // bytes in the books of a transport that is not the engine's

static void reports_agree(const zero *z, const char *when) {
    zero_row rows[16];
    size_t n = zero_report_memory(z, rows, 16);
    for (size_t i = 0; i < n; i++)
        if (rows[i].kind == ZERO_MEM_TRANSPORT) rows[i].expected += other_transport;
    for (size_t i = 0; i < n; i++)
        EXPECT(rows[i].expected == rows[i].measured, "%s, memory of %s: %llu bytes by formula (%s), %llu measured",
               when, rows[i].what, (unsigned long long)rows[i].expected, rows[i].formula,
               (unsigned long long)rows[i].measured);
    n = zero_report_wire(z, rows, 16);
    for (size_t i = 0; i < n; i++)
        EXPECT(rows[i].expected == rows[i].measured, "%s, wire bytes of %s: %llu by formula (%s), %llu measured", when,
               rows[i].what, (unsigned long long)rows[i].expected, rows[i].formula,
               (unsigned long long)rows[i].measured);
}

static void padding_is_zero(zero *z) {
    const zero_layout *l = zero_get_layout(z);
    const size_t b = element(), master = z->master ? master_bytes(z) : 0;
    for (size_t u = 0; u < UNITS; u++) {
        const size_t n = state_numel(z, u), at = state_offset(z, u);
        char *p = copy_of(zero_acquire_params(z, u), zero_layout_unit_numel(l, u), b);
        char *low = copy_of((const char *)z->master + at * master, n, master);
        float *m = copy_of(z->m + at, n, sizeof *m), *v = copy_of(z->v + at, n, sizeof *v);
        char *real = calloc(zero_layout_unit_numel(l, u), 1);
        for (size_t t = 0; t < TENSORS; t++)
            if (tensors[t].unit == u) memset(real + zero_tensor_offset(z, t), 1, tensors[t].numel);
        for (size_t i = 0; i < zero_layout_unit_numel(l, u); i++)
            EXPECT(real[i] || !memcmp(p + i * b, "\0\0\0\0", b), "padding element %zu of unit %zu is not zero", i, u);
        for (size_t i = 0; i < n; i++) {
            if (real[state_begin(z, u) + i]) continue;
            EXPECT(m[i] == 0 && v[i] == 0, "padding element %zu of unit %zu has m %g, v %g", i, u, m[i], v[i]);
            EXPECT(!memcmp(low + i * master, "\0\0\0\0", master), "padding element %zu of unit %zu has a master weight",
                   i, u);
        }
        free(real);
        free(p);
        free(low);
        free(m);
        free(v);
        zero_release_params(z, u);
    }
}

// prefetch is also what the size of stage 3's pool depends on. In debug mode ranks dawdle, and what is given back turns
// into NaN.
static const struct {
    const char *name;
    int stage, prefetch;
    uint64_t debug;
} variants[] = {
    { "stage 0", 0, 0, 0 },
    { "stage 1", 1, 0, 0 },
    { "stage 2", 2, 0, 0 },
    { "stage 3, no prefetch", 3, 0, 0 },
    { "stage 3, prefetch 1", 3, 1, 0 },
    { "stage 3, prefetch 2", 3, 2, 0 },
    { "stage 1, debug", 1, 0, 1 },
    { "stage 2, debug", 2, 0, 2 },
    { "stage 3, no prefetch, debug", 3, 0, 3 },
    { "stage 3, prefetch 1, debug", 3, 1, 4 },
    { "stage 3, prefetch 2, debug", 3, 2, 5 },
};
enum { VARIANTS = sizeof variants / sizeof *variants };

static zero *make(zero_comm *c, zero_comm *replicas, int variant, enum zero_reduction reduction) {
    static const size_t order[] = { 0, 1, 2, 3, 4, 0, 4, 3, 2, 1, 0 };
    static const enum zero_master masters[KINDS] = { ZERO_MASTER_FP32, ZERO_MASTER_FP32, ZERO_MASTER_SPLIT,
                                                     ZERO_MASTER_NONE };
    zero *z;
    const zero_config config = { .settings = { .stage = variants[variant].stage,
                                               .prefetch = variants[variant].prefetch,
                                               .delay_seed = variants[variant].debug,
                                               .dtype = kind == F32 ? ZERO_F32 : ZERO_BF16,
                                               .master = masters[kind],
                                               .seed = 42,
                                               .reduction = reduction },
                                 .order = order,
                                 .order_length = sizeof order / sizeof *order,
                                 .tensors = tensors,
                                 .num_tensors = TENSORS,
                                 .shard_comm = c,
                                 .replicate_comm = replicas,
                                 .accounting = &memory };
    const int e = zero_create(&z, &config);
    EXPECT(e == ZERO_OK, "create: %s", zero_error(z));
    EXPECT(zero_fill(z, fill, NULL) == ZERO_OK, "fill: %s", zero_error(z));
    return z;
}

// See the top of the file. Only where all goes by messages.
static void messages_are_counted(zero_comm *c) {
    uint64_t received = 0, sent_to_me = 0, *from = calloc((size_t)ranks, sizeof *from);
    for (int k = 0; k < ZERO_WIRE_KINDS; k++) received += zero_comm_received(c, (enum zero_wire)k);
    MPI_Alltoall(sent_to, 1, MPI_UINT64_T, from, 1, MPI_UINT64_T, MPI_COMM_WORLD);
    for (int r = 0; r < ranks; r++) sent_to_me += from[r];
    EXPECT(received == asked_for && received == sent_to_me && (received > 0 || ranks == 1),
           "received: %llu bytes says the transport, %llu were asked of MPI, %llu sent by others",
           (unsigned long long)received, (unsigned long long)asked_for, (unsigned long long)sent_to_me);
    free(from);
}

static double tolerance = 1e-6;

// Steps with a changing number of micro-batches; returns the hashes. Norms are those of one process in double.
static void train(zero *z, size_t steps, uint64_t hash[3]) {
    seen = 0;
    static const size_t micro_batches[] = { 1, 3, 2, 7, 1, 4 };
    for (size_t s = 0; s < steps; s++) {
        const size_t G = micro_batches[s % (sizeof micro_batches / sizeof *micro_batches)];
        double norm = -1, want = norm_in_double(s, G);
        EXPECT(one_step(z, s, G, &norm) == ZERO_OK, "step %zu: %s", s, zero_error(z));
        EXPECT(fabs(norm - want) <= tolerance * want, "step %zu: norm %.9f, in double %.9f", s, norm, want);
        reports_agree(z, "after a step");
    }
    EXPECT(zero_hash(z, &hash[0], &hash[1]) == ZERO_OK, "hash: %s", zero_error(z));
    hash[2] = seen;
}

static void nothing_of_a_bad_step_is_kept(zero *z, float poison) {
    uint64_t before[2], after[2];
    double norm = 0;
    EXPECT(zero_hash(z, &before[0], &before[1]) == ZERO_OK, "hash: %s", zero_error(z));
    EXPECT(micro_batch(z, (size_t)rank, 9, 0) == ZERO_OK &&
               micro_batch(z, (size_t)(ranks + rank), 9, poison) == ZERO_OK,
           "micro-batch: %s", zero_error(z));
    EXPECT(zero_grad_norm(z, &norm) == ZERO_OK, "norm: %s", zero_error(z));
    EXPECT(isnan(poison) ? isnan(norm) : isinf(norm), "one rank's %f gives every rank the norm %f", poison, norm);
    EXPECT(zero_discard(z) == ZERO_OK, "discard: %s", zero_error(z));
    EXPECT(zero_hash(z, &after[0], &after[1]) == ZERO_OK && !memcmp(before, after, sizeof before),
           "a discarded step changed the state");
    EXPECT(one_step(z, 9, 2, &norm) == ZERO_OK && isfinite(norm), "the step after a discarded one: norm %f %s", norm,
           zero_error(z));
}

// Zeros, and denormal numbers: bf16 has them down to 2^-133.
static void small_norms_are_exact(zero *z) {
    double norm = -1;
    scale = 0;
    EXPECT(one_step(z, 10, 3, &norm) == ZERO_OK && norm == 0, "the norm of zeros is %g %s", norm, zero_error(z));
    scale = 0x1p-116f;
    const double want = norm_in_double(11, 3);
    EXPECT(one_step(z, 11, 3, &norm) == ZERO_OK && fabs(norm - want) <= 1e-6 * want,
           "the norm of denormal numbers is %g, in double %g %s", norm, want, zero_error(z));
    scale = 1;
}

// Forward passes where a step does not expect them: between the steps; in the second step before each micro-batch, so
// that two come before a backward, and after the last backward, and after the norm.
static void looking_leaves_no_trace(zero *z) {
    uint64_t hash[2][2];
    double norm;
    for (int look = 0; look <= 1; look++) {
        EXPECT(zero_fill(z, fill, NULL) == ZERO_OK, "fill: %s", zero_error(z));
        for (size_t s = 0; s < 3; s++) {
            const zero_adamw a = {
                .lr = 0.01f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .grad_scale = 1, .t = s + 1
            };
            EXPECT(!look || s == 1 || forward(z) == ZERO_OK, "forward: %s", zero_error(z));
            EXPECT(zero_begin_step(z) == ZERO_OK, "begin: %s", zero_error(z));
            for (size_t g = 0; g < 2; g++) {
                for (int i = 0; i < look * (s == 1); i++) EXPECT(forward(z) == ZERO_OK, "forward: %s", zero_error(z));
                EXPECT(micro_batch(z, g * (size_t)ranks + (size_t)rank, s, 0) == ZERO_OK, "micro-batch: %s",
                       zero_error(z));
            }
            EXPECT(!look || s != 1 || forward(z) == ZERO_OK, "forward: %s", zero_error(z));
            EXPECT(zero_grad_norm(z, &norm) == ZERO_OK, "norm: %s", zero_error(z));
            EXPECT(!look || s != 1 || forward(z) == ZERO_OK, "forward: %s", zero_error(z));
            EXPECT(zero_step(z, &a) == ZERO_OK, "step: %s", zero_error(z));
            if (s != 1) reports_agree(z, "after a look");  // what a look has fetched ahead is not the step's
        }
        EXPECT(zero_hash(z, &hash[look][0], &hash[look][1]) == ZERO_OK, "hash: %s", zero_error(z));
    }
    EXPECT(!memcmp(hash[0], hash[1], sizeof hash[0]), "forward passes between the steps changed the state");
}

static void misuse_is_refused(zero *z) {
    const zero_adamw a = { .lr = 0.1f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .grad_scale = 1, .t = 1 };
    double norm;
    EXPECT(!zero_acquire_params(z, UNITS) && strstr(zero_error(z), "no unit"), "a unit that is not there: %s",
           zero_error(z));
    EXPECT(zero_release_grads(z, 1) == ZERO_ERR_ARG, "a release without acquire");
    EXPECT(zero_step(z, &a) == ZERO_ERR_ARG, "a step without gradients");
    EXPECT(zero_grad_norm(z, &norm) == ZERO_ERR_ARG, "a norm without gradients");
    EXPECT(micro_batch(z, (size_t)rank, 0, 0) == ZERO_OK, "micro-batch: %s", zero_error(z));
    EXPECT(zero_acquire_grads(z, 1) != NULL, "acquire: %s", zero_error(z));
    EXPECT(!zero_acquire_grads(z, 1) && strstr(zero_error(z), "twice"), "acquired twice: %s", zero_error(z));
    EXPECT(zero_release_grads(z, 1) == ZERO_OK, "release: %s", zero_error(z));
    EXPECT(zero_discard(z) == ZERO_ERR_ARG, "discarded in the middle of a micro-batch");
    EXPECT(zero_finish_backward(z) == ZERO_ERR_ARG && strstr(zero_error(z), "not released"),
           "a micro-batch without its units: %s", zero_error(z));
}

static int aborts(void *ctx, size_t tensor, size_t begin, size_t count, float *out) {
    (void)ctx;
    (void)tensor;
    (void)begin;
    (void)out;
    (void)count;
    return 1;
}

// A mesh of data x tensor x pipeline ranks: each data-parallel group trains a model of its own, and none sees another's
// gradients. In groups that shard, if there are enough data ranks.
static void meshes_reduce_apart(int nccl, int variant, int tensor, int pipe, int shard) {
    zero_mesh mesh;
    zero_comm *data, *shards, *replicas;
    char err[512] = "";
    int who[2], all[2 * 64];
    EXPECT(zero_mesh_create(&mesh, rank, ranks, tensor, pipe, shard, err, sizeof err) == ZERO_OK, "mesh: %s", err);
    const int e = nccl ? zero_mesh_comms_nccl(&mesh, boot, &(zero_comm_nccl_config){ .timeout_s = 60 }, &memory, &data,
                                              &shards, &replicas, err, sizeof err)
                       : zero_mesh_comms_mpi(&mesh, MPI_COMM_WORLD, &(zero_comm_mpi_config){ .timeout_s = 60 }, &memory,
                                             &data, &shards, &replicas, err, sizeof err);
    EXPECT(e == ZERO_OK, "comms: %s", err);
    data_rank = zero_comm_rank(data);
    data_ranks = zero_comm_size(data);
    stripe = who[0] = mesh.pipe_rank * tensor + mesh.tensor_rank;
    who[1] = rank;
    EXPECT(data_rank == mesh.data_rank && data_ranks == mesh.data && zero_comm_size(shards) == mesh.shard &&
               zero_comm_rank(shards) == mesh.shard_rank,
           "ranks out of place");
    EXPECT(zero_comm_allgather_host(data, who, sizeof who, all) == ZERO_OK, "gather: %s", zero_comm_error(data));
    for (int d = 0; d < data_ranks; d++)
        EXPECT(all[2 * d] == stripe && all[2 * d + 1] == (mesh.pipe_rank * mesh.data + d) * tensor + mesh.tensor_rank,
               "rank %d is not data rank %d", all[2 * d + 1], d);
    const zero_comm_shape shape = zero_comm_get_shape(data);
    other_transport = shards != data ? zero_comm_scratch_bytes(&shape, 0, 0, 0) : 0;
    zero *z = make(shards, replicas, variant, ZERO_REDUCE_EXACT);
    double norm;
    uint64_t hash[2];
    for (size_t s = 0; s < 3; s++) {
        const double want = norm_in_double(s, s + 1);
        EXPECT(one_step(z, s, s + 1, &norm) == ZERO_OK, "step: %s", zero_error(z));
        EXPECT(fabs(norm - want) <= 1e-6 * want, "norm %.9f, in double %.9f", norm, want);
        reports_agree(z, "in a mesh");
    }
    EXPECT(zero_hash(z, &hash[0], &hash[1]) == ZERO_OK, "hash: %s", zero_error(z));
    zero_destroy(z);
    zero_comm_destroy(replicas);
    if (shards != data) zero_comm_destroy(shards);
    zero_comm_destroy(data);
    EXPECT(memory.total_live == 0, "%zu bytes are still in the books", memory.total_live);
    memset(&memory, 0, sizeof memory);
    data_rank = rank;
    data_ranks = ranks;
    stripe = 0;
    other_transport = 0;
}

// Parameters may be acquired in another order than was announced, so that what was fetched ahead is not used; units may
// be empty, the first one too.
static void any_order_works(zero_comm *c, int prefetch) {
    enum { MANY = 13 };
    zero_tensor many[MANY];
    size_t order[MANY], logical = 0;
    for (size_t u = 0; u < MANY; u++) {
        many[u] = (zero_tensor){ "many", 100 * u, u, logical, 0 };
        logical += 100 * u;
        order[u] = u;
    }
    const zero_config config = { .settings = { .stage = 3, .prefetch = prefetch },
                                 .order = order,
                                 .order_length = MANY,
                                 .tensors = many,
                                 .num_tensors = MANY,
                                 .shard_comm = c,
                                 .accounting = &memory };
    zero *z = NULL;
    double norm = -1;
    unsigned seed = 12345;  // the same on all ranks
    EXPECT(zero_create(&z, &config) == ZERO_OK, "create: %s", zero_error(z));
    EXPECT(zero_fill(z, fill_many, many) == ZERO_OK, "fill: %s", zero_error(z));
    for (int i = 0; i < 200; i++) {
        const size_t u = (size_t)rand_r(&seed) % MANY;
        const void *device = zero_acquire_params(z, u);
        EXPECT(device != NULL, "acquire number %d: %s", i, zero_error(z));
        float *p = device ? copy_of(device, many[u].numel, sizeof *p) : NULL;
        for (size_t k = 0; k < many[u].numel && p; k++)
            EXPECT(p[k] == initial(many[u].logical + k), "acquire number %d: unit %zu has other parameters", i, u);
        if (p) zero_release_params(z, u);
        free(p);
    }
    for (size_t u = MANY; u-- > 0;)
        EXPECT(zero_acquire_grads(z, u) && zero_release_grads(z, u) == ZERO_OK, "unit %zu: %s", u, zero_error(z));
    EXPECT(zero_finish_backward(z) == ZERO_OK && zero_grad_norm(z, &norm) == ZERO_OK && norm == 0, "norm %f %s", norm,
           zero_error(z));
    zero_destroy(z);
}

static void refuses(zero_comm *c, zero_config config, const char *word) {
    zero *z;
    config.shard_comm = c;
    config.accounting = &memory;
    const int e = zero_create(&z, &config);
    EXPECT(e == ZERO_ERR_ARG && strstr(zero_error(z), word), "the message is: %s", zero_error(z));
    zero_destroy(z);
}

// Ways to move bytes: MPI's, and NCCL.
struct way {
    const char *name;
    zero_comm_mpi_config config;
};
static const char NCCL[] = "NCCL";

static zero_comm *connect(const struct way *way) {
    zero_comm *c;
    const int e = way->name == NCCL
                      ? zero_comm_create_nccl(&c, boot, &(zero_comm_nccl_config){ .timeout_s = 60 }, &memory)
                      : zero_comm_create_mpi(&c, MPI_COMM_WORLD, &way->config, &memory);
    EXPECT(e == ZERO_OK, "create: %s", zero_comm_error(c));
    return c;
}

int main(int argc, char **argv) {
    static const struct way ways[] = {
        { "shared memory", { .timeout_s = 60 } },
        { "messages", { .timeout_s = 60, .no_shared_memory = 1 } },
        { "staged", { .timeout_s = 60, .staged = 1 } },
        { "two ranks a host", { .timeout_s = 60, .ranks_per_host = 2 } },
        { NCCL, { .timeout_s = 60 } },
    };
    const size_t num_ways = sizeof ways / sizeof *ways - !nccl_runs_here();
    char name[128];
    uint64_t first[2][KINDS][3] = { { { 0 } } };  // of 20 steps by shared memory (fewer of 8 ranks), of 6 steps
                                                  // in other ways
    zero_comm *c;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    use_own_device();
    EXPECT(zero_bootstrap_create_mpi(&boot, MPI_COMM_WORLD, 60) == ZERO_OK, "bootstrap");
    sent_to = calloc((size_t)ranks, sizeof *sent_to);
    data_rank = rank;
    data_ranks = ranks;
    for (size_t w = 0; w < num_ways; w++)
        for (kind = 0; kind < (w == 0 ? KINDS : ways[w].name == NCCL ? BF16 : BF16_SPLIT); kind++)
            for (int stage = 0; stage < VARIANTS; stage++) {
                const size_t steps = w == 0 && ranks < 8 ? 20 : 6;  // 8 ranks on two cores take their time
                uint64_t hash[3], again[3];
                const char *variant = variants[stage].name;
                memset(&memory, 0, sizeof memory);
                memset(sent_to, 0, (size_t)ranks * sizeof *sent_to);
                asked_for = 0;
                c = connect(&ways[w]);
                zero *z = make(c, NULL, stage, ZERO_REDUCE_EXACT);
                train(z, steps, hash);
                if (!first[w > 0][kind][0]) memcpy(first[w > 0][kind], hash, sizeof hash);
                EXPECT(!memcmp(first[w > 0][kind], hash, sizeof hash),
                       "params %016llx, optimizer %016llx; first: %016llx, %016llx (or other parameters were seen on "
                       "the way)",
                       (unsigned long long)hash[0], (unsigned long long)hash[1],
                       (unsigned long long)first[w > 0][kind][0], (unsigned long long)first[w > 0][kind][1]);
                if (ways[w].config.no_shared_memory) messages_are_counted(c);
                snprintf(name, sizeof name, "one hash, norms of double, books equal formulas: %s, %s, %s", variant,
                         kind_names[kind], ways[w].name);
                case_done(name);
                padding_is_zero(z);
                nothing_of_a_bad_step_is_kept(z, NAN);
                nothing_of_a_bad_step_is_kept(z, -INFINITY);
                snprintf(name, sizeof name, "padding stays zero, one rank's NaN or Inf stops all: %s, %s, %s", variant,
                         kind_names[kind], ways[w].name);
                case_done(name);
                small_norms_are_exact(z);
                looking_leaves_no_trace(z);
                snprintf(name, sizeof name, "norms of zeros and denormals, looking leaves no trace: %s, %s, %s",
                         variant, kind_names[kind], ways[w].name);
                case_done(name);
                EXPECT(zero_fill(z, fill, NULL) == ZERO_OK, "fill: %s", zero_error(z));
                train(z, steps, again);
                EXPECT(!memcmp(hash, again, sizeof hash), "a refilled engine trains otherwise than a new one");
                EXPECT(zero_fill(z, aborts, NULL) == ZERO_ERR_CALLBACK && strstr(zero_error(z), "could not be filled"),
                       "a failing callback: %s", zero_error(z));
                // leaves units that are fetched ahead, and still on their way
                EXPECT(forward(z) == ZERO_OK, "forward: %s", zero_error(z));
                zero_destroy(z);
                zero_comm_destroy(c);
                EXPECT(memory.total_live == 0, "%zu bytes are still in the books", memory.total_live);
                snprintf(name, sizeof name, "refilled, same bits; all memory given back: %s, %s, %s", variant,
                         kind_names[kind], ways[w].name);
                case_done(name);
            }
    EXPECT(!memcmp(first[0][BF16], first[0][BF16_SPLIT], sizeof first[0][BF16]),
           "a split master has other bits than a plain one");
    EXPECT(memcmp(first[0][BF16], first[0][BF16_NO_MASTER], sizeof first[0][BF16]),
           "without a master the bits are the same: is it used?");
    case_done("a split master trains as a plain one, none otherwise");
    for (size_t w = 0; w < num_ways; w++) {
        if (w > 0 && ways[w].name != NCCL) continue;
        for (int stage = 0; stage < VARIANTS; stage++) {
            kind = ways[w].name == NCCL && stage % 2 ? BF16 : F32;  // in bf16 NCCL's sums are rounded: norms only
                                                                    // so far
            memset(&memory, 0, sizeof memory);
            c = connect(&ways[w]);
            zero *z = make(c, NULL, stage, ZERO_REDUCE_LIBRARY);
            uint64_t hash[3];
            tolerance = kind == BF16 && w > 0 ? 1e-2 : 1e-6;
            train(z, 6, hash);  // no promise about the hash
            zero_destroy(z);
            zero_comm_destroy(c);
        }
        snprintf(name, sizeof name, "the library's reduction: norms of double: %s", ways[w].name);
        case_done(name);
    }
    tolerance = 1e-6;
    kind = F32;
    memset(&memory, 0, sizeof memory);
    c = connect(&ways[0]);
    for (int stage = 0; stage < VARIANTS; stage++) {
        zero *a = make(c, NULL, stage, ZERO_REDUCE_EXACT), *b = make(c, NULL, VARIANTS - 1 - stage, ZERO_REDUCE_EXACT);
        uint64_t hash_a[2], hash_b[2];
        double norm;
        for (size_t s = 0; s < 3; s++)
            EXPECT(one_step(a, s, s + 1, &norm) == ZERO_OK && one_step(b, s, s + 1, &norm) == ZERO_OK, "step: %s%s",
                   zero_error(a), zero_error(b));
        EXPECT(zero_hash(a, &hash_a[0], &hash_a[1]) == ZERO_OK && zero_hash(b, &hash_b[0], &hash_b[1]) == ZERO_OK,
               "hash: %s%s", zero_error(a), zero_error(b));
        EXPECT(!memcmp(hash_a, hash_b, sizeof hash_a), "two engines side by side disagree");
        zero_destroy(b);
        zero_destroy(a);
    }
    case_done("two engines live side by side on one transport");
    for (int stage = 0; stage < VARIANTS; stage++) {
        zero *z = make(c, NULL, stage, ZERO_REDUCE_EXACT);
        misuse_is_refused(z);
        zero_destroy(z);
    }
    case_done("misuse of the brackets is refused with words");
    zero_tensor gap[2] = { { "a", 10, 0, 0, 0 }, { "b", 10, 2, 10, 0 } };
    refuses(c, (zero_config){ .settings.stage = 4, .tensors = tensors, .num_tensors = TENSORS }, "stage 4");
    refuses(c, (zero_config){ .settings.stage = 3, .settings.prefetch = 3, .tensors = tensors, .num_tensors = TENSORS },
            "fetched ahead");
    refuses(c,
            (zero_config){ .settings.stage = 3,
                           .order = (const size_t[]){ 9 },
                           .order_length = 1,
                           .tensors = tensors,
                           .num_tensors = TENSORS },
            "not there");
    refuses(c,
            (zero_config){ .settings.stage = 1,
                           .settings.shard_group = (size_t)ranks + 1,
                           .tensors = tensors,
                           .num_tensors = TENSORS },
            "settings.shard_group");
    refuses(c, (zero_config){ .settings.stage = -1, .tensors = tensors, .num_tensors = TENSORS }, "stage -1");
    refuses(c, (zero_config){ .settings.master = ZERO_MASTER_SPLIT, .tensors = tensors, .num_tensors = TENSORS },
            "their own master weights");
    refuses(
        c,
        (zero_config){ .settings.dtype = ZERO_BF16, .settings.master = 3, .tensors = tensors, .num_tensors = TENSORS },
        "kind 3");
    refuses(c, (zero_config){ .settings.stage = 1, .tensors = gap, .num_tensors = 2 }, "unit by unit");
    refuses(c, (zero_config){ .settings.stage = 1, .tensors = gap, .num_tensors = 0 }, "at least one tensor");
    case_done("impossible configurations are refused with words");
    zero_comm_destroy(c);
    for (size_t w = 0; w < num_ways; w++) {
        memset(&memory, 0, sizeof memory);
        c = connect(&ways[w]);
        for (int prefetch = 0; prefetch <= 2; prefetch++) any_order_works(c, prefetch);
        zero_comm_destroy(c);
        snprintf(name, sizeof name, "any order of acquires, empty units: %s", ways[w].name);
        case_done(name);
    }
    memset(&memory, 0, sizeof memory);
    const int tensor = ranks % 2 ? 1 : 2, pipe = ranks % 8 ? 1 : 2, data = ranks / tensor / pipe;
    for (int nccl = 0; nccl <= nccl_runs_here(); nccl++) {
        for (int v = nccl; v < VARIANTS; v += 1 + nccl) {
            meshes_reduce_apart(nccl, v, tensor, pipe, 0);
            if (variants[v].stage > 0) meshes_reduce_apart(nccl, v, 1, 1, ranks % 2 ? 1 : 2);
            if (variants[v].stage > 0) meshes_reduce_apart(nccl, v, tensor, pipe, data % 2 ? 1 : data / 2);
        }
        snprintf(name, sizeof name,
                 "data-parallel groups of a %d x %d x %d mesh reduce apart, with groups that shard in them: %s", data,
                 tensor, pipe, nccl ? "NCCL" : "MPI");
        case_done(name);
    }
    zero_bootstrap_destroy(boot);
    return cases_done();
}
