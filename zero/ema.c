// ema.c: the exponential moving average of the weights takes the place of the parameters, and back.
//
// The average is fp32, sharded like the optimizer's states; the optimizer's kernel updates it in registers, so it costs
// no communication. For validation, sampling or export it is exchanged with the parameters in place (kernels.h), which
// needs no memory: nothing but parameters and average changes, and both are restored to the bit.
#include "zero/internal.h"

int zero_uses_weights(zero *z) {
    return z->failed || !z->uses_ema
               ? z->failed
               : zero_fail(z, ZERO_ERR_ARG,
                           "the parameters are the moving average of the weights: call zero_use_ema(z, 0) first");
}

static int exchange_unit(zero *z, size_t u) {
    int e = ZERO_OK;
    for (size_t at = 0, n; at < state_numel(z, u) && !e; at += n) {
        char *average = NULL, *params = NULL;
        if ((e = zero_state_open(z, u, ARRAY_PARAMS, at, 1, &params, &n))) break;
        if ((e = zero_state_open(z, u, ARRAY_EMA, at, 1, &average, &n))) break;
        e = zero_device_check(z,
                              zero_kernel_exchange_ema(params, (float *)(void *)average, z->config.settings.dtype,
                                                       z->uses_ema, n, z->config.stream),
                              "exchanging parameters and their average");
    }
    return zero_state_close(z, e);
}

static int exchange(zero *z) {
    int e = zero_params_update_begin(z), mine = ZERO_OK;
    for (size_t u = 0; u < z->layout.num_units && !e; u++) {
        if (!mine) mine = exchange_unit(z, u);
        e = uses_disk(z) ? ZERO_OK : mine;
        if (!e) e = zero_params_update_written(z, u);
    }
    if (!e) e = zero_params_update_end(z);
    return uses_disk(z) ? zero_agree(z, e ? e : mine) : e;
}

int zero_use_ema(zero *z, int on) {
    if (zero_enter(z) || zero_units_finished(z)) return z->failed;
    if (!has_ema(z))
        return zero_fail(z, ZERO_ERR_ARG, "settings.ema_decay is 0: there is no moving average of the weights");
    if (z->micro_batches)
        return zero_fail(z, ZERO_ERR_ARG, "zero_use_ema is for between steps: call zero_step or zero_discard first");
    if (!on == !z->uses_ema) return ZERO_OK;
    if (zero_params_released(z)) return z->failed;
    zero_record_call(z, CALL_USE_EMA, &on, sizeof on);
    const int e = exchange(z);
    z->uses_ema = on != 0;
    zero_wire_start(z);
    return e;
}
