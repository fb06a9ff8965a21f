/* PackPlan's pack and unpack: one call that checks all arrays, then moves them. */
#include <string.h>

#include "plan.h"

#define MAX_STACK_MEMBERS 64

/* One pack or unpack, with every pointer taken and checked. */
struct job {
    const hp_py_plan *plan;
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

/* Take the buffer; -1 with an error set if it does not fit the plan. */
static int check_flat(struct job *job, PyObject *flat)
{
    const hp_py_plan *const plan = job->plan;
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

static bool same_shape(const struct hp_py_layout *l, PyArrayObject *a)
{
    if (PyArray_NDIM(a) != l->ndim)
        return false;
    const npy_intp *const dims = PyArray_DIMS(a);
    for (int i = 0; i < l->ndim; i++)
        if (dims[i] != l->shape[i])
            return false;
    return true;
}

/* Refuse an array that is not what the plan was made for; -1 with an error set. */
static int check_member(const struct job *job, Py_ssize_t i, PyObject *x)
{
    const struct hp_py_layout *const l = &job->plan->layouts[i];
    PyArrayObject *const a = (PyArrayObject *)x;
    if (!PyArray_Check(x)) {
        PyErr_Format(PyExc_TypeError, "%s: arrays[%zd] is %R, not a NumPy array", verb(job), i,
                     (PyObject *)Py_TYPE(x));
        return -1;
    }
    PyArray_Descr *const descr = PyArray_DESCR(a);
    /* The same object almost always; comparing the values costs ten times as much. */
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

/* Check all arrays before any byte moves, so a refused call changes nothing. */
static int take_arrays(struct job *job, PyObject *arrays)
{
    const hp_py_plan *const plan = job->plan;
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

/* The two loops that may run without the GIL: they touch no Python object. */
static void pack_all(const struct job *job)
{
    const hp_py_plan *const plan = job->plan;
    size_t end = 0;
    for (Py_ssize_t i = 0; i < plan->num; i++) {
        const struct hp_py_layout *const l = &plan->layouts[i];
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
    const hp_py_plan *const plan = job->plan;
    for (Py_ssize_t i = 0; i < plan->num; i++) {
        const char *const from = job->flat + plan->layouts[i].offset;
        if (converts(job, i))
            hp_scatter_cast(hp_py_kernels, &job->arrays[i], from, plan->dtype, job->scale);
        else
            hp_scatter(&job->arrays[i], from);
    }
}

/* `job` is not cleared: its room for 64 arrays would cost more than a small pack. */
static PyObject *move(const hp_py_plan *plan, PyObject *given, PyObject *flat, double scale,
                      bool pack)
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

PyObject *hp_py_pack(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"arrays", "flat", "scale", NULL};
    PyObject *arrays, *flat;
    double scale = 1.0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO|d:pack", names, &arrays, &flat, &scale))
        return NULL;
    return move((hp_py_plan *)self, arrays, flat, scale, true);
}

PyObject *hp_py_unpack(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"flat", "arrays", "scale", NULL};
    PyObject *arrays, *flat;
    double scale = 1.0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO|d:unpack", names, &flat, &arrays, &scale))
        return NULL;
    return move((hp_py_plan *)self, arrays, flat, scale, false);
}
