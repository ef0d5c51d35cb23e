// parameter_offload.c: parameters that are offloaded (settings.offload_params, stage 3): ZeRO-Infinity's.
//
// A rank's shard is in pinned host memory, or in records on a disk, as optimizer state is (optimizer_state.c). There is
// no window: a unit's shard is copied to its place in the unit's buffer, on a stream of its own, and all ranks
// all-gather it there in place. So the device has the units of the parameter cache, and nothing else of the parameters.
//
//                take           zero_params_copy, all-gather          unshard_finish
//       EMPTY ----------> READING ------------------------> GATHERING ---------------> HELD    a buffer (parameters.c)
//               zero_params_read
//
// From host memory a buffer is not READING: the copy is queued at once. From a disk, reading begins when the unit is
// prefetched, as far as there is room for its records, and the all-gather with the next unit that is acquired. A record
// is read once for each all-gather. The update reads and writes the shard where it is.
#include "zero/internal.h"

int zero_params_copies_create(zero *z) {
    int e = zero_device_check(z, cudaStreamCreateWithFlags(&z->copy_stream, cudaStreamNonBlocking),
                              "creating the stream of copies of parameters");
    for (size_t i = 0; i < z->cache.num_slots && !e; i++)
        e = zero_device_check(z, cudaEventCreateWithFlags(&z->param_buffers[i].released, cudaEventDisableTiming),
                              "creating an event");
    return e;
}

void zero_params_copies_destroy(zero *z) {
    for (size_t i = 0; i < z->cache.num_slots; i++)
        if (z->param_buffers[i].released) (void)cudaEventDestroy(z->param_buffers[i].released);
    if (z->copy_stream) (void)cudaStreamDestroy(z->copy_stream);
}

static size_t parts_of(const zero *z, size_t u) { return z->first_part[u + 1] - z->first_part[u]; }

static size_t record_of(const zero *z, size_t u, size_t i) {
    return zero_part_record(z, &z->parts[z->first_part[u] + i], ARRAY_PARAMS);
}

int zero_params_read(zero *z, size_t u) {
    size_t *next = &z->units[u].parts_read;
    for (; *next < parts_of(z, u) && z->read_ahead < ZERO_OFFLOAD_PARAM_READS; ++*next, z->read_ahead++)
        if (zero_swap_prefetch(z->params_swap, record_of(z, u, *next))) return zero_swap_check(z, z->params_swap, 1);
    return ZERO_OK;
}

int zero_params_copied(zero *z) {
    if (!z->num_copied) return ZERO_OK;
    int e = zero_comm_check(z, zero_comm_synchronize(z->config.shard_comm, z->copy_stream));
    for (size_t i = 0; i < z->num_copied && !e; i++)
        e = zero_swap_check(z, z->params_swap, zero_swap_release(z->params_swap, z->copied[i], 0));
    z->num_copied = 0;
    return e;
}

// The i-th part of a unit, in a record that is kept until it is copied.
static int acquire(zero *z, size_t u, size_t i, const char **from) {
    const size_t record = record_of(z, u, i);
    int e = ZERO_OK, full = z->num_copied == ZERO_OFFLOAD_PARAM_COPIES;
    for (size_t k = 0; k < z->num_copied; k++) full |= z->copied[k] == record;  // its unit was dropped meanwhile
    if (full && (e = zero_params_copied(z))) return e;
    if (i < z->units[u].parts_read)
        z->read_ahead--;
    else
        z->units[u].parts_read = i + 1;
    *from = zero_swap_acquire(z->params_swap, record);
    if (!*from) return zero_swap_check(z, z->params_swap, 1);
    z->copied[z->num_copied++] = record;
    return zero_params_read(z, u);
}

int zero_params_copy(zero *z, size_t u, char *to) {
    int e = ZERO_OK;
    for (size_t i = 0; i < parts_of(z, u) && !e; i++) {
        const struct part *p = &z->parts[z->first_part[u] + i];
        const char *from = p->arrays[ARRAY_PARAMS];
        if (z->params_swap) e = acquire(z, u, i, &from);
        if (!e)
            e = zero_device_check(z,
                                  cudaMemcpyAsync(to + p->begin * z->elem, from, p->numel * z->elem,
                                                  cudaMemcpyHostToDevice, z->copy_stream),
                                  "copying parameters to the device");
    }
    z->units[u].parts_read = 0;
    return e;
}
