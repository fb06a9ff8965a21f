/* RecordReader: somebody else's flight record; and the reading methods of both classes. */
#include <errno.h>
#include <string.h>

#include "recorder.h"

bool hp_py_take_ints(const char *method, PyObject *const *args, Py_ssize_t given,
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

/* Append a new reference, consuming it; false with an error set. */
static bool append(PyObject *list, PyObject *item)
{
    const int rc = item ? PyList_Append(list, item) : -1;
    Py_XDECREF(item);
    return rc == 0;
}

PyObject *hp_py_record_seq(PyObject *self, PyObject *const *args, Py_ssize_t given)
{
    long long slot;
    if (!hp_py_take_ints("seq", args, given, &slot, 1, 1))
        return NULL;
    if (slot < 0 || slot >= hp_recorder_num_groups(hp_py_core_of(self)))
        return PyErr_Format(PyExc_ValueError, "seq: slot %lld is not a group", slot);
    return PyLong_FromUnsignedLongLong(hp_recorder_seq(hp_py_core_of(self), (uint32_t)slot));
}

/* The field order is documented in _core.pyi. Foreign text may be any bytes. */
static PyObject *tuple_of(const struct hp_record *r)
{
    PyObject *const site = PyUnicode_DecodeUTF8(r->site, (Py_ssize_t)strlen(r->site), "replace");
    if (!site)
        return NULL;
    return Py_BuildValue("IKIILIiKKiKKIN", r->slot, (unsigned long long)r->seq,
                         (unsigned int)r->verb, (unsigned int)r->dtype, (long long)r->count,
                         r->itemsize, r->peer, (unsigned long long)r->start_ns,
                         (unsigned long long)r->end_ns, r->status, (unsigned long long)r->sent,
                         (unsigned long long)r->received, r->messages, site);
}

PyObject *hp_py_record_last(PyObject *self, PyObject *const *args, Py_ssize_t given)
{
    const struct hp_recorder *const core = hp_py_core_of(self);
    long long n;
    if (!hp_py_take_ints("last", args, given, &n, 1, 1))
        return NULL;
    if (n < 0)
        return PyErr_Format(PyExc_ValueError, "last: n is %lld, needs 0 or more", n);
    const size_t most = (size_t)n < core->capacity ? (size_t)n : core->capacity;
    struct hp_record *const records = PyMem_Calloc(most + 1, sizeof *records);
    PyObject *list = records ? PyList_New(0) : PyErr_NoMemory();
    const size_t held = list ? hp_recorder_last(core, records, most) : 0;
    for (size_t i = 0; list && i < held; i++)
        if (!append(list, tuple_of(&records[i])))
            Py_CLEAR(list);
    PyMem_Free(records);
    return list;
}

/* A foreign name may be any bytes, and ours are cut anywhere. */
static PyObject *group_of(const struct hp_group *group)
{
    PyObject *const name =
        PyUnicode_DecodeUTF8(group->name, (Py_ssize_t)strlen(group->name), "replace");
    return name ? Py_BuildValue("NiiK", name, group->rank, group->size,
                                (unsigned long long)group->seq)
                : NULL;
}

PyObject *hp_py_record_groups(PyObject *self, PyObject *unused)
{
    (void)unused;
    PyObject *list = PyList_New(0);
    struct hp_group group;
    for (uint32_t slot = 0; list && hp_recorder_group(hp_py_core_of(self), slot, &group); slot++)
        if (!append(list, group_of(&group)))
            Py_CLEAR(list);
    return list;
}

static PyObject *total_of(uint32_t slot, uint32_t verb, const struct hp_total *t)
{
    return Py_BuildValue("IIKKKK", slot, verb, (unsigned long long)t->ops,
                         (unsigned long long)t->sent, (unsigned long long)t->received,
                         (unsigned long long)t->messages);
}

PyObject *hp_py_record_totals(PyObject *self, PyObject *unused)
{
    (void)unused;
    const struct hp_recorder *const core = hp_py_core_of(self);
    PyObject *list = PyList_New(0);
    struct hp_total total;
    for (uint32_t slot = 0; list && slot < hp_recorder_num_groups(core); slot++)
        for (uint32_t verb = 0; list && verb < HP_MAX_VERBS; verb++)
            if (hp_recorder_total(core, slot, verb, &total) &&
                !append(list, total_of(slot, verb, &total)))
                Py_CLEAR(list);
    return list;
}

PyObject *hp_py_record_oldest_open(PyObject *self, PyObject *unused)
{
    (void)unused;
    struct hp_record record;
    if (!hp_recorder_oldest_open(hp_py_core_of(self), &record))
        return Py_NewRef(Py_None);
    return tuple_of(&record);
}

/* Hold the buffer and check it. On failure reader_dealloc lets go of it. */
static int attach(Recorder *self, PyObject *buffer)
{
    if (PyObject_GetBuffer(buffer, &self->buffer, PyBUF_SIMPLE) < 0)
        return -1;
    const int rc =
        hp_recorder_attach(&self->core, self->buffer.buf, (size_t)self->buffer.len);
    if (rc == -EBADMSG)
        PyErr_SetString(PyExc_ValueError, "RecordReader: buffer holds no record of this version");
    else if (rc < 0)
        PyErr_Format(PyExc_ValueError, "RecordReader: buffer of %zd bytes is too short for its "
                                       "record, or not aligned", self->buffer.len);
    return rc;
}

static PyObject *reader_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"buffer", NULL};
    PyObject *buffer;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O:RecordReader", names, &buffer))
        return NULL;
    Recorder *const self = (Recorder *)PyType_GenericAlloc(type, 0);
    if (self && attach(self, buffer) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static void reader_dealloc(PyObject *self)
{
    PyTypeObject *const type = Py_TYPE(self);
    PyBuffer_Release(&((Recorder *)self)->buffer);
    PyObject_Free(self);
    Py_DECREF(type);
}

static PyMethodDef methods[] = {HP_READING_METHODS, {NULL, NULL, 0, NULL}};

static PyType_Slot slots[] = {
    {Py_tp_doc, "RecordReader(buffer)\n--\n\nReads the flight record of another rank."},
    {Py_tp_new, reader_new},
    {Py_tp_dealloc, reader_dealloc},
    {Py_tp_methods, methods},
    {0, NULL},
};

PyType_Spec hp_py_record_reader_spec = {
    .name = "hpcpar._core.RecordReader",
    .basicsize = sizeof(Recorder),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = slots,
};
