"""What streams of directories and of live clusters have in common: the calls of Spark, and their offsets."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kbatch.plan.arrow_batches import Transform
from kbatch.plan.positions import Position
from kbatch.plan.watching import TopicPartition
from kbatch.spark.driver.shipping import Shipped
from kbatch.spark.driver_log import driver_logger
from kbatch.spark.source_api import (
    HAS_LIMITS,
    DataSourceStreamReader,
    InputPartition,
    ReadAllAvailable,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from kbatch.spark.stream_offsets import (
    LAG,
    START,
    Offsets,
    Places,
    offsets_to_json,
    places_from_json,
    places_to_json,
)
from kbatch.spark.stream_options import StreamReadOptions

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["MicroBatchReader", "partition_name"]

# A line of the log names at most this number of topic-partitions.
_LOGGED_LAGS = 10
# Its name is public: docs/spark.md.
_LAG_LOGGER = "kbatch.spark.stream"


class MicroBatchReader(Shipped, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads topic-partitions from micro-batch to micro-batch.

    Offsets are ``{"topic": {"0": next}}``, as in Spark's Kafka source: the next offset to read of each partition. The
    end of a query's first batch also has its start, under ``"$start"``, so that the batch can be repeated. Topic ids,
    leader epochs and checksums, by which a log is recognized that was recreated or truncated, are under ``"$ids"``,
    ``"$epochs"`` and ``"$checksums"``.

    Parameters
    ----------
    options : StreamReadOptions
    columns : tuple of str
    values : Transform, optional
        Applied to each Arrow batch.
    """

    def __init__(self, options: StreamReadOptions, columns: tuple[str, ...], values: Transform | None) -> None:
        self.options = options
        self.columns = columns
        self.values = values
        # The state below exists in the driver process only; a restarted query begins without it.
        self._initial: dict[str, Any] | None = None
        # Where the last batch ends: before PySpark 4.2, `latestOffset` is not given the start.
        self._reached: dict[str, Any] | None = None
        self._latest: Offsets = {}
        self._planned: Offsets = {}
        self._measured: dict[str, Offsets] = {}
        self._until_now: Offsets | None = None
        self._is_until_now = False
        self._last_batch = float("-inf")

    # -- methods that Spark calls

    def initialOffset(self) -> dict[str, Any]:
        """Return where a new query begins, the same each time."""
        if self._initial is None:
            starts = self._starts()
            self._initial = places_to_json({key: self._place(key, offset, None) for key, offset in starts.items()})
        return self._initial

    def latestOffset(self, start: dict[str, Any] | None = None, limit: Any = None) -> dict[str, Any]:
        """Return where the next micro-batch ends.

        Parameters
        ----------
        start : dict, optional
            Where it begins. PySpark passes it from version 4.2 on; before, it is where the last one ended.
        limit : ReadLimit, optional
            ``ReadAllAvailable`` overrides the limits of the options.
        """
        if start is None:
            start = self._reached if self._reached is not None else self.initialOffset()
        first = start == self._initial
        before = places_from_json(start)
        ends = self._ends(before)
        self._latest = ends
        begin = self._begin(before)
        if not (HAS_LIMITS and isinstance(limit, ReadAllAvailable)):
            ends = self._limited(begin, ends)
        self._planned = ends
        if HAS_LIMITS:
            self._measured = self._measure(begin, ends)
        places = {key: self._place(key, offset, before.get(key)) for key, offset in ends.items()}
        if places == before and not first:
            return start
        return {**places_to_json(places), START: start} if first else places_to_json(places)

    def getDefaultReadLimit(self) -> Any:
        """Return the limit of the options."""
        options = self.options
        if options.max_offsets is not None:
            return ReadMaxRows(options.max_offsets)
        if options.max_bytes is not None:
            return ReadMaxBytes(options.max_bytes)
        if options.min_offsets is not None:
            return ReadMinRows(options.min_offsets)
        return ReadAllAvailable()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the end of the logs at the last poll, for the query's progress, and numbers of the micro-batch.

        ``"$lag"`` has the offsets from the end of the micro-batch to the end of each log, ``"$bytes"`` the bytes that
        it reads, if they are known, and ``"$missing"`` the offsets that were deleted before it could read them.
        """
        if not self._latest:
            return None
        numbers = {LAG: self._lag(self._planned), **self._measured}
        return {
            **offsets_to_json(self._latest),
            **{name: offsets_to_json(each) for name, each in numbers.items()},
        }

    def prepareForTriggerAvailableNow(self) -> None:
        """End the query where the logs end at the next poll."""
        self._is_until_now = True

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return a partition for each task of a micro-batch.

        Raises
        ------
        LogDirectoryError, BrokerError
            If offsets between `start` and `end` no longer exist, with ``failOnDataLoss``.
        CorruptBatchError, TruncatedBatchError, CrcMismatchError
            As `kbatch.plan.following.check_markers`, under read_committed with ``onError=raise``.
        """
        self._reached = end
        if start == end:
            # PySpark before 4.2 calls this to set the start of a query that resumes.
            return []
        # A first batch that is repeated begins where it did. Spark calls `initialOffset` again, and the latest offset
        # may have changed.
        begin, until = places_from_json(end.get(START, start)), places_from_json(end)
        _log_lag(self._lag({key: place.next_offset for key, place in until.items()}))
        return [InputPartition(task) for task in self._tasks(begin, until)]

    @abstractmethod
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition."""

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: the reader keeps no state of committed batches."""

    # -- what depends on the source

    @abstractmethod
    def _starts(self) -> Offsets:
        """Return where a new query begins."""

    @abstractmethod
    def _ends_now(self, before: Places) -> Offsets:
        """Return where the logs end."""

    @abstractmethod
    def _begin(self, before: Places) -> Offsets:
        """Return the offsets to resume from: those of the last micro-batch, or the start of a topic with another id."""

    @abstractmethod
    def _place(self, key: TopicPartition, offset: int, before: Position | None) -> Position:
        """Return an offset with what its log is recognized by, or `before` itself if nothing has changed since then."""

    @abstractmethod
    def _limited(self, begin: Offsets, ends: Offsets) -> Offsets:
        """Return where a micro-batch ends by the limits of the options."""

    @abstractmethod
    def _measure(self, begin: Offsets, ends: Offsets) -> dict[str, Offsets]:
        """Return numbers of the micro-batch that ends there, for the query's progress."""

    @abstractmethod
    def _tasks(self, begin: Places, until: Places) -> Sequence[Hashable]:
        """Return the tasks of a micro-batch."""

    # -- what does not

    def _ends(self, before: Places) -> Offsets:
        ends = self._until_now
        if ends is None:
            ends = self._ends_now(before)
        if self._is_until_now:
            self._until_now = ends
        return ends

    def _lag(self, until: Offsets) -> Offsets:
        return {key: max(0, end - until.get(key, end)) for key, end in self._latest.items()}

    def _waits(self, backlog: Mapping[TopicPartition, int]) -> bool:
        """Return whether the next micro-batch waits for more offsets than are there, by the options."""
        options = self.options
        if options.min_offsets is None or self._is_until_now:
            return False
        now = time.monotonic()
        if now - self._last_batch < options.max_delay and sum(backlog.values()) < options.min_offsets:
            return True
        self._last_batch = now
        return False


def _log_lag(lags: Offsets) -> None:
    """Log how far a micro-batch ends before the ends of the logs."""
    if not lags:
        # After a restart, Spark repeats the last micro-batch before the first poll.
        return
    logger = driver_logger(_LAG_LOGGER)
    behind = sorted(((lag, key) for key, lag in lags.items() if lag), reverse=True)
    if not behind:
        logger.info("the micro-batch ends at the end of the logs (topic-partitions: %d)", len(lags))
        return
    named = ", ".join(f"{partition_name(key)} by {lag}" for lag, key in behind[:_LOGGED_LAGS])
    more = f" and {len(behind) - _LOGGED_LAGS} more" if len(behind) > _LOGGED_LAGS else ""
    logger.info("the micro-batch ends %d offsets before the end of the logs: %s%s", sum(lags.values()), named, more)


def partition_name(key: TopicPartition) -> str:
    """Return the name of a topic-partition for messages."""
    return f"{key[0]}-{key[1]}"
