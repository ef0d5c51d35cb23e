// A hash of what is in a set of files, to tell whether all ranks have the same, at a cost that does not grow with their
// size.
//
// Read are, of each file, its size and its first and last 4 KB; and 64 blocks of 4 KB spread over all files together,
// at places that follow from the sizes alone. A set of up to 256 KB is read completely. Two larger sets that differ
// only between the blocks have the same hash: a flipped bit in the middle of a large file is not noticed, another or a
// truncated file is.
#ifndef DEV_DATA_CONTENT_HASH_H
#define DEV_DATA_CONTENT_HASH_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// The names of the files do not count, their order does. Returns 0, or -1 and a message that names the file.
int content_hash(char *const *paths, size_t n, uint64_t *hash, char *err, size_t err_bytes);

#ifdef __cplusplus
}
#endif
#endif
