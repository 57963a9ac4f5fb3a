"""Writes complete batches to the files of a topic-partition, in a broker's layout.

Index files have the entries that Kafka's ``LogSegment``, ``OffsetIndex``, ``TimeIndex`` and ``TransactionIndex`` write
for the same batches. Files are written to a temporary directory whose name no broker takes for a topic-partition. It is
renamed at the end, so that the output appears only when it is complete.
"""

from __future__ import annotations

import contextlib
import os
from array import array
from collections.abc import Sequence
from types import TracebackType
from typing import BinaryIO, Self

import numpy as np
import numpy.typing as npt

from kbatch.arguments import check_types
from kbatch.batches.framing import byte_array, scan_complete
from kbatch.escaping import counted
from kbatch.format import ABORTED_DTYPE, INT32_MAX, INT64_MAX, NO_TIMESTAMP, BytesLike, Limits
from kbatch.log.files.checkpoints import LEADER_EPOCH_CHECKPOINT
from kbatch.log.files.indexes import STORED_OFFSET_ENTRY, STORED_TIME_ENTRY
from kbatch.log.files.transaction_index import STORED_ABORTED
from kbatch.log.store.names import parse_segment_name
from kbatch.log.write.staging import NewOutput
from kbatch.public_names import public_in
from kbatch.quantities import SizeLike, size_between
from kbatch.read.budget import table_limit
from kbatch.read.decode_options import DecodeOptions
from kbatch.read.in_memory import decode_part
from kbatch.transactions import TransactionTracker
from kbatch.write.batch_layout import check_range

__all__ = ["LogWriter", "SegmentWriter", "epochs_text", "new_epochs"]


def new_epochs(rows: npt.NDArray[np.void], last: int) -> list[tuple[int, int]]:
    """Return the leader epochs of batches after the epoch `last`, each with the base offset of its first batch."""
    current = rows[rows["magic"] == 2]
    epochs = current["partition_leader_epoch"]
    if not len(epochs):
        return []
    reached = np.maximum.accumulate(np.maximum(epochs, last))
    rises = np.empty(len(epochs), np.bool_)
    rises[0] = reached[0] > last
    rises[1:] = reached[1:] > reached[:-1]
    return list(zip(epochs[rises].tolist(), current["base_offset"][rises].tolist(), strict=True))


def epochs_text(epochs: Sequence[tuple[int, int]]) -> bytes:
    """Return the contents of a ``leader-epoch-checkpoint``."""
    lines = [f"{epoch} {offset}\n" for epoch, offset in epochs]
    return "".join(["0\n", f"{len(lines)}\n", *lines]).encode()


class SegmentWriter:
    """Writes one segment: its ``.log``, ``.index``, ``.timeindex`` and ``.txnindex``.

    `LogWriter` decides where a segment ends.

    Parameters
    ----------
    path : str
        Path of the ``.log`` file, which must not exist.
    base_offset : int or None
        The segment's base offset. None writes no index files.
    index_interval_bytes : int or str
        A batch gets an index entry if it begins more than this number of bytes after the batch of the previous entry.
    sync : bool
        Whether to sync data to disk at the end.

    Attributes
    ----------
    size : int
        Bytes of the ``.log`` file so far.
    index_entries : int
        Entries of the ``.index`` file so far; the ``.timeindex`` has at most one more.
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
            Exactly the bytes of these batches.
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
        # A time index entry has the offset of the first batch with the largest timestamp so far.
        rises = np.empty(len(rows), np.bool_)
        rises[0] = reached[0] > self._max[0]
        rises[1:] = reached[1:] > reached[:-1]
        holder = np.maximum.accumulate(np.where(rises, np.arange(len(rows)), -1))
        holders = np.where(holder < 0, self._max[1], rows["last_offset"][holder] - base_offset)
        entries = np.empty(len(chosen), STORED_OFFSET_ENTRY)
        entries["offset"] = rows["last_offset"][chosen] - base_offset
        entries["position"] = starts[chosen]
        self._files[".index"].write(entries.tobytes())
        self.index_entries += len(entries)
        self._add_times(reached[chosen], holders[chosen])
        self._max = int(reached[-1]), int(holders[-1])

    def _sparse(self, starts: npt.NDArray[np.int64]) -> list[int]:
        """Return the batches that get an index entry."""
        chosen: list[int] = []
        at = 0
        while True:
            at += int(np.searchsorted(starts[at:], self._last_entry + self._interval, "right"))
            if at == len(starts):
                return chosen
            chosen.append(at)
            self._last_entry = int(starts[at])

    def _add_times(self, timestamps: npt.NDArray[np.int64], offsets: npt.NDArray[np.int64]) -> None:
        """Add entries to the ``.timeindex``, except those whose timestamp is not later than the previous one."""
        before = np.empty(len(timestamps), np.int64)
        before[:1] = self._time_entry
        before[1:] = timestamps[:-1]
        rises = timestamps > before
        entries = np.empty(int(np.count_nonzero(rises)), STORED_TIME_ENTRY)
        entries["timestamp"] = timestamps[rises]
        entries["offset"] = offsets[rises]
        self._files[".timeindex"].write(entries.tobytes())
        if len(entries):
            self._time_entry = int(entries["timestamp"][-1])

    def append_aborted(self, aborted: npt.NDArray[np.void]) -> None:
        """Write rows of ABORTED_DTYPE to the ``.txnindex``; their markers are in this segment, in ascending order."""
        if not len(aborted):
            return
        file = self._files.get(".txnindex") or self._open(".txnindex")
        entries = np.zeros(len(aborted), STORED_ABORTED)
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
        """Close the files without the last entry."""
        for file in self._files.values():
            with contextlib.suppress(OSError):
                file.close()


@public_in("kbatch.log")
class LogWriter:
    """Writes the directory of a topic-partition from complete batches with ascending offsets.

    As a context manager it gives the directory its name at the end of the block; after an exception it removes all
    files.

    Parameters
    ----------
    directory : str or path
        A directory that does not exist or is empty; its parent must exist. Brokers and `kbatch.Log` expect names such
        as ``orders-0`` for topic-partitions. A path that ends in ``.log`` is a single file, which gets index files if
        it has the name of a segment.
    base_offset : int, optional
        Base offset of the first segment, for its file name. Default is the base offset of the first batch.
    segment_bytes : int or str
        Limit on a segment; a batch beyond it begins the next one (``segment.bytes``).
    index_interval_bytes : int or str
        Bytes between index entries (``index.interval.bytes``).
    segment_index_bytes : int or str
        Limit on index files; beyond it a new segment begins (``segment.index.bytes``).
    follow_transactions : bool
        Whether to make ``.txnindex`` files from the markers in the batches. Otherwise they contain the rows passed to
        `append_aborted`.
    limits : kbatch.Limits, optional
        Open transactions count towards `max_table_bytes`, with 160 bytes each, if `follow_transactions`. Aborted ones
        take 36 bytes each until their segment ends, about as much as in its ``.txnindex``.
    sync : bool
        Whether to sync data to disk before the directory gets its name.

    Attributes
    ----------
    next_offset : int or None
        Smallest base offset allowed for the next batch.
    segments : list of int
        Base offsets of the segments so far.
    bytes_written : int
        Bytes of batches written so far.

    Raises
    ------
    LogDirectoryError
        If `directory` exists already, or its parent does not.

    Examples
    --------
    >>> import tempfile
    >>> import kbatch
    >>> from kbatch.log import LogWriter
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
        segment_bytes: SizeLike = 1 << 30,
        index_interval_bytes: SizeLike = 4096,
        segment_index_bytes: SizeLike = 10 << 20,
        follow_transactions: bool = True,
        limits: Limits | None = None,
        sync: bool = True,
    ) -> None:
        check_types(LogWriter.__init__, locals())
        segment_bytes = size_between("segment_bytes", segment_bytes, 1, INT32_MAX)
        index_interval_bytes = size_between("index_interval_bytes", index_interval_bytes, 0, INT32_MAX)
        segment_index_bytes = size_between("segment_index_bytes", segment_index_bytes, 24, INT32_MAX)
        check_range("base_offset", base_offset or 0, 0, INT64_MAX)
        path = os.fspath(directory)
        self._single = os.path.basename(path) if path.endswith(".log") else None
        self._output = NewOutput(path, directory=self._single is None, sync=sync)
        self._sync = sync
        self._segment_bytes = segment_bytes
        self._interval = index_interval_bytes
        # Kafka reserves one entry of a .timeindex for its last one (TimeIndex.isFull).
        self._max_entries = segment_index_bytes // STORED_TIME_ENTRY.itemsize - 1
        self._tracker = None
        if follow_transactions:
            limits = Limits() if limits is None else limits
            self._tracker = TransactionTracker(
                limits=limits, max_bytes=table_limit(limits), alternative=", or pass follow_transactions=False"
            )
        # Rows of ABORTED_DTYPE whose segment has not ended; an array for each call of `append` would take more.
        self._aborted = array("q")
        self._epochs: list[tuple[int, int]] = []
        self._given: set[str] = set()
        self._segment: SegmentWriter | None = None
        self._next_base = base_offset
        self._closed = False
        self.next_offset = base_offset
        self.segments: list[int] = []
        self.bytes_written = 0

    def __repr__(self) -> str:
        segments, written = counted(len(self.segments), "segment"), counted(self.bytes_written, "byte")
        return f"<LogWriter at offset {self.next_offset}: {segments}, {written}>"

    @property
    def staging(self) -> str:
        """The temporary directory of the files until they get their names."""
        return self._output.new

    def append(self, data: BytesLike) -> npt.NDArray[np.void]:
        """Write complete batches.

        Parameters
        ----------
        data : buffer
            Consecutive batches, with offsets above all earlier ones. Checksums are not verified.

        Returns
        -------
        ndarray of BATCH_DTYPE
            The headers of the batches; ``position`` is the byte in `data`.

        Raises
        ------
        CorruptBatchError, TruncatedBatchError
            If `data` isn't complete batches.
        ValueError
            If offsets do not ascend.
        LimitExceededError
            If the open transactions take more memory than `limits` allow; also by later calls.
        """
        source = byte_array(data)
        batches = scan_complete(source)
        self.append_scanned(source, batches)
        return batches

    def append_scanned(self, data: npt.NDArray[np.uint8], rows: npt.NDArray[np.void], origin: int = 0) -> None:
        """Write batches whose headers were scanned before.

        Parameters
        ----------
        data : ndarray of uint8
        rows : ndarray of BATCH_DTYPE
            Consecutive batches in `data`.
        origin : int
            Position of ``data[0]`` in the source of the positions of `rows`.
        """
        check_types(LogWriter.append_scanned, locals())
        if self._closed:
            raise ValueError("the writer is closed")
        if not len(rows):
            return
        self._check_offsets(rows)
        if self._tracker is not None:
            self._tracker.add(data, rows, origin)
            self._aborted.frombytes(self._tracker.drain().aborted.tobytes())
        self._epochs += new_epochs(rows, self._epochs[-1][0] if self._epochs else -1)
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
        """Add aborted transactions, rows of ABORTED_DTYPE in any order, to the ``.txnindex`` files.

        Each one is written to the file of the segment that contains its marker. Call this before the marker is written,
        or while its segment is the current one.
        """
        check_types(LogWriter.append_aborted, locals())
        self._aborted.frombytes(np.asarray(aborted, ABORTED_DTYPE).tobytes())

    def roll(self, base_offset: int | None = None) -> None:
        """End the segment. The next one gets `base_offset`, or the base offset of its first batch."""
        check_types(LogWriter.roll, locals())
        if base_offset is not None and base_offset < (self.next_offset or 0):
            raise ValueError(f"base_offset must be at least {self.next_offset}, got {base_offset}")
        if self._segment is None and self._next_base is not None and base_offset != self._next_base:
            # A segment without batches has files too.
            self._make(self._next_base)
        self._end_segment(base_offset)

    def write_file(self, name: str, data: bytes) -> None:
        """Write another file of the directory, such as ``partition.metadata`` or a ``.snapshot``.

        Without a ``leader-epoch-checkpoint`` written here, one is made from the leader epochs of the batches.
        """
        check_types(LogWriter.write_file, locals())
        self._given.add(name)
        self._output.write_file(name, data)

    def close(self) -> None:
        """Finish all files and give the directory its name."""
        if self._closed:
            return
        self._closed = True
        try:
            if self._segment is None and (self._next_base is not None or not self.segments or self._single):
                self._make(self._next_base or 0)
            self._end_segment(None)
            if self._epochs and LEADER_EPOCH_CHECKPOINT not in self._given and self._single is None:
                self.write_file(LEADER_EPOCH_CHECKPOINT, epochs_text(self._epochs))
        except BaseException as error:
            self._output.name_error(error)
            self._output.remove()
            raise
        self._output.__exit__(None, None, None)

    def discard(self) -> None:
        """Remove all files of this writer."""
        self._closed = True
        if self._segment is not None:
            self._segment.abandon()
            self._segment = None
        self._output.remove()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._output.name_error(error)
            self.discard()

    def _check_offsets(self, rows: npt.NDArray[np.void]) -> None:
        last = rows["last_offset"]
        # Headers of compressed message sets have no base offset (LEG-R23).
        first = np.where(rows["base_offset"] < 0, last, rows["base_offset"])
        before = np.empty(len(rows), np.int64)
        before[0] = -1 if self.next_offset is None else self.next_offset - 1
        before[1:] = last[:-1]
        wrong = (first <= before) | (last < first)
        if wrong.any():
            where = int(np.argmax(wrong))
            raise ValueError(
                f"batch at byte {rows['position'][where]}: offsets {first[where]} to {last[where]} come after "
                f"{before[where]}; offsets must ascend"
            )

    def _fitting(self, segment: SegmentWriter, rows: npt.NDArray[np.void]) -> int:
        """Return the number of batches that fit into the segment."""
        if segment.index_entries >= self._max_entries:
            return 0
        ends = segment.size + np.cumsum(rows["size"])
        fits = int(np.searchsorted(ends, self._segment_bytes, "right"))
        if self._interval:
            # The remaining index entries suffice for at least this number of bytes.
            capacity = (self._max_entries - segment.index_entries) * self._interval
            fits = min(fits, int(np.searchsorted(ends, segment.size + capacity, "right")))
        else:
            fits = min(fits, self._max_entries - segment.index_entries)
        if self._single is not None:
            fits = len(rows)
        elif fits == 0 and not segment.size:
            fits = 1
        far = rows["last_offset"][:fits] - (segment.base_offset or 0) > INT32_MAX
        if far.any() and segment.base_offset is not None:
            fits = int(np.argmax(far))
            if self._single is not None:
                raise ValueError(
                    f"offset {rows['last_offset'][fits]} is more than 2147483647 after the segment's base offset; "
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
        """Remove and return the aborted transactions with markers before `offset`, or all if `last`."""
        if not self._aborted:
            return np.empty(0, ABORTED_DTYPE)
        rows = np.array(self._aborted, np.int64).view(ABORTED_DTYPE)
        rows = np.sort(rows, order="last_offset", kind="stable")
        mine = np.full(len(rows), last) | (rows["last_offset"] < offset)
        self._aborted = array("q", rows[~mine].tobytes())
        return rows[mine]
