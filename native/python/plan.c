/* PackPlan: where each array lies in a flat buffer. */
#include "plan.h"

static size_t round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to; /* `to` may be an odd itemsize */
}

/* Why this dtype cannot be a member, or NULL. */
static const char *why_not(const hp_py_plan *plan, PyArray_Descr *descr, int dtype)
{
    if (PyDataType_REFCHK(descr))
        return "holds Python objects";
    if (!hp_py_is_native(descr))
        return "is not in native byte order";
    if (plan->descr && !PyArray_EquivTypes(descr, plan->descr) &&
        !(hp_is_real_float(dtype) && hp_is_real_float(plan->dtype)))
        return "is not cast to the buffer's dtype (real floats are)";
    return NULL;
}

/* Copy a shape tuple into the pool; -1 with an error set. */
static int take_shape(struct hp_py_layout *l, PyObject *shape, npy_intp *pool)
{
    l->shape = pool;
    for (int i = 0; i < l->ndim; i++) {
        l->shape[i] = PyNumber_AsSsize_t(PyTuple_GetItem(shape, i), PyExc_OverflowError);
        if (l->shape[i] < 0) {
            if (!PyErr_Occurred())
                PyErr_SetString(PyExc_ValueError, "PackPlan: a shape has a negative axis");
            return -1;
        }
    }
    return 0;
}

/* Bytes of the member in the buffer; -1 with an error if they are beyond size_t. */
static int count_bytes(struct hp_py_layout *l, size_t item)
{
    l->nbytes = item;
    for (int i = 0; i < l->ndim; i++)
        if (l->shape[i] == 0)
            l->nbytes = 0;
    for (int i = 0; i < l->ndim && l->nbytes; i++)
        if (__builtin_mul_overflow(l->nbytes, (size_t)l->shape[i], &l->nbytes) ||
            l->nbytes > PY_SSIZE_T_MAX) {
            PyErr_SetString(PyExc_ValueError, "PackPlan: a member is larger than memory");
            return -1;
        }
    return 0;
}

/* Put the member behind the others; -1 with an error set if the buffer is beyond memory. */
static int place(hp_py_plan *plan, struct hp_py_layout *l, size_t grain)
{
    l->offset = round_up(plan->nbytes, grain);
    if (__builtin_add_overflow(l->offset, l->nbytes, &plan->nbytes) ||
        plan->nbytes > PY_SSIZE_T_MAX) {
        PyErr_SetString(PyExc_ValueError, "PackPlan: the members together are larger than memory");
        return -1;
    }
    return 0;
}

/* Lay out the next member behind the others; takes its axes from the pool. */
static int add_member(hp_py_plan *plan, PyObject *pair, npy_intp **pool)
{
    struct hp_py_layout *const l = &plan->layouts[plan->num];
    PyObject *shape;
    PyArray_Descr *descr = NULL;
    if (!PyArg_ParseTuple(pair, "OO&;PackPlan: a layout is (shape, dtype)", &shape,
                          PyArray_DescrConverter, &descr))
        return -1;
    l->descr = descr;
    l->dtype = hp_py_dtype(descr);
    plan->num++; /* from here on the plan owns descr */
    const char *const reason = why_not(plan, descr, l->dtype);
    if (reason) {
        PyErr_Format(PyExc_TypeError, "PackPlan: layouts[%zd] has dtype %S, which %s",
                     plan->num - 1, (PyObject *)descr, reason);
        return -1;
    }
    const size_t item = plan->descr ? plan->item : (size_t)PyDataType_ELSIZE(descr);
    /* In a typed buffer a member is seen as elements of the buffer, whatever its own dtype. */
    const size_t natural = plan->descr ? plan->item : (size_t)PyDataType_ALIGNMENT(descr);
    l->ndim = (int)PyTuple_Size(shape);
    if (take_shape(l, shape, *pool) < 0 || count_bytes(l, item) < 0)
        return -1;
    *pool += l->ndim;
    return place(plan, l, plan->align > natural ? plan->align : natural);
}

/* Total number of axes, or -1 with an error set. */
static Py_ssize_t count_axes(PyObject *layouts)
{
    Py_ssize_t total = 0;
    for (Py_ssize_t i = 0; i < PyTuple_Size(layouts); i++) {
        PyObject *const pair = PyTuple_GetItem(layouts, i);
        PyObject *const shape =
            PyTuple_Check(pair) && PyTuple_Size(pair) == 2 ? PyTuple_GetItem(pair, 0) : NULL;
        /* A tuple: a list could grow between this count and the copy. */
        const Py_ssize_t ndim = shape && PyTuple_Check(shape) ? PyTuple_Size(shape) : -1;
        if (ndim < 0 || ndim > HP_MAX_NDIM) {
            PyErr_Format(PyExc_TypeError, "PackPlan: layouts[%zd] is not (shape tuple, dtype)", i);
            return -1;
        }
        total += ndim;
    }
    return total;
}

/* Lay out all members. On failure plan_dealloc frees what there is. */
static int fill_plan(hp_py_plan *plan, PyObject *layouts)
{
    const Py_ssize_t num = PyTuple_Size(layouts), axes = count_axes(layouts);
    if (axes < 0)
        return -1;
    plan->layouts = PyMem_Calloc((size_t)num + 1, sizeof *plan->layouts);
    plan->pool = PyMem_Calloc((size_t)axes + 1, sizeof *plan->pool);
    if (!plan->layouts || !plan->pool) {
        PyErr_NoMemory();
        return -1;
    }
    npy_intp *pool = plan->pool;
    for (Py_ssize_t i = 0; i < num; i++)
        if (add_member(plan, PyTuple_GetItem(layouts, i), &pool) < 0)
            return -1;
    return 0;
}

/* The buffer's dtype and alignment. */
static int set_buffer(hp_py_plan *plan, PyObject *dtype, Py_ssize_t align)
{
    if (align < 1 || (align & (align - 1))) {
        PyErr_Format(PyExc_ValueError, "PackPlan: align is %zd, needs a power of two", align);
        return -1;
    }
    plan->align = (size_t)align;
    plan->item = 1;
    plan->dtype = -1;
    if (dtype == Py_None)
        return 0;
    if (!PyArray_DescrConverter(dtype, &plan->descr))
        return -1;
    plan->dtype = hp_py_dtype(plan->descr);
    if (plan->dtype < 0 || !hp_py_is_native(plan->descr)) {
        PyErr_Format(PyExc_TypeError, "PackPlan: dtype %S is not a native number",
                     (PyObject *)plan->descr);
        return -1;
    }
    plan->item = hp_itemsize(plan->dtype);
    return 0;
}

static PyObject *plan_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"layouts", "dtype", "align", NULL};
    PyObject *given, *dtype = Py_None;
    Py_ssize_t align = 64;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|On:PackPlan", names, &given, &dtype, &align))
        return NULL;
    PyObject *const layouts = PySequence_Tuple(given);
    hp_py_plan *const plan = layouts ? (hp_py_plan *)PyType_GenericAlloc(type, 0) : NULL;
    if (plan && (set_buffer(plan, dtype, align) < 0 || fill_plan(plan, layouts) < 0)) {
        Py_DECREF(plan);
        Py_DECREF(layouts);
        return NULL;
    }
    Py_XDECREF(layouts);
    return (PyObject *)plan;
}

/* Also called on a plan that was refused half way: everything starts as NULL and 0. */
static void plan_dealloc(PyObject *self)
{
    hp_py_plan *const plan = (hp_py_plan *)self;
    PyTypeObject *const type = Py_TYPE(self);
    for (Py_ssize_t i = 0; i < plan->num; i++)
        Py_XDECREF((PyObject *)plan->layouts[i].descr);
    PyMem_Free(plan->layouts);
    PyMem_Free(plan->pool);
    Py_XDECREF((PyObject *)plan->descr);
    PyObject_Free(self);
    Py_DECREF(type); /* an instance of a heap type owns a reference to it */
}

static PyObject *plan_nbytes(PyObject *self, void *unused)
{
    (void)unused;
    return PyLong_FromSize_t(((hp_py_plan *)self)->nbytes);
}

static PyObject *plan_count(PyObject *self, void *unused)
{
    (void)unused;
    const hp_py_plan *const plan = (hp_py_plan *)self;
    return PyLong_FromSize_t(plan->nbytes / plan->item);
}

static PyObject *plan_offsets(PyObject *self, void *unused)
{
    (void)unused;
    const hp_py_plan *const plan = (hp_py_plan *)self;
    PyObject *const offsets = PyTuple_New(plan->num);
    for (Py_ssize_t i = 0; offsets && i < plan->num; i++) {
        PyObject *const offset = PyLong_FromSize_t(plan->layouts[i].offset);
        if (!offset || PyTuple_SetItem(offsets, i, offset) < 0) {
            Py_DECREF(offsets);
            return NULL;
        }
    }
    return offsets;
}

static PyMethodDef methods[] = {
    {"pack", (PyCFunction)(void (*)(void))hp_py_pack, METH_VARARGS | METH_KEYWORDS,
     "pack($self, arrays, flat, scale=1.0)\n--\n\nCopy the arrays into flat; gaps become zero."},
    {"unpack", (PyCFunction)(void (*)(void))hp_py_unpack, METH_VARARGS | METH_KEYWORDS,
     "unpack($self, flat, arrays, scale=1.0)\n--\n\nCopy flat back into the arrays."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef attributes[] = {
    {"nbytes", plan_nbytes, NULL, "Bytes of the flat buffer.", NULL},
    {"count", plan_count, NULL, "Elements of the flat buffer, gaps included.", NULL},
    {"offsets", plan_offsets, NULL, "Byte offset of each member.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "PackPlan(layouts, dtype=None, align=64)\n--\n\n"
                "Where arrays lie in one flat buffer, and the calls that move them."},
    {Py_tp_new, plan_new},
    {Py_tp_dealloc, plan_dealloc},
    {Py_tp_methods, methods},
    {Py_tp_getset, attributes},
    {0, NULL},
};

PyType_Spec hp_py_pack_spec = {
    .name = "hpcpar._core.PackPlan",
    .basicsize = sizeof(hp_py_plan),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = slots,
};
