// clock.h: the one clock of this tree.
#ifndef ZERO_CLOCK_H
#define ZERO_CLOCK_H
#include <time.h>

// Seconds of a clock that only goes forward, from a start of its own: only differences mean something.
static inline double zero_clock(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

#endif
