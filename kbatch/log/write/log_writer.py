"""Whole batches -> the files of a topic-partition, as a broker lays them out.

What stands in the index files is what Kafka's ``LogSegment``, ``OffsetIndex``, ``TimeIndex`` and ``TransactionIndex``
write for the same batches. Nothing is there under its final name before all of it is: files are written in a directory
beside it, whose name no broker takes for a topic-partition, and which is renamed at the end.
"""

from __future__ import annotations

import contextlib
import os
from types import TracebackType
from typing import BinaryIO, Self

import numpy as np
import numpy.typing as npt

from kbatch.batches.framing import byte_array, scan_whole
from kbatch.format import ABORTED_DTYPE, INT32_MAX, INT64_MAX, NO_TIMESTAMP, BytesLike
from kbatch.log.names import parse_segment_name
from kbatch.log.write.staging import staged
from kbatch.read.decode_options import DecodeOptions
from kbatch.read.reader import decode_part
from kbatch.transactions import TransactionTracker

__all__ = ["LogWriter", "SegmentWriter"]

_OFFSET_ENTRY = np.dtype([("offset", ">i4"), ("position", ">i4")])
_TIME_ENTRY = np.dtype([("timestamp", ">i8"), ("offset", ">i4")])
_ABORTED_ENTRY = np.dtype([("version", ">i2"), *((name, ">i8") for name in ABORTED_DTYPE.names or ())])
_LEADER_EPOCHS = "leader-epoch-checkpoint"


class SegmentWriter:
    """Write one segment: its ``.log``, and the ``.index``, ``.timeindex`` and ``.txnindex`` beside it.

    It takes rows that fit: `LogWriter` decides where a segment ends.

    Parameters
    ----------
    path : str
        Of the ``.log`` file, which must not exist.
    base_offset : int or None
        The segment's. None writes no index files.
    index_interval_bytes : int
        An index entry is made for a batch that begins more than so many bytes after the one of the entry before.
    sync : bool
        Whether data is forced to disk at the end.

    Attributes
    ----------
    size : int
        Bytes of the ``.log`` file so far.
    index_entries : int
        Of the ``.index`` file so far; the ``.timeindex`` has one more at most.
    """

    def __init__(
        self, path: str, base_offset: int | None, *, index_interval_bytes: int = 4096, sync: bool = True
    ) -> None:
        self.path = path
        self.base_offset = base_offset
        self.size = 0
        self.index_entries = 0
        self._interval = index_interval_bytes
        self._sync = sync
        self._last_entry = 0
        self._max = (NO_TIMESTAMP, 0)
        self._time_entry = NO_TIMESTAMP
        self._files: dict[str, BinaryIO] = {}
        self._file = self._open(".log", buffering=0)
        if base_offset is not None:
            self._open(".index")
            self._open(".timeindex")

    def _open(self, suffix: str, buffering: int = -1) -> BinaryIO:
        name = self.path if suffix == ".log" else self.path.removesuffix(".log") + suffix
        self._files[suffix] = file = open(name, "xb", buffering=buffering)  # noqa: SIM115
        return file

    def append(self, data: memoryview, rows: npt.NDArray[np.void]) -> None:
        """Write batches.

        Parameters
        ----------
        data : memoryview
            The bytes of these batches, and no others.
        rows : ndarray of BATCH_DTYPE
        """
        if not len(rows):
            return
        if self.base_offset is not None:
            self._index(rows, self.base_offset)
        done = 0
        while done < len(data):
            with data[done:] as rest:
                done += self._file.write(rest)
        self.size += len(data)

    def _index(self, rows: npt.NDArray[np.void], base_offset: int) -> None:
        starts = np.empty(len(rows) + 1, np.int64)
        starts[0] = self.size
        np.cumsum(rows["size"], out=starts[1:])
        starts[1:] += self.size
        chosen = self._sparse(starts[:-1])
        times = rows["max_timestamp"].astype(np.int64)
        reached = np.maximum.accumulate(np.maximum(times, self._max[0]))
        # The offset is that of the first batch with the largest timestamp so far.
        rises = np.empty(len(rows), np.bool_)
        rises[0] = reached[0] > self._max[0]
        rises[1:] = reached[1:] > reached[:-1]
        holder = np.maximum.accumulate(np.where(rises, np.arange(len(rows)), -1))
        holders = np.where(holder < 0, self._max[1], rows["last_offset"][holder] - base_offset)
        entries = np.empty(len(chosen), _OFFSET_ENTRY)
        entries["offset"] = rows["last_offset"][chosen] - base_offset
        entries["position"] = starts[chosen]
        self._files[".index"].write(entries.tobytes())
        self.index_entries += len(entries)
        self._add_times(reached[chosen], holders[chosen])
        self._max = int(reached[-1]), int(holders[-1])

    def _sparse(self, starts: npt.NDArray[np.int64]) -> list[int]:
        """Choose the batches that get an entry."""
        chosen: list[int] = []
        at = 0
        while True:
            at += int(np.searchsorted(starts[at:], self._last_entry + self._interval, "right"))
            if at == len(starts):
                return chosen
            chosen.append(at)
            self._last_entry = int(starts[at])

    def _add_times(self, timestamps: npt.NDArray[np.int64], offsets: npt.NDArray[np.int64]) -> None:
        """Add entries of the ``.timeindex``; those whose timestamp isn't later than the one before say nothing."""
        before = np.empty(len(timestamps), np.int64)
        before[:1] = self._time_entry
        before[1:] = timestamps[:-1]
        rises = timestamps > before
        entries = np.empty(int(np.count_nonzero(rises)), _TIME_ENTRY)
        entries["timestamp"] = timestamps[rises]
        entries["offset"] = offsets[rises]
        self._files[".timeindex"].write(entries.tobytes())
        if len(entries):
            self._time_entry = int(entries["timestamp"][-1])

    def append_aborted(self, aborted: npt.NDArray[np.void]) -> None:
        """Write rows of ABORTED_DTYPE to the ``.txnindex``; their markers lie in this segment, and ascend."""
        if not len(aborted):
            return
        file = self._files.get(".txnindex") or self._open(".txnindex")
        entries = np.zeros(len(aborted), _ABORTED_ENTRY)
        for name in ABORTED_DTYPE.names or ():
            entries[name] = aborted[name]
        file.write(entries.tobytes())

    def close(self) -> None:
        """Write the last entry of the ``.timeindex`` and close the files."""
        try:
            if self.base_offset is not None:
                self._add_times(np.array(self._max[:1], np.int64), np.array(self._max[1:], np.int64))
            if self._sync:
                for file in self._files.values():
                    file.flush()
                    os.fsync(file.fileno())
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close the files as they are."""
        for file in self._files.values():
            with contextlib.suppress(OSError):
                file.close()


class LogWriter:
    """Write the directory of a topic-partition, from whole batches with rising offsets.

    As a context manager it gives the directory its name at the end of the block; after an exception nothing is left.

    Parameters
    ----------
    directory : str or path
        Nothing, or an empty directory, may be there; its parent must be. A name such as ``orders-0`` is what brokers
        and `kbatch.Log` take for a topic-partition. Of a path that ends in ``.log`` a single file is written, and index
        files beside it if its name is that of a segment.
    base_offset : int, optional
        Of the first segment, in its file's name. Default is that of the first batch.
    segment_bytes : int
        A batch that would make a segment larger begins the next one (``segment.bytes``).
    index_interval_bytes : int
        As of a broker (``index.interval.bytes``).
    segment_index_bytes : int
        Size of index files at which a new segment begins (``segment.index.bytes``).
    follow_transactions : bool
        Whether the ``.txnindex`` files are made from the markers in the batches. Else they hold what `append_aborted`
        is given.
    sync : bool
        Whether data is forced to disk before the directory gets its name.

    Attributes
    ----------
    next_offset : int or None
        The least offset that the next batch may begin with.
    segments : list of int
        Base offsets of the segments so far.
    bytes_written : int
        Bytes of batches.

    Raises
    ------
    LogDirectoryError
        If something is at `directory` already, or its parent isn't there.

    Examples
    --------
    >>> import tempfile
    >>> import kbatch
    >>> from kbatch.log.write.log_writer import LogWriter
    >>> with tempfile.TemporaryDirectory() as where:
    ...     with LogWriter(f"{where}/orders-0", segment_bytes=200) as writer:
    ...         for first in range(0, 6, 2):
    ...             rows = writer.append(kbatch.encode([b"a", b"b"], base_offset=first, timestamps=1000))
    ...     log = kbatch.Log(f"{where}/orders-0")
    ...     log.end_offset, [segment.base_offset for segment in log.segments]
    (6, [0, 4])
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        base_offset: int | None = None,
        segment_bytes: int = 1 << 30,
        index_interval_bytes: int = 4096,
        segment_index_bytes: int = 10 << 20,
        follow_transactions: bool = True,
        sync: bool = True,
    ) -> None:
        for name, value, least, most in (
            ("segment_bytes", segment_bytes, 1, INT32_MAX),
            ("index_interval_bytes", index_interval_bytes, 0, INT32_MAX),
            ("segment_index_bytes", segment_index_bytes, 24, INT32_MAX),
            ("base_offset", base_offset or 0, 0, INT64_MAX),
        ):
            if not least <= value <= most:
                raise ValueError(f"{name} must be {least} to {most}, got {value}")
        path = os.fspath(directory)
        self._single = os.path.basename(path) if path.endswith(".log") else None
        self._stage = staged(path, directory=self._single is None, sync=sync)
        self._sync = sync
        self._segment_bytes = segment_bytes
        self._interval = index_interval_bytes
        # Kafka leaves a place of a .timeindex for its last entry (TimeIndex.isFull).
        self._most_entries = segment_index_bytes // _TIME_ENTRY.itemsize - 1
        self._tracker = TransactionTracker(check_crc=False) if follow_transactions else None
        self._aborted: list[npt.NDArray[np.void]] = []
        self._epochs: list[tuple[int, int]] = []
        self._given: set[str] = set()
        self._segment: SegmentWriter | None = None
        self._next_base = base_offset
        self._closed = False
        self.next_offset = base_offset
        self.segments: list[int] = []
        self.bytes_written = 0

    @property
    def staging(self) -> str:
        """Directory in which the files are until they get their names."""
        return self._stage.directory

    def append(self, data: BytesLike) -> npt.NDArray[np.void]:
        """Write whole batches.

        Parameters
        ----------
        data : buffer
            Batches one after the other, their offsets above all before them. Checksums aren't looked at.

        Returns
        -------
        ndarray of BATCH_DTYPE
            Their headers, ``position`` in `data`.

        Raises
        ------
        CorruptBatchError, TruncatedBatchError
            If `data` isn't whole batches.
        ValueError
            If offsets don't rise.
        """
        array = byte_array(data)
        batches = scan_whole(array)
        self.append_scanned(array, batches)
        return batches

    def append_scanned(self, data: npt.NDArray[np.uint8], rows: npt.NDArray[np.void], origin: int = 0) -> None:
        """Write batches whose headers were read already.

        Parameters
        ----------
        data : ndarray of uint8
        rows : ndarray of BATCH_DTYPE
            Batches that lie one after the other in `data`.
        origin : int
            Position of ``data[0]`` in what the positions of `rows` count from.
        """
        if self._closed:
            raise ValueError("the writer is closed")
        if not len(rows):
            return
        self._check_offsets(rows)
        if self._tracker is not None:
            self._tracker.add(data, rows, origin)
            aborted = self._tracker.drain().aborted
            if len(aborted):
                self._aborted.append(aborted)
        self._follow_epochs(rows)
        done = 0
        while done < len(rows):
            segment = self._segment or self._begin(data, rows[done:], origin)
            fits = self._fitting(segment, rows[done:])
            if not fits:
                self._end_segment(self._first_offset(data, rows[done:], origin))
                continue
            part = rows[done : done + fits]
            start = int(part["position"][0]) - origin
            stop = int(part["position"][-1] + part["size"][-1]) - origin
            with data.data[start:stop] as view:
                segment.append(view, part)
            self.bytes_written += stop - start
            self.next_offset = int(part["last_offset"][-1]) + 1
            done += fits

    def append_aborted(self, aborted: npt.NDArray[np.void]) -> None:
        """Take aborted transactions, rows of ABORTED_DTYPE in any order, for the ``.txnindex`` files.

        Each stands in the file of the segment that its marker's offset is in; the marker must not be written yet, or at
        least be in the segment that is being written.
        """
        if len(aborted):
            self._aborted.append(np.array(aborted))

    def roll(self, base_offset: int | None = None) -> None:
        """End the segment; the next one begins with `base_offset`, or that of its first batch."""
        if base_offset is not None and base_offset < (self.next_offset or 0):
            raise ValueError(f"base_offset must be {self.next_offset} at least, got {base_offset}")
        if self._segment is None and self._next_base is not None and base_offset != self._next_base:
            # A segment without batches has files too.
            self._make(self._next_base)
        self._end_segment(base_offset)

    def write_file(self, name: str, data: bytes) -> None:
        """Write another file of the directory, such as ``partition.metadata`` or a ``.snapshot``.

        A ``leader-epoch-checkpoint`` is made from the batches' leader epochs, unless it is written here.
        """
        self._given.add(name)
        self._stage.write_file(name, data)

    def close(self) -> None:
        """Finish all files and give the directory its name."""
        if self._closed:
            return
        self._closed = True
        try:
            if self._segment is None and (self._next_base is not None or not self.segments or self._single):
                self._make(self._next_base or 0)
            self._end_segment(None)
            if self._epochs and _LEADER_EPOCHS not in self._given and self._single is None:
                lines = [f"{epoch} {offset}\n" for epoch, offset in self._epochs]
                self.write_file(_LEADER_EPOCHS, "".join(["0\n", f"{len(lines)}\n", *lines]).encode())
        except BaseException as error:
            self._stage.name_error(error)
            self._stage.discard()
            raise
        self._stage.__exit__(None, None, None)

    def discard(self) -> None:
        """Give up: nothing is left."""
        self._closed = True
        if self._segment is not None:
            self._segment.abandon()
            self._segment = None
        self._stage.discard()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._stage.name_error(error)
            self.discard()

    def _check_offsets(self, rows: npt.NDArray[np.void]) -> None:
        last = rows["last_offset"]
        # Headers of compressed messages don't tell the first offset (LEG-R23).
        first = np.where(rows["base_offset"] < 0, last, rows["base_offset"])
        before = np.empty(len(rows), np.int64)
        before[0] = -1 if self.next_offset is None else self.next_offset - 1
        before[1:] = last[:-1]
        wrong = (first <= before) | (last < first)
        if wrong.any():
            where = int(np.argmax(wrong))
            raise ValueError(
                f"batch at byte {rows['position'][where]}: offsets {first[where]} to {last[where]} come after "
                f"{before[where]}; they have to rise"
            )

    def _follow_epochs(self, rows: npt.NDArray[np.void]) -> None:
        current = rows[rows["magic"] == 2]
        epochs = current["partition_leader_epoch"]
        if not len(epochs):
            return
        reached = np.maximum.accumulate(np.maximum(epochs, self._epochs[-1][0] if self._epochs else -1))
        rises = np.empty(len(epochs), np.bool_)
        rises[0] = reached[0] > (self._epochs[-1][0] if self._epochs else -1)
        rises[1:] = reached[1:] > reached[:-1]
        self._epochs += zip(epochs[rises].tolist(), current["base_offset"][rises].tolist(), strict=True)

    def _fitting(self, segment: SegmentWriter, rows: npt.NDArray[np.void]) -> int:
        """Count the batches that the segment still takes."""
        if segment.index_entries >= self._most_entries:
            return 0
        ends = segment.size + np.cumsum(rows["size"])
        fits = int(np.searchsorted(ends, self._segment_bytes, "right"))
        if self._interval:
            # What is left of the index is enough for so many bytes, whatever the batches are.
            room = (self._most_entries - segment.index_entries) * self._interval
            fits = min(fits, int(np.searchsorted(ends, segment.size + room, "right")))
        else:
            fits = min(fits, self._most_entries - segment.index_entries)
        if self._single is not None:
            fits = len(rows)
        elif fits == 0 and not segment.size:
            fits = 1
        far = rows["last_offset"][:fits] - (segment.base_offset or 0) > INT32_MAX
        if far.any() and segment.base_offset is not None:
            fits = int(np.argmax(far))
            if self._single is not None:
                raise ValueError(
                    f"offset {rows['last_offset'][fits]} is more than 2147483647 after the segment's first; "
                    "write a directory"
                )
        return fits

    def _first_offset(self, data: npt.NDArray[np.uint8], rows: npt.NDArray[np.void], origin: int) -> int:
        if rows["base_offset"][0] >= 0:
            return int(rows["base_offset"][0])
        if self.next_offset is not None and rows["last_offset"][0] - self.next_offset <= INT32_MAX:
            return self.next_offset
        start = int(rows["position"][0]) - origin
        table = decode_part(data[start : start + int(rows["size"][0])], DecodeOptions(columns=("offset",)))
        return int(table.batches["base_offset"][0])

    def _begin(self, data: npt.NDArray[np.uint8], rows: npt.NDArray[np.void], origin: int) -> SegmentWriter:
        base_offset = self._next_base
        if base_offset is None or rows["last_offset"][0] - base_offset > INT32_MAX:
            base_offset = self._first_offset(data, rows, origin)
        return self._make(base_offset)

    def _make(self, base_offset: int) -> SegmentWriter:
        name = f"{base_offset:020d}.log" if self._single is None else self._single
        named = parse_segment_name(name)
        if self._single is not None and named is not None and named > base_offset:
            raise ValueError(f"{name} must not begin after its first offset, {base_offset}")
        self._segment = SegmentWriter(
            os.path.join(self.staging, name), named, index_interval_bytes=self._interval, sync=self._sync
        )
        self.segments.append(base_offset)
        self._next_base = None
        return self._segment

    def _end_segment(self, next_base: int | None) -> None:
        self._next_base = next_base
        if self._segment is None:
            return
        segment, self._segment = self._segment, None
        try:
            if segment.base_offset is not None:
                segment.append_aborted(self._aborted_before(self.next_offset or 0, next_base is None and self._closed))
            segment.close()
        except BaseException:
            segment.abandon()
            raise

    def _aborted_before(self, offset: int, last: bool) -> npt.NDArray[np.void]:
        """Take the aborted transactions whose markers lie before `offset`; at the end of the log, all."""
        if not self._aborted:
            return np.empty(0, ABORTED_DTYPE)
        rows = np.sort(np.concatenate(self._aborted), order="last_offset", kind="stable")
        mine = np.full(len(rows), last) | (rows["last_offset"] < offset)
        self._aborted = [rows[~mine]] if not mine.all() else []
        return rows[mine]
