// create.c: communicators of the MPI transport. MPI introduces the ranks to each other and carries messages between
// hosts; ranks of one host read each other's memory.
//
// Each rank finds out which ranks share its host, and maps their control blocks (collectives.c). Where that is
// impossible, as between containers, all bytes go by messages, and the transport's name says so.
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "zero/comm/bootstrap/mpi.h"
#include "zero/comm/mpi/mpi_internal.h"

static zero_comm_shape shape_of(size_t ranks, int staged, int remote) {
    return (zero_comm_shape){ &zero_mpi_ops, ranks, staged, remote, 0 };
}

static zero_comm_shape mpi_shape(const zero_comm *c) {
    const comm_mpi *m = (const comm_mpi *)c;
    return shape_of((size_t)c->size, m->staged, m->num_remote > 0);
}

// Which ranks live on this rank's host: those that MPI could give shared memory with.
static int find_host(comm_mpi *m) {
    MPI_Comm host = MPI_COMM_NULL;
    int e = MPI_SUCCESS, leader = m->base.rank, size = m->base.size, *leaders = malloc((size_t)size * sizeof *leaders);
    if (!leaders) return ZERO_ERR_MEMORY;
    if (m->config.ranks_per_host > 0) {
        leader = m->base.rank / m->config.ranks_per_host;
    } else {
        e = MPI_Comm_split_type(m->comm, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host);
        if (!e) e = MPI_Bcast(&leader, 1, MPI_INT, 0, host);
        if (!e) e = MPI_Comm_free(&host);
    }
    if (!e) e = MPI_Allgather(&leader, 1, MPI_INT, leaders, 1, MPI_INT, m->comm);
    for (int r = 0; r < size && !e; r++) m->on_host[r] = r == m->base.rank || leaders[r] == leader;
    free(leaders);
    return e ? ZERO_ERR_COMM : ZERO_OK;
}

static int find_world_ranks(comm_mpi *m) {
    MPI_Group world, group;
    const int size = m->base.size;
    int *own = malloc((size_t)size * sizeof *own);
    m->base.world_rank = calloc((size_t)size, sizeof *m->base.world_rank);
    if (!own || !m->base.world_rank) {
        free(own);
        return ZERO_ERR_MEMORY;
    }
    for (int r = 0; r < size; r++) own[r] = r;
    int e = MPI_Comm_group(MPI_COMM_WORLD, &world);
    if (!e) e = MPI_Comm_group(m->comm, &group);
    if (!e) e = MPI_Group_translate_ranks(group, size, own, world, m->base.world_rank);
    if (!e) e = MPI_Group_free(&world);
    if (!e) e = MPI_Group_free(&group);
    free(own);
    return e ? ZERO_ERR_COMM : ZERO_OK;
}

static void only_messages(comm_mpi *m) {
    for (int r = 0; r < m->base.size; r++) m->on_host[r] = r == m->base.rank;
}

// Maps the control blocks of the ranks of this host.
static int map_control(comm_mpi *m) {
    const int size = m->base.size;
    const char *note = "";
    if (m->config.no_shared_memory) only_messages(m);
    int e = zero_mpi_map(m, &m->control, sizeof(struct control));
    if (e == ZERO_ERR_MEMORY) {
        note = " (ranks of this host cannot map each other's memory)";
        only_messages(m);
        e = zero_mpi_map(m, &m->control, sizeof(struct control));
    }
    if (e == ZERO_ERR_MEMORY) zero_comm_fail(&m->base, e, "memfd_create failed: %s", strerror(errno));
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

// Takes comm over: it is freed with the communicator, also if this fails.
static int create_on(zero_comm **out, MPI_Comm comm, const zero_comm_config *config, zero_accounting *memory) {
    comm_mpi *m = calloc(1, sizeof *m);
    *out = (zero_comm *)m;
    if (!m) {
        (void)MPI_Comm_free(&comm);
        return ZERO_ERR_MEMORY;
    }
    m->base.ops = &zero_mpi_ops;
    m->memory = memory;
    m->comm = comm;
    m->config = *config;
    if (m->config.timeout_s <= 0) m->config.timeout_s = 300;
    if (MPI_Comm_set_errhandler(m->comm, MPI_ERRORS_RETURN) || MPI_Comm_rank(m->comm, &m->base.rank) ||
        MPI_Comm_size(m->comm, &m->base.size))
        return zero_comm_fail(&m->base, ZERO_ERR_COMM, "MPI does not know the communicator's ranks");
    const int size = m->base.size;
    m->on_host = calloc((size_t)size, sizeof *m->on_host);
    m->chunks = calloc((size_t)size, sizeof *m->chunks);
    m->chunks_device = zero_accounting_alloc(memory, ZERO_MEM_TRANSPORT, (size_t)size * sizeof *m->chunks);
    int e = m->on_host && m->chunks && m->chunks_device ? find_world_ranks(m) : ZERO_ERR_MEMORY;
    if (!e && size > 1) e = find_host(m);
    if (e == ZERO_ERR_MEMORY) return zero_comm_fail(&m->base, e, "no memory for the tables of %d ranks", size);
    if (e) return zero_comm_fail(&m->base, e, "MPI failed while %d ranks found out who is on which host", size);
    struct cudaPointerAttributes where;
    e = zero_mpi_device_check(m, cudaPointerGetAttributes(&where, m->chunks_device));
    if (e) return e;
    m->staged = config->staged || !where.hostPointer;  // on a GPU
    if (size > 1) return map_control(m);
    m->on_host[0] = 1;
    snprintf(m->base.name, sizeof m->base.name, "none: one rank");
    return ZERO_OK;
}

// A communicator that can only say what went wrong, and be destroyed.
static int fail_without_ranks(zero_comm **out, const char *message) {
    comm_mpi *m = calloc(1, sizeof *m);
    *out = (zero_comm *)m;
    if (!m) return ZERO_ERR_MEMORY;
    m->base.ops = &zero_mpi_ops;
    m->base.size = 1;
    m->comm = MPI_COMM_NULL;
    return zero_comm_fail(&m->base, ZERO_ERR_COMM, "%s", message);
}

static int mpi_create(zero_comm **out, zero_bootstrap *boot, const zero_comm_config *config, zero_accounting *memory) {
    const MPI_Comm all = zero_bootstrap_mpi_comm(boot);
    MPI_Comm comm;
    if (all == MPI_COMM_NULL)
        return fail_without_ranks(out, "the mpi transport needs ranks that met by MPI (zero_bootstrap_create_mpi), not "
                                       "by TCP or a directory: use that, or the nccl transport");
    if (MPI_Comm_dup(all, &comm)) return fail_without_ranks(out, "MPI_Comm_dup failed");
    return create_on(out, comm, config, memory);
}

static int mpi_split(zero_comm *from, int color, int rank, int size, zero_comm **out) {
    comm_mpi *m = zero_mpi_self(from);
    MPI_Comm part;
    if (MPI_Comm_split(m->comm, color, rank, &part)) return fail_without_ranks(out, "MPI_Comm_split failed");
    const int e = create_on(out, part, &m->config, m->memory);
    if (!e && ((*out)->rank != rank || (*out)->size != size))
        return zero_comm_fail(*out, ZERO_ERR_COMM,
                              "the ranks disagree about the mesh: this is rank %d of %d, not %d of %d", (*out)->rank,
                              (*out)->size, rank, size);
    return e;
}

static void mpi_destroy(zero_comm *c) {
    comm_mpi *m = zero_mpi_self(c);
    zero_comm_free_all(c);
    if (m->memory)
        zero_accounting_add(m->memory, ZERO_MEM_TRANSPORT, 0,
                            m->control.bytes + m->received_bytes + m->device_scratch_bytes);
    if (m->staging.peer) zero_mpi_unmap_staging(m, &m->staging);
    zero_shm_unmap(&m->control);
    (void)cudaFreeHost(m->received);
    (void)cudaFree(m->device_scratch);
    zero_accounting_free(m->memory, ZERO_MEM_TRANSPORT, m->chunks_device, (size_t)c->size * sizeof *m->chunks);
    free(m->chunks);
    zero_mpi_free_messages(&m->messages);
    free(m->on_host);
    free(c->world_rank);
    int finalized = 0;
    (void)MPI_Finalized(&finalized);
    if (!finalized && m->comm != MPI_COMM_NULL) (void)MPI_Comm_free(&m->comm);
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
    return shape_of(ranks, config->staged, remote);
}

const zero_transport zero_transport_mpi = {
    .name = "mpi",
    .title = "MPI",
    .needs_mpi = 1,
    .available = available,
    .shape = planned_shape,
    .create = mpi_create,
};
