/*
 * kernels.h - what one SIMD level offers. The kernel sources are compiled once per level with
 * HP_LEVEL set; all but their tables is static, so no code of a higher level can leak into a
 * lower one.
 */
#ifndef HP_KERNELS_H
#define HP_KERNELS_H

#include "compiler.h"
#include "hpcpar.h"

#define HP_PASTE2(a, b) a##_##b
#define HP_PASTE(a, b) HP_PASTE2(a, b)
#define HP_NAME(stem) HP_PASTE(stem, HP_LEVEL)

/* dst[i] = a[i] op b[i]; dst may be a or b */
typedef void hp_step_fn(void *dst, const void *a, const void *b, size_t n);
/* dst[i] = src[i] * by, or src[i] / by */
typedef void hp_by_fn(void *dst, const void *src, double by, size_t n);
/* dst[i] = srcs[0][i] + srcs[1][i] + ..., in this order, for a fixed number of sources */
typedef void hp_sum_fn(void *dst, const void *const *srcs, size_t n);
/* one[i] = other[i] = a[i] + b[i]; one may be a or b, and other too */
typedef void hp_both_fn(void *one, void *other, const void *a, const void *b, size_t n);
/* one[i] = a[i] + b[i], past the caches, and the same at `other` unless it is NULL; disjoint */
typedef void hp_past_fn(void *one, void *other, const void *a, const void *b, size_t n);
/* float32 from, and to, a narrow float */
typedef void hp_widen_fn(float *dst, const void *src, size_t n);
typedef void hp_narrow_fn(void *dst, const float *src, size_t n);

struct hp_int_kernels {
    hp_step_fn *step[HP_U64 + 1][HP_NUM_OPS]; /* HP_BOOL to HP_U64 */
};

struct hp_float_kernels {
    hp_step_fn *step[2][HP_NUM_OPS]; /* float32, float64 */
    hp_sum_fn *sum3[2];
    hp_sum_fn *sum4[2];
    hp_both_fn *sum2_both[2];
    hp_past_fn *sum2_past[2];
    hp_step_fn *complex_prod[2];
    hp_by_fn *multiply[2];
    hp_by_fn *divide[2];
};

struct hp_half_kernels {
    hp_widen_fn *widen[HP_NUM_DTYPES]; /* NULL where the dtype is its own accumulator */
    hp_narrow_fn *narrow[HP_NUM_DTYPES];
    hp_widen_fn *add[HP_NUM_DTYPES]; /* dst[i] += widen(src[i]) */
    hp_step_fn *sum2[HP_NUM_DTYPES]; /* narrow(widen(a) + widen(b)) */
};

struct hp_kernels {
    const struct hp_int_kernels *ints;
    const struct hp_float_kernels *floats;
    const struct hp_half_kernels *halves;
};

#define HP_DECLARE_LEVEL(level)                            \
    extern const struct hp_int_kernels hp_ints_##level;    \
    extern const struct hp_float_kernels hp_floats_##level; \
    extern const struct hp_half_kernels hp_halves_##level

HP_DECLARE_LEVEL(baseline);
HP_DECLARE_LEVEL(avx2);
HP_DECLARE_LEVEL(avx512);

#endif
