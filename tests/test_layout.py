"""The folders of the package are its layers: the allowed imports and names of modules."""

from __future__ import annotations

import ast
import functools
import importlib
import re
from pathlib import Path

import pytest
from public_api import MODULES

import kbatch

PACKAGE = Path(kbatch.__file__).parent

# From the lowest to the highest. A folder covers all its modules except the ones listed separately;
# ``log/__init__.py`` and ``kbatch/__init__.py`` export names of lower layers, ``log/__init__.py`` also of ``live``.
LAYERS = [
    "version",
    "public_names",
    "quantities",
    "format",
    "tuning",
    "error_codes",
    "escaping",
    "java_patterns",
    "json_text",
    "errors",
    "extras",
    "lazy_names",
    "options",
    "keywords",
    "arguments",
    "backoff",
    "settings_text",
    "tls",
    "bounds",
    "unfinished",
    "interrupts",
    "kernels",
    "batches",
    "publishing",
    "records",
    "values",
    "value_options",
    "table",
    "transactions",
    "write",
    "read",
    "rewrite",
    "protocol",
    "broker",
    "log.store",
    "log.files",
    "log",
    "log.check",
    "log.write",
    "live",
    "log.__init__",
    "plan",
    "scans",
    "report",
    "sinks",
    "spark.driver",
    "spark",
    "exporting",
    "__init__",
    "cli",
    "__main__",
]
# Folders whose modules may bear a name of another folder.
UNNAMED = ("kernels", "protocol.schemas")
# Only these import PySpark.
SPARK = ("spark", "spark.driver")

_CYTHON_IMPORT = re.compile(r"^[^\S\n]*(?:from\s+(kbatch[\w.]*)\s+)?c?import\s+(\([^)]*\)|[^\n]*)", re.MULTILINE)


def sources() -> dict[str, list[Path]]:
    """Return the files of each module; a kernel has an implementation, declarations and a stub."""
    found: dict[str, list[Path]] = {}
    for path in sorted(PACKAGE.rglob("*.p*")):
        if path.suffix in (".py", ".pyi", ".pyx", ".pxd"):
            found.setdefault(".".join(path.relative_to(PACKAGE).with_suffix("").parts), []).append(path)
    return found


SOURCES = sources()


def module_of(name: str) -> str | None:
    """Return the module of kbatch with a dotted name; a package is its ``__init__``."""
    name = name.removeprefix("kbatch").removeprefix(".")
    if name in SOURCES:
        return name
    package = f"{name}.__init__" if name else "__init__"
    return package if package in SOURCES else None


def named(module: str, names: list[str]) -> set[str]:
    """Return the modules that ``from module import names`` imports: submodules by name, else the package."""
    return {module_of(f"{module}.{name}") or module_of(module) or f"{module}.{name}" for name in names}


def imports_of_python(text: str) -> tuple[set[str], set[str]]:
    """Return the imported modules of kbatch and other packages; imports may be anywhere in the file."""
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


@functools.cache
def imports(module: str) -> tuple[set[str], set[str]]:
    """Return the modules of kbatch and the other packages that a module imports."""
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


def layer(module: str) -> int:
    """Return the number of a module's layer, from the longest entry that names it or one of its folders."""
    parts = module.split(".")
    for length in range(len(parts), 0, -1):
        name = ".".join(parts[:length])
        if name in LAYERS:
            return LAYERS.index(name)
    raise AssertionError(f"kbatch/{module.replace('.', '/')} is in no layer")


@pytest.mark.parametrize("module", SOURCES)
def test_a_module_imports_its_own_folder_and_lower_layers(module: str) -> None:
    for imported in sorted(imports(module)[0]):
        assert imported in SOURCES, f"{module} imports {imported}, which is not a module"
        assert layer(imported) <= layer(module), (
            f"{module} ({LAYERS[layer(module)]}) imports {imported} ({LAYERS[layer(imported)]}), which is above it"
        )


def import_cycle() -> list[str]:
    """Return a cycle of modules that import each other, with the first one repeated at the end, or an empty list."""
    done: set[str] = set()
    path: list[str] = []

    def visit(module: str) -> list[str]:
        if module in path:
            return [*path[path.index(module) :], module]
        if module not in done:
            path.append(module)
            for imported in sorted(imports(module)[0]):
                if found := visit(imported):
                    return found
            path.pop()
            done.add(module)
        return []

    for module in SOURCES:
        if found := visit(module):
            return found
    return []


def test_imports_have_no_cycles() -> None:
    """Imports anywhere in a file count; a kernel is one module with its declarations and its stub."""
    assert not import_cycle(), " -> ".join(import_cycle())


def test_every_layer_exists() -> None:
    names = {".".join(module.split(".")[:length]) for module in SOURCES for length in (1, 2, 3)}
    assert set(LAYERS) <= names


@pytest.mark.parametrize("module", SOURCES)
def test_only_spark_imports_pyspark(module: str) -> None:
    if LAYERS[layer(module)] not in SPARK:
        assert not imports(module)[1] & {"pyspark", "py4j"}


def test_one_module_handles_signals() -> None:
    assert [module for module in SOURCES if imports(module)[1] & {"signal", "_signal"}] == ["interrupts"]


@pytest.mark.parametrize("package", MODULES)
def test_no_submodule_has_a_public_name(package: str) -> None:
    """Otherwise a name such as ``kbatch.log.compact`` could be a function or a module."""
    (path,) = [path for path in SOURCES[module_of(package) or ""] if path.suffix == ".py"]
    if path.name != "__init__.py":
        return
    # Packages whose names are imported when they are first used have no literal list.
    public = set(importlib.import_module(package).__all__) if package in ("kbatch", "kbatch.log") else set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__" and not public:
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
    from kbatch.log import Log, ranges

def f():
    import kbatch.read.stream, os
    import kbatch
"""
    assert imports_of_python(text) == ({"log.__init__", "log.ranges", "read.stream", "__init__"}, {"os"})


# Two layers do the same thing under these names.
SAME = {"committed", "rewriting"}


def test_no_two_modules_of_one_name_mean_different_things() -> None:
    """A kernel may bear the name of the module that calls it; the schemas are tables."""
    folders = {module: module.rpartition(".")[0] for module in SOURCES if not module.endswith("__init__")}
    names = [module.rpartition(".")[2] for module, folder in folders.items() if folder not in UNNAMED]
    assert {name for name in names if names.count(name) > 1} == SAME
