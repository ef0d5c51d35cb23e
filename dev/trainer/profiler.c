// See profile.h.
#include "trainer/profiler.h"

#include <stdlib.h>
#include <string.h>

#include "device/calls.h"
#include "zero/cost.h"
#include "zero/kernels.h"
#include "zero/optimizers/optimizers.h"

#ifdef CUDA_ON_CPU_EMULATED
#define EMULATED(...) __VA_ARGS__  // what only the emulated GPU can say
#else
#define EMULATED(...)
#endif

// ---------------------------------------------------------------------------------------------------------------------
// Formulas. R = B T rows, b = bytes of an element. What is left out is small and depends on the data or on the cut into
// blocks: statistics of rows in cache, and the rows of dwte that the tokens of a batch happen to name.

typedef struct {
    ProfileWork *work;
    size_t n;
} Rows;

// bytes: of one call
static ProfileWork *add(Rows *rows, const char *name, size_t calls, double bytes) {
    ProfileWork *w = &rows->work[rows->n++];
    *w = (ProfileWork){ .calls = (double)calls, .bytes = bytes * (double)calls };
    snprintf(w->name, sizeof w->name, "%s", name);
    return w;
}

static void product_name(char *name, const char *use, size_t C, size_t OC) {
    snprintf(name, PROFILE_NAME_BYTES, "product %s %zu to %zu", use, C, OC);
}

// extra: elements that the product's end reads or writes beside its result. Layers of the same shape are one kind: in
// small models the head may be as another layer.
static ProfileWork *add_product(Rows *rows, const char *use, double R, size_t C, size_t OC, size_t calls, size_t elem,
                                size_t extra) {
    char name[PROFILE_NAME_BYTES];
    product_name(name, use, C, OC);
    ProfileWork *w = add(rows, name, calls, (R * (double)(C + OC) + (double)(C * OC + extra)) * (double)elem);
    w->flops = 2.0 * R * (double)C * (double)OC * (double)calls;
    w->tensor_cores = 1;
    for (ProfileWork *same = rows->work; same < w; same++) {
        if (strcmp(same->name, w->name) != 0) continue;
        same->calls += w->calls;
        same->bytes += w->bytes;
        same->flops += w->flops;
        rows->n--;
        return same;
    }
    return w;
}

size_t profile_update_bytes(const zero_settings *s) {
    const size_t states = zero_optimizer_get(s->optimizer)->num_states + (s->ema_decay > 0);
    const size_t all = 4 + states * 2 * 4;
    if (s->dtype == ZERO_F32) return all + 2 * 4;
    if (s->master == ZERO_MASTER_NONE) return all + 2 * 2;
    return s->master == ZERO_MASTER_SPLIT ? all + 2 * (2 + 2) : all + 2 * 4 + 2;
}

// Partial sums that are read and written when so many leaves are pushed, so many times.
static double sums_moved(uint64_t pushed, size_t times) {
    double sums = 0;
    for (uint64_t i = 0; i < times; i++) {
        const uint64_t before = i * pushed, after = before + pushed;
        sums += zero_partial_sums_live(before) + zero_partial_sums_live(after) -
                2 * zero_partial_sums_kept(before, after);
    }
    return sums;
}

// How often gradients are reduced in a step.
static size_t reductions(const ProfileRun *r) { return r->settings.order != ZERO_ORDER_STEP ? 1 : r->G; }

// The ordered sums of a step (zero/gradients.c). Each reduction reads the N chunks of a shard, reads the partial sums
// that it changes, and writes those that are new. Several shard groups write and read their sums on the way, and so do
// hosts in two levels.
static double reduce_bytes(const ProfileRun *r) {
    const zero_group_sums own = zero_cost_own_sums(&r->settings, r->G);
    const double times = (double)reductions(r), shard = (double)r->numel / (double)r->ranks;
    const double chunks = (double)r->numel * (double)(own.count * zero_dtype_bytes(own.dtype));  // of all N
    const size_t R = r->replicas > 1 ? r->replicas : 1;
    const zero_group_sums group = zero_cost_group_sums(r->ranks * own.count, own.dtype);
    const zero_group_sums host = zero_cost_group_sums((r->per_host ? r->per_host : 1) * own.count, own.dtype);
    const size_t of_group = r->per_host ? r->ranks / r->per_host * host.count : r->ranks * own.count;
    const uint64_t pushed = R > 1 ? R * group.count : of_group;
    double bytes = times * chunks;
    if (r->per_host) bytes += times * 2 * shard * (double)(of_group * zero_dtype_bytes(host.dtype));
    if (R > 1) bytes += times * 2 * shard * (double)(group.count * zero_dtype_bytes(group.dtype));
    return bytes + 4 * shard / (double)R * sums_moved(pushed, reductions(r));
}

// The sums of a rank's own micro-batches (zero/own_sums.c): each block of them is a counter of its own. Several sums
// are copied before they are sent.
static double accumulate_bytes(const ProfileRun *r) {
    const zero_group_sums own = zero_cost_own_sums(&r->settings, r->G);
    const double gradients = (double)(r->G * zero_dtype_bytes(r->settings.dtype));
    const double copies = own.count > 1 ? 2 * (double)own.count : 0;
    return (double)r->numel * (gradients + 4 * (double)own.count * sums_moved(1, own.leaves) + 4 * copies);
}

// The engine (zero/). The gradients of a micro-batch are zeroed, sent by all-to-all, and added in fp32. Then follow the
// norm, the update, and the new parameters.
static void add_engine(const ProfileRun *r, Rows *rows) {
    const size_t L = r->config.num_layers, G = r->G, b = zero_dtype_bytes(r->settings.dtype);
    ProfileWork *w;
    const double numel = (double)r->numel, shard = numel / (double)r->ranks;
    const double R = r->replicas > 1 ? (double)r->replicas : 1;
    const size_t units = L + 1;
    const int stage = r->settings.stage, library = r->settings.reduction == ZERO_REDUCE_LIBRARY;
    add(rows, "zero gradients", G * units, 0)->bytes = (double)G * numel * (double)b;
    if (r->settings.order != ZERO_ORDER_STEP) add(rows, "accumulate", G * units, 0)->bytes = accumulate_bytes(r);
    w = add(rows, library ? "reduce" : "all-to-all", reductions(r) * units, 0);
    w->wire = stage == 0 ? r->grad_bytes - 4 * (numel - shard) : r->grad_bytes;
    if (!library) add(rows, "reduce", reductions(r) * units, 0)->bytes = reduce_bytes(r);
    add(rows, "norm", 1, 4 * shard / R);
    if (R > 1) add(rows, "all-gather sums", units, 0)->wire = 4 * shard * (R - 1) / R;
    if (stage == 0 && r->ranks > 1) add(rows, "all-gather sums", units, 0)->wire = 4 * (numel - shard);
    w = add(rows, zero_optimizer_get(r->settings.optimizer)->name, R == 1 && (stage == 3 || r->ranks == 1) ? 1 : units,
            0);
    const double offloaded = r->settings.offload == ZERO_OFFLOAD_NONE ? 0 : r->settings.offload_fraction;
    w->bytes = (stage == 0 ? numel : shard) * (1 - offloaded) * (double)profile_update_bytes(&r->settings);
    if (offloaded == 1) rows->n--;
    if (offloaded > 0) add(rows, "update, host", 0, 0);
    if ((stage == 1 || stage == 2) && r->ranks > 1) {
        add(rows, "all-gather", units, 0)->wire = r->param_bytes;
        add(rows, "all-gather: wait", 0, 0);
    }
    if (stage == 3 && r->ranks > 1) {
        add(rows, "unshard", 0, 0)->wire = r->param_bytes;
        add(rows, "unshard: wait", 0, 0);
    }
}

// The head, whose weights are wte. Of several chunks of rows, the sum of their dweight is in fp32: one writes it, the
// others read and write it, and it is rounded at the end.
static void add_head(Rows *rows, const ProfileRun *r) {
    const size_t chunks = r->head_chunks, R = r->B * r->T, calls = r->G * chunks, C = r->config.channels,
                 Vp = r->config.padded_vocab_size, b = zero_dtype_bytes(r->settings.dtype);
    const double of_chunk = (double)R / (double)chunks;
    add(rows, "classifier", calls, of_chunk * (double)(2 * Vp * b + 8));
    add_product(rows, "forward", of_chunk, C, Vp, calls, b, 0);
    add_product(rows, "dinput", of_chunk, C, Vp, calls, b, 0);
    ProfileWork *w = add_product(rows, "dweight", of_chunk, C, Vp, calls, b, 0);
    if (chunks == 1) return;
    w->bytes += (double)(r->G * Vp * C) * ((double)(2 * chunks - 1) * 4 - (double)(chunks * b));
    add(rows, "round_head", r->G, (double)(Vp * C * (4 + b)));
}

size_t profile_work(const ProfileRun *r, ProfileWork *work) {
    Rows rows = { work, 0 };
    const size_t R = r->B * r->T, G = r->G, b = zero_dtype_bytes(r->settings.dtype);
    const size_t C = r->config.channels, L = r->config.num_layers, NH = r->config.num_heads;
    const double row = (double)(R * C * b);           // bytes of [R, C]
    const double statistics = 2.0 * 4.0 * (double)R;  // mean and rstd, fp32
    // FLOPs of one product of a causal attention
    const double triangle = (double)r->B * (double)r->T * (double)(r->T + 1) * (double)C;

    // Forward; layer by layer a layer's is computed again in the backward.
    const size_t F = r->settings.order == ZERO_ORDER_LAYER ? 2 : 1;
    add(&rows, "encoder_forward", G, 2 * row + (double)(r->T * C * b) + 4.0 * (double)R);
    add(&rows, "layernorm_forward", G * (F * 2 * L + 1 + (r->recompute >= 2 ? 2 * L : 0)),
        2 * row + statistics + 2.0 * (double)(C * b));
    ProfileWork *w = add(&rows, r->flash ? "flash_forward" : "attention_forward", G * F * L,
                         4 * row + 4.0 * (double)(R * NH));
    w->flops = 2 * triangle * w->calls;
    w->tensor_cores = 1;
    add(&rows, "residual", G * F * 2 * L, 3 * row);
    const size_t gelus = (r->gelu_fusion >= 1 ? 0 : F * L) + (r->recompute >= 1 ? L : 0);
    if (gelus) add(&rows, "gelu_forward", G * gelus, 8 * row);

    // Backward. Attention's has five products (scores, dp, dq, dk, dv); two are made twice where one kernel makes dq
    // and another dk and dv.
    if (r->gelu_fusion < 2) add(&rows, "gelu_backward", G * L, 12 * row);
    add(&rows, "layernorm_backward", G * (2 * L + 1), 4 * row + statistics + (double)(C * b));
    const double backward = 6 * row + 8.0 * (double)(R * NH);
    if (r->one_backward) {
        w = add(&rows, "attention_backward", G * L, backward + 2 * row);
        w->flops = 5 * triangle * w->calls;
        w->tensor_cores = 1;
    } else {
        w = add(&rows, r->flash ? "flash_dq" : "attention_dq", G * L, backward);
        w->flops = 3 * triangle * w->calls;
        w->tensor_cores = 1;
        w = add(&rows, r->flash ? "flash_dkv" : "attention_dkv", G * L, backward);
        w->flops = 4 * triangle * w->calls;
        w->tensor_cores = 1;
    }
    w = add(&rows, "bias_partial", G * 4 * L, 0);  // of 3C, C, 4C and C columns
    w->bytes = (double)(G * L) * 9 * row;
    w = add(&rows, "add_partials", G * (4 * L + 2 * L + 1), 0);  // biases; weights and biases of layernorms
    w->bytes = (double)(G * (9 * L + 2 * (2 * L + 1)) * C) * (double)(4 * r->chunks + b);
    add(&rows, "wte_backward", G, row + 4.0 * (double)R);
    add(&rows, "wpe_backward", G, row + (double)(r->T * C * b));

    // Products: qkv, attproj, fc, fcproj.
    const struct {
        size_t in, out, calls;
    } layers[] = { { C, 3 * C, L }, { C, C, L }, { C, 4 * C, L }, { 4 * C, C, L } };
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++) {
        const size_t in = layers[i].in, out = layers[i].out, calls = G * layers[i].calls;
        const int gelu_forward = i == 2 && r->gelu_fusion >= 1, gelu_backward = i == 3 && r->gelu_fusion >= 2;
        add_product(&rows, gelu_forward ? "forward, gelu" : "forward", (double)R, in, out, calls * F, b,
                    gelu_forward ? R * out : 0);
        add_product(&rows, gelu_backward ? "dinput, gelu" : "dinput", (double)R, in, out, calls, b,
                    gelu_backward ? R * in : 0);
        add_product(&rows, "dweight", (double)R, in, out, calls, b, 0);
    }
    add_head(&rows, r);
    for (size_t k = 0; k < 2 && r->offloaded_bytes > 0; k++)
        add(&rows, k ? "activations from the host" : "activations to the host", G * (L - 1), row)->host =
            (double)G * r->offloaded_bytes;

    add_engine(r, &rows);
    return rows.n;
}

// NVIDIA's data sheets: memory; dense bf16 and TF32 with tensor cores, fp32 without; NVLink and PCIe in one direction.
static const ProfileDevice DEVICES[] = {
    { "H200", 4.8e12, 989e12, 494e12, 67e12, 450e9, 64e9 },
    { "H100 80GB HBM3", 3.35e12, 989e12, 494e12, 67e12, 450e9, 64e9 },
    { "A100-SXM4-80GB", 2.039e12, 312e12, 156e12, 19.5e12, 300e9, 32e9 },
    { "A100-SXM4-40GB", 1.555e12, 312e12, 156e12, 19.5e12, 300e9, 32e9 },
};

// Not a GH200, whose memory is another's, nor an H200 NVL, which is slower.
static int is_device(const char *text, const char *name) {
    const char *at = strstr(text, name);
    return at != NULL && (at == text || at[-1] == ' ') && strncmp(at + strlen(name), " NVL", 4) != 0 &&
           strstr(text, "MIG") == NULL;
}

const ProfileDevice *profile_device(const char *name, int *known) {
    *known = 1;
    for (size_t i = 0; i < sizeof DEVICES / sizeof *DEVICES; i++) {
        if (is_device(name, DEVICES[i].name)) return &DEVICES[i];
    }
    *known = 0;
    return &DEVICES[0];
}

double profile_floor(const ProfileWork *w, const ProfileRun *run, const ProfileDevice *d, const char **bound) {
    const double math = w->flops / (!w->tensor_cores                   ? d->fp32
                                    : run->settings.dtype == ZERO_BF16 ? d->bf16
                                    : run->tf32                        ? d->tf32
                                                                       : d->fp32);
    const double memory = w->bytes / d->memory, link = w->wire / d->link, host = w->host / d->host;
    if (host > math && host > memory && host > link) {
        *bound = "host";
        return host;
    }
    *bound = link > math && link > memory ? "link" : math > memory ? "math" : "memory";
    return link > math && link > memory ? link : math > memory ? math : memory;
}

// ---------------------------------------------------------------------------------------------------------------------
// The clock. Events are made once and used again in every step.

enum { MAX_DEPTH = 8 };

typedef struct {
    char name[PROFILE_NAME_BYTES];
    size_t calls;
    double ms;
    EMULATED(cuda_on_cpu_memory memory;)
} Kind;

typedef struct {
    cudaEvent_t begin, end;
    cudaStream_t stream;
    size_t kind;
} Span;

struct Profile {
    Kind kinds[PROFILE_MAX_KINDS];
    size_t num_kinds;
    Span *spans;  // of this step; the events of the others wait to be used again
    size_t num_spans, made, room;
    size_t open[MAX_DEPTH], depth;  // begun and not ended
    size_t steps;
    double ms;           // of all steps
    DeviceCalls before;  // of this process, when the step began
    DeviceCalls queued;  // in all steps, until all was queued
    unsigned long long waits_at_end;
    cudaError_t error;  // the first since the step began
};

Profile *profile_create(void) {
    EMULATED(cuda_on_cpu_count_memory(1);)
    return calloc(1, sizeof(Profile));
}

void profile_destroy(Profile *p) {
    if (!p) return;
    EMULATED(cuda_on_cpu_count_memory(0);)
    for (size_t i = 0; i < p->made; i++) {
        (void)cudaEventDestroy(p->spans[i].begin);
        (void)cudaEventDestroy(p->spans[i].end);
    }
    free(p->spans);
    free(p);
}

static size_t kind_of(Profile *p, const char *name) {
    char cut[PROFILE_NAME_BYTES];
    snprintf(cut, sizeof cut, "%s", name);
    cut[strcspn(cut, "<(")] = '\0';
    char *suffix = strstr(cut, "_kernel");
    if (suffix && !suffix[strlen("_kernel")]) *suffix = '\0';
    for (size_t k = 0; k < p->num_kinds; k++) {
        if (!strcmp(p->kinds[k].name, cut)) return k;
    }
    if (p->num_kinds == PROFILE_MAX_KINDS)
        return p->num_kinds - 1;  // more than any run has: the last one is
                                  // "others"
    if (p->num_kinds == PROFILE_MAX_KINDS - 1) snprintf(cut, sizeof cut, "others");
    memcpy(p->kinds[p->num_kinds].name, cut, sizeof cut);
    return p->num_kinds++;
}

static cudaError_t begin(Profile *p, const char *name, cudaStream_t stream) {
    if (p->num_spans == p->room) {
        const size_t room = p->room ? 2 * p->room : 1024;
        Span *spans = realloc(p->spans, room * sizeof *spans);
        if (!spans) return cudaErrorMemoryAllocation;
        p->spans = spans;
        p->room = room;
    }
    Span *s = &p->spans[p->num_spans];
    if (p->num_spans == p->made) {
        cudaError_t e = cudaEventCreate(&s->begin);
        if (e != cudaSuccess) return e;
        e = cudaEventCreate(&s->end);
        if (e != cudaSuccess) {
            (void)cudaEventDestroy(s->begin);
            return e;
        }
        p->made++;
    }
    s->stream = stream;
    s->kind = kind_of(p, name);
    p->open[p->depth] = p->num_spans++;
    return cudaEventRecord(s->begin, stream);
}

void profile_begin_work(Profile *p, const char *name, cudaStream_t stream) {
    if (p->error == cudaSuccess && p->depth == MAX_DEPTH) p->error = cudaErrorInvalidValue;
    if (p->error == cudaSuccess) p->error = begin(p, name, stream);
    p->depth++;
}

void profile_end_work(Profile *p) {
    p->depth--;
    if (p->error == cudaSuccess)
        p->error = cudaEventRecord(p->spans[p->open[p->depth]].end, p->spans[p->open[p->depth]].stream);
}

void profile_begin_product(Profile *p, const char *use, size_t C, size_t OC, cudaStream_t stream) {
    if (!p) return;
    char name[PROFILE_NAME_BYTES];
    product_name(name, use, C, OC);
    profile_begin_work(p, name, stream);
}

void profile_begin_step(Profile *p) {
    if (p) p->before = device_calls();
}

void profile_step_is_queued(Profile *p) {
    if (!p) return;
    const DeviceCalls now = device_calls();
    p->queued.kernels += now.kernels - p->before.kernels;
    p->queued.copies += now.copies - p->before.copies;
    p->queued.waits += now.waits - p->before.waits;
    p->before = now;
}

cudaError_t profile_end_step(Profile *p, double ms) {
    cudaError_t e = p->error;
    p->waits_at_end += device_calls().waits - p->before.waits;
    for (size_t i = 0; i < p->num_spans && e == cudaSuccess; i++) {
        const Span *s = &p->spans[i];
        float took = 0;
        e = cudaEventSynchronize(s->end);
        if (e == cudaSuccess) e = cudaEventElapsedTime(&took, s->begin, s->end);
        p->kinds[s->kind].calls++;
        p->kinds[s->kind].ms += took;
        EMULATED(cuda_on_cpu_add_memory_between(&p->kinds[s->kind].memory, s->begin, s->end);)
    }
    p->num_spans = 0;
    p->error = cudaSuccess;
    p->steps++;
    p->ms += ms;
    return e;
}

// ---------------------------------------------------------------------------------------------------------------------
// The table.

// What the emulated GPU counted of a kind beside its floor: requests of global memory, as sectors of a request and
// beside the fewest; bytes of these sectors beside those of the formula (caches are not modelled, so what is read twice
// counts twice); passes over the banks of shared memory beside those without conflicts.
static void print_memory(FILE *out, const Kind *k, double bytes) {
    (void)out, (void)k, (void)bytes;
#ifdef CUDA_ON_CPU_EMULATED
    const cuda_on_cpu_memory none = { 0 }, *m = k ? &k->memory : &none;
    const double sectors = (double)m->sectors, wavefronts = (double)m->wavefronts;
    const double ratio[][2] = { { sectors, (double)m->requests },
                                { sectors, (double)m->fewest_sectors },
                                { 32 * sectors, bytes },
                                { wavefronts, (double)m->fewest_wavefronts } };
    for (size_t i = 0; i < sizeof ratio / sizeof *ratio; i++) {
        if (ratio[i][0] > 0 && ratio[i][1] > 0)
            fprintf(out, " %8.2f", ratio[i][0] / ratio[i][1]);
        else
            fprintf(out, " %8s", "");
    }
#endif
}

static int print_row(FILE *out, const Kind *k, const ProfileWork *w, const ProfileRun *run, const ProfileDevice *d,
                     size_t steps, double *floors) {
    const char *bound = "";
    const double floor = w ? 1000 * profile_floor(w, run, d, &bound) : 0,
                 calls = k ? (double)k->calls / (double)steps : 0;
    const double ms = k ? k->ms / (double)steps : 0;
    *floors += floor;
    fprintf(out, "%-34s %9.1f %11.3f", w ? w->name : k->name, calls, ms);
    if (w)
        fprintf(out, " %14.0f %14.0f %16.0f", w->bytes, w->wire + w->host, w->flops);
    else
        fprintf(out, " %14s %14s %16s", "", "", "");
    if (floor > 0 && k)
        fprintf(out, " %10.5f %9.1f  %-6s", floor, ms / floor, bound);
    else
        fprintf(out, " %10s %9s  %-6s", "", "", "");
    print_memory(out, k, w ? w->bytes * (double)steps : 0);
    const char *wrong = !w                                  ? "  no formula"
                        : !k                                ? "  not measured"
                        : w->calls > 0 && w->calls != calls ? "  calls differ from the formula"
                                                            : "";
    fprintf(out, "%s", wrong);
    if (w && k && *wrong) fprintf(out, ", %.1f", w->calls);
    fprintf(out, "\n");
    return *wrong != '\0';
}

int profile_print(FILE *out, const Profile *p, const ProfileRun *run, const char *device_name) {
    ProfileWork work[PROFILE_MAX_KINDS];
    const size_t n = profile_work(run, work), steps = p->steps ? p->steps : 1;
    char found[PROFILE_MAX_KINDS] = { 0 };
    int known, wrong = 0;
    const ProfileDevice *d = profile_device(device_name, &known);
    double floors = 0, ms = 0;
    fprintf(out,
            "\nprofile of rank 0, mean of %zu steps of %.3f ms. Floor: an %s%s: %.2f TB/s of memory, %.0f TFLOP/s%s, "
            "links of %.0f GB/s\n",
            p->steps, p->ms / (double)steps, d->name, known ? "" : ", for want of this device's data",
            d->memory * 1e-12,
            (run->settings.dtype == ZERO_BF16 ? d->bf16
             : run->tf32                      ? d->tf32
                                              : d->fp32) *
                1e-12,
            run->settings.dtype == ZERO_BF16 ? " in bf16"
            : run->tf32                      ? " in TF32"
                                             : " in fp32",
            d->link * 1e-9);
    const char *const memory = "" EMULATED(" sectors/ x fewest  x bytes  x banks");
    fprintf(out, "%-34s %9s %11s %14s %14s %16s %10s %9s  %-6s%s\n", "per step", "calls", "ms", "bytes, memory",
            "bytes, link", "FLOPs", "floor, ms", "ms/floor", "bound", memory);
    for (size_t i = 0; i < n; i++) {
        const Kind *kind = NULL;
        for (size_t k = 0; k < p->num_kinds; k++) {
            if (strcmp(p->kinds[k].name, work[i].name) != 0) continue;
            kind = &p->kinds[k];
            found[k] = 1;
        }
        if (!kind && work[i].calls == 0) continue;
        wrong += print_row(out, kind, &work[i], run, d, steps, &floors);
        if (kind) ms += kind->ms / (double)steps;
    }
    for (size_t k = 0; k < p->num_kinds; k++) {
        if (found[k]) continue;
        wrong += print_row(out, &p->kinds[k], NULL, run, d, steps, &floors);
        ms += p->kinds[k].ms / (double)steps;
    }
    fprintf(out, "%-34s %9s %11.3f %14s %14s %16s %10.5f %9.1f\n", "in all; streams may overlap", "", ms, "", "", "",
            floors, ms / floors);
    fprintf(
        out,
        "the host, per step: %.1f kernels launched, %.1f copies and fills; it waits for the device %.1f times until "
        "all is queued, %.1f times at the end\n",
        (double)p->queued.kernels / (double)steps, (double)p->queued.copies / (double)steps,
        (double)p->queued.waits / (double)steps, (double)p->waits_at_end / (double)steps);
    return wrong;
}
