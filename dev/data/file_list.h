// The files that a pattern names: the one of exactly this name, if there is one ("a[1].txt" is found so), else those
// that match it as in the shell, ~ included, in the order of their names. Where the shell silently leaves out
// what is in a directory that cannot be read, this is an error.
#ifndef DEV_DATA_FILE_LIST_H
#define DEV_DATA_FILE_LIST_H

#include <glob.h>

#ifdef __cplusplus
extern "C" {
#endif

// Finds at least one file; free *files with globfree, also after a failure. Returns 0, or -1 and a message.
int file_list(const char *pattern, glob_t *files, char err[512]);

// Compares the files of two patterns, by device and inode: names and links do not count. Returns 1 if they are the same
// in the same order; 0 if they have none in common; -1 and a message if only some are the same, or on an error.
int file_lists_same(const char *a, const char *b, char err[512]);

#ifdef __cplusplus
}
#endif
#endif
