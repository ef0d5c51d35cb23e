#include "trainer/run.h"

#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "trainer/checkpoint_write.h"
#include "trainer/directory.h"
#include "trainer/environment.h"
#include "trainer/memory.h"
#include "trainer/progress.h"
#include "trainer/signals.h"

static Run *current;  // NULL: not yet
static atomic_int ending;

// For signals.c: this process has to end now.
static void end_at_once(int signal) {
    const Run *r = current;
    if (checkpoint_is_settled()) directory_close();
    if (atomic_load(&ending)) _exit(EXIT_FAILURE);
    const int rank = environment_rank();  // before MPI_Init only the launcher knows
    fprintf(stderr, "rank %d was ended by %s, in %s, step %zu\n", rank >= 0 ? rank : r->rank,
            signal == SIGTERM ? "SIGTERM" : "SIGINT", r->phase != NULL ? r->phase : "start-up", r->phase_step);
    _exit(EXIT_FAILURE);
}

void run_begin(Run *r) {
    current = r;
    signals_begin(end_at_once);
}

void run_is_ending(void) { atomic_store(&ending, 1); }

void run_phase(Run *r, const char *phase, size_t step) {
    r->phase = phase;
    r->phase_step = step;
    if (r->comm != NULL) zero_comm_phase(r->comm, phase, 0);
}

// The communicator whose error this message is; NULL: it is a fault of this rank, or of all.
static const zero_comm *failed_comm(const Run *r, const char *message) {
    const zero_comm *comms[] = { r->comm, r->shard_comm, r->replica_comm };
    for (size_t i = 0; i < sizeof comms / sizeof *comms; i++) {
        const char *error = comms[i] != NULL ? zero_comm_error(comms[i]) : "";
        if (error[0] != '\0' && strstr(message, error) != NULL) return comms[i];
    }
    return NULL;
}

void make_printable(char *text) {
    for (unsigned char *c = (unsigned char *)text; *c != '\0'; c++) {
        const int is_eight_bit = c[0] == 0xC2 && c[1] >= 0x80 && c[1] < 0xA0;  // U+0080 to U+009F, as UTF-8
        if (is_eight_bit) c[1] = '?';
        if (is_eight_bit || *c < ' ' || *c == 0x7F) *c = '?';
    }
}

// Appends to text[bytes], as far as there is room.
__attribute__((format(printf, 3, 4))) static void append(char *text, size_t bytes, const char *format, ...) {
    const size_t length = strlen(text);
    va_list args;
    va_start(args, format);
    vsnprintf(text + length, bytes - length, format, args);
    va_end(args);
}

// Writes the flight recorder of this rank next to main.log. failed: the communicator at fault, if it is known.
static void write_records(const Run *r, const zero_comm *failed, char *text, size_t bytes) {
    const zero_comm *c = failed != NULL ? failed : r->shard_comm;
    char path[4096 + 64];
    if (c == NULL || r->nonce == 0 || r->phase == NULL) return;
    snprintf(path, sizeof path, "%.4000s/flight_recorder_%05d.txt", r->options.output_dir, r->rank);
    if (zero_comm_write_records(c, path) == ZERO_OK && failed != NULL)
        append(text, bytes, "; the last collectives of each rank: %.1000s/flight_recorder_*.txt",
               r->options.output_dir);
}

// Does every rank have this fault, or only some? All ranks that fail meet in launch_together, for about a second. If
// all come, rank 0 prints the message, once, and the job ends in good order. Otherwise some rank is healthy, dead or
// stopped: each rank that is here prints its message and aborts the others, the lowest rank first, so that the others
// are gone before they repeat it. Only if the fault is the transport's does it matter who has not come.
void die(const char *format, ...) {
    const Run *r = current;
    const int rank = launch()->rank;
    char message[2 * ERR_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    fflush(stdout);

    const zero_comm *failed = failed_comm(r, message);
    const int others = failed != NULL || r->transport_failed ||
                       launch_failed(message);  // the fault may be another rank's
    char missing[1200];  // a better answer than NCCL's, which does not know which rank it waits for
    char records[1200] = "";
    if (others) write_records(r, failed, records, sizeof records);  // no use with a full disk, or a damaged file
    const int together = launch_together(1 + 0.5 * (rank < 8 ? rank : 8), missing, sizeof missing);
    if (together) run_is_ending();
    if (others && missing[0] != '\0' && strstr(message, " has not come within") == NULL)
        append(message, sizeof message, "; asked who is left: %s", missing);
    if (others) launch_name_hosts(message, sizeof message);
    // Before the first step a fault is in what the user gave, unless it is another rank's.
    if (r->phase != NULL && (others || r->phase_step > 0))
        append(message, sizeof message, "; this was in %s, step %zu", r->phase, r->phase_step);
    append(message, sizeof message, "%s", records);
    make_printable(message);
    // One write, on a line of its own: a sample leaves lines open.
    const char *line = r->phase != NULL && strcmp(r->phase, "sampling") == 0 ? "\n" : "";
    progress_clear();
    if (rank == 0 || (!together && strncmp(message, "rank ", 5) == 0))
        fprintf(stderr, "%serror: %s\n", line, message);
    else if (!together)
        fprintf(stderr, "%serror: rank %d on %s: %s\n", line, rank, launch_host_name(rank), message);
    fflush(stderr);
    if (checkpoint_is_settled()) directory_close();
    if (!together) launch_abort();
    launch_end();
    fflush(NULL);
    _exit(EXIT_FAILURE);  // not exit: a transport's watchdog may still use what a library's destructor frees
}

void must(const Run *r, int status, const char *doing) {
    if (status == ZERO_ERR_MEMORY) die_of_memory(r, zero_error(r->z));
    if (status != ZERO_OK) die("%s (%s)", zero_error(r->z), doing);
}

void gather(const Run *r, const void *mine, size_t bytes, void *all) {
    zero_comm_phase(r->comm, r->phase != NULL ? r->phase : "start-up", 0);
    if (zero_comm_allgather_host(r->comm, mine, bytes, all) != ZERO_OK) die("%s", zero_comm_error(r->comm));
}

int first_failure(const Run *r, char *err) {
    char *all = allocate((size_t)r->ranks * ERR_BYTES);
    int failures = 0, first = -1;
    gather(r, err, ERR_BYTES, all);
    for (int i = 0; i < r->ranks; i++) {
        if (all[(size_t)i * ERR_BYTES] == '\0') continue;
        if (failures++ == 0) first = i;
    }
    if (failures > 0) memcpy(err, all + (size_t)first * ERR_BYTES, ERR_BYTES);
    if (failures > 0 && failures < r->ranks && strstr(err, launch_host_name(first)) == NULL)
        append(err, ERR_BYTES, "; this was rank %d on %s", first, launch_host_name(first));
    free(all);
    return failures > 0;
}

void agree(const Run *r, char *err) {
    if (first_failure(r, err)) die("%s", err);
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
    progress_clear();
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
}
