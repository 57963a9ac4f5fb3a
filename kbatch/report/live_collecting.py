"""Collects what a report shows of the topics of a live cluster."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from kbatch.live.cluster import Cluster
from kbatch.live.live_partitions import LivePartition, chosen_partitions
from kbatch.live.partition_statistics import count_partitions
from kbatch.log.selection import Selection
from kbatch.report.collecting import LogCollector, LogFigures, TopicFigures, TopicSums

__all__ = ["collect_live"]


def collect_live(
    cluster: Cluster, selection: Selection, now: int, progress: Callable[[int, int], None] | None = None
) -> list[TopicFigures]:
    """Fetch the topics of a cluster once, up to the ends that they have now, one topic after the other.

    Parameters
    ----------
    cluster : Cluster
    selection : Selection
    now : int
        Milliseconds since the epoch: later timestamps are wrong.
    progress : callable, optional
        Called with the number of offsets that were read, and of all.
    """
    logs = chosen_partitions(cluster, selection.topics, selection.partitions, "read_uncommitted")
    total, done = sum(log.end_offset - log.start_offset for log in logs), 0
    found: list[TopicFigures] = []
    for topic, of_topic in itertools.groupby(logs, key=lambda log: log.metadata.name):
        partitions, sums = list(of_topic), TopicSums()
        collectors = [LogCollector(_partition_figures(log), (), sums, now) for log in partitions]
        size = sum(log.end_offset - log.start_offset for log in partitions)

        def show(_: int, left: int, read: int = done + size) -> None:
            if progress is not None:
                progress(read - left, total)

        statistics = count_partitions(cluster, partitions, progress=show, observers=collectors)
        figures = [collector.finish(each) for collector, each in zip(collectors, statistics, strict=True)]
        found.append(sums.figures(topic, figures))
        done += size
    return found


def _partition_figures(log: LivePartition) -> LogFigures:
    name = f"{log.topic}-{log.number}"
    figures = LogFigures(name, name, log.metadata.name)
    figures.start_offset = log.start_offset
    return figures
