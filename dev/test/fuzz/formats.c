#include "test/fuzz/formats.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "data/dataloader.h"
#include "data/documents.h"
#include "data/hellaswag.h"
#include "data/safetensors.h"
#include "data/tokenizer.h"
#include "gpt2/huggingface.h"
#include "gpt2/model_file.h"
#include "gpt2/tensors.h"
#include "trainer/checkpoint_format.h"
#include "trainer/checkpoint_llmc.h"
#include "trainer/config_keys.h"

#define PROMISE(condition) \
    ((condition) ? (void)0 : (fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition), abort()))

static const GPT2Config CONFIG = {
    .max_seq_len = 2, .vocab_size = 7, .padded_vocab_size = 8, .num_layers = 1, .num_heads = 1, .channels = 8
};

// Words of a header, then zeros. Returns its length.
static size_t put_header(uint8_t *bytes, const int32_t *words, size_t n) {
    memset(bytes, 0, LLMC_HEADER_BYTES);
    memcpy(bytes, words, n * sizeof *words);
    return LLMC_HEADER_BYTES;
}

// A refusal names the file.
static void promise_message(int status, const char *err, const char *path) {
    PROMISE(status == 0 || strstr(err, path) != NULL);
}

// ---- tokens and text ------------------------------------------------------------------------------------------------

static size_t write_tokens(uint8_t *bytes, unsigned kind) {
    const int32_t count = kind == 0 ? 50 : 7, header[] = { 20240520, 1, count };
    const size_t at = put_header(bytes, header, 3);
    for (int i = 0; i < count; i++) {
        const uint16_t token = (uint16_t)(i * 37);
        memcpy(bytes + at + 2 * (size_t)i, &token, 2);
    }
    return at + 2 * (size_t)count;
}

static size_t write_text(uint8_t *bytes, unsigned kind) {
    static const char *const texts[] = { "To be, or not to be, that is the question.\n", "\xc3\xa4\xe2\x82\xac", "x" };
    memcpy(bytes, texts[kind], strlen(texts[kind]));
    return strlen(texts[kind]);
}

static void parse_data(const char *dir, const char *path) {
    (void)dir;
    enum { B = 2, T = 3 };
    char err[512] = "";
    int inputs[B * T], targets[B * T], estimated;
    uint64_t hash;
    size_t documents;
    Loader *l = NULL;
    const LoaderConfig c = { .pattern = path, .B = B, .T = T, .vocab = 1024, .end_percent = 100, .shuffle = 1 };
    const int status = loader_open(&l, &c, err);
    promise_message(status, err, path);
    if (status != 0) return;
    const size_t samples = loader_num_samples(l);
    PROMISE(samples > 0);
    for (size_t j = 0; j < 3; j++) {
        const size_t which[] = { 0, samples - 1, 5 * samples };
        err[0] = '\0';
        if (loader_batch(l, which[j], inputs, targets, err) != 0) {
            promise_message(-1, err, path);
            continue;
        }
        for (int i = 0; i < B * T; i++) PROMISE(inputs[i] >= 0 && inputs[i] < 1024 && targets[i] >= 0);
    }
    PROMISE(loader_content_hash(l, &hash, err) == 0);
    PROMISE(loader_documents(l, 50256, &documents, &estimated, err) == 0);
    loader_close(l);
}

// ---- tokenizer ------------------------------------------------------------------------------------------------------

static size_t write_tokenizer(uint8_t *bytes, unsigned kind) {
    static const char tokens[] = "\1a\1b\2\xc3\xa4\1\n\3xyz\1\xe2\2\x82\xac";
    const int32_t header[] = { 20240328, 2, 7, (int32_t)kind };
    const size_t at = put_header(bytes, header, 4);
    memcpy(bytes + at, tokens, sizeof tokens - 1);
    return at + sizeof tokens - 1;
}

static void parse_tokenizer(const char *dir, const char *path) {
    (void)dir;
    char err[512] = "";
    Tokenizer *t = NULL;
    const int status = tokenizer_open(&t, path, err);
    promise_message(status, err, path);
    if (status != 0) return;
    const int vocab = tokenizer_vocab(t);
    PROMISE(tokenizer_eot(t) >= 0 && tokenizer_eot(t) < vocab);
    for (int i = -1; i <= vocab && i < 300; i++) PROMISE(strlen(tokenizer_decode(t, i)) < 262);
    tokenizer_close(t);
}

// ---- JSONL ----------------------------------------------------------------------------------------------------------

static size_t write_jsonl(uint8_t *bytes, unsigned kind) {
    static const char *const texts[] = { "{\"text\": \"To be\"}\n\n{\"id\": [1, {}], \"text\": \"\\u00e4\\n\"}",
                                         "{\"text\": \"\\ud83d\\ude00 \\\\u0000\", \"x\": -1.5e3}\r\n" };
    memcpy(bytes, texts[kind], strlen(texts[kind]));
    return strlen(texts[kind]);
}

static void parse_jsonl(const char *dir, const char *path) {
    char link_path[512], err[512] = "", *inputs[] = { link_path };
    Documents *d = NULL;
    Tokenizer *t;
    Bpe *bpe;
    Tokens tokens = { 0 };
    snprintf(link_path, sizeof link_path, "%s/x.jsonl", dir);
    PROMISE(symlink(path, link_path) == 0 || access(link_path, F_OK) == 0);
    PROMISE(tokenizer_open(&t, NULL, err) == 0 && bpe_open(&bpe, t, err) == 0);
    PROMISE(documents_open(&d, inputs, 1, "text", NULL, 0, err) == 0);
    for (size_t part = 0; part < documents_parts(d); part++)
        promise_message(documents_encode(d, part, bpe, tokenizer_eot(t), &tokens, err), err, link_path);
    for (size_t i = 0; i < tokens.count; i++) PROMISE(tokens.tokens[i] > 0 && tokens.tokens[i] < 256);
    free(tokens.tokens);
    documents_close(d);
    bpe_close(bpe);
    tokenizer_close(t);
}

// ---- HellaSwag ------------------------------------------------------------------------------------------------------

static size_t write_hellaswag(uint8_t *bytes, unsigned examples) {
    const int32_t header[] = { 20240522, 1, (int32_t)examples, 40 };
    size_t at = put_header(bytes, header, 4);
    for (uint16_t e = 0; e < examples; e++, at += 40) {
        const uint16_t label = e % 4,
                       words[] = { 65535, 40, e, label, 4, 3, 7, 8, 9, 1, 10, 2, 11, 12, 1, 13, 3, 14, 15, 16 };
        memcpy(bytes + at, words, sizeof words);
    }
    return at;
}

static void parse_hellaswag(const char *dir, const char *path) {
    (void)dir;
    char err[512] = "";
    HellaSwag *h = NULL;
    const int status = hellaswag_open(&h, path, 50, err);
    promise_message(status, err, path);
    if (status != 0) return;
    const size_t rows = hellaswag_rows(h), T = hellaswag_longest(h);
    int *tokens = malloc(2 * T * sizeof *tokens);
    PROMISE(tokens != NULL && rows == 4 * hellaswag_examples(h));
    for (size_t row = 0; row < rows; row++) {
        size_t begin, end;
        hellaswag_row(h, row, T, tokens, tokens + T, &begin, &end);
        PROMISE(begin < end && end <= T);
        for (size_t i = 0; i < 2 * T; i++) PROMISE(tokens[i] >= 0 && tokens[i] < 50);
    }
    free(tokens);
    hellaswag_close(h);
}

// ---- model ----------------------------------------------------------------------------------------------------------

static size_t write_model(uint8_t *bytes, unsigned bf16) {
    int32_t header[LLMC_HEADER_WORDS];
    modelfile_header(&CONFIG, (int)bf16, header);
    const size_t n = LLMC_HEADER_BYTES + gpt2_num_parameters(&CONFIG) * (bf16 ? 2 : 4);
    memset(bytes, 0, n);
    memcpy(bytes, header, sizeof header);
    return n;
}

static void parse_model(const char *dir, const char *path) {
    (void)dir;
    char err[5120] = "", why[256];
    ModelFile f;
    float value[2];
    const int status = modelfile_open(&f, path, err, sizeof err);
    promise_message(status, err, path);
    if (status != 0) return;
    if (gpt2_config_check(&f.config, why, sizeof why) == 0) PROMISE(gpt2_num_parameters(&f.config) == f.numel);
    PROMISE(modelfile_read(&f, f.numel - 1, 1, value, err, sizeof err) == 0);
    PROMISE(modelfile_read(&f, f.numel - 1, 2, value, err, sizeof err) != 0);
    modelfile_close(&f);
}

// ---- checkpoints ----------------------------------------------------------------------------------------------------

static size_t write_manifest(uint8_t *bytes, unsigned kind) {
    Checkpoint c = { .step = 12, .steps = 20, .updates = 11, .seed = 42, .M = 8, .B = 2, .T = 2 };
    c.train = (CheckpointData){ 0x0123456789abcdef, 1, 100 };
    if (kind != 0) {  // version 2
        c.train_files = strdup("230 a text\n17 b.bin\n");
        c.val_files = strdup("0 \xc3\xa4\n");
        PROMISE(c.train_files != NULL && c.val_files != NULL);
    }
    c.options = strdup("-l 0.0003\n-w 1\n");
    c.loss_outliers.seen = kind == 0 ? 3 : 200;
    for (int i = 0; i < OUTLIER_WINDOW; i++) c.loss_outliers.values[i] = 1.0 / (1 + i);
    PROMISE(c.options != NULL);
    PROMISE(checkpoint_describe(&c, &CONFIG, kind == 0 ? ZERO_F32 : ZERO_BF16, kind != 0,
                                zero_optimizer_get((enum zero_optimizer_kind)kind)) == 0);
    char *text = checkpoint_manifest(&c);
    PROMISE(text != NULL);
    const size_t n = strlen(text);
    PROMISE(text[strlen("zero.c checkpoint ")] == (kind == 0 ? '1' : '2'));
    memcpy(bytes, text, n);
    checkpoint_free(&c);
    char err[5120] = "";
    PROMISE(checkpoint_parse(&c, "", text, n, err, sizeof err) == 0);
    PROMISE(kind == 0 || (!strcmp(c.train_files, "230 a text\n17 b.bin\n") && !strcmp(c.val_files, "0 \xc3\xa4\n")));
    free(text);
    checkpoint_free(&c);
    return n;
}

// What is accepted is what this version writes.
static void parse_text(const char *path, const char *text, size_t n) {
    char err[5120] = "";
    Checkpoint c;
    const int status = checkpoint_parse(&c, path, text, n, err, sizeof err);
    promise_message(status, err, path);
    if (status == 0) {
        char *again = checkpoint_manifest(&c);
        PROMISE(again != NULL && strlen(again) == n && memcmp(again, text, n) == 0);
        free(again);
    }
    checkpoint_free(&c);
}

static void parse_manifest(const char *dir, const char *path) {
    (void)dir;
    enum { LAST = 22 };
    static char text[MAX_FILE + 1];
    FILE *f = fopen(path, "rb");
    PROMISE(f != NULL);
    const size_t n = fread(text, 1, MAX_FILE, f);
    fclose(f);
    parse_text(path, text, n);
    if (n < LAST) return;
    char last[LAST + 1];  // with its right hash, or else nothing else would be parsed
    snprintf(last, sizeof last, "xxh3 %016" PRIx64 "\n", (uint64_t)XXH3_64bits(text, n - LAST));
    memcpy(text + n - LAST, last, LAST);
    parse_text(path, text, n);
}

// The file of rank 0. Rank 1's, model and DONE are good.
static size_t write_llmc_state(uint8_t *bytes, unsigned kind) {
    const int stage = kind & 1, shuffled = (kind & 2) != 0, ranks = 2;
    const int32_t header[LLMC_HEADER_WORDS] = { 20240527, 1, ranks, 0, 1, shuffled, [10] = 3 };
    const size_t numel = gpt2_num_parameters(&CONFIG) / (stage == 1 ? (size_t)ranks : 1);
    const uint64_t shards = 2, samples = 5;
    size_t at = put_header(bytes, header, LLMC_HEADER_WORDS);
    memset(bytes + at, 0, 3 * numel * sizeof(float) + 4096);
    at += 3 * numel * sizeof(float);
    if (!shuffled) return at;
    memcpy(bytes + at, &shards, sizeof shards);
    memcpy(bytes + at + 8 + 4 * shards, &samples, sizeof samples);
    return at + 16 + 4 * (shards + samples) + 2520;
}

static void put_file(const char *dir, const char *name, const uint8_t *bytes, size_t n) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "wb");
    PROMISE(f != NULL && fwrite(bytes, 1, n, f) == n && fclose(f) == 0);
}

static void parse_llmc_state(const char *dir, const char *path) {
    static uint8_t bytes[MAX_FILE];
    static int ready;
    char link_path[512], err[5120] = "";
    float value;
    if (!ready) {
        const size_t n = write_llmc_state(bytes, 1);
        bytes[12] = 1;  // rank
        put_file(dir, "state_00000003_00001.bin", bytes, n);
        put_file(dir, "model_00000003.bin", bytes, write_model(bytes, 1));
        put_file(dir, "DONE_00000003", bytes, 0);
        snprintf(link_path, sizeof link_path, "%s/state_00000003_00000.bin", dir);
        PROMISE(symlink(path, link_path) == 0);
        ready = 1;
    }
    LlmcSet s;
    const int status = llmc_set_open(&s, dir, 3, err, sizeof err);
    promise_message(status, err, dir);
    for (size_t a = 0; a < s.c.num_arrays && status == 0; a++)
        for (size_t t = 0; t < s.c.num_tensors; t++) {
            const size_t last = s.c.tensors[t].numel - 1;
            PROMISE(llmc_set_read(&s, a, t, last, 1, &value, err, sizeof err) == 0);
        }
    err[0] = '\0';
    if (status == 0 && llmc_set_verify(&s, 0, 1, err, sizeof err) != 0) promise_message(-1, err, dir);
    llmc_set_close(&s);
}

// ---- Hugging Face's -------------------------------------------------------------------------------------------------

// kind 1: BF16; 2: names without a prefix
static size_t write_safetensors(uint8_t *bytes, unsigned kind) {
    enum { TENSORS = 16 };
    SafeTensor tensors[TENSORS] = { 0 };
    char names[TENSORS][HF_NAME];
    size_t n;
    PROMISE(gpt2_num_tensors(&CONFIG) == TENSORS);
    for (size_t t = 0; t < TENSORS; t++) {
        hf_describe(&CONFIG, t, names[t], tensors[t].shape, &tensors[t].dims);
        tensors[t].name = kind == 2 ? strchr(names[t], '.') + 1 : names[t];
        tensors[t].dtype = kind == 1 ? "BF16" : "F32";
    }
    char *header = safetensors_header(tensors, TENSORS, &n);
    PROMISE(header != NULL);
    memcpy(bytes, header, n);
    free(header);
    const SafeTensor *last = &tensors[TENSORS - 1];
    const size_t end = last->begin + last->numel * last->element_bytes;
    memset(bytes + n, 0, end - n);
    return end;
}

static size_t write_config(uint8_t *bytes, int eot) {
    char *text = hf_config_text(&CONFIG, 0, eot);
    PROMISE(text != NULL);
    const size_t n = strlen(text);
    memcpy(bytes, text, n);
    free(text);
    return n;
}

static size_t write_index(uint8_t *bytes) {
    size_t at = (size_t)sprintf((char *)bytes, "{\"weight_map\":{");
    for (size_t t = 0; t < gpt2_num_tensors(&CONFIG); t++) {
        char name[HF_NAME];
        size_t shape[2], dims;
        hf_describe(&CONFIG, t, name, shape, &dims);
        at += (size_t)sprintf((char *)bytes + at, "%s\"%s\":\"part.safetensors\"", t > 0 ? "," : "", name);
    }
    return at + (size_t)sprintf((char *)bytes + at, "}}");
}

// kinds 0 to 2: a model; 3, 4: config.json; 5: an index
static size_t write_huggingface(uint8_t *bytes, unsigned kind) {
    return kind < 3 ? write_safetensors(bytes, kind) : kind < 5 ? write_config(bytes, (int)kind) : write_index(bytes);
}

// A folder in which `name` is the mutated file, and the others are good.
static void make_folder(const char *folder, const char *path, const char *name) {
    static uint8_t bytes[MAX_FILE];
    char link_path[512];
    const int index = strcmp(name, "model.safetensors.index.json") == 0;
    if (mkdir(folder, 0777) != 0) return;  // it was made before
    put_file(folder, "config.json", bytes, write_config(bytes, -1));
    put_file(folder, index ? "part.safetensors" : "model.safetensors", bytes, write_safetensors(bytes, 0));
    snprintf(link_path, sizeof link_path, "%s/%s", folder, name);
    unlink(link_path);
    PROMISE(symlink(path, link_path) == 0);
}

static void parse_huggingface(const char *dir, const char *path) {
    static const char *const NAMES[] = { "model.safetensors", "config.json", "model.safetensors.index.json" };
    for (int i = 0; i < 3; i++) {
        char folder[400], err[5120] = "";
        float value;
        HfModel m;
        snprintf(folder, sizeof folder, "%s/with_%s", dir, NAMES[i]);
        make_folder(folder, path, NAMES[i]);
        const int status = hf_open(&m, folder, err, sizeof err);
        promise_message(status, err, folder);
        for (size_t t = 0; status == 0 && t < gpt2_num_tensors(&m.config); t++) {
            const HfPlace *p = &m.places[t];
            PROMISE(safetensors_read(p->file, p->tensor, p->tensor->numel - 1, 1, &value, err, sizeof err) == 0);
            PROMISE(safetensors_read(p->file, p->tensor, p->tensor->numel, 1, &value, err, sizeof err) != 0);
        }
        hf_close(&m);
    }
}

// ---- configuration --------------------------------------------------------------------------------------------------

static size_t write_deepspeed(uint8_t *bytes, unsigned kind) {
    static const char *const texts[] = {
        "{\"train_batch_size\": 32, \"bf16\": {\"enabled\": true}, \"gradient_clipping\": 1.0,\n"
        "\"optimizer\": {\"type\": \"Adam\", \"params\": {\"lr\": 3e-4, \"betas\": [0.8, 0.99], \"torch_adam\": "
        "true}},\n"
        "\"scheduler\": {\"type\": \"WarmupCosineLR\", \"params\": {\"total_num_steps\": 90, \"warmup_min_ratio\": "
        "0.1}},\n"
        "\"zero_optimization\": {\"stage\": 3, \"overlap_comm\": true, \"mics_shard_size\": -1}}\n",
        "{\"gradient_accumulation_steps\": \"auto\", \"fp16\": {\"enabled\": false, \"loss_scale\": 0}, \"x.y\": [1, "
        "[2, {}]],\n"
        "\"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"warmup_type\": \"linear\"}}, \"aio\": {\"a\": null}}\n"
    };
    memcpy(bytes, texts[kind], strlen(texts[kind]));
    return strlen(texts[kind]);
}

static size_t write_nanotron(uint8_t *bytes, unsigned kind) {
    static const char *const texts[] = {
        "general: {seed: 42, step: null}\nmodel:\n  dtype: bfloat16\n  model_config:\n    hidden_act: gelu_new\n"
        "    hidden_size: 64\n    num_hidden_layers: 2\n    num_attention_heads: 4\n    vocab_size: 256\n"
        "    max_position_embeddings: 32\nparallelism: {dp: 2, tp: 1, pp: 1}\n",
        "optimizer:\n  zero_stage: 1\n  clip_grad: 1.0  # norm\n  learning_rate_scheduler:\n    learning_rate: 0.0003\n"
        "    lr_decay_style: '1-sqrt'\n    lr_warmup_steps: 2\n    lr_decay_steps: 13\n  optimizer_factory:\n"
        "    name: adamW\ndata_stages:\n- name: a\n  data: {dataset: null}\ntokens: {train_steps: 10}\n"
    };
    memcpy(bytes, texts[kind], strlen(texts[kind]));
    return strlen(texts[kind]);
}

static int is_printable(const char *text) {
    for (; *text != '\0'; text++)
        if ((unsigned char)*text < ' ' || *text == 0x7F) return 0;
    return 1;
}

static void parse_config(const char *dir, const char *path) {
    (void)dir;
    static ConfigMeaning m;
    char err[16384] = "";
    ConfigFile c;
    int status = config_open(&c, path, err, sizeof err);
    if (status == 0) status = config_understand(&c, &m, err, sizeof err);
    promise_message(status, err, path);
    for (size_t i = 0; status == 0 && i < m.n; i++)
        PROMISE(m.settings[i].value[0] != '\0' && is_printable(m.settings[i].value));
    if (status == 0) PROMISE(is_printable(m.unused));
    config_close(&c);
}

// ---- a fault --------------------------------------------------------------------------------------------------------

static void parse_with_a_fault(const char *dir, const char *path) {
    (void)dir;
    int32_t header[LLMC_HEADER_WORDS];
    const int fd = open(path, O_RDONLY);
    const int bytes = llmc_read_header(fd, header);
    close(fd);
    char *copy = malloc(LLMC_HEADER_BYTES);  // as if the header's length were that of the file
    PROMISE(copy != NULL);
    if (bytes == LLMC_HEADER_BYTES && header[0] == 20240520 && header[2] > 1024) copy[header[2] & 0xffff] = 1;
    free(copy);
}

const Format formats[] = {
    { "tokens", 2, write_tokens, parse_data },
    { "text", 3, write_text, parse_data },
    { "tokenizer", 2, write_tokenizer, parse_tokenizer },
    { "jsonl", 2, write_jsonl, parse_jsonl },
    { "hellaswag", 4, write_hellaswag, parse_hellaswag },
    { "model", 2, write_model, parse_model },
    { "manifest", 2, write_manifest, parse_manifest },
    { "llmc_state", 4, write_llmc_state, parse_llmc_state },
    { "huggingface", 6, write_huggingface, parse_huggingface },
    { "deepspeed", 2, write_deepspeed, parse_config },
    { "nanotron", 2, write_nanotron, parse_config },
    { "planted", 1, write_tokens, parse_with_a_fault },
    { NULL },
};
