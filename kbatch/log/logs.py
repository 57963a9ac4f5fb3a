"""A topic-partition's log: its segments as one sequence of records."""

from __future__ import annotations

import contextlib
import operator
import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kbatch.errors import LogDirectoryError, finding_to_error
from kbatch.format import BATCH_DTYPE, Limits
from kbatch.log.committed import follow_transactions
from kbatch.log.names import (
    is_remote_name,
    name_of_log,
    parse_directory_name,
    parse_segment_name,
    parse_topic_id_name,
    segment_names,
)
from kbatch.log.reading import NOT_REACHED, lost_table, read_tables
from kbatch.log.segment import Segment, Tail, check_order, last_offset
from kbatch.log.state import (
    LEADER_EPOCH_DTYPE,
    START_CHECKPOINT,
    read_leader_epochs,
    read_partition_metadata,
    start_offsets,
)
from kbatch.log.storage import Entry, Storage, locate
from kbatch.read.committed import committed
from kbatch.read.decode_options import Crc, DecodeOptions, Isolation, OnError
from kbatch.read.reader import decode_part
from kbatch.table import RecordTable
from kbatch.transactions import Transactions

__all__ = ["Log", "find_logs"]

# A table's size, in bytes, where a segment is read for what follows damage.
_DAMAGED_TABLE_BYTES = 16 << 20
# So many directories of a remote filesystem are listed at a time: each is a round trip.
_LISTED_AT_ONCE = 16


class Log:
    """The log of one topic-partition, as a broker keeps it on disk.

    A log is what its files hold when it is opened: sizes are taken once, and what a broker writes later is not seen. No
    file is open but while something is read. Files of an interrupted compaction (``.swap``, ``.cleaned``, ``.deleted``)
    are taken as a broker would take them when it starts; see `kbatch.log.names.segment_names`.

    Parameters
    ----------
    path : str or path
        A topic-partition directory, or one ``.log`` file; local, or a URL such as ``s3://bucket/logs/topic-0``. The
        directories of tiered storage that are known (DSK-R18, `kbatch.log.names.name_of_log`) are logs too.
    use_indexes : bool
        Whether ``.index`` and ``.timeindex`` files may say where to begin. They are only used where they agree with the
        bytes of the log; see `Segment.seek_offset` and `Segment.seek_timestamp` for what that rules out. Without them
        every seek follows the batch headers from the beginning of a segment.
    storage_options : mapping of str to str, optional
        For a URL; see `kbatch.log.storage.filesystem`.

    Attributes
    ----------
    path : str
    topic : str or None
    partition : int or None
        From the name of the directory (DSK-R9), for a file that of its parent; None where that is no topic-partition.
    mark : str or None
        ``"delete"``, ``"future"`` or ``"stray"`` where the directory is marked so. The topic of the first and last may
        be cut, since a name has 255 characters at most.
    segments : list of Segment
        In order of base offset.

    Raises
    ------
    LogDirectoryError
        If there is no such path, no segment in the directory, the file is no ``.log`` file, or the batches of a
        ``.log.swap`` file can't be followed: what it replaces isn't known then. If the filesystem of a URL can't be
        reached.

    Examples
    --------
    >>> import kbatch
    >>> log = kbatch.Log("tests/golden/logs/codec-none-0")
    >>> log.topic, log.partition, log.start_offset, log.end_offset
    ('codec-none', 0, 0, 3160)
    >>> sum(len(table) for table in log.tables(start_offset=3000))
    160
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        use_indexes: bool = True,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        storage, text = locate(path, storage_options)
        self._init(storage, text, None, None, use_indexes)

    @classmethod
    def _listed(cls, found: _Directory, root: Mapping[str, Entry] | None) -> Log:
        """Make a log of a directory that was listed, under a root that was."""
        log = cls.__new__(cls)
        log._init(found.storage, found.path, found.listing, root, True)
        return log

    def _init(
        self,
        storage: Storage,
        path: str,
        listing: Mapping[str, Entry] | None,
        root: Mapping[str, Entry] | None,
        use_indexes: bool,
    ) -> None:
        self.path = path
        self.use_indexes = use_indexes
        self._storage = storage
        # Local files are looked for when they are asked for.
        self._root = root if storage.remote else None
        self._is_file = False
        absolute = storage.absolute(path)
        if listing is None:
            listing = _open(storage, path)
        if listing is not None:
            self.segments = _segments(storage, path, listing, use_indexes)
            if not self.segments:
                raise LogDirectoryError(
                    f"{self.path}: no segment (20 digits and '.log') in this directory; "
                    "kbatch.find_logs() finds the logs below it",
                    source=self.path,
                )
            directory = absolute
        else:
            if not absolute.endswith(".log"):
                raise LogDirectoryError(f"{self.path}: not a '.log' file", source=self.path)
            name = os.path.basename(absolute)
            self.segments = [Segment(path, live=not is_remote_name(name), storage_options=storage.options)]
            self._is_file = True
            directory = os.path.dirname(absolute)
        self._directory = directory
        self._listing = listing if storage.remote else None
        self.topic: str | None = None
        self.partition: int | None = None
        self.mark: str | None = None
        # A directory of any name may hold segments.
        with contextlib.suppress(LogDirectoryError):
            names = (os.path.basename(segment.path) for segment in self.segments)
            self.topic, self.partition, self.mark = name_of_log(directory, names)
        self._end: tuple[np.void | None, Tail] | None = None

    def __repr__(self) -> str:
        return f"<kbatch Log {self.path!r}, {len(self.segments)} segments, {self.size} bytes>"

    @property
    def size(self) -> int:
        """Bytes of all segments together."""
        return sum(segment.size for segment in self.segments)

    @property
    def tail(self) -> Tail:
        """What stands after the last whole batch of the last segment; only kind "damaged" is an error."""
        return self._last()[1]

    @property
    def start_offset(self) -> int:
        """The base offset of the first batch, or the broker's log start offset if that is higher (`start_checkpoint`).

        Of a log without batches it is that of its first segment's name. Where a compressed message set comes first
        too, since headers don't tell its base offset (LEG-R23).
        """
        return max(self._first_offset(), self.start_checkpoint or 0)

    def _first_offset(self) -> int:
        for segment in self.segments:
            for rows in segment.scan():
                base_offset = int(rows["base_offset"][0])
                return segment.base_offset if base_offset < 0 and segment.base_offset is not None else base_offset
        return self.segments[0].base_offset or 0

    @property
    def start_checkpoint(self) -> int | None:
        """Where the log begins by the broker, if that is within its segments; else None (DSK-R13).

        Segments go as a whole. When records are deleted by offset (DeleteRecords), those before it in the first segment
        stay on disk, and only the ``log-start-offset-checkpoint`` of the log directory says that no consumer sees them.
        It counts for a topic-partition's directory right under a log directory, not for one ``.log`` file, nor for a
        directory marked ``-delete``, ``-future`` or ``-stray``.

        As when a broker starts, a checkpoint file that is missing or malformed says nothing, and so does an offset at
        or below the first segment's. An offset beyond the end of the log is not taken for true either: a broker would
        drop all segments then, but what is read here may be a partial copy, or one of another time than its checkpoint.
        """
        first = self.segments[0].base_offset
        if first is None or self.topic is None or self.partition is None or self.mark is not None:
            return None
        if self._is_file or is_remote_name(os.path.basename(self.segments[0].path)):
            return None
        if self._root is not None and START_CHECKPOINT not in self._root:
            return None
        entry = None if self._root is None else self._root[START_CHECKPOINT]
        offsets = start_offsets(os.path.dirname(self._directory), self._storage, entry)
        offset = offsets.get((self.topic, self.partition), 0)
        return offset if first < offset <= self.end_offset else None

    @property
    def leader_epochs(self) -> npt.NDArray[np.void]:
        """At which offset each leader epoch began, from the ``leader-epoch-checkpoint``; empty without that file.

        Returns
        -------
        ndarray of LEADER_EPOCH_DTYPE, shape (epochs,)

        Raises
        ------
        LogDirectoryError
            As `kbatch.log.state.read_leader_epochs`.
        """
        path = self._beside("leader-epoch-checkpoint")
        return np.empty(0, LEADER_EPOCH_DTYPE) if path is None else read_leader_epochs(path, storage=self._storage)

    @property
    def topic_id(self) -> uuid.UUID | None:
        """The topic's id from ``partition.metadata``; None without that file, as before Kafka 2.8.

        Raises
        ------
        LogDirectoryError
            As `kbatch.log.state.read_partition_metadata`.
        """
        path = self._beside("partition.metadata")
        return None if path is None else read_partition_metadata(path, storage=self._storage).topic_id

    def _beside(self, name: str) -> str | None:
        """Return the path of a file of the directory, if it is there."""
        path = self._storage.join(self._directory, name)
        if self._storage.remote and self._listing is not None:
            return path if name in self._listing else None
        return path if self._storage.find(path) is not None else None

    @property
    def end_offset(self) -> int:
        """The offset after the last whole batch, by its header (OFF-R1); if the last segment is empty, its base."""
        row = self._last()[0]
        if row is None:
            return self.segments[-1].base_offset or 0
        return int(row["last_offset"]) + 1

    def _last(self) -> tuple[np.void | None, Tail]:
        if self._end is None:
            self._end = self.segments[-1].last_batch(use_indexes=self.use_indexes)
        return self._end

    def batches(self) -> npt.NDArray[np.void]:
        """Return the headers of all batches; nothing is decompressed and no checksum computed.

        Returns
        -------
        ndarray of BATCH_DTYPE, shape (batches,)
            All that are on disk, also those before `start_checkpoint`, in order of segments; ``position`` counts from
            the beginning of each segment's file. It takes 88 bytes a batch: where that is too much, `Segment.scan`
            gives the same by the window.

        Raises
        ------
        CorruptBatchError
            Where no batch can begin.
        LogDirectoryError
            If a segment that isn't the last ends with an incomplete batch, or overlaps the next (DSK-R13).
        """
        parts = [np.empty(0, BATCH_DTYPE)]
        reached, before = None, ""
        for segment in self.segments:
            check_order(before, reached, segment.path, segment.base_offset)
            end = 0
            for rows in segment.scan():
                parts.append(rows)
                end = int(rows["position"][-1] + rows["size"][-1])
                if (last := last_offset(rows)) is not None:
                    reached, before = last, segment.path
            with segment.open() as file:
                tail = file.tail_at(end)
            if tail.finding is not None:
                raise finding_to_error(tail.finding, source=segment.path, position=end)
            if tail.kind != "none" and not segment.live:
                raise LogDirectoryError(
                    f"{segment.path}, byte {end}: {tail.size} bytes that are no whole batch; "
                    "only the last segment of a log may end so",
                    source=segment.path,
                    position=end,
                )
        return np.concatenate(parts)

    def tables(
        self,
        *,
        start_offset: int | None = None,
        stop_offset: int | None = None,
        start_timestamp: int | None = None,
        stop_timestamp: int | None = None,
        isolation: Isolation = "read_uncommitted",
        include_control: bool = False,
        crc: Crc = "verify",
        on_error: OnError = "raise",
        limits: Limits | None = None,
        columns: Sequence[str] | None = None,
        threads: int = 1,
        max_bytes: int = 64 << 20,
    ) -> Iterator[RecordTable]:
        """Decode the log, in tables of bounded size.

        Parameters
        ----------
        start_offset, stop_offset : int, optional
            Only records with an offset from `start_offset` up to but without `stop_offset`. Without `start_offset` it
            begins at the log start offset (`start_checkpoint`), as a consumer would; an earlier one, such as 0, reads
            what is still on disk.
        start_timestamp, stop_timestamp : int, optional
            Only records with a timestamp (ms) from `start_timestamp` up to but without `stop_timestamp`. Producers set
            timestamps as they like, so records of any time may follow: `stop_timestamp` chooses rows, and all is read.
            `start_timestamp` also passes over what lies, by index and batch headers, wholly before it.
        isolation : {"read_uncommitted", "read_committed"}
            As for `kbatch.decode`; the markers of the whole log decide, wherever they stand. Before the first table its
            batches are followed once, see `transactions`.
        include_control, crc, on_error, limits, columns, threads
            As for `kbatch.decode`. What is "stop"ped by damage goes on in no later segment.
        max_bytes : int
            What records, batches and data of one table may take, about; one batch is decoded at least. While a log is
            read, memory stays near this, plus what the caller keeps.

        Yields
        ------
        RecordTable
            With `topic`, `partition` and the segment's path as `source`. Tables may have no records: batches without
            any and losses are told all the same. ``position`` in batches and losses is the byte in the segment's file.

        Raises
        ------
        CorruptBatchError, CrcMismatchError, InvalidRecordError, CodecError, UnsupportedFormatError, LimitExceededError
            As `kbatch.decode`, with the file and the byte in it.
        TruncatedBatchError
            If a segment that isn't the last ends within a batch (DSK-R14).
        LogDirectoryError
            If a segment begins before the end of the one before (DSK-R13). Gaps are legal.

        Notes
        -----
        What precedes `start_timestamp` is told by ``maxTimestamp`` of the headers, which brokers compute when they
        append; it can be too large later, and then only costs time (TS-R4). See `Segment.seek_timestamp`.
        """
        if max_bytes <= 0:
            raise ValueError(f"max_bytes must be positive, got {max_bytes}")
        if start_offset is None:
            start_offset = self.start_checkpoint
        options = DecodeOptions(
            isolation=isolation,
            include_control=include_control,
            crc=crc,
            on_error=on_error,
            start_offset=start_offset,
            stop_offset=stop_offset,
            limits=limits if limits is not None else Limits(),
            columns=columns,
            threads=threads,
        )
        if columns is None or (start_timestamp is None and stop_timestamp is None):
            return self._tables(options, start_timestamp, stop_timestamp, max_bytes)
        # What chooses the rows is decoded, though nobody wants to have it.
        chosen = replace(options, columns=[*options.record_columns, "timestamp"])
        tables = self._tables(chosen, start_timestamp, stop_timestamp, max_bytes)
        # Unlike a generator, `map` keeps no table while it waits for the next.
        return map(operator.methodcaller("select", options.record_columns), tables)

    def transactions(
        self, *, crc: Crc = "verify", on_error: OnError = "raise", limits: Limits | None = None
    ) -> Transactions:
        """Say which transactions of the log are aborted and which are open, from its control markers.

        Parameters
        ----------
        crc, on_error, limits
            As for `tables`: batches that are damaged decide nothing.

        Returns
        -------
        Transactions
            What is aborted, as the log's ``.txnindex`` files list it; what is open; and the last stable offset, from
            which on a consumer under read_committed gets nothing (LSO-R1, LSO-R2).

        Examples
        --------
        >>> import kbatch
        >>> transactions = kbatch.Log("tests/golden/logs/txn-0").transactions()
        >>> len(transactions.aborted), transactions.last_stable_offset
        (13, 362)
        """
        options = DecodeOptions(crc=crc, on_error=on_error, limits=limits if limits is not None else Limits())
        return follow_transactions(self.segments, options)

    def _tables(
        self, options: DecodeOptions, start_timestamp: int | None, stop_timestamp: int | None, max_bytes: int
    ) -> Iterator[RecordTable]:
        reached, before = None, ""
        stopped = False
        about: dict[str, Any] = {"topic": self.topic, "partition": self.partition}
        if options.isolation == "read_committed":
            transactions = follow_transactions(
                self.segments, options, start_offset=options.start_offset, stop_offset=options.stop_offset
            )
            options = committed(options, transactions)
            about |= {"pending": transactions.pending, "last_stable_offset": transactions.last_stable_offset}
        for segment in self._segments_for(options.start_offset, options.stop_offset):
            if stopped and not segment.size:
                continue
            if stopped:
                table = lost_table(segment, 0, segment.size, NOT_REACHED, options=options)
                yield table._with(**about)
                continue
            check_order(before, reached, segment.path, segment.base_offset)
            start, end = 0, segment.size
            if options.start_offset is not None and _begins_before(segment, options.start_offset):
                start = segment.seek_offset(options.start_offset, use_indexes=self.use_indexes)
            if start_timestamp is not None:
                start = max(start, segment.seek_timestamp(start_timestamp, use_indexes=self.use_indexes))
            if options.stop_offset is not None and segment is self._segment_of(options.stop_offset):
                end = segment.end_for_offset(options.stop_offset, use_indexes=self.use_indexes)
            tables = read_tables(segment, start, end, options, max_bytes)
            while True:
                try:
                    table = next(tables)
                except StopIteration as done:
                    stopped = done.value
                    break
                if (last := last_offset(table.batches)) is not None:
                    reached, before = last, segment.path
                yield _within(table._with(**about), start_timestamp, stop_timestamp)
                # Not kept until the next one is made.
                del table

    def offset_for_timestamp(
        self,
        timestamp: int,
        *,
        start_offset: int | None = None,
        crc: Crc = "verify",
        on_error: OnError = "raise",
    ) -> int | None:
        """Return the offset of the first record with `timestamp` (ms) or a later one, None if there is none.

        As Kafka's ``offsetsForTimes`` does: batches are passed over by ``maxTimestamp``, also those of markers count,
        and the record is not the one closest in time but the first in the log.

        Parameters
        ----------
        timestamp : int
        start_offset : int, optional
            Look only from here on. Default is the log start offset (`start_checkpoint`).
        crc, on_error
            As for `tables`. With ``"stop"`` and ``"skip"`` the record is the first that a read with ``"skip"`` gives.

        Raises
        ------
        KbatchError
            If a batch that has to be decoded can't be, or headers can't be followed to the end of a segment in which
            the record may be.

        Notes
        -----
        Timestamps may descend, so every segment before the answer has to be passed over by itself. What is trusted for
        that is ``maxTimestamp`` of headers, never the ``.timeindex`` alone: its last fitting entry has to name a batch
        that is there with that very maximum, and the headers after that batch are followed to the segment's end (see
        `Segment.seek_timestamp`). Of a rolled segment in the order of time these are the last few kilobytes.
        """
        first = self.start_checkpoint if start_offset is None else start_offset
        options = DecodeOptions(
            include_control=True,
            start_offset=first,
            crc=crc,
            on_error="raise" if on_error == "raise" else "skip",
        )
        for segment in self._segments_for(first, None):
            start = segment.seek_timestamp(timestamp, use_indexes=self.use_indexes)
            if first is not None and _begins_before(segment, first):
                start = max(start, segment.seek_offset(first, use_indexes=self.use_indexes))
            if start >= segment.size:
                continue
            with segment.open() as file:
                end = start
                for rows in file.walk(start):
                    end = int(rows["position"][-1] + rows["size"][-1])
                    for row in rows[rows["max_timestamp"] >= timestamp]:
                        position, size = int(row["position"]), int(row["size"])
                        table = decode_part(
                            file.window(position, position + size), options, origin=position, source=segment.path
                        )
                        found = _first_late(table, timestamp)
                        if found is not None:
                            return found
                tail = file.tail_at(end)
            if tail.kind == "damaged" or (tail.kind != "none" and not segment.live):
                # What follows the damage is only found by reading on, with the error or the losses that a read has.
                for table in read_tables(segment, end, segment.size, options, _DAMAGED_TABLE_BYTES):
                    found = _first_late(table, timestamp)
                    if found is not None:
                        return found
        return None

    def _segment_of(self, offset: int) -> Segment:
        """Return the last segment that begins at or before `offset`, else the first."""
        chosen = self.segments[0]
        for segment in self.segments[1:]:
            if segment.base_offset is not None and segment.base_offset <= offset:
                chosen = segment
        return chosen

    def _segments_for(self, start_offset: int | None, stop_offset: int | None) -> list[Segment]:
        first = 0 if start_offset is None else self.segments.index(self._segment_of(start_offset))
        return [
            segment
            for segment in self.segments[first:]
            if stop_offset is None or segment.base_offset is None or segment.base_offset < stop_offset
        ]


def find_logs(
    root: str | os.PathLike[str],
    *,
    marked: bool = False,
    wanted: Callable[[str, int], bool] | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> list[Log]:
    """Find the logs of every topic-partition under a broker's log directory.

    Parameters
    ----------
    root : str or path
        A broker's log directory (``log.dirs``), or a topic-partition directory itself; local, or a URL such as
        ``s3://bucket/logs``. Also the root of tiered storage, in the layouts that are known (DSK-R18): that of Kafka's
        ``LocalTieredStorage``, and that of Aiven's plugin.
    marked : bool
        Whether to give the directories too that are marked ``-delete``, ``-future`` or ``-stray`` (DSK-R9): what is
        about to be deleted, copied from another log directory, or not the broker's by the cluster's metadata. Their
        records may be there twice.
    wanted : callable, optional
        Asked with the topic and the partition of each directory's name; where it says no, the directory is not looked
        into.
    storage_options : mapping of str to str, optional
        For a URL; see `kbatch.log.storage.filesystem`.

    Returns
    -------
    list of Log
        By topic, partition and `mark`. Directories of such a name without a segment are left out.

    Raises
    ------
    LogDirectoryError
        If `root` is missing or no directory, or if there is no log in it. That none is `wanted` is no error.

    Examples
    --------
    >>> import kbatch
    >>> [log.topic for log in kbatch.find_logs("tests/golden/logs") if log.topic.startswith("codec-l")]
    ['codec-lz4']
    """
    storage, path = locate(root, storage_options)
    listing = _open(storage, path, "directory")
    if listing is None:
        raise LogDirectoryError(f"{path}: not a directory", source=path)
    here = _Directory(storage, path, listing)
    if _is_named_log(here, marked):
        return [Log._listed(here, None)]
    by_name = [name for name, entry in listing.items() if entry.is_directory and _is_log(name, marked)]
    chosen = [name for name in by_name if wanted is None or wanted(*parse_directory_name(name)[:2])]
    # In tiered storage what is in a directory tells its topic-partition.
    tiered = [name for name, entry in listing.items() if entry.is_directory and parse_topic_id_name(name) is not None]
    found = _list_all(here, [*chosen, *(name for name in tiered if name not in by_name)])
    logs = [Log._listed(each, listing) for each in found if _is_named_log(each, marked)]
    # Aiven's plugin has a directory for the topic, and in it one for each partition.
    topics = [each for each in found if not each.has_segments and parse_topic_id_name(os.path.basename(each.path))]
    for directory in [here, *topics]:
        topic = parse_topic_id_name(os.path.basename(storage.absolute(directory.path)))
        if topic is None:
            continue
        numbers = [name for name, entry in directory.listing.items() if entry.is_directory and name.isdecimal()]
        numbers = [name for name in numbers if wanted is None or wanted(topic, int(name))]
        logs += [Log._listed(each, None) for each in _list_all(directory, numbers) if _is_named_log(each, marked)]
    there = len(logs) + len(by_name) - len(chosen) + len(topics)
    if wanted is not None:
        logs = [log for log in logs if wanted(log.topic or "", log.partition or 0)]
    if not logs and (wanted is None or not there):
        raise LogDirectoryError(
            f"{path}: no topic-partition directory ('topic-0', with segments) in this directory", source=path
        )
    return sorted(logs, key=lambda log: (log.topic or "", log.partition or 0, log.mark or ""))


class _Directory(NamedTuple):
    """A directory that was listed."""

    storage: Storage
    path: str
    listing: Mapping[str, Entry]

    @property
    def has_segments(self) -> bool:
        # Which ones a .swap covers doesn't matter: it is a segment itself.
        if any(parse_segment_name(name) is not None for name in self.listing):
            return True
        return bool(segment_names(self.listing, lambda _, base_offset: base_offset))


def _open(storage: Storage, path: str, wanted: str = "file or directory") -> dict[str, Entry] | None:
    """List a directory; None if the path is a file."""
    if storage.remote and path.endswith(".log"):
        entry = storage.find(path)
        if entry is not None and not entry.is_directory:
            return None
    try:
        return storage.list(path)
    except OSError as error:
        entry = storage.find(path)
        if entry is None:
            raise LogDirectoryError(f"{path}: no such {wanted}", source=path) from None
        if entry.is_directory:
            raise _not_listed(path, error) from error
        return None


def _list(storage: Storage, directory: str) -> dict[str, Entry]:
    try:
        return storage.list(directory)
    except OSError as error:
        raise _not_listed(directory, error) from error


def _not_listed(directory: str, error: OSError) -> LogDirectoryError:
    return LogDirectoryError(f"{directory}: can't be listed: {error.strerror}", source=directory)


def _list_all(parent: _Directory, names: list[str]) -> list[_Directory]:
    """List directories, each once; remote ones several at a time."""
    storage = parent.storage

    def one(name: str) -> _Directory:
        path = storage.join(parent.path, name)
        return _Directory(storage, path, _list(storage, path))

    if not storage.remote or len(names) < 2:
        return [one(name) for name in names]
    with ThreadPoolExecutor(_LISTED_AT_ONCE, "kbatch-list") as pool:
        return list(pool.map(one, names))


def _is_named_log(directory: _Directory, marked: bool) -> bool:
    """Whether there are segments in a directory, and the names tell the topic-partition."""
    if not directory.has_segments:
        return False
    names = (name for name in directory.listing if parse_segment_name(name) is not None)
    try:
        mark = name_of_log(directory.storage.absolute(directory.path), names).mark
    except LogDirectoryError:
        return False
    return marked or mark is None


def _is_log(name: str, marked: bool) -> bool:
    try:
        mark = parse_directory_name(name).mark
    except LogDirectoryError:
        return False
    return marked or mark is None


def _segments(storage: Storage, directory: str, listing: Mapping[str, Entry], use_indexes: bool) -> list[Segment]:
    def next_offset(name: str, base_offset: int) -> int:
        segment = Segment.listed(storage, directory, name, listing, live=False)
        row, tail = segment.last_batch(use_indexes=use_indexes)
        if tail.kind == "damaged":
            raise LogDirectoryError(
                f"{segment.path}, byte {tail.position}: no batch can begin here, so that it isn't known which segments "
                "the file would replace; read the '.log' files one by one",
                source=segment.path,
                position=tail.position,
            )
        return base_offset if row is None else int(row["last_offset"]) + 1

    chosen = segment_names(listing, next_offset)
    last = len(chosen) - 1
    return [
        # What is in tiered storage was closed before.
        Segment.listed(storage, directory, name, listing, live=i == last and not is_remote_name(name), swapped=swapped)
        for i, (_, name, swapped) in enumerate(chosen)
    ]


def _begins_before(segment: Segment, offset: int) -> bool:
    return segment.base_offset is None or segment.base_offset < offset


def _first_late(table: RecordTable, timestamp: int) -> int | None:
    """Return the offset of the first record with `timestamp` or a later one."""
    late = np.flatnonzero(table.records["timestamp"] >= timestamp)
    return int(table.records["offset"][late[0]]) if len(late) else None


def _within(table: RecordTable, start: int | None, stop: int | None) -> RecordTable:
    """Choose the records of a table by timestamp."""
    if start is None and stop is None:
        return table
    timestamps = table.records["timestamp"]
    wanted = np.ones(len(timestamps), np.bool_)
    if start is not None:
        wanted &= timestamps >= start
    if stop is not None:
        wanted &= timestamps < stop
    return table if wanted.all() else table[wanted]
