// transport_registry.c: the list of transports, and the part of creating a communicator that they have in common.
#include "zero/comm/transport_registry.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "zero/comm/transport.h"

static const zero_transport *const TRANSPORTS[] = {
    &zero_transport_mpi,
    &zero_transport_nccl,
};
enum { NUM_TRANSPORTS = sizeof TRANSPORTS / sizeof *TRANSPORTS };

const zero_transport *zero_transport_at(size_t i) { return i < NUM_TRANSPORTS ? TRANSPORTS[i] : NULL; }

const zero_transport *zero_transport_find(const char *name) {
    for (size_t i = 0; i < NUM_TRANSPORTS; i++)
        if (!strcmp(TRANSPORTS[i]->name, name)) return TRANSPORTS[i];
    return NULL;
}

const char *zero_transport_name(const zero_transport *t) { return t->name; }
const char *zero_transport_title(const zero_transport *t) { return t->title; }
int zero_transport_needs_mpi(const zero_transport *t) { return t->needs_mpi; }
int zero_transport_needs_device(const zero_transport *t) { return t->needs_device; }

int zero_transport_available(const zero_transport *t, const zero_comm_config *config, char *message, size_t bytes) {
    return t->available(config, message, bytes);
}

zero_comm_shape zero_transport_shape(const zero_transport *t, const zero_comm_config *config, size_t ranks,
                                     size_t per_host) {
    zero_comm_shape s = t->shape(config, ranks, ranks > 1 && per_host != ranks);
    const int even = per_host > 1 && per_host < ranks && ranks % per_host == 0;
    const int two_levels = even && !config->one_level && !config->no_shared_memory;
    s.per_host = two_levels ? per_host : 0;
    return s;
}

// On failure the transport that failed holds the message: it goes to err, and the transport away.
static int keep_message(int e, zero_comm **c, char *err, size_t err_bytes) {
    if (!e) return ZERO_OK;
    snprintf(err, err_bytes, "%s", *c ? zero_comm_error(*c) : "out of host memory");
    zero_comm_destroy(*c);
    *c = NULL;
    return e;
}

int zero_comm_create(zero_comm **out, const zero_transport *t, zero_bootstrap *boot, const zero_comm_config *config,
                     zero_accounting *accounting, char *err, size_t err_bytes) {
    *out = NULL;
    return keep_message(t->create(out, boot, config, accounting), out, err, err_bytes);
}

// Ranks that describe other meshes would split otherwise, and wait for each other.
static int agree_on_mesh(zero_comm *world, const zero_mesh *m, char *err, size_t err_bytes) {
    static const char *const names[] = { "tensor", "pipe", "shard" };
    enum { FIELDS = sizeof names / sizeof *names };
    const int mine[FIELDS] = { m->tensor, m->pipe, m->shard }, size = zero_comm_size(world);
    int(*all)[FIELDS] = calloc((size_t)size, sizeof *all);
    int e = all ? zero_comm_allgather_host(world, mine, sizeof mine, all)
                : zero_comm_fail(world, ZERO_ERR_MEMORY, "out of host memory");
    for (int r = 0; r < size && !e; r++)
        for (int i = 0; i < FIELDS && !e; i++)
            if (all[r][i] != mine[i])
                e = zero_comm_fail(world, ZERO_ERR_ARG,
                                   "zero_mesh.%s is %d, but %d on rank %d: all ranks need the same", names[i], mine[i],
                                   all[r][i], r);
    free(all);
    if (e) snprintf(err, err_bytes, "%s", zero_comm_error(world));
    return e;
}

int zero_mesh_comms_create(zero_mesh_comms *out, const zero_mesh *m, const zero_transport *t, zero_bootstrap *boot,
                           const zero_comm_config *config, zero_accounting *accounting, char *err, size_t err_bytes) {
    const int stripe = m->pipe_rank * m->tensor + m->tensor_rank;  // ranks of one stripe are data-parallel
    zero_comm *world = NULL;
    *out = (zero_mesh_comms){ NULL, NULL, NULL };
    int e = zero_comm_create(&world, t, boot, config, accounting, err, err_bytes);
    if (!e) e = agree_on_mesh(world, m, err, err_bytes);
    if (!e && m->tensor * m->pipe > 1)
        e = keep_message(world->ops->split(world, stripe, m->data_rank, m->data, &out->data), &out->data, err,
                         err_bytes);
    else
        out->data = world;
    out->shard = out->data;
    if (!e && m->groups > 1) {
        out->shard = NULL;
        e = keep_message(world->ops->split(world, stripe * m->groups + m->group, m->shard_rank, m->shard, &out->shard),
                         &out->shard, err, err_bytes);
        if (!e)
            e = keep_message(
                world->ops->split(world, stripe * m->shard + m->shard_rank, m->group, m->groups, &out->replicate),
                &out->replicate, err, err_bytes);
    }
    if (world != out->data) zero_comm_destroy(world);
    if (e) zero_mesh_comms_destroy(out);
    return e;
}

void zero_mesh_comms_destroy(zero_mesh_comms *c) {
    zero_comm_destroy(c->replicate);
    if (c->shard != c->data) zero_comm_destroy(c->shard);
    zero_comm_destroy(c->data);
    *c = (zero_mesh_comms){ NULL, NULL, NULL };
}
