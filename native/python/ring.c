/* Ring: the C ring over a caller's buffer, for tests and small control messages. */
#include <errno.h>

#include "hp_python.h"

typedef struct {
    PyObject_HEAD
    Py_buffer buffer;
    PyObject *bytes; /* memoryview of all of it, so that slices keep it alive */
    struct hp_ring *core;
} Ring;

static struct hp_ring *core_of(PyObject *self)
{
    return ((Ring *)self)->core;
}

static PyObject *bytes_of(PyObject *buffer)
{
    PyObject *const view = PyMemoryView_FromObject(buffer);
    PyObject *const bytes = view ? PyObject_CallMethod(view, "cast", "s", "B") : NULL;
    Py_XDECREF(view);
    return bytes;
}

/* Hold the buffer and format it. On failure ring_dealloc lets go of it. */
static int attach(Ring *self, PyObject *buffer)
{
    if (PyObject_GetBuffer(buffer, &self->buffer, PyBUF_CONTIG) < 0 ||
        !(self->bytes = bytes_of(buffer)))
        return -1;
    if (hp_ring_init(self->buffer.buf, (size_t)self->buffer.len, 0) < 0) {
        PyErr_Format(PyExc_ValueError, "Ring: a buffer of %zd bytes is too small or not aligned",
                     self->buffer.len);
        return -1;
    }
    self->core = self->buffer.buf;
    return 0;
}

static PyObject *ring_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"buffer", NULL};
    PyObject *buffer;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O:Ring", names, &buffer))
        return NULL;
    Ring *const self = (Ring *)PyType_GenericAlloc(type, 0);
    if (self && attach(self, buffer) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static void ring_dealloc(PyObject *self)
{
    PyTypeObject *const type = Py_TYPE(self);
    Py_CLEAR(((Ring *)self)->bytes);
    PyBuffer_Release(&((Ring *)self)->buffer);
    PyObject_Free(self);
    Py_DECREF(type);
}

/* A view of `nbytes` at `where`; being a slice it keeps the caller's buffer alive. */
static PyObject *view_of(PyObject *self, const void *where, size_t nbytes)
{
    const Py_ssize_t at = (const char *)where - (const char *)core_of(self);
    return PySequence_GetSlice(((Ring *)self)->bytes, at, at + (Py_ssize_t)nbytes);
}

static PyObject *reserve(PyObject *self, PyObject *number)
{
    const size_t nbytes = PyLong_AsSize_t(number);
    if (PyErr_Occurred())
        return NULL;
    void *where;
    switch (hp_ring_reserve(core_of(self), nbytes, &where)) {
    case 0: return view_of(self, where, nbytes);
    case -EAGAIN: return Py_NewRef(Py_None);
    case -EBUSY: return PyErr_Format(PyExc_ValueError, "reserve: commit the open one first");
    default:
        return PyErr_Format(PyExc_ValueError, "reserve: %zu bytes, this ring takes %zu at most",
                            nbytes, hp_ring_max_message(core_of(self)));
    }
}

static PyObject *commit(PyObject *self, PyObject *number)
{
    const size_t nbytes = PyLong_AsSize_t(number);
    if (PyErr_Occurred())
        return NULL;
    if (hp_ring_commit(core_of(self), nbytes) < 0)
        return PyErr_Format(PyExc_ValueError, "commit: %zu bytes are not reserved", nbytes);
    return Py_NewRef(Py_None);
}

static PyObject *peek(PyObject *self, PyObject *unused)
{
    (void)unused;
    const void *where;
    size_t nbytes;
    if (hp_ring_peek(core_of(self), &where, &nbytes) < 0)
        return Py_NewRef(Py_None);
    PyObject *const view = view_of(self, where, nbytes);
    PyObject *const readonly = view ? PyObject_CallMethod(view, "toreadonly", NULL) : NULL;
    Py_XDECREF(view);
    return readonly;
}

/* The length is asked for so that a caller who lost count is told. */
static PyObject *release(PyObject *self, PyObject *number)
{
    const size_t nbytes = PyLong_AsSize_t(number);
    if (PyErr_Occurred())
        return NULL;
    const void *where;
    size_t held;
    if (hp_ring_peek(core_of(self), &where, &held) < 0 || held != nbytes)
        return PyErr_Format(PyExc_ValueError, "release: no message of %zu bytes is next", nbytes);
    hp_ring_release(core_of(self));
    return Py_NewRef(Py_None);
}

static PyMethodDef methods[] = {
    {"reserve", reserve, METH_O,
     "reserve($self, nbytes, /)\n--\n\n"
     "A writable view for the next message; None if there is no room."},
    {"commit", commit, METH_O,
     "commit($self, nbytes, /)\n--\n\nPublish the first bytes of the view."},
    {"peek", peek, METH_NOARGS,
     "peek($self, /)\n--\n\nA view of the next message; None if there is none."},
    {"release", release, METH_O,
     "release($self, nbytes, /)\n--\n\nGive the next message's room back."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "Ring(buffer)\n--\n\nMessages from one writer to one reader through a buffer."},
    {Py_tp_new, ring_new},
    {Py_tp_dealloc, ring_dealloc},
    {Py_tp_methods, methods},
    {0, NULL},
};

PyType_Spec hp_py_ring_spec = {
    .name = "hpcpar._core.Ring",
    .basicsize = sizeof(Ring),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = slots,
};
