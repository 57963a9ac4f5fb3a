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
from typing import Any, NamedTuple, ParamSpec, TypeVar

from kbatch.options import Option, options_of

__all__ = ["Keyword", "describes", "keywords_of", "list_keywords", "lists_options"]

DictT = TypeVar("DictT", bound=type)
GivenP = ParamSpec("GivenP")
ListedT = TypeVar("ListedT")

_UNPACK = re.compile(r"Unpack\[(\w+)\]")
# A parameter of a docstring: its names, its type and default.
_ENTRY = re.compile(r"^( *)(\w+(?:, \w+)*) : (.+)$", re.MULTILINE)
_DEFAULT = re.compile(r",? ?(?:default (\S.*?)|optional)$")
_OPTIONS = re.compile(r"^( *)\*\*options\n(?:\1 +\S.*\n|\n(?=\1 +\S))*", re.MULTILINE)
_LINE_LENGTH = 120


class Keyword(NamedTuple):
    """A keyword argument: its annotation, and its type, default and meaning for docstrings."""

    name: str
    annotation: str
    type_text: str
    default: object
    default_text: str
    meaning: str


# By TypedDict, the sources of its descriptions. They are parsed when a function needs them.
_DESCRIPTIONS: dict[type, tuple[type, ...]] = {}


def describes(*sources: type) -> Callable[[DictT], DictT]:
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

    def decorate(cls: DictT) -> DictT:
        _DESCRIPTIONS[cls] = sources
        return cls

    return decorate


@functools.cache
def keywords_of(options: type) -> Mapping[str, Keyword]:
    """Return the keyword arguments that a TypedDict describes, by name and in its order."""
    found: dict[str, Keyword] = {}
    for source in _DESCRIPTIONS[options]:
        if source in _DESCRIPTIONS:
            found |= keywords_of(source)
        else:
            described = (each for each in options_of(source) if each.name in options.__annotations__)
            found |= {each.name: _of_option(options, each) for each in described}
    for names, text, body in _described_names(options.__doc__ or "", indents=("", "    ")):
        for name in names:
            found[name] = _of_text(_annotation_of(options, name), name, text, " ".join(body.split()))
    return {name: found[name] for name in options.__annotations__ if name in found}


def lists_options(function: Callable[GivenP, ListedT]) -> Callable[GivenP, ListedT]:
    """Return a function with the arguments of ``**options`` in its signature and docstring (`list_keywords`)."""

    @functools.wraps(function)
    def listed(*args: GivenP.args, **kwargs: GivenP.kwargs) -> ListedT:
        return function(*args, **kwargs)

    list_keywords(listed, function)
    return listed


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
    known = keywords_of(options)
    text = of.__doc__ or ""
    place = _OPTIONS.search(text)
    own: dict[str, Keyword] = {}
    if place is not None:
        for names, kind, body in _described_names(text, indents=(place[1],)):
            own |= {name: _of_text("", name, kind, body) for name in names if name in options.__annotations__}
        listed = "".join(_keyword_entry(each, place[1]) for name, each in known.items() if name not in own)
        function.__doc__ = text[: place.start()] + listed + text[place.end() :]
    made = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=(own.get(name) or known[name]).default if name in known else ...,
            annotation=_annotation_of(options, name),
        )
        for name in options.__annotations__
    ]
    function.__signature__ = signature.replace(parameters=[*parameters, *made])  # type: ignore[attr-defined]


def _described_names(docstring: str, indents: tuple[str, ...]) -> Iterator[tuple[list[str], str, str]]:
    """Yield names, type and meaning of each parameter or attribute of a docstring with one of these indentations."""
    found = [entry for entry in _ENTRY.finditer(docstring) if entry[1] in indents]
    for entry in found:
        body = re.match(rf"\n(?:{entry[1]} +\S.*\n|\n(?={entry[1]} +\S))*", docstring[entry.end() :] + "\n")
        yield entry[2].split(", "), entry[3], "" if body is None else body[0]


def _annotation_of(options: type, name: str) -> str:
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
    annotation = _annotation_of(cls, option.name)
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
def _keyword_entry(keyword: Keyword, indent: str) -> str:
    """Return the lines of an argument in a docstring."""
    inner = f"{indent}    "
    body = textwrap.fill(keyword.meaning, _LINE_LENGTH, initial_indent=inner, subsequent_indent=inner)
    return f"{indent}{keyword.name} : {keyword.type_text}, default {keyword.default_text}\n{body}\n"
