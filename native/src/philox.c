/*
 * Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC11), one block
 * per element, several blocks side by side so that compilers vectorise the rounds.
 */
#include <math.h>
#include <string.h>

#include "hpcpar.h"

enum { LANES = 128, ROUNDS = 10 }; /* fewer lanes are unrolled and then not vectorised */

#define MULTIPLIER_0 0xD2511F53u
#define MULTIPLIER_1 0xCD9E8D57u
#define WEYL_0 0x9E3779B9u
#define WEYL_1 0xBB67AE85u

/* Word w of lane i is c[w][i]: each step of a round is then one loop over all lanes. */
struct blocks {
    uint32_t c[4][LANES];
};

/* One round on one block. */
static inline void philox(uint32_t *c0, uint32_t *c1, uint32_t *c2, uint32_t *c3, uint32_t k0,
                          uint32_t k1)
{
    const uint64_t p0 = (uint64_t)MULTIPLIER_0 * *c0, p1 = (uint64_t)MULTIPLIER_1 * *c2;
    *c0 = (uint32_t)(p1 >> 32) ^ *c1 ^ k0;
    *c1 = (uint32_t)p1;
    *c2 = (uint32_t)(p0 >> 32) ^ *c3 ^ k1;
    *c3 = (uint32_t)p0;
}

void hp_philox4x32(uint32_t out[4], const uint32_t counter[4], const uint32_t key[2])
{
    uint32_t k0 = key[0], k1 = key[1];
    memmove(out, counter, 4 * sizeof *out);
    for (int round = 0; round < ROUNDS; round++, k0 += WEYL_0, k1 += WEYL_1)
        philox(&out[0], &out[1], &out[2], &out[3], k0, k1);
}

/* The blocks of elements start, start + 1, ... after all rounds. */
static void make_blocks(struct blocks *b, uint64_t seed, uint64_t stream, uint64_t start)
{
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int i = 0; i < LANES; i++) {
        b->c[0][i] = (uint32_t)(start + (uint64_t)i);
        b->c[1][i] = (uint32_t)((start + (uint64_t)i) >> 32);
        b->c[2][i] = (uint32_t)stream;
        b->c[3][i] = (uint32_t)(stream >> 32);
    }
    for (int round = 0; round < ROUNDS; round++, k0 += WEYL_0, k1 += WEYL_1)
        for (int i = 0; i < LANES; i++)
            philox(&b->c[0][i], &b->c[1][i], &b->c[2][i], &b->c[3][i], k0, k1);
}

static inline uint64_t word64(const struct blocks *b, int i)
{
    return b->c[0][i] | (uint64_t)b->c[1][i] << 32;
}

/*
 * Natural logarithm and cosine from + - * / only: libm's differ from one machine to the next.
 * Polynomials: FreeBSD msun e_log.c, k_cos.c, k_sin.c (Sun Microsystems, 1993); error < 1 ulp.
 */
static inline double log_unit(double x)
{
    const double ln2_hi = 6.93147180369123816490e-01, ln2_lo = 1.90821492927058770002e-10;
    const uint64_t root_half = 0x3fe6a09eull << 32, one = 0x3ffull << 52;
    uint64_t u;
    memcpy(&u, &x, sizeof u);
    u += one - root_half;
    const double k = (double)((int32_t)(u >> 52) - 0x3ff);
    u = (u & 0x000fffffffffffffull) + root_half;
    double m; /* sqrt(1/2) <= m < sqrt(2), x = m * 2**k */
    memcpy(&m, &u, sizeof m);
    const double f = m - 1.0, s = f / (2.0 + f), z = s * s, half = 0.5 * f * f;
    double r = 1.479819860511658591e-01;
    r = r * z + 1.531383769920937332e-01;
    r = r * z + 1.818357216161805012e-01;
    r = r * z + 2.222219843214978396e-01;
    r = r * z + 2.857142874366239149e-01;
    r = r * z + 3.999999999940941908e-01;
    r = r * z + 6.666666666666735130e-01;
    return k * ln2_hi - ((half - (s * (half + r * z) + k * ln2_lo)) - f);
}

/* cos(2 pi u), 0 <= u < 1: the quarter turns are split off exactly. */
static inline double cos_turn(double u)
{
    const double quarters = 4.0 * u;
    const int32_t q = (int32_t)(quarters + 0.5);
    const double x = (quarters - q) * 1.57079632679489661923, z = x * x;
    double s = 1.58969099521155010221e-10, c = -1.13596475577881948265e-11;
    s = s * z - 2.50507602534068634195e-08;
    s = s * z + 2.75573137070700676789e-06;
    s = s * z - 1.98412698298579493134e-04;
    s = s * z + 8.33333333332248946124e-03;
    s = s * z - 1.66666666666666324348e-01;
    c = c * z + 2.08757232129817482790e-09;
    c = c * z - 2.75573143513906633035e-07;
    c = c * z + 2.48015872894767294178e-05;
    c = c * z - 1.38888888888741095749e-03;
    c = c * z + 4.16666666666666019037e-02;
    const double sine = x + x * z * s, cosine = 1.0 - (0.5 * z - z * z * c);
    /* Both are computed and one is chosen: a branch would stop vectorisation. */
    const double r = q & 1 ? sine : cosine;
    return ((q + 1) & 2) ? -r : r; /* quarters 0..4: cos, -sin, -cos, sin, cos */
}

/* 53 bits in [0, 2**53) from two words; 32-bit halves, since those convert in vectors. */
static inline double bits53(uint32_t high, uint32_t low)
{
    return (double)(int32_t)(high >> 5) * 0x1p26 + (double)(int32_t)(low >> 6);
}

/* 24 bits, as many as float32 holds: the conversion is exact and never rounds up to 1. */
static inline float uniform32(const struct blocks *b, int i)
{
    return (float)(int32_t)(b->c[0][i] >> 8) * 0x1p-24f;
}

static inline double uniform64(const struct blocks *b, int i)
{
    return bits53(b->c[0][i], b->c[1][i]) * 0x1p-53;
}

/* Box-Muller on the element's own 128 bits; u1 in (0, 1] keeps the logarithm finite. */
static inline double normal(const struct blocks *b, int i)
{
    const double u1 = (bits53(b->c[0][i], b->c[1][i]) + 1.0) * 0x1p-53;
    const double u2 = bits53(b->c[2][i], b->c[3][i]) * 0x1p-53;
    return sqrt(-2.0 * log_unit(u1)) * cos_turn(u2);
}

#define EMIT(T, expr)                     \
    for (int i = 0; i < LANES; i++)       \
        ((T *)out)[i] = (T)(expr);        \
    return

/* `out` has room for LANES elements. */
static void emit(void *out, enum hp_random kind, const struct blocks *b)
{
    switch (kind) {
    case HP_BITS32: EMIT(uint32_t, b->c[0][i]);
    case HP_BITS64: EMIT(uint64_t, word64(b, i));
    case HP_UNIFORM32: EMIT(float, uniform32(b, i));
    case HP_UNIFORM64: EMIT(double, uniform64(b, i));
    case HP_NORMAL32: EMIT(float, normal(b, i));
    case HP_NORMAL64: EMIT(double, normal(b, i));
    }
}

void hp_philox_fill(void *out, enum hp_random kind, uint64_t seed, uint64_t stream,
                    uint64_t start, size_t count)
{
    const size_t item = kind == HP_BITS32 || kind == HP_UNIFORM32 || kind == HP_NORMAL32 ? 4 : 8;
    struct blocks b;
    _Alignas(8) char room[LANES * 8];
    char *at = out;
    for (size_t i = 0; i < count; i += LANES, at += LANES * item) {
        const size_t n = count - i < LANES ? count - i : LANES;
        make_blocks(&b, seed, stream, start + i);
        emit(n == LANES ? (void *)at : room, kind, &b);
        if (n < LANES)
            memcpy(at, room, n * item);
    }
}
