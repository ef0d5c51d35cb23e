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
#include <unistd.h>
#include <xxhash.h>

#include "trainer/environment.h"
#include "trainer/launch.h"
#include "trainer/watchdog.h"
#include "zero/clock.h"
#include "zero/comm/bootstrap/mpi.h"

static Launch here = { .ranks = 1, .local_ranks = 1 };
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

// Every rank passes `bytes`; all get those of all. Before there is a bootstrap, by MPI.
static int all_gather(const void *mine, size_t bytes, void *all) {
    if (bootstrap != NULL) {
        return zero_bootstrap_allgather(bootstrap, mine, bytes, all);
    }
    MPI_Allgather(mine, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE, MPI_COMM_WORLD);
    return ZERO_OK;
}

// Compares the command lines of all ranks: hashes first, then the values of the first flag that differs. What a rank
// does next depends on its flags, so this comes first. Returns 0, or -1 and a message on all ranks. All ranks.
static int compare_options(const Options *o, char *err, size_t err_bytes) {
    enum { TEXT_BYTES = 512 };
    uint64_t mine[OPTIONS_MAX];
    const size_t ranks = (size_t)here.ranks;
    uint64_t *all = malloc(ranks * sizeof mine);
    char text[TEXT_BYTES], *texts = malloc(ranks * sizeof text);
    int status = 0;
    options_hash_values(o, mine);
    if (all == NULL || texts == NULL) {
        status = FAIL("the host's memory is exhausted");
    } else if (all_gather(mine, sizeof mine, all) != ZERO_OK) {
        status = FAIL("%s", zero_bootstrap_error(bootstrap));
    }
    for (size_t i = 0; i < ranks * OPTIONS_MAX && status == 0; i++) {
        const size_t flag = i / ranks, rank = i % ranks;
        if (all[rank * OPTIONS_MAX + flag] == all[flag]) {
            continue;
        }
        options_value_text(o, flag, text, sizeof text);
        status = all_gather(text, sizeof text, texts) != ZERO_OK
                     ? FAIL("%s", zero_bootstrap_error(bootstrap))
                     : FAIL("rank %zu has %s, rank 0 has %s: give all ranks the same flags", rank,
                            texts + rank * sizeof text, texts);
    }
    free(all);
    free(texts);
    return status;
}

// MPI's name: "Open MPI v4.1.4".
static const char *library_name(void) {
    static char name[MPI_MAX_LIBRARY_VERSION_STRING];
    int length;
    MPI_Get_library_version(name, &length);
    name[strcspn(name, ",\n")] = '\0';
    return name;
}

int launch_begin(const Options *o, int parsed, int *argc, char ***argv, char *err, size_t err_bytes) {
    const int alone = parsed > 0 || (parsed == 0 && o->plan != OPTION_PLAN_OFF);  // may be asked anywhere
    here.mpi = parsed < 0 ? wants_mpi(*argc, *argv) : o->init_method == OPTION_INIT_MPI;
    here.timeout_s = parsed == 0 ? o->timeout : 300;
    if (!here.mpi) {
        if (parsed == 0) {
            here.rank = (int)o->rank;
            here.ranks = (int)o->processes;
        }
        const int wrong = parsed < 0 || (!alone && environment_check_ranks(here.ranks, NULL, err, err_bytes) != 0);
        return wrong ? here.rank : here.ranks;
    }
    watchdog_begin("MPI_Init", environment_rank(), here.timeout_s);
    MPI_Init(argc, argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &here.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &here.ranks);
    const int wrong = parsed < 0 ||
                      (!alone && environment_check_ranks(here.ranks, library_name(), err, err_bytes) != 0);
    int first = wrong ? here.rank : here.ranks;  // mpirun may give each rank another command line
    MPI_Allreduce(MPI_IN_PLACE, &first, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    if (first == here.ranks && compare_options(o, err, err_bytes) != 0) {
        first = 0;
    }
    watchdog_end();
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

uint64_t launch_host(void) {
    Host h;
    find_host(&h);
    return XXH3_64bits(&h, sizeof h);
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
        watchdog_begin("MPI_Comm_split_type", here.rank, here.timeout_s);
        MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, here.rank, MPI_INFO_NULL, &host);
        MPI_Comm_rank(host, &here.local_rank);
        MPI_Comm_size(host, &here.local_ranks);
        MPI_Comm_free(&host);
        watchdog_end();
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
    if (compare_options(o, err, err_bytes) != 0) {
        return -1;
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
        zero_stopwatch waited = { 0 };
        for (;;) {
            MPI_Test(&meeting, &together, MPI_STATUS_IGNORE);
            if (together || zero_stopwatch_read(&waited) > seconds) {
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
        watchdog_begin("MPI_Finalize", here.rank, here.timeout_s);
        MPI_Finalize();
        watchdog_end();
    }
}
