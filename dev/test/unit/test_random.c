// Tests of dev/data/random. Each is named after the fault that it prevents. The golden numbers come from the C++
// standard (std::mt19937), PyTorch (torch.manual_seed(137) and normal_()), llm.c (the weights of a d12 model) and
// Vigna's xorshift64*.
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <math.h>
#include <string.h>

#include "test/harness/harness.h"
#include "data/random.h"

#define LEN(a) (sizeof(a) / sizeof *(a))

static void check_close(float x, float golden, float tolerance) {
    CHECK(fabsf(x - golden) <= tolerance, "%.9g instead of %.9g", x, golden);
}

// Within two units in the last place: another libm may round differently.
static void check_same(float x, float golden) { check_close(x, golden, 2.5e-7f * fabsf(golden)); }

static void check_same_state(const Mt19937 *a, const Mt19937 *b) {
    Mt19937 x = *a, y = *b;
    CHECK_EQ(x.has_spare, y.has_spare);
    for (int i = 0; i < 700; i++) {
        CHECK_EQ(mt_u32(&x), mt_u32(&y));
    }
}

static void test_words_differ_from_the_standard(void) {
    Mt19937 g;
    mt_seed(&g, 5489);
    for (int i = 0; i < 9999; i++) {
        mt_u32(&g);
    }
    CHECK_EQ(mt_u32(&g), 4123659995u);
}

// To 1e-6: torch computes the angle of a block in another way (see random.c), an error of half an ulp there.
static void test_draws_differ_from_torch(void) {
    static const uint32_t words[] = { 4053805790u, 2173880614u, 380293709u, 1237255315u, 2986595568u };
    static const float small[] = { 0.7947664260864258f,  1.4369317293167114f,  -0.2292192131280899f,
                                   0.47556325793266296f, -0.6334410905838013f, -0.5791953802108765f,
                                   -0.0925704762339592f, -0.8659197092056274f };
    static const float block[] = { -1.2813878059387207f, -2.646395683288574f,   -0.06569503247737885f,
                                   0.2180829495191574f,  -0.46536165475845337f, -0.33108410239219666f,
                                   2.5485482215881348f,  0.10425379872322083f,  0.8460659980773926f,
                                   0.9462448358535767f,  -0.2913765013217926f,  0.34313806891441345f,
                                   -1.1186704635620117f, -0.18305328488349915f, -2.3153159618377686f,
                                   0.3961987793445587f };
    Mt19937 g;
    float x[16];
    mt_seed(&g, 137);
    for (size_t i = 0; i < LEN(words); i++) {
        CHECK_EQ(mt_u32(&g), words[i]);
    }
    mt_normal(&g, x, 0, 8, 8, 0, 1);
    for (int i = 0; i < 8; i++) {
        check_close(x[i], small[i], 1e-6f);
    }
    CHECK_EQ(mt_u32(&g), 2186503452u);
    mt_normal(&g, x, 0, 16, 16, 0, 1);
    for (int i = 0; i < 16; i++) {
        check_close(x[i], block[i], 1e-6f);
    }
    CHECK_EQ(mt_u32(&g), 2756748748u);
}

static void test_initial_weights_differ_from_llmc(void) {
    size_t V = 50257, T = 1024, C = 768, L = 12;
    float residual = 0.02f / sqrtf(2.0f * (float)L);
    float x[3];
    Mt19937 g;
    mt_seed(&g, 42);
    mt_normal(&g, x, 0, 3, V * C, 0, 0.02f);
    check_same(x[0], 0.0385382995f);
    check_same(x[1], 0.0297456831f);
    check_same(x[2], 0.0180143435f);
    mt_normal(&g, x, 0, 3, T * C, 0, 0.02f);
    check_same(x[0], -0.00916235521f);
    check_same(x[1], -0.018614769f);
    check_same(x[2], -0.0294702277f);
    mt_normal(&g, x, 0, 1, 3 * C * C, 0, 0.02f);
    check_same(x[0], -0.0045566773f);
    mt_normal(&g, x, 0, 1, C * C, 0, residual);
    check_same(x[0], 0.00113274355f);
    mt_normal(&g, x, 0, 1, 4 * C * C, 0, 0.02f);
    check_same(x[0], -0.0111787794f);
    mt_normal(&g, x, 0, 1, 4 * C * C, 0, residual);
    check_same(x[0], 0.00437752157f);
}

static void test_skip_differs_from_drawing(void) {
    static const size_t lengths[] = { 0, 1, 623, 624, 625, 1248, 5000 };
    for (size_t warm = 0; warm < 700; warm += 69) {
        for (size_t k = 0; k < LEN(lengths); k++) {
            Mt19937 a, b;
            mt_seed(&a, 7);
            for (size_t i = 0; i < warm; i++) {
                mt_u32(&a);
            }
            b = a;
            mt_skip(&a, lengths[k]);
            for (size_t i = 0; i < lengths[k]; i++) {
                mt_u32(&b);
            }
            check_same_state(&a, &b);
        }
    }
}

// Every rank draws its own ranges: together they must be the tensor, and leave the same generator behind.
static void test_range_differs_from_full_draw(void) {
    enum { MAX = 70, GUARD = 4 };
    Mt19937 start;
    mt_seed(&start, 3);
    for (size_t n = 0; n <= MAX; n++) {
        float full[MAX], part[MAX + 2 * GUARD];
        Mt19937 after = start;
        mt_normal(&after, full, 0, n, n, 0.5f, 2);
        for (size_t begin = 0; begin <= n; begin++) {
            for (size_t count = 0; begin + count <= n; count++) {
                Mt19937 g = start;
                memset(part, 0xff, sizeof part);
                mt_normal(&g, part + GUARD, begin, count, n, 0.5f, 2);
                CHECK_BYTES(part + GUARD, full + begin, count * sizeof(float));
                for (size_t i = 0; i < GUARD; i++) {
                    CHECK(isnan(part[i]) && isnan(part[GUARD + count + i]));
                }
                CHECK(g.next == after.next && memcmp(g.state, after.state, sizeof g.state) == 0);
            }
        }
        mt_normal(&start, NULL, 0, 0, n, 0.5f, 2);
        check_same_state(&start, &after);
    }
}

static void test_tail_is_not_drawn_again(void) {
    Mt19937 a, b;
    float x[40], last[16];
    mt_seed(&a, 9);
    b = a;
    mt_normal(&a, x, 0, 40, 40, 0, 1);
    mt_skip(&b, 40);
    mt_normal(&b, last, 0, 16, 16, 0, 1);
    CHECK_BYTES(x + 24, last, sizeof last);
    check_same_state(&a, &b);
}

static void test_spare_normal_is_lost(void) {
    Mt19937 a, b;
    float x[4], y[4];
    mt_seed(&a, 11);
    b = a;
    mt_normal(&a, x, 0, 4, 4, 0, 1);
    mt_normal(&b, y, 0, 3, 3, 0, 1);
    mt_normal(&b, y + 3, 0, 1, 1, 0, 1);
    CHECK_BYTES(x, y, sizeof x);
    mt_normal(&b, y, 0, 3, 3, 0, 1);
    mt_seed(&b, 11);
    mt_normal(&b, y, 0, 4, 4, 0, 1);
    CHECK_BYTES(x, y, sizeof x);
}

static void test_sampling_differs_from_llmc(void) {
    uint64_t one = 1, s = 1337;
    CHECK_EQ(xorshift_u32(&one), 0x47E4CE4Bu);
    CHECK_EQ(xorshift_u32(&s), 0x3af61262u);
    CHECK_EQ(xorshift_u32(&s), 0x30c5cedbu);
    CHECK(xorshift_f32(&s) == (float)(0x4f94dcf3u >> 8) / 16777216.0f);
}

int main(int argc, char **argv) {
    test_start(&argc, argv);
    RUN(test_words_differ_from_the_standard);
    RUN(test_draws_differ_from_torch);
    RUN(test_initial_weights_differ_from_llmc);
    RUN(test_skip_differs_from_drawing);
    RUN(test_range_differs_from_full_draw);
    RUN(test_tail_is_not_drawn_again);
    RUN(test_spare_normal_is_lost);
    RUN(test_sampling_differs_from_llmc);
    return test_finish();
}
