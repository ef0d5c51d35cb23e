#include "trainer/run.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// Does every rank have this fault, or only some? All ranks that fail meet in launch_together, for about a second. If
// all come, rank 0 prints the message, once, and the job ends in good order. Otherwise some rank is healthy, dead or
// stopped: each rank that is here prints its message and aborts the others, the lowest rank first, so that the others
// are gone before they repeat it.
void die(const char *format, ...) {
    const int rank = launch()->rank;
    char message[ERR_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    fflush(stdout);

    char missing[1200];  // a better answer than NCCL's, which does not know which rank it waits for
    const int together = launch_together(1 + 0.5 * (rank < 8 ? rank : 8), missing, sizeof missing);
    const char *asked = missing[0] != '\0' ? "; asked who is left: " : "";
    if (rank == 0)
        fprintf(stderr, "error: %s%s%s\n", message, asked, missing);
    else if (!together && strncmp(message, "rank ", 5) == 0)
        fprintf(stderr, "error: %s%s%s\n", message, asked, missing);
    else if (!together)
        fprintf(stderr, "error: rank %d: %s%s%s\n", rank, message, asked, missing);
    fflush(stderr);
    if (!together) launch_abort();
    launch_end();
    fflush(NULL);
    _exit(EXIT_FAILURE);  // not exit: a transport's watchdog may still use what a library's destructor frees
}

void must(const Run *r, int status, const char *doing) {
    if (status != ZERO_OK) die("%s (%s)", zero_error(r->z), doing);
}

void gather(const Run *r, const void *mine, size_t bytes, void *all) {
    zero_comm_phase(r->comm, "gathering numbers", 0);
    if (zero_comm_allgather_host(r->comm, mine, bytes, all) != ZERO_OK) die("%s", zero_comm_error(r->comm));
}

void agree(const Run *r, const char *err, const char *remove) {
    char *all = allocate((size_t)r->ranks * ERR_BYTES);
    gather(r, err, ERR_BYTES, all);
    for (int i = 0; i < r->ranks; i++) {
        if (all[(size_t)i * ERR_BYTES] == '\0') continue;
        if (remove != NULL && r->rank == 0) modelfile_discard(remove);
        die("%s", all + (size_t)i * ERR_BYTES);
    }
    free(all);
}

void *allocate(size_t bytes) {
    void *p = calloc(1, bytes);
    if (p == NULL)
        die("the host's memory is exhausted: %zu bytes were wanted: use fewer ranks on this host, or smaller -b or -t",
            bytes);
    return p;
}

void print0(const Run *r, const char *format, ...) {
    if (r->rank != 0) return;
    va_list args;
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
}
