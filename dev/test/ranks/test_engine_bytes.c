// test_engine_bytes.c: memory and bytes on the wire are those of the formulas (zero/cost.h), in shard groups of every
// size and on hosts of every size, which are pretended. Run under mpirun.
//
// Bytes between hosts are counted here, where MPI sends them (message_counter.h), and added over all ranks.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "test/ranks/message_counter.h"
#include "test/ranks/variants.h"

// To ranks of other hosts, of this rank.
static uint64_t sent_to_others(int per_host) {
    uint64_t sum = 0;
    for (int r = 0; r < ranks; r++) sum += r / per_host != rank / per_host ? sent_to[r] : 0;
    return sum;
}

// What all ranks have sent in the last step, since this rank had sent `before`, is what each host sends by formula.
static void between_hosts_is_the_formula(const zero *z, int per_host, uint64_t before) {
    zero_row rows[ZERO_WIRE_KINDS];
    uint64_t sent = sent_to_others(per_host) - before, by_formula = 0;
    const size_t n = zero_report_between_hosts(z, (size_t)per_host, rows, ZERO_WIRE_KINDS);
    for (size_t i = 0; i < n; i++) by_formula += rows[i].expected;
    MPI_Allreduce(MPI_IN_PLACE, &sent, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
    CHECK(sent == by_formula * (uint64_t)(ranks / per_host), "hosts of %d sent %llu bytes, each %llu by formula",
          per_host, (unsigned long long)sent, (unsigned long long)by_formula);
}

static const int of_stages[] = { 0, 1, 2, 4 };  // variants
static int on_disk;                             // optimizer state is: then ranks tell each other of their disks

static zero *make_on_disk(zero_comm *c, zero_comm *replicas, int stage) {
    zero_config config = config_of(c, stage);
    config.replicate_comm = replicas;
    config.settings.offload = ZERO_OFFLOAD_NVME;
    config.settings.offload_fraction = 1;
    config.offload_dir = "build";
    return make_of(config);
}

// An engine that takes one step of G micro-batches a rank: the partial sums that were needed, and all else. per_host:
// ranks of each host; 0: there is one host, or the bytes between them cannot be seen.
static void rows_equal_formulas(zero_comm *c, zero_comm *replicas, int stage, size_t G, int per_host) {
    double norm = -1;
    memcpy(memory.peak, memory.live, sizeof memory.peak);  // the transport's: forget other engines
    zero *z = on_disk ? make_on_disk(c, replicas, stage)
                      : make_variant(c, replicas, of_stages[stage], ZERO_REDUCE_EXACT);
    const uint64_t before = per_host ? sent_to_others(per_host) : 0;
    CHECK(one_step(z, 0, G, &norm) == ZERO_OK, "step: %s", zero_error(z));
    reports_agree(z, "after a step of G micro-batches");
    if (per_host) between_hosts_is_the_formula(z, per_host, before);
    zero_destroy(z);
}

static zero_mesh_comms join_counted(const struct way *w, int shard) {
    memset(&memory, 0, sizeof memory);
    const zero_mesh_comms comms = join_groups(w, shard, PATIENT);
    note_other_transport(&comms);
    return comms;
}

static void leave_counted(zero_mesh_comms *comms) {
    zero_mesh_comms_destroy(comms);
    all_is_given_back();
    other_transport = 0;
}

// All ranks shard, or groups of every size.
static void every_group_needs_its_formula(void) {
    for (int shard = 1; shard <= ranks; shard++) {
        if (ranks % shard) continue;
        zero_mesh_comms comms = join_counted(&ways[SHARED_MEMORY], shard);
        for (kind = F32; kind <= BF16; kind++)
            for (int stage = comms.replicate ? 1 : 0; stage < 4; stage++)
                for (size_t G = 1; G <= 9; G++) rows_equal_formulas(comms.shard, comms.replicate, stage, G, 0);
        kind = F32;
        leave_counted(&comms);
    }
}

// The same on hosts of per_host ranks. What an engine leaves in the transport's scratch another one may not need.
static void every_host_needs_its_formula(const struct way *w, int per_host) {
    for (int shard = 1; shard <= ranks; shard++) {
        if (ranks % shard) continue;
        const int even = shard % per_host == 0 || per_host % shard == 0;
        for (kind = F32; kind <= BF16; kind++)
            for (int stage = shard < ranks; stage < 4; stage++)
                for (on_disk = 0; on_disk <= (kind == F32 && stage == 2); on_disk++) {
                    zero_mesh_comms comms = join_counted(w, shard);
                    rows_equal_formulas(comms.shard, comms.replicate, stage, 3, even && !is_nccl(w) ? per_host : 0);
                    leave_counted(&comms);
                }
        on_disk = 0;
        kind = F32;
    }
}

// More units than may be pending at a time (gradients.c), one in the middle that is reduced in parts: their reductions
// between hosts have the norm of one level.
static void many_units_are_reduced(struct way hosts, int per_host) {
    enum { MANY = 200, LARGE = 64 * ZERO_ALIGN };
    static float g[LARGE];
    zero_tensor many[MANY];
    double norm[2] = { 0, 0 };
    for (size_t u = 0, logical = 0; u < MANY; logical += many[u++].numel)
        many[u] = (zero_tensor){ "many", u == MANY / 2 ? LARGE : ZERO_ALIGN, u, logical, 1 };
    for (int one_level = 0; one_level < 2; one_level++) {
        hosts.config.ranks_per_host = per_host;
        hosts.config.one_level = one_level;
        zero_comm *c = join(&hosts, PATIENT);
        zero_config config = config_of(c, 1);
        config.tensors = many;
        config.num_tensors = MANY;
        zero *z = NULL;
        int e = zero_create(&z, &config);
        for (size_t u = MANY; u-- > 0 && !e;) {
            for (size_t i = 0; i < many[u].numel; i++) g[i] = gradient(many[u].logical + i, (size_t)rank, 0);
            void *device = zero_acquire_grads(z, u, 0);
            REQUIRE(device != NULL, "unit %zu: %s", u, zero_error(z));
            device_write(device, g, many[u].numel * sizeof *g);
            e = zero_release_grads(z, u);
        }
        if (!e) e = zero_finish_backward(z);
        if (!e) e = zero_grad_norm(z, &norm[one_level]);
        CHECK(e == ZERO_OK, "%s", zero_error(z));
        zero_destroy(z);
        leave(c);
    }
    CHECK(norm[0] == norm[1] && norm[0] > 0, "the norm is %g, %g in one level", norm[0], norm[1]);
}

int main(int argc, char **argv) {
    start_engines(&argc, argv);
    sent_to = calloc((size_t)ranks, sizeof *sent_to);
    CASE("bytes equal the formulas, 1 to 9 micro-batches, groups of every size") every_group_needs_its_formula();
    static const int host_ways[] = { SHARED_MEMORY, STAGED, NCCL, NCCL_REGISTERED };
    for (int per_host = 1; per_host < ranks; per_host++)
        for (int w = 0; w < (per_host == 1 ? 1 : 4); w++)
            for (int one_level = 0; one_level <= (w == 0); one_level++) {
                struct way hosts = ways[host_ways[w]];
                if (ranks % per_host || !way_runs_here(&hosts)) continue;
                hosts.config.ranks_per_host = per_host;
                hosts.config.one_level = one_level;
                CASE("bytes between hosts of %d equal the formulas%s: %s", per_host, one_level ? ", one level" : "",
                     hosts.name)
                    every_host_needs_its_formula(&hosts, per_host);
            }
    for (int per_host = 2; per_host < ranks; per_host++)
        if (ranks % per_host == 0)
            CASE("many units are reduced between hosts of %d", per_host)
                many_units_are_reduced(ways[SHARED_MEMORY], per_host);
    free(sent_to);
    return finish_world();
}
