// test_engine_order.c: settings.order: which micro-batches a rank takes. Rank by rank and layer by layer have the bits
// of step by step, in every stage that has them, over every transport, in groups of every size, and need what the
// formulas say. Run under mpirun.
#include "test/ranks/toy_model.h"
#include "zero/kernels.h"

static const char *const names[] = { "step by step", "rank by rank", "layer by layer" };

// Steps of G micro-batches a rank, in this order; *hash is of what they leave.
static void train_in_order(zero_comm *c, zero_comm *replicas, int stage, enum zero_order in, size_t G,
                           uint64_t hash[2]) {
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

// An engine on a transport of its own, whose scratch is then what it needs; in groups of `shard` ranks.
static void has_the_bits(const struct way *way, int shard, int stage, enum zero_order in, size_t G, uint64_t want[2]) {
    memset(&memory, 0, sizeof memory);
    zero_mesh_comms comms = join_groups(way, shard, PATIENT);
    note_other_transport(&comms);
    uint64_t have[2];
    train_in_order(comms.shard, comms.replicate, stage, in, G, have);
    if (!want[0]) memcpy(want, have, sizeof have);
    CHECK(!memcmp(have, want, sizeof have), "%s, stage %d, G = %zu, groups of %d, %s: other bits", names[in], stage, G,
          shard, kind_names[kind]);
    zero_mesh_comms_destroy(&comms);
    other_transport = 0;
}

// A rank passes on one sum (G a power of two), or several.
static void every_order_has_the_same_bits(const struct way *way) {
    static const size_t micro_batches[] = { 1, 2, 3, 4, 6, 8 };
    static const struct {
        int stage;
        enum zero_order order;
    } ways_to_run[] = { { 1, ZERO_ORDER_STEP },  { 0, ZERO_ORDER_RANK },  { 1, ZERO_ORDER_RANK },
                        { 0, ZERO_ORDER_LAYER }, { 1, ZERO_ORDER_LAYER }, { 2, ZERO_ORDER_LAYER },
                        { 3, ZERO_ORDER_LAYER } };
    for (kind = F32; kind <= BF16; kind++)
        for (size_t i = 0; i < sizeof micro_batches / sizeof *micro_batches; i++) {
            uint64_t want[2] = { 0, 0 };
            for (int shard = ranks; shard > 0; shard--)
                for (size_t w = 0; w < sizeof ways_to_run / sizeof *ways_to_run && ranks % shard == 0; w++)
                    if (shard == ranks || (ways_to_run[w].stage > 0 && ways_to_run[w].order != ZERO_ORDER_STEP))
                        has_the_bits(way, shard, ways_to_run[w].stage, ways_to_run[w].order, micro_batches[i], want);
        }
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

// One micro-batch after the other, where those of a unit have to come in a row: all buffers for sums are taken.
static void units_come_one_after_the_other(zero_comm *c) {
    uint64_t hash[2][2];
    double norm;
    for (int wrong = 0; wrong <= 1; wrong++) {
        micro_batch_order = ZERO_ORDER_LAYER;
        zero_config config = config_of(c, 3);
        config.micro_batches = 2;
        zero *z = make_of(config);
        if (wrong) {
            CHECK(micro_batch(z, 5, 0, 0) == ZERO_ERR_ARG && strstr(zero_error(z), "of a unit come in a row"), "%s",
                  zero_error(z));
            CHECK(zero_discard(z) == ZERO_OK, "%s", zero_error(z));
        }
        CHECK(one_step(z, 0, 2, &norm) == ZERO_OK, "%s", zero_error(z));
        CHECK(zero_hash(z, &hash[wrong][0], &hash[wrong][1]) == ZERO_OK, "%s", zero_error(z));
        zero_destroy(z);
        micro_batch_order = ZERO_ORDER_STEP;
    }
    CHECK(!memcmp(hash[0], hash[1], sizeof hash[0]), "a refused step has left a trace");
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
        CASE("rank by rank, layer by layer: bits of step by step, bytes equal the formulas: %s",
             ways[main_ways[w]].name)
            every_order_has_the_same_bits(&ways[main_ways[w]]);
    memset(&memory, 0, sizeof memory);
    zero_comm *c = join(&ways[SHARED_MEMORY], PATIENT);
    CASE("rank by rank: a step has its micro-batches") a_step_has_its_micro_batches(c);
    CASE("layer by layer: units come one after the other") units_come_one_after_the_other(c);
    zero_comm_destroy(c);
    return finish_world();
}
