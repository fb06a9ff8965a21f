/* reduce() and reducible(). */
#include <errno.h>

#include "hp_python.h"

#define MAX_STACK_SRCS 64

/* The arguments of one call, checked. */
struct call {
    struct hp_reduction r;
    size_t nbytes;
    const void **srcs;
    double *factors;
    double divisor;
    /* what srcs and factors point to unless there are very many */
    const void *stack_srcs[MAX_STACK_SRCS];
    double stack_factors[MAX_STACK_SRCS];
};

static int refuse_layout(const char *which, Py_ssize_t index)
{
    PyErr_Format(PyExc_ValueError,
                 "reduce: %s[%zd] is not C-contiguous and aligned; pass np.ascontiguousarray(x)",
                 which, index);
    return -1;
}

/* Whether `x` is an array that fits `out`; sets the error if not. */
static int check_source(PyArrayObject *out, PyObject *x, Py_ssize_t index)
{
    if (!PyArray_Check(x)) {
        PyErr_Format(PyExc_TypeError, "reduce: srcs[%zd] is %R, not a NumPy array", index,
                     (PyObject *)Py_TYPE(x));
        return -1;
    }
    PyArrayObject *const a = (PyArrayObject *)x;
    PyArray_Descr *const descr = PyArray_DESCR(a), *const want = PyArray_DESCR(out);
    if (descr != want && !PyArray_EquivTypes(descr, want)) {
        PyErr_Format(PyExc_TypeError, "reduce: srcs[%zd] has dtype %S, out has %S", index,
                     (PyObject *)descr, (PyObject *)want);
        return -1;
    }
    if (PyArray_SIZE(a) != PyArray_SIZE(out)) {
        PyErr_Format(PyExc_ValueError, "reduce: srcs[%zd] has %zd elements, out has %zd", index,
                     (Py_ssize_t)PyArray_SIZE(a), (Py_ssize_t)PyArray_SIZE(out));
        return -1;
    }
    if (!PyArray_ISCARRAY_RO(a))
        return refuse_layout("srcs", index);
    return 0;
}

/* A source that overlaps `out` must be it: a block of it would change before it is read. */
static int check_overlap(struct call *c, Py_ssize_t index)
{
    const char *const a = c->srcs[index], *const o = c->r.out;
    if (a == o || a + c->nbytes <= o || o + c->nbytes <= a)
        return 0;
    PyErr_Format(PyExc_ValueError,
                 "reduce: srcs[%zd] overlaps out in part; out is one of srcs or apart from all",
                 index);
    return -1;
}

/* Take `out`, which sets dtype and count for all; -1 with an error set. */
static int check_out(struct call *c, PyArrayObject *out)
{
    PyArray_Descr *const descr = PyArray_DESCR(out);
    c->r.dtype = hp_py_dtype(descr);
    if (c->r.dtype < 0 || !hp_py_is_native(descr)) {
        PyErr_Format(PyExc_TypeError,
                     "reduce: dtype %S has no reduction; numbers in native byte order have",
                     (PyObject *)descr);
        return -1;
    }
    if (!PyArray_ISCARRAY(out)) {
        PyErr_SetString(PyExc_ValueError,
                        "reduce: out is not writable, C-contiguous and aligned");
        return -1;
    }
    c->r.out = PyArray_DATA(out);
    c->r.count = (size_t)PyArray_SIZE(out);
    c->nbytes = c->r.count * hp_itemsize(c->r.dtype);
    return 0;
}

/* The caller frees c->srcs, also after a failure. */
static int take_sources(struct call *c, PyArrayObject *out, PyObject *srcs)
{
    const Py_ssize_t n = PyTuple_Size(srcs);
    if (n == 0) {
        PyErr_SetString(PyExc_ValueError, "reduce: srcs is empty");
        return -1;
    }
    c->srcs = c->stack_srcs;
    if (n > MAX_STACK_SRCS && !(c->srcs = PyMem_New(const void *, (size_t)n))) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *const x = PyTuple_GetItem(srcs, i);
        if (check_source(out, x, i) < 0)
            return -1;
        c->srcs[i] = PyArray_DATA((PyArrayObject *)x);
        if (check_overlap(c, i) < 0)
            return -1;
    }
    c->r.srcs = c->srcs;
    c->r.num_srcs = (size_t)n;
    return 0;
}

/* The caller frees c->factors, also after a failure. */
static int take_factors(struct call *c, PyObject *factors)
{
    if (factors == Py_None)
        return 0;
    const Py_ssize_t n = PySequence_Size(factors);
    if (n != (Py_ssize_t)c->r.num_srcs) {
        if (!PyErr_Occurred())
            PyErr_Format(PyExc_ValueError, "reduce: %zd factors for %zu srcs", n, c->r.num_srcs);
        return -1;
    }
    c->factors = c->stack_factors;
    if (n > MAX_STACK_SRCS && !(c->factors = PyMem_New(double, (size_t)n))) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *const factor = PySequence_GetItem(factors, i);
        c->factors[i] = factor ? PyFloat_AsDouble(factor) : -1.0;
        Py_XDECREF(factor);
        if (PyErr_Occurred())
            return -1;
    }
    c->r.factors = c->factors;
    return 0;
}

static int take_divisor(struct call *c, PyObject *divisor)
{
    if (divisor == Py_None)
        return 0;
    c->divisor = PyFloat_AsDouble(divisor);
    c->r.divisor = &c->divisor;
    return PyErr_Occurred() ? -1 : 0;
}

/* Last of all, for whether the op fits depends on factors and divisor. */
static int take_op(struct call *c, const char *op, PyArrayObject *out)
{
    c->r.op = hp_py_op(op);
    if (c->r.op < 0)
        return -1;
    const bool floats_only = c->r.factors || c->r.divisor;
    if (hp_reducible(c->r.dtype, c->r.op) &&
        (!floats_only || (c->r.op == HP_SUM && hp_scalable(c->r.dtype))))
        return 0;
    PyErr_Format(PyExc_TypeError, "reduce: op '%s'%s has no meaning for dtype %S", op,
                 floats_only ? " with factors or divisor" : "", (PyObject *)PyArray_DESCR(out));
    return -1;
}

static int run(struct call *c)
{
    int rc;
    HP_BEGIN_WORK(c->nbytes * c->r.num_srcs);
    rc = hp_reduce(hp_py_kernels, &c->r);
    HP_END_WORK;
    if (rc < 0) /* cannot be: all that the core refuses was checked above */
        PyErr_Format(PyExc_SystemError, "reduce: the core returned %d", rc);
    return rc;
}

static PyObject *reduce(PyObject *module, PyObject *args, PyObject *kwargs)
{
    (void)module;
    static char *names[] = {"out", "srcs", "op", "factors", "divisor", NULL};
    PyObject *out, *given, *factors = Py_None, *divisor = Py_None;
    const char *op;
    struct call c;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!Os|OO:reduce", names, &PyArray_Type, &out,
                                     &given, &op, &factors, &divisor))
        return NULL;
    PyObject *const srcs = PySequence_Tuple(given); /* holds them while the GIL is released */
    if (!srcs)
        return NULL;
    /* `c` is not cleared as a whole: most of it is room for sources. */
    c.r = (struct hp_reduction){0};
    c.srcs = NULL;
    c.factors = NULL;
    PyArrayObject *const array = (PyArrayObject *)out;
    const bool done = check_out(&c, array) == 0 && take_sources(&c, array, srcs) == 0 &&
                      take_factors(&c, factors) == 0 && take_divisor(&c, divisor) == 0 &&
                      take_op(&c, op, array) == 0 && run(&c) == 0;
    if (c.srcs != c.stack_srcs)
        PyMem_Free(c.srcs);
    if (c.factors != c.stack_factors)
        PyMem_Free(c.factors);
    Py_DECREF(srcs);
    return done ? Py_NewRef(Py_None) : NULL;
}

static PyObject *reducible(PyObject *module, PyObject *args)
{
    (void)module;
    PyArray_Descr *descr = NULL;
    const char *name;
    if (!PyArg_ParseTuple(args, "O&s:reducible", PyArray_DescrConverter, &descr, &name))
        return NULL;
    const int dtype = hp_py_dtype(descr), op = hp_py_op(name);
    Py_DECREF(descr);
    if (op < 0)
        return NULL;
    return PyBool_FromLong(op < HP_NUM_OPS ? hp_reducible(dtype, op) : hp_scalable(dtype));
}

PyMethodDef hp_py_reduce_methods[] = {
    {"reduce", (PyCFunction)(void (*)(void))reduce, METH_VARARGS | METH_KEYWORDS,
     "reduce($module, out, srcs, op, factors=None, divisor=None)\n--\n\n"
     "Write op over the sources, in list order, into out."},
    {"reducible", reducible, METH_VARARGS,
     "reducible($module, dtype, op, /)\n--\n\nWhether op has a meaning for dtype."},
    {NULL, NULL, 0, NULL},
};
