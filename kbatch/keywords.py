"""The keyword arguments of functions with ``**options``: their types, defaults and meanings.

A `TypedDict` has the types, for type checkers and editors. `describes` adds the defaults and meanings, from the options
of dataclasses, from other TypedDicts and from its docstring. `list_keywords` inserts all of them in the signature and
the docstring of a function, so that ``help()``, notebooks and the documentation show them.
"""

from __future__ import annotations

import ast
import functools
import inspect
import re
import sys
import textwrap
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

from kbatch.options import Option, options_of

__all__ = ["Keyword", "describes", "keywords_of", "list_keywords"]

C = TypeVar("C", bound=type)

_UNPACK = re.compile(r"Unpack\[(\w+)\]")
# A parameter of a docstring: its names, its type and default.
_ENTRY = re.compile(r"^( *)(\w+(?:, \w+)*) : (.+)$", re.MULTILINE)
_DEFAULT = re.compile(r",? ?(?:default (\S.*?)|optional)$")
_OPTIONS = re.compile(r"^( *)\*\*options\n(?:\1 +\S.*\n|\n(?=\1 +\S))*", re.MULTILINE)
_WIDTH = 120


class Keyword(NamedTuple):
    """A keyword argument: its annotation, and its type, default and meaning for docstrings."""

    name: str
    annotation: str
    type_text: str
    default: object
    default_text: str
    meaning: str


# By TypedDict, its keyword arguments.
_DESCRIBED: dict[type, dict[str, Keyword]] = {}


def describes(*sources: type) -> Callable[[C], C]:
    """Return a decorator that describes the keys of a TypedDict, so that `list_keywords` can list them.

    Parameters
    ----------
    *sources : type
        Dataclasses of options, and TypedDicts that are described. The docstring of the decorated TypedDict takes
        precedence: in its section ``Attributes``, ``name : type, default value``.

    Examples
    --------
    >>> from typing import TypedDict
    >>> from kbatch.keywords import describes, keywords_of
    >>> @describes()
    ... class Sizes(TypedDict, total=False):
    ...     '''Sizes.
    ...
    ...     Attributes
    ...     ----------
    ...     rows : int, default 5
    ...         The number of rows.
    ...     '''
    ...     rows: int
    >>> keywords_of(Sizes)["rows"].default, keywords_of(Sizes)["rows"].meaning
    (5, 'The number of rows.')
    """

    def decorate(cls: C) -> C:
        found: dict[str, Keyword] = {}
        for source in sources:
            if source in _DESCRIBED:
                found |= _DESCRIBED[source]
            else:
                options = {each.name: each for each in options_of(source)}
                found |= {name: _of_option(cls, each) for name, each in options.items() if name in cls.__annotations__}
        for names, text, body in _entries(cls.__doc__ or "", indents=("", "    ")):
            for name in names:
                found[name] = _of_text(_annotation(cls, name), name, text, " ".join(body.split()))
        _DESCRIBED[cls] = {name: found[name] for name in cls.__annotations__ if name in found}
        return cls

    return decorate


def keywords_of(options: type) -> Mapping[str, Keyword]:
    """Return the keyword arguments that a TypedDict describes, by name and in its order."""
    return _DESCRIBED[options]


def list_keywords(function: Callable[..., Any], of: Callable[..., Any]) -> None:
    """List the arguments of ``**options`` in the signature and the docstring of a function.

    `function` gets the signature and the docstring; `of` is the function with ``**options: Unpack[...]``. Functions
    without are left as they are. An argument that the docstring describes is not listed again, and its default is taken
    from there.
    """
    signature = inspect.signature(of)
    (*parameters, last) = signature.parameters.values() or (None,)
    unpacked = _UNPACK.fullmatch(str(last.annotation)) if last is not None and last.kind is last.VAR_KEYWORD else None
    if unpacked is None:
        return
    options = of.__globals__[unpacked[1]]
    # Without docstrings (python -OO) there are no defaults and meanings.
    known = _DESCRIBED.get(options, {})
    text = of.__doc__ or ""
    place = _OPTIONS.search(text)
    own: dict[str, Keyword] = {}
    if place is not None:
        for names, kind, body in _entries(text, indents=(place[1],)):
            own |= {name: _of_text("", name, kind, body) for name in names if name in options.__annotations__}
        listed = "".join(_entry(each, place[1]) for name, each in known.items() if name not in own)
        function.__doc__ = text[: place.start()] + listed + text[place.end() :]
    made = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=(own.get(name) or known[name]).default if name in known else ...,
            annotation=_annotation(options, name),
        )
        for name in options.__annotations__
    ]
    function.__signature__ = signature.replace(parameters=[*parameters, *made])  # type: ignore[attr-defined]


def _entries(docstring: str, indents: tuple[str, ...]) -> Iterator[tuple[list[str], str, str]]:
    """Yield names, type and meaning of each parameter or attribute of a docstring with one of these indentations."""
    found = [entry for entry in _ENTRY.finditer(docstring) if entry[1] in indents]
    for entry in found:
        body = re.match(rf"\n(?:{entry[1]} +\S.*\n|\n(?={entry[1]} +\S))*", docstring[entry.end() :] + "\n")
        yield entry[2].split(", "), entry[3], "" if body is None else body[0]


def _annotation(options: type, name: str) -> str:
    annotation = options.__annotations__[name]
    return str(getattr(annotation, "__forward_arg__", annotation))


def _of_text(annotation: str, name: str, text: str, meaning: str) -> Keyword:
    """Return an argument whose type and default have the form ``type, default value`` or ``type, optional``."""
    default = _DEFAULT.search(text)
    value = None
    if default is not None and default[1] is not None:
        value = ast.literal_eval(default[1])
    kind = text if default is None else text[: default.start()]
    return Keyword(name, annotation, kind, value, _shown_default(value), meaning)


def _of_option(cls: type, option: Option) -> Keyword:
    annotation = _annotation(cls, option.name)
    meaning = option.help[:1].upper() + option.help[1:]
    shown = _shown_default(option.default)
    if option.kind.parses_values and option.default is not None and str(option.default) != option.shown:
        shown += f" ({option.shown})"
    return Keyword(
        option.name, annotation, _type_text(annotation, cls), option.default, shown, f"{meaning.rstrip('.')}."
    )


def _shown_default(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _type_text(annotation: str, cls: type) -> str:
    """Return an annotation with the words of its literals: ``{"raise", "skip"}``."""
    names = vars(sys.modules[cls.__module__])

    def expanded(found: re.Match[str]) -> str:
        value = names.get(found[0])
        if typing.get_origin(value) is not typing.Literal:
            return found[0]
        return f"{{{', '.join(_shown_default(word) for word in typing.get_args(value))}}}"

    return re.sub(r"\b[A-Z]\w+\b", expanded, annotation)


@functools.cache
def _entry(keyword: Keyword, indent: str) -> str:
    """Return the lines of an argument in a docstring."""
    inner = f"{indent}    "
    body = textwrap.fill(keyword.meaning, _WIDTH, initial_indent=inner, subsequent_indent=inner)
    return f"{indent}{keyword.name} : {keyword.type_text}, default {keyword.default_text}\n{body}\n"
