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

bool hp_py_are_plain(PyObject *first, PyObject *second)
{
    PyArrayObject *const x = hp_py_plain(first), *const out = hp_py_plain(second);
    return x && out && PyArray_TYPE(x) == PyArray_TYPE(out) && PyArray_ISWRITEABLE(out);
}

long hp_py_pair(PyArrayObject *x, PyArrayObject *out, Py_ssize_t place)
{
    const char *const from = PyArray_BYTES(x), *const to = PyArray_BYTES(out);
    if (from == to + place)
        return 2;
    return from + PyArray_NBYTES(x) <= to || to + PyArray_NBYTES(out) <= from;
}

static PyObject *plain_pair(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *first, *second;
    int same = true;
    Py_ssize_t place = 0;
    if (!PyArg_ParseTuple(args, "OO|pn:plain_pair", &first, &second, &same, &place))
        return NULL;
    PyArrayObject *const x = (PyArrayObject *)first, *const out = (PyArrayObject *)second;
    const bool fine = hp_py_are_plain(first, second) && (!same || same_shape(x, out));
    return PyLong_FromLong(fine ? hp_py_pair(x, out, place) : 0);
}

PyMethodDef hp_py_layout_methods[] = {
    {"plain_pair", plain_pair, METH_VARARGS,
     "plain_pair(x, out, same=True, place=0, /)\n--\n\n"
     "1: both plain, alike and disjoint; 2: x begins `place` bytes into out; 0: neither, or not "
     "plain."},
    {NULL, NULL, 0, NULL},
};
