"""The state of log directories that a broker is writing, polled at little cost. This module does not import pyspark."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from kbatch.batches.checksums import has_good_batch
from kbatch.errors import LogDirectoryError
from kbatch.format import BatchStatus
from kbatch.log import Log, Segment
from kbatch.log.files.checkpoints import START_CHECKPOINT, checkpoint_offsets
from kbatch.log.files.properties import topic_id_of
from kbatch.log.reading import read_tables
from kbatch.log.segment import has_batch, planned_segment
from kbatch.log.selection import LogChooser
from kbatch.log.store.listing import not_listed
from kbatch.log.store.names import parse_directory_name, segment_names
from kbatch.log.store.storage import Storage, absolute, locate
from kbatch.plan.read_options import ReadOptions
from kbatch.read.decode_options import DecodeOptions
from kbatch.tuning import SMALL_TABLE_BYTES

__all__ = ["LogState", "TopicPartition", "WatchedLogs", "open_log"]

TopicPartition = tuple[str, int]

# A directory's modification time is reliable only once it is this old: file systems keep it in steps.
_SETTLED_NS = 2_000_000_000
# A broker renames segments one by one, so a listing may see only some of the new names.
_OPEN_ATTEMPTS = 5
_PAUSE = 0.05


@dataclass(slots=True)
class LogState:
    """A topic-partition's log at the last poll.

    Attributes
    ----------
    path : str
        Its directory.
    start_offset : int
        The earliest offset, from the first segment's name and the broker's ``log-start-offset-checkpoint`` (DSK-R13).
    end_offset : int
        The offset after the last complete batch.
    last : str
        Path of the last segment.
    position : int
        The end of that batch.
    batch_position, batch_crc : int, int or None
        Where that batch begins, and the checksum in its header; None without a batch in the last segment.
    topic_id : str or None
        The topic's id, from ``partition.metadata``.
    changed, seen
        The directory's modification time, and inode and size of the last segment, which show a change.
    preallocated : bool
        Whether zeros follow, so that the file's size does not show a change.
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
    """The logs that a read's options choose, under directories of the local file system.

    Parameters
    ----------
    paths : iterable of str
        Brokers' log directories, or topic-partition directories.
    options : ReadOptions
        The topics and partitions, and how to treat damage.
    """

    def __init__(self, paths: Iterable[str], options: ReadOptions) -> None:
        self._options = options
        self._chooser = LogChooser(options.selection)
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
                    # A partition that moves between directories is in both for a moment.
                    if known is not None and path != known.path and found[key].path == known.path:
                        continue
                    if known is None or path != known.path:
                        raise LogDirectoryError(
                            f"{topic}-{partition} is in {found[key].path} and in {path}: give only one of them",
                            source=path,
                        )
                state = known if known is not None and known.path == path else LogState(path)
                if self._update(storage, state, key):
                    found[key] = state
        self._states = found
        return dict(found)

    def _directories(self, storage: Storage, root: str) -> list[tuple[str, str]]:
        if storage.remote:
            raise LogDirectoryError(
                f"{root}: a stream watches directories of a local or mounted file system; batch reads take URLs",
                source=root,
            )
        try:
            inside = storage.list(root)
        except OSError as error:
            raise not_listed(root, error) from error
        name = os.path.basename(os.path.abspath(root))
        if segment_names(inside, lambda _, base_offset: base_offset):
            # Raises if the name is not TOPIC-PARTITION.
            parse_directory_name(name)
            return [(name, root)]
        names = (name for name, entry in inside.items() if "-" in name and entry.is_directory)
        return [(name, os.path.join(root, name)) for name in sorted(names)]

    def _update(self, storage: Storage, state: LogState, key: TopicPartition) -> bool:
        """Update a state; return False if the log does not exist."""
        for _ in range(_OPEN_ATTEMPTS):
            try:
                if not self._look(storage, state):
                    return False
            except FileNotFoundError:
                state.changed, state.seen = -1, (-1, -1)
                if not os.path.isdir(state.path):
                    return False
                time.sleep(_PAUSE)
                continue
            except OSError as error:
                raise not_listed(state.path, error) from error
            directory = os.path.dirname(os.path.abspath(state.path))
            checkpoint = checkpoint_offsets(directory, START_CHECKPOINT, storage).get(key, 0)
            within = state.first_base < checkpoint <= state.end_offset
            state.start_offset = checkpoint if within else state.first_base
            return True
        return False

    def _look(self, storage: Storage, state: LogState) -> bool:
        """Update the segments and the end of a log, each if it may have changed; return False if it has no segment.

        FileNotFoundError means that the last segment was renamed, truncated or deleted meanwhile.
        """
        changed = os.stat(state.path).st_mtime_ns
        has_new_names = changed != state.changed
        if has_new_names:
            names = segment_names(storage.list(state.path), lambda _, base_offset: base_offset)
            if not names:
                return False
            state.changed = changed if time.time_ns() - changed > _SETTLED_NS else -1
            state.first_base, state.last_base = names[0].base_offset, names[-1].base_offset
            last = os.path.join(state.path, names[-1].name)
            if last != state.last:
                state.last, state.position, state.seen = last, -1, (-1, -1)
        status = os.stat(state.last)
        seen = (status.st_ino, status.st_size)
        if has_new_names or seen != state.seen:
            topic_id = topic_id_of(storage, state.path)
            state.topic_id = None if topic_id is None else str(topic_id)
        if seen == state.seen and not state.preallocated:
            return True
        if seen[0] != state.seen[0] or seen[1] < state.seen[1]:
            state.position = -1
        try:
            self._find_end(storage, state)
        except LogDirectoryError as error:
            now = storage.find(state.last)
            if now is not None and (now.size or 0) >= seen[1]:
                raise
            raise FileNotFoundError(state.last) from error
        state.seen = seen
        return True

    def _find_end(self, storage: Storage, state: LogState) -> None:
        """Move `position` to the end of the last complete batch; the whole segment is examined if it is -1.

        Batches after damage count if damage is skipped.
        """
        segment = planned_segment(state.last, storage_options=storage.options)
        if state.batch_crc is not None:
            known = (state.batch_position, state.position, state.batch_crc, state.end_offset)
            if not has_batch(segment, *known):
                # The log was made again, even if the file is the same one and not shorter.
                state.position = -1
        if state.position < 0:
            row, _ = segment.last_batch()
            state.end_offset, state.position, state.batch_crc = state.last_base, 0, None
            if row is not None:
                state.position = int(row["position"])
                state.end_offset = max(state.last_base, int(row["base_offset"]))
        if not self._follow_headers(segment, state):
            options = DecodeOptions(crc=self._options.crc, on_error=self._options.on_error, framing_only=True)
            for table in read_tables(segment, state.position, segment.size, options, SMALL_TABLE_BYTES):
                good = table.batches[BatchStatus.sound(table.batches["status"])]
                if len(good):
                    _set_last(state, good[-1])

    def _follow_headers(self, segment: Segment, state: LogState) -> bool:
        """Advance over the headers from `position` on; return whether only zeros or nothing follows them.

        A batch at the very end with a wrong checksum is still being written, like an incomplete one: the size of a
        preallocated file does not show it.
        """
        last_two: deque[np.void] = deque(maxlen=2)
        with segment.open() as file:
            for rows in file.walk(state.position):
                last_two.extend(rows[-2:])
            last = last_two[-1] if last_two else None
            tail = file.tail_at(state.position if last is None else int(last["position"] + last["size"]))
            state.preallocated = tail.kind == "zeros"
            is_end = tail.kind in ("none", "zeros")
            if is_end and last is not None and self._options.crc == "verify" and not has_good_batch(file, last):
                last_two.pop()
        if last_two:
            _set_last(state, last_two[-1])
        return is_end


def _set_last(state: LogState, row: np.void) -> None:
    state.batch_position, state.batch_crc = int(row["position"]), int(row["crc"])
    state.position = state.batch_position + int(row["size"])
    state.end_offset = int(row["last_offset"]) + 1


def open_log(path: str, storage_options: Mapping[str, str] | None = None) -> Log | None:
    """Open the log of a directory whose files a broker may be renaming; None if it does not exist."""
    for _ in range(_OPEN_ATTEMPTS - 1):
        try:
            return Log(path, storage_options=storage_options)
        except LogDirectoryError:
            if not os.path.isdir(path):
                return None
            time.sleep(_PAUSE)
    return Log(path, storage_options=storage_options) if os.path.isdir(path) else None
