"""How much the running tasks of an export have read and written, in small files that the driver reads.

Spark's accumulators arrive with the result of a task, and a task may take a minute. Tasks use this module, so it does
not import pyspark.
"""

from __future__ import annotations

import contextlib
import os
import struct
import time
from collections.abc import Callable
from typing import TypeAlias

from kbatch.tuning import COUNTER_SECONDS

__all__ = ["Progress", "TaskCounter", "running_counts"]

# Called from time to time with the bytes of the log that were read, all bytes to read, and the records written.
Progress: TypeAlias = Callable[[int, int, int], None]

_COUNTS = struct.Struct("<qq")


class TaskCounter:
    """The counts of one running task; a context manager that removes the file at the end.

    Parameters
    ----------
    directory : str or None
        An existing directory that the driver can read; None writes nothing.
    task : int

    Attributes
    ----------
    bytes, records : int
    """

    def __init__(self, directory: str | None, task: int) -> None:
        self.bytes = 0
        self.records = 0
        self._path = None if directory is None else os.path.join(directory, f"{task}.count")
        self._written = time.monotonic()

    def __enter__(self) -> TaskCounter:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._path is not None:
            with contextlib.suppress(OSError):
                os.unlink(self._path)

    def add(self, size: int, records: int) -> None:
        """Count bytes of the log and records; write the file if that was long ago."""
        self.bytes += size
        self.records += records
        now = time.monotonic()
        if self._path is None or now - self._written < COUNTER_SECONDS:
            return
        self._written = now
        # Progress is not worth failing for.
        with contextlib.suppress(OSError):
            file = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o644)
            try:
                os.pwrite(file, _COUNTS.pack(self.bytes, self.records), 0)
            finally:
                os.close(file)


def running_counts(directory: str) -> tuple[int, int]:
    """Return the bytes and records that the running tasks have counted."""
    size = records = 0
    with contextlib.suppress(OSError):
        for name in os.listdir(directory):
            if not name.endswith(".count"):
                continue
            with contextlib.suppress(OSError, struct.error), open(os.path.join(directory, name), "rb") as file:
                counts = _COUNTS.unpack(file.read())
                size, records = size + counts[0], records + counts[1]
    return size, records
