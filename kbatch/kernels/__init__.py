"""Compiled kernels: no policy, no Python object in a loop, no GIL."""

try:
    from kbatch.kernels import spans as spans  # what most kernels stand on
except ImportError:
    raise ImportError(
        f"the kernels in {__path__[0]} are not compiled: this is kbatch's source tree, not an installation; "
        "compile them with `pip install -e .`, or run from another directory to use the installed package (Python "
        "loads none from a zip file, as of `--py-files`: `kbatch pack` makes an archive for Spark's executors)"
    ) from None
