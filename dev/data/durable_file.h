// Files that are complete or absent, whatever happens while they are written:
//
//     durable_create(temporary)            in full length, so that a full disk is noticed at once
//     durable_write ..., durable_close     to the disk
//     durable_publish(temporary, path)     renames, and flushes the directory
//
// A temporary name must not exist before: nothing is opened that somebody else has made, and no link is followed.
// Functions return 0, or -1 and a message that names the file and the remedy; a temporary file that has failed is
// removed by create, close and publish.
#ifndef DEV_DATA_DURABLE_FILE_H
#define DEV_DATA_DURABLE_FILE_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DURABLE_MAKE_ROOM "make room, or choose another directory"  // the remedy when a disk is full

int durable_create(const char *temporary, size_t bytes, int *fd, char *err, size_t err_bytes);
// Opens what another rank has created, for reading and writing.
int durable_open(const char *temporary, int *fd, char *err, size_t err_bytes);
// path: the file's name now; large pieces are written by a descriptor of their own. Several threads may write by one
// fd.
int durable_write(int fd, const char *path, const void *from, size_t bytes, size_t offset, char *err, size_t err_bytes);
int durable_close(int fd, const char *temporary, char *err, size_t err_bytes);
int durable_publish(const char *temporary, const char *path, char *err, size_t err_bytes);
// All of these for a small file. If it fails nothing is left of it.
int durable_write_bytes(const char *temporary, const char *path, const void *bytes, size_t n, char *err,
                        size_t err_bytes);
int durable_write_text(const char *temporary, const char *path, const char *text, char *err, size_t err_bytes);

// Flushes the directory of a path.
int durable_flush_directory(const char *path, char *err, size_t err_bytes);

#ifdef __cplusplus
}
#endif
#endif
