// cost_offload.c: the formulas of cost.h for optimizer state and parameters, on the device, in host memory and on a
// disk: their parts (optimizers.h), and what a step moves of them.
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "zero/cost_internal.h"
#include "zero/offload/swap.h"
#include "zero/optimizers/optimizers.h"
#include "zero/param_cache.h"

static uint64_t record_bytes(size_t numel, size_t elem) {
    const size_t record = numel * elem;
    return zero_swap_file_bytes(&record, 1);
}

static void add_part(struct state *s, const size_t bytes[], size_t elem, const zero_state_part *at, size_t units,
                     int frozen) {
    const uint64_t params = record_bytes(at->numel, elem);
    s->params_file_bytes += units * params;
    if (!frozen) s->params_update_bytes += units * params;
    if (ZERO_OFFLOAD_PARAM_PARTS * params > s->params_buffer_bytes)
        s->params_buffer_bytes = ZERO_OFFLOAD_PARAM_PARTS * params;
    s->numel[at->offloaded] += units * at->numel;
    if (!frozen) s->trained[at->offloaded] += units * at->numel;
    if (!frozen && at->offloaded) s->update_parts += units;
    if (at->offloaded && at->numel > s->largest) s->largest = at->numel;
    for (size_t i = 0; i < s->arrays && at->offloaded; i++) {
        const uint64_t rounded = record_bytes(at->numel, bytes[i]);
        s->file_bytes += units * rounded;
        if (!frozen) s->update_bytes += units * rounded;
        if (ZERO_OFFLOAD_PARTS * s->arrays * rounded > s->buffer_bytes)
            s->buffer_bytes = ZERO_OFFLOAD_PARTS * s->arrays * rounded;
    }
}

struct state zero_cost_count_state(const zero_cost *p, const zero_layout *l) {
    const zero_settings *s = &p->settings;
    const zero_optimizer *optimizer = zero_optimizer_get(s->optimizer);
    const size_t master = zero_master_bytes(s->dtype, s->master);
    struct state sum = { .arrays = 0 };
    size_t bytes[2 + ZERO_MAX_OPTIMIZER_STATES];
    if (master) bytes[sum.arrays++] = master;
    if (s->ema_decay > 0) bytes[sum.arrays++] = sizeof(float);
    for (size_t i = 0; optimizer && i < optimizer->num_states; i++) bytes[sum.arrays++] = sizeof(float);
    for (size_t r = 0; r < l->num_runs; r++) {
        const size_t u = l->run_first[r], units = l->run_first[r + 1] - u, numel = zero_layout_unit_numel(l, u),
                     shard = s->stage == 0 ? numel : numel / l->ranks, begin = s->stage == 0 ? 0 : p->rank * shard;
        zero_state_part at;
        for (size_t i = 0; zero_state_part_at(s, shard, i, &at); i++) {
            add_part(&sum, bytes, zero_dtype_bytes(s->dtype), &at, units, l->unit_frozen[u]);
            sum.parts += units;
            if (!at.offloaded)
                sum.chunks += units * zero_optimizer_chunks(l, u, begin + at.begin, begin + at.begin + at.numel, NULL);
        }
    }
    return sum;
}

__attribute__((format(printf, 3, 4))) static void append(char *text, size_t bytes, const char *format, ...) {
    const size_t length = strlen(text);
    va_list args;
    va_start(args, format);
    vsnprintf(text + length, bytes - length, format, args);
    va_end(args);
}

// Of gradients and parameters of parts that the host updates.
static size_t slots_bytes(const zero_cost *p, const struct state *state) {
    return ZERO_HOST_SLOTS * zero_slot_bytes(p->settings.dtype) * state->largest;
}

void zero_cost_offloaded(const zero_cost *p, const zero_layout *l, const struct state *state, zero_row *host,
                         zero_row *disk) {
    const zero_settings *s = &p->settings;
    const enum zero_offload params = params_offload(p);
    const size_t all = zero_master_bytes(s->dtype, s->master) + (s->ema_decay > 0 ? sizeof(float) : 0),
                 states = zero_optimizer_get(s->optimizer) ? zero_optimizer_get(s->optimizer)->num_states : 0,
                 b = zero_dtype_bytes(s->dtype);
    const char *over = s->stage == 0 ? "" : "/N";
    char *of_host = host->formula, *of_disk = disk->formula;
    const size_t size = sizeof host->formula;
    if (s->offload == ZERO_OFFLOAD_CPU) {
        host->expected = state->numel[1] * all + state->trained[1] * states * sizeof(float) + slots_bytes(p, state);
        append(of_host, size, "(%zu Psi + %zu %s)%s x %.4g", all, states * sizeof(float), psi_trained(l), over,
               s->offload_fraction);
    }
    if (s->offload == ZERO_OFFLOAD_NVME) {
        host->expected = state->buffer_bytes + slots_bytes(p, state);
        disk->expected = state->file_bytes;
        append(of_host, size, "%d x %zu records", ZERO_OFFLOAD_PARTS, state->arrays);
        append(of_disk, size, "%zu Psi%s x %.4g", all + states * sizeof(float), over, s->offload_fraction);
    }
    if (*of_host)
        append(of_host, size, " + %d x %zu x %zu", ZERO_HOST_SLOTS, zero_slot_bytes(s->dtype), state->largest);
    if (params == ZERO_OFFLOAD_CPU) {
        host->expected += l->numel_padded / l->ranks * b;
        append(of_host, size, "%s%zu Psi/N", *of_host ? " + " : "", b);
    }
    if (params == ZERO_OFFLOAD_NVME) {
        host->expected += state->params_buffer_bytes;
        disk->expected += state->params_file_bytes;
        append(of_host, size, "%s%d of parameters", *of_host ? " + " : "", ZERO_OFFLOAD_PARAM_PARTS);
        append(of_disk, size, "%s%zu Psi/N", *of_disk ? " + " : "", b);
    }
}

uint64_t zero_cost_gathered(const zero_cost *p, const zero_layout *l, const uint64_t *weight) {
    const zero_settings *s = &p->settings;
    return zero_param_cache_traffic(l, p->order, p->order_length, (size_t)s->prefetch, s->delay_seed != 0,
                                    s->order == ZERO_ORDER_LAYER ? 1 : p->micro_batches, weight);
}

// What a step brings to the device of parameters that are offloaded, with each all-gather of a unit: of the disk, whole
// records. And what its update reads and writes.
static void params_moved(const zero_cost *p, const zero_layout *l, const struct state *state, uint64_t *gathered,
                         uint64_t *updated) {
    const zero_settings *s = &p->settings;
    const size_t b = zero_dtype_bytes(s->dtype);
    const int disk = params_offload(p) == ZERO_OFFLOAD_NVME;
    *gathered = *updated = 0;
    uint64_t *of_unit = params_offload(p) ? malloc((l->num_units + 1) * sizeof *of_unit) : NULL;
    if (!of_unit) return;
    for (size_t u = 0; u < l->num_units; u++) {
        zero_state_part at;
        of_unit[u] = 0;
        for (size_t i = 0; zero_state_part_at(s, zero_layout_shard_numel(l, u), i, &at); i++)
            of_unit[u] += disk ? record_bytes(at.numel, b) : at.numel * b;
    }
    *gathered = zero_cost_gathered(p, l, of_unit);
    *updated = disk ? state->params_update_bytes : trained(l) / l->ranks * b;
    free(of_unit);
}

size_t zero_cost_disk(const zero_cost *p, const zero_layout *l, zero_row *rows, size_t max) {
    const int states = p->settings.offload == ZERO_OFFLOAD_NVME, params = params_offload(p) == ZERO_OFFLOAD_NVME;
    if (!states && !params) return 0;
    const struct state state = zero_cost_count_state(p, l);
    const int passes = states && state.update_parts > ZERO_OFFLOAD_PARTS;
    uint64_t gathered = 0, updated = 0;
    if (params) params_moved(p, l, &state, &gathered, &updated);
    const zero_row both[] = {
        { .what = "read", .expected = gathered + updated + (passes ? state.update_bytes : 0) },
        { .what = "written", .expected = updated + (states ? state.update_bytes : 0) },
    };
    const char *all = "all on the disk that is not frozen";
    const char *read = params ? "all-gathers + what is not frozen" : passes ? all : "0: the buffers hold all of it";
    const size_t n = max < 2 ? max : 2;
    memcpy(rows, both, n * sizeof *rows);
    for (size_t i = 0; i < n; i++) snprintf(rows[i].formula, sizeof rows[i].formula, "%s", i ? all : read);
    return n;
}

uint64_t zero_cost_offload_traffic(const zero_cost *p, const zero_layout *l, enum zero_offload place) {
    const struct state state = zero_cost_count_state(p, l);
    zero_row host = { .kind = 0 }, disk = { .kind = 0 };
    zero_cost of_state = *p;
    of_state.settings.offload_params = ZERO_OFFLOAD_NONE;
    zero_cost_offloaded(&of_state, l, &state, &host, &disk);
    host.expected -= p->settings.offload == ZERO_OFFLOAD_CPU ? slots_bytes(p, &state) : 0;
    uint64_t bytes = p->settings.offload != place ? 0 : 2 * (place == ZERO_OFFLOAD_NVME ? disk : host).expected;
    uint64_t gathered, updated;
    if (params_offload(p) != place) return bytes;
    params_moved(p, l, &state, &gathered, &updated);
    return bytes + gathered + 2 * updated;
}

size_t zero_cost_bus(const zero_cost *p, const zero_layout *l, zero_row *rows, size_t max) {
    const zero_settings *s = &p->settings;
    if (s->offload == ZERO_OFFLOAD_NONE || max < 2) return 0;
    const size_t numel = zero_cost_count_state(p, l).trained[1], b = params_offload(p) ? 0 : zero_dtype_bytes(s->dtype),
                 read = zero_update_reads_params(s->dtype, s->master) ? b : 0;
    const char *over = s->stage == 0 ? "" : "/N";
    rows[0] = (zero_row){ .kind = 0, .what = "to the host", .expected = numel * (sizeof(float) + read) };
    rows[1] = (zero_row){ .kind = 1, .what = "to the device", .expected = numel * b };
    snprintf(rows[0].formula, sizeof rows[0].formula, "(4 + %zu) %s%s x %.4g: sums, parameters", read, psi_trained(l),
             over, s->offload_fraction);
    snprintf(rows[1].formula, sizeof rows[1].formula, "%zu %s%s x %.4g: parameters", b, psi_trained(l), over,
             s->offload_fraction);
    return 2;
}
