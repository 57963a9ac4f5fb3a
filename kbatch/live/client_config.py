"""Settings files, as Kafka's tools read them (``client.properties``), and JAAS settings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from kbatch.log.files.properties import read_meta_properties
from kbatch.settings_text import ClientConfig

__all__ = ["jaas_options", "read_config"]

_JAAS = re.compile(r"\s*([\w.$]+)\s+(?:required|requisite|sufficient|optional)\b(.*?);?\s*", re.DOTALL)
_JAAS_OPTION = re.compile(r"""\s*([\w.\-]+)\s*=\s*("(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|[^\s;"']+)""")


def read_config(config: ClientConfig) -> dict[str, Any]:
    """Return the settings of a properties file, or of a mapping.

    Raises
    ------
    LogDirectoryError
        If the file cannot be read.
    TypeError
    """
    if isinstance(config, Mapping):
        if not all(isinstance(name, str) for name in config):
            raise TypeError("config must be a mapping of setting names to values")
        return dict(config)
    return dict(read_meta_properties(config))


def jaas_options(text: str) -> tuple[str, dict[str, str]]:
    """Return the login module and the options in ``sasl.jaas.config``; errors do not repeat the text.

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
