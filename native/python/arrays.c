/* dtypes and operation names. */
#include <string.h>

#include "hp_python.h"

/* ml_dtypes registers its types with NumPy under numbers that differ from process to process. */
static struct {
    const char *name;
    int dtype;
    int type_num; /* 0 until first seen */
} registered[] = {
    {"bfloat16", HP_BF16, 0},
    {"float8_e4m3fn", HP_F8E4M3FN, 0},
    {"float8_e5m2", HP_F8E5M2, 0},
};

#define NUM_REGISTERED (sizeof registered / sizeof registered[0])

/* By width, for C has more names of integers (long, long long) than sizes. */
static int integer_of(char kind, npy_intp itemsize)
{
    const int bytes[] = {1, 2, 4, 8};
    for (int i = 0; i < 4; i++)
        if (itemsize == bytes[i])
            return (kind == 'i' ? HP_I8 : HP_U8) + i;
    return -1;
}

static int builtin_of(int type_num, npy_intp itemsize)
{
    switch (type_num) {
    case NPY_BOOL: return HP_BOOL;
    case NPY_HALF: return HP_F16;
    case NPY_FLOAT: return HP_F32;
    case NPY_DOUBLE: return HP_F64;
    case NPY_CFLOAT: return HP_C64;
    case NPY_CDOUBLE: return HP_C128;
    default:
        if (PyTypeNum_ISSIGNED(type_num) && PyTypeNum_ISINTEGER(type_num))
            return integer_of('i', itemsize);
        return PyTypeNum_ISUNSIGNED(type_num) ? integer_of('u', itemsize) : -1;
    }
}

/* The slow way, taken once per registered type and for types that we do not know. */
static int by_name(PyArray_Descr *descr)
{
    int found = -1;
    PyObject *const name = PyObject_GetAttrString((PyObject *)descr, "name");
    const char *const text = name ? PyUnicode_AsUTF8AndSize(name, NULL) : NULL;
    for (size_t i = 0; text && i < NUM_REGISTERED; i++)
        if (strcmp(text, registered[i].name) == 0) {
            registered[i].type_num = descr->type_num;
            found = registered[i].dtype;
        }
    PyErr_Clear(); /* a type without a name is just not one of ours */
    Py_XDECREF(name);
    return found;
}

int hp_py_dtype(PyArray_Descr *descr)
{
    const int type_num = descr->type_num;
    if (!PyTypeNum_ISUSERDEF(type_num))
        return builtin_of(type_num, PyDataType_ELSIZE(descr));
    for (size_t i = 0; i < NUM_REGISTERED; i++)
        if (registered[i].type_num == type_num)
            return registered[i].dtype;
    return by_name(descr);
}

int hp_py_op(const char *name)
{
    static const char *const names[] = {"sum", "prod", "min",  "max",       "band",
                                        "bor", "bxor", "mean", "premul_sum"};
    for (int i = 0; i <= HP_PY_PREMUL_SUM; i++)
        if (strcmp(name, names[i]) == 0)
            return i;
    PyErr_Format(PyExc_ValueError,
                 "reduce: op '%s' is unknown; it is one of sum, prod, min, max, band, bor, bxor",
                 name);
    return -1;
}

bool hp_py_is_native(PyArray_Descr *descr)
{
    return PyArray_ISNBO(descr->byteorder);
}
