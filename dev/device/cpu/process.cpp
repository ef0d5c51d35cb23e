// process_memory where the device is the host (dev/device/process.h), from Linux's accounts of the process.
//
// RSS, the number that most tools show, does not serve: it counts every page that this process has touched, including
// those that belong to another rank of the host and are only mapped here to read gradients and parameters. With 8 ranks
// most buffers would count 8 times. PSS divides a page among the processes that map it, so that the sum over all ranks
// is the memory that they take together. PSS has no peak; but memory released since the peak was private, and VmHWM -
// VmRSS is its size.
#include <stdio.h>

#include "cuda_runtime_api.h"
#include "device/calls.h"
#include "device/process.h"

// The number after `name` in a file of lines "name: number kB", in bytes. 0: not there.
static size_t field(const char *path, const char *name) {
    char line[256];
    char format[64];
    size_t kb = 0;
    FILE *f = fopen(path, "r");
    snprintf(format, sizeof format, "%s: %%zu", name);
    while (f != NULL && kb == 0 && fgets(line, sizeof line, f) != NULL) sscanf(line, format, &kb);
    if (f != NULL) fclose(f);
    return kb * 1024;
}

DeviceCalls device_calls(void) {
    const cuda_on_cpu_calls c = cuda_on_cpu_calls_so_far();
    return DeviceCalls{ c.kernels, c.copies, c.waits };
}

int process_count_devices(char *, size_t) { return 1; }
int process_check_device(char *, size_t) { return 0; }

size_t process_memory(size_t) {
    const size_t pss = field("/proc/self/smaps_rollup", "Pss");
    const size_t peak = field("/proc/self/status", "VmHWM");
    const size_t now = field("/proc/self/status", "VmRSS");
    return pss == 0 ? 0 : pss + (peak > now ? peak - now : 0);
}
