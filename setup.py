"""The compiled part of the build; everything else is declared in ``pyproject.toml``."""

import os
import sys
import sysconfig
from glob import glob

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError, PlatformError

KERNELS = [
    "spans",
    "buffers",
    "checksum",
    "scan",
    "search",
    "decode",
    "slices",
    "extents",
    "columns",
    "codecs",
    "batch_decoder",
    "pipeline",
    "source",
    "sizes",
    "encode",
    "growing",
    "repack",
    "jsontext",
    "avro",
    "keymap",
    "murmur",
    "message_codec",
]
# Cython's own functions for typed memoryviews, compiled once for all kernels.
SHARED = "kbatch.kernels._cython"

SANITIZE = bool(os.environ.get("KBATCH_SANITIZE"))
JOBS = os.cpu_count() or 1


def compiler_flags() -> tuple[list[str], list[str]]:
    """Return the flags for the compiler and for the linker."""
    # Kernels are loops over pointers in C, which -O3 speeds up. Debug symbols are three quarters of a wheel.
    flags = ["-O3", "-fno-strict-aliasing", "-g0"]
    if sys.platform == "darwin":
        flags.append("-Wno-unreachable-code-fallthrough")
    if SANITIZE:
        # The tests of hostile input check addresses and undefined behaviour.
        flags = [*flags, "-fsanitize=address,undefined", "-fno-omit-frame-pointer", "-g"]
        return flags, ["-fsanitize=address,undefined"]
    return flags, []


INSTALL = (
    "Install a C compiler and Python's headers: 'apt-get install gcc python3-dev' on Debian and Ubuntu, "
    "'dnf install gcc python3-devel' on Fedora and RHEL, 'xcode-select --install' on macOS."
)


class ParallelBuild(build_ext):
    """Compiles as many kernels at a time as there are processors, and reports a missing compiler with instructions."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.parallel = self.parallel or JOBS

    def build_extensions(self) -> None:
        if not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")):
            raise CompileError(f"kbatch's kernels are compiled from C, and Python.h was not found. {INSTALL}")
        try:
            super().build_extensions()
        except (CompileError, PlatformError) as error:
            if isinstance(error, CompileError) and "No such file or directory" not in str(error):
                raise
            raise CompileError(
                f"kbatch's kernels are compiled from C, and no C compiler was found ({error}). {INSTALL}"
            ) from None


flags, link = compiler_flags()
extensions = [
    Extension(
        f"kbatch.kernels.{name}",
        [f"kbatch/kernels/{name}.pyx"],
        depends=glob("kbatch/kernels/*.h"),
        extra_compile_args=flags,
        extra_link_args=link,
    )
    for name in KERNELS
]
extensions.append(Extension(SHARED, ["kbatch/kernels/_cython.c"], extra_compile_args=flags, extra_link_args=link))
setup(
    cmdclass={"build_ext": ParallelBuild},
    ext_modules=cythonize(
        extensions,
        # On macOS, child processes import this file and would start the build again.
        nthreads=JOBS if sys.platform == "linux" else 0,
        shared_utility_qualified_name=SHARED,
        compiler_directives={
            "language_level": 3,
            "boundscheck": False,
            "wraparound": False,
            "cdivision": True,
            "initializedcheck": False,
            "embedsignature": True,
            # Kernels keep no state between calls, except the free list of `buffers`, which has a lock.
            "freethreading_compatible": True,
        },
    ),
)
