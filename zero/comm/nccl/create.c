// create.c: context and communicators of the NCCL transport.
//
//     zero_comm_create        rank 0's id travels by the bootstrap --> ncclCommInitRankConfig --> world ranks by the
//                             first collective, which also shows whether the communicator works
//     split                   ncclCommSplit of the communicator of all ranks, for a mesh
//
// Communicators of one creation share a context: library, stream, watchdog. The last one that is destroyed frees it.
#include "zero/comm/nccl/nccl_internal.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef ZERO_HAS_NCCL

static int available(const zero_comm_config *config, char *message, size_t bytes) {
    (void)config;
    snprintf(
        message, bytes,
        "this program was built without NCCL (there was no nccl.h, or NCCL=0): install it (libnccl-dev of NVIDIA's "
        "packages) and build again, or use the mpi transport");
    return 0;
}

static void destroy(zero_comm *c) { free(c); }

static const zero_comm_ops ops = { .scratch_bytes = zero_nccl_scratch_bytes,
                                   .window_scratch_bytes = zero_nccl_window_scratch_bytes,
                                   .destroy = destroy,
                                   .sums_narrow = 1,
                                   .gathers_in_ring = 1 };

static int create(zero_comm **out, zero_bootstrap *boot, const zero_comm_config *config, zero_accounting *memory) {
    char why[300];
    (void)boot;
    (void)memory;
    *out = calloc(1, sizeof **out);
    if (!*out) return ZERO_ERR_MEMORY;
    (*out)->ops = &ops;
    (*out)->size = 1;
    (void)available(config, why, sizeof why);
    return zero_comm_fail(*out, ZERO_ERR_COMM, "%s", why);
}

#define OPS ops
#else
#define OPS zero_nccl_ops
#endif

static zero_comm_shape planned_shape(const zero_comm_config *config, size_t ranks, int remote) {
    (void)remote;
    return (zero_comm_shape){ .ops = &OPS,
                              .ranks = ranks,
                              .granularity = config->register_buffers && ranks > 1 ? NCCL_GRANULARITY : 0 };
}

#ifdef ZERO_HAS_NCCL
#if __has_include(<cuda.h>) && !defined NCCL_ON_CPU
#include <cuda.h>
#include <dlfcn.h>

// What ncclMemAlloc rounds to: NCCL asks the driver in the same way (src/allocator.cc).
static size_t device_granularity(int device) {
    const CUmemAllocationProp p = { .type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                    .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                    .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device } };
    CUresult (*ask)(size_t *, const CUmemAllocationProp *, CUmemAllocationGranularity_flags) = NULL;
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    size_t bytes = 0;
    if (driver) *(void **)&ask = dlsym(driver, "cuMemGetAllocationGranularity");
    const int known = ask && ask(&bytes, &p, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED) == CUDA_SUCCESS && bytes;
    return known ? bytes : NCCL_GRANULARITY;
}
#else
static size_t device_granularity(int device) {
    (void)device;
    return NCCL_GRANULARITY;
}
#endif

static zero_comm_shape nccl_shape(const zero_comm *c) {
    const comm_nccl *m = (const comm_nccl *)c;
    return (zero_comm_shape){ .ops = &zero_nccl_ops,
                              .ranks = (size_t)c->size,
                              .per_host = (size_t)c->per_host,
                              .granularity = m->comm ? m->context->granularity : 0 };
}

static int available(const zero_comm_config *config, char *message, size_t bytes) {
    struct nccl_library lib;
    if (zero_nccl_load(&lib, config->library, message, bytes)) return 0;
#ifdef NCCL_ON_CPU
    snprintf(message, bytes, "NCCL's calls on the CPU");
#else
    snprintf(message, bytes, "NCCL %d.%d.%d", lib.version / 10000, lib.version / 100 % 100, lib.version % 100);
#endif
    return 1;
}

// ---- the context ----------------------------------------------------------------------------------------------------

static cudaError_t create_stream(struct nccl_context *x) {
    int least = 0, greatest = 0;
    cudaError_t e = cudaGetDevice(&x->device);
    if (e == cudaSuccess) e = cudaDeviceGetStreamPriorityRange(&least, &greatest);
    if (e == cudaSuccess) e = cudaStreamCreateWithPriority(&x->stream, cudaStreamNonBlocking, greatest);
    if (e == cudaSuccess) e = cudaEventCreateWithFlags(&x->order, cudaEventDisableTiming);
    for (int i = 0; i < NCCL_RING && e == cudaSuccess; i++) {
        e = cudaEventCreateWithFlags(&x->ops[i].begun, cudaEventDisableTiming);
        if (e == cudaSuccess) e = cudaEventCreateWithFlags(&x->ops[i].ended, cudaEventDisableTiming);
        if (e == cudaSuccess) e = cudaEventCreateWithFlags(&x->ops[i].read, cudaEventDisableTiming);
    }
    return e;
}

static int create_context(struct nccl_context **out, int ranks, const zero_comm_config *config, char *err,
                          size_t err_bytes) {
    struct nccl_context *x = *out = calloc(1, sizeof *x);
    pthread_condattr_t clock;
    if (!x) {
        snprintf(err, err_bytes, "out of host memory");
        return ZERO_ERR_MEMORY;
    }
    x->users = 1;
    x->ran.seconds = 1;
    x->config = *config;
    if (x->config.timeout_s <= 0) x->config.timeout_s = 300;
    pthread_mutex_init(&x->calls, NULL);
    pthread_mutex_init(&x->lock, NULL);
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&x->wake, &clock);
    pthread_cond_init(&x->gone, &clock);
    pthread_condattr_destroy(&clock);
    const int e = ranks > 1 ? zero_nccl_load(&x->lib, config->library, err, err_bytes) : ZERO_OK;
    if (e) return e;
    const cudaError_t device = create_stream(x);
    if (device != cudaSuccess) {
        snprintf(err, err_bytes, "the transport's stream: %s", cudaGetErrorString(device));
        return ZERO_ERR_DEVICE;
    }
    if (ranks == 1) return ZERO_OK;
    if (config->register_buffers) x->granularity = device_granularity(x->device);
    if (zero_nccl_start_watchdog(x) == ZERO_OK) return ZERO_OK;
    snprintf(err, err_bytes, "the watchdog of NCCL: no thread can be started");
    return ZERO_ERR_COMM;
}

static void release_context(struct nccl_context *x) {
    if (!x || --x->users) return;
    zero_nccl_stop_watchdog(x);
    for (int i = 0; i < x->num_comms; i++) (void)x->lib.CommDestroy(x->comms[i]);  // that no zero_comm has
    for (int i = 0; i < NCCL_RING; i++) {
        if (x->ops[i].begun) (void)cudaEventDestroy(x->ops[i].begun);
        if (x->ops[i].ended) (void)cudaEventDestroy(x->ops[i].ended);
        if (x->ops[i].read) (void)cudaEventDestroy(x->ops[i].read);
    }
    if (x->order) (void)cudaEventDestroy(x->order);
    if (x->stream) (void)cudaStreamDestroy(x->stream);
    pthread_cond_destroy(&x->wake);
    pthread_cond_destroy(&x->gone);
    pthread_mutex_destroy(&x->lock);
    pthread_mutex_destroy(&x->calls);
    free(x);
}

// ---- communicators --------------------------------------------------------------------------------------------------

static ncclConfig_t non_blocking(void) {
    ncclConfig_t c = NCCL_CONFIG_INITIALIZER;
    c.blocking = 0;
    return c;
}

static comm_nccl *new_comm(int rank, int size, struct nccl_context *x, zero_accounting *memory) {
    comm_nccl *m = calloc(1, sizeof *m);
    if (!m) return NULL;
    m->base.ops = &zero_nccl_ops;
    m->base.rank = rank;
    m->base.size = size;
    m->memory = memory;
    m->context = x;
    return m;
}

static int meet(void *comm, const void *mine, size_t bytes, void *all) {
    return zero_comm_allgather_host(comm, mine, bytes, all);
}

// Finds the hosts. Ranks of one host see each other's last collective, so that after a time-out they can tell who is
// behind. Where they cannot map each other's memory, as between containers, they do without.
static int show_collectives(comm_nccl *m) {
    const zero_comm_config *config = &m->context->config;
    const int rank = m->base.rank, size = m->base.size, world_rank = zero_comm_world_rank(&m->base, rank),
              pretended = config->ranks_per_host > 0 ? world_rank / config->ranks_per_host : 0;
    int *on_host = calloc((size_t)size, sizeof *on_host), per_host = 0;
    int e = on_host ? zero_shm_find_host(rank, size, pretended, on_host, &per_host, meet, m) : ZERO_ERR_MEMORY;
    if (!e) zero_comm_set_hosts(&m->base, per_host, config);
    if (!e) e = zero_shm_map(&m->shown, rank, size, on_host, sizeof(struct zero_comm_shown), "", meet, m);
    free(on_host);
    if (!e) m->base.shown = (struct zero_comm_shown *)m->shown.peer[rank];
    return e == ZERO_ERR_MEMORY ? ZERO_OK : e;
}

// The last part of creating: tables, everybody's world rank, and what ranks see of each other.
static int set_up(comm_nccl *m, int world_rank) {
    const size_t size = (size_t)m->base.size;
    m->base.stream = m->context->stream;
    const int tables = zero_nccl_alloc_tables(m);
    if (tables) return tables;
    int *all = calloc(size, sizeof *all);
    if (!all) return zero_comm_fail(&m->base, ZERO_ERR_MEMORY, "out of host memory");
    for (size_t r = 0; r < size; r++) all[r] = world_rank;  // until all are known: of this rank, in messages
    m->base.world_rank = all;
    int e = zero_comm_allgather_host(&m->base, &world_rank, sizeof world_rank, all);
    if (!e && size > 1) e = show_collectives(m);
    m->base.received[ZERO_WIRE_SCALARS] = 0;
    return e;
}

struct card {
    int rank, broken;
    ncclUniqueId id;  // of rank 0
};

// The first rank that cannot use NCCL, or else rank 0.
static int first_broken(const void *all, int ranks) {
    const struct card *cards = all;
    int r = 0;
    while (r < ranks && !cards[r].broken) r++;
    return r < ranks ? r : 0;
}

// Rank 0 makes the id. All ranks learn it, and whether all can use NCCL.
static int share_id(comm_nccl *m, zero_bootstrap *boot, int broken, ncclUniqueId *id) {
    struct card mine = { .rank = m->base.rank, .broken = broken }, first;
    ncclResult_t made = ncclSuccess;
    if (!broken && m->base.rank == 0) made = m->context->lib.GetUniqueId(&mine.id);
    if (made != ncclSuccess) mine.broken = 1;
    int e = zero_bootstrap_choose(boot, &mine, sizeof mine, first_broken, &first);
    if (e && !broken) zero_comm_fail(&m->base, e, "%s", zero_bootstrap_error(boot));
    if (!e && made != ncclSuccess)
        e = zero_comm_fail(&m->base, ZERO_ERR_COMM,
                           "ncclGetUniqueId failed: \"%s\"; run with NCCL_DEBUG=INFO for NCCL's own messages, or use "
                           "the mpi transport",
                           m->context->lib.GetErrorString(made));
    if (!e && !broken && first.broken)
        e = zero_comm_fail(&m->base, ZERO_ERR_COMM, "rank %d cannot use NCCL, and reports why; use the mpi transport",
                           first.rank);
    *id = first.id;
    return e;
}

static int init_rank(comm_nccl *m, ncclUniqueId id) {
    struct nccl_context *x = m->context;
    ncclConfig_t c = non_blocking();
    const int e = zero_nccl_enter(m, "meeting of all ranks");
    if (e) return e;
    const ncclResult_t r = x->lib.CommInitRankConfig(&m->comm, m->base.size, id, m->base.rank, &c);
    if (m->comm) x->comms[x->num_comms++] = m->comm;
    return zero_nccl_leave(m, m->comm, r);
}

static int create(zero_comm **out, zero_bootstrap *boot, const zero_comm_config *config, zero_accounting *memory) {
    char err[400] = "";
    const int rank = zero_bootstrap_rank(boot), size = zero_bootstrap_ranks(boot);
    comm_nccl *m = new_comm(rank, size, NULL, memory);
    *out = (zero_comm *)m;
    if (!m) return ZERO_ERR_MEMORY;
    int e = create_context(&m->context, size, config, err, sizeof err);
    if (e) zero_comm_fail(&m->base, e, "%s", err);
    if (size > 1) {
        ncclUniqueId id;
        const int shared = share_id(m, boot, e != ZERO_OK,
                                    &id);  // also if this rank has failed: the others wait for it
        if (!e) e = shared;
        if (!e) e = init_rank(m, id);
    }
    if (!e) e = set_up(m, rank);
    if (size == 1)
        snprintf(m->base.name, sizeof m->base.name, "none: one rank");
    else if (!e)
        available(config, m->base.name, sizeof m->base.name);
    return e;
}

// NCCL returns ncclSuccess, not ncclInProgress, with a communicator that stays NULL until the *parent* has left
// ncclInProgress (src/init.cc: the job belongs to the parent). After that the child may be in progress itself.
static int split_comm(comm_nccl *from, int color, int rank, ncclComm_t *child) {
    struct nccl_context *x = from->context;
    ncclConfig_t c = non_blocking();
    int e = zero_nccl_enter(from, "splitting of the ranks");
    if (e) return e;
    const ncclResult_t r = x->lib.CommSplit(from->comm, color, rank, child, &c);
    e = zero_nccl_leave(from, from->comm, r == ncclSuccess ? ncclInProgress : r);
    if (!e) e = zero_nccl_enter(from, "splitting of the ranks");
    if (e) return e;
    if (*child) x->comms[x->num_comms++] = *child;
    return zero_nccl_leave(from, *child, *child ? ncclInProgress : ncclInternalError);
}

static int split(zero_comm *base, int color, int rank, int size, zero_comm **out) {
    comm_nccl *from = zero_nccl_self(base), *m = new_comm(rank, size, from->context, from->memory);
    *out = (zero_comm *)m;
    if (!m) return ZERO_ERR_MEMORY;
    from->context->users++;
    snprintf(m->base.name, sizeof m->base.name, "%s", size == 1 ? "none: one rank" : base->name);
    const int e = size > 1 ? split_comm(from, color, rank, &m->comm) : ZERO_OK;
    if (!e) return set_up(m, zero_comm_world_rank(base, base->rank));
    memcpy(m->base.error, base->error, sizeof m->base.error);
    m->base.failed = base->failed;
    return e;
}

static void destroy(zero_comm *c) {
    comm_nccl *m = zero_nccl_self(c);
    struct nccl_context *x = m->context;
    if (x && x->stream) (void)cudaStreamSynchronize(x->stream);  // ends: if need be the watchdog sees to it
    if (x) {
        zero_nccl_wait_until_aborted(x);
        zero_comm_free_all(c);
        zero_nccl_free_tables(m);
    }
    if (m->comm && !zero_nccl_enter(m, "end of the communicator") &&
        !zero_nccl_leave(m, m->comm, x->lib.CommFinalize(m->comm)) && !zero_nccl_enter(m, "end of the communicator")) {
        for (int i = 0; i < x->num_comms; i++)
            if (x->comms[i] == m->comm) x->comms[i--] = x->comms[--x->num_comms];
        (void)zero_nccl_leave(m, NULL, x->lib.CommDestroy(m->comm));
    }
    if (x) zero_nccl_wait_until_aborted(x);
    zero_shm_unmap(&m->shown);
    release_context(x);
    free(c->world_rank);
    free(m);
}

const zero_comm_ops zero_nccl_ops = {
    .split = split,
    .alloc = zero_nccl_alloc,
    .free = zero_nccl_free,
    .all_to_all_begin = zero_nccl_all_to_all_begin,
    .all_to_all_finish = zero_nccl_all_to_all_finish,
    .all_to_all_done = zero_nccl_all_to_all_done,
    .allgather_begin = zero_nccl_allgather_begin,
    .allgather_finish = zero_nccl_allgather_finish,
    .reusable = zero_nccl_reusable,
    .reduce_scatter = zero_nccl_reduce_scatter,
    .allgather_host = zero_nccl_allgather_host,
    .window_create = zero_nccl_window_create,
    .window_destroy = zero_nccl_window_destroy,
    .window_open = zero_nccl_window_open,
    .window_close = zero_nccl_window_close,
    .window_gather_begin = zero_nccl_window_gather_begin,
    .window_gather_finish = zero_nccl_window_gather_finish,
    .window_scratch_bytes = zero_nccl_window_scratch_bytes,
    .shape = nccl_shape,
    .scratch_bytes = zero_nccl_scratch_bytes,
    .synchronize = zero_nccl_synchronize,
    .destroy = destroy,
    .sums_narrow = 1,
    .gathers_in_ring = 1,
};
#endif

const zero_transport zero_transport_nccl = {
    .name = "nccl",
    .title = "NCCL",
    .needs_device = 1,
    .available = available,
    .shape = planned_shape,
    .create = create,
};
