// shm.c: shared memory by memfd, waiting by futex (shm.h).
#include "zero/comm/mpi/shared_memory.h"
#include <fcntl.h>
#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

double zero_shm_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void zero_shm_publish(_Atomic uint32_t *counter, uint64_t value) {
    atomic_store_explicit(counter, (uint32_t)value, memory_order_release);
    syscall(SYS_futex, counter, FUTEX_WAKE, 1 << 30, NULL, NULL, 0);
}

int zero_shm_wait(_Atomic uint32_t *counter, uint32_t value, int spin, double timeout_s, uint32_t *seen) {
    double deadline = 0;
    for (int i = 0;; i++) {
        *seen = atomic_load_explicit(counter, memory_order_acquire);
        if ((int32_t)(*seen - value) >= 0) return 0;  // a signed difference does not mind that counters wrap
        if (i < spin) {
            atomic_signal_fence(memory_order_seq_cst);
            continue;
        }
        const double now = zero_shm_now();
        if (deadline == 0) deadline = now + timeout_s;
        if (now > deadline) return -1;
        const struct timespec slice = { 0, 200 * 1000 * 1000 };
        syscall(SYS_futex, counter, FUTEX_WAIT, *seen, &slice, NULL, 0);
    }
}

// How the others find this rank's memory.
struct card {
    long pid;
    int fd;
    uint64_t device, inode;
};

void zero_shm_unmap(struct zero_shm *s) {
    if (!s->peer) return;
    for (int r = 0; r < s->ranks; r++)
        if (s->peer[r]) munmap(s->peer[r], s->bytes);
    free(s->peer);
    s->peer = NULL;
    s->bytes = 0;
}

static char *map_peer(const struct card *card, size_t bytes) {
    char path[64];
    struct stat st;
    snprintf(path, sizeof path, "/proc/%ld/fd/%d", card->pid, card->fd);
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return NULL;
    char *p = MAP_FAILED;
    // another container may have another pid of this number
    if (!fstat(fd, &st) && st.st_dev == card->device && st.st_ino == card->inode)
        p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return p == MAP_FAILED ? NULL : p;
}

int zero_shm_map(struct zero_shm *s, MPI_Comm comm, const int *on_host, size_t bytes) {
    int size, rank;
    if (MPI_Comm_size(comm, &size) || MPI_Comm_rank(comm, &rank)) return ZERO_ERR_COMM;
    struct card mine = { .pid = (long)getpid(), .fd = memfd_create("zero", MFD_CLOEXEC) },
                *cards = calloc((size_t)size, sizeof *cards);
    struct stat st;
    *s = (struct zero_shm){ calloc((size_t)size, sizeof *s->peer), size, bytes };
    if (!cards || !s->peer) {  // too little memory even for this: the job is lost, time-outs end the other ranks
        free(cards);
        free(s->peer);
        *s = (struct zero_shm){ 0 };
        if (mine.fd >= 0) close(mine.fd);
        return ZERO_ERR_MEMORY;
    }
    if (mine.fd >= 0 && !ftruncate(mine.fd, (off_t)bytes) && !fstat(mine.fd, &st)) {
        mine.device = st.st_dev;
        mine.inode = st.st_ino;
        char *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, mine.fd, 0);
        s->peer[rank] = p == MAP_FAILED ? NULL : p;
    }
    int ok = MPI_Allgather(&mine, sizeof mine, MPI_BYTE, cards, sizeof mine, MPI_BYTE, comm) == MPI_SUCCESS &&
             s->peer[rank];
    for (int r = 0; r < size && ok; r++)
        if (r != rank && on_host[r]) ok = (s->peer[r] = map_peer(&cards[r], bytes)) != NULL;
    int all = 0;
    if (MPI_Allreduce(&ok, &all, 1, MPI_INT, MPI_MIN, comm) != MPI_SUCCESS) all = 0;
    if (mine.fd >= 0) close(mine.fd);
    free(cards);
    if (!all) zero_shm_unmap(s);
    return all ? ZERO_OK : ZERO_ERR_MEMORY;
}
