// What the warps of the emulated GPU ask of its memory: sectors of global memory, conflicts of shared memory's banks.
//
// On a GPU the lanes of a warp execute a load together: one request. Here they run one after the other, so requests are
// put together again: the n-th access of each lane at one place of the kernel belongs to the n-th request there. That
// is what a GPU does where lanes differ in how often they go through a loop; where they skip an access in the middle of
// one, its requests are not quite these.
//
//   global memory    A request touches sectors of 32 bytes. The fewest are those that its distinct bytes would fill. A
//                    pack of floats is two requests of 16 bytes a lane, 32 bytes apart, so it touches twice the
//                    fewest; a GPU finds the other half of a sector that it loads in its L1 cache.
//   shared memory    32 banks, each 4 bytes wide. A wavefront serves 32 lanes of 4 bytes, 16 of 8, or 8 of 16 (also of
//                    ldmatrix and cp.async); lanes that read the same word share it. Where lanes need different words
//                    of one bank, there are more wavefronts.
//
// Counted are the accesses of zero/device.cuh and device/mma.cuh: packs, pairs, ldmatrix and cp.async. Single numbers
// (the mean of a row, a token) are plain C++ here and are not counted; check_kernels.awk sees to it that in no loop of
// a kernel most accesses are such. A __shared__ array of a template counts as global memory: gcc ignores the section of
// its variables. Nothing is known of caches, of time, or of how a compiler reorders accesses.
#ifdef CUDA_ON_CPU_EMULATED
#include "cuda_runtime.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <mutex>
#include <unordered_map>

static const int LANES = 32, MAX_WARPS = 32;

struct request {
    unsigned lanes;
    uintptr_t address[LANES];
};

struct place {
    size_t bytes;
    bool is_store;
    cuda_on_cpu_space space;
    size_t accesses[LANES];    // of each lane
    size_t finished;           // requests, which all lanes have reached
    std::deque<request> open;  // after those
};

static std::atomic<bool> on{ false };
static std::unordered_map<const void *, place> places[MAX_WARPS];  // of the block that runs
static cuda_on_cpu_memory so_far;
static std::mutex lock;
static cuda_on_cpu_memory published;  // so_far, at the end of the last block

// Sorts n numbers and removes those that are there twice; returns how many are left.
static int distinct(uintptr_t *x, int n) {
    std::sort(x, x + n);
    return static_cast<int>(std::unique(x, x + n) - x);
}

static void count_global(const uintptr_t *address, int n, size_t bytes, bool is_store) {
    uintptr_t sectors[LANES], pieces[LANES];
    for (int i = 0; i < n; i++) {
        sectors[i] = address[i] / 32;
        pieces[i] = address[i] / bytes;
    }
    so_far.requests++;
    so_far.sectors += static_cast<uint64_t>(distinct(sectors, n));
    so_far.fewest_sectors += (static_cast<uint64_t>(distinct(pieces, n)) * bytes + 31) / 32;
    if (is_store) so_far.stored += static_cast<uint64_t>(n) * bytes;
}

// Of lanes that one wavefront can serve.
static void count_wavefronts(const uintptr_t *address, int n, size_t bytes) {
    uintptr_t words[LANES];
    int num_words = 0;
    unsigned used[32] = {}, most = 0;
    for (int i = 0; i < n; i++) {
        for (size_t b = 0; b < bytes; b += 4) words[num_words++] = (address[i] + b) / 4;
    }
    num_words = distinct(words, num_words);
    for (int i = 0; i < num_words; i++) most = std::max(most, ++used[words[i] % 32]);
    so_far.wavefronts += most;
    so_far.fewest_wavefronts++;
}

static void finish(const place &at, const request &r) {
    const size_t bytes = std::min<size_t>(at.bytes, 16);
    const int together = at.space == CUDA_ON_CPU_SHARED ? 128 / static_cast<int>(bytes) : LANES;
    for (size_t part = 0; part < at.bytes; part += bytes) {
        so_far.shared_requests += at.space == CUDA_ON_CPU_SHARED;
        for (int first = 0; first < LANES; first += together) {
            uintptr_t address[LANES];
            int n = 0;
            for (int lane = first; lane < first + together; lane++) {
                if (r.lanes >> lane & 1) address[n++] = r.address[lane] + part;
            }
            if (n == 0) continue;
            if (at.space == CUDA_ON_CPU_SHARED)
                count_wavefronts(address, n, bytes);
            else
                count_global(address, n, bytes, at.is_store);
        }
    }
}

void cuda_on_cpu_count(const void *p, size_t bytes, bool is_store, const void *call) {
    if (!on) return;
    const cuda_on_cpu_space space = cuda_on_cpu_space_of(p, bytes);
    if (space == CUDA_ON_CPU_STACK) return;  // a GPU's registers
    const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z), lane = thread % LANES;
    place &at = places[thread / LANES][call];
    at.bytes = bytes;
    at.is_store = is_store;
    at.space = space;
    const size_t n = at.accesses[lane]++ - at.finished;
    if (n == at.open.size()) at.open.push_back(request{});
    at.open[n].lanes |= 1u << lane;
    at.open[n].address[lane] = reinterpret_cast<uintptr_t>(p);
    while (!at.open.empty() && at.open.front().lanes == 0xffffffffu) {
        finish(at, at.open.front());
        at.open.pop_front();
        at.finished++;
    }
}

void cuda_on_cpu_load(const void *p, size_t bytes) {
    cuda_on_cpu_check_aligned(p, std::min<size_t>(bytes, 16));
    cuda_on_cpu_count(p, bytes, false, __builtin_return_address(0));
}

void cuda_on_cpu_store(void *p, size_t bytes) {
    cuda_on_cpu_check_aligned(p, std::min<size_t>(bytes, 16));
    cuda_on_cpu_count(p, bytes, true, __builtin_return_address(0));
}

void cuda_on_cpu_count_block() {
    if (!on) return;
    for (auto &warp : places) {
        for (const auto &[call, at] : warp) {
            for (const request &r : at.open) finish(at, r);
        }
        warp.clear();
    }
    const std::lock_guard<std::mutex> guard(lock);
    published = so_far;
}

void cuda_on_cpu_count_memory(int yes) { on = yes != 0; }

cuda_on_cpu_memory cuda_on_cpu_memory_so_far() {
    const std::lock_guard<std::mutex> guard(lock);
    return published;
}

#endif
