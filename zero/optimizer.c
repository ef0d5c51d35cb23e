// optimizer.c: the step, and discarding gradients. The norm is in grad_norm.c, the optimizers in optimizers/.
//
// One launch per unit updates this rank's elements. In stages 1 and 2 the unit's parameters are then all-gathered; in
// stage 3 the window of shards is opened again; in stage 0 each unit's gradient sums are all-gathered first and every
// rank updates everything. With several shard groups the sums of a shard are all-gathered over the replicate group
// first, unit by unit.
#include "zero/internal.h"
#include "zero/nvtx.h"
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

// ---- create and destroy ---------------------------------------------------------------------------------------------

// The table of this rank's chunks, by unit, on the device.
static int create_chunks(zero *z) {
    const zero_layout *l = &z->layout;
    const int stage = z->config.settings.stage;
    size_t n = 0;
    z->first_chunk = malloc((l->num_units + 1) * sizeof *z->first_chunk);
    if (!z->first_chunk) return zero_fail(z, ZERO_ERR_MEMORY, "out of host memory");
    for (size_t u = 0; u <= l->num_units; u++) {
        z->first_chunk[u] = n;
        if (u < l->num_units) n += zero_optimizer_chunks(l, stage, (size_t)z->rank, u, NULL);
    }
    zero_optimizer_chunk *chunks = malloc((n + 1) * sizeof *chunks);
    if (!chunks) return zero_fail(z, ZERO_ERR_MEMORY, "out of host memory");
    for (size_t u = 0; u < l->num_units; u++) {
        zero_optimizer_chunks(l, stage, (size_t)z->rank, u, chunks + z->first_chunk[u]);
        for (size_t c = z->first_chunk[u]; c < z->first_chunk[u + 1] && z->replicas > 1; c++)
            chunks[c].grad -= shard_offset(z, u);  // sums are gathered unit by unit
    }
    int e = zero_alloc(z, ZERO_MEM_TRANSPORT, n * sizeof *chunks, &z->chunks);
    if (!e && n)
        e = zero_device_check(z, cudaMemcpy(z->chunks, chunks, n * sizeof *chunks, cudaMemcpyHostToDevice),
                              "copying the optimizer's chunks");
    free(chunks);
    return e;
}

int zero_optimizer_create(zero *z, int e) {
    if (sums_comm(z))
        e = zero_alloc_symmetric(z, e, sums_comm(z), ZERO_MEM_UNIT_BUFFERS,
                                 (whole_state(z) ? zero_layout_largest_unit(&z->layout)
                                                 : zero_layout_replica_buffer(&z->layout, (size_t)z->replicas)) *
                                     sizeof(float),
                                 &z->gathered_sums);
    if (!e && master_bytes(z)) e = zero_alloc(z, ZERO_MEM_MASTER, state_total(z) * master_bytes(z), &z->master);
    for (size_t s = 0; s < z->optimizer->num_states && !e; s++)
        e = zero_alloc(z, ZERO_MEM_STATE + s, state_total(z) * sizeof(float), &z->state[s]);
    if (!e) e = zero_alloc(z, ZERO_MEM_TRANSPORT, ZERO_SQUARES_BYTES, &z->squares);
    return e ? e : create_chunks(z);
}

void zero_optimizer_destroy(zero *z) {
    zero_accounting *accounting = z->config.accounting;
    if (sums_comm(z)) zero_comm_free(sums_comm(z), z->gathered_sums);
    zero_accounting_free(accounting, ZERO_MEM_MASTER, z->master, state_total(z) * master_bytes(z));
    for (size_t s = 0; s < ZERO_MAX_OPTIMIZER_STATES; s++)
        zero_accounting_free(accounting, ZERO_MEM_STATE + s, z->state[s], state_total(z) * sizeof(float));
    zero_accounting_free(accounting, ZERO_MEM_TRANSPORT, z->squares, ZERO_SQUARES_BYTES);
    if (z->first_chunk)
        zero_accounting_free(accounting, ZERO_MEM_TRANSPORT, z->chunks,
                             z->first_chunk[z->layout.num_units] * sizeof *z->chunks);
    free(z->first_chunk);
}

// ---- step -----------------------------------------------------------------------------------------------------------

// Stage 0, and several shard groups: all-gathers a unit's gradient sums in fp32 (rounding them would make it another
// update than in other stages).
static int gather_sums(zero *z, size_t u) {
    const size_t bytes = (sum_offset(z, u + 1) - sum_offset(z, u)) * sizeof(float);
    const cudaStream_t stream = z->config.stream;
    zero_comm *comm = sums_comm(z);
    char *own_chunk = (char *)z->gathered_sums + (size_t)zero_comm_rank(comm) * bytes;
    zero_ticket *t = &z->gathered_sums_ticket;
    zero_comm_phase(comm, "all-gather of gradient sums", u);
    zero_time_begin(z, "all-gather sums", stream);
    int e = zero_comm_check(z, zero_comm_reusable(comm, *t, stream));
    if (!e)
        e = zero_device_check(
            z,
            cudaMemcpyAsync(own_chunk, z->partial_sums[0] + sum_offset(z, u), bytes, cudaMemcpyDeviceToDevice, stream),
            "copying gradient sums");
    if (!e)
        e = zero_comm_check(z, zero_comm_allgather_begin(comm, z->gathered_sums, bytes, ZERO_WIRE_GRADS, stream, t));
    if (!e) e = zero_comm_check(z, zero_comm_allgather_finish(comm, *t, stream));
    zero_time_end(z, "all-gather sums", stream);
    return e;
}

static int update_unit(zero *z, size_t u, const float *grads, zero_optimizer_args args) {
    const zero_settings *s = &z->config.settings;
    zero_optimizer_arrays arrays = {
        .params = sharded_params(z) ? zero_window_shard(z->window) : z->params,
        .master = z->master,
        .grads = grads,
    };
    memcpy(arrays.state, z->state, sizeof arrays.state);
    zero_comm_inject_delay(z->config.shard_comm);
    zero_nvtx_push(z->optimizer->name, u);
    zero_time_begin(z, z->optimizer->name, z->config.stream);
    const int e = zero_device_check(z,
                                    z->optimizer->launch(arrays, s->dtype, s->master, z->chunks + z->first_chunk[u],
                                                         z->first_chunk[u + 1] - z->first_chunk[u], args,
                                                         z->config.stream),
                                    z->optimizer->name);
    zero_time_end(z, z->optimizer->name, z->config.stream);
    zero_nvtx_pop();
    return e;
}

static int check_hyperparameters(zero *z, const zero_hyperparameters *h) {
    const struct {
        const char *name;
        float value, min, max;
    } limits[] = {
        { "lr", h->lr, 0, FLT_MAX },
        { "beta1", h->beta1, 0, 0x1.fffffep-1f },
        { "beta2", h->beta2, 0, 0x1.fffffep-1f },
        { "eps", h->eps, 0, FLT_MAX },
        { "weight_decay", h->weight_decay, 0, FLT_MAX },
        { "max_norm", h->max_norm, 0, FLT_MAX },
    };
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
        if (!(limits[i].value >= limits[i].min && limits[i].value <= limits[i].max))
            return zero_fail(z, ZERO_ERR_ARG, "zero_step: %s is %g: use %g to %g", limits[i].name,
                             (double)limits[i].value, (double)limits[i].min, (double)limits[i].max);
    return ZERO_OK;
}

static int update(zero *z, zero_optimizer_args args) {
    const int gathers = sums_comm(z) != NULL;
    int e = zero_params_update_begin(z);
    for (size_t u = 0; u < z->layout.num_units && !e; u++) {
        if (gathers) e = gather_sums(z, u);
        if (!e) e = update_unit(z, u, gathers ? z->gathered_sums : z->partial_sums[0], args);
        if (!e) e = zero_params_update_written(z, u);
    }
    return e ? e : zero_params_update_end(z);
}

int zero_step(zero *z, const zero_hyperparameters *h) {
    if (z->failed) return z->failed;
    if (check_hyperparameters(z, h)) return z->failed;
    zero_record_call(z, CALL_STEP, h, sizeof *h);
    int e = zero_params_released(z);
    if (!e && !z->has_norm) e = zero_grad_norm(z, &z->step.norm);
    if (e) return e;
    z->step.skipped = !isfinite(z->step.norm);
    z->step.scale = h->max_norm > 0 && z->step.norm > h->max_norm ? (float)(h->max_norm / z->step.norm) : 1.0f;
    if (!z->step.skipped) {
        const float scale = z->step.scale * (1.0f / (float)zero_total_weight(z));
        e = update(z, zero_optimizer_prepare(h, scale, z->config.settings.seed, z->updates + 1));
        z->updates += !e;
    }
    return e ? e : zero_grads_reset(z);
}

zero_step_info zero_last_step(const zero *z) { return z->step; }
uint64_t zero_get_updates(const zero *z) { return z->updates; }

int zero_set_updates(zero *z, uint64_t updates) {
    if (zero_between_micro_batches(z)) return z->failed;
    zero_record_call(z, CALL_SET_UPDATES, &updates, sizeof updates);
    z->updates = updates;
    return ZERO_OK;
}

int zero_discard(zero *z) {
    if (z->failed && z->failed != ZERO_ERR_ARG && z->failed != ZERO_ERR_CALLBACK) return z->failed;
    z->failed = ZERO_OK;
    z->agreed = 0;
    z->calls = 0;
    z->error[0] = '\0';
    zero_comm_reset_error(z->config.shard_comm);
    int e = zero_grads_abandon(z);
    if (!e) e = zero_params_abandon(z);
    return e ? e : zero_grads_reset(z);
}
