"""The columns of a view of records: which are decoded, and which are made of parsed values."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kbatch.escaping import counted, printable
from kbatch.extras import require
from kbatch.format import VIEW_COLUMNS
from kbatch.options import Binary, On
from kbatch.quantities import callers_stacklevel
from kbatch.records.arrow import to_arrow, view_schema
from kbatch.records.data import checked_columns, checked_names
from kbatch.table import RecordTable
from kbatch.value_options import SIDES, ValueOptions
from kbatch.values.parsed import ParsedColumn, bad_types
from kbatch.values.typed_columns import ValueColumns

if TYPE_CHECKING:
    import pandas
    import pyarrow as pa

__all__ = ["BadValues", "RecordView", "value_columns_of"]

_MEMORY_ADVICE = "raise limits=kbatch.Limits(max_table_bytes=...), or lower max_bytes"


def value_columns_of(
    values: ValueOptions, sample: Callable[[On], list[bytes]], topics: Callable[[], Iterable[str]]
) -> ValueColumns | None:
    """Return the typed columns that options request; None if there are none.

    A schema of JSON that is not given is inferred once from a `sample` of all records, so that the columns of different
    selections are the same. `topics` returns the topics for subjects of a schema registry.
    """
    if not values.parsed:
        return None
    return ValueColumns(values.parsers(sample, topics=topics))


class BadValues:
    """Counts keys and values that were not represented completely, of several threads, for a warning at the end.

    Parameters
    ----------
    columns : sequence of str
        The columns of the result. A side whose bad bytes or errors are among them is not counted.
    """

    def __init__(self, columns: Sequence[str]) -> None:
        self._sides = [on for on in SIDES if not {f"{on}_bad", f"{on}_error"} & {*columns}]
        self._lock = threading.Lock()
        self._count: dict[On, int] = {}
        self._first: dict[On, str] = {}

    def __reduce__(self) -> Any:
        raise TypeError("counts of bad values belong to one read")

    def add(self, on: On, column: ParsedColumn, offsets: pa.Array | None) -> None:
        """Count a column of a batch."""
        if not len(column.bad) or on not in self._sides:
            return
        place = "" if offsets is None else f" at offset {offsets[int(column.bad[0])].as_py()}"
        with self._lock:
            self._count[on] = self._count.get(on, 0) + len(column.bad)
            self._first.setdefault(on, f"{place}: {printable(column.errors[0])}")

    def warn(self) -> None:
        """Warn of the values whose bytes are not in the result."""
        for on, count in self._count.items():
            is_one = "is" if count == 1 else "are"
            warnings.warn(
                f"{counted(count, on)} {is_one} null or without some fields, because of the format or schema ("
                f"first{self._first[on]}); the columns {on}_bad and {on}_error have the bytes and the reasons",
                RuntimeWarning,
                stacklevel=callers_stacklevel(),
            )


@dataclass(frozen=True)
class RecordView:
    """How records become record batches.

    Attributes
    ----------
    schema : pyarrow.Schema
    columns : tuple of str
        The columns of records that are decoded, of `kbatch.format.VIEW_COLUMNS`.
    binary : {"binary", "large_binary", "binary_view"}
    values : ValueColumns or None
    """

    schema: pa.Schema
    columns: tuple[str, ...]
    binary: Binary
    values: ValueColumns | None = None

    @classmethod
    def of(
        cls,
        columns: Sequence[str] | None,
        default: Sequence[str],
        binary: Binary = "binary",
        values: ValueColumns | None = None,
    ) -> RecordView:
        """Return the view of some columns; None is the default ones, with the columns about bad values.

        Raises
        ------
        TypeError, ValueError
            For an unknown or repeated column, or a field that values do not have.
        """
        _check_formats(columns, values)
        if values is None:
            names = tuple(default) if columns is None else checked_columns(columns)
            return cls(view_schema(names, binary=binary), names, binary)
        about = [f"{on}_{name}" for on in values.parsers for name in bad_types()]
        if columns is None:
            columns = (*default, *about)
        elif isinstance(columns, str):
            checked_columns(columns)
        else:
            fields = [name for name in columns if _side_of_field(name) in values.parsers]
            columns = checked_names(columns, [*VIEW_COLUMNS, *about, *fields])
        values = values.select(columns)
        inputs = values.inputs(())
        return cls(values.schema(view_schema(inputs, binary=binary)), inputs, binary, values)

    def of_columns(self, names: Sequence[str]) -> RecordView:
        """Return the view of other columns of the same records; errors as for `of`."""
        return RecordView.of(names, (), self.binary, self.values)

    def batches(self, table: RecordTable, bad: BadValues | None = None) -> list[pa.RecordBatch]:
        """Return the records of a table as batches of the schema; bad values are added to `bad`."""
        if self.values is None:
            batches: list[pa.RecordBatch] = to_arrow(table, columns=self.columns, binary=self.binary).to_batches()
            return batches
        # Parsers take binary arrays.
        is_binary = self.binary == "binary"
        made = to_arrow(table, columns=self.columns) if is_binary else self._with_binary(table)
        limit = table._view_memory()
        return [self.values.apply(batch, bad, limit, _MEMORY_ADVICE) for batch in made.to_batches()]

    def frame(self, table: RecordTable, bad: BadValues | None = None) -> pandas.DataFrame:
        """Return the records of a table as a DataFrame; parsed values are converted by Arrow."""
        if self.values is None:
            return table.to_pandas(columns=self.columns)
        pa, pd = require("pyarrow", "pandas", "to_pandas()"), require("pandas", "pandas", "to_pandas()")
        names = self.schema.names
        plain = [name for name in names if name in VIEW_COLUMNS and name not in self.values.parsers]
        typed = [name for name in names if name not in plain]
        parsed = pa.Table.from_batches(self.batches(table, bad), schema=self.schema).select(typed).to_pandas()
        frames = [table.to_pandas(columns=plain), parsed] if plain else [parsed]
        frame: pandas.DataFrame = pd.concat(frames, axis=1)[names]
        return frame

    def _with_binary(self, table: RecordTable) -> pa.Table:
        pa = require("pyarrow", "arrow", "an Arrow view")
        sides = [on for on in SIDES if self.values is not None and on in self.values.parsers and on in self.columns]
        others = [name for name in self.columns if name not in sides]
        raw, rest = to_arrow(table, columns=sides), to_arrow(table, columns=others, binary=self.binary)
        columns = [(raw if name in sides else rest).column(name) for name in self.columns]
        return pa.table(columns, names=list(self.columns))


def _side_of_field(name: str) -> On | None:
    return next((on for on in SIDES if name.startswith(f"{on}.")), None)


def _check_formats(columns: Sequence[str] | None, values: ValueColumns | None) -> None:
    """Raise ValueError for a column that needs a format of its side."""
    if columns is None or isinstance(columns, str):
        return
    for name in columns:
        for on in SIDES:
            is_about = isinstance(name, str) and name in {f"{on}_{about}" for about in bad_types()}
            is_field = isinstance(name, str) and _side_of_field(name) == on
            if (is_about or is_field) and (values is None or on not in values.parsers):
                raise ValueError(f"column {name!r} needs {on}s, the format of {on}s, such as {on}s='json'")
