// shared_memory.c: memory by memfd, waiting by futex (shared_memory.h).
#include "zero/comm/shared_memory.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include "zero/clock.h"
#include "zero/host_memory.h"

// The word of a counter that changes with each step: a futex has 32 bits.
static uint32_t *low_word(_Atomic uint64_t *counter) {
    return (uint32_t *)counter + (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__);
}

void zero_shm_publish(_Atomic uint64_t *counter, uint64_t value) {
    atomic_store_explicit(counter, value, memory_order_release);
    syscall(SYS_futex, low_word(counter), FUTEX_WAKE, 1 << 30, NULL, NULL, 0);
}

int zero_shm_wait(_Atomic uint64_t *counter, uint64_t value, int spin, double timeout_s, uint64_t *seen) {
    zero_stopwatch waited = { 0 };
    for (int i = 0;; i++) {
        *seen = atomic_load_explicit(counter, memory_order_acquire);
        if (*seen >= value) return 0;
        if (i < spin) {
            atomic_signal_fence(memory_order_seq_cst);
            continue;
        }
        if (zero_stopwatch_read(&waited) > timeout_s) return -1;
        const struct timespec slice = { 0, 200 * 1000 * 1000 };
        syscall(SYS_futex, low_word(counter), FUTEX_WAIT, (uint32_t)*seen, &slice, NULL, 0);
    }
}

// What ranks must have in common to map each other's memory through /proc.
struct host {
    char boot[64];  // of the kernel
    uint64_t pid_namespace;
    int pretended;
};

static int compare_hosts(const void *a, const void *b) { return memcmp(a, b, sizeof(struct host)); }

// Sorts all.
static int ranks_per_host(struct host *all, int ranks) {
    int n = 1;
    while (n < ranks && !compare_hosts(&all[n], &all[0])) n++;
    if (ranks % n) return 0;
    for (int r = 0; r < ranks; r++)
        if (compare_hosts(&all[r], &all[r - r % n])) return 0;
    qsort(all, (size_t)ranks, sizeof *all, compare_hosts);
    for (int r = n; r < ranks; r++)  // another run of n ranks on the same host
        if (!compare_hosts(&all[r], &all[r - n])) return 0;
    return n;
}

int zero_shm_find_host(int rank, int ranks, int pretended, int *on_host, int *per_host, zero_shm_meet *meet,
                       void *ctx) {
    struct host mine, *all = calloc((size_t)ranks, sizeof *all);
    struct stat st;
    if (!all) return ZERO_ERR_MEMORY;
    memset(&mine, 0, sizeof mine);
    mine.pretended = pretended;
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "r");
    if (!f || !fgets(mine.boot, sizeof mine.boot, f)) (void)gethostname(mine.boot, sizeof mine.boot - 1);
    if (f) fclose(f);
    if (!stat("/proc/self/ns/pid", &st)) mine.pid_namespace = st.st_ino;
    const int e = meet(ctx, &mine, sizeof mine, all);
    for (int r = 0; r < ranks && !e; r++) on_host[r] = r == rank || !compare_hosts(&all[r], &mine);
    *per_host = e ? 0 : ranks_per_host(all, ranks);
    free(all);
    return e;
}

// How the others find this rank's memory.
struct card {
    long pid;
    int fd;
    uint64_t device, inode;
};

// A model may have no elements, a map may not be empty.
static size_t length(size_t bytes) { return bytes ? bytes : 1; }

void zero_shm_unmap(struct zero_shm *s) {
    if (!s->peer) return;
    for (int r = 0; r < s->ranks; r++)
        if (s->peer[r]) munmap(s->peer[r], length(s->bytes));
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
        p = mmap(NULL, length(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return p == MAP_FAILED ? NULL : p;
}

int zero_shm_has_memory(struct zero_shm *s, int ranks_here, const char *root) {
    struct rlimit limit;
    const size_t have = zero_host_memory_available(root), need = s->bytes * (size_t)ranks_here;
    if (!getrlimit(RLIMIT_FSIZE, &limit) && limit.rlim_cur < s->bytes)
        snprintf(s->why, sizeof s->why, "shared memory counts as a file, and RLIMIT_FSIZE (ulimit -f) is %llu bytes",
                 (unsigned long long)limit.rlim_cur);
    else if (need > have || need / (size_t)ranks_here != s->bytes)
        snprintf(s->why, sizeof s->why,
                 "%d ranks of this host need it, and %zu bytes are available (MemAvailable, limits of cgroups)",
                 ranks_here, have);
    return !s->why[0];
}

// Where vm.memfd_noexec is 2 only memory that can never be executed is granted; older kernels do not know the flag.
static int create_file(void) {
    const unsigned noexec_seal = 8;
    const int fd = memfd_create("zero", MFD_CLOEXEC | noexec_seal);
    return fd >= 0 ? fd : memfd_create("zero", MFD_CLOEXEC);
}

// This rank's memory; fd -1 or no peer[rank]: there is none.
static void make_own(struct zero_shm *s, int rank, int ranks_here, struct card *mine) {
    struct stat st;
    *mine = (struct card){ .pid = (long)getpid(), .fd = -1 };
    if (s->why[0] || !zero_shm_has_memory(s, ranks_here, "")) return;
    if (ranks_here == 1) {  // nobody maps it
        char *own = mmap(NULL, length(s->bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (own == MAP_FAILED) snprintf(s->why, sizeof s->why, "mmap failed: %s", strerror(errno));
        s->peer[rank] = own == MAP_FAILED ? NULL : own;
        return;
    }
    mine->fd = create_file();
    if (mine->fd < 0 || ftruncate(mine->fd, (off_t)length(s->bytes)) || fstat(mine->fd, &st)) {
        snprintf(s->why, sizeof s->why, "memfd_create or ftruncate failed: %s", strerror(errno));
        return;
    }
    mine->device = st.st_dev;
    mine->inode = st.st_ino;
    char *p = mmap(NULL, length(s->bytes), PROT_READ | PROT_WRITE, MAP_SHARED, mine->fd, 0);
    if (p == MAP_FAILED) snprintf(s->why, sizeof s->why, "mmap failed: %s", strerror(errno));
    s->peer[rank] = p == MAP_FAILED ? NULL : p;
}

int zero_shm_map(struct zero_shm *s, int rank, int ranks, const int *on_host, size_t bytes, const char *refusal,
                 zero_shm_meet *meet, void *ctx) {
    struct card mine, *cards = calloc((size_t)ranks, sizeof *cards);
    int *all_ok = calloc((size_t)ranks, sizeof *all_ok);
    int ranks_here = 0;
    *s = (struct zero_shm){ calloc((size_t)ranks, sizeof *s->peer), ranks, bytes, "" };
    if (!cards || !all_ok || !s->peer) {  // too little memory even for this: the others' time-outs end the job
        free(cards);
        free(all_ok);
        free(s->peer);
        *s = (struct zero_shm){ .why = "out of host memory" };
        return ZERO_ERR_MEMORY;
    }
    snprintf(s->why, sizeof s->why, "%s", refusal);
    for (int r = 0; r < ranks; r++) ranks_here += on_host[r] != 0;
    make_own(s, rank, ranks_here, &mine);
    int e = meet(ctx, &mine, sizeof mine, cards), ok = s->peer[rank] != NULL;
    for (int r = 0; r < ranks && ok && !e; r++)
        if (r != rank && on_host[r]) ok = (s->peer[r] = map_peer(&cards[r], bytes)) != NULL;
    if (!e) e = meet(ctx, &ok, sizeof ok, all_ok);  // and now nobody needs the descriptor any more
    for (int r = 0; r < ranks && !e; r++)
        if (!all_ok[r]) e = ZERO_ERR_MEMORY;
    if (e == ZERO_ERR_MEMORY && !s->why[0])
        snprintf(s->why, sizeof s->why,
                 "another rank has none or has given up, or its memory cannot be mapped through /proc");
    if (mine.fd >= 0) close(mine.fd);
    free(cards);
    free(all_ok);
    if (e) zero_shm_unmap(s);
    return e;
}
