# All functions of this kernel are for Cython.
