/*
 * Casts at every SIMD level, against arithmetic in double: each code of a narrow format, each
 * midpoint between two neighbours, and the numbers just beside it. That is all that rounding to
 * nearest even can get wrong.
 */
#include <errno.h>
#include <math.h>

#include "check.h"

struct format {
    int dtype, exponent, mantissa;
    bool finite; /* no infinity, one NaN */
};

static const struct format formats[] = {
    {HP_F16, 5, 10, false},
    {HP_BF16, 8, 7, false},
    {HP_F8E4M3FN, 4, 3, true},
    {HP_F8E5M2, 5, 2, false},
};

/* The value of a non-negative code; the code after the largest number counts as the next. */
static double value_of(const struct format *f, uint32_t code)
{
    const int bias = (1 << (f->exponent - 1)) - 1;
    const int e = (int)(code >> f->mantissa), m = (int)(code & ((1u << f->mantissa) - 1));
    return e ? ldexp(m + (1 << f->mantissa), e - bias - f->mantissa)
             : ldexp(m, 1 - bias - f->mantissa);
}

/* Infinity's code, or NaN's where there is none. */
static uint32_t top_of(const struct format *f)
{
    const uint32_t inf = ((1u << f->exponent) - 1) << f->mantissa;
    return f->finite ? inf + (1u << f->mantissa) - 1 : inf;
}

static uint32_t narrow(const struct hp_kernels *k, const struct format *f, const void *x, int from)
{
    uint16_t wide[16] = {0};
    uint8_t byte[16] = {0};
    char many[16 * 8]; /* sixteen alike: the vector loop, not the tail, does the first ones */
    const size_t item = hp_itemsize(from);
    for (int i = 0; i < 16; i++)
        memcpy(many + (size_t)i * item, x, item);
    const bool small = hp_itemsize(f->dtype) == 1;
    CHECK(hp_cast(k, small ? (void *)byte : wide, f->dtype, many, from, 1.0, 15) == 0);
    for (int i = 1; i < 15; i++)
        CHECK(small ? byte[i] == byte[0] : wide[i] == wide[0]);
    return small ? byte[0] : wide[0];
}

static uint32_t from_double(const struct hp_kernels *k, const struct format *f, double x)
{
    const uint32_t direct = narrow(k, f, &x, HP_F64);
    const float y = (float)x;
    if ((double)y == x)
        CHECK(narrow(k, f, &y, HP_F32) == direct);
    return direct;
}

static void test_rounding(const struct hp_kernels *k, const struct format *f)
{
    const uint32_t sign = 1u << (f->exponent + f->mantissa), top = top_of(f);
    for (uint32_t code = 0; code < top; code++) {
        const double x = value_of(f, code), next = value_of(f, code + 1), mid = (x + next) / 2;
        CHECK(from_double(k, f, x) == code);
        CHECK(from_double(k, f, -x) == (code | sign));
        CHECK(from_double(k, f, mid) == code + (code & 1));
        CHECK(from_double(k, f, nextafter(mid, 0)) == code);
        CHECK(from_double(k, f, nextafter(mid, INFINITY)) == code + 1);
        CHECK(from_double(k, f, (double)nextafterf((float)mid, INFINITY)) == code + 1);
    }
    CHECK(from_double(k, f, INFINITY) == top && from_double(k, f, -INFINITY) == (top | sign));
    CHECK(from_double(k, f, 1e300) == top);
    CHECK(from_double(k, f, 1e-300) == 0 && from_double(k, f, -1e-300) == sign);
}

static void test_widening(const struct hp_kernels *k, const struct format *f)
{
    const size_t item = hp_itemsize(f->dtype);
    const uint32_t sign = 1u << (f->exponent + f->mantissa), top = top_of(f);
    for (uint32_t code = 0; code < 2 * sign; code++) {
        uint16_t codes[9];
        float x[9];
        double y[9];
        for (int i = 0; i < 9; i++)
            memcpy((char *)codes + (size_t)i * item, &code, item); /* little-endian machines */
        CHECK(hp_cast(k, x, HP_F32, codes, f->dtype, 1.0, 9) == 0);
        CHECK(hp_cast(k, y, HP_F64, codes, f->dtype, 1.0, 9) == 0);
        const uint32_t mag = code & (sign - 1);
        const bool nan = f->finite ? mag == top : mag > top;
        const double right = mag == top ? INFINITY : value_of(f, mag);
        for (int i = 0; i < 9; i++) {
            CHECK(nan ? x[i] != x[i] : x[i] == (code & sign ? -right : right));
            CHECK(nan ? y[i] != y[i] : y[i] == (double)x[i]);
            CHECK(!signbit(x[i]) == !(code & sign));
        }
    }
}

static void test_nan(const struct hp_kernels *k, const struct format *f)
{
    const float x[2] = {NAN, -NAN};
    for (int i = 0; i < 2; i++) {
        const uint32_t mag =
            narrow(k, f, &x[i], HP_F32) & ((1u << (f->exponent + f->mantissa)) - 1);
        CHECK(f->finite ? mag == top_of(f) : mag > top_of(f));
    }
}

static void test_scale(const struct hp_kernels *k)
{
    enum { N = 2500 }; /* more than two blocks */
    static float x[N], y[N];
    static double d[N];
    for (int i = 0; i < N; i++)
        x[i] = (float)i;
    CHECK(hp_cast(k, y, HP_F32, x, HP_F32, 0.1, N) == 0);
    CHECK(hp_cast(k, d, HP_F64, x, HP_F32, 0.1, N) == 0);
    for (int i = 0; i < N; i++)
        CHECK(y[i] == x[i] * 0.1f && d[i] == (double)x[i] * 0.1);
    CHECK(hp_cast(k, x, HP_F32, x, HP_F32, 2.0, N) == 0); /* in place */
    for (int i = 0; i < N; i++)
        CHECK(x[i] == 2.0f * (float)i);
    CHECK(hp_cast(k, y, HP_I32, x, HP_F32, 1.0, 1) == -ENOTSUP);
}

int main(void)
{
    FOR_EACH_LEVEL(k)
    {
        for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
            test_rounding(k, &formats[i]);
            test_widening(k, &formats[i]);
            test_nan(k, &formats[i]);
        }
        test_scale(k);
    }
    return 0;
}
