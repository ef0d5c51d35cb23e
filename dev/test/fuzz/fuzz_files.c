// fuzz_files.c: do parsers of files believe what they read? Feeds them mutated files, under AddressSanitizer and UBSan.
//
//     make fuzz SECONDS=600                  a third of the time for all formats together; another seed each time
//     fuzz_files [--seconds S] [--seed N] [--case FORMAT]
//
// A format is a function that writes a good file, of one of a few kinds, and one that parses a file and checks what is
// promised: a refusal has a message, what was accepted can be read. A crash, a failed check or 20 s without an end
// leaves the file in build/fuzz and fails the case. To repeat it: fuzz_files --file build/fuzz/failed_FORMAT --case
// FORMAT.
//
// Built with clang, the mutations are libFuzzer's, guided by coverage, and differ between two runs; else they are those
// below, the same for a seed. The format "planted" has a fault; it runs only by name, and tests the fuzzer.
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "test/fuzz/formats.h"

// A header must not make a parser allocate more than such small files can need: the largest is for 2^24 tokens.
const char *__asan_default_options(void);
const char *__asan_default_options(void) { return "max_allocation_size_mb=256"; }

static char work[256], file[300];  // a temporary directory, and the file in it that is parsed
static const Format *format;

static void write_bytes(const char *path, const uint8_t *bytes, size_t n) {
    FILE *f = fopen(path, "wb");
    if (f == NULL || fwrite(bytes, 1, n, f) != n || fclose(f) != 0) {
        perror(path);
        _exit(EXIT_FAILURE);
    }
}

static int parse(const uint8_t *bytes, size_t n) {
    alarm(20);
    write_bytes(file, bytes, n);
    format->parse(work, file);
    return 0;
}

// ---------------------------------------------------------------------------------------------------------------------
// Mutations.

#ifdef LIBFUZZER

int LLVMFuzzerRunDriver(int *argc, char ***argv, int (*callback)(const uint8_t *, size_t));

static void mutate_for(long seconds, unsigned long long seed) {
    static char corpus[320], time_option[64], seed_option[64], length_option[64];
    static uint8_t bytes[MAX_FILE];
    snprintf(corpus, sizeof corpus, "%s/corpus_%s", work, format->name);
    mkdir(corpus, 0777);
    for (unsigned kind = 0; kind < format->kinds; kind++) {
        char name[400];
        snprintf(name, sizeof name, "%s/%u", corpus, kind);
        const size_t n = format->write(bytes, kind);
        write_bytes(name, bytes, n);
        parse(bytes, n);
    }
    snprintf(time_option, sizeof time_option, "-max_total_time=%ld", seconds);
    snprintf(seed_option, sizeof seed_option, "-seed=%llu", seed % 4294967295 + 1);
    snprintf(length_option, sizeof length_option, "-max_len=%d", MAX_FILE);
    char *all[] = { "fuzz_files",
                    corpus,
                    time_option,
                    seed_option,
                    length_option,
                    "-verbosity=0",
                    "-print_final_stats=1",
                    "-artifact_prefix=build/fuzz/",
                    NULL };
    int n = sizeof all / sizeof *all - 1;
    char **list = all;
    LLVMFuzzerRunDriver(&n, &list, parse);
}

#else

static uint64_t state;

static uint64_t draw(uint64_t below) {  // splitmix64
    uint64_t x = state += 0x9e3779b97f4a7c15;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return (x ^ x >> 31) % below;
}

// Changes a few bytes, words or digits, cuts, doubles or moves a part. Headers are short and decide most.
static size_t mutate(uint8_t *bytes, size_t n) {
    static const uint64_t odd[] = { 0,
                                    1,
                                    2,
                                    127,
                                    128,
                                    255,
                                    256,
                                    32767,
                                    65535,
                                    65536,
                                    0x7fffffff,
                                    0x80000000,
                                    0xffffffff,
                                    0x100000000,
                                    0x7fffffffffffffff,
                                    0xffffffffffffffff };
    for (uint64_t times = 1 + draw(4); times > 0 && n > 0; times--) {
        const size_t at = draw(draw(2) ? n : n < 64 ? n : 64), left = n - at, size = left < 8 ? left : 1 + draw(8);
        const uint64_t word = draw(2) ? odd[draw(sizeof odd / sizeof *odd)] : draw(UINT64_MAX);
        const size_t from = draw(n), room = MAX_FILE - n, part = 1 + draw(n - from);
        switch (draw(8)) {
        case 0: bytes[at] ^= (uint8_t)(1 << draw(8)); break;
        case 1: memcpy(bytes + at, &word, size); break;
        case 2: bytes[at] = (uint8_t)('0' + draw(10)); break;
        case 3: bytes[at] = (uint8_t) "-+. \n\0xe9"[draw(9)]; break;
        case 4: n = at; break;
        case 5: memmove(bytes + at, bytes + from, part < left ? part : left); break;
        case 6:  // insert
            if (part > room) break;
            memmove(bytes + at + part, bytes + at, left);
            memmove(bytes + at, bytes + (from < at ? from : from + part < n + part ? from : at), part);
            n += part;
            break;
        case 7:  // remove
            memmove(bytes + at, bytes + at + (part < left ? part : left), left - (part < left ? part : left));
            n -= part < left ? part : left;
            break;
        }
    }
    return n;
}

static void mutate_for(long seconds, unsigned long long seed) {
    static uint8_t bytes[MAX_FILE];
    const time_t end = time(NULL) + seconds;
    unsigned long long n = 0;
    state = seed;
    for (unsigned kind = 0; kind < format->kinds; kind++) parse(bytes, format->write(bytes, kind));
    for (; time(NULL) < end; n++) parse(bytes, mutate(bytes, format->write(bytes, (unsigned)draw(format->kinds))));
    printf("%s: %llu files\n", format->name, n);
}

#endif

// ---------------------------------------------------------------------------------------------------------------------
// Cases.

static int keep_file(void) {
    static uint8_t bytes[MAX_FILE];
    char kept[300];
    snprintf(kept, sizeof kept, "build/fuzz/failed_%s", format->name);
    FILE *f = fopen(file, "rb");
    const size_t n = f != NULL ? fread(bytes, 1, sizeof bytes, f) : 0;
    if (f != NULL) fclose(f);
    write_bytes(kept, bytes, n);
    return printf("FAIL  %s: repeat it with: fuzz_files --case %s --file %s\n", format->name, format->name, kept);
}

// In a process of its own. Returns 1 if it has failed.
static int run(long seconds, unsigned long long seed, const char *given) {
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        static uint8_t bytes[MAX_FILE];
        FILE *f = given != NULL ? fopen(given, "rb") : NULL;
        if (f != NULL) parse(bytes, fread(bytes, 1, sizeof bytes, f));
        if (given == NULL) mutate_for(seconds, seed);
        fflush(stdout);
        _exit(given != NULL && f == NULL);
    }
    int status = -1;
    waitpid(child, &status, 0);
    if (status != 0) keep_file();
    if (status == 0) printf("ok    %s\n", format->name);
    return status != 0;
}

static int is_selected(const char *word) {
    return word != NULL ? strstr(format->name, word) != NULL : strcmp(format->name, "planted") != 0;
}

int main(int argc, char **argv) {
    const char *only = NULL, *given = NULL;
    unsigned long long seed = (unsigned long long)time(NULL);
    long seconds = 10;
    for (int i = 1; i < argc; i += 2) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (value != NULL && strcmp(argv[i], "--seconds") == 0)
            seconds = atol(value);
        else if (value != NULL && strcmp(argv[i], "--seed") == 0)
            seed = strtoull(value, NULL, 10);
        else if (value != NULL && strcmp(argv[i], "--case") == 0)
            only = value;
        else if (value != NULL && strcmp(argv[i], "--file") == 0)
            given = value;
        else
            return fprintf(stderr, "usage: fuzz_files [--seconds S] [--seed N] [--case FORMAT [--file FILE]]\n"), 2;
    }
    const char *base = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";  // ten times as fast
    snprintf(work, sizeof work, "%s/fuzz_files.XXXXXX", base);
    if (mkdtemp(work) == NULL) return perror(work), EXIT_FAILURE;
    snprintf(file, sizeof file, "%s/file", work);
    int passed = 0, failed = 0, selected = 0;
    for (format = formats; format->name != NULL; format++) selected += is_selected(only);
    mkdir("build", 0777);
    mkdir("build/fuzz", 0777);
    printf("fuzz_files: seed %llu, %ld s\n", seed, seconds);
    for (format = formats; format->name != NULL; format++) {
        if (!is_selected(only)) continue;
        const int wrong = run(seconds > selected ? seconds / selected : 1, seed, given);
        passed += !wrong;
        failed += wrong;
    }
    char command[300];
    snprintf(command, sizeof command, "rm -rf '%s'", work);
    if (system(command) != 0) perror(work);
    if (only != NULL && passed + failed == 0) printf("no case has \"%s\" in its name\n", only);
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0 || passed == 0;
}
