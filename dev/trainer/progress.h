// On a terminal: a line below the output that says how much of the run is done, and when it will end. It is replaced by
// whatever is printed next. Elsewhere nothing is printed. Rank 0 only; nothing here communicates or exits.
#ifndef TRAINER_PROGRESS_H
#define TRAINER_PROGRESS_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

// Writes the line: done steps of those from first to steps have been taken, in so many seconds without the first of
// them. Nothing after the first step, whose time says little, and after the last.
void progress_show(size_t first, size_t done, size_t steps, double seconds);

// Removes it, before something else is printed.
void progress_clear(void);

// What progress_show writes, without control characters; now: in seconds since 1970. Returns its length, 0: nothing.
int progress_text(char *out, size_t bytes, size_t first, size_t done, size_t steps, double seconds, long now);

#ifdef __cplusplus
}
#endif
#endif
