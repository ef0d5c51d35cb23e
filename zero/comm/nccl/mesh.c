// mesh_nccl.c: NCCL communicators: that of all ranks, whose id travels by the bootstrap, and those of a mesh, split off
// from it.
#include "zero/comm/nccl/nccl_internal.h"
#ifdef ZERO_HAS_NCCL
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int zero_comm_nccl_available(const char *library, char *words, size_t bytes) {
    struct nccl_library lib;
    if (zero_nccl_load(&lib, library, words, bytes)) return 0;
#ifdef NCCL_ON_CPU
    snprintf(words, bytes, "NCCL's calls on the CPU");
#else
    snprintf(words, bytes, "NCCL %d.%d.%d", lib.version / 10000, lib.version / 100 % 100, lib.version % 100);
#endif
    return 1;
}

static ncclConfig_t non_blocking(void) {
    ncclConfig_t c = NCCL_CONFIG_INITIALIZER;
    c.blocking = 0;
    return c;
}

// The names of the ranks, by the first collective, which also shows whether the communicator works. It is not in the
// books of the wire.
static int find_names(comm_nccl *m, int name) {
    const size_t size = (size_t)m->base.size;
    int *names = calloc(size, sizeof *names);
    m->base.names = NULL;
    if (!names) return zero_comm_fail(&m->base, ZERO_ERR_MEMORY, "out of host memory");
    for (size_t r = 0; r < size; r++) names[r] = name;  // until all are known: of this rank, in messages
    m->base.names = names;
    const int e = zero_comm_allgather_host(&m->base, &name, sizeof name, names);
    m->base.received[ZERO_WIRE_SCALARS] = 0;
    return e;
}

static comm_nccl *new_transport(int rank, int size, struct nccl_context *f, zero_accounting *memory) {
    comm_nccl *m = calloc(1, sizeof *m);
    if (!m) return NULL;
    m->base.ops = &zero_nccl_ops;
    m->base.rank = rank;
    m->base.size = size;
    m->memory = memory;
    m->f = f;
    return m;
}

// Rank 0 makes the id up; the others wait for it, and for each other's library.
static int share_id(comm_nccl *m, zero_bootstrap *boot, int broken, ncclUniqueId *id) {
    struct card {
        int broken;
        ncclUniqueId id;
    } mine = { .broken = broken }, *all = calloc((size_t)m->base.size, sizeof *all);
    if (!all) return zero_comm_fail(&m->base, ZERO_ERR_MEMORY, "out of host memory");
    ncclResult_t made = ncclSuccess;
    if (!broken && m->base.rank == 0) made = m->f->lib.GetUniqueId(&mine.id);
    if (made != ncclSuccess) mine.broken = 1;
    int e = zero_bootstrap_allgather(boot, &mine, sizeof mine, all);
    if (e && !broken) zero_comm_fail(&m->base, e, "%s", zero_bootstrap_error(boot));
    if (!e && made != ncclSuccess)
        e = zero_comm_fail(
            &m->base, ZERO_ERR_COMM,
            "NCCL makes no id: it says \"%s\"; run with NCCL_DEBUG=INFO for its own words, or use --transport mpi",
            m->f->lib.GetErrorString(made));
    for (int r = 0; r < m->base.size && !e && !broken; r++)
        if (all[r].broken)
            e = zero_comm_fail(&m->base, ZERO_ERR_COMM, "rank %d cannot use NCCL, and says why; use --transport mpi",
                               r);
    *id = all[0].id;
    free(all);
    return e;
}

int zero_comm_create_nccl(zero_comm **out, zero_bootstrap *boot, const zero_comm_nccl_config *config,
                          zero_accounting *memory) {
    char err[400] = "";
    const int rank = zero_bootstrap_rank(boot), size = zero_bootstrap_ranks(boot);
    comm_nccl *m = new_transport(rank, size, NULL, memory);
    *out = (zero_comm *)m;
    if (!m) return ZERO_ERR_MEMORY;
    int e = zero_nccl_context_create(&m->f, size > 1, config, err, sizeof err);
    if (e) zero_comm_fail(&m->base, e, "%s", err);
    if (size > 1) {
        ncclUniqueId id;
        const int shared = share_id(m, boot, e != ZERO_OK, &id);
        ncclConfig_t c = non_blocking();
        if (!e) e = shared;
        if (!e) e = zero_nccl_enter(m, "meeting of all ranks");
        if (!e) {
            const ncclResult_t r = m->f->lib.CommInitRankConfig(&m->comm, size, id, rank, &c);
            if (m->comm) m->f->comms[m->f->num_comms++] = m->comm;
            e = zero_nccl_leave(m, m->comm, r);
        }
    }
    if (!e) e = zero_nccl_setup(m);
    if (!e) e = find_names(m, rank);
    if (size == 1)
        snprintf(m->base.name, sizeof m->base.name, "none: one rank");
    else if (!e)
        zero_comm_nccl_available(config->library, m->base.name, sizeof m->base.name);
    return e;
}

// The ranks of `from` with this color. Collective over from.
static int split(comm_nccl *from, int color, int key, int rank, int size, zero_accounting *memory, zero_comm **out) {
    comm_nccl *m = new_transport(rank, size, from->f, memory);
    *out = (zero_comm *)m;
    if (!m) return zero_comm_fail(&from->base, ZERO_ERR_MEMORY, "out of host memory");
    from->f->users++;
    memcpy(m->base.name, from->base.name, sizeof m->base.name);
    int e = ZERO_OK;
    if (size > 1 && !(e = zero_nccl_enter(from, "splitting of the ranks"))) {
        ncclConfig_t c = non_blocking();
        const ncclResult_t r = from->f->lib.CommSplit(from->comm, color, key, &m->comm, &c);
        // NCCL returns ncclSuccess, not ncclInProgress, with a communicator that stays NULL until the *parent* has left
        // ncclInProgress. After that the child may still be in progress itself.
        e = zero_nccl_leave(from, from->comm, r == ncclSuccess ? ncclInProgress : r);
        if (!e && !(e = zero_nccl_enter(from, "splitting of the ranks"))) {
            if (m->comm) from->f->comms[from->f->num_comms++] = m->comm;
            e = zero_nccl_leave(from, m->comm, m->comm ? ncclInProgress : ncclInternalError);
        }
    } else if (size == 1) {
        snprintf(m->base.name, sizeof m->base.name, "none: one rank");
    }
    if (e) {
        memcpy(m->base.error, from->base.error, sizeof m->base.error);
        return e;
    }
    e = zero_nccl_setup(m);
    return e ? e : find_names(m, from->base.names[from->base.rank]);
}

int zero_mesh_comms_nccl(const zero_mesh *m, zero_bootstrap *boot, const zero_comm_nccl_config *config,
                         zero_accounting *memory, zero_comm **data, zero_comm **shard, zero_comm **replicas, char *err,
                         size_t err_bytes) {
    const int stripe = m->pipe_rank * m->tensor + m->tensor_rank;  // of data-parallel ranks
    zero_comm *world = NULL;
    *data = *shard = *replicas = NULL;
    int e = zero_comm_create_nccl(&world, boot, config, memory);
    comm_nccl *all = nccl_self(world);
    if (m->tensor * m->pipe == 1 || e)
        *data = world;
    else
        e = split(all, stripe, m->data_rank, m->data_rank, m->data, memory, data);
    *shard = *data;
    if (!e && m->groups > 1)
        e = split(all, stripe * m->groups + m->group, m->shard_rank, m->shard_rank, m->shard, memory, shard);
    const zero_comm *failed = e ? *shard : NULL;
    if (!e && m->groups > 1 &&
        (e = split(all, stripe * m->shard + m->shard_rank, m->group, m->group, m->groups, memory, replicas)))
        failed = *replicas;
    if (e)
        snprintf(err, err_bytes, "%s",
                 failed  ? zero_comm_error(failed)
                 : world ? zero_comm_error(world)
                         : "out of host memory");
    if (world && world != *data) zero_comm_destroy(world);
    return e;
}
#endif
