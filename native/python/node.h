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
} Node;

typedef struct {
    PyObject_HEAD
    PyObject *node;
    PyObject *headers; /* of a call that left the hot path, or NULL */
    PyObject *alone;   /* tells whether no other thread of this process may call */
    struct hp_team core;
} Team;

/* Node's constructor, by which a Node is known. */
PyObject *hp_py_node_new(PyTypeObject *type, PyObject *args, PyObject *kwargs);
/* Whether a peer's process is gone. */
bool hp_py_is_gone(const Node *node, int peer);

#endif
