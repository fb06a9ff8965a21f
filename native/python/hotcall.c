/* HotCall: the hot path of blocking verbs on plain arrays, in one call from Python. */
#include <string.h>

#include "hp_python.h"

#define SLOTS 64 /* a power of two */
#define WAYS 4   /* slots that one call may have; it replaces another when they are taken */
#define MAX_DIMS 8
#define MAX_ARGS 6

struct shape {
    int ndim; /* -1: no array there on this rank */
    npy_intp dims[MAX_DIMS];
};

/* An argument of the backend's call: a value, or one of our arrays, alone or with its datatype. */
struct argument {
    enum { VALUE, FIRST, SECOND } what;
    PyObject *value; /* with an array: the datatype, or NULL */
};

/* How the backend's call is made; without a call the long way is taken. */
struct way {
    PyObject *call;
    int given;
    struct argument args[MAX_ARGS];
};

/* What is known of one kind of call. */
struct plan {
    PyObject *key; /* an op's name, or a tuple with the verb and its arguments */
    int type_num;
    struct shape x, out;
    Py_ssize_t place; /* bytes before x in out, in place */
    struct way apart, in_place;
    PyObject *after;
    struct hp_operation operation;
    struct hp_total traffic;
};

typedef struct {
    PyObject_HEAD
    PyObject *recorder;
    uint32_t slot; /* of the record */
    pid_t owner;   /* a forked child must not go on with the parent's MPI */
    bool busy, noisy;
    unsigned replaced; /* plans so far */
    struct plan plans[SLOTS];
} HotCall;

/* The first of its slots. */
static unsigned place_of(PyArrayObject *array, Py_hash_t key)
{
    uint64_t mixed = (uint64_t)key + (uint64_t)PyArray_TYPE(array);
    mixed += 31 * (uint64_t)PyArray_NDIM(array);
    for (int i = 0; i < PyArray_NDIM(array); i++)
        mixed = mixed * 1000003 + (uint64_t)PyArray_DIM(array, i);
    return (unsigned)(mixed ^ (mixed >> 7)) & (SLOTS - 1);
}

static struct shape shape_of(PyArrayObject *array)
{
    struct shape shape = {.ndim = array ? PyArray_NDIM(array) : -1};
    if (array)
        memcpy(shape.dims, PyArray_DIMS(array), (size_t)shape.ndim * sizeof shape.dims[0]);
    return shape;
}

static bool has_shape(PyObject *object, const struct shape *shape)
{
    if (object == Py_None)
        return shape->ndim == -1;
    PyArrayObject *const array = (PyArrayObject *)object;
    return PyArray_NDIM(array) == shape->ndim &&
           memcmp(shape->dims, PyArray_DIMS(array), (size_t)shape->ndim * sizeof shape->dims[0]) ==
               0;
}

static void hold_way(const struct way *way)
{
    Py_XINCREF(way->call);
    for (int i = 0; i < way->given; i++)
        Py_XINCREF(way->args[i].value);
}

static void drop_way(struct way *way)
{
    struct way old = *way;
    memset(way, 0, sizeof *way);
    Py_XDECREF(old.call);
    for (int i = 0; i < old.given; i++)
        Py_XDECREF(old.args[i].value);
}

static void clear_plan(struct plan *plan)
{
    struct plan old = *plan;
    memset(plan, 0, sizeof *plan);
    drop_way(&old.apart);
    drop_way(&old.in_place);
    Py_XDECREF(old.key);
    Py_XDECREF(old.after);
}

/* Whether the plan is for calls like this; -1 with an exception set. */
static int fits(const struct plan *plan, PyObject *const *args, PyArrayObject *array)
{
    if (!plan->key || plan->type_num != PyArray_TYPE(array) || !has_shape(args[0], &plan->x) ||
        !has_shape(args[2], &plan->out))
        return 0;
    return plan->key == args[1] ? 1 : PyObject_RichCompareBool(plan->key, args[1], Py_EQ);
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
    self->owner = hp_py_process;
    return (PyObject *)self;
}

static PyObject *forget(PyObject *object, PyObject *unused)
{
    (void)unused;
    for (int i = 0; i < SLOTS; i++)
        clear_plan(&((HotCall *)object)->plans[i]);
    return Py_NewRef(Py_None);
}

static int visit_way(const struct way *way, visitproc visit, void *arg)
{
    Py_VISIT(way->call);
    for (int i = 0; i < way->given; i++)
        Py_VISIT(way->args[i].value);
    return 0;
}

/* A plan's call makes the errors of the group whose HotCall this is. */
static int traverse(PyObject *object, visitproc visit, void *arg)
{
    const HotCall *const self = (HotCall *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->recorder);
    for (int i = 0; i < SLOTS; i++) {
        const struct plan *const plan = &self->plans[i];
        Py_VISIT(plan->key);
        Py_VISIT(plan->after);
        const int rc = visit_way(&plan->apart, visit, arg);
        const int other = rc ? rc : visit_way(&plan->in_place, visit, arg);
        if (other)
            return other;
    }
    return 0;
}

static int clear(PyObject *object)
{
    Py_XDECREF(forget(object, NULL));
    return 0;
}

static void hotcall_dealloc(PyObject *object)
{
    PyTypeObject *const type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    clear(object);
    Py_XDECREF(((HotCall *)object)->recorder);
    PyObject_GC_Del(object);
    Py_DECREF(type);
}

/* "x" and "out" stand for the call's arrays, a pair of these and a datatype for both. */
static struct argument read_argument(PyObject *given)
{
    PyObject *name = given, *value = given;
    const bool pair = PyTuple_Check(given) && PyTuple_Size(given) == 2;
    if (pair)
        name = PyTuple_GetItem(given, 0);
    struct argument argument = {.what = VALUE};
    if (PyUnicode_Check(name))
        argument.what = PyUnicode_CompareWithASCIIString(name, "x") == 0 ? FIRST : SECOND;
    if (argument.what != VALUE)
        value = pair ? PyTuple_GetItem(given, 1) : NULL;
    argument.value = value;
    return argument;
}

/* Read (call, argument, ...) or None into `way`, without taking references. */
static bool read_way(PyObject *given, struct way *way)
{
    if (given == Py_None)
        return true;
    const Py_ssize_t length = PyTuple_Check(given) ? PyTuple_Size(given) : 0;
    if (length < 1 || length > MAX_ARGS + 1) {
        PyErr_SetString(PyExc_TypeError, "add: a way is None or (call, argument, ...)");
        return false;
    }
    way->call = PyTuple_GetItem(given, 0);
    way->given = (int)length - 1;
    for (int i = 0; i < way->given; i++)
        way->args[i] = read_argument(PyTuple_GetItem(given, i + 1));
    return true;
}

/* Whether the object may be x or out of a plan: nothing, or a plain array of few axes. */
static bool may_plan(PyObject *object, PyArrayObject **array)
{
    *array = object == Py_None ? NULL : hp_py_plain(object);
    return object == Py_None || (*array && PyArray_NDIM(*array) <= MAX_DIMS);
}

static bool is_shape(const struct shape *a, const struct shape *b)
{
    const size_t axes = a->ndim > 0 ? (size_t)a->ndim : 0;
    return a->ndim == b->ndim && memcmp(a->dims, b->dims, axes * sizeof a->dims[0]) == 0;
}

/* Whether two plans are for the same calls, but for the way; -1 with an exception set. */
static int is_alike(const struct plan *a, const struct plan *b)
{
    if (!a->key || a->type_num != b->type_num || !is_shape(&a->x, &b->x) ||
        !is_shape(&a->out, &b->out))
        return 0;
    return PyObject_RichCompareBool(a->key, b->key, Py_EQ);
}

static struct plan *slot(HotCall *self, unsigned place, unsigned way)
{
    return &self->plans[(place + way) & (SLOTS - 1)];
}

/* Where a plan goes: to one for the same calls, to a free slot, to one of the others by turns. */
static struct plan *choose(HotCall *self, const struct plan *made, unsigned place, int *alike)
{
    struct plan *chosen = NULL;
    for (unsigned way = 0; way < WAYS; way++) {
        struct plan *const plan = slot(self, place, way);
        *alike = is_alike(plan, made);
        if (*alike)
            return plan;
        if (!chosen && !plan->key)
            chosen = plan;
    }
    return chosen ? chosen : slot(self, place, self->replaced++ % WAYS);
}

/* Take over a way that an older plan for these calls has, and this one not. */
static bool keep(HotCall *self, struct plan *made, PyArrayObject *array, Py_hash_t hash)
{
    int alike;
    struct plan *const place = choose(self, made, place_of(array, hash), &alike);
    if (alike < 0)
        return false;
    if (alike && !made->apart.call)
        made->apart = place->apart;
    if (alike && !made->in_place.call)
        made->in_place = place->in_place;
    hold_way(&made->apart);
    hold_way(&made->in_place);
    Py_INCREF(made->key);
    Py_INCREF(made->after);
    clear_plan(place);
    *place = *made;
    return true;
}

/* add(key, x, out, place, (apart, in_place, after), (verb, dtype, sent, received, messages, peer))
 */
static PyObject *add(PyObject *object, PyObject *args)
{
    HotCall *const self = (HotCall *)object;
    struct plan made = {.operation = {.slot = self->slot}};
    PyObject *first, *second, *apart, *in_place;
    unsigned int verb, dtype;
    unsigned long long sent, received, messages;
    int peer;
    if (!PyArg_ParseTuple(args, "OOOn(OOO)(IIKKKi):add", &made.key, &first, &second, &made.place,
                          &apart, &in_place, &made.after, &verb, &dtype, &sent, &received,
                          &messages, &peer))
        return NULL;
    PyArrayObject *x, *out;
    if (!may_plan(first, &x) || !may_plan(second, &out) || (!x && !out) || verb >= HP_MAX_VERBS)
        return Py_NewRef(Py_None); /* such calls go on the long way */
    const Py_hash_t hash = PyObject_Hash(made.key);
    if (hash == -1 || !read_way(apart, &made.apart) || !read_way(in_place, &made.in_place))
        return NULL;
    PyArrayObject *const array = x ? x : out;
    made.type_num = PyArray_TYPE(array);
    made.x = shape_of(x);
    made.out = shape_of(out);
    made.operation.verb = (uint16_t)verb;
    made.operation.dtype = (uint16_t)dtype;
    made.operation.peer = peer;
    made.operation.count = PyArray_SIZE(array);
    made.operation.itemsize = (uint32_t)PyArray_ITEMSIZE(array);
    made.traffic = (struct hp_total){.sent = sent, .received = received, .messages = messages};
    return keep(self, &made, array, hash) ? Py_NewRef(Py_None) : NULL;
}

/* Make the backend's call; NULL with the exception set. */
static PyObject *make_call(const struct way *way, PyObject *x, PyObject *out)
{
    PyObject *made[MAX_ARGS] = {NULL};
    PyObject *done = NULL;
    int ready = 0;
    for (; ready < way->given; ready++) {
        const struct argument *const arg = &way->args[ready];
        PyObject *const array = arg->what == FIRST ? x : out;
        if (arg->what == VALUE)
            made[ready] = Py_NewRef(arg->value);
        else
            made[ready] = arg->value ? PyTuple_Pack(2, array, arg->value) : Py_NewRef(array);
        if (!made[ready])
            break;
    }
    if (ready == way->given) /* calls take no NULL in the middle, and end at the first one */
        done = PyObject_CallFunctionObjArgs(way->call, made[0], made[1], made[2], made[3], made[4],
                                            made[5], NULL);
    while (ready > 0)
        Py_DECREF(made[--ready]);
    return done;
}

enum outcome { FAILED, DONE, SENT_BACK };

/* Make the backend's call, then what follows it; FAILED with the exception set. */
static enum outcome carry_out(const struct way *way, PyObject *after, PyObject *x, PyObject *out)
{
    PyObject *done = make_call(way, x, out);
    const bool is_sent_back = done == Py_False; /* a rank means something else */
    if (done && !is_sent_back && after != Py_None) {
        Py_DECREF(done);
        done = PyObject_CallFunctionObjArgs(after, out, NULL);
    }
    Py_XDECREF(done);
    return !done ? FAILED : is_sent_back ? SENT_BACK : DONE;
}

/* Record and carry out a call by copies of our own: the table may change meanwhile. */
static PyObject *run_plan(HotCall *self, const struct plan *found, PyObject *const *args,
                          struct way way)
{
    struct hp_recorder *const core = hp_py_recorder_core(self->recorder);
    const struct hp_total traffic = found->traffic;
    PyObject *const after = Py_NewRef(found->after);
    hold_way(&way);
    struct hp_operation operation = found->operation;
    operation.site = hp_py_recorder_site(self->recorder);
    const int64_t ticket = hp_recorder_begin(core, &operation);
    self->busy = true;
    const enum outcome outcome = carry_out(&way, after, args[0], args[2]);
    self->busy = false;
    if (outcome == DONE)
        hp_recorder_sent(core, ticket, &traffic);
    if (outcome == SENT_BACK)
        hp_recorder_withdraw(core, ticket); /* the long way records the call */
    else
        hp_recorder_end(core, ticket, outcome == FAILED);
    drop_way(&way);
    Py_DECREF(after);
    return outcome == FAILED ? NULL : PyBool_FromLong(outcome == DONE);
}

/* Like hp_py_are_plain, where either may be None: then the other must be plain. */
static bool are_plain(PyObject *x, PyObject *out)
{
    if (x != Py_None && out != Py_None)
        return hp_py_are_plain(x, out);
    if (x != Py_None)
        return hp_py_plain(x) != NULL;
    PyArrayObject *const array = out != Py_None ? hp_py_plain(out) : NULL;
    return array && PyArray_ISWRITEABLE(array);
}

/* The way of a plan for a pair of arrays; without a call where they overlap otherwise. */
static struct way way_of(const struct plan *plan, PyObject *x, PyObject *out)
{
    if (x == Py_None || out == Py_None)
        return plan->apart;
    switch (hp_py_pair((PyArrayObject *)x, (PyArrayObject *)out, plan->place)) {
    case 2: return plan->in_place;
    case 1: return plan->apart;
    default: return (struct way){0};
    }
}

/* run(x, key, out): True if it did the call, False if the call needs the long way. */
static PyObject *run(PyObject *object, PyObject *const *args, Py_ssize_t given)
{
    HotCall *const self = (HotCall *)object;
    if (given != 3)
        return PyErr_Format(PyExc_TypeError, "run: takes 3 arguments, got %zd", given);
    if (self->busy || self->noisy || self->owner != hp_py_process || !are_plain(args[0], args[2]))
        return Py_NewRef(Py_False);
    const Py_hash_t hash = PyObject_Hash(args[1]);
    if (hash == -1) { /* a list, say: the long way refuses it or not */
        PyErr_Clear();
        return Py_NewRef(Py_False);
    }
    PyArrayObject *const array = (PyArrayObject *)args[args[0] == Py_None ? 2 : 0];
    const unsigned place = place_of(array, hash);
    const struct plan *plan = NULL;
    int fine = 0;
    for (unsigned way = 0; !fine && way < WAYS; way++) {
        plan = slot(self, place, way);
        fine = fits(plan, args, array);
    }
    if (fine < 0)
        return NULL;
    const struct way chosen = fine ? way_of(plan, args[0], args[2]) : (struct way){0};
    return chosen.call ? run_plan(self, plan, args, chosen) : Py_NewRef(Py_False);
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
     "add(key, x, out, place, calls, recorded)\n--\n\nLet calls like this take the hot path."},
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
    {Py_tp_traverse, traverse},
    {Py_tp_clear, clear},
    {Py_tp_methods, methods},
    {0, NULL},
};

PyType_Spec hp_py_hotcall_spec = {
    .name = "hpcpar._core.HotCall",
    .basicsize = sizeof(HotCall),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = slots,
};
