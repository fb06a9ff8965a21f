/* NodeCall: one collective of a team, for Python. */
#include <errno.h>
#include <string.h>

#include "node.h"

#define LONG (512 << 10) /* bytes that take long enough to let other threads run meanwhile */

typedef struct {
    PyObject_HEAD
    PyObject *team;
    PyObject *failed; /* makes the exception from an error's number and the rank */
    PyObject *recorder; /* whose group's operation number goes into the header, or NULL */
    unsigned int slot;
    PyObject *x, *out; /* in use by a call that was started */
    struct hp_request request;
    struct hp_call core;
    uint64_t *counts; /* sent, then received */
    double *factors;
    double divisor;
    uint8_t header[HP_POST_HEADER];
    int looks; /* before the GIL is given away; 0: nothing is done with it */
    uint64_t limit; /* nanoseconds that a call on the hot path may take */
    uint64_t looked; /* when sockets were looked at last */
    int ended;       /* how it ended in linger(), for test() to tell; HP_PENDING: it did not */
} NodeCall;

static struct hp_team *team_of(const NodeCall *self)
{
    return &((Team *)self->team)->core;
}

/* Copy a tuple of counts, if there is one, to `out`. */
static const uint64_t *read_counts(PyObject *counts, uint64_t *out, int size)
{
    if (PyTuple_Size(counts) != size)
        return NULL;
    for (int r = 0; r < size; r++)
        out[r] = PyLong_AsUnsignedLongLong(PyTuple_GetItem(counts, r));
    return out;
}

/* Factors: a tuple of a float per rank or None; the divisor: a float or None. */
static bool read_scales(NodeCall *self, PyObject *factors, PyObject *divisor)
{
    const int size = team_of(self)->size;
    if (factors != Py_None) {
        self->factors = PyMem_Calloc((size_t)size, sizeof(double));
        for (int r = 0; self->factors && r < size; r++)
            self->factors[r] = PyFloat_AsDouble(PyTuple_GetItem(factors, r));
        self->request.factors = self->factors;
    }
    if (divisor != Py_None) {
        self->divisor = PyFloat_AsDouble(divisor);
        self->request.divisor = &self->divisor;
    }
    return !PyErr_Occurred();
}

static bool read_header(NodeCall *self, PyObject *header, PyObject *record)
{
    char *bytes;
    Py_ssize_t length;
    if (PyBytes_AsStringAndSize(header, &bytes, &length) < 0 || length != HP_POST_HEADER)
        return false;
    memcpy(self->header, bytes, sizeof self->header);
    self->request.header = self->header;
    PyObject *recorder;
    if (record == Py_None)
        return true;
    if (!PyArg_ParseTuple(record, "OI", &recorder, &self->slot) || !hp_py_recorder_core(recorder))
        return false;
    self->recorder = Py_NewRef(recorder);
    return true;
}

/*
 * Ranks that are threads cannot come while this one holds the GIL: one look sees all there is. Who
 * moves much at one look should not hold it either.
 */
static int count_looks(const NodeCall *self)
{
    uint64_t moved = self->request.nbytes;
    for (int i = 0; i < 2 * team_of(self)->size; i++)
        moved += self->counts[i];
    if (!((Node *)((Team *)self->team)->node)->in_threads)
        return moved < LONG ? HP_PY_EARLY : 0;
    return moved < HP_PY_MUCH ? 1 : 0;
}

static PyObject *call_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"team", "verb", "dtype", "op", "root", "nbytes", "counts", "scales",
                            "agreed", "failed", "limit", NULL};
    PyObject *team, *sent, *received, *factors, *divisor, *header, *record, *failed;
    int verb, dtype, op, root, ready;
    unsigned long long nbytes, print, limit;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OiiiiK(O!O!)(OO)(KpOO)OK:NodeCall", names,
                                     &team, &verb, &dtype, &op, &root, &nbytes, &PyTuple_Type,
                                     &sent, &PyTuple_Type, &received, &factors, &divisor, &print,
                                     &ready, &header, &record, &failed, &limit))
        return NULL;
    NodeCall *const self = (NodeCall *)PyType_GenericAlloc(type, 0);
    if (!self)
        return NULL;
    self->team = Py_NewRef(team);
    self->failed = Py_NewRef(failed);
    self->limit = limit;
    const int size = team_of(self)->size;
    self->counts = PyMem_Calloc(2 * (size_t)size, sizeof(uint64_t));
    self->request = (struct hp_request){.verb = (enum hp_verb)verb, .dtype = dtype, .op = op,
                                        .root = root, .nbytes = nbytes, .print = print,
                                        .is_ready = ready};
    self->request.send_counts = read_counts(sent, self->counts, size);
    self->request.recv_counts = read_counts(received, self->counts + size, size);
    if (!read_scales(self, factors, divisor) || !read_header(self, header, record)) {
        Py_DECREF((PyObject *)self);
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_ValueError, "NodeCall: header's size");
    }
    self->looks = count_looks(self);
    return (PyObject *)self;
}

/* A group's error knows its backend, and that, by what failed there, this call. */
static int call_traverse(PyObject *object, visitproc visit, void *arg)
{
    const NodeCall *const self = (NodeCall *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->team);
    Py_VISIT(self->failed);
    Py_VISIT(self->recorder);
    Py_VISIT(self->x);
    Py_VISIT(self->out);
    return 0;
}

static void call_dealloc(PyObject *object)
{
    NodeCall *const self = (NodeCall *)object;
    PyTypeObject *const type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    PyMem_Free(self->counts);
    PyMem_Free(self->factors);
    Py_XDECREF(self->team);
    Py_XDECREF(self->failed);
    Py_XDECREF(self->recorder);
    Py_XDECREF(self->x);
    Py_XDECREF(self->out);
    PyObject_GC_Del(object);
    Py_DECREF(type);
}

static void *address_of(PyObject *object)
{
    return PyArray_Check(object) ? PyArray_DATA((PyArrayObject *)object) : NULL;
}

/* The record has begun this operation already. */
static void number_header(NodeCall *self)
{
    const struct hp_recorder *const core = hp_py_recorder_core(self->recorder);
    const uint64_t seq = hp_recorder_seq(core, self->slot) - 1;
    memcpy(self->header + HP_HEADER_SEQ, &seq, sizeof seq);
}

static void begin(NodeCall *self, PyObject *x, PyObject *out)
{
    if (self->recorder)
        number_header(self);
    self->request.send = address_of(x);
    self->request.recv = address_of(out);
    self->ended = HP_PENDING;
    hp_call_begin(&self->core, team_of(self), &self->request);
}

/* Whether a member died, without having left in order. */
static bool is_dead(const NodeCall *self, int rank)
{
    const struct hp_team *const team = team_of(self);
    const Node *const node = (Node *)((Team *)self->team)->node;
    return rank != team->rank && hp_py_is_gone(node, team->members[rank]) &&
           !hp_node_has_left(&node->core, team->members[rank]);
}

/*
 * The member that died while the call needed it, or -1. That is why others have given up, or have
 * left in order, which may be seen first. Who died after it came, or gave up before, is no reason.
 */
static int find_reason(const NodeCall *self)
{
    const struct hp_team *const team = team_of(self);
    for (int r = 0; r < team->size; r++)
        if (is_dead(self, r) && hp_team_has(team, r) && hp_call_needs(&self->core, r))
            return r;
    return -1;
}

static PyObject *raise(NodeCall *self, int rc)
{
    const int dead = rc == -ECANCELED || rc == -EPIPE ? find_reason(self) : -1;
    if (dead >= 0 && !is_dead(self, self->core.blocked_on)) {
        self->core.blocked_on = dead;
        rc = -EPIPE;
    }
    /* The program may change arrays that others are reading, who must not take them to be good. */
    if (hp_call_shares_arrays(&self->core))
        hp_team_give_up(team_of(self));
    return hp_py_raise(self->failed, rc, self->core.blocked_on);
}

/* True: done; False: only the headers came; None: pending; NULL: failed. */
static PyObject *outcome(NodeCall *self, int rc)
{
    if (rc < 0)
        return raise(self, rc);
    return rc == HP_PENDING ? Py_NewRef(Py_None) : PyBool_FromLong(rc == HP_DONE);
}

/*
 * The member whose process is gone, or -1. One that left in order may have done its part: it is
 * missing only to who waits for it. One that died is missing to all, whoever they wait for.
 */
static int find_lost(void *waiter)
{
    NodeCall *const self = waiter;
    const struct hp_team *const team = team_of(self);
    const Node *const node = (Node *)((Team *)self->team)->node;
    const int first = self->core.blocked_on;
    self->looked = hp_now();
    if (first >= 0 && hp_py_is_gone(node, team->members[first]))
        return first;
    for (int r = 0; r < team->size; r++)
        if (is_dead(self, r))
            return r;
    return -1;
}

static int lose(void *self, int rank)
{
    ((NodeCall *)self)->core.blocked_on = rank;
    return -EPIPE;
}

/*
 * Whether ranks wait for each other in a circle. Only who is alone in its process may say that it
 * waits: another thread might make the call that somebody waits for.
 */
static int find_cycle(void *waiter)
{
    NodeCall *const self = waiter;
    if (team_of(self)->key == 0)
        return HP_PENDING;
    PyObject *const alone = PyObject_CallNoArgs(((Team *)self->team)->alone);
    Py_XDECREF(alone);
    if (!alone)
        return -EINTR;
    if (alone != Py_True) {
        hp_team_end_wait(team_of(self));
        return HP_PENDING;
    }
    hp_call_tell_wait(&self->core);
    return hp_call_find_cycle(&self->core);
}

static int run_on(void *self, uint64_t nanoseconds)
{
    return hp_call_run(&((NodeCall *)self)->core, nanoseconds);
}

static int doze_on(void *self, uint64_t nanoseconds)
{
    return hp_call_doze(&((NodeCall *)self)->core, nanoseconds);
}

static int wait_long(NodeCall *self, uint64_t nanoseconds)
{
    static const struct hp_py_waits how = {run_on, doze_on, find_lost, lose, find_cycle};
    const Node *const node = (Node *)((Team *)self->team)->node;
    const int rc = hp_py_wait_long(node, self, &how, nanoseconds);
    /* A process that was stopped comes back after its time: what the others did comes first. */
    return rc == HP_PENDING ? hp_call_look(&self->core) : rc;
}

static int wait_for(NodeCall *self, uint64_t nanoseconds)
{
    int rc = HP_PENDING;
    for (int i = 0; rc == HP_PENDING && i < self->looks; i++)
        rc = hp_call_advance(&self->core);
    if (rc != HP_PENDING)
        return rc;
    rc = wait_long(self, nanoseconds);
    hp_team_end_wait(team_of(self));
    return rc;
}

/* Move on without blocking, and without the GIL where that may take long for others. */
static int move_on(NodeCall *self)
{
    int rc;
    if (self->looks > 0)
        return hp_call_advance(&self->core);
    Py_BEGIN_ALLOW_THREADS
    rc = hp_call_advance(&self->core);
    Py_END_ALLOW_THREADS
    return rc;
}

/* start(x, out) */
static PyObject *start(PyObject *object, PyObject *args)
{
    NodeCall *const self = (NodeCall *)object;
    PyObject *x, *out;
    if (!PyArg_ParseTuple(args, "OO:start", &x, &out))
        return NULL;
    Py_XDECREF(self->x);
    Py_XDECREF(self->out);
    self->x = Py_NewRef(x);
    self->out = Py_NewRef(out);
    begin(self, x, out);
    return outcome(self, move_on(self));
}

static PyObject *test(PyObject *object, PyObject *unused)
{
    (void)unused;
    NodeCall *const self = (NodeCall *)object;
    if (self->ended != HP_PENDING)
        return outcome(self, self->ended);
    int rc = move_on(self);
    if (rc == HP_PENDING)
        rc = hp_call_look(&self->core);
    if (rc == HP_PENDING && hp_now() - self->looked > HP_PY_SLICE_NS) {
        const int lost = find_lost(self);
        rc = move_on(self);
        rc = rc == HP_PENDING && lost >= 0 ? lose(self, lost) : rc;
    }
    return outcome(self, rc);
}

/* wait(nanoseconds) */
static PyObject *wait_method(PyObject *object, PyObject *number)
{
    NodeCall *const self = (NodeCall *)object;
    const uint64_t nanoseconds = PyLong_AsUnsignedLongLong(number);
    if (PyErr_Occurred())
        return NULL;
    const int rc = wait_for(self, nanoseconds);
    return rc == -EINTR ? NULL : outcome(self, rc);
}

/* linger(nanoseconds): neither signals nor deaths are looked at, nothing is raised. */
static PyObject *linger(PyObject *object, PyObject *number)
{
    NodeCall *const self = (NodeCall *)object;
    const uint64_t nanoseconds = PyLong_AsUnsignedLongLong(number);
    if (PyErr_Occurred())
        return NULL;
    if (self->ended == HP_PENDING) {
        Py_BEGIN_ALLOW_THREADS
        self->ended = hp_call_doze(&self->core, nanoseconds);
        Py_END_ALLOW_THREADS
    }
    return Py_NewRef(Py_None);
}

static PyObject *headers(PyObject *object, PyObject *unused)
{
    (void)unused;
    const NodeCall *const self = (NodeCall *)object;
    const int size = team_of(self)->size;
    PyObject *const list = PyList_New(size);
    for (int r = 0; list && r < size; r++) {
        const void *const header = hp_call_header(&self->core, r);
        PyObject *const bytes = PyBytes_FromStringAndSize(header, HP_POST_HEADER);
        if (!bytes || PyList_SetItem(list, r, bytes) < 0) {
            Py_DECREF(list);
            return NULL;
        }
    }
    return list;
}

/* The call goes on the long way, with the headers that have come. */
static PyObject *keep_headers(NodeCall *self)
{
    Team *const team = (Team *)self->team;
    Py_XDECREF(team->headers);
    team->headers = headers((PyObject *)self, NULL);
    return team->headers ? Py_NewRef(Py_False) : NULL;
}

/* A signal's handler has raised: the group learns that this call was left, the error stays. */
static PyObject *interrupt(const NodeCall *self)
{
    PyObject *kind, *error, *trace;
    PyErr_Fetch(&kind, &error, &trace);
    Py_XDECREF(PyObject_CallFunction(self->failed, "ii", EINTR, self->core.blocked_on));
    PyErr_Clear();
    PyErr_Restore(kind, error, trace);
    return NULL;
}

/* call(x, out): to the end, for the hot path. */
static PyObject *call_call(PyObject *object, PyObject *args, PyObject *kwargs)
{
    NodeCall *const self = (NodeCall *)object;
    if (PyTuple_Size(args) != 2 || kwargs)
        return PyErr_Format(PyExc_TypeError, "NodeCall: takes x and out");
    begin(self, PyTuple_GetItem(args, 0), PyTuple_GetItem(args, 1));
    int rc = wait_for(self, self->limit);
    if (rc == -EINTR)
        return interrupt(self);
    if (rc == HP_PENDING)
        rc = -ETIMEDOUT;
    if (rc == HP_HEADERS)
        return keep_headers(self);
    return outcome(self, rc);
}

static PyObject *missing(PyObject *object, PyObject *unused)
{
    (void)unused;
    const NodeCall *const self = (NodeCall *)object;
    PyObject *const list = PyList_New(0);
    for (int r = 0; list && r < team_of(self)->size; r++) {
        PyObject *const rank = PyLong_FromLong(r);
        if (hp_call_is_missing(&self->core, r))
            PyList_Append(list, rank);
        Py_XDECREF(rank);
    }
    return list;
}

static PyMethodDef call_methods[] = {
    {"start", start, METH_VARARGS,
     "start(x, out)\n--\n\nBegin; True: done, False: only the headers came, None: pending."},
    {"test", test, METH_NOARGS, "test()\n--\n\nMove on; the same answers."},
    {"wait", wait_method, METH_O,
     "wait(nanoseconds, /)\n--\n\nWait for the end, that long at most; the same answers."},
    {"linger", linger, METH_O,
     "linger(nanoseconds, /)\n--\n\nLet it move on, that long at most; test() tells the outcome."},
    {"headers", headers, METH_NOARGS, "headers()\n--\n\nWhat all ranks say of this call."},
    {"missing", missing, METH_NOARGS, "missing()\n--\n\nThe ranks that keep this call waiting."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot call_slots[] = {
    {Py_tp_doc, "NodeCall(team, verb, dtype, op, root, nbytes, counts, scales, agreed, failed, "
                "limit)\n--\n\nA collective of a team; called as call(x, out) it blocks."},
    {Py_tp_new, call_new},
    {Py_tp_dealloc, call_dealloc},
    {Py_tp_traverse, call_traverse},
    {Py_tp_call, call_call},
    {Py_tp_methods, call_methods},
    {0, NULL},
};

PyType_Spec hp_py_node_call_spec = {
    .name = "hpcpar._core.NodeCall",
    .basicsize = sizeof(NodeCall),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = call_slots,
};
