/* The layout of a call's operands, read in one go for the hot path of blocking verbs. */
#include "hp_python.h"

/* Whether an array is exactly an ndarray of built-in numbers, C-contiguous, aligned, native. */
PyArrayObject *hp_py_plain(PyObject *object)
{
    if (!PyArray_CheckExact(object))
        return NULL;
    PyArrayObject *const array = (PyArrayObject *)object;
    const bool fine = PyArray_ISCARRAY_RO(array) && PyArray_ISNBO(PyArray_DESCR(array)->byteorder);
    /* Of numbers one type number is one layout; of strings, dates and records it is many. */
    return fine && PyTypeNum_ISNUMBER(PyArray_TYPE(array)) ? array : NULL;
}

static bool same_shape(PyArrayObject *a, PyArrayObject *b)
{
    const int ndim = PyArray_NDIM(a);
    return ndim == PyArray_NDIM(b) &&
           PyArray_CompareLists(PyArray_DIMS(a), PyArray_DIMS(b), ndim);
}

long hp_py_plain_pair(PyObject *first, PyObject *second, bool same)
{
    PyArrayObject *const x = hp_py_plain(first), *const out = hp_py_plain(second);
    if (!x || !out || PyArray_TYPE(x) != PyArray_TYPE(out) || !PyArray_ISWRITEABLE(out) ||
        (same && !same_shape(x, out)))
        return 0;
    const char *const from = PyArray_BYTES(x), *const to = PyArray_BYTES(out);
    if (from == to)
        return 2;
    return from + PyArray_NBYTES(x) <= to || to + PyArray_NBYTES(out) <= from;
}

static PyObject *plain_pair(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    (void)module;
    if (given != 2 && given != 3)
        return PyErr_Format(PyExc_TypeError, "plain_pair: takes 2 or 3 arguments, got %zd", given);
    const bool same = given == 2 || args[2] == Py_True;
    return PyLong_FromLong(hp_py_plain_pair(args[0], args[1], same));
}

PyMethodDef hp_py_layout_methods[] = {
    {"plain_pair", (PyCFunction)(void (*)(void))plain_pair, METH_FASTCALL,
     "plain_pair(x, out, same=True, /)\n--\n\n"
     "1: both plain, alike and disjoint; 2: the same start; 0: neither, or not plain."},
    {NULL, NULL, 0, NULL},
};
