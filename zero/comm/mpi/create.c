// create.c: communicators of the MPI transport. MPI introduces the ranks to each other and carries messages between
// hosts; ranks of one host read each other's memory.
//
// Each rank finds out which ranks share its host, and maps their control blocks (collectives.c). Where that is
// impossible, as between containers, all bytes go by messages, and the transport's name says so.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "zero/comm/bootstrap/mpi.h"
#include "zero/comm/mpi/mpi_internal.h"

static zero_comm_shape shape_of(size_t ranks, int staged, int remote, int per_host) {
    return (zero_comm_shape){
        .ops = &zero_mpi_ops, .ranks = ranks, .staged = staged, .remote = remote, .per_host = (size_t)per_host
    };
}

static zero_comm_shape mpi_shape(const zero_comm *c) {
    const comm_mpi *m = (const comm_mpi *)c;
    return shape_of((size_t)c->size, m->staged, m->num_remote > 0, c->per_host);
}

static int find_host(comm_mpi *m) {
    zero_comm *c = &m->base;
    const int pretended = m->config.ranks_per_host > 0 ? c->world_rank[c->rank] / m->config.ranks_per_host : 0;
    int per_host = 0;
    const int e = zero_shm_find_host(c->rank, c->size, pretended, m->on_host, &per_host, zero_mpi_meet, m);
    if (!e) zero_comm_set_hosts(c, per_host, &m->config);
    return e == ZERO_ERR_MEMORY ? zero_comm_fail(c, e, "out of host memory") : e;
}

static int find_world_ranks(comm_mpi *m) {
    MPI_Group world, group;
    m->base.world_rank = calloc((size_t)m->base.size, sizeof *m->base.world_rank);
    if (!m->base.world_rank) return zero_comm_fail(&m->base, ZERO_ERR_MEMORY, "out of host memory");
    int e = MPI_Comm_group(MPI_COMM_WORLD, &world);
    if (!e) e = MPI_Comm_group(m->root->comm, &group);
    if (!e) e = MPI_Group_translate_ranks(group, m->base.size, m->mpi_rank, world, m->base.world_rank);
    if (!e) e = MPI_Group_free(&world);
    if (!e) e = MPI_Group_free(&group);
    return e ? zero_comm_fail(&m->base, ZERO_ERR_COMM, "MPI does not know the ranks of the communicator") : ZERO_OK;
}

static void only_messages(comm_mpi *m) {
    for (int r = 0; r < m->base.size; r++) m->on_host[r] = r == m->base.rank;
    m->base.per_host = 0;
    m->base.why_one_level = "ranks of a host share no memory";
}

// Maps the control blocks of the ranks of this host.
static int map_control(comm_mpi *m) {
    const int size = m->base.size;
    const char *note = "";
    if (m->config.no_shared_memory) only_messages(m);
    int e = zero_mpi_map(m, &m->control, m->memory, sizeof(struct control));
    if (e == ZERO_ERR_MEMORY) {
        note = " (ranks of this host cannot map each other's memory)";
        only_messages(m);
        e = zero_mpi_map(m, &m->control, m->memory, sizeof(struct control));
    }
    if (e == ZERO_ERR_MEMORY)
        zero_comm_fail(&m->base, e, "no shared memory for %zu bytes of control blocks: %s", sizeof(struct control),
                       m->control.why);
    if (e) return e;
    zero_accounting_add(m->memory, ZERO_MEM_TRANSPORT, sizeof(struct control), 0);
    int on_host = 0;
    for (int r = 0; r < size; r++) on_host += m->on_host[r];
    m->num_remote = size - on_host;
    const int sharing = on_host > 1;
    int *all = calloc((size_t)size, sizeof *all);
    e = all ? zero_mpi_meet(m, &sharing, sizeof sharing, all)
            : zero_comm_fail(&m->base, ZERO_ERR_MEMORY, "out of host memory");
    for (int r = 0; r < size && !e; r++) m->sharing |= all[r];
    free(all);
    if (e) return e;
    m->spin = on_host <= sysconf(_SC_NPROCESSORS_ONLN) ? 2000 : 0;
    m->pinned = m->staged && zero_mpi_can_pin(m->control.peer[m->base.rank], sizeof(struct control));
    snprintf(m->base.name, sizeof m->base.name, "MPI, %s%s%s%s",
             m->num_remote == 0 ? "shared memory"
             : !m->sharing      ? "messages"
                                : "shared memory and messages",
             m->staged ? ", staged through the host" : "",
             m->staged && !m->pinned ? " (slower: its memory cannot be pinned here)" : "", note);
    return ZERO_OK;
}

// A communicator of `size` ranks, of which this is `rank`, on the root. mpi_rank is taken over. In every case *out is
// set unless memory is exhausted.
static int create_on(zero_comm **out, struct mpi_root *root, int context, int rank, int size, int *mpi_rank,
                     const zero_comm_config *config, zero_accounting *memory) {
    comm_mpi *m = calloc(1, sizeof *m);
    *out = (zero_comm *)m;
    root->users++;
    if (!m) return ZERO_ERR_MEMORY;
    m->base.ops = &zero_mpi_ops;
    m->base.rank = rank;
    m->base.size = size;
    m->memory = memory;
    m->root = root;
    m->context = context;
    m->mpi_rank = mpi_rank;
    m->config = *config;
    if (m->config.timeout_s <= 0) m->config.timeout_s = 300;
    m->on_host = calloc((size_t)size, sizeof *m->on_host);
    m->last = calloc((size_t)size, sizeof *m->last);
    m->chunks = calloc((size_t)size, sizeof *m->chunks);
    m->chunks_device = zero_accounting_alloc(memory, ZERO_MEM_TRANSPORT, (size_t)size * sizeof *m->chunks);
    if (!m->on_host || !m->last || !m->chunks || !m->chunks_device)
        return zero_comm_fail(&m->base, ZERO_ERR_MEMORY, "no memory for the tables of %d ranks", size);
    int e = find_world_ranks(m);
    if (!e && size > 1) e = find_host(m);
    if (e) return e;
    struct cudaPointerAttributes where;
    e = zero_mpi_device_check(m, cudaPointerGetAttributes(&where, m->chunks_device));
    if (e) return e;
    m->staged = config->staged || !where.hostPointer;  // on a GPU
    if (size > 1) return map_control(m);
    m->on_host[0] = 1;
    snprintf(m->base.name, sizeof m->base.name, "none: one rank");
    return ZERO_OK;
}

// A communicator that only has a message, and can be destroyed.
static int fail_without_ranks(zero_comm **out, int code, const char *message) {
    comm_mpi *m = calloc(1, sizeof *m);
    *out = (zero_comm *)m;
    if (!m) return ZERO_ERR_MEMORY;
    m->base.ops = &zero_mpi_ops;
    m->base.size = 1;
    return zero_comm_fail(&m->base, code, "%s", message);
}

static int mpi_create(zero_comm **out, zero_bootstrap *boot, const zero_comm_config *config, zero_accounting *memory) {
    const int size = zero_bootstrap_ranks(boot);
    const double timeout_s = config->timeout_s > 0 ? config->timeout_s : 300;
    struct mpi_root *root = calloc(1, sizeof *root);
    int *mpi_rank = malloc((size_t)size * sizeof *mpi_rank);
    const int memory_left = root && mpi_rank;
    for (int r = 0; r < size && memory_left; r++) mpi_rank[r] = r;
    const int e = memory_left ? zero_bootstrap_dup_mpi(boot, &root->comm, timeout_s) : ZERO_ERR_MEMORY;
    if (e) {
        free(root);
        free(mpi_rank);
        return fail_without_ranks(
            out, e == ZERO_ERR_ARG ? ZERO_ERR_COMM : e,
            e == ZERO_ERR_ARG ? "the mpi transport needs ranks that met by MPI (zero_bootstrap_create_mpi), not "
                                "by TCP or a directory: use that, or the nccl transport"
            : memory_left     ? zero_bootstrap_error(boot)
                              : "out of host memory");
    }
    return create_on(out, root, 0, zero_bootstrap_rank(boot), size, mpi_rank, config, memory);
}

static int mpi_split(zero_comm *from, int color, int rank, int size, zero_comm **out) {
    comm_mpi *m = zero_mpi_self(from);
    struct place {
        int color, rank, size;
    } mine = { color, rank, size }, *all = calloc((size_t)from->size, sizeof *all);
    int *mpi_rank = malloc((size_t)size * sizeof *mpi_rank), found = 0;
    const int e = all && mpi_rank ? zero_mpi_meet(m, &mine, sizeof mine, all)
                                  : zero_comm_fail(from, ZERO_ERR_MEMORY, "out of host memory");
    for (int r = 0; r < from->size && !e; r++) {
        if (all[r].color != color || all[r].size != size || all[r].rank < 0 || all[r].rank >= size) continue;
        mpi_rank[all[r].rank] = m->mpi_rank[r];
        found++;
    }
    free(all);
    if (e || found != size) {
        free(mpi_rank);
        const int code = fail_without_ranks(out, e ? e : ZERO_ERR_COMM, "the ranks disagree about the mesh");
        if (e && *out) memcpy((*out)->error, from->error, sizeof from->error);
        return code;
    }
    return create_on(out, m->root, ++m->root->contexts, rank, size, mpi_rank, &m->config, m->memory);
}

static void release_root(const comm_mpi *m) {
    struct mpi_root *root = m->root;
    if (!root) return;
    root->failed |= m->base.failed;
    if (--root->users) return;
    if (!root->failed) zero_bootstrap_free(&root->comm, m->config.timeout_s);
    free(root);
}

static void mpi_destroy(zero_comm *c) {
    comm_mpi *m = zero_mpi_self(c);
    zero_mpi_free_messages(m, &m->messages);
    zero_comm_free_all(c);
    if (m->memory)
        zero_accounting_add(m->memory, ZERO_MEM_TRANSPORT, 0,
                            m->control.bytes + m->received_bytes + m->device_scratch_bytes);
    if (c->in_flight) {  // scratch and staging are kept
        if (m->staging.peer) zero_accounting_add(m->memory, ZERO_MEM_TRANSPORT, 0, m->staging.bytes);
    } else {
        if (m->staging.peer) zero_mpi_unmap_staging(m, &m->staging);
        zero_shm_unmap(&m->control);
        (void)cudaFreeHost(m->received);
        (void)cudaFree(m->device_scratch);
    }
    zero_accounting_free(m->memory, ZERO_MEM_TRANSPORT, m->chunks_device, (size_t)c->size * sizeof *m->chunks);
    free(m->chunks);
    free(m->on_host);
    free(m->mpi_rank);
    free(c->world_rank);
    free(m->last);
    release_root(m);
    if (c->in_flight)
        zero_keep(m);  // it has records that are being sent
    else
        free(m);
}

const zero_comm_ops zero_mpi_ops = {
    .split = mpi_split,
    .alloc = zero_mpi_alloc,
    .free = zero_mpi_free,
    .all_to_all_begin = zero_mpi_all_to_all_begin,
    .all_to_all_finish = zero_mpi_all_to_all_finish,
    .all_to_all_done = zero_mpi_all_to_all_done,
    .allgather_begin = zero_mpi_allgather_begin,
    .allgather_finish = zero_mpi_allgather_finish,
    .reusable = zero_mpi_reusable,
    .reduce_scatter = zero_mpi_reduce_scatter,
    .allgather_host = zero_mpi_allgather_host,
    .window_create = zero_mpi_window_create,
    .window_destroy = zero_mpi_window_destroy,
    .window_open = zero_mpi_window_open,
    .window_close = zero_mpi_window_close,
    .window_gather_begin = zero_mpi_window_gather_begin,
    .window_gather_finish = zero_mpi_window_gather_finish,
    .window_scratch_bytes = zero_mpi_window_scratch_bytes,
    .shape = mpi_shape,
    .scratch_bytes = zero_mpi_scratch_bytes,
    .synchronize = zero_mpi_synchronize,
    .destroy = mpi_destroy,
};

static int available(const zero_comm_config *config, char *message, size_t bytes) {
    (void)config;
    int length = 0;
    char version[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    (void)MPI_Get_library_version(version, &length);
    version[strcspn(version, ",\n")] = '\0';
    snprintf(message, bytes, "MPI (%s)", version);
    return 1;
}

static zero_comm_shape planned_shape(const zero_comm_config *config, size_t ranks, int remote) {
    return shape_of(ranks, config->staged, remote || (config->no_shared_memory && ranks > 1), 0);
}

const zero_transport zero_transport_mpi = {
    .name = "mpi",
    .title = "MPI",
    .needs_mpi = 1,
    .available = available,
    .shape = planned_shape,
    .create = mpi_create,
};
