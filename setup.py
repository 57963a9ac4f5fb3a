"""The compiled part of the build; everything else is declared in ``pyproject.toml``."""

import os
import sys
from glob import glob

from Cython.Build import cythonize
from setuptools import Extension, setup

KERNELS = [
    "spans",
    "buffers",
    "checksum",
    "scan",
    "search",
    "decode",
    "columns",
    "frames",
    "batch_decoder",
    "pipeline",
    "encode",
    "repack",
    "jsontext",
    "avro",
    "keymap",
    "murmur",
]

# Kernels are plain C over pointers, so the portable -O3 is what pays. `KBATCH_SANITIZE=1` makes an
# address- and undefined-behaviour-checked build for the tests of hostile input.
flags = ["/O2"] if sys.platform == "win32" else ["-O3", "-fno-strict-aliasing", "-Wno-unreachable-code-fallthrough"]
link: list[str] = []
if os.environ.get("KBATCH_SANITIZE"):
    flags += ["-fsanitize=address,undefined", "-fno-omit-frame-pointer", "-g"]
    link += ["-fsanitize=address,undefined"]

setup(
    ext_modules=cythonize(
        [
            Extension(
                f"kbatch.kernels.{name}",
                [f"kbatch/kernels/{name}.pyx"],
                depends=glob("kbatch/kernels/*.h"),
                extra_compile_args=flags,
                extra_link_args=link,
            )
            for name in KERNELS
        ],
        compiler_directives={
            "language_level": 3,
            "boundscheck": False,
            "wraparound": False,
            "cdivision": True,
            "initializedcheck": False,
            "embedsignature": True,
            # Kernels keep no state between calls, but for the free list of `buffers`, which has a lock.
            "freethreading_compatible": True,
        },
    )
)
