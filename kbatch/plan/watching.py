"""What stands in log directories that a broker is writing: looked at again and again, at little cost.

No pyspark in here.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass

from kbatch.batches.checksums import has_good_batch
from kbatch.errors import LogDirectoryError
from kbatch.format import BatchStatus
from kbatch.log import Log, Segment
from kbatch.log.names import parse_directory_name, segment_names
from kbatch.log.reading import read_tables
from kbatch.log.state import start_offsets
from kbatch.plan.read_options import ReadOptions
from kbatch.plan.select import Selection
from kbatch.read.decode_options import DecodeOptions

__all__ = ["LogState", "TopicPartition", "WatchedLogs", "open_log"]

TopicPartition = tuple[str, int]

# A directory's time of change is believed only once it is so old: file systems keep it in steps.
_SETTLED_NS = 2_000_000_000
_WINDOW = 16 << 20
# A broker renames segments one by one: a listing may come in between.
_ATTEMPTS = 5
_PAUSE = 0.05


@dataclass(slots=True)
class LogState:
    """A topic-partition's log as it was when it was last looked at.

    Attributes
    ----------
    path : str
        Its directory.
    start_offset : int
        The earliest offset, by the first segment's name and the broker's ``log-start-offset-checkpoint`` (DSK-R13).
    end_offset : int
        The offset after the last batch that is written to its end.
    last : str
        Path of the last segment.
    position : int
        Where that batch ends.
    changed, seen
        What tells that nothing has changed since.
    preallocated : bool
        Whether zeros follow, so that the file's size doesn't tell.
    """

    path: str
    first_base: int = 0
    start_offset: int = 0
    end_offset: int = 0
    last: str = ""
    last_base: int = 0
    position: int = 0
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
        Which topics and partitions; what damage means.
    """

    def __init__(self, paths: Iterable[str], options: ReadOptions) -> None:
        self._options = options
        self._selection = Selection(options)
        self._roots = [path.removeprefix("file://").removeprefix("file:") if path.startswith("file:") else path
                       for path in paths]  # fmt: skip
        self._states: dict[TopicPartition, LogState] = {}

    def poll(self) -> dict[TopicPartition, LogState]:
        """Look at all logs again.

        Returns
        -------
        dict of (topic, partition) to LogState
            Those that have a segment; neither those marked ``-delete``, ``-future`` or ``-stray`` (DSK-R9).

        Raises
        ------
        LogDirectoryError
            If a directory that was named isn't there, or two hold the same topic-partition.
        CorruptBatchError, ...
            With ``on_error="raise"``, where bytes that can be no batch follow the last one.
        """
        found: dict[TopicPartition, LogState] = {}
        for root in self._roots:
            for name, path in self._directories(root):
                try:
                    topic, partition, mark = parse_directory_name(name)
                except LogDirectoryError:
                    continue
                if mark is not None or not self._selection(topic, partition):
                    continue
                key = (topic, partition)
                known = self._states.get(key)
                if key in found:
                    # A partition that moves between directories is in both for a moment.
                    if known is not None and path != known.path and found[key].path == known.path:
                        continue
                    if known is None or path != known.path:
                        raise LogDirectoryError(
                            f"{topic}-{partition} is in {found[key].path} and in {path}: name one of the directories",
                            source=path,
                        )
                state = known if known is not None and known.path == path else LogState(path)
                if self._look(state, key):
                    found[key] = state
        self._states = found
        return dict(found)

    def _directories(self, root: str) -> list[tuple[str, str]]:
        if "://" in root:
            raise LogDirectoryError(
                f"{root}: a stream watches directories of a local or mounted file system; batch reads take URLs",
                source=root,
            )
        try:
            with os.scandir(root) as entries:
                inside = list(entries)
        except OSError as error:
            raise LogDirectoryError(f"{root}: can't be listed: {error.strerror}", source=root) from error
        name = os.path.basename(os.path.abspath(root))
        if segment_names([entry.name for entry in inside], lambda _, base_offset: base_offset):
            # Of any other name it isn't known which topic it is of.
            parse_directory_name(name)
            return [(name, root)]
        return sorted((entry.name, entry.path) for entry in inside if "-" in entry.name and entry.is_dir())

    def _look(self, state: LogState, key: TopicPartition) -> bool:
        """Bring a state up to date; False if there is no log."""
        for _ in range(_ATTEMPTS):
            try:
                changed = os.stat(state.path).st_mtime_ns
                if changed != state.changed:
                    names = segment_names(os.listdir(state.path), lambda _, base_offset: base_offset)
                    if not names:
                        return False
                    state.changed = changed if time.time_ns() - changed > _SETTLED_NS else -1
                    state.first_base, state.last_base = names[0].base_offset, names[-1].base_offset
                    last = os.path.join(state.path, names[-1].name)
                    if last != state.last:
                        state.last, state.position, state.seen = last, -1, (-1, -1)
                status = os.stat(state.last)
                break
            except FileNotFoundError:
                state.changed = -1
                if not os.path.isdir(state.path):
                    return False
                time.sleep(_PAUSE)
        else:
            return False
        seen = (status.st_ino, status.st_size)
        if seen != state.seen or state.preallocated:
            if seen[0] != state.seen[0] or seen[1] < state.seen[1]:
                state.position = -1
            self._find_end(state, key)
            state.seen = seen
        checkpoint = start_offsets(os.path.dirname(os.path.abspath(state.path))).get(key, 0)
        within = state.first_base < checkpoint <= state.end_offset
        state.start_offset = checkpoint if within else state.first_base
        return True

    def _find_end(self, state: LogState, key: TopicPartition) -> None:
        """Go on from the last batch that is known to the last one that is whole.

        A batch at the very end whose checksum doesn't hold is being written, as one is of which a part is missing: of
        a file that was preallocated the size tells nothing. What comes after damage counts if it is skipped.
        """
        segment = Segment(state.last, live=True)
        options = DecodeOptions(crc=self._options.crc, on_error=self._options.on_error, framing_only=True)
        if state.position < 0:
            row, _ = segment.last_batch()
            state.end_offset, state.position = state.last_base, 0
            if row is not None:
                state.position = int(row["position"])
                state.end_offset = max(state.last_base, int(row["base_offset"]))
        with segment.open() as file:
            settled, last = None, None
            for rows in file.walk(state.position):
                settled = rows[-2] if len(rows) > 1 else last
                last = rows[-1]
            if last is None:
                tail = file.tail_at(state.position)
            else:
                tail = file.tail_at(int(last["position"] + last["size"]))
                if tail.kind in ("none", "zeros") and self._options.crc == "verify" and not has_good_batch(file, last):
                    last = settled
                if last is not None:
                    state.position = int(last["position"] + last["size"])
                    state.end_offset = int(last["last_offset"]) + 1
            state.preallocated = tail.kind == "zeros"
            if tail.kind in ("none", "zeros"):
                return
            size = file.size
        for table in read_tables(segment, state.position, size, options, _WINDOW):
            good = table.batches[BatchStatus.sound(table.batches["status"])]
            if len(good):
                state.position = int(good["position"][-1] + good["size"][-1])
                state.end_offset = int(good["last_offset"][-1]) + 1


def open_log(path: str) -> Log | None:
    """Open the log of a directory in which a broker may be renaming files; None if it isn't there."""
    for _ in range(_ATTEMPTS - 1):
        try:
            return Log(path)
        except LogDirectoryError:
            if not os.path.isdir(path):
                return None
            time.sleep(_PAUSE)
    return Log(path) if os.path.isdir(path) else None
