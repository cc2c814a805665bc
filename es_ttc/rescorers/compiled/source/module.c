/* The Python module es_ttc.rescorers.compiled.loops: checks what it is given, and computes without the lock. */
#define Py_LIMITED_API 0x030b0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <string.h>

#if defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include "kernels.h"

/* The builds that this processor runs, the quickest last. */
static const kernels *builds[3];
static int count, used;

#if defined(__aarch64__)
static int has_dotprod(void) {
#if defined(__linux__)
  return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#elif defined(__APPLE__)
  return 1; /* every one of Apple's processors for computers */
#else
  return 0;
#endif
}
#endif

static void find_builds(void) {
  builds[count++] = &portable_kernels;
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")) {
    builds[count++] = &avx2_kernels;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni"))
      builds[count++] = &avx512_kernels;
  }
#elif defined(__aarch64__)
  if (has_dotprod()) builds[count++] = &dotprod_kernels;
#endif
  used = count - 1;
}

static PyObject *names(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(nothing)) {
  PyObject *all = PyTuple_New(count);
  for (int i = 0; all && i < count; i++) {
    PyObject *name = PyUnicode_FromString(builds[i]->name);
    if (!name || PyTuple_SetItem(all, i, name) < 0) {
      Py_DECREF(all);
      return NULL;
    }
  }
  return all;
}

static PyObject *use(PyObject *Py_UNUSED(module), PyObject *args) {
  const char *name;
  if (!PyArg_ParseTuple(args, "s", &name)) return NULL;
  for (int i = 0; i < count; i++)
    if (!strcmp(builds[i]->name, name)) {
      used = i;
      Py_RETURN_NONE;
    }
  return PyErr_Format(PyExc_ValueError, "[%s] is not a build that this processor runs", name);
}

static void release(Py_buffer *buffers, int number) {
  while (number--) PyBuffer_Release(&buffers[number]);
}

/* Fill a task from buffers and check that they fit together; on failure nothing is held. */
static int read_task(PyObject *args, task *of, Py_buffer buffers[4]) {
  Py_buffer *documents = buffers, *queries = buffers + 1, *out = buffers + 2, *room = buffers + 3;
  if (!PyArg_ParseTuple(args, "y*y*w*w*nnnppfn", documents, queries, out, room, &of->dims, &of->plain, &of->smoothing,
                        &of->identity, &of->mean, &of->floor, &of->scales))
    return 0;
  of->documents = documents->buf;
  of->queries = queries->buf;
  of->out = out->buf;
  of->count = documents->len / (Py_ssize_t)sizeof(document_row);
  of->roles = of->dims > 0 ? queries->len / (Py_ssize_t)sizeof(float) / of->dims : 0;
  if (documents->len == of->count * (Py_ssize_t)sizeof(document_row) && of->dims > 0 &&
      queries->len == of->roles * of->dims * (Py_ssize_t)sizeof(float) && 0 <= of->plain && of->plain <= of->roles &&
      of->smoothing >= 0 && of->scales > 0 &&
      out->len == of->count * of->scales * of->roles * (Py_ssize_t)sizeof(float))
    return 1;
  PyErr_SetString(PyExc_ValueError, "the sizes of documents, queries and out do not fit together");
  release(buffers, 4);
  return 0;
}

/* Return the bytes that are needed to compute in; with that many or more, compute. */
static PyObject *greatest_cosines(PyObject *Py_UNUSED(module), PyObject *args) {
  Py_buffer buffers[4];
  task of;
  if (!read_task(args, &of, buffers)) return NULL;
  const kernels *with = builds[used];
  size_t needed = with->room(&of);
  if (needed <= (size_t)buffers[3].len) {
    Py_BEGIN_ALLOW_THREADS
    with->greatest_cosines(&of, buffers[3].buf);
    Py_END_ALLOW_THREADS
  }
  release(buffers, 4);
  return PyLong_FromSize_t(needed);
}

/* The same for the lengths of a document's smoothed rows. */
static PyObject *smoothed_lengths(PyObject *Py_UNUSED(module), PyObject *args) {
  Py_buffer buffers[5], *rows = buffers, *spectra = buffers + 1, *plan = buffers + 2, *out = buffers + 3;
  Py_buffer *room = buffers + 4;
  lengths_task of;
  if (!PyArg_ParseTuple(args, "y*y*y*w*w*nnn", rows, spectra, plan, out, room, &of.dims, &of.scales, &of.size))
    return NULL;
  const Py_ssize_t number = sizeof(float);
  of.rows = rows->buf;
  of.spectra = spectra->buf;
  of.plan = plan->buf;
  of.out = out->buf;
  of.length = of.dims > 0 ? rows->len / number / of.dims : 0;
  const kernels *with = builds[used];
  size_t needed = 0;
  if (of.dims > 0 && of.scales > 0 && of.length <= of.size && rows->len == of.length * of.dims * number &&
      plan->len == (2 * of.size + 4 * (of.size / 2 + 1)) * number && out->len == of.scales * of.length * number &&
      spectra->len == of.scales * (of.size / 2 + 1) * number) {
    needed = with->lengths_room(&of);
    if (needed <= (size_t)room->len) {
      Py_BEGIN_ALLOW_THREADS
      with->smoothed_lengths(&of, room->buf);
      Py_END_ALLOW_THREADS
    }
  } else {
    PyErr_SetString(PyExc_ValueError, "the sizes of rows, spectra, plan and out do not fit together");
  }
  release(buffers, 5);
  return needed ? PyLong_FromSize_t(needed) : NULL;
}

static PyMethodDef methods[] = {
    {"builds", names, METH_NOARGS, NULL},
    {"use", use, METH_VARARGS, NULL},
    {"greatest_cosines", greatest_cosines, METH_VARARGS, NULL},
    {"smoothed_lengths", smoothed_lengths, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static int start(PyObject *Py_UNUSED(module)) {
  if (!count) find_builds();
  return 0;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, (void *)start}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "loops", .m_methods = methods, .m_slots = slots};

PyMODINIT_FUNC PyInit_loops(void) { return PyModuleDef_Init(&definition); }
