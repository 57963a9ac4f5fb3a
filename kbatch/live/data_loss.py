"""Records that are deleted before a live read has returned them: an error, or a listed gap."""

from __future__ import annotations

import warnings
from collections.abc import Callable

from kbatch.error_codes import ErrorCode
from kbatch.live.broker_errors import BrokerError
from kbatch.live.cluster import PartitionKey
from kbatch.live.counters import ReadCounters
from kbatch.live.fetch_state import PartitionFetch
from kbatch.log.missing import MissingOffsets
from kbatch.quantities import callers_stacklevel

__all__ = ["DataLoss"]


class DataLoss:
    """The losses of a read, and whether the first loss ends it.

    Parameters
    ----------
    fails : bool
    counters : ReadCounters
    moved : callable
        Called with a topic and partition, and the offset where the read resumes.

    Attributes
    ----------
    fails : bool
    missing : list of MissingOffsets
    """

    def __init__(self, fails: bool, counters: ReadCounters, moved: Callable[[PartitionKey, int], None]) -> None:
        self.fails = fails
        self._counters = counters
        self.missing: list[MissingOffsets] = []
        self._moved = moved

    def report(
        self,
        fetch: PartitionFetch,
        reason: str,
        code: ErrorCode | None,
        *,
        position: int,
        first: int | None = None,
        last: int | None = None,
        broker: str | None = None,
    ) -> None:
        """Raise an error, or warn and move a partition to the offset where its read resumes.

        Parameters
        ----------
        fetch : PartitionFetch
        reason : str
            What was lost, and why.
        code : ErrorCode or None
        position : int
            Where the read resumes.
        first, last : int, optional
            The lost offsets. Default is from the position of `fetch` to the offset before `position`; the last offset
            is unknown if `position` is before it.
        broker : str, optional
            Default is the broker that refused the last fetch.

        Raises
        ------
        BrokerError
        """
        place = self._check(fetch, reason, code, broker)
        first = fetch.position if first is None else first
        if last is None and position > first:
            last = position - 1
        fetch.position = position
        fetch.waited = 0.0
        fetch.lost = None
        key = (fetch.topic, fetch.partition)
        self._moved(key, position)
        self.note(MissingOffsets(*key, first, last, f"{place}: {reason}; the read resumes at offset {position}"))

    def end(
        self, fetch: PartitionFetch, reason: str, code: ErrorCode | None, stop: int, broker: str | None = None
    ) -> None:
        """Raise an error, or warn and end the read of a partition before its planned end.

        Raises
        ------
        BrokerError
        """
        place = self._check(fetch, reason, code, broker)
        last, fetch.stop = fetch.stop - 1, max(stop, fetch.position)
        fetch.waited = 0.0
        fetch.lost = None
        text = f"{place}: {reason}; the read ends at offset {fetch.stop}"
        self.note(MissingOffsets(fetch.topic, fetch.partition, fetch.stop, last, text))

    def _check(self, fetch: PartitionFetch, reason: str, code: ErrorCode | None, broker: str | None) -> str:
        """Raise if a loss is an error; otherwise return the place for messages."""
        if broker is None and fetch.lost is not None:
            broker = fetch.lost.broker
        place = fetch.name if broker is None else f"broker {broker}, {fetch.name}"
        if self.fails:
            raise BrokerError(
                f"{place}: {reason}; {self._advice(fetch)}",
                broker=broker,
                topic=fetch.topic,
                partition=fetch.partition,
                code=code,
            )
        return place

    def _advice(self, fetch: PartitionFetch) -> str:
        """Return the advice for an error."""
        option = "fail_on_data_loss=False" if fetch.planned_epoch is None else "failOnDataLoss=false"
        return f"begin a new read, or read the records that remain with {option}"

    def note(self, missing: MissingOffsets) -> None:
        """List and count lost offsets, and warn."""
        self.missing.append(missing)
        if missing.last_offset is not None:
            self._counters.missing_offsets += missing.last_offset - missing.first_offset + 1
        warnings.warn(missing.reason, RuntimeWarning, stacklevel=callers_stacklevel())
