// Records that are swapped to a disk: is what is written what is read, in any order of the disk's work, is work
// overlapped, and does every fault of a disk end in an error that names the directory?
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <signal.h>
#include <unistd.h>

#include "test/harness/harness.h"
#include "zero/offload/swap.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

enum { MAX_RECORDS = 40, KB = 1024 };

static char directory[] = "build/test_swap.XXXXXX";
static unsigned seed = 1;
static size_t below(size_t n) { return (size_t)rand_r(&seed) % n; }

// ---------------------------------------------------------------------------------------------------------------------
// A disk that does nothing before it must, then any block, and fails as it is told.

static struct {
    zero_aio_block *waiting[256];
    size_t count;
    int in_order;             // reads first, then the oldest write
    int partly;               // transfers may be interrupted, or done in part
    int fails, write, after;  // the result, of reads or writes, once `after` of them went well
    size_t reads, writes;     // waiting
} disk;

static int disk_create(void **state, size_t depth) {
    *state = &disk;
    return depth <= COUNT(disk.waiting) ? 0 : EINVAL;
}

static void disk_destroy(void *state) { CHECK(state == &disk && disk.count == 0, "%zu blocks in flight", disk.count); }

static void disk_submit(void *state, zero_aio_block *b) {
    (void)state;
    CHECK((uintptr_t)b->buffer % ZERO_AIO_ALIGN == 0 && b->bytes % ZERO_AIO_ALIGN == 0 &&
              b->offset % ZERO_AIO_ALIGN == 0 && b->bytes > 0,
          "not aligned: %p, %zu bytes at %llu", (void *)b->buffer, b->bytes, (unsigned long long)b->offset);
    disk.waiting[disk.count++] = b;
    *(b->write ? &disk.writes : &disk.reads) += 1;
}

static long transfer(const zero_aio_block *b) {
    if (disk.fails && disk.write == b->write && disk.after-- <= 0) return disk.fails;
    if (disk.partly && !below(4)) return below(2) ? -EINTR : -EAGAIN;
    const size_t bytes = disk.partly ? 1 + below(b->bytes) : b->bytes;
    const size_t n = bytes < ZERO_AIO_ALIGN ? ZERO_AIO_ALIGN : bytes;
    const ssize_t done = b->write ? pwrite(b->fd, b->buffer, n / ZERO_AIO_ALIGN * ZERO_AIO_ALIGN, (off_t)b->offset)
                                  : pread(b->fd, b->buffer, n / ZERO_AIO_ALIGN * ZERO_AIO_ALIGN, (off_t)b->offset);
    return done < 0 ? -errno : done;
}

static zero_aio_block *disk_reap(void *state) {
    (void)state;
    REQUIRE(disk.count > 0, "waits, and nothing is in flight");
    size_t i = disk.in_order ? 0 : below(disk.count);
    while (disk.in_order && disk.reads && disk.waiting[i]->write) i++;
    zero_aio_block *b = disk.waiting[i];
    memmove(disk.waiting + i, disk.waiting + i + 1, (--disk.count - i) * sizeof b);
    *(b->write ? &disk.writes : &disk.reads) -= 1;
    b->result = transfer(b);
    return b;
}

static const zero_aio_backend DISK = { "a disk of the test", disk_create, disk_destroy, disk_submit, disk_reap };

static zero_swap *create(const zero_aio_backend *backend, const size_t *bytes, size_t n, size_t buffers) {
    char err[512] = "";
    memset(&disk, 0, sizeof disk);
    zero_swap *s = zero_swap_create(&(zero_swap_config){ directory, bytes, n, buffers, backend }, err, sizeof err);
    REQUIRE(s != NULL, "%s", err);
    return s;
}

// ---------------------------------------------------------------------------------------------------------------------
// What is read.

// Acquires, changes and prefetches records at random, up to `held` at a time.
static void use_at_random(zero_swap *s, const size_t *bytes, size_t n, size_t held, int rounds) {
    unsigned char *contents[MAX_RECORDS], *at[MAX_RECORDS] = { 0 };
    size_t count = 0;
    for (size_t r = 0; r < n; r++) REQUIRE((contents[r] = calloc(bytes[r] + 1, 1)) != NULL, "out of memory");
    for (int round = 0; round < rounds && !test_failed(); round++) {
        const size_t r = below(n);
        if (at[r]) {
            const int changed = (int)below(2);
            for (size_t i = 0; changed && i < bytes[r]; i++)
                contents[r][i] = at[r][i] = (unsigned char)(i * 7 + below(256));
            CHECK_EQ(zero_swap_release(s, r, changed), 0);
            at[r] = NULL;
            count--;
        } else if (!below(3) && count < held) {
            CHECK_EQ(zero_swap_prefetch(s, r), 0);
        } else if (count < held) {
            at[r] = zero_swap_acquire(s, r);
            REQUIRE(at[r] != NULL, "%s", zero_swap_error(s));
            CHECK(!memcmp(at[r], contents[r], bytes[r]), "record %zu of %zu bytes is not what was written", r,
                  bytes[r]);
            count++;
        }
    }
    for (size_t r = 0; r < n; r++) free(contents[r]);
}

static void what_is_written_is_read(const zero_aio_backend *backend, int partly) {
    size_t bytes[MAX_RECORDS];
    for (int round = 0; round < 5; round++) {
        const size_t n = 1 + below(MAX_RECORDS), held = 1 + below(3), buffers = held + 1 + below(4);
        for (size_t r = 0; r < n; r++) bytes[r] = below(3) ? 1 + below(20 * KB) : ZERO_AIO_BLOCK + below(100 * KB);
        zero_swap *s = create(backend, bytes, n, buffers);
        disk.partly = partly;
        use_at_random(s, bytes, n, held, 300);
        zero_swap_destroy(s);
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// The ring.

static void memory_does_not_grow_with_the_records(void) {
    size_t bytes[MAX_RECORDS], memory;
    for (size_t r = 0; r < MAX_RECORDS; r++) bytes[r] = r == 3 ? 40 * KB + 1 : 16 * KB + 1;
    for (size_t n = 4; n <= MAX_RECORDS; n += 12) {
        zero_swap *s = create(&DISK, bytes, n, 3);
        (void)zero_swap_memory(s, &memory);
        CHECK_EQ(memory, 3 * 44 * KB);
        CHECK_EQ(zero_swap_buffer_bytes(bytes, n, 3), memory);
        CHECK_EQ(zero_swap_file_bytes(bytes, n), 44 * KB + (n - 1) * 20 * KB);
        zero_swap_destroy(s);
    }
}

// While a record is held, the next one is being read and the last two are being written.
static void reading_and_writing_go_on_during_the_work(void) {
    size_t bytes[10];
    for (size_t r = 0; r < 10; r++) bytes[r] = 3 * ZERO_AIO_BLOCK;
    zero_swap *s = create(&DISK, bytes, 10, 4);
    disk.in_order = 1;
    for (size_t r = 0; r < 10; r++) {
        CHECK(zero_swap_acquire(s, r) != NULL, "%s", zero_swap_error(s));
        CHECK_EQ(zero_swap_prefetch(s, (r + 1) % 10), 0);
        CHECK_EQ(disk.reads, 3);
        CHECK_EQ(disk.writes, 3 * (r < 2 ? r : 2));
        CHECK_EQ(zero_swap_release(s, r, 1), 0);
    }
    for (size_t r = 7; r < 10; r++)
        CHECK(zero_swap_acquire(s, r) && zero_swap_release(s, r, 0) == 0, "%s", zero_swap_error(s));
    CHECK_EQ(disk.writes, 0);
    const zero_swap_traffic t = zero_swap_get_traffic(s);
    CHECK_EQ(t.read, (uint64_t)11 * 3 * ZERO_AIO_BLOCK);
    CHECK_EQ(t.written, (uint64_t)10 * 3 * ZERO_AIO_BLOCK);
    zero_swap_destroy(s);
}

static void too_many_acquired_are_an_error(void) {
    static const size_t bytes[3] = { 1, 1, 1 };
    zero_swap *s = create(&DISK, bytes, 3, 2);
    CHECK(zero_swap_acquire(s, 0) && zero_swap_acquire(s, 1), "%s", zero_swap_error(s));
    CHECK(!zero_swap_acquire(s, 2) && strstr(zero_swap_error(s), "all 2 buffers"), "%s", zero_swap_error(s));
    zero_swap_destroy(s);
}

// ---------------------------------------------------------------------------------------------------------------------
// Faults.

// Goes over the records until something fails, three times, then expects that all calls fail.
static void expect_error(zero_swap *s, size_t n, const char *why) {
    int failed = 0;
    for (size_t i = 0; i < 3 * n && !failed; i++)
        failed = !zero_swap_acquire(s, i % n) || zero_swap_prefetch(s, (i + 1) % n) || zero_swap_release(s, i % n, 1);
    CHECK(failed, "nothing has failed");
    const char *error = zero_swap_error(s);
    CHECK(strstr(error, directory) && strstr(error, why), "the error is: %s", error);
    char first[512];
    snprintf(first, sizeof first, "%s", error);
    disk.fails = 0;
    CHECK(!zero_swap_acquire(s, 0) && zero_swap_prefetch(s, 1), "a call succeeds afterwards");
    CHECK_STR(zero_swap_error(s), first);
}

static void a_fault_is_an_error_that_stays(int code, int write, int after, const char *why) {
    size_t bytes[8];
    for (size_t r = 0; r < 8; r++) bytes[r] = 2 * ZERO_AIO_BLOCK;
    zero_swap *s = create(&DISK, bytes, 8, 3);
    disk.fails = code;
    disk.write = write;
    disk.after = after;
    expect_error(s, 8, why);
    zero_swap_destroy(s);  // blocks may be in flight
}

// Calls visit for each file of this process that is in the directory.
static int open_files(void (*visit)(const char *path)) {
    char link[300], target[300];
    int n = 0;
    DIR *d = opendir("/proc/self/fd");
    for (struct dirent *e; d && (e = readdir(d)) != NULL;) {
        snprintf(link, sizeof link, "/proc/self/fd/%s", e->d_name);
        const ssize_t length = readlink(link, target, sizeof target - 1);
        target[length > 0 ? length : 0] = '\0';
        if (!strstr(target, strrchr(directory, '/'))) continue;
        n++;
        if (visit) visit(link);
    }
    if (d) closedir(d);
    return n;
}

static void truncate_file(const char *path) { CHECK(truncate(path, 5 * KB) == 0, "truncate: %s", strerror(errno)); }

static void a_truncated_file_is_an_error(const zero_aio_backend *backend) {
    static const size_t bytes[6] = { 64 * KB, 64 * KB, 64 * KB, 64 * KB, 64 * KB, 64 * KB };
    zero_swap *s = create(backend, bytes, 6, 2);
    CHECK_EQ(open_files(truncate_file), 1);
    CHECK(zero_swap_acquire(s, 3) == NULL, "it was acquired");
    CHECK(strstr(zero_swap_error(s), "something has truncated it"), "the error is: %s", zero_swap_error(s));
    zero_swap_destroy(s);
}

static void refused(const char *where, const size_t *bytes, size_t n, const char *why) {
    char err[512] = "";
    zero_swap *s = zero_swap_create(&(zero_swap_config){ where, bytes, n, 2, NULL }, err, sizeof err);
    CHECK(s == NULL && strstr(err, why) && strstr(err, where), "the error is: %s", err);
    zero_swap_destroy(s);
}

static void a_small_disk_is_noticed_at_creation(void) {
    size_t *bytes = malloc(sizeof *bytes << 20);
    REQUIRE(bytes != NULL, "out of memory");
    for (size_t r = 0; r < 1 << 20; r++) bytes[r] = 1 << 24;  // 16 TB
    refused(directory, bytes, 1 << 20, "make room, or choose another directory");
    struct rlimit limit, small = { 1 << 20, RLIM_INFINITY };
    CHECK(getrlimit(RLIMIT_FSIZE, &limit) == 0 && setrlimit(RLIMIT_FSIZE, &small) == 0, "%s", strerror(errno));
    refused(directory, bytes, 1, "File too large");
    CHECK_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    refused("/nonexistent/directory", bytes, 1, "choose another directory");
    refused("/dev/null", bytes, 1, "choose another directory");
    free(bytes);
}

static void no_file_is_left(void) {
    static const size_t bytes[1] = { 4 * KB };
    const int before = open_files(NULL);
    zero_swap *s = create(NULL, bytes, 1, 2);
    CHECK_EQ(open_files(NULL), before + 1);
    CHECK(rmdir(directory) == 0 && mkdir(directory, 0700) == 0, "%s: %s", directory, strerror(errno));
    zero_swap_destroy(s);
    CHECK_EQ(open_files(NULL), before);
}

static void a_long_path_is_not_cut(void) {
    static const size_t bytes[1] = { 4 * KB };
    char path[1000], err[512] = "", name[201];
    memset(name, 'a', sizeof name - 1);
    name[200] = '\0';
    snprintf(path, sizeof path, "%s/%s", directory, name);
    CHECK(mkdir(path, 0700) == 0, "%s: %s", path, strerror(errno));
    snprintf(path, sizeof path, "%s/%s/%s", directory, name, name);
    CHECK(mkdir(path, 0700) == 0, "%s: %s", path, strerror(errno));
    zero_swap *s = zero_swap_create(&(zero_swap_config){ path, bytes, 1, 2, NULL }, err, sizeof err);
    CHECK(s != NULL, "%s", err);
    zero_swap_destroy(s);
    CHECK_EQ(rmdir(path), 0);
    *strrchr(path, '/') = '\0';
    CHECK_EQ(rmdir(path), 0);
}

// As containers do.
static void threads_do_it_where_io_uring_is_refused(void) {
    static const size_t bytes[2] = { 4 * KB, 4 * KB };
    int status = -1;
    const pid_t child = fork();
    if (child == 0) {
        struct sock_filter filter[] = {
            BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 425, 0, 1),  // io_uring_setup
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        };
        const struct sock_fprog program = { COUNT(filter), filter };
        if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) _exit(2);
        zero_swap *s = create(NULL, bytes, 2, 2);
        char *p = zero_swap_acquire(s, 0);
        const char *wanted = zero_aio_uring() && strstr(zero_swap_description(s), "O_DIRECT")
                                 ? "threads (io_uring: Operation not permitted), "
                                 : "threads, ";
        const int ok = p && !strncmp(zero_swap_description(s), wanted, strlen(wanted));
        if (!ok) printf("    %s, not: %s\n", wanted, zero_swap_description(s));
        fflush(stdout);
        _exit(!ok);
    }
    CHECK(child > 0 && waitpid(child, &status, 0) == child, "%s", strerror(errno));
    CHECK(WIFEXITED(status), "the child died");
    CHECK_EQ(WEXITSTATUS(status), 0);
}

// A child would make the parent's pages, which the disk reads into, copies.
static void a_fork_leaves_the_buffers_alone(void) {
    static const size_t bytes[2] = { 4 * KB, 4 * KB };
    zero_swap *s = create(NULL, bytes, 2, 2);
    char *p = zero_swap_acquire(s, 0);
    REQUIRE(p != NULL, "%s", zero_swap_error(s));
    int status = 0, fds[2];
    REQUIRE(pipe(fds) == 0, "%s", strerror(errno));
    const pid_t child = fork();
    if (child == 0) _exit(write(fds[1], p, 1) == -1 && errno == EFAULT ? 7 : 0);
    CHECK(child > 0 && waitpid(child, &status, 0) == child, "%s", strerror(errno));
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7, "the child has the buffers");
    close(fds[0]);
    close(fds[1]);
    zero_swap_destroy(s);
}

// As some file systems do, after they have accepted O_DIRECT.
static void the_page_cache_is_used_where_direct_reads_are_refused(void) {
    static const size_t bytes[2] = { 4 * KB, 4 * KB };
    int status = -1;
    const pid_t child = fork();
    if (child == 0) {
        struct sock_filter filter[] = {
            BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pread64, 0, 1),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EINVAL),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        };
        const struct sock_fprog program = { COUNT(filter), filter };
        if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) _exit(2);
        zero_swap *s = create(NULL, bytes, 2, 2);
        const char *wanted = "threads, through the page cache (O_DIRECT: ";
        const int ok = !strncmp(zero_swap_description(s), wanted, strlen(wanted));
        if (!ok) printf("    %s, not: %s\n", wanted, zero_swap_description(s));
        fflush(stdout);
        _exit(!ok);
    }
    CHECK(child > 0 && waitpid(child, &status, 0) == child, "%s", strerror(errno));
    CHECK(WIFEXITED(status), "the child died");
    CHECK_EQ(WEXITSTATUS(status), 0);
}

int main(int argc, char **argv) {
    test_start(&argc, argv);
    REQUIRE(mkdtemp(directory) != NULL, "%s: %s", directory, strerror(errno));
    static const struct {
        const char *name;
        const zero_aio_backend *(*get)(void);
    } backends[] = { { "io_uring", zero_aio_uring }, { "threads", zero_aio_threads } };
    for (size_t i = 0; i < COUNT(backends); i++) {
        void *state;
        const zero_aio_backend *b = backends[i].get();
        if (!b || b->create(&state, 1) != 0) continue;  // not built with it, or refused here
        b->destroy(state);
        CASE("%s: what is written is read", b->name) what_is_written_is_read(b, 0);
        CASE("%s: a truncated file is an error", b->name) a_truncated_file_is_an_error(b);
    }
    CASE("blocks end in any order: what is written is read") what_is_written_is_read(&DISK, 0);
    CASE("transfers are done in part: what is written is read") what_is_written_is_read(&DISK, 1);
    RUN(memory_does_not_grow_with_the_records);
    RUN(reading_and_writing_go_on_during_the_work);
    RUN(too_many_acquired_are_an_error);
    CASE("a read error stays") a_fault_is_an_error_that_stays(-EIO, 0, 5, "Input/output error: check the disk");
    CASE("a write error stays") a_fault_is_an_error_that_stays(-EIO, 1, 5, "Input/output error: check the disk");
    CASE("a full disk stays an error")
        a_fault_is_an_error_that_stays(-ENOSPC, 1, 3, "No space left on device: make room");
    CASE("a short read is an error") a_fault_is_an_error_that_stays(100, 0, 5, "the file ends before");
    CASE("a write of nothing is an error") a_fault_is_an_error_that_stays(100, 1, 5, "No space left");
    RUN(a_small_disk_is_noticed_at_creation);
    RUN(no_file_is_left);
    RUN(a_long_path_is_not_cut);
    RUN(threads_do_it_where_io_uring_is_refused);
    RUN(the_page_cache_is_used_where_direct_reads_are_refused);
    RUN(a_fork_leaves_the_buffers_alone);
    rmdir(directory);
    return test_finish();
}
