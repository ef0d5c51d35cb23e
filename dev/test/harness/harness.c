// harness.c: cases, checks and the summary (harness.h).
#include "test/harness/harness.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "zero/clock.h"

enum { PRINTED_FAILURES = 8 };  // of a case, on each rank

long long test_checks;
void (*test_on_begin)(void), (*test_on_end)(void);

static test_ranks ranks;  // zero: a program without ranks
static const char *wanted;
static int list, selected, passed, failed, open_case;
static long long failures;
static char name[512];
static double began;

void test_start(int *argc, char **argv) {
    int kept = 1;
    for (int i = 1; i < *argc; i++) {
        if (!strcmp(argv[i], "--list")) {
            list = 1;
        } else if (!strcmp(argv[i], "--case") && i + 1 < *argc) {
            wanted = argv[++i];
        } else {
            argv[kept++] = argv[i];
        }
    }
    *argc = kept;
    argv[kept] = NULL;
    setvbuf(stdout, NULL, _IOLBF, 0);
}

void test_set_ranks(const test_ranks *r) { ranks = *r; }

static void summary(void) { printf("%d passed, %d failed\n", passed, failed); }

int test_finish(void) {
    if (open_case) {
        test_fail(__FILE__, __LINE__, "", " the case was left by return, break or goto");
        test_case_end();
    }
    long long counts[2] = { failures, 0 };
    if (ranks.sum) ranks.sum(counts, "the program");
    if (counts[0]) failed++;
    if (ranks.rank == 0 && !list) {
        if (counts[0]) printf("FAIL  after the last case\n");
        if (!selected) printf(wanted ? "no case has \"%s\" in its name\n" : "there are no cases\n", wanted);
        summary();
    }
    fflush(stdout);
    if (ranks.finish) ranks.finish();
    return failed || (!selected && !list);
}

int test_case_begin(const char *format, ...) {
    if (open_case) {
        test_fail(__FILE__, __LINE__, "", " the case was left by return, break or goto");
        test_case_end();
    }
    va_list args;
    va_start(args, format);
    vsnprintf(name, sizeof name, format, args);
    va_end(args);
    if (wanted && !strstr(name, wanted)) return 0;
    selected++;
    if (ranks.rank == 0) printf(list ? "%s\n" : "run   %s\n", name);
    fflush(stdout);
    if (list) return 0;
    open_case = 1;
    test_checks = 0;
    began = zero_clock();
    if (test_on_begin) test_on_begin();
    return 1;
}

int test_case_end(void) {
    long long counts[2] = { failures, test_checks };
    if (test_on_end) test_on_end();
    if (failures > PRINTED_FAILURES) printf("      ... and %lld more\n", failures - PRINTED_FAILURES);
    fflush(stdout);
    if (ranks.sum) ranks.sum(counts, name);
    const int ok = counts[0] == 0 && counts[1] > 0;
    *(ok ? &passed : &failed) += 1;
    open_case = 0;
    failures = 0;
    if (ranks.rank == 0)
        printf("%s  %s (%lld checks, %.1f s)%s\n", ok ? "ok  " : "FAIL", name, counts[1], zero_clock() - began,
               counts[1] ? "" : ": it has checked nothing");
    fflush(stdout);
    return 0;
}

void test_stop(void) {
    if (open_case) {
        printf("FAIL  %s: the program cannot go on\n", name);
    } else {
        printf("FAIL  outside of a case; the program cannot go on\n");
    }
    failed++;
    summary();
    fflush(stdout);
    if (ranks.stop) ranks.stop();
    exit(1);
}

int test_fail(const char *file, int line, const char *condition, const char *format, ...) {
    test_checks++;
    if (failures++ >= PRINTED_FAILURES) return 0;
    const char *slash = strrchr(file, '/');
    char message[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format + 1, args);
    va_end(args);
    printf("      ");
    if (ranks.sum) printf("rank %d, ", ranks.rank);
    printf("%s:%d: %s\n", slash ? slash + 1 : file, line, *message ? message : condition);
    fflush(stdout);
    return 0;
}

int test_failed(void) { return failures > 0; }

int test_equal(long long got, long long want, const char *what, const char *file, int line) {
    if (got == want) return test_pass();
    return test_fail(file, line, what, " %s is %lld, expected %lld", what, got, want);
}

int test_same_text(const char *got, const char *want, const char *what, const char *file, int line) {
    if (got && want && !strcmp(got, want)) return test_pass();
    return test_fail(file, line, what, " %s is \"%s\", expected \"%s\"", what, got ? got : "(null)",
                     want ? want : "(null)");
}

int test_same_bytes(const void *got, const void *want, size_t bytes, const char *what, const char *file, int line) {
    const unsigned char *a = (const unsigned char *)got, *b = (const unsigned char *)want;
    size_t i = 0;
    while (i < bytes && a[i] == b[i]) i++;
    if (i == bytes) return test_pass();
    return test_fail(file, line, what, " %s: byte %zu of %zu is %d, expected %d", what, i, bytes, a[i], b[i]);
}
