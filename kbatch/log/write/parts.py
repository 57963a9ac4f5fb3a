"""The output of one task: a file of batches for each topic-partition, whose offsets may not be assigned yet."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np
import numpy.typing as npt

from kbatch.log.write.dataframe_rows import RowOptions, RowSplitter
from kbatch.options import CodecName
from kbatch.write.batch_writer import BatchWriter

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["PartFile", "PartWriter"]


@dataclass(frozen=True)
class PartFile:
    """A file of batches of one topic-partition. Picklable.

    Attributes
    ----------
    topic : str
    partition : int
    path : str
    size : int
        Bytes of the file.
    records : int
    first_offset, last_offset : int
        Offsets of its records in the file.
    kept : bool
        Whether the records keep these offsets. Otherwise the offsets count from 0 until the commit assigns them.
    """

    topic: str
    partition: int
    path: str
    size: int
    records: int
    first_offset: int
    last_offset: int
    kept: bool


class _Appended:
    """A file that is open only during a write: a task may have thousands of them."""

    def __init__(self, path: str) -> None:
        self.path = path

    def write(self, data: memoryview, /) -> int:
        with open(self.path, "ab", buffering=0) as file:
            try:
                return file.write(data)
            except OSError as error:
                error.filename = self.path
                raise


class _Log:
    """The writer and the state of one topic-partition."""

    def __init__(self, path: str, options: RowOptions) -> None:
        self.file = _Appended(path)
        self.writer = BatchWriter(
            self.file,
            batch_size=options.batch_size,
            codec=cast(CodecName, options.codec),
            timestamp_type=options.timestamp_type,
            append_time=options.now if options.timestamp_type else None,
        )
        self.first_offset = -1
        self.records = 0
        self.kept = False


class PartWriter:
    """Writes rows to files in a separate directory.

    Parameters
    ----------
    directory : str
        It must exist.
    options : RowOptions
    turn : int
        As for `kbatch.log.write.dataframe_rows.RowSplitter`.
    """

    def __init__(self, directory: str, options: RowOptions, turn: int = 0) -> None:
        self._directory = directory
        self._options = options
        self._splitter = RowSplitter(options, turn)
        self._logs: dict[tuple[str, int], _Log] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        """Write rows.

        Raises
        ------
        ValueError, TypeError
            As for `kbatch.log.write.dataframe_rows.RowSplitter.split` and `kbatch.encode`; also if offsets are null or
            do not ascend within a topic-partition.
        """
        options = self._options
        for topic, partition, rows in self._splitter.split(batch):
            log = self._logs.get((topic, partition))
            if log is None:
                path = os.path.join(self._directory, f"{len(self._logs):06d}.part")
                log = self._logs[topic, partition] = _Log(path, options)
            names = rows.schema.names
            offsets = None
            if "offset" in names and options.offsets == "keep":
                offsets = _checked_offsets(rows.column("offset"), log.writer.next_offset, f"{topic}-{partition}")
            try:
                given = log.writer.append_many(
                    rows.column("value"),
                    keys=rows.column("key") if "key" in names else None,
                    timestamps=rows.column("timestamp") if "timestamp" in names else options.now,
                    headers=rows.column("headers") if "headers" in names and options.headers else None,
                    offsets=offsets,
                )
            except (ValueError, TypeError) as error:
                raise type(error)(f"{topic}-{partition}, {len(rows)} rows: {error}") from error
            if not log.records:
                log.first_offset, log.kept = int(given[0]), offsets is not None
            log.records += len(rows)

    def close(self) -> list[PartFile]:
        """Finish the files and return them."""
        parts = []
        for (topic, partition), log in self._logs.items():
            log.writer.close()
            last = log.writer.next_offset - 1
            size = log.writer.bytes_written
            parts.append(PartFile(topic, partition, log.file.path, size, log.records, log.first_offset, last, log.kept))
        return parts


def _checked_offsets(column: pa.Array, least: int, where: str) -> npt.NDArray[np.int64]:
    if column.null_count:
        raise ValueError(
            f"{where}: offset is null; give offsets to all rows or to none, or assign them (offsets=assign)"
        )
    offsets = np.asarray(column.cast("int64").to_numpy())
    before = np.empty(len(offsets), np.int64)
    before[0] = least - 1
    before[1:] = offsets[:-1]
    wrong = offsets <= before
    if wrong.any():
        row = int(np.argmax(wrong))
        if offsets[row] < 0:
            raise ValueError(f"{where}: offset {offsets[row]} is negative")
        raise ValueError(
            f"{where}: offset {offsets[row]} comes after {before[row]}; sort the rows of each topic-partition by "
            "offset, remove duplicates, or let offsets be assigned (offsets=assign)"
        )
    return offsets
