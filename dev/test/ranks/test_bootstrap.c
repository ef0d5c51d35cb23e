// test_bootstrap.c: do ranks of one run find each other, and no others, and does each failure end in time?
//
//     test_bootstrap tcp|fs [SEED]        starts its ranks itself, as processes without MPI
//     mpirun -n 3 test_bootstrap mpi      the same of ranks that MPI has introduced
//
// A rank is a process that meets the others, gathers a few times, checks every byte, and says "ok" or its error in a
// pipe. What it gathers has the number of the run in it, so messages of earlier runs would be seen. The
// seed is printed.
#include "test/ranks/bootstrap_jobs.h"

// ---- cases of tcp and fs --------------------------------------------------------------------------------------------

static void any_number_of_ranks_meets(const char *way) {
    static const int RANKS[] = { 1, 2, 3, 5, 8 };
    for (int i = 0; i < 5; i++) {
        Job j;
        start_ranks(&j, (Rank){ way, new_server(way), NULL, 0, RANKS[i], 10 + i, PATIENT, -1, -1, 0 });
        CHECK_ALL_OK(&j);
    }
    if (!strcmp(way, "fs")) CHECK(files(1) == 0, "files are left");
}

static void late_ranks_are_waited_for(const char *way) {
    for (int late = 0; late < 3; late++) {
        Job j = { .count = 0 };
        Rank r = { way, new_server(way), NULL, 0, 3, late, PATIENT, -1, -1, 0 };
        for (int i = 1; i <= 3; i++) {
            r.rank = (late + i) % 3;
            if (i == 3) sleep_ms(150);
            start(&j, r);
        }
        CHECK_ALL_OK(&j);
    }
}

static void empty_messages_are_messages(const char *way) {
    Job j;
    start_ranks(&j, (Rank){ way, new_server(way), NULL, 0, 8, 0, PATIENT, -1, -1, 100 });
    CHECK_ALL_OK(&j);
}

static void restarts_do_not_mix(const char *way) {
    const char *server = new_server(way);
    for (int run = 0; run < 100 && !test_failed(); run++) {
        Job j;
        start_ranks(&j, (Rank){ way, server, NULL, 0, 2, run, PATIENT, -1, -1, 0 });
        CHECK_ALL_OK(&j);
    }
    if (!strcmp(way, "fs")) CHECK(files(1) == 0, "files are left");
}

static void killed_runs_leave_nothing_that_confuses(const char *way) {
    const char *server = new_server(way);
    int killed = 0;
    for (int run = 0; run < 80 && !test_failed(); run++) {
        Job j;
        start_ranks(&j, (Rank){ way, server, NULL, 0, 3, run, PATIENT, -1, -1, 0 });
        sleep_ms(below(2000) / 100.0);
        for (int i = 0; i < 3; i++) {
            kill(j.pid[i], SIGKILL);
            if (below(2)) sleep_ms(below(200) / 100.0);
        }
        killed += 3 - finish(&j);
        if (run % 4 != 3) continue;  // now and then only after several
        start_ranks(&j, (Rank){ way, server, NULL, 0, 3, run + 100, PATIENT, -1, -1, 0 });
        CHECK_ALL_OK(&j);
    }
    CHECK(killed > 40, "hardly a run was killed before its end");
    files(1);
}

static void planted_files_are_not_believed(void) {
    Job j;
    char path[200];
    static const char *const NAMES[] = { "hello-0", "hello-1", "hello-2", "answer" };
    for (int kind = 0; kind < 2; kind++) {
        for (int i = 0; i < 4; i++) {
            snprintf(path, sizeof path, "%s/zero-meet-%016x-%s", directory, 0, NAMES[i]);
            FILE *f = fopen(path, "w");
            for (int c = 0; c < 200 * kind; c++) fputc("zero-f1"[c % 7], f);
            fclose(f);
        }
        start_ranks(&j, (Rank){ "fs", directory, NULL, 0, 3, kind, PATIENT, -1, -1, 0 });
        CHECK_ALL_OK(&j);
        CHECK(files(1) == 0, "files are left");
    }
}

// Files that are old and have our prefix: one of a user, and one that a run of ours has left.
static void only_files_of_runs_are_removed(void) {
    Job j;
    char user[200], ours[200];
    static const char left[24] = "zero-f1", text[24] = "a text of a user";
    const struct timespec old[2] = { { .tv_sec = 1000000000 }, { .tv_sec = 1000000000 } };
    snprintf(user, sizeof user, "%s/zero-meet-x", directory);
    snprintf(ours, sizeof ours, "%s/zero-meet-y", directory);
    for (int i = 0; i < 2; i++) {
        FILE *f = fopen(i ? ours : user, "w");
        fwrite(i ? left : text, 1, sizeof left, f);
        fclose(f);
        CHECK(utimensat(AT_FDCWD, i ? ours : user, old, 0) == 0, "the time cannot be set");
    }
    start_ranks(&j, (Rank){ "fs", directory, NULL, 0, 2, 0, PATIENT, -1, -1, 0 });
    CHECK_ALL_OK(&j);
    CHECK(access(user, F_OK) == 0, "a user's file was removed");
    CHECK(access(ours, F_OK) != 0, "an old file of a run is left");
    unlink(user);
}

static void missing_ranks_are_named(const char *way) {
    Job missing_2 = { .count = 0 }, missing_0 = { .count = 0 }, leaves = { .count = 0 };
    Rank r = { way, new_server(way), "a", 0, 3, 0, brief, -1, -1, 0 };
    for (int i = 0; i < 2; i++) r.rank = i, start(&missing_2, r);
    r.server = new_server(way), r.job = "b";
    for (int i = 1; i < 3; i++) r.rank = i, start(&missing_0, r);
    r.server = new_server(way), r.job = "c";
    for (int i = 0; i < 3; i++) r.rank = i, r.leave_at = i == 1 ? 2 : -1, start(&leaves, r);
    CHECK(finish(&missing_2) == 0 && finish(&missing_0) == 0 && finish(&leaves) == 0,
          "a run without all its ranks succeeds");
    for (int i = 0; i < 2; i++) CHECK_SAYS(&missing_2, i, "rank 2 has not come");
    CHECK_SAYS(&missing_2, 1, "rank 1 of 3: rank 0");
    for (int i = 0; i < 2; i++) CHECK_SAYS(&missing_0, i, "rank 0 ");
    for (int i = 0; i < 2; i++) CHECK_SAYS(&missing_0, i, "timeout_s");
    CHECK_SAYS(&leaves, 0, "rank 1 ");
    CHECK_SAYS(&leaves, 2, "rank 1 ");
    files(1);
}

// Two ranks wait for the third, and are stopped for longer than the time-out: that time does not count.
static void suspended_time_does_not_count(const char *way) {
    Job j = { .count = 0 };
    const double timeout_s = fmax(2, brief);
    Rank r = { way, new_server(way), NULL, 0, 3, 0, timeout_s, -1, -1, 0 };
    for (int i = 0; i < 2; i++) r.rank = i, start(&j, r);
    sleep_ms(200);
    for (int i = 0; i < 2; i++) kill(j.pid[i], SIGSTOP);
    sleep_ms(1000 * timeout_s + 500);
    for (int i = 0; i < 2; i++) kill(j.pid[i], SIGCONT);
    r.rank = 2, start(&j, r);
    CHECK_ALL_OK(&j);
}

static void second_ranks_are_refused(const char *way) {
    Job j = { .count = 0 };
    Rank r = { way, new_server(way), NULL, 0, 3, 0, PATIENT, -1, -1, 0 };
    static const int RANKS[] = { 0, 1, 1, 2 };
    for (int i = 0; i < 4; i++) {
        r.rank = RANKS[i];
        if (i == 3) wait_for_words(&j, 1, 2);
        start(&j, r);
    }
    CHECK(finish(&j) == 3, "not exactly one was refused");
    CHECK(!strcmp(j.said[0], "ok") && !strcmp(j.said[3], "ok"), "one that is right was refused");
    const int refused = !strcmp(j.said[1], "ok") ? 2 : 1;
    CHECK_SAYS(&j, refused, "a rank of its own (zero_bootstrap_config.rank)");
    files(1);
}

static void wrong_numbers_are_told(const char *way) {
    Job few = { .count = 0 }, many = { .count = 0 }, impossible = { .count = 0 };
    Rank r = { way, new_server(way), "d", 0, 3, 0, brief, -1, -1, 0 };
    for (int i = 0; i < 3; i++) r.rank = i, r.ranks = i == 2 ? 4 : 3, start(&few, r);
    r.server = new_server(way), r.job = "e";
    // those who are right may be done before he comes
    for (int i = 0; i < 3; i++) r.rank = i == 2 ? 4 : i, r.ranks = i == 2 ? 5 : 2, start(&many, r);
    r.rank = 3, r.ranks = 3, start(&impossible, r);
    CHECK(finish(&few) == 0 && finish(&many) == 2 && finish(&impossible) == 0,
          "a wrong number was accepted, or a right one was not");
    for (int i = 0; i < 2; i++) {
        CHECK_SAYS(&few, i, "rank 2 has not come");
        CHECK_SAYS(&few, i, "rank 2 ");
        CHECK_SAYS(&few, i, "of 4");
    }
    CHECK_SAYS(&few, 2, "of 3");
    CHECK_SAYS(&few, 2, "zero_bootstrap_config.ranks");
    CHECK_SAYS(&many, 2, "rank 0");
    CHECK_SAYS(&impossible, 0, "no such rank");
    files(1);
}

static void other_paths_are_told(const char *way) {
    Job j = { .count = 0 };
    Rank r = { way, new_server(way), NULL, 0, 3, 0, PATIENT, -1, -1, 0 };
    for (int i = 0; i < 3; i++) r.rank = i, r.wrong_at = i == 1 ? 1 : -1, start(&j, r);
    CHECK(finish(&j) == 0, "an all-gather of different sizes succeeds");
    for (int i = 0; i < 3; i++) CHECK_SAYS(&j, i, "the ranks disagree: rank 1");
    files(1);
}

static void jobs_at_one_place_do_not_mix(const char *way) {
    Job a = { .count = 0 }, b;
    Rank r = { way, new_server(way), "first", 0, 3, 1, PATIENT, -1, -1, 0 }, other = r;
    other.job = "second", other.run = 2;
    for (int i = 0; i < 2; i++) r.rank = i, start(&a, r);
    sleep_ms(50);
    start_ranks(&b, other);
    sleep_ms(100);
    r.rank = 2, start(&a, r);
    CHECK_ALL_OK(&a);
    CHECK_ALL_OK(&b);
    if (!strcmp(way, "fs")) CHECK(files(1) == 0, "files are left");
}

// That no machine with this address has a rank 0.
static int rank_1_cannot_know(const char *word) { return strstr(word, "has to run on the machine") != NULL; }

static void mistakes_are_told(void) {
    static const struct {
        const char *way, *server, *word;
    } WRONG[] = {
        { "tcp", "", "no address" },
        { "tcp", ":20000", "no address" },
        { "tcp", "127.0.0.1:0", "from 1 to 65535" },
        { "tcp", "127.0.0.1:70000", "from 1 to 65535" },
        { "tcp", "127.0.0.1:20x", "no address" },
        { "tcp", "[::1", "no address" },
        { "tcp", "[::1]x", "no address" },
        { "tcp", "192.0.2.1:20300", "rank 0 has to run on the machine" },
        { "tcp", "no.such.host.invalid", "no.such.host.invalid" },
        { "fs", "/no/such/directory", "/no/such/directory: No such file" },
        { "fs", "/proc", "cannot be written" },
    };
    for (size_t i = 0; i < sizeof WRONG / sizeof WRONG[0]; i++) {
        Job j = { .count = 0 };
        for (int rank = 0; rank < 2; rank++)
            start(&j, (Rank){ WRONG[i].way, WRONG[i].server, NULL, rank, 2, 0, 0.3, -1, -1, 0 });
        finish(&j);
        CHECK_SAYS(&j, 0, WRONG[i].word);
        CHECK_SAYS(&j, 1, rank_1_cannot_know(WRONG[i].word) ? "rank 0 was not found" : WRONG[i].word);
    }
}

static void strangers_keep_nobody_waiting(void) {
    enum { MANY = 150 };
    static const char *const SPEECH[] = { "", "GET / HTTP/1.1\r\n\r\n", "zero", "zero.c1\0\1\0\0\0",
                                          "\377\377\377\377\377\377\377\377\377\377\377\377" };
    static const size_t LENGTH[] = { 0, 18, 4, 12, 12 };
    Job j = { .count = 0 };
    int fds[MANY], count = 0;
    Rank r = { "tcp", new_server("tcp"), NULL, 0, 3, 0, PATIENT, -1, -1, 0 };
    start(&j, r);
    r.rank = 1, start(&j, r);
    for (int i = 0; i < 3000 && (fds[0] = stranger(r.server, 0)) < 0; i++) sleep_ms(10);
    CHECK(fds[0] >= 0, "rank 0 does not listen");
    for (count = 1; count < MANY && (fds[count] = stranger(r.server, 0)) >= 0; count++)
        if (send(fds[count], SPEECH[count % 5], LENGTH[count % 5], MSG_NOSIGNAL) < 0 || count % 7 == 0)
            shutdown(fds[count], SHUT_RDWR);
    CHECK(count == MANY, "not all strangers could connect");
    r.rank = 2, start(&j, r);
    CHECK_ALL_OK(&j);
    for (int i = 0; i < count; i++) close(fds[i]);
}

static void other_programs_are_not_rank_0(void) {
    Job j = { .count = 0 };
    char nonsense[4096];
    memset(nonsense, 'x', sizeof nonsense);
    Rank r = { "tcp", new_server("tcp"), NULL, 1, 2, 0, 0.5, -1, -1, 0 };
    const int listening = stranger(r.server, 1);
    start(&j, r);
    const int call = accept(listening, NULL, NULL);
    CHECK(call >= 0 && send(call, nonsense, sizeof nonsense, MSG_NOSIGNAL) > 0, "nobody called");
    close(call);
    close(listening);
    finish(&j);
    CHECK_SAYS(&j, 0, "rank 0 was not found at 127.0.0.1");
}

// Rank 0 waits for rank 1; what listens in its place is told, and does not wait.
static void taken_addresses_are_told(void) {
    Job first = { .count = 0 }, second = { .count = 0 };
    char hello[64], nonsense[4096];
    memset(nonsense, 'x', sizeof nonsense);
    Rank r = { "tcp", new_server("tcp"), NULL, 0, 2, 0, PATIENT, -1, -1, 0 };
    start(&first, r);
    int fd = -1;
    for (int i = 0; i < 3000 && (fd = stranger(r.server, 0)) < 0; i++) sleep_ms(10);
    close(fd);
    start(&second, r);
    finish(&second);
    CHECK_SAYS(&second, 0, "another rank 0 or program listens there: give each run a port of its own");
    r.rank = 1, start(&first, r);  // in time: the second one has not waited for long
    CHECK_ALL_OK(&first);

    r.server = new_server("tcp"), r.rank = 0, second.count = 0;
    const int listening = stranger(r.server, 1);
    start(&second, r);
    const int call = accept(listening, NULL, NULL);
    CHECK(call >= 0 && recv(call, hello, sizeof hello, 0) > 0 && send(call, nonsense, sizeof nonsense, 0) > 0,
          "nobody called");
    finish(&second);
    CHECK_SAYS(&second, 0, "another rank 0 or program listens there");
    close(call);
    close(listening);
}

static void dead_ranks_may_come_again(void) {
    Job j = { .count = 0 };
    for (int way = 0; way < 2; way++) {
        Rank r = { way ? "fs" : "tcp", new_server(way ? "fs" : "tcp"), NULL, 0, 3, 0, PATIENT, -1, -1, 0 };
        j.count = 0;
        start(&j, r);
        r.rank = 1, start(&j, r);
        sleep_ms(150);
        kill(j.pid[1], SIGKILL);
        waitpid(j.pid[1], NULL, 0);  // its connection is closed now
        Job again = { .count = 0 };
        start(&again, r);
        r.rank = 2, start(&again, r);
        CHECK_ALL_OK(&again);
        finish(&j);
        CHECK(!strcmp(j.said[0], "ok"), "%s", j.said[0]);
    }
    files(1);
}

// ---- the trainer's start, without MPI (dev/trainer/launch.h)
// -----------------------------------------------------------------

// What rank r says of itself after a start by the flags. Rank `late` does not come to the meeting.
static const char *be_launched(const Rank *r, int per_host, int late) {
    static char words[2000];
    char err[1500], pn[16], pr[16], pg[16];
    snprintf(pn, sizeof pn, "%d", r->ranks);
    snprintf(pr, sizeof pr, "%d", r->rank);
    snprintf(pg, sizeof pg, "%d", per_host);
    char *argv[] = {
        "program", "-pi", "fs", "-pf", directory, "-pn", pn, "-pr", pr, "--timeout", "60", "-pg", pg, NULL
    };
    int argc = per_host < 0 ? 11 : 13;
    const OptionsBuild build = { 0 };
    Options o;
    if (options_parse(&o, &build, argc, argv, err, sizeof err)) return strcpy(words, err);
    if (launch_begin(&o, 0, NULL, NULL, err, sizeof err) != r->ranks || launch_connect(&o, err, sizeof err))
        return strcpy(words, err);
    const Launch *l = launch();
    if (l->mpi || launch_bootstrap() == NULL) return "there is MPI, or no bootstrap";
    int together = -1;
    if (r->rank != late)
        together = launch_together(late < 0 ? PATIENT : brief, err, sizeof err);
    else
        sleep_ms(2000 * brief);
    if (together == 0 && strstr(err, "rank 1 has not come") == NULL)
        return strcpy(words, err[0] ? err : "it is not said who is missing");
    snprintf(words, sizeof words, "rank %d of %d, %d of %d here, together %d", l->rank, l->ranks, l->local_rank,
             l->local_ranks, together);
    launch_end();
    return words;
}

static void trainers_start_without_mpi(void) {
    static const struct {
        int per_host, late;
        const char *says[3];
    } CASES[] = {
        { -1,
          -1,
          { "rank 0 of 3, 0 of 3 here, together 1", "rank 1 of 3, 1 of 3 here, together 1",
            "rank 2 of 3, 2 of 3 here, together 1" } },
        { 2,
          -1,
          { "rank 0 of 3, 0 of 2 here, together 1", "rank 1 of 3, 1 of 2 here, together 1",
            "rank 2 of 3, 0 of 1 here, together 1" } },
        { -1, 1, { "rank 0 of 3, 0 of 3 here, together 0", "together -1", "rank 2 of 3, 2 of 3 here, together 0" } },
    };
    for (size_t c = 0; c < sizeof CASES / sizeof CASES[0]; c++) {
        Job j = { .count = 0 };
        for (int i = 0; i < 3; i++)
            start_as(&j, (Rank){ "fs", directory, NULL, i, 3, 0, 20, -1, -1, 0 }, 1, CASES[c].per_host, CASES[c].late);
        finish(&j);
        for (int i = 0; i < 3; i++) CHECK_SAYS(&j, i, CASES[c].says[i]);
        files(1);
    }
}

// ---- MPI ------------------------------------------------------------------------------------------------------------

static void mpi_ranks_meet(Rank r) {
    zero_bootstrap *b;
    CHECK(zero_bootstrap_create_mpi(&b, MPI_COMM_WORLD, PATIENT) == ZERO_OK, "%s", zero_bootstrap_error(b));
    const char *wrong = gather(b, &r);
    CHECK(!wrong, "%s", wrong);
    zero_bootstrap_destroy(b);
}

// The last rank does not come; the others name it.
static void missing_mpi_ranks_are_named(Rank r) {
    zero_bootstrap *b;
    char word[32], mine = 1, all[64];
    snprintf(word, sizeof word, "rank %d has not come", r.ranks - 1);
    CHECK(zero_bootstrap_create_mpi(&b, MPI_COMM_WORLD, PATIENT) == ZERO_OK, "%s", zero_bootstrap_error(b));
    const double begin = zero_clock();
    CHECK(zero_bootstrap_allgather(b, &mine, 1, all) == ZERO_OK, "%s", zero_bootstrap_error(b));
    zero_bootstrap_set_timeout(b, fmax(0.3, fmin(20 * (zero_clock() - begin), PATIENT)));
    if (r.rank < r.ranks - 1)
        CHECK(zero_bootstrap_allgather(b, &mine, 1, all) == ZERO_ERR_COMM && strstr(zero_bootstrap_error(b), word),
              "the message is: %s", zero_bootstrap_error(b));
}

static int mpi_cases(int *argc, char **argv) {
    Rank r = { .way = "mpi", .leave_at = -1, .wrong_at = -1, .run = 7 };
    test_start_ranks(argc, argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &r.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &r.ranks);
    CASE("mpi: ranks meet") mpi_ranks_meet(r);
    CASE("mpi: who does not come is named") missing_mpi_ranks_are_named(r);
    return test_finish();
}

static void cases_of_tcp(void) {
    const int six = socket(AF_INET6, SOCK_STREAM, 0);
    const struct sockaddr_in6 a = { .sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT };
    if (six >= 0 && !bind(six, (const struct sockaddr *)&a, sizeof a)) {
        CASE("tcp6: any number of ranks meets") any_number_of_ranks_meets("tcp6");
    } else {
        printf("      tcp6: this machine has no IPv6\n");
    }
    CASE("tcp: strangers who say nothing, or nonsense, keep nobody waiting") strangers_keep_nobody_waiting();
    CASE("tcp: another program that listens is not rank 0") other_programs_are_not_rank_0();
    CASE("tcp: an address that is taken is told at once") taken_addresses_are_told();
    CASE("tcp, fs: a rank that died before all had come may come again") dead_ranks_may_come_again();
    CASE("tcp, fs: wrong addresses and directories are told") mistakes_are_told();
}

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "mpi")) return mpi_cases(&argc, argv);
    test_start(&argc, argv);
    const char *way = argc > 1 ? argv[1] : "tcp";
    dice = argc > 2 ? strtoull(argv[2], NULL, 10) : (uint64_t)time(NULL) * 1000003u + (uint64_t)getpid();
    printf("seed %llu\n", (unsigned long long)dice);
    dice = dice * 0x9e3779b97f4a7c15u + 1;
    snprintf(directory, sizeof directory, "/tmp/test_bootstrap.XXXXXX");
    REQUIRE(mkdtemp(directory) != NULL, "%s", directory);
    be_patient(way);
    CASE("%s: any number of ranks meets", way) any_number_of_ranks_meets(way);
    CASE("%s: a rank that starts late is waited for", way) late_ranks_are_waited_for(way);
    CASE("%s: messages of no bytes are messages", way) empty_messages_are_messages(way);
    CASE("%s: 100 runs, one after the other, at one place", way) restarts_do_not_mix(way);
    CASE("%s: killed runs leave nothing that confuses", way) killed_runs_leave_nothing_that_confuses(way);
    CASE("%s: who does not come is named, on all ranks, in time", way) missing_ranks_are_named(way);
    CASE("%s: time in which a rank was suspended does not count", way) suspended_time_does_not_count(way);
    CASE("%s: a second rank 1 is refused", way) second_ranks_are_refused(way);
    CASE("%s: a wrong rank or number of ranks is told", way) wrong_numbers_are_told(way);
    CASE("%s: ranks that disagree are told", way) other_paths_are_told(way);
    CASE("%s: two jobs at one place do not mix", way) jobs_at_one_place_do_not_mix(way);
    if (!strcmp(way, "tcp")) {
        cases_of_tcp();
    } else {
        CASE("fs: empty files and files of nonsense are not believed") planted_files_are_not_believed();
        CASE("fs: only files of runs are removed") only_files_of_runs_are_removed();
        CASE("fs: the trainer's start: local ranks by host and by -pg, a meeting with and without all")
            trainers_start_without_mpi();
    }
    files(1);
    rmdir(directory);
    return test_finish();
}
