"""Sends functions and readers to workers, so that a worker without kbatch raises an error that names the remedy."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from pyspark import cloudpickle

__all__ = ["WORKER_IMPORT_ERROR", "Shipped", "shipped"]

# How the error of `_load` begins: the export finds it in the text of a failed job.
WORKER_IMPORT_ERROR = "the Python of Spark's workers cannot import kbatch"
# kbatch and the packages that tasks import.
_TASK_PACKAGES = ("kbatch", "cramjam", "crc32c", "lz4", "numpy", "pyarrow", "typing_extensions", "zstandard")

# PySpark does not state the types of these functions.
_dumps: Callable[[object], bytes] = cloudpickle.dumps


def _load(data: bytes) -> Any:
    # A worker runs this function without having this module, see the end of it.
    try:
        return pickle.loads(data)
    except ImportError as error:
        if error.name is not None and error.name.partition(".")[0] not in _TASK_PACKAGES:
            raise
        text = (
            f"{WORKER_IMPORT_ERROR} ({error}): install it there, or pack a virtual environment that has it with "
            "venv-pack (or conda-pack) and send it with the setting spark.archives; --py-files does not work for "
            "compiled modules"
        )
    raise ModuleNotFoundError(text)


def _restore(cls: Any, state: dict[str, Any]) -> Any:
    made = cls.__new__(cls)
    made.__dict__.update(state)
    return made


class _Parts:
    """The class and the state of an object."""

    def __init__(self, made: object) -> None:
        self._made = made

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _restore, (type(self._made), self._made.__getstate__())


class Shipped:
    """A base class of objects that workers unpickle."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _load, (_dumps(_Parts(self)),)


class _Function:
    """A function; on a worker it is the function itself."""

    def __init__(self, function: Callable[[Iterable[Any]], Iterator[Any]]) -> None:
        self._function = function

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _load, (_dumps(self._function),)

    def __call__(self, elements: Iterable[Any]) -> Iterator[Any]:
        return self._function(elements)


def shipped(function: Callable[[Iterable[Any]], Iterator[Any]]) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """Return a function that calls `function`, and that workers without kbatch can unpickle.

    Parameters
    ----------
    function : callable
        For ``mapPartitions`` or ``mapInArrow``.
    """
    held = _Function(function)

    def call(elements: Iterable[Any]) -> Iterator[Any]:
        return held(elements)

    return call


# The functions of this module are sent as code, and not by name. Its classes never are: to unpickle a class that was
# sent as code changes the class in this process.
_register: Any = cloudpickle.register_pickle_by_value
_register(sys.modules[__name__])
