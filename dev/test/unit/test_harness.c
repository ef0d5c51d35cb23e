// test_harness.c: does the harness notice faults? The program starts itself with a planted fault, alone or under
// mpirun, and checks the exit status and the output.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "test/harness/ranks.h"

static const char *self;
static char output[1 << 16];

// Runs this program with arguments; returns its exit status, or 128 and a signal's number.
static int run(const char *before, const char *arguments) {
    char command[1024];
    snprintf(command, sizeof command, "%s %s %s 2>&1 < /dev/null", before, self, arguments);
    FILE *f = popen(command, "r");
    REQUIRE(f != NULL, "%s", command);
    output[fread(output, 1, sizeof output - 1, f)] = '\0';
    const int status = pclose(f);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

#define MPIRUN(timeout) "NP=3; . scripts/env.sh; TEST_TIMEOUT=" timeout " timeout 60 ${MPIRUN:-mpirun} -np 3"
static const char *const mpirun = MPIRUN("40");

#define PRINTED(text)     CHECK(strstr(output, text) != NULL, "\"%s\" is not in the output:\n%s", text, output)
#define NOT_PRINTED(text) CHECK(strstr(output, text) == NULL, "\"%s\" is in the output:\n%s", text, output)

static void good_cases_fail(void) {
    CHECK_EQ(run("", "--planted none"), 0);
    PRINTED("ok    first good case (1 checks");
    PRINTED("2 passed, 0 failed\n");
}

static void a_failed_check_passes(void) {
    CHECK(run("", "--planted fail") != 0);
    PRINTED("run   planted\n      test_harness.c:");
    PRINTED(": planted is 1, expected 2\n");
    PRINTED(": text is \"a\", expected \"b\"\n");
    PRINTED(": bytes: byte 1 of 3 is 98, expected 99\n");
    PRINTED(": planted != 1\n");
    PRINTED(": a message with 7\n");
    PRINTED("FAIL  planted (5 checks");
    PRINTED("ok    second good case");  // the others are still run
    PRINTED("2 passed, 1 failed\n");
}

static void many_failures_flood_the_log(void) {
    CHECK(run("", "--planted flood") != 0);
    PRINTED("7 is wrong\n      ... and 992 more\nFAIL");
}

static void a_case_without_checks_passes(void) {
    CHECK(run("", "--planted empty") != 0);
    PRINTED("FAIL  planted (0 checks");
    PRINTED("2 passed, 1 failed\n");
}

static void a_case_that_is_left_passes(void) {
    CHECK(run("", "--planted leave") != 0);
    PRINTED("the case was left by return, break or goto\nFAIL  planted");
    PRINTED("2 passed, 1 failed\n");
}

static void a_check_outside_of_a_case_is_lost(void) {
    CHECK(run("", "--planted before") != 0);
    PRINTED("ok    first good case");
    PRINTED("FAIL  second good case (1 checks");
    PRINTED("1 passed, 1 failed\n");
    CHECK(run("", "--planted after") != 0);
    PRINTED("FAIL  after the last case\n2 passed, 1 failed\n");
}

static void the_program_goes_on_without_what_it_requires(void) {
    CHECK(run("", "--planted require") != 0);
    PRINTED("FAIL  planted: the program cannot go on\n1 passed, 1 failed\n");
    NOT_PRINTED("second good case");
}

static void a_crash_hides_its_case(void) {
    CHECK(run("", "--planted crash") >= 128);
    PRINTED("run   planted\n");
    NOT_PRINTED(" passed, ");
}

static void a_word_selects_other_cases(void) {
    CHECK_EQ(run("", "--planted fail --case good"), 0);
    PRINTED("2 passed, 0 failed\n");
    NOT_PRINTED("planted");
    CHECK_EQ(run("", "--planted fail --case second"), 0);
    PRINTED("1 passed, 0 failed\n");
    CHECK(run("", "--planted none --case nonsense") != 0, "no case is a success");
    PRINTED("no case has \"nonsense\" in its name\n0 passed, 0 failed\n");
    CHECK_EQ(run("", "--planted fail --list"), 0);
    CHECK_STR(output, "first good case\nplanted\nsecond good case\n");
}

static void ranks_pass_alone(void) {
    CHECK_EQ(run(mpirun, "--ranks --planted none"), 0);
    PRINTED("ok    first good case (3 checks");  // the sum of all ranks
    PRINTED("2 passed, 0 failed\n");
    CHECK(strstr(strstr(output, "passed") + 1, "passed") == NULL, "more than one rank prints:\n%s", output);
    CHECK(run(mpirun, "--ranks --planted fail") != 0);
    PRINTED("rank 2, test_harness.c:");
    NOT_PRINTED("rank 1, test_harness.c:");
    PRINTED("FAIL  planted (5 checks");
    PRINTED("2 passed, 1 failed\n");
    CHECK(run(mpirun, "--ranks --planted after") != 0);
    PRINTED("2 passed, 1 failed\n");
    CHECK(run(mpirun, "--ranks --planted empty") != 0);
    PRINTED("FAIL  planted (0 checks");
}

static void a_lost_rank_is_waited_for(void) {
    CHECK(run(mpirun, "--ranks --planted crash") != 0);
    PRINTED("run   planted\n");
    NOT_PRINTED("2 passed");
    CHECK(run(MPIRUN("5"), "--ranks --planted hang") != 0);
    PRINTED("rank 2 is not at the end of: planted\n");
    PRINTED("FAIL  planted");  // mpirun may print its own words in between
    PRINTED("1 passed, 1 failed\n");
    CHECK(run(mpirun, "--ranks --planted require") != 0);
    PRINTED("FAIL  planted: the program cannot go on");
    NOT_PRINTED("2 passed");
}

// The planted case. Under mpirun only the last rank does what is asked for.
static void plant(const char *kind) {
    const int planted = 1;
    const char *text = "a", *bytes = "abc";
    if (!strcmp(kind, "fail")) {
        CHECK_EQ(planted, 2);
        CHECK_STR(text, "b");
        CHECK_BYTES(bytes, "acc", 3);
        CHECK(planted != 1);
        CHECK(planted != 1, "a message with %d", 7);
    }
    for (int i = 0; i < 1000 && !strcmp(kind, "flood"); i++) CHECK(planted != 1, "%d is wrong", i);
    if (!strcmp(kind, "require")) REQUIRE(planted != 1);
    if (!strcmp(kind, "crash")) abort();
    if (!strcmp(kind, "hang")) sleep(30);
}

static int planted_program(const char *kind, int last) {
    const int outside = !strcmp(kind, "before") || !strcmp(kind, "after");
    CASE("first good case") CHECK(1);
    if (last && !strcmp(kind, "before")) CHECK(last == 2);
    if (strcmp(kind, "none") && !outside) {
        CASE("planted") {
            if (!strcmp(kind, "leave")) break;
            if (last) plant(kind);
        }
    }
    CASE("second good case") CHECK(1);
    if (last && !strcmp(kind, "after")) CHECK(last == 2);
    return test_finish();
}

int main(int argc, char **argv) {
    self = argv[0];
    if (argc > 3 && !strcmp(argv[1], "--ranks")) {
        int rank, ranks;
        test_start_ranks(&argc, argv);
        MPI_Comm_rank(MPI_COMM_WORLD, &rank);
        MPI_Comm_size(MPI_COMM_WORLD, &ranks);
        return planted_program(argv[3], rank == ranks - 1);
    }
    test_start(&argc, argv);
    if (argc > 2) return planted_program(argv[2], 1);
    RUN(good_cases_fail);
    RUN(a_failed_check_passes);
    RUN(many_failures_flood_the_log);
    RUN(a_case_without_checks_passes);
    RUN(a_case_that_is_left_passes);
    RUN(a_check_outside_of_a_case_is_lost);
    RUN(the_program_goes_on_without_what_it_requires);
    RUN(a_crash_hides_its_case);
    RUN(a_word_selects_other_cases);
    RUN(ranks_pass_alone);
    RUN(a_lost_rank_is_waited_for);
    return test_finish();
}
