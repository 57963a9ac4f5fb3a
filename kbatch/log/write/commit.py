"""Parts of many tasks -> segments of a log directory, in all topic-partitions or in none.

Everything is written beside the logs first, in a directory that neither brokers nor readers take for a log. Then it is
moved into place:

- A log directory that is new gets its name with one rename. Nobody ever sees a part of it.
- Into one that is there, directories and segment files are renamed one by one, under the lock that brokers take too. A
  journal says what is to be moved, and is on disk before the first move. A move that fails has all before it undone.
  After a crash the journal is left: whoever writes next, or `roll_back`, undoes the moves by it. Its removal is the
  commit.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import json
import os
import re
import shutil
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from kbatch.batches.framing import put_values, scan_part
from kbatch.errors import LogDirectoryError, TruncatedBatchError, finding_to_error
from kbatch.log.logs import Log
from kbatch.log.names import parse_directory_name, parse_segment_name
from kbatch.log.storage import is_url, locate
from kbatch.log.write.log_writer import LogWriter
from kbatch.log.write.parts import Part
from kbatch.log.write.staging import move_all, remove_stage, rename_all, sync_directory, sync_parents, undo_moves

__all__ = ["Mode", "Stage", "Written", "check_before", "commit", "locked", "roll_back"]

_JOURNAL = "journal.json"
# Kafka's own lock file: a broker holds it as long as it runs.
_LOCK = ".lock"
_STAGE = re.compile(r"\.kbatch-write-[0-9a-f]{32}\.tmp")
# Of a broker that is a controller too, and no topic's.
_METADATA = "__cluster_metadata"
# What brokers remember of the logs of a directory, and would be wrong of others in their place.
_CHECKPOINTS = (
    "cleaner-offset-checkpoint",
    "log-start-offset-checkpoint",
    "recovery-point-offset-checkpoint",
    "replication-offset-checkpoint",
)
_READ = 16 << 20

Mode = Literal["append", "error", "overwrite"]

_held: set[str] = set()
_held_lock = threading.Lock()


class Written(NamedTuple):
    """What was written to a topic-partition.

    Attributes
    ----------
    topic : str
    partition : int
    first_offset, next_offset : int
        Of the first record that was written, and the offset after the last.
    records : int
    bytes : int
        Of batches.
    segments : int
        How many were begun.

    Examples
    --------
    >>> import tempfile
    >>> import pyarrow as pa
    >>> from kbatch.log import write_log
    >>> with tempfile.TemporaryDirectory() as root:
    ...     (written,) = write_log(root, pa.table({"value": [b"1", b"2"]}), topic="orders", num_partitions=1)
    >>> written.topic, written.partition, written.first_offset, written.next_offset
    ('orders', 0, 0, 2)
    """

    topic: str
    partition: int
    first_offset: int
    next_offset: int
    records: int
    bytes: int
    segments: int


class Stage:
    """Where one write keeps its files until they are in place. Picklable; nothing is on disk before `make`.

    Parameters
    ----------
    root : str or path
        A log directory, local or mounted. If it isn't there, its parent is; a file system that is mounted at `root` is
        thereby there.

    Attributes
    ----------
    root : str
    path : str
        Directory of this write: in `root` if that is there, so that files can be renamed, and else beside it.
    is_new : bool
        Whether `root` isn't there yet.

    Raises
    ------
    LogDirectoryError
        If `root` is a URL or a file, or its parent is missing.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        if is_url(os.fspath(root)):
            raise LogDirectoryError(
                f"{root}: logs are written to local or mounted file systems only: an object store has no rename, and "
                "no lock",
                source=os.fspath(root),
            )
        self.root = os.path.realpath(locate(root)[1])
        self.is_new = not os.path.lexists(self.root)
        parent = os.path.dirname(self.root)
        if not os.path.isdir(parent if self.is_new else self.root):
            what = f"its parent {parent} is no directory" if self.is_new else "is no directory"
            raise LogDirectoryError(f"{self.root}: {what}", source=self.root)
        prefix = _beside(self.root) if self.is_new else os.path.join(self.root, "")
        self.path = f"{prefix}.kbatch-write-{uuid.uuid4().hex}.tmp"

    def make(self) -> None:
        """Make the directory, before any attempt."""
        os.makedirs(os.path.join(self.path, "attempts"))

    def attempt(self, name: str) -> str:
        """Make a directory for an attempt of a task, which no other attempt has.

        Raises
        ------
        LogDirectoryError
            If the stage isn't there: what comes after `remove` must not bring it back.
        """
        path = os.path.join(self.path, "attempts", f"{name}-{uuid.uuid4().hex[:8]}")
        try:
            os.mkdir(path)
        except FileNotFoundError as error:
            raise LogDirectoryError(
                f"{self.path}: the directory of this write isn't there. It was aborted; or the log directory is not on "
                "a file system that the driver and all workers share",
                source=self.root,
            ) from error
        return path

    def remove(self) -> None:
        """Remove what is left of this write; not while a journal says that some of it is in place."""
        if not os.path.lexists(os.path.join(self.path, _JOURNAL)):
            remove_stage(lambda: shutil.rmtree(self.path, ignore_errors=True), lambda: os.path.lexists(self.path))


def _beside(root: str) -> str:
    """Return how the paths of stages of a directory that isn't there begin."""
    parent, name = os.path.split(root)
    return os.path.join(parent, f".{name}")


@contextlib.contextmanager
def locked(root: str, wait: float = 0.0) -> Iterator[None]:
    """Hold a log directory's lock, which brokers and other writers take too.

    Parameters
    ----------
    root : str
    wait : float
        Seconds to wait for it.

    Raises
    ------
    LogDirectoryError
        If another has it.
    """
    import fcntl

    until = time.monotonic() + wait
    path = os.path.join(os.path.realpath(root), _LOCK)

    def taken() -> LogDirectoryError:
        return LogDirectoryError(
            f"{path}: a broker or another writer holds this lock; nothing was written. Stop the broker, or write again "
            "when the other is done",
            source=root,
        )

    # Locks of files are those of a process: its threads need one of their own.
    while True:
        with _held_lock:
            if path not in _held:
                _held.add(path)
                break
        if time.monotonic() >= until:
            raise taken()
        time.sleep(0.05)
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            while True:
                try:
                    fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except OSError as error:
                    if error.errno not in (errno.EACCES, errno.EAGAIN):
                        raise LogDirectoryError(f"{path}: can't be locked: {error.strerror}", source=root) from error
                    if time.monotonic() >= until:
                        raise taken() from None
                    time.sleep(0.05)
            yield
        finally:
            os.close(descriptor)
    finally:
        with _held_lock:
            _held.discard(path)


def _check_mode(root: str, mode: Mode) -> None:
    """Refuse a directory that has topic-partitions in it, if it must not have any."""
    if mode == "error" and os.path.isdir(root) and (names := _log_names(root)):
        raise LogDirectoryError(
            f"{root}: there are logs already ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''}); append to "
            "them, or say that all of them are to go: mode='overwrite', on Spark with option replaceLogs=true",
            source=root,
        )


def check_before(stage: Stage, mode: Mode, wait: float = 0.0) -> None:
    """Raise before the work what `commit` would raise after it: logs that are there already, a lock that is held."""
    _check_mode(stage.root, mode)
    if not stage.is_new:
        with locked(stage.root, wait):
            pass


def _log_names(root: str) -> list[str]:
    names = []
    for name in sorted(os.listdir(root)):
        with contextlib.suppress(LogDirectoryError):
            topic, _, mark = parse_directory_name(name)
            if mark is None and topic != _METADATA and os.path.isdir(os.path.join(root, name)):
                names.append(name)
    return names


def commit(
    stage: Stage,
    parts: Sequence[Part],
    *,
    segment_bytes: int = 1 << 30,
    index_interval_bytes: int = 4096,
    mode: Mode = "append",
    wait: float = 0.0,
) -> list[Written]:
    """Put parts in place.

    Parameters
    ----------
    stage : Stage
    parts : sequence of Part
        In the order in which their records get offsets. Where offsets are kept, the offsets order them.
    segment_bytes, index_interval_bytes : int
        As for `kbatch.log.write.log_writer.LogWriter`.
    mode : {"append", "error", "overwrite"}
        Of logs that are in the directory: go on with them, refuse, or remove them all. ``__cluster_metadata`` stays.
    wait : float
        Seconds to wait for the lock of a directory that is there.

    Returns
    -------
    list of Written
        By topic and partition.

    Raises
    ------
    LogDirectoryError
        If another holds the lock, or has made the directory meanwhile; if a part isn't there as it was written; if
        kept offsets overlap, or begin before a log's end; if a log's last segment doesn't end with a whole batch; if a
        crashed write can't be rolled back. Everything is then as it was.
    """
    logs: dict[tuple[str, int], list[Part]] = {}
    for part in parts:
        logs.setdefault((part.topic, part.partition), []).append(part)
    sizes = (segment_bytes, index_interval_bytes)
    new = os.path.join(stage.path, "new")
    if stage.is_new:
        if not logs:
            return []
        os.makedirs(new)
        written = [_build(new, parts, 0, 0, sizes) for _, parts in sorted(logs.items())]
        sync_directory(new)
        try:
            # An empty directory would be renamed over.
            if os.path.lexists(stage.root):
                raise OSError(errno.EEXIST, os.strerror(errno.EEXIST))
            move_all([(new, stage.root)])
        except OSError as error:
            raise LogDirectoryError(
                f"{stage.root}: can't be made: {error.strerror}; another writer may have made it meanwhile. Nothing "
                "was written",
                source=stage.root,
            ) from error
        return written
    with locked(stage.root, wait):
        _roll_back_crashed(stage.root)
        _check_mode(stage.root, mode)
        os.makedirs(new)
        os.makedirs(os.path.join(stage.path, "old"))
        written, moves = [], []
        if mode == "overwrite":
            gone = [*_log_names(stage.root), *(set(os.listdir(stage.root)) & set(_CHECKPOINTS))]
            moves += [(name, _relative(stage, "old", name)) for name in gone]
        for (topic, partition), parts in sorted(logs.items()):
            name = f"{topic}-{partition}"
            there = mode != "overwrite" and os.path.lexists(os.path.join(stage.root, name))
            end, epoch = _end(os.path.join(stage.root, name)) if there else (0, 0)
            written.append(_build(new, parts, end, epoch, sizes))
            moves += _moves(stage, name) if there else [(_relative(stage, "new", name), name)]
        if moves:
            _move(stage, moves)
    return written


def _relative(stage: Stage, *names: str) -> str:
    """Return the path of a file of a stage as a journal has it: from the log directory on."""
    return os.path.relpath(os.path.join(stage.path, *names), stage.root)


def _end(directory: str) -> tuple[int, int]:
    """Return where a log goes on, and its leader epoch."""
    if not os.path.isdir(directory):
        raise LogDirectoryError(f"{directory}: is no directory", source=directory)
    if not any(parse_segment_name(name) is not None for name in os.listdir(directory)):
        return 0, 0
    log = Log(directory)
    tail = log.tail
    if tail.kind != "none":
        raise LogDirectoryError(
            f"{log.segments[-1].path}, byte {tail.position}: {tail.size} bytes that are no whole batch ({tail.kind}) "
            "end the log; a broker cuts them off when it starts, and what comes after with them. Cut them off first",
            source=log.segments[-1].path,
            position=tail.position,
        )
    epochs = log.leader_epochs
    if len(epochs):
        return log.end_offset, int(epochs["epoch"][-1])
    last, _ = log.segments[-1].last_batch()
    return log.end_offset, int(last["partition_leader_epoch"]) if last is not None and last["magic"] == 2 else -1


def _build(new: str, parts: Sequence[Part], end: int, epoch: int, sizes: tuple[int, int]) -> Written:
    """Write the segments of a topic-partition, from offset `end` on."""
    topic, partition = parts[0].topic, parts[0].partition
    name = f"{topic}-{partition}"
    if any(part.kept for part in parts):
        parts = sorted(parts, key=lambda part: part.first_offset)
        reached, where = end - 1, "the log's last"
        for part in parts:
            if part.first_offset <= reached:
                raise LogDirectoryError(
                    f"{name}: offset {part.first_offset} is to be written, but {where} is {reached}; offsets that "
                    "are kept must be unique, beyond the log's end, and in one task or in tasks of their own "
                    "(repartitionByRange by offset). Or let offsets be assigned (offsets=assign)"
                )
            reached, where = part.last_offset, "another task's last"
    first = None
    # A name that leaves room for what the writer puts around it.
    building = os.path.join(new, "building-0")
    with LogWriter(
        building, segment_bytes=sizes[0], index_interval_bytes=sizes[1], follow_transactions=False
    ) as writer:
        for part in parts:
            shift = 0 if part.kept else end
            found = 0
            for data, rows in _batches(part):
                _assign(data, rows, shift, epoch)
                writer.append_scanned(data, rows)
                found += int(rows["record_count"].sum())
                end = int(rows["last_offset"][-1]) + 1
            if found != part.records:
                raise LogDirectoryError(f"{part.path}: {found} records, but {part.records} were written to it")
            first = part.first_offset + shift if first is None else first
    os.rename(building, os.path.join(new, name))
    records = sum(part.records for part in parts)
    return Written(topic, partition, first or 0, end, records, writer.bytes_written, len(writer.segments))


def _batches(part: Part) -> Iterator[tuple[npt.NDArray[np.uint8], npt.NDArray[np.void]]]:
    """Read a part, some whole batches at a time, into memory of its own."""
    try:
        file = open(part.path, "rb", buffering=0)  # noqa: SIM115
    except OSError as error:
        raise LogDirectoryError(
            f"{part.path}: a task wrote it, but it isn't there ({error.strerror}); the log directory must be on a file "
            "system that the driver and all workers share",
            source=part.path,
        ) from error
    with file:
        size = os.fstat(file.fileno()).st_size
        if size != part.size:
            raise LogDirectoryError(f"{part.path}: has {size} bytes, but {part.size} were written", source=part.path)
        rest = b""
        most = _READ
        while chunk := file.read(most):
            data = np.frombuffer(bytearray(rest + chunk), np.uint8)
            scan = scan_part(data)
            if scan.finding is not None:
                raise finding_to_error(scan.finding, source=part.path, position=scan.consumed)
            if len(scan.batches):
                yield data, scan.batches
            else:
                most *= 2
            rest = data[scan.consumed :].tobytes()
        if rest:
            raise TruncatedBatchError(f"{part.path}: ends within a batch", source=part.path)


def _assign(data: npt.NDArray[np.uint8], rows: npt.NDArray[np.void], shift: int, epoch: int) -> None:
    """Set offsets and leader epoch in the headers of batches of magic 2, whose checksums don't cover them (CRC-R1)."""
    rows["base_offset"] += shift
    rows["last_offset"] += shift
    rows["partition_leader_epoch"] = epoch
    if int(rows["last_offset"].min()) < shift:
        raise ValueError("there is no offset after 2**63 - 1")
    put_values(data, rows["position"], rows["base_offset"], ">i8")
    put_values(data, rows["position"] + 12, rows["partition_leader_epoch"], ">i4")


def _moves(stage: Stage, name: str) -> list[tuple[str, str]]:
    """Return what is to be moved into the directory of a log that is there: each segment's own file last."""
    made = os.listdir(os.path.join(stage.path, "new", name))
    there = os.listdir(os.path.join(stage.root, name))
    if any(parse_segment_name(each) is not None for each in there):
        # The log's own says more than these batches do; they go on with its last epoch.
        made = [each for each in made if each != "leader-epoch-checkpoint"]
    moves = []
    for each in sorted(made, key=lambda each: (each.partition(".")[0], each.endswith(".log"))):
        target = os.path.join(name, each)
        if each in there:
            # An empty segment, as brokers keep one at a log's end, has the name of the one that takes its place.
            if each.endswith(".log") and os.path.getsize(os.path.join(stage.root, target)):
                raise LogDirectoryError(f"{os.path.join(stage.root, target)}: is there, but the log ends before it")
            moves.append((target, _relative(stage, "old", f"{name},{each}")))
        moves.append((_relative(stage, "new", name, each), target))
    return moves


def _move(stage: Stage, moves: list[tuple[str, str]]) -> None:
    """Rename all of it, or none."""
    journal = os.path.join(stage.path, _JOURNAL)
    logs = []
    for source, target in moves:
        full = os.path.join(stage.root, source)
        if os.path.isdir(full):
            names = [each for each in sorted(os.listdir(full)) if each.endswith(".log")]
            found = [(os.path.join(source, each), os.path.join(target, each)) for each in names]
        else:
            found = [(source, target)] if source.endswith(".log") else []
        logs += [(*each, os.path.getsize(os.path.join(stage.root, each[0]))) for each in found]
    told = {"moves": moves, "logs": logs}
    try:
        with open(f"{journal}.tmp", "x") as file:
            json.dump(told, file)
            file.flush()
            os.fsync(file.fileno())
        os.rename(f"{journal}.tmp", journal)
        sync_directory(stage.path)
        sync_directory(stage.root)
        rename_all([(os.path.join(stage.root, source), os.path.join(stage.root, target)) for source, target in moves])
        os.unlink(journal)
        sync_directory(stage.path)
    except BaseException:
        _undo(stage.root, stage.path, told)
        raise


def _undo(root: str, stage: str, told: dict[str, Any]) -> None:
    """Undo the moves of a journal, as far as they were made, and remove it."""
    moves: list[tuple[str, str]] = told["moves"]
    logs: list[tuple[str, str, int]] = told["logs"]
    placed: dict[str, set[str]] = {}
    for source, target, size in logs:
        source, target = os.path.join(root, source), os.path.join(root, target)
        if os.path.lexists(target) and not os.path.lexists(source):
            if os.path.getsize(target) != size:
                raise _changed(target, stage)
            placed.setdefault(os.path.dirname(target), set()).add(os.path.basename(target))
    for directory, names in placed.items():
        last = max(names)
        for name in os.listdir(directory):
            if parse_segment_name(name) is not None and name > last:
                raise _changed(os.path.join(directory, name), stage)
    sync_parents(undo_moves([(os.path.join(root, source), os.path.join(root, target)) for source, target in moves]))
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(stage, _JOURNAL))


def _read_journal(path: str) -> dict[str, Any]:
    try:
        with open(path) as file:
            told: dict[str, Any] = json.load(file)
        return {
            "moves": [(str(source), str(target)) for source, target in told["moves"]],
            "logs": [(str(source), str(target), int(size)) for source, target, size in told["logs"]],
        }
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LogDirectoryError(f"{path}: can't be read: {error}", source=path) from error


def _changed(path: str, stage: str) -> LogDirectoryError:
    return LogDirectoryError(
        f"{path}: was written to after a write that crashed had put segments here, so that it can't be undone. What it "
        f"has moved stands in {os.path.join(stage, _JOURNAL)}: undo that by hand, or keep it and remove {stage}",
        source=path,
    )


def _roll_back_crashed(root: str) -> int:
    """Undo writes that crashed while they were put in place; the caller holds the lock. Returns how many."""
    count = 0
    for name in sorted(os.listdir(root)):
        stage = os.path.join(root, name)
        if _STAGE.fullmatch(name) and os.path.lexists(os.path.join(stage, _JOURNAL)):
            _undo(root, stage, _read_journal(os.path.join(stage, _JOURNAL)))
            shutil.rmtree(stage, ignore_errors=True)
            count += 1
    return count


def roll_back(root: str | os.PathLike[str], *, unfinished: bool = False) -> int:
    """Undo what writers that crashed have left in a log directory.

    A write that crashed while it was put in place has left a directory ``.kbatch-write-*.tmp`` with a ``journal.json``;
    some of its segments may be there already. They are moved away again. The next writer does the same by itself.

    Parameters
    ----------
    root : str or path
    unfinished : bool
        Whether to remove too what writers have left that never came so far: the same directories without a journal, in
        `root` or, of one that wasn't there yet, beside it. They are harmless to readers, but brokers don't start with
        them. No writer may be running.

    Returns
    -------
    int
        Of how many writes something was removed.

    Raises
    ------
    LogDirectoryError
        If another holds the lock, or a segment was changed since the crash.

    Examples
    --------
    >>> import tempfile
    >>> from kbatch.log import roll_back
    >>> with tempfile.TemporaryDirectory() as root:
    ...     roll_back(root)
    0
    """
    root = os.path.realpath(root)
    count = 0
    if os.path.isdir(root):
        with locked(root):
            count = _roll_back_crashed(root)
    if unfinished:
        for prefix in (os.path.join(root, ""), _beside(root)):
            for path in glob.glob(f"{glob.escape(prefix)}.kbatch-write-*.tmp"):
                if _STAGE.fullmatch(path.removeprefix(prefix)):
                    shutil.rmtree(path, ignore_errors=True)
                    count += 1
    return count
