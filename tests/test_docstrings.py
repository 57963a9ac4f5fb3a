"""Docstrings of the public API name only what users can import, and so do all examples."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import pickle
import pydoc
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from public_api import MODULES

import kbatch

pytest.importorskip("pyspark")

PACKAGE = Path(kbatch.__file__).parent
PUBLIC = {
    getattr(importlib.import_module(module), name): (module, name)
    for module in reversed(MODULES)
    for name in importlib.import_module(module).__all__
    if isinstance(getattr(importlib.import_module(module), name), type)
    or inspect.isfunction(getattr(importlib.import_module(module), name))
}


def public_docstrings() -> Iterator[tuple[str, str]]:
    """Yield the docstrings of public classes, functions, methods and properties, by name."""
    for value, (module, name) in PUBLIC.items():
        if not value.__module__.startswith("kbatch"):
            continue
        yield f"{module}.{name}", value.__doc__ or ""
        for attribute in dir(value) if isinstance(value, type) else ():
            member = inspect.getattr_static(value, attribute)
            member = getattr(member, "__func__", member)
            text = getattr(member, "__doc__", None)
            is_own = inspect.isfunction(member) or isinstance(member, property)
            if not attribute.startswith("_") and is_own and text:
                yield f"{module}.{name}.{attribute}", text


DOCSTRINGS = dict(public_docstrings())


def imports_of_examples(text: str) -> Iterator[tuple[str, str]]:
    """Yield module and name of each import of kbatch in the examples of a docstring."""
    for example in doctest.DocTestParser().get_examples(text):
        for node in ast.walk(ast.parse(example.source)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "kbatch":
                yield from ((node.module or "", each.name) for each in node.names)
            elif isinstance(node, ast.Import):
                yield from ((each.name, "") for each in node.names if each.name.partition(".")[0] == "kbatch")


def test_examples_of_the_public_api_import_public_modules_only() -> None:
    assert len(DOCSTRINGS) > 300
    found = [
        f"{name}: from {module} import {imported}"
        for name, text in DOCSTRINGS.items()
        for module, imported in imports_of_examples(text)
        if module not in MODULES or (imported and not hasattr(importlib.import_module(module), imported))
    ]
    assert found == []


def all_docstrings() -> Iterator[tuple[Path, str]]:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, kinds) and (text := ast.get_docstring(node)) and ">>>" in text:
                yield path, text


def test_examples_of_internal_modules_import_public_names_from_their_public_modules() -> None:
    docstrings = list(all_docstrings())
    assert len(docstrings) > 200
    found = [
        f"{path}: from {module} import {imported}"
        for path, text in docstrings
        for module, imported in imports_of_examples(text)
        if module not in MODULES and is_public_value(module, imported)
    ]
    assert found == []


def is_public_value(module: str, name: str) -> bool:
    """Whether a name of a module is a public class or function."""
    value = getattr(importlib.import_module(module), name, None)
    return (isinstance(value, type) or inspect.isfunction(value)) and value in PUBLIC


def is_public(path: str) -> bool:
    """Whether a dotted path begins with a public module and names something that it has."""
    module = max((each for each in MODULES if path == each or path.startswith(f"{each}.")), key=len)
    value: Any = importlib.import_module(module)
    for name in path[len(module) :].split(".")[1:]:
        if not hasattr(value, name) or name not in dir(value):
            return False
        value = getattr(value, name)
    return True


def test_docstrings_of_the_public_api_name_public_paths_only() -> None:
    found = [
        f"{name}: {path}"
        for name, text in DOCSTRINGS.items()
        for path in re.findall(r"(?<![\w.])`(kbatch(?:\.\w+)+)`", text)
        if not is_public(path)
    ]
    assert found == []


def test_every_public_class_and_function_names_its_public_module() -> None:
    found = {where: f"{value.__module__}.{value.__qualname__}" for value, where in PUBLIC.items()}
    assert len(found) > 300
    # Literals such as `CodecName` are not classes, and the messages of the protocol are made at their first use.
    assert {where: shown for where, shown in found.items() if shown != ".".join(where)} == {}


def test_help_and_representations_name_the_public_module() -> None:
    assert repr(kbatch.log.LogWriter) == "<class 'kbatch.log.LogWriter'>"
    assert "class Log(" in pydoc.render_doc(kbatch.Log, renderer=pydoc.plaintext)
    assert pydoc.render_doc(kbatch.Log).splitlines()[0].endswith("in module kbatch")
    assert pydoc.render_doc(kbatch.export).splitlines()[0].endswith("in module kbatch")


def test_pickles_name_the_public_module() -> None:
    for value, (module, _) in PUBLIC.items():
        data = pickle.dumps(value, protocol=0)
        assert pickle.loads(data) is value
        assert data.startswith(f"c{module}\n".encode())


def test_public_classes_and_functions_are_found_without_a_first_use_of_their_public_name() -> None:
    code = "from kbatch.log.write.log_writer import LogWriter; print(LogWriter.__module__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "kbatch.log\n"


def test_errors_are_pickled_with_their_attributes() -> None:
    error = pickle.loads(pickle.dumps(kbatch.CrcMismatchError("message", position=5)))
    assert (type(error), error.position) == (kbatch.CrcMismatchError, 5)
