// test_engine.c: the engine by itself, with made-up tensors and gradients: what its caller may rely on, in every stage,
// precision and way of moving bytes. (test_gpt2_zero compares with unsharded training.) Run under mpirun.
//
// Received bytes are counted by the transport, and predicted by the formula. A third count is independent of both:
// message_counter.h adds up what MPI sends and receives. Where everything goes by messages, the
// transport's count must equal what the others have sent to a rank, and what it has posted.
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "test/ranks/message_counter.h"
#include "test/ranks/variants.h"
#include "zero/internal.h"  // to see the padding of optimizer state, which no call shows

static void padding_is_zero(zero *z) {
    const zero_layout *l = zero_get_layout(z);
    const size_t b = element(), master = master_bytes(z);
    for (size_t u = 0; u < UNITS; u++) {
        const size_t n = state_numel(z, u);
        char *p = copy_of(zero_acquire_params(z, u), zero_layout_unit_numel(l, u), b);
        char *const *arrays = z->parts[z->first_part[u]].arrays;
        char *low = copy_of(arrays[ARRAY_MASTER], n, master);
        float *m = copy_of(arrays[ARRAY_STATES], n, sizeof *m), *v = copy_of(arrays[ARRAY_STATES + 1], n, sizeof *v);
        char *real = calloc(zero_layout_unit_numel(l, u), 1);
        for (size_t t = 0; t < TENSORS; t++)
            if (tensors[t].unit == u) memset(real + zero_tensor_offset(z, t), 1, tensors[t].numel);
        for (size_t i = 0; i < zero_layout_unit_numel(l, u); i++)
            CHECK(real[i] || !memcmp(p + i * b, "\0\0\0\0", b), "padding element %zu of unit %zu is not zero", i, u);
        for (size_t i = 0; i < n; i++) {
            if (real[state_begin(z, u) + i]) continue;
            CHECK(m[i] == 0 && v[i] == 0, "padding element %zu of unit %zu has m %g, v %g", i, u, m[i], v[i]);
            CHECK(!memcmp(low + i * master, "\0\0\0\0", master), "padding element %zu of unit %zu has a master weight",
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

// See the top of the file. Only where all goes by messages.
static void messages_are_counted(zero_comm *c) {
    uint64_t received = 0, sent_to_me = 0, *from = calloc((size_t)ranks, sizeof *from);
    for (int k = 0; k < ZERO_WIRE_KINDS; k++) received += zero_comm_received(c, (enum zero_wire)k);
    MPI_Alltoall(sent_to, 1, MPI_UINT64_T, from, 1, MPI_UINT64_T, MPI_COMM_WORLD);
    for (int r = 0; r < ranks; r++) sent_to_me += from[r];
    CHECK(received == asked_for && received == sent_to_me && (received > 0 || ranks == 1),
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
        CHECK(one_step(z, s, G, &norm) == ZERO_OK, "step %zu: %s", s, zero_error(z));
        CHECK(fabs(norm - want) <= tolerance * want, "step %zu: norm %.9f, in double %.9f", s, norm, want);
        reports_agree(z, "after a step");
    }
    CHECK(zero_hash(z, &hash[0], &hash[1]) == ZERO_OK, "hash: %s", zero_error(z));
    hash[2] = seen;
}

static void nothing_of_a_bad_step_is_kept(zero *z, float poison) {
    uint64_t before[2], after[2];
    double norm = 0;
    CHECK(zero_hash(z, &before[0], &before[1]) == ZERO_OK, "hash: %s", zero_error(z));
    CHECK(micro_batch(z, (size_t)rank, 9, 0) == ZERO_OK && micro_batch(z, (size_t)(ranks + rank), 9, poison) == ZERO_OK,
          "micro-batch: %s", zero_error(z));
    CHECK(zero_grad_norm(z, &norm) == ZERO_OK, "norm: %s", zero_error(z));
    CHECK(isnan(poison) ? isnan(norm) : isinf(norm), "one rank's %f gives every rank the norm %f", poison, norm);
    CHECK(zero_discard(z) == ZERO_OK, "discard: %s", zero_error(z));
    CHECK(zero_hash(z, &after[0], &after[1]) == ZERO_OK && !memcmp(before, after, sizeof before),
          "a discarded step changed the state");
    CHECK(one_step(z, 9, 2, &norm) == ZERO_OK && isfinite(norm), "the step after a discarded one: norm %f %s", norm,
          zero_error(z));
}

// Zeros, and denormal numbers: bf16 has them down to 2^-133.
static void small_norms_are_exact(zero *z) {
    double norm = -1;
    scale = 0;
    CHECK(one_step(z, 10, 3, &norm) == ZERO_OK && norm == 0, "the norm of zeros is %g %s", norm, zero_error(z));
    scale = 0x1p-116f;
    const double want = norm_in_double(11, 3);
    CHECK(one_step(z, 11, 3, &norm) == ZERO_OK && fabs(norm - want) <= 1e-6 * want,
          "the norm of denormal numbers is %g, in double %g %s", norm, want, zero_error(z));
    scale = 1;
}

// Forward passes where a step does not expect them: between the steps; in the second step before each micro-batch, so
// that two come before a backward, and after the last backward, and after the norm.
static void looking_leaves_no_trace(zero *z) {
    uint64_t hash[2][2];
    double norm;
    for (int look = 0; look <= 1; look++) {
        CHECK(zero_fill(z, fill, NULL) == ZERO_OK, "fill: %s", zero_error(z));
        for (size_t s = 0; s < 3; s++) {
            const zero_hyperparameters a = { .lr = 0.01f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f };
            CHECK(!look || s == 1 || forward(z) == ZERO_OK, "forward: %s", zero_error(z));
            CHECK(zero_begin_step(z) == ZERO_OK, "begin: %s", zero_error(z));
            for (size_t g = 0; g < 2; g++) {
                for (int i = 0; i < look * (s == 1); i++) CHECK(forward(z) == ZERO_OK, "forward: %s", zero_error(z));
                CHECK(micro_batch(z, g * (size_t)ranks + (size_t)rank, s, 0) == ZERO_OK, "micro-batch: %s",
                      zero_error(z));
            }
            CHECK(!look || s != 1 || forward(z) == ZERO_OK, "forward: %s", zero_error(z));
            CHECK(zero_grad_norm(z, &norm) == ZERO_OK, "norm: %s", zero_error(z));
            CHECK(!look || s != 1 || forward(z) == ZERO_OK, "forward: %s", zero_error(z));
            CHECK(zero_step(z, &a) == ZERO_OK, "step: %s", zero_error(z));
            if (s != 1) reports_agree(z, "after a look");  // what a look has prefetched is not the step's
        }
        CHECK(zero_hash(z, &hash[look][0], &hash[look][1]) == ZERO_OK, "hash: %s", zero_error(z));
    }
    CHECK(!memcmp(hash[0], hash[1], sizeof hash[0]), "forward passes between the steps changed the state");
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
    zero_mesh_comms comms;
    char err[512] = "";
    int who[2], all[2 * 64];
    CHECK(zero_mesh_create(&mesh, rank, ranks, tensor, pipe, shard, err, sizeof err) == ZERO_OK, "mesh: %s", err);
    const int e = zero_mesh_comms_create(&comms, &mesh, zero_transport_find(nccl ? "nccl" : "mpi"), boot,
                                         &(zero_comm_config){ .timeout_s = 60 }, &memory, err, sizeof err);
    REQUIRE(e == ZERO_OK, "comms: %s", err);
    zero_comm *data = comms.data, *shards = comms.shard;
    data_rank = zero_comm_rank(data);
    data_ranks = zero_comm_size(data);
    stripe = who[0] = mesh.pipe_rank * tensor + mesh.tensor_rank;
    who[1] = rank;
    CHECK(data_rank == mesh.data_rank && data_ranks == mesh.data && zero_comm_size(shards) == mesh.shard &&
              zero_comm_rank(shards) == mesh.shard_rank,
          "ranks out of place");
    CHECK(zero_comm_allgather_host(data, who, sizeof who, all) == ZERO_OK, "gather: %s", zero_comm_error(data));
    for (int d = 0; d < data_ranks; d++)
        CHECK(all[2 * d] == stripe && all[2 * d + 1] == (mesh.pipe_rank * mesh.data + d) * tensor + mesh.tensor_rank,
              "rank %d is not data rank %d", all[2 * d + 1], d);
    const zero_comm_shape shape = zero_comm_get_shape(data);
    other_transport = shards != data ? zero_comm_scratch_bytes(&shape, 0, 0, 0) : 0;
    memcpy(memory.peak, memory.live, sizeof memory.peak);  // forget the communicator of all ranks, which is gone
    zero *z = make_variant(shards, comms.replicate, variant, ZERO_REDUCE_EXACT);
    double norm;
    uint64_t hash[2];
    for (size_t s = 0; s < 3; s++) {
        const double want = norm_in_double(s, s + 1);
        CHECK(one_step(z, s, s + 1, &norm) == ZERO_OK, "step: %s", zero_error(z));
        CHECK(fabs(norm - want) <= 1e-6 * want, "norm %.9f, in double %.9f", norm, want);
        reports_agree(z, "in a mesh");
    }
    CHECK(zero_hash(z, &hash[0], &hash[1]) == ZERO_OK, "hash: %s", zero_error(z));
    zero_destroy(z);
    zero_mesh_comms_destroy(&comms);
    all_is_given_back();
    data_rank = rank;
    data_ranks = ranks;
    stripe = 0;
    other_transport = 0;
}

static int fill_many(void *ctx, size_t tensor, size_t begin, size_t count, float *out) {
    for (size_t i = 0; i < count; i++) out[i] = initial(((const zero_tensor *)ctx)[tensor].logical + begin + i);
    return 0;
}

// Parameters may be acquired in another order than was announced, so that what was prefetched is not used, and up to 1
// + prefetch units be held at a time; units may be empty, the first one too.
static void any_order_works(zero_comm *c, int prefetch) {
    enum { MANY = 13 };
    zero_tensor many[MANY];
    size_t order[MANY], held[3] = { 0 }, logical = 0;
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
    CHECK(zero_create(&z, &config) == ZERO_OK, "create: %s", zero_error(z));
    CHECK(zero_fill(z, fill_many, many) == ZERO_OK, "fill: %s", zero_error(z));
    for (int i = 0; i < 200; i++) {
        const size_t u = (size_t)rand_r(&seed) % MANY;
        const void *device = zero_acquire_params(z, u);
        CHECK(device != NULL, "acquire number %d: %s", i, zero_error(z));
        float *p = device ? copy_of(device, many[u].numel, sizeof *p) : NULL;
        for (size_t k = 0; k < many[u].numel && p; k++)
            CHECK(p[k] == initial(many[u].logical + k), "acquire number %d: unit %zu has other parameters", i, u);
        free(p);
        held[i % (1 + prefetch)] = u;
        const size_t oldest = held[(i + 1) % (1 + prefetch)];
        if (i >= prefetch) CHECK(zero_release_params(z, oldest) == ZERO_OK, "unit %zu: %s", oldest, zero_error(z));
    }
    for (int i = 200 - prefetch; i < 200; i++)
        CHECK(zero_release_params(z, held[i % (1 + prefetch)]) == ZERO_OK, "%s", zero_error(z));
    for (size_t u = MANY; u-- > 0;)
        CHECK(zero_acquire_grads(z, u, zero_get_micro_batches(z)) && zero_release_grads(z, u) == ZERO_OK,
              "unit %zu: %s", u, zero_error(z));
    CHECK(zero_finish_backward(z) == ZERO_OK && zero_grad_norm(z, &norm) == ZERO_OK && norm == 0, "norm %f %s", norm,
          zero_error(z));
    zero_destroy(z);
}

static void refuses(zero_comm *c, zero_config config, const char *message) {
    zero *z;
    config.shard_comm = c;
    config.accounting = &memory;
    const int e = zero_create(&z, &config);
    CHECK(e == ZERO_ERR_ARG && strstr(zero_error(z), message), "the message is: %s", zero_error(z));
    zero_destroy(z);
}

// An engine that has trained for some steps, which the cases below share. Made when the first of them needs it.
struct run {
    const struct way *way;
    int variant;
    size_t steps;
    zero_comm *c;
    zero *z;
    uint64_t hash[3];
};
static uint64_t first[2][KINDS][3];  // hashes of the long runs (shared memory), of the short ones (all other ways)

static size_t steps_of(int is_short) {
    return is_short || ranks == 8 ? 6 : 20;
}  // 8 ranks on two cores take their time

static void start(struct run *r) {
    if (r->z) return;
    memset(&memory, 0, sizeof memory);
    memset(sent_to, 0, (size_t)ranks * sizeof *sent_to);
    asked_for = 0;
    r->c = join(r->way, PATIENT);
    r->z = make_variant(r->c, NULL, r->variant, ZERO_REDUCE_EXACT);
    train(r->z, r->steps, r->hash);
}

static void stop(struct run *r) {
    if (!r->z) return;
    zero_destroy(r->z);
    leave(r->c);
    r->z = NULL;
}

static void has_the_hash_of_all(struct run *r, uint64_t want[3]) {
    start(r);
    if (!want[0]) memcpy(want, r->hash, sizeof r->hash);
    CHECK(!memcmp(want, r->hash, sizeof r->hash),
          "params %016llx, optimizer %016llx; first: %016llx, %016llx (or other parameters were seen on the way)",
          (unsigned long long)r->hash[0], (unsigned long long)r->hash[1], (unsigned long long)want[0],
          (unsigned long long)want[1]);
    if (r->way->config.no_shared_memory) messages_are_counted(r->c);
}

static void is_refilled(struct run *r) {
    uint64_t again[3];
    start(r);
    CHECK(zero_fill(r->z, fill, NULL) == ZERO_OK, "fill: %s", zero_error(r->z));
    train(r->z, r->steps, again);
    CHECK(!memcmp(r->hash, again, sizeof again), "a refilled engine trains otherwise than a new one");
    CHECK(zero_fill(r->z, aborts, NULL) == ZERO_ERR_CALLBACK && strstr(zero_error(r->z), "the callback that fills"),
          "a failing callback: %s", zero_error(r->z));
    CHECK(zero_discard(r->z) == ZERO_OK && forward(r->z) == ZERO_OK, "forward: %s",
          zero_error(r->z));  // units that were prefetched are still on their way
    stop(r);
}

static void every_way_trains_alike(const struct way *way, int is_short, int variant) {
    struct run r = { .way = way, .variant = variant, .steps = steps_of(is_short) };
    char name[128];
    snprintf(name, sizeof name, "%s, %s, %s", variants[variant].name, kind_names[kind], way->name);
    CASE("one hash, norms of double, accounting equals formulas: %s", name)
        has_the_hash_of_all(&r, first[is_short][kind]);
    CASE("padding stays zero, one rank's NaN or Inf stops all: %s", name) {
        start(&r);
        padding_is_zero(r.z);
        nothing_of_a_bad_step_is_kept(r.z, NAN);
        nothing_of_a_bad_step_is_kept(r.z, -INFINITY);
    }
    CASE("norms of zeros and denormals, looking leaves no trace: %s", name) {
        start(&r);
        small_norms_are_exact(r.z);
        looking_leaves_no_trace(r.z);
    }
    CASE("refilled, same bits; all memory given back: %s", name) is_refilled(&r);
    stop(&r);
}

static void a_split_master_trains_as_a_plain_one(const struct way *way) {
    for (kind = BF16; kind < KINDS; kind++) {
        struct run r = { .way = way, .steps = steps_of(0) };
        if (!first[0][kind][0]) has_the_hash_of_all(&r, first[0][kind]);
        stop(&r);
    }
    CHECK(!memcmp(first[0][BF16], first[0][BF16_SPLIT], sizeof first[0][BF16]),
          "a split master has other bits than a plain one");
    CHECK(memcmp(first[0][BF16], first[0][BF16_NO_MASTER], sizeof first[0][BF16]),
          "without a master the bits are the same: is it used?");
}

static void the_librarys_reduction_has_norms_of_double(const struct way *way) {
    for (int stage = 0; stage < VARIANTS; stage++) {
        kind = is_nccl(way) && stage % 2 ? BF16 : F32;  // in bf16 NCCL's sums are rounded: norms only so far
        memset(&memory, 0, sizeof memory);
        zero_comm *c = join(way, PATIENT);
        zero *z = make_variant(c, NULL, stage, ZERO_REDUCE_LIBRARY);
        uint64_t hash[3];
        tolerance = kind == BF16 && is_nccl(way) ? 1e-2 : 1e-6;
        train(z, 6, hash);  // no promise about the hash
        zero_destroy(z);
        zero_comm_destroy(c);
    }
    tolerance = 1e-6;
    kind = F32;
}

static void two_engines_live_side_by_side(zero_comm *c) {
    for (int stage = 0; stage < VARIANTS; stage++) {
        zero *a = make_variant(c, NULL, stage, ZERO_REDUCE_EXACT),
             *b = make_variant(c, NULL, VARIANTS - 1 - stage, ZERO_REDUCE_EXACT);
        uint64_t hash_a[2], hash_b[2];
        double norm;
        for (size_t s = 0; s < 3; s++)
            CHECK(one_step(a, s, s + 1, &norm) == ZERO_OK && one_step(b, s, s + 1, &norm) == ZERO_OK, "step: %s%s",
                  zero_error(a), zero_error(b));
        CHECK(zero_hash(a, &hash_a[0], &hash_a[1]) == ZERO_OK && zero_hash(b, &hash_b[0], &hash_b[1]) == ZERO_OK,
              "hash: %s%s", zero_error(a), zero_error(b));
        CHECK(!memcmp(hash_a, hash_b, sizeof hash_a), "two engines side by side disagree");
        zero_destroy(b);
        zero_destroy(a);
    }
}

static void impossible_configurations_are_refused(zero_comm *c) {
    zero_tensor gap[2] = { { "a", 10, 0, 0, 0 }, { "b", 10, 2, 10, 0 } };
    refuses(c, (zero_config){ .settings.stage = 4, .tensors = tensors, .num_tensors = TENSORS }, "settings.stage is 4");
    refuses(c, (zero_config){ .settings.stage = 3, .settings.prefetch = 3, .tensors = tensors, .num_tensors = TENSORS },
            "settings.prefetch");
    refuses(c,
            (zero_config){ .settings.stage = 3,
                           .order = (const size_t[]){ 9 },
                           .order_length = 1,
                           .tensors = tensors,
                           .num_tensors = TENSORS },
            "does not exist");
    refuses(c,
            (zero_config){ .settings.stage = 1,
                           .order = (const size_t[]){ 9 },
                           .order_length = 1,
                           .tensors = tensors,
                           .num_tensors = TENSORS },
            "does not exist");
    refuses(c, (zero_config){ .settings.dtype = 7, .tensors = tensors, .num_tensors = TENSORS }, "settings.dtype is 7");
    refuses(c, (zero_config){ .settings.reduction = 9, .tensors = tensors, .num_tensors = TENSORS },
            "settings.reduction is 9");
    refuses(c,
            (zero_config){ .settings.stage = 1,
                           .settings.shard_group = (size_t)ranks + 1,
                           .tensors = tensors,
                           .num_tensors = TENSORS },
            "settings.shard_group");
    refuses(c, (zero_config){ .settings.stage = -1, .tensors = tensors, .num_tensors = TENSORS },
            "settings.stage is -1");
    refuses(c, (zero_config){ .settings.master = ZERO_MASTER_SPLIT, .tensors = tensors, .num_tensors = TENSORS },
            "their own master weights");
    refuses(
        c,
        (zero_config){ .settings.dtype = ZERO_BF16, .settings.master = 3, .tensors = tensors, .num_tensors = TENSORS },
        "settings.master is 3");
    zero_config by_rank = { .settings.order = ZERO_ORDER_RANK, .tensors = tensors, .num_tensors = TENSORS };
    refuses(c, by_rank, "needs micro_batches");
    by_rank.micro_batches = ((size_t)1 << 17) + 1;
    refuses(c, by_rank, "use a power of two");
    by_rank.micro_batches = 2;
    by_rank.settings.stage = 2;
    refuses(c, by_rank, "use settings.stage 0 or 1");
    by_rank.settings = (zero_settings){ .order = ZERO_ORDER_RANK, .reduction = ZERO_REDUCE_LIBRARY };
    refuses(c, by_rank, "ZERO_REDUCE_EXACT only");
    by_rank.settings = (zero_settings){ .order = 7 };
    refuses(c, by_rank, "settings.order is 7");
    refuses(c, (zero_config){ .settings.stage = 1, .tensors = gap, .num_tensors = 2 }, "unit by unit");
    refuses(c, (zero_config){ .settings.stage = 1, .tensors = gap, .num_tensors = 0 }, "at least one tensor");
}

static void cases_of_one_transport(const struct way *way) {
    kind = F32;
    memset(&memory, 0, sizeof memory);
    zero_comm *c = join(way, PATIENT);
    CASE("two engines live side by side on one transport") two_engines_live_side_by_side(c);
    CASE("impossible configurations are refused") impossible_configurations_are_refused(c);
    zero_comm_destroy(c);
}

static void every_order_of_acquires_works(const struct way *way) {
    memset(&memory, 0, sizeof memory);
    zero_comm *c = join(way, PATIENT);
    for (int prefetch = 0; prefetch <= 2; prefetch++) any_order_works(c, prefetch);
    zero_comm_destroy(c);
}

static void all_meshes_reduce_apart(int nccl, int tensor, int pipe, int data) {
    memset(&memory, 0, sizeof memory);
    for (int v = nccl; v < VARIANTS; v += 1 + nccl) {
        meshes_reduce_apart(nccl, v, tensor, pipe, 0);
        if (variants[v].stage > 0) meshes_reduce_apart(nccl, v, 1, 1, ranks % 2 ? 1 : 2);
        if (variants[v].stage > 0) meshes_reduce_apart(nccl, v, tensor, pipe, data % 2 ? 1 : data / 2);
    }
}

int main(int argc, char **argv) {
    start_engines(&argc, argv);
    const int num_ways = MAIN_WAYS - !nccl_runs_here();  // NCCL is the last one
    sent_to = calloc((size_t)ranks, sizeof *sent_to);
    for (int w = 0; w < num_ways; w++)
        for (kind = 0; kind < (w == 0 ? KINDS : is_nccl(&ways[main_ways[w]]) ? BF16 : BF16_SPLIT); kind++)
            for (int variant = 0; variant < VARIANTS; variant++)
                every_way_trains_alike(&ways[main_ways[w]], w > 0, variant);
    CASE("a split master trains as a plain one, none otherwise")
        a_split_master_trains_as_a_plain_one(&ways[SHARED_MEMORY]);
    for (int w = 0; w < num_ways; w++)
        if (w == 0 || is_nccl(&ways[main_ways[w]]))
            CASE("the library's reduction: norms of double: %s", ways[main_ways[w]].name)
                the_librarys_reduction_has_norms_of_double(&ways[main_ways[w]]);
    cases_of_one_transport(&ways[SHARED_MEMORY]);
    for (int w = 0; w < num_ways; w++)
        CASE("any order of acquires, empty units: %s", ways[main_ways[w]].name)
            every_order_of_acquires_works(&ways[main_ways[w]]);
    const int tensor = ranks % 2 ? 1 : 2, pipe = ranks % 8 ? 1 : 2, data = ranks / tensor / pipe;
    for (int nccl = 0; nccl <= nccl_runs_here(); nccl++)
        CASE("data-parallel groups of a %d x %d x %d mesh reduce apart, with groups that shard in them: %s", data,
             tensor, pipe, nccl ? "NCCL" : "MPI")
            all_meshes_reduce_apart(nccl, tensor, pipe, data);
    free(sent_to);
    return finish_world();
}
