"""Whether files with some columns can be added to data that has others."""

from __future__ import annotations

import pyarrow as pa

from kbatch.plan.spark_types import spark_type

__all__ = ["columns_that_differ"]


def columns_that_differ(present: pa.Schema, given: pa.Schema, *, may_add: bool) -> list[str]:
    """Return the columns, and the fields of structs, that differ so that they cannot be combined, each with both types.

    Parameters
    ----------
    present, given : pyarrow.Schema
        Of the data, and of the files to be added. Columns and fields of structs that the files do not have are null.
    may_add : bool
        Whether files may have columns and fields of structs that the data does not have.
    """
    # Fields as columns, and the same fields in a struct, cannot be read together.
    found = [f"{name} (missing)" for name in ("key", "value") if name in present.names and name not in given.names]
    there = {each.name: each.type for each in present}
    for field in given:
        found += _differences(field.name, there.get(field.name), field.type, may_add)
    return found


def _differences(name: str, present: pa.DataType | None, given: pa.DataType, may_add: bool) -> list[str]:
    """Return the differing fields of a column, or of a field; `present` is None if the data does not have it."""
    if present is None:
        return [] if may_add else [f"{name} (new)"]
    types = pa.types
    present, given = _as_preserved(present), _as_preserved(given)
    if types.is_struct(present) and types.is_struct(given):
        there = {each.name: each.type for each in present}
        pairs = [(each, there.get(each.name)) for each in given]
        return [text for each, kind in pairs for text in _differences(f"{name}.{each.name}", kind, each.type, may_add)]
    if types.is_list(present) and types.is_list(given):
        return _differences(f"{name}[]", present.value_type, given.value_type, may_add)
    if types.is_map(present) and types.is_map(given):
        keys = _differences(f"{name} keys", present.key_type, given.key_type, may_add)
        return keys + _differences(f"{name} values", present.item_type, given.item_type, may_add)
    return [] if present.equals(given) else [f"{name} ({present}, not {given})"]


def _as_preserved(kind: pa.DataType) -> pa.DataType:
    """Return a type without differences that formats do not preserve, such as the width of small integers."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    kind = spark_type(kind)
    return pa.int32() if kind in (pa.int8(), pa.int16()) else kind
