/* The dtype x op table. */
#include "hpcpar.h"

#define BIT(op) (1u << (op))
#define SUM_PROD (BIT(HP_SUM) | BIT(HP_PROD))
#define MIN_MAX (BIT(HP_MIN) | BIT(HP_MAX))
#define BITWISE (BIT(HP_BAND) | BIT(HP_BOR) | BIT(HP_BXOR))
#define INTEGER (SUM_PROD | MIN_MAX | BITWISE)

/* What a dtype can do. */
struct traits {
    uint8_t itemsize;
    uint8_t ops; /* BIT(op) set */
    bool scalable;   /* mean and premul_sum have a meaning */
    bool real_float; /* hp_cast takes it */
};

/* float8 has sums but no products and no mean: three bits of mantissa would not bear them. */
static const struct traits table[HP_NUM_DTYPES] = {
    [HP_BOOL] = {1, INTEGER, false, false},
    [HP_I8] = {1, INTEGER, false, false},
    [HP_I16] = {2, INTEGER, false, false},
    [HP_I32] = {4, INTEGER, false, false},
    [HP_I64] = {8, INTEGER, false, false},
    [HP_U8] = {1, INTEGER, false, false},
    [HP_U16] = {2, INTEGER, false, false},
    [HP_U32] = {4, INTEGER, false, false},
    [HP_U64] = {8, INTEGER, false, false},
    [HP_F16] = {2, SUM_PROD | MIN_MAX, true, true},
    [HP_BF16] = {2, SUM_PROD | MIN_MAX, true, true},
    [HP_F32] = {4, SUM_PROD | MIN_MAX, true, true},
    [HP_F64] = {8, SUM_PROD | MIN_MAX, true, true},
    [HP_C64] = {8, SUM_PROD, true, false},
    [HP_C128] = {16, SUM_PROD, true, false},
    [HP_F8E4M3FN] = {1, BIT(HP_SUM) | MIN_MAX, false, true},
    [HP_F8E5M2] = {1, BIT(HP_SUM) | MIN_MAX, false, true},
};

static bool known(int dtype)
{
    return dtype >= 0 && dtype < HP_NUM_DTYPES;
}

size_t hp_itemsize(int dtype)
{
    return known(dtype) ? table[dtype].itemsize : 0;
}

bool hp_reducible(int dtype, int op)
{
    return known(dtype) && op >= 0 && op < HP_NUM_OPS && (table[dtype].ops & BIT(op));
}

bool hp_scalable(int dtype)
{
    return known(dtype) && table[dtype].scalable;
}

bool hp_is_real_float(int dtype)
{
    return known(dtype) && table[dtype].real_float;
}
