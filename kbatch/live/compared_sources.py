"""The two sides of a comparison, files or clusters: their logs, and the records of each log within its bounds."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias

from kbatch.live.cluster_source import ClusterSource
from kbatch.live.live_partitions import LivePartition
from kbatch.live.live_transactions import live_open_transactions
from kbatch.live.settings import ClientSettings
from kbatch.log.check.comparison import COMPARED_COLUMNS, ComparedInput, FileInput
from kbatch.log.discovery import open_logs
from kbatch.log.log_bounds import BoundedLog, LogBound, start_of, stop_of
from kbatch.log.log_list import LogList
from kbatch.log.logs import Log
from kbatch.log.read_arguments import ReadArguments
from kbatch.log.selection import LogChooser, Selection
from kbatch.log.source import LogSource, OpenSource, RangeRequest
from kbatch.log.store.storage import is_cluster_url
from kbatch.log.topics import TopicChoice, TopicFilter, partition_numbers
from kbatch.options import Isolation
from kbatch.settings_text import ClientConfig
from kbatch.table import RecordTable
from kbatch.transactions import OpenTransaction

__all__ = [
    "BoundedPair",
    "ComparedLogs",
    "ComparedSide",
    "TopicNames",
    "cluster_of",
    "open_sides",
    "paired_logs",
]

ComparedLogs: TypeAlias = "Log | LogList | LogSource | Sequence[Log] | str | os.PathLike[str]"
Bounds: TypeAlias = tuple[LogBound, LogBound]


@dataclass(frozen=True)
class TopicNames:
    """Which topic-partitions are compared, and the name that their only topic has on the other side."""

    topics: TopicChoice | None
    partitions: frozenset[int] | None
    other: str | None

    @classmethod
    def of(cls, topics: TopicChoice | None, partitions: Any, other: str | None) -> TopicNames:
        """Check the arguments of `compare_logs`.

        Raises
        ------
        TypeError, ValueError
        """
        if isinstance(topics, Iterable) and not isinstance(topics, str):
            topics = list(topics)
        choice = None if topics is None else TopicFilter(topics)
        if other is not None and (choice is None or choice.has_patterns or len(choice.names) != 1):
            raise ValueError(
                f"the other topic {other!r} is the name of one topic in b: choose exactly one topic by its name in a, "
                "without a pattern"
            )
        return cls(topics, partition_numbers(partitions), other)

    def selection(self, *, is_other: bool) -> Selection | None:
        """Return the selection of a side, `b` if `is_other`; None for all logs."""
        topics = self.other if is_other and self.other is not None else self.topics
        return (
            None if topics is None and self.partitions is None else Selection(topics=topics, partitions=self.partitions)
        )

    def name_in_a(self, topic: str, *, is_other: bool) -> str:
        """Return the topic name that pairs the logs of both sides."""
        if is_other and self.other is not None and topic == self.other:
            (name,) = TopicFilter(self.topics or ()).names
            return name
        return topic


class ComparedSide(Protocol):
    """One side of a comparison."""

    is_cluster: bool

    @property
    def logs(self) -> Sequence[BoundedLog]:
        """The logs of the side."""

    @property
    def is_single(self) -> bool:
        """Whether the side is one log, which is compared regardless of its name."""

    def input(self, log: Any, bounds: Bounds) -> ComparedInput:
        """Return the records of a log between bounds."""


class _Files:
    """A side of files."""

    is_cluster = False

    def __init__(self, logs: Sequence[Log], arguments: ReadArguments, *, is_single: bool) -> None:
        self.logs = logs
        self.is_single = is_single
        self._arguments = arguments

    def input(self, log: Log, bounds: Bounds) -> ComparedInput:
        return FileInput(log, log._selection(self._arguments, *bounds))


class _Cluster:
    """A side of live topics."""

    is_cluster = True
    is_single = False

    def __init__(self, source: LogSource, opened: OpenSource, logs: Sequence[Any], given: ReadArguments) -> None:
        self.logs = logs
        self._source = source
        self._opened = opened
        self._arguments = given

    def input(self, log: Any, bounds: Bounds) -> ComparedInput:
        return _LiveInput(self._source.describe(), self._opened, log, bounds, self._arguments)


@dataclass(frozen=True)
class _LiveInput:
    """A `ComparedInput` of a partition that is fetched during the comparison."""

    path: str
    opened: OpenSource
    log: Any
    bounds: Bounds
    arguments: ReadArguments

    def tables(self) -> Iterator[RecordTable]:
        request = RangeRequest(self.log, *self.bounds, self.arguments.rows(*self.bounds))
        opened = self.opened
        for planned, work in opened.tasks([opened.plan(request)], reverse=False):
            yield from opened.tables(planned, work, COMPARED_COLUMNS, reverse=False)
            del planned, work

    def tables_at(self, offset: int) -> Iterator[RecordTable]:
        bounds = (LogBound(offset), LogBound(offset + 1))
        return replace(self, bounds=bounds).tables()

    def open_transactions(self) -> Sequence[OpenTransaction]:
        log = self.log
        if not isinstance(log, LivePartition):
            return ()
        key = (log.metadata.name, log.number)
        # Without the ACL, or from an old broker, they are unknown.
        leaders = {key: log.metadata.partitions[log.number].broker}
        return live_open_transactions(log.cluster, leaders, lambda note: None).get(key, ())


class BoundedPair:
    """The logs of both sides that are compared with each other, and their bounds; None if a side has no such log."""

    def __init__(self, sides: Sequence[ComparedSide], logs: Sequence[Any], bounds: Mapping[int, Bounds]) -> None:
        self._sides = sides
        self.logs = logs
        self._bounds = [None if log is None else bounds[id(log)] for log in logs]

    def extents(self, isolation: Isolation) -> list[tuple[int, int] | None]:
        """Return the first offset of each log, and the end of the records that can be read."""
        return [None if log is None else (log.start_offset, _readable_end(log, isolation)) for log in self.logs]

    def limit_to_common(self, extents: Sequence[tuple[int, int]]) -> tuple[int, int] | None:
        """Limit the bounds of both logs to the offsets of both `extents` that are within the caller's bounds too.

        Returns these offsets, or None if no log has any within the caller's bounds.
        """
        chosen = []
        for log, bounds, (low, high) in zip(self.logs, self._bounds, extents, strict=True):
            start, end = bounds or (LogBound(), LogBound())
            # A bound that counts back from the end is another offset in each log.
            begins, ends = start_of(log, start), stop_of(log, end)
            chosen.append((low if begins is None else max(begins, low), high if ends is None else min(ends, high)))
        first = max(low for low, _ in chosen)
        stop = max(first, min(high for _, high in chosen))
        for place, log in enumerate(self.logs):
            start, end = self._bounds[place] or (LogBound(), LogBound())
            limited = end._replace(offset=stop, log_end=None)
            if stop_of(log, end) is None and isinstance(log, Log) and log._last[0] is None:
                # The end of the last segment has no valid batch. Only a read can find out whether it is damaged.
                limited = end
            self._bounds[place] = start._replace(offset=first, log_end=None), limited
        return (first, stop) if any(low < high for low, high in chosen) else None

    def inputs(self) -> list[ComparedInput | None]:
        """Return the records of each side."""
        return [
            None if log is None or bounds is None else side.input(log, bounds)
            for side, log, bounds in zip(self._sides, self.logs, self._bounds, strict=True)
        ]


def _readable_end(log: Any, isolation: Isolation) -> int:
    """Return the end of the records that can be read; for a partition, it is already the last stable offset."""
    if isolation == "read_committed" and isinstance(log, Log):
        stable = log.transactions(on_error="skip").last_stable_offset
        return log.end_offset if stable is None else stable
    end: int = log.end_offset
    return end


def open_sides(
    given: tuple[ComparedLogs, ComparedLogs],
    names: TopicNames,
    arguments: ReadArguments,
    configs: tuple[ClientConfig | None, ClientConfig | None],
    storage_options: Mapping[str, str] | None,
    closing: ExitStack,
) -> list[ComparedSide]:
    """Open both sides; `closing` closes the connections of clusters.

    Raises
    ------
    KbatchError
    ValueError
        For settings without a cluster, and for a topic or partition that does not exist.
    """
    clusters = _clusters(given, configs)
    arguments = arguments.replaced(columns=COMPARED_COLUMNS)
    files = [
        None if cluster else _opened_files("ab"[place], each, names, arguments, storage_options, is_other=place == 1)
        for place, (each, cluster) in enumerate(zip(given, clusters, strict=True))
    ]
    sides: list[ComparedSide] = []
    for place, (cluster, side) in enumerate(zip(clusters, files, strict=True)):
        if cluster is None:
            assert side is not None
            sides.append(side)
        else:
            sides.append(_opened_cluster(cluster, files[1 - place], names, arguments, closing, is_other=place == 1))
    return sides


def _clusters(
    given: Sequence[ComparedLogs], configs: tuple[ClientConfig | None, ClientConfig | None]
) -> list[LogSource | None]:
    """Return the cluster of each side; if there is only one, `settings` of the first side may apply to it."""
    is_live = [isinstance(each, LogSource) or (isinstance(each, str) and is_cluster_url(each)) for each in given]
    config, other_config = configs
    if is_live == [False, True] and config is not None:
        if other_config is not None:
            raise ValueError("config and other_config are for two clusters, but only b is one; use one of them")
        config, other_config = None, config
    clusters: list[LogSource | None] = []
    for each, live, settings, name in zip(
        given, is_live, (config, other_config), ("config", "other_config"), strict=True
    ):
        if settings is not None and not live:
            raise ValueError(f"{name} has no effect: it is for a cluster, kafka://HOST:PORT[,HOST:PORT]")
        is_source = isinstance(each, LogSource) and settings is None
        clusters.append(each if is_source else cluster_of(each, settings) if live else None)  # type: ignore[arg-type]
    return clusters


def cluster_of(given: object, config: ClientConfig | None) -> ClusterSource:
    """Return the cluster of a URL with settings, or a `ClusterSource` as it is.

    Raises
    ------
    TypeError, ValueError
        For something else, and for settings of a `ClusterSource`.
    """
    if isinstance(given, ClusterSource):
        if config is not None:
            raise ValueError("config has no effect: a ClusterSource has its settings")
        if given.history:
            raise ValueError("a ClusterSource with a history is for kbatch.scan_logs; here everything is fetched")
        return given
    if not isinstance(given, str) or not is_cluster_url(given):
        raise TypeError(f"a cluster must be kafka://HOST:PORT[,HOST:PORT] or a ClusterSource, got {given!r}")
    return ClusterSource(ClientSettings.of(config, bootstrap_servers=given))


def _opened_files(
    name: str,
    given: ComparedLogs,
    names: TopicNames,
    arguments: ReadArguments,
    storage_options: Mapping[str, str] | None,
    *,
    is_other: bool,
) -> _Files:
    selection = names.selection(is_other=is_other)
    chooser = None if selection is None else LogChooser(selection)
    source: Any = given
    if isinstance(source, str | os.PathLike):
        source = open_logs(source, predicate=chooser, storage_options=storage_options)
    if isinstance(source, Log):
        return _Files([source], arguments, is_single=True)
    if not isinstance(source, LogList | list | tuple) or not all(isinstance(each, Log) for each in source):
        raise TypeError(
            f"{name} must be a Log, a sequence of logs, a path, or a cluster as kafka://HOST:PORT or ClusterSource, "
            f"got {type(source).__name__}"
        )
    logs = [log for log in source if chooser is None or chooser(log.topic, log.partition)]
    return _Files(logs, arguments, is_single=False)


def _opened_cluster(
    source: LogSource,
    files: _Files | None,
    names: TopicNames,
    arguments: ReadArguments,
    closing: ExitStack,
    *,
    is_other: bool,
) -> _Cluster:
    """Open a cluster with the chosen topics, or by default with the topics of the files on the other side."""
    selection = names.selection(is_other=is_other) or Selection()
    logs = () if files is None else files.logs
    topics = {log.topic for log in logs} if files is not None and names.topics is None else None
    if topics == {None}:
        raise ValueError(f"{_place(logs[0])}: its topic is unknown; name the topic of the cluster")
    numbers = {log.partition for log in logs if log.partition is not None} if files and files.is_single else None

    def excludes(topic: str | None, partition: int | None) -> bool:
        is_other_topic = topics is not None and topic not in topics
        # A segment may be in a directory with any name.
        return is_other_topic or bool(numbers and partition not in numbers)

    opened = closing.enter_context(source.open(arguments))
    return _Cluster(source, opened, opened.logs(selection, excludes), arguments)


def paired_logs(sides: Sequence[ComparedSide], names: TopicNames, arguments: ReadArguments) -> list[BoundedPair]:
    """Return the logs to compare with each other, by topic and partition.

    Raises
    ------
    ValueError
        If one side is a log and the other is several, or a list has a topic-partition twice.
    """
    bounds = {id(log): ends for side in sides for log, ends in zip(side.logs, arguments.bounds(side.logs), strict=True)}
    singles = [side for side in sides if side.is_single]
    # A log and the topic of a cluster are compared regardless of their names, like two logs.
    if singles and all(side.is_single or (side.is_cluster and len(side.logs) == 1) for side in sides):
        return [BoundedPair(sides, [side.logs[0] for side in sides], bounds)]
    if singles and not any(side.is_cluster and not side.logs for side in sides):
        raise ValueError(
            f"{_place(singles[0].logs[0])} is one log, but the other side has several; compare two logs or two "
            "directories of logs"
        )
    if names.topics is not None and not singles:
        present = [
            names.name_in_a(log.topic or "", is_other=place == 1)
            for place, side in enumerate(sides)
            for log in side.logs
        ]
        refusal = TopicFilter(names.topics).refusal(present)
        if refusal is None and names.other is not None:
            refusal = TopicFilter(names.other).refusal(log.topic for log in sides[1].logs)
        if refusal is not None:
            raise ValueError(refusal)
    found = [_by_name(side, names, is_other=place == 1) for place, side in enumerate(sides)]
    keys = sorted({*found[0], *found[1]})
    return [BoundedPair(sides, [each.get(key) for each in found], bounds) for key in keys]


def _by_name(side: ComparedSide, names: TopicNames, *, is_other: bool) -> dict[tuple[str, int], BoundedLog]:
    found: dict[tuple[str, int], BoundedLog] = {}
    for log in side.logs:
        if log.topic is None or log.partition is None:
            raise ValueError(f"{_place(log)}: its topic and partition are unknown; compare it as a single log")
        key = (names.name_in_a(log.topic, is_other=is_other), log.partition)
        if (other := found.setdefault(key, log)) is not log:
            raise ValueError(f"{log.topic}-{log.partition} is in the list twice: {_place(other)} and {_place(log)}")
    return found


def _place(log: BoundedLog) -> str:
    """Return where a log is, for messages."""
    return log.path if isinstance(log, Log) else f"{log.topic}-{log.partition}"
