// test_overlap.c: what may run beside what, with a transport that has a stream of its own (NCCL). Run under mpirun.
//
// The CPU's CUDA runtime leaves work in the queue of its stream until the host waits for it (CUDA_ON_CPU_STREAMS=0),
// and reports what it runs. So a whole step is queued without a wait; then the host waits for one stream first, for the
// other after it. If it waits for the caller's stream, communication runs as late as the events allow; if it waits for
// the transport's, as early. Two operations that come in one order in the first run and in the other order in the
// second do not depend on each other: on a GPU they overlap. Operations that must not overlap come in the same order in
// both. The rows below list the overlap that the engine is designed for. Between the first call of a step and the end
// of the next forward the host must not wait at all, and launches as many kernels as it needs.
#include <stdlib.h>
#include <string.h>
#include "test/harness/ranks.h"
#include "zero/comm/bootstrap/mpi.h"
#include "zero/comm/transport_registry.h"
#include "zero/kernels.h"
#include "zero/nvtx.h"
#include "zero/zero.h"

enum { UNITS = 5, NUMEL = 4096, MAX_EVENTS = 4096 };

static zero_accounting memory;
static const char *events[MAX_EVENTS];
static int num_events;
static cuda_on_cpu_calls queued;  // of a step and a forward, until the host waits

static void on_event(void *ctx, const char *name) {
    (void)ctx;
    if (num_events < MAX_EVENTS) events[num_events++] = name;
}

// When something of this kind and unit first ran; the transport's own part of it: moved != 0.
static int when(const char *what, size_t unit, int moved) {
    char prefix[32];
    snprintf(prefix, sizeof prefix, "%s %zu", what, unit);
    const size_t n = strlen(prefix);
    for (int i = 0; i < num_events; i++)
        if (!strncmp(events[i], prefix, n) && (events[i][n] == '\0' || events[i][n] == '/') &&
            (!moved || strstr(events[i], "nccl")))
            return i;
    CHECK(0, "\"%s\" never ran", prefix);
    return -1;
}

static void must(const zero *z, int e, int line) { CHECK_AT(__FILE__, line, e == ZERO_OK, "%s", zero_error(z)); }
#define MUST(call) must(z, (call), __LINE__)

static int fill(void *ctx, size_t tensor, size_t begin, size_t count, float *out) {
    (void)ctx;
    for (size_t i = 0; i < count; i++) out[i] = (float)((tensor * 31 + begin + i) % 97) / 97.0f;
    return 0;
}

// Stands for the kernels of a unit: it reads and writes a buffer, under a name.
static void work(const char *what, size_t unit, void *buffer, cudaStream_t stream) {
    zero_nvtx_push(what, unit);
    CHECK(buffer &&
              cudaMemcpyAsync(buffer, buffer, NUMEL * sizeof(float), cudaMemcpyDeviceToDevice, stream) == cudaSuccess,
          "%s %zu could not be queued", what, unit);
    zero_nvtx_pop();
}

static void forward(zero *z, cudaStream_t stream) {
    for (size_t u = 0; u < UNITS; u++) {
        work("forward", u, (void *)zero_acquire_params(z, u), stream);
        MUST(zero_release_params(z, u));
    }
}

static void backward(zero *z, cudaStream_t stream) {
    for (size_t u = UNITS; u-- > 0;) {
        (void)zero_acquire_params(z, u);
        work("backward", u, zero_acquire_grads(z, u, zero_get_micro_batches(z)), stream);
        MUST(zero_release_grads(z, u));
        MUST(zero_release_params(z, u));
    }
    MUST(zero_finish_backward(z));
}

// Queues backward, update and the next forward; then waits for one stream, and for the other.
static void trace_step(zero *z, zero_comm *c, cudaStream_t stream, int early) {
    const zero_hyperparameters adamw = { .lr = 1e-3f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f };
    MUST(zero_comm_synchronize(c, stream));
    MUST(zero_comm_synchronize(c, zero_comm_stream(c)));
    num_events = 0;
    cuda_on_cpu_trace(on_event, NULL);
    const cuda_on_cpu_calls before = cuda_on_cpu_calls_so_far();
    backward(z, stream);
    MUST(zero_step(z, &adamw));
    forward(z, stream);
    const cuda_on_cpu_calls now = cuda_on_cpu_calls_so_far();
    queued = (cuda_on_cpu_calls){ .kernels = now.kernels - before.kernels, .waits = now.waits - before.waits };
    MUST(zero_comm_synchronize(c, early ? zero_comm_stream(c) : stream));
    MUST(zero_comm_synchronize(c, early ? stream : zero_comm_stream(c)));
    cuda_on_cpu_trace(NULL, NULL);
}

// moved(unit) runs before `other` of another unit if communication comes early, and after it if it comes late.
static void overlaps(int early, const char *moved, size_t unit, const char *other, size_t other_unit) {
    const int a = when(moved, unit, 1), b = when(other, other_unit, 0);
    CHECK(early ? a < b : b < a, "with communication as %s as possible, %s %zu came %s %s %zu",
          early ? "early" : "late", moved, unit, a < b ? "before" : "after", other, other_unit);
}

static void in_order(int first, int second, const char *what, size_t unit) {
    CHECK(first < second, "%s %zu came too early", what, unit);
}

// A sum for each unit, and one of what several ranks leave; the squares, this rank's row and the decision; the updates,
// unless the host does them.
static void check_calls(int stage, int ranks, int on_host) {
    const int merges = zero_partial_sums_live((uint64_t)ranks) > 1, updates = on_host                    ? 0
                                                                              : stage == 3 || ranks == 1 ? 1
                                                                                                         : UNITS;
    CHECK_EQ(queued.waits, 0);
    CHECK_EQ(queued.kernels, UNITS + merges + 3 + updates);
}

// In stage 3 one launch updates all units.
static void check_step(int stage, int early) {
    for (size_t u = 0; u < UNITS; u++) {
        const int update = when("AdamW", stage == 3 ? 0 : u, 0);
        in_order(when("backward", u, 0), when("reduce", u, 1), "reduce", u);
        in_order(when("reduce", u, 1), update, "AdamW", u);
        if (stage == 3) {
            in_order(update, when("forward", u, 0), "forward", u);
        } else if (stage > 0) {
            in_order(update, when("all-gather", u, 1), "all-gather", u);
            in_order(when("all-gather", u, 1), when("forward", u, 0), "forward", u);
        }
    }
    for (size_t u = 1; u < UNITS; u++) {
        overlaps(early, "reduce", u, "backward", u - 1);  // the reduction of a unit, under the backward of the
                                                          // one before it
        // the gather of a unit, under the update of the next,
        if (stage == 1 || stage == 2) overlaps(early, "all-gather", u - 1, "AdamW", u);
    }
    if ((stage == 1 || stage == 2) && !early)
        // and under the forward of the one before it
        for (size_t u = 1; u < UNITS; u++)
            in_order(when("forward", u - 1, 0), when("all-gather", u, 1), "all-gather", u);
}

// The host updates one unit after the other, while the one before is all-gathered.
static void check_host_step(int stage, int early) {
    for (size_t u = 0; u < UNITS; u++) {
        const int update = when("host update", u, 0);
        in_order(when("reduce", u, 1), update, "host update", u);
        in_order(update, when("forward", u, 0), "forward", u);
        if (stage != 1 && stage != 2) continue;
        in_order(update, when("all-gather", u, 1), "all-gather", u);
        if (u > 0) overlaps(early, "all-gather", u - 1, "host update", u);
    }
}

// Stage 3 by itself: units are fetched several times, so only a forward is looked at.
static void check_fetches(zero *z, zero_comm *c, cudaStream_t stream, int early) {
    MUST(zero_comm_synchronize(c, stream));
    MUST(zero_comm_synchronize(c, zero_comm_stream(c)));
    MUST(zero_begin_step(z));  // nothing is at hand
    num_events = 0;
    cuda_on_cpu_trace(on_event, NULL);
    forward(z, stream);
    MUST(zero_comm_synchronize(c, early ? zero_comm_stream(c) : stream));
    MUST(zero_comm_synchronize(c, early ? stream : zero_comm_stream(c)));
    cuda_on_cpu_trace(NULL, NULL);
    for (size_t u = 0; u < UNITS; u++) in_order(when("unshard", u, 1), when("forward", u, 0), "forward", u);
    // the fetch of a unit, under the forward of the one before it
    for (size_t u = 1; u < UNITS; u++) overlaps(early, "unshard", u, "forward", u - 1);
    backward(z, stream);
    MUST(zero_discard(z));
}

static void run_stage(int stage, int on_host, zero_comm *c, cudaStream_t stream) {
    zero_tensor tensors[UNITS];
    size_t order[2 * UNITS];
    for (size_t u = 0; u < UNITS; u++) {
        tensors[u] = (zero_tensor){ "w", NUMEL, u, u * NUMEL, 1 };
        order[u] = u;
        order[UNITS + u] = UNITS - 1 - u;
    }
    const enum zero_offload offload = on_host ? ZERO_OFFLOAD_CPU : ZERO_OFFLOAD_NONE;
    const zero_config config = {
        .settings = { .stage = stage, .prefetch = 1, .offload = offload, .offload_fraction = 1 },
        .tensors = tensors,
        .num_tensors = UNITS,
        .order = order,
        .order_length = 2 * UNITS,
        .shard_comm = c,
        .accounting = &memory,
        .stream = stream
    };
    zero *z = NULL;
    CHECK(zero_create(&z, &config) == ZERO_OK, "create: %s", z ? zero_error(z) : "out of memory");
    MUST(zero_fill(z, fill, NULL));
    forward(z, stream);
    trace_step(z, c, stream, 0);  // the first time memory is allocated on the way, which waits
    for (int early = 0; early <= 1; early++)
        CASE("stage %d%s: what overlaps, communication as %s as possible", stage, on_host ? ", offload" : "",
             early ? "early" : "late") {
            trace_step(z, c, stream, early);
            if (on_host)
                check_host_step(stage, early);
            else
                check_step(stage, early);
            check_calls(stage, zero_comm_size(c), on_host);
        }
    for (int early = 0; early <= 1 && stage == 3 && !on_host; early++)
        CASE("stage 3: gathers overlap the forward, communication as %s as possible", early ? "early" : "late") {
            backward(z, stream);
            MUST(zero_discard(z));
            check_fetches(z, c, stream, early);
        }
    zero_destroy(z);
}

int main(int argc, char **argv) {
    cudaStream_t stream;
    setenv("CUDA_ON_CPU_STREAMS", "0", 1);
    test_start_ranks(&argc, argv);
    zero_bootstrap *boot = NULL;
    zero_comm *c = NULL;
    char err[512] = "";
    REQUIRE(zero_bootstrap_create_mpi(&boot, MPI_COMM_WORLD, 60) == ZERO_OK, "bootstrap: %s",
            zero_bootstrap_error(boot));
    REQUIRE(zero_comm_create(&c, zero_transport_find("nccl"), boot, &(zero_comm_config){ .timeout_s = 60 }, &memory,
                             err, sizeof err) == ZERO_OK,
            "create: %s", err);
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess, "no stream");
    for (int stage = 0; stage <= 3; stage++)
        for (int on_host = 0; on_host < 2; on_host++) run_stage(stage, on_host, c, stream);
    zero_comm_destroy(c);
    zero_bootstrap_destroy(boot);
    return test_finish();
}
