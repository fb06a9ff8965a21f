/* Numbers in symmetric arrays, for Python: who calls has checked that they are aligned words. */
#include "hp_node.h"
#include "hp_python.h"

/* The address of a one-element array, and a value; NULL with an error set. */
static void *read_word(PyObject *args, uint64_t *value)
{
    PyObject *array;
    unsigned long long number;
    if (!PyArg_ParseTuple(args, "O!K", &PyArray_Type, &array, &number))
        return NULL;
    *value = number;
    return PyArray_DATA((PyArrayObject *)array);
}

static PyObject *add_word(PyObject *module, PyObject *args)
{
    (void)module;
    uint64_t value;
    void *const word = read_word(args, &value);
    return word ? PyLong_FromUnsignedLongLong(hp_word_add(word, value)) : NULL;
}

static PyObject *store_word(PyObject *module, PyObject *args)
{
    (void)module;
    uint64_t value;
    void *const word = read_word(args, &value);
    if (!word)
        return NULL;
    hp_word_store(word, value);
    return Py_NewRef(Py_None);
}

PyMethodDef hp_py_word_methods[] = {
    {"add_word", add_word, METH_VARARGS,
     "add_word($module, array, value, /)\n--\n\nAdd in one step; return the bits it had."},
    {"store_word", store_word, METH_VARARGS,
     "store_word($module, array, value, /)\n--\n\nStore after all that was written before."},
    {NULL, NULL, 0, NULL},
};
