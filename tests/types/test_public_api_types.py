"""`public_api_types` has every public class and function; mypy and pyright check the types that it asserts."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TREE = ast.parse(Path(__file__).with_name("public_api_types.py").read_text())


def public_names(module: str) -> set[str]:
    """Return ``__all__`` without constants. Modules with a literal list are not imported: PySpark may be missing."""
    if module in ("kbatch", "kbatch.log"):
        listed = import_module(module).__all__
        return {name for name in listed if not name.isupper() and name != "__version__"}
    path = ROOT / module.replace(".", "/") / "__init__.py"
    (names,) = [
        ast.literal_eval(node.value)
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    ]
    return {name for name in names if not name.isupper() and name != "__version__"}


def asserted_names(module: str) -> set[str]:
    """Return the names of a module within all calls of ``assert_type``."""
    return {
        node.attr
        for call in ast.walk(TREE)
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "assert_type"
        for node in ast.walk(call)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == module
    }


@pytest.mark.parametrize("module", ["kbatch", "kbatch.log", "kbatch.values", "kbatch.spark"])
def test_every_public_class_and_function_has_an_asserted_type(module: str) -> None:
    assert public_names(module) <= asserted_names(module)
