// fuzz_engine.c: does any sequence of calls break the engine? Draws models, settings, transports and shard groups, and
// for each of them calls of zero.h, right and wrong ones. Run under mpirun, on any number of ranks.
//
//     fuzz_engine [--seconds S] [--seed N] [--case "configuration 17,"]      5 seconds; another seed each time
//
// struct model is what the header promises, written again: it predicts for each call whether it is refused. What is
// refused must have a message, leave the engine in that state, and be over after zero_discard. What is accepted happens
// to two engines: to this one, and to a *reference*, unsharded on one rank, which does the micro-batches of all ranks.
// After each step norms and hashes of both must be equal, to the bit. At the end one rank may do what the others do
// not: all must be told. All ranks draw the same numbers.
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include "test/ranks/toy_model.h"
#include "zero/clock.h"
#include "zero/pool.h"

enum { MAX_UNITS = 6, MAX_TENSORS = 18, MAX_HELD = 3, STEPS = 3, MAX_MICRO_BATCHES = 4, MAX_CALLS = 4000 };

static uint64_t dice;
static size_t below(size_t n) {
    dice ^= dice << 13;
    dice ^= dice >> 7;
    dice ^= dice << 17;
    return (size_t)(dice >> 20) % n;
}
static int chance(size_t percent) { return below(100) < percent; }

// The last calls, for the report of a failure.
enum { TOLD = 16 };
static char told[TOLD][64];
static size_t calls;
__attribute__((format(printf, 1, 2))) static void tell(const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(told[calls++ % TOLD], sizeof told[0], format, args);
    va_end(args);
}
static void print_calls(void) {
    if (rank) return;
    for (size_t i = calls > TOLD ? calls - TOLD : 0; i < calls; i++) printf("      call %zu: %s\n", i, told[i % TOLD]);
}

// ---- what the header promises ---------------------------------------------------------------------------------------

struct unit_model {
    size_t users, released;  // acquires of its parameters; micro-batches whose gradients were released
    int held, frozen;        // its gradients are acquired; all its tensors are frozen
};

static struct model {
    zero_tensor tensors[MAX_TENSORS];
    size_t num_tensors, num_units;
    struct unit_model units[MAX_UNITS];
    unsigned char shares_params[MAX_UNITS], shares_grads[MAX_UNITS];
    size_t finished, target;  // micro-batches of this step
    int merged, uses_ema;     // gradients can no longer be added
    double weight;
    size_t step;
    int poisoned;  // one element of the first micro-batch is NaN
} m;
static zero_config config;
static zero *z, *reference;

static void find_shares(void) {
    zero_layout l;
    zero_pool p;
    const char *why;
    REQUIRE(zero_layout_create(&l, m.tensors, m.num_tensors, 1, &why) == 0, "layout: %s", why);
    for (size_t t = 0; t < m.num_tensors; t++) zero_layout_set_frozen(&l, t, m.tensors[t].frozen);
    for (size_t u = 0; u < m.num_units; u++) m.units[u].frozen = l.unit_frozen[u];
    REQUIRE(zero_pool_create(&p, &l, ZERO_POOL_PARAMS, 1) == 0);
    memcpy(m.shares_params, p.shares, m.num_units);
    zero_pool_destroy(&p);
    REQUIRE(zero_pool_create(&p, &l, ZERO_POOL_GRADS, ZERO_GRAD_POOL_DEPTH) == 0);
    memcpy(m.shares_grads, p.shares, m.num_units);
    zero_pool_destroy(&p);
    zero_layout_destroy(&l);
}

static void forget_step(void) {
    for (size_t u = 0; u < m.num_units; u++) m.units[u].users = m.units[u].released = (size_t)(m.units[u].held = 0);
    m.finished = 0;
    m.merged = m.poisoned = 0;
    m.weight = 0;
    m.target = 1 + below(MAX_MICRO_BATCHES - 1);
}

static int between(void) {
    for (size_t u = 0; u < m.num_units; u++)
        if (!m.units[u].frozen && (m.units[u].held || m.units[u].released != m.finished)) return 0;
    return !m.uses_ema;
}

static int params_are_held(void) {
    for (size_t u = 0; u < m.num_units; u++)
        if (m.units[u].users) return 1;
    return 0;
}

static int may_acquire_params(size_t u) {
    size_t others = 0;
    if (u >= m.num_units) return 0;
    for (size_t w = 0; w < m.num_units; w++) others += w != u && m.units[w].users && m.shares_params[w];
    return !m.shares_params[u] || others <= (size_t)config.settings.prefetch;
}

static int may_acquire_grads(size_t u, size_t micro_batch) {
    size_t others = 0;
    if (u >= m.num_units || m.units[u].frozen || m.units[u].held || m.merged || m.uses_ema) return 0;
    for (size_t w = 0; w < m.num_units; w++) others += m.units[w].held && m.shares_grads[w];
    return micro_batch == m.units[u].released && (!m.shares_grads[u] || others < ZERO_GRAD_POOL_DEPTH);
}

static size_t most_released(void) {
    size_t most = m.finished + 1;
    for (size_t u = 0; u < m.num_units; u++)
        if (m.units[u].released > most) most = m.units[u].released;
    return most;
}

static int may_finish(void) {
    for (size_t u = 0; u < m.num_units; u++)
        if (!m.units[u].frozen && m.units[u].released != most_released()) return 0;
    return 1;
}

// ---- calls ----------------------------------------------------------------------------------------------------------

// After a call: was it refused or not, as predicted? A refusal is discarded. Returns 1 if the call was accepted.
static int as_predicted(int e, int allowed) {
    if (!CHECK(allowed ? e == ZERO_OK : e == ZERO_ERR_ARG, "call %zu (%s) returns %d, %s: %s", calls - 1,
               told[(calls - 1) % TOLD], e, allowed ? "but is allowed" : "but is misuse", zero_error(z)))
        return 0;
    if (allowed) return 1;
    char first[768];
    snprintf(first, sizeof first, "%s", zero_error(z));
    CHECK(first[0] && zero_begin_step(z) == ZERO_ERR_ARG && !zero_acquire_params(z, 0) &&
              zero_step(z, &adamw) == ZERO_ERR_ARG,
          "call %zu: calls succeed after \"%s\"", calls - 1, first);
    CHECK_STR(zero_error(z), first);
    CHECK(zero_discard(z) == ZERO_OK && !zero_error(z)[0], "discard: %s", zero_error(z));
    forget_step();
    return 0;
}

static int both(int e, int of_reference) {
    CHECK(e || of_reference == ZERO_OK, "the reference: %s", zero_error(reference));
    return e;
}

static void write_gradient(zero *to, void *device, size_t u, size_t j) {
    const size_t n = zero_layout_unit_numel(zero_get_layout(to), u);
    char *g = copy_of(device, n, element());
    for (size_t i = 0; i < n * element(); i++)
        if (g[i]) REQUIRE(0, "the gradients of unit %zu are not zero when acquired", u);
    for (size_t t = 0; t < m.num_tensors; t++)
        for (size_t i = 0; i < m.tensors[t].numel && m.tensors[t].unit == u; i++)
            put(g, zero_tensor_offset(to, t) + i,
                m.poisoned && j == 0 && i == 0 ? NAN : gradient(m.tensors[t].logical + i, j, m.step));
    device_write(device, g, n * element());
    free(g);
}

static void acquire_params(size_t u) {
    tell("acquire parameters of unit %zu", u);
    if (as_predicted(zero_acquire_params(z, u) ? ZERO_OK : ZERO_ERR_ARG, may_acquire_params(u))) m.units[u].users++;
}

static void release_params(size_t u) {
    tell("release parameters of unit %zu", u);
    if (as_predicted(zero_release_params(z, u), u < m.num_units && m.units[u].users)) m.units[u].users--;
}

static void acquire_grads(size_t u, size_t micro_batch) {
    tell("acquire gradients of unit %zu, micro-batch %zu", u, micro_batch);
    void *device = zero_acquire_grads(z, u, micro_batch);
    if (!as_predicted(device ? ZERO_OK : ZERO_ERR_ARG, may_acquire_grads(u, micro_batch)) || !device) return;
    write_gradient(z, device, u, micro_batch * (size_t)ranks + (size_t)rank);
    m.units[u].held = 1;
    if (micro_batch >= m.target) m.target = micro_batch + 1;
}

static void release_grads(size_t u) {
    tell("release gradients of unit %zu", u);
    if (!as_predicted(zero_release_grads(z, u), u < m.num_units && m.units[u].held)) return;
    m.units[u].held = 0;
    m.units[u].released++;
}

static void finish(void) {
    tell("finish backward");
    const size_t most = most_released();
    if (!as_predicted(zero_finish_backward(z), may_finish())) return;
    m.finished = most;
    if (most > m.target) m.target = most;
}

static int fill_drawn(void *ctx, size_t tensor, size_t begin, size_t count, float *out) {
    (void)ctx;
    for (size_t i = 0; i < count; i++) out[i] = initial(m.tensors[tensor].logical + begin + i + m.step);
    return 0;
}

static int look(void *sum, size_t tensor, size_t begin, size_t count, const float *values) {
    (void)tensor, (void)begin;
    for (size_t i = 0; i < count; i++) *(double *)sum += (double)values[i];
    return 0;
}

static void equal_hashes(void) {
    uint64_t hash[2][2] = { { 0 } };
    CHECK(both(zero_hash(z, &hash[0][0], &hash[0][1]), zero_hash(reference, &hash[1][0], &hash[1][1])) == ZERO_OK, "%s",
          zero_error(z));
    if (!CHECK_BYTES(hash[0], hash[1], sizeof hash[0])) print_calls();
}

// The reference does this step's micro-batches of all ranks.
static void backward_of_reference(void) {
    for (size_t j = 0; j < m.finished * (size_t)ranks; j++) {
        for (size_t u = m.num_units; u-- > 0;) {
            if (m.units[u].frozen) continue;
            void *device = zero_acquire_grads(reference, u, j);
            REQUIRE(device, "the reference: %s", zero_error(reference));
            write_gradient(reference, device, u, j);
            REQUIRE(zero_release_grads(reference, u) == ZERO_OK, "the reference: %s", zero_error(reference));
        }
        REQUIRE(zero_finish_backward(reference) == ZERO_OK, "the reference: %s", zero_error(reference));
    }
    if (m.weight > 0) REQUIRE(zero_set_total_weight(reference, m.weight) == ZERO_OK);
}

static void step(void) {
    zero_hyperparameters h = adamw;
    h.lr = chance(80) ? 0.01f : 0;
    h.max_norm = chance(50) ? 0.25f : 0;
    const int bad = chance(5), allowed = between() && m.finished && !params_are_held() && !bad;
    if (bad) h.beta1 = 1;
    tell("step");
    if (!as_predicted(zero_step(z, &h), allowed)) return;
    backward_of_reference();
    CHECK(zero_step(reference, &h) == ZERO_OK, "the reference: %s", zero_error(reference));
    const zero_step_info a = zero_last_step(z), b = zero_last_step(reference);
    CHECK(!memcmp(&a.norm, &b.norm, sizeof a.norm) && a.scale == b.scale && a.skipped == b.skipped,
          "norm %.17g, scale %g; of the reference %.17g, %g", a.norm, (double)a.scale, b.norm, (double)b.scale);
    CHECK_EQ(zero_get_updates(z), zero_get_updates(reference));
    equal_hashes();
    m.step++;
    forget_step();
    m.poisoned = chance(10);
}

static void set_options(void) {
    const size_t t = below(m.num_tensors + chance(10));
    const int bad = chance(10), allowed = between() && !m.finished && t < m.num_tensors && !bad;
    zero_tensor_options o = { .lr_factor = 1 };
    if (t < m.num_tensors) o = zero_get_tensor_options(z, t);
    o.lr_factor = bad ? -1 : (float)below(3) / 2;
    o.decay_factor = (float)below(3);
    o.frozen = chance(40);
    tell("options of tensor %zu, frozen %d", t, o.frozen);
    if (!as_predicted(both(zero_set_tensor_options(z, t, &o), allowed ? zero_set_tensor_options(reference, t, &o) : 0),
                      allowed))
        return;
    m.tensors[t].frozen = o.frozen;
    find_shares();
}

static void use_ema(int on) {
    const int changes = on != m.uses_ema, ema = m.uses_ema;
    m.uses_ema = 0;
    const int allowed = config.settings.ema_decay > 0 && between() && !m.finished && !(changes && params_are_held());
    m.uses_ema = ema;
    tell("use the moving average: %d", on);
    if (as_predicted(zero_use_ema(z, on), allowed)) m.uses_ema = on;
}

static void load(int state) {
    static const int states[] = { ZERO_STATE_PARAMS, ZERO_STATE_MASTER, ZERO_STATE_M, ZERO_STATE_EMA, 17 };
    const int s = states[state];
    const int exists = s < ZERO_STATE_OPTIMIZER + 1 || (s == ZERO_STATE_EMA && config.settings.ema_decay > 0);
    const int allowed = exists && between() && !m.finished && !(s < ZERO_STATE_OPTIMIZER && params_are_held());
    tell("load state %d", s);
    (void)as_predicted(both(zero_load(z, (enum zero_state)s, fill_drawn, NULL),
                            allowed ? zero_load(reference, (enum zero_state)s, fill_drawn, NULL) : 0),
                       allowed);
}

static void visit(int state) {
    static const int states[] = { ZERO_STATE_PARAMS, ZERO_STATE_MASTER, ZERO_STATE_M, ZERO_STATE_GRADS, 17 };
    const int s = states[state], grads = s == ZERO_STATE_GRADS;
    const int allowed = s != 17 && (s == ZERO_STATE_PARAMS || !m.uses_ema) && (!grads || (between() && m.finished));
    double sum = 0;
    tell("visit state %d", s);
    if (as_predicted(zero_visit(z, (enum zero_state)s, look, &sum), allowed) && grads) m.merged = 1;
}

// ---- a walk ---------------------------------------------------------------------------------------------------------

static void any_call(void) {
    double norms[MAX_TENSORS], mean;
    uint64_t hash[2];
    const size_t u = below(m.num_units + chance(5)), which = below(20);
    const size_t next = u < m.num_units ? m.units[u].released + (size_t)m.units[u].held : 0;
    const int finished = between() && m.finished;
    switch (which) {
    case 0:
    case 1: acquire_params(u); break;
    case 2: release_params(u); break;
    case 3: acquire_grads(u, next < MAX_MICRO_BATCHES || chance(50) ? next + chance(20) : 0); break;
    case 4: release_grads(u); break;
    case 5: finish(); break;
    case 6:
        tell("norm");
        if (as_predicted(zero_grad_norm(z, norms), finished)) m.merged = 1;
        break;
    case 7:
        tell("norms of tensors");
        if (as_predicted(zero_tensor_norms(z, norms), finished)) m.merged = 1;
        break;
    case 8: step(); break;
    case 9:
        tell("begin a step");
        (void)as_predicted(zero_begin_step(z), between() && !params_are_held());
        break;
    case 10: {
        const double weight = (double)below(4);
        tell("total weight %g", weight);
        if (as_predicted(zero_set_total_weight(z, weight), between() && weight > 0)) m.weight = weight;
        break;
    }
    case 11: {
        const uint64_t updates = zero_get_updates(z) + below(3);
        tell("set the number of updates");
        (void)as_predicted(
            both(zero_set_updates(z, updates), between() ? zero_set_updates(reference, updates) : ZERO_OK), between());
        break;
    }
    case 12:
        tell("discard");
        CHECK(zero_discard(z) == ZERO_OK, "discard: %s", zero_error(z));
        forget_step();
        break;
    case 13: {
        const int allowed = between() && !m.finished && !params_are_held();
        tell("fill");
        (void)as_predicted(
            both(zero_fill(z, fill_drawn, NULL), allowed ? zero_fill(reference, fill_drawn, NULL) : ZERO_OK), allowed);
        break;
    }
    case 14: load((int)below(5)); break;
    case 15: visit((int)below(5)); break;
    case 16:
        tell("hash");
        (void)as_predicted(zero_hash(z, &hash[0], &hash[1]), between());
        break;
    case 17: set_options(); break;
    case 18: use_ema(chance(40)); break;
    default:
        norms[0] = 3;
        tell("mean");
        CHECK(zero_mean(z, norms, 1, &mean) == ZERO_OK && fabs(mean - 3) < 1e-12, "mean %g: %s", mean, zero_error(z));
    }
}

// A call that brings the step nearer to its end.
static void a_right_call(void) {
    size_t held[MAX_UNITS], num_held = 0, ready[MAX_UNITS], num_ready = 0, users[MAX_UNITS], num_users = 0;
    if (m.uses_ema && chance(30)) {
        for (size_t u = 0; u < m.num_units; u++)
            if (m.units[u].users) return release_params(u);
        return use_ema(0);
    }
    for (size_t u = 0; u < m.num_units; u++) {
        const struct unit_model *unit = &m.units[u];
        if (unit->held) held[num_held++] = u;
        if (unit->users) users[num_users++] = u;
        if (unit->released < m.target && may_acquire_grads(u, unit->released)) ready[num_ready++] = u;
    }
    const size_t u = below(m.num_units);
    if (chance(30) && may_acquire_params(u) && m.units[u].users < MAX_HELD) return acquire_params(u);
    if (num_users && chance(60)) return release_params(users[below(num_users)]);
    if (m.uses_ema) return;
    if (num_held && (!num_ready || chance(50))) return release_grads(held[below(num_held)]);
    if (num_ready) {
        const size_t next = ready[below(num_ready)];
        return acquire_grads(next, m.units[next].released);
    }
    if (m.finished < m.target && may_finish()) return finish();
    if (!num_users) return step();
}

// ---- configurations -------------------------------------------------------------------------------------------------

static void draw_tensors(void) {
    static const size_t sizes[] = { 0, 1, 63, 64, 65, 100, 640, 1000, 3001 };
    size_t logical = 0;
    m.num_units = 1 + below(MAX_UNITS);
    m.num_tensors = 0;
    for (size_t u = 0; u < m.num_units; u++)
        for (size_t i = 1 + below(3); i > 0; i--) {
            const size_t numel = sizes[below(sizeof sizes / sizeof *sizes)];
            m.tensors[m.num_tensors++] = (zero_tensor){ "t", numel, u, logical, chance(50), chance(10), chance(15) };
            logical += numel + (chance(20) ? below(100) : 0);
        }
    for (size_t i = m.num_tensors; i-- > 1;) {  // in the file they are in another order
        const size_t k = below(i + 1);
        if (m.tensors[i].numel != m.tensors[k].numel) continue;
        const size_t at = m.tensors[i].logical;
        m.tensors[i].logical = m.tensors[k].logical;
        m.tensors[k].logical = at;
    }
}

static void draw_settings(void) {
    static const enum zero_master masters[KINDS] = { ZERO_MASTER_FP32, ZERO_MASTER_FP32, ZERO_MASTER_SPLIT,
                                                     ZERO_MASTER_NONE };
    kind = (enum kind)below(KINDS);
    config = (zero_config){ .settings = { .stage = (int)below(STAGES),
                                          .prefetch = (int)below(3),
                                          .dtype = kind == F32 ? ZERO_F32 : ZERO_BF16,
                                          .master = masters[kind],
                                          .optimizer = (enum zero_optimizer_kind)below(ZERO_NUM_OPTIMIZERS),
                                          .ema_decay = chance(40) ? 0.75 : 0,
                                          .seed = 42,
                                          .delay_seed = chance(20) ? 1 + below(1000) : 0 },
                            .tensors = m.tensors,
                            .num_tensors = m.num_tensors };
}

enum odd { LR, OPTIONS, UPDATES, WEIGHT, CALLBACK, ODDS };

static int fill_fails(void *ctx, size_t tensor, size_t begin, size_t count, float *out) {
    fill_drawn(ctx, tensor, begin, count, out);
    return rank == *(int *)ctx;
}

// One rank does what the others do not: all must be told, at the latest by the next hash.
static void one_rank_differs(void) {
    const int odd_rank = (int)below((size_t)ranks), mine = rank == odd_rank;
    uint64_t hash[2];
    double norm;
    zero_hyperparameters h = adamw;
    CHECK(zero_discard(z) == ZERO_OK && (!m.uses_ema || zero_use_ema(z, 0) == ZERO_OK), "%s", zero_error(z));
    forget_step();
    m.uses_ema = 0;
    const enum odd odd = (enum odd)below(ODDS);
    zero_tensor_options o = zero_get_tensor_options(z, 0);
    tell("one rank differs: %d", (int)odd);
    int e = ZERO_OK, rank_of_fault = odd_rank;
    switch (odd) {
    case OPTIONS:
        o.lr_factor = mine ? 0.5f : 0.25f;
        e = zero_set_tensor_options(z, 0, &o);
        break;
    case UPDATES: e = zero_set_updates(z, zero_get_updates(z) + (mine ? 1 : 2)); break;
    case WEIGHT: e = zero_set_total_weight(z, mine ? 2 : 3); break;
    case CALLBACK:
        e = zero_fill(z, fill_fails, &rank_of_fault);
        if (e == ZERO_OK) break;  // that rank has nothing to fill
        CHECK(e == ZERO_ERR_CALLBACK && zero_error(z)[0], "%d: %s", e, zero_error(z));
        CHECK(zero_discard(z) == ZERO_OK && zero_fill(z, fill_drawn, NULL) == ZERO_OK &&
                  zero_hash(z, &hash[0], &hash[1]) == ZERO_OK,
              "after a callback that failed: %s", zero_error(z));
        return;
    default:
        for (size_t u = 0; u < m.num_units && !e; u++)
            if (!m.units[u].frozen) e = zero_acquire_grads(z, u, 0) ? zero_release_grads(z, u) : ZERO_ERR_ARG;
        h.lr = mine ? 1 : 2;
        if (!e) e = zero_finish_backward(z);
        if (!e) e = zero_step(z, &h);
    }
    CHECK(e == ZERO_OK || (odd == LR && e == ZERO_ERR_COMM), "%s", zero_error(z));
    if (odd == CALLBACK) return;
    if (!e) e = zero_hash(z, &hash[0], &hash[1]);
    CHECK(e == ZERO_ERR_COMM && zero_error(z)[0], "one rank differs (%d), and a hash returns %d: %s", (int)odd, e,
          zero_error(z));
    CHECK(zero_grad_norm(z, &norm) == e && zero_discard(z) == e, "a call succeeds after: %s", zero_error(z));
}

static void walk(void) {
    const int plain = chance(30);  // no misuse: longer walks
    forget_step();
    m.step = 0;
    m.uses_ema = 0;
    calls = 0;
    for (size_t n = 0; m.step < STEPS && n < MAX_CALLS && !test_failed(); n++)
        if (!plain && chance(10))
            any_call();
        else
            a_right_call();
    if (test_failed()) print_calls();
}

static void try_configuration(const struct way *way, int group) {
    zero_mesh_comms comms = join_groups(way, group, PATIENT);
    const zero_config alone = config;
    zero_accounting own = { 0 };
    zero_bootstrap *self = NULL;
    zero_comm *c = NULL;
    char err[640] = "";
    find_shares();
    config.shard_comm = comms.shard;
    config.replicate_comm = comms.replicate;
    config.accounting = &memory;
    zero_config unsharded = alone;
    const zero_comm_config transport = { .timeout_s = PATIENT };
    REQUIRE(zero_bootstrap_create_mpi(&self, MPI_COMM_SELF, PATIENT) == ZERO_OK &&
                zero_comm_create(&c, zero_transport_find("mpi"), self, &transport, &own, err, sizeof err) == ZERO_OK,
            "%s", err);
    unsharded.settings.stage = 0;
    unsharded.settings.delay_seed = 0;
    unsharded.shard_comm = c;
    unsharded.accounting = &own;
    m.step = 0;
    REQUIRE(zero_create(&z, &config) == ZERO_OK && zero_create(&reference, &unsharded) == ZERO_OK, "%s%s",
            zero_error(z), zero_error(reference));
    CHECK(zero_fill(z, fill_drawn, NULL) == ZERO_OK && zero_fill(reference, fill_drawn, NULL) == ZERO_OK, "%s%s",
          zero_error(z), zero_error(reference));
    walk();
    if (ranks > 1 && chance(50) && !test_failed()) one_rank_differs();  // else it is destroyed wherever it is
    zero_destroy(z);
    zero_destroy(reference);
    zero_comm_destroy(c);
    zero_bootstrap_destroy(self);
    CHECK(own.total_live == 0, "%zu bytes of the reference are left", own.total_live);
    zero_mesh_comms_destroy(&comms);
    all_is_given_back();
}

int main(int argc, char **argv) {
    double seconds = 5;
    unsigned long long seed = 0;
    start_engines(&argc, argv);
    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--seconds")) seconds = atof(argv[i + 1]);
        if (!strcmp(argv[i], "--seed")) seed = strtoull(argv[i + 1], NULL, 10);
    }
    if (!seed) seed = (unsigned long long)time(NULL);
    MPI_Bcast(&seed, 1, MPI_UNSIGNED_LONG_LONG, 0, MPI_COMM_WORLD);
    const double begin = zero_clock();
    for (unsigned n = 1, go_on = 1; go_on; n++) {
        dice = (seed * 0x9e3779b97f4a7c15u) ^ (n * 0xd1342543de82ef95u);
        for (int i = 0; i < 16; i++) (void)below(2);
        const struct way *way = &ways[below(WAYS)];
        draw_tensors();
        draw_settings();
        int group = config.settings.stage > 0 && chance(60) ? 1 + (int)below((size_t)ranks) : ranks;
        if (ranks % group) group = ranks;
        if (way_runs_here(way))
            CASE("configuration %u, seed %llu: stage %d, prefetch %d, %s, optimizer %d, groups of %d, %zu units, %s", n,
                 seed, config.settings.stage, config.settings.prefetch, kind_names[kind],
                 (int)config.settings.optimizer, group, m.num_units, way->name)
                try_configuration(way, group);
        go_on = zero_clock() - begin < seconds;
        MPI_Bcast(&go_on, 1, MPI_UNSIGNED, 0, MPI_COMM_WORLD);
    }
    return finish_world();
}
