/* recorder.h - what the writer and the reader of a record share. */
#ifndef HP_PY_RECORDER_H
#define HP_PY_RECORDER_H

#include "hp_python.h"
#include "site.h"

/* A Recorder or a RecordReader. */
typedef struct {
    PyObject_HEAD
    struct hp_recorder core;
    Py_buffer buffer;  /* of the caller's memory; its obj is NULL without */
    void *own;         /* memory of our own, or NULL */
    PyObject *reserve; /* called with the bytes from the begin that are going to be used; or NULL */
    struct hp_sites *sites; /* to record who calls, or NULL */
} Recorder;

static inline struct hp_recorder *hp_py_core_of(PyObject *self)
{
    return &((Recorder *)self)->core;
}

/* Integers of a fast call; false with TypeError set. */
bool hp_py_take_ints(const char *method, PyObject *const *args, Py_ssize_t given,
                     long long *values, Py_ssize_t least, Py_ssize_t most);

/* Methods of both. */
PyObject *hp_py_record_seq(PyObject *self, PyObject *const *args, Py_ssize_t given);
PyObject *hp_py_record_last(PyObject *self, PyObject *const *args, Py_ssize_t given);
PyObject *hp_py_record_groups(PyObject *self, PyObject *unused);
PyObject *hp_py_record_totals(PyObject *self, PyObject *unused);
PyObject *hp_py_record_oldest_open(PyObject *self, PyObject *unused);

#define HP_FAST(name, function, doc) \
    {name, (PyCFunction)(void (*)(void))(function), METH_FASTCALL, doc}

#define HP_READING_METHODS                                                                       \
    HP_FAST("seq", hp_py_record_seq,                                                             \
            "seq($self, slot, /)\n--\n\nThe sequence number of the group's next operation."),    \
        HP_FAST("last", hp_py_record_last,                                                       \
                "last($self, n, /)\n--\n\nThe newest n records, newest last."),                  \
        {"groups", hp_py_record_groups, METH_NOARGS,                                             \
         "groups($self, /)\n--\n\nName, rank, size and next sequence number by slot."},          \
        {"totals", hp_py_record_totals, METH_NOARGS,                                             \
         "totals($self, /)\n--\n\nSums per group and verb."},                                    \
        {"oldest_open", hp_py_record_oldest_open, METH_NOARGS,                                   \
         "oldest_open($self, /)\n--\n\nThe open record that waits longest."}

#endif
