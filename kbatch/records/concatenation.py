"""Concatenates tables: one table with the records, batches and bytes of several."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from kbatch.arguments import check_types
from kbatch.public_names import public_in
from kbatch.records.data import TableData
from kbatch.records.trimming import TableDataT, pays, trimmed_batches, trimmed_bytes

__all__ = ["concat_tables"]

_POSITIONS = ("key_pos", "value_pos", "headers_pos")


@public_in("kbatch")
def concat_tables(tables: Iterable[TableDataT]) -> TableDataT:
    """Return one table with the records of several, in their order.

    Parameters
    ----------
    tables : iterable of RecordTable
        Tables with the same columns, topic and partition, such as the tables of one log or stream.

    Returns
    -------
    RecordTable
        With the batches, losses and pending transactions of all tables; a batch that is split over several of them
        (`RecordTable.continued`) has one row, and slices and selections contribute only the batches of their records.
        ``consumed`` and ``remaining`` are sums. ``source`` is None if the sources differ. The bytes are copied, unless
        all tables share them, as slices of one table do. If the records refer to a small part of a table's bytes, only
        that part is kept.

    Raises
    ------
    ValueError
        Without tables, or if the columns, topics or partitions differ. Concatenate the Arrow tables of different logs:
        ``pyarrow.concat_tables(table.to_arrow() for table in tables)``, or ``find_logs(...).to_arrow()``.
    TypeError
        If an item is not a RecordTable.

    Examples
    --------
    >>> import kbatch
    >>> tables = list(kbatch.Log("tests/golden/logs/codec-none-0").tables(max_bytes=65536))
    >>> table = kbatch.concat_tables(tables)
    >>> len(table), len(table) == sum(map(len, tables))
    (3160, True)
    """
    check_types(concat_tables, locals())
    parts = list(tables)
    _check(parts)
    parts = _trimmed(parts)
    first = parts[0]
    if len(parts) == 1:
        return first
    data, shifts = _joined_data([part.data for part in parts])
    records = np.concatenate([part.records for part in parts])
    # A batch that is split over several of the tables gets one row.
    continued = [False, *(_is_next_part(part, before) for before, part in itertools.pairwise(parts))]
    batches = np.concatenate([part.batches[skip:] for part, skip in zip(parts, continued, strict=True)])
    positions = [name for name in _POSITIONS if name in (records.dtype.names or ())]
    row = batch = 0
    for part, shift, skip in zip(parts, shifts, continued, strict=True):
        rows = records[row : row + len(part)]
        for name in positions:
            rows[name] += shift
        rows["batch"] += batch - skip
        headers = batches[batch : batch + len(part.batches) - skip]
        headers["first_record"] += row
        row += len(rows)
        batch += len(headers)
    records.flags.writeable = False
    batches.flags.writeable = False
    sources = {part.source for part in parts}
    stable = [part.last_stable_offset for part in parts if part.last_stable_offset is not None]
    return type(first)(
        records,
        batches,
        data,
        consumed=sum(part.consumed for part in parts),
        remaining=sum(part.remaining for part in parts),
        losses=[loss for part in parts for loss in part.losses],
        pending=sorted({each for part in parts for each in part.pending}, key=lambda each: each[1]),
        last_stable_offset=min(stable, default=None),
        source=first.source if len(sources) == 1 else None,
        topic=first.topic,
        partition=first.partition,
        columns=first.columns,
        continued=first.continued,
    )


def _trimmed(parts: list[TableDataT]) -> list[TableDataT]:
    """Return the parts without the bytes that they do not refer to where that pays, and selections without batches."""
    of_data: dict[int, list[TableDataT]] = {}
    for part in parts:
        of_data.setdefault(id(part.data), []).append(part)
    paying = {key for key, tables in of_data.items() if pays(*tables)}
    result = []
    for part in parts:
        if part._derived:
            part = trimmed_batches(part)
        result.append(trimmed_bytes(part) if id(part.data) in paying else part)
    return result


def _is_next_part(part: TableData, before: TableData) -> bool:
    """Whether the first batch of `part` is the last one of the table before it (`RecordTable.continued`)."""
    if not (part.continued and len(part.batches) and len(before.batches)) or part.source != before.source:
        return False
    return int(part.batches["position"][0]) == int(before.batches["position"][-1])


def _check(tables: Sequence[TableData]) -> None:
    if not tables:
        raise ValueError("concat_tables needs at least one table, got none")
    for number, table in enumerate(tables):
        if not isinstance(table, TableData):
            raise TypeError(f"tables[{number}] must be a RecordTable, got {type(table).__name__}")
    first = tables[0]
    for number, table in enumerate(tables):
        if table.columns != first.columns:
            raise ValueError(
                f"table {number} has the columns {', '.join(table.columns)}, table 0 has {', '.join(first.columns)}; "
                "select() returns a table with the same columns"
            )
        if (table.topic, table.partition) != (first.topic, first.partition):
            raise ValueError(
                f"table {number} is of {_log(table)}, table 0 of {_log(first)}; concatenate the Arrow tables instead: "
                "pyarrow.concat_tables(table.to_arrow() for table in tables)"
            )


def _log(table: TableData) -> str:
    return "no log" if table.topic is None else f"{table.topic}-{table.partition}"


def _joined_data(arrays: Sequence[npt.NDArray[np.uint8]]) -> tuple[npt.NDArray[np.uint8], list[int]]:
    """Return the bytes of all arrays, each distinct array once, and where the bytes of each array begin."""
    starts: dict[int, int] = {}
    distinct = []
    end = 0
    for array in arrays:
        if id(array) not in starts:
            starts[id(array)] = end
            distinct.append(array)
            end += len(array)
    data = distinct[0] if len(distinct) == 1 else np.concatenate(distinct)
    data.flags.writeable = False
    return data, [starts[id(array)] for array in arrays]
