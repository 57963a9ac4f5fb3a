"""Types of JSON that get fields which later values have."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

__all__ = ["with_new_fields"]


def with_new_fields(known: pa.DataType, found: pa.DataType, limit: int) -> pa.DataType:
    """Return a type with the fields of structs that only another type has, after its own ones.

    Other differences are ignored: the types of known fields remain. So are fields whose names differ from others only
    in case, which not all engines distinguish, objects without fields, which Parquet does not have, and fields that are
    always null.

    Parameters
    ----------
    known, found : pyarrow.DataType
    limit : int
        The number of fields, nested ones included, from which on none is added.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from kbatch.values.merged_types import with_new_fields
    >>> known = pa.struct({"id": pa.int64(), "user": pa.struct({"name": pa.string()})})
    >>> found = pa.struct({"id": pa.string(), "user": pa.struct({"age": pa.int64()})})
    >>> with_new_fields(known, found, 1000)
    StructType(struct<id: int64, user: struct<name: string, age: int64>>)
    """
    return _merged(known, found, [limit - field_count(known)])


def field_count(kind: pa.DataType) -> int:
    """Return the number of fields of the structs in a type."""
    if pa.types.is_struct(kind):
        return sum(1 + field_count(each.type) for each in kind)
    return field_count(kind.value_type) if pa.types.is_list(kind) else 0


def _merged(known: pa.DataType, found: pa.DataType, rest: list[int]) -> pa.DataType:
    types: Any = pa.types
    if types.is_list(known) and types.is_list(found):
        return pa.list_(known.value_field.with_type(_merged(known.value_type, found.value_type, rest)))
    if not (types.is_struct(known) and types.is_struct(found)):
        return known
    more = {each.name: each.type for each in found}
    fields = [each.with_type(_merged(each.type, more.get(each.name, each.type), rest)) for each in known]
    names = {each.name.lower() for each in known}
    for each in found:
        kind = _stored(each.type)
        if each.name.lower() in names or kind is None or rest[0] < 1 + field_count(kind):
            continue
        names.add(each.name.lower())
        rest[0] -= 1 + field_count(kind)
        fields.append(each.with_type(kind))
    return pa.struct(fields)


def _stored(kind: pa.DataType) -> pa.DataType | None:
    """Return a type without structs that have no fields, and without nulls; None if nothing remains."""
    types: Any = pa.types
    if types.is_null(kind):
        return None
    if types.is_struct(kind):
        fields = [(each, _stored(each.type)) for each in kind]
        left = [each.with_type(stored) for each, stored in fields if stored is not None]
        return pa.struct(left) if left else None
    if types.is_list(kind):
        items = _stored(kind.value_type)
        return None if items is None else pa.list_(kind.value_field.with_type(items))
    return kind
