// Hugging Face's safetensors: one file of named tensors. It is read without trust in its header, and never as a whole.
//
//     8 bytes   N, the length of the header, little-endian
//     N bytes   JSON: {"NAME": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ..., "__metadata__": {...}}
//     the rest  the tensors; data_offsets count from here, and there is no gap
//
// Functions return 0, or -1 and a message in err that names the file and the remedy.
#ifndef DEV_DATA_SAFETENSORS_H
#define DEV_DATA_SAFETENSORS_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { SAFETENSORS_MAX_DIMS = 8 };

typedef struct SafeTensor {
    const char *name;
    const char *dtype;  // "F32"; of those, F32, BF16 and F16 can be read
    size_t element_bytes, shape[SAFETENSORS_MAX_DIMS], dims, numel;
    size_t begin;  // byte in the file
} SafeTensor;

typedef struct SafeTensors {
    int fd;  // -1: not open
    char path[4096];
    SafeTensor *tensors;  // [count], in the order of the data
    size_t count;
    void *json;  // owns the names
} SafeTensors;

// Opens a file and checks its whole header: every tensor has a name of its own, a known type, and as many bytes as type
// and shape say; together they are the file. Close it in any case.
int safetensors_open(SafeTensors *s, const char *path, char *err, size_t err_bytes);
void safetensors_close(SafeTensors *s);

// Reads elements [begin, begin + count) of a tensor, as fp32, which is exact.
int safetensors_read(const SafeTensors *s, const SafeTensor *t, size_t begin, size_t count, float *out, char *err,
                     size_t err_bytes);

// The first bytes of a file with these tensors (name, dtype, shape and dims are given), without the data: *bytes of
// them, a multiple of 8. Sets numel, element_bytes and begin of each. malloc'ed; NULL: out of memory.
char *safetensors_header(SafeTensor *tensors, size_t count, size_t *bytes);

// Reads a JSON file of at most max_bytes. Returns a cJSON object to delete, or NULL and a message.
struct cJSON *json_read(const char *path, size_t max_bytes, char *err, size_t err_bytes);

// A number that is an integer from 0 to 2^53. Returns whether it is one.
int json_size(const struct cJSON *number, size_t *out);

#ifdef __cplusplus
}
#endif
#endif
