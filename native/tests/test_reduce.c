/*
 * Reductions at every SIMD level against a scalar twin: all dtypes and operations, several
 * numbers of sources, all small lengths, odd element offsets, `out` among the sources.
 */
#include <errno.h>
#include <math.h>

#include "check.h"

enum { MAX_SRCS = 5, MAX_COUNT = 5000, ROOM = (MAX_COUNT + 8) * 16 };

static uint64_t state = 88172645463325252u;
static _Alignas(64) char sources[MAX_SRCS][ROOM], right[ROOM], out[ROOM];

static bool is_complex(int dtype)
{
    return dtype == HP_C64 || dtype == HP_C128;
}

static bool is_float(int dtype)
{
    return hp_is_real_float(dtype) || is_complex(dtype);
}

static bool is_wide(int dtype)
{
    return dtype == HP_F64 || dtype == HP_C128;
}

/* ---- the twin: one element at a time ------------------------------------------------------ */

#define TWIN_INT(T, U)                                               \
    static void twin_##T(int op, void *acc, const void *x)           \
    {                                                                \
        T a, b;                                                      \
        memcpy(&a, acc, sizeof a);                                   \
        memcpy(&b, x, sizeof b);                                     \
        switch (op) {                                                \
        case HP_SUM: a = (T)((U)a + (U)b); break;                    \
        case HP_PROD: a = (T)((U)a * (U)b); break;                   \
        case HP_MIN: a = b < a ? b : a; break;                       \
        case HP_MAX: a = b > a ? b : a; break;                       \
        case HP_BAND: a = (T)(a & b); break;                         \
        case HP_BOR: a = (T)(a | b); break;                          \
        case HP_BXOR: a = (T)(a ^ b); break;                         \
        }                                                            \
        memcpy(acc, &a, sizeof a);                                   \
    }

TWIN_INT(int8_t, uint64_t)
TWIN_INT(int16_t, uint64_t)
TWIN_INT(int32_t, uint64_t)
TWIN_INT(int64_t, uint64_t)
TWIN_INT(uint8_t, uint64_t)
TWIN_INT(uint16_t, uint64_t)
TWIN_INT(uint32_t, uint64_t)
TWIN_INT(uint64_t, uint64_t)

static void twin_bool(int op, void *acc, const void *x)
{
    uint8_t *const a = acc;
    const bool p = *a, q = *(const uint8_t *)x;
    const bool either = op == HP_SUM || op == HP_MAX || op == HP_BOR;
    *a = op == HP_BXOR ? p != q : either ? p || q : p && q;
}

#define TWIN_FLOAT(T)                                                \
    static void twin_##T(int op, void *acc, const void *x)           \
    {                                                                \
        T a, b;                                                      \
        memcpy(&a, acc, sizeof a);                                   \
        memcpy(&b, x, sizeof b);                                     \
        const bool keep = a != a || (a == b && !signbit(a) == !signbit(b)); \
        if (op == HP_SUM)                                            \
            a = a + b;                                               \
        else if (op == HP_PROD)                                      \
            a = a * b;                                               \
        else if (!keep && b != b)                                    \
            a = b;                                                   \
        else if (!keep && op == HP_MIN)                              \
            a = b < a || (a == b && signbit(b)) ? b : a;             \
        else if (!keep)                                              \
            a = b > a || (a == b && !signbit(b)) ? b : a;            \
        memcpy(acc, &a, sizeof a);                                   \
    }                                                                \
    static void twin_complex_##T(int op, void *acc, const void *x)   \
    {                                                                \
        T a[2], b[2];                                                \
        memcpy(a, acc, sizeof a);                                    \
        memcpy(b, x, sizeof b);                                      \
        const T sum[2] = {a[0] + b[0], a[1] + b[1]};                 \
        const T prod[2] = {a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]}; \
        memcpy(acc, op == HP_SUM ? sum : prod, sizeof a);            \
    }

TWIN_FLOAT(float)
TWIN_FLOAT(double)

typedef void twin_fn(int op, void *acc, const void *x);

static twin_fn *const twins[HP_NUM_DTYPES] = {
    [HP_BOOL] = twin_bool,    [HP_I8] = twin_int8_t,           [HP_I16] = twin_int16_t,
    [HP_I32] = twin_int32_t,  [HP_I64] = twin_int64_t,         [HP_U8] = twin_uint8_t,
    [HP_U16] = twin_uint16_t, [HP_U32] = twin_uint32_t,        [HP_U64] = twin_uint64_t,
    [HP_F32] = twin_float,    [HP_F64] = twin_double,          [HP_C64] = twin_complex_float,
    [HP_F16] = twin_float,    [HP_C128] = twin_complex_double, [HP_BF16] = twin_float,
    [HP_F8E4M3FN] = twin_float, [HP_F8E5M2] = twin_float,
};

static bool is_narrow(int dtype)
{
    return hp_is_real_float(dtype) && hp_itemsize(dtype) < 4;
}

/* One element of a source as the accumulator has it; casts have a test of their own. */
static void load(const struct hp_reduction *r, size_t s, size_t i, void *acc)
{
    const size_t item = hp_itemsize(r->dtype);
    const char *const x = (const char *)r->srcs[s] + i * item;
    if (is_narrow(r->dtype))
        hp_cast(hp_kernels_of(HP_BASELINE), acc, HP_F32, x, r->dtype, 1.0, 1);
    else
        memcpy(acc, x, item);
}

/* Multiply, or divide, all components of an accumulator. */
static void by(int dtype, void *acc, double factor, bool divide)
{
    for (int c = 0; c <= is_complex(dtype); c++)
        if (is_wide(dtype))
            ((double *)acc)[c] = divide ? ((double *)acc)[c] / factor : ((double *)acc)[c] * factor;
        else
            ((float *)acc)[c] = divide ? ((float *)acc)[c] / (float)factor
                                       : ((float *)acc)[c] * (float)factor;
}

static void twin(const struct hp_reduction *r, char *to)
{
    const size_t item = hp_itemsize(r->dtype);
    for (size_t i = 0; i < r->count; i++) {
        _Alignas(16) char acc[16], x[16];
        for (size_t s = 0; s < r->num_srcs; s++) {
            load(r, s, i, s ? x : acc);
            if (r->factors)
                by(r->dtype, s ? x : acc, r->factors[s], false);
            if (s)
                twins[r->dtype](r->op, acc, x);
        }
        if (r->divisor)
            by(r->dtype, acc, *r->divisor, true);
        if (is_narrow(r->dtype))
            hp_cast(hp_kernels_of(HP_BASELINE), to + i * item, r->dtype, acc, HP_F32, 1.0, 1);
        else
            memcpy(to + i * item, acc, item);
    }
}

/* ---- comparison ---------------------------------------------------------------------------- */

/* Any NaN equals any NaN: which of two NaNs an addition returns is the compiler's choice. */
static bool same(int dtype, const char *a, const char *b, size_t count)
{
    const size_t parts = is_complex(dtype) ? 2 : 1, item = hp_itemsize(dtype) / parts;
    const int part = dtype == HP_C64 ? HP_F32 : dtype == HP_C128 ? HP_F64 : dtype;
    for (size_t i = 0; i < count * parts; i++) {
        double x = 0, y = 0;
        if (memcmp(a + i * item, b + i * item, item) == 0)
            continue;
        if (!is_float(dtype))
            return false;
        hp_cast(hp_kernels_of(HP_BASELINE), &x, HP_F64, a + i * item, part, 1.0, 1);
        hp_cast(hp_kernels_of(HP_BASELINE), &y, HP_F64, b + i * item, part, 1.0, 1);
        if (x == x || y == y)
            return false;
    }
    return true;
}

/* Random bits hold NaNs, infinities and subnormals; half of the floats are made ordinary. */
static void fill_sources(int dtype)
{
    random_bytes(sources, sizeof sources, &state);
    for (size_t s = 0; s < MAX_SRCS; s++)
        for (size_t i = 0; i < ROOM / 8 && is_float(dtype); i += 2) {
            const double whole = (double)(int64_t)(random64(&state) % 7) - 3;
            const double x = whole == 0 && random64(&state) % 2 ? -0.0 : whole;
            const float y = (float)x;
            if (is_wide(dtype))
                memcpy(sources[s] + 8 * i, &x, 8);
            else if (hp_itemsize(dtype) >= 4)
                memcpy(sources[s] + 8 * i, &y, 4);
        }
}

static void compare(const struct hp_kernels *k, struct hp_reduction r, size_t offset)
{
    const void *srcs[MAX_SRCS];
    const size_t item = hp_itemsize(r.dtype);
    for (size_t s = 0; s < r.num_srcs; s++)
        srcs[s] = sources[s] + (offset + s) % 8 * item;
    r.srcs = srcs;
    twin(&r, right);
    r.out = out + offset * item;
    memset(out, 0x5a, sizeof out);
    CHECK(hp_reduce(k, &r) == 0);
    CHECK(same(r.dtype, r.out, right, r.count));
    for (size_t i = 0; i < item; i++) /* nothing behind the end */
        CHECK(((char *)r.out)[r.count * item + i] == 0x5a);
    const size_t alias = random64(&state) % r.num_srcs;
    static char kept[ROOM], kept_too[ROOM];
    memcpy(kept, sources[alias], ROOM);
    r.out = (void *)srcs[alias];
    CHECK(hp_reduce(k, &r) == 0);
    CHECK(same(r.dtype, r.out, right, r.count));
    memcpy(sources[alias], kept, ROOM);
    /* Two results: on two sources, or on one and beside it. */
    const size_t other = (alias + 1) % r.num_srcs;
    r.also = other == alias ? out + offset * item : (void *)srcs[other];
    memcpy(kept_too, sources[other], ROOM);
    CHECK(hp_reduce(k, &r) == 0);
    CHECK(same(r.dtype, r.out, right, r.count) && same(r.dtype, r.also, right, r.count));
    memcpy(sources[other], kept_too, ROOM);
    memcpy(sources[alias], kept, ROOM);
}

/* Past the caches, to two places that lie alike in their lines or not, or to one. */
static void compare_past(const struct hp_kernels *k, int dtype, size_t count, size_t shift)
{
    static _Alignas(64) char also[ROOM];
    const size_t item = hp_itemsize(dtype);
    const void *const srcs[2] = {sources[0] + item, sources[1] + 3 * item};
    struct hp_reduction r = {.srcs = srcs, .num_srcs = 2, .dtype = dtype, .op = HP_SUM,
                             .count = count};
    r.out = right;
    CHECK(hp_reduce(k, &r) == 0);
    r.out = out + item;
    for (int twice = 0; twice < 2; twice++) {
        r.also = twice ? also + shift * item : NULL;
        memset(out, 0x5a, sizeof out);
        memset(also, 0x5a, sizeof also);
        CHECK(hp_reduce_past(k, &r));
        CHECK(same(dtype, r.out, right, count) && (!twice || same(dtype, r.also, right, count)));
        for (size_t i = 0; i < item; i++) /* nothing beside them */
            CHECK(out[i] == 0x5a && out[(count + 1) * item + i] == 0x5a &&
                  also[(count + shift) * item + i] == 0x5a);
    }
}

static void test_past(const struct hp_kernels *k, int dtype)
{
    fill_sources(dtype);
    for (size_t count = 0; count < 70; count++)
        for (size_t shift = 0; shift < 6; shift++)
            compare_past(k, dtype, count, shift);
    compare_past(k, dtype, MAX_COUNT, 1);
}

static void test_not_past(const struct hp_kernels *k)
{
    const void *srcs[3] = {sources[0], sources[1], sources[2]};
    const double two = 2.0;
    struct hp_reduction r = {.out = out, .srcs = srcs, .num_srcs = 3, .count = 1, .dtype = HP_F32};
    r.op = HP_SUM;
    CHECK(!hp_reduce_past(k, &r));
    r.num_srcs = 2, r.op = HP_MAX;
    CHECK(!hp_reduce_past(k, &r));
    r.op = HP_SUM, r.divisor = &two;
    CHECK(!hp_reduce_past(k, &r));
    r.divisor = NULL, r.dtype = HP_I32;
    CHECK(!hp_reduce_past(k, &r));
}

static void test_pair(const struct hp_kernels *k, int dtype, int op)
{
    fill_sources(dtype);
    for (size_t n = 1; n <= MAX_SRCS; n++) {
        struct hp_reduction r = {.num_srcs = n, .dtype = dtype, .op = op};
        for (r.count = 0; r.count < 70; r.count++)
            compare(k, r, r.count % 8);
        r.count = MAX_COUNT; /* several blocks */
        compare(k, r, n);
    }
}

static void test_scaled(const struct hp_kernels *k, int dtype)
{
    const double factors[MAX_SRCS] = {0.5, -1.25, 3.0, 0.1, 1.0}, divisor = 3.0;
    fill_sources(dtype);
    for (size_t n = 1; n <= MAX_SRCS; n++)
        for (int which = 1; which < 4; which++) {
            struct hp_reduction r = {.num_srcs = n, .dtype = dtype, .op = HP_SUM, .count = 2500};
            r.factors = which & 1 ? factors : NULL;
            r.divisor = which & 2 ? &divisor : NULL;
            compare(k, r, n);
        }
}

static void test_refused(const struct hp_kernels *k)
{
    const void *srcs[1] = {sources[0]};
    const double one = 1.0;
    struct hp_reduction r = {.out = out, .srcs = srcs, .num_srcs = 1, .count = 1};
    r.dtype = HP_F32, r.op = HP_BAND;
    CHECK(hp_reduce(k, &r) == -ENOTSUP);
    r.dtype = HP_I32, r.op = HP_SUM, r.divisor = &one;
    CHECK(hp_reduce(k, &r) == -ENOTSUP);
    r.divisor = NULL, r.dtype = HP_NUM_DTYPES;
    CHECK(hp_reduce(k, &r) == -EINVAL);
    r.dtype = HP_I32, r.op = HP_NUM_OPS;
    CHECK(hp_reduce(k, &r) == -EINVAL);
    r.op = HP_SUM, r.num_srcs = 0;
    CHECK(hp_reduce(k, &r) == -EINVAL);
}

int main(void)
{
    CHECK(hp_kernels_of(hp_best_level()) && !hp_kernels_of(HP_NUM_LEVELS));
    FOR_EACH_LEVEL(k)
    {
        fprintf(stderr, "level %s\n", hp_level_name((enum hp_level)level_));
        for (int dtype = 0; dtype < HP_NUM_DTYPES; dtype++) {
            for (int op = 0; op < HP_NUM_OPS; op++)
                if (hp_reducible(dtype, op))
                    test_pair(k, dtype, op);
            if (hp_scalable(dtype))
                test_scaled(k, dtype);
        }
        for (int dtype = HP_F32; dtype <= HP_C128; dtype++)
            if (hp_itemsize(dtype) >= 4)
                test_past(k, dtype);
        test_not_past(k);
        test_refused(k);
    }
    return 0;
}
