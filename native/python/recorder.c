/* Recorder: the flight record. */
#include <errno.h>
#include <string.h>

#include "hp_python.h"

typedef struct {
    PyObject_HEAD
    void *memory; /* what the aligned recorder lies in */
    struct hp_recorder *core;
} Recorder;

static struct hp_recorder *core_of(PyObject *self)
{
    return ((Recorder *)self)->core;
}

static PyObject *recorder_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"capacity", NULL};
    Py_ssize_t capacity = 1024;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|n:Recorder", names, &capacity))
        return NULL;
    const size_t nbytes = capacity > 0 ? hp_recorder_bytes((size_t)capacity) : 0;
    if (nbytes == 0) {
        PyErr_Format(PyExc_ValueError, "Recorder: capacity is %zd, needs a power of two", capacity);
        return NULL;
    }
    Recorder *const self = (Recorder *)PyType_GenericAlloc(type, 0);
    if (!self)
        return NULL;
    self->memory = PyMem_Calloc(1, nbytes + HP_CACHE_LINE); /* pages never used cost nothing */
    if (!self->memory) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    const uintptr_t start = (uintptr_t)self->memory + HP_CACHE_LINE - 1;
    self->core = (struct hp_recorder *)(start & ~(uintptr_t)(HP_CACHE_LINE - 1));
    hp_recorder_init(self->core, (size_t)capacity);
    return (PyObject *)self;
}

static void recorder_dealloc(PyObject *self)
{
    PyTypeObject *const type = Py_TYPE(self);
    PyMem_Free(((Recorder *)self)->memory);
    PyObject_Free(self);
    Py_DECREF(type);
}

/* All methods hold the GIL: that is the record's one writer at a time. */
struct hp_recorder *hp_py_recorder_core(PyObject *object)
{
    /* Not by type: the type object is the module's, which one process may have several of. */
    if (PyType_GetSlot(Py_TYPE(object), Py_tp_dealloc) != (void *)recorder_dealloc) {
        PyErr_SetString(PyExc_TypeError, "HotCall: recorder is no Recorder");
        return NULL;
    }
    return core_of(object);
}

static PyObject *add_group(PyObject *self, PyObject *args)
{
    const char *name;
    int rank, size;
    if (!PyArg_ParseTuple(args, "sii:add_group", &name, &rank, &size))
        return NULL;
    const int slot = hp_recorder_add_group(core_of(self), name, rank, size);
    if (slot < 0)
        return PyErr_Format(PyExc_RuntimeError, "add_group: the record holds %d groups at most",
                            HP_MAX_GROUPS);
    return PyLong_FromLong(slot);
}

/* Integers of a fast call; false with TypeError set. */
static bool take_ints(const char *method, PyObject *const *args, Py_ssize_t given,
                      long long *values, Py_ssize_t least, Py_ssize_t most)
{
    if (given < least || given > most) {
        PyErr_Format(PyExc_TypeError, "%s: takes %zd to %zd arguments, got %zd", method, least,
                     most, given);
        return false;
    }
    for (Py_ssize_t i = 0; i < given; i++) {
        values[i] = PyLong_AsLongLong(args[i]);
        if (values[i] == -1 && PyErr_Occurred())
            return false;
    }
    return true;
}

/* The hot path: no tuple, no keywords, no format string. */
static PyObject *begin(PyObject *self, PyObject *const *args, Py_ssize_t given)
{
    long long v[6];
    if (!take_ints("begin", args, given, v, 6, 6))
        return NULL;
    if (v[0] < 0 || v[0] > UINT32_MAX || v[1] < 0 || v[1] >= HP_MAX_VERBS || v[2] < 0 ||
        v[2] > UINT16_MAX)
        return PyErr_Format(PyExc_ValueError, "begin: slot %lld, verb %lld or dtype %lld is out of "
                                              "range", v[0], v[1], v[2]);
    const struct hp_operation op = {.slot = (uint32_t)v[0],
                                    .verb = (uint16_t)v[1],
                                    .dtype = (uint16_t)v[2],
                                    .count = v[3],
                                    .itemsize = (uint32_t)v[4],
                                    .peer = (int32_t)v[5]};
    const int64_t ticket = hp_recorder_begin(core_of(self), &op);
    if (ticket < 0)
        return PyErr_Format(PyExc_ValueError, "begin: slot %lld is not a group", v[0]);
    return PyLong_FromLongLong(ticket);
}

/* None, or the error for a ticket that the record does not know. */
static PyObject *checked(int rc, const char *method, long long ticket)
{
    if (rc < 0)
        return PyErr_Format(PyExc_ValueError, "%s: ticket %lld was never given out", method,
                            ticket);
    return Py_NewRef(Py_None);
}

static PyObject *sent(PyObject *self, PyObject *const *args, Py_ssize_t given)
{
    long long v[4];
    if (!take_ints("sent", args, given, v, 4, 4))
        return NULL;
    const struct hp_total delta = {.sent = (uint64_t)v[1],
                                   .received = (uint64_t)v[2],
                                   .messages = (uint64_t)v[3]};
    return checked(hp_recorder_sent(core_of(self), v[0], &delta), "sent", v[0]);
}

static PyObject *end(PyObject *self, PyObject *const *args, Py_ssize_t given)
{
    long long v[2] = {0, 0};
    if (!take_ints("end", args, given, v, 1, 2))
        return NULL;
    return checked(hp_recorder_end(core_of(self), v[0], (int)v[1]), "end", v[0]);
}

static PyObject *seq(PyObject *self, PyObject *const *args, Py_ssize_t given)
{
    long long slot;
    if (!take_ints("seq", args, given, &slot, 1, 1))
        return NULL;
    const struct hp_group *const group =
        slot >= 0 && slot < HP_MAX_GROUPS ? hp_recorder_group(core_of(self), (uint32_t)slot) : NULL;
    if (!group)
        return PyErr_Format(PyExc_ValueError, "seq: slot %lld is not a group", slot);
    return PyLong_FromUnsignedLongLong(group->seq);
}

/* The field order is documented in _core.pyi. */
static PyObject *tuple_of(const struct hp_record *r)
{
    return Py_BuildValue("IKIILIiKKiKKI", r->slot, (unsigned long long)r->seq,
                         (unsigned int)r->verb, (unsigned int)r->dtype, (long long)r->count,
                         r->itemsize, r->peer, (unsigned long long)r->start_ns,
                         (unsigned long long)r->end_ns, r->status, (unsigned long long)r->sent,
                         (unsigned long long)r->received, r->messages);
}

/* Append a new reference, consuming it; false with an error set. */
static bool append(PyObject *list, PyObject *item)
{
    const int rc = item ? PyList_Append(list, item) : -1;
    Py_XDECREF(item);
    return rc == 0;
}

static PyObject *last(PyObject *self, PyObject *const *args, Py_ssize_t given)
{
    long long n;
    if (!take_ints("last", args, given, &n, 1, 1))
        return NULL;
    if (n < 0)
        return PyErr_Format(PyExc_ValueError, "last: n is %lld, needs 0 or more", n);
    const size_t capacity = hp_recorder_capacity(core_of(self));
    const size_t most = (size_t)n < capacity ? (size_t)n : capacity;
    struct hp_record *const records = PyMem_Calloc(most + 1, sizeof *records);
    PyObject *list = records ? PyList_New(0) : PyErr_NoMemory();
    const size_t held = list ? hp_recorder_last(core_of(self), records, most) : 0;
    for (size_t i = 0; list && i < held; i++)
        if (!append(list, tuple_of(&records[i])))
            Py_CLEAR(list);
    PyMem_Free(records);
    return list;
}

static PyObject *total_of(const struct hp_recorder *core, uint32_t slot, uint32_t verb)
{
    const struct hp_total *const t = hp_recorder_total(core, slot, verb);
    return Py_BuildValue("IIKKKK", slot, verb, (unsigned long long)t->ops,
                         (unsigned long long)t->sent, (unsigned long long)t->received,
                         (unsigned long long)t->messages);
}

static PyObject *totals(PyObject *self, PyObject *unused)
{
    (void)unused;
    const struct hp_recorder *const core = core_of(self);
    PyObject *list = PyList_New(0);
    for (uint32_t slot = 0; list && slot < hp_recorder_num_groups(core); slot++)
        for (uint32_t verb = 0; list && verb < HP_MAX_VERBS; verb++)
            if (hp_recorder_total(core, slot, verb) && !append(list, total_of(core, slot, verb)))
                Py_CLEAR(list);
    return list;
}

static PyObject *oldest_open(PyObject *self, PyObject *unused)
{
    (void)unused;
    struct hp_record record;
    if (!hp_recorder_oldest_open(core_of(self), &record))
        return Py_NewRef(Py_None);
    return tuple_of(&record);
}

#define FAST(name, doc) {#name, (PyCFunction)(void (*)(void))name, METH_FASTCALL, doc}

static PyMethodDef methods[] = {
    {"add_group", add_group, METH_VARARGS,
     "add_group($self, name, rank, size, /)\n--\n\nA slot for a group."},
    FAST(begin, "begin($self, slot, verb, dtype, count, itemsize, peer, /)\n--\n\nOpen a record."),
    FAST(sent, "sent($self, ticket, nbytes_sent, nbytes_received, messages, /)\n--\n\n"
               "Add traffic."),
    FAST(end, "end($self, ticket, status=0, /)\n--\n\nClose a record."),
    FAST(seq, "seq($self, slot, /)\n--\n\nThe sequence number of the group's next operation."),
    FAST(last, "last($self, n, /)\n--\n\nThe newest n records, newest last."),
    {"totals", totals, METH_NOARGS, "totals($self, /)\n--\n\nSums per group and verb."},
    {"oldest_open", oldest_open, METH_NOARGS,
     "oldest_open($self, /)\n--\n\nThe open record that waits longest."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "Recorder(capacity=1024)\n--\n\nThe newest operations, one record each."},
    {Py_tp_new, recorder_new},
    {Py_tp_dealloc, recorder_dealloc},
    {Py_tp_methods, methods},
    {0, NULL},
};

PyType_Spec hp_py_recorder_spec = {
    .name = "hpcpar._core.Recorder",
    .basicsize = sizeof(Recorder),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = slots,
};
