#include "trainer/reports.h"

#include <omp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/process.h"
#include "gpt2/tensors.h"
#include "trainer/checkpoint_write.h"
#include "trainer/json.h"
#include "trainer/metrics.h"
#include "zero/optimizers/optimizers.h"

// ---------------------------------------------------------------------------------------------------------------------
// The header.

enum { GPT2_EOT = 50256 };  // ends a document in llm.c's shards

#define RULE "+-----------------------+----------------------------------------------------+\n"

__attribute__((format(printf, 3, 4))) static void print_row(const Run *r, const char *name, const char *format, ...) {
    char value[ERR_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(value, sizeof value, format, args);
    va_end(args);
    make_printable(value);
    print0(r, "| %-21s | %-50s |\n", name, value);
}

// The flags that decide the bits, from the table in options.c.
static void print_what_decides(const Run *r) {
    char row[64] = "build, kind of device,";
    const char *flag;
    for (int i = 0, decides; (decides = options_decides(i, &flag)) >= 0; i++) {
        if (!decides) continue;
        if (strlen(row) + strlen(flag) + 3 > 50) {
            print_row(r, row[0] == 'b' ? "bits are decided by" : "", "%s", row);
            row[0] = '\0';
        }
        const size_t n = strlen(row);
        snprintf(row + n, sizeof row - n, "%s%s%s", n ? " " : "", flag[1] && flag[2] ? "--" : "-", flag);
    }
    print_row(r, "", "%s", row);
}

// Which runs have the same bits as this one. The gradients of a step are summed as one binary tree over its
// micro-batches, whatever the ranks and their shard groups (zero/gradients.c).
static void print_same_bits(const Run *r) {
    if (r->options.settings.reduction != ZERO_REDUCE_EXACT) {
        print_row(r, "same bits", "not promised: --reduce library");
        return;
    }
    print_row(r, "same bits", "in every stage, on any number of ranks that");
    print_row(r, "", "divides the %zu micro-batch%s of a step", r->M, r->M > 1 ? "es" : "");
    print_what_decides(r);
}

// How bytes travel between hosts.
static void print_hosts(const Run *r) {
    const int h = zero_comm_ranks_per_host(r->comm);
    const zero_comm_shape shape = zero_comm_get_shape(r->shard_comm);
    const char *why = zero_comm_why_one_level(r->shard_comm);
    if (h == r->ranks && r->ranks > 1 && r->options.one_level) print_row(r, "hosts", "1: --one-level changes nothing");
    if (h == r->ranks) return;
    if (h) print_row(r, "hosts", "%d of %d rank%s each", r->ranks / h, h, h > 1 ? "s" : "");
    if (shape.per_host == 0)
        print_row(r, h ? "" : "hosts", "one level%s%s", why[0] ? ": " : ": a shard group is on one host", why);
    else if (zero_cost_two_levels(&r->options.settings, r->G, &shape))
        print_row(r, h ? "" : "hosts", "two levels: each adds its ranks' gradients first");
    else
        print_row(r, h ? "" : "hosts", "gradients in one level: two send as many bytes");
}

// The cores of rank 0's host.
static void print_cores(const Run *r) {
    const CoreShare *c = &r->cores;
    const int threads = omp_get_max_threads();
    if (c->sharers == 1)
        print_row(r, "cores", "%d, for rank 0 alone", c->cores);
    else
        print_row(r, "cores", "%d, shared by %d ranks", c->cores, c->sharers);
    if (c->quota > 0) print_row(r, "", "the cgroup may use %g of them", c->quota);
    const char *waiting = getenv("OMP_WAIT_POLICY");
    print_row(r, "threads per rank", "%d%s", threads,
              waiting && !strcmp(waiting, "passive") ? ", waiting passively" : "");
    if (threads > 1 && (threads * c->sharers > c->cores || (c->quota > 0 && threads > c->quota)))
        print_row(r, "", "warning: more threads than cores: %d is faster", c->threads);
}

static void print_offload(const Run *r) {
    const zero_settings *s = &r->options.settings;
    zero_offload_info offload;
    if (!zero_get_offload(r->z, &offload)) return;
    char part[32] = "all";
    if (s->offload_fraction < 1) snprintf(part, sizeof part, "%.4g", s->offload_fraction);
    if (s->offload != ZERO_OFFLOAD_NONE)
        print_row(r, "offload", "%s of the optimizer state, %s", part,
                  s->offload == ZERO_OFFLOAD_CPU ? "in host memory" : r->options.offload);
    if (s->offload == ZERO_OFFLOAD_NVME) print_row(r, "", "%s", offload.how);
    if (s->offload_params != ZERO_OFFLOAD_NONE)
        print_row(r, "offload", "parameters, %s",
                  s->offload_params == ZERO_OFFLOAD_CPU ? "in host memory" : r->options.offload_params);
    if (s->offload_params == ZERO_OFFLOAD_NVME) print_row(r, "", "%s", offload.how_params);
}

static void print_machine(const Run *r) {
    static const char *const STAGES[] = { "0 (nothing sharded)", "1 (optimizer state)",
                                          "2 (optimizer state, gradients)",
                                          "3 (optimizer state, gradients, parameters)" };
    static const char *const BF16[] = { [ZERO_MASTER_NONE] = "BF16, no master weights, stochastic rounding",
                                        [ZERO_MASTER_FP32] = "BF16, fp32 master weights",
                                        [ZERO_MASTER_SPLIT] = "BF16, fp32 master weights in two halves" };
    const Options *o = &r->options;
    const zero_settings *s = &o->settings;
    print_row(r, "device", "%s", r->device.name);
    print_row(r, "precision", "%s", s->dtype == ZERO_BF16 ? BF16[s->master] : o->tf32 ? "TF32" : "FP32");
    if (r->kernels.attention != NULL)
        print_row(r, "attention", "%s, scratch %zu bytes", r->kernels.attention, r->kernels.attention_scratch);
    else
        print_row(r, "attention", r->kernels.flash ? "own kernels, on tensor cores" : "own kernels");
#ifdef CUDNN_MISSING  // the build would use cuDNN, but did not find it; this is the package to install
    print_row(r, "", "cuDNN's is faster: pip install " CUDNN_MISSING);
#endif
    print_row(r, "ranks", "%d (%d on this host)", r->ranks, r->local_ranks);
    print_row(r, "ZeRO stage", "%s", STAGES[s->stage]);
    if (r->mesh.groups > 1) {
        const zero_group_sums own = zero_cost_own_sums(s, r->G),
                              group = zero_cost_group_sums((size_t)r->mesh.shard * own.count, own.dtype);
        print_row(r, "", "%d shard groups of %d rank%s", r->mesh.groups, r->mesh.shard, r->mesh.shard > 1 ? "s" : "");
        print_row(r, "", "each passes on %zu sum%s of %zu micro-batch%s", group.count, group.count > 1 ? "s" : "",
                  group.leaves * own.leaves, group.leaves * own.leaves > 1 ? "es" : "");
    }
    print_offload(r);
    if (r->groups_asked_for) print_row(r, "", "one shard group: groups of %zu cost more wire", r->groups_asked_for);
    print_hosts(r);
    print_cores(r);
    print_row(r, "transport", "%s", zero_comm_name(r->comm));
    if (r->transport_note[0] != '\0') print_row(r, "", "%s", r->transport_note);
    print_row(r, "reduction", "%s",
              s->reduction == ZERO_REDUCE_EXACT ? "fp32, in a fixed order" : "the library's reduce-scatter");
    print_same_bits(r);
}

// How much data there is: files, tokens and documents.
static void print_files(const Run *r, const Loader *loader) {
    const LoaderInfo i = loader_info(loader);
    char documents[64] = "", err[512];
    size_t n;
    int estimated;
    if (r->rank != 0) return;
    if (!i.is_text && r->config.vocab_size > GPT2_EOT) {  // text: each file is one
        if (loader_documents(loader, GPT2_EOT, &n, &estimated, err) != 0) die("%s", err);
        snprintf(documents, sizeof documents, ", %s%zu document%s", estimated ? "about " : "", n, n == 1 ? "" : "s");
    }
    print_row(r, "", "%zu file%s, %zu %s%s", i.shards, i.shards == 1 ? "" : "s", i.tokens,
              i.is_text ? "bytes" : "tokens", documents);
}

size_t val_micro_batches(const Run *r) {
    const size_t samples = loader_num_samples(r->val);
    const int64_t limit = r->options.val_batches;
    return limit < 0 || (size_t)limit > samples ? samples : (size_t)limit;
}

static void print_data(const Run *r) {
    const Options *o = &r->options;
    print_row(r, "train data pattern", "%s%s", o->overfit ? o->val_files : o->train_files,
              o->overfit ? " (-a 1: the validation data)" : "");
    print_files(r, r->train);
    print_row(r, "", "%zu micro-batches%s", loader_num_samples(r->train),
              o->shuffle && !o->overfit ? ", shuffled" : "");
    print_row(r, "val data pattern", "%s%s", o->val_files,
              strcmp(o->val_files, o->train_files) ? "" : " (the last tenth)");
    if (r->val != NULL) print_files(r, r->val);
    if (r->val != NULL) print_row(r, "", "%zu micro-batches (-m), over all ranks", val_micro_batches(r));
    if (r->hellaswag != NULL) print_row(r, "HellaSwag", "%zu examples", hellaswag_examples(r->hellaswag));
    print_row(r, "content of -e -i -j", "%08x %08x %08x", (unsigned)r->content[INPUT_MODEL],
              (unsigned)r->content[INPUT_TRAIN], (unsigned)r->content[INPUT_VAL]);
    print_row(r, "output directory", "%s", o->output_dir != NULL ? o->output_dir : "none");
    print0(r, RULE);
}

// --generate: what decides the sample, and where it is computed.
static void print_sample_header(const Run *r) {
    const Options *o = &r->options;
    print_row(r, "device", "%s", r->device.name);
    print_row(r, "ranks", "%d, stage %d", r->ranks, o->settings.stage);
    print_row(r, "model", "%s", o->model);
    print_row(r, "num_parameters", "%zu", zero_get_layout(r->z)->numel);
    print_row(r, "sample", "%lld tokens after %zu of a prompt", (long long)o->sample_tokens, r->prompt_tokens);
    if (r->prompt_tokens > r->T) print_row(r, "", "of which the model sees the last %zu", r->T);
    if (o->top_k > 0)
        print_row(r, "", "temperature %g, of the %lld most likely tokens", o->temperature, (long long)o->top_k);
    else
        print_row(r, "", "temperature %g", o->temperature);
    print0(r, RULE);
}

// Which micro-batches a rank takes, and what it passes on.
static void print_order(const Run *r) {
    const zero_settings *s = &r->options.settings;
    const zero_group_sums own = zero_cost_own_sums(s, r->G);
    if (s->order == ZERO_ORDER_STEP) {
        print_row(r, "micro-batch order", "step: rank r takes g N + r, and sends each");
        if (r->order_declined) print_row(r, "", "the order asked for would send no fewer bytes");
        return;
    }
    if (s->order == ZERO_ORDER_LAYER)
        print_row(r, "micro-batch order", "layer by layer: r takes r G + g, sends in a step");
    else
        print_row(r, "micro-batch order", "rank: rank r takes r G + g, and sends in a step");
    print_row(r, "", "%zu fp32 sum%s of %zu of them", own.count, own.count > 1 ? "s" : "", own.leaves);
}

void print_header(const Run *r) {
    static const char *const SCHEDULES[] = { "cosine",   "linear",        "constant",      "wsd",
                                             "WarmupLR", "WarmupDecayLR", "WarmupCosineLR" };
    const Options *o = &r->options;
    const Schedule *s = &o->schedule;
    const zero_layout *l = zero_get_layout(r->z);
    print0(r, RULE "| %-21s | %-50s |\n" RULE, "Parameter", "Value");
    if (o->generate) {
        print_sample_header(r);
        return;
    }
    print_machine(r);
    print0(r, RULE);
    print_data(r);
    print_row(r, "model", "%s", o->model);
    print_row(r, "max_sequence_length T", "%zu", r->config.max_seq_len);
    print_row(r, "vocab_size V", "%zu (padded to %zu)", r->config.vocab_size, r->config.padded_vocab_size);
    print_row(r, "num_layers L", "%zu", r->config.num_layers);
    print_row(r, "num_heads NH", "%zu", r->config.num_heads);
    print_row(r, "channels C", "%zu", r->config.channels);
    print_row(r, "num_parameters Psi", "%zu (%zu with padding of shards)", l->numel, l->numel_padded);
    print0(r, RULE);
    print_row(r, "micro-batch B x T", "%zu x %zu", r->B, r->T);
    print_row(r, "micro-steps G", "%zu", r->G);
    print_order(r);
    print_row(r, "tokens per step", "%zu", r->B * r->T * r->M);
    print_row(r, "steps", "%zu", r->steps);
    print_row(r, "learning rate", "%.2e, %s, warmup %zu%s, final %.2e", s->lr, SCHEDULES[s->kind], s->warmup,
              s->warmup > r->steps ? " > steps" : "",
              s->kind == SCHEDULE_WARMUP_DECAY_LR ? s->warmup_from : s->lr * s->final_fraction);
    const char *optimizer = zero_optimizer_get(o->settings.optimizer)->name;
    if (o->settings.optimizer == ZERO_ADAMW)
        print_row(r, optimizer, "beta %g %g, eps %g, weight decay %g", o->beta1, o->beta2, o->eps, o->weight_decay);
    else if (o->settings.optimizer == ZERO_LION)
        print_row(r, optimizer, "beta %g %g, weight decay %g", o->beta1, o->beta2, o->weight_decay);
    else
        print_row(r, optimizer, "momentum %g, weight decay %g", o->beta1, o->weight_decay);
    if (o->settings.ema_decay > 0)
        print_row(r, "average of weights", "decay %g; validation and samples use it", o->settings.ema_decay);
    print_row(r, "gradient clip", "%g%s", o->grad_clip, o->grad_clip > 0 ? "" : " (off)");
    print_row(r, "update or skip",
              options_host_decides(o) ? "decided by the host, which waits (-sl, -sg)" : "decided on the device");
    print_row(r, "recompute", "%lld", (long long)o->recompute);
    if (r->activations != NULL) print_row(r, "inputs of layers", "in host memory, two on the device");
    if (r->kernels.head_chunks > 1) print_row(r, "head", "in %zu chunks of rows", r->kernels.head_chunks);
    if (o->gelu_fusion) print_row(r, "GELU in products", o->gelu_fusion == 1 ? "forward" : "forward and backward");
    print_row(r, "seed", "%llu", (unsigned long long)o->settings.seed);
    print0(r, RULE);
}

// ---------------------------------------------------------------------------------------------------------------------
// Predicted and measured: the least and the most over the ranks.

// The table, and its rows in the record of metrics.jsonl that is being written (json; NULL: none) under this name.
static void report(const Run *r, FILE *json, const char *name, const char *title, const zero_row *rows, size_t n) {
    typedef struct {
        uint64_t expected, measured;
    } Pair;
    Pair mine[MAX_ROWS] = { { 0 } };
    for (size_t i = 0; i < n; i++) mine[i] = (Pair){ rows[i].expected, rows[i].measured };
    Pair *all = allocate((size_t)r->ranks * sizeof mine);
    gather(r, mine, sizeof mine, all);
    print0(r, "\n%-26s %-40s %15s %15s %15s\n", title, "formula", "by formula", "measured, min", "max over ranks");
    if (json != NULL) fprintf(json, ",\"%s\":[", name);
    for (size_t i = 0; i < n; i++) {
        uint64_t least = UINT64_MAX;
        uint64_t most = 0;
        int differs = -1;
        for (int rank = 0; rank < r->ranks; rank++) {
            const Pair p = all[(size_t)rank * MAX_ROWS + i];
            least = p.measured < least ? p.measured : least;
            most = p.measured > most ? p.measured : most;
            if (p.measured != p.expected && differs == -1) differs = rank;
        }
        const size_t length = strlen(rows[i].formula);
        const int over = length > 40 ? (int)length - 40 : 0;  // it takes from the blanks of the next column
        print0(r, "%-26s %-40s %*llu %15llu %15llu", rows[i].what, rows[i].formula, 15 - over,
               (unsigned long long)rows[i].expected, (unsigned long long)least, (unsigned long long)most);
        if (differs == -1)
            print0(r, "\n");
        else
            print0(r, "  rank %d differs from the formula\n", differs);
        if (json == NULL) continue;
        fprintf(json, "%s{\"what\":\"%s\",\"formula\":", i > 0 ? "," : "", rows[i].what);
        json_string(json, rows[i].formula);
        fprintf(json, ",\"by_formula\":%llu,\"min\":%llu,\"max\":%llu,\"equal\":%s}",
                (unsigned long long)rows[i].expected, (unsigned long long)least, (unsigned long long)most,
                differs == -1 ? "true" : "false");
    }
    if (json != NULL) fprintf(json, "]");
    free(all);
}

// Is anything missing from the rows? Prints what the process takes beside their sum, bytes, and what it took
// before there was a model (libraries). What it takes beyond that are buffers of MPI and of matrix products, and partly
// used pages.
static void report_process(const Run *r, size_t bytes) {
    size_t mine[2] = { r->process_start + bytes, process_memory((size_t)r->sharers) };  // start, peak
    size_t *all = allocate((size_t)r->ranks * sizeof mine);
    gather(r, mine, sizeof mine, all);
    double expected = 0;
    double measured = 0;
    size_t least = SIZE_MAX;
    size_t most = 0;
    for (size_t i = 0; i < (size_t)r->ranks; i++) {
        expected += (double)all[2 * i] / r->ranks;
        measured += (double)all[2 * i + 1] / r->ranks;
        least = all[2 * i + 1] < least ? all[2 * i + 1] : least;
        most = all[2 * i + 1] > most ? all[2 * i + 1] : most;
    }
    free(all);
    char formula[64];
    snprintf(formula, sizeof formula, "the memory above, %zu before it", r->process_start);
    if (least > 0) {
        print0(r, "\n%-26s %-40s %15.0f %15zu %15zu  mean %.0f, measured to formula %+.1f%%\n", "process, bytes",
               formula, expected, least, most, measured, 100 * (measured - expected) / expected);
    }
}

static void report_hosts(const Run *r) {
    const int h = zero_comm_ranks_per_host(r->comm);
    zero_row rows[MAX_ROWS];
    if (h == 0 || h == r->ranks || (h % r->mesh.shard != 0 && r->mesh.shard % h != 0)) return;
    const size_t n = zero_report_between_hosts(r->z, (size_t)h, rows, MAX_ROWS);
    print0(r, "\n%-26s %-40s %15s\n", "sent by each host, bytes", "formula", "by formula");
    for (size_t i = 0; i < n; i++)
        print0(r, "%-26s %-40s %15llu\n", rows[i].what, rows[i].formula, (unsigned long long)rows[i].expected);
}

static void report_disk(const Run *r, FILE *json) {
    zero_row rows[2];
    const size_t n = zero_report_disk(r->z, rows, 2);
    for (size_t k = 0; k < n; k++) rows[k].measured = r->disk[k];
    if (n == 0 || r->disk[1] == 0) return;
    report(r, json, "disk", "disk per rank, step, bytes", rows, n);
    print0(r, "  the update of rank 0 has waited %.3f ms for its disk\n", r->disk_waited * 1e3);
}

static void report_bus(const Run *r, FILE *json) {
    zero_row rows[2];
    const size_t n = zero_report_bus(r->z, rows, 2);
    if (n > 0 && r->wire_rows > 0) report(r, json, "bus", "copied per rank, step, bytes", rows, n);
}

// Of the last step.
static void report_activations(const Run *r, FILE *json) {
    zero_row rows[2] = { { .what = "activations, out" }, { .what = "activations, in" } };
    if (r->activations == NULL || r->kernels.offloaded_bytes == 0) return;
    rows[0].measured = r->activations->out;
    rows[1].measured = r->activations->in;
    for (size_t k = 0; k < 2; k++) {
        rows[k].expected = r->G * r->kernels.offloaded_bytes;
        snprintf(rows[k].formula, sizeof rows[k].formula, "G (layers - 1) inputs, B x T x C");
    }
    report(r, json, "host_link", "to the host, step, bytes", rows, 2);
}

void note_disk(Run *r, int begin) {
    zero_offload_info info;
    if (!zero_get_offload(r->z, &info)) return;
    const uint64_t now[2] = { info.read, info.written };
    if (begin) r->disk_untouched = now[0] == r->disk_after[0] && now[1] == r->disk_after[1];
    for (int k = 0; k < 2 && !begin && r->disk_untouched; k++) r->disk[k] = now[k] - r->disk_after[k];
    if (!begin && r->disk_untouched) r->disk_waited = info.waited_s - r->disk_waited_after;
    if (!begin) memcpy(r->disk_after, now, sizeof now);
    if (!begin) r->disk_waited_after = info.waited_s;
}

void print_reports(const Run *r) {
    zero_row rows[MAX_ROWS];
    size_t n = zero_report_memory(r->z, rows, MAX_ROWS - 4), bytes = 0;
    const zero_comm_shape all = zero_comm_get_shape(r->comm);
    plan_add_transport(rows, n, &all, r->shard_comm != r->comm, zero_comm_stream(r->comm) != NULL, r->G);
    rows[n] = (zero_row){ .kind = ZERO_MEM_ACTIVATIONS, .what = "activations" };
    snprintf(rows[n].formula, sizeof rows[n].formula, "gpt2_activation_bytes(B, T, ...)");
    rows[n].expected = r->options.settings.order == ZERO_ORDER_LAYER
                           ? r->kernels.layer_bytes + r->G * r->kernels.stream_bytes
                           : r->kernels.activation_bytes;
    rows[n].measured = r->memory.peak[ZERO_MEM_ACTIVATIONS];
    n++;
    if (r->kernels.offloaded_bytes > 0) {
        rows[n] = plan_offloaded(r->kernels.offloaded_bytes, r->options.settings.order == ZERO_ORDER_LAYER ? r->G : 1);
        rows[n++].measured = r->memory.peak[ZERO_MEM_CALLER_HOST];
    }
    for (size_t i = 0; i < n; i++)
        if (zero_memory_on_device((enum zero_memory_category)rows[i].kind)) bytes += rows[i].expected;
    rows[n] = (zero_row){
        .kind = ZERO_MEM_CATEGORIES, .what = "total", .expected = bytes, .measured = r->memory.total_peak
    };
    snprintf(rows[n++].formula, sizeof rows->formula, "the most at a time");
    if (r->snapshot != NULL) {
        rows[n] = plan_snapshot(zero_get_layout(r->z), r->snapshot_per_parameter);
        rows[n++].measured = r->snapshot_bytes;
    }
    FILE *json = metrics_begin(r->metrics, "report");
    report(r, json, "memory", "memory per rank, bytes", rows, n);
    if (r->wire_rows > 0) report(r, json, "wire", "wire per rank, step, bytes", r->wire, r->wire_rows);
    if (r->wire_rows > 0) report_hosts(r);
    report_bus(r, json);
    report_disk(r, json);
    if (r->wire_rows > 0) report_activations(r, json);
    char err[ERR_BYTES];
    metrics_end(r->metrics, err, sizeof err);
#ifdef CUDA_ON_CPU  // the process's memory is also the host's
    if (r->snapshot != NULL) bytes += rows[n - 1].expected;
#endif
    report_process(r, bytes);
}

// The engine counts every number that its transport gathered between the first gradient and the update, but its formula
// knows only its own. The losses are ours; with shard groups they take another transport.
void note_wire(Run *r, uint64_t after_update) {
    r->wire_rows = zero_report_wire(r->z, r->wire, MAX_ROWS);
    if (r->shard_comm != r->comm) return;
    plan_add_losses(r->wire, r->wire_rows, r->G, (size_t)r->ranks);
    for (size_t i = 0; i < r->wire_rows; i++)
        if (r->wire[i].kind == ZERO_WIRE_SCALARS) r->wire[i].measured += after_update;
}

void print_profile(const Run *r) {
    const Options *o = &r->options;
    const zero_comm_shape shape = zero_comm_get_shape(r->shard_comm);
    ProfileRun run = {
        .config = r->config,
        .settings = o->settings,
        .B = r->B,
        .T = r->T,
        .G = r->G,
        .one_backward = r->kernels.attention != NULL,
        .flash = r->kernels.flash,
        .recompute = (int)o->recompute,
        .offloaded_bytes = (double)r->kernels.offloaded_bytes,
        .gelu_fusion = (int)o->gelu_fusion,
        .tf32 = (int)o->tf32,
        .chunks = r->kernels.sum_chunks,
        .head_chunks = r->kernels.head_chunks,
        .ranks = (size_t)r->mesh.shard,
        .replicas = (size_t)r->mesh.groups,
        .per_host = zero_cost_two_levels(&o->settings, r->G, &shape),
        .numel = zero_get_layout(r->z)->numel_padded,
    };
    for (size_t i = 0; i < r->wire_rows; i++) {
        if (r->wire[i].kind == ZERO_WIRE_GRADS) run.grad_bytes = (double)r->wire[i].expected;
        if (r->wire[i].kind == ZERO_WIRE_PARAMS) run.param_bytes = (double)r->wire[i].expected;
    }
    profile_print(stdout, r->profile, &run, r->device.name);
}

// ---------------------------------------------------------------------------------------------------------------------
// The plan.

void describe_run(const Run *r, PlanInput *in) {
    const Options *o = &r->options;
#ifdef CUDA_ON_CPU
    const int on_cpu = 1;
#else
    const int on_cpu = 0;
#endif
    const zero_transport *given = options_transport(o);
    const zero_transport *transport = given != NULL ? given : zero_transport_find(on_cpu ? "mpi" : "nccl");
    const double h100 = o->settings.dtype == ZERO_BF16 ? 989 : o->tf32 ? 494 : 67;  // TFLOP/s
    *in = (PlanInput){
        .model = o->model,
        .num_tensors = gpt2_num_tensors(&r->config),
        .order_length = gpt2_unit_order(&r->config, NULL),
        .settings = o->settings,
        .recompute = (int)o->recompute,
        .activation_bytes = r->kernels.activation_bytes,
        .layer_bytes = r->kernels.layer_bytes,
        .stream_bytes = r->kernels.stream_bytes,
        .offloaded_bytes = r->kernels.offloaded_bytes,
        .flops_per_token = gpt2_training_flops(&r->config, r->T, 1),
        .B = r->B,
        .T = r->T,
        .total_tokens = options_total_tokens(o),
        .ranks = (size_t)r->ranks,
        .ranks_per_host = (size_t)o->plan_ranks_per_host,
        .transport = transport,
        .comm_config = { .staged = !on_cpu, .register_buffers = (int)o->nccl_register, .one_level = (int)o->one_level },
        .snapshot_per_parameter = o->output_dir == NULL || zero_uses_disk(&o->settings) ? 0
                                  : o->checkpoint_every == 0                            ? sizeof(float)
                                                             : checkpoint_bytes_per_parameter(&o->settings),
        .device_bytes = o->memory_limit > 0 ? (double)o->memory_limit : o->device_memory * 1e9,
        .cluster = { .link_bytes_per_second = o->link_gbs * 1e9,
                     .net_bytes_per_second = o->net_gbs * 1e9,
                     .link_latency = o->link_latency * 1e-6,
                     .net_latency = o->net_latency * 1e-6,
                     .memory = o->memory_gbs * 1e9 },
        .host_is_device = on_cpu && !(o->plan != OPTION_PLAN_OFF && zero_transport_needs_device(transport)),
        .host_bytes = o->host_memory * 1e9,
        .disk_bytes = o->disk_space * 1e9,
        .host_bytes_per_second = o->host_gbs * 1e9,
        .disk_bytes_per_second = o->disk_gbs * 1e9,
        .peak_flops = (options_given(o, "peak-tflops") ? o->peak_tflops : h100) * 1e12,
        .efficiency = o->efficiency,
    };
    zero_tensor *tensors = allocate(in->num_tensors * sizeof *tensors);
    size_t *order = allocate(in->order_length * sizeof *order);
    double *flops = allocate(in->order_length * sizeof *flops);
    gpt2_tensors(&r->config, tensors);
    gpt2_unit_order(&r->config, order);
    gpt2_order_flops(&r->config, r->T, flops);
    in->tensors = tensors;
    in->order = order;
    in->order_flops = flops;
}

void free_description(PlanInput *in) {
    free((void *)in->tensors);
    free((void *)in->order);
    free((void *)in->order_flops);
}

void print_plan(const Run *r) {
    const Options *o = &r->options;
    PlanInput in;
    char err[ERR_BYTES];
    describe_run(r, &in);
    if (o->plan == OPTION_PLAN_SCALING) {
        if (plan_print_scaling(stdout, &in, err, sizeof err) != 0) die("--plan scaling: %s", err);
        free_description(&in);
        return;
    }
    Plan plan;
    if (plan_make(&plan, &in, err, sizeof err) != 0) die("--plan: %s", err);
    if (o->plan == OPTION_PLAN_JSON) {
        plan_print_json(stdout, &plan, &in);
    } else {
        if (r->choice[0] != '\0') printf("%s\n", r->choice);
        plan_print(stdout, &plan, &in);
#ifdef CUDA_ON_CPU
        if (in.settings.dtype == ZERO_F32 || !zero_transport_needs_device(in.transport))
            printf("this is a plan for %s and %s, as this program is built for a CPU; for GPUs add%s%s\n",
                   in.settings.dtype == ZERO_F32 ? "FP32" : "BF16", zero_transport_title(in.transport),
                   in.settings.dtype == ZERO_F32 ? " --precision bf16" : "",
                   zero_transport_needs_device(in.transport) ? "" : " --transport nccl");
#endif
        if (r->kernels.attention != NULL)
            printf("of the activations, scratch of cuDNN's attention: %zu bytes\n", r->kernels.attention_scratch);
    }
    free_description(&in);
}
