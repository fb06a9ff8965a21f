/* What waits of collectives and of messages share: slices, signals, sockets, errors. */
#include <errno.h>

#include "node.h"

int hp_py_wait_long(void *self, const struct hp_py_waits *how, uint64_t nanoseconds)
{
    int rc = HP_PENDING;
    uint64_t now = hp_now();
    for (const uint64_t end = now + nanoseconds; now < end; now = hp_now()) {
        const uint64_t slice = end - now < HP_PY_SLICE_NS ? end - now : HP_PY_SLICE_NS;
        const int lost = how->find_lost(self);
        Py_BEGIN_ALLOW_THREADS
        rc = how->run(self, slice);
        Py_END_ALLOW_THREADS
        if (rc != HP_PENDING)
            return rc;
        if (lost >= 0)
            return how->lose(self, lost);
        if (PyErr_CheckSignals() < 0)
            return -EINTR;
        rc = how->look ? how->look(self) : HP_PENDING;
        if (rc != HP_PENDING)
            return rc;
    }
    return rc;
}

PyObject *hp_py_raise(PyObject *failed, int rc, int rank)
{
    PyObject *const error = PyObject_CallFunction(failed, "ii", -rc, rank);
    if (error)
        PyErr_SetObject((PyObject *)Py_TYPE(error), error);
    Py_XDECREF(error);
    return NULL;
}
