"""Lines that fit the terminal: they are wrapped between words, and words are never cut."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

__all__ = ["column_starts", "filled_line", "line_slices", "width_of"]

_TWO_SPACES = re.compile(r"\S( {2,})\S")
_WORD = re.compile(r"\S+")
# The fewest characters of a second column. With fewer, its text begins on a line of its own.
_MIN_COLUMN = 30
# A continued line is indented by this number of spaces more than the first one.
_HANGING = 2
# The width of a terminal that does not state one.
_USUAL_WIDTH = 80


def width_of(stream: Any) -> int | None:
    """Return the width of a stream's lines: of ``COLUMNS`` if it is set, else of the terminal; None if unlimited.

    Output to a pipe or a file is as wide as its content, unless ``COLUMNS`` is set.
    """
    given = os.environ.get("COLUMNS", "")
    if given.isdecimal() and int(given):
        return int(given)
    if stream is None or not stream.isatty():
        return None
    try:
        return os.get_terminal_size(stream.fileno()).columns or _USUAL_WIDTH
    except (OSError, ValueError):
        return _USUAL_WIDTH


def column_starts(line: str) -> list[int]:
    """Return the indentation of a line, and the position of its second column, after two spaces, if it has one."""
    indent = len(line) - len(line.lstrip())
    gap = _TWO_SPACES.search(line, indent)
    return [indent] if gap is None else [indent, gap.end(1)]


def line_slices(text: str, width: int, hanging: int | None = None) -> Iterator[tuple[int, int, int]]:
    """Yield the lines of a text as slices of it: the indentation, the start and the stop.

    Parameters
    ----------
    text : str
    width : int
        A single word may be wider.
    hanging : int, optional
        The indentation of continued lines. By default they begin below the second column of the text, or two characters
        after its indentation.
    """
    indent, *second = column_starts(text)
    is_apart = bool(second) and second[0] > width - _MIN_COLUMN and len(text) > width
    if hanging is None:
        hanging = second[0] if second and not is_apart else indent + _HANGING * (2 if is_apart else 1)
    start = stop = before = 0
    for word in _WORD.finditer(text):
        is_second = is_apart and word.start() == second[0]
        if stop and (before + word.end() - start > width or is_second):
            yield before, start, stop
            before, start = hanging, word.start()
        stop = word.end()
    yield before, start, stop


def filled_line(text: str, width: int, hanging: int | None = None) -> Iterator[str]:
    """Yield the lines of a text, which is wrapped between words.

    Examples
    --------
    >>> from kbatch.cli.filling import filled_line
    >>> for line in filled_line("read  1.2 GiB of batches with the codecs zstd and lz4", 40):
    ...     print(line)
    read  1.2 GiB of batches with the codecs
          zstd and lz4
    """
    if len(text) <= width:
        yield text
        return
    for indent, start, stop in line_slices(text, width, hanging):
        yield " " * indent + text[start:stop]
