// Signals that ask the run to stop: SIGUSR1, SIGTERM (Slurm sends either before the time limit), and SIGINT.
// See signals.c.
#ifndef TRAINER_SIGNALS_H
#define TRAINER_SIGNALS_H

#ifdef __cplusplus
extern "C" {
#endif

// Begins to listen. Call it before any thread is created: they inherit that these signals are not for them. at_once is
// called by the listening thread when the process has to end now; it must not return.
void signals_begin(void (*at_once)(int signal));

// The name of the signal that asked this process to stop at the next step; NULL: none has.
const char *signals_stop(void);

#ifdef __cplusplus
}
#endif
#endif
