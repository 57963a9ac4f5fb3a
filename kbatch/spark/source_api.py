"""The base classes of Spark's Python data sources, which PySpark has from 4.0 on; stream limits from 4.2 on."""

from __future__ import annotations

from typing import Any

import pyspark

from kbatch.errors import MissingDependencyError
from kbatch.extras import extra_hint

__all__ = [
    "HAS_DATA_SOURCE",
    "HAS_LIMITS",
    "DataSource",
    "DataSourceArrowWriter",
    "DataSourceReader",
    "DataSourceStreamReader",
    "DataSourceStreamWriter",
    "DataSourceWriter",
    "InputPartition",
    "ReadAllAvailable",
    "ReadMaxBytes",
    "ReadMaxRows",
    "ReadMinRows",
    "SupportsTriggerAvailableNow",
    "WriterCommitMessage",
    "check_data_source",
]

try:
    from pyspark.sql.datasource import (
        DataSource,
        DataSourceArrowWriter,
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
        InputPartition,
        WriterCommitMessage,
    )

    HAS_DATA_SOURCE = True
except ImportError:
    HAS_DATA_SOURCE = False

    class _Missing:
        """A placeholder, so that the rest of `kbatch.spark` can be imported."""

        def __init__(self, *args: Any, **options: Any) -> None:
            check_data_source()

    DataSource = DataSourceReader = DataSourceStreamReader = DataSourceStreamWriter = _Missing  # type: ignore
    DataSourceArrowWriter = DataSourceWriter = InputPartition = WriterCommitMessage = _Missing  # type: ignore

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadMaxBytes,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )

    HAS_LIMITS = True
except ImportError:
    HAS_LIMITS = False

    class _NoLimit:
        """A placeholder: this version of PySpark passes no limits."""

    ReadAllAvailable = ReadMaxBytes = ReadMaxRows = ReadMinRows = SupportsTriggerAvailableNow = _NoLimit  # type: ignore


def check_data_source() -> None:
    """Raise if this version of PySpark has no data sources in Python.

    Raises
    ------
    MissingDependencyError
        The message names what works without them.
    """
    if not HAS_DATA_SOURCE:
        raise MissingDependencyError(
            f'format("kbatch") needs PySpark 4.0 or newer, and this is {pyspark.__version__}: kbatch.export '
            "(kbatch export on the command line) writes the logs as Parquet for this version, and "
            "kbatch.spark.decode_frame decodes a column of raw batches; or upgrade "
            f"{extra_hint('spark', upgrade=True)}"
        )
