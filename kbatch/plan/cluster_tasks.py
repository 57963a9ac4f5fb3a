"""The ranges of offsets of a cluster that a task reads from files or fetches, and their tables."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import groupby, pairwise
from typing import Any, TypeVar

from kbatch.error_codes import ErrorCode
from kbatch.format import Limits
from kbatch.live.cluster import Cluster
from kbatch.live.counters import ReadCounters
from kbatch.live.data_loss import DataLoss
from kbatch.live.fetch_state import PartitionFetch
from kbatch.live.live_ranges import LiveRange, RangesInTurn, tables_in_turn
from kbatch.live.settings import ClientSettings
from kbatch.live.transport import TransportFactory
from kbatch.log.gaps import SegmentGap
from kbatch.log.missing import MissingOffsets, report_data_loss
from kbatch.log.reading import TABLE_BYTES, read_tables
from kbatch.log.row_filter import RowFilter, key_bytes
from kbatch.log.segment import planned_segment
from kbatch.plan.history_files import FileTables, between, file_crc
from kbatch.plan.history_plan import offsets_text
from kbatch.plan.read_options import ReadOptions
from kbatch.plan.split import Split
from kbatch.read.decode_options import DecodeOptions
from kbatch.records.data import decoded_columns
from kbatch.records.loss_list import Loss
from kbatch.table import RecordTable

__all__ = ["ClusterRange", "ClusterReader", "file_tables", "range_decoding"]

RangeT = TypeVar("RangeT", bound=LiveRange)


@dataclass(frozen=True, slots=True)
class ClusterRange(LiveRange):
    """A range of offsets with an estimate of its bytes; a part of a task, like `kbatch.plan.split.Split`.

    Attributes
    ----------
    density : float
        The estimated bytes per offset.
    split : Split or None
        The part of a file of the history with the records; None if brokers send them.
    """

    density: float = 0.0
    split: Split | None = None

    @classmethod
    def of(cls, planned: LiveRange, density: float) -> ClusterRange:
        """Return a range with an estimate."""
        return cls(**{each.name: getattr(planned, each.name) for each in fields(planned)}, density=density)

    @property
    def log(self) -> str:
        """The name of the partition, which identifies the log."""
        return self.path

    @property
    def bytes(self) -> int:
        """The estimated bytes."""
        return round(self.records * self.density)

    @property
    def is_history(self) -> bool:
        """Whether the records are read from a file."""
        return self.split is not None

    @property
    def limit(self) -> int:
        """The first offset after the range."""
        return self.stop

    def bytes_after(self, before: object) -> int:
        """Return the bytes between the previous part and this one that are not read."""
        return 0

    def fetched_from(self, offset: int) -> ClusterRange:
        """Return the range from an offset on, to be sent by brokers."""
        return replace(self, start=offset, may_begin_later=self.may_begin_later and offset == self.start, split=None)

    def in_file(self, split: Split) -> list[ClusterRange]:
        """Return the part of the range that a split of a file has; none if the split has no offset."""
        start, stop = split.start_offset or 0, split.stop_offset or 0
        if start >= stop:
            return []
        density = split.bytes / (stop - start)
        return [replace(self, start=start, stop=stop, density=density, split=split, may_begin_later=False)]

    def cut(self, offsets: Sequence[int]) -> list[ClusterRange]:
        """Return the parts of the range between these offsets, which ascend and may be outside of the range."""
        return [
            replace(self, start=start, stop=stop, may_begin_later=self.may_begin_later and start == self.start)
            for start, stop in pairwise([self.start, *between(offsets, self.start, self.stop), self.stop])
        ]

    def _is_fetched_before(self, after: ClusterRange) -> bool:
        is_next = self.path == after.path and self.stop == after.start
        return is_next and not (self.is_history or after.is_history)

    @staticmethod
    def joined(parts: Iterable[ClusterRange]) -> list[ClusterRange]:
        """Join adjacent ranges."""
        found: list[ClusterRange] = []
        for each in parts:
            before = found[-1] if found else None
            if before is not None and before._is_fetched_before(each):
                found[-1] = replace(before, stop=each.stop)
            else:
                found.append(each)
        return found


class _RunLoss(DataLoss):
    """Reports records that retention deletes before they are read.

    After a truncation, or if the topic was recreated, the run fails; the next run compares the positions with the log.
    """

    def __init__(self, fails: bool) -> None:
        super().__init__(fails, ReadCounters(), lambda key, offset: None)

    def end(
        self, fetch: PartitionFetch, reason: str, code: ErrorCode | None, stop: int, broker: str | None = None
    ) -> None:
        self.fails = True
        super().end(fetch, reason, code, stop, broker)

    def _advice(self, fetch: PartitionFetch) -> str:
        return (
            "start the export again, which compares its positions with the topic; --allow-missing-offsets "
            "(fail_on_data_loss=False) exports the records that remain"
        )

    def note(self, missing: MissingOffsets) -> None:
        self.missing.append(missing)
        report_data_loss(missing.reason, fails=False)


class ClusterReader:
    """Reads the ranges of tasks, each with its own connections, which are not pickled.

    Parameters
    ----------
    settings : ClientSettings
    transport : TransportFactory, optional
        Opens connections; by default, sockets.
    storage_options : mapping of str to str, optional
        For the files of a history.
    """

    def __init__(
        self,
        settings: ClientSettings,
        transport: TransportFactory | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        self._settings = settings
        self._transport = transport
        self._storage_options = storage_options
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._running: set[RangesInTurn] = set()
        self._is_stopped = False

    def __getstate__(self) -> dict[str, Any]:
        names = ("_settings", "_transport", "_storage_options")
        return {name: getattr(self, name) for name in names}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    def stop(self) -> None:
        """Make the reads of all tasks of this process end soon; another thread calls this."""
        with self._lock:
            self._is_stopped = True
            for turns in self._running:
                turns.stop()

    def tables(
        self,
        parts: Sequence[ClusterRange],
        options: ReadOptions,
        columns: tuple[str, ...] | None = None,
        gaps: list[SegmentGap] | None = None,
    ) -> Iterator[tuple[ClusterRange, RecordTable]]:
        """Read the ranges of a task, as `kbatch.plan.tasks.task_tables` reads splits of files.

        Records that cannot be read from a file of the history are fetched.

        Raises
        ------
        BrokerError, AuthenticationError
            Also if records are missing, unless retention has deleted them and the options allow that.
        KbatchError
            For damage.
        """
        with Cluster(self._settings, transport=self._transport) as cluster:
            # The address is right: the read was planned with it.
            cluster._was_reached = True
            # Topics with the same options are fetched together.
            for (of_topic, in_files), of_options in groupby(
                parts, lambda each: (options._for_topic(each.topic), each.is_history)
            ):
                fetched = partial(self._tables, cluster, of_topic, columns, [] if gaps is None else gaps)
                if in_files:
                    yield from file_tables(of_options, of_topic, columns, self._storage_options, fetched)
                else:
                    yield from fetched(list(of_options))

    def _tables(
        self,
        cluster: Cluster,
        options: ReadOptions,
        columns: tuple[str, ...] | None,
        gaps: list[SegmentGap],
        parts: Sequence[ClusterRange],
    ) -> Iterator[tuple[ClusterRange, RecordTable]]:
        rows = RowFilter(keys=key_bytes(options.key))
        decoding = range_decoding(options, columns, rows)
        loss = _RunLoss(options.fail_on_data_loss or options.on_gap == "raise")
        turns = RangesInTurn(parts)
        with self._lock:
            self._running.add(turns)
            if self._is_stopped:
                turns.stop()
        try:
            for each, table in tables_in_turn(cluster, turns, decoding, loss, rows=rows, max_bytes=TABLE_BYTES):
                assert isinstance(each, ClusterRange)
                yield from _missing_tables(parts, loss, decoding, gaps)
                yield each, table
                del table
            yield from _missing_tables(parts, loss, decoding, gaps)
        finally:
            with self._lock:
                self._running.discard(turns)


def file_tables(
    parts: Iterable[ClusterRange],
    options: ReadOptions,
    columns: tuple[str, ...] | None,
    storage_options: Mapping[str, str] | None,
    fetched: Callable[[Sequence[ClusterRange]], Iterator[tuple[RangeT, RecordTable]]],
) -> Iterator[tuple[ClusterRange | RangeT, RecordTable]]:
    """Read the ranges of a task that are in files of the history; `fetched` reads what cannot be read from a file."""
    for each in parts:
        tables = FileTables(_decoded_file_part(each, options, columns, storage_options), each.start)
        for table in tables:
            yield each, table
            del table
        if tables.error is not None and tables.reached < each.stop:
            where = f"{each.path}: {offsets_text(tables.reached, each.stop)}"
            logging.getLogger(__name__).warning("%s fetched from the cluster, since %s", where, tables.error)
            yield from fetched([each.fetched_from(tables.reached)])


def _decoded_file_part(
    part: ClusterRange,
    options: ReadOptions,
    columns: tuple[str, ...] | None,
    storage_options: Mapping[str, str] | None,
) -> Iterator[RecordTable]:
    """Yield the tables of a part of a file; damage is an error, since the cluster has these records too."""
    split, rows = part.split, RowFilter(keys=key_bytes(options.key))
    assert split is not None
    decoding = replace(
        range_decoding(options, columns, rows),
        crc=file_crc(options.crc),
        on_error="raise",
        # The plan has decided which batches are withheld.
        isolation="read_uncommitted",
        withheld=split.withheld,
        start_offset=split.start_offset,
        stop_offset=split.stop_offset,
    )
    segment = planned_segment(split.path, live=False, storage_options=storage_options, size=split.size)
    for table in read_tables(segment, split.start, split.end, decoding, TABLE_BYTES):
        yield rows.chosen(table)._with(topic=split.topic, partition=split.partition)
        del table


def range_decoding(options: ReadOptions, columns: tuple[str, ...] | None, rows: RowFilter) -> DecodeOptions:
    """Return how the batches of a task are decoded, for the columns that its caller and the row filter use."""
    return DecodeOptions(
        isolation=options.isolation,
        include_control=options.include_control,
        crc=options.crc,
        on_error=options.on_error,
        limits=Limits(max_decompressed_bytes=options.max_decompressed_bytes),
        columns=None if columns is None else decoded_columns(tuple(dict.fromkeys((*columns, *rows.columns)))),
    )


def _missing_tables(
    parts: Sequence[ClusterRange], loss: DataLoss, options: DecodeOptions, gaps: list[SegmentGap]
) -> Iterator[tuple[ClusterRange, RecordTable]]:
    """Yield an empty table for each range of offsets that was deleted before it was read."""
    while loss.missing:
        missing = loss.missing.pop(0)
        last = missing.first_offset if missing.last_offset is None else missing.last_offset
        part = next(
            each
            for each in parts
            if (each.topic, each.partition) == (missing.topic, missing.partition)
            and each.start <= missing.first_offset < each.stop
        )
        gaps.append(SegmentGap(missing.first_offset, last, part.path, part.path, 0, compacted=False))
        lost = Loss(0, 0, missing.reason, missing.first_offset)
        yield part, RecordTable._empty(options.table_columns, consumed=0, losses=[lost], source=part.path)
