// gpt2_logits.cu: the logits of a model file, for test_huggingface.py.
//
//     gpt2_logits MODEL TOKENS LOGITS
//
// TOKENS has a sequence of int32. LOGITS becomes, for each of them, as many fp32 numbers as the vocabulary has tokens.
#define TESTING
#include "train_gpt2_zero.cu"

#include "gpt2/model_file.h"
#include "test/harness/numerics.h"

static void *unit_params(void *units, size_t unit) { return ((floatX **)units)[unit]; }
static void unit_done(void *, size_t) {}

// The parameters of a unit, in device memory.
static floatX *load_unit(const ModelFile *file, const zero_layout *layout, size_t unit) {
    Values flat(zero_layout_unit_numel(layout, unit));
    floatX *device = NULL;
    char err[5120] = "";
    for (size_t t = layout->unit_first[unit]; t < layout->unit_first[unit + 1]; t++) {
        const zero_tensor *tensor = &layout->tensors[t];
        std::vector<float> values(tensor->numel);
        REQUIRE(modelfile_read(file, tensor->logical, tensor->numel, values.data(), err, sizeof err) == 0, "%s", err);
        std::copy(values.begin(), values.end(), flat.begin() + (ptrdiff_t)layout->tensor_offset[t]);
    }
    must(cudaMalloc((void **)&device, flat.size() * sizeof(floatX)));
    write_device(device, flat);
    return device;
}

static std::vector<int> read_tokens(const char *path) {
    std::vector<int> tokens(1 << 20);
    FILE *f = fopen(path, "rb");
    REQUIRE(f != NULL, "%s: cannot be opened", path);
    tokens.resize(fread(tokens.data(), sizeof(int), tokens.size(), f));
    fclose(f);
    return tokens;
}

int main(int argc, char **argv) {
    REQUIRE(argc == 4, "see the head of gpt2_logits.cu");
    ModelFile file;
    zero_layout layout;
    zero_mesh alone;
    zero_accounting memory = {};
    GPT2 model;
    char err[5120] = "";
    const char *why = "";
    REQUIRE(modelfile_open(&file, argv[1], err, sizeof err) == 0, "%s", err);
    const GPT2Config *c = &file.config;
    std::vector<zero_tensor> tensors(gpt2_num_tensors(c));
    gpt2_tensors(c, tensors.data());
    REQUIRE(zero_layout_create(&layout, tensors.data(), tensors.size(), 1, &why) == 0, "%s", why);
    REQUIRE(zero_mesh_create(&alone, 0, 1, 1, 1, 0, err, sizeof err) == 0, "%s", err);
    std::vector<floatX *> params(layout.num_units);
    for (size_t u = 0; u < layout.num_units; u++) params[u] = load_unit(&file, &layout, u);

    const std::vector<int> inputs = read_tokens(argv[2]);
    const size_t T = inputs.size(), V = c->vocab_size, Vp = c->padded_vocab_size;
    const GPT2Units units = { params.data(), unit_params, unit_done, NULL, NULL };
    REQUIRE(gpt2_create(&model, c, 1, T, 0, 0, &units, &alone, &memory, 0, err, sizeof err) == 0, "%s", err);
    gpt2_forward(&model, inputs.data(), NULL, 1, T, 0);
    const Values logits = read_device(model.logits, T * Vp);
    std::vector<float> row(V);
    FILE *out = fopen(argv[3], "wb");
    REQUIRE(out != NULL, "%s: cannot be written", argv[3]);
    for (size_t t = 0; t < T; t++) {
        std::copy_n(logits.begin() + (ptrdiff_t)(t * Vp), V, row.begin());
        REQUIRE(fwrite(row.data(), sizeof(float), V, out) == V, "%s: cannot be written", argv[3]);
    }
    REQUIRE(fclose(out) == 0, "%s: cannot be written", argv[3]);
    gpt2_destroy(&model);
    for (floatX *p : params) must(cudaFree(p));
    zero_layout_destroy(&layout);
    modelfile_close(&file);
    return 0;
}
