"""The offsets of a group, for its reader: where partitions begin, and commits."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Collection, Mapping

from kbatch.error_codes import ErrorCode
from kbatch.live.broker_errors import BrokerError
from kbatch.live.cluster import LATEST, Cluster, PartitionKey
from kbatch.live.coordinator import NO_MEMBERSHIP, CommittedOffset, GroupCoordinator
from kbatch.live.data_loss import DataLoss
from kbatch.live.group_state import MEMBERSHIP_ERRORS, GroupState, lost_error
from kbatch.live.live_partitions import LivePartition
from kbatch.log.missing import MissingOffsets

__all__ = ["GroupCommits"]


class GroupCommits:
    """Commits of a member, or of a reader of assigned partitions that is not a member.

    Parameters
    ----------
    cluster : Cluster
    group : str
    state : GroupState or None
        The state of the membership.
    reset : {"earliest", "latest"}
        Where partitions without a committed offset begin, unless ``auto.offset.reset`` is set.
    """

    def __init__(self, cluster: Cluster, group: str, state: GroupState | None, reset: str) -> None:
        self._cluster = cluster
        self._group = group
        self._coordinator = GroupCoordinator(cluster, group)
        self._state = state
        self._reset = cluster.settings.auto_offset_reset or reset
        self._is_reset_given = cluster.settings.auto_offset_reset is not None
        self._known: dict[PartitionKey, CommittedOffset] = {}

    def close(self) -> None:
        """Close the connection."""
        self._coordinator.close()

    def starts(
        self, logs: Collection[LivePartition], is_new: Callable[[PartitionKey], bool], loss: DataLoss
    ) -> dict[PartitionKey, CommittedOffset]:
        """Return where partitions begin: at the committed offset, or as set by ``auto.offset.reset``.

        Parameters
        ----------
        logs : collection of LivePartition
        is_new : callable
            Whether a partition was created during the read: without a committed offset it begins with its first record.
        loss : DataLoss
            Whether a committed offset that is not in the log is an error, without ``auto.offset.reset``.

        Raises
        ------
        BrokerError
            If a committed offset is not in the log, and ``auto.offset.reset`` is not set.
        """
        keys = [(log.metadata.name, log.number) for log in logs]
        committed = self._coordinator.committed(keys)
        found = {}
        for key, log in zip(keys, logs, strict=True):
            each = committed.get(key)
            if each is None:
                self._known.pop(key, None)
                found[key] = CommittedOffset(self._without_commit(log, is_new(key)))
            else:
                self._known[key] = each
                found[key] = self._within(log, each, loss)
        return found

    def _without_commit(self, log: LivePartition, is_new: bool) -> int:
        """Return the beginning of a partition that has no committed offset."""
        if self._reset == "none":
            raise BrokerError(
                f"group {self._group!r} has no committed offset of {log.metadata.name}-{log.number}, and "
                "auto.offset.reset is none; commit one, or set auto.offset.reset to earliest or latest",
                topic=log.metadata.name,
                partition=log.number,
            )
        if self._reset == "earliest" or (is_new and not self._is_reset_given):
            return log.start_offset
        return log.end_offset

    def _within(self, log: LivePartition, committed: CommittedOffset, loss: DataLoss) -> CommittedOffset:
        """Return a committed offset, or if the log lacks it, the offset that ``auto.offset.reset`` selects."""
        key = (log.metadata.name, log.number)
        if log.start_offset <= committed.offset <= log.end_offset:
            return committed
        # Under read_committed, `end_offset` is the last stable offset.
        end = self._cluster.offsets({key: LATEST})[key] or 0
        if log.start_offset <= committed.offset <= end:
            return committed
        is_below = committed.offset < log.start_offset
        reason = (
            f"the records from there to {log.start_offset}, exclusive, were deleted by retention"
            if is_below
            else f"the log ends at {end}: it was truncated, or the topic was deleted and recreated"
        )
        text = (
            f"{key[0]}-{key[1]}: the committed offset {committed.offset} of group {self._group!r} is not in the log: "
            f"{reason}"
        )
        if not self._is_reset_given and not loss.fails:
            position = log.start_offset if is_below else end
            gone = (committed.offset, position) if is_below else (position, committed.offset)
            loss.note(MissingOffsets(*key, gone[0], gone[1] - 1, f"{text}; the read resumes at offset {position}"))
            return CommittedOffset(position)
        if not self._is_reset_given or self._reset == "none":
            raise BrokerError(
                f"{text}; set auto.offset.reset to earliest or latest to read from there, or read the records that "
                "remain with fail_on_data_loss=False",
                topic=key[0],
                partition=key[1],
                code=ErrorCode.OFFSET_OUT_OF_RANGE,
            )
        warnings.warn(f"{text}; auto.offset.reset={self._reset}", RuntimeWarning, stacklevel=2)
        return CommittedOffset(log.start_offset if self._reset == "earliest" else end)

    def commit(self, positions: Mapping[PartitionKey, CommittedOffset]) -> None:
        """Commit positions that are not committed yet.

        Raises
        ------
        BrokerError
            For a refused commit, or if the membership has ended, so that other members may have the partitions.
        """
        changed = {key: each for key, each in positions.items() if self._differs(key, each)}
        if not changed:
            return
        settings = self._cluster.settings
        deadline = time.monotonic() + settings.default_api_timeout_ms / 1000
        membership = NO_MEMBERSHIP if self._state is None else self._state.current()
        cause: BrokerError | None = None
        while membership is not None:
            try:
                self._coordinator.commit(changed, membership)
                self._known.update(changed)
                return
            except BrokerError as error:
                if error.code not in MEMBERSHIP_ERRORS:
                    raise
                if self._state is None:
                    raise self._used_error(error) from None
                cause = error
            # The generation may belong to a rebalance that the thread of the membership is about to end.
            membership = self._state.renewed(membership, max(deadline - time.monotonic(), 0.0))
        raise lost_error(self._group, settings.max_poll_interval_ms, cause)

    def _differs(self, key: PartitionKey, position: CommittedOffset) -> bool:
        known = self._known.get(key)
        return known is None or known.offset != position.offset

    def _used_error(self, error: BrokerError) -> BrokerError:
        """Return the error of a commit for assigned partitions, while the group has members."""
        return BrokerError(
            f"group {self._group!r} has members, so that a read with partitions= can't commit for it; omit partitions= "
            f"to join the group, or choose another group: {error}",
            broker=error.broker,
            code=error.code,
        )
