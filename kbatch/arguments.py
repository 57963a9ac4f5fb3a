"""The check of the types of arguments, at the beginning of public functions.

`check_types` compares the arguments of a function with its annotations, so that no rule about types is written twice.
Values and ranges are checked where they are used. `kbatch.decode` and methods that are called for each record or chunk
check their arguments themselves, because this check takes about a microsecond.

The command line checks its options with this module, and its help must not wait for the import of NumPy.
"""

from __future__ import annotations

import builtins
import dataclasses
import enum
import functools
import importlib
import numbers
import os
import re
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeGuard, TypeVar, Union

from typing_extensions import Buffer

from kbatch.keywords import list_keywords
from kbatch.options import did_you_mean
from kbatch.quantities import INT64_MAX, SizeLike, bounds_text

if TYPE_CHECKING:
    import numpy as np

__all__ = ["check_fields", "check_types", "is_integer", "numpy_dtype", "suggests_names"]

P = ParamSpec("P")
ReturnT = TypeVar("ReturnT")

# Annotations whose modules are imported for type checkers only, and the modules of their first part.
_OPTIONAL_MODULES = {"pa": "pyarrow", "pyarrow": "pyarrow"}


class _Kind(NamedTuple):
    """Values that an annotation allows: their check, their name in messages, and the kinds of their elements."""

    accepts: Callable[[Any], bool]
    text: str
    elements: tuple[_Kind, ...] = ()


def check_types(function: Callable[..., Any], given: Mapping[str, Any]) -> None:
    """Raise an error for the first argument that does not agree with the annotation of its parameter.

    Parameters
    ----------
    function : callable
        A function with annotations, or ``__init__`` of a class. Annotations that mean nothing to this module, such as
        `Any` and protocols, allow every value.
    given : mapping
        Arguments by parameter: ``locals()`` at the beginning of the function.

    Raises
    ------
    TypeError
    ValueError
        For an integer outside of the range of an int64.

    Examples
    --------
    >>> from kbatch.arguments import check_types
    >>> def read(path: str, threads: int = 1) -> None:
    ...     check_types(read, locals())
    >>> read("x.log", threads="2")
    Traceback (most recent call last):
    TypeError: threads must be an int, got str
    """
    for name, default, kinds in _parameters(function):
        value = given[name]
        if value is default:
            continue
        kind = next((each for each in kinds if each.accepts(value)), None)
        if kind is None:
            hint = ""
            if _PATH in kinds and isinstance(value, bytes | bytearray | memoryview):
                hint = "; kbatch.decode reads batches from a buffer"
            elif _BUFFER in kinds and isinstance(value, str | os.PathLike):
                hint = "; read the file first, as pathlib.Path(path).read_bytes()"
            expected = _joined(list(dict.fromkeys(each.text for each in kinds)))
            raise TypeError(f"{name} must be {expected}, got {type(value).__name__}{hint}")
        if kind is _INT and not -INT64_MAX - 1 <= value <= INT64_MAX:
            raise ValueError(f"{name} must be {bounds_text(-INT64_MAX - 1, INT64_MAX, int(value))}")
        if kind.elements and isinstance(value, list | tuple):
            _check_elements(name, value, kind.elements)


def check_fields(instance: Any) -> None:
    """Check the fields of a dataclass; see `check_types`."""
    given = {each.name: getattr(instance, each.name) for each in dataclasses.fields(instance) if each.init}
    check_types(type(instance).__init__, given)


def suggests_names(hints: Mapping[str, str]) -> Callable[[Callable[P, ReturnT]], Callable[P, ReturnT]]:
    """Return a decorator that makes the error for an unknown keyword argument suggest another one.

    It also lists the arguments of ``**options`` in the signature and the docstring (`list_keywords`).

    Parameters
    ----------
    hints : mapping of str to str
        For names that callers expect by mistake, what to use. For other names, the most similar parameter is suggested.

    Examples
    --------
    >>> from kbatch.arguments import suggests_names
    >>> @suggests_names({"limit": "use last"})
    ... def read(*, last: int = 1) -> None: ...
    >>> read(limit=3)
    Traceback (most recent call last):
    TypeError: read() got an unexpected keyword argument 'limit'; use last
    """

    def decorate(function: Callable[P, ReturnT]) -> Callable[P, ReturnT]:
        @functools.wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> ReturnT:
            unknown = kwargs.keys() - _keywords(function)
            if unknown:
                name = sorted(unknown)[0]
                hint = hints[name] if name in hints else did_you_mean(name, _keywords(function)).removeprefix(", ")
                raise TypeError(
                    f"{function.__name__}() got an unexpected keyword argument {name!r}{'; ' if hint else ''}{hint}"
                )
            return function(*args, **kwargs)

        list_keywords(checked, function)
        return checked

    return decorate


@functools.cache
def _keywords(function: Callable[..., Any]) -> frozenset[str]:
    """Return the keyword arguments of a function, with those of ``**options: Unpack[...]``."""
    import inspect

    names: set[str] = set()
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            options = re.fullmatch(r"Unpack\[(\w+)\]", str(parameter.annotation))
            assert options is not None, f"{function.__qualname__}: **{parameter.name} has no names"
            names.update(function.__globals__[options[1]].__annotations__)
        else:
            names.add(parameter.name)
    return frozenset(names)


def _check_elements(name: str, values: Sequence[Any], kinds: tuple[_Kind, ...]) -> None:
    for place, value in enumerate(values):
        if not any(each.accepts(value) for each in kinds):
            expected = _joined([each.text for each in kinds])
            raise TypeError(f"{name}[{place}] must be {expected}, got {type(value).__name__}")


@functools.cache
def _parameters(function: Callable[..., Any]) -> tuple[tuple[str, Any, list[_Kind]], ...]:
    """Return name, default and kinds of each parameter that has a check."""
    import inspect

    function = inspect.unwrap(function)
    found = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.annotation is parameter.empty or parameter.kind in (
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
        ):
            continue
        kinds = _kinds_of(_annotation(parameter.annotation, function))
        if kinds:
            default = object() if parameter.default is parameter.empty else parameter.default
            found.append((parameter.name, default, kinds))
    return tuple(found)


def _annotation(text: Any, function: Callable[..., Any]) -> Any:
    """Return the type that an annotation names; `Any` if it is only imported for type checkers."""
    if not isinstance(text, str):
        return text
    if text == "RecordTable":
        # Modules below the table import it only for type checkers.
        return _Table
    first = text.partition(".")[0]
    names = {**vars(builtins), **function.__globals__}
    try:
        if first in _OPTIONAL_MODULES:
            names[first] = importlib.import_module(_OPTIONAL_MODULES[first])
        return eval(text, names)
    except (ImportError, NameError, AttributeError, TypeError):
        return Any


class _Table:
    """In place of `RecordTable`, which is in a higher layer."""


def _is_table(value: Any) -> bool:
    return any(each.__name__ == "RecordTable" for each in type(value).__mro__)


def _kinds_of(annotation: Any) -> list[_Kind]:
    """Return the kinds of values that an annotation allows; none if it is unknown."""
    if annotation in (SizeLike, SizeLike | None):
        # `size_between` names the texts that it reads.
        return []
    origin = typing.get_origin(annotation)
    if origin in (Union, types.UnionType):
        found: list[_Kind] = []
        for each in typing.get_args(annotation):
            kinds = _kinds_of(each)
            if not kinds:
                return []
            found += [kind for kind in kinds if kind not in found]
        return found
    if origin is typing.Literal:
        # The function itself refuses other words.
        words = typing.get_args(annotation)
        allowed = tuple({type(each) for each in words})
        return [_Kind(lambda value: isinstance(value, allowed), _joined([repr(each) for each in words]))]
    if origin is type:
        (base,) = typing.get_args(annotation)
        base = getattr(base, "__bound__", base)
        return [_Kind(lambda value: isinstance(value, type) and issubclass(value, base), f"a class of {base.__name__}")]
    kind = _KIND_OF.get(annotation if origin is None else origin)
    if kind is not None:
        return [kind._replace(elements=_element_kinds(annotation))] if kind is _COLLECTION else [kind]
    if origin is not None:
        annotation = origin
    if annotation is Any or not isinstance(annotation, type) or getattr(annotation, "_is_protocol", False):
        return []
    if issubclass(annotation, enum.IntEnum):
        # An enumeration is given by name or number too, which the function itself parses.
        return []
    home = annotation.__module__.partition(".")[0]
    name = annotation.__name__ if home in ("kbatch", "builtins") else f"{home}.{annotation.__name__}"
    article = "an" if name[0] in "aeiouAEIOU" else "a"
    return [_Kind(lambda value: isinstance(value, annotation), f"{article} {name}")]


def _element_kinds(annotation: Any) -> tuple[_Kind, ...]:
    """Return the kinds of the elements of a sequence of texts; elements of other types are checked by their users."""
    return (_KIND_OF[str],) if str in typing.get_args(annotation)[:1] else ()


def numpy_dtype(dtype: Any) -> np.dtype[Any]:
    """Return the dtype of the parameter `dtype`."""
    import numpy as np

    try:
        if dtype is None:
            # NumPy would take it for float64.
            raise TypeError
        found: np.dtype[Any] = np.dtype(dtype)
    except (TypeError, ValueError):
        raise TypeError(f"dtype must be a dtype of NumPy such as '>i8', got {dtype!r}") from None
    return found


def _joined(texts: list[str]) -> str:
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} or {texts[-1]}"


def is_integer(value: Any) -> TypeGuard[int]:
    """Whether a value is an integer of Python or NumPy, and neither a bool nor a duration."""
    # NumPy counts durations among its integers.
    return isinstance(value, numbers.Integral) and type(value).__name__ not in ("bool", "timedelta64")


def _is_collection(value: Any) -> bool:
    return not isinstance(value, str | bytes | bytearray | memoryview) and isinstance(value, Iterable)


def _is_buffer(value: Any) -> bool:
    try:
        memoryview(value).release()
    except (TypeError, ValueError, BufferError):
        # ValueError: an array of dates, or a closed mmap.
        return False
    return True


_INT = _Kind(is_integer, "an int")
_PATH = _Kind(lambda value: isinstance(value, os.PathLike), "os.PathLike")
_BUFFER = _Kind(_is_buffer, "a buffer (bytes, memoryview, mmap, ...)")
_COLLECTION = _Kind(_is_collection, "a sequence")
_KIND_OF: dict[Any, _Kind] = {
    int: _INT,
    float: _Kind(lambda value: is_integer(value) or isinstance(value, float), "a number"),
    bool: _Kind(lambda value: type(value).__name__ in ("bool", "bool_"), "a bool"),
    str: _Kind(lambda value: isinstance(value, str), "a str"),
    bytes: _Kind(lambda value: isinstance(value, bytes), "bytes"),
    type(None): _Kind(lambda value: value is None, "None"),
    os.PathLike: _PATH,
    Buffer: _BUFFER,
    Mapping: _Kind(lambda value: isinstance(value, Mapping), "a mapping"),
    dict: _Kind(lambda value: isinstance(value, Mapping), "a mapping"),
    _Table: _Kind(_is_table, "a RecordTable"),
    # A list is accepted where a tuple or a set is annotated.
    **dict.fromkeys((tuple, frozenset, Iterable, Sequence, Collection), _COLLECTION),
    Set: _Kind(lambda value: isinstance(value, Set), "a set"),
    Callable: _Kind(callable, "a function"),
}
