// The part of NCCL's interface that zero/ uses, for a machine without a GPU. Names, argument order, numbers and meaning
// are NCCL's own, which its manual describes. The ranks are processes of one host, and their memory is the "devices".
// See nccl.cpp.
//
// Like cuda_runtime_api.h, it is found before NCCL's own header with -Idev/device/cpu. There is no shared library:
// nccl.cpp is linked into the program, and dlopen(NULL) finds it there.
#ifndef NCCL_ON_CPU_H
#define NCCL_ON_CPU_H

#include <cuda_runtime_api.h>
#include <limits.h>
#include <stddef.h>

#define NCCL_ON_CPU  1
#define NCCL_LIBRARY NULL  // for dlopen: this program

#define NCCL_MAJOR        2
#define NCCL_MINOR        28
#define NCCL_PATCH        9
#define NCCL_VERSION_CODE 22809

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ncclComm *ncclComm_t;

#define NCCL_UNIQUE_ID_BYTES 128
typedef struct {
    char internal[NCCL_UNIQUE_ID_BYTES];
} ncclUniqueId;

typedef enum [[nodiscard]]{ ncclSuccess = 0,       ncclUnhandledCudaError = 1, ncclSystemError = 2,
                            ncclInternalError = 3, ncclInvalidArgument = 4,    ncclInvalidUsage = 5,
                            ncclRemoteError = 6,   ncclInProgress = 7 } ncclResult_t;

typedef enum { ncclSum = 0 } ncclRedOp_t;

typedef enum { ncclInt8 = 0, ncclUint8 = 1, ncclFloat32 = 7, ncclBfloat16 = 9 } ncclDataType_t;

#define NCCL_CONFIG_UNDEF_INT INT_MIN
#define NCCL_SPLIT_NOCOLOR    (-1)

typedef struct {
    size_t size;
    unsigned magic, version;
    int blocking;  // 0: calls return at once, and ncclCommGetAsyncError reports ncclInProgress until they are done
} ncclConfig_t;
#define NCCL_CONFIG_INITIALIZER \
    { sizeof(ncclConfig_t), 0xcafebeef, NCCL_VERSION_CODE, NCCL_CONFIG_UNDEF_INT }

ncclResult_t ncclGetVersion(int *version);
const char *ncclGetErrorString(ncclResult_t result);
const char *ncclGetLastError(ncclComm_t comm);

ncclResult_t ncclGetUniqueId(ncclUniqueId *id);
ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t *config);
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *child, ncclConfig_t *config);
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error);
ncclResult_t ncclCommFinalize(ncclComm_t comm);
ncclResult_t ncclCommDestroy(ncclComm_t comm);
ncclResult_t ncclCommAbort(ncclComm_t comm);

ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);
ncclResult_t ncclSend(const void *from, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream);
ncclResult_t ncclRecv(void *to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclAllGather(const void *from, void *to, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream);
ncclResult_t ncclReduceScatter(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream);

ncclResult_t ncclMemAlloc(void **ptr, size_t bytes);
ncclResult_t ncclMemFree(void *ptr);
ncclResult_t ncclCommRegister(const ncclComm_t comm, void *ptr, size_t bytes, void **handle);
ncclResult_t ncclCommDeregister(const ncclComm_t comm, void *handle);

#ifdef __cplusplus
}
#endif
#endif
