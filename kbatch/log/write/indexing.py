"""`index_logs`: the key index of logs, one file for each closed segment."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from kbatch.arguments import check_types, suggests_names
from kbatch.batches.framing import first_offsets
from kbatch.errors import KbatchError, LogDirectoryError, cannot_write
from kbatch.escaping import counted
from kbatch.extras import require
from kbatch.format import INT64_MAX
from kbatch.log.files.key_index import (
    BLOCK_DTYPE,
    KeyIndexFile,
    KeyIndexHeader,
    base_offset_of_index,
    key_hashes,
    write_key_index,
)
from kbatch.log.key_lookup import index_directory, is_of_segment, key_index_name
from kbatch.log.logs import Log
from kbatch.log.read_arguments import SCAN_HINTS
from kbatch.log.reading import read_tables
from kbatch.log.segment import Segment, last_offset
from kbatch.log.selection import Selection
from kbatch.log.source import SourceLike, source_of
from kbatch.log.store.storage import identity, is_url
from kbatch.log.topics import TopicChoice, TopicFilter, partition_numbers
from kbatch.public_names import public_in
from kbatch.publishing import WorkDirectory, remove_abandoned, remove_empty, rename_all
from kbatch.read.decode_options import DecodeOptions
from kbatch.table import RecordTable
from kbatch.tuning import KEY_TABLE_BYTES
from kbatch.unfinished import forget_unfinished, register_unfinished, unbroken

__all__ = ["IndexedLog", "index_logs"]

# A batch belongs to the block in which it begins. A read decodes whole blocks, and each has a row for each of its keys.
BLOCK_BYTES = 1 << 20
# The most pairs of a key and a block in a segment. Two copies of 8 bytes each are held when they are joined.
_MAX_PAIRS = 1 << 25
_WORK_NAME = re.compile(r"work-[0-9a-f]{8}\.tmp")
_INT64_MIN = -INT64_MAX - 1
_SLOT_BITS, _SLOT = np.uint64(32), np.uint64(0xFFFFFFFF)
# The pairs whose slots are replaced at once.
_NUMBERED = 1 << 16
_INDEXED_COLUMNS = ("offset", "timestamp", "key")

# Called with the bytes of segments that were read since the last call.
ReadBytes = Callable[[int], None]


@public_in("kbatch")
@dataclass(slots=True)
class IndexedLog:
    """The key index of one log after `index_logs`.

    Attributes
    ----------
    log : Log
    path : str
        The directory of its files.
    segments : int
        The closed segments of the log.
    written, unchanged, removed : int
        The files that were written, those that fit their segments already, and those of other segments that were
        removed.
    bytes, segment_bytes : int
        Of all files, and of the segments that have one.
    keys : int
        The number of pairs of a key and a block of batches that has it, in all files.
    refused : list of (str, str)
        The segments without a file, and why: they are damaged, or have too many keys. They are read as without an
        index.

    Examples
    --------
    >>> import tempfile
    >>> import kbatch
    >>> with tempfile.TemporaryDirectory() as index:
    ...     for each in kbatch.index_logs("tests/golden/logs", index, topics="codec-*")[:2]:
    ...         print(each.log.topic, each.segments, each.written, each.keys, each.refused)
    codec-gzip 1 1 20 []
    codec-lz4 1 1 20 []
    """

    log: Log
    path: str
    segments: int = 0
    written: int = 0
    unchanged: int = 0
    removed: int = 0
    bytes: int = 0
    segment_bytes: int = 0
    keys: int = 0
    refused: list[tuple[str, str]] = field(default_factory=list)


@public_in("kbatch")
@suggests_names(SCAN_HINTS)
def index_logs(
    source: SourceLike,
    index: str | os.PathLike[str] | None = None,
    *,
    topics: TopicChoice | None = None,
    partitions: Iterable[int] | None = None,
    threads: int = 0,
    storage_options: Mapping[str, str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[IndexedLog]:
    """Write the key index of logs: a small file for each closed segment, from which reads with a key find its blocks.

    Files that fit their segments are left, and those of segments and logs that no longer exist are removed. The last
    segment of a log may still grow, and has none.

    Parameters
    ----------
    source : str or path, iterable of them, Log, or LogList
        As for `kbatch.scan_logs`.
    index : str or path, optional
        The directory of the index, which is created. Default is ``kbatch/key-index`` in the user's cache directory,
        where reads with a key look for it. Nothing is written to the log directory unless it is given here.
    topics, partitions, storage_options
        As for `kbatch.scan_logs`.
    threads : int
        The segments that are read at the same time; 0 is the number of processors. Each takes about 30 bytes for each
        of its keys, and at most 1 GB.
    progress : callable, optional
        Called from time to time with the bytes of the segments that were read, and the bytes of all that are read.

    Returns
    -------
    list of IndexedLog
        One for each log.

    Raises
    ------
    LogDirectoryError
        If a log cannot be read, or the directory not be written.
    MissingDependencyError
        Without pyarrow.
    ValueError, TypeError
        For arguments that are not allowed.

    Examples
    --------
    >>> import tempfile
    >>> import kbatch
    >>> with tempfile.TemporaryDirectory() as index:
    ...     (made,) = kbatch.index_logs("tests/golden/logs/codec-zstd-0", index)
    ...     found = kbatch.Log("tests/golden/logs/codec-zstd-0").to_arrow(key="key-8", index=index)
    >>> made.written, found.num_rows
    (1, 132)
    """
    check_types(index_logs, locals())
    require("pyarrow.parquet", "arrow", "a key index")
    if threads < 0:
        raise ValueError(f"threads must be 0 or more, got {threads}")
    directory = index_directory(index)
    if directory is None:
        raise LogDirectoryError("there is no home directory for the key index: give the directory of the index")
    if topics is not None and not isinstance(topics, str | re.Pattern):
        TopicFilter(topics := list(topics) if isinstance(topics, Iterable) else topics)
    selection = Selection(topics=topics, partitions=partition_numbers(partitions))
    logs = source_of(source, storage_options).logs(selection)
    outputs: list[_IndexOutput] = []
    with contextlib.ExitStack() as stack:
        outputs += [stack.enter_context(_IndexOutput(log, directory)) for log in logs]
        missing = [(output, segment) for output in outputs for segment in output.missing()]
        if missing and index is None:
            _make_private(directory)
        total, done, lock = sum(segment.size for _, segment in missing), 0, threading.Lock()

        def read(size: int) -> None:
            nonlocal done
            with lock:
                done += size
                if progress is not None:
                    progress(done, total)

        _write_all(missing, threads or os.cpu_count() or 1, read)
        for output in outputs:
            output.result.refused.sort()
            output.remove_stale()
        _remove_gone(directory, {os.path.basename(output.result.path) for output in outputs})
    return [output.result for output in outputs]


def _remove_gone(directory: str, own: set[str]) -> None:
    """Remove the files of logs that no longer exist, and their directories; those in `own` are not examined."""
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            if entry.name in own or not entry.is_dir(follow_symlinks=False):
                continue
            for name in _index_names(entry.path):
                header = _header_of(os.path.join(entry.path, name))
                if header is None or not _is_gone(header.log):
                    break
                os.unlink(os.path.join(entry.path, name))
            remove_empty(directory, entry.name)


def _index_names(directory: str) -> list[str]:
    """Return the names of the index files in a directory, in order of the base offset."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return sorted(name for name in os.listdir(directory) if base_offset_of_index(name) is not None)
    return []


def _is_gone(log: str) -> bool:
    """Whether a log was deleted: its log directory exists, so that its file system is mounted, but not the log."""
    return not is_url(log) and not os.path.isdir(log) and os.path.isdir(os.path.dirname(log))


def _header_of(path: str) -> KeyIndexHeader | None:
    """Return the header of an index file; None if it is damaged."""
    try:
        with KeyIndexFile(path) as file:
            return file.header
    except (KbatchError, OSError, ValueError):
        return None


def _make_private(directory: str) -> None:
    try:
        os.makedirs(directory, 0o700, exist_ok=True)
    except OSError as error:
        raise cannot_write(directory, error) from error


def _write_all(missing: Sequence[tuple[_IndexOutput, Segment]], threads: int, read: ReadBytes) -> None:
    """Write the files of segments in threads; after an error or an interrupt, the threads end at their next table."""
    stop = threading.Event()
    pool = ThreadPoolExecutor(threads, "kbatch-index")
    try:
        futures: set[Future[None]] = {pool.submit(output.write, segment, stop, read) for output, segment in missing}
        while futures:
            ended, futures = wait(futures, return_when=FIRST_COMPLETED)
            for each in ended:
                each.result()
    finally:
        stop.set()
        pool.shutdown(cancel_futures=True)


class _Contents(NamedTuple):
    """The contents of an index file."""

    header: KeyIndexHeader
    blocks: npt.NDArray[np.void]
    pairs: npt.NDArray[np.uint64]


class _IndexOutput:
    """The directory of a log's index while it is written; a context manager."""

    def __init__(self, log: Log, directory: str) -> None:
        self._identity = identity(os.path.dirname(log.segments[0].storage.absolute(log.segments[0].path)))
        self._segments = [segment for segment in log.segments if not segment.live and segment.base_offset is not None]
        self.result = IndexedLog(log, os.path.join(directory, key_index_name(log.segments)), len(self._segments))
        self._work: WorkDirectory | None = None
        self._lock = threading.Lock()
        self._kept: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._work is not None:
            self._work.remove()
            forget_unfinished(self)

    def missing(self) -> list[Segment]:
        """Return the segments that no file fits."""
        names: dict[int, list[str]] = {}
        for name in _index_names(self.result.path):
            names.setdefault(base_offset_of_index(name) or 0, []).append(name)
        return [each for each in self._segments if each.size and not self._has_file(each, names)]

    def _has_file(self, segment: Segment, names: Mapping[int, Sequence[str]]) -> bool:
        for name in names.get(segment.base_offset or 0, ()):
            header = _header_of(os.path.join(self.result.path, name))
            if header is not None and is_of_segment(header, segment):
                self.result.unchanged += 1
                self._keep(name, header)
                return True
        return False

    def _keep(self, name: str, header: KeyIndexHeader) -> None:
        self._kept.add(name)
        self.result.bytes += os.path.getsize(os.path.join(self.result.path, name))
        self.result.segment_bytes += header.size
        self.result.keys += header.keys

    def write(self, segment: Segment, stop: threading.Event, read: ReadBytes) -> None:
        """Write the file of a segment, in a thread; a segment that cannot be indexed is refused."""
        try:
            found = _contents_of(segment, self._identity, stop, read)
        except KbatchError as error:
            with self._lock:
                self.result.refused.append((segment.path, str(error)))
            return
        if found is None:
            return
        try:
            name = write_key_index(self._work_path(), *found)
            with unbroken, self._lock:
                rename_all([(os.path.join(self._work_path(), name), os.path.join(self.result.path, name))], sync=False)
                self.result.written += 1
                self._keep(name, found.header)
        except OSError as error:
            raise cannot_write(self.result.path, error) from error

    def _work_path(self) -> str:
        """Return the directory of unfinished files; the first call makes it, and removes those of killed runs."""
        with unbroken:
            if self._work is None:
                os.makedirs(self.result.path, exist_ok=True)
                remove_abandoned(self.result.path, _WORK_NAME)
                work = WorkDirectory(os.path.join(self.result.path, f"work-{uuid.uuid4().hex[:8]}.tmp"))
                work.lock()
                register_unfinished(self, work.remove)
                self._work = work
            return self._work.path

    def remove_stale(self) -> None:
        """Remove the files of segments that this log no longer has, and damaged ones.

        Copies of a log share the directory, so the files of another log are kept until it is deleted.
        """
        for name in _index_names(self.result.path):
            if name in self._kept:
                continue
            header = _header_of(os.path.join(self.result.path, name))
            if header is not None and header.log != self._identity and not _is_gone(header.log):
                continue
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(self.result.path, name))
                self.result.removed += 1


def _contents_of(segment: Segment, log: str, stop: threading.Event, read: ReadBytes) -> _Contents | None:
    """Read a segment, and return the contents of its index; None if the read is stopped.

    Raise KbatchError if the segment is damaged, its offsets do not ascend, or it has too many keys.
    """
    secret = secrets.token_bytes(16)
    options = DecodeOptions(include_control=True, columns=_INDEXED_COLUMNS)
    blocks, pairs = _Blocks(segment), _KeyPairs(segment)
    last: np.void | None = None
    for table in read_tables(segment, 0, segment.size, options, KEY_TABLE_BYTES, splits=True):
        if stop.is_set():
            return None
        if len(table.batches):
            blocks.add(table)
            pairs.add(table, secret)
            last = table.batches[-1].copy()
        read(table.consumed)
        del table
    if last is None:
        raise LogDirectoryError(f"{segment.path}: it has no batch", source=segment.path)
    slots, found = blocks.joined()
    joined = pairs.joined(slots)
    header = KeyIndexHeader(
        base_offset=segment.base_offset or 0,
        size=segment.size,
        last_position=int(last["position"]),
        last_offset=int(last["last_offset"]),
        crc=int(last["crc"]),
        secret=secret.hex(),
        log=log,
        keys=len(joined),
    )
    return _Contents(header, found, joined)


class _Blocks:
    """The blocks of a segment, from its tables."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self._last: int | None = None
        self._rows: list[npt.NDArray[np.void]] = []
        self._slots: list[npt.NDArray[np.int64]] = []

    def add(self, table: RecordTable) -> None:
        batches, records = table.batches, table.records
        self._check_order(table)
        slots = batches["position"] // BLOCK_BYTES
        first = np.flatnonzero(np.diff(slots, prepend=-1))
        rows = np.empty(len(first), BLOCK_DTYPE)
        rows["position"] = batches["position"][first]
        rows["first_offset"] = first_offsets(batches)[first]
        rows["last_offset"] = np.maximum.reduceat(batches["last_offset"], first)
        rows["min_timestamp"], rows["max_timestamp"] = INT64_MAX, _INT64_MIN
        if len(records):
            of_record = slots[records["batch"]]
            begins = np.flatnonzero(np.diff(of_record, prepend=-1))
            at = np.searchsorted(slots[first], of_record[begins])
            rows["min_timestamp"][at] = np.minimum.reduceat(records["timestamp"], begins)
            rows["max_timestamp"][at] = np.maximum.reduceat(records["timestamp"], begins)
        self._rows.append(rows)
        self._slots.append(slots[first])

    def _check_order(self, table: RecordTable) -> None:
        """Raise if offsets do not ascend: reads would then need all batches to see that."""
        # The first batch of a table that continues one was checked before.
        batches = table.batches[int(table.continued) :]
        first = first_offsets(batches)
        before = np.concatenate([[-1 if self._last is None else self._last], batches["last_offset"][:-1]])
        bad = np.flatnonzero(first <= before)
        if len(bad):
            position = int(batches["position"][bad[0]])
            raise LogDirectoryError(
                f"{self._segment.path}, byte {position}: the batch begins at offset {first[bad[0]]}, but offset "
                f"{before[bad[0]]} precedes it; a key index needs ascending offsets",
                source=self._segment.path,
                position=position,
            )
        if (reached := last_offset(table.batches)) is not None:
            self._last = reached

    def joined(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.void]]:
        """Return the slots of the blocks and the blocks; tables may have parts of one."""
        slots, rows = np.concatenate(self._slots), np.concatenate(self._rows)
        first = np.flatnonzero(np.diff(slots, prepend=-1))
        found = rows[first]
        for name, join in (("last_offset", np.maximum), ("min_timestamp", np.minimum), ("max_timestamp", np.maximum)):
            found[name] = join.reduceat(rows[name], first)
        return slots[first], found


class _KeyPairs:
    """The pairs of a key and a block of a segment, each as one integer: the hash, and the slot of the block."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self._parts: list[npt.NDArray[np.uint64]] = []
        self._count = 0

    def add(self, table: RecordTable, secret: bytes) -> None:
        records = table.records
        lengths = records["key_len"]
        has_key = lengths >= 0
        records, lengths = (records, lengths) if has_key.all() else (records[has_key], lengths[has_key])
        slots = (table.batches["position"] // BLOCK_BYTES).astype(np.uint64)[records["batch"]]
        hashes = key_hashes(secret, records["key_pos"], lengths, table.data)
        part = _distinct_pairs(hashes.astype(np.uint64) << _SLOT_BITS | slots)
        self._parts.append(part)
        self._count += len(part)
        if self._count > _MAX_PAIRS:
            raise LogDirectoryError(
                f"{self._segment.path}: it has more than {counted(_MAX_PAIRS, 'key')} in its blocks of batches, the "
                "most that a key index has",
                source=self._segment.path,
            )

    def joined(self, slots: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
        """Return the pairs in order, with the numbers of the blocks in place of their slots."""
        pairs = np.concatenate(self._parts)
        self._parts.clear()
        pairs = _distinct_pairs(pairs)
        numbers = np.zeros(int(slots[-1]) + 1, np.uint64)
        numbers[slots] = np.arange(len(slots), dtype=np.uint64)
        for start in range(0, len(pairs), _NUMBERED):
            part = pairs[start : start + _NUMBERED]
            part[:] = part & ~_SLOT | numbers[part & _SLOT]
        return pairs


def _distinct_pairs(pairs: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Sort in place, and return each value once; `numpy.unique` takes six times as long."""
    pairs.sort()
    is_first = np.ones(len(pairs), np.bool_)
    np.not_equal(pairs[1:], pairs[:-1], out=is_first[1:])
    return pairs[is_first]
