// What the program that started this process left in its environment: Open MPI, MPICH and Intel MPI (Hydra), MVAPICH,
// Slurm, torchrun.
#ifndef TRAINER_ENVIRONMENT_H
#define TRAINER_ENVIRONMENT_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

// Returns this process's rank by the environment, or -1.
int environment_rank(void);

// Returns the number of ranks on this host by the environment, or 1.
int environment_local_ranks(void);

// Does the environment contradict the number of ranks that MPI (or -pn) reports? Then this process would be one of
// several independent runs that write the same files. Returns 0, or -1 and a message with the remedy. library: MPI's
// name, NULL: the number is that of -pn.
int environment_check_ranks(int ranks, const char *library, char *err, size_t err_bytes);

#ifdef __cplusplus
}
#endif
#endif
