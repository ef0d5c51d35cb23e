#include "trainer/bad_numbers.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#include "trainer/checkpoint_write.h"

void count_nonfinite(Run *r, const StepLine *s) {
    const size_t most = (size_t)r->options.nonfinite_limit;
    if (isfinite(s->loss) && isfinite(s->norm)) {
        r->nonfinite_steps = 0;
        return;
    }
    if (r->nonfinite_steps++ == 0) r->first_nonfinite = *s;
    if (most == 0 || r->nonfinite_steps < most) return;
    finish_checkpoint(r);
    die("the loss or the gradient norm was not finite in %zu steps in a row, from step %zu on (loss %f, norm %f): "
        "start again from the last good model with a smaller -l or other data; --nonfinite-limit 0 goes on",
        most, r->first_nonfinite.step + 1, r->first_nonfinite.loss, r->first_nonfinite.norm);
}

typedef struct {
    uint64_t tensor, element;  // tensor UINT64_MAX: none
} Place;

// Notes the first element that is not finite.
static int find_nonfinite(void *ctx, size_t tensor, size_t begin, size_t count, const float *values) {
    Place *found = ctx;
    for (size_t i = 0; i < count && found->tensor == UINT64_MAX; i++)
        if (!isfinite(values[i])) *found = (Place){ tensor, begin + i };
    return 0;
}

void check_parameters(Run *r, size_t step) {
    Place mine = { .tensor = UINT64_MAX }, *all = allocate((size_t)r->ranks * sizeof *all);
    must(r, zero_visit(r->z, ZERO_STATE_PARAMS, find_nonfinite, &mine), "looking for bad numbers");
    gather(r, &mine, sizeof mine, all);
    for (int i = 0; i < r->ranks; i++) {
        if (all[i].tensor == UINT64_MAX) continue;
        finish_checkpoint(r);
        die("the model after step %zu has a value that is not finite (%s, element %llu): it is not written: start "
            "again from the last good model with a smaller -l or other data",
            step, r->tensors[all[i].tensor].name, (unsigned long long)all[i].element);
    }
    free(all);
}
