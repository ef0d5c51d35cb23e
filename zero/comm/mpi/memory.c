// memory.c: memory of the MPI transport, and its formulas.
//
// A symmetric buffer is memory that every other rank of the host maps (shared_memory.h). Where no ranks share memory,
// or the host cannot reach the device's (staged), it is device memory, and chunks travel through scratch.
#include "zero/comm/mpi/mpi_internal.h"
#include <string.h>

int zero_mpi_map(comm_mpi *m, struct zero_shm *s, const zero_accounting *mem, size_t bytes) {
    char refusal[ZERO_REFUSAL_BYTES];
    const char *why = zero_accounting_refusal(mem, bytes, refusal);
    return zero_shm_map(s, m->base.rank, m->base.size, m->on_host, bytes, why + strspn(why, ": "), zero_mpi_meet, m);
}

static struct zero_shm *map_of(comm_mpi *m, const struct zero_comm_buffer *b) { return &m->maps[b - m->base.buffers]; }

int zero_mpi_alloc(zero_comm *c, struct zero_comm_buffer *b) {
    comm_mpi *m = zero_mpi_self(c);
    if (m->staged || !m->sharing) {
        b->ptr = zero_accounting_alloc(b->mem, b->category, b->bytes);
        return ZERO_OK;
    }
    const int e = zero_mpi_map(m, map_of(m, b), b->mem, b->bytes ? b->bytes : 1);
    if (e == ZERO_ERR_COMM) return e;
    if (e)
        return zero_comm_fail(c, e, "no shared memory for %zu bytes of %s: %s", b->bytes,
                              zero_memory_category_name(b->category), map_of(m, b)->why);
    b->ptr = map_of(m, b)->peer[c->rank];
    zero_accounting_add(b->mem, b->category, b->bytes, 0);
    return ZERO_OK;
}

int zero_mpi_free(zero_comm *c, struct zero_comm_buffer *b) {
    comm_mpi *m = zero_mpi_self(c);
    struct zero_shm *map = map_of(m, b);
    if (c->in_flight) {
        zero_keep(b->ptr);
        zero_accounting_add(b->mem, b->category, 0, b->bytes);
    } else if (map->peer) {
        (void)cudaDeviceSynchronize();  // as cudaFree does: what is queued may still write to it
        zero_shm_unmap(map);
        zero_accounting_add(b->mem, b->category, 0, b->bytes);
    } else {
        zero_accounting_free(b->mem, b->category, b->ptr, b->bytes);
    }
    return ZERO_OK;
}

int zero_mpi_grow(comm_mpi *m, char **scratch, size_t *have, size_t need, int on_device) {
    if (*have >= need) return ZERO_OK;
    if (*scratch) {
        (void)(on_device ? cudaFree(*scratch) : cudaFreeHost(*scratch));
        zero_accounting_add(m->memory, ZERO_MEM_TRANSPORT, 0, *have);
    }
    *scratch = NULL;
    *have = 0;
    void *p = NULL;
    char refusal[ZERO_REFUSAL_BYTES];
    if (*zero_accounting_refusal(m->memory, need, refusal) ||
        (on_device ? cudaMalloc(&p, need) : cudaMallocHost(&p, need)) != cudaSuccess)
        return zero_comm_fail(&m->base, ZERO_ERR_MEMORY,
                              "no memory for %zu bytes of transport scratch%s: use fewer ranks on this host, or a "
                              "smaller model",
                              need, refusal);
    *scratch = p;
    *have = need;
    zero_accounting_add(m->memory, ZERO_MEM_TRANSPORT, need, 0);
    return ZERO_OK;
}

// A container may refuse to pin memory that ranks share. Copies then go through the buffers of the driver, which is
// slower; the name of the transport says so.
int zero_mpi_can_pin(void *memory, size_t bytes) {
    if (cudaHostRegister(memory, bytes, cudaHostRegisterDefault) == cudaSuccess)
        return cudaHostUnregister(memory) == cudaSuccess;
    (void)cudaGetLastError();
    return 0;
}

// Pinned if possible: otherwise each copy is two.
int zero_mpi_map_staging(comm_mpi *m, struct zero_shm *s, size_t bytes) {
    const int mapped = zero_mpi_map(m, s, m->memory, bytes);
    if (mapped == ZERO_ERR_COMM) return mapped;
    if (mapped)
        return zero_comm_fail(&m->base, ZERO_ERR_MEMORY, "no shared memory for %zu bytes of staging: %s", bytes,
                              s->why);
    zero_accounting_add(m->memory, ZERO_MEM_TRANSPORT, bytes, 0);
    for (int r = 0; r < s->ranks && m->pinned && bytes; r++) {
        const cudaError_t e = s->peer[r] ? cudaHostRegister(s->peer[r], bytes, cudaHostRegisterDefault) : cudaSuccess;
        if (e == cudaSuccess) continue;
        (void)cudaGetLastError();
        while (r-- > 0)
            if (s->peer[r]) (void)cudaHostUnregister(s->peer[r]);
        zero_accounting_add(m->memory, ZERO_MEM_TRANSPORT, 0, bytes);
        zero_shm_unmap(s);
        return zero_comm_fail(
            &m->base, ZERO_ERR_MEMORY,
            "%zu bytes of staging cannot be pinned: %s: use fewer ranks on this host, or a smaller model", bytes,
            cudaGetErrorString(e));
    }
    return ZERO_OK;
}

void zero_mpi_unmap_staging(comm_mpi *m, struct zero_shm *s) {
    for (int r = 0; r < s->ranks && s->peer && m->pinned && s->bytes; r++)
        if (s->peer[r]) (void)cudaHostUnregister(s->peer[r]);
    zero_accounting_add(m->memory, ZERO_MEM_TRANSPORT, 0, s->bytes);
    zero_shm_unmap(s);
}

size_t zero_mpi_scratch_bytes(const zero_comm_shape *s, size_t all_to_all_bytes, size_t gather_bytes,
                              size_t reduced_numel) {
    const size_t larger = all_to_all_bytes > gather_bytes ? all_to_all_bytes : gather_bytes;
    size_t bytes = s->ranks * sizeof(void *) + (s->ranks > 1 ? sizeof(struct control) : 0);
    if (s->staged && s->ranks > 1) bytes += larger + all_to_all_bytes;  // staging; the chunks on the device
    size_t received = s->remote ? s->staged && !s->per_host ? larger : all_to_all_bytes : 0;
    // in fp32, and this rank's sum
    const size_t reduced = (reduced_numel + reduced_numel / s->ranks) * sizeof(float);
    if (reduced > received) received = reduced;
    return bytes + received;
}
