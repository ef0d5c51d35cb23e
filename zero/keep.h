// keep.h: memory that is kept for ever on purpose: after a failure MPI may still read from it, or write to it. A leak
// detector is told.
#ifndef ZERO_KEEP_H
#define ZERO_KEEP_H
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
static inline void zero_keep(const void *memory) { __lsan_ignore_object(memory); }
#else
static inline void zero_keep(const void *memory) { (void)memory; }
#endif
#endif
