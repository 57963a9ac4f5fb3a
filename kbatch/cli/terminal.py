"""All output of the commands: lines, the progress line, formats of sizes, times and tables, and results as JSON.

Only this module prints, so that everything that is printed is escaped.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from kbatch.escaping import counted, format_lost, format_size, format_time, is_printable, printable
from kbatch.interrupts import HeldInterrupts
from kbatch.unfinished import forget_unfinished, register_unfinished

if TYPE_CHECKING:
    from kbatch.log.log_bounds import BoundedLog
    from kbatch.records.loss_list import Loss

__all__ = [
    "LISTED_DAMAGE",
    "ProgressLine",
    "counted",
    "damage_lines",
    "fitted",
    "format_lost",
    "format_size",
    "format_time",
    "labelled_lines",
    "log_dict",
    "loss_dicts",
    "print_errors",
    "print_json",
    "print_lines",
    "print_summary",
    "shortened",
    "summary_dict",
    "table_lines",
    "write_lines",
    "write_values",
]

# The number of byte ranges that text lists; JSON lists all.
LISTED_DAMAGE = 20

_LINES_PER_WRITE = 2048
# Between the columns of a table.
_GAP = "  "
# The fewest characters of the name of a row. In a narrower terminal, rows become blocks of lines.
_MIN_NAME = 16


def print_lines(*lines: str, flush: bool = False) -> None:
    """Print lines on standard output, escaped; `flush` for a command that goes on for long."""
    for line in lines:
        print(printable(line), flush=flush)


def print_errors(*lines: str) -> None:
    """Print lines on standard error, escaped."""
    for line in lines:
        print(printable(line), file=sys.stderr)


def print_json(document: object, *, one_line: bool = False) -> None:
    """Print a JSON document on several lines, or as a line of several documents; it contains only ASCII."""
    print(json.dumps(document, indent=None if one_line else 1), flush=one_line)


def write_lines(lines: Iterable[str], escape: Callable[[str], str]) -> None:
    """Write many lines to standard output, a chunk of them at a time.

    Parameters
    ----------
    lines : iterable of str
    escape : callable
        Escapes a line if there is an unprintable character in its chunk, other than a tab.
    """
    lines = iter(lines)
    while chunk := list(islice(lines, _LINES_PER_WRITE)):
        chunk.append("")
        text = "\n".join(chunk)
        if not is_printable(text):
            text = "\n".join(map(escape, chunk))
        _write_whole(text.encode())


def write_values(values: Iterable[bytes]) -> None:
    """Write many values to standard output, each on a line; they are escaped only for a terminal."""
    if sys.stdout.isatty():
        write_lines((printable(each.decode("utf-8", "surrogateescape")) for each in values), printable)
        return
    values = iter(values)
    while chunk := list(islice(values, _LINES_PER_WRITE)):
        chunk.append(b"")
        _write_whole(b"\n".join(chunk))


def _write_whole(data: bytes) -> None:
    """Write whole lines: Ctrl-C ends the command after them."""
    out = sys.stdout.buffer
    with HeldInterrupts():
        rest = memoryview(data)
        while len(rest):
            # A signal makes a write to a full pipe return early.
            rest = rest[out.write(rest) :]
        out.flush()


class ProgressLine:
    """One line that is overwritten on a terminal; nothing is written to a pipe.

    Parameters
    ----------
    first : str
        The text until `show` is called.
    is_wanted : bool
        Whether to write on a terminal at all.
    """

    def __init__(self, first: str = "", *, is_wanted: bool = True) -> None:
        self._shown = is_wanted and sys.stderr.isatty()
        self._first = first
        self._text = ""
        self._began: float | None = None

    def __enter__(self) -> ProgressLine:
        if self._shown:
            register_unfinished(self, lambda: self.write(""))
        self.write(self._first)
        return self

    def __exit__(self, *exception: object) -> None:
        self.write("")
        forget_unfinished(self)

    def show_bytes(self, done: int, total: int, records: int | None = None) -> None:
        """Show the processed bytes and all bytes, the records if they are counted, the rate, and the time to go."""
        now = time.monotonic()
        if self._began is None:
            self._began = now
        parts = [f"{format_size(done)} of {format_size(total)}"]
        if records is not None:
            parts.append(counted(records, "record"))
        seconds = now - self._began
        if done and seconds >= 1:
            parts.append(f"{format_size(round(done / seconds))}/s")
            if done < total:
                parts.append(f"{_duration(round(seconds * (total - done) / done))} left")
        self.write(_with_bar(done, total, parts))

    @property
    def is_shown(self) -> bool:
        """Whether the line is written."""
        return self._shown

    def restart(self) -> None:
        """Begin to count the time of `show_bytes` again."""
        self._began = None

    def write(self, text: str) -> None:
        """Replace the text of the line; an empty text clears it for other output."""
        if self._shown and text != self._text:
            text = printable(text)
            print(f"\r{text:<{len(self._text)}}", end="" if text else "\r", file=sys.stderr, flush=True)
            self._text = text


def _with_bar(done: int, total: int, parts: list[str]) -> str:
    """Return a bar and as many of the texts as fit: a line that wraps could not be overwritten."""
    columns = shutil.get_terminal_size().columns - 1
    while len(parts) > 1 and len(", ".join(parts)) + 13 > columns:
        parts = parts[:-1]
    text = ", ".join(parts)
    width = max(0, min(30, columns - len(text) - 3))
    return f"[{'#' * (width * done // max(total, 1)):<{width}}] {text}"


def _duration(seconds: int) -> str:
    minutes, hours = seconds // 60 % 60, seconds // 3600
    return f"{hours}:{minutes:02}:{seconds % 60:02}" if hours else f"{minutes}:{seconds % 60:02}"


def table_lines(rows: Sequence[Sequence[str]], *, left: frozenset[int], indent: str = "  ") -> list[str]:
    """Format rows as lines of columns that fit the terminal or ``COLUMNS``; other output is as wide as its content.

    Parameters
    ----------
    rows : sequence of sequence of str
        The first row has the names of the columns, and the first column has the names of the rows.
    left : frozenset of int
        The columns that are left-aligned; the others, which hold numbers, are right-aligned.
    indent : str

    Returns
    -------
    list of str
        If the lines would be wider than the terminal, the names of rows are shortened in the middle. If that is not
        enough, each row becomes a block of lines, one per column. No other cell is shortened.
    """
    rows = [[printable(cell) for cell in row] for row in rows]
    width = _terminal_width() - len(indent)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    excess = sum(widths) + len(_GAP) * (len(widths) - 1) - width
    if excess > 0:
        if widths[0] - excess < max(_MIN_NAME, len(rows[0][0])):
            return [(indent + line).rstrip() for line in _blocks(rows, width)]
        widths[0] -= excess
    lines = []
    for name, *cells in rows:
        row = [shortened(name, widths[0]), *cells]
        aligned = [cell.ljust(widths[i]) if i in left else cell.rjust(widths[i]) for i, cell in enumerate(row)]
        lines.append((indent + _GAP.join(aligned)).rstrip())
    return lines


def shortened(text: str, width: int) -> str:
    """Return a text of at most `width` characters, at least 2, with an ellipsis in place of its middle.

    Examples
    --------
    >>> from kbatch.cli.terminal import shortened
    >>> shortened("a-topic-with-a-long-name-11", 16)
    'a-topic-…name-11'
    """
    if len(text) <= width:
        return text
    # The partition's number is at the end.
    end = (width - 1) // 2
    return f"{text[: width - 1 - end]}…{text[len(text) - end :]}"


def _blocks(rows: Sequence[Sequence[str]], width: int) -> Iterator[str]:
    """Yield a block of lines for each row: its name, then the names and cells of the other columns that it has."""
    (_, *labels), *rest = rows
    label_width = max(map(len, labels))
    for name, *cells in rest:
        yield shortened(name, width)
        for label, cell in zip(labels, cells, strict=True):
            if cell:
                yield from _labelled(label, cell, label_width, width)


def labelled_lines(label: str, text: str, label_width: int) -> list[str]:
    """Return the lines of a label and its text, which is wrapped between words if it is wider than the terminal."""
    return _labelled(label, printable(text), label_width, _terminal_width())


def fitted(name: str) -> str:
    """Return a name, shortened in the middle if it is wider than the terminal."""
    return shortened(printable(name), _terminal_width())


def _labelled(label: str, text: str, label_width: int, width: int) -> list[str]:
    start = f"  {label:<{label_width}}{_GAP}"
    return textwrap.wrap(
        text, max(width, len(start) + 1), initial_indent=start, subsequent_indent=" " * len(start),
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


def _terminal_width() -> int:
    """Return the value of the environment variable COLUMNS, or else the width of the terminal.

    If neither is known, the width is unlimited: output to a pipe or a file is as wide as its content.
    """
    is_set = os.environ.get("COLUMNS", "").isdecimal()
    return shutil.get_terminal_size().columns if is_set or sys.stdout.isatty() else sys.maxsize


def print_summary(command: str, status: int, logs: Sequence[dict[str, Any]], *, damaged: bool, **totals: Any) -> None:
    """Print the result of a command, as `summary_dict`."""
    print_json(summary_dict(command, status, logs, damaged=damaged, **totals))


def summary_dict(
    command: str, status: int, logs: Sequence[dict[str, Any]], *, damaged: bool, **totals: Any
) -> dict[str, Any]:
    """Return the result of a command: ``command``, ``exit_status``, ``damaged``, its totals, and one entry per log."""
    return {"command": command, "exit_status": status, "damaged": damaged, **totals, "logs": logs}


def log_dict(log: BoundedLog | None, path: str, **fields: Any) -> dict[str, Any]:
    """Return the entry of a log: ``name``, ``path``, ``topic``, ``partition`` and the fields of the command."""
    topic, partition = (None, None) if log is None else (log.topic, log.partition)
    name = path if topic is None else f"{topic}-{partition}"
    return {"name": name, "path": path, "topic": topic, "partition": partition, **fields}


def loss_dicts(losses: Iterable[Loss]) -> list[dict[str, Any]]:
    """Return byte ranges without records as they appear in JSON."""
    return [loss._asdict() for loss in losses]


def damage_lines(prefix: str, losses: Sequence[Loss]) -> list[str]:
    """Return the first byte ranges without records as text, with their files, and the number of further ones."""
    lines = []
    for loss in losses[:LISTED_DAMAGE]:
        # A gap has no bytes.
        size = f", {counted(loss.length, 'byte')}" if loss.length else ""
        file = "" if loss.file is None else f"{loss.file}, "
        lines.append(f"{prefix}: {file}byte {loss.position}{size}: {loss.reason}")
    if len(losses) > LISTED_DAMAGE:
        lines.append(f"{prefix}: {len(losses) - LISTED_DAMAGE:,} more")
    return lines
