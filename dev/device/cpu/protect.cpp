// CUDA_ON_CPU_PROTECT=n: keeps the host off device memory, and kernels off host memory.
//
// On a GPU the host cannot dereference what cudaMalloc returned; here it can, and code that does so by mistake works
// until it runs on a GPU. With this variable in the environment, device memory comes from one arena whose pages are
// accessible only while an operation of a stream runs (kernel, copy, fill, matrix product). Any other access ends the
// program with the address and the place. Another thread may escape notice while an operation runs; a single-threaded
// host cannot. Switching pages takes tens of microseconds; with n above 1 it is done after one operation in n, chosen
// at random, which over a long run finds any access that happens often.
//
// In the other direction, these are refused: a launch with pointers to memory that is neither device memory nor pinned,
// a fill of host memory, and a copy whose kind does not match its pointers. (Pointers inside structs or in memory are
// not checked.)
//
// Ranks that share memory also share it with the host, so the MPI transport asks what a pointer is
// (cudaPointerGetAttributes) and stages, as it does on a GPU.
#include "cuda_runtime.h"

#include <cstdio>
#include <cstdlib>
#include <execinfo.h>
#include <iterator>
#include <map>
#include <mutex>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

static const size_t PAGE = 4096, HUGE_PAGE = (size_t)2 << 20;

static char *arena;
static size_t arena_bytes;
static size_t used;                      // bytes of the arena that have ever been given out: only their pages are
                                         // switched
static std::map<size_t, size_t> blocks;  // offset -> bytes
static unsigned running;                 // operations
static bool allowed;                     // may the pages be touched?
static unsigned every;                   // n
static uint64_t seed = 1;
static std::mutex arena_lock;  // of all that
static struct sigaction others_handler;

static void touched(int signal, siginfo_t *info, void *) {
    const char *p = static_cast<const char *>(info->si_addr);
    sigaction(signal, &others_handler, nullptr);  // the access is tried again, and somebody else's handler, or
                                                  // the system, sees it
    if (p < arena || p >= arena + arena_bytes) return;
    char text[256] = "";
    const size_t at = static_cast<size_t>(p - arena);
    const auto next = blocks.upper_bound(at);
    const auto block = next == blocks.begin() ? blocks.end() : std::prev(next);
    if (block != blocks.end() && at < block->first + block->second)
        snprintf(text, sizeof text,
                 "the host touches device memory at %p: byte %zu of %zu that cudaMalloc gave. Where:\n", info->si_addr,
                 at - block->first, block->second);
    else
        snprintf(text, sizeof text, "the host touches device memory at %p, which is not allocated. Where:\n",
                 info->si_addr);
    if (write(STDERR_FILENO, text, strlen(text)) < 0) return;
    void *frames[32];
    backtrace_symbols_fd(frames, backtrace(frames, 32), STDERR_FILENO);
}

static bool reserve() {
    arena_bytes = 2 * static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGESIZE)) /
                  HUGE_PAGE * HUGE_PAGE;
    void *p = mmap(nullptr, arena_bytes, PROT_NONE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return false;
    arena = static_cast<char *>(p);
    void *frame[1];
    backtrace(frame, 1);  // loads what it needs now, not in the handler
    struct sigaction action = {};
    action.sa_sigaction = touched;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGSEGV, &action, &others_handler);
    return true;
}

bool cuda_on_cpu_protected() {
    static const bool on = [] {
        const char *s = getenv("CUDA_ON_CPU_PROTECT");
        every = s ? static_cast<unsigned>(strtoul(s, nullptr, 10)) : 0;
        return every > 0;
    }();
    return on;
}

static void allow(bool access) {
    allowed = access;
    if (used) mprotect(arena, used, access ? PROT_READ | PROT_WRITE : PROT_NONE);
}

cuda_on_cpu_operation::cuda_on_cpu_operation() {
    if (!cuda_on_cpu_protected()) return;
    const std::lock_guard<std::mutex> guard(arena_lock);
    if (running++ == 0 && !allowed) allow(true);
}

cuda_on_cpu_operation::~cuda_on_cpu_operation() {
    if (!cuda_on_cpu_protected()) return;
    const std::lock_guard<std::mutex> guard(arena_lock);
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    if (--running == 0 && (seed >> 33) % every == 0) allow(false);
}

// The first gap that is large enough.
void *cuda_on_cpu_arena_alloc(size_t bytes) {
    const std::lock_guard<std::mutex> guard(arena_lock);
    if (!arena && !reserve()) return nullptr;
    const size_t align = bytes >= HUGE_PAGE ? HUGE_PAGE : PAGE;
    size_t at = 0;
    for (const auto &b : blocks) {
        if (at + bytes <= b.first) break;
        at = (b.first + b.second + align - 1) / align * align;
    }
    if (bytes > arena_bytes || at > arena_bytes - bytes) return nullptr;
    blocks[at] = bytes;
    const size_t end = (at + bytes + PAGE - 1) / PAGE * PAGE;
    if (end > used) {
        used = end;
        if (allowed) allow(true);
    }
    return arena + at;
}

void cuda_on_cpu_arena_free(void *ptr) {
    const std::lock_guard<std::mutex> guard(arena_lock);
    const auto block = blocks.find(static_cast<size_t>(static_cast<char *>(ptr) - arena));
    if (block == blocks.end()) return;
    madvise(ptr, (block->second + PAGE - 1) / PAGE * PAGE, MADV_REMOVE);
    blocks.erase(block);
}

bool cuda_on_cpu_in_arena(const void *ptr) {
    const char *p = static_cast<const char *>(ptr);
    return arena && p >= arena && p < arena + arena_bytes;
}

void cuda_on_cpu_check_pointer(const void *p, const cuda_on_cpu_call *call) {
    if (!p || cuda_on_cpu_in_arena(p) || cuda_on_cpu_remembers(p)) return;
    fprintf(stderr, "the kernel gets a pointer %p that is neither the device's nor pinned: launch (%s) at %s:%d\n", p,
            call->text, call->file, call->line);
    abort();
}

cudaError_t cuda_on_cpu_check_copy(const void *dst, const void *src, cudaMemcpyKind kind) {
    const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    if (kind == cudaMemcpyDefault ||
        (to_device == cuda_on_cpu_in_arena(dst) && from_device == cuda_on_cpu_in_arena(src)))
        return cudaSuccess;
    fprintf(stderr, "a copy of kind %d from %p (%s) to %p (%s)\n", static_cast<int>(kind), src,
            cuda_on_cpu_in_arena(src) ? "device" : "host", dst, cuda_on_cpu_in_arena(dst) ? "device" : "host");
    return cudaErrorInvalidValue;
}
