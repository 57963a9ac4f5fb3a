"""How tables and logs are displayed: one line in a REPL, HTML in a notebook."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from kbatch.escaping import counted, html_text, one_line
from kbatch.format import NO_TIMESTAMP, BatchStatus, TimestampType
from kbatch.quantities import EPOCH
from kbatch.records.data import TableData

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = [
    "COLUMN_TYPES",
    "HTML_ROWS",
    "changed_fields",
    "changed_repr",
    "html_of",
    "more_rows",
    "short_repr",
    "short_value",
    "shown_time",
    "table_facts",
    "table_html",
    "table_repr",
    "table_rows",
]

# The first rows of a table in a notebook, and the bytes of a key or value and the headers of a record that are shown.
HTML_ROWS = 5
_SHOWN_BYTES = 40
_SHOWN_HEADERS = 3
# The types of the columns of records in views.
COLUMN_TYPES = {
    "offset": "int64",
    "timestamp": "timestamp[ms, UTC]",
    "timestampType": "int32",
    "key": "binary",
    "value": "binary",
    "headers": "list of (key, value)",
    "topic": "string",
    "partition": "int32",
}
# The characters and items of a field in the representation of an object.
_FIELD_CHARACTERS = 200
_FIELD_ITEMS = 3


def short_repr(of: object, fields: Iterable[str]) -> str:
    """Return the representation of an object by its fields, each shortened: ``Name(field=value, ...)``."""
    shown = (f"{name}={short_value(getattr(of, name))}" for name in fields)
    return f"{type(of).__name__}({', '.join(shown)})"


def changed_repr(of: DataclassInstance) -> str:
    """Return the representation of a dataclass by the fields that differ from their defaults, each shortened."""
    return short_repr(of, changed_fields(of))


def changed_fields(of: DataclassInstance) -> dict[str, Any]:
    """Return the fields of a dataclass that differ from their defaults, by name, without those that ``repr`` omits."""
    changed = {}
    for each in dataclasses.fields(of):
        default = each.default if each.default_factory is dataclasses.MISSING else each.default_factory()
        if each.repr and getattr(of, each.name) != default:
            changed[each.name] = getattr(of, each.name)
    return changed


def short_value(value: Any) -> str:
    """Return the representation of a value on one line, shortened."""
    if getattr(value, "ndim", 0) or hasattr(value, "null_count") or hasattr(value, "num_columns"):
        # Arrays of NumPy, and arrays and tables of Arrow.
        return f"<{type(value).__name__}: {counted(len(value), 'row')}>"
    if isinstance(value, list | dict) and len(value) > _FIELD_ITEMS:
        items = list(value)[:_FIELD_ITEMS]
        first = {item: value[item] for item in items} if isinstance(value, dict) else items
        end = "}" if isinstance(value, dict) else "]"
        return f"{_short_text(repr(first)[:-1])}, ... {counted(len(value), 'item')}{end}"
    return _short_text(repr(value))


def _short_text(text: str) -> str:
    text = one_line(text)
    return text if len(text) <= _FIELD_CHARACTERS else f"{text[:_FIELD_CHARACTERS]}... ({len(text):,} characters)"


def shown_time(timestamp: int) -> str:
    """Return milliseconds since the epoch as UTC time; a number if the year has more than four digits."""
    try:
        return (EPOCH + timedelta(milliseconds=timestamp)).isoformat(" ", "milliseconds").replace("+00:00", "Z")
    except OverflowError:
        return f"{timestamp} ms"


def table_facts(table: TableData) -> list[str]:
    """Return what the representation of a table states: counts, and whatever makes the table incomplete."""
    batches = table._batches
    facts = [f"{counted(len(table), 'record')} in {counted(len(batches), 'batch')}"]
    if damaged := int(np.count_nonzero(BatchStatus.damaged(batches["status"]))):
        facts.append(counted(damaged, "damaged batch"))
    if table.losses:
        lost = int(table.losses.lengths.sum())
        facts.append(f"{counted(len(table.losses), 'loss')} of {counted(lost, 'byte')}")
    if table.pending:
        facts.append(counted(len(table.pending), "pending transaction"))
    if table.remaining:
        remain = "byte remains" if table.remaining == 1 else "bytes remain"
        facts.append(f"{table.remaining:,} {remain} after the last complete batch")
    return facts


def table_repr(table: TableData) -> str:
    """Return the representation of a table: one line."""
    where = f" of {table.topic}-{table.partition}" if table.topic is not None else ""
    return f"<{type(table).__name__}{where}: {', '.join(table_facts(table))}>"


def table_html(table: TableData) -> str:
    """Return a table as HTML: counts, time range, columns and types, and the first rows."""
    facts = [("", ", ".join(table_facts(table)))]
    if table.topic is not None:
        facts.append(("topic, partition", f"{table.topic}, {table.partition}"))
    if table.source is not None:
        facts.append(("source", table.source))
    if len(table) and "offset" in table.columns:
        offsets = table.records["offset"]
        facts.append(("offsets", f"{offsets[0]} to {offsets[-1]}"))
    if "timestamp" in table.columns:
        times = table.records["timestamp"]
        times = times[times != NO_TIMESTAMP]
        if len(times):
            facts.append(("timestamps", f"{shown_time(int(times.min()))} to {shown_time(int(times.max()))}"))
    return html_of(type(table).__name__, facts, *table_rows(table))


def table_rows(table: TableData) -> tuple[list[str], list[list[str]]]:
    """Return the names and types of the columns, and the first rows, as text."""
    head = table._select_rows(slice(HTML_ROWS))
    columns = [list(_cells(head, name)) for name in table.columns]
    return [f"{name}: {COLUMN_TYPES[name]}" for name in table.columns], [
        list(row) for row in zip(*columns, strict=True)
    ]


def _cells(table: TableData, name: str) -> Iterator[str]:
    if name == "timestamp":
        return ("null" if time == NO_TIMESTAMP else shown_time(time) for time in table.records[name].tolist())
    if name == "offset":
        return map(str, table.records[name].tolist())
    if name == "timestampType":
        return map(str, TimestampType.of(table._batches)[table.records["batch"]].tolist())
    if name in ("key", "value"):
        return iter(_shown_slices(table, table.records, name))
    if name == "headers":
        return _shown_headers(table)
    return iter([str(getattr(table, name))] * len(table))


def _shown_slices(table: TableData, rows: npt.NDArray[np.void], column: str) -> list[str]:
    """Return the beginnings of a few keys or values, of records or headers, without a copy of the rest."""
    shown = []
    for position, length in rows[[f"{column}_pos", f"{column}_len"]].tolist():
        text = repr(table.data[position : position + min(length, _SHOWN_BYTES)].tobytes()) if length >= 0 else "null"
        shown.append(text if length <= _SHOWN_BYTES else f"{text}... ({length:,} bytes)")
    return shown


def _shown_headers(table: TableData) -> Iterator[str]:
    end = 0
    for count in table.records["header_count"].tolist():
        rows = table.headers[end : end + min(count, _SHOWN_HEADERS)]
        end += count
        pairs = zip(_shown_slices(table, rows, "key"), _shown_slices(table, rows, "value"), strict=True)
        shown = [f"({key}, {value})" for key, value in pairs]
        if count > _SHOWN_HEADERS:
            shown.append(f"... ({count:,} headers)")
        yield f"[{', '.join(shown)}]"


def html_of(
    title: str, facts: Iterable[tuple[str, str]], names: Sequence[str] = (), rows: Sequence[Sequence[str]] = ()
) -> str:
    """Return facts and rows as escaped HTML, without scripts and styles: the colours are those of the notebook."""
    parts = [f"<p><strong>{html_text(title)}</strong>"]
    for name, fact in facts:
        label = f"<br>{html_text(name)}: " if name else ": "
        parts.append(label + html_text(fact))
    parts.append("</p>")
    if names:
        parts.append("<table><thead><tr>")
        parts += [f"<th>{html_text(name)}</th>" for name in names]
        parts.append("</tr></thead><tbody>")
        for row in rows:
            parts.append("<tr>" + "".join(f"<td>{html_text(cell)}</td>" for cell in row) + "</tr>")
        parts.append("</tbody></table>")
    return "".join(parts)


def more_rows(count: int, shown: int, noun: str, columns: int) -> list[list[str]]:
    """Return the last row of a table that does not show all of `count` rows; nothing if it does."""
    return [[f"... and {counted(count - shown, noun)}", *[""] * (columns - 1)]] if count > shown else []
