// optimizer.c: the step, and discarding gradients. The norm is in grad_norm.c, the optimizers in optimizers/.
//
// One launch updates this rank's elements, of all units in stage 3, whose window of shards is opened again, and on one
// rank. Else it is a launch for each unit, so that a unit moves while the next one is updated: in stages 1 and 2 its
// parameters are all-gathered then; in stage 0 its gradient sums are all-gathered first, and every rank updates
// everything. With several shard groups the sums of a shard are all-gathered over the replicate group first, unit by
// unit.
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
    for (size_t u = 0; u < l->num_units; u++)
        zero_optimizer_chunks(l, stage, (size_t)z->rank, u, chunks + z->first_chunk[u]);
    int e = zero_alloc(z, ZERO_MEM_TRANSPORT, n * sizeof *chunks, &z->chunks);
    if (!e && n)
        e = zero_device_check(z, cudaMemcpy(z->chunks, chunks, n * sizeof *chunks, cudaMemcpyHostToDevice),
                              "copying the optimizer's chunks");
    free(chunks);
    return e;
}

static int create_options(zero *z) {
    const size_t n = z->layout.num_tensors;
    z->options = malloc(n * sizeof *z->options);
    if (!z->options) return zero_fail(z, ZERO_ERR_MEMORY, "out of host memory");
    if (cudaMallocHost((void **)&z->tensor_args, n * sizeof *z->tensor_args) != cudaSuccess) {
        (void)cudaGetLastError();
        return zero_fail(z, ZERO_ERR_MEMORY, "no pinned host memory for the options of %zu tensors", n);
    }
    for (size_t t = 0; t < n; t++) {
        const zero_tensor *tensor = &z->layout.tensors[t];
        z->options[t] = (zero_tensor_options){ 1, tensor->decay ? 1.0f : 0.0f, tensor->frozen != 0, 0 };
        z->has_options |= z->options[t].frozen;
    }
    return zero_alloc(z, ZERO_MEM_TRANSPORT, n * sizeof *z->device_args, &z->device_args);
}

static int create_arrays(zero *z) {
    const size_t bytes = z->layout.num_units * sizeof *z->arrays;
    if (cudaMallocHost((void **)&z->arrays, bytes) != cudaSuccess) {
        (void)cudaGetLastError();
        return zero_fail(z, ZERO_ERR_MEMORY, "no pinned host memory for the tables of %zu units", z->layout.num_units);
    }
    return zero_alloc(z, ZERO_MEM_TRANSPORT, bytes, &z->device_arrays);
}

static int create_moments(zero *z, size_t u) {
    int e = ZERO_OK;
    for (size_t s = 0; s < z->optimizer->num_states && !unit_frozen(z, u) && !e; s++)
        e = zero_alloc(z, ZERO_MEM_STATE + s, state_numel(z, u) * sizeof(float), &z->units[u].moments[s]);
    return e;
}

static void destroy_moments(zero *z, size_t u) {
    for (size_t s = 0; s < ZERO_MAX_OPTIMIZER_STATES; s++) {
        zero_accounting_free(z->config.accounting, ZERO_MEM_STATE + s, z->units[u].moments[s],
                             state_numel(z, u) * sizeof(float));
        z->units[u].moments[s] = NULL;
    }
}

int zero_optimizer_create(zero *z, int e) {
    if (!e && master_bytes(z)) e = zero_alloc(z, ZERO_MEM_MASTER, state_total(z) * master_bytes(z), &z->master);
    for (size_t u = 0; u < z->layout.num_units && !e; u++) e = create_moments(z, u);
    if (!e && z->config.settings.ema_decay > 0)
        e = zero_alloc(z, ZERO_MEM_EMA, state_total(z) * sizeof(float), &z->ema);
    if (!e) e = create_chunks(z);
    if (!e) e = create_arrays(z);
    return e ? e : create_options(z);
}

void zero_optimizer_destroy(zero *z) {
    zero_accounting *accounting = z->config.accounting;
    zero_accounting_free(accounting, ZERO_MEM_MASTER, z->master, state_total(z) * master_bytes(z));
    for (size_t u = 0; u < z->layout.num_units && z->units; u++) destroy_moments(z, u);
    zero_accounting_free(accounting, ZERO_MEM_EMA, z->ema, state_total(z) * sizeof(float));
    if (z->first_chunk)
        zero_accounting_free(accounting, ZERO_MEM_TRANSPORT, z->chunks,
                             z->first_chunk[z->layout.num_units] * sizeof *z->chunks);
    zero_accounting_free(accounting, ZERO_MEM_TRANSPORT, z->device_arrays, z->layout.num_units * sizeof *z->arrays);
    zero_accounting_free(accounting, ZERO_MEM_TRANSPORT, z->device_args,
                         z->layout.num_tensors * sizeof *z->device_args);
    free(z->first_chunk);
    free(z->options);
    if (z->arrays) (void)cudaFreeHost(z->arrays);
    if (z->tensor_args) (void)cudaFreeHost(z->tensor_args);
}

// ---- options of tensors ---------------------------------------------------------------------------------------------

// Clears elements of tensor t in an array of `elements` [begin, end) of its unit, the first of them at `array`.
static int clear_tensor(zero *z, size_t t, size_t begin, size_t end, float *array) {
    size_t cursor = 0;
    zero_segment s;
    int e = ZERO_OK;
    while (!e && zero_layout_next_segment(&z->layout, z->layout.tensors[t].unit, begin, end, &cursor, &s))
        if (s.tensor == t)
            e = zero_device_check(
                z, cudaMemsetAsync(array + s.unit_begin - begin, 0, s.count * sizeof(float), z->config.stream),
                "clearing a tensor");
    return e;
}

int zero_clear_frozen(zero *z) {
    int e = ZERO_OK;
    for (size_t t = 0; t < z->layout.num_tensors && z->has_options && !e; t++) {
        const size_t u = z->layout.tensors[t].unit;
        if (z->options[t].frozen && !unit_frozen(z, u))
            e = clear_tensor(z, t, sum_begin(z, u), sum_end(z, u), z->partial_sums[0] + sum_offset(z, u));
    }
    return e;
}

// Returns 1 if all other tensors of its unit are frozen.
static int decides_for_its_unit(const zero_layout *l, size_t tensor) {
    const size_t u = l->tensors[tensor].unit;
    for (size_t t = l->unit_first[u]; t < l->unit_first[u + 1]; t++)
        if (t != tensor && !l->tensors[t].frozen) return 0;
    return 1;
}

// The unit becomes a frozen one, or a trained one whose optimizer states are zero.
static int set_frozen_unit(zero *z, size_t t, int frozen) {
    const size_t u = z->layout.tensors[t].unit;
    zero_keep_earlier_bytes(z);
    int e = zero_grads_release(z);
    if (e) return e;
    destroy_moments(z, u);
    z->has_arrays = 0;
    zero_layout_set_frozen(&z->layout, t, frozen);
    e = zero_grads_create(z, ZERO_OK);
    return zero_agree(z, e ? e : create_moments(z, u));
}

static int set_frozen(zero *z, size_t t, int frozen) {
    const size_t u = z->layout.tensors[t].unit, begin = state_begin(z, u), end = begin + state_numel(z, u);
    int e = ZERO_OK;
    if (z->layout.tensors[t].frozen == frozen) return ZERO_OK;
    if (decides_for_its_unit(&z->layout, t)) return set_frozen_unit(z, t, frozen);
    zero_layout_set_frozen(&z->layout, t, frozen);
    for (size_t s = 0; s < z->optimizer->num_states && !e; s++)
        e = clear_tensor(z, t, begin, end, z->units[u].moments[s]);
    return e;
}

zero_tensor_options zero_get_tensor_options(const zero *z, size_t tensor) { return z->options[tensor]; }
int zero_is_frozen(const zero *z, size_t unit) { return unit_frozen(z, unit); }

int zero_set_tensor_options(zero *z, size_t t, const zero_tensor_options *options) {
    if (zero_enter(z) || zero_between_micro_batches(z) || zero_norm_learn(z)) return z->failed;
    if (t >= z->layout.num_tensors) return zero_fail(z, ZERO_ERR_ARG, "there is no tensor %zu", t);
    const char *name = z->layout.tensors[t].name;
    if (z->micro_batches)
        return zero_fail(z, ZERO_ERR_ARG, "options of %s are set between steps: call zero_step or zero_discard first",
                         name);
    if (!(options->lr_factor >= 0 && options->lr_factor <= FLT_MAX && options->decay_factor >= 0 &&
          options->decay_factor <= FLT_MAX))
        return zero_fail(z, ZERO_ERR_ARG, "the factors of %s are %g and %g: use numbers from 0", name,
                         (double)options->lr_factor, (double)options->decay_factor);
    if (options->first_update > z->updates)
        return zero_fail(z, ZERO_ERR_ARG, "first_update of %s is %llu, after %llu updates: call zero_set_updates first",
                         name, (unsigned long long)options->first_update, (unsigned long long)z->updates);
    const int thaws = z->options[t].frozen && !options->frozen;
    const uint64_t record[] = { t, options->frozen != 0, options->first_update };
    const float factors[] = { options->lr_factor, options->decay_factor };
    zero_record_call(z, CALL_SET_OPTIONS, record, sizeof record);
    zero_record_call(z, CALL_SET_OPTIONS, factors, sizeof factors);
    z->options[t] = *options;
    z->has_options = 1;
    z->options[t].frozen = options->frozen != 0;
    if (thaws) z->options[t].first_update = z->updates;
    return set_frozen(z, t, z->options[t].frozen);
}

// Writes the table of the kernel, if any tensor has options, and points args to it. What it copies from is pinned and
// was copied in the last step, of which the host knows the decision.
static int write_tensor_args(zero *z, const zero_hyperparameters *h, zero_optimizer_args *args) {
    if (!z->has_options) return ZERO_OK;
    for (size_t t = 0; t < z->layout.num_tensors; t++) {
        const zero_tensor_options *o = &z->options[t];
        const zero_optimizer_args own = zero_optimizer_prepare(h, 1, 0, args->t - o->first_update);
        z->tensor_args[t] = (zero_tensor_args){ .lr = h->lr * o->lr_factor,
                                                .decay = h->weight_decay * o->decay_factor,
                                                .correction1 = own.correction1,
                                                .correction2 = own.correction2,
                                                .frozen = o->frozen != 0 };
    }
    args->tensors = z->device_args;
    return zero_device_check(z,
                             cudaMemcpyAsync(z->device_args, z->tensor_args,
                                             z->layout.num_tensors * sizeof *z->device_args, cudaMemcpyHostToDevice,
                                             z->config.stream),
                             "copying the options of tensors");
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

static zero_optimizer_arrays arrays_of(const zero *z, size_t u, float *grads) {
    zero_optimizer_arrays arrays = {
        .params = updated_params(z, u),
        .master = updated_master(z, u),
        .grads = grads,
        .ema = z->ema ? z->ema + state_offset(z, u) : NULL,
    };
    memcpy(arrays.state, z->units[u].moments, sizeof arrays.state);
    return arrays;
}

// Updates units [first, end): one, or all that args.units describes.
static int launch(zero *z, size_t first, size_t end, zero_optimizer_arrays arrays, zero_optimizer_args args) {
    const zero_settings *s = &z->config.settings;
    zero_comm_inject_delay(z->config.shard_comm);
    zero_nvtx_push(z->optimizer->name, first);
    zero_time_begin(z, z->optimizer->name, z->config.stream);
    const int e = zero_device_check(
        z,
        zero_optimizer_launch(s->optimizer, arrays, s->dtype, s->master, z->chunks + z->first_chunk[first],
                              z->first_chunk[end] - z->first_chunk[first], args, z->config.stream),
        z->optimizer->name);
    zero_time_end(z, z->optimizer->name, z->config.stream);
    zero_nvtx_pop();
    return e;
}

// Tensors of frozen units are left out by their options.
static int update_all(zero *z, zero_optimizer_args args) {
    int e = ZERO_OK;
    if (!z->has_arrays) {
        for (size_t u = 0; u < z->layout.num_units; u++)
            z->arrays[u] = arrays_of(z, u, z->partial_sums[0] + sum_offset(z, u));
        e = zero_device_check(z,
                              cudaMemcpyAsync(z->device_arrays, z->arrays, z->layout.num_units * sizeof *z->arrays,
                                              cudaMemcpyHostToDevice, z->config.stream),
                              "copying the tables of units");
    }
    z->has_arrays = !e;
    args.units = z->device_arrays;
    return e ? e : launch(z, 0, z->layout.num_units, (zero_optimizer_arrays){ 0 }, args);
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
    const int gathers = sums_comm(z) != NULL, one_launch = !gathers && (sharded_params(z) || z->ranks == 1);
    int e = zero_params_update_begin(z);
    if (!e && one_launch) e = update_all(z, args);
    for (size_t u = 0; u < z->layout.num_units && !e; u++) {
        if (unit_frozen(z, u)) continue;
        if (gathers) e = gather_sums(z, u);
        if (!e && !one_launch)
            e = launch(z, u, u + 1, arrays_of(z, u, gathers ? z->gathered_sums : z->partial_sums[0] + sum_offset(z, u)),
                       args);
        if (!e) e = zero_params_update_written(z, u);
    }
    return e ? e : zero_params_update_end(z);
}

int zero_step(zero *z, const zero_hyperparameters *h) {
    if (zero_enter(z)) return z->failed;
    if (check_hyperparameters(z, h)) return z->failed;
    zero_record_call(z, CALL_STEP, h, sizeof *h);
    int e = zero_params_released(z);
    if (!e) e = zero_norm_learn(z);  // how many updates there were
    if (!e && !z->has_norm) e = zero_grad_norm(z, NULL);
    if (e) return e;
    zero_optimizer_args args = zero_optimizer_prepare(h, 0, z->config.settings.seed, z->updates + 1);
    args.ema_weight = (float)(1 - z->config.settings.ema_decay);
    args.decision = &z->decisions[ZERO_OF_ALL];
    e = write_tensor_args(z, h, &args);
    if (!e) e = zero_norm_decide(z, h->max_norm);
    if (!e) e = update(z, args);
    z->undecided = !e;
    return e ? e : zero_grads_reset(z);
}

zero_step_info zero_last_step(zero *z) {
    if (z->undecided && zero_norm_learn(z)) z->step.norm = NAN;
    return z->step;
}

uint64_t zero_get_updates(zero *z) {
    (void)zero_norm_learn(z);
    return z->updates;
}

int zero_set_updates(zero *z, uint64_t updates) {
    if (zero_enter(z) || zero_between_micro_batches(z) || zero_norm_learn(z)) return z->failed;
    for (size_t t = 0; t < z->layout.num_tensors; t++)
        if (z->options[t].first_update > updates)
            return zero_fail(z, ZERO_ERR_ARG, "zero_set_updates: %llu: first_update of %s is %llu: lower that first",
                             (unsigned long long)updates, z->layout.tensors[t].name,
                             (unsigned long long)z->options[t].first_update);
    zero_record_call(z, CALL_SET_UPDATES, &updates, sizeof updates);
    z->updates = updates;
    return ZERO_OK;
}

int zero_discard(zero *z) {
    if (z->in_callback) return zero_enter(z);
    if (z->failed && z->failed != ZERO_ERR_ARG && z->failed != ZERO_ERR_CALLBACK) return z->failed;
    z->failed = ZERO_OK;
    z->agreed = 0;
    z->calls = 0;
    z->error[0] = '\0';
    zero_comm_reset_error(z->config.shard_comm);
    int e = zero_norm_learn(z);
    if (!e) e = zero_grads_abandon(z);
    if (!e) e = zero_params_abandon(z);
    return e ? e : zero_grads_reset(z);
}
