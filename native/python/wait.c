/* What waits of collectives and of messages share: slices, signals, sockets, errors. */
#include <errno.h>

#include "node.h"

#define SOON_NS 50000   /* until what is to be done meanwhile is done first; then twice as long, */
#define LATE_NS 1000000 /* and so on up to this */

static int without_gil(int (*wait)(void *self, uint64_t nanoseconds), void *self,
                       uint64_t nanoseconds)
{
    int rc;
    Py_BEGIN_ALLOW_THREADS
    rc = wait(self, nanoseconds);
    Py_END_ALLOW_THREADS
    return rc;
}

/* Wait up to a slice, and call `meanwhile` now and then; *each: the time until the next call. */
static int run_slice(PyObject *meanwhile, void *self, const struct hp_py_waits *how,
                     uint64_t slice, uint64_t *each)
{
    uint64_t now = hp_now();
    for (const uint64_t end = now + slice; now < end; now = hp_now()) {
        const uint64_t most = end - now < *each ? end - now : *each;
        const int rc = without_gil(*each == SOON_NS ? how->run : how->doze, self, most);
        if (rc != HP_PENDING)
            return rc;
        PyObject *const done = PyObject_CallNoArgs(meanwhile);
        if (!done)
            return -EINTR;
        Py_DECREF(done);
        *each = 2 * *each < LATE_NS ? 2 * *each : LATE_NS;
    }
    return HP_PENDING;
}

int hp_py_wait_long(const Node *node, void *self, const struct hp_py_waits *how,
                    uint64_t nanoseconds)
{
    uint64_t each = SOON_NS;
    int rc = HP_PENDING;
    uint64_t now = hp_now();
    for (const uint64_t end = now + nanoseconds; now < end; now = hp_now()) {
        const uint64_t slice = end - now < HP_PY_SLICE_NS ? end - now : HP_PY_SLICE_NS;
        const int lost = how->find_lost(self);
        rc = node->meanwhile ? run_slice(node->meanwhile, self, how, slice, &each)
                             : without_gil(how->run, self, slice);
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
