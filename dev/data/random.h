// Random numbers for initialisation, shuffling and sampling. random.c explains the choices.
//
// Three of them give the same numbers, bit for bit, as PyTorch and llm.c: the Mersenne Twister (mt_u32), the normal
// distribution of torch.Tensor.normal_() on a CPU (mt_normal), and llm.c's permutations (mt_permute). The fourth,
// xorshift64*, is llm.c's generator for sampling text. No function fails, allocates, or keeps anything outside the
// struct that it is given.
#ifndef DEV_DATA_RANDOM_H
#define DEV_DATA_RANDOM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    uint32_t state[624];
    uint32_t next;  // the next unused word of state; 624: all are used
    int has_spare;  // a tensor of an odd number of elements below 16 leaves one normal over, for the next such
                    // tensor
    double spare;
} Mt19937;

// torch.manual_seed(seed)
void mt_seed(Mt19937 *g, uint32_t seed);

// The next 32 bits.
uint32_t mt_u32(Mt19937 *g);

// As if mt_u32 had been called n times, at about 0.2 ns each.
void mt_skip(Mt19937 *g, size_t n);

// Elements [begin, begin + count) of torch.empty(n).normal_(mean, std), written to out[0 .. count). The generator
// advances by the whole tensor, whatever the range; only elements in the range cost more than a skip, and with count 0
// out may be NULL. To draw several ranges of one tensor, give all but the last a copy of the generator. begin + count
// <= n.
void mt_normal(Mt19937 *g, float *out, size_t begin, size_t count, size_t n, float mean, float std);

// Shuffles a[0 .. n), n <= 2^32, with exactly n - 1 draws (none for n = 0): Fisher-Yates from the top.
void mt_permute(Mt19937 *g, uint32_t *a, size_t n);

// xorshift64*: 32 bits, and a float in [0, 1). The state must not be 0.
uint32_t xorshift_u32(uint64_t *state);
float xorshift_f32(uint64_t *state);

#ifdef __cplusplus
}
#endif
#endif
