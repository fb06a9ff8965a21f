/* The module hpcpar._core. */
#define HP_IMPORTS_NUMPY
#include <pthread.h>
#include <unistd.h>

#include "hp_mail.h"
#include "hp_python.h"

#define PAGE 4096
#define RECORD_BYTES(groups) hp_recorder_bytes(HP_RECORD_CAPACITY, groups)

const struct hp_kernels *hp_py_kernels;

static PyObject *cpu_features(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    return PyUnicode_FromString(hp_level_name(hp_best_level()));
}

static PyObject *build_info(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    return Py_BuildValue("{ssssss}", "compiler", __VERSION__, "flags", HP_FLAGS, "version",
                         HP_VERSION);
}

static PyObject *node_sizes(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    const unsigned long long head = (HP_RECORD_OFFSET + RECORD_BYTES(0) + PAGE - 1) / PAGE * PAGE;
    const unsigned long long control =
        HP_LANES * offsetof(struct hp_lane, slots) + RECORD_BYTES(1) - RECORD_BYTES(0);
    return Py_BuildValue("{sisisisKsKsKsKsKsKsKsKsi}", "ranks", HP_MAX_LOCAL, "groups", HP_MAX_TEAMS,
                         "lanes", HP_LANES, "head", head, "control", control, "slots",
                         (unsigned long long)HP_SLOTS * HP_SLOT_BYTES, "length",
                         (unsigned long long)HP_WINDOW_MIN, "record",
                         (unsigned long long)HP_RECORD_OFFSET, "areas",
                         (unsigned long long)HP_AREAS_OFFSET, "ring",
                         (unsigned long long)HP_MAIL_RING, "transfer",
                         (unsigned long long)sizeof(struct hp_buffer) +
                             HP_TRANSFERS * sizeof(struct hp_transfer), "kind",
                         (int)HP_MAIL_KIND);
}

static PyMethodDef methods[] = {
    {"cpu_features", cpu_features, METH_NOARGS,
     "cpu_features($module, /)\n--\n\nThe SIMD level in use: baseline, avx2 or avx512."},
    {"build_info", build_info, METH_NOARGS,
     "build_info($module, /)\n--\n\nCompiler, flags and version of the core."},
    {"node_sizes", node_sizes, METH_NOARGS,
     "node_sizes($module, /)\n--\n\nWhat the node engine takes of a rank's window, in bytes."},
    {NULL, NULL, 0, NULL},
};

/* Heap types, as the stable ABI demands. */
static int add_types(PyObject *module)
{
    PyType_Spec *const specs[] = {&hp_py_foreign_spec,  &hp_py_hotcall_spec, &hp_py_node_spec,
                                 &hp_py_node_call_spec, &hp_py_team_spec,    &hp_py_pack_spec,
                                 &hp_py_recorder_spec,  &hp_py_record_reader_spec,
                                 &hp_py_ring_spec,       &hp_py_box_spec,
                                 &hp_py_message_spec};
    for (size_t i = 0; i < sizeof specs / sizeof specs[0]; i++) {
        PyObject *const type = PyType_FromModuleAndSpec(module, specs[i], NULL);
        const int rc = type ? PyModule_AddType(module, (PyTypeObject *)type) : -1;
        Py_XDECREF(type);
        if (rc < 0)
            return -1;
    }
    return 0;
}

pid_t hp_py_process;

static void note_process(void)
{
    hp_py_process = getpid();
}

/* Runs once per import: the SIMD level is chosen here and never again. */
static int execute(PyObject *module)
{
    if (PyArray_ImportNumPyAPI() < 0)
        return -1;
    hp_py_kernels = hp_kernels_of(hp_best_level());
    note_process();
    if (pthread_atfork(NULL, NULL, note_process) != 0)
        return (PyErr_NoMemory(), -1);
    if (PyModule_AddFunctions(module, hp_py_layout_methods) < 0 ||
        PyModule_AddFunctions(module, hp_py_reduce_methods) < 0 ||
        PyModule_AddFunctions(module, hp_py_philox_methods) < 0 ||
        PyModule_AddFunctions(module, hp_py_word_methods) < 0)
        return -1;
    return add_types(module);
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, execute},
    {0, NULL},
};

static PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "hpcpar._core",
    .m_doc = "The compiled core: reductions, packing, random numbers, flight record, ring.",
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__core(void)
{
    return PyModuleDef_Init(&definition);
}
