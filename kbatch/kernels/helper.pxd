from kbatch.kernels.frames cimport Codecs


cdef class Work:
    cdef object lend(self, Codecs codecs)
    cdef void help(self, void* own) noexcept nogil
