/* What the files of the extension share. Only this directory knows CPython and NumPy. */
#ifndef HP_PYTHON_H
#define HP_PYTHON_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#define NPY_TARGET_VERSION NPY_2_0_API_VERSION
#define PY_ARRAY_UNIQUE_SYMBOL hp_numpy_api
#ifndef HP_IMPORTS_NUMPY
#define NO_IMPORT_ARRAY
#endif
#include <numpy/arrayobject.h>

#include <sys/types.h>

#include "hpcpar.h"

/* Work above this many bytes runs without the GIL. */
#define HP_GIL_BYTES 32768
#define HP_BEGIN_WORK(nbytes)                                                        \
    do {                                                                             \
        PyThreadState *const saved_ = (nbytes) > HP_GIL_BYTES ? PyEval_SaveThread() : NULL;
#define HP_END_WORK                \
        if (saved_)                \
            PyEval_RestoreThread(saved_); \
    }                              \
    while (0)

/* The kernels of the level that was chosen when the module was loaded. */
extern const struct hp_kernels *hp_py_kernels;

/* module.c: my process, without the system call; another one in a forked child. */
extern pid_t hp_py_process;

/* arrays.c */

/* The core's dtype, -1 if it has none (no error set); the byte order is not looked at. */
int hp_py_dtype(PyArray_Descr *descr);
/* An op's number, HP_PY_MEAN, HP_PY_PREMUL_SUM, or -1 with ValueError set. */
enum { HP_PY_MEAN = HP_NUM_OPS, HP_PY_PREMUL_SUM };
int hp_py_op(const char *name);
/* Whether numbers of this dtype are stored in the machine's byte order. */
bool hp_py_is_native(PyArray_Descr *descr);

/* layout.c */

/* The array if it is exactly an ndarray of numbers, C-contiguous, aligned, native, else NULL. */
PyArrayObject *hp_py_plain(PyObject *object);
/* Whether both are plain, of one dtype, and the second is writable. */
bool hp_py_are_plain(PyObject *first, PyObject *second);
/* 2 if x begins at byte `place` of out; 1 if they are disjoint; else 0. */
long hp_py_pair(PyArrayObject *x, PyArrayObject *out, Py_ssize_t place);

/* recorder.c */

/* The recorder in a Recorder object, or NULL with TypeError set. */
struct hp_recorder *hp_py_recorder_core(PyObject *object);
/* Who calls, for hp_operation.site, where a Recorder object records that. */
const char *hp_py_recorder_site(PyObject *recorder);

/* One object per source file, added to the module. */
extern PyMethodDef hp_py_layout_methods[];
extern PyMethodDef hp_py_reduce_methods[];
extern PyMethodDef hp_py_philox_methods[];
extern PyMethodDef hp_py_word_methods[];
extern PyType_Spec hp_py_foreign_spec;
extern PyType_Spec hp_py_hotcall_spec;
extern PyType_Spec hp_py_node_spec;
extern PyType_Spec hp_py_node_call_spec;
extern PyType_Spec hp_py_team_spec;
extern PyType_Spec hp_py_box_spec;
extern PyType_Spec hp_py_message_spec;
extern PyType_Spec hp_py_pack_spec;
extern PyType_Spec hp_py_record_reader_spec;
extern PyType_Spec hp_py_recorder_spec;
extern PyType_Spec hp_py_ring_spec;

#endif
