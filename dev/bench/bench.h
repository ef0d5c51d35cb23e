// bench.h: rounds in which all candidates take turns, and the medians of their times and ratios. Machines are shared,
// so only what ran side by side is compared.
#ifndef BENCH_H
#define BENCH_H
#include <stdlib.h>
#include "zero/clock.h"

static int bench_order(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static inline double bench_median(double *x, size_t n)  // sorts x
{
    qsort(x, n, sizeof *x, bench_order);
    return n % 2 ? x[n / 2] : 0.5 * (x[n / 2 - 1] + x[n / 2]);
}

#endif
