// optimizer_chunks.c: which elements a rank updates, where their state is, and with which hyperparameters
// (optimizers/optimizers.h).
#include <math.h>
#include "zero/optimizers/optimizers.h"

// Cut elements [from, to) of a unit, all of tensor t, into chunks. `first` describes the first of them.
static size_t cut(zero_optimizer_chunk first, size_t numel, zero_optimizer_chunk *out) {
    for (size_t at = 0; out && at < numel; at += ZERO_OPTIMIZER_CHUNK) {
        *out = first;
        out->param += at;
        out->state += at;
        out->grad += at;
        out->logical += at;
        out->count = (uint32_t)(numel - at < ZERO_OPTIMIZER_CHUNK ? numel - at : ZERO_OPTIMIZER_CHUNK);
        out++;
    }
    return (numel + ZERO_OPTIMIZER_CHUNK - 1) / ZERO_OPTIMIZER_CHUNK;
}

int zero_state_part_at(const zero_settings *s, size_t numel, size_t i, zero_state_part *out) {
    const size_t blocks = numel / ZERO_ALIGN, offloaded_blocks = (size_t)(s->offload_fraction * (double)blocks),
                 resident = s->offload == ZERO_OFFLOAD_NONE ? numel : (blocks - offloaded_blocks) * ZERO_ALIGN,
                 large = SIZE_MAX / ZERO_OFFLOAD_PART, small = ZERO_OFFLOAD_PART;
    const size_t first = zero_params_offload(s) == ZERO_OFFLOAD_NVME ? small : large,
                 resident_parts = (resident + first - 1) / first, offloaded = i >= resident_parts;
    const size_t most = offloaded ? small : first,
                 begin = offloaded ? resident + (i - resident_parts) * most : i * most,
                 end = offloaded ? numel : resident;
    if (begin >= end) return 0;
    *out = (zero_state_part){ begin, end - begin < most ? end - begin : most, offloaded };
    return 1;
}

size_t zero_optimizer_chunks(const zero_layout *l, size_t unit, size_t begin, size_t end, zero_optimizer_chunk *out) {
    const size_t numel = zero_layout_unit_numel(l, unit);
    size_t n = 0;
    for (size_t t = l->unit_first[unit]; t < l->unit_first[unit + 1]; t++) {
        const size_t next = t + 1 < l->unit_first[unit + 1] ? l->tensor_offset[t + 1] : numel;
        const size_t from = l->tensor_offset[t] > begin ? l->tensor_offset[t] : begin, to = next < end ? next : end;
        if (from >= to) continue;
        const zero_optimizer_chunk first = {
            .param = from - begin,
            .state = from - begin,
            .grad = from - begin,
            .logical = l->tensors[t].logical + from - l->tensor_offset[t],
            .decay = l->tensors[t].decay != 0,
            .tensor = (uint32_t)t,
        };
        n += cut(first, to - from, out ? out + n : NULL);
    }
    return n;
}

zero_optimizer_args zero_optimizer_prepare(const zero_hyperparameters *h, float scale, uint64_t seed, uint64_t t) {
    return (zero_optimizer_args){
        .lr = h->lr,
        .beta1 = h->beta1,
        .beta2 = h->beta2,
        .eps = h->eps,
        .weight_decay = h->weight_decay,
        .correction1 = (float)(1.0 - pow((double)h->beta1, (double)t)),
        .correction2 = (float)(1.0 - pow((double)h->beta2, (double)t)),
        .scale = scale,
        .seed = seed,
        .t = t,
    };
}
