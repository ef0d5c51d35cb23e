// optimizer_state.c: where master weights, the moving average and the optimizer's states are, and what is updated with
// them: parameters.
//
// What a rank has of a unit is cut into parts (optimizers.h: zero_state_part). The arrays of a part are on the device;
// or offloaded: in pinned host memory (ZeRO-Offload), or records on a disk (ZeRO-Infinity), which pass through buffers
// in pinned host memory. The host updates what is offloaded (host_update.c); of records:
//
//     step, part p       zero_part_acquire(p): waits for its records, begins to read those of p + 1
//                        the update, on the buffers
//                        zero_part_release(p): begins to write its records
//     fill, load, visit  zero_state_open, element by element; zero_state_close
//
// The last part of a step reads ahead for the first one of the next, under the next forward and backward. Records of
// parameters are in a file of their own, and pass through buffers of their own: the forward and the backward need them
// too (parameter_offload.c).
#include <stdlib.h>
#include <string.h>
#include "zero/internal.h"

// ---- create and destroy ---------------------------------------------------------------------------------------------

static enum zero_offload place_of(const zero *z, const struct part *p, size_t array) {
    if (array == ARRAY_PARAMS) return params_offload(z);
    return p->offloaded ? z->config.settings.offload : ZERO_OFFLOAD_NONE;
}

static int on_disk(const zero *z, const struct part *p, size_t array) {
    return place_of(z, p, array) == ZERO_OFFLOAD_NVME && array_bytes(z, array);
}

static enum zero_memory_category category_of(size_t array) {
    return array == ARRAY_MASTER ? ZERO_MEM_MASTER
           : array == ARRAY_EMA  ? ZERO_MEM_EMA
                                 : (enum zero_memory_category)(ZERO_MEM_STATE + array - ARRAY_STATES);
}

static int create_array(zero *z, struct part *p, size_t array) {
    const size_t bytes = p->numel * array_bytes(z, array);
    const enum zero_offload place = place_of(z, p, array);
    if (!bytes || place == ZERO_OFFLOAD_NVME) return ZERO_OK;
    if (place == ZERO_OFFLOAD_NONE && array == ARRAY_PARAMS)
        p->arrays[array] = updated_params(z, p->unit) + p->begin * z->elem;
    else if (place == ZERO_OFFLOAD_NONE)
        return zero_alloc(z, category_of(array), bytes, &p->arrays[array]);
    else
        p->arrays[array] = zero_accounting_alloc_host(z->config.accounting, bytes);
    return p->arrays[array] ? ZERO_OK
                            : zero_fail(z, ZERO_ERR_MEMORY,
                                        "no pinned host memory for %zu bytes of offloaded state: use a smaller "
                                        "settings.offload_fraction, more ranks, or ZERO_OFFLOAD_NVME",
                                        bytes);
}

static void destroy_array(zero *z, struct part *p, size_t array) {
    const size_t bytes = p->numel * array_bytes(z, array);
    if (place_of(z, p, array) != ZERO_OFFLOAD_NONE)
        zero_accounting_free_host(z->config.accounting, p->arrays[array], bytes);
    else if (array != ARRAY_PARAMS)
        zero_accounting_free(z->config.accounting, category_of(array), p->arrays[array], bytes);
    p->arrays[array] = NULL;
}

int zero_state_clear_unit(zero *z, size_t u) {
    int e = ZERO_OK;
    for (size_t array = ARRAY_STATES; array < NUM_ARRAYS && !e; array++)
        for (size_t at = 0, n; at < state_numel(z, u) && array_bytes(z, array) && !e; at += n) {
            char *to;
            if ((e = zero_state_open(z, u, array, at, 1, &to, &n))) break;
            e = zero_device_check(z, cudaMemsetAsync(to, 0, n * array_bytes(z, array), z->config.stream),
                                  "clearing the optimizer's state");
        }
    return zero_state_close(z, e);
}

int zero_state_create_unit(zero *z, size_t u) {
    int e = ZERO_OK;
    for (size_t i = z->first_part[u]; i < z->first_part[u + 1]; i++)
        for (size_t array = ARRAY_STATES; array < NUM_ARRAYS && !e; array++) e = create_array(z, &z->parts[i], array);
    return e || !z->swap ? e : zero_state_clear_unit(z, u);
}

void zero_state_destroy_unit(zero *z, size_t u) {
    for (size_t i = z->first_part[u]; i < z->first_part[u + 1]; i++)
        for (size_t array = ARRAY_STATES; array < NUM_ARRAYS; array++) destroy_array(z, &z->parts[i], array);
}

static int create_parts(zero *z) {
    const zero_settings *s = &z->config.settings;
    const zero_layout *l = &z->layout;
    zero_state_part at;
    z->first_part = calloc(l->num_units + 1, sizeof *z->first_part);
    if (!z->first_part) return zero_fail(z, ZERO_ERR_MEMORY, "out of host memory");
    for (size_t u = 0; u < l->num_units; u++) {
        size_t n = 0;
        while (zero_state_part_at(s, state_numel(z, u), n, &at)) n++;
        z->first_part[u + 1] = z->first_part[u] + n;
    }
    z->parts = calloc(z->first_part[l->num_units] + 1, sizeof *z->parts);
    if (!z->parts) return zero_fail(z, ZERO_ERR_MEMORY, "out of host memory");
    for (size_t u = 0; u < l->num_units; u++)
        for (size_t i = 0; zero_state_part_at(s, state_numel(z, u), i, &at); i++) {
            const size_t begin = state_begin(z, u) + at.begin;
            struct part *p = &z->parts[z->first_part[u] + i];
            *p = (struct part){ .unit = u, .begin = at.begin, .numel = at.numel, .offloaded = at.offloaded };
            p->num_chunks = zero_optimizer_chunks(l, u, begin, begin + at.numel, NULL);
            z->num_offloaded += (size_t)at.offloaded;
            if (at.offloaded && at.numel > z->largest_offloaded) z->largest_offloaded = at.numel;
        }
    return ZERO_OK;
}

// The table of all parts' chunks: first those that the device updates, which has them too.
static int create_chunks(zero *z) {
    struct part *end = z->parts + z->first_part[z->layout.num_units];
    size_t n = 0;
    for (int offloaded = 0; offloaded < 2; offloaded++) {
        for (struct part *p = z->parts; p < end; p++) {
            if (p->offloaded != offloaded) continue;
            p->first_chunk = n;
            n += p->num_chunks;
        }
        if (!offloaded) z->num_chunks = n;
    }
    zero_optimizer_chunk *chunks = z->all_chunks = malloc((n + 1) * sizeof *chunks);
    if (!chunks) return zero_fail(z, ZERO_ERR_MEMORY, "out of host memory");
    for (const struct part *p = z->parts; p < end; p++) {
        const size_t begin = state_begin(z, p->unit) + p->begin;
        zero_optimizer_chunks(&z->layout, p->unit, begin, begin + p->numel, chunks + p->first_chunk);
        for (size_t i = 0; i < p->num_chunks; i++) chunks[p->first_chunk + i].part = (uint32_t)(p - z->parts);
    }
    int e = zero_alloc(z, ZERO_MEM_TRANSPORT, z->num_chunks * sizeof *chunks, &z->chunks);
    if (!e && z->num_chunks)
        e = zero_device_check(z, cudaMemcpy(z->chunks, chunks, z->num_chunks * sizeof *chunks, cudaMemcpyHostToDevice),
                              "copying the optimizer's chunks");
    return e;
}

// *config: all but records, which are `bytes`.
static int open_swap(zero *z, zero_swap_config config, const char *what, zero_swap **swap, size_t *swap_bytes) {
    char err[512], refusal[ZERO_REFUSAL_BYTES];
    size_t buffers = zero_swap_buffer_bytes(config.bytes, config.num_records, config.num_buffers);
    if (!config.directory)
        return zero_fail(z, ZERO_ERR_ARG, "settings.%s is ZERO_OFFLOAD_NVME: set %s_dir", what, what);
    if (zero_memory_on_device(ZERO_MEM_HOST) && *zero_accounting_refusal(z->config.accounting, buffers, refusal))
        return zero_fail(z, ZERO_ERR_MEMORY, "no memory for %zu bytes of buffers for offloaded state%s", buffers,
                         refusal);
    *swap = zero_swap_create(&config, err, sizeof err);
    if (!*swap) return zero_fail(z, ZERO_ERR_DISK, "%s", err);
    *swap_bytes = zero_swap_file_bytes(config.bytes, config.num_records);
    void *memory = zero_swap_memory(*swap, &buffers);
    zero_accounting_add(z->config.accounting, ZERO_MEM_HOST, buffers, 0);
    zero_accounting_add(z->config.accounting, ZERO_MEM_DISK, *swap_bytes, 0);
    const cudaError_t pinned = cudaHostRegister(memory, buffers, cudaHostRegisterDefault);
    if (pinned == cudaSuccess) return ZERO_OK;
    return zero_fail(
        z, ZERO_ERR_MEMORY,
        "%zu bytes of buffers for what is on a disk cannot be pinned: %s: raise the limit of locked memory "
        "(ulimit -l), or use ZERO_OFFLOAD_CPU or _NONE",
        buffers, cudaGetErrorString(pinned));
}

static void close_swap(zero *z, zero_swap *swap, size_t swap_bytes) {
    size_t bytes;
    if (!swap) return;
    (void)cudaHostUnregister(zero_swap_memory(swap, &bytes));
    zero_swap_destroy(swap);
    zero_accounting_add(z->config.accounting, ZERO_MEM_HOST, 0, bytes);
    zero_accounting_add(z->config.accounting, ZERO_MEM_DISK, 0, swap_bytes);
}

static int create_state_swap(zero *z, size_t *bytes) {
    struct part *end = z->parts + z->first_part[z->layout.num_units];
    size_t arrays = 0, records = 0;
    for (size_t array = ARRAY_MASTER; array < NUM_ARRAYS; array++) arrays += array_bytes(z, array) > 0;
    for (struct part *p = z->parts; p < end; p++) {
        p->record = records;
        for (size_t array = ARRAY_MASTER; array < NUM_ARRAYS; array++)
            if (on_disk(z, p, array)) bytes[records++] = p->numel * array_bytes(z, array);
    }
    if (!records) return ZERO_OK;
    const zero_swap_config config = { .directory = z->config.offload_dir,
                                      .bytes = bytes,
                                      .num_records = records,
                                      .num_buffers = ZERO_OFFLOAD_PARTS * arrays };
    return open_swap(z, config, "offload", &z->swap, &z->swap_bytes);
}

static int create_params_swap(zero *z, size_t *bytes) {
    struct part *end = z->parts + z->first_part[z->layout.num_units];
    if (params_offload(z) != ZERO_OFFLOAD_NVME || end == z->parts) return ZERO_OK;
    for (struct part *p = z->parts; p < end; p++) {
        p->params_record = (size_t)(p - z->parts);
        bytes[p->params_record] = p->numel * z->elem;
    }
    const zero_swap_config config = { .directory = z->config.offload_params_dir,
                                      .bytes = bytes,
                                      .num_records = (size_t)(end - z->parts),
                                      .num_buffers = ZERO_OFFLOAD_PARAM_PARTS,
                                      .forget = 1 };
    return open_swap(z, config, "offload_params", &z->params_swap, &z->params_swap_bytes);
}

static int create_swaps(zero *z) {
    size_t *bytes = malloc(z->first_part[z->layout.num_units] * NUM_ARRAYS * sizeof *bytes);
    int e = bytes ? create_state_swap(z, bytes) : zero_fail(z, ZERO_ERR_MEMORY, "out of host memory");
    if (!e) e = create_params_swap(z, bytes);
    free(bytes);
    return e;
}

int zero_state_create(zero *z, int e) {
    if (!e) e = create_parts(z);
    for (size_t i = 0; !e && i < z->first_part[z->layout.num_units]; i++)
        for (size_t array = 0; array < NUM_ARRAYS && !e; array++)
            if (array < ARRAY_STATES || !unit_frozen(z, z->parts[i].unit)) e = create_array(z, &z->parts[i], array);
    if (!e) e = create_chunks(z);
    if (!e && uses_disk(z)) e = create_swaps(z);
    return e ? e : zero_host_update_create(z);
}

void zero_state_destroy(zero *z) {
    zero_accounting *accounting = z->config.accounting;
    zero_host_update_destroy(z);
    for (size_t i = 0; z->parts && i < z->first_part[z->layout.num_units]; i++)
        for (size_t array = 0; array < NUM_ARRAYS; array++) destroy_array(z, &z->parts[i], array);
    zero_accounting_free(accounting, ZERO_MEM_TRANSPORT, z->chunks, z->num_chunks * sizeof *z->chunks);
    close_swap(z, z->swap, z->swap_bytes);
    close_swap(z, z->params_swap, z->params_swap_bytes);
    free(z->all_chunks);
    free(z->parts);
    free(z->first_part);
}

// ---- access ---------------------------------------------------------------------------------------------------------

static zero_swap *swap_of(const zero *z, size_t array) { return array == ARRAY_PARAMS ? z->params_swap : z->swap; }

int zero_swap_check(zero *z, zero_swap *s, int failed) {
    return failed ? zero_fail(z, ZERO_ERR_DISK, "%s", zero_swap_error(s)) : ZERO_OK;
}

size_t zero_part_record(const zero *z, const struct part *p, size_t array) {
    size_t record = p->record;
    for (size_t i = ARRAY_MASTER; i < array; i++) record += array_bytes(z, i) > 0;
    return array == ARRAY_PARAMS ? p->params_record : record;
}

// The next part whose array on the disk a step updates after p; p itself if it is the only one. Parameters: NULL if it
// is the last one, for a forward comes next.
static const struct part *next_on_disk(const zero *z, const struct part *p, size_t array) {
    const struct part *end = z->parts + z->first_part[z->layout.num_units], *next = p;
    do {
        if (++next == end && array == ARRAY_PARAMS) return NULL;
        if (next == end) next = z->parts;
    } while (next != p && (!on_disk(z, next, array) || unit_frozen(z, next->unit)));
    return next;
}

static char *acquire_record(zero *z, const struct part *p, size_t array) {
    if (array == ARRAY_PARAMS && zero_params_copied(z)) return NULL;
    return zero_swap_acquire(swap_of(z, array), zero_part_record(z, p, array));
}

static int prefetch_record(zero *z, const struct part *next, size_t array) {
    return zero_swap_prefetch(swap_of(z, array), zero_part_record(z, next, array));
}

int zero_part_acquire(zero *z, const struct part *p, char *arrays[NUM_ARRAYS]) {
    memcpy(arrays, p->arrays, sizeof p->arrays);
    for (size_t array = 0; array < NUM_ARRAYS; array++)
        if (on_disk(z, p, array) && !(arrays[array] = acquire_record(z, p, array))) return -1;
    for (size_t array = 0; array < NUM_ARRAYS; array++) {
        const struct part *next = on_disk(z, p, array) ? next_on_disk(z, p, array) : NULL;
        if (next && next != p && prefetch_record(z, next, array)) return -1;
    }
    return 0;
}

int zero_part_release(zero *z, const struct part *p) {
    int e = 0;
    for (size_t array = 0; array < NUM_ARRAYS && !e; array++)
        if (on_disk(z, p, array)) e = zero_swap_release(swap_of(z, array), zero_part_record(z, p, array), 1);
    return e;
}

int zero_part_error(zero *z) {
    int e = z->failed;
    if (!e && z->swap) e = zero_swap_check(z, z->swap, *zero_swap_error(z->swap) != 0);
    return e || !z->params_swap ? e : zero_swap_check(z, z->params_swap, *zero_swap_error(z->params_swap) != 0);
}

static int close_record(zero *z, size_t array) {
    struct open_record *o = &z->open[array];
    zero_swap *s = swap_of(z, array);
    if (!o->part) return ZERO_OK;
    int e = o->changed ? zero_comm_check(z, zero_comm_synchronize(z->config.shard_comm, z->config.stream)) : ZERO_OK;
    if (zero_swap_release(s, zero_part_record(z, o->part, array), o->changed)) e = zero_swap_check(z, s, 1);
    *o = (struct open_record){ 0 };
    return e;
}

static int open_record(zero *z, const struct part *p, size_t array) {
    struct open_record *o = &z->open[array];
    int e = o->part == p ? ZERO_OK : close_record(z, array);
    if (e || o->part == p) return e;
    o->ptr = acquire_record(z, p, array);
    if (!o->ptr) return zero_part_error(z);
    o->part = p;
    const struct part *next = next_on_disk(z, p, array);
    return next > p && prefetch_record(z, next, array) ? zero_part_error(z) : ZERO_OK;
}

int zero_state_open(zero *z, size_t u, size_t array, size_t at, int change, char **out, size_t *count) {
    const struct part *p = &z->parts[z->first_part[u]];
    while (at >= p->begin + p->numel) p++;
    const size_t skip = (at - p->begin) * array_bytes(z, array);
    int e = ZERO_OK;
    *count = p->begin + p->numel - at;
    if (on_disk(z, p, array)) {
        if ((e = open_record(z, p, array))) return e;
        *out = z->open[array].ptr + skip;
        z->open[array].changed |= change;
    } else {
        *out = p->arrays[array] + skip;
    }
    return e;
}

int zero_state_close(zero *z, int e) {
    for (size_t array = 0; array < NUM_ARRAYS; array++) {
        const int failed = close_record(z, array);
        if (!e) e = failed;
    }
    return e;
}

int zero_get_offload(const zero *z, zero_offload_info *out) {
    *out = (zero_offload_info){ .how = "", .how_params = "" };
    for (int params = 0; params < 2; params++) {
        const zero_swap *s = params ? z->params_swap : z->swap;
        if (!s) continue;
        const zero_swap_traffic t = zero_swap_get_traffic(s);
        *(params ? &out->how_params : &out->how) = zero_swap_description(s);
        out->read += t.read;
        out->written += t.written;
        out->waited_s += t.waited_s;
    }
    return z->config.settings.offload != ZERO_OFFLOAD_NONE || params_offload(z) != ZERO_OFFLOAD_NONE;
}
