"""The reader of a scan for `polars.scan_external_reader`, which Polars has since 2.1."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import polars as pl
from polars.io.external_reader import FileReader, FileReaderBuilder, FilterExpr, ReaderCapabilities

from kbatch.scans.polars_frames import counterparts, scan_filtered, scan_frames

if TYPE_CHECKING:
    from kbatch.scans.scanned_records import ScannedRecords

__all__ = ["reader_builder"]


def reader_builder(scan: ScannedRecords, schema: pl.Schema) -> FileReaderBuilder:
    """Return the builder of readers of a scan. A scan is one source, which is read in parallel and in order."""
    return _ScanBuilder(scan, schema)


class _ScanBuilder(FileReaderBuilder):
    def __init__(self, scan: ScannedRecords, schema: pl.Schema) -> None:
        self._scan = scan
        self._schema = schema

    def reader_capabilities(self) -> ReaderCapabilities:
        # Polars evaluates the filters again, and those that are not pushed down for the first time.
        return ReaderCapabilities(pre_slice=True, negative_pre_slice=True, supported_filter="partial")

    def build_file_reader(self, source: str | bytes, multi_scan_context: dict[Any, Any]) -> FileReader:
        return _ScanReader(self._scan, self._schema)

    def explain_properties(self) -> dict[str, str]:
        return {"name": "kbatch", "scan": repr(self._scan)}


class _ScanReader(FileReader):
    def __init__(self, scan: ScannedRecords, schema: pl.Schema) -> None:
        self._scan = scan
        self._schema = schema

    def schema(self) -> pl.Schema:
        return self._schema

    def collect_batches(
        self,
        *,
        columns: Sequence[str],
        row_index: tuple[str, int] | None,
        pre_slice: tuple[int, int] | None,
        filters: Sequence[FilterExpr],
        num_pipelines: int,
    ) -> Iterator[pl.DataFrame]:
        scan = self._scan
        # A slice comes before the filters, which Polars then evaluates.
        if pre_slice is None:
            scan = scan_filtered(scan, counterparts(filters, scan.schema))
        return scan_frames(scan, columns, pre_slice)

    def n_rows_in_file(self, limit: int | None = None) -> int:
        return self._scan.count() if limit is None else self._scan.select(self._scan.columns[0]).head(limit).num_rows
