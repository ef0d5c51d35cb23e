// bootstrap_internal.h: for implementations of a bootstrap only. Their own struct begins with a zero_bootstrap and
// fills in the table; bootstrap.c holds what all of them share.
#ifndef ZERO_BOOTSTRAP_INTERNAL_H
#define ZERO_BOOTSTRAP_INTERNAL_H
#include <stdint.h>
#include "zero/comm/bootstrap/bootstrap.h"

typedef struct zero_bootstrap_ops {
    // choose, if not NULL, returns the rank whose bytes become the first ones of `all`, which has room for those of all
    // ranks on rank 0, and on the others for one rank's.
    int (*allgather)(zero_bootstrap *b, const void *mine, size_t bytes, void *all, zero_bootstrap_choice *choose);
    void (*destroy)(zero_bootstrap *b);
} zero_bootstrap_ops;

enum { ZERO_BOOTSTRAP_MESSAGE_BYTES = 1024 };

struct zero_bootstrap {
    const zero_bootstrap_ops *ops;
    int rank, ranks;
    double timeout_s;
    uint64_t round;  // all-gathers so far
    int failed;      // the code of the failure after which nothing works any more
    char error[ZERO_BOOTSTRAP_MESSAGE_BYTES + 64];
};

// A zeroed bootstrap of struct_bytes, and the checks that all ways share. On ZERO_ERR_ARG *out is set.
int zero_bootstrap_new(zero_bootstrap **out, size_t struct_bytes, const zero_bootstrap_ops *ops,
                       const zero_bootstrap_config *config);

// Record a failure (printf style, "rank R of N: " in front) and return code.
int zero_bootstrap_fail(zero_bootstrap *b, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));

// "rank 3 has" or "ranks 1, 2, 5 and 9 more have", of those with here[r] == 0. Returns how many they are.
int zero_bootstrap_missing(const zero_bootstrap *b, const unsigned char *here, char *words, size_t bytes);

// Divides "name", "name:port", "1.2.3.4:port", "::1" or "[::1]:port" into host and port (ZERO_BOOTSTRAP_PORT).
int zero_bootstrap_split_address(zero_bootstrap *b, const char *server, char *host, size_t host_bytes, char *port,
                                 size_t port_bytes);

uint64_t zero_bootstrap_job(const zero_bootstrap_config *config);  // a number for config->job
void zero_bootstrap_pause(double *seconds, double longest);        // sleep, and a little longer the next time

// The other ranks wait this much longer than rank 0, so that its message reaches them before they give up.
static inline double zero_bootstrap_grace(const zero_bootstrap *b) { return b->timeout_s < 3 ? b->timeout_s : 3; }

#endif
