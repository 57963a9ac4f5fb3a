"""Collects the examples of classes and functions in the module with their code, not in the one that they name."""

from __future__ import annotations

import doctest
import inspect
import re
from typing import Any

_is_from_module = doctest.DocTestFinder._from_module  # type: ignore[attr-defined]


def _has_code_of(finder: doctest.DocTestFinder, module: Any, value: Any) -> bool:
    if module is not None and inspect.isclass(value):
        return re.search(rf"^class {value.__name__}\b", inspect.getsource(module), re.MULTILINE) is not None
    if module is not None and inspect.isfunction(value):
        return inspect.unwrap(value).__globals__ is vars(module)
    return bool(_is_from_module(finder, module, value))


doctest.DocTestFinder._from_module = _has_code_of  # type: ignore[attr-defined]
