// test_engine_order.c: settings.order: which micro-batches a rank takes. Rank by rank has the bits of step by step, in
// every stage that has both, over every transport, in groups of every size, and needs what its formulas say. Run under
// mpirun.
#include "test/ranks/toy_model.h"
#include "zero/kernels.h"

// Steps of G micro-batches a rank, in this order; *hash is of what they leave.
static void train_in_order(zero_comm *c, zero_comm *replicas, int stage, enum zero_order in, size_t G,
                           uint64_t hash[2]) {
    static const char *const names[] = { "step by step", "rank by rank", "layer by layer" };
    double norm = -1;
    micro_batch_order = in;
    memcpy(memory.peak, memory.live, sizeof memory.peak);  // the transport's: forget other engines
    zero_config config = config_of(c, stage);
    config.replicate_comm = replicas;
    config.micro_batches = G;
    config.settings.delay_seed = G % 2;
    zero *z = make_of(config);
    for (size_t s = 0; s < 2; s++) {
        CHECK(one_step(z, s, G, &norm) == ZERO_OK, "step: %s", zero_error(z));
        reports_agree(z, names[in]);
    }
    CHECK(zero_hash(z, &hash[0], &hash[1]) == ZERO_OK, "hash: %s", zero_error(z));
    zero_destroy(z);
    micro_batch_order = ZERO_ORDER_STEP;
}

static zero_mesh_comms join_counted(const struct way *way, int shard) {
    memset(&memory, 0, sizeof memory);
    const zero_mesh_comms comms = join_groups(way, shard, PATIENT);
    const zero_comm_shape shape = zero_comm_get_shape(comms.data);
    other_transport = comms.shard != comms.data ? zero_comm_scratch_bytes(&shape, 0, 0, 0) : 0;
    return comms;
}

// In groups of `shard` ranks. A rank passes on one sum (G a power of two), or several. Scratch of the transport only
// grows, so that what needs more comes later. One order may take two levels between hosts and the other one not.
static void orders_agree(const struct way *way, int shard, size_t G) {
    uint64_t want[2], have[2];
    zero_mesh_comms comms = join_counted(way, shard);
    train_in_order(comms.shard, comms.replicate, 1, ZERO_ORDER_STEP, G, want);
    zero_mesh_comms_destroy(&comms);
    comms = join_counted(way, shard);
    for (int stage = 1; stage >= (comms.replicate ? 1 : 0); stage--) {
        train_in_order(comms.shard, comms.replicate, stage, ZERO_ORDER_RANK, G, have);
        CHECK(!memcmp(have, want, sizeof want), "stage %d, G = %zu, groups of %d, %s: other bits", stage, G, shard,
              kind_names[kind]);
    }
    for (int stage = 3; stage >= (comms.replicate ? 1 : 0); stage--) {
        if (stage == 1 || shard < ranks || ranks == 1) continue;  // scratch
        train_in_order(comms.shard, comms.replicate, stage, ZERO_ORDER_LAYER, G, have);
        CHECK(!memcmp(have, want, sizeof want), "layer by layer, stage %d, G = %zu, groups of %d, %s: other bits",
              stage, G, shard, kind_names[kind]);
    }
    zero_mesh_comms_destroy(&comms);
    other_transport = 0;
}

static void every_order_has_the_same_bits(const struct way *way) {
    static const size_t micro_batches[] = { 1, 2, 3, 4, 6, 8 };
    for (kind = F32; kind <= BF16; kind++)
        for (size_t i = 0; i < sizeof micro_batches / sizeof *micro_batches; i++)
            for (int shard = 1; shard <= ranks; shard++)
                if (ranks % shard == 0) orders_agree(way, shard, micro_batches[i]);
    kind = F32;
}

// Steps that end too early or go on too long; a step that was dropped leaves no trace.
static void a_step_has_its_micro_batches(zero_comm *c) {
    uint64_t hash[2][2];
    double norm;
    for (int drop = 0; drop <= 1; drop++) {
        zero_config config = config_of(c, 1);
        config.settings.order = micro_batch_order = ZERO_ORDER_RANK;
        config.micro_batches = 2;
        zero *z = make_of(config);
        if (drop) {
            CHECK(micro_batch(z, 5, 0, 0) == ZERO_OK, "%s", zero_error(z));
            CHECK(zero_grad_norm(z, &norm) == ZERO_ERR_ARG && strstr(zero_error(z), "micro_batches is 2"), "%s",
                  zero_error(z));
            CHECK(zero_discard(z) == ZERO_OK, "%s", zero_error(z));
            for (int g = 0; g < 2; g++) CHECK(micro_batch(z, 5, 0, 0) == ZERO_OK, "%s", zero_error(z));
            CHECK(micro_batch(z, 5, 0, 0) == ZERO_ERR_ARG && strstr(zero_error(z), "a step has 2"), "%s",
                  zero_error(z));
            CHECK(zero_discard(z) == ZERO_OK, "%s", zero_error(z));
        }
        CHECK(one_step(z, 0, 2, &norm) == ZERO_OK && one_step(z, 1, 2, &norm) == ZERO_OK, "%s", zero_error(z));
        CHECK(zero_hash(z, &hash[drop][0], &hash[drop][1]) == ZERO_OK, "%s", zero_error(z));
        zero_destroy(z);
        micro_batch_order = ZERO_ORDER_STEP;
    }
    CHECK(!memcmp(hash[0], hash[1], sizeof hash[0]), "a step that was dropped has left a trace");
}

// The sums of a rank's own micro-batches are subtrees of the tree over all: at most so many at a time.
static void slots_hold_every_subtree(void) {
    for (size_t G = 1; G <= 64; G++) {
        const zero_group_sums own = zero_cost_group_sums(G, ZERO_F32);
        size_t most = 0;
        for (size_t g = 1; g <= G; g++) {
            const size_t live = g / own.leaves + (size_t)zero_partial_sums_live(g % own.leaves);
            if (live > most) most = live;
        }
        CHECK(zero_cost_own_slots(G) == most, "G = %zu: %zu slots, %zu needed", G, zero_cost_own_slots(G), most);
        CHECK(own.count * own.leaves == G && own.count % 2 == 1, "G = %zu: %zu sums of %zu", G, own.count, own.leaves);
    }
    CHECK(zero_cost_rank_order_pays(ZERO_F32, 2, 2) && !zero_cost_rank_order_pays(ZERO_F32, 2, 3), "fp32");
    CHECK(zero_cost_rank_order_pays(ZERO_BF16, 2, 4) && !zero_cost_rank_order_pays(ZERO_BF16, 2, 6), "bf16");
    CHECK(!zero_cost_rank_order_pays(ZERO_F32, 1, 4), "one rank sends nothing");
}

int main(int argc, char **argv) {
    start_engines(&argc, argv);
    const int num_ways = MAIN_WAYS - !nccl_runs_here();  // NCCL is the last one
    CASE("sums of own micro-batches are overwritten") slots_hold_every_subtree();
    for (int w = 0; w < num_ways; w++)
        CASE("rank by rank: bits of step by step, bytes equal the formulas: %s", ways[main_ways[w]].name)
            every_order_has_the_same_bits(&ways[main_ways[w]]);
    memset(&memory, 0, sizeof memory);
    zero_comm *c = join(&ways[SHARED_MEMORY], PATIENT);
    CASE("rank by rank: a step has its micro-batches") a_step_has_its_micro_batches(c);
    zero_comm_destroy(c);
    return finish_world();
}
