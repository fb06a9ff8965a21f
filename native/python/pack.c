/* PackPlan: where each array lies in a flat buffer, and one call that moves them all. */
#include <string.h>

#include "hp_python.h"

#define MAX_STACK_MEMBERS 64

struct layout {
    PyArray_Descr *descr;
    int type_num;
    int dtype; /* the core's, -1 if it has none */
    int ndim;
    npy_intp *shape; /* points into the plan's pool */
    size_t offset;
    size_t nbytes; /* in the flat buffer */
};

typedef struct {
    PyObject_HEAD
    Py_ssize_t num;
    struct layout *layouts;
    npy_intp *pool;
    PyArray_Descr *descr; /* of the flat buffer; NULL = bytes unchanged */
    int dtype;
    size_t item; /* bytes of a flat element, 1 for bytes */
    size_t align;
    size_t nbytes;
} Plan;

/* ---- construction ---------------------------------------------------------------------- */

static size_t round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

/* Why this dtype cannot be a member, or NULL. */
static const char *why_not(const Plan *plan, PyArray_Descr *descr, int dtype)
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

static int take_shape(struct layout *l, PyObject *shape, npy_intp *pool)
{
    l->shape = pool;
    for (int i = 0; i < l->ndim; i++) {
        PyObject *const axis = PySequence_GetItem(shape, i);
        l->shape[i] = axis ? PyNumber_AsSsize_t(axis, PyExc_OverflowError) : -1;
        Py_XDECREF(axis);
        if (l->shape[i] < 0) {
            if (!PyErr_Occurred())
                PyErr_SetString(PyExc_ValueError, "PackPlan: a shape has a negative axis");
            return -1;
        }
    }
    return 0;
}

/* Bytes of the member in the buffer; -1 with an error if they are beyond size_t. */
static int count_bytes(struct layout *l, size_t item)
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

static int add_member(Plan *plan, PyObject *pair, npy_intp **pool)
{
    struct layout *const l = &plan->layouts[plan->num];
    PyObject *shape;
    PyArray_Descr *descr = NULL;
    if (!PyArg_ParseTuple(pair, "OO&;PackPlan: a layout is (shape, dtype)", &shape,
                          PyArray_DescrConverter, &descr))
        return -1;
    l->descr = descr;
    l->type_num = descr->type_num;
    l->dtype = hp_py_dtype(descr);
    plan->num++; /* from here on the plan owns descr */
    const char *const reason = why_not(plan, descr, l->dtype);
    if (reason) {
        PyErr_Format(PyExc_TypeError, "PackPlan: layouts[%zd] has dtype %S, which %s",
                     plan->num - 1, (PyObject *)descr, reason);
        return -1;
    }
    const size_t item = plan->descr ? plan->item : (size_t)PyDataType_ELSIZE(descr);
    const size_t natural = plan->descr ? plan->item : (size_t)PyDataType_ALIGNMENT(descr);
    l->ndim = (int)PySequence_Size(shape);
    if (l->ndim < 0 || take_shape(l, shape, *pool) < 0 || count_bytes(l, item) < 0)
        return -1;
    *pool += l->ndim;
    l->offset = round_up(plan->nbytes, plan->align > natural ? plan->align : natural);
    plan->nbytes = l->offset + l->nbytes;
    return 0;
}

/* Total number of axes, or -1 with an error set. */
static Py_ssize_t count_axes(PyObject *layouts)
{
    Py_ssize_t total = 0;
    for (Py_ssize_t i = 0; i < PyTuple_Size(layouts); i++) {
        PyObject *const pair = PyTuple_GetItem(layouts, i);
        PyObject *const shape =
            PyTuple_Check(pair) && PyTuple_Size(pair) == 2 ? PyTuple_GetItem(pair, 0) : NULL;
        const Py_ssize_t ndim = shape ? PySequence_Size(shape) : -1;
        if (ndim < 0 || ndim > HP_MAX_NDIM) {
            PyErr_Format(PyExc_TypeError, "PackPlan: layouts[%zd] is not (shape tuple, dtype)", i);
            return -1;
        }
        total += ndim;
    }
    return total;
}

static int fill_plan(Plan *plan, PyObject *layouts)
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
static int set_buffer(Plan *plan, PyObject *dtype, Py_ssize_t align)
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
    Plan *const plan = layouts ? (Plan *)PyType_GenericAlloc(type, 0) : NULL;
    if (plan && (set_buffer(plan, dtype, align) < 0 || fill_plan(plan, layouts) < 0)) {
        Py_DECREF(plan);
        Py_DECREF(layouts);
        return NULL;
    }
    Py_XDECREF(layouts);
    return (PyObject *)plan;
}

static void plan_dealloc(PyObject *self)
{
    Plan *const plan = (Plan *)self;
    PyTypeObject *const type = Py_TYPE(self);
    for (Py_ssize_t i = 0; i < plan->num; i++)
        Py_XDECREF((PyObject *)plan->layouts[i].descr);
    PyMem_Free(plan->layouts);
    PyMem_Free(plan->pool);
    Py_XDECREF((PyObject *)plan->descr);
    PyObject_Free(self);
    Py_DECREF(type);
}

/* ---- moving ---------------------------------------------------------------------------- */

/* One pack or unpack, with every pointer taken and checked. */
struct job {
    const Plan *plan;
    char *flat;
    double scale;
    bool into_flat;
    struct hp_array *arrays;
    struct hp_array stack_arrays[MAX_STACK_MEMBERS];
};

static const char *verb(const struct job *job)
{
    return job->into_flat ? "pack" : "unpack";
}

static int check_flat(struct job *job, PyObject *flat)
{
    const Plan *const plan = job->plan;
    PyArrayObject *const a = (PyArrayObject *)flat;
    const bool ok = PyArray_Check(flat) && PyArray_NDIM(a) == 1 && PyArray_IS_C_CONTIGUOUS(a) &&
                    (size_t)PyArray_NBYTES(a) == plan->nbytes &&
                    (PyArray_TYPE(a) == NPY_UINT8 ||
                     (plan->descr && PyArray_EquivTypes(PyArray_DESCR(a), plan->descr)));
    if (!ok) {
        PyErr_Format(PyExc_ValueError,
                     "%s: flat is not a contiguous 1-D array of %zu bytes, of uint8 or the plan's "
                     "dtype",
                     verb(job), plan->nbytes);
        return -1;
    }
    if (job->into_flat && !PyArray_ISWRITEABLE(a)) {
        PyErr_SetString(PyExc_ValueError, "pack: flat is read-only");
        return -1;
    }
    job->flat = PyArray_BYTES(a);
    if ((uintptr_t)job->flat % plan->item) {
        PyErr_Format(PyExc_ValueError, "%s: flat is not aligned for the plan's dtype", verb(job));
        return -1;
    }
    return 0;
}

static bool same_shape(const struct layout *l, PyArrayObject *a)
{
    if (PyArray_NDIM(a) != l->ndim)
        return false;
    const npy_intp *const dims = PyArray_DIMS(a);
    for (int i = 0; i < l->ndim; i++)
        if (dims[i] != l->shape[i])
            return false;
    return true;
}

static int check_member(const struct job *job, Py_ssize_t i, PyObject *x)
{
    const struct layout *const l = &job->plan->layouts[i];
    PyArrayObject *const a = (PyArrayObject *)x;
    if (!PyArray_Check(x)) {
        PyErr_Format(PyExc_TypeError, "%s: arrays[%zd] is %R, not a NumPy array", verb(job), i,
                     (PyObject *)Py_TYPE(x));
        return -1;
    }
    PyArray_Descr *const descr = PyArray_DESCR(a);
    if (descr != l->descr && !PyArray_EquivTypes(descr, l->descr)) {
        PyErr_Format(PyExc_TypeError, "%s: arrays[%zd] has dtype %S, the plan %S", verb(job), i,
                     (PyObject *)descr, (PyObject *)l->descr);
        return -1;
    }
    if (!same_shape(l, a)) {
        PyErr_Format(PyExc_ValueError, "%s: arrays[%zd] has another shape than in the plan",
                     verb(job), i);
        return -1;
    }
    if (!job->into_flat && !PyArray_ISWRITEABLE(a)) {
        PyErr_Format(PyExc_ValueError, "unpack: arrays[%zd] is read-only", i);
        return -1;
    }
    return 0;
}

static int take_arrays(struct job *job, PyObject *arrays)
{
    const Plan *const plan = job->plan;
    if (PyTuple_Size(arrays) != plan->num) {
        PyErr_Format(PyExc_ValueError, "%s: %zd arrays for a plan of %zd", verb(job),
                     PyTuple_Size(arrays), plan->num);
        return -1;
    }
    job->arrays = job->stack_arrays;
    if (plan->num > MAX_STACK_MEMBERS &&
        !(job->arrays = PyMem_New(struct hp_array, (size_t)plan->num))) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < plan->num; i++) {
        PyObject *const x = PyTuple_GetItem(arrays, i);
        if (check_member(job, i, x) < 0)
            return -1;
        PyArrayObject *const a = (PyArrayObject *)x;
        job->arrays[i] = (struct hp_array){.data = PyArray_BYTES(a),
                                           .ndim = PyArray_NDIM(a),
                                           .shape = PyArray_DIMS(a),
                                           .strides = PyArray_STRIDES(a),
                                           .itemsize = (size_t)PyArray_ITEMSIZE(a),
                                           .dtype = plan->layouts[i].dtype};
    }
    return 0;
}

/* Whether member `i` needs arithmetic, not only a copy. */
static bool converts(const struct job *job, Py_ssize_t i)
{
    return job->plan->descr &&
           (job->scale != 1.0 || job->plan->layouts[i].dtype != job->plan->dtype);
}

static int check_scale(const struct job *job)
{
    if (job->scale == 1.0 || (job->plan->descr && hp_is_real_float(job->plan->dtype)))
        return 0;
    PyErr_Format(PyExc_TypeError, "%s: scale needs a plan with a real float dtype", verb(job));
    return -1;
}

static void pack_all(const struct job *job)
{
    const Plan *const plan = job->plan;
    size_t end = 0;
    for (Py_ssize_t i = 0; i < plan->num; i++) {
        const struct layout *const l = &plan->layouts[i];
        char *const to = job->flat + l->offset;
        memset(job->flat + end, 0, l->offset - end); /* gaps are reduced and sent, too */
        end = l->offset + l->nbytes;
        if (converts(job, i))
            hp_gather_cast(hp_py_kernels, to, plan->dtype, &job->arrays[i], job->scale);
        else
            hp_gather(to, &job->arrays[i]);
    }
}

static void unpack_all(const struct job *job)
{
    const Plan *const plan = job->plan;
    for (Py_ssize_t i = 0; i < plan->num; i++) {
        const char *const from = job->flat + plan->layouts[i].offset;
        if (converts(job, i))
            hp_scatter_cast(hp_py_kernels, &job->arrays[i], from, plan->dtype, job->scale);
        else
            hp_scatter(&job->arrays[i], from);
    }
}

static PyObject *move(const Plan *plan, PyObject *given, PyObject *flat, double scale, bool pack)
{
    struct job job;
    job.plan = plan;
    job.scale = scale;
    job.into_flat = pack;
    job.arrays = NULL;
    PyObject *const arrays = PySequence_Tuple(given); /* holds them while the GIL is released */
    if (!arrays)
        return NULL;
    const bool ok =
        check_flat(&job, flat) == 0 && check_scale(&job) == 0 && take_arrays(&job, arrays) == 0;
    if (ok) {
        HP_BEGIN_WORK(plan->nbytes);
        (pack ? pack_all : unpack_all)(&job);
        HP_END_WORK;
    }
    if (job.arrays != job.stack_arrays)
        PyMem_Free(job.arrays);
    Py_DECREF(arrays);
    return ok ? Py_NewRef(Py_None) : NULL;
}

static PyObject *plan_pack(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"arrays", "flat", "scale", NULL};
    PyObject *arrays, *flat;
    double scale = 1.0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO|d:pack", names, &arrays, &flat, &scale))
        return NULL;
    return move((Plan *)self, arrays, flat, scale, true);
}

static PyObject *plan_unpack(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"flat", "arrays", "scale", NULL};
    PyObject *arrays, *flat;
    double scale = 1.0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO|d:unpack", names, &flat, &arrays, &scale))
        return NULL;
    return move((Plan *)self, arrays, flat, scale, false);
}

/* ---- attributes ------------------------------------------------------------------------ */

static PyObject *plan_nbytes(PyObject *self, void *unused)
{
    (void)unused;
    return PyLong_FromSize_t(((Plan *)self)->nbytes);
}

static PyObject *plan_count(PyObject *self, void *unused)
{
    (void)unused;
    const Plan *const plan = (Plan *)self;
    return PyLong_FromSize_t(plan->nbytes / plan->item);
}

static PyObject *plan_offsets(PyObject *self, void *unused)
{
    (void)unused;
    const Plan *const plan = (Plan *)self;
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
    {"pack", (PyCFunction)(void (*)(void))plan_pack, METH_VARARGS | METH_KEYWORDS,
     "pack(arrays, flat, scale=1.0)\n--\n\nCopy the arrays into flat; gaps become zero."},
    {"unpack", (PyCFunction)(void (*)(void))plan_unpack, METH_VARARGS | METH_KEYWORDS,
     "unpack(flat, arrays, scale=1.0)\n--\n\nCopy flat back into the arrays."},
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
    .basicsize = sizeof(Plan),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = slots,
};
