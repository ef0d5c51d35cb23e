// Configuration files. A file must mean the same as the flags that it stands for, or be refused with its name; nothing
// of it may be ignored in silence. Tables of files, each beside a command line, a refusal or a note.
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "test/harness/harness.h"
#include "trainer/options.h"

static const OptionsBuild FP32 = { .cpu = 1 }, BF16 = { .cpu = 1, .bf16 = 1 };
static char dir[] = "/tmp/test_config.XXXXXX", path[64], err[16384];

static void put(const char *suffix, const char *text, size_t bytes) {
    snprintf(path, sizeof path, "%s/c%s", dir, suffix);
    FILE *f = fopen(path, "wb");
    REQUIRE(f != NULL && fwrite(text, 1, bytes, f) == bytes && fclose(f) == 0);
}

// Parses a command line, split at spaces, and, if ranks is not 0, chooses the batch. The words are kept until two calls
// later.
static int parse(Options *o, const OptionsBuild *build, size_t ranks, const char *format, ...) {
    static char words[2][4096];
    static char *argv[2][128];
    static int turn;
    int argc = 1;
    turn = !turn;
    va_list args;
    va_start(args, format);
    vsnprintf(words[turn], sizeof words[turn], format, args);
    va_end(args);
    argv[turn][0] = "train_gpt2_zero";
    for (char *w = strtok(words[turn], " "); w != NULL; w = strtok(NULL, " ")) argv[turn][argc++] = w;
    argv[turn][argc] = NULL;
    err[0] = '\0';
    if (options_parse(o, build, argc, argv[turn], err, sizeof err) != 0) return -1;
    return ranks == 0 ? 0 : options_choose_batch(o, ranks, err, sizeof err);
}

// ---------------------------------------------------------------------------------------------------------------------
// What files mean. In JSON ' stands for ".

static void put_text(const char *suffix, const char *text) {
    char copy[4096];
    snprintf(copy, sizeof copy, "%s", text);
    for (char *p = copy; *p != '\0' && text[strspn(text, " \n")] == '{'; p++)
        if (*p == '\'') *p = '"';
    put(suffix, copy, strlen(copy));
}

static void put_json(const char *text) { put_text(".json", text); }

#define NANO_LR "optimizer:\n  learning_rate_scheduler:\n    learning_rate: 0.001\n"
#define GPT2                                                                                                     \
    "model:\n  model_config: {hidden_size: 64, num_hidden_layers: 2, num_attention_heads: 4, vocab_size: 256,\n" \
    "    max_position_embeddings: 32, hidden_act: gelu_new, "
#define STAGE(n) "{'zero_optimization': {'stage': " #n "}}"

static const struct {
    const char *suffix, *text;
    size_t ranks;
    const char *with, *flags;  // this file with the first means the second
} SAME[] = {
    // DeepSpeed
    { ".json", "{}", 1, "", "--grad-clip 0" },
    { ".json", STAGE(3), 2, "", "-z 3 --grad-clip 0" },
    { ".json", STAGE(3), 2, "-z 1", "-z 1 --grad-clip 0" },
    { "", " \n" STAGE(0), 2, "-l 0.1", "-z 0 --grad-clip 0 -l 0.1" },
    { ".json", "{'zero_optimization': {'stage': 3, 'mics_shard_size': 2}}", 4, "",
      "-z 3 --shard-group 2 --grad-clip 0" },
    { ".json", "{'gradient_clipping': 0.5, 'zero_optimization': {'stage': 'auto'}}", 2, "", "--grad-clip 0.5" },
    { ".json", "{'gradient_clipping': 1, 'zero_optimization': {'offload_optimizer': {'device': 'cpu', 'ratio': 0.5}}}",
      2, "--plan", "--plan --offload cpu --offload-fraction 0.5" },
    { ".json",
      "{'gradient_clipping': 1, 'zero_optimization': {'stage': 3, 'offload_param': {'device': 'nvme',\n"
      "'nvme_path': '/d', 'pin_memory': true}, 'offload_optimizer': {'nvme_path': '/e', 'device': 'nvme'}}}",
      2, "", "-z 3 --offload-params nvme:/d --offload nvme:/e" },
    { ".json",
      "{'gradient_clipping': 1, 'zero_optimization': {'stage': 3, 'offload_param': {'device': 'none'},\n"
      "'cpu_offload': true, 'cpu_offload_params': true}}",
      2, "--plan", "--plan -z 3 --offload cpu --offload-params cpu" },
    { ".json", "{'gradient_clipping': 1, 'activation_checkpointing': {'cpu_checkpointing': true}}", 2, "--plan",
      "--plan --offload-activations cpu" },
    { ".json", "{'gradient_clipping': 1, 'activation_checkpointing': {'cpu_checkpointing': false}}", 2, "", "" },
    { ".json", "{'gradient_clipping': 'auto', 'optimizer': null}", 2, "", "" },
    { ".json", "{'gradient_clipping': 1.0, 'fp16': {'enabled': false, 'loss_scale': 0}, 'bf16': {'enabled': false}}", 2,
      "", "" },
    { ".json",
      "{'gradient_clipping': 1e0, 'optimizer': {'type': 'AdamW', 'params': {'lr': 3e-5, 'betas': [0.8, 0.99],\n"
      "'eps': 1e-7, 'weight_decay': 3e-7}}}",
      1, "", "--optimizer adamw -l 3e-5 --beta1 0.8 --beta2 0.99 --eps 1e-7 -c 3e-7" },
    { ".json", "{'gradient_clipping': 1, 'optimizer': {'type': 'Adam', 'params': {'lr': 'auto'}}}", 1, "",
      "--beta1 0.9 --beta2 0.999 --eps 1e-8 -c 0" },
    { ".json", "{'gradient_clipping': 1, 'optimizer': {'type': 'AdamW', 'params': {'lr': 1, 'betas': 'auto'}}}", 1, "",
      "-l 1" },
    { ".json", "{'gradient_clipping': 1, 'optimizer': {'type': 'AdamW', 'params': 'auto'}}", 1, "", "" },
    { ".json", "{'gradient_clipping': 1, 'optimizer': {'type': 'Adam'}}", 1, "", "-l 0.001 --beta2 0.999" },
    { ".json", "{'gradient_clipping': 1, 'optimizer': {'type': 'Adam', 'params': {'torch_adam': true}}}", 1, "",
      "-l 0.001 --beta2 0.999 -c 0.01" },
    { ".json", "{'gradient_clipping': 1, 'optimizer': {'type': 'Adam', 'params': {'adam_w_mode': false}}}", 1, "",
      "-l 0.001 --beta2 0.999" },
    { ".json",
      "{'gradient_clipping': 1, 'optimizer': {'type': 'AdamW', 'params': {'adam_w_mode': false, 'lr': 1,\n"
      "'weight_decay': 0.1}}}",
      1, "", "-l 1 --beta2 0.999 -c 0.1" },
    { ".json", "{'gradient_clipping': 1, 'scheduler': {'type': 'WarmupLR'}}", 1, "",
      "-k WarmupLR -u 1000 --warmup-shape log" },
    { ".json",
      "{'gradient_clipping': 1, 'scheduler': {'type': 'WarmupLR', 'params': {'warmup_min_lr': 1e-6,\n"
      "'warmup_max_lr': 0.01, 'warmup_num_steps': 20, 'warmup_type': 'linear'}}}",
      1, "", "-k WarmupLR -u 20 --warmup-shape linear -l 0.01 --warmup-from 1e-6" },
    { ".json",
      "{'gradient_clipping': 1, 'scheduler': {'type': 'WarmupDecayLR', 'params': {'total_num_steps': 90,\n"
      "'warmup_num_steps': 5}}}",
      1, "", "-k WarmupDecayLR -u 5 --warmup-shape log -l 0.001 --decay-to 90" },
    { ".json",
      "{'gradient_clipping': 1, 'optimizer': {'type': 'AdamW', 'params': {'lr': 0.5}},\n"
      "'scheduler': {'type': 'WarmupCosineLR', 'params': {'total_num_steps': 'auto', 'warmup_min_ratio': 0.5,\n"
      "'cos_min_ratio': 0.25, 'warmup_num_steps': 5}}}",
      1, "", "-k WarmupCosineLR -u 5 --warmup-shape log -l 0.5 --beta2 0.999 -q 0.25 --warmup-from 0.25" },
    // its batches
    { ".json", "{'train_batch_size': 32}", 4, "", "--grad-clip 0 -b 8 --micro-batches 4" },
    { ".json", "{'train_batch_size': 32, 'gradient_accumulation_steps': 2}", 4, "",
      "--grad-clip 0 -b 4 --micro-batches 8" },
    { ".json", "{'train_batch_size': 32, 'train_micro_batch_size_per_gpu': 2}", 4, "",
      "--grad-clip 0 -b 2 --micro-batches 16" },
    { ".json", "{'train_batch_size': 32, 'train_micro_batch_size_per_gpu': 2, 'gradient_accumulation_steps': 4}", 4, "",
      "--grad-clip 0 -b 2 --micro-batches 16" },
    { ".json", "{'train_micro_batch_size_per_gpu': 2, 'gradient_accumulation_steps': 3}", 4, "",
      "--grad-clip 0 -b 2 --micro-batches 12" },
    { ".json", "{'train_micro_batch_size_per_gpu': 2}", 4, "", "--grad-clip 0 -b 2" },
    { ".json", "{'train_micro_batch_size_per_gpu': 'auto', 'gradient_accumulation_steps': 3}", 4, "-b 1",
      "--grad-clip 0 -b 1 --micro-batches 12" },
    { ".json", "{'gradient_accumulation_steps': 3}", 4, "", "--grad-clip 0 --micro-batches 12" },
    { ".json", "{'train_batch_size': 32}", 4, "-b 2", "--grad-clip 0 -b 2 --micro-batches 16" },
    { ".json", "{'train_batch_size': 33, 'train_micro_batch_size_per_gpu': 2}", 4, "-d 4096",
      "--grad-clip 0 -b 2 -d 4096" },
    { ".json", "{'train_batch_size': 33}", 4, "--micro-batches 4", "--grad-clip 0 --micro-batches 4" },
    // nanotron
    { ".yaml", "general: {seed: 7}\n", 1, "", "--seed 7" },
    { ".yml", "optimizer:\n  zero_stage: 1\n  clip_grad: 0.5\n  weight_decay: 0.01\n", 1, "",
      "-z 1 --grad-clip 0.5 -c 0.01" },
    { "", "optimizer:\n  zero_stage: 1\n  clip_grad: null\n", 1, "", "-z 1 --grad-clip 0" },
    { ".yaml",
      "optimizer:\n  clip_grad: 1.\n  optimizer_factory:\n    name: adamW\n    adam_beta1: 0.8\n    adam_beta2: 0.9\n"
      "    adam_eps: 1.0e-06\n",
      1, "", "--beta1 0.8 --beta2 0.9 --eps 1e-6" },
    { ".yaml",
      "tokens: {sequence_length: 64, train_steps: 20, micro_batch_size: 2, batch_accumulation_per_replica: 3,\n"
      "  val_check_interval: -1}\nparallelism: {dp: 2, tp: 1, pp: 1}\n",
      2, "", "-t 64 -x 20 -b 2 --micro-batches 6 -v 0" },
    { ".yaml", "checkpoints: {checkpoints_path: out/run 1, checkpoint_interval: 10}\n", 1, "-n 5 -o out",
      "-n 5 -o out" },
    { ".yaml",
      NANO_LR
      "    lr_warmup_steps: 2\n    lr_warmup_style: linear\n    lr_decay_style: cosine\n    min_decay_lr: 1.0e-4\n"
      "  clip_grad: 1\ntokens: {train_steps: 20}\n",
      1, "", "-x 20 -l 0.001 -k cosine -u 2 --warmup-shape linear -q 0.1 --decay-from 2 --decay-to 20" },
    { ".yaml",
      NANO_LR
      "    lr_warmup_steps: 4\n    lr_warmup_style: constant\n    lr_decay_style: 1-sqrt\n    lr_decay_steps: 6\n"
      "    lr_decay_starting_step: 9\n  clip_grad: 1\n",
      1, "", "-l 0.001 -k wsd -u 0 --decay-from 9 --decay-to 15" },
    { ".yaml", NANO_LR "    lr_decay_steps: 6\n  clip_grad: 1\n", 1, "",
      "-l 0.001 -k linear -u 1 --warmup-shape linear --decay-from 0 --decay-to 6" },
    { ".yaml", GPT2 "intermediate_size: 256, num_key_value_heads: 4, tie_word_embeddings: true}\n", 1, "",
      "-e custom:l2,h4,c64,v256,t32" },
    { ".yaml", GPT2 "num_key_value_heads: 2}\n", 1, "-e d12", "-e d12" },
};

static void check_same(const Options *a, const Options *b, const char *what) {
    const char *flag;
    for (int i = 0; options_decides(i, &flag) >= 0; i++) {
        char in_a[4200], in_b[4200];
        options_value(a, flag, in_a, sizeof in_a);
        options_value(b, flag, in_b, sizeof in_b);
        if (strcmp(flag, "config") != 0) CHECK(strcmp(in_a, in_b) == 0, "%s\n%s is %s, not %s", what, flag, in_a, in_b);
    }
}

static void test_a_file_is_as_good_as_flags(void) {
    for (size_t i = 0; i < sizeof SAME / sizeof *SAME; i++) {
        static Options a, b;
        put_text(SAME[i].suffix, SAME[i].text);
        CHECK(parse(&a, &FP32, SAME[i].ranks, "--config %s %s", path, SAME[i].with) == 0, "%s", err);
        CHECK(parse(&b, &FP32, SAME[i].ranks, "%s", SAME[i].flags) == 0, "%s", err);
        check_same(&a, &b, SAME[i].text);
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Refusals: all name the file.

static const struct {
    const char *suffix, *text;
    const char *flags, *words;  // ranks: 4
} REFUSED[] = {
    // no JSON
    { ".json", "", "", "is empty" },
    { ".json", "[1]", "", "not a JSON object" },
    { ".json", "{'a': 1", "", ".json:1: not JSON, or its end is missing" },
    { ".json", "{\n'a': 1,\n}", "", ".json:3: not JSON" },
    { ".json", "{\n// stage\n'a': 1}", "", ".json:2: not JSON" },
    { ".json", "{} {}", "", "not JSON" },
    { ".json", "{'a': NaN}", "", "not JSON" },
    { ".json", "{'a': 1e999}", "", ": a: not a finite number" },
    { ".json", "{'a': {'b': 1, 'b': 2}}", "", ": a.b: is there twice" },
    { ".json", "{'a': {'b': 1}, 'a': {'c': 2}}", "", ": a: is there twice" },
    { ".json", "{'a':[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]}", "", "more than 16 levels" },
    // wrong values
    { ".json", "{'zero_optimization': {'stage': 4}}", "",
      ": zero_optimization.stage 4: out of range: use a number from 0 to 3" },
    { ".json", "{'zero_optimization': {'stage': 2.5}}", "", "stage 2.5: not a whole number" },
    { ".json", "{'zero_optimization': {'stage': '2'}}", "", "stage: is a string, not a number" },
    { ".json", "{'zero_optimization': {'stage': true}}", "", "stage: is true or false, not a number" },
    { ".json", "{'zero_optimization': {'stage': [2]}}", "", "stage: is a list, not a number" },
    { ".json", "{'gradient_clipping': 1e31}", "", "gradient_clipping 1e+31: out of range" },
    { ".json", "{'gradient_clipping': -1}", "", "gradient_clipping -1: out of range" },
    { ".json", "{'optimizer': {'type': 'AdamW', 'params': {'betas': [0.9, 1]}}}", "",
      "optimizer.params.betas[1] 1: out of" },
    { ".json", "{'optimizer': {'type': 'AdamW', 'params': {'betas': 0.9}}}", "", "betas: is a number, not a list" },
    { ".json", "{'scheduler': {'type': 'WarmupLR', 'params': {'warmup_num_steps': 0}}}", "",
      "warmup_num_steps 0: use 1" },
    { ".json", "{'scheduler': {'type': 'WarmupLR', 'params': {'warmup_type': 'exp'}}}", "",
      "use one of llmc|linear|log" },
    // what is not here
    { ".json", "{'fp16': {'enabled': true}}", "", "fp16.enabled true: there is no fp16: use \"bf16\"" },
    { ".json", "{'amp': {'enabled': true}}", "", "no automatic mixed precision" },
    { ".json", "{'bf16': {'enabled': true}}", "", "build with PRECISION=BF16" },
    { ".json", "{'optimizer': {'type': 'OneBitAdam'}}", "", "optimizer.type OneBitAdam: use AdamW or Adam" },
    { ".json", "{'optimizer': {'type': 'Adam', 'params': {'adam_w_mode': false, 'weight_decay': 1}}}", "",
      "weight_decay 0" },
    { ".json", "{'optimizer': {'type': 'AdamW', 'params': {'amsgrad': true}}}", "", "no AMSGrad" },
    { ".json", "{'scheduler': {'type': 'OneCycle'}}", "", "scheduler.type OneCycle: use WarmupLR" },
    { ".json", "{'scheduler': {'type': 'WarmupDecayLR'}}", "", "needs total_num_steps" },
    { ".json", "{'scheduler': {'type': 'WarmupCosineLR', 'params': {'total_num_steps': 9, 'warmup_min_ratio': 0.1}}}",
      "", "needs optimizer.params.lr" },
    { ".json", "{'activation_checkpointing': {'cpu_checkpointing': 'cpu'}}", "", "cpu_checkpointing: is a string" },
    { ".json", "{'zero_optimization': {'stage': 3, 'offload_param': {'device': 'nvme'}}}", "",
      "offload_param.device nvme: needs nvme_path" },
    { ".json", "{'zero_optimization': {'offload_optimizer': {'device': 'disk'}}}", "", "disk: use none, cpu or nvme" },
    { ".json", "{'zero_optimization': {'cpu_offload_param': 'cpu'}}", "", "cpu_offload_param: is a string" },
    { ".json", "{'gradient_allreduce_op': 'sum'}", "", "gradients are averaged" },
    // mistyped keys
    { ".json", "{'gradient_cliping': 1}", "", ": gradient_cliping: did you mean gradient_clipping?" },
    { ".json", "{'zero_optimisation': {'stage': 3}}", "", ": zero_optimisation: did you mean zero_optimization?" },
    { ".json", "{'zero_optimization': {'satge': 3}}", "", ": zero_optimization.satge: did you mean stage?" },
    { ".json", "{'optimizer': {'type': 'AdamW', 'params': {'weigth_decay': 1}}}", "",
      ": optimizer.params.weigth_decay: did you mean weight_decay?" },
    { ".yaml", "optimizer:\n  clip_grads: 1\n", "", ".yaml:2: optimizer.clip_grads: did you mean clip_grad?" },
    // batches
    { ".json", "{'train_batch_size': 32, 'train_micro_batch_size_per_gpu': 2, 'gradient_accumulation_steps': 3}", "",
      "train_batch_size 32: is not train_micro_batch_size_per_gpu 2 x gradient_accumulation_steps 3 x 4 ranks" },
    { ".json", "{'train_batch_size': 30}", "", "train_batch_size 30: is not a multiple of 4 ranks" },
    { ".json", "{'train_batch_size': 2}", "", "train_batch_size 2: is not a multiple of 4 ranks" },
    { ".json", "{'train_batch_size': 32, 'train_micro_batch_size_per_gpu': 3}", "",
      "32: is not a multiple of train_micro_batch_size_per_gpu 3 x 4 ranks" },
    { ".json", "{'train_batch_size': 32, 'gradient_accumulation_steps': 3}", "",
      "multiple of gradient_accumulation_steps 3 x" },
    { ".json", "{'train_batch_size': 32, 'gradient_accumulation_steps': 4}", "-b 1", "32: is not -b 1 x gradient_acc" },
    { ".json", "{'train_batch_size': 0}", "", "train_batch_size 0: use a whole number from 1" },
    { ".json", "{'train_batch_size': 32.5}", "", "train_batch_size 32.5: use a whole number" },
    { ".json", "{'gradient_accumulation_steps': 1e12}", "", "gradient_accumulation_steps 1000000000000: use a whole" },
    // no YAML
    { ".yaml", "a: [1\n", "", ".yaml:2: not YAML" },
    { ".yaml", "a: 1\n b: 2\n", "", ".yaml:2: not YAML" },
    { ".yaml", "- 1\n", "", ".yaml:1: not a list of keys and values" },
    { ".yaml", "# nothing\n", "", "not a list of keys and values" },
    { ".yaml", "a: 1\n---\nb: 2\n", "", "a second document" },
    { ".yaml", "a: &x 1\nb: *x\n", "", ".yaml:2: an alias" },
    { ".yaml", "a: !!int 1\n", "", ".yaml:1: a tag" },
    { ".yaml", "? [a, b]\n: 1\n", "", ".yaml:1: a key that is not a word" },
    { ".yaml", "a: 1\nb:\n  c: 1\nb:\n  d: 1\n", "", ".yaml:5: b: is there twice" },
    { ".yaml", "a: .nan\n", "", ".yaml:1: a: not a finite number" },
    { ".yaml", "a: -.inf\n", "", "not a finite number" },
    { ".yaml", "a: [[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]\n", "", "too many levels" },
    // wrong values
    { ".yaml", "optimizer:\n\n  zero_stage: 7\n", "", ".yaml:3: optimizer.zero_stage 7: out of range" },
    { ".yaml", "optimizer:\n  zero_stage: two\n", "", "zero_stage: is a string, not a number" },
    { ".yaml", "optimizer:\n  zero_stage: 010\n", "", "zero_stage: is a string, not a number" },
    { ".yaml", "optimizer:\n  zero_stage: \"1\"\n", "", "zero_stage: is a string, not a number" },
    { ".yaml", "optimizer:\n  learning_rate_scheduler: {learning_rate: fast}\n", "", "learning_rate: is not a number" },
    { ".yaml", "optimizer:\n  learning_rate_scheduler: {lr_warmup_steps: 2}\n", "", "needs a learning_rate" },
    { ".yaml", NANO_LR "    lr_decay_style: exp\n", "",
      ".yaml:4: optimizer.learning_rate_scheduler.lr_decay_style exp: use" },
    { ".yaml", NANO_LR "    lr_warmup_style: exp\n", "", "use linear or constant" },
    { ".yaml", NANO_LR "    lr_warmup_steps: 5\n    lr_decay_starting_step: 4\n    lr_decay_steps: 1\n", "",
      "use 5 or more" },
    { ".yaml", NANO_LR, "", "needs lr_decay_steps of 1 or more, or tokens.train_steps" },
    { ".yaml", "optimizer:\n  optimizer_factory: {name: sgd}\n", "", "use adamW" },
    { ".yaml", "model: {dtype: bfloat16}\n", "", "build with PRECISION=BF16" },
    { ".yaml", "model: {dtype: float16}\n", "", "there are float32 and bfloat16" },
    { ".yaml", GPT2 "is_llama_config: true}\n", "", "model.model_config: this is no GPT-2 (is_llama_config: true)" },
    { ".yaml", GPT2 "intermediate_size: 100}\n", "", "intermediate_size is not 4 x" },
    { ".yaml", GPT2 "num_key_value_heads: 2}\n", "", "choose it with -e" },
    { ".yaml", GPT2 "tie_word_embeddings: false}\n", "", "tie_word_embeddings" },
    { ".yaml", "model:\n  model_config: {hidden_size: 64}\n", "", "hidden_act" },
    { ".yaml", "checkpoints: {resume_checkpoint_path: out}\n", "", "use null, and -y 1" },
    { ".yaml", "parallelism: {dp: 2, tp: 2, pp: 1}\n", "",
      ".yaml:1: parallelism.tp 2: this trainer splits no tensors" },
    { ".yaml", "parallelism: {dp: 2, tp: 1, pp: 2}\n", "", "parallelism.pp 2: this trainer splits no layers" },
    { ".yaml", "parallelism: {expert_parallel_size: 2}\n", "", "no experts" },
    { ".yaml", "parallelism: {dp: 8, tp: 1, pp: 1}\n", "", ".yaml:1: parallelism.dp 8: there are 4 ranks: start 8" },
};

static void test_every_wrong_file_is_refused_by_name(void) {
    for (size_t i = 0; i < sizeof REFUSED / sizeof *REFUSED; i++) {
        static Options o;
        put_text(REFUSED[i].suffix, REFUSED[i].text);
        const int status = parse(&o, &FP32, 4, "--config %s %s", path, REFUSED[i].flags);
        CHECK(status == -1 && strstr(err, REFUSED[i].words) != NULL && strstr(err, path) == err &&
                  strchr(err, '\n') == NULL,
              "%s\nreturned %d, \"%s\", which should contain \"%s\"", REFUSED[i].text, status, err, REFUSED[i].words);
    }
}

static void test_files_that_are_none(void) {
    static Options o;
    static char large[(1 << 20) + 2];
    CHECK_EQ(parse(&o, &FP32, 0, "--config %s/absent.json", dir), -1);
    CHECK(strstr(err, "absent.json: cannot be opened: No such file") != NULL, "%s", err);
    CHECK_EQ(parse(&o, &FP32, 0, "--config %s", dir), -1);
    CHECK(strstr(err, "is a directory, not a regular file") != NULL, "%s", err);
    put(".json", "{\"a\": 1\0}", 9);
    CHECK_EQ(parse(&o, &FP32, 0, "--config %s", path), -1);
    CHECK(strstr(err, "is a binary file") != NULL, "%s", err);
    memset(large, ' ', sizeof large);
    put(".json", large, sizeof large);
    CHECK_EQ(parse(&o, &FP32, 0, "--config %s", path), -1);
    CHECK(strstr(err, "more than 1048576 bytes") != NULL, "%s", err);
    size_t n = 0;
    for (int i = 0; i < 1001; i++) n += (size_t)snprintf(large + n, sizeof large - n, "k%d: 1\n", i);
    put(".yaml", large, n);
    CHECK_EQ(parse(&o, &FP32, 0, "--config %s", path), -1);
    CHECK(strstr(err, "more than 1000 values") != NULL, "%s", err);
}

static void test_no_beginning_of_a_file_passes_for_a_whole_one(void) {
    static Options o;
    const char *text = "{\"zero_optimization\": {\"stage\": 3}, \"gradient_clipping\": 0.5}";
    for (size_t n = 1; n < strlen(text); n++) {
        put(".json", text, n);
        CHECK(parse(&o, &FP32, 0, "--config %s", path) == -1, "%.*s", (int)n, text);
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// What is not honoured; who wins; where a value comes from.

static void test_keys_that_are_not_used_are_named_in_one_line(void) {
    static const struct {
        const char *suffix, *text, *unused;  // "": none
    } FILES[] = {
        { ".json",
          "{'zero_optimization': {'stage': 2, 'overlap_comm': true, 'contiguous_gradients': true,\n"
          "'reduce_scatter': true, 'allgather_partitions': true}, 'steps_per_print': 1}",
          "" },
        { ".json", "{'zero_optimization': {'stage': 2, 'overlap_comm': false, 'reduce_bucket_size': 5e8}}",
          "zero_optimization.overlap_comm, zero_optimization.reduce_bucket_size" },
        { ".json", "{'gradient_clip': 1, 'zero_optimization.stage': 3}", "gradient_clip, \"zero_optimization.stage\"" },
        { ".json",
          "{'aio': {'block_size': 1, 'queue_depth': 2}, 'flops_profiler': {'enabled': false, 'top_modules': 1}}",
          "aio" },
        { ".json", "{'fp16': {'enabled': false, 'loss_scale': 0}, 'x': 'auto', 'y': null, 'z': []}", "" },
        { ".json", "{'scheduler': {'type': 'WarmupLR', 'params': {'total_num_steps': 9}}}",
          "scheduler.params.total_num_steps" },
        { ".json", "{'optimizer': {'type': 'AdamW', 'params': {'betas': [0.9, 0.95, 0.5]}}}",
          "optimizer.params.betas[2]" },
        { ".json", "{'\\u001b[2J': 1}", "\"?[2J\"" },
        { ".yaml",
          "general: {project: debug, run: x, step: null}\ndata_stages:\n- name: a\n  data: {seed: 1}\nlighteval: "
          "null\n",
          "general.project, general.run, data_stages" },
        { ".yaml", "optimizer: {accumulate_grad_in_fp32: false, weight_decay_exclude_named_params: []}\n",
          "optimizer.accumulate_grad_in_fp32" },
    };
    for (size_t i = 0; i < sizeof FILES / sizeof *FILES; i++) {
        static Options o;
        char line[8192] = "";
        put_text(FILES[i].suffix, FILES[i].text);
        CHECK(parse(&o, &FP32, 0, "--config %s", path) == 0, "%s", err);
        if (FILES[i].unused[0] != '\0') snprintf(line, sizeof line, "%s: not used: %s\n", path, FILES[i].unused);
        CHECK_STR(o.notes, line);
    }
    char *large = malloc(1 << 20);
    size_t n = (size_t)sprintf(large, "{");
    for (int i = 0; i < 900; i++) n += (size_t)sprintf(large + n, "\"a_rather_long_key_%d\": 1,", i);
    n += (size_t)sprintf(large + n, "\"x\": 1}");
    put(".json", large, n);
    free(large);
    static Options o;
    CHECK_EQ(parse(&o, &FP32, 0, "--config %s", path), 0);
    CHECK(strstr(o.notes, "a_rather_long_key_0, ") != NULL && strstr(o.notes, " more\n") != NULL, "%s", o.notes);
}

static void test_a_flag_wins_and_a_note_says_so(void) {
    static Options o;
    char line[256];
    put_json("{'zero_optimization': {'stage': 2}, 'gradient_clipping': 1, 'train_micro_batch_size_per_gpu': 4,\n"
             "'optimizer': {'type': 'AdamW', 'params': {'lr': 1e-3}}, 'scheduler': {'type': 'WarmupLR',\n"
             "'params': {'warmup_max_lr': 2e-3}}}");
    CHECK(parse(&o, &FP32, 2, "--config %s -z 3 --grad-clip 1.0 -b 2 -l 0.1", path) == 0, "%s", err);
    snprintf(line, sizeof line, "-z 3: wins over %s: zero_optimization.stage 2\n", path);
    CHECK(strstr(o.notes, line) != NULL, "%s", o.notes);
    snprintf(line, sizeof line, "-b 2: wins over %s: train_micro_batch_size_per_gpu 4\n", path);
    CHECK(strstr(o.notes, line) != NULL, "%s", o.notes);
    snprintf(line, sizeof line, "-l 0.1: wins over %s: scheduler.params.warmup_max_lr 0.002\n", path);
    CHECK(strstr(o.notes, line) != NULL && strstr(o.notes, "optimizer.") == NULL, "%s", o.notes);
    CHECK(strstr(o.notes, "grad-clip") == NULL && strstr(o.notes, "beta") == NULL, "%s", o.notes);
    put_json("{'train_batch_size': 8}");
    CHECK_EQ(parse(&o, &FP32, 3, "--config %s -d 4096", path), 0);
    snprintf(line, sizeof line, "-d: wins over %s: train_batch_size 8\n", path);
    CHECK_STR(o.notes, line);
}

static void test_each_value_is_printed_with_its_source(void) {
    static Options o;
    char *text, line[512];
    size_t bytes;
    put_text(".yaml", "\noptimizer: {zero_stage: 3}\ntokens: {micro_batch_size: 2}\n");
    CHECK(parse(&o, &FP32, 1, "--config %s -l 0.5 --print-config --ranks 2", path) == 0, "%s", err);
    options_set_default(&o, "x", "77");
    FILE *f = open_memstream(&text, &bytes);
    options_print(f, &o);
    fclose(f);
    snprintf(line, sizeof line, "%-23s %-30s %s:2: optimizer.zero_stage\n", "stage", "3", path);
    CHECK(strstr(text, line) != NULL, "%s", text);
    snprintf(line, sizeof line, "%-23s %-30s %s:3: tokens.micro_batch_size\n", "batch-size", "2", path);
    CHECK(strstr(text, line) != NULL, "%s", text);
    snprintf(line, sizeof line, "%-23s %-30s %s: no optimizer.clip_grad\n", "grad-clip", "0", path);
    CHECK(strstr(text, line) != NULL, "%s", text);
    snprintf(line, sizeof line, "%-23s %-30s flag\n", "lr", "0.5");
    CHECK(strstr(text, line) != NULL, "%s", text);
    snprintf(line, sizeof line, "%-23s %-30s chosen, since not given\n", "max-steps", "77");
    CHECK(strstr(text, line) != NULL, "%s", text);
    snprintf(line, sizeof line, "%-23s %-30s default\n", "seq-len", "1024");
    CHECK(strstr(text, line) != NULL, "%s", text);
    free(text);
}

static void test_the_precision_is_that_of_the_build_or_the_plan(void) {
    static Options o;
    put_json("{'bf16': {'enabled': true}}");
    CHECK_EQ(parse(&o, &BF16, 0, "--config %s", path), 0);
    CHECK(options_given(&o, "precision") && o.settings.dtype == ZERO_BF16);
    CHECK(parse(&o, &FP32, 0, "--config %s --plan", path) == 0 && o.settings.dtype == ZERO_BF16, "%s", err);
    CHECK(parse(&o, &FP32, 0, "--config %s --plan --precision fp32", path) == 0 && o.settings.dtype == ZERO_F32, "%s",
          err);
    put_json("{'bf16': {'enabled': false}}");
    CHECK_EQ(parse(&o, &BF16, 0, "--config %s", path), -1);
    CHECK(strstr(err, "build with PRECISION=FP32") != NULL, "%s", err);
    put_json("{}");
    CHECK_EQ(parse(&o, &FP32, 0, "--config %s", path), 0);
    CHECK_STR(o.notes, "");
    CHECK_EQ(parse(&o, &BF16, 0, "--config %s", path), 0);
    CHECK(strstr(o.notes, "DeepSpeed would train in fp32") != NULL, "%s", o.notes);
}

static void test_a_plan_and_print_config_take_the_ranks_of_the_file(void) {
    static Options o;
    put_text(".yaml", "parallelism: {dp: 4, tp: 1, pp: 1}\n");
    CHECK_EQ(parse(&o, &FP32, 0, "--config %s --print-config", path), 0);
    CHECK_EQ(options_plan_ranks(&o, 1), 4);
    CHECK_EQ(parse(&o, &FP32, 0, "--config %s --plan --ranks 16", path), 0);
    CHECK_EQ(options_plan_ranks(&o, 1), 16);
    CHECK_EQ(parse(&o, &FP32, 0, "--plan"), 0);
    CHECK_EQ(options_plan_ranks(&o, 3), 3);
}

// As launch.c compares ranks: the first flag whose hash differs.
static void first_difference(const char *text_a, const char *text_b, char *in_a) {
    static Options a, b;
    uint64_t hashes[2][OPTIONS_MAX];
    put_json(text_a);
    CHECK_EQ(parse(&a, &FP32, 0, "--config %s", path), 0);
    put_json(text_b);
    CHECK_EQ(parse(&b, &FP32, 0, "--config %s", path), 0);
    options_hash_values(&a, hashes[0]);
    options_hash_values(&b, hashes[1]);
    in_a[0] = '\0';
    for (size_t i = 0; i < OPTIONS_MAX && in_a[0] == '\0'; i++)
        if (hashes[0][i] != hashes[1][i]) options_value_text(&a, i, in_a, 512);
}

static void test_ranks_with_other_files_are_told_what_differs(void) {
    char text[512];
    first_difference(STAGE(3), STAGE(3), text);
    CHECK_STR(text, "");
    first_difference(STAGE(3), STAGE(1), text);
    CHECK_STR(text, "-z 3");
    first_difference("{'train_batch_size': 8}", "{'train_batch_size': 16}", text);
    CHECK(strstr(text, "--config (a file with the content ") == text, "%s", text);
    first_difference("{}", "{ }", text);
    CHECK(strstr(text, "--config (a file with the content ") == text, "%s", text);
    first_difference("{}", "{}", text);  // two files of one content
    CHECK_STR(text, "");
}

int main(int argc, char **argv) {
    test_start(&argc, argv);
    REQUIRE(mkdtemp(dir) != NULL);
    RUN(test_a_file_is_as_good_as_flags);
    RUN(test_every_wrong_file_is_refused_by_name);
    RUN(test_files_that_are_none);
    RUN(test_no_beginning_of_a_file_passes_for_a_whole_one);
    RUN(test_keys_that_are_not_used_are_named_in_one_line);
    RUN(test_a_flag_wins_and_a_note_says_so);
    RUN(test_each_value_is_printed_with_its_source);
    RUN(test_the_precision_is_that_of_the_build_or_the_plan);
    RUN(test_a_plan_and_print_config_take_the_ranks_of_the_file);
    RUN(test_ranks_with_other_files_are_told_what_differs);
    char command[64];
    snprintf(command, sizeof command, "rm -rf %s", dir);
    REQUIRE(system(command) == 0);
    return test_finish();
}
