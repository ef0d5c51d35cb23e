// library.c: NCCL is loaded at run time, so that a program that was built with NCCL starts where there is none, and
// reports why it cannot use it.
#include "zero/comm/nccl/nccl_internal.h"
#ifdef ZERO_HAS_NCCL
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#ifndef NCCL_LIBRARY
#define NCCL_LIBRARY "libnccl.so.2"
#endif
#define OTHERWISE "or use the mpi transport"

int zero_nccl_load(struct nccl_library *lib, const char *name, char *err, size_t err_bytes) {
    const char *file = name ? name : NCCL_LIBRARY, *missing = NULL;
    void *handle = dlopen(file, RTLD_NOW | RTLD_LOCAL);  // never closed: NCCL has threads of its own
    memset(lib, 0, sizeof *lib);
    if (!handle) {
        snprintf(err, err_bytes,
                 "NCCL cannot be loaded: %s: install it (libnccl2 of NVIDIA's packages), add its directory to "
                 "LD_LIBRARY_PATH, " OTHERWISE,
                 dlerror());
        return ZERO_ERR_COMM;
    }
#define LOOK_UP(function)                                       \
    *(void **)&lib->function = dlsym(handle, "nccl" #function); \
    if (!lib->function) missing = "nccl" #function;
    ZERO_NCCL_FUNCTIONS(LOOK_UP)
#undef LOOK_UP
    if (missing) {
        snprintf(err, err_bytes,
                 "%s has no %s: it is older than NCCL 2.19, or not NCCL: install a newer one, " OTHERWISE,
                 file ? file : "this program", missing);
        return ZERO_ERR_COMM;
    }
    if (lib->GetVersion(&lib->version) != ncclSuccess || lib->version / 10000 != NCCL_MAJOR) {
        snprintf(err, err_bytes,
                 "%s is NCCL version %d, but this program was built for NCCL %d: install that, build again, " OTHERWISE,
                 file ? file : "this program", lib->version, NCCL_MAJOR);
        return ZERO_ERR_COMM;
    }
    return ZERO_OK;
}
#endif
