"""Avro schemas and values of every kind, for tests with fastavro."""

from __future__ import annotations

import io
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import fastavro
from hypothesis import strategies as st

PRIMITIVES: dict[str, st.SearchStrategy[Any]] = {
    "null": st.none(),
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(allow_nan=False, width=32),
    "double": st.floats(allow_nan=False),
    "bytes": st.binary(max_size=6),
    "string": st.text(st.characters(exclude_categories=["Cs"]), max_size=6),
}
LOGICAL: list[tuple[dict[str, Any], st.SearchStrategy[Any]]] = [
    ({"type": "int", "logicalType": "date"}, st.dates()),
    (
        {"type": "int", "logicalType": "time-millis"},
        st.times().map(lambda t: t.replace(microsecond=t.microsecond // 1000 * 1000)),
    ),
    ({"type": "long", "logicalType": "time-micros"}, st.times()),
    ({"type": "long", "logicalType": "local-timestamp-micros"}, st.datetimes()),
    (
        {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        st.integers(-(10**9) + 1, 10**9 - 1).map(lambda n: Decimal(n).scaleb(-2)),
    ),
    ({"type": "string", "logicalType": "uuid"}, st.uuids()),
]
Case = tuple[Any, st.SearchStrategy[Any], Callable[[Any], Any]]


def same(value: Any) -> Any:
    return value


@st.composite
def cases(draw: st.DrawFn, depth: int = 3, names: list[int] | None = None) -> Case:
    """Draw a schema, a strategy of values to write, and a function from a value to the expected column value."""
    names = [0] if names is None else names
    kinds = ["primitive", "logical", "enum", "fixed"]
    if depth:
        kinds += ["array", "map", "record", "record", "nullable", "union"]
    kind = draw(st.sampled_from(kinds))
    names[0] += 1
    name = f"N{names[0]}"
    if kind == "primitive":
        schema = draw(st.sampled_from(sorted(PRIMITIVES)))
        return schema, PRIMITIVES[schema], same
    if kind == "logical":
        schema, values = draw(st.sampled_from(LOGICAL))
        return schema, values, str if schema["logicalType"] == "uuid" else same
    if kind == "enum":
        return {"type": "enum", "name": name, "symbols": ["A", "B", "C"]}, st.sampled_from("ABC"), same
    if kind == "fixed":
        size = draw(st.integers(0, 5))
        return {"type": "fixed", "name": name, "size": size}, st.binary(min_size=size, max_size=size), same
    if kind == "record":
        fields = [draw(cases(depth - 1, names)) for _ in range(draw(st.integers(0, 4)))]
        schema = {
            "type": "record",
            "name": name,
            "fields": [{"name": f"f{i}", "type": f[0]} for i, f in enumerate(fields)],
        }
        values = st.fixed_dictionaries({f"f{i}": f[1] for i, f in enumerate(fields)})
        return schema, values, lambda v: {f"f{i}": f[2](v[f"f{i}"]) for i, f in enumerate(fields)}
    if kind == "union":
        # fastavro selects the branch of a union by the value.
        branches = draw(st.permutations(["null", "boolean", "long", "string"]))[: draw(st.integers(2, 4))]
        schema = list(branches)
        values = st.one_of([PRIMITIVES[branch] for branch in branches])
        present = [branch for branch in branches if branch != "null"]
        if len(present) == 1:
            return schema, values, same
        types = {"boolean": bool, "long": int, "string": str}

        def members(value: Any) -> Any:
            if value is None:
                return None
            return {f"member{i}": value if type(value) is types[b] else None for i, b in enumerate(present)}

        return schema, values, members
    item, values, of_item = draw(cases(depth - 1, names))
    if kind == "nullable":
        if item == "null" or isinstance(item, list):
            return item, values, of_item
        schema = draw(st.sampled_from([["null", item], [item, "null"]]))
        return schema, st.none() | values, lambda v: None if v is None else of_item(v)
    if kind == "array":
        return {"type": "array", "items": item}, st.lists(values, max_size=4), lambda v: [of_item(each) for each in v]
    keys = PRIMITIVES["string"]
    return (
        {"type": "map", "values": item},
        st.dictionaries(keys, values, max_size=3),
        lambda v: [(key, of_item(each)) for key, each in v.items()],
    )


def write(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()
