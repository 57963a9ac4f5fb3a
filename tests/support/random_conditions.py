"""Random conditions on the columns of records, each as an expression of Arrow, of Polars, and in SQL."""

from __future__ import annotations

import functools
import operator
import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from view_records import EPOCH


@dataclass(frozen=True)
class Values:
    """What conditions compare with: values that records have, and values around and beyond them."""

    topics: Sequence[str]
    partitions: Sequence[int]
    offsets: Sequence[int]
    timestamps: Sequence[int]
    keys: Sequence[bytes]


@dataclass(frozen=True)
class Condition:
    """One condition in three languages."""

    arrow: pc.Expression
    polars: pl.Expr
    sql: str

    def __invert__(self) -> Condition:
        return Condition(~self.arrow, ~self.polars, f"not ({self.sql})")

    def __and__(self, other: Condition) -> Condition:
        return Condition(self.arrow & other.arrow, self.polars & other.polars, f"(({self.sql}) and ({other.sql}))")

    def __or__(self, other: Condition) -> Condition:
        return Condition(self.arrow | other.arrow, self.polars | other.polars, f"(({self.sql}) or ({other.sql}))")


COMPARISONS = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def condition(draw: random.Random, values: Values, depth: int = 3) -> Condition:
    """Draw a condition."""
    kind = draw.random()
    if depth and kind < 0.55:
        left, right = condition(draw, values, depth - 1), condition(draw, values, depth - 1)
        return left & right if kind < 0.35 else left | right
    if depth and kind < 0.65:
        return ~condition(draw, values, depth - 1)
    return _atom(draw, values)


def _atom(draw: random.Random, values: Values) -> Condition:
    name = draw.choice(["topic", "partition", "offset", "offset", "timestamp", "timestamp", "key", "key"])
    given: Sequence[Any] = getattr(values, f"{name}s")
    if draw.random() < 0.12:
        null = Condition(pc.field(name).is_null(), pl.col(name).is_null(), f'"{name}" is null')
        return null if draw.random() < 0.5 else ~null
    if draw.random() < 0.25:
        return _member(name, [draw.choice(given) for _ in range(draw.randint(1, 4))])
    if draw.random() < 0.08:
        # Arrow excludes nothing by it, and Polars does not translate it.
        odd = Condition(pc.bit_wise_and(pc.field("offset"), 1) == 1, pl.col("offset") % 2 == 1, '("offset" % 2) = 1')
        return odd
    symbols = ["=", "<>"] if name == "topic" or (name == "key" and draw.random() < 0.8) else list(COMPARISONS)
    symbol, value = draw.choice(symbols), draw.choice(given)
    compare = COMPARISONS[symbol]
    return Condition(
        compare(pc.field(name), _scalar(name, value)),
        compare(pl.col(name), _python(name, value)),
        f'"{name}" {symbol} {_sql(name, value)}',
    )


def _member(name: str, values: list[Any]) -> Condition:
    scalars = pa.array(values, _TYPES[name])
    return Condition(
        pc.field(name).isin(scalars),
        functools.reduce(operator.or_, [pl.col(name) == _python(name, each) for each in values])
        if name in ("key", "timestamp")
        else pl.col(name).is_in(values),
        f'"{name}" in ({", ".join(_sql(name, each) for each in values)})',
    )


_TYPES = {
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("ms", "UTC"),
    "key": pa.binary(),
}


def _scalar(name: str, value: Any) -> pa.Scalar:
    return pa.scalar(value, _TYPES[name])


def _python(name: str, value: Any) -> Any:
    if name != "timestamp":
        return value
    return EPOCH + timedelta(milliseconds=value)


def _sql(name: str, value: Any) -> str:
    if name == "timestamp":
        return f"make_timestamptz({value * 1000})"
    if name == "key":
        return "'" + "".join(f"\\x{byte:02x}" for byte in value) + "'::blob"
    return f"'{value}'" if name == "topic" else str(value)
