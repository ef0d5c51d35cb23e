// Checkpoints of llm.c (trainer/checkpoint_llmc.h): every element of every array is found, whatever ranks and stage
// wrote it, and what does not belong together is refused by name.
//
//     test_llmc_state
//     test_llmc_state --write DIR STEP OUT RANKS STAGE MASTER SHUFFLED
//
// The second form writes, from our checkpoint in DIR, what llm.c would have written on so many ranks, to OUT. The
// writer knows llm.c's files, and nothing of the code that reads them.
#include <fcntl.h>
#include <math.h>

#include "test/unit/data_files.h"
#include "trainer/checkpoint_llmc.h"

enum { MODEL, M, V, MASTER };
enum { KINDS = 16, FIELD_MASTER = 4, FIELD_SHUFFLED = 5, FIELD_STEP = 10 };

typedef struct Set {
    size_t V, maxT, L, NH, C, Vp;
    int bf16, ranks, stage, master, shuffled, step;
    float (*value)(const struct Set *, int array, size_t element);
    const char *in;  // --write: the directory of our checkpoint
} Set;

// Elements of one layer, and layers, of each kind of tensor.
static size_t kind_of_tensor(const Set *s, int kind, size_t *layers) {
    const size_t C = s->C, sizes[KINDS] = { s->Vp * C, s->maxT * C, C,         C,     3 * C * C, 3 * C, C * C, C,
                                            C,         C,           4 * C * C, 4 * C, C * 4 * C, C,     C,     C };
    *layers = kind < 2 || kind > 13 ? 1 : s->L;
    return sizes[kind];
}

static size_t num_parameters(const Set *s) {
    size_t n = 0, layers;
    for (int k = 0; k < KINDS; k++) {
        const size_t slab = kind_of_tensor(s, k, &layers);
        n += slab * layers;
    }
    return n;
}

static void put(FILE *f, const void *bytes, size_t n) { REQUIRE(fwrite(bytes, 1, n, f) == n); }

static FILE *create(const char *in, const char *format, int step, int rank) {
    char name[512], full[1024];
    snprintf(name, sizeof name, format, step, rank);
    snprintf(full, sizeof full, "%s/%s", in, name);
    FILE *f = fopen(full, "wb");
    REQUIRE(f != NULL, "%s", full);
    return f;
}

static void put_value(FILE *f, const Set *s, int array, size_t element, int bf16) {
    const float x = s->value(s, array, element);
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    const uint16_t half = (uint16_t)(bits >> 16);
    if (bf16)
        put(f, &half, sizeof half);
    else
        put(f, &x, sizeof x);
}

static void write_model(const char *out, const Set *s) {
    int32_t header[256] = { 20240326,      s->bf16 ? 5 : 3, (int32_t)s->maxT, (int32_t)s->V,
                            (int32_t)s->L, (int32_t)s->NH,  (int32_t)s->C,    (int32_t)s->Vp };
    FILE *f = create(out, "model_%08d.bin", s->step, 0);
    put(f, header, sizeof header);
    for (size_t i = 0; i < num_parameters(s); i++) put_value(f, s, MODEL, i, s->bf16);
    REQUIRE(fclose(f) == 0);
}

static void write_shard(FILE *f, const Set *s, int array, size_t rank) {
    const size_t parts = s->stage == 0 ? 1 : (size_t)s->ranks;
    size_t base = 0, layers;
    for (int k = 0; k < KINDS; k++) {
        const size_t slab = kind_of_tensor(s, k, &layers), part = slab / parts;
        for (size_t l = 0; l < layers; l++)
            for (size_t i = 0; i < part; i++)
                put_value(f, s, array, base + l * slab + (s->stage == 0 ? 0 : rank) * part + i, 0);
        base += layers * slab;
    }
}

static void write_state(const char *out, const Set *s, int rank) {
    int32_t header[256] = { 20240527, 1, s->ranks, rank, s->master, s->shuffled, [FIELD_STEP] = s->step };
    FILE *f = create(out, "state_%08d_%05d.bin", s->step, rank);
    header[20] = 4711;  // states of generators
    header[22] = 815;
    header[32] = 3;  // position
    put(f, header, sizeof header);
    write_shard(f, s, M, (size_t)rank);
    write_shard(f, s, V, (size_t)rank);
    if (s->master) write_shard(f, s, MASTER, (size_t)rank);
    if (s->shuffled) {
        static const unsigned char generator[2520];
        const uint64_t shards = 2, samples = 5;
        const int32_t order[7] = { 1, 0, 3, 2, 4, 0, 1 };
        put(f, &shards, sizeof shards);
        put(f, order, shards * sizeof *order);
        put(f, &samples, sizeof samples);
        put(f, order + 2, samples * sizeof *order);
        put(f, generator, sizeof generator);
    }
    REQUIRE(fclose(f) == 0);
}

static void write_set(const char *out, const Set *s) {
    write_model(out, s);
    for (int r = 0; r < s->ranks; r++) write_state(out, s, r);
    REQUIRE(fclose(create(out, "DONE_%08d", s->step, 0)) == 0);
}

// ---- cases ----------------------------------------------------------------------------------------------------------

// Different for each element and array; V is not negative; the model file has the master weights, rounded down.
static float made_up(const Set *s, int array, size_t i) {
    const float x = 1 + (float)(i % 8191) / 8192, sign = i % 3 ? 1 : -1;
    (void)s;
    return array == V ? x + 4 : array == M ? (x + 2) * sign : x * sign;
}

static Set small_set(int bf16, int ranks, int stage, int master, int shuffled) {
    return (Set){ 10, 8, 3, 2, 16, 16, bf16, ranks, stage, master, shuffled, 7, made_up, NULL };
}

static void every_element_is_found(const Set *s) {
    char err[5120] = "";
    LlmcSet l;
    write_set(dir, s);
    REQUIRE(llmc_set_exists(dir, 7) && llmc_set_open(&l, dir, 7, err, sizeof err) == 0, "%s", err);
    CHECK(llmc_set_verify(&l, 0, 2, err, sizeof err) == 0, "%s", err);
    CHECK(llmc_set_verify(&l, 1, 2, err, sizeof err) == 0, "%s", err);
    CHECK_EQ(l.stage, s->ranks == 1 ? 0 : s->stage);
    CHECK_EQ(l.ranks, s->ranks);
    CHECK_EQ(l.c.updates, 7);
    CHECK_EQ(l.c.num_arrays, s->master && s->bf16 ? 4 : 3);
    for (size_t a = 0; a < l.c.num_arrays; a++) {
        const enum zero_state state = l.c.arrays[a].state;
        const int array = state == ZERO_STATE_PARAMS ? MODEL : state == ZERO_STATE_MASTER ? MASTER : state - 1;
        size_t wrong = 0, seen = 0;
        for (size_t t = 0; t < l.c.num_tensors; t++) {
            const size_t n = l.c.tensors[t].numel, begin = n > 5 ? 5 : 0;
            float *values = malloc(n * sizeof *values);
            // in two pieces, of which the second crosses the shards of all ranks
            CHECK(llmc_set_read(&l, a, t, 0, begin, values, err, sizeof err) == 0, "%s", err);
            CHECK(llmc_set_read(&l, a, t, begin, n - begin, values + begin, err, sizeof err) == 0, "%s", err);
            for (size_t i = 0; i < n; i++, seen++) {
                float want = made_up(s, array, l.c.tensors[t].logical + i);
                uint32_t bits;
                memcpy(&bits, &want, sizeof bits);
                if (array == MODEL && s->bf16) bits &= 0xffff0000;
                wrong += memcmp(&bits, values + i, sizeof bits) != 0;
            }
            free(values);
        }
        CHECK_EQ(wrong, 0);
        CHECK_EQ(seen, num_parameters(s));
    }
    llmc_set_close(&l);
}

// A set with one fault is refused, and the message has the word.
static void must_refuse_set(const char *word) {
    char err[5120] = "";
    LlmcSet l;
    const int status = llmc_set_open(&l, dir, 7, err, sizeof err) != 0 ? -1
                                                                       : llmc_set_verify(&l, 0, 1, err, sizeof err);
    CHECK_EQ(status, -1);
    CHECK(strstr(err, word) != NULL && strstr(err, dir) != NULL, "no \"%s\" in: %s", word, err);
    llmc_set_close(&l);
}

static void change_word(const char *name, size_t at, int32_t word) {
    const int fd = open(path(name), O_WRONLY);
    CHECK_EQ(pwrite(fd, &word, sizeof word, (off_t)at), sizeof word);
    close(fd);
}

static void test_parts_that_do_not_belong_together_are_continued(void) {
    static const struct {
        const char *file;
        size_t at;
        int32_t word;
        const char *message;
    } changes[] = {
        { "state_00000007_00000.bin", 0, 20240326, "00000.bin: is not a state file" },
        { "state_00000007_00001.bin", 4, 2, "00001.bin: is not a state file" },
        { "state_00000007_00001.bin", 8, 4, "00001.bin: is of 4 ranks" },
        { "state_00000007_00000.bin", 8, 0, "00000.bin: its header has 0 ranks" },
        { "state_00000007_00000.bin", 8, 1 << 30, "00000.bin: its header has" },
        { "state_00000007_00001.bin", 12, 0, "00001.bin: is that of rank 0" },
        { "state_00000007_00001.bin", 4 * FIELD_MASTER, 0, "00001.bin: is of 2 ranks, without master" },
        { "state_00000007_00000.bin", 4 * FIELD_MASTER, 0, "00000.bin: has" },
        { "state_00000007_00000.bin", 4 * FIELD_SHUFFLED, 0, "00000.bin: has" },
        { "state_00000007_00001.bin", 4 * FIELD_STEP, 6, "00001.bin: is that of rank 1, step 6" },
        { "state_00000007_00000.bin", 1024, 0x7fc00000, "AdamW m of tensor wte has nan" },
        { "model_00000007.bin", 1024, 0x3f803f90, "of another step than the state files" },
        { "model_00000007.bin", 8, 1 << 20, "model_00000007.bin: has" },
    };
    const Set s = small_set(1, 2, 1, 1, 1);
    for (size_t i = 0; i < LEN(changes); i++) {
        write_set(dir, &s);
        change_word(changes[i].file, changes[i].at, changes[i].word);
        must_refuse_set(changes[i].message);
    }
    static const char *const files[] = { "state_00000007_00001.bin", "model_00000007.bin", "DONE_00000007" };
    for (size_t i = 0; i < LEN(files); i++) {
        write_set(dir, &s);
        CHECK_EQ(truncate(path(files[i]), 1023), 0);
        if (i < 2) must_refuse_set(files[i]);
        CHECK_EQ(unlink(path(files[i])), 0);
        must_refuse_set(files[i]);
    }
    const Set other = small_set(1, 2, 0, 1, 1);  // rank 1 of stage 0, rank 0 of stage 1
    write_set(dir, &s);
    write_state(dir, &other, 1);
    must_refuse_set("00001.bin: has");
    Set sixteen = small_set(1, 16, 1, 1, 0);  // they divide the parameters, but not a layernorm's
    sixteen.L = 2, sixteen.NH = 3, sixteen.C = 24;
    write_set(dir, &sixteen);
    CHECK_EQ(num_parameters(&sixteen) % 16, 0);
    CHECK_EQ(truncate(path("state_00000007_00000.bin"), (off_t)(1024 + 12 * num_parameters(&sixteen) / 16)), 0);
    must_refuse_set("llm.c cannot have written that");
}

// ---- --write --------------------------------------------------------------------------------------------------------

static float of_checkpoint(const Set *s, int array, size_t i) {
    static FILE *model, *optimizer;
    char name[1024];
    uint32_t bits = 0;
    if (model == NULL) {
        snprintf(name, sizeof name, "%s/model_%08d.bin", s->in, s->step);
        model = fopen(name, "rb");
        snprintf(name, sizeof name, "%s/optimizer_%08d.bin", s->in, s->step);
        optimizer = fopen(name, "rb");
        REQUIRE(model != NULL && optimizer != NULL, "%s", name);
    }
    const size_t P = num_parameters(s), first = s->bf16 && s->master ? P : 0;
    const int from_model = array == MODEL || (array == MASTER && !s->bf16);
    FILE *f = from_model ? model : optimizer;
    const size_t bytes = from_model && s->bf16 ? 2 : 4,
                 at = from_model ? 1024 + bytes * i : 4 * (i + (array == MASTER ? 0 : first + (array == V ? P : 0)));
    REQUIRE(fseek(f, (long)at, SEEK_SET) == 0 && fread((char *)&bits + 4 - bytes, bytes, 1, f) == 1);
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static int write_from_ours(char **argv) {
    int32_t h[8];
    char name[1024];
    snprintf(name, sizeof name, "%s/model_%08d.bin", argv[0], atoi(argv[1]));
    FILE *f = fopen(name, "rb");
    REQUIRE(f != NULL && fread(h, sizeof h, 1, f) == 1, "%s", name);
    fclose(f);
    const Set s = { (size_t)h[3],  (size_t)h[2],  (size_t)h[4],  (size_t)h[5],  (size_t)h[6],  (size_t)h[7],  h[1] == 5,
                    atoi(argv[3]), atoi(argv[4]), atoi(argv[5]), atoi(argv[6]), atoi(argv[1]), of_checkpoint, argv[0] };
    write_set(argv[2], &s);
    return 0;
}

int main(int argc, char **argv) {
    test_start(&argc, argv);
    if (argc == 9 && strcmp(argv[1], "--write") == 0) return write_from_ours(argv + 2);
    make_dir();
    for (int ranks = 1; ranks <= 4; ranks *= 2)
        for (int stage = 0; stage <= 1; stage++)
            for (int bf16 = 0; bf16 <= 1; bf16++)
                for (int master = 0; master <= 1; master++)
                    CASE("an element of a shard is misplaced: %d ranks, stage %d, %s, %s master weights", ranks, stage,
                         bf16 ? "bf16" : "fp32", master ? "with" : "no") {
                        const Set s = small_set(bf16, ranks, stage, master, (ranks + stage + bf16) % 2);
                        every_element_is_found(&s);
                    }
    RUN(test_parts_that_do_not_belong_together_are_continued);
    remove_dir();
    return test_finish();
}
