"""Bounds of what is read, as plain values: where a read begins and ends, and what a condition excludes.

`ReadOptions` has them as defaults, so this module does not import NumPy. `kbatch.log` applies them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kbatch.arguments import check_fields
from kbatch.quantities import largest, parse_time, smallest

__all__ = ["Bound", "Domain", "PerPartition", "Pruning"]

PerPartition = dict[str, dict[int, int]]


@dataclass(frozen=True)
class Bound:
    """Where reading begins or ends. If nothing is set, the log's own end applies.

    Attributes
    ----------
    offset : int or None
        For every partition; a negative one counts back from the end of the log. With `timestamp` too, both apply.
    timestamp : int, datetime, datetime64, timedelta, str or None
        For every partition; as for `kbatch.Log.tables`, and stored as milliseconds since the epoch.
    timestamps, offsets : dict of topic to dict of partition to int, or None
        Per partition; every partition that is read must be named. In `offsets` -2 is the earliest, -1 the latest;
        timestamps may have the forms of `timestamp`. Only one of the two may be set, and neither `offset` nor
        `timestamp` with it.

    Examples
    --------
    >>> import kbatch.spark
    >>> start = kbatch.spark.Bound(offsets={"orders": {0: 100, 1: -2}})
    >>> kbatch.spark.ReadOptions(topics=("orders",), starting=start).starting.timestamp is None
    True
    """

    timestamp: int | None = None
    timestamps: PerPartition | None = None
    offsets: PerPartition | None = None
    offset: int | None = None

    def __post_init__(self) -> None:
        if self.timestamp is not None:
            object.__setattr__(self, "timestamp", parse_time(self.timestamp, "timestamp"))
        check_fields(self)
        for name, given in ("timestamps", self.timestamps), ("offsets", self.offsets):
            if given is not None and not all(isinstance(each, Mapping) for each in given.values()):
                raise TypeError(
                    f'{name} must be numbers by topic and partition, as {{"topic": {{0: 23}}}}, got {given!r}'
                )
        if self.timestamps is not None:
            parsed = {
                topic: {number: parse_time(each, f"timestamp of {topic}-{number}") for number, each in times.items()}
                for topic, times in self.timestamps.items()
            }
            object.__setattr__(self, "timestamps", parsed)


@dataclass(frozen=True, slots=True)
class Domain:
    """The values that a column can have: from `low` to `high`, inclusive, and among `members`; None is no limit."""

    low: int | None = None
    high: int | None = None
    members: frozenset[Any] | None = None

    @classmethod
    def of(cls, values: frozenset[Any]) -> Domain:
        """Return the domain of a few values."""
        numbers = [value for value in values if isinstance(value, int)]
        return cls(min(numbers), max(numbers), values) if numbers else cls(members=values)

    def __contains__(self, value: Any) -> bool:
        return (
            (self.members is None or value in self.members)
            and (self.low is None or value >= self.low)
            and (self.high is None or value <= self.high)
        )

    def both(self, other: Domain) -> Domain:
        """Return the values of both domains."""
        members = self.members if other.members is None else other.members
        if self.members is not None and other.members is not None:
            members = self.members & other.members
        return Domain(largest(self.low, other.low), smallest(self.high, other.high), members)

    def either(self, other: Domain) -> Domain:
        """Return a domain that has all values of both."""
        lows, highs = (self.low, other.low), (self.high, other.high)
        return Domain(
            None if None in lows else smallest(*lows),
            None if None in highs else largest(*highs),
            None if self.members is None or other.members is None else self.members | other.members,
        )


@dataclass(frozen=True)
class Pruning:
    """What a read may skip, because a condition excludes it. Instances are pickled.

    Attributes
    ----------
    topic, partition : Domain
    offset : Domain
        Only its `low` and `high` are used.
    since : int or None
        Milliseconds. Records before the first record with this timestamp or a later one are skipped. There is no upper
        limit, since the timestamps of later records can be smaller.
    """

    topic: Domain = field(default_factory=Domain)
    partition: Domain = field(default_factory=Domain)
    offset: Domain = field(default_factory=Domain)
    since: int | None = None

    def excludes(self, topic: str | None, partition: int | None) -> bool:
        """Whether the log of a topic-partition has no record that is needed; logs without a name are not excluded."""
        return (topic is not None and topic not in self.topic) or (
            partition is not None and partition not in self.partition
        )

    def to_json(self) -> str:
        """Return the text that `from_json` reads."""
        parts: dict[str, Any] = {}
        for name in ("topic", "partition", "offset"):
            domain: Domain = getattr(self, name)
            if domain != Domain():
                members = None if domain.members is None else sorted(domain.members)
                parts[name] = [domain.low, domain.high, members]
        if self.since is not None:
            parts["since"] = self.since
        return json.dumps(parts)

    @classmethod
    def from_json(cls, text: str) -> Pruning:
        """Return what `to_json` has written.

        Raises
        ------
        ValueError
            For any other text.
        """
        try:
            given = json.loads(text)
            since = given.pop("since", None)
            domains = {
                name: Domain(low, high, None if members is None else frozenset(members))
                for name, (low, high, members) in given.items()
            }
            return cls(**domains, since=since)
        except (ValueError, TypeError, AttributeError):
            raise ValueError(f"must be made by kbatch.spark.read_logs, got {text!r}") from None
