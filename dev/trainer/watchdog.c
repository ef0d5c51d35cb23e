#include "trainer/watchdog.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "zero/clock.h"

#define TICK 0.1  // seconds between two looks at the clock

static struct {
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    int running, done;
    const char *call;
    int rank;
    double seconds;
} watched = { .mutex = PTHREAD_MUTEX_INITIALIZER };

static void end_process(void) {
    char who[32] = "";
    if (watched.rank >= 0) snprintf(who, sizeof who, "rank %d: ", watched.rank);
    fprintf(stderr,
            "error: %s%s has not returned after %g s (--timeout): another process of this job was not started, was "
            "stopped, has died, or is another program\n",
            who, watched.call, watched.seconds);
    fflush(stderr);
    _exit(EXIT_FAILURE);
}

static void *watch(void *unused) {
    (void)unused;
    zero_stopwatch ran = { 0 };
    pthread_mutex_lock(&watched.mutex);
    while (!watched.done) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += (long)(TICK * 1e9);
        if (until.tv_nsec >= 1000000000) {
            until.tv_sec++;
            until.tv_nsec -= 1000000000;
        }
        pthread_cond_timedwait(&watched.changed, &watched.mutex, &until);
        if (zero_stopwatch_read(&ran) > watched.seconds && !watched.done) end_process();
    }
    pthread_mutex_unlock(&watched.mutex);
    return NULL;
}

void watchdog_begin(const char *call, int rank, double seconds) {
    watched.call = call;
    watched.rank = rank;
    watched.seconds = seconds;
    watched.done = 0;
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&watched.changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    sigset_t all, before;  // signals are for the other threads
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    watched.running = pthread_create(&watched.thread, NULL, watch, NULL) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void watchdog_end(void) {
    if (watched.running) {
        pthread_mutex_lock(&watched.mutex);
        watched.done = 1;
        pthread_cond_signal(&watched.changed);
        pthread_mutex_unlock(&watched.mutex);
        pthread_join(watched.thread, NULL);
        watched.running = 0;
    }
    pthread_cond_destroy(&watched.changed);
}
