// Tensor cores and asynchronous copies, on a GPU of sm_80 or later, where each function is one PTX instruction, and on
// the emulated GPU (dev/device/cpu/tensor_cores.cpp). All lanes of a warp call mma and ldmatrix together.
//
//   mma(d, a, b0, b1)          d += a b, where a is 16 x 16 and b 16 x 8 bf16, and d is 16 x 8 fp32
//   ldmatrix(r, p)             loads four 8 x 8 matrices of bf16 from shared memory: lane 8 i + j gives the address of
//                              row j of matrix i, 16 bytes, aligned; r[i] is the lane's part of matrix i
//   ldmatrix_transposed(r, p)  the same, but r[i] is the lane's part of matrix i transposed
//   copy_async(to, from, ok)   begins to copy a float, or 8 bf16, from global to shared memory; zeros if ok is false,
//                              and then `from` is not read
//   copy_commit()              makes a group of this thread's copies since the last commit
//   copy_wait<N>()             waits for all groups of this thread but the last N; a barrier shows them to others
//   block_index()              blockIdx.x, read again in each call: what depends on it is computed where it is used,
//                              not kept in registers that a loop in between needs
//
// The matrices are spread over a warp (PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type"). With
// g = lane / 4 and t = lane % 4, and two neighbouring bf16 in a register, the first in the lower half, a lane holds
//
//     a[0]  row g      columns 2t, 2t + 1            b0          rows 2t, 2t + 1       column g
//     a[1]  row g + 8  columns 2t, 2t + 1            b1          rows 2t + 8, 2t + 9   column g
//     a[2]  row g      columns 2t + 8, 2t + 9        d[0], d[1]  row g      columns 2t, 2t + 1
//     a[3]  row g + 8  columns 2t + 8, 2t + 9        d[2], d[3]  row g + 8  columns 2t, 2t + 1
//
// and of an 8 x 8 matrix that ldmatrix loads, row g, columns 2t and 2t + 1. So two d side by side have the layout of an
// a: what one product gives, the next one takes from registers.
//
// Products of bf16 are exact in fp32. NVIDIA does not document in which order a GPU adds 16 of them to d and how it
// rounds; the emulated GPU adds one by one, k ascending. They agree to rounding, not in bits.
#ifndef DEVICE_MMA_CUH
#define DEVICE_MMA_CUH

#include "zero/device.cuh"

#if defined(CUDA_ON_CPU) && !defined(CUDA_ON_CPU_EMULATED)
#error "device/mma.cuh is for warps of 32 lanes: a GPU, or DEVICE=emulated"
#endif

#ifdef CUDA_ON_CPU
DEV void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, CUDA_ON_CPU_SITE) {
    cuda_on_cpu_mma(d, a, b0, b1, file, line);
}
DEV void ldmatrix(uint32_t (&r)[4], const bf16 *p, CUDA_ON_CPU_SITE) { cuda_on_cpu_ldmatrix(r, p, false, file, line); }
DEV void ldmatrix_transposed(uint32_t (&r)[4], const bf16 *p, CUDA_ON_CPU_SITE) {
    cuda_on_cpu_ldmatrix(r, p, true, file, line);
}
DEV void copy_async(bf16 *to, const bf16 *from, bool ok) { cuda_on_cpu_copy_async(to, from, 16, ok); }
DEV void copy_async(float *to, const float *from, bool ok) { cuda_on_cpu_copy_async(to, from, 4, ok); }
DEV void copy_commit() { cuda_on_cpu_copy_commit(); }
DEV unsigned block_index() { return blockIdx.x; }
template <int N> DEV void copy_wait() { cuda_on_cpu_copy_wait(N); }

// Two floats, rounded to bf16, in one register.
DEV uint32_t pack_bf16(float low, float high) {
    return __float2bfloat16_rn(low).bits | static_cast<uint32_t>(__float2bfloat16_rn(high).bits) << 16;
}

// Copies 8 bf16 by 16-byte accesses.
DEV void copy_pack(bf16 *to, const bf16 *from) { st16(to, ld16(from)); }

DEV void st_pair(bf16 *p, float low, float high) {
    cuda_on_cpu_store(p, 4);
    p[0] = __float2bfloat16_rn(low);
    p[1] = __float2bfloat16_rn(high);
}

// 2^x, and 0 instead of a result below 2^-126.
DEV float exp2_approx(float x) { return x < -126 ? 0 : exp2f(x); }

#else
DEV unsigned block_index() {
    unsigned x;
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(x));
    return x;
}

DEV uint32_t shared_address(const void *p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

DEV void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
DEV void ldmatrix(uint32_t (&r)[4], const bf16 *p) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(p))
                 : "memory");
}
DEV void ldmatrix_transposed(uint32_t (&r)[4], const bf16 *p) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(p))
                 : "memory");
}
DEV void copy_async(bf16 *to, const bf16 *from, bool ok) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)),
                 "l"(__cvta_generic_to_global(from)), "r"(ok ? 16 : 0)
                 : "memory");
}
DEV void copy_async(float *to, const float *from, bool ok) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(to)),
                 "l"(__cvta_generic_to_global(from)), "r"(ok ? 4 : 0)
                 : "memory");
}
DEV void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> DEV void copy_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

DEV uint32_t pack_bf16(float low, float high) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    uint32_t u;
    memcpy(&u, &pair, sizeof u);
    return u;
}

DEV void copy_pack(bf16 *to, const bf16 *from) {
    *reinterpret_cast<uint4 *>(to) = *reinterpret_cast<const uint4 *>(from);
}

DEV void st_pair(bf16 *p, float low, float high) { *reinterpret_cast<uint32_t *>(p) = pack_bf16(low, high); }

DEV float exp2_approx(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
#endif

DEV float low_bf16(uint32_t pair) { return __uint_as_float(pair << 16); }
DEV float high_bf16(uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }

#endif
