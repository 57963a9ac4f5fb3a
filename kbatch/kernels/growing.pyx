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

    It is made in memory of its own, which then is not copied, but cut: so it may be given too much, which costs nothing
    until it is written to.
    """

    cdef PyObject* made
    cdef readonly Py_ssize_t used
    cdef Py_ssize_t room

    def __cinit__(self):
        self.made = PyBytes_FromStringAndSize_(NULL, 0)
        if self.made == NULL:
            raise MemoryError()

    def __dealloc__(self):
        Py_XDECREF(self.made)

    cdef int resize(self, Py_ssize_t room) except -1:
        # On failure the object is gone, and the pointer NULL.
        self.room = 0
        _PyBytes_Resize(&self.made, room)
        self.room = room
        return 0

    def append(self, piece not None, Py_ssize_t expected):
        """Append bytes; where there is no room for them, make some for `expected` bytes in all.

        What was written to `spare` memory is not copied.
        """
        cdef Span span = Span(piece, 1, False)
        if self.made == NULL:
            raise ValueError("the bytes have been taken")
        if span.items == PyBytes_AS_STRING(<object>self.made) + self.used and span.length <= self.room - self.used:
            self.used += span.length
            return
        if span.length > self.room - self.used:
            self.resize(max(expected, self.used + span.length, self.room + self.room // 2))
            kb_expect_fill(PyBytes_AS_STRING(<object>self.made) + self.used, self.room - self.used)
        memcpy(PyBytes_AS_STRING(<object>self.made) + self.used, span.items, span.length)
        self.used += span.length

    def reserve(self, Py_ssize_t size):
        """Have room for so many bytes behind those that are used."""
        if self.made == NULL:
            raise ValueError("the bytes have been taken")
        if size > self.room - self.used:
            self.resize(self.used + size)
            kb_expect_fill(PyBytes_AS_STRING(<object>self.made) + self.used, size)

    def spare(self, Py_ssize_t size):
        """Return a view of so many bytes behind those that are used, or None where there is no room for them.

        The caller lets go of it before anything but `append` is called.
        """
        if self.made == NULL or size < 0 or size > self.room - self.used:
            return None
        return PyMemoryView_FromMemory(PyBytes_AS_STRING(<object>self.made) + self.used, size, PyBUF_WRITE)

    def take(self):
        """Return the bytes; there is nothing left here then."""
        cdef object taken
        if self.made == NULL:
            raise ValueError("the bytes have been taken")
        if self.room != self.used:
            self.resize(self.used)
        taken = <object>self.made
        Py_XDECREF(self.made)
        self.made = NULL
        return taken
