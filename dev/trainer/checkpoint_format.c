#include "trainer/checkpoint_format.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "data/llmc_file.h"
#include "gpt2/model_file.h"
#include "gpt2/tensors.h"
#include "zero/state_hash.h"

#define FAIL(...)     (snprintf(err, err_bytes, __VA_ARGS__), -1)
#define MAX_MANIFEST  ((size_t)1 << 30)
#define READ_ELEMENTS ((size_t)1 << 18)

// ---------------------------------------------------------------------------------------------------------------------
// Arrays and chunks.

static size_t chunks_of(size_t numel) { return (numel + CHECKPOINT_CHUNK - 1) / CHECKPOINT_CHUNK; }

static void add_array(Checkpoint *c, const char *name, enum zero_state state, size_t offset) {
    c->arrays[c->num_arrays++] = (CheckpointArray){ .name = name, .state = state, .offset = offset };
}

int checkpoint_describe(Checkpoint *c, const GPT2Config *config, enum zero_dtype dtype, int has_master,
                        const zero_optimizer *optimizer) {
    c->config = *config;
    c->dtype = dtype;
    c->has_master = has_master;
    c->optimizer = optimizer;
    c->num_tensors = gpt2_num_tensors(config);
    c->tensors = calloc(c->num_tensors, sizeof *c->tensors);
    c->first_chunk = calloc(c->num_tensors + 1, sizeof *c->first_chunk);
    if (c->tensors == NULL || c->first_chunk == NULL) return -1;
    gpt2_tensors(config, c->tensors);
    for (size_t t = 0; t < c->num_tensors; t++)
        c->first_chunk[t + 1] = c->first_chunk[t] + chunks_of(c->tensors[t].numel);
    c->num_chunks = c->first_chunk[c->num_tensors];

    const size_t bytes = gpt2_num_parameters(config) * sizeof(float);
    c->num_arrays = 0;
    add_array(c, "parameters", ZERO_STATE_PARAMS, LLMC_HEADER_BYTES);
    if (has_master) add_array(c, "master weights", ZERO_STATE_MASTER, 0);
    for (size_t i = 0; i < optimizer->num_states; i++)
        add_array(c, optimizer->state_names[i], (enum zero_state)(ZERO_STATE_OPTIMIZER + i),
                  ((size_t)has_master + i) * bytes);
    for (size_t a = 0; a < c->num_arrays; a++) {
        c->arrays[a].hashes = calloc(c->num_chunks, sizeof *c->arrays[a].hashes);
        if (c->arrays[a].hashes == NULL) return -1;
    }
    return 0;
}

int checkpoint_add_average(Checkpoint *c) {
    const size_t offset = checkpoint_optimizer_bytes(c);
    add_array(c, "moving average", ZERO_STATE_EMA, offset);
    uint64_t *hashes = calloc(c->num_chunks, sizeof *hashes);
    c->arrays[c->num_arrays - 1].hashes = hashes;
    return hashes != NULL ? 0 : -1;
}

int checkpoint_array_of(const Checkpoint *c, enum zero_state state) {
    for (size_t a = 0; a < c->num_arrays; a++)
        if (c->arrays[a].state == state) return (int)a;
    return -1;
}

void checkpoint_free(Checkpoint *c) {
    for (size_t a = 0; a < c->num_arrays; a++) free(c->arrays[a].hashes);
    free(c->tensors);
    free(c->first_chunk);
    free(c->options);
    free(c->train_files);
    free(c->val_files);
    memset(c, 0, sizeof *c);
}

size_t checkpoint_optimizer_bytes(const Checkpoint *c) {
    return (c->num_arrays - 1) * gpt2_num_parameters(&c->config) * sizeof(float);
}

void checkpoint_add_hash(Checkpoint *c, size_t array, size_t tensor, size_t begin, size_t count, const float *values) {
    const CheckpointArray *a = &c->arrays[array];
    for (size_t at = 0; at < count;) {
        const size_t left = CHECKPOINT_CHUNK - (begin + at) % CHECKPOINT_CHUNK,
                     n = count - at < left ? count - at : left;
        const size_t logical = c->tensors[tensor].logical + begin + at;
        a->hashes[c->first_chunk[tensor] + (begin + at) / CHECKPOINT_CHUNK] += zero_state_hash(a->state, logical, n,
                                                                                               values + at);
        at += n;
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Names.

static const struct {
    const char *prefix, *suffix;
} NAMES[CHECKPOINT_FILES] = {
    { "model_", ".bin" }, { "optimizer_", ".bin" }, { "checkpoint_", ".txt" }, { "DONE_", "" }
};

void checkpoint_path(char *out, const char *dir, enum checkpoint_file file, size_t step) {
    snprintf(out, CHECKPOINT_PATH, "%.4000s/%s%08zu%s", dir, NAMES[file].prefix, step, NAMES[file].suffix);
}

// The step in a file's name, or -1.
static int step_of(const char *name, size_t *step) {
    for (int f = 0; f < CHECKPOINT_FILES; f++) {
        const size_t length = strlen(NAMES[f].prefix);
        char *end;
        if (strncmp(name, NAMES[f].prefix, length) != 0) continue;
        const size_t digits = strspn(name + length, "0123456789");
        *step = (size_t)strtoull(name + length, &end, 10);
        if (digits >= 8 && digits < 18 && strcmp(end, NAMES[f].suffix) == 0) return 0;
    }
    return -1;
}

static int newer(const void *a, const void *b) {
    const size_t x = *(const size_t *)a, y = *(const size_t *)b;
    return (x < y) - (x > y);
}

int checkpoint_steps(const char *dir, size_t **steps, char *err, size_t err_bytes) {
    *steps = NULL;
    DIR *d = opendir(dir);
    if (d == NULL && errno == ENOENT) return 0;
    if (d == NULL) return FAIL("-o %s: cannot be read: %s", dir, strerror(errno));
    size_t n = 0, room = 0, step, unique = 0;
    int status = 0;
    for (struct dirent *e; status == 0 && (e = readdir(d)) != NULL;) {
        if (step_of(e->d_name, &step) != 0) continue;
        if (n == room) {
            room = 2 * room + 64;
            size_t *more = realloc(*steps, room * sizeof *more);
            if (more == NULL) status = FAIL("-o %s: out of host memory", dir);
            if (more != NULL) *steps = more;
        }
        if (status == 0) (*steps)[n++] = step;
    }
    closedir(d);
    if (status != 0) return status;
    if (n > 0) qsort(*steps, n, sizeof **steps, newer);
    for (size_t i = 0; i < n; i++)
        if (unique == 0 || (*steps)[unique - 1] != (*steps)[i]) (*steps)[unique++] = (*steps)[i];
    return (int)unique;
}

int checkpoint_is_ours(const char *dir, size_t step) {
    char manifest[CHECKPOINT_PATH], optimizer[CHECKPOINT_PATH];
    checkpoint_path(manifest, dir, CHECKPOINT_MANIFEST, step);
    checkpoint_path(optimizer, dir, CHECKPOINT_OPTIMIZER, step);
    return access(manifest, F_OK) == 0 || access(optimizer, F_OK) == 0;
}

int checkpoint_delete(const char *dir, size_t step, char *err, size_t err_bytes) {
    char path[CHECKPOINT_PATH];
    int status = 0;
    for (int f = CHECKPOINT_FILES - 1; f >= 0; f--) {
        checkpoint_path(path, dir, (enum checkpoint_file)f, step);
        if (unlink(path) != 0 && errno != ENOENT) status = FAIL("%s: cannot be deleted: %s", path, strerror(errno));
    }
    return status;
}

// ---------------------------------------------------------------------------------------------------------------------
// The manifest: writing.

static void put_window(FILE *f, const char *name, const Outliers *o) {
    fprintf(f, "%s %zu\n", name, o->seen);
    for (size_t i = 0; i < o->seen && i < OUTLIER_WINDOW; i++) fprintf(f, "%a\n", o->values[i]);
}

static int has_lines(const char *lines) { return lines != NULL && lines[0] != '\0'; }

// Lines of text, each with a key before it.
static void put_lines(FILE *f, const char *key, const char *lines) {
    for (const char *end; has_lines(lines); lines = end + 1) {
        end = strchr(lines, '\n');
        fprintf(f, "%s%.*s\n", key, (int)(end - lines), lines);
    }
}

char *checkpoint_manifest(const Checkpoint *c) {
    char *text = NULL;
    size_t bytes = 0;
    FILE *f = open_memstream(&text, &bytes);
    if (f == NULL) return NULL;
    const GPT2Config *g = &c->config;
    size_t options = 0;
    for (const char *p = c->options; *p != '\0'; p++) options += *p == '\n';
    const int version = has_lines(c->train_files) || has_lines(c->val_files) ? 2 : 1;
    fprintf(f, "zero.c checkpoint %d\nstep %zu\nsteps %zu\nupdates %" PRIu64 "\n", version, c->step, c->steps,
            c->updates);
    fprintf(f, "micro_batches %zu\nbatch_size %zu\nseq_len %zu\nnext_micro_batch %zu\nseed %" PRIu64 "\n", c->M, c->B,
            c->T, c->step * c->M, c->seed);
    fprintf(f, "train_data %016" PRIx64 " files %zu samples %zu\n", c->train.content, c->train.files, c->train.samples);
    put_lines(f, "train_file ", c->train_files);
    fprintf(f, "val_data %016" PRIx64 "\n", c->val_content);
    put_lines(f, "val_file ", c->val_files);
    fprintf(f, "options %zu\n%s", options, c->options);
    put_window(f, "loss_window", &c->loss_outliers);
    put_window(f, "norm_window", &c->norm_outliers);
    fprintf(f, "nonfinite_steps %zu first %zu loss %a norm %a\n", c->nonfinite.steps, c->nonfinite.first,
            c->nonfinite.loss, c->nonfinite.norm);
    fprintf(f, "state_hash %016" PRIx64 " %016" PRIx64 "\n", c->params_hash, c->optimizer_hash);
    fprintf(f, "model max_seq_len %zu vocab_size %zu padded_vocab_size %zu num_layers %zu num_heads %zu channels %zu\n",
            g->max_seq_len, g->vocab_size, g->padded_vocab_size, g->num_layers, g->num_heads, g->channels);
    fprintf(f, "precision %s\nmaster_weights %d\noptimizer %s\n", c->dtype == ZERO_BF16 ? "bf16" : "fp32",
            c->has_master, c->optimizer->name);
    for (size_t a = 0; a < c->num_arrays; a++) {
        fprintf(f, "array %s at %zu\n", c->arrays[a].name, c->arrays[a].offset);
        for (size_t k = 0; k < c->num_chunks; k++) fprintf(f, "%016" PRIx64 "\n", c->arrays[a].hashes[k]);
    }
    fflush(f);
    if (text != NULL) fprintf(f, "xxh3 %016" PRIx64 "\n", (uint64_t)XXH3_64bits(text, bytes));
    if (fclose(f) == 0) return text;
    free(text);
    return NULL;
}

// ---------------------------------------------------------------------------------------------------------------------
// The manifest: reading. A line that is not exactly as expected sets `wrong`, and what follows is not read.

typedef struct Reader {
    char *at;           // next line
    const char *wrong;  // what was expected; NULL: so far all is well
    char nothing[1];
} Reader;

// The rest of the next line, which must begin with key.
static char *next(Reader *r, const char *key) {
    char *line = r->at, *end = r->wrong == NULL ? strchr(line, '\n') : NULL;
    const size_t length = strlen(key);
    if (end == NULL || strncmp(line, key, length) != 0) {
        if (r->wrong == NULL) r->wrong = *key != '\0' ? key : "another line";
        return r->nothing;
    }
    *end = '\0';
    r->at = end + 1;
    return line + length;
}

// A number from *p on, which ends with the character `end`, and at most max.
static uint64_t number(Reader *r, char **p, int base, char end, uint64_t max, const char *what) {
    char *stop = *p;
    errno = 0;
    const int digit = (*stop >= '0' && *stop <= '9') || (base == 16 && *stop >= 'a' && *stop <= 'f');
    const uint64_t n = digit ? strtoull(stop, &stop, base) : 0;
    if (r->wrong == NULL && (!digit || errno != 0 || *stop != end || n > max)) r->wrong = what;
    if (r->wrong != NULL) return 0;
    *p = stop + (end != '\0');
    return n;
}

static size_t count(Reader *r, const char *key, uint64_t max) {
    char *p = next(r, key);
    return (size_t)number(r, &p, 10, '\0', max, key);
}

// A number behind a word in the same line.
static size_t word(Reader *r, char **p, const char *name, char end, uint64_t max) {
    const size_t length = strlen(name);
    if (r->wrong == NULL && strncmp(*p, name, length) != 0) r->wrong = name;
    if (r->wrong == NULL) *p += length;
    return (size_t)number(r, p, 10, end, max, name);
}

// A number with a fraction, or nan, behind a word in the same line.
static double real(Reader *r, char **p, const char *name, char end) {
    const size_t length = strlen(name);
    char *stop = *p;
    if (r->wrong == NULL && strncmp(*p, name, length) != 0) r->wrong = name;
    const double x = r->wrong == NULL ? strtod(*p + length, &stop) : 0;
    if (r->wrong == NULL && (stop == *p + length || *stop != end)) r->wrong = name;
    if (r->wrong == NULL) *p = stop + (end != '\0');
    return x;
}

static void get_nonfinite(Reader *r, CheckpointNonfinite *n, uint64_t most) {
    char *p = next(r, "nonfinite_steps ");
    n->steps = number(r, &p, 10, ' ', most, "nonfinite_steps");
    n->first = word(r, &p, "first ", ' ', most);
    n->loss = real(r, &p, "loss ", ' ');
    n->norm = real(r, &p, "norm ", '\0');
}

static void get_window(Reader *r, const char *key, Outliers *o) {
    o->seen = count(r, key, (uint64_t)1 << 48);
    for (size_t i = 0; i < o->seen && i < OUTLIER_WINDOW && r->wrong == NULL; i++) {
        char *p = next(r, ""), *end;
        o->values[i] = strtod(p, &end);
        if (end == p || *end != '\0') r->wrong = key;
    }
}

// The lines that begin with key, without it, each a number of bytes and a name.
static char *get_files(Reader *r, const char *key) {
    char *text = NULL;
    size_t bytes;
    FILE *f = open_memstream(&text, &bytes);
    while (f != NULL && r->wrong == NULL && strncmp(r->at, key, strlen(key)) == 0) {
        char *line = next(r, key), *name = line;
        number(r, &name, 10, ' ', UINT64_MAX, key);
        for (const char *c = name; *c != '\0' && r->wrong == NULL; c++)
            if (iscntrl((unsigned char)*c)) r->wrong = "a name without control characters";
        fprintf(f, "%s\n", line);
    }
    if (f == NULL || fclose(f) != 0) r->wrong = "memory";
    return text;
}

static void get_options(Reader *r, Checkpoint *c) {
    const size_t n = count(r, "options ", 1000);
    const char *begin = r->at;
    for (size_t i = 0; i < n && r->wrong == NULL; i++) {
        char *line = next(r, "-");
        if (r->wrong == NULL) line[strlen(line)] = '\n';
    }
    c->options = strndup(begin, (size_t)(r->at - begin));
    if (c->options == NULL) r->wrong = "memory";
}

static GPT2Config get_model(Reader *r) {
    GPT2Config g;
    char *p = next(r, "model ");
    g.max_seq_len = word(r, &p, "max_seq_len ", ' ', 1 << 24);
    g.vocab_size = word(r, &p, "vocab_size ", ' ', 1 << 24);
    g.padded_vocab_size = word(r, &p, "padded_vocab_size ", ' ', 1 << 24);
    g.num_layers = word(r, &p, "num_layers ", ' ', 1 << 16);
    g.num_heads = word(r, &p, "num_heads ", ' ', 1 << 20);
    g.channels = word(r, &p, "channels ", '\0', 1 << 20);
    return g;
}

static void get_fields(Reader *r, Checkpoint *c) {
    const uint64_t most = (uint64_t)1 << 48;
    const char *version = next(r, "zero.c checkpoint ");
    if (strcmp(version, "1") != 0 && strcmp(version, "2") != 0) r->wrong = "version 1 or 2";
    c->step = count(r, "step ", most);
    c->steps = count(r, "steps ", most);
    c->updates = count(r, "updates ", most);
    c->M = count(r, "micro_batches ", (uint64_t)1 << 32);
    c->B = count(r, "batch_size ", most);
    c->T = count(r, "seq_len ", most);
    if (count(r, "next_micro_batch ", UINT64_MAX) != c->step * c->M && r->wrong == NULL) r->wrong = "next_micro_batch";
    c->seed = count(r, "seed ", UINT64_MAX);
    char *p = next(r, "train_data ");
    c->train.content = number(r, &p, 16, ' ', UINT64_MAX, "train_data");
    c->train.files = word(r, &p, "files ", ' ', most);
    c->train.samples = word(r, &p, "samples ", '\0', most);
    c->train_files = get_files(r, "train_file ");
    p = next(r, "val_data ");
    c->val_content = number(r, &p, 16, '\0', UINT64_MAX, "val_data");
    c->val_files = get_files(r, "val_file ");
    get_options(r, c);
    get_window(r, "loss_window ", &c->loss_outliers);
    get_window(r, "norm_window ", &c->norm_outliers);
    get_nonfinite(r, &c->nonfinite, most);
    p = next(r, "state_hash ");
    c->params_hash = number(r, &p, 16, ' ', UINT64_MAX, "state_hash");
    c->optimizer_hash = number(r, &p, 16, '\0', UINT64_MAX, "state_hash");
}

static void get_array(Reader *r, const Checkpoint *c, CheckpointArray *a) {
    char expected[128];
    snprintf(expected, sizeof expected, "%s at %zu", a->name, a->offset);
    if (strcmp(next(r, "array "), expected) != 0 && r->wrong == NULL) r->wrong = a->name;
    for (size_t k = 0; k < c->num_chunks && r->wrong == NULL; k++) {
        char *p = next(r, "");
        if (strlen(p) != 16 && r->wrong == NULL) r->wrong = "hash of a chunk";
        a->hashes[k] = number(r, &p, 16, '\0', UINT64_MAX, "hash of a chunk");
    }
}

static void get_arrays(Reader *r, Checkpoint *c, size_t bytes) {
    char why[256];
    const GPT2Config g = get_model(r);
    const char *precision = next(r, "precision ");
    const int bf16 = strcmp(precision, "bf16") == 0;
    if (r->wrong == NULL && !bf16 && strcmp(precision, "fp32") != 0) r->wrong = "precision";
    const int has_master = (int)count(r, "master_weights ", bf16);
    const char *name = next(r, "optimizer ");
    const zero_optimizer *optimizer = NULL;
    for (int i = 0; i < ZERO_NUM_OPTIMIZERS && optimizer == NULL; i++) {
        optimizer = zero_optimizer_get((enum zero_optimizer_kind)i);
        if (strcmp(optimizer->name, name) != 0) optimizer = NULL;
    }
    if (r->wrong == NULL && optimizer == NULL) r->wrong = "an optimizer of this version";
    if (r->wrong == NULL && gpt2_config_check(&g, why, sizeof why) != 0) r->wrong = "a model that can be trained";
    // Every chunk has a line of 17 bytes: a wrong number must not make us allocate more than the file has.
    if (r->wrong == NULL &&
        (gpt2_num_tensors(&g) > bytes / 17 || gpt2_num_parameters(&g) / CHECKPOINT_CHUNK > bytes / 17))
        r->wrong = "more chunks";
    if (r->wrong == NULL && checkpoint_describe(c, &g, bf16 ? ZERO_BF16 : ZERO_F32, has_master, optimizer) != 0)
        r->wrong = "memory";
    for (size_t a = 0; a < c->num_arrays && r->wrong == NULL; a++) get_array(r, c, &c->arrays[a]);
    if (r->wrong == NULL && strncmp(r->at, "array moving average ", 21) == 0) {
        if (checkpoint_add_average(c) != 0) r->wrong = "memory";
        get_array(r, c, &c->arrays[c->num_arrays - 1]);
    }
    if (r->wrong == NULL && *r->at != '\0') r->wrong = "its end";
}

// Whether text is what checkpoint_manifest writes: there is one text for each content.
static int is_manifest_of(const Checkpoint *c, const char *text, size_t bytes) {
    char *again = checkpoint_manifest(c);
    const int same = again != NULL && strlen(again) == bytes && memcmp(again, text, bytes) == 0;
    free(again);
    return same;
}

int checkpoint_parse(Checkpoint *c, const char *path, const char *text, size_t bytes, char *err, size_t err_bytes) {
    enum { LAST = 22 };  // "xxh3 0123456789abcdef\n"
    memset(c, 0, sizeof *c);
    char expected[LAST + 1];
    if (bytes < LAST || memchr(text, '\0', bytes) != NULL) return FAIL("%s: is not a manifest: it is damaged", path);
    const uint64_t hash = XXH3_64bits(text, bytes - LAST);
    snprintf(expected, sizeof expected, "xxh3 %016" PRIx64 "\n", hash);
    if (memcmp(text + bytes - LAST, expected, LAST) != 0)
        return FAIL("%s: does not have the hash that its last line says: it is damaged", path);
    char *copy = strndup(text, bytes - LAST);
    Reader r = { .at = copy, .wrong = copy == NULL ? "memory" : NULL };
    if (copy != NULL) get_fields(&r, c);
    if (r.wrong == NULL) get_arrays(&r, c, bytes);
    if (r.wrong == NULL && !is_manifest_of(c, text, bytes)) r.wrong = "numbers in the form in which they are written";
    if (r.wrong != NULL) snprintf(err, err_bytes, "%s: is not as this version writes it: expected: %s", path, r.wrong);
    free(copy);
    return r.wrong == NULL ? 0 : -1;
}

int checkpoint_read(Checkpoint *c, const char *dir, size_t step, char *err, size_t err_bytes) {
    char path[CHECKPOINT_PATH];
    struct stat st;
    memset(c, 0, sizeof *c);
    checkpoint_path(path, dir, CHECKPOINT_MANIFEST, step);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd == -1 && errno == ENOENT) return FAIL("%s: is missing: this checkpoint was not finished", path);
    if (fd == -1) return FAIL("%s: cannot be opened: %s", path, strerror(errno));
    int status = fstat(fd, &st);
    if (status == 0 && (!S_ISREG(st.st_mode) || (size_t)st.st_size > MAX_MANIFEST)) {
        close(fd);
        return FAIL("%s: is not a manifest: it is damaged", path);
    }
    char *text = status == 0 ? malloc((size_t)st.st_size + 1) : NULL;
    if (text != NULL) status = llmc_read_at(fd, text, (size_t)st.st_size, 0);
    if (text == NULL || status != 0)
        status = FAIL("%s: cannot be read: %s", path, strerror(errno));
    else
        status = checkpoint_parse(c, path, text, (size_t)st.st_size, err, err_bytes);
    close(fd);
    free(text);
    if (status == 0 && c->step != step) return FAIL("%s: is of step %zu: it was renamed", path, c->step);
    return status;
}

// ---------------------------------------------------------------------------------------------------------------------
// Reading and verifying arrays.

int checkpoint_read_values(const Checkpoint *c, size_t array, int fd, size_t begin, size_t n, float *out) {
    const int bf16 = array == 0 && c->dtype == ZERO_BF16;
    // bf16 is read into the second half of out, then widened from the front.
    char *into = (char *)out + (bf16 ? 2 * n : 0);
    const size_t size = bf16 ? 2 : 4;
    if (llmc_read_at(fd, into, n * size, c->arrays[array].offset + begin * size) != 0) return -1;
    for (size_t i = 0; bf16 && i < n; i++) {
        uint16_t half;
        memcpy(&half, into + 2 * i, sizeof half);
        const uint32_t bits = (uint32_t)half << 16;
        memcpy(out + i, &bits, sizeof bits);
    }
    return 0;
}

// Opens the model or the optimizer file and checks its length and header.
static int open_file(const Checkpoint *c, const char *path, int model, char *err, size_t err_bytes) {
    const size_t bytes = model ? LLMC_HEADER_BYTES + gpt2_num_parameters(&c->config) * zero_dtype_bytes(c->dtype)
                               : checkpoint_optimizer_bytes(c);
    int32_t header[LLMC_HEADER_WORDS], expected[LLMC_HEADER_WORDS];
    struct stat st;
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd == -1) return FAIL("%s: cannot be opened: %s", path, strerror(errno));
    int status = 0;
    if (fstat(fd, &st) != 0 || (size_t)st.st_size != bytes)
        status = FAIL("%s: has %lld bytes, not %zu: it is truncated or damaged", path, (long long)st.st_size, bytes);
    modelfile_header(&c->config, c->dtype == ZERO_BF16, expected);
    if (status == 0 && model &&
        (llmc_read_header(fd, header) != LLMC_HEADER_BYTES || memcmp(header, expected, sizeof header) != 0))
        status = FAIL("%s: its header is not that of the manifest: it is damaged", path);
    if (status == 0) return fd;
    close(fd);
    return -1;
}

static int verify_chunk(const Checkpoint *c, size_t array, size_t tensor, size_t chunk, int fd, const char *path,
                        float *buffer, char *err, size_t err_bytes) {
    const zero_tensor *t = &c->tensors[tensor];
    const size_t begin = chunk * CHECKPOINT_CHUNK, left = t->numel - begin,
                 numel = left < CHECKPOINT_CHUNK ? left : CHECKPOINT_CHUNK;
    uint64_t hash = 0;
    for (size_t at = 0; at < numel; at += READ_ELEMENTS) {
        const size_t n = numel - at < READ_ELEMENTS ? numel - at : READ_ELEMENTS, logical = t->logical + begin + at;
        if (checkpoint_read_values(c, array, fd, logical, n, buffer) != 0)
            return FAIL("%s: cannot be read: %s", path, strerror(errno));
        hash += zero_state_hash(c->arrays[array].state, logical, n, buffer);
    }
    if (hash == c->arrays[array].hashes[c->first_chunk[tensor] + chunk]) return 0;
    return FAIL("%s: is damaged: %s of tensor %s (%zu in the list), elements %zu to %zu, do not have the hash of the "
                "manifest",
                path, c->arrays[array].name, t->name, tensor, begin, begin + numel - 1);
}

int checkpoint_verify(const Checkpoint *c, const char *dir, size_t part, size_t parts, char *err, size_t err_bytes) {
    char path[CHECKPOINT_PATH];
    float *buffer = malloc(READ_ELEMENTS * sizeof *buffer);
    int fd = -1, status = buffer != NULL ? 0 : FAIL("-o %s: out of host memory", dir);
    for (size_t a = 0; a < c->num_arrays && status == 0; a++) {
        if (a < 2) {  // the parameters' file, then that of all others
            if (fd != -1) close(fd);
            checkpoint_path(path, dir, a == 0 ? CHECKPOINT_MODEL : CHECKPOINT_OPTIMIZER, c->step);
            fd = open_file(c, path, a == 0, err, err_bytes);
            if (fd == -1) status = -1;
        }
        for (size_t t = 0; t < c->num_tensors && status == 0; t++)
            for (size_t k = c->first_chunk[t]; k < c->first_chunk[t + 1] && status == 0; k++)
                if ((a * c->num_chunks + k) % parts == part)
                    status = verify_chunk(c, a, t, k - c->first_chunk[t], fd, path, buffer, err, err_bytes);
    }
    if (fd != -1) close(fd);
    free(buffer);
    return status;
}
