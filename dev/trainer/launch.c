// Three ways to start, with llm.c's flags:
//
//     -pi mpi     mpirun, or srun --mpi=pmix: MPI knows rank, ranks, and which ranks share a host
//     -pi tcp     anything that starts processes: -pn and -pr give number and rank, -ps is where rank 0 listens
//     -pi fs      the same, with a shared directory (-pf) instead of a server
//
// With tcp and fs no MPI function is called, not even MPI_Init: under a scheduler that was built for another MPI it
// would end the process, or make each one a rank 0 of its own. So the command line is read first, and MPI is started
// only if needed. A command line that cannot be parsed is searched for -pi alone, so that with mpirun the ranks can
// agree on which of them reports the error.
//
// Ranks of one host are those in a row of -pg, as in llm.c, or those with the same host name and the same boot. (The
// name alone is not enough, nor is the boot: containers of one machine have the same boot, and may each have GPUs of
// their own.)
//
// Two runs at one port or in one directory are distinguished by a run's name: that of Slurm's job and step, where there
// are any.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "trainer/launch.h"
#include "zero/comm/bootstrap/bootstrap_mpi.h"

static Launch here = { 0, 1, 0, 1, 0 };
static zero_bootstrap *bootstrap;
static int leaving;  // a collective has failed: the ranks are no longer in step

#define FAIL(...) (snprintf(err, err_bytes, __VA_ARGS__), -1)

const Launch *launch(void) { return &here; }

// Of a command line that could not be parsed: is there MPI? The last -pi counts.
static int wants_mpi(int argc, char **argv) {
    int mpi = 1;
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i] + strspn(argv[i], "-");
        const char *value = strchr(name, '=');
        const size_t length = value != NULL ? (size_t)(value - name) : strlen(name);
        value = value != NULL ? value + 1 : i + 1 < argc ? argv[i + 1] : "";
        if (name != argv[i] &&
            ((length == 2 && strncmp(name, "pi", 2) == 0) || (length == 11 && strncmp(name, "init-method", 11) == 0))) {
            mpi = strcmp(value, "tcp") != 0 && strcmp(value, "fs") != 0;
        }
    }
    return mpi;
}

int launch_begin(const Options *o, int parsed, int *argc, char ***argv) {
    here.mpi = parsed < 0 ? wants_mpi(*argc, *argv) : o->init_method == OPTION_INIT_MPI;
    if (!here.mpi) {
        if (parsed == 0) {
            here.rank = (int)o->rank;
            here.ranks = (int)o->processes;
        }
        return parsed < 0 ? here.rank : here.ranks;
    }
    MPI_Init(argc, argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &here.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &here.ranks);
    int first = parsed < 0 ? here.rank : here.ranks;  // mpirun may give each rank another command line
    MPI_Allreduce(MPI_IN_PLACE, &first, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    return first;
}

// Equal on two ranks if they are on the same host.
typedef struct {
    char name[256], boot[64];
} Host;

static void find_host(Host *h) {
    memset(h, 0, sizeof *h);
    if (gethostname(h->name, sizeof h->name - 1) != 0) {
        h->name[0] = '\0';
    }
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "r");
    if (f != NULL) {
        if (fgets(h->boot, sizeof h->boot, f) == NULL) {
            h->boot[0] = '\0';
        }
        fclose(f);
    }
}

static int find_local_rank(char *err, size_t err_bytes) {
    Host mine;
    Host *all = calloc((size_t)here.ranks, sizeof *all);
    find_host(&mine);
    if (all == NULL || zero_bootstrap_allgather(bootstrap, &mine, sizeof mine, all) != ZERO_OK) {
        free(all);
        return FAIL("%s", all == NULL ? "the host's memory is exhausted" : zero_bootstrap_error(bootstrap));
    }
    here.local_rank = 0;
    here.local_ranks = 0;
    for (int r = 0; r < here.ranks; r++) {
        const int same = memcmp(&all[r], &mine, sizeof mine) == 0;
        here.local_rank += same && r < here.rank;
        here.local_ranks += same;
    }
    free(all);
    return 0;
}

int launch_connect(const Options *o, char *err, size_t err_bytes) {
    if (here.mpi) {
        MPI_Comm host;
        MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, here.rank, MPI_INFO_NULL, &host);
        MPI_Comm_rank(host, &here.local_rank);
        MPI_Comm_size(host, &here.local_ranks);
        MPI_Comm_free(&host);
        return 0;
    }
    const char *job = getenv("SLURM_JOB_ID");
    const char *step = getenv("SLURM_STEP_ID");
    char name[256] = "";
    if (job != NULL) {
        snprintf(name, sizeof name, "Slurm %s.%s", job, step != NULL ? step : "");
    }
    const zero_bootstrap_config config = {
        .rank = here.rank, .ranks = here.ranks, .timeout_s = o->timeout, .job = name
    };
    const int status = o->init_method == OPTION_INIT_TCP ? zero_bootstrap_create_tcp(&bootstrap, o->server_ip, &config)
                                                         : zero_bootstrap_create_fs(&bootstrap, o->shared_dir, &config);
    if (status != ZERO_OK) {
        return FAIL("-pi %s: %s", o->init_method == OPTION_INIT_TCP ? "tcp" : "fs",
                    bootstrap != NULL ? zero_bootstrap_error(bootstrap) : "the host's memory is exhausted");
    }
    if (o->gpus_per_node < 1) {
        return find_local_rank(err, err_bytes);
    }
    here.local_rank = here.rank % (int)o->gpus_per_node;
    const int left = here.ranks - (here.rank - here.local_rank);  // the last host may have fewer
    here.local_ranks = left < (int)o->gpus_per_node ? left : (int)o->gpus_per_node;
    return 0;
}

zero_bootstrap *launch_bootstrap(double timeout_s, char *err, size_t err_bytes) {
    if (bootstrap == NULL && zero_bootstrap_create_mpi(&bootstrap, MPI_COMM_WORLD, timeout_s) != ZERO_OK) {
        snprintf(err, err_bytes, "%s",
                 bootstrap != NULL ? zero_bootstrap_error(bootstrap) : "the host's memory is exhausted");
        return NULL;
    }
    zero_bootstrap_set_timeout(bootstrap, timeout_s);
    return bootstrap;
}

static double seconds_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int launch_together(double seconds, char *missing, size_t missing_bytes) {
    int together = 0;
    missing[0] = '\0';
    if (here.ranks == 1) {
        return 1;
    }
    if (bootstrap != NULL && zero_bootstrap_error(bootstrap)[0] == '\0') {
        // A rank in another all-gather has another size there; so it notices, and does not mistake this one for
        // its own.
        static const char word[7] = "meeting";
        char *all = malloc(sizeof word * (size_t)here.ranks);
        zero_bootstrap_set_timeout(bootstrap, seconds);
        together = all != NULL && zero_bootstrap_allgather(bootstrap, word, sizeof word, all) == ZERO_OK;
        snprintf(missing, missing_bytes, "%s", zero_bootstrap_error(bootstrap));
        free(all);
    } else if (here.mpi) {
        MPI_Request meeting;
        MPI_Ibarrier(MPI_COMM_WORLD, &meeting);
        const double deadline = seconds_now() + seconds;
        for (;;) {
            MPI_Test(&meeting, &together, MPI_STATUS_IGNORE);
            if (together || seconds_now() > deadline) {
                break;
            }
            usleep(1000);
        }
    }
    leaving = !together;
    return together;
}

void launch_abort(void) {
    int there = 0, gone = 0;
    MPI_Initialized(&there);  // these two may always be called
    MPI_Finalized(&gone);
    if (there && !gone) {
        MPI_Abort(MPI_COMM_WORLD, EXIT_FAILURE);
    }
    _exit(EXIT_FAILURE);
}

void launch_end(void) {
    if (!leaving) {
        zero_bootstrap_destroy(bootstrap);
        bootstrap = NULL;
    }
    if (here.mpi) {
        MPI_Finalize();
    }
}
