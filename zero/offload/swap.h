// swap.h: records on a disk that pass through a ring of buffers in memory, in both directions at a time: ZeRO-Infinity
// (Rajbhandari et al., SC 2021) without a copy of the state in memory.
//
// While the caller works on a record, the next ones are read and earlier ones are written:
//
//     buffer 0   ... write r-2 |  read r+1 ...........  | work on r+1 | write
//     buffer 1     work on r-1 |  write r-1 ........... | read r+2 ...
//     buffer 2     read r      |  work on r             | write r ...
//
//              zero_swap_prefetch                zero_swap_acquire            zero_swap_release(changed)
//       EMPTY --------------------> READING ----------------------> HELD -----------------------------> WRITING
//         ^                                  waits for the read       ^                                    |
//         |  taken for another record                                 |  acquired again                    | it ends
//         +---------------------------------- CLEAN ------------------+                                    |
//                                               ^----------------------------------------------------------+
//                                                                                 (EMPTY with config.forget)
//
// The file has no name, so nothing is left of it however the process ends. Its space is reserved when it is created: a
// disk that is too small is noticed then. It goes past the page cache (O_DIRECT) where the file system can. Errors
// stay: after the first one every call fails, and zero_swap_error names the directory. A zero_swap belongs to one
// thread.
#ifndef ZERO_OFFLOAD_SWAP_H
#define ZERO_OFFLOAD_SWAP_H
#include <stddef.h>
#include <stdint.h>
#include "zero/offload/aio.h"
#ifdef __cplusplus
extern "C" {
#endif

typedef struct zero_swap zero_swap;

typedef struct zero_swap_config {
    const char *directory;            // on the disk
    const size_t *bytes;              // [num_records], of each; copied
    size_t num_records, num_buffers;  // at least one buffer more than records are held at a time
    const zero_aio_backend *backend;  // NULL: io_uring if the system and this build have it, else threads
    int forget;                       // 1: a record that was released is read again when it is acquired again, so that
                                      // what is read does not depend on how many buffers there are
} zero_swap_config;

// Bytes of all buffers, and of the file: records are rounded up to ZERO_AIO_ALIGN.
size_t zero_swap_buffer_bytes(const size_t *bytes, size_t num_records, size_t num_buffers);
size_t zero_swap_file_bytes(const size_t *bytes, size_t num_records);

// Creates a file of records that are zero. Returns NULL and a message.
zero_swap *zero_swap_create(const zero_swap_config *config, char *err, size_t err_bytes);
void zero_swap_destroy(zero_swap *s);  // the file too; NULL is fine

// Begins to read a record that is acquired soon, unless it is in memory. Returns 0, or -1.
int zero_swap_prefetch(zero_swap *s, size_t record);

// Returns the record's memory, aligned to ZERO_AIO_ALIGN, or NULL after an error. Until it is released it must not be
// acquired again. A child of fork has none of this memory.
void *zero_swap_acquire(zero_swap *s, size_t record);

// changed = 1: begins to write the record. Returns 0, or -1.
int zero_swap_release(zero_swap *s, size_t record, int changed);

const char *zero_swap_error(const zero_swap *s);        // "" or why it has failed
const char *zero_swap_description(const zero_swap *s);  // "io_uring, O_DIRECT"

// All buffers in a row, to be registered with a device.
void *zero_swap_memory(const zero_swap *s, size_t *bytes);

// Since it was created.
typedef struct zero_swap_traffic {
    uint64_t read, written;  // bytes
    double waited_s;         // how long calls waited for the disk
} zero_swap_traffic;
zero_swap_traffic zero_swap_get_traffic(const zero_swap *s);

#ifdef __cplusplus
}
#endif
#endif
