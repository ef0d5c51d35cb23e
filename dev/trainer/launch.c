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

#define NO_MEMORY "the host's memory is exhausted"

const Launch *launch(void) { return &here; }

static int bootstrap_failed(void) { return bootstrap == NULL || zero_bootstrap_error(bootstrap)[0] != '\0'; }

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

// A rank's flags as one hash; the first rank whose flags are not those of rank 0, or rank 0.
typedef struct {
    int rank;
    uint64_t hash;
} FlagsCard;

static int first_other_flags(const void *all, int ranks) {
    const FlagsCard *cards = all;
    int r = 0;
    while (r < ranks && cards[r].hash == cards[0].hash) r++;
    return r < ranks ? r : 0;
}

// Compares the command lines of all ranks: one hash of each rank, and where they differ those of each flag, then the
// values of the first flag that differs. What a rank does next depends on its flags, so this comes first. Returns 0, or
// -1 and a message on all ranks. All ranks.
static int compare_options(const Options *o, char *err, size_t err_bytes) {
    enum { TEXT_BYTES = 512 };
    uint64_t mine[OPTIONS_MAX];
    const size_t ranks = (size_t)here.ranks;
    options_hash_values(o, mine);
    FlagsCard card = { .rank = here.rank, .hash = XXH3_64bits(mine, sizeof mine) }, other;
    if (zero_bootstrap_choose(bootstrap, &card, sizeof card, first_other_flags, &other) != ZERO_OK)
        return FAIL("%s", zero_bootstrap_error(bootstrap));
    if (other.rank == 0) return 0;
    uint64_t *all = malloc(ranks * sizeof mine);
    char text[TEXT_BYTES], *texts = malloc(ranks * sizeof text);
    int status = 0;
    if (all == NULL || texts == NULL) {
        status = FAIL(NO_MEMORY);
    } else if (zero_bootstrap_allgather(bootstrap, mine, sizeof mine, all) != ZERO_OK) {
        status = FAIL("%s", zero_bootstrap_error(bootstrap));
    }
    for (size_t i = 0; i < ranks * OPTIONS_MAX && status == 0; i++) {
        const size_t flag = i / ranks, rank = i % ranks;
        if (all[rank * OPTIONS_MAX + flag] == all[flag]) {
            continue;
        }
        options_value_text(o, flag, text, sizeof text);
        status = zero_bootstrap_allgather(bootstrap, text, sizeof text, texts) != ZERO_OK
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

// -pn and -pr, where MPI knows better. Returns 0, or -1 and a message.
static int check_flags_of_mpi(const Options *o, char *err, size_t err_bytes) {
    if (o->processes != -1 && o->processes != here.ranks)
        return FAIL("-pn %lld: MPI has %d processes: use -pn %d, or leave the flag out", (long long)o->processes,
                    here.ranks, here.ranks);
    if (o->rank != -1 && o->rank != here.rank)
        return FAIL("-pr %lld: this is rank %d of MPI: give each process its own, or leave the flag out",
                    (long long)o->rank, here.rank);
    return 0;
}

int launch_begin(const Options *o, int parsed, int *argc, char ***argv, char *err, size_t err_bytes) {
    // These may be asked anywhere: by a script, whose process is no rank, also where MPI cannot be started.
    const int alone = parsed > 0 || (parsed == 0 && (o->plan != OPTION_PLAN_OFF || o->print_config)),
              is_rank = environment_rank() >= 0 || getenv("PMIX_RANK") != NULL;
    here.mpi = parsed < 0 ? wants_mpi(*argc, *argv) : o->init_method == OPTION_INIT_MPI && (is_rank || !alone);
    here.timeout_s = parsed == 0 ? o->timeout : 300;
    if (!here.mpi) {
        if (parsed == 0 && o->init_method != OPTION_INIT_MPI) {
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
    watchdog_end();
    const int wrong = parsed < 0 ||
                      (!alone && (environment_check_ranks(here.ranks, library_name(), err, err_bytes) != 0 ||
                                  check_flags_of_mpi(o, err, err_bytes) != 0));
    int first = here.ranks, *all = malloc((size_t)here.ranks * sizeof *all);
    if (zero_bootstrap_create_mpi(&bootstrap, MPI_COMM_WORLD, here.timeout_s) != ZERO_OK || all == NULL ||
        zero_bootstrap_allgather(bootstrap, &wrong, sizeof wrong, all) != ZERO_OK) {
        leaving = 1;
        first = here.rank;
        (void)FAIL("%s", bootstrap != NULL && all != NULL ? zero_bootstrap_error(bootstrap) : NO_MEMORY);
    }
    for (int r = here.ranks - 1; r >= 0 && !leaving; r--) {  // mpirun may give each rank another command line
        if (all[r]) first = r;
    }
    free(all);
    if (first == here.ranks && compare_options(o, err, err_bytes) != 0) {
        leaving = bootstrap_failed();
        first = leaving ? here.rank : 0;
    }
    return first;
}

// Equal on two ranks if they are on the same host.
typedef struct {
    char name[256], boot[64];
} Host;

// What each rank learns of all others: few bytes.
static struct {
    char name[52];  // of the host, for messages
    int process;
    uint64_t host;  // a hash of Host
} * places;         // NULL: not known yet

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

// -pg, where the hosts of all ranks are known. The same result on all ranks.
static int check_gpus_per_node(const Options *o, char *err, size_t err_bytes) {
    const int pg = (int)o->gpus_per_node;
    for (int r = 0; pg > 0 && r < here.ranks; r++) {
        const int first = r - r % pg;
        if (places[r].host == places[first].host && (r > first || first == 0 || places[r].host != places[r - 1].host))
            continue;
        return FAIL("-pg %d: rank %d is on %s, rank %d on %s: give the number of ranks that share a host, or leave the "
                    "flag out",
                    pg, r > first ? first : r - 1, places[r > first ? first : r - 1].name, r, places[r].name);
    }
    return 0;
}

// Learns the host of each rank, and this one's place among those of its host.
static int find_local_rank(char *err, size_t err_bytes) {
    const size_t bytes = sizeof *places;
    places = calloc((size_t)here.ranks + 1, bytes);
    if (places == NULL) return FAIL(NO_MEMORY);
    Host h;
    find_host(&h);
    snprintf(places[here.ranks].name, sizeof places->name, "%.*s", (int)sizeof places->name - 1, h.name);
    places[here.ranks].host = XXH3_64bits(&h, sizeof h);
    places[here.ranks].process = (int)getpid();
    if (zero_bootstrap_allgather(bootstrap, &places[here.ranks], bytes, places) != ZERO_OK) {
        free(places);
        places = NULL;
        return FAIL("%s", zero_bootstrap_error(bootstrap));
    }
    here.local_rank = 0;
    here.local_ranks = 0;
    for (int r = 0; r < here.ranks; r++) {
        const int same = places[r].host == places[here.rank].host;
        here.local_rank += same && r < here.rank;
        here.local_ranks += same;
    }
    return 0;
}

const char *launch_host_name(int rank) { return places != NULL ? places[rank].name : "an unknown host"; }

int launch_failed(const char *message) {
    return bootstrap != NULL && bootstrap_failed() && strstr(message, zero_bootstrap_error(bootstrap)) != NULL;
}

void launch_name_hosts(char *message, size_t bytes) {
    size_t length = strlen(message);
    const char *const end = message + length;
    long named[4] = { -1, -1, -1, -1 };
    size_t n = 0;
    for (const char *at = message; places != NULL && (at = strstr(at, "rank")) != NULL && at < end;) {
        at += 4 + (at[4] == 's');
        for (char *next; *at == ' ' && at < end; at = *next == ',' ? next + 1 : next) {
            const long r = strtol(at, &next, 10);
            if (next == at) break;
            if (r < 0 || r >= here.ranks || r == here.rank || n == 4) continue;
            if (r == named[0] || r == named[1] || r == named[2] || r == named[3]) continue;
            named[n++] = r;
            snprintf(message + length, bytes - length, "; rank %ld is process %d on %s", r, places[r].process,
                     places[r].name);
            length += strlen(message + length);
        }
    }
}

int launch_connect(const Options *o, char *err, size_t err_bytes) {
    if (here.mpi) return find_local_rank(err, err_bytes) == 0 ? check_gpus_per_node(o, err, err_bytes) : -1;
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
                    bootstrap != NULL ? zero_bootstrap_error(bootstrap) : NO_MEMORY);
    }
    if (compare_options(o, err, err_bytes) != 0) {
        return -1;
    }
    if (find_local_rank(err, err_bytes) != 0) return -1;
    if (o->gpus_per_node < 1) return 0;
    here.local_rank = here.rank % (int)o->gpus_per_node;
    const int left = here.ranks - (here.rank - here.local_rank);  // the last host may have fewer
    here.local_ranks = left < (int)o->gpus_per_node ? left : (int)o->gpus_per_node;
    return 0;
}

zero_bootstrap *launch_bootstrap(void) {
    zero_bootstrap_set_timeout(bootstrap, here.timeout_s);
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
    if (leaving && here.mpi) launch_abort();  // MPI_Finalize would wait for ranks that do not come
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
