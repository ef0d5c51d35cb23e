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

// An engine that takes one step of G micro-batches a rank: the partial sums that were needed, and all else. per_host:
// ranks of each host; 0: there is one host, or the bytes between them cannot be seen.
static void rows_equal_formulas(zero_comm *c, zero_comm *replicas, int stage, size_t G, int per_host) {
    double norm = -1;
    memcpy(memory.peak, memory.live, sizeof memory.peak);  // the transport's: forget other engines
    zero *z = make_variant(c, replicas, of_stages[stage], ZERO_REDUCE_EXACT);
    const uint64_t before = per_host ? sent_to_others(per_host) : 0;
    CHECK(one_step(z, 0, G, &norm) == ZERO_OK, "step: %s", zero_error(z));
    reports_agree(z, "after a step of G micro-batches");
    if (per_host) between_hosts_is_the_formula(z, per_host, before);
    zero_destroy(z);
}

static zero_mesh_comms join_counted(const struct way *w, int shard) {
    memset(&memory, 0, sizeof memory);
    const zero_mesh_comms comms = join_groups(w, shard, PATIENT);
    const zero_comm_shape shape = zero_comm_get_shape(comms.data);
    other_transport = comms.shard != comms.data ? zero_comm_scratch_bytes(&shape, 0, 0, 0) : 0;
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
            for (int stage = shard < ranks; stage < 4; stage++) {
                zero_mesh_comms comms = join_counted(w, shard);
                rows_equal_formulas(comms.shard, comms.replicate, stage, 3, even && !is_nccl(w) ? per_host : 0);
                leave_counted(&comms);
            }
        kind = F32;
    }
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
    free(sent_to);
    return finish_world();
}
