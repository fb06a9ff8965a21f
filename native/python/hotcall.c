/* HotCall: the hot path of a blocking reduction, in one call from Python. */
#include <string.h>
#include <unistd.h>

#include "hp_python.h"

#define SLOTS 64 /* a power of two; a call that lands on a taken slot replaces the older one */
#define MAX_DIMS 8

/* What is known of one kind of call. */
struct plan {
    PyObject *op;
    int type_num, ndim;
    npy_intp dims[MAX_DIMS];
    PyObject *call, *handle, *in_place, *after;
    struct hp_operation operation;
    struct hp_total traffic;
};

typedef struct {
    PyObject_HEAD
    PyObject *recorder;
    struct hp_operation operation; /* slot and verb of every call */
    pid_t owner;                   /* a forked child must not go on with the parent's MPI */
    bool busy, noisy;
    struct plan plans[SLOTS];
} HotCall;

static unsigned slot_of(PyArrayObject *x)
{
    npy_intp mixed = PyArray_TYPE(x) + 31 * PyArray_NDIM(x);
    for (int i = 0; i < PyArray_NDIM(x); i++)
        mixed = mixed * 1000003 + PyArray_DIM(x, i);
    return (unsigned)(mixed ^ (mixed >> 7)) & (SLOTS - 1);
}

static void clear_plan(struct plan *plan)
{
    PyObject *const held[] = {plan->op, plan->call, plan->handle, plan->in_place, plan->after};
    memset(plan, 0, sizeof *plan);
    for (size_t i = 0; i < sizeof held / sizeof held[0]; i++)
        Py_XDECREF(held[i]);
}

/* Whether the plan is for calls like this; ops are compared as text, since only some are interned. */
static bool fits(const struct plan *plan, PyArrayObject *x, PyObject *op)
{
    const int ndim = PyArray_NDIM(x);
    if (!plan->op || plan->type_num != PyArray_TYPE(x) || plan->ndim != ndim ||
        memcmp(plan->dims, PyArray_DIMS(x), (size_t)ndim * sizeof plan->dims[0]) != 0)
        return false;
    return plan->op == op ||
           (PyUnicode_CheckExact(op) && PyUnicode_Compare(plan->op, op) == 0);
}

static PyObject *hotcall_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"recorder", "slot", "verb", NULL};
    PyObject *recorder;
    unsigned int slot, verb;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OII:HotCall", names, &recorder, &slot, &verb))
        return NULL;
    if (!hp_py_recorder_core(recorder))
        return NULL;
    HotCall *const self = (HotCall *)PyType_GenericAlloc(type, 0);
    if (!self)
        return NULL;
    self->recorder = Py_NewRef(recorder);
    self->operation = (struct hp_operation){.slot = slot, .verb = (uint16_t)verb, .peer = -1};
    self->owner = getpid();
    return (PyObject *)self;
}

static PyObject *forget(PyObject *object, PyObject *unused)
{
    (void)unused;
    for (int i = 0; i < SLOTS; i++)
        clear_plan(&((HotCall *)object)->plans[i]);
    return Py_NewRef(Py_None);
}

static void hotcall_dealloc(PyObject *object)
{
    PyTypeObject *const type = Py_TYPE(object);
    Py_XDECREF(forget(object, NULL));
    Py_XDECREF(((HotCall *)object)->recorder);
    PyObject_Free(object);
    Py_DECREF(type);
}

/* add(op, like, call, handle, in_place, after, dtype, sent, received, messages) */
static PyObject *add(PyObject *object, PyObject *args)
{
    HotCall *const self = (HotCall *)object;
    PyObject *op, *like, *call, *handle, *in_place, *after;
    unsigned int dtype;
    unsigned long long sent, received, messages;
    if (!PyArg_ParseTuple(args, "UOOOOOIKKK:add", &op, &like, &call, &handle, &in_place, &after,
                          &dtype, &sent, &received, &messages))
        return NULL;
    PyArrayObject *const x = hp_py_plain(like);
    if (!x || PyArray_NDIM(x) > MAX_DIMS)
        return Py_NewRef(Py_None); /* such calls go on the long way */
    struct plan *const plan = &self->plans[slot_of(x)];
    clear_plan(plan);
    plan->type_num = PyArray_TYPE(x);
    plan->ndim = PyArray_NDIM(x);
    memcpy(plan->dims, PyArray_DIMS(x), (size_t)plan->ndim * sizeof plan->dims[0]);
    plan->operation = self->operation;
    plan->operation.dtype = (uint16_t)dtype;
    plan->operation.count = PyArray_SIZE(x);
    plan->operation.itemsize = (uint32_t)PyArray_ITEMSIZE(x);
    plan->traffic = (struct hp_total){.sent = sent, .received = received, .messages = messages};
    plan->call = Py_NewRef(call);
    plan->handle = Py_NewRef(handle);
    plan->in_place = Py_NewRef(in_place);
    plan->after = Py_NewRef(after);
    plan->op = Py_NewRef(op);
    return Py_NewRef(Py_None);
}

/* Run the backend's call, then what follows it; false with the exception set. */
static bool carry_out(const struct plan *plan, PyObject *x, PyObject *out, long pair)
{
    PyObject *const first = pair == 2 ? plan->in_place : x;
    PyObject *done = PyObject_CallFunctionObjArgs(plan->call, first, out, plan->handle, NULL);
    if (done && plan->after != Py_None) {
        Py_DECREF(done);
        done = PyObject_CallFunctionObjArgs(plan->after, out, NULL);
    }
    Py_XDECREF(done);
    return done != NULL;
}

/* Record and carry out a call by a plan of our own: the table may change meanwhile. */
static PyObject *run_plan(HotCall *self, const struct plan *found, PyObject *const *args, long pair)
{
    struct hp_recorder *const core = hp_py_recorder_core(self->recorder);
    struct plan plan = *found;
    PyObject *const held[] = {plan.op, plan.call, plan.handle, plan.in_place, plan.after};
    for (size_t i = 0; i < sizeof held / sizeof held[0]; i++)
        Py_INCREF(held[i]);
    const int64_t ticket = hp_recorder_begin(core, &plan.operation);
    self->busy = true;
    const bool fine = carry_out(&plan, args[0], args[2], pair);
    self->busy = false;
    if (fine)
        hp_recorder_sent(core, ticket, &plan.traffic);
    hp_recorder_end(core, ticket, !fine);
    clear_plan(&plan);
    return fine ? Py_NewRef(Py_True) : NULL;
}

/* run(x, op, out): True if it did the call, False if the call needs the long way. */
static PyObject *run(PyObject *object, PyObject *const *args, Py_ssize_t given)
{
    HotCall *const self = (HotCall *)object;
    if (given != 3)
        return PyErr_Format(PyExc_TypeError, "run: takes 3 arguments, got %zd", given);
    const long pair = hp_py_plain_pair(args[0], args[2], true);
    if (pair == 0 || self->busy || self->noisy || self->owner != getpid())
        return Py_NewRef(Py_False);
    PyArrayObject *const x = (PyArrayObject *)args[0];
    const struct plan *const plan = &self->plans[slot_of(x)];
    if (!fits(plan, x, args[1]))
        return Py_NewRef(Py_False);
    return run_plan(self, plan, args, pair);
}

/* acquire(): take the group's one call at a time; False if another thread has it. */
static PyObject *acquire(PyObject *object, PyObject *unused)
{
    (void)unused;
    HotCall *const self = (HotCall *)object;
    const bool taken = !self->busy;
    self->busy = true;
    return PyBool_FromLong(taken);
}

static PyObject *release(PyObject *object, PyObject *unused)
{
    (void)unused;
    ((HotCall *)object)->busy = false;
    return Py_NewRef(Py_None);
}

/* hush(noisy): while noisy no call takes the hot path. */
static PyObject *set_noisy(PyObject *object, PyObject *value)
{
    ((HotCall *)object)->noisy = value == Py_True;
    return Py_NewRef(Py_None);
}

static PyMethodDef methods[] = {
    {"add", add, METH_VARARGS,
     "add(op, like, call, handle, in_place, after, dtype, sent, received, messages)\n--\n\n"
     "Let calls like this take the hot path."},
    {"forget", forget, METH_NOARGS, "forget()\n--\n\nDrop all plans."},
    {"run", (PyCFunction)(void (*)(void))run, METH_FASTCALL,
     "run(x, op, out, /)\n--\n\nTrue if it did the call, False if it needs the long way."},
    {"acquire", acquire, METH_NOARGS,
     "acquire()\n--\n\nTake the one call at a time; False if another thread has it."},
    {"release", release, METH_NOARGS, "release()\n--\n\nGive it back."},
    {"set_noisy", set_noisy, METH_O,
     "set_noisy(noisy, /)\n--\n\nWhile noisy no call takes the hot path."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "HotCall(recorder, slot, verb)\n--\n\nThe hot path of a blocking reduction."},
    {Py_tp_new, hotcall_new},
    {Py_tp_dealloc, hotcall_dealloc},
    {Py_tp_methods, methods},
    {0, NULL},
};

PyType_Spec hp_py_hotcall_spec = {
    .name = "hpcpar._core.HotCall",
    .basicsize = sizeof(HotCall),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = slots,
};
