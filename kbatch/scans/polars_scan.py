"""A scan as a LazyFrame of Polars.

A reader for `polars.scan_external_reader` gets slices from both ends and filters. Older versions of Polars have
`register_io_source`, which has no slices from the end and asks for one predicate.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from kbatch.extras import require
from kbatch.scans.polars_frames import source_frames

if TYPE_CHECKING:
    import polars as pl

    from kbatch.scans.scanned_records import ScannedRecords

__all__ = ["lazy_frame"]


def lazy_frame(scan: ScannedRecords) -> pl.LazyFrame:
    """Return the LazyFrame of a scan, by the newest interface of the installed Polars.

    Raises
    ------
    MissingDependencyError
        Without Polars, or if it has neither interface.
    """
    polars = require("polars", "polars", "lazy()")
    require("pyarrow", "polars", "lazy()")
    schema = polars.from_arrow(scan._view(binary="binary_view").schema.empty_table()).schema
    if hasattr(polars, "scan_external_reader"):
        from kbatch.scans.polars_reader import reader_builder

        frame: pl.LazyFrame = polars.scan_external_reader(
            reader_builder(scan, schema), sources=["kbatch"], schema=schema
        )
        return frame
    plugins = require("polars.io.plugins", "polars", "lazy() with this version of Polars")
    source = functools.partial(source_frames, scan)
    registered: pl.LazyFrame = plugins.register_io_source(source, schema=schema)
    return registered
