// harness.h: how a test program of this tree is written, in C, C++ and CUDA.
//
//     int main(int argc, char **argv) {
//         test_start(&argc, argv);                 // test_start_ranks (ranks.h) in a program that mpirun starts
//         RUN(sums_wrap_around);                   // a case with the name of its function
//         for (int stage = 0; stage < 4; stage++)
//             CASE("stage %d: padding is updated", stage) padding_stays_zero(stage);
//         return test_finish();
//     }
//
// Each program understands
//
//     --case WORD    run only the cases whose name contains WORD; it is a failure if there are none
//     --list         print the names of the cases and run none
//
// and prints, for each case, `run` before it (so that the log of a crash or a hang ends with its name) and `ok` or
// `FAIL` after it, then `N passed, N failed`. Cases are named after the fault that they prevent. A case passes if it
// has checked something and no check has failed. A failed check prints where, and the case continues, so one run shows
// all faults. REQUIRE is for conditions without which a case cannot continue; it ends the program.
//
// Code outside of CASE and RUN (setting up, freeing) runs whichever cases were selected, so a case must not rely on an
// earlier one; a check that fails there makes the next case fail. A case must not be left by return, break or goto.
#ifndef HARNESS_H
#define HARNESS_H
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

// Takes --case and --list out of argv; other arguments are left to the program.
void test_start(int *argc, char **argv);

// Prints the summary; returns the program's exit status.
int test_finish(void);

// CASE(format, ...) statement. RUN(function): a function without arguments.
#define CASE(...) for (int case_ = test_case_begin(__VA_ARGS__); case_; case_ = test_case_end())
#define RUN(function) \
    CASE("%s", #function) function()

// CHECK(condition) or CHECK(condition, format, ...): returns whether it holds. Integers, texts and bytes are printed if
// they differ. CHECK_AT names the line of a caller.
#define CHECK(condition, ...) ((condition) ? test_pass() : test_fail(__FILE__, __LINE__, #condition, " " __VA_ARGS__))
#define CHECK_AT(file, line, condition, ...) \
    ((condition) ? test_pass() : test_fail(file, line, #condition, " " __VA_ARGS__))
#define CHECK_EQ(got, want)           test_equal((long long)(got), (long long)(want), #got, __FILE__, __LINE__)
#define CHECK_STR(got, want)          test_same_text(got, want, #got, __FILE__, __LINE__)
#define CHECK_BYTES(got, want, bytes) test_same_bytes(got, want, bytes, #got, __FILE__, __LINE__)
#define REQUIRE(condition, ...) \
    ((condition) ? (void)test_pass() : (test_fail(__FILE__, __LINE__, #condition, " " __VA_ARGS__), test_stop()))

// Whether a check of this case has failed so far, on this rank.
int test_failed(void);

// What follows is for the macros and for ranks.h.
extern long long test_checks;  // made so far in this case
static inline int test_pass(void) {
    test_checks++;
    return 1;
}
__attribute__((format(printf, 1, 2))) int test_case_begin(const char *format, ...);
int test_case_end(void);  // returns 0
__attribute__((format(printf, 4, 5))) int test_fail(const char *file, int line, const char *condition,
                                                    const char *format, ...);
int test_equal(long long got, long long want, const char *what, const char *file, int line);
int test_same_text(const char *got, const char *want, const char *what, const char *file, int line);
int test_same_bytes(const void *got, const void *want, size_t bytes, const char *what, const char *file, int line);
__attribute__((noreturn)) void test_stop(void);

// Optional: called at the begin and the end of each case that is run.
extern void (*test_on_begin)(void), (*test_on_end)(void);

// How ranks agree: sums the counts of a case over all ranks, or never returns; ends the job.
typedef struct test_ranks {
    int rank;
    void (*sum)(long long counts[2], const char *name);
    void (*stop)(void);
    void (*finish)(void);
} test_ranks;
void test_set_ranks(const test_ranks *ranks);

#ifdef __cplusplus
}
#endif
#endif
