// The emulated GPU's matrix instructions and asynchronous copies, for dev/device/mma.cuh, which documents them.
//
// For a matrix instruction the lanes of a warp meet once; the last to arrive does the work of all. What is found:
//   a missing __syncwarp or __syncthreads before ldmatrix   a lane reads the row whose address it gives when it gets
//                                                           there, not what lanes that come later have yet to write
//   a missing or too short copy_wait, a missing barrier     a copy is made as late as the program allows, in
//   after it; a buffer that is copied to while in use       copy_wait; until then its target is NaN
//   copies that nobody waits for                            stop the program when the thread ends
//   memory of the wrong kind, misaligned addresses          stop the program
// ThreadSanitizer sees the reads of ldmatrix and the writes of copies, but not how lanes exchange matrices.
#ifdef CUDA_ON_CPU_EMULATED
#include "cuda_runtime.h"

#include <vector>

// Reads what other lanes have on their stacks while they wait, which no sanitizer needs to watch; optimised, because
// products are what emulated kernels spend their time in.
#define OF_ALL_LANES __attribute__((optimize("O3"), no_sanitize("address", "undefined", "thread"))) static

static const int LANES = 32;

// ---------------------------------------------------------------------------------------------------------------------
// Products. Fragments have g = lane / 4, t = lane % 4.

struct product_operands {
    float *d;
    const uint32_t *a;
    uint32_t b[2];
};

OF_ALL_LANES void split(float *to, uint32_t pair) {
    const uint32_t low = pair << 16, high = pair & 0xffff0000u;
    memcpy(to, &low, sizeof low);
    memcpy(to + 1, &high, sizeof high);
}

OF_ALL_LANES void multiply(void *const *operands) {
    float a[16][16], b[8][16];  // b by columns
    for (int lane = 0; lane < LANES; lane++) {
        const product_operands &o = *static_cast<const product_operands *>(operands[lane]);
        const int g = lane / 4, t = lane % 4;
        for (int i = 0; i < 4; i++) split(&a[g + i % 2 * 8][2 * t + i / 2 * 8], o.a[i]);
        for (int i = 0; i < 2; i++) split(&b[g][2 * t + i * 8], o.b[i]);
    }
    for (int lane = 0; lane < LANES; lane++) {
        float *d = static_cast<const product_operands *>(operands[lane])->d;
        const int g = lane / 4, t = lane % 4;
        for (int i = 0; i < 4; i++) {
            float sum = d[i];
            for (int k = 0; k < 16; k++) sum += a[g + i / 2 * 8][k] * b[2 * t + i % 2][k];
            d[i] = sum;
        }
    }
}

void cuda_on_cpu_mma(float *d, const uint32_t *a, uint32_t b0, uint32_t b1, const char *file, int line) {
    product_operands o = { d, a, { b0, b1 } };
    cuda_on_cpu_meet(multiply, &o, file, line);
}

// ---------------------------------------------------------------------------------------------------------------------
// Matrices from shared memory

struct matrix_operands {
    uint32_t *r;
    uint16_t row[8];  // that the lane has read
};

OF_ALL_LANES void distribute(void *const *operands) {
    for (int lane = 0; lane < LANES; lane++) {
        uint32_t *r = static_cast<const matrix_operands *>(operands[lane])->r;
        const int g = lane / 4, t = lane % 4;
        for (int i = 0; i < 4; i++) {
            const uint16_t *row = static_cast<const matrix_operands *>(operands[8 * i + g])->row;
            r[i] = row[2 * t] | static_cast<uint32_t>(row[2 * t + 1]) << 16;
        }
    }
}

OF_ALL_LANES void distribute_transposed(void *const *operands) {
    for (int lane = 0; lane < LANES; lane++) {
        uint32_t *r = static_cast<const matrix_operands *>(operands[lane])->r;
        const int g = lane / 4, t = lane % 4;
        for (int i = 0; i < 4; i++) {
            const void *const *rows = operands + 8 * i + 2 * t;
            r[i] = static_cast<const matrix_operands *>(rows[0])->row[g] |
                   static_cast<uint32_t>(static_cast<const matrix_operands *>(rows[1])->row[g]) << 16;
        }
    }
}

void cuda_on_cpu_ldmatrix(uint32_t *r, const void *p, bool transposed, const char *file, int line) {
    cuda_on_cpu_check_aligned(p, 16);
    cuda_on_cpu_check_shared(p, 16);
    cuda_on_cpu_count(p, 16, false, __builtin_return_address(0));
    matrix_operands o;
    o.r = r;
    for (int i = 0; i < 8; i++) o.row[i] = static_cast<const uint16_t *>(p)[i];
    cuda_on_cpu_meet(transposed ? distribute_transposed : distribute, &o, file, line);
}

// ---------------------------------------------------------------------------------------------------------------------
// Asynchronous copies

struct copy {
    void *to;
    const void *from;  // nullptr: zeros
    size_t bytes;
    unsigned group;
};

static struct {
    std::vector<copy> pending;
    unsigned groups;
} threads[1024];

static auto &this_thread() { return threads[threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)]; }

void cuda_on_cpu_copy_async(void *to, const void *from, size_t bytes, bool valid) {
    cuda_on_cpu_check_aligned(to, bytes);
    cuda_on_cpu_check_aligned(from, bytes);
    cuda_on_cpu_check_shared(to, bytes);
    const char *const call = static_cast<const char *>(__builtin_return_address(0));
    if (valid) cuda_on_cpu_count(from, bytes, false, call);
    cuda_on_cpu_count(to, bytes, true, call - 1);  // another request than the load
    memset(to, 0xff, bytes);
    this_thread().pending.push_back({ to, valid ? from : nullptr, bytes, this_thread().groups });
}

void cuda_on_cpu_copy_commit() { this_thread().groups++; }

void cuda_on_cpu_copy_wait(unsigned groups) {
    auto &t = this_thread();
    size_t left = 0;
    for (const copy &c : t.pending) {
        if (c.group + groups >= t.groups)
            t.pending[left++] = c;
        else if (c.from)
            memcpy(c.to, c.from, c.bytes);
        else
            memset(c.to, 0, c.bytes);
    }
    t.pending.resize(left);
}

size_t cuda_on_cpu_copies_pending() { return this_thread().pending.size(); }

#endif
