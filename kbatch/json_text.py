"""Parsing of JSON whose origin is not trusted."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["JsonDepthError", "parse_json"]


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
