"""Whether files with some columns can be added to data that has others."""

from __future__ import annotations

import pyarrow as pa

from kbatch.plan.value_columns import spark_type

__all__ = ["columns_that_differ"]


def columns_that_differ(present: pa.Schema, given: pa.Schema, *, may_add: bool) -> list[str]:
    """Return the columns of `given` whose type in `present` is another one, each with both types.

    Parameters
    ----------
    present, given : pyarrow.Schema
        Of the data, and of the files to be added. Columns and fields of structs that the files do not have are null.
    may_add : bool
        Whether files may have columns and fields of structs that the data does not have.
    """
    found = []
    for field in given:
        if field.name not in present.names:
            found += [] if may_add else [f"{field.name} (new)"]
            continue
        there = present.field(field.name).type
        if not _fits(there, field.type, may_add):
            found.append(f"{field.name} ({_as_preserved(there)}, not {_as_preserved(field.type)})")
    return found


def _fits(present: pa.DataType, given: pa.DataType, may_add: bool) -> bool:
    types = pa.types
    present, given = _as_preserved(present), _as_preserved(given)
    if types.is_struct(present) and types.is_struct(given):
        there = {each.name: each.type for each in present}
        return all(_fits(there[each.name], each.type, may_add) if each.name in there else may_add for each in given)
    if types.is_list(present) and types.is_list(given):
        return _fits(present.value_type, given.value_type, may_add)
    if types.is_map(present) and types.is_map(given):
        return present.key_type.equals(given.key_type) and _fits(present.item_type, given.item_type, may_add)
    return bool(present.equals(given))


def _as_preserved(kind: pa.DataType) -> pa.DataType:
    """Return a type without differences that formats do not preserve, such as the width of small integers."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    kind = spark_type(kind)
    return pa.int32() if kind in (pa.int8(), pa.int16()) else kind
