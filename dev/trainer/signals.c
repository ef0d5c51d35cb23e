// One thread waits for the signals, so that nothing has to be safe inside a signal handler:
//
//     SIGUSR1                      the ranks agree on a step, write a checkpoint and exit with status 0
//     SIGTERM, SIGINT (Ctrl-C)     the same; a second one ends the process at once
//     SIGTERM, under Open MPI's    ends the process at once: mpirun sends it to the ranks that are left when one has
//     mpirun                       died, and kills them a second later; SIGINT is left as it is
//
// An ignored SIGINT, as in what a script starts in the background, stays ignored.
//
// The agreement needs all ranks (it travels with the losses of a step), so after a peer's death nothing is written.
#include "trainer/signals.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

static sigset_t asked;
static void (*end_at_once)(int signal);
static int under_mpirun;
static _Atomic(const char *) stop;

static void *listen_for_signals(void *unused) {
    (void)unused;
    for (;;) {
        int signal;
        if (sigwait(&asked, &signal) != 0) continue;
        const int again = atomic_load(&stop) != NULL;
        if (signal != SIGUSR1 && (under_mpirun || again)) end_at_once(signal);
        if (!again && signal == SIGINT)
            fprintf(stderr, "\nSIGINT: the run ends at the next step; a second one ends it at once\n");
        if (!again) atomic_store(&stop, signal == SIGINT ? "SIGINT" : signal == SIGTERM ? "SIGTERM" : "SIGUSR1");
    }
    return NULL;
}

void signals_begin(void (*at_once)(int signal)) {
    pthread_t thread;
    struct sigaction interrupt;
    end_at_once = at_once;
    under_mpirun = getenv("OMPI_COMM_WORLD_SIZE") != NULL;  // before MPI_Init, which also sets it under srun
    sigemptyset(&asked);
    sigaddset(&asked, SIGUSR1);
    sigaddset(&asked, SIGTERM);
    if (!under_mpirun && sigaction(SIGINT, NULL, &interrupt) == 0 && interrupt.sa_handler != SIG_IGN)
        sigaddset(&asked, SIGINT);
    pthread_sigmask(SIG_BLOCK, &asked, NULL);
    if (pthread_create(&thread, NULL, listen_for_signals, NULL) == 0)
        pthread_detach(thread);
    else
        pthread_sigmask(SIG_UNBLOCK, &asked, NULL);
}

const char *signals_stop(void) { return atomic_load(&stop); }
