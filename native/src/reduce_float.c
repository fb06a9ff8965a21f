/*
 * Kernels of float32, float64 and complex.
 *
 * min and max: the first NaN wins, as in np.minimum; of zeros, min takes -0.0 and max takes 0.0,
 * whatever the order. Equal numbers have equal bits except for zeros, so "equal: OR (min) or AND
 * (max) the bits" says just that, without a branch.
 */
#include <string.h>

#include "kernels.h"

#ifdef __x86_64__
#include <emmintrin.h>
#endif

#define MIN_MAX(T, U)                                      \
    static inline T min_##T(T a, T b)                      \
    {                                                      \
        const T r = (a < b || a != a) ? a : b;             \
        U x, y, z;                                         \
        memcpy(&x, &a, sizeof x);                          \
        memcpy(&y, &b, sizeof y);                          \
        memcpy(&z, &r, sizeof z);                          \
        z = a == b ? x | y : z;                            \
        T out;                                             \
        memcpy(&out, &z, sizeof out);                      \
        return out;                                        \
    }                                                      \
    static inline T max_##T(T a, T b)                      \
    {                                                      \
        const T r = (a > b || a != a) ? a : b;             \
        U x, y, z;                                         \
        memcpy(&x, &a, sizeof x);                          \
        memcpy(&y, &b, sizeof y);                          \
        memcpy(&z, &r, sizeof z);                          \
        z = a == b ? x & y : z;                            \
        T out;                                             \
        memcpy(&out, &z, sizeof out);                      \
        return out;                                        \
    }

MIN_MAX(float, uint32_t)
MIN_MAX(double, uint64_t)

#define STEP(name, T, expr)                                               \
    static void name(void *dst, const void *va, const void *vb, size_t n) \
    {                                                                     \
        T *d = dst;                                                       \
        const T *x = va, *y = vb;                                         \
        HP_IVDEP                                                          \
        for (size_t i = 0; i < n; i++) {                                  \
            const T a = x[i], b = y[i];                                   \
            d[i] = expr;                                                  \
        }                                                                 \
    }

#define SUM(name, T, expr)                                              \
    static void name(void *dst, const void *const *srcs, size_t n)      \
    {                                                                   \
        T *d = dst;                                                     \
        const T *a = srcs[0], *b = srcs[1], *c = srcs[2];               \
        HP_IVDEP                                                        \
        for (size_t i = 0; i < n; i++)                                  \
            d[i] = expr;                                                \
    }

#define BOTH(name, T)                                                                \
    static void name(void *one, void *other, const void *va, const void *vb, size_t n) \
    {                                                                                \
        T *d = one, *e = other;                                                      \
        const T *a = va, *b = vb;                                                    \
        HP_IVDEP                                                                     \
        for (size_t i = 0; i < n; i++) {                                             \
            const T sum = a[i] + b[i];                                               \
            d[i] = sum;                                                              \
            e[i] = sum;                                                              \
        }                                                                            \
    }

/*
 * Whole lines past the caches: a result that leaves them anyhow is not read before it is written.
 * Targets that lie differently in their lines cannot both be aligned, as such stores must be.
 */
#define AHEAD 1024
#ifdef __x86_64__
#define PAST(name, T)                                                                        \
    static inline void stream_##name(T *to, const T *from)                                   \
    {                                                                                        \
        for (int i = 0; i < 4; i++)                                                          \
            _mm_stream_si128((__m128i *)to + i, _mm_loadu_si128((const __m128i *)from + i)); \
    }                                                                                        \
    static void name(void *one, void *other, const void *va, const void *vb, size_t n)       \
    {                                                                                        \
        enum { WHOLE = HP_CACHE_LINE / sizeof(T) };                                          \
        T *d = one, *e = other ? other : one;                                                \
        const T *a = va, *b = vb;                                                            \
        const size_t head = (size_t)(-(uintptr_t)d & (HP_CACHE_LINE - 1)) / sizeof(T);       \
        size_t i = 0;                                                                        \
        for (; i < n && i < head; i++)                                                       \
            d[i] = e[i] = a[i] + b[i];                                                       \
        if (((uintptr_t)d - (uintptr_t)e) % sizeof(__m128i) == 0)                            \
            for (; i + WHOLE <= n; i += WHOLE) {                                             \
                T sum[WHOLE];                                                                \
                __builtin_prefetch((const char *)(a + i) + AHEAD);                           \
                __builtin_prefetch((const char *)(b + i) + AHEAD);                           \
                for (int k = 0; k < WHOLE; k++)                                              \
                    sum[k] = a[i + (size_t)k] + b[i + (size_t)k];                            \
                stream_##name(d + i, sum);                                                   \
                if (e != d)                                                                  \
                    stream_##name(e + i, sum);                                               \
            }                                                                                \
        _mm_sfence(); /* a later release does not order streamed stores */                   \
        for (; i < n; i++)                                                                   \
            d[i] = e[i] = a[i] + b[i];                                                       \
    }
#else
#define PAST(name, T)                                                                        \
    static void name(void *one, void *other, const void *va, const void *vb, size_t n)       \
    {                                                                                        \
        T *d = one, *e = other ? other : one;                                                \
        const T *a = va, *b = vb;                                                            \
        for (size_t i = 0; i < n; i++)                                                       \
            d[i] = e[i] = a[i] + b[i];                                                       \
    }
#endif

#define BY(name, T, sign)                                             \
    static void name(void *dst, const void *src, double by, size_t n) \
    {                                                                 \
        T *d = dst;                                                   \
        const T *x = src;                                             \
        const T y = (T)by;                                            \
        HP_IVDEP                                                      \
        for (size_t i = 0; i < n; i++)                                \
            d[i] = x[i] sign y;                                       \
    }

/*
 * Products first, their sums after: gcc makes one fused step of "multiply, then subtract and add by
 * turns" although contraction is off, and results would depend on the SIMD level.
 */
#define TOGETHER 64
#define COMPLEX_PROD(name, T)                                                \
    static void name(void *dst, const void *va, const void *vb, size_t n)    \
    {                                                                        \
        const T *x = va, *y = vb;                                            \
        T *d = dst;                                                          \
        for (size_t at = 0; at < n; at += TOGETHER) {                        \
            T by_real[2 * TOGETHER], by_imag[2 * TOGETHER];                  \
            const size_t many = n - at < TOGETHER ? n - at : TOGETHER;       \
            HP_IVDEP                                                         \
            for (size_t i = 0; i < many; i++) {                              \
                const T ar = x[2 * (at + i)], ai = x[2 * (at + i) + 1];      \
                const T br = y[2 * (at + i)], bi = y[2 * (at + i) + 1];      \
                by_real[2 * i] = ar * br;                                    \
                by_real[2 * i + 1] = ar * bi;                                \
                by_imag[2 * i] = ai * bi;                                    \
                by_imag[2 * i + 1] = ai * br;                                \
            }                                                                \
            HP_IVDEP                                                         \
            for (size_t i = 0; i < many; i++) {                              \
                d[2 * (at + i)] = by_real[2 * i] - by_imag[2 * i];           \
                d[2 * (at + i) + 1] = by_real[2 * i + 1] + by_imag[2 * i + 1]; \
            }                                                                \
        }                                                                    \
    }

#define FAMILY(T)                                  \
    STEP(sum_step_##T, T, a + b)                   \
    STEP(prod_step_##T, T, a *b)                   \
    STEP(min_step_##T, T, min_##T(a, b))           \
    STEP(max_step_##T, T, max_##T(a, b))           \
    SUM(sum3_##T, T, a[i] + b[i] + c[i])           \
    SUM(sum4_##T, T, a[i] + b[i] + c[i] + ((const T *)srcs[3])[i]) \
    BOTH(sum2_both_##T, T)                         \
    PAST(sum2_past_##T, T)                         \
    BY(multiply_##T, T, *)                         \
    BY(divide_##T, T, /)                           \
    COMPLEX_PROD(complex_prod_##T, T)

FAMILY(float)
FAMILY(double)

#define ROW(T) {sum_step_##T, prod_step_##T, min_step_##T, max_step_##T, NULL, NULL, NULL}

const struct hp_float_kernels HP_NAME(hp_floats) = {
    .step = {ROW(float), ROW(double)},
    .sum3 = {sum3_float, sum3_double},
    .sum4 = {sum4_float, sum4_double},
    .sum2_both = {sum2_both_float, sum2_both_double},
    .sum2_past = {sum2_past_float, sum2_past_double},
    .complex_prod = {complex_prod_float, complex_prod_double},
    .multiply = {multiply_float, multiply_double},
    .divide = {divide_float, divide_double},
};
