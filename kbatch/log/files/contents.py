"""Side files of a log directory as bytes, as text and as rows.

Index files are hints, and one that can't be read counts as empty (`kbatch.log.files.indexes`). The other files contain
facts that the segments alone do not have, so damage in them is an error.

A path is a local path or a URL; `storage` is needed for a URL with options (`kbatch.log.store.storage`).
"""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from kbatch.errors import LogDirectoryError
from kbatch.log.store.storage import Storage, locate

__all__ = ["MAX_SIDE_FILE", "SPACES", "integer", "malformed", "read_side_file", "rows_as", "text_lines", "too_large"]

# Limit on these files, in bytes: far above the files of the largest brokers.
MAX_SIDE_FILE = 256 << 20
_MAX_SHOWN = 60
SPACES = re.compile(r"\s+")
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")


def integer(path: str, number: int, text: str, bits: int) -> int:
    """Parse an integer in a line of a file."""
    if _INTEGER.fullmatch(text) is None or not -(1 << bits - 1) <= int(text) < 1 << bits - 1:
        raise LogDirectoryError(f"{path}, line {number}: {_quoted(text)} is not a {bits}-bit integer", source=path)
    return int(text)


def malformed(path: str, number: int, expected: str, lines: list[str]) -> LogDirectoryError:
    """Make the error for a line that has something else than is expected."""
    found = _quoted(lines[number - 1]) if len(lines) >= number else "the end of the file"
    return LogDirectoryError(f"{path}, line {number}: expected {expected}, found {found}", source=path)


def _quoted(text: str) -> str:
    return repr(text) if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]!r}... ({len(text)} characters)"


def text_lines(path: str, storage: Storage | None) -> list[str]:
    """Read the lines of a text file, which end as in Java: Python's ``splitlines`` knows more line ends."""
    lines = re.split(r"\r\n|\n|\r", read_side_file(path, storage).decode("utf-8", "replace"))
    if not lines[-1]:
        lines.pop()
    return lines


def read_side_file(path: str, storage: Storage | None = None) -> bytes:
    """Read a file of at most `MAX_SIDE_FILE` bytes."""
    try:
        data, size = (storage or locate(path)[0]).read(path, MAX_SIDE_FILE)
    except OSError as error:
        raise LogDirectoryError(f"{path}: can't be read: {error.strerror}", source=path) from error
    if size > MAX_SIDE_FILE:
        raise too_large(path, size)
    return data


def too_large(path: str, size: int) -> LogDirectoryError:
    """Make the error for a side file beyond `MAX_SIDE_FILE`."""
    return LogDirectoryError(f"{path}: {size} bytes; a file of this kind has at most {MAX_SIDE_FILE}", source=path)


def rows_as(stored: npt.NDArray[np.void], dtype: np.dtype[np.void]) -> npt.NDArray[np.void]:
    """Copy the fields of a dtype in its byte order; the result is read-only."""
    rows = np.empty(len(stored), dtype)
    for name in dtype.names or ():
        rows[name] = stored[name]
    rows.flags.writeable = False
    return rows
