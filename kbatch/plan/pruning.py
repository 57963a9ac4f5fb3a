"""What a condition on records excludes: the domains of topic, partition, offset, timestamp and key.

A domain is a superset of the values with which the condition can be true, so that a read may skip everything outside of
it. The condition itself is applied afterwards.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kbatch.quantities import INT64_MAX

__all__ = ["Domain", "Expression", "Pruning", "domains_of", "pruning_of"]


@dataclass(frozen=True, slots=True)
class Expression:
    """A node of a condition.

    Attributes
    ----------
    operator : str
        ``And``, ``Or``, ``EqualTo``, ``EqualNullSafe``, ``LessThan``, ``LessThanOrEqual``, ``GreaterThan``,
        ``GreaterThanOrEqual``, ``In``, ``Column``, ``Constant``; any other operator excludes nothing.
    operands : tuple of Expression
    value : object
        The name of a column, or the value of a constant: int (timestamps in microseconds), str, bytes or None.
    """

    operator: str
    operands: tuple[Expression, ...] = ()
    value: Any = None


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
        return Domain(_of_known(max, self.low, other.low), _of_known(min, self.high, other.high), members)

    def either(self, other: Domain) -> Domain:
        """Return a domain that has all values of both."""
        lows, highs = (self.low, other.low), (self.high, other.high)
        return Domain(
            None if None in lows else _of_known(min, *lows),
            None if None in highs else _of_known(max, *highs),
            None if self.members is None or other.members is None else self.members | other.members,
        )


def _of_known(choose: Callable[[int, int], int], one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else choose(one, other)


_FLIPPED = {
    "LessThan": "GreaterThan",
    "GreaterThan": "LessThan",
    "LessThanOrEqual": "GreaterThanOrEqual",
    "GreaterThanOrEqual": "LessThanOrEqual",
}


def domains_of(condition: Expression) -> dict[str, Domain]:
    """Return the domains of the columns for which the condition can be true; other columns can have any value.

    Examples
    --------
    >>> from kbatch.plan.pruning import Expression, domains_of
    >>> offset, five = Expression("Column", value="offset"), Expression("Constant", value=5)
    >>> domains_of(Expression("GreaterThan", (offset, five)))["offset"].low
    6
    """
    operator, operands = condition.operator, condition.operands
    if operator in ("And", "Or"):
        left, right = (domains_of(each) for each in operands)
        if operator == "And":
            shared = {name: left[name].both(right[name]) for name in left.keys() & right.keys()}
            return {**left, **right, **shared}
        return {name: left[name].either(right[name]) for name in left.keys() & right.keys()}
    if operator == "In" and operands[0].operator == "Column":
        values = frozenset(each.value for each in operands[1:] if each.operator == "Constant")
        if values and all(each.operator == "Constant" and each.value is not None for each in operands[1:]):
            return {operands[0].value: Domain.of(values)}
        return {}
    if len(operands) != 2:
        return {}
    column, constant = operands
    if column.operator == "Constant":
        column, constant, operator = constant, column, _FLIPPED.get(operator, operator)
    if column.operator != "Column" or constant.operator != "Constant" or constant.value is None:
        return {}
    domain = _compared(operator, constant.value)
    return {} if domain is None else {column.value: domain}


def _compared(operator: str, value: Any) -> Domain | None:
    if operator in ("EqualTo", "EqualNullSafe"):
        return Domain.of(frozenset((value,)))
    if not isinstance(value, int):
        return None
    return {
        "LessThan": Domain(high=value - 1),
        "LessThanOrEqual": Domain(high=value),
        "GreaterThan": Domain(low=value + 1),
        "GreaterThanOrEqual": Domain(low=value),
    }.get(operator)


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


def pruning_of(domains: Mapping[str, Domain]) -> Pruning:
    """Return what the domains of a condition exclude; ``timestamp`` is in microseconds."""
    offset, timestamp = domains.get("offset", Domain()), domains.get("timestamp", Domain())
    low = None if offset.low is None or offset.low <= 0 else min(offset.low, INT64_MAX)
    high = None if offset.high is None or offset.high >= INT64_MAX else max(offset.high, -1)
    # Rounded up: a record of this millisecond is not before the first microsecond.
    since = None if timestamp.low is None else -(-timestamp.low // 1000)
    return Pruning(domains.get("topic", Domain()), domains.get("partition", Domain()), Domain(low, high), since)
