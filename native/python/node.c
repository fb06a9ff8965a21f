/* Node and Team: the node engine's windows, and a group on them, for Python. */
#include <errno.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/stat.h>

#include "node.h"

/* ---- Node ------------------------------------------------------------------------------ */

static int map_windows(PyObject *windows, void **where, uint64_t *length)
{
    const Py_ssize_t size = PyTuple_Size(windows);
    for (Py_ssize_t i = 0; i < size && i < HP_MAX_LOCAL; i++) {
        PyObject *const array = PyTuple_GetItem(windows, i);
        if (!PyArray_Check(array)) {
            PyErr_SetString(PyExc_TypeError, "Node: windows are arrays of bytes");
            return -1;
        }
        where[i] = PyArray_DATA((PyArrayObject *)array);
        const uint64_t its = (uint64_t)PyArray_NBYTES((PyArrayObject *)array);
        *length = i == 0 || its < *length ? its : *length;
    }
    return 0;
}

static void read_ties(Node *self, PyObject *ties)
{
    struct stat about;
    for (int i = 0; i < self->core.size; i++) {
        const bool given = i < PyTuple_Size(ties);
        self->ties[i] = given ? (int)PyLong_AsLong(PyTuple_GetItem(ties, i)) : -1;
        if (self->ties[i] >= 0 && fstat(self->ties[i], &about) == 0)
            self->are_locks = S_ISREG(about.st_mode);
    }
}

static bool is_chunk(const Node *self, unsigned nbytes)
{
    /* It holds a part for each rank. */
    const unsigned least = HP_CACHE_LINE * (unsigned)self->core.size;
    return nbytes >= HP_POST_DATA && nbytes >= least && nbytes <= HP_SLOT_BYTES &&
           nbytes % HP_CACHE_LINE == 0;
}

/* (chunk, copy_chunk, far_ns, stream, lend) */
static bool read_tuning(Node *self, PyObject *given)
{
    unsigned int chunk, copy_chunk, far_ns;
    unsigned long long stream, lend;
    if (!PyArg_ParseTuple(given, "IIIKK;a tuning is chunk, copy_chunk, far_ns, stream and lend",
                          &chunk, &copy_chunk, &far_ns, &stream, &lend))
        return false;
    if (!is_chunk(self, chunk) || !is_chunk(self, copy_chunk) || copy_chunk > chunk) {
        PyErr_Format(PyExc_ValueError, "Node: a bad chunk: %u, or %u to copy", chunk, copy_chunk);
        return false;
    }
    self->core.tuning = (struct hp_tuning){.chunk = chunk, .copy_chunk = copy_chunk,
                                           .far_ns = far_ns, .stream = stream, .lend = lend};
    return true;
}

/* tune(tuning): between two calls, on all ranks alike. */
static PyObject *tune(PyObject *self, PyObject *tuning)
{
    if (!PyTuple_Check(tuning))
        return PyErr_Format(PyExc_TypeError, "tune: takes a tuple");
    return read_tuning((Node *)self, tuning) ? Py_NewRef(Py_None) : NULL;
}

static PyObject *node_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"windows", "index", "fd", "ties", "spins", "tuning", "in_threads",
                            NULL};
    PyObject *windows, *ties, *tuning;
    int index, fd, in_threads;
    unsigned int spins;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!iiO!IO!p:Node", names, &PyTuple_Type,
                                     &windows, &index, &fd, &PyTuple_Type, &ties, &spins,
                                     &PyTuple_Type, &tuning, &in_threads))
        return NULL;
    Node *const self = (Node *)PyType_GenericAlloc(type, 0);
    void *where[HP_MAX_LOCAL];
    uint64_t length = 0;
    if (!self || map_windows(windows, where, &length) < 0) {
        Py_XDECREF((PyObject *)self);
        return NULL;
    }
    self->windows = Py_NewRef(windows);
    const int rc = hp_node_init(&self->core, where, (int)PyTuple_Size(windows), index, length);
    if (rc < 0 || !read_tuning(self, tuning)) {
        if (rc < 0)
            PyErr_Format(PyExc_ValueError, "Node: no windows of this version (%d)", rc);
        Py_DECREF((PyObject *)self);
        return NULL;
    }
    hp_mail_init(&self->mail, &self->core);
    self->core.kernels = hp_py_kernels;
    self->core.fd = fd;
    self->core.spins = spins;
    read_ties(self, ties);
    self->in_threads = in_threads;
    return (PyObject *)self;
}

static void node_dealloc(PyObject *self)
{
    PyTypeObject *const type = Py_TYPE(self);
    if (((Node *)self)->mail.node)
        hp_mail_end(&((Node *)self)->mail);
    Py_XDECREF(((Node *)self)->windows);
    Py_XDECREF(((Node *)self)->meanwhile);
    PyObject_Free(self);
    Py_DECREF(type);
}

bool hp_py_is_node(PyObject *object)
{
    return PyType_GetSlot(Py_TYPE(object), Py_tp_dealloc) == (void *)node_dealloc;
}

static struct hp_node *node_of(PyObject *self)
{
    return &((Node *)self)->core;
}

static PyObject *claim(PyObject *self, PyObject *key)
{
    const uint64_t number = PyLong_AsUnsignedLongLong(key);
    if (PyErr_Occurred())
        return NULL;
    const int area = hp_node_claim(node_of(self), number);
    if (area == -ENOMEM)
        return PyErr_NoMemory();
    if (area < 0)
        return PyErr_Format(PyExc_MemoryError, "claim: no room for another group");
    return PyLong_FromLong(area);
}

static PyObject *find(PyObject *self, PyObject *args)
{
    int peer;
    unsigned long long key;
    if (!PyArg_ParseTuple(args, "iK:find", &peer, &key))
        return NULL;
    if (peer < 0 || peer >= node_of(self)->size)
        return PyErr_Format(PyExc_ValueError, "find: %d is no rank of the node", peer);
    const int area = hp_node_find(node_of(self), peer, key);
    return area < 0 ? Py_NewRef(Py_None) : PyLong_FromLong(area);
}

/* done(area): I read nobody's area of this group any more. */
static PyObject *node_close(PyObject *self, PyObject *area)
{
    const long index = PyLong_AsLong(area);
    if (PyErr_Occurred())
        return NULL;
    hp_node_close(node_of(self), (int)index);
    return Py_NewRef(Py_None);
}

static PyObject *node_release(PyObject *self, PyObject *area)
{
    const long index = PyLong_AsLong(area);
    if (PyErr_Occurred())
        return NULL;
    hp_node_release(node_of(self), (int)index);
    return Py_NewRef(Py_None);
}

static PyObject *heap(PyObject *self, PyObject *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLongLong(node_of(self)->heap);
}

static PyObject *is_closed(PyObject *self, PyObject *args)
{
    int peer, area;
    unsigned long long key;
    if (!PyArg_ParseTuple(args, "iiK:is_closed", &peer, &area, &key))
        return NULL;
    return PyBool_FromLong(hp_node_is_closed(node_of(self), peer, area, key));
}

static PyObject *leave(PyObject *self, PyObject *failed)
{
    hp_node_leave(node_of(self), failed == Py_True ? HP_FAILED : HP_LEFT);
    return Py_NewRef(Py_None);
}

/* The kernel hangs up for a process that is gone, and lets go of its locks. */
bool hp_py_is_gone(const Node *node, int peer)
{
    struct pollfd look = {.fd = node->ties[peer], .events = POLLIN};
    if (look.fd < 0)
        return false;
    if (!node->are_locks)
        return poll(&look, 1, 0) > 0 && (look.revents & (POLLHUP | POLLERR | POLLIN));
    if (flock(look.fd, LOCK_SH | LOCK_NB) < 0)
        return false;
    flock(look.fd, LOCK_UN);
    return true;
}

static PyObject *is_dead(PyObject *self, PyObject *peer)
{
    const long index = PyLong_AsLong(peer);
    if (PyErr_Occurred())
        return NULL;
    return PyBool_FromLong(hp_py_is_gone((Node *)self, (int)index));
}

static PyObject *reaches(PyObject *self, PyObject *peer)
{
    const long index = PyLong_AsLong(peer);
    if (PyErr_Occurred())
        return NULL;
    return PyBool_FromLong(hp_node_reaches(node_of(self), (int)index));
}

static PyObject *has_left(PyObject *self, PyObject *peer)
{
    const long index = PyLong_AsLong(peer);
    if (PyErr_Occurred())
        return NULL;
    return PyBool_FromLong(hp_node_has_left(node_of(self), (int)index));
}

/* The communication thread sleeps for all its calls at once, so not in one of them. */
static struct hp_bell *own_bell(PyObject *self)
{
    const struct hp_node *const node = node_of(self);
    return &node->windows[node->index]->bells[HP_LANES - 1];
}

static PyObject *listen(PyObject *self, PyObject *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLong(hp_bell_enter(own_bell(self)));
}

/* sleep(heard, nanoseconds): after listen(), always. */
static PyObject *node_sleep(PyObject *self, PyObject *args)
{
    unsigned int heard;
    unsigned long long nanoseconds;
    if (!PyArg_ParseTuple(args, "IK:sleep", &heard, &nanoseconds))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    hp_mail_stir(&((Node *)self)->mail);
    if (nanoseconds > 0)
        hp_bell_sleep(own_bell(self), heard, nanoseconds);
    hp_bell_leave(own_bell(self));
    Py_END_ALLOW_THREADS
    return Py_NewRef(Py_None);
}

static PyObject *wake(PyObject *self, PyObject *unused)
{
    (void)unused;
    hp_bell_ring(own_bell(self));
    return Py_NewRef(Py_None);
}

/* wait_word(array, compare, value, signed, nanoseconds) */
static PyObject *wait_word(PyObject *self, PyObject *args)
{
    PyObject *array;
    int compare, is_signed;
    unsigned long long value, nanoseconds;
    if (!PyArg_ParseTuple(args, "O!iKpK:wait_word", &PyArray_Type, &array, &compare, &value,
                          &is_signed, &nanoseconds))
        return NULL;
    const void *const word = PyArray_DATA((PyArrayObject *)array);
    bool done;
    uint64_t seen;
    Py_BEGIN_ALLOW_THREADS
    done = hp_word_wait(node_of(self), word, (enum hp_compare)compare, value, is_signed,
                        nanoseconds, &seen);
    Py_END_ALLOW_THREADS
    return done ? PyLong_FromUnsignedLongLong(seen) : Py_NewRef(Py_None);
}

static PyObject *ring(PyObject *self, PyObject *peer)
{
    const long index = PyLong_AsLong(peer);
    if (PyErr_Occurred())
        return NULL;
    hp_bell_ring(&node_of(self)->windows[index]->bells[0]);
    return Py_NewRef(Py_None);
}

static PyObject *is_gone(PyObject *self, PyObject *peer)
{
    const long index = PyLong_AsLong(peer);
    if (PyErr_Occurred())
        return NULL;
    return PyBool_FromLong(!hp_node_is_alive(node_of(self), (int)index) ||
                           hp_py_is_gone((Node *)self, (int)index));
}

/* Their descriptors are going to be closed, and to mean something else. */
static PyObject *untie(PyObject *self, PyObject *unused)
{
    (void)unused;
    for (int i = 0; i < HP_MAX_LOCAL; i++)
        ((Node *)self)->ties[i] = -1;
    return Py_NewRef(Py_None);
}

static PyObject *set_meanwhile(PyObject *self, PyObject *function)
{
    PyObject *const old = ((Node *)self)->meanwhile;
    ((Node *)self)->meanwhile = function == Py_None ? NULL : Py_NewRef(function);
    Py_XDECREF(old);
    return Py_NewRef(Py_None);
}

static PyMethodDef node_methods[] = {
    {"claim", claim, METH_O, "claim(key, /)\n--\n\nTake an area of my window for a group."},
    {"find", find, METH_VARARGS, "find(peer, key)\n--\n\nA peer's area for a group, or None."},
    {"close", node_close, METH_O, "close(area, /)\n--\n\nSay that this group is done with."},
    {"release", node_release, METH_O, "release(area, /)\n--\n\nGive an area back."},
    {"tune", tune, METH_O, "tune(tuning, /)\n--\n\nTake other switch points, between calls."},
    {"set_meanwhile", set_meanwhile, METH_O,
     "set_meanwhile(function, /)\n--\n\nCall it now and then in blocking waits; None: nothing."},
    {"heap", heap, METH_NOARGS, "heap()\n--\n\nWhere in each window symmetric arrays may lie."},
    {"is_closed", is_closed, METH_VARARGS,
     "is_closed(peer, area, key)\n--\n\nWhether a peer is done with a group."},
    {"leave", leave, METH_O, "leave(failed, /)\n--\n\nTell all ranks of the node that I go."},
    {"listen", listen, METH_NOARGS,
     "listen()\n--\n\nBegin to sleep on lane 1's bell; look once more, then call sleep."},
    {"sleep", node_sleep, METH_VARARGS,
     "sleep(heard, nanoseconds)\n--\n\nSleep until the bell rings; 0: only stop listening."},
    {"wait_word", wait_word, METH_VARARGS,
     "wait_word(array, compare, value, signed, nanoseconds)\n--\n\n"
     "Sleep until a number compares so; its bits, or None."},
    {"ring", ring, METH_O, "ring(peer, /)\n--\n\nWake a peer that waits for a number."},
    {"wake", wake, METH_NOARGS, "wake()\n--\n\nWake my own thread that sleeps."},
    {"untie", untie, METH_NOARGS, "untie()\n--\n\nLook at nobody's ties any more."},
    {"is_dead", is_dead, METH_O, "is_dead(peer, /)\n--\n\nWhether a peer's process is gone."},
    {"reaches", reaches, METH_O,
     "reaches(peer, /)\n--\n\nWhether the kernel lets me read a peer's arrays."},
    {"has_left", has_left, METH_O, "has_left(peer, /)\n--\n\nWhether a peer left in order."},
    {"is_gone", is_gone, METH_O, "is_gone(peer, /)\n--\n\nWhether a peer left, failed or died."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot node_slots[] = {
    {Py_tp_doc, "Node(windows, index, fd, ties, spins, tuning, in_threads)\n--\n\n"
                "My node's windows."},
    {Py_tp_new, node_new},
    {Py_tp_dealloc, node_dealloc},
    {Py_tp_methods, node_methods},
    {0, NULL},
};

PyType_Spec hp_py_node_spec = {
    .name = "hpcpar._core.Node",
    .basicsize = sizeof(Node),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = node_slots,
};

/* ---- Team ------------------------------------------------------------------------------ */

static bool read_places(PyObject *tuple, int *out, int size)
{
    for (int i = 0; i < size; i++)
        out[i] = (int)PyLong_AsLong(PyTuple_GetItem(tuple, i));
    return !PyErr_Occurred();
}

static PyObject *team_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"node", "members", "areas", "rank", "lane", "key", "alone", NULL};
    PyObject *node, *members, *areas, *alone;
    int rank, lane, places[HP_MAX_LOCAL], where[HP_MAX_LOCAL];
    unsigned long long key;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO!O!iiKO:Team", names, &node, &PyTuple_Type,
                                     &members, &PyTuple_Type, &areas, &rank, &lane, &key, &alone))
        return NULL;
    const int size = (int)PyTuple_Size(members);
    if (size < 1 || size > HP_MAX_LOCAL || PyTuple_Size(areas) != size || rank < 0 ||
        rank >= size || lane < 0 || lane >= HP_LANES)
        return PyErr_Format(PyExc_ValueError, "Team: ranks, areas or lane out of range");
    if (!read_places(members, places, size) || !read_places(areas, where, size))
        return NULL;
    Team *const self = (Team *)PyType_GenericAlloc(type, 0);
    if (!self)
        return NULL;
    self->node = Py_NewRef(node);
    self->alone = Py_NewRef(alone);
    hp_team_init(&self->core, node_of(node), places, where, size, rank, lane);
    self->core.key = key;
    return (PyObject *)self;
}

static void team_dealloc(PyObject *self)
{
    PyTypeObject *const type = Py_TYPE(self);
    Py_XDECREF(((Team *)self)->node);
    Py_XDECREF(((Team *)self)->headers);
    Py_XDECREF(((Team *)self)->alone);
    PyObject_Free(self);
    Py_DECREF(type);
}

static PyObject *give_up(PyObject *self, PyObject *late)
{
    struct hp_team *const team = &((Team *)self)->core;
    if (late == Py_True)
        hp_team_time_out(team);
    else
        hp_team_give_up(team);
    return Py_NewRef(Py_None);
}

static PyObject *wake_all(PyObject *self, PyObject *unused)
{
    (void)unused;
    ((Team *)self)->core.wakes_all = true;
    return Py_NewRef(Py_None);
}

/* take_headers(): once, for the call that goes on the long way. */
static PyObject *take_headers(PyObject *self, PyObject *unused)
{
    (void)unused;
    PyObject *const headers = ((Team *)self)->headers;
    ((Team *)self)->headers = NULL;
    return headers ? headers : Py_NewRef(Py_None);
}

static PyObject *link_of(const struct hp_node *node, const struct hp_link *link)
{
    const void *const header = hp_node_post_header(node, link->place, link->key, link->seq);
    return Py_BuildValue("iiKy#", link->place, link->on, (unsigned long long)link->key,
                         header ? header : "", (Py_ssize_t)(header ? HP_POST_HEADER : 0));
}

/* cycle(): who waits for whom, as the last call that failed for it has found. */
static PyObject *cycle(PyObject *self, PyObject *unused)
{
    (void)unused;
    const struct hp_team *const team = &((Team *)self)->core;
    PyObject *const list = PyList_New(team->cycle_length);
    for (int i = 0; list && i < team->cycle_length; i++) {
        PyObject *const link = link_of(team->node, &team->cycle[i]);
        if (!link || PyList_SetItem(list, i, link) < 0) {
            Py_DECREF(list);
            return NULL;
        }
    }
    return list;
}

static PyMethodDef team_methods[] = {
    {"cycle", cycle, METH_NOARGS,
     "cycle()\n--\n\nPlace, whom it waits for, key and header, round the cycle."},
    {"take_headers", take_headers, METH_NOARGS,
     "take_headers()\n--\n\nThe headers of a call that left the hot path, or None."},
    {"give_up", give_up, METH_O,
     "give_up(late, /)\n--\n\nTell late ranks that I wait no more; late: at a deadline."},
    {"wake_all", wake_all, METH_NOARGS,
     "wake_all()\n--\n\nFrom now on wake peers on whatever lane they wait; on all ranks alike."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot team_slots[] = {
    {Py_tp_doc, "Team(node, members, areas, rank, lane, key, alone)\n--\n\nA group on one lane."},
    {Py_tp_new, team_new},
    {Py_tp_dealloc, team_dealloc},
    {Py_tp_methods, team_methods},
    {0, NULL},
};

PyType_Spec hp_py_team_spec = {
    .name = "hpcpar._core.Team",
    .basicsize = sizeof(Team),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = team_slots,
};
