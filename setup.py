"""The compiled and generated parts of the build; everything else is declared in ``pyproject.toml``."""

import os
import subprocess
import sys
import sysconfig
import tempfile
from glob import glob

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

# Build backends do not add the directory of this file.
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from protocol_stub import write_stub

KERNELS = [
    "spans",
    "buffers",
    "checksum",
    "scan",
    "search",
    "damaged",
    "decode",
    "slices",
    "extents",
    "columns",
    "codecs",
    "batch_decoder",
    "small_batches",
    "pipeline",
    "source",
    "sizes",
    "encode",
    "growing",
    "repack",
    "runs",
    "jsonfields",
    "jsontext",
    "avro",
    "keymap",
    "murmur",
    "message_codec",
]
# Cython's own functions for typed memoryviews, compiled once for all kernels.
SHARED = "kbatch.kernels._cython"

# The sanitizers of a build for tests, by the value of KBATCH_SANITIZE. "fuzzer" is for clang, and adds coverage for
# libFuzzer; atheris contains its runtime, therefore nothing is linked (tests/fuzz/README.md).
SANITIZERS = {
    "1": "-fsanitize=address,undefined",
    "thread": "-fsanitize=thread",
    # The runtime of atheris 3.0 lacks the check of function types.
    "fuzzer": "-O1 -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize=function",
}
SANITIZE = os.environ.get("KBATCH_SANITIZE", "")
JOBS = os.cpu_count() or 1


def compiler_flags() -> tuple[list[str], list[str]]:
    """Return the flags for the compiler and for the linker."""
    # Kernels are loops over pointers in C, which -O3 speeds up. Debug symbols are three quarters of a wheel.
    # Cython writes conversions of structs that no kernel calls.
    flags = ["-O3", "-fno-strict-aliasing", "-g0", "-Wno-unused-function"]
    link = []
    if sys.platform == "darwin":
        flags.append("-Wno-unreachable-code-fallthrough")
    if sys.platform == "linux":
        # The table of imported functions is read-only before a kernel runs.
        link = ["-Wl,-z,relro", "-Wl,-z,now", "-Wl,-z,noexecstack"]
    if SANITIZE:
        sanitizer = SANITIZERS[SANITIZE]
        flags = [*flags, *sanitizer.split(), "-fno-omit-frame-pointer", "-g"]
        return flags, [] if SANITIZE == "fuzzer" else [sanitizer]
    # The library functions whose lengths the compiler knows check them. The sanitizers do that themselves.
    return [*flags, "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=2"], link


# Limit what an overflow in a kernel could be used for; each is used if the compiler knows it. By
# `python -m bench.instructions`, hardening takes 2.2 % more instructions for batches of one record, 2.8 % for Arrow
# views and at most 1.4 % for the other steps. -fcf-protection is left out: the processor checks nothing unless the
# interpreter and all of its libraries are built with it.
HARDENING = ["-fstack-protector-strong", "-fstack-clash-protection"]


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
        self.require_compiler()
        translate(self.extensions)
        # Kernels link to libc alone. Some builds of Python would add the directory of their own library.
        self.compiler.linker_so = [each for each in self.compiler.linker_so if not each.startswith("-Wl,-rpath")]
        flags = [] if SANITIZE else [flag for flag in HARDENING if not self.errors("-Werror", flag)]
        for extension in self.extensions:
            extension.extra_compile_args = [*extension.extra_compile_args, *flags]
        # The largest ones first, so that no processor compiles one alone at the end.
        self.extensions.sort(key=lambda extension: os.path.getsize(extension.sources[0]), reverse=True)
        super().build_extensions()

    def require_compiler(self) -> None:
        """Raise if a file that includes Python's headers does not compile. Called before Cython, which takes longer."""
        includes = [
            f"-I{path}" for path in dict.fromkeys(sysconfig.get_path(name) for name in ("include", "platinclude"))
        ]
        try:
            errors = self.errors(*includes, text="#include <Python.h>\n")
        except OSError as error:
            problem = f"no C compiler was found ({error.filename or error})"
        else:
            if not errors:
                return
            found = [line for line in errors.splitlines() if "error:" in line] or errors.splitlines()
            problem = f"the compiler finds no headers ({found[0].partition('error:')[2].strip() or found[0]})"
        raise CompileError(f"kbatch's kernels are compiled from C, and {problem}. {INSTALL}")

    def errors(self, *flags: str, text: str = "int empty;\n") -> str:
        """Return what the compiler writes if it does not compile `text` with these flags; empty if it does."""
        with tempfile.TemporaryDirectory() as directory:
            source = os.path.join(directory, "empty.c")
            with open(source, "w") as file:
                file.write(text)
            command = [*self.compiler.compiler_so, *flags, "-c", source, "-o", source + ".o"]
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
            return (done.stderr or f"status {done.returncode}") if done.returncode else ""


def translate(extensions: list[Extension]) -> None:
    """Translate the kernels to C. Only builds do this: pip asks for the metadata first, in another process."""
    copies = [Extension(extension.name, list(extension.sources), depends=extension.depends) for extension in extensions]
    translated = cythonize(
        copies,
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
    )
    sources = {extension.name: extension for extension in translated}
    for extension in extensions:
        # setuptools has added attributes to its objects.
        extension.sources = sources[extension.name].sources
        extension.define_macros = sources[extension.name].define_macros


write_stub()
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
setup(cmdclass={"build_ext": ParallelBuild}, ext_modules=extensions)
