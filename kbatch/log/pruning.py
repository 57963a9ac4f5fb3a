"""What a condition on records excludes: the domains of topic, partition, offset, timestamp and key.

A domain is a superset of the values with which the condition can be true, so that a read may skip everything outside of
it. The condition itself is applied afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kbatch.bounds import Domain, Pruning
from kbatch.quantities import INT64_MAX

__all__ = ["Expression", "domains_of", "pruning_of"]


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
    >>> from kbatch.log.pruning import Expression, domains_of
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


def pruning_of(domains: Mapping[str, Domain]) -> Pruning:
    """Return what the domains of a condition exclude; ``timestamp`` is in microseconds."""
    offset, timestamp = domains.get("offset", Domain()), domains.get("timestamp", Domain())
    low = None if offset.low is None or offset.low <= 0 else min(offset.low, INT64_MAX)
    high = None if offset.high is None or offset.high >= INT64_MAX else max(offset.high, -1)
    # Rounded up: a record of this millisecond is not before the first microsecond.
    since = None if timestamp.low is None else -(-timestamp.low // 1000)
    return Pruning(domains.get("topic", Domain()), domains.get("partition", Domain()), Domain(low, high), since)
