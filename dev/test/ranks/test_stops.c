// test_stops.c: the last rank is stopped (SIGSTOP) at many moments of its life: while it creates the transport and the
// engine, trains, and destroys them. The other ranks must come to their end by their time-outs, whatever they wait for;
// then it goes on, and must come to its end too. Run under mpirun, with two ranks or more of one machine.
//
//     test_stops [MOMENTS]      how many moments, spread evenly over a life (4)
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <unistd.h>
#include "test/ranks/toy_model.h"
#include "zero/clock.h"

// Where the ranks of the test meet. The module has communicators of its own for each life: a MPI_Comm_idup that was
// given up is in the way of later collectives of its parent.
static MPI_Comm meeting;

// What came of a life.
struct end {
    int code;
    char message[768];
};

// A bootstrap, a transport and an engine of its own.
static void live(MPI_Comm world, const struct way *w, int stage, double timeout_s, struct end *end) {
    zero_bootstrap *own = NULL;
    zero_comm *c = NULL;
    zero *z = NULL;
    double norm, norms[TENSORS];
    const zero_comm_config transport = config_of_way(w, timeout_s);
    end->message[0] = '\0';
    end->code = meet(&own, world, timeout_s);
    if (end->code)
        snprintf(end->message, sizeof end->message, "%s", zero_bootstrap_error(own));
    else
        end->code = zero_comm_create(&c, zero_transport_find(w->transport), own, &transport, &memory, end->message,
                                     sizeof end->message);
    if (!end->code) {
        const zero_config config = config_of(c, stage);
        end->code = zero_create(&z, &config);
        if (!end->code) end->code = zero_fill(z, fill, NULL);
        for (size_t s = 0; s < 2 && !end->code; s++) end->code = one_step(z, s, 1, &norm);
        if (!end->code) end->code = micro_batch(z, (size_t)rank, 2, 0);
        if (!end->code) end->code = zero_tensor_norms(z, norms);  // more bytes than MPI sends before they are received
        snprintf(end->message, sizeof end->message, "%s", zero_error(z));
    }
    zero_destroy(z);
    zero_comm_destroy(c);
    zero_bootstrap_destroy(own);
}

static void stop(int signal) {
    (void)signal;
    raise(SIGSTOP);
}

// 0: never.
static void stop_in(double seconds) {
    const time_t whole = (time_t)seconds;
    const struct itimerval at = { .it_value = { whole, (suseconds_t)((seconds - (double)whole) * 1e6) } };
    signal(SIGALRM, stop);
    REQUIRE(setitimer(ITIMER_REAL, &at, NULL) == 0);
}

// All ranks have come to their end; rank 0 sees to it that the last one goes on.
static void meet_again(pid_t last) {
    MPI_Request request;
    int done = 0;
    MPI_Ibarrier(meeting, &request);
    for (; MPI_Test(&request, &done, MPI_STATUS_IGNORE), !done; usleep(5000))
        if (rank == 0) kill(last, SIGCONT);
}

static void everybody_comes_to_an_end(const struct way *w, int moments, pid_t last) {
    struct end end;
    MPI_Comm world;
    double life = 0, timeout_s = PATIENT;
    int noticed = 0, anybody = 0;
    // Before, two lives without a stop, to know how long one takes. On a busy machine that may be too long: if every
    // stop came too late, they come earlier.
    for (int i = -2; i < moments || (!anybody && i < 8 * moments); i++) {
        MPI_Comm_dup(meeting, &world);
        if (rank == ranks - 1 && i >= 0) stop_in(ldexp(life * (i % moments + 0.5) / moments, -(i / moments)));
        const double begin = zero_clock();
        live(world, w, (i + STAGES) % STAGES, timeout_s, &end);
        stop_in(0);
        if (i < 0) life = zero_clock() - begin;
        if (i == -1) timeout_s = short_timeout(w);
        meet_again(last);
        CHECK(end.code == ZERO_OK || i >= 0, "nobody was stopped: %s", end.message);
        noticed += end.code != ZERO_OK;
        // The one that was stopped may find that the others have given up, and with it their memory.
        const int gone = rank == ranks - 1 && end.code == ZERO_ERR_MEMORY && strstr(end.message, "has given up");
        CHECK(end.code == ZERO_OK || gone || (end.code == ZERO_ERR_COMM && end.message[0]), "moment %d: %d, %s", i,
              end.code, end.message);
        all_is_given_back();
        MPI_Allreduce(&noticed, &anybody, 1, MPI_INT, MPI_SUM, meeting);
    }
    CHECK(anybody, "nobody has noticed that a rank was stopped");
}

int main(int argc, char **argv) {
    start_engines(&argc, argv);
    const int moments = argc > 1 ? atoi(argv[1]) : 4;
    pid_t last = getpid();
    REQUIRE(ranks > 1, "mpirun -np 2 or more");
    MPI_Comm_dup(MPI_COMM_WORLD, &meeting);
    MPI_Bcast(&last, sizeof last, MPI_BYTE, ranks - 1, meeting);
    for (int w = 0; w < MAIN_WAYS; w++)
        if (way_runs_here(&ways[main_ways[w]]))
            CASE("a stopped rank is waited for without end, at some moment: %s", ways[main_ways[w]].name)
                everybody_comes_to_an_end(&ways[main_ways[w]], moments, last);
    return finish_world();
}
