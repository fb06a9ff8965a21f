/* HotCall: the hot path of blocking verbs on plain arrays, in one call from Python. */
#include <string.h>
#include <unistd.h>

#include "hp_python.h"

#define SLOTS 64 /* a power of two; a call that lands on a taken slot replaces the older one */
#define MAX_DIMS 8

struct shape {
    int ndim;
    npy_intp dims[MAX_DIMS];
};

/* What is known of one kind of call. */
struct plan {
    PyObject *key; /* an op's name, or a tuple with the verb and its arguments */
    int type_num;
    struct shape x, out;
    PyObject *call, *handle, *in_place, *after;
    struct hp_operation operation;
    struct hp_total traffic;
};

typedef struct {
    PyObject_HEAD
    PyObject *recorder;
    uint32_t slot;                 /* of the record */
    pid_t owner;                   /* a forked child must not go on with the parent's MPI */
    bool busy, noisy;
    struct plan plans[SLOTS];
} HotCall;

static unsigned place_of(PyArrayObject *x, Py_hash_t key)
{
    uint64_t mixed = (uint64_t)key + (uint64_t)PyArray_TYPE(x) + 31 * (uint64_t)PyArray_NDIM(x);
    for (int i = 0; i < PyArray_NDIM(x); i++)
        mixed = mixed * 1000003 + (uint64_t)PyArray_DIM(x, i);
    return (unsigned)(mixed ^ (mixed >> 7)) & (SLOTS - 1);
}

static struct shape shape_of(PyArrayObject *x)
{
    struct shape shape = {.ndim = PyArray_NDIM(x)};
    memcpy(shape.dims, PyArray_DIMS(x), (size_t)shape.ndim * sizeof shape.dims[0]);
    return shape;
}

static bool has_shape(PyArrayObject *x, const struct shape *shape)
{
    return PyArray_NDIM(x) == shape->ndim &&
           memcmp(shape->dims, PyArray_DIMS(x), (size_t)shape->ndim * sizeof shape->dims[0]) == 0;
}

static void clear_plan(struct plan *plan)
{
    PyObject *const held[] = {plan->key, plan->call, plan->handle, plan->in_place, plan->after};
    memset(plan, 0, sizeof *plan);
    for (size_t i = 0; i < sizeof held / sizeof held[0]; i++)
        Py_XDECREF(held[i]);
}

/* Whether the plan is for calls like this; -1 with an exception set. */
static int fits(const struct plan *plan, PyArrayObject *x, PyArrayObject *out, PyObject *key)
{
    if (!plan->key || plan->type_num != PyArray_TYPE(x) || !has_shape(x, &plan->x) ||
        !has_shape(out, &plan->out))
        return 0;
    return plan->key == key ? 1 : PyObject_RichCompareBool(plan->key, key, Py_EQ);
}

static void hold(const struct plan *plan)
{
    PyObject *const held[] = {plan->key, plan->call, plan->handle, plan->in_place, plan->after};
    for (size_t i = 0; i < sizeof held / sizeof held[0]; i++)
        Py_INCREF(held[i]);
}

static PyObject *hotcall_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"recorder", "slot", NULL};
    PyObject *recorder;
    unsigned int slot;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OI:HotCall", names, &recorder, &slot))
        return NULL;
    if (!hp_py_recorder_core(recorder))
        return NULL;
    HotCall *const self = (HotCall *)PyType_GenericAlloc(type, 0);
    if (!self)
        return NULL;
    self->recorder = Py_NewRef(recorder);
    self->slot = slot;
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

/* add(key, x, out, (call, handle, in_place, after), (verb, dtype, sent, received, messages)) */
static PyObject *add(PyObject *object, PyObject *args)
{
    HotCall *const self = (HotCall *)object;
    struct plan made = {.operation = {.slot = self->slot, .peer = -1}};
    PyObject *first, *second;
    unsigned int verb, dtype;
    unsigned long long sent, received, messages;
    if (!PyArg_ParseTuple(args, "OOO(OOOO)(IIKKK):add", &made.key, &first, &second, &made.call,
                          &made.handle, &made.in_place, &made.after, &verb, &dtype, &sent,
                          &received, &messages))
        return NULL;
    PyArrayObject *const x = hp_py_plain(first), *const out = hp_py_plain(second);
    if (!x || !out || PyArray_NDIM(x) > MAX_DIMS || PyArray_NDIM(out) > MAX_DIMS ||
        verb >= HP_MAX_VERBS)
        return Py_NewRef(Py_None); /* such calls go on the long way */
    const Py_hash_t hash = PyObject_Hash(made.key);
    if (hash == -1)
        return NULL;
    made.type_num = PyArray_TYPE(x);
    made.x = shape_of(x);
    made.out = shape_of(out);
    made.operation.verb = (uint16_t)verb;
    made.operation.dtype = (uint16_t)dtype;
    made.operation.count = PyArray_SIZE(x);
    made.operation.itemsize = (uint32_t)PyArray_ITEMSIZE(x);
    made.traffic = (struct hp_total){.sent = sent, .received = received, .messages = messages};
    hold(&made);
    struct plan *const place = &self->plans[place_of(x, hash)];
    clear_plan(place);
    *place = made;
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
    hold(&plan);
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

/* run(x, key, out): True if it did the call, False if the call needs the long way. */
static PyObject *run(PyObject *object, PyObject *const *args, Py_ssize_t given)
{
    HotCall *const self = (HotCall *)object;
    if (given != 3)
        return PyErr_Format(PyExc_TypeError, "run: takes 3 arguments, got %zd", given);
    const long pair = hp_py_plain_pair(args[0], args[2], false);
    if (pair == 0 || self->busy || self->noisy || self->owner != getpid())
        return Py_NewRef(Py_False);
    const Py_hash_t hash = PyObject_Hash(args[1]);
    if (hash == -1) { /* a list, say: the long way refuses it or not */
        PyErr_Clear();
        return Py_NewRef(Py_False);
    }
    PyArrayObject *const x = (PyArrayObject *)args[0];
    const struct plan *const plan = &self->plans[place_of(x, hash)];
    const int fine = fits(plan, x, (PyArrayObject *)args[2], args[1]);
    if (fine < 0)
        return NULL;
    if (!fine || (pair == 2 && plan->in_place == Py_None))
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
     "add(key, x, out, calls, recorded)\n--\n\nLet calls like this take the hot path."},
    {"forget", forget, METH_NOARGS, "forget()\n--\n\nDrop all plans."},
    {"run", (PyCFunction)(void (*)(void))run, METH_FASTCALL,
     "run(x, key, out, /)\n--\n\nTrue if it did the call, False if it needs the long way."},
    {"acquire", acquire, METH_NOARGS,
     "acquire()\n--\n\nTake the one call at a time; False if another thread has it."},
    {"release", release, METH_NOARGS, "release()\n--\n\nGive it back."},
    {"set_noisy", set_noisy, METH_O,
     "set_noisy(noisy, /)\n--\n\nWhile noisy no call takes the hot path."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "HotCall(recorder, slot)\n--\n\nThe hot path of blocking verbs on plain arrays."},
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
