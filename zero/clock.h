// clock.h: the one clock of this tree, CLOCK_MONOTONIC. What needs a struct timespec reads the same clock itself: waits
// for a condition, and events of the CPU's runtime. Only pthread_mutex_timedlock (zero/comm/nccl/watchdog.c) takes the
// time of day.
#ifndef ZERO_CLOCK_H
#define ZERO_CLOCK_H
#include <time.h>

// Seconds of a clock that only goes forward, from a start of its own: only differences mean something.
static inline double zero_clock(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

// The time in which this process ran since the first read. It must be read at least every half second: a longer gap,
// in which the process was stopped (a job that is suspended as a whole), counts as one tick. Starts as zeros.
typedef struct zero_stopwatch {
    double seconds, read_at;
} zero_stopwatch;

static inline double zero_stopwatch_read(zero_stopwatch *s) {
    const double long_tick = 1, now = zero_clock(), tick = s->read_at > 0 ? now - s->read_at : 0;
    s->seconds += tick < long_tick ? tick : 0.1;
    s->read_at = now;
    return s->seconds;
}

#endif
