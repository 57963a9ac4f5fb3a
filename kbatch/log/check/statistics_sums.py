"""Sums of the statistics of several logs, by topic and over all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from kbatch.arguments import check_types
from kbatch.format import NO_TIMESTAMP
from kbatch.log.check.statistics import LogStatistics, codec_dicts, statistics_repr
from kbatch.public_names import public_in
from kbatch.quantities import largest, smallest
from kbatch.transactions.opened import OpenTransactions

__all__ = ["StatisticsSums", "sum_statistics"]

# The counts of a log that are added up. Those of the second group need decoding.
_SUMMED = (
    "bytes", "batches", "control_batches", "empty_batches", "transactional_batches", "records", "control_records",
    "uncounted_batches", "committed", "aborted", "undecided", "open", "losses", "lost_bytes", "missing_offsets",
)  # fmt: skip
_IF_DECODED = ("damaged_batches", "null_keys", "null_values", "tombstones", "headers", "records_with_headers")


@public_in("kbatch.log")
class StatisticsSums:
    """The sums of the statistics of logs.

    Attributes
    ----------
    topic : str or None
        None for the sums over several topics, and for files that are not in the directory of a topic-partition.
    logs : int
        The number of logs.
    segments : int or None
        None with a live topic, whose segments are not known.
    bytes, batches, control_batches, empty_batches, transactional_batches, records, control_records, \
uncounted_batches : int
        As in `LogStatistics`. Records of control batches, such as transaction markers, are in `control_records` only.
    damaged_batches, null_keys, null_values, tombstones, headers, records_with_headers : int or None
        None without decoding.
    first_timestamp, last_timestamp : int or None
    codecs : dict
        As in `LogStatistics`.
    committed, aborted, undecided, open : int
        Transactions by their markers.
    open_since : int or None
        The time of the earliest open transaction, in milliseconds since the epoch.
    producers : int
        Number of different producer ids.
    losses, lost_bytes, missing_offsets : int

    Examples
    --------
    >>> import kbatch
    >>> from kbatch.log import log_statistics, sum_statistics
    >>> log = kbatch.Log("tests/golden/logs/txn-0")
    >>> topics, total = sum_statistics([("txn", log_statistics(log))])
    >>> topics
    [<StatisticsSums: 337 records, 34 control records, 22437 bytes, 2 open transactions>]
    """

    def __init__(self, topic: str | None = None) -> None:
        check_types(StatisticsSums.__init__, locals())
        self.topic = topic
        self.logs = 0
        self.segments: int | None = 0
        self.bytes = self.batches = self.control_batches = self.empty_batches = self.transactional_batches = 0
        self.records = self.control_records = self.uncounted_batches = 0
        self.committed = self.aborted = self.undecided = self.open = 0
        self.losses = self.lost_bytes = self.missing_offsets = 0
        self.damaged_batches: int | None = 0
        self.null_keys: int | None = 0
        self.null_values: int | None = 0
        self.tombstones: int | None = 0
        self.headers: int | None = 0
        self.records_with_headers: int | None = 0
        self.first_timestamp: int | None = None
        self.last_timestamp: int | None = None
        self.open_since: int | None = None
        self.codecs: dict[str, dict[str, Any]] = {}
        self._producers = np.empty(0, np.int64)

    def __repr__(self) -> str:
        return statistics_repr(self)

    @property
    def producers(self) -> int:
        """Number of different producer ids."""
        return len(self._producers)

    def _add(self, one: LogStatistics) -> None:
        """Add the statistics of a log."""
        self.logs += 1
        self.segments = _known_sum(self.segments, one.segments)
        for name in _SUMMED:
            setattr(self, name, getattr(self, name) + getattr(one, name))
        for name in _IF_DECODED:
            setattr(self, name, _known_sum(getattr(self, name), getattr(one, name) if one.decoded else None))
        self.first_timestamp = smallest(self.first_timestamp, one.first_timestamp)
        self.last_timestamp = largest(self.last_timestamp, one.last_timestamp)
        times = OpenTransactions.of(one.open_transactions).rows["first_timestamp"]
        times = times[times != NO_TIMESTAMP]
        self.open_since = smallest(self.open_since, int(times.min()) if len(times) else None)
        for name, entry in one.codecs.items():
            mine = self.codecs.setdefault(name, dict.fromkeys(entry, 0))
            for field, number in entry.items():
                mine[field] = _known_sum(mine[field], number)
        self._producers = np.union1d(self._producers, one.producer_ids)

    def to_dict(self) -> dict[str, Any]:
        """Return the sums as JSON values; the field ``topic`` is left out."""
        counts = {name: getattr(self, name) for name in ("logs", "segments", *_SUMMED[:8], *_IF_DECODED)}
        return {
            **counts,
            "first_timestamp": self.first_timestamp,
            "last_timestamp": self.last_timestamp,
            "codecs": codec_dicts(self.codecs),
            "transactions": {name: getattr(self, name) for name in ("committed", "aborted", "undecided", "open")},
            "open_since": self.open_since,
            "producers": self.producers,
            "losses": self.losses,
            "lost_bytes": self.lost_bytes,
            "missing_offsets": self.missing_offsets,
        }


@public_in("kbatch.log")
def sum_statistics(logs: Iterable[tuple[str | None, LogStatistics]]) -> tuple[list[StatisticsSums], StatisticsSums]:
    """Return the sums by topic, in the order of the topics, and the sums over all logs.

    Parameters
    ----------
    logs : iterable of (str or None, LogStatistics)
        The topic of each log, and its statistics.

    Returns
    -------
    topics : list of StatisticsSums
        Logs without a topic are in none of them.
    total : StatisticsSums

    Examples
    --------
    >>> import kbatch
    >>> from kbatch.log import log_statistics, sum_statistics
    >>> logs = kbatch.find_logs("tests/golden/logs", topics="codec-*")
    >>> topics, total = sum_statistics((log.topic, log_statistics(log)) for log in logs)
    >>> [(each.topic, each.records) for each in topics][:2], total.records
    ([('codec-gzip', 3163), ('codec-lz4', 3208)], 15477)
    """
    check_types(sum_statistics, locals())
    topics: dict[str, StatisticsSums] = {}
    total = StatisticsSums()
    for each in logs:
        if not (isinstance(each, tuple) and len(each) == 2 and isinstance(each[1], LogStatistics)):
            raise TypeError(f"logs must be pairs of a topic and LogStatistics, got {type(each).__name__}")
        topic, one = each
        total._add(one)
        if topic is not None:
            topics.setdefault(topic, StatisticsSums(topic))._add(one)
    return [topics[name] for name in sorted(topics)], total


def _known_sum(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else a + b
