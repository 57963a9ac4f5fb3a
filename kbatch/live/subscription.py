"""The topics that a group reads: given names, and topics that currently match patterns."""

from __future__ import annotations

from kbatch.live.cluster import Cluster, TopicMetadata
from kbatch.log.selection import LogChooser, Selection
from kbatch.log.topics import TopicChoice, TopicFilter

__all__ = ["TopicSubscription"]


class TopicSubscription:
    """Topics as a user names them.

    Parameters
    ----------
    cluster : Cluster
    topics : TopicChoice

    Raises
    ------
    BrokerError
        If a named topic does not exist.
    ValueError
        If a glob matches no topic.
    """

    def __init__(self, cluster: Cluster, topics: TopicChoice) -> None:
        self._cluster = cluster
        self._filter = TopicFilter(topics)
        # For names, no listing of all topics is needed; ACLs may hide topics from it.
        found = cluster.topics(None if self._filter.has_patterns else self._filter.names)
        self._chooser = LogChooser(Selection(topics=topics), roots=())
        self.topics = [topic for topic in found if self._chooser(topic.name, 0)]
        self._chooser.check()

    def refreshed(self) -> list[TopicMetadata]:
        """Return the topics that exist now."""
        found = self._cluster._present_topics(None if self._filter.has_patterns else self._filter.names)
        self.topics = [topic for topic in found if self._chooser(topic.name, 0)]
        return self.topics

    @property
    def names(self) -> list[str]:
        """The names to subscribe to, even if the topics do not exist."""
        return sorted({*self._filter.names, *(topic.name for topic in self.topics)})
