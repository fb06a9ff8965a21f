/* Box and Message: messages between two ranks of a node, for Python. */
#include <errno.h>
#include <string.h>

#include "node.h"

/* ---- Box --------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    PyObject *node;
    pid_t owner;
    struct hp_box core;
} Box;

static PyObject *box_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"node", "key", "members", "rank", NULL};
    PyObject *node, *members;
    unsigned long long key;
    int rank;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OKO!i:Box", names, &node, &key, &PyTuple_Type,
                                     &members, &rank))
        return NULL;
    if (!hp_py_is_node(node))
        return PyErr_Format(PyExc_TypeError, "Box: takes a Node");
    const Py_ssize_t size = PyTuple_Size(members);
    if (size < 1 || size > HP_MAX_LOCAL || rank < 0 || rank >= size)
        return PyErr_Format(PyExc_ValueError, "Box: ranks out of range");
    Box *const self = (Box *)PyType_GenericAlloc(type, 0);
    if (!self)
        return NULL;
    self->node = Py_NewRef(node);
    self->owner = hp_py_process;
    self->core = (struct hp_box){.mail = &((Node *)node)->mail, .key = key, .size = (int)size,
                                 .rank = rank};
    for (int r = 0; r < size; r++) {
        const long place = PyLong_AsLong(PyTuple_GetItem(members, r));
        if (place < 0 || place >= ((Node *)node)->core.size) {
            Py_DECREF((PyObject *)self);
            return PyErr_Format(PyExc_ValueError, "Box: no such place on the node");
        }
        self->core.members[r] = (int)place;
    }
    return (PyObject *)self;
}

static void box_dealloc(PyObject *object)
{
    PyTypeObject *const type = Py_TYPE(object);
    Py_XDECREF(((Box *)object)->node);
    PyObject_Free(object);
    Py_DECREF(type);
}

static PyObject *empty(PyObject *object, PyObject *unused)
{
    (void)unused;
    if (((Box *)object)->owner == hp_py_process)
        hp_box_empty(&((Box *)object)->core);
    return Py_NewRef(Py_None);
}

static PyObject *describe(const struct hp_envelope *found)
{
    return Py_BuildValue("iLs#", found->source, (long long)found->tag, found->kind,
                         (Py_ssize_t)found->kind_length);
}

/* probe(src, tag) */
static PyObject *probe(PyObject *object, PyObject *args)
{
    int peer;
    long long tag;
    char kind[HP_MAIL_KIND];
    struct hp_envelope found;
    if (!PyArg_ParseTuple(args, "iL:probe", &peer, &tag))
        return NULL;
    struct hp_message asked = {.box = &((Box *)object)->core, .way = HP_RECEIVE, .peer = peer,
                               .tag = tag};
    const int rc = hp_mail_probe(&asked, &found, kind, sizeof kind);
    if (rc < 0)
        return PyErr_NoMemory();
    return rc == HP_FOUND ? describe(&found) : Py_NewRef(Py_None);
}

static PyMethodDef box_methods[] = {
    {"empty", empty, METH_NOARGS, "empty()\n--\n\nDrop what came and was not taken."},
    {"probe", probe, METH_VARARGS,
     "probe(src, tag)\n--\n\nSource, tag and kind of the first message that would fit, or None."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot box_slots[] = {
    {Py_tp_doc, "Box(node, key, members, rank)\n--\n\nThe messages of a group on this rank."},
    {Py_tp_new, box_new},
    {Py_tp_dealloc, box_dealloc},
    {Py_tp_methods, box_methods},
    {0, NULL},
};

PyType_Spec hp_py_box_spec = {
    .name = "hpcpar._core.Box",
    .basicsize = sizeof(Box),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = box_slots,
};

/* ---- Message ----------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    PyObject *box;
    PyObject *kind;   /* bytes, or None: any */
    PyObject *failed; /* makes the exception from an error's number and the rank */
    PyObject *array;  /* in use */
    struct hp_message core;
    pid_t owner; /* a forked child has no part in its parent's messages */
    int lane;
    uint64_t limit;  /* nanoseconds that a call on the hot path may take */
    uint64_t looked; /* when sockets were looked at last */
} Message;

static const Node *node_of(const Message *self)
{
    return (const Node *)((Box *)self->box)->node;
}

static PyObject *message_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"box", "sends", "peer", "tag", "kind", "lane", "failed", "limit", NULL};
    PyObject *box, *kind, *failed;
    int sends, peer, lane;
    long long tag;
    unsigned long long limit;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OpiLOiOK:Message", names, &box, &sends, &peer,
                                     &tag, &kind, &lane, &failed, &limit))
        return NULL;
    if (PyType_GetSlot(Py_TYPE(box), Py_tp_dealloc) != (void *)box_dealloc)
        return PyErr_Format(PyExc_TypeError, "Message: takes a Box");
    if (kind != Py_None && (!PyBytes_Check(kind) || PyBytes_Size(kind) > HP_MAIL_KIND))
        return PyErr_Format(PyExc_ValueError, "Message: its kind takes more than %d bytes",
                            HP_MAIL_KIND);
    Message *const self = (Message *)PyType_GenericAlloc(type, 0);
    if (!self)
        return NULL;
    self->box = Py_NewRef(box);
    self->kind = Py_NewRef(kind);
    self->failed = Py_NewRef(failed);
    self->owner = hp_py_process;
    self->lane = lane;
    self->limit = limit;
    self->core = (struct hp_message){.box = &((Box *)box)->core, .peer = peer, .tag = tag,
                                     .way = sends ? HP_SEND : HP_RECEIVE, .stage = HP_IDLE};
    if (kind != Py_None) {
        self->core.kind = PyBytes_AsString(kind);
        self->core.kind_length = (uint64_t)PyBytes_Size(kind);
    }
    return (PyObject *)self;
}

/* A group's error knows its backend, and that, by what failed there, this message. */
static int message_traverse(PyObject *object, visitproc visit, void *arg)
{
    const Message *const self = (Message *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->box);
    Py_VISIT(self->failed);
    Py_VISIT(self->array);
    return 0;
}

static bool is_under_way(const Message *self)
{
    return self->owner == hp_py_process && self->core.stage != HP_IDLE &&
           self->core.stage != HP_FINISHED;
}

static void message_dealloc(PyObject *object)
{
    Message *const self = (Message *)object;
    PyTypeObject *const type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    if (is_under_way(self))
        hp_mail_cancel(&self->core);
    Py_XDECREF(self->array);
    Py_XDECREF(self->box);
    Py_XDECREF(self->kind);
    Py_XDECREF(self->failed);
    PyObject_GC_Del(object);
    Py_DECREF(type);
}

/* True: done; False: found what it may not take unasked; None: pending; NULL: failed. */
static PyObject *outcome(Message *self, int rc)
{
    if (rc < 0 && is_under_way(self))
        hp_mail_cancel(&self->core); /* first: until then the array is in use */
    if (rc != HP_PENDING && rc != HP_FOUND)
        Py_CLEAR(self->array);
    if (rc < 0)
        return hp_py_raise(self->failed, rc, self->core.blocked_on);
    return rc == HP_PENDING ? Py_NewRef(Py_None) : PyBool_FromLong(rc == HP_DONE);
}

static void hold(Message *self, PyObject *array)
{
    PyArrayObject *const given = PyArray_Check(array) ? (PyArrayObject *)array : NULL;
    PyObject *const old = self->array;
    self->array = Py_NewRef(array);
    Py_XDECREF(old);
    self->core.data = given ? PyArray_DATA(given) : NULL;
    self->core.nbytes = given ? (uint64_t)PyArray_NBYTES(given) : 0;
}

/* Without the GIL where that may take long for others. */
static int move_on(Message *self)
{
    int rc;
    if (self->core.nbytes < HP_PY_MUCH)
        return hp_mail_advance(&self->core);
    Py_BEGIN_ALLOW_THREADS
    rc = hp_mail_advance(&self->core);
    Py_END_ALLOW_THREADS
    return rc;
}

/* The rank whose process is gone that the message waits for, or -1. */
static int find_lost(void *waiter)
{
    Message *const self = waiter;
    const struct hp_box *const box = self->core.box;
    const int on = self->core.blocked_on;
    self->looked = hp_now();
    if (on >= 0)
        return hp_py_is_gone(node_of(self), box->members[on]) ? on : -1;
    int lost = -1; /* of those that might send to who takes anything, all must be gone */
    for (int r = box->size - 1; r >= 0; r--) {
        if (r != box->rank && !hp_py_is_gone(node_of(self), box->members[r]) &&
            hp_node_is_alive(&node_of(self)->core, box->members[r]))
            return -1;
        lost = r != box->rank ? r : lost;
    }
    return lost;
}

static int lose(void *self, int rank)
{
    ((Message *)self)->core.blocked_on = rank;
    return -EPIPE;
}

static int run_on(void *self, uint64_t nanoseconds)
{
    return hp_mail_run(&((Message *)self)->core, ((Message *)self)->lane, nanoseconds);
}

static int doze_on(void *self, uint64_t nanoseconds)
{
    return hp_mail_doze(&((Message *)self)->core, ((Message *)self)->lane, nanoseconds);
}

static int wait_for(Message *self, uint64_t nanoseconds)
{
    static const struct hp_py_waits how = {run_on, doze_on, find_lost, lose, NULL};
    int rc = move_on(self);
    const bool is_one = node_of(self)->in_threads || self->core.nbytes >= HP_PY_MUCH;
    const int looks = is_one ? 1 : HP_PY_EARLY;
    for (int i = 1; rc == HP_PENDING && i < looks; i++)
        rc = hp_mail_advance(&self->core);
    return rc == HP_PENDING ? hp_py_wait_long(node_of(self), self, &how, nanoseconds) : rc;
}

/* start(array): what is sent; of a receive None, or where to if its kind is known. */
static PyObject *start(PyObject *object, PyObject *array)
{
    Message *const self = (Message *)object;
    hold(self, array);
    hp_mail_begin(&self->core);
    return outcome(self, move_on(self));
}

static PyObject *test(PyObject *object, PyObject *unused)
{
    (void)unused;
    Message *const self = (Message *)object;
    int rc = move_on(self);
    if (rc == HP_PENDING && hp_now() - self->looked > HP_PY_SLICE_NS) {
        const int lost = find_lost(self), left = hp_mail_look(&self->core);
        rc = move_on(self);
        rc = rc == HP_PENDING && (lost >= 0 || left >= 0) ? lose(self, lost >= 0 ? lost : left)
                                                          : rc;
    }
    return outcome(self, rc);
}

/* wait(nanoseconds) */
static PyObject *wait_method(PyObject *object, PyObject *number)
{
    Message *const self = (Message *)object;
    const uint64_t nanoseconds = PyLong_AsUnsignedLongLong(number);
    if (PyErr_Occurred())
        return NULL;
    const int rc = wait_for(self, nanoseconds);
    return rc == -EINTR ? NULL : outcome(self, rc);
}

static PyObject *found(PyObject *object, PyObject *unused)
{
    (void)unused;
    const struct hp_message *const core = &((Message *)object)->core;
    if (core->stage != HP_MATCHED)
        return PyErr_Format(PyExc_ValueError, "found: nothing was found");
    const struct hp_envelope what = hp_mail_found(core);
    return describe(&what);
}

/* take(array): fetch what was found. */
static PyObject *take(PyObject *object, PyObject *array)
{
    Message *const self = (Message *)object;
    if (self->core.stage != HP_MATCHED || !PyArray_Check(array) ||
        (uint64_t)PyArray_NBYTES((PyArrayObject *)array) != hp_mail_found(&self->core).nbytes)
        return PyErr_Format(PyExc_ValueError, "take: nothing was found, or it has another size");
    hold(self, array);
    int rc;
    Py_BEGIN_ALLOW_THREADS
    rc = hp_mail_take(&self->core);
    Py_END_ALLOW_THREADS
    return outcome(self, rc);
}

static PyObject *cancel(PyObject *object, PyObject *unused)
{
    (void)unused;
    Message *const self = (Message *)object;
    if (is_under_way(self))
        hp_mail_cancel(&self->core);
    Py_CLEAR(self->array);
    return Py_NewRef(Py_None);
}

/* The end of a call on the hot path; a message of another kind waits for the long way. */
static PyObject *finish(Message *self, int rc)
{
    if (rc == -EINTR || rc == HP_FOUND) {
        hp_mail_cancel(&self->core);
        Py_CLEAR(self->array);
        return rc == HP_FOUND ? Py_NewRef(Py_False) : NULL;
    }
    return outcome(self, rc == HP_PENDING ? -ETIMEDOUT : rc);
}

/* call(array): to the end. */
static PyObject *message_call(PyObject *object, PyObject *args, PyObject *kwargs)
{
    Message *const self = (Message *)object;
    if (PyTuple_Size(args) != 1 || kwargs)
        return PyErr_Format(PyExc_TypeError, "Message: takes an array");
    hold(self, PyTuple_GetItem(args, 0));
    hp_mail_begin(&self->core);
    return finish(self, wait_for(self, self->limit));
}

static PyMethodDef message_methods[] = {
    {"start", start, METH_O,
     "start(array, /)\n--\n\nBegin; True: done, False: found something, None: pending."},
    {"test", test, METH_NOARGS, "test()\n--\n\nMove on; the same answers."},
    {"wait", wait_method, METH_O,
     "wait(nanoseconds, /)\n--\n\nWait for the end, that long at most; the same answers."},
    {"found", found, METH_NOARGS, "found()\n--\n\nSource, tag and kind of what was found."},
    {"take", take, METH_O, "take(array, /)\n--\n\nFetch what was found; the same answers."},
    {"cancel", cancel, METH_NOARGS, "cancel()\n--\n\nGive up; what was found waits for others."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot message_slots[] = {
    {Py_tp_doc, "Message(box, sends, peer, tag, kind, lane, failed, limit)\n--\n\n"
                "A send or a receive; called as message(array) it blocks."},
    {Py_tp_new, message_new},
    {Py_tp_dealloc, message_dealloc},
    {Py_tp_traverse, message_traverse},
    {Py_tp_call, message_call},
    {Py_tp_methods, message_methods},
    {0, NULL},
};

PyType_Spec hp_py_message_spec = {
    .name = "hpcpar._core.Message",
    .basicsize = sizeof(Message),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = message_slots,
};
