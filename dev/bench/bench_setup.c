// bench_setup.c: what a start costs as ranks grow in number: time, connections, bytes and memory.
//
//     bench_setup tcp|fs RANKS                 starts them here, as processes that meet, and exchange what a trainer's
//                                              start exchanges (EXCHANGES)
//     mpirun -n RANKS bench_setup [HOST]       a communicator of the mpi transport, on hosts of HOST ranks that this
//                                              machine pretends to be, and an engine of a small model; two steps
//
// Prints one row. bench_setup.sh makes a table of them.
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include "zero/clock.h"
#include "zero/comm/bootstrap/mpi.h"
#include "zero/zero.h"

static void must(int ok, const char *why) {
    if (ok) return;
    fprintf(stderr, "bench_setup: %s\n", why ? why : "failed");
    exit(EXIT_FAILURE);
}

// Kilobytes of this process that no other one has, since they were written.
static long own_kb(void) {
    char line[128];
    long kb = 0, n;
    FILE *f = fopen("/proc/self/smaps_rollup", "r");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "Private_Dirty: %ld", &n) == 1) kb = n;
    if (f) fclose(f);
    return kb;
}

static int open_files(void) {
    int n = -3;  // ., .., and the directory itself
    DIR *d = opendir("/proc/self/fd");
    while (d && readdir(d)) n++;
    if (d) closedir(d);
    return n;
}

// ---- tcp, fs --------------------------------------------------------------------------------------------------------

// The bytes of each exchange before there is a transport: flags, hosts, cores, GPUs, the transport, NCCL's id. Of some
// every rank needs what all have said, of the others one rank's word.
static const struct {
    size_t bytes;
    int of_all;
} EXCHANGES[] = { { 16, 0 }, { 64, 1 }, { 280, 1 }, { 16, 1 }, { 16, 0 }, { 136, 0 } };

static int rank_0(const void *all, int ranks) {
    (void)all;
    (void)ranks;
    return 0;
}

struct result {
    double met, exchanged;  // seconds since the start
    long kb;
    int files;
};

static void be_rank(int rank, int ranks, const char *way, const char *server, double began, int out) {
    const zero_bootstrap_config config = { rank, ranks, 300, NULL };
    zero_bootstrap *b = NULL;
    struct result r = { .kb = -own_kb() };
    char mine[512] = "", *all = malloc((size_t)ranks * sizeof mine);
    const int e = !strcmp(way, "fs") ? zero_bootstrap_create_fs(&b, server, &config)
                                     : zero_bootstrap_create_tcp(&b, server, &config);
    must(all && !e, b ? zero_bootstrap_error(b) : NULL);
    r.met = zero_clock() - began;
    for (size_t i = 0; i < sizeof EXCHANGES / sizeof *EXCHANGES; i++)
        must(!(EXCHANGES[i].of_all ? zero_bootstrap_allgather(b, mine, EXCHANGES[i].bytes, all)
                                   : zero_bootstrap_choose(b, mine, EXCHANGES[i].bytes, rank_0, all)),
             zero_bootstrap_error(b));
    r.exchanged = zero_clock() - began;
    r.kb += own_kb();
    r.files = open_files();
    must(write(out, &r, sizeof r) == (ssize_t)sizeof r, "pipe");
    zero_bootstrap_destroy(b);
    free(all);
}

static void meet(const char *way, int ranks) {
    char server[64] = "/tmp/bench_setup.XXXXXX";
    int ends[2];
    if (strcmp(way, "fs"))
        snprintf(server, sizeof server, "127.0.0.1:%d", 20300 + (int)getpid() % 12000);
    else
        must(mkdtemp(server) != NULL, server);
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    must(!pipe(ends), "pipe");
    fflush(stdout);
    const double began = zero_clock();
    for (int rank = 0; rank < ranks; rank++) {
        const pid_t pid = fork();
        must(pid >= 0, "fork");
        if (pid) continue;
        be_rank(rank, ranks, way, server, began, ends[1]);
        _exit(0);
    }
    struct result r, most = { 0 };
    for (int i = 0; i < ranks; i++) {
        must(read(ends[0], &r, sizeof r) == (ssize_t)sizeof r, "a rank has failed");
        if (r.met > most.met) most.met = r.met;
        if (r.exchanged > most.exchanged) most.exchanged = r.exchanged;
        if (r.kb > most.kb) most.kb = r.kb;
        if (r.files > most.files) most.files = r.files;
    }
    for (int i = 0; i < ranks; i++) {
        int status = 1;
        must(wait(&status) > 0 && !status, "a rank has failed");
    }
    if (!strcmp(way, "fs")) rmdir(server);
    size_t of_all = 0, chosen = 0;
    for (size_t i = 0; i < sizeof EXCHANGES / sizeof *EXCHANGES; i++)
        *(EXCHANGES[i].of_all ? &of_all : &chosen) += EXCHANGES[i].bytes;
    printf("%-5s %6d %10.2f %12.2f %12d %14.1f %14.2f %12ld\n", way, ranks, most.met, most.exchanged - most.met,
           most.files, (double)(of_all * (size_t)ranks + chosen) / 1e3,
           (double)(of_all * (size_t)ranks + chosen) * (ranks - 1) / 1e6, most.kb);
}

// ---- mpi ------------------------------------------------------------------------------------------------------------

static size_t messages;     // that this rank has sent
static unsigned char *met;  // [ranks] whether to this one

int MPI_Isend(const void *buf, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request *request) {
    messages++;
    if (met) met[to] = 1;
    return PMPI_Isend(buf, count, type, to, tag, comm, request);
}

static void step(zero *z, size_t units) {
    const zero_hyperparameters h = { 0.001f, 0.9f, 0.95f, 1e-8f, 0.1f, 1 };
    for (size_t u = units; u-- > 0;) must(zero_acquire_grads(z, u, 0) && !zero_release_grads(z, u), zero_error(z));
    must(!zero_finish_backward(z) && !zero_step(z, &h), zero_error(z));
    for (size_t u = 0; u < units; u++) must(zero_acquire_params(z, u) && !zero_release_params(z, u), zero_error(z));
}

static void engine(int rank, int ranks, int per_host) {
    enum { UNITS = 12 };
    zero_tensor tensors[UNITS];
    zero_accounting memory = { 0 };
    zero_comm *c = NULL;
    zero *z = NULL;
    char err[512] = "";
    for (size_t u = 0; u < UNITS; u++) tensors[u] = (zero_tensor){ "unit", 4096, u, 4096 * u, 1, 0, 0 };
    const long kb = own_kb();
    MPI_Barrier(MPI_COMM_WORLD);
    const double began = zero_clock();
    met = calloc((size_t)ranks, 1);
    must(met != NULL, NULL);
    const zero_comm_config way = { .timeout_s = 300, .ranks_per_host = per_host };
    must(!zero_comm_create_mpi(&c, MPI_COMM_WORLD, "mpi", &way, &memory, err, sizeof err), err);
    const double created = zero_clock() - began;
    const size_t by_transport = messages;
    const zero_config config = { .shard_comm = c,
                                 .accounting = &memory,
                                 .tensors = tensors,
                                 .num_tensors = UNITS,
                                 .settings = { .stage = 2, .offload_fraction = 1 } };
    must(!zero_create(&z, &config), z ? zero_error(z) : NULL);
    const double all = zero_clock() - began;
    const size_t by_engine = messages - by_transport;
    step(z, UNITS);
    const size_t before = messages;
    step(z, UNITS);
    int peers = 0;
    for (int r = 0; r < ranks; r++) peers += met[r];
    if (rank == 0)
        printf("%6d %6d %13.2f %10.2f %14zu %12zu %12zu %8d %12ld\n", ranks, per_host ? per_host : ranks, created,
               all - created, by_transport, by_engine, messages - before, peers, own_kb() - kb);
    zero_destroy(z);
    zero_comm_destroy(c);
    free(met);
    met = NULL;
}

int main(int argc, char **argv) {
    if (argc == 3 && (!strcmp(argv[1], "tcp") || !strcmp(argv[1], "fs")) && atoi(argv[2]) > 0) {
        meet(argv[1], atoi(argv[2]));
        return EXIT_SUCCESS;
    }
    int rank, ranks;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    engine(rank, ranks, argc > 1 ? atoi(argv[1]) : 0);
    MPI_Finalize();
    return EXIT_SUCCESS;
}
