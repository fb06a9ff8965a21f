/* Recorder: the flight record that this rank writes. */
#include <errno.h>
#include <string.h>

#include "hp_node.h"
#include "recorder.h"

/* Have memory of our own; pages never used cost nothing. */
static void *allocate(Recorder *self, size_t nbytes)
{
    self->own = PyMem_Calloc(1, nbytes + HP_CACHE_LINE);
    if (!self->own) {
        PyErr_NoMemory();
        return NULL;
    }
    const uintptr_t start = (uintptr_t)self->own + HP_CACHE_LINE - 1;
    return (void *)(start & ~(uintptr_t)(HP_CACHE_LINE - 1));
}

/* Hold the caller's memory. On failure recorder_dealloc lets go of it. */
static void *borrow(Recorder *self, PyObject *memory, size_t nbytes)
{
    if (PyObject_GetBuffer(memory, &self->buffer, PyBUF_CONTIG) < 0)
        return NULL;
    if ((size_t)self->buffer.len < nbytes || (uintptr_t)self->buffer.buf % HP_CACHE_LINE) {
        PyErr_Format(PyExc_ValueError, "Recorder: memory of %zd bytes needs %zu, on a cache line",
                     self->buffer.len, nbytes);
        return NULL;
    }
    return self->buffer.buf;
}

/* Have so many bytes from the begin reserved; false with an exception set. */
static bool reserve(Recorder *self, size_t nbytes)
{
    PyObject *const done =
        self->reserve ? PyObject_CallFunction(self->reserve, "n", (Py_ssize_t)nbytes)
                      : Py_NewRef(Py_None);
    Py_XDECREF(done);
    return done != NULL;
}

static bool set_up(Recorder *self, size_t capacity, PyObject *memory, PyObject *call)
{
    const size_t nbytes = hp_recorder_bytes(capacity, HP_MAX_GROUPS);
    void *const where = memory == Py_None ? allocate(self, nbytes) : borrow(self, memory, nbytes);
    self->reserve = call == Py_None ? NULL : Py_NewRef(call);
    return where && reserve(self, hp_recorder_bytes(capacity, 0)) &&
           hp_recorder_init(&self->core, where, capacity) == 0;
}

static PyObject *recorder_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"capacity", "memory", "reserve", "own", NULL};
    Py_ssize_t capacity = HP_RECORD_CAPACITY;
    PyObject *memory = Py_None, *call = Py_None;
    const char *own = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|nOOz:Recorder", names, &capacity, &memory,
                                     &call, &own))
        return NULL;
    if (capacity <= 0 || hp_recorder_bytes((size_t)capacity, 0) == 0) {
        PyErr_Format(PyExc_ValueError, "Recorder: capacity is %zd, needs a power of two", capacity);
        return NULL;
    }
    Recorder *const self = (Recorder *)PyType_GenericAlloc(type, 0);
    if (self && own)
        self->sites = hp_sites_new(own);
    if (self && ((own && !self->sites) || !set_up(self, (size_t)capacity, memory, call))) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static void recorder_dealloc(PyObject *object)
{
    Recorder *const self = (Recorder *)object;
    PyTypeObject *const type = Py_TYPE(object);
    PyMem_Free(self->own);
    PyBuffer_Release(&self->buffer);
    Py_XDECREF(self->reserve);
    hp_sites_free(self->sites);
    PyObject_Free(object);
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
    return hp_py_core_of(object);
}

const char *hp_py_recorder_site(PyObject *recorder)
{
    return hp_sites_here(((Recorder *)recorder)->sites);
}

static PyObject *add_group(PyObject *self, PyObject *args)
{
    struct hp_recorder *const core = hp_py_core_of(self);
    const char *name;
    int rank, size;
    if (!PyArg_ParseTuple(args, "sii:add_group", &name, &rank, &size))
        return NULL;
    const uint32_t many = hp_recorder_num_groups(core);
    if (many == HP_MAX_GROUPS)
        return PyErr_Format(PyExc_RuntimeError, "add_group: the record holds %d groups at most",
                            HP_MAX_GROUPS);
    if (!reserve((Recorder *)self, hp_recorder_bytes(core->capacity, many + 1)))
        return NULL;
    return PyLong_FromLong(hp_recorder_add_group(core, name, rank, size));
}

/* The hot path: no tuple, no keywords, no format string. */
static PyObject *begin(PyObject *self, PyObject *const *args, Py_ssize_t given)
{
    long long v[6];
    if (!hp_py_take_ints("begin", args, given, v, 6, 6))
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
                                    .peer = (int32_t)v[5],
                                    .site = hp_py_recorder_site(self)};
    const int64_t ticket = hp_recorder_begin(hp_py_core_of(self), &op);
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
    if (!hp_py_take_ints("sent", args, given, v, 4, 4))
        return NULL;
    const struct hp_total delta = {.sent = (uint64_t)v[1],
                                   .received = (uint64_t)v[2],
                                   .messages = (uint64_t)v[3]};
    return checked(hp_recorder_sent(hp_py_core_of(self), v[0], &delta), "sent", v[0]);
}

static PyObject *end(PyObject *self, PyObject *const *args, Py_ssize_t given)
{
    long long v[2] = {0, 0};
    if (!hp_py_take_ints("end", args, given, v, 1, 2))
        return NULL;
    return checked(hp_recorder_end(hp_py_core_of(self), v[0], (int)v[1]), "end", v[0]);
}

/* detach(): go on in memory of our own, with what is recorded; the caller's may go. */
static PyObject *detach(PyObject *object, PyObject *unused)
{
    (void)unused;
    Recorder *const self = (Recorder *)object;
    if (!self->buffer.obj)
        return Py_NewRef(Py_None);
    void *const where = allocate(self, hp_recorder_bytes(self->core.capacity, HP_MAX_GROUPS));
    if (!where)
        return NULL;
    hp_recorder_move(&self->core, where);
    PyBuffer_Release(&self->buffer);
    Py_CLEAR(self->reserve);
    return Py_NewRef(Py_None);
}

static PyMethodDef methods[] = {
    {"add_group", add_group, METH_VARARGS,
     "add_group($self, name, rank, size, /)\n--\n\nA slot for a group."},
    HP_FAST("begin", begin,
            "begin($self, slot, verb, dtype, count, itemsize, peer, /)\n--\n\nOpen a record."),
    HP_FAST("sent", sent, "sent($self, ticket, nbytes_sent, nbytes_received, messages, /)\n--\n\n"
                          "Add traffic."),
    HP_FAST("end", end, "end($self, ticket, status=0, /)\n--\n\nClose a record."),
    {"detach", detach, METH_NOARGS,
     "detach($self, /)\n--\n\nGo on in memory of its own, with what is recorded."},
    HP_READING_METHODS,
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "Recorder(capacity=1024, memory=None, reserve=None, own=None)\n--\n\n"
                "The newest operations, one record each."},
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
