"""Text for people: numbers with their nouns and units, times, and escapes of characters that a terminal obeys or hides.

Names and paths from a file system may hold such characters.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from json.encoder import encode_basestring_ascii

__all__ = [
    "counted",
    "escaped_json",
    "format_lost",
    "format_records",
    "format_size",
    "format_time",
    "html_text",
    "is_printable",
    "one_line",
    "printable",
]

# Control characters (ESC and CSI among them), line and paragraph separators, controls of bidirectional text (Unicode
# Standard Annex #9), the byte order mark, and the surrogates that `os.fsdecode` makes from bytes that are not UTF-8.
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
_UNPRINTABLE_IN_TEXT = re.compile(_UNPRINTABLE.pattern.replace(r"\x00-\x1f", r"\x00-\x08\x0b-\x1f"))
_HTML = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#x27;"})
_ASCII_CONTROLS = bytes({*range(32), 127} - {ord("\t"), ord("\n")})


def printable(text: str) -> str:
    r"""Escape the characters of one line that are not printable, as in a Python string literal.

    Backslashes remain, so that a text can be escaped twice.

    Examples
    --------
    >>> print(printable("caf\u00e9 \x1b[31mred\n"))
    café \x1b[31mred\n
    """
    return _UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape", "backslashreplace").decode("ascii"), text)


def escaped_json(text: str) -> str:
    r"""Escape the characters of JSON on one line that are not printable, with the escapes of JSON.

    Examples
    --------
    >>> print(escaped_json('{"file": "\x9b1m"}'))
    {"file": "\u009b1m"}
    """
    return _UNPRINTABLE.sub(lambda found: encode_basestring_ascii(found[0])[1:-1], text)


def is_printable(text: str) -> bool:
    r"""Whether a text of several lines holds only printable characters, line breaks and tabs.

    Examples
    --------
    >>> is_printable("one\ntwo\n"), is_printable("three\x1b[1m")
    (True, False)
    """
    if not text.isascii():
        return _UNPRINTABLE_IN_TEXT.search(text) is None
    # Takes less than half of the time of a search.
    data = text.encode("ascii")
    return len(data.translate(None, _ASCII_CONTROLS)) == len(data)


def html_text(text: str) -> str:
    r"""Escape a text for HTML, also the characters that hide or reorder others.

    Examples
    --------
    >>> print(html_text("<b>\u202e & 'c'"))
    &lt;b&gt;\u202e &amp; &#x27;c&#x27;
    """
    return printable(text).translate(_HTML)


def one_line(text: object) -> str:
    """Join the lines of another library's message."""
    return " ".join(str(text).split())


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: ``1 loss``, ``2,000 batches``."""
    plural = "es" if noun.endswith(("ch", "s")) else "s"
    return f"{number:,} {noun}{'' if number == 1 else plural}"


def format_size(size: int) -> str:
    """Format a number of bytes for people."""
    if size < 1024:
        return counted(size, "byte")
    number = float(size)
    unit = -1
    while number >= 1024 and unit < 3:
        number /= 1024
        unit += 1
    return f"{number:.1f} {('KiB', 'MiB', 'GiB', 'TiB')[unit]}"


def format_lost(size: int, offsets: int) -> str:
    """Format a number of lost bytes and of missing offsets for people; ``-`` if both are 0."""
    parts = [*([format_size(size)] if size else []), *([counted(offsets, "offset")] if offsets else [])]
    return ", ".join(parts) or "-"


def format_records(records: int, control_records: int, *, at_least: bool = False) -> str:
    """Format a number of records, and that of control records if there are any, for people.

    `at_least` is for records that some headers do not count.

    Examples
    --------
    >>> format_records(337, 34), format_records(1, 0), format_records(20, 0, at_least=True)
    ('337 records, 34 control records', '1 record', 'at least 20 records')
    """
    text = f"{'at least ' if at_least else ''}{counted(records, 'record')}"
    return f"{text}, {counted(control_records, 'control record')}" if control_records else text


def format_time(milliseconds: int | None) -> str:
    """Format a time for people, in UTC; ``-`` for None."""
    if milliseconds is None:
        return "-"
    try:
        when = datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return f"{milliseconds} ms"
    return when.isoformat(sep=" ", timespec="seconds").removesuffix("+00:00")
