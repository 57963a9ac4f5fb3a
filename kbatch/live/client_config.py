"""Files of settings, as Kafka's tools read them (``client.properties``), and the values of settings."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from kbatch.arguments import is_integer
from kbatch.format import INT32_MAX
from kbatch.log.files.properties import read_meta_properties

__all__ = ["as_list", "jaas_options", "read_config", "setting_value"]

_JAAS = re.compile(r"\s*([\w.$]+)\s+(?:required|requisite|sufficient|optional)\b(.*?);?\s*", re.DOTALL)
_JAAS_OPTION = re.compile(r"""\s*([\w.\-]+)\s*=\s*("(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|[^\s;"']+)""")
_WORDS = {"true": True, "false": False}


def read_config(config: str | os.PathLike[str] | Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a properties file, or of a mapping.

    Raises
    ------
    LogDirectoryError
        If the file cannot be read.
    TypeError
    """
    if isinstance(config, Mapping):
        if not all(isinstance(name, str) for name in config):
            raise TypeError("config must be a mapping of names of settings to their values")
        return dict(config)
    return dict(read_meta_properties(config))


def jaas_options(text: str) -> tuple[str, dict[str, str]]:
    """Return the login module and the options of a value of ``sasl.jaas.config``; errors do not repeat the text.

    Raises
    ------
    ValueError
    """
    entry = _JAAS.fullmatch(text)
    if entry is None:
        raise ValueError('sasl.jaas.config must have the form MODULE required NAME="VALUE" ...;')
    options: dict[str, str] = {}
    position = 0
    while position < len(entry[2].rstrip()):
        option = _JAAS_OPTION.match(entry[2], position)
        if option is None:
            raise ValueError('sasl.jaas.config must have options of the form NAME="VALUE" after the login module')
        value = option[2]
        options[option[1]] = re.sub(r"\\(.)", r"\1", value[1:-1]) if value[0] in "\"'" else value
        position = option.end()
    return entry[1].rpartition(".")[2], options


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
