// Pools of unit buffers: does a unit always find one that is large enough, and is no memory wasted on units that differ
// a little, or on one that is much larger than the others?
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "test/harness/harness.h"
#include "zero/param_cache.h"
#include "zero/pool.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

enum { MAX_UNITS = 24 };

static unsigned seed = 1;

static size_t below(size_t n) { return (size_t)rand_r(&seed) % n; }

// A layout of units of one tensor each.
static zero_layout layout_of(const size_t *sizes, const int *tied, size_t n, size_t ranks) {
    zero_tensor tensors[MAX_UNITS];
    zero_layout l;
    const char *why = "";
    for (size_t u = 0, logical = 0; u < n; logical += sizes[u++])
        tensors[u] = (zero_tensor){ .numel = sizes[u], .unit = u, .logical = logical, .tied = tied && tied[u] };
    REQUIRE(zero_layout_create(&l, tensors, n, ranks, &why) == 0, "layout: %s", why);
    return l;
}

static zero_pool pool_of(const zero_layout *l, size_t depth) {
    zero_pool p;
    REQUIRE(zero_pool_create(&p, l, ZERO_POOL_GRADS, depth) == 0, "out of memory");
    return p;
}

static size_t elements(const zero_pool *p) {
    size_t n = 0;
    for (size_t i = 0; i < p->num_buffers; i++) n += p->buffers[i].numel;
    return n;
}

static size_t elements_for(const size_t *sizes, const int *tied, size_t n, size_t ranks, size_t depth) {
    zero_layout l = layout_of(sizes, tied, n, ranks);
    zero_pool p = pool_of(&l, depth);
    const size_t all = elements(&p);
    zero_pool_destroy(&p);
    zero_layout_destroy(&l);
    return all;
}

// Sizes of the kinds that models have, and that a rule may stumble over.
static size_t random_sizes(size_t *sizes, int *tied) {
    const size_t n = 1 + below(MAX_UNITS), kind = below(6);
    size_t size = 64 * (1 + below(100));
    for (size_t u = 0; u < n; u++) {
        switch (kind) {
        case 0: sizes[u] = below(100000); break;
        case 1: sizes[u] = 50000 + below(200); break;                   // nearly equal
        case 2: sizes[u] = below(4) ? 5000 : 5000 << below(5); break;   // a few large ones
        case 3: sizes[u] = size, size += size / (1 + below(4)); break;  // growing
        case 4: sizes[u] = below(3) ? 1 + below(64) : 0; break;         // smaller than the padding; empty
        default: sizes[u] = size;
        }
        if (size > (size_t)1 << 40) size = 1;
        tied[u] = !below(8);
    }
    return n;
}

// The units that have buffers of their own, chosen by trying all: without tied ones, the s largest for each s.
static size_t least_elements(const size_t *sizes, const int *tied, size_t n) {
    size_t best = SIZE_MAX, sharing = 0, of_tied = 0;
    for (size_t u = 0; u < n; u++) {
        if (tied[u]) of_tied += (sizes[u] + 63) / 64 * 64;
        sharing += !tied[u];
    }
    for (size_t bound = 0; bound < n; bound++) {  // sizes up to sizes[bound] share
        size_t own = 0, shared = 0, largest = 0;
        if (tied[bound]) continue;
        for (size_t u = 0; u < n; u++) {
            const size_t size = (sizes[u] + 63) / 64 * 64;
            if (tied[u]) continue;
            if (sizes[u] > sizes[bound])
                own += size;
            else
                shared++, largest = size > largest ? size : largest;
        }
        const size_t all = own + largest * (shared < 2 ? shared : 2);
        if (all < best) best = all;
    }
    return of_tied + (sharing ? best : 0);
}

// Acquires and releases at random, as the engine does, within the limit that zero.h states.
static void acquire_at_random(const zero_layout *l, const zero_pool *p, size_t depth) {
    size_t holder[MAX_UNITS], buffer_of[MAX_UNITS], shared_held = 0;
    for (size_t i = 0; i < p->num_buffers; i++) holder[i] = ZERO_NO_UNIT;
    for (size_t u = 0; u < l->num_units; u++) buffer_of[u] = ZERO_NO_UNIT;
    for (int step = 0; step < 200; step++) {
        const size_t u = below(l->num_units);
        if (buffer_of[u] != ZERO_NO_UNIT) {
            holder[buffer_of[u]] = ZERO_NO_UNIT;
            buffer_of[u] = ZERO_NO_UNIT;
            shared_held -= p->shares[u];
            continue;
        }
        if (p->shares[u] && shared_held == depth) continue;
        size_t fit = ZERO_NO_UNIT, skip = below(MAX_UNITS);  // any free buffer that the unit may use
        for (size_t k = 0; k < p->num_buffers; k++) {
            const size_t i = (k + skip) % p->num_buffers;
            if (holder[i] == ZERO_NO_UNIT && zero_pool_fits(p, i, u)) fit = i;
        }
        CHECK(fit != ZERO_NO_UNIT, "unit %zu of %zu finds no buffer, with %zu of %zu held", u, l->num_units,
              shared_held, depth);
        if (fit == ZERO_NO_UNIT) return;
        CHECK(p->buffers[fit].numel >= zero_layout_unit_numel(l, u), "unit %zu is larger than its buffer", u);
        holder[fit] = u;
        buffer_of[u] = fit;
        shared_held += p->shares[u];
    }
}

static void a_unit_always_finds_a_buffer(void) {
    static const size_t RANKS[] = { 1, 2, 3, 8, 65536 };
    size_t sizes[MAX_UNITS];
    int tied[MAX_UNITS];
    for (int round = 0; round < 2000; round++) {
        const size_t n = random_sizes(sizes, tied), depth = 1 + below(4), r = below(COUNT(RANKS));
        zero_layout one = layout_of(sizes, tied, n, 1), l = layout_of(sizes, tied, n, RANKS[r]);
        zero_pool of_one = pool_of(&one, depth), p = pool_of(&l, depth), two = pool_of(&one, 2);
        acquire_at_random(&l, &p, depth);
        CHECK(!memcmp(p.shares, of_one.shares, n), "other units share on %zu ranks than on one", RANKS[r]);
        CHECK(!memcmp(p.shares, two.shares, n), "other units share in a pool of depth %zu than in one of 2", depth);
        CHECK_EQ(elements(&two), least_elements(sizes, tied, n));
        for (size_t u = 0; u < n; u++) CHECK(!tied[u] || !p.shares[u], "unit %zu is tied and shares", u);
        zero_pool_destroy(&two);
        zero_pool_destroy(&p);
        zero_pool_destroy(&of_one);
        zero_layout_destroy(&l);
        zero_layout_destroy(&one);
    }
}

// Parameters: up to 1 + prefetch units are held while others are prefetched.
static void the_parameter_cache_always_finds_a_buffer(void) {
    size_t sizes[MAX_UNITS], order[4 * MAX_UNITS];
    int tied[MAX_UNITS];
    for (int round = 0; round < 500; round++) {
        const size_t n = random_sizes(sizes, tied), prefetch = below(3), length = 4 * n;
        zero_layout l = layout_of(sizes, tied, n, 4);
        zero_param_cache c;
        size_t held = 0;
        for (size_t i = 0; i < length; i++) order[i] = below(n);
        REQUIRE(zero_param_cache_create(&c, &l, order, length, prefetch) == 0, "out of memory");
        for (size_t i = 0; i < length; i++) {
            const size_t u = below(2) ? order[i] : below(n);
            zero_param_cache_slot *s = zero_param_cache_find(&c, u);
            if (s && s->users) {
                held -= c.pool.shares[u];
                (void)zero_param_cache_released(&c, s);
                continue;
            }
            if (c.pool.shares[u] && held > prefetch) continue;
            if (!s) s = zero_param_cache_take(&c, u);
            CHECK(s != NULL, "unit %zu of %zu finds no buffer, with %zu held, prefetch %zu", u, n, held, prefetch);
            if (!s) break;
            CHECK(c.pool.buffers[s - c.slots].numel >= zero_layout_unit_numel(&l, u), "the buffer is too small");
            zero_param_cache_acquired(&c, s);
            held += c.pool.shares[u];
            for (size_t k = 0; k < prefetch; k++) {
                const size_t ahead = zero_param_cache_ahead(&c, k);
                if (!zero_param_cache_find(&c, ahead)) (void)zero_param_cache_take(&c, ahead);
            }
        }
        zero_param_cache_destroy(&c);
        zero_layout_destroy(&l);
    }
}

// The traffic of a step, by acquiring every unit in every micro-step.
static size_t plain_traffic(const zero_layout *l, const size_t *order, size_t length, size_t prefetch, int drop,
                            size_t micro_batches) {
    zero_param_cache c;
    size_t gathered = 0;
    REQUIRE(zero_param_cache_create(&c, l, order, length, prefetch) == 0, "out of memory");
    c.drop = drop;
    for (size_t i = 0; i < micro_batches * length; i++) {
        zero_param_cache_slot *s = zero_param_cache_find(&c, order[i % length]);
        if (!s) {
            s = zero_param_cache_take(&c, order[i % length]);
            gathered += zero_layout_unit_numel(l, order[i % length]);
        }
        zero_param_cache_acquired(&c, s);
        for (size_t k = 0; k < prefetch; k++) {
            const size_t ahead = zero_param_cache_ahead(&c, k);
            if (ahead != ZERO_NO_UNIT && !zero_param_cache_find(&c, ahead) && zero_param_cache_take(&c, ahead))
                gathered += zero_layout_unit_numel(l, ahead);
        }
        zero_param_cache_released(&c, s);
    }
    zero_param_cache_destroy(&c);
    return gathered;
}

// Traffic is predicted by periods of micro-steps.
static void periods_gather_what_all_micro_steps_do(void) {
    size_t sizes[MAX_UNITS], order[4 * MAX_UNITS];
    int tied[MAX_UNITS], periodic = 0;
    for (int round = 0; round < 3000; round++) {
        const size_t n = random_sizes(sizes, tied), prefetch = below(3), length = 1 + below(4 * n), G = below(40);
        const int drop = !below(4), there_and_back = (int)below(2);
        zero_layout l = layout_of(sizes, tied, n, 1 + below(5));
        for (size_t i = 0; i < length; i++) order[i] = !there_and_back ? below(n) : i / n % 2 ? n - 1 - i % n : i % n;
        const size_t one = zero_param_cache_traffic(&l, order, length, prefetch, drop, 1, NULL);
        const size_t all = zero_param_cache_traffic(&l, order, length, prefetch, drop, G, NULL);
        CHECK_EQ(all, plain_traffic(&l, order, length, prefetch, drop, G));
        periodic += G > 1 && all != G * one;
        zero_layout_destroy(&l);
    }
    CHECK(periodic > 500, "only %d times a micro-step gathered other units than the first one", periodic);
}

// Of all parameters, how many the buffers hold.
static void units_that_differ_a_little_cost_what_equal_ones_do(void) {
    size_t sizes[12], psi = 0;
    for (size_t u = 0; u < 12; u++) psi += sizes[u] = 640000 + 1280 * u;  // 0.2 %
    for (size_t ranks = 1; ranks <= 8; ranks++)
        for (size_t depth = 1; depth <= 3; depth++) {
            const double share = (double)elements_for(sizes, NULL, 12, ranks, depth) / (double)psi;
            CHECK(share < 1.015 * (double)depth / 12, "%zu ranks, depth %zu: %f of the parameters, not %f", ranks,
                  depth, share, (double)depth / 12);
        }
}

static void an_embedding_does_not_set_the_size_of_shared_buffers(void) {
    size_t sizes[13] = { 39421440 };  // GPT-2 124M
    for (size_t l = 1; l < 13; l++) sizes[l] = 7087872;
    const int embedding_is_tied[13] = { 1 };
    for (int t = 0; t < 2; t++)
        for (size_t depth = 1; depth <= 3; depth++)
            CHECK_EQ(elements_for(sizes, t ? embedding_is_tied : NULL, 13, 1, depth), 39421440 + depth * 7087872);
    sizes[0] = 7000000;  // smaller than a block: held through the backward pass, it must leave two buffers for blocks
    CHECK_EQ(elements_for(sizes, embedding_is_tied, 13, 1, 2), 7000000 + 2 * 7087872 + (64 - 7000000 % 64) % 64);
}

// Nor of an all-to-all, and so of a transport's scratch: it is reduced in parts.
static void an_embedding_does_not_set_the_size_of_an_all_to_all(void) {
    size_t sizes[MAX_UNITS];
    int tied[MAX_UNITS], in_parts = 0;
    for (int round = 0; round < 3000; round++) {
        const size_t n = random_sizes(sizes, tied), ranks = 1 + below(9);
        zero_layout l = layout_of(sizes, tied, n, ranks);
        zero_pool p = pool_of(&l, 2);
        for (size_t u = 0; u < n; u++) {
            const size_t shard = zero_layout_shard_numel(&l, u), part = zero_pool_part(&p, &l, u);
            const size_t most = p.num_shared ? p.buffers[0].numel / ranks : shard;
            CHECK(part <= shard && part <= zero_pool_largest_part(&p, &l) && (part == shard || part % 64 == 0));
            CHECK(part <= most || part <= shard / 16 + 64, "a part of %zu of %zu elements, beside %zu", part, shard,
                  most);
            CHECK(part * 16 >= shard, "too many parts: of %zu of %zu elements", part, shard);
            in_parts += part < shard;
        }
        zero_pool_destroy(&p);
        zero_layout_destroy(&l);
    }
    CHECK(in_parts > 500, "only %d units are reduced in parts", in_parts);
}

// Neither the size of shared buffers nor which units share depends on what has no gradients; parameters have buffers
// all the same.
static void frozen_units_have_no_buffers_for_gradients(void) {
    static const size_t sizes[] = { 64000, 6400, 6336, 6272 };
    zero_layout l = layout_of(sizes, NULL, 4, 1);
    zero_layout_set_frozen(&l, 0, 1);
    zero_layout_set_frozen(&l, 1, 1);
    for (int grads = 0; grads < 2; grads++) {
        zero_pool p;
        REQUIRE(zero_pool_create(&p, &l, grads ? ZERO_POOL_GRADS : ZERO_POOL_PARAMS, 2) == 0, "out of memory");
        CHECK_EQ(elements(&p), grads ? 6336 + 6272 : 64000 + 2 * 6400);
        CHECK_EQ(p.shares[0] + p.shares[1], !grads);
        CHECK_EQ(p.shares[2] + p.shares[3], 2 - grads);
        zero_pool_destroy(&p);
    }
    for (size_t t = 2; t < 4; t++) zero_layout_set_frozen(&l, t, 1);
    zero_pool p = pool_of(&l, 2);
    CHECK_EQ(p.num_buffers, 0);
    zero_pool_destroy(&p);
    zero_layout_destroy(&l);
}

int main(int argc, char **argv) {
    test_start(&argc, argv);
    RUN(a_unit_always_finds_a_buffer);
    RUN(the_parameter_cache_always_finds_a_buffer);
    RUN(periods_gather_what_all_micro_steps_do);
    RUN(units_that_differ_a_little_cost_what_equal_ones_do);
    RUN(an_embedding_does_not_set_the_size_of_shared_buffers);
    RUN(an_embedding_does_not_set_the_size_of_an_all_to_all);
    RUN(frozen_units_have_no_buffers_for_gradients);
    return test_finish();
}
