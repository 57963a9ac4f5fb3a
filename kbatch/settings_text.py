"""Settings as programs in Java and Kafka's clients have them: properties files, and values as text."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from kbatch.arguments import is_integer
from kbatch.errors import LogDirectoryError
from kbatch.format import INT32_MAX

__all__ = ["ClientConfig", "as_list", "parse_properties", "setting_value"]

# The settings of Kafka's clients: a file of them, or their names and values.
ClientConfig: TypeAlias = str | os.PathLike[str] | Mapping[str, Any]

_WORDS = {"true": True, "false": False}


def parse_properties(lines: Iterable[str], path: str) -> dict[str, str]:
    """Return the properties in the lines of a file of Java (``java.util.Properties``).

    Raises
    ------
    LogDirectoryError
        For an invalid escape; the message has `path`.
    """
    properties = {}
    number = 0
    lines = iter(lines)
    for line in lines:
        number += 1
        line = line.lstrip(" \t\f")
        if not line or line[0] in "#!":
            continue
        first = number
        parts = []
        # Without its last backslash, a part ends with an even number of them. So each part can be examined alone.
        while _continues(line):
            number += 1
            parts.append(line[:-1])
            line = next(lines, "").lstrip(" \t\f")
        match = _PROPERTY.fullmatch("".join([*parts, line]))
        assert match is not None
        properties[_unescaped(path, first, match[1])] = _unescaped(path, first, match[2])
    return properties


# The key ends at the first "=", ":" or blank without a backslash (java.util.Properties.load).
_PROPERTY = re.compile(r"((?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.?))", re.DOTALL)
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def _continues(line: str) -> bool:
    """Whether a line ends with an odd number of backslashes."""
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _unescaped(path: str, number: int, text: str) -> str:
    def character(match: re.Match[str]) -> str:
        if match[1] is not None:
            return chr(int(match[1], 16))
        if match[2] == "u":
            raise LogDirectoryError(f"{path}, line {number}: '\\u' without four hexadecimal digits", source=path)
        return _ESCAPES.get(match[2], match[2])

    return _ESCAPE.sub(character, text)


def as_list(value: Any) -> list[str]:
    """Return the texts of a list, or of a text with commas."""
    parts = value.split(",") if isinstance(value, str) else [str(part) for part in value]
    return [part.strip() for part in parts if part.strip()]


def setting_value(name: str, kind: type, value: Any) -> Any:
    """Return the value of a setting: of its type, or a text as in a file.

    Raises
    ------
    TypeError, ValueError
        With the name, and without the value unless it is a number or a bool.
    """
    if kind is bool:
        word = value.strip().lower() if isinstance(value, str) else value
        if isinstance(word, bool) or word in _WORDS:
            return _WORDS.get(word, word) if isinstance(word, str) else word
        raise ValueError(f"{name} must be true or false, got {value!r}")
    if kind is int:
        if isinstance(value, str) and re.fullmatch(r"\s*\d{1,15}\s*", value, re.ASCII):
            value = int(value)
        if not is_integer(value) or not 0 <= value <= INT32_MAX:
            raise ValueError(f"{name} must be a whole number from 0 to {INT32_MAX}, got {value!r}")
        return int(value)
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, got {type(value).__name__}")
    return value
