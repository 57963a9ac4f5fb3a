"""The selection of topic-partitions and records, and the logs that it chooses."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

from kbatch.bounds import Bound, Pruning
from kbatch.broker.partitioner import key_partition
from kbatch.errors import LogDirectoryError
from kbatch.java_patterns import java_pattern
from kbatch.log.discovery import distinct_logs, find_logs
from kbatch.log.logs import Log
from kbatch.log.store.names import INTERNAL_TOPICS, parse_directory_name
from kbatch.log.store.storage import absolute, is_url, locate
from kbatch.log.topics import TopicChoice, TopicFilter, first_names
from kbatch.options import Crc, OnError, did_you_mean

__all__ = ["LogChooser", "Selection", "choose_logs", "map_logs", "open_selected"]

# Remote logs that are examined at the same time: each needs round trips.
REMOTE_THREADS = 16

ItemT = TypeVar("ItemT")
FoundT = TypeVar("FoundT")


@dataclass(frozen=True)
class Selection:
    """The records to read: their topic-partitions, offsets, times and key.

    Attributes
    ----------
    topics, topic_pattern, assign, partitions, starting, ending, latest_if_no_timestamp, crc, on_error, key, \
key_partitions, fail_on_data_loss, prune, policies
        As for `kbatch.plan.read_options.ReadOptions`, of which it is a part.
    """

    topics: TopicChoice | None = None
    topic_pattern: str | None = None
    assign: Mapping[str, Sequence[int]] | None = None
    partitions: frozenset[int] | None = None
    starting: Bound = field(default_factory=Bound)
    ending: Bound = field(default_factory=Bound)
    latest_if_no_timestamp: bool = False
    crc: Crc = "verify"
    on_error: OnError = "raise"
    key: bytes | None = None
    key_partitions: int | None = None
    fail_on_data_loss: bool = True
    prune: Pruning = field(default_factory=Pruning)
    policies: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def key_partition(self) -> int | None:
        """The only partition that can have `key`, if it is known."""
        if self.key is None or self.key_partitions is None:
            return None
        return key_partition(self.key, self.key_partitions)

    def leaves_out(self, topic: str | None, partition: int | None) -> bool:
        """Whether no record of this topic-partition is needed: it cannot have `key`, or `prune` excludes it."""
        is_other = self.key_partition is not None and partition != self.key_partition
        return is_other or self.prune.excludes(topic, partition)


class LogChooser:
    """Decides by the name of a directory, before it is listed, whether to read a topic-partition.

    Parameters
    ----------
    selection : Selection
    excludes : callable, optional
        Called with a topic and a partition: whether no record of it is needed. Such a log is not missing.
    roots : iterable of str, optional
        The paths of a read of records: internal topics are not chosen unless the selection or a path names them.
        Without paths all logs are chosen, as for commands that examine them.
    """

    def __init__(
        self,
        selection: Selection,
        excludes: Callable[[str | None, int | None], bool] | None = None,
        roots: Iterable[str] | None = None,
    ) -> None:
        self._selection = selection
        self._excludes = excludes
        pattern = selection.topic_pattern
        given = selection.topics if pattern is None else java_pattern(pattern)
        self._topics = None if given is None else TopicFilter(given)
        self._left_out = frozenset[str]()
        if roots is not None:
            named = () if self._topics is None else self._topics.names
            self._left_out = INTERNAL_TOPICS.difference(named, selection.assign or (), _topics_of(roots))
        self._assigned = None
        if selection.assign is not None:
            self._assigned = {(topic, number) for topic, numbers in selection.assign.items() for number in numbers}
        self._seen: set[tuple[str | None, int | None]] = set()

    def __call__(self, topic: str | None, partition: int | None) -> bool:
        """Return whether to read the log of that name, and record for `check` that it exists."""
        self._seen.add((topic, partition))
        if topic in self._left_out or not self._matches(topic, partition):
            return False
        count = self._selection.key_partitions
        if count is not None and partition is not None and partition >= count:
            raise ValueError(
                f"keyPartitions is {count}, but there is {topic}-{partition}: set it to the number of partitions that "
                "the topic was written with, or omit it"
            )
        return not self._selection.leaves_out(topic, partition) and not (
            self._excludes is not None and self._excludes(topic, partition)
        )

    def _matches(self, topic: str | None, partition: int | None) -> bool:
        if self._assigned is not None:
            return (topic, partition) in self._assigned
        return (self._topics is None or self._topics(topic)) and (
            self._selection.partitions is None or partition in self._selection.partitions
        )

    def check(self) -> None:
        """Raise if a topic or partition that the selection names does not exist.

        Raises
        ------
        ValueError
            If a topic or an assigned partition is not among the names seen, or a topic that has policies; if a pattern
            matches none of them, or all are internal.
        """
        every = sorted({topic for topic, _ in self._seen if topic is not None})
        present = [topic for topic in every if topic not in self._left_out]
        internal = ", ".join(topic for topic in every if topic in self._left_out)
        hint = f"; internal topics are read only if they are named: {internal}" if internal else ""
        if self._assigned is not None:
            missing = sorted(self._assigned - self._seen)
            if missing:
                names = ", ".join(f"{topic}-{number}" for topic, number in missing)
                raise ValueError(f"no log of {names}; the topics are {first_names(present)}")
        refusal = None if self._topics is None else self._topics.refusal(present)
        if refusal is not None:
            raise ValueError(f"{refusal}{hint}")
        pattern = self._selection.topic_pattern
        if pattern is not None and self._topics is not None and not any(map(self._topics, present)):
            raise ValueError(f"no topic matches the pattern {pattern!r}; the topics are {first_names(present)}{hint}")
        if internal and not present:
            raise ValueError(f"no topic is chosen{hint}")
        unknown = sorted(set(self._selection.policies) - set(every))
        if unknown:
            names = ", ".join(map(repr, unknown))
            raise ValueError(
                f"there is a policy for topic {names}, but no log of it{did_you_mean(unknown[0], every) or '.'} "
                f"The topics are {first_names(every)}"
            )


def _topics_of(roots: Iterable[str]) -> set[str]:
    """Return the topics that the paths of topic-partition directories and their files name."""
    found = set()
    for root in roots:
        path = absolute(root).rstrip("/")
        directory = os.path.dirname(path) if path.endswith(".log") else path
        with contextlib.suppress(LogDirectoryError):
            found.add(parse_directory_name(os.path.basename(directory)).topic)
    return found


def open_selected(
    paths: Iterable[str],
    storage_options: Mapping[str, str] | None = None,
    *,
    predicate: Callable[[str, int], bool] | None = None,
) -> list[Log]:
    """Open the logs under each path or URL: a log directory, a topic-partition directory, or one ``.log`` file.

    Each directory is listed once, and file sizes come from the listing if it has them. `predicate` decides by topic and
    partition which logs of a log directory to open; a path that is a log itself is always opened.

    Raises
    ------
    LogDirectoryError
        If a path has no log, or two directories have the same topic-partition.
    """
    logs: list[Log] = []
    paths = list(paths)
    for path in paths:
        # Workers of a cluster have working directories of their own.
        storage, path = locate(absolute(path), storage_options)
        # A remote look-up costs a request, so that there the name decides.
        is_file = path.endswith(".log") if storage.remote else os.path.isfile(path)
        if is_file:
            logs.append(Log(path, storage_options=storage_options))
        else:
            logs += find_logs(path, predicate=predicate, storage_options=storage_options)
    return distinct_logs(logs) if len(paths) > 1 else logs


def choose_logs(
    paths: Iterable[str],
    selection: Selection,
    storage_options: Mapping[str, str] | None = None,
    *,
    excludes: Callable[[str | None, int | None], bool] | None = None,
) -> list[Log]:
    """Open the logs that a selection chooses under each path; other directories are not listed.

    `excludes` is as for `LogChooser`.

    Raises
    ------
    LogDirectoryError
        As `open_selected`.
    ValueError
        As `LogChooser.check`, or if a partition exists that ``keyPartitions`` excludes.
    """
    paths = list(paths)
    chooser = LogChooser(selection, excludes, paths)
    logs = [
        log for log in open_selected(paths, storage_options, predicate=chooser) if chooser(log.topic, log.partition)
    ]
    chooser.check()
    return logs


def map_logs(logs: Sequence[Log], function: Callable[[ItemT], FoundT], items: Sequence[ItemT]) -> list[FoundT]:
    """Apply a function to the items, one for each log: in threads if a log is remote, since each read is a request."""
    if not any(is_url(log.path) for log in logs):
        return [function(item) for item in items]
    with ThreadPoolExecutor(REMOTE_THREADS, "kbatch-plan") as pool:
        return list(pool.map(function, items))
