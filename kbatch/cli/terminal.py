"""All output of the commands: lines, the progress line, and the formats of sizes, times and tables.

Only this module prints, so that everything that is printed is escaped.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from itertools import islice

from kbatch.escaping import counted, is_printable, printable

__all__ = [
    "ProgressLine",
    "aligned",
    "counted",
    "format_size",
    "format_time",
    "print_errors",
    "print_json",
    "print_lines",
    "write_lines",
]

_LINES_PER_WRITE = 2048


def print_lines(*lines: str) -> None:
    """Print lines on standard output, escaped."""
    for line in lines:
        print(printable(line))


def print_errors(*lines: str) -> None:
    """Print lines on standard error, escaped."""
    for line in lines:
        print(printable(line), file=sys.stderr)


def print_json(document: object) -> None:
    """Print a JSON document on several lines; it contains only ASCII."""
    print(json.dumps(document, indent=1))


def write_lines(lines: Iterable[str], escape: Callable[[str], str]) -> None:
    """Write many lines to standard output, a chunk of them at a time.

    Parameters
    ----------
    lines : iterable of str
    escape : callable
        Escapes a line if there is an unprintable character in its chunk, other than a tab.
    """
    lines = iter(lines)
    out = sys.stdout.buffer
    while chunk := list(islice(lines, _LINES_PER_WRITE)):
        chunk.append("")
        text = "\n".join(chunk)
        if not is_printable(text):
            text = "\n".join(map(escape, chunk))
        out.write(text.encode())


class ProgressLine:
    """One line that is overwritten on a terminal; nothing is written to a pipe.

    Parameters
    ----------
    first : str
        The text until `show` is called.
    """

    def __init__(self, first: str = "") -> None:
        self._shown = sys.stderr.isatty()
        self._first = first
        self._text = ""

    def __enter__(self) -> ProgressLine:
        self.write(self._first)
        return self

    def __exit__(self, *exception: object) -> None:
        self.write("")

    def show(self, done: int, total: int) -> None:
        """Show the number of finished tasks and of all tasks."""
        self.write(f"{_bar(done, total)} {done:,} of {total:,} tasks")

    def show_bytes(self, done: int, total: int) -> None:
        """Show the number of processed bytes and of all bytes."""
        self.write(f"{_bar(done, total)} {format_size(done)} of {format_size(total)}")

    def write(self, text: str) -> None:
        """Replace the text of the line; an empty text clears it for other output."""
        if self._shown and text != self._text:
            text = printable(text)
            print(f"\r{text:<{len(self._text)}}", end="" if text else "\r", file=sys.stderr, flush=True)
            self._text = text


def _bar(done: int, total: int) -> str:
    return f"[{'#' * (30 * done // max(total, 1)):<30}]"


def format_size(size: int) -> str:
    """Format a number of bytes for people."""
    if size < 1024:
        return f"{size} bytes"
    number = float(size)
    unit = -1
    while number >= 1024 and unit < 3:
        number /= 1024
        unit += 1
    return f"{number:.1f} {('KiB', 'MiB', 'GiB', 'TiB')[unit]}"


def format_time(milliseconds: int | None) -> str:
    """Format a time for people, in UTC; ``-`` for None."""
    if milliseconds is None:
        return "-"
    try:
        when = datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return f"{milliseconds} ms"
    return when.isoformat(sep=" ", timespec="seconds").removesuffix("+00:00")


def aligned(rows: Sequence[Sequence[str]], *, left: frozenset[int], indent: str = "  ") -> list[str]:
    """Format rows as lines of columns; the columns in `left` are left-aligned, the others right-aligned."""
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [cell.ljust(width) if i in left else cell.rjust(width)
                 for i, (cell, width) in enumerate(zip(row, widths, strict=True))]  # fmt: skip
        lines.append((indent + "  ".join(cells)).rstrip())
    return lines
