"""Compiled kernels: no policy, no Python object in a loop, no GIL."""

try:
    from kbatch.kernels import spans as spans  # most kernels need it
except ImportError:
    raise ImportError(
        f"the kernels in {__path__[0]} are not compiled: this is kbatch's source tree, not an installation; "
        "compile them with `pip install -e .`, or run from another directory to use the installed package (Python "
        "loads no compiled module from a zip file, such as those of Spark's `--py-files`: put the output of "
        "`pip install --target` into an archive for `spark.archives`)"
    ) from None
