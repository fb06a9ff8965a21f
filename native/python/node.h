/* node.h - Node and Team as NodeCall sees them, and the messages of a node. */
#ifndef HP_PY_NODE_H
#define HP_PY_NODE_H

#include "hp_mail.h"
#include "hp_python.h"

typedef struct {
    PyObject_HEAD
    struct hp_node core;
    struct hp_mail mail;
    PyObject *windows; /* tuple of arrays that keep the windows mapped */
    int ties[HP_MAX_LOCAL];    /* sockets that hang up, or files that a rank holds locked; or -1 */
    bool are_locks;
    bool in_threads; /* the ranks are threads of this process and need its GIL, too */
    PyObject *meanwhile; /* is called while something is waited for, or NULL */
} Node;

typedef struct {
    PyObject_HEAD
    PyObject *node;
    PyObject *headers; /* of a call that left the hot path, or NULL */
    PyObject *alone;   /* tells whether no other thread of this process may call */
    struct hp_team core;
} Team;

#define HP_PY_SLICE_NS 40000000 /* between two looks at signals, sockets and cycles */
#define HP_PY_EARLY 100         /* looks before the GIL is given away */
#define HP_PY_MUCH (64 << 10)   /* bytes that are not moved with the GIL where others need it */

/* wait.c: how something is waited for. */
struct hp_py_waits {
    int (*run)(void *self, uint64_t nanoseconds);  /* without the GIL; HP_PENDING: not yet */
    int (*doze)(void *self, uint64_t nanoseconds); /* the same once more, soon after */
    int (*find_lost)(void *self);                  /* a rank whose process is gone, or -1 */
    int (*lose)(void *self, int rank);             /* the error for that */
    int (*look)(void *self);                       /* after each slice; NULL: at nothing more */
};

/* Wait for the end, `nanoseconds` at most. -EINTR with an exception set: a signal. */
int hp_py_wait_long(const Node *node, void *self, const struct hp_py_waits *how,
                    uint64_t nanoseconds);
/* Raise what `failed` makes of an error's number and a rank; NULL. */
PyObject *hp_py_raise(PyObject *failed, int rc, int rank);

/* Not by type: the type object is the module's, which one process may have several of. */
bool hp_py_is_node(PyObject *object);
/* Whether a peer's process is gone. */
bool hp_py_is_gone(const Node *node, int peer);

#endif
