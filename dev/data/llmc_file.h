// What all binary files of llm.c have in common: a header of 256 int32, little-endian like every machine this runs on,
// of which word 0 is a magic number and word 1 a version. The meaning of the other words depends on the format:
//
//     model file  dev/gpt2/model_file.c    token shard  dev/data/dataloader.c    tokenizer  dev/data/tokenizer.c
#ifndef DEV_DATA_LLMC_FILE_H
#define DEV_DATA_LLMC_FILE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#define LLMC_HEADER_WORDS 256
#define LLMC_HEADER_BYTES 1024

// Opens a regular file for reading. A pipe, a device or a directory is an error at once; a pipe would wait for ever.
// Returns a descriptor, or -1 and a message that names the file.
int llmc_open(const char *path, char *err, size_t err_bytes);

// What a file that is not a regular one is: "a directory".
const char *llmc_kind_of_file(mode_t mode);

// Reads the header. Of a shorter file, reads what there is and sets the rest to 0. Returns the number of bytes read, or
// -1 and errno.
int llmc_read_header(int fd, int32_t header[LLMC_HEADER_WORDS]);

// Reads exactly `bytes` at `offset`. Returns 0, or -1 and errno (ENODATA: the file ends before).
int llmc_read_at(int fd, void *out, size_t bytes, size_t offset);

#ifdef __cplusplus
}
#endif
#endif
