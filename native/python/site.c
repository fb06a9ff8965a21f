/*
 * Where a call comes from: file and line of the innermost frame outside the library's own code.
 *
 * What is known of a code object is kept, and held, so that an address means the same object for
 * as long as it is there. All of it runs under the GIL.
 */
#include <string.h>

#include "site.h"

#define PLACES 64 /* a power of two */

struct place {
    PyObject *code;
    bool is_ours;
    int line; /* that `text` is about */
    char text[HP_SITE_BYTES];
};

struct hp_sites {
    char *own; /* the path that our own files begin with */
    PyObject *back; /* the name "f_back" */
    struct place places[PLACES];
};

struct hp_sites *hp_sites_new(const char *own)
{
    struct hp_sites *const sites = PyMem_Calloc(1, sizeof *sites);
    if (!sites)
        return (struct hp_sites *)PyErr_NoMemory();
    sites->own = PyMem_Malloc(strlen(own) + 1);
    sites->back = PyUnicode_InternFromString("f_back");
    if (!sites->own || !sites->back) {
        hp_sites_free(sites);
        return (struct hp_sites *)PyErr_NoMemory();
    }
    strcpy(sites->own, own);
    return sites;
}

void hp_sites_free(struct hp_sites *sites)
{
    if (!sites)
        return;
    for (int i = 0; i < PLACES; i++)
        Py_XDECREF(sites->places[i].code);
    Py_XDECREF(sites->back);
    PyMem_Free(sites->own);
    PyMem_Free(sites);
}

/* The path of a code object, for the caller to drop; NULL without an error. */
static PyObject *path_of(PyObject *code)
{
    PyObject *const path = PyObject_GetAttrString(code, "co_filename");
    PyObject *const bytes = path ? PyUnicode_EncodeFSDefault(path) : NULL;
    Py_XDECREF(path);
    PyErr_Clear();
    return bytes;
}

static void write_text(struct place *place, int line)
{
    PyObject *const path = path_of(place->code);
    const char *const whole = path ? PyBytes_AsString(path) : "?";
    const char *const slash = strrchr(whole, '/');
    char number[16];
    const int digits = PyOS_snprintf(number, sizeof number, ":%d", line);
    memset(place->text, 0, sizeof place->text);
    PyOS_snprintf(place->text, sizeof place->text - (size_t)digits, "%s", slash ? slash + 1 : whole);
    strcat(place->text, number);
    place->line = line;
    Py_XDECREF(path);
}

static struct place *find(struct hp_sites *sites, PyObject *code)
{
    const uintptr_t mixed = (uintptr_t)code >> 4;
    struct place *const place = &sites->places[(mixed ^ (mixed >> 6)) & (PLACES - 1)];
    if (place->code == code)
        return place;
    PyObject *const path = path_of(code), *const old = place->code;
    *place = (struct place){.code = Py_NewRef(code)};
    place->is_ours = path && strncmp(PyBytes_AsString(path), sites->own, strlen(sites->own)) == 0;
    Py_XDECREF(path);
    Py_XDECREF(old); /* may run anything */
    return place;
}

const char *hp_sites_here(struct hp_sites *sites)
{
    PyFrameObject *frame = sites ? PyEval_GetFrame() : NULL; /* borrowed */
    Py_XINCREF((PyObject *)frame);
    while (frame) {
        PyObject *const code = (PyObject *)PyFrame_GetCode(frame);
        struct place *const place = find(sites, code);
        Py_DECREF(code);
        if (!place->is_ours) {
            const int line = PyFrame_GetLineNumber(frame);
            if (line != place->line)
                write_text(place, line);
            Py_DECREF((PyObject *)frame);
            return place->text;
        }
        PyObject *const back = PyObject_GetAttr((PyObject *)frame, sites->back);
        Py_DECREF((PyObject *)frame);
        frame = back == Py_None ? NULL : (PyFrameObject *)back;
        if (!frame)
            Py_XDECREF(back);
    }
    PyErr_Clear();
    return NULL;
}
