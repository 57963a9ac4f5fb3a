"""`kbatch.log.backup_topics`: copies live topics to a log directory, with the batches that brokers send."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from kbatch.arguments import check_types
from kbatch.errors import LogDirectoryError
from kbatch.format import BatchStatus
from kbatch.live.cluster_source import ClusterSource, PlannedOffsets
from kbatch.live.compared_sources import TopicNames, cluster_of
from kbatch.live.fetch_state import FetchedBatches
from kbatch.live.live_partitions import LivePartition
from kbatch.log.log_bounds import LogBound
from kbatch.log.read_arguments import ReadArguments
from kbatch.log.row_filter import RowFilter
from kbatch.log.selection import Selection
from kbatch.log.source import OpenSource, RangeRequest
from kbatch.log.topics import TopicChoice
from kbatch.log.write.commit import Written
from kbatch.log.write.log_appender import AppendedLog, LogAppender
from kbatch.public_names import public_in
from kbatch.quantities import INT32_MAX, SizeLike, size_between
from kbatch.read.decode_options import DecodeOptions
from kbatch.read.in_memory import decode_part
from kbatch.settings_text import ClientConfig

__all__ = ["backup_topics"]

_FRAMING = DecodeOptions(framing_only=True)


@public_in("kbatch.log")
def backup_topics(
    source: str | ClusterSource,
    out: str | os.PathLike[str],
    *,
    topics: TopicChoice,
    partitions: Iterable[int] | None = None,
    config: ClientConfig | None = None,
    segment_bytes: SizeLike = 1 << 30,
    index_interval_bytes: SizeLike = 4096,
    progress: Callable[[int, int], None] | None = None,
) -> list[Written]:
    """Write live topics to a log directory, with the batches that brokers send, up to the ends that they have now.

    The batches are copied byte for byte: offsets, timestamps, codecs, producers and leader epochs do not change.
    Segments and indexes are new. Every tool that reads a broker's log directory can read the backup: `kbatch.Log`,
    `compare_logs`, Kafka's ``kafka-dump-log.sh``.

    If `out` already has a log of a topic-partition, new batches are appended to it, so that the same call brings a
    backup up to date. New segments appear in commits of about 1 GiB, each complete or not at all: after an error, an
    interrupt or a kill, the next call continues after the last commit, without a missing or a duplicate batch. If the
    last segment ends within a batch or with a damaged batch, as after the crash of a broker, it is truncated there and
    its indexes are rebuilt.

    Parameters
    ----------
    source : str or ClusterSource
        ``kafka://HOST:PORT[,HOST:PORT]``, or a `kbatch.live.ClusterSource`.
    out : str or path
        A log directory. If it does not exist, its parent must. It is locked as by a broker.
    topics : str, re.Pattern, or iterable of them
        Names and globs of topics; a compiled regular expression must match the whole name.
    partitions : iterable of int, optional
    config : mapping, str or path, optional
        Settings of Kafka's clients, or a properties file with them, as for `kbatch.consume`.
    segment_bytes, index_interval_bytes : int or str
        As for `LogWriter`.
    progress : callable, optional
        Called with the number of bytes written so far, and the number of remaining offsets.

    Returns
    -------
    list of Written
        By topic and partition, also if there was nothing new.

    Raises
    ------
    BrokerError, AuthenticationError
        As for `kbatch.consume`.
    CorruptBatchError, CrcMismatchError
        If a broker sends a damaged batch. Earlier commits remain.
    LogDirectoryError
        If another process has locked `out`, or the topic does not continue a log in it: the topic was recreated or
        truncated, or the records after the backup were deleted. Nothing is written then.

    Notes
    -----
    Memory does not depend on the size of the topics. The ``.txnindex`` files are built from the markers. If a run
    appends transactional batches, the headers of the existing log are read first, to find open transactions.

    Examples
    --------
    >>> from kbatch.log import backup_topics
    >>> (written,) = backup_topics("kafka://localhost:9092", "/backup", topics="orders")  # doctest: +SKIP
    >>> written.first_offset, written.next_offset  # doctest: +SKIP
    (0, 1200)
    """
    check_types(backup_topics, locals())
    sizes = (
        size_between("segment_bytes", segment_bytes, 1, INT32_MAX),
        size_between("index_interval_bytes", index_interval_bytes, 0, INT32_MAX),
    )
    cluster = cluster_of(source, config)
    selection = TopicNames.of(topics, partitions, None).selection(is_other=False) or Selection()
    with ExitStack() as stack:
        opened = stack.enter_context(cluster.open(ReadArguments.of(None, {})))
        parts: list[LivePartition] = list(opened.logs(selection))
        appender = stack.enter_context(LogAppender(out, *sizes))
        logs = [_continued(appender, part) for part in parts]
        _Backup(appender, opened, progress).run(parts, logs)
        return [log.written for log in logs]


def _continued(appender: LogAppender, part: LivePartition) -> AppendedLog:
    """Return the log of a partition at the offset where it continues; raise if the partition has another log."""
    log = appender.open(part.metadata.name, part.number)
    if log.log is None:
        log.begin(part.metadata.id, part.start_offset)
        return log
    assert log.end_offset is not None
    no_id = uuid.UUID(int=0)
    if log.topic_id is not None and part.metadata.id not in (no_id, log.topic_id):
        raise _discontinued(
            log,
            f"it is of the topic with id {log.topic_id}, and the cluster has another one of this name, with id "
            f"{part.metadata.id}: the topic was deleted and recreated",
        )
    end = log.end_offset
    if end > part.end_offset:
        raise _discontinued(
            log, f"it ends at offset {end}, but the topic at {part.end_offset}: the topic was truncated or recreated"
        )
    if end < part.start_offset:
        raise _discontinued(
            log, f"it ends at offset {end}, and retention has deleted the records before offset {part.start_offset}"
        )
    if log.last_epoch >= 0:
        found = part.epoch_end(log.last_epoch)
        if found is not None and found.offset < end:
            raise _discontinued(
                log,
                f"it ends at offset {end} with leader epoch {log.last_epoch}, which ends at offset {found.offset} "
                "in the topic: the topic was truncated by an unclean leader election",
            )
    return log


def _discontinued(log: AppendedLog, reason: str) -> LogDirectoryError:
    return LogDirectoryError(
        f"{log.path}: can't be continued: {reason}. Nothing was written; keep this backup and begin a new one in "
        "another directory",
        source=log.path,
    )


class _Backup:
    """One run: partitions are fetched one after the other."""

    def __init__(self, appender: LogAppender, opened: OpenSource, progress: Callable[[int, int], None] | None) -> None:
        self._appender = appender
        self._opened = opened
        self._progress = progress
        self._bytes = 0

    def run(self, parts: list[LivePartition], logs: list[AppendedLog]) -> None:
        """Append the new batches of each partition, and commit."""
        by_key = {(log.topic, log.partition): log for log in logs}
        left = sum(max(part.end_offset - (log.end_offset or 0), 0) for part, log in zip(parts, logs, strict=True))
        for batches in self._fetched(parts, logs):
            log = by_key[batches.fetch.topic, batches.fetch.partition]
            before = log.end_offset or 0
            self._append(log, batches)
            self._bytes += batches.size
            left = max(left - ((log.end_offset or 0) - before), 0)
            if self._progress is not None:
                self._progress(self._bytes, left)
            del batches
        for log in logs:
            log.finish()
        self._appender.commit()

    def _fetched(self, parts: list[LivePartition], logs: list[AppendedLog]) -> Iterator[FetchedBatches]:
        """Yield the batches of each response, by partition in the order of their offsets."""
        planned = []
        for part, log in zip(parts, logs, strict=True):
            request = RangeRequest(part, LogBound(), LogBound(), RowFilter())
            planned.append(PlannedOffsets(request, log.end_offset or 0, part.end_offset))
        for _, batches in self._opened.tasks(planned, reverse=False):
            try:
                yield batches
            finally:
                if batches.slot is not None:
                    batches.slot.release()
            del batches

    @staticmethod
    def _append(log: AppendedLog, batches: FetchedBatches) -> None:
        """Append the sound batches of a response that end within the range."""
        source = f"broker {batches.broker}, {batches.fetch.name}"
        data: npt.NDArray[np.uint8] = batches.data
        table = decode_part(data, replace(_FRAMING, threads=0), source=source)
        rows = table.batches[BatchStatus.sound(table.batches["status"])]
        rows = rows[(rows["last_offset"] >= batches.start) & (rows["last_offset"] < batches.fetch.stop)]
        log.append(data, rows)
