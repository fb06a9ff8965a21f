/* What plan.c makes and pack.c reads. */
#ifndef HP_PYTHON_PLAN_H
#define HP_PYTHON_PLAN_H

#include "hp_python.h"

/* One member. */
struct hp_py_layout {
    PyArray_Descr *descr; /* owned */
    int dtype;            /* the core's, -1 if it has none */
    int ndim;
    npy_intp *shape; /* points into the plan's pool */
    size_t offset;
    size_t nbytes; /* in the flat buffer */
};

/* Never changed once it is made, so calls need no lock while they run without the GIL. */
typedef struct {
    PyObject_HEAD
    Py_ssize_t num;               /* members that own their descr */
    struct hp_py_layout *layouts; /* `num` of them */
    npy_intp *pool;               /* all shapes, one behind the other */
    PyArray_Descr *descr;         /* of the flat buffer; NULL = bytes unchanged */
    int dtype;                    /* the core's name for it, -1 = bytes */
    size_t item;                  /* bytes of a flat element, 1 for bytes */
    size_t align;
    size_t nbytes;
} hp_py_plan;

/* pack.c: the methods that move bytes. */
PyObject *hp_py_pack(PyObject *self, PyObject *args, PyObject *kwargs);
PyObject *hp_py_unpack(PyObject *self, PyObject *args, PyObject *kwargs);

#endif
