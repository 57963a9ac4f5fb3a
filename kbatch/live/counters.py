"""The counters of a live read, kept by its threads, and the snapshot that callers get."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kbatch.public_names import public_in

__all__ = ["ConsumerMetrics", "FetchCounts", "MetricsCallback", "ReadCounters"]

# The least time between two calls of a callback.
_REPORT_SECONDS = 1.0


@public_in("kbatch.live")
@dataclass(frozen=True)
class ConsumerMetrics:
    """An immutable snapshot of the counters of a consumer, returned by `kbatch.Consumer.metrics`.

    Attributes
    ----------
    fetches : int
        Fetch responses.
    empty_fetches : int
        Fetch responses without records, for which the broker has waited ``fetch.max.wait.ms``.
    bytes : int
        Bytes of record batches, as the brokers sent them.
    records : int
        Records of the returned tables.
    throttled_seconds : float
        The time by which brokers' quotas have delayed fetches (KIP-219).
    errors : int
        Fetches that failed or were refused, completely or for some partitions, and were repeated.
    connections : int
        Connections that were opened for fetches, also after an error.
    rebalances : int
        The number of changes of a group's assignment.
    missing_offsets : int
        Offsets that were deleted before they were read (`kbatch.Consumer.missing_offsets`).
    lag : mapping of (topic, partition) to int
        See `kbatch.Consumer.lag`.

    Examples
    --------
    >>> import kbatch
    >>> consumer = kbatch.consume("orders", bootstrap_servers="localhost:9092")  # doctest: +SKIP
    >>> sum(map(len, consumer)) == consumer.metrics.records  # doctest: +SKIP
    True
    """

    fetches: int
    empty_fetches: int
    bytes: int
    records: int
    throttled_seconds: float
    errors: int
    connections: int
    rebalances: int
    missing_offsets: int
    lag: Mapping[tuple[str, int], int]


MetricsCallback = Callable[[ConsumerMetrics], object]


class FetchCounts:
    """The counters of one thread that fetches; only this thread changes them."""

    __slots__ = ("bytes", "connections", "empty_fetches", "errors", "fetches", "throttled_seconds")

    def __init__(self) -> None:
        self.fetches = 0
        self.empty_fetches = 0
        self.bytes = 0
        self.throttled_seconds = 0.0
        self.errors = 0
        self.connections = 0


class ReadCounters:
    """The counters of a read, and when they are reported.

    Parameters
    ----------
    callback : callable, optional
        Called with a snapshot by the reading thread, at most once per second, and at the end.

    Raises
    ------
    TypeError
        If it is not callable.

    Attributes
    ----------
    records, rebalances, missing_offsets : int
        Only the thread that reads changes them.
    """

    def __init__(self, callback: MetricsCallback | None = None) -> None:
        if callback is not None and not callable(callback):
            raise TypeError(
                f"on_metrics must be a function that takes ConsumerMetrics, or None, got {type(callback).__name__}"
            )
        self.records = 0
        self.rebalances = 0
        self.missing_offsets = 0
        self._fetching: list[FetchCounts] = []
        self._callback = callback
        self._report_at = time.monotonic() + _REPORT_SECONDS

    def of_fetcher(self) -> FetchCounts:
        """Return the counters of another thread."""
        made = FetchCounts()
        self._fetching.append(made)
        return made

    def snapshot(self, lag: Mapping[tuple[str, int], int]) -> ConsumerMetrics:
        """Return a snapshot of the counters."""
        fetching = list(self._fetching)
        return ConsumerMetrics(
            fetches=sum(each.fetches for each in fetching),
            empty_fetches=sum(each.empty_fetches for each in fetching),
            bytes=sum(each.bytes for each in fetching),
            records=self.records,
            throttled_seconds=sum(each.throttled_seconds for each in fetching),
            errors=sum(each.errors for each in fetching),
            connections=sum(each.connections for each in fetching),
            rebalances=self.rebalances,
            missing_offsets=self.missing_offsets,
            lag=dict(lag),
        )

    def report_if_due(self, lag: Callable[[], Mapping[tuple[str, int], int]], *, is_last: bool = False) -> None:
        """Call the callback, if there is one, when it is due or for the last time."""
        if self._callback is None:
            return
        now = time.monotonic()
        if is_last or now >= self._report_at:
            self._report_at = now + _REPORT_SECONDS
            self._callback(self.snapshot(lag()))
