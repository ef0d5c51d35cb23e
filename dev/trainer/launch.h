// How this process was started, and how it ends together with the others. See launch.c.
//
// State of the whole process: its rank, how the ranks found each other (-pi), whether MPI is used. Nothing here prints,
// and only launch_abort exits.
#ifndef DEV_LAUNCH_H
#define DEV_LAUNCH_H

#include <stddef.h>
#include <stdint.h>

#include "trainer/options.h"
#include "zero/comm/bootstrap/bootstrap.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    int rank, ranks;
    int local_rank, local_ranks;  // on this host; once launch_connect has found them
    int mpi;                      // 1: MPI is used. 0: -pi tcp or fs, and no MPI function may be called
    double timeout_s;             // --timeout
} Launch;

// Before launch_begin: rank 0 of 1.
const Launch *launch(void);

// Starts MPI, or takes rank and ranks from the flags. parsed: what options_parse returned, err its message; o may then
// be incomplete. Also refuses what the launcher's environment contradicts, and, with MPI, command lines that differ
// between ranks. Returns the first rank that has an error to report, with its message in err there, or the number of
// ranks if none has. (Without MPI a rank knows only its own.)
int launch_begin(const Options *o, int parsed, int *argc, char ***argv, char *err, size_t err_bytes);

// Finds the other ranks (tcp, fs; refuses command lines that differ), and this one's place among those of its host. All
// ranks. Returns 0, or -1 and a message.
int launch_connect(const Options *o, char *err, size_t err_bytes);

// Returns a number that is the same on the ranks of one host, and on no other host's.
uint64_t launch_host(void);

// Returns the name of a rank's host; "an unknown host" before launch_connect.
const char *launch_host_name(int rank);

// Returns the bootstrap by which a transport exchanges its ids. This module keeps ownership. After launch_connect.
zero_bootstrap *launch_bootstrap(void);

// Whether this message is about a rank that did not come to the bootstrap.
int launch_failed(const char *message);

// Appends where the ranks are that the message names, this one excluded: "; rank 1 is process 4711 on node7". At most
// four.
void launch_name_hosts(char *message, size_t bytes);

// Called by a rank that has failed. Returns 1 if all ranks call it within so many seconds. Else 0, and missing names
// the ranks that have not, where that is known (else "").
int launch_together(double seconds, char *missing, size_t missing_bytes);

// Ends the process, and with MPI all others too. Without MPI they notice by their time-outs, unless the launcher ends
// them.
__attribute__((noreturn)) void launch_abort(void);

// Ends a run in good order. All ranks. With MPI, if a collective has failed: launch_abort.
void launch_end(void);

#ifdef __cplusplus
}
#endif
#endif
