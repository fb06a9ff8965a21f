/* Kernels of bool and the integers. Sums and products wrap, so they run on unsigned types. */
#include "kernels.h"

#define STEP(name, T, expr)                                                  \
    static void name(void *dst, const void *va, const void *vb, size_t n)    \
    {                                                                        \
        T *d = dst;                                                          \
        const T *x = va, *y = vb;                                            \
        HP_IVDEP                                                             \
        for (size_t i = 0; i < n; i++) {                                     \
            const T a = x[i], b = y[i];                                      \
            d[i] = (T)(expr);                                                \
        }                                                                    \
    }

/* 1u lifts 8 and 16 bits to unsigned, not to int, whose overflow would be undefined. */
#define WRAPPING(bits)                                      \
    STEP(sum##bits, uint##bits##_t, 1u * a + b)             \
    STEP(prod##bits, uint##bits##_t, 1u * a * b)            \
    STEP(band##bits, uint##bits##_t, a & b)                 \
    STEP(bor##bits, uint##bits##_t, a | b)                  \
    STEP(bxor##bits, uint##bits##_t, a ^ b)                 \
    STEP(min_u##bits, uint##bits##_t, a < b ? a : b)        \
    STEP(max_u##bits, uint##bits##_t, a > b ? a : b)        \
    STEP(min_i##bits, int##bits##_t, a < b ? a : b)         \
    STEP(max_i##bits, int##bits##_t, a > b ? a : b)

WRAPPING(8)
WRAPPING(16)
WRAPPING(32)
WRAPPING(64)

/* A bool byte may hold any value in a view; the results are 0 or 1. */
STEP(bool_or, uint8_t, (a | b) != 0)
STEP(bool_and, uint8_t, (a != 0) & (b != 0))
STEP(bool_xor, uint8_t, (a != 0) ^ (b != 0))

#define ROW(sign, bits)                                                                   \
    {sum##bits, prod##bits, min_##sign##bits, max_##sign##bits, band##bits, bor##bits, bxor##bits}

const struct hp_int_kernels HP_NAME(hp_ints) = {
    .step =
        {
            [HP_BOOL] = {bool_or, bool_and, bool_and, bool_or, bool_and, bool_or, bool_xor},
            [HP_I8] = ROW(i, 8),
            [HP_I16] = ROW(i, 16),
            [HP_I32] = ROW(i, 32),
            [HP_I64] = ROW(i, 64),
            [HP_U8] = ROW(u, 8),
            [HP_U16] = ROW(u, 16),
            [HP_U32] = ROW(u, 32),
            [HP_U64] = ROW(u, 64),
        },
};
