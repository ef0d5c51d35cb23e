// test_master.c: the bits of master weights (zero/master_weights.h): all words, and known random numbers.
//
//     test_master [STEP]        words with every STEP-th upper half, where all take too long
#include <stdlib.h>
#include <string.h>
#include "test/harness/harness.h"
#include "zero/master_weights.h"

static int is_nan(uint32_t word) { return (word & 0x7fffffff) > 0x7f800000; }

// Between two neighbours of bf16 floats are equidistant, so nearness can be read from the words.
static void all_words(uint32_t step) {
    unsigned long long lost = 0, far = 0, no_nan = 0;
#pragma omp parallel for reduction(+ : lost, far, no_nan)
    for (uint32_t high = 0; high < 0x10000; high += step) {
        uint32_t l = 0, f = 0, n = 0;  // with 32-bit words and no branches, the compiler vectorises this loop
        for (uint32_t low = 0; low < 0x10000; low++) {
            const uint32_t word = high << 16 | low, param = zero_master_round(word),
                           back = zero_master_join(param, low);
            const uint32_t moved = (param << 16) - word, nan = is_nan(word);
            l += back != (word | nan << 22);                          // quiet NaNs have that bit already
            f += (moved + 0x7fff > 0xffff || param > 0xffff) & !nan;  // moved is from -0x7fff to 0x8000
            n += nan != (uint32_t)is_nan(param << 16);
        }
        lost += l;
        far += f;
        no_nan += n;
    }
    CASE("a word is not what it was split into") CHECK(lost == 0, "%llu times", lost);
    CASE("a parameter is not nearest, or a tie not away from zero") CHECK(far == 0, "%llu times", far);
    CASE("NaN becomes a number, or a number NaN") CHECK(no_nan == 0, "%llu times", no_nan);
}

static void chances(void) {
    unsigned long long wrong = 0;
    for (uint32_t high = 0; high < 0xffff; high += 0x1111)
        for (uint32_t low = 0; low < 0x10000; low += 0x101) {
            uint32_t up = 0;
            for (uint32_t random = 0; random < 0x10000; random++) {
                const uint32_t param = zero_master_round_stochastic(high << 16 | low, random);
                up += param == high + 1;
                wrong += param != high && param != high + 1;
            }
            wrong += up != low;
        }
    CASE("rounded up more or less often than the low half says") CHECK(wrong == 0, "%llu times", wrong);
    wrong = 0;
    for (uint32_t random = 0; random < 0x10000; random++) {
        wrong += zero_master_round_stochastic(0x7f800000, random) != 0x7f80 ||
                 zero_master_round_stochastic(0xff800000, random) != 0xff80;
        wrong += !is_nan(zero_master_round_stochastic(0x7f800001, random) << 16) ||
                 !is_nan(zero_master_round_stochastic(0xffffffff, random) << 16);
        wrong += zero_master_round_stochastic(0, random) != 0 ||
                 zero_master_round_stochastic(0x80000000, random) != 0x8000;
    }
    CASE("infinity, NaN or zero is changed by stochastic rounding") CHECK(wrong == 0, "%llu times", wrong);
}

// From the test vectors of the authors' library, Random123 (kat_vectors, philox4x32 10).
static void known_answers(void) {
    static const struct {
        uint64_t seed, t, logical;
        uint32_t out[4];
    } known[] = {
        { 0, 0, 0, { 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 } },
        { UINT64_MAX, UINT64_MAX, UINT64_MAX, { 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd } },
        { 0x299f31d0a4093822,
          0x0370734413198a2e,
          0x85a308d3243f6a88,
          { 0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1 } },
    };
    unsigned long long wrong = 0;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        uint16_t random[8];
        zero_master_random(random, known[i].seed, known[i].t, known[i].logical);
        for (int k = 0; k < 8; k++) wrong += random[k] != (known[i].out[k / 2] >> 16 * (k % 2) & 0xffff);
    }
    CASE("random numbers are not those of Philox4x32-10") CHECK(wrong == 0, "%llu times", wrong);
}

int main(int argc, char **argv) {
    test_start(&argc, argv);
    all_words(argc > 1 ? (uint32_t)atoi(argv[1]) : 1);
    chances();
    known_answers();
    return test_finish();
}
