#include "trainer/environment.h"

#include <stdio.h>
#include <stdlib.h>

// A launcher is believed if its variable for the rank is there too: a number alone may come from a user's script.
// Slurm's are those of a step, which only srun sets; a batch script has the ones of the job, and may start any number
// of ranks.
static const struct {
    const char *launcher, *ranks, *rank, *remedy;
} LAUNCHERS[] = {
    { "mpirun of Open MPI", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK",
      "build and start with the same MPI (which mpicc, which mpirun)" },
    { "mpiexec of MPICH or Intel MPI", "PMI_SIZE", "PMI_RANK",
      "start with the mpirun of the MPI that this program was built with" },
    { "mpirun of MVAPICH", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK",
      "start with the mpirun of the MPI that this program was built with" },
    { "srun", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID",
      "use srun --mpi=pmix, if this MPI was built with PMIx, or mpirun" },
    { "torchrun", "WORLD_SIZE", "RANK", "use mpirun; torchrun cannot start MPI programs" },
};
enum { NUM_LAUNCHERS = sizeof LAUNCHERS / sizeof LAUNCHERS[0] };

// The number in a variable, or -1.
static long number_of(const char *variable) {
    const char *text = getenv(variable);
    char *end;
    const long n = text != NULL ? strtol(text, &end, 10) : -1;
    return text == NULL || end == text || *end != '\0' || n < 0 || n > 1 << 30 ? -1 : n;
}

int environment_rank(void) {
    for (int i = 0; i < NUM_LAUNCHERS; i++) {
        if (number_of(LAUNCHERS[i].ranks) > 0 && number_of(LAUNCHERS[i].rank) >= 0)
            return (int)number_of(LAUNCHERS[i].rank);
    }
    return -1;
}

int environment_local_ranks(void) {
    static const char *const VARIABLES[] = { "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS",
                                             "MV2_COMM_WORLD_LOCAL_SIZE", "LOCAL_WORLD_SIZE" };
    for (size_t i = 0; i < sizeof VARIABLES / sizeof VARIABLES[0]; i++) {
        if (number_of(VARIABLES[i]) > 0) return (int)number_of(VARIABLES[i]);
    }
    const char *tasks = getenv("SLURM_STEP_TASKS_PER_NODE");  // "4(x2),3"
    const int n = tasks != NULL ? atoi(tasks) : 0;
    return n > 0 ? n : 1;
}

// One launcher may have started another (mpirun starts its daemons by srun), so it is enough that one of them agrees.
int environment_check_ranks(int ranks, const char *library, char *err, size_t err_bytes) {
    int contradicts = -1;
    for (int i = 0; i < NUM_LAUNCHERS; i++) {
        const long n = number_of(LAUNCHERS[i].ranks);
        if (n < 1 || number_of(LAUNCHERS[i].rank) < 0) continue;
        if (n == ranks) return 0;
        if (n > 1 && contradicts < 0) contradicts = i;
    }
    if (contradicts < 0) return 0;
    const char *launcher = LAUNCHERS[contradicts].launcher, *variable = LAUNCHERS[contradicts].ranks;
    if (library != NULL) {
        snprintf(err, err_bytes,
                 "%s started %s processes (%s), but %s has %d: each would train alone and write the same files: %s; or "
                 "-pi tcp -pn %s -pr RANK, without MPI; if no such launcher is meant, unset %s",
                 launcher, getenv(variable), variable, library, ranks, LAUNCHERS[contradicts].remedy, getenv(variable),
                 variable);
    } else {
        snprintf(err, err_bytes, "-pn %d: %s started %s processes (%s): use -pn %s, or unset %s", ranks, launcher,
                 getenv(variable), variable, getenv(variable), variable);
    }
    return -1;
}
