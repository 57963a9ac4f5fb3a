"""kbatch on Spark: a data source, functions for raw batches in DataFrames and RDDs, and the export to Parquet."""

from kbatch.errors import MissingDependencyError
from kbatch.extras import install_command

try:
    import pyarrow  # noqa: F401
    import pyspark.sql  # noqa: F401
except ImportError as error:
    raise MissingDependencyError(
        f"kbatch.spark needs PySpark 3.5 or newer and pyarrow ({error}); {install_command('spark')}"
    ) from error

from kbatch.plan.read_options import Bound, ReadOptions
from kbatch.sinks.summary import ExportSummary, PartitionSummary
from kbatch.sinks.write_options import WriteOptions
from kbatch.spark.datasource import KbatchDataSource, register
from kbatch.spark.driver.session import SparkStartError, spark_session
from kbatch.spark.export_job import export
from kbatch.spark.frames import read_logs
from kbatch.spark.functions import MapInArrow, decode_batches, decode_frame, decode_in_arrow

__all__ = [
    "Bound",
    "ExportSummary",
    "KbatchDataSource",
    "MapInArrow",
    "PartitionSummary",
    "ReadOptions",
    "SparkStartError",
    "WriteOptions",
    "decode_batches",
    "decode_frame",
    "decode_in_arrow",
    "export",
    "read_logs",
    "register",
    "spark_session",
]


def __dir__() -> list[str]:
    """Return the public names."""
    return list(__all__)
