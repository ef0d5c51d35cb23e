#include "trainer/setup.h"

#include <errno.h>
#include <mpi.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "data/bpe.h"
#include "data/content_hash.h"
#include "data/file_list.h"
#include "device/process.h"
#include "gpt2/huggingface.h"
#include "trainer/directory.h"
#include "trainer/memory.h"
#include "trainer/metrics.h"
#include "trainer/planner.h"
#include "trainer/reports.h"
#include "zero/comm/transport_registry.h"

// ---------------------------------------------------------------------------------------------------------------------
// The device.

static void must_cuda(cudaError_t e, const char *call) {
    if (e != cudaSuccess) die("%s: %s (%s)", call, cudaGetErrorString(e), cudaGetErrorName(e));
}

// Counts the GPUs of all ranks, and the ranks that share this one's. GPUs are told apart by their ids, not by their
// numbers: a scheduler may show each rank one GPU only, number 0.
static void count_gpus(Run *r) {
    zero_bootstrap *boot = launch_bootstrap();
    cudaUUID_t *all = allocate((size_t)r->ranks * sizeof *all);
    if (zero_bootstrap_allgather(boot, &r->device.uuid, sizeof *all, all) != ZERO_OK)
        die("%s", zero_bootstrap_error(boot));
    for (int i = 0; i < r->ranks; i++) {
        int first = 0;
        while (memcmp(&all[first], &all[i], sizeof *all) != 0) first++;
        r->gpus += first == i;
        r->sharers += memcmp(&all[i], &r->device.uuid, sizeof *all) == 0;
    }
    free(all);
}

// Sets the number of OpenMP threads: OMP_NUM_THREADS, or this rank's part of the cores.
static void share_cores(Run *r) {
    char err[ERR_BYTES];
    HostCores mine, *all = allocate((size_t)r->ranks * sizeof *all);
    zero_bootstrap *boot = launch_bootstrap();
    host_cores(&mine, launch_host(), "");
    if (zero_bootstrap_allgather(boot, &mine, sizeof mine, all) != ZERO_OK) die("%s", zero_bootstrap_error(boot));
    r->cores = host_share_cores(all, r->ranks, r->rank);
    free(all);
    const int wanted = host_wanted_threads(getenv("OMP_NUM_THREADS"), r->cores.cores, err, sizeof err);
    if (wanted < 0) die("%s", err);
    omp_set_num_threads(wanted > 0 ? wanted : r->cores.threads);
}

void choose_device(Run *r) {
    char err[ERR_BYTES];
    const int devices = process_count_devices(err, sizeof err);
    if (devices < 1) die("%s", err);
    if (launch_connect(&r->options, err, sizeof err) != 0) die("%s", err);
    r->local_rank = launch()->local_rank;
    r->local_ranks = launch()->local_ranks;
    const int device = r->local_rank % devices;
    must_cuda(cudaSetDevice(device), "cudaSetDevice");
    must_cuda(cudaGetDeviceProperties(&r->device, device), "cudaGetDeviceProperties");
    if (process_check_device(err, sizeof err) != 0) die("%s", err);
    must_cuda(cudaStreamCreate(&r->stream), "cudaStreamCreate");
    count_gpus(r);

    share_cores(r);
}

// ---------------------------------------------------------------------------------------------------------------------
// Model and data.

#define BUILTIN_MODEL "custom:l4,h4,c128,v256,t128"
#define BUILTIN_TEXT  "dev/data/text/default.txt"
#define GUEST_TEXT    "zero/" BUILTIN_TEXT  // in a checkout of llm.c
#define LLMC_TRAIN    "dev/data/tinyshakespeare/tiny_shakespeare_train.bin"
#define TOKENIZER     "gpt2_tokenizer.bin"
#define LLMC_VAL      "dev/data/tinyshakespeare/tiny_shakespeare_val.bin"
#define GPT2_VOCAB    50257
#define HELLASWAG     "dev/data/hellaswag/hellaswag_val.bin"

static int exists(const char *path) { return access(path, R_OK) == 0; }

static void set_number(Options *o, const char *flag, size_t n) {
    char text[32];
    snprintf(text, sizeof text, "%zu", n);
    options_set_default(o, flag, text);
}

// What Hugging Face has is imported once, by a tool, and not by every rank in every run.
static void refuse_folder(const char *model) {
    const size_t length = strlen(model);
    if (!hf_is_folder(model)) return;
    die("-e %s: is a folder of Hugging Face's; make a model file of it and give that to -e: make ckpt && "
        "build/ckpt/ckpt import \"%s\" \"%.*s.bin\"",
        model, model, (int)(length - (model[length - 1] == '/')), model);
}

// Reads the sizes of the model from its file, or from a descriptor.
static void read_config(Run *r) {
    const char *model = r->options.model;
    char err[ERR_BYTES];
    r->file.fd = -1;
    const size_t length = strlen(model);
    if (strchr(model, '/') != NULL || (length > 4 && !strcmp(model + length - 4, ".bin"))) {
        refuse_folder(model);
        if (modelfile_open(&r->file, model, err, sizeof err) != 0) die("%s", err);
        r->config = r->file.config;
    } else if (gpt2_config_from_descriptor(&r->config, model, err, sizeof err) != 0) {
        refuse_folder(model);
        die("-e: %s%s", err, exists(model) ? "; if you mean the file of this name, write it with a /" : "");
    }
    if (gpt2_config_check(&r->config, err, sizeof err) != 0) die("-e %s: %s", model, err);
}

// Sets a flag that is not given, and adds it to the list.
static void choose(Options *o, const char *flag, const char *value, char list[256]) {
    const size_t length = strlen(list);
    if (options_given(o, flag)) return;
    options_set_default(o, flag, value);
    snprintf(list + length, 256 - length, " -%s %s", flag, value);
}

// Settings that suit the built-in model: a minute or two on two cores. The total batch is that of 8 ranks, so that 1,
// 2, 4 and 8 ranks compute the same bits.
static void set_builtin_defaults(Run *r) {
    Options *o = &r->options;
    const size_t total = 8 * r->config.max_seq_len, length = strlen(r->choice);
    char list[256] = "", longest[32], tokens[32], alone[96] = "";
    snprintf(longest, sizeof longest, "%zu", r->config.max_seq_len);
    snprintf(tokens, sizeof tokens, "%zu", total);
    choose(o, "b", "1", list);
    choose(o, "t", longest, list);
    const size_t unit = (size_t)o->batch_size * (size_t)o->seq_len;
    if (o->micro_batches <= 0 && total % (unit * (size_t)r->ranks) == 0)
        choose(o, "d", tokens, list);
    else if (o->micro_batches <= 0 && !options_given(o, "d") && total % unit == 0)
        snprintf(alone, sizeof alone, "; %zu micro-batches cannot be shared by %d ranks: %d are used", total / unit,
                 r->ranks, r->ranks);
    choose(o, "l", "0.003", list);
    if (o->config == NULL) {  // a configuration file without a schedule means a constant rate
        choose(o, "q", "0.05", list);
        choose(o, "u", "50", list);
    }
    choose(o, "x", "1000", list);
    choose(o, "v", "250", list);
    choose(o, "s", "1000000", list);
    choose(o, "g", "256", list);
    snprintf(r->choice + length, sizeof r->choice - length, "%s%s%s",
             list[0] != '\0' ? "; with settings that suit it:" : "", list, alone);
}

void choose_model_and_data(Run *r) {
    Options *o = &r->options;
    const char *llmc_model = o->settings.dtype == ZERO_BF16 ? "gpt2_124M_bf16.bin" : "gpt2_124M.bin";
    const int no_model = o->model == NULL;
    const int no_data = o->train_files == NULL && !o->generate;
    const int llmc_data = exists(LLMC_TRAIN) && exists(LLMC_VAL);
    if (no_model)
        options_set_default(o, "e", exists(llmc_model) && (!no_data || llmc_data) ? llmc_model : BUILTIN_MODEL);
    read_config(r);
    if (no_data) {
        const int llmc = llmc_data && r->config.vocab_size >= 50257;
        const char *text = !exists(BUILTIN_TEXT) && exists(GUEST_TEXT) ? GUEST_TEXT : BUILTIN_TEXT;
        options_set_default(o, "i", llmc ? LLMC_TRAIN : text);
        if (llmc) options_set_default(o, "j", LLMC_VAL);
        if (!llmc && !exists(text) && !o->plan && !o->print_config)
            die("-i: no training data: there is no %s below this directory: name a file with -i, or make data in the "
                "directory of the Makefile",
                BUILTIN_TEXT);
    }
    if (o->val_files == NULL && o->train_files != NULL) options_set_default(o, "j", o->train_files);
    if (no_model || (no_data && !o->plan)) {
        const int llmc = !strcmp(o->model, llmc_model) || !strcmp(o->train_files, LLMC_TRAIN);
        snprintf(r->choice, sizeof r->choice, "chosen, since not given: %s%s%s%s%s (llm.c's default files %s)",
                 no_model ? "-e " : "", no_model ? o->model : "", no_model && no_data ? " and " : "",
                 no_data ? "-i " : "", no_data ? o->train_files : "",
                 llmc ? "are here" : "are not here, or do not fit");
    }
    if (no_model && !strcmp(o->model, BUILTIN_MODEL)) set_builtin_defaults(r);
    if (r->config.max_seq_len < (size_t)o->seq_len) set_number(o, "t", r->config.max_seq_len);
    if (o->generate) set_number(o, "b", 1);
}

// If -i and -j are the same files, the last tenth of each is for validation.
static Loader *open_loader(const Run *r, const char *files, int validation) {
    const Options *o = &r->options;
    const int same = !strcmp(o->train_files, o->val_files);
    const LoaderConfig c = { .pattern = files,
                             .B = r->B,
                             .T = r->T,
                             .vocab = r->config.vocab_size,
                             .begin_percent = same && validation ? 90 : 0,
                             .end_percent = same && !validation ? 90 : 100,
                             .shuffle = o->shuffle && !validation,
                             .seed = (uint32_t)o->settings.seed };
    Loader *loader;
    char err[512];
    if (loader_open(&loader, &c, err) != 0) die("%s", err);
    if (loader_info(loader).is_text && c.vocab < 256) {
        die("%s: is text, a byte a token, but the model's vocabulary is %zu: choose a model with at least 256 (-e)",
            files, c.vocab);
    }
    if (loader_info(loader).is_text && c.vocab == GPT2_VOCAB && !(o->tokenizer && !strcmp(o->tokenizer, "bytes")))
        die("%s: is text, and the model has GPT-2's vocabulary: make token shards of it first, as dev/docs/text.md "
            "says (tokenize_text %s train.bin val.bin %s); or use --tokenizer bytes to train on "
            "bytes",
            files, TOKENIZER, files);
    return loader;
}

static int bytes_are_tokens(const Run *r) {
    if (r->options.tokenizer != NULL) return strcmp(r->options.tokenizer, "bytes") == 0;
    return r->train != NULL ? loader_info(r->train).is_text : r->config.vocab_size < GPT2_VOCAB;
}

// NULL: there is none.
static const char *tokenizer_file(const Run *r) {
    if (bytes_are_tokens(r)) return NULL;
    return r->options.tokenizer != NULL ? r->options.tokenizer : exists(TOKENIZER) ? TOKENIZER : NULL;
}

static void encode_prompt(Run *r) {
    const char *text = r->options.prompt;
    char err[512];
    Bpe *bpe = NULL;
    if (r->tokenizer == NULL)
        die("--prompt: there is no tokenizer: put %s here, which llm.c's "
            "dev/download_starter_pack.sh downloads, or name one with --tokenizer",
            TOKENIZER);
    r->prompt = allocate(strlen(text) * sizeof *r->prompt);
    if (bpe_open(&bpe, r->tokenizer, err) != 0) die("--prompt: %s", err);
    r->prompt_tokens = bpe_encode(bpe, text, strlen(text), r->prompt);
    bpe_close(bpe);
    if (r->prompt_tokens == SIZE_MAX) die("--prompt: the host's memory is exhausted");
    for (size_t i = 0; i < r->prompt_tokens; i++)
        if ((size_t)r->prompt[i] >= r->config.vocab_size)
            die("--prompt: token %d, but the model's vocabulary is %zu: use the model's tokenizer", r->prompt[i],
                r->config.vocab_size);
}

static void open_tokenizer(Run *r) {
    char err[512];
    const char *file = tokenizer_file(r);
    if ((file != NULL || bytes_are_tokens(r)) && tokenizer_open(&r->tokenizer, file, err) != 0) die("%s", err);
    if (r->options.prompt != NULL) encode_prompt(r);
}

// One line for all files that are too short.
static void report_skipped(const Run *r, const char *flag, const Loader *loader) {
    const size_t skipped = loader != NULL ? loader_info(loader).skipped : 0;
    if (skipped > 0)
        print0(r, "%s: %zu of %zu files are skipped: too short for a micro-batch of %zu x %zu tokens\n", flag, skipped,
               skipped + loader_info(loader).shards, r->B, r->T);
}

static void open_hellaswag(Run *r) {
    char err[512];
    if (!exists(HELLASWAG)) {
        print0(r,
               "HellaSwag eval not found at %s, skipping its evaluation\n"
               "llm.c's dev/data/hellaswag.py downloads HellaSwag and makes this file\n",
               HELLASWAG);
        return;
    }
    if (hellaswag_open(&r->hellaswag, HELLASWAG, r->config.vocab_size, err) != 0) die("-h 1: %s", err);
    if (hellaswag_longest(r->hellaswag) > r->T)
        die("-h 1: %s: the longest example has %zu tokens: use -t %zu or more, or -h 0", HELLASWAG,
            hellaswag_longest(r->hellaswag), hellaswag_longest(r->hellaswag));
}

// -x, or as many steps as llm.c takes from the same files: all their tokens, whatever is left of each.
static void count_steps(Run *r) {
    const Options *o = &r->options;
    const size_t tokens = loader_info(r->train).tokens, of_step = r->B * r->T * r->M;
    r->steps = o->max_steps >= 0 ? (size_t)o->max_steps : tokens / of_step;
    if (o->profile > 0 && (size_t)o->profile >= r->steps) {
        die("--profile %lld: not in a run of %zu steps, whose first is not counted: use -x %lld or more",
            (long long)o->profile, r->steps, (long long)o->profile + 1);
    }
    if (r->steps == 0 && o->max_steps < 0) {
        die("-i %s: has %zu tokens, less than the %zu of a step: use a smaller -d or -b, or give the number of steps "
            "with -x",
            o->train_files, tokens, of_step);
    }
}

// DeepSpeed's WarmupDecayLR goes on with its lowest rate if the run is longer than total_num_steps.
static void report_end_of_decay(const Run *r) {
    const Schedule *s = &r->options.schedule;
    if (s->kind != SCHEDULE_WARMUP_DECAY_LR || s->decay_to < 0) return;
    const size_t end = s->warmup > (size_t)s->decay_to ? s->warmup : (size_t)s->decay_to;
    if (r->steps > end + 1)
        print0(r,
               "--decay-to %lld (total_num_steps): the run has %zu steps: from step %zu on the learning rate is %g\n",
               (long long)s->decay_to, r->steps, end + 2, s->warmup_from);
}

void open_data(Run *r) {
    Options *o = &r->options;
    char err[512];
    if (o->generate) {
        open_tokenizer(r);
        return;
    }
    const int same = strcmp(o->train_files, o->val_files) == 0 ? 1 : file_lists_same(o->train_files, o->val_files, err);
    if (same < 0) die("%s", err);
    if (same) o->val_files = o->train_files;  // the same files by other names
    r->train = open_loader(r, o->overfit ? o->val_files : o->train_files, o->overfit != 0);
    if (o->val_every > 0 || options_given(o, "j")) r->val = open_loader(r, o->val_files, 1);
    if (o->val_every == 0) {  // a wrong -j is an error even if it is not used
        loader_close(r->val);
        r->val = NULL;
    }
    count_steps(r);
    report_end_of_decay(r);
    if (o->hellaswag) open_hellaswag(r);

    report_skipped(r, o->overfit ? "-j" : "-i", r->train);
    if (o->val_files != o->train_files && !o->overfit) report_skipped(r, "-j", r->val);
    open_tokenizer(r);
}

// Ranks on different hosts may have found different files under one name. They would train a mixture, or wait for each
// other for ever.
void check_same_inputs(Run *r) {
    static const char *const NAMES[NUM_INPUTS] = { "-e", "-i", "-j", "the tokenizer", HELLASWAG };
    const char *tokenizer = tokenizer_file(r);
    const char *values[NUM_INPUTS] = { r->options.model, r->options.train_files, r->options.val_files, tokenizer,
                                       NULL };
    char err[ERR_BYTES] = "", data_err[512] = "";
    char *model = r->file.path, *tokenizer_path = (char *)tokenizer;  // content_hash only reads it
    char hellaswag[] = HELLASWAG, *hellaswag_path = hellaswag;
    if (r->file.fd != -1) content_hash(&model, 1, &r->content[INPUT_MODEL], err, sizeof err);
    r->content[INPUT_MODEL] ^= XXH3_64bits(&r->config, sizeof r->config);  // sizes that a descriptor or a default chose
    if (r->hellaswag != NULL) content_hash(&hellaswag_path, 1, &r->content[INPUT_HELLASWAG], err, sizeof err);
    if (tokenizer != NULL) content_hash(&tokenizer_path, 1, &r->content[INPUT_TOKENIZER], err, sizeof err);
    if ((r->train != NULL && loader_content_hash(r->train, &r->content[INPUT_TRAIN], data_err) != 0) ||
        (r->val != NULL && loader_content_hash(r->val, &r->content[INPUT_VAL], data_err) != 0))
        snprintf(err, sizeof err, "%s", data_err);
    agree(r, err);
    uint64_t *all = allocate((size_t)r->ranks * sizeof r->content);
    gather(r, r->content, sizeof r->content, all);
    for (int i = 0; i < r->ranks * NUM_INPUTS; i++) {
        const int which = i % NUM_INPUTS;
        if (all[i] == all[which]) continue;
        die("%s%s%s: rank %d has another content of it than rank 0: copy the same files to all hosts", NAMES[which],
            values[which] != NULL ? " " : "", values[which] != NULL ? values[which] : "", i / NUM_INPUTS);
    }
    free(all);
}

// ---------------------------------------------------------------------------------------------------------------------
// The transport.

// Why a rank cannot use a transport that needs a GPU for each rank.
typedef struct {
    int rank, sharers, unavailable, mig;
} Unusable;

// The first rank that cannot, or rank 0.
static int first_unusable(const void *all, int ranks) {
    const Unusable *u = all;
    int i = 0;
    while (i < ranks && u[i].sharers == 1 && !u[i].unavailable && !u[i].mig) i++;
    return i < ranks ? i : 0;
}

// Whether a transport that needs a GPU for each rank can be used on all ranks; if not, r->transport_note says why.
static int usable_everywhere(Run *r, zero_bootstrap *boot, const zero_transport *t) {
    const zero_comm_config config = { .timeout_s = 0 };
    const char *title = zero_transport_title(t);
    char why[ERR_BYTES];
    // Of two MIG devices on one GPU, NCCL sees only the GPU.
    const Unusable mine = { r->rank, r->sharers,
                            r->sharers == 1 && r->ranks > 1 && !zero_transport_available(t, &config, why, sizeof why),
                            r->ranks > 1 && strstr(r->device.name, " MIG ") != NULL };
    Unusable u;
    if (zero_bootstrap_choose(boot, &mine, sizeof mine, first_unusable, &u) != ZERO_OK)
        die("%s", zero_bootstrap_error(boot));
    if (u.sharers > 1)
        snprintf(r->transport_note, sizeof r->transport_note, "not %s: %d ranks share a GPU", title, u.sharers);
    else if (u.mig)
        snprintf(r->transport_note, sizeof r->transport_note, "not %s: rank %d has a MIG device", title, u.rank);
    else if (u.unavailable)
        snprintf(r->transport_note, sizeof r->transport_note, "not %s: rank %d has none (--transport %s says why)",
                 title, u.rank, zero_transport_name(t));
    return u.sharers == 1 && !u.unavailable && !u.mig;
}

// --transport auto: on GPUs the first one that needs a GPU for each rank and can be used, else the first that does not.
// All ranks come to the same answer, and the header prints it.
static const zero_transport *choose_transport(Run *r, zero_bootstrap *boot) {
#ifdef CUDA_ON_CPU
    const int on_gpu = 0;
#else
    const int on_gpu = 1;
#endif
    const zero_transport *otherwise = NULL, *t = options_transport(&r->options);
    if (t != NULL) return t;
    for (size_t i = 0; (t = zero_transport_at(i)) != NULL; i++) {
        if (zero_transport_needs_mpi(t) && !launch()->mpi) continue;
        if (!zero_transport_needs_device(t))
            otherwise = otherwise == NULL ? t : otherwise;
        else if (!launch()->mpi || (on_gpu && usable_everywhere(r, boot, t)))
            return t;
    }
    return otherwise;
}

// Shard groups that cost more wire than one group of all ranks: takes that.
static void choose_groups(Run *r) {
    PlanInput in;
    describe_run(r, &in);
    if (r->ranks % (int)(in.settings.shard_group ? in.settings.shard_group : 1) == 0 &&
        plan_one_level(&in, in.settings.stage)) {
        r->groups_asked_for = in.settings.shard_group;
        r->options.settings.shard_group = 0;
    }
    free_description(&in);
}

void choose_order(Run *r) {
    zero_settings *s = &r->options.settings;
    const enum zero_order order = zero_cost_order(s, (size_t)r->ranks, r->G);
    r->order_declined = s->order != order;
    s->order = order;
}

void create_transport(Run *r) {
    const Options *o = &r->options;
    char err[ERR_BYTES] = "";
    choose_groups(r);
    if (zero_mesh_create(&r->mesh, r->rank, r->ranks, (int)o->tp, (int)o->pp, (int)o->settings.shard_group, err,
                         sizeof err) != ZERO_OK ||
        zero_mesh_require_data_only(&r->mesh, err, sizeof err) != ZERO_OK) {
        die("--shard-group %d: %s", (int)o->settings.shard_group, err);  // options.c refuses the rest
    }
    zero_bootstrap *boot = launch_bootstrap();
    const uint64_t path = o->settings.delay_seed % 4;  // --inject-delays: each seed moves MPI's bytes another way
    const zero_comm_config config = { .timeout_s = o->timeout,
                                      .register_buffers = (int)o->nccl_register,
                                      .one_level = (int)o->one_level,
                                      .no_shared_memory = path == 1,
                                      .staged = path == 2,
                                      .ranks_per_host = path == 3 ? 2 : 0 };
    zero_mesh_comms comms;
    const int e = zero_mesh_comms_create(&comms, &r->mesh, choose_transport(r, boot), boot, &config, &r->memory, err,
                                         sizeof err);
    r->transport_failed = e == ZERO_ERR_COMM;
    if (e == ZERO_ERR_MEMORY) die_of_memory(r, err);
    if (e != ZERO_OK) die("transport: %s", err);
    r->comm = comms.data;
    r->shard_comm = comms.shard;
    r->replica_comm = comms.replicate;
}

// ---------------------------------------------------------------------------------------------------------------------
// Output.

void open_output(Run *r) {
    const Options *o = &r->options;
    char err[ERR_BYTES] = "";
    uint64_t *all = allocate((size_t)r->ranks * sizeof *all);
    if (r->rank == 0 && o->output_dir != NULL) {
        r->nonce = directory_open(o->output_dir,
                                  o->resume      ? DIRECTORY_CONTINUE
                                  : o->overwrite ? DIRECTORY_OVERWRITE
                                                 : DIRECTORY_NEW,
                                  o->timeout, err, sizeof err);
        if (r->nonce != 0) trainlog_open(&r->log, o->output_dir, "main.log", o->resume != 0, err, sizeof err);
    }
    agree(r, err);
    gather(r, &r->nonce, sizeof r->nonce, all);
    r->nonce = all[0];
    free(all);
    metrics_create(r, err, sizeof err);
    agree(r, err);
}
