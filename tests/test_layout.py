"""The folders of the package are its layers: what each module may import, and what it may be called."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from public_api import MODULES

import kbatch

PACKAGE = Path(kbatch.__file__).parent

# Lowest first. A folder stands for all modules in it, except those that have a line of their own; ``log/__init__.py``
# and ``kbatch/__init__.py`` offer what is below them.
LAYERS = [
    "format",
    "tuning",
    "error_codes",
    "errors",
    "extras",
    "options",
    "kernels",
    "batches",
    "records",
    "values",
    "table",
    "transactions",
    "write",
    "read",
    "rewrite",
    "protocol",
    "broker",
    "log",
    "log.write",
    "log.__init__",
    "__init__",
    "plan",
    "sinks",
    "spark.driver",
    "spark",
    "cli",
    "__main__",
]
# Only these import PySpark.
SPARK = ("spark", "spark.driver")

_CYTHON_IMPORT = re.compile(r"^[^\S\n]*(?:from\s+(kbatch[\w.]*)\s+)?c?import\s+(\([^)]*\)|[^\n]*)", re.MULTILINE)


def sources() -> dict[str, list[Path]]:
    """Return the files of each module: those of Python, and of a kernel its implementation, declarations and stub."""
    found: dict[str, list[Path]] = {}
    for path in sorted(PACKAGE.rglob("*.p*")):
        if path.suffix in (".py", ".pyi", ".pyx", ".pxd"):
            found.setdefault(".".join(path.relative_to(PACKAGE).with_suffix("").parts), []).append(path)
    return found


SOURCES = sources()


def module_of(name: str) -> str | None:
    """Return the module below kbatch that has a dotted name; a package is its ``__init__``."""
    name = name.removeprefix("kbatch").removeprefix(".")
    if name in SOURCES:
        return name
    package = f"{name}.__init__" if name else "__init__"
    return package if package in SOURCES else None


def named(module: str, names: list[str]) -> set[str]:
    """Return the modules that ``from module import names`` takes: submodules by their own name, else the package."""
    return {module_of(f"{module}.{name}") or module_of(module) or f"{module}.{name}" for name in names}


def imports_of_python(text: str) -> tuple[set[str], set[str]]:
    """Return the imported modules of kbatch, wherever in the file they are imported, and other packages."""
    ours: set[str] = set()
    others: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom):
            assert not node.level, f"a relative import: {ast.unparse(node)}"
            module = node.module or ""
            if module.split(".")[0] == "kbatch":
                ours |= named(module, [alias.name for alias in node.names])
            else:
                others.add(module.split(".")[0])
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "kbatch":
                    ours.add(module_of(alias.name) or alias.name)
                else:
                    others.add(alias.name.split(".")[0])
    return ours, others


def imports_of_cython(text: str) -> set[str]:
    """Return the modules of kbatch that a kernel imports or cimports."""
    found: set[str] = set()
    for module, what in _CYTHON_IMPORT.findall(text):
        listed = re.sub(r"#.*", "", what).replace("\n", " ").strip("() ").split(",")
        names = [name.split()[0] for name in listed if name.strip()]
        if module:
            found |= named(module, names)
        else:
            found |= {module_of(name) or name for name in names if name.split(".")[0] == "kbatch"}
    return found


def imports(module: str) -> tuple[set[str], set[str]]:
    """Return what a module imports: modules of kbatch, and other packages."""
    ours: set[str] = set()
    others: set[str] = set()
    for path in SOURCES[module]:
        if path.suffix in (".py", ".pyi"):
            found, packages = imports_of_python(path.read_text())
            ours |= found
            others |= packages
        else:
            ours |= imports_of_cython(path.read_text())
    return ours - {module}, others


IMPORTS = {module: imports(module) for module in SOURCES}


def layer(module: str) -> int:
    """Return the number of a module's layer: that of the longest line that names it or a folder it is in."""
    parts = module.split(".")
    for length in range(len(parts), 0, -1):
        name = ".".join(parts[:length])
        if name in LAYERS:
            return LAYERS.index(name)
    raise AssertionError(f"kbatch/{module.replace('.', '/')} is in no layer")


@pytest.mark.parametrize("module", SOURCES)
def test_a_module_imports_its_own_folder_and_what_is_below(module: str) -> None:
    for imported in sorted(IMPORTS[module][0]):
        assert imported in SOURCES, f"{module} imports {imported}, which is no module"
        assert layer(imported) <= layer(module), (
            f"{module} ({LAYERS[layer(module)]}) imports {imported} ({LAYERS[layer(imported)]}), which is above it"
        )


def circle() -> list[str]:
    """Return modules that import each other, the first of them again at the end; or nothing."""
    done: set[str] = set()
    path: list[str] = []

    def visit(module: str) -> list[str]:
        if module in path:
            return [*path[path.index(module) :], module]
        if module not in done:
            path.append(module)
            for imported in sorted(IMPORTS[module][0]):
                if found := visit(imported):
                    return found
            path.pop()
            done.add(module)
        return []

    for module in SOURCES:
        if found := visit(module):
            return found
    return []


def test_no_modules_import_each_other() -> None:
    """In a circle, wherever the imports are; a kernel is one module with its declarations and its stub."""
    assert not circle(), " -> ".join(circle())


def test_every_layer_is_there() -> None:
    names = {".".join(module.split(".")[:length]) for module in SOURCES for length in (1, 2, 3)}
    assert set(LAYERS) <= names


@pytest.mark.parametrize("module", SOURCES)
def test_only_spark_imports_pyspark(module: str) -> None:
    if LAYERS[layer(module)] not in SPARK:
        assert not IMPORTS[module][1] & {"pyspark", "py4j"}


@pytest.mark.parametrize("package", MODULES)
def test_no_submodule_has_a_public_name(package: str) -> None:
    """``kbatch.spark.export`` was both a function and a module."""
    (path,) = [path for path in SOURCES[module_of(package) or ""] if path.suffix == ".py"]
    if path.name != "__init__.py":
        return
    public: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            public = set(ast.literal_eval(node.value))
    submodules = {each.stem for each in path.parent.iterdir() if each.suffix in (".py", ".pyx") or each.is_dir()}
    assert public or package == "kbatch.protocol"
    assert not public & submodules


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("from kbatch.kernels.wire cimport (\n    A,  # a comment, with a comma\n    b,\n)\n", {"kernels.wire"}),
        ("from kbatch.kernels cimport spans, wire\n", {"kernels.spans", "kernels.wire"}),
        ("    from kbatch.kernels.buffers import allocate\n", {"kernels.buffers"}),
        ("cimport kbatch.kernels.scan as scan\nimport numpy as np\n", {"kernels.scan"}),
        ("from kbatch import format\nfrom libc.string cimport memcpy\n", {"format"}),
    ],
)
def test_imports_of_kernels_are_found(text: str, found: set[str]) -> None:
    assert imports_of_cython(text) == found


def test_imports_in_functions_and_for_types_are_found() -> None:
    text = """
if TYPE_CHECKING:
    from kbatch.log import Log, names

def f():
    import kbatch.read.stream, os
    import kbatch
"""
    assert imports_of_python(text) == ({"log.__init__", "log.names", "read.stream", "__init__"}, {"os"})
