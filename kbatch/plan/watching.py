"""Polls the state of log directories to which a broker writes, at low cost."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from kbatch.batches.checksums import has_good_batch
from kbatch.errors import LogDirectoryError
from kbatch.format import BatchStatus
from kbatch.log import Log
from kbatch.log.files.checkpoints import START_CHECKPOINT, checkpoint_offsets
from kbatch.log.files.properties import topic_id_of
from kbatch.log.reading import read_tables
from kbatch.log.segment import has_batch, planned_segment
from kbatch.log.selection import LogChooser
from kbatch.log.store.listing import missing_path, not_listed
from kbatch.log.store.names import parse_directory_name, segment_names
from kbatch.log.store.storage import Storage, absolute, locate
from kbatch.plan.read_options import ReadOptions
from kbatch.read.decode_options import DecodeOptions
from kbatch.tuning import SMALL_TABLE_BYTES

__all__ = ["LogState", "TopicPartition", "WatchedLogs", "open_log"]

TopicPartition = tuple[str, int]

# A directory's modification time is reliable only at this age: file systems round it.
_SETTLED_NS = 2_000_000_000
# A broker renames segments one by one, so a listing may see only some of the new names.
_OPEN_ATTEMPTS = 5
_PAUSE = 0.05


@dataclass(frozen=True, slots=True)
class LogState:
    """A topic-partition's log at the last poll.

    Attributes
    ----------
    path : str
        The directory of the log.
    start_offset : int
        The first offset, from the first segment's name and the broker's ``log-start-offset-checkpoint`` (DSK-R13).
    end_offset : int
        The offset after the last complete batch.
    last : str
        The path of the last segment.
    position : int
        The end of the last complete batch.
    batch_position, batch_crc : int, int or None
        The start of this batch, and the checksum in its header; None without a batch in the last segment.
    topic_id : str or None
        The topic's id, from ``partition.metadata``.
    changed, seen
        The modification time of the directory, and the inode and size of the last segment, which show a change.
    preallocated : bool
        Whether zeros follow the batches, so that the size of the file does not show a change.
    """

    path: str
    first_base: int = 0
    start_offset: int = 0
    end_offset: int = 0
    last: str = ""
    last_base: int = 0
    position: int = 0
    batch_position: int = 0
    batch_crc: int | None = None
    topic_id: str | None = None
    changed: int = -1
    seen: tuple[int, int] = (-1, -1)
    preallocated: bool = False


class WatchedLogs:
    """The logs that the options of a read select, in directories of the local file system.

    Parameters
    ----------
    paths : iterable of str
        Brokers' log directories, or topic-partition directories.
    options : ReadOptions
        The topics and partitions, and how to treat damage.
    """

    def __init__(self, paths: Iterable[str], options: ReadOptions) -> None:
        paths = list(paths)
        self._options = options
        self._chooser = LogChooser(options.selection, roots=paths)
        self._roots = [locate(absolute(path), options.storage) for path in paths]
        self._states: dict[TopicPartition, LogState] = {}

    def poll(self) -> dict[TopicPartition, LogState]:
        """Return the current state of all logs.

        Returns
        -------
        dict of (topic, partition) to LogState
            The logs with a segment, except directories marked ``-delete``, ``-future`` or ``-stray`` (DSK-R9).

        Raises
        ------
        LogDirectoryError
            If a given directory does not exist, or two of them have the same topic-partition.
        CorruptBatchError, ...
            With ``on_error="raise"``, if bytes that cannot be a batch follow the last one.
        """
        found: dict[TopicPartition, LogState] = {}
        for storage, root in self._roots:
            for name, path in self._directories(storage, root):
                try:
                    topic, partition, mark = parse_directory_name(name)
                except LogDirectoryError:
                    continue
                if mark is not None or not self._chooser(topic, partition):
                    continue
                key = (topic, partition)
                known = self._states.get(key)
                if key in found:
                    # While a partition moves between directories, it is in both.
                    if known is not None and path != known.path and found[key].path == known.path:
                        continue
                    if known is None or path != known.path:
                        raise LogDirectoryError(
                            f"{topic}-{partition} is in {found[key].path} and in {path}: give only one of them",
                            source=path,
                        )
                last = known if known is not None and known.path == path else LogState(path)
                state = self._state(storage, last, self._options._for_topic(topic))
                if state is not None:
                    directory = os.path.dirname(os.path.abspath(path))
                    checkpoint = checkpoint_offsets(directory, START_CHECKPOINT, storage).get(key, 0)
                    within = state.first_base < checkpoint <= state.end_offset
                    found[key] = replace(state, start_offset=checkpoint if within else state.first_base)
        self._states = found
        return dict(found)

    def _directories(self, storage: Storage, root: str) -> list[tuple[str, str]]:
        if storage.remote:
            raise LogDirectoryError(
                f"{root}: streams and exports that follow logs watch directories of a local or mounted file system; "
                "other reads take URLs",
                source=root,
            )
        try:
            inside = storage.list(root)
        except FileNotFoundError:
            raise missing_path(storage, root, "directory") from None
        except OSError as error:
            raise not_listed(root, error) from error
        name = os.path.basename(os.path.abspath(root))
        if segment_names(inside, lambda _, base_offset: base_offset):
            # Raises if the name is not TOPIC-PARTITION.
            parse_directory_name(name)
            return [(name, root)]
        names = (name for name, entry in inside.items() if "-" in name and entry.is_directory)
        return [(name, os.path.join(root, name)) for name in sorted(names)]

    def _state(self, storage: Storage, known: LogState, options: ReadOptions) -> LogState | None:
        """Return the state of a log, given its last state and the options of its topic; None if it does not exist.

        Each attempt begins with a whole state: the last one, or an empty one if files were renamed meanwhile.
        """
        for _ in _attempts(known.path):
            try:
                return self._look(storage, known, options)
            except FileNotFoundError:
                known = LogState(known.path)
            except OSError as error:
                raise not_listed(known.path, error) from error
        return None

    def _look(self, storage: Storage, known: LogState, options: ReadOptions) -> LogState | None:
        """Return the current state of a log, reading only changed files; None if it has no segment.

        FileNotFoundError means that the last segment was renamed, truncated or deleted meanwhile.
        """
        state = known
        changed = os.stat(known.path).st_mtime_ns
        if changed != known.changed:
            names = segment_names(storage.list(known.path), lambda _, base_offset: base_offset)
            if not names:
                return None
            state = replace(
                known,
                first_base=names[0].base_offset,
                last=os.path.join(known.path, names[-1].name),
                last_base=names[-1].base_offset,
                changed=changed if time.time_ns() - changed > _SETTLED_NS else -1,
            )
        status = os.stat(state.last)
        inode, size = seen = (status.st_ino, status.st_size)
        is_same_file = state.last == known.last and inode == known.seen[0]
        is_same = is_same_file and size == known.seen[1]
        if changed != known.changed or not is_same:
            topic_id = topic_id_of(storage, state.path)
            state = replace(state, topic_id=None if topic_id is None else str(topic_id))
        if is_same and not state.preallocated:
            return state
        try:
            has_grown = is_same_file and size >= known.seen[1]
            return replace(self._at_end(storage, state, options, has_grown), seen=seen)
        except LogDirectoryError as error:
            now = storage.find(state.last)
            if now is not None and (now.size or 0) >= size:
                raise
            raise FileNotFoundError(state.last) from error

    def _at_end(self, storage: Storage, state: LogState, options: ReadOptions, has_grown: bool) -> LogState:
        """Move a state to the end of the last complete batch: from its position if the segment has only grown.

        Batches after damage count if damage is skipped.
        """
        segment = planned_segment(state.last, storage_options=storage.options)
        begin, end, crc = state.batch_position, state.position, state.batch_crc
        # The log may have been recreated, even if the file is the same and not shorter.
        if not has_grown or (crc is not None and not has_batch(segment, begin, end, crc, state.end_offset)):
            row, _ = segment.last_batch()
            position, base_offset = (0, 0) if row is None else (int(row["position"]), int(row["base_offset"]))
            end_offset = max(state.last_base, base_offset)
            state = replace(state, position=position, end_offset=end_offset, batch_crc=None)
        # The last good batches up to `position`.
        batches: deque[np.void] = deque(maxlen=2)
        position = state.position
        with segment.open() as file:
            for rows in file.walk(position):
                batches.extend(rows[-2:])
                position = int(rows["position"][-1] + rows["size"][-1])
            tail = file.tail_at(position)
            is_end = tail.kind in ("none", "zeros")
            # A batch with a wrong checksum at the very end is still being written, like an incomplete batch: the size
            # of a preallocated file does not show this.
            if is_end and batches and options.crc == "verify" and not has_good_batch(file, batches[-1]):
                batches.pop()
        if not is_end:
            framing = DecodeOptions(crc=options.crc, on_error=options.on_error, framing_only=True)
            for table in read_tables(segment, position, segment.size, framing, SMALL_TABLE_BYTES):
                batches.extend(table.batches[BatchStatus.sound(table.batches["status"])][-1:])
        state = replace(state, preallocated=tail.kind == "zeros")
        if not batches:
            return state
        row = batches[-1]
        return replace(
            state,
            position=int(row["position"] + row["size"]),
            end_offset=int(row["last_offset"]) + 1,
            batch_position=int(row["position"]),
            batch_crc=int(row["crc"]),
        )


def _attempts(path: str) -> Iterator[None]:
    """Yield once for each attempt to list a directory whose files a broker may be renaming, while it exists."""
    yield
    for _ in range(_OPEN_ATTEMPTS - 1):
        if not os.path.isdir(path):
            return
        time.sleep(_PAUSE)
        yield


def open_log(path: str, storage_options: Mapping[str, str] | None = None) -> Log | None:
    """Open the log of a directory whose files a broker may be renaming; None if it does not exist."""
    for _ in _attempts(path):
        try:
            return Log(path, storage_options=storage_options)
        except LogDirectoryError as error:
            failure = error
    if os.path.isdir(path):
        raise failure
    return None
