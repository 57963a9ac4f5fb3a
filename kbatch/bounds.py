"""Bounds of what is read, as plain values: where a read begins and ends, and what a condition excludes.

`ReadOptions` has them as defaults, so this module does not import NumPy. `kbatch.log` applies them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict, get_args

from kbatch.arguments import check_fields, check_types, is_integer
from kbatch.keywords import describes
from kbatch.options import did_you_mean
from kbatch.quantities import (
    INT64_MAX,
    TimeLike,
    bounds_text,
    fixed_time,
    is_before_now,
    largest,
    parse_duration,
    parse_time,
    smallest,
)

if TYPE_CHECKING:
    import datetime

    import numpy as np

__all__ = ["Bound", "BoundArguments", "BoundLike", "Domain", "LogEnd", "PerPartition", "Pruning", "given_bounds"]

PerPartition = dict[str, dict[int, int]]
LogEnd = Literal["earliest", "latest"]
# One bound: an offset, a time, a duration before now or before the end of the topic, or an end of the log.
PointLike: TypeAlias = (
    "Bound | int | np.integer | str | datetime.date | datetime.timedelta | np.datetime64 | np.timedelta64"
)
# A bound, or one for each of some partitions, or of some partitions of some topics. The values of a mapping are not
# typed, because type checkers infer `object` for bounds of several forms.
BoundLike: TypeAlias = "PointLike | Mapping[int, Any] | Mapping[str, Mapping[int, Any]]"

_BEFORE_END = re.compile(r"end\s*-\s*(\d{1,15}\s*(?:ms|s|min|m|h|d))", re.ASCII)
_EXPECTED = (
    'must be an offset (an int), a time (datetime, datetime64 or ISO 8601), a duration before now (timedelta or "-1h") '
    'or before the end of the topic ("end-1h"), "earliest", "latest", or a mapping of partitions to such bounds'
)


@dataclass(frozen=True)
class Bound:
    """Where reading begins or ends. If nothing is set, the log's own end applies.

    `of` makes a bound of the forms that the arguments ``start`` and ``end`` have.

    Attributes
    ----------
    timestamp : int, datetime, datetime64, timedelta, str or None
        For every partition; as for `kbatch.Log.tables`, and stored as milliseconds since the epoch.
    timestamps, offsets : dict of topic to dict of partition to int, or None
        Per partition; every partition that is read must be named. In `offsets` -2 is the earliest, -1 the latest;
        timestamps may have the forms of `timestamp`. Only one of the two may be set, and neither `offset` nor
        `timestamp` with it.
    offset : int or None
        For every partition; a negative one counts back from the end of the log. With `timestamp` too, both apply.
    log_end : {"earliest", "latest"} or None
        An end of each log: its start offset, or the offset after its last record.
    before_end : int or None
        Milliseconds before the end of the topic: before the largest timestamp of the last batches of the partitions
        that are read.
    partitions : dict of topic to dict of partition to Bound, or None
        Per partition; the topic None is every topic. For other partitions, the log's own end applies.
    is_before_now : bool
        Whether `timestamp` was given as a duration before now.

    Examples
    --------
    >>> Bound(offsets={"orders": {0: 100, 1: -2}}).offsets
    {'orders': {0: 100, 1: -2}}
    """

    timestamp: int | None = None
    timestamps: PerPartition | None = None
    offsets: PerPartition | None = None
    offset: int | None = None
    log_end: LogEnd | None = None
    before_end: int | None = None
    partitions: dict[str | None, dict[int, Bound]] | None = None
    is_before_now: bool = field(default=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.timestamp is not None:
            if is_before_now(self.timestamp):
                object.__setattr__(self, "is_before_now", True)
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
        if self.log_end not in (None, *get_args(LogEnd)):
            raise ValueError(f"log_end must be 'earliest' or 'latest', got {self.log_end!r}")
        names = ("timestamp", "timestamps", "offsets", "offset", "log_end", "before_end", "partitions")
        given_names = [name for name in names if getattr(self, name) is not None]
        if len(given_names) > 1 and {"log_end", "before_end", "partitions"} & {*given_names}:
            raise ValueError(f"{' and '.join(given_names)} exclude each other")

    @classmethod
    def of(cls, value: BoundLike | None, name: str = "value") -> Bound:
        """Return the bound that an argument such as ``start`` or ``end`` states.

        Parameters
        ----------
        value : int, datetime, datetime64, timedelta, str, mapping, Bound or None
            An int is an offset; a negative one counts back from the end of each log. A datetime, a datetime64 or a text
            in ISO 8601 is a time, UTC without a time zone. A timedelta or a text such as ``"-1h"`` is before now, and
            ``"end-1h"`` before the end of the topic. ``"earliest"`` and ``"latest"`` are the ends of each log. A
            mapping has such a bound for each partition, ``{0: 100, 1: "latest"}``, or for each topic and partition,
            ``{"orders": {0: 100}}``; for other partitions the log's own end applies, as for all with None.
        name : str
            The name of the argument, for messages.

        Raises
        ------
        TypeError, ValueError

        Examples
        --------
        >>> Bound.of(100).offset, Bound.of("end-1h").before_end, Bound.of("latest").log_end
        (100, 3600000, 'latest')
        >>> Bound.of({"orders": {0: 100, 1: "latest"}}).partitions["orders"][0].offset
        100
        """
        check_types(Bound.of, locals())
        if value is None or isinstance(value, Bound):
            return cls() if value is None else value
        if isinstance(value, Mapping):
            return cls._of_mapping(value, name)
        if is_integer(value):
            return cls(offset=_offset_of(value, name))
        hint = ""
        if isinstance(value, str):
            word = value.strip().lower()
            if word in get_args(LogEnd):
                return cls(log_end=word)  # type: ignore[arg-type]
            if (found := _BEFORE_END.fullmatch(word)) is not None:
                return cls(before_end=round(parse_duration(found[1]) * 1000))
            if re.fullmatch(r"[-+]?\d+", word, re.ASCII):
                typed = {"start": "start_timestamp", "end": "stop_timestamp"}.get(name, "a datetime")
                raise ValueError(
                    f"{name} {_EXPECTED}, got {value!r}; int({value!r}) is an offset, and {typed} takes "
                    "milliseconds since 1970"
                )
            hint = did_you_mean(word, get_args(LogEnd))
        try:
            return cls._of_time(value, name)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{name} {_EXPECTED}, got {value!r}{hint}") from None

    @classmethod
    def _of_time(cls, value: TimeLike, name: str, offset: int | None = None) -> Bound:
        """Return the bound of a time; only this call warns of its unit."""
        when: Any = fixed_time(value, name)
        return cls(timestamp=when, offset=offset, is_before_now=is_before_now(value))

    @classmethod
    def _of_mapping(cls, value: Mapping[Any, Any], name: str) -> Bound:
        if value and all(isinstance(topic, str) and isinstance(each, Mapping) for topic, each in value.items()):
            topics: dict[str | None, Any] = dict(value)
        else:
            topics = {None: value}
        partitions: dict[str | None, dict[int, Bound]] = {}
        for topic, each in topics.items():
            for number, point in each.items():
                if not is_integer(number) or isinstance(point, Mapping):
                    raise TypeError(
                        f'{name} must have a bound by partition, as {{0: 100, 1: "latest"}}, or by topic and '
                        f'partition, as {{"orders": {{0: 100}}}}, got {value!r}'
                    )
                where = f"{name}[{number}]" if topic is None else f"{name}[{topic!r}][{number}]"
                partitions.setdefault(topic, {})[int(number)] = cls.of(point, where)
        return cls(partitions=partitions)

    def _of_partition(self, topic: str | None, partition: int | None) -> Bound:
        """Return the bound of one topic-partition, which is the same object for all unless bounds are per partition."""
        if self.partitions is None or partition is None:
            return self if self.partitions is None else Bound()
        named = self.partitions.get(topic, {})
        return named.get(partition) or self.partitions.get(None, {}).get(partition) or Bound()


@describes()
class BoundArguments(TypedDict, total=False):
    """The arguments of reads and exports that state where to begin and where to end.

    Attributes
    ----------
    start : int, datetime, datetime64, timedelta, str or mapping, default None
        Where to begin: an offset, which counts back from the end of the log if it is negative; a time, as a datetime or
        in ISO 8601; a time before now, as a timedelta or "-1h"; "end-1h", a time before the end of the topic;
        "earliest"; "latest"; or a mapping of partitions to such bounds. Default is the beginning of the log.
    end : int, datetime, datetime64, timedelta, str or mapping, default None
        Where to end, exclusive, in the forms of `start`. Default is the end of the log.
    start_offset : int, default None
        Only records with this offset or a later one; negative numbers count back from the end of the log.
    stop_offset : int, default None
        Only records with a smaller offset; negative numbers count back from the end of the log.
    start_timestamp : datetime, datetime64, timedelta, str or int, default None
        Only records with this timestamp or a later one; an int is milliseconds since the epoch.
    stop_timestamp : datetime, datetime64, timedelta, str or int, default None
        Only records with an earlier timestamp; an int is milliseconds since the epoch.
    """

    start: BoundLike | None
    end: BoundLike | None
    start_offset: int | None
    stop_offset: int | None
    start_timestamp: TimeLike | None
    stop_timestamp: TimeLike | None


def given_bounds(options: Mapping[str, Any]) -> tuple[Bound, Bound]:
    """Return the bounds that the arguments of a read state.

    Parameters
    ----------
    options : mapping of str to object
        ``start`` and ``end``, or ``start_offset``, ``stop_offset``, ``start_timestamp`` and ``stop_timestamp``, the
        typed spellings of the same bounds.

    Raises
    ------
    TypeError, ValueError
        Also for two spellings of one bound.

    Examples
    --------
    >>> from kbatch.bounds import given_bounds
    >>> given_bounds({"start": 5}) == given_bounds({"start_offset": 5})
    True
    """
    return _given_bound(options, "start", "start"), _given_bound(options, "end", "stop")


def _given_bound(options: Mapping[str, Any], name: str, typed: str) -> Bound:
    names = (f"{typed}_offset", f"{typed}_timestamp")
    value, offset, timestamp = (options.get(each) for each in (name, *names))
    if value is not None:
        if offset is not None or timestamp is not None:
            other = names[0] if offset is not None else names[1]
            raise ValueError(f"{name} and {other} exclude each other: {name} takes an offset or a time")
        return Bound.of(value, name)
    offset = None if offset is None else _offset_of(offset, names[0])
    return Bound(offset=offset) if timestamp is None else Bound._of_time(timestamp, names[1], offset)


def _offset_of(value: object, name: str) -> int:
    if not is_integer(value):
        raise TypeError(f"{name} must be an integer or None, got {value!r}")
    offset = int(value)
    if not -INT64_MAX - 1 <= offset <= INT64_MAX:
        raise ValueError(f"{name} must be {bounds_text(-INT64_MAX - 1, INT64_MAX, offset)}")
    return offset


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
