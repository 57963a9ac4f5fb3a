"""kbatch on Spark: a data source, functions for raw batches in DataFrames and RDDs, and the export to Parquet."""

from kbatch.extras import require

for _module in ("pyarrow", "pyspark.sql.datasource"):
    # PySpark has this module since 4.0.
    require(_module, "spark", "kbatch.spark")

from kbatch.plan.read_options import Bound, ReadOptions
from kbatch.sinks.summary import ExportSummary, PartitionSummary
from kbatch.sinks.write_options import WriteOptions
from kbatch.spark.datasource import KbatchDataSource, register
from kbatch.spark.driver.session import SparkStartError, spark_session
from kbatch.spark.export_job import export
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
    "register",
    "spark_session",
]
