// optimizer.c: the step, and discarding gradients. The norm is in grad_norm.c, the optimizers in optimizers/.
//
// One launch updates this rank's elements, of all units in stage 3, whose window of shards is opened again, and on one
// rank. Else it is a launch for each unit, so that a unit moves while the next one is updated: in stages 1 and 2 its
// parameters are all-gathered then; in stage 0 its gradient sums are all-gathered first, and every rank updates
// everything. With several shard groups the sums of a shard are all-gathered over the replicate group first, unit by
// unit. The host updates what is offloaded (host_update.c), unit by unit in every stage.
#include "zero/internal.h"
#include "zero/nvtx.h"
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

// ---- create and destroy ---------------------------------------------------------------------------------------------

static int create_options(zero *z) {
    const size_t n = z->layout.num_tensors;
    z->options = malloc(n * sizeof *z->options);
    if (!z->options) return zero_fail(z, ZERO_ERR_MEMORY, "out of host memory");
    if (cudaMallocHost((void **)&z->tensor_args[0], 2 * n * sizeof *z->tensor_args[0]) != cudaSuccess) {
        (void)cudaGetLastError();
        return zero_fail(z, ZERO_ERR_MEMORY, "no pinned host memory for the options of %zu tensors", n);
    }
    z->tensor_args[1] = z->tensor_args[0] + n;
    for (size_t t = 0; t < n; t++) {
        const zero_tensor *tensor = &z->layout.tensors[t];
        z->options[t] = (zero_tensor_options){ 1, tensor->decay ? 1.0f : 0.0f, tensor->frozen != 0, 0 };
        z->has_options |= z->options[t].frozen;
    }
    return zero_alloc(z, ZERO_MEM_TRANSPORT, n * sizeof *z->device_args, &z->device_args);
}

static size_t num_parts(const zero *z) { return z->first_part[z->layout.num_units]; }

static int create_arrays(zero *z) {
    const size_t bytes = num_parts(z) * sizeof *z->arrays;
    if (bytes && cudaMallocHost((void **)&z->arrays, bytes) != cudaSuccess) {
        (void)cudaGetLastError();
        return zero_fail(z, ZERO_ERR_MEMORY, "no pinned host memory for the tables of %zu units", z->layout.num_units);
    }
    return zero_alloc(z, ZERO_MEM_TRANSPORT, bytes, &z->device_arrays);
}

int zero_optimizer_create(zero *z, int e) {
    e = zero_state_create(z, e);
    if (!e) e = create_arrays(z);
    return e ? e : create_options(z);
}

void zero_optimizer_destroy(zero *z) {
    zero_accounting *accounting = z->config.accounting;
    if (z->first_part)
        zero_accounting_free(accounting, ZERO_MEM_TRANSPORT, z->device_arrays, num_parts(z) * sizeof *z->arrays);
    zero_state_destroy(z);
    zero_accounting_free(accounting, ZERO_MEM_TRANSPORT, z->device_args,
                         z->layout.num_tensors * sizeof *z->device_args);
    free(z->options);
    if (z->arrays) (void)cudaFreeHost(z->arrays);
    if (z->tensor_args[0]) (void)cudaFreeHost(z->tensor_args[0]);
}

// ---- options of tensors ---------------------------------------------------------------------------------------------

static int clear_floats(zero *z, void *to, size_t count) {
    return zero_device_check(z, cudaMemsetAsync(to, 0, count * sizeof(float), z->config.stream), "clearing a tensor");
}

int zero_clear_frozen(zero *z) {
    int e = ZERO_OK;
    for (size_t t = 0; t < z->layout.num_tensors && z->has_options && !e; t++) {
        const size_t u = z->layout.tensors[t].unit, begin = sum_begin(z, u);
        size_t cursor = 0;
        zero_segment s;
        if (!z->options[t].frozen || unit_frozen(z, u)) continue;
        while (!e && zero_layout_next_segment(&z->layout, u, begin, sum_end(z, u), &cursor, &s))
            if (s.tensor == t)
                e = clear_floats(z, z->partial_sums[0] + sum_offset(z, u) + s.unit_begin - begin, s.count);
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
    zero_state_destroy_unit(z, u);
    z->has_arrays = 0;
    zero_layout_set_frozen(&z->layout, t, frozen);
    e = zero_grads_create(z, ZERO_OK);
    return zero_agree(z, e || frozen ? e : zero_state_create_unit(z, u));
}

// Clears the optimizer's states of a tensor.
static int clear_states(zero *z, size_t t) {
    const size_t u = z->layout.tensors[t].unit, begin = state_begin(z, u);
    int e = ZERO_OK;
    size_t cursor = 0;
    zero_segment s;
    while (!e && zero_layout_next_segment(&z->layout, u, begin, begin + state_numel(z, u), &cursor, &s))
        for (size_t i = 0; i < z->optimizer->num_states && s.tensor == t; i++)
            for (size_t at = 0, n; at < s.count && !e; at += n) {
                char *to = NULL;
                if ((e = zero_state_open(z, u, ARRAY_STATES + i, s.unit_begin - begin + at, 1, &to, &n))) break;
                if (n > s.count - at) n = s.count - at;
                e = clear_floats(z, to, n);
            }
    return zero_state_close(z, e);
}

static int set_frozen(zero *z, size_t t, int frozen) {
    if (z->layout.tensors[t].frozen == frozen) return ZERO_OK;
    if (decides_for_its_unit(&z->layout, t)) return set_frozen_unit(z, t, frozen);
    zero_layout_set_frozen(&z->layout, t, frozen);
    const int e = clear_states(z, t);
    return uses_disk(z) ? zero_agree(z, e) : e;
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

// Writes the table of the kernel, if any tensor has options, and points args to it. What it copies from is pinned, and
// nobody reads it any more: of the step before the last, since the host knows the last step's decision.
static int write_tensor_args(zero *z, const zero_hyperparameters *h, zero_optimizer_args *args) {
    zero_tensor_args *table = z->tensor_args[z->odd_step];
    if (!z->has_options) return ZERO_OK;
    for (size_t t = 0; t < z->layout.num_tensors; t++) {
        const zero_tensor_options *o = &z->options[t];
        const zero_optimizer_args own = zero_optimizer_prepare(h, 1, 0, args->t - o->first_update);
        table[t] = (zero_tensor_args){ .lr = h->lr * o->lr_factor,
                                       .decay = h->weight_decay * o->decay_factor,
                                       .correction1 = own.correction1,
                                       .correction2 = own.correction2,
                                       .frozen = o->frozen != 0 };
    }
    args->tensors = z->device_args;
    return zero_device_check(z,
                             cudaMemcpyAsync(z->device_args, table, z->layout.num_tensors * sizeof *z->device_args,
                                             cudaMemcpyHostToDevice, z->config.stream),
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

// grads: the sums of its unit.
static zero_optimizer_arrays arrays_of(const struct part *p, float *grads, char *const in[NUM_ARRAYS]) {
    zero_optimizer_arrays arrays = {
        .params = in[ARRAY_PARAMS],
        .master = in[ARRAY_MASTER],
        .grads = grads + p->begin,
        .ema = (float *)(void *)in[ARRAY_EMA],
    };
    memcpy(arrays.state, in + ARRAY_STATES, sizeof arrays.state);
    return arrays;
}

// Updates n chunks: of one part, or of all that args.parts describes.
static int launch(zero *z, size_t first, size_t n, zero_optimizer_arrays arrays, zero_optimizer_args args) {
    const zero_settings *s = &z->config.settings;
    return zero_device_check(
        z,
        zero_optimizer_launch(s->optimizer, arrays, s->dtype, s->master, z->chunks + first, n, args, z->config.stream),
        z->optimizer->name);
}

static void begin_work(zero *z, size_t u) {
    zero_comm_inject_delay(z->config.shard_comm);
    zero_nvtx_push(z->optimizer->name, u);
    zero_time_begin(z, z->optimizer->name, z->config.stream);
}

static void end_work(zero *z) {
    zero_time_end(z, z->optimizer->name, z->config.stream);
    zero_nvtx_pop();
}

// The parts of a unit whose state the device has: the first ones.
static int update_unit(zero *z, size_t u, float *grads, zero_optimizer_args args) {
    const struct part *p = &z->parts[z->first_part[u]];
    int e = ZERO_OK;
    if (z->first_part[u] == z->first_part[u + 1] || p->offloaded) return ZERO_OK;
    begin_work(z, u);
    for (; p < z->parts + z->first_part[u + 1] && !e; p++) {
        char *in[NUM_ARRAYS];
        if (p->offloaded || zero_part_acquire(z, p, in)) continue;  // zero_part_error tells of it
        e = launch(z, p->first_chunk, p->num_chunks, arrays_of(p, grads, in), args);
        if (e || !z->params_swap) continue;
        e = zero_comm_check(z, zero_comm_synchronize(z->config.shard_comm, z->config.stream));
        if (!e) (void)zero_part_release(z, p);
    }
    end_work(z);
    return e;
}

// Tensors of frozen units are left out by their options.
static int update_all(zero *z, zero_optimizer_args args) {
    int e = ZERO_OK;
    if (!z->num_chunks) return ZERO_OK;
    if (!z->has_arrays) {
        for (size_t i = 0; i < num_parts(z); i++) {
            const struct part *p = &z->parts[i];
            z->arrays[i] = arrays_of(p, z->partial_sums[0] + sum_offset(z, p->unit), p->arrays);
        }
        e = zero_device_check(z,
                              cudaMemcpyAsync(z->device_arrays, z->arrays, num_parts(z) * sizeof *z->arrays,
                                              cudaMemcpyHostToDevice, z->config.stream),
                              "copying the tables of units");
    }
    z->has_arrays = !e;
    args.parts = z->device_arrays;
    begin_work(z, 0);
    if (!e) e = launch(z, 0, z->num_chunks, (zero_optimizer_arrays){ 0 }, args);
    end_work(z);
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

static int end_unit(zero *z, size_t u) {
    const int e = updates_on_host(z) ? zero_host_update_unit_ended(z) : ZERO_OK;
    return e ? e : zero_params_update_written(z, u);
}

// The host's work is queued one unit ahead, so that it need not wait for the all-gathers of the one before.
static int update(zero *z, zero_optimizer_args args) {
    const int gathers = sums_comm(z) != NULL,
              one_launch = !gathers && !z->params_swap && (sharded_params(z) || z->ranks == 1);
    size_t before = ZERO_NO_UNIT;  // a unit that is not ended
    int e = zero_params_update_begin(z);
    if (!e && one_launch) e = update_all(z, args);
    if (!e && updates_on_host(z)) e = zero_host_update_begin(z, &args);
    for (size_t u = 0; u < z->layout.num_units && !e; u++) {
        if (unit_frozen(z, u)) continue;
        if (gathers) e = gather_sums(z, u);
        float *grads = gathers ? z->gathered_sums : z->partial_sums[0] + sum_offset(z, u);
        if (!e && !one_launch) e = update_unit(z, u, grads, args);
        if (!e && updates_on_host(z)) e = zero_host_update_unit(z, u, grads);
        const size_t ended = updates_on_host(z) ? before : u;
        if (!e && ended != ZERO_NO_UNIT) e = end_unit(z, ended);
        before = u;
    }
    if (!e && updates_on_host(z) && before != ZERO_NO_UNIT) e = end_unit(z, before);
    if (!e) e = zero_params_update_end(z);
    if (!uses_disk(z)) return e;
    // A rank whose disk has failed has continued with the collective part; now all ranks learn of it.
    if (!e) e = zero_comm_check(z, zero_comm_synchronize(z->config.shard_comm, z->config.stream));
    return zero_agree(z, e ? e : zero_part_error(z));
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
    z->odd_step = !z->odd_step;
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
