// Is a person looking? Started by hand, standard output says so. Under mpirun it says nothing: Open MPI gives each rank
// a terminal of its own, also if mpirun's output goes to a file, and other launchers give it a pipe. There rank 0's
// parent is asked, if that is the launcher: whether its standard output is the terminal that controls this process,
// too. A rank on another host, or behind a wrapper script, finds something else there, and prints no line.
#include "trainer/progress.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "trainer/environment.h"

static int parent_writes_to_our_terminal(void) {
    char path[64], text[1024];
    int terminal = 0;
    struct stat st;
    FILE *f = fopen("/proc/self/stat", "r");
    text[f != NULL ? fread(text, 1, sizeof text - 1, f) : 0] = '\0';
    if (f != NULL) fclose(f);
    const char *at = strrchr(text, ')');  // the name before it may contain blanks; then come state, parent, ...
    if (at == NULL || sscanf(at + 1, " %*c %*d %*d %*d %d", &terminal) != 1 || terminal == 0) return 0;
    snprintf(path, sizeof path, "/proc/%ld/fd/1", (long)getppid());
    return stat(path, &st) == 0 && S_ISCHR(st.st_mode) && st.st_rdev == (dev_t)terminal;
}

static int is_watched(void) {
    static int watched = -1;
    const char *kind = getenv("TERM");
    if (watched == -1)
        watched = kind != NULL && strcmp(kind, "dumb") != 0 &&
                  (environment_rank() < 0 ? isatty(STDOUT_FILENO) : parent_writes_to_our_terminal());
    return watched;
}

int progress_text(char *out, size_t bytes, size_t first, size_t done, size_t steps, double seconds, long now) {
    enum { WIDTH = 28 };
    char bar[WIDTH + 1], ends[32];
    if (done < 2 || first + done >= steps) return 0;
    const size_t full = (first + done) * WIDTH / steps;
    for (size_t i = 0; i < WIDTH; i++) bar[i] = i < full ? '#' : '.';
    bar[WIDTH] = '\0';
    const double left = seconds / (double)(done - 1) * (double)(steps - first - done);
    const long s = left < 1e8 ? (long)(left + 0.5) : 100000000;
    const time_t end = (time_t)(now + s);
    struct tm when;
    localtime_r(&end, &when);
    strftime(ends, sizeof ends, s < 20 * 3600 ? "%H:%M" : "%Y-%m-%d %H:%M", &when);
    return snprintf(out, bytes, "[%s] %zu%%  %ld:%02ld:%02ld left, ends %s", bar, (first + done) * 100 / steps,
                    s / 3600, s / 60 % 60, s % 60, ends);
}

static int shown;

void progress_show(size_t first, size_t done, size_t steps, double seconds) {
    char text[160];
    if (!is_watched() || progress_text(text, sizeof text, first, done, steps, seconds, (long)time(NULL)) <= 0) return;
    printf("%s\r", text);  // the cursor is at its beginning: the next line overwrites it
    fflush(stdout);
    shown = 1;
}

void progress_clear(void) {
    if (shown) fputs("\033[K", stdout);  // to the end of the line
    shown = 0;
}
