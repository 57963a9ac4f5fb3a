"""`write_report`: a page with what is in a log directory."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from kbatch.arguments import check_types, suggests_names
from kbatch.escaping import counted, format_lost, format_size, format_time
from kbatch.log.logs import Log
from kbatch.log.read_arguments import SCAN_HINTS
from kbatch.log.selection import Selection
from kbatch.log.source import LogSource, OpenedLogs, SourceLike, source_of
from kbatch.log.topics import TopicChoice, TopicFilter, partition_numbers
from kbatch.log.write.staging import NewOutput
from kbatch.public_names import public_in
from kbatch.report import content_sections as content
from kbatch.report import log_sections
from kbatch.report.advice import Advice, advise
from kbatch.report.collecting import LogFigures, TopicFigures, collect
from kbatch.report.page import page, tiles
from kbatch.report.pictures import Pictures, cut
from kbatch.report.scales import format_duration
from kbatch.scans.given_sources import cluster_source
from kbatch.settings_text import ClientConfig
from kbatch.version import VERSION

if TYPE_CHECKING:
    from kbatch.live import ClusterSource

__all__ = ["Report", "write_report"]

_SHOWN_PATHS = 200
_CONTENTS = (
    ("advice", "What to change"),
    ("time", "Over time"),
    ("topics", "Topics and codecs"),
    ("sizes", "Sizes"),
    ("keys", "Keys"),
    ("lateness", "Lateness"),
    ("offsets", "Offsets"),
    ("producers", "Producers"),
    ("transactions", "Transactions"),
    ("tombstones", "Tombstones"),
    ("damage", "Damage"),
)


# Collects the figures of topics. The arguments are the time in milliseconds, and a callback for progress.
_Collected: TypeAlias = "Callable[[int, Callable[[int, int], None] | None], list[TopicFigures]]"


@public_in("kbatch")
@dataclass(frozen=True, slots=True)
class Report:
    """What `write_report` has written.

    Attributes
    ----------
    path : str
        The page.
    topics, logs : int
        The numbers of topics and of topic-partitions.
    records, control_records, bytes : int
        Records without control records, control records such as transaction markers, and the bytes of all segments.
    losses, lost_bytes, missing_offsets : int
        As in ``kbatch stats``: damaged byte ranges and gaps of unknown cause, and their sizes.
    open_transactions : int
    advice : tuple of Advice
        What looks wrong and what to change: `level` ("problem" or "setting"), `where`, `finding` and `change`.

    Examples
    --------
    >>> import os, tempfile
    >>> import kbatch
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     report = kbatch.write_report("tests/golden/logs/txn-0", os.path.join(directory, "report.html"))
    >>> report.logs, report.records, report.open_transactions
    (1, 337, 2)
    """

    path: str
    topics: int
    logs: int
    records: int
    control_records: int
    bytes: int
    losses: int
    lost_bytes: int
    missing_offsets: int
    open_transactions: int
    advice: tuple[Advice, ...]


@public_in("kbatch")
@suggests_names(SCAN_HINTS)
def write_report(
    source: SourceLike,
    out: str | os.PathLike[str],
    *,
    topics: TopicChoice | None = None,
    partitions: Iterable[int] | None = None,
    storage_options: Mapping[str, str] | None = None,
    config: ClientConfig | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Write an HTML page with what is in logs: sizes, codecs, keys, lateness, producers, transactions, damage.

    The page needs no network and runs no scripts. The logs are read once; damage is skipped and drawn. Topics of a
    cluster are fetched up to the ends that they have when the report begins.

    Parameters
    ----------
    source : str or path, iterable of them, Log, LogList, or LogSource
        As for `kbatch.scan_logs`.
    out : str or path
        The page, which is replaced when the new one is complete.
    topics, partitions, storage_options, config
        As for `kbatch.scan_logs`.
    progress : callable, optional
        Called from time to time with the bytes of the segments that were read, and the bytes of all that are read; for
        a cluster, with numbers of offsets.

    Returns
    -------
    Report

    Raises
    ------
    LogDirectoryError
        If a log cannot be read, or the page not be written.
    BrokerError, AuthenticationError
        If the topics of a cluster cannot be read.
    ValueError, TypeError
        For arguments that are not allowed.

    Notes
    -----
    Different and frequent keys are estimated with the package ``datasketches`` of the extra ``report``. Without it, the
    page states that keys were not counted.

    Examples
    --------
    >>> import os, tempfile
    >>> import kbatch
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     report = kbatch.write_report("tests/golden/logs", os.path.join(directory, "r.html"), topics="codec-*")
    ...     size = os.path.getsize(report.path)
    >>> report.topics, report.losses, size < 1_000_000
    (5, 0, True)
    """
    check_types(write_report, locals())
    if topics is not None and not isinstance(topics, str | re.Pattern):
        TopicFilter(topics := list(topics) if isinstance(topics, Iterable) else topics)
    selection = Selection(topics=topics, partitions=partition_numbers(partitions))
    place, collected = _collection(source, storage_options, config, selection)
    began, cpu, now = time.monotonic(), time.process_time(), time.time()
    path = os.path.abspath(os.fspath(out))
    with NewOutput(path, directory=False, replace=True) as output:
        found = collected(round(now * 1000), progress)
        everything = [log for topic in found for log in topic.logs]
        report = _report_of(path, found, everything)
        duration = f"{time.monotonic() - began:.1f} s ({time.process_time() - cpu:.1f} s of CPU)"
        about = _about(place, report, selection, now, duration)
        text = _page(found, everything, report, about, round(now * 1000))
        output.write_file(os.path.basename(path), text.encode())
    return report


def _collection(
    source: SourceLike,
    storage_options: Mapping[str, str] | None,
    config: ClientConfig | None,
    selection: Selection,
) -> tuple[str, _Collected]:
    """Return what the source is, and the function that collects its figures."""
    cluster = source if isinstance(source, LogSource) else cluster_source(source, storage_options, config)
    if cluster is not None:
        from kbatch.live import ClusterSource

        if not isinstance(cluster, ClusterSource):
            raise TypeError(f"source must be logs or a cluster, got {type(source).__name__}")
        return cluster.describe(), partial(_collected_live, cluster, selection)
    assert not isinstance(source, LogSource)
    opened = source_of(source, storage_options)
    logs = opened.logs(selection)
    place = _places(logs) if isinstance(opened, OpenedLogs) else opened.describe()
    return place, partial(collect, logs)


def _collected_live(
    cluster: ClusterSource, selection: Selection, now: int, progress: Callable[[int, int], None] | None
) -> list[TopicFigures]:
    from kbatch.report.live_collecting import collect_live

    with cluster._connected() as connected:
        return collect_live(connected, selection, now, progress)


def _report_of(path: str, topics: Sequence[TopicFigures], logs: Sequence[LogFigures]) -> Report:
    names = ("records", "control_records", "bytes", "losses", "lost_bytes", "missing_offsets")
    sums = {name: sum(log.statistics[name] for log in logs) for name in names}
    still_open = sum(log.statistics["transactions"]["open"] for log in logs)
    return Report(path, len(topics), len(logs), **sums, open_transactions=still_open, advice=tuple(advise(topics)))


def _places(logs: Sequence[Log]) -> str:
    """Return the directories of logs."""
    return ", ".join(sorted({os.path.dirname(log.path) or log.path for log in logs}))


def _about(source: str, report: Report, selection: Selection, now: float, duration: str) -> list[str]:
    """Return what was read, when, by which version, and how long it took."""
    chosen = []
    if selection.topics is not None:
        topics = [selection.topics] if isinstance(selection.topics, str | re.Pattern) else selection.topics
        names = [each.pattern if isinstance(each, re.Pattern) else each for each in topics]
        chosen.append(f"topics {', '.join(names)}")
    if selection.partitions is not None:
        chosen.append(f"partitions {', '.join(map(str, sorted(selection.partitions)))}")
    read = f"Read: {cut(source, _SHOWN_PATHS)}: {counted(report.logs, 'log')}, {format_size(report.bytes)}"
    when = datetime.fromtimestamp(now, UTC).isoformat(sep=" ", timespec="seconds").removesuffix("+00:00")
    return [
        f"{read}{'; only ' + cut(' and '.join(chosen), _SHOWN_PATHS) if chosen else ''}",
        f"{when} UTC, kbatch {VERSION}, in {duration}. Times are UTC, and sizes are powers of 1024.",
    ]


def _page(
    topics: Sequence[TopicFigures], logs: Sequence[LogFigures], report: Report, about: Sequence[str], now: int
) -> str:
    pictures = Pictures()
    parts = [
        _summary_tiles(logs, report),
        log_sections.advice_section(report.advice),
        content.time_section(pictures, logs, now),
        content.topic_section(pictures, topics),
        content.size_section(pictures, topics),
        content.key_section(pictures, topics),
        content.lateness_section(pictures, topics),
        log_sections.offset_section(pictures, logs),
        log_sections.producer_section(pictures, topics),
        log_sections.transaction_section(pictures, topics, now),
        log_sections.tombstone_section(pictures, topics, now),
        log_sections.damage_section(pictures, logs),
    ]
    return page(
        "kbatch report",
        about,
        _CONTENTS,
        parts,
        f"Made by kbatch {VERSION}; docs/report.md in its repository explains the page.",
    )


def _summary_tiles(logs: Sequence[LogFigures], report: Report) -> str:
    timed = [log for log in logs if log.last_time >= 0]
    future = sum(log.from_future for log in logs)
    later = f"{counted(future, 'record')} in the future" if future else ""
    if timed:
        first, last = min(log.first_time for log in timed), max(log.last_time for log in timed)
        span, between = format_duration(last - first), f"from {format_time(first)} to {format_time(last)}"
        between += f"; {later}" if later else ""
    else:
        span, between = "-", later or "no record has a time"
    codecs = [entry for log in logs for name, entry in log.statistics["codecs"].items() if name != "none"]
    plain, packed = (sum(entry[name] or 0 for entry in codecs) for name in ("plain_bytes", "payload_bytes"))
    batches = sum(log.statistics["batches"] for log in logs)
    damage = format_lost(report.lost_bytes, report.missing_offsets) if report.losses else "none"
    control = f", {counted(report.control_records, 'control record')}" if report.control_records else ""
    return tiles(
        [
            (*_number_and_noun(report.records, "record", control), False),
            (format_size(report.bytes), f"stored in {counted(batches, 'batch')}", False),
            (f"{plain / packed:.2f}x" if packed else "-", "compression ratio", False),
            (*_number_and_noun(report.topics, "topic", f", {counted(report.logs, 'partition')}"), False),
            (span, between, False),
            (*_number_and_noun(report.open_transactions, "open transaction"), bool(report.open_transactions)),
            (damage, "damage", bool(report.losses)),
        ]
    )


def _number_and_noun(number: int, noun: str, more: str = "") -> tuple[str, str]:
    """Return the two parts of a tile."""
    text, _, label = counted(number, noun).partition(" ")
    return text, label + more
