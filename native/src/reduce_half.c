/*
 * Conversions between float32 and the 16-bit and 8-bit floats, exact one way and rounded to
 * nearest even the other way, with the same bits at every SIMD level: the portable code is
 * branch-free integer work that compilers vectorise, and F16C does for float16 just the same.
 */
#include <string.h>

#include "kernels.h"

#ifdef __F16C__
#include <immintrin.h>
#endif

static inline uint32_t bits_of(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static inline float float_of(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* A format: E exponent bits, M mantissa bits; FINITE has no infinity and NaN = all ones. */
#define BIAS(E) ((1 << ((E)-1)) - 1)
#define REBIAS(E) ((uint32_t)(127 - BIAS(E)) << 23)
#define TOP(E, M) ((uint32_t)((1 << (E)) - 1) << (M)) /* exponent all ones */

/* 2**n for -126 <= n <= 127 */
static inline float power_of_two(int n)
{
    return float_of((uint32_t)(n + 127) << 23);
}

/* The value of a code, quiet if it is a NaN, as F16C has it. */
static inline float widen_one(uint32_t code, int E, int M, int finite)
{
    const uint32_t sign = (code >> (E + M)) << 31;
    const uint32_t mag = code & ((1u << (E + M)) - 1);
    const uint32_t normal = (mag << (23 - M)) + REBIAS(E);
    /* Through the integer, not through a float32 subnormal: flags like DAZ cannot hurt. */
    const uint32_t subnormal = bits_of((float)(int32_t)mag * power_of_two(1 - BIAS(E) - M));
    uint32_t u = mag < (1u << M) ? subnormal : normal;
    if (finite) {
        u = mag == TOP(E, M) + (1u << M) - 1 ? 0x7fc00000u : u;
    } else {
        u = mag >= TOP(E, M) ? u + REBIAS(E) : u;
        u = mag > TOP(E, M) ? u | 0x00400000u : u;
    }
    return float_of(u | sign);
}

/*
 * The nearest code. For normal numbers the rounding carries from the mantissa into the exponent
 * by itself; what ends up beyond the largest number is infinity, or NaN where there is none.
 */
static inline uint32_t narrow_one(float x, int E, int M, int finite)
{
    const uint32_t u = bits_of(x), a = u & 0x7fffffffu;
    const uint32_t odd = (a >> (23 - M)) & 1;
    const uint32_t normal = (a + (1u << (22 - M)) - 1 + odd - REBIAS(E)) >> (23 - M);
    /* Adding a number whose last bit is the format's smallest step rounds to such steps. */
    const float magic = power_of_two(1 - BIAS(E) - M + 23);
    const uint32_t subnormal = bits_of(float_of(a) + magic) - bits_of(magic);
    uint32_t code = a < REBIAS(E) + (1u << 23) ? subnormal : normal;
    const uint32_t top = finite ? TOP(E, M) + (1u << M) - 1 : TOP(E, M);
    code = code > top ? top : code;
    const uint32_t nan = finite ? top : top | (1u << (M - 1)) | ((a >> (23 - M)) & ((1u << M) - 1));
    code = a > 0x7f800000u ? nan : code;
    return code | (u >> 31) << (E + M);
}

/* bfloat16 has float32's exponent: no rebias, and subnormals round like the rest. */
static inline float widen_bf16(uint16_t code)
{
    return float_of((uint32_t)code << 16);
}

static inline uint16_t narrow_bf16(float x)
{
    const uint32_t u = bits_of(x);
    /* Half a step less the last bit: ties go to even. */
    const uint32_t rounded = u + 0x7fff + ((u >> 16) & 1);
    return (uint16_t)((x != x ? u | 0x00400000u : rounded) >> 16);
}

/* The loops of a format, from element `i` on; sum2 is the common case in one pass. */
#define LOOP HP_IVDEP for (; i < n; i++)
#define FORMAT(name, T, WIDEN, NARROW, WIDEN8, ADD8, NARROW8, SUM8)               \
    static void name##_widen(float *dst, const void *src, size_t n)               \
    {                                                                             \
        const T *x = src;                                                         \
        size_t i = 0;                                                             \
        WIDEN8                                                                    \
        LOOP dst[i] = WIDEN(x[i]);                                                \
    }                                                                             \
    static void name##_add(float *dst, const void *src, size_t n)                 \
    {                                                                             \
        const T *x = src;                                                         \
        size_t i = 0;                                                             \
        ADD8                                                                      \
        LOOP dst[i] += WIDEN(x[i]);                                               \
    }                                                                             \
    static void name##_narrow(void *dst, const float *x, size_t n)                \
    {                                                                             \
        T *d = dst;                                                               \
        size_t i = 0;                                                             \
        NARROW8                                                                   \
        LOOP d[i] = (T)NARROW(x[i]);                                              \
    }                                                                             \
    static void name##_sum2(void *dst, const void *va, const void *vb, size_t n)  \
    {                                                                             \
        T *d = dst;                                                               \
        const T *x = va, *y = vb;                                                 \
        size_t i = 0;                                                             \
        SUM8                                                                      \
        LOOP d[i] = (T)NARROW(WIDEN(x[i]) + WIDEN(y[i]));                         \
    }

#define WIDEN_E4M3FN(code) widen_one(code, 4, 3, 1)
#define NARROW_E4M3FN(x) narrow_one(x, 4, 3, 1)
#define WIDEN_E5M2(code) widen_one(code, 5, 2, 0)
#define NARROW_E5M2(x) narrow_one(x, 5, 2, 0)

FORMAT(bf16, uint16_t, widen_bf16, narrow_bf16, , , , )
FORMAT(e4m3fn, uint8_t, WIDEN_E4M3FN, NARROW_E4M3FN, , , , )
FORMAT(e5m2, uint8_t, WIDEN_E5M2, NARROW_E5M2, , , , )

#ifdef __F16C__
static inline __m256 load8(const uint16_t *x)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)x));
}

static inline void store8(uint16_t *d, __m256 x)
{
    _mm_storeu_si128((__m128i *)d, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}

#define BY8 for (; i + 8 <= n; i += 8)
#define NARROW_F16(x) _cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT)
FORMAT(f16, uint16_t, _cvtsh_ss, NARROW_F16,
       BY8 _mm256_storeu_ps(dst + i, load8(x + i));,
       BY8 _mm256_storeu_ps(dst + i, _mm256_add_ps(_mm256_loadu_ps(dst + i), load8(x + i)));,
       BY8 store8(d + i, _mm256_loadu_ps(x + i));,
       BY8 store8(d + i, _mm256_add_ps(load8(x + i), load8(y + i)));)
#else
#define WIDEN_F16(code) widen_one(code, 5, 10, 0)
#define NARROW_F16(x) narrow_one(x, 5, 10, 0)
FORMAT(f16, uint16_t, WIDEN_F16, NARROW_F16, , , , )
#endif

#define ROW(stem) [HP_F16] = f16_##stem, [HP_BF16] = bf16_##stem, \
                  [HP_F8E4M3FN] = e4m3fn_##stem, [HP_F8E5M2] = e5m2_##stem

const struct hp_half_kernels HP_NAME(hp_halves) = {
    .widen = {ROW(widen)},
    .add = {ROW(add)},
    .narrow = {ROW(narrow)},
    .sum2 = {ROW(sum2)},
};
