"""The state that the reader of a group shares with the thread of its membership."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from kbatch.error_codes import ErrorCode
from kbatch.live.broker_errors import BrokerError
from kbatch.live.cluster import PartitionKey
from kbatch.live.coordinator import Membership

__all__ = ["MEMBERSHIP_ERRORS", "GroupChange", "GroupClosedError", "GroupState", "lost_error"]

# Errors of a request whose generation or epoch is not the current one, or whose member the group has removed.
MEMBERSHIP_ERRORS = frozenset(
    [
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.FENCED_MEMBER_EPOCH,
        ErrorCode.STALE_MEMBER_EPOCH,
    ]
)


# A member without partitions after this number of heartbeats will probably not get any.
_SETTLED_HEARTBEATS = 2


class GroupClosedError(Exception):
    """The consumer was closed, so that the membership ends."""


class GroupChange(NamedTuple):
    """A new assignment, which the reader has not acknowledged.

    Attributes
    ----------
    assigned : frozenset of (topic, partition)
        All partitions of the member.
    is_lost : bool
        Whether the membership has ended: other members may have the partitions, so that nothing is committed.
    """

    assigned: frozenset[PartitionKey]
    is_lost: bool = False


class GroupState:
    """The membership, its partitions, and the pending change of them.

    The reader calls `request`, `acknowledge`, `current` and `renewed`; the thread calls the others.

    Parameters
    ----------
    max_poll_seconds : float
        The longest time between two requests of the reader.
    """

    def __init__(self, max_poll_seconds: float) -> None:
        self._changed = threading.Condition()
        self._max_poll_seconds = max_poll_seconds
        self._membership: Membership | None = None
        self._owned: frozenset[PartitionKey] = frozenset()
        self._change: GroupChange | None = None
        self._error: BaseException | None = None
        self._is_signalled = False
        self._requested_at = time.monotonic()
        self.has_assignment = False
        self._heartbeats = 0
        self.is_closed = False
        self.wake_reader: Callable[[], None] = _nobody

    # -- the reader

    def request(self) -> GroupChange | None:
        """Note that the reader is active, and return a change that it must acknowledge."""
        with self._changed:
            self._requested_at = time.monotonic()
            if self._error is not None and not self.is_closed:
                raise self._error
            return self._change

    def acknowledge(self, change: GroupChange) -> None:
        """Acknowledge a change: the reader now has its partitions."""
        with self._changed:
            self._owned = change.assigned
            if self._change is change:
                self._change = None
            self.has_assignment = self.has_assignment or not change.is_lost
            self._signal()

    def current(self) -> Membership | None:
        """Return the membership for commits of the reader; None if it has lost its partitions."""
        with self._changed:
            return None if self._change is not None and self._change.is_lost else self._membership

    def renewed(self, previous: Membership, seconds: float) -> Membership | None:
        """Wait for a new membership after the coordinator has refused one; return None if the member gets none."""
        deadline = time.monotonic() + seconds
        with self._changed:
            self._signal()
            while not self.is_closed and self._error is None and self.current() == previous:
                if not self._changed.wait(max(deadline - time.monotonic(), 0.0)):
                    return None
            found = self.current()
            return None if found == previous or self._error is not None else found

    @property
    def is_settled(self) -> bool:
        """Whether the member has its partitions, as far as known: others may have to give them up first."""
        with self._changed:
            if self._change is not None or not self.has_assignment:
                return False
            return bool(self._owned) or self._heartbeats >= _SETTLED_HEARTBEATS

    def close(self) -> None:
        """End the membership."""
        with self._changed:
            self.is_closed = True
            self._signal()

    # -- the thread

    @property
    def owned(self) -> frozenset[PartitionKey]:
        """The partitions that the reader has acknowledged."""
        with self._changed:
            return self._owned

    @property
    def change(self) -> GroupChange | None:
        """The change that the reader has not acknowledged."""
        with self._changed:
            return self._change

    @property
    def is_behind(self) -> bool:
        """Whether the reader has requested nothing for too long."""
        with self._changed:
            return time.monotonic() - self._requested_at > self._max_poll_seconds

    def join(self, membership: Membership) -> None:
        """Set the membership."""
        with self._changed:
            self._membership = membership
            self._changed.notify_all()

    def note_heartbeat(self) -> None:
        """Count a heartbeat, if the member has joined and has no partitions."""
        with self._changed:
            self._heartbeats = self._heartbeats + 1 if self.has_assignment and not self._owned else 0

    def offer(self, change: GroupChange) -> None:
        """Give the reader a change."""
        with self._changed:
            if change.is_lost:
                self._membership = None
            self._change = change
            self._changed.notify_all()
        self.wake_reader()

    def fail(self, error: BaseException) -> None:
        """Give the reader an error."""
        with self._changed:
            self._error = error
            self._changed.notify_all()
        self.wake_reader()

    def wait(self, until: float) -> bool:
        """Wait for the reader or a time-out; return whether the reader has acknowledged or needs the membership."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_signalled, max(until - time.monotonic(), 0.0))
            is_signalled, self._is_signalled = self._is_signalled, False
            self.check_open()
        return is_signalled

    def wait_for_reader(self) -> None:
        """Wait until the reader has acknowledged the change."""
        with self._changed:
            self._changed.wait_for(lambda: self._change is None or self.is_closed)
            self.check_open()

    def check_open(self) -> None:
        """Raise GroupClosedError if the membership has ended."""
        if self.is_closed:
            raise GroupClosedError

    def _signal(self) -> None:
        self._is_signalled = True
        self._changed.notify_all()


def _nobody() -> None:
    """Do nothing: the default of `wake_reader` until a reader sets it."""


def lost_error(group: str, milliseconds: int, cause: BrokerError | None = None) -> BrokerError:
    """Return the error of a commit without a membership."""
    reason = "" if cause is None or cause.code is None else f" ({cause.code.name})"
    return BrokerError(
        f"group {group!r}: the offsets were not committed{reason}: the membership has ended, and other members may "
        "have the partitions now; the records since the last commit are read again. If the time between two tables "
        f"exceeds max.poll.interval.ms ({milliseconds}), raise it or lower max_bytes",
        broker=None if cause is None else cause.broker,
        code=ErrorCode.UNKNOWN_MEMBER_ID if cause is None else cause.code,
    )
