"""Requests to one broker: fetch sessions, in which a request has only the changed partitions (KIP-227)."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kbatch.error_codes import ErrorCode
from kbatch.live.fetch_state import MIN_PARTITION_BYTES, FetchLimits, PartitionFetch
from kbatch.options import Isolation
from kbatch.protocol.messages import message_class

__all__ = ["SESSION_ERRORS", "FetchSession"]

# From these versions on, requests have sessions, racks, and topic ids instead of names.
_SESSION_VERSION, _TOPIC_ID_VERSION = 7, 13
_NO_ID = uuid.UUID(int=0)
# The epochs of a request without a session, and of a request that begins a session.
_NO_EPOCH, _FIRST_EPOCH = -1, 0
_LAST_EPOCH = (1 << 31) - 1
# The broker does not know the session, or its contents differ from what the client assumes.
SESSION_ERRORS = (
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.INCONSISTENT_TOPIC_ID,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
)

_SessionKey = tuple[str, uuid.UUID, int]
# The request for a partition that a session remembers: the offset to fetch, the leader epoch, and the size.
_Asked = tuple[int, int, int]


class FetchSession:
    """The fetch session with a broker, from one full request to the next.

    Parameters
    ----------
    sizes : FetchLimits
    isolation : {"read_uncommitted", "read_committed"}
    """

    def __init__(self, sizes: FetchLimits, isolation: Isolation) -> None:
        self._sizes = sizes
        self._isolation = int(isolation == "read_committed")
        self._id = 0
        self._epoch = _FIRST_EPOCH
        self._sent_epoch = _NO_EPOCH
        self._has_ids = True
        self._known: dict[_SessionKey, _Asked] = {}

    def reset(self) -> None:
        """Begin another session with the next request; the broker drops the current one."""
        self._epoch = _FIRST_EPOCH

    @property
    def is_incremental(self) -> bool:
        """Whether the last request had only changes, so that the response omits partitions without news."""
        return self._sent_epoch > _FIRST_EPOCH

    @staticmethod
    def highest_version(partitions: Iterable[PartitionFetch]) -> int | None:
        """Return the highest version that can express a request, or None if any can."""
        return None if all(each.topic_id != _NO_ID for each in partitions) else _TOPIC_ID_VERSION - 1

    def request(self, partitions: Sequence[PartitionFetch], version: int) -> Any:
        """Return the request for the next batches of partitions; a full request keeps their order."""
        size = self._partition_size(len(partitions))
        wanted = {
            (each.topic, each.topic_id, each.partition): (
                each.position,
                each.leader_epoch,
                max(min(size, each.soft_bytes), each.needed_bytes),
            )
            for each in partitions
        }
        has_ids = version >= _TOPIC_ID_VERSION
        if has_ids != self._has_ids:
            self._has_ids = has_ids
            self.reset()
        forgotten: list[_SessionKey] = []
        if version < _SESSION_VERSION or any(each.needed_bytes for each in partitions):
            # In a session the broker chooses the order of partitions, but this request needs its own order.
            session, self._sent_epoch, asked = 0, _NO_EPOCH, wanted
        else:
            session, self._sent_epoch, asked = self._id, self._epoch, wanted
            if self.is_incremental:
                asked = {key: each for key, each in wanted.items() if self._known.get(key) != each}
                forgotten = [key for key in self._known if key not in wanted]
            self._known = wanted
        cls: Any = message_class("FetchRequest")
        return cls(
            max_wait_ms=self._sizes.max_wait_ms,
            min_bytes=self._sizes.min_bytes,
            max_bytes=max(self._sizes.response_bytes, *(each.needed_bytes for each in partitions), 0),
            isolation_level=self._isolation,
            session_id=session,
            session_epoch=self._sent_epoch,
            topics=_fetch_topics(cls, asked),
            forgotten_topics_data=_forgotten(cls, forgotten),
            rack_id=self._sizes.rack,
        )

    def accept(self, response: Any) -> None:
        """Record the session of a response without an error."""
        if self._sent_epoch < _FIRST_EPOCH:
            return
        # A broker whose session cache is full responds with the id 0.
        self._id = response.session_id
        self._epoch = _FIRST_EPOCH if not self._id else self._sent_epoch % _LAST_EPOCH + 1

    def _partition_size(self, count: int) -> int:
        if self._sizes.partition_bytes is not None:
            return self._sizes.partition_bytes
        shared = self._sizes.response_bytes // count
        return max(shared, min(self._sizes.response_bytes, MIN_PARTITION_BYTES))


def _fetch_topics(cls: Any, asked: Mapping[_SessionKey, _Asked]) -> list[Any]:
    """Return the partitions of a request by topic."""
    topics: dict[tuple[str, uuid.UUID], Any] = {}
    for (topic, topic_id, number), (position, epoch, size) in asked.items():
        entry = topics.get((topic, topic_id))
        if entry is None:
            entry = topics[topic, topic_id] = cls.FetchTopic(topic=topic, topic_id=topic_id, partitions=[])
        entry.partitions.append(
            cls.FetchPartition(
                partition=number, current_leader_epoch=epoch, fetch_offset=position, partition_max_bytes=size
            )
        )
    return list(topics.values())


def _forgotten(cls: Any, keys: Iterable[_SessionKey]) -> list[Any]:
    """Return the partitions to remove from a session, by topic."""
    topics: dict[tuple[str, uuid.UUID], list[int]] = {}
    for topic, topic_id, number in keys:
        topics.setdefault((topic, topic_id), []).append(number)
    return [
        cls.ForgottenTopic(topic=topic, topic_id=topic_id, partitions=numbers)
        for (topic, topic_id), numbers in topics.items()
    ]
