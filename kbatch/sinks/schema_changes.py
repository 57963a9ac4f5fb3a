"""Changes of the columns of data when files with other columns are added to it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from kbatch.plan.spark_types import spark_type
from kbatch.values.schema_limits import shortened_name

__all__ = ["SchemaChange", "SchemaUnion", "union_of"]


@dataclass(frozen=True)
class SchemaChange:
    """A column, or a field of structs, that a run adds to the data.

    Attributes
    ----------
    column : str
        The path, such as ``value.lines[].price``.
    change : {"added", "widened"}
    type : str
        The Arrow name of the type.
    before : str or None
        The type before it was widened.
    """

    column: str
    change: str
    type: str
    before: str | None = None


@dataclass(frozen=True)
class SchemaUnion:
    """The columns of data and of files to be added to it.

    Attributes
    ----------
    schema : pyarrow.Schema
        The columns of the data, extended by fields of the files, then the columns that the files add.
    changes : list of SchemaChange
    differing : list of str
        The columns and fields that cannot be combined, with both types. If there are any, `schema` is meaningless.
    """

    schema: pa.Schema
    changes: list[SchemaChange]
    differing: list[str]


def union_of(
    present: pa.Schema, given: pa.Schema, *, same_types: str | None, has_small_integers: bool = True
) -> SchemaUnion:
    """Return the columns of data after files with the columns `given` are added.

    Columns and fields of structs that the files lack are null in the new rows; those that the data lacks are null in
    the existing rows.

    Parameters
    ----------
    present, given : pyarrow.Schema
    same_types : str or None
        The reason why a column must have the same type in all files; None if files with int32, float32 or decimals of
        lower precision are read as the wider type.
    has_small_integers : bool
        Whether the format supports int8 and int16. Otherwise they become int32.
    """
    union = _Union(same_types, has_small_integers)
    # Flattened fields, and the same fields in a struct, cannot be read together.
    for name in ("key", "value"):
        if (name in present.names) != (name in given.names):
            union.differing.append(f"{name} ({'missing' if name in present.names else 'new'})")
    fields = union.fields("", present, given)
    return SchemaUnion(pa.schema(fields, present.metadata), union.changes, union.differing)


class _Union:
    """Combines fields and types, and lists changes and differences."""

    def __init__(self, same_types: str | None, has_small_integers: bool) -> None:
        self.changes: list[SchemaChange] = []
        self.differing: list[str] = []
        self._same_types = same_types
        self._has_small_integers = has_small_integers

    def fields(self, path: str, present: Iterable[pa.Field], given: Iterable[pa.Field]) -> list[pa.Field]:
        """Return the fields of both: the fields of `present` in order, then the new ones."""
        there, more = {each.name: each for each in present}, {each.name: each for each in given}
        cases = {name.lower(): name for name in there}
        for name, field in there.items():
            if name not in more and not field.nullable:
                self.differing.append(f"{path}{name} (missing, and not nullable)")
            elif name in more:
                there[name] = field.with_type(self._type(f"{path}{name}", field.type, more[name].type))
        added = []
        for name in [each for each in more if each not in there]:
            same = cases.get(name.lower())
            if same is None:
                self.changes.append(SchemaChange(f"{path}{name}", "added", shortened_name(str(more[name].type))))
                added.append(more[name].with_nullable(True))
            else:
                self.differing.append(f"{path}{name} (new, and {same!r} differs only in case)")
        return [*there.values(), *added]

    def _type(self, path: str, present: pa.DataType, given: pa.DataType) -> pa.DataType:
        types: Any = pa.types
        if types.is_struct(present) and types.is_struct(given):
            return pa.struct(self.fields(f"{path}.", present, given))
        if _is_list(present) and _is_list(given):
            items = self._type(f"{path}[]", present.value_type, given.value_type)
            make = pa.large_list if types.is_large_list(present) else pa.list_
            return make(present.value_field.with_type(items))
        if types.is_map(present) and types.is_map(given):
            keys = self._type(f"{path} keys", present.key_type, given.key_type)
            return pa.map_(keys, self._type(f"{path} values", present.item_type, given.item_type))
        before, after = self._preserved(present), self._preserved(given)
        if before.equals(after):
            return present
        is_wider = _is_wider(before, after)
        if is_wider and self._same_types is None:
            self.changes.append(SchemaChange(path, "widened", str(after), str(before)))
            return given
        reason = f": {self._same_types}" if is_wider else ""
        self.differing.append(f"{path} ({shortened_name(str(before))}, not {shortened_name(str(after))}{reason})")
        return present

    def _preserved(self, kind: pa.DataType) -> pa.DataType:
        """Return a type without the distinctions that the format does not preserve."""
        if pa.types.is_dictionary(kind):
            kind = kind.value_type
        kind = spark_type(kind)
        is_small = kind in (pa.int8(), pa.int16()) and not self._has_small_integers
        return pa.int32() if is_small else kind


def _is_list(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _is_wider(before: pa.DataType, after: pa.DataType) -> bool:
    """Whether a type is a promotion of another type by Iceberg's rules."""
    if pa.types.is_decimal(before) and pa.types.is_decimal(after):
        return bool(before.scale == after.scale and before.precision < after.precision)
    return (before, after) in ((pa.int32(), pa.int64()), (pa.float32(), pa.float64()))
