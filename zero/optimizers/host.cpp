// host.cpp: the optimizers' updates on the host: the source of the device's kernel (update.cuh), with packs that are
// vector registers. Compiled by the host's compiler on every device, without contraction into fused multiply-add.
#include <math.h>
#include <stdint.h>

typedef struct bf16 {
    uint16_t bits;
} bf16;
#define DEV static inline __attribute__((always_inline))
#define UNROLL
#define VECTOR_PACKS
#include "zero/pack.cuh"
#include "zero/optimizers/update.cuh"

// Writes the parameters of a chunk that stays as it is, from their master weights.
template <enum zero_master MODE>
static void keep_chunk(const zero_optimizer_arrays &arrays, const zero_optimizer_chunk &c,
                       const zero_optimizer_args &a) {
    bf16 *p = static_cast<bf16 *>(arrays.params) + c.param;
    for (size_t i = 0; i < c.count; i += PACK)
        st_weights<MODE>(p + i, arrays.master, c.state + i, ld_weights<MODE>(p + i, arrays.master, c.state + i), a, 0);
}

template <class O, class P, enum zero_master MODE>
static void update_chunks(const zero_optimizer_arrays &arrays, const zero_optimizer_chunk *chunks, size_t n,
                          const zero_optimizer_args &args) {
#pragma omp parallel for schedule(dynamic, 4)
    for (size_t i = 0; i < n; i++) {
        zero_optimizer_args a = args;
        if (chunk_args(chunks[i], a))
            update_chunk<O, P, MODE>(arrays, chunks[i], a, 0, PACK);
        else if constexpr (sizeof(P) == sizeof(bf16) && MODE == ZERO_MASTER_FP32)
            keep_chunk<MODE>(arrays, chunks[i], a);
    }
}

template <class O>
static void update(const zero_optimizer_arrays &arrays, enum zero_dtype dtype, enum zero_master master,
                   const zero_optimizer_chunk *chunks, size_t n, const zero_optimizer_args &a) {
    if (dtype == ZERO_F32) return update_chunks<O, float, ZERO_MASTER_FP32>(arrays, chunks, n, a);
    if (master == ZERO_MASTER_FP32) return update_chunks<O, bf16, ZERO_MASTER_FP32>(arrays, chunks, n, a);
    if (master == ZERO_MASTER_SPLIT) return update_chunks<O, bf16, ZERO_MASTER_SPLIT>(arrays, chunks, n, a);
    update_chunks<O, bf16, ZERO_MASTER_NONE>(arrays, chunks, n, a);
}

void zero_optimizer_update(enum zero_optimizer_kind kind, const zero_optimizer_arrays *arrays, enum zero_dtype dtype,
                           enum zero_master master, const zero_optimizer_chunk *chunks, size_t num_chunks,
                           const zero_optimizer_args *args) {
#define UPDATE(NAME, ...) update<NAME>,
    static constexpr decltype(&update<adamw>) table[] = { ZERO_OPTIMIZERS(UPDATE) };
#undef UPDATE
    static_assert(sizeof table / sizeof *table == ZERO_NUM_OPTIMIZERS, "an optimizer is missing in the table");
    table[kind](*arrays, dtype, master, chunks, num_chunks, *args);
}
