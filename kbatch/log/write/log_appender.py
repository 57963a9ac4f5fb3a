"""Appends complete batches, unchanged, to the logs of a directory: each commit places new segments, all or none.

The position of a log is its end offset, so that a run continues where the last commit ended. A run that is killed
leaves its work directory, which the next run removes, or undoes if it has a journal (`kbatch.log.write.journal`).
"""

from __future__ import annotations

import base64
import contextlib
import os
import re
import uuid
from collections.abc import Iterator
from dataclasses import replace
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt

from kbatch.errors import LogDirectoryError, cannot_write
from kbatch.format import ATTRIBUTE_TRANSACTIONAL, BatchStatus
from kbatch.log.files.checkpoints import LEADER_EPOCH_CHECKPOINT, START_CHECKPOINT, checkpoint_offsets
from kbatch.log.files.properties import PARTITION_METADATA
from kbatch.log.logs import Log
from kbatch.log.segment import Segment
from kbatch.log.store.storage import is_url, locate
from kbatch.log.write.commit import Written, locked
from kbatch.log.write.journal import move_into_place, undo_crashed
from kbatch.log.write.log_writer import LogWriter, epochs_text, new_epochs
from kbatch.log.write.staging import Stage, refuse_link
from kbatch.publishing import move_all, remove_abandoned, sync_directory
from kbatch.read.decode_options import DecodeOptions
from kbatch.read.in_memory import decode_part
from kbatch.transactions import TransactionTracker, are_control
from kbatch.unfinished import forget_unfinished, register_unfinished

__all__ = ["AppendedLog", "LogAppender"]

# A commit is made before the new segments of all logs are larger than this, or than one segment.
COMMIT_BYTES = 1 << 30
# Bytes of a segment that are read at a time.
RECOVERED_BYTES = 16 << 20
_BACKUP_NAME = re.compile(r"\.kbatch-backup-[0-9a-f]{32}\.tmp")
_WHOLE = DecodeOptions(framing_only=True)
_COUNTED = DecodeOptions(columns=("offset",), on_error="skip")


class AppendedLog:
    """A log of the directory, which may not exist yet.

    Parameters
    ----------
    appender : LogAppender
    topic : str
    partition : int

    Attributes
    ----------
    name : str
    log : Log or None
        As it was in the directory.
    end_offset : int or None
        The offset at which it is continued; None for a new log.
    last_epoch : int
        The leader epoch of its last batch, or -1.
    """

    def __init__(self, appender: LogAppender, topic: str, partition: int) -> None:
        self._appender = appender
        self.topic, self.partition = topic, partition
        self.name = f"{topic}-{partition}"
        self.path = os.path.join(appender.root, self.name)
        refuse_link(self.path)
        self.log: Log | None = None
        self.end_offset: int | None = None
        self.last_epoch = -1
        self.epochs: list[tuple[int, int]] = []
        self.topic_id: uuid.UUID | None = None
        self.base_offset = 0
        self.start_checkpoint: int | None = None
        # The last segment, if it does not end with a valid batch: its valid part is written again, without the rest.
        self.torn: Segment | None = None
        self.cut_bytes = 0
        self.writer: LogWriter | None = None
        self._tracker: TransactionTracker | None = None
        self.first_offset: int | None = None
        self.records = self.control_records = self.bytes = self.segments = 0
        if os.path.lexists(self.path):
            self._open(Log(self.path))

    def _open(self, log: Log) -> None:
        self.log = log
        self.epochs = [(int(row["epoch"]), int(row["start_offset"])) for row in log.leader_epochs]
        self.topic_id = log.topic_id
        self.end_offset = log.end_offset
        row, tail = log.segments[-1].last_batch()
        is_torn = tail.kind != "none" or (row is not None and not _is_sound(log.segments[-1], row))
        if not is_torn:
            for segment in reversed(log.segments):
                row = segment.last_batch()[0]
                if row is not None:
                    self.last_epoch = int(row["partition_leader_epoch"]) if row["magic"] == 2 else -1
                    break
            return
        self.torn = segment = log.segments[-1]
        self.end_offset = segment.base_offset or 0
        self.cut_bytes = segment.size
        for _, rows in _valid_batches(segment):
            self.cut_bytes -= int(rows["size"].sum())
            self.end_offset = int(rows["last_offset"][-1]) + 1
            self.last_epoch = int(rows["partition_leader_epoch"][-1]) if rows["magic"][-1] == 2 else -1
        self.epochs = [(epoch, offset) for epoch, offset in self.epochs if offset < self.end_offset]

    def begin(self, topic_id: uuid.UUID, start_offset: int) -> None:
        """Set what a new log has: the id of its topic, and its first offset."""
        if self.log is None:
            self.topic_id = topic_id if topic_id.int else None
            self.base_offset = start_offset
            self.end_offset = start_offset

    def append(self, data: npt.NDArray[np.uint8], rows: npt.NDArray[np.void]) -> None:
        """Append batches that are valid.

        Parameters
        ----------
        data : ndarray of uint8
        rows : ndarray of BATCH_DTYPE
            Consecutive batches in `data`.
        """
        if not len(rows):
            return
        self._appender.make_room(int(rows["size"].sum()))
        first = int(rows["base_offset"][0])
        if self.log is None and not self.bytes and first < self.base_offset:
            # DeleteRecords has moved the log start offset into a batch.
            self.start_checkpoint, self.base_offset = self.base_offset, first
        writer = self._opened()
        if self._tracker is None and (rows["attributes"] & ATTRIBUTE_TRANSACTIONAL).any():
            opened = () if self.log is None else self.log.transactions(on_error="stop").open
            self._tracker = TransactionTracker(opened)
        if self._tracker is not None:
            self._tracker.add(data, rows, 0)
            writer.append_aborted(self._tracker.drain().aborted)
        writer.append_scanned(data, rows)
        self.epochs += new_epochs(rows, self.epochs[-1][0] if self.epochs else -1)
        self.first_offset = first if self.first_offset is None else self.first_offset
        self.end_offset = int(rows["last_offset"][-1]) + 1
        counts, control = _record_counts(data, rows), are_control(rows)
        self.control_records += int(counts[control].sum())
        self.records += int(counts[~control].sum())
        self.bytes += int(rows["size"].sum())

    def _opened(self) -> LogWriter:
        """Return the writer of the next commit."""
        if self.writer is None:
            torn, self.torn = self.torn, None
            is_first = self.log is None and not self.segments
            base = self.base_offset if is_first else self.end_offset or 0
            self.writer = self._appender.make_writer(self, base if torn is None else torn.base_offset or 0)
            if torn is not None:
                assert self.log is not None
                aborted = self.log.transactions(on_error="stop").aborted
                self.writer.append_aborted(aborted[aborted["last_offset"] >= (torn.base_offset or 0)])
                for data, rows in _valid_batches(torn):
                    self.writer.append_scanned(data, rows)
        return self.writer

    def finish(self) -> None:
        """Make the files of a new log without batches, and of a log that was recovered."""
        if self.torn is not None or (self.log is None and not self.segments):
            self._opened()

    def close(self) -> None:
        """Close the files of a commit."""
        if self.writer is None:
            return
        writer, self.writer = self.writer, None
        if self.epochs:
            writer.write_file(LEADER_EPOCH_CHECKPOINT, epochs_text(self.epochs))
        if self.log is None and not self.segments and self.topic_id is not None:
            text = base64.urlsafe_b64encode(self.topic_id.bytes).decode().rstrip("=")
            writer.write_file(PARTITION_METADATA, f"version: 0\ntopic_id: {text}\n".encode())
        writer.close()
        self.segments += len(writer.segments)

    @property
    def written(self) -> Written:
        """What was committed."""
        end = self.end_offset or 0
        first = end if self.first_offset is None else self.first_offset
        still_open = () if self._tracker is None else tuple(self._tracker.result().open)
        counts = (self.records, self.bytes, self.segments, self.control_records, self.cut_bytes)
        return Written(self.topic, self.partition, first, end, *counts, still_open)


def _is_sound(segment: Segment, row: np.void) -> bool:
    """Whether the checksum of a batch is right."""
    position = int(row["position"])
    table = decode_part(segment.window(position, position + int(row["size"])), replace(_WHOLE, on_error="skip"))
    return not table.losses


def _record_counts(data: npt.NDArray[np.uint8], rows: npt.NDArray[np.void]) -> npt.NDArray[np.int64]:
    """Return the number of records of each batch; compressed message sets of magic 0 and 1 do not state it."""
    counts = rows["record_count"].astype(np.int64)
    for row in np.flatnonzero(counts < 0):
        start = rows["position"][row]
        counts[row] = len(decode_part(data[start : start + rows["size"][row]], _COUNTED))
    return counts


def _valid_batches(segment: Segment) -> Iterator[tuple[npt.NDArray[np.uint8], npt.NDArray[np.void]]]:
    """Yield the batches of a segment up to the first one that is not valid, as a starting broker keeps them."""
    position, size = 0, RECOVERED_BYTES
    while position < segment.size:
        data = segment.window(position, min(position + size, segment.size))
        table = decode_part(data, replace(_WHOLE, on_error="stop"))
        rows = table.batches[BatchStatus.sound(table.batches["status"])]
        if len(rows):
            yield data, rows
            position += int(rows["position"][-1] + rows["size"][-1])
        if table.losses or (position + len(data) >= segment.size and not len(rows)):
            return
        if not len(rows):
            size *= 2


class LogAppender:
    """Appends batches to the logs of a directory, which it locks as brokers do.

    As a context manager it removes at the end what is not committed.

    Parameters
    ----------
    root : str or path
        A log directory; if it does not exist, its parent must.
    segment_bytes, index_interval_bytes : int
        As for `LogWriter`.

    Raises
    ------
    LogDirectoryError
        If `root` is a URL or a file, its parent is missing, or another process holds its lock.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        segment_bytes: int = 1 << 30,
        index_interval_bytes: int = 4096,
    ) -> None:
        if is_url(os.fspath(root)):
            raise LogDirectoryError(f"{root}: a backup can be written to a local path only", source=os.fspath(root))
        self.root = os.path.realpath(locate(root)[1])
        self._sizes = (segment_bytes, index_interval_bytes)
        self._limit = max(COMMIT_BYTES, segment_bytes)
        self._stage: Stage | None = None
        self._staged: list[AppendedLog] = []
        self._staged_bytes = 0
        self._starts: dict[tuple[str, int], int] = {}
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        try:
            if not os.path.lexists(self.root):
                os.mkdir(self.root)
        except OSError as error:
            raise cannot_write(self.root, error) from error
        if not os.path.isdir(self.root):
            raise LogDirectoryError(f"{self.root}: is not a directory", source=self.root)
        self._stack.enter_context(locked(self.root))
        undo_crashed(self.root)
        remove_abandoned(self.root, _BACKUP_NAME)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            for log in self._staged:
                if log.writer is not None:
                    log.writer.discard()
            if self._stage is not None:
                if isinstance(error, OSError):
                    self._stage.name_error(error)
                self._remove_stage()
        finally:
            self._stack.close()

    def open(self, topic: str, partition: int) -> AppendedLog:
        """Return a log of the directory, at its end.

        Raises
        ------
        LogDirectoryError
            If its directory is a symbolic link or has no segment.
        """
        return AppendedLog(self, topic, partition)

    def make_room(self, size: int) -> None:
        """Commit if the batches of the next append would make the commit too large."""
        if self._staged_bytes and self._staged_bytes + size > self._limit:
            self.commit()
        self._staged_bytes += size

    def make_writer(self, log: AppendedLog, base_offset: int) -> LogWriter:
        """Return a writer of new segments, which the next commit places."""
        if self._stage is None:
            self._stage = Stage(self.root, kind="backup")
            register_unfinished(self._stage, self._stage.remove)
            self._stage.lock()
            os.mkdir(self._stage.new)
        self._staged.append(log)
        return LogWriter(
            os.path.join(self._stage.new, f"building-{len(self._staged)}"),
            base_offset=base_offset,
            segment_bytes=self._sizes[0],
            index_interval_bytes=self._sizes[1],
            follow_transactions=False,
        )

    def commit(self) -> None:
        """Place the new segments of all logs, or none."""
        stage, staged = self._stage, self._staged
        if stage is None:
            return
        placed: list[str] = []
        removed: list[str] = []
        for number, log in enumerate(staged, 1):
            log.close()
            move_all([(os.path.join(stage.new, f"building-{number}"), os.path.join(stage.new, log.name))], sync=False)
            if not os.path.lexists(log.path):
                placed.append(log.name)
            else:
                files, replaced = _moves(stage, log)
                placed += files
                removed += replaced
            if log.start_checkpoint is not None:
                self._starts[log.topic, log.partition] = log.start_checkpoint
                log.start_checkpoint = None
        if self._starts:
            placed.append(START_CHECKPOINT)
            if self._write_starts(stage):
                removed.append(START_CHECKPOINT)
        sync_directory(stage.new)
        move_into_place(stage, placed, removed)
        self._starts.clear()
        self._staged, self._staged_bytes = [], 0
        self._remove_stage()

    def _write_starts(self, stage: Stage) -> bool:
        """Write the log start offsets of new logs to the checkpoint; return whether there was one."""
        path = os.path.join(self.root, START_CHECKPOINT)
        exists = os.path.lexists(path)
        known = checkpoint_offsets(self.root, START_CHECKPOINT, locate(self.root)[0], None) if exists else {}
        lines = [
            f"{topic} {number} {offset}\n" for (topic, number), offset in sorted({**known, **self._starts}.items())
        ]
        with open(os.path.join(stage.new, START_CHECKPOINT), "x") as file:
            file.write("".join(["0\n", f"{len(lines)}\n", *lines]))
            file.flush()
            os.fsync(file.fileno())
        return exists

    def _remove_stage(self) -> None:
        stage, self._stage = self._stage, None
        assert stage is not None
        stage.remove()
        forget_unfinished(stage)


def _moves(stage: Stage, log: AppendedLog) -> tuple[list[str], list[str]]:
    """Return what is placed in the directory of a log, the ``.log`` of a segment last, and what that replaces."""
    made = os.listdir(os.path.join(stage.new, log.name))
    made.sort(key=lambda each: (each.partition(".")[0], each.endswith(".log")))
    existing = set(os.listdir(log.path))
    stems = {each.partition(".")[0] for each in made if each.endswith(".log")}
    # A segment that replaces one makes its other files again.
    replaced = [
        each
        for each in sorted(existing)
        if each in made or (each.partition(".")[0] in stems and not each.endswith(".snapshot"))
    ]
    for each in replaced:
        refuse_link(os.path.join(log.path, each))
    return [os.path.join(log.name, each) for each in made], [os.path.join(log.name, each) for each in replaced]
