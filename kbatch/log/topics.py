"""Topics chosen by name, by glob and by regular expression."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from kbatch.arguments import is_integer

__all__ = ["TopicChoice", "TopicFilter", "first_names", "partition_numbers"]

# What chooses topics: a name or a glob, a compiled regular expression, or several of them.
TopicChoice: TypeAlias = "str | re.Pattern[str] | Iterable[str | re.Pattern[str]]"

# Kafka allows letters, digits, '.', '_' and '-' in the names of topics, so a glob is never a name.
_GLOB = re.compile(r"[*?\[]")


class TopicFilter:
    """Decides whether a topic is chosen.

    Parameters
    ----------
    topics : str, re.Pattern, or iterable of them
        A string is the name of a topic, or a glob such as ``orders-*`` if it has one of ``*?[``; upper and lower case
        differ. A compiled regular expression must match the whole name.

    Raises
    ------
    TypeError
        For something else.

    Attributes
    ----------
    names : frozenset of str
        The names among `topics`, without globs.
    """

    def __init__(self, topics: TopicChoice) -> None:
        if not isinstance(topics, re.Pattern | Iterable):
            raise TypeError(f"topics must be names, globs or compiled regular expressions, got {topics!r}")
        given = [topics] if isinstance(topics, str | re.Pattern) else list(topics)
        self._matchers: list[tuple[str | None, Callable[[str], object]]] = []
        names: set[str] = set()
        for each in given:
            if isinstance(each, re.Pattern) and isinstance(each.pattern, str):
                # A pattern may match nothing, as in Spark's Kafka source.
                self._matchers.append((None, each.fullmatch))
            elif not isinstance(each, str):
                raise TypeError(f"topics must be names, globs or compiled regular expressions, got {each!r}")
            elif _GLOB.search(each):
                self._matchers.append((each, re.compile(fnmatch.translate(each)).match))
            else:
                names.add(each)
        self.names = frozenset(names)

    def __call__(self, topic: str | None) -> bool:
        """Return whether the topic is chosen."""
        return topic is not None and (topic in self.names or any(match(topic) for _, match in self._matchers))

    @property
    def has_patterns(self) -> bool:
        """Whether globs or regular expressions choose topics, besides names."""
        return bool(self._matchers)

    def unmatched(self, present: Iterable[str | None]) -> list[str]:
        """Return the names and globs that match no present topic."""
        topics = {topic for topic in present if topic is not None}
        globs = [text for text, match in self._matchers if text is not None and not any(map(match, topics))]
        return sorted([*(self.names - topics), *globs])

    def refusal(self, present: Iterable[str | None]) -> str | None:
        """Return the message about names and globs that match no present topic; None if there are no such names."""
        topics = sorted({topic for topic in present if topic is not None})
        unknown = self.unmatched(topics)
        if not unknown:
            return None
        listed = f"; the topics are {first_names(topics)}" if topics else ""
        return f"no log of topic {', '.join(map(repr, unknown))}{listed}"


def partition_numbers(partitions: Iterable[int] | None) -> frozenset[int] | None:
    """Return the numbers of the partitions that are chosen; None is all of them.

    Raises
    ------
    TypeError
        For something else.
    """
    if partitions is None:
        return None
    numbers = list(partitions)
    if isinstance(partitions, bytes) or not all(map(is_integer, numbers)):
        raise TypeError(f"partitions must be numbers such as [0, 1], got {numbers!r}")
    return frozenset(map(int, numbers))


def first_names(names: Sequence[str], limit: int = 10) -> str:
    """Return the first names for a message, and the number of the others."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more if names else "none"
