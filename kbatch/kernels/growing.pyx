"""A bytes object that grows in place."""

from cpython.bytes cimport PyBytes_AS_STRING
from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.ref cimport PyObject, Py_XDECREF
from libc.stddef cimport size_t
from libc.string cimport memcpy

from kbatch.kernels.spans cimport Span

cdef extern from "Python.h":
    const int PyBUF_WRITE
    PyObject* PyBytes_FromStringAndSize_ "PyBytes_FromStringAndSize"(const char* content, Py_ssize_t size)
    int _PyBytes_Resize(PyObject** made, Py_ssize_t size) except -1

cdef extern from "pages.h":
    void kb_expect_fill(char* p, size_t n) noexcept nogil


cdef class Growing:
    """A bytes object that is appended to.

    `take` returns the object itself, shrunk to its contents and not copied. Excess capacity costs nothing: untouched
    pages are never allocated.
    """

    cdef PyObject* made
    cdef readonly Py_ssize_t used
    cdef Py_ssize_t capacity

    def __cinit__(self):
        self.made = PyBytes_FromStringAndSize_(NULL, 0)
        if self.made == NULL:
            raise MemoryError()

    def __dealloc__(self):
        Py_XDECREF(self.made)

    cdef int resize(self, Py_ssize_t capacity) except -1:
        # On failure `_PyBytes_Resize` frees the object and sets `made` to NULL.
        self.capacity = 0
        _PyBytes_Resize(&self.made, capacity)
        self.capacity = capacity
        return 0

    def append(self, piece not None, Py_ssize_t expected):
        """Append bytes; if they exceed the capacity, raise it to at least `expected` bytes in total.

        Bytes that were written to memory from `spare` are not copied.
        """
        cdef Span span = Span(piece, 1, False)
        if self.made == NULL:
            raise ValueError("the bytes have been taken")
        if span.items == PyBytes_AS_STRING(<object>self.made) + self.used and span.length <= self.capacity - self.used:
            self.used += span.length
            return
        if span.length > self.capacity - self.used:
            self.resize(max(expected, self.used + span.length, self.capacity + self.capacity // 2))
            kb_expect_fill(PyBytes_AS_STRING(<object>self.made) + self.used, self.capacity - self.used)
        memcpy(PyBytes_AS_STRING(<object>self.made) + self.used, span.items, span.length)
        self.used += span.length

    def reserve(self, Py_ssize_t size):
        """Reserve capacity for `size` more bytes."""
        if self.made == NULL:
            raise ValueError("the bytes have been taken")
        if size > self.capacity - self.used:
            self.resize(self.used + size)
            kb_expect_fill(PyBytes_AS_STRING(<object>self.made) + self.used, size)

    def spare(self, Py_ssize_t size):
        """Return a view of the next `size` bytes, or None if they exceed the capacity.

        The caller must release the view before it calls any method but `append`.
        """
        if self.made == NULL or size < 0 or size > self.capacity - self.used:
            return None
        return PyMemoryView_FromMemory(PyBytes_AS_STRING(<object>self.made) + self.used, size, PyBUF_WRITE)

    def take(self):
        """Return the bytes and give up ownership of them: any later call raises."""
        cdef object taken
        if self.made == NULL:
            raise ValueError("the bytes have been taken")
        if self.capacity != self.used:
            self.resize(self.used)
        taken = <object>self.made
        Py_XDECREF(self.made)
        self.made = NULL
        return taken
