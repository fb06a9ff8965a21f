/* philox4x32() and philox_fill(). */
#include <string.h>

#include "hp_python.h"

static PyObject *philox4x32(PyObject *module, PyObject *args)
{
    (void)module;
    unsigned int c[4], k[2];
    if (!PyArg_ParseTuple(args, "(IIII)(II):philox4x32", &c[0], &c[1], &c[2], &c[3], &k[0], &k[1]))
        return NULL;
    uint32_t out[4];
    hp_philox4x32(out, c, k);
    return Py_BuildValue("IIII", out[0], out[1], out[2], out[3]);
}

/* The number of a kind for a dtype, -1 if they do not go together. */
static int random_of(const char *kind, int dtype)
{
    if (strcmp(kind, "bits") == 0)
        return dtype == HP_U32 ? HP_BITS32 : dtype == HP_U64 ? HP_BITS64 : -1;
    if (strcmp(kind, "uniform") == 0)
        return dtype == HP_F32 ? HP_UNIFORM32 : dtype == HP_F64 ? HP_UNIFORM64 : -1;
    if (strcmp(kind, "normal") == 0)
        return dtype == HP_F32 ? HP_NORMAL32 : dtype == HP_F64 ? HP_NORMAL64 : -1;
    return -1;
}

/* A converter for PyArg_Parse: a Python integer of 0 <= n < 2**64; false with an error set. */
static int take_word(PyObject *number, void *word)
{
    PyObject *const index = PyNumber_Index(number);
    *(uint64_t *)word = index ? PyLong_AsUnsignedLongLong(index) : 0;
    Py_XDECREF(index);
    return !PyErr_Occurred();
}

static PyObject *philox_fill(PyObject *module, PyObject *args, PyObject *kwargs)
{
    (void)module;
    static char *names[] = {"out", "kind", "seed", "stream", "start", NULL};
    PyArrayObject *out;
    const char *kind;
    uint64_t seed, stream, start;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!sO&O&O&:philox_fill", names, &PyArray_Type,
                                     &out, &kind, take_word, &seed, take_word, &stream, take_word,
                                     &start))
        return NULL;
    const int random = random_of(kind, hp_py_dtype(PyArray_DESCR(out)));
    if (random < 0) {
        PyErr_Format(PyExc_TypeError,
                     "philox_fill: kind '%s' does not fill dtype %S; bits fill uint32 and uint64, "
                     "uniform and normal fill float32 and float64",
                     kind, (PyObject *)PyArray_DESCR(out));
        return NULL;
    }
    if (!PyArray_ISCARRAY(out)) { /* false for a foreign byte order, too */
        PyErr_SetString(PyExc_ValueError,
                        "philox_fill: out is not writable, C-contiguous, aligned and native");
        return NULL;
    }
    HP_BEGIN_WORK(PyArray_NBYTES(out));
    hp_philox_fill(PyArray_DATA(out), (enum hp_random)random, seed, stream, start,
                   (size_t)PyArray_SIZE(out));
    HP_END_WORK;
    return Py_NewRef(Py_None);
}

PyMethodDef hp_py_philox_methods[] = {
    {"philox4x32", philox4x32, METH_VARARGS,
     "philox4x32($module, counter, key, /)\n--\n\nOne block of Philox4x32-10."},
    {"philox_fill", (PyCFunction)(void (*)(void))philox_fill, METH_VARARGS | METH_KEYWORDS,
     "philox_fill($module, out, kind, seed, stream, start)\n--\n\n"
     "Fill out with random numbers of the elements start, start + 1, ..."},
    {NULL, NULL, 0, NULL},
};
