// host_memory.h: what memory this process can still allocate on its host, and the cgroups (v1 and v2) that limit it. A
// limit of any group between this process's and the root counts.
//
// root: "", or for tests a directory with copies of proc/self/cgroup, proc/meminfo and sys/fs/cgroup.
#ifndef ZERO_HOST_MEMORY_H
#define ZERO_HOST_MEMORY_H
#include <stddef.h>

enum { ZERO_CGROUP_PATH = 4096 };

// Returns the bytes of memory that processes can still allocate: MemAvailable, or what is left of the cgroup's limit if
// that is less; without swap. SIZE_MAX: unknown.
size_t zero_host_memory_available(const char *root);

// Returns the bytes of address space that this process may still use (ulimit -v). SIZE_MAX: no limit.
size_t zero_address_space_left(const char *root);

// Writes the directory of this process's cgroup to dir, and where the hierarchy begins to *top. controller: "cpu" or
// "memory" of v1, or "" for v2. Returns 0, or -1 if there is no such hierarchy.
int zero_cgroup_directory(const char *root, const char *controller, char dir[ZERO_CGROUP_PATH], size_t *top);

// Calls visit for the directory of the cgroup and those above it. In a container the names are those of the host, and
// only the top exists.
void zero_cgroup_visit(const char *root, const char *controller, void (*visit)(const char *dir, void *ctx), void *ctx);

// Reads up to two numbers from a file. A word that is no number ("max") counts as -1. Returns how many were read.
int zero_cgroup_read(const char *path, double numbers[2]);

// Lowers a limit to value; 0: there was no limit.
void zero_cgroup_lower(double *limit, double value);

#endif
