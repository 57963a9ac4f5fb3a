"""The counts of export tasks: one class, whose sums are the progress and the summary.

Spark's accumulators arrive with the result of a task, and a task may take a minute. A running task therefore also
writes the counts for the progress to a small file that the driver reads.
"""

from __future__ import annotations

import contextlib
import os
import struct
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from operator import add
from typing import Any, TypeAlias

from kbatch.options import CodecName
from kbatch.quantities import largest, smallest

__all__ = ["Counts", "Progress", "TaskCounter", "running_counts"]

# How often a running task writes its counts, in seconds.
COUNTER_SECONDS = 0.5

# Called from time to time with the bytes of the log read so far, all bytes to read, and the records written.
Progress: TypeAlias = Callable[[int, int, int], None]

_COUNTS = struct.Struct("<qq")


def _range(sum_of: Callable[[int | None, int | None], int | None]) -> Any:
    return field(default=None, metadata={"sum": sum_of})


def _codec_sum(one: dict[CodecName, int], other: dict[CodecName, int]) -> dict[CodecName, int]:
    return dict(Counter(one) + Counter(other)) if one and other else one or other


@dataclass(frozen=True, slots=True)
class Counts:
    """The counts of a table, a task, a topic-partition or a run, which can be added.

    Attributes
    ----------
    read_bytes : int
        Bytes of the log that the read has processed, for the progress.
    records, control_records, file_count, file_bytes, log_bytes : int
        Records written; control records read, including those that are not written; data files written, bytes of these
        files, and bytes of the batches read, including batches without records.
    codecs : dict of CodecName to int
        Batches that were read, by codec.
    bad_crc_batches : int
        Batches with a wrong checksum that were accepted (``crc="mark"``).
    aborted_batches, aborted_bytes, undecided_batches, undecided_bytes : int
        Batches that read_committed omitted, because their transaction was aborted, or because they are not below the
        last stable offset. They count neither as read nor as lost.
    first_offset, last_offset, first_timestamp, last_timestamp : int or None
        Ranges of the records; timestamps are in ms.
    lost_bytes, loss_count : int
    gap_offsets, gap_count : int
        Offsets that are missing between two segments for an unknown reason. They count as losses of zero bytes.
    removed_offsets : int
        Offsets without a record, within batches or between batches or segments, which compaction removed.
    history_records, history_bytes : int
        The part of the records and batch bytes that was read from files of the history of a cluster.
    bad_keys, bad_values, incomplete_keys, incomplete_values : int
        Keys and values that cannot be parsed, and those that lack fields; their bytes were written.
    """

    read_bytes: int = 0
    records: int = 0
    control_records: int = 0
    file_count: int = 0
    file_bytes: int = 0
    log_bytes: int = 0
    codecs: dict[CodecName, int] = field(default_factory=dict, metadata={"sum": _codec_sum})
    bad_crc_batches: int = 0
    aborted_batches: int = 0
    aborted_bytes: int = 0
    undecided_batches: int = 0
    undecided_bytes: int = 0
    first_offset: int | None = _range(smallest)
    last_offset: int | None = _range(largest)
    first_timestamp: int | None = _range(smallest)
    last_timestamp: int | None = _range(largest)
    lost_bytes: int = 0
    loss_count: int = 0
    gap_offsets: int = 0
    gap_count: int = 0
    removed_offsets: int = 0
    history_records: int = 0
    history_bytes: int = 0
    bad_keys: int = 0
    bad_values: int = 0
    incomplete_keys: int = 0
    incomplete_values: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(*(sum_of(getattr(self, name), getattr(other, name)) for name, sum_of in _SUMS))

    @property
    def bad(self) -> int:
        """The number of keys and values that cannot be parsed completely."""
        return self.bad_keys + self.bad_values + self.incomplete_keys + self.incomplete_values

    def fields_of(self, summary: type) -> dict[str, Any]:
        """Return the counts that are fields of a summary class, by name."""
        names = {each.name for each in fields(summary)}
        return {name: getattr(self, name) for name, _ in _SUMS if name in names}


_SUMS = [(each.name, each.metadata.get("sum", add)) for each in fields(Counts)]


class TaskCounter:
    """The counts of one running task; a context manager that removes the file at the end.

    Parameters
    ----------
    directory : str or None
        An existing directory that the driver can read; None writes nothing.
    task : int

    Attributes
    ----------
    counts : Counts
    """

    def __init__(self, directory: str | None, task: int) -> None:
        self.counts = Counts()
        self._path = None if directory is None else os.path.join(directory, f"{task}.count")
        self._written = time.monotonic()

    def __enter__(self) -> TaskCounter:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._path is not None:
            with contextlib.suppress(OSError):
                os.unlink(self._path)

    def add(self, counts: Counts) -> None:
        """Add counts; write the file if `COUNTER_SECONDS` have passed since the last write."""
        self.counts += counts
        now = time.monotonic()
        if self._path is None or now - self._written < COUNTER_SECONDS:
            return
        self._written = now
        # A task does not fail because its progress cannot be written.
        with contextlib.suppress(OSError):
            file = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o644)
            try:
                os.pwrite(file, _COUNTS.pack(self.counts.read_bytes, self.counts.records), 0)
            finally:
                os.close(file)


def running_counts(directory: str) -> Counts:
    """Return the bytes and records that the running tasks have counted."""
    counts = Counts()
    with contextlib.suppress(OSError):
        for name in os.listdir(directory):
            if not name.endswith(".count"):
                continue
            with contextlib.suppress(OSError, struct.error), open(os.path.join(directory, name), "rb") as file:
                size, records = _COUNTS.unpack(file.read())
                counts += Counts(read_bytes=size, records=records)
    return counts
