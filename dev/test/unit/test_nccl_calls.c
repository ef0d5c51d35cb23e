// test_nccl_calls.c: NCCL's calls on one rank, in the order in which the transport (zero/comm/nccl) makes them. One
// rank needs no second GPU and no network, so this is the first test to run where NCCL is new. Prints what non-blocking
// calls return, which the stand-in on the CPU imitates.
#include "test/harness/harness.h"
#include "zero/comm/nccl/nccl_internal.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#ifdef ZERO_HAS_NCCL
enum { N = 1 << 16, POLL_SECONDS = 60 };

static struct nccl_library nccl;
static ncclComm_t world, child;
static cudaStream_t stream;

static const char *name_of(ncclResult_t r) {
    return r == ncclSuccess ? "ncclSuccess" : r == ncclInProgress ? "ncclInProgress" : nccl.GetErrorString(r);
}

// Waits until a call on comm, which returned r, is over.
static int settled(ncclComm_t comm, ncclResult_t r, const char *what) {
    const time_t begin = time(NULL);
    int polls = 0;
    for (; r == ncclInProgress && time(NULL) - begin < POLL_SECONDS; polls++) {
        ncclResult_t state = ncclSuccess;
        const ncclResult_t asked = nccl.CommGetAsyncError(comm, &state);
        r = asked == ncclSuccess ? state : asked;
        usleep(100);
    }
    return CHECK(r == ncclSuccess, "%s: %s after %d polls, %s", what, name_of(r), polls, nccl.GetLastError(comm));
}

static ncclConfig_t non_blocking(void) {
    ncclConfig_t c = NCCL_CONFIG_INITIALIZER;
    c.blocking = 0;
    return c;
}

// Cases may be run alone, so each makes the communicators that it needs.
static ncclComm_t get_world(void) {
    ncclUniqueId id;
    ncclConfig_t c = non_blocking();
    if (world) return world;
    REQUIRE(nccl.GetUniqueId(&id) == ncclSuccess);
    const ncclResult_t r = nccl.CommInitRankConfig(&world, 1, id, 0, &c);
    printf("    ncclCommInitRankConfig returned %s, with %s communicator\n", name_of(r), world ? "a" : "no");
    REQUIRE(world && settled(world, r, "ncclCommInitRankConfig"));
    return world;
}

// The child may be NULL until the parent has left ncclInProgress.
static ncclComm_t get_child(void) {
    ncclConfig_t c = non_blocking();
    ncclResult_t state = ncclSuccess;
    if (child) return child;
    const ncclResult_t r = nccl.CommSplit(get_world(), 0, 0, &child, &c);
    const int had_child = child != NULL;
    const ncclResult_t asked = nccl.CommGetAsyncError(world, &state);
    printf("    ncclCommSplit returned %s, with %s communicator; then the parent is at %s\n", name_of(r),
           had_child ? "a" : "no", name_of(asked ? asked : state));
    REQUIRE(settled(world, r == ncclSuccess ? ncclInProgress : r, "ncclCommSplit, parent"));
    REQUIRE(child != NULL);
    REQUIRE(settled(child, ncclInProgress, "ncclCommSplit, child"));
    return child;
}

static float value(int i, int salt) { return (float)((i * 7 + salt * 31) % 1009); }

static void fill(float *device, int salt) {
    static float host[N];
    for (int i = 0; i < N; i++) host[i] = value(i, salt);
    REQUIRE(cudaMemcpy(device, host, sizeof host, cudaMemcpyHostToDevice) == cudaSuccess);
}

static int has(const float *device, int salt) {
    static float host[N];
    REQUIRE(cudaStreamSynchronize(stream) == cudaSuccess);
    REQUIRE(cudaMemcpy(host, device, sizeof host, cudaMemcpyDeviceToHost) == cudaSuccess);
    for (int i = 0; i < N; i++)
        if (host[i] != value(i, salt)) return CHECK(0, "element %d is %g, not %g", i, host[i], value(i, salt));
    return CHECK(1);
}

static void send_and_receive(ncclComm_t comm, const float *from, float *to) {
    REQUIRE(nccl.GroupStart() == ncclSuccess);
    const ncclResult_t sent = nccl.Send(from, sizeof(float) * N, ncclUint8, 0, comm, stream);
    const ncclResult_t received = nccl.Recv(to, sizeof(float) * N, ncclUint8, 0, comm, stream);
    CHECK(sent == ncclSuccess || sent == ncclInProgress);
    CHECK(received == ncclSuccess || received == ncclInProgress);
    settled(comm, nccl.GroupEnd(), "ncclGroupEnd");
}

static void collectives_lose_data(ncclComm_t comm, float *a, float *b) {
    fill(a, 1);
    fill(b, 2);
    send_and_receive(comm, a, b);
    has(b, 1);
    fill(a, 3);
    settled(comm, nccl.AllGather(a, a, sizeof(float) * N, ncclUint8, comm, stream), "ncclAllGather in place");
    has(a, 3);
    settled(comm, nccl.AllGather(a, b, sizeof(float) * N, ncclUint8, comm, stream), "ncclAllGather");
    has(b, 3);
    fill(a, 4);
    settled(comm, nccl.ReduceScatter(a, a, N, ncclFloat32, ncclSum, comm, stream), "ncclReduceScatter in place");
    has(a, 4);
}

static void registered_memory_loses_data(ncclComm_t comm) {
    void *p[2] = { NULL, NULL }, *handle[2] = { NULL, NULL };
    for (int i = 0; i < 2; i++) {
        size_t free_before = 0, free_after = 0, all = 0;
        REQUIRE(cudaMemGetInfo(&free_before, &all) == cudaSuccess);
        REQUIRE(nccl.MemAlloc(&p[i], sizeof(float) * N) == ncclSuccess);
        REQUIRE(cudaMemGetInfo(&free_after, &all) == cudaSuccess);
        const ncclResult_t r = nccl.CommRegister(comm, p[i], sizeof(float) * N, &handle[i]);
        printf("    ncclMemAlloc of %zu bytes took %zu; ncclCommRegister returned %s, with %s handle\n",
               sizeof(float) * N, free_before - free_after, name_of(r), handle[i] ? "a" : "no");
        settled(comm, r, "ncclCommRegister");
    }
    collectives_lose_data(comm, p[0], p[1]);
    for (int i = 0; i < 2; i++) {
        if (handle[i]) CHECK(nccl.CommDeregister(comm, handle[i]) == ncclSuccess);
        CHECK(nccl.MemFree(p[i]) == ncclSuccess);
    }
}

static void destroy(ncclComm_t *comm) {
    const ncclResult_t r = nccl.CommFinalize(*comm);
    printf("    ncclCommFinalize returned %s\n", name_of(r));
    if (settled(*comm, r, "ncclCommFinalize")) CHECK(nccl.CommDestroy(*comm) == ncclSuccess);
    *comm = NULL;
}

// Aborting frees the communicator and leaves the device usable.
static void abort_world(float *a) {
    CHECK(nccl.CommAbort(get_world()) == ncclSuccess);
    world = NULL;
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
    fill(a, 5);
    has(a, 5);
}

int main(int argc, char **argv) {
    char error[400] = "";
    float *a = NULL, *b = NULL;
    test_start(&argc, argv);
    const int loaded = zero_nccl_load(&nccl, NULL, error, sizeof error) == ZERO_OK;
    CASE("library cannot be loaded") {
        if (CHECK(loaded, "%s", error)) printf("NCCL version %d\n", nccl.version);
    }
    if (!loaded) return test_finish();
    alarm(120);  // ends a call of NCCL that never returns
    if (cudaMalloc((void **)&a, sizeof(float) * N) != cudaSuccess ||
        cudaMalloc((void **)&b, sizeof(float) * N) != cudaSuccess || cudaStreamCreate(&stream) != cudaSuccess) {
        CASE("device memory cannot be allocated") CHECK(0);
        return test_finish();
    }
    CASE("collectives lose data") collectives_lose_data(get_world(), a, b);
    CASE("collectives of a split communicator lose data") collectives_lose_data(get_child(), a, b);
    CASE("registered memory loses data") registered_memory_loses_data(get_world());
    CASE("split communicator cannot be destroyed") {
        get_child();
        destroy(&child);
    }
    CASE("communicator cannot be destroyed") {
        get_world();
        destroy(&world);
    }
    CASE("abort breaks the device") abort_world(a);
    (void)cudaFree(a);
    (void)cudaFree(b);
    (void)cudaStreamDestroy(stream);
    return test_finish();
}
#else
int main(int argc, char **argv) {
    test_start(&argc, argv);
    CASE("built without NCCL") CHECK(1);
    return test_finish();
}
#endif
