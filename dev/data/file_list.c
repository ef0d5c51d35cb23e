#include "data/file_list.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define FAIL(...) (snprintf(err, 512, __VA_ARGS__), -1)

// glob tells nobody about names that it cannot look up; so it gets its functions from here. The first failure that does
// not mean "no such file" is kept.
static _Thread_local char trouble[300];

static void note_trouble(const char *path) {
    if (errno == ENOENT || errno == ENOTDIR || errno == ELOOP || trouble[0] != '\0') return;
    snprintf(trouble, sizeof trouble, "%.200s: %s", path, strerror(errno));
}

static void *open_directory(const char *path) {
    DIR *d = opendir(path);
    if (d == NULL) note_trouble(path);
    return d;
}

static struct dirent *read_directory(void *d) { return readdir(d); }

static void close_directory(void *d) { closedir(d); }

static int get_status(const char *path, struct stat *st) {
    const int status = stat(path, st);
    if (status != 0) note_trouble(path);
    return status;
}

static int get_link_status(const char *path, struct stat *st) {
    const int status = lstat(path, st);
    if (status != 0) note_trouble(path);
    return status;
}

// Writes the name that glob is given: ~/ is the home directory, and in the name of a file that exists nothing is
// special. Returns glob's flags.
static int prepare(const char *pattern, char *out, size_t bytes) {
    const char *home = getenv("HOME");
    char path[4096] = "";
    struct stat st;
    size_t n = 0;
    if (strncmp(pattern, "~/", 2) == 0 && home != NULL) snprintf(path, sizeof path, "%s%s", home, pattern + 1);
    const char *literal = lstat(pattern, &st) == 0 ? pattern : path[0] != '\0' && lstat(path, &st) == 0 ? path : NULL;
    for (const char *c = literal; c != NULL && *c != '\0' && n + 3 < bytes; c++) {
        if (strchr("*?[\\", *c) != NULL) out[n++] = '\\';
        out[n++] = *c;
    }
    out[n] = '\0';
    if (literal == NULL) snprintf(out, bytes, "%s", pattern);
    return GLOB_ALTDIRFUNC | (literal == NULL ? GLOB_TILDE : 0);
}

int file_list(const char *pattern, glob_t *files, char err[512]) {
    char name[8192];
    memset(files, 0, sizeof *files);
    files->gl_opendir = open_directory;
    files->gl_readdir = read_directory;
    files->gl_closedir = close_directory;
    files->gl_stat = get_status;
    files->gl_lstat = get_link_status;
    trouble[0] = '\0';
    const int flags = prepare(pattern, name, sizeof name);
    const int status = glob(name, flags, NULL, files);
    if (status != GLOB_NOSPACE && trouble[0] != '\0')
        return FAIL("%s: make it readable, or choose other files with -i and -j", trouble);
    if (status == GLOB_NOMATCH)
        return FAIL("no file matches %.200s. Check the path (-i, -j), quote the pattern in the shell, or prepare the "
                    "data (see dev/data).",
                    pattern);
    if (status != 0)
        return FAIL("%.200s: cannot list the files (%s)", pattern,
                    status == GLOB_NOSPACE ? "out of memory" : "read error");
    return 0;
}

typedef struct {
    dev_t device;
    ino_t inode;
} FileId;

// Returns the ids of the files, to be freed, or NULL and a message.
static FileId *file_ids(const glob_t *files, char err[512]) {
    FileId *ids = calloc(files->gl_pathc, sizeof *ids);
    for (size_t i = 0; i < files->gl_pathc && ids != NULL; i++) {
        struct stat st;
        if (stat(files->gl_pathv[i], &st) != 0) {
            (void)FAIL("%.200s: %s", files->gl_pathv[i], strerror(errno));
            free(ids);
            return NULL;
        }
        ids[i] = (FileId){ st.st_dev, st.st_ino };
    }
    if (ids == NULL) (void)FAIL("out of memory for the names of %zu files", files->gl_pathc);
    return ids;
}

static int same_file(FileId a, FileId b) { return a.device == b.device && a.inode == b.inode; }

int file_lists_same(const char *a, const char *b, char err[512]) {
    glob_t A = { 0 }, B = { 0 };
    FileId *of_a = file_list(a, &A, err) == 0 ? file_ids(&A, err) : NULL;
    FileId *of_b = of_a != NULL && file_list(b, &B, err) == 0 ? file_ids(&B, err) : NULL;
    int same = of_a != NULL && of_b != NULL ? A.gl_pathc == B.gl_pathc : -1;
    for (size_t i = 0; same == 1 && i < A.gl_pathc; i++) same = same_file(of_a[i], of_b[i]);
    for (size_t i = 0; same == 0 && i < A.gl_pathc * B.gl_pathc; i++) {
        const size_t j = i / B.gl_pathc, k = i % B.gl_pathc;
        if (same_file(of_a[j], of_b[k]))
            same = FAIL("%.150s (-i) and %.150s (-j) are the same file, but not all others are: leave it out of one of "
                        "them, or leave out -j, which takes the last tenth of each file",
                        A.gl_pathv[j], B.gl_pathv[k]);
    }
    free(of_a);
    free(of_b);
    globfree(&A);
    globfree(&B);
    return same;
}
