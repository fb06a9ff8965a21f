/*
 * ForeignCall: a C function of another library with fixed arguments, but for two arrays' addresses.
 *
 * For the MPI that mpi4py has loaded. All arguments are integers or addresses and go as 64-bit
 * values, which is how the calling conventions of 64-bit Linux pass them.
 */
#include "hp_python.h"

#define MAX_ARGS 8

typedef int foreign_fn(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t,
                       uint64_t);

typedef struct {
    PyObject_HEAD
    foreign_fn *function;
    PyObject *error; /* called with a result that is not 0; None: the result says nothing */
    uint64_t args[MAX_ARGS];
    enum { VALUE, FIRST, SECOND } base[MAX_ARGS];
} ForeignCall;

/* A number, or "x" or "out" for an address, or ("x", offset in bytes). */
static bool read_argument(ForeignCall *self, int i, PyObject *given)
{
    PyObject *number = given, *name = given;
    if (PyTuple_Check(given) && PyTuple_Size(given) == 2) {
        name = PyTuple_GetItem(given, 0);
        number = PyTuple_GetItem(given, 1);
    }
    if (PyUnicode_Check(name))
        self->base[i] = PyUnicode_CompareWithASCIIString(name, "x") == 0 ? FIRST : SECOND;
    if (!PyUnicode_Check(number))
        self->args[i] = PyLong_AsUnsignedLongLongMask(number);
    return !PyErr_Occurred();
}

static PyObject *foreign_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"address", "arguments", "error", NULL};
    unsigned long long address;
    PyObject *given, *error;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "KO!O:ForeignCall", names, &address,
                                     &PyTuple_Type, &given, &error))
        return NULL;
    if (address == 0 || PyTuple_Size(given) > MAX_ARGS)
        return PyErr_Format(PyExc_ValueError, "ForeignCall: no address, or over %d arguments",
                            MAX_ARGS);
    ForeignCall *const self = (ForeignCall *)PyType_GenericAlloc(type, 0);
    if (!self)
        return NULL;
    self->function = (foreign_fn *)(uintptr_t)address;
    self->error = Py_NewRef(error);
    for (int i = 0; i < (int)PyTuple_Size(given); i++)
        if (!read_argument(self, i, PyTuple_GetItem(given, i))) {
            Py_DECREF(self);
            return NULL;
        }
    return (PyObject *)self;
}

static void foreign_dealloc(PyObject *self)
{
    PyTypeObject *const type = Py_TYPE(self);
    Py_XDECREF(((ForeignCall *)self)->error);
    PyObject_Free(self);
    Py_DECREF(type);
}

static uint64_t address_of(PyObject *object)
{
    return PyArray_Check(object) ? (uint64_t)(uintptr_t)PyArray_BYTES((PyArrayObject *)object) : 0;
}

static PyObject *foreign_call(PyObject *object, PyObject *args, PyObject *kwargs)
{
    const ForeignCall *const self = (ForeignCall *)object;
    if (PyTuple_Size(args) != 2 || kwargs)
        return PyErr_Format(PyExc_TypeError, "ForeignCall: takes x and out");
    const uint64_t base[] = {[VALUE] = 0, [FIRST] = address_of(PyTuple_GetItem(args, 0)),
                             [SECOND] = address_of(PyTuple_GetItem(args, 1))};
    uint64_t a[MAX_ARGS];
    for (int i = 0; i < MAX_ARGS; i++)
        a[i] = self->args[i] + base[self->base[i]];
    int rc;
    Py_BEGIN_ALLOW_THREADS
    rc = self->function(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7]);
    Py_END_ALLOW_THREADS
    if (rc == 0 || self->error == Py_None)
        return Py_NewRef(Py_None);
    PyObject *const error = PyObject_CallFunction(self->error, "i", rc);
    if (error)
        PyErr_SetObject((PyObject *)Py_TYPE(error), error);
    Py_XDECREF(error);
    return NULL;
}

static PyType_Slot slots[] = {
    {Py_tp_doc, "ForeignCall(address, arguments, error)\n--\n\n"
                "A C function with fixed arguments, but for two arrays' addresses."},
    {Py_tp_new, foreign_new},
    {Py_tp_dealloc, foreign_dealloc},
    {Py_tp_call, foreign_call},
    {0, NULL},
};

PyType_Spec hp_py_foreign_spec = {
    .name = "hpcpar._core.ForeignCall",
    .basicsize = sizeof(ForeignCall),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = slots,
};
