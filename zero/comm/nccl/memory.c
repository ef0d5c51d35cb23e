// memory.c: memory of the NCCL transport, and its formulas.
//
// Tables: where the kernel that sums finds the chunks of an all-to-all, on the device; only this rank's own place
// changes in it. Scalars: a slot for each rank, on the host and on the device. Scratch: the other ranks' chunks of one
// all-to-all; it grows in the first micro-batch, and then no more.
#include "zero/comm/nccl/nccl_internal.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// The library's reduce-scatter works in place, and an all-gather too.
size_t zero_nccl_scratch_bytes(const zero_comm_shape *s, size_t all_to_all_bytes, size_t gather_bytes,
                               size_t reduced_numel) {
    (void)gather_bytes;
    (void)reduced_numel;
    const size_t tables = (s->ranks + NCCL_OWN) * sizeof(void *);
    const size_t others = all_to_all_bytes / s->ranks * (s->ranks - 1);
    if (s->ranks == 1) return tables;
    return tables + 2 * s->ranks * NCCL_SCALAR_BYTES + (others ? zero_comm_alloc_bytes(s, others) : 0);
}

size_t zero_nccl_window_scratch_bytes(const zero_comm_shape *s, size_t shard_bytes, size_t unit_bytes) {
    (void)s;
    (void)shard_bytes;
    (void)unit_bytes;
    return 0;
}

#ifdef ZERO_HAS_NCCL

// Is symmetric memory NCCL's own?
static int owns_memory(const comm_nccl *m) { return m->context->granularity > 0 && m->comm; }

static size_t accounted(const comm_nccl *m, size_t bytes) {
    const zero_comm_shape shape = m->base.ops->shape(&m->base);
    return zero_comm_alloc_bytes(&shape, bytes);
}

// *handle is NULL also where NCCL does not register (NCCL_LOCAL_REGISTER=0).
char *zero_nccl_alloc_device(comm_nccl *m, zero_accounting *mem, enum zero_memory_category category, size_t bytes,
                             void **handle) {
    *handle = NULL;
    if (!owns_memory(m)) return zero_accounting_alloc(mem, category, bytes);
    const size_t size = bytes ? bytes : 1;
    char refusal[ZERO_REFUSAL_BYTES];
    void *p = NULL;
    if (*zero_accounting_refusal(mem, accounted(m, bytes), refusal)) return NULL;
    int e = zero_nccl_enter(m, "allocation of memory");
    if (e) return NULL;
    // ncclUnhandledCudaError: memory is exhausted, which is no failure of the communicators
    const ncclResult_t r = m->context->lib.MemAlloc(&p, size);
    const int exhausted = r == ncclUnhandledCudaError;
    e = zero_nccl_leave(m, NULL, exhausted ? ncclSuccess : r);
    if (exhausted) (void)cudaGetLastError();
    if (exhausted) return NULL;
    if (!e) e = zero_nccl_device_check(m, cudaMemset(p, 0, size));
    if (!e) e = zero_nccl_device_check(m, cudaStreamSynchronize(NULL));
    if (!e) e = zero_nccl_enter(m, "registration of memory");
    if (!e) e = zero_nccl_leave(m, m->comm, m->context->lib.CommRegister(m->comm, p, size, handle));
    if (e) return NULL;
    zero_accounting_add(mem, category, accounted(m, bytes), 0);
    return p;
}

// ncclMemFree does not wait for what still uses the memory, as cudaFree does. After an abort NCCL is not called any
// more: the memory is lost.
int zero_nccl_free_device(comm_nccl *m, zero_accounting *mem, enum zero_memory_category category, char *ptr,
                          size_t bytes, void *handle) {
    zero_nccl_wait_until_aborted(m->context);
    if (!owns_memory(m)) {
        zero_accounting_free(mem, category, ptr, bytes);
        return ZERO_OK;
    }
    zero_accounting_add(mem, category, 0, accounted(m, bytes));
    int e = zero_nccl_device_check(m, cudaDeviceSynchronize());
    if (!e && handle) {
        e = zero_nccl_enter(m, "end of a registration of memory");
        if (!e) e = zero_nccl_leave(m, m->comm, m->context->lib.CommDeregister(m->comm, handle));
    }
    if (!e) e = zero_nccl_enter(m, "release of memory");
    return e ? e : zero_nccl_leave(m, NULL, m->context->lib.MemFree(ptr));
}

int zero_nccl_alloc(zero_comm *c, struct zero_comm_buffer *b) {
    comm_nccl *m = zero_nccl_self(c);
    b->ptr = zero_nccl_alloc_device(m, b->mem, b->category, b->bytes, &b->handle);
    return b->ptr ? ZERO_OK : zero_nccl_healthy(m);
}

int zero_nccl_free(zero_comm *c, struct zero_comm_buffer *b) {
    return zero_nccl_free_device(zero_nccl_self(c), b->mem, b->category, b->ptr, b->bytes, b->handle);
}

// Pinned host memory, accounted for.
static int alloc_pinned(comm_nccl *m, size_t bytes, void *out) {
    void *p = NULL;
    if (cudaMallocHost(&p, bytes) != cudaSuccess) {
        (void)cudaGetLastError();
        return zero_comm_fail(&m->base, ZERO_ERR_MEMORY, "no pinned host memory for %zu bytes of tables", bytes);
    }
    memset(p, 0, bytes);
    memcpy(out, &p, sizeof p);
    zero_accounting_add(m->memory, ZERO_MEM_TRANSPORT, bytes, 0);
    return ZERO_OK;
}

int zero_nccl_alloc_tables(comm_nccl *m) {
    const size_t size = (size_t)m->base.size;
    int e = alloc_pinned(m, NCCL_OWN * sizeof *m->own, &m->own);
    if (e) return e;
    m->table = zero_accounting_alloc(m->memory, ZERO_MEM_TRANSPORT, size * sizeof *m->table);
    if (size > 1 && m->table) {
        e = alloc_pinned(m, size * NCCL_SCALAR_BYTES, &m->scalars);
        m->scalars_device = zero_accounting_alloc(m->memory, ZERO_MEM_TRANSPORT, size * NCCL_SCALAR_BYTES);
    }
    if (e) return e;
    return m->table && (size == 1 || m->scalars_device)
               ? ZERO_OK
               : zero_comm_fail(&m->base, ZERO_ERR_MEMORY, "no memory for the tables of %zu ranks", size);
}

static int free_scratch(comm_nccl *m) {
    if (!m->scratch) return ZERO_OK;
    const int e = zero_nccl_free_device(m, m->memory, ZERO_MEM_TRANSPORT, m->scratch,
                                        (size_t)(m->base.size - 1) * m->stride, m->scratch_handle);
    m->scratch = NULL;
    m->stride = 0;
    return e;
}

void zero_nccl_free_tables(comm_nccl *m) {
    const size_t size = (size_t)m->base.size;
    (void)free_scratch(m);
    zero_accounting_free(m->memory, ZERO_MEM_TRANSPORT, m->table, size * sizeof *m->table);
    zero_accounting_free(m->memory, ZERO_MEM_TRANSPORT, m->scalars_device, size * NCCL_SCALAR_BYTES);
    if (m->own) zero_accounting_add(m->memory, ZERO_MEM_TRANSPORT, 0, NCCL_OWN * sizeof *m->own);
    if (m->scalars) zero_accounting_add(m->memory, ZERO_MEM_TRANSPORT, 0, size * NCCL_SCALAR_BYTES);
    (void)cudaFreeHost(m->own);
    (void)cudaFreeHost(m->scalars);
}

int zero_nccl_grow_scratch(comm_nccl *m, size_t chunk_bytes) {
    const size_t size = (size_t)m->base.size, rank = (size_t)m->base.rank;
    if (size == 1 || chunk_bytes <= m->stride) return ZERO_OK;
    int e = zero_nccl_device_check(m, cudaDeviceSynchronize());
    if (!e) e = zero_nccl_healthy(m);
    if (!e) e = free_scratch(m);
    if (e) return e;
    m->own_now = NULL;
    m->scratch = zero_nccl_alloc_device(m, m->memory, ZERO_MEM_TRANSPORT, (size - 1) * chunk_bytes, &m->scratch_handle);
    const char **places = calloc(size, sizeof *places);
    if (!m->scratch || !places) {
        char refusal[ZERO_REFUSAL_BYTES];
        free(places);
        return zero_comm_fail(
            &m->base, ZERO_ERR_MEMORY,
            "no memory for %zu bytes of the other ranks' gradients%s: use more ranks or a smaller model",
            (size - 1) * chunk_bytes, zero_accounting_refusal(m->memory, (size - 1) * chunk_bytes, refusal));
    }
    m->stride = chunk_bytes;
    // this rank's own place is set by each all-to-all
    for (size_t r = 0; r < size; r++) places[r] = m->scratch + (r < rank || r == 0 ? r : r - 1) * chunk_bytes;
    const cudaStream_t stream = m->context->stream;
    e = zero_nccl_device_check(
        m, cudaMemcpyAsync(m->table, places, size * sizeof *places, cudaMemcpyHostToDevice, stream));
    if (!e) e = zero_nccl_device_check(m, cudaStreamSynchronize(stream));
    free(places);
    return e;
}
#endif
