"""The records of a scan that a query needs, as frames of Polars."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from kbatch.extras import require
from kbatch.scans.ahead import sliced_rows
from kbatch.scans.polars_expressions import arrow_counterpart, conjuncts, exact_counterpart, is_dynamic

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa
    from polars.io.external_reader import FilterExpr

    from kbatch.scans.scanned_records import ScannedRecords

__all__ = ["counterparts", "scan_filtered", "scan_frames", "source_frames"]


def source_frames(
    scan: ScannedRecords,
    columns: list[str] | None,
    predicate: pl.Expr | None,
    n_rows: int | None,
    batch_size: int | None,
) -> Iterator[pl.DataFrame]:
    """Yield the frames that `register_io_source` asks for: of the first `n_rows`, those for which a predicate is true.

    A predicate that only the engine can evaluate is left out, because it only saves work. What Arrow cannot evaluate,
    Polars does.
    """
    names = scan.columns if columns is None else columns
    rest: list[pl.Expr] = []
    if predicate is not None:
        rest = [each for each in conjuncts(predicate) if not is_dynamic(each)]
        if n_rows is None:
            pushed = [(each, arrow_counterpart(each, scan.schema)) for each in rest]
            rest = [each for each, found in pushed if found is None]
            scan = scan_filtered(scan, [found for _, found in pushed if found is not None])
    needed = list(dict.fromkeys([*names, *(name for each in rest for name in each.meta.root_names())]))
    for frame in scan_frames(scan, needed, None if n_rows is None else (0, n_rows)):
        for each in rest:
            frame = frame.filter(each)
        yield frame.select(names) if needed != list(names) else frame


def scan_filtered(scan: ScannedRecords, conditions: Sequence[Any]) -> ScannedRecords:
    """Return a scan of the records for which all conditions of Arrow are true."""
    return scan._narrowed(functools.reduce(operator.and_, conditions)) if conditions else scan


def scan_frames(scan: ScannedRecords, columns: Sequence[str], part: tuple[int, int] | None) -> Iterator[pl.DataFrame]:
    """Yield frames of some columns, of all records or of a slice; its offset is negative from the end.

    Without columns the frames have a height only.
    """
    pl = require("polars", "polars", "lazy()")
    if not columns and part is None:
        yield pl.DataFrame(height=scan.count())
        return
    # Polars asks for no columns of a slice too, whose length is then that of any column.
    selected = scan.select(*(columns or scan.columns[:1]))
    view = selected._view(binary="binary_view")
    start, length = part if part is not None else (0, None)
    batches = selected._batches(view)
    if start < 0:
        found = selected._last_batches(view, -start)
        # A slice that begins before the first record has fewer.
        length = max(0, (length or 0) + start + sum(each.num_rows for each in found)) if length is not None else None
        batches, start = (each for each in found), 0
    for batch in sliced_rows(batches, start, length):
        yield pl.from_arrow(batch) if columns else pl.DataFrame(height=batch.num_rows)


def counterparts(filters: Sequence[FilterExpr], schema: pa.Schema) -> list[Any]:
    """Return the expressions of Arrow of the filters that have an exact one; the others are left to Polars."""
    found = []
    for each in filters:
        if is_dynamic(each.expr):
            continue
        try:
            translated = each.pyarrow_expr
        except Exception:
            # Polars has no translation that works; it evaluates the filter itself.
            continue
        counterpart = exact_counterpart(each.expr, translated, schema)
        if counterpart is not None:
            found.append(counterpart)
    return found
