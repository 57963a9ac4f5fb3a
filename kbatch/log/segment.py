"""The segments of a log with their index files: batch headers, the position of an offset or time, the last batch."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from kbatch.arguments import check_types
from kbatch.batches.checksums import has_good_batch
from kbatch.batches.framing import first_offsets
from kbatch.errors import LogDirectoryError
from kbatch.escaping import counted
from kbatch.format import ABORTED_DTYPE, BATCH_DTYPE, BatchStatus
from kbatch.log.files.indexes import OFFSET_INDEX_DTYPE, OffsetEntry, OffsetIndex, TimeIndex
from kbatch.log.files.producer_snapshot import read_producer_snapshot
from kbatch.log.files.segment_manifest import SegmentManifest, read_segment_manifest
from kbatch.log.files.transaction_index import read_transaction_index
from kbatch.log.store.listing import ListedDirectory, no_segments
from kbatch.log.store.names import is_remote_name, parse_segment_name, segment_names
from kbatch.log.store.segment_file import WALK_WINDOW, SegmentFile, Tail, unreadable
from kbatch.log.store.storage import Entry, Storage, locate
from kbatch.public_names import public_in
from kbatch.quantities import TimeLike, parse_time
from kbatch.records.display import html_of

__all__ = [
    "Segment",
    "check_order",
    "has_batch",
    "inode_of",
    "last_offset",
    "listed_segments",
    "planned_segment",
]

# Manifests of remote segments that are read at the same time.
_MANIFESTS_AT_ONCE = 16


@public_in("kbatch")
class Segment:
    """One ``.log`` file of a topic-partition, or the ``.log.swap`` that replaces one (DSK-R8).

    Parameters
    ----------
    path : str or path
    live : bool
        Whether a broker may be writing the file, so that it may end with an incomplete batch or zeros (DSK-R14). True
        for the last segment of a log.
    swapped : collection of str
        Suffixes of the segment's other files, such as ``".txnindex"``, whose ``.swap`` is read instead.
    storage_options : mapping of str to str, optional
        For a URL, as for `kbatch.find_logs`.
    size : int, optional
        Size of the file in bytes. By default it is read from the storage.

    Attributes
    ----------
    path : str
        Path or URL.
    base_offset : int or None
        From the file's name (DSK-R1); no batch of the segment begins before it. None if the name has no offset.
    size : int
        Bytes of the file when the object was created. Batches appended later are not seen. Of a segment that was
        compressed for tiered storage, the bytes before that.
    live : bool

    References
    ----------
    Rules such as DSK-R8 are listed in ``docs/format-rules.md``.

    Examples
    --------
    >>> import kbatch
    >>> segment = kbatch.Log("tests/golden/logs/codec-none-0").segments[1]
    >>> segment.base_offset, segment.seek_offset(2281)
    (1825, 15707)
    """

    __slots__ = (
        "_listing",
        "_manifest",
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
        check_types(Segment.__init__, locals())
        storage, text = locate(path, storage_options)
        self._init(storage, text, live, swapped, size, None)
        _read_manifests(storage, [self])

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
        # Other files of a local segment are looked up when they are needed.
        self._listing = listing if storage.remote else None
        # Remote index files are read once: the segment keeps the contents that they had at the first read.
        self._offsets: OffsetIndex | None = None
        self._times: TimeIndex | None = None
        # Only segments in tiered storage have one; () if it was not looked up yet.
        self._manifest: SegmentManifest | tuple[()] | None = () if is_remote_name(os.path.basename(path)) else None
        self.live = live
        if size is None:
            try:
                size = storage.size(path)
            except OSError as error:
                raise unreadable(path, error) from error
        self.size: int = size

    def __repr__(self) -> str:
        return f"<kbatch Segment {self.path!r}, {counted(self.size, 'byte')}>"

    def _repr_html_(self) -> str:
        """Return path, offset and size for a notebook; reads no file."""
        facts = [("", counted(self.size, "byte")), ("path", self.path)]
        if self.base_offset is not None:
            facts.append(("offset of the first batch, at least", f"{self.base_offset:,}"))
        if self.live:
            facts.append(("end", "may be incomplete: a broker may be writing the file"))
        return html_of("Segment", facts)

    def open(self) -> SegmentFile:
        """Open the file, to be used in a ``with`` block."""
        manifest = self.manifest
        if manifest is None:
            return SegmentFile(self.path, self.size, self.live, self.storage)
        manifest.check_readable(self.path)
        return SegmentFile(self.path, self.size, self.live, self.storage, manifest.layout)

    @property
    def manifest(self) -> SegmentManifest | None:
        """The ``.rsm-manifest`` of a segment in tiered storage; None without that file.

        Raises
        ------
        LogDirectoryError
            If it can't be read or is malformed.
        """
        if isinstance(self._manifest, tuple):
            found = None
            path = self.sibling(".rsm-manifest")
            if self._has(path):
                with contextlib.suppress(FileNotFoundError):
                    found = read_segment_manifest(path, self.storage)
            if found is not None and found.layout is not None and not found.is_encrypted:
                self.size = found.layout.size
            self._manifest = found
        return self._manifest

    def window(self, start: int, stop: int) -> npt.NDArray[np.uint8]:
        """Return the bytes of the file from `start` up to `stop`, or up to its end.

        Returns
        -------
        ndarray of uint8, read-only
            A copy, so that no other process can change or truncate it (DSK-R19).

        References
        ----------
        Rules such as DSK-R19 are listed in ``docs/format-rules.md``.
        """
        check_types(Segment.window, locals())
        if start < 0:
            raise ValueError(f"start must not be negative, got {start}")
        with self.open() as file:
            return file.window(start, min(stop, file.size))

    def scan(self, start: int = 0) -> Iterator[npt.NDArray[np.void]]:
        """Follow the batch headers from byte `start` on, without decompression and without checksum verification.

        Yields
        ------
        ndarray of BATCH_DTYPE, shape (batches,)
            The batches of a few megabytes, however large the file. ``position`` is the byte in the file. Fields that
            the headers of compressed message sets do not contain are as in `kbatch.scan`. The scan ends where
            no complete batch follows.
        """
        check_types(Segment.scan, locals())
        if start < 0:
            raise ValueError(f"start must not be negative, got {start}")
        with self.open() as file:
            yield from file.walk(start)

    def seek_offset(self, offset: int, *, use_indexes: bool = True) -> int:
        """Return the position of the first batch whose last offset is `offset` or later.

        Without such a batch, the result is the position after the last complete batch. If damage may have hidden the
        batch, the result is the position of the damage. Offsets must ascend, as in every log that a broker writes.

        Notes
        -----
        A damaged header may have wrong offsets and a wrong length. So the checksum of the last skipped batch is
        verified: if it is valid, its length is right, and since offsets ascend, no earlier batch reaches `offset`.

        The entry of the ``.index`` file is used if the batch at its position has a valid checksum and a base offset not
        above the entry's. Otherwise the headers are followed from the beginning. An index forged to point at a batch
        inside a record's value passes this check; ``use_indexes=False`` rules that out.
        """
        check_types(Segment.seek_offset, locals())
        with self.open() as file:
            start = self._start_for_offset(file, offset, use_indexes)
            return self._end_of_good(file, start, self._first_batch(file, start, offset=offset)[1])

    def seek_timestamp(self, timestamp: TimeLike, *, use_indexes: bool = True) -> int:
        """Return the position of the first batch whose ``max_timestamp`` is `timestamp` or later.

        Without such a batch, the result is the position after the last complete batch. If damage may have hidden the
        batch, the result is the position of the damage, as for `seek_offset`.

        Parameters
        ----------
        timestamp : datetime, datetime64, timedelta, str or int
            As for `Log.tables`.
        use_indexes : bool
            Whether the ``.timeindex`` may be used.

        Notes
        -----
        Brokers compute ``max_timestamp`` when they append; after compaction it may be too large, but never too small
        (TS-R4). Only a file that no broker has validated can hold records later than ``max_timestamp``.

        The ``.timeindex`` is used only if the batch with its entry's offset has the entry's timestamp as its maximum.
        An index with valid entries that lacks an earlier batch with a later timestamp passes this check; with
        ``use_indexes=False`` all headers are followed.

        References
        ----------
        Rules such as TS-R4 are listed in ``docs/format-rules.md``.
        """
        check_types(Segment.seek_timestamp, locals())
        return self._seek_time(parse_time(timestamp, "timestamp"), use_indexes=use_indexes)

    def _seek_time(self, timestamp: int, *, use_indexes: bool = True) -> int:
        with self.open() as file:
            start = self._start_for_timestamp(file, timestamp, use_indexes)
            return self._end_of_good(file, start, self._first_batch(file, start, timestamp=timestamp)[1])

    def end_for_offset(self, offset: int, *, use_indexes: bool = True) -> int:
        """Return the position where the batches with records below `offset` end: a batch boundary, or `size`.

        A batch counts as beyond `offset` only if its checksum is valid and, since the checksum does not cover the base
        offset, the next batch has a higher offset.
        """
        check_types(Segment.end_for_offset, locals())
        with self.open() as file:
            row, _ = self._first_batch(file, self._start_for_offset(file, offset, use_indexes), offset=offset)
            if row is None or not has_good_batch(file, row):
                return self.size
            end = int(row["position"] + row["size"])
            following = next(file.walk(end, end + WALK_WINDOW), None)
            if following is not None and first_offsets(following[:1])[0] <= row["last_offset"]:
                return self.size
            # The base offset of a compressed message set is unknown (-1), so the set may begin below `offset`.
            return end if row["base_offset"] < offset else int(row["position"])

    def last_batch(self, *, use_indexes: bool = True) -> tuple[np.void | None, Tail]:
        """Return the row of the last complete batch that the header chain leads to, and the bytes after it."""
        check_types(Segment.last_batch, locals())
        with self.open() as file:
            start = self._start_for_offset(file, None, use_indexes)
            row = None
            for rows in file.walk(start):
                # A row that is a view would hold the memory of all of them.
                row = rows[-1].copy()
            end = start if row is None else int(row["position"] + row["size"])
            return row, file.tail_at(end)

    def transaction_index(self) -> npt.NDArray[np.void]:
        """Read the aborted transactions whose markers are in this segment, from its ``.txnindex``.

        Returns
        -------
        ndarray of ABORTED_DTYPE, shape (transactions,)
            Empty without the file, which a broker creates with the first entry (DSK-R7). For a ``.log`` copied without
            it, only the markers show aborted transactions.

        Raises
        ------
        UnsupportedFormatError, LogDirectoryError
            As for `kbatch.log.read_transaction_index`, and if a marker is below the segment's base offset.

        References
        ----------
        Rules such as DSK-R7 are listed in ``docs/format-rules.md``.
        """
        path = self.sibling(".txnindex")
        if not self.has(".txnindex"):
            return np.empty(0, ABORTED_DTYPE)
        aborted = read_transaction_index(path, storage=self.storage)
        # Kafka's TransactionIndex.sanityCheck. The offsets ascend, so the first one suffices.
        if len(aborted) and self.base_offset is not None and aborted["last_offset"][0] < self.base_offset:
            raise LogDirectoryError(
                f"{path}, byte 0: marker at offset {aborted['last_offset'][0]}, below the segment's base offset "
                f"{self.base_offset}; the file belongs to another segment or is damaged",
                source=path,
                position=0,
            )
        return aborted

    def producer_snapshot(self) -> npt.NDArray[np.void] | None:
        """Read the producer state at the beginning of this segment, from the ``.snapshot`` of its base offset.

        Returns
        -------
        ndarray of PRODUCER_DTYPE or None
            None without the file, as for the first segment of a log.

        Raises
        ------
        CrcMismatchError, UnsupportedFormatError, LogDirectoryError
            As for `kbatch.log.read_producer_snapshot`.
        """
        path = os.path.join(os.path.dirname(self.path), f"{self.base_offset or 0:020d}.snapshot")
        return read_producer_snapshot(path, storage=self.storage) if self._has(path) else None

    # -- seeking

    def _first_batch(
        self, file: SegmentFile, start: int, *, offset: int | None = None, timestamp: int | None = None
    ) -> tuple[np.void | None, npt.NDArray[np.void]]:
        """Return the first batch from `start` on that reaches `offset` or `timestamp`, and batches skipped before."""
        passed = np.empty(0, BATCH_DTYPE)
        for rows in file.walk(start):
            reached = rows["last_offset"] >= offset if offset is not None else rows["max_timestamp"] >= timestamp
            first = int(np.argmax(reached))
            if reached[first]:
                return rows[first], rows[:first] if first else passed
            passed = rows
        return None, passed

    def _end_of_good(self, file: SegmentFile, start: int, passed: npt.NDArray[np.void]) -> int:
        """Return the end of the last good batch among the skipped ones, or `start`."""
        for row in passed[::-1]:
            if has_good_batch(file, row):
                return int(row["position"] + row["size"])
        return start

    def _start_for_offset(self, file: SegmentFile, offset: int | None, use_indexes: bool) -> int:
        """Return the position of the index entry for `offset`, or of the last entry; 0 if the entry fails the check."""
        index = self._offset_index() if use_indexes else None
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
        """Whether the batch at an index entry's position has a valid checksum and a base offset that fits the entry."""
        return self._begin_batches([OffsetEntry(offset, position)])

    def _begin_batches(self, entries: Iterable[OffsetEntry]) -> bool:
        """Whether that holds for each of some entries."""
        with self.open() as file:
            return all(self._is_batch(file, entry) for entry in entries)

    def _is_batch(self, file: SegmentFile, entry: OffsetEntry) -> bool:
        rows = next(file.walk(entry.position, entry.position + WALK_WINDOW), None)
        if rows is None or not (self.base_offset or 0) <= first_offsets(rows[:1])[0] <= entry.offset:
            return False
        return has_good_batch(file, rows[0])

    def _offset_index(self) -> OffsetIndex | None:
        if self._offsets is None and self.base_offset is not None and self.has(".index"):
            self._offsets = OffsetIndex(self.sibling(".index"), base_offset=self.base_offset, storage=self.storage)
        return self._offsets

    def offset_index(self) -> npt.NDArray[np.void]:
        """Read the sound part of the segment's ``.index`` file: up to the first entry that cannot be right.

        The array is empty without the file, or if the segment's name has no offset.
        """
        index = self._offset_index()
        return np.empty(0, OFFSET_INDEX_DTYPE) if index is None else index.read(self.size)

    def has(self, suffix: str) -> bool:
        """Whether a file with this suffix exists (`sibling`), by the listing if the segment was made from one."""
        return self._has(self.sibling(suffix))

    def _has(self, path: str) -> bool:
        if self._listing is not None:
            return os.path.basename(path) in self._listing
        return self.storage.find(path) is not None

    def sibling(self, suffix: str) -> str:
        """Return the path of the file with this suffix, such as ``".index"``, that belongs to the segment."""
        check_types(Segment.sibling, locals())
        swapped = self.path.endswith(".swap") or suffix in self._swapped
        return self.path.removesuffix(".swap").removesuffix(".log") + suffix + (".swap" if swapped else "")


def planned_segment(
    path: str,
    *,
    is_named: bool = False,
    live: bool = True,
    storage_options: Mapping[str, str] | None = None,
    size: int | None = None,
) -> Segment:
    """Make a segment of a log that was opened before; it may be a symbolic link only if the caller named the file."""
    storage, _ = locate(path if is_named else os.path.dirname(path), storage_options)
    segment = Segment.__new__(Segment)
    segment._init(storage, path, live, (), size, None)
    return segment


def last_offset(batches: npt.NDArray[np.void]) -> int | None:
    """Return the last offset of batches, ignoring damaged headers."""
    sound = batches["last_offset"][BatchStatus.sound(batches["status"])]
    return int(sound[-1]) if len(sound) else None


def check_order(before: str, reached: int | None, following: str | None, base_offset: int | None) -> None:
    """Raise if the segment at `before` reaches the base offset of the following one (DSK-R13)."""
    if reached is not None and base_offset is not None and base_offset <= reached:
        raise LogDirectoryError(
            f"{following or f'the segment after {before}'}: begins at offset {base_offset}, but {before} extends to "
            f"{reached}: the segments overlap; read them one by one",
            source=following or before,
        )


def has_batch(segment: Segment, position: int, end: int, crc: int, next_offset: int | None) -> bool:
    """Whether the batch at a position still has this end, checksum and offset after its last one."""
    rows = next(segment.scan(position), None) if segment.size >= end else None
    return rows is not None and (int(rows["crc"][0]), int(rows["last_offset"][0]) + 1) == (crc, next_offset)


def inode_of(path: str) -> int:
    """Return the inode of a file, or -1 if it does not exist."""
    try:
        return os.stat(path).st_ino
    except OSError:
        return -1


def listed_segments(storage: Storage, directory: str, listing: Mapping[str, Entry], use_indexes: bool) -> list[Segment]:
    """Return the segments among the files of a directory, by base offset; at least one.

    Raises
    ------
    LogDirectoryError
        If there are no segments, or the batches of a ``.log.swap`` file can't be followed.
    """

    def next_offset(name: str, base_offset: int) -> int:
        segment = Segment.listed(storage, directory, name, listing, live=False)
        row, tail = segment.last_batch(use_indexes=use_indexes)
        if tail.kind == "damaged":
            raise LogDirectoryError(
                f"{segment.path}, byte {tail.position}: no batch can begin here, so the segments that this file "
                "replaces are unknown; read the '.log' files one by one",
                source=segment.path,
                position=tail.position,
            )
        return base_offset if row is None else int(row["last_offset"]) + 1

    chosen = segment_names(listing, next_offset)
    if not chosen:
        text = "no segment (20 digits and '.log') in this directory"
        if any(entry.is_directory for entry in listing.values()):
            text += "; kbatch.find_logs() finds the logs below it"
        elif (error := no_segments(ListedDirectory(storage, directory, listing), True)) is not None:
            raise error
        raise LogDirectoryError(f"{directory}: {text}", source=directory)
    last = len(chosen) - 1
    segments = [
        # Segments in tiered storage were closed before their upload.
        Segment.listed(storage, directory, name, listing, live=i == last and not is_remote_name(name), swapped=swapped)
        for i, (_, name, swapped) in enumerate(chosen)
    ]
    _read_manifests(storage, [each for each in segments if each._manifest == () and each.has(".rsm-manifest")])
    return segments


def _read_manifests(storage: Storage, segments: Sequence[Segment]) -> None:
    """Read the manifests of segments, which have their sizes. An error is raised when the segment is opened."""

    def read(segment: Segment) -> None:
        with contextlib.suppress(LogDirectoryError):
            _ = segment.manifest

    if not storage.remote:
        for segment in segments:
            read(segment)
    elif segments:
        with ThreadPoolExecutor(_MANIFESTS_AT_ONCE, "kbatch-list") as pool:
            list(pool.map(read, segments))
