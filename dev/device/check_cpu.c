// Ends the program, before main, with a message if this CPU lacks instructions that the program was compiled for.
// Otherwise the first of them would kill it with SIGILL and no explanation.
//
// The Makefile compiles this file without -march. It defines BUILT_WITH_AVX2 if the other files are compiled with AVX2,
// and so on: build/<configuration>/check_cpu.h has all macros that the compiler predefines for them. On CPUs other than
// x86-64 this file is empty.
#ifdef __x86_64__
#include <stdio.h>
#include <unistd.h>

// clang-format off
#define INSTRUCTIONS(F) \
    F(SSE3, "sse3") F(SSSE3, "ssse3") F(SSE4_1, "sse4.1") F(SSE4_2, "sse4.2") F(POPCNT, "popcnt") F(AVX, "avx") \
    F(AVX2, "avx2") F(FMA, "fma") F(BMI, "bmi") F(BMI2, "bmi2") F(SSE4A, "sse4a") F(FMA4, "fma4") F(XOP, "xop") \
    F(AVX512F, "avx512f") F(AVX512CD, "avx512cd") F(AVX512VL, "avx512vl") F(AVX512BW, "avx512bw") \
    F(AVX512DQ, "avx512dq") F(AVX512VBMI, "avx512vbmi") F(AVX512VBMI2, "avx512vbmi2") F(AVX512VNNI, "avx512vnni") \
    F(AVX512BITALG, "avx512bitalg") F(AVX512VPOPCNTDQ, "avx512vpopcntdq") F(AVX512IFMA, "avx512ifma") \
    F(GFNI, "gfni") F(VPCLMULQDQ, "vpclmulqdq")
// clang-format on

#define STRING(x)       #x
#define DEFINED_AS_1(x) (STRING(x)[0] == '1')

__attribute__((constructor(101))) static void check_cpu(void) {
    const char *missing[64];
    int n = 0;
    __builtin_cpu_init();
#define CHECK(macro, name) \
    if (DEFINED_AS_1(BUILT_WITH_##macro) && !__builtin_cpu_supports(name)) missing[n++] = name;
    INSTRUCTIONS(CHECK)
    if (!n) return;
    fprintf(stderr, "error: this program was built for a CPU with");
    for (int i = 0; i < n; i++) fprintf(stderr, " %s", missing[i]);
    fprintf(stderr, ", which this CPU lacks: make clean and build it here, or make MARCH=x86-64-v2 for most CPUs\n");
    _exit(1);
}
#endif
