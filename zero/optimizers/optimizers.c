#include "zero/optimizers/optimizers.h"

const zero_optimizer *zero_optimizer_get(enum zero_optimizer_kind kind) {
#define ENTRY(type, name, states, ...) { name, states, { __VA_ARGS__ } },
    static const zero_optimizer table[] = { ZERO_OPTIMIZERS(ENTRY) };
#undef ENTRY
    return (unsigned)kind < ZERO_NUM_OPTIMIZERS ? &table[kind] : NULL;
}
