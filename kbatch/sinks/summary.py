"""The summary of an export, for programs and for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, NamedTuple, Protocol

import numpy as np

from kbatch.log import Log
from kbatch.options import CodecName
from kbatch.public_names import public_in
from kbatch.quantities import largest
from kbatch.read.decode_options import Isolation
from kbatch.records.display import changed_repr
from kbatch.sinks.counts import Counts
from kbatch.sinks.task import TaskReport
from kbatch.sinks.task_transactions import TaskTransactions
from kbatch.sinks.write_options import ExportMode, OutputFormat
from kbatch.transactions import OpenTransaction, Transactions
from kbatch.values.deviations import DeviationTable

__all__ = ["MAX_LISTED", "ExportSummary", "LogFacts", "PartitionSummary", "RunTotals", "sum_reports"]

# The maximum number of losses, and of gaps, that a summary lists; the side table has all of them.
MAX_LISTED = 100
# The maximum number of open, and of undecided, transactions that are listed for a partition.
_LISTED_TRANSACTIONS = 20


@public_in("kbatch")
@dataclass(slots=True)
class PartitionSummary:
    """The result of an export for one topic-partition.

    Attributes
    ----------
    topic : str
    partition : int
    records, files, file_bytes, log_bytes : int
        Records and data files written, bytes of these files, and bytes of the batches read.
    control_records : int
        Control records, such as transaction markers, in the batches read. They are written, and count in
        `records`, only with ``include_control``.
    first_offset, last_offset, first_timestamp, last_timestamp : int or None
        Ranges of the records written; timestamps are in milliseconds since the epoch.
    lost_bytes : int
        Bytes of the log without records because of damage, or because kbatch does not read their format.
    unfinished_bytes : int
        Bytes of an incomplete batch at the end of the log, which is truncated or still being written.
    aborted_batches, aborted_bytes : int
        Batches that read_committed omitted because their transaction was aborted.
    undecided_batches, undecided_bytes : int
        Batches that read_committed withheld because their transaction is open, because they follow the last stable
        offset, or because damage destroyed the marker of their transaction.
    last_stable_offset : int or None
        Under read_committed, the first offset of the log's first open transaction; None if none is open.
    open_count : int
        Number of open transactions: under read_committed those of the log, else those that begin in the batches read.
    open_transactions : list of dict
        The first twenty open transactions: producer_id, first_offset, first_timestamp (-1 if unknown).
    undecided_count : int
        Number of transactions of the log whose markers are damaged, so that their outcome is unknown.
    undecided_transactions : list of dict
        The first twenty undecided transactions: producer_id, first_offset, last_offset.
    continued_from : int or None
        The offset at which the run continued; None if no earlier run has exported the topic-partition.
    next_offset : int or None
        The offset at which the next run continues; None if there was nothing to read.
    removed_offsets : int
        Offsets without a record in the range read, because compaction has removed them. 0 if damage may be the
        reason.
    gap_offsets : int
        Offsets that are missing between two segments for an unknown reason.
    end_offset : int or None
        The offset after the last complete batch of the log when it was listed; for a cluster, the high watermark.
    withheld_offsets : int
        For a cluster under read_committed, the number of offsets from the last stable offset on.
    history_records, history_bytes : int
        The part of the records and batch bytes that was read from files of the history of a cluster.

    Examples
    --------
    >>> import kbatch
    >>> summary = kbatch.export("tests/golden/logs/codec-zstd-0", "/tmp/parquet")  # doctest: +SKIP
    >>> [(each.topic, each.partition, each.last_offset) for each in summary.partitions]  # doctest: +SKIP
    [('codec-zstd', 0, 3143)]
    """

    topic: str
    partition: int
    records: int = 0
    files: int = 0
    file_bytes: int = 0
    log_bytes: int = 0
    first_offset: int | None = None
    last_offset: int | None = None
    first_timestamp: int | None = None
    last_timestamp: int | None = None
    lost_bytes: int = 0
    unfinished_bytes: int = 0
    aborted_batches: int = 0
    aborted_bytes: int = 0
    undecided_batches: int = 0
    undecided_bytes: int = 0
    last_stable_offset: int | None = None
    open_count: int = 0
    open_transactions: list[dict[str, int]] = field(default_factory=list)
    undecided_count: int = 0
    undecided_transactions: list[dict[str, int]] = field(default_factory=list)
    continued_from: int | None = None
    next_offset: int | None = None
    removed_offsets: int = 0
    gap_offsets: int = 0
    end_offset: int | None = None
    control_records: int = 0
    withheld_offsets: int = 0
    history_records: int = 0
    history_bytes: int = 0

    @property
    def lag_offsets(self) -> int:
        """The number of offsets from the position after the run to the end of the log."""
        if self.next_offset is None or self.end_offset is None:
            return 0
        return max(0, self.end_offset - self.next_offset)

    def __repr__(self) -> str:
        return changed_repr(self)


class _Record(Protocol):
    def mark_seen(self, names: Sequence[str]) -> None: ...


@public_in("kbatch")
@dataclass
class ExportSummary:
    """The result of an export.

    Attributes
    ----------
    logdir, out : str
    isolation : str
    format : str
    mode : str
    run : str
        The run's id, which is part of the names of its files.
    action : str
        What the run did: ``created`` the output, ``continued`` or ``replaced`` it, or left it ``unchanged``, because
        there was nothing new.
    changes : list of dict
        Logs that were truncated, recreated, or lost records to retention since the last run: topic, partition,
        kind, position, resumed_at, reason.
    include_control : bool
        Whether control records are written; they then count in `records`.
    records, control_records, log_bytes, file_bytes, aborted_batches, aborted_bytes, undecided_batches, \
undecided_bytes : int
        Totals of all partitions, as in `PartitionSummary`.
    batches : dict of CodecName to int
        Batches read, by codec.
    bad_crc_batches : int
        Batches with a wrong checksum that were accepted (``crc="mark"``).
    lost_bytes, loss_count : int
        Bytes without records because of damage, and the number of losses: ranges of such bytes, and gaps.
    gap_offsets, gap_count : int
        Offsets that are missing between two segments for an unknown reason, and the number of such gaps.
    gaps : list of dict
        The first hundred gaps: topic, partition, first_offset, last_offset, and the files before and after.
    bad_keys, bad_values : int
        Keys and values that cannot be parsed: null, with their bytes in the columns ``key_bad`` and ``value_bad`` and
        the reason in ``key_error`` and ``value_error``.
    incomplete_keys, incomplete_values : int
        JSON with fields that do not fit the inferred schema. The other fields were parsed; the bytes and the reason are
        in the same columns.
    deviations : list of dict
        Fields that do not fit the inferred schema, or were written as their JSON text, at most a hundred by name:
        column, kind (``unknown``, ``conflict`` or ``text``), field (None for all others), reason, occurrences, and the
        first occurrence: topic, partition, offset.
    schema_changes : list of dict
        Columns, and fields of structs, that this run added to the data or widened: column (a path such as
        ``value.lines[].price``), change (``added`` or ``widened``), type, and before (the type before it was widened).
        All topics of an export have the same columns.
    losses : list of dict
        The first hundred losses: topic, partition, file, position, length, reason, base_offset. A gap has the length 0.
    losses_table : str or None
        The directory of Parquet files with all losses, relative to `out`. None if nothing was lost.
    withheld_transactions : int
        Number of open and undecided transactions that made read_committed withhold records.
    transactions_table : str or None
        The directory of Parquet files with these transactions, relative to `out`, with the columns of the data source's
        table ``transactions``. None if nothing was withheld.
    withheld_offsets : int
        For a cluster under read_committed, the number of offsets from the last stable offsets on, which belong to open
        transactions or follow them.
    history_records, history_bytes : int
        Totals, as in `PartitionSummary`.
    partitions : list of PartitionSummary
    files : list of str
        The data files, relative to `out`.
    manifest : str
        The file with this summary as JSON, relative to `out`.
    too_many_bad : bool
        Whether more keys and values are unparsed or incomplete than ``max_bad`` allows.
    missing_offsets : list of dict
        Offsets that the options name but the logs do not have, with ``fail_on_data_loss=False``: topic, partition,
        first_offset, last_offset (None if all offsets from the first on were requested), and reason.
    report : str
        The file with the report of this run, relative to `out`; empty if there is nothing to report or to commit.
    unseen_reports : list of dict
        The reports of earlier runs that died after their commit but before they printed a summary: ``report``, the name
        of the file, and its contents.
    engine, engine_reason : str
        The engine that ran the tasks, "local" or "spark", and the reason for choosing it.
    seconds, start_seconds, plan_seconds, task_seconds, commit_seconds : float
        The total time without starting Spark, and the times of starting Spark, planning, the tasks, and the commit of
        their files. The manifest is written before the commit ends, so `commit_seconds` is 0 there.

    Examples
    --------
    >>> import kbatch
    >>> summary = kbatch.export("tests/golden/logs/codec-zstd-0", "/tmp/parquet")  # doctest: +SKIP
    >>> summary.records, summary.lost_bytes  # doctest: +SKIP
    (3144, 0)
    """

    logdir: str
    out: str
    isolation: Isolation = "read_uncommitted"
    format: OutputFormat = "parquet"
    records: int = 0
    log_bytes: int = 0
    file_bytes: int = 0
    aborted_batches: int = 0
    aborted_bytes: int = 0
    undecided_batches: int = 0
    undecided_bytes: int = 0
    batches: dict[CodecName, int] = field(default_factory=dict)
    bad_crc_batches: int = 0
    lost_bytes: int = 0
    loss_count: int = 0
    bad_keys: int = 0
    bad_values: int = 0
    losses: list[dict[str, Any]] = field(default_factory=list)
    losses_table: str | None = None
    withheld_transactions: int = 0
    transactions_table: str | None = None
    partitions: list[PartitionSummary] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    manifest: str = ""
    seconds: float = 0.0
    start_seconds: float = 0.0
    too_many_bad: bool = False
    missing_offsets: list[dict[str, Any]] = field(default_factory=list)
    plan_seconds: float = 0.0
    task_seconds: float = 0.0
    commit_seconds: float = 0.0
    mode: ExportMode = "continue"
    run: str = ""
    action: str = "created"
    changes: list[dict[str, Any]] = field(default_factory=list)
    incomplete_keys: int = 0
    incomplete_values: int = 0
    deviations: list[dict[str, Any]] = field(default_factory=list)
    gap_offsets: int = 0
    gap_count: int = 0
    gaps: list[dict[str, Any]] = field(default_factory=list)
    report: str = ""
    unseen_reports: list[dict[str, Any]] = field(default_factory=list)
    engine: str = ""
    engine_reason: str = ""
    schema_changes: list[dict[str, Any]] = field(default_factory=list)
    control_records: int = 0
    include_control: bool = False
    withheld_offsets: int = 0
    history_records: int = 0
    history_bytes: int = 0

    def __post_init__(self) -> None:
        # These are not fields, because they are not part of the result.
        self._record: _Record | None = None
        self._followed: dict[tuple[str, int], TaskTransactions] = {}

    def __repr__(self) -> str:
        return changed_repr(self)

    def mark_seen(self) -> None:
        """Mark the reports of this run and of `unseen_reports` as seen, so that the next export does not repeat them.

        `kbatch.export` does this, unless its argument ``mark_seen`` is False: a job can then store the summary first.
        """
        if self._record is not None:
            self._record.mark_seen(
                [*([self.report] if self.report else []), *(x["report"] for x in self.unseen_reports)]
            )

    @property
    def damaged(self) -> bool:
        """Whether anything was lost or missing, or accepted with a wrong checksum."""
        deleted = any(change["kind"] == "deleted" for change in self.changes)
        return self.loss_count > 0 or self.bad_crc_batches > 0 or bool(self.missing_offsets) or deleted

    @property
    def withheld(self) -> bool:
        """Whether read_committed withheld records of open or undecided transactions."""
        return self.withheld_transactions > 0 or self.undecided_batches > 0 or self.withheld_offsets > 0

    @property
    def bad(self) -> int:
        """The number of keys and values that cannot be parsed completely."""
        return self.bad_keys + self.bad_values + self.incomplete_keys + self.incomplete_values

    @property
    def run_status(self) -> int:
        """The exit status of only this run.

        3 if damaged, else 4 if anything is withheld, else 5 if too many keys or values cannot be parsed completely,
        else 0.
        """
        return 3 if self.damaged else 4 if self.withheld else 5 if self.too_many_bad else 0

    @property
    def exit_status(self) -> int:
        """The exit status of ``kbatch export``: the worst of this run and `unseen_reports`."""
        found = {self.run_status, *(each["exit_status"] for each in self.unseen_reports)}
        return next((status for status in (3, 4, 5) if status in found), 0)

    @property
    def records_per_second(self) -> float:
        """Records written per second of `seconds`."""
        return self.records / self.seconds if self.seconds > 0 else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the summary as plain values, for JSON."""
        return {**asdict(self), **self._computed()}

    def _manifest_fields(self) -> dict[str, Any]:
        """Return the fields for the manifest, like `to_dict` but for `json_parts`, without reports of earlier runs."""
        names = [each.name for each in fields(self) if each.name != "unseen_reports"]
        return {**{name: getattr(self, name) for name in names}, **self._computed()}

    def _computed(self) -> dict[str, Any]:
        return {"records_per_second": round(self.records_per_second)}


class LogFacts:
    """The facts about logs for summaries and positions, in columns.

    A reference to a log, or an object allocated between logs, would keep the memory blocks of all logs in use.

    Attributes
    ----------
    names : list of (topic, partition)
        Created when requested.
    topic_ids : list of str or None
    """

    def __init__(self, logs: Sequence[Any]) -> None:
        topics: dict[str, str] = {}
        ids: dict[str, str] = {}
        self._topics: list[str] = []
        self.topic_ids: list[str | None] = []
        for log in logs:
            assert log.topic is not None
            topic = topics.get(log.topic) or topics.setdefault(log.topic, log.topic[:1] + log.topic[1:])
            self._topics.append(topic)
            topic_id = None if log.topic_id is None else str(log.topic_id)
            self.topic_ids.append(None if topic_id is None else ids.setdefault(topic_id, topic_id))
        self._partitions = np.fromiter((log.partition for log in logs), np.int64, len(logs))
        tails = (log.incomplete_tail for log in logs)
        self._ends = np.fromiter((_end_of(log) for log in logs), np.int64, len(logs))
        self._unfinished = np.fromiter((tail.size * (tail.kind == "partial") for tail in tails), np.int64, len(logs))

    @property
    def names(self) -> list[tuple[str, int]]:
        """The topic-partitions."""
        return list(zip(self._topics, self._partitions.tolist(), strict=True))

    def summaries(
        self,
        counts: dict[tuple[str, int], Counts],
        transactions: Sequence[Transactions | None],
        starts: Sequence[int | None],
        ends: dict[tuple[str, int], int | None],
        followed: dict[tuple[str, int], TaskTransactions],
        withheld: Sequence[int],
    ) -> Iterator[PartitionSummary]:
        """Yield the summaries of the logs; logs without counts were not read.

        `followed` has the transactions in the batches read, for logs whose `transactions` are None.
        """
        tails = zip(self._unfinished.tolist(), self._ends.tolist(), withheld, strict=True)
        rows = zip(self.names, tails, transactions, starts, strict=True)
        # One list for all: 100,000 partitions would have 11 MB of empty ones.
        none: list[dict[str, int]] = []
        for name, (unfinished, end, withheld_offsets), known, start in rows:
            read = counts.pop(name, Counts())
            part = PartitionSummary(
                *name,
                **read.fields_of(PartitionSummary),
                files=read.file_count,
                continued_from=start,
                next_offset=ends[name],
                unfinished_bytes=unfinished,
                end_offset=end,
                withheld_offsets=withheld_offsets,
                open_transactions=none,
                undecided_transactions=none,
            )
            still_open: Sequence[OpenTransaction] = ()
            if known is not None:
                still_open = known.open
                part.last_stable_offset = known.last_stable_offset
                part.undecided_count = len(known.undecided)
                part.undecided_transactions = [
                    {name: int(row[name]) for name in ("producer_id", "first_offset", "last_offset")}
                    for row in known.undecided[:_LISTED_TRANSACTIONS]
                ]
            elif name in followed:
                still_open = followed[name].transactions()
            if still_open:
                part.open_count = len(still_open)
                part.open_transactions = [each._asdict() for each in still_open[:_LISTED_TRANSACTIONS]]
            yield part


def _end_of(log: Any) -> int:
    """Return the end of a log, which may be after the last stable offset."""
    return int(log.end_offset if isinstance(log, Log) else log.high_watermark)


class RunTotals(NamedTuple):
    """The sums of all reports of a run: counts, and the lists of the summary under the same names."""

    counts: Counts
    partitions: list[PartitionSummary]
    gaps: list[dict[str, Any]]
    deviations: list[dict[str, Any]]
    # By topic-partition, for logs whose transactions are not followed from their beginning.
    followed: dict[tuple[str, int], TaskTransactions]


def sum_reports(
    logs: LogFacts,
    transactions: Sequence[Transactions | None],
    reports: Iterable[TaskReport],
    starts: Sequence[int | None],
    withheld: Sequence[int],
) -> RunTotals:
    """Add up the reports of the tasks, in the order of each log, from the offsets at which the run began."""
    ends = dict(zip(logs.names, starts, strict=True))
    counts: dict[tuple[str, int], Counts] = {}
    followed: dict[tuple[str, int], TaskTransactions] = {}
    gaps: list[dict[str, Any]] = []
    deviations = DeviationTable()
    for report in reports:
        name = (report.topic, report.partition)
        before, after, end = counts.get(name), report.counts, ends[name]
        if report.begin_offset is not None:
            is_complete = not after.lost_bytes and not (before and before.lost_bytes)
            if is_complete and end is not None and report.begin_offset > end:
                after += Counts(removed_offsets=report.begin_offset - end)
            ends[name] = largest(end, report.end_offset)
        counts[name] = after if before is None else before + after
        if report.transactions != TaskTransactions():
            followed[name] = followed.get(name, TaskTransactions()).then(report.transactions)
        named = {"topic": report.topic, "partition": report.partition}
        gaps += [named | gap for gap in report.gaps[: MAX_LISTED - len(gaps)]]
        for *key, count, offset in report.deviations:
            deviations.add(tuple(key), count, (*name, offset))
    names = ("column", "kind", "field", "reason", "occurrences", "topic", "partition", "offset")
    listed = [dict(zip(names, (*key, count, *place), strict=True)) for key, (count, place) in deviations.found.items()]
    total = sum(counts.values(), Counts())
    known = {name for name, each in zip(logs.names, transactions, strict=True) if each is not None} if followed else ()
    followed = {name: each for name, each in followed.items() if name not in known}
    partitions = list(logs.summaries(counts, transactions, starts, ends, followed, withheld))
    return RunTotals(total, partitions, gaps, listed, followed)
