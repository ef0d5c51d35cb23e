#include "trainer/losses.h"

#include <math.h>
#include <string.h>

#include "trainer/signals.h"

static void check(const Run *r, int e) {
    if (e != ZERO_OK) die("%s (losses of a step)", zero_comm_error(r->comm));
}

// An abort because another rank is gone may leave the device in disorder: the transport knows.
static void check_device(const Run *r, cudaError_t e) {
    if (e == cudaSuccess) return;
    check(r, zero_comm_synchronize(r->comm, r->stream));
    die("losses of a step: %s", cudaGetErrorString(e));
}

static size_t told_bytes(const Run *r) { return (r->G + TOLD_MORE) * sizeof *r->losses; }

static void *pinned(size_t bytes) {
    void *p = NULL;
    if (cudaMallocHost(&p, bytes) != cudaSuccess)
        die("no pinned host memory for the losses of a step: use a smaller -d");
    memset(p, 0, bytes);
    return p;
}

void losses_create(Run *r) {
    r->losses = pinned(told_bytes(r));
    r->all_losses = pinned((size_t)r->ranks * told_bytes(r));
    if (r->ranks == 1 || zero_comm_stream(r->comm) == NULL) return;
    check(r, zero_comm_alloc(r->comm, &r->memory, ZERO_MEM_TRANSPORT, (void **)&r->device_losses,
                             (size_t)r->ranks * told_bytes(r)));
    if (options_host_decides(&r->options)) return;
    check_device(r, cudaStreamCreate(&r->losses_stream));
    check_device(r, cudaEventCreateWithFlags(&r->losses_are_here, cudaEventDisableTiming));
    r->losses[r->G + TOLD_COMPUTING] = NAN;  // there was no step before
}

void losses_destroy(Run *r) {
    (void)zero_comm_free(r->comm, r->device_losses);
    check_device(r, cudaFreeHost(r->losses));
    check_device(r, cudaFreeHost(r->all_losses));
    if (!losses_are_queued(r)) return;
    check_device(r, cudaEventDestroy(r->losses_are_here));
    check_device(r, cudaStreamDestroy(r->losses_stream));
}

int losses_are_queued(const Run *r) { return r->losses_stream != NULL; }

void losses_copied(Run *r) {
    if (losses_are_queued(r)) check_device(r, cudaEventRecord(r->losses_are_here, r->stream));
}

// The buffer is reusable: this stream has waited for the last all-gather.
void losses_queue(Run *r, void (*take_means)(void *run)) {
    const cudaStream_t stream = r->losses_stream;
    const size_t bytes = told_bytes(r);
    zero_ticket ticket;
    r->losses[r->G + TOLD_STOP] = signals_stop() != NULL;
    zero_comm_phase(r->comm, "losses of a step", 0);
    check_device(r, cudaStreamWaitEvent(stream, r->losses_are_here, 0));
    check_device(r, cudaLaunchHostFunc(stream, take_means, r));
    check_device(r, cudaMemcpyAsync(r->device_losses + (size_t)r->rank * bytes, r->losses, bytes,
                                    cudaMemcpyHostToDevice, stream));
    check(r, zero_comm_allgather_begin(r->comm, r->device_losses, bytes, ZERO_WIRE_SCALARS, stream, &ticket));
    check(r, zero_comm_allgather_finish(r->comm, ticket, stream));
    check_device(
        r, cudaMemcpyAsync(r->all_losses, r->device_losses, (size_t)r->ranks * bytes, cudaMemcpyDeviceToHost, stream));
}

void losses_wait(Run *r) { check(r, zero_comm_synchronize(r->comm, r->losses_stream)); }
