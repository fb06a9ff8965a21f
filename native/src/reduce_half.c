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

#define FORMAT(name, T, E, M, finite)                               \
    static void name##_widen(float *dst, const void *src, size_t n) \
    {                                                               \
        const T *x = src;                                           \
        for (size_t i = 0; i < n; i++)                              \
            dst[i] = widen_one(x[i], E, M, finite);                 \
    }                                                               \
    static void name##_narrow(void *dst, const float *src, size_t n) \
    {                                                               \
        T *d = dst;                                                 \
        for (size_t i = 0; i < n; i++)                              \
            d[i] = (T)narrow_one(src[i], E, M, finite);             \
    }

FORMAT(e4m3fn, uint8_t, 4, 3, 1)
FORMAT(e5m2, uint8_t, 5, 2, 0)

/* bfloat16 has float32's exponent: no rebias, and subnormals round like the rest. */
static void bf16_widen(float *dst, const void *src, size_t n)
{
    const uint16_t *x = src;
    for (size_t i = 0; i < n; i++)
        dst[i] = float_of((uint32_t)x[i] << 16);
}

static void bf16_narrow(void *dst, const float *src, size_t n)
{
    uint16_t *d = dst;
    for (size_t i = 0; i < n; i++) {
        const uint32_t u = bits_of(src[i]);
        const uint32_t rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
        const uint32_t nan = (u >> 16) | 0x40;
        d[i] = (uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
    }
}

#ifdef __F16C__
static void f16_widen(float *dst, const void *src, size_t n)
{
    const uint16_t *x = src;
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(dst + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(x + i))));
    for (; i < n; i++)
        dst[i] = _cvtsh_ss(x[i]);
}

static void f16_narrow(void *dst, const float *src, size_t n)
{
    uint16_t *d = dst;
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const __m128i h = _mm256_cvtps_ph(_mm256_loadu_ps(src + i), _MM_FROUND_TO_NEAREST_INT);
        _mm_storeu_si128((__m128i *)(d + i), h);
    }
    for (; i < n; i++)
        d[i] = _cvtss_sh(src[i], _MM_FROUND_TO_NEAREST_INT);
}
#else
FORMAT(f16, uint16_t, 5, 10, 0)
#endif

const struct hp_half_kernels HP_NAME(hp_halves) = {
    .widen =
        {
            [HP_F16] = f16_widen,
            [HP_BF16] = bf16_widen,
            [HP_F8E4M3FN] = e4m3fn_widen,
            [HP_F8E5M2] = e5m2_widen,
        },
    .narrow =
        {
            [HP_F16] = f16_narrow,
            [HP_BF16] = bf16_narrow,
            [HP_F8E4M3FN] = e4m3fn_narrow,
            [HP_F8E5M2] = e5m2_narrow,
        },
};
