#include "gpt2/huggingface.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpt2/tensors.h"

#define CONFIG_BYTES ((size_t)1 << 20)  // config.json has less
#define INDEX_BYTES  ((size_t)1 << 26)  // and an index

#define FAIL(...) (snprintf(err, err_bytes, __VA_ARGS__), -1)

enum { NO_TENSOR = -1, MASK = -2, HEAD = -3 };

// ---------------------------------------------------------------------------------------------------------------------
// Names and shapes.

static const char *const EMBEDDING[GPT2_EMBEDDING_TENSORS] = { "wte.weight", "wpe.weight", "ln_f.weight", "ln_f.bias" };

static const struct {
    const char *name;
    size_t rows, columns;  // in channels; columns 0: a vector
} LAYER[GPT2_LAYER_TENSORS] = { { "ln_1.weight", 1, 0 },        { "ln_1.bias", 1, 0 },
                                { "attn.c_attn.weight", 1, 3 }, { "attn.c_attn.bias", 3, 0 },
                                { "attn.c_proj.weight", 1, 1 }, { "attn.c_proj.bias", 1, 0 },
                                { "ln_2.weight", 1, 0 },        { "ln_2.bias", 1, 0 },
                                { "mlp.c_fc.weight", 1, 4 },    { "mlp.c_fc.bias", 4, 0 },
                                { "mlp.c_proj.weight", 4, 1 },  { "mlp.c_proj.bias", 1, 0 } };

int hf_describe(const GPT2Config *c, size_t tensor, char name[HF_NAME], size_t shape[2], size_t *dims) {
    const size_t C = c->channels;
    if (tensor < GPT2_EMBEDDING_TENSORS) {
        snprintf(name, HF_NAME, "transformer.%s", EMBEDDING[tensor]);
        *dims = tensor <= WPE ? 2 : 1;
        shape[0] = tensor == WTE ? c->vocab_size : tensor == WPE ? c->max_seq_len : C;
        shape[1] = tensor <= WPE ? C : 1;
        return 0;
    }
    const size_t layer = (tensor - GPT2_EMBEDDING_TENSORS) / GPT2_LAYER_TENSORS,
                 k = (tensor - GPT2_EMBEDDING_TENSORS) % GPT2_LAYER_TENSORS;
    snprintf(name, HF_NAME, "transformer.h.%zu.%s", layer, LAYER[k].name);
    *dims = LAYER[k].columns > 0 ? 2 : 1;
    shape[0] = LAYER[k].rows * C;
    shape[1] = LAYER[k].columns > 0 ? LAYER[k].columns * C : 1;
    return LAYER[k].columns > 0;
}

// The index in gpt2_tensors of a tensor by its name there, or NO_TENSOR, MASK, HEAD.
static long long find(const GPT2Config *c, const char *name) {
    static const char PREFIX[] = "transformer.";
    char *rest;
    if (strcmp(name, "lm_head.weight") == 0) return HEAD;
    if (strncmp(name, PREFIX, sizeof PREFIX - 1) == 0) name += sizeof PREFIX - 1;
    for (int k = 0; k < GPT2_EMBEDDING_TENSORS; k++)
        if (strcmp(name, EMBEDDING[k]) == 0) return k;
    if (strncmp(name, "h.", 2) != 0 || name[2] < '0' || name[2] > '9') return NO_TENSOR;
    const unsigned long long layer = strtoull(name + 2, &rest, 10);
    if (*rest++ != '.' || layer >= c->num_layers) return NO_TENSOR;
    if (strcmp(rest, "attn.bias") == 0 || strcmp(rest, "attn.masked_bias") == 0) return MASK;
    for (int k = 0; k < GPT2_LAYER_TENSORS; k++)
        if (strcmp(rest, LAYER[k].name) == 0) return GPT2_EMBEDDING_TENSORS + (int)layer * GPT2_LAYER_TENSORS + k;
    return NO_TENSOR;
}

// ---------------------------------------------------------------------------------------------------------------------
// config.json.

// A value as text, for messages.
static void print_value(const cJSON *json, char *text, int bytes) {
    if (json == NULL)
        snprintf(text, (size_t)bytes, "missing");
    else if (!cJSON_PrintPreallocated((cJSON *)json, text, bytes - 5, 0))  // cJSON wants 5 bytes more than it needs
        snprintf(text, (size_t)bytes, "something else");
}

// What llm.c's model has fixed. A key that is missing has that value, but for model_type.
static int check_fixed(const cJSON *json, const char *path, char *err, size_t err_bytes) {
    static const struct {
        const char *key, *want, *alternative;
        int required;
    } FIXED[] = { { "model_type", "\"gpt2\"", "", 1 },
                  { "activation_function", "\"gelu_new\"", "\"gelu_pytorch_tanh\"", 0 },
                  { "tie_word_embeddings", "true", "", 0 },
                  { "scale_attn_weights", "true", "", 0 },
                  { "scale_attn_by_inverse_layer_idx", "false", "", 0 },
                  { "add_cross_attention", "false", "", 0 } };
    char value[64];
    for (size_t i = 0; i < sizeof FIXED / sizeof *FIXED; i++) {
        const cJSON *item = cJSON_GetObjectItemCaseSensitive(json, FIXED[i].key);
        print_value(item, value, sizeof value);
        if ((item != NULL || FIXED[i].required) && strcmp(value, FIXED[i].want) != 0 &&
            strcmp(value, FIXED[i].alternative) != 0)
            return FAIL("%s: \"%s\" is %s; only %s is GPT-2 as it is trained here", path, FIXED[i].key, value,
                        FIXED[i].want);
    }
    const cJSON *epsilon = cJSON_GetObjectItemCaseSensitive(json, "layer_norm_epsilon");
    print_value(epsilon, value, sizeof value);
    if (epsilon != NULL && !(cJSON_IsNumber(epsilon) && fabs(epsilon->valuedouble - 1e-5) < 1e-12))
        return FAIL("%s: \"layer_norm_epsilon\" is %s; only 1e-05 is GPT-2 as it is trained here", path, value);
    return 0;
}

static int parse_config(GPT2Config *c, const cJSON *json, const char *path, char *err, size_t err_bytes) {
    char value[64], why[256];
    const struct {
        const char *key, *older;
        size_t *size;
    } SIZES[] = { { "n_positions", "n_ctx", &c->max_seq_len },
                  { "vocab_size", "", &c->vocab_size },
                  { "n_layer", "", &c->num_layers },
                  { "n_head", "", &c->num_heads },
                  { "n_embd", "", &c->channels } };
    memset(c, 0, sizeof *c);
    if (check_fixed(json, path, err, err_bytes) != 0) return -1;
    for (size_t i = 0; i < sizeof SIZES / sizeof *SIZES; i++) {
        const cJSON *item = cJSON_GetObjectItemCaseSensitive(json, SIZES[i].key);
        if (item == NULL) item = cJSON_GetObjectItemCaseSensitive(json, SIZES[i].older);
        print_value(item, value, sizeof value);
        if (!json_size(item, SIZES[i].size) || *SIZES[i].size > (size_t)1 << 24)
            return FAIL("%s: \"%s\" is %s: it must be a number from 1 to %d", path, SIZES[i].key, value, 1 << 24);
    }
    const cJSON *inner = cJSON_GetObjectItemCaseSensitive(json, "n_inner");
    size_t n = 4 * c->channels;
    print_value(inner, value, sizeof value);
    if (inner != NULL && !cJSON_IsNull(inner) && !(json_size(inner, &n) && n == 4 * c->channels))
        return FAIL("%s: \"n_inner\" is %s; only null or 4 x n_embd is GPT-2 as it is trained here", path, value);
    c->padded_vocab_size = (c->vocab_size + GPT2_VOCAB_MULTIPLE - 1) / GPT2_VOCAB_MULTIPLE * GPT2_VOCAB_MULTIPLE;
    if (gpt2_config_check(c, why, sizeof why) != 0) return FAIL("%s: %s", path, why);
    // A model file's header says more than the kernels can, but not this much.
    if (c->num_layers > 1 << 16 || c->channels > 1 << 20) return FAIL("%s: no model is so large", path);
    return 0;
}

char *hf_config_text(const GPT2Config *c, int bf16, int eot) {
    char *text = NULL, token[16] = "null";
    size_t bytes;
    FILE *f = open_memstream(&text, &bytes);
    if (f == NULL) return NULL;
    if (eot >= 0) snprintf(token, sizeof token, "%d", eot);
    fprintf(f,
            "{\n  \"activation_function\": \"gelu_new\",\n  \"architectures\": [\n    \"GPT2LMHeadModel\"\n  ],\n"
            "  \"attn_pdrop\": 0.0,\n  \"bos_token_id\": %s,\n  \"embd_pdrop\": 0.0,\n  \"eos_token_id\": %s,\n"
            "  \"initializer_range\": 0.02,\n  \"layer_norm_epsilon\": 1e-05,\n  \"model_type\": \"gpt2\",\n"
            "  \"n_ctx\": %zu,\n  \"n_embd\": %zu,\n  \"n_head\": %zu,\n  \"n_inner\": null,\n  \"n_layer\": %zu,\n"
            "  \"n_positions\": %zu,\n  \"resid_pdrop\": 0.0,\n  \"tie_word_embeddings\": true,\n"
            "  \"torch_dtype\": \"%s\",\n  \"vocab_size\": %zu\n}\n",
            token, token, c->max_seq_len, c->channels, c->num_heads, c->num_layers, c->max_seq_len,
            bf16 ? "bfloat16" : "float32", c->vocab_size);
    if (fclose(f) == 0) return text;
    free(text);
    return NULL;
}

// ---------------------------------------------------------------------------------------------------------------------
// The folder.

int hf_is_folder(const char *path) {
    char file[4200];
    snprintf(file, sizeof file, "%.4096s/config.json", path);
    return access(file, F_OK) == 0;
}

static int open_file(HfModel *m, const char *folder, const char *name, char *err, size_t err_bytes) {
    char path[4400];
    snprintf(path, sizeof path, "%.4000s/%.300s", folder, name);
    return safetensors_open(&m->files[m->num_files++], path, err, err_bytes);
}

static const SafeTensors *file_named(const HfModel *m, const char *name) {
    for (size_t i = 0; i < m->num_files; i++)
        if (strcmp(strrchr(m->files[i].path, '/') + 1, name) == 0) return &m->files[i];
    return NULL;
}

// Opens the files that weight_map names, each once.
static int open_shards(HfModel *m, const char *folder, const cJSON *map, const char *index, char *err,
                       size_t err_bytes) {
    const cJSON *item;
    if (!cJSON_IsObject(map)) return FAIL("%s: has no weight_map: the file is damaged: get it again", index);
    cJSON_ArrayForEach(item, map) {
        const char *name = cJSON_IsString(item) ? item->valuestring : "";
        if (name[0] == '\0' || name[0] == '.' || strchr(name, '/') != NULL || strlen(name) > 255)
            return FAIL("%s: its weight_map names something else than files beside it: get it again", index);
        if (file_named(m, name) != NULL) continue;
        if (m->num_files == HF_MAX_FILES)
            return FAIL("%s: names more than %d files: save the model in fewer", index, HF_MAX_FILES);
        if (open_file(m, folder, name, err, err_bytes) != 0) return -1;
    }
    return 0;
}

// Opens model.safetensors, or what the index names; *json is the index then.
static int open_files(HfModel *m, const char *folder, cJSON **json, char *index, size_t index_bytes, char *err,
                      size_t err_bytes) {
    static const char ONE[] = "model.safetensors", INDEX[] = "model.safetensors.index.json";
    char path[4400];
    snprintf(path, sizeof path, "%.4000s/%s", folder, ONE);
    snprintf(index, index_bytes, "%.4000s/%s", folder, INDEX);
    m->files = calloc(HF_MAX_FILES, sizeof *m->files);
    if (m->files == NULL) return FAIL("%s: out of memory", folder);
    if (access(path, F_OK) == 0) return open_file(m, folder, ONE, err, err_bytes);
    if (access(index, F_OK) != 0)
        return FAIL("%s: is missing, and so is %s; pytorch_model.bin is not read: let transformers save the model with "
                    "save_pretrained(..., safe_serialization=True)",
                    path, INDEX);
    if ((*json = json_read(index, INDEX_BYTES, err, err_bytes)) == NULL) return -1;
    return open_shards(m, folder, cJSON_GetObjectItemCaseSensitive(*json, "weight_map"), index, err, err_bytes);
}

static int check_shape(const SafeTensors *file, const SafeTensor *t, const size_t *shape, size_t dims, char *err,
                       size_t err_bytes) {
    char want[64];
    snprintf(want, sizeof want, dims == 2 ? "[%zu, %zu]" : "[%zu]", shape[0], shape[1]);
    if (t->dims != dims || t->shape[0] != shape[0] || (dims == 2 && t->shape[1] != shape[1]))
        return FAIL("%s: tensor %s: does not have the shape %s that config.json implies: are they of the same model?",
                    file->path, t->name, want);
    if (strcmp(t->dtype, "F32") != 0 && strcmp(t->dtype, "BF16") != 0 && strcmp(t->dtype, "F16") != 0)
        return FAIL("%s: tensor %s: has the type %s; F32, BF16 and F16 are read: save it as one of them", file->path,
                    t->name, t->dtype);
    return 0;
}

// Finds out what each tensor of a file is.
static int place_tensors(HfModel *m, const SafeTensors *file, char *err, size_t err_bytes) {
    for (size_t i = 0; i < file->count; i++) {
        const SafeTensor *t = &file->tensors[i];
        const long long which = find(&m->config, t->name);
        char name[HF_NAME];
        size_t shape[2], dims;
        if (which == MASK) continue;
        if (which == NO_TENSOR)
            return FAIL("%s: tensor %s: is not one of a GPT-2 of %zu layers with a language model's head", file->path,
                        t->name, m->config.num_layers);
        HfPlace *place = which == HEAD ? &m->head : &m->places[which];
        if (place->tensor != NULL) return FAIL("%s: tensor %s: is there twice", file->path, t->name);
        hf_describe(&m->config, which == HEAD ? WTE : (size_t)which, name, shape, &dims);
        if (check_shape(file, t, shape, dims, err, err_bytes) != 0) return -1;
        *place = (HfPlace){ file, t };
        m->bf16 = m->bf16 && strcmp(t->dtype, "BF16") == 0;
    }
    return 0;
}

// Checks that each tensor is in the file that the index says.
static int check_index(const HfModel *m, const cJSON *json, const char *index, char *err, size_t err_bytes) {
    const cJSON *item;
    cJSON_ArrayForEach(item, cJSON_GetObjectItemCaseSensitive(json, "weight_map")) {
        const long long which = find(&m->config, item->string);
        const SafeTensors *file = file_named(m, item->valuestring);
        if (which == MASK || (which != NO_TENSOR && (which == HEAD ? m->head : m->places[which]).file == file))
            continue;
        return FAIL("%s: has no tensor %.100s, but %s says so: are they of the same model?", file->path, item->string,
                    index);
    }
    return 0;
}

// Finds all tensors.
static int place_all(HfModel *m, const char *folder, char *err, size_t err_bytes) {
    char name[HF_NAME];
    size_t shape[2], dims;
    m->bf16 = 1;
    m->places = calloc(gpt2_num_tensors(&m->config), sizeof *m->places);
    if (m->places == NULL) return FAIL("%s: out of memory", folder);
    for (size_t f = 0; f < m->num_files; f++)
        if (place_tensors(m, &m->files[f], err, err_bytes) != 0) return -1;
    for (size_t t = 0; t < gpt2_num_tensors(&m->config); t++) {
        if (m->places[t].tensor != NULL) continue;
        hf_describe(&m->config, t, name, shape, &dims);
        return FAIL("%s: tensor %s: is missing", folder, strchr(name, '.') + 1);
    }
    return 0;
}

int hf_open(HfModel *m, const char *folder, char *err, size_t err_bytes) {
    char path[4400];
    memset(m, 0, sizeof *m);
    snprintf(path, sizeof path, "%.4000s/config.json", folder);
    cJSON *config = json_read(path, CONFIG_BYTES, err, err_bytes), *index = NULL;
    if (config == NULL) return -1;
    int status = parse_config(&m->config, config, path, err, err_bytes);
    if (status == 0) status = open_files(m, folder, &index, path, sizeof path, err, err_bytes);
    if (status == 0) status = place_all(m, folder, err, err_bytes);
    if (status == 0 && index != NULL) status = check_index(m, index, path, err, err_bytes);
    cJSON_Delete(config);
    cJSON_Delete(index);
    return status;
}

void hf_close(HfModel *m) {
    for (size_t f = 0; f < m->num_files; f++) safetensors_close(&m->files[f]);
    free(m->files);
    free(m->places);
    memset(m, 0, sizeof *m);
}
