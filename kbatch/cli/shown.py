"""Keys, values and header keys as output: as text if they are text, else as base64, so that no byte is lost."""

from __future__ import annotations

import base64
import codecs
import json.encoder
import re

from kbatch.escaping import is_printable

__all__ = ["json_bytes", "plain_text", "quoted"]

# Line breaks and tabs are text. JSON escapes them; in the line format of Kafka's tool, line breaks are not allowed.
_CONTROL_CHARACTERS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_LINE_BREAK = re.compile("[\n\r]")

# `kbatch.cli.terminal.write_lines` escapes what is not printable.
quoted = json.encoder.encode_basestring


def json_bytes(data: bytes | None, size: int = -1) -> str:
    """Return JSON for bytes: ``null``, a string, or an object whose key is the encoding.

    Parameters
    ----------
    data : bytes or None
    size : int
        The number of bytes before `data` was cut.

    Returns
    -------
    str
        A string if the bytes are UTF-8 without control characters other than tab and line breaks, else
        ``{"base64": "..."}``. Cut data is always an object: ``{"text": "...", "size": 70000}``, or with ``base64``.

    Examples
    --------
    >>> print(json_bytes(b"abc"), json_bytes(None), json_bytes(bytes(3)), json_bytes(b"abc", 9))
    "abc" null {"base64": "AAAA"} {"text": "abc", "size": 9}
    """
    if data is None:
        return "null"
    cut = size > len(data)
    text = _decoded_text(data, cut)
    if text is not None:
        return f'{{"text": {quoted(text)}, "size": {size}}}' if cut else quoted(text)
    encoded = base64.b64encode(data).decode("ascii")
    return f'{{"base64": "{encoded}", "size": {size}}}' if cut else f'{{"base64": "{encoded}"}}'


def plain_text(data: bytes) -> str:
    """Return bytes for a line of text: as text if they are printable, else as ``base64:`` and their base64 encoding.

    Examples
    --------
    >>> plain_text(b"abc"), plain_text(bytes(3)), plain_text(b"two" + bytes([10]) + b"lines")
    ('abc', 'base64:AAAA', 'base64:dHdvCmxpbmVz')
    """
    text = _decoded_text(data, False)
    if text is None or _LINE_BREAK.search(text) or not is_printable(text):
        return "base64:" + base64.b64encode(data).decode("ascii")
    return text


def _decoded_text(data: bytes, cut: bool) -> str | None:
    try:
        # The last character of cut data may be incomplete.
        text = codecs.getincrementaldecoder("utf-8")().decode(data, not cut) if cut else data.decode()
    except UnicodeDecodeError:
        return None
    return None if _CONTROL_CHARACTERS.search(text) else text
