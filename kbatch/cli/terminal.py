"""What the commands have in common on a terminal: a line of progress, and how sizes, times and tables look."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime

__all__ = ["ProgressLine", "aligned", "counted", "format_size", "format_time"]


class ProgressLine:
    """One line on a terminal that is written over; nothing in a pipe.

    Parameters
    ----------
    first : str
        What stands there until `show` is called.
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
        """Show how many of how many tasks are done."""
        self.write(f"{_bar(done, total)} {done:,} of {total:,} tasks")

    def show_bytes(self, done: int, total: int) -> None:
        """Show how many of how many bytes are done."""
        self.write(f"{_bar(done, total)} {format_size(done)} of {format_size(total)}")

    def write(self, text: str) -> None:
        """Show a text in place of the one before; an empty one leaves an empty line to write on."""
        if self._shown and text != self._text:
            print(f"\r{text:<{len(self._text)}}", end="" if text else "\r", file=sys.stderr, flush=True)
            self._text = text


def _bar(done: int, total: int) -> str:
    return f"[{'#' * (30 * done // max(total, 1)):<30}]"


def counted(number: int, noun: str) -> str:
    """Say how many there are: ``1 batch``, ``2,000 batches``."""
    plural = "es" if noun.endswith("ch") else "s"
    return f"{number:,} {noun}{'' if number == 1 else plural}"


def format_size(size: int) -> str:
    """Say a number of bytes for people."""
    if size < 1024:
        return f"{size} bytes"
    number = float(size)
    unit = -1
    while number >= 1024 and unit < 3:
        number /= 1024
        unit += 1
    return f"{number:.1f} {('KiB', 'MiB', 'GiB', 'TiB')[unit]}"


def format_time(milliseconds: int | None) -> str:
    """Say a time for people, in UTC; ``-`` for none."""
    if milliseconds is None:
        return "-"
    try:
        when = datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return f"{milliseconds} ms"
    return when.isoformat(sep=" ", timespec="seconds").removesuffix("+00:00")


def aligned(rows: Sequence[Sequence[str]], *, left: frozenset[int], indent: str = "  ") -> list[str]:
    """Lay rows out as lines of columns; those in `left` begin together, the others end together."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [cell.ljust(width) if i in left else cell.rjust(width)
                 for i, (cell, width) in enumerate(zip(row, widths, strict=True))]  # fmt: skip
        lines.append((indent + "  ".join(cells)).rstrip())
    return lines
