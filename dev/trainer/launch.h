// How this process was started, and how it ends together with the others. See launch.c.
//
// Everything about that is kept here, for the whole process: who this rank is, how the ranks found each other (-pi),
// whether there is MPI at all. Nothing here prints, and only launch_abort exits.
#ifndef DEV_LAUNCH_H
#define DEV_LAUNCH_H

#include <stddef.h>

#include "trainer/options.h"
#include "zero/comm/bootstrap/bootstrap.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    int rank, ranks;
    int local_rank, local_ranks;  // on this host; once launch_connect has found them
    int mpi;                      // 1: MPI is there. 0: -pi tcp or fs, and nothing of MPI may be called
} Launch;

// Before launch_begin: rank 0 of 1.
const Launch *launch(void);

// Starts MPI, or takes rank and ranks from the flags. parsed: what options_parse returned; o may then be incomplete.
// Returns the first rank whose command line is wrong, or the number of ranks if none is. (Without MPI a rank knows only
// its own.)
int launch_begin(const Options *o, int parsed, int *argc, char ***argv);

// Finds the other ranks (tcp, fs), and this one's place among those of its host. All ranks. Returns 0, or -1 and a
// message.
int launch_connect(const Options *o, char *err, size_t err_bytes);

// For a transport that has ids to hand around: what launch_connect made, or with MPI a new one. All ranks. It stays
// ours. NULL: a message in err.
zero_bootstrap *launch_bootstrap(double timeout_s, char *err, size_t err_bytes);

// For a rank that has to give up: 1 if all ranks come here within so many seconds. 0: missing says who does not, where
// that is known, else "".
int launch_together(double seconds, char *missing, size_t missing_bytes);

// Ends the process, and with MPI all others too. Without MPI they notice by their time-outs, unless whoever started
// them sees to it.
__attribute__((noreturn)) void launch_abort(void);

// The good end, of all ranks.
void launch_end(void);

#ifdef __cplusplus
}
#endif
#endif
