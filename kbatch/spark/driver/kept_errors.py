"""Errors of Spark that stay readable after the JVM, which holds parts of them, has ended."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

__all__ = ["keep_readable"]

# Methods of PySpark's exceptions, in all versions, that call the JVM.
_METHODS = ("getCondition", "getErrorClass", "getSqlState", "getMessageParameters", "getMessage", "getQueryContext")


def keep_readable(error: BaseException) -> None:
    """Fetch the texts of an error and of its causes while the JVM is running.

    Afterwards, an error from the JVM has a subclass of its class, with the same name, that returns these texts.
    """
    for each in _with_causes(error):
        if type(each).__module__.partition(".")[0] not in ("pyspark", "py4j"):
            continue
        kept: dict[str, Any] = {}
        with contextlib.suppress(Exception):
            kept["__str__"] = str(each)
        for name in _METHODS:
            # PySpark has deprecated some of them.
            with contextlib.suppress(Exception), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                kept[name] = getattr(each, name)()
        with contextlib.suppress(TypeError):
            each.__class__ = _class_with(type(each), kept)


def _with_causes(error: BaseException) -> Iterator[BaseException]:
    todo: list[BaseException | None] = [error]
    seen: set[int] = set()
    while todo:
        each = todo.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            yield each
            todo += [each.__cause__, each.__context__]


def _class_with(cls: type[BaseException], kept: dict[str, Any]) -> type[BaseException]:
    names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    return type(cls.__name__, (cls,), {**names, **{name: _returning(value) for name, value in kept.items()}})


def _returning(value: Any) -> Any:
    return lambda self: value
