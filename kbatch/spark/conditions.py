"""What a condition of Spark excludes, from its plan in the JVM.

Spark itself parses, resolves and simplifies the condition: names of columns in any case, casts, times in the session's
time zone. The optimizer runs on an empty DataFrame, so that nothing is executed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from kbatch.bounds import Domain
from kbatch.log.pruning import Expression, domains_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["columns_used", "excluded_by"]

# Spark's types of the columns that can exclude something, in the forms in which a constant of them is understood.
_PRUNING_TYPES = {"topic": "string", "partition": "int", "offset": "bigint", "timestamp": "timestamp", "key": "binary"}
# Operators of a plan with the same rows as their input, or with some of them.
_ROW_WISE = ("Filter", "Project", "BatchEvalPython", "ArrowEvalPython")
_OPERATORS = (
    "And", "Or", "EqualTo", "EqualNullSafe", "LessThan", "LessThanOrEqual", "GreaterThan", "GreaterThanOrEqual", "In",
)  # fmt: skip
# The optimizer replaces the current time by a constant, but a DataFrame may be used again later.
_CURRENT_TIMES = frozenset(
    ("CurrentTimestamp", "Now", "CurrentDate", "LocalTimestamp", "CurrentTime", "CurrentBatchTimestamp")
)
# Such a time is understood below these operators only, as in `timestamp >= now() - INTERVAL 1 HOUR`: the value does not
# decrease with time, so that a lower bound remains one.
_MONOTONIC = frozenset((
    "And", "EqualTo", "LessThan", "LessThanOrEqual", "GreaterThan", "GreaterThanOrEqual", "Cast", "TimeAdd",
    "DatetimeSub", "TimestampAddInterval", "TimestampAddYMInterval", "DateAdd", "DateSub", "DateAddInterval",
))  # fmt: skip
_SUBQUERIES = ("ScalarSubquery", "ListQuery", "Exists", "InSubquery", "LateralSubquery")


def excluded_by(filtered: DataFrame) -> dict[str, Domain]:
    """Return the domains of columns outside of which the filters of a DataFrame over one relation are never true.

    What is not understood excludes nothing.
    """
    try:
        execution = filtered._jdf.queryExecution()
        is_timed, is_understood = _times_of(execution.analyzed())
        if not is_understood:
            return {}
        domains = _domains(execution.optimizedPlan())
    except (Py4JError, PySparkException):
        # The query itself reports the error, if it is one.
        return {}
    if is_timed and "timestamp" in domains:
        domains["timestamp"] = Domain(low=domains["timestamp"].low)
    return domains


def columns_used(filtered: DataFrame) -> set[str] | None:
    """Return the columns that the filters of a DataFrame use; None if they have subqueries."""
    plan = filtered._jdf.queryExecution().analyzed()
    names: set[str] = set()
    while plan.nodeName() == "Filter":
        condition = plan.condition()
        if _has_subquery(condition):
            return None
        references = condition.references().toSeq()
        names |= {references.apply(i).name() for i in range(references.size())}
        plan = plan.child()
    return names


def _elements(sequence: Any) -> Iterator[Any]:
    for i in range(sequence.size()):
        yield sequence.apply(i)


def _has_subquery(expression: Any) -> bool:
    if expression.getClass().getSimpleName() in _SUBQUERIES:
        return True
    return any(_has_subquery(each) for each in _elements(expression.children()))


def _times_of(plan: Any) -> tuple[bool, bool]:
    """Return whether the filters use the current time, and whether it and all else can be understood."""
    used, understood = False, True
    while plan.nodeName() == "Filter":
        if _has_subquery(plan.condition()):
            return False, False
        found, is_monotonic = _times(plan.condition())
        used, understood = used or found, understood and is_monotonic
        plan = plan.child()
    return used, understood


def _times(expression: Any) -> tuple[bool, bool]:
    name = expression.getClass().getSimpleName()
    if name in _CURRENT_TIMES:
        return True, True
    found = [_times(each) for each in _elements(expression.children())]
    used = any(is_used for is_used, _ in found)
    understood = all(is_understood for _, is_understood in found)
    return used, understood and (not used or name in _MONOTONIC)


def _domains(plan: Any) -> dict[str, Domain]:
    conditions = []
    while plan.nodeName() in _ROW_WISE:
        if plan.nodeName() == "Filter":
            conditions.append(plan.condition())
        plan = plan.child()
    if plan.children().size():
        return {}
    columns = {each.exprId().id(): each.name() for each in _elements(plan.output())}
    domains: dict[str, Domain] = {}
    for condition in conditions:
        for name, domain in domains_of(_converted(condition, columns)).items():
            domains[name] = domains[name].both(domain) if name in domains else domain
    return domains


def _converted(expression: Any, columns: Mapping[int, str]) -> Expression:
    """Convert an expression of the JVM; what is not understood becomes an operator without operands."""
    name = expression.getClass().getSimpleName()
    if name in _OPERATORS:
        return Expression(name, tuple(_converted(each, columns) for each in _elements(expression.children())))
    if name == "InSet":
        kind = expression.child().dataType().simpleString()
        values = expression.hset().iterator()
        constants = []
        while values.hasNext():
            constants.append(Expression("Constant", value=_constant(values.next(), kind)))
        return Expression("In", (_converted(expression.child(), columns), *constants))
    if name == "AttributeReference":
        column = columns.get(expression.exprId().id())
        if column in _PRUNING_TYPES and expression.dataType().simpleString() == _PRUNING_TYPES[column]:
            return Expression("Column", value=column)
    if name == "Cast":
        return _key_as_text(expression, columns)
    if name == "Literal":
        kind = expression.dataType().simpleString()
        if kind in _PRUNING_TYPES.values():
            return Expression("Constant", value=_constant(expression.value(), kind))
    return Expression(name)


def _constant(value: Any, kind: str) -> Any:
    if value is None or isinstance(value, int | bytes):
        return value
    return str(value.toString()) if kind == "string" else None


def _key_as_text(cast: Any, columns: Mapping[int, str]) -> Expression:
    """Convert ``CAST(key AS STRING)`` to a column of its own; other casts are not understood."""
    child = _converted(cast.child(), columns)
    if child == Expression("Column", value="key") and cast.dataType().simpleString() == "string":
        return Expression("Column", value="text of key")
    return Expression("Cast")
