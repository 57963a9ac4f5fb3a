"""The bytes of an argument: a buffer, an open binary file or the path of a file."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from kbatch.batches.framing import byte_array
from kbatch.batches.regular_files import open_descriptor
from kbatch.errors import LogDirectoryError
from kbatch.format import BytesLike

__all__ = ["BinaryFile", "PathOrBytes", "input_bytes", "open_segment", "source_name"]


class BinaryFile(Protocol):
    """A file that is open for binary reading; `open`, sockets and object stores return unrelated classes."""

    def read(self) -> bytes:
        """Return the bytes up to the end of the file."""
        ...


PathOrBytes = BytesLike | str | os.PathLike[str] | BinaryFile


def input_bytes(data: PathOrBytes, function: str) -> tuple[npt.NDArray[np.uint8], str | None]:
    """Return the bytes of `data` and the path that they were read from, for the parameter of a public `function`."""
    if isinstance(data, str | os.PathLike):
        with open_segment(data, function, opener=open_descriptor) as file:
            return byte_array(file.read()), os.fspath(data)
    try:
        memoryview(cast("Any", data))
    except TypeError:
        pass
    except ValueError as error:
        raise ValueError(f"data can't be read as a buffer: {error}") from None
    else:
        return byte_array(cast("BytesLike", data)), None
    if isinstance(data, io.TextIOBase):
        raise TypeError(f"{function} needs a file that is open for binary reading, as open(path, 'rb')")
    if callable(getattr(data, "read", None)):
        try:
            return byte_array(cast("BinaryFile", data).read()), source_name(data)
        except io.UnsupportedOperation:
            raise TypeError(f"{function} needs a file that is open for reading, as open(path, 'rb')") from None
    raise TypeError(
        f"{function} takes one buffer (bytes, memoryview, mmap, ...), a path or a binary file as data, got "
        f"{type(data).__name__}; kbatch.decode_stream takes an iterable of buffers"
    )


def source_name(data: object) -> str | None:
    """Return the path, or the name of the file, that the bytes of an argument come from; None if it is unknown."""
    if isinstance(data, str | os.PathLike):
        return os.fspath(data)
    name = getattr(data, "name", None) if isinstance(data, io.IOBase) else None
    # A file that was opened by its descriptor has that as its name.
    return name if isinstance(name, str) else None


def open_segment(
    path: str | os.PathLike[str], function: str, *, opener: Callable[[str, int], int] | None = None
) -> io.FileIO:
    """Open a local file, by default of any kind, for a public `function` that reads one segment."""
    text = os.fspath(path)
    if not isinstance(text, str):
        raise TypeError(f"{function}: a path must be str, got {text!r}")
    if not text:
        raise ValueError(f"{function}: the path is empty")
    if "://" in text:
        raise ValueError(f"{function} does not read URLs; use kbatch.Log({text!r}).tables()")
    if os.path.isdir(text):
        raise LogDirectoryError(
            f"{text}: is a directory; kbatch.Log(path).tables() reads a topic-partition, and kbatch.find_logs(path) "
            "finds the logs of a log directory",
            source=text,
        )
    try:
        return io.FileIO(text, opener=opener)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise LogDirectoryError(f"{text}: can't be read: {reason}", source=text) from error
