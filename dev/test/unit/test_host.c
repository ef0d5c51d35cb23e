// What a process may use of its host (trainer/host.h), on copies of /proc and /sys as kernels with cgroups v1 and v2
// show them, and for launchers that bind ranks to cores, or do not.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "test/harness/harness.h"
#include "trainer/environment.h"
#include "trainer/host.h"
#include "zero/comm/shared_memory.h"
#include "zero/host_memory.h"

static char root[256], err[512];

// Writes a file below root, with its directories.
static void put(const char *path, const char *text) {
    char full[600];
    snprintf(full, sizeof full, "%s/%s", root, path);
    for (char *slash = strchr(full + strlen(root) + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(full, 0777);
        *slash = '/';
    }
    FILE *f = fopen(full, "w");
    REQUIRE(f != NULL, "%s", full);
    fputs(text, f);
    fclose(f);
}

static void begin_root(void) {
    snprintf(root, sizeof root, "/tmp/test_host.XXXXXX");
    REQUIRE(mkdtemp(root) != NULL);
}

static void remove_root(void) {
    char command[300];
    snprintf(command, sizeof command, "rm -rf '%s'", root);
    REQUIRE(system(command) == 0);
}

static double quota(void) {
    HostCores c;
    host_cores(&c, 1, root);
    return c.quota;
}

static void test_quota_of_half_a_core_is_not_seen(void) {
    begin_root();
    CHECK(quota() == 0);  // no /proc, no cgroups
    put("proc/self/cgroup", "0::/user.slice/job\n");
    put("sys/fs/cgroup/user.slice/job/cpu.max", "max 100000\n");
    CHECK(quota() == 0);
    put("sys/fs/cgroup/user.slice/job/cpu.max", "50000 100000\n");
    CHECK(quota() == 0.5);
    put("sys/fs/cgroup/user.slice/cpu.max", "20000 100000\n");  // the group above has less
    CHECK(quota() == 0.2);
    remove_root();

    begin_root();  // a container: the group's name is the host's, only the top is there
    put("proc/self/cgroup", "0::/../../docker/1234\n");
    put("sys/fs/cgroup/cpu.max", "150000 100000\n");
    CHECK(quota() == 1.5);
    remove_root();

    begin_root();
    put("proc/self/cgroup", "5:cpuset:/\n4:cpu,cpuacct:/job\n3:memory:/job\n0::/\n");
    put("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "-1\n");
    put("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us", "100000\n");
    CHECK(quota() == 0);
    put("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "300000\n");
    CHECK(quota() == 3);
    remove_root();
}

static void test_memory_limit_is_not_seen(void) {
    begin_root();
    CHECK_EQ(zero_host_memory_available(root), SIZE_MAX);
    put("proc/meminfo", "MemTotal: 2000 kB\nMemAvailable:  1000 kB\n");
    CHECK_EQ(zero_host_memory_available(root), 1024000);
    put("proc/self/cgroup", "0::/job\n");
    put("sys/fs/cgroup/job/memory.max", "max\n");
    put("sys/fs/cgroup/job/memory.current", "300000\n");
    CHECK_EQ(zero_host_memory_available(root), 1024000);
    put("sys/fs/cgroup/job/memory.max", "500000\n");
    CHECK_EQ(zero_host_memory_available(root), 200000);
    put("sys/fs/cgroup/job/memory.stat", "anon 100\ninactive_file 100000\nactive_file 7\n");  // can be given up
    CHECK_EQ(zero_host_memory_available(root), 300000);
    remove_root();

    begin_root();
    put("proc/meminfo", "MemAvailable:  1000 kB\n");
    put("proc/self/cgroup", "4:memory:/job\n");
    put("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "9223372036854771712\n");
    put("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "400000\n");
    CHECK_EQ(zero_host_memory_available(root), 1024000);
    put("sys/fs/cgroup/memory/memory.limit_in_bytes", "900000\n");
    put("sys/fs/cgroup/memory/memory.usage_in_bytes", "500000\n");
    CHECK_EQ(zero_host_memory_available(root), 400000);
    remove_root();
}

static void test_address_space_that_is_left(void) {
    struct rlimit all, limit;
    CHECK_EQ(getrlimit(RLIMIT_AS, &all), 0);
    begin_root();
    put("proc/self/statm", "1000 500 100 0 0 0 0\n");
    limit = all;
    limit.rlim_cur = (rlim_t)1 << 60;
    CHECK_EQ(setrlimit(RLIMIT_AS, &limit), 0);
    const size_t left = zero_address_space_left(root);
    put("proc/self/statm", "1000000000000000 500 100 0 0 0 0\n");  // the limit was lowered later
    const size_t none = zero_address_space_left(root);
    CHECK_EQ(setrlimit(RLIMIT_AS, &all), 0);
    CHECK_EQ(left, ((size_t)1 << 60) - 1000 * (size_t)sysconf(_SC_PAGESIZE));
    CHECK_EQ(none, 0);
    CHECK(all.rlim_cur != RLIM_INFINITY || zero_address_space_left(root) == SIZE_MAX);
    remove_root();
}

// The mpi transport refused shared memory whose place only the page cache took.
static void test_page_cache_counts_as_used(void) {
    begin_root();
    put("proc/meminfo", "MemAvailable:  1000 kB\nSwapFree:  1000 kB\n");
    put("proc/self/cgroup", "0::/job\n");
    put("sys/fs/cgroup/job/memory.max", "500000\n");
    put("sys/fs/cgroup/job/memory.current", "500000\n");
    for (int cached = 0; cached <= 1; cached++) {
        struct zero_shm fits = { .bytes = 100000 }, large = { .bytes = 100001 };
        CHECK_EQ(zero_shm_has_memory(&fits, 3, root), cached);
        CHECK(!zero_shm_has_memory(&large, 3, root));
        CHECK(strstr(large.why, cached ? "300000 bytes are available" : "1 bytes are available") != NULL, "%s",
              large.why);
        put("sys/fs/cgroup/job/memory.stat", "anon 200000\ninactive_file 300000\n");
    }
    put("sys/fs/cgroup/job/memory.max", "max\n");  // swap is no memory
    struct zero_shm swapped = { .bytes = 1200000 };
    CHECK(!zero_shm_has_memory(&swapped, 1, root));
    remove_root();
}

// Ranks with masks of cores [first, first + count); returns the threads of rank me.
static int threads(int ranks, const int first[], int count, double limit, int me) {
    HostCores all[8];
    memset(all, 0, sizeof all);
    for (int r = 0; r < ranks; r++) {
        all[r].host = 1;
        all[r].quota = limit;
        for (int core = first[r]; core < first[r] + count; core++) all[r].mask[core / 64] |= 1ull << core % 64;
    }
    return host_share_cores(all, ranks, me).threads;
}

static void test_bound_ranks_divide_their_cores_again(void) {
    const int none[8] = { 0 }, bound[4] = { 0, 2, 4, 6 }, pairs[4] = { 60, 60, 64, 64 };
    CHECK_EQ(threads(1, none, 8, 0, 0), 8);
    CHECK_EQ(threads(4, none, 8, 0, 3), 2);
    CHECK_EQ(threads(3, none, 8, 0, 1), 2);
    CHECK_EQ(threads(8, none, 2, 0, 7), 1);
    CHECK_EQ(threads(3, none, 3, 0, 2), 1);  // 3 x 1/3
    for (int r = 0; r < 4; r++) CHECK_EQ(threads(4, bound, 2, 0, r), 2);
    CHECK_EQ(threads(4, pairs, 4, 0, 2), 2);  // two ranks for each of two sockets
    CHECK_EQ(threads(2, none, 64, 0, 0), 32);
    CHECK_EQ(threads(1, none, 8, 2.5, 0), 2);  // a quota of 2.5
    CHECK_EQ(threads(4, none, 8, 4, 0), 1);
    CHECK_EQ(threads(1, none, 8, 0.5, 0), 1);
    HostCores two[2];
    memset(two, 0, sizeof two);
    two[0].mask[0] = two[1].mask[0] = 15;
    two[1].host = 1;  // another host has cores of its own
    CHECK_EQ(host_share_cores(two, 2, 0).threads, 4);
    CHECK_EQ(host_share_cores(two, 2, 0).sharers, 1);
}

static void test_omp_num_threads_crashes(void) {
    static const char *const REFUSED[] = { "0", "-1", "two", "4x", "100000", "99999999999999999999", "1.5", ",2" };
    CHECK_EQ(host_wanted_threads(NULL, 4, err, sizeof err), 0);
    CHECK_EQ(host_wanted_threads("", 4, err, sizeof err), 0);
    CHECK_EQ(host_wanted_threads("  ", 4, err, sizeof err), 0);
    CHECK_EQ(host_wanted_threads("8", 4, err, sizeof err), 8);
    CHECK_EQ(host_wanted_threads("4,2", 4, err, sizeof err), 4);
    for (size_t i = 0; i < sizeof REFUSED / sizeof REFUSED[0]; i++) {
        CHECK(host_wanted_threads(REFUSED[i], 4, err, sizeof err) == -1, "%s", REFUSED[i]);
        CHECK(strstr(err, "OMP_NUM_THREADS") != NULL && strstr(err, "unset") != NULL);
    }
}

static void test_a_launchers_variables_are_misread(void) {
    const char *const names[] = { "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "LOCAL_WORLD_SIZE",
                                  "SLURM_STEP_TASKS_PER_NODE" };
    for (int i = 0; i < 4; i++) unsetenv(names[i]);
    CHECK_EQ(environment_local_ranks(), 1);
    setenv("SLURM_STEP_TASKS_PER_NODE", "4(x2),3", 1);
    CHECK_EQ(environment_local_ranks(), 4);
    setenv("MPI_LOCALNRANKS", "6", 1);
    CHECK_EQ(environment_local_ranks(), 6);
}

int main(int argc, char **argv) {
    test_start(&argc, argv);
    RUN(test_quota_of_half_a_core_is_not_seen);
    RUN(test_memory_limit_is_not_seen);
    RUN(test_address_space_that_is_left);
    RUN(test_page_cache_counts_as_used);
    RUN(test_bound_ranks_divide_their_cores_again);
    RUN(test_omp_num_threads_crashes);
    RUN(test_a_launchers_variables_are_misread);
    return test_finish();
}
