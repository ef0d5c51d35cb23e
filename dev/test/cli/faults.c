// Faults of one rank of the trainer, planted where the linker sends its calls here (-Wl,--wrap; Makefile). In the
// environment:
//
//     FAULT="RANK KIND PHASE"      KIND: kill, stop, abort, exit, memory; PHASE: a name below, or the beginning of a
//                                  phase's
//     FAULT_SELF=RANK              of this process, where Open MPI does not say it
//
//     FAULT_MEMORY=1               when the snapshot for checkpoints is allocated, no host memory is left
//
// The fault comes when the phase begins for the second time, or the first, if it comes once in a run.
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "data/dataloader.h"
#include "trainer/run.h"
#include "trainer/launch.h"
#include "zero/comm/transport_registry.h"
#include "zero/zero.h"

static void fault(const char *phase, int times) {
    static int seen;
    char kind[16], wanted[64];
    int victim;
    const char *text = getenv("FAULT");
    const char *self = getenv("FAULT_SELF") != NULL ? getenv("FAULT_SELF") : getenv("OMPI_COMM_WORLD_RANK");
    if (text == NULL || sscanf(text, "%d %15s %63[^\n]", &victim, kind, wanted) != 3) return;
    if (self == NULL || atoi(self) != victim || strncmp(phase, wanted, strlen(wanted)) != 0 || ++seen != times) return;
    fprintf(stderr, "rank %d: %s in %s\n", victim, kind, phase);
    if (strcmp(kind, "kill") == 0) raise(SIGKILL);
    if (strcmp(kind, "stop") == 0) raise(SIGSTOP);
    if (strcmp(kind, "abort") == 0) abort();
    if (strcmp(kind, "exit") == 0) _exit(0);
    if (strcmp(kind, "memory") == 0) setrlimit(RLIMIT_AS, &(struct rlimit){ 0, RLIM_INFINITY });  // no more of it
}

int __real_MPI_Init(int *argc, char ***argv);
int __wrap_MPI_Init(int *argc, char ***argv);
int __wrap_MPI_Init(int *argc, char ***argv) {
    fault("MPI_Init", 1);
    return __real_MPI_Init(argc, argv);
}

int __real_MPI_Finalize(void);
int __wrap_MPI_Finalize(void);
int __wrap_MPI_Finalize(void) {
    fault("MPI_Finalize", 1);
    return __real_MPI_Finalize();
}

void __real_zero_comm_phase(zero_comm *c, const char *phase, size_t unit);
void __wrap_zero_comm_phase(zero_comm *c, const char *phase, size_t unit);
void __wrap_zero_comm_phase(zero_comm *c, const char *phase, size_t unit) {
    __real_zero_comm_phase(c, phase, unit);
    fault(phase, strcmp(phase, "reading the weights") == 0 ? 1 : 2);
}

static int preparing_checkpoints;

void __real_prepare_checkpoints(Run *r);
void __wrap_prepare_checkpoints(Run *r);
void __wrap_prepare_checkpoints(Run *r) {
    preparing_checkpoints = 1;
    __real_prepare_checkpoints(r);
    preparing_checkpoints = 0;
}

size_t __real_zero_host_memory_available(const char *root);
size_t __wrap_zero_host_memory_available(const char *root);
size_t __wrap_zero_host_memory_available(const char *root) {
    return preparing_checkpoints && getenv("FAULT_MEMORY") != NULL ? 0 : __real_zero_host_memory_available(root);
}

int __real_zero_step(zero *z, const zero_hyperparameters *h);
int __wrap_zero_step(zero *z, const zero_hyperparameters *h);
int __wrap_zero_step(zero *z, const zero_hyperparameters *h) {
    fault("optimizer", 2);
    return __real_zero_step(z, h);
}

int __real_launch_connect(const Options *o, char *err, size_t err_bytes);
int __wrap_launch_connect(const Options *o, char *err, size_t err_bytes);
int __wrap_launch_connect(const Options *o, char *err, size_t err_bytes) {
    fault("finding the ranks", 1);
    return __real_launch_connect(o, err, err_bytes);
}

int __real_zero_create(zero **out, const zero_config *config);
int __wrap_zero_create(zero **out, const zero_config *config);
int __wrap_zero_create(zero **out, const zero_config *config) {
    fault("creating the engine", 1);
    return __real_zero_create(out, config);
}

void __real_zero_destroy(zero *z);
void __wrap_zero_destroy(zero *z);
void __wrap_zero_destroy(zero *z) {
    fault("destroying the engine", 1);
    __real_zero_destroy(z);
}

int __real_loader_content_hash(const Loader *l, uint64_t *hash, char err[512]);
int __wrap_loader_content_hash(const Loader *l, uint64_t *hash, char err[512]);
int __wrap_loader_content_hash(const Loader *l, uint64_t *hash, char err[512]) {
    fault("data headers", 1);
    return __real_loader_content_hash(l, hash, err);
}

int __real_zero_mesh_comms_create(zero_mesh_comms *comms, const zero_mesh *m, const zero_transport *t,
                                  zero_bootstrap *boot, const zero_comm_config *config, zero_accounting *accounting,
                                  char *message, size_t bytes);
int __wrap_zero_mesh_comms_create(zero_mesh_comms *comms, const zero_mesh *m, const zero_transport *t,
                                  zero_bootstrap *boot, const zero_comm_config *config, zero_accounting *accounting,
                                  char *message, size_t bytes);
int __wrap_zero_mesh_comms_create(zero_mesh_comms *comms, const zero_mesh *m, const zero_transport *t,
                                  zero_bootstrap *boot, const zero_comm_config *config, zero_accounting *accounting,
                                  char *message, size_t bytes) {
    fault("transport", 1);
    return __real_zero_mesh_comms_create(comms, m, t, boot, config, accounting, message, bytes);
}
