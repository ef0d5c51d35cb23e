#include "trainer/host.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "zero/host_memory.h"

enum { MAX_THREADS = 1024 };

static void visit_quota_v2(const char *dir, void *quota) {
    char path[ZERO_CGROUP_PATH + 32];
    double n[2];
    snprintf(path, sizeof path, "%s/cpu.max", dir);
    if (zero_cgroup_read(path, n) == 2 && n[0] > 0 && n[1] > 0) zero_cgroup_lower(quota, n[0] / n[1]);
}

static void visit_quota_v1(const char *dir, void *quota) {
    char path[ZERO_CGROUP_PATH + 32];
    double microseconds[2], period[2];
    snprintf(path, sizeof path, "%s/cpu.cfs_quota_us", dir);
    const int has_quota = zero_cgroup_read(path, microseconds) >= 1 && microseconds[0] > 0;
    snprintf(path, sizeof path, "%s/cpu.cfs_period_us", dir);
    if (has_quota && zero_cgroup_read(path, period) >= 1 && period[0] > 0)
        zero_cgroup_lower(quota, microseconds[0] / period[0]);
}

void host_cores(HostCores *c, uint64_t host, const char *root) {
    memset(c, 0, sizeof *c);
    c->host = host;
    const int cores = sched_getaffinity(0, sizeof c->mask, (cpu_set_t *)c->mask);
    if (cores < 0) c->mask[0] = 1;
    zero_cgroup_visit(root, "", visit_quota_v2, &c->quota);
    zero_cgroup_visit(root, "cpu", visit_quota_v1, &c->quota);
    char dir[ZERO_CGROUP_PATH] = "";
    size_t top;
    if (zero_cgroup_directory(root, "", dir, &top) == 0) c->cgroup = XXH3_64bits(dir, strlen(dir));
    if (zero_cgroup_directory(root, "cpu", dir, &top) == 0) c->cgroup ^= XXH3_64bits(dir, strlen(dir));
}

static int has_core(const HostCores *c, int core) { return c->mask[core / 64] >> core % 64 & 1; }

CoreShare host_share_cores(const HostCores *all, int ranks, int me) {
    CoreShare s = { .quota = all[me].quota };
    double share = 0;
    int in_cgroup = 0;
    for (int core = 0; core < HOST_MAX_CORES; core++) {
        int users = 0;
        if (!has_core(&all[me], core)) continue;
        for (int r = 0; r < ranks; r++) users += all[r].host == all[me].host && has_core(&all[r], core);
        share += 1.0 / users;
        s.cores++;
    }
    for (int r = 0; r < ranks; r++) {
        int shared = 0;
        if (all[r].host != all[me].host) continue;
        for (size_t i = 0; i < HOST_MAX_CORES / 64; i++) shared |= (all[r].mask[i] & all[me].mask[i]) != 0;
        s.sharers += shared;
        in_cgroup += all[r].cgroup == all[me].cgroup;
    }
    if (s.quota > 0 && s.quota / in_cgroup < share) share = s.quota / in_cgroup;
    s.threads = (int)(share + 1e-9);
    if (s.threads < 1) s.threads = 1;
    return s;
}

int host_wanted_threads(const char *text, int cores, char *err, size_t err_bytes) {
    if (text == NULL || text[strspn(text, " ")] == '\0') return 0;
    char *end;
    errno = 0;
    const long n = strtol(text, &end, 10);
    const int most = 16 * cores < MAX_THREADS ? 16 * cores : MAX_THREADS;
    if (end != text && (*end == '\0' || *end == ',') && errno == 0 && n >= 1 && n <= most) return (int)n;
    snprintf(err, err_bytes,
             "OMP_NUM_THREADS=%.100s: use a number from 1 to %d (this process may use %d cores), or unset it", text,
             most, cores);
    return -1;
}

void host_choose_waiting(char **argv, int local_ranks) {
    HostCores mine;
    char err[256];
    if (getenv("OMP_WAIT_POLICY") != NULL || getenv("GOMP_SPINCOUNT") != NULL) return;
    host_cores(&mine, 0, "");
    const int cores = host_share_cores(&mine, 1, 0).cores;
    const int threads = host_wanted_threads(getenv("OMP_NUM_THREADS"), cores, err, sizeof err);
    if (threads < 0 || threads == 1 || (threads == 0 && cores == 1)) return;
    const int too_many = (long)threads * local_ranks > cores;
    if ((too_many ? setenv("OMP_WAIT_POLICY", "passive", 1) : setenv("GOMP_SPINCOUNT", "10000", 1)) == 0)
        execv("/proc/self/exe", argv);  // on failure: go on, slowly
}
