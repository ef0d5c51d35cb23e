// test_nccl.c: what concerns the NCCL transport alone; test_comm.c runs the cases of every transport. Run under mpirun:
// on GPUs with NCCL, one for each rank; on the CPU with its stand-in.
//
// With CUDA_ON_CPU_STREAMS=n each wait of one stream for another is left out in turn, and values must be wrong: else
// the wait would be superfluous, or this test blind.
#include "test/ranks/traffic.h"
#include "zero/comm/nccl/waits.h"

static size_t everywhere(size_t n) {
    unsigned long long mine = n, all = 0;
    MPI_Allreduce(&mine, &all, 1, MPI_UNSIGNED_LONG_LONG, MPI_SUM, MPI_COMM_WORLD);
    return all;
}

static void a_missing_library_is_explained(void) {
    static const char *const libraries[] = { "libnone.so.7", "libm.so.6" }, *const messages[] = { "libnone.so.7",
                                                                                                  "has no nccl" };
    const zero_transport *nccl = zero_transport_find("nccl");
    zero_comm *c;
    char err[640] = "";
    for (int i = 0; i < 2; i++) {
        const zero_comm_config config = { .timeout_s = 60, .library = libraries[i] };
        CHECK(!zero_transport_available(nccl, &config, err, sizeof err) && strstr(err, messages[i]),
              "the message is: %s", err);
        CHECK(zero_comm_create(&c, nccl, boot, &config, &memory, err, sizeof err) == ZERO_ERR_COMM && !c,
              "a transport without a library");
        CHECK(strstr(err, messages[i]) && strstr(err, "the mpi transport"), "the message is: %s", err);
    }
    const int last = rank == ranks - 1;
    const zero_comm_config config = { .timeout_s = 60, .library = last ? "libnone.so.7" : NULL };
    CHECK(zero_comm_create(&c, nccl, boot, &config, &memory, err, sizeof err) == ZERO_ERR_COMM && !c,
          "a transport without a library on one rank");
    CHECK(strstr(err, last ? "libnone.so.7" : "cannot use NCCL"), "the message is: %s", err);
    all_is_given_back();
}

// The last rank is late, and an operation of another communicator is queued behind the one that waits for it. NCCL's
// abort waits for that operation, so the communicators must be aborted together.
static void a_stall_before_another_communicator_is_noticed(void) {
    zero_mesh_comms comms = join_groups(&ways[NCCL], ranks / 2, short_timeout(&ways[NCCL]));
    void *p[2] = { NULL, NULL };
    zero_ticket ticket;
    zero_comm *const both[] = { comms.replicate, comms.shard };
    for (int i = 0; i < 2; i++)
        CHECK(zero_comm_alloc(both[i], &memory, ZERO_MEM_UNIT_BUFFERS, &p[i], 4096 * (size_t)ranks) == ZERO_OK,
              "alloc: %s", zero_comm_error(both[i]));
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank < ranks - 1) {
        int e = ZERO_OK;
        for (int i = 0; i < 2 && !e; i++) {
            zero_comm_phase(both[i], "a test", (size_t)i);
            e = zero_comm_allgather_begin(both[i], p[i], 4096, ZERO_WIRE_PARAMS, NULL, &ticket);
        }
        if (!e) e = zero_comm_synchronize(comms.shard, zero_comm_stream(comms.shard));
        CHECK(e == ZERO_ERR_COMM, "a stalled rank was waited for without end, or not at all");
        CHECK(zero_comm_barrier(comms.data) == ZERO_ERR_COMM && zero_comm_error(comms.data)[0],
              "a communicator works that was aborted with the others");
    }
    MPI_Barrier(MPI_COMM_WORLD);
    zero_mesh_comms_destroy(&comms);
    all_is_given_back();
}

// Left out one at a time, the host waiting for each of the three streams first; again if it does not show, since what
// runs beside what depends on the other ranks too.
static void every_wait_is_needed(void) {
    static const struct {
        enum zero_nccl_wait wait;
        int kinds;
        const char *name;
    } waits[] = {
        { ZERO_NCCL_WAIT_ALL_TO_ALL, ALL_TO_ALL, "an all-to-all, for the gradients" },
        { ZERO_NCCL_WAIT_CHUNKS, ALL_TO_ALL, "an all-to-all, until the last one's chunks were read" },
        { ZERO_NCCL_WAIT_ALL_TO_ALL_DONE, ALL_TO_ALL, "a sum, for the chunks" },
        { ZERO_NCCL_WAIT_REUSABLE, ALL_TO_ALL, "new gradients, until the last ones were sent and read" },
        { ZERO_NCCL_WAIT_GATHER, GATHER, "an all-gather, for this rank's chunk" },
        { ZERO_NCCL_WAIT_GATHER_DONE, GATHER, "a reader, for the all-gather" },
        { ZERO_NCCL_WAIT_REUSABLE, GATHER_READ_AT_ONCE, "a new chunk, until the last one was gathered" },
        { ZERO_NCCL_WAIT_OPEN, WINDOW, "a window gather, for the shard" },
        { ZERO_NCCL_WAIT_UNSHARD, WINDOW, "a window gather, until its buffer was read" },
        { ZERO_NCCL_WAIT_UNSHARD_DONE, WINDOW, "a reader, for the window gather" },
        { ZERO_NCCL_WAIT_CLOSE, WINDOW, "a new shard, until the last one was gathered" },
    };
    for (size_t w = 0; w < sizeof waits / sizeof *waits; w++)
        CASE("nobody misses the wait of %s", waits[w].name) {
            size_t wrong = 0;
            for (int again = 0; again < 30 && wrong == 0; again++) {
                // a new one: no table of it leads to buffers that are gone
                zero_comm *c = join(&(struct way){ "", "nccl", "", { .omit_wait = waits[w].wait } }, PATIENT);
                wrong += everywhere(wrong_values(c, waits[w].kinds, again % 3));
                zero_comm_destroy(c);
            }
            CHECK(wrong > 0, "nothing shows that this wait is missing");
        }
}

int main(int argc, char **argv) {
    start_world(&argc, argv);
    if (!nccl_runs_here()) return finish_world();
    RUN(a_missing_library_is_explained);
    if (ranks > 2 && ranks % 2 == 0) RUN(a_stall_before_another_communicator_is_noticed);
    if (getenv("CUDA_ON_CPU_STREAMS")) every_wait_is_needed();
    return finish_world();
}
