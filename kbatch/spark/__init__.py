"""kbatch on Spark: a data source, and functions for raw batches in DataFrames and RDDs."""

from kbatch.errors import MissingDependencyError
from kbatch.extras import extra_hint

try:
    import pyarrow  # noqa: F401
    import pyspark.sql  # noqa: F401
except ImportError as error:
    raise MissingDependencyError(
        f"kbatch.spark needs PySpark 3.5 or newer and pyarrow ({error}); install {extra_hint('spark')}"
    ) from error

from kbatch.spark.datasource import KbatchDataSource, register
from kbatch.spark.driver.session import SparkStartError, spark_session
from kbatch.spark.frames import read_logs
from kbatch.spark.functions import MapInArrow, decode_batches, decode_frame, decode_in_arrow
from kbatch.spark.stream_progress import StreamMetrics, TopicMetrics, stream_metrics

__all__ = [
    "KbatchDataSource",
    "MapInArrow",
    "SparkStartError",
    "StreamMetrics",
    "TopicMetrics",
    "decode_batches",
    "decode_frame",
    "decode_in_arrow",
    "read_logs",
    "register",
    "spark_session",
    "stream_metrics",
]


def __dir__() -> list[str]:
    """Return the public names."""
    return list(__all__)
