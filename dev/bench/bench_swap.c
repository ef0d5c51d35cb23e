// bench_swap.c: the bandwidth at which records are read, changed and written (zero/offload/swap.h), as the optimizer
// goes over its states. bench_offload.sh compares it with fio's.
//
//     bench_swap DIR MB RECORD_KB BUFFERS [PASSES]     prints GB/s of each pass: bytes read and bytes written
#include <stdio.h>
#include <stdlib.h>
#include "bench/bench.h"
#include "zero/clock.h"
#include "zero/offload/swap.h"

// A pass over all records. Each is changed, by much less than an optimizer does.
static int pass(zero_swap *s, size_t n, size_t ahead) {
    for (size_t r = 0; r < n; r++) {
        char *p = zero_swap_acquire(s, r);
        if (!p) return -1;
        p[0]++;
        for (size_t k = 1; k <= ahead; k++)
            if (zero_swap_prefetch(s, (r + k) % n)) return -1;
        if (zero_swap_release(s, r, 1)) return -1;
    }
    return 0;
}

// Waits until all is written.
static int finish(zero_swap *s, size_t n, size_t buffers) {
    for (size_t r = n > buffers ? n - buffers : 0; r < n; r++)
        if (!zero_swap_acquire(s, r) || zero_swap_release(s, r, 0)) return -1;
    return 0;
}

int main(int argc, char **argv) {
    if (argc < 5) {
        fprintf(stderr, "usage: bench_swap DIR MB RECORD_KB BUFFERS [PASSES]\n");
        return 1;
    }
    const size_t record = strtoull(argv[3], NULL, 10) << 10, n = (strtoull(argv[2], NULL, 10) << 20) / record,
                 buffers = strtoull(argv[4], NULL, 10);
    const int passes = argc > 5 ? atoi(argv[5]) : 3;
    char err[512];
    size_t *bytes = malloc(n * sizeof *bytes);
    for (size_t r = 0; bytes && r < n; r++) bytes[r] = record;
    zero_swap *s = bytes ? zero_swap_create(&(zero_swap_config){ argv[1], bytes, n, buffers }, err, sizeof err) : NULL;
    if (!s) {
        fprintf(stderr, "%s\n", bytes ? err : "out of memory");
        return 1;
    }
    fprintf(stderr, "%s\n", zero_swap_description(s));
    int failed = pass(s, n, buffers / 3);  // the first writes take the file's space
    for (int i = 0; i < passes && !failed; i++) {
        const zero_swap_traffic before = zero_swap_get_traffic(s);
        const double begin = zero_clock();
        failed = pass(s, n, buffers / 3) || finish(s, n, buffers - buffers / 3);
        const zero_swap_traffic t = zero_swap_get_traffic(s);
        printf("%.3f\n", (double)(t.read + t.written - before.read - before.written) / (zero_clock() - begin) / 1e9);
    }
    if (failed) fprintf(stderr, "%s\n", zero_swap_error(s));
    zero_swap_destroy(s);
    free(bytes);
    return failed != 0;
}
