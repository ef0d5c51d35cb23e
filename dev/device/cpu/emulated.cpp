// The emulated GPU: runs kernels the way a GPU does, to find their faults.
//
// Every CUDA thread of a block is a fiber: a stack of its own, on one operating-system thread. A fiber runs until it
// waits in __syncthreads or in a warp operation, or ends; then the scheduler picks the next one. A warp runs as far as
// it can before another one starts, so a value that is read one barrier too early, or overwritten one barrier too soon,
// comes out wrong. Blocks run one after the other.
//
// CUDA_ON_CPU_SCHEDULE in the environment chooses the order of blocks, warps and lanes: 0 (the default) is first to
// last, 1 is last to first, any other number is the seed of a random order. A correct kernel gives the same bits in all
// of them.
//
// What is found, and how:
//   reads before a write    shared memory is filled with NaN before each block, device memory when it is allocated
//   out of bounds           AddressSanitizer: allocations and dynamic shared memory have their exact size; with
//                           -fsanitize-sections=cuda_on_cpu_shared __shared__ arrays have red zones too
//   barriers                a barrier that not all threads reach, or that they reach at different places, stops the
//                           program with a diagnosis; so does a warp operation whose mask names lanes that have
//                           ended, or that lanes reach at different places
//   misaligned wide access  cuda_on_cpu_load and _store, which ld() and st() call
//   slow memory accesses    the same calls count sectors and bank conflicts: see memory_requests.cpp
//   tensor cores, copies    see tensor_cores.cpp
//   launches over a limit   cudaErrorInvalidConfiguration, as on a GPU, and the reason on stderr
//   races                   another schedule gives another result; or ThreadSanitizer, which is informed about fibers
//                           and barriers: compile this file with -DCUDA_ON_CPU_TSAN and without -fsanitize=thread.
//                           Only __syncthreads and __syncwarp order memory for it: a shuffle does not order memory in
//                           CUDA either. Races between blocks are left to the schedules.
//
// CUDA_ON_CPU_FORGET=n plants a fault in a correct program: it skips the wait at the n-th place where the program, or a
// stream, waits for an event. Places are numbered in the order in which they are first reached, and identified by the
// three innermost calls. With AddressSanitizer the place is printed; if there is no n-th place, the number of places is
// printed at the end. If all waits of a program are needed, each one that is skipped changes its result in some order
// of streams.
//
// Two rules are stricter than a GPU's, on purpose: a thread that has returned may not be missing at a later barrier,
// and blocks consist of whole warps.
#ifdef CUDA_ON_CPU_EMULATED
#include "cuda_runtime.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <sys/mman.h>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(CUDA_ON_CPU_TSAN)
#include <sanitizer/tsan_interface.h>
#endif
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

enum { LANES = 32, MAX_THREADS = 1024, MAX_WARPS = MAX_THREADS / LANES };
static const size_t STACK_BYTES = (size_t)256 << 10, GUARD_BYTES = (size_t)64 << 10;

struct site {
    const char *file;
    int line;
    bool operator!=(const site &o) const { return line != o.line || strcmp(file, o.file) != 0; }
};

#if defined(__x86_64__)
typedef void *context;
#else
typedef ucontext_t context;
#endif

enum fiber_state { READY, AT_BARRIER, AT_WARP_OP, ENDED };

struct fiber {
    context saved;
    char *stack;
    fiber_state state;
    uint3 thread;
    site where;  // of the barrier or warp operation that it waits in
    unsigned mask;
    void *asan_stack, *tsan;
};

struct warp {
    cuda_on_cpu_warp_op op;  // the operation that the lanes are waiting in
    unsigned mask, arrived, ended;
    site where;
    unsigned generation;  // operations completed: a lane may be in the next one before another has read its value of
                          // this one
    uint64_t value[2][LANES];
    void (*work)(void *const *operands);  // of a meeting
    void *operands[LANES];
    char token;
};

static struct {
    std::mutex lock;  // one launch at a time
    fiber fibers[MAX_THREADS];
    warp warps[MAX_WARPS];
    int threads, current, ended, at_barrier;
    site barrier;
    unsigned barrier_generation;
    char barrier_token[2], begin_token, end_token;
    context scheduler;
    void *asan_stack, *tsan;
    const void *stack_bottom;  // of the scheduler
    size_t stack_size;
    const cuda_on_cpu_call *call;
    unsigned char *shared;
    size_t shared_bytes;
    unsigned long schedule;
    uint64_t random;
    std::map<cuda_on_cpu_fn, size_t> max_dynamic_shared;
} E;

uint3 threadIdx;
uint3 blockDim;

static unsigned random_below(unsigned n) {
    E.random ^= E.random << 13;
    E.random ^= E.random >> 7;
    E.random ^= E.random << 17;
    return static_cast<unsigned>((E.random >> 32) % n);
}

// ---------------------------------------------------------------------------------------------------------------------
// Diagnoses

[[noreturn]] static void die(const char *what) {
    fprintf(stderr, "emulated GPU: %s\n  in kernel launch (%s) at %s:%d\n", what, E.call->text, E.call->file,
            E.call->line);
    fprintf(stderr, "  block (%u,%u,%u), thread (%u,%u,%u); %d of %d threads have ended\n", blockIdx.x, blockIdx.y,
            blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z, E.ended, E.threads);
    const site *last = nullptr;
    for (int i = 0; i < E.threads; i++) {
        const fiber &f = E.fibers[i];
        if (f.state != AT_BARRIER && f.state != AT_WARP_OP) continue;
        if (last && !(*last != f.where)) continue;  // one line for neighbours that wait at the same place
        last = &f.where;
        if (f.state == AT_BARRIER)
            fprintf(stderr, "  from thread %d: wait in __syncthreads at %s:%d\n", i, f.where.file, f.where.line);
        else
            fprintf(stderr, "  from thread %d: wait in a warp operation at %s:%d, mask %08x\n", i, f.where.file,
                    f.where.line, f.mask);
    }
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_print_stack_trace();
#endif
    abort();
}

void cuda_on_cpu_die(const char *what) { die(what); }

void cuda_on_cpu_check_aligned(const void *p, size_t alignment) {
    if (reinterpret_cast<uintptr_t>(p) % alignment == 0) return;
    char what[96];
    snprintf(what, sizeof what, "misaligned access: %p is not a multiple of %zu bytes", p, alignment);
    die(what);
}

// ---------------------------------------------------------------------------------------------------------------------
// Skipped waits

typedef std::array<const void *, 3> place;  // return addresses, from the innermost call on

static struct {
    std::mutex lock;
    std::map<place, unsigned long> places;
    unsigned long n;
} F;

static void describe(char *out, [[maybe_unused]] size_t bytes, [[maybe_unused]] const void *pc) {
    out[0] = '\0';
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_symbolize_pc(const_cast<void *>(pc), "%f, %s:%l", out, bytes);
#endif
}

static void say_how_many() {
    if (F.n > F.places.size())
        fprintf(stderr, "emulated GPU: CUDA_ON_CPU_FORGET=%lu, but there are %zu places that wait for an event\n", F.n,
                F.places.size());
}

// A frame begins with the caller's frame and the return address. An address that is not a little further up the stack
// is not a frame.
bool cuda_on_cpu_forgotten(const char *function, void *frame) {
    static const char *const number = getenv("CUDA_ON_CPU_FORGET");
    if (!number) return false;
    place here = {};
    char *at = static_cast<char *>(frame);
    for (const void *&caller : here) {
        caller = reinterpret_cast<char **>(at)[1] - 1;
        char *const next = *reinterpret_cast<char **>(at);
        if (next <= at || next > at + STACK_BYTES) break;
        at = next;
    }
    const std::lock_guard<std::mutex> guard(F.lock);
    if (!F.n) {
        F.n = strtoul(number, nullptr, 10);
        atexit(say_how_many);
    }
    const auto known = F.places.find(here);
    if (known != F.places.end()) return known->second == F.n;
    char names[3][256];
    for (int i = 0; i < 3; i++) describe(names[i], sizeof names[i], here[i]);
    if (strstr(names[0], "dev/device/cpu/")) return false;  // the runtime's own
    const unsigned long mine = F.places.size() + 1;
    F.places[here] = mine;
    if (mine == F.n)
        fprintf(stderr, "emulated GPU: forgets %s in %s, in %s, in %s\n", function, names[0], names[1], names[2]);
    return mine == F.n;
}

// ---------------------------------------------------------------------------------------------------------------------
// Switching between fibers. The sanitizers must be informed, or they take the new stack for a wild one.

#if defined(__x86_64__)
// Saves the callee-saved registers on the old stack and loads them from the new one. Takes 10 ns; swapcontext would
// make system calls.
extern "C" void cuda_on_cpu_switch(context *from, context to);
asm(R"(
.text
.globl cuda_on_cpu_switch
.type cuda_on_cpu_switch, @function
cuda_on_cpu_switch:
    push %rbp
    push %rbx
    push %r12
    push %r13
    push %r14
    push %r15
    mov %rsp, (%rdi)
    mov %rsi, %rsp
    pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %rbx
    pop %rbp
    ret
.size cuda_on_cpu_switch, .-cuda_on_cpu_switch
)");

static void switch_context(context *from, context *to) { cuda_on_cpu_switch(from, *to); }

static void make_context(fiber *f, void (*entry)()) {
    void **sp = reinterpret_cast<void **>(f->stack + STACK_BYTES - 64);
    *--sp = nullptr;  // where entry would return to: it never does
    *--sp = reinterpret_cast<void *>(entry);
    for (int i = 0; i < 6; i++) *--sp = nullptr;  // the six registers
    f->saved = sp;
}
#else
static void switch_context(context *from, context *to) { swapcontext(from, to); }

static void make_context(fiber *f, void (*entry)()) {
    getcontext(&f->saved);
    f->saved.uc_stack.ss_sp = f->stack;
    f->saved.uc_stack.ss_size = STACK_BYTES;
    f->saved.uc_link = nullptr;
    makecontext(&f->saved, entry, 0);
}
#endif

static void to_scheduler() {
    fiber &f = E.fibers[E.current];
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&f.asan_stack, E.stack_bottom, E.stack_size);
#endif
#if defined(CUDA_ON_CPU_TSAN)
    __tsan_switch_to_fiber(E.tsan, __tsan_switch_to_fiber_no_sync);
#endif
    switch_context(&f.saved, &E.scheduler);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(f.asan_stack, &E.stack_bottom, &E.stack_size);
#endif
}

static void run_fiber(int i) {
    fiber &f = E.fibers[i];
    E.current = i;
    threadIdx = f.thread;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&E.asan_stack, f.stack, STACK_BYTES);
#endif
#if defined(CUDA_ON_CPU_TSAN)
    __tsan_switch_to_fiber(f.tsan, __tsan_switch_to_fiber_no_sync);
#endif
    switch_context(&E.scheduler, &f.saved);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(E.asan_stack, nullptr, nullptr);
#endif
}

// For ThreadSanitizer: what a fiber did before publish(token) happens before what another does after observe(token).
static void publish([[maybe_unused]] char *token) {
#if defined(CUDA_ON_CPU_TSAN)
    __tsan_release(token);
#endif
}

static void observe([[maybe_unused]] char *token) {
#if defined(CUDA_ON_CPU_TSAN)
    __tsan_acquire(token);
#endif
}

// A fiber lives as long as the program, and runs the kernel once for each block.
static void fiber_main() {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(nullptr, &E.stack_bottom, &E.stack_size);
#endif
    for (;;) {
        observe(&E.begin_token);
        E.call->body(E.call->args);
        if (cuda_on_cpu_copies_pending()) die("a thread ends before asynchronous copies that it has not waited for");
        publish(&E.end_token);
        E.fibers[E.current].state = ENDED;
        E.ended++;
        E.warps[E.current / LANES].ended |= 1u << E.current % LANES;
        to_scheduler();
    }
}

static bool make_fiber(fiber *f) {
    char *p = static_cast<char *>(mmap(nullptr, GUARD_BYTES + STACK_BYTES, PROT_READ | PROT_WRITE,
                                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    if (p == MAP_FAILED) return false;
    mprotect(p, GUARD_BYTES, PROT_NONE);
    f->stack = p + GUARD_BYTES;
#if defined(CUDA_ON_CPU_TSAN)
    f->tsan = __tsan_create_fiber(0);
#endif
    make_context(f, fiber_main);
    return true;
}

// ---------------------------------------------------------------------------------------------------------------------
// Barriers and warp operations, called by fibers

void cuda_on_cpu_syncthreads(const char *file, int line) {
    fiber &f = E.fibers[E.current];
    const unsigned generation = E.barrier_generation;
    f.where = site{ file, line };
    f.state = AT_BARRIER;
    if (E.at_barrier == 0) E.barrier = f.where;
    if (E.barrier != f.where) die("divergent barrier: threads of a block wait at different __syncthreads");
    if (E.ended) die("__syncthreads after some threads of the block have ended");
    publish(&E.barrier_token[generation % 2]);
    if (++E.at_barrier == E.threads) {
        E.at_barrier = 0;
        E.barrier_generation++;
        for (int i = 0; i < E.threads; i++) E.fibers[i].state = READY;
    }
    to_scheduler();  // the last one too: the schedule says who goes first after the barrier
    observe(&E.barrier_token[generation % 2]);
}

// A lane arrives at a warp operation; returns whether all have.
static bool arrive(warp &w, int lane, cuda_on_cpu_warp_op op, unsigned mask, site where) {
    fiber &f = E.fibers[E.current];
    f.where = where;
    f.mask = mask;
    f.state = AT_WARP_OP;
    if (!(mask >> lane & 1)) die("a lane calls a warp operation whose mask does not name it");
    if (w.ended & mask) die("a warp operation's mask names a lane that has ended");
    if (w.arrived == 0) {
        w.op = op;
        w.mask = mask;
        w.where = where;
    }
    if (w.op != op || w.mask != mask || w.where != where) die("lanes of a warp meet in different warp operations");
    w.arrived |= 1u << lane;
    return w.arrived == mask;
}

// All have arrived: they go on.
static void release(warp &w, int lane) {
    w.arrived = 0;
    w.generation++;
    for (int i = 0; i < LANES; i++) {
        if (w.mask >> i & 1) E.fibers[E.current - lane + i].state = READY;
    }
}

void cuda_on_cpu_meet(void (*work)(void *const *operands), void *operands, const char *file, int line) {
    warp &w = E.warps[E.current / LANES];
    const int lane = E.current % LANES;
    const bool complete = arrive(w, lane, CUDA_ON_CPU_MATRIX, 0xffffffffu, site{ file, line });
    if (w.arrived == 1u << lane) w.work = work;
    if (w.work != work) die("lanes of a warp meet in different warp operations");
    w.operands[lane] = operands;
    if (complete) {
        work(w.operands);
        release(w, lane);
    }
    to_scheduler();
}

uint64_t cuda_on_cpu_warp(cuda_on_cpu_warp_op op, unsigned mask, uint64_t value, int arg, int width, const char *file,
                          int line) {
    warp &w = E.warps[E.current / LANES];
    const int lane = E.current % LANES;
    uint64_t *values = w.value[w.generation % 2];
    const bool complete = arrive(w, lane, op, mask, site{ file, line });
    if (width <= 0 || width > LANES || (width & (width - 1))) die("the width of a shuffle is not 1, 2, 4, 8, 16 or 32");
    values[lane] = value;
    if (op == CUDA_ON_CPU_SYNCWARP) publish(&w.token);
    if (complete) release(w, lane);
    to_scheduler();
    if (op == CUDA_ON_CPU_SYNCWARP) {
        observe(&w.token);
        return 0;
    }

    const int first = lane / width * width, last = first + width - 1;
    int source = lane;
    if (op == CUDA_ON_CPU_SHFL) source = first + (arg & (width - 1));
    if (op == CUDA_ON_CPU_SHFL_XOR) source = lane ^ arg;
    if (op == CUDA_ON_CPU_SHFL_DOWN) source = lane + arg;
    if (op == CUDA_ON_CPU_SHFL_UP) source = lane - arg;
    if (source > last || (op == CUDA_ON_CPU_SHFL_UP && source < first)) source = lane;
    if (!(mask >> source & 1)) die("a shuffle reads a lane that its mask does not name");
    return values[source];
}

void *cuda_on_cpu_dynamic_shared() { return E.shared; }
size_t cuda_on_cpu_dynamic_shared_bytes() { return E.shared_bytes; }

// ---------------------------------------------------------------------------------------------------------------------
// Launch

// The linker's names for the ends of the section of __shared__ variables; null if the program has none.
extern "C" unsigned char __start_cuda_on_cpu_shared[] __attribute__((weak));
extern "C" unsigned char __stop_cuda_on_cpu_shared[] __attribute__((weak));

// Not memset: between the variables are AddressSanitizer's red zones.
__attribute__((no_sanitize("address"), noinline, optimize("no-tree-loop-distribute-patterns"))) static void poison(
    unsigned char *begin, unsigned char *end) {
    for (unsigned char *p = begin; p != end; p++) *p = 0xff;
}

cuda_on_cpu_space cuda_on_cpu_space_of(const void *p, size_t bytes) {
    const auto within = [&](const void *begin, const void *end) {
        const uintptr_t at = reinterpret_cast<uintptr_t>(p);
        return at >= reinterpret_cast<uintptr_t>(begin) && at + bytes <= reinterpret_cast<uintptr_t>(end);
    };
    const char *const stack = E.fibers[E.current].stack;
    if (within(__start_cuda_on_cpu_shared, __stop_cuda_on_cpu_shared)) return CUDA_ON_CPU_SHARED;
    if (within(E.shared, E.shared + E.shared_bytes)) return CUDA_ON_CPU_SHARED;
    return within(stack, stack + STACK_BYTES) ? CUDA_ON_CPU_STACK : CUDA_ON_CPU_GLOBAL;
}

void cuda_on_cpu_check_shared(const void *p, size_t bytes) {
    if (cuda_on_cpu_space_of(p, bytes) != CUDA_ON_CPU_SHARED) die("an address that must be in shared memory is not");
}

static const char *over_limit(const cudaLaunchConfig_t *config, const cuda_on_cpu_call *call) {
    const dim3 &g = config->gridDim, &b = config->blockDim;
    const size_t threads = static_cast<size_t>(b.x) * b.y * b.z;
    const auto limit = E.max_dynamic_shared.find(call->kernel);
    const size_t most_shared = limit == E.max_dynamic_shared.end() ? CUDA_ON_CPU_SHARED_DEFAULT : limit->second;
    if (g.x == 0 || g.y == 0 || g.z == 0) return "the grid has no blocks";
    if (g.x > 0x7fffffffu || g.y > 65535 || g.z > 65535) return "the grid is larger than (2^31-1, 65535, 65535)";
    if (threads == 0) return "the block has no threads";
    if (threads > MAX_THREADS || b.z > 64) return "the block is larger than 1024 threads, or than 64 in z";
    if (threads % LANES) return "the block is not a multiple of 32 threads";
    if (config->dynamicSmemBytes > most_shared)
        return "too much dynamic shared memory (over 48 KB cudaFuncSetAttribute must allow it)";
    return nullptr;
}

cudaError_t cuda_on_cpu_max_dynamic_shared(cuda_on_cpu_fn kernel, int bytes) {
    if (bytes < 0 || static_cast<size_t>(bytes) > CUDA_ON_CPU_SHARED_OPTIN) return cudaErrorInvalidValue;
    cuda_on_cpu_executed(reinterpret_cast<const void *>(cuda_on_cpu_max_dynamic_shared));
    const std::lock_guard<std::mutex> guard(E.lock);
    E.max_dynamic_shared[kernel] = static_cast<size_t>(bytes);
    return cudaSuccess;
}

// In the order that the schedule chooses: 0..n-1.
static void choose_order(std::vector<unsigned> &order, unsigned n) {
    order.resize(n);
    for (unsigned i = 0; i < n; i++) order[i] = E.schedule == 1 ? n - 1 - i : i;
    if (E.schedule <= 1) return;
    for (unsigned i = n; i > 1; i--) std::swap(order[i - 1], order[random_below(i)]);
}

static bool run_warp(unsigned w) {
    const unsigned flip = E.schedule == 0 ? 0 : E.schedule == 1 ? LANES - 1 : random_below(LANES);
    bool progress = false;
    for (unsigned i = 0; i < LANES; i++) {
        const unsigned thread = w * LANES + (i ^ flip);
        if (E.fibers[thread].state != READY) continue;
        run_fiber(static_cast<int>(thread));
        progress = true;
    }
    return progress;
}

static void run_block() {
    static std::vector<unsigned> order;
    E.ended = 0;
    E.at_barrier = 0;
    for (int i = 0; i < E.threads; i++) {
        const unsigned u = static_cast<unsigned>(i);
        E.fibers[i].state = READY;
        E.fibers[i].thread = uint3{ u % blockDim.x, u / blockDim.x % blockDim.y, u / blockDim.x / blockDim.y };
    }
    for (int w = 0; w < E.threads / LANES; w++) E.warps[w].ended = E.warps[w].arrived = 0;
    publish(&E.begin_token);
    while (E.ended < E.threads) {
        bool progress = false;
        choose_order(order, static_cast<unsigned>(E.threads / LANES));
        for (unsigned w : order) {
            while (run_warp(w)) progress = true;
        }
        if (!progress) die("deadlock: every thread that has not ended waits for others");
    }
    observe(&E.end_token);
}

cudaError_t cuda_on_cpu_check_launch(const cudaLaunchConfig_t *config, const cuda_on_cpu_call *call) {
    const std::lock_guard<std::mutex> guard(E.lock);
    const char *problem = over_limit(config, call);
    if (!problem) return cudaSuccess;
    fprintf(stderr, "emulated GPU: %s: launch (%s) at %s:%d\n", problem, call->text, call->file, call->line);
    return cudaErrorInvalidConfiguration;
}

cudaError_t cuda_on_cpu_run(const cudaLaunchConfig_t *config, const cuda_on_cpu_call *call) {
    const std::lock_guard<std::mutex> guard(E.lock);
    const dim3 &g = config->gridDim, &b = config->blockDim;
    E.threads = static_cast<int>(b.x * b.y * b.z);
    for (int i = 0; i < E.threads; i++) {
        if (!E.fibers[i].stack && !make_fiber(&E.fibers[i])) return cudaErrorMemoryAllocation;
    }
    if (!E.random) {
        const char *s = getenv("CUDA_ON_CPU_SCHEDULE");
        E.schedule = s ? strtoul(s, nullptr, 10) : 0;
        E.random = (E.schedule + 1) * 0x9e3779b97f4a7c15ull;
    }
    E.shared = nullptr;
    E.shared_bytes = config->dynamicSmemBytes;
    if (config->dynamicSmemBytes &&
        posix_memalign(reinterpret_cast<void **>(&E.shared), 256, config->dynamicSmemBytes)) {
        return cudaErrorMemoryAllocation;
    }
#if defined(CUDA_ON_CPU_TSAN)
    E.tsan = __tsan_get_current_fiber();
#endif
    cuda_on_cpu_call translated = *call;
    E.call = &translated;
    if (cuda_on_cpu_ptx)
        cuda_on_cpu_ptx(&translated);
    else
        cuda_on_cpu_executed(reinterpret_cast<const void *>(call->kernel));
    gridDim = uint3{ g.x, g.y, g.z };
    blockDim = uint3{ b.x, b.y, b.z };
    std::vector<unsigned> order;
    choose_order(order, g.x * g.y * g.z);
    for (unsigned i : order) {
        blockIdx = uint3{ i % g.x, i / g.x % g.y, i / g.x / g.y };
        poison(__start_cuda_on_cpu_shared, __stop_cuda_on_cpu_shared);
        poison(E.shared, E.shared + config->dynamicSmemBytes);
        run_block();
        cuda_on_cpu_count_block();
    }
    free(E.shared);
    return cudaSuccess;
}

#endif
