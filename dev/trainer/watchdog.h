// Ends the process when a call that has no time-out of its own takes too long: MPI_Init, MPI_Finalize and the blocking
// collectives around them. A thread waits beside the call:
//
//     watchdog_begin("MPI_Finalize", rank, 300);      "error: rank 2: MPI_Finalize has not returned after 300 s ..."
//     MPI_Finalize();                                 and _exit, if it takes longer
//     watchdog_end();
//
// Only time in which this process runs counts, so a job that is suspended as a whole goes on when it is resumed.
#ifndef TRAINER_WATCHDOG_H
#define TRAINER_WATCHDOG_H

#ifdef __cplusplus
extern "C" {
#endif

// rank -1: not known yet. Calls do not nest. If no thread can be created, the call is not watched.
void watchdog_begin(const char *call, int rank, double seconds);
void watchdog_end(void);

#ifdef __cplusplus
}
#endif
#endif
