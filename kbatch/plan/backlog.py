"""The backlog of watched logs: the unread offsets and bytes, and the logs that a run should read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

from kbatch.plan.read_options import ReadOptions
from kbatch.plan.trigger_limits import bytes_from
from kbatch.plan.watching import TopicPartition, open_log

__all__ = ["Backlog", "BytesAfter", "FollowedState", "Lag"]


class FollowedState(Protocol):
    """A log at the last poll: a directory (`kbatch.plan.watching.LogState`), or a partition of a cluster."""

    @property
    def path(self) -> str:
        """The directory, or a name."""

    @property
    def start_offset(self) -> int:
        """The first offset."""

    @property
    def end_offset(self) -> int:
        """The offset after the last record that can be read."""

    @property
    def topic_id(self) -> str | None:
        """The topic's id, if it is known."""


# Takes the state of a log and an offset; returns the bytes of the log from this offset on.
BytesAfter: TypeAlias = Callable[[Any, int], int]


class Lag(NamedTuple):
    """How far an export is behind.

    Attributes
    ----------
    bytes : int
        Bytes of the logs from the position on.
    offsets : int
        Offsets from the position on. Without gaps, this is the number of records.
    """

    bytes: int = 0
    offsets: int = 0


# The fields of a state that must change before a log without unread records is read again.
_Mark: TypeAlias = tuple[str, int, int, str | None]


@dataclass(slots=True)
class _Followed:
    """One log: the offset up to which it was read, and the bytes from there on at the last poll."""

    next_offset: int
    topic_id: str | None
    # The state up to which the log was read as far as possible, and the end of the log in this state.
    done: _Mark | None = None
    tried: int = -1
    # The bytes from `next_offset` up to the byte `counted` of the segment `last`.
    size: int = 0
    last: str = ""
    counted: int = 0
    # Whether the last run read a part of the log that has no records.
    is_stalled: bool = False


class Backlog:
    """The unread part of watched logs. Bytes are counted only once, from one poll to the next.

    Parameters
    ----------
    options : ReadOptions
    bytes_after : BytesAfter, optional
        Estimates bytes. By default, the bytes of files are counted.

    Attributes
    ----------
    states : dict of (topic, partition) to FollowedState
        The states at the last poll.
    """

    def __init__(self, options: ReadOptions, bytes_after: BytesAfter | None = None) -> None:
        self._options = options
        self._bytes_after = bytes_after
        self._logs: dict[TopicPartition, _Followed] = {}
        self.states: dict[TopicPartition, Any] = {}

    def update(self, states: Mapping[TopicPartition, FollowedState]) -> None:
        """Set the states of a poll."""
        self.states = dict(states)
        self._logs = {key: log for key, log in self._logs.items() if key in states}
        for key, state in states.items():
            log = self._logs.get(key)
            if log is None:
                log = self._logs[key] = _Followed(state.start_offset, state.topic_id)
            self._count(log, state)

    def _count(self, log: _Followed, state: Any) -> None:
        if self._bytes_after is not None:
            log.size = self._bytes_after(state, log.next_offset)
            return
        if state.end_offset <= log.next_offset:
            log.size, log.last, log.counted = 0, state.last, state.position
        elif state.last == log.last and state.position >= log.counted:
            log.size += state.position - log.counted
            log.counted = state.position
        elif (opened := open_log(state.path, self._options.storage)) is not None:
            log.size = bytes_from(opened, log.next_offset, state)
            log.last, log.counted = state.last, state.position

    def waiting(self) -> dict[TopicPartition, int]:
        """Return the bytes to read of each log that a run should read."""
        return {
            key: max(1, log.size)
            for key, log in self._logs.items()
            if log.done != _mark(self.states[key]) and _is_behind(log, self.states[key])
        }

    def lags(self) -> dict[str, Lag]:
        """Return how far each topic is behind."""
        found: dict[str, Lag] = {}
        for (topic, partition), log in self._logs.items():
            before = found.get(topic, Lag())
            offsets = max(0, self.states[topic, partition].end_offset - log.next_offset)
            found[topic] = Lag(before.bytes + log.size, before.offsets + offsets)
        return found

    def lag(self) -> Lag:
        """Return how far all topics together are behind."""
        return Lag(*map(sum, zip(Lag(), *self.lags().values(), strict=True)))

    def may_be_limited(self, key: TopicPartition) -> bool:
        """Whether a run may read only a part of a log: not if the last run found no records in its part."""
        return key not in self._logs or not self._logs[key].is_stalled

    def advance(self, key: TopicPartition, next_offset: int, *, before: int, stop: int) -> None:
        """Set the offset up to which a run has read a log; the run was planned from `before` to `stop`."""
        log, state = self._logs.get(key), self.states.get(key)
        if log is None or state is None:
            return
        is_whole = stop >= state.end_offset
        log.is_stalled = next_offset <= before and not is_whole
        # The rest cannot be read until the log changes, for example because of an open transaction.
        log.done, log.tried = (_mark(state), state.end_offset) if is_whole else (None, log.tried)
        if next_offset != log.next_offset:
            log.next_offset, log.last = next_offset, ""
        log.topic_id = state.topic_id
        self._count(log, state)

    def has_reached(self, ends: Mapping[TopicPartition, int]) -> bool:
        """Whether all logs were read up to these ends, as far as possible."""
        logs = ((self._logs[key], end) for key, end in ends.items() if key in self._logs)
        return all(max(log.next_offset, log.tried) >= end for log, end in logs)

    def ends(self) -> dict[TopicPartition, int]:
        """Return the end of each log."""
        return {key: state.end_offset for key, state in self.states.items()}

    def states_of(self, keys: Iterable[TopicPartition]) -> dict[TopicPartition, FollowedState]:
        """Return the states of some logs."""
        return {key: self.states[key] for key in keys}


def _mark(state: FollowedState) -> _Mark:
    return state.path, state.start_offset, state.end_offset, state.topic_id


def _is_behind(log: _Followed, state: FollowedState) -> bool:
    """Whether the log has unread records, or has changed in a way that a run must examine."""
    is_other = None not in (log.topic_id, state.topic_id) and log.topic_id != state.topic_id
    return state.end_offset != log.next_offset or is_other
