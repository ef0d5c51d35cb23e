// test_comm_failures.c: what every transport does when a rank is late, dead, or calls something else. Run under mpirun,
// with two ranks or more; `--case NCCL` runs one way.
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "test/ranks/ways.h"
#include "zero/comm/transport.h"
#include "zero/keep.h"

// Instead of the C library's: with refuse_executable as a kernel whose vm.memfd_noexec is 2.
static int refuse_executable, refused;
int memfd_create(const char *name, unsigned flags) {
    const unsigned noexec_seal = 8;
    if (!refuse_executable || (flags & noexec_seal)) return (int)syscall(SYS_memfd_create, name, flags & 7);
    refused++;
    errno = EACCES;
    return -1;
}

// Instead of the C library's, which only the watchdog of NCCL calls, between noticing a failure and aborting: another
// thread may run meanwhile.
static int slow_watchdog;
int pthread_mutex_timedlock(pthread_mutex_t *mutex, const struct timespec *until) {
    if (slow_watchdog) usleep(200000);
    return pthread_mutex_clocklock(mutex, CLOCK_REALTIME, until);
}

static void memory_is_never_executable(const struct way *w) {
    refuse_executable = 1;
    zero_comm *c = join(w, PATIENT);
    refuse_executable = 0;
    CHECK(strstr(zero_comm_name(c), w->title) && !strstr(zero_comm_name(c), "cannot map") && !refused, "%s, %d refused",
          zero_comm_name(c), refused);
    leave(c);
}

// The last rank comes late: the others give up in time and name the rank and the phase, and every later call fails with
// that message.
static void a_stalled_rank_is_noticed(const struct way *w, int in_stream) {
    zero_comm *c = join(w, short_timeout(w));
    void *p = NULL;
    zero_ticket ticket = 0;
    char name[32];
    REQUIRE(zero_comm_alloc(c, &memory, ZERO_MEM_UNIT_BUFFERS, &p, 4096 * (size_t)ranks) == ZERO_OK, "alloc: %s",
            zero_comm_error(c));
    MPI_Barrier(MPI_COMM_WORLD);
    zero_comm_phase(c, "a test", 3);
    snprintf(name, sizeof name, "rank %d", ranks - 1);
    if (rank < ranks - 1) {
        int e = ZERO_OK;
        if (in_stream) {
            e = zero_comm_allgather_begin(c, p, 4096, ZERO_WIRE_PARAMS, NULL, &ticket);
            if (!e) e = zero_comm_allgather_finish(c, ticket, zero_comm_stream(c));
            if (!e) e = zero_comm_synchronize(c, zero_comm_stream(c));
        } else {
            e = zero_comm_barrier(c);
        }
        CHECK(e == ZERO_ERR_COMM, "a stalled rank was waited for without end, or not at all");
        CHECK(strstr(zero_comm_error(c), "in a test (unit 3)") && strstr(zero_comm_error(c), "timeout_s") &&
                  strstr(strstr(zero_comm_error(c), "):"), name),
              "the message is: %s", zero_comm_error(c));
        zero_comm_phase(c, "another phase", 4);
        CHECK(zero_comm_barrier(c) == ZERO_ERR_COMM && strstr(zero_comm_error(c), "in a test (unit 3)"),
              "the next call: %s", zero_comm_error(c));
    }
    MPI_Barrier(MPI_COMM_WORLD);
    leave(c);
}

// Setting up is collective and has the time-out too. The late rank comes when the others have given up, and fails as
// well: nobody is left with a communicator that the others do not have.
static void a_rank_that_does_not_come_to_create_is_noticed(const struct way *w) {
    zero_comm *c = NULL;
    zero_bootstrap *own = NULL;
    char err[640] = "";
    const double timeout_s = short_timeout(w);
    const zero_comm_config config = config_of_way(w, timeout_s);
    REQUIRE(meet(&own, MPI_COMM_WORLD, PATIENT) == ZERO_OK, "%s", zero_bootstrap_error(own));
    zero_bootstrap_set_timeout(own, timeout_s);
    for (int late = 0; late <= 1; late++) {
        if ((rank == ranks - 1) == late)
            CHECK(zero_comm_create(&c, zero_transport_find(w->transport), own, &config, &memory, err, sizeof err) ==
                          ZERO_ERR_COMM &&
                      !c && strstr(err, "timeout_s"),
                  "the message is: %s", err);
        MPI_Barrier(MPI_COMM_WORLD);
    }
    zero_bootstrap_destroy(own);
    all_is_given_back();
}

// So have mapping symmetric memory and creating a window, where they are collective.
static void a_rank_that_does_not_come_to_allocate_is_noticed(const struct way *w, int window) {
    zero_comm *c = join(w, short_timeout(w));
    void *p = NULL;
    zero_window *win = NULL;
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank < ranks - 1) {
        const int e = window ? zero_window_create(c, &memory, ZERO_MEM_PARAMS, 4096, &win)
                             : zero_comm_alloc(c, &memory, ZERO_MEM_UNIT_BUFFERS, &p, 4096);
        const int collective = window || strstr(zero_comm_name(c), "staged") == NULL;
        if (collective && strcmp(w->name, "messages"))
            CHECK(e == ZERO_ERR_COMM && strstr(zero_comm_error(c), "timeout_s"), "%d: %s", e, zero_comm_error(c));
        else
            CHECK(e == ZERO_OK || e == ZERO_ERR_COMM, "%d: %s", e, zero_comm_error(c));
    }
    MPI_Barrier(MPI_COMM_WORLD);
    zero_window_destroy(c, win);
    leave(c);
}

// Frees what was passed to a transport that may have failed.
static void release(const zero_comm *c, void *p, size_t bytes) {
    if (zero_comm_in_flight(c)) {
        zero_keep(p);
        zero_accounting_add(&memory, ZERO_MEM_UNIT_BUFFERS, 0, bytes);
    } else {
        zero_accounting_free(&memory, ZERO_MEM_UNIT_BUFFERS, p, bytes);
    }
}

// A transport is destroyed after a failure while its messages are still under way: they must not be written into memory
// that was freed. The late rank sends them when the others are destroying the transport, or when they have done so.
static void destroying_with_messages_under_way_is_safe(const struct way *w, int after) {
    enum { BYTES = 1 << 20 };  // more than MPI sends before it is received
    zero_comm *c = join(w, 2 * short_timeout(w));
    MPI_Barrier(MPI_COMM_WORLD);
    const size_t bytes = BYTES * (size_t)ranks;
    void *p = NULL, *out = zero_accounting_alloc(&memory, ZERO_MEM_UNIT_BUFFERS, bytes);
    zero_window *window = NULL;
    zero_ticket ticket = 0;
    REQUIRE(zero_comm_alloc(c, &memory, ZERO_MEM_UNIT_BUFFERS, &p, bytes) == ZERO_OK, "%s", zero_comm_error(c));
    REQUIRE(zero_window_create(c, &memory, ZERO_MEM_PARAMS, BYTES, &window) == ZERO_OK, "%s", zero_comm_error(c));
    CHECK(zero_window_open(c, window, NULL) == ZERO_OK);
    MPI_Barrier(MPI_COMM_WORLD);
    slow_watchdog = !after;
    int e = ZERO_OK;
    if (rank < ranks - 1) {
        e = zero_window_gather_begin(c, window, 0, BYTES, out, NULL, &ticket);
        if (!e) e = zero_comm_barrier(c);
        CHECK(e == ZERO_ERR_COMM, "a stalled rank was waited for without end, or not at all");
        if (!after) MPI_Barrier(MPI_COMM_WORLD);
        zero_window_destroy(c, window);
        release(c, out, bytes);
        void *again = malloc(bytes);  // where `out` was, perhaps
        memset(again, 1, bytes);
        leave(c);
        if (after) MPI_Barrier(MPI_COMM_WORLD);
        MPI_Barrier(MPI_COMM_WORLD);
        for (size_t i = 0; i < bytes; i++) CHECK(((char *)again)[i] == 1, "freed memory was written to");
        free(again);
        slow_watchdog = 0;
        return;
    }
    MPI_Barrier(MPI_COMM_WORLD);
    e = zero_window_gather_begin(c, window, 0, BYTES, out, NULL, &ticket);
    if (!e) e = zero_window_gather_finish(c, window, ticket, NULL);
    if (!e) e = zero_comm_barrier(c);
    CHECK(e == ZERO_OK || e == ZERO_ERR_COMM, "%s", zero_comm_error(c));  // where memory is shared, all is there
    MPI_Barrier(MPI_COMM_WORLD);
    zero_window_destroy(c, window);
    release(c, out, bytes);
    leave(c);
    slow_watchdog = 0;
}

// Memory that is missing: the message has the reason. Here shared memory of more than `limit` bytes is refused, be it
// for a window's counters, for its shards or for their host copies.
static void missing_memory_is_explained(const struct way *w, rlim_t limit) {
    zero_comm *c = join(w, PATIENT);
    zero_window *window = NULL;
    struct rlimit before;
    REQUIRE(getrlimit(RLIMIT_FSIZE, &before) == 0);
    const struct rlimit low = { limit, before.rlim_max };
    MPI_Barrier(MPI_COMM_WORLD);
    REQUIRE(setrlimit(RLIMIT_FSIZE, &low) == 0);
    const int e = zero_window_create(c, &memory, ZERO_MEM_PARAMS, 1 << 20, &window);
    REQUIRE(setrlimit(RLIMIT_FSIZE, &before) == 0);
    CHECK(e == ZERO_ERR_MEMORY ? strstr(zero_comm_error(c), "RLIMIT_FSIZE") != NULL
                               : !e && limit > 1 && !strcmp(w->name, "messages"),
          "%d: %s", e, zero_comm_error(c));
    MPI_Barrier(MPI_COMM_WORLD);
    zero_window_destroy(c, window);
    leave(c);
}

// The flight recorder has the last collectives, finished or not, and the message.
static void records_tell_what_a_rank_did(const struct way *w) {
    zero_comm *c = join(w, short_timeout(w));
    char path[64], text[1 << 14] = "", first[32];
    zero_comm_phase(c, "a test", 7);
    for (int i = 0; i < 100; i++) CHECK(zero_comm_barrier(c) == ZERO_OK, "%s", zero_comm_error(c));
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank < ranks - 1) CHECK(zero_comm_barrier(c) == ZERO_ERR_COMM);
    snprintf(path, sizeof path, "/tmp/zero_records.%d", (int)getpid());
    CHECK(zero_comm_write_records(c, path) == ZERO_OK);
    FILE *f = fopen(path, "r");
    REQUIRE(f != NULL);
    text[fread(text, 1, sizeof text - 1, f)] = '\0';
    fclose(f);
    unlink(path);
    int lines = 0, unfinished = 0;
    for (const char *at = text; (at = strstr(at, "an all-gather of scalars, unit 7, 1 bytes, in a test")) != NULL; at++)
        lines++;
    for (const char *at = text; (at = strstr(at, "not finished")) != NULL; at++) unfinished++;
    CHECK_EQ(lines, 64);
    CHECK_EQ(unfinished, rank < ranks - 1);
    snprintf(first, sizeof first, "rank %d (", rank);
    CHECK(rank == ranks - 1 || strstr(zero_comm_error(c),
                                      "an all-gather of scalars of unit 7; its last one is an all-gather of scalars"),
          "who is behind, and where: %s", zero_comm_error(c));
    CHECK(!strncmp(text, first, strlen(first)) && (strstr(text, "timeout_s") == NULL) == (rank == ranks - 1), "%.200s",
          text);
    CHECK(zero_comm_write_records(c, "/no/such/directory/records") == ZERO_ERR_ARG);
    MPI_Barrier(MPI_COMM_WORLD);
    leave(c);
}

// The last rank calls another collective than the others: all report it, at the latest with the next scalars, instead
// of moving garbage. Sizes that differ may make NCCL hang, which is noticed too.
enum difference { OTHER_UNIT, OTHER_OFFSET, OTHER_SIZE, OTHER_CALL, DIFFERENCES };
static const char *const DIFFERENCE_NAMES[] = { "unit", "place", "size", "collective" };

static void different_calls_are_reported(const struct way *w, enum difference d) {
    zero_comm *c = join(w, is_nccl(w) && d >= OTHER_SIZE ? 4 * short_timeout(w) : PATIENT);
    void *p = NULL;
    zero_ticket ticket = 0;
    const void *const *chunks;
    REQUIRE(zero_comm_alloc(c, &memory, ZERO_MEM_UNIT_BUFFERS, &p, 4096 * (size_t)ranks) == ZERO_OK, "alloc: %s",
            zero_comm_error(c));
    MPI_Barrier(MPI_COMM_WORLD);
    const int odd = rank == ranks - 1;
    zero_comm_phase(c, "a test", odd && d == OTHER_UNIT ? 4 : 3);
    char *at = (char *)p + (odd && d == OTHER_OFFSET ? 1024 : 0);
    int e;
    if (odd && d == OTHER_CALL) {
        e = zero_comm_all_to_all_begin(c, at, 1024, 1024, NULL, &ticket);
        if (!e) e = zero_comm_all_to_all_finish(c, ticket, NULL, &chunks);
        if (!e) e = zero_comm_all_to_all_done(c, ticket, NULL);
    } else {
        e = zero_comm_allgather_begin(c, at, odd && d == OTHER_SIZE ? 512 : 1024, ZERO_WIRE_PARAMS, NULL, &ticket);
        if (!e) e = zero_comm_allgather_finish(c, ticket, NULL);
    }
    if (!e) e = zero_comm_barrier(c);
    CHECK(e == ZERO_ERR_COMM, "a different call went unnoticed");
    CHECK(strstr(zero_comm_error(c), "in a test (unit") &&
              (strstr(zero_comm_error(c), "disagree") || (zero_comm_stream(c) && d >= OTHER_SIZE)),
          "the message is: %s", zero_comm_error(c));
    MPI_Barrier(MPI_COMM_WORLD);
    leave(c);
}

// Two units of one size, released in another order by the last rank: where ranks read each other's windows in place
// nobody meets, so only the history of calls tells.
static void different_orders_are_reported(const struct way *w) {
    zero_comm *c = join(w, 4 * short_timeout(w));
    void *out = zero_accounting_alloc(&memory, ZERO_MEM_UNIT_BUFFERS, 64 * (size_t)ranks);
    zero_window *window = NULL;
    REQUIRE(zero_window_create(c, &memory, ZERO_MEM_PARAMS, 128, &window) == ZERO_OK, "%s", zero_comm_error(c));
    int e = zero_window_open(c, window, NULL);
    for (size_t i = 0; i < 2 && !e; i++) {
        const size_t unit = rank == ranks - 1 ? 1 - i : i;
        zero_ticket ticket = 0;
        zero_comm_phase(c, "a test", unit);
        e = zero_window_gather_begin(c, window, 64 * unit, 64, out, NULL, &ticket);
        if (!e) e = zero_window_gather_finish(c, window, ticket, NULL);
    }
    if (!e) e = zero_comm_barrier(c);
    // a rank that meets one that has given up first only learns that
    CHECK(e == ZERO_ERR_COMM && (strstr(zero_comm_error(c), "disagree") ||
                                 (rank < ranks - 1 && strstr(zero_comm_error(c), "has not come"))),
          "the message is: %s", zero_comm_error(c));
    MPI_Barrier(MPI_COMM_WORLD);
    zero_accounting_free(&memory, ZERO_MEM_UNIT_BUFFERS, out, 64 * (size_t)ranks);
    zero_window_destroy(c, window);
    leave(c);
}

// NCCL may deliver another collective's data where a record is expected: they are not printed as a record.
static void data_are_not_printed_as_a_record(void) {
    const struct zero_comm_call mine = { .number = 5, .kind = ZERO_CALL_SCALARS, .unit = 3 };
    struct zero_comm_call data;
    for (int byte = 0; byte <= 0x3f; byte += 0x3f) {
        zero_comm c = { .rank = 0, .size = 2 };
        memset(&data, byte, sizeof data);
        CHECK(zero_comm_compare(&c, &mine, 1, &data) == ZERO_ERR_COMM);
        CHECK(strstr(c.error, "collective 5 is an all-gather of scalars of unit 3, rank 1 is in another collective") &&
                  !strstr(c.error, "nothing"),
              "the message is: %s", c.error);
    }
}

// Windows are read in place, so ranks that make different numbers of calls may meet in two calls that look alike.
static void the_number_of_calls_is_compared(void) {
    const struct zero_comm_call few = { .number = 294, .kind = ZERO_CALL_SCALARS }, many = { 483, ZERO_CALL_SCALARS };
    for (int ahead = 0; ahead <= 1; ahead++) {
        zero_comm c = { .rank = 0, .size = 2 };
        CHECK(zero_comm_compare(&c, ahead ? &few : &many, 1, ahead ? &many : &few) == ZERO_ERR_COMM);
        CHECK(strstr(c.error, ahead ? "rank 1 has made 189 more calls than this rank"
                                    : "rank 1 has made 189 fewer calls than this rank"),
              "the message is: %s", c.error);
    }
}

static void cases_of(const struct way *w) {
    const char *name = w->name;
    CASE("a stalled rank is waited for: scalars: %s", name) a_stalled_rank_is_noticed(w, 0);
    CASE("a stalled rank is waited for: all-gather: %s", name) a_stalled_rank_is_noticed(w, 1);
    CASE("a rank that does not come to create is waited for: %s", name)
        a_rank_that_does_not_come_to_create_is_noticed(w);
    for (int after = 0; after <= 1; after++)
        CASE("destroying with messages under way, which come %s: %s", after ? "afterwards" : "meanwhile", name)
            destroying_with_messages_under_way_is_safe(w, after);
    for (int window = 0; window <= 1 && !strcmp(w->transport, "mpi"); window++)
        CASE("a rank that does not come to %s is waited for: %s", window ? "create a window" : "allocate", name)
            a_rank_that_does_not_come_to_allocate_is_noticed(w, window);
    for (rlim_t limit = 1; limit <= 4096 && !strcmp(w->transport, "mpi"); limit *= 4096)
        CASE("the cause of missing memory is lost: %d bytes: %s", (int)limit, name)
            missing_memory_is_explained(w, limit);
    CASE("nothing tells what a rank did before a failure: %s", name) records_tell_what_a_rank_did(w);
    for (int d = 0; d < DIFFERENCES; d++)
        CASE("another %s on one rank goes unnoticed: %s", DIFFERENCE_NAMES[d], name)
            different_calls_are_reported(w, (enum difference)d);
    CASE("units in another order on one rank go unnoticed: %s", name) different_orders_are_reported(w);
}

int main(int argc, char **argv) {
    start_world(&argc, argv);
    REQUIRE(ranks > 1, "mpirun -np 2 or more");
    for (int w = 0; w < WAYS; w++)
        if (way_runs_here(&ways[w])) cases_of(&ways[w]);
    CASE("memory that can be executed is asked for, which some kernels refuse")
        memory_is_never_executable(&ways[SHARED_MEMORY]);
    CASE("another collective's data are printed as a record") data_are_not_printed_as_a_record();
    CASE("ranks with more calls than others are told of two that look alike") the_number_of_calls_is_compared();
    return finish_world();
}
