"""All output of the commands: lines, the progress line, formats of sizes and times, and results as JSON.

Only this module prints, so that everything that is printed is escaped.
"""

from __future__ import annotations

import json
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from typing import TYPE_CHECKING, Any

from kbatch.cli.filling import filled_line, line_slices, width_of
from kbatch.cli.styles import Style, Styled, StyledSpan, colored, uses_color
from kbatch.escaping import counted, format_lost, format_records, format_size, format_time, is_printable, printable
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
    "format_lost",
    "format_records",
    "format_size",
    "format_time",
    "log_dict",
    "loss_dicts",
    "print_errors",
    "print_json",
    "print_lines",
    "print_summary",
    "summary_dict",
    "write_lines",
    "write_values",
]

# The number of byte ranges that text lists; JSON lists all.
LISTED_DAMAGE = 20

_LINES_PER_WRITE = 2048
# Seconds between two updates of a progress line to which nothing else happens.
_TICK_SECONDS = 0.5
# Seconds to wait for other output when a signal ends the process.
_END_SECONDS = 0.1
_SPINNER = "|/-\\"


def print_lines(*lines: str, flush: bool = False, wraps: bool = True) -> None:
    """Print lines on standard output, escaped and wrapped; `flush` for a command that goes on for long."""
    _print_styled(lines, sys.stdout, width_of(sys.stdout) if wraps else None, flush)


def print_errors(*lines: str, style: Style = "warning") -> None:
    """Print lines on standard error, escaped and wrapped; the beginning of each, up to a colon, has a style."""
    shown = [Styled(line, [StyledSpan(0, line.find(": ") + 1, style)]) for line in lines]
    _print_styled(shown, sys.stderr, width_of(sys.stderr), False)


def _print_styled(lines: Iterable[str], stream: Any, width: int | None, flush: bool) -> None:
    has_color = uses_color(stream)
    with ProgressLine.cleared():
        for line in lines:
            shown = line if isinstance(line, Styled) else Styled(line)
            for text in _pieces(shown, width, has_color):
                print(text, file=stream, flush=flush)


def _pieces(line: Styled, width: int | None, has_color: bool) -> Iterable[str]:
    """Return the lines of the terminal for a line, with its colors."""
    if not (has_color and line.spans):
        return [str(line)] if width is None else filled_line(str(line), width)
    fits = width is None or len(line) <= width
    slices = [(0, 0, len(line))] if width is None or fits else line_slices(line, width)
    return [" " * indent + _colored_slice(line, start, stop) for indent, start, stop in slices]


def _colored_slice(line: Styled, start: int, stop: int) -> str:
    parts = []
    for span in line.spans:
        first, last = max(span.start, start), min(span.stop, stop)
        if first < last:
            parts += [line[start:first], colored(line[first:last], span.style)]
            start = last
    return "".join([*parts, line[start:stop]])


def print_json(document: object, *, one_line: bool = False) -> None:
    """Print a JSON document on several lines, or as a line of several documents; it contains only ASCII."""
    with ProgressLine.cleared():
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

    The line changes twice per second as long as it is shown, also while nothing is reported.

    Parameters
    ----------
    first : str
        The text until `show_bytes` or `write` is called.
    is_wanted : bool
        Whether to write on a terminal at all.
    text : callable, optional
        Returns the text, from another thread, at each change.
    name : str
        What the line is about; it begins the text.
    """

    # The line that is shown, which other output clears.
    _active: ProgressLine | None = None

    def __init__(
        self, first: str = "", *, is_wanted: bool = True, text: Callable[[], str] | None = None, name: str = ""
    ) -> None:
        self._name = f"{name}: " if name else ""
        self._shown = is_wanted and sys.stderr is not None and sys.stderr.isatty()
        # Returns the text for a number of seconds since it was set.
        self._state: Callable[[float], str] = lambda seconds: _waiting(first, seconds)
        self._text_of = text
        self._since = time.monotonic()
        self._width = 0
        self._turns = 0
        self._began: float | None = None
        # Held while the line is written, or other output in its place.
        self._lock = threading.RLock()
        self._ended = threading.Event()

    def __enter__(self) -> ProgressLine:
        if self._shown:
            register_unfinished(self, self._clear_at_end)
            ProgressLine._active = self
            self._draw(self._state(0))
            threading.Thread(target=self._run, name="kbatch-progress", daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ended.set()
        self.clear()
        if ProgressLine._active is self:
            ProgressLine._active = None
        forget_unfinished(self)

    @staticmethod
    def cleared() -> AbstractContextManager[object]:
        """Return a ``with`` block without a progress line, for other output."""
        line = ProgressLine._active
        if line is None or not line._shown:
            return nullcontext()
        line.clear()
        return line._lock

    def show_bytes(self, done: int, total: int, records: int | None = None) -> None:
        """Show the processed bytes and all bytes, the records if they are counted, the rate, and the time to go."""
        if not self._shown:
            return
        now = time.monotonic()
        if self._began is None:
            self._began = now
        began = self._began
        self._set(lambda seconds: _bytes_text(done, total, records, now - began, seconds, len(self._name)))

    def restart(self) -> None:
        """Begin to count the time of `show_bytes` again."""
        self._began = None

    def write(self, text: str) -> None:
        """Replace the text of the line."""
        if self._shown:
            self._set(lambda seconds: _waiting(text, seconds))

    def clear(self) -> None:
        """Clear the line until the next change."""
        self._draw("")

    def _clear_at_end(self) -> None:
        """Clear the line before the process is ended by a signal, unless other output is stuck."""
        if self._lock.acquire(timeout=_END_SECONDS):
            try:
                self.clear()
            finally:
                self._lock.release()

    def _set(self, state: Callable[[float], str]) -> None:
        self._state, self._since = state, time.monotonic()
        self._draw(state(0))

    def _run(self) -> None:
        while not self._ended.wait(_TICK_SECONDS):
            text = self._state(time.monotonic() - self._since) if self._text_of is None else self._text_of()
            with self._lock:
                if text and not self._ended.is_set():
                    self._turns += 1
                    self._draw(f"{text} {_SPINNER[self._turns % len(_SPINNER)]}")

    def _draw(self, text: str) -> None:
        if self._shown:
            with self._lock:
                text = _cut_to_words(printable(f"{self._name}{text}" if text else ""))
                print(f"\r{text:<{self._width}}", end="" if text else "\r", file=sys.stderr, flush=True)
                self._width = len(text)


def _progress_columns() -> int:
    return (width_of(sys.stderr) or shutil.get_terminal_size().columns) - 1


def _cut_to_words(text: str) -> str:
    """Return the words that fit in the terminal: a line that wraps could not be overwritten."""
    columns = _progress_columns()
    if len(text) <= columns:
        return text
    start = text[: columns + 1]
    return (start.rpartition(" ")[0] or start[:columns]).rstrip()


def _waiting(text: str, seconds: float) -> str:
    """Return a text with the seconds for which nothing has changed."""
    return f"{text} {int(seconds)} s" if text and seconds >= 1 else text


def _bytes_text(done: int, total: int, records: int | None, before: float, waited: float, indent: int = 0) -> str:
    """Return the text of `ProgressLine.show_bytes` after some columns, some seconds after it was called."""
    seconds = before + waited
    parts = [f"{format_size(done)} of {format_size(total)}"]
    if records is not None:
        parts.append(counted(records, "record"))
    if done and seconds >= 1:
        parts.append(f"{format_size(round(done / seconds))}/s")
        if done < total:
            parts.append(f"{_duration(round(seconds * (total - done) / done))} left")
    elif seconds >= 1:
        parts.append(f"{int(seconds)} s")
    return _with_bar(done, total, parts, indent)


def _with_bar(done: int, total: int, parts: list[str], indent: int) -> str:
    """Return a bar and as many of the texts as fit after some columns, with two columns for the spinner."""
    columns = _progress_columns() - 2 - indent
    while len(parts) > 1 and len(", ".join(parts)) + 13 > columns:
        parts = parts[:-1]
    text = ", ".join(parts)
    width = max(0, min(30, columns - len(text) - 3))
    return f"[{'#' * (width * done // max(total, 1)):<{width}}] {text}"


def _duration(seconds: int) -> str:
    minutes, hours = seconds // 60 % 60, seconds // 3600
    return f"{hours}:{minutes:02}:{seconds % 60:02}" if hours else f"{minutes}:{seconds % 60:02}"


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
