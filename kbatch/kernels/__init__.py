"""Compiled kernels: no policy, no Python object in a loop, no GIL."""
