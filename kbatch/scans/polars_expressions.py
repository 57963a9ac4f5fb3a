"""Conditions of Polars as expressions of Arrow.

Polars itself translates them, for datasets of Arrow. A translation is used only if null has the same effect in both.
"""

from __future__ import annotations

import functools
import operator
import re
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn

from kbatch.extras import require

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa
    import pyarrow.compute as pc

__all__ = ["arrow_counterpart", "conjuncts", "exact_counterpart", "is_polars_expression", "to_arrow_expression"]

_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
# A test for null of a column is the same in both libraries. Of a function it is not: Arrow's `is_in` is never null.
_NULL_OF_COLUMN = re.compile(r"\bis_null\(\w+, \{nan_is_null=\w+\}\)|\bis_valid\(\w+\)")
_DEPENDS_ON_NULL = re.compile(r"\b(?:is_null|is_valid|invert|if_else|coalesce|xor)\(")
# Top-k has a predicate that changes during the query and that only the engine can evaluate.
_DYNAMIC = "dynamic_pred"


def is_polars_expression(given: object) -> bool:
    """Whether an object is an expression of Polars; does not import Polars."""
    polars = sys.modules.get("polars")
    return polars is not None and isinstance(given, polars.Expr)


def to_arrow_expression(condition: pl.Expr, schema: pa.Schema) -> pc.Expression:
    """Return the expression of Arrow that is true for exactly the same records, whose columns `schema` has.

    Raises
    ------
    TypeError
        If the expression has no exact counterpart in Arrow.
    """
    found = [arrow_counterpart(each, schema) for each in conjuncts(condition)]
    if any(each is None for each in found):
        raise TypeError(
            f"{condition} has no exact counterpart in Arrow; Scan.filter() takes a pyarrow.compute.Expression, and "
            "Scan.lazy().filter() any expression of Polars"
        )
    return functools.reduce(operator.and_, found)


def conjuncts(condition: pl.Expr) -> Iterator[pl.Expr]:
    """Yield the conditions that are all true if a condition is."""
    parts = condition.meta.pop()
    if len(parts) == 2:
        for left, right in (parts, parts[::-1]):
            if condition.meta.eq(left & right):
                yield from conjuncts(left)
                yield from conjuncts(right)
                return
    yield condition


def is_dynamic(condition: pl.Expr) -> bool:
    """Whether a condition is one that only the engine can evaluate, and that is only an optimization."""
    return _DYNAMIC in str(condition)


def arrow_counterpart(condition: pl.Expr, schema: pa.Schema) -> pc.Expression | None:
    """Return the expression of Arrow that is true for exactly the same records, or None."""
    if is_dynamic(condition):
        return None
    pl = require("polars", "polars", "a condition of Polars")
    recorder = _Recorder(schema)
    try:
        # The recorder ends the query before any row is read, so that nothing is evaluated.
        pl.scan_pyarrow_dataset(recorder).filter(condition).collect()
    except Exception:
        # Also for a condition that Polars refuses: it reports that when it evaluates the condition itself.
        if not recorder.called:
            return None
    return exact_counterpart(condition, recorder.found, schema)


def exact_counterpart(condition: pl.Expr, translated: pc.Expression | None, schema: pa.Schema) -> pc.Expression | None:
    """Return an expression that Polars has translated if it is exact, or the comparison of a key with a constant."""
    # In Polars, NaN equals itself and is larger than all other numbers.
    if any(_has_floats(schema.field(name).type) for name in condition.meta.root_names() if name in schema.names):
        return None
    if translated is None:
        return _key_comparison(condition)
    text = _NULL_OF_COLUMN.sub("", _QUOTED.sub('""', str(translated)))
    # Arrow has no function of a null without a type.
    if "null[null]" in text:
        return None
    if "is_in(" in text and (_DEPENDS_ON_NULL.search(text) or re.search(r"\bnull\b", text)):
        return None
    return translated


def _has_floats(kind: pa.DataType) -> bool:
    pa = require("pyarrow", "arrow", "a condition")
    if pa.types.is_nested(kind):
        return any(_has_floats(kind.field(place).type) for place in range(kind.num_fields))
    found: bool = pa.types.is_floating(kind)
    return found


def _key_comparison(condition: pl.Expr) -> pc.Expression | None:
    """Return the comparison of the key with bytes, which Polars does not translate."""
    pl, pa = require("polars", "polars", "a condition of Polars"), require("pyarrow", "arrow", "a condition")
    pc = require("pyarrow.compute", "arrow", "a condition")
    parts = condition.meta.pop()
    if len(parts) != 2:
        return None
    for column, constant in (parts, parts[::-1]):
        if not (column.meta.eq(pl.col("key")) and constant.meta.is_literal()):
            continue
        if not (condition.meta.eq(column == constant) or condition.meta.eq(constant == column)):
            continue
        value = pl.select(constant).to_series()
        if value.dtype == pl.Binary and value[0] is not None:
            return pc.field("key") == pa.scalar(value[0], pa.binary())
    return None


class _Recorded(Exception):
    """Ends a query after its filter is known."""


class _Recorder:
    """A dataset that records the filter that is pushed down to it."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self.called = False
        self.found: pc.Expression | None = None

    def to_batches(self, *, filter: pc.Expression | None = None, **options: Any) -> NoReturn:
        self.called, self.found = True, filter
        raise _Recorded

    to_table = scanner = to_batches
