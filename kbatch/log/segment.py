"""One segment file: bounded windows of its bytes, its batch headers, and seeking."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from kbatch.batches.checksums import has_good_batch
from kbatch.batches.framing import byte_array, entry_size, first_offsets, scan_part
from kbatch.errors import Finding, LogDirectoryError, UnsupportedFormatError
from kbatch.format import ABORTED_DTYPE, BATCH_DTYPE, BATCH_HEADER_SIZE, LOG_OVERHEAD, BatchStatus
from kbatch.log.indexes import OFFSET_INDEX_DTYPE, OffsetEntry, OffsetIndex, TimeIndex
from kbatch.log.names import is_aiven_name, parse_segment_name
from kbatch.log.state import read_producer_snapshot, read_transaction_index
from kbatch.log.storage import Entry, RemoteFile, Storage, locate

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["Segment", "SegmentFile", "Tail", "check_order", "inode_of", "last_offset"]

# How many bytes a walk over headers looks at together: few at first, since it may end soon, then twice as many.
_FIRST_WINDOW = 64 << 10
_WALK_WINDOW = 4 << 20
_ZERO_BLOCK = 1 << 16
_MOST_MANIFEST = 16 << 20


class Tail(NamedTuple):
    """What stands after the last whole batch that can be reached over headers.

    Attributes
    ----------
    kind : {"none", "partial", "zeros", "damaged"}
        Nothing; the beginning of a batch that is being written or was cut (FRM-R3); only zeros, at least twelve, as a
        preallocated file has them (FRM-R7); or bytes that no batch can begin with.
    position : int
        Where it begins, in bytes from the beginning of the segment's file.
    size : int
        How many bytes there are.
    finding : Finding or None
        What is wrong, if it is damage.

    Examples
    --------
    >>> import kbatch
    >>> kbatch.Log("tests/golden/logs/prealloc-0").tail
    Tail(kind='zeros', position=397, size=65139, finding=None)
    """

    kind: Literal["none", "partial", "zeros", "damaged"]
    position: int
    size: int
    finding: Finding | None = None


class SegmentFile:
    """An open segment file, of which windows can be had. It is closed on leaving the ``with`` block.

    Windows outlive it: a mapped one holds its mapping, a read one its memory.
    """

    def __init__(self, path: str, size: int, live: bool, storage: Storage) -> None:
        self.path = path
        self.size = size
        self.live = live
        self._zeros: tuple[int, int] | None = None
        try:
            self._file = storage.open(path, size)
        except OSError as error:
            raise _unreadable(path, error) from error
        now = self._file.size
        if now < size:
            if not live:
                self._file.close()
                raise _shrunk(path)
            self.size = now

    def __enter__(self) -> SegmentFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def window(self, start: int, stop: int) -> npt.NDArray[np.uint8]:
        """Return the bytes from `start` up to `stop`, read-only; fewer if the file has been cut since."""
        if stop <= start:
            return byte_array(b"")
        try:
            window = self._file.window(start, stop, mapped=not self.live)
        except ValueError as error:
            raise _shrunk(self.path) from error
        except OSError as error:
            raise _unreadable(self.path, error) from error
        if isinstance(self._file, RemoteFile) and not self.live and start + len(window) < min(stop, self.size):
            raise _shrunk(self.path)
        return window

    def entry_size(self, position: int) -> int | None:
        """Return the bytes that the entry at `position` says it takes, None if too few remain to say."""
        if self.size - position < LOG_OVERHEAD:
            return None
        return entry_size(self.window(position, position + LOG_OVERHEAD), 0)

    def walk(self, position: int, stop: int | None = None) -> Iterator[npt.NDArray[np.void]]:
        """Hop over batch headers from `position` on, and yield their rows by the window.

        It ends at `stop`, or where framing does, whatever the reason: `tail_at` the last batch's end tells it.
        """
        for _, rows in self.walk_windows(position, stop):
            yield rows

    def walk_windows(
        self, position: int, stop: int | None = None
    ) -> Iterator[tuple[npt.NDArray[np.uint8], npt.NDArray[np.void]]]:
        """Walk as `walk` does, and yield the bytes too, from the first batch of the rows on."""
        end = self.size if stop is None else min(stop, self.size)
        step = size = _FIRST_WINDOW
        while position < end:
            window = self.window(position, min(position + size, end))
            scan = scan_part(window, origin=position)
            if len(scan.batches):
                yield window, scan.batches
            elif scan.finding is None and len(window) >= LOG_OVERHEAD:
                wanted = entry_size(window, 0)
                if len(window) < wanted <= end - position:
                    size = wanted
                    continue
            position += scan.consumed
            if scan.finding is not None or scan.consumed == 0:
                return
            step = size = min(2 * step, _WALK_WINDOW)

    def tail_at(self, position: int) -> Tail:
        """Say what stands at `position`, the end of the last whole batch."""
        left = self.size - position
        if left <= 0:
            return Tail("none", position, 0)
        if left >= LOG_OVERHEAD and position >= self.zeros_from():
            return Tail("zeros", position, left)
        finding = scan_part(self.window(position, position + min(left, BATCH_HEADER_SIZE)), origin=position).finding
        return Tail("partial" if finding is None else "damaged", position, left, finding)

    def zeros_from(self) -> int:
        """Return where the zeros at the end of the file begin; its size if the last byte is none.

        Each bad length that reaches beyond the file asks, so that it is found out once.
        """
        if self._zeros is None or self._zeros[0] != self.size:
            self._zeros = (self.size, self._find_zeros())
        return self._zeros[1]

    def _find_zeros(self) -> int:
        end = self.size
        while end > 0:
            start = max(0, end - _ZERO_BLOCK)
            block = self.window(start, end)
            used = np.flatnonzero(block)
            if len(used):
                return start + int(used[-1]) + 1
            end = start
        return 0


class Segment:
    """One ``.log`` file of a topic-partition, or a ``.log.swap`` that stands for one (DSK-R8).

    Parameters
    ----------
    path : str or path
    live : bool
        Whether the file may be written or cut while it is read: then its bytes are read, not mapped, since a mapping
        that a broker cuts underneath ends the process (DSK-R19). True for the last segment of a log.
    swapped : collection of str
        Suffixes of files beside it, such as ``".txnindex"``, in whose place their ``.swap`` is read.
    storage_options : mapping of str to str, optional
        Where `path` is a URL: as for `kbatch.log.storage.filesystem`.
    size : int, optional
        Bytes of the file, where they are known; else it is asked for.

    Attributes
    ----------
    path : str
        Or URL.
    base_offset : int or None
        From the file's name (DSK-R1): no batch of the segment begins before it. None if the name is another.
    size : int
        Bytes of the file when the segment was made. What is written later is not seen.
    live : bool

    Examples
    --------
    >>> import kbatch
    >>> segment = kbatch.Log("tests/golden/logs/codec-none-0").segments[1]
    >>> segment.base_offset, segment.seek_offset(2281)
    (1825, 15707)
    """

    __slots__ = (
        "_is_plain",
        "_listing",
        "_offsets",
        "_swapped",
        "_times",
        "base_offset",
        "live",
        "path",
        "size",
        "storage",
    )

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        live: bool = True,
        swapped: Collection[str] = (),
        storage_options: Mapping[str, str] | None = None,
        size: int | None = None,
    ) -> None:
        storage, text = locate(path, storage_options)
        self._init(storage, text, live, swapped, size, None)

    @classmethod
    def listed(
        cls,
        storage: Storage,
        directory: str,
        name: str,
        listing: Mapping[str, Entry],
        *,
        live: bool,
        swapped: Collection[str] = (),
    ) -> Segment:
        """Make a segment from a listing of its directory."""
        segment = cls.__new__(cls)
        segment._init(storage, storage.join(directory, name), live, swapped, listing[name].size, listing)
        return segment

    def _init(
        self,
        storage: Storage,
        path: str,
        live: bool,
        swapped: Collection[str],
        size: int | None,
        listing: Mapping[str, Entry] | None,
    ) -> None:
        self.storage = storage
        self.path = path
        self.base_offset = parse_segment_name(os.path.basename(path).removesuffix(".swap"))
        self._swapped = swapped
        # What stands beside a local segment is looked for when it is asked for: it costs nothing.
        self._listing = listing if storage.remote else None
        # Of remote index files nothing is read twice; a segment is what its files hold when it is made.
        self._offsets: OffsetIndex | None = None
        self._times: TimeIndex | None = None
        self._is_plain = not is_aiven_name(os.path.basename(path))
        self.live = live
        if size is None:
            try:
                size = os.stat(path).st_size if not storage.remote else None
            except OSError as error:
                raise _unreadable(path, error) from error
        if size is None:
            found = storage.find(path)
            if found is None or found.is_directory:
                raise LogDirectoryError(f"{path}: no such file", source=path)
            size = found.size
        self.size: int = size or 0

    def __repr__(self) -> str:
        return f"<kbatch Segment {self.path!r}, {self.size} bytes>"

    def open(self) -> SegmentFile:
        """Open the file, to be used in a ``with`` block."""
        if not self._is_plain:
            self._check_manifest()
        return SegmentFile(self.path, self.size, self.live, self.storage)

    def _check_manifest(self) -> None:
        """Refuse a file of which the manifest beside it says that it isn't the segment's bytes."""
        path = self.sibling(".rsm-manifest")
        if self._has(path):
            try:
                manifest = json.loads(self.storage.read(path, _MOST_MANIFEST)[0])
                done = [name for name in ("compression", "encryption") if manifest.get(name)]
            except FileNotFoundError:
                done = []
            except (OSError, ValueError, AttributeError) as error:
                raise LogDirectoryError(f"{path}: no manifest that can be read: {error}", source=path) from error
            if done:
                raise UnsupportedFormatError(
                    f"{self.path}: uploaded in chunks with {' and '.join(done)}, as its .rsm-manifest says, so that it "
                    "isn't the segment's bytes; read the topic through a broker, or upload without these",
                    source=self.path,
                )
        self._is_plain = True

    def window(self, start: int, stop: int) -> npt.NDArray[np.uint8]:
        """Return the bytes of the file from `start` up to `stop`, without what lies beyond its size.

        Returns
        -------
        ndarray of uint8, read-only
            Mapped where the segment can't change any more and not too many windows are alive, else a copy.
        """
        if start < 0:
            raise ValueError(f"start must not be negative, got {start}")
        with self.open() as file:
            return file.window(start, min(stop, file.size))

    def scan(self, start: int = 0) -> Iterator[npt.NDArray[np.void]]:
        """Hop over the batch headers from byte `start` on; nothing is decompressed and no checksum computed.

        Yields
        ------
        ndarray of BATCH_DTYPE, shape (batches,)
            The batches of some megabytes, however large the file. ``position`` counts from the file's beginning. What
            headers don't tell of compressed message sets is as in `kbatch.scan`. The scan ends where no whole batch
            follows.
        """
        with self.open() as file:
            yield from file.walk(start)

    def seek_offset(self, offset: int, *, use_indexes: bool = True) -> int:
        """Return the position of the first batch whose last offset is `offset` or later.

        If there is none, it is the position after the last whole batch. Offsets are taken to ascend, as in every log
        that a broker writes. Where damage may have led past that batch, it is the position of the damage.

        Notes
        -----
        Offsets and length of a header may be what is damaged. So the last batch that is passed over has to have a good
        checksum: of ascending offsets its own show that nothing before it is wanted, and its length is right.

        The entry of the ``.index`` file is used if the batch at its position has a good checksum and a base offset that
        isn't above the entry's. Otherwise the headers are followed from the beginning. An index that was forged to
        point at a batch inside a record's value passes that; with ``use_indexes=False`` nothing does.
        """
        with self.open() as file:
            start = self._start_for_offset(file, offset, use_indexes)
            return self._end_of_good(file, start, self._first_batch(file, start, offset=offset)[1])

    def seek_timestamp(self, timestamp: int, *, use_indexes: bool = True) -> int:
        """Return the position of the first batch whose ``max_timestamp`` is `timestamp` (ms) or later.

        If there is none, it is the position after the last whole batch. Where damage may have led past that batch, it
        is the position of the damage, as for `seek_offset`.

        Notes
        -----
        ``max_timestamp`` is right, or too large (compaction), in what brokers write: they compute it anew when they
        append (TS-R4). Only a file that no broker has checked can hold a batch with later records than its header says.

        The ``.timeindex`` is used if the batch that holds its entry's offset has the entry's timestamp as its maximum,
        and not at all otherwise. An index that names true batches, but leaves out one with a later timestamp before
        them, passes that; with ``use_indexes=False`` all headers are followed.
        """
        with self.open() as file:
            start = self._start_for_timestamp(file, timestamp, use_indexes)
            return self._end_of_good(file, start, self._first_batch(file, start, timestamp=timestamp)[1])

    def end_for_offset(self, offset: int, *, use_indexes: bool = True) -> int:
        """Return a position of which no batch with a record below `offset` lies at or after: `size` at most.

        It is where a batch begins, or ends. A header that may be damaged is not believed to be beyond `offset`: its
        checksum has to be good and, since none covers base offsets, the next one's offset has to be higher.
        """
        with self.open() as file:
            row, _ = self._first_batch(file, self._start_for_offset(file, offset, use_indexes), offset=offset)
            if row is None or not has_good_batch(file, row):
                return self.size
            end = int(row["position"] + row["size"])
            following = next(file.walk(end, end + _WALK_WINDOW), None)
            if following is not None and first_offsets(following[:1])[0] <= row["last_offset"]:
                return self.size
            # The base offset of a compressed message set isn't known, and -1: it may begin below.
            return end if row["base_offset"] < offset else int(row["position"])

    def last_batch(self, *, use_indexes: bool = True) -> tuple[np.void | None, Tail]:
        """Return the row of the last whole batch that headers lead to, and what stands after it."""
        with self.open() as file:
            start = 0
            if use_indexes and self.base_offset is not None:
                start = self._start_by_index(file, None)
            row = None
            for rows in file.walk(start):
                row = rows[-1]
            end = start if row is None else int(row["position"] + row["size"])
            return row, file.tail_at(end)

    def transaction_index(self) -> npt.NDArray[np.void]:
        """Read the aborted transactions whose markers this segment holds, from its ``.txnindex``.

        Returns
        -------
        ndarray of ABORTED_DTYPE, shape (transactions,)
            Empty without the file: a broker makes it with the first entry (DSK-R7). Of a ``.log`` copied without it,
            only the markers tell.

        Raises
        ------
        UnsupportedFormatError, LogDirectoryError
            As `kbatch.log.state.read_transaction_index`; a marker below the segment's base offset is an error too.
        """
        path = self.sibling(".txnindex")
        if not self.has(".txnindex"):
            return np.empty(0, ABORTED_DTYPE)
        aborted = read_transaction_index(path, storage=self.storage)
        # Kafka's TransactionIndex.sanityCheck; they ascend, so that the first tells.
        if len(aborted) and self.base_offset is not None and aborted["last_offset"][0] < self.base_offset:
            raise LogDirectoryError(
                f"{path}, byte 0: marker at offset {aborted['last_offset'][0]}, below the segment's first, "
                f"{self.base_offset}; the file belongs to another segment or is damaged",
                source=path,
                position=0,
            )
        return aborted

    def producer_snapshot(self) -> npt.NDArray[np.void] | None:
        """Read the state of producers where this segment begins, from the ``.snapshot`` of its base offset.

        Returns
        -------
        ndarray of PRODUCER_DTYPE or None
            None without the file; a log's first segment has none.

        Raises
        ------
        CrcMismatchError, UnsupportedFormatError, LogDirectoryError
            As `kbatch.log.state.read_producer_snapshot`.
        """
        path = os.path.join(os.path.dirname(self.path), f"{self.base_offset or 0:020d}.snapshot")
        return read_producer_snapshot(path, storage=self.storage) if self._has(path) else None

    # -- seeking

    def _first_batch(
        self, file: SegmentFile, start: int, *, offset: int | None = None, timestamp: int | None = None
    ) -> tuple[np.void | None, npt.NDArray[np.void]]:
        """Walk from `start` to the first batch that reaches `offset` or `timestamp`, and tell some before it too."""
        passed = np.empty(0, BATCH_DTYPE)
        for rows in file.walk(start):
            reached = rows["last_offset"] >= offset if offset is not None else rows["max_timestamp"] >= timestamp
            first = int(np.argmax(reached))
            if reached[first]:
                return rows[first], rows[:first] if first else passed
            passed = rows
        return None, passed

    def _end_of_good(self, file: SegmentFile, start: int, passed: npt.NDArray[np.void]) -> int:
        """Return where the last good batch ends that a walk from `start` has passed over."""
        for row in passed[::-1]:
            if has_good_batch(file, row):
                return int(row["position"] + row["size"])
        return start

    def _start_for_offset(self, file: SegmentFile, offset: int, use_indexes: bool) -> int:
        if not use_indexes or self.base_offset is None:
            return 0
        return self._start_by_index(file, offset)

    def _start_by_index(self, file: SegmentFile, offset: int | None) -> int:
        """Return the position of the index entry to begin at for `offset`, or of the last one, if it can be trusted."""
        index = self._offset_index()
        entry = None if index is None else index.find(file.size, offset)
        return entry.position if entry is not None and self._is_batch(file, entry) else 0

    def _start_for_timestamp(self, file: SegmentFile, timestamp: int, use_indexes: bool) -> int:
        if not use_indexes or self.base_offset is None:
            return 0
        if self._times is None and self.has(".timeindex"):
            self._times = TimeIndex(self.sibling(".timeindex"), base_offset=self.base_offset, storage=self.storage)
        entry = None if self._times is None else self._times.find(file.size, timestamp)
        if entry is None:
            return 0
        offset, largest = entry.offset, entry.timestamp
        row, _ = self._first_batch(file, self._start_for_offset(file, offset, use_indexes), offset=offset)
        if row is None or int(row["base_offset"]) > offset or int(row["max_timestamp"]) != largest:
            return 0
        return int(row["position"])

    def _begins_batch(self, position: int, offset: int) -> bool:
        """Whether the batch at an index entry's position has a good checksum and a base offset that fits the entry."""
        with self.open() as file:
            return self._is_batch(file, OffsetEntry(offset, position))

    def _is_batch(self, file: SegmentFile, entry: OffsetEntry) -> bool:
        rows = next(file.walk(entry.position, entry.position + _WALK_WINDOW), None)
        if rows is None or not (self.base_offset or 0) <= first_offsets(rows[:1])[0] <= entry.offset:
            return False
        return has_good_batch(file, rows[0])

    def _offset_index(self) -> OffsetIndex | None:
        if self._offsets is None and self.base_offset is not None and self.has(".index"):
            self._offsets = OffsetIndex(self.sibling(".index"), base_offset=self.base_offset, storage=self.storage)
        return self._offsets

    def offset_index(self) -> npt.NDArray[np.void]:
        """Read the sound part of the segment's ``.index`` file, as `kbatch.log.indexes.OffsetIndex.read` does.

        Empty without the file, or where the segment's name has no offset.
        """
        index = self._offset_index()
        return np.empty(0, OFFSET_INDEX_DTYPE) if index is None else index.read(self.size)

    def has(self, suffix: str) -> bool:
        """Whether there is a file with this suffix (`sibling`), by the listing that the segment is from."""
        return self._has(self.sibling(suffix))

    def _has(self, path: str) -> bool:
        if not self.storage.remote:
            return os.path.exists(path)
        if self._listing is not None:
            return os.path.basename(path) in self._listing
        return self.storage.find(path) is not None

    def sibling(self, suffix: str) -> str:
        """Return the path of the file with this suffix, such as ``".index"``, that belongs to the segment."""
        swapped = self.path.endswith(".swap") or suffix in self._swapped
        return self.path.removesuffix(".swap").removesuffix(".log") + suffix + (".swap" if swapped else "")


def last_offset(batches: npt.NDArray[np.void]) -> int | None:
    """Return the last offset of batches; a damaged header doesn't count."""
    sound = batches["last_offset"][BatchStatus.sound(batches["status"])]
    return int(sound[-1]) if len(sound) else None


def check_order(before: str, reached: int | None, following: str | None, base_offset: int | None) -> None:
    """Raise if the segment at `before` reaches to the base offset of the following one, or beyond (DSK-R13)."""
    if reached is not None and base_offset is not None and base_offset <= reached:
        raise LogDirectoryError(
            f"{following or f'the segment after {before}'}: begins at offset {base_offset}, but {before} reaches to "
            f"{reached}: the segments overlap; read them one by one",
            source=following or before,
        )


def inode_of(path: str) -> int:
    """Return the inode of a file, or -1 where there is none."""
    try:
        return os.stat(path).st_ino
    except OSError:
        return -1


def _shrunk(path: str) -> LogDirectoryError:
    return LogDirectoryError(f"{path}: became shorter since the log was opened; open the log again", source=path)


def _unreadable(path: str, error: OSError) -> LogDirectoryError:
    return LogDirectoryError(f"{path}: can't be read: {error.strerror}", source=path)
