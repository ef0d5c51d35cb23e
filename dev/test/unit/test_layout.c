// Layout and mesh: is every element owned once, whatever the sizes and the number of ranks?
//
// Faults that these tests are named after: tensors smaller than, equal to or one more than a block, empty tensors and
// ranks that own nothing; offsets that move when the number of ranks changes; 32-bit sizes; sums that wrap around.
//
// Nothing here allocates model memory: a layout is arithmetic, so 175 billion parameters on 65536 ranks are checked
// exactly. The check walks the ranks of a unit in order and asks for the segments of each. A segment has to begin where
// the one before it ended, in the same tensor or at the start of the next, and has to lie where the tensor's offset
// says. If all tensors are used up at the end, every element was met, once. Transformer blocks are alike, so of these
// the first and the last are walked. What is expected (offsets, padding) is computed here a second time, by the rules
// in layout.h.
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "test/harness/harness.h"
#include "zero/layout.h"
#include "zero/comm/mesh.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static const size_t RANKS[] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 64, 1000, 65536 };

static size_t round_up(size_t n, size_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// --------------------------------------------------------------------------------------------------------------------
// The check of one unit: all its ranks, or, when the next unit is alike, none of them.

static void check_unit_is_owned_once(const zero_layout *l, size_t unit) {
    const size_t shard = zero_layout_shard_numel(l, unit), last = l->unit_first[unit + 1];
    size_t tensor = l->unit_first[unit], element = 0;  // what the next segment has to begin with
    for (size_t r = 0; r < l->ranks; r++) {
        const size_t begin = r * shard, end = begin + shard;
        size_t cursor = 0, at = begin;
        zero_segment s;
        while (zero_layout_next_segment(l, unit, begin, end, &cursor, &s)) {
            while (tensor < last && element == l->tensors[tensor].numel) {
                tensor++;
                element = 0;
            }
            CHECK(tensor < last);
            CHECK_EQ(s.tensor, tensor);
            CHECK_EQ(s.tensor_begin, element);
            CHECK(s.count > 0 && s.count <= l->tensors[tensor].numel - element);
            CHECK_EQ(s.unit_begin, l->tensor_offset[tensor] + element);
            CHECK(s.unit_begin >= at && s.unit_begin + s.count <= end);
            at = s.unit_begin + s.count;
            element += s.count;
        }
    }
    while (tensor < last && element == l->tensors[tensor].numel) {
        tensor++;
        element = 0;
    }
    CHECK_EQ(tensor, last);
}

static void check_layout(const zero_tensor *tensors, size_t num_tensors, size_t ranks, int alike_from_1) {
    zero_layout l;
    const char *why = "";
    REQUIRE(zero_layout_create(&l, tensors, num_tensors, ranks, &why) == 0, "%zu ranks: %s", ranks, why);
    CHECK_EQ(l.ranks, ranks);
    CHECK_EQ(l.num_tensors, num_tensors);
    CHECK_EQ(l.num_units, num_tensors ? tensors[num_tensors - 1].unit + 1 : 0);

    size_t numel = 0, unit_numel = 0, physical = 0;
    for (size_t t = 0; t < num_tensors; t++) {
        const size_t unit = tensors[t].unit;
        if (t == 0 || unit != tensors[t - 1].unit) {
            CHECK_EQ(l.unit_first[unit], t);
            CHECK_EQ(l.unit_offset[unit], physical);
            unit_numel = 0;
        }
        CHECK_EQ(l.tensor_offset[t], unit_numel);  // does not depend on ranks
        CHECK_EQ(l.tensors[t].numel, tensors[t].numel);
        unit_numel += round_up(tensors[t].numel, ZERO_ALIGN);
        numel += tensors[t].numel;
        if (t + 1 == num_tensors || tensors[t + 1].unit != unit) {
            const size_t padded = round_up(unit_numel, ZERO_ALIGN * ranks);
            CHECK_EQ(zero_layout_unit_numel(&l, unit), padded);
            CHECK_EQ(zero_layout_shard_numel(&l, unit), padded / ranks);
            CHECK_EQ(zero_layout_shard_numel(&l, unit) % ZERO_ALIGN, 0);
            CHECK_EQ(zero_layout_shard_offset(&l, unit), physical / ranks);
            physical += padded;
        }
    }
    CHECK_EQ(l.unit_first[l.num_units], num_tensors);
    CHECK_EQ(l.unit_offset[l.num_units], physical);
    CHECK_EQ(l.numel, numel);
    CHECK_EQ(l.numel_padded, physical);
    for (size_t u = 0; u < l.num_units; u++) {
        if (!alike_from_1 || u <= 1 || u + 1 == l.num_units) check_unit_is_owned_once(&l, u);
    }
    zero_layout_destroy(&l);
}

// --------------------------------------------------------------------------------------------------------------------
// Edge sizes.

static void edge_sizes_are_owned_once(void) {
    static const size_t sizes[] = { 0, 1,  63, 64,  65,   127,    128,       129,           2,
                                    3, 61, 67, 997, 7919, 104729, 64 * 1000, 64 * 1000 + 1, 4096 };
    zero_tensor tensors[3 * COUNT(sizes)];
    for (size_t n = 0; n < COUNT(RANKS); n++) {
        for (size_t a = 0; a < COUNT(sizes); a++) {  // one tensor alone; then with neighbours in two
                                                     // units
            tensors[0] = (zero_tensor){ "a", sizes[a], 0, 0, 0 };
            check_layout(tensors, 1, RANKS[n], 0);
            if (RANKS[n] > 1000) continue;
            for (size_t b = 0; b < COUNT(sizes); b++) {
                tensors[1] = (zero_tensor){ "b", sizes[b], 0, sizes[a], 1 };
                tensors[2] = (zero_tensor){ "c", sizes[a], 1, sizes[a] + sizes[b], 1 };
                check_layout(tensors, 3, RANKS[n], 0);
            }
        }
        size_t logical = 0;  // all of them, cut into units of 1, 2, 3 ...
                             // tensors
        for (size_t t = 0, unit = 0, left = 1; t < COUNT(tensors); t++) {
            tensors[t] = (zero_tensor){ "t", sizes[t * 7 % COUNT(sizes)], unit, logical, (int)(t % 2) };
            logical += tensors[t].numel;
            if (--left == 0) {
                unit++;
                left = unit + 1;
            }
        }
        check_layout(tensors, COUNT(tensors), RANKS[n], 0);
    }
}

static void a_range_gives_only_its_own_segments(void) {
    // at 0, 128, 128
    static const zero_tensor tensors[] = { { "a", 65, 0, 0, 0 }, { "empty", 0, 0, 65, 0 }, { "b", 100, 0, 65, 1 } };
    zero_layout l;
    const char *why;
    CHECK_EQ(zero_layout_create(&l, tensors, 3, 1, &why), 0);
    zero_segment s;
    size_t cursor = 0;
    CHECK(zero_layout_next_segment(&l, 0, 64, 130, &cursor, &s));
    CHECK_EQ(s.tensor, 0);
    CHECK_EQ(s.tensor_begin, 64);
    CHECK_EQ(s.count, 1);
    CHECK_EQ(s.unit_begin, 64);
    CHECK(zero_layout_next_segment(&l, 0, 64, 130, &cursor, &s));
    CHECK_EQ(s.tensor, 2);
    CHECK_EQ(s.tensor_begin, 0);
    CHECK_EQ(s.count, 2);
    CHECK_EQ(s.unit_begin, 128);
    CHECK(!zero_layout_next_segment(&l, 0, 64, 130, &cursor, &s));
    cursor = 0;
    CHECK(!zero_layout_next_segment(&l, 0, 65, 128, &cursor, &s));  // padding between tensors
    cursor = 0;
    CHECK(!zero_layout_next_segment(&l, 0, 130, 130, &cursor, &s));  // an empty range
    zero_layout_destroy(&l);
}

// zero_layout_owner against the walk over segments, for every element.
static void the_owner_of_an_element_is_another_rank_or_place(void) {
    static const zero_tensor tensors[] = { { "a", 65, 0, 0, 0 },   { "empty", 0, 0, 65, 0 }, { "b", 1000, 0, 65, 1 },
                                           { "c", 1, 1, 1065, 0 }, { "d", 64, 2, 1066, 0 },  { "e", 7919, 2, 1130, 1 },
                                           { "f", 63, 2, 9049, 0 } };
    for (size_t n = 0; n < COUNT(RANKS); n++) {
        zero_layout l;
        const char *why;
        size_t elements = 0;
        CHECK_EQ(zero_layout_create(&l, tensors, COUNT(tensors), RANKS[n], &why), 0);
        for (size_t u = 0; u < l.num_units; u++) {
            const size_t shard = zero_layout_shard_numel(&l, u);
            for (size_t r = 0; r < l.ranks; r++) {
                size_t cursor = 0;
                zero_segment s;
                while (zero_layout_next_segment(&l, u, r * shard, (r + 1) * shard, &cursor, &s)) {
                    for (size_t i = 0; i < s.count; i++, elements++) {
                        const zero_owner o = zero_layout_owner(&l, s.tensor, s.tensor_begin + i);
                        CHECK_EQ(o.rank, r);
                        CHECK_EQ(o.offset, l.unit_offset[u] / l.ranks + s.unit_begin + i - r * shard);
                    }
                }
            }
        }
        CHECK_EQ(elements, l.numel);
        zero_layout_destroy(&l);
    }
}

// --------------------------------------------------------------------------------------------------------------------
// The models that llm.c knows, and beyond.

static const struct model {
    const char *name;
    size_t channels, layers, max_t;
} MODELS[] = {
    { "gpt2:d6", 384, 6, 1024 },        { "gpt2:d12", 768, 12, 1024 },    { "gpt2:d24", 1024, 24, 1024 },
    { "gpt2:d36", 1280, 36, 1024 },     { "gpt2:d48", 1600, 48, 1024 },   { "gpt2:d60", 1920, 60, 1024 },
    { "gpt2:d72", 2880, 72, 1024 },     { "gpt2:d84", 3456, 84, 1024 },   { "gpt3:c384", 384, 6, 2048 },
    { "gpt3:c768", 768, 12, 2048 },     { "gpt3:c1024", 1024, 24, 2048 }, { "gpt3:c1536", 1536, 24, 2048 },
    { "gpt3:c2048", 2048, 24, 2048 },   { "gpt3:c2560", 2560, 32, 2048 }, { "gpt3:c4096", 4096, 32, 2048 },
    { "gpt3:c12288", 12288, 96, 2048 },
};

// In registration order: the embeddings with the final layernorm, then one unit per block. Returns the number of
// tensors.
static size_t model_tensors(const struct model *m, zero_tensor *out) {
    const size_t C = m->channels;
    const size_t embeddings[] = { 50304 * C, m->max_t * C, C, C };
    const size_t block[] = { C, C, 3 * C * C, 3 * C, C * C, C, C, C, 4 * C * C, 4 * C, 4 * C * C, C };
    size_t n = 0, logical = 0;
    for (size_t t = 0; t < COUNT(embeddings); t++) out[n++] = (zero_tensor){ "embeddings", embeddings[t], 0, 0, 1 };
    for (size_t l = 0; l < m->layers; l++) {
        for (size_t t = 0; t < COUNT(block); t++) out[n++] = (zero_tensor){ "block", block[t], 1 + l, 0, 0 };
    }
    for (size_t t = 0; t < n; t++) {
        out[t].logical = logical;
        logical += out[t].numel;
    }
    return n;
}

static void models_are_owned_once_on_up_to_65536_ranks(void) {
    static zero_tensor tensors[4 + 12 * 96];
    printf("    padding, in %% of the parameters, at N ranks\n    %-12s %9s", "model", "million");
    for (size_t n = 0; n < COUNT(RANKS); n++) printf(" %8zu", RANKS[n]);
    printf("\n");
    for (size_t i = 0; i < COUNT(MODELS); i++) {
        const struct model *m = &MODELS[i];
        const size_t num = model_tensors(m, tensors);
        for (size_t n = 0; n < COUNT(RANKS); n++) {
            check_layout(tensors, num, RANKS[n], 1);
            zero_layout l;
            const char *why;
            CHECK_EQ(zero_layout_create(&l, tensors, num, RANKS[n], &why), 0);
            const size_t C = m->channels;
            CHECK_EQ(l.numel, 50304 * C + m->max_t * C + m->layers * (12 * C * C + 13 * C) + 2 * C);
            if (n == 0) printf("    %-12s %9.1f", m->name, (double)l.numel * 1e-6);
            printf(" %8.4f", 100.0 * (double)(l.numel_padded - l.numel) / (double)l.numel);
            // no rank carries more than one rounding per unit, so the waste is bounded for every N
            CHECK(l.numel_padded - l.numel <= 64 * (RANKS[n] * l.num_units + l.num_tensors));
            zero_layout_destroy(&l);
        }
        printf("\n");
    }
}

static void sizes_beyond_32_bits_are_exact(void) {
    const size_t two31 = (size_t)1 << 31, two32 = (size_t)1 << 32, two40 = (size_t)1 << 40;
    const size_t sizes[] = { two31 - 1, two31, two31 + 1, two32 - 1, two32, two32 + 1, 3 * two32 + 7, two40 + 12345 };
    for (size_t n = 0; n < COUNT(RANKS); n++) {
        zero_tensor tensors[COUNT(sizes)];
        size_t logical = 0;
        for (size_t t = 0; t < COUNT(sizes); t++) {
            tensors[t] = (zero_tensor){ "big", sizes[t], t / 3, logical, 0 };
            logical += sizes[t];
        }
        check_layout(tensors, COUNT(sizes), RANKS[n], 0);
    }
}

// Units of a few kinds in a random order: what is computed by runs of equal units is what all units have; the layout
// that is divided again is the one that is made for that number of ranks.
static void runs_and_other_ranks_give_the_same_layout(void) {
    static const size_t kinds[][2] = { { 64, 1 }, { 64, 1 }, { 64, 2 }, { 0, 0 }, { 1000, 5000 } };
    for (unsigned seed = 0; seed < 200; seed++) {
        zero_tensor tensors[40];
        zero_layout l, want;
        const char *why;
        unsigned random = seed;
        for (size_t u = 0, logical = 0; u < 20; u++) {
            const size_t kind = (size_t)rand_r(&random) % (1 + seed % COUNT(kinds));
            for (size_t k = 0; k < 2; logical += kinds[kind][k++])
                tensors[2 * u + k] = (zero_tensor){ "t", kinds[kind][k], u, logical, (int)k, kind == 1, kind == 2 };
        }
        CHECK_EQ(zero_layout_create(&l, tensors, COUNT(tensors), 7, &why), 0);
        CHECK_EQ(l.run_first[0], 0);
        CHECK_EQ(l.run_first[l.num_runs], 20);
        for (size_t u = 1, r = 0; u < 20; u++) {
            const zero_tensor *a = &tensors[2 * u - 2], *b = &tensors[2 * u];
            const int alike = a[0].numel == b[0].numel && a[1].numel == b[1].numel && a->tied == b->tied &&
                              a->frozen == b->frozen;
            CHECK_EQ(l.run_first[r + 1] == u, !alike);
            r += !alike;
        }
        for (size_t n = 0; n < COUNT(RANKS); n++) {
            CHECK_EQ(zero_layout_set_ranks(&l, SIZE_MAX / 192, &why), -1);  // changes nothing
            CHECK_EQ(zero_layout_set_ranks(&l, RANKS[n], &why), 0);
            CHECK_EQ(zero_layout_create(&want, tensors, COUNT(tensors), RANKS[n], &why), 0);
            CHECK_EQ(l.ranks, RANKS[n]);
            CHECK_EQ(l.numel_padded, want.numel_padded);
            CHECK(!memcmp(l.unit_offset, want.unit_offset, 21 * sizeof *l.unit_offset));
            CHECK(!memcmp(l.trained_offset, want.trained_offset, 21 * sizeof *l.trained_offset));
            size_t largest = 0, chunks = 0, buffer = 0;
            for (size_t u = 0; u < 20; u++) {
                const size_t numel = zero_layout_unit_numel(&l, u), chunk = zero_layout_replica_chunk(&l, u, 3);
                CHECK_EQ(numel, round_up(zero_layout_unit_content(&l, u), 64 * RANKS[n]));
                CHECK_EQ(zero_layout_replica_offset(&l, u, 3), chunks);
                largest = numel > largest ? numel : largest;
                if (tensors[2 * u].frozen) continue;
                chunks += chunk;
                buffer = 3 * chunk > buffer ? 3 * chunk : buffer;
            }
            CHECK_EQ(zero_layout_replica_offset(&l, 20, 3), chunks);
            CHECK_EQ(zero_layout_replica_buffer(&l, 3), buffer);
            CHECK_EQ(zero_layout_largest_unit(&l), largest);
            zero_layout_destroy(&want);
        }
        zero_layout_destroy(&l);
    }
}

// --------------------------------------------------------------------------------------------------------------------
// Refusals.

static void check_refused(const zero_tensor *tensors, size_t num_tensors, size_t ranks) {
    zero_layout l;
    const char *why = NULL;
    CHECK_EQ(zero_layout_create(&l, tensors, num_tensors, ranks, &why), -1);
    REQUIRE(why != NULL);
    CHECK(strlen(why) > 10);
}

static void impossible_descriptions_are_refused_with_a_message(void) {
    const zero_tensor one[] = { { "a", 10, 0, 0, 0 } };
    check_refused(one, 1, 0);
    check_refused(one, 0, 1);
    const zero_tensor late[] = { { "a", 10, 1, 0, 0 } };
    check_refused(late, 1, 2);
    const zero_tensor gap[] = { { "a", 10, 0, 0, 0 }, { "b", 10, 2, 10, 0 } };
    check_refused(gap, 2, 2);
    const zero_tensor back[] = { { "a", 10, 0, 0, 0 }, { "b", 10, 1, 10, 0 }, { "c", 10, 0, 20, 0 } };
    check_refused(back, 3, 2);
}

static void sums_that_wrap_around_are_refused(void) {
    const zero_tensor huge[] = { { "a", SIZE_MAX, 0, 0, 0 } };  // rounding up wraps
    check_refused(huge, 1, 1);
    const zero_tensor sum[] = { { "a", SIZE_MAX / 2, 0, 0, 0 }, { "b", SIZE_MAX / 2 + 2, 0, 0, 0 } };
    check_refused(sum, 2, 1);
    const zero_tensor units[] = { { "a", SIZE_MAX / 2, 0, 0, 0 }, { "b", SIZE_MAX / 2 + 2, 1, 0, 0 } };
    check_refused(units, 2, 1);
    const zero_tensor one[] = { { "a", 1, 0, 0, 0 } };  // 64 * ranks wraps
    check_refused(one, 1, SIZE_MAX / 2);
    check_refused(one, 1, SIZE_MAX / 64 + 1);
    // a fits by a hair: b cannot
    const zero_tensor edge[] = { { "a", SIZE_MAX / 2 - 64, 0, 0, 0 }, { "b", SIZE_MAX / 2, 0, 0, 0 } };
    check_refused(edge, 2, 1);
    const zero_tensor padding[] = {
        { "a", 1, 0, 0, 0 }, { "b", 1, 1, 1, 0 }, { "c", 1, 2, 2, 0 }, { "d", 1, 3, 3, 0 }
    };
    // each unit's padding fits, their sum does not
    check_refused(padding, 4, SIZE_MAX / 192);
}

// --------------------------------------------------------------------------------------------------------------------
// Mesh.

static void data_parallel_meshes_number_the_ranks(void) {
    static const int sizes[] = { 1, 2, 3, 7, 8, 64, 1000 };
    for (size_t i = 0; i < COUNT(sizes); i++) {
        for (int r = 0; r < sizes[i]; r++) {
            zero_mesh m;
            char err[256] = "";
            CHECK_EQ(zero_mesh_create(&m, r, sizes[i], 1, 1, 0, err, sizeof err), ZERO_OK);
            CHECK_EQ(m.data, sizes[i]);
            CHECK_EQ(m.tensor, 1);
            CHECK_EQ(m.pipe, 1);
            CHECK_EQ(m.data_rank, r);
            CHECK_EQ(m.tensor_rank, 0);
            CHECK_EQ(m.pipe_rank, 0);
            size_t first = 99, last = 99;
            zero_pp_units(&m, 13, &first, &last);
            CHECK_EQ(first, 0);
            CHECK_EQ(last, 13);
            float x[4] = { 1, 2, 3, 4 };
            CHECK_EQ(zero_tp_copy(&m, x, ZERO_F32, 4, 0), ZERO_OK);
            CHECK_EQ(zero_tp_reduce(&m, x, ZERO_F32, 4, 0), ZERO_OK);
            CHECK_EQ(zero_pp_recv(&m, x, ZERO_F32, 4, 0), ZERO_OK);
            CHECK_EQ(zero_pp_send(&m, x, ZERO_F32, 4, 0), ZERO_OK);
            for (int k = 0; k < 4; k++) CHECK(x[k] == (float)(k + 1));
        }
    }
}

// Every rank has coordinates of its own, from which its rank follows by the documented order.
static void grids_number_every_rank_once(void) {
    // data, tensor, pipe, shard
    static const int grids[][4] = { { 2, 2, 2, 0 }, { 2, 2, 2, 1 }, { 4, 2, 3, 2 },
                                    { 6, 1, 4, 3 }, { 8, 5, 1, 4 }, { 1, 4, 4, 1 } };
    for (size_t i = 0; i < COUNT(grids); i++) {
        const int data = grids[i][0], tensor = grids[i][1], pipe = grids[i][2],
                  shard = grids[i][3] ? grids[i][3] : data;
        for (int r = 0; r < data * tensor * pipe; r++) {
            zero_mesh m;
            char err[256] = "";
            CHECK_EQ(zero_mesh_create(&m, r, data * tensor * pipe, tensor, pipe, grids[i][3], err, sizeof err),
                     ZERO_OK);
            CHECK_EQ(m.data, data);
            CHECK_EQ((m.pipe_rank * data + m.data_rank) * tensor + m.tensor_rank, r);
            CHECK(m.tensor_rank >= 0 && m.tensor_rank <= tensor - 1);
            CHECK(m.data_rank >= 0 && m.data_rank <= data - 1);
            CHECK_EQ(m.shard * m.groups, data);
            CHECK_EQ(m.group * shard + m.shard_rank, m.data_rank);
            size_t first = 0, last = 0;
            zero_pp_units(&m, 13, &first, &last);
            CHECK_EQ(first, 13 * (size_t)m.pipe_rank / (size_t)pipe);
            CHECK_EQ(last, 13 * ((size_t)m.pipe_rank + 1) / (size_t)pipe);
            float x = 1;
            CHECK_EQ(zero_tp_copy(&m, &x, ZERO_F32, 1, 0), tensor == 1 ? ZERO_OK : ZERO_ERR_ARG);
            CHECK_EQ(zero_pp_send(&m, &x, ZERO_F32, 1, 0), pipe == 1 ? ZERO_OK : ZERO_ERR_ARG);
            CHECK_EQ(zero_mesh_require_data_only(&m, err, sizeof err), tensor * pipe == 1 ? ZERO_OK : ZERO_ERR_ARG);
        }
    }
}

static void check_mesh_refused(int ranks, int tensor, int pipe, int shard, const char *named) {
    zero_mesh m;
    char err[256] = "", small[8];
    int e = zero_mesh_create(&m, 0, ranks, tensor, pipe, shard, err, sizeof err);
    if (e == ZERO_OK) e = zero_mesh_require_data_only(&m, err, sizeof err);
    CHECK_EQ(e, ZERO_ERR_ARG);
    CHECK(strstr(err, named), "the message does not name %s: \"%s\"", named, err);
    memset(small, 'x', sizeof small);
    e = zero_mesh_create(&m, 0, ranks, tensor, pipe, shard, small, 4);
    if (e == ZERO_OK) e = zero_mesh_require_data_only(&m, small, 4);
    CHECK_EQ(small[4], 'x');  // not a byte more than it was given
}

static void meshes_that_cannot_run_are_refused_by_size(void) {
    check_mesh_refused(8, 2, 1, 0, "tensor");
    check_mesh_refused(8, 1, 2, 0, "pipe");
    check_mesh_refused(8, 3, 1, 0, "tensor");
    check_mesh_refused(8, 1, 5, 0, "pipe");
    check_mesh_refused(8, 0, 1, 0, "tensor");
    check_mesh_refused(8, 1, -1, 0, "pipe");
    check_mesh_refused(8, 1, 1, 3, "shard");
    check_mesh_refused(8, 1, 1, 16, "shard");
    check_mesh_refused(8, 1, 1, -1, "shard");
}

int main(int argc, char **argv) {
    test_start(&argc, argv);
    RUN(edge_sizes_are_owned_once);
    RUN(a_range_gives_only_its_own_segments);
    RUN(the_owner_of_an_element_is_another_rank_or_place);
    RUN(models_are_owned_once_on_up_to_65536_ranks);
    RUN(sizes_beyond_32_bits_are_exact);
    RUN(runs_and_other_ranks_give_the_same_layout);
    RUN(impossible_descriptions_are_refused_with_a_message);
    RUN(sums_that_wrap_around_are_refused);
    RUN(data_parallel_meshes_number_the_ranks);
    RUN(grids_number_every_rank_once);
    RUN(meshes_that_cannot_run_are_refused_by_size);
    return test_finish();
}
