#include "trainer/host.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

enum { PATH_BYTES = 4096, MAX_THREADS = 1024 };

// ---------------------------------------------------------------------------------------------------------------------
// cgroups. A limit of any group between this process's and the root counts.

// Reads up to two numbers from root/path. A word that is no number ("max") counts as -1. Returns how many were read.
static int read_numbers(const char *path, double numbers[2]) {
    FILE *f = fopen(path, "r");
    if (f == NULL) return 0;
    int n = 0;
    char word[64];
    while (n < 2 && fscanf(f, "%63s", word) == 1) {
        char *end;
        numbers[n] = strtod(word, &end);
        if (end == word) numbers[n] = -1;
        n++;
    }
    fclose(f);
    return n;
}

// The number behind `name` in a file of lines "name number", or 0.
static double named_number(const char *path, const char *name) {
    FILE *f = fopen(path, "r");
    char word[64];
    double value = 0, found = 0;
    while (f != NULL && fscanf(f, "%63s %lf", word, &value) == 2) {
        if (!strcmp(word, name)) found = value;
    }
    if (f != NULL) fclose(f);
    return found;
}

// Writes the directory of this process's cgroup to dir, and where the hierarchy begins to *top. controller: "cpu" or
// "memory" of v1, or "" for v2. Returns 0, or -1 if there is no such hierarchy.
static int cgroup_directory(const char *root, const char *controller, char dir[PATH_BYTES], size_t *top) {
    char path[PATH_BYTES], line[PATH_BYTES];
    snprintf(path, sizeof path, "%.1000s/proc/self/cgroup", root);
    FILE *f = fopen(path, "r");
    int status = -1;
    while (f != NULL && status != 0 && fgets(line, sizeof line, f) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        char *list = strchr(line, ':'), *group = list != NULL ? strchr(list + 1, ':') : NULL;
        if (group == NULL) continue;
        *group++ = '\0';
        list++;
        char wanted[32], listed[256];
        snprintf(wanted, sizeof wanted, ",%s,", controller);
        snprintf(listed, sizeof listed, ",%.250s,", list);
        if (strstr(listed, wanted) == NULL) continue;
        const char *mounts[] = { list, controller };  // "cpu,cpuacct" or a link "cpu"
        for (int i = 0; i < 2 && status != 0; i++) {
            *top = (size_t)snprintf(dir, PATH_BYTES, "%.1000s/sys/fs/cgroup%s%.200s", root, *mounts[i] ? "/" : "",
                                    mounts[i]);
            status = access(dir, F_OK);
        }
        snprintf(dir + *top, PATH_BYTES - *top, "%.2000s", strcmp(group, "/") == 0 ? "" : group);
    }
    if (f != NULL) fclose(f);
    return status;
}

// Calls visit for the directory of the cgroup and those above it. In a container the names are those of the host, and
// only the top exists.
static void visit_cgroups(const char *root, const char *controller, void (*visit)(const char *dir, void *ctx),
                          void *ctx) {
    char dir[PATH_BYTES];
    size_t top;
    if (cgroup_directory(root, controller, dir, &top) != 0) return;
    for (;;) {
        visit(dir, ctx);
        char *slash = strrchr(dir, '/');
        if (strlen(dir) <= top || slash == NULL) return;
        *slash = '\0';
    }
}

static void lower(double *limit, double value) {
    if (*limit == 0 || value < *limit) *limit = value;
}

static void visit_quota_v2(const char *dir, void *quota) {
    char path[PATH_BYTES + 32];
    double n[2];
    snprintf(path, sizeof path, "%s/cpu.max", dir);
    if (read_numbers(path, n) == 2 && n[0] > 0 && n[1] > 0) lower(quota, n[0] / n[1]);
}

static void visit_quota_v1(const char *dir, void *quota) {
    char path[PATH_BYTES + 32];
    double microseconds[2], period[2];
    snprintf(path, sizeof path, "%s/cpu.cfs_quota_us", dir);
    const int has_quota = read_numbers(path, microseconds) >= 1 && microseconds[0] > 0;
    snprintf(path, sizeof path, "%s/cpu.cfs_period_us", dir);
    if (has_quota && read_numbers(path, period) >= 1 && period[0] > 0) lower(quota, microseconds[0] / period[0]);
}

// What is left of a limit; pages of files that were read lately can be given up.
static void memory_left(const char *dir, const char *limit_name, const char *usage_name, const char *cache,
                        void *left) {
    char path[PATH_BYTES + 32];
    double limit[2], usage[2];
    snprintf(path, sizeof path, "%s/%s", dir, limit_name);
    if (read_numbers(path, limit) < 1 || limit[0] <= 0 || limit[0] > 1e18) return;  // "max", or v1's largest number
    snprintf(path, sizeof path, "%s/%s", dir, usage_name);
    if (read_numbers(path, usage) < 1) return;
    snprintf(path, sizeof path, "%s/memory.stat", dir);
    const double used = usage[0] - named_number(path, cache);
    lower(left, limit[0] > used ? limit[0] - used : 1);
}

static void visit_memory_v2(const char *dir, void *left) {
    memory_left(dir, "memory.max", "memory.current", "inactive_file", left);
}

static void visit_memory_v1(const char *dir, void *left) {
    memory_left(dir, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file", left);
}

size_t host_memory_available(const char *root) {
    char path[PATH_BYTES];
    double left = 0;
    snprintf(path, sizeof path, "%.1000s/proc/meminfo", root);
    FILE *f = fopen(path, "r");
    size_t kb;
    while (f != NULL && fgets(path, sizeof path, f) != NULL) {
        if (sscanf(path, "MemAvailable: %zu", &kb) == 1) left = (double)kb * 1024;
    }
    if (f != NULL) fclose(f);
    visit_cgroups(root, "", visit_memory_v2, &left);
    visit_cgroups(root, "memory", visit_memory_v1, &left);
    return left > 0 ? (size_t)left : SIZE_MAX;
}

// ---------------------------------------------------------------------------------------------------------------------
// Cores.

void host_cores(HostCores *c, uint64_t host, const char *root) {
    memset(c, 0, sizeof *c);
    c->host = host;
    const int cores = sched_getaffinity(0, sizeof c->mask, (cpu_set_t *)c->mask);
    if (cores < 0) c->mask[0] = 1;
    visit_cgroups(root, "", visit_quota_v2, &c->quota);
    visit_cgroups(root, "cpu", visit_quota_v1, &c->quota);
    char dir[PATH_BYTES] = "";
    size_t top;
    if (cgroup_directory(root, "", dir, &top) == 0) c->cgroup = XXH3_64bits(dir, strlen(dir));
    if (cgroup_directory(root, "cpu", dir, &top) == 0) c->cgroup ^= XXH3_64bits(dir, strlen(dir));
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

void host_wait_passively(char **argv, int local_ranks) {
    HostCores mine;
    char err[256];
    if (getenv("OMP_WAIT_POLICY") != NULL || getenv("GOMP_SPINCOUNT") != NULL) return;
    host_cores(&mine, 0, "");
    const int cores = host_share_cores(&mine, 1, 0).cores;
    const int threads = host_wanted_threads(getenv("OMP_NUM_THREADS"), cores, err, sizeof err);
    if (threads <= 1 || (long)threads * local_ranks <= cores) return;
    if (setenv("OMP_WAIT_POLICY", "passive", 1) == 0) execv("/proc/self/exe", argv);  // on failure: go on, slowly
}
