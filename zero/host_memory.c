// host_memory.c: cgroups (v1 and v2), and the memory that they leave (host_memory.h).
#include "zero/host_memory.h"
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

int zero_cgroup_read(const char *path, double numbers[2]) {
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

int zero_cgroup_directory(const char *root, const char *controller, char dir[ZERO_CGROUP_PATH], size_t *top) {
    char path[ZERO_CGROUP_PATH], line[ZERO_CGROUP_PATH];
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
            *top = (size_t)snprintf(dir, ZERO_CGROUP_PATH, "%.1000s/sys/fs/cgroup%s%.200s", root, *mounts[i] ? "/" : "",
                                    mounts[i]);
            status = access(dir, F_OK);
        }
        snprintf(dir + *top, ZERO_CGROUP_PATH - *top, "%.2000s", strcmp(group, "/") == 0 ? "" : group);
    }
    if (f != NULL) fclose(f);
    return status;
}

void zero_cgroup_visit(const char *root, const char *controller, void (*visit)(const char *dir, void *ctx), void *ctx) {
    char dir[ZERO_CGROUP_PATH];
    size_t top;
    if (zero_cgroup_directory(root, controller, dir, &top) != 0) return;
    for (;;) {
        visit(dir, ctx);
        char *slash = strrchr(dir, '/');
        if (strlen(dir) <= top || slash == NULL) return;
        *slash = '\0';
    }
}

void zero_cgroup_lower(double *limit, double value) {
    if (*limit == 0 || value < *limit) *limit = value;
}

// What is left of a limit; pages of files that were read lately can be given up.
static void memory_left(const char *dir, const char *limit_name, const char *usage_name, const char *cache,
                        void *left) {
    char path[ZERO_CGROUP_PATH + 32];
    double limit[2], usage[2];
    snprintf(path, sizeof path, "%s/%s", dir, limit_name);
    if (zero_cgroup_read(path, limit) < 1 || limit[0] <= 0 || limit[0] > 1e18) return;  // "max", or v1's largest number
    snprintf(path, sizeof path, "%s/%s", dir, usage_name);
    if (zero_cgroup_read(path, usage) < 1) return;
    snprintf(path, sizeof path, "%s/memory.stat", dir);
    const double used = usage[0] - named_number(path, cache);
    zero_cgroup_lower(left, limit[0] > used ? limit[0] - used : 1);
}

static void visit_memory_v2(const char *dir, void *left) {
    memory_left(dir, "memory.max", "memory.current", "inactive_file", left);
}

static void visit_memory_v1(const char *dir, void *left) {
    memory_left(dir, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file", left);
}

size_t zero_host_memory_available(const char *root) {
    char path[ZERO_CGROUP_PATH];
    double left = 0;
    snprintf(path, sizeof path, "%.1000s/proc/meminfo", root);
    FILE *f = fopen(path, "r");
    size_t kb;
    while (f != NULL && fgets(path, sizeof path, f) != NULL) {
        if (sscanf(path, "MemAvailable: %zu", &kb) == 1) left = (double)kb * 1024;
    }
    if (f != NULL) fclose(f);
    zero_cgroup_visit(root, "", visit_memory_v2, &left);
    zero_cgroup_visit(root, "memory", visit_memory_v1, &left);
    return left > 0 ? (size_t)left : SIZE_MAX;
}

size_t zero_address_space_left(const char *root) {
    char path[ZERO_CGROUP_PATH];
    double pages[2];
    struct rlimit limit;
    snprintf(path, sizeof path, "%.1000s/proc/self/statm", root);
    if (getrlimit(RLIMIT_AS, &limit) || limit.rlim_cur == RLIM_INFINITY || zero_cgroup_read(path, pages) < 1)
        return SIZE_MAX;
    const size_t used = (size_t)pages[0] * (size_t)sysconf(_SC_PAGESIZE);
    return limit.rlim_cur > used ? (size_t)limit.rlim_cur - used : 0;
}
