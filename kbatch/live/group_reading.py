"""The group of a read: its membership or assigned partitions, and its commits."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from kbatch.live.cluster import Cluster, PartitionKey
from kbatch.live.group_commits import GroupCommits
from kbatch.live.group_member import GroupMember
from kbatch.live.live_partitions import LivePartition, located_partitions
from kbatch.live.settings import ClientSettings
from kbatch.live.subscription import TopicSubscription
from kbatch.log.read_arguments import ReadArguments
from kbatch.log.topics import TopicChoice
from kbatch.options import Isolation

__all__ = ["STARTS", "GroupReading", "GroupUse"]


# The arguments that set where a read begins.
STARTS = ("start", "start_offset", "start_timestamp", "last")
_COMMITTED = "committed"


@dataclass(frozen=True)
class GroupUse:
    """How a caller of `consume` uses a group.

    Attributes
    ----------
    group : str
    is_member : bool
        Whether the read joins the group. Otherwise the caller assigns its partitions.
    begins_committed : bool
        Whether partitions begin at the committed offsets.
    auto_commit : bool
        Whether to commit the offsets of a table when the next table is requested.
    """

    group: str
    is_member: bool
    begins_committed: bool
    auto_commit: bool

    @classmethod
    def of(
        cls,
        group: str | None,
        auto_commit: bool | None,
        settings: ClientSettings,
        given: dict[str, Any],
        *,
        is_assigned: bool,
    ) -> GroupUse | None:
        """Return the use of a group, or None without one; ``start="committed"`` is removed from `given`.

        Raises
        ------
        ValueError
        """
        if group is not None and settings.group_id not in (None, group):
            raise ValueError(f"group is {group!r}, and group.id is {settings.group_id!r}; give one of them")
        group = settings.group_id if group is None else group
        is_committed = isinstance(given.get("start"), str) and given["start"].strip().lower() == _COMMITTED
        if is_committed:
            del given["start"]
        if group is None:
            if is_committed:
                raise ValueError('start="committed" needs group=, the group that has committed offsets')
            if auto_commit is not None:
                raise ValueError("auto_commit needs group=, the group that commits")
            if settings.auto_offset_reset is not None:
                raise ValueError("auto.offset.reset needs a group (group=); start sets where other reads begin")
            return None
        if not group:
            raise ValueError("group must not be empty")
        names = [name for name in STARTS if given.get(name) is not None]
        if names and is_committed:
            raise ValueError(f'start="committed" and {names[0]} exclude each other')
        if names and not is_assigned:
            raise ValueError(
                f"{names[0]} and group exclude each other: the partitions of a member begin at their committed "
                "offsets, and auto_offset_reset sets where partitions without one begin; with partitions= the read is "
                "not a member"
            )
        commits = bool(settings.enable_auto_commit) if auto_commit is None else auto_commit
        return cls(group, not is_assigned, not names, commits)

    def check(self, arguments: ReadArguments) -> None:
        """Raise ValueError for an end that a member cannot have."""
        if self.is_member and arguments.needs_all_logs:
            raise ValueError(
                "with group, end must be the same for all partitions, and not relative to the end of the topic, "
                "because the partitions change"
            )


class GroupReading:
    """The group of a read.

    Parameters
    ----------
    cluster : Cluster
    topics : TopicChoice
    use : GroupUse
    follows : bool
        Whether partitions without a committed offset begin at the latest offset by default.

    Attributes
    ----------
    auto_commit, begins_committed : bool
        As for `GroupUse`.
    """

    def __init__(self, cluster: Cluster, topics: TopicChoice, use: GroupUse, *, follows: bool) -> None:
        self._cluster = cluster
        self.auto_commit = use.auto_commit
        self.begins_committed = use.begins_committed
        self.subscription = TopicSubscription(cluster, topics) if use.is_member else None
        self.member = None if self.subscription is None else GroupMember(cluster, use.group, self.subscription)
        state = None if self.member is None else self.member.state
        self.commits = GroupCommits(cluster, use.group, state, "latest" if follows else "earliest")
        self._present: frozenset[PartitionKey] | None = None

    def begin(self, assigned: Iterable[PartitionKey]) -> None:
        """Begin the membership, or the read of assigned partitions."""
        if self.subscription is None or self.member is None:
            self._present = frozenset(assigned)
            return
        topics = self.subscription.topics
        self._present = frozenset((topic.name, number) for topic in topics for number in topic.partitions)
        self.member.start()

    def is_new(self, key: PartitionKey) -> bool:
        """Whether a partition was created after the beginning of the read."""
        return self._present is not None and key not in self._present

    def located(self, keys: Collection[PartitionKey], isolation: Isolation) -> list[LivePartition]:
        """Return assigned partitions, with their offsets."""
        assert self.subscription is not None
        topics = {topic.name: topic for topic in self.subscription.topics}
        if any(topic not in topics or number not in topics[topic].partitions for topic, number in keys):
            topics = {topic.name: topic for topic in self._cluster.topics({topic for topic, _ in keys})}
        return located_partitions(self._cluster, [(topics[topic], number) for topic, number in sorted(keys)], isolation)

    def close(self) -> None:
        """Leave the group, and close its connections."""
        if self.member is not None:
            self.member.close()
        self.commits.close()
