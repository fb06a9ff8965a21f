/* Casts between real floats, with a factor, in blocks that stay in the first-level cache. */
#include <errno.h>
#include <string.h>

#include "kernels.h"

#define BLOCK 1024 /* elements */

/*
 * float64 to float32 rounded to odd: inexact results get their last bit set, so a second
 * rounding to a format that is two or more bits shorter gives what one rounding would.
 */
static float round_to_odd(double x)
{
    const float f = (float)x;
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    const double back = f;
    if (back == x || x != x || (u & 1))
        return f;
    const bool away = (back > x) == (x > 0.0); /* rounded away from zero */
    u = away ? u - 1 : u + 1;
    float odd;
    memcpy(&odd, &u, sizeof odd);
    return odd;
}

/* Between formats of float32 and below; the factor is applied in float32. */
static void cast_float(const struct hp_kernels *k, void *dst, int dst_dtype, const void *src,
                       int src_dtype, double scale, size_t n)
{
    float room[BLOCK];
    const float *x = src;
    if (k->halves->widen[src_dtype]) {
        k->halves->widen[src_dtype](room, src, n);
        x = room;
    }
    hp_narrow_fn *const narrow = k->halves->narrow[dst_dtype];
    if (scale != 1.0) {
        float *const scaled = narrow ? room : dst;
        k->floats->multiply[0](scaled, x, scale, n);
        x = scaled;
    }
    if (narrow)
        narrow(dst, x, n);
    else if (x != dst)
        memmove(dst, x, n * sizeof *x);
}

/* Exact: float64 holds every value of the others. */
static void to_double(const struct hp_kernels *k, double *dst, const void *src, int src_dtype,
                      size_t n)
{
    float room[BLOCK];
    const float *x = src;
    if (src_dtype == HP_F64) {
        memcpy(dst, src, n * sizeof *dst);
        return;
    }
    if (k->halves->widen[src_dtype]) {
        k->halves->widen[src_dtype](room, src, n);
        x = room;
    }
    for (size_t i = 0; i < n; i++)
        dst[i] = x[i];
}

/* Rounds once, to the target, by way of an odd float32 for the narrow ones. */
static void from_double(const struct hp_kernels *k, void *dst, int dst_dtype, const double *src,
                        size_t n)
{
    float room[BLOCK];
    float *const f = dst_dtype == HP_F32 ? dst : room;
    hp_narrow_fn *const narrow = k->halves->narrow[dst_dtype];
    if (dst_dtype == HP_F64) {
        memcpy(dst, src, n * sizeof *src);
        return;
    }
    for (size_t i = 0; i < n; i++)
        f[i] = narrow ? round_to_odd(src[i]) : (float)src[i];
    if (narrow)
        narrow(dst, f, n);
}

/* Where one side is float64; the factor is applied in float64. */
static void cast_double(const struct hp_kernels *k, void *dst, int dst_dtype, const void *src,
                        int src_dtype, double scale, size_t n)
{
    double room[BLOCK];
    to_double(k, room, src, src_dtype, n);
    if (scale != 1.0)
        k->floats->multiply[1](room, room, scale, n);
    from_double(k, dst, dst_dtype, room, n);
}

int hp_cast(const struct hp_kernels *kernels, void *dst, int dst_dtype, const void *src,
            int src_dtype, double scale, size_t count)
{
    if (!hp_is_real_float(dst_dtype) || !hp_is_real_float(src_dtype))
        return -ENOTSUP;
    const size_t dst_item = hp_itemsize(dst_dtype), src_item = hp_itemsize(src_dtype);
    const bool wide = dst_dtype == HP_F64 || src_dtype == HP_F64;
    for (size_t at = 0; at < count; at += BLOCK) {
        const size_t n = count - at < BLOCK ? count - at : BLOCK;
        void *const d = (char *)dst + at * dst_item;
        const void *const s = (const char *)src + at * src_item;
        (wide ? cast_double : cast_float)(kernels, d, dst_dtype, s, src_dtype, scale, n);
    }
    return 0;
}
