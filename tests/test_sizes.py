"""Files, classes and functions of the package and of the tests stay short enough to read."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import kbatch

PACKAGE = Path(kbatch.__file__).parent
MAX_FILE, MAX_CLASS, MAX_FUNCTION = 600, 400, 80
# Functions that a measurement forbids to split; their docstrings state it.
UNDIVIDED = {"kernels/records.pxd: read_ordinary"}

_CYTHON_FUNCTION = re.compile(r"^( *)(?:cdef|cpdef|def) (?!class)[^=\n]*?(\w+)\(", re.MULTILINE)
_CYTHON_CLASS = re.compile(r"^( *)(?:cdef )?class (\w+)", re.MULTILINE)
_DOCSTRING = re.compile(r'"""(?:.|\n)*?"""')


def sources() -> list[Path]:
    found = [path for path in PACKAGE.rglob("*") if path.suffix in (".py", ".pyx", ".pxd", ".h")]
    return found + (list((PACKAGE.parent / "tests").rglob("*.py")) if (PACKAGE.parent / "tests").exists() else [])


def place(path: Path) -> str:
    return str(path.relative_to(PACKAGE if path.is_relative_to(PACKAGE) else PACKAGE.parent))


def cython_block(lines: list[str], first: int, indent: int) -> str:
    """Return the indented lines after line `first`, with it and without docstrings."""
    end = first + 1
    # The parameters of a function may continue in lines that are indented more than its body.
    while end < len(lines) and (not lines[end].strip() or len(lines[end]) - len(lines[end].lstrip()) > indent):
        end += 1
    return _DOCSTRING.sub("", "\n".join(lines[first:end]).rstrip())


@functools.cache
def blocks(path: Path) -> list[tuple[str, str, int]]:
    """Return kind, name and lines of each class, and of each function without its docstring."""
    return list(found_blocks(path))


def found_blocks(path: Path) -> Iterator[tuple[str, str, int]]:
    text = path.read_text()
    if path.suffix == ".py":
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef):
                yield "class", node.name, (node.end_lineno or 0) - node.lineno + 1
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                docstring = ast.get_docstring(node, clean=False)
                lines = (node.end_lineno or 0) - node.lineno + 1
                yield "function", node.name, lines - (docstring.count("\n") + 1 if docstring else 0)
        return
    lines_of = text.split("\n")
    for kind, pattern in (("function", _CYTHON_FUNCTION), ("class", _CYTHON_CLASS)):
        for match in pattern.finditer(text):
            block = cython_block(lines_of, text.count("\n", 0, match.start()), len(match[1]))
            yield kind, match[2], block.count("\n") + 1


def test_no_file_has_more_than_600_lines() -> None:
    assert [f"{place(path)}: {n}" for path in sources() if (n := path.read_text().count("\n")) > MAX_FILE] == []


@pytest.mark.parametrize(("kind", "limit"), [("class", MAX_CLASS), ("function", MAX_FUNCTION)])
def test_no_class_has_more_than_400_lines_and_no_function_more_than_80(kind: str, limit: int) -> None:
    long = {
        f"{place(path)}: {name}"
        for path in sources()
        if path.suffix != ".h"
        for each, name, lines in blocks(path)
        if each == kind and lines > limit
    }
    assert long == (UNDIVIDED if kind == "function" else set())
