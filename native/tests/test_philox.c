/* Philox: Random123's known answers, and fills that do not depend on how they are cut. */
#include <math.h>

#include "check.h"

static void known(uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3, uint32_t k0, uint32_t k1,
                  const uint32_t answer[4])
{
    const uint32_t counter[4] = {c0, c1, c2, c3}, key[2] = {k0, k1};
    uint32_t out[4];
    hp_philox4x32(out, counter, key);
    CHECK(memcmp(out, answer, sizeof out) == 0);
}

static void test_known_answers(void)
{
    const uint32_t f = 0xffffffffu;
    known(0, 0, 0, 0, 0, 0, (uint32_t[]){0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
    known(f, f, f, f, f, f, (uint32_t[]){0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
    known(0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0,
          (uint32_t[]){0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

static size_t item_of(int kind)
{
    return kind == HP_BITS32 || kind == HP_UNIFORM32 || kind == HP_NORMAL32 ? 4 : 8;
}

static void test_cuts(int kind)
{
    enum { N = 1000 };
    const uint64_t seed = 0x0123456789abcdefu, stream = 77, start = 0xffffff00u;
    const size_t item = item_of(kind);
    char whole[N * 8], part[N * 8];
    hp_philox_fill(whole, (enum hp_random)kind, seed, stream, start, N);
    uint64_t state = 88172645463325252u;
    for (int i = 0; i < 200; i++) {
        const size_t at = random64(&state) % N, n = random64(&state) % (N - at + 1);
        hp_philox_fill(part, (enum hp_random)kind, seed, stream, start + at, n);
        CHECK(memcmp(part, whole + at * item, n * item) == 0);
    }
}

static void test_ranges(void)
{
    enum { N = 100000 };
    static double x[N];
    hp_philox_fill(x, HP_UNIFORM64, 1, 2, 0, N);
    for (int i = 0; i < N; i++)
        CHECK(x[i] >= 0.0 && x[i] < 1.0);
    hp_philox_fill(x, HP_NORMAL64, 1, 2, 0, N);
    for (int i = 0; i < N; i++)
        CHECK(fabs(x[i]) < 8.6);
}

int main(void)
{
    test_known_answers();
    for (int kind = HP_BITS32; kind <= HP_NORMAL64; kind++)
        test_cuts(kind);
    test_ranges();
    return 0;
}
