// The formats that fuzz_files.c knows.
#ifndef TEST_FUZZ_FORMATS_H
#define TEST_FUZZ_FORMATS_H

#include <stddef.h>
#include <stdint.h>

#define MAX_FILE (1 << 20)  // bytes of a mutated file

typedef struct Format {
    const char *name;
    unsigned kinds;
    size_t (*write)(uint8_t bytes[MAX_FILE], unsigned kind);  // a good file; returns its length
    void (*parse)(const char *dir, const char *path);         // dir/file; other files in dir stay from call to call
} Format;

extern const Format formats[];  // the last one has no name

#endif
