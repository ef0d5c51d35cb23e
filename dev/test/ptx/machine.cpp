// machine.cpp: what translated kernels call, and how a launch finds them (machine.h). Linked to programs of
// DEVICE=emulated by dev/test/ptx/ptx.mk, with the same sanitizers; the translations themselves have none, so that
// their compilation is quick: every access goes through a function here, or is checked by machine.h.
//
// A launch of a kernel that has no translation stops the program. PTX_EXECUTED=FILE: appends the hashes of the kernels
// that were executed when the program ends.
#include "test/ptx/machine.h"

#include <cfenv>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <map>
#include <set>
#include <string>
#include <unistd.h>
#include <unordered_map>
#include <vector>

ptx_placed ptx_shared_memory[PTX_VARIABLES];

void ptx_die(SITE_ARGS, const char *format, ...) {
    char what[256];
    va_list args;
    va_start(args, format);
    const int n = vsnprintf(what, sizeof what, format, args);
    va_end(args);
    if (n >= 0 && static_cast<size_t>(n) < sizeof what)
        snprintf(what + n, sizeof what - static_cast<size_t>(n), " (PTX of %s, line %d)", file, line);
    cuda_on_cpu_die(what);
}

// ---------------------------------------------------------------------------------------------------------------------
// Global memory. For each 64 bytes of it: which have been read by ld.global.nc, and which written, in this launch.

struct touched {
    uint64_t nc, written;  // a bit for each byte
};
static std::unordered_map<uint64_t, touched> lines_touched;

static uint64_t bits_of(uint64_t at, unsigned bytes) { return ((1ull << bytes) - 1) << at % 64; }

static void note(uint64_t at, unsigned bytes, uint64_t touched::*mine, uint64_t touched::*other, SITE_ARGS) {
    touched &t = lines_touched[at / 64];
    t.*mine |= bits_of(at, bytes);
    if (t.*mine & t.*other & bits_of(at, bytes))
        ptx_die(file, line, "ld.global.nc of %u bytes at 0x%llx, which the same launch writes", bytes,
                (unsigned long long)at);
}

template <class T> static void copy(void *to, const void *from) {
    *static_cast<T *>(to) = *static_cast<const T *>(from);
}

// Typed, so that the sanitizers see accesses of these sizes.
static void move(void *to, const void *from, unsigned bytes, uint64_t at, SITE_ARGS) {
    struct sixteen {
        uint64_t half[2];
    };
    if (at % bytes) ptx_die(file, line, "misaligned access of %u bytes at 0x%llx", bytes, (unsigned long long)at);
    switch (bytes) {
    case 1: return copy<uint8_t>(to, from);
    case 2: return copy<uint16_t>(to, from);
    case 4: return copy<uint32_t>(to, from);
    case 8: return copy<uint64_t>(to, from);
    default: return copy<sixteen>(to, from);
    }
}

void ptx_load(void *to, unsigned bytes, uint64_t at, SITE_ARGS) {
    move(to, reinterpret_cast<const void *>(at), bytes, at, file, line);
}

void ptx_load_nc(void *to, unsigned bytes, uint64_t at, SITE_ARGS) {
    ptx_load(to, bytes, at, file, line);
    note(at, bytes, &touched::nc, &touched::written, file, line);
}

void ptx_store(const void *from, unsigned bytes, uint64_t at, SITE_ARGS) {
    move(reinterpret_cast<void *>(at), from, bytes, at, file, line);
    note(at, bytes, &touched::written, &touched::nc, file, line);
}

// ---------------------------------------------------------------------------------------------------------------------
// Shared memory

// The emulated GPU fills the section with NaN before each block.
static const size_t STATIC_BYTES = (size_t)48 << 10;
static unsigned char storage[STATIC_BYTES + 256 * PTX_VARIABLES]
    __attribute__((section("cuda_on_cpu_shared"), aligned(256)));

// No variable is better aligned than its declaration says.
static void place_variables(const ptx_kernel *k, size_t dynamic_bytes) {
    size_t at = 0, n = 0;
    for (const ptx_variable *v = k->variables; v->bytes; v++) {
        const size_t begin = at + (v->alignment < 16 ? v->alignment : 0);
        ptx_shared_memory[n++] = { reinterpret_cast<char *>(storage) + begin, v->bytes };
        at = (begin + v->bytes + 255) / 256 * 256;
    }
    for (; n < PTX_DYNAMIC; n++) ptx_shared_memory[n] = { nullptr, 0 };
    ptx_shared_memory[PTX_DYNAMIC] = { static_cast<char *>(cuda_on_cpu_dynamic_shared()), dynamic_bytes };
}

uint32_t ptx_to_shared(uint64_t generic, SITE_ARGS) {
    for (uint32_t n = 0; n < PTX_VARIABLES; n++) {
        const uint64_t begin = reinterpret_cast<uint64_t>(ptx_shared_memory[n].begin);
        if (begin && generic >= begin && generic <= begin + ptx_shared_memory[n].bytes)
            return n << 24 | static_cast<uint32_t>(generic - begin);
    }
    ptx_die(file, line, "an address that must be in shared memory is not");
}

// ---------------------------------------------------------------------------------------------------------------------
// Instructions

float ptx_fma_down(float a, float b, float c) {
    const int before = fegetround();
    fesetround(FE_DOWNWARD);
    volatile float x = a, y = b, z = c;
    const volatile float r = fmaf(x, y, z);
    fesetround(before);
    return r;
}

uint32_t ptx_shfl(cuda_on_cpu_warp_op op, uint32_t a, uint32_t b, uint32_t c, uint32_t mask, bool *valid, SITE_ARGS) {
    const int width = 32 - static_cast<int>(c >> 8), lane = static_cast<int>(threadIdx.x % 32);
    const int first = lane / width * width, last = first + width - 1, by = static_cast<int>(b & 31);
    if ((c & 31) != (op == CUDA_ON_CPU_SHFL_UP ? 0u : 31u) || blockDim.y * blockDim.z != 1)
        ptx_die(file, line, "a shuffle with c = 0x%x in blocks of more than one dimension", c);
    *valid = op == CUDA_ON_CPU_SHFL_UP     ? lane - by >= first
             : op == CUDA_ON_CPU_SHFL_DOWN ? lane + by <= last
             : op == CUDA_ON_CPU_SHFL_XOR  ? (lane ^ by) <= last
                                           : true;
    return static_cast<uint32_t>(cuda_on_cpu_warp(op, mask, a, by, width, file, line));
}

void ptx_copy_async(uint32_t to, uint64_t from, unsigned bytes, uint32_t valid_bytes, SITE_ARGS) {
    if (valid_bytes && valid_bytes != bytes)
        ptx_die(file, line, "cp.async of %u of %u bytes is not implemented", valid_bytes, bytes);
    cuda_on_cpu_copy_async(ptx_shared(to, bytes, file, line), reinterpret_cast<const void *>(from), bytes, valid_bytes);
}

// ---------------------------------------------------------------------------------------------------------------------
// Launches

typedef std::map<std::pair<std::string, std::string>, const ptx_kernel *> kernel_map;  // by source and name

static kernel_map &kernels() {
    static kernel_map *const map = new kernel_map();
    return *map;
}

// Constructors of the translations call it, before main and in any order.
ptx_kernels::ptx_kernels(const ptx_kernel *first, size_t count) {
    static const char *const fault = getenv("PTX_FAULT");
    for (const ptx_kernel *k = first; k < first + count; k++) {
        if (k->fault && (!fault || k->fault != atoi(fault))) continue;
        const ptx_kernel *&place = kernels()[{ k->source, k->name }];
        if (!place || k->fault) place = k;
    }
}

static std::set<std::string> &executed = *new std::set<std::string>();
static const char *const executed_path = getenv("PTX_EXECUTED");

static void write_down() {
    std::string lines;
    for (const std::string &hash : executed) lines += hash + '\n';
    const int fd = open(executed_path, O_WRONLY | O_APPEND | O_CREAT, 0666);
    if (fd < 0 || write(fd, lines.data(), lines.size()) < 0) perror(executed_path);
    if (fd >= 0) close(fd);
}

// What g++ calls _ZL4kernel..., since it is static there, is _Z4kernel... for nvcc.
static const ptx_kernel *find(cuda_on_cpu_fn function) {
    static std::unordered_map<cuda_on_cpu_fn, const ptx_kernel *> &found =
        *new std::unordered_map<cuda_on_cpu_fn, const ptx_kernel *>();
    const ptx_kernel *&k = found[function];
    if (k) return k;
    const cuda_on_cpu_symbol symbol = cuda_on_cpu_find_symbol(reinterpret_cast<const void *>(function));
    std::string name = symbol.name;
    if (name.compare(0, 3, "_ZL") == 0) name.erase(2, 1);
    const auto at = kernels().find({ symbol.file, name });
    if (at == kernels().end()) ptx_die(symbol.file, 0, "no PTX of kernel %s", symbol.name);
    return k = at->second;
}

static const ptx_kernel *running;
alignas(256) static char params[4096 + 256];

void cuda_on_cpu_ptx(cuda_on_cpu_call *call) {
    running = find(call->kernel);
    if (executed_path && executed.insert(running->hash).second && executed.size() == 1) atexit(write_down);
    const size_t bytes = call->pass(call->args, params);
    if (bytes != running->param_bytes)
        ptx_die(running->source, 0, "%s has %zu bytes of parameters, but gets %zu", running->name, running->param_bytes,
                bytes);
    lines_touched.clear();
    place_variables(running, cuda_on_cpu_dynamic_shared_bytes());
    call->args = params;
    call->body = [](void *p) { running->run(static_cast<const char *>(p)); };
}
