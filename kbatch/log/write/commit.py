"""Commits the files of many tasks as segments of a log directory: all topic-partitions, or none.

Everything is first written to a directory in or next to the log directory that neither brokers nor readers take for a
log. Then it is moved into place:

- A new log directory gets its name with one rename, so it is never visible in part.
- In an existing log directory, directories and segment files are renamed one by one, under the lock that brokers take
  too. A journal lists the moves and is on disk before the first one. If a move fails, the earlier ones are undone.
  After a crash the journal remains: the next writer, or `roll_back`, undoes its moves. Removing it is the commit.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import os
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from kbatch.arguments import check_types
from kbatch.batches.framing import put_values, scan_part
from kbatch.batches.regular_files import open_descriptor, open_regular
from kbatch.errors import LogDirectoryError, TruncatedBatchError, exists_already, finding_to_error
from kbatch.log.files.checkpoints import LEADER_EPOCH_CHECKPOINT
from kbatch.log.logs import Log
from kbatch.log.store.names import parse_directory_name, parse_segment_name
from kbatch.log.write.journal import CHECKPOINTS, STAGE_NAME, move_into_place, undo_crashed
from kbatch.log.write.log_writer import LogWriter
from kbatch.log.write.parts import PartFile
from kbatch.log.write.staging import Stage, refuse_link, stage_prefix
from kbatch.public_names import public_in
from kbatch.publishing import move_all, sync_directory
from kbatch.quantities import INT32_MAX, SizeLike, size_between
from kbatch.transactions import OpenTransaction

__all__ = ["Mode", "Written", "check_before", "commit", "locked", "roll_back"]

# Bytes that are read at a time when files are compared before a commit.
COMMIT_READ_BYTES = 16 << 20

# Kafka's own lock file. A broker holds the lock as long as it runs.
_LOCK = ".lock"
# The log of a KRaft controller, which a broker may have in its log directory.
_METADATA_TOPIC = "__cluster_metadata"

Mode = Literal["append", "error", "overwrite"]
# The files of tasks by topic and partition.
_LogParts: TypeAlias = dict[tuple[str, int], list[PartFile]]

# The locks between threads of this process, by the path of the lock file.
_locks: dict[str, threading.Lock] = {}


@public_in("kbatch.log")
class Written(NamedTuple):
    """The result of a write to one topic-partition.

    Attributes
    ----------
    topic : str
    partition : int
    first_offset, next_offset : int
        Offset of the first record written, and the offset after the last.
    records : int
        Without control records.
    bytes : int
        Size of the batches.
    segments : int
        Number of new segments.
    control_records : int
        Transaction markers and other control records, which only a backup has.
    cut_bytes : int
        Bytes at the end of the backup that were no valid batches, as after a crash, and were cut.
    open_transactions : tuple of OpenTransaction
        The transactions that are open at the end, if any of the batches is transactional.

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
    control_records: int = 0
    cut_bytes: int = 0
    open_transactions: tuple[OpenTransaction, ...] = ()


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
        If another process or thread holds it.
    """
    path = os.path.join(os.path.realpath(root), _LOCK)
    taken = LogDirectoryError(
        f"{path}: a broker or another writer holds this lock; nothing was written. Stop the broker, or write again "
        "when the other writer has finished",
        source=root,
    )
    until = time.monotonic() + wait
    # File locks belong to a process, so other threads are excluded by a lock of their own.
    of_threads = _locks.setdefault(path, threading.Lock())
    if not of_threads.acquire(timeout=wait):
        raise taken
    try:
        try:
            descriptor = open_descriptor(path, os.O_RDWR | os.O_CREAT, follow=False)
        except OSError as error:
            raise _refused(path, error) from error
        try:
            while not _has_lock(path, descriptor):
                if time.monotonic() >= until:
                    raise taken
                time.sleep(0.05)
            yield
        finally:
            os.close(descriptor)
    finally:
        of_threads.release()


def _has_lock(path: str, descriptor: int) -> bool:
    """Try to lock a file as brokers do; return whether this process holds the lock."""
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EAGAIN):
            raise _refused(path, error) from error
        return False
    return True


def _refused(path: str, error: OSError) -> LogDirectoryError:
    return LogDirectoryError(f"{path}: can't be locked: {error.strerror}", source=os.path.dirname(path))


def _check_mode(stage: Stage, mode: Mode) -> None:
    """Raise if the directory contains logs and mode is "error"."""
    root = stage.root
    if mode == "error" and os.path.isdir(root) and (names := _log_names(root)):
        listed = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
        raise exists_already(
            root,
            f"exists already, with logs ({listed})",
            f"append to them, or replace all of them with {stage.overwrite}",
        )


def check_before(stage: Stage, mode: Mode, wait: float = 0.0) -> None:
    """Raise the errors that `commit` would raise after the work: existing logs, or a lock that is held."""
    _check_mode(stage, mode)
    if not stage.is_new:
        with locked(stage.root, wait):
            pass


def _log_names(root: str) -> list[str]:
    """Return the names of the topic-partition directories, none of which may be a link."""
    names = []
    for name in sorted(os.listdir(root)):
        try:
            topic, _, mark = parse_directory_name(name)
        except LogDirectoryError:
            continue
        if mark is None and topic != _METADATA_TOPIC:
            path = os.path.join(root, name)
            refuse_link(path)
            if os.path.isdir(path):
                names.append(name)
    return names


def commit(
    stage: Stage,
    parts: Sequence[PartFile],
    *,
    segment_bytes: SizeLike = 1 << 30,
    index_interval_bytes: SizeLike = 4096,
    mode: Mode = "append",
    wait: float = 0.0,
) -> list[Written]:
    """Move the files of tasks into place as segments.

    Parameters
    ----------
    stage : Stage
    parts : sequence of PartFile
        Records get offsets in the order of these files. Files with kept offsets are sorted by their offsets.
    segment_bytes, index_interval_bytes : int
        As for `kbatch.log.write.log_writer.LogWriter`.
    mode : {"append", "error", "overwrite"}
        Append to the existing logs, raise if there are any, or remove them all. ``__cluster_metadata`` stays.
    wait : float
        Seconds to wait for the lock of an existing directory.

    Returns
    -------
    list of Written
        By topic and partition.

    Raises
    ------
    LogDirectoryError
        If another writer holds the lock, or has created the directory meanwhile; if a part is missing or differs from
        its task's report; if kept offsets overlap, or begin before a log's end; if a log's last segment does not end
        with a complete batch; if a log's directory or a file to be replaced is a symbolic link; if a crashed write
        can't be rolled back. No file is changed in these cases.
    """
    logs: _LogParts = {}
    for part in parts:
        logs.setdefault((part.topic, part.partition), []).append(part)
    sizes = (
        size_between("segment_bytes", segment_bytes, 1, INT32_MAX),
        size_between("index_interval_bytes", index_interval_bytes, 0, INT32_MAX),
    )
    if stage.is_new:
        return _create(stage, logs, sizes) if logs else []
    with locked(stage.root, wait):
        undo_crashed(stage.root)
        _check_mode(stage, mode)
        return _add(stage, logs, sizes, overwrite=mode == "overwrite")


def _create(stage: Stage, logs: _LogParts, sizes: tuple[int, int]) -> list[Written]:
    """Create a log directory with one rename."""
    os.makedirs(stage.new)
    written = [_build(stage.new, parts, 0, 0, sizes) for _, parts in sorted(logs.items())]
    sync_directory(stage.new)
    try:
        # A rename would replace an empty directory.
        if os.path.lexists(stage.root):
            raise OSError(errno.EEXIST, os.strerror(errno.EEXIST))
        move_all([(stage.new, stage.root)])
    except OSError as error:
        raise LogDirectoryError(
            f"{stage.root}: can't be created: {error.strerror}; another writer may have created it meanwhile. "
            "Nothing was written",
            source=stage.root,
        ) from error
    return written


def _add(stage: Stage, logs: _LogParts, sizes: tuple[int, int], *, overwrite: bool) -> list[Written]:
    """Add segments to a log directory, or replace its logs; the caller holds the lock."""
    os.makedirs(stage.new)
    written: list[Written] = []
    placed: list[str] = []
    removed: list[str] = []
    if overwrite:
        checkpoints = set(os.listdir(stage.root)) & set(CHECKPOINTS)
        for name in checkpoints:
            refuse_link(os.path.join(stage.root, name))
        removed += [*_log_names(stage.root), *checkpoints]
    for (topic, partition), parts in sorted(logs.items()):
        name = f"{topic}-{partition}"
        exists = not overwrite and os.path.lexists(os.path.join(stage.root, name))
        end, epoch = _log_end(os.path.join(stage.root, name)) if exists else (0, 0)
        written.append(_build(stage.new, parts, end, epoch, sizes))
        if exists:
            files, replaced = _files(stage, name)
            placed += files
            removed += replaced
        else:
            placed.append(name)
    if placed or removed:
        move_into_place(stage, placed, removed)
    return written


def _log_end(directory: str) -> tuple[int, int]:
    """Return the end offset of a log, and its leader epoch."""
    refuse_link(directory)
    if not os.path.isdir(directory):
        raise LogDirectoryError(f"{directory}: is not a directory", source=directory)
    if not any(parse_segment_name(name) is not None for name in os.listdir(directory)):
        return 0, 0
    log = Log(directory)
    tail = log.incomplete_tail
    if tail.kind != "none":
        raise LogDirectoryError(
            f"{log.segments[-1].path}, byte {tail.position}: {tail.size} bytes after the last complete batch "
            f"({tail.kind}); a broker that starts would truncate the log here, and remove appended batches too. "
            "Truncate it first",
            source=log.segments[-1].path,
            position=tail.position,
        )
    epochs = log.leader_epochs
    if len(epochs):
        return log.end_offset, int(epochs["epoch"][-1])
    last, _ = log.segments[-1].last_batch()
    return log.end_offset, int(last["partition_leader_epoch"]) if last is not None and last["magic"] == 2 else -1


def _build(new: str, parts: Sequence[PartFile], end: int, epoch: int, sizes: tuple[int, int]) -> Written:
    """Write the segments of a topic-partition, from offset `end` on."""
    topic, partition = parts[0].topic, parts[0].partition
    name = f"{topic}-{partition}"
    if any(part.kept for part in parts):
        parts = sorted(parts, key=lambda part: part.first_offset)
        reached, where = end - 1, "the log's last offset"
        for part in parts:
            if part.first_offset <= reached:
                raise LogDirectoryError(
                    f"{name}: can't write offset {part.first_offset}: {where} is {reached}. Kept offsets must be "
                    "unique and beyond the log's end, and tasks must not interleave (repartitionByRange by offset). "
                    "Alternatively let offsets be assigned (offsets=assign)"
                )
            reached, where = part.last_offset, "another task's last offset"
    first = None
    # A short name: the name of the topic-partition could be too long with the writer's prefix and suffix.
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
                raise LogDirectoryError(f"{part.path}: has {found} records, but {part.records} were written")
            first = part.first_offset + shift if first is None else first
    move_all([(building, os.path.join(new, name))], sync=False)
    records = sum(part.records for part in parts)
    return Written(topic, partition, first or 0, end, records, writer.bytes_written, len(writer.segments))


def _batches(part: PartFile) -> Iterator[tuple[npt.NDArray[np.uint8], npt.NDArray[np.void]]]:
    """Yield the batches of a part in writable windows."""
    try:
        file = open_regular(part.path, follow=False)
    except OSError as error:
        raise LogDirectoryError(
            f"{part.path}: a task wrote this file, but it can't be opened ({error.strerror}); the log directory must "
            "be on a file system that the driver and all workers share",
            source=part.path,
        ) from error
    with file:
        size = os.fstat(file.fileno()).st_size
        if size != part.size:
            raise LogDirectoryError(f"{part.path}: has {size} bytes, but {part.size} were written", source=part.path)
        rest = b""
        read_size = COMMIT_READ_BYTES
        while chunk := file.read(read_size):
            data = np.frombuffer(bytearray(rest + chunk), np.uint8)
            scan = scan_part(data)
            if scan.finding is not None:
                raise finding_to_error(scan.finding, source=part.path, position=scan.consumed)
            if len(scan.batches):
                yield data, scan.batches
            else:
                read_size *= 2
            rest = data[scan.consumed :].tobytes()
        if rest:
            raise TruncatedBatchError(f"{part.path}: ends within a batch", source=part.path)


def _assign(data: npt.NDArray[np.uint8], rows: npt.NDArray[np.void], shift: int, epoch: int) -> None:
    """Set offsets and leader epoch in batches of magic 2, whose checksums do not cover them (CRC-R1)."""
    rows["base_offset"] += shift
    rows["last_offset"] += shift
    rows["partition_leader_epoch"] = epoch
    if int(rows["last_offset"].min()) < shift:
        raise ValueError("offsets would exceed 2**63 - 1")
    put_values(data, rows["position"], rows["base_offset"], ">i8")
    put_values(data, rows["position"] + 12, rows["partition_leader_epoch"], ">i4")


def _files(stage: Stage, name: str) -> tuple[list[str], list[str]]:
    """Return what is placed in the directory of a log, the ``.log`` of a segment last, and what that replaces."""
    made = os.listdir(os.path.join(stage.path, "new", name))
    existing = os.listdir(os.path.join(stage.root, name))
    if any(parse_segment_name(each) is not None for each in existing):
        # The log's own file also covers the earlier batches, and new batches continue its last epoch.
        made = [each for each in made if each != LEADER_EPOCH_CHECKPOINT]
    placed, replaced = [], []
    for each in sorted(made, key=lambda each: (each.partition(".")[0], each.endswith(".log"))):
        target = os.path.join(name, each)
        if each in existing:
            refuse_link(os.path.join(stage.root, target))
            # Brokers keep an empty segment at a log's end. The new segment has the same name and replaces it.
            if each.endswith(".log") and os.path.getsize(os.path.join(stage.root, target)):
                raise LogDirectoryError(f"{os.path.join(stage.root, target)}: exists, but the log ends before it")
            replaced.append(target)
        placed.append(target)
    return placed, replaced


@public_in("kbatch.log")
def roll_back(root: str | os.PathLike[str], *, unfinished: bool = False) -> int:
    """Undo crashed writes in a log directory.

    A write that crashed during its moves leaves a directory ``.kbatch-write-*.tmp`` with a ``journal.json``, and may
    leave some of its segments in place. This function moves them away again; so does the next writer.

    Parameters
    ----------
    root : str or path
    unfinished : bool
        Whether to remove the directories of writes that crashed before their moves too: those without a journal, in
        `root`, or next to it if `root` did not exist. Readers ignore them, but brokers do not start with them. No
        writer may be running.

    Returns
    -------
    int
        Number of writes whose files were removed.

    Raises
    ------
    LogDirectoryError
        If another process holds the lock; if a segment has changed since the crash; or if a journal is not one that
        kbatch writes: it has other moves than those between topic-partitions of `root` and its own directory, or leads
        through a symbolic link. Nothing is moved then.

    Examples
    --------
    >>> import tempfile
    >>> from kbatch.log import roll_back
    >>> with tempfile.TemporaryDirectory() as root:
    ...     roll_back(root)
    0
    """
    check_types(roll_back, locals())
    root = os.path.realpath(root)
    count = 0
    if os.path.isdir(root):
        with locked(root):
            count = undo_crashed(root)
    if unfinished:
        for prefix in (os.path.join(root, ""), stage_prefix(root)):
            for path in glob.glob(f"{glob.escape(prefix)}.kbatch-*-*.tmp"):
                if STAGE_NAME.fullmatch(path.removeprefix(prefix)) and not os.path.islink(path):
                    shutil.rmtree(path, ignore_errors=True)
                    count += 1
    return count
