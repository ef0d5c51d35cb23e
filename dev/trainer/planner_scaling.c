// How a run scales: the recommended plan on fewer and more ranks, as a table. If the tokens of a step are given, ranks
// share them out (strong scaling); else each rank has one micro-batch (weak scaling).
#include "trainer/planner_internal.h"

enum { FACTOR = 4 };  // between one row's ranks and the next one's

static void print_head(FILE *out, const PlanInput *in) {
    fprintf(out, "scaling, simulated: %s, %s, transport %s, B x T = %zu x %zu, ", in->model,
            in->settings.dtype == ZERO_BF16 ? "BF16" : "FP32", zero_transport_title(in->transport), in->B, in->T);
    if (in->total_tokens > 0) {
        fprintf(out, "%zu tokens a step\n", in->total_tokens);
    } else {
        fprintf(out, "one micro-batch a rank and step\n");
    }
    fprintf(out, "%zu ranks a host; %g GB/s to a rank inside a host, %g GB/s to a host; %g TFLOP/s x %g a rank\n\n",
            in->ranks_per_host > 0 ? in->ranks_per_host : in->ranks, in->cluster.link_bytes_per_second / 1e9,
            in->cluster.net_bytes_per_second / 1e9, in->peak_flops / 1e12, in->efficiency);
    fprintf(out, "%7s %6s %6s %6s %6s %9s %12s %13s %11s %11s %8s\n", "ranks", "G", "stage", "group", "order",
            "GB a rank", "GB to a host", "computing, ms", "step, ms", "tokens/s", "of first");
}

int plan_print_scaling(FILE *out, const PlanInput *in, char *err, size_t err_bytes) {
    const size_t host = in->ranks_per_host > 0 && in->ranks_per_host < in->ranks ? in->ranks_per_host : 1;
    size_t ranks = in->ranks;
    double first = 0;  // tokens a second of a rank, in the first row that fits
    while (ranks % FACTOR == 0 && ranks / FACTOR >= host) ranks /= FACTOR;
    print_head(out, in);
    for (; ranks <= in->ranks; ranks *= FACTOR) {
        Plan p;
        PlanInput with = *in;
        with.ranks = ranks;
        if (plan_fastest(&p, &with, err, err_bytes) != 0) return -1;
        fprintf(out, "%7zu %6zu ", ranks, p.micro_steps);
        if (p.recommended < 0) {
            fprintf(out, "%6s\n", "none fits");
            continue;
        }
        const PlanChoice *best = &p.fastest[p.recommended];
        const double speed = (double)(in->B * in->T * p.micro_steps) / best->times.step;
        first = first > 0 ? first : speed;
        fprintf(out, "%6d %6zu %6s %9.2f %12.3f %13.2f %11.2f %11.5g %7.1f%%\n", p.recommended, best->shard_group,
                plan_order_name(best->order), (double)best->memory / 1e9, best->times.between_hosts / 1e9,
                1e3 * best->times.compute, 1e3 * best->times.step, speed * (double)ranks, 100 * speed / first);
    }
    return 0;
}
