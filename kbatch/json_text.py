"""JSON: parsing where its origin is not trusted, and large documents in parts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, NoReturn

__all__ = ["JsonDepthError", "check_json", "json_parts", "parse_json"]

# Characters of a part of a document.
_PART = 1 << 16


class JsonDepthError(ValueError):
    """A JSON text is nested too deeply for Python's parser."""


def parse_json(text: str | bytes) -> Any:
    """Parse JSON, of any depth.

    Raises
    ------
    ValueError
        If the text is not JSON or not UTF-8; JsonDepthError if it is nested too deeply.

    Examples
    --------
    >>> parse_json(b'{"version": [1]}')
    {'version': [1]}
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise JsonDepthError("the brackets are nested too deeply") from None


def check_json(text: str) -> None:
    """Raise ValueError if a text is not JSON; NaN and Infinity, which Python parses, are not.

    Numbers are not converted, so that they may have any number of digits.

    Examples
    --------
    >>> check_json('{"a": 1}')
    >>> check_json("[NaN]")
    Traceback (most recent call last):
    ValueError: NaN is not JSON
    """
    try:
        json.loads(text, parse_int=str, parse_float=str, parse_constant=_refuse_constant)
    except RecursionError:
        raise JsonDepthError("the brackets are nested too deeply") from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def json_parts(document: Any) -> Iterator[bytes]:
    r"""Yield an indented JSON document in parts of some kilobytes; a dataclass is an object of its fields.

    The text of a document with 10^5 entries, and the entries as dictionaries, would take hundreds of megabytes.

    Examples
    --------
    >>> b"".join(json_parts({"version": [1]}))
    b'{\n "version": [\n  1\n ]\n}'
    """
    texts: list[str] = []
    size = 0
    for text in json.JSONEncoder(indent=1, default=asdict).iterencode(document):
        texts.append(text)
        size += len(text)
        if size > _PART:
            yield "".join(texts).encode()
            texts, size = [], 0
    yield "".join(texts).encode()
