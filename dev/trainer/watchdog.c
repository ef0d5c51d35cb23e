#include "trainer/watchdog.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define TICK      0.1  // seconds between two looks at the clock
#define LONG_TICK 1.0  // a tick that took longer: this process did not run

static struct {
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    int running, done;
    const char *call;
    int rank;
    double seconds;
} dog = { .mutex = PTHREAD_MUTEX_INITIALIZER };

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void bark(void) {
    char who[32] = "";
    if (dog.rank >= 0) snprintf(who, sizeof who, "rank %d: ", dog.rank);
    fprintf(stderr,
            "error: %s%s has not returned after %g s (--timeout): another process of this job was not started, was "
            "stopped, has died, or is another program\n",
            who, dog.call, dog.seconds);
    fflush(stderr);
    _exit(EXIT_FAILURE);
}

static void *watch(void *unused) {
    (void)unused;
    double ran = 0, before = now();
    pthread_mutex_lock(&dog.mutex);
    while (!dog.done) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += (long)(TICK * 1e9);
        if (until.tv_nsec >= 1000000000) {
            until.tv_sec++;
            until.tv_nsec -= 1000000000;
        }
        pthread_cond_timedwait(&dog.changed, &dog.mutex, &until);
        const double time = now(), tick = time - before;
        before = time;
        ran += tick < LONG_TICK ? tick : TICK;
        if (!dog.done && ran > dog.seconds) bark();
    }
    pthread_mutex_unlock(&dog.mutex);
    return NULL;
}

void watchdog_begin(const char *call, int rank, double seconds) {
    dog.call = call;
    dog.rank = rank;
    dog.seconds = seconds;
    dog.done = 0;
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&dog.changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    sigset_t all, before;  // signals are for the other threads
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    dog.running = pthread_create(&dog.thread, NULL, watch, NULL) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void watchdog_end(void) {
    if (dog.running) {
        pthread_mutex_lock(&dog.mutex);
        dog.done = 1;
        pthread_cond_signal(&dog.changed);
        pthread_mutex_unlock(&dog.mutex);
        pthread_join(dog.thread, NULL);
        dog.running = 0;
    }
    pthread_cond_destroy(&dog.changed);
}
